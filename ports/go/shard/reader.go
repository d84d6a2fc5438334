package shard

import (
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	firstRead = 4096
	headPiece = 8 << 20
	longRead  = 64 << 20
	// longestRead is far above the memory of any machine, and below what Go can address.
	longestRead = 1 << 44
)

// Options changes how a file is read. The zero value is right for most.
type Options struct {
	// Limits is what the file may ask for; raise one for files that you trust.
	Limits Limits
	// SkipChecks leaves out the checksums of entries. Structure is always checked.
	SkipChecks bool
}

// ShardReader gives the entries of a file by name.
//
// Opening reads the head of the file and checks its structure. Any number of goroutines may use a reader.
type ShardReader struct {
	source io.ReaderAt
	closer io.Closer
	name   string
	header Header
	head   []byte
	index  *index
	limits Limits
	checks bool
	closed atomic.Bool
	// mutex guards closing, the change of mapping, and kept.
	mutex sync.Mutex
	// kept has seek tables by the offsets of their blocks.
	kept    map[uint64]frames
	mapping atomic.Pointer[mapping]
	// large is held while a large compressed entry is scanned.
	large sync.Mutex
}

// OpenShard opens a file. Close it.
func OpenShard(path string, options ...Options) (*ShardReader, error) {
	file, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	reader, err := newReader(file, size, path, options)
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	reader.closer = file
	return reader, nil
}

// openRegular opens a file that is not a folder, a pipe or a device, and does not wait for a pipe to get a writer.
func openRegular(path string) (*os.File, int64, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, ioError("cannot open", path, err)
	}
	status, err := file.Stat()
	if err == nil && !status.Mode().IsRegular() {
		err = &Error{Code: CodeInvalidArgument, Path: path, Problem: "not a regular file"}
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, ioError("cannot open", path, err)
	}
	return file, status.Size(), nil
}

// NewReader reads a file of the given size from anything that reads at an offset: bytes in memory, a range of a
// larger file, an object store. Errors have the name of a source that has the method Name. Close does not close the source.
func NewReader(source io.ReaderAt, size int64, options ...Options) (*ShardReader, error) {
	name := ""
	if named, ok := source.(interface{ Name() string }); ok {
		name = named.Name()
	}
	return newReader(source, size, name, options)
}

func newReader(source io.ReaderAt, size int64, name string, options []Options) (*ShardReader, error) {
	var chosen Options
	if len(options) > 0 {
		chosen = options[0]
	}
	r := &ShardReader{source: source, name: name, limits: chosen.Limits.withDefaults(), checks: !chosen.SkipChecks}
	if err := r.open(uint64(max(size, 0))); err != nil {
		return nil, located(err, name, "")
	}
	return r, nil
}

func (r *ShardReader) open(size uint64) error {
	// The head is kept, and mostly it is much shorter than the first read.
	first, done := takeBuffer(min(size, firstRead))
	defer done()
	err := r.readInto(0, first)
	if err != nil {
		return err
	}
	if r.header, err = parseHeader(first, size, r.limits); err != nil {
		return err
	}
	head := make([]byte, r.header.DataSectionOffset)
	if read := copy(head, first); read < len(head) {
		if err := r.readHead(head, read); err != nil {
			return err
		}
	}
	r.head = head[:headerSize]
	r.index, err = parseIndex(head, r.header, r.limits)
	return err
}

// readHead reads a head from an offset on, a long one in several pieces at once.
func (r *ShardReader) readHead(head []byte, start int) error {
	rest := head[start:]
	return inParallel((len(rest)+headPiece-1)/headPiece, func(i int) error {
		piece := rest[i*headPiece : min((i+1)*headPiece, len(rest))]
		return r.readInto(uint64(start+i*headPiece), piece)
	})
}

func (r *ShardReader) readAt(offset, length uint64) ([]byte, error) {
	if err := r.probe(offset, length); err != nil {
		return nil, err
	}
	data := make([]byte, length)
	return data, r.readInto(offset, data)
}

