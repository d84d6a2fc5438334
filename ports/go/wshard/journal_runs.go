package wshard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const offsetBytes = 8

// channelRuns is one channel of a journal: its row, and where its runs are.
type channelRuns struct {
	row *row
	// stepBytes is the size of an entry; of an item if the channel is ragged or text.
	stepBytes int64
	filters   *shard.Filters
	codec     shard.Codec // of all runs
	// offsets are those of a ragged or text channel, and owner is the channel that offsets belong to.
	offsets, owner *channelRuns
	// filled is with how many entries the recorder fills the channel for the steps before it.
	filled int64
	// held counts the entries in all runs; the items of a ragged or text channel.
	held       int64
	lastOffset int64
	runs       []storedRun
}

// storedRun is where a run is in the journal; 24 bytes, because a recording of hours has hundreds of thousands.
type storedRun struct {
	offset int64 // of the stored bytes
	end    int64 // of the content, in the content of all runs
	stored uint32
	crc    uint32 // of the content
}

func (c *channelRuns) isRagged() bool {
	layout := c.row.layout()
	return layout == Ragged || layout == Text
}

// entries counts those that are complete: a ragged or text channel has one fewer than offsets (J-3).
func (c *channelRuns) entries() int64 {
	if c.offsets == nil {
		return c.held
	}
	return max(0, c.offsets.held-1)
}

// isLeftOut tells whether the recorder died before it had filled the channel (J-3).
func (c *channelRuns) isLeftOut() bool {
	if c.owner != nil {
		return c.owner.isLeftOut()
	}
	return c.entries() < c.filled
}

// followsSteps tells whether the channel has one entry for each step.
func (c *channelRuns) followsSteps() bool {
	block := c.row.block
	return c.owner == nil && c.row.text("time_block") == "" && (flatBlocks[block] || !strings.HasPrefix(block, laneTime+"/"))
}

// start is where the content of a run starts in the content of all.
func (c *channelRuns) start(number int) int64 {
	if number == 0 {
		return 0
	}
	return c.runs[number-1].end
}

func (c *channelRuns) contentSize(number int) int64 { return c.runs[number].end - c.start(number) }

// find gives the run that holds a byte of the content.
func (c *channelRuns) find(at int64) int {
	return sort.Search(len(c.runs), func(i int) bool { return c.runs[i].end > at })
}

// --- taking runs

func (j *journal) takeRun(f journalFrame) error {
	if int(f.channel) >= len(j.channels) {
		return broken(shard.CodeBadHeader, "J-RUN-1", "a run belongs to the unknown channel %d", f.channel)
	}
	c := j.channels[f.channel]
	if err := j.checkRun(c, f); err != nil {
		return fault.Located(err, "", c.row.block)
	}
	c.codec = f.codec
	c.held += int64(f.entries)
	c.runs = append(c.runs, storedRun{f.offset, c.start(len(c.runs)) + int64(f.contentSize), f.storedSize, f.contentCRC})
	return nil
}

func (j *journal) checkRun(c *channelRuns, f journalFrame) error {
	isFiltered := c.filters != nil
	if (len(c.runs) > 0 && f.codec != c.codec) || (isFiltered && f.codec != shard.CodecZstd) {
		return broken(shard.CodeBadHeader, "J-RUN-2", "a run has another codec than the runs before it, or than its filters need")
	}
	if size := uint64(f.entries) * uint64(c.stepBytes); f.entries == 0 || size != uint64(f.contentSize) {
		return sizeMismatch("J-RUN-3", "a run does not hold its entries", size, f.contentSize)
	}
	if (isFiltered || c.row.layout() == Text) && f.contentSize > largestLimited {
		return sizeMismatch("J-RUN-3", "a filtered run, or one of text, is too large", "at most 64 MiB", f.contentSize)
	}
	if j.decodes && f.codec == shard.CodecZstd {
		if err := j.checkContent(c, f); err != nil {
			return asRun(err)
		}
	}
	if c.owner != nil {
		return j.checkOffsets(c, f)
	}
	return nil
}

// asRun gives an error about stored content the rule of runs.
func asRun(err error) error {
	var known *shard.Error
	if !errors.As(err, &known) || known.Code == shard.CodeIOError {
		return err
	}
	found := *known
	found.Rule = "J-RUN-4"
	return &found
}

