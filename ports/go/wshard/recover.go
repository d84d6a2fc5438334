package wshard

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// RecoverOptions changes how a recording is recovered. The zero value is right for most.
type RecoverOptions struct {
	// Out is where to save the episode; by default the name that it was recorded for, which must be free.
	Out string
	// NoSync skips syncing to disk: faster, but a power failure can lose the file.
	NoSync bool
}

// Recovery is what was recovered from a recording that was not finished.
type Recovery struct {
	// Journal is the journal, or the last one.
	Journal   string
	EpisodeID string
	// Steps counts the complete steps that were recovered.
	Steps int
	// ReadBytes counts the bytes of journals in complete frames, and LostBytes those after them.
	ReadBytes, LostBytes int64
	// Reason is the rule that the first bad frame breaks; nil if all frames are complete.
	Reason *shard.Error
	// Cut counts the entries that were dropped, by block, because other channels end earlier.
	Cut map[string]int
	// Finished tells whether the recorder had ended the recording.
	Finished bool
	// Out is where the episode was saved; the manifest if it is in chunks.
	Out string
	// Chunks are those of a recording in several files, also those that were finished before.
	Chunks []RecoveredChunk
	// LostSteps counts the steps that are lost between others that were recovered.
	LostSteps int
}

// RecoveredChunk is a chunk of a recording that was recovered.
type RecoveredChunk struct {
	Path  string
	Steps int
	// FromJournal is false if the chunk was finished before.
	FromJournal bool
}

// String says in one line what was recovered and what was lost.
func (r *Recovery) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: recovered %d steps of %q", r.Journal, r.Steps, r.EpisodeID)
	if len(r.Chunks) > 0 {
		fmt.Fprintf(&b, " in %d chunks", len(r.Chunks))
	}
	if r.Reason != nil {
		fmt.Fprintf(&b, "; %d bytes are lost (%s)", r.LostBytes, r.Reason.Error())
	}
	if r.LostSteps > 0 {
		fmt.Fprintf(&b, "; %d steps in between are lost", r.LostSteps)
	}
	for _, block := range sortedKeys(r.Cut) {
		fmt.Fprintf(&b, "; dropped %d entries of %s: other channels end earlier", r.Cut[block], block)
	}
	return b.String()
}

// addLosses adds what a journal holds that was not recovered.
func (r *Recovery) addLosses(j *journal) {
	r.Finished = j.isFinished()
	r.ReadBytes += j.readBytes()
	r.LostBytes += j.frames.size - j.readBytes()
	if r.Reason == nil {
		r.Reason = j.reason
	}
	for block, count := range j.cut() {
		if r.Cut == nil {
			r.Cut = map[string]int{}
		}
		r.Cut[block] += int(count)
	}
}

// PartialEpisode is a recording that is not finished, as far as it is in its journal. Its channels read the journal.
type PartialEpisode struct {
	*Episode
	// Reason is the rule that the first bad frame breaks; nil if all frames are complete.
	Reason *shard.Error
	// Cut counts the entries that the episode leaves out, by block, because other channels end earlier.
	Cut map[string]int
	// Finished tells whether the recorder has ended the recording.
	Finished bool
	// ReadBytes counts the bytes of the journal in complete frames.
	ReadBytes int64
	journal   *journal
}

// OpenPartial opens the journal of a recording, which may still go on. Of a recording in several files it opens the one
// that the path names. Close it.
func OpenPartial(path string) (*PartialEpisode, error) {
	j, err := openJournal(strings.TrimSuffix(path, PartialSuffix)+PartialSuffix, false, false)
	if err != nil {
		return nil, err
	}
	ep, err := j.episode()
	if err != nil {
		_ = j.close()
		return nil, fault.Located(err, j.path, "")
	}
	var found Recovery
	found.addLosses(j)
	return &PartialEpisode{ep, found.Reason, found.Cut, found.Finished, found.ReadBytes, j}, nil
}

// Close closes the journal.
func (p *PartialEpisode) Close() error { return p.journal.close() }

// Recover saves what a recording holds, up to its last complete frame. It never changes journals, and it may be called
// again. The path is a journal, or the name that the episode was recorded for.
//
// A recording in several files keeps its finished chunks. The other journals become chunks beside them, and the manifest
// then names all.
func Recover(path string, options ...RecoverOptions) (*Recovery, error) {
	var o RecoverOptions
	if len(options) > 0 {
		o = options[0]
	}
	files := filesOf(path)
	if files.isRolled() {
		return recoverChunks(files, o)
	}
	location, target := files.journal(0), o.Out
	if target == "" {
		if target = files.path; exists(target) {
			return nil, fault.Located(invalid("an episode with this name exists; say where to save the recording"), target, "")
		}
	}
	if isSameFile(target, location) {
		return nil, fault.Located(invalid("cannot save over the journal itself"), target, "")
	}
	j, err := openToRecover(location)
	if err != nil {
		return nil, err
	}
	defer func() { _ = j.close() }()
	episode, err := j.episode()
	if err == nil {
		err = whileLocked(target, func() error { return j.save(episode, target, !o.NoSync) })
	}
	if err != nil {
		return nil, fault.Located(err, location, "")
	}
	found := &Recovery{Journal: location, EpisodeID: episode.ID, Steps: episode.LengthT, Out: target}
	found.addLosses(j)
	return found, nil
}

// openToRecover opens a journal and checks all of its content. The error for one without a start says so.
func openToRecover(path string) (*journal, error) {
	j, err := openJournal(path, true, false)
	var known *shard.Error
	if errors.As(err, &known) && known.Code != shard.CodeIOError {
		nothing := *known
		nothing.Problem, nothing.Found = nothingThere, known.Problem
		return nil, &nothing
	}
	return j, err
}

// saveRecorded saves the episode of a journal that this process has recorded and ended. The channels of the episode that
// it returns cannot be read.
func saveRecorded(journalPath, out string, sync bool) (*Episode, error) {
	j, err := openJournal(journalPath, false, true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = j.close() }()
	if !j.hasEnd {
		return nil, fault.Located(badMetadata("J-2", "the journal has changed since it was written"), journalPath, "")
	}
	episode, err := j.episode()
	if err != nil {
		return nil, err
	}
	return episode, j.save(episode, out, sync)
}

// whileLocked calls a function that replaces or removes the episode at a path. It holds the lock of that episode meanwhile
// (W-SID-7), and refuses if it has sidecars, which belong to what it holds now.
func whileLocked(path string, save func() error) error {
	if !exists(path) {
		return save()
	}
	unlock, err := lockEpisode(path)
	if err != nil {
		return err
	}
	defer unlock()
	if err := refuseSidecars(path); err != nil {
		return err
	}
	return save()
}

func isSameFile(a, b string) bool {
	first, err1 := os.Stat(a)
	second, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(first, second)
}
