package wshard

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// plannedEntry is one entry of the file to be.
type plannedEntry struct {
	name                 string
	content              Block
	contentType, tagBits uint16
	// dtype and step are those of an array: frames of a compressed block hold whole steps.
	dtype DType
	step  int64
	// isJSON is set for texts, isEncoded for pictures that are encoded already: neither is compressed.
	isJSON, isEncoded bool
}

// planner lays out the file of an episode (section 15).
type planner struct {
	ep *Episode
	// origin is the file whose form is kept; nil for a new episode, and for one of several files.
	origin  *origin
	entries map[string]*plannedEntry
	// rows are the rows of blocks as our writers make them.
	rows map[string]shard.Object
	// clocks are the clocks of channels that are planned already, by name.
	clocks map[string]string
	// lenient keeps the rows that can be made; for the rows of an episode as its file has it.
	lenient bool
}

func newPlanner(ep *Episode) *planner {
	p := &planner{ep: ep, entries: map[string]*plannedEntry{}, rows: map[string]shard.Object{}, clocks: map[string]string{}}
	if ep.origin != nil && ep.origin.reader.Header().Role == shard.RoleWSHARD {
		p.origin = ep.origin
	}
	return p
}

// plan checks an episode and gives the entries of its file, in order, without meta/identity.
func (p *planner) plan() ([]*plannedEntry, error) {
	if err := p.checkFacts(); err != nil {
		return nil, err
	}
	for _, add := range []func() error{
		p.addChannels, p.addRewards, p.addEnds, p.addClocks, p.addResiduals, p.addLabels, p.addExtras, p.addProvenance, p.addDescriptions,
	} {
		if err := add(); err != nil {
			return nil, err
		}
	}
	return p.inOrder(), nil
}

// planRows gives the rows of all channels that can be saved.
func (p *planner) planRows() map[string]shard.Object {
	p.lenient = true
	_ = p.addChannels()
	_ = p.addRewards()
	_ = p.addResiduals()
	_ = p.addExtras()
	return p.rows
}

func (p *planner) checkFacts() error {
	ep := p.ep
	isKept := p.origin != nil && ep.ID == "" // an older writer may have left it empty
	if (ep.ID == "" && !isKept) || !utf8.ValidString(ep.ID) || !utf8.ValidString(ep.EnvID) {
		return invalid("an episode needs an id, and its names are valid UTF-8")
	}
	if ep.LengthT < 0 {
		return invalid("an episode does not have %d steps", ep.LengthT)
	}
	if rate := ep.Timebase.TickHz; rate < 0 || math.IsNaN(rate) || math.IsInf(rate, 0) {
		return invalid("the rate of the timebase is not a number above 0")
	}
	if kind := ep.Timebase.Type; kind != "" && kind != Ticks && kind != TimestampsNS {
		return invalid("unknown type of timebase %q", kind)
	}
	if edges := ep.residualEdges(); edges != EdgesPad && edges != EdgesOverlap {
		return invalid("residual_edges is %q or %q", EdgesPad, EdgesOverlap)
	}
	for _, fields := range []struct {
		given shard.Object
		known map[string]bool
	}{{ep.Fields, episodeFields}, {ep.FormatFields, wshardFields}} {
		for key := range fields.given {
			if fields.known[key] {
				return invalid("Fields or FormatFields has the field '%s', which an episode has already", key)
			}
		}
	}
	// What is written must be what readers accept.
	text, err := shard.CanonicalJSON(ep.episodeFields())
	if err != nil {
		return fault.Located(err, "", MetaEpisode)
	}
	fields, err := shard.ParseObject(text)
	if err == nil {
		err = new(Episode).parseEpisode(fields, nil)
	}
	if err != nil {
		e := invalid("readers would refuse the episode")
		e.Entry, e.Err = MetaEpisode, err
		return e
	}
	return nil
}

// --- entries

func (p *planner) add(entry *plannedEntry) error {
	if p.entries[entry.name] != nil {
		return fault.Located(invalid("two lanes give a block of the same name"), "", entry.name)
	}
	p.entries[entry.name] = entry
	return nil
}

func (p *planner) addJSON(name string, fields shard.Object) error {
	text, err := shard.CanonicalJSON(fields)
	if err != nil {
		return fault.Located(err, "", name)
	}
	return p.add(&plannedEntry{name: name, content: memoryBlock(text), contentType: shard.ContentTypeJSON, isJSON: true})
}

func (p *planner) addArray(name string, content Block, dtype DType, step int64) error {
	return p.add(&plannedEntry{name: name, content: content, dtype: dtype, step: max(step, 1)})
}

