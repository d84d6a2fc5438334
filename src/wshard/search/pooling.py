"""Means over time, of a whole channel and of its windows, in one pass and a few megabytes.

Values that are not finite are left out: each number of a mean is taken over the steps that have it,
and is 0 where none has. Sums are float64, means float32.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._crc import crc32c
from shard_format.errors import ChecksumMismatch, InvalidArgument
from wshard.blocks import FileBlock
from wshard.dtypes import DType, bfloat16
from wshard.ragged import RaggedChannel
from wshard.values import as_array, product

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from wshard.channels import Channel
    from wshard.episode import Episode

__all__ = [
    "Range",
    "check_averaged",
    "entries_of",
    "mean_of_query",
    "means_of",
    "observed",
    "total_of",
    "windows_of",
]

Range = tuple[int, int]
"""First step and end."""

_PIECE_BYTES: Final = 8 << 20


def observed(episode: Episode, name: str | None = None) -> Channel:
    """The observation that stands for the episode: the one of that name, or the first that is an array.

    Raises:
        InvalidArgument: there is none, or it has no steps.
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
    """Refuses what has no mean over time: text, ragged data, and nothing at all."""
    if isinstance(channel, RaggedChannel):
        raise InvalidArgument(
            "the channel cannot be averaged over time",
            entry=channel.block or channel.name,
            expected="an array of numbers",
            found=f"a {channel.layout} channel",
        )
    if not channel.length or not product(channel.shape):
        raise InvalidArgument(
            "the channel is empty",
            entry=channel.block or channel.name,
            expected="at least one step",
            found=f"{channel.length} steps of {list(channel.shape)}",
        )


def windows_of(length: int, window: int, stride: int) -> list[Range]:
    """The windows of an episode: every `stride` steps, whole ones only; at least one, if shorter."""
    if length <= 0:
        return []
    last = max(length - window, 0)
    return [(start, min(start + window, length)) for start in range(0, last + 1, stride)]


def entries_of(episode: Episode, channel: Channel, windows: Sequence[Range]) -> list[Range]:
    """The entries of a channel that belong to these windows of steps.

    They are the same numbers, unless the channel has a clock of its own: then those from the first
    step's time to that of the step after the window, or the one nearest before it if there are none.
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
    channel: Channel, ranges: Sequence[Range], *, piece_bytes: int | None = None
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The mean of each range, with its position in `ranges`, as soon as it is known.

    Every step is read once, in pieces of at most `piece_bytes`, some megabytes if left out, or one step.
    Where all steps are read, raw data is held against its checksum before the last means are given.
    """
    waiting = sorted(range(len(ranges)), key=lambda number: ranges[number], reverse=True)
    borders = sorted({border for range_ in ranges for border in range_})
    size = product(channel.shape)
    steps = max(1, (piece_bytes or _PIECE_BYTES) // max(1, size * max(channel.dtype.size, 4)))
    sums: dict[int, _Sum] = {}
    checksum = _Checksum(channel)
    for first, last in _pieces(ranges, steps):
        read = channel.read_steps(first, last)
        checksum.add(first, last, read)
        numbers = _numbers(channel, read)
        inside = borders[bisect_right(borders, first) : bisect_left(borders, last)]
        for start, stop in pairwise([first, *inside, last]):
            while waiting and ranges[waiting[-1]][0] <= start:
                sums[waiting.pop()] = _Sum(size)
            part = _Sum.of(numbers[start - first : stop - first])
            for total in sums.values():
                total.add(part)
            if stop == channel.length:
                checksum.check()
            for number in [n for n in sums if ranges[n][1] <= stop]:
                yield number, sums.pop(number).mean()


def _pieces(ranges: Sequence[Range], steps: int) -> Iterator[Range]:
    """All steps of the ranges, once each and in order, at most `steps` at a time."""
    spans: list[Range] = []
    for start, stop in sorted(ranges):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], stop)
        else:
            spans.append((start, stop))
    for start, stop in spans:
        for first in range(start, stop, steps):
            yield first, min(stop, first + steps)


