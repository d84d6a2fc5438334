"""Samples of packs as a map-style data set: decoded, one by one or in batches, for training."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from shard_format._parallel import map_in_order, thread_count
from shard_format._skipping import SkipCounter
from shard_format.errors import EntryNotFound, InvalidArgument, ShardError, shorten
from shardpack._fetching import take_bytes, take_records
from shardpack._sample_decoding import SampleDecoder
from shardpack._sample_sources import DAMAGE, described, fingerprint, open_samples, shard_sizes
from shardpack._selection import Selection
from shardpack._stacking import SampleBatch, owned
from shardpack.dataset import Dataset
from shardpack.sampling import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from shardpack._sample_decoding import Decode
    from shardpack.columns import AnyDataset, Samples
    from shardpack.orders import Shuffle

__all__ = ["SampleBatch", "SampleDataset"]

Missing = Literal["raise", "none"]
OnError = Literal["raise", "skip"]

# An image of so many bytes takes about a millisecond, starting a thread a twentieth of that.
_BYTES_PER_THREAD: Final = 1 << 16
_SKIPPED: Final = (*DAMAGE, EntryNotFound)
# After so many neighbours in a row that cannot be read, it is not the samples.
_MOST_NEIGHBOURS: Final = 100
# Samples that are read together when all are read in order. The first ones come at once.
_LARGEST_RUN: Final = 16
_LONGEST_SHOWN: Final = 60


class SampleDataset:
    """Samples of packs, numbered from 0 on, each a dictionary of decoded entries.

        ds = SampleDataset("train-*.shardpack", entries=["left.jpg", "meta.json"])
        ds[0]["left.jpg"]                    # [480, 640, 3]
        ds.batch([3, 1, 4])["left.jpg"]      # [3, 480, 640, 3], decoded in parallel

    A sample has its entries by name, `__key__`, the fields of the metadata that are asked for, and with
    `metadata=True` all of it as `__metadata__`. Arrays can be written to, and need no file.

    Safe for threads, in forked and spawned workers; pickles without any open file, if its functions pickle.

    Args:
        source: what `shardpack.open` takes, or a data set that is open, as `open`, `join` and `overlay` return it.
            Open it yourself for other limits.
        decode: `True`: each entry becomes the value that its content type says, as `Entry.decode` does it;
            bytes if nobody knows its type. `False`: bytes. A dictionary: functions from bytes to a value, by the
            name of an entry, an ending (`"jpg"`), a content type or a pattern (`"image/*"`), looked for in this
            order; all other entries as with `True`. A function: takes the sample with bytes, gives anything.
            Functions are called from several threads.
        entries: names, or patterns such as `"*.jpg"`; nothing else is read. All if left out.
        fields: of the records' metadata, each a value of the sample under its name. A dictionary has functions that
            convert them: `{"weight": float}`, as JSON does not tell 4.0 from 4.
        metadata: whether samples have `__metadata__`.
        missing: `"raise"`: a record that lacks an entry or a field that is asked for is an error, and so is a batch
            whose samples have different names. `"none"`: None takes its place.
        transform: done to each decoded sample in the thread of the caller; what it returns takes the sample's place.
        threads: that decode a batch; None for one per processor, up to 8; in worker processes of loaders, one.
        on_error: `"raise"`, or `"skip"`: shards that cannot be opened are left out, and another sample comes in
            place of one that is damaged, or lacks an entry: the next ones are tried, always in the same order. Both
            are counted in `skipped` and reported to the logger `shardpack`. What else functions raise is raised.
        storage_options: headers, credentials and the like for URLs.

    Raises:
        InvalidArgument: an argument cannot work.
        ShardError: a subclass that says which shard cannot be read and why.
    """

    def __init__(
        self,
        source: Samples,
        *,
        decode: Decode = True,
        entries: Iterable[str] | None = None,
        fields: Iterable[str] | Mapping[str, Callable[[Any], Any] | None] = (),
        metadata: bool = False,
        missing: Missing = "raise",
        transform: Callable[[Any], Any] | None = None,
        threads: int | None = None,
        on_error: OnError = "raise",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_choice("missing", missing, get_args(Missing))
        _check_choice("on_error", on_error, get_args(OnError))
        if threads is not None and threads < 1:
            raise InvalidArgument("threads must be at least 1", found=threads)
        if isinstance(fields, str):
            raise InvalidArgument("fields takes a list of names", hint=f"fields=[{fields!r}]")
        converted = fields if isinstance(fields, Mapping) else dict.fromkeys(fields)
        self.transform = transform
        self.on_error = on_error
        self.skipped = SkipCounter("shardpack", "sample")
        """How many samples could not be read, by shard; 0 for one that was left out as a whole."""
        self._fill = missing == "none"
        self._threads = threads
        self._decoder = SampleDecoder(
            decode, Selection(entries), fill=self._fill, metadata=metadata, fields=converted
        )
        self._dataset = open_samples(
            source, storage_options, self.skipped if on_error == "skip" else None
        )
        self._is_own = self._dataset is not source

    # --- what is in it

    @property
    def dataset(self) -> AnyDataset:
        """Where the samples are from: an open data set of records."""
        return self._dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Samples in each shard, in their order, as `Plan` takes them."""
        return shard_sizes(self._dataset)

    @property
    def fingerprint(self) -> str:
        """Changes with names, sizes, keys and fields of the shards; the same on every machine."""
        return fingerprint(self._dataset)

    def find(self, key: str) -> int | None:
        """The number of the sample with this key, or None; see `Dataset.find`."""
        return self._dataset.find(key)

    def __contains__(self, key: object) -> bool:
        return key in self._dataset

    def plan(
        self,
        *,
        batch_size: int = 1,
        seed: int = 0,
        shuffle: Shuffle = "global",
        buffer_shards: int = 16,
        world_size: int = 1,
        rank: int = 0,
        num_workers: int = 1,
        worker: int = 0,
        drop_last: bool = False,
        pad: bool = True,
        epoch: int = 0,
    ) -> Plan:
        """The order of training; see `Plan` for the arguments. It is told the sizes of the shards."""
        return Plan(
            len(self),
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            shard_sizes=self.shard_sizes if shuffle == "shards" else None,
            buffer_shards=buffer_shards,
            world_size=world_size,
            rank=rank,
            num_workers=num_workers,
            worker=worker,
            drop_last=drop_last,
            pad=pad,
            epoch=epoch,
        )

    # --- reading

    def __getitem__(self, item: int | str | slice) -> Any:  # noqa: ANN401 - what functions return
        """The sample of a number (negative ones count from the end) or key; a `SampleBatch` for a slice."""
        if isinstance(item, slice):
            return self.__getitems__(range(*item.indices(len(self))))
        if isinstance(item, str):
            number = self.find(item)
            if number is None:
                raise EntryNotFound(
                    f"there is no sample with the key {shorten(item)}",
                    path=described(self._dataset),
                )
            item = number
        return self.__getitems__([item])[0]

    def __getitems__(self, numbers: Iterable[int]) -> SampleBatch:
        """Many samples with one call: a sequence of them, whose `arrays` are the whole batch."""
        samples = self._read(_whole_numbers(numbers))
        if self.transform is not None:
            transform = self.transform
            samples = [transform(owned(sample)) for sample in samples]
        return SampleBatch(samples, fill=self._fill)

    def batch(self, numbers: Iterable[int]) -> dict[str, Any]:
        """Many samples by name: an array `[B, ...]` of numbers, or of arrays of one shape and type; else a list.

        Raises:
            EntryNotFound: a sample lacks what another one has.
            InvalidArgument: the samples are not dictionaries.
        """
        return self.__getitems__(numbers).arrays

    def __iter__(self) -> Iterator[Any]:
        """The samples in order, a few at a time."""
        first, run, count = 0, 1, len(self)
        while first < count:
            yield from self.__getitems__(range(first, min(first + run, count)))
            first, run = first + run, min(2 * run, _LARGEST_RUN)

    def _read(self, numbers: list[int]) -> list[Any]:
        dataset, decoder = self._dataset, self._decoder
        parts: Sequence[Any] | None
        make: Callable[[Any], Any] = decoder.sample
        work = 0
        try:
            if decoder.takes_all_bytes and isinstance(dataset, Dataset):
                parts = contents = take_bytes(dataset, numbers, decoder)
                if decoder.function is None:
                    return contents
                make = decoder.finished
                work = sum(map(len, contents[0].values())) if contents else 0
            else:
                parts = records = take_records(dataset, numbers, decoder)
                work = decoder.work_bytes(records[0]) if records else 0
        except _SKIPPED:
            if self.on_error == "raise":
                raise
            # Which of them cannot be read shows when each is taken by itself.
            parts = None

        def sample(at: int) -> Any:  # noqa: ANN401 - what a function returns
            try:
                return self._sample(numbers[at]) if parts is None else make(parts[at])
            except _SKIPPED as error:
                if self.on_error == "raise":
                    raise
                return self._other(numbers[at], error)

        threads = thread_count(self._threads, len(numbers) * work, _BYTES_PER_THREAD)
        return map_in_order(range(len(numbers)), sample, threads)

    def _sample(self, number: int) -> Any:  # noqa: ANN401 - what a function returns
        return self._decoder.sample(take_records(self._dataset, [number], self._decoder)[0])

    def _other(self, number: int, error: ShardError) -> Any:  # noqa: ANN401 - what a function returns
        """Another sample in place of one that cannot be read."""
        self.skipped.add(self._place(error), error)
        for other in _replacements(number, len(self)):
            try:
                return self._sample(other)
            except _SKIPPED as another:  # noqa: PERF203 - damage is rare
                self.skipped.add(self._place(another), another, 0)
                error = another
        raise error

    def _place(self, error: ShardError) -> str:
        return error.path or described(self._dataset)

    # --- files

    def close(self) -> None:
        """Closes the shards that were opened for this data set; one that was given stays open."""
        if self._is_own:
            self._dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy has opened its shards itself.
        self._is_own = True

    def __repr__(self) -> str:
        # The same in every process, for loaders that compare it when they resume.
        chosen = self._decoder.described
        return f"SampleDataset(samples={len(self)}, {chosen}fingerprint={self.fingerprint!r})"


def _replacements(number: int, count: int) -> Iterator[int]:
    """What is tried in place of a sample: further and further on, to leave a shard that is lost; then neighbours."""
    steps = [1 << power for power in range((count - 1).bit_length())]
    steps += range(1, min(count, _MOST_NEIGHBOURS))
    return iter(dict.fromkeys((number + step) % count for step in steps))


def _whole_numbers(numbers: Iterable[int]) -> list[int]:
    given = numbers.tolist() if isinstance(numbers, np.ndarray) else numbers
    try:
        return list(map(as_index, given))
    except TypeError:
        raise InvalidArgument(
            "samples are asked for by their numbers",
            expected="a list of integers",
            found=repr(numbers)[:_LONGEST_SHOWN],
        ) from None


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidArgument(
            f"unknown {name}", expected=" or ".join(map(repr, allowed)), found=repr(value)
        )
