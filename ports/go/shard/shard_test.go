package shard_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

const vectors = "../../../spec/vectors/"

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// smooth is data that compresses: 32-bit counters with small steps.
func smooth(count int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 0, 4*count)
	value := uint32(0)
	for range count {
		value += random.Uint32N(5)
		data = binary.LittleEndian.AppendUint32(data, value)
	}
	return data
}

func TestEveryFormOfAnEntryIsReadBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "all.shard")
	data := smooth(30_000)
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{Alignment: 64, Identity: true, Schema: shard.Object{"producer": "go"}})
	check(t, err)
	delta := &shard.Filters{DeltaWidth: 4, DeltaOrder: 1, DeltaRow: 4}
	both := &shard.Filters{DeltaWidth: 4, DeltaOrder: 2, DeltaRow: 8, PlanesWidth: 4}
	forms := map[string]shard.EntryOptions{
		"raw":             {},
		"zstd":            {Codec: shard.CodecZstd, HasCodec: true},
		"lz4":             {Codec: shard.CodecLZ4, HasCodec: true},
		"seekable":        {Codec: shard.CodecZstd, HasCodec: true, FrameBytes: 4096},
		"filtered":        {Codec: shard.CodecZstd, HasCodec: true, FrameBytes: 4096, Filters: delta},
		"filtered, whole": {Codec: shard.CodecZstd, HasCodec: true, Filters: both},
	}
	for name, options := range forms {
		check(t, w.WriteEntryWith(name, data, options))
	}
	check(t, w.Finalize())
	check(t, w.Close())

	r, err := shard.OpenShard(path)
	check(t, err)
	defer func() { _ = r.Close() }()
	for name, options := range forms {
		found, err := r.ReadEntry(name)
		check(t, err)
		if !bytes.Equal(found, data) {
			t.Errorf("%s: other bytes came back", name)
		}
		info, err := r.Info(name)
		check(t, err)
		if name != "lz4" && info.Codec != options.Codec { // noise: lz4 may not pay
			t.Errorf("%s: stored as %s", name, info.Codec)
		}
		part, err := r.ReadRange(name, 5000, 13_001)
		check(t, err)
		if !bytes.Equal(part, data[5000:13_001]) {
			t.Errorf("%s: a range differs", name)
		}
	}
	check(t, r.Verify())
	if version, err := r.VerifyIdentity(); version != 2 || err != nil {
		t.Errorf("identity of version %d: %v", version, err)
	}
	if warnings, err := r.Warnings(); len(warnings) > 0 || err != nil {
		t.Errorf("warnings %v, %v", warnings, err)
	}
}

func TestAWriterRefusesWhatCannotBeStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.shard")
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{})
	check(t, err)
	check(t, w.WriteEntry("a", nil))
	for _, name := range []string{"", "a", "nul\x00", "\xff", strings.Repeat("x", 65536)} {
		if err := w.WriteEntry(name, nil); err == nil {
			t.Errorf("the name %.10q was taken", name)
		}
	}
	check(t, w.Finalize())
	if err := w.WriteEntry("b", nil); !errors.Is(err, shard.ErrShardClosed) {
		t.Errorf("a finished writer said %v", err)
	}
	if _, err := shard.NewShardStreamWriter(path, shard.ShardOptions{Alignment: 7}); !errors.Is(err, shard.ErrInvalidArgument) {
		t.Errorf("alignment 7: %v", err)
	}
}

func TestWhatWasThereStaysUntilAFileIsComplete(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "x.shard")
	check(t, os.WriteFile(path, []byte("before"), 0o600))
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{MaxEntries: 1})
	check(t, err)
	check(t, w.WriteEntry("a", []byte("1")))
	if err := w.WriteEntry("b", []byte("2")); !errors.Is(err, shard.ErrLimitExceeded) {
		t.Errorf("a second entry in a head for one: %v", err)
	}
	check(t, w.Close())
	check(t, w.Close())
	left, err := os.ReadDir(folder)
	check(t, err)
	if data, _ := os.ReadFile(path); string(data) != "before" || len(left) != 1 {
		t.Errorf("%q, and %d files", data, len(left))
	}
}

func TestErrorsNameTheFileTheEntryAndTheRule(t *testing.T) {
	_, err := shard.OpenShard(vectors + "README.md")
	var found *shard.Error
	if !errors.As(err, &found) || found.Rule != "S-HDR-2" || !errors.Is(err, shard.ErrInvalidShardMagic) {
		t.Fatalf("%v", err)
	}
	r, err := shard.OpenShard(vectors + "valid/hello.shard")
	check(t, err)
	if _, err = r.ReadEntry("nothing"); !errors.Is(err, shard.ErrEntryNotFound) || !strings.Contains(err.Error(), "hello.shard") {
		t.Fatalf("%v", err)
	}
	check(t, r.Close())
	check(t, r.Close())
	if _, err = r.ReadEntry("greeting"); !errors.Is(err, shard.ErrShardClosed) {
		t.Fatalf("%v", err)
	}
	if _, err = shard.OpenShard(vectors + "no such file"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%v", err)
	}
	if _, err = shard.OpenShard(vectors); !errors.Is(err, shard.ErrInvalidArgument) {
		t.Fatalf("%v", err)
	}
}

func TestGoroutinesShareAReader(t *testing.T) {
	r, err := shard.OpenShard(vectors + "valid/codecs_mixed.shard")
	check(t, err)
	defer func() { _ = r.Close() }()
	var group sync.WaitGroup
	problems := make(chan error, 64)
	for range 8 {
		group.Go(func() {
			for range 50 {
				for _, name := range r.EntryNames() {
					if _, err := r.ReadEntry(name); err != nil {
						problems <- err
						return
					}
				}
			}
		})
	}
	group.Wait()
	close(problems)
	for err := range problems {
		t.Error(err)
	}
}

func TestAHeadThatNoReaderWouldTakeIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.shard")
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{MaxEntries: 1_000_000, NoSync: true})
	check(t, err)
	check(t, w.WriteEntry("one", nil))
	if err := w.Finalize(); !errors.Is(err, shard.ErrLimitExceeded) {
		t.Errorf("112 MB for names: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is there")
	}
}

func TestAFileThatIsReplacedKeepsItsPermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.shard")
	check(t, os.WriteFile(path, nil, 0o600))
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{})
	check(t, err)
	check(t, w.Finalize())
	status, err := os.Stat(path)
	check(t, err)
	if runtime.GOOS != "windows" && status.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", status.Mode())
	}
}
