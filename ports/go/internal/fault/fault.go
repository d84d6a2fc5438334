// Package fault completes errors of the container, for the formats that are built on it.
package fault

import (
	"errors"
	"io/fs"

	"github.com/shard-format/shard/ports/go/shard"
)

// Located adds the file and the entry to an error that does not name them.
func Located(err error, path, entry string) error {
	var known *shard.Error
	if !errors.As(err, &known) {
		return err
	}
	at := *known
	if at.Path == "" {
		at.Path = path
	}
	if at.Entry == "" {
		at.Entry = entry
	}
	return &at
}

// IO is an error of the operating system about a file. One that is known already stays.
func IO(problem, path string, err error) error {
	var known *shard.Error
	if errors.As(err, &known) {
		return Located(err, path, "")
	}
	var inner *fs.PathError
	if errors.As(err, &inner) { // its path may be that of a temporary file
		err = inner.Err
	}
	return &shard.Error{Code: shard.CodeIOError, Path: path, Problem: problem, Err: err}
}
