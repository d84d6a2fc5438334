package shard_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

func TestAViewOutlivesItsReader(t *testing.T) {
	r := write(t, shard.ShardOptions{Alignment: 64}, []string{"a", "b"}, twoEntries)
	first, err := r.View("b")
	check(t, err)
	second, err := r.View("b")
	check(t, err)
	check(t, r.Close())
	first.Release()
	first.Release()
	if first.Bytes() != nil || string(second.Bytes()) != twoEntries["b"] {
		t.Error("a released view has bytes, or another has others")
	}
	if _, err := r.View("a"); !errors.Is(err, shard.ErrShardClosed) {
		t.Errorf("a view of a closed reader: %v", err)
	}
	if _, err := r.ReadEntry("a"); !errors.Is(err, shard.ErrShardClosed) {
		t.Errorf("an entry of a closed reader: %v", err)
	}
	second.Release()
	if err := r.EnableMmap(); !errors.Is(err, shard.ErrShardClosed) {
		t.Errorf("mapping a closed reader: %v", err)
	}
}

func TestViewsAreOfRawEntriesAndChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.shard")
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{})
	check(t, err)
	check(t, w.WriteEntry("empty", nil))
	check(t, w.WriteEntryWith("zstd", smooth(1000), shard.EntryOptions{Codec: shard.CodecZstd, HasCodec: true}))
	check(t, w.WriteEntry("raw", []byte("some bytes")))
	check(t, w.Finalize())
	file, err := os.ReadFile(path)
	check(t, err)
	file[len(file)-1] ^= 1
	check(t, os.WriteFile(path, file, 0o600))

	opened, err := shard.OpenShard(path)
	check(t, err)
	defer func() { _ = opened.Close() }()
	inMemory, err := shard.NewReader(bytes.NewReader(file), int64(len(file)))
	check(t, err)
	for _, r := range []*shard.ShardReader{opened, inMemory} {
		_, err = r.View("zstd")
		expect(t, err, shard.CodeNotViewable, "")
		_, err = r.View("raw")
		expect(t, err, shard.CodeChecksumMismatch, "S-CRC-1")
		_, err = r.View("none")
		expect(t, err, shard.CodeEntryNotFound, "")
		empty, err := r.View("empty")
		check(t, err)
		if len(empty.Bytes()) != 0 {
			t.Error("an empty entry has bytes")
		}
		empty.Release()
	}
	if err := inMemory.EnableMmap(); !errors.Is(err, shard.ErrNotViewable) {
		t.Errorf("mapping bytes: %v", err)
	}
	if runtime.GOOS != "windows" {
		check(t, opened.EnableMmap())
	}
}

func TestAMappedReaderReadsTheSame(t *testing.T) {
	files, err := filepath.Glob(vectors + "valid/*.shard")
	check(t, err)
	for _, path := range files {
		r, err := shard.OpenShard(path)
		check(t, err)
		before, err := r.ReadEntries(r.EntryNames()...)
		check(t, err)
		_ = r.EnableMmap()
		for i, name := range r.EntryNames() {
			out := make([]byte, len(before[i]))
			check(t, r.ReadInto(name, out))
			if !bytes.Equal(out, before[i]) {
				t.Errorf("%s: %q differs", path, name)
			}
		}
		check(t, r.Close())
	}
}

func TestGoroutinesCloseAndViewAtOnce(t *testing.T) {
	for range 20 {
		r := write(t, shard.ShardOptions{Compression: shard.CodecZstd}, []string{"a", "b"}, twoEntries)
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for range 20 {
					if view, err := r.View("a"); err == nil {
						if string(view.Bytes()) != "1" {
							t.Error("a view changed")
						}
						view.Release()
					}
					if data, err := r.ReadEntry("b"); err == nil && len(data) != 1000 {
						t.Error("an entry changed")
					}
				}
			})
		}
		group.Go(func() { _ = r.Close() })
		group.Wait()
	}
}
