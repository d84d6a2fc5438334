"""Several datasets as one: columns joined by key, and updates laid over a dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from copy import copy
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, Union, overload

import numpy as np
from xxhash import xxh64_intdigest

from shard_format.canonical_json import canonical
from shard_format.errors import (
    DuplicateName,
    EntryNotFound,
    InvalidArgument,
    ReferenceMismatch,
    check_choice,
    shorten,
)
from shard_format.opening import copying_urls
from shard_format.parallel import map_in_order
from shardpack.dataset import Dataset
from shardpack.encodings import MetadataEncoding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shardpack.dataset import Shards
    from shardpack.record import Entry, Record, StoredEntry
    from shardpack.values import Decoder

__all__ = [
    "AnyDataset",
    "AnyRecord",
    "CombinedDataset",
    "CombinedRecord",
    "Samples",
    "join",
    "open_samples",
    "overlay",
]

_Result = TypeVar("_Result")
# Keys that an error names.
_MOST_NAMED: Final = 5
# Records that are fetched together when they are read in order; the first batches are smaller.
_LARGEST_BATCH: Final = 64


class PartRecord(NamedTuple):
    """A record of one of the datasets, and the prefix of its entry names."""

    record: AnyRecord
    prefix: str = ""


class CombinedRecord:
    """A sample whose entries come from several records. It reads like a `Record`, just as lazily.

    Args:
        key: of all parts.
        parts: the records, in order.
        later_wins: whether an entry or a metadata field of a later part replaces one of the same name;
            otherwise a repeated name is an error.
    """

    __slots__ = ("_later_wins", "_parts", "_places", "key")

    def __init__(self, key: str, parts: Sequence[PartRecord], *, later_wins: bool) -> None:
        self.key = key
        """The name of the sample."""
        self._parts = parts
        self._later_wins = later_wins
        places: dict[str, tuple[AnyRecord, str]] = {}
        for record, prefix in parts:
            for name in record.names:
                full = prefix + name
                if full in places and not later_wins:
                    raise InvalidArgument(
                        f"two columns have an entry of this name in record {shorten(key)}",
                        entry=full,
                        hint='join({"left": …, "right": …}) puts names before the entries',
                        command="NAME=PACK puts a name before the entries of a pack",
                    )
                # A replaced entry keeps its position.
                places[full] = (record, name)
        self._places = places

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of all parts."""
        fields: dict[str, Any] = {}
        for record, prefix in self._parts:
            own: Mapping[Any, Any] = record.metadata  # MessagePack also has keys that are not text
            for field, value in own.items():
                full = prefix + field if isinstance(field, str) else field
                if prefix and full is field:
                    raise InvalidArgument(
                        f"the metadata of record {shorten(self.key)} has a key that is not text, "
                        "which cannot get the name of its column in front",
                        found=repr(field)[:80],
                    )
                if full in fields and not self._later_wins and fields[full] != value:
                    raise InvalidArgument(
                        f"two columns disagree about record {shorten(self.key)}",
                        expected=f"one value of {full!r}",
                        found=f"{fields[full]!r} and {value!r}",
                    )
                fields[full] = value
        return fields

    @property
    def stored_metadata(self) -> tuple[MetadataEncoding, bytes]:
        """The metadata as a shard would hold it, and how it is encoded."""
        said = [
            (prefix, *record.stored_metadata)
            for record, prefix in self._parts
            if record.stored_metadata[1]
        ]
        if not said:
            return MetadataEncoding.NONE, b""
        if len(said) == 1 and not said[0][0]:
            return said[0][1], said[0][2]
        return MetadataEncoding.JSON, canonical(self.metadata)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries, in the order of the parts."""
        return tuple(self._places)

    @property
    def content_types(self) -> tuple[str, ...]:
        """Content types of the entries, in the order of the names."""
        return tuple(entry.content_type for entry in self.file_entries())

    @property
    def size(self) -> int:
        """Bytes of all parts in their files."""
        return sum(record.size for record, _ in self._parts)

    @property
    def alignment(self) -> int:
        """The largest of the parts."""
        return max(record.alignment for record, _ in self._parts)

    def file_entries(self) -> tuple[Entry, ...]:
        """The entries, in the order of the names."""
        return tuple(map(self.__getitem__, self._places))

    def __getitem__(self, name: str) -> Entry:
        """The entry of this name."""
        place = self._places.get(name)
        if place is None:
            error = EntryNotFound(f"record {shorten(self.key)} has no entry {shorten(str(name))}")
            error.candidates, error.wanted = self.names, str(name)
            raise error
        record, own = place
        return record[own] if own == name else record[own].renamed(name)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def read_all(self) -> dict[str, bytes]:
        """The content of every entry, checked and decompressed."""
        return {entry.name: entry.read() for entry in self.file_entries()}

    def decode(self, decoders: Mapping[str, Decoder] | None = None) -> dict[str, Any]:
        """Every entry as the value that its content type says; see `Entry.decode`."""
        return {entry.name: entry.decode(decoders) for entry in self.file_entries()}

    def stored_entries(self, *, check: bool = True) -> list[StoredEntry]:
        """The entries as they are in their files; see `Record.stored_entries`."""
        return [
            record[own].stored_entry(check=check)._replace(name=name)
            for name, (record, own) in self._places.items()
        ]

    def __repr__(self) -> str:
        return f"<CombinedRecord {self.key!r}: {', '.join(map(repr, self.names))}>"


AnyRecord: TypeAlias = Union["Record | CombinedRecord"]
"""A record of a shard, or one that is put together from several."""


class CombinedDataset(ABC):
    """Records combined from several datasets, numbered as in the first one.

    Read it like a `Dataset`: by number, by key, in order, in batches. Pickles if the datasets do.

    Owns: the datasets that it opened itself.
    """

    def __init__(self, datasets: list[AnyDataset], own: list[AnyDataset]) -> None:
        self._datasets = datasets
        self._own = own

    @property
    def main(self) -> AnyDataset:
        """The dataset that gives the order."""
        return self._datasets[0]

    @property
    def parts(self) -> list[tuple[str, AnyDataset]]:
        """The datasets, each with the prefix of its entry names."""
        return [("", dataset) for dataset in self._datasets]

    @property
    def is_remote(self) -> bool:
        """Whether some of its shards are behind URLs."""
        return any(dataset.is_remote for dataset in self._datasets)

    def _of_each(self, ask: Callable[[int], _Result]) -> list[_Result]:
        """What is asked of each dataset, by its number; of all at once if that means waiting for servers."""
        count = len(self._datasets)
        return map_in_order(range(count), ask, count if self.is_remote else 1)

    @abstractmethod
    def _take(self, numbers: list[int], take: Take) -> list[CombinedRecord]:
        """The records of these numbers, all of which exist."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the first shard of the first dataset."""
        return self.main.metadata

    @property
    def edits(self) -> tuple[Any, ...]:
        """What changes its records, besides the datasets themselves; for fingerprints."""
        return ()

    def records_by_shard(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """How many of its records come from each shard, if the shards of the first dataset have `sizes` records."""
        return sizes

    def key_hashes(self) -> NDArray[np.uint64]:
        """XXH64 of the key of each record, in order."""
        return self.main.key_hashes()

    def __len__(self) -> int:
        return len(self.main)

    @overload
    def __getitem__(self, item: int | str) -> CombinedRecord: ...

    @overload
    def __getitem__(self, item: slice) -> list[CombinedRecord]: ...

    def __getitem__(self, item: int | str | slice) -> CombinedRecord | list[CombinedRecord]:
        """The record of a number (negative numbers count from the end) or key; a list for a slice."""
        if isinstance(item, slice):
            return self.take(range(*item.indices(len(self))))
        if isinstance(item, str):
            number = self.find(item)
            if number is None:
                raise EntryNotFound(f"no record with the key {shorten(item)}")
            item = number
        return self.take([item])[0]

    def find(self, key: str) -> int | None:
        """The number of the record with this key, or None."""
        return self.main.find(key)

    def __contains__(self, key: object) -> bool:
        return key in self.main

    def take(self, indices: Iterable[int]) -> list[CombinedRecord]:
        """The records of these numbers, in this order; those of remote shards come together."""
        return self.take_with(indices, _take_whole)

    def take_with(self, indices: Iterable[int], take: Take) -> list[CombinedRecord]:
        """Like `take`, with your own function that takes records from the datasets below."""
        count = len(self)
        numbers: list[int] = []
        for given in indices:
            number = as_index(given)
            if not -count <= number < count:
                raise IndexError(f"no record {number} in a dataset of {count}")
            numbers.append(number + count if number < 0 else number)
        return self._take(numbers, take)

    def __getitems__(self, indices: Iterable[int]) -> list[CombinedRecord]:
        """What data loaders call for a batch; see `take`."""
        return self.take(indices)

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[CombinedRecord]:
        """The records from `start` up to `stop` in order; negative numbers count from the end."""
        first, last, _ = slice(start, stop).indices(len(self))
        batch = 1
        while first < last:
            end = min(first + batch, last)
            yield from self.take(range(first, end))
            first = end
            batch = min(2 * batch, _LARGEST_BATCH)

    def __iter__(self) -> Iterator[CombinedRecord]:
        return self.records()

    def sample(self, number: int) -> dict[str, bytes]:
        """All entries of the record of this number, checked and decompressed: name to bytes."""
        return self[number].read_all()

    def samples(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, bytes]]:
        """All entries of each record from `start` up to `stop`."""
        return (record.read_all() for record in self.records(start, stop))

    def take_samples(self, indices: Iterable[int]) -> list[dict[str, bytes]]:
        """All entries of each of these records, in this order."""
        return [record.read_all() for record in self.take(indices)]

    def keys(self) -> Iterator[str]:
        """The keys, in the order of the records."""
        return self.main.keys()

    def close(self) -> None:
        """Close the datasets that were opened for this one."""
        for dataset in self._own:
            dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._datasets)}: {len(self)} records>"


