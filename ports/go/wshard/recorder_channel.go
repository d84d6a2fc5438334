package wshard

import (
	"fmt"
	"unicode/utf8"
	"unsafe"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// The most bytes of one entry. A run holds largestBuffer and one entry more, and must keep J-FRM-9 and J-RUN-3.
const (
	largestRaggedEntry = largestRun / 2
	largestTextEntry   = largestLimited / 2
)

// ChannelDef declares a channel of a recording.
type ChannelDef struct {
	// ID is the name of the channel.
	ID string
	// IsAction puts the channel into action/ instead of signal/.
	IsAction bool
	// DType is the stored type; F32 if it is empty, and U8 for text.
	DType DType
	// Shape is that of one step, or of one item if the layout is Ragged.
	Shape []int
	// Layout is Dense if it is empty; or Ragged, or Text.
	Layout Layout
	// OwnClock is set for a channel whose entries have times of their own: record them with Write.
	OwnClock bool
	// SamplingRateHz is the entries per second; 0 if it is not known.
	SamplingRateHz float64
	// Horizon is H if each step is a chunk of H steps; Shape then starts with H.
	Horizon        int
	Modality, Unit string
	// Fields has any other fields for the description of the channel.
	Fields shard.Object
}

// Bytes gives the values as the little-endian bytes that a recording takes. It does not copy them on a machine that
// stores them so.
func Bytes[T Value](values []T) []byte {
	size := int(unsafe.Sizeof(*new(T)))
	view := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*size)
	if size == 1 || isLittleEndian {
		return view
	}
	swapped := make([]byte, len(view))
	for at := 0; at < len(view); at += size {
		for i := range size {
			swapped[at+i] = view[at+size-1-i]
		}
	}
	return swapped
}

var isLittleEndian = func() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}()

// recordedChannel is a channel while it is recorded.
type recordedChannel struct {
	// key is what the channel is called in steps: its id, or its block if both lanes have that id.
	key, block string
	layout     Layout
	dtype      DType
	// entryBytes is the size of an entry; of an item if the layout is Ragged or Text.
	entryBytes int
	row        shard.Object
	// number is that of its row in the journal; its offsets have the next one.
	number int
	// isChosen is set once the first run has shown how to store the channel, and isCompressed tells how.
	isChosen, isCompressed bool
	// filters are applied to runs before they are compressed, and isAnnounced tells whether the journal knows them.
	filters     *shard.Filters
	isAnnounced bool
	// items counts those in the current journal, and hasOffsets tells whether their first offset is there.
	items      int64
	hasOffsets bool
}

func (c *recordedChannel) isRagged() bool { return c.layout != Dense }

// rows is what the journal says about it.
func (c *recordedChannel) rows() []any {
	if !c.isRagged() {
		return []any{c.row}
	}
	name := offsetsName(c.block)
	return []any{c.row, shard.Object{"dtype": string(I64), "id": name, "shape": []any{}, "signal_block": name}}
}

// flatChannel is a field of a step that has no name of its own.
func flatChannel(block string, dtype DType) *recordedChannel {
	return &recordedChannel{
		key: block, block: block, layout: Dense, dtype: dtype, entryBytes: dtype.Size(),
		row: shard.Object{"dtype": string(dtype), "id": block, "shape": []any{}, "signal_block": block},
	}
}

// recorded checks a declaration.
func (d ChannelDef) recorded() (*recordedChannel, error) {
	lane := laneSignal
	if d.IsAction {
		lane = laneAction
	}
	block := lane + "/" + d.ID
	c, err := d.channel(block)
	return c, fault.Located(err, "", block)
}

func (d ChannelDef) channel(block string) (*recordedChannel, error) {
	if err := checkID(d.ID); err != nil {
		return nil, err
	}
	c := &recordedChannel{key: d.ID, block: block, layout: d.Layout}
	if c.layout == "" {
		c.layout = Dense
	}
	dtype := d.DType
	switch {
	case c.layout != Dense && c.layout != Ragged && c.layout != Text:
		return nil, invalid("the layout %.40q cannot be recorded", d.Layout)
	case dtype == "" && c.layout == Text:
		dtype = U8
	case dtype == "":
		dtype = F32
	}
	known, ok := ParseDType(string(dtype))
	if !ok {
		return nil, invalid("unknown dtype %.40q", d.DType)
	}
	if c.layout == Text && (known != U8 || len(d.Shape) > 0) {
		return nil, invalid("a text channel holds strings: it has no other dtype than u8, and no shape")
	}
	fields, err := (&Channel{
		DType: known, Shape: d.Shape, Layout: c.layout, Horizon: d.Horizon, SamplingRateHz: d.SamplingRateHz,
		Modality: d.Modality, Unit: d.Unit, Fields: d.Fields,
	}).rowFor(d.ID, block, 0)
	if err != nil {
		return nil, err
	}
	if c.isRagged() {
		fields["offsets_block"] = offsetsName(block)
	}
	if d.OwnClock {
		fields["time_block"] = laneTime + "/" + block
	}
	// As a reader of the journal will see it.
	text, err := shard.CanonicalJSON(fields)
	if err != nil {
		return nil, invalid("the description of the channel is not JSON: %v", err)
	}
	if c.row, err = shard.ParseObject(text); err != nil {
		return nil, err
	}
	if _, err := parseRow(c.row, ""); err != nil {
		return nil, invalid("the description of the channel is wrong: %v", err)
	}
	size, fits := stepBytes(known, d.Shape)
	if !fits || size < 1 || size > largestRun {
		e := invalid("one step of this channel is empty or too large")
		e.Expected, e.Found = fmt.Sprintf("1 to %d bytes", largestRun), fmt.Sprintf("%s %v", known, d.Shape)
		return nil, e
	}
	c.dtype, c.entryBytes = known, int(size)
	return c, nil
}

