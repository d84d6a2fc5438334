// Package compat has the names with V2 of an earlier package, whose readers take the number of an entry. A program that
// uses them changes one line:
//
//	import shard "github.com/shard-format/shard/ports/go/shard/compat"
//
// New programs use package shard.
package compat

import "github.com/shard-format/shard/ports/go/shard"

// The types under their old names.
type (
	ShardRole     = shard.Role
	ShardV2Writer = shard.ShardWriter
	IndexEntry    = shard.IndexEntry
	ShardMetadata = shard.ShardMetadata
	EntryMeta     = shard.EntryMeta
)

// The roles, alignments, codecs and content types under their old names.
const (
	ShardRoleUnknown   = shard.ShardRoleUnknown
	ShardRoleMoSH      = shard.ShardRoleMoSH
	ShardRoleSample    = shard.ShardRoleSample
	ShardRoleGemmPanel = shard.ShardRoleGemmPanel
	ShardRoleManifest  = shard.ShardRoleManifest
	ShardRoleWShard    = shard.ShardRoleWShard
	ShardRoleUMSH      = shard.ShardRoleUMSH
	ShardRoleColumn    = shard.ShardRoleColumn

	AlignNone = shard.AlignNone
	Align16   = shard.Align16
	Align32   = shard.Align32
	Align64   = shard.Align64

	CompressNone = shard.CompressNone
	CompressZstd = shard.CompressZstd
	CompressLZ4  = shard.CompressLZ4

	ContentTypeUnknown = shard.ContentTypeUnknown
	ContentTypeTensor  = shard.ContentTypeTensor
	ContentTypeJSON    = shard.ContentTypeJSON
	ContentTypeText    = shard.ContentTypeText
	ContentTypeBlob    = shard.ContentTypeBlob
	ContentTypeColumn  = shard.ContentTypeColumn
)

// The sentinels under their old names.
var (
	ErrInvalidShardMagic  = shard.ErrInvalidShardMagic
	ErrUnsupportedVersion = shard.ErrUnsupportedVersion
	ErrEntryNotFound      = shard.ErrEntryNotFound
	ErrShardClosed        = shard.ErrShardClosed
	ErrChecksumMismatch   = shard.ErrChecksumMismatch
)

// NewShardV2Writer starts a file of a role; Close finishes it.
func NewShardV2Writer(path string, role ShardRole) (*ShardV2Writer, error) {
	return shard.NewShardWriter(path, role)
}

// NewShardMetadata gives metadata of the known version.
func NewShardMetadata() *ShardMetadata { return shard.NewShardMetadata() }

// ShardV2Reader is a reader whose ReadEntry takes the number of an entry. All other methods are those of shard.ShardReader.
type ShardV2Reader struct{ *shard.ShardReader }

// OpenShardV2 opens a file. Close it.
func OpenShardV2(path string) (*ShardV2Reader, error) {
	r, err := shard.OpenShard(path)
	if err != nil {
		return nil, err
	}
	return &ShardV2Reader{r}, nil
}

// ReadEntry gives all bytes of the entry with a number, decompressed and checked.
func (r *ShardV2Reader) ReadEntry(i int) ([]byte, error) { return r.ReadEntryAt(i) }
