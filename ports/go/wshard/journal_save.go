package wshard

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	smallestCompressed = 257
	seekTableBytes     = 17
	seekRowBytes       = 12
	largestAgain       = 64 << 20 // of a run that is cut, and then compressed again
	streamBuffer       = 1 << 16
)

// save writes the episode of a journal in canonical form, in little memory: values are copied, and compressed runs
// are copied as they are stored (section 15 of spec/wshard.md). The file appears under its name when it is complete.
func (j *journal) save(ep *Episode, path string, sync bool) error {
	p := &journalPlan{ep: ep, firstTick: j.firstStep, clocks: map[[sha256.Size]byte]string{}}
	if err := p.plan(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return fault.IO("cannot write", path, err)
	}
	slices.SortFunc(p.entries, func(a, b plannedRun) int { return compareInFile(a.name, b.name) })
	names := make([]string, len(p.entries))
	for i, one := range p.entries {
		names[i] = one.name
	}
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{
		Role: shard.RoleWSHARD, Alignment: 64, Names: names, NoSync: !sync,
	})
	if err != nil {
		return err
	}
	for _, one := range p.entries {
		if err := one.write(w, one.name); err != nil {
			_ = w.Close()
			return err
		}
	}
	return w.Finalize()
}

// plannedRun is one entry of the file to be.
type plannedRun struct {
	name  string
	write func(w *shard.ShardStreamWriter, name string) error
}

// journalPlan lays out the file of a recorded episode.
type journalPlan struct {
	ep *Episode
	// firstTick is the number of the first step; steps that were lost before it leave a gap in the ticks.
	firstTick int64
	entries   []plannedRun
	rows      []shard.Object
	// clocks are those of channels, by the digest of their times.
	clocks map[[sha256.Size]byte]string
}

func (p *journalPlan) add(name string, write func(*shard.ShardStreamWriter, string) error) {
	p.entries = append(p.entries, plannedRun{name, write})
}

func (p *journalPlan) plan() error {
	// In order of lanes and names: who shares a clock must not depend on the order of the journal.
	for _, lane := range []struct {
		name     string
		channels map[string]*Channel
	}{{laneSignal, p.ep.Observations}, {laneAction, p.ep.Actions}} {
		for _, id := range sortedKeys(lane.channels) {
			if err := p.addChannel(id, lane.name+"/"+id, lane.channels[id]); err != nil {
				return err
			}
		}
	}
	if p.ep.Rewards != nil {
		if err := p.addRewards(p.ep.Rewards); err != nil {
			return err
		}
	}
	p.addEnds(p.ep.Terminations, p.ep.Truncations)
	p.addTicks()
	if c := p.ep.TimestampsNS; c != nil {
		p.addBlock(BlockTimestamps, c.data)
	}
	for _, name := range sortedKeys(p.ep.Labels) {
		label := p.ep.Labels[name]
		p.addJSON(laneLabel+"/"+name, labelFields(label.unit, label.intervals))
	}
	slices.SortStableFunc(p.rows, func(a, b shard.Object) int {
		x, y := rowPlace(a["signal_block"].(string)), rowPlace(b["signal_block"].(string))
		if x != y {
			return x - y
		}
		return strings.Compare(a["id"].(string), b["id"].(string))
	})
	list := make([]any, len(p.rows))
	for i, one := range p.rows {
		list[i] = one
	}
	p.addJSON(MetaWShard, p.ep.wshardFields())
	p.addJSON(MetaEpisode, p.ep.episodeFields())
	p.addJSON(MetaChannels, shard.Object{"channels": list})
	return nil
}

func (p *journalPlan) addJSON(name string, fields shard.Object) {
	p.add(name, func(w *shard.ShardStreamWriter, name string) error {
		text, err := shard.CanonicalJSON(fields)
		if err != nil {
			return fault.Located(invalid("this is not JSON: %v", err), "", name)
		}
		return w.WriteEntry(name, text, shard.ContentTypeJSON)
	})
}

func (p *journalPlan) addBlock(name string, block Block) {
	p.add(name, func(w *shard.ShardStreamWriter, name string) error { return writeBlock(w, name, block) })
}

// addStream adds a raw entry that is computed while it is written.
func (p *journalPlan) addStream(name string, size int64, open func() io.Reader) {
	p.add(name, func(w *shard.ShardStreamWriter, name string) error {
		return w.WriteStream(name, uint64(size), open(), shard.EntryOptions{})
	})
}

