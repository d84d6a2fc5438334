package wshard

import (
	"errors"
	"log/slog"
	"math"
	"sync"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	// nearlyFull is the size of a compressed channel at which a file is full: readers decompress at most largestRun, and
	// what comes beside the next steps must still fit.
	nearlyFull = largestRun / 4 * 3
	// addedBytes is what a finished file adds for each step: its tick, `done`, and the reward in f32.
	addedBytes = 4 + 1 + 4
	// mostUnfinished is how many full journals may wait to become chunks. With more, recording waits for the disk.
	mostUnfinished = 8
	labelsKept     = 1000
)

// roller counts what goes into a journal, and knows when the recording must continue in another. The goroutine of the
// recorder owns it.
type roller struct {
	files   recordingFiles
	options StreamOptions
	// start has the fields of the start frame, with all channels.
	start shard.Object
	// index is the chunk that is recorded now, firstStep its first step, and steps how many it has.
	index     int64
	firstStep int64
	steps     int64
	// sizes is the content of compressed channels, by channel.
	sizes map[*recordedChannel]int64
	// labels may reach beyond the chunk.
	labels []shard.Object
	// isOver tells that the recording ends in this file.
	isOver   bool
	finisher *finisher
}

func newRoller(files recordingFiles, options StreamOptions, start shard.Object) *roller {
	return &roller{
		files: files, options: options, start: start, sizes: map[*recordedChannel]int64{},
		finisher: newFinisher(files, options),
	}
}

// room is how many steps may be written at once: those that fit into this file, or into the next.
func (r *roller) room() int {
	most := r.options.MaxStepsPerFile
	if most == 0 {
		return math.MaxInt
	}
	if left := most - int(r.steps); left > 0 && !r.isOver {
		return left
	}
	return most
}

// isDue tells whether a buffer belongs into another file. position is the size of the journal.
func (r *roller) isDue(b *stepBuffer, position int64, isSteps bool) bool {
	if !isSteps || r.steps == 0 || r.isOver {
		return false // every chunk starts with a step
	}
	steps := r.steps + int64(b.count)
	if most := int64(r.options.MaxStepsPerFile); most > 0 && steps > most {
		return true
	}
	if most := r.options.MaxBytesPerFile; most > 0 && position+int64(b.nbytes())+steps*addedBytes > most {
		return true
	}
	for _, size := range r.sizes {
		if size >= nearlyFull {
			return true
		}
	}
	return false
}

// count counts a buffer that goes into the journal.
func (r *roller) count(b *stepBuffer, isSteps bool) {
	if isSteps {
		r.steps += int64(b.count)
	}
	for i, c := range b.group.channels {
		if c.isCompressed {
			r.sizes[c] += int64(len(b.values[i]))
		}
	}
}

// keepLabel remembers a label, which later chunks may need too.
func (r *roller) keepLabel(note shard.Object) {
	r.labels = append(r.labels, note)
	if len(r.labels)%labelsKept == 0 { // so that a recording of weeks does not keep them all
		r.labels = labelsFrom(r.labels, r.firstStep+r.steps)
	}
}

// labelsFrom gives the labels that reach a step, without the part before it.
func labelsFrom(labels []shard.Object, step int64) []shard.Object {
	var found []shard.Object
	for _, note := range labels {
		interval := note["interval"].(map[string]any)
		start, _ := asInt64(interval["start"])
		end, _ := asInt64(interval["end"])
		if end <= step && start < step {
			continue
		}
		cut := cloneObject(note)
		cut["interval"].(map[string]any)["start"] = max(start, step)
		found = append(found, cut)
	}
	return found
}

// roll continues in the next journal, which exists before the current one gets its end (J-9). If it cannot be opened,
// the recording stays where it is.
func (r *recorder) roll() error {
	old := r.journal
	next, err := r.roller.openNext()
	if err != nil {
		r.roller.isOver = true
		slog.Warn("wshard: the recording continues in one file", "journal", old.path, "error", err)
		return nil
	}
	end := shard.Object{"continues": true}
	if dropped := r.droppedHere(); len(dropped) > 0 {
		end["dropped"] = dropped
	}
	if err = old.addText(frameEnd, end); err == nil {
		if err = old.flush(); err == nil && r.options.Sync == SyncEveryRun {
			err = old.sync()
		}
	}
	if err != nil {
		return errors.Join(err, next.remove())
	}
	for _, g := range r.allGroups() {
		r.earlier[g] = g.dropped.Load()
		for _, c := range g.channels {
			c.items, c.hasOffsets, c.isAnnounced = 0, false, false
		}
	}
	r.place.Lock()
	r.journal = next
	r.roller.moveOn()
	r.place.Unlock()
	r.roller.finisher.handOver(old)
	return nil
}