// probe reads the last of many bytes before memory is made for them: a raw entry may be as long as its source, and a source
// may claim more than it has.
func (r *ShardReader) probe(offset, length uint64) error {
	if length <= longRead {
		return nil
	}
	if length > longestRead || uint64(int(length)) != length {
		return broken(CodeLimitExceeded, "", "too many bytes to be read at once: read ranges, or use a view").
			expected("at most %d bytes", uint64(longestRead)).found("%d", length)
	}
	return r.readInto(offset+length-1, make([]byte, 1))
}

func (r *ShardReader) checkOpen() error {
	if r.closed.Load() {
		return &Error{Code: CodeClosed, Path: r.name, Problem: "the reader is closed"}
	}
	return nil
}

func (r *ShardReader) readInto(offset uint64, data []byte) error {
	if err := r.checkOpen(); err != nil {
		return err
	}
	count, err := r.source.ReadAt(data, int64(offset))
	if count == len(data) {
		return nil
	}
	if err == io.EOF || err == nil {
		return broken(CodeTruncated, "", "the file ends before it should").
			expected("%d bytes at offset %d", len(data), offset).found("%d", count)
	}
	return ioError("cannot read", r.name, err)
}

// Close ends the reader. A second call does nothing. Views stay valid until they are released.
func (r *ShardReader) Close() error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.closed.Swap(true) {
		return nil
	}
	if m := r.mapping.Load(); m != nil {
		m.done()
	}
	if r.closer == nil {
		return nil
	}
	if err := r.closer.Close(); err != nil {
		return ioError("cannot close", r.name, err)
	}
	return nil
}

// --- what is there

// Header gives the header, field by field.
func (r *ShardReader) Header() Header { return r.header }

// Name is the path of the file; empty if it has none.
func (r *ShardReader) Name() string { return r.name }

// EntryCount is the number of entries.
func (r *ShardReader) EntryCount() int { return r.index.count }

// EntryNames gives all names, in the order of the index.
func (r *ShardReader) EntryNames() []string {
	// One string for all: a million small ones would take longer than opening the file.
	table := string(r.index.table)
	names := make([]string, r.index.count)
	for i := range names {
		offset, length := namePlace(r.index.rows[i*indexEntrySize:])
		names[i] = table[offset:][:length]
	}
	return names
}

// EntryName is the name of the entry in a row; empty if there is no such row.
func (r *ShardReader) EntryName(i int) string {
	if r.checkRow(i) != nil {
		return ""
	}
	return r.index.name(i)
}

// Lookup gives the row of a name, or -1.
func (r *ShardReader) Lookup(name string) int {
	return r.index.find(name)
}

// HasEntry reports whether there is an entry of that name.
func (r *ShardReader) HasEntry(name string) bool { return r.Lookup(name) >= 0 }

// ListPrefix gives the names that start with a prefix, in the order of the index.
func (r *ShardReader) ListPrefix(prefix string) []string {
	var found []string
	for i := range r.index.count {
		if name := r.index.nameBytes(i); len(name) >= len(prefix) && string(name[:len(prefix)]) == prefix {
			found = append(found, string(name))
		}
	}
	return found
}

// EntryInfo is what the index says about one entry.
type EntryInfo struct {
	IndexEntry
	Name  string
	Codec Codec
	// HasChecksum is false for an entry that the file has no checksum of.
	HasChecksum bool
}

// Info gives what the index says about an entry. The entry itself is not read.
func (r *ShardReader) Info(name string) (EntryInfo, error) {
	i, err := r.row(name)
	if err != nil {
		return EntryInfo{}, err
	}
	return r.InfoAt(i)
}

