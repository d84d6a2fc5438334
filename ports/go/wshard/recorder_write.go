package wshard

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	syncInterval = time.Second
	// triedBytes is how much of the first run of a channel is tried to compress; more tells little more.
	triedBytes = 1 << 20
	// mostInTurn is how many jobs are served before the journal is flushed.
	mostInTurn   = 64
	roomForNotes = 1024
	shortestWait = time.Millisecond
)

// job is something for the goroutine of a recorder to do. It serves jobs in order.
type job struct {
	// buffer is written.
	buffer *stepBuffer
	// declares has the channels of the steps.
	declares *channelGroup
	note     shard.Object
	// final has the observations after the last step, by channel.
	final map[*recordedChannel][]byte
	// served is closed when everything before this job is in the journal, or cannot be.
	served chan struct{}
	isLast bool
}

// recorder writes what groups of channels are filled with, in a goroutine of its own. Recording goroutines wait for
// nothing but a free buffer.
type recorder struct {
	path    string
	options StreamOptions
	jobs    chan job
	stopped chan struct{}
	began   time.Time
	failure atomic.Pointer[error]
	durable atomic.Int64

	// place protects the groups, which are only appended to, and what others ask about the journal and the roller.
	place  sync.Mutex
	groups []*channelGroup

	// The goroutine owns the rest while it runs. err is why it cannot write.
	err     error
	journal *journalWriter
	roller  *roller
	steps   *channelGroup
	// flushed counts the steps in the journals.
	flushed int64
	waiting []chan struct{}
	synced  time.Time
	// filtered, encoded and offsets are used again for each run.
	filtered, encoded, offsets []byte
	// noted is how many entries were dropped when the journal was last told.
	noted int64
	// earlier is how many entries of each group were dropped in the journals before this one.
	earlier map[*channelGroup]int64
}

func newRecorder(w *StreamWriter, journal *journalWriter, start shard.Object) *recorder {
	r := &recorder{
		path: w.path, options: w.options, journal: journal, began: time.Now(), synced: time.Now(),
		jobs:    make(chan job, roomForNotes+mostBuffers*(len(w.clocked)+1)),
		stopped: make(chan struct{}), earlier: map[*channelGroup]int64{},
	}
	r.roller = newRoller(w.files, w.options, start)
	for _, key := range sortedKeys(w.clocked) {
		r.groups = append(r.groups, w.clocked[key])
	}
	return r
}

// --- called by recording goroutines

func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

