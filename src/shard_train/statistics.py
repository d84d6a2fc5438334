"""Statistics of the channels of a dataset, and normalising by them.

from shard_train import EpisodeDataset, compute_stats, save_stats

save_stats(compute_stats("episodes"), "episodes")
ds = EpisodeDataset("episodes", window=64, normalize=True)
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from shard_format.errors import DATA_ERRORS, InvalidArgument, ShardError
from shard_format.parallel import available_threads, ordered_parallel
from shard_train._episode_dataset import EpisodeDataset
from shard_train._normalizing import load_stats_of
from shard_train._stats import (
    ChannelStats,
    Stats,
    channel_fields,
    group_shape,
    joined_spread,
    save_stats,
    stats_beside,
)
from wshard.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from shard_format.executors import Executor
    from shard_train._episodes.store import Files

__all__ = [
    "DEFAULT_QUANTILES",
    "ChannelStats",
    "Stats",
    "channel_fields",
    "compute_stats",
    "load_stats",
    "save_stats",
    "stats_beside",
]

_Read: TypeAlias = "dict[str, ChannelAccumulator] | ShardError"
DEFAULT_QUANTILES: Final = (0.01, 0.1, 0.5, 0.9, 0.99)
# What a thread reads at a time. Converted to float64 it takes up to eight times as much.
_PIECE_BYTES: Final = 1 << 21
# (groups up to, rows): how many rows a sample has; fewer where many groups need them.
_SAMPLES: Final = ((64, 16384), (1 << 30, 2048))
_HALF_RANGE: Final = 1 << 63
_LARGE: Final = 8e307


def compute_stats(
    ds: EpisodeDataset | Files,
    *,
    quantiles: Sequence[float] = DEFAULT_QUANTILES,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
) -> Stats:
    """Compute the statistics of every number in the channels of a dataset, and of `reward`.

    All steps of all its episodes count once, whatever the windows are, including episodes shorter than a window and
    the observation after the last step. Counts, means, deviations and ranges are exact. Quantiles are those of a
    random sample of 16 384 steps or pixels (2 048 for channels of more than 64 numbers); with fewer numbers they
    are exact too. The result is the same for any number of threads, and memory does not grow with the number of
    steps.

    Args:
        ds: a dataset; or what `EpisodeDataset` takes, for all observations and actions. Episodes that cannot be
            read are an error; with the dataset's `on_error="skip"` they are counted in its `skipped`, and no part
            of them counts.
        quantiles: shares from 0 to 1.
        threads: how many threads read; None for one per processor, up to 8.
        progress: called with the bytes done and the bytes in all, never by two threads at once.
        executor: reads elsewhere, instead of `threads`: `shard_format.executors.make_executor("ray")`.

    Raises:
        InvalidArgument: an argument is not valid.
        ShardError: a subclass that says which file cannot be read and why.
    """
    shares = check_shares(quantiles)
    if threads is not None and threads < 1:
        raise InvalidArgument("threads must be at least 1", found=threads)
    data = ds if isinstance(ds, EpisodeDataset) else EpisodeDataset(ds, window=1)

    totals = accumulate(data, range(len(data.lengths)), threads, progress, executor)
    return totals.finish(shares, data.data_fingerprint)


@dataclass
class Totals:
    """What is known about some episodes."""

    channels: dict[str, ChannelAccumulator] = field(default_factory=dict)
    episodes: int = 0
    """How many were read."""
    left_out: int = 0
    """How many could not be read."""
    steps: int = 0

    def join(self, other: Totals) -> None:
        """Take in what is known about other episodes of the dataset, which come later in it."""
        self.episodes += other.episodes
        self.left_out += other.left_out
        self.steps += other.steps
        for key, one in other.channels.items():
            if key in self.channels:
                self.channels[key].join(one)
            else:
                self.channels[key] = one

    def finish(self, quantiles: Sequence[float], fingerprint: str) -> Stats:
        """Return the statistics."""
        if not self.episodes:
            raise InvalidArgument(
                "no episode of the dataset can be read",
                found=f"{self.left_out} episodes, all of them left out",
            )
        channels = {key: total.finish(quantiles) for key, total in self.channels.items()}
        return Stats(channels, (fingerprint,), self.episodes, self.steps)


def accumulate(
    data: EpisodeDataset,
    numbers: range,
    threads: int | None,
    progress: Callable[[int, int], None] | None,
    executor: Executor | None,
) -> Totals:
    """Read the episodes of these numbers; arguments as for `compute_stats`."""
    step_bytes = sum(dtype.itemsize * prod(shape) for dtype, shape in data.channels.values())
    lengths = data.lengths[numbers.start : numbers.stop].tolist()
    totals, done = Totals(), 0
    read = _EpisodeReader(data)
    results: Iterable[_Read]
    if executor is None:
        at_once = available_threads() if threads is None else threads
        results = ordered_parallel(numbers, read, at_once)
    else:
        results = (found for _, found in executor.run(read, numbers, in_order=True))
    for number, length, found in zip(numbers, lengths, results, strict=True):
        if isinstance(found, ShardError):
            data.leave_out(data.paths[number], found)
            totals.left_out += 1
        else:
            totals.join(Totals(found, 1, 0, length))
        done += length
        if progress is not None:
            progress(done * step_bytes, sum(lengths) * step_bytes)
    return totals


def check_shares(quantiles: Sequence[float]) -> tuple[float, ...]:
    """Return shares in order, each once; raise if a number is not a share."""
    shares = tuple(sorted({float(share) for share in quantiles}))
    for share in shares:
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise InvalidArgument("a quantile must be a share", expected="0 to 1", found=share)
    return shares


class _EpisodeReader:
    """Takes in all channels of an episode. Runs in threads, processes and on other machines."""

    def __init__(self, data: EpisodeDataset) -> None:
        self._data = data

    def __call__(self, number: int) -> _Read:
        """What is known about each channel, or why the episode cannot be read."""
        found = {}
        try:
            with self._data.open_channels(number) as channels:
                for key, channel in channels.items():
                    if prod(channel.step_shape):
                        one = ChannelAccumulator(
                            channel.dtype_name, tuple(channel.step_shape), seed=number
                        )
                        if channel.nbytes <= _PIECE_BYTES:
                            one.add(channel.data)
                        else:
                            for start, stop in channel.step_ranges(_PIECE_BYTES):
                                one.add(channel.read_steps(start, stop))
                        found[key] = one
        except DATA_ERRORS as error:
            return error
        return found


def load_stats(where: str | os.PathLike[str], ds: EpisodeDataset | None = None) -> Stats:
    """Read statistics that were saved.

    Args:
        where: a folder of episodes, which must not have changed since; or the path of the file.
        ds: the dataset that the statistics must be of, all its files or some. If you pass the path of a file and
            leave this out, the statistics may be of any data.

    Raises:
        InvalidArgument: there are none.
        ReferenceMismatch: they are of other data, or the data has changed.
        BadMetadata: the file is damaged.
    """
    if ds is None and os.path.isdir(where):
        load_stats_of(where, None)  # raises before the folder is scanned
        ds = EpisodeDataset(os.fspath(where), window=1, channels=[])  # only which data it is
    return load_stats_of(where, ds)


class ChannelAccumulator:
    """What is known about a channel so far: counts, moments, range, and a random sample of its rows.

    Args:
        dtype: of the channel.
        shape: of one step.
        seed: of the sample. The result depends on it and on the order of the numbers, and on nothing else.
    """

    def __init__(self, dtype: DType, shape: tuple[int, ...], seed: int = 0) -> None:
        self._dtype = dtype
        self._shape = shape
        self._groups = group_shape(dtype, shape)
        self._random = np.random.default_rng(seed)
        self.moments: _Moments | None = None
        groups = prod(self._groups)
        self._size = next(size for most, size in _SAMPLES if groups <= most)
        # A uniform sample: the rows for which the smallest numbers were drawn.
        self.rows: NDArray[np.float64] = np.zeros((0, groups))
        self.draws: NDArray[np.float64] = np.zeros(0)

    def add(self, values: NDArray[Any]) -> None:
        """Take in steps, `[steps, ...]`, as they are read."""
        table = self._table(self._dtype.as_numbers(values))
        moments = _Moments(table)
        if self.moments is None:
            self.moments = moments
        else:
            self.moments.join(moments)
        self._sample(*self._drawn(table))

    def _drawn(self, table: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Draw a number from 0 to 1 for each row; return the rows that can be in the sample, and their draws."""
        random, limit = self._random, self._limit
        below = len(table) if limit == 1 else int(random.binomial(len(table), limit))
        count = min(below, self._size)
        # The smallest of many draws can be drawn without the others: the gaps between them are exponential.
        gaps = random.standard_exponential(count)
        rest = random.standard_gamma(below + 1 - count)
        rows = random.choice(len(table), count, replace=False)
        return table[rows], np.cumsum(gaps) / (gaps.sum() + rest) * limit

    @property
    def _limit(self) -> float:
        """Rows with larger draws are not in the sample."""
        return float(self.draws.max()) if len(self.draws) >= self._size else 1.0

    def _table(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a column for each group and a row for each of its numbers."""
        kept = [axis for axis, size in enumerate(self._groups, start=1) if size != 1]
        others = [axis for axis in range(values.ndim) if axis not in kept]
        return values.transpose(*others, *kept).reshape(-1, prod(self._groups))

    def _sample(self, rows: NDArray[Any], draws: NDArray[np.float64]) -> None:
        """Keep the rows with the smallest draws."""
        near = draws < self._limit
        rows, draws = rows[near], draws[near]
        rows = np.concatenate((self.rows, rows.astype(np.float64)))
        draws = np.concatenate((self.draws, draws))
        if len(draws) > self._size:
            kept = np.argpartition(draws, self._size)[: self._size]
            rows, draws = rows[kept], draws[kept]
        self.rows, self.draws = rows, draws

    def join(self, other: ChannelAccumulator) -> None:
        """Take in what another one knows about the same channel."""
        if other.moments is not None:
            if self.moments is None:
                self.moments = other.moments
            else:
                self.moments.join(other.moments)
            self._sample(other.rows, other.draws)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that is known, for `of_arrays`."""
        moments = {} if self.moments is None else vars(self.moments)
        return {"rows": self.rows, "draws": self.draws, **moments}

    @classmethod
    def of_arrays(
        cls, dtype: DType, shape: tuple[int, ...], arrays: dict[str, NDArray[Any]]
    ) -> ChannelAccumulator:
        """Make one of what `to_arrays` returned; it can be joined and finished, not added to."""
        found = cls(dtype, shape)
        moments = _Moments(np.zeros((0, prod(group_shape(dtype, shape))), dtype.numpy_dtype))
        names = vars(moments).keys()
        found.rows, found.draws = arrays.pop("rows"), arrays.pop("draws")
        if arrays:
            found.moments = moments
            vars(moments).update({name: arrays[name] for name in names})
        return found

    @property
    def kind(self) -> tuple[DType, tuple[int, ...]]:
        """The type of the channel, and the shape of one step."""
        return self._dtype, self._shape

    def finish(self, quantiles: Sequence[float]) -> ChannelStats:
        """Return the statistics."""
        groups = self._groups
        moments = self.moments or _Moments(np.zeros((0, prod(groups)), self._dtype.numpy_dtype))
        empty = moments.count == 0
        ends = [moments.low, moments.high]
        if self._dtype.is_float or empty.any():
            ends = [np.where(empty, np.nan, end.astype(np.float64)) for end in ends]
        else:
            wide = np.uint64 if self._dtype is DType.UINT64 else np.int64
            ends = [end.astype(wide) for end in ends]
        low, high = ends
        shares = np.array(quantiles)
        found = np.full((len(shares), prod(groups)), np.nan)
        for group, column in enumerate(self.rows.T):
            finite = column[np.isfinite(column)]
            if len(finite):
                # Halves of the largest numbers can be subtracted.
                share = 0.5 if np.abs(finite).max() > _LARGE else 1.0
                found[:, group] = np.quantile(finite * share, shares) / share
        # A sample may miss the ends, and interpolation may leave them by a rounding.
        found = np.clip(found, low.astype(np.float64), high.astype(np.float64))
        found[shares == 0], found[shares == 1] = low, high
        # Where the sample has no finite number, the mean is all that is known.
        lost = np.isnan(found) & ~empty
        found = np.where(lost, moments.mean, found)
        return ChannelStats(
            dtype=self._dtype,
            shape=self._shape,
            count=moments.count.reshape(groups),
            nan=moments.nan.reshape(groups),
            inf=moments.inf.reshape(groups),
            mean=np.where(empty, np.nan, moments.mean).reshape(groups),
            std=np.where(empty, np.nan, moments.std).reshape(groups),
            min=low.reshape(groups),
            max=high.reshape(groups),
            quantiles={
                share: row.reshape(groups) for share, row in zip(quantiles, found, strict=True)
            },
        )


class _Moments:
    """Count, range, mean and deviation of the columns of a table.

    The mean is kept relative to one number of each column, the pivot: a large offset costs no digits, and numbers that
    are all the same have a deviation of exactly zero.
    """

    def __init__(self, table: NDArray[Any]) -> None:
        count, columns = table.shape
        self.nan: NDArray[np.int64] = np.zeros(columns, np.int64)
        self.inf: NDArray[np.int64] = np.zeros(columns, np.int64)
        self.count: NDArray[np.int64] = np.full(columns, count)
        self.low: NDArray[Any] = np.zeros(columns, table.dtype)
        self.high: NDArray[Any] = np.zeros(columns, table.dtype)
        self.std: NDArray[np.float64] = np.zeros(columns)
        self.pivot: NDArray[Any] = np.zeros(columns, table.dtype)
        self.above_pivot: NDArray[np.float64] = np.zeros(columns)
        if not count:
            return
        if table.dtype.itemsize == 1:
            self._count_bytes(table)
            return
        finite = np.isfinite(table) if table.dtype.kind == "f" else None
        if finite is not None and not finite.all():
            self.nan = np.count_nonzero(np.isnan(table), axis=0)
            self.count = np.count_nonzero(finite, axis=0)
            self.inf = count - self.count - self.nan
            # A finite number of the column takes the place of every other: it changes neither end.
            first = table[finite.argmax(axis=0), np.arange(columns)]
            self.pivot = np.where(self.count > 0, first, 0).astype(table.dtype)
            table = np.where(finite, table, self.pivot)
        else:
            self.pivot = table[0].copy()
        self.low, self.high = table.min(axis=0), table.max(axis=0)
        apart = _difference(table, self.pivot, self.low, self.high)
        divisor = np.maximum(self.count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            self.above_pivot = apart.sum(axis=0) / divisor
            apart -= self.above_pivot
            if finite is not None and not finite.all():
                apart[~finite] = 0
            self.std = np.sqrt(np.einsum("ij,ij->j", apart, apart) / divisor)

    def _count_bytes(self, table: NDArray[Any]) -> None:
        """Count how often each value of one byte occurs: images have too many numbers for floats."""
        values = np.arange(256, dtype=np.uint8).view(table.dtype).astype(np.int64)
        for column, numbers in enumerate(table.view(np.uint8).T):
            counts = np.bincount(numbers.astype(np.intp), minlength=256)
            found = values[counts > 0]
            self.low[column], self.high[column] = found.min(), found.max()
            self.pivot[column] = self.low[column]
            apart = (values - found.min()).astype(np.float64)
            self.above_pivot[column] = mean = float(counts @ apart) / len(numbers)
            self.std[column] = math.sqrt(float(counts @ (apart - mean) ** 2) / len(numbers))

    @property
    def mean(self) -> NDArray[np.float64]:
        """Of the finite numbers; zero if there are none."""
        return self.pivot.astype(np.float64) + self.above_pivot

    @np.errstate(over="ignore", invalid="ignore")
    def join(self, other: _Moments) -> None:
        """Take in what is known about other numbers of the same columns."""
        self.nan = self.nan + other.nan
        self.inf = self.inf + other.inf
        first = self.count == 0
        for name in ("low", "high", "std", "pivot", "above_pivot"):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, np.where(first, theirs, mine))
        has_some = other.count > 0
        self.low = np.where(has_some, np.minimum(self.low, other.low), self.low)
        self.high = np.where(has_some, np.maximum(self.high, other.high), self.high)
        shift = _difference(other.pivot[None], self.pivot, self.low, self.high)[0]
        count = np.where(first, 0, other.count)
        mean, std = joined_spread(
            (self.count, self.above_pivot, self.std), (count, other.above_pivot + shift, other.std)
        )
        self.above_pivot = np.where(first, self.above_pivot, mean)
        self.std = np.where(first, self.std, std)
        self.count = self.count + other.count


def _difference(
    table: NDArray[Any], pivot: NDArray[Any], low: NDArray[Any], high: NDArray[Any]
) -> NDArray[np.float64]:
    """Return how far numbers are from the pivot; `low` and `high` are the smallest and largest of both."""
    if table.dtype.kind in "iu" and table.dtype.itemsize == 8:
        ends = zip(low.tolist(), high.tolist(), strict=True)
        if all(high - low < _HALF_RANGE for low, high in ends):
            # Integers of 64 bits lose digits as floats; their difference, taken first, does not.
            wrapped = table.view(np.uint64) - pivot.view(np.uint64)
            return wrapped.view(np.int64).astype(np.float64)
    apart: NDArray[np.float64] = table.astype(np.float64)
    with np.errstate(over="ignore"):
        apart -= pivot.astype(np.float64)
    return apart
