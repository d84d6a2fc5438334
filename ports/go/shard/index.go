package shard

import (
	"fmt"
	"math/bits"
	"sort"
	"unicode/utf8"
)

// index is the checked index of a file.
type index struct {
	entries []IndexEntry
	names   []string
	byName  map[string]int
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

// parseIndex checks S-NAM-1 to S-NAM-4 and S-DAT-1 to S-DAT-3; head reaches to the data section.
func parseIndex(head []byte, h Header) (*index, error) {
	table := head[h.StringTableOffset:h.DataSectionOffset]
	count := int(h.EntryCount)
	found := &index{
		entries: make([]IndexEntry, count),
		names:   make([]string, count),
		byName:  make(map[string]int, count),
	}
	for i := range found.entries {
		e := unpackEntry(head[headerSize+i*indexEntrySize:])
		if err := checkEntry(e, table, h); err != nil {
			return nil, err
		}
		name := string(table[e.NameOffset:][:e.NameLength])
		if _, there := found.byName[name]; there {
			return nil, broken(CodeDuplicateName, "S-NAM-4", "two entries have the same name").found("%.80q", name)
		}
		found.entries[i], found.names[i], found.byName[name] = e, name, i
	}
	return found, found.checkOverlaps()
}

func checkEntry(e IndexEntry, table []byte, h Header) error {
	end, carry := bits.Add64(e.DataOffset, e.DiskSize, 0)
	switch {
	case e.NameLength == 0:
		return broken(CodeBadName, "S-NAM-2", "a name is empty")
	case uint64(e.NameOffset)+uint64(e.NameLength) > uint64(len(table)):
		return broken(CodeBadName, "S-NAM-1", "a name is outside the string table")
	case !utf8.Valid(table[e.NameOffset:][:e.NameLength]):
		return broken(CodeBadName, "S-NAM-3", "a name is not valid UTF-8").found("% x", table[e.NameOffset:][:min(e.NameLength, 32)])
	case e.DataOffset < h.DataSectionOffset:
		return broken(CodeBadOffset, "S-DAT-1", "a block starts before the data section").found("%d", e.DataOffset)
	case carry != 0 || end > h.TotalFileSize:
		return broken(CodeBadOffset, "S-DAT-2", "a block ends after the end of the file").found("%d + %d bytes", e.DataOffset, e.DiskSize)
	}
	return nil
}

// checkOverlaps checks S-DAT-3. Most files have their blocks in order, which needs no sorting.
func (x *index) checkOverlaps() error {
	ordered, end := true, uint64(0)
	for i := range x.entries {
		e := &x.entries[i]
		if e.DiskSize == 0 {
			continue
		}
		if e.DataOffset < end {
			ordered = false
			break
		}
		end = e.DataOffset + e.DiskSize
	}
	if ordered {
		return nil
	}
	rows := make([]int, 0, len(x.entries))
	for i := range x.entries {
		if x.entries[i].DiskSize > 0 {
			rows = append(rows, i)
		}
	}
	sort.Slice(rows, func(a, b int) bool { return x.entries[rows[a]].DataOffset < x.entries[rows[b]].DataOffset })
	for i := 1; i < len(rows); i++ {
		before, now := &x.entries[rows[i-1]], &x.entries[rows[i]]
		if now.DataOffset < before.DataOffset+before.DiskSize {
			return broken(CodeOverlap, "S-DAT-3", "the blocks of two entries overlap").
				found("%s", fmt.Sprintf("%.60q and %.60q", x.names[rows[i-1]], x.names[rows[i]]))
		}
	}
	return nil
}
