package wshard

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// basicFields are those that every row has.
const basicFields = 4

// --- rewards

func (p *planner) addRewards() error {
	c := p.ep.Rewards
	if c == nil {
		return nil
	}
	return fault.Located(p.addReward(c), "", BlockReward)
}

func (p *planner) addReward(c *Channel) error {
	if c.problem != nil {
		if !p.isHere(c) {
			return c.problem
		}
		for _, name := range []string{BlockReward, BlockRewardExact} {
			if row := p.origin.rows[name]; row != nil {
				p.rows[name] = row.fields
			}
			if err := p.keepBlocks(name); err != nil {
				return err
			}
		}
		return nil
	}
	if err := p.checkFlat(c); err != nil {
		return err
	}
	if c.DType == F32 {
		if err := p.addArray(BlockReward, c.data, F32, 4); err != nil {
			return err
		}
		return p.describeReward(c)
	}
	isExactHere := p.isHere(c) && c.names.data == BlockRewardExact
	if isExactHere && p.origin.reader.HasEntry(BlockReward) {
		if err := p.addArray(BlockReward, newEntryBlock(p.origin.reader, BlockReward), F32, 4); err != nil {
			return err
		}
		return p.addChannel(BlockRewardExact, BlockRewardExact, c, nil)
	}
	data, err := c.Data()
	if err != nil {
		return err
	}
	rounded := asF32(floats(c.DType, data))
	if c.DType == I64 || c.DType == U64 {
		rounded = integersAsF32(c.DType, data)
	}
	if err := p.addArray(BlockReward, memoryBlock(rounded), F32, 4); err != nil {
		return err
	}
	// Bit by bit: NaN is not equal to itself.
	if !isExactHere && c.DType == F64 && bytes.Equal(data, FromValues(floats(F32, rounded)).data.(memoryBlock)) {
		return p.describeReward(c)
	}
	return p.addChannel(BlockRewardExact, BlockRewardExact, c, nil)
}

// integersAsF32 rounds 64-bit integers once: by way of a 64-bit float they would be rounded twice.
func integersAsF32(dtype DType, data []byte) []byte {
	out := make([]byte, 0, len(data)/2)
	for at := 0; at < len(data); at += 8 {
		bits := binary.LittleEndian.Uint64(data[at:])
		value := float32(int64(bits))
		if dtype == U64 {
			value = float32(bits)
		}
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(value))
	}
	return out
}

// describeReward adds a row for reward where there is more to say than its name does.
func (p *planner) describeReward(c *Channel) error {
	fields, err := c.rowFor(BlockReward, BlockReward, p.ep.LengthT)
	if err != nil {
		return err
	}
	fields["dtype"] = string(F32)
	if len(fields) == basicFields && (p.origin == nil || p.origin.rows[BlockReward] == nil) {
		return nil
	}
	p.rows[BlockReward] = fields
	return checkRow(fields)
}

// checkFlat checks that rewards, ends and clocks are one value for each step.
func (p *planner) checkFlat(c *Channel) error {
	if len(c.Shape) != 0 || c.HasOwnClock() || c.layout() != Dense || c.Length != p.ep.LengthT {
		e := invalid("this lane is not one value for each step: store others as an observation")
		e.Expected, e.Found = number(p.ep.LengthT)+" values", number(c.Length)+" times "+shapeText(c.DType, c.Shape)
		return e
	}
	if c.data == nil || c.data.Size() != int64(c.Length)*int64(c.DType.Size()) {
		return invalid("the data does not have the size that its type and length make")
	}
	return nil
}

// --- ends

// addEnds plans done, terminated and truncated (W-END-2).
func (p *planner) addEnds() error {
	ended, cut := p.ep.Terminations, p.ep.Truncations
	if ended == nil && cut == nil {
		return nil
	}
	ends, isKept, err := p.truths(ended)
	if err != nil {
		return fault.Located(err, "", BlockTerminated)
	}
	cuts, isCutKept, err := p.truths(cut)
	if err != nil {
		return fault.Located(err, "", BlockTruncated)
	}
	if isKept || isCutKept { // a block that cannot be read goes back as it came, with all that belongs to it
		return p.keepEnds()
	}
	if cut == nil && ended.names.data != BlockTerminated {
		return p.addArray(BlockDone, ends, U8, 1) // only one kind of end is known: done says it all
	}
	if err := p.addArray(BlockDone, p.union(ends, cuts), U8, 1); err != nil {
		return err
	}
	switch {
	case ended == nil: // readers would take done for them
		err = p.addArray(BlockTerminated, make(memoryBlock, p.ep.LengthT), U8, 1)
	case !(p.isHere(ended) && ended.names.data == BlockDone):
		err = p.addArray(BlockTerminated, ends, U8, 1)
	}
	if err == nil && cut != nil {
		err = p.addArray(BlockTruncated, cuts, U8, 1)
	}
	return err
}

