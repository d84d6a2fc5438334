"""The head of a record: parsed and checked before anything else of the record is used (P-REC, P-KND).

Most records of a shard have the same names and content types, so each distinct value is parsed once and then looked up.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.codecs import crc32c
from shard_format.errors import (
    BadHeader,
    BadMagic,
    BadName,
    BadOffset,
    ChecksumMismatch,
    DuplicateName,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    SizeMismatch,
    UnsupportedVersion,
)
from shardpack._layout import (
    ALIGNMENTS,
    CHECKED,
    CHECKSUM,
    LARGEST_HEAD,
    LARGEST_RECORD_METADATA,
    LONGEST_CONTENT_TYPE,
    LONGEST_KEY,
    LONGEST_NAME,
    MOST_ENTRIES,
    RECORD_HEAD,
    RECORD_MARKER,
    ROW,
    TAGS,
    TYPE_LENGTHS,
    VERSION,
    rows_struct,
    sample_rows,
)
from shardpack.encodings import MetadataEncoding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardpack._shard_bytes import ShardBytes

_unpack_fixed = RECORD_HEAD.unpack_from
_FIXED_SIZE: Final = RECORD_HEAD.size
_ROW_SIZE: Final = ROW.size
_AROUND: Final = RECORD_HEAD.size + CHECKSUM.size
# Bounds the memory for a dataset in which every record differs.
_MOST_KNOWN: Final = 1024
_LARGEST_KNOWN: Final = 1 << 14
FIRST_READ: Final = 4096
"""Bytes to fetch of a remote record to see its head: enough for nearly all of them."""


class RecordHead(NamedTuple):
    """A checked head."""

    stored: bytes
    """The head as it is in the file, checksum included."""
    tag: bytes
    types: EntryTypes
    rows: tuple[int, ...]
    """Stored size, original size, checksum and encoding of each entry, one after the other."""
    key_size: int
    metadata_size: int


def parse_head(shard: ShardBytes, start: int, size: int) -> RecordHead:
    """Parse the head of the record that takes `size` bytes from `start` on.

    The head of a remote record is read with one request, or with two if it is long.

    Raises:
        FormatError: the head breaks a rule (P-REC, P-KND).
    """
    buffer = shard.buffer
    if buffer is None:
        first = shard.slices[start : start + min(size, FIRST_READ)]
        stored = complete_head(shard, start, size, first)
        return parse_head(shard.part(start, stored), 0, size)
    if size < _FIXED_SIZE:
        raise at_record(_too_small(size), shard, start)
    record_size, tag, count, types_size, key_size, metadata_size = _unpack_fixed(buffer, start)
    types_start = _FIXED_SIZE + _ROW_SIZE * count
    types_stop = types_start + types_size
    head_size = types_stop + key_size + metadata_size + 4
    if (
        record_size != size
        or tag not in TAGS
        or head_size > size
        or head_size > LARGEST_HEAD
        or not 0 < key_size <= LONGEST_KEY
        or metadata_size > LARGEST_RECORD_METADATA
    ):
        fixed = _Fixed(record_size, tag, count, types_size, key_size, metadata_size)
        problem = _find_problem(fixed, size)
        assert problem is not None  # the conditions are the same, in fewer steps
        raise at_record(problem, shard, start)
    stored = shard.slices[start : start + head_size]
    if crc32c(stored) != CHECKED:
        raise at_record(_damaged(stored), shard, start)
    try:
        types = parse_types(stored[types_start:types_stop], count)
    except ShardError as error:
        raise at_record(error, shard, start) from None
    rows = types.rows.unpack_from(stored, _FIXED_SIZE)
    return RecordHead(stored, tag, types, rows, key_size, metadata_size)


def complete_head(shard: ShardBytes, start: int, size: int, first: bytes) -> bytes:
    """Fetch the rest of a head of which only the first bytes are here."""
    try:
        if len(first) < _FIXED_SIZE:
            raise _too_small(size)
        head_size = head_size_of(first, size)
    except ShardError as error:
        raise at_record(error, shard, start) from None
    if head_size > len(first):
        first += shard.slices[start + len(first) : start + head_size]
    return first[:head_size]


class _Fixed(NamedTuple):
    """The fixed part of a head."""

    record_size: int
    tag: bytes
    entry_count: int
    types_size: int
    key_size: int
    metadata_size: int

    @property
    def head_size(self) -> int:
        return (
            _AROUND
            + _ROW_SIZE * self.entry_count
            + self.types_size
            + self.key_size
            + self.metadata_size
        )


def head_size_of(first: bytes, size: int) -> int:
    """Size of the head that starts with these bytes; checks every rule of its fixed part."""
    fixed = _Fixed(*_unpack_fixed(first, 0))
    problem = _find_problem(fixed, size)
    if problem is not None:
        raise problem
    return fixed.head_size


def at_record(error: ShardError, shard: ShardBytes, start: int) -> ShardError:
    """Add the file and the start of the record to an error."""
    if error.offset is None:
        error.offset = shard.base + start
    return error.located(path=shard.name)


def _too_small(size: int) -> ShardError:
    return BadOffset(
        "a record is smaller than its head",
        expected=f"at least {_AROUND} bytes",
        found=f"{size} bytes",
        rule="P-REC-1",
    )


def _damaged(stored: bytes) -> ShardError:
    return ChecksumMismatch(
        "the head of a record is damaged",
        expected=f"CRC-32C {CHECKSUM.unpack(stored[-4:])[0]:08x}",
        found=f"{crc32c(stored[:-4]):08x}",
        rule="P-REC-8",
    )


def _find_problem(fixed: _Fixed, size: int) -> ShardError | None:
    """The first rule that the fixed part of a head breaks, for a record of `size` bytes."""
    tag = fixed.tag
    if tag[:4] != RECORD_MARKER:
        return BadMagic(
            "no record starts here",
            expected=f"the marker {RECORD_MARKER.decode()!r} 8 bytes on",
            found=tag[:4].hex(" "),
            rule="P-REC-2",
        )
    if tag[4] != VERSION:
        return UnsupportedVersion(
            "unknown version of the format", expected=VERSION, found=tag[4], rule="P-REC-3"
        )
    if tag[5] not in tuple(MetadataEncoding) or tag[6] not in ALIGNMENTS or tag[7]:
        return BadHeader(
            "metadata encoding, alignment or flags of a record are not allowed",
            expected=f"0 to 2; one of {ALIGNMENTS}; 0",
            found=f"{tag[5]}; {tag[6]}; {tag[7]}",
            rule="P-REC-4",
        )
    for what, value, most, rule in (
        ("key", fixed.key_size, LONGEST_KEY, "P-REC-5"),
        ("entries", fixed.entry_count, MOST_ENTRIES, "P-REC-6"),
        ("metadata", fixed.metadata_size, LARGEST_RECORD_METADATA, "P-REC-6"),
    ):
        if value > most:
            return LimitExceeded(
                f"too large in the head of a record: {what}",
                expected=f"at most {most}",
                found=value,
                rule=rule,
            )
    if not fixed.key_size:
        return BadName("a record has no key", rule="P-REC-5")
    head_size = fixed.head_size
    if head_size > LARGEST_HEAD:
        return LimitExceeded(
            "the head of a record is too large",
            expected=f"at most {LARGEST_HEAD} bytes",
            found=f"{head_size} bytes",
            rule="P-REC-6",
        )
    if fixed.record_size != size:
        return SizeMismatch(
            "the size of a record does not match its place in the shard",
            expected=f"{size} bytes",
            found=f"{fixed.record_size} bytes",
            rule="P-REC-7",
        )
    if head_size > size:
        return BadOffset(
            "the head of a record is larger than the record",
            expected=f"at most {size} bytes",
            found=f"{head_size} bytes",
            rule="P-REC-7",
        )
    return None


# --- names and content types of the entries (section 3)


class EntryTypes:
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
        """Where the key starts in the head of a record with these entries."""
        self.positions = {name: position for position, name in enumerate(names)}

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_types, (self.stored, self.count)


class UsualHead(NamedTuple):
    """What the heads of records with the same entry names share."""

    shape: bytes = b""
    """Tag, entry_count and types_size; empty if no head was read yet."""
    around: int = 0
    """Bytes of a head without key and metadata."""
    types_start: int = 0
    stored_types: bytes = b""
    unpack_rows: Callable[[bytes, int], tuple[int, ...]] = ROW.unpack_from
    """Stored size, original size, and checksum of each entry; its encoding counts as upper bits of the checksum."""
    names: tuple[str, ...] = ()
    mask: int = 0
    """Alignment minus one."""

    @classmethod
    def of(cls, head: bytes, types: EntryTypes, mask: int) -> UsualHead:
        """Expect more heads like this one."""
        return cls(
            head[8:24],
            types.key_start + CHECKSUM.size,
            types.key_start - len(types.stored),
            types.stored,
            sample_rows(types.count).unpack_from,
            types.names,
            mask,
        )


def parse_types(stored: bytes, count: int) -> EntryTypes:
    """Parse names and content types of `count` entries and check every rule (P-KND)."""
    return (_parse_known if len(stored) <= _LARGEST_KNOWN else _parse)(stored, count)


def _wrong_size(count: int) -> SizeMismatch:
    return SizeMismatch(
        "names and content types do not fill their area",
        expected=f"{count} entries",
        rule="P-KND-1",
    )


def _parse(stored: bytes, count: int) -> EntryTypes:
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
        if end - position < TYPE_LENGTHS.size:
            raise _wrong_size(count)
        name_size, type_size = TYPE_LENGTHS.unpack_from(stored, position)
        middle = position + TYPE_LENGTHS.size + name_size
        stop = middle + type_size
        if stop > end:
            raise _wrong_size(count)
        if not name_size or b"\0" in (raw := stored[position + TYPE_LENGTHS.size : middle]):
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
    types = EntryTypes(tuple(names), tuple(content_types), stored)
    if len(types.positions) != count:
        raise DuplicateName(
            "a record has two entries of this name", entry=_repeated(names), rule="P-KND-4"
        )
    return types


_parse_known = lru_cache(_MOST_KNOWN)(_parse)


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _is_content_type(text: bytes) -> bool:
    return len(text) <= LONGEST_CONTENT_TYPE and all(0x20 <= letter <= 0x7E for letter in text)


def make_types(names: Iterable[str], content_types: Iterable[str]) -> EntryTypes:
    """Encode the names and content types of a record that you write.

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
        encoded_type = content_type.encode("ascii", "replace")
        if not _is_content_type(encoded_type) or not content_type.isascii():
            raise InvalidArgument(
                "not a valid content type",
                entry=name,
                expected=f"at most {LONGEST_CONTENT_TYPE} printable ASCII characters",
                found=repr(content_type),
                rule="P-KND-3",
            )
        parts += [TYPE_LENGTHS.pack(len(encoded), len(encoded_type)), encoded, encoded_type]
    types = EntryTypes(names, content_types, b"".join(parts))
    if len(types.positions) != len(names):
        raise InvalidArgument("two entries have this name", entry=_repeated(names), rule="P-KND-4")
    return types


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
