"""Recovering records from a shard that is truncated or damaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import DATA_ERRORS, InvalidArgument
from shard_format.opening import copying_urls, open_source
from shard_format.registry import DEFAULT_LIMITS, Limits
from shardpack._layout import BLOCK_START, INDEX_MARKER, RECORD_HEAD, RECORD_MARKER
from shardpack._record_head import head_size_of
from shardpack._shard_bytes import ShardBytes
from shardpack.reader import ShardPackReader
from shardpack.record import open_record
from shardpack.writer import ShardPackWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shard_format.sources import SourceLike
    from shardpack.record import Record, StoredEntry
    from shardpack.writer import Output

__all__ = ["LostPart", "PackRecovery", "recover"]

# Bytes to search at a time: few at first, so that a file of many small gaps is not read once for each of them.
_FIRST_PIECE: Final = 256
_LARGEST_PIECE: Final = 1 << 20
_LEAST_BUDGET: Final = 64 << 20
_LOSSES: Final[tuple[type[Exception], ...]] = (*DATA_ERRORS, UnicodeError)


@dataclass(frozen=True, slots=True)
class LostPart:
    """Something that could not be recovered."""

    offset: int
    """Where it starts in the damaged file."""
    size: int
    """Bytes."""
    key: str | None
    """Of the record, if that is known."""
    reason: str
    """What is wrong with it."""
    entry: str | None = None
    """The entry, if the rest of its record was recovered."""


@dataclass(frozen=True, slots=True)
class PackRecovery:
    """What `recover` did."""

    records: int
    """How many were recovered."""
    lost: tuple[LostPart, ...]
    """What could not be recovered."""
    had_index: bool
    """Whether the index was intact."""
    output: str
    """The new shard."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was recovered."""
        return self.had_index and not self.lost

    def __str__(self) -> str:
        text = f"{self.output}: {self.records} records recovered"
        if not self.lost:
            return text + ("" if self.had_index else "; the end of the shard was missing")
        size = sum(part.size for part in self.lost)
        return f"{text}, {size} bytes in {len(self.lost)} places are lost"


