"""What could be better about a file that has nothing wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shard_cli.entries import Row, iter_rows
from shard_cli.text import count, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format import ShardReader

# Below this an entry is read in one go, and what could be saved is not worth a word.
_LARGE: Final = 1 << 20
_WORTH_SEEKING: Final = 8 << 20
_SAMPLE_BYTES: Final = 1 << 20
# A file may have a million entries; the largest say enough.
_MOST_SAMPLES: Final = 32
_CLEARLY_SMALLER: Final = 0.75
# Vector instructions and most element types are content with this.
_USEFUL_ALIGNMENT: Final = 16


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that could be better."""

    code: str
    entries: list[str]
    message: str
    remedy: str


def advise(reader: ShardReader) -> Iterator[Advice]:
    """Looks at the index and at samples of the largest entries."""
    rows = sorted(iter_rows(reader), key=lambda row: -row.size)
    raw = [row for row in rows if row.codec == "none" and row.size == row.stored >= _LARGE]
    yield from _compressible(reader, raw[:_MOST_SAMPLES])
    yield from _not_seekable(reader, [row for row in rows if row.codec == "zstd"])
    crooked = [row for row in raw if row.offset % _USEFUL_ALIGNMENT]
    if crooked:
        yield Advice(
            "unaligned",
            [row.name for row in crooked],
            f"{_these(crooked, 'large raw entry')} off the multiples of {_USEFUL_ALIGNMENT} bytes: "
            "arrays in there must be copied instead of mapped",
            "shard repack FILE OUT --alignment 64",
        )


def _compressible(reader: ShardReader, raw: list[Row]) -> Iterator[Advice]:
    shares = {row.name: _share(reader, row) for row in raw}
    small = [row for row in raw if shares[row.name] <= _CLEARLY_SMALLER]
    if not small:
        return
    before = sum(row.size for row in small)
    after = int(sum(row.size * shares[row.name] for row in small))
    yield Advice(
        "would_compress",
        [row.name for row in small],
        f"{_these(small, 'large raw entry')}, {size(before)}, would take about {size(after)} "
        "with zstd",
        "shard repack FILE OUT --compression zstd; leave them raw if you map them",
    )


def _share(reader: ShardReader, row: Row) -> float:
    """How much of an entry zstd would leave, from a sample in its middle."""
    from shard_format.codecs import Codec, Compression, compress

    length = min(row.size, _SAMPLE_BYTES)
    start = (row.size - length) // 2
    sample = reader.read_range(row.name, start, start + length)
    stored = compress(memoryview(sample), Compression(Codec.ZSTD, 3))
    return 1.0 if stored is None else len(stored) / length


def _not_seekable(reader: ShardReader, rows: list[Row]) -> Iterator[Advice]:
    from shard_format.errors import ShardError

    whole = []
    for row in rows:
        if row.size < _WORTH_SEEKING:
            break
        try:
            table = reader.seek_table(row.name)
        except ShardError:  # damaged; the check has said so
            continue
        if table is None:
            whole.append(row)
    if whole:
        yield Advice(
            "not_seekable",
            [row.name for row in whole],
            f"{_these(whole, 'large zstd entry')} can only be decompressed as a whole, by one thread",
            "shard repack FILE OUT --frame-bytes 1M",
        )


def _these(rows: list[Row], what: str) -> str:
    if len(rows) == 1:
        return f"the {what} {rows[0].name!r}"
    return f"{count(len(rows), what)} ({rows[0].name!r} and others)"
