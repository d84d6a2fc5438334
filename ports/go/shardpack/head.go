package shardpack

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/shard"
)

// parseFixedHead reads the fixed part of the head of a record of this size, and checks its rules (P-REC-1 to P-REC-7).
func parseFixedHead(b []byte, size uint64) (fixedHead, error) {
	if size < smallestRecord || len(b) < fixedHeadSize {
		return fixedHead{}, mismatch(shard.CodeBadOffset, "P-REC-1", "a record is smaller than its head", atLeast(smallestRecord), size)
	}
	h := unpackFixedHead(b)
	switch {
	case h.marker != recordMarker:
		return h, mismatch(shard.CodeBadMagic, "P-REC-2", "no record starts here", recordMarker, fmt.Sprintf("%q", h.marker))
	case h.version != version:
		return h, mismatch(shard.CodeUnsupportedVersion, "P-REC-3", "unknown version of the format", version, h.version)
	case h.metadataEncoding > MetadataMessagePack || !validAlignment(h.alignment) || h.flags != 0:
		return h, mismatch(shard.CodeBadHeader, "P-REC-4", "metadata encoding, alignment or flags of a record are not allowed",
			"0 to 2; 1, 8 or 64; 0", fmt.Sprintf("%d; %d; %d", h.metadataEncoding, h.alignment, h.flags))
	case h.keySize == 0:
		return h, broken(shard.CodeBadName, "P-REC-5", "a record has no key")
	}
	for _, one := range []struct {
		what        string
		value, most uint64
		rule        string
	}{
		{"the key of a record is too long", uint64(h.keySize), longestKey, "P-REC-5"},
		{"a record has too many entries", uint64(h.entryCount), mostEntries, "P-REC-6"},
		{"the metadata of a record is too large", uint64(h.metadataSize), largestMetadata, "P-REC-6"},
		{"the head of a record is too large", h.headSize(), largestHead, "P-REC-6"},
	} {
		if one.value > one.most {
			return h, mismatch(shard.CodeLimitExceeded, one.rule, one.what, atMost(one.most), one.value)
		}
	}
	if h.recordSize != size {
		return h, mismatch(shard.CodeSizeMismatch, "P-REC-7", "the size of a record does not match its place in the shard", size, h.recordSize)
	}
	if h.headSize() > size {
		return h, mismatch(shard.CodeBadOffset, "P-REC-7", "the head of a record is larger than the record", atMost(size), h.headSize())
	}
	return h, nil
}

// checkHead checks the checksum of a whole head (P-REC-8).
func checkHead(head []byte) error {
	if shard.ComputeChecksum(head) == checked {
		return nil
	}
	end := len(head) - checksumSize
	return mismatch(shard.CodeChecksumMismatch, "P-REC-8", "the head of a record is damaged",
		checksumText(le.Uint32(head[end:])), checksumText(shard.ComputeChecksum(head[:end])))
}

// checkKey checks P-REC-5 but for the size.
func checkKey(key []byte) error {
	if bytes.IndexByte(key, 0) >= 0 || !utf8.Valid(key) {
		return mismatch(shard.CodeBadName, "P-REC-5", "the key of a record cannot be read", "UTF-8 without U+0000", fmt.Sprintf("%.80q", key))
	}
	return nil
}

// --- names and content types (section 3)

// kinds has the names and content types of the entries of a record. Most records of a shard share theirs.
type kinds struct {
	stored       []byte
	names        []string
	contentTypes []string
	byName       map[string]int
}

// kindsCache remembers what the last record had.
type kindsCache struct{ last atomic.Pointer[kinds] }

func (c *kindsCache) parse(stored []byte, count int) (*kinds, error) {
	if last := c.last.Load(); last != nil && len(last.names) == count && bytes.Equal(last.stored, stored) {
		return last, nil
	}
	k, err := parseKinds(stored, count)
	if err == nil {
		c.last.Store(k)
	}
	return k, err
}

// parseKinds checks every rule of names and content types (P-KND).
func parseKinds(stored []byte, count int) (*kinds, error) {
	wrongSize := func() error {
		return mismatch(shard.CodeSizeMismatch, "P-KND-1", "names and content types do not fill their area",
			fmt.Sprintf("%d entries", count), fmt.Sprintf("%d bytes", len(stored)))
	}
	if len(stored)/kindSizes < count {
		return nil, wrongSize()
	}
	stored = bytes.Clone(stored) // the block that it is part of may be large
	k := &kinds{
		stored: stored, names: make([]string, 0, count), contentTypes: make([]string, 0, count),
		byName: make(map[string]int, count),
	}
	text := string(stored) // of which names and types are parts
	at := 0
	for i := range count {
		if len(stored)-at < kindSizes {
			return nil, wrongSize()
		}
		nameSize, typeSize := int(le.Uint16(stored[at:])), int(le.Uint16(stored[at+2:]))
		at += kindSizes
		if len(stored)-at < nameSize+typeSize {
			return nil, wrongSize()
		}
		name, contentType := text[at:at+nameSize], text[at+nameSize:at+nameSize+typeSize]
		at += nameSize + typeSize
		if !isName(name) {
			return nil, mismatch(shard.CodeBadName, "P-KND-2", "the name of an entry cannot be read",
				"UTF-8 without U+0000, not empty", fmt.Sprintf("%.80q", name))
		}
		if !isContentType(contentType) {
			e := mismatch(shard.CodeBadHeader, "P-KND-3", "a content type cannot be read",
				"at most 255 printable ASCII characters", fmt.Sprintf("%.80q", contentType))
			e.Entry = name
			return nil, e
		}
		if _, there := k.byName[name]; there {
			e := broken(shard.CodeDuplicateName, "P-KND-4", "a record has two entries of this name")
			e.Entry = name
			return nil, e
		}
		k.byName[name] = i
		k.names, k.contentTypes = append(k.names, name), append(k.contentTypes, contentType)
	}
	if at != len(stored) {
		return nil, wrongSize()
	}
	return k, nil
}

func isName(name string) bool {
	return name != "" && strings.IndexByte(name, 0) < 0 && utf8.ValidString(name)
}

func isContentType(text string) bool {
	if len(text) > longestContentType {
		return false
	}
	for i := range len(text) {
		if text[i] < 0x20 || text[i] > 0x7E {
			return false
		}
	}
	return true
}

func appendKind(out []byte, name, contentType string) []byte {
	out = le.AppendUint16(out, uint16(len(name)))
	out = le.AppendUint16(out, uint16(len(contentType)))
	out = append(out, name...)
	return append(out, contentType...)
}
