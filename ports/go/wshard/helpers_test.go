package wshard

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

const vectors = "../../../spec/vectors"

// vectorFiles are the episodes of a group of vectors.
func vectorFiles(t testing.TB, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(vectors, pattern))
	if err != nil || len(files) == 0 {
		t.Fatal("no vectors", pattern, err)
	}
	return files
}

func must[T any](t testing.TB) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func expectCode(t *testing.T, err error, code shard.Code, rule string) {
	t.Helper()
	var found *shard.Error
	if !errors.As(err, &found) || found.Code != code || (rule != "" && found.Rule != rule) {
		t.Fatalf("expected %s (%s), found %v", code, rule, err)
	}
}

func reopen(t testing.TB, path string, options ...Options) *Episode {
	t.Helper()
	ep := must[*Episode](t)(Open(path, options...))
	t.Cleanup(func() { _ = ep.Close() })
	return ep
}

func save(t testing.TB, ep *Episode, options ...SaveOptions) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ep.wshard")
	chosen := chosenSave(options)
	chosen.NoSync = true
	if err := Save(path, ep, chosen); err != nil {
		t.Fatal(err)
	}
	return path
}

// expectNoFaults fails if a checking tool finds more than warnings.
func expectNoFaults(t testing.TB, path string) {
	t.Helper()
	for _, finding := range Check(path) {
		if !finding.IsWarning {
			t.Error(finding.Err)
		}
	}
}

func content(t testing.TB, path string) string {
	t.Helper()
	return string(must[[]byte](t)(os.ReadFile(path)))
}

func randomValues[T float32 | int16 | uint8 | float64](random *rand.Rand, count int) []T {
	values := make([]T, count)
	for i := range values {
		values[i] = T(random.NormFloat64() * 50)
	}
	return values
}

// randomEpisode has every kind of lane.
func randomEpisode(seed uint64, steps int) *Episode {
	random := rand.New(rand.NewPCG(seed, 1))
	ep := New("ep_"+strconv.FormatUint(seed, 10), steps)
	ep.EnvID, ep.Timebase = "arm", Timebase{TickHz: 29.97, EpochNS: 1000}
	ep.Metadata["note"] = "é 1"
	ep.Observations["state"] = FromValues(randomValues[float32](random, 3*(steps+1)), 3)
	ep.Observations["state"].Unit = "rad"
	ep.Observations["wrist/depth"] = FromValues(randomValues[int16](random, 4*steps), 2, 2)
	ep.Observations["imu"] = FromValues(randomValues[float64](random, 4*steps), 2)
	ep.Observations["imu"].StartNS, ep.Observations["imu"].SamplingRateHz = pointer(int64(990)), 61.3
	camera := FromValues(randomValues[uint8](random, 4*(steps/2)), 2, 2)
	times := make([]int64, camera.Length)
	for i := range times {
		times[i] = int64(i) * 66_000_000
	}
	camera.SetTimestamps(times)
	ep.Observations["camera"] = camera
	texts, items, packets := make([]string, steps), make([][]byte, steps), make([]Packet, steps)
	for t := range steps {
		texts[t] = "step é"[:random.IntN(6)]
		items[t] = make([]byte, 8*random.IntN(4))
		packets[t] = Packet{Data: make([]byte, random.IntN(9)), Step: int64(t), Keyframe: t%5 == 0}
	}
	ep.Observations["said"] = FromStrings(texts)
	ep.Observations["points"] = FromItems(F32, []int{2}, items)
	ep.Observations["video"] = FromPackets("video/h264", U8, []int{4, 6, 3}, packets)
	ep.Observations["video"].Extradata = []byte{1, 2}
	ep.Actions["u"] = FromValues(randomValues[float32](random, 2*steps), 2)
	ep.Rewards = FromValues(randomValues[float64](random, steps))
	ends, cuts := make([]bool, steps), make([]bool, steps)
	for t := range steps {
		ends[t], cuts[t] = random.IntN(3) == 0, random.IntN(3) == 0
	}
	ep.Terminations, ep.Truncations = FromValues(ends), FromValues(cuts)
	ep.SetOmen("state", "m", FromValues(randomValues[float32](random, 3*(steps+1)), 3))
	ep.SetUncert("state", "m", "std", FromValues(randomValues[float32](random, 3*steps), 3))
	for _, one := range [][2]string{{"state", "m"}, {"wrist/depth", ""}} {
		for _, kind := range []string{Sign2ndDiff, DeltaQ} {
			if err := ep.AddResidual(one[0], one[1], kind, 4); err != nil {
				panic(err)
			}
		}
	}
	ep.Labels["phase"] = NewLabel(UnitSteps, Interval{Start: 0, End: int64(steps), Text: "all", Source: "human", Confidence: pointer(0.5)})
	ep.Labels["when"] = NewLabel(UnitNS, Interval{Start: 0, End: 1_000_000_000, Text: "first second"})
	ep.Extras["com.example/notes"] = NewExtra([]byte("notes"), shard.ContentTypeText)
	return ep
}

// values reads everything of an episode, by name.
func values(t testing.TB, ep *Episode) map[string]string {
	t.Helper()
	read := must[[]byte](t)
	found := map[string]string{}
	channels := map[string]*Channel{
		"rewards": ep.Rewards, "terminations": ep.Terminations, "truncations": ep.Truncations, "timestamps": ep.TimestampsNS,
	}
	for at, c := range ep.lanes() {
		channels[at.blockName()] = c
	}
	for key, residual := range ep.Residuals {
		channels["residual/"+key] = residual.Values
		if residual.Scales != nil {
			found["scales/"+key] = string(read(residual.Scales.Data()))
		}
	}
	for name, c := range channels {
		if c == nil {
			continue
		}
		found[name] = string(read(c.Data()))
		if c.parsed != nil {
			found["offsets/"+name] = string(int64Block(c.parsed.offsets))
		}
		if c.parsed != nil && c.parsed.frames != nil {
			found["frames/"+name] = string(int64Block(c.parsed.frames.table()))
		}
		if times := must[[]int64](t)(c.Timestamps()); times != nil {
			found["times/"+name] = string(int64Block(times))
		}
	}
	for key, label := range ep.Labels {
		unit, intervals, err := label.Read()
		if err != nil {
			t.Fatal(err)
		}
		found["label/"+key] = string(read(shard.CanonicalJSON(labelFields(unit, intervals))))
	}
	for name, extra := range ep.Extras {
		found["extra/"+name] = string(read(extra.Data()))
	}
	found["metadata"] = string(read(shard.CanonicalJSON(ep.Metadata)))
	return found
}

func expectSame(t testing.TB, found, wanted map[string]string) {
	t.Helper()
	for name := range wanted {
		if found[name] != wanted[name] {
			t.Errorf("%s differs: %d bytes, expected %d", name, len(found[name]), len(wanted[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if _, there := wanted[name]; !there {
			t.Errorf("%s was not there", name)
		}
	}
}

// countingSource notes which bytes of a file are read.
type countingSource struct {
	io.ReaderAt
	bytes int
}

func (s *countingSource) ReadAt(data []byte, offset int64) (int, error) {
	s.bytes += len(data)
	return s.ReaderAt.ReadAt(data, offset)
}
