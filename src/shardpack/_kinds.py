"""The kinds of a record: names and content types of its entries (spec/shardpack.md, section 3).

The bytes are the same in all records of one shape, so that they are parsed once and then found by
themselves in a dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shard_format.errors import (
    BadHeader,
    BadName,
    DuplicateName,
    InvalidArgument,
    LimitExceeded,
    SizeMismatch,
)
from shardpack._layout import (
    KIND,
    LONGEST_CONTENT_TYPE,
    LONGEST_NAME,
    MOST_ENTRIES,
    RECORD_HEAD,
    ROW,
    rows_struct,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

# A data set whose records all differ must not fill the memory.
_MOST_SHAPES: Final = 1024
_LARGEST_KNOWN: Final = 1 << 14


class Kinds:
    """Names and content types of the entries of a record, parsed."""

    __slots__ = ("content_types", "count", "key_start", "names", "positions", "rows", "stored")

    def __init__(
        self, names: tuple[str, ...], content_types: tuple[str, ...], stored: bytes
    ) -> None:
        self.names = names
        self.content_types = content_types
        self.count = len(names)
        self.stored = stored
        """The bytes in the file."""
        self.rows = rows_struct(len(names))
        self.key_start = RECORD_HEAD.size + ROW.size * len(names) + len(stored)
        """Where the key is in the head of such a record."""
        self.positions = {name: position for position, name in enumerate(names)}


_known: dict[bytes, Kinds] = {}
known_kinds = _known.get
"""The parsed form of these bytes, if it was needed before."""


def parse_kinds(stored: bytes, count: int) -> Kinds:
    """Names and content types of `count` entries, all rules checked (P-KND)."""
    kinds = _known.get(stored)
    if kinds is None:
        kinds = _parse(stored, count)
        if len(stored) <= _LARGEST_KNOWN:
            if len(_known) >= _MOST_SHAPES:
                _known.clear()
            _known[stored] = kinds
    if kinds.count != count:
        raise _wrong_size(count)
    return kinds


def _wrong_size(count: int) -> SizeMismatch:
    return SizeMismatch(
        "names and content types do not fill their area",
        expected=f"{count} entries",
        rule="P-KND-1",
    )


def _parse(stored: bytes, count: int) -> Kinds:
    if count > MOST_ENTRIES:
        raise LimitExceeded(
            "too many entries in one record",
            expected=f"at most {MOST_ENTRIES}",
            found=count,
            rule="P-REC-6",
        )
    names: list[str] = []
    content_types: list[str] = []
    position, end = 0, len(stored)
    for _ in range(count):
        if end - position < KIND.size:
            raise _wrong_size(count)
        name_size, type_size = KIND.unpack_from(stored, position)
        middle = position + KIND.size + name_size
        stop = middle + type_size
        if stop > end:
            raise _wrong_size(count)
        if not name_size or b"\0" in (raw := stored[position + KIND.size : middle]):
            raise BadName("the name of an entry is empty or holds U+0000", rule="P-KND-2")
        try:
            names.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise BadName(f"the name of an entry is not UTF-8: {error}", rule="P-KND-2") from None
        content_type = stored[middle:stop]
        if not _is_content_type(content_type):
            raise BadHeader(
                "a content type is not printable ASCII or too long",
                entry=names[-1],
                found=repr(content_type[:80]),
                rule="P-KND-3",
            )
        content_types.append(content_type.decode("ascii"))
        position = stop
    if position != end:
        raise _wrong_size(count)
    kinds = Kinds(tuple(names), tuple(content_types), stored)
    if len(kinds.positions) != count:
        raise DuplicateName(
            "a record has two entries of this name", entry=_repeated(names), rule="P-KND-4"
        )
    return kinds


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _is_content_type(text: bytes) -> bool:
    return len(text) <= LONGEST_CONTENT_TYPE and all(0x20 <= letter <= 0x7E for letter in text)


def make_kinds(names: Iterable[str], content_types: Iterable[str]) -> Kinds:
    """The kinds of a record to be written.

    Raises:
        InvalidArgument: a name or a content type that the format cannot hold.
    """
    names, content_types = tuple(names), tuple(content_types)
    if len(names) > MOST_ENTRIES:
        raise InvalidArgument(
            "too many entries in one record",
            expected=f"at most {MOST_ENTRIES}",
            found=len(names),
            rule="P-REC-6",
        )
    parts: list[bytes] = []
    for name, content_type in zip(names, content_types, strict=True):
        encoded = encode_text(name, "the name of an entry", LONGEST_NAME, "P-KND-2")
        kind = content_type.encode("ascii", "replace")
        if not _is_content_type(kind) or not content_type.isascii():
            raise InvalidArgument(
                "this cannot be a content type",
                entry=name,
                expected=f"at most {LONGEST_CONTENT_TYPE} printable ASCII characters",
                found=repr(content_type),
                rule="P-KND-3",
            )
        parts += [KIND.pack(len(encoded), len(kind)), encoded, kind]
    kinds = Kinds(names, content_types, b"".join(parts))
    if len(kinds.positions) != len(names):
        raise InvalidArgument("two entries have this name", entry=_repeated(names), rule="P-KND-4")
    return kinds


def encode_text(text: str, what: str, longest: int, rule: str) -> bytes:
    """A name or a key as UTF-8, refused if the format cannot hold it."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} is not a string", found=type(text).__name__, rule=rule)
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{what} holds a lone surrogate, which UTF-8 cannot store", found=ascii(text), rule=rule
        ) from None
    if not encoded or b"\0" in encoded:
        raise InvalidArgument(f"{what} is empty or holds U+0000", found=ascii(text), rule=rule)
    if len(encoded) > longest:
        raise InvalidArgument(
            f"{what} is too long",
            expected=f"at most {longest} bytes of UTF-8",
            found=f"{len(encoded)} bytes",
            rule=rule,
        )
    return encoded
