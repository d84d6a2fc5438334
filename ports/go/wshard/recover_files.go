package wshard

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	manifestEnding = "_manifest"
	nothingThere   = "nothing can be recovered: the journal has no complete start"
)

var chunkEnding = regexp.MustCompile(`_chunk_([0-9]{4,9})$`)

// chunkNames are the names of the chunks and the manifest of an episode (spec/wshard.md, section 11).
type chunkNames struct{ folder, stem string }

func namesOf(path string) chunkNames {
	return chunkNames{filepath.Dir(path), strings.TrimSuffix(filepath.Base(path), fileSuffix)}
}

func (n chunkNames) chunk(index int64) string {
	return ChunkPath(n.folder, n.stem, int(index))
}

func (n chunkNames) manifest() string {
	return ManifestPath(n.folder, n.stem)
}

// existing is the manifest or the first chunk of an episode that has these names; "" if there is none.
func (n chunkNames) existing() string {
	for _, path := range []string{n.manifest(), n.chunk(0)} {
		if exists(path) {
			return path
		}
	}
	return ""
}

// recordingFiles are the files of a recording (spec/journal.md, section 9), by the file that it was begun for.
//
// The first journal has the name of the file that it becomes if it stays the only one. A chunk has a journal until the
// manifest names it, and the next journal is opened before the one before it is finished. So the files that exist tell how
// far the recording got.
type recordingFiles struct{ path string }

// filesOf gives the recording of a journal, a chunk, a manifest, or the file that it was begun for.
func filesOf(path string) recordingFiles {
	path = strings.TrimSuffix(path, PartialSuffix)
	names := namesOf(path)
	if stem, ok := strings.CutSuffix(names.stem, manifestEnding); ok {
		return begunFor(filepath.Join(names.folder, stem))
	}
	found := chunkEnding.FindStringSubmatchIndex(names.stem)
	if found == nil {
		return recordingFiles{path}
	}
	index, _ := strconv.ParseInt(names.stem[found[2]:found[3]], 10, 64)
	if !isChunkFile(path, index) {
		return recordingFiles{path}
	}
	return begunFor(filepath.Join(names.folder, names.stem[:found[0]]))
}

// begunFor gives the recording whose chunks have names that begin so.
func begunFor(stem string) recordingFiles {
	if exists(stem + PartialSuffix) { // the episode was to have a name without a suffix
		return recordingFiles{stem}
	}
	return recordingFiles{stem + fileSuffix}
}

// isChunkFile tells whether a file that is named like a chunk is one, or the journal of one.
func isChunkFile(path string, index int64) bool {
	if index == 0 || fileSize(path+PartialSuffix) == 0 {
		return exists(path)
	}
	file, err := os.Open(path + PartialSuffix)
	if err != nil {
		return true // its recorder has just finished it
	}
	defer func() { _ = file.Close() }()
	j := newJournal(file, fileSize(path+PartialSuffix), false, false)
	f, err := j.frames.next()
	if err == nil {
		err = j.take(f)
	}
	return err != nil || j.index > 0 // reading the recording will report the error
}

func (f recordingFiles) names() chunkNames { return namesOf(f.path) }

// journal is the path of the journal of a chunk.
func (f recordingFiles) journal(index int64) string {
	if index == 0 {
		return f.path + PartialSuffix
	}
	return f.names().chunk(index) + PartialSuffix
}

// hasJournal tells whether a chunk has a journal that is not empty.
func (f recordingFiles) hasJournal(index int64) bool { return fileSize(f.journal(index)) > 0 }

func (f recordingFiles) hasChunk(index int64) bool { return exists(f.names().chunk(index)) }

// isRolled tells whether the recording has, or had, more than one journal. The second is opened before the first is
// finished, and finished after the first is removed.
func (f recordingFiles) isRolled() bool {
	return exists(f.journal(1)) || (!f.hasJournal(0) && f.hasChunk(0))
}

