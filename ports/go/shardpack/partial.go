package shardpack

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// partialFile is a file that is being written, under a hidden name beside its own: ".NAME.0123456789ab.partial". A killed
// process leaves it, and Recover reads it. It is locked while its writer lives.
type partialFile struct {
	*os.File
	path string
}

func createPartial(path string) (*partialFile, error) {
	folder, base := filepath.Split(path)
	var token [6]byte
	_, _ = rand.Read(token[:]) // never fails
	hidden := filepath.Join(folder, fmt.Sprintf(".%s.%x.partial", base, token))
	file, err := os.OpenFile(hidden, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, ioError("cannot write", path, err)
	}
	lock(file)
	return &partialFile{file, path}, nil
}

// publish syncs the file and gives it its name.
func (p *partialFile) publish(sync bool) error {
	if sync {
		if err := p.Sync(); err != nil {
			return ioError("cannot sync", p.path, err)
		}
	}
	if err := p.Close(); err != nil {
		return ioError("cannot close", p.path, err)
	}
	if err := os.Rename(p.Name(), p.path); err != nil {
		return ioError("cannot rename", p.path, err)
	}
	if sync {
		return syncFolder(filepath.Dir(p.path))
	}
	return nil
}

func (p *partialFile) discard() {
	_ = p.Close()
	_ = os.Remove(p.Name())
}

func syncFolder(path string) error {
	if runtime.GOOS == "windows" { // folders cannot be opened there
		return nil
	}
	folder, err := os.Open(path)
	if err != nil {
		return ioError("cannot sync", path, err)
	}
	defer func() { _ = folder.Close() }()
	if err := folder.Sync(); err != nil {
		return ioError("cannot sync", path, err)
	}
	return nil
}