AnyDataset: TypeAlias = Union["Dataset | CombinedDataset"]
Take: TypeAlias = Callable[[AnyDataset, list[int], str], "Sequence[AnyRecord]"]
"""Takes the records of these numbers from a dataset; the text is the prefix of their entry names."""
Samples: TypeAlias = Union["Shards | Dataset | CombinedDataset"]
"""What `shardpack.open` takes, or an open dataset as `open`, `join` and `overlay` return it."""


def _take_whole(dataset: AnyDataset, numbers: list[int], prefix: str) -> Sequence[AnyRecord]:
    return dataset.take(numbers)


@contextmanager
def _opening() -> Iterator[list[AnyDataset]]:
    """Collects the datasets that are opened; an error closes them."""
    own: list[AnyDataset] = []
    try:
        yield own
    except BaseException:
        for dataset in own:
            dataset.close()
        raise


@contextmanager
def open_samples(shards: Samples) -> Iterator[AnyDataset]:
    """The dataset; closed afterwards if it was opened here."""
    if isinstance(shards, (Dataset, CombinedDataset)):
        yield shards
        return
    with Dataset(shards) as dataset:
        yield dataset


@contextmanager
def open_copied(shards: Samples) -> Iterator[AnyDataset]:
    """Like `open_samples`, for someone who reads all records more than once, or in any order: remote shards are copied
    to temporary files first."""
    with copying_urls():
        if isinstance(shards, Dataset) and shards.is_remote:
            with copy(shards) as dataset:  # opens the shards again
                yield dataset
        else:
            with open_samples(shards) as opened:
                yield opened


