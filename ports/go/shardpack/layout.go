// Package shardpack reads and writes ShardPack files: shards of a dataset, in which each sample is a record with a key,
// metadata and named entries. spec/shardpack.md specifies the format.
//
// A Reader finds records by number and by key. Stream reads a shard from start to end without seeking. A Writer writes
// one shard, a SetWriter a set of them, and Recover saves what is intact of a damaged one.
//
// Errors are *shard.Error, with the code and the rule of the specification.
package shardpack

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/shard-format/shard/ports/go/shard"
)

const (
	version      = 1
	recordMarker = "SPR1"
	indexMarker  = "SPI1"
	footerMagic  = "SHRDPACK"

	blockStartSize = 12
	fixedHeadSize  = 32
	rowSize        = 24
	kindSizes      = 4
	checksumSize   = 4
	smallestRecord = fixedHeadSize + checksumSize
	indexHeadSize  = 32
	footerSize     = 64
	smallestFile   = indexHeadSize + 8 + footerSize

	// checked is the CRC-32C of any bytes that are followed by their own CRC-32C.
	checked = 0x48674BC7
)

// The limits of spec/shardpack.md, section 10, that a caller cannot change.
const (
	longestKey         = 65_536
	longestName        = 65_535
	longestContentType = 255
	mostEntries        = 1 << 20
	largestMetadata    = 16 << 20
	largestHead        = 64 << 20
	mostRecords        = 1<<32 - 1
)

var le = binary.LittleEndian

// MetadataEncoding says how the metadata of a record is stored.
type MetadataEncoding uint8

// The encodings of metadata.
const (
	MetadataNone        MetadataEncoding = 0
	MetadataJSON        MetadataEncoding = 1
	MetadataMessagePack MetadataEncoding = 2
)

func (e MetadataEncoding) String() string {
	switch e {
	case MetadataNone:
		return "none"
	case MetadataJSON:
		return "json"
	case MetadataMessagePack:
		return "messagepack"
	}
	return fmt.Sprintf("unknown (%d)", uint8(e))
}

func validAlignment(alignment uint8) bool { return alignment == 1 || alignment == 8 || alignment == 64 }

// alignUp rounds up to a multiple of an alignment; false if the result would not fit.
func alignUp(position uint64, alignment uint8) (uint64, bool) {
	mask := uint64(alignment) - 1
	sum, carry := bits.Add64(position, mask, 0)
	return sum &^ mask, carry == 0
}

// --- records (sections 2 and 4)

// blockStart is how a record or the index starts.
func blockStart(b []byte) (size uint64, marker string) {
	return le.Uint64(b), string(b[8:blockStartSize])
}

// fixedHead is the part of a record's head that has a fixed size.
type fixedHead struct {
	recordSize       uint64
	marker           string
	version          uint8
	metadataEncoding MetadataEncoding
	alignment        uint8
	flags            uint8
	entryCount       uint32
	kindsSize        uint32
	keySize          uint32
	metadataSize     uint32
}

func unpackFixedHead(b []byte) fixedHead {
	return fixedHead{
		recordSize: le.Uint64(b), marker: string(b[8:12]), version: b[12], metadataEncoding: MetadataEncoding(b[13]),
		alignment: b[14], flags: b[15], entryCount: le.Uint32(b[16:]), kindsSize: le.Uint32(b[20:]),
		keySize: le.Uint32(b[24:]), metadataSize: le.Uint32(b[28:]),
	}
}

func (h fixedHead) append(out []byte) []byte {
	out = le.AppendUint64(out, h.recordSize)
	out = append(out, recordMarker...)
	out = append(out, version, uint8(h.metadataEncoding), h.alignment, h.flags)
	out = le.AppendUint32(out, h.entryCount)
	out = le.AppendUint32(out, h.kindsSize)
	out = le.AppendUint32(out, h.keySize)
	return le.AppendUint32(out, h.metadataSize)
}

func (h fixedHead) kindsAt() uint64    { return fixedHeadSize + rowSize*uint64(h.entryCount) }
func (h fixedHead) keyAt() uint64      { return h.kindsAt() + uint64(h.kindsSize) }
func (h fixedHead) metadataAt() uint64 { return h.keyAt() + uint64(h.keySize) }
func (h fixedHead) headSize() uint64   { return h.metadataAt() + uint64(h.metadataSize) + checksumSize }

// row is what the head says about one entry.
type row struct {
	storedSize, originalSize uint64
	crc32c                   uint32
	encoding                 Encoding
}

func unpackRow(b []byte) row {
	return row{le.Uint64(b), le.Uint64(b[8:]), le.Uint32(b[16:]), Encoding(b[20])}
}

func (r row) append(out []byte) []byte {
	out = le.AppendUint64(out, r.storedSize)
	out = le.AppendUint64(out, r.originalSize)
	out = le.AppendUint32(out, r.crc32c)
	return append(out, uint8(r.encoding), 0, 0, 0)
}

