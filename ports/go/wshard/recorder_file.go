package wshard

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/internal/files"
	"github.com/shard-format/shard/ports/go/shard"
)

// gatheredBytes is how much of small frames is written with one call; larger runs are written as they are.
const gatheredBytes = 256 << 10

// recordedFile is what a recorder does with its file.
type recordedFile interface {
	io.Writer
	Sync() error
}

// journalWriter appends frames to a journal. Only one writer can have a journal open (J-4).
type journalWriter struct {
	path string
	lock *os.File
	// file is where frames go: lock, unless a test puts something in between.
	file     recordedFile
	sequence uint64
	// position counts the bytes of all frames, also of those that are gathered.
	position int64
	gathered []byte
	// isUnsynced is set if the disk may not have everything that was written.
	isUnsynced bool
}

// wrapRecordedFile lets tests see and fail what a recorder writes.
var wrapRecordedFile = func(file *os.File) recordedFile { return file }

// openJournalWriter opens and locks a journal, which may hold an earlier recording.
func openJournalWriter(path string) (*journalWriter, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, cannotRecord(path, err)
	}
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, cannotRecord(path, err)
		}
		err = lockJournal(file, path)
		if err == nil && isStillNamed(file, path) {
			return &journalWriter{path: path, lock: file, file: wrapRecordedFile(file)}, nil
		}
		_ = file.Close()
		if err != nil {
			return nil, err
		}
		// The other writer finished, and removed the file after it was opened here.
	}
}

func lockJournal(file *os.File, path string) error {
	status, err := file.Stat()
	if err != nil {
		return cannotRecord(path, err)
	}
	if !status.Mode().IsRegular() { // a pipe would fill up
		return fault.Located(invalid("cannot record: not a regular file"), path, "")
	}
	isFree, err := lockFile(file)
	if err != nil {
		return cannotRecord(path, err)
	}
	if !isFree {
		return fault.Located(invalid("another writer is recording to this file; use one writer for each"), path, "")
	}
	return nil
}

// isStillNamed tells whether a name refers to an open file.
func isStillNamed(file *os.File, path string) bool {
	mine, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, named)
}

func cannotRecord(path string, err error) error {
	var inner *fs.PathError
	if errors.As(err, &inner) { // its path is named already
		err = inner.Err
	}
	return fault.IO("cannot record", path, err)
}

// oldSize is the size of what an earlier recording has left.
func (w *journalWriter) oldSize() (int64, error) {
	status, err := w.lock.Stat()
	if err != nil {
		return 0, cannotRecord(w.path, err)
	}
	return status.Size(), nil
}

// clear removes what an earlier recording has left.
func (w *journalWriter) clear() error {
	if err := w.lock.Truncate(0); err != nil {
		return cannotRecord(w.path, err)
	}
	return nil
}

// addText adds a start, note or end frame.
func (w *journalWriter) addText(kind frameKind, fields shard.Object) error {
	text, err := shard.CanonicalJSON(fields)
	if err != nil {
		return fault.Located(invalid("this cannot be stored as JSON: %v", err), w.path, "")
	}
	if len(text) > largestText {
		return fault.Located(broken(shard.CodeLimitExceeded, "J-TXT-2", "this is longer than 16 MiB of JSON"), w.path, "")
	}
	return w.add(frameHead{kind: kind, contentSize: uint32(len(text)), contentCRC: shard.ComputeChecksum(text)}, text)
}

// addRun adds a run. With CodecNone the content is stored as it is.
func (w *journalWriter) addRun(channel int, entries int, codec shard.Codec, content, stored []byte) error {
	return w.add(frameHead{
		kind: frameRun, codec: codec, channel: uint16(channel), entries: uint32(entries),
		contentSize: uint32(len(content)), contentCRC: shard.ComputeChecksum(content),
	}, stored)
}

func (w *journalWriter) add(head frameHead, stored []byte) error {
	head.sequence, head.storedSize, head.storedCRC = w.sequence, uint32(len(stored)), head.contentCRC
	if head.codec != shard.CodecNone {
		head.storedCRC = shard.ComputeChecksum(stored)
	}
	if len(w.gathered)+frameHeadSize+len(stored) > gatheredBytes {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.gathered = head.appendTo(w.gathered)
	w.sequence++
	w.position += frameHeadSize + int64(len(stored))
	if len(w.gathered)+len(stored) <= gatheredBytes {
		w.gathered = append(w.gathered, stored...)
		return nil
	}
	if err := w.flush(); err != nil {
		return err
	}
	return w.write(stored)
}

// flush hands everything to the system.
func (w *journalWriter) flush() error {
	if len(w.gathered) == 0 {
		return nil
	}
	err := w.write(w.gathered)
	w.gathered = w.gathered[:0]
	return err
}

func (w *journalWriter) write(data []byte) error {
	w.isUnsynced = true
	if _, err := w.file.Write(data); err != nil {
		return cannotRecord(w.path, err)
	}
	return nil
}

// sync waits until the disk has everything.
func (w *journalWriter) sync() error {
	if err := w.flush(); err != nil {
		return err
	}
	if !w.isUnsynced {
		return nil
	}
	if err := w.file.Sync(); err != nil {
		return cannotRecord(w.path, err)
	}
	w.isUnsynced = false
	return nil
}

// syncWithName also makes the name of a new journal survive a loss of power.
func (w *journalWriter) syncWithName() error {
	if err := w.sync(); err != nil {
		return err
	}
	if err := files.SyncFolder(filepath.Dir(w.path)); err != nil {
		return fault.IO("cannot sync", w.path, err)
	}
	return nil
}

// close releases the file. The journal stays.
func (w *journalWriter) close() error {
	if w.lock == nil {
		return nil
	}
	err := w.lock.Close()
	w.lock = nil
	if err != nil {
		return cannotRecord(w.path, err)
	}
	return nil
}

// remove deletes the journal while the lock keeps others from starting a new one under its name (J-5).
func (w *journalWriter) remove() error {
	var err error
	if w.lock != nil && isStillNamed(w.lock, w.path) {
		if err = os.Remove(w.path); err != nil {
			err = cannotRecord(w.path, err)
		}
	}
	return errors.Join(err, w.close())
}
