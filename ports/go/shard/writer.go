package shard

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/shard-format/shard/ports/go/internal/files"
)

const (
	smallestCompressed = 256
	longestName        = math.MaxUint16
)

// ShardOptions says how to write a file. The zero value writes role 0, without alignment and compression.
type ShardOptions struct {
	// Role says what the file is for.
	Role Role
	// Alignment is 0, 16, 32 or 64: every entry starts on a multiple of it.
	Alignment uint8
	// Compression is what WriteEntry does: CompressionNone, CompressionZstd or CompressionLZ4.
	Compression Codec
	// Level of zstd; 0 for 3.
	Level int
	// MaxEntries reserves the head for at most this number of entries, so that blocks are written in place; 0 spools
	// them and gives the canonical bytes.
	MaxEntries int
	// Names of all entries in order, instead of MaxEntries: blocks are written in place, and the bytes are canonical.
	Names []string
	// Identity adds the entry meta/identity at the end.
	Identity bool
	// Schema is the schema section; nil for none.
	Schema Object
	// NoSync skips syncing to disk: faster, but a power failure can lose the file.
	NoSync bool
}

// Names of codecs.
const (
	CompressionNone = CodecNone
	CompressionZstd = CodecZstd
	CompressionLZ4  = CodecLZ4
)

// ContentTypeRaw is the content type of plain bytes.
const ContentTypeRaw = ContentTypeUnknown

// ShardStreamWriter writes entries one by one. The file appears under its name when Finalize returns; until then, and
// after an error, what was there before stays. Not for several goroutines at once.
type ShardStreamWriter struct {
	path    string
	options ShardOptions
	file    *os.File
	// blocks is where data goes: the file itself behind its head, or a spool.
	blocks   *os.File
	buffered *bufio.Writer
	// spool is the path of a spool that cannot be removed while it is open, as on Windows.
	spool    string
	headSize uint64
	position uint64
	entries  []IndexEntry
	names    []string
	seen     map[string]bool
	digests  map[string]string
	done     bool
	failed   error
	// copied is a buffer for entries that are copied from elsewhere.
	copied []byte
}

// NewShardStreamWriter starts a file. Call Finalize or Close.
func NewShardStreamWriter(path string, options ShardOptions) (*ShardStreamWriter, error) {
	if !validAlignment(options.Alignment) {
		return nil, located(invalid("unknown alignment").expected("0, 16, 32 or 64").found("%d", options.Alignment), path, "")
	}
	if options.Compression > CodecLZ4 || options.MaxEntries < 0 || options.MaxEntries > defaultMaxEntries {
		return nil, located(invalid("unknown compression, or too many entries to reserve"), path, "")
	}
	if err := checkSchema(options.Schema); err != nil {
		return nil, located(invalid("the schema section is wrong: %v", err), path, "")
	}
	w := &ShardStreamWriter{path: path, options: options, seen: map[string]bool{}, digests: map[string]string{}}
	var err error
	if w.file, err = createBeside(path); err != nil {
		return nil, ioError("cannot write", path, err)
	}
	w.blocks = w.file
	switch {
	case options.Names != nil:
		names := options.Names
		if options.Identity {
			names = append(append([]string(nil), names...), identityEntry)
		}
		w.headSize = w.headFor(names)
	case options.MaxEntries > 0:
		room := uint64(options.MaxEntries) * (indexEntrySize + roomForName)
		w.headSize = AlignUp(headerSize+room, options.Alignment)
	default:
		w.blocks, err = createBeside(path)
		if err == nil && os.Remove(w.blocks.Name()) != nil { // without a name it goes with this process
			w.spool = w.blocks.Name()
		}
	}
	if err == nil {
		_, err = w.blocks.Seek(int64(w.headSize), io.SeekStart)
	}
	if err != nil {
		w.abort()
		return nil, ioError("cannot write", path, err)
	}
	w.buffered = bufio.NewWriterSize(w.blocks, 1<<16)
	return w, nil
}

// createBeside makes a file with a name of its own in the folder of another, with the permissions that new files get.
func createBeside(path string) (*os.File, error) {
	name := filepath.Join(filepath.Dir(path), ".shard-"+rand.Text()+".partial")
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
}

// BeginData does nothing: the first entry begins the data.
func (w *ShardStreamWriter) BeginData() error { return nil }

func (w *ShardStreamWriter) terminator() uint64 {
	if w.options.Role == RoleWSHARD {
		return 0
	}
	return 1
}