def _open(shards: Samples, own: list[AnyDataset]) -> AnyDataset:
    """The dataset; added to `own` if it is opened here."""
    if isinstance(shards, (Dataset, CombinedDataset)):
        return shards
    own.append(Dataset(shards))
    return own[-1]


# --- columns


def join(*columns: Samples | Mapping[str, Samples], align: str = "order") -> CombinedDataset:
    """Join datasets that have the same keys: each record has the entries of all of them.

        stereo = shardpack.join("left.shardpack", "right.shardpack", "depth.shardpack")
        stereo = shardpack.join({"left": "left.shardpack", "right": "right.shardpack"})

    A mapping prefixes the entries and metadata fields of its datasets: `left.jpg`, `right.jpg`. Without it, no
    two columns may have an entry of the same name. All key hashes are compared now, the keys themselves when
    you read a record.

    Args:
        columns: shards or open datasets. The first one gives the order.
        align: `"order"` expects the same keys in the same order; `"key"` accepts any order and needs 8 bytes
            per record for each column whose order differs.

    Raises:
        InvalidArgument: a key is missing from a column, is only in one column, or is at another place; the message
            names keys.
    """
    check_choice("align", align, ("order", "key"))
    named: list[tuple[str, Samples]] = []
    for column in columns:
        if isinstance(column, Mapping):
            named += ((f"{prefix}.", shards) for prefix, shards in column.items())
        else:
            named.append(("", column))
    if not named:
        raise InvalidArgument("expected at least one dataset to join")
    with _opening() as own:
        datasets = [_open(shards, own) for _, shards in named]
        hashes = datasets[0].key_hashes()
        orders: list[NDArray[np.int64] | None] = [None]
        for number, dataset in enumerate(datasets[1:], start=1):
            orders.append(_order(datasets[0], hashes, dataset, number, align))
    return _Joined(datasets, own, [prefix for prefix, _ in named], orders)


