package wshard

import (
	"encoding/binary"
	"math"
	"sync"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// Layout says how the steps of a channel are stored.
type Layout string

// The layouts of spec/wshard.md.
const (
	// Dense has one array of the same shape for each step.
	Dense Layout = "dense"
	// Text has one string for each step.
	Text Layout = "text"
	// Ragged has any number of items for each step.
	Ragged Layout = "ragged"
	// Video has the packets of a codec.
	Video Layout = "video"
)

// Channel is an array with time as its first axis: an observation, an action, a reward, a prediction.
//
// The channel of an opened episode reads its bytes when a method asks for them; goroutines may share it. Keep the episode
// open until then.
type Channel struct {
	// DType and Shape are those of one step; of one item if the layout is Ragged, of one picture if it is Video.
	DType DType
	Shape []int
	// Length is the number of entries along the first axis: the steps of the episode, or others if the channel has its
	// own clock.
	Length int
	// Layout is Dense if it is empty.
	Layout Layout
	// Horizon is above 0 if each step holds a chunk of that many steps; Shape starts with it.
	Horizon int

	// SamplingRateHz is the entries per second; 0 if it is not stated. Together with StartNS it is a regular clock.
	SamplingRateHz float64
	// StartNS is the time of the first entry.
	StartNS *int64

	Modality, Unit, Semantics, Description, ContentType string
	// Lossy says how the values were changed before they were stored; nil if they were not.
	Lossy shard.Object
	// Extradata is what a video's decoder needs before the first packet.
	Extradata []byte
	// Fields has the fields of the channel's row that the format does not define.
	Fields shard.Object

	// data has the stored bytes. offsets, frames and times are nil if the channel has none.
	data, offsets, frames, times Block
	// names are those of the blocks that the channel was loaded from.
	names struct{ data, offsets, frames, times string }
	// path is the file, for errors.
	path string
	// row is the description that the channel was loaded with; nil for a new channel and for one without a row.
	row        *row
	inferred   bool
	noTimeAxis bool
	// anyLength is set for what a file holds without a time for each step: it goes back as it came.
	anyLength bool
	// problem is the rule that the block breaks, found without reading it; every access returns it.
	problem error
	parsed  *parsedIndex
	// parts are the channels of chunks that a ragged or video channel was joined of.
	parts []*Channel
}

// parsedIndex is what was read of a channel's offsets and frames.
type parsedIndex struct {
	once    sync.Once
	offsets []int64
	frames  *frameIndex
	err     error
}

func (c *Channel) layout() Layout {
	if c.Layout == "" {
		return Dense
	}
	return c.Layout
}

// Block is the name of the block that the channel was loaded from; empty for a new channel.
func (c *Channel) Block() string { return c.names.data }

// Inferred reports whether the file does not describe the channel, so that its type and shape are a guess.
func (c *Channel) Inferred() bool { return c.inferred }

// HasTimeAxis is false for bytes without a description that fit no number of steps.
func (c *Channel) HasTimeAxis() bool { return !c.noTimeAxis }

// --- new channels

// Value is a type of Go that a channel can hold.
type Value interface {
	float64 | float32 | int64 | int32 | int16 | int8 | uint64 | uint32 | uint16 | uint8 | bool
}

func dtypeOf[T Value]() DType {
	var zero T
	switch any(zero).(type) {
	case float64:
		return F64
	case float32:
		return F32
	case int64:
		return I64
	case int32:
		return I32
	case int16:
		return I16
	case int8:
		return I8
	case uint64:
		return U64
	case uint32:
		return U32
	case uint16:
		return U16
	case bool:
		return Bool
	}
	return U8
}

// FromValues makes a channel of values in C order; shape is that of one step.
func FromValues[T Value](values []T, shape ...int) *Channel {
	data, err := binary.Append(nil, binary.LittleEndian, values)
	c := FromBytes(dtypeOf[T](), shape, data)
	if err != nil {
		c.problem = err
	}
	return c
}

// FromBytes makes a dense channel of little-endian bytes in C order; shape is that of one step. The channel keeps data.
func FromBytes(dtype DType, shape []int, data []byte) *Channel {
	return fromBlock(dtype, shape, memoryBlock(data))
}

func fromBlock(dtype DType, shape []int, data Block) *Channel {
	c := &Channel{DType: dtype, Shape: append([]int{}, shape...), Layout: Dense, data: data}
	if size, fits := stepBytes(dtype, shape); fits && size > 0 {
		c.Length = int(data.Size() / size)
	}
	return c
}

// FromStrings makes a channel of one string for each step.
func FromStrings(texts []string) *Channel {
	pieces := make([][]byte, len(texts))
	for i, text := range texts {
		pieces[i] = []byte(text)
		if !utf8.ValidString(text) {
			c := FromItems(U8, nil, nil)
			c.Layout, c.problem = Text, invalid("the text of step %d is not valid UTF-8", i)
			return c
		}
	}
	c := FromItems(U8, nil, pieces)
	c.Layout = Text
	return c
}

// FromItems makes a ragged channel: for each step the bytes of its items, each of the given type and shape.
func FromItems(dtype DType, shape []int, items [][]byte) *Channel {
	c := &Channel{DType: dtype, Shape: append([]int{}, shape...), Length: len(items), Layout: Ragged}
	size, fits := stepBytes(dtype, shape)
	if !fits || size == 0 {
		c.problem = invalid("items of no bytes, or of too many, cannot be ragged")
		size = 1
	}
	offsets := make([]int64, 1, len(items)+1)
	var data []byte
	for i, one := range items {
		if int64(len(one))%size != 0 {
			c.problem = invalid("step %d is not a whole number of items of %d bytes", i, size)
		}
		data = append(data, one...)
		offsets = append(offsets, int64(len(data))/size)
	}
	c.data, c.offsets, c.parsed = memoryBlock(data), int64Block(offsets), &parsedIndex{}
	return c
}

// SetTimestamps gives the channel a clock of its own: a time for each of its entries, in nanoseconds.
func (c *Channel) SetTimestamps(ns []int64) {
	c.times, c.names.times = int64Block(ns), ""
}

// --- reading

// Data gives all bytes of the channel, little-endian in C order: of every step if the layout is Dense, otherwise of all
// items, strings or packets one after another. Do not change them.
func (c *Channel) Data() ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return c.read(c.data, c.names.data)
}

