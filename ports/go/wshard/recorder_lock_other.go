//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package wshard

import (
	"errors"
	"os"
)

// lockFile cannot lock here, so that nothing is recorded (spec/journal.md, section 9).
func lockFile(*os.File) (bool, error) {
	return false, errors.New("this system has no file locks that the recorder knows")
}
