// Command record stands for a robot: it records an arm that follows a curve and is pushed twice.
//
//	go run ./examples/record EPISODE
//
// docs/languages.md shows what becomes of the episode: Python annotates it, TypeScript shows it.
package main

import (
	"fmt"
	"log"
	"math"
	"os"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/wshard"
)

const (
	steps  = 600
	rateHz = 100
	joints = 3
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: record EPISODE")
	}
	if err := record(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func record(path string) error {
	w, err := wshard.NewStreamWriter(path, wshard.StreamOptions{
		EpisodeID: "arm_001",
		EnvID:     "Arm-v0",
		Timebase:  wshard.Timebase{TickHz: rateHz},
		Rewards:   true,
		Done:      true,
		Channels: []wshard.ChannelDef{
			{ID: "joint_pos", Shape: []int{joints}, Unit: "rad"},
			{ID: "torque", Shape: []int{joints}, IsAction: true},
		},
		Compression: shard.CompressionZstd,
	})
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }() // keeps the journal if something failed
	position, torque := make([]float32, joints), make([]float32, joints)
	values := map[string][]byte{"joint_pos": wshard.Bytes(position), "torque": wshard.Bytes(torque)}
	for t := range steps {
		for j := range joints {
			target := math.Sin(float64(t) / rateHz * (1 + float64(j)/2))
			push := 0.0
			if since := t % 250; t >= 250 && since < 40 { // somebody pushes the arm
				push = 0.3 * math.Exp(-float64(since)/8) * math.Sin(float64(since)/2)
			}
			torque[j] = float32(-push)
			position[j] = float32(target + push)
		}
		if err := w.WriteStep(wshard.Step{Values: values, Reward: 1, Done: t == steps-1}); err != nil {
			return err
		}
	}
	if err := w.Finish(); err != nil {
		return err
	}
	fmt.Printf("recorded %d steps to %s\n", steps, path)
	return nil
}
