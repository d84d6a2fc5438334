"""Every error of the family. Codes are listed in spec/registry.md and are the same in every language.

ShardError
├── FormatError                  the file breaks a rule of the specification
│   ├── BadMagic                 bad_magic
│   ├── UnsupportedVersion       unsupported_version
│   ├── Truncated                truncated
│   ├── TrailingData             trailing_data
│   ├── BadHeader                bad_header
│   ├── BadOffset                bad_offset
│   ├── BadName                  bad_name
│   ├── DuplicateName            duplicate_name
│   ├── Overlap                  overlap
│   ├── SizeMismatch             size_mismatch
│   ├── LimitExceeded            limit_exceeded
│   ├── UnknownCodec             unknown_codec
│   ├── BadCompression           bad_compression
│   ├── ChecksumMismatch         checksum_mismatch
│   ├── BadFilter                bad_filter
│   ├── UnknownFilter            unknown_filter
│   ├── BadSeekTable             bad_seek_table
│   ├── BadMetadata              bad_metadata
│   ├── BadValue                 bad_value
│   ├── UnknownLayout            unknown_layout
│   ├── ChunkDiscontinuity       chunk_discontinuity
│   └── BadProfile               bad_profile
├── TrustError                   the content is not what somebody vouched for
│   ├── IdentityMismatch         identity_mismatch
│   ├── BadSignature             bad_signature
│   ├── MissingFile              missing_file
│   └── ReferenceMismatch        reference_mismatch
├── UnsafePath                   unsafe_path
├── EntryNotFound (KeyError)     entry_not_found
├── NotViewable (ValueError)     not_viewable
├── InvalidArgument (ValueError) invalid_argument
├── Closed (ValueError)          closed
├── MissingExtra (ImportError)   missing_extra
└── ShardIOError (OSError)       io_error
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

__all__ = [
    "BadCompression",
    "BadFilter",
    "BadHeader",
    "BadMagic",
    "BadMetadata",
    "BadName",
    "BadOffset",
    "BadProfile",
    "BadSeekTable",
    "BadSignature",
    "BadValue",
    "ChecksumMismatch",
    "ChunkDiscontinuity",
    "Closed",
    "DuplicateName",
    "EntryNotFound",
    "FormatError",
    "IdentityMismatch",
    "InvalidArgument",
    "LimitExceeded",
    "MissingExtra",
    "MissingFile",
    "NotViewable",
    "Overlap",
    "ReferenceMismatch",
    "ShardError",
    "ShardIOError",
    "SizeMismatch",
    "TrailingData",
    "Truncated",
    "TrustError",
    "UnknownCodec",
    "UnknownFilter",
    "UnknownLayout",
    "UnsafePath",
    "UnsupportedVersion",
]

# Names come from files: a 65 535-byte name must not fill the screen.
_LONGEST_NAME_SHOWN = 120


def shorten(name: str) -> str:
    """A printable form of an entry name, cut in the middle when it is very long."""
    if len(name) <= _LONGEST_NAME_SHOWN:
        return repr(name)
    half = _LONGEST_NAME_SHOWN // 2
    return f"{name[:half]!r}…{name[-half:]!r} ({len(name)} characters)"


class ShardError(Exception):
    """Base of all errors of the family.

    The facts ride on attributes, each None where it does not apply: `path` (the file), `entry` (the
    entry's name), `offset` (in the file, bytes), `expected`, `found`, `rule` (an id of the
    specification) and `hint` (what to do). `str()` puts them into one line for people.
    """

    code: ClassVar[str] = "error"

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        entry: str | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
        rule: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.entry = entry
        self.offset = offset
        self.expected = expected
        self.found = found
        self.rule = rule
        self.hint = hint

    def located(self, *, path: str | None = None, entry: str | None = None) -> Self:
        """Adds where it happened, if that is not known yet, and returns the same error.

        Parsers work on bytes and know neither file nor entry; the reader around them does.
        """
        self.path = self.path or path
        self.entry = self.entry or entry
        return self

    def __str__(self) -> str:
        place = ""
        if self.entry is not None:
            place = f"entry {shorten(self.entry)}"
        if self.offset is not None:
            place += f"{' ' if place else ''}at byte {self.offset}"
        text = ": ".join(part for part in (self.path, place, self.problem) if part)
        facts = [
            f"{word} {value}"
            for word, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        if facts:
            text += f" ({', '.join(facts)})"
        if self.rule is not None:
            text += f" [{self.rule}]"
        if self.hint is not None:
            text += f"; {self.hint}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their positional arguments only; worker processes need all of it.
        # Some attributes of OSError and ImportError are not in the dictionary.
        state = {name: getattr(self, name) for name in _FACTS if hasattr(self, name)}
        return (_rebuild, (type(self), self.problem, state))


_FACTS = (
    *("problem", "path", "entry", "offset", "expected", "found", "rule", "hint"),
    *("errno", "strerror", "filename"),
)


def _rebuild(cls: type[ShardError], problem: str, state: dict[str, Any]) -> ShardError:
    error = cls.__new__(cls, problem)
    error.args = (problem,)
    for name, value in state.items():
        setattr(error, name, value)
    return error


class FormatError(ShardError):
    """The file breaks a rule of the specification."""

    code = "bad_format"


class BadMagic(FormatError):
    """The file does not start with the magic of the format."""

    code = "bad_magic"


class UnsupportedVersion(FormatError):
    """The version is not one that this reader knows."""

    code = "unsupported_version"


class Truncated(FormatError):
    """The file ends before it should."""

    code = "truncated"


class TrailingData(FormatError):
    """The file goes on after its stated end."""

    code = "trailing_data"


class BadHeader(FormatError):
    """A header field has a value that is not allowed."""

    code = "bad_header"


class BadOffset(FormatError):
    """An offset or size points outside its region."""

    code = "bad_offset"


class BadName(FormatError):
    """A name is outside the string table, empty or not UTF-8."""

    code = "bad_name"


class DuplicateName(FormatError):
    """Two entries have the same name."""

    code = "duplicate_name"


class Overlap(FormatError):
    """The stored bytes of two entries overlap."""

    code = "overlap"


class SizeMismatch(FormatError):
    """Stored, declared or decoded sizes disagree."""

    code = "size_mismatch"


class LimitExceeded(FormatError):
    """A value is above a security limit; see `Limits`."""

    code = "limit_exceeded"


class UnknownCodec(FormatError):
    """The codec of an entry cannot be determined."""

    code = "unknown_codec"


class BadCompression(FormatError):
    """Compressed bytes are damaged or incomplete."""

    code = "bad_compression"


class ChecksumMismatch(FormatError):
    """Bytes differ from their checksum."""

    code = "checksum_mismatch"


class BadFilter(FormatError):
    """The description or the frames of a filtered entry break a rule."""

    code = "bad_filter"


class UnknownFilter(FormatError):
    """An entry was filtered in a way that this reader does not know."""

    code = "unknown_filter"


class BadSeekTable(FormatError):
    """The seek table of an entry contradicts its frames."""

    code = "bad_seek_table"


class BadMetadata(FormatError):
    """JSON metadata is malformed or has a wrong type."""

    code = "bad_metadata"


class BadValue(FormatError):
    """Values in a block break a rule: offsets run backwards, text is not UTF-8."""

    code = "bad_value"


class UnknownLayout(FormatError):
    """A channel has a layout that this reader does not know."""

    code = "unknown_layout"


class ChunkDiscontinuity(FormatError):
    """The chunks of an episode have gaps, repeats, overlaps or wrong lengths."""

    code = "chunk_discontinuity"


class BadProfile(FormatError):
    """The file lacks what its role promises."""

    code = "bad_profile"


class TrustError(ShardError):
    """The content is not what somebody vouched for."""

    code = "untrusted"


class IdentityMismatch(TrustError):
    """The content is not what its identity says."""

    code = "identity_mismatch"


class BadSignature(TrustError):
    """The signature does not fit the identity and the key."""

    code = "bad_signature"


class MissingFile(TrustError):
    """A manifest names a file that is not there."""

    code = "missing_file"


class ReferenceMismatch(TrustError):
    """A file differs from what its manifest says."""

    code = "reference_mismatch"


class UnsafePath(ShardError):
    """A path leaves the folder that it must stay in."""

    code = "unsafe_path"


class EntryNotFound(ShardError, KeyError):
    """There is no entry of that name."""

    code = "entry_not_found"
    # KeyError would print the repr of its argument.
    __str__ = ShardError.__str__

    candidates: Sequence[str] = ()
    """Names that are there, among which the hint looks for a similar one."""
    wanted: str = ""
    """The name that is not there."""
    _hint: str | None = None

    @property
    def hint(self) -> str | None:
        """What to do. Made when asked for: whoever catches the error need not wait for it."""
        if self.candidates:
            import difflib

            # Comparing takes the square of the length; nobody types names like that.
            short = [name for name in self.candidates if len(name) <= _LONGEST_NAME_SHOWN]
            close = difflib.get_close_matches(self.wanted[:_LONGEST_NAME_SHOWN], short, n=3)
            if close:
                self._hint = f"did you mean {' or '.join(repr(name) for name in close)}?"
            self.candidates = ()
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        self._hint = hint


class NotViewable(ShardError, ValueError):
    """The entry cannot be handed out without a copy."""

    code = "not_viewable"


class InvalidArgument(ShardError, ValueError):
    """A call has arguments that cannot work."""

    code = "invalid_argument"


class Closed(ShardError, ValueError):
    """The reader or writer is closed."""

    code = "closed"


class MissingExtra(ShardError, ImportError):
    """An optional package is not installed."""

    code = "missing_extra"
    __str__ = ShardError.__str__


class ShardIOError(ShardError, OSError):
    """The operating system refused; `errno` and `strerror` are those of the original error."""

    code = "io_error"
    __str__ = ShardError.__str__

    @classmethod
    def wrap(cls, error: OSError, doing: str, path: str | None) -> ShardIOError:
        """The same failure with the file and what was being done; raise it `from` the original."""
        wrapped = cls(
            f"{doing}: {error.strerror or error}", path=path, hint=_HINTS.get(error.errno)
        )
        wrapped.errno = error.errno
        wrapped.strerror = error.strerror
        wrapped.filename = path
        return wrapped


_HINTS: dict[int | None, str] = {
    errno.ENOSPC: "the disk is full: free some space and write again",
    errno.EDQUOT: "the disk quota is used up: free some space and write again",
    errno.EFBIG: "the file would exceed the size that this system or process may write",
    errno.EROFS: "the file system is mounted read-only",
    errno.EMFILE: "close some readers: too many files are open",
}
