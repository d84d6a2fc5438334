package codec_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/shard-format/shard/ports/go/internal/codec"
	"github.com/shard-format/shard/ports/go/shard"
)

const (
	vectors = "../../../../spec/vectors/"
	largest = 1 << 20
	window  = 8 << 20
)

// addStored adds the stored bytes of the vectors' entries.
func addStored(f *testing.F, wanted string) {
	f.Helper()
	files, err := filepath.Glob(vectors + "*valid/*.shard")
	if err != nil || len(files) == 0 {
		f.Fatalf("no vectors: %v", err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil || len(data) > 1<<16 {
			continue
		}
		r, err := shard.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			continue
		}
		for i := range r.EntryCount() {
			if e, err := r.InfoAt(i); err == nil && e.Codec.String() == wanted && e.OrigSize <= largest {
				f.Add(data[e.DataOffset:][:e.DiskSize], uint32(e.OrigSize))
			}
		}
	}
}

func expectKnown(t *testing.T, err error) *codec.Error {
	t.Helper()
	var known *codec.Error
	if !errors.As(err, &known) || known.Code == "" || !strings.HasPrefix(known.Rule, "S-CMP-") {
		t.Fatalf("an error without a code or a rule: %v", err)
	}
	return known
}

// FuzzFrames compares the walk and the bounded decoder with the streaming decoder of the library.
func FuzzFrames(f *testing.F) {
	addStored(f, "zstd")
	f.Fuzz(func(t *testing.T, stored []byte, size uint32) {
		if size > largest {
			return
		}
		out := make([]byte, size)
		err := codec.DecodeZstd(stored, out, window)
		stream, streamErr := zstd.NewReader(bytes.NewReader(stored), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(4*largest))
		if streamErr != nil {
			t.Fatal(streamErr)
		}
		defer stream.Close()
		other, streamErr := io.ReadAll(io.LimitReader(stream, largest+1))
		if err != nil {
			known := expectKnown(t, err)
			if streamErr == nil && len(other) == int(size) && len(stored) > 0 && known.Code != codec.LimitExceeded && known.Rule != "S-CMP-4" && known.Rule != "S-CMP-6" {
				t.Fatalf("the library decodes what is refused: %v", err)
			}
			return
		}
		if streamErr != nil || !bytes.Equal(out, other) {
			t.Fatalf("the library gives other bytes: %d of %d, %v", len(other), size, streamErr)
		}
	})
}

// FuzzLZ4 compares the block decoder with that of the library, which also refuses a last token with lower bits (S-CMP-9).
func FuzzLZ4(f *testing.F) {
	addStored(f, "lz4")
	f.Fuzz(func(t *testing.T, stored []byte, size uint32) {
		if size > largest {
			return
		}
		out, other := make([]byte, size), make([]byte, size)
		err := codec.DecodeLZ4(stored, out)
		count, otherErr := lz4.UncompressBlock(stored, other)
		if err != nil {
			expectKnown(t, err)
			return
		}
		if size > 0 && otherErr == nil && (count != int(size) || !bytes.Equal(out, other)) {
			t.Fatalf("the library gives other bytes: %d of %d", count, size)
		}
	})
}

func TestWhatIsCompressedComesBack(t *testing.T) {
	for _, data := range [][]byte{
		bytes.Repeat([]byte("a"), 100_000), bytes.Repeat([]byte("ab"), 50_000), bytes.Repeat([]byte("0123456789abcdefg"), 9_000),
		append(bytes.Repeat([]byte{0}, 70_000), "an end of its own"...),
	} {
		out := make([]byte, len(data))
		stored, err := codec.CompressLZ4(data)
		if err != nil || codec.DecodeLZ4(stored, out) != nil || !bytes.Equal(out, data) {
			t.Errorf("lz4: other bytes came back (%v)", err)
		}
		clear(out)
		if stored, err = codec.CompressZstd(data, codec.UsualLevel, true); err != nil {
			t.Fatal(err)
		}
		stored = append(stored, stored...) // two frames
		out = make([]byte, 2*len(data))
		if err := codec.DecodeZstd(stored, out, window); err != nil || !bytes.Equal(out, append(data, data...)) {
			t.Errorf("zstd: other bytes came back (%v)", err)
		}
	}
}
