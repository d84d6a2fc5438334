package shardpack_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

func TestRecoveringAnyPrefixGivesTheCompleteRecords(t *testing.T) {
	samples := randomSamples(3, 12)
	path := write(t, samples, shardpack.WriterOptions{})
	data, err := os.ReadFile(path)
	check(t, err)
	r, err := shardpack.Open(path)
	check(t, err)
	offsets, err := r.Offsets()
	check(t, err)
	check(t, r.Close())
	cut, out := filepath.Join(t.TempDir(), "cut"), filepath.Join(t.TempDir(), "out")
	for size := 0; size < len(data); size += 1 + size/60 {
		check(t, os.WriteFile(cut, data[:size], 0o600))
		result, err := shardpack.Recover(cut, out, shardpack.RecoverOptions{Overwrite: true, NoSync: true})
		check(t, err)
		complete := 0
		for complete < len(samples) && offsets[complete+1] <= uint64(size) {
			complete++
		}
		if result.Records != complete || result.HadIndex {
			t.Fatalf("%d of %d bytes: %+v, expected %d records", size, len(data), result, complete)
		}
		streamed := 0
		for _, err := range shardpack.Stream(bytes.NewReader(data[:size])) {
			if err == nil {
				streamed++
			} else if !errors.Is(err, shard.ErrTruncated) {
				t.Fatalf("a cut stream ends with %v", err)
			}
		}
		if streamed != complete {
			t.Fatalf("%d of %d bytes: a stream gives %d records, expected %d", size, len(data), streamed, complete)
		}
		recovered, err := shardpack.Open(out)
		check(t, err)
		for i, record := range collect(t, recovered.Records()) {
			if !same(sampleOf(t, record), samples[i]) {
				t.Fatalf("%d bytes: record %d is another one", size, i)
			}
		}
		check(t, recovered.Close())
	}
}

func TestEveryChangedByteIsNoticedOrHarmless(t *testing.T) {
	for _, name := range []string{"alignment_1", "colliding_keys", "metadata_empty", "more_padding", "reserved_bytes", "unicode"} {
		data, err := os.ReadFile(vectors + "valid_packs/" + name + ".shardpack")
		check(t, err)
		original := readable(data)
		for at := range data {
			data[at] ^= 0x01
			for i, sample := range readable(data) {
				if want, there := original[i]; !there || !same(sample, want) {
					t.Fatalf("%s: byte %d changes %s without an error", name, at, i)
				}
			}
			data[at] ^= 0x01
		}
	}
}

// readable gives what can be read of a shard at random and as a stream, by the way and the number.
func readable(data []byte) map[string]shardpack.Sample {
	found := map[string]shardpack.Sample{}
	take := func(way string, records iter.Seq2[*shardpack.Record, error]) {
		i := 0
		for record, err := range records {
			if err == nil {
				if sample, err := record.Sample(); err == nil {
					found[fmt.Sprint(way, i)] = sample
				}
			}
			i++
		}
	}
	take("stream", shardpack.Stream(bytes.NewReader(data)))
	if r, err := shardpack.NewReader(bytes.NewReader(data), int64(len(data))); err == nil {
		take("reader", r.Records())
	}
	return found
}

func TestDamageInTheMiddleCostsOneRecord(t *testing.T) {
	samples := randomSamples(4, 8)
	samples[3].Entries = []shardpack.FileEntry{{Name: "a", Data: []byte("intact")}, {Name: "b", Data: []byte("damaged")}}
	path := write(t, samples, shardpack.WriterOptions{})
	data, err := os.ReadFile(path)
	check(t, err)
	data[bytes.Index(data, []byte("damaged"))] ^= 0xFF
	for _, hasIndex := range []bool{true, false} {
		if !hasIndex {
			data = data[:len(data)-1]
		}
		for _, keep := range []bool{false, true} {
			check(t, os.WriteFile(path, data, 0o600))
			out := filepath.Join(t.TempDir(), "out")
			result, err := shardpack.Recover(path, out, shardpack.RecoverOptions{KeepEntries: keep, NoSync: true})
			check(t, err)
			lost := result.Lost
			if result.HadIndex != hasIndex || len(lost) != 1 || lost[0].Key != samples[3].Key || (lost[0].Entry == "b") != keep {
				t.Fatalf("%+v", result)
			}
			r, err := shardpack.Open(out)
			check(t, err)
			record, err := r.ByKey(samples[3].Key)
			if keep {
				check(t, err)
				if !slices.Equal(record.Names(), []string{"a"}) {
					t.Errorf("kept %q", record.Names())
				}
			} else if !errors.Is(err, shard.ErrEntryNotFound) || r.Len() != len(samples)-1 {
				t.Errorf("%v, %d records", err, r.Len())
			}
			check(t, r.Close())
		}
	}
}

