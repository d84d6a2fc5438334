//go:build unix

package shard

import (
	"os"

	"golang.org/x/sys/unix"
)

func mapFile(file *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
}

func unmap(data []byte) { _ = unix.Munmap(data) }
