package wshard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shard-format/shard/ports/go/shard"
)

// testOptions records a state, a command, a camera, a scan, words, and an inertial unit with a clock of its own.
func testOptions() StreamOptions {
	return StreamOptions{
		EpisodeID: "ep_1", EnvID: "Reach-v1", Timebase: Timebase{TickHz: 30}, Metadata: shard.Object{"operator": "ada"},
		Channels: []ChannelDef{
			{ID: "state", Shape: []int{3}, Unit: "rad"},
			{ID: "state", IsAction: true, DType: F64},
			{ID: "camera", DType: U8, Shape: []int{4, 6, 3}, Modality: ModalityRGB},
			{ID: "noise", DType: U16, Shape: []int{50}},
			{ID: "scan", DType: F32, Shape: []int{2}, Layout: Ragged},
			{ID: "words", Layout: Text},
			{ID: "imu", DType: F32, Shape: []int{6}, OwnClock: true, SamplingRateHz: 200},
		},
		Rewards: true, Ends: true, Timestamps: true, FlushSteps: 4, FlushInterval: time.Hour, Sync: SyncNever,
	}
}

// testStep is step t; it depends on nothing else.
func testStep(t int) Step {
	f := float32(t)
	scan := make([]float32, 2*(t%3))
	for i := range scan {
		scan[i] = f + float32(i)
	}
	// Pictures that change little from step to step, and do not compress on their own.
	noise := make([]uint16, 50)
	random := rand.New(rand.NewSource(1))
	for i := range noise {
		noise[i] = uint16(random.Intn(1<<16)) + uint16(t)
	}
	return Step{
		Values: map[string][]byte{
			"noise":        Bytes(noise),
			"signal/state": Bytes([]float32{f, f / 2, -f}), "action/state": Bytes([]float64{float64(t) / 7}),
			"camera": bytes.Repeat([]byte{byte(t), 2, 3}, 24), "scan": Bytes(scan), "words": []byte(strings.Repeat("ü", t%4)),
		},
		Reward: float64(t) / 3, Terminated: t%5 == 4, Truncated: t%7 == 6, TimestampNS: int64(1000 + 10*t),
	}
}

func record(t testing.TB, w *StreamWriter, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := w.WriteStep(testStep(i)); err != nil {
			t.Fatal(err)
		}
		for k := range 2 {
			at := int64(2*i + k)
			if err := w.Write("imu", Bytes([]float32{float32(at), 0, 0, 0, 0, 1}), 500*at); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// checkRecorded compares an episode with the first steps of testStep.
func checkRecorded(t testing.TB, ep *Episode, steps int) {
	t.Helper()
	if ep.ID != "ep_1" || ep.EnvID != "Reach-v1" || ep.LengthT != steps {
		t.Fatalf("%q %q of %d steps, want %d", ep.ID, ep.EnvID, ep.LengthT, steps)
	}
	if steps == 0 { // an empty block of the steps means that there is none
		return
	}
	want := map[string][]byte{}
	var ends, cuts, times, rewards []byte
	var scans, words [][]byte
	for i := range steps {
		step := testStep(i)
		for _, key := range []string{"signal/state", "action/state", "camera", "noise"} {
			want[key] = append(want[key], step.Values[key]...)
		}
		scans, words = append(scans, step.Values["scan"]), append(words, step.Values["words"])
		ends, cuts = append(ends, boolByte(step.Terminated)), append(cuts, boolByte(step.Truncated))
		times = binary.LittleEndian.AppendUint64(times, uint64(step.TimestampNS))
		rewards = binary.LittleEndian.AppendUint64(rewards, math.Float64bits(step.Reward))
	}
	want["terminated"], want["truncated"], want["times"] = ends, cuts, times
	want["scan"], want["words"] = bytes.Join(scans, nil), bytes.Join(words, nil)
	for name, c := range map[string]*Channel{
		"signal/state": ep.Observations["state"], "action/state": ep.Actions["state"], "camera": ep.Observations["camera"],
		"noise": ep.Observations["noise"],
		"scan":  ep.Observations["scan"], "words": ep.Observations["words"], "terminated": ep.Terminations,
		"truncated": ep.Truncations, "times": ep.TimestampsNS,
	} {
		if c == nil {
			t.Fatalf("%s is missing", name)
		}
		got, err := c.Data()
		if err != nil || !bytes.Equal(got, want[name]) {
			t.Errorf("%s: %v: %d bytes, want %d", name, err, len(got), len(want[name]))
		}
	}
	if steps > 1 { // a third is not exact in f32
		if got, err := ep.Rewards.Data(); err != nil || ep.Rewards.DType != F64 || !bytes.Equal(got, rewards) {
			t.Errorf("rewards: %v %v", ep.Rewards.DType, err)
		}
	}
}

func open(t testing.TB, path string) *Episode {
	t.Helper()
	ep, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ep.Close() })
	for _, finding := range Check(path) {
		t.Errorf("%s: %v", path, finding)
	}
	return ep
}

