package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

const (
	// FrameMagic starts a data frame.
	FrameMagic     = 0xFD2FB528
	skippableMagic = 0x184D2A50
	skippableMask  = 0xFFFFFFF0
	// ZstdExpansion is the most that one stored byte can become.
	ZstdExpansion = 32768
	// UsualLevel of compression.
	UsualLevel = 3
	// largestWindow is the largest that a frame can state.
	largestWindow = 1<<41 + 7<<38
)

// Frame is one data frame in the stored bytes of an entry.
type Frame struct {
	Start, End  int
	ContentSize uint64
	HasSize     bool
	// HasChecksum says that the last four bytes are the checksum of the content.
	HasChecksum bool
}

// WalkFrames finds the data frames (S-CMP-4 to S-CMP-7). It decodes nothing.
func WalkFrames(stored []byte, maxWindow uint64) ([]Frame, error) {
	var frames []Frame
	for at := 0; at < len(stored); {
		if len(stored)-at < 4 {
			return nil, incomplete("a frame")
		}
		number := binary.LittleEndian.Uint32(stored[at:])
		switch {
		case number == FrameMagic:
			one, err := WalkFrame(stored, at, maxWindow)
			if err != nil {
				return nil, err
			}
			frames = append(frames, one)
			at = one.End
		case number&skippableMask == skippableMagic:
			if len(stored)-at < 8 {
				return nil, incomplete("a skippable frame")
			}
			size := uint64(binary.LittleEndian.Uint32(stored[at+4:]))
			if size > uint64(len(stored)-at-8) {
				return nil, incomplete("a skippable frame")
			}
			at += 8 + int(size)
		default:
			return nil, broken(BadCompression, "S-CMP-5", "no zstd frame where one must start").
				found("% x at stored byte %d", stored[at:at+4], at)
		}
	}
	if len(frames) == 0 {
		return nil, broken(BadCompression, "S-CMP-4", "the entry has no zstd frame")
	}
	return frames, nil
}

func incomplete(what string) *Error {
	return broken(BadCompression, "S-CMP-4", what+" is incomplete")
}

// WalkFrame reads the data frame that starts at an offset.
func WalkFrame(stored []byte, start int, maxWindow uint64) (Frame, error) {
	one, at, hasChecksum, err := frameHeader(stored, start, maxWindow)
	if err != nil {
		return one, err
	}
	for last := false; !last; {
		if len(stored)-at < 3 {
			return one, incomplete("a zstd frame")
		}
		block := uint32(stored[at]) | uint32(stored[at+1])<<8 | uint32(stored[at+2])<<16
		last = block&1 != 0
		size := int(block >> 3)
		switch block >> 1 & 3 {
		case 1:
			size = 1
		case 3:
			return one, broken(BadCompression, "S-CMP-4", "a zstd block has the reserved type")
		}
		at += 3
		if len(stored)-at < size {
			return one, incomplete("a zstd frame")
		}
		at += size
	}
	if hasChecksum {
		if len(stored)-at < 4 {
			return one, incomplete("a zstd frame")
		}
		at += 4
	}
	one.End, one.HasChecksum = at, hasChecksum
	return one, nil
}

// frameHeader reads the header of a frame, and returns where its blocks start.
func frameHeader(stored []byte, start int, maxWindow uint64) (Frame, int, bool, error) {
	one := Frame{Start: start}
	at := start + 4
	take := func(count int) []byte {
		if len(stored)-at < count {
			return nil
		}
		at += count
		return stored[at-count : at]
	}
	b := take(1)
	if b == nil {
		return one, 0, false, incomplete("a zstd frame")
	}
	descriptor := b[0]
	if descriptor&0x08 != 0 {
		return one, 0, false, broken(BadCompression, "S-CMP-4", "a reserved bit of a zstd frame header is set")
	}
	single := descriptor&0x20 != 0
	var window uint64
	if !single {
		if b = take(1); b == nil {
			return one, 0, false, incomplete("a zstd frame")
		}
		base := uint64(1) << (10 + b[0]>>3)
		window = base + base>>3*uint64(b[0]&7)
	}
	if b = take([]int{0, 1, 2, 4}[descriptor&3]); b == nil && descriptor&3 != 0 {
		return one, 0, false, incomplete("a zstd frame")
	}
	for _, c := range b {
		if c != 0 {
			return one, 0, false, broken(BadCompression, "S-CMP-6", "a zstd frame needs a dictionary")
		}
	}
	width := []int{0, 2, 4, 8}[descriptor>>6]
	if width == 0 && single {
		width = 1
	}
	if b = take(width); b == nil && width > 0 {
		return one, 0, false, incomplete("a zstd frame")
	}
	if width > 0 {
		var word [8]byte
		copy(word[:], b)
		one.ContentSize, one.HasSize = binary.LittleEndian.Uint64(word[:]), true
		if width == 2 {
			one.ContentSize += 256
		}
	}
	if single {
		window = one.ContentSize
	}
	if window > maxWindow {
		return one, 0, false, broken(LimitExceeded, "S-CMP-7", "a zstd frame needs a window that is too large").
			expected("at most %d bytes", maxWindow).found("%d bytes", window)
	}
	return one, at, descriptor&0x04 != 0, nil
}

