package wshard

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

func TestASavedEpisodeReadsBackWithEveryValue(t *testing.T) {
	for name, options := range map[string]SaveOptions{
		"raw": {}, "zstd": {Compression: shard.CompressionZstd}, "lz4": {Compression: shard.CompressionLZ4},
		"training": {Profile: ProfileTraining}, "identity": {Identity: true},
	} {
		t.Run(name, func(t *testing.T) {
			ep := randomEpisode(1, 300)
			path := save(t, ep, options)
			expectSame(t, values(t, reopen(t, path)), values(t, ep))
			expectNoFaults(t, path)
		})
	}
}

func TestTheSameEpisodeGivesTheSameBytes(t *testing.T) {
	first := content(t, save(t, randomEpisode(2, 40)))
	for range 5 {
		if content(t, save(t, randomEpisode(2, 40))) != first {
			t.Fatal("another file for the same episode")
		}
	}
}

func TestSavingALoadedEpisodeAgainKeepsItsContent(t *testing.T) {
	for _, file := range append(vectorFiles(t, "valid/*.wshard"), vectorFiles(t, "valid_episodes/*/*.wshard")...) {
		if strings.Contains(file, "chunk") || strings.Contains(file, "manifest") {
			continue // the whole is another file
		}
		reader := must[*shard.ShardReader](t)(shard.OpenShard(file))
		if reader.Header().Role != shard.RoleWSHARD {
			continue
		}
		before := must[shard.Identity](t)(reader.Identity())
		names := reader.EntryNames()
		ep, err := FromReader(reader)
		if err != nil {
			continue // a sidecar, or a container only
		}
		saved := must[*shard.ShardReader](t)(shard.OpenShard(save(t, ep)))
		if after := must[shard.Identity](t)(saved.Identity()); after.Digest() != before.Digest() {
			t.Errorf("%s: another identity", file)
		}
		if strings.Join(saved.EntryNames(), " ") != strings.Join(names, " ") {
			t.Errorf("%s: another order of entries", file)
		}
		_, _ = saved.Close(), reader.Close()
	}
}

func TestAChangeOfALoadedEpisodeChangesNothingElse(t *testing.T) {
	path := save(t, randomEpisode(3, 20))
	ep := reopen(t, path)
	wanted := values(t, ep)
	ep.Metadata["success"] = true
	ep.Observations["state"].Unit = "deg"
	delete(ep.Actions, "u")
	ep.Actions["v"] = FromValues([]float32{20: 0}[:20])
	if err := Save(path, ep, SaveOptions{NoSync: true}); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, path)
	if again.Observations["state"].Unit != "deg" || again.Metadata["success"] != true || again.Actions["u"] != nil {
		t.Error("the change was not saved")
	}
	delete(wanted, "action/u")
	found := values(t, again)
	delete(found, "action/v")
	wanted["metadata"] = found["metadata"]
	expectSame(t, found, wanted)
}

func TestOpeningReadsNoArraysAndAWindowReadsOnlyItsSteps(t *testing.T) {
	const steps, width = 4096, 256
	ep := New("wide", steps)
	values := make([]float32, steps*width)
	for i := range values {
		values[i] = float32(i % 977)
	}
	ep.Observations["x"] = FromValues(values, width)
	for name, options := range map[string]SaveOptions{"raw": {}, "training": {Profile: ProfileTraining}} {
		t.Run(name, func(t *testing.T) {
			data := []byte(content(t, save(t, ep, options)))
			source := &countingSource{ReaderAt: bytes.NewReader(data)}
			loaded := must[*Episode](t)(FromReader(must[*shard.ShardReader](t)(shard.NewReader(source, int64(len(data))))))
			if source.bytes > 8192 {
				t.Errorf("opening reads %d bytes", source.bytes)
			}
			source.bytes = 0
			window := must[*Channel](t)(loaded.Observations["x"].Window(100, 108))
			found := must[[]float32](t)(window.Float32())
			for i, value := range found {
				if value != values[100*width+i] {
					t.Fatal("another value in the window at", i)
				}
			}
			if most := 64 * width * 4 * 8; source.bytes > most {
				t.Errorf("a window of 8 KiB reads %d bytes", source.bytes)
			}
		})
	}
}