// inTheWayOf is a file that a chunk, or the first manifest, would replace; "" if there is none.
func (f recordingFiles) inTheWayOf(index int64) string {
	if index == 1 {
		if path := f.names().existing(); path != "" {
			return path
		}
	}
	if path := f.names().chunk(index); exists(path) {
		return path
	}
	return ""
}

// journals are the numbers of the journals that are not empty.
func (f recordingFiles) journals() []int64 {
	if !f.isRolled() {
		if f.hasJournal(0) {
			return []int64{0}
		}
		return nil
	}
	var found []int64
	for index := int64(0); ; index++ {
		if f.hasJournal(index) {
			found = append(found, index)
		} else if !f.hasChunk(index) {
			return found
		}
	}
}

// removeChunks deletes everything except the first journal, in an order that is sound at any moment.
func (f recordingFiles) removeChunks() error {
	last := int64(0)
	for f.hasChunk(last) || exists(f.journal(last+1)) {
		last++
	}
	var err error
	remove := func(path string) {
		if e := os.Remove(path); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, fault.IO("cannot remove", path, e))
		}
	}
	for index := last; index > 0; index-- {
		remove(f.journal(index))
	}
	remove(f.names().manifest())
	for index := last; index >= 0; index-- {
		remove(f.names().chunk(index))
	}
	return err
}

// resolveEarlier deals with what an earlier recording has left. The caller holds the lock of its first journal.
func (f recordingFiles) resolveEarlier(o StreamOptions) error {
	left := f.journals()
	for _, index := range left {
		if index == 0 {
			continue
		}
		// A recorder that has moved on to another file holds the lock there.
		lock, err := openJournalWriter(f.journal(index))
		if err != nil {
			return err
		}
		defer func() { _ = lock.close() }()
	}
	if len(left) > 0 {
		switch o.OnPartial {
		case PartialRefuse:
			e := invalid("an unfinished recording of this episode exists; recover it, or set OnPartial")
			return fault.Located(e, f.journal(left[len(left)-1]), "")
		case PartialRecover:
			if err := f.recoverBeside(o.Sync != SyncNever); err != nil {
				return err
			}
		}
		if f.isRolled() {
			if err := f.removeChunks(); err != nil {
				return err
			}
		}
	}
	// Chunks of the new recording would mix with those of another episode.
	if path := f.names().existing(); path != "" {
		return fault.Located(invalid("a chunked episode with this name exists; record to another path, or delete its files"), path, "")
	}
	return nil
}

// recoverBeside recovers a recording under a free name. Journals without a complete start are copied as they are.
func (f recordingFiles) recoverBeside(sync bool) error {
	beside := f.besideName()
	_, err := Recover(f.journal(0), RecoverOptions{Out: beside.path, NoSync: !sync})
	var known *shard.Error
	if !errors.As(err, &known) || known.Problem != nothingThere {
		return err
	}
	for index := int64(0); f.hasJournal(index); index++ {
		if err := copyFile(f.journal(index), beside.journal(index)); err != nil {
			return err
		}
	}
	return nil
}

func (f recordingFiles) besideName() recordingFiles {
	ending := filepath.Ext(f.path)
	stem := strings.TrimSuffix(f.path, ending)
	for number := 1; ; number++ {
		path := fmt.Sprintf("%s.recovered-%d%s", stem, number, ending)
		if !exists(path) && !exists(path+PartialSuffix) && !exists(namesOf(path).manifest()) {
			return recordingFiles{path}
		}
	}
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return fault.IO("cannot copy", from, err)
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fault.IO("cannot copy", to, err)
	}
	_, err = io.Copy(target, source)
	if err = errors.Join(err, target.Close()); err != nil {
		return fault.IO("cannot copy", to, err)
	}
	return nil
}

// fileSize is 0 also for a missing file.
func fileSize(path string) int64 {
	status, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return status.Size()
}
