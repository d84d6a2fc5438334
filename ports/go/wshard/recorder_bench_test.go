package wshard

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/shard-format/shard/ports/go/shard"
)

// manyChannels is a step of 20 channels of 16 floats, like the joints, forces and targets of a robot.
func manyChannels(codec shard.Codec) (StreamOptions, Step, int64) {
	o := StreamOptions{EpisodeID: "bench", Rewards: true, Done: true, Compression: codec, Sync: SyncNever}
	step := Step{Values: map[string][]byte{}, Reward: 0.5}
	size := int64(9)
	for i := range 20 {
		id := fmt.Sprintf("joint_%02d", i)
		o.Channels = append(o.Channels, ChannelDef{ID: id, Shape: []int{16}, IsAction: i%4 == 3})
		values := make([]float32, 16)
		for k := range values {
			values[k] = float32(i * k)
		}
		step.Values[id] = Bytes(values)
		size += 64
	}
	return o, step, size
}

func BenchmarkWriteStep(b *testing.B) {
	for _, codec := range []shard.Codec{shard.CompressionNone, shard.CompressionZstd} {
		b.Run(codec.String(), func(b *testing.B) {
			o, step, size := manyChannels(codec)
			w := start(b, filepath.Join(b.TempDir(), "ep.wshard"), o)
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if err := w.WriteStep(step); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			if err := w.Abort(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkFinish(b *testing.B) {
	const steps = 10_000
	o, step, size := manyChannels(shard.CompressionNone)
	o.Overwrite = true
	path := filepath.Join(b.TempDir(), "ep.wshard")
	b.SetBytes(steps * size)
	for range b.N {
		b.StopTimer()
		w := start(b, path, o)
		for range steps {
			if err := w.WriteStep(step); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := w.Finish(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestRecordingAStepAllocatesNothing(t *testing.T) {
	for _, codec := range []shard.Codec{shard.CompressionNone, shard.CompressionZstd} {
		o, step, _ := manyChannels(codec)
		o.FlushInterval, o.BufferBytes = time.Hour, 1 // the fewest buffers, which are soon made
		o.Channels = append(o.Channels, ChannelDef{ID: "words", Layout: Text})
		step.Values["words"] = []byte("reach for the cup")
		w := start(t, filepath.Join(t.TempDir(), "ep.wshard"), o)
		write := func() {
			if err := w.WriteStep(step); err != nil {
				t.Fatal(err)
			}
		}
		for range 1000 * fewestBuffers { // until all buffers are made
			write()
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		// Also those of the goroutine that writes count here. The runtime may make one now and then.
		const steps = 64 * defaultFlushSteps
		if count := testing.AllocsPerRun(3, func() {
			for range steps {
				write()
			}
		}); count > steps/100 {
			t.Errorf("%s: %v allocations for %d steps", codec, count, steps)
		}
	}
}
