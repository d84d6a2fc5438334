"""From a channel to what fits on the paper: times in seconds, and few enough points.

A channel of a million entries is read in windows and cut into bins; of each bin its extremes and its mean
are kept. So memory is bounded, and no peak is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard.dtypes import as_numbers
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from wshard.channels import Channel
    from wshard.episode import Episode

__all__ = ["Clock", "Series", "read_series"]

BINS: Final = 600
_WINDOW_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class Clock:
    """What is shown of an episode: its time zero, a span in seconds, and steps."""

    zero_ns: int
    low_s: float
    high_s: float
    start: int
    stop: int
    episode_low_ns: int
    episode_high_ns: int

    @classmethod
    def of(cls, episode: Episode, steps: slice | None) -> Clock:
        """The clock of an episode, or of some of its steps."""
        times = episode.times_ns()
        start, stop, _ = (steps or slice(None)).indices(len(times))
        stop = max(start, stop)
        if not len(times):
            return cls(0, 0.0, 1.0, 0, 0, 0, 0)
        low_ns, high_ns = int(times.min()), int(times.max())
        shown = times[start:stop] if stop > start else times[:1]
        period = episode.timebase.dt_ns
        if len(times) > 1 and high_ns > low_ns:
            period = (high_ns - low_ns) // (len(times) - 1)
        zero = low_ns
        low = (int(shown.min()) - zero) / 1e9
        # The last step lasts one period: its end is part of the picture.
        high = (int(shown.max()) + max(period, 1) - zero) / 1e9
        return cls(zero, low, high, start, stop, low_ns, high_ns + period)

    def entries(self, episode: Episode, channel: Channel) -> tuple[int, int, NDArray[Any], bool]:
        """Which entries of a channel are shown, their times in seconds, and whether these were moved.

        A clock that does not meet the episode anywhere is drawn from the left edge on, and said to be.
        """
        own = channel.timestamps_ns
        if own is None:
            times = episode.times_ns(channel) if channel.length else np.zeros(0, np.int64)
            count = min(channel.length, len(times))
            if channel.length > len(times):  # more entries than the clock of the steps has
                return 0, channel.length, np.linspace(self.low_s, self.high_s, channel.length), True
            start, stop = min(self.start, count), min(self.stop, count)
            if self.stop >= episode.length:
                stop = count  # with the observation after the last action
            return start, stop, self._seconds(times[start:stop]), False
        if not len(own):
            return 0, 0, np.zeros(0), False
        zero = self.zero_ns
        moved = int(own.max()) < self.episode_low_ns or int(own.min()) > self.episode_high_ns
        if moved and episode.length:
            zero = int(own.min())
        seconds = (own - zero) / 1e9
        inside = np.flatnonzero((seconds >= self.low_s) & (seconds <= self.high_s))
        if not inside.size:
            return 0, 0, np.zeros(0), moved
        start, stop = int(inside[0]), int(inside[-1]) + 1
        return start, stop, seconds[start:stop], moved

    def _seconds(self, times: NDArray[np.int64]) -> NDArray[np.float64]:
        return (times - self.zero_ns) / 1e9


@dataclass(frozen=True)
class Series:
    """A channel over time, decimated where it has more entries than the paper has room for."""

    seconds: NDArray[Any]
    """[n]."""
    mean: NDArray[Any]
    """[n, D]."""
    low: NDArray[Any]
    """[n, D], the same as `mean` where nothing was left out."""
    high: NDArray[Any]
    """[n, D]."""
    is_exact: bool
    """Whether every entry is there."""
    moved: bool
    """Whether its clock lies elsewhere and it was drawn from the left edge on."""

    def line(self, dimension: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """x and y of a line that touches both extremes of each bin."""
        if self.is_exact:
            return self.seconds, self.mean[:, dimension]
        both = np.stack((self.low[:, dimension], self.high[:, dimension]), axis=1)
        both[1::2] = both[1::2, ::-1]  # up, then down: no strokes between bins
        return np.repeat(self.seconds, 2), both.reshape(-1)


def read_series(
    episode: Episode, clock: Clock, channel: Channel, *, bins: int = BINS, most: int | None = None
) -> Series:
    """The shown entries of a dense channel.

    Args:
        episode: whose channel it is.
        clock: what is shown.
        channel: read here, and not kept.
        bins: how many points at most, roughly.
        most: only this many dimensions; None for all.
    """
    start, stop, seconds, moved = clock.entries(episode, channel)
    channel = channel._shallow()
    size = product(channel.shape)
    kept = size if most is None else min(size, most)
    count = stop - start
    if count <= 2 * bins:
        values = _numbers(channel, start, stop)[:, :kept]
        return Series(seconds, values, values, values, True, moved)
    edges = np.linspace(0, count, bins + 1).astype(np.int64)
    low, high, mean = (np.empty((bins, kept)) for _ in range(3))
    for first, last in _groups(edges, max(1, size) * 8):
        values = _numbers(channel, start + int(edges[first]), start + int(edges[last]))[:, :kept]
        at = edges[first:last] - edges[first]
        with np.errstate(all="ignore"):
            low[first:last] = np.fmin.reduceat(values, at, axis=0)
            high[first:last] = np.fmax.reduceat(values, at, axis=0)
            known = np.isfinite(values)
            total = np.add.reduceat(np.where(known, values, 0.0), at, axis=0)
            mean[first:last] = total / np.add.reduceat(known, at, axis=0, dtype=np.float64)
    middles = seconds[(edges[:-1] + edges[1:]) // 2]
    return Series(middles, mean, low, high, False, moved)


def _groups(edges: NDArray[np.int64], step_bytes: int) -> Iterator[tuple[int, int]]:
    """Bins that are read together, in bounded memory."""
    steps = max(1, _WINDOW_BYTES // step_bytes)
    first, bins = 0, len(edges) - 1
    while first < bins:
        last = int(np.searchsorted(edges, edges[first] + steps, side="right")) - 1
        last = min(max(last, first + 1), bins)
        yield first, last
        first = last


def _numbers(channel: Channel, start: int, stop: int) -> NDArray[np.float64]:
    """Some entries [n, D] as 64-bit floats; what is not finite becomes NaN, which leaves a gap."""
    values = as_numbers(channel.read_steps(start, stop), channel.dtype)
    with np.errstate(all="ignore"):
        numbers = values.reshape(stop - start, product(channel.shape)).astype(np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers
