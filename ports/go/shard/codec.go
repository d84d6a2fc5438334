package shard

import (
	"errors"

	"github.com/shard-format/shard/ports/go/internal/codec"
)

type frame = codec.Frame

const (
	frameMagic    = codec.FrameMagic
	usualLevel    = codec.UsualLevel
	zstdExpansion = codec.ZstdExpansion
	lz4Expansion  = codec.LZ4Expansion
	lz4Slack      = codec.LZ4Slack
)

// codecError turns an error of a codec into one of this package.
func codecError(err error) error {
	if err == nil { // before the variable, which needs memory
		return nil
	}
	var known *codec.Error
	if !errors.As(err, &known) {
		return err
	}
	return &Error{
		Code: Code(known.Code), Rule: known.Rule, Problem: known.Problem,
		Expected: known.Expected, Found: known.Found, Err: known.Err,
	}
}

func walkFrames(stored []byte, maxWindow uint64) ([]frame, error) {
	frames, err := codec.WalkFrames(stored, maxWindow)
	return frames, codecError(err)
}

func walkFrame(stored []byte, start int, maxWindow uint64) (frame, error) {
	one, err := codec.WalkFrame(stored, start, maxWindow)
	return one, codecError(err)
}

func decodeFrame(stored []byte, one frame, out []byte) (int, error) {
	count, err := codec.DecodeFrame(stored, one, out)
	return count, codecError(err)
}

func decodeZstd(stored, out []byte, maxWindow uint64) error {
	return codecError(codec.DecodeZstd(stored, out, maxWindow))
}

func decodeLZ4(stored, out []byte) error { return codecError(codec.DecodeLZ4(stored, out)) }

func exactly(found, expected int) error { return codecError(codec.Exactly(found, expected)) }

func compressZstd(data []byte, level int, checksum bool) ([]byte, error) {
	return codec.CompressZstd(data, level, checksum)
}

func compressLZ4(data []byte) ([]byte, error) { return codec.CompressLZ4(data) }