func (p *planner) keepEnds() error {
	for _, name := range []string{BlockDone, BlockTerminated, BlockTruncated} {
		if err := p.keepBlocks(name); err != nil {
			return err
		}
	}
	return nil
}

// truths gives the bytes of an end: those of its file as they are, others as 0 and 1. isUnreadable is set for a block of
// the file that breaks a rule.
func (p *planner) truths(c *Channel) (data memoryBlock, isUnreadable bool, err error) {
	if c == nil {
		return nil, false, nil
	}
	if c.problem != nil {
		return nil, p.isHere(c), c.problemElsewhere(p)
	}
	if err := p.checkFlat(c); err != nil {
		return nil, false, err
	}
	stored, err := c.Data()
	if err != nil || p.isHere(c) {
		return stored, false, err
	}
	flags, err := c.Bools()
	if err != nil {
		return nil, false, err
	}
	data = make(memoryBlock, len(flags))
	for i, flag := range flags {
		if flag {
			data[i] = 1
		}
	}
	return data, false, nil
}

// problemElsewhere is what is wrong with a channel that is not written as its file has it.
func (c *Channel) problemElsewhere(p *planner) error {
	if p.isHere(c) {
		return nil
	}
	return c.problem
}

// union gives the bytes of done: those of the file where they still mean the same.
func (p *planner) union(ends, cuts memoryBlock) memoryBlock {
	done := make(memoryBlock, p.ep.LengthT)
	for i := range done {
		if (ends != nil && ends[i] != 0) || (cuts != nil && cuts[i] != 0) {
			done[i] = 1
		}
	}
	if p.origin == nil || !p.origin.reader.HasEntry(BlockDone) {
		return done
	}
	stored, err := p.origin.reader.ReadEntry(BlockDone)
	if err != nil || len(stored) != len(done) {
		return done
	}
	for i := range done {
		if (stored[i] != 0) != (done[i] != 0) {
			return done
		}
	}
	return stored
}

// --- clocks of the steps

func (p *planner) addClocks() error {
	ep := p.ep
	for _, clock := range []struct {
		name  string
		c     *Channel
		dtype DType
	}{{BlockTicks, ep.Ticks, I32}, {BlockTimestamps, ep.TimestampsNS, I64}} {
		if clock.c == nil {
			continue
		}
		if clock.c.problem == nil || !p.isHere(clock.c) {
			if err := p.checkFlat(clock.c); err != nil {
				return fault.Located(err, "", clock.name)
			}
			if clock.c.DType != clock.dtype {
				return fault.Located(invalid("the clock is not of type %s", clock.dtype), "", clock.name)
			}
		}
		if err := p.addArray(clock.name, clock.c.data, clock.dtype, int64(clock.dtype.Size())); err != nil {
			return err
		}
	}
	if ep.Ticks == nil && p.origin == nil && ep.Extras[MetaSidecar] == nil {
		first := 0
		if ep.TimestepRange != nil {
			first = ep.TimestepRange[0]
		}
		if first < 0 || first > math.MaxInt32 || ep.LengthT > math.MaxInt32-first {
			e := invalid("time/ticks cannot count so many steps")
			e.Rule = "W-TIM-2"
			return e
		}
		ticks := make([]int32, ep.LengthT)
		for i := range ticks {
			ticks[i] = int32(first + i)
		}
		return p.addArray(BlockTicks, int32Block(ticks), I32, 4)
	}
	return p.keepEmpty()
}

// keepEmpty keeps the empty blocks of a file, which stand for lanes that are not there; some readers want to find them.
func (p *planner) keepEmpty() error {
	if p.origin == nil {
		return nil
	}
	for name := range stepBlocks {
		row := p.origin.reader.Lookup(name)
		if row < 0 || p.entries[name] != nil || p.origin.reader.EntryAt(row).OrigSize != 0 {
			continue
		}
		if err := p.addArray(name, memoryBlock{}, U8, 1); err != nil {
			return err
		}
	}
	return nil
}

// --- residuals, labels, other entries

func (p *planner) addResiduals() error {
	for _, key := range sortedKeys(p.ep.Residuals) {
		if err := p.addResidual(p.ep.Residuals[key]); err != nil && !p.lenient {
			return fault.Located(err, "", "residual/"+key)
		}
	}
	return nil
}

