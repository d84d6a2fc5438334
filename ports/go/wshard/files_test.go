package wshard

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

func TestChunksJoinToTheEpisodeTheyWereCutFrom(t *testing.T) {
	ep := reopen(t, save(t, randomEpisode(5, 37)))
	for _, size := range []int{1, 4, 10, 36, 37, 100} {
		folder := t.TempDir()
		manifest := must[string](t)(SaveChunked(folder, ep, size, SaveOptions{NoSync: true}))
		joined := reopen(t, manifest)
		expectSame(t, shownValues(t, joined), shownValues(t, ep))
		expectNoFaults(t, manifest)
	}
}

func TestChunksThatStartAtKeyframesAndWindowsJoinToTheSameFile(t *testing.T) {
	ep := reopen(t, save(t, randomEpisode(5, 37)))
	manifest := must[string](t)(SaveChunked(t.TempDir(), ep, 20, SaveOptions{NoSync: true}))
	if content(t, save(t, reopen(t, manifest))) != content(t, save(t, ep)) {
		t.Error("another file")
	}
}

// shownValues are the values of an episode as a user sees them: a chunk repeats packets that its steps need, and splits
// windows of scales.
func shownValues(t *testing.T, ep *Episode) map[string]string {
	t.Helper()
	found := values(t, ep)
	for at, c := range ep.lanes() {
		if c.Layout != Video {
			continue
		}
		name := at.blockName()
		delete(found, "frames/"+name)
		delete(found, "offsets/"+name)
		found[name] = ""
		for _, one := range must[[]Packet](t)(c.Packets()) {
			if !one.Hidden {
				found[name] += string(one.Data) + "|"
			}
		}
	}
	for key, residual := range ep.Residuals {
		if residual.Type == DeltaQ {
			found["scales/"+key] = fmt.Sprint(must[[]float64](t)(residual.Reconstruct(nil)))
		}
	}
	return found
}

func TestAnEpisodeInChunksIsReplacedInOneStep(t *testing.T) {
	folder := t.TempDir()
	old := randomEpisode(6, 30)
	manifest := must[string](t)(SaveChunked(folder, old, 10, SaveOptions{NoSync: true}))
	now := randomEpisode(7, 25)
	now.ID = old.ID
	w := must[*ChunkedEpisodeWriter](t)(NewChunkedEpisodeWriter(folder, old.ID, 10))
	w.Options.NoSync = true
	if _, err := w.WriteEpisodeChunked(now); err != nil {
		t.Fatal(err)
	}
	if ep := reopen(t, manifest); ep.LengthT != 30 {
		t.Error("the old episode is gone before the manifest is replaced")
	}
	if _, err := w.FinalizeManifest(); err != nil {
		t.Fatal(err)
	}
	expectSame(t, shownValues(t, reopen(t, manifest)), shownValues(t, now))
	if files := must[[]string](t)(chunkFiles(folder, old.ID)); len(files) != 3 {
		t.Error("chunks of the old episode are left:", files)
	}
}

func TestAChangedChunkIsRefused(t *testing.T) {
	folder := t.TempDir()
	manifest := must[string](t)(SaveChunked(folder, randomEpisode(8, 30), 10, SaveOptions{NoSync: true}))
	chunk := ChunkPath(folder, "ep_8", 1)
	text := []byte(content(t, chunk))
	text[len(text)-1] ^= 1 // in the last block: the index stays as it is
	if err := os.WriteFile(chunk, text, 0o644); err != nil {
		t.Fatal(err)
	}
	reader := must[*ChunkedEpisodeReader](t)(NewChunkedEpisodeReader(manifest))
	_, err := reader.LoadChunk(1)
	expectCode(t, err, shard.CodeReferenceMismatch, "W-CHK-7")
	if findings := Check(manifest); len(findings) == 0 {
		t.Error("a checking tool does not notice")
	}
	if err := os.Remove(chunk); err != nil {
		t.Fatal(err)
	}
	_, err = Open(manifest)
	expectCode(t, err, shard.CodeMissingFile, "W-CHK-7")
}

