package shardpack

import (
	"bytes"
	"fmt"
	"iter"
	"sort"
	"sync"

	"github.com/shard-format/shard/ports/go/shard"
)

// index is the index of an open shard. Each part is checked once, before it is first used.
type index struct {
	footer Footer
	// data is the index from its first byte on.
	data         []byte
	limits       Limits
	checkOffsets func() error
	checkLookup  func() error
}

// checkIndexSize refuses an index above the limits before it is read (P-IDX-1).
func checkIndexSize(f Footer, limits Limits) error {
	if f.RecordCount > mostRecords {
		return mismatch(shard.CodeLimitExceeded, "P-IDX-1", "the shard has too many records", atMost(mostRecords), f.RecordCount)
	}
	if f.indexSize() > limits.MaxIndexBytes {
		return mismatch(shard.CodeLimitExceeded, "P-IDX-1", "the index is too large", atMost(limits.MaxIndexBytes), f.indexSize())
	}
	return nil
}

// newIndex checks that the index starts as the footer says (P-IDX-2).
func newIndex(data []byte, f Footer, limits Limits) (*index, error) {
	if head := f.indexHead(); !bytes.Equal(data[:indexHeadSize], head) {
		return nil, mismatch(shard.CodeSizeMismatch, "P-IDX-2", "the head of the index contradicts the footer",
			fmt.Sprintf("% x", head), fmt.Sprintf("% x", data[:indexHeadSize]))
	}
	x := &index{footer: f, data: data, limits: limits}
	x.checkOffsets = sync.OnceValue(x.findBadOffset)
	x.checkLookup = sync.OnceValue(x.findBadHash)
	return x, nil
}

func (x *index) part(start, end uint64, checksum uint32, what, rule string) ([]byte, error) {
	part := x.data[start:end]
	if found := shard.ComputeChecksum(part); found != checksum {
		return nil, mismatch(shard.CodeChecksumMismatch, rule, what+" damaged", checksumText(checksum), checksumText(found))
	}
	return part, nil
}

// findBadOffset checks P-IDX-3 and P-IDX-4.
func (x *index) findBadOffset() error {
	part, err := x.part(indexHeadSize, x.footer.hashesAt(), x.footer.OffsetsCRC32C, "the offsets of the records are", "P-IDX-3")
	if err != nil {
		return err
	}
	before := le.Uint64(part)
	ascends := before == 0
	for at := 8; at < len(part); at += 8 {
		next := le.Uint64(part[at:])
		ascends = ascends && before < next
		before = next
	}
	if !ascends || before != x.footer.IndexOffset {
		return broken(shard.CodeBadOffset, "P-IDX-4", "the offsets of the records do not ascend from 0 to the index")
	}
	return nil
}

// findBadHash checks P-IDX-5 and P-IDX-6.
func (x *index) findBadHash() error {
	part, err := x.part(x.footer.hashesAt(), x.footer.metadataAt(), x.footer.LookupCRC32C, "the key hashes are", "P-IDX-5")
	if err != nil {
		return err
	}
	split := 8 * x.footer.RecordCount
	fine, before := true, uint64(0)
	for hashes := part[:split]; len(hashes) > 0; hashes = hashes[8:] {
		next := le.Uint64(hashes)
		fine = fine && before <= next
		before = next
	}
	for numbers := part[split:]; len(numbers) > 0; numbers = numbers[4:] {
		fine = fine && uint64(le.Uint32(numbers)) < x.footer.RecordCount
	}
	if !fine {
		return broken(shard.CodeBadOffset, "P-IDX-6", "the key hashes are not sorted, or name records that do not exist")
	}
	return nil
}

// offset is where a record starts; that of the number of records is where the last one ends.
func (x *index) offset(i int) uint64 { return le.Uint64(x.data[indexHeadSize+8*i:]) }

func (x *index) hash(i int) uint64 { return le.Uint64(x.data[x.footer.hashesAt()+8*uint64(i):]) }

// withHash gives the numbers of the records whose keys have a hash.
func (x *index) withHash(hash uint64) iter.Seq[int] {
	return func(yield func(int) bool) {
		count := int(x.footer.RecordCount)
		first := sort.Search(count, func(i int) bool { return x.hash(i) >= hash })
		for i := first; i < count && x.hash(i) == hash; i++ {
			if !yield(int(le.Uint32(x.data[x.footer.numbersAt()+4*uint64(i):]))) {
				return
			}
		}
	}
}

// metadata checks P-IDX-7 and P-IDX-8.
func (x *index) metadata() (shard.Object, error) {
	start, size := x.footer.metadataAt(), x.footer.MetadataSize
	if size > x.limits.MaxJSONBytes {
		return nil, mismatch(shard.CodeLimitExceeded, "S-SCH-7", "the metadata of the shard is too long", atMost(x.limits.MaxJSONBytes), size)
	}
	text, err := x.part(start, start+size, x.footer.MetadataCRC32C, "the metadata of the shard is", "P-IDX-7")
	if err != nil {
		return nil, err
	}
	return parseObject(text, "the metadata of the shard", "P-IDX-8", x.limits)
}

// buildIndex gives what follows the last record, footer included.
func buildIndex(offsets, hashes []uint64, end uint64, metadata []byte) ([]byte, Footer) {
	count := uint64(len(offsets))
	order := make([]uint32, count)
	for i := range order {
		order[i] = uint32(i)
	}
	sort.SliceStable(order, func(a, b int) bool { return hashes[order[a]] < hashes[order[b]] })
	f := Footer{IndexOffset: end, RecordCount: count, MetadataSize: uint64(len(metadata))}
	f.TotalSize = end + f.metadataAt() + f.MetadataSize + footerSize
	out := append(make([]byte, 0, f.indexSize()), f.indexHead()...)
	for _, offset := range offsets {
		out = le.AppendUint64(out, offset)
	}
	out = le.AppendUint64(out, end)
	for _, number := range order {
		out = le.AppendUint64(out, hashes[number])
	}
	for _, number := range order {
		out = le.AppendUint32(out, number)
	}
	out = append(out, metadata...)
	f.OffsetsCRC32C = shard.ComputeChecksum(out[indexHeadSize:f.hashesAt()])
	f.LookupCRC32C = shard.ComputeChecksum(out[f.hashesAt():f.metadataAt()])
	f.MetadataCRC32C = shard.ComputeChecksum(metadata)
	return append(out, f.Bytes()...), f
}
