"""Reading what is left of a file that does not open.

    found = salvage("broken.shard")
    if found is not None and found.reader is not None:
        print(found.reader.names())

`salvage` rebuilds the head from the index rows that make sense by themselves and opens a reader on the
result. The reader checks sizes and checksums as always: what it returns is what was written.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shard_format.layout import (
    ALIGNMENTS,
    HEADER,
    HEADER_SIZE,
    INDEX_DTYPE,
    INDEX_ENTRY_SIZE,
    MAGIC,
    VERSION,
    Header,
    HeaderFlag,
)
from shard_format.reader import ShardReader
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import FileSource

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shard_format.registry import Limits
    from shard_format.sources import ByteSource

__all__ = ["Salvaged", "salvage"]


class Salvaged(NamedTuple):
    """What could be read of a file that does not open."""

    header: Header
    """The header as it is stored; its fields may be wrong."""
    reader: ShardReader | None
    """A reader for the entries that survive, None if there are none. Close it when you are done."""
    listed: int
    """Entries that the damaged index lists."""


def salvage(path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> Salvaged | None:
    """Reads the header and every entry that survives; None if the file is not a Shard file.

    Raises:
        ShardIOError: the file cannot be read.
    """
    source = FileSource(path)
    salvaged: Salvaged | None = None
    try:
        salvaged = _salvage(source, limits)
    finally:
        if salvaged is None or salvaged.reader is None:
            source.close()
    return salvaged


def _salvage(source: ByteSource, limits: Limits) -> Salvaged | None:
    if source.size() < HEADER.size:
        return None
    header = Header(*HEADER.unpack(source.read_at(0, HEADER.size)))
    if header.magic != MAGIC:
        return None
    best: tuple[bytes, int, int] | None = None
    for count in _possible_counts(header) if header.version == VERSION else ():
        rebuilt = _rebuild(source, header, count, limits)
        if rebuilt is not None and (best is None or rebuilt[1] > best[1]):
            best = rebuilt
    if best is None:
        return Salvaged(header, None, 0)
    head, _, listed = best
    return Salvaged(header, ShardReader(_NewHead(head, source), limits=limits), listed)


class _NewHead:
    """A source with another head, which is never longer than the one it replaces."""

    def __init__(self, head: bytes, source: ByteSource) -> None:
        self._head = head
        self._source = source
        self.name = source.name

    def size(self) -> int:
        return self._source.size()

    def read_at(self, offset: int, length: int) -> bytes:
        stop = offset + length
        start = self._head[offset:stop]
        if len(start) == length:
            return start
        at = offset + len(start)
        return start + self._source.read_at(at, stop - at)

    def close(self) -> None:
        self._source.close()


def _possible_counts(header: Header) -> Iterator[int]:
    """The number of entries that the header states, and the one that the string table's offset implies."""
    yield header.entry_count
    implied, rest = divmod(header.string_table_offset - HEADER_SIZE, INDEX_ENTRY_SIZE)
    if rest == 0 and implied > 0 and implied != header.entry_count:
        yield implied


def _rebuild(
    source: ByteSource, header: Header, count: int, limits: Limits
) -> tuple[bytes, int, int] | None:
    """A new head, how many entries it has, and how many the old one listed."""
    size = source.size()
    index_end = HEADER_SIZE + INDEX_ENTRY_SIZE * count
    if count == 0 or count > limits.max_entries or index_end > size:
        return None
    rows = np.frombuffer(source.read_at(HEADER_SIZE, INDEX_ENTRY_SIZE * count), INDEX_DTYPE, count)
    table_end = header.data_section_offset
    if not index_end <= table_end <= min(size, index_end + limits.max_string_table_bytes):
        # The header is wrong about it: names end where the first block starts, at the latest.
        starts = rows["data_offset"][rows["data_offset"] >= index_end]
        table_end = min(
            int(starts.min(initial=size)), size, index_end + limits.max_string_table_bytes
        )
    table = source.read_at(index_end, table_end - index_end)
    good = rows[_sensible(rows, table, table_end, size)]
    if not len(good):
        return None
    string_table_offset = HEADER_SIZE + INDEX_ENTRY_SIZE * len(good)
    rebuilt = header._replace(
        flags=header.flags & ~HeaderFlag.BIG_ENDIAN.value,
        alignment=header.alignment if header.alignment in ALIGNMENTS else 0,
        index_entry_size=INDEX_ENTRY_SIZE,
        entry_count=len(good),
        string_table_offset=string_table_offset,
        data_section_offset=string_table_offset + len(table),
        schema_offset=0,
        total_file_size=size,
    )
    return rebuilt.pack() + good.tobytes() + table, len(good), count


def _sensible(rows: NDArray[Any], table: bytes, data_start: int, size: int) -> list[int]:
    """The rows with a name of their own and a place of their own inside the file."""
    # Digests: names that share bytes of the table may be far longer than the file.
    names: set[bytes] = set()
    kept: list[int] = []
    end = 0
    columns = [
        rows[field].tolist() for field in ("name_offset", "name_length", "data_offset", "disk_size")
    ]
    # By offset, so that looking back once finds an overlap; the result returns to index order.
    for number in rows["data_offset"].argsort(kind="stable").tolist():
        name_at, name_length, start, length = (column[number] for column in columns)
        name = table[name_at : name_at + name_length]
        digest = sha256(name).digest()
        if not name or len(name) != name_length or digest in names:
            continue
        if start < data_start or start + length > size or (length and start < end):
            continue
        with suppress(UnicodeDecodeError):
            name.decode("utf-8")
            names.add(digest)
            kept.append(number)
            end = max(end, start + length)
    return sorted(kept)