func (p *planner) addResidual(r *Residual) error {
	if r == nil || r.Values == nil {
		return invalid("the residual is nil, or has no values")
	}
	values := r.Values
	block := values.names.data
	isHere := p.isHere(values)
	if !isHere {
		for _, id := range []string{r.Channel, r.Type, r.Model} {
			if err := checkID(id); err != nil && (id != "" || id != r.Model) {
				return err
			}
		}
		block = address{laneResidual, [3]string{r.Channel, r.Model, r.Type}}.blockName()
	}
	if values.problem != nil {
		if !isHere {
			return values.problem
		}
		return p.keepResidual(r)
	}
	about := shard.Object{"channel": r.Channel, "type": r.Type}
	if r.Model != "" {
		about["model"] = r.Model
	}
	if r.Type == Sign2ndDiff {
		if err := checkSigns(values.data.Size(), p.ep.LengthT); err != nil {
			return err
		}
		if err := p.addArray(block, values.data, U8, 1); err != nil {
			return err
		}
		row, dimensions := packedBytes(p.ep.LengthT), int64(0)
		if row > 0 {
			dimensions = values.data.Size() / row
		}
		if !isHere || values.row != nil {
			p.rows[block] = residualRow(block, U8, []int{int(row)}, about)
			p.rows[block]["length"] = dimensions
		}
		return nil
	}
	if r.Type != DeltaQ || r.Scales == nil || r.Window < 1 || values.DType != I8 {
		return invalid("a residual is of type sign2nddiff, or of type delta_q with scales and a window")
	}
	windows := windowCount(p.ep.LengthT, r.Window)
	step, fits := stepBytes(I8, values.Shape)
	if !fits || values.Length != p.ep.LengthT || values.data.Size() != int64(values.Length)*step || r.Scales.data.Size() != 4*step*int64(windows) {
		return invalid("the residual does not fit the episode")
	}
	if err := p.addArray(block, values.data, I8, step); err != nil {
		return err
	}
	if err := p.addArray(block+scalesSuffix, r.Scales.data, F32, 4*step); err != nil {
		return err
	}
	p.rows[block] = residualRow(block, I8, values.Shape, about)
	p.rows[block]["window"] = int64(r.Window)
	p.rows[block+scalesSuffix] = residualRow(block+scalesSuffix, F32, values.Shape, nil)
	p.rows[block+scalesSuffix]["length"] = int64(windows)
	return nil
}

func residualRow(block string, dtype DType, shape []int, about shard.Object) shard.Object {
	fields, _ := (&Channel{DType: dtype, Shape: shape}).rowFor(block, block, 0) // it has no fields that could be wrong
	maps.Copy(fields, about)
	return fields
}

// keepResidual keeps a residual that cannot be read as its file has it.
func (p *planner) keepResidual(r *Residual) error {
	name := r.Values.names.data
	if r.Values.row != nil {
		p.rows[name] = r.Values.row.fields
	}
	if row := p.origin.rows[name+scalesSuffix]; row != nil {
		p.rows[name+scalesSuffix] = row.fields
	}
	return p.keepBlocks(name, name+scalesSuffix)
}

func (p *planner) addLabels() error {
	for _, key := range sortedKeys(p.ep.Labels) {
		name, label := laneLabel+"/"+key, p.ep.Labels[key]
		if label == nil {
			return fault.Located(invalid("the label is nil"), "", name)
		}
		if p.holds(label.raw, name) {
			if err := p.keepText(name); err != nil {
				return err
			}
			continue
		}
		if err := checkID(key); err != nil {
			return fault.Located(err, "", name)
		}
		unit, intervals, err := label.Read()
		if err != nil {
			return fault.Located(err, "", name)
		}
		fields := labelFields(unit, intervals)
		if _, err := parseLabel(cloneObject(fields)); err != nil {
			e := invalid("readers would refuse the label")
			e.Entry, e.Err = name, err
			return e
		}
		if err := p.addJSON(name, fields); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) addExtras() error {
	for _, name := range sortedKeys(p.ep.Extras) {
		extra := p.ep.Extras[name]
		if extra == nil {
			return fault.Located(invalid("the entry is nil"), "", name)
		}
		if extra.channel != nil && extra.channel.names.data == name && !strings.HasPrefix(name, laneResidual+"/") {
			if err := p.addChannel(name, rowID(name), extra.channel, nil); err != nil && !p.lenient {
				return fault.Located(err, "", name)
			}
			if entry := p.entries[name]; entry != nil {
				entry.contentType, entry.tagBits = extra.ContentType, extra.TagBits
			}
			continue
		}
		entry := &plannedEntry{name: name, content: extra.data, contentType: extra.ContentType, tagBits: extra.TagBits, dtype: U8, step: 1}
		if row := extra.channel; row != nil && row.row != nil {
			p.rows[name] = row.row.fields
		}
		if err := p.add(entry); err != nil && !p.lenient {
			return err
		}
	}
	return nil
}

func (p *planner) addProvenance() error {
	if p.ep.Provenance != nil {
		fields, err := p.ep.Provenance.fields()
		if err != nil {
			e := invalid("readers would refuse the provenance")
			e.Entry, e.Err = MetaProvenance, err
			return e
		}
		return p.addJSON(MetaProvenance, fields)
	}
	if p.origin == nil || !p.origin.reader.HasEntry(MetaProvenance) {
		return nil
	}
	return p.keepText(MetaProvenance)
}

// keepText keeps a text of the origin, to the last space.
func (p *planner) keepText(name string) error {
	block := newEntryBlock(p.origin.reader, name)
	info := p.origin.reader.EntryAt(p.origin.reader.Lookup(name))
	return p.add(&plannedEntry{name: name, content: block, contentType: info.ContentType, tagBits: info.TagBits, isJSON: true})
}
