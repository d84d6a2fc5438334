"""From an episode to vectors: means over time in one pass and a few megabytes, then an embedder.

Values that are not finite do not count: each number of a mean is taken over the steps that have it, and is
0 where no step has it. Sums are float64, means float32.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from shard_format.errors import InvalidArgument
from wshard._values import as_array, bfloat16, step_ranges
from wshard.types import RaggedChannel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from wshard.types import Channel, Episode

Range = tuple[int, int]
"""First step and end."""

_PIECE_BYTES: Final = 8 << 20
# Of the projection that is computed at a time; eight of these parts are kept between calls.
_PROJECTION_BYTES: Final = 2 << 20


def find_observation(episode: Episode, name: str | None = None) -> Channel:
    """The observation that stands for the episode: the one of that name, or the first that is an array.

    Raises:
        InvalidArgument: the channel does not exist, or it has no steps.
        EntryNotFound: none has that name.
    """
    if name is not None:
        found: Channel | None = episode.find(name)
    else:
        arrays = (c for c in episode.observations.values() if not isinstance(c, RaggedChannel))
        found = next(arrays, None)
    if found is None:
        raise InvalidArgument(
            "the episode has no observation that can be averaged",
            expected="an observation that is an array over time",
            found=f"{len(episode.observations)} others",
            hint="name a channel of numbers with channel=",
        )
    check_averaged(found)
    return found


def check_averaged(channel: Channel) -> None:
    """Refuse what has no mean over time: text, ragged data, and empty channels."""
    where = channel.block or channel.name
    if isinstance(channel, RaggedChannel):
        raise InvalidArgument(
            "the channel cannot be averaged over time",
            entry=where,
            expected="an array of numbers",
            found=f"a {channel.layout} channel",
        )
    if not channel.length or not prod(channel.step_shape):
        found = f"{channel.length} steps of {list(channel.step_shape)}"
        raise InvalidArgument(
            "the channel is empty", entry=where, expected="at least one step", found=found
        )


def windows_of(length: int, window: int, stride: int) -> list[Range]:
    """The windows of an episode: one every `stride` steps, whole ones only; one if it is shorter."""
    if length <= 0:
        return []
    last = max(length - window, 0)
    return [(start, min(start + window, length)) for start in range(0, last + 1, stride)]


def entries_of(episode: Episode, channel: Channel, windows: Sequence[Range]) -> list[Range]:
    """The entries of a channel that belong to these windows of steps.

    They have the numbers of the steps, unless the channel has a clock of its own: then they reach from the
    first step's time to that of the step after the window. A window without any gets the entry before it.
    """
    count = channel.length
    if not channel.has_own_clock:
        return [(min(a, count - 1), max(min(b, count), min(a, count - 1) + 1)) for a, b in windows]
    times, own = episode.times_ns(), episode.times_ns(channel)
    ranges = []
    for start, stop in windows:
        first = int(np.searchsorted(own, times[start])) if start else 0
        last = int(np.searchsorted(own, times[stop])) if stop < len(times) else count
        if first >= last:
            first = max(0, min(first, count) - 1)
            last = first + 1
        ranges.append((first, last))
    return ranges


def means_of(
    channel: Channel, ranges: Sequence[Range]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The mean of each range, with its position in `ranges`, as soon as it is known.

    Reads every step once, in pieces of some megabytes or one step.
    """
    waiting = sorted(range(len(ranges)), key=lambda number: ranges[number], reverse=True)
    borders = sorted({border for range_ in ranges for border in range_})
    size = prod(channel.step_shape)
    step_bytes = size * max(channel.dtype_name.size, 4)
    sums: dict[int, _Sum] = {}
    for low, high in _spans(ranges):
        for first, last in step_ranges(high - low, step_bytes, _PIECE_BYTES):
            first, last = first + low, last + low
            numbers = _numbers(channel, first, last)
            inside = borders[bisect_right(borders, first) : bisect_left(borders, last)]
            for start, stop in pairwise([first, *inside, last]):
                while waiting and ranges[waiting[-1]][0] <= start:
                    sums[waiting.pop()] = _Sum(np.zeros(size))
                part = _Sum.of(numbers[start - first : stop - first])
                for total in sums.values():
                    total.add(part)
                for number in [n for n in sums if ranges[n][1] <= stop]:
                    yield number, sums.pop(number).mean()


