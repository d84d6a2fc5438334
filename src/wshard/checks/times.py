"""Clocks: do they run forward, evenly, at the stated rate, and while the episode lasts?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from wshard.checks.finding import counted
from wshard.names import TICKS, TIMESTAMPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wshard.channels import Channel
    from wshard.checks.finding import ExamineOptions, Findings
    from wshard.episode import Episode

_SECOND = 1e9
# A median of fewer gaps says little about a rate.
_FEWEST_GAPS = 4


def check_times(episode: Episode, options: ExamineOptions, found: Findings) -> None:
    """The clock of the steps, and those of channels that have their own."""
    # Without ticks of its own an episode counts 0, 1, 2, …: nothing to look at, whatever T claims to be.
    if TICKS not in found.damaged and episode._ticks is not None:
        with found.guard(TICKS, rule="W-TIM-2"):
            _check_ticks(episode.ticks, found)
    if TIMESTAMPS not in found.damaged:
        with found.guard(TIMESTAMPS, rule="W-TIM-2"):
            times = episode.timestamps_ns
            if times is not None:
                _check_clock(times, TIMESTAMPS, options, found)
                if _states_rate(episode):
                    _check_rate(
                        times,
                        episode.timebase.tick_hz,
                        "timebase.tick_hz",
                        TIMESTAMPS,
                        options,
                        found,
                    )
    seen: set[str] = set()
    for block, channel in episode.blocks():
        if channel.has_own_clock and (channel.block or block) not in found.damaged:
            with found.guard(block):
                _check_channel(episode, block, channel, options, found, seen)


def span_ns(episode: Episode) -> tuple[int, int] | None:
    """The first time of an episode and the end of its last step; None without steps."""
    times = episode.timestamps_ns
    period = episode.timebase.dt_ns
    if times is None:
        start = episode.timebase.epoch_ns
        # Computed, not made: T is what the file claims.
        end = start + round(episode.length * _SECOND / episode.timebase.tick_hz)
        return (start, end) if episode.length else None
    if not len(times):
        return None
    low, high = int(times.min()), int(times.max())
    if len(times) > 1:
        period = (high - low) // (len(times) - 1)
    return low, high + period


def _states_rate(episode: Episode) -> bool:
    """Whether somebody wrote a rate; without one, the default is nobody's claim."""
    origin = episode.origin
    if origin is None:
        return True
    for fields in (origin.episode, origin.wshard):
        base = fields.get("timebase")
        if isinstance(base, dict) and (base.get("tick_hz") or base.get("dt_ns")):
            return True
    return False


def _check_ticks(ticks: NDArray[np.int32], found: Findings) -> None:
    wrong = np.flatnonzero(ticks[1:] <= ticks[:-1])
    if wrong.size:
        step = int(wrong[0]) + 1
        found.add(
            "ticks_not_increasing",
            f"{wrong.size} of {ticks.size} ticks are not above the one before, the first at step "
            f"{step}: {int(ticks[step])} after {int(ticks[step - 1])}",
            block=TICKS,
            step=step,
            count=int(wrong.size),
            advice="sort the steps by tick and drop repeats, or leave ticks out: steps are in order",
        )


def _check_clock(
    times: NDArray[np.int64], block: str, options: ExamineOptions, found: Findings
) -> None:
    before, after = times[:-1], times[1:]
    backwards = np.flatnonzero(after < before)
    if backwards.size:
        step = int(backwards[0]) + 1
        back = int(times[step - 1]) - int(times[step])
        found.add(
            "time_backwards",
            f"time runs backwards {_times(backwards.size)}, first at step {step} by {_duration(back)}",
            block=block,
            step=step,
            count=int(backwards.size),
            advice="sort the steps by time; if the clock was set while recording, use a monotonic one",
            rule="W-TIM-4",
        )
    repeats = np.flatnonzero(after == before)
    if repeats.size:
        step = int(repeats[0]) + 1
        found.add(
            "time_repeats",
            f"{repeats.size} of {times.size} timestamps are the same as the one before, the first "
            f"at step {step}",
            block=block,
            step=step,
            count=int(repeats.size),
            advice="drop the repeated steps, or stamp each when it is taken",
        )
    gaps = _gaps(times)
    forward = gaps[after > before]
    if forward.size < _FEWEST_GAPS:
        return
    median = float(np.median(forward))
    jumps = np.flatnonzero((after > before) & (gaps > options.jump_factor * median))
    if jumps.size:
        step = int(jumps[0]) + 1
        longest = float(gaps[jumps].max())
        found.add(
            "time_jump",
            f"{counted(int(jumps.size), 'gap')} of more than {options.jump_factor:g} times the median of "
            f"{_duration(median)}, the first of {_duration(float(gaps[step - 1]))} before step {step}"
            + (f", the longest {_duration(longest)}" if jumps.size > 1 else ""),
            block=block,
            step=step,
            count=int(jumps.size),
            advice="look for dropped steps there; split the episode, or align with a tolerance_ns",
        )


