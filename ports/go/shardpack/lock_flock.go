//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package shardpack

import (
	"os"
	"syscall"
)

// lock shows other processes that the writer of a file is alive. A file system without locks shows nothing.
func lock(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
