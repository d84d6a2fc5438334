package wshard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// A journal is a sequence of frames (spec/journal.md, section 2). Only this file knows their offsets.
const (
	frameMagic     = "WSJ1"
	frameHeadSize  = 40
	frameHeadSaved = 36 // what the checksum of the head covers
	largestRun     = 1 << 30
	largestRatio   = 32768
	pieceBytes     = 1 << 20
)

type frameKind uint8

const (
	frameStart frameKind = 1 + iota
	frameRun
	frameNote
	frameEnd
)

// frameHead is what stands before the bytes of a frame.
type frameHead struct {
	kind        frameKind
	codec       shard.Codec
	channel     uint16
	entries     uint32
	storedSize  uint32
	contentSize uint32
	contentCRC  uint32
	sequence    uint64
	storedCRC   uint32
}

// appendTo appends the head as it is stored.
func (h frameHead) appendTo(out []byte) []byte {
	le := binary.LittleEndian
	start := len(out)
	out = append(out, frameMagic...)
	out = append(out, byte(h.kind), byte(h.codec))
	out = le.AppendUint16(out, h.channel)
	out = le.AppendUint32(out, h.entries)
	out = le.AppendUint32(out, h.storedSize)
	out = le.AppendUint32(out, h.contentSize)
	out = le.AppendUint32(out, h.contentCRC)
	out = le.AppendUint64(out, h.sequence)
	out = le.AppendUint32(out, h.storedCRC)
	return le.AppendUint32(out, shard.ComputeChecksum(out[start:]))
}

// parseFrameHead reads the head that the bytes start with, and makes all checks that need nothing else (J-FRM-1 to
// J-FRM-10). The sequence is the one that must follow.
func parseFrameHead(data []byte, sequence uint64) (frameHead, error) {
	if len(data) < frameHeadSize {
		return frameHead{}, broken(shard.CodeTruncated, "J-FRM-1", "the head of a frame is cut off")
	}
	if string(data[:len(frameMagic)]) != frameMagic {
		return frameHead{}, broken(shard.CodeBadMagic, "J-FRM-2", "no frame starts here")
	}
	le := binary.LittleEndian
	if le.Uint32(data[frameHeadSaved:]) != shard.ComputeChecksum(data[:frameHeadSaved]) {
		return frameHead{}, broken(shard.CodeChecksumMismatch, "J-FRM-3", "the head of a frame is damaged")
	}
	h := frameHead{
		kind:        frameKind(data[4]),
		codec:       shard.Codec(data[5]),
		channel:     le.Uint16(data[6:]),
		entries:     le.Uint32(data[8:]),
		storedSize:  le.Uint32(data[12:]),
		contentSize: le.Uint32(data[16:]),
		contentCRC:  le.Uint32(data[20:]),
		sequence:    le.Uint64(data[24:]),
		storedCRC:   le.Uint32(data[32:]),
	}
	return h, h.check(sequence)
}

func (h frameHead) check(sequence uint64) error {
	switch {
	case h.kind < frameStart || h.kind > frameEnd:
		return broken(shard.CodeBadHeader, "J-FRM-4", "a frame has the unknown kind %d", h.kind)
	case h.codec > shard.CodecZstd || (h.codec != shard.CodecNone && h.kind != frameRun):
		return broken(shard.CodeUnknownCodec, "J-FRM-5", "a frame of kind %d has the codec %d", h.kind, h.codec)
	case h.sequence != sequence:
		return broken(shard.CodeBadHeader, "J-FRM-6", "frame %d where frame %d was expected", h.sequence, sequence)
	case h.codec == shard.CodecNone && h.storedSize != h.contentSize:
		return sizeMismatch("J-FRM-7", "a raw frame has two different sizes", h.contentSize, h.storedSize)
	case h.codec == shard.CodecNone && h.storedCRC != h.contentCRC:
		return broken(shard.CodeChecksumMismatch, "J-FRM-8", "a raw frame has two different checksums")
	case h.codec == shard.CodecZstd && max(h.storedSize, h.contentSize) > largestRun:
		return broken(shard.CodeLimitExceeded, "J-FRM-9", "a compressed run is larger than 1 GiB")
	case h.codec == shard.CodecZstd && uint64(h.contentSize) > largestRatio*uint64(h.storedSize):
		return sizeMismatch("J-FRM-10", "a run cannot decode to the stated size",
			fmt.Sprintf("at most %d bytes", largestRatio*uint64(h.storedSize)), h.contentSize)
	}
	return nil
}

