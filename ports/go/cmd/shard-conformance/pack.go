package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

// --- reading

func readPack(file string) (object, error) {
	r, err := shardpack.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	metadata, err := r.Metadata()
	if err != nil {
		return nil, err
	}
	records := make([]any, 0, r.Len())
	for record, err := range r.Records() {
		if err != nil {
			return nil, err
		}
		told, err := tellRecord(record)
		if err != nil {
			return nil, err
		}
		// Every way to a record must give the same one.
		byKey, err := r.ByKey(record.Key())
		if err != nil {
			return nil, err
		}
		byNumber, err := r.Record(len(records))
		if err != nil {
			return nil, err
		}
		if byKey.Offset() != record.Offset() || byNumber.Offset() != record.Offset() {
			return nil, errors.New("the same record is found at different places")
		}
		records = append(records, told)
	}
	if err := compareStream(file, records); err != nil {
		return nil, err
	}
	return object{"index_offset": number(r.Footer().IndexOffset), "metadata": metadata, "records": records}, nil
}

// compareStream checks that a stream gives the same records.
func compareStream(file string, records []any) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	count := 0
	for record, err := range shardpack.Stream(in) {
		if err != nil {
			return err
		}
		told, err := tellRecord(record)
		if err != nil {
			return err
		}
		if count >= len(records) || line(told) != line(records[count].(object)) {
			return errors.New("a stream gives another record")
		}
		count++
	}
	if count != len(records) {
		return errors.New("a stream gives fewer records")
	}
	return nil
}

func tellRecord(record *shardpack.Record) (object, error) {
	encoding, stored := record.StoredMetadata()
	told := object{
		"alignment": number(record.Alignment()), "key": record.Key(), "key_hash": fmt.Sprintf("%016x", xxhash.Sum64String(record.Key())),
		"metadata_encoding": encoding.String(), "offset": number(record.Offset()), "size": number(record.Size()),
	}
	if encoding == shardpack.MetadataMessagePack {
		value, err := shardpack.DecodeMessagePack(stored)
		if err != nil {
			return nil, err
		}
		told["metadata"] = tagged(value)
	} else {
		metadata, err := record.Metadata()
		if err != nil {
			return nil, err
		}
		told["metadata"] = metadata
	}
	entries := make([]any, 0, record.Len())
	var lines strings.Builder
	for e := range record.Entries() {
		data, err := e.Bytes()
		if err != nil {
			return nil, err
		}
		offset, err := e.Offset()
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&lines, "%s\t%s\n", e.Name(), digest(data))
		entries = append(entries, object{
			"name": e.Name(), "content_type": e.ContentType(), "encoding": e.Encoding().String(), "offset": number(offset),
			"stored_size": number(e.StoredSize()), "original_size": number(e.Size()), "crc32c": fmt.Sprintf("%08x", e.CRC32C()),
			"sha256": digest(data),
		})
	}
	if len(entries) > mostListed {
		told["entries_sha256"] = digest([]byte(lines.String()))
	} else {
		told["entries"] = entries
	}
	return told, nil
}

// tagged tells a value of MessagePack with its type.
func tagged(value any) object {
	switch v := value.(type) {
	case nil:
		return object{"nil": nil}
	case bool:
		return object{"bool": v}
	case int64:
		return object{"int": strconv.FormatInt(v, 10)}
	case uint64:
		return object{"int": strconv.FormatUint(v, 10)}
	case float64:
		return object{"float64_hex": hex.EncodeToString(binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))}
	case string:
		return object{"text": v}
	case []byte:
		return object{"bin": hex.EncodeToString(v)}
	case shardpack.Extension:
		return object{"ext": object{"code": strconv.Itoa(int(v.Code)), "hex": hex.EncodeToString(v.Data)}}
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			list[i] = tagged(item)
		}
		return object{"list": list}
	}
	pairs := []any{}
	for _, pair := range value.(shardpack.Map) {
		pairs = append(pairs, []any{tagged(pair.Key), tagged(pair.Value)})
	}
	return object{"map": pairs}
}

