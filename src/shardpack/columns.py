"""Data sets side by side: columns that are joined by key, and updates that lie over a data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union, overload

import numpy as np

from shard_format.errors import (
    DuplicateName,
    EntryNotFound,
    InvalidArgument,
    ReferenceMismatch,
    shorten,
)
from shardpack.combined import CombinedRecord, Part
from shardpack.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shardpack.combined import AnyRecord
    from shardpack.patterns import Shards

__all__ = ["CombinedDataset", "Samples", "join", "overlay"]

# Keys that an error names; all are counted.
_MOST_NAMED: Final = 5
# Records that are fetched together when they are read in order. The first ones come at once.
_LARGEST_BATCH: Final = 64


class CombinedDataset(ABC):
    """Records put together from several data sets, numbered as in the first one.

    Reads as a `Dataset` does: by number, by key, in order, in batches. Owns: the data sets that it
    opened itself. Pickles if they do.
    """

    def __init__(self, datasets: list[AnyDataset], own: list[AnyDataset]) -> None:
        self._datasets = datasets
        self._own = own

    @property
    def main(self) -> AnyDataset:
        """The data set whose order counts."""
        return self._datasets[0]

    @property
    def parts(self) -> list[tuple[str, AnyDataset]]:
        """The data sets, each with what is put before the names of its entries."""
        return [("", dataset) for dataset in self._datasets]

    @abstractmethod
    def _take(self, numbers: list[int], take: Take) -> list[CombinedRecord]:
        """The records of these numbers, which are all there."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the first shard of the first data set."""
        return self.main.metadata

    def __len__(self) -> int:
        return len(self.main)

    @overload
    def __getitem__(self, item: int | str) -> CombinedRecord: ...

    @overload
    def __getitem__(self, item: slice) -> list[CombinedRecord]: ...

    def __getitem__(self, item: int | str | slice) -> CombinedRecord | list[CombinedRecord]:
        """The record of a number (negative ones count from the end) or key; a list for a slice."""
        if isinstance(item, slice):
            return self.take(range(*item.indices(len(self))))
        if isinstance(item, str):
            number = self.find(item)
            if number is None:
                raise EntryNotFound(f"there is no record with the key {shorten(item)}")
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
        """As `take`; the function says how the records are taken from the data sets below."""
        count = len(self)
        numbers: list[int] = []
        for given in indices:
            number = as_index(given)
            if not -count <= number < count:
                raise IndexError(f"there is no record {number} in a data set of {count}")
            numbers.append(number + count if number < 0 else number)
        return self._take(numbers, take)

    def __getitems__(self, indices: Iterable[int]) -> list[CombinedRecord]:
        """What loaders ask for a batch; see `take`."""
        return self.take(indices)

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[CombinedRecord]:
        """The records from `start` up to `stop` in order; negative ones count from the end."""
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
        """Closes the data sets that were opened for this one."""
        for dataset in self._own:
            dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._datasets)}: {len(self)} records>"


AnyDataset: TypeAlias = Union["Dataset | CombinedDataset"]
Take: TypeAlias = Callable[[AnyDataset, list[int], str], "Sequence[AnyRecord]"]
"""Takes the records of these numbers from a data set; the text is what is put before their entries' names."""
Samples: TypeAlias = Union["Shards | Dataset | CombinedDataset"]
"""What `shardpack.open` takes, or a data set that is open: as `open`, `join` and `overlay` return it."""


def _take_whole(dataset: AnyDataset, numbers: list[int], prefix: str) -> Sequence[AnyRecord]:
    return dataset.take(numbers)


@contextmanager
def opened(shards: Samples) -> Iterator[AnyDataset]:
    """The data set; closed afterwards if it was opened here."""
    own: list[AnyDataset] = []
    try:
        yield _open(shards, own)
    finally:
        for dataset in own:
            dataset.close()


def _open(shards: Samples, own: list[AnyDataset]) -> AnyDataset:
    """The data set, which is added to `own` if it is opened here."""
    if isinstance(shards, (Dataset, CombinedDataset)):
        return shards
    own.append(Dataset(shards))
    return own[-1]


