package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/shard-format/shard/ports/go/shard"
)

// --- reading

func readContainer(file string) (object, error) {
	r, err := shard.OpenShard(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	h := r.Header()
	told := object{"header": object{
		"version": number(h.Version), "role": number(h.Role), "flags": number(h.Flags), "alignment": number(h.Alignment),
		"compression_default": number(h.CompressionDefault), "entry_count": number(h.EntryCount),
		"string_table_offset": number(h.StringTableOffset), "data_section_offset": number(h.DataSectionOffset),
		"schema_offset": number(h.SchemaOffset), "total_file_size": number(h.TotalFileSize),
	}}
	identity, err := r.Identity()
	if err != nil {
		return nil, err
	}
	told["identity_2"] = identity.Digest()
	identity.Version = 1
	told["identity"] = identity.Digest()
	warnings, err := r.Warnings()
	if err != nil {
		return nil, err
	}
	codes := make([]any, len(warnings))
	for i, code := range warnings {
		codes[i] = string(code)
	}
	told["warnings"] = codes
	if schema, err := r.Schema(); err != nil {
		return nil, err
	} else if schema != nil {
		told["schema"] = schema
	}
	if h.Role == shard.RoleManifest {
		rows, err := r.Manifest()
		if err != nil {
			return nil, err
		}
		list := make([]any, len(rows))
		for i, row := range rows {
			list[i] = row
		}
		told["manifest_files"] = list
	}
	return told, tellEntries(r, told)
}

func tellEntries(r *shard.ShardReader, told object) error {
	var lines strings.Builder
	entries := make([]any, 0, r.EntryCount())
	for i := range r.EntryCount() {
		one, err := tellEntry(r, i)
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s\t%s\n", one["name"], one["sha256"])
		entries = append(entries, one)
	}
	if len(entries) > mostListed {
		told["entries_sha256"] = digest([]byte(lines.String()))
	} else {
		told["entries"] = entries
	}
	return nil
}

func tellEntry(r *shard.ShardReader, i int) (object, error) {
	e, err := r.InfoAt(i)
	if err != nil {
		return nil, err
	}
	data, err := r.ReadEntryAt(i)
	if err != nil {
		return nil, err
	}
	told := object{
		"name": e.Name, "name_hash": fmt.Sprintf("%016x", e.NameHash), "codec": e.Codec.String(),
		"content_type": number(e.ContentType), "tag_bits": number(e.TagBits), "crc32c": fmt.Sprintf("%08x", e.CRC32C),
		"data_offset": number(e.DataOffset), "disk_size": number(e.DiskSize), "orig_size": number(e.OrigSize),
		"sha256": digest(data),
	}
	filters, err := r.Filters(e.Name)
	if err != nil {
		return nil, err
	}
	if filters != nil {
		list, err := tellFilters(filters)
		if err != nil {
			return nil, err
		}
		told["filters"] = list
	}
	frames, err := r.SeekFrames(e.Name)
	if err != nil {
		return nil, err
	}
	if frames != nil {
		list := make([]any, len(frames))
		at := uint64(0)
		for i, one := range frames {
			row := object{"compressed_size": number(one.CompressedSize), "decompressed_size": number(one.DecompressedSize)}
			if one.HasChecksum {
				row["checksum"] = fmt.Sprintf("%08x", one.Checksum)
			}
			list[i] = row
			// A range must give what the whole entry has there.
			end := at + uint64(one.DecompressedSize)
			part, err := r.ReadRange(e.Name, at, end)
			if err != nil {
				return nil, err
			}
			if string(part) != string(data[at:end]) {
				return nil, errors.New("a range differs from the whole entry")
			}
			at = end
		}
		told["seekable_frames"] = list
	}
	return told, nil
}

func tellFilters(filters *shard.Filters) ([]any, error) {
	var described struct{ Filters []map[string]any }
	decoder := json.NewDecoder(strings.NewReader(string(filters.Description())))
	decoder.UseNumber()
	if err := decoder.Decode(&described); err != nil {
		return nil, err
	}
	list := make([]any, len(described.Filters))
	for i, one := range described.Filters {
		row := object{}
		for key, value := range one {
			row[key] = fmt.Sprint(value)
		}
		list[i] = row
	}
	return list, nil
}

// --- steps of invalid vectors

type invalidCase struct {
	When, Entry, Start, Length string
	Limits                     lowered
}

func stepContainer(file, casePath string) (object, error) {
	var c invalidCase
	if err := readCase(casePath, &c); err != nil {
		return nil, err
	}
	r, err := shard.OpenShard(file, c.Limits.options())
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	switch c.When {
	case "read":
		_, err = r.ReadEntry(c.Entry)
	case "range":
		start, _ := strconv.ParseUint(c.Start, 10, 64)
		length, _ := strconv.ParseUint(c.Length, 10, 64)
		_, err = r.ReadRange(c.Entry, start, start+length)
	case "schema":
		_, err = r.Schema()
	case "manifest":
		_, err = r.Manifest()
	case "identity":
		_, err = r.VerifyIdentity()
	case "verify":
		err = r.Verify()
	}
	if err != nil {
		return nil, err
	}
	return object{"done": true}, nil
}

// --- signatures

func verify(arguments []string) (object, error) {
	r, err := shard.OpenShard(arguments[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	signature, err := shard.ReadSignature(arguments[1])
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(arguments[2])
	if err != nil {
		return nil, err
	}
	identity, err := r.VerifySignature(signature, key)
	if err != nil {
		return nil, err
	}
	return object{"identity": identity.Digest(), "version": strconv.Itoa(identity.Version)}, nil
}

// --- writing

type containerCase struct {
	Options struct {
		Role, Alignment, Compression, Layout string
		MaxEntries                           string `json:"max_entries"`
		Identity                             bool
	}
	Entries []struct {
		Name, Content string
		ContentType   string `json:"content_type"`
		TagBits       string `json:"tag_bits"`
	}
}

func writeContainer(casePath, out string) (object, error) {
	var c containerCase
	if err := readCase(casePath, &c); err != nil {
		return nil, err
	}
	role, _ := strconv.ParseUint(c.Options.Role, 10, 8)
	alignment, _ := strconv.ParseUint(c.Options.Alignment, 10, 8)
	options := shard.ShardOptions{
		Role: shard.Role(role), Alignment: uint8(alignment), Identity: c.Options.Identity,
		Compression: map[string]shard.Codec{"zstd": shard.CompressionZstd, "lz4": shard.CompressionLZ4}[c.Options.Compression],
	}
	schema, err := caseSchema(casePath)
	if err != nil {
		return nil, err
	}
	options.Schema = schema
	switch c.Options.Layout {
	case "reserved":
		options.MaxEntries, _ = strconv.Atoi(c.Options.MaxEntries)
	case "declared":
		options.Names = []string{}
		for _, entry := range c.Entries {
			options.Names = append(options.Names, entry.Name)
		}
	}
	w, err := shard.NewShardStreamWriter(out, options)
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	for _, entry := range c.Entries {
		data, err := content(entry.Content)
		if err != nil {
			return nil, err
		}
		kind, _ := strconv.ParseUint(entry.ContentType, 10, 16)
		tags, _ := strconv.ParseUint(entry.TagBits, 10, 16)
		given := shard.EntryOptions{ContentType: uint16(kind), TagBits: uint16(tags)}
		if err := w.WriteEntryWith(entry.Name, data, given); err != nil {
			return nil, err
		}
	}
	if err := w.Finalize(); err != nil {
		return nil, err
	}
	return tellWritten(out)
}

// caseSchema reads the schema of a case with the strict parser, which keeps large integers.
func caseSchema(path string) (shard.Object, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var raw struct{ Schema json.RawMessage }
	if err := json.Unmarshal(text, &raw); err != nil || raw.Schema == nil {
		return nil, err
	}
	return shard.ParseObject(raw.Schema)
}

func content(text string) ([]byte, error) {
	kind, value, _ := strings.Cut(text, ":")
	if kind == "hex" {
		return hex.DecodeString(value)
	}
	size, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return nil, err
	}
	data := make([]byte, 0, size+16)
	for i := 0; uint64(len(data)) < size; i++ {
		if kind == "ramp" {
			data = append(data, byte(i&math.MaxUint8))
		} else {
			data = fmt.Appendf(data, "row %06d\n", i)
		}
	}
	return data[:size], nil
}

func tellWritten(path string) (object, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := shard.OpenShard(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	identity, err := r.Identity()
	if err != nil {
		return nil, err
	}
	return object{"sha256": digest(data), "identity": identity.Digest()}, nil
}

func rewriteContainer(in, out string) (object, error) {
	r, err := shard.OpenShard(in)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	schema, err := r.Schema()
	if err != nil {
		return nil, err
	}
	h := r.Header()
	w, err := shard.NewShardStreamWriter(out, shard.ShardOptions{Role: h.Role, Alignment: h.Alignment, Schema: schema})
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	for i := range r.EntryCount() {
		e, err := r.InfoAt(i)
		if err != nil {
			return nil, err
		}
		data, err := r.ReadEntryAt(i)
		if err != nil {
			return nil, err
		}
		given := shard.EntryOptions{ContentType: e.ContentType, TagBits: e.TagBits, Codec: e.Codec, HasCodec: true}
		if err := w.WriteEntryWith(e.Name, data, given); err != nil {
			return nil, err
		}
	}
	if err := w.Finalize(); err != nil {
		return nil, err
	}
	return tellWritten(out)
}
