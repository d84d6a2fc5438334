"""A dataset that is a mixture of others, which may have different channels.

    mixed = mix([(robot, 0.7), (simulation, 0.3)], stop="all", seed=7)
    sampler = BatchSampler(mixed.plan(batch_size=32))
    for indices in sampler:
        batch = mixed.batch(indices)

The mixture is a sequence with an order of its own: its plan walks along it and shuffles nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from shard_format.errors import InvalidArgument
from shard_train._batches import MixedBatch, Sample, stack_samples
from shard_train._mixture import MixtureOrder, Stop
from shard_train._orders import mixed_key
from shard_train._plan import Plan, PlanOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Unpack

__all__ = ["MixedBatch", "MixedDataset", "SampleSource", "mix"]

_FOR_SOURCES: Final = 5
SOURCE_ID: Final = "source_id"
MISSING: Final = "_is_missing"


class SampleSource(Protocol):
    """A dataset of samples that are dictionaries; it may have `__getitems__` too.

    `__getitems__` takes a list of numbers and gives a sequence of samples. If that has `arrays`, or is a
    dictionary itself, they are taken as the samples stacked, by channel.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Mapping[str, Any]: ...


# Both kinds of dictionary: by name, with pairs of dataset and weight, or by dataset, with weights.
Sources: TypeAlias = "Mapping[Any, Any] | Iterable[tuple[SampleSource | int, float]]"


def mix(
    sources: Sources,
    *,
    stop: Stop = "first",
    seed: int = 0,
    shuffle: Literal["global", "none"] = "global",
    plans: Mapping[str, Plan] | None = None,
    rename: Mapping[str, Mapping[str, str]] | None = None,
) -> MixedDataset:
    """Mix datasets by weight, in an order that depends only on the arguments.

    In every prefix of the mixture each source has its share of the samples, to less than one sample. Shares
    are exact if they have a common denominator of at most 65536, such as 0.7, 0.2 and 0.1; others are rounded
    to parts of 65536, of which each source has at least one.

    Args:
        sources: pairs of dataset and weight, `{dataset: weight}`, or `{name: (dataset, weight)}`. Sources
            without a name are called "0", "1" and so on. A number stands for a dataset of that length that returns
            the numbers of its samples as the channel `index`.
        stop: `"first"`: an epoch ends before a source would repeat a sample; `"all"`: when every source has
            given all its samples; `"never"`.
        seed: the seed of the order.
        shuffle: `"global"` or `"none"`, for every source.
        plans: other orders and seeds of sources, by name: `{"far": Plan(n, shuffle="shards", shard_sizes=sizes)}`.
        rename: other names for the channels of a source: `{"robot": {"cam_high": "camera"}}`.

    A mixture can be a source of another; it keeps its order.

    Raises:
        InvalidArgument: a weight is not positive, a source is empty, or a name is not that of a source.
    """
    named = _named(sources)
    if shuffle not in ("global", "none"):
        raise InvalidArgument(
            "unknown shuffle for the sources of a mixture",
            expected="global or none",
            found=shuffle,
            hint="pass plans={name: Plan(...)} for other orders",
        )
    for what, given in (("plans", plans), ("rename", rename)):
        for name in given or ():
            if name not in named:
                raise InvalidArgument(
                    f"{what} has a name that no source has",
                    expected=" or ".join(map(repr, named)),
                    found=repr(name),
                )
    orders: list[Plan] = []
    for number, (name, (source, _)) in enumerate(named.items()):
        plan = (plans or {}).get(name)
        if plan is None:
            own_seed = mixed_key(seed, number, _FOR_SOURCES) >> 1
            # A mixture has an order of its own, over all its epochs.
            if isinstance(source, MixedDataset):
                plan = source.plan()
            else:
                plan = Plan(len(source), seed=own_seed, shuffle=shuffle)
        elif plan.length != len(source):
            raise InvalidArgument(
                f"the plan of source {name!r} is for a different length",
                expected=len(source),
                found=plan.length,
            )
        orders.append(plan)
    weights = [weight for _, weight in named.values()]
    return MixedDataset(
        {name: source for name, (source, _) in named.items()},
        MixtureOrder(orders, weights, stop=stop, seed=seed),
        rename=rename or {},
        described=f"stop={stop!r}, seed={seed}, weights={weights}",
    )


def _named(sources: Sources) -> dict[str, tuple[SampleSource, float]]:
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(sources, Mapping):
        for number, (key, value) in enumerate(sources.items()):
            if isinstance(key, str) and isinstance(value, tuple):
                pairs.append((key, *value))
            else:
                pairs.append((str(number), key, value))
    else:
        pairs.extend((str(number), *pair) for number, pair in enumerate(sources))
    return {
        name: (_Numbers(int(source)) if isinstance(source, (int, np.integer)) else source, weight)
        for name, source, weight in pairs
    }


