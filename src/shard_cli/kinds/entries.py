"""What the index of a container says, for listings and sums.

Rows come from whole columns of the index. `ShardReader.info` raises for an entry whose codec cannot be
determined; a listing shows that entry, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format import Schema
from shard_format.errors import DATA_ERRORS, BadFilter, UnknownCodec
from shard_format.layout import HeaderFlag

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from shard_format import ShardReader

# Compressed, zstd, lz4 and filtered: the flags of an entry that say how it is stored.
_CODEC_BITS: Final = 0x17
_COLUMNS: Final = [
    "orig_size",
    "disk_size",
    "flags",
    "content_type",
    "tag_bits",
    "data_offset",
    "crc32c",
]
_FLAG_WORDS: Final = {
    0x0001: "compressed (historical)",
    0x0002: "little-endian",
    0x0004: "big-endian",
    0x0010: "schema",
    0x0020: "checksums",
    0x0040: "reserved head",
    0x0080: "content types",
}


class ListedEntry(NamedTuple):
    """One entry as the index has it."""

    name: str
    size: int
    stored: int
    flags: int
    content_type: int
    tag_bits: int
    offset: int
    crc32c: int | None
    codec: str


def iter_rows(reader: ShardReader, wanted: Collection[str] | None = None) -> Iterator[ListedEntry]:
    """The entries in the order of the index, or only those with the wanted names."""
    codecs = _codec_names(reader)
    all_checked = bool(reader.header.flags & HeaderFlag.CHECKSUMS)
    columns = [reader.index[field].tolist() for field in _COLUMNS]
    for name, size, stored, flags, kind, tags, offset, crc32c in zip(
        reader.names(), *columns, strict=True
    ):
        if wanted is None or name in wanted:
            checksum = crc32c if all_checked or crc32c else None
            codec = codecs[flags & _CODEC_BITS]
            yield ListedEntry(name, size, stored, flags, kind, tags, offset, checksum, codec)


def _codec_names(reader: ShardReader) -> dict[int, str]:
    """The codec for each combination of codec flags that occurs in the file."""
    kinds, first_rows = np.unique(reader.index["flags"] & _CODEC_BITS, return_index=True)
    names: dict[int, str] = {}
    for kind, row in zip(kinds.tolist(), first_rows.tolist(), strict=True):
        try:
            names[kind] = reader.info_at(row).codec.label
        except (UnknownCodec, BadFilter):  # noqa: PERF203 - at most a few combinations
            names[kind] = "unknown"
    return names


def count_codecs(reader: ShardReader) -> dict[str, int]:
    """How many entries use each codec, the most frequent first."""
    names = _codec_names(reader)
    counts: dict[str, int] = {}
    for kind, number in count_values(reader.index["flags"] & _CODEC_BITS):
        counts[names[kind]] = counts.get(names[kind], 0) + number
    return counts


def count_values(column: NDArray[Any]) -> list[tuple[int, int]]:
    """Each value of a column and how often it occurs, the most frequent first."""
    values, counts = np.unique(column, return_counts=True)
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


def exact_sum(column: NDArray[Any]) -> int:
    """The sum of a column of sizes, which come from the file and may lie: u64 would wrap."""
    high, low = (int(half.sum(dtype="u8")) for half in (column >> 32, column & 0xFFFFFFFF))
    return (high << 32) + low


def schema_or_empty(reader: ShardReader) -> Schema:
    """The schema section, for the names of tags; an empty one if it is damaged."""
    try:
        return reader.schema or Schema()
    except DATA_ERRORS:
        return Schema()


def flag_names(flags: int) -> list[str]:
    """The header's flags in words."""
    names = [word for bit, word in _FLAG_WORDS.items() if flags & bit]
    unknown = flags & ~sum(_FLAG_WORDS)
    return [*names, f"unknown 0x{unknown:04x}"] if unknown else names
