package wshard

import (
	"bytes"
	"image"
	"image/jpeg"
	"image/png"
	"slices"
	"strings"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// Flags of a packet.
const (
	flagKeyframe = 1
	flagHidden   = 2
)

const longestSide = 65535

// Packet is one encoded picture of a video.
type Packet struct {
	Data []byte
	// Step is the step that the picture is; of a hidden one, where it is in time.
	Step int64
	// Keyframe is set if decoding can start here.
	Keyframe bool
	// Hidden is set if the picture is no step: it is decoded because others need it.
	Hidden bool
}

// FromPackets makes a video channel of encoded pictures in the order in which they are decoded. contentType is for example
// video/h264 or image/jpeg; dtype and shape are those of a decoded picture.
func FromPackets(contentType string, dtype DType, shape []int, packets []Packet) *Channel {
	c := &Channel{
		DType: dtype, Shape: slices.Clone(shape), Layout: Video, ContentType: contentType, parsed: &parsedIndex{},
	}
	isPlain := true
	offsets, frames := []int64{0}, []int64{}
	var data []byte
	for i, one := range packets {
		data = append(data, one.Data...)
		offsets = append(offsets, int64(len(data)))
		flags := int64(0)
		if one.Keyframe {
			flags |= flagKeyframe
		}
		if one.Hidden {
			flags |= flagHidden
		} else {
			c.Length++
		}
		frames = append(frames, one.Step, flags)
		isPlain = isPlain && one.Step == int64(i) && flags == flagKeyframe
	}
	c.data, c.offsets = memoryBlock(data), int64Block(offsets)
	if !isPlain {
		c.frames = int64Block(frames)
	}
	c.problem = checkVideo(dtype, shape, contentType)
	return c
}

// checkVideo checks what the row of a video says about its pictures (W-VID-5).
func checkVideo(dtype DType, shape []int, contentType string) error {
	fine := len(shape) == 2 || (len(shape) == 3 && (shape[2] == 1 || (dtype == U8 && (shape[2] == 3 || shape[2] == 4))))
	fine = fine && (dtype == U8 || dtype == U16)
	for _, side := range shape[:min(len(shape), 2)] {
		fine = fine && side >= 1 && side <= longestSide
	}
	if !fine {
		e := badMetadata("W-VID-5", "a video does not have pictures of this type and shape")
		e.Expected, e.Found = "u8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], or u16 [H, W] or [H, W, 1]", shapeText(dtype, shape)
		return e
	}
	kind := lowerASCII(contentType)
	if !strings.HasPrefix(kind, "video/") && !strings.HasPrefix(kind, "image/") {
		return wrongField("W-VID-5", "content_type", "one of video/ or image/", contentType)
	}
	return nil
}

// parseIndex reads the offsets of a ragged, text or video channel, and the frames of a video.
func (c *Channel) parseIndex() error {
	if c.parts != nil {
		return c.parseParts()
	}
	offsets, err := readInt64s(c.offsets)
	if err != nil {
		return err
	}
	rule, unit := "W-RAG-2", int64(1)
	switch c.layout() {
	case Video:
		rule = "W-VID-1"
	case Ragged:
		rule = "W-RAG-2"
		unit, _ = stepBytes(c.DType, c.Shape)
	}
	if len(offsets) == 0 || offsets[0] != 0 || !slices.IsSorted(offsets) {
		return broken(shard.CodeBadValue, rule, "the offsets do not start with 0, or they fall")
	}
	if last := offsets[len(offsets)-1]; unit > 0 && last != c.data.Size()/unit {
		e := broken(shard.CodeBadValue, rule, "the last offset is not the end of the block")
		e.Expected, e.Found = number(int(c.data.Size()/unit)), number(int(last))
		return e
	}
	c.parsed.offsets = offsets
	if c.layout() == Video {
		return c.parseFrames()
	}
	return nil
}

// parseFrames reads what the packets of a video are (W-VID-3, W-VID-4).
func (c *Channel) parseFrames() error {
	count := len(c.parsed.offsets) - 1
	index := &frameIndex{steps: make([]int64, count), flags: make([]uint8, count)}
	if c.frames == nil {
		for i := range count {
			index.steps[i], index.flags[i] = int64(i), flagKeyframe
		}
	} else {
		table, err := readInt64s(c.frames)
		if err != nil {
			return err
		}
		if len(table) != 2*count {
			return sizeMismatch("W-VID-2", "the frames of a video are not two integers for each packet", 2*count, len(table))
		}
		for i := range count {
			if flags := table[2*i+1]; flags < 0 || flags > 3 {
				e := broken(shard.CodeBadValue, "W-VID-3", "packet %d has unknown flags", i)
				e.Expected, e.Found = "0 to 3", number(int(flags))
				return e
			}
			index.steps[i], index.flags[i] = table[2*i], uint8(table[2*i+1])
		}
	}
	if err := index.resolve(c.Length); err != nil {
		return err
	}
	c.parsed.frames = index
	return nil
}

// frameIndex is what each packet of a video is, and which packets each step needs.
type frameIndex struct {
	steps []int64
	flags []uint8
	// packetOf is the packet of each step, startOf the keyframe at which decoding starts for it.
	packetOf, startOf []int
}

func (x *frameIndex) resolve(length int) error {
	shown := 0
	for i, step := range x.steps {
		if x.flags[i]&flagHidden == 0 {
			shown++
			if step < 0 || step >= int64(length) {
				return broken(shard.CodeBadValue, "W-VID-3", "packet %d is step %d, which the channel does not have", i, step)
			}
		}
	}
	// Counted before memory is made for a length that the file merely claims.
	if shown != length {
		e := broken(shard.CodeBadValue, "W-VID-3", "the frames are not the steps of the channel")
		e.Expected, e.Found = number(length)+" frames that are not hidden", number(shown)
		return e
	}
	x.packetOf, x.startOf = make([]int, length), make([]int, length)
	for t := range x.packetOf {
		x.packetOf[t] = -1
	}
	// before and last are the keyframes before a packet; a frame that follows one and precedes it in time needs the other.
	before, last := -1, -1
	for i, step := range x.steps {
		if x.flags[i]&flagKeyframe != 0 {
			before, last = last, i
		}
		if x.flags[i]&flagHidden != 0 {
			continue
		}
		if x.packetOf[step] >= 0 {
			return broken(shard.CodeBadValue, "W-VID-3", "step %d is there twice", step)
		}
		start := last
		if start >= 0 && x.steps[start] > step {
			start = before
		}
		if start < 0 || x.steps[start] > step {
			return broken(shard.CodeBadValue, "W-VID-4", "step %d has no keyframe to start from", step)
		}
		x.packetOf[step], x.startOf[step] = i, start
	}
	for t := 1; t < length; t++ {
		if x.startOf[t] < x.startOf[t-1] {
			return broken(shard.CodeBadValue, "W-VID-4", "step %d needs an earlier keyframe than the step before it", t)
		}
	}
	return nil
}

// needed is the range of packets that some steps need.
func (x *frameIndex) needed(start, end int) (first, last int) {
	if start >= end {
		return 0, 0
	}
	return x.startOf[start], slices.Max(x.packetOf[start:end]) + 1
}

// Packets gives the encoded pictures of a video channel, in the order in which they are decoded.
func (c *Channel) Packets() ([]Packet, error) {
	if c.layout() != Video {
		return nil, fault.Located(invalid("only a video has packets, and this channel is %s", c.layout()), c.path, c.names.data)
	}
	data, err := c.Data()
	if err != nil {
		return nil, err
	}
	index, offsets := c.parsed.frames, c.parsed.offsets
	packets := make([]Packet, len(index.steps))
	for i := range packets {
		packets[i] = Packet{
			Data: data[offsets[i]:offsets[i+1]], Step: index.steps[i],
			Keyframe: index.flags[i]&flagKeyframe != 0, Hidden: index.flags[i]&flagHidden != 0,
		}
	}
	return packets, nil
}

// PacketsFor gives the packets from which step t is decoded, in the order in which a decoder takes them; the last one is
// the step itself. Only these are read.
func (c *Channel) PacketsFor(t int) ([]Packet, error) {
	w, err := c.Window(t, t+1)
	if err != nil {
		return nil, err
	}
	packets, err := w.Packets()
	if err != nil {
		return nil, err
	}
	kept := make([]Packet, 0, len(packets))
	for _, one := range packets {
		if one.Step >= packets[0].Step { // what precedes the keyframe in time cannot be decoded from it
			one.Step += int64(t)
			kept = append(kept, one)
		}
	}
	return kept, nil
}

// statesSize tells whether CheckPictures can find the sizes of the pictures without a decoder.
func (c *Channel) statesSize() bool {
	kind := lowerASCII(c.ContentType)
	return kind == "image/png" || kind == "image/jpeg"
}

// CheckPictures compares the sizes that the packets of an image/png or image/jpeg channel state with the shape of the
// channel (W-VID-6). Nothing is decoded; other codecs are not checked.
func (c *Channel) CheckPictures() error {
	var parse func(data []byte) (image.Config, error)
	switch lowerASCII(c.ContentType) {
	case "image/png":
		parse = func(data []byte) (image.Config, error) { return png.DecodeConfig(bytes.NewReader(data)) }
	case "image/jpeg":
		parse = func(data []byte) (image.Config, error) { return jpeg.DecodeConfig(bytes.NewReader(data)) }
	default:
		return nil
	}
	packets, err := c.Packets()
	if err != nil {
		return err
	}
	for i, one := range packets {
		found, err := parse(one.Data)
		if err != nil || found.Height != c.Shape[0] || found.Width != c.Shape[1] {
			e := broken(shard.CodeBadValue, "W-VID-6", "packet %d is not a picture of the stated size", i)
			e.Expected, e.Found, e.Err = shapeText(c.DType, c.Shape), number(found.Height)+" x "+number(found.Width), err
			return fault.Located(e, c.path, c.names.data)
		}
	}
	return nil
}
