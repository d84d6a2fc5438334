package shardpack_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

// benchShard writes a shard like those of an image dataset: one large entry, a small one, and a label.
func benchShard(b *testing.B, count, size int) string {
	path := filepath.Join(b.TempDir(), "x.shardpack")
	w, err := shardpack.Create(path, shardpack.WriterOptions{NoSync: true})
	check(b, err)
	data := make([]byte, size)
	for i := range count {
		check(b, w.Write(shardpack.Sample{
			Key: fmt.Sprintf("train/%08d", i), Metadata: shard.Object{"label": i % 10},
			Entries: []shardpack.FileEntry{{Name: "jpg", Data: data}, {Name: "cls", Data: []byte("7")}},
		}))
	}
	check(b, w.Finalize())
	return path
}

func BenchmarkRecordsInOrder(b *testing.B) {
	const count, size = 2000, 10_000
	r, err := shardpack.Open(benchShard(b, count, size))
	check(b, err)
	b.SetBytes(count * size)
	b.ReportAllocs()
	for b.Loop() {
		for record, err := range r.Records() {
			check(b, err)
			_, err = record.ReadEntry("jpg")
			check(b, err)
		}
	}
	b.ReportMetric(float64(b.N)*count/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkRecordsAtRandom(b *testing.B) {
	const count, size = 2000, 10_000
	r, err := shardpack.Open(benchShard(b, count, size))
	check(b, err)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 997) % count
		record, err := r.Record(i)
		check(b, err)
		_, err = record.ReadEntry("jpg")
		check(b, err)
	}
}

func BenchmarkByKey(b *testing.B) {
	const count = 2000
	r, err := shardpack.Open(benchShard(b, count, 100))
	check(b, err)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 997) % count
		_, err := r.ByKey(fmt.Sprintf("train/%08d", i))
		check(b, err)
	}
}

func BenchmarkStream(b *testing.B) {
	const count, size = 2000, 10_000
	path := benchShard(b, count, size)
	b.SetBytes(count * size)
	b.ReportAllocs()
	for b.Loop() {
		file, err := os.Open(path)
		check(b, err)
		for _, err := range shardpack.Stream(file) {
			check(b, err)
		}
		check(b, file.Close())
	}
}

func BenchmarkWrite(b *testing.B) {
	w, err := shardpack.Create(filepath.Join(b.TempDir(), "x.shardpack"), shardpack.WriterOptions{NoSync: true})
	check(b, err)
	data := make([]byte, 10_000)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		check(b, w.Write(shardpack.Sample{
			Key: fmt.Sprintf("train/%08d", i), Metadata: shard.Object{"label": i % 10},
			Entries: []shardpack.FileEntry{{Name: "jpg", Data: data}, {Name: "cls", Data: []byte("7")}},
		}))
		i++
	}
	check(b, w.Close())
}