// InfoAt gives what the index says about the entry in a row.
func (r *ShardReader) InfoAt(i int) (EntryInfo, error) {
	if err := r.checkRow(i); err != nil {
		return EntryInfo{}, err
	}
	e := r.index.entry(i)
	codec, err := r.codec(e)
	if err != nil {
		return EntryInfo{}, located(err, r.name, r.index.name(i))
	}
	return EntryInfo{IndexEntry: e, Name: r.index.name(i), Codec: codec, HasChecksum: r.hasChecksum(e)}, nil
}

func (r *ShardReader) row(name string) (int, error) {
	i := r.index.find(name)
	if i < 0 {
		return 0, &Error{Code: CodeEntryNotFound, Path: r.name, Entry: name, Problem: "no such entry"}
	}
	return i, nil
}

func (r *ShardReader) checkRow(i int) error {
	if i < 0 || i >= r.index.count {
		return &Error{Code: CodeInvalidArgument, Path: r.name, Problem: "no such row", Found: strconv.Itoa(i)}
	}
	return nil
}

// --- reading

// ReadEntry gives all bytes of an entry, decompressed and checked.
func (r *ShardReader) ReadEntry(name string) ([]byte, error) {
	i, err := r.row(name)
	if err != nil {
		return nil, err
	}
	return r.ReadEntryAt(i)
}

// ReadEntryAt gives all bytes of the entry in a row, decompressed and checked.
func (r *ShardReader) ReadEntryAt(i int) ([]byte, error) {
	if err := r.checkRow(i); err != nil {
		return nil, err
	}
	data, err := r.readAll(r.index.entry(i))
	if err != nil {
		return nil, located(err, r.name, r.index.name(i))
	}
	return data, nil
}

// ReadEntries gives the bytes of many entries, read and decoded by several goroutines.
func (r *ShardReader) ReadEntries(names ...string) ([][]byte, error) {
	contents := make([][]byte, len(names))
	err := inParallel(len(names), func(i int) (err error) {
		contents[i], err = r.ReadEntry(names[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	return contents, nil
}

// ReadInto reads an entry into memory that has exactly its size. After an error the memory may hold anything.
func (r *ShardReader) ReadInto(name string, out []byte) error {
	i, err := r.row(name)
	if err != nil {
		return err
	}
	e := r.index.entry(i)
	codec, err := r.checkSizes(e)
	if err == nil && uint64(len(out)) != e.OrigSize {
		err = invalid("the memory has not the size of the entry").expected("%d bytes", e.OrigSize).found("%d", len(out))
	}
	if err == nil {
		err = r.decodeInto(e, codec, out)
	}
	if err == nil {
		err = r.verify(e, out)
	}
	return located(err, r.name, name)
}

// ReadRange gives the bytes of an entry from start to end. Of a seekable entry only the frames that hold them are read,
// decoded and checked; of a raw entry only the bytes themselves are read, without a check.
func (r *ShardReader) ReadRange(name string, start, end uint64) ([]byte, error) {
	i, err := r.row(name)
	if err != nil {
		return nil, err
	}
	e := r.index.entry(i)
	if start > end || end > e.OrigSize {
		return nil, &Error{Code: CodeInvalidArgument, Path: r.name, Entry: name, Problem: "the range is outside the entry"}
	}
	data, err := r.readRange(e, start, end)
	if err != nil {
		return nil, located(err, r.name, name)
	}
	return data, nil
}

// SeekFrames gives the frames of a seekable entry; nil for any other.
func (r *ShardReader) SeekFrames(name string) ([]SeekFrame, error) {
	i, err := r.row(name)
	if err != nil {
		return nil, err
	}
	table, err := r.seekTable(r.index.entry(i))
	if err != nil || table == nil {
		return nil, located(err, r.name, name)
	}
	return table.frames, nil
}

// Filters gives what was done to an entry before it was compressed; nil for nothing.
func (r *ShardReader) Filters(name string) (*Filters, error) {
	i, err := r.row(name)
	if err != nil {
		return nil, err
	}
	filters, _, err := r.filters(r.index.entry(i))
	return filters, located(err, r.name, name)
}
