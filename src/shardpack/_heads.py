"""The heads of records, checked before anything else of a record is believed (P-REC)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from shard_format.codecs import crc32c
from shard_format.errors import (
    BadHeader,
    BadMagic,
    BadName,
    BadOffset,
    ChecksumMismatch,
    LimitExceeded,
    ShardError,
    SizeMismatch,
    UnsupportedVersion,
)
from shardpack._kinds import known_kinds, parse_kinds
from shardpack._layout import (
    ALIGNMENTS,
    CHECKED,
    CHECKSUM,
    KEY_PLACE,
    LARGEST_HEAD,
    LARGEST_RECORD_METADATA,
    LONGEST_KEY,
    MOST_ENTRIES,
    RECORD_HEAD,
    RECORD_MARKER,
    ROW,
    TAGS,
    VERSION,
    Fixed,
    MetadataEncoding,
)
from shardpack.record import Record, located

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardpack._kinds import Kinds
    from shardpack._origin import Origin

_unpack_head = RECORD_HEAD.unpack_from
_unpack_key_place = KEY_PLACE.unpack_from
_FIXED_SIZE: Final = RECORD_HEAD.size
_ROW_SIZE: Final = ROW.size
_AROUND: Final = RECORD_HEAD.size + CHECKSUM.size
# What is read of a remote record to see its head: enough for nearly all, in one request.
FIRST_READ: Final = 4096


def open_record(origin: Origin, start: int, size: int) -> Record:
    """The record in these bytes, whose head is checked; `size` is what is known to be there for it.

    Raises:
        FormatError: the head breaks a rule (P-REC, P-KND).
    """
    buffer = origin.buffer
    if buffer is None:
        return _open_in_ranges(origin, start, size)
    if size < _FIXED_SIZE:
        raise located(_too_small(size), origin, start)
    fixed = _unpack_head(buffer, start)
    _, tag, count, kinds_size, key_size, metadata_size = fixed
    kinds_start = _FIXED_SIZE + _ROW_SIZE * count
    kinds_stop = kinds_start + kinds_size
    head_size = kinds_stop + key_size + metadata_size + 4
    # The usual record passes these tests; what is wrong with another one is found out afterwards.
    if (
        fixed[0] != size
        or tag not in TAGS
        or head_size > size
        or head_size > LARGEST_HEAD
        or not 0 < key_size <= LONGEST_KEY
        or metadata_size > LARGEST_RECORD_METADATA
    ):
        raise located(_explain(Fixed(*fixed), size), origin, start)
    head = origin.slices[start : start + head_size]
    if crc32c(head) != CHECKED:
        raise located(_damaged_head(head), origin, start)
    kinds = known_kinds(head[kinds_start:kinds_stop])
    if kinds is None or kinds.count != count:
        kinds = _parse_kinds(origin, start, count, head[kinds_start:kinds_stop])
    return Record(origin, start, fixed, head, kinds, kinds.rows.unpack_from(head, _FIXED_SIZE))


def read_keys(origin: Origin, starts: Sequence[int]) -> list[str]:
    """The keys of records in memory whose heads were checked before; as `open_record` gives them, in less time."""
    buffer, slices = origin.buffer, origin.slices
    assert buffer is not None  # what is in memory is there
    stored: list[bytes] = []
    for start in starts:
        count, kinds_size, key_size = _unpack_key_place(buffer, start)
        begin = start + _FIXED_SIZE + _ROW_SIZE * count + kinds_size
        stored.append(slices[begin : begin + key_size])
    with contextlib.suppress(UnicodeDecodeError):
        keys = str(b"\0".join(stored), "utf-8").split("\0")
        if len(keys) == len(stored):
            return keys
    # One of them is not allowed: its record says so.
    return [open_record(origin, start, _unpack_head(buffer, start)[0]).key for start in starts]


def _open_in_ranges(origin: Origin, start: int, size: int) -> Record:
    """As `open_record`, with one read of the head, or two for a long one."""
    slices = origin.slices
    head = slices[start : start + min(size, FIRST_READ)]
    try:
        if len(head) < _FIXED_SIZE:
            raise _too_small(size)
        head_size = head_size_of(head, size)
    except ShardError as error:
        raise located(error, origin, start) from None
    if head_size > len(head):
        head += slices[start + len(head) : start + head_size]
    return record_of_head(origin, start, size, head[:head_size])


def head_size_of(first: bytes, size: int) -> int:
    """How long the head is that starts with these bytes, all rules of its fixed part checked."""
    fixed = Fixed(*_unpack_head(first, 0))
    error = _explain(fixed, size)
    if error is not None:
        raise error
    return _head_size(fixed)


def _head_size(fixed: Fixed) -> int:
    return (
        _AROUND
        + _ROW_SIZE * fixed.entry_count
        + fixed.kinds_size
        + fixed.key_size
        + fixed.metadata_size
    )


def record_of_head(origin: Origin, start: int, size: int, head: bytes) -> Record:
    """The record of a complete head whose fixed part was checked."""
    if crc32c(head) != CHECKED:
        raise located(_damaged_head(head), origin, start)
    fixed = Fixed(*_unpack_head(head, 0))
    kinds_start = _FIXED_SIZE + _ROW_SIZE * fixed.entry_count
    stored_kinds = head[kinds_start : kinds_start + fixed.kinds_size]
    kinds = _parse_kinds(origin, start, fixed.entry_count, stored_kinds)
    return Record(origin, start, fixed, head, kinds, kinds.rows.unpack_from(head, _FIXED_SIZE))


def _parse_kinds(origin: Origin, start: int, count: int, stored: bytes) -> Kinds:
    try:
        return parse_kinds(stored, count)
    except ShardError as error:
        raise located(error, origin, start) from None


def _too_small(size: int) -> ShardError:
    return BadOffset(
        "a record is smaller than its head",
        expected=f"at least {_AROUND} bytes",
        found=f"{size} bytes",
        rule="P-REC-1",
    )


def _damaged_head(head: bytes) -> ShardError:
    return ChecksumMismatch(
        "the head of a record is damaged",
        expected=f"CRC-32C {CHECKSUM.unpack(head[-4:])[0]:08x}",
        found=f"{crc32c(head[:-4]):08x}",
        rule="P-REC-8",
    )


def _explain(fixed: Fixed, size: int) -> ShardError | None:
    """What is wrong with the fixed part of a head, for a record that must have this size."""
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
    head_size = _head_size(fixed)
    if head_size > LARGEST_HEAD:
        return LimitExceeded(
            "the head of a record is too large",
            expected=f"at most {LARGEST_HEAD} bytes",
            found=f"{head_size} bytes",
            rule="P-REC-6",
        )
    if fixed.record_size != size:
        return SizeMismatch(
            "a record does not have the size that is there for it",
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
