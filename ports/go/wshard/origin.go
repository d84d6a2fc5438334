package wshard

import "github.com/shard-format/shard/ports/go/shard"

// origin is the file that an episode was opened from.
type origin struct {
	reader *shard.ShardReader
	rows   map[string]*row
}
