package shardpack_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

const vectors = "../../../spec/vectors/"

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// vector is the JSON of a vector, as far as these tests compare it.
type vector struct {
	name, path   string
	File, When   string
	Rule, Error  string
	Also         []string
	RulesAlso    []string `json:"rules_also"`
	Record       string
	Entry, Key   string
	Canonical    any
	AbsentKeys   []string `json:"absent_keys"`
	Records      []vectorRecord
	Shard        string
	Shards, Keys []string
	Files        map[string]string
	Fields       map[string]any
	Stream       struct {
		Records string
		Error   *string
		Also    []string
	}
	Recovered struct {
		Keys     []string
		HadIndex bool `json:"had_index"`
		Lost     []struct {
			Offset, Size string
			Key          *string
		}
	}
}

type vectorRecord struct {
	Key, Offset, Size, Alignment string
	MetadataEncoding             string `json:"metadata_encoding"`
	Entries                      []struct {
		Name, Encoding, Offset, SHA256 string
		ContentType                    string `json:"content_type"`
	}
}

func loadVectors(t testing.TB, folder string) []vector {
	t.Helper()
	paths, err := filepath.Glob(vectors + folder + "/*.json")
	check(t, err)
	if len(paths) == 0 {
		t.Fatalf("no vectors in %s", folder)
	}
	found := make([]vector, len(paths))
	for i, path := range paths {
		text, err := os.ReadFile(path)
		check(t, err)
		check(t, json.Unmarshal(text, &found[i]))
		found[i].name = strings.TrimSuffix(filepath.Base(path), ".json")
		found[i].path = filepath.Join(filepath.Dir(path), found[i].File)
	}
	return found
}

// eachVector runs a test for every vector of a folder.
func eachVector(t *testing.T, folder string, test func(*testing.T, vector)) {
	for _, v := range loadVectors(t, folder) {
		t.Run(v.name, func(t *testing.T) { test(t, v) })
	}
}

func (v vector) expectRefusal(t *testing.T, err error) {
	t.Helper()
	var found *shard.Error
	if !errors.As(err, &found) {
		t.Fatalf("expected %s, found %v", v.Error, err)
	}
	code, rule := string(found.Code), found.Rule
	if code != v.Error && !slices.Contains(v.Also, code) {
		t.Errorf("expected %s, found %v", v.Error, err)
	}
	if len(v.Also) == 0 && rule != v.Rule && !slices.Contains(v.RulesAlso, rule) {
		t.Errorf("expected the rule %s, found %v", v.Rule, err)
	}
	if found.Path == "" || found.Problem == "" {
		t.Errorf("an error without a file or a problem: %v", err)
	}
}

func TestValidShardsAreReadInEveryWay(t *testing.T) {
	eachVector(t, "valid_packs", func(t *testing.T, v vector) {
		r, err := shardpack.Open(v.path)
		check(t, err)
		defer func() { _ = r.Close() }()
		if r.Len() != len(v.Records) {
			t.Fatalf("%d records, expected %d", r.Len(), len(v.Records))
		}
		data, err := os.ReadFile(v.path)
		check(t, err)
		inOrder, streamed := collect(t, r.Records()), collect(t, shardpack.Stream(bytes.NewReader(data)))
		if len(inOrder) != r.Len() || len(streamed) != r.Len() {
			t.Fatalf("%d records in order, %d in a stream", len(inOrder), len(streamed))
		}
		for i, want := range v.Records {
			byNumber, err := r.Record(i)
			check(t, err)
			byKey, err := r.ByKey(want.Key)
			check(t, err)
			for _, record := range []*shardpack.Record{byNumber, byKey, inOrder[i], streamed[i]} {
				compareRecord(t, record, want)
			}
		}
		check(t, r.Verify())
		for _, key := range v.AbsentKeys {
			if _, err := r.ByKey(key); !errors.Is(err, shard.ErrEntryNotFound) {
				t.Errorf("the absent key %q: %v", key, err)
			}
		}
	})
}

func compareRecord(t *testing.T, record *shardpack.Record, want vectorRecord) {
	t.Helper()
	encoding, _ := record.StoredMetadata()
	got := [...]string{record.Key(), encoding.String(), strconv.FormatUint(record.Offset(), 10), strconv.FormatUint(record.Size(), 10),
		strconv.Itoa(int(record.Alignment()))}
	if got != [...]string{want.Key, want.MetadataEncoding, want.Offset, want.Size, want.Alignment} {
		t.Fatalf("%.200q, expected %.200v", got, want)
	}
	for i, entry := range want.Entries {
		if record.Names()[i] != entry.Name {
			t.Fatalf("entry %d is %q, expected %q", i, record.Names()[i], entry.Name)
		}
		e, err := record.Entry(entry.Name)
		check(t, err)
		offset, err := e.Offset()
		check(t, err)
		data, err := e.Bytes()
		check(t, err)
		got := [...]string{e.ContentType(), e.Encoding().String(), strconv.FormatUint(offset, 10), digest(data)}
		if got != [...]string{entry.ContentType, entry.Encoding, entry.Offset, entry.SHA256} {
			t.Errorf("%s: %q, expected %v", entry.Name, got, entry)
		}
	}
}