func TestAWindowIsThatPartOfTheWhole(t *testing.T) {
	ep := reopen(t, save(t, randomEpisode(4, 37)))
	for at, c := range ep.lanes() {
		for _, span := range [][2]int{{0, 0}, {0, 5}, {3, 11}, {7, 8}, {0, c.Length}, {c.Length, c.Length}} {
			start, end := min(span[0], c.Length), min(span[1], c.Length)
			window := must[*Channel](t)(c.Window(start, end))
			if window.Length != end-start {
				t.Fatal(at, "has another length")
			}
			switch c.Layout {
			case Text, Ragged:
				whole, part := must[[][]byte](t)(c.Items()), must[[][]byte](t)(window.Items())
				for i := range part {
					if !bytes.Equal(part[i], whole[start+i]) {
						t.Fatal(at, span, "differs at", i)
					}
				}
			case Video:
				expectPackets(t, c, window, start)
			default:
				whole, part := must[[]byte](t)(c.Data()), must[[]byte](t)(window.Data())
				size, _ := stepBytes(c.DType, c.Shape)
				if !bytes.Equal(part, whole[int64(start)*size:int64(end)*size]) {
					t.Fatal(at, span, "differs")
				}
			}
		}
		if _, err := c.Window(0, c.Length+1); err == nil {
			t.Fatal(at, "has a window behind its end")
		}
	}
}

// expectPackets checks that each step of a video's window has its packet, behind the keyframe that it needs.
func expectPackets(t *testing.T, c, window *Channel, start int) {
	t.Helper()
	whole, part := must[[]Packet](t)(c.Packets()), must[[]Packet](t)(window.Packets())
	shown := 0
	for i, one := range part {
		if i == 0 && !one.Keyframe {
			t.Fatal("a window does not start with a keyframe")
		}
		if !one.Hidden {
			shown++
			if !bytes.Equal(one.Data, whole[start+int(one.Step)].Data) {
				t.Fatal("another packet for step", one.Step)
			}
		}
	}
	if shown != window.Length {
		t.Fatalf("%d steps of %d", shown, window.Length)
	}
}

func TestAResidualGivesBackItsSignalWithinHalfAScale(t *testing.T) {
	signal, omen := make([]float64, 100*3), make([]float64, 100*3)
	for i := range signal {
		signal[i], omen[i] = math.Sin(float64(i))*float64(i), float64(i%7)
	}
	for _, predicted := range [][]float64{nil, omen} {
		for _, window := range []int{1, 7, 256, math.MaxInt} {
			codes, scales, err := QuantizeDelta(signal, predicted, 3, window)
			if err != nil {
				t.Fatal(err)
			}
			restored := must[[]float64](t)(ReconstructFromOmenAndDelta(predicted, codes, scales, 100, window))
			for i := range restored {
				scale := float64(scales[i/3/window*3+i%3])
				if math.Abs(restored[i]-signal[i]) > scale/2*(1+1e-9) {
					t.Fatalf("step %d is %g off, with a scale of %g", i/3, restored[i]-signal[i], scale)
				}
			}
		}
	}
	if _, _, err := QuantizeDelta([]float64{math.NaN()}, nil, 1, 1); err == nil {
		t.Error("NaN was quantised")
	}
}

func TestTheSignsOfTheSpecificationPackIntoItsByte(t *testing.T) {
	signs := ComputeSign2ndDiff([]float64{0, 1, 0, -1, 3, 0}, EdgesPad)
	if packed := PackResidualBits(signs); len(packed) != 1 || packed[0] != 0x12 {
		t.Errorf("% x", packed)
	}
	if _, err := UnpackResidualBits([]byte{1}, 9); err == nil {
		t.Error("one byte was unpacked to nine steps")
	}
}

func TestWhatReadersWouldRefuseIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ep.wshard")
	for name, change := range map[string]func(ep *Episode){
		"no id":            func(ep *Episode) { ep.ID = "" },
		"other length":     func(ep *Episode) { ep.Actions["u"] = FromValues([]float32{1}) },
		"no data":          func(ep *Episode) { ep.Actions["u"] = &Channel{DType: F32, Length: 8} },
		"empty part":       func(ep *Episode) { ep.Actions["a//b"] = FromValues(make([]float32, 8)) },
		"unknown type":     func(ep *Episode) { ep.Actions["u"] = FromBytes("f128", nil, make([]byte, 64)) },
		"claimed length":   func(ep *Episode) { ep.Actions["u"].Length, ep.LengthT = math.MaxInt, math.MaxInt },
		"not UTF-8":        func(ep *Episode) { ep.Observations["t"] = FromStrings([]string{7: "\xff"}) },
		"infinite rate":    func(ep *Episode) { ep.Timebase.TickHz = math.Inf(1) },
		"label":            func(ep *Episode) { ep.Labels["x"] = NewLabel("hours") },
		"backward label":   func(ep *Episode) { ep.Labels["x"] = NewLabel(UnitSteps, Interval{Start: 2, End: 1}) },
		"no keyframe":      func(ep *Episode) { ep.Observations["v"] = FromPackets("video/av1", U8, []int{1, 1}, make([]Packet, 8)) },
		"field of a row":   func(ep *Episode) { ep.Actions["u"].Fields = shard.Object{"dtype": "f64"} },
		"meta entry":       func(ep *Episode) { ep.Extras[MetaEpisode] = NewExtra(nil, 0) },
		"clock":            func(ep *Episode) { ep.Actions["u"].SetTimestamps([]int64{1}) },
		"metadata":         func(ep *Episode) { ep.Metadata["x"] = math.NaN() },
		"provenance":       func(ep *Episode) { ep.Provenance = &Provenance{StartState: "x"} },
		"horizon":          func(ep *Episode) { ep.Actions["u"].Horizon = 3 },
		"two-column ends":  func(ep *Episode) { ep.Terminations = FromValues(make([]bool, 16), 2) },
		"regular, no rate": func(ep *Episode) { ep.Actions["u"].StartNS = pointer(int64(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			ep := New("x", 8)
			ep.Actions["u"] = FromValues(make([]float32, 8))
			change(ep)
			if err := Save(path, ep); err == nil {
				t.Fatal("it was saved")
			}
			if entries := must[[]os.DirEntry](t)(os.ReadDir(filepath.Dir(path))); len(entries) > 0 {
				t.Fatal("something was left:", entries[0].Name())
			}
		})
	}
}