def _spans(ranges: Sequence[Range]) -> list[Range]:
    """The ranges in order, with those that touch or overlap as one."""
    spans: list[Range] = []
    for start, stop in sorted(ranges):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], stop)
        else:
            spans.append((start, stop))
    return spans


def total_of(channel: Channel) -> float:
    """The sum of a channel of single numbers, such as the reward; leaves out what is not finite."""
    ranges = channel.step_ranges(_PIECE_BYTES)
    return sum(float(_Sum.of(_numbers(channel, *range_)).sum.sum()) for range_ in ranges)


def takes_windows(embedder: Embedder) -> bool:
    """Whether an embedder wants the steps of a window, [T, D], instead of their mean."""
    takes = getattr(embedder, "takes", "mean")
    if takes not in ("mean", "window"):
        raise InvalidArgument(
            "the embedder takes something unknown",
            expected='takes = "mean" or "window"',
            found=repr(takes),
        )
    return bool(takes == "window")


def inputs_of(
    embedder: Embedder, channel: Channel, ranges: Sequence[Range]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """What the embedder gets for each range of steps, with its position in `ranges`: a mean [D], or steps [T, D]."""
    if not takes_windows(embedder):
        yield from means_of(channel, ranges)
        return
    for number, (start, stop) in enumerate(ranges):
        yield number, _numbers(channel, start, stop).astype(np.float32)


def input_of_query(embedder: Embedder, query: ArrayLike) -> NDArray[np.float32]:
    """What the embedder gets for a query: [D] or [T, ...]."""
    steps = _steps_of_query(query)
    return steps.astype(np.float32) if takes_windows(embedder) else _Sum.of(steps).mean()


def _steps_of_query(query: ArrayLike) -> NDArray[Any]:
    """A query as [T, D]: [D] is one step."""
    array = as_array(query)
    if array.dtype.kind not in "fiub" and array.dtype != bfloat16():
        raise InvalidArgument(
            "a query is an array of real numbers", found=f"dtype {array.dtype} {list(array.shape)}"
        )
    if not array.size or not array.ndim:
        raise InvalidArgument(
            "the query is empty" if array.ndim else "a query is not one number",
            expected="[D], or [T, ...] which is averaged over time",
            found=f"{list(array.shape)}",
        )
    steps = array.reshape(1, -1) if array.ndim == 1 else array.reshape(len(array), -1)
    return _as_floats(steps)


@dataclass(slots=True)
class _Sum:
    """A sum over steps: how many steps, and in how many of them each number is missing."""

    sum: NDArray[np.float64]
    count: int = 0
    missing: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, steps: NDArray[Any]) -> _Sum:
        with np.errstate(invalid="ignore", over="ignore"):
            total = steps.sum(axis=0, dtype=np.float64)
        if np.isfinite(total).all():
            return cls(total, len(steps))
        finite = np.isfinite(steps)
        total = np.where(finite, steps, 0).sum(axis=0, dtype=np.float64)
        missing = len(steps) - np.count_nonzero(finite, axis=0).astype(np.int64)
        return cls(total, len(steps), missing)

    def add(self, other: _Sum) -> None:
        self.sum += other.sum
        self.count += other.count
        if other.missing is not None:
            self.missing = other.missing + (0 if self.missing is None else self.missing)

    def mean(self) -> NDArray[np.float32]:
        present = self.count if self.missing is None else np.maximum(self.count - self.missing, 1)
        with np.errstate(over="ignore"):
            mean: NDArray[np.float32] = (self.sum / present).astype(np.float32)
        if not np.isfinite(mean).all():
            raise InvalidArgument(
                "a mean is too large",
                expected="numbers that float32 can hold",
                found=f"{np.abs(self.sum / present).max():.3g}",
            )
        return mean


def _numbers(channel: Channel, first: int, last: int) -> NDArray[Any]:
    """Steps of a channel as [steps, numbers]."""
    steps = channel.read_steps(first, last)
    return _as_floats(channel.dtype_name.as_numbers(steps).reshape(len(steps), -1))


def _as_floats(steps: NDArray[Any]) -> NDArray[Any]:
    """Half floats as float32, which NumPy sums many times faster; other types as they are."""
    half = steps.dtype.itemsize == 2 and steps.dtype.kind not in "iu"
    return steps.astype(np.float32) if half else steps


# --- embedding


