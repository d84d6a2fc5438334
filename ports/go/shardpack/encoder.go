package shardpack

import (
	"strings"
	"unicode/utf8"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// encodedRecord is a record that can be written to any shard of the same alignment.
type encodedRecord struct {
	key   string
	kinds *kinds
	head  []byte
	// contents are the stored bytes of the entries; they follow the head, each aligned.
	contents [][]byte
	size     uint64
}

// storedEntry is an entry in the form in which it is written.
type storedEntry struct {
	row               row
	name, contentType string
	data              []byte
}

// encoder turns samples into records.
type encoder struct {
	alignment uint8
	encoding  Encoding
	level     int
	kinds     kindsCache
}

// sample encodes what a caller gives. All that can be wrong with it is found here, before anything is written.
func (c *encoder) sample(s Sample) (*encodedRecord, error) {
	entries := make([]storedEntry, len(s.Entries))
	for i, given := range s.Entries {
		contentType := given.ContentType
		if contentType == "" && !given.Untyped {
			contentType = ContentTypeOf(given.Name)
		}
		encoding := c.encoding
		if !isCompressible(contentType) {
			encoding = EncodingNone
		}
		stored, encoding, err := encode(given.Data, encoding, c.level)
		if err != nil {
			return nil, err
		}
		entries[i] = storedEntry{
			row{uint64(len(stored)), uint64(len(given.Data)), shard.ComputeChecksum(stored), encoding},
			given.Name, contentType, stored,
		}
	}
	if len(s.Metadata) == 0 {
		return c.assemble(s.Key, entries, MetadataNone, nil)
	}
	text, err := shard.CanonicalJSON(s.Metadata)
	if err == nil {
		_, err = parseObject(text, "the metadata", "P-MTD-2", limitsOf(nil)) // what cannot be read is not written
	}
	if err != nil {
		e := invalid("P-MTD-2", "the metadata of the sample cannot be stored")
		e.Err = err
		return nil, inRecord(e, s.Key)
	}
	return c.assemble(s.Key, entries, MetadataJSON, text)
}

// stored encodes a record of another shard without decoding its entries, which are checked.
func (c *encoder) stored(r *Record) (*encodedRecord, error) {
	if err := checkKey(r.key()); err != nil {
		return nil, err
	}
	if err := r.checkNoMetadata(); err != nil {
		return nil, r.failed(err, "")
	}
	entries := make([]storedEntry, 0, r.Len())
	for e := range r.Entries() {
		data, err := e.Stored()
		if err != nil {
			return nil, err
		}
		entries = append(entries, storedEntry{r.row(e.number), e.Name(), e.ContentType(), data})
	}
	encoding, metadata := r.StoredMetadata()
	return c.assemble(r.Key(), entries, encoding, metadata)
}

// assemble puts a record together.
func (c *encoder) assemble(key string, entries []storedEntry, encoding MetadataEncoding, metadata []byte) (*encodedRecord, error) {
	if key == "" || len(key) > longestKey || strings.IndexByte(key, 0) >= 0 || !utf8.ValidString(key) {
		return nil, inRecord(invalid("P-REC-5", "the key cannot be stored: 1 to %d bytes of UTF-8 without U+0000", longestKey), key)
	}
	if s := string(metadata); s == "{}" || s == "\x80" { // reads the same as none, and a record has one form
		encoding, metadata = MetadataNone, nil
	}
	k, err := c.encodeKinds(entries)
	if err != nil {
		return nil, inRecord(err, key)
	}
	h := fixedHead{
		metadataEncoding: encoding, alignment: c.alignment, entryCount: uint32(len(entries)), kindsSize: uint32(len(k.stored)),
		keySize: uint32(len(key)), metadataSize: uint32(len(metadata)),
	}
	if len(metadata) > largestMetadata || h.headSize() > largestHead {
		return nil, inRecord(mismatch(shard.CodeLimitExceeded, "P-REC-6", "the metadata or the head of the record is too large",
			"at most 16 and 64 MiB", h.headSize()), key)
	}
	out := &encodedRecord{key: key, kinds: k, contents: make([][]byte, len(entries))}
	end := h.headSize()
	for i, entry := range entries {
		out.contents[i] = entry.data
		end = shard.AlignUp(end, c.alignment) + uint64(len(entry.data))
	}
	out.size = shard.AlignUp(end, c.alignment)
	h.recordSize = out.size
	head := h.append(make([]byte, 0, h.headSize()))
	for _, entry := range entries {
		head = entry.row.append(head)
	}
	head = append(append(append(head, k.stored...), key...), metadata...)
	out.head = le.AppendUint32(head, shard.ComputeChecksum(head))
	return out, nil
}

// encodeKinds checks names and content types as a reader does.
func (c *encoder) encodeKinds(entries []storedEntry) (*kinds, error) {
	if len(entries) > mostEntries {
		return nil, invalid("P-REC-6", "a record has at most %d entries", mostEntries)
	}
	var stored []byte
	for _, entry := range entries {
		if len(entry.name) > longestName || len(entry.contentType) > longestContentType {
			e := invalid("P-KND-2", "the name or the content type of an entry is too long")
			e.Entry = entry.name
			return nil, e
		}
		stored = appendKind(stored, entry.name, entry.contentType)
		if len(stored) > largestHead {
			return nil, mismatch(shard.CodeLimitExceeded, "P-REC-6", "the names of the entries are too long", atMost(largestHead), atLeast(uint64(len(stored))))
		}
	}
	k, err := c.kinds.parse(stored, len(entries))
	if err != nil {
		refused := fault.Located(err, "", "").(*shard.Error)
		refused.Code = shard.CodeInvalidArgument
		return nil, refused
	}
	return k, nil
}

// pieces gives the bytes of a record one after the other, with the padding between them (P-REC-9).
func (r *encodedRecord) pieces(alignment uint8, write func([]byte) error) error {
	var zeros [64]byte
	position := uint64(0)
	for _, piece := range append([][]byte{r.head}, r.contents...) {
		if start := shard.AlignUp(position, alignment); start > position {
			if err := write(zeros[:start-position]); err != nil {
				return err
			}
			position = start
		}
		if err := write(piece); err != nil {
			return err
		}
		position += uint64(len(piece))
	}
	return write(zeros[:r.size-position])
}

// --- content types

// ContentTypeOf gives the content type for the ending of a name; a name without a dot is an ending itself.
func ContentTypeOf(name string) string {
	ending := []byte(name[strings.LastIndexByte(name, '.')+1:])
	for i, c := range ending {
		if c >= 'A' && c <= 'Z' {
			ending[i] = c + 'a' - 'A'
		}
	}
	if found, known := contentTypes[string(ending)]; known {
		return found
	}
	return "application/octet-stream"
}

// isCompressible is false for contents that are compressed already.
func isCompressible(contentType string) bool {
	if plainTypes[contentType] {
		return true
	}
	for _, family := range []string{"image/", "video/", "audio/"} {
		if strings.HasPrefix(contentType, family) {
			return false
		}
	}
	return !compressed[contentType]
}