func (r *roller) moveOn() {
	r.index++
	r.firstStep += r.steps
	r.steps = 0
	r.labels = labelsFrom(r.labels, r.firstStep)
	clear(r.sizes)
}

// openNext makes the next journal, with its start frame and the labels that reach into it.
func (r *roller) openNext() (*journalWriter, error) {
	index, firstStep := r.index+1, r.firstStep+r.steps
	if taken := r.files.inTheWayOf(index); taken != "" {
		return nil, fault.Located(invalid("a file is in the way"), taken, "")
	}
	journal, err := openJournalWriter(r.files.journal(index))
	if err != nil {
		return nil, err
	}
	if old, err := journal.oldSize(); err != nil || old > 0 {
		return nil, errors.Join(fault.Located(invalid("a file is in the way"), journal.path, ""), err, journal.close())
	}
	if err := r.begin(journal, index, firstStep); err != nil {
		return nil, errors.Join(err, journal.remove())
	}
	return journal, nil
}

func (r *roller) begin(journal *journalWriter, index, firstStep int64) error {
	start := shard.Object{"chunk": shard.Object{"index": index, "first_step": firstStep}}
	for key, value := range r.start {
		start[key] = value
	}
	if err := journal.addText(frameStart, start); err != nil {
		return err
	}
	for _, note := range labelsFrom(r.labels, firstStep) {
		if err := journal.addText(frameNote, note); err != nil {
			return err
		}
	}
	if r.options.Sync == SyncNever {
		return journal.flush()
	}
	return journal.syncWithName()
}

// --- chunks

// finisher turns full journals into chunks, one after the other, in a goroutine of its own. If the disk refuses, journals
// stay where they are, and finishAll tries again.
type finisher struct {
	files recordingFiles
	sync  bool

	full    chan *journalWriter
	working sync.WaitGroup
	// The goroutine owns the rest until it has ended.
	manifest ChunkManifest
	// unfinished are journals whose chunks could not be made.
	unfinished []*journalWriter
}

func newFinisher(files recordingFiles, options StreamOptions) *finisher {
	return &finisher{
		files: files, sync: options.Sync != SyncNever,
		manifest: ChunkManifest{EpisodeID: options.EpisodeID, EnvID: options.EnvID},
	}
}

// handOver takes a full journal; it waits while too many others are not finished.
func (f *finisher) handOver(journal *journalWriter) {
	if f.full == nil {
		f.full = make(chan *journalWriter, mostUnfinished)
		f.working.Go(func() {
			for journal := range f.full {
				f.unfinished = append(f.unfinished, journal)
				if len(f.unfinished) > 1 {
					continue // an earlier one has failed, and chunks are finished in order
				}
				if err := f.finishNext(); err != nil {
					slog.Warn("wshard: a chunk cannot be finished, its journal stays", "journal", journal.path, "error", err)
				}
			}
		})
	}
	f.full <- journal
}

// finishNext writes the chunk of the first journal, then the manifest that names it, then removes the journal (J-9).
func (f *finisher) finishNext() error {
	journal := f.unfinished[0]
	if f.sync {
		if err := journal.sync(); err != nil { // copying may take a while
			return err
		}
	}
	path := f.files.names().chunk(int64(len(f.manifest.Chunks)))
	episode, err := saveRecorded(journal.path, path, f.sync)
	if err != nil {
		return err
	}
	manifest, err := f.manifest.withMetadata(episode.Metadata).withChunk(path, episode.LengthT, nil)
	if err != nil {
		return err
	}
	if err := manifest.write(f.files.names().manifest(), !f.sync); err != nil {
		return err
	}
	f.manifest, f.unfinished = manifest, f.unfinished[1:]
	return journal.remove()
}

// stop returns when the goroutine has finished what it could. Other journals stay.
func (f *finisher) stop() {
	if f.full != nil {
		close(f.full)
		f.working.Wait()
		f.full = nil
	}
}

// finishAll finishes all chunks and the last one.
func (f *finisher) finishAll(last *journalWriter) error {
	f.stop()
	f.unfinished = append(f.unfinished, last)
	for len(f.unfinished) > 0 {
		if err := f.finishNext(); err != nil {
			return err
		}
	}
	return nil
}

// close releases the journals that are left.
func (f *finisher) close() error {
	f.stop()
	var err error
	for _, journal := range f.unfinished {
		err = errors.Join(err, journal.close())
	}
	return err
}

// remove deletes the recording, except the journal that is written now.
func (f *finisher) remove() error {
	f.stop()
	var err error
	for _, journal := range f.unfinished {
		err = errors.Join(err, journal.remove())
	}
	return errors.Join(err, f.files.removeChunks())
}
