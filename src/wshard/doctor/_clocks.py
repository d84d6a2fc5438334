"""Clocks: do they run forward, evenly, at the stated rate, and while the episode lasts?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard._lanes import TICKS, TIMESTAMPS
from wshard.alignment import SORT_CLOCK, unit_mistake
from wshard.doctor._findings import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wshard.doctor._findings import Findings
    from wshard.types import Channel, Episode

    Span = tuple[int, int]

_SECOND: Final = 1e9
# A median of fewer gaps says little about a rate.
_FEWEST_GAPS: Final = 4
# A clock that is ten times shorter or longer than the episode may have another unit.
_SPAN_FACTOR: Final = 10


def where(wrong: NDArray[np.bool_]) -> tuple[int, int]:
    """How many are true, and the first of them."""
    count = int(np.count_nonzero(wrong))
    return count, int(wrong.argmax()) if count else -1


def check_times(episode: Episode, found: Findings) -> None:
    """The clock of the steps, and those of channels that have their own."""
    # Without ticks of its own an episode counts 0, 1, 2, …: nothing to check, whatever T claims to be.
    if TICKS not in found.damaged and (TICKS,) in episode.parts:
        with found.guard(TICKS, rule="W-TIM-2"):
            _check_ticks(episode.ticks, found)
    if TIMESTAMPS not in found.damaged:
        with found.guard(TIMESTAMPS, rule="W-TIM-2"):
            times = episode.timestamps_ns
            if times is not None:
                rate_hz = episode.timebase.tick_hz if _states_rate(episode) else None
                _check_clock(times, TIMESTAMPS, rate_hz, "timebase.tick_hz", found)
    seen: set[str] = set()
    for block, channel in episode.blocks():
        if channel.has_own_clock and (channel.block or block) not in found.damaged:
            with found.guard(block):
                _check_channel(episode, block, channel, seen, found)


def span_ns(episode: Episode, block: str, why: str, found: Findings) -> Span | None:
    """The first time of an episode and the end of its last step; None without steps or without a clock.

    Something in `block` needs the times of the steps: without them that is a finding.
    """
    times, rate_hz = episode.timestamps_ns, episode.timebase.tick_hz
    if times is None and not rate_hz:
        message = f"{why}, but the episode has neither timestamps nor a rate"
        found.add("no_clock", block, message)
        return None
    return episode.span_ns()


def _states_rate(episode: Episode) -> bool:
    """Whether the file states a rate; the default of older files is not a claim."""
    origin = episode.origin
    if origin is None:
        return True
    bases: list[Any] = [fields.get("timebase") for fields in (origin.episode, origin.wshard)]
    return any(isinstance(b, dict) and (b.get("tick_hz") or b.get("dt_ns")) for b in bases)


def _check_ticks(ticks: NDArray[np.int32], found: Findings) -> None:
    count, before = where(ticks[1:] <= ticks[:-1])
    if count:
        message = f"{count} of {ticks.size} ticks are not above the one before, the first at step "
        message += f"{before + 1}: {int(ticks[before + 1])} after {int(ticks[before])}"
        found.add("ticks_not_increasing", TICKS, message, before + 1, count)


def _check_clock(
    times: NDArray[np.int64], block: str, rate_hz: float | None, stated_in: str, found: Findings
) -> None:
    """A clock by itself: order, gaps, and the rate that is stated for it."""
    before, after = times[:-1], times[1:]
    count, step = where(after < before)
    if count:
        back = _duration(int(times[step]) - int(times[step + 1]))
        often = "once" if count == 1 else f"{count} times"
        message = f"time runs backwards {often}, first at step {step + 1} by {back}"
        advice = None if block == TIMESTAMPS else SORT_CLOCK
        found.add("time_backwards", block, message, step + 1, count, advice=advice, rule="W-TIM-4")
    count, step = where(after == before)
    if count:
        message = f"{count} of {times.size} timestamps are the same as the one before, the first "
        found.add("time_repeats", block, f"{message}at step {step + 1}", step + 1, count)
    # Differences of neighbours; right also where int64 would overflow, as long as time runs forward.
    unsigned = times.astype(np.uint64)
    gaps = (unsigned[1:] - unsigned[:-1]).astype(np.float64)
    forward = gaps[after > before]
    if forward.size < _FEWEST_GAPS:
        return
    median, mean = float(np.median(forward)), float(forward.mean())
    factor = found.options.jump_factor
    jumps = (after > before) & (gaps > factor * median)
    count, step = where(jumps)
    if count:
        longest = f", the longest {_duration(float(gaps[jumps].max()))}" if count > 1 else ""
        message = f"{counted(count, 'gap')} of more than {factor:g} times the median of "
        message += f"{_duration(median)}, the first of {_duration(float(gaps[step]))} before step "
        found.add("time_jump", block, f"{message}{step + 1}{longest}", step + 1, count)
    if rate_hz is None or rate_hz <= 0:
        return
    stated = _SECOND / rate_hz
    # Jumps move the mean, jitter the median: a rate that fits either is right.
    if min(abs(median - stated), abs(mean - stated)) / stated > found.options.rate_tolerance:
        measured = f"{_SECOND / median:.4g}"
        message = f"{stated_in} says {rate_hz:g} Hz, but the timestamps are {_duration(median)} "
        message += f"apart (median), which is {measured} Hz"
        advice = f"set {stated_in} to {measured}, or check the unit of the timestamps"
        found.add("rate_mismatch", block, message, advice=advice)


def _check_channel(
    episode: Episode, block: str, channel: Channel, seen: set[str], found: Findings
) -> None:
    """The clock of one channel, by itself and against the episode's time."""
    times = channel.timestamps_ns if channel.has_own_timestamps and channel.length else None
    if times is not None:
        clock = channel.clock_source.name if channel.clock_source is not None else block
        if clock not in seen:
            seen.add(clock)  # channels may share a clock: say what is wrong with it once
            _check_clock(times, clock, channel.sampling_rate_hz, "sampling_rate_hz", found)
    if TIMESTAMPS in found.damaged or not channel.length:
        return
    span = span_ns(episode, block, "it has a clock of its own", found)
    if span is None:
        return
    slack = round(found.options.clock_slack_s * _SECOND)
    if times is None:
        outside, first, reach = _outside_regular(channel, span, slack)
    else:
        low, high = max(span[0] - slack, -(1 << 63)), min(span[1] + slack, (1 << 63) - 1)
        outside, first = where((times < low) | (times > high))
        reach = int(times.min()), int(times.max())
    if outside:
        sides = ((span[0] - reach[0], "before it starts"), (reach[1] - span[1], "after it ends"))
        parts = [f"up to {_duration(by)} {word}" for by, word in sides if by > slack]
        entries = counted(channel.length, "entry", "entries")
        message = f"{outside} of {entries} outside the time of the episode: {' and '.join(parts)}"
        found.add("clock_outside", block, message, first, outside)
    if times is not None:
        _check_span(times, span, block, found)