class Embedder(Protocol):
    """Any function from one observation, averaged over time, to a vector.

    It may also have `dimension`, the size of its vectors, and `embed_many`, which takes an array [N, D],
    gives [N, dimension], and is then preferred. With `takes = "window"` it gets all steps, [T, D], instead of their
    mean, one window at a time.
    """

    def __call__(self, observed: NDArray[np.float32], /) -> Any:  # noqa: ANN401 - anything that makes an array
        """The vector for one mean observation, float32 [D], or for the steps of a window, [T, D]."""
        ...


@dataclass(frozen=True, slots=True)
class PaddedProjection:
    """The default embedder: needs no model, and is the same on every machine.

    It keeps observations of up to `dimension` numbers as they are, with zeros behind them: cosine
    similarity is then exactly that of the mean observations. It multiplies larger ones, such as cameras,
    by a matrix of +1 and -1 over √dimension, which keeps angles up to an error of about 1/√dimension.
    The signs come from a counter and `seed`, not from NumPy's generators, so you can query an index with
    any version.
    """

    dimension: int = 128
    """The size of the vectors."""
    seed: int = 0
    """Which matrix."""

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise InvalidArgument("a vector must have at least one number", found=self.dimension)

    def __call__(self, mean: NDArray[np.float32], /) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.embed_many(mean.reshape(1, -1))[0]
        return vector

    def embed_many(self, means: NDArray[np.float32]) -> NDArray[np.float32]:
        """The vectors [N, dimension] for observations [N, D]."""
        count, size = means.shape
        if size <= self.dimension:
            out = np.zeros((count, self.dimension), np.float32)
            out[:, :size] = means
            return out
        total = np.zeros((count, self.dimension), np.float64)
        for first, last in step_ranges(size, self.dimension * 4, _PROJECTION_BYTES):
            total += means[:, first:last] @ _signs(self.seed, first, last, self.dimension)
        vectors: NDArray[np.float32] = (total / np.sqrt(self.dimension)).astype(np.float32)
        return vectors


@lru_cache(maxsize=8)
def _signs(seed: int, first: int, last: int, dimension: int) -> NDArray[np.float32]:
    """Rows `first` to `last` of the matrix: bits of splitmix64 over a counter, as +1 and -1."""
    words = -(-dimension // 64)
    counter = np.arange(first * words, last * words, dtype=np.uint64)
    state = (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(seed * 0xD1342543DE82EF95 % (1 << 64))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    in_bytes = state.astype("<u8").view(np.uint8).reshape(last - first, words * 8)
    bits = np.unpackbits(in_bytes, axis=1, count=dimension, bitorder="little")
    return bits.astype(np.float32) * np.float32(2) - np.float32(1)


def dimension_of(embedder: Embedder) -> int | None:
    """The size of its vectors, if the embedder has the attribute."""
    dimension = getattr(embedder, "dimension", None)
    return dimension if isinstance(dimension, int) else None


def embed(
    embedder: Embedder, means: Sequence[NDArray[np.float32]], dimension: int | None = None
) -> NDArray[np.float32]:
    """The vectors [N, dimension] for these observations, checked.

    Raises:
        InvalidArgument: the embedder gave something else than finite vectors of one size.
    """
    together = None if takes_windows(embedder) else getattr(embedder, "embed_many", None)
    if together is not None and len({mean.size for mean in means}) == 1:
        made = as_array(together(np.stack(means)))
    else:
        rows = [as_array(embedder(mean)).reshape(-1) for mean in means]
        alike = len({row.size for row in rows}) == 1
        made = np.stack(rows) if alike else np.zeros(0)
    wanted = dimension or made.size // len(means)
    if made.shape != (len(means), wanted) or not wanted:
        raise InvalidArgument(
            "the embedder gave vectors of another shape",
            expected=f"{len(means)} x {wanted or 'dimension'}",
            found="vectors of different sizes" if not made.size else list(made.shape),
            hint="it must give one vector for each observation, always of the same size",
        )
    if made.dtype.kind not in "fiu":
        found = f"dtype {made.dtype}"
        raise InvalidArgument("the embedder gave values that are not real numbers", found=found)
    with np.errstate(over="ignore"):
        vectors = made.astype(np.float32)
    wrong = np.count_nonzero(~np.isfinite(vectors))
    if wrong:
        raise InvalidArgument(
            "the embedder returned numbers that are not finite",
            expected="numbers that float32 can hold",
            found=f"{wrong} others",
        )
    return vectors
