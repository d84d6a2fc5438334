package shardpack_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

func collect(t testing.TB, records iter.Seq2[*shardpack.Record, error]) []*shardpack.Record {
	t.Helper()
	var found []*shardpack.Record
	for record, err := range records {
		check(t, err)
		found = append(found, record)
	}
	return found
}

// randomSamples makes samples of all kinds: empty and large entries, text that compresses and noise that does not.
func randomSamples(seed uint64, count int) []shardpack.Sample {
	random := rand.New(rand.NewPCG(seed, 7))
	names := []string{"jpg", "left.png", "txt", "a.json", "weights.npy", "größe", "🤖.bin"}
	samples := make([]shardpack.Sample, count)
	for i := range samples {
		s := shardpack.Sample{Key: fmt.Sprintf("train/%d/ä%d", random.IntN(3), i), Metadata: shard.Object{}}
		for key := range random.IntN(3) {
			s.Metadata[fmt.Sprint("field", key)] = []any{int64(i), "text", 2.5, nil, true, shard.Object{"deep": []any{}}}
		}
		for _, name := range names[:random.IntN(len(names)+1)] {
			data := make([]byte, random.IntN(1<<random.IntN(14)))
			for at := range data {
				data[at] = byte(random.Uint32())
				if strings.Contains(name, "txt") || strings.Contains(name, "npy") {
					data[at] &= 3
				}
			}
			s.Entries = append(s.Entries, shardpack.FileEntry{Name: name, Data: data, ContentType: shardpack.ContentTypeOf(name)})
		}
		samples[i] = s
	}
	return samples
}

// write makes a shard of samples and gives its path.
func write(t testing.TB, samples []shardpack.Sample, options shardpack.WriterOptions) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.shardpack")
	options.NoSync = true
	w, err := shardpack.Create(path, options)
	check(t, err)
	for _, sample := range samples {
		check(t, w.Write(sample))
	}
	check(t, w.Finalize())
	check(t, w.Close())
	return path
}

func sampleOf(t testing.TB, record *shardpack.Record) shardpack.Sample {
	t.Helper()
	sample, err := record.Sample()
	check(t, err)
	return sample
}

// same compares samples; no entries and no data are the same as empty ones.
func same(a, b shardpack.Sample) bool {
	return a.Key == b.Key && reflect.DeepEqual(a.Metadata, b.Metadata) &&
		slices.EqualFunc(a.Entries, b.Entries, func(a, b shardpack.FileEntry) bool {
			return a.Name == b.Name && a.ContentType == b.ContentType && bytes.Equal(a.Data, b.Data)
		})
}

func TestEverySampleIsReadBackInEveryWay(t *testing.T) {
	samples := randomSamples(1, 60)
	for _, alignment := range []uint8{1, 8, 64} {
		for _, encoding := range []shardpack.Encoding{shardpack.EncodingNone, shardpack.EncodingLZ4, shardpack.EncodingZstd} {
			t.Run(fmt.Sprint(alignment, encoding), func(t *testing.T) {
				path := write(t, samples, shardpack.WriterOptions{Alignment: alignment, Compression: encoding})
				r, err := shardpack.Open(path)
				check(t, err)
				defer func() { _ = r.Close() }()
				file, err := os.Open(path)
				check(t, err)
				defer func() { _ = file.Close() }()
				inOrder, streamed := collect(t, r.Records()), collect(t, shardpack.Stream(file))
				encodings := map[shardpack.Encoding]bool{}
				for i, want := range samples {
					byNumber, err := r.Record(i)
					check(t, err)
					byKey, err := r.ByKey(want.Key)
					check(t, err)
					for _, record := range []*shardpack.Record{byNumber, byKey, inOrder[i], streamed[i]} {
						if got := sampleOf(t, record); !same(got, want) {
							t.Fatalf("sample %d is another one", i)
						}
					}
					for e := range byNumber.Entries() {
						encodings[e.Encoding()] = true
						offset, err := e.Offset()
						check(t, err)
						if offset%uint64(alignment) != 0 {
							t.Errorf("%s is not aligned", e.Name())
						}
					}
				}
				if !encodings[shardpack.EncodingNone] || !encodings[encoding] {
					t.Errorf("stored as %v", encodings)
				}
			})
		}
	}
}

func TestTheSameSamplesGiveTheSameBytes(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	samples := randomSamples(2, 40)
	first, err := os.ReadFile(write(t, samples, shardpack.WriterOptions{User: shard.Object{"b": 1, "a": 2}}))
	check(t, err)
	second, err := os.ReadFile(write(t, samples, shardpack.WriterOptions{User: shard.Object{"a": 2, "b": 1}}))
	check(t, err)
	if !bytes.Equal(first, second) || !bytes.Contains(first, []byte(`"created":"2023-11-14T22:13:20Z"`)) {
		t.Error("two runs give different bytes, or another time")
	}
}

