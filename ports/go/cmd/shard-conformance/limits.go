package main

import (
	"github.com/shard-format/shard/ports/go/shard"
	"github.com/shard-format/shard/ports/go/shardpack"
)

// lowered has the limits that a vector lowers. It has the fields of shard.Limits; those that are 0 are as usual.
type lowered struct {
	MaxEntries           uint64 `json:"max_entries,string"`
	MaxIndexBytes        uint64 `json:"max_index_bytes,string"`
	MaxStringTableBytes  uint64 `json:"max_string_table_bytes,string"`
	MaxDecompressedBytes uint64 `json:"max_decompressed_bytes,string"`
	MaxWindowBytes       uint64 `json:"max_window_bytes,string"`
	MaxJSONBytes         uint64 `json:"max_json_bytes,string"`
	MaxJSONNodes         uint64 `json:"max_json_nodes,string"`
}

func (l lowered) options() shard.Options {
	return shard.Options{Limits: shard.Limits(l)}
}

func (l lowered) packOptions() shardpack.Options {
	return shardpack.Options{Limits: shardpack.Limits{
		MaxIndexBytes: l.MaxIndexBytes, MaxDecompressedBytes: l.MaxDecompressedBytes, MaxWindowBytes: l.MaxWindowBytes,
		MaxJSONBytes: l.MaxJSONBytes, MaxJSONNodes: l.MaxJSONNodes,
	}}
}