class _Numbers:
    """A source that is known by its length only."""

    def __init__(self, length: int) -> None:
        self._length = int(length)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int, /) -> Sample:
        return {"index": number}

    def __getitems__(self, numbers: list[int]) -> Sample:
        return {"index": np.array(numbers, np.int64)}

    def __repr__(self) -> str:
        return str(self._length)


class MixedDataset:
    """The view over the sources; made by `mix`.

    A sample is a dictionary with the channels of all sources and `source_id`, the number of its source.
    A channel that its source lacks is zero (text and ragged data: empty), and marked in `<channel>_is_missing`; every
    channel that some source lacks has such a mask. The channels are learned from sample 0 of each source when the
    first sample is asked for.

    Numbers from `len` on are samples of the following epochs, so that a plan never ends. Safe for
    threads, forks and pickling if the sources are.
    """

    def __init__(
        self,
        sources: Mapping[str, SampleSource],
        mixture: MixtureOrder,
        *,
        rename: Mapping[str, Mapping[str, str]],
        described: str,
    ) -> None:
        self._names = tuple(sources)
        self._sources = tuple(sources.values())
        self._mixture = mixture
        self._rename = {name: dict(names) for name, names in rename.items()}
        self._described = described
        self._channels: MixedChannels | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources; `source_id` counts them."""
        return self._names

    @property
    def sources(self) -> tuple[SampleSource, ...]:
        """The sources, in the order of `names`."""
        return self._sources

    @property
    def shares(self) -> NDArray[np.float64]:
        """What part of the mixture each source is, after rounding."""
        return self._mixture.shares

    def plan(self, **options: Unpack[PlanOptions]) -> Plan:
        """Make a plan for the mixture; see `Plan` for the options.

        Raises:
            InvalidArgument: `seed` or `shuffle`, which a mixture got when it was made.
        """
        for name in ("seed", "shuffle"):
            if name in options:
                raise InvalidArgument("a mixture has its own order", hint=f"pass {name} to mix()")
        # As the seed, what identifies the mixture: the state of another mixture must not pass for one of this.
        options["seed"], options["shuffle"] = self._mixture.identity, "stream"
        return Plan(len(self), **options)

    def __len__(self) -> int:
        """Samples in an epoch; for `stop="never"`, more than anybody will draw."""
        return len(self._mixture)

    def locate(self, numbers: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each sample of the mixture the number of its source, and its number there."""
        return self._mixture.locate(numbers)

    def __getitem__(self, number: int) -> Sample:
        number = as_index(number)
        if number < -len(self):
            raise IndexError(f"sample {number} is outside a mixture of {len(self)}")
        return self.__getitems__([number + len(self) if number < 0 else number])[0]

    def __getitems__(self, numbers: Iterable[int]) -> MixedBatch:
        """Many samples, with one call for each source: a sequence of them, whose `arrays` are the whole batch."""
        ids, inside = self.locate(numbers if isinstance(numbers, np.ndarray) else list(numbers))
        parts: list[SourcePart] = []
        for source in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == source)
            parts.append(SourcePart(source, rows, self._fetch(source, inside[rows].tolist())))
        return MixedBatch(self._known().join(ids, parts), ids.size)

    def batch(self, numbers: Iterable[int]) -> dict[str, Any]:
        """Many samples as one array for each channel, `[B, ...]`, or a list if it has no numbers."""
        return self.__getitems__(numbers).arrays

    def follow(self, plan: Plan, position: int = 0) -> None:
        """Have the sources read ahead what a plan reads from this position on, as far as they can."""
        for number, source in enumerate(self._sources):
            follow = getattr(source, "follow_batches", None)
            if follow is not None:
                follow(self._batches_of(number, plan, position), plan.num_workers)

    def _batches_of(self, source: int, plan: Plan, position: int) -> Iterator[NDArray[np.int64]]:
        """The numbers that each batch has of a source."""
        for numbers in plan.batches_from(position):
            ids, inside = self.locate(numbers)
            if (ids == source).any():
                yield inside[ids == source]

    def __iter__(self) -> Iterator[Sample]:
        """The samples of one epoch."""
        return map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        sources = ", ".join(
            f"{name}: {source!r}" for name, source in zip(self._names, self._sources, strict=True)
        )
        return f"MixedDataset({{{sources}}}, {self._described})"

    # --- channels

    def _known(self) -> MixedChannels:
        known = self._channels
        if known is None:
            firsts = [self._fetch(source, [0]) for source in range(len(self._names))]
            # Threads may find out twice, and find the same.
            known = self._channels = MixedChannels(self._names, firsts)
        return known

    def _fetch(self, source: int, numbers: list[int]) -> Sample:
        """Samples of a source, stacked, under the names that the mixture has for its channels."""
        data = self._sources[source]
        together = getattr(data, "__getitems__", None)
        got: Any = [data[number] for number in numbers] if together is None else together(numbers)
        got = getattr(got, "arrays", got)
        if isinstance(got, Mapping):
            return self._renamed(source, got)
        samples = [self._renamed(source, sample) for sample in got]
        if len(samples) != len(numbers):
            raise InvalidArgument(
                f"source {self._names[source]!r} returned another number of samples",
                expected=len(numbers),
                found=len(samples),
            )
        for sample in samples:
            _check_channels(self._names[source], samples[0].keys(), sample)
        return stack_samples(samples)

    def _renamed(self, source: int, sample: Mapping[str, Any]) -> Sample:
        name = self._names[source]
        if not isinstance(sample, Mapping):
            raise InvalidArgument(
                f"a sample of source {name!r} cannot be mixed",
                expected="a dictionary of channels",
                found=type(sample).__name__,
            )
        names = self._rename.get(name, {})
        if unknown := names.keys() - sample.keys():
            raise InvalidArgument(
                f"source {name!r} has no channel {min(unknown)!r} to rename",
                expected=" or ".join(map(repr, sample)),
            )
        renamed = {names.get(channel, channel): value for channel, value in sample.items()}
        if len(renamed) < len(sample) or SOURCE_ID in renamed:
            raise InvalidArgument(
                f"two channels of source {name!r} would have the same name",
                found=", ".join(map(repr, sample)),
                hint=f"rename one of them; {SOURCE_ID!r} is the number of the source",
            )
        return renamed


