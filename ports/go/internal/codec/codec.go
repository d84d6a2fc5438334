// Package codec walks, decodes and makes zstd frames and raw lz4 blocks, as spec/shard.md, section 6, asks for. It is what
// containers and packs share. Nothing here allocates what the bytes merely claim to need.
package codec

import "fmt"

// The codes of spec/registry.md that decoding can end with.
const (
	BadCompression   = "bad_compression"
	ChecksumMismatch = "checksum_mismatch"
	LimitExceeded    = "limit_exceeded"
	SizeMismatch     = "size_mismatch"
)

// Error says which rule of the container the stored bytes break. Each format turns it into its own error.
type Error struct {
	Code, Rule, Problem string
	// Expected and Found may be empty.
	Expected, Found string
	// Err is what a library said; may be nil.
	Err error
}

func (e *Error) Error() string { return e.Problem }

func broken(code, rule, problem string) *Error {
	return &Error{Code: code, Rule: rule, Problem: problem}
}

func (e *Error) expected(format string, args ...any) *Error {
	e.Expected = fmt.Sprintf(format, args...)
	return e
}

func (e *Error) found(format string, args ...any) *Error {
	e.Found = fmt.Sprintf(format, args...)
	return e
}
