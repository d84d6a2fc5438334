"""Samples of packs as a map-style dataset: decoded, one by one or in batches, for training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
from xxhash import xxh64

from shard_format.errors import (
    EntryNotFound,
    FormatError,
    InvalidArgument,
    ShardError,
    TrustError,
    check_choice,
    shorten,
)
from shard_format.findings import SkipCounter
from shard_format.parallel import map_in_order, thread_count
from shard_format.sources import can_read_ranges, is_url
from shard_format.units import byte_count
from shard_train._batches import SampleBatch, owned
from shard_train._plan import Plan, PlanOptions
from shard_train._read_ahead import DEFAULT_READ_AHEAD, SamplesAhead, cached_options, is_far
from shard_train._sample_decoding import EntrySelection, SampleDecoder
from shardpack.columns import CombinedDataset
from shardpack.dataset import Dataset, expand
from shardpack.reader import read_footer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack

    from shard_train._sample_decoding import Decode
    from shardpack.columns import AnyDataset, AnyRecord, Samples

__all__ = ["SampleBatch", "SampleDataset"]

Missing = Literal["raise", "none"]
OnError = Literal["raise", "skip"]

# An image of this size takes about a millisecond, starting a thread a twentieth of that.
_BYTES_PER_THREAD: Final = 1 << 16
_DAMAGE: Final = (FormatError, TrustError)
"""Data that is damaged; not calls that cannot work, and not a system or network that refuses or lacks the file."""
# Requests for footers that are under way at the same time.
_REQUESTS: Final = 8
_SKIPPED: Final = (*_DAMAGE, EntryNotFound)
# After this many unreadable neighbours, the samples are not the problem.
_MOST_NEIGHBOURS: Final = 100
# Samples that are read together when all are read in order. The first ones come at once.
_LARGEST_RUN: Final = 16
_LONGEST_SHOWN: Final = 60


class SampleDataset:
    """Samples of packs, numbered from 0 on, each a dictionary of decoded entries.

        ds = SampleDataset("train-*.shardpack", entries=["left.jpg", "meta.json"])
        ds[0]["left.jpg"]                    # [480, 640, 3]
        ds.batch([3, 1, 4])["left.jpg"]      # [3, 480, 640, 3], decoded in parallel

    A sample has its entries by name, `__key__`, and the fields of the record's metadata that you ask for. You can
    write to its arrays, and they need no open file.

    Safe for threads, and in forked and spawned workers; pickles without any open file, if its functions pickle.

    Args:
        source: what `shardpack.open` takes, or an open dataset, as `open`, `join` and `overlay` return it. Open it
            yourself to set limits.
        decode: `True`: each entry becomes the value that its content type says, as `Entry.decode` does it, or stays
            bytes if the type is unknown. `False`: bytes. A dictionary: functions from bytes to a value, by the
            name of an entry, an ending (`"jpg"`), a content type or a pattern (`"image/*"`), looked for in this
            order; all other entries as with `True`. A function: takes the sample with bytes, returns anything.
            Functions are called from several threads.
        entries: names, or patterns such as `"*.jpg"`; nothing else is read. All if left out.
        fields: of the records' metadata, each a value of the sample under its name; `"__metadata__"` is all of it. A
            dictionary has functions that convert them: `{"weight": float}`, as JSON does not tell 4.0 from 4.
        missing: `"raise"`: a record that lacks an entry or a field that you ask for is an error, and so is a batch
            whose samples have different names. `"none"`: None takes its place.
        transform: called with each decoded sample in the thread of the caller; what it returns replaces the sample.
        threads: how many threads decode a batch; None for one per processor, up to 8; in loader workers, one.
        on_error: `"raise"`, or `"skip"`: damaged shards are left out, and another sample replaces one that is damaged
            or lacks an entry: the next ones are tried, always in the same order. Both are counted in `skipped` and
            logged to `shardpack`. Errors of your functions are raised, and so are those of the network: a server that
            does not answer says nothing about the data.
        storage_options: headers, credentials and so on, for URLs.
        read_ahead: how many bytes of remote shards to hold that were fetched before they are needed, such as
            `"256MB"`; shared by the workers of a loader. 0 fetches nothing ahead. See `follow`.
        cache_dir: a folder on a local disk. What is fetched is kept there, for later epochs and all processes.
        cache_bytes: how large the folder may become, such as `"200GB"`; the files that were used longest ago go
            first. None for no limit.

    Raises:
        InvalidArgument: an argument is not valid.
        ShardError: a subclass that says which shard cannot be read and why.
    """

    def __init__(
        self,
        source: Samples,
        *,
        decode: Decode = True,
        entries: Iterable[str] | None = None,
        fields: Iterable[str] | Mapping[str, Callable[[Any], Any] | None] = (),
        missing: Missing = "raise",
        transform: Callable[[Any], Any] | None = None,
        threads: int | None = None,
        on_error: OnError = "raise",
        storage_options: Mapping[str, Any] | None = None,
        read_ahead: int | str = DEFAULT_READ_AHEAD,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        check_choice("missing", missing, get_args(Missing))
        check_choice("on_error", on_error, get_args(OnError))
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
            decode, EntrySelection(entries), fill=self._fill, fields=converted
        )
        self._read_ahead = byte_count("read_ahead", read_ahead)
        options = cached_options(storage_options, cache_dir, cache_bytes)
        skipped = self.skipped if on_error == "skip" else None
        self._dataset = _open_samples(source, skipped, options)
        self._is_own = self._dataset is not source
        self._is_keyed = _is_keyed(self._dataset, self._decoder)
        self._label = _described(self._dataset)
        self._ahead: SamplesAhead | None = None

    # --- what is in it

    @property
    def dataset(self) -> AnyDataset:
        """Where the samples are from: an open dataset of records."""
        return self._dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Samples in each shard, in their order, as `Plan` takes them."""
        return _shard_sizes(self._dataset)

    @property
    def fingerprint(self) -> str:
        """Changes with names, sizes, keys and fields of the shards; the same on every machine."""
        return _fingerprint(self._dataset)

    def find(self, key: str) -> int | None:
        """The number of the sample with this key, or None; see `Dataset.find`."""
        return self._dataset.find(key)

    def __contains__(self, key: object) -> bool:
        return key in self._dataset

    def plan(self, **options: Unpack[PlanOptions]) -> Plan:
        """Make a plan for the dataset; see `Plan` for the options. The plan knows the sizes of the shards."""
        sizes = self.shard_sizes if options.get("shuffle") == "shards" else None
        return Plan(len(self), shard_sizes=sizes, **options)

    # --- reading

    def __getitem__(self, item: int | str | slice) -> Any:  # noqa: ANN401 - what functions return
        """The sample of a number (negative ones count from the end) or key; a `SampleBatch` for a slice."""
        if isinstance(item, slice):
            return self.__getitems__(range(*item.indices(len(self))))
        if isinstance(item, str):
            number = self.find(item)
            if number is None:
                raise EntryNotFound(
                    f"no sample has the key {shorten(item)}",
                    path=self._label,
                )
            item = number
        return self.__getitems__([item])[0]

    def __getitems__(self, numbers: Iterable[int]) -> SampleBatch:
        """Many samples with one call: a sequence of them, whose `arrays` are the whole batch."""
        return self._batch(_whole_numbers(numbers), self._ahead)

    def _batch(self, numbers: list[int], ahead: SamplesAhead | None) -> SampleBatch:
        samples = self._read(numbers, ahead)
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

    def batches(self, plan: Plan, start: int = 0) -> Iterator[SampleBatch]:
        """The batches of a plan from step `start` on. Those of remote shards are fetched ahead; see `follow`."""
        ahead = self._ahead_of(plan, start * plan.global_batch)
        try:
            for numbers in plan.batches(start):
                yield self._batch(numbers.tolist(), ahead)
        finally:
            if ahead is not None:
                ahead.close()

    def follow(self, plan: Plan, position: int = 0) -> None:
        """Fetch ahead what a plan reads from this position of its epoch on, in threads.

        Loaders call this. Samples are then handed out from memory as long as batches are asked for in the order of the
        plan; others are read as always. If the plan goes from shard to shard (`"shards"` or `"none"`), shards are
        fetched as a whole, as far as they fit into `read_ahead`. Local shards are not read ahead.
        """
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._ahead_of(plan, position)

    def follow_batches(self, batches: Iterator[NDArray[np.int64]], workers: int = 1) -> None:
        """The same for batches of any order; `workers` share the memory."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._fetched_ahead(batches, workers, None)

    def _ahead_of(self, plan: Plan, position: int) -> SamplesAhead | None:
        groups = plan.shard_groups()
        if plan.shuffle == "none":
            groups = np.arange(len(self.shard_sizes))
        return self._fetched_ahead(plan.batches_from(position), plan.num_workers, groups)

    def _fetched_ahead(
        self, batches: Iterator[NDArray[np.int64]], workers: int, groups: NDArray[np.int64] | None
    ) -> SamplesAhead | None:
        if not self._read_ahead or not _makes_requests(self._dataset):
            return None
        sizes = self.shard_sizes
        sample_bytes = _sample_bytes(self._dataset, sizes)
        if sample_bytes @ np.array(sizes) <= self._read_ahead // workers:
            groups = np.zeros(len(sizes), np.int64)  # all shards fit
        return SamplesAhead(
            batches,
            shard_sizes=sizes,
            sample_bytes=sample_bytes,
            fetch=partial(_fetch, self._dataset, self._decoder),
            most_bytes=self._read_ahead // workers,
            groups=groups,
        )

    def __iter__(self) -> Iterator[Any]:
        """The samples in order, a few at a time."""
        if _is_remote(self._dataset):
            plan = Plan(len(self), batch_size=_LARGEST_RUN, shuffle="none")
            for batch in self.batches(plan):
                yield from batch
            return
        first, run, count = 0, 1, len(self)
        while first < count:
            yield from self.__getitems__(range(first, min(first + run, count)))
            first, run = first + run, min(2 * run, _LARGEST_RUN)

    def _read(self, numbers: list[int], ahead: SamplesAhead | None) -> list[Any]:
        dataset, decoder = self._dataset, self._decoder
        parts: Sequence[Any] | None
        make: Callable[[Any], Any] = decoder.sample
        work = 0
        try:
            parts = ahead.take(numbers, _SKIPPED) if ahead is not None and ahead.is_ours else None
            if parts is None:
                parts = _fetch(dataset, decoder, numbers)
            if self._is_keyed:
                make = partial(decoder.keyed_sample, path=self._label)
                if decoder.function is not None and parts:
                    work = sum(map(len, parts[0][1].values()))
            elif parts:
                work = decoder.work_bytes(parts[0])
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
        return self._decoder.sample(_take_records(self._dataset, [number], self._decoder)[0])

    def _other(self, number: int, error: ShardError) -> Any:  # noqa: ANN401 - what a function returns
        """Return another sample in place of one that cannot be read."""
        self.skipped.add(self._place(error), error)
        for other in _replacements(number, len(self)):
            try:
                return self._sample(other)
            except _SKIPPED as another:  # noqa: PERF203 - damage is rare
                self.skipped.add(self._place(another), another, 0)
                error = another
        raise error

    def _place(self, error: ShardError) -> str:
        return error.path or self._label

    # --- files

    def close(self) -> None:
        """Closes the shards that were opened for this dataset; a dataset that you passed stays open."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        if self._is_own:
            self._dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # A copy opens its shards itself.
        return {**self.__dict__, "_ahead": None, "_is_own": True}

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
            "expected sample numbers",
            expected="a list of integers",
            found=repr(numbers)[:_LONGEST_SHOWN],
        ) from None