func start(t testing.TB, path string, o StreamOptions) *StreamWriter {
	t.Helper()
	w, err := NewStreamWriter(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func TestAFinishedRecordingIsAnEpisode(t *testing.T) {
	for _, codec := range []shard.Codec{shard.CompressionNone, shard.CompressionZstd} {
		for _, steps := range []int{0, 1, 4, 23} {
			path := filepath.Join(t.TempDir(), "new", "ep.wshard")
			o := testOptions()
			o.Compression = codec
			w := start(t, path, o)
			record(t, w, 0, steps)
			if err := w.Annotate("phase", Interval{Start: 0, End: 3, Text: "reach"}); err != nil {
				t.Fatal(err)
			}
			if err := w.AddMetadata(shard.Object{"success": true}); err != nil {
				t.Fatal(err)
			}
			if err := w.Finish(); err != nil {
				t.Fatal(err)
			}
			ep := open(t, path)
			checkRecorded(t, ep, steps)
			if filters, err := ep.Reader().Filters("signal/noise"); err != nil || (filters != nil) != (codec == shard.CompressionZstd && steps > 1) {
				t.Errorf("%d steps, %s: filters %v, %v", steps, codec, filters, err)
			}
			if ep.Metadata["success"] != true || ep.Metadata["operator"] != "ada" || ep.Timebase.Type != TimestampsNS {
				t.Errorf("metadata %v, timebase %v", ep.Metadata, ep.Timebase)
			}
			if intervals, err := ep.Labels["phase"].Intervals(); err != nil || len(intervals) != 1 || intervals[0].Text != "reach" {
				t.Errorf("labels %v, %v", intervals, err)
			}
			imu := ep.Observations["imu"]
			if times, err := imu.Timestamps(); err != nil || imu.Length != 2*steps || len(times) != 2*steps {
				t.Errorf("imu of %d entries: %v", imu.Length, err)
			}
			if exists(path + PartialSuffix) {
				t.Error("the journal is still there")
			}
		}
	}
}

func TestARecordingThatIsClosedIsRecoveredCompletely(t *testing.T) {
	for _, codec := range []shard.Codec{shard.CompressionNone, shard.CompressionZstd} {
		path := filepath.Join(t.TempDir(), "ep.wshard")
		o := testOptions()
		o.Compression = codec
		w := start(t, path, o)
		record(t, w, 0, 23)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(path + PartialSuffix)
		if err != nil {
			t.Fatal(err)
		}
		found, err := Recover(path + PartialSuffix)
		if err != nil {
			t.Fatal(err)
		}
		if found.Steps != 23 || found.Finished || found.Reason != nil || len(found.Cut) != 0 || found.LostBytes != 0 {
			t.Errorf("%v", found)
		}
		checkRecorded(t, open(t, path), 23)
		if after, err := os.ReadFile(path + PartialSuffix); err != nil || !bytes.Equal(before, after) {
			t.Error("recovering has changed the journal")
		}
		if _, err := Recover(path); !errors.Is(err, shard.ErrInvalidArgument) {
			t.Errorf("a second recovery would replace the first: %v", err)
		}
	}
}

// Every prefix of a journal gives the steps that are complete in it, and nothing else.
func TestEveryPrefixOfAJournalIsRecovered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ep.wshard")
	o := testOptions()
	o.Compression = shard.CompressionZstd
	w := start(t, path, o)
	record(t, w, 0, 11)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path + PartialSuffix)
	if err != nil {
		t.Fatal(err)
	}
	out, last := filepath.Join(t.TempDir(), "out.wshard"), 0
	for size := len(data) % 17; size <= len(data); size += 17 {
		if err := os.WriteFile(path+PartialSuffix, data[:size], 0o666); err != nil {
			t.Fatal(err)
		}
		found, err := Recover(path+PartialSuffix, RecoverOptions{Out: out, NoSync: true})
		if err != nil {
			if last > 0 || !strings.Contains(err.Error(), nothingThere) {
				t.Fatalf("%d bytes: %v", size, err)
			}
			continue
		}
		if found.Steps < last || found.ReadBytes+found.LostBytes != int64(size) {
			t.Fatalf("%d bytes: %v after %d steps", size, found, last)
		}
		last = found.Steps
		ep, err := Open(out)
		if err != nil {
			t.Fatal(err)
		}
		if found.Steps > 0 {
			checkRecorded(t, ep, found.Steps)
		}
		_ = ep.Close()
	}
	if last != 11 {
		t.Errorf("the whole journal gives %d steps", last)
	}
}