// inOrder gives all entries: in the order of the origin, then by lanes and names.
func (p *planner) inOrder() []*plannedEntry {
	names := slices.SortedFunc(maps.Keys(p.entries), compareInFile)
	if p.origin != nil {
		var before, added []string
		there := map[string]bool{}
		for _, name := range p.origin.reader.EntryNames() {
			if p.entries[name] != nil {
				before, there[name] = append(before, name), true
				info := p.origin.reader.EntryAt(p.origin.reader.Lookup(name))
				if entry := p.entries[name]; !entry.isJSON && knownLane(name) {
					entry.contentType, entry.tagBits = info.ContentType, info.TagBits
				}
			}
		}
		for _, name := range names {
			if !there[name] {
				added = append(added, name)
			}
		}
		names = before
		last := len(before)
		if last > 0 && before[last-1] == MetaProvenance {
			last--
		}
		names = slices.Insert(slices.Clone(before), last, added...)
	}
	entries := make([]*plannedEntry, len(names))
	for i, name := range names {
		entries[i] = p.entries[name]
	}
	return entries
}

// knownLane tells whether the format defines the block, so that its content type is not the caller's.
func knownLane(name string) bool {
	return fileOrder[placeOf(name)] != "" && !strings.HasPrefix(name, "meta/")
}

// --- channels

func (p *planner) addChannels() error {
	lanes := p.ep.lanes()
	for _, at := range inFileOrder(lanes) {
		c := lanes[at]
		block := at.blockName()
		if c == nil {
			return fault.Located(invalid("the channel is nil"), "", block)
		}
		if p.isHere(c) && addressOf(c.names.data, p.origin.rows[c.names.data]) == at {
			block = c.names.data
		} else if err := at.checkIDs(); err != nil {
			return fault.Located(err, "", block)
		}
		id, about := block, shard.Object{}
		if at.lane == laneSignal || at.lane == laneAction {
			id = at.keys[0]
		} else if addressOf(block, nil) != at {
			for i, field := range []string{"channel", "model", "type"} {
				if at.keys[i] != "" {
					about[field] = at.keys[i]
				}
			}
		}
		if err := p.addChannel(block, id, c, about); err != nil {
			if p.lenient {
				continue
			}
			return fault.Located(err, "", block)
		}
	}
	return nil
}

// isHere tells whether a channel is still the block of the file that the episode was loaded from.
func (p *planner) isHere(c *Channel) bool { return p.origin != nil && p.holds(c.data, c.names.data) }

// holds tells whether a block is an entry of the file that the episode was loaded from.
func (p *planner) holds(b Block, name string) bool {
	entry, isEntry := b.(*entryBlock)
	return p.origin != nil && isEntry && entry.reader == p.origin.reader && entry.name == name
}

func (a address) checkIDs() error {
	count := map[string]int{laneSignal: 1, laneAction: 1, laneOmen: 2, laneUncert: 3}[a.lane]
	for i := range count {
		if a.lane == laneUncert && i == 1 && a.keys[i] == "" {
			continue
		}
		if err := checkID(a.keys[i]); err != nil {
			return err
		}
	}
	return nil
}

// addChannel plans the blocks of a channel and its row.
func (p *planner) addChannel(block, id string, c *Channel, about shard.Object) error {
	isHere := p.isHere(c) && c.names.data == block
	if _, hasNoClock := c.times.(brokenBlock); c.problem != nil || hasNoClock {
		if isHere && c.row != nil {
			return p.keepUnreadable(block, c) // it goes back as it came
		}
		if c.problem != nil {
			return c.problem
		}
	}
	if err := p.checkLength(block, c); err != nil {
		return err
	}
	fields, err := c.rowFor(id, block, p.ep.LengthT)
	if err != nil {
		return err
	}
	maps.Copy(fields, about)
	if err := p.addIndex(block, c, fields, isHere); err != nil {
		return err
	}
	if c.times != nil {
		if fields["time_block"], err = p.addOwnClock(block, c, isHere); err != nil {
			return err
		}
	}
	if err := p.addData(block, c); err != nil {
		return err
	}
	if isHere && c.inferred {
		return nil // a guess is not a description
	}
	if !(isHere && c.row != nil) {
		if err := checkRow(fields); err != nil {
			return err
		}
	}
	p.rows[block] = fields
	return nil
}

// checkRow makes sure that readers accept a row.
func checkRow(fields shard.Object) error {
	text, err := shard.CanonicalJSON(fields)
	if err != nil {
		return err
	}
	parsed, err := shard.ParseObject(text)
	if err == nil {
		_, err = parseRow(parsed, "")
	}
	if err != nil {
		e := invalid("readers would refuse the description of the channel")
		e.Err = err
		return e
	}
	return nil
}

// keepUnreadable keeps a channel that breaks a rule as its file has it, with the blocks that belong to it.
func (p *planner) keepUnreadable(block string, c *Channel) error {
	p.rows[block] = c.row.fields
	return p.keepBlocks(block, c.names.offsets, c.names.frames, c.names.times)
}