def _check_span(times: NDArray[np.int64], span: Span, block: str, found: Findings) -> None:
    """Whether a clock lasts about as long as the episode: units are mistaken by factors of 1000."""
    whole, count = span[1] - span[0], len(times)
    covered = int(times.max()) - int(times.min())
    covered += covered // max(count - 1, 1)
    if count < 2 or whole <= 0 or whole / _SPAN_FACTOR <= covered <= whole * _SPAN_FACTOR:
        return
    problem, mend = unit_mistake(times, span) or (
        f"its times cover {_duration(covered)} of an episode of {_duration(whole)}",
        "channel.timestamps_ns = channel.timestamps_ns * 1000",
    )
    advice = (
        "nothing, if the sensor ran only that long; if its times are not in nanoseconds, load the "
    )
    advice += f"episode, `{mend}`, and save it"
    found.add("clock_span", block, problem, advice=advice)


def _outside_regular(channel: Channel, span: Span, slack: int) -> tuple[int, int, Span]:
    """How many entries of a clock of a start and a rate lie outside the span, the first, and its reach.

    Computed, whatever the length.
    """
    start, rate, count = channel.start_ns or 0, channel.sampling_rate_hz or 0, channel.length
    period = _SECOND / rate if rate > 0 else 0.0
    if period:
        early = min(count, max(0, math.ceil((span[0] - slack - start) / period)))
        late = count - min(count, max(0, math.floor((span[1] + slack - start) / period) + 1))
    else:
        early, late = count * (start < span[0] - slack), count * (start > span[1] + slack)
    first = 0 if early else count - late
    return min(count, early + late), first, (start, start + round((count - 1) * period))


def _duration(ns: float) -> str:
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= limit:
            return f"{ns / limit:.4g} {unit}"
    return f"{ns:.4g} ns"
