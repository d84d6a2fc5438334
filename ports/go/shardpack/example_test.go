package shardpack_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

func Example() {
	folder, _ := os.MkdirTemp("", "shardpack")
	defer func() { _ = os.RemoveAll(folder) }()
	path := filepath.Join(folder, "train.shardpack")

	w, err := shardpack.Create(path, shardpack.WriterOptions{Compression: shardpack.EncodingZstd})
	if err != nil {
		panic(err)
	}
	err = w.Write(shardpack.Sample{
		Key:      "cat/7",
		Metadata: shard.Object{"label": 3},
		Entries:  []shardpack.FileEntry{{Name: "jpg", Data: []byte("pixels")}, {Name: "txt", Data: []byte("a cat")}},
	})
	if err != nil {
		panic(err)
	}
	if err := w.Finalize(); err != nil { // the file appears under its name, complete
		panic(err)
	}

	r, err := shardpack.Open(path)
	if err != nil {
		panic(err)
	}
	defer func() { _ = r.Close() }()
	for record, err := range r.Records() {
		if err != nil {
			panic(err)
		}
		metadata, _ := record.Metadata()
		text, _ := record.ReadEntry("txt")
		fmt.Println(record.Key(), record.Names(), metadata["label"], string(text))
	}
	// Output: cat/7 [jpg txt] 3 a cat
}

func ExampleStream() {
	file, err := os.Open(vectors + "valid_packs/hello.shardpack") // or a pipe, or a server's response
	if err != nil {
		panic(err)
	}
	defer func() { _ = file.Close() }()
	for record, err := range shardpack.Stream(file) {
		if err != nil {
			panic(err)
		}
		data, err := record.ReadEntry("x.txt")
		fmt.Println(record.Key(), string(data), err)
	}
	// Output: a hello <nil>
}

func ExampleCreateSet() {
	folder, _ := os.MkdirTemp("", "shardpack")
	defer func() { _ = os.RemoveAll(folder) }()

	w, err := shardpack.CreateSet(filepath.Join(folder, "train-%06d.shardpack"), shardpack.SetOptions{MaxRecords: 2})
	if err != nil {
		panic(err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if err := w.Write(shardpack.Sample{Key: key}); err != nil {
			panic(err)
		}
	}
	if err := w.Finalize(); err != nil {
		panic(err)
	}

	s, err := shardpack.OpenSet(filepath.Join(folder, "train.shardpack-set"))
	if err != nil {
		panic(err)
	}
	defer func() { _ = s.Close() }()
	for _, one := range s.Shards() {
		fmt.Println(one.Name, one.Records)
	}
	// Output:
	// train-000000.shardpack 2
	// train-000001.shardpack 1
}

func ExampleRecover() {
	folder, _ := os.MkdirTemp("", "shardpack")
	defer func() { _ = os.RemoveAll(folder) }()

	result, err := shardpack.Recover(vectors+"invalid_packs/entry_checksum.shardpack", filepath.Join(folder, "new.shardpack"), shardpack.RecoverOptions{})
	if err != nil {
		panic(err)
	}
	fmt.Println(result.Records, "records recovered")
	for _, part := range result.Lost {
		fmt.Println("lost:", part.Key, part.Size, "bytes")
	}
	// Output:
	// 2 records recovered
	// lost: bad 192 bytes
}
