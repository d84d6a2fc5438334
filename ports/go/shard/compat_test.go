package shard_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/shard-format/shard/ports/go/shard"
)

func TestTheNamesOfTheEarlierPackageWork(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.shard")
	w, err := shard.NewShardWriter(path, shard.ShardRoleSample)
	check(t, err)
	if err := w.SetAlignment(7); !errors.Is(err, shard.ErrInvalidAlignment) {
		t.Errorf("alignment 7: %v", err)
	}
	check(t, w.SetAlignment(shard.Align32))
	var compression uint8 = shard.CompressLZ4
	w.SetCompression(compression)
	metadata := shard.NewShardMetadata()
	metadata.AddTag("x")
	metadata.AddTag("x")
	metadata.TagDictionary = []string{"train", "test"}
	metadata.CreatedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	metadata.SetEntryMeta("a/raw", &shard.EntryMeta{Tags: []string{"train"}, ContentType: "text"})
	metadata.SetSampleProfile(&shard.SampleProfile{SampleCount: 3})
	w.SetMetadata(metadata)
	text := bytes.Repeat([]byte("text "), 1000)
	check(t, w.WriteEntry("a/raw", text))
	check(t, w.WriteEntryTyped("a/b/typed", []byte("{}"), shard.ContentTypeJSON))
	check(t, w.WriteEntryCompressed("a/lz4", text))
	check(t, w.WriteEntryWithOptions("zstd", text, true, shard.CompressZstd))
	check(t, w.Close())
	check(t, w.Close())
	if err := w.WriteEntry("late", nil); !errors.Is(err, shard.ErrShardClosed) {
		t.Errorf("after Close: %v", err)
	}

	r, err := shard.OpenShard(path)
	check(t, err)
	defer func() { _ = r.Close() }()
	var codecs []uint8
	for i := range r.EntryCount() {
		codecs = append(codecs, r.GetEntryInfo(i).CompressionType())
	}
	if !reflect.DeepEqual(codecs, []uint8{shard.CompressNone, shard.CompressNone, shard.CompressLZ4, shard.CompressZstd}) {
		t.Errorf("codecs %v", codecs)
	}
	for i := range r.EntryCount() {
		whole, err := r.ReadEntryWithVerify(i, false)
		check(t, err)
		part, err := r.ReadEntryPrefix(i, 7)
		check(t, err)
		if !bytes.HasPrefix(whole, part) || len(part) != min(7, len(whole)) {
			t.Errorf("row %d: a prefix of %d bytes", i, len(part))
		}
	}
	if found := r.ListChildren("a"); !reflect.DeepEqual(found, []string{"raw", "b", "lz4"}) {
		t.Errorf("children %v", found)
	}
	if found, err := r.ListWithTag("train"); !reflect.DeepEqual(found, []string{"a/raw"}) || err != nil {
		t.Errorf("tagged %v, %v", found, err)
	}
	if found, err := r.ListWithTagFast("test"); found != nil || err != nil {
		t.Errorf("tagged by bits %v, %v", found, err)
	}
	found, err := r.ReadMetadata()
	check(t, err)
	if !found.CreatedAt.Equal(metadata.CreatedAt) || found.SampleShard.SampleCount != 3 || found.ComputeSchemaID() != metadata.ComputeSchemaID() {
		t.Errorf("metadata %+v", found)
	}
	if r.GetEntryInfo(-1) != nil || r.GetEntryInfo(4) != nil {
		t.Error("there are rows that are not there")
	}
}

func TestMetadataKeepKeysThatTheyDoNotKnow(t *testing.T) {
	text := `{"mine":{"n":12345678901234567890},"tags":["a"]}`
	metadata, err := shard.ParseShardMetadata([]byte(text))
	check(t, err)
	again, err := metadata.Marshal()
	check(t, err)
	if string(again) != text {
		t.Errorf("%s became %s", text, again)
	}
	_, err = shard.ParseShardMetadata([]byte(`{"producer":5}`))
	expect(t, err, shard.CodeBadMetadata, "S-SCH-4")
}

func TestHeadersAndIndexEntriesComeBack(t *testing.T) {
	var file bytes.Buffer
	header := shard.NewShardHeader(shard.ShardRoleMoSH)
	header.EntryCount = 42
	check(t, shard.WriteShardHeader(&file, header))
	entry := &shard.IndexEntry{NameHash: 1, NameOffset: 2, NameLength: 3, DataOffset: 4, DiskSize: 5, OrigSize: 6, CRC32C: 7, ContentType: 8}
	entry.SetTagBit(3)
	check(t, shard.WriteIndexEntry(&file, entry))
	found, err := shard.ReadShardHeader(&file)
	check(t, err)
	row, err := shard.ReadIndexEntry(&file)
	check(t, err)
	if *found != *header || *row != *entry || !row.HasTagBit(3) || row.HasTagBit(16) {
		t.Errorf("%+v, %+v", found, row)
	}
	if _, err := shard.ReadIndexEntry(&file); !errors.Is(err, shard.ErrTruncated) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := shard.ReadShardHeader(bytes.NewReader(nil)); !errors.Is(err, shard.ErrHeaderTooShort) {
		t.Errorf("no header: %v", err)
	}
}

func TestPathsOfNames(t *testing.T) {
	if !reflect.DeepEqual(shard.SplitPath("a/b/c"), []string{"a", "b", "c"}) || shard.JoinPath("a", "b") != "a/b" {
		t.Error("parts differ")
	}
	if shard.PathParent("a/b/c") != "a/b" || shard.PathParent("a") != "" || shard.PathBase("a/b") != "b" || shard.PathBase("a") != "a" {
		t.Error("parents differ")
	}
	if !shard.PathPrefix("a/b", "a") || !shard.PathPrefix("a", "a/") || shard.PathPrefix("ab", "a") || !shard.PathPrefix("x", "") {
		t.Error("prefixes differ")
	}
	if shard.ContentTypeName(shard.ContentTypeJSON) != "json" || shard.ContentTypeName(0x8001) != "user:1" {
		t.Error("content types differ")
	}
}
