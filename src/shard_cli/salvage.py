"""Reading what is left of a file that does not open.

The head is rebuilt from the rows that make sense by themselves, and a reader opens the result: it
checks sizes and checksums as always, so that what it returns is what was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shard_format import ByteSource, Limits, ShardReader
    from shard_format._layout import Header


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What could be rebuilt."""

    reader: ShardReader
    listed: int
    """Entries that the damaged index lists; the reader has those that make sense."""


class _Patched:
    """A source with another head. The head is never longer than the one it stands for."""

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


def salvage(source: ByteSource, header: Header, limits: Limits) -> Salvaged | None:
    """A reader for the entries that survive, None if there are none."""
    best: tuple[bytes, int, int] | None = None
    for count in _possible_counts(header):
        rebuilt = _rebuild(source, header, count, limits)
        if rebuilt is not None and (best is None or rebuilt[1] > best[1]):
            best = rebuilt
    if best is None:
        return None
    from shard_format import ShardReader

    head, _, listed = best
    return Salvaged(ShardReader(_Patched(head, source), limits=limits), listed)


def _possible_counts(header: Header) -> Iterator[int]:
    """The number of entries as the header has it, and as the place of the string table implies."""
    from shard_format._layout import HEADER_SIZE, INDEX_ENTRY_SIZE

    yield header.entry_count
    implied, rest = divmod(header.string_table_offset - HEADER_SIZE, INDEX_ENTRY_SIZE)
    if rest == 0 and implied > 0 and implied != header.entry_count:
        yield implied


def _rebuild(
    source: ByteSource, header: Header, count: int, limits: Limits
) -> tuple[bytes, int, int] | None:
    """A new head, how many entries it has, and how many the old one listed."""
    import numpy as np

    from shard_format._layout import (
        ALIGNMENTS,
        HEADER_SIZE,
        INDEX_DTYPE,
        INDEX_ENTRY_SIZE,
        HeaderFlag,
    )

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
    names: set[bytes] = set()
    kept: list[int] = []
    end = 0
    columns = [
        rows[field].tolist() for field in ("name_offset", "name_length", "data_offset", "disk_size")
    ]
    # By place, so that one look back finds an overlap; the result goes back to index order.
    by_place = rows["data_offset"].argsort(kind="stable").tolist()
    for number in by_place:
        name_at, name_length, start, length = (column[number] for column in columns)
        name = table[name_at : name_at + name_length]
        if not name or len(name) != name_length or name in names or not _is_utf8(name):
            continue
        if start < data_start or start + length > size or (length and start < end):
            continue
        names.add(name)
        kept.append(number)
        end = max(end, start + length)
    return sorted(kept)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