// keepBlocks keeps those of some blocks that the origin has, and that no other channel has kept.
func (p *planner) keepBlocks(names ...string) error {
	for _, name := range names {
		if !p.origin.reader.HasEntry(name) || p.entries[name] != nil || (stepBlocks[name] && name != names[0]) {
			continue
		}
		if err := p.addArray(name, newEntryBlock(p.origin.reader, name), U8, 1); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) checkLength(block string, c *Channel) error {
	steps := p.ep.LengthT
	if c.Length < 0 || c.data == nil {
		return c.check()
	}
	if c.StartNS != nil && c.SamplingRateHz <= 0 && c.row == nil {
		return invalid("a regular clock needs a rate: set SamplingRateHz together with StartNS")
	}
	if c.layout() == Dense {
		step, fits := stepBytes(c.DType, c.Shape)
		wanted, isCounted := multiply(int64(c.Length), step)
		if _, known := dtypeSizes[c.DType]; !known || !fits || !isCounted || wanted != c.data.Size() {
			e := invalid("the data does not have the size that its type, shape and length make")
			e.Expected, e.Found = fmt.Sprintf("%d times %s", c.Length, shapeText(c.DType, c.Shape)), fmt.Sprintf("%d bytes", c.data.Size())
			return e
		}
	}
	isMore := c.Length == steps+1 && (mayHaveOneMore(block) || placeOf(block) == placeOf(""))
	if c.HasOwnClock() || c.Length == steps || isMore || c.anyLength {
		return nil
	}
	e := invalid("the channel has another length than the episode, and no clock of its own")
	e.Expected, e.Found = number(steps), number(c.Length)
	return e
}

// addIndex plans the offsets and frames of a ragged, text or video channel.
func (p *planner) addIndex(block string, c *Channel, fields shard.Object, isHere bool) error {
	if c.layout() == Dense {
		return nil
	}
	if !isHere {
		if err := c.check(); err != nil {
			return err
		}
	}
	plan := func(field, lane, loaded string, stored Block, parsed func() []int64, step int64) error {
		name, content := lane+"/"+block, stored
		if isHere && loaded != "" {
			name = loaded
		} else {
			content = int64Block(parsed())
		}
		fields[field] = name
		if p.holds(content, name) && p.entries[name] != nil {
			return nil // two channels may share it
		}
		return p.addArray(name, content, I64, step)
	}
	if err := plan("offsets_block", laneOffsets, c.names.offsets, c.offsets, func() []int64 { return c.parsed.offsets }, 8); err != nil {
		return err
	}
	if c.layout() != Video {
		return nil
	}
	if isHere {
		if c.frames == nil {
			return nil
		}
	} else if c.parsed.frames.isPlain() && (c.frames == nil || c.parts != nil) {
		return nil
	}
	return plan("frames_block", laneFrames, c.names.frames, c.frames, func() []int64 { return c.parsed.frames.table() }, 16)
}

func (x *frameIndex) isPlain() bool { return isPlainFrames(x.table()) }

func (x *frameIndex) table() []int64 {
	table := make([]int64, 0, 2*len(x.steps))
	for i, step := range x.steps {
		table = append(table, step, int64(x.flags[i]))
	}
	return table
}

func (p *planner) addData(block string, c *Channel) error {
	entry := &plannedEntry{name: block, content: c.data, dtype: c.DType, step: 1, isEncoded: c.layout() == Video}
	if c.layout() == Dense || c.layout() == Ragged {
		if step, fits := stepBytes(c.DType, c.Shape); fits {
			entry.step = max(step, 1)
		}
	}
	return p.add(entry)
}

// addOwnClock plans the clock of a channel and returns its name. Channels with equal timestamps share one.
func (p *planner) addOwnClock(block string, c *Channel, isHere bool) (string, error) {
	times, err := c.read(c.times, c.names.times)
	if err != nil {
		return "", err
	}
	if int64(len(times)) != 8*int64(c.Length) {
		e := invalid("the channel has another number of timestamps than entries")
		e.Expected, e.Found = number(c.Length), number(len(times)/8)
		return "", e
	}
	name := ""
	if isHere && p.holds(c.times, c.names.times) {
		name = c.names.times // shared or not, as its file has it
		if name == BlockTimestamps && p.ep.TimestampsNS != nil && p.holds(p.ep.TimestampsNS.data, name) {
			return name, nil
		}
		if known, there := p.clocks[name]; there && known == string(times) {
			return name, nil
		}
		if name == BlockTicks || name == BlockTimestamps || p.entries[name] != nil {
			name = ""
		}
	} else {
		for _, known := range sortedKeys(p.clocks) {
			if p.clocks[known] == string(times) {
				return known, nil
			}
		}
	}
	if name == "" {
		name = laneTime + "/" + block
	}
	base := name
	for i := 2; p.entries[name] != nil; i++ {
		name = base + "/" + number(i)
	}
	p.clocks[name] = string(times)
	return name, p.addArray(name, memoryBlock(times), I64, 8)
}
