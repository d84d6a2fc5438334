package compat_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	shard "github.com/shard-format/shard/ports/go/shard/compat"
)

// roleVectorIndex is how a vector database names the role of its files.
const roleVectorIndex shard.ShardRole = 0x10

// exportIndex has the calls of that database in their order. Close is called twice.
func exportIndex(path string, data []byte) error {
	w, err := shard.NewShardV2Writer(path, roleVectorIndex)
	if err != nil {
		return fmt.Errorf("create shard writer: %w", err)
	}
	defer w.Close()

	w.SetAlignment(shard.Align64)
	w.SetCompression(shard.CompressZstd)
	meta, err := json.Marshal(map[string]any{"index_type": "hnsw", "version": 1})
	if err != nil {
		return err
	}
	if err := w.WriteEntryTyped("meta", meta, shard.ContentTypeJSON); err != nil {
		return fmt.Errorf("write meta entry: %w", err)
	}
	if err := w.WriteEntryCompressed("index_data", data); err != nil {
		return fmt.Errorf("write index data entry: %w", err)
	}
	return w.Close()
}

func importIndex(path string) ([]byte, error) {
	r, err := shard.OpenShardV2(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Lookup("meta") < 0 {
		return nil, fmt.Errorf("no meta among %v", r.EntryNames())
	}
	i := r.Lookup("index_data")
	if i < 0 {
		return nil, fmt.Errorf("missing index_data entry")
	}
	if entry := r.GetEntryInfo(i); !entry.IsCompressed() || entry.DiskSize >= entry.OrigSize {
		return nil, fmt.Errorf("stored in %d of %d bytes", entry.DiskSize, entry.OrigSize)
	}
	return r.ReadEntry(i)
}

func TestTheCallsOfAVectorDatabaseWorkWithOneChangedLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index.shard")
	data := bytes.Repeat([]byte("vector "), 5000)
	if err := exportIndex(path, data); err != nil {
		t.Fatal(err)
	}
	found, err := importIndex(path)
	if err != nil || !bytes.Equal(found, data) {
		t.Fatalf("%d bytes, %v", len(found), err)
	}
	file, err := os.ReadFile(path)
	if err != nil || file[5] != 0x10 || file[8] != 64 || file[9] != 1 {
		t.Errorf("role %d, alignment %d, codec %d", file[5], file[8], file[9])
	}
}

func TestAFileThatLacksAnEntryIsNotPublished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.shard")
	w, err := shard.NewShardV2Writer(path, shard.ShardRoleMoSH)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteEntry("", nil); err == nil {
		t.Error("an empty name was taken")
	}
	if err := w.Close(); err == nil {
		t.Error("Close hides what WriteEntry said")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is there")
	}
	if err := w.Close(); err != nil {
		t.Errorf("a second Close said %v", err)
	}
}
