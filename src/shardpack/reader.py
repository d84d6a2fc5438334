"""One shard: random access by number, key and offset, without reading what was not asked for."""

from __future__ import annotations

from itertools import pairwise
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh64_intdigest

from shard_format.errors import (
    BadMagic,
    Closed,
    DuplicateName,
    EntryNotFound,
    InvalidArgument,
    ShardError,
    Truncated,
    shorten,
)
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sources import FileSource, can_read_ranges, open_source
from shardpack._heads import FIRST_READ, head_size_of, open_record, record_of_head
from shardpack._index import Index, check_index_size, touched_places
from shardpack._layout import BLOCK_START, FOOTER_SIZE, INDEX_MARKER, RECORD_MARKER, Footer
from shardpack._origin import Origin
from shardpack._samples import extend_samples, read_sample, read_samples
from shardpack.record import Record, located

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from shard_format.sources import SourceLike

__all__ = ["ShardPackReader", "checked_footer", "read_footer"]

# One read of this much opens a typical shard.
_TAIL: Final = 1 << 16
# Remote records: runs of up to this many bytes are fetched together when they are read in order.
_WINDOW: Final = 8 << 20
# Remote records up to this size are fetched whole by `take`: requests cost more than bytes.
_SMALL_RECORD: Final = 1 << 20
# For fewer records of a mapped shard, to touch them first takes longer than it saves.
_MANY: Final = 16


def read_footer(source: SourceLike, storage_options: Mapping[str, Any] | None = None) -> Footer:
    """The footer of a shard: how many records it has, for one small read."""
    opened = open_source(source, storage_options)
    try:
        size = opened.size()
        tail = opened.read_at(max(0, size - FOOTER_SIZE), min(size, FOOTER_SIZE))
        return checked_footer(tail, size, lambda: opened.read_at(0, min(size, BLOCK_START.size)))
    except ShardError as error:
        raise error.located(path=opened.name) from None
    finally:
        if opened is not source:
            opened.close()


def checked_footer(tail: bytes, size: int, read_start: Callable[[], bytes]) -> Footer:
    """The footer at the end of a file; a file that starts as a shard does but ends otherwise was cut."""
    try:
        return Footer.unpack(tail[-FOOTER_SIZE:], size)
    except BadMagic as error:
        if read_start()[8:] not in (RECORD_MARKER, INDEX_MARKER):
            error.problem = "this is not a shard of a data set"
            error.hint = None
            raise
        raise Truncated(
            "the shard has lost its end",
            offset=error.offset,
            expected=f"the magic {error.expected}",
            found=error.found,
            rule=error.rule,
            hint=error.hint,
        ) from None