class _Joined(CombinedDataset):
    def __init__(
        self,
        datasets: list[AnyDataset],
        own: list[AnyDataset],
        prefixes: list[str],
        orders: list[NDArray[np.int64] | None],
    ) -> None:
        super().__init__(datasets, own)
        self._prefixes = prefixes
        # For each column the number of each record there; None if the order is the same.
        self._orders = orders

    @property
    def parts(self) -> list[tuple[str, AnyDataset]]:
        return list(zip(self._prefixes, self._datasets, strict=True))

    def _take(self, numbers: list[int], take: Take) -> list[CombinedRecord]:
        def take_column(column: int) -> Sequence[AnyRecord]:
            order = self._orders[column]
            wanted = numbers if order is None else order[numbers].tolist()
            return take(self._datasets[column], wanted, self._prefixes[column])

        columns = self._of_each(take_column)
        return [self._joined(records) for records in zip(*columns, strict=True)]

    def _joined(self, records: tuple[AnyRecord, ...]) -> CombinedRecord:
        key = records[0].key
        for number, record in enumerate(records[1:], start=2):
            if record.key != key:
                raise ReferenceMismatch(
                    f"column {number} has another record at this position",
                    expected=f"the key {shorten(key)}",
                    found=shorten(record.key),
                )
        parts = [PartRecord(*pair) for pair in zip(records, self._prefixes, strict=True)]
        return CombinedRecord(key, parts, later_wins=False)


def _order(
    main: AnyDataset, hashes: NDArray[np.uint64], other: AnyDataset, column: int, align: str
) -> NDArray[np.int64] | None:
    """Where each record of the main dataset is in another one; None if the order is the same."""
    others = other.key_hashes()
    if np.array_equal(hashes, others):
        return None
    found = _match(main, hashes, other, f"column {column + 1}")
    extra = np.flatnonzero(found < 0)
    missing = np.setdiff1d(np.arange(len(hashes)), found)
    if missing.size or extra.size:
        raise InvalidArgument(
            f"column {column + 1} does not have the keys of the first",
            expected=f"{len(hashes)} keys",
            found="; ".join(
                f"{numbers.size} {what}: {_named(dataset, numbers)}"
                for what, dataset, numbers in (("missing", main, missing), ("extra", other, extra))
                if numbers.size
            ),
        )
    if align == "order":
        place = int(np.argmax(hashes != others))
        raise InvalidArgument(
            f"column {column + 1} has its records in a different order",
            expected=f"the key {shorten(main[place].key)} as number {place}",
            found=shorten(other[place].key),
            hint='pass align="key", or sort the shards',
            command="pass --align key",
        )
    order = np.empty(len(hashes), np.int64)
    order[found] = np.arange(len(found))
    return order