func TestCanonicalShardsAreWrittenAgainByteForByte(t *testing.T) {
	eachVector(t, "valid_packs", func(t *testing.T, v vector) {
		how, isCanonical := v.Canonical.(string)
		if !isCanonical {
			t.Skip("not canonical")
		}
		want, err := os.ReadFile(v.path)
		check(t, err)
		for _, way := range []string{"copy", "write"} {
			hasMessagePack := slices.ContainsFunc(v.Records, func(r vectorRecord) bool { return r.MetadataEncoding == "messagepack" })
			if way == "write" && (how == "copy" || hasMessagePack) { // MessagePack is read and copied, but not written
				continue
			}
			if !bytes.Equal(rewrite(t, v.path, way), want) {
				t.Errorf("%s gives other bytes", way)
			}
		}
	})
}

// rewrite reads a shard and gives what a writer makes of it.
func rewrite(t *testing.T, path, way string) []byte {
	t.Helper()
	r, err := shardpack.Open(path)
	check(t, err)
	defer func() { _ = r.Close() }()
	fields, err := r.Metadata()
	check(t, err)
	options := shardpack.WriterOptions{NoSync: true}
	options.Created, _ = fields["created"].(string)
	options.User, _ = fields["user"].(shard.Object)
	if r.Len() > 0 {
		first, err := r.Record(0)
		check(t, err)
		options.Alignment = first.Alignment()
	}
	out := filepath.Join(t.TempDir(), "out.shardpack")
	w, err := shardpack.Create(out, options)
	check(t, err)
	for record, err := range r.Records() {
		check(t, err)
		if way == "copy" {
			check(t, w.Copy(record))
			continue
		}
		sample, err := record.Sample()
		check(t, err)
		check(t, w.Write(sample))
	}
	w.KeepFields(fields)
	check(t, w.Finalize())
	data, err := os.ReadFile(out)
	check(t, err)
	return data
}

func TestInvalidShardsAreRefusedWithTheirCode(t *testing.T) {
	eachVector(t, "invalid_packs", func(t *testing.T, v vector) {
		if v.When == "stream" {
			v.Also = append(v.Also, v.Stream.Also...)
		}
		v.expectRefusal(t, doStep(t, v))
		if r, err := shardpack.Open(v.path); err == nil && v.When != "stream" {
			if r.Verify() == nil {
				t.Error("a check finds nothing")
			}
			check(t, r.Close())
		}
		switch v.When {
		case "record", "metadata", "entry": // one damaged record does not hide the others
			r, err := shardpack.Open(v.path)
			check(t, err)
			defer func() { _ = r.Close() }()
			for _, key := range []string{"first", "last"} {
				record, err := r.ByKey(key)
				check(t, err)
				_, err = record.Sample()
				check(t, err)
			}
		}
	})
}

func doStep(t *testing.T, v vector) error {
	t.Helper()
	if v.When == "stream" {
		file, err := os.Open(v.path)
		check(t, err)
		defer func() { _ = file.Close() }()
		for _, err := range shardpack.Stream(file) {
			if err != nil {
				return err
			}
		}
		return nil
	}
	r, err := shardpack.Open(v.path)
	if v.When == "open" {
		return err
	}
	check(t, err)
	defer func() { _ = r.Close() }()
	number := -1
	if v.Record != "" {
		number, err = strconv.Atoi(v.Record)
		check(t, err)
	}
	switch v.When {
	case "offsets":
		_, err = r.Offsets()
	case "lookup":
		_, _, err = r.Find("first")
	case "index_metadata":
		_, err = r.Metadata()
	case "key":
		_, err = r.ByKey(v.Key)
	case "record":
		_, err = r.Record(number)
	case "metadata", "entry":
		record, failed := r.Record(number)
		check(t, failed)
		if v.When == "metadata" {
			_, err = record.Metadata()
		} else {
			_, err = record.ReadEntry(v.Entry)
		}
	default:
		t.Fatalf("an unknown step %q", v.When)
	}
	return err
}

func TestStreamsGiveTheRecordsBeforeTheDamage(t *testing.T) {
	eachVector(t, "invalid_packs", func(t *testing.T, v vector) {
		data, err := os.ReadFile(v.path)
		check(t, err)
		count, code := 0, ""
		for _, err := range shardpack.Stream(bytes.NewReader(data)) {
			if err != nil {
				var found *shard.Error
				if !errors.As(err, &found) {
					t.Fatal(err)
				}
				code = string(found.Code)
				break
			}
			count++
		}
		want := ""
		accepted := v.Stream.Also
		if v.Stream.Error != nil {
			want = *v.Stream.Error
			accepted = append(accepted, v.Also...)
		}
		if code != want && !slices.Contains(accepted, code) {
			t.Errorf("ends with %q, expected %q", code, want)
		}
		if len(v.Also) == 0 && strconv.Itoa(count) != v.Stream.Records {
			t.Errorf("%d records, expected %s", count, v.Stream.Records)
		}
	})
}