func TestAddedLanesAndEditsAreReadWithTheEpisodeAndFoldedIn(t *testing.T) {
	path := save(t, randomEpisode(9, 20), SaveOptions{Identity: true})
	before := content(t, path)
	lanes := New("", 0)
	lanes.SetOmen("state", "other", FromValues(make([]float32, 60), 3))
	lanes.Labels["skill"] = NewLabel(UnitSteps, Interval{Start: 1, End: 4, Text: "x"})
	quick := SaveOptions{NoSync: true}
	if _, err := AddLanes(path, "model", lanes, quick); err != nil {
		t.Fatal(err)
	}
	if _, err := AddLanes(path, "again", lanes, quick); err == nil {
		t.Error("a lane was added twice")
	}
	for _, value := range []any{1, 2} {
		if err := Edit(path, shard.Object{"grade": value, "note": nil}, map[string]*Label{"when": nil}, quick); err != nil {
			t.Fatal(err)
		}
	}
	if content(t, path) != before {
		t.Error("the episode itself was changed")
	}
	ep := reopen(t, path, Options{Sidecars: StrictSidecars})
	if ep.Omens["state"]["other"] == nil || ep.Labels["when"] != nil || ep.Metadata["grade"] != int64(2) || ep.Metadata["note"] != nil {
		t.Error("the sidecars are not read:", ep.Metadata)
	}
	expectNoFaults(t, path)
	wanted := values(t, ep)
	if err := Fold(path, quick); err != nil {
		t.Fatal(err)
	}
	if files := must[[]string](t)(SidecarFiles(path)); len(files) > 0 {
		t.Error("sidecars are left:", files)
	}
	expectSame(t, values(t, reopen(t, path, Options{Sidecars: NoSidecars})), wanted)
	expectNoFaults(t, path)
}