# --- the records behind it


def _open_samples(
    source: Samples, skipped: SkipCounter | None, options: dict[str, Any] | None
) -> AnyDataset:
    """Open the dataset of records."""
    if isinstance(source, (Dataset, CombinedDataset)):
        if options:
            raise InvalidArgument(
                "storage_options and cache_dir are for shards that are opened here",
                hint="pass storage_options={…, 'cache_dir': …} to shardpack.open",
            )
        return source
    if skipped is None:
        return Dataset(source, storage_options=options)
    usable: list[Any] = []
    failure: ShardError | None = None
    locations = expand(source)
    is_remote = isinstance(locations[0], str) and is_url(locations[0])
    errors = map_in_order(
        locations, partial(_footer_error, options=options), _REQUESTS if is_remote else 1
    )
    for location, error in zip(locations, errors, strict=True):
        if error is None:
            usable.append(location)
        else:
            skipped.leave_out(error.path or _name(location), error)
            failure = error
    while usable:
        try:
            return Dataset(usable, storage_options=options)
        except _DAMAGE as error:  # noqa: PERF203 - damage is rare
            # The first shard is opened at once, and its index may be damaged.
            failure = error
            skipped.leave_out(error.path or _name(usable[0]), error)
            del usable[0]
    assert failure is not None  # there was at least one location
    raise failure


