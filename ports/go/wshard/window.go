package wshard

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

func shapeText(dtype DType, shape []int) string { return fmt.Sprintf("%s %v", dtype, shape) }

// Window gives the entries from start up to, but not including, end, as a channel of its own that reads only the bytes that
// it needs. The window of a video holds the packets that its steps need, of which those of other steps are hidden.
func (c *Channel) Window(start, end int) (*Channel, error) {
	if start < 0 || start > end || end > c.Length {
		e := invalid("the window is outside the channel")
		e.Expected, e.Found = "0 to "+number(c.Length), number(start)+" to "+number(end)
		return nil, fault.Located(e, c.path, c.names.data)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	w := *c
	w.Length, w.row, w.parts, w.Shape = end-start, nil, nil, slices.Clone(c.Shape)
	if c.times != nil {
		w.times = partBlock{c.times, 8 * int64(start), 8 * int64(end)}
		if whole, isBroken := c.times.(brokenBlock); isBroken {
			w.times = whole
		}
	}
	if c.times == nil && c.StartNS != nil && c.SamplingRateHz > 0 {
		first, err := regularTime(*c.StartNS, start, c.SamplingRateHz)
		if err != nil {
			return nil, fault.Located(err, c.path, c.names.data)
		}
		w.StartNS = &first
	}
	switch c.layout() {
	case Dense:
		step, _ := stepBytes(c.DType, c.Shape)
		w.data = partBlock{c.data, int64(start) * step, int64(end) * step}
	case Video:
		index := c.parsed.frames
		first, last := index.needed(start, end)
		w.cutItems(c, first, last, 1)
		frames := make([]int64, 0, 2*(last-first))
		for i := first; i < last; i++ {
			step, flags := index.steps[i]-int64(start), int64(index.flags[i])
			if step < 0 || step >= int64(w.Length) {
				flags |= flagHidden
			}
			frames = append(frames, step, flags)
		}
		if w.frames = nil; !isPlainFrames(frames) {
			w.frames = int64Block(frames)
		}
	default:
		item := int64(1)
		if c.Layout == Ragged {
			item, _ = stepBytes(c.DType, c.Shape)
		}
		w.cutItems(c, start, end, item)
	}
	return &w, nil
}

func isPlainFrames(frames []int64) bool {
	for i := 0; i < len(frames); i += 2 {
		if frames[i] != int64(i/2) || frames[i+1] != flagKeyframe {
			return false
		}
	}
	return true
}

// cutItems takes the pieces from first to last of another channel: steps of a ragged one, packets of a video.
func (c *Channel) cutItems(from *Channel, first, last int, item int64) {
	offsets := slices.Clone(from.parsed.offsets[first : last+1])
	start := offsets[0]
	for i := range offsets {
		offsets[i] -= start
	}
	c.data = partBlock{from.data, start * item, (start + offsets[len(offsets)-1]) * item}
	c.offsets, c.parsed = int64Block(offsets), &parsedIndex{}
}

// Step gives the bytes of one entry: of its array, of its items, or its string.
func (c *Channel) Step(t int) ([]byte, error) {
	w, err := c.Window(t, t+1)
	if err != nil {
		return nil, err
	}
	return w.Data()
}

// Items gives the bytes of each step of a ragged or text channel.
func (c *Channel) Items() ([][]byte, error) {
	if c.layout() != Ragged && c.layout() != Text {
		return nil, fault.Located(invalid("only a ragged channel has items, and this one is %s", c.layout()), c.path, c.names.data)
	}
	data, err := c.Data()
	if err != nil {
		return nil, err
	}
	item := int64(1)
	if c.Layout == Ragged {
		item, _ = stepBytes(c.DType, c.Shape)
	}
	items := make([][]byte, c.Length)
	for t := range items {
		start, end := c.parsed.offsets[t]*item, c.parsed.offsets[t+1]*item
		items[t] = data[start:end:end]
	}
	return items, nil
}

// Strings gives the string of each step of a text channel.
func (c *Channel) Strings() ([]string, error) {
	if c.layout() != Text {
		return nil, fault.Located(invalid("only a text channel has strings, and this one is %s", c.layout()), c.path, c.names.data)
	}
	items, err := c.Items()
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(items))
	for t, item := range items {
		if !utf8.Valid(item) {
			return nil, fault.Located(broken(shard.CodeBadValue, "W-RAG-4", "the text of step %d is not valid UTF-8", t), c.path, c.names.data)
		}
		texts[t] = string(item)
	}
	return texts, nil
}
