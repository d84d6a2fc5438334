package shard

import (
	"bytes"
	"io"
	"math/rand"
	"path/filepath"
	"testing"
)

func TestChecksumsOfPartsCombineToThatOfTheWhole(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	data := make([]byte, 70000)
	_, _ = random.Read(data)
	for range 200 {
		end := random.Intn(len(data) + 1)
		cut := random.Intn(end + 1)
		got := combineChecksums(ComputeChecksum(data[:cut]), ComputeChecksum(data[cut:end]), uint64(end-cut))
		if want := ComputeChecksum(data[:end]); got != want {
			t.Fatalf("%d and %d bytes: %08x, want %08x", cut, end-cut, got, want)
		}
	}
}

func TestEveryFrameDeclaresItsSize(t *testing.T) {
	for _, size := range []int{0, 1, 255, 256, 257, 65535, 65536, 66000} {
		data := bytes.Repeat([]byte{7, 8}, size)[:size]
		frame, err := AppendFrame(nil, data, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckFrame(frame, uint64(size)); err != nil && size > 0 {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestCopiedRunsReadBackAsOneEntry(t *testing.T) {
	var stored, content []byte
	var runs []StoredRun
	for i := range 3 {
		part := bytes.Repeat([]byte{byte(i), 1, 2, 3}, 500+i)
		frame, err := AppendFrame(nil, part, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, StoredRun{Offset: int64(len(stored)), StoredSize: uint32(len(frame)),
			ContentSize: uint32(len(part)), CRC32C: ComputeChecksum(part)})
		stored, content = append(stored, frame...), append(content, part...)
		read, err := NewFrameReader(bytes.NewReader(frame), uint64(len(part)))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(read); err != nil || !bytes.Equal(got, part) {
			t.Fatalf("reading a frame: %v", err)
		}
		read.Close()
	}
	for i := range runs {
		runs[i].Source = bytes.NewReader(stored)
	}
	path := filepath.Join(t.TempDir(), "a.shard")
	w, err := NewShardStreamWriter(path, ShardOptions{Alignment: 64})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteRuns("one", runs[:1], EntryOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteRuns("three", runs, EntryOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteStream("raw", uint64(len(content)), bytes.NewReader(content), EntryOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Finalize(); err != nil {
		t.Fatal(err)
	}
	r, err := OpenShard(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for name, want := range map[string][]byte{"one": content[:2000], "three": content, "raw": content} {
		if got, err := r.ReadEntry(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if frames, err := r.SeekFrames("three"); err != nil || len(frames) != 3 {
		t.Errorf("frames: %d, %v", len(frames), err)
	}
}
