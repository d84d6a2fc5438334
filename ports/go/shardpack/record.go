package shardpack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"slices"
	"sync/atomic"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/internal/strictjson"
	"github.com/shard-format/shard/ports/go/shard"
)

// firstRead is what is read of a record at first: enough for nearly every head, and for small records as a whole.
const firstRead = 4096

// source is where the bytes of a shard come from.
type source struct {
	at     io.ReaderAt
	name   string
	limits Limits
	kinds  kindsCache
	closed atomic.Bool
}

// ReadAt makes a source the base of sections.
func (s *source) ReadAt(data []byte, offset int64) (int, error) {
	if s.closed.Load() {
		return 0, &shard.Error{Code: shard.CodeClosed, Path: s.name, Problem: "the shard is closed"}
	}
	return s.at.ReadAt(data, offset)
}

func (s *source) read(offset, size uint64) ([]byte, error) {
	if size > math.MaxInt || offset > math.MaxInt64 {
		return nil, mismatch(shard.CodeLimitExceeded, "", "more bytes than this machine can hold", atMost(math.MaxInt), size)
	}
	data := make([]byte, size)
	count, err := s.ReadAt(data, int64(offset))
	if count == len(data) {
		return data, nil
	}
	if err == io.EOF || err == nil {
		return nil, mismatch(shard.CodeTruncated, "", "the file became shorter while it was read", size, count)
	}
	if errors.Is(err, fs.ErrClosed) { // by another goroutine, just now
		err = &shard.Error{Code: shard.CodeClosed, Path: s.name, Problem: "the shard is closed"}
	}
	return nil, fault.IO("cannot read", s.name, err)
}

// Record is one sample of a shard: a key, metadata and named entries. Its head was checked; entries are read and checked
// when you ask for them. Any number of goroutines may use a record.
type Record struct {
	source *source
	offset uint64
	head   fixedHead
	kinds  *kinds
	// block has the first bytes of the record: the head at least.
	block []byte
	// starts is where the stored bytes of each entry start in the record; outside for entries that leave it.
	starts []uint64
}

const outside = math.MaxUint64

// openRecord opens the record that takes size bytes from an offset on. first is what is in memory of it already. The key
// is not checked: newRecord does.
func openRecord(s *source, offset, size uint64, first []byte) (*Record, error) {
	h, err := parseFixedHead(first, size)
	if err != nil {
		return nil, err
	}
	if have := uint64(len(first)); have < h.headSize() {
		rest, err := s.read(offset+have, h.headSize()-have)
		if err != nil {
			return nil, err
		}
		first = slices.Concat(first, rest)
	}
	head := first[:h.headSize()]
	if err := checkHead(head); err != nil {
		return nil, err
	}
	k, err := s.kinds.parse(head[h.kindsAt():h.keyAt()], int(h.entryCount))
	if err != nil {
		return nil, err
	}
	r := &Record{source: s, offset: offset, head: h, kinds: k, block: first}
	r.starts = r.places()
	return r, nil
}

// newRecord opens a record and checks its key.
func newRecord(s *source, offset, size uint64, first []byte) (*Record, error) {
	r, err := openRecord(s, offset, size, first)
	if err == nil {
		err = checkKey(r.key())
	}
	if err != nil {
		return nil, atOffset(err, s.name, offset)
	}
	return r, nil
}

// atOffset adds where a record starts to an error about its head.
func atOffset(err error, name string, offset uint64) error {
	var known *shard.Error
	if errors.As(err, &known) && known.Code != shard.CodeClosed {
		at := *known
		at.Problem = fmt.Sprintf("record at byte %d: %s", offset, at.Problem)
		err = &at
	}
	return fault.Located(err, name, "")
}

// places follows the sizes of the entries (section 4).
func (r *Record) places() []uint64 {
	starts := make([]uint64, len(r.kinds.names))
	end, fits := r.head.headSize(), true
	for i := range starts {
		starts[i] = outside
		if !fits {
			continue
		}
		var start uint64
		start, fits = alignUp(end, r.head.alignment)
		size := r.row(i).storedSize
		if fits = fits && start <= r.head.recordSize && size <= r.head.recordSize-start; fits {
			starts[i], end = start, start+size
		}
	}
	return starts
}

func (r *Record) row(i int) row { return unpackRow(r.block[fixedHeadSize+rowSize*i:]) }