func (w *ShardStreamWriter) headFor(names []string) uint64 {
	size := headerSize + indexEntrySize*uint64(len(names))
	for _, name := range names {
		size += uint64(len(name)) + w.terminator()
	}
	return AlignUp(size, w.options.Alignment)
}

// EntryOptions changes how one entry is written.
type EntryOptions struct {
	ContentType uint16
	TagBits     uint16
	// Codec replaces the one of the file if HasCodec is set.
	Codec    Codec
	HasCodec bool
	// FrameBytes makes a zstd entry seekable: frames of that many bytes, and a seek table.
	FrameBytes int
	// Filters are applied to each frame before zstd.
	Filters *Filters
}

// WriteEntry writes an entry, compressed as the options of the file say; the content type is a hint.
func (w *ShardStreamWriter) WriteEntry(name string, data []byte, contentType ...uint16) error {
	var options EntryOptions
	if len(contentType) > 0 {
		options.ContentType = contentType[0]
	}
	return w.WriteEntryWith(name, data, options)
}

// WriteEntryWith writes an entry with options of its own.
func (w *ShardStreamWriter) WriteEntryWith(name string, data []byte, options EntryOptions) error {
	if err := w.ready(); err != nil {
		return err
	}
	if name == identityEntry && w.options.Identity {
		return located(invalid("the writer adds this entry itself"), w.path, name)
	}
	return w.write(name, data, options)
}

func (w *ShardStreamWriter) ready() error {
	if w.done {
		return &Error{Code: CodeClosed, Path: w.path, Problem: "the writer is closed"}
	}
	return w.failed
}

func (w *ShardStreamWriter) write(name string, data []byte, options EntryOptions) error {
	if err := w.checkName(name); err != nil {
		return located(err, w.path, name)
	}
	codec := w.options.Compression
	if options.HasCodec {
		codec = options.Codec
	}
	stored, flags, err := w.encode(data, codec, options)
	if err != nil {
		return located(err, w.path, name)
	}
	return w.put(name, data, stored, flags, options)
}

// put writes the stored form of an entry.
func (w *ShardStreamWriter) put(name string, data, stored []byte, flags uint16, options EntryOptions) error {
	start := AlignUp(w.position, w.options.Alignment)
	if len(w.entries) == 0 {
		start = 0
	}
	if err := w.append(padding[:start-w.position]); err != nil {
		return err
	}
	if err := w.append(stored); err != nil {
		return err
	}
	w.entries = append(w.entries, IndexEntry{
		NameHash: hashName(name), NameLength: uint16(len(name)), Flags: flags, DataOffset: start,
		DiskSize: uint64(len(stored)), OrigSize: uint64(len(data)), CRC32C: ComputeChecksum(data),
		ContentType: options.ContentType, TagBits: options.TagBits,
	})
	w.names, w.seen[name] = append(w.names, name), true
	if w.options.Identity && name != identityEntry {
		w.digests[name] = hexDigest(data)
	}
	return nil
}

var padding [64]byte

// append writes at the end of the data. Data offsets count from the start of the data section until Finalize.
func (w *ShardStreamWriter) append(data []byte) error {
	if w.failed != nil {
		return w.failed
	}
	count, err := w.buffered.Write(data)
	w.position += uint64(count)
	if err != nil {
		w.failed = ioError("cannot write", w.path, err)
	}
	return w.failed
}

func (w *ShardStreamWriter) checkName(name string) error {
	switch {
	case name == "" || len(name) > longestName || strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		e := invalid("the name cannot be stored").expected("1 to %d bytes of UTF-8 without NUL", longestName)
		e.Rule = "S-NAM-6"
		return e
	case len(w.names) >= defaultMaxEntries:
		return broken(CodeLimitExceeded, "S-HDR-8", "too many entries").expected("at most %d", defaultMaxEntries)
	case w.seen[name]:
		e := broken(CodeDuplicateName, "S-NAM-4", "the entry is written twice")
		return e
	case w.options.Names != nil && name != identityEntry:
		if number := len(w.names); number >= len(w.options.Names) || w.options.Names[number] != name {
			return invalid("another entry was announced for this place")
		}
	case w.options.MaxEntries > 0 && len(w.names) >= w.options.MaxEntries:
		return broken(CodeLimitExceeded, "", "more entries than the head was reserved for").expected("at most %d", w.options.MaxEntries)
	}
	return nil
}

