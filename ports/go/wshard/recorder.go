package wshard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// SyncPolicy says when a recorder waits for the disk.
type SyncPolicy int

const (
	// SyncEverySecond loses at most the last second if the power fails. It is the default.
	SyncEverySecond SyncPolicy = iota
	// SyncEveryRun syncs after every run: a step that DurableSteps counts survives a loss of power.
	SyncEveryRun
	// SyncNever leaves it to the system. A killed process still loses nothing that was flushed.
	SyncNever
)

// OverflowPolicy says what a step does if the disk cannot keep up.
type OverflowPolicy int

const (
	// OverflowBlock waits. It is the default.
	OverflowBlock OverflowPolicy = iota
	// OverflowDrop drops the step and counts it.
	OverflowDrop
	// OverflowError returns an error.
	OverflowError
)

// PartialPolicy says what to do with the journal of an earlier recording of the same name.
type PartialPolicy int

const (
	// PartialRefuse returns an error. It is the default.
	PartialRefuse PartialPolicy = iota
	// PartialRecover saves it beside the new recording, as <name>.recovered-<n>.wshard.
	PartialRecover
	// PartialDiscard deletes it, with its finished chunks.
	PartialDiscard
)

// StreamOptions says what a recording is. The zero value of most fields is a good default.
type StreamOptions struct {
	// EpisodeID is the name of the episode. It must not be empty.
	EpisodeID string
	EnvID     string
	// Timebase says how steps become times. The zero value has no rate.
	Timebase Timebase
	// Metadata is anything that you add; AddMetadata adds more.
	Metadata shard.Object

	// Channels are those that you record.
	Channels []ChannelDef
	// Rewards, Timestamps and Done are set if every step has a reward, a time, or tells whether the episode is done.
	Rewards, Timestamps, Done bool
	// Ends is set, instead of Done, if every step tells whether the episode was terminated or truncated.
	Ends bool

	// Compression is shard.CompressionNone or shard.CompressionZstd. With zstd, the first run of a channel decides
	// whether that is worth it.
	Compression shard.Codec
	// Level of zstd; 0 for 3.
	Level int
	// FlushSteps writes a run after this many steps; 0 for 64.
	FlushSteps int
	// FlushInterval writes a run after this time, if that is earlier; 0 for half a second.
	FlushInterval time.Duration
	Sync          SyncPolicy
	Overflow      OverflowPolicy
	// BufferBytes is how much may wait to be written; 0 for 24 MiB.
	BufferBytes int
	OnPartial   PartialPolicy
	// Overwrite replaces a finished episode of the same name; it stays until the new one is complete.
	Overwrite bool
	// MaxStepsPerFile and MaxBytesPerFile continue the recording in another file, so that it becomes an episode in
	// chunks; 0 for no limit. A file may exceed the bytes by one run.
	MaxStepsPerFile int
	MaxBytesPerFile int64
}

const (
	defaultFlushSteps    = 64
	defaultFlushInterval = 500 * time.Millisecond
	defaultBufferBytes   = 24 << 20
	mostChannels         = 1 << 16 // that a frame can number
)

func (o StreamOptions) withDefaults() (StreamOptions, error) {
	if o.EpisodeID == "" {
		return o, invalid("an episode needs an id")
	}
	if o.FlushSteps < 0 || o.FlushInterval < 0 || o.BufferBytes < 0 || o.MaxStepsPerFile < 0 || o.MaxBytesPerFile < 0 {
		return o, invalid("a number in the options is below 0")
	}
	if o.Done && o.Ends {
		return o, invalid("Done and Ends exclude each other: Ends implies Done")
	}
	if o.Compression == shard.CompressionLZ4 {
		return o, invalid("lz4 cannot be recorded: its blocks cannot be joined")
	}
	if o.Compression != shard.CompressionNone && o.Compression != shard.CompressionZstd {
		return o, invalid("unknown compression %d", o.Compression)
	}
	if o.FlushSteps == 0 {
		o.FlushSteps = defaultFlushSteps
	}
	if o.FlushInterval == 0 {
		o.FlushInterval = defaultFlushInterval
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = defaultBufferBytes
	}
	return o, nil
}

// Step is one step of a recording.
type Step struct {
	// Values has the bytes of every channel without a clock of its own, little-endian in C order, by the id of the
	// channel; by its block, such as action/arm, if an observation and an action have the same id. Bytes makes them. The
	// recorder copies them.
	Values map[string][]byte
	// The fields that the options declare; the others must be zero.
	Reward                      float64
	Done, Terminated, Truncated bool
	TimestampNS                 int64
}

