package wshard

import (
	"math"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// counted gives the channels that are part of the episode: not those that their recorder had not filled (J-3).
func (j *journal) counted() []*channelRuns {
	found := make([]*channelRuns, 0, len(j.channels))
	for _, c := range j.channels {
		if !c.isLeftOut() {
			found = append(found, c)
		}
	}
	return found
}

// steps is the number that every channel has (J-3).
func (j *journal) steps() int64 {
	least := int64(-1)
	for _, c := range j.counted() {
		if c.followsSteps() && (least < 0 || c.entries() < least) {
			least = c.entries()
		}
	}
	least = max(least, 0)
	if j.length != nil {
		least = min(least, *j.length)
	}
	return least
}

// kept is how many entries of each channel count, except of offsets (J-3).
func (j *journal) kept() map[*channelRuns]int64 {
	steps, counted := j.steps(), j.counted()
	kept := make(map[*channelRuns]int64, len(counted))
	for _, c := range counted {
		if c.owner != nil {
			continue
		}
		kept[c] = c.entries()
		if c.followsSteps() {
			most := steps
			if j.length != nil && strings.HasPrefix(c.row.block, laneSignal+"/") {
				most++
			}
			kept[c] = min(kept[c], most)
		}
	}
	for _, c := range counted {
		if name := c.row.text("time_block"); name != "" && c.owner == nil {
			clock := j.byBlock[name]
			kept[c] = min(kept[c], kept[clock]) // 0 if there is no such clock
			if clock != nil {
				kept[clock] = kept[c]
			}
		}
	}
	return kept
}

// cut is how many entries each block has beyond those that count.
func (j *journal) cut() map[string]int64 {
	kept := j.kept()
	beyond := map[string]int64{}
	for _, c := range j.counted() {
		if c.owner != nil {
			continue
		}
		count := c.entries() - kept[c]
		if c.offsets != nil && c.held > c.offsets.lastOffset {
			count++ // an entry whose offset is missing (J-6)
		}
		if count > 0 {
			beyond[c.row.block] = count
		}
	}
	return beyond
}

// episode is the recording up to where it is complete. Its channels read the journal.
func (j *journal) episode() (*Episode, error) { return j.episodeFrom(j.firstStep) }

// episodeFrom gives the episode of a chunk whose first step has another number, because steps before it were lost.
func (j *journal) episodeFrom(firstStep int64) (*Episode, error) {
	fields := withLength(j.start, j.steps())
	for _, field := range []string{"chunk_index", "total_chunks", "timestep_range", "length_t"} {
		delete(fields, field) // readers ignore them here
	}
	ep := &Episode{}
	ep.makeLanes()
	if err := ep.parseEpisode(fields, nil); err != nil {
		return nil, err
	}
	ep.Metadata = cloneObject(ep.Metadata)
	for key, value := range j.metadata {
		ep.Metadata[key] = value
	}
	if len(j.dropped) > 0 {
		ep.Metadata["dropped"] = cloneObject(j.dropped)
	}
	if err := j.addParts(ep); err != nil {
		return nil, err
	}
	if j.byBlock[BlockTimestamps] != nil {
		ep.Timebase.Type = TimestampsNS
	}
	for name, label := range j.labels {
		ep.Labels[name] = NewLabel(label.unit, j.ownIntervals(label, int64(ep.LengthT))...)
	}
	if j.isChunk() {
		return ep, j.number(ep, firstStep)
	}
	return ep, nil
}

// addParts puts every channel into its place.
func (j *journal) addParts(ep *Episode) error {
	kept := j.kept()
	for _, c := range j.counted() {
		block := c.row.block
		if c.owner != nil || (strings.HasPrefix(block, laneTime+"/") && block != BlockTimestamps) {
			continue // comes with its channel, if one names it
		}
		channel, err := j.channel(c, kept)
		if err != nil {
			return fault.Located(err, "", block)
		}
		isFree := true
		if place := ep.place(block); place != nil {
			isFree, *place = *place == nil, channel
		} else {
			lane := ep.Observations
			if strings.HasPrefix(block, laneAction+"/") {
				lane = ep.Actions
			}
			isFree, lane[c.row.id] = lane[c.row.id] == nil, channel
		}
		if !isFree {
			return fault.Located(invalid("two channels of the journal are the same part of an episode"), "", block)
		}
	}
	return nil
}

// place is where a block without a name of its own belongs; nil for an observation or an action.
func (ep *Episode) place(block string) **Channel {
	switch block {
	case BlockReward, BlockRewardExact:
		return &ep.Rewards
	case BlockDone, BlockTerminated:
		return &ep.Terminations
	case BlockTruncated:
		return &ep.Truncations
	case BlockTimestamps:
		return &ep.TimestampsNS
	}
	return nil
}

// channel makes a channel of the first entries of its runs.
func (j *journal) channel(c *channelRuns, kept map[*channelRuns]int64) (*Channel, error) {
	count := kept[c]
	channel := &Channel{path: j.path, row: c.row, Length: int(count)}
	channel.describe(c.row)
	channel.names.data = c.row.block
	items := count
	if c.offsets != nil {
		channel.names.offsets, channel.parsed = c.offsets.row.block, &parsedIndex{}
		channel.offsets = int64Block([]int64{0})
		items = 0
		if c.offsets.held > 0 {
			offsets := &journalBlock{j, c.offsets, (count + 1) * offsetBytes}
			channel.offsets = offsets
			last, err := readInt64s(partBlock{offsets, offsets.size - offsetBytes, offsets.size})
			if err != nil {
				return nil, err
			}
			items = last[0]
		}
	}
	channel.data = &journalBlock{j, c, items * c.stepBytes}
	if isFlat := flatBlocks[c.row.block]; isFlat {
		return channel, checkFlat(c.row)
	}
	if name := c.row.text("time_block"); name != "" {
		clock := j.byBlock[name]
		if clock == nil || clock.row.dtype != I64 || len(clock.row.shape) > 0 || clock.isLeftOut() {
			return nil, invalid("the clock %.80q is not in the journal, or not one i64 for each entry", name)
		}
		channel.names.times = name
		channel.times = &journalBlock{j, clock, count * clock.stepBytes}
	}
	return channel, checkID(c.row.id)
}

// checkFlat reports a block of the steps that cannot be saved because its recorder broke J-CHN-4.
func checkFlat(r *row) error {
	isRight := r.dtype == Bool || r.dtype == U8
	switch r.block {
	case BlockReward, BlockRewardExact:
		isRight = true
	case BlockTimestamps:
		isRight = r.dtype == I64
	}
	if !isRight || len(r.shape) > 0 || r.text("time_block") != "" {
		e := invalid("this is not one value for each step")
		e.Rule = "J-CHN-4"
		return e
	}
	return nil
}

// number says which part of a recording an episode is (J-8).
func (j *journal) number(ep *Episode, firstStep int64) error {
	if firstStep > math.MaxInt-int64(ep.LengthT) || j.firstStep > math.MaxInt-int64(ep.LengthT) {
		return broken(shard.CodeBadValue, "J-8", "the steps of this chunk cannot be numbered")
	}
	ep.ChunkIndex = pointer(int(j.index))
	ep.TimestepRange = stepRange(firstStep, ep.LengthT)
	if j.firstStep > 0 && ep.TimestampsNS == nil && ep.Timebase.TickHz > 0 {
		later, err := regularTime(ep.Timebase.EpochNS, int(j.firstStep), ep.Timebase.TickHz)
		if err != nil {
			return err
		}
		ep.Timebase.EpochNS = later
	}
	return nil
}

// stepRange has both ends; a chunk without steps has no last one.
func stepRange(first int64, length int) *[2]int {
	return &[2]int{int(first), int(first) + max(0, length-1)}
}

// ownIntervals counts intervals from the start of a chunk, and cuts them where the next one starts (J-8).
func (j *journal) ownIntervals(label *Label, steps int64) []Interval {
	if label.unit != UnitSteps || !j.isChunk() {
		return label.intervals
	}
	own := make([]Interval, 0, len(label.intervals))
	for _, one := range label.intervals {
		one.Start, one.End = subtract(one.Start, j.firstStep), subtract(one.End, j.firstStep)
		if j.continues {
			if one.Start >= steps {
				continue // the next journal has it
			}
			one.End = min(one.End, steps)
		}
		own = append(own, one)
	}
	return own
}

// subtract stays within ±(2**63 - 1).
func subtract(a, b int64) int64 {
	if a < 0 && a < b-math.MaxInt64 {
		return -math.MaxInt64
	}
	return a - b
}
