package shard_test

import (
	"crypto/ed25519"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/shard-format/shard/ports/go/shard"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// temporary gives a path in a folder of its own, and a function that removes the folder.
func temporary(name string) (string, func()) {
	folder, err := os.MkdirTemp("", "shard")
	must(err)
	return filepath.Join(folder, name), func() { must(os.RemoveAll(folder)) }
}

func Example() {
	path, remove := temporary("data.shard")
	defer remove()

	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{Alignment: 64, Compression: shard.CompressionZstd, MaxEntries: 1000})
	must(err)
	must(w.WriteEntry("entry/0", []byte("hello"), shard.ContentTypeRaw))
	must(w.Finalize())

	r, err := shard.OpenShard(path)
	must(err)
	defer func() { must(r.Close()) }()
	data, err := r.ReadEntry("entry/0")
	fmt.Println(string(data), err)
	// Output: hello <nil>
}

func ExampleShardReader_ReadRange() {
	path, remove := temporary("log.shard")
	defer remove()
	text := make([]byte, 0, 1<<20)
	for i := 0; len(text) < 1<<20; i++ {
		text = fmt.Appendf(text, "line %07d\n", i)
	}
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{Compression: shard.CompressionZstd})
	must(err)
	must(w.WriteEntryWith("log", text, shard.EntryOptions{FrameBytes: 1 << 16}))
	must(w.Finalize())

	r, err := shard.OpenShard(path)
	must(err)
	defer func() { must(r.Close()) }()
	part, err := r.ReadRange("log", 13*50_000, 13*50_001) // decodes one frame of 64 KiB
	must(err)
	fmt.Print(string(part))
	// Output: line 0050000
}

func ExampleShardReader_View() {
	path, remove := temporary("weights.shard")
	defer remove()
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{Alignment: 64})
	must(err)
	must(w.WriteEntry("weights", []byte("raw bytes in place")))
	must(w.Finalize())

	r, err := shard.OpenShard(path)
	must(err)
	view, err := r.View("weights")
	must(err)
	must(r.Close()) // the view keeps the file mapped
	fmt.Println(string(view.Bytes()))
	view.Release()
	// Output: raw bytes in place
}

func ExampleShardReader_ReadEntries() {
	r, err := shard.OpenShard(vectors + "valid/codecs_mixed.shard")
	must(err)
	defer func() { must(r.Close()) }()
	contents, err := r.ReadEntries(r.EntryNames()...) // decoded by several goroutines
	must(err)
	fmt.Println(len(contents) == r.EntryCount())
	// Output: true
}

func ExampleShardReader_Sign() {
	public, private, err := ed25519.GenerateKey(nil)
	must(err)
	r, err := shard.OpenShard(vectors + "valid/hello.shard")
	must(err)
	defer func() { must(r.Close()) }()
	signature, err := r.Sign(private)
	must(err)
	read, err := shard.ParseSignature(signature.Text()) // by convention the content of hello.shard.sig
	must(err)
	identity, err := r.VerifySignature(read, public)
	must(err)
	fmt.Println(identity.Digest(), "version", identity.Version)
	// Output: cab774c2484ea9f09c291a101a290d35ec4c3084fb00702bcf54a6771abe14a5 version 2
}

func ExampleShardReader_Verify() {
	r, err := shard.OpenShard(vectors + "valid/hello.shard")
	must(err)
	defer func() { must(r.Close()) }()
	warnings, err := r.Warnings()
	must(err)
	fmt.Println(r.Verify(), warnings)
	// Output: <nil> []
}
