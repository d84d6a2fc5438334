package httprange_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shard/httprange"
)

// file is a Shard file of 2 MB: a seekable entry, and a raw one.
func file(folder string) (path string, lines []byte) {
	path = filepath.Join(folder, "data.shard")
	for i := 0; len(lines) < 1<<20; i++ {
		lines = fmt.Appendf(lines, "line %07d %08x\n", i, uint32(i)*2654435761) // 22 bytes
	}
	w, err := shard.NewShardStreamWriter(path, shard.ShardOptions{Alignment: 64, NoSync: true})
	if err != nil {
		log.Fatal(err)
	}
	err = errors.Join(
		w.WriteEntryWith("lines", lines, shard.EntryOptions{Codec: shard.CodecZstd, HasCodec: true, FrameBytes: 1 << 16}),
		w.WriteEntry("joints", bytes.Repeat([]byte{1, 2, 3, 4}, 7000)),
		w.WriteEntry("camera", make([]byte, 1<<20)),
		w.Finalize(),
	)
	if err != nil {
		log.Fatal(err)
	}
	return path, lines
}

func Example() {
	folder, err := os.MkdirTemp("", "shard")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	path, _ := file(folder)
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		http.ServeFile(w, r, path)
	}))
	defer server.Close()

	r, err := httprange.OpenShard(context.Background(), server.Client(), server.URL+"/data.shard")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.EntryNames(), "after", requests.Load(), "request")
	joints, err := r.ReadEntry("joints")
	fmt.Println(len(joints), "bytes,", err, "after", requests.Load())
	part, err := r.ReadRange("lines", 22*20_000, 22*20_001)
	fmt.Println(strings.TrimSpace(string(part)), err, "after", requests.Load())
	part, err = r.ReadRange("lines", 22*40_000, 22*40_001)
	fmt.Println(strings.TrimSpace(string(part)), err, "after", requests.Load())
	// Output:
	// [lines joints camera] after 1 request
	// 28000 bytes, <nil> after 2
	// line 0020000 ae032420 <nil> after 4
	// line 0040000 5c064840 <nil> after 5
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func expectIO(t *testing.T, err error, problem string) {
	t.Helper()
	var found *shard.Error
	if !errors.As(err, &found) || found.Code != shard.CodeIOError || found.Problem != problem {
		t.Errorf("expected %q, found %v", problem, err)
	}
}

func TestEveryRangeIsThatOfTheFile(t *testing.T) {
	content := make([]byte, 200_000)
	for i := range content {
		content[i] = byte(i * i >> 5)
	}
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "x", time.Unix(1, 0), bytes.NewReader(content))
	})
	source, err := httprange.Open(context.Background(), nil, address+"/x?secret=1")
	if err != nil {
		t.Fatal(err)
	}
	if source.Size() != 200_000 || source.Name() != address+"/x" {
		t.Errorf("%d bytes of %s", source.Size(), source.Name())
	}
	for _, place := range [][2]int64{{0, 10}, {0, 200_000}, {65_536, 1}, {65_535, 2}, {199_990, 20}, {200_000, 5}, {300_000, 5}, {0, 0}} {
		want := io.NewSectionReader(bytes.NewReader(content), place[0], place[1])
		expected := make([]byte, place[1])
		count, wantErr := io.ReadFull(want, expected)
		found := make([]byte, place[1])
		got, err := source.ReadAt(found, place[0])
		if got != count || !bytes.Equal(found[:got], expected[:count]) || (err == nil) != (wantErr == nil) {
			t.Errorf("%v: %d bytes, %v; expected %d, %v", place, got, err, count, wantErr)
		}
	}
	if _, err := source.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a negative offset was read")
	}
}

func TestAServerThatLiesIsAnError(t *testing.T) {
	ctx := context.Background()
	_, err := httprange.Open(ctx, nil, serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("all")) }))
	expectIO(t, err, "the server does not answer with the range")
	_, err = httprange.Open(ctx, nil, serve(t, http.NotFound))
	expectIO(t, err, "the server does not answer with the range")
	for _, place := range []string{"", "bytes 5-9/10", "bytes 0-9/x", "bytes 0-9/-1", "bytes -1-9/10", "0-9/10"} {
		_, err = httprange.Open(ctx, nil, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", place)
			w.WriteHeader(http.StatusPartialContent)
		}))
		expectIO(t, err, "the server does not answer with the range")
	}
	_, err = httprange.Open(ctx, nil, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-65535/4611686018427387904")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, 100))
	}))
	expectIO(t, err, "the answer is incomplete")

	var count atomic.Int64
	source, err := httprange.Open(ctx, nil, serve(t, func(w http.ResponseWriter, r *http.Request) {
		changed := make([]byte, 100_000+count.Add(1))
		http.ServeContent(w, r, "x", time.Unix(1, 0), bytes.NewReader(changed))
	}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = source.ReadAt(make([]byte, 10), 90_000)
	expectIO(t, err, "the file changed while it was read")
}

func TestTheContextEndsReading(t *testing.T) {
	path, _ := file(t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	r, err := httprange.OpenShard(ctx, nil, serve(t, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := r.ReadEntry("camera"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