func (r *Record) key() []byte { return r.block[r.head.keyAt():r.head.metadataAt()] }

// Key names the sample. It is unique in its shard.
func (r *Record) Key() string { return string(r.key()) }

// Offset is where the record starts in its shard.
func (r *Record) Offset() uint64 { return r.offset }

// Size is the bytes that the record takes in its shard, padding included.
func (r *Record) Size() uint64 { return r.head.recordSize }

// Alignment is 1, 8 or 64: entries start on multiples of it, from the start of the record.
func (r *Record) Alignment() uint8 { return r.head.alignment }

// StoredMetadata gives the metadata as it is in the file. Do not change the bytes.
func (r *Record) StoredMetadata() (MetadataEncoding, []byte) {
	return r.head.metadataEncoding, r.block[r.head.metadataAt() : r.head.headSize()-checksumSize]
}

// Metadata gives what the writer stored about the sample; empty if there is nothing. It is parsed each time.
//
// Values are those of shard.Object for JSON, and those of DecodeMessagePack for MessagePack, in which maps with other
// keys than strings stay a Map. If the metadata itself has such keys, decode StoredMetadata.
func (r *Record) Metadata() (shard.Object, error) {
	object, err := r.metadata()
	if err != nil {
		return nil, r.failed(err, "")
	}
	return object, nil
}

func (r *Record) metadata() (shard.Object, error) {
	value, err := r.decodeMetadata()
	if err != nil {
		return nil, err
	}
	object, isObject := asObjects(value).(shard.Object)
	if !isObject {
		return nil, invalid("", "the metadata has keys that are not strings: decode StoredMetadata")
	}
	return object, nil
}

// decodeMetadata gives an object or a Map (P-MTD).
func (r *Record) decodeMetadata() (any, error) {
	encoding, stored := r.StoredMetadata()
	switch encoding {
	case MetadataJSON:
		return parseObject(stored, "the metadata", "P-MTD-2", r.source.limits)
	case MetadataMessagePack:
		value, err := decodeMessagePack(stored, r.source.limits)
		if _, isMap := value.(Map); err == nil && !isMap {
			err = mismatch(shard.CodeBadMetadata, "P-MTD-3", "the metadata is not a map", "a map", fmt.Sprintf("%T", value))
		}
		return value, err
	}
	return shard.Object{}, r.checkNoMetadata()
}

// checkNoMetadata checks P-MTD-1.
func (r *Record) checkNoMetadata() error {
	if r.head.metadataEncoding == MetadataNone && r.head.metadataSize > 0 {
		return broken(shard.CodeBadMetadata, "P-MTD-1", "metadata is present, but its encoding is 'none'")
	}
	return nil
}

// parseObject reads a JSON object of the strict subset.
func parseObject(text []byte, what, rule string, limits Limits) (shard.Object, error) {
	value, err := strictjson.Parse(text, int(min(limits.MaxJSONNodes, math.MaxInt)))
	if errors.Is(err, strictjson.ErrTooManyNodes) {
		return nil, mismatch(shard.CodeLimitExceeded, "S-SCH-8", what+" has too many values", atMost(limits.MaxJSONNodes), "more")
	}
	if err != nil {
		e := broken(shard.CodeBadMetadata, rule, what+" is not valid JSON")
		e.Err = err
		return nil, e
	}
	object, isObject := value.(shard.Object)
	if !isObject {
		return nil, broken(shard.CodeBadMetadata, rule, what+" is not a JSON object")
	}
	return object, nil
}

// failed adds file, record and entry to an error.
func (r *Record) failed(err error, entry string) error {
	return fault.Located(inRecord(err, r.Key()), r.source.name, entry)
}

// --- entries

// Len is the number of entries.
func (r *Record) Len() int { return len(r.kinds.names) }

// Names gives the names of the entries, in the order of the file.
func (r *Record) Names() []string { return slices.Clone(r.kinds.names) }

// Entries gives the entries, in the order of the file. Nothing is read.
func (r *Record) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for i := range r.kinds.names {
			if !yield(Entry{r, i}) {
				return
			}
		}
	}
}

// Entry gives the entry of a name. Nothing is read.
func (r *Record) Entry(name string) (Entry, error) {
	i, there := r.kinds.byName[name]
	if !there {
		return Entry{}, r.failed(&shard.Error{Code: shard.CodeEntryNotFound, Problem: "no such entry"}, name)
	}
	return Entry{r, i}, nil
}