// check reports whether a value fits the channel.
func (c *recordedChannel) check(value []byte) error {
	switch c.layout {
	case Dense:
		if len(value) != c.entryBytes {
			return c.wrongValue("a value has another size than its channel", fmt.Sprintf("%d bytes", c.entryBytes), len(value))
		}
	case Ragged:
		if len(value)%c.entryBytes != 0 || len(value) > largestRaggedEntry {
			return c.wrongValue("a value is not a whole number of items, or too large",
				fmt.Sprintf("a multiple of %d bytes, at most %d", c.entryBytes, largestRaggedEntry), len(value))
		}
	case Text:
		if len(value) > largestTextEntry {
			return c.wrongValue("a text is too long", fmt.Sprintf("at most %d bytes", largestTextEntry), len(value))
		}
		if !utf8.Valid(value) {
			return fault.Located(invalid("a text is not UTF-8"), "", c.block)
		}
	}
	return nil
}

func (c *recordedChannel) wrongValue(problem, expected string, size int) error {
	e := invalid("%s", problem)
	e.Expected, e.Found = expected, fmt.Sprintf("%d bytes", size)
	return fault.Located(e, "", c.block)
}

// --- buffers

// stepBuffer is memory for the next run of each channel of a group.
type stepBuffer struct {
	group *channelGroup
	// values has the content of each run, and sizes the number of items of each entry of ragged and text channels.
	values [][]byte
	sizes  [][]int64
	count  int
	// ragged is the bytes of ragged and text channels.
	ragged int
	// since is when the first entry came, in nanoseconds of the recorder's clock.
	since int64
}

func newStepBuffer(g *channelGroup) *stepBuffer {
	b := &stepBuffer{group: g, values: make([][]byte, len(g.channels)), sizes: make([][]int64, len(g.channels))}
	size := 0
	for _, c := range g.channels {
		if !c.isRagged() {
			size += g.steps * c.entryBytes
		}
	}
	memory := make([]byte, size)
	for i, c := range g.channels {
		if c.isRagged() {
			b.sizes[i] = make([]int64, 0, g.steps)
			continue
		}
		end := g.steps * c.entryBytes
		b.values[i], memory = memory[:0:end], memory[end:]
	}
	return b
}

// add adds an entry of a channel.
func (b *stepBuffer) add(i int, value []byte) {
	b.values[i] = append(b.values[i], value...)
	if c := b.group.channels[i]; c.isRagged() {
		b.sizes[i] = append(b.sizes[i], int64(len(value)/c.entryBytes))
		b.ragged += len(value)
	}
}

func (b *stepBuffer) isFull() bool { return b.count == b.group.steps || b.ragged >= b.group.largest }

func (b *stepBuffer) clear() {
	b.count, b.ragged = 0, 0
	for i := range b.values {
		b.values[i], b.sizes[i] = b.values[i][:0], b.sizes[i][:0]
	}
}

// nbytes is the size of what it holds.
func (b *stepBuffer) nbytes() int {
	size := 0
	for _, value := range b.values {
		size += len(value)
	}
	return size
}

// split moves the entries from a number on to another buffer, which is new.
func (b *stepBuffer) split(count int) *stepBuffer {
	rest := newStepBuffer(b.group)
	rest.count, b.count = b.count-count, count
	for i, c := range b.group.channels {
		at := count * c.entryBytes
		if c.isRagged() {
			at = 0
			for _, size := range b.sizes[i][:count] {
				at += int(size) * c.entryBytes
			}
			rest.sizes[i] = append(rest.sizes[i], b.sizes[i][count:]...)
			b.sizes[i] = b.sizes[i][:count]
		}
		rest.values[i] = append(rest.values[i], b.values[i][at:]...)
		b.values[i] = b.values[i][:at]
	}
	return rest
}