def recover(
    source: SourceLike,
    output: Output,
    *,
    entries: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> PackRecovery:
    """Write a new shard with every intact record of a damaged one, as it was stored.

    If the index is intact, its offsets are used. Otherwise the file is read from its start; after damage, the
    search continues at the next marker that an intact head follows.

    Args:
        source: the damaged shard, or the `.partial` file that a killed writer left.
        output: the new shard; not the same file.
        entries: True also keeps the intact entries, and the metadata, of a record that has damaged ones. The result
            lists those; the recovered record does not show that it had them.
        limits: as for reading.
        options: what `ShardPackWriter` takes. Metadata, time and alignment are kept if they are known.
    """
    with copying_urls():
        opened = open_source(source)
    reader = _open(opened, limits)
    try:
        if str(opened.name) == str(output):
            raise InvalidArgument("a shard cannot be recovered into itself", path=opened.name)
        shard = (
            ShardBytes.of_source(opened, limits) if opened.size() else ShardBytes("", limits, b"")
        )
        end = opened.size()
        lost: list[LostPart] = []
        found = _along_index(reader, lost) if reader is not None else _scan(shard, end, lost)
        fields = _fields(reader)
        # The fields may have any type.
        if isinstance(user := fields.get("user"), dict):
            options.setdefault("metadata", user)
        if isinstance(created := fields.get("created"), str):
            options.setdefault("created", created)
        keep = _keep_entries if entries else None
        return _write(found, output, lost, keep, fields, reader is not None, options)
    finally:
        if reader is not None:
            reader.close()
        if opened is not source:
            opened.close()


def _open(source: SourceLike, limits: Limits) -> ShardPackReader | None:
    """A reader, if the index is intact."""
    try:
        reader = ShardPackReader(source, limits=limits)
    except DATA_ERRORS:
        return None
    try:
        reader.get_index()
    except DATA_ERRORS:
        reader.close()
        return None
    return reader


def _fields(reader: ShardPackReader | None) -> dict[str, Any]:
    try:
        return {} if reader is None else reader.metadata
    except DATA_ERRORS:
        return {}


def _write(
    found: Iterator[Record],
    output: Output,
    lost: list[LostPart],
    keep: Callable[[Record, ShardPackWriter], list[LostPart]] | None,
    fields: dict[str, Any],
    had_index: bool,
    options: dict[str, Any],
) -> PackRecovery:
    writer: ShardPackWriter | None = None
    try:
        for record in found:
            if writer is None:
                options.setdefault("alignment", record.alignment)
                writer = ShardPackWriter(output, **options)
            try:
                try:
                    writer.copy(record)
                except _LOSSES:
                    if keep is None:
                        raise
                    lost += keep(record, writer)
            except _LOSSES as error:
                lost.append(LostPart(record.offset, record.size, _key(record), str(error)))
        if writer is None:
            writer = ShardPackWriter(output, **options)
        writer.keep_fields(fields)
        writer.close()
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
    lost.sort(key=lambda part: part.offset)
    return PackRecovery(len(writer), tuple(lost), had_index, writer.name)


def _keep_entries(record: Record, writer: ShardPackWriter) -> list[LostPart]:
    """Write the intact entries of a record, and return the others.

    Raises:
        FormatError: its key is damaged, or was written before.
    """
    key = record.key
    intact: list[StoredEntry] = []
    lost: list[LostPart] = []
    for name in record.names:
        try:
            intact.append(record[name].stored_entry())
        except _LOSSES as error:  # noqa: PERF203 - each entry may be damaged
            lost.append(_lost_entry(record, name, str(error)))
    writer.write_stored(key, intact, *record.stored_metadata)
    return lost


def _lost_entry(record: Record, name: str, reason: str) -> LostPart:
    try:
        entry = record[name]
    except _LOSSES:  # it leaves its record
        return LostPart(record.offset, 0, record.key, reason, name)
    return LostPart(entry.offset, entry.stored_size, record.key, reason, name)


def _key(record: Record) -> str | None:
    try:
        return record.key
    except DATA_ERRORS:
        return None


def _along_index(reader: ShardPackReader, lost: list[LostPart]) -> Iterator[Record]:
    offsets = [*reader.get_index(), reader.footer.index_offset]
    for number in range(len(reader)):
        try:
            record = reader.record(number)
        except DATA_ERRORS as error:
            size = offsets[number + 1] - offsets[number]
            lost.append(LostPart(offsets[number], size, None, str(error)))
            continue
        yield record


def _scan(shard: ShardBytes, end: int, lost: list[LostPart]) -> Iterator[Record]:
    position = 0
    search = _Search(shard, end)
    while end - position >= BLOCK_START.size:
        size, marker = BLOCK_START.unpack(shard.slices[position : position + BLOCK_START.size])
        if marker == INDEX_MARKER:
            return  # no more records
        if not size and not marker.strip(b"\0") and _is_empty(shard, position, end):
            return  # space that a writer reserved and did not use
        reason = "the file ends inside this record"
        if marker != RECORD_MARKER:
            reason = "no record starts here"
        elif size <= end - position:
            try:
                record = open_record(shard, position, size)
            except DATA_ERRORS as error:
                reason = str(error)
            else:
                yield record
                position += size
                continue
        following = search.next_record(position + 1)
        lost.append(LostPart(position, following - position, None, reason))
        position = following
    if position < end and not _is_empty(shard, position, end):
        lost.append(LostPart(position, end - position, None, "the file ends inside a record"))


def _is_empty(shard: ShardBytes, position: int, end: int) -> bool:
    """Whether all bytes are zero."""
    return all(not shard.slices[start:stop].strip(b"\0") for start, stop in _pieces(position, end))


def _pieces(position: int, end: int) -> Iterator[tuple[int, int]]:
    """Start and stop of pieces that cover a range, each twice as large as the one before."""
    size = _FIRST_PIECE
    while position < end:
        stop = min(end, position + size)
        yield position, stop
        position, size = stop, min(2 * size, _LARGEST_PIECE)


class _Search:
    """Looks for intact heads in damaged parts."""

    def __init__(self, shard: ShardBytes, end: int) -> None:
        self._shard = shard
        self._end = end
        # Bounds the work on a file that is full of false markers.
        self._budget = _LEAST_BUDGET + 16 * end

    def next_record(self, position: int) -> int:
        """Where the next intact head starts, or the end."""
        end = self._end
        for start, stop in _pieces(position, end):
            block = self._shard.slices[start : min(end, stop + BLOCK_START.size)]
            at = block.find(RECORD_MARKER, 8)
            while at >= 0:
                if self._is_record(start + at - 8):
                    return start + at - 8
                at = block.find(RECORD_MARKER, at + 1)
        return end

    def _is_record(self, start: int) -> bool:
        room = self._end - start
        if self._budget < 0 or room < RECORD_HEAD.size:
            return False
        first = self._shard.slices[start : start + RECORD_HEAD.size]
        (size, _) = BLOCK_START.unpack(first[: BLOCK_START.size])
        if size > room:
            return False
        try:
            self._budget -= head_size_of(first, size)
            open_record(self._shard, start, size)
        except DATA_ERRORS:
            return False
        return True