// ReadEntry gives the content of the entry of a name, decompressed and checked. Do not change the bytes.
func (r *Record) ReadEntry(name string) ([]byte, error) {
	e, err := r.Entry(name)
	if err != nil {
		return nil, err
	}
	return e.Bytes()
}

// Sample reads the whole record into memory of its own.
func (r *Record) Sample() (Sample, error) {
	metadata, err := r.Metadata()
	if err != nil {
		return Sample{}, err
	}
	s := Sample{Key: r.Key(), Metadata: metadata, Entries: make([]FileEntry, 0, r.Len())}
	for e := range r.Entries() {
		data, err := e.Bytes()
		if err != nil {
			return Sample{}, err
		}
		s.Entries = append(s.Entries, FileEntry{
			Name: e.Name(), Data: bytes.Clone(data), ContentType: e.ContentType(), Untyped: e.ContentType() == "",
		})
	}
	return s, nil
}

// Entry is one named entry of a record.
type Entry struct {
	record *Record
	number int
}

// Name is unique in the record.
func (e Entry) Name() string { return e.record.kinds.names[e.number] }

// ContentType is a media type such as "image/jpeg"; empty if it is not known.
func (e Entry) ContentType() string { return e.record.kinds.contentTypes[e.number] }

// Size is the bytes of the content, as the record states it.
func (e Entry) Size() uint64 { return e.record.row(e.number).originalSize }

// StoredSize is the bytes in the file, as the record states it.
func (e Entry) StoredSize() uint64 { return e.record.row(e.number).storedSize }

// Encoding says how the content is stored.
func (e Entry) Encoding() Encoding { return e.record.row(e.number).encoding }

// CRC32C is the checksum of the stored bytes.
func (e Entry) CRC32C() uint32 { return e.record.row(e.number).crc32c }

// Offset is where the stored bytes start in the shard.
func (e Entry) Offset() (uint64, error) {
	start := e.record.starts[e.number]
	if start == outside {
		return 0, e.failed(mismatch(shard.CodeBadOffset, "P-ENT-1", "the entry extends beyond its record",
			atMost(e.record.head.recordSize), e.StoredSize()))
	}
	return e.record.offset + start, nil
}

// Stored gives the bytes as they are in the file, checked against their checksum (P-ENT-1, P-ENT-3). Do not change them.
func (e Entry) Stored() ([]byte, error) {
	offset, err := e.Offset()
	if err != nil {
		return nil, err
	}
	r, row := e.record, e.record.row(e.number)
	start := offset - r.offset
	var stored []byte
	if end := start + row.storedSize; end <= uint64(len(r.block)) {
		stored = r.block[start:end:end]
	} else if stored, err = r.source.read(offset, row.storedSize); err != nil {
		return nil, e.failed(err)
	}
	if found := shard.ComputeChecksum(stored); found != row.crc32c {
		return nil, e.failed(mismatch(shard.CodeChecksumMismatch, "P-ENT-3", "the stored bytes are damaged", checksumText(row.crc32c), checksumText(found)))
	}
	return stored, nil
}

// Bytes gives the content, decompressed and checked. Do not change the bytes: they may be part of a larger block.
func (e Entry) Bytes() ([]byte, error) {
	row := e.record.row(e.number)
	if err := row.check(e.record.source.limits); err != nil {
		return nil, e.failed(err)
	}
	stored, err := e.Stored()
	if err != nil || row.encoding == EncodingNone {
		return stored, err
	}
	content, err := row.decode(stored, e.record.source.limits)
	if err != nil {
		return nil, e.failed(err)
	}
	return content, nil
}

// Section gives the content as something to read parts of, so that you can open a file inside a record in its place:
// shard.NewReader(section, section.Size()). The checksum of a raw entry is not checked, because only the parts that you
// ask for are read.
func (e Entry) Section() (*io.SectionReader, error) {
	row := e.record.row(e.number)
	offset, err := e.Offset()
	if err != nil {
		return nil, err
	}
	if row.encoding == EncodingNone && row.storedSize == row.originalSize && e.record.source.at != nil {
		return io.NewSectionReader(e.record.source, int64(offset), int64(row.storedSize)), nil
	}
	content, err := e.Bytes()
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(bytes.NewReader(content), 0, int64(len(content))), nil
}

func (e Entry) failed(err error) error { return e.record.failed(err, e.Name()) }
