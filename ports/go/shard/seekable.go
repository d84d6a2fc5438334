package shard

import (
	"encoding/binary"
	"errors"
	"math"
	"sort"

	"github.com/cespare/xxhash/v2"
)

const (
	seekMagic      = 0x8F92EAB1
	seekFrameMagic = 0x184D2A5E
	seekFooterSize = 9
	seekHeadSize   = 8
)

// SeekFrame is one frame of a seekable entry.
type SeekFrame struct {
	// CompressedSize and DecompressedSize are in bytes.
	CompressedSize, DecompressedSize uint32
	// Checksum is the low half of the XXH64 of the content; HasChecksum tells whether the table has it.
	Checksum    uint32
	HasChecksum bool
}

// seekTable says where each frame of an entry is.
type seekTable struct {
	frames []SeekFrame
	// stored and content have one element more than there are frames.
	stored, content []uint64
	size            int
}

// seekTableSize is the size of the skippable frame that holds the table, from the footer; 0 if there is none.
func seekTableSize(footer []byte, diskSize uint64) uint64 {
	if len(footer) < seekFooterSize {
		return 0
	}
	footer = footer[len(footer)-seekFooterSize:]
	if binary.LittleEndian.Uint32(footer[5:]) != seekMagic {
		return 0
	}
	width := uint64(8)
	if footer[4]&0x80 != 0 {
		width = 12
	}
	size := seekHeadSize + width*uint64(binary.LittleEndian.Uint32(footer)) + seekFooterSize
	if size > diskSize {
		return 0
	}
	return size
}

// parseSeekTable reads a table from the last bytes of an entry; nil if the bytes are something else.
// leading is the size of the frame that describes filters.
func parseSeekTable(tail []byte, diskSize, origSize, leading uint64) (*seekTable, error) {
	le := binary.LittleEndian
	if le.Uint32(tail) != seekFrameMagic || uint64(le.Uint32(tail[4:])) != uint64(len(tail)-seekHeadSize) {
		return nil, nil
	}
	footer := tail[len(tail)-seekFooterSize:]
	descriptor := footer[4]
	if descriptor&0x7C != 0 {
		return nil, broken(CodeBadSeekTable, "S-SEK-1", "reserved bits of the seek table are set").found("0x%02x", descriptor)
	}
	count, width := int(le.Uint32(footer)), 8
	if descriptor&0x80 != 0 {
		width = 12
	}
	table := &seekTable{
		frames:  make([]SeekFrame, count),
		stored:  make([]uint64, count+1),
		content: make([]uint64, count+1),
		size:    len(tail),
	}
	table.stored[0] = leading
	for i := range table.frames {
		row := tail[seekHeadSize+i*width:]
		one := SeekFrame{CompressedSize: le.Uint32(row), DecompressedSize: le.Uint32(row[4:])}
		if width == 12 {
			one.Checksum, one.HasChecksum = le.Uint32(row[8:]), true
		}
		table.frames[i] = one
		table.stored[i+1] = table.stored[i] + uint64(one.CompressedSize)
		table.content[i+1] = table.content[i] + uint64(one.DecompressedSize)
	}
	if table.stored[count]+uint64(len(tail)) != diskSize || table.content[count] != origSize {
		rule := "S-SEK-2"
		if leading > 0 {
			rule = "S-FLT-6"
		}
		return nil, broken(CodeBadSeekTable, rule, "the seek table does not add up to the sizes of the entry").
			expected("%d stored and %d decoded bytes", diskSize, origSize).
			found("%d and %d", table.stored[count]+uint64(len(tail)), table.content[count])
	}
	return table, nil
}

// covering gives the frames that hold the bytes from start to end, which are not the same.
func (t *seekTable) covering(start, end uint64) (first, last int) {
	first = sort.Search(len(t.frames), func(i int) bool { return t.content[i+1] > start })
	last = sort.Search(len(t.frames), func(i int) bool { return t.content[i+1] >= end })
	return first, last
}

// decodeTo decodes one frame of a seekable entry and checks it (S-SEK-3, S-SEK-4).
func (t *seekTable) decodeTo(number int, stored, out []byte, maxWindow uint64) error {
	want := t.frames[number]
	one, err := leadingFrame(stored, maxWindow)
	if err != nil {
		return err
	}
	if one.End != len(stored) {
		return broken(CodeBadSeekTable, "S-SEK-3", "a frame is not as long as the seek table says").
			expected("%d bytes", len(stored)).found("%d", one.End)
	}
	if one.HasSize && one.ContentSize != uint64(want.DecompressedSize) {
		return broken(CodeBadSeekTable, "S-SEK-3", "a frame declares another size than the seek table").
			expected("%d bytes", want.DecompressedSize).found("%d", one.ContentSize)
	}
	count, err := decodeFrame(stored, one, out)
	if errors.Is(err, ErrChecksumMismatch) {
		return broken(CodeChecksumMismatch, "S-SEK-4", "a frame does not fit its own checksum")
	}
	if err != nil {
		return err
	}
	if count != len(out) {
		return broken(CodeBadSeekTable, "S-SEK-3", "a frame decodes to another size than the seek table says").
			expected("%d bytes", len(out)).found("%d", count)
	}
	if want.HasChecksum && frameChecksum(one, stored, out) != want.Checksum {
		return broken(CodeChecksumMismatch, "S-SEK-4", "a frame does not fit the checksum of the seek table")
	}
	return nil
}

// frameChecksum is the checksum of a decoded frame: the one that it has, which was compared with its content, if any.
func frameChecksum(one frame, stored, out []byte) uint32 {
	if one.HasChecksum {
		return binary.LittleEndian.Uint32(stored[one.End-4:])
	}
	return uint32(xxhash.Sum64(out) & math.MaxUint32)
}

// leadingFrame reads the frame that the bytes start with, which must be a data frame.
func leadingFrame(stored []byte, maxWindow uint64) (frame, error) {
	if len(stored) < 4 || binary.LittleEndian.Uint32(stored) != frameMagic {
		return frame{}, broken(CodeBadSeekTable, "S-SEK-3", "no zstd frame where the seek table says")
	}
	return walkFrame(stored, 0, maxWindow)
}

func appendSeekTable(out []byte, frames []SeekFrame) []byte {
	le := binary.LittleEndian
	out = le.AppendUint32(out, seekFrameMagic)
	out = le.AppendUint32(out, uint32(12*len(frames)+seekFooterSize))
	for _, one := range frames {
		out = le.AppendUint32(out, one.CompressedSize)
		out = le.AppendUint32(out, one.DecompressedSize)
		out = le.AppendUint32(out, one.Checksum)
	}
	out = le.AppendUint32(out, uint32(len(frames)))
	out = append(out, 0x80)
	return le.AppendUint32(out, seekMagic)
}