func TestStepsThatDoNotFitAreRefusedAndTheRecordingGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ep.wshard")
	w := start(t, path, testOptions())
	record(t, w, 0, 3)
	for problem, change := range map[string]func(*Step){
		"another size":                         func(s *Step) { s.Values["camera"] = []byte{1, 2} },
		"lacks a channel":                      func(s *Step) { delete(s.Values, "scan") },
		"not declared":                         func(s *Step) { s.Values["wrist"] = nil },
		"whole number of items":                func(s *Step) { s.Values["scan"] = make([]byte, 7) },
		"not UTF-8":                            func(s *Step) { s.Values["words"] = []byte{0xC3} },
		"time runs backwards":                  func(s *Step) { s.TimestampNS = 5 },
		"but neither terminated nor truncated": func(s *Step) { s.Done = true },
	} {
		step := testStep(3)
		change(&step)
		err := w.WriteStep(step)
		if !errors.Is(err, shard.ErrInvalidArgument) || !strings.Contains(err.Error(), problem) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", problem, err)
		}
	}
	if err := w.Write("camera", nil, 0); err == nil {
		t.Error("a channel of the steps was written on its own")
	}
	record(t, w, 3, 9)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	checkRecorded(t, open(t, path), 9)
}

func TestObservationsAfterTheLastStepAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ep.wshard")
	w := start(t, path, testOptions())
	record(t, w, 0, 6)
	last := testStep(6).Values
	err := w.WriteFinal(map[string][]byte{"signal/state": last["signal/state"], "words": []byte("end")})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteStep(testStep(6)); !errors.Is(err, shard.ErrInvalidArgument) {
		t.Errorf("a step after the final observation: %v", err)
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	ep := open(t, path)
	if ep.LengthT != 6 || ep.Observations["state"].Length != 7 || ep.Observations["words"].Length != 7 || ep.Observations["camera"].Length != 6 {
		t.Errorf("%d steps, %d states, %d words", ep.LengthT, ep.Observations["state"].Length, ep.Observations["words"].Length)
	}
}

func TestOnlyOneWriterRecordsToAPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ep.wshard")
	w := start(t, path, testOptions())
	if _, err := NewStreamWriter(path, testOptions()); err == nil || !strings.Contains(err.Error(), "another writer") {
		t.Errorf("a second writer: %v", err)
	}
	record(t, w, 0, 2)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewStreamWriter(path, testOptions()); err == nil || !strings.Contains(err.Error(), "unfinished recording") {
		t.Errorf("over an unfinished recording: %v", err)
	}
	o := testOptions()
	o.OnPartial = PartialRecover
	w = start(t, path, o)
	record(t, w, 0, 5)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	checkRecorded(t, open(t, path), 5)
	checkRecorded(t, open(t, filepath.Join(filepath.Dir(path), "ep.recovered-1.wshard")), 2)
	if _, err := NewStreamWriter(path, testOptions()); err == nil || !strings.Contains(err.Error(), "finished episode") {
		t.Errorf("over a finished episode: %v", err)
	}
	o.Overwrite = true
	w = start(t, path, o)
	record(t, w, 0, 7)
	checkRecorded(t, open(t, path), 5)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	checkRecorded(t, open(t, path), 7)
}

func TestARecordingIsReadWhileItGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ep.wshard")
	w := start(t, path, testOptions())
	for _, steps := range []int{3, 11} {
		record(t, w, w.StepsWritten(), steps)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if w.DurableSteps() != steps {
			t.Errorf("%d steps are durable", w.DurableSteps())
		}
		ep, err := OpenPartial(path)
		if err != nil {
			t.Fatal(err)
		}
		checkRecorded(t, ep.Episode, steps)
		if ep.Finished || ep.Reason != nil || len(ep.Cut) > 0 || ep.ReadBytes != fileSize(w.JournalPath()) {
			t.Errorf("%d steps: %v, cut %v", steps, ep.Reason, ep.Cut)
		}
		if err := ep.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// stuckFile lets nothing through until it is told to.
type stuckFile struct {
	*os.File
	gate chan struct{}
}

func (f stuckFile) Write(data []byte) (int, error) {
	<-f.gate
	return f.File.Write(data)
}

func TestADiskThatCannotKeepUpDropsStepsOrFails(t *testing.T) {
	defer func(before func(*os.File) recordedFile) { wrapRecordedFile = before }(wrapRecordedFile)
	for _, policy := range []OverflowPolicy{OverflowDrop, OverflowError} {
		gate := make(chan struct{}, 1000)
		wrapRecordedFile = func(file *os.File) recordedFile { return stuckFile{file, gate} }
		gate <- struct{}{} // the start frame
		path := filepath.Join(t.TempDir(), "ep.wshard")
		o := StreamOptions{EpisodeID: "e", Channels: []ChannelDef{{ID: "x", DType: U8, Shape: []int{1 << 20}}}, BufferBytes: 1,
			FlushSteps: 1, Overflow: policy, Sync: SyncNever}
		w := start(t, path, o)
		failed := 0
		for range 10 {
			if err := w.WriteStep(Step{Values: map[string][]byte{"x": make([]byte, 1<<20)}}); err != nil {
				failed++
			}
		}
		close(gate)
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		ep := open(t, path)
		lost := max(failed, w.Dropped())
		if lost < 10-fewestBuffers-1 || ep.LengthT != 10-lost || (failed > 0) != (policy == OverflowError) {
			t.Errorf("policy %d: %d steps, %d failed, %d dropped", policy, ep.LengthT, failed, w.Dropped())
		}
		counts, _ := ep.Metadata["dropped"].(map[string]any)
		if policy == OverflowDrop && counts["signal/x"] != int64(lost) {
			t.Errorf("metadata %v", ep.Metadata)
		}
	}
}

func TestAStepIsFlushedAfterTheInterval(t *testing.T) {
	o := testOptions()
	o.FlushInterval, o.FlushSteps = time.Millisecond, 1000
	w := start(t, filepath.Join(t.TempDir(), "ep.wshard"), o)
	record(t, w, 0, 1)
	for w.DurableSteps() == 0 { // the test fails by its time limit
		runtime.Gosched()
	}
}

func TestChunksThatAManifestCannotNameAreRefusedAtOnce(t *testing.T) {
	o := testOptions()
	o.MaxStepsPerFile = 2
	if _, err := NewStreamWriter(filepath.Join(t.TempDir(), "run:1.wshard"), o); err == nil {
		t.Fatal("the manifest of the recording could not be opened")
	}
}

func TestFilesKeepTheirLimitOfBytes(t *testing.T) {
	folder := t.TempDir()
	o := testOptions()
	o.MaxBytesPerFile = 20_000
	w := start(t, filepath.Join(folder, "ep.wshard"), o)
	record(t, w, 0, 300)
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	checkRecorded(t, open(t, w.EpisodePath()), 300)
	files, err := filepath.Glob(filepath.Join(folder, "*_chunk_*"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		if size := fileSize(file); size > 24_000 { // one run more
			t.Errorf("%s has %d bytes", file, size)
		}
	}
}

func TestSeveralGoroutinesRecordAtOnce(t *testing.T) {
	const count = 500
	path := filepath.Join(t.TempDir(), "ep.wshard")
	o := StreamOptions{EpisodeID: "e", FlushSteps: 7, FlushInterval: time.Millisecond, Sync: SyncNever, MaxStepsPerFile: 100, Rewards: true}
	for _, id := range []string{"left", "right"} {
		o.Channels = append(o.Channels, ChannelDef{ID: id, DType: U8, Shape: []int{64}, OwnClock: true})
	}
	o.Channels = append(o.Channels, ChannelDef{ID: "x", DType: I64})
	w := start(t, path, o)
	var all sync.WaitGroup
	keep := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"left", "right"} {
		all.Go(func() {
			for i := range count {
				keep(w.Write(id, make([]byte, 64), int64(i)))
			}
		})
	}
	all.Go(func() {
		for i := range count {
			keep(w.WriteStep(Step{Values: map[string][]byte{"x": Bytes([]int64{int64(i)})}, Reward: 1}))
		}
	})
	all.Go(func() {
		for i := range 20 {
			keep(w.Annotate("phase", Interval{Start: int64(i), End: int64(i) + 1, Text: "step"}))
			keep(w.Flush())
		}
	})
	all.Wait()
	keep(w.Finish())
	ep := open(t, w.EpisodePath())
	values, err := Values[int64](ep.Observations["x"])
	if err != nil || len(values) != count || values[count-1] != count-1 || ep.LengthT != count {
		t.Errorf("%d steps: %v", ep.LengthT, err)
	}
	for _, id := range []string{"left", "right"} {
		if c := ep.Observations[id]; c.Length != count {
			t.Errorf("%s has %d entries", id, c.Length)
		}
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	o := testOptions()
	o.MaxStepsPerFile = 5
	w := start(t, filepath.Join(folder, "ep.wshard"), o)
	record(t, w, 0, 17)
	if err := w.Abort(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestALongRecordingBecomesChunks(t *testing.T) {
	for _, codec := range []shard.Codec{shard.CompressionNone, shard.CompressionZstd} {
		folder := t.TempDir()
		path := filepath.Join(folder, "ep.wshard")
		o := testOptions()
		o.MaxStepsPerFile, o.Compression = 5, codec
		w := start(t, path, o)
		record(t, w, 0, 8)
		if err := w.Annotate("phase", Interval{Start: 3, End: 14, Text: "lift"}); err != nil {
			t.Fatal(err)
		}
		record(t, w, 8, 23)
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		if w.EpisodePath() != filepath.Join(folder, "ep_manifest.wshard") {
			t.Errorf("episode at %s", w.EpisodePath())
		}
		ep := open(t, w.EpisodePath())
		checkRecorded(t, ep, 23)
		if intervals, err := ep.Labels["phase"].Intervals(); err != nil || len(intervals) != 1 || intervals[0].Start != 3 || intervals[0].End != 14 || intervals[0].Text != "lift" {
			t.Errorf("labels %v, %v", intervals, err)
		}
		files, err := filepath.Glob(filepath.Join(folder, "*"))
		if err != nil || len(files) != 6 { // five chunks and the manifest
			t.Errorf("files %v, %v", files, err)
		}
	}
}

func TestARecordingInSeveralFilesIsRecovered(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "ep.wshard")
	o := testOptions()
	o.MaxStepsPerFile = 5
	w := start(t, path, o)
	record(t, w, 0, 18)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := Recover(path)
	if err != nil {
		t.Fatal(err)
	}
	if found.Steps != 18 || len(found.Chunks) != 4 || found.LostSteps != 0 || found.Out != filepath.Join(folder, "ep_manifest.wshard") {
		t.Errorf("%v", found)
	}
	checkRecorded(t, open(t, found.Out), 18)
	again, err := Recover(path)
	if err != nil || again.Steps != 18 {
		t.Errorf("again: %v, %v", again, err)
	}
	elsewhere, err := Recover(path, RecoverOptions{Out: filepath.Join(folder, "other.wshard")})
	if err != nil {
		t.Fatal(err)
	}
	checkRecorded(t, open(t, elsewhere.Out), 18)
}

// A chunk appears, then the manifest names it, then its journal goes (J-9). A crash in between leaves more files.
func TestWhatACrashBetweenFilesLeavesIsPutTogether(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "ep.wshard")
	o := testOptions()
	o.MaxStepsPerFile = 5
	w := start(t, path, o)
	record(t, w, 0, 5)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path + PartialSuffix)
	if err != nil {
		t.Fatal(err)
	}
	record(t, w, 5, 9)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+PartialSuffix, first, 0o666); err != nil { // as before it was removed
		t.Fatal(err)
	}
	for _, file := range []string{"", "ep_manifest.wshard", "ep_chunk_0000.wshard"} {
		if file != "" { // as before it was there
			if err := os.Remove(filepath.Join(folder, file)); err != nil {
				t.Fatal(err)
			}
		}
		if file == "ep_chunk_0000.wshard" {
			if err := os.Remove(filepath.Join(folder, "ep_manifest.wshard")); err != nil {
				t.Fatal(err)
			}
		}
		found, err := Recover(path, RecoverOptions{NoSync: true})
		if err != nil {
			t.Fatalf("without %q: %v", file, err)
		}
		if found.Steps != 9 || found.LostSteps != 0 || len(found.Chunks) != 2 {
			t.Errorf("without %q: %v", file, found)
		}
		checkRecorded(t, open(t, found.Out), 9)
	}
}

func TestTheOlderInterfaceRecordsTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ep.wshard")
	w, err := NewWShardStreamWriter(path, "ep_1", []*WShardChannelDef{
		{Name: "state", DType: "f32", Shape: []int{2}}, {Name: "arm", DType: "float64"},
	}, WithMaxTimesteps(3), WithFlushInterval(2), WithStreamCompression(shard.CompressZstd))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.BeginEpisode("Reach-v1", Timebase{TickHz: 20}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		err := w.WriteTimestep(i, map[string][]byte{"state": Bytes([]float32{1, float32(i)})},
			map[string][]byte{"arm": Bytes([]float64{float64(i)})}, float32(i), i == 2)
		if (err == nil) != (i < 3) {
			t.Errorf("step %d: %v", i, err)
		}
	}
	size, err := w.EndEpisode()
	if err != nil || size == 0 || w.TimestepCount() != 3 || w.Close() != nil {
		t.Errorf("%d bytes, %v", size, err)
	}
	ep := open(t, path)
	if values, err := Values[float64](ep.Actions["arm"]); err != nil || !slices.Equal(values, []float64{0, 1, 2}) {
		t.Errorf("actions %v, %v", values, err)
	}
	if ends, err := ep.Terminations.Bools(); err != nil || !slices.Equal(ends, []bool{false, false, true}) || ep.Rewards.DType != F32 {
		t.Errorf("ends %v, %v", ends, err)
	}
}
