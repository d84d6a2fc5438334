package shard

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/shard-format/shard/ports/go/internal/codec"
	"github.com/shard-format/shard/ports/go/internal/strictjson"
)

const (
	castagnoliBits = 0x82F63B78
	copyBytes      = 256 << 10
)

// StoredRun is a part of an entry as another file stores it: raw bytes, or one zstd frame with a size and a checksum.
type StoredRun struct {
	Source io.ReaderAt
	Offset int64
	// StoredSize and ContentSize are in bytes.
	StoredSize, ContentSize uint32
	// CRC32C is that of the content.
	CRC32C uint32
}

func (r StoredRun) read(data []byte, offset int64) error {
	count, err := r.Source.ReadAt(data, r.Offset+offset)
	if count == len(data) {
		return nil
	}
	if err == io.EOF || err == nil {
		return broken(CodeTruncated, "", "the stored run ends before it should").
			expected("%d bytes at offset %d", len(data), r.Offset+offset).found("%d", count)
	}
	return err
}

// WriteRuns writes an entry from zstd frames that another file holds. They are copied, not decoded. Several of them make
// a seekable entry. Not for files with an identity, which needs the content.
func (w *ShardStreamWriter) WriteRuns(name string, runs []StoredRun, options EntryOptions) error {
	if err := w.ready(); err != nil {
		return err
	}
	if w.options.Identity || len(runs) == 0 {
		return located(invalid("only a file without an identity can copy runs, and at least one"), w.path, name)
	}
	var head []byte
	flags := CodecZstd.flags()
	if options.Filters != nil {
		flags |= entryFiltered
		head = appendFilterFrame(nil, options.Filters)
	}
	var size uint64
	var checksum uint32
	frames := make([]SeekFrame, len(runs))
	for i, run := range runs {
		var tail [4]byte
		if run.StoredSize < uint32(len(tail)) {
			return located(invalid("a run is too short for a zstd frame"), w.path, name)
		}
		if err := run.read(tail[:], int64(run.StoredSize)-int64(len(tail))); err != nil {
			return located(ioError("cannot read a run", w.path, err), w.path, name)
		}
		frames[i] = SeekFrame{
			CompressedSize: run.StoredSize, DecompressedSize: run.ContentSize,
			Checksum: binary.LittleEndian.Uint32(tail[:]), HasChecksum: true,
		}
		size += uint64(run.ContentSize)
		checksum = combineChecksums(checksum, run.CRC32C, uint64(run.ContentSize))
	}
	return w.writeStreamed(name, options, flags, func() (uint64, uint32, error) {
		if err := w.append(head); err != nil {
			return 0, 0, err
		}
		for _, run := range runs {
			if err := w.copyFrom(io.NewSectionReader(run.Source, run.Offset, int64(run.StoredSize)), uint64(run.StoredSize)); err != nil {
				return 0, 0, err
			}
		}
		if len(runs) > 1 {
			return size, checksum, w.append(appendSeekTable(nil, frames))
		}
		return size, checksum, nil
	})
}

// WriteStream writes a raw entry of a known size from a reader, in constant memory. Not for files with an identity.
func (w *ShardStreamWriter) WriteStream(name string, size uint64, content io.Reader, options EntryOptions) error {
	if err := w.ready(); err != nil {
		return err
	}
	if w.options.Identity {
		return located(invalid("a file with an identity needs whole entries"), w.path, name)
	}
	return w.writeStreamed(name, options, 0, func() (uint64, uint32, error) {
		sum := &checksumReader{inner: content}
		err := w.copyFrom(sum, size)
		return size, sum.value, err
	})
}

