package shardpack

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/shard-format/shard/ports/go/internal/codec"
	"github.com/shard-format/shard/ports/go/shard"
)

// Encoding says how the bytes of an entry are stored.
type Encoding uint8

// The encodings. Writers do not write gzip.
const (
	EncodingNone Encoding = 0
	EncodingGzip Encoding = 1
	EncodingLZ4  Encoding = 2
	EncodingZstd Encoding = 3
)

func (e Encoding) String() string {
	switch e {
	case EncodingNone:
		return "none"
	case EncodingGzip:
		return "gzip"
	case EncodingLZ4:
		return "lz4"
	case EncodingZstd:
		return "zstd"
	}
	return fmt.Sprintf("unknown (%d)", uint8(e))
}

const (
	gzipExpansion      = 1032
	smallestCompressed = 256
	// largestCompressed is what readers decompress unless they are told otherwise.
	largestCompressed = 1 << 30
)

// check makes all checks of an entry that need no data (P-ENT-2, P-ENC-1, P-ENC-3, P-ENC-4).
func (r row) check(limits Limits) error {
	switch r.encoding {
	case EncodingNone:
		if r.storedSize != r.originalSize {
			return mismatch(shard.CodeSizeMismatch, "P-ENT-2", "an entry that is not compressed has two different sizes",
				r.storedSize, r.originalSize)
		}
		return nil
	case EncodingGzip, EncodingLZ4, EncodingZstd:
	default:
		return mismatch(shard.CodeUnknownCodec, "P-ENC-1", "unknown encoding", "0 (none), 1 (gzip), 2 (lz4) or 3 (zstd)", uint8(r.encoding))
	}
	if r.originalSize > limits.MaxDecompressedBytes {
		return mismatch(shard.CodeLimitExceeded, "P-ENC-3", "the entry is too large after decompression",
			atMost(limits.MaxDecompressedBytes), r.originalSize)
	}
	if r.storedSize == 0 {
		return broken(shard.CodeBadCompression, "P-ENC-5", "a compressed entry has no bytes")
	}
	// Divided, because a product could wrap.
	expansion, slack := uint64(gzipExpansion), uint64(0)
	switch r.encoding {
	case EncodingLZ4:
		expansion, slack = codec.LZ4Expansion, codec.LZ4Slack
	case EncodingZstd:
		expansion = codec.ZstdExpansion
	}
	if r.originalSize > slack && (r.originalSize-slack-1)/expansion >= r.storedSize {
		return mismatch(shard.CodeSizeMismatch, "P-ENC-4", fmt.Sprintf("%d bytes of %s cannot expand to this size", r.storedSize, r.encoding),
			atMost(expansion*r.storedSize+slack), r.originalSize)
	}
	return nil
}

// decode gives the content of a compressed entry whose row was checked (P-ENC-3 to P-ENC-5).
func (r row) decode(stored []byte, limits Limits) ([]byte, error) {
	content := make([]byte, r.originalSize)
	var err error
	switch r.encoding {
	case EncodingGzip:
		err = decodeGzip(stored, content)
	case EncodingLZ4:
		err = codec.DecodeLZ4(stored, content)
	case EncodingZstd:
		err = codec.DecodeZstd(stored, content, limits.MaxWindowBytes)
	}
	if err != nil {
		return nil, codecError(err)
	}
	return content, nil
}

// codecRules has the ids of this format for rules of the container.
var codecRules = map[string]string{
	"S-CMP-2": "P-ENC-3", "S-CMP-3": "P-ENC-4", "S-CMP-4": "P-ENC-5", "S-CMP-5": "P-ENC-5",
	"S-CMP-6": "P-ENC-5", "S-CMP-7": "P-ENC-3", "S-CMP-8": "P-ENC-4", "S-CMP-9": "P-ENC-5",
}

func codecError(err error) error {
	var known *codec.Error
	if !errors.As(err, &known) {
		return err
	}
	return &shard.Error{
		Code: shard.Code(known.Code), Rule: codecRules[known.Rule], Problem: known.Problem,
		Expected: known.Expected, Found: known.Found, Err: known.Err,
	}
}

