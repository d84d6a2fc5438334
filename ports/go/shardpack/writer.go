package shardpack

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/shard-format/shard/ports/go/internal/codec"
	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// batch is how much waits in memory before it is written.
const batch = 1 << 20

// Sample is one sample in memory: what you write.
type Sample struct {
	// Key names the sample, and is unique in the shard or in the set of shards.
	Key string
	// Metadata is what you want to know about the sample without reading its entries.
	Metadata shard.Object
	// Entries are written in this order.
	Entries []FileEntry
}

// FileEntry is one named entry of a sample.
type FileEntry struct {
	Name string
	Data []byte
	// ContentType is a media type. If it is empty, the ending of the name decides, unless Untyped is set.
	ContentType string
	// Untyped stores an empty content type.
	Untyped bool
}

// WriterOptions says how to write a shard. The zero value writes alignment 8 without compression.
type WriterOptions struct {
	// Alignment is 1, 8 or 64; 0 for 8. With 64, arrays and episodes inside the shard can be used in place.
	Alignment uint8
	// Compression is EncodingNone, EncodingLZ4 or EncodingZstd, for entries whose content type is not compressed already.
	Compression Encoding
	// Level of zstd; 0 for 3.
	Level int
	// User has your own fields about the shard.
	User shard.Object
	// Created is the time that the shard states, such as "2024-01-01T00:00:00Z". If it is empty, it comes from the
	// environment variable SOURCE_DATE_EPOCH or the clock.
	Created string
	// Overwrite replaces a file that is there when the new one is complete. Without it, such a file is an error.
	Overwrite bool
	// NoSync skips syncing to disk: faster, but a power failure can lose the file.
	NoSync bool
}

func (o WriterOptions) withDefaults() (WriterOptions, error) {
	if o.Alignment == 0 {
		o.Alignment = 8
	}
	if !validAlignment(o.Alignment) {
		return o, invalid("P-REC-4", "unknown alignment %d: expected 1, 8 or 64", o.Alignment)
	}
	if o.Compression != EncodingNone && o.Compression != EncodingLZ4 && o.Compression != EncodingZstd {
		return o, invalid("", "this package does not write the encoding %s", o.Compression)
	}
	if o.Level == 0 {
		o.Level = codec.UsualLevel
	}
	if o.User == nil {
		o.User = shard.Object{}
	}
	text, err := shard.CanonicalJSON(o.User)
	if err == nil {
		_, err = parseObject(text, "the metadata of the shard", "P-IDX-8", limitsOf(nil))
	}
	if err == nil && uint64(len(text)) > limitsOf(nil).MaxJSONBytes {
		err = invalid("S-SCH-7", "it is too long")
	}
	if err != nil { // now rather than after an hour
		e := invalid("P-IDX-8", "the fields of the user cannot be stored")
		e.Err = err
		return o, e
	}
	if o.Created == "" {
		o.Created, err = creationTime()
	}
	return o, err
}

func creationTime() (string, error) {
	now := time.Now()
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", invalid("", "SOURCE_DATE_EPOCH is not a number of seconds: %.40q", text)
		}
		now = time.Unix(seconds, 0)
	}
	return now.UTC().Format("2006-01-02T15:04:05Z"), nil
}

// Writer writes one shard, record by record, in one pass. The file appears under its name when Finalize returns; until
// then, and after an error, what was there before stays. A killed process leaves a hidden file, ".NAME.….partial", from
// which Recover recovers the records. Not for several goroutines at once.
type Writer struct {
	path    string
	options WriterOptions
	encoder encoder
	// file is nil if the shard goes somewhere else.
	file   *partialFile
	buffer *bufio.Writer
	// digest is of all bytes, if the shard belongs to a set.
	digest   hash.Hash
	position uint64
	offsets  []uint64
	hashes   []uint64
	keys     keySet
	schema   schemaCounter
	others   shard.Object
	fields   shard.Object
	footer   Footer
	done     bool
	failed   error
}

