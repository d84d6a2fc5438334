package shardpack

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	usualShardSize = 1 << 30
	largestSchema  = 64 << 10
	// A row of a set file without the name of its file, and everything but rows, schema and the fields of the user.
	roomForRow   = 300
	roomForOther = 8 << 10
)

// SetOptions says how to write a set of shards.
type SetOptions struct {
	// Shards is how each shard is written. Overwrite is not possible: remove the old set first.
	Shards WriterOptions
	// MaxBytes starts a new shard before the file would grow above this size; 0 for 1 GiB. A larger record gets a shard
	// of its own.
	MaxBytes uint64
	// MaxRecords starts a new shard after this many records; 0 for no limit.
	MaxRecords int
	// Revision names this state of the set; empty for the time of creation.
	Revision string
}

// SetWriter writes a set of shards and the set file that lists them. Each shard appears when it is complete, and the set
// file when all are. Keys are unique in the whole set. A killed process leaves complete shards without a set file, and the
// hidden file of the last one. Not for several goroutines at once.
type SetWriter struct {
	name    setName
	options SetOptions
	keys    keySet
	writer  *Writer
	rows    []any
	schemas []shard.Object
	records int
	done    bool
}

// setName is the name of the shards of a set, such as "data/train-%06d.shardpack".
type setName struct {
	folder, base          string
	before, number, after string
}

func parseSetName(output string) (setName, error) {
	n := setName{folder: filepath.Dir(output), base: filepath.Base(output)}
	masked := strings.ReplaceAll(n.base, "%%", "\x00\x00")
	places := numberForm.FindAllStringIndex(masked, -1)
	if len(places) != 1 || strings.Count(masked, "%") != 1 || checkFileName(n.base) != nil {
		return n, invalid("P-SET-6", "the name of a set needs exactly one number, as in train-%%06d.shardpack")
	}
	n.before, n.number, n.after = n.base[:places[0][0]], n.base[places[0][0]:places[0][1]], n.base[places[0][1]:]
	if digits := n.number[1 : len(n.number)-1]; digits != "" && (digits[0] != '0' || len(digits) > 3) {
		return n, invalid("P-SET-6", "the number of a set is written %%d or %%06d")
	}
	return n, nil
}

// shard is the path of the shard of a number.
func (n setName) shard(number int) string {
	digits, _ := strconv.Atoi(n.number[1 : len(n.number)-1])
	text := n.before + "\x00" + n.after
	text = strings.ReplaceAll(text, "%%", "%")
	return filepath.Join(n.folder, strings.Replace(text, "\x00", fmt.Sprintf("%0*d", digits, number), 1))
}

// setFile is the path of the set file (section 9.3).
func (n setName) setFile() string {
	before := n.before
	if before != "" && strings.ContainsAny(before[len(before)-1:], "-_.") {
		before = before[:len(before)-1]
	}
	stem := strings.ReplaceAll(before+strings.TrimSuffix(n.after, shardSuffix), "%%", "%")
	if stem == "" {
		stem = "set"
	}
	return filepath.Join(n.folder, stem+setSuffix)
}

// CreateSet starts a set of shards with names such as "train-%06d.shardpack". Call Finalize or Close.
func CreateSet(output string, options SetOptions) (*SetWriter, error) {
	w, err := newSetWriter(output, options)
	if err != nil {
		return nil, fault.Located(err, output, "")
	}
	return w, nil
}

func newSetWriter(output string, options SetOptions) (*SetWriter, error) {
	name, err := parseSetName(output)
	if err != nil {
		return nil, err
	}
	if options.Shards.Overwrite {
		return nil, invalid("P-SET-9", "a set cannot be replaced: remove the old one first")
	}
	if options.MaxRecords < 0 || utf8.RuneCountInString(options.Revision) > longestRevision || !utf8.ValidString(options.Revision) {
		return nil, invalid("P-SET-6", "MaxRecords is negative, or the revision is too long or not UTF-8")
	}
	// One time for all shards.
	if options.Shards, err = options.Shards.withDefaults(); err != nil {
		return nil, err
	}
	if options.MaxBytes == 0 {
		options.MaxBytes = usualShardSize
	}
	w := &SetWriter{name: name, options: options, keys: keySet{}}
	if _, err := os.Lstat(name.setFile()); err == nil {
		return nil, invalid("", "the set file %s exists", filepath.Base(name.setFile()))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.IO("cannot write", name.setFile(), err)
	}
	return w, w.start()
}

// start begins the next shard.
func (w *SetWriter) start() error {
	user, err := shard.CanonicalJSON(w.options.Shards.User)
	if err != nil {
		return err
	}
	room := int(limitsOf(nil).MaxJSONBytes) - largestSchema - roomForOther - len(user)
	if most := min(mostShards, room/(roomForRow+len(w.name.base))); len(w.rows) >= most {
		return mismatch(shard.CodeLimitExceeded, "P-SET-5", "the set has too many shards: raise MaxBytes or MaxRecords", atMost(uint64(max(most, 0))), len(w.rows)+1)
	}
	next, err := newWriter(w.name.shard(len(w.rows)), w.options.Shards)
	if err != nil {
		return err
	}
	next.keys = w.keys
	next.hashContent()
	w.writer = next
	return nil
}