def _footer_error(location: Any, options: dict[str, Any] | None) -> ShardError | None:  # noqa: ANN401 - any source
    try:
        read_footer(location, options)
    except _DAMAGE as error:
        return error
    return None


def _shard_sizes(dataset: AnyDataset) -> tuple[int, ...]:
    """How many samples each shard has; of joins and overlays the first dataset has the order."""
    if isinstance(dataset, CombinedDataset):
        return dataset.records_by_shard(_shard_sizes(dataset.main))
    return tuple(footer.record_count for footer in dataset.footers())


def _fingerprint(dataset: AnyDataset) -> str:
    """Changes with names, sizes and indexes of the shards; the same wherever they lie."""
    digest = xxh64()
    if isinstance(dataset, CombinedDataset):
        parts = [(prefix, _fingerprint(part)) for prefix, part in dataset.parts]
        digest.update(repr((type(dataset).__name__, parts, *dataset.edits)).encode())
    else:
        for location, footer in zip(dataset.locations, dataset.footers(), strict=True):
            digest.update(repr((os.path.basename(_name(location)), *footer)).encode())
    return digest.hexdigest()


def _described(dataset: AnyDataset) -> str:
    """The dataset in messages: the name of its first shard, and how many more there are."""
    return _described(dataset.main) if isinstance(dataset, CombinedDataset) else dataset.label


