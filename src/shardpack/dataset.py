"""A data set of one or many shards, read as one long sequence of records."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections import deque
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import numpy as np
from xxhash import xxh64_intdigest

from shard_format._parallel import for_each, map_in_order
from shard_format.errors import Closed, DuplicateName, EntryNotFound, InvalidArgument, shorten
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sources import is_url
from shardpack._heads import open_record
from shardpack._index import sorted_lookup
from shardpack._samples import read_sample
from shardpack.patterns import expand
from shardpack.reader import ShardPackReader, read_footer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shardpack._layout import Footer
    from shardpack.patterns import Shards
    from shardpack.record import Record

__all__ = ["Dataset", "open"]

_Taken = TypeVar("_Taken")

_MOST_OPEN: Final = 256
# Remote shards that are asked at the same time.
_AT_ONCE: Final = 8


def open(
    shards: Shards,
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any] | None = None,
    max_open: int = _MOST_OPEN,
) -> Dataset:
    """Opens a data set.

    Args:
        shards: a path, a URL, `"train-{000000..000973}.shardpack"`, a pattern such as `"train-*"`, a
            folder, bytes, a binary file, or a list of these, read in this order.
        limits: what a file may ask for; raise one for files you trust.
        storage_options: headers, credentials and the like for URLs.
        max_open: shards that are held open at a time; others are opened again when they are needed.

    Raises:
        ShardError: a subclass that says which file is missing or which rule it breaks. A shard that is
            not the first one may fail later, when it is first needed.
    """
    return Dataset(shards, limits=limits, storage_options=storage_options, max_open=max_open)


class Dataset:
    """Records of one or many shards, numbered from 0 on, in the order of the shards.

    Shards are opened when they are needed; how many records each has is read at once on the first
    access by number. Safe for threads and after a fork; pickles as its locations.
    """

    def __init__(
        self,
        shards: Shards,
        *,
        limits: Limits = DEFAULT_LIMITS,
        storage_options: Mapping[str, Any] | None = None,
        max_open: int = _MOST_OPEN,
    ) -> None:
        if max_open < 1:
            raise InvalidArgument("max_open is too small", expected="1 or more", found=max_open)
        self._locations = expand(shards)
        self._limits = limits
        self._options = dict(storage_options) if storage_options else None
        self._max_open = max_open
        self._set_up()
        first = self._shard(0)
        self._only: ShardPackReader | None = first if len(self._locations) == 1 else None

    def _set_up(self) -> None:
        self._readers: list[ShardPackReader | None] = [None] * len(self._locations)
        self._opened: deque[int] = deque()
        self._closed = False
        self._footers: Sequence[Footer] | None = None
        self._starts: list[int] | None = None
        self._lookup: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None

    def _shard(self, number: int) -> ShardPackReader:
        reader = self._readers[number]
        if reader is not None:
            return reader
        if self._closed:
            raise Closed("the data set is closed", path=self._described())
        # Without a lock, which a forked child might find held forever. Two threads may open the same
        # shard: both readers work, and the one that is not kept ends with its last record.
        reader = ShardPackReader(
            self._locations[number], limits=self._limits, storage_options=self._options
        )
        self._readers[number] = reader
        self._opened.append(number)
        while len(self._opened) > self._max_open:
            # Dropped, not closed: another thread, or a record, may be reading from it.
            with contextlib.suppress(IndexError):
                self._readers[self._opened.popleft()] = None
        return reader

    def _bounds(self) -> list[int]:
        """Number of the first record of each shard, and the number of all."""
        starts = self._starts
        if starts is None:
            starts = [0]
            for footer in self.footers():
                starts.append(starts[-1] + footer.record_count)
            self._starts = starts
        return starts

    def footers(self) -> Sequence[Footer]:
        """The end of each shard, which says how many records it has: read once, of remote ones several at a time."""
        found = self._footers
        if found is None:
            only = self._only
            found = self._footers = self._read_footers() if only is None else [only.footer]
        return found

    def _read_footers(self) -> list[Footer]:
        if self._closed:
            raise Closed("the data set is closed", path=self._described())

        def footer(number: int) -> Footer:
            reader = self._readers[number]
            if reader is None:
                return read_footer(self._locations[number], self._options)
            return reader.footer

        return map_in_order(range(len(self._locations)), footer, self._at_once)

    @property
    def _at_once(self) -> int:
        """Shards that are asked at the same time: of remote ones each answer is waited for."""
        first = self._locations[0]
        return _AT_ONCE if isinstance(first, str) and is_url(first) else 1

    @property
    def locations(self) -> tuple[Any, ...]:
        """Where each shard is: a path, a URL, or what else `open` was given."""
        return tuple(self._locations)

    @property
    def shards(self) -> ShardSequence:
        """The shards, each opened when it is asked for."""
        return ShardSequence(self)

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the first shard: `created`, `schema`, `user`, `version`."""
        return self._shard(0).metadata

    def __len__(self) -> int:
        only = self._only
        return len(only) if only is not None else self._bounds()[-1]

    @overload
    def __getitem__(self, item: int | str) -> Record: ...

    @overload
    def __getitem__(self, item: slice) -> list[Record]: ...

    def __getitem__(self, item: int | str | slice) -> Record | list[Record]:
        """The record of a number (negative ones count from the end) or key; a list for a slice."""
        if type(item) is int:
            only = self._only
            if only is not None and item >= 0:
                # What `ShardPackReader.record` does, without another call.
                offsets = only._offsets
                if offsets is not None and item < only._count:
                    start = offsets[item]
                    return open_record(only._origin, start, offsets[item + 1] - start)
            return self._record(item)
        if isinstance(item, str):
            return self._by_key(item)
        if isinstance(item, slice):
            return self.take(range(*item.indices(len(self))))
        return self._record(as_index(item))

    def _record(self, number: int) -> Record:
        shard, inside = self._place(number)
        return self._shard(shard).record(inside)

    def _place(self, number: int) -> tuple[int, int]:
        """Which shard holds a record, and its number there."""
        starts = self._bounds()
        count = starts[-1]
        at = number + count if number < 0 else number
        if not 0 <= at < count:
            raise IndexError(f"there is no record {number} in a data set of {count}")
        shard = bisect_right(starts, at) - 1
        return shard, at - starts[shard]

    def _by_key(self, key: str) -> Record:
        number = self.find(key)
        if number is None:
            raise EntryNotFound(
                f"there is no record with the key {shorten(key)}", path=self._described()
            )
        return self[number]

    def find(self, key: str) -> int | None:
        """The number of the record with this key, or None.

        Over many shards, the first call brings the key hashes of all into memory: 16 bytes a record.
        """
        if self._only is not None:
            return self._only.find(key)
        try:
            key_hash = xxh64_intdigest(key.encode("utf-8"))
        except UnicodeEncodeError:
            return None
        if self._lookup is None:
            indexes = [shard.index.lookup_arrays() for shard in self.shards]
            self._lookup = sorted_lookup(indexes, self._bounds()[:-1])
        hashes, numbers = self._lookup
        at = int(hashes.searchsorted(np.uint64(key_hash)))
        found: int | None = None
        while at < hashes.size and int(hashes[at]) == key_hash:
            number = int(numbers[at])
            if self._record(number).key == key:
                if found is not None:
                    first, second = (self._locations[self._place(n)[0]] for n in (found, number))
                    raise DuplicateName(
                        f"the key {shorten(key)} is in two places",
                        found=f"{first} and {second}",
                        rule="P-REC-10",
                        hint="open the shards one by one, or merge them",
                    )
                found = number
            at += 1
        return found

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """The records from `start` up to `stop` in order; negative ones count from the end.

        Without bounds no shard is opened before its turn.
        """
        return self._in_order(start, stop, ShardPackReader.records)

    def _in_order(
        self,
        start: int,
        stop: int | None,
        all_of: Callable[[ShardPackReader, int, int | None], Iterator[_Taken]],
    ) -> Iterator[_Taken]:
        if self._closed:
            raise Closed("the data set is closed", path=self._described())
        if self._only is not None:
            return all_of(self._only, start, stop)
        return self._in_order_of_shards(start, stop, all_of)

    def _in_order_of_shards(
        self,
        start: int,
        stop: int | None,
        all_of: Callable[[ShardPackReader, int, int | None], Iterator[_Taken]],
    ) -> Iterator[_Taken]:
        if start == 0 and stop is None:
            for number in range(len(self._locations)):
                yield from all_of(self._shard(number), 0, None)
            return
        starts = self._bounds()
        first, last, _ = slice(start, stop).indices(starts[-1])
        for number in range(len(self._locations)):
            begin, end = starts[number], starts[number + 1]
            if begin < last and first < end:
                yield from all_of(
                    self._shard(number), max(0, first - begin), min(end, last) - begin
                )

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def keys(self) -> Iterator[str]:
        """The keys, in the order of the records. Reads the head of every record."""
        for record in self.records():
            yield record.key

    def take(self, indices: Iterable[int]) -> list[Record]:
        """The records of these numbers, in this order; those of a remote shard come together."""
        return self._take(indices, ShardPackReader.take)

    def _take(
        self,
        indices: Iterable[int],
        take_of: Callable[[ShardPackReader, Iterable[int]], list[_Taken]],
    ) -> list[_Taken]:
        if isinstance(indices, np.ndarray):
            indices = indices.tolist()
        if self._only is not None:
            return take_of(self._only, indices)
        wanted = [self._place(as_index(number)) for number in indices]
        by_shard: dict[int, list[int]] = {}
        for position, (shard, _) in enumerate(wanted):
            by_shard.setdefault(shard, []).append(position)
        found: dict[int, _Taken] = {}

        def take(shard: int) -> None:
            positions = by_shard[shard]
            taken = take_of(self._shard(shard), [wanted[position][1] for position in positions])
            found.update(zip(positions, taken, strict=True))

        for_each(by_shard, take, min(self._at_once, len(by_shard)))
        return [found[position] for position in range(len(wanted))]

    def sample(self, number: int) -> dict[str, bytes]:
        """All entries of the record of this number, checked and decompressed: name to bytes.

        What `ds[number].read_all()` returns, in less time.
        """
        only = self._only
        if only is not None and type(number) is int and number >= 0:
            # What `ShardPackReader.sample` and `read_sample` do, without other calls.
            offsets = only._offsets
            if offsets is not None and number < only._count:
                origin = only._origin
                start, end = offsets[number], offsets[number + 1]
                reader = origin.sample_reader
                contents = None if reader is None else reader.one(start, end)
                return read_sample(origin, start, end) if contents is None else contents
        shard, inside = self._place(as_index(number))
        return self._shard(shard).sample(inside)

    def samples(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, bytes]]:
        """All entries of each record from `start` up to `stop`: `records`, each with `read_all`, in less time."""
        return self._in_order(start, stop, ShardPackReader.samples)

    def take_samples(self, indices: Iterable[int]) -> list[dict[str, bytes]]:
        """All entries of each of these records, in this order: `take`, each with `read_all`, in less time."""
        return self._take(indices, ShardPackReader.take_samples)

    def __getitems__(self, indices: Iterable[int]) -> list[Record]:
        """What loaders ask for a batch; see `take`."""
        return self.take(indices)

    def get_index(self) -> Sequence[int]:
        """What `read_record_at_offset` takes for each record, in order.

        For one shard this is where the records start in the file. Over many shards the offsets count
        from the start of the first one, as if all files followed one another.
        """
        if self._only is not None:
            return self._only.get_index()
        parts = [
            np.asarray(shard.get_index(), np.uint64) + np.uint64(base)
            for shard, base in zip(self.shards, self._file_starts(), strict=False)
        ]
        return np.concatenate(parts).data

    def _file_starts(self) -> list[int]:
        """Where each file would start if all followed one another, and where the last would end."""
        starts = [0]
        for shard in self.shards:
            starts.append(starts[-1] + shard.footer.total_size)
        return starts

    def read_record_at_offset(self, offset: int) -> Record:
        """The record at an offset of `get_index`."""
        if self._only is not None:
            return self._only.read_record_at_offset(offset)
        starts = self._file_starts()
        offset = as_index(offset)
        shard = bisect_right(starts, offset) - 1
        if not 0 <= shard < len(self._locations):
            raise InvalidArgument(
                "no record starts here", expected=f"an offset below {starts[-1]}", found=offset
            )
        return self._shard(shard).read_record_at_offset(offset - starts[shard])

    def close(self) -> None:
        """Closes all shards. Views that were handed out stay valid; records do not."""
        self._closed = True
        for number in tuple(self._opened):
            reader = self._readers[number]
            if reader is not None:
                reader.close()
                if self._only is None:
                    self._readers[number] = None
        self._opened.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _described(self) -> str:
        first = self._locations[0]
        name = first if isinstance(first, str) else getattr(first, "name", "<bytes>")
        more = len(self._locations) - 1
        return f"{name} and {more} more" if more else str(name)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers may run in another folder: what is open says where it is.
        locations = [_absolute(location) for location in self._locations]
        return _reopen, (locations, self._limits, self._options, self._max_open)

    def __repr__(self) -> str:
        return f"<Dataset {self._described()!r}>"


class ShardSequence:
    """The shards of a data set as a sequence that opens them one by one."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset._locations)

    def __getitem__(self, number: int) -> ShardPackReader:
        return self._dataset._shard(range(len(self))[number])

    def __iter__(self) -> Iterator[ShardPackReader]:
        return map(self._dataset._shard, range(len(self)))


def _absolute(location: Any) -> Any:  # noqa: ANN401 - any source
    if isinstance(location, str) and not is_url(location):
        return os.path.abspath(location)
    return location


def _reopen(
    locations: list[Any], limits: Limits, options: dict[str, Any] | None, max_open: int
) -> Dataset:
    return Dataset(locations, limits=limits, storage_options=options, max_open=max_open)