// writeStreamed adds an entry whose bytes the body appends; the body returns the size and the checksum of the content.
func (w *ShardStreamWriter) writeStreamed(name string, options EntryOptions, flags uint16, body func() (uint64, uint32, error)) error {
	if err := w.checkName(name); err != nil {
		return located(err, w.path, name)
	}
	start := AlignUp(w.position, w.options.Alignment)
	if len(w.entries) == 0 {
		start = 0
	}
	if err := w.append(make([]byte, start-w.position)); err != nil {
		return err
	}
	size, checksum, err := body()
	if err != nil {
		w.failed = located(err, w.path, name) // what is written is not an entry
		return w.failed
	}
	w.entries = append(w.entries, IndexEntry{
		NameHash: hashName(name), NameLength: uint16(len(name)), Flags: flags, DataOffset: start,
		DiskSize: w.position - start, OrigSize: size, CRC32C: checksum,
		ContentType: options.ContentType, TagBits: options.TagBits,
	})
	w.names, w.seen[name] = append(w.names, name), true
	return nil
}

// copyFrom appends exactly size bytes of a reader.
func (w *ShardStreamWriter) copyFrom(content io.Reader, size uint64) error {
	if w.copied == nil {
		w.copied = make([]byte, copyBytes)
	}
	for left := size; left > 0; {
		count, err := io.ReadFull(content, w.copied[:min(left, copyBytes)])
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return broken(CodeTruncated, "", "the content of the entry ends before it should").
				expected("%d bytes", size).found("%d", size-left+uint64(count))
		}
		if err != nil {
			return ioError("cannot read", w.path, err)
		}
		if err := w.append(w.copied[:count]); err != nil {
			return err
		}
		left -= uint64(count)
	}
	return nil
}

func appendFilterFrame(out []byte, filters *Filters) []byte {
	text := filters.Description()
	out = binary.LittleEndian.AppendUint32(out, filterFrameMagic)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(text)))
	return append(out, text...)
}

type checksumReader struct {
	inner io.Reader
	value uint32
}

func (r *checksumReader) Read(data []byte) (int, error) {
	count, err := r.inner.Read(data)
	r.value = UpdateChecksum(r.value, data[:count])
	return count, err
}

// --- frames on their own

// ParseFilters reads a list of filters as S-FLT-2 describes it.
func ParseFilters(list any) (*Filters, error) {
	text, err := strictjson.Canonical(map[string]any{"filters": list})
	if err != nil || len(text) > maxDescription {
		return nil, badFilter("S-FLT-2", "the description of the filters is too long or not JSON")
	}
	return parseFilters(text)
}

// CheckFrame reports whether a frame of a size can be filtered (S-FLT-5).
func (f *Filters) CheckFrame(size uint64) error { return f.checkFrame(size) }

// AppendDelta appends data to out, as the filter delta leaves it; planes are not applied.
func (f *Filters) AppendDelta(out, data []byte) []byte {
	start := len(out)
	out = append(out, data...)
	for range f.DeltaOrder {
		applyDelta(out[start:], f.DeltaWidth, f.DeltaRow)
	}
	return out
}

// AppendFrame appends data to out as one zstd frame with a size and a checksum, after the filters if there are any.
// Level 0 is 3.
func AppendFrame(out, data []byte, level int, filters *Filters) ([]byte, error) {
	if level == 0 {
		level = usualLevel
	}
	if filters != nil {
		if err := filters.checkFrame(uint64(len(data))); err != nil {
			return nil, err
		}
		data = filters.apply(data)
	}
	return codec.AppendZstd(out, data, level, true)
}

// CheckFrame reports whether the bytes are exactly one zstd frame that has a checksum and declares this size. It
// decodes nothing.
func CheckFrame(stored []byte, size uint64) error {
	if len(stored) < 4 || binary.LittleEndian.Uint32(stored) != frameMagic {
		return broken(CodeBadCompression, "S-CMP-5", "the stored bytes are not one zstd frame")
	}
	one, err := walkFrame(stored, 0, defaultMaxWindowBytes)
	if err != nil {
		return err
	}
	if one.End != len(stored) {
		return broken(CodeBadCompression, "S-CMP-4", "the stored bytes are not one zstd frame")
	}
	if !one.HasSize || one.ContentSize != size {
		return broken(CodeSizeMismatch, "S-CMP-3", "a zstd frame declares another size").
			expected("%d bytes", size).found("%d", one.ContentSize)
	}
	if stored[4]&0x04 == 0 {
		return broken(CodeBadCompression, "S-SEK-5", "a zstd frame has no checksum")
	}
	return nil
}

