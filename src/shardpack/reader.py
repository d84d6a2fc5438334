"""One shard: random access by number, key and offset; reads only what you ask for."""

from __future__ import annotations

import hashlib
from itertools import islice, pairwise, starmap
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final

import numpy as np
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
from shard_format.foreign import HEAD_BYTES, explain
from shard_format.opening import open_source
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sequential import BLOCK_BYTES, SequentialSource
from shard_format.sources import FileSource, can_read_ranges
from shardpack._index import ShardIndex, check_index_size
from shardpack._layout import (
    BLOCK_START,
    FOOTER_SIZE,
    INDEX_MARKER,
    RECORD_MARKER,
    VERSION,
    Footer,
)
from shardpack._record_head import FIRST_READ, complete_head, parse_head
from shardpack._shard_bytes import FetchedRanges, ShardBytes
from shardpack.record import Record, open_record, read_contents, read_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shard_format.sources import SourceLike, SupportsReadRanges
    from shardpack.record import Entry

__all__ = [
    "FORMAT_VERSION",
    "Footer",
    "ShardPackReader",
    "checked_footer",
    "lie_close",
    "read_footer",
]

FORMAT_VERSION: Final = VERSION
"""The version of the format that this library reads and writes."""

# One read of this size opens a typical shard.
_TAIL: Final = 1 << 16
# Remote records up to this size are fetched whole: a request costs more than the bytes.
_SMALL_RECORD: Final = 1 << 20
# Many remote records are fetched with one request of up to 16 MiB if at most this much lies between two, on average.
_LARGEST_FETCH: Final = 1 << 24
_UNUSED: Final = 1 << 17
# Remote records whose heads are fetched together.
_HEADS_AT_ONCE: Final = 4096


def read_footer(source: SourceLike, storage_options: Mapping[str, Any] | None = None) -> Footer:
    """The footer of a shard, with one small read. It has the number of records."""
    opened = open_source(source, storage_options, tail=True)
    try:
        size = opened.size()
        tail = opened.read_at(max(0, size - FOOTER_SIZE), min(size, FOOTER_SIZE))
        return checked_footer(tail, size, lambda: opened.read_at(0, min(size, HEAD_BYTES)))
    except ShardError as error:
        raise error.located(path=opened.name) from None
    finally:
        if opened is not source:
            opened.close()


def checked_footer(tail: bytes, size: int, read_head: Callable[[], bytes]) -> Footer:
    """The footer at the end of a file. A file that starts like a shard but does not end like one is truncated.

    Args:
        tail: the end of the file.
        size: of the file.
        read_head: returns the first `HEAD_BYTES`, or all of a shorter file.
    """
    try:
        return Footer.unpack(tail[-FOOTER_SIZE:], size)
    except BadMagic as error:
        head = read_head()
        if head[8 : BLOCK_START.size] not in (RECORD_MARKER, INDEX_MARKER):
            error.problem = "not a ShardPack file"
            error.hint = error.command = None
            explain(error, head)
            raise
        raise Truncated(
            "the shard has lost its end",
            offset=error.offset,
            expected=f"the magic {error.expected}",
            found=error.found,
            rule=error.rule,
            hint=error.hint,
            command=error.command,
        ) from None