// Write adds a record, as Writer.Write does.
func (w *SetWriter) Write(s Sample) error {
	return w.add(func(c *encoder) (*encodedRecord, error) { return c.sample(s) })
}

// Copy adds a record of another shard, as Writer.Copy does.
func (w *SetWriter) Copy(r *Record) error {
	return w.add(func(c *encoder) (*encodedRecord, error) { return c.stored(r) })
}

func (w *SetWriter) add(encode func(*encoder) (*encodedRecord, error)) error {
	if w.done {
		return &shard.Error{Code: shard.CodeClosed, Path: w.name.setFile(), Problem: "the writer is closed"}
	}
	if err := w.writer.ready(); err != nil {
		return err
	}
	encoded, err := encode(&w.writer.encoder)
	if err != nil {
		return fault.Located(err, w.writer.path, "")
	}
	if w.isFull(encoded.size) {
		err = w.next()
	}
	if err == nil {
		err = w.writer.write(encoded)
	}
	if err != nil {
		return fault.Located(err, w.writer.path, "")
	}
	w.records++
	return nil
}

func (w *SetWriter) isFull(record uint64) bool {
	count := w.writer.Len()
	return count > 0 && ((w.options.MaxRecords > 0 && count >= w.options.MaxRecords) || w.writer.sizeWith(record) > w.options.MaxBytes)
}

// next finishes a shard and starts another one. If that fails, the set cannot go on.
func (w *SetWriter) next() error {
	err := w.finishShard()
	if err == nil {
		err = w.start()
	}
	if err != nil {
		_ = w.Close()
	}
	return err
}

// finishShard completes the shard that is being written and makes its row.
func (w *SetWriter) finishShard() error {
	if err := w.writer.Finalize(); err != nil {
		return err
	}
	f := w.writer.footer
	schema, _ := w.writer.fields["schema"].(shard.Object)
	w.schemas = append(w.schemas, schema)
	w.rows = append(w.rows, shard.Object{
		"uri": filepath.Base(w.writer.path), "sha256": hex.EncodeToString(w.writer.digest.Sum(nil)),
		"size": f.TotalSize, "records": f.RecordCount, "footer": hex.EncodeToString(f.Bytes()),
	})
	return nil
}

// Finalize finishes the last shard and writes the set file. A set without records has one shard without records. A second
// call does nothing.
func (w *SetWriter) Finalize() error {
	if w.done {
		return nil
	}
	defer func() { _ = w.Close() }()
	if w.writer.Len() > 0 || len(w.rows) == 0 {
		if err := w.finishShard(); err != nil {
			return err
		}
	}
	return fault.Located(w.writeSetFile(), w.name.setFile(), "")
}

func (w *SetWriter) writeSetFile() error {
	o := w.options
	fields := shard.Object{
		"format": setFormat, "version": int64(version), "name": w.name.base, "created": o.Shards.Created, "user": o.Shards.User,
		"revision": o.Revision, "records": int64(w.records), "files": w.rows,
	}
	if o.Revision == "" {
		fields["revision"] = o.Shards.Created
	}
	schema, err := mergeSchemas(w.schemas)
	if err != nil {
		return err
	}
	if schema != nil {
		fields["schema"] = schema
	}
	text, err := shard.CanonicalJSON(fields)
	if err != nil {
		return err
	}
	out, err := shard.NewShardStreamWriter(w.name.setFile(), shard.ShardOptions{
		Role: shard.RoleManifest, Alignment: 64, Names: []string{manifestEntry}, NoSync: o.Shards.NoSync,
	})
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	if err := out.WriteEntry(manifestEntry, text, shard.ContentTypeJSON); err != nil {
		return err
	}
	return out.Finalize()
}

// mergeSchemas adds up the schemas of all shards; nil if one has none, or if together they are too much for a set file.
func mergeSchemas(schemas []shard.Object) (shard.Object, error) {
	merged := shard.Object{}
	for _, schema := range schemas {
		if schema == nil {
			return nil, nil
		}
		for name, value := range schema {
			one := value.(shard.Object)
			known, there := merged[name].(shard.Object)
			if !there {
				known = shard.Object{"content_type": one["content_type"], "records": int64(0)}
				merged[name] = known
			}
			if known["content_type"] != one["content_type"] {
				known["content_type"] = ""
			}
			known["records"] = known["records"].(int64) + one["records"].(int64)
		}
	}
	text, err := shard.CanonicalJSON(merged)
	if err != nil || len(merged) > mostNames || len(text) > largestSchema {
		return nil, err
	}
	return merged, nil
}

// Close drops the shard that is being written, unless Finalize was called; finished shards stay. A second call does
// nothing.
func (w *SetWriter) Close() error {
	w.done = true
	return w.writer.Close()
}
