package shard_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shard-format/shard/ports/go/shard"
)

// head makes a file of empty entries by hand, so that it can lie. All stored hashes are the same.
func head(names []string) []byte {
	le := binary.LittleEndian
	file := make([]byte, 64+48*len(names))
	for i, name := range names {
		row := file[64+48*i:]
		le.PutUint64(row, 0x0123456789ABCDEF)
		le.PutUint32(row[8:], uint32(len(file)-64-48*len(names)))
		le.PutUint16(row[12:], uint16(len(name)))
		file = append(file, name...)
	}
	for i := range names {
		le.PutUint64(file[64+48*i+16:], uint64(len(file)))
	}
	copy(file, "SHRD")
	file[4] = 2
	le.PutUint16(file[6:], 0x22)
	le.PutUint16(file[10:], 48)
	le.PutUint32(file[12:], uint32(len(names)))
	le.PutUint64(file[16:], uint64(64+48*len(names)))
	le.PutUint64(file[24:], uint64(len(file)))
	le.PutUint64(file[40:], uint64(len(file)))
	return file
}

// names are ascending; count is more than one goroutine checks at once.
func ascending(count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("sample/%07d", i)
	}
	return names
}

func shuffled(count int) []string {
	names := ascending(count)
	random := rand.New(rand.NewPCG(3, 4))
	random.Shuffle(count, func(a, b int) { names[a], names[b] = names[b], names[a] })
	return names
}

func openBytes(file []byte) (*shard.ShardReader, error) {
	return shard.NewReader(bytes.NewReader(file), int64(len(file)))
}

func TestNamesAreFoundInAnyOrderWhateverTheStoredHashesAre(t *testing.T) {
	for _, names := range [][]string{nil, {"only"}, {"b", "a"}, ascending(40_000), shuffled(40_000), {"\u00e9", "z", "a\x00"}} {
		r, err := openBytes(head(names))
		check(t, err)
		for i, name := range names {
			if r.Lookup(name) != i || r.EntryName(i) != name {
				t.Fatalf("%q of %d is in row %d", name, len(names), r.Lookup(name))
			}
		}
		for _, name := range []string{"", "nothing", "sample/", "sample/0000000 ", "~"} {
			if r.HasEntry(name) {
				t.Errorf("%q is there", name)
			}
		}
		if len(r.EntryNames()) != len(names) || r.EntryName(-1) != "" || r.EntryName(len(names)) != "" {
			t.Error("there are names that are not there")
		}
		if _, err := r.InfoAt(len(names)); err == nil {
			t.Error("a row behind the last has information")
		}
	}
}

func TestANameThatIsThereTwiceIsFoundWhereverItIs(t *testing.T) {
	for _, names := range [][]string{ascending(40_000), shuffled(40_000)} {
		for _, pair := range [][2]int{{0, 39_999}, {16_383, 16_384}, {20_000, 20_001}, {5, 30_000}} {
			changed := append([]string(nil), names...)
			changed[pair[1]] = changed[pair[0]]
			_, err := openBytes(head(changed))
			expect(t, err, shard.CodeDuplicateName, "S-NAM-4")
		}
	}
}

func TestBlocksThatOverlapAreFoundWhereverTheyAre(t *testing.T) {
	const count = 40_000
	blocks := func() []byte {
		file := head(ascending(count))
		start := len(file)
		file = append(file, make([]byte, 2*count)...)
		binary.LittleEndian.PutUint64(file[40:], uint64(len(file)))
		for i := range count {
			binary.LittleEndian.PutUint64(file[64+48*i+16:], uint64(start+2*i))
			binary.LittleEndian.PutUint64(file[64+48*i+24:], 2)
			binary.LittleEndian.PutUint64(file[64+48*i+32:], 2)
		}
		return file
	}
	_, err := openBytes(blocks())
	check(t, err)
	for _, pair := range [][2]int{{0, count - 1}, {16_383, 16_384}, {20_000, 20_001}} {
		file := blocks()
		copy(file[64+48*pair[1]+16:][:8], file[64+48*pair[0]+16:][:8])
		_, err := openBytes(file)
		expect(t, err, shard.CodeOverlap, "S-DAT-3")
	}
}

// claiming is a source that has the head of a file and nothing of what it claims.
type claiming struct{ head []byte }

func (c claiming) ReadAt(p []byte, offset int64) (int, error) {
	return bytes.NewReader(c.head).ReadAt(p, offset)
}

func TestARawEntryThatIsOnlyClaimedTakesNoMemory(t *testing.T) {
	file := head([]string{"huge"})
	data := uint64(len(file))
	for size, code := range map[uint64]shard.Code{1 << 42: shard.CodeTruncated, 1 << 61: shard.CodeLimitExceeded} {
		for place, value := range map[int]uint64{40: data + size, 64 + 24: size, 64 + 32: size} {
			binary.LittleEndian.PutUint64(file[place:], value)
		}
		r, err := shard.NewReader(claiming{append(file, make([]byte, 4096)...)}, int64(data+size))
		check(t, err)
		_, err = r.ReadEntry("huge")
		expect(t, err, code, "")
		_, err = r.ReadRange("huge", 0, size)
		expect(t, err, code, "")
		_, err = r.View("huge")
		expect(t, err, code, "")
		expect(t, r.Verify(), shard.CodeTruncated, "")
		binary.LittleEndian.PutUint16(file[64+14:], 3) // compressed with zstd, to 10 bytes
		binary.LittleEndian.PutUint64(file[64+32:], 10)
		r, err = shard.NewReader(claiming{append(file, make([]byte, 4096)...)}, int64(data+size))
		check(t, err)
		_, err = r.ReadEntry("huge")
		expect(t, err, shard.CodeLimitExceeded, "")
		binary.LittleEndian.PutUint16(file[64+14:], 0)
	}
}

func TestManyLongNamesInASmallTableAreRefused(t *testing.T) {
	const count = 20_000
	file := head(append(make([]string, count-1), string(bytes.Repeat([]byte("x"), 65_535+count))))
	for i := range count { // each a letter shorter than the one before
		binary.LittleEndian.PutUint32(file[64+48*i+8:], 0)
		binary.LittleEndian.PutUint16(file[64+48*i+12:], uint16(65_535-i))
	}
	_, err := openBytes(file)
	expect(t, err, shard.CodeLimitExceeded, "S-NAM-9")
}