func TestRecoveryGivesTheIntactRecordsAndNamesTheLostOnes(t *testing.T) {
	eachVector(t, "invalid_packs", func(t *testing.T, v vector) {
		out := filepath.Join(t.TempDir(), "out.shardpack")
		result, err := shardpack.Recover(v.path, out, shardpack.RecoverOptions{NoSync: true})
		check(t, err)
		if result.HadIndex != v.Recovered.HadIndex || len(result.Lost) != len(v.Recovered.Lost) {
			t.Fatalf("%+v, expected %+v", result, v.Recovered)
		}
		for i, want := range v.Recovered.Lost {
			got := result.Lost[i]
			key := ""
			if want.Key != nil {
				key = *want.Key
			}
			if strconv.FormatUint(got.Offset, 10) != want.Offset || strconv.FormatUint(got.Size, 10) != want.Size || got.Key != key || got.Reason == nil {
				t.Errorf("lost %+v, expected %+v", got, want)
			}
		}
		r, err := shardpack.Open(out)
		check(t, err)
		defer func() { _ = r.Close() }()
		var keys []string
		for _, record := range collect(t, r.Records()) {
			keys = append(keys, record.Key())
		}
		if !slices.Equal(keys, v.Recovered.Keys) || result.Records != len(keys) {
			t.Errorf("%q, expected %q", keys, v.Recovered.Keys)
		}
	})
}

func TestValidSetsAreReadInEveryWay(t *testing.T) {
	eachVector(t, "valid_sets", func(t *testing.T, v vector) {
		s, err := shardpack.OpenSet(v.path)
		check(t, err)
		defer func() { _ = s.Close() }()
		var names, keys []string
		for _, one := range s.Shards() {
			names = append(names, one.Name)
		}
		for _, record := range collect(t, s.Records()) {
			keys = append(keys, record.Key())
		}
		if !slices.Equal(names, v.Shards) || !slices.Equal(keys, v.Keys) || s.Len() != len(v.Keys) || len(s.Fields()) != len(v.Fields) {
			t.Fatalf("%q, %q, %v", names, keys, s.Fields())
		}
		for i, key := range v.Keys {
			byNumber, err := s.Record(i)
			check(t, err)
			byKey, err := s.ByKey(key)
			check(t, err)
			if byNumber.Key() != key || byKey.Key() != key {
				t.Errorf("record %d is %q, and %q leads to %q", i, byNumber.Key(), key, byKey.Key())
			}
		}
		check(t, s.Verify())
	})
}

func TestInvalidSetsAreRefusedWithTheirCode(t *testing.T) {
	eachVector(t, "invalid_sets", func(t *testing.T, v vector) {
		s, err := shardpack.OpenSet(v.path)
		switch v.When {
		case "open":
		case "shard":
			check(t, err)
			defer func() { _ = s.Close() }()
			for i, one := range s.Shards() {
				if one.Name == v.Shard {
					_, err = s.Shard(i)
				} else {
					_, other := s.Shard(i)
					check(t, other)
				}
			}
		case "check":
			check(t, err)
			defer func() { _ = s.Close() }()
			err = s.Verify()
		default:
			t.Fatalf("an unknown step %q", v.When)
		}
		v.expectRefusal(t, err)
	})
}

func TestCanonicalSetsAreWrittenAgainByteForByte(t *testing.T) {
	eachVector(t, "valid_sets", func(t *testing.T, v vector) {
		if isCanonical, _ := v.Canonical.(bool); !isCanonical {
			t.Skip("not canonical")
		}
		folder := t.TempDir()
		s, err := shardpack.OpenSet(v.path)
		check(t, err)
		defer func() { _ = s.Close() }()
		created, _ := s.Fields()["created"].(string)
		w, err := shardpack.CreateSet(filepath.Join(folder, "train-%06d.shardpack"), shardpack.SetOptions{
			Shards: shardpack.WriterOptions{Created: created, NoSync: true},
		})
		check(t, err)
		for i := range s.Shards() {
			r, err := s.Shard(i)
			check(t, err)
			if i > 0 {
				check(t, w.NextShard())
			}
			for _, record := range collect(t, r.Records()) {
				check(t, w.Copy(record))
			}
		}
		check(t, w.Finalize())
		found := map[string]string{}
		entries, err := os.ReadDir(folder)
		check(t, err)
		for _, entry := range entries {
			data, err := fs.ReadFile(os.DirFS(folder), entry.Name())
			check(t, err)
			found[entry.Name()] = digest(data)
		}
		for name, want := range v.Files {
			if found[name] != want {
				t.Errorf("%s has other bytes", name)
			}
		}
	})
}