func (p *journalPlan) addChannel(id, block string, c *Channel) error {
	fields, err := c.rowFor(id, block, p.ep.LengthT)
	if err != nil {
		return err
	}
	if c.offsets != nil {
		fields["offsets_block"] = c.names.offsets
		p.addBlock(c.names.offsets, c.offsets)
	}
	if c.times != nil {
		if fields["time_block"], err = p.clock(block, c.times); err != nil {
			return err
		}
	}
	p.addBlock(block, c.data)
	p.rows = append(p.rows, fields)
	return nil
}

// clock gives the name of a channel's clock, which channels with equal times share.
func (p *journalPlan) clock(block string, times Block) (string, error) {
	hash := sha256.New()
	if _, err := io.Copy(hash, blockReader(times)); err != nil {
		return "", err
	}
	digest := [sha256.Size]byte(hash.Sum(nil))
	name, known := p.clocks[digest]
	if !known {
		name = laneTime + "/" + block
		p.clocks[digest] = name
		p.addBlock(name, times)
	}
	return name, nil
}

// --- rewards

// addRewards adds them rounded to f32, and as they are unless nothing was lost (W-END-4).
func (p *journalPlan) addRewards(c *Channel) error {
	if c.DType == F32 && c.names.data == BlockReward {
		p.addBlock(BlockReward, c.data)
		return p.describeReward(c)
	}
	p.addStream(BlockReward, 4*int64(c.Length), func() io.Reader { return newRounder(c) })
	isExact := c.DType == F64 && c.names.data == BlockReward
	if isExact {
		values, err := newRounder(c).allExact()
		if err != nil {
			return err
		}
		isExact = values
	}
	if isExact {
		return p.describeReward(c)
	}
	return p.addChannel(BlockRewardExact, BlockRewardExact, c)
}

// describeReward adds a row for reward if it says more than the four fields that every row has.
func (p *journalPlan) describeReward(c *Channel) error {
	fields, err := c.rowFor(BlockReward, BlockReward, p.ep.LengthT)
	if err != nil {
		return err
	}
	fields["dtype"] = string(F32)
	if len(fields) > 4 {
		p.rows = append(p.rows, fields)
	}
	return nil
}

// rounder reads rewards of any type as f32.
type rounder struct {
	source *bufio.Reader
	dtype  DType
	value  []byte
}

func newRounder(c *Channel) *rounder {
	return &rounder{bufio.NewReaderSize(blockReader(c.data), streamBuffer), c.DType, make([]byte, c.DType.Size())}
}

// next gives the next value, rounded once.
func (r *rounder) next() (float32, error) {
	if _, err := io.ReadFull(r.source, r.value); err != nil {
		return 0, err
	}
	switch r.dtype { // directly: by way of a 64-bit float they would be rounded twice
	case I64:
		return float32(int64(binary.LittleEndian.Uint64(r.value))), nil
	case U64:
		return float32(binary.LittleEndian.Uint64(r.value)), nil
	}
	return float32(floatAt(r.dtype, r.value)), nil
}

func (r *rounder) Read(out []byte) (int, error) {
	count := 0
	for ; count+4 <= len(out); count += 4 {
		value, err := r.next()
		if err != nil {
			if err == io.EOF && count > 0 {
				return count, nil
			}
			return count, err
		}
		binary.LittleEndian.PutUint32(out[count:], math.Float32bits(value))
	}
	if count == 0 {
		return 0, io.ErrShortBuffer
	}
	return count, nil
}