// journalFrame is a complete frame.
type journalFrame struct {
	frameHead
	// start is where the head is, and offset where the stored bytes are.
	start, offset int64
}

// frameReader gives the frames of a journal in order, up to the first one that breaks a rule (J-2). It takes memory for
// one piece of a frame.
type frameReader struct {
	source io.ReaderAt
	size   int64
	// position is where the next frame is expected.
	position int64
	sequence uint64
	isEnded  bool
	// trusts is set for a journal that this process has written: the stored bytes are not read.
	trusts bool
	piece  []byte
}

func newFrameReader(source io.ReaderAt, size int64) *frameReader {
	return &frameReader{source: source, size: size}
}

// next gives the next frame and io.EOF after the last. A frame counts once accept was called.
func (r *frameReader) next() (journalFrame, error) {
	if r.position >= r.size {
		return journalFrame{}, io.EOF
	}
	var buffer [frameHeadSize]byte
	data, err := r.read(r.position, buffer[:min(frameHeadSize, r.size-r.position)])
	if err != nil {
		return journalFrame{}, err
	}
	head, err := parseFrameHead(data, r.sequence)
	if err != nil {
		return journalFrame{}, err
	}
	f := journalFrame{head, r.position, r.position + frameHeadSize}
	if int64(head.storedSize) > r.size-f.offset {
		return f, broken(shard.CodeTruncated, "J-FRM-11", "a frame is cut off")
	}
	if !r.trusts {
		checksum := uint32(0)
		err := r.pieces(f, func(piece []byte) error {
			checksum = shard.UpdateChecksum(checksum, piece)
			return nil
		})
		if err != nil {
			return f, err
		}
		if checksum != head.storedCRC {
			return f, broken(shard.CodeChecksumMismatch, "J-FRM-12", "the stored bytes of a frame are damaged")
		}
	}
	return f, r.checkOrder(head.kind)
}

func (r *frameReader) checkOrder(kind frameKind) error {
	isFirst := r.sequence == 0
	switch {
	case isFirst && kind != frameStart:
		return broken(shard.CodeBadProfile, "J-ORD-1", "the first frame is not a start frame")
	case !isFirst && kind == frameStart:
		return broken(shard.CodeBadProfile, "J-ORD-2", "there is a second start frame")
	case r.isEnded:
		return broken(shard.CodeTrailingData, "J-ORD-3", "there is a frame after the end")
	}
	return nil
}

// accept counts the frame that next gave last.
func (r *frameReader) accept(f journalFrame) {
	r.position = f.offset + int64(f.storedSize)
	r.sequence++
	r.isEnded = f.kind == frameEnd
}

// read fills data. A file that has become shorter is a frame that is cut off.
func (r *frameReader) read(offset int64, data []byte) ([]byte, error) {
	count, err := r.source.ReadAt(data, offset)
	if count == len(data) {
		return data, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return nil, broken(shard.CodeTruncated, "J-FRM-11", "the journal has become shorter")
	}
	return nil, fault.IO("cannot read the journal", "", err)
}

// pieces calls a function with the stored bytes of a frame, some at a time.
func (r *frameReader) pieces(f journalFrame, use func([]byte) error) error {
	if r.piece == nil {
		r.piece = make([]byte, min(pieceBytes, (r.size+7)/8*8)) // whole offsets in each piece
	}
	for at, left := f.offset, int64(f.storedSize); left > 0; {
		piece, err := r.read(at, r.piece[:min(int64(len(r.piece)), left)])
		if err != nil {
			return err
		}
		if err := use(piece); err != nil {
			return err
		}
		at, left = at+int64(len(piece)), left-int64(len(piece))
	}
	return nil
}

// stored reads all stored bytes of a frame, which are in the file.
func (r *frameReader) stored(f journalFrame) ([]byte, error) {
	return r.read(f.offset, make([]byte, f.storedSize))
}