// Create starts a shard. Call Finalize or Close.
func Create(path string, options WriterOptions) (*Writer, error) {
	w, err := newWriter(path, options)
	if err != nil {
		return nil, fault.Located(err, path, "")
	}
	return w, nil
}

// NewWriter starts a shard that goes to anything that takes bytes: a pipe, an upload, memory. It gets the shard from its
// first byte to its last. After an error, or Close without Finalize, it has a part of one, which Recover reads.
func NewWriter(out io.Writer, options WriterOptions) (*Writer, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Writer{
		options: options, keys: keySet{}, others: shard.Object{}, buffer: bufio.NewWriterSize(out, batch),
		encoder: encoder{alignment: options.Alignment, encoding: options.Compression, level: options.Level},
	}, nil
}

func newWriter(path string, options WriterOptions) (*Writer, error) {
	if err := checkFree(path, options.Overwrite); err != nil {
		return nil, err
	}
	w, err := NewWriter(nil, options)
	if err != nil {
		return nil, err
	}
	if w.file, err = createPartial(path); err != nil {
		return nil, err
	}
	w.path = path
	w.buffer.Reset(w.file)
	return w, nil
}

// checkFree refuses to replace a file unless that is asked for.
func checkFree(path string, overwrite bool) error {
	if overwrite {
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		return invalid("", "the file exists: set Overwrite to replace it")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fault.IO("cannot write", path, err)
	}
	return nil
}

// Len is the number of records that were written.
func (w *Writer) Len() int { return len(w.offsets) }

// Write adds a record. After an error about the sample itself the shard is unchanged, and you can go on writing.
func (w *Writer) Write(s Sample) error {
	if err := w.ready(); err != nil {
		return err
	}
	encoded, err := w.encoder.sample(s)
	if err == nil {
		err = w.write(encoded)
	}
	return fault.Located(err, w.path, "")
}

// Copy adds a record of another shard as it is stored: entries are checked, but not decoded.
func (w *Writer) Copy(r *Record) error {
	if err := w.ready(); err != nil {
		return err
	}
	encoded, err := w.encoder.stored(r)
	if err == nil {
		err = w.write(encoded)
	}
	return fault.Located(err, w.path, "")
}

// KeepFields keeps fields of another shard's metadata that this package does not know.
func (w *Writer) KeepFields(metadata shard.Object) {
	for key, value := range metadata {
		switch key {
		case "created", "schema", "user", "version":
		default:
			w.others[key] = value
		}
	}
}

func (w *Writer) ready() error {
	if w.done {
		return &shard.Error{Code: shard.CodeClosed, Path: w.path, Problem: "the writer is closed"}
	}
	return w.failed
}

func (w *Writer) write(r *encodedRecord) error {
	if w.keys.has(r.key) {
		return inRecord(invalid("P-REC-10", "the key was written before"), r.key)
	}
	if uint64(len(w.offsets)) >= mostRecords {
		return broken(shard.CodeLimitExceeded, "P-IDX-1", "too many records in one shard")
	}
	if err := r.pieces(w.options.Alignment, w.append); err != nil {
		w.failed = fault.IO("cannot write", w.path, err)
		return w.failed
	}
	w.keys.add(r.key)
	w.offsets, w.hashes = append(w.offsets, w.position), append(w.hashes, xxhash.Sum64String(r.key))
	w.position += r.size
	w.schema.add(r.kinds)
	return nil
}

func (w *Writer) append(piece []byte) error {
	if w.digest != nil {
		_, _ = w.digest.Write(piece) // never fails
	}
	_, err := w.buffer.Write(piece)
	return err
}

// hashContent computes the SHA-256 of the file while it is written.
func (w *Writer) hashContent() { w.digest = sha256.New() }

