package shard

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"
	"unicode/utf8"
)

// index is the checked index of a file. It keeps the bytes of the head, and unpacks a row when one is asked for.
type index struct {
	rows  []byte
	table []byte
	count int
	// slots finds rows by name: open addressing, at least twice as many slots as rows. The upper half of a slot is that
	// of the hash of the name, the lower half the number of the row plus one. Names that ascend need no slots.
	slots []uint64
	// shift makes the number of a slot from a hash.
	shift int
}

// nameSeed makes the hashes of names unpredictable. The hashes that a file stores may be wrong, and may all be the same.
var nameSeed = maphash.MakeSeed()

func (x *index) entry(i int) IndexEntry { return unpackEntry(x.rows[i*indexEntrySize:]) }

func (x *index) nameBytes(i int) []byte {
	offset, length := namePlace(x.rows[i*indexEntrySize:])
	return x.table[offset:][:length]
}

func (x *index) name(i int) string { return string(x.nameBytes(i)) }

// find gives the row of a name, or -1.
func (x *index) find(name string) int {
	if x.slots == nil {
		i := sort.Search(x.count, func(i int) bool { return string(x.nameBytes(i)) >= name })
		if i < x.count && string(x.nameBytes(i)) == name {
			return i
		}
		return -1
	}
	hash := maphash.String(nameSeed, name)
	mask := uint64(len(x.slots) - 1)
	for at := hash >> x.shift; x.slots[at] != 0; at = (at + 1) & mask {
		if slot := x.slots[at]; slot>>32 == hash>>32 {
			if i := rowOf(slot); string(x.nameBytes(i)) == name {
				return i
			}
		}
	}
	return -1
}

func rowOf(slot uint64) int { return int(uint32(slot)) - 1 }

// fill puts all rows into the slots, and refuses two rows of the same name (S-NAM-4).
func (x *index) fill() error {
	width := bits.Len(uint(2 * x.count))
	x.slots, x.shift = make([]uint64, 1<<width), 64-width
	// The slots of a large file do not fit in a cache. Rows go in by the first byte of their hash, which is the order of
	// the slots.
	var starts [257]int
	keys := make([]uint64, x.count)
	for i := range keys {
		hash := maphash.Bytes(nameSeed, x.nameBytes(i))
		keys[i] = hash&^math.MaxUint32 | uint64(i+1)
		starts[hash>>56+1]++
	}
	for i := range 256 {
		starts[i+1] += starts[i]
	}
	ordered := make([]uint64, x.count)
	for _, key := range keys {
		part := &starts[key>>56]
		ordered[*part] = key
		*part++
	}
	mask := uint64(len(x.slots) - 1)
	for _, key := range ordered {
		at := key >> x.shift
		for ; x.slots[at] != 0; at = (at + 1) & mask {
			if slot := x.slots[at]; slot>>32 == key>>32 {
				if name := x.nameBytes(rowOf(key)); bytes.Equal(name, x.nameBytes(rowOf(slot))) {
					return broken(CodeDuplicateName, "S-NAM-4", "two entries have the same name").found("%.80q", name)
				}
			}
		}
		x.slots[at] = key
	}
	return nil
}

// parseHeader checks S-HDR-1 to S-HDR-12; head has the first bytes of the file.
func parseHeader(head []byte, fileSize uint64, limits Limits) (Header, error) {
	known := min(len(head), len(magic))
	if string(head[:known]) != magic[:known] {
		return Header{}, broken(CodeBadMagic, "S-HDR-2", "not a Shard file").
			expected("the bytes % x", magic).found("% x", head[:known])
	}
	if len(head) < headerSize {
		return Header{}, broken(CodeTruncated, "S-HDR-1", "the file ends inside its header").
			expected("at least %d bytes", headerSize).found("%d", fileSize)
	}
	h := unpackHeader(head)
	indexEnd := uint64(headerSize) + indexEntrySize*uint64(h.EntryCount)
	var err *Error
	switch {
	case h.Version != version:
		err = broken(CodeUnsupportedVersion, "S-HDR-3", "unknown version of the format").expected("%d", version).found("%d", h.Version)
	case h.IndexEntrySize != indexEntrySize:
		err = broken(CodeBadHeader, "S-HDR-4", "wrong size of an index entry").expected("%d", indexEntrySize).found("%d", h.IndexEntrySize)
	case !validAlignment(h.Alignment):
		err = broken(CodeBadHeader, "S-HDR-5", "the alignment is not allowed").expected("0, 16, 32 or 64").found("%d", h.Alignment)
	case h.Flags&flagBigEndian != 0:
		err = broken(CodeBadHeader, "S-HDR-6", "the header claims big-endian numbers").found("flags 0x%04x", h.Flags)
	case h.TotalFileSize > fileSize:
		err = broken(CodeTruncated, "S-HDR-7", "the file is shorter than its header says").expected("%d bytes", h.TotalFileSize).found("%d", fileSize)
	case h.TotalFileSize < fileSize:
		err = broken(CodeTrailingData, "S-HDR-7", "the file goes on after its stated end").expected("%d bytes", h.TotalFileSize).found("%d", fileSize)
	case uint64(h.EntryCount) > limits.MaxEntries || indexEnd-headerSize > limits.MaxIndexBytes:
		err = broken(CodeLimitExceeded, "S-HDR-8", "too many entries").expected("at most %d", limits.MaxEntries).found("%d", h.EntryCount)
	case indexEnd > fileSize:
		err = broken(CodeBadOffset, "S-HDR-9", "the index does not fit in the file").found("%d entries", h.EntryCount)
	case h.StringTableOffset != indexEnd:
		err = broken(CodeBadOffset, "S-HDR-10", "the string table does not follow the index").expected("%d", indexEnd).found("%d", h.StringTableOffset)
	case h.DataSectionOffset < indexEnd || h.DataSectionOffset > fileSize:
		err = broken(CodeBadOffset, "S-HDR-11", "the data section is out of range").expected("%d to %d", indexEnd, fileSize).found("%d", h.DataSectionOffset)
	case h.DataSectionOffset-indexEnd > limits.MaxStringTableBytes:
		err = broken(CodeLimitExceeded, "S-HDR-12", "the string table is too large").expected("at most %d bytes", limits.MaxStringTableBytes).found("%d", h.DataSectionOffset-indexEnd)
	default:
		return h, nil
	}
	return Header{}, err
}

