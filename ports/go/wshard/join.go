package wshard

import (
	"fmt"
	"maps"
	"slices"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

func discontinuity(format string, args ...any) *shard.Error {
	return broken(shard.CodeChunkDiscontinuity, "W-CHK-8", format, args...)
}

// Join gives episodes that follow one another in time, and have the same channels, as one. Nothing is copied until it is
// read, so the episodes must stay open. Facts and metadata are those of the first.
func Join(episodes []*Episode) (*Episode, error) {
	if len(episodes) == 0 {
		return nil, invalid("there is nothing to join")
	}
	first := episodes[0]
	joined := *first
	joined.makeLanes()
	joined.origin, joined.LengthT = nil, 0
	joined.ChunkIndex, joined.TotalChunks, joined.TimestepRange = nil, nil, nil
	lengths := make([]int, len(episodes))
	for i, ep := range episodes {
		lengths[i] = ep.LengthT
		joined.LengthT += ep.LengthT
	}
	j := joiner{episodes, lengths, &joined}
	for _, join := range []func() error{j.joinChannels, j.joinSteps, j.joinResiduals} {
		if err := join(); err != nil {
			return nil, err
		}
	}
	j.joinLabels()
	for _, ep := range episodes {
		for name, extra := range ep.Extras {
			if joined.Extras[name] == nil {
				joined.Extras[name] = extra
			}
		}
	}
	return &joined, nil
}

type joiner struct {
	episodes []*Episode
	lengths  []int
	joined   *Episode
}

// lanes gives the channels of an episode by their addresses.
func (ep *Episode) lanes() map[address]*Channel {
	found := map[address]*Channel{}
	for key, c := range ep.Observations {
		found[address{laneSignal, [3]string{key}}] = c
	}
	for key, c := range ep.Actions {
		found[address{laneAction, [3]string{key}}] = c
	}
	for channel, models := range ep.Omens {
		for model, c := range models {
			found[address{laneOmen, [3]string{channel, model}}] = c
		}
	}
	for channel, models := range ep.Uncerts {
		for model, kinds := range models {
			for kind, c := range kinds {
				found[address{laneUncert, [3]string{channel, model, kind}}] = c
			}
		}
	}
	return found
}

// inFileOrder gives the addresses of channels in the order of their blocks in a new file.
func inFileOrder(lanes map[address]*Channel) []address {
	return slices.SortedFunc(maps.Keys(lanes), func(a, b address) int { return compareInFile(a.blockName(), b.blockName()) })
}

// setLane puts a channel at its address.
func (ep *Episode) setLane(at address, c *Channel) {
	switch at.lane {
	case laneSignal:
		ep.Observations[at.keys[0]] = c
	case laneAction:
		ep.Actions[at.keys[0]] = c
	case laneOmen:
		ep.SetOmen(at.keys[0], at.keys[1], c)
	case laneUncert:
		ep.SetUncert(at.keys[0], at.keys[1], at.keys[2], c)
	}
}

func (j joiner) joinChannels() error {
	lanes := make([]map[address]*Channel, len(j.episodes))
	for i, ep := range j.episodes {
		lanes[i] = ep.lanes()
		if len(lanes[i]) != len(lanes[0]) {
			return discontinuity("part %d has other channels than the first", i)
		}
	}
	for _, at := range inFileOrder(lanes[0]) {
		parts := make([]*Channel, len(lanes))
		for i := range lanes {
			if parts[i] = lanes[i][at]; parts[i] == nil {
				return discontinuity("part %d lacks the channel %.80q", i, at.blockName())
			}
		}
		c, err := joinParts(parts, j.lengths)
		if err != nil {
			return fault.Located(err, "", at.blockName())
		}
		j.joined.setLane(at, c)
	}
	return nil
}

// channelForm is what the parts of a channel have in common.
type channelForm struct {
	layout    Layout
	dtype     DType
	shape     string
	hasTimes  bool
	isRegular bool
	rate      float64
	codec     string
}

func (c *Channel) form() channelForm {
	form := channelForm{layout: c.layout(), dtype: c.DType, shape: fmt.Sprint(c.Shape), hasTimes: c.times != nil}
	if form.isRegular = c.StartNS != nil && c.times == nil; form.isRegular {
		form.rate = c.SamplingRateHz
	}
	if c.layout() == Video {
		form.codec = c.ContentType + "\x00" + string(c.Extradata)
	}
	return form
}

// joinParts makes one channel of those of several parts.
func joinParts(parts []*Channel, lengths []int) (*Channel, error) {
	first := parts[0]
	joined := *first
	joined.row, joined.problem = nil, nil
	if !first.HasOwnClock() && first.Length != lengths[0] && first.Length != lengths[0]+1 {
		return first, nil // without a time for each step, so that every part has all of it
	}
	joined.Length = 0
	parts = slices.Clone(parts)
	for i, part := range parts {
		if part.problem != nil { // told when the channel is read
			joined.problem = fault.Located(part.problem, part.path, part.names.data)
			joined.Length += lengths[i]
			continue
		}
		if part.form() != first.form() {
			return nil, discontinuity("part %d has the channel in another form", i)
		}
		if !part.HasOwnClock() {
			if part.Length == lengths[i]+1 && i < len(parts)-1 { // the next part starts with this observation
				var err error
				if parts[i], err = part.Window(0, lengths[i]); err != nil {
					return nil, err
				}
			} else if part.Length != lengths[i] && part.Length != lengths[i]+1 {
				return nil, discontinuity("part %d has %d entries for %d steps", i, part.Length, lengths[i])
			}
		}
		joined.Length += parts[i].Length
	}
	if joined.problem != nil {
		return &joined, nil
	}
	data, times := make([]Block, len(parts)), make([]Block, len(parts))
	for i, part := range parts {
		data[i], times[i] = part.data, part.times
	}
	joined.data = joinBlocks(data)
	if first.times != nil {
		joined.times = joinBlocks(times)
		for _, one := range times {
			if _, isBroken := one.(brokenBlock); isBroken {
				joined.times = one
			}
		}
	}
	if first.layout() != Dense {
		joined.parts, joined.parsed, joined.offsets, joined.frames = parts, &parsedIndex{}, nil, nil
	}
	return &joined, nil
}

// parseParts gives the index of a channel that was joined of several.
func (c *Channel) parseParts() error {
	offsets := []int64{0}
	frames := &frameIndex{}
	steps := int64(0)
	for _, part := range c.parts {
		if err := part.check(); err != nil {
			return err
		}
		start := offsets[len(offsets)-1]
		for _, offset := range part.parsed.offsets[1:] {
			offsets = append(offsets, start+offset)
		}
		if index := part.parsed.frames; index != nil {
			for _, step := range index.steps {
				frames.steps = append(frames.steps, steps+step)
			}
			frames.flags = append(frames.flags, index.flags...)
		}
		steps += int64(part.Length)
	}
	c.parsed.offsets = offsets
	if c.layout() != Video {
		return nil
	}
	c.parsed.frames = frames
	return frames.resolve(c.Length)
}

// joinSteps joins the lanes of one block each.
func (j joiner) joinSteps() error {
	for _, lane := range []struct {
		name string
		of   func(*Episode) **Channel
		// mayLack is set if the lane is left out where a part lacks it.
		mayLack bool
	}{
		{"rewards", func(ep *Episode) **Channel { return &ep.Rewards }, false},
		{"terminations", func(ep *Episode) **Channel { return &ep.Terminations }, false},
		{"truncations", func(ep *Episode) **Channel { return &ep.Truncations }, false},
		{"ticks", func(ep *Episode) **Channel { return &ep.Ticks }, true},
		{"timestamps_ns", func(ep *Episode) **Channel { return &ep.TimestampsNS }, false},
	} {
		var parts []*Channel
		var lengths []int
		missing := false
		for i, ep := range j.episodes {
			if c := *lane.of(ep); c != nil {
				parts, lengths = append(parts, c), append(lengths, j.lengths[i])
			} else if j.lengths[i] > 0 { // a part without steps has nothing to say
				missing = true
			}
		}
		place := lane.of(j.joined)
		*place = nil
		if len(parts) == 0 || (missing && lane.mayLack) {
			continue
		}
		if missing {
			return discontinuity("some parts have %s, and others do not", lane.name)
		}
		c, err := joinParts(sameRewards(parts), lengths)
		if err != nil {
			return fault.Located(err, "", lane.name)
		}
		*place = c
	}
	return nil
}

// sameRewards gives rewards one type: parts in which f32 holds them exactly are stored so, whatever the others need.
func sameRewards(parts []*Channel) []*Channel {
	if !slices.ContainsFunc(parts, func(c *Channel) bool { return c.DType == F64 }) {
		return parts
	}
	parts = slices.Clone(parts)
	var exact *Channel
	for _, part := range parts {
		if part.DType == F64 {
			exact = part
			break
		}
	}
	for i, part := range parts {
		if part.DType == F32 && part.problem == nil && len(part.Shape) == 0 {
			wide := *exact
			wide.data, wide.Length, wide.path, wide.problem = widenedBlock{part.data}, part.Length, part.path, nil
			parts[i] = &wide
		}
	}
	return parts
}

// widenedBlock gives a block of f32 as f64.
type widenedBlock struct{ narrow Block }

func (b widenedBlock) Size() int64 { return 2 * b.narrow.Size() }

func (b widenedBlock) ReadRange(start, end int64) ([]byte, error) {
	if start < 0 || start > end || end > b.Size() {
		return nil, invalid("the range is outside the block")
	}
	first, last := start/8, (end+7)/8
	data, err := b.narrow.ReadRange(4*first, 4*last)
	if err != nil {
		return nil, err
	}
	wide := FromValues(floats(F32, data)).data.(memoryBlock)
	return wide[start-8*first : end-8*first], nil
}

// --- labels

// joinLabels joins the intervals of each label when they are asked for.
func (j joiner) joinLabels() {
	for _, ep := range j.episodes {
		for name := range ep.Labels {
			if j.joined.Labels[name] == nil {
				j.joined.Labels[name] = &Label{entry: "label/" + name, load: func() (string, []Interval, error) { return j.label(name) }}
			}
		}
	}
}

// intervalKey is what both halves of an interval have in common that was cut at a border.
type intervalKey struct {
	text, source, fields string
	confidence           float64
	isSure               bool
	end                  int64
}

func keyOf(one Interval, end int64) intervalKey {
	key := intervalKey{text: one.Text, source: one.Source, end: end}
	if len(one.Fields) > 0 {
		fields, _ := shard.CanonicalJSON(one.Fields) // they were parsed, so this cannot fail
		key.fields = string(fields)
	}
	if one.Confidence != nil {
		key.confidence, key.isSure = *one.Confidence, true
	}
	return key
}

func (j joiner) label(name string) (unit string, intervals []Interval, err error) {
	start := int64(0)
	// ending has the last interval of each kind by where it ends: to search all of them takes too long.
	ending := map[intervalKey]int{}
	for i, ep := range j.episodes {
		length := int64(j.lengths[i])
		label := ep.Labels[name]
		if label == nil {
			start += length
			continue
		}
		own, items, err := label.Read()
		if err != nil {
			return "", nil, err
		}
		if unit == "" {
			unit = own
		} else if unit != own {
			return "", nil, discontinuity("part %d counts the label in another unit", i)
		}
		border, shift, hasBorder := start, start, true
		if own == UnitNS {
			shift = 0
			if border, hasBorder, err = ep.firstTime(); err != nil {
				return "", nil, err
			}
		}
		for _, one := range items {
			if one.Start, err = addTime(one.Start, shift); err == nil {
				one.End, err = addTime(one.End, shift)
			}
			if err != nil {
				return "", nil, err
			}
			at, isCut := ending[keyOf(one, one.Start)]
			if isCut && hasBorder && one.Start == border && one.Start < one.End {
				delete(ending, keyOf(one, one.Start))
				intervals[at].End = one.End
			} else {
				at = len(intervals)
				intervals = append(intervals, one)
			}
			ending[keyOf(one, one.End)] = at
		}
		start += length
	}
	return unit, intervals, nil
}

// firstTime is the time of the first step; false if there is none.
func (ep *Episode) firstTime() (int64, bool, error) {
	if ep.LengthT == 0 {
		return 0, false, nil
	}
	if ep.TimestampsNS != nil {
		first, err := ep.TimestampsNS.Window(0, 1)
		if err != nil {
			return 0, false, err
		}
		values, err := Values[int64](first)
		if err != nil {
			return 0, false, err
		}
		return values[0], true, nil
	}
	return ep.Timebase.EpochNS, ep.Timebase.TickHz > 0, nil
}

// --- residuals

func (j joiner) joinResiduals() error {
	for _, key := range sortedKeys(j.episodes[0].Residuals) {
		first := j.episodes[0].Residuals[key]
		parts := make([]*Residual, len(j.episodes))
		for i, ep := range j.episodes {
			one := ep.Residuals[key]
			if one == nil || one.Type != first.Type || one.Channel != first.Channel || one.Model != first.Model ||
				len(ep.Residuals) != len(j.episodes[0].Residuals) {
				return discontinuity("part %d has other residuals than the first", i)
			}
			parts[i] = one
		}
		j.joined.Residuals[key] = joinResidual(parts, j.joined.LengthT)
	}
	return nil
}

// joinResidual makes one residual of those of several parts. What is wrong with one of them is told when it is read.
func joinResidual(parts []*Residual, steps int) *Residual {
	joined := *parts[0]
	joined.steps = steps
	values := *parts[0].Values
	values.row, values.problem = nil, nil
	joined.Values = &values
	var filled []*Residual
	for _, part := range parts {
		if part.Values.problem != nil {
			values.problem = fault.Located(part.Values.problem, part.Values.path, part.Values.names.data)
			return &joined
		}
		if part.steps > 0 {
			filled = append(filled, part)
		}
	}
	if len(filled) == 0 {
		return &joined
	}
	if joined.Type == Sign2ndDiff {
		dimensions := filled[0].dimensions()
		for _, part := range filled {
			if part.dimensions() != dimensions {
				values.problem = discontinuity("the parts of a residual have different dimensions")
				return &joined
			}
		}
		values.data = joinedSigns{filled, steps, dimensions}
		values.Length = int(values.data.Size())
		return &joined
	}
	window := 0
	data := make([]Block, len(filled))
	for i, part := range filled {
		if !slices.Equal(part.Values.Shape, values.Shape) {
			values.problem = discontinuity("the parts of a residual have different shapes")
			return &joined
		}
		data[i] = part.Values.data
		window = divisor(window, part.Window)
		if i < len(filled)-1 { // all but the last part must be whole windows
			window = divisor(window, part.steps)
		}
	}
	values.data, values.Length = joinBlocks(data), steps
	joined.Window = window
	scales := *filled[0].Scales
	blocks := make([]Block, len(filled))
	for i, part := range filled {
		blocks[i] = repeatedScales(part, window)
	}
	scales.data, scales.Length, scales.row = joinBlocks(blocks), windowCount(steps, window), nil
	joined.Scales = &scales
	return &joined
}

func divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (r *Residual) dimensions() int {
	if r.steps == 0 {
		return 0
	}
	return int(r.Values.data.Size() / packedBytes(r.steps))
}

// repeatedScales are the scales of a residual for windows of a divisor of its own.
func repeatedScales(r *Residual, window int) Block {
	if window == r.Window {
		return r.Scales.data
	}
	step, _ := stepBytes(F32, r.Scales.Shape)
	return scalesBlock{r.Scales.data, step, r.Window / window, windowCount(r.steps, window)}
}

// scalesBlock has each row of another block several times.
type scalesBlock struct {
	from   Block
	step   int64
	times  int
	length int
}

func (b scalesBlock) Size() int64 { return b.step * int64(b.length) }

func (b scalesBlock) ReadRange(start, end int64) ([]byte, error) {
	if start < 0 || start > end || end > b.Size() {
		return nil, invalid("the range is outside the block")
	}
	data, err := readBlock(b.from)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, b.Size())
	for i := range b.length {
		at := int64(i/b.times) * b.step
		out = append(out, data[at:at+b.step]...)
	}
	return out[start:end], nil
}

// joinedSigns has the packed bits of several parts, dimension by dimension.
type joinedSigns struct {
	parts             []*Residual
	steps, dimensions int
}

func (b joinedSigns) Size() int64 { return packedBytes(b.steps) * int64(b.dimensions) }

func (b joinedSigns) ReadRange(start, end int64) ([]byte, error) {
	if start < 0 || start > end || end > b.Size() {
		return nil, invalid("the range is outside the block")
	}
	stored := make([][]byte, len(b.parts))
	for i, part := range b.parts {
		var err error
		if stored[i], err = readBlock(part.Values.data); err != nil {
			return nil, err
		}
	}
	packed := make([]byte, b.Size())
	row, before := packedBytes(b.steps), 0
	for i, part := range b.parts {
		bits := stored[i]
		own := packedBytes(part.steps)
		for d := range int64(b.dimensions) {
			for t := range part.steps {
				bit := bits[d*own+int64(t/8)] >> (t % 8) & 1
				at := before + t
				packed[d*row+int64(at/8)] |= bit << (at % 8)
			}
		}
		before += part.steps
	}
	return packed[start:end], nil
}
