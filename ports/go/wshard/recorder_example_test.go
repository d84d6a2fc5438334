package wshard_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/shard-format/shard/ports/go/wshard"
)

func ExampleStreamWriter() {
	folder, err := os.MkdirTemp("", "recording-*")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	path := filepath.Join(folder, "ep_001.wshard")

	w, err := wshard.NewStreamWriter(path, wshard.StreamOptions{
		EpisodeID: "ep_001", Timebase: wshard.Timebase{TickHz: 100}, Rewards: true, Done: true,
		Channels: []wshard.ChannelDef{
			{ID: "joints", Shape: []int{2}, Unit: "rad"},
			{ID: "torque", Shape: []int{2}, IsAction: true},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	joints, torque := make([]float32, 2), make([]float32, 2)
	values := map[string][]byte{"joints": wshard.Bytes(joints), "torque": wshard.Bytes(torque)}
	for t := range 3 {
		joints[0] += 0.5
		torque[1] = float32(t)
		if err := w.WriteStep(wshard.Step{Values: values, Reward: 1, Done: t == 2}); err != nil {
			log.Fatal(err)
		}
	}
	// The program dies here: the journal stays.
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}

	found, err := wshard.Recover(path)
	if err != nil {
		log.Fatal(err)
	}
	episode, err := wshard.Open(found.Out)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = episode.Close() }()
	recorded, err := episode.Observations["joints"].Float32()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(found.Steps, recorded)
	// Output: 3 [0.5 0 1 0 1.5 0]
}