// parseIndex checks S-NAM-1 to S-NAM-4 and S-DAT-1 to S-DAT-3; head reaches to the data section, and is kept.
//
// Names may overlap in the string table, so a small file could have many long ones. All together may be as long as a table.
func parseIndex(head []byte, h Header, limits Limits) (*index, error) {
	x := &index{
		rows:  head[headerSize:h.StringTableOffset],
		table: head[h.StringTableOffset:h.DataSectionOffset],
		count: int(h.EntryCount),
	}
	runs := make([]run, (x.count+rowsInRun-1)/rowsInRun)
	var length atomic.Uint64
	err := inParallel(len(runs), func(i int) error {
		runs[i] = run{first: i * rowsInRun, last: min((i+1)*rowsInRun, x.count) - 1, left: limits.MaxStringTableBytes}
		if err := x.checkRun(&runs[i], &h); err != nil {
			return err
		}
		if length.Add(limits.MaxStringTableBytes-runs[i].left) > limits.MaxStringTableBytes {
			return namesTooLong(limits.MaxStringTableBytes)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Most files have their blocks in order, and many their names. Then nothing must be sorted, and no name is there twice.
	isOrdered, ascends := true, true
	for i, now := range runs {
		isOrdered, ascends = isOrdered && now.isOrdered, ascends && now.ascends
		if i > 0 {
			isOrdered = isOrdered && now.start >= runs[i-1].end
			ascends = ascends && bytes.Compare(x.nameBytes(runs[i-1].last), x.nameBytes(now.first)) < 0
		}
	}
	if !ascends {
		if err := x.fill(); err != nil {
			return nil, err
		}
	}
	if !isOrdered {
		return x, x.checkOverlaps()
	}
	return x, nil
}

const rowsInRun = 1 << 14

// run is a part of the index that one goroutine checks.
type run struct {
	first, last        int
	isOrdered, ascends bool
	// start and end are those of the blocks.
	start, end uint64
	// left is how long the names that follow may be together.
	left uint64
}

func namesTooLong(most uint64) error {
	return broken(CodeLimitExceeded, "S-NAM-9", "the names are too long together").expected("at most %d bytes", most)
}

// checkRun checks rows one by one: S-NAM-1 to S-NAM-3, S-NAM-9, S-DAT-1 and S-DAT-2.
func (x *index) checkRun(r *run, h *Header) error {
	r.isOrdered, r.ascends = true, true
	r.start, r.end = h.TotalFileSize, 0
	most := r.left
	var before []byte
	for i := r.first; i <= r.last; i++ {
		row := x.rows[i*indexEntrySize:][:indexEntrySize]
		nameOffset, nameLength := namePlace(row)
		if nameLength == 0 {
			return broken(CodeBadName, "S-NAM-2", "a name is empty")
		}
		if uint64(nameOffset)+uint64(nameLength) > uint64(len(x.table)) {
			return broken(CodeBadName, "S-NAM-1", "a name is outside the string table")
		}
		if uint64(nameLength) > r.left {
			return namesTooLong(most)
		}
		r.left -= uint64(nameLength)
		name := x.table[nameOffset:][:nameLength]
		if !utf8.Valid(name) {
			return broken(CodeBadName, "S-NAM-3", "a name is not valid UTF-8").found("% x", name[:min(nameLength, 32)])
		}
		r.ascends = r.ascends && bytes.Compare(before, name) < 0
		before = name
		offset, size := blockPlace(row)
		end, carry := bits.Add64(offset, size, 0)
		if offset < h.DataSectionOffset {
			return broken(CodeBadOffset, "S-DAT-1", "a block starts before the data section").found("%d", offset)
		}
		if carry != 0 || end > h.TotalFileSize {
			return broken(CodeBadOffset, "S-DAT-2", "a block ends after the end of the file").found("%d + %d bytes", offset, size)
		}
		if size > 0 {
			r.isOrdered = r.isOrdered && offset >= r.end
			r.start, r.end = min(r.start, offset), end
		}
	}
	return nil
}

// checkOverlaps checks S-DAT-3 of blocks in any order.
func (x *index) checkOverlaps() error {
	type block struct {
		start, end uint64
		row        int
	}
	blocks := make([]block, 0, x.count)
	for i := range x.count {
		if e := x.entry(i); e.DiskSize > 0 {
			blocks = append(blocks, block{e.DataOffset, e.DataOffset + e.DiskSize, i})
		}
	}
	slices.SortFunc(blocks, func(a, b block) int { return cmp.Compare(a.start, b.start) })
	for i := 1; i < len(blocks); i++ {
		if before, now := blocks[i-1], blocks[i]; now.start < before.end {
			return broken(CodeOverlap, "S-DAT-3", "the blocks of two entries overlap").
				found("%.60q and %.60q", x.nameBytes(before.row), x.nameBytes(now.row))
		}
	}
	return nil
}
