package wshard

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

var vectorFolder = filepath.Join("..", "..", "..", "spec", "vectors")

// journalVector is what the JSON of a vector says about a journal, without the episode.
type journalVector struct {
	File         string            `json:"file"`
	Rule         string            `json:"rule"`
	Error        string            `json:"error"`
	Also         []string          `json:"also"`
	RulesAlso    []string          `json:"rules_also"`
	ReadBytes    string            `json:"read_bytes"`
	Finished     bool              `json:"finished"`
	Cut          map[string]string `json:"cut"`
	Episode      json.RawMessage   `json:"episode"`
	journal, out string
}

func journalVectors(t testing.TB, folder string) []journalVector {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(vectorFolder, folder, "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors in %s: %v", folder, err)
	}
	found := make([]journalVector, len(paths))
	for i, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &found[i]); err != nil {
			t.Fatal(err)
		}
		found[i].journal = filepath.Join(filepath.Dir(path), found[i].File)
		found[i].out = filepath.Join(t.TempDir(), "out.wshard")
	}
	return found
}

func (v journalVector) accepts(e *shard.Error) bool {
	isCode := string(e.Code) == v.Error || slices.Contains(v.Also, string(e.Code))
	return isCode && (e.Rule == v.Rule || e.Rule == "J-2" || slices.Contains(v.RulesAlso, e.Rule))
}

func TestVectorsComeBackAsTheirJSONSays(t *testing.T) {
	for _, folder := range []string{"valid_journals", "invalid_journals"} {
		for _, v := range journalVectors(t, folder) {
			found, err := Recover(v.journal, RecoverOptions{Out: v.out, NoSync: true})
			if string(v.Episode) == "null" {
				var e *shard.Error
				if !errors.As(err, &e) || !v.accepts(e) {
					t.Errorf("%s: %v, want %s %s", v.File, err, v.Error, v.Rule)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", v.File, err)
				continue
			}
			isStopped := found.Reason != nil
			if isStopped != (v.Error != "") || (isStopped && !v.accepts(found.Reason)) {
				t.Errorf("%s: stopped by %v, want %s %s", v.File, found.Reason, v.Error, v.Rule)
			}
			if strconv.FormatInt(found.ReadBytes, 10) != v.ReadBytes || found.Finished != v.Finished {
				t.Errorf("%s: %d bytes, finished: %v", v.File, found.ReadBytes, found.Finished)
			}
			cut := map[string]string{}
			for block, count := range found.Cut {
				cut[block] = strconv.Itoa(count)
			}
			if !mapsEqual(cut, v.Cut) {
				t.Errorf("%s: cut %v, want %v", v.File, cut, v.Cut)
			}
		}
	}
}

func mapsEqual(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if b[key] != value {
			return false
		}
	}
	return true
}

// A journal is saved in little memory, by code of its own. It must give what Save gives for the same episode.
func TestARecoveredFileIsTheCanonicalOne(t *testing.T) {
	for _, v := range journalVectors(t, "valid_journals") {
		if _, err := Recover(v.journal, RecoverOptions{Out: v.out, NoSync: true}); err != nil {
			t.Fatalf("%s: %v", v.File, err)
		}
		j, err := openJournal(v.journal, true, false)
		if err != nil {
			t.Fatal(err)
		}
		ep, err := j.episode()
		if err != nil {
			t.Fatal(err)
		}
		saved := v.out + ".saved.wshard"
		if err := Save(saved, ep, SaveOptions{NoSync: true}); err != nil {
			t.Fatalf("%s: %v", v.File, err)
		}
		_ = j.close()
		if a, b := contents(t, v.out), contents(t, saved); a != b {
			t.Errorf("%s: %s\nand by Save: %s", v.File, a, b)
		}
	}
}

// contents tells the entries of a file in order, decoded.
func contents(t *testing.T, path string) string {
	t.Helper()
	r, err := shard.OpenShard(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	var b strings.Builder
	for _, name := range r.EntryNames() {
		data, err := r.ReadEntry(name)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(name + " " + strconv.Quote(string(data)) + "\n")
	}
	return b.String()
}

// A small run of many entries must not take memory for them, and neither must the ticks that follow from them.
func TestAHostileJournalTakesLittleMemory(t *testing.T) {
	content := make([]byte, 1<<25)
	frame, err := shard.AppendFrame(nil, content, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ep.wshard")
	w, err := openJournalWriter(path + PartialSuffix)
	if err != nil {
		t.Fatal(err)
	}
	row := shard.Object{"dtype": "u8", "id": "x", "shape": []any{}, "signal_block": "signal/x"}
	start := shard.Object{"v": 1, "episode": shard.Object{"episode_id": "e"}, "channels": []any{row}}
	if err := w.addText(frameStart, start); err != nil {
		t.Fatal(err)
	}
	if err := w.addRun(0, len(content), shard.CodecZstd, content, frame); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.flush(), w.close()); err != nil {
		t.Fatal(err)
	}
	content = nil
	before := allocated()
	found, err := Recover(path, RecoverOptions{NoSync: true})
	if err != nil || found.Steps != 1<<25 {
		t.Fatalf("%v, %v", found, err)
	}
	if taken := allocated() - before; taken > 32<<20 {
		t.Errorf("took %d MiB", taken>>20)
	}
}

func FuzzJournal(f *testing.F) {
	for _, folder := range []string{"valid_journals", "invalid_journals"} {
		for _, v := range journalVectors(f, folder) {
			data, err := os.ReadFile(v.journal)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if claimedBytes(data) > 1<<20 {
			return // decoding takes its time, and finds nothing new
		}
		j, err := parseJournal(bytes.NewReader(data), int64(len(data)), true, false)
		if err != nil {
			var e *shard.Error
			if !errors.As(err, &e) || !strings.HasPrefix(e.Rule, "J-") {
				t.Fatalf("not an error about a rule of journals: %v", err)
			}
			return
		}
		if (j.reason == nil) != (j.readBytes() == int64(len(data))) {
			t.Fatalf("read %d of %d bytes: %v", j.readBytes(), len(data), j.reason)
		}
		// What counts does not depend on what follows (J-2).
		again, err := parseJournal(bytes.NewReader(data[:j.readBytes()]), j.readBytes(), true, false)
		if err != nil || again.reason != nil || again.steps() != j.steps() || len(again.channels) != len(j.channels) {
			t.Fatalf("the frames that count are read differently on their own: %v", err)
		}
		// A reader that follows a recording may find bad content later, and never earlier.
		later, err := parseJournal(bytes.NewReader(data), int64(len(data)), false, false)
		if err != nil || later.readBytes() < j.readBytes() {
			t.Fatalf("without decoding, fewer frames count: %v", err)
		}
		ep, err := j.episode()
		if err != nil {
			return // its recorder broke J-CHN-4
		}
		for _, c := range ep.lanes() {
			if c.data.Size() > 1<<20 || (c.offsets != nil && c.offsets.Size() > 1<<20) {
				continue
			}
			if _, err := c.Data(); err != nil {
				t.Fatalf("%s: what was checked cannot be read: %v", c.Block(), err)
			}
		}
	})
}

func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// claimedBytes is the size of the content that the heads of a journal state.
func claimedBytes(data []byte) int64 {
	size := int64(0)
	for number := uint64(0); ; number++ {
		head, err := parseFrameHead(data, number)
		if err != nil || int(head.storedSize) > len(data)-frameHeadSize {
			return size
		}
		size += int64(head.contentSize)
		data = data[frameHeadSize+int(head.storedSize):]
	}
}
