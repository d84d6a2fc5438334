package wshard_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/wshard"
)

// folder is a place for the files of an example.
func folder() (string, func()) {
	path, err := os.MkdirTemp("", "wshard")
	check(err)
	return path, func() { _ = os.RemoveAll(path) }
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// pushes is an episode of four steps.
func pushes() *wshard.Episode {
	ep := wshard.New("push_001", 4)
	ep.EnvID = "table"
	ep.Timebase.TickHz = 10
	ep.Metadata["success"] = true
	ep.Observations["joint_pos"] = wshard.FromValues([]float32{0, 0, 1, 1, 2, 3, 4, 7}, 2)
	ep.Observations["instruction"] = wshard.FromStrings([]string{"push", "push", "push", "stop"})
	ep.Actions["torque"] = wshard.FromValues([]float32{1, 1, 1, 0})
	ep.Rewards = wshard.FromValues([]float32{0, 0, 0, 1})
	ep.Terminations = wshard.FromValues([]bool{false, false, false, true})
	return ep
}

func Example() {
	dir, done := folder()
	defer done()
	path := filepath.Join(dir, "push_001.wshard")
	check(wshard.Save(path, pushes()))

	ep, err := wshard.Open(path) // reads no arrays
	check(err)
	defer func() { _ = ep.Close() }()
	rewards, err := ep.Rewards.Float32()
	check(err)
	texts, err := ep.Observations["instruction"].Strings()
	check(err)
	fmt.Println(ep.ID, ep.LengthT, ep.Metadata["success"], rewards, texts[3])
	// Output: push_001 4 true [0 0 0 1] stop
}

func ExampleChannel_Window() {
	dir, done := folder()
	defer done()
	path := filepath.Join(dir, "push_001.wshard")
	check(wshard.Save(path, pushes()))
	ep, err := wshard.Open(path)
	check(err)
	defer func() { _ = ep.Close() }()

	window, err := ep.Observations["joint_pos"].Window(2, 4) // nothing is read yet
	check(err)
	values, err := window.Float32() // reads the bytes of two steps
	check(err)
	fmt.Println(window.Length, values)
	// Output: 2 [2 3 4 7]
}

func ExampleEpisode_AddResidual() {
	ep := pushes()
	check(ep.AddResidual("joint_pos", "", wshard.DeltaQ, 0))
	restored, err := ep.Residuals["joint_pos/delta_q"].Reconstruct(nil)
	check(err)
	fmt.Printf("%.2f\n", restored)
	// Output: [0.00 0.00 1.01 0.99 1.98 2.98 4.00 7.00]
}

func ExampleSaveChunked() {
	dir, done := folder()
	defer done()
	manifest, err := wshard.SaveChunked(dir, pushes(), 3)
	check(err)
	ep, err := wshard.Open(manifest) // all chunks as one episode
	check(err)
	defer func() { _ = ep.Close() }()
	rewards, err := ep.Rewards.Float32()
	check(err)
	fmt.Println(filepath.Base(manifest), ep.LengthT, rewards)
	// Output: push_001_manifest.wshard 4 [0 0 0 1]
}

func ExampleAddLanes() {
	dir, done := folder()
	defer done()
	path := filepath.Join(dir, "push_001.wshard")
	check(wshard.Save(path, pushes()))

	lanes := wshard.New("", 0)
	lanes.SetOmen("joint_pos", "dreamer", wshard.FromValues(make([]float32, 8), 2))
	_, err := wshard.AddLanes(path, "dreamer", lanes) // the file itself is not changed
	check(err)
	check(wshard.Edit(path, shard.Object{"grade": "A"}, nil))

	ep, err := wshard.Open(path)
	check(err)
	defer func() { _ = ep.Close() }()
	fmt.Println(ep.Omens["joint_pos"]["dreamer"].Shape, ep.Metadata["grade"])
	// Output: [2] A
}