// decoder writes no more than the capacity of what it is given. Any number of goroutines may use it: it decodes as many
// frames at once as there are processors. The walk has compared the windows with the limit before.
var decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(largestWindow), zstd.WithDecoderConcurrency(0))
})

// DecodeFrame decodes a frame that was walked to the start of out and returns how many bytes came out (S-CMP-3, S-CMP-4).
func DecodeFrame(stored []byte, one Frame, out []byte) (int, error) {
	if one.HasSize && one.ContentSize > uint64(len(out)) {
		return 0, tooLong(fmt.Sprintf("%d bytes declared", one.ContentSize), len(out))
	}
	shared, err := decoder()
	if err != nil {
		return 0, err
	}
	content, err := shared.DecodeAll(stored[one.Start:one.End], out[:0:len(out)])
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return 0, tooLong(fmt.Sprintf("more than %d bytes", len(out)), len(out))
	case errors.Is(err, zstd.ErrCRCMismatch):
		return 0, broken(ChecksumMismatch, "S-CMP-4", "the checksum of a zstd frame does not fit")
	case err != nil:
		e := broken(BadCompression, "S-CMP-4", "zstd cannot decode it")
		e.Err = err
		return 0, e
	case len(content) > len(out):
		return 0, tooLong(fmt.Sprintf("%d bytes", len(content)), len(out))
	case one.HasSize && uint64(len(content)) != one.ContentSize:
		return 0, broken(SizeMismatch, "S-CMP-3", "a zstd frame is shorter than it declares").
			expected("%d bytes", one.ContentSize).found("%d bytes", len(content))
	}
	return len(content), nil
}

func tooLong(found string, room int) *Error {
	return broken(SizeMismatch, "S-CMP-3", "a zstd frame holds more than the index says").
		expected("at most %d bytes", room).found("%s", found)
}

// DecodeZstd decodes all frames into memory of exactly the size of the entry.
func DecodeZstd(stored, out []byte, maxWindow uint64) error {
	frames, err := WalkFrames(stored, maxWindow)
	if err != nil {
		return err
	}
	done := 0
	for _, one := range frames {
		count, err := DecodeFrame(stored, one, out[done:])
		if err != nil {
			return err
		}
		done += count
	}
	return Exactly(done, len(out))
}

// Exactly checks that an entry decodes to its size (S-CMP-3).
func Exactly(found, expected int) error {
	if found != expected {
		return broken(SizeMismatch, "S-CMP-3", "the entry decodes to another size").
			expected("%d bytes", expected).found("%d bytes", found)
	}
	return nil
}

// smallestSized is the size from which on the encoder declares the content size of any frame; below it, only that of a
// frame of a single segment.
const smallestSized = 256

// encoders are made once, by level, checksum and single segment. EncodeAll may be called at the same time.
var encoders [zstd.SpeedBestCompression + 1][2][2]atomic.Pointer[zstd.Encoder]

func encoderFor(size, level int, checksum bool) (*zstd.Encoder, error) {
	speed, single := zstd.EncoderLevelFromZstd(level), size < smallestSized
	place := &encoders[speed][asIndex(checksum)][asIndex(single)]
	if found := place.Load(); found != nil {
		return found, nil
	}
	made, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(speed), zstd.WithEncoderCRC(checksum), zstd.WithSingleSegment(single))
	if err != nil {
		return nil, err
	}
	place.CompareAndSwap(nil, made)
	return place.Load(), nil
}

func asIndex(flag bool) int {
	if flag {
		return 1
	}
	return 0
}

// CompressZstd makes one frame with its content size.
func CompressZstd(data []byte, level int, checksum bool) ([]byte, error) {
	return AppendZstd(nil, data, level, checksum)
}

// AppendZstd appends data to out as one frame with its content size.
func AppendZstd(out, data []byte, level int, checksum bool) ([]byte, error) {
	encoder, err := encoderFor(len(data), level, checksum)
	if err != nil {
		return nil, err
	}
	return encoder.EncodeAll(data, out), nil
}
