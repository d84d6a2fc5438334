package shard

import (
	"encoding/binary"
	"math"

	"github.com/shard-format/shard/ports/go/internal/strictjson"
)

const (
	filterFrameMagic = 0x184D2A5D
	maxDescription   = 4096
	maxFilteredFrame = 64 << 20
)

// Filters is what was done to each frame of an entry before it was compressed: delta, then planes. A width of 0
// means that the filter was not applied.
type Filters struct {
	// DeltaWidth is 1, 2, 4 or 8; DeltaOrder 1 or 2; DeltaRow the bytes of a row.
	DeltaWidth, DeltaOrder, DeltaRow int
	// PlanesWidth is 2, 4 or 8.
	PlanesWidth int
}

func badFilter(rule, problem string) *Error { return broken(CodeBadFilter, rule, problem) }

// leadingSize is the size of the frame that describes the filters, from the first bytes of the entry (S-FLT-1).
func leadingSize(head []byte, diskSize uint64) (uint64, error) {
	if len(head) < 8 || binary.LittleEndian.Uint32(head) != filterFrameMagic {
		return 0, badFilter("S-FLT-1", "a filtered entry does not start with a description of its filters")
	}
	size := uint64(binary.LittleEndian.Uint32(head[4:]))
	if size < 1 || size > maxDescription || size > diskSize-8 {
		return 0, badFilter("S-FLT-1", "the description of the filters has a size that is not allowed").found("%d bytes", size)
	}
	return 8 + size, nil
}

// parseFilters reads the description (S-FLT-2 to S-FLT-4).
func parseFilters(text []byte) (*Filters, error) {
	value, err := strictjson.Parse(text, maxDescription)
	object, ok := value.(map[string]any)
	list, isList := object["filters"].([]any)
	if err != nil || !ok || !isList || len(list) < 1 || len(list) > 2 {
		return nil, badFilter("S-FLT-2", "the description is not an object with a list of one or two filters")
	}
	found := &Filters{}
	names := ""
	for _, item := range list {
		fields, ok := item.(map[string]any)
		name, isText := fields["name"].(string)
		if !ok || !isText {
			return nil, badFilter("S-FLT-2", "a filter has no name")
		}
		names += name + " "
		switch name {
		case "delta":
			found.DeltaOrder = integerField(fields, "order", 1, 2)
			found.DeltaWidth = integerField(fields, "width", 1, 2, 4, 8)
			row, isInteger := fields["row"].(int64)
			if found.DeltaOrder == 0 || found.DeltaWidth == 0 || len(fields) != 4 || !isInteger ||
				row < 1 || row > math.MaxInt || row%int64(found.DeltaWidth) != 0 {
				return nil, badFilter("S-FLT-2", "the filter delta has wrong fields")
			}
			found.DeltaRow = int(row)
		case "planes":
			found.PlanesWidth = integerField(fields, "width", 2, 4, 8)
			if found.PlanesWidth == 0 || len(fields) != 2 {
				return nil, badFilter("S-FLT-2", "the filter planes has wrong fields")
			}
		default:
			return nil, broken(CodeUnknownFilter, "S-FLT-3", "this version does not know the filter "+name)
		}
	}
	both := names == "delta planes " && found.DeltaWidth == found.PlanesWidth
	if !both && names != "delta " && names != "planes " {
		return nil, badFilter("S-FLT-4", "these filters do not go together").found("%s", names)
	}
	return found, nil
}

// integerField is a field that has one of some values; 0 if it has not.
func integerField(fields map[string]any, key string, allowed ...int64) int {
	value, ok := fields[key].(int64)
	for _, one := range allowed {
		if ok && value == one {
			return int(one)
		}
	}
	return 0
}

// Description is the canonical JSON that an entry holds.
func (f *Filters) Description() []byte {
	var list []any
	if f.DeltaWidth > 0 {
		list = append(list, map[string]any{
			"name": "delta", "order": f.DeltaOrder, "row": f.DeltaRow, "width": f.DeltaWidth,
		})
	}
	if f.PlanesWidth > 0 {
		list = append(list, map[string]any{"name": "planes", "width": f.PlanesWidth})
	}
	text, _ := strictjson.Canonical(map[string]any{"filters": list})
	return text
}

// multiple is what the size of a frame must be a multiple of.
func (f *Filters) multiple() int {
	if f.DeltaWidth > 0 {
		return f.DeltaRow
	}
	return f.PlanesWidth
}

