package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/shard-format/shard/ports/go/shard"
)

const (
	seekFrames = 107
	frameBytes = 256 << 10
)

// cameraLike is smooth with some noise: zstd makes about half of it.
func cameraLike(size int) []byte {
	data, random := make([]byte, size), noise(size)
	for i := range data {
		data[i] = byte(96+60*math.Sin(float64(i)/900)) + random[i]&3
	}
	return data
}

// decode compares decoding through the container with the bare library.
func decode(folder string) {
	data := cameraLike(seekFrames * frameBytes)
	path := filepath.Join(folder, "frames.shard")
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{Compression: shard.CodecZstd, NoSync: true})
	check(err)
	check(w.WriteEntry("whole", data[:4<<20]))
	check(w.WriteEntryWith("seekable", data, shard.EntryOptions{FrameBytes: frameBytes}))
	names := make([]string, seekFrames)
	for i := range names {
		names[i] = fmt.Sprintf("entry/%03d", i)
		check(w.WriteEntry(names[i], data[i*frameBytes:][:frameBytes]))
	}
	check(w.Finalize())
	r, err := shard.OpenShard(path)
	check(err)
	defer func() { check(r.Close()) }()

	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault))
	check(err)
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0))
	check(err)
	frame := encoder.EncodeAll(data[:4<<20], nil)
	out := make([]byte, len(data))
	bare := func() error {
		found, err := decoder.DecodeAll(frame, out[:0])
		return errors.Join(err, expect(len(found), 4<<20))
	}
	fresh := func() error {
		found, err := decoder.DecodeAll(frame, make([]byte, 0, 4<<20))
		return errors.Join(err, expect(len(found), 4<<20))
	}
	table("Decode an entry of 4 MiB, one zstd frame", 31, 3, []row{
		{"klauspost/compress alone", bare, true},
		{"shard, ReadInto (read, decode, checksum)", func() error { return r.ReadInto("whole", out[:4<<20]) }, true},
		{"klauspost/compress alone, new memory", fresh, true},
		{"shard, ReadEntry (new memory)", func() error { _, err := r.ReadEntry("whole"); return err }, true},
	})

	parts := make([][]byte, seekFrames)
	for i := range parts {
		parts[i] = encoder.EncodeAll(data[i*frameBytes:][:frameBytes], nil)
	}
	decodeParts := func(goroutines int) error {
		var next atomic.Int64
		var group sync.WaitGroup
		for range goroutines {
			group.Go(func() {
				for i := int(next.Add(1)) - 1; i < seekFrames; i = int(next.Add(1)) - 1 {
					_, err := decoder.DecodeAll(parts[i], out[i*frameBytes:i*frameBytes:(i+1)*frameBytes])
					check(err)
				}
			})
		}
		group.Wait()
		return nil
	}
	limited := func(processors int, work func() error) func() error {
		return func() error {
			before := runtime.GOMAXPROCS(processors)
			defer runtime.GOMAXPROCS(before)
			return work()
		}
	}
	all := runtime.GOMAXPROCS(0)
	seekable := func() error { return r.ReadInto("seekable", out) }
	many := func() error { _, err := r.ReadEntries(names...); return err }
	table(fmt.Sprintf("Decode %d frames of 256 KiB", seekFrames), 15, 1, []row{
		{"klauspost/compress alone, 1 processor", limited(1, func() error { return decodeParts(1) }), false},
		{"shard, one seekable entry, 1 processor", limited(1, seekable), false},
		{"shard, 107 entries, 1 processor", limited(1, many), false},
		{fmt.Sprintf("klauspost/compress alone, %d processors", all), func() error { return decodeParts(all) }, false},
		{fmt.Sprintf("shard, one seekable entry, %d processors", all), seekable, false},
		{fmt.Sprintf("shard, 107 entries, %d processors", all), many, false},
	})
	if !bytes.Equal(out, data) {
		check(errors.New("other bytes came back"))
	}
	small(folder)
}

// small counts what reading an entry of 4 KB allocates.
func small(folder string) {
	path := filepath.Join(folder, "small.shard")
	data := make([]byte, 4096)
	for i := range len(data) / 4 {
		binary.LittleEndian.PutUint32(data[4*i:], uint32(i/16))
	}
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{NoSync: true})
	check(err)
	for name, codec := range map[string]shard.Codec{"raw": shard.CodecNone, "zstd": shard.CodecZstd, "lz4": shard.CodecLZ4} {
		check(w.WriteEntryWith(name, data, shard.EntryOptions{Codec: codec, HasCodec: true}))
	}
	check(w.Finalize())
	r, err := shard.OpenShard(path)
	check(err)
	defer func() { check(r.Close()) }()
	out := make([]byte, len(data))
	rows := []row{}
	for _, name := range []string{"raw", "zstd", "lz4"} {
		rows = append(rows,
			row{"ReadEntry, " + name, func() error { _, err := r.ReadEntry(name); return err }, true},
			row{"ReadInto, " + name, func() error { return r.ReadInto(name, out) }, true})
	}
	rows = append(rows, row{"View, raw", func() error {
		view, err := r.View("raw")
		if err == nil {
			view.Release()
		}
		return err
	}, true})
	table("Read an entry of 4 KB from an open file", 31, 200, rows)
}