class ShardPackReader:
    """Reads one shard.

    Local files are mapped: reading a record takes no system call, and entries that are not compressed
    come as views of the file. A file must not be shortened while it is open; writers of this library
    never do that. Safe for threads and after a fork; pickles as its location and opens again.

    Owns: one mapping (and its descriptor) or one remote source.

    Args:
        source: a path, a URL, bytes, a binary file that can seek, or any `ByteSource`.
        limits: what the file may ask for; raise one for files you trust.
        storage_options: headers, credentials and the like for a URL.
    """

    def __init__(
        self,
        source: SourceLike,
        *,
        limits: Limits = DEFAULT_LIMITS,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        opened = open_source(source, storage_options)
        self._options = dict(storage_options or {})
        self._source = source
        self._limits = limits
        self.name = opened.name
        """What error messages call it: a path, a URL, `<bytes>`."""
        try:
            self._origin = Origin.of_source(opened, limits)
            self._index = self._open_index(opened.size())
        except BaseException as error:
            if opened is not source:
                opened.close()
            if isinstance(error, ShardError):
                raise error.located(path=opened.name) from None
            raise
        if isinstance(opened, FileSource) and opened is not source:
            # Workers may run in another folder. The mapping has a descriptor of its own.
            self._source = opened._location or source
            self._origin.location = opened._location
            opened.close()
        self._count = self._index.footer.record_count
        self._offsets: memoryview | None = None

    def _open_index(self, size: int) -> Index:
        view = self._origin.view
        if view is not None:
            tail = bytes(view[max(0, size - FOOTER_SIZE) :])
            footer = checked_footer(tail, size, lambda: self._origin.slices[0 : BLOCK_START.size])
            check_index_size(footer, self._limits)
            return Index(view[footer.index_offset :], footer, self._limits)
        slices = self._origin.slices
        start = max(0, size - _TAIL)
        tail = slices[start:size]
        footer = checked_footer(tail, size, lambda: slices[0 : min(size, BLOCK_START.size)])
        check_index_size(footer, self._limits)
        if footer.index_offset < start:
            tail = slices[footer.index_offset : start] + tail
            start = footer.index_offset
        return Index(memoryview(tail)[footer.index_offset - start :], footer, self._limits)

    @property
    def footer(self) -> Footer:
        """What the last bytes of the file say."""
        return self._index.footer

    @property
    def index(self) -> Index:
        """The parsed index."""
        self._ensure_open()
        return self._index

    @property
    def origin(self) -> Origin:
        """Where the bytes come from."""
        return self._origin

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the shard: `created`, `schema`, `user`, `version`."""
        self._ensure_open()
        with _In(self):
            return self._index.metadata

    def __len__(self) -> int:
        return self._count

    def record(self, number: int) -> Record:
        """The record of this number, which must not be negative."""
        offsets = self._offsets
        if offsets is None:
            offsets = self._load_offsets()
        if not 0 <= number < self._count:
            raise self._no_record(number)
        start = offsets[number]
        return open_record(self._origin, start, offsets[number + 1] - start)

    def _no_record(self, number: int) -> IndexError:
        return IndexError(f"{self.name}: there is no record {number}, only 0 to {self._count - 1}")

    def _ensure_open(self) -> None:
        if self._origin.is_closed:
            raise Closed("the shard is closed", path=self.name)

    def _load_offsets(self) -> memoryview:
        self._ensure_open()
        with _In(self):
            self._offsets = self._index.offsets
        assert self._offsets is not None
        return self._offsets

    def __getitem__(self, number: int) -> Record:
        number = as_index(number)
        return self.record(number + self._count if number < 0 else number)

    def get_index(self) -> Sequence[int]:
        """Where each record starts: one integer a record, a view of the file."""
        offsets = self._load_offsets()
        return offsets[: self._count]

    def read_record_at_offset(self, offset: int) -> Record:
        """The record that starts at this byte."""
        offset = as_index(offset)
        footer = self._index.footer
        if not 0 <= offset <= footer.index_offset - BLOCK_START.size:
            raise InvalidArgument(
                "no record starts here",
                path=self.name,
                expected=f"an offset of get_index(), below {footer.index_offset}",
                found=offset,
            )
        size, marker = BLOCK_START.unpack(self._origin.slices[offset : offset + BLOCK_START.size])
        if marker != RECORD_MARKER or size > footer.index_offset - offset:
            raise InvalidArgument(
                "no record starts here",
                path=self.name,
                offset=offset,
                expected="an offset of get_index()",
                found=marker.hex(" "),
            )
        return open_record(self._origin, offset, size)

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """The records in the order of the file, from `start` up to `stop`; negative ones count from the end.

        Of a remote shard, records come in runs of up to 8 MiB, whole; larger ones stay where they are.
        """
        first, last, _ = slice(start, stop).indices(self._count)
        offsets = self._offsets
        if offsets is None:
            offsets = self._load_offsets()
        origin = self._origin
        if origin.buffer is None:
            yield from self._records_in_windows(first, last)
            return
        begin = offsets[first] if first < last else 0
        for number in range(first + 1, last + 1):
            end = offsets[number]
            yield open_record(origin, begin, end - begin)
            begin = end

    def _records_in_windows(self, first: int, last: int) -> Iterator[Record]:
        """Many small remote records with one request; a large record stays where it is."""
        offsets = self._offsets or self._load_offsets()
        number = first
        while number < last:
            begin = offsets[number]
            stop = number + 1
            while stop < last and offsets[stop + 1] - begin <= _WINDOW:
                stop += 1
            if offsets[stop] - begin > _WINDOW:
                yield self.record(number)
            else:
                block = self._block(begin, self._origin.slices[begin : offsets[stop]])
                for inside in range(number, stop):
                    at = offsets[inside]
                    yield open_record(block, at - begin, offsets[inside + 1] - at)
            number = stop

    def _block(self, begin: int, data: bytes) -> Origin:
        return Origin(self.name, self._limits, data, begin)

    def take(self, numbers: Iterable[int]) -> list[Record]:
        """The records of these numbers, in this order; negative ones count from the end.

        Of a remote shard, small records come whole and together, of large ones only the heads.
        """
        origin = self._origin
        wanted = self._wanted(numbers)
        if origin.view is not None and len(wanted) >= _MANY:
            return [
                open_record(origin, start, end - start)
                for places in self._touched(wanted, origin.view)
                for start, end in places
            ]
        source = origin.source
        if source is None or not can_read_ranges(source):
            record = self.record
            return [record(number) for number in wanted]
        offsets = self._load_offsets()
        for number in wanted:
            if not 0 <= number < self._count:
                raise self._no_record(number)
        spans = [(offsets[number], offsets[number + 1] - offsets[number]) for number in wanted]
        pieces = source.read_ranges(
            [
                (start, size if size <= _SMALL_RECORD else min(size, FIRST_READ))
                for start, size in spans
            ]
        )
        return [
            self._from_piece(start, size, piece)
            for (start, size), piece in zip(spans, pieces, strict=True)
        ]

    def sample(self, number: int) -> dict[str, bytes]:
        """All entries of the record of this number, which must not be negative, as `Record.read_all` gives them."""
        offsets = self._offsets
        if offsets is None:
            offsets = self._load_offsets()
        if not 0 <= number < self._count:
            raise self._no_record(number)
        return read_sample(self._origin, offsets[number], offsets[number + 1])

    def samples(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, bytes]]:
        """All entries of each record, in the order of the file; faster than `records` and `read_all`."""
        if self._origin.buffer is None:
            return (record.read_all() for record in self.records(start, stop))
        offsets = self._offsets
        if offsets is None:
            offsets = self._load_offsets()
        first, last, _ = slice(start, stop).indices(self._count)
        return read_samples(self._origin, pairwise(offsets[first : max(first, last) + 1]))

    def take_samples(self, numbers: Iterable[int]) -> list[dict[str, bytes]]:
        """All entries of each of these records, in this order; see `take`."""
        origin = self._origin
        if origin.view is None:
            return [record.read_all() for record in self.take(numbers)]
        wanted = self._wanted(numbers)
        if len(wanted) < _MANY:
            sample = self.sample
            return [sample(number) for number in wanted]
        found: list[dict[str, bytes]] = []
        for places in self._touched(wanted, origin.view):
            extend_samples(found, origin, places)
        return found

    def _wanted(self, numbers: Iterable[int]) -> list[int]:
        """Numbers as they are given, negative ones counted from the end."""
        wanted = list(map(as_index, numbers))
        if wanted and min(wanted) < 0:
            count = self._count
            wanted = [number + count if number < 0 else number for number in wanted]
        return wanted

    def _touched(self, numbers: list[int], view: memoryview) -> Iterator[Iterator[tuple[int, int]]]:
        """Start and end of these records of a mapped shard, which are about to be read."""
        for number in (min(numbers), max(numbers)):
            if not 0 <= number < self._count:
                raise self._no_record(number)
        return touched_places(self._offsets or self._load_offsets(), numbers, view)

    def _from_piece(self, start: int, size: int, piece: bytes) -> Record:
        if len(piece) == size:
            return open_record(self._block(start, piece), 0, size)
        try:
            head_size = head_size_of(piece, size)
        except ShardError as error:
            raise located(error, self._origin, start) from None
        if head_size > len(piece):
            piece += self._origin.slices[start + len(piece) : start + head_size]
        return record_of_head(self._origin, start, size, piece[:head_size])

    def find(self, key: str) -> int | None:
        """The number of the record with this key, or None."""
        try:
            encoded = key.encode("utf-8")
        except (UnicodeEncodeError, AttributeError):
            return None
        self._ensure_open()
        found: int | None = None
        with _In(self):
            for number in self._index.records_with_hash(xxh64_intdigest(encoded)):
                if self.record(number).key == key:
                    if found is not None:
                        raise DuplicateName(
                            f"the records {found} and {number} have the same key {shorten(key)}",
                            rule="P-REC-10",
                        )
                    found = number
        return found

    def by_key(self, key: str) -> Record:
        """The record with this key."""
        number = self.find(key)
        if number is None:
            raise EntryNotFound(
                f"there is no record with the key {shorten(str(key))}", path=self.name
            )
        return self.record(number)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def keys(self) -> Iterator[str]:
        """The keys, in the order of the records. Reads the head of every record."""
        for record in self.records():
            yield record.key

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def close(self) -> None:
        """Lets go of the file. Views that were handed out stay valid."""
        self._origin.close()
        self._index.let_go()
        self._offsets = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._source, self._limits, self._options)

    def __repr__(self) -> str:
        return f"<ShardPackReader {self.name!r}: {self._count} records>"


def _reopen(source: SourceLike, limits: Limits, options: dict[str, Any]) -> ShardPackReader:
    return ShardPackReader(source, limits=limits, storage_options=options or None)


class _In:
    """Names the file in errors that pass."""

    __slots__ = ("_reader",)

    def __init__(self, reader: ShardPackReader) -> None:
        self._reader = reader

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, ShardError):
            error.located(path=self._reader.name)