// encode gives the stored bytes of an entry and its flags (S-CMP-10).
func (w *ShardStreamWriter) encode(data []byte, codec Codec, options EntryOptions) ([]byte, uint16, error) {
	if codec != CodecZstd && (options.FrameBytes > 0 || options.Filters != nil) {
		return nil, 0, invalid("frames and filters need zstd").found("%s", codec)
	}
	if codec == CodecNone || len(data) <= smallestCompressed {
		return data, 0, nil
	}
	if uint64(len(data)) > defaultMaxDecompressedBytes {
		return nil, 0, broken(CodeLimitExceeded, "S-CMP-2", "the entry is too large to be compressed").
			expected("at most %d bytes", defaultMaxDecompressedBytes).found("%d", len(data))
	}
	stored, flags, err := w.compress(data, codec, options)
	if err != nil {
		return nil, 0, err
	}
	if len(stored) == 0 || uint64(len(stored)) >= uint64(len(data))*9/10 {
		return data, 0, nil
	}
	return stored, flags, nil
}

func (w *ShardStreamWriter) compress(data []byte, codec Codec, options EntryOptions) ([]byte, uint16, error) {
	if codec == CodecLZ4 {
		stored, err := compressLZ4(data)
		return stored, codec.flags(), err
	}
	level := w.options.Level
	if level == 0 {
		level = usualLevel
	}
	if options.FrameBytes == 0 && options.Filters == nil {
		stored, err := compressZstd(data, level, false)
		return stored, codec.flags(), err
	}
	return seekableForm(data, level, options)
}

// seekableForm compresses an entry in frames with a seek table, each filtered on its own.
func seekableForm(data []byte, level int, options EntryOptions) ([]byte, uint16, error) {
	var stored []byte
	flags := CodecZstd.flags()
	size := options.FrameBytes
	if size <= 0 || size > len(data) {
		size = len(data)
	}
	if f := options.Filters; f != nil {
		if _, err := parseFilters(f.Description()); err != nil {
			return nil, 0, invalid("the filters are wrong: %v", err)
		}
		if err := f.checkFrame(uint64(size)); err != nil {
			return nil, 0, invalid("frames of %d bytes do not suit the filters: %v", size, err)
		}
		if err := f.checkFrame(uint64(len(data) % size)); err != nil {
			return nil, 0, invalid("the entry does not suit the filters: %v", err)
		}
		flags |= entryFiltered
		text := f.Description()
		stored = binary.LittleEndian.AppendUint32(stored, filterFrameMagic)
		stored = binary.LittleEndian.AppendUint32(stored, uint32(len(text)))
		stored = append(stored, text...)
	}
	if uint64(size) > math.MaxUint32 {
		return nil, 0, invalid("a frame has at most 2**32 - 1 bytes")
	}
	var frames []SeekFrame
	for start := 0; start < len(data); start += size {
		part := data[start:min(start+size, len(data))]
		if options.Filters != nil {
			part = options.Filters.apply(part)
		}
		one, err := compressZstd(part, level, true)
		if err != nil {
			return nil, 0, err
		}
		stored = append(stored, one...)
		frames = append(frames, SeekFrame{
			CompressedSize: uint32(len(one)), DecompressedSize: uint32(len(part)),
			Checksum: uint32(xxhash.Sum64(part) & math.MaxUint32), HasChecksum: true,
		})
	}
	return appendSeekTable(stored, frames), flags, nil
}

// Finalize writes the head, syncs the file and gives it its name.
func (w *ShardStreamWriter) Finalize() error {
	if w.done {
		return nil
	}
	err := w.finish()
	if err != nil {
		w.abort()
		return located(err, w.path, "")
	}
	w.done = true
	return nil
}

// Close ends the writer without a file, unless Finalize was called. A second call does nothing.
func (w *ShardStreamWriter) Close() error {
	if !w.done {
		w.abort()
	}
	return nil
}

func (w *ShardStreamWriter) abort() {
	w.done = true
	w.closeSpool()
	_ = w.file.Close()
	_ = os.Remove(w.file.Name())
}

func (w *ShardStreamWriter) closeSpool() {
	if w.blocks != nil && w.blocks != w.file {
		_ = w.blocks.Close()
	}
	if w.spool != "" {
		_ = os.Remove(w.spool)
	}
}

