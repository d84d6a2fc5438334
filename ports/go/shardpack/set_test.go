package shardpack_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

func TestASetIsSplitAndReadAsOne(t *testing.T) {
	samples := randomSamples(6, 50)
	for _, options := range []shardpack.SetOptions{{MaxRecords: 7}, {MaxBytes: 40_000}} {
		folder := t.TempDir()
		options.Shards.NoSync = true
		options.Shards.User = shard.Object{"by": "me"}
		w, err := shardpack.CreateSet(filepath.Join(folder, "100%%-%04d.shardpack"), options)
		check(t, err)
		for _, sample := range samples {
			check(t, w.Write(sample))
		}
		for _, sample := range []int{0, 20, len(samples) - 1} {
			if err := w.Write(samples[sample]); !errors.Is(err, shard.ErrInvalidArgument) {
				t.Errorf("a key that is in the set: %v", err)
			}
		}
		check(t, w.Finalize())
		s, err := shardpack.OpenSet(filepath.Join(folder, "100%.shardpack-set"))
		check(t, err)
		if s.Len() != len(samples) || len(s.Shards()) < 3 || s.Shards()[2].Name != "100%-0002.shardpack" {
			t.Fatalf("%d records in %v", s.Len(), s.Shards())
		}
		for i, record := range collect(t, s.Records()) {
			if !same(sampleOf(t, record), samples[i]) {
				t.Fatalf("record %d is another one", i)
			}
		}
		for _, one := range s.Shards() {
			data, err := os.ReadFile(filepath.Join(folder, one.Name))
			check(t, err)
			if digest(data) != one.SHA256 || uint64(len(data)) != one.Size || (options.MaxBytes > 0 && one.Size > options.MaxBytes) {
				t.Errorf("%+v does not fit its shard of %d bytes", one, len(data))
			}
		}
		check(t, s.Verify())
		path := filepath.Join(folder, s.Shards()[1].Name)
		data, err := os.ReadFile(path)
		check(t, err)
		data[len(data)/2] ^= 1
		check(t, os.WriteFile(path, data, 0o600))
		var found *shard.Error
		if err := s.Verify(); !errors.As(err, &found) || found.Code != shard.CodeReferenceMismatch || found.Path != path {
			t.Errorf("a shard with another byte: %v", err)
		}
		check(t, s.Close())
		check(t, s.Close())
		if _, err := s.Record(0); !errors.Is(err, shard.ErrShardClosed) {
			t.Errorf("a closed set: %v", err)
		}
		if _, err := shardpack.CreateSet(filepath.Join(folder, "100%%-%04d.shardpack"), options); !errors.Is(err, shard.ErrInvalidArgument) {
			t.Errorf("a set that is there: %v", err)
		}
	}
}

func TestAShardOutsideTheFolderOfItsSetIsRefused(t *testing.T) {
	folder := t.TempDir()
	check(t, os.Mkdir(filepath.Join(folder, "a"), 0o700))
	w, err := shardpack.CreateSet(filepath.Join(folder, "a", "x-%d.shardpack"), shardpack.SetOptions{Shards: shardpack.WriterOptions{NoSync: true}})
	check(t, err)
	check(t, w.Write(shardpack.Sample{Key: "k"}))
	check(t, w.Finalize())
	inside, moved := filepath.Join(folder, "a", "x-0.shardpack"), filepath.Join(folder, "moved")
	check(t, os.Rename(inside, moved))
	if err := os.Symlink(moved, inside); err != nil {
		t.Skip(err)
	}
	s, err := shardpack.OpenSet(filepath.Join(folder, "a", "x.shardpack-set"))
	check(t, err)
	defer func() { _ = s.Close() }()
	var found *shard.Error
	if _, err := s.Record(0); !errors.As(err, &found) || found.Code != shard.CodeUnsafePath {
		t.Errorf("%v", err)
	}
}

func TestAnInterruptedReplacementIsNamed(t *testing.T) {
	folder := t.TempDir()
	for _, records := range []int{1, 2} {
		w, err := shardpack.CreateSet(filepath.Join(folder, "a-%d.shardpack"), shardpack.SetOptions{Shards: shardpack.WriterOptions{NoSync: true}})
		check(t, err)
		for i := range records {
			check(t, w.Write(shardpack.Sample{Key: strconv.Itoa(i)}))
		}
		check(t, w.Finalize())
		if records == 1 { // the set file of the first set stays, the shard of the second one comes
			check(t, os.Remove(filepath.Join(folder, "a-0.shardpack")))
			check(t, os.Rename(filepath.Join(folder, "a.shardpack-set"), filepath.Join(folder, "old")))
		}
	}
	check(t, os.Rename(filepath.Join(folder, "old"), filepath.Join(folder, "a.shardpack-set")))
	check(t, os.WriteFile(filepath.Join(folder, ".shardpack-switch"), nil, 0o600))
	set, err := shardpack.OpenSet(filepath.Join(folder, "a.shardpack-set"))
	check(t, err)
	defer set.Close()
	for range 2 { // another shard, then none
		if _, err = set.Record(0); err == nil || !strings.Contains(err.Error(), "`shardpack info`") {
			t.Errorf("%v", err)
		}
		check(t, os.RemoveAll(filepath.Join(folder, "a-0.shardpack")))
	}
}

func TestNamesOfSets(t *testing.T) {
	for _, name := range []string{"x.shardpack", "%d-%d", "%5d", "50%-%d", "a/../b", "%0004d", `a\%d`} {
		if _, err := shardpack.CreateSet(filepath.Join(t.TempDir(), name), shardpack.SetOptions{}); err == nil {
			t.Errorf("the name %q was taken", name)
		}
	}
	for name, want := range map[string][]string{
		"%d.shardpack": {"0.shardpack", "set.shardpack-set"}, "a_%03d": {"a_000", "a.shardpack-set"},
		"a.%d.b.shardpack": {"a.0.b.shardpack", "a.b.shardpack-set"},
	} {
		folder := t.TempDir()
		w, err := shardpack.CreateSet(filepath.Join(folder, name), shardpack.SetOptions{Shards: shardpack.WriterOptions{NoSync: true}})
		check(t, err)
		check(t, w.Finalize())
		for _, file := range want {
			if _, err := os.Stat(filepath.Join(folder, file)); err != nil {
				t.Error(err)
			}
		}
	}
}