func TestAShardIsWrittenToAnything(t *testing.T) {
	samples := randomSamples(9, 20)
	want, err := os.ReadFile(write(t, samples, shardpack.WriterOptions{Created: "now"}))
	check(t, err)
	var out bytes.Buffer
	w, err := shardpack.NewWriter(&out, shardpack.WriterOptions{Created: "now"})
	check(t, err)
	for _, sample := range samples {
		check(t, w.Write(sample))
	}
	check(t, w.Finalize())
	if !bytes.Equal(out.Bytes(), want) {
		t.Error("other bytes than in a file")
	}
	full := errors.New("no more room")
	w, err = shardpack.NewWriter(failing{full}, shardpack.WriterOptions{})
	check(t, err)
	check(t, w.Write(samples[0]))
	for range 2 { // and it stays so
		if err := w.Flush(); !errors.Is(err, full) {
			t.Errorf("%v", err)
		}
	}
	if err := w.Finalize(); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

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

func TestAFileAppearsCompleteOrNotAtAll(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "x.shardpack")
	check(t, os.WriteFile(path, []byte("before"), 0o600))
	if _, err := shardpack.Create(path, shardpack.WriterOptions{}); !errors.Is(err, shard.ErrInvalidArgument) {
		t.Errorf("a file that is there: %v", err)
	}
	w, err := shardpack.Create(path, shardpack.WriterOptions{Overwrite: true})
	check(t, err)
	check(t, w.Write(shardpack.Sample{Key: "a"}))
	check(t, w.Close())
	check(t, w.Close())
	if err := w.Write(shardpack.Sample{Key: "b"}); !errors.Is(err, shard.ErrShardClosed) {
		t.Errorf("a closed writer: %v", err)
	}
	data, _ := os.ReadFile(path)
	if left, _ := os.ReadDir(folder); string(data) != "before" || len(left) != 1 {
		t.Errorf("%q, %d files", data, len(left))
	}

	taken := filepath.Join(folder, "y.shardpack")
	w, err = shardpack.Create(taken, shardpack.WriterOptions{})
	check(t, err)
	check(t, os.WriteFile(taken, []byte("somebody else"), 0o600))
	if err := w.Finalize(); !errors.Is(err, shard.ErrInvalidArgument) {
		t.Errorf("a file that appeared meanwhile: %v", err)
	}
	if left, _ := os.ReadDir(folder); len(left) != 2 {
		t.Errorf("%d files are left", len(left))
	}
}

func TestAWriterRefusesWhatCannotBeStoredAndGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.shardpack")
	w, err := shardpack.Create(path, shardpack.WriterOptions{NoSync: true})
	check(t, err)
	check(t, w.Write(shardpack.Sample{Key: "a"}))
	long := strings.Repeat("x", 65_537)
	entry := func(name, contentType string) shardpack.Sample {
		return shardpack.Sample{Key: "b", Entries: []shardpack.FileEntry{{Name: name, ContentType: contentType}}}
	}
	twice := entry("n", "")
	twice.Entries = append(twice.Entries, twice.Entries[0])
	deep := any(nil)
	for range 200 {
		deep = []any{deep}
	}
	for what, sample := range map[string]shardpack.Sample{
		"a key twice": {Key: "a"}, "no key": {}, "a long key": {Key: long}, "NUL in a key": {Key: "\x00"}, "not UTF-8": {Key: "\xff"},
		"no name": entry("", ""), "a long name": entry(long, ""), "NUL in a name": entry("\x00", ""), "a name that is not UTF-8": entry("\xff", ""),
		"a long content type": entry("n", long[:256]), "a content type that is not ASCII": entry("n", "ä"), "a name twice": twice,
		"metadata that is not JSON": {Key: "b", Metadata: shard.Object{"x": make(chan int)}}, "deep metadata": {Key: "b", Metadata: shard.Object{"x": deep}},
	} {
		if err := w.Write(sample); !errors.Is(err, shard.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check(t, w.Write(shardpack.Sample{Key: "b"}))
	check(t, w.Finalize())
	r, err := shardpack.Open(path)
	check(t, err)
	defer func() { _ = r.Close() }()
	if r.Len() != 2 {
		t.Errorf("%d records", r.Len())
	}
	for _, options := range []shardpack.WriterOptions{
		{Alignment: 7}, {Compression: shardpack.EncodingGzip}, {User: shard.Object{"x": make(chan int)}},
	} {
		if _, err := shardpack.Create(filepath.Join(t.TempDir(), "y"), options); !errors.Is(err, shard.ErrInvalidArgument) {
			t.Errorf("%+v: %v", options, err)
		}
	}
}

func TestTheSchemaHasTheNamesOfAllEntries(t *testing.T) {
	many := make([]shardpack.Sample, 257)
	for i := range many {
		many[i] = shardpack.Sample{Key: fmt.Sprint(i), Entries: []shardpack.FileEntry{{Name: fmt.Sprint("n", i)}}}
	}
	varies := []shardpack.Sample{
		{Key: "a", Entries: []shardpack.FileEntry{{Name: "jpg"}, {Name: "x", ContentType: "a/b"}}},
		{Key: "b", Entries: []shardpack.FileEntry{{Name: "jpg"}, {Name: "x", Untyped: true}}},
		{Key: "c"},
	}
	row := func(contentType string) shard.Object {
		return shard.Object{"content_type": contentType, "records": int64(2)}
	}
	for _, one := range []struct {
		samples []shardpack.Sample
		want    any
	}{{varies, shard.Object{"jpg": row("image/jpeg"), "x": row("")}}, {many, nil}, {nil, shard.Object{}}} {
		r, err := shardpack.Open(write(t, one.samples, shardpack.WriterOptions{}))
		check(t, err)
		fields, err := r.Metadata()
		check(t, err)
		if !reflect.DeepEqual(fields["schema"], one.want) {
			t.Errorf("%v, expected %v", fields["schema"], one.want)
		}
		check(t, r.Close())
	}
}

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

func TestGoroutinesShareAReader(t *testing.T) {
	samples := randomSamples(8, 30)
	r, err := shardpack.Open(write(t, samples, shardpack.WriterOptions{Compression: shardpack.EncodingZstd}))
	check(t, err)
	defer func() { _ = r.Close() }()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i, want := range samples {
				record, err := r.ByKey(want.Key)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := record.Sample(); err != nil || !same(got, want) {
					t.Errorf("record %d: %v", i, err)
				}
			}
		})
	}
	group.Wait()
}