// checkContent decodes a run, in memory for its stored bytes and its window (J-RUN-4).
func (j *journal) checkContent(c *channelRuns, f journalFrame) error {
	stored, err := j.frames.stored(f)
	if err != nil {
		return err
	}
	size := int64(f.contentSize)
	if err := shard.CheckFrame(stored, uint64(size)); err != nil {
		return err
	}
	var checksum uint32
	if c.filters != nil { // such runs are small
		content := make([]byte, size)
		if err := shard.DecodeFrame(stored, content, c.filters); err != nil {
			return err
		}
		checksum = shard.ComputeChecksum(content)
	} else if checksum, err = checksumOfFrame(stored, uint64(size)); err != nil {
		return err
	}
	if checksum != f.contentCRC {
		return broken(shard.CodeChecksumMismatch, "J-RUN-4", "a run decodes to other bytes")
	}
	return nil
}

func checksumOfFrame(stored []byte, size uint64) (uint32, error) {
	content, err := shard.NewFrameReader(bytes.NewReader(stored), size)
	if err != nil {
		return 0, err
	}
	defer content.Close()
	checksum := uint32(0)
	piece := make([]byte, min(size+1, 1<<16))
	for {
		count, err := content.Read(piece)
		checksum = shard.UpdateChecksum(checksum, piece[:count])
		if err == io.EOF {
			return checksum, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// checkOffsets checks J-RAG-1 to J-RAG-3 and keeps the last offset.
func (j *journal) checkOffsets(c *channelRuns, f journalFrame) error {
	if f.codec != shard.CodecNone {
		return broken(shard.CodeBadHeader, "J-RAG-1", "a run of offsets is compressed")
	}
	last, isFirst := c.lastOffset, len(c.runs) == 0
	err := j.frames.pieces(f, func(piece []byte) error {
		for ; len(piece) > 0; piece = piece[offsetBytes:] {
			offset := int64(binary.LittleEndian.Uint64(piece))
			if isFirst && offset != 0 {
				return broken(shard.CodeBadValue, "J-RAG-2", "the first offset is %d, not 0", offset)
			}
			if offset < last {
				return broken(shard.CodeBadValue, "J-RAG-2", "offsets run backwards: %d after %d", offset, last)
			}
			last, isFirst = offset, false
		}
		return nil
	})
	if err != nil {
		return err
	}
	if last > c.owner.held {
		return broken(shard.CodeBadValue, "J-RAG-3", "an offset counts %d items of %d", last, c.owner.held)
	}
	c.lastOffset = last
	return nil
}

// --- reading content

// content reads and decodes one run, which was checked.
func (j *journal) content(c *channelRuns, number int) ([]byte, error) {
	run := c.runs[number]
	data, err := j.frames.read(run.offset, make([]byte, run.stored))
	if err != nil {
		return nil, err
	}
	if c.codec == shard.CodecZstd {
		stored := data
		data = make([]byte, c.contentSize(number))
		if err := shard.CheckFrame(stored, uint64(len(data))); err != nil {
			return nil, asRun(err)
		}
		if err := shard.DecodeFrame(stored, data, c.filters); err != nil {
			return nil, asRun(err)
		}
	}
	if shard.ComputeChecksum(data) != run.crc {
		return nil, broken(shard.CodeChecksumMismatch, "J-RUN-4", "a run has changed since it was written")
	}
	return data, nil
}

// openRun reads the content of a run in little memory.
func (j *journal) openRun(c *channelRuns, number int) (io.ReadCloser, error) {
	run := c.runs[number]
	section := io.NewSectionReader(j.frames.source, run.offset, int64(run.stored))
	if c.codec == shard.CodecNone {
		return io.NopCloser(section), nil
	}
	if c.filters != nil { // such runs are small
		content, err := j.content(c, number)
		return io.NopCloser(bytes.NewReader(content)), err
	}
	content, err := shard.NewFrameReader(section, uint64(c.contentSize(number)))
	if err != nil {
		return nil, asRun(err)
	}
	return frameCloser{content}, nil
}

type frameCloser struct{ *shard.FrameReader }

func (f frameCloser) Close() error {
	f.FrameReader.Close()
	return nil
}

// journalBlock is the first bytes of the content of all runs of a channel.
type journalBlock struct {
	journal *journal
	channel *channelRuns
	size    int64
}

func (b *journalBlock) Size() int64 { return b.size }

func (b *journalBlock) ReadRange(start, end int64) ([]byte, error) {
	if start < 0 || start > end || end > b.size {
		return nil, invalid("the range is outside the block")
	}
	out := make([]byte, end-start)
	if err := b.readInto(start, out); err != nil {
		return nil, fault.Located(err, b.journal.path, b.channel.row.block)
	}
	return out, nil
}

func (b *journalBlock) readInto(start int64, out []byte) error {
	c := b.channel
	for number := c.find(start); len(out) > 0; number++ {
		from := start - c.start(number)
		count := min(int64(len(out)), c.contentSize(number)-from)
		content, err := b.journal.openRun(c, number)
		if err != nil {
			return err
		}
		if _, err = io.CopyN(io.Discard, content, from); err == nil {
			_, err = io.ReadFull(content, out[:count])
		}
		_ = content.Close()
		if err != nil {
			return asRun(err)
		}
		start, out = start+count, out[count:]
	}
	return nil
}

// reader gives the content from the start, in little memory.
func (b *journalBlock) reader() io.Reader { return &runsReader{block: b, left: b.size} }

type runsReader struct {
	block  *journalBlock
	left   int64
	number int
	open   io.ReadCloser
}

// Read fills out, as far as there is content: runs may be small.
func (r *runsReader) Read(out []byte) (int, error) {
	count := 0
	for count < len(out) && r.left > 0 {
		if r.open == nil {
			content, err := r.block.journal.openRun(r.block.channel, r.number)
			if err != nil {
				return count, err
			}
			r.open, r.number = content, r.number+1
		}
		got, err := r.open.Read(out[count:min(int64(len(out)), int64(count)+r.left)])
		count, r.left = count+got, r.left-int64(got)
		if err == io.EOF || r.left == 0 {
			_ = r.open.Close()
			r.open, err = nil, nil
		}
		if err != nil {
			return count, asRun(err)
		}
	}
	if count == 0 && len(out) > 0 {
		return 0, io.EOF
	}
	return count, nil
}

// --- text

// badText is a frame that completes a string that is not UTF-8.
type badText struct {
	start int64
	err   error
}

// firstBadText finds the first frame that breaks J-RAG-4; nil if none does. It goes through one channel after the other,
// so that each run is decoded once and one of them is in memory at a time.
func (j *journal) firstBadText() (*badText, error) {
	var first *badText
	for _, c := range j.channels {
		if c.row.layout() != Text {
			continue
		}
		bad, err := j.badTextOf(c)
		if err != nil {
			return nil, err
		}
		if bad != nil && (first == nil || bad.start < first.start) {
			first = bad
		}
	}
	return first, nil
}

func (j *journal) badTextOf(c *channelRuns) (*badText, error) {
	check := textCheck{journal: j, channel: c, number: -1}
	for _, run := range c.offsets.runs {
		f := journalFrame{frameHead{storedSize: run.stored}, run.offset - frameHeadSize, run.offset}
		err := j.frames.pieces(f, func(piece []byte) error {
			for ; len(piece) > 0; piece = piece[offsetBytes:] {
				if err := check.next(int64(binary.LittleEndian.Uint64(piece))); err != nil {
					return err
				}
			}
			return nil
		})
		var rule *shard.Error
		if errors.As(err, &rule) && rule.Rule == "J-RAG-4" {
			return &badText{f.start, fault.Located(err, "", c.row.block)}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// textCheck looks at the strings of a channel in order.
type textCheck struct {
	journal *journal
	channel *channelRuns
	at      int64
	number  int // the run in memory
	content []byte
}

// next checks the string from the last end to the next one. A string may lie in several runs.
func (t *textCheck) next(end int64) error {
	var held [utf8.UTFMax]byte // the start of a character that the next run continues
	count := 0
	for t.at < end {
		number := t.number
		if number < 0 || t.channel.runs[number].end <= t.at {
			number = t.channel.find(t.at)
		}
		if number != t.number {
			content, err := t.journal.content(t.channel, number)
			if err != nil {
				return err
			}
			t.number, t.content = number, content
		}
		start := t.channel.start(number)
		piece := t.content[t.at-start : min(end-start, int64(len(t.content)))]
		t.at += int64(len(piece))
		for count > 0 && len(piece) > 0 { // finish the character
			held[count], piece = piece[0], piece[1:]
			count++
			if utf8.FullRune(held[:count]) {
				if !utf8.Valid(held[:count]) {
					return notText()
				}
				count = 0
			}
		}
		whole := wholeRunes(piece)
		if !utf8.Valid(piece[:whole]) {
			return notText()
		}
		count += copy(held[count:], piece[whole:])
	}
	if count > 0 {
		return notText()
	}
	return nil
}

func notText() error {
	return broken(shard.CodeBadValue, "J-RAG-4", "a string is not UTF-8")
}

// wholeRunes is how much of some bytes does not end within a character.
func wholeRunes(data []byte) int {
	for back := 1; back <= min(utf8.UTFMax-1, len(data)); back++ {
		if last := data[len(data)-back:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return len(data)
			}
			return len(data) - back
		}
	}
	return len(data)
}
