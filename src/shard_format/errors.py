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
├── TrustError                   the content does not fit its identity or signature
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
    ├── FileMissing (FileNotFoundError)   io_error
    ├── IsAFolder (IsADirectoryError)     io_error
    ├── AccessDenied (PermissionError)    io_error
    ├── FileThere (FileExistsError)       io_error
    └── TransportError                    transport_error
        └── RemoteDenied (AccessDenied)   io_error
"""

from __future__ import annotations

import errno
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self, Unpack

__all__ = [
    "AccessDenied",
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
    "FileMissing",
    "FileThere",
    "FormatError",
    "IdentityMismatch",
    "InvalidArgument",
    "IsAFolder",
    "LimitExceeded",
    "MissingExtra",
    "MissingFile",
    "NotViewable",
    "Overlap",
    "ReferenceMismatch",
    "RemoteDenied",
    "ShardError",
    "ShardIOError",
    "SizeMismatch",
    "TrailingData",
    "TransportError",
    "Truncated",
    "TrustError",
    "UnknownCodec",
    "UnknownFilter",
    "UnknownLayout",
    "UnsafePath",
    "UnsupportedVersion",
]

# The codes of classes that only group others.
_GROUPS = ("error", "bad_format", "untrusted")
# Names come from files: a name of 65 535 bytes must not fill the screen.
_LONGEST_NAME_SHOWN = 120
# Comparing takes the square of the length, and every candidate is looked at.
_MOST_CANDIDATES = 1000
# If no name is similar, a hint lists this many.
_MOST_LISTED = 6


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse an argument that is not one of the allowed values."""
    choices = tuple(allowed)
    if value not in choices:
        *first, last = map(repr, choices)
        expected = f"{', '.join(first)} or {last}" if first else last
        raise InvalidArgument(f"unknown {name}", expected=expected, found=repr(value))


def shorten(name: str) -> str:
    """A printable form of an entry name, cut in the middle when it is very long."""
    if len(name) <= _LONGEST_NAME_SHOWN:
        return repr(name)
    half = _LONGEST_NAME_SHOWN // 2
    return f"{name[:half]!r}…{name[-half:]!r} ({len(name)} characters)"


def did_you_mean(wanted: object, candidates: Iterable[str], at_least: float = 0.6) -> str | None:
    """A hint with the names that are most like the missing one: `did you mean 'a' or 'b'?`.

    None if no name is similar. At most a thousand candidates are compared.

    Args:
        wanted: the missing name.
        candidates: names that exist.
        at_least: how similar names must be, from 0 to 1.
    """
    import difflib

    text = str(wanted)[:_LONGEST_NAME_SHOWN]
    known = [
        name for name in islice(candidates, _MOST_CANDIDATES) if len(name) <= _LONGEST_NAME_SHOWN
    ]
    by_lower = {name.lower(): name for name in reversed(known)}
    close = difflib.get_close_matches(text.lower(), by_lower, n=3, cutoff=at_least)
    if not close:
        return None
    return f"did you mean {' or '.join(repr(by_lower[name]) for name in close)}?"


class Facts(TypedDict, total=False):
    """What an error knows."""

    path: str | None
    """The file."""
    entry: str | None
    """The name of the entry."""
    offset: int | None
    """Where in the file, in bytes."""
    expected: object
    """What should be there."""
    found: object
    """What is there."""
    rule: str | None
    """A rule of the specification, by its id."""
    hint: str | None
    """What to do in Python."""
    command: str | None
    """What to do on the command line; None if the hint holds there too, empty if nothing can be done there."""