func TestSavingOverAnEpisodeWithSidecarsKeepsThemBound(t *testing.T) {
	path := save(t, randomEpisode(10, 20))
	lanes := New("", 0)
	lanes.SetOmen("u", "m", FromValues(make([]float32, 40), 2))
	if _, err := AddLanes(path, "model", lanes, SaveOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	if err := Edit(path, shard.Object{"grade": 1}, nil, SaveOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	ep := reopen(t, path)
	ep.Metadata["note"] = "new"
	if err := Save(path, ep, SaveOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, path, Options{Sidecars: StrictSidecars})
	if again.Omens["u"]["m"] == nil || again.Metadata["note"] != "new" || again.Metadata["grade"] != int64(1) {
		t.Error("a sidecar or a change is lost")
	}
	if files := must[[]string](t)(SidecarFiles(path)); len(files) != 1 {
		t.Error("expected the sidecar with the lane, and not the edit:", files)
	}
	again.Observations["state"] = FromValues(make([]float32, 60), 3)
	expectCode(t, Save(path, again), shard.CodeInvalidArgument, "")
	if reopen(t, path, Options{Sidecars: StrictSidecars}).Omens["u"]["m"] == nil {
		t.Error("a refused save has changed the episode")
	}
}

func TestASidecarOfAnotherEpisodeIsLeftOutWithAWarning(t *testing.T) {
	path := save(t, randomEpisode(11, 20))
	lanes := New("", 0)
	lanes.SetOmen("u", "m", FromValues(make([]float32, 40), 2))
	if _, err := AddLanes(path, "model", lanes, SaveOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	other := save(t, randomEpisode(12, 20))
	if err := os.Rename(path+sidecarSuffix, other+sidecarSuffix); err != nil {
		t.Fatal(err)
	}
	ep := reopen(t, other)
	if len(ep.Warnings) != 1 || ep.Omens["u"] != nil {
		t.Error("expected one warning, found", ep.Warnings)
	}
	_, err := Open(other, Options{Sidecars: StrictSidecars})
	expectCode(t, err, shard.CodeReferenceMismatch, "W-SID-2")
}

func TestAnEpisodeThatChangedOnDiskIsNotOverwritten(t *testing.T) {
	path := save(t, randomEpisode(13, 20))
	mine, theirs := reopen(t, path), reopen(t, path)
	theirs.Metadata["by"] = "them"
	if err := Save(path, theirs, SaveOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	expectCode(t, Save(path, mine), shard.CodeInvalidArgument, "")
	if err := Save(path, theirs, SaveOptions{NoSync: true}); err != nil {
		t.Error("who saved last may save again:", err)
	}
	if err := Save(filepath.Join(t.TempDir(), "copy.wshard"), mine, SaveOptions{NoSync: true}); err != nil {
		t.Error("another name is free:", err)
	}
}

func TestWhileAnEpisodeIsReplacedItsSidecarsFitTheOldFileAndTheNewOne(t *testing.T) {
	path := save(t, randomEpisode(14, 20))
	quick := SaveOptions{NoSync: true}
	lanes := New("", 0)
	lanes.SetOmen("u", "m", FromValues(make([]float32, 40), 2))
	if _, err := AddLanes(path, "model", lanes, quick); err != nil {
		t.Fatal(err)
	}
	if err := Edit(path, shard.Object{"grade": 1}, map[string]*Label{"when": nil}, quick); err != nil {
		t.Fatal(err)
	}
	wanted := values(t, reopen(t, path, Options{Sidecars: StrictSidecars}))
	sidecars := must[[]string](t)(SidecarFiles(path))

	// A writer that folds the sidecars in may be killed between any two of these steps.
	beside := path + newSuffix
	if err := writeFile(beside, reopen(t, path), quick); err != nil {
		t.Fatal(err)
	}
	expectSame(t, values(t, reopen(t, path, Options{Sidecars: StrictSidecars})), wanted)
	if err := bindAll(path, beside, sidecars, sidecars, quick); err != nil {
		t.Fatal(err)
	}
	expectSame(t, values(t, reopen(t, path, Options{Sidecars: StrictSidecars})), wanted)
	if err := os.Rename(beside, path); err != nil {
		t.Fatal(err)
	}
	expectSame(t, values(t, reopen(t, path, Options{Sidecars: StrictSidecars})), wanted)
	for _, file := range sidecars {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		expectSame(t, values(t, reopen(t, path, Options{Sidecars: StrictSidecars})), wanted)
	}
}

func TestWritersAtTheSameTimeLoseNothing(t *testing.T) {
	path := save(t, randomEpisode(15, 20))
	const count = 6
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			lanes := New("", 0)
			lanes.SetOmen("u", fmt.Sprint("m", i), FromValues(make([]float32, 40), 2))
			if _, err := AddLanes(path, fmt.Sprint("model", i), lanes, SaveOptions{NoSync: true}); err != nil {
				t.Error(err)
			}
			if err := Edit(path, shard.Object{fmt.Sprint("key", i): i}, nil, SaveOptions{NoSync: true}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ep := reopen(t, path, Options{Sidecars: StrictSidecars})
	if len(ep.Omens["u"]) != count || len(ep.Metadata) != count+1 {
		t.Errorf("%d lanes and %d keys", len(ep.Omens["u"]), len(ep.Metadata))
	}
}

func TestGoroutinesMayShareAnEpisode(t *testing.T) {
	ep := reopen(t, save(t, randomEpisode(16, 50), SaveOptions{Profile: ProfileTraining}))
	wanted := values(t, reopen(t, ep.Reader().Name()))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { expectSame(t, values(t, ep), wanted) })
	}
	all.Wait()
}

func TestAChunkThatIsALinkOutOfItsFolderIsRefused(t *testing.T) {
	folder := t.TempDir()
	manifest := must[string](t)(SaveChunked(folder, randomEpisode(17, 8), 4, SaveOptions{NoSync: true}))
	chunk, elsewhere := ChunkPath(folder, "ep_17", 1), filepath.Join(t.TempDir(), "other.wshard")
	if err := os.Rename(chunk, elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, chunk); err != nil {
		t.Skip(err)
	}
	_, err := Open(manifest)
	expectCode(t, err, shard.CodeUnsafePath, "S-MAN-4")
	if _, err := NewChunkedEpisodeWriter(folder, "c:1", 4); err == nil {
		t.Error("readers refuse names with a scheme")
	}
}
