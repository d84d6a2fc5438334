"""From a channel to what fits on the paper: positions along the time axis, and few enough points.

A channel of a million entries is read in windows and cut into bins, of which the extremes and the mean are
kept. So memory is bounded, and no peak is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import numpy as np

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from wshard.types import Channel, Episode

Shown: TypeAlias = Union[slice, "tuple[float | None, float | None]"]
"""A part of an episode: steps, or seconds since it began."""
BINS: Final = 600
_WINDOW_BYTES: Final = 32 << 20
_LARGEST_DRAWN: Final = 1e300


@dataclass(frozen=True)
class TimeAxis:
    """The horizontal axis: seconds since the episode began, or steps if the episode has no clock."""

    unit: str
    """`"s"`, or `"step"`."""
    zero_ns: int
    low: float
    high: float
    start: int
    """The steps that are shown."""
    stop: int
    positions: NDArray[np.float64]
    """Of every step of the episode, and where the last one ends."""

    @classmethod
    def of(cls, episode: Episode, shown: Shown | None = None) -> TimeAxis:
        """The axis of an episode, or of a part of it: a slice of steps, or a pair of times in seconds."""
        steps = shown if isinstance(shown, slice) else slice(None)
        if shown is not None and not isinstance(shown, slice):
            steps = _steps_between(cls.of(episode), *shown)
        start, stop, _ = steps.indices(episode.length)
        stop = max(start, stop)
        rate_hz = episode.timebase.tick_hz
        unit = "s" if rate_hz or episode.timestamps_ns is not None else "step"
        if not episode.length:
            return cls(unit, 0, 0.0, 1.0, 0, 0, np.zeros(1))
        zero, width = 0, 1.0
        steps_at = np.arange(episode.length, dtype=np.float64)
        if unit == "s":
            times = episode.times_ns()
            zero, last = int(times.min()), int(times.max())
            width = 1 / rate_hz if rate_hz else 1.0
            if len(times) > 1 and last > zero:
                width = (last - zero) / 1e9 / (len(times) - 1)
            steps_at = (times - zero) / 1e9
        inside = steps_at[start:stop] if stop > start else steps_at[:1]
        # The last step lasts one period: its end is part of the picture.
        low, high = float(inside.min()), float(inside.max()) + width
        positions = np.append(steps_at, steps_at.max() + width)
        return cls(unit, zero, low, high, start, stop, positions)

    def seconds(self, time_ns: int) -> float | None:
        """Where a time lies; None if the axis shows steps."""
        return (time_ns - self.zero_ns) / 1e9 if self.unit == "s" else None

    def entries(self, channel: Channel) -> tuple[int, int, NDArray[Any], str]:
        """Which entries of a channel are shown, their positions, and a word if these are not their own.

        A clock that does not meet the episode anywhere is drawn from the left edge on.
        """
        length = len(self.positions) - 1
        own = channel.timestamps_ns
        if own is None and channel.length <= length + 1:
            start, stop = min(self.start, channel.length), min(self.stop, channel.length)
            if self.stop >= length:
                stop = channel.length  # with the observation after the last action
            return start, stop, self.positions[start:stop], ""
        if own is None or (self.unit != "s" and len(own)):
            word = "more entries than steps" if own is None else "the episode has no clock"
            spread = np.linspace(self.low, self.high, channel.length)
            return 0, channel.length, spread, f"{word}: spread over the whole width"
        if not len(own):
            return 0, 0, np.zeros(0), ""
        zero, word = self.zero_ns, ""
        last = zero + int(self.positions[-1] * 1e9)
        if length and (int(own.max()) < zero or int(own.min()) > last):
            zero = int(own.min())
            word = "its clock lies outside the episode: drawn from the left edge on"
        seconds = (own - zero) / 1e9
        inside = np.flatnonzero((seconds >= self.low) & (seconds <= self.high))
        if not inside.size:
            return 0, 0, np.zeros(0), word
        start, stop = int(inside[0]), int(inside[-1]) + 1
        return start, stop, seconds[start:stop], word


def _steps_between(axis: TimeAxis, first: float | None, last: float | None) -> slice:
    """The steps that start in a span of seconds since the episode began."""
    if axis.unit != "s":
        raise InvalidArgument(
            "time is in seconds, but the episode has no clock",
            hint="pass steps instead: time=slice(100, 200)",
        )
    low, high = axis.low if first is None else first, axis.high if last is None else last
    at = axis.positions[:-1]
    inside = np.flatnonzero((at >= low) & (at < high))
    if not inside.size:
        raise InvalidArgument(
            "no step starts in this time",
            expected=f"seconds from 0 to {axis.high:g}, the first before the second",
            found=f"{low:g} to {high:g}",
        )
    return slice(int(inside[0]), int(inside[-1]) + 1)


@dataclass(frozen=True)
class Series:
    """A channel over time, decimated where it has more entries than the paper has room for."""

    x: NDArray[Any]
    """[n]."""
    mean: NDArray[Any]
    """[n, D]."""
    low: NDArray[Any]
    """[n, D], the same as `mean` if every entry is drawn."""
    high: NDArray[Any]
    """[n, D]."""
    is_exact: bool
    """Whether every entry is drawn."""
    word: str = ""
    """What to say about its position, if it is not drawn at its own times."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.mean.size or bool(np.isnan(self.mean).all())

    def chosen(self, dims: Sequence[int]) -> Series:
        """The same with these dimensions only."""
        at = list(dims)
        low, high = self.low[:, at], self.high[:, at]
        return replace(self, mean=self.mean[:, at], low=low, high=high)

    def line(self, dimension: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """x and y of a line that touches both extremes of each bin."""
        if self.is_exact:
            return self.x, self.mean[:, dimension]
        both = np.stack((self.low[:, dimension], self.high[:, dimension]), axis=1)
        both[1::2] = both[1::2, ::-1]  # up, then down: no strokes between bins
        return np.repeat(self.x, 2), both.reshape(-1)


def read_series(
    axis: TimeAxis, channel: Channel, *, minus: Channel | None = None, bins: int = BINS
) -> Series:
    """The shown entries of a dense channel, or how far they are from another one, in about `bins` points at most."""
    start, stop, x, word = axis.entries(channel)
    if minus is not None:
        stop = max(start, min(stop, minus.length))
        x, minus = x[: stop - start], minus.uncached()
        minus.check_claims()
    channel = channel.uncached()
    channel.check_claims()
    count, size = stop - start, prod(channel.step_shape)

    def read(first: int, last: int) -> NDArray[np.float64]:
        values = numbers_of(channel, first, last)
        return values if minus is None else values - numbers_of(minus, first, last)

    if count <= 2 * bins:
        values = read(start, stop)
        return Series(x, values, values, values, True, word)
    edges = bin_edges(count, bins)
    low, high, mean = (np.empty((bins, size)) for _ in range(3))
    for first, last in _groups(edges, max(1, size) * 8):
        values = read(start + int(edges[first]), start + int(edges[last]))
        at = edges[first:last] - edges[first]
        with np.errstate(all="ignore"):
            low[first:last] = np.fmin.reduceat(values, at, axis=0)
            high[first:last] = np.fmax.reduceat(values, at, axis=0)
            known = np.isfinite(values)
            total = np.add.reduceat(np.where(known, values, 0.0), at, axis=0)
            mean[first:last] = total / np.add.reduceat(known, at, axis=0, dtype=np.float64)
    return Series(x[(edges[:-1] + edges[1:]) // 2], mean, low, high, False, word)


def bin_edges(count: int, bins: int = BINS) -> NDArray[np.int64]:
    """Where the bins of `count` entries start, and the end of the last one."""
    return np.linspace(0, count, bins + 1).astype(np.int64)


def _groups(edges: NDArray[np.int64], step_bytes: int) -> Iterator[tuple[int, int]]:
    """Bins that are read together, in bounded memory."""
    steps = max(1, _WINDOW_BYTES // step_bytes)
    first, bins = 0, len(edges) - 1
    while first < bins:
        last = int(np.searchsorted(edges, edges[first] + steps, side="right")) - 1
        last = min(max(last, first + 1), bins)
        yield first, last
        first = last


def numbers_of(channel: Channel, start: int, stop: int) -> NDArray[np.float64]:
    """Some entries [n, D] as 64-bit floats; NaN, which leaves a gap, for what is not finite."""
    values = channel.dtype_name.as_numbers(channel.read_steps(start, stop))
    with np.errstate(all="ignore"):
        numbers = values.reshape(stop - start, prod(channel.step_shape)).astype(np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    # Matplotlib cannot draw an axis around larger numbers.
    return numbers.clip(-_LARGEST_DRAWN, _LARGEST_DRAWN)


def row_means(table: NDArray[Any]) -> NDArray[np.float64]:
    """The mean of each row without its NaN; NaN where no number is left."""
    known = np.isfinite(table)
    with np.errstate(all="ignore"):
        means: NDArray[np.float64] = np.where(known, table, 0.0).sum(axis=1) / known.sum(axis=1)
    return means
