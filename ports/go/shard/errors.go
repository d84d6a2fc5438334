package shard

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// Error says what is wrong, where, and which rule of the specification it breaks.
//
// The sentinels below match by code: errors.Is(err, shard.ErrChecksumMismatch).
type Error struct {
	// Code is stable and the same in every language.
	Code Code
	// Rule is the id of the rule that is broken, such as S-HDR-2; empty if none is.
	Rule string
	// Path is the file; empty if it has no name.
	Path string
	// Entry is the name of the entry; empty if the error is about the whole file.
	Entry string
	// Problem is one sentence without a full stop.
	Problem string
	// Expected and Found may be empty.
	Expected, Found string
	// Err is what the operating system or a codec said.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	if e.Entry != "" {
		fmt.Fprintf(&b, "entry %.80q: ", e.Entry)
	}
	b.WriteString(e.Problem)
	switch {
	case e.Expected != "" && e.Found != "":
		fmt.Fprintf(&b, " (expected %s, found %s)", e.Expected, e.Found)
	case e.Expected != "":
		fmt.Fprintf(&b, " (expected %s)", e.Expected)
	case e.Found != "":
		fmt.Fprintf(&b, " (found %s)", e.Found)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Rule != "" {
		fmt.Fprintf(&b, " [%s, %s]", e.Rule, e.Code)
	} else {
		fmt.Fprintf(&b, " [%s]", e.Code)
	}
	return b.String()
}

// Unwrap gives what the operating system or a codec said.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether the target is the sentinel of the same code.
func (e *Error) Is(target error) bool {
	s, ok := target.(*sentinel)
	return ok && s.code == e.Code
}

type sentinel struct {
	code Code
	text string
}

func (s *sentinel) Error() string { return s.text }

// Sentinels for errors.Is.
var (
	ErrInvalidShardMagic  error = &sentinel{CodeBadMagic, "not a Shard file"}
	ErrUnsupportedVersion error = &sentinel{CodeUnsupportedVersion, "unknown version of the format"}
	ErrInvalidShardHeader error = &sentinel{CodeBadHeader, "a header field is not allowed"}
	ErrTruncated          error = &sentinel{CodeTruncated, "the file ends before it should"}
	ErrShardIndexCorrupt  error = &sentinel{CodeBadOffset, "an offset points outside its region"}
	ErrEntryNotFound      error = &sentinel{CodeEntryNotFound, "no such entry"}
	ErrShardClosed        error = &sentinel{CodeClosed, "the file is closed"}
	ErrChecksumMismatch   error = &sentinel{CodeChecksumMismatch, "the data is damaged"}
	ErrCompressionFailed  error = &sentinel{CodeBadCompression, "compressed bytes are damaged"}
	ErrLimitExceeded      error = &sentinel{CodeLimitExceeded, "a value is above a limit"}
	ErrInvalidArgument    error = &sentinel{CodeInvalidArgument, "an argument is not valid"}
	ErrIdentityMismatch   error = &sentinel{CodeIdentityMismatch, "the content does not fit its identity"}
	ErrBadSignature       error = &sentinel{CodeBadSignature, "the signature does not fit"}
	ErrNotViewable        error = &sentinel{CodeNotViewable, "the entry has no view"}
)

func broken(code Code, rule, problem string) *Error {
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

func invalid(format string, args ...any) *Error {
	return &Error{Code: CodeInvalidArgument, Problem: fmt.Sprintf(format, args...)}
}

func ioError(problem, path string, err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	var inner *fs.PathError
	if errors.As(err, &inner) { // its path is named already
		err = inner.Err
	}
	return &Error{Code: CodeIOError, Path: path, Problem: problem, Err: err}
}

// located adds the file and the entry to an error that does not name them.
func located(err error, path, entry string) error {
	if err == nil { // before the variable, which needs memory
		return nil
	}
	var known *Error
	if !errors.As(err, &known) {
		return err
	}
	at := *known
	if at.Path == "" {
		at.Path = path
	}
	if at.Entry == "" {
		at.Entry = entry
	}
	return &at
}
