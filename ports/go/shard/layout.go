package shard

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/cespare/xxhash/v2"
)

const (
	magic          = "SHRD"
	version        = 2
	headerSize     = 64
	indexEntrySize = 48
	roomForName    = 64
	identityEntry  = "meta/identity"
	manifestEntry  = "meta/manifest"
	episodeEntry   = "meta/episode"
)

// Header flags.
const (
	flagLittleEndian = 0x0002
	flagBigEndian    = 0x0004
	flagSchema       = 0x0010
	flagChecksums    = 0x0020
	flagReservedHead = 0x0040
	flagContentTypes = 0x0080
	knownFlags       = 0x00F7
)

// Entry flags.
const (
	entryCompressed = 0x0001
	entryZstd       = 0x0002
	entryLZ4        = 0x0004
	entryFiltered   = 0x0010
	knownEntryFlags = 0x0017
)

// Codec says how the bytes of an entry are stored.
type Codec uint8

// The codecs.
const (
	CodecNone Codec = 0
	CodecZstd Codec = 1
	CodecLZ4  Codec = 2
)

func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecZstd:
		return "zstd"
	case CodecLZ4:
		return "lz4"
	}
	return "unknown"
}

func (c Codec) flags() uint16 {
	switch c {
	case CodecZstd:
		return entryCompressed | entryZstd
	case CodecLZ4:
		return entryCompressed | entryLZ4
	}
	return 0
}

// Header is the first 64 bytes of a file, without the magic and the reserved bytes.
type Header struct {
	Version            uint8
	Role               Role
	Flags              uint16
	Alignment          uint8
	CompressionDefault Codec
	IndexEntrySize     uint16
	EntryCount         uint32
	StringTableOffset  uint64
	DataSectionOffset  uint64
	SchemaOffset       uint64
	TotalFileSize      uint64
}

func unpackHeader(b []byte) Header {
	le := binary.LittleEndian
	return Header{
		Version:            b[4],
		Role:               Role(b[5]),
		Flags:              le.Uint16(b[6:]),
		Alignment:          b[8],
		CompressionDefault: Codec(b[9]),
		IndexEntrySize:     le.Uint16(b[10:]),
		EntryCount:         le.Uint32(b[12:]),
		StringTableOffset:  le.Uint64(b[16:]),
		DataSectionOffset:  le.Uint64(b[24:]),
		SchemaOffset:       le.Uint64(b[32:]),
		TotalFileSize:      le.Uint64(b[40:]),
	}
}

func (h Header) pack() []byte {
	b := make([]byte, headerSize)
	le := binary.LittleEndian
	copy(b, magic)
	b[4], b[5], b[8], b[9] = h.Version, uint8(h.Role), h.Alignment, uint8(h.CompressionDefault)
	le.PutUint16(b[6:], h.Flags)
	le.PutUint16(b[10:], h.IndexEntrySize)
	le.PutUint32(b[12:], h.EntryCount)
	le.PutUint64(b[16:], h.StringTableOffset)
	le.PutUint64(b[24:], h.DataSectionOffset)
	le.PutUint64(b[32:], h.SchemaOffset)
	le.PutUint64(b[40:], h.TotalFileSize)
	return b
}

// IndexEntry is one row of the index, as stored.
type IndexEntry struct {
	NameHash    uint64
	NameOffset  uint32
	NameLength  uint16
	Flags       uint16
	DataOffset  uint64
	DiskSize    uint64
	OrigSize    uint64
	CRC32C      uint32
	ContentType uint16
	TagBits     uint16
}

func unpackEntry(b []byte) IndexEntry {
	le := binary.LittleEndian
	return IndexEntry{
		NameHash:    le.Uint64(b),
		NameOffset:  le.Uint32(b[8:]),
		NameLength:  le.Uint16(b[12:]),
		Flags:       le.Uint16(b[14:]),
		DataOffset:  le.Uint64(b[16:]),
		DiskSize:    le.Uint64(b[24:]),
		OrigSize:    le.Uint64(b[32:]),
		CRC32C:      le.Uint32(b[40:]),
		ContentType: le.Uint16(b[44:]),
		TagBits:     le.Uint16(b[46:]),
	}
}

// namePlace is the place of the name of a row in the string table.
func namePlace(b []byte) (offset uint32, length uint16) {
	return binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint16(b[12:])
}

// blockPlace is the place of the block of a row in the file.
func blockPlace(b []byte) (offset, size uint64) {
	return binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
}

func (e *IndexEntry) pack(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, e.NameHash)
	le.PutUint32(b[8:], e.NameOffset)
	le.PutUint16(b[12:], e.NameLength)
	le.PutUint16(b[14:], e.Flags)
	le.PutUint64(b[16:], e.DataOffset)
	le.PutUint64(b[24:], e.DiskSize)
	le.PutUint64(b[32:], e.OrigSize)
	le.PutUint32(b[40:], e.CRC32C)
	le.PutUint16(b[44:], e.ContentType)
	le.PutUint16(b[46:], e.TagBits)
}

// AlignUp rounds an offset up to a multiple of the alignment; 0 does not round.
func AlignUp(offset uint64, alignment uint8) uint64 {
	if alignment == 0 {
		return offset
	}
	a := uint64(alignment)
	return (offset + a - 1) / a * a
}

func validAlignment(alignment uint8) bool {
	return alignment == 0 || alignment == 16 || alignment == 32 || alignment == 64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ComputeChecksum is the CRC-32C of the bytes.
func ComputeChecksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// UpdateChecksum is the CRC-32C of some bytes and those that follow them, from the checksum of the first.
func UpdateChecksum(checksum uint32, data []byte) uint32 {
	return crc32.Update(checksum, castagnoli, data)
}

func hashName(name string) uint64 { return xxhash.Sum64String(name) }

// Limits is what a file may ask for. The zero value of a field is the default of spec/shard.md, section 14.
type Limits struct {
	MaxEntries           uint64
	MaxIndexBytes        uint64
	MaxStringTableBytes  uint64
	MaxDecompressedBytes uint64
	MaxWindowBytes       uint64
	MaxJSONBytes         uint64
	MaxJSONNodes         uint64
}

func (l Limits) withDefaults() Limits {
	for _, one := range []struct {
		value *uint64
		usual uint64
	}{
		{&l.MaxEntries, defaultMaxEntries},
		{&l.MaxIndexBytes, defaultMaxIndexBytes},
		{&l.MaxStringTableBytes, defaultMaxStringTableBytes},
		{&l.MaxDecompressedBytes, defaultMaxDecompressedBytes},
		{&l.MaxWindowBytes, defaultMaxWindowBytes},
		{&l.MaxJSONBytes, defaultMaxJSONBytes},
		{&l.MaxJSONNodes, defaultMaxJSONNodes},
	} {
		if *one.value == 0 {
			*one.value = one.usual
		}
	}
	return l
}