class ShardError(Exception):
    """Base of all errors of the family.

    Each fact is an attribute, None if it does not apply. `str()` puts the facts into one line; `command_text()` does
    so for a user of the command line.

    Args:
        problem: what is wrong.
        facts: see `Facts`.
    """

    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        # `bad_magic` for `BadMagic`; what is derived from an error with a code of its own keeps that.
        if "code" not in vars(cls) and cls.__bases__[0].code in _GROUPS:  # type: ignore[attr-defined]
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, problem: str, **facts: Unpack[Facts]) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: str | None = facts.pop("path", None)
        self.entry: str | None = facts.pop("entry", None)
        self.offset: int | None = facts.pop("offset", None)
        self.expected: object = facts.pop("expected", None)
        self.found: object = facts.pop("found", None)
        self.rule: str | None = facts.pop("rule", None)
        self.hint = facts.pop("hint", None)
        self.command: str | None = facts.pop("command", None)
        if facts:
            raise TypeError(f"unknown facts: {', '.join(facts)}")

    def located(self, *, path: str | None = None, entry: str | None = None) -> Self:
        """Adds where it happened, if that is not known yet, and returns the same error.

        Parsers work on bytes and do not know the file and the entry; the reader around them does.
        """
        self.path = self.path or path
        self.entry = self.entry or entry
        return self

    @property
    def facts(self) -> str:
        """What was expected and found, in parentheses with a space before them; empty if neither is known."""
        known = [
            f"{word} {value}"
            for word, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        return f" ({', '.join(known)})" if known else ""

    def __str__(self) -> str:
        return self._text(self.hint)

    def command_text(self) -> str:
        """What `str()` says, for a user of the command line: with `command` instead of `hint`."""
        return self._text(self.command_hint)

    @property
    def command_hint(self) -> str | None:
        """What a user of the command line can do about it."""
        hint = self.hint
        return hint if self.command is None else self.command or None

    def _text(self, hint: str | None) -> str:
        place = ""
        if self.entry is not None:
            place = f"entry {shorten(self.entry)}"
        if self.offset is not None:
            place += f"{' ' if place else ''}at byte {self.offset}"
        text = ": ".join(part for part in (self.path, place, self.problem) if part) + self.facts
        if self.rule is not None:
            text += f" [{self.rule}]"
        return text if hint is None else f"{text}; {hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their positional arguments only; worker processes need all of the facts.
        # Some attributes of OSError and ImportError are not in the dictionary.
        state = {name: getattr(self, name) for name in _FACTS if hasattr(self, name)}
        return (_rebuild, (type(self), self.problem, state))


_FACTS = (
    *("problem", "path", "entry", "offset", "expected", "found", "rule", "hint", "command"),
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


class UnsupportedVersion(FormatError):
    """The version is not one that this reader knows."""


class Truncated(FormatError):
    """The file ends before it should."""


class TrailingData(FormatError):
    """The file goes on after its stated end."""


class BadHeader(FormatError):
    """A header field has a value that is not allowed."""


class BadOffset(FormatError):
    """An offset or size points outside its region."""


class BadName(FormatError):
    """A name is outside the string table, empty or not UTF-8."""


class DuplicateName(FormatError):
    """Two entries have the same name."""


class Overlap(FormatError):
    """The stored bytes of two entries overlap."""


class SizeMismatch(FormatError):
    """Stored, declared or decoded sizes disagree."""


class LimitExceeded(FormatError):
    """A value is above a security limit; see `Limits`."""


class UnknownCodec(FormatError):
    """The codec of an entry cannot be determined."""


class BadCompression(FormatError):
    """Compressed bytes are damaged or incomplete."""


class ChecksumMismatch(FormatError):
    """Bytes differ from their checksum."""


class BadFilter(FormatError):
    """The description or the frames of a filtered entry break a rule."""


class UnknownFilter(FormatError):
    """An entry was filtered in a way that this reader does not know."""


class BadSeekTable(FormatError):
    """The seek table of an entry contradicts its frames."""


class BadMetadata(FormatError):
    """JSON metadata is malformed or has a wrong type."""


class BadValue(FormatError):
    """Values in a block break a rule: offsets run backwards, text is not UTF-8."""


class UnknownLayout(FormatError):
    """A channel has a layout that this reader does not know."""


class ChunkDiscontinuity(FormatError):
    """The chunks of an episode have gaps, repeats, overlaps or wrong lengths."""


class BadProfile(FormatError):
    """The file lacks what its role promises."""


class TrustError(ShardError):
    """The content does not fit its identity or signature."""

    code = "untrusted"


class IdentityMismatch(TrustError):
    """The content is not what its identity says."""


class BadSignature(TrustError):
    """The signature does not fit the identity and the key."""


class MissingFile(TrustError):
    """A manifest names a file that is not there."""


class ReferenceMismatch(TrustError):
    """A file differs from what its manifest says."""


class UnsafePath(ShardError):
    """A path leaves the folder that it must stay in."""


class EntryNotFound(ShardError, KeyError):
    """The file has no entry of that name."""

    candidates: Sequence[str] = ()
    """Names that are there; the hint offers the most similar ones, or else all of them if they are few."""
    wanted: str = ""
    """The name that is not there."""
    _hint: str | None = None

    @property
    def hint(self) -> str | None:
        """What to do. Computed on first access, so that code which catches the error does not wait for it."""
        if self.candidates:
            similar = did_you_mean(self.wanted, self.candidates)
            if similar is not None:
                self._hint, self.command = similar, None
            elif self._hint is None and len(self.candidates) <= _MOST_LISTED:
                self._hint = f"there is only {' and '.join(map(shorten, self.candidates))}"
            self.candidates = ()
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        self._hint = hint


class NotViewable(ShardError, ValueError):
    """The entry cannot be handed out without a copy."""


class InvalidArgument(ShardError, ValueError):
    """A call has arguments that cannot work."""


class Closed(ShardError, ValueError):
    """The reader or writer is closed."""


class MissingExtra(ShardError, ImportError):
    """An optional package is not installed."""


class ShardIOError(ShardError, OSError):
    """The operating system refused; `errno` and `strerror` are those of the original error."""

    code = "io_error"

    @classmethod
    def wrap(cls, error: OSError, doing: str, path: str | None) -> ShardIOError:
        """The same failure with the file and what was being done; raise it `from` the original.

        A missing file gives an error that is a `FileNotFoundError` too, and so on.
        """
        kind = next((kind for base, kind in _KINDS.items() if isinstance(error, base)), cls)
        reason = _REASONS.get(kind, error.strerror or str(error))
        if isinstance(error, ShardError):
            reason = str(error)
        wrapped = kind(f"{doing}: {reason}", path=path, hint=_HINTS.get(error.errno))
        wrapped.errno = error.errno
        wrapped.strerror = error.strerror
        wrapped.filename = path
        return wrapped


class FileMissing(ShardIOError, FileNotFoundError):
    """The file does not exist."""


class IsAFolder(ShardIOError, IsADirectoryError):
    """The path is a folder where a file is needed."""


class AccessDenied(ShardIOError, PermissionError):
    """The file may not be read or written."""


class FileThere(ShardIOError, FileExistsError):
    """The file exists already."""


class TransportError(ShardIOError):
    """The network or a server failed: it says nothing about the data, and trying again later may help.

    `errno` tells what happened: ECONNREFUSED and EHOSTUNREACH if the server was not reached, ETIMEDOUT if it did not answer in
    time, ECONNRESET if the connection broke, EAGAIN if it was asked too often, EINVAL if it does
    not understand the request, EPROTO, EOPNOTSUPP and ELOOP if its answer cannot be used, EIO for any other failure.
    """

    code = "transport_error"


class RemoteDenied(TransportError, AccessDenied):
    """A server or store denies access, perhaps because credentials have expired; or none were found for it."""

    code = AccessDenied.code


DATA_ERRORS: tuple[type[ShardError], ...] = (
    *(FormatError, TrustError, UnsafePath, EntryNotFound, NotViewable, InvalidArgument),
)
"""Errors that say something about the data: it is damaged or unsuitable. A scan may leave such data out.

Other errors say nothing about it: the system or the network refuses, or has no such file (`ShardIOError`), a package
is missing, another thread has closed the reader. A scan that left data out because of them would lose good data: a
disk that is not mounted has no files, either.
"""


def is_shortage(error: BaseException) -> bool:
    """Whether the process, or the machine, has run out of memory or of files that may be open."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    )


def must_stop(error: BaseException) -> bool:
    """Whether the next item would fail in the same way, so that `on_error="skip"` must raise the error.

    That is a shortage, and a network or a server that fails or denies access: leaving items out for it would lose good data.
    """
    return is_shortage(error) or isinstance(error, TransportError)


_KINDS: dict[type[OSError], type[ShardIOError]] = {
    RemoteDenied: RemoteDenied,
    FileNotFoundError: FileMissing,
    IsADirectoryError: IsAFolder,
    PermissionError: AccessDenied,
    FileExistsError: FileThere,
    TransportError: TransportError,
    # Files of other libraries and of network file systems.
    ConnectionAbortedError: TransportError,
    ConnectionRefusedError: TransportError,
    ConnectionResetError: TransportError,
    TimeoutError: TransportError,
}
_REASONS: dict[type[ShardIOError], str] = {
    FileMissing: "no such file",
    IsAFolder: "this is a folder",
}
_HINTS: dict[int | None, str] = {
    errno.ENOSPC: "the disk is full: free some space and write again",
    errno.EDQUOT: "the disk quota is used up: free some space and write again",
    errno.EFBIG: "the file would exceed the size that this system or process may write",
    errno.EROFS: "the file system is mounted read-only",
    errno.EMFILE: "close some readers, or raise the limit (ulimit -n): too many files are open",
}