def _name(location: Any) -> str:  # noqa: ANN401 - any source
    """What a shard is called, without what a URL says to the server."""
    if isinstance(location, str):
        return location.partition("?")[0] if is_url(location) else location
    name = getattr(location, "name", "<bytes>")
    return name if isinstance(name, str) else "<file>"


def _is_remote(dataset: AnyDataset) -> bool:
    """Whether a shard is behind a URL, or in another source that fetches ranges."""
    if isinstance(dataset, CombinedDataset):
        return any(_is_remote(part) for _, part in dataset.parts)
    return any(
        is_far(one) if isinstance(one, str) else can_read_ranges(one) for one in dataset.locations
    )


def _makes_requests(dataset: AnyDataset) -> bool:
    """Whether there is anything to fetch; not if a cache has all of it."""
    if isinstance(dataset, CombinedDataset):
        return any(_makes_requests(part) for _, part in dataset.parts)
    return _is_remote(dataset) and (not dataset.is_remote or dataset.makes_requests)


def _sample_bytes(dataset: AnyDataset, shard_sizes: Sequence[int]) -> NDArray[np.float64]:
    """How large a sample of each shard is, on average."""
    if isinstance(dataset, CombinedDataset):
        footers = [footer for part in _datasets(dataset) for footer in part.footers()]
        total = sum(footer.index_offset for footer in footers)
        return np.full(len(shard_sizes), total / max(1, sum(shard_sizes)))
    return np.array(
        [footer.index_offset / max(1, footer.record_count) for footer in dataset.footers()]
    )


def _datasets(dataset: AnyDataset) -> Iterator[Dataset]:
    if isinstance(dataset, CombinedDataset):
        for _, part in dataset.parts:
            yield from _datasets(part)
    else:
        yield dataset


def _is_keyed(dataset: AnyDataset, decoder: SampleDecoder) -> bool:
    """Whether samples are made of keys and bytes, without objects for records and entries: half the time."""
    return decoder.takes_all_bytes and isinstance(dataset, Dataset)


def _fetch(dataset: AnyDataset, decoder: SampleDecoder, numbers: list[int]) -> Sequence[Any]:
    """What samples are made of: records, or keys with the bytes of all entries."""
    if isinstance(dataset, Dataset) and _is_keyed(dataset, decoder):
        return dataset.take_keyed(numbers)
    return _take_records(dataset, numbers, decoder)


def _take_records(
    dataset: AnyDataset, numbers: list[int], decoder: SampleDecoder, prefix: str = ""
) -> Sequence[AnyRecord]:
    """The records of these numbers, in this order, with what the decoder reads of remote ones."""
    if isinstance(dataset, CombinedDataset):
        return dataset.take_with(
            numbers,
            lambda part, inside, before: _take_records(part, inside, decoder, prefix + before),
        )
    return dataset.take(
        numbers,
        whole=decoder.selection.entries is None,
        read_ahead=lambda record: decoder.read_entries(record, prefix),
    )
