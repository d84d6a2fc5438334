package shardpack

import (
	"errors"
	"fmt"

	"github.com/shard-format/shard/ports/go/shard"
)

func broken(code shard.Code, rule, problem string) *shard.Error {
	return &shard.Error{Code: code, Rule: rule, Problem: problem}
}

func mismatch(code shard.Code, rule, problem string, expected, found any) *shard.Error {
	return &shard.Error{Code: code, Rule: rule, Problem: problem, Expected: fmt.Sprint(expected), Found: fmt.Sprint(found)}
}

func invalid(rule, format string, args ...any) *shard.Error {
	return broken(shard.CodeInvalidArgument, rule, fmt.Sprintf(format, args...))
}

func atMost(limit uint64) string          { return fmt.Sprintf("at most %d", limit) }
func below(count int) string              { return fmt.Sprintf("0 or more, below %d", count) }
func atLeast(limit uint64) string         { return fmt.Sprintf("at least %d", limit) }
func checksumText(checksum uint32) string { return fmt.Sprintf("%08x", checksum) }

// inRecord adds the key of the record to an error about what is in it.
func inRecord(err error, key string) error {
	var known *shard.Error
	if !errors.As(err, &known) {
		return err
	}
	at := *known
	at.Problem = fmt.Sprintf("record %.80q: %s", key, at.Problem)
	return &at
}

// saysDataIsBad tells damage from a disk that fails or a reader that is closed, which say nothing about the data.
func saysDataIsBad(err error) bool {
	var known *shard.Error
	return errors.As(err, &known) && known.Code != shard.CodeIOError && known.Code != shard.CodeClosed
}