# --- channels


class SourcePart(NamedTuple):
    """What one source gives to a batch: the samples of some rows, stacked."""

    source: int
    rows: NDArray[np.int64]
    columns: Sample


class MixedChannels:
    """The channels of all sources together, learned from one sample of each."""

    def __init__(self, names: Sequence[str], firsts: Sequence[Sample]) -> None:
        self._names = names
        self._owned = [frozenset(first) for first in firsts]
        # What a sample has that lacks the channel.
        self._blanks: dict[str, Any] = {}
        self._lists = {n for first in firsts for n, values in first.items() if type(values) is list}
        for first in firsts:
            for name, values in first.items():
                self._blanks.setdefault(name, _blank(values[0], in_list=isinstance(values, list)))
        partial = self._blanks.keys() - frozenset.intersection(*self._owned)
        # A source may have such masks itself: what others lack is missing there.
        masks = {name + MISSING for name in self._blanks} & self._blanks.keys()
        self._blanks.update(dict.fromkeys(masks & partial, np.True_))
        self._partial = {name for name in partial - masks if name + MISSING not in masks}

    def join(self, ids: NDArray[np.int64], parts: Sequence[SourcePart]) -> dict[str, Any]:
        """A batch of stacked parts; `ids` has the source of each row."""
        for part in parts:
            _check_channels(self._names[part.source], self._owned[part.source], part.columns)
        batch: dict[str, Any] = {}
        for name in self._blanks:
            having = [part for part in parts if name in part.columns]
            batch[name] = self._joined(name, ids.size, having)
            if name in self._partial:
                missing = np.ones(ids.size, np.bool_)
                for part in having:
                    missing[part.rows] = False
                batch[name + MISSING] = missing
        batch[SOURCE_ID] = ids
        return batch

    def _joined(self, name: str, count: int, parts: Sequence[SourcePart]) -> Any:  # noqa: ANN401 - a channel of any kind
        """One channel of a batch, put together from the sources that have it."""
        blank = self._blanks[name]
        is_array = isinstance(blank, (np.ndarray, np.generic)) and name not in self._lists
        for part in parts:
            values = part.columns[name]
            wanted, got = f"{part.rows.size} values", f"{len(values)} values"
            if is_array:
                wanted = f"{blank.dtype} {[part.rows.size, *blank.shape]}"
                got = (
                    "arrays of different shapes or types"
                    if isinstance(values, list)
                    else f"{np.asarray(values).dtype} {list(np.shape(values))}"
                )
            if got != wanted:
                raise InvalidArgument(
                    f"channel {name!r} of source {self._names[part.source]!r} does not fit the others",
                    expected=wanted,
                    found=got,
                    hint="rename it, or convert it in the source",
                )
            if part.rows.size == count:
                return values
        joined: Any = np.full((count, *blank.shape), blank) if is_array else [blank] * count
        for part in parts:
            if is_array:
                joined[part.rows] = part.columns[name]
            else:
                for row, value in zip(part.rows.tolist(), part.columns[name], strict=True):
                    joined[row] = value
        return joined


def _check_channels(source: str, expected: Collection[str], found: Sample) -> None:
    """What sample 0 did not have would silently be lost, and what only it had would be zero."""
    if found.keys() != expected:
        raise InvalidArgument(
            f"source {source!r} has samples with other channels than its first",
            expected=", ".join(sorted(expected)),
            found=", ".join(sorted(found)),
            hint="every sample of a source must have the same channels",
        )


def _blank(value: Any, *, in_list: bool = False) -> Any:  # noqa: ANN401 - a channel of any kind
    """What stands for a missing value: zeros of its shape and type, or something empty.

    Arrays that are in a list differ in length, so that an empty one is missing.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return np.zeros_like(array[:0] if in_list and array.ndim else array)[()]
    if type(value) is list:
        return [_blank(one) for one in value]
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return type(value)()
    return None
