package wshard

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/internal/strictjson"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	// PartialSuffix is added to the name of an episode while it is recorded.
	PartialSuffix = ".partial"

	journalVersion = 1
	largestText    = 16 << 20 // bytes of JSON (J-TXT-2)
	largestEntry   = math.MaxUint32
	largestLimited = 64 << 20 // bytes of a run that is filtered, or of text (J-RUN-3)
)

// journal is what a recording holds, up to where it follows the rules (spec/journal.md).
type journal struct {
	path   string
	file   *os.File
	frames *frameReader
	// reason is the rule that stopped reading before the end of the file; nil if none did.
	reason *shard.Error
	// start is the `episode` of the start frame; nil before it was read.
	start    shard.Object
	channels []*channelRuns
	byBlock  map[string]*channelRuns
	labels   map[string]*Label
	metadata shard.Object
	dropped  shard.Object
	// length is the number of steps, once it is final.
	length *int64
	// hasEnd tells whether there is an end frame, and continues whether another journal follows.
	hasEnd, continues bool
	// index and firstStep are those of a chunk; index is 0 for the first, or only, journal.
	index, firstStep int64
	// decodes tells whether the content of runs is checked (J-RUN-4, J-RAG-4) while they are read.
	decodes bool
	// badText is the frame that must not count because it completes a string that is not UTF-8.
	badText *badText
}

// openJournal reads a journal. It fails if there is no start frame that follows the rules (J-1). Close it.
func openJournal(path string, decodes, trusts bool) (*journal, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fault.IO("cannot open the journal", path, err)
	}
	j, err := readJournal(file, path, decodes, trusts)
	if err != nil {
		_ = file.Close()
		return nil, fault.Located(err, path, "")
	}
	return j, nil
}

func readJournal(file *os.File, path string, decodes, trusts bool) (*journal, error) {
	status, err := file.Stat()
	if err != nil {
		return nil, fault.IO("cannot open the journal", path, err)
	}
	if !status.Mode().IsRegular() {
		return nil, invalid("the journal is not a regular file")
	}
	j, err := parseJournal(file, status.Size(), decodes, trusts)
	if err != nil {
		return nil, err
	}
	j.path, j.file = path, file
	if j.reason != nil {
		j.reason.Path = path
	}
	return j, nil
}

// parseJournal reads the frames of a journal of a size.
func parseJournal(source io.ReaderAt, size int64, decodes, trusts bool) (*journal, error) {
	j := newJournal(source, size, decodes, trusts)
	if err := j.read(); err != nil {
		return nil, err
	}
	if decodes {
		bad, err := j.firstBadText()
		if err != nil {
			return nil, err
		}
		if bad != nil { // read again, up to there; the contents are known to be good
			j = newJournal(source, size, false, trusts)
			j.badText = bad
			if err := j.read(); err != nil {
				return nil, err
			}
		}
	}
	if j.start != nil {
		return j, nil
	}
	if j.reason != nil {
		return nil, j.reason
	}
	e := invalid("nothing was recorded yet")
	e.Rule, e.Found = "J-1", "an empty file"
	return nil, e
}

func newJournal(source io.ReaderAt, size int64, decodes, trusts bool) *journal {
	frames := newFrameReader(source, size)
	frames.trusts = trusts
	return &journal{
		frames: frames, decodes: decodes, byBlock: map[string]*channelRuns{}, labels: map[string]*Label{},
		metadata: shard.Object{}, dropped: shard.Object{},
	}
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	return j.file.Close()
}

// read takes frames up to the first one that breaks a rule (J-2). Only a failure of the disk is an error.
func (j *journal) read() error {
	for {
		f, err := j.frames.next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = j.take(f)
		}
		if err == nil {
			j.frames.accept(f)
			continue
		}
		var rule *shard.Error
		if !errors.As(err, &rule) || rule.Code == shard.CodeIOError {
			return err
		}
		stopped := *rule
		stopped.Problem = fmt.Sprintf("frame at byte %d: %s", j.frames.position, rule.Problem)
		j.reason = &stopped
		return nil
	}
}

// readBytes is the size of the frames that count.
func (j *journal) readBytes() int64 { return j.frames.position }

// isFinished tells whether the recorder has ended the recording.
func (j *journal) isFinished() bool { return j.hasEnd && !j.continues }

func (j *journal) isChunk() bool { return j.index > 0 || j.continues }

// take adds what a frame holds: all of it or, with an error, nothing.
func (j *journal) take(f journalFrame) error {
	if j.badText != nil && j.badText.start == f.start {
		return j.badText.err
	}
	if f.kind == frameRun {
		return j.takeRun(f)
	}
	fields, err := j.text(f)
	if err != nil {
		return err
	}
	if f.kind == frameStart {
		return j.takeStart(fields)
	}
	if err := j.takeNote(fields); err != nil {
		return err
	}
	j.hasEnd = f.kind == frameEnd
	return nil
}