def _gaps(times: NDArray[np.int64]) -> NDArray[np.float64]:
    """Differences of neighbours; right also where int64 would overflow, as long as time runs forward."""
    unsigned = times.astype(np.uint64)
    return (unsigned[1:] - unsigned[:-1]).astype(np.float64)


def _check_rate(
    times: NDArray[np.int64],
    rate_hz: float,
    stated_in: str,
    block: str,
    options: ExamineOptions,
    found: Findings,
) -> None:
    forward = _gaps(times)[times[1:] > times[:-1]]
    if forward.size < _FEWEST_GAPS or rate_hz <= 0:
        return
    stated = _SECOND / rate_hz
    median, mean = float(np.median(forward)), float(forward.mean())
    # Jumps move the mean, jitter the median: a rate that fits either is right.
    off = min(abs(median - stated), abs(mean - stated)) / stated
    if off > options.rate_tolerance:
        found.add(
            "rate_mismatch",
            f"{stated_in} says {rate_hz:g} Hz, but the timestamps are {_duration(median)} apart "
            f"(median), which is {_SECOND / median:.4g} Hz",
            block=block,
            advice=f"set {stated_in} to {_SECOND / median:.4g}, or check the unit of the timestamps",
        )


def _check_channel(
    episode: Episode,
    block: str,
    channel: Channel,
    options: ExamineOptions,
    found: Findings,
    seen: set[str],
) -> None:
    span = None if TIMESTAMPS in found.damaged else span_ns(episode)
    is_regular = channel._times is None and channel._time_block is None
    if is_regular:
        if span is not None and channel.length and channel.start_ns is not None:
            _check_regular(block, channel, span, options, found)
        return
    times = channel.timestamps_ns
    if times is None or not len(times):
        return
    clock = channel._time_block.name if channel._time_block is not None else block
    if clock not in seen:
        seen.add(clock)  # channels may share a clock: say what is wrong with it once
        _check_clock(times, clock, options, found)
        if channel.sampling_rate_hz:
            _check_rate(times, channel.sampling_rate_hz, "sampling_rate_hz", clock, options, found)
    if span is None:
        return
    slack = round(options.clock_slack_s * _SECOND)
    low, high = max(span[0] - slack, -(1 << 63)), min(span[1] + slack, (1 << 63) - 1)
    outside = np.flatnonzero((times < low) | (times > high))
    if outside.size:
        reach = (int(times.min()), int(times.max()))
        _say_outside(
            block, len(times), int(outside[0]), int(outside.size), reach, span, slack, found
        )


def _check_regular(
    block: str, channel: Channel, span: tuple[int, int], options: ExamineOptions, found: Findings
) -> None:
    """The same for a clock of a start and a rate, of any length."""
    start, rate, count = channel.start_ns, channel.sampling_rate_hz or 0, channel.length
    assert start is not None
    slack = round(options.clock_slack_s * _SECOND)
    period = _SECOND / rate if rate > 0 else 0.0
    if period:
        early = min(count, max(0, math.ceil((span[0] - slack - start) / period)))
        inside = max(0, math.floor((span[1] + slack - start) / period) + 1)
        late = count - min(count, max(inside, 0))
    else:
        early, late = count * (start < span[0] - slack), count * (start > span[1] + slack)
    outside = min(count, early + late)
    if outside:
        reach = (start, start + round((count - 1) * period))
        first = 0 if early else count - late
        _say_outside(block, count, first, outside, reach, span, slack, found)


def _say_outside(
    block: str,
    total: int,
    step: int,
    count: int,
    reach: tuple[int, int],
    span: tuple[int, int],
    slack: int,
    found: Findings,
) -> None:
    parts = [
        f"up to {_duration(by)} {word}"
        for by, word in (
            (span[0] - reach[0], "before it starts"),
            (reach[1] - span[1], "after it ends"),
        )
        if by > slack
    ]
    found.add(
        "clock_outside",
        f"{count} of {counted(total, 'entry', 'entries')} outside the time of the episode: "
        f"{' and '.join(parts)}",
        block=block,
        step=step,
        count=count,
        advice="check that both clocks have one origin and the unit ns; else cut what is outside",
    )


def _duration(ns: float) -> str:
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= limit:
            return f"{ns / limit:.4g} {unit}"
    return f"{ns:.4g} ns"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