// A shard with an index that is longer than the first read, records that are longer than a window, and false markers.
func TestLargeShardsAreReadAndRecovered(t *testing.T) {
	var samples []shardpack.Sample
	for i := range 4000 {
		size := 100 + i%400
		if i%1000 == 500 {
			size = 3 << 20
		}
		data := bytes.Repeat([]byte("SPR1 and so on, "), size/16)
		samples = append(samples, shardpack.Sample{Key: fmt.Sprint(i), Metadata: shard.Object{}, Entries: []shardpack.FileEntry{
			{Name: "raw.bin", Data: data, ContentType: "application/octet-stream"},
		}})
	}
	path := write(t, samples, shardpack.WriterOptions{})
	r, err := shardpack.Open(path)
	check(t, err)
	defer func() { _ = r.Close() }()
	for i, record := range collect(t, r.Records()) {
		if !same(sampleOf(t, record), samples[i]) {
			t.Fatalf("record %d is another one", i)
		}
	}
	offsets, err := r.Offsets()
	check(t, err)
	data, err := os.ReadFile(path)
	check(t, err)

	var want []shardpack.LostPart
	for i := 7; i < len(samples); i += 1999 { // a head each, one of them of a large record
		if i == 7+1999 {
			i = 1500
		}
		data[offsets[i]+40] ^= 0xFF
		want = append(want, shardpack.LostPart{Offset: offsets[i], Size: offsets[i+1] - offsets[i]})
	}
	clear(data[offsets[3000]:offsets[3003]]) // zeros in the middle are a loss
	want = append(want, shardpack.LostPart{Offset: offsets[3000], Size: offsets[3003] - offsets[3000]})
	slices.SortFunc(want, func(a, b shardpack.LostPart) int { return int(a.Offset) - int(b.Offset) })
	data = append(data[:offsets[len(samples)]:offsets[len(samples)]], make([]byte, 5<<20)...) // zeros at the end are not
	damaged, out := filepath.Join(t.TempDir(), "damaged"), filepath.Join(t.TempDir(), "out")
	check(t, os.WriteFile(damaged, data, 0o600))
	result, err := shardpack.Recover(damaged, out, shardpack.RecoverOptions{NoSync: true})
	check(t, err)
	if len(result.Lost) != len(want) || result.Records != len(samples)-len(want)-2 || result.HadIndex {
		t.Fatalf("%d records, lost %+v; expected %+v", result.Records, result.Lost, want)
	}
	for i, part := range result.Lost {
		if part.Offset != want[i].Offset || part.Size != want[i].Size {
			t.Errorf("lost %+v, expected %+v", part, want[i])
		}
	}
}

func TestADiskThatFailsIsNotDamage(t *testing.T) {
	samples := randomSamples(10, 20)
	data, err := os.ReadFile(write(t, samples, shardpack.WriterOptions{}))
	check(t, err)
	failed := errors.New("the disk failed")
	disk := &flaky{data: bytes.NewReader(data), err: failed}
	for calls := range 6 {
		disk.left = calls
		r, err := shardpack.NewReader(disk, int64(len(data)))
		if err == nil {
			_, err = r.Record(0)
		}
		for i := 0; err == nil && i < len(samples); i++ {
			_, err = r.ByKey(samples[i].Key)
		}
		var found *shard.Error
		if !errors.Is(err, failed) || !errors.As(err, &found) || found.Code != shard.CodeIOError {
			t.Errorf("after %d reads: %v", calls, err)
		}
	}
}

// flaky fails after some reads.
type flaky struct {
	data *bytes.Reader
	left int
	err  error
}

func (f *flaky) ReadAt(b []byte, offset int64) (int, error) {
	if f.left--; f.left < 0 {
		return 0, f.err
	}
	return f.data.ReadAt(b, offset)
}

// childFolder is set for a process that only writes, and is killed.
const childFolder = "SHARDPACK_TEST_FOLDER"

func TestAKilledWriterLeavesAFileToRecover(t *testing.T) {
	samples := randomSamples(5, 10)
	if folder := os.Getenv(childFolder); folder != "" {
		w, err := shardpack.Create(filepath.Join(folder, "x.shardpack"), shardpack.WriterOptions{})
		check(t, err)
		for _, sample := range samples {
			check(t, w.Write(sample))
		}
		check(t, w.Flush())
		fmt.Println("written")
		select {}
	}
	folder := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), childFolder+"="+folder)
	out, err := child.StdoutPipe()
	check(t, err)
	check(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	check(t, child.Process.Kill())
	_ = child.Wait()
	if err != nil || line != "written\n" {
		t.Fatalf("%q, %v", line, err)
	}
	path := filepath.Join(folder, "x.shardpack")
	left, err := filepath.Glob(filepath.Join(folder, ".x.shardpack.*.partial"))
	check(t, err)
	if _, err := os.Stat(path); len(left) != 1 || !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%q, %v", left, err)
	}
	result, err := shardpack.Recover(left[0], path, shardpack.RecoverOptions{})
	check(t, err)
	if result.Records != len(samples) || len(result.Lost) != 0 || result.HadIndex {
		t.Errorf("%+v", result)
	}
}

func TestHostileShardsTakeLittleMemory(t *testing.T) {
	const most = 48 << 20
	for _, v := range loadVectors(t, "invalid_packs") {
		data, err := os.ReadFile(v.path)
		check(t, err)
		limits := shardpack.Limits{MaxDecompressedBytes: 1 << 20}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if r, err := shardpack.NewReader(bytes.NewReader(data), int64(len(data)), shardpack.Options{Limits: limits}); err == nil {
			for record, err := range r.Records() {
				if err == nil {
					_, _ = record.Sample()
				}
			}
		}
		for range shardpack.Stream(bytes.NewReader(data)) { //nolint:revive // reading is the point
		}
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > most+16*uint64(len(data)) {
			t.Errorf("%s: %d bytes of memory for a file of %d", v.name, taken, len(data))
		}
	}
}