class ShardPackReader:
    """Reads one shard.

    A local file is mapped: reading a record takes no system call, and an uncompressed entry is a view of
    the file. Do not shorten a file while it is open; writers of this library never do. Safe for threads and
    after a fork. Pickles as its location and opens again.

    Opening a URL takes one request, which brings the index, or two for an index above 64 KiB. A record of at most 1 MiB
    takes one more; of a larger one the head is fetched first, and then each entry that you read.

    Owns: one mapping (with its descriptor) or one remote source.

    Args:
        source: a path, a URL, bytes, a seekable binary file, or any `ByteSource`.
        limits: what the file may ask for; raise one for files you trust.
        storage_options: headers, credentials and so on, for a URL.
    """

    def __init__(
        self,
        source: SourceLike,
        *,
        limits: Limits = DEFAULT_LIMITS,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        opened = open_source(source, storage_options, tail=True)
        self._options = dict(storage_options or {})
        self._source = source
        self._limits = limits
        self.name = opened.name
        """What errors call the shard: a path, a URL, `<bytes>`."""
        try:
            self._shard = ShardBytes.of_source(opened, limits)
            self._index = self._read_index(opened.size())
        except BaseException as error:
            if opened is not source:
                opened.close()
            if isinstance(error, ShardError):
                raise error.located(path=opened.name) from None
            raise
        if isinstance(opened, FileSource) and opened is not source:
            # Workers may run in another folder. The mapping has its own descriptor.
            self._source = opened.location or source
            if opened.location is not None:
                self._shard.mapped = opened.location, opened.identity
            opened.close()
        self._count = self._index.footer.record_count
        self._offsets: memoryview | None = None

    def _read_index(self, size: int) -> ShardIndex:
        view, slices = self._shard.view, self._shard.slices

        def read_head() -> bytes:
            return bytes(slices[0 : min(size, HEAD_BYTES)])

        if view is not None:
            footer = checked_footer(bytes(view[max(0, size - FOOTER_SIZE) :]), size, read_head)
            check_index_size(footer, self._limits)
            return ShardIndex(self.name, view[footer.index_offset :], footer, self._limits)
        start = max(0, size - _TAIL)
        tail = slices[start:size]
        footer = checked_footer(tail, size, read_head)
        check_index_size(footer, self._limits)
        if footer.index_offset < start:
            tail = slices[footer.index_offset : start] + tail
            start = footer.index_offset
        data = memoryview(tail)[footer.index_offset - start :]
        return ShardIndex(self.name, data, footer, self._limits)

    @property
    def is_here(self) -> bool:
        """Whether its bytes are in memory or mapped, so that reading makes no request."""
        return self._shard.is_here()

    @property
    def footer(self) -> Footer:
        """What the last bytes of the file say."""
        return self._index.footer

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the shard: `created`, `schema`, `user`, `version`."""
        return self._open_index().metadata

    def key_hashes(self) -> NDArray[np.uint64]:
        """XXH64 of the key of each record, in the order of the records, from the index."""
        return self._open_index().hashes_by_record()

    def key_lookup(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """The sorted key hashes and the record number of each, as views of the index."""
        return self._open_index().lookup_arrays()

    def _open_index(self) -> ShardIndex:
        if self._shard.is_closed:
            raise Closed("the shard is closed", path=self.name)
        return self._index

    def __len__(self) -> int:
        return self._count

    def _bounds(self) -> memoryview:
        """Start of every record, and the end of the last one."""
        offsets = self._offsets
        if offsets is None:
            offsets = self._offsets = self._open_index().offsets
        return offsets

    def record(self, number: int) -> Record:
        """The record of this number, which must not be negative."""
        start, end = self._span(number)
        if not self._shard.is_here():
            return self._take_spans([(start, end)])[0]
        return open_record(self._shard, start, end - start)

    def _span(self, number: int) -> tuple[int, int]:
        offsets = self._offsets or self._bounds()
        if not 0 <= number < self._count:
            raise self._no_record(number)
        return offsets[number], offsets[number + 1]

    def _no_record(self, number: int) -> IndexError:
        return IndexError(f"{self.name}: no record {number}, only 0 to {self._count - 1}")

    def __getitem__(self, number: int) -> Record:
        number = as_index(number)
        return self.record(number + self._count if number < 0 else number)

    def get_index(self) -> Sequence[int]:
        """Where each record starts: one integer per record, a view of the file."""
        return self._bounds()[: self._count]

    def pieces(self, stop: int) -> Iterator[bytes | memoryview]:
        """The bytes of the file from its beginning to `stop`, in pieces of 8 MiB."""
        self._open_index()
        view, slices = self._shard.view, self._shard.slices
        for start in range(0, stop, BLOCK_BYTES):
            end = min(stop, start + BLOCK_BYTES)
            yield slices[start:end] if view is None else view[start:end]

    def index_bytes(self) -> memoryview:
        """The bytes of the file behind its records, which are in memory since it was opened."""
        return self._open_index().stored

    def sha256(self) -> str:
        """The SHA-256 of the file, which is read whole."""
        digest = hashlib.sha256()
        for piece in self.pieces(self.footer.index_offset):
            digest.update(piece)
        digest.update(self.index_bytes())
        return digest.hexdigest()

    def read_record_at_offset(self, offset: int) -> Record:
        """The record that starts at this byte."""
        offset = as_index(offset)
        end = self._index.footer.index_offset
        if not 0 <= offset <= end - BLOCK_START.size:
            raise InvalidArgument(
                "no record starts here",
                path=self.name,
                expected=f"an offset of get_index(), below {end}",
                found=offset,
            )
        size, marker = BLOCK_START.unpack(self._shard.slices[offset : offset + BLOCK_START.size])
        if marker != RECORD_MARKER or size > end - offset:
            raise InvalidArgument(
                "no record starts here",
                path=self.name,
                offset=offset,
                expected="an offset of get_index()",
                found=marker.hex(" "),
            )
        return open_record(self._shard, offset, size)

    def records(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        whole: bool = True,
        on_bytes: Callable[[bytes | memoryview], object] | None = None,
    ) -> Iterator[Record]:
        """The records in the order of the file, from `start` up to `stop`; negative numbers count from the end.

        A remote shard is read in blocks of 8 MiB, of which the next ones are fetched while you work on one. A record
        whose head is damaged raises its error in its turn; the one after it comes next.

        Args:
            start, stop: numbers of records.
            whole: False fetches only the heads of remote records, for a caller who reads few entries or none.
            on_bytes: called with all bytes of these records, in order, as they are read; not with `whole=False`.
        """
        bounds = self._bounds_of(start, stop)
        if whole or self._shard.is_here():
            return starmap(open_record, self._blocks(bounds, on_bytes))
        spans = pairwise(bounds)
        batches = iter(lambda: list(islice(spans, _HEADS_AT_ONCE)), [])
        return (record for batch in batches for record in self._take_spans(batch, whole=False))

    def samples(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, bytes]]:
        """All entries of each record as bytes, in the order of the file; see `records`."""
        if self._shard.is_here():
            return read_contents(self._shard, pairwise(self._bounds_of(start, stop)))
        return (record.read_all() for record in self.records(start, stop))

    def _bounds_of(self, start: int, stop: int | None) -> memoryview:
        """Start of each of these records, and the end of the last one."""
        first, last, _ = slice(start, stop).indices(self._count)
        return self._bounds()[first : max(first, last) + 1]

    def _blocks(
        self, bounds: memoryview, on_bytes: Callable[[bytes | memoryview], object] | None
    ) -> Iterator[tuple[ShardBytes, int, int]]:
        """For each record what has its bytes, its start in them, and its size.

        In a remote shard, a record that is larger than a block is read while you read its entries.
        """
        shard = self._shard
        if shard.is_closed:
            raise Closed("the shard is closed", path=self.name)
        if shard.is_here():
            for start, end in pairwise(bounds):
                if on_bytes is not None and shard.view is not None:
                    on_bytes(shard.view[start:end])
                yield shard, start, end - start
            return
        assert shard.source is not None
        forward = SequentialSource(shard.source, bounds[0], bounds[-1])
        source = forward if on_bytes is None else _Watched(forward, bounds[0], on_bytes)
        large = ShardBytes(self.name, self._limits, None, source=source)
        try:
            for start, end in pairwise(bounds):
                size = end - start
                if size > BLOCK_BYTES:
                    yield large, start, size
                else:
                    yield shard.part(start, source.read_at(start, size)), 0, size
            if isinstance(source, _Watched):
                source.read_to(bounds[-1])
        finally:
            forward.release()

    def take(
        self,
        numbers: Iterable[int],
        *,
        whole: bool = True,
        read_ahead: Callable[[Record], Iterable[Entry]] | None = None,
    ) -> list[Record]:
        """The records of these numbers, in this order; negative numbers count from the end.

        Args:
            numbers: of the records.
            whole: whether to fetch records of a remote shard as a whole if they are small (up to 1 MiB); of
                others only the head is fetched.
            read_ahead: returns the entries of a record that you will read, so that those of a remote shard are
                fetched together, with a second round of requests.
        """
        return self._take_spans(self._index.spans(self._wanted(numbers)), whole, read_ahead)

    def sample(self, number: int) -> dict[str, bytes]:
        """All entries of the record of this number, which must not be negative, as bytes."""
        span = self._span(number)
        if not self._shard.is_here():
            return self._fetch_whole([span])[0].read_all()
        return next(read_contents(self._shard, (span,)))

    def take_samples(self, numbers: Iterable[int]) -> list[dict[str, bytes]]:
        """All entries of each of these records as bytes, in this order; see `take`."""
        spans = self._index.spans(self._wanted(numbers))
        if not self._shard.is_here():
            return [record.read_all() for record in self._fetch_whole(spans)]
        return self._samples_here(spans)

    def _samples_here(self, spans: Sequence[tuple[int, int]]) -> list[dict[str, bytes]]:
        view = self._shard.view  # another thread may close the shard
        if view is not None and len(spans) > 1:
            # Touch the first byte of every record, so that their memory is fetched side by side: a tenth less.
            starts = np.fromiter((start for start, _ in spans), np.int64, len(spans))
            np.frombuffer(view, np.uint8).take(starts)
        return list(read_contents(self._shard, spans))

    def take_keyed(self, numbers: Iterable[int]) -> list[tuple[str, dict[str, bytes]]]:
        """The key of each of these records, and all entries as bytes, in this order; see `take`."""
        spans = self._index.spans(self._wanted(numbers))
        if not self._shard.is_here():
            return [(record.key, record.read_all()) for record in self._fetch_whole(spans)]
        samples = self._samples_here(spans)
        keys = [read_key(self._shard, start, end) for start, end in spans]
        return list(zip(keys, samples, strict=True))

    def _wanted(self, numbers: Iterable[int]) -> list[int]:
        """Numbers from 0 on, all of which exist."""
        wanted = list(map(as_index, numbers))
        count = self._count
        if wanted and min(wanted) < 0:
            wanted = [number + count if number < 0 else number for number in wanted]
        if wanted and not 0 <= min(wanted) <= max(wanted) < count:
            raise self._no_record(next(one for one in wanted if not 0 <= one < count))
        self._bounds()
        return wanted

    def _fetch_whole(self, spans: Sequence[tuple[int, int]]) -> list[Record]:
        """Records of a remote shard with all their bytes: one round of requests."""
        shard = self._shard
        ranges = [(start, end - start) for start, end in spans]
        source = shard.source
        if source is not None and can_read_ranges(source):
            pieces = _read_together(source, ranges)
        else:
            pieces = [shard.slices[start:end] for start, end in spans]
        return [
            open_record(shard.part(start, piece), 0, size)
            for (start, size), piece in zip(ranges, pieces, strict=True)
        ]

    def _take_spans(
        self,
        spans: Sequence[tuple[int, int]],
        whole: bool = True,
        read_ahead: Callable[[Record], Iterable[Entry]] | None = None,
    ) -> list[Record]:
        """Records with their heads, and with the entries to read ahead: two rounds of requests if they are remote."""
        source = self._shard.source
        if self._shard.is_here() or source is None or not can_read_ranges(source):
            return [open_record(self._shard, start, end - start) for start, end in spans]
        ranges = [
            (start, end - start)
            if whole and end - start <= _SMALL_RECORD
            else (start, min(end - start, FIRST_READ))
            for start, end in spans
        ]
        pieces = _read_together(source, ranges) if whole else source.read_ranges(ranges)
        shard = self._shard
        assert shard.source is not None  # the same object
        records: list[Record] = []
        missing: list[tuple[FetchedRanges, int, int]] = []
        for (start, end), piece in zip(spans, pieces, strict=True):
            if len(piece) == end - start:
                records.append(open_record(shard.part(start, piece), 0, len(piece)))
                continue
            stored = complete_head(shard, start, end - start, piece)
            fetched = FetchedRanges(shard.source)
            fetched.add(start, stored if len(stored) > len(piece) else piece)
            here = ShardBytes(self.name, self._limits, None, source=shard.source, slices=fetched)
            head = parse_head(shard.part(start, stored), 0, end - start)
            record = Record(here, start, head)
            records.append(record)
            missing += (
                (fetched, entry.offset, entry.stored_size)
                for entry in (() if read_ahead is None else read_ahead(record))
                if fetched.find(entry.offset, entry.stored_size) is None
            )
        parts = source.read_ranges([(start, size) for _, start, size in missing]) if missing else []
        for (fetched, start, _), part in zip(missing, parts, strict=True):
            fetched.add(start, part)
        return records

    def find(self, key: str) -> int | None:
        """The number of the record with this key, or None."""
        found = self._find(key)
        return None if found is None else found[0]

    def _find(self, key: str) -> tuple[int, Record] | None:
        try:
            encoded = key.encode("utf-8")
        except (UnicodeEncodeError, AttributeError):
            return None
        found: tuple[int, Record] | None = None
        for number in self._open_index().records_with_hash(xxh64_intdigest(encoded)):
            record = self.record(number)
            if record.key == key:
                if found is not None:
                    raise DuplicateName(
                        f"the records {found[0]} and {number} have the same key {shorten(key)}",
                        path=self.name,
                        rule="P-REC-10",
                    )
                found = number, record
        return found

    def by_key(self, key: str) -> Record:
        """The record with this key."""
        found = self._find(key)
        if found is None:
            raise EntryNotFound(f"no record with the key {shorten(str(key))}", path=self.name)
        return found[1]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def keys(self) -> Iterator[str]:
        """The keys, in the order of the records. Reads the head of every record."""
        return (record.key for record in self.records(whole=False))

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def close(self) -> None:
        """Release the file. Views that you already have stay valid."""
        self._shard.close()
        self._index.release()
        self._offsets = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._source, self._limits, self._options)

    def __repr__(self) -> str:
        return f"<ShardPackReader {self.name!r}: {self._count} records>"


class _Watched:
    """A source that is read forward; someone sees every byte of it once, in order, also those that are not asked for.

    Args:
        source: has the bytes.
        start: the first byte to see.
        on_bytes: called with the bytes.
    """

    def __init__(
        self,
        source: SequentialSource,
        start: int,
        on_bytes: Callable[[bytes | memoryview], object],
    ) -> None:
        self.name = source.name
        self._source = source
        self._at = start
        self._on_bytes = on_bytes

    def size(self) -> int:
        return self._source.size()

    def read_at(self, offset: int, length: int) -> bytes:
        self.read_to(offset)
        data = self._source.read_at(offset, length)
        if offset + length > self._at:
            self._on_bytes(memoryview(data)[self._at - offset :])
            self._at = offset + length
        return data

    def read_to(self, stop: int) -> None:
        """Shows what is before `stop` and was not read."""
        while self._at < stop:
            piece = self._source.read_at(self._at, min(BLOCK_BYTES, stop - self._at))
            self._at += len(piece)
            self._on_bytes(piece)

    def close(self) -> None:
        self._source.close()


def lie_close(count: int, size: int, length: int) -> bool:
    """Whether one request for a range of `length` bytes is the best way to fetch `count` records of `size` bytes in it."""
    return length <= min(_LARGEST_FETCH, size + count * _UNUSED)


def _read_together(source: SupportsReadRanges, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of ranges, with one request if they are close together on the whole."""
    first = min((start for start, _ in ranges), default=0)
    length = max((start + size for start, size in ranges), default=0) - first
    if not lie_close(len(ranges), sum(size for _, size in ranges), length):
        return source.read_ranges(ranges)
    (data,) = source.read_ranges([(first, length)])
    return [data[start - first : start - first + size] for start, size in ranges]


def _reopen(source: SourceLike, limits: Limits, options: dict[str, Any]) -> ShardPackReader:
    return ShardPackReader(source, limits=limits, storage_options=options or None)