def key_hashes(dataset: AnyDataset) -> NDArray[np.uint64]:
    """XXH64 of the key of each record, in their order; from the indexes, without looking at records."""
    if isinstance(dataset, CombinedDataset):
        return key_hashes(dataset.main)
    parts: list[NDArray[np.uint64]] = []
    for shard in dataset.shards:
        hashes, numbers = shard.index.lookup_arrays()
        by_record = np.zeros(len(hashes), np.uint64)
        by_record[numbers] = hashes
        parts.append(by_record)
    return np.concatenate(parts)


# --- columns


def join(*columns: Samples | Mapping[str, Samples], align: str = "order") -> CombinedDataset:
    """Data sets of the same keys as one: each record has the entries of all of them.

        stereo = shardpack.join("left.shardpack", "right.shardpack", "depth.shardpack")
        stereo = shardpack.join({"left": "left.shardpack", "right": "right.shardpack"})

    A mapping puts a name before the entries and the fields of its data sets: `left.jpg`, `right.jpg`.
    Without it no two columns may have an entry of the same name. All keys are compared now, by their
    hashes, and once more as text when a record is read.

    Args:
        columns: shards, or data sets that are open. The first one gives the order.
        align: `"order"` wants the same keys in the same order; `"key"` takes any order, and holds 8
            bytes a record of each column whose order differs.

    Raises:
        InvalidArgument: a key is missing in a column, or only there, or not in the same place; the
            message names keys.
    """
    if align not in ("order", "key"):
        raise InvalidArgument("unknown align", expected="'order' or 'key'", found=repr(align))
    named: list[tuple[str, Samples]] = []
    for column in columns:
        if isinstance(column, Mapping):
            named += ((f"{prefix}.", shards) for prefix, shards in column.items())
        else:
            named.append(("", column))
    if not named:
        raise InvalidArgument("there are no columns to join")
    own: list[AnyDataset] = []
    try:
        datasets = [_open(shards, own) for _, shards in named]
        hashes = key_hashes(datasets[0])
        orders: list[NDArray[np.int64] | None] = [None]
        for number, dataset in enumerate(datasets[1:], start=1):
            orders.append(_order(datasets[0], hashes, dataset, number, align))
    except BaseException:
        for dataset in own:
            dataset.close()
        raise
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
        # For each column the number of each record there; None where it is the same.
        self._orders = orders

    @property
    def parts(self) -> list[tuple[str, AnyDataset]]:
        return list(zip(self._prefixes, self._datasets, strict=True))

    def _take(self, numbers: list[int], take: Take) -> list[CombinedRecord]:
        columns = [
            take(dataset, numbers if order is None else order[numbers].tolist(), prefix)
            for (prefix, dataset), order in zip(self.parts, self._orders, strict=True)
        ]
        return [self._joined(records) for records in zip(*columns, strict=True)]

    def _joined(self, records: tuple[AnyRecord, ...]) -> CombinedRecord:
        key = records[0].key
        for number, record in enumerate(records[1:], start=2):
            if record.key != key:
                raise ReferenceMismatch(
                    f"column {number} has another record in this place",
                    expected=f"the key {shorten(key)}",
                    found=shorten(record.key),
                )
        parts = [Part(*pair) for pair in zip(records, self._prefixes, strict=True)]
        return CombinedRecord(key, parts, later_wins=False)


def _order(
    main: AnyDataset, hashes: NDArray[np.uint64], other: AnyDataset, column: int, align: str
) -> NDArray[np.int64] | None:
    """Where each record of the main data set is in another one; None if all are in the same place."""
    others = key_hashes(other)
    if np.array_equal(hashes, others):
        return None
    missing = np.flatnonzero(~np.isin(hashes, others))
    extra = np.flatnonzero(~np.isin(others, hashes))
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
    here, there = hashes.argsort(kind="stable"), others.argsort(kind="stable")
    if not np.array_equal(hashes[here], others[there]):
        raise DuplicateName(
            f"the first column or column {column + 1} has a key more than once",
            expected=f"{len(hashes)} records",
            found=len(others),
        )
    if align == "order":
        place = int(np.argmax(hashes != others))
        raise InvalidArgument(
            f"column {column + 1} has its records in another order",
            expected=f"the key {shorten(main[place].key)} as number {place}",
            found=shorten(other[place].key),
            hint='pass align="key", or sort the shards',
        )
    order = np.empty(len(hashes), np.int64)
    order[here] = there
    # Hashes collide: where several keys have the same one, the keys themselves decide.
    is_shared = hashes[here][1:] == hashes[here][:-1]
    for shared in np.unique(hashes[here][1:][is_shared]):
        left = sorted(np.flatnonzero(hashes == shared).tolist(), key=lambda n: main[n].key)
        right = sorted(np.flatnonzero(others == shared).tolist(), key=lambda n: other[n].key)
        order[left] = right
    return order