// failed says why nothing can be recorded any more.
func (r *recorder) failed() error {
	if err := r.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (r *recorder) fail(err error) { r.failure.CompareAndSwap(nil, &err) }

// room gives the buffer for the next entry; nil if the entry is dropped. Hold the lock of the group.
func (r *recorder) room(g *channelGroup) (*stepBuffer, error) {
	if g.current != nil {
		return g.current, nil
	}
	b := g.pool.take(g, false)
	if b == nil {
		switch r.options.Overflow {
		case OverflowDrop:
			g.dropped.Add(1)
			return nil, nil
		case OverflowError:
			e := broken(shard.CodeIOError, "", "the disk cannot keep up with the recording; raise BufferBytes, or let steps wait or be dropped")
			return nil, fault.Located(e, r.path, "")
		}
		b = g.pool.take(g, true)
		if err := r.failed(); err != nil { // a recorder that cannot write still gives buffers back
			g.pool.giveBack(b, 0)
			return nil, err
		}
	}
	b.since = r.now()
	g.current = b
	return b, nil
}

// count counts the entry that was put into a buffer. Hold the lock of the group.
func (r *recorder) count(g *channelGroup, b *stepBuffer) error {
	b.count++
	g.written.Add(1)
	if b.isFull() {
		r.handOver(g)
	}
	return nil
}

// handOver gives the current buffer to the goroutine. Hold the lock of the group.
func (r *recorder) handOver(g *channelGroup) {
	if b := g.current; b != nil && b.count > 0 {
		g.pool.handOver(b)
		g.current = nil
		r.jobs <- job{buffer: b} // has room for all buffers there are
	}
}

func (r *recorder) note(fields shard.Object) error {
	if err := r.failed(); err != nil {
		return err
	}
	r.send(job{note: fields})
	return nil
}

// send gives a job to the goroutine, unless it has ended.
func (r *recorder) send(one job) {
	select {
	case r.jobs <- one:
	case <-r.stopped:
	}
}

// declare tells the journal which channels every step has.
func (r *recorder) declare(g *channelGroup) error {
	if err := r.failed(); err != nil {
		return err
	}
	r.place.Lock()
	r.groups = append(r.groups[:len(r.groups):len(r.groups)], g)
	r.place.Unlock()
	r.send(job{declares: g})
	return nil
}

// allGroups gives the groups that are declared.
func (r *recorder) allGroups() []*channelGroup {
	r.place.Lock()
	defer r.place.Unlock()
	return r.groups
}

// flush returns when everything recorded so far is in the journal.
func (r *recorder) flush() error {
	if err := r.failed(); err != nil {
		return err
	}
	r.handOverAll()
	r.settle()
	return r.failed()
}

func (r *recorder) handOverAll() {
	for _, g := range r.allGroups() {
		g.fill.Lock()
		r.handOver(g)
		g.fill.Unlock()
	}
}

// settle returns when the goroutine has served the jobs so far.
func (r *recorder) settle() {
	served := make(chan struct{})
	r.send(job{served: served})
	select {
	case <-served:
	case <-r.stopped:
	}
}

// stop keeps others from recording, and ends the goroutine when everything recorded before is written; it returns what
// has prevented that. The journal stays open.
func (r *recorder) stop() error {
	r.fail(fault.Located(broken(shard.CodeClosed, "", "the recording is over"), r.path, ""))
	r.handOverAll()
	r.send(job{isLast: true})
	<-r.stopped
	return r.err
}

func (r *recorder) currentPath() string {
	r.place.Lock()
	defer r.place.Unlock()
	return r.journal.path
}

func (r *recorder) hasRolled() bool {
	r.place.Lock()
	defer r.place.Unlock()
	return r.roller.index > 0
}

// --- the goroutine

func (r *recorder) run() {
	defer close(r.stopped)
	timer := time.NewTimer(r.options.FlushInterval)
	defer timer.Stop()
	for isOver := false; !isOver; {
		select {
		case one := <-r.jobs:
			isOver = r.serve(one)
			for turn := 0; turn < mostInTurn && len(r.jobs) > 0 && !isOver; turn++ {
				isOver = r.serve(<-r.jobs)
			}
		case <-timer.C:
		}
		wait := r.handOverDue()
		r.try(r.finishTurn)
		for _, served := range r.waiting {
			close(served)
		}
		r.waiting = r.waiting[:0]
		timer.Reset(wait)
	}
}

// try does a part of the work, unless an earlier part has failed.
func (r *recorder) try(work func() error) {
	if r.err != nil {
		return
	}
	if r.err = work(); r.err == nil {
		return
	}
	var known *shard.Error
	if errors.As(r.err, &known) && known.Code == shard.CodeIOError {
		safe := *known
		safe.Problem += "; Recover brings back what was flushed"
		r.err = &safe
	}
	r.fail(r.err)
}

// serve does a job and tells whether it was the last.
func (r *recorder) serve(one job) bool {
	switch {
	case one.buffer != nil:
		b, ragged := one.buffer, one.buffer.ragged
		r.try(func() error { return r.writeSteps(b) })
		b.group.pool.giveBack(b, ragged)
	case one.declares != nil:
		r.try(func() error { return r.addChannels(one.declares) })
	case one.note != nil:
		r.try(func() error { return r.addNote(one.note) })
	case one.final != nil:
		r.try(func() error { return r.addFinal(one.final) })
	case one.served != nil:
		r.waiting = append(r.waiting, one.served)
	}
	return one.isLast
}

// finishTurn hands what was written to the system and, if it is time, to the disk.
func (r *recorder) finishTurn() error {
	if err := r.noteDropped(); err != nil {
		return err
	}
	if err := r.journal.flush(); err != nil {
		return err
	}
	switch r.options.Sync {
	case SyncEveryRun:
		if err := r.journal.sync(); err != nil {
			return err
		}
	case SyncEverySecond:
		if r.journal.isUnsynced && time.Since(r.synced) >= syncInterval {
			if err := r.journal.sync(); err != nil {
				return err
			}
			r.synced = time.Now()
		}
	}
	r.durable.Store(r.flushed)
	return nil
}

// handOverDue hands over the buffers that have waited long enough, and gives the time until the next one will have.
func (r *recorder) handOverDue() time.Duration {
	interval := int64(r.options.FlushInterval)
	wait, now := interval, r.now()
	for _, g := range r.allGroups() {
		if !g.fill.TryLock() { // its holder may be waiting for a buffer
			wait = min(wait, int64(shortestWait))
			continue
		}
		if b := g.current; b != nil && b.count > 0 {
			if left := b.since + interval - now; left > 0 {
				wait = min(wait, left)
			} else if len(r.jobs) < cap(r.jobs) {
				r.handOver(g)
			}
		}
		g.fill.Unlock()
	}
	if r.journal.isUnsynced && r.options.Sync == SyncEverySecond {
		wait = min(wait, int64(syncInterval-time.Since(r.synced)))
	}
	return max(time.Duration(wait), shortestWait)
}

// --- frames

func (r *recorder) addChannels(g *channelGroup) error {
	rows := r.roller.start["channels"].([]any)
	first := len(rows)
	for _, c := range g.channels {
		c.number = len(rows)
		rows = append(rows, c.rows()...)
	}
	r.roller.start["channels"], r.steps = rows, g
	if first == len(rows) {
		return nil
	}
	return r.journal.addText(frameNote, shard.Object{"channels": rows[first:]})
}

func (r *recorder) addNote(fields shard.Object) error {
	if _, isLabel := fields["interval"]; isLabel {
		r.roller.keepLabel(fields)
	}
	return r.journal.addText(frameNote, fields)
}

// addFinal says that no more steps will come, and adds the observations after the last.
func (r *recorder) addFinal(values map[*recordedChannel][]byte) error {
	r.roller.isOver = true
	if err := r.journal.addText(frameNote, shard.Object{"length_T": r.flushed - r.roller.firstStep}); err != nil {
		return err
	}
	b := newStepBuffer(r.steps)
	for i, c := range r.steps.channels {
		value, there := values[c]
		if !there {
			continue
		}
		b.add(i, value)
		if err := r.addRun(c, b.values[i], b.sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

// writeSteps writes a buffer, in several files if it does not fit into one.
func (r *recorder) writeSteps(b *stepBuffer) error {
	isSteps := b.group == r.steps
	for b != nil {
		var rest *stepBuffer
		if isSteps {
			if room := r.roller.room(); room < b.count {
				rest = b.split(room)
			}
		}
		if r.roller.isDue(b, r.journal.position, isSteps) {
			if err := r.roll(); err != nil {
				return err
			}
		}
		for i, c := range b.group.channels {
			if err := r.addRun(c, b.values[i], b.sizes[i]); err != nil {
				return err
			}
		}
		r.roller.count(b, isSteps)
		if isSteps {
			r.flushed += int64(b.count)
		}
		b = rest
	}
	return nil
}

// addRun adds the next entries of a channel; sizes are the numbers of items of a ragged or text channel.
func (r *recorder) addRun(c *recordedChannel, content []byte, sizes []int64) error {
	if len(content) > 0 {
		codec, stored, err := r.encode(c, content)
		if err != nil {
			return fault.Located(err, r.path, c.block)
		}
		if err := r.journal.addRun(c.number, len(content)/c.entryBytes, codec, content, stored); err != nil {
			return err
		}
	}
	if !c.isRagged() {
		return nil
	}
	// The items are there: now where each entry ends (J-RAG).
	r.offsets = r.offsets[:0]
	if !c.hasOffsets {
		c.hasOffsets = true
		r.offsets = binary.LittleEndian.AppendUint64(r.offsets, 0)
	}
	for _, size := range sizes {
		c.items += size
		r.offsets = binary.LittleEndian.AppendUint64(r.offsets, uint64(c.items))
	}
	return r.journal.addRun(c.number+1, len(r.offsets)/offsetBytes, shard.CodecNone, r.offsets, r.offsets)
}

// encode gives the stored form of a run, which is valid until the next call. It tells the journal about filters first.
func (r *recorder) encode(c *recordedChannel, content []byte) (shard.Codec, []byte, error) {
	if !c.isChosen {
		if err := r.choose(c, content); err != nil {
			return 0, nil, err
		}
	}
	if !c.isCompressed {
		return shard.CodecNone, content, nil
	}
	if c.filters != nil {
		if !c.isAnnounced {
			described, err := shard.ParseObject(c.filters.Description())
			if err == nil {
				err = r.journal.addText(frameNote, shard.Object{"filters": shard.Object{c.block: described["filters"]}})
			}
			if err != nil {
				return 0, nil, err
			}
			c.isAnnounced = true
		}
		r.filtered = c.filters.AppendDelta(r.filtered[:0], content)
		content = r.filtered
	}
	var err error
	r.encoded, err = shard.AppendFrame(r.encoded[:0], content, r.options.Level, nil)
	return shard.CodecZstd, r.encoded, err
}

// choose tries on the first run of a channel how to store it. Noise does not compress (S-CMP-10). A camera sees little
// change from step to step, so that differences compress better.
func (r *recorder) choose(c *recordedChannel, content []byte) error {
	c.isChosen = true
	if r.options.Compression != shard.CompressionZstd {
		return nil
	}
	held := len(content) / c.entryBytes
	isCamera := (c.dtype == U8 || c.dtype == U16) && !c.isRagged() && held > 1 && c.entryBytes <= largestLimited/2
	entries := max(1, triedBytes/c.entryBytes)
	if isCamera {
		entries = max(entries, 2) // differences need two steps
	}
	tried := content[:min(held, entries)*c.entryBytes]
	plain, err := shard.EncodedSize(tried, r.options.Level, nil)
	if err != nil {
		return err
	}
	smallest := plain
	if isCamera {
		delta := &shard.Filters{DeltaOrder: 1, DeltaWidth: c.dtype.Size(), DeltaRow: c.entryBytes}
		if smallest, err = shard.EncodedSize(tried, r.options.Level, delta); err != nil {
			return err
		}
		if smallest < plain {
			c.filters = delta
		} else {
			smallest = plain
		}
	}
	c.isCompressed = smallest < len(tried)*9/10
	if !c.isCompressed {
		c.filters = nil
	}
	return nil
}

// noteDropped tells the journal how many entries were dropped, if that has changed.
func (r *recorder) noteDropped() error {
	count := int64(0)
	for _, g := range r.allGroups() {
		count += g.dropped.Load()
	}
	if count == r.noted {
		return nil
	}
	r.noted = count
	return r.journal.addText(frameNote, shard.Object{"dropped": r.droppedHere()})
}

// droppedHere counts the entries that were dropped since the current journal was opened, by block.
func (r *recorder) droppedHere() shard.Object {
	found := shard.Object{}
	for _, g := range r.allGroups() {
		if count := g.dropped.Load() - r.earlier[g]; count > 0 {
			for _, c := range g.channels {
				found[c.block] = count
			}
		}
	}
	return found
}