func (c *Channel) read(b Block, name string) ([]byte, error) {
	data, err := readBlock(b)
	return data, fault.Located(err, c.path, name)
}

// check reports what is wrong with the channel, and parses its index.
func (c *Channel) check() error {
	if c.problem != nil {
		return fault.Located(c.problem, c.path, c.names.data)
	}
	if c.data == nil {
		return invalid("the channel has no data: make it with FromValues, FromBytes, FromStrings, FromItems or FromPackets")
	}
	if c.parsed != nil {
		c.parsed.once.Do(func() { c.parsed.err = fault.Located(c.parseIndex(), c.path, c.names.data) })
		return c.parsed.err
	}
	return nil
}

// Values gives the values of a dense channel as they are stored; T must be the type of its DType.
func Values[T Value](c *Channel) ([]T, error) {
	if dtype := dtypeOf[T](); dtype != c.DType {
		e := invalid("the values have another type")
		e.Expected, e.Found = string(dtype), string(c.DType)
		return nil, fault.Located(e, c.path, c.names.data)
	}
	data, err := c.Data()
	if err != nil {
		return nil, err
	}
	values := make([]T, len(data)/c.DType.Size())
	if _, err := binary.Decode(data, binary.LittleEndian, values); err != nil {
		return nil, err
	}
	return values, nil
}

// Float64 gives the values of a dense channel of any type as 64-bit floats.
func (c *Channel) Float64() ([]float64, error) {
	data, err := c.Data()
	if err == nil && c.DType.Size() == 0 {
		err = fault.Located(invalid("unknown data type %q", c.DType), c.path, c.names.data)
	}
	if err != nil {
		return nil, err
	}
	return floats(c.DType, data), nil
}

// Float32 gives the values of a dense channel of any type as 32-bit floats.
func (c *Channel) Float32() ([]float32, error) {
	if c.DType == F32 {
		return Values[float32](c)
	}
	wide, err := c.Float64()
	if err != nil {
		return nil, err
	}
	values := make([]float32, len(wide))
	for i, value := range wide {
		values[i] = float32(value)
	}
	return values, nil
}

// Bools gives the values of a dense channel: true for everything but 0.
func (c *Channel) Bools() ([]bool, error) {
	if c.DType == Bool {
		return Values[bool](c)
	}
	wide, err := c.Float64()
	if err != nil {
		return nil, err
	}
	values := make([]bool, len(wide))
	for i, value := range wide {
		values[i] = value != 0
	}
	return values, nil
}

// Timestamps gives the times of the entries on the channel's own clock, in nanoseconds; nil if the channel follows the
// steps of the episode.
func (c *Channel) Timestamps() ([]int64, error) {
	if c.problem != nil {
		return nil, fault.Located(c.problem, c.path, c.names.data)
	}
	if c.times != nil {
		times, err := readInt64s(c.times)
		return times, fault.Located(err, c.path, c.names.times)
	}
	if c.StartNS == nil || c.SamplingRateHz <= 0 {
		return nil, nil
	}
	times := make([]int64, c.Length)
	for i := range times {
		var err error
		if times[i], err = regularTime(*c.StartNS, i, c.SamplingRateHz); err != nil {
			return nil, fault.Located(err, c.path, c.names.data)
		}
	}
	return times, nil
}

// HasOwnClock reports whether the entries of the channel are not the steps of the episode.
func (c *Channel) HasOwnClock() bool {
	return c.times != nil || (c.StartNS != nil && c.SamplingRateHz > 0)
}

// floats converts stored values of any type to 64-bit floats.
func floats(dtype DType, data []byte) []float64 {
	size := dtype.Size()
	values := make([]float64, len(data)/size)
	for i := range values {
		values[i] = floatAt(dtype, data[i*size:])
	}
	return values
}

func floatAt(dtype DType, data []byte) float64 {
	le := binary.LittleEndian
	switch dtype {
	case F64:
		return math.Float64frombits(le.Uint64(data))
	case F32:
		return float64(math.Float32frombits(le.Uint32(data)))
	case F16:
		return halfFloat(le.Uint16(data))
	case BF16:
		return float64(math.Float32frombits(uint32(le.Uint16(data)) << 16))
	case I64:
		return float64(int64(le.Uint64(data)))
	case I32:
		return float64(int32(le.Uint32(data)))
	case I16:
		return float64(int16(le.Uint16(data)))
	case I8:
		return float64(int8(data[0]))
	case U64:
		return float64(le.Uint64(data))
	case U32:
		return float64(le.Uint32(data))
	case U16:
		return float64(le.Uint16(data))
	case Bool:
		if data[0] != 0 {
			return 1
		}
		return 0
	}
	return float64(data[0])
}

// halfFloat is the value of a 16-bit float.
func halfFloat(bits uint16) float64 {
	sign, exponent, fraction := 1.0, int(bits>>10&0x1F), float64(bits&0x3FF)
	if bits&0x8000 != 0 {
		sign = math.Copysign(1, -1)
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 0x1F:
		if fraction != 0 {
			return math.NaN()
		}
		return sign * math.Inf(1)
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}