func (w *ShardStreamWriter) finish() error {
	if w.failed != nil {
		return w.failed
	}
	schema, err := w.schemaText()
	if err != nil {
		return err
	}
	count := len(w.names)
	if w.options.Identity {
		if err := w.writeIdentity(); err != nil {
			return err
		}
	}
	if w.options.Names != nil && count < len(w.options.Names) {
		return invalid("not all announced entries were written").expected("%d", len(w.options.Names)).found("%d", count)
	}
	names := w.headFor(w.names)
	if w.blocks != w.file {
		w.headSize = names
	} else if names > w.headSize {
		return broken(CodeLimitExceeded, "", "the names need more room than the head was reserved for").
			expected("at most %d bytes", w.headSize).found("%d", names)
	}
	index := headerSize + indexEntrySize*uint64(len(w.names))
	if table := w.headSize - index; table > defaultMaxStringTableBytes {
		return broken(CodeLimitExceeded, "S-HDR-12", "the names, or the room that is reserved for them, are too large").
			expected("at most %d bytes", defaultMaxStringTableBytes).found("%d", table)
	}
	if err := w.append(schema); err != nil {
		return err
	}
	if err := w.buffered.Flush(); err != nil {
		return ioError("cannot write", w.path, err)
	}
	if err := w.writeHead(uint64(len(schema))); err != nil {
		return ioError("cannot write", w.path, err)
	}
	return w.publish()
}

func (w *ShardStreamWriter) schemaText() ([]byte, error) {
	if w.options.Schema == nil {
		return nil, nil
	}
	text, err := CanonicalJSON(w.options.Schema)
	if err != nil {
		return nil, err
	}
	_, err = parseObject(text, "the schema section", "S-SCH-2", Limits{}.withDefaults())
	return text, err
}

func (w *ShardStreamWriter) writeIdentity() error {
	digest, err := schemaDigest(w.options.Schema)
	if err != nil {
		return err
	}
	identity := Identity{Entries: w.digests, Role: w.options.Role, Schema: digest, Version: 2}
	return w.write(identityEntry, identity.Text(), EntryOptions{ContentType: ContentTypeJSON, HasCodec: true})
}

// writeHead writes header, index and names, and brings spooled blocks behind them.
func (w *ShardStreamWriter) writeHead(schemaSize uint64) error {
	h := Header{
		Version: version, Role: w.options.Role, Flags: flagLittleEndian | flagChecksums, Alignment: w.options.Alignment,
		CompressionDefault: w.options.Compression, IndexEntrySize: indexEntrySize, EntryCount: uint32(len(w.entries)),
		StringTableOffset: headerSize + indexEntrySize*uint64(len(w.entries)), DataSectionOffset: w.headSize,
		TotalFileSize: w.headSize + w.position,
	}
	if schemaSize > 0 {
		h.Flags |= flagSchema
		h.SchemaOffset = h.TotalFileSize - schemaSize
	}
	if w.options.MaxEntries > 0 && w.options.Names == nil {
		h.Flags |= flagReservedHead
	}
	head := make([]byte, h.StringTableOffset, w.headSize)
	offset := uint32(0)
	for i, name := range w.names {
		e := w.entries[i]
		e.NameOffset, e.DataOffset = offset, e.DataOffset+w.headSize
		if e.ContentType != 0 {
			h.Flags |= flagContentTypes
		}
		e.pack(head[headerSize+i*indexEntrySize:])
		head = append(head, name...)
		head = append(head, make([]byte, w.terminator())...)
		offset += uint32(uint64(len(name)) + w.terminator())
	}
	copy(head, h.pack())
	head = head[:w.headSize] // made with this capacity, and zero
	if _, err := w.file.WriteAt(head, 0); err != nil {
		return err
	}
	if w.blocks == w.file {
		return nil
	}
	if _, err := w.blocks.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := w.file.Seek(int64(w.headSize), io.SeekStart); err != nil {
		return err
	}
	count, err := io.Copy(w.file, w.blocks)
	if err == nil && uint64(count) != w.position {
		err = errors.New("the spooled blocks are incomplete")
	}
	return err
}

// publish syncs the file and gives it its name.
func (w *ShardStreamWriter) publish() error {
	w.closeSpool()
	// An empty last block may lie behind the last byte that was written.
	if err := w.file.Truncate(int64(w.headSize + w.position)); err != nil {
		return ioError("cannot write", w.path, err)
	}
	if before, err := os.Lstat(w.path); err == nil && before.Mode().IsRegular() { // as private as the file was before
		if err := w.file.Chmod(before.Mode().Perm()); err != nil {
			return ioError("cannot write", w.path, err)
		}
	}
	if err := files.Publish(w.file, w.path, !w.options.NoSync); err != nil {
		return ioError("cannot write", w.path, err)
	}
	return nil
}