func TestAHostileClaimTakesNoMemory(t *testing.T) {
	// Each file claims far more steps, values or packets than it has bytes for; opening and reading must stay small.
	for _, text := range []string{
		`{"channels":[{"id":"x","dtype":"f64","shape":[9223372036854775807]}]}`,
		`{"channels":[{"id":"x","dtype":"f32","shape":[0],"length":9223372036854775807}]}`,
		`{"channels":[{"id":"x","dtype":"u8","layout":"text","offsets_block":"offsets/x","length":9223372036854775807}]}`,
		`{"channels":[{"id":"x","dtype":"u8","shape":[9,9],"layout":"video","content_type":"video/av1","offsets_block":"offsets/x","length":9223372036854775807}]}`,
		`{"channels":[{"id":"x","dtype":"f32","time_block":"offsets/x","length":9223372036854775807}]}`,
	} {
		path := filepath.Join(t.TempDir(), "bad.wshard")
		w := must[*shard.ShardStreamWriter](t)(shard.NewShardStreamWriter(path, shard.ShardOptions{Role: shard.RoleWSHARD}))
		for name, data := range map[string]string{
			MetaEpisode: `{"episode_id":"x","length_T":1048576}`, MetaChannels: text, "signal/x": "", "offsets/x": strings.Repeat("\x00", 8),
		} {
			if err := w.WriteEntry(name, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Finalize(); err != nil {
			t.Fatal(err)
		}
		ep := reopen(t, path)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ep.Observations["x"].Data()
		_, clockErr := ep.Observations["x"].Timestamps()
		runtime.ReadMemStats(&after)
		if err == nil && clockErr == nil {
			t.Errorf("%s was accepted", text)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
			t.Errorf("%s takes %d bytes", text, used)
		}
	}
}

func TestStepTimesAndSizesAreThoseOfTheSpecification(t *testing.T) {
	var told struct {
		DTypeSizes map[string]string `json:"dtype_sizes"`
		StepTimes  []struct {
			Nanoseconds, Step string
			RateHz            float64 `json:"rate_hz"`
		} `json:"step_times"`
	}
	if err := json.Unmarshal([]byte(content(t, filepath.Join(vectors, "primitives.json"))), &told); err != nil {
		t.Fatal(err)
	}
	for name, size := range told.DTypeSizes {
		if dtype, known := ParseDType(strings.ToUpper(name)); !known || strconv.Itoa(dtype.Size()) != size {
			t.Error(name, dtype.Size())
		}
	}
	for _, one := range told.StepTimes {
		step := must[int](t)(strconv.Atoi(one.Step))
		found, err := (Timebase{TickHz: one.RateHz}).TimeNS(step)
		if err != nil || strconv.FormatInt(found, 10) != one.Nanoseconds {
			t.Errorf("step %d at %g Hz: %d, expected %s", step, one.RateHz, found, one.Nanoseconds)
		}
	}
	if _, err := (Timebase{TickHz: 1e-300}).TimeNS(5); err == nil {
		t.Error("a time beyond 64 bits was given")
	}
	if base := (Timebase{TickHz: 1e-12}); base.DtNS() != math.MaxInt64 {
		t.Error(base.DtNS())
	}
}

func TestThePacketsOfAStepAreThoseThatADecoderNeeds(t *testing.T) {
	packets := []Packet{
		{Data: []byte("I0"), Step: 0, Keyframe: true},
		{Data: []byte("P2"), Step: 2},
		{Data: []byte("B1"), Step: 1}, // follows P2 in the stream, precedes it in time
		{Data: []byte("I4"), Step: 4, Keyframe: true},
		{Data: []byte("B3"), Step: 3}, // follows a keyframe that it precedes in time: needs the one before
		{Data: []byte("P5"), Step: 5},
	}
	c := FromPackets("video/h264", U8, []int{4, 6, 3}, packets)
	for step, wanted := range []string{"I0", "I0P2B1", "I0P2", "I0P2B1I4B3", "I4", "I4P5"} {
		found := ""
		for _, one := range must[[]Packet](t)(c.PacketsFor(step)) {
			found += string(one.Data)
		}
		if found != wanted {
			t.Errorf("step %d: %s, expected %s", step, found, wanted)
		}
	}
}

func TestSavingKeepsLanesThatBreakARule(t *testing.T) {
	for _, file := range vectorFiles(t, "invalid_episodes/*.wshard") {
		ep, err := Open(file, Options{Sidecars: NoSidecars})
		if err != nil || ep.Reader().Header().Role != shard.RoleWSHARD || strings.Contains(file, "/ends_done_") {
			continue // 'done' is written as the union of the other ends, which it was not
		}
		before := must[shard.Identity](t)(ep.Reader().Identity())
		path := filepath.Join(t.TempDir(), "again.wshard")
		if err := Save(path, ep, SaveOptions{NoSync: true}); err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
			continue
		}
		saved := must[*shard.ShardReader](t)(shard.OpenShard(path))
		if after := must[shard.Identity](t)(saved.Identity()); after.Digest() != before.Digest() {
			t.Errorf("%s: another identity", filepath.Base(file))
		}
		_, _ = saved.Close(), ep.Close()
	}
}
