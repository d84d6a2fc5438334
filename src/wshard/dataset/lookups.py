"""Entries of a channel at times around a step: found on the channel's clock, read into a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from shard_format.errors import BadValue, InvalidArgument
from wshard.alignment import Match, match
from wshard.dataset.resampling import read_matched
from wshard.episode import method_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wshard.alignment import Method
    from wshard.channels import Channel
    from wshard.dataset.resampling import Resampling
    from wshard.episode import Episode
    from wshard.windows import Sources

__all__ = ["Asked", "Lookup", "lookup_of"]

_LARGEST: Final = (1 << 63) - 1


class Asked(NamedTuple):
    """The times that a data set asks of a channel, relative to a step."""

    key: str
    deltas_ns: NDArray[np.int64]
    tolerance_ns: int
    """How far an entry may be from its time, where it is not resampled."""


class Lookup(Protocol):
    """A channel of one open episode. Belongs to its sources, and does not hold them: in a circle they would
    keep the file open until the garbage collector comes."""

    def fill(
        self, sources: Sources, step: int, out: NDArray[Any], is_pad: NDArray[np.bool_]
    ) -> None:
        """Reads the entries around a step, and says which of them lie outside."""


def lookup_of(sources: Sources, asked: Asked, resampling: Resampling | None) -> Lookup:
    """How the entries of a channel are found in an open episode.

    Raises:
        InvalidArgument: the episode has no times, or times that are not asked for.
    """
    episode, channel = sources.episode, sources.channels[asked.key]
    if channel is not None and channel.has_own_clock:
        if resampling is not None:
            return _Resampled(episode, asked, channel, resampling)
        channel.check_claims()
        return _Recorded(asked, _steps_of(episode, asked), episode.times_ns(channel))
    steps = episode.length
    count = steps + (channel is not None and channel.length == steps + 1)
    if episode.timestamps_ns is None:
        _check_rate(episode)
        period_ns = 1e9 / episode.timebase.tick_hz
        # Where several steps are near enough, the nearest is looked for.
        if 2 * asked.tolerance_ns < period_ns:
            return _Regular(asked, count, period_ns)
    times = episode.step_times_ns(count)
    return _Recorded(asked, times[:steps], times)


class _Regular:
    """Steps at a fixed rate: so many seconds are so many steps."""

    def __init__(self, asked: Asked, count: int, period_ns: float) -> None:
        self._key = asked.key
        self._last = count - 1
        exact = asked.deltas_ns / period_ns
        offsets = np.rint(exact)
        wrong = np.flatnonzero(np.abs(exact - offsets) * period_ns > asked.tolerance_ns)
        if wrong.size:
            delta, nearest = int(asked.deltas_ns[wrong[0]]), float(offsets[wrong[0]]) * period_ns
            raise InvalidArgument(
                "delta_timestamps asks for times between the steps",
                entry=asked.key,
                expected=f"multiples of {_seconds(period_ns)}, within {_seconds(asked.tolerance_ns)}",
                found=f"{_seconds(delta)}, which is {_seconds(abs(delta - nearest))} from the nearest",
                hint="a larger tolerance_s takes the nearest step",
            )
        # No episode is as long; and sums with steps must not wrap.
        limit = float(1 << 62)
        self._offsets = np.clip(offsets, -limit, limit).astype(np.int64)
        self._least, self._most = int(self._offsets.min()), int(self._offsets.max())

    def fill(
        self, sources: Sources, step: int, out: NDArray[Any], is_pad: NDArray[np.bool_]
    ) -> None:
        indices = self._offsets + step
        if step + self._least >= 0 and step + self._most <= self._last:
            is_pad[...] = False
        else:
            is_pad[...] = (indices < 0) | (indices > self._last)
            indices = np.minimum(np.maximum(indices, 0), self._last)
        sources.pick(self._key, indices, out)


class _Recorded:
    """Entries with recorded times: the nearest, which must be near enough.

    Args:
        asked: what is looked for.
        steps_ns: the times of the steps.
        times_ns: the times of the channel's entries.
    """

    def __init__(
        self,
        asked: Asked,
        steps_ns: NDArray[np.int64],
        times_ns: NDArray[np.int64],
    ) -> None:
        self._asked = asked
        self._steps_ns = steps_ns
        self._times_ns = times_ns
        _check_times(asked, steps_ns, times_ns)

    def fill(
        self, sources: Sources, step: int, out: NDArray[Any], is_pad: NDArray[np.bool_]
    ) -> None:
        times, tolerance = self._times_ns, self._asked.tolerance_ns
        targets = self._asked.deltas_ns + self._steps_ns[step]
        inside = np.minimum(np.maximum(targets, times[0]), times[-1])
        found = _match_near(times, inside, "nearest", None)
        np.greater(np.abs(targets - inside), tolerance, out=is_pad)
        too_far = np.abs(found.residual_ns) > tolerance
        if too_far.any():
            at = int(too_far.argmax())
            raise InvalidArgument(
                "there is no entry at a time that delta_timestamps asks for",
                path=sources.path,
                entry=self._asked.key,
                expected=f"one within {_seconds(tolerance)} of step {step} and "
                f"{_seconds(self._asked.deltas_ns[at])}",
                found=f"the nearest is {_seconds(abs(found.residual_ns[at]))} away",
                hint="a larger tolerance_s takes the nearest; align='nearest' resamples channels with "
                "clocks of their own",
            )
        sources.pick(self._asked.key, found.indices, out)


class _Resampled:
    """A channel with a clock of its own, brought to the times that are asked for as `Episode.align` does."""

    def __init__(
        self, episode: Episode, asked: Asked, channel: Channel, resampling: Resampling
    ) -> None:
        self._asked = asked
        channel.check_claims()
        self._times_ns = episode.times_ns(channel)
        self._steps_ns = _steps_of(episode, asked)
        _check_times(asked, self._steps_ns, self._times_ns)
        self._method = method_for(channel, resampling.method)
        self._tolerance_ns = resampling.tolerance_ns
        # What the channel has before the first step or behind the last is no padding.
        self._first = min(self._steps_ns[0], self._times_ns[0])
        self._last = max(self._steps_ns[-1], self._times_ns[-1])

    def fill(
        self, sources: Sources, step: int, out: NDArray[Any], is_pad: NDArray[np.bool_]
    ) -> None:
        targets = self._asked.deltas_ns + self._steps_ns[step]
        inside = np.minimum(np.maximum(targets, self._first), self._last)
        found = _match_near(self._times_ns, inside, self._method, self._tolerance_ns)
        read_matched(sources, self._asked.key, found, out)
        np.not_equal(targets, inside, out=is_pad)
        is_pad |= ~found.valid


def _steps_of(episode: Episode, asked: Asked) -> NDArray[np.int64]:
    if episode.timestamps_ns is None:
        _check_rate(episode)
    steps_ns = episode.step_times_ns(episode.length)
    _check_sums(asked, steps_ns)
    return steps_ns


def _check_rate(episode: Episode) -> None:
    """Refuses an episode that says nothing about time, of which the format assumes a rate."""
    origin = episode.origin
    if episode.timebase.tick_hz > 0 and (
        origin is None
        or origin.chunks
        or any(
            isinstance(base, dict) and ("tick_hz" in base or "dt_ns" in base)
            for base in (origin.episode.get("timebase"), origin.wshard.get("timebase"))
        )
    ):
        return
    raise InvalidArgument(
        "the episode says nothing about time, so nothing can be found by time",
        expected="time/timestamps_ns, or a rate in its timebase",
        hint="save it with timebase=Timebase(tick_hz=…), or take windows of steps",
    )


def _check_times(asked: Asked, steps_ns: NDArray[np.int64], times_ns: NDArray[np.int64]) -> None:
    if not times_ns.size:
        raise InvalidArgument("the channel has no entries", entry=asked.key)
    # Once for all: later on only parts are looked at, which must be in order.
    match(times_ns, times_ns[:1])
    _check_sums(asked, steps_ns)
    _check_sums(asked, times_ns)


def _check_sums(asked: Asked, times_ns: NDArray[np.int64]) -> None:
    """Refuses times at which sums and differences would wrap."""
    largest = max((abs(int(times_ns[at])) for at in (0, -1)), default=0)
    if largest + int(np.abs(asked.deltas_ns).max()) > _LARGEST // 4:
        raise BadValue(
            "times are too far from 0 to be added to",
            entry=asked.key,
            expected=f"nanoseconds up to {_LARGEST // 4}",
            found=f"{largest}",
        )


def _match_near(
    times: NDArray[np.int64],
    targets: NDArray[np.int64],
    method: Method,
    tolerance_ns: int | None,
) -> Match:
    """What `match` finds, looking only at the entries around the targets; the times must be in order."""
    start = max(int(times.searchsorted(targets.min(), side="left")) - 1, 0)
    # Of several entries at one time the first may be wanted.
    start = int(times.searchsorted(times[start], side="left"))
    stop = int(times.searchsorted(targets.max(), side="right")) + 1
    found = match(times[start:stop], targets, method, tolerance_ns)
    indices = np.where(found.valid, found.indices + start, -1)
    return Match(indices, found.weights, found.residual_ns, found.valid)


def _seconds(nanoseconds: float) -> str:
    return f"{float(nanoseconds) / 1e9:.9g} s"
