// Package files gives finished files their names.
package files

import (
	"os"
	"path/filepath"
	"runtime"
)

// Publish closes a file that was written beside its path and moves it there. With sync, both the content and the name are
// on the disk when it returns.
func Publish(file *os.File, path string, sync bool) error {
	if sync {
		if err := file.Sync(); err != nil {
			return err
		}
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes the names in a folder durable.
func SyncFolder(path string) error {
	if runtime.GOOS == "windows" { // folders cannot be synced there
		return nil
	}
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return folder.Sync()
}