def _named(dataset: AnyDataset, numbers: NDArray[np.int64]) -> str:
    shown = numbers[:_MOST_NAMED].tolist()
    keys = [shorten(dataset[number].key) for number in shown]
    return ", ".join(keys) + (", …" if numbers.size > len(shown) else "")


# --- overlays


def overlay(main: Samples, *updates: Samples) -> CombinedDataset:
    """A data set with updates over it: where a record has one, the entries of the update win.

    Updates have the keys of the records that they are about, in any order. An entry of the same name
    is replaced, another one is added, and so are fields of the metadata. Of several updates the last
    one wins. Nothing is written: `merge` makes shards of the result.

    Args:
        main: shards, or a data set that is open.
        updates: the same, usually small. 16 bytes of memory a record of the main data set are needed to
            find their keys, and about 100 a record of theirs are kept.

    Raises:
        InvalidArgument: an update has a key that the main data set does not have; the message names keys.
    """
    own: list[AnyDataset] = []
    try:
        datasets = [_open(shards, own) for shards in (main, *updates)]
        hashes = key_hashes(datasets[0])
        by_hash = hashes.argsort(kind="stable")
        places = [
            _places(datasets[0], hashes, by_hash, update, number)
            for number, update in enumerate(datasets[1:], start=1)
        ]
    except BaseException:
        for dataset in own:
            dataset.close()
        raise
    return _Overlaid(datasets, own, places)


class _Overlaid(CombinedDataset):
    def __init__(
        self, datasets: list[AnyDataset], own: list[AnyDataset], places: list[dict[int, int]]
    ) -> None:
        super().__init__(datasets, own)
        # For each update: number of a record of the main data set to that of its update.
        self._places = places

    def _take(self, numbers: list[int], take: Take) -> list[CombinedRecord]:
        parts = [[Part(record)] for record in take(self.main, numbers, "")]
        for update, places in zip(self._datasets[1:], self._places, strict=True):
            wanted = [(at, places[n]) for at, n in enumerate(numbers) if n in places]
            records = take(update, [number for _, number in wanted], "")
            for (at, _), record in zip(wanted, records, strict=True):
                key = parts[at][0].record.key
                if record.key != key:
                    raise ReferenceMismatch(
                        "an update has a key that the main data set does not have",
                        expected=f"the key {shorten(key)}, whose hash it has",
                        found=shorten(record.key),
                    )
                parts[at].append(Part(record))
        return [CombinedRecord(found[0].record.key, found, later_wins=True) for found in parts]


def _places(
    main: AnyDataset,
    hashes: NDArray[np.uint64],
    by_hash: NDArray[np.int64],
    update: AnyDataset,
    number: int,
) -> dict[int, int]:
    """Which record of the main data set each record of an update is about."""
    wanted = key_hashes(update)
    first = np.searchsorted(hashes, wanted, "left", sorter=by_hash)
    last = np.searchsorted(hashes, wanted, "right", sorter=by_hash)
    unknown = np.flatnonzero(first == last)
    places: dict[int, int] = {}
    lost: list[int] = unknown.tolist()
    if not lost:
        for at, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            about: list[int] = by_hash[begin:end].tolist()
            if len(about) > 1:
                # Hashes collide: the keys themselves decide.
                key = update[at].key
                about = [place for place in about if main[place].key == key]
            if not about:
                lost.append(at)
            elif len(about) > 1 or about[0] in places:
                raise DuplicateName(
                    f"update {number} or the main data set has the key "
                    f"{shorten(update[at].key)} more than once",
                    rule="P-REC-10",
                )
            else:
                places[about[0]] = at
    if lost:
        raise InvalidArgument(
            f"update {number} has keys that the main data set does not have",
            found=f"{len(lost)}: {_named(update, np.asarray(lost, np.int64))}",
        )
    return places