def _match(
    main: AnyDataset, hashes: NDArray[np.uint64], other: AnyDataset, label: str
) -> NDArray[np.int64]:
    """For each record of another dataset, the number of the record with its key in the main one, or -1."""
    wanted = other.key_hashes()
    by_hash = hashes.argsort(kind="stable")
    first = np.searchsorted(hashes, wanted, "left", sorter=by_hash)
    counts = np.searchsorted(hashes, wanted, "right", sorter=by_hash) - first
    found = np.full(len(wanted), -1, np.int64)
    found[counts == 1] = by_hash[first[counts == 1]]
    # Several keys can share a hash; then compare the keys.
    for at in np.flatnonzero(counts > 1).tolist():
        key = other[at].key
        same_hash = by_hash[first[at] : first[at] + counts[at]].tolist()
        numbers = [number for number in same_hash if main[number].key == key]
        if len(numbers) > 1:
            raise _repeated_key("the first dataset", key)
        found[at] = numbers[0] if numbers else -1
    _, kept = np.unique(found, return_index=True)
    repeated = np.setdiff1d(np.flatnonzero(found >= 0), kept)
    if repeated.size:
        raise _repeated_key(label, other[int(repeated[0])].key)
    return found


def _repeated_key(label: str, key: str) -> DuplicateName:
    return DuplicateName(f"{label} has the key {shorten(key)} more than once", rule="P-REC-10")


def _named(dataset: AnyDataset, numbers: NDArray[np.int64]) -> str:
    shown = numbers[:_MOST_NAMED].tolist()
    keys = [shorten(dataset[number].key) for number in shown]
    return ", ".join(keys) + (", …" if numbers.size > len(shown) else "")


# --- overlays


def overlay(
    main: Samples, *updates: Samples, add: bool = False, delete: Iterable[str] = ()
) -> CombinedDataset:
    """Lay updates over a dataset: where a record has an update, the update's entries win.

    An update has the keys of the records that it changes, in any order. It replaces entries of the same name
    and adds others; metadata fields likewise. The last update wins. Nothing is written; `merge` writes the
    result into shards.

    Args:
        main: shards or an open dataset.
        updates: the same, usually small. Needs 16 bytes of memory per record of the main dataset and about
            100 per record of the updates.
        add: True adds the records of updates that the main dataset does not have, after its own; otherwise such
            records are an error, because a key may be mistyped.
        delete: keys of records to leave out. An update that has one of them replaces the whole record, with `add`.

    Raises:
        InvalidArgument: an update, or `delete`, has a key that the main dataset does not have; the message names
            keys.
    """
    with _opening() as own:
        datasets = [_open(shards, own) for shards in (main, *updates)]
        hashes = datasets[0].key_hashes()
        kept = np.delete(np.arange(len(hashes)), _numbers_of(datasets[0], delete))
        # The number of each record of the main dataset in the result.
        rank = np.full(len(hashes), -1, np.int64)
        rank[kept] = np.arange(len(kept))
        places: list[dict[int, int]] = []
        added: dict[str, AddedRecord] = {}
        numbers_of_added: dict[str, int] = {}
        for number, update in enumerate(datasets[1:], start=1):
            found = _match(datasets[0], hashes, update, f"update {number}")
            found[found >= 0] = rank[found[found >= 0]]
            others = np.flatnonzero(found < 0)
            if others.size and not add:
                raise InvalidArgument(
                    f"update {number} has keys that the main dataset does not have",
                    found=f"{others.size}: {_named(update, others)}",
                    hint="pass add=True to add them",
                    command="pass --add to add them",
                )
            for at in others.tolist():
                key = update[at].key
                if key not in added:
                    numbers_of_added[key] = len(kept) + len(added)
                    added[key] = AddedRecord(number, at)
                elif added[key].dataset == number:
                    raise _repeated_key(f"update {number}", key)
                else:
                    found[at] = numbers_of_added[key]
            places.append({place: at for at, place in enumerate(found.tolist()) if place >= 0})
    return _Overlaid(datasets, own, places, kept, added)


