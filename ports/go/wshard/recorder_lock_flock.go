//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package wshard

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes the lock of a file; false if another process or another open file has it.
func lockFile(file *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, err
		}
	}
}
