package wshard

import (
	"errors"
	"fmt"

	"github.com/shard-format/shard/ports/go/shard"
)

// broken is an error about a rule of the specification.
func broken(code shard.Code, rule, format string, args ...any) *shard.Error {
	return &shard.Error{Code: code, Rule: rule, Problem: fmt.Sprintf(format, args...)}
}

func badMetadata(rule, format string, args ...any) *shard.Error {
	return broken(shard.CodeBadMetadata, rule, format, args...)
}

func sizeMismatch(rule, problem string, expected, found any) *shard.Error {
	e := broken(shard.CodeSizeMismatch, rule, "%s", problem)
	e.Expected, e.Found = fmt.Sprint(expected), fmt.Sprint(found)
	return e
}

// invalid is an error about what the caller gave.
func invalid(format string, args ...any) *shard.Error {
	return broken(shard.CodeInvalidArgument, "", format, args...)
}

// withRule replaces the rule of an error about JSON text by the one of the entry that holds it.
func withRule(err error, rule string) error {
	var known *shard.Error
	if !errors.As(err, &known) || known.Code != shard.CodeBadMetadata {
		return err
	}
	at := *known
	at.Rule = rule
	return &at
}