// StreamWriter records an episode step by step.
//
// Until Finish, everything is in a journal, <path>.partial, whose frames have checksums of their own; after a crash,
// Recover brings it back. A goroutine of the writer compresses, writes and syncs. Recording a step copies its values and
// allocates nothing. Several goroutines may use a writer, for example one for each camera.
type StreamWriter struct {
	path    string
	options StreamOptions
	files   recordingFiles
	// steps are the channels that every step has; nil before they are declared.
	steps *channelGroup
	// clocked are the channels with clocks of their own, by key.
	clocked map[string]*channelGroup
	// isFinal tells that no more steps come; the lock of the steps protects it.
	isFinal bool

	recorder *recorder
	// end protects the end of the recording.
	end      sync.Mutex
	isClosed bool
}

// NewStreamWriter begins a recording for the episode at path. Call Finish, which makes the episode, or Close.
func NewStreamWriter(path string, options StreamOptions) (*StreamWriter, error) {
	w, err := newStreamWriter(path, options)
	if err != nil {
		return nil, err
	}
	if err := w.declareSteps(options.Channels); err != nil {
		_ = w.Abort()
		return nil, err
	}
	return w, nil
}

// newStreamWriter opens the journal. The channels of the steps are declared later.
func newStreamWriter(path string, options StreamOptions) (*StreamWriter, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, fault.Located(err, path, "")
	}
	if options.MaxStepsPerFile > 0 || options.MaxBytesPerFile > 0 {
		if err := checkChunkName(filepath.Base(path)); err != nil {
			return nil, fault.Located(err, path, "")
		}
	}
	w := &StreamWriter{path: path, options: options, files: recordingFiles{path}, clocked: map[string]*channelGroup{}}
	start, err := w.startFields()
	if err != nil {
		return nil, fault.Located(err, path, "")
	}
	if err := checkTarget(path, options.Overwrite); err != nil {
		return nil, err
	}
	journal, err := w.openJournal(start)
	if err != nil {
		return nil, err
	}
	w.recorder = newRecorder(w, journal, start)
	go w.recorder.run()
	return w, nil
}

// startFields is the content of the start frame: the facts, and the channels with clocks of their own.
func (w *StreamWriter) startFields() (shard.Object, error) {
	ep := New(w.options.EpisodeID, 0)
	ep.EnvID, ep.Timebase, ep.Metadata = w.options.EnvID, w.options.Timebase, cloneObject(w.options.Metadata)
	text, err := shard.CanonicalJSON(ep.episodeFields())
	if err != nil {
		return nil, invalid("the metadata is not JSON: %v", err)
	}
	fields, err := shard.ParseObject(text)
	if err != nil {
		return nil, err
	}
	if err := new(Episode).parseEpisode(fields, nil); err != nil {
		return nil, invalid("the options do not describe an episode: %v", err)
	}
	delete(fields, "length_T")
	rows := []any{}
	for _, def := range w.options.Channels {
		if !def.OwnClock {
			continue
		}
		c, err := def.recorded()
		if err != nil {
			return nil, err
		}
		if c.key = w.keyOf(def); w.clocked[c.key] != nil {
			return nil, fault.Located(invalid("a channel is declared twice"), "", c.block)
		}
		clock := flatChannel(laneTime+"/"+c.block, I64)
		c.number, clock.number = len(rows), len(rows)+len(c.rows())
		rows = append(append(rows, c.rows()...), clock.rows()...)
		w.clocked[c.key] = newChannelGroup([]*recordedChannel{c, clock}, 1, w.options)
	}
	return shard.Object{"v": journalVersion, "episode": fields, "channels": rows}, nil
}

// keyOf is what a channel is called in steps.
func (w *StreamWriter) keyOf(def ChannelDef) string {
	for _, other := range w.options.Channels {
		if other.ID == def.ID && other.IsAction != def.IsAction {
			if def.IsAction {
				return laneAction + "/" + def.ID
			}
			return laneSignal + "/" + def.ID
		}
	}
	return def.ID
}

// checkTarget refuses to replace a finished episode without being told to, or one with sidecars.
func checkTarget(path string, overwrite bool) error {
	status, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cannotRecord(path, err)
	}
	if status.IsDir() {
		return fault.Located(invalid("cannot record: this is a folder"), path, "")
	}
	if !overwrite {
		return fault.Located(invalid("a finished episode exists here; record to another path, or set Overwrite"), path, "")
	}
	return refuseSidecars(path)
}

// openJournal opens and locks the first journal, and deals with what an earlier recording has left.
func (w *StreamWriter) openJournal(start shard.Object) (*journalWriter, error) {
	journal, err := openJournalWriter(w.files.journal(0))
	if err != nil {
		return nil, err
	}
	old, err := journal.oldSize()
	if err == nil {
		if err = w.files.resolveEarlier(w.options); err == nil {
			err = journal.clear()
		}
	}
	if err != nil {
		if old == 0 {
			return nil, errors.Join(err, journal.remove())
		}
		return nil, errors.Join(err, journal.close())
	}
	if err = journal.addText(frameStart, start); err == nil {
		if err = journal.flush(); err == nil && w.options.Sync != SyncNever {
			err = journal.syncWithName()
		}
	}
	if err != nil {
		return nil, errors.Join(err, journal.remove())
	}
	return journal, nil
}

