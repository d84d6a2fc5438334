package shardpack_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

var small = shardpack.Options{Limits: shardpack.Limits{
	MaxDecompressedBytes: 1 << 20, MaxWindowBytes: 1 << 20, MaxRecordBytes: 1 << 20, MaxIndexBytes: 1 << 20,
}}

func addPacks(f *testing.F) {
	for _, folder := range []string{"valid_packs", "invalid_packs"} {
		files, _ := filepath.Glob(vectors + folder + "/*.shardpack")
		for _, path := range files {
			if data, err := os.ReadFile(path); err == nil && len(data) < 1<<14 {
				f.Add(data, true)
				f.Add(data, false)
			}
		}
	}
}

// mend gives a shard in which checksums fit again, so that what they protect is reached, too. It is as crude as it looks:
// whatever it cannot follow stays as it is.
func mend(data []byte) []byte {
	data = bytes.Clone(data)
	le := binary.LittleEndian
	at := uint64(0)
	for left := uint64(len(data)); left >= 36 && string(data[at+8:at+12]) == "SPR1"; left = uint64(len(data)) - at {
		record := data[at:]
		count, head := uint64(le.Uint32(record[16:])), uint64(36)
		for _, field := range []int{20, 24, 28} {
			head += uint64(le.Uint32(record[field:]))
		}
		size := le.Uint64(record)
		if head += 24 * count; head > left || size > left || size < head {
			return data
		}
		end, alignment := head, max(uint64(record[14]), 1)
		for i := range count {
			row := record[32+24*i:]
			start := (end + alignment - 1) / alignment * alignment
			if stored := le.Uint64(row); start <= left && stored <= left-start {
				end = start + stored
				le.PutUint32(row[16:], shard.ComputeChecksum(record[start:end]))
			}
		}
		le.PutUint32(record[head-4:], shard.ComputeChecksum(record[:head-4]))
		at += size
	}
	if uint64(len(data))-at < 104 {
		return data
	}
	index, footer := data[at:], data[len(data)-64:]
	if count := le.Uint64(footer[8:]); count < uint64(len(index))/20 {
		hashes, metadata := 40+8*count, 40+20*count
		if end := uint64(len(index) - 64); metadata <= end {
			for field, part := range map[int][]byte{32: index[32:hashes], 36: index[hashes:metadata], 40: index[metadata:end]} {
				le.PutUint32(footer[field:], shard.ComputeChecksum(part))
			}
		}
	}
	le.PutUint32(footer[52:], shard.ComputeChecksum(footer[:52]))
	return data
}

func expectKnown(t *testing.T, err error) {
	t.Helper()
	var known *shard.Error
	if err != nil && (!errors.As(err, &known) || known.Code == "" || known.Code == shard.CodeIOError) {
		t.Fatalf("an error without a code of its own: %v", err)
	}
}

// FuzzPack reads a shard at random in two ways, which must give the same.
func FuzzPack(f *testing.F) {
	addPacks(f)
	f.Fuzz(func(t *testing.T, data []byte, mended bool) {
		if mended {
			data = mend(data)
		}
		r, err := shardpack.NewReader(bytes.NewReader(data), int64(len(data)), small)
		if err != nil {
			expectKnown(t, err)
			return
		}
		_, err = r.Metadata()
		expectKnown(t, err)
		i := 0
		for record, err := range r.Records() {
			expectKnown(t, err)
			again, failed := r.Record(i)
			if (err == nil) != (failed == nil) {
				t.Fatalf("in order: %v, by number: %v", err, failed)
			}
			i++
			if err != nil {
				continue
			}
			sample, err := record.Sample()
			expectKnown(t, err)
			other, failed := again.Sample()
			if (err == nil) != (failed == nil) || (err == nil && !same(sample, other)) {
				t.Fatalf("two ways to record %d differ: %v, %v", i, err, failed)
			}
			found, err := r.ByKey(record.Key())
			expectKnown(t, err)
			if err == nil && found.Key() != record.Key() {
				t.Fatalf("%q leads to %q", record.Key(), found.Key())
			}
		}
	})
}

// FuzzStream reads a shard as a stream. What a stream reads to its end, a reader opens, with the same records.
func FuzzStream(f *testing.F) {
	addPacks(f)
	f.Fuzz(func(t *testing.T, data []byte, mended bool) {
		if mended {
			data = mend(data)
		}
		var keys []string
		for record, err := range shardpack.Stream(bytes.NewReader(data), small) {
			if err != nil {
				expectKnown(t, err)
				return
			}
			_, err = record.Sample()
			expectKnown(t, err)
			keys = append(keys, record.Key())
		}
		r, err := shardpack.NewReader(bytes.NewReader(data), int64(len(data)), small)
		if err != nil {
			t.Fatalf("a stream reads what a reader refuses: %v", err)
		}
		if r.Len() != len(keys) {
			t.Fatalf("a stream gives %d records, a reader %d", len(keys), r.Len())
		}
	})
}

// FuzzRecover recovers a shard. What comes out is always a valid shard, from which nothing more is lost.
func FuzzRecover(f *testing.F) {
	addPacks(f)
	f.Fuzz(func(t *testing.T, data []byte, mended bool) {
		if mended {
			data = mend(data)
		}
		folder := t.TempDir()
		in, out, again := filepath.Join(folder, "in"), filepath.Join(folder, "out"), filepath.Join(folder, "again")
		check(t, os.WriteFile(in, data, 0o600))
		options := shardpack.RecoverOptions{Limits: small.Limits, NoSync: true}
		first, err := shardpack.Recover(in, out, options)
		if err != nil {
			t.Fatal(err)
		}
		lost, end := uint64(0), uint64(0)
		for _, part := range first.Lost {
			if part.Offset < end || part.Size == 0 {
				t.Fatalf("lost parts overlap: %+v", first.Lost)
			}
			lost, end = lost+part.Size, part.Offset+part.Size
		}
		if end > uint64(len(data)) || lost > uint64(len(data)) {
			t.Fatalf("more is lost than there was: %+v", first.Lost)
		}
		second, err := shardpack.Recover(out, again, options)
		if err != nil || !second.HadIndex || len(second.Lost) > 0 || second.Records != first.Records {
			t.Fatalf("recovering again gives %+v, %v; first %+v", second, err, first)
		}
	})
}

// FuzzMessagePack decodes any bytes.
func FuzzMessagePack(f *testing.F) {
	f.Add([]byte("\x82\x01\xc0\xa1\x61\x90"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := shardpack.DecodeMessagePack(data)
		expectKnown(t, err)
	})
}
