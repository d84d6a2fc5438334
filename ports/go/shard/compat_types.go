package shard

// Names of the package that came before this one: constants, headers and paths.

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// ShardRole is Role.
type ShardRole = Role

// Other names of the roles.
const (
	ShardRoleUnknown   = RoleUnknown
	ShardRoleMoSH      = RoleModelWeights
	ShardRoleSample    = RoleSamples
	ShardRoleGemmPanel = RoleGemmPanels
	ShardRoleManifest  = RoleManifest
	ShardRoleWShard    = RoleWSHARD
	ShardRoleUMSH      = RoleModelVariant
	ShardRoleColumn    = RoleColumns
)

// Alignments.
const (
	AlignNone uint8 = 0
	Align16   uint8 = 16
	Align32   uint8 = 32
	Align64   uint8 = 64
)

// Numbers of the codecs, for uint8 as well as for Codec.
const (
	CompressNone = 0
	CompressZstd = 1
	CompressLZ4  = 2
)

// Other names of content types.
const (
	ContentTypeTensor         = ContentTypeTensorV1
	ContentTypeGLYPH          = ContentTypeGlyph
	ContentTypeProto          = ContentTypeProtobuf
	ContentTypeAnchorShared   = ContentTypeSharedAnchor
	ContentTypeCodebookShared = ContentTypeSharedCodebook
	ContentTypeColumn         = ContentTypeColumnChunk
	// ContentTypeUserBase is the first that is yours.
	ContentTypeUserBase uint16 = 0x8000
)

// ShardFlags are flags of a header.
type ShardFlags uint16

// Flags of headers and entries, and default limits.
const (
	ShardFlagHasSchema       ShardFlags = flagSchema
	ShardFlagHasChecksums    ShardFlags = flagChecksums
	ShardFlagStreaming       ShardFlags = flagReservedHead
	ShardFlagHasContentTypes ShardFlags = flagContentTypes

	EntryFlagCompressed uint16 = entryCompressed
	EntryFlagZstd       uint16 = entryZstd
	EntryFlagLZ4        uint16 = entryLZ4
	EntryFlagChunked    uint16 = 0x0008

	MaxIndexSize       = defaultMaxIndexBytes
	MaxStringTableSize = defaultMaxStringTableBytes
	MaxEntryCount      = defaultMaxEntries
	MaxDecompressSize  = defaultMaxDecompressedBytes

	ShardHeaderSize     = headerSize
	ShardIndexEntrySize = indexEntrySize
	PathSeparator       = "/"
)

// Other names of sentinels.
var (
	ErrHeaderTooShort   = ErrTruncated
	ErrIndexCorrupt     = ErrShardIndexCorrupt
	ErrInvalidAlignment = ErrInvalidArgument
)

// --- headers and index entries

// ShardHeader is Header.
type ShardHeader = Header

// NewShardHeader gives the header of an empty file of a role.
func NewShardHeader(role Role) *Header {
	return &Header{
		Version: version, Role: role, Flags: flagLittleEndian | flagChecksums, Alignment: Align64, IndexEntrySize: indexEntrySize,
		StringTableOffset: headerSize, DataSectionOffset: headerSize, TotalFileSize: headerSize,
	}
}

// WriteShardHeader writes the 64 bytes of a header.
func WriteShardHeader(w io.Writer, h *Header) error {
	_, err := w.Write(h.pack())
	return err
}

// ReadShardHeader reads the 64 bytes of a header. It checks the magic and the version, and nothing else; OpenShard checks all.
func ReadShardHeader(r io.Reader) (*Header, error) {
	b := make([]byte, headerSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, shortRead("the header is incomplete", err)
	}
	if string(b[:len(magic)]) != magic {
		return nil, broken(CodeBadMagic, "S-HDR-2", "not a Shard file").found("% x", b[:len(magic)])
	}
	h := unpackHeader(b)
	if h.Version != version {
		return nil, broken(CodeUnsupportedVersion, "S-HDR-3", "unknown version of the format").expected("%d", version).found("%d", h.Version)
	}
	return &h, nil
}

func shortRead(problem string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return broken(CodeTruncated, "", problem)
	}
	return ioError("cannot read", "", err)
}

// WriteIndexEntry writes the 48 bytes of an index entry.
func WriteIndexEntry(w io.Writer, e *IndexEntry) error {
	b := make([]byte, indexEntrySize)
	e.pack(b)
	_, err := w.Write(b)
	return err
}

// ReadIndexEntry reads the 48 bytes of an index entry.
func ReadIndexEntry(r io.Reader) (*IndexEntry, error) {
	b := make([]byte, indexEntrySize)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, shortRead("the index entry is incomplete", err)
	}
	return ParseIndexEntry(b), nil
}

// ParseIndexEntry gives the fields of an index entry; nil if there are fewer than 48 bytes.
func ParseIndexEntry(b []byte) *IndexEntry {
	if len(b) < indexEntrySize {
		return nil
	}
	e := unpackEntry(b)
	return &e
}

// IsCompressed reports whether the entry is stored compressed.
func (e *IndexEntry) IsCompressed() bool { return e.Flags&entryCompressed != 0 }

// CompressionType is the codec that the flags of the entry name, or CompressNone. Info also knows the default of the file.
func (e *IndexEntry) CompressionType() uint8 {
	switch {
	case e.Flags&entryLZ4 != 0:
		return CompressLZ4
	case e.Flags&entryZstd != 0:
		return CompressZstd
	}
	return CompressNone
}

// IsChunked reports whether the reserved flag 8 is set, which has no meaning.
func (e *IndexEntry) IsChunked() bool { return e.Flags&EntryFlagChunked != 0 }

// HasTagBit reports whether one of the bits 0 to 15 is set.
func (e *IndexEntry) HasTagBit(bit int) bool {
	return bit >= 0 && bit < 16 && e.TagBits&(1<<bit) != 0
}

// SetTagBit sets one of the bits 0 to 15.
func (e *IndexEntry) SetTagBit(bit int) {
	if bit >= 0 && bit < 16 {
		e.TagBits |= 1 << bit
	}
}

// ContentTypeName is a short name of a content type.
func ContentTypeName(contentType uint16) string {
	names := [...]string{
		"unknown", "tensor", "json", "cowrie", "glyph", "text", "image", "audio", "video", "proto", "blob", "qmln", "tensor_v3",
		"anchor_shared", "delta_expert", "codebook_shared", "expert_indices", "column",
	}
	switch {
	case int(contentType) < len(names):
		return names[contentType]
	case contentType >= ContentTypeUserBase:
		return fmt.Sprintf("user:%d", contentType-ContentTypeUserBase)
	}
	return "unknown"
}

// --- names with slashes

// SplitPath gives the parts of a name.
func SplitPath(name string) []string {
	if name == "" {
		return nil
	}
	return strings.Split(name, PathSeparator)
}

// JoinPath makes a name of parts.
func JoinPath(parts ...string) string { return strings.Join(parts, PathSeparator) }

// PathPrefix reports whether a name is the prefix or below it.
func PathPrefix(name, prefix string) bool {
	folder := strings.TrimSuffix(prefix, PathSeparator)
	return folder == "" || name == folder || strings.HasPrefix(name, folder+PathSeparator)
}

// PathParent is the name without its last part.
func PathParent(name string) string {
	return name[:max(strings.LastIndex(name, PathSeparator), 0)]
}

// PathBase is the last part of a name.
func PathBase(name string) string { return name[strings.LastIndex(name, PathSeparator)+1:] }