// encode gives the form in which an entry is stored (P-ENC-6).
func encode(data []byte, encoding Encoding, level int) ([]byte, Encoding, error) {
	if encoding == EncodingNone || len(data) <= smallestCompressed || uint64(len(data)) > largestCompressed {
		return data, EncodingNone, nil
	}
	var stored []byte
	var err error
	if encoding == EncodingLZ4 {
		stored, err = codec.CompressLZ4(data)
	} else {
		stored, err = codec.CompressZstd(data, level, false)
	}
	if err != nil {
		return nil, 0, err
	}
	if len(stored) == 0 || uint64(len(stored)) >= uint64(len(data))*9/10 {
		return data, EncodingNone, nil
	}
	return stored, encoding, nil
}

// --- gzip (RFC 1952)

const (
	gzipHeadSize  = 10
	gzipEndSize   = 8
	gzipHeadCheck = 0x02
	gzipExtra     = 0x04
	gzipName      = 0x08
	gzipComment   = 0x10
	gzipReserved  = 0xE0
	gzipDeflate   = 8
)

func notGzip(problem string) error { return broken(shard.CodeBadCompression, "P-ENC-5", problem) }

// decodeGzip decodes one member into memory of exactly the size of the entry. The reader of the standard library refuses
// long names in the head of a member, which are allowed.
func decodeGzip(stored, content []byte) error {
	body, err := gzipBody(stored)
	if err != nil {
		return err
	}
	source := bytes.NewReader(body) // a byte reader: inflating takes no byte too many
	inflater := flate.NewReader(source)
	count := 0
	for err == nil && count < len(content) {
		var n int
		n, err = inflater.Read(content[count:])
		count += n
	}
	for more := [1]byte{}; err == nil; {
		var n int
		if n, err = inflater.Read(more[:]); n > 0 {
			return mismatch(shard.CodeSizeMismatch, "P-ENC-4", "the gzip member holds more than the entry", len(content), "more")
		}
	}
	if err != io.EOF {
		e := broken(shard.CodeBadCompression, "P-ENC-5", "gzip cannot decode it")
		e.Err = err
		return e
	}
	end := body[len(body)-source.Len():]
	if len(end) != gzipEndSize {
		return notGzip("not exactly one complete gzip member")
	}
	if le.Uint32(end) != crc32.ChecksumIEEE(content[:count]) || le.Uint32(end[4:]) != uint32(count) {
		return notGzip("the gzip member does not fit its checksum or its size")
	}
	if count != len(content) {
		return mismatch(shard.CodeSizeMismatch, "P-ENC-4", "the gzip member holds less than the entry", len(content), count)
	}
	return nil
}

// gzipBody checks the head of a member and gives what follows.
func gzipBody(stored []byte) ([]byte, error) {
	if len(stored) < gzipHeadSize || stored[0] != 0x1F || stored[1] != 0x8B || stored[2] != gzipDeflate {
		return nil, notGzip("no gzip member starts here")
	}
	flags := stored[3]
	if flags&gzipReserved != 0 {
		return nil, notGzip("reserved bits of a gzip member are set")
	}
	at := gzipHeadSize
	cut := notGzip("the head of a gzip member is incomplete")
	if flags&gzipExtra != 0 {
		if len(stored)-at < 2 {
			return nil, cut
		}
		size := 2 + int(le.Uint16(stored[at:]))
		if len(stored)-at < size {
			return nil, cut
		}
		at += size
	}
	for _, flag := range []byte{gzipName, gzipComment} {
		if flags&flag != 0 {
			end := bytes.IndexByte(stored[at:], 0)
			if end < 0 {
				return nil, cut
			}
			at += end + 1
		}
	}
	if flags&gzipHeadCheck != 0 {
		if len(stored)-at < 2 {
			return nil, cut
		}
		if uint16(crc32.ChecksumIEEE(stored[:at])) != le.Uint16(stored[at:]) {
			return nil, notGzip("the head of a gzip member does not fit its checksum")
		}
		at += 2
	}
	return stored[at:], nil
}
