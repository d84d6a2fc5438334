package shardpack

import (
	"bufio"
	"errors"
	"io"
	"iter"

	"github.com/shard-format/shard/ports/go/internal/fault"
	"github.com/shard-format/shard/ports/go/shard"
)

// Stream gives the records of a shard in order, from anything that can only be read forwards: a pipe, a network
// connection, a file that lost its end. Each record is in memory as a whole and stays valid while you read on.
//
// It ends after the first error. If the source ends too early, that is an error with the code truncated, after all
// complete records.
func Stream(from io.Reader, options ...Options) iter.Seq2[*Record, error] {
	limits := limitsOf(options)
	name := ""
	if named, ok := from.(interface{ Name() string }); ok {
		name = named.Name()
	}
	return func(yield func(*Record, error) bool) {
		s := &stream{from: bufio.NewReaderSize(from, tailRead), source: &source{name: name, limits: limits}}
		for {
			record, err := s.next()
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, fault.Located(err, name, ""))
				return
			}
			if !yield(record, nil) {
				return
			}
		}
	}
}

type stream struct {
	from     *bufio.Reader
	source   *source
	position uint64
	count    uint64
}

// next gives the next record; io.EOF after a complete index.
func (s *stream) next() (*Record, error) {
	start, err := s.read(nil, blockStartSize)
	if err != nil {
		return nil, err
	}
	if len(start) < blockStartSize || isZero(start) { // zeros are space that a writer reserved and did not use
		return nil, s.cut("P-FTR-1")
	}
	size, marker := blockStart(start)
	switch {
	case marker != recordMarker && marker != indexMarker:
		return nil, atOffset(broken(shard.CodeBadMagic, "P-REC-2", "neither a record nor the index starts here"), "", s.position)
	case size < blockStartSize:
		return nil, atOffset(mismatch(shard.CodeBadOffset, "P-REC-1", "it is smaller than its head", atLeast(smallestRecord), size), "", s.position)
	case marker == indexMarker:
		return nil, s.end(start, size)
	case size > s.source.limits.MaxRecordBytes:
		return nil, atOffset(mismatch(shard.CodeLimitExceeded, "", "it is too large to read from a stream",
			atMost(s.source.limits.MaxRecordBytes), size), "", s.position)
	}
	block, err := s.read(start, size)
	if err != nil {
		return nil, err
	}
	if uint64(len(block)) < size {
		return nil, s.cut("P-REC-7")
	}
	record, err := newRecord(s.source, s.position, size, block)
	s.position += size
	s.count++
	return record, err
}

// read adds bytes to a block until it has a size, or until the source ends. Memory grows as bytes arrive, so a false size
// costs nothing.
func (s *stream) read(block []byte, size uint64) ([]byte, error) {
	const piece = 1 << 20
	for uint64(len(block)) < size {
		have := len(block)
		grown := make([]byte, min(size, uint64(max(2*have, piece))))
		copy(grown, block)
		count, err := io.ReadFull(s.from, grown[have:])
		block = grown[:have+count]
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return block, nil
		}
		if err != nil {
			return nil, fault.IO("cannot read", s.source.name, err)
		}
	}
	return block, nil
}

func (s *stream) cut(rule string) error {
	return atOffset(broken(shard.CodeTruncated, rule, "the stream ends before the index of the shard"), "", s.position)
}

// end reads the index and checks that it fits what was read (P-IDX-2).
func (s *stream) end(start []byte, size uint64) error {
	if size > s.source.limits.MaxIndexBytes {
		return mismatch(shard.CodeLimitExceeded, "P-IDX-1", "the index is too large", atMost(s.source.limits.MaxIndexBytes), size)
	}
	data, err := s.read(start, size)
	if err != nil {
		return err
	}
	if uint64(len(data)) < size {
		return s.cut("P-FTR-1")
	}
	footer, err := parseFooter(data, s.position+size, start)
	if err != nil {
		return err
	}
	if footer.IndexOffset != s.position || footer.RecordCount != s.count {
		return mismatch(shard.CodeSizeMismatch, "P-IDX-2", "the footer does not match the records before it",
			footer.RecordCount, s.count)
	}
	if _, err := newIndex(data, footer, s.source.limits); err != nil {
		return err
	}
	if _, err := s.from.ReadByte(); err != io.EOF {
		if err != nil {
			return fault.IO("cannot read", s.source.name, err)
		}
		return broken(shard.CodeTrailingData, "P-FTR-5", "bytes follow the footer")
	}
	return io.EOF
}

func isZero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}
