package shardpack

import (
	"errors"
	"io"
	"iter"
	"os"

	"github.com/cespare/xxhash/v2"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	// tailRead holds the footer and the index of a shard of up to about 3000 records.
	tailRead = 1 << 16
	// window is how much is read at once when records are read in order.
	window = 1 << 20
)

// Reader gives the records of one shard by number and by key. Opening reads the index. Any number of goroutines may use
// a reader.
type Reader struct {
	source *source
	index  *index
	closer io.Closer
}

// Open opens a shard. Close it.
func Open(path string, options ...Options) (*Reader, error) {
	file, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	r, err := newReader(file, size, path, limitsOf(options))
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	r.closer = file
	return r, nil
}

func openFile(path string) (*os.File, uint64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, fault.IO("cannot open", path, err)
	}
	status, err := file.Stat()
	if err == nil && !status.Mode().IsRegular() {
		err = invalid("", "not a regular file")
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, fault.IO("cannot open", path, err)
	}
	return file, uint64(status.Size()), nil
}

// NewReader reads a shard of the given size from anything that reads at an offset: bytes in memory, a range of a larger
// file, an object store. Close does not close it.
func NewReader(at io.ReaderAt, size int64, options ...Options) (*Reader, error) {
	return newReader(at, uint64(max(size, 0)), "", limitsOf(options))
}

func newReader(at io.ReaderAt, size uint64, name string, limits Limits) (*Reader, error) {
	r := &Reader{source: &source{at: at, name: name, limits: limits}}
	if err := r.open(size); err != nil {
		return nil, fault.Located(err, name, "")
	}
	return r, nil
}

func (r *Reader) open(size uint64) error {
	start := size - min(size, tailRead)
	tail, err := r.source.read(start, size-start)
	if err != nil {
		return err
	}
	footer, err := parseFooter(tail, size, nil)
	if errors.Is(err, shard.ErrInvalidShardMagic) { // what the file starts with says more
		first, failed := r.source.read(0, min(size, blockStartSize))
		if failed != nil {
			return failed
		}
		footer, err = parseFooter(tail, size, first)
	}
	if err != nil {
		return err
	}
	if err := checkIndexSize(footer, r.source.limits); err != nil {
		return err
	}
	data := tail
	if footer.IndexOffset >= start {
		data = tail[footer.IndexOffset-start:]
	} else if data, err = r.source.read(footer.IndexOffset, footer.indexSize()); err != nil {
		return err
	}
	r.index, err = newIndex(data, footer, r.source.limits)
	return err
}

// Close ends the reader, and its records. A second call does nothing.
func (r *Reader) Close() error {
	if r.source.closed.Swap(true) || r.closer == nil {
		return nil
	}
	if err := r.closer.Close(); err != nil {
		return fault.IO("cannot close", r.source.name, err)
	}
	return nil
}

// Name is the path of the shard; empty if it has none.
func (r *Reader) Name() string { return r.source.name }

// Footer gives the last bytes of the shard, field by field.
func (r *Reader) Footer() Footer { return r.index.footer }

// Len is the number of records.
func (r *Reader) Len() int { return int(r.index.footer.RecordCount) }

// Metadata gives the fields of the shard: created, schema, user, version and others. It is parsed each time.
func (r *Reader) Metadata() (shard.Object, error) {
	fields, err := r.index.metadata()
	return fields, fault.Located(err, r.source.name, "")
}

// Offsets gives where each record starts, and where the last one ends.
func (r *Reader) Offsets() ([]uint64, error) {
	if err := r.index.checkOffsets(); err != nil {
		return nil, fault.Located(err, r.source.name, "")
	}
	offsets := make([]uint64, r.Len()+1)
	for i := range offsets {
		offsets[i] = r.index.offset(i)
	}
	return offsets, nil
}

// Record opens the record of a number, from 0 on. It reads the head, and small records as a whole.
func (r *Reader) Record(i int) (*Record, error) {
	record, err := r.openRecord(i)
	if err != nil {
		return nil, err
	}
	if err := checkKey(record.key()); err != nil {
		return nil, atOffset(err, r.source.name, record.offset)
	}
	return record, nil
}

// openRecord opens a record whose key may be no text.
func (r *Reader) openRecord(i int) (*Record, error) {
	if err := r.index.checkOffsets(); err != nil {
		return nil, fault.Located(err, r.source.name, "")
	}
	if i < 0 || i >= r.Len() {
		return nil, fault.Located(mismatch(shard.CodeEntryNotFound, "", "no such record", below(r.Len()), i), r.source.name, "")
	}
	offset := r.index.offset(i)
	size := r.index.offset(i+1) - offset
	first, err := r.source.read(offset, min(size, firstRead))
	if err != nil {
		return nil, fault.Located(err, r.source.name, "")
	}
	record, err := openRecord(r.source, offset, size, first)
	if err != nil {
		return nil, atOffset(err, r.source.name, offset)
	}
	return record, nil
}

// Find gives the number of the record with a key; false if there is none.
func (r *Reader) Find(key string) (int, bool, error) {
	if err := r.index.checkLookup(); err != nil {
		return 0, false, fault.Located(err, r.source.name, "")
	}
	number, found := 0, false
	for candidate := range r.index.withHash(xxhash.Sum64String(key)) {
		record, err := r.Record(candidate)
		if err != nil {
			return 0, false, err
		}
		if record.Key() != key || (found && number == candidate) {
			continue
		}
		if found {
			return 0, false, fault.Located(duplicate(key), r.source.name, "")
		}
		number, found = candidate, true
	}
	return number, found, nil
}

func duplicate(key string) error {
	return inRecord(broken(shard.CodeDuplicateName, "P-REC-10", "two records have this key"), key)
}

// ByKey opens the record with a key.
func (r *Reader) ByKey(key string) (*Record, error) {
	number, found, err := r.Find(key)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, noSuchKey(key, r.source.name)
	}
	return r.Record(number)
}

func noSuchKey(key, name string) error {
	return fault.Located(inRecord(&shard.Error{Code: shard.CodeEntryNotFound, Problem: "no such record"}, key), name, "")
}

// Records gives all records in the order of the file; small ones are read together. A damaged record gives an error
// instead, and the next one follows.
func (r *Reader) Records() iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		if err := r.index.checkOffsets(); err != nil {
			yield(nil, fault.Located(err, r.source.name, ""))
			return
		}
		for i := 0; i < r.Len(); {
			begin, stop := r.index.offset(i), i+1
			for stop < r.Len() && r.index.offset(stop+1)-begin <= window {
				stop++
			}
			block, err := r.source.read(begin, min(r.index.offset(stop)-begin, window))
			if err != nil {
				yield(nil, fault.Located(err, r.source.name, ""))
				return
			}
			for ; i < stop; i++ {
				offset, end := r.index.offset(i), r.index.offset(i+1)
				first := block[offset-begin : min(end-begin, uint64(len(block)))]
				if !yield(newRecord(r.source, offset, end-offset, first)) {
					return
				}
			}
		}
	}
}