// Flush hands all records to the operating system, so that they survive if this process is killed.
func (w *Writer) Flush() error {
	if err := w.ready(); err != nil {
		return err
	}
	if err := w.buffer.Flush(); err != nil {
		w.failed = fault.IO("cannot write", w.path, err)
	}
	return w.failed
}

// sizeWith is about the size of the file with one more record.
func (w *Writer) sizeWith(record uint64) uint64 {
	const roomForMetadata = 1024
	return w.position + record + 20*uint64(len(w.offsets)+1) + smallestFile + roomForMetadata
}

// Finalize writes the index, syncs the file and gives it its name. A second call does nothing.
func (w *Writer) Finalize() error {
	if w.done {
		return nil
	}
	if err := w.finish(); err != nil {
		_ = w.Close()
		return fault.Located(err, w.path, "")
	}
	w.done = true
	return nil
}

func (w *Writer) finish() error {
	if w.failed != nil {
		return w.failed
	}
	fields := shard.Object{"created": w.options.Created, "user": w.options.User, "version": int64(version)}
	for key, value := range w.others {
		fields[key] = value
	}
	if schema := w.schema.fields(); schema != nil {
		fields["schema"] = schema
	}
	metadata, err := shard.CanonicalJSON(fields)
	if err != nil {
		return err
	}
	index, footer := buildIndex(w.offsets, w.hashes, w.position, metadata)
	if err := w.append(index); err != nil {
		return fault.IO("cannot write", w.path, err)
	}
	if err := w.buffer.Flush(); err != nil {
		return fault.IO("cannot write", w.path, err)
	}
	w.fields, w.footer = fields, footer
	if w.file == nil {
		return nil
	}
	if err := checkFree(w.path, w.options.Overwrite); err != nil {
		return err
	}
	return w.file.publish(!w.options.NoSync)
}

// Close ends the writer without a file, unless Finalize was called. A second call does nothing.
func (w *Writer) Close() error {
	if !w.done && w.file != nil {
		w.file.discard()
	}
	w.done = true
	return nil
}

// --- keys

// keySet knows keys by half of their SHA-256: 16 bytes for each, whatever its length. Two keys never share one, not even
// keys that somebody has chosen to; keys that share an XXH64 can be made.
type keySet map[[16]byte]struct{}

func digestOf(key string) [16]byte {
	sum := sha256.Sum256([]byte(key))
	return [16]byte(sum[:16])
}

func (k keySet) has(key string) bool {
	_, there := k[digestOf(key)]
	return there
}

func (k keySet) add(key string) { k[digestOf(key)] = struct{}{} }

// --- schema

const mostNames = 256

// schemaCounter counts how many records have an entry of each name.
type schemaCounter struct {
	// last is of the records that were not counted yet; most records share their kinds.
	last    *kinds
	pending int64
	rows    map[string]*schemaRow
	tooMany bool
}

type schemaRow struct {
	contentType string
	records     int64
}

func (c *schemaCounter) add(k *kinds) {
	if k != c.last {
		c.count()
		c.last = k
	}
	c.pending++
}

func (c *schemaCounter) count() {
	if c.rows == nil {
		c.rows = map[string]*schemaRow{}
	}
	if c.last == nil || c.pending == 0 {
		return
	}
	for i, name := range c.last.names {
		known := c.rows[name]
		if known == nil {
			if len(c.rows) >= mostNames {
				c.tooMany = true
				break
			}
			known = &schemaRow{contentType: c.last.contentTypes[i]}
			c.rows[name] = known
		}
		if known.contentType != c.last.contentTypes[i] {
			known.contentType = "" // it varies
		}
		known.records += c.pending
	}
	c.pending = 0
}

// fields gives the schema; nil if there are too many names.
func (c *schemaCounter) fields() shard.Object {
	c.count()
	if c.tooMany {
		return nil
	}
	schema := shard.Object{}
	for name, known := range c.rows {
		schema[name] = shard.Object{"content_type": known.contentType, "records": known.records}
	}
	return schema
}