def total_of(channel: Channel) -> float:
    """The sum of a channel of single numbers, such as the reward; what is not finite is left out."""
    if not channel.length:
        return 0.0
    # Means are float32, which is too coarse for a sum over hours.
    total = 0.0
    steps = max(1, _PIECE_BYTES // max(1, channel.step_bytes))
    checksum = _Checksum(channel)
    for first, last in _pieces([(0, channel.length)], steps):
        read = channel.read_steps(first, last)
        checksum.add(first, last, read)
        total += float(_Sum.of(_numbers(channel, read)).sum.sum())
    checksum.check()
    return total


def mean_of_query(query: ArrayLike) -> NDArray[np.float32]:
    """One observation from what is searched for: [D] as it is, [T, ...] averaged over time."""
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
    return _Sum.of(_as_floats(steps)).mean()


@dataclass(slots=True)
class _Sum:
    """A sum of steps, how many steps it is of, and in how many of them each number is missing."""

    sum: NDArray[np.float64]
    count: int
    missing: NDArray[np.int64] | None

    def __init__(self, size: int) -> None:
        self.sum = np.zeros(size, np.float64)
        self.count = 0
        self.missing = None

    @classmethod
    def of(cls, steps: NDArray[Any]) -> _Sum:
        made = cls(0)
        made.count = len(steps)
        with np.errstate(invalid="ignore", over="ignore"):
            made.sum = steps.sum(axis=0, dtype=np.float64)
        if not np.isfinite(made.sum).all():
            finite = np.isfinite(steps)
            made.sum = np.where(finite, steps, 0).sum(axis=0, dtype=np.float64)
            made.missing = len(steps) - np.count_nonzero(finite, axis=0).astype(np.int64)
        return made

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


class _Checksum:
    """The checksum of a raw block, made while its steps are read one after the other.

    Parts of raw blocks are not checked by the reader, as it cannot; parts of compressed ones are.
    """

    def __init__(self, channel: Channel) -> None:
        block = channel._block
        self._block: FileBlock | None = None
        if isinstance(block, FileBlock) and not block.is_compressed and not channel.is_loaded:
            self._block = block
        self._is_bool = channel.dtype is DType.BOOL
        self._step_bytes = channel.step_bytes
        self._at = 0
        self._crc = 0

    def add(self, first: int, last: int, steps: NDArray[Any]) -> None:
        if self._block is None or first != self._at:
            self._block = None
            return
        if self._is_bool:  # which need not be the bytes of the file
            size = (last - first) * self._step_bytes
            steps = self._block.part(np.dtype(np.uint8), (size,), first * self._step_bytes)
        flat = np.ascontiguousarray(steps).reshape(-1).view(np.uint8)
        self._crc = crc32c(flat.data, self._crc)
        self._at = last

    def check(self) -> None:
        if self._block is None:
            return
        info = self._block.reader.info(self._block.name)
        if info.crc32c is not None and info.crc32c != self._crc:
            raise ChecksumMismatch(
                "CRC-32C mismatch: the data is damaged",
                path=self._block.reader.name,
                entry=self._block.name,
                offset=info.data_offset,
                expected=f"{info.crc32c:08x}",
                found=f"{self._crc:08x}",
                rule="S-CRC-1",
            )


def _numbers(channel: Channel, steps: NDArray[Any]) -> NDArray[Any]:
    """Steps of a channel as [steps, numbers]."""
    if channel.dtype is DType.BFLOAT16 and bfloat16() is None:
        # Without ml_dtypes they come as their bits, the upper half of a float32.
        steps = (steps.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return _as_floats(steps.reshape(len(steps), -1))


def _as_floats(steps: NDArray[Any]) -> NDArray[Any]:
    """Half floats as float32: NumPy sums those many times faster; other types stay as they are."""
    half = steps.dtype.itemsize == 2 and steps.dtype.kind not in "iu"
    return steps.astype(np.float32) if half else steps