// declareSteps tells the journal which channels every step has; before the first of them.
func (w *StreamWriter) declareSteps(defs []ChannelDef) error {
	w.options.Channels = defs
	var channels []*recordedChannel
	seen := map[string]bool{}
	for _, def := range defs {
		c, err := def.recorded()
		if err != nil {
			return fault.Located(err, w.path, "")
		}
		if seen[c.block] {
			return fault.Located(invalid("a channel is declared twice"), w.path, c.block)
		}
		seen[c.block] = true
		if c.key = w.keyOf(def); !def.OwnClock {
			channels = append(channels, c)
		}
	}
	named := len(channels)
	for _, field := range []struct {
		isThere bool
		block   string
		dtype   DType
	}{
		{w.options.Rewards, BlockReward, F64},
		{w.options.Done, BlockDone, Bool},
		{w.options.Ends, BlockTerminated, Bool},
		{w.options.Ends, BlockTruncated, Bool},
		{w.options.Timestamps, BlockTimestamps, I64},
	} {
		if field.isThere {
			channels = append(channels, flatChannel(field.block, field.dtype))
		}
	}
	if 2*(len(channels)+2*len(defs)) > mostChannels { // each may have offsets, and some a clock
		return fault.Located(invalid("too many channels for a journal"), w.path, "")
	}
	group := newChannelGroup(channels, named, w.options)
	if err := w.recorder.declare(group); err != nil {
		return err
	}
	w.steps = group
	return nil
}

// --- recording

// WriteStep records one step: a value for every channel without a clock of its own. If a value does not fit, the step is
// not recorded, the error names the channel, and you can continue. With OverflowDrop, a step that is dropped is no error.
func (w *StreamWriter) WriteStep(step Step) error {
	g := w.steps
	if g == nil || len(g.channels) == 0 {
		return fault.Located(invalid("the options declare nothing that a step has"), w.path, "")
	}
	g.fill.Lock()
	defer g.fill.Unlock()
	if err := w.recorder.failed(); err != nil { // within the lock, so that nothing follows the end
		return err
	}
	if err := w.checkStep(g, &step); err != nil {
		return fault.Located(err, w.path, "")
	}
	if w.isFinal {
		return fault.Located(invalid("no step can follow the final observation"), w.path, "")
	}
	if w.options.Timestamps {
		if err := g.checkTime(step.TimestampNS); err != nil {
			return fault.Located(err, w.path, BlockTimestamps)
		}
	}
	b, err := w.recorder.room(g)
	if b == nil || err != nil {
		return err
	}
	for i, value := range g.checked {
		b.add(i, value)
	}
	b.addFields(&step, g)
	g.lastTime, g.hasTime = step.TimestampNS, true
	return w.recorder.count(g, b)
}

// checkStep looks up the values of a step and reports what does not fit. Hold the lock of the group.
func (w *StreamWriter) checkStep(g *channelGroup, step *Step) error {
	g.checked = g.checked[:0]
	for _, c := range g.channels[:g.named] {
		value, there := step.Values[c.key]
		if !there {
			return fault.Located(invalid("a step lacks a channel"), "", c.block)
		}
		if err := c.check(value); err != nil {
			return err
		}
		g.checked = append(g.checked, value)
	}
	if len(step.Values) != g.named {
		return undeclared(g, step.Values)
	}
	o := &w.options
	switch {
	case step.Reward != 0 && !o.Rewards:
		return fault.Located(invalid("a step has a reward, which the options do not declare"), "", BlockReward)
	case step.Done && !o.Done && !o.Ends:
		return fault.Located(invalid("a step is done, which the options do not declare"), "", BlockDone)
	case (step.Terminated || step.Truncated) && !o.Ends:
		return fault.Located(invalid("a step has an end, which the options do not declare"), "", BlockTerminated)
	case step.Done && o.Ends && !step.Terminated && !step.Truncated:
		return fault.Located(invalid("a step is done, but neither terminated nor truncated"), "", BlockDone)
	case step.TimestampNS != 0 && !o.Timestamps:
		return fault.Located(invalid("a step has a time, which the options do not declare"), "", BlockTimestamps)
	}
	return nil
}

// undeclared names a value of a step that is too much.
func undeclared(g *channelGroup, values map[string][]byte) error {
	known := map[string]bool{}
	for _, c := range g.channels[:g.named] {
		known[c.key] = true
	}
	for _, key := range sortedKeys(values) {
		if !known[key] {
			return fault.Located(invalid("a step has a channel that was not declared"), "", key)
		}
	}
	return nil
}