func TestAClosedReaderSaysSo(t *testing.T) {
	r, err := shardpack.Open(write(t, []shardpack.Sample{{Key: "a", Entries: []shardpack.FileEntry{{Name: "x", Data: make([]byte, 10_000)}}}}, shardpack.WriterOptions{}))
	check(t, err)
	record, err := r.Record(0)
	check(t, err)
	check(t, r.Close())
	check(t, r.Close())
	if _, err := record.ReadEntry("x"); !errors.Is(err, shard.ErrShardClosed) {
		t.Errorf("an entry: %v", err)
	}
	if _, err := r.Record(0); !errors.Is(err, shard.ErrShardClosed) {
		t.Errorf("a record: %v", err)
	}
	if _, err := shardpack.Open(filepath.Join(t.TempDir(), "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestAFileInARecordIsReadInItsPlace(t *testing.T) {
	inner, err := os.ReadFile(vectors + "valid/hello.shard")
	check(t, err)
	r, err := shardpack.Open(write(t, []shardpack.Sample{{Key: "a", Entries: []shardpack.FileEntry{{Name: "shard", Data: inner}}}}, shardpack.WriterOptions{Alignment: 64}))
	check(t, err)
	defer func() { _ = r.Close() }()
	record, err := r.Record(0)
	check(t, err)
	e, err := record.Entry("shard")
	check(t, err)
	section, err := e.Section()
	check(t, err)
	container, err := shard.NewReader(section, section.Size())
	check(t, err)
	check(t, container.Verify())
}

func TestMessagePackKeepsTypes(t *testing.T) {
	text := strings.Repeat("t", 40)
	for stored, want := range map[string]any{
		"\x00": int64(0), "\x7f": int64(127), "\xe0": int64(-32), "\xcc\xff": int64(255), "\xcd\x01\x00": int64(256),
		"\xcf\xff\xff\xff\xff\xff\xff\xff\xff": uint64(1<<64 - 1), "\xd0\x80": int64(-128), "\xd1\xff\x7f": int64(-129),
		"\xd3\x80\x00\x00\x00\x00\x00\x00\x00": int64(-1 << 63), "\xca\x3f\x80\x00\x00": 1.0, "\xc0": nil, "\xc3": true,
		"\xc4\x02\x01\x02": []byte{1, 2}, "\xd9\x28" + text: text, "\xd4\xff\x07": shardpack.Extension{Code: -1, Data: []byte{7}},
		"\xc7\x02\x05\x01\x02": shardpack.Extension{Code: 5, Data: []byte{1, 2}}, "\x92\x01\x02": []any{int64(1), int64(2)},
		"\x82\x01\xc0\xa1\x61\x90": shardpack.Map{{Key: int64(1)}, {Key: "a", Value: []any{}}},
	} {
		got, err := shardpack.DecodeMessagePack([]byte(stored))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("% x: %#v, %v; expected %#v", stored, got, err, want)
		}
	}
	for _, stored := range []string{"", "\xc1", "\x01\x01", "\xa1", "\xa1\xff", "\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\x81\x90\x01", "\x82\x01\x01\x01\x01"} {
		if got, err := shardpack.DecodeMessagePack([]byte(stored)); err == nil {
			t.Errorf("% x: read as %v", stored, got)
		}
	}
	many := append([]byte{0xdd, 0, 0, 0, 11}, make([]byte, 11)...)
	if _, err := shardpack.DecodeMessagePack(many, shardpack.Options{Limits: shardpack.Limits{MaxJSONNodes: 10}}); !errors.Is(err, shard.ErrLimitExceeded) {
		t.Errorf("eleven values of ten: %v", err)
	}
}

func TestGzipMembersWithLongHeadsAreRead(t *testing.T) {
	content := bytes.Repeat([]byte("a sample "), 100)
	var member bytes.Buffer
	z := gzip.NewWriter(&member)
	z.Name, z.Comment, z.Extra = strings.Repeat("n", 2000), "c", []byte("extra")
	_, _ = z.Write(content)
	check(t, z.Close())
	stored := member.Bytes()
	got, err := shardpack.DecodeEntry(shardpack.EncodingGzip, stored, uint64(len(content)))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for at := range stored {
		if _, err := shardpack.DecodeEntry(shardpack.EncodingGzip, stored[:at], uint64(len(content))); err == nil {
			t.Fatalf("a member that is cut at byte %d was read", at)
		}
	}
}

func Example() {
	folder, _ := os.MkdirTemp("", "shardpack")
	defer func() { _ = os.RemoveAll(folder) }()
	path := filepath.Join(folder, "train.shardpack")

	w, err := shardpack.Create(path, shardpack.WriterOptions{Compression: shardpack.EncodingZstd})
	if err != nil {
		panic(err)
	}
	err = w.Write(shardpack.Sample{
		Key:      "cat/7",
		Metadata: shard.Object{"label": 3},
		Entries:  []shardpack.FileEntry{{Name: "jpg", Data: []byte("pixels")}, {Name: "txt", Data: []byte("a cat")}},
	})
	if err != nil {
		panic(err)
	}
	if err := w.Finalize(); err != nil { // the file appears under its name, complete
		panic(err)
	}

	r, err := shardpack.Open(path)
	if err != nil {
		panic(err)
	}
	defer func() { _ = r.Close() }()
	for record, err := range r.Records() {
		if err != nil {
			panic(err)
		}
		metadata, _ := record.Metadata()
		text, _ := record.ReadEntry("txt")
		fmt.Println(record.Key(), record.Names(), metadata["label"], string(text))
	}
	// Output: cat/7 [jpg txt] 3 a cat
}

func ExampleStream() {
	file, err := os.Open(vectors + "valid_packs/hello.shardpack") // or a pipe, or a server's response
	if err != nil {
		panic(err)
	}
	defer func() { _ = file.Close() }()
	for record, err := range shardpack.Stream(file) {
		if err != nil {
			panic(err)
		}
		data, err := record.ReadEntry("x.txt")
		fmt.Println(record.Key(), string(data), err)
	}
	// Output: a hello <nil>
}

func ExampleCreateSet() {
	folder, _ := os.MkdirTemp("", "shardpack")
	defer func() { _ = os.RemoveAll(folder) }()

	w, err := shardpack.CreateSet(filepath.Join(folder, "train-%06d.shardpack"), shardpack.SetOptions{MaxRecords: 2})
	if err != nil {
		panic(err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if err := w.Write(shardpack.Sample{Key: key}); err != nil {
			panic(err)
		}
	}
	if err := w.Finalize(); err != nil {
		panic(err)
	}

	s, err := shardpack.OpenSet(filepath.Join(folder, "train.shardpack-set"))
	if err != nil {
		panic(err)
	}
	defer func() { _ = s.Close() }()
	for _, one := range s.Shards() {
		fmt.Println(one.Name, one.Records)
	}
	// Output:
	// train-000000.shardpack 2
	// train-000001.shardpack 1
}

func ExampleRecover() {
	folder, _ := os.MkdirTemp("", "shardpack")
	defer func() { _ = os.RemoveAll(folder) }()

	result, err := shardpack.Recover(vectors+"invalid_packs/entry_checksum.shardpack", filepath.Join(folder, "new.shardpack"), shardpack.RecoverOptions{})
	if err != nil {
		panic(err)
	}
	fmt.Println(result.Records, "records recovered")
	for _, part := range result.Lost {
		fmt.Println("lost:", part.Key, part.Size, "bytes")
	}
	// Output:
	// 2 records recovered
	// lost: bad 192 bytes
}