def _numbers_of(main: AnyDataset, keys: Iterable[str]) -> list[int]:
    """The numbers of records to delete."""
    if isinstance(keys, str):
        raise InvalidArgument("delete is one text", expected="a list of keys", found=repr(keys))
    found = {key: main.find(key) for key in keys}
    missing = [key for key, number in found.items() if number is None]
    if missing:
        more = ", …" if len(missing) > _MOST_NAMED else ""
        raise InvalidArgument(
            "the main dataset does not have keys that are to be deleted",
            found=f"{len(missing)}: {', '.join(map(shorten, missing[:_MOST_NAMED]))}{more}",
        )
    return sorted(number for number in found.values() if number is not None)


class AddedRecord(NamedTuple):
    """Where an added record comes from."""

    dataset: int
    """Number of the update, from 1."""
    number: int
    """Of the record there."""


class _Overlaid(CombinedDataset):
    """Records of the main dataset that are not deleted, then added ones.

    Args:
        datasets, own: as for `CombinedDataset`; the updates follow the main dataset.
        places: for each update, number in this dataset to number in the update.
        kept: for each record of the main dataset that stays, its number there.
        added: by key, in order.
    """

    def __init__(
        self,
        datasets: list[AnyDataset],
        own: list[AnyDataset],
        places: list[dict[int, int]],
        kept: NDArray[np.int64],
        added: dict[str, AddedRecord],
    ) -> None:
        super().__init__(datasets, own)
        self._places = places
        self._kept = kept
        self._added = added
        self._numbers_of_added = {key: len(kept) + at for at, key in enumerate(added)}
        self._sources_of_added = list(added.values())

    @property
    def _deleted(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(len(self.main)), self._kept)

    @property
    def edits(self) -> tuple[Any, ...]:
        deleted = self._deleted
        return (deleted.tolist(), len(self._added)) if deleted.size or self._added else ()

    def records_by_shard(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        ends = np.searchsorted(self._kept, np.cumsum(sizes))
        counts = tuple(np.diff(ends, prepend=0).tolist())
        return (*counts, len(self._added)) if self._added else counts

    def key_hashes(self) -> NDArray[np.uint64]:
        own = [xxh64_intdigest(key.encode()) for key in self._added]
        return np.concatenate([self.main.key_hashes()[self._kept], np.array(own, np.uint64)])

    def __len__(self) -> int:
        return len(self._kept) + len(self._added)

    def find(self, key: str) -> int | None:
        """The number of the record with this key, or None."""
        number = self.main.find(key)
        if number is not None:
            place = int(np.searchsorted(self._kept, number))
            if place < len(self._kept) and self._kept[place] == number:
                return place
        return self._numbers_of_added.get(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def keys(self) -> Iterator[str]:
        """The keys, in the order of the records."""
        deleted = set(self._deleted.tolist())
        for number, key in enumerate(self.main.keys()):
            if number not in deleted:
                yield key
        yield from self._added

    def _take(self, numbers: list[int], take: Take) -> list[CombinedRecord]:
        parts: list[list[PartRecord]] = [[] for _ in numbers]
        wanted_of: list[list[tuple[int, int]]] = [
            [
                (at, inside)
                for at, n in enumerate(numbers)
                if (inside := self._number_in(number, places, n)) is not None
            ]
            for number, places in enumerate([{}, *self._places])
        ]
        taken = self._of_each(
            lambda number: take(
                self._datasets[number], [inside for _, inside in wanted_of[number]], ""
            )
        )
        for wanted, records in zip(wanted_of, taken, strict=True):
            for (at, _), record in zip(wanted, records, strict=True):
                first = parts[at][0].record.key if parts[at] else record.key
                if record.key != first:
                    raise ReferenceMismatch(
                        "an update has a key that the main dataset does not have",
                        expected=f"the key {shorten(first)}, whose hash it has",
                        found=shorten(record.key),
                    )
                parts[at].append(PartRecord(record))
        return [CombinedRecord(found[0].record.key, found, later_wins=True) for found in parts]

    def _number_in(self, dataset: int, places: dict[int, int], number: int) -> int | None:
        """The number of a record in one of the datasets, None if that has no part of it."""
        kept = len(self._kept)
        if number >= kept and self._sources_of_added[number - kept].dataset == dataset:
            return self._sources_of_added[number - kept].number
        if not dataset:
            return int(self._kept[number]) if number < kept else None
        return places.get(number)
