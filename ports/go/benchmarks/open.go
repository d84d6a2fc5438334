package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/foxglove/mcap/go/mcap"
	"github.com/parquet-go/parquet-go"

	"github.com/shard-format/shard/ports/go/shard"
)

const (
	wanted = "signal/joint_pos"
	// joints is 1000 steps of seven 32-bit floats, and frames 1000 images of 49 KB.
	joints = 28_000
	frames = 1000
	image  = 49_152
)

func noise(size int) []byte {
	data := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	return data
}

// openOne opens a file of 50 MB, reads 28 KB and closes the file.
func openOne(folder string) {
	camera, position := noise(frames*image), noise(joints)
	paths := map[string]string{}
	for _, end := range []string{"shard", "zip", "mcap", "parquet"} {
		paths[end] = filepath.Join(folder, "episode."+end)
	}
	writeShard(paths["shard"], []string{"signal/rgb", wanted}, [][]byte{camera, position})
	writeZip(paths["zip"], []string{"signal/rgb", wanted}, [][]byte{camera, position})
	writeMCAP(paths["mcap"], camera, position)
	writeParquet(paths["parquet"], camera)
	// With this many calls in a turn a row pays for its own garbage: it is collected after 4 MB.
	table("Open a file of 50 MB, read one entry of 28 KB", 41, 200, []row{
		{"shard (checksum compared)", func() error { return oneOfShard(paths["shard"], wanted, joints) }, true},
		{"archive/zip, stored (checksum compared)", func() error { return oneOfZip(paths["zip"], wanted, joints) }, true},
		{"mcap/go, message by its index", func() error { return oneOfMCAP(paths["mcap"]) }, true},
		{"parquet-go, one column", func() error { return oneOfParquet(paths["parquet"]) }, true},
	})
}

func writeShard(path string, names []string, contents [][]byte) {
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{Alignment: 64, NoSync: true})
	check(err)
	for i, name := range names {
		check(w.WriteEntry(name, contents[i%len(contents)]))
	}
	check(w.Finalize())
}

func oneOfShard(path, name string, size int) error {
	r, err := shard.OpenShard(path)
	if err != nil {
		return err
	}
	data, err := r.ReadEntry(name)
	return errors.Join(err, r.Close(), expect(len(data), size))
}

func expect(found, size int) error {
	if found != size {
		return fmt.Errorf("%d bytes of %d", found, size)
	}
	return nil
}

func writeZip(path string, names []string, contents [][]byte) {
	file, err := os.Create(path)
	check(err)
	w := zip.NewWriter(file)
	for i, name := range names {
		one, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		check(err)
		_, err = one.Write(contents[i%len(contents)])
		check(err)
	}
	check(w.Close())
	check(file.Close())
}

func oneOfZip(path, name string, size int) error {
	r, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	for _, one := range r.File { // Open of the reader would also make a tree of folders
		if one.Name != name {
			continue
		}
		content, err := one.Open()
		if err != nil {
			return err
		}
		data := make([]byte, one.UncompressedSize64)
		if _, err := io.ReadFull(content, data); err != nil {
			return err
		}
		_, err = content.Read(make([]byte, 1)) // the end, where the checksum is compared
		if err != io.EOF {
			return err
		}
		return errors.Join(content.Close(), r.Close(), expect(len(data), size))
	}
	return errors.New("no such entry")
}

func writeMCAP(path string, camera, position []byte) {
	file, err := os.Create(path)
	check(err)
	w, err := mcap.NewWriter(file, &mcap.WriterOptions{Chunked: true, ChunkSize: 1 << 20, Compression: mcap.CompressionNone, IncludeCRC: true})
	check(err)
	check(w.WriteHeader(&mcap.Header{}))
	check(w.WriteChannel(&mcap.Channel{ID: 1, Topic: "signal/rgb", MessageEncoding: "raw"}))
	check(w.WriteChannel(&mcap.Channel{ID: 2, Topic: wanted, MessageEncoding: "raw"}))
	for i := range frames {
		check(w.WriteMessage(&mcap.Message{ChannelID: 1, LogTime: uint64(i), Data: camera[i*image:][:image]}))
		if i == frames/2 {
			check(w.WriteMessage(&mcap.Message{ChannelID: 2, LogTime: uint64(i), Data: position}))
		}
	}
	check(w.Close())
	check(file.Close())
}

func oneOfMCAP(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	r, err := mcap.NewReader(file)
	if err != nil {
		return err
	}
	messages, err := r.Messages(mcap.UsingIndex(true), mcap.WithTopics([]string{wanted}))
	if err != nil {
		return err
	}
	_, _, message, err := messages.NextInto(nil)
	if err != nil {
		return err
	}
	r.Close()
	return errors.Join(file.Close(), expect(len(message.Data), joints))
}

type step struct {
	Camera []byte  `parquet:"signal_rgb,plain"`
	Joint  float32 `parquet:"signal_joint_pos,plain"`
}

// writeParquet has a row for each of the 7000 floats, and 7 KB of camera in each.
func writeParquet(path string, camera []byte) {
	file, err := os.Create(path)
	check(err)
	w := parquet.NewGenericWriter[step](file, parquet.Compression(&parquet.Uncompressed))
	const rows = joints / 4
	share := len(camera) / rows
	for i := range rows {
		_, err := w.Write([]step{{Camera: camera[i*share:][:share], Joint: float32(i)}})
		check(err)
	}
	check(w.Close())
	check(file.Close())
}

func oneOfParquet(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	status, err := file.Stat()
	if err != nil {
		return err
	}
	opened, err := parquet.OpenFile(file, status.Size())
	if err != nil {
		return err
	}
	column, _ := opened.Schema().Lookup("signal_joint_pos")
	values := make([]float32, 0, joints/4)
	for _, group := range opened.RowGroups() {
		pages := group.ColumnChunks()[column.ColumnIndex].Pages()
		for {
			page, err := pages.ReadPage()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			part := make([]float32, page.NumValues())
			count, err := page.Values().(parquet.FloatReader).ReadFloats(part)
			if err != nil && err != io.EOF {
				return err
			}
			values = append(values, part[:count]...)
			parquet.Release(page)
		}
		if err := pages.Close(); err != nil {
			return err
		}
	}
	return errors.Join(file.Close(), expect(4*len(values), joints))
}

// million opens files of a million entries, and reads one of them.
func million(folder string) {
	const count = 1_000_000
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("sample/%07d/label", i)
	}
	content := [][]byte{[]byte("0123456789")}
	ordered, shuffled, zipped := filepath.Join(folder, "ordered.shard"), filepath.Join(folder, "shuffled.shard"), filepath.Join(folder, "many.zip")
	writeShard(ordered, names, content)
	writeZip(zipped, names, content)
	name := names[654_321]
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(count, func(a, b int) { names[a], names[b] = names[b], names[a] })
	writeShard(shuffled, names, content)
	table("Open a file of 1 000 000 entries, read one", 9, 1, []row{
		{"shard, names in order", func() error { return oneOfShard(ordered, name, 10) }, true},
		{"shard, names in any order", func() error { return oneOfShard(shuffled, name, 10) }, true},
		{"archive/zip", func() error { return oneOfZip(zipped, name, 10) }, false},
	})
}
