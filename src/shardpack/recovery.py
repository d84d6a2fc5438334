"""Getting records back from a shard that lost its end, or parts of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import InvalidArgument, ShardError
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sources import open_source
from shardpack._heads import head_size_of, open_record
from shardpack._layout import BLOCK_START, INDEX_MARKER, RECORD_HEAD, RECORD_MARKER
from shardpack._origin import Origin
from shardpack.reader import ShardPackReader
from shardpack.writer import ShardPackWriter

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from shard_format.sources import SourceLike
    from shardpack.record import Record

__all__ = ["LostPart", "Recovery", "recover"]

# How much is searched for a marker at a time.
_SEARCH: Final = 1 << 20
_LEAST_BUDGET: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class LostPart:
    """Something that did not come back."""

    offset: int
    """Where it starts in the damaged file."""
    size: int
    """Bytes."""
    key: str | None
    """Of the record, if that is known."""
    reason: str
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` did."""

    records: int
    """How many came back."""
    lost: tuple[LostPart, ...]
    """What did not."""
    had_index: bool
    """Whether the index was there and undamaged."""
    output: str
    """The new shard."""

    @property
    def is_complete(self) -> bool:
        """Whether everything came back."""
        return self.had_index and not self.lost

    def __str__(self) -> str:
        text = f"{self.output}: {self.records} records came back"
        if not self.lost:
            return text + ("" if self.had_index else "; the end of the shard was missing")
        size = sum(part.size for part in self.lost)
        return f"{text}, {size} bytes in {len(self.lost)} places are lost"


def recover(
    source: SourceLike,
    output: str | os.PathLike[str],
    *,
    limits: Limits = DEFAULT_LIMITS,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> Recovery:
    """Writes a new shard with every complete, undamaged record of a damaged one, as it was stored.

    With an undamaged index its offsets are followed. Without one the file is read from its start; where
    it is damaged, the search goes on at the next marker that is followed by an undamaged head.

    Args:
        source: the damaged shard, or the `.partial` file of a writer that was killed.
        output: where the new shard appears; not the same file.
        limits: as for reading.
        options: what `ShardPackWriter` takes. Metadata, time and alignment stay as they were, as far as
            that is known.
    """
    reader = _open(source, limits)
    opened = open_source(source)
    try:
        if str(opened.name) == str(output):
            raise InvalidArgument("a shard cannot be recovered into itself", path=opened.name)
        origin = Origin.of_source(opened, limits) if opened.size() else Origin("", limits, b"")
        end = opened.size()
        lost: list[LostPart] = []
        found = _along_index(reader, lost) if reader is not None else _scan(origin, end, lost)
        fields = _fields(reader)
        # The fields may be anything.
        if isinstance(user := fields.get("user"), dict):
            options.setdefault("metadata", user)
        if isinstance(created := fields.get("created"), str):
            options.setdefault("created", created)
        options.setdefault("index_fields", fields)
        return _write(found, output, lost, reader is not None, options)
    finally:
        if reader is not None:
            reader.close()
        if opened is not source:
            opened.close()


def _open(source: SourceLike, limits: Limits) -> ShardPackReader | None:
    """A reader, if the index is good enough for one."""
    try:
        reader = ShardPackReader(source, limits=limits)
    except ShardError as error:
        if isinstance(error, OSError):
            raise
        return None
    try:
        reader.get_index()
    except ShardError:
        reader.close()
        return None
    return reader


def _fields(reader: ShardPackReader | None) -> dict[str, Any]:
    try:
        return {} if reader is None else reader.metadata
    except ShardError:
        return {}


def _write(
    found: Iterator[Record],
    output: str | os.PathLike[str],
    lost: list[LostPart],
    had_index: bool,
    options: dict[str, Any],
) -> Recovery:
    writer: ShardPackWriter | None = None
    try:
        for record in found:
            if writer is None:
                options.setdefault("alignment", record.alignment)
                writer = ShardPackWriter(output, **options)
            try:
                writer.copy(record)
            except (ShardError, UnicodeError) as error:
                if isinstance(error, OSError):
                    raise
                lost.append(LostPart(record.offset, record.size, _key(record), str(error)))
        if writer is None:
            writer = ShardPackWriter(output, **options)
        writer.close()
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
    lost.sort(key=lambda part: part.offset)
    return Recovery(len(writer), tuple(lost), had_index, writer.name)


def _key(record: Record) -> str | None:
    try:
        return record.key
    except ShardError:
        return None


def _along_index(reader: ShardPackReader, lost: list[LostPart]) -> Iterator[Record]:
    offsets = [*reader.get_index(), reader.footer.index_offset]
    for number in range(len(reader)):
        try:
            record = reader.record(number)
        except ShardError as error:
            size = offsets[number + 1] - offsets[number]
            lost.append(LostPart(offsets[number], size, None, str(error)))
            continue
        yield record


def _scan(origin: Origin, end: int, lost: list[LostPart]) -> Iterator[Record]:
    position = 0
    search = _Search(origin, end)
    while end - position >= BLOCK_START.size:
        size, marker = BLOCK_START.unpack(origin.slices[position : position + BLOCK_START.size])
        if marker == INDEX_MARKER:
            return  # what follows is no record
        if not size and not marker.strip(b"\0") and _is_empty(origin, position, end):
            return  # space that a writer claimed and did not come to use
        reason = "the file ends inside this record"
        if marker != RECORD_MARKER:
            reason = "no record starts here"
        elif size <= end - position:
            try:
                record = open_record(origin, position, size)
            except ShardError as error:
                reason = str(error)
            else:
                yield record
                position += size
                continue
        following = search.next_record(position + 1)
        lost.append(LostPart(position, following - position, None, reason))
        position = following
    if position < end and not _is_empty(origin, position, end):
        lost.append(LostPart(position, end - position, None, "the file ends inside a record"))


def _is_empty(origin: Origin, position: int, end: int) -> bool:
    """Whether there is nothing but zero bytes."""
    return all(
        not origin.slices[start : min(start + _SEARCH, end)].strip(b"\0")
        for start in range(position, end, _SEARCH)
    )


class _Search:
    """Looks for undamaged heads in what is not known to be a record."""

    def __init__(self, origin: Origin, end: int) -> None:
        self._origin = origin
        self._end = end
        # A file made of nothing but markers of large heads must not keep it busy forever.
        self._budget = _LEAST_BUDGET + 16 * end

    def next_record(self, position: int) -> int:
        """Where the next undamaged head starts, or the end."""
        end = self._end
        while position < end:
            stop = min(end, position + _SEARCH)
            block = self._origin.slices[position : min(end, stop + BLOCK_START.size)]
            at = block.find(RECORD_MARKER, 8)
            while at >= 0:
                if self._is_record(position + at - 8):
                    return position + at - 8
                at = block.find(RECORD_MARKER, at + 1)
            position = stop
        return end

    def _is_record(self, start: int) -> bool:
        room = self._end - start
        if self._budget < 0 or room < RECORD_HEAD.size:
            return False
        first = self._origin.slices[start : start + RECORD_HEAD.size]
        (size, _) = BLOCK_START.unpack(first[: BLOCK_START.size])
        if size > room:
            return False
        try:
            self._budget -= head_size_of(first, size)
            open_record(self._origin, start, size)
        except ShardError:
            return False
        return True
