package codec

import (
	"encoding/binary"

	"github.com/pierrec/lz4/v4"
)

const (
	// LZ4Expansion and LZ4Slack bound the content: at most 255 times the stored bytes, and 64.
	LZ4Expansion  = 255
	LZ4Slack      = 64
	lz4LastBytes  = 5
	lz4ShortMatch = 4
)

// DecodeLZ4 decodes one raw block into memory of exactly the size of the entry (S-CMP-3, S-CMP-4, S-CMP-9).
func DecodeLZ4(stored, out []byte) error {
	damaged := func() error {
		if len(stored) > 4 && uint64(binary.LittleEndian.Uint32(stored)) == uint64(len(out)) {
			return broken(BadCompression, "S-CMP-9", "the lz4 block has its size in front")
		}
		return broken(BadCompression, "S-CMP-4", "the lz4 block is damaged or incomplete")
	}
	longer := func() error {
		return broken(SizeMismatch, "S-CMP-3", "the lz4 block holds more than the index says").
			expected("%d bytes", len(out))
	}
	at, done, matchEnd := 0, 0, 0
	length := func(nibble int) (int, bool) {
		if nibble < 15 {
			return nibble, true
		}
		total := nibble
		for at < len(stored) {
			b := int(stored[at])
			at++
			total += b
			if b != 255 {
				return total, true
			}
			if total > len(out)+len(stored) { // cannot be true; and cannot overflow
				return total, true
			}
		}
		return 0, false
	}
	for at < len(stored) {
		token := int(stored[at])
		at++
		literals, ok := length(token >> 4)
		if !ok || literals > len(stored)-at {
			return damaged()
		}
		if literals > len(out)-done {
			return longer()
		}
		done += copy(out[done:], stored[at:at+literals])
		at += literals
		if at == len(stored) {
			if matchEnd > 0 && done-matchEnd < lz4LastBytes {
				return broken(BadCompression, "S-CMP-9", "the lz4 block does not end with five literals")
			}
			return Exactly(done, len(out))
		}
		if len(stored)-at < 2 {
			return damaged()
		}
		distance := int(stored[at]) | int(stored[at+1])<<8
		at += 2
		match, ok := length(token & 15)
		if !ok || distance == 0 || distance > done {
			return damaged()
		}
		match += lz4ShortMatch
		if match > len(out)-done {
			return longer()
		}
		matchEnd = done + match
		// Source and target may overlap: what is copied doubles what can be copied next.
		for from := done - distance; done < matchEnd; {
			done += copy(out[done:matchEnd], out[from:done])
		}
	}
	return damaged()
}

// CompressLZ4 makes one raw block; empty if it would not shrink.
func CompressLZ4(data []byte) ([]byte, error) {
	out := make([]byte, lz4.CompressBlockBound(len(data)))
	count, err := lz4.CompressBlock(data, out, nil)
	if err != nil {
		return nil, err
	}
	return out[:count], nil
}