// --- index and footer (sections 7 and 8)

// Footer is the last 64 bytes of a shard, without version and magic.
type Footer struct {
	IndexOffset    uint64
	RecordCount    uint64
	MetadataSize   uint64
	TotalSize      uint64
	OffsetsCRC32C  uint32
	LookupCRC32C   uint32
	MetadataCRC32C uint32
}

// Bytes gives the 64 bytes as they are in the file.
func (f Footer) Bytes() []byte {
	b := make([]byte, 0, footerSize)
	for _, value := range []uint64{f.IndexOffset, f.RecordCount, f.MetadataSize, f.TotalSize} {
		b = le.AppendUint64(b, value)
	}
	for _, value := range []uint32{f.OffsetsCRC32C, f.LookupCRC32C, f.MetadataCRC32C} {
		b = le.AppendUint32(b, value)
	}
	b = append(b, version, 0, 0, 0, 0, 0, 0, 0)
	b = le.AppendUint32(b, shard.ComputeChecksum(b))
	return append(b, footerMagic...)
}

// parseFooter reads the last bytes of a file of this size (P-FTR). start is how the file starts.
func parseFooter(b []byte, fileSize uint64, start []byte) (Footer, error) {
	if fileSize < smallestFile || len(b) < footerSize {
		return Footer{}, mismatch(shard.CodeTruncated, "P-FTR-1", "too short for a shard",
			atLeast(smallestFile), fileSize)
	}
	b = b[len(b)-footerSize:]
	if magic := b[footerSize-len(footerMagic):]; string(magic) != footerMagic {
		return Footer{}, missingMagic(magic, start)
	}
	const checksumAt = footerSize - len(footerMagic) - checksumSize
	if stored, found := le.Uint32(b[checksumAt:]), shard.ComputeChecksum(b[:checksumAt]); stored != found {
		return Footer{}, mismatch(shard.CodeChecksumMismatch, "P-FTR-3", "the footer is damaged", checksumText(stored), checksumText(found))
	}
	if b[44] != version {
		return Footer{}, mismatch(shard.CodeUnsupportedVersion, "P-FTR-4", "unknown version of the format", version, b[44])
	}
	f := Footer{
		le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:]),
		le.Uint32(b[32:]), le.Uint32(b[36:]), le.Uint32(b[40:]),
	}
	if f.TotalSize != fileSize {
		code := shard.CodeTrailingData
		if fileSize < f.TotalSize {
			code = shard.CodeTruncated
		}
		return Footer{}, mismatch(code, "P-FTR-5", "the file does not have the size that its footer states", f.TotalSize, fileSize)
	}
	if !f.addsUp() {
		return Footer{}, broken(shard.CodeBadOffset, "P-FTR-6", "the parts of the index do not fill the space between records and footer")
	}
	return f, nil
}

func missingMagic(found, start []byte) error {
	if len(start) >= blockStartSize {
		if _, marker := blockStart(start); marker == recordMarker || marker == indexMarker {
			return mismatch(shard.CodeTruncated, "P-FTR-2", "the shard has lost its end", footerMagic, fmt.Sprintf("% x", found))
		}
	}
	return mismatch(shard.CodeBadMagic, "P-FTR-2", "not a ShardPack file", footerMagic+" at its end", fmt.Sprintf("% x", found))
}

// addsUp checks P-FTR-6 without wrapping.
func (f Footer) addsUp() bool {
	high, perRecord := bits.Mul64(f.RecordCount, 8+12)
	sum, carries := f.IndexOffset, high
	for _, part := range []uint64{perRecord, smallestFile, f.MetadataSize} {
		var carry uint64
		sum, carry = bits.Add64(sum, part, 0)
		carries += carry
	}
	return carries == 0 && sum == f.TotalSize
}

// The places of the parts of the index, from its start.
func (f Footer) indexSize() uint64  { return f.TotalSize - f.IndexOffset }
func (f Footer) hashesAt() uint64   { return indexHeadSize + 8*(f.RecordCount+1) }
func (f Footer) numbersAt() uint64  { return f.hashesAt() + 8*f.RecordCount }
func (f Footer) metadataAt() uint64 { return f.numbersAt() + 4*f.RecordCount }

// indexHead is how the index of a shard with this footer starts.
func (f Footer) indexHead() []byte {
	b := le.AppendUint64(make([]byte, 0, indexHeadSize), f.indexSize())
	b = append(b, indexMarker...)
	b = append(b, version, 0, 0, 0)
	b = le.AppendUint64(b, f.RecordCount)
	return le.AppendUint64(b, f.MetadataSize)
}

// statedSize is the size of the file that a footer states.
func statedSize(footer []byte) uint64 { return le.Uint64(footer[24:]) }
