"""A data set that is a mixture of others, which may have different channels.

    mixed = mix([(robot, 0.7), (simulation, 0.3)], stop="all", seed=7)
    sampler = Sampler(mixed.plan(batch_size=32))
    for indices in sampler:
        batch = mixed.batch(indices)

The mixture is a sequence with an order of its own: its plan walks along it and shuffles nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np

from shard_format.errors import InvalidArgument
from shardpack._channels import SOURCE_ID, Channels, MixedBatch, Part, Sample
from shardpack._stacking import stacked
from shardpack.interleaving import Mixture, Stop
from shardpack.permutation import mixed_key
from shardpack.sampling import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Mixed", "MixedBatch", "Source", "mix"]

_FOR_SOURCES: Final = 5


class Source(Protocol):
    """A data set of samples that are dictionaries; it may have `__getitems__` too.

    `__getitems__` takes a list of numbers and gives a sequence of samples. If that has `arrays`, or is a
    dictionary itself, they are taken as the samples stacked, by channel.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Mapping[str, Any]: ...


# Both kinds of dictionary: by name, with pairs of data set and weight, or by data set, with weights.
Sources: TypeAlias = "Mapping[Any, Any] | Iterable[tuple[Source | int, float]]"


def mix(
    sources: Sources,
    *,
    stop: Stop = "first",
    seed: int = 0,
    shuffle: Literal["global", "none"] = "global",
    plans: Mapping[str, Plan] | None = None,
    rename: Mapping[str, Mapping[str, str]] | None = None,
) -> Mixed:
    """Mixes data sets by weight, in an order that depends on the arguments only.

    In every prefix of the mixture each source has its share of the samples, to less than one sample. Shares
    are exact if they have a common denominator of at most 65536, such as 0.7, 0.2 and 0.1; others are rounded
    to parts of 65536, of which each source has at least one.

    Args:
        sources: pairs of data set and weight, `{data set: weight}`, or `{name: (data set, weight)}`. Sources
            without a name are called "0", "1" and so on. A number stands for a data set of that length
            which gives the numbers of its samples as the channel `index`.
        stop: `"first"`: an epoch ends before a source would repeat a sample; `"all"`: when every source has
            given all its samples; `"never"`.
        seed: another seed is another order.
        shuffle: `"global"` or `"none"`, for every source; for other orders, and other seeds,
        plans: the order of a source, by its name: `{"far": Plan(n, shuffle="shards", shard_sizes=sizes)}`.
        rename: other names for the channels of a source: `{"robot": {"cam_high": "camera"}}`.

    A mixture can be a source of another; it keeps its order.

    Raises:
        InvalidArgument: a weight is not positive, a source is empty, or a name is not that of a source.
    """
    named = _named(sources)
    if shuffle not in ("global", "none"):
        raise InvalidArgument(
            "the sources of a mixture are not shuffled like this",
            expected="global or none",
            found=shuffle,
            hint="say it for the source: plans={name: Plan(...)}",
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
            if isinstance(source, Mixed):
                plan = source.plan()
            else:
                plan = Plan(len(source), seed=own_seed, shuffle=shuffle)
        elif plan.length != len(source):
            raise InvalidArgument(
                f"the plan of source {name!r} is for another length",
                expected=len(source),
                found=plan.length,
            )
        orders.append(plan)
    weights = [weight for _, weight in named.values()]
    return Mixed(
        {name: source for name, (source, _) in named.items()},
        Mixture(orders, weights, stop=stop, seed=seed),
        rename=rename or {},
        described=f"stop={stop!r}, seed={seed}, weights={weights}",
    )


def _named(sources: Sources) -> dict[str, tuple[Source, float]]:
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


class Mixed:
    """The view over the sources; made by `mix`.

    A sample is a dictionary with the channels of all sources and `source_id`, the number of its source.
    A channel that its source lacks is zero (text: empty), and `<channel>_is_missing` says so; that mask is
    there for every channel that not all sources have. The channels are learned from sample 0 of each
    source when the first sample is asked for.

    Numbers from `len` on are samples of the following epochs, so that a plan can go on and on. Safe for
    threads, forks and pickling if the sources are.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        mixture: Mixture,
        *,
        rename: Mapping[str, Mapping[str, str]],
        described: str,
    ) -> None:
        self._names = tuple(sources)
        self._sources = tuple(sources.values())
        self._mixture = mixture
        self._rename = {name: dict(names) for name, names in rename.items()}
        self._described = described
        self._channels: Channels | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources; `source_id` counts them."""
        return self._names

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources, in the order of `names`."""
        return self._sources

    @property
    def shares(self) -> NDArray[np.float64]:
        """What part of the mixture each source is, after rounding."""
        return self._mixture.shares

    def plan(
        self,
        *,
        batch_size: int = 1,
        world_size: int = 1,
        rank: int = 0,
        num_workers: int = 1,
        worker: int = 0,
        drop_last: bool = False,
        pad: bool = True,
        epoch: int = 0,
    ) -> Plan:
        """The plan that walks along the mixture; see `Plan` for the arguments."""
        return Plan(
            len(self),
            shuffle="stream",
            # A state that was saved with another mixture must not pass for one of this.
            seed=self._mixture.identity,
            epoch=epoch,
            batch_size=batch_size,
            world_size=world_size,
            rank=rank,
            num_workers=num_workers,
            worker=worker,
            drop_last=drop_last,
            pad=pad,
        )

    def __len__(self) -> int:
        """Samples in an epoch; for `stop="never"`, more than anybody will draw."""
        return len(self._mixture)

    def locate(self, numbers: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each sample of the mixture the number of its source, and its number there."""
        return self._mixture.locate(numbers)

    def __getitem__(self, number: int) -> Sample:
        number = as_index(number)
        if number < -len(self):
            raise IndexError(f"there is no sample {number} in a mixture of {len(self)}")
        ids, inside = self.locate([number + len(self) if number < 0 else number])
        source = int(ids[0])
        own = self._renamed(source, self._sources[source][int(inside[0])])
        return self._known().complete(source, own)

    def __getitems__(self, numbers: Iterable[int]) -> Sequence[Sample]:
        """Many samples, with one call for each source; with `arrays` if all sources stack theirs."""
        ids, parts = self._fetch_all(numbers)
        known = self._known()
        if known.is_stacked:
            return MixedBatch(known.join(ids, parts))
        samples: list[Sample] = [{}] * ids.size
        for part in parts:
            for row, own in zip(part.rows.tolist(), part.singly(), strict=True):
                samples[row] = known.complete(part.source, own)
        return samples

    def batch(self, numbers: Iterable[int]) -> dict[str, Any]:
        """Many samples as one array for each channel, `[B, ...]`, or a list if it has no numbers."""
        samples = self.__getitems__(numbers)
        return samples.arrays if isinstance(samples, MixedBatch) else stacked(samples)

    def __iter__(self) -> Iterator[Sample]:
        """The samples of one epoch."""
        return map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        sources = ", ".join(
            f"{name}: {source!r}" for name, source in zip(self._names, self._sources, strict=True)
        )
        return f"Mixed({{{sources}}}, {self._described})"

    # Channels

    def _known(self) -> Channels:
        known = self._channels
        if known is None:
            firsts = [self._fetch(n, np.zeros(1, np.int64), [0]) for n in range(len(self._names))]
            # Threads may find out twice, and find the same.
            known = self._channels = Channels(self._names, firsts)
        return known

    def _fetch_all(self, numbers: Iterable[int]) -> tuple[NDArray[np.int64], list[Part]]:
        ids, inside = self.locate(numbers if isinstance(numbers, np.ndarray) else list(numbers))
        parts: list[Part] = []
        for source in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == source)
            parts.append(self._fetch(source, rows, inside[rows].tolist()))
        return ids, parts

    def _fetch(self, source: int, rows: NDArray[np.int64], numbers: list[int]) -> Part:
        """Samples of a source, under the names that the mixture has for its channels."""
        data = self._sources[source]
        together = getattr(data, "__getitems__", None)
        got: Any = [data[number] for number in numbers] if together is None else together(numbers)
        got = getattr(got, "arrays", got)
        if isinstance(got, Mapping):
            return Part(source, rows, self._renamed(source, got))
        samples = [self._renamed(source, sample) for sample in got]
        if len(samples) != len(numbers):
            raise InvalidArgument(
                f"source {self._names[source]!r} gave another number of samples",
                expected=len(numbers),
                found=len(samples),
            )
        return Part(source, rows, samples)

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
