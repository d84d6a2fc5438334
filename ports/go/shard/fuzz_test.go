package shard_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

func addVectors(f *testing.F) {
	f.Helper()
	files, err := filepath.Glob(vectors + "*valid/*.shard")
	if err != nil || len(files) == 0 {
		f.Fatalf("no vectors: %v", err)
	}
	for _, path := range files {
		if data, err := os.ReadFile(path); err == nil && len(data) < 1<<14 {
			f.Add(data)
		}
	}
}

func expectKnown(t *testing.T, err error) {
	t.Helper()
	var known *shard.Error
	if !errors.As(err, &known) || known.Code == "" {
		t.Fatalf("an error without a code: %v", err)
	}
}

// FuzzOpen opens hostile bytes and asks for all that the head says.
func FuzzOpen(f *testing.F) {
	addVectors(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := openBytes(data)
		if err != nil {
			expectKnown(t, err)
			return
		}
		for i, name := range r.EntryNames() {
			if r.Lookup(name) != i {
				t.Fatalf("%q of row %d is found in row %d", name, i, r.Lookup(name))
			}
			if _, err := r.InfoAt(i); err != nil {
				expectKnown(t, err)
			}
		}
		if _, err := r.Warnings(); err != nil {
			expectKnown(t, err)
		}
		if _, err := r.ReadMetadata(); err != nil {
			expectKnown(t, err)
		}
	})
}

// FuzzEntry reads every entry of hostile bytes in all ways, which must agree.
func FuzzEntry(f *testing.F) {
	addVectors(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		limits := shard.Limits{MaxDecompressedBytes: 1 << 20, MaxWindowBytes: 1 << 20}
		r, err := shard.NewReader(bytes.NewReader(data), int64(len(data)), shard.Options{Limits: limits})
		if err != nil {
			expectKnown(t, err)
			return
		}
		// A stored byte may become 32 768: without a bound on the sum, one input could take seconds.
		sum := uint64(0)
		for i := range r.EntryCount() {
			sum += min(r.GetEntryInfo(i).OrigSize, limits.MaxDecompressedBytes)
		}
		if sum > 1<<22 {
			return
		}
		isWhole := true
		for i := range r.EntryCount() {
			name := r.EntryName(i)
			whole, err := r.ReadEntryAt(i)
			if err != nil {
				expectKnown(t, err)
				isWhole = false
				continue
			}
			size := uint64(len(whole))
			part, err := r.ReadRange(name, size/3, size/2)
			if err != nil || !bytes.Equal(part, whole[size/3:size/2]) {
				t.Fatalf("a range of %q differs from the whole: %v", name, err)
			}
			into := make([]byte, size)
			if err := r.ReadInto(name, into); err != nil || !bytes.Equal(into, whole) {
				t.Fatalf("ReadInto of %q differs: %v", name, err)
			}
			if view, err := r.View(name); err == nil && !bytes.Equal(view.Bytes(), whole) {
				t.Fatalf("the view of %q differs", name)
			}
			if _, err := r.SeekFrames(name); err != nil {
				t.Fatalf("the frames of %q: %v", name, err)
			}
		}
		if err := r.Verify(); err == nil && !isWhole {
			t.Fatal("Verify accepts a file with an entry that cannot be read")
		}
		for _, step := range []func() error{
			func() error { _, err := r.Manifest(); return err },
			func() error { _, err := r.Identity(); return err },
			func() error { _, err := r.VerifyIdentity(); return err },
		} {
			if err := step(); err != nil {
				expectKnown(t, err)
			}
		}
	})
}

// FuzzSignature reads hostile signature files; what is accepted comes back.
func FuzzSignature(f *testing.F) {
	f.Add([]byte(`{"algorithm":"ed25519","identity":"","public_key":"","signature":"","v":2}`))
	r, err := shard.OpenShard(vectors + "valid/hello.shard")
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	signature, err := r.Sign(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signature.Text())
	f.Fuzz(func(t *testing.T, text []byte) {
		found, err := shard.ParseSignature(text)
		if err != nil {
			expectKnown(t, err)
			return
		}
		if again, err := shard.ParseSignature(found.Text()); err != nil || again != found {
			t.Fatalf("%v came back as %v, %v", found, again, err)
		}
	})
}