// DecodeFrame decodes what CheckFrame has accepted into memory of exactly its size, and undoes the filters.
func DecodeFrame(stored, out []byte, filters *Filters) error {
	one, err := leadingFrame(stored, defaultMaxWindowBytes)
	if err != nil {
		return err
	}
	if filters != nil {
		if err := filters.checkFrame(uint64(len(out))); err != nil {
			return err
		}
	}
	count, err := decodeFrame(stored, one, out)
	if err != nil {
		return err
	}
	if err := exactly(count, len(out)); err != nil {
		return err
	}
	if filters != nil {
		filters.undo(out)
	}
	return nil
}

var streamDecoders sync.Pool // of *zstd.Decoder

// FrameReader reads the content of a frame that CheckFrame has accepted, in memory of the size of its window. Close it.
type FrameReader struct {
	decoder *zstd.Decoder
	left    uint64
}

// NewFrameReader starts at the first byte of the content, which has the given size.
func NewFrameReader(stored io.Reader, size uint64) (*FrameReader, error) {
	decoder, _ := streamDecoders.Get().(*zstd.Decoder)
	if decoder == nil {
		var err error
		decoder, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(defaultMaxWindowBytes))
		if err != nil {
			return nil, err
		}
	}
	if err := decoder.Reset(stored); err != nil {
		return nil, frameError(err)
	}
	return &FrameReader{decoder: decoder, left: size}, nil
}

// Read gives the next bytes, and io.EOF after exactly as many as the frame declares.
func (r *FrameReader) Read(out []byte) (int, error) {
	if len(out) == 0 {
		return 0, nil
	}
	if r.left == 0 {
		var one [1]byte
		count, err := r.decoder.Read(one[:])
		if count > 0 {
			return 0, broken(CodeSizeMismatch, "S-CMP-3", "a zstd frame holds more than it declares")
		}
		return 0, frameError(err)
	}
	count, err := r.decoder.Read(out[:min(uint64(len(out)), r.left)])
	r.left -= uint64(count)
	if err == io.EOF && r.left > 0 {
		return count, broken(CodeSizeMismatch, "S-CMP-3", "a zstd frame is shorter than it declares").
			found("%d bytes too few", r.left)
	}
	if err == io.EOF {
		err = nil // the next call looks for more
	}
	return count, frameError(err)
}

// Close gives the decoder back.
func (r *FrameReader) Close() {
	if r.decoder != nil && r.decoder.Reset(nil) == nil {
		streamDecoders.Put(r.decoder)
	}
	r.decoder = nil
}

func frameError(err error) error {
	var known *Error
	switch {
	case err == nil || err == io.EOF || errors.As(err, &known):
		return err
	case errors.Is(err, zstd.ErrCRCMismatch):
		return broken(CodeChecksumMismatch, "S-CMP-4", "the checksum of a zstd frame does not fit")
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return broken(CodeLimitExceeded, "S-CMP-7", "a zstd frame needs a window that is too large")
	}
	e := broken(CodeBadCompression, "S-CMP-4", "zstd cannot decode it")
	e.Err = err
	return e
}

// --- checksums of parts

// combineChecksums is the CRC-32C of two pieces together, from that of each and the size of the second.
func combineChecksums(first, second uint32, size uint64) uint32 {
	if first == 0 {
		return second
	}
	// x to the power of 8 times the size, modulo the polynomial: what so many more bytes do to a checksum.
	shift, square := uint32(1)<<31, uint32(1)<<(31-8)
	for ; size > 0; size >>= 1 {
		if size&1 != 0 {
			shift = multiplyBits(square, shift)
		}
		square = multiplyBits(square, square)
	}
	return multiplyBits(shift, first) ^ second
}

// multiplyBits is the product of two polynomials modulo that of the checksum; the highest bit stands for x to the 0.
func multiplyBits(a, b uint32) uint32 {
	var product uint32
	for a != 0 {
		zeros := bits.LeadingZeros32(a)
		for range zeros {
			b = b>>1 ^ castagnoliBits&-(b&1)
		}
		product ^= b
		b = b>>1 ^ castagnoliBits&-(b&1)
		a = a << zeros << 1
	}
	return product
}
