package wshard

import (
	"bytes"
	"encoding/binary"
	"sort"

	"github.com/shard-format/shard/ports/go/shard"
)

// Block is stored bytes that are read when they are asked for. Goroutines may share one.
type Block interface {
	// Size is the number of bytes.
	Size() int64
	// ReadRange gives the bytes from start to end, checked as far as the source allows.
	ReadRange(start, end int64) ([]byte, error)
}

func readBlock(b Block) ([]byte, error) { return b.ReadRange(0, b.Size()) }

// memoryBlock is a block that is in memory.
type memoryBlock []byte

func (b memoryBlock) Size() int64 { return int64(len(b)) }

func (b memoryBlock) ReadRange(start, end int64) ([]byte, error) {
	if start < 0 || start > end || end > int64(len(b)) {
		return nil, invalid("the range is outside the block")
	}
	return b[start:end:end], nil
}

// entryBlock is an entry of a file.
type entryBlock struct {
	reader *shard.ShardReader
	name   string
	size   int64
}

// newEntryBlock is an entry that the file has. Its size is what the index claims.
func newEntryBlock(reader *shard.ShardReader, name string) *entryBlock {
	return &entryBlock{reader, name, int64(min(reader.EntryAt(reader.Lookup(name)).OrigSize, 1<<62))}
}

func (b *entryBlock) Size() int64 { return b.size }

func (b *entryBlock) ReadRange(start, end int64) ([]byte, error) {
	if start == 0 && end == b.size { // the checksum covers the whole
		return b.reader.ReadEntry(b.name)
	}
	return b.reader.ReadRange(b.name, uint64(max(start, 0)), uint64(max(end, 0)))
}

// brokenBlock stands for a block that cannot be read; reading it says why.
type brokenBlock struct{ err error }

func (b brokenBlock) Size() int64 { return 0 }

func (b brokenBlock) ReadRange(int64, int64) ([]byte, error) { return nil, b.err }

// partBlock is a range of another block.
type partBlock struct {
	whole      Block
	start, end int64
}

func (b partBlock) Size() int64 { return b.end - b.start }

func (b partBlock) ReadRange(start, end int64) ([]byte, error) {
	if start < 0 || start > end || end > b.Size() {
		return nil, invalid("the range is outside the block")
	}
	return b.whole.ReadRange(b.start+start, b.start+end)
}

// joinedBlock is several blocks one after another.
type joinedBlock struct {
	parts []Block
	// starts has where each part starts, and the end of the last one.
	starts []int64
}

func joinBlocks(parts []Block) *joinedBlock {
	joined := &joinedBlock{parts, make([]int64, len(parts)+1)}
	for i, part := range parts {
		joined.starts[i+1] = joined.starts[i] + part.Size()
	}
	return joined
}

func (b *joinedBlock) Size() int64 { return b.starts[len(b.parts)] }

func (b *joinedBlock) ReadRange(start, end int64) ([]byte, error) {
	if start < 0 || start > end || end > b.Size() {
		return nil, invalid("the range is outside the block")
	}
	// All parts are read before memory is made for the whole: a size is what a file claims.
	var read [][]byte
	first := sort.Search(len(b.parts), func(i int) bool { return b.starts[i+1] > start })
	for i := first; i < len(b.parts) && b.starts[i] < end; i++ {
		from, to := max(start, b.starts[i]), min(end, b.starts[i+1])
		if from == to {
			continue
		}
		data, err := b.parts[i].ReadRange(from-b.starts[i], to-b.starts[i])
		if err != nil {
			return nil, err
		}
		read = append(read, data)
	}
	if len(read) == 1 {
		return read[0], nil
	}
	return bytes.Join(read, nil), nil
}

// --- integers in blocks

func readInt64s(b Block) ([]int64, error) {
	data, err := readBlock(b)
	if err != nil {
		return nil, err
	}
	values := make([]int64, len(data)/8)
	for i := range values {
		values[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
	}
	return values, nil
}

func int64Block(values []int64) memoryBlock {
	data := make([]byte, 0, 8*len(values))
	for _, value := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(value))
	}
	return data
}

func int32Block(values []int32) memoryBlock {
	data := make([]byte, 0, 4*len(values))
	for _, value := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(value))
	}
	return data
}