// allExact tells whether all values of f64, bit by bit, come back from f32.
func (r *rounder) allExact() (bool, error) {
	for {
		value, err := r.next()
		if err == io.EOF {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if math.Float64bits(float64(value)) != binary.LittleEndian.Uint64(r.value) {
			return false, nil
		}
	}
}

// --- ends and ticks

// addEnds adds done, and the two kinds of ends if both are known (W-END-2).
func (p *journalPlan) addEnds(terminations, truncations *Channel) {
	if terminations == nil && truncations == nil {
		return
	}
	if truncations == nil && terminations.names.data == BlockDone {
		p.addBlock(BlockDone, terminations.data)
		return
	}
	steps := int64(p.ep.LengthT)
	zeros := func() io.Reader { return zeroReader{} }
	open := func(c *Channel) func() io.Reader {
		if c == nil {
			return zeros
		}
		return func() io.Reader { return blockReader(c.data) }
	}
	first, second := open(terminations), open(truncations)
	p.addStream(BlockDone, steps, func() io.Reader {
		return &unionReader{bufio.NewReaderSize(first(), streamBuffer), bufio.NewReaderSize(second(), streamBuffer)}
	})
	p.addStream(BlockTerminated, steps, first)
	if truncations != nil {
		p.addBlock(BlockTruncated, truncations.data)
	}
}

type zeroReader struct{}

func (zeroReader) Read(out []byte) (int, error) {
	clear(out)
	return len(out), nil
}

// unionReader gives 1 where one of two readers gives anything but 0.
type unionReader struct{ a, b *bufio.Reader }

func (r *unionReader) Read(out []byte) (int, error) {
	for i := range out {
		first, err := r.a.ReadByte()
		if err != nil {
			return i, err
		}
		second, err := r.b.ReadByte()
		if err != nil {
			return i, err
		}
		out[i] = boolByte(first != 0 || second != 0)
	}
	return len(out), nil
}

// addTicks numbers the steps, in a chunk as the whole recording counts them.
func (p *journalPlan) addTicks() {
	steps, first := int64(p.ep.LengthT), p.firstTick
	if first > math.MaxInt32+1-steps {
		return // they do not fit into time/ticks
	}
	p.addStream(BlockTicks, 4*steps, func() io.Reader { return &tickReader{uint32(first)} })
}

type tickReader struct{ next uint32 }

func (r *tickReader) Read(out []byte) (int, error) {
	count := 0
	for ; count+4 <= len(out); count += 4 {
		binary.LittleEndian.PutUint32(out[count:], r.next)
		r.next++
	}
	if count == 0 {
		return 0, io.ErrShortBuffer
	}
	return count, nil
}

// --- blocks

func blockReader(b Block) io.Reader {
	if runs, ok := b.(*journalBlock); ok {
		return runs.reader()
	}
	data, err := readBlock(b)
	if err != nil {
		return errorReader{err}
	}
	return bytes.NewReader(data)
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

// writeBlock writes a block raw, or copies its compressed runs where an entry may hold them as they are (S-CMP-2,
// S-CMP-10).
func writeBlock(w *shard.ShardStreamWriter, name string, b Block) error {
	if runs, ok := b.(*journalBlock); ok && runs.channel.codec == shard.CodecZstd {
		stored, err := runs.storedRuns()
		if err != nil {
			return fault.Located(err, "", name)
		}
		if stored != nil {
			return w.WriteRuns(name, stored, shard.EntryOptions{Filters: runs.channel.filters})
		}
	}
	return w.WriteStream(name, uint64(b.Size()), blockReader(b), shard.EntryOptions{})
}

// storedRuns gives the compressed runs of a block, the last of them compressed again if the block ends within it. It gives
// nil if the entry must be raw.
func (b *journalBlock) storedRuns() ([]shard.StoredRun, error) {
	if b.size < smallestCompressed || b.size > largestRun {
		return nil, nil
	}
	c := b.channel
	count := c.find(b.size-1) + 1
	runs := make([]shard.StoredRun, count)
	total := int64(0)
	for i := range runs {
		run := c.runs[i]
		runs[i] = shard.StoredRun{
			Source: b.journal.frames.source, Offset: run.offset, StoredSize: run.stored,
			ContentSize: uint32(c.contentSize(i)), CRC32C: run.crc,
		}
		total += int64(run.stored)
	}
	if last := count - 1; c.runs[last].end > b.size {
		content := b.size - c.start(last)
		if content > largestAgain {
			return nil, nil
		}
		data, err := b.ReadRange(b.size-content, b.size)
		if err != nil {
			return nil, err
		}
		frame, err := shard.AppendFrame(nil, data, 0, c.filters)
		if err != nil {
			return nil, err
		}
		total += int64(len(frame)) - int64(runs[last].StoredSize)
		runs[last] = shard.StoredRun{
			Source: bytes.NewReader(frame), StoredSize: uint32(len(frame)), ContentSize: uint32(content),
			CRC32C: shard.ComputeChecksum(data),
		}
	}
	if count > 1 {
		total += seekTableBytes + seekRowBytes*int64(count)
	}
	if c.filters != nil {
		total += 8 + int64(len(c.filters.Description()))
	}
	if total >= b.size {
		return nil, nil
	}
	return runs, nil
}
