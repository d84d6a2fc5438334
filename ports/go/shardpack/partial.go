package shardpack

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/internal/files"
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
		return nil, fault.IO("cannot write", path, err)
	}
	lock(file)
	return &partialFile{file, path}, nil
}

// publish syncs the file and gives it its name.
func (p *partialFile) publish(sync bool) error {
	if err := files.Publish(p.File, p.path, sync); err != nil {
		return fault.IO("cannot write", p.path, err)
	}
	return nil
}

func (p *partialFile) discard() {
	_ = p.Close()
	_ = os.Remove(p.Name())
}
