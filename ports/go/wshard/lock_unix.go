//go:build unix

package wshard

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/shard-format/shard/ports/go/internal/fault"
)

// lockEpisode waits for the exclusive lock of an episode's file (W-SID-7). A missing file needs none. The file may be
// replaced meanwhile: whoever has waited for the lock of the old file then waits for that of the new one.
func lockEpisode(path string) (unlock func(), err error) {
	for {
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return func() {}, nil
		}
		if err != nil {
			return nil, fault.IO("cannot lock", path, err)
		}
		release := func() {
			_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
			_ = file.Close()
		}
		for {
			// A file system without locks is used without them.
			if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
				break
			}
		}
		own, err1 := file.Stat()
		named, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(own, named) {
			return release, nil
		}
		release()
	}
}