// checkFrame checks S-FLT-5 before memory is made for a frame.
func (f *Filters) checkFrame(size uint64) error {
	if size > maxFilteredFrame || size%uint64(f.multiple()) != 0 {
		return badFilter("S-FLT-5", "a filtered frame has a size that is not allowed").
			expected("a multiple of %d bytes, at most %d", f.multiple(), maxFilteredFrame).found("%d", size)
	}
	return nil
}

// undo restores the bytes of one frame in place.
func (f *Filters) undo(data []byte) {
	if f.PlanesWidth > 0 {
		undoPlanes(data, f.PlanesWidth)
	}
	for i := 0; i < f.DeltaOrder; i++ {
		undoDelta(data, f.DeltaWidth, f.DeltaRow)
	}
}

// apply gives the filtered form of one frame.
func (f *Filters) apply(data []byte) []byte {
	out := append([]byte(nil), data...)
	for i := 0; i < f.DeltaOrder; i++ {
		applyDelta(out, f.DeltaWidth, f.DeltaRow)
	}
	if f.PlanesWidth > 0 {
		applyPlanes(out, f.PlanesWidth)
	}
	return out
}

func undoPlanes(data []byte, width int) {
	planes, done := takeBuffer(uint64(len(data)))
	defer done()
	copy(planes, data)
	count := len(data) / width
	plane := func(number int) []byte { return planes[number*count:][:count] }
	le := binary.LittleEndian
	switch width {
	case 2:
		high := plane(1)
		for i, b := range plane(0) {
			le.PutUint16(data[2*i:], uint16(b)|uint16(high[i])<<8)
		}
	case 4:
		b1, b2, b3 := plane(1), plane(2), plane(3)
		for i, b := range plane(0) {
			le.PutUint32(data[4*i:], uint32(b)|uint32(b1[i])<<8|uint32(b2[i])<<16|uint32(b3[i])<<24)
		}
	case 8:
		b1, b2, b3, b4, b5, b6, b7 := plane(1), plane(2), plane(3), plane(4), plane(5), plane(6), plane(7)
		for i, b := range plane(0) {
			low := uint32(b) | uint32(b1[i])<<8 | uint32(b2[i])<<16 | uint32(b3[i])<<24
			high := uint32(b4[i]) | uint32(b5[i])<<8 | uint32(b6[i])<<16 | uint32(b7[i])<<24
			le.PutUint64(data[8*i:], uint64(low)|uint64(high)<<32)
		}
	}
}

func applyPlanes(data []byte, width int) {
	items, done := takeBuffer(uint64(len(data)))
	defer done()
	copy(items, data)
	count := len(data) / width
	for plane := range width {
		target := data[plane*count:][:count]
		for i := range target {
			target[i] = items[i*width+plane]
		}
	}
}

// undoDelta adds the row before to each row but the first.
func undoDelta(data []byte, width, row int) {
	if len(data) <= row {
		return
	}
	le := binary.LittleEndian
	now, before := data[row:], data[:len(data)-row]
	switch width {
	case 1:
		for i, b := range before {
			now[i] += b
		}
	case 2:
		for i := 0; i+2 <= len(now); i += 2 {
			le.PutUint16(now[i:], le.Uint16(now[i:])+le.Uint16(before[i:]))
		}
	case 4:
		for i := 0; i+4 <= len(now); i += 4 {
			le.PutUint32(now[i:], le.Uint32(now[i:])+le.Uint32(before[i:]))
		}
	case 8:
		for i := 0; i+8 <= len(now); i += 8 {
			le.PutUint64(now[i:], le.Uint64(now[i:])+le.Uint64(before[i:]))
		}
	}
}

// applyDelta subtracts the row before from each row but the first, from the end, so that the row before is still there.
func applyDelta(data []byte, width, row int) {
	if len(data) <= row {
		return
	}
	le := binary.LittleEndian
	now, before := data[row:], data[:len(data)-row]
	for i := len(now) - width; i >= 0; i -= width {
		switch width {
		case 1:
			now[i] -= before[i]
		case 2:
			le.PutUint16(now[i:], le.Uint16(now[i:])-le.Uint16(before[i:]))
		case 4:
			le.PutUint32(now[i:], le.Uint32(now[i:])-le.Uint32(before[i:]))
		case 8:
			le.PutUint64(now[i:], le.Uint64(now[i:])-le.Uint64(before[i:]))
		}
	}
}
