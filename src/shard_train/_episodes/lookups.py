"""Finding the entries of a channel by time: channels with clocks of their own, and times around a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, ShardError, check_choice
from wshard.alignment import (
    METHODS,
    Match,
    check_unit,
    match,
    method_for,
    needed_range,
    take,
)
from wshard.windows import WindowSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from wshard.alignment import Method
    from wshard.types import Episode
    from wshard.windows import ChannelSpec

__all__ = [
    "RegularLookup",
    "ResampledSources",
    "Resampling",
    "TimeLookup",
    "TimeQuery",
    "as_resampling",
    "lookup_of",
    "mask_of",
    "read_matched",
]

_LARGEST: Final = (1 << 63) - 1
_FAR_AWAY: Final = "if the clock is right, pass align='nearest' and tolerance_s=…"


class Resampling(NamedTuple):
    """How entries are found for the times of the steps, as `Episode.align` does it."""

    method: Method
    tolerance_ns: int | None


def as_resampling(align: str | None, tolerance_s: float | None) -> Resampling | None:
    """Check the two arguments of a dataset; None if nothing needs resampling."""
    if align is None:
        return None
    check_choice("align", align, METHODS)
    tolerance_ns = None if tolerance_s is None else round(tolerance_s * 1e9)
    resampling = Resampling(cast("Method", align), tolerance_ns)
    match([], [], *resampling)  # raises if the method takes no tolerance
    return resampling


def mask_of(key: str) -> str:
    """What says where a channel has no entry."""
    return f"{key}_is_pad"


class ResampledSources(WindowSource):
    """Where the windows of one open episode come from, if some of its channels have clocks of their own.

    Keeps some 25 bytes for each step and such a channel, from its first use on.
    """

    __slots__ = ("_matches", "_resampling", "_steps")

    def __init__(
        self,
        episode: Episode,
        path: str,
        wanted: Iterable[ChannelSpec],
        steps: int,
        resampling: Resampling | None,
    ) -> None:
        super().__init__(episode, path, wanted, keep_small=True)
        self._steps = steps
        self._resampling = resampling
        self._matches: dict[str, Match] = {}

    def read_resampled(
        self, key: str, start: int, out: NDArray[Any], is_pad: NDArray[np.bool_]
    ) -> None:
        """Fills an array with a channel at the times of the steps from `start` on, and says where it has none."""
        if self.channels[key] is None:
            self.read(key, start, out)
            is_pad[...] = True
            return
        matched = self._matches.get(key)
        if matched is None:
            matched = self._matches.setdefault(key, self._match(key))
        part = matched.part(start, start + len(out))
        read_matched(self, key, part, out)
        is_pad[...] = ~part.valid

    def _match(self, key: str) -> Match:
        channel, resampling = self.channels[key], self._resampling
        assert channel is not None
        assert resampling is not None
        try:
            times = self.episode.step_times_ns(self._steps)
            return self.episode.match(channel, times, *resampling)
        except ShardError as error:
            raise error.located(path=self.path, entry=channel.block or key) from None


def read_matched(sources: WindowSource, key: str, matched: Match, out: NDArray[Any]) -> None:
    """Fills an array with the entries that were found for some times; see `take` for those without one."""
    if matched.weights is None and bool(matched.valid.all()):
        sources.pick(key, matched.indices, out)
        return
    channel = sources.channels[key]
    assert channel is not None
    try:
        start, stop = needed_range(matched)
        out[...] = take(channel.read_steps(start, stop), matched, offset=start)
    except ShardError as error:
        raise error.located(path=sources.path, entry=channel.block or key) from None


class TimeQuery(NamedTuple):
    """The times that a dataset asks of a channel, relative to a step."""

    key: str
    deltas_ns: NDArray[np.int64]
    tolerance_ns: int
    """How far an entry may be from its time, where it is not resampled."""


def lookup_of(
    sources: WindowSource, query: TimeQuery, resampling: Resampling | None
) -> RegularLookup | TimeLookup:
    """How the entries of a channel are found in an open episode.

    A lookup belongs to its sources and does not hold them: in a circle they would keep the file open until the
    garbage collector comes.

    Raises:
        InvalidArgument: the episode has no times, or has no entries at the times that are asked for.
    """
    episode, channel = sources.episode, sources.channels[query.key]
    if channel is not None and channel.has_own_clock:
        channel.check_claims()
        if episode.timestamps_ns is None:
            _checked_rate(episode)
        steps_ns = episode.step_times_ns(episode.length)
        times_ns = episode.times_ns(channel)
        if channel.has_own_timestamps and (resampling is None or resampling.tolerance_ns is None):
            try:
                check_unit(times_ns, episode.span_ns(), _FAR_AWAY)
            except InvalidArgument as error:
                raise error.located(path=sources.path, entry=channel.block or query.key) from None
        if resampling is not None:
            method = method_for(channel, resampling.method)
            resampling = Resampling(method, resampling.tolerance_ns)
        return TimeLookup(query, steps_ns, times_ns, resampling)
    steps = episode.length
    count = steps + (channel is not None and channel.length == steps + 1)
    if episode.timestamps_ns is None:
        period_ns = 1e9 / _checked_rate(episode)
        # Where several steps are near enough, the nearest is looked for.
        if 2 * query.tolerance_ns < period_ns:
            return RegularLookup(query, count, period_ns)
    times = episode.step_times_ns(count)
    return TimeLookup(query, times[:steps], times, None)


class RegularLookup:
    """Steps at a fixed rate: seconds are a multiple of steps."""

    def __init__(self, query: TimeQuery, count: int, period_ns: float) -> None:
        self._key = query.key
        self._last = count - 1
        exact = query.deltas_ns / period_ns
        offsets = np.rint(exact)
        wrong = np.flatnonzero(np.abs(exact - offsets) * period_ns > query.tolerance_ns)
        if wrong.size:
            delta, nearest = int(query.deltas_ns[wrong[0]]), float(offsets[wrong[0]]) * period_ns
            raise InvalidArgument(
                "delta_timestamps asks for times between the steps",
                entry=query.key,
                expected=f"multiples of {_seconds(period_ns)}, within {_seconds(query.tolerance_ns)}",
                found=f"{_seconds(delta)}, which is {_seconds(abs(delta - nearest))} from the nearest",
                hint="a larger tolerance_s takes the nearest step",
            )
        # No episode is as long; and sums with steps must not wrap.
        limit = float(1 << 62)
        self._offsets = np.clip(offsets, -limit, limit).astype(np.int64)
        self._least, self._most = int(self._offsets.min()), int(self._offsets.max())

    def fill(
        self, sources: WindowSource, step: int, out: NDArray[Any], is_pad: NDArray[np.bool_]
    ) -> None:
        indices = self._offsets + step
        if step + self._least >= 0 and step + self._most <= self._last:
            is_pad[...] = False
        else:
            is_pad[...] = (indices < 0) | (indices > self._last)
            indices = np.minimum(np.maximum(indices, 0), self._last)
        sources.pick(self._key, indices, out)


class TimeLookup:
    """Entries with recorded times.

    With `resampling`, they are brought to the times that are asked for as `Episode.align` does it. Without, the
    nearest entry is taken, which must be near enough.
    """

    def __init__(
        self,
        query: TimeQuery,
        steps_ns: NDArray[np.int64],
        times_ns: NDArray[np.int64],
        resampling: Resampling | None,
    ) -> None:
        self._query = query
        self._steps_ns = steps_ns
        self._times_ns = times_ns
        self._resampling = resampling
        if not times_ns.size:
            raise InvalidArgument("the channel has no entries", entry=query.key)
        # Once for all: later on only parts are looked at, which must be in order.
        match(times_ns, times_ns[:1])
        _check_sums(query, steps_ns)
        _check_sums(query, times_ns)
        self._first, self._last = times_ns[0], times_ns[-1]
        if resampling is not None:
            # Entries before the first step or after the last one are not padding.
            self._first = min(steps_ns[0], self._first)
            self._last = max(steps_ns[-1], self._last)

    def fill(
        self, sources: WindowSource, step: int, out: NDArray[Any], is_pad: NDArray[np.bool_]
    ) -> None:
        """Reads the entries around a step, and says which of them lie outside."""
        query, times = self._query, self._times_ns
        targets = query.deltas_ns + self._steps_ns[step]
        inside = np.minimum(np.maximum(targets, self._first), self._last)
        if self._resampling is not None:
            found = _match_near(times, inside, *self._resampling)
            read_matched(sources, query.key, found, out)
            np.not_equal(targets, inside, out=is_pad)
            is_pad |= ~found.valid
            return
        found = _match_near(times, inside, "nearest", None)
        np.greater(np.abs(targets - inside), query.tolerance_ns, out=is_pad)
        too_far = np.abs(found.residual_ns) > query.tolerance_ns
        if too_far.any():
            at = int(too_far.argmax())
            raise InvalidArgument(
                "no entry at a time of delta_timestamps",
                path=sources.path,
                entry=query.key,
                expected=f"one within {_seconds(query.tolerance_ns)} of step {step} and "
                f"{_seconds(query.deltas_ns[at])}",
                found=f"the nearest is {_seconds(abs(found.residual_ns[at]))} away",
                hint="a larger tolerance_s takes the nearest; align='nearest' resamples channels with "
                "clocks of their own",
            )
        sources.pick(query.key, found.indices, out)


def _checked_rate(episode: Episode) -> float:
    """The rate of an episode; refuses an episode that says nothing about time, for which the format assumes a rate."""
    origin, rate = episode.origin, episode.timebase.tick_hz
    if (rate or 0) > 0 and (
        origin is None
        or origin.chunks
        or any(
            isinstance(base, dict) and ("tick_hz" in base or "dt_ns" in base)
            for base in (origin.episode.get("timebase"), origin.wshard.get("timebase"))
        )
    ):
        return rate or 0
    raise InvalidArgument(
        "the episode has no times, so entries cannot be found by time",
        expected="time/timestamps_ns, or a rate in its timebase",
        hint="save it with timebase=Timebase(tick_hz=…), or take windows of steps",
    )


def _check_sums(query: TimeQuery, times_ns: NDArray[np.int64]) -> None:
    """Refuses times at which sums and differences would wrap."""
    largest = max((abs(int(times_ns[at])) for at in (0, -1)), default=0)
    if largest + int(np.abs(query.deltas_ns).max()) > _LARGEST // 4:
        raise BadValue(
            "times are too far from 0 to be added to",
            entry=query.key,
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