func streamPack(arguments []string) (object, error) {
	in, err := os.Open(arguments[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	told := object{"error_code": nil}
	count := uint64(0)
	for _, err := range shardpack.Stream(in) {
		var broken *shard.Error
		if errors.As(err, &broken) {
			told["error_code"] = string(broken.Code)
			break
		}
		if err != nil {
			return nil, err
		}
		count++
	}
	told["records"] = number(count)
	return told, nil
}

func recoverPack(arguments []string) (object, error) {
	folder, err := os.MkdirTemp("", "shard-conformance")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	out := filepath.Join(folder, "out.shardpack")
	result, err := shardpack.Recover(arguments[0], out, shardpack.RecoverOptions{NoSync: true})
	if err != nil {
		return nil, err
	}
	lost := make([]any, len(result.Lost))
	for i, part := range result.Lost {
		told := object{"offset": number(part.Offset), "size": number(part.Size), "key": nil}
		if part.Key != "" {
			told["key"] = part.Key
		}
		lost[i] = told
	}
	r, err := shardpack.Open(out)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	keys := make([]any, 0, r.Len())
	for record, err := range r.Records() {
		if err != nil {
			return nil, err
		}
		keys = append(keys, record.Key())
	}
	return object{"had_index": result.HadIndex, "keys": keys, "lost": lost}, nil
}

// --- steps of invalid vectors

func stepPack(file, casePath string) (object, error) {
	var c struct {
		When, Record, Entry, Key string
		Limits                   lowered
	}
	if err := readCase(casePath, &c); err != nil {
		return nil, err
	}
	if c.When == "stream" {
		in, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = in.Close() }()
		for _, err := range shardpack.Stream(in) {
			if err != nil {
				return nil, err
			}
		}
		return object{"done": true}, nil
	}
	r, err := shardpack.Open(file, c.Limits.packOptions())
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	var record *shardpack.Record
	if c.Record != "" {
		number, err := strconv.Atoi(c.Record)
		if err != nil {
			return nil, err
		}
		if record, err = r.Record(number); err != nil {
			return nil, err
		}
	}
	switch c.When {
	case "offsets":
		_, err = r.Offsets()
	case "lookup":
		_, _, err = r.Find("first")
	case "index_metadata":
		_, err = r.Metadata()
	case "key":
		_, err = r.ByKey(c.Key)
	case "metadata":
		_, err = record.Metadata()
	case "entry":
		_, err = record.ReadEntry(c.Entry)
	}
	if err != nil {
		return nil, err
	}
	return object{"done": true}, nil
}

// --- writing

type packCase struct {
	Options struct{ Alignment, Compression, Created string }
	Records []struct {
		Key      string
		Metadata json.RawMessage
		Entries  []struct {
			Name, Content string
			ContentType   string `json:"content_type"`
		}
	}
	User json.RawMessage
}

func writePack(casePath, out string) (object, error) {
	var c packCase
	if err := readCase(casePath, &c); err != nil {
		return nil, err
	}
	alignment, err := strconv.ParseUint(c.Options.Alignment, 10, 8)
	if err != nil {
		return nil, err
	}
	user, err := shard.ParseObject(c.User)
	if err != nil {
		return nil, err
	}
	w, err := shardpack.Create(out, shardpack.WriterOptions{
		Alignment: uint8(alignment), Created: c.Options.Created, User: user, Overwrite: true, NoSync: true,
		Compression: map[string]shardpack.Encoding{"zstd": shardpack.EncodingZstd, "lz4": shardpack.EncodingLZ4}[c.Options.Compression],
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	for _, record := range c.Records {
		sample := shardpack.Sample{Key: record.Key}
		if record.Metadata != nil {
			if sample.Metadata, err = shard.ParseObject(record.Metadata); err != nil {
				return nil, err
			}
		}
		for _, entry := range record.Entries {
			data, err := content(entry.Content)
			if err != nil {
				return nil, err
			}
			sample.Entries = append(sample.Entries, shardpack.FileEntry{
				Name: entry.Name, Data: data, ContentType: entry.ContentType, Untyped: entry.ContentType == "",
			})
		}
		if err := w.Write(sample); err != nil {
			return nil, err
		}
	}
	return finishPack(w, out)
}

func finishPack(w *shardpack.Writer, out string) (object, error) {
	if err := w.Finalize(); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	return object{"sha256": digest(data)}, nil
}

func rewritePack(in, out string) (object, error) {
	r, err := shardpack.Open(in)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	fields, err := r.Metadata()
	if err != nil {
		return nil, err
	}
	options := shardpack.WriterOptions{Overwrite: true, NoSync: true}
	options.Created, _ = fields["created"].(string)
	options.User, _ = fields["user"].(shard.Object)
	if r.Len() > 0 {
		first, err := r.Record(0)
		if err != nil {
			return nil, err
		}
		options.Alignment = first.Alignment()
	}
	w, err := shardpack.Create(out, options)
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	w.KeepFields(fields)
	for record, err := range r.Records() {
		if err != nil {
			return nil, err
		}
		if err := w.Copy(record); err != nil {
			return nil, err
		}
	}
	return finishPack(w, out)
}
