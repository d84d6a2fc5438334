"""What the index says, for commands that list or sum up entries.

Rows come from whole columns of the index. `ShardReader.info` raises for an entry whose codec cannot be
determined; a listing shows that entry too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from shard_format import Schema, ShardReader

UNKNOWN_CODEC: Final = "unknown"
# Compressed, zstd, lz4 and filtered: what decides whether the codec can be known.
_CODEC_BITS: Final = 0x17


@dataclass(frozen=True, slots=True)
class Row:
    """One entry as the index has it."""

    name: str
    size: int
    stored: int
    codec: str
    content_type: int
    tag_bits: int
    offset: int
    crc32c: int | None
    flags: int


def iter_rows(reader: ShardReader, wanted: Collection[str] | None = None) -> Iterator[Row]:
    """The entries in the order of the index, or only those with the wanted names."""
    from shard_format._layout import HeaderFlag

    codecs = codec_names(reader)
    all_checked = bool(reader.header.flags & HeaderFlag.CHECKSUMS.value)
    index = reader.index
    columns = [
        index[field].tolist()
        for field in (
            "orig_size", "disk_size", "content_type", "tag_bits", "data_offset", "crc32c", "flags",
        )
    ]  # fmt: skip
    for name, size, stored, kind, tags, offset, crc32c, flags in zip(
        reader.names(), *columns, strict=True
    ):
        if wanted is None or name in wanted:
            yield Row(
                name=name,
                size=size,
                stored=stored,
                codec=codecs[flags & _CODEC_BITS],
                content_type=kind,
                tag_bits=tags,
                offset=offset,
                crc32c=crc32c if all_checked or crc32c else None,
                flags=flags,
            )


def codec_names(reader: ShardReader) -> dict[int, str]:
    """The codec for each combination of codec flags that occurs in the file."""
    import numpy as np

    kinds, first_rows = np.unique(reader.index["flags"] & _CODEC_BITS, return_index=True)
    pairs = zip(kinds.tolist(), first_rows.tolist(), strict=True)
    return {kind: _codec_name(reader, row) for kind, row in pairs}


def _codec_name(reader: ShardReader, row: int) -> str:
    from shard_format.errors import BadFilter, UnknownCodec

    try:
        return reader.info_at(row).codec.label
    except (UnknownCodec, BadFilter):
        return UNKNOWN_CODEC


def count_codecs(reader: ShardReader) -> dict[str, int]:
    """How many entries use each codec, the most frequent first."""
    names = codec_names(reader)
    counts: dict[str, int] = {}
    for kind, number in count_values(reader.index["flags"] & _CODEC_BITS):
        counts[names[kind]] = counts.get(names[kind], 0) + number
    return counts


def count_values(column: NDArray[Any]) -> list[tuple[int, int]]:
    """Each value of a column and how often it occurs, the most frequent first."""
    import numpy as np

    values, counts = np.unique(column, return_counts=True)
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


def exact_sum(column: NDArray[Any]) -> int:
    """The sum of a column of sizes, which come from the file and may lie: u64 would wrap."""
    halves = (column >> 32, column & 0xFFFFFFFF)
    high, low = (int(half.sum(dtype="u8")) for half in halves)
    return (high << 32) + low


def schema_or_empty(reader: ShardReader) -> Schema:
    """The schema section for naming tags; a damaged one names none."""
    from shard_format.errors import ShardError
    from shard_format.schema import Schema

    try:
        return reader.schema or Schema()
    except ShardError:
        return Schema()
