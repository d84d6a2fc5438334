"""A dataset of one or many shards, read as one sequence of records."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, Union, overload

import numpy as np
from xxhash import xxh64_intdigest

from shard_format import display
from shard_format.cache import open_with_room
from shard_format.errors import (
    DATA_ERRORS,
    Closed,
    DuplicateName,
    EntryNotFound,
    InvalidArgument,
    ShardError,
    shorten,
)
from shard_format.listing import expand as expand_names
from shard_format.opening import UrlOpening, open_source
from shard_format.parallel import for_each, map_in_order, ordered_parallel
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sources import files_to_keep, is_url
from shardpack._index import sorted_lookup
from shardpack._switch import finish_replacements
from shardpack.reader import ShardPackReader, lie_close, read_footer
from shardpack.sets import SUFFIX as _SET_SUFFIX
from shardpack.sets import ShardSet, is_set_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shard_format.sources import SourceLike
    from shardpack._layout import Footer
    from shardpack.record import Entry, Record

__all__ = ["Dataset", "Shards", "expand", "expand_set_files", "find_repeated_keys", "open"]

_Taken = TypeVar("_Taken")
Shards: TypeAlias = Union["SourceLike | Iterable[SourceLike]"]
"""What `shardpack.open` takes."""
_SUFFIX: Final = ".shardpack"
_SET_FIELDS: Final = ("created", "revision", "schema", "user", "version")

_MOST_OPEN: Final = 256
# What a notebook shows.
_MOST_COUNTED: Final = 1000
_RECORDS_SHOWN: Final = 5
_PICTURES_SHOWN: Final = 3
# Remote shards to read at the same time.
_AT_ONCE: Final = 8


def open(
    shards: Shards,
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any] | None = None,
    max_open: int = _MOST_OPEN,
) -> Dataset:
    """Open a dataset.

    Args:
        shards: a path, a URL, a set file `"train.shardpack-set"`, `"train-{000000..000973}.shardpack"`, a pattern
            such as `"train-*"`, a folder, bytes, a binary file, or a list of these, read in this order.
        limits: what a file may ask for; raise one for files you trust.
        storage_options: headers, credentials and so on, for URLs.
        max_open: keep at most this many shards open, and fewer while a quarter of the descriptors that the process may
            have (`ulimit -n`) are in use; others are opened again on demand.

    Raises:
        ShardError: a file is missing or breaks a rule. Only the first shard is opened now, or none if you pass a set
            file; the others may fail later, when you first need them.
    """
    return Dataset(shards, limits=limits, storage_options=storage_options, max_open=max_open)


class Dataset:
    """Records of one or many shards, numbered from 0, in the order of the shards.

    A shard is opened when you first need it. The first access by number reads the record count of every
    shard, unless a set file states it. Safe for threads and after a fork. Pickles as its locations, with what a set
    file says about them.
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
        self._limits = limits
        self._options = dict(storage_options) if storage_options else None
        self._max_open = max_open
        self._shards = self._find(shards)
        if finish_replacements(set(map(os.path.dirname, self._local_paths()))):
            self._shards = self._find(shards)
        self._locations = [shard.location for shard in self._shards]
        self._set_up()
        self._only: ShardPackReader | None = None
        if self._shards[0].set is None:
            first = self._shard(0)
            self._only = first if len(self._locations) == 1 else None

    def _find(self, shards: Shards) -> list[_FoundShard]:
        return list(_find_shards(shards, self._limits, self._options))

    def _local_paths(self) -> Iterator[str]:
        locations = (shard.location for shard in self._shards)
        return (one for one in locations if isinstance(one, str) and not is_url(one))

    def _set_up(self) -> None:
        self._readers: list[ShardPackReader | None] = [None] * len(self._locations)
        self._opened: deque[int] = deque()
        self._closed = False
        self._footers: Sequence[Footer] | None = None
        self._starts: list[int] | None = None
        self._lookup: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None

    def _options_of(self, location: Any) -> dict[str, Any] | None:  # noqa: ANN401 - any source
        """The storage options, which only URLs take: a `file://` URL has become a path."""
        return self._options if isinstance(location, str) and is_url(location) else None

    def _shard(self, number: int, count: int = 0) -> ShardPackReader:
        """A shard from which `count` records are about to be read whole."""
        reader = self._readers[number]
        if reader is not None:
            return reader
        if self._closed:
            raise Closed("the dataset is closed", path=self.label)
        # No lock, because a forked child could find it held forever. Two threads may open the same shard; both
        # readers work, and the one that is not kept ends with its last record.
        location, listed, row = self._shards[number]
        if listed is not None:
            listed.check_place(row, location)
        reader = open_with_room(
            lambda: self._open_reader(number, count), lambda: self._drop(len(self._opened))
        )
        if listed is not None:
            listed.check_footer(row, reader.footer, location)
        self._readers[number] = reader
        self._opened.append(number)
        held = len(self._opened)
        self._drop(held - files_to_keep(held, self._max_open))
        return reader

    def _open_reader(self, number: int, count: int) -> ShardPackReader:
        location, listed, row = self._shards[number]
        options = self._options_of(location)
        if listed is None or not is_url(location):
            return ShardPackReader(location, limits=self._limits, storage_options=options)
        opening = UrlOpening(tail=True, known=listed.known(row))
        footer = listed.footers[row]
        needed = count * footer.index_offset // max(1, footer.record_count)
        if count and lie_close(count, needed, footer.total_size):
            # The index comes with the records.
            opening["first_read"] = footer.total_size
        return ShardPackReader(open_source(location, options, **opening), limits=self._limits)

    def _drop(self, count: int) -> None:
        """Forget the shards that were opened first. Another thread or a record may still read from them."""
        for _ in range(count):
            with contextlib.suppress(IndexError):
                self._readers[self._opened.popleft()] = None

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
        """The footer of each shard, which has its record count; those that a set file lists are not read.

        Read once, several at a time if they are remote.
        """
        found = self._footers
        if found is None:
            only = self._only
            found = self._footers = self._read_footers() if only is None else [only.footer]
        return found

    def _read_footers(self) -> list[Footer]:
        if self._closed:
            raise Closed("the dataset is closed", path=self.label)

        def footer(number: int) -> Footer:
            location, listed, row = self._shards[number]
            if listed is not None:
                return listed.footers[row]
            reader = self._readers[number]
            if reader is None and self.is_remote:
                # The request that brings the footer brings the index, too.
                reader = self._shard(number)
            if reader is None:
                return read_footer(location, self._options_of(location))
            return reader.footer

        return map_in_order(range(len(self._locations)), footer, self._at_once)

    @property
    def is_remote(self) -> bool:
        """Whether its shards are behind URLs."""
        first = self._locations[0]
        return isinstance(first, str) and is_url(first)

    @property
    def makes_requests(self) -> bool:
        """Whether reading asks a server; not if a cache has all shards."""
        if not self.is_remote:
            return False
        from shard_format.remote import is_cached  # imports what HTTP needs

        return not all(
            is_cached(location, self._options, None if listed is None else listed.known(row))
            for location, listed, row in self._shards
        )

    @property
    def _at_once(self) -> int:
        """How many shards to read at the same time; remote ones make us wait."""
        return _AT_ONCE if self.is_remote else 1

    @property
    def locations(self) -> tuple[Any, ...]:
        """Where each shard is: a path, a URL, or whatever you gave to `open`."""
        return tuple(self._locations)

    @property
    def shards(self) -> ShardSequence:
        """The shards; each is opened when you ask for it."""
        return ShardSequence(len(self._locations), self._shard)

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the set file, or else of the first shard: `created`, `schema`, `user`, `version`.

        A set file also has a `revision`, and its schema is that of all shards.
        """
        listed = self._shards[0].set
        if listed is None:
            return self._shard(0).metadata
        return {name: listed.fields[name] for name in _SET_FIELDS if name in listed.fields}

    def __len__(self) -> int:
        only = self._only
        return len(only) if only is not None else self._bounds()[-1]

    @overload
    def __getitem__(self, item: int | str) -> Record: ...

    @overload
    def __getitem__(self, item: slice) -> list[Record]: ...

    def __getitem__(self, item: int | str | slice) -> Record | list[Record]:
        """The record of a number (negative numbers count from the end) or key; a list for a slice."""
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
            raise IndexError(f"no record {number} in a dataset of {count}")
        shard = bisect_right(starts, at) - 1
        return shard, at - starts[shard]

    def _by_key(self, key: str) -> Record:
        if self._only is not None:
            return self._only.by_key(key)
        found = self._find_in_all(key)
        if found is None:
            raise EntryNotFound(f"no record with the key {shorten(key)}", path=self.label)
        return found[1]

    def find(self, key: str) -> int | None:
        """The number of the record with this key, or None.

        Over many shards, the first call loads the key hashes of all of them: 16 bytes per record.
        """
        if self._only is not None:
            return self._only.find(key)
        found = self._find_in_all(key)
        return None if found is None else found[0]

    def _find_in_all(self, key: str) -> tuple[int, Record] | None:
        try:
            key_hash = xxh64_intdigest(key.encode("utf-8"))
        except UnicodeEncodeError:
            return None
        if self._lookup is None:
            # Copies: views of all the shards would keep all of them open.
            copies = self._of_all(_copied_lookup)
            self._lookup = sorted_lookup(copies, self._bounds()[:-1])
        hashes, numbers = self._lookup
        at = int(hashes.searchsorted(np.uint64(key_hash)))
        found: tuple[int, Record] | None = None
        while at < hashes.size and int(hashes[at]) == key_hash:
            number = int(numbers[at])
            record = self._record(number)
            if record.key == key:
                if found is not None:
                    first, second = (self._locations[self._place(n)[0]] for n in (found[0], number))
                    raise DuplicateName(
                        f"the key {shorten(key)} is in two places",
                        found=f"{first} and {second}",
                        rule="P-REC-10",
                        hint="open the shards one by one, or merge them",
                    )
                found = number, record
            at += 1
        return found

    def key_hashes(self) -> NDArray[np.uint64]:
        """XXH64 of the key of each record, in order, from the indexes."""
        return np.concatenate(self._of_all(ShardPackReader.key_hashes))

    def _of_all(self, ask: Callable[[ShardPackReader], _Taken]) -> list[_Taken]:
        """What each shard answers; several remote ones are opened at a time."""
        numbers = range(len(self._locations))
        return map_in_order(numbers, lambda number: ask(self._shard(number)), self._at_once)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def records(
        self, start: int = 0, stop: int | None = None, *, whole: bool = True
    ) -> Iterator[Record]:
        """The records from `start` up to `stop` in order; negative numbers count from the end.

        Without bounds, no shard is opened before its turn.

        Args:
            start, stop: numbers of records.
            whole: False fetches only the heads of remote records; see `ShardPackReader.records`.
        """
        return self._in_order(start, stop, partial(ShardPackReader.records, whole=whole))

    def _in_order(
        self,
        start: int,
        stop: int | None,
        all_of: Callable[[ShardPackReader, int, int | None], Iterator[_Taken]],
    ) -> Iterator[_Taken]:
        if self._closed:
            raise Closed("the dataset is closed", path=self.label)
        if self._only is not None:
            return all_of(self._only, start, stop)
        return self._in_order_of_shards(start, stop, all_of)

    def _in_order_of_shards(
        self,
        start: int,
        stop: int | None,
        all_of: Callable[[ShardPackReader, int, int | None], Iterator[_Taken]],
    ) -> Iterator[_Taken]:
        numbers = range(len(self._locations))
        parts: list[tuple[int, int, int | None]] = [(number, 0, None) for number in numbers]
        if start or stop is not None:
            starts = self._bounds()
            first, last, _ = slice(start, stop).indices(starts[-1])
            parts = [
                (
                    number,
                    max(0, first - starts[number]),
                    min(starts[number + 1], last) - starts[number],
                )
                for number in numbers
                if starts[number] < last and first < starts[number + 1]
            ]

        def begin(part: tuple[int, int, int | None]) -> Iterator[_Taken]:
            number, first, end = part
            taken = all_of(self._shard(number), first, end)
            return chain(list(islice(taken, 1)), taken)

        # Who wants a few records gets one shard. Later ones that are remote are opened while another is read.
        for part in parts[:1]:
            yield from begin(part)
        for taken in ordered_parallel(parts[1:], begin, 1, int(self.is_remote)):
            yield from taken

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def keys(self) -> Iterator[str]:
        """The keys, in the order of the records. Reads the head of every record."""
        for record in self.records(whole=False):
            yield record.key

    def take(
        self,
        indices: Iterable[int],
        *,
        whole: bool = True,
        read_ahead: Callable[[Record], Iterable[Entry]] | None = None,
    ) -> list[Record]:
        """The records of these numbers, in this order; those of a remote shard are fetched together.

        Args:
            indices: numbers of records; negative ones count from the end.
            whole, read_ahead: how much to fetch of remote records; see `ShardPackReader.take`.
        """

        def take_of(shard: ShardPackReader, numbers: Iterable[int]) -> list[Record]:
            return shard.take(numbers, whole=whole, read_ahead=read_ahead)

        return self._take(indices, take_of, whole=whole)

    def take_samples(self, indices: Iterable[int]) -> list[dict[str, bytes]]:
        """All entries of each of these records as bytes, in this order."""
        return self._take(indices, ShardPackReader.take_samples)

    def take_keyed(self, indices: Iterable[int]) -> list[tuple[str, dict[str, bytes]]]:
        """The key of each of these records, and all entries as bytes, in this order."""
        return self._take(indices, ShardPackReader.take_keyed)

    def _take(
        self,
        indices: Iterable[int],
        take_of: Callable[[ShardPackReader, Iterable[int]], list[_Taken]],
        whole: bool = True,
    ) -> list[_Taken]:
        if isinstance(indices, np.ndarray):
            indices = indices.tolist()
        if self._only is not None:
            return take_of(self._only, indices)
        wanted = [self._place(as_index(number)) for number in indices]
        by_shard: dict[int, list[int]] = {}
        for position, (shard, _) in enumerate(wanted):
            by_shard.setdefault(shard, []).append(position)

        def taken_of(shard: int) -> list[_Taken]:
            positions = by_shard[shard]
            reader = self._shard(shard, len(positions) if whole else 0)
            return take_of(reader, [wanted[position][1] for position in positions])

        if len(by_shard) == 1:  # they are in order
            return taken_of(wanted[0][0])
        found: dict[int, _Taken] = {}

        def take(shard: int) -> None:
            found.update(zip(by_shard[shard], taken_of(shard), strict=True))

        readers = [self._readers[shard] for shard in by_shard]
        is_here = all(reader is not None and reader.is_here for reader in readers)
        for_each(by_shard, take, 1 if is_here else min(self._at_once, len(by_shard)))
        return [found[position] for position in range(len(wanted))]

    def sample(self, number: int) -> dict[str, bytes]:
        """All entries of the record of this number, checked and decompressed: name to bytes."""
        shard, inside = self._place(as_index(number))
        return self._shard(shard).sample(inside)

    def samples(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, bytes]]:
        """All entries of each record as bytes, from `start` up to `stop`."""
        return self._in_order(start, stop, ShardPackReader.samples)

    def __getitems__(self, indices: Iterable[int]) -> list[Record]:
        """What data loaders call for a batch; see `take`."""
        return self.take(indices)

    def get_index(self) -> Sequence[int]:
        """What `read_record_at_offset` takes for each record, in order.

        For one shard this is where the records start in the file. Over many shards, offsets count from the
        start of the first one, as if the files were concatenated.
        """
        if self._only is not None:
            return self._only.get_index()
        parts = [
            np.asarray(shard.get_index(), np.uint64) + np.uint64(base)
            for shard, base in zip(self.shards, self._file_starts(), strict=False)
        ]
        return np.concatenate(parts).data

    def _file_starts(self) -> list[int]:
        """Where each file would start if the files were concatenated, and where the last would end."""
        starts = [0]
        for footer in self.footers():
            starts.append(starts[-1] + footer.total_size)
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
        """Close all shards. Views that you already have stay valid; records do not."""
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

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def label(self) -> str:
        """The dataset in messages: the name of its first shard, and how many more there are."""
        first = self._locations[0]
        name = first if isinstance(first, str) else getattr(first, "name", "<bytes>")
        more = len(self._locations) - 1
        return f"{name} and {more} more" if more else str(name)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers may run in another folder.
        shards = [
            _FoundShard(_absolute(location), listed, row) for location, listed, row in self._shards
        ]
        return _reopen, (shards, self._limits, self._options, self._max_open)

    def __repr__(self) -> str:
        return f"<Dataset {self.label!r}>"

    def _repr_html_(self) -> str:
        facts: list[tuple[str, object]] = [("shards", len(self._locations))]
        shown: list[Record] = []
        count, heading = 0, f"Dataset {self.label}"
        try:
            # Counting reads the end of every shard, which may be many, or far away.
            if self._at_once == 1 and len(self._locations) <= _MOST_COUNTED:
                count = len(self)
                facts.insert(0, ("records", f"{count:,}"))
                shown = list(self._shard(0).records(0, _RECORDS_SHOWN))
            facts += display.fields(self.metadata)
            rows = [
                (one.key, len(one), ", ".join(one.names[:8]), display.size(one.size))
                for one in shown
            ]
            small = {one.key: one.thumbnail() for one in shown[:_PICTURES_SHOWN]}
        except ShardError as error:  # a notebook still shows which dataset it is
            return display.card(heading, facts, note=f"cannot be shown: {error}")
        table = display.Table(("record", "entries", "names", "size"), rows, count)
        pictures = {key: each for key, each in small.items() if each is not None}
        return display.card(heading, facts, table, pictures)


def expand(shards: Shards) -> list[Any]:
    """List the single shards, in order.

    Text with `{000000..000973}` is a range of numbers with the same number of digits, both ends included; text
    with `*`, `?` or `[` is a pattern of names, in natural order; a folder means all its `.shardpack` files. If a file
    has exactly that name, it means the file; a set file means its shards.

    Raises:
        InvalidArgument: the list is empty, or a pattern finds nothing.
    """
    return [shard.location for shard in _find_shards(shards, DEFAULT_LIMITS, None)]


def expand_set_files(text: str) -> list[str]:
    """The set files that a path, URL or pattern means."""
    return [one for one in _expand(text, None) if is_set_file(one)]


class _FoundShard(NamedTuple):
    """A shard of a dataset."""

    location: Any
    """A path, a URL, or any source."""
    set: ShardSet | None = None
    """What lists it."""
    row: int = -1
    """Its row there."""


def _find_shards(
    shards: Shards, limits: Limits, options: Mapping[str, Any] | None
) -> Iterator[_FoundShard]:
    for one in _expand(shards, options):
        if isinstance(one, _FoundShard):
            yield one
        elif is_set_file(one):
            is_far = isinstance(one, str) and is_url(one)
            listed = ShardSet.read(one, limits=limits, storage_options=options if is_far else None)
            for row, location in enumerate(listed.locations()):
                yield _FoundShard(location, listed, row)
        else:
            yield _FoundShard(one)


def _expand(shards: Shards, options: Mapping[str, Any] | None) -> list[Any]:
    """The single files; a set file is one of them."""
    if isinstance(shards, (str, os.PathLike)):
        return _expand_text(os.fspath(shards), options)
    if isinstance(shards, _FoundShard):
        return [shards]
    if isinstance(shards, (list, tuple)) or (
        hasattr(shards, "__iter__")
        and not isinstance(shards, (bytes, bytearray, memoryview))
        and not hasattr(shards, "read_at")
        and not hasattr(shards, "read")
    ):
        found = [one for part in shards for one in _expand(part, options)]
        if not found:
            raise InvalidArgument("expected at least one shard to open", found="an empty list")
        return found
    return [shards]


def _expand_text(text: str, options: Mapping[str, Any] | None) -> list[str]:
    suffix, keep = (_SET_SUFFIX, is_set_file) if is_set_file(text) else (_SUFFIX, _is_shard)
    return expand_names(text, suffix, enter=lambda _: False, keep=keep, storage_options=options)


def _is_shard(path: str) -> bool:
    """False for a file that is named after a shard, such as `x.shardpack.index`, and for a set file."""
    return not os.path.splitext(path)[0].endswith(_SUFFIX) and not is_set_file(path)


def find_repeated_keys(
    paths: Sequence[str],
    hashes: Sequence[NDArray[np.uint64] | None],
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[DuplicateName]:
    """An error for each key that a shard has and an earlier one has, too.

    Args:
        paths: the shards.
        hashes: of the keys of each shard, in any order; None to leave the shard out.
        limits: what a shard may ask for.
    """
    known = [np.unique(one) for one in hashes if one is not None]
    if len(known) < 2:
        return
    values, counts = np.unique(np.concatenate(known), return_counts=True)
    suspects = values[counts > 1]
    if not suspects.size:
        return
    # Hashes collide: compare the keys themselves.
    seen: dict[str, str] = {}
    for path, found in zip(paths, hashes, strict=True):
        if found is None or not np.isin(found, suspects).any():
            continue
        with ShardPackReader(path, limits=limits) as reader:
            numbers = np.flatnonzero(np.isin(reader.key_hashes(), suspects)).tolist()
            for number in numbers:
                try:
                    key = reader.record(number).key
                except DATA_ERRORS:  # damaged; checking the record shows it
                    continue
                other = seen.setdefault(key, path)
                if other != path:
                    yield DuplicateName(
                        f"the key {shorten(key)} is in another shard, too",
                        path=path,
                        found=other,
                        rule="P-REC-10",
                    )


class ShardSequence(Sequence[ShardPackReader]):
    """The shards of a dataset; each is opened when you ask for it."""

    def __init__(self, count: int, open_shard: Callable[[int], ShardPackReader]) -> None:
        self._count = count
        self._open = open_shard

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> ShardPackReader: ...

    @overload
    def __getitem__(self, number: slice) -> list[ShardPackReader]: ...

    def __getitem__(self, number: int | slice) -> ShardPackReader | list[ShardPackReader]:
        if isinstance(number, slice):
            return list(map(self._open, range(self._count)[number]))
        return self._open(range(self._count)[number])


def _copied_lookup(shard: ShardPackReader) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    hashes, numbers = shard.key_lookup()
    return hashes.copy(), numbers.copy()


def _absolute(location: Any) -> Any:  # noqa: ANN401 - any source
    if isinstance(location, str) and not is_url(location):
        return os.path.abspath(location)
    return location


def _reopen(
    shards: list[Any], limits: Limits, options: dict[str, Any] | None, max_open: int
) -> Dataset:
    return Dataset(shards, limits=limits, storage_options=options, max_open=max_open)