// text reads the JSON of a frame (J-TXT).
func (j *journal) text(f journalFrame) (shard.Object, error) {
	if f.contentSize > largestText {
		return nil, broken(shard.CodeLimitExceeded, "J-TXT-2", "the JSON of a frame is longer than 16 MiB")
	}
	text, err := j.frames.stored(f)
	if err != nil {
		return nil, err
	}
	if shard.ComputeChecksum(text) != f.storedCRC { // it was not compared if the journal is trusted
		return nil, broken(shard.CodeChecksumMismatch, "J-FRM-12", "the stored bytes of a frame are damaged")
	}
	fields, err := shard.ParseObject(text)
	var known *shard.Error
	if errors.As(err, &known) {
		found := *known
		found.Rule = "J-TXT-1"
		if found.Code == shard.CodeLimitExceeded {
			found.Rule = "J-TXT-2"
		}
		return nil, &found
	}
	return fields, err
}

// --- start

func (j *journal) takeStart(fields shard.Object) error {
	if version, ok := fields["v"].(int64); !ok || version != journalVersion {
		e := wrongField("J-STA-1", "v", "the integer 1", fields["v"])
		e.Code = shard.CodeUnsupportedVersion
		return e
	}
	episode, ok := fields["episode"].(map[string]any)
	if !ok {
		return wrongField("J-STA-2", "episode", "an object", fields["episode"])
	}
	if err := new(Episode).parseEpisode(withLength(episode, 0), nil); err != nil {
		return asRule(err, "J-STA-2")
	}
	if err := j.takeChunk(fields["chunk"]); err != nil {
		return err
	}
	channels, err := j.newChannels(fields["channels"])
	if err != nil {
		return err
	}
	j.addChannels(channels)
	j.start = episode
	return nil
}

// withLength gives meta/episode of a start frame, which has no length of its own.
func withLength(episode shard.Object, steps int64) shard.Object {
	fields := make(shard.Object, len(episode)+1)
	for key, value := range episode {
		fields[key] = value
	}
	fields["length_T"] = steps
	return fields
}

// asRule says which rule of the journal an error about a description breaks.
func asRule(err error, rule string) error {
	var known *shard.Error
	if !errors.As(err, &known) {
		return err
	}
	found := *known
	found.Rule, found.Code = rule, shard.CodeBadMetadata
	return &found
}

func (j *journal) takeChunk(value any) error {
	if value == nil {
		return nil
	}
	fields, _ := value.(map[string]any)
	index, ok1 := asCount(fields["index"])
	first, ok2 := asCount(fields["first_step"])
	if !ok1 || !ok2 || index < 1 {
		return badMetadata("J-STA-3", "'chunk' does not say which part of a recording this is")
	}
	j.index, j.firstStep = index, first
	return nil
}

// --- channels

// newChannels checks rows (J-CHN).
func (j *journal) newChannels(value any) ([]*channelRuns, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, wrongField("J-CHN-1", "channels", "a list", value)
	}
	added := make([]*channelRuns, 0, len(list))
	names := make(map[string]bool, len(list))
	for _, item := range list {
		row, err := parseRow(item, "")
		if err != nil {
			return nil, asRule(err, "J-CHN-1")
		}
		if _, known := j.byBlock[row.block]; known || names[row.block] {
			return nil, badMetadata("J-CHN-2", "two rows of the journal describe the block %.80q", row.block)
		}
		names[row.block] = true
		one := &channelRuns{row: row}
		if count := len(added); count > 0 && added[count-1].isRagged() {
			added[count-1].offsets, one.owner = one, added[count-1]
		}
		if !one.isRecordable() {
			return nil, badMetadata("J-CHN-3", "the row of the block %.80q cannot be recorded", row.block)
		}
		added = append(added, one)
	}
	if count := len(added); count > 0 && added[count-1].isRagged() {
		return nil, badMetadata("J-CHN-3", "the offsets of %.80q are not the next row", added[count-1].row.block)
	}
	return added, nil
}

func (j *journal) addChannels(added []*channelRuns) {
	j.channels = append(j.channels, added...)
	for _, one := range added {
		j.byBlock[one.row.block] = one
	}
}

// flatBlocks are the blocks that follow the steps and are not in a lane with names.
var flatBlocks = map[string]bool{
	BlockReward: true, BlockRewardExact: true, BlockDone: true, BlockTerminated: true, BlockTruncated: true, BlockTimestamps: true,
}

func offsetsName(block string) string { return laneOffsets + "/" + block }