func (g *channelGroup) checkTime(ns int64) error {
	if g.hasTime && ns < g.lastTime {
		e := invalid("time runs backwards")
		e.Expected, e.Found = fmt.Sprintf("at least %d", g.lastTime), fmt.Sprint(ns)
		return e
	}
	return nil
}

// addFields adds the fields of a step that the group has channels for.
func (b *stepBuffer) addFields(step *Step, g *channelGroup) {
	for i := g.named; i < len(g.channels); i++ {
		switch g.channels[i].block {
		case BlockReward:
			b.values[i] = binary.LittleEndian.AppendUint64(b.values[i], math.Float64bits(step.Reward))
		case BlockDone:
			b.values[i] = append(b.values[i], boolByte(step.Done))
		case BlockTerminated:
			b.values[i] = append(b.values[i], boolByte(step.Terminated))
		case BlockTruncated:
			b.values[i] = append(b.values[i], boolByte(step.Truncated))
		default: // a clock
			b.values[i] = binary.LittleEndian.AppendUint64(b.values[i], uint64(step.TimestampNS))
		}
	}
}

func boolByte(value bool) byte {
	if value {
		return 1
	}
	return 0
}

// Write records one entry of a channel that has a clock of its own.
func (w *StreamWriter) Write(channel string, value []byte, timestampNS int64) error {
	g := w.clocked[channel]
	if g == nil {
		return fault.Located(invalid("no channel of this name has a clock of its own"), w.path, channel)
	}
	if err := g.channels[0].check(value); err != nil {
		return fault.Located(err, w.path, "")
	}
	g.fill.Lock()
	defer g.fill.Unlock()
	if err := w.recorder.failed(); err != nil {
		return err
	}
	if err := g.checkTime(timestampNS); err != nil {
		return fault.Located(err, w.path, g.channels[1].block)
	}
	b, err := w.recorder.room(g)
	if b == nil || err != nil {
		return err
	}
	b.add(0, value)
	b.addFields(&Step{TimestampNS: timestampNS}, g)
	g.lastTime, g.hasTime = timestampNS, true
	return w.recorder.count(g, b)
}

// Annotate adds an interval to the label of this name, in steps of the whole recording.
func (w *StreamWriter) Annotate(label string, interval Interval) error {
	if err := checkID(label); err != nil {
		return fault.Located(err, w.path, laneLabel+"/"+label)
	}
	list := labelFields(UnitSteps, []Interval{interval})["intervals"].([]any)
	return w.note(shard.Object{"label": label, "interval": list[0], "unit": UnitSteps}, func(fields shard.Object) error {
		_, err := parseInterval(fields["interval"])
		return err
	})
}

// AddMetadata merges an object into the metadata of the episode, key by key.
func (w *StreamWriter) AddMetadata(metadata shard.Object) error {
	return w.note(shard.Object{"metadata": metadata}, func(shard.Object) error { return nil })
}

// note writes a note behind everything that was flushed before, if a reader will understand it.
func (w *StreamWriter) note(fields shard.Object, check func(shard.Object) error) error {
	text, err := shard.CanonicalJSON(fields)
	if err != nil {
		return fault.Located(invalid("this cannot be stored as JSON: %v", err), w.path, "")
	}
	parsed, err := shard.ParseObject(text)
	if err == nil {
		err = check(parsed)
	}
	if err != nil {
		return fault.Located(invalid("this cannot be stored: %v", err), w.path, "")
	}
	return w.recorder.note(parsed)
}

// --- state

// StepsWritten counts the steps recorded so far.
func (w *StreamWriter) StepsWritten() int {
	if w.steps == nil {
		return 0
	}
	return int(w.steps.written.Load())
}

// DurableSteps counts the steps that survive if the process is killed now: Recover brings back at least these. With
// SyncEveryRun they survive a loss of power too.
func (w *StreamWriter) DurableSteps() int { return int(w.recorder.durable.Load()) }

// Dropped counts the steps that were dropped because the disk could not keep up.
func (w *StreamWriter) Dropped() int {
	if w.steps == nil {
		return 0
	}
	return int(w.steps.dropped.Load())
}

// JournalPath is the journal that is written now.
func (w *StreamWriter) JournalPath() string { return w.recorder.currentPath() }

// EpisodePath is the file to open after Finish: the path, or the manifest of a recording in several files.
func (w *StreamWriter) EpisodePath() string {
	if w.recorder.hasRolled() {
		return w.files.names().manifest()
	}
	return w.path
}

// Flush returns when everything recorded so far is in the journal, so that a kill cannot lose it.
func (w *StreamWriter) Flush() error { return w.recorder.flush() }
