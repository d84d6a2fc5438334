package shardpack_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
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