// isRecordable checks J-CHN-3 and computes the size of an entry, or of an item.
func (c *channelRuns) isRecordable() bool {
	r := c.row
	lane, _, _ := strings.Cut(r.block, "/")
	hasName := lane == laneSignal || lane == laneAction
	isPlaced := flatBlocks[r.block] || strings.HasPrefix(r.block, laneTime+"/") || (hasName && r.block == lane+"/"+r.id)
	if c.owner != nil {
		isPlaced = r.block == offsetsName(c.owner.row.block) && r.text("time_block") == "" && r.dtype == I64 && len(r.shape) == 0
	}
	isKnown := false
	switch r.layout() {
	case Dense:
		isKnown = r.text("offsets_block") == ""
	case Ragged, Text:
		isKnown = hasName && r.text("offsets_block") == offsetsName(r.block) &&
			(r.layout() == Ragged || (r.dtype == U8 && len(r.shape) == 0))
	}
	isSimple := r.fields["length"] == nil && r.fields["start_ns"] == nil
	size, fits := stepBytes(r.dtype, r.shape)
	c.stepBytes = size
	return isPlaced && isKnown && isSimple && fits && size > 0 && size <= largestEntry
}

// --- notes

func (j *journal) takeNote(fields shard.Object) error {
	objects := map[string]shard.Object{}
	for _, key := range []string{"metadata", "dropped", "filters"} {
		value, there := fields[key]
		object, ok := value.(map[string]any)
		if there && !ok {
			return wrongField("J-NOT-1", key, "an object", value)
		}
		objects[key] = object
	}
	length, err := noteCount(fields, "length_T", j.length)
	if err != nil {
		return err
	}
	filled, err := noteCount(fields, "filled", new(int64))
	if err != nil {
		return err
	}
	if filled == nil {
		return wrongField("J-NOT-1", "filled", "an integer of 0 or more", nil)
	}
	continues, ok := fields["continues"].(bool)
	if _, there := fields["continues"]; there && !ok {
		return wrongField("J-NOT-1", "continues", "true or false", fields["continues"])
	}
	name, label, err := j.noteLabel(fields)
	if err != nil {
		return err
	}
	var added []*channelRuns
	if value, there := fields["channels"]; there {
		if added, err = j.newChannels(value); err != nil {
			return err
		}
	}
	filters, err := j.noteFilters(objects["filters"], added)
	if err != nil {
		return err
	}
	// From here on nothing can fail.
	for _, one := range added {
		one.filled = *filled
	}
	j.addChannels(added)
	for one, each := range filters {
		one.filters = each
	}
	if label != nil {
		if known := j.labels[name]; known != nil {
			known.intervals = append(known.intervals, label.intervals...)
		} else {
			j.labels[name] = label
		}
	}
	j.length, j.continues = length, continues
	for key, value := range objects["metadata"] {
		j.metadata[key] = value
	}
	for key, value := range objects["dropped"] {
		j.dropped[key] = value
	}
	return nil
}

// noteCount reads an integer of 0 or more; those above 2**63 - 1 count as that.
func noteCount(fields shard.Object, key string, otherwise *int64) (*int64, error) {
	value, there := fields[key]
	if !there {
		return otherwise, nil
	}
	if value == nil {
		return nil, nil
	}
	if !strictjson.IsNatural(value) {
		return nil, wrongField("J-NOT-1", key, "an integer of 0 or more", value)
	}
	count, ok := asCount(value)
	if !ok {
		count = math.MaxInt64
	}
	return &count, nil
}

// noteLabel reads an interval and the lane that it belongs to.
func (j *journal) noteLabel(fields shard.Object) (string, *Label, error) {
	interval, there := fields["interval"]
	if !there {
		return "", nil, nil
	}
	name, ok := fields["label"].(string)
	if !ok || name == "" {
		return "", nil, wrongField("J-NOT-1", "label", "a string with something in it", fields["label"])
	}
	lane := shard.Object{"intervals": []any{interval}}
	if unit, there := fields["unit"]; there {
		lane["unit"] = unit
	}
	label, err := parseLabel(lane)
	if err != nil {
		return "", nil, asRule(err, "J-NOT-1")
	}
	if known := j.labels[name]; known != nil && known.unit != label.unit {
		return "", nil, badMetadata("J-NOT-1", "the intervals of the label %.80q have two units", name)
	}
	return name, label, nil
}

// noteFilters reads the filters of a note, by channel (J-FLT).
func (j *journal) noteFilters(listed shard.Object, added []*channelRuns) (map[*channelRuns]*shard.Filters, error) {
	if len(listed) == 0 {
		return nil, nil
	}
	here := make(map[string]*channelRuns, len(added))
	for _, one := range added {
		here[one.row.block] = one
	}
	found := make(map[*channelRuns]*shard.Filters, len(listed))
	for _, block := range sortedKeys(listed) {
		one := j.byBlock[block]
		if one == nil {
			one = here[block]
		}
		if one == nil || len(one.runs) > 0 || one.filters != nil {
			return nil, badMetadata("J-FLT-1", "a note has filters for %.80q, which is unknown or has begun", block)
		}
		filters, err := shard.ParseFilters(listed[block])
		rule := "J-FLT-2"
		if err == nil {
			rule, err = "J-FLT-3", filters.CheckFrame(uint64(one.stepBytes))
		}
		if err != nil {
			var known *shard.Error
			if errors.As(err, &known) {
				known.Rule, known.Entry = rule, block
			}
			return nil, err
		}
		found[one] = filters
	}
	return found, nil
}
