"""Cutting, joining and comparing episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shard_format._json import canonical
from shard_format.errors import InvalidArgument
from wshard.joining import join
from wshard.labels import Interval, Intervals
from wshard.planning import plan_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from wshard.channels import Channel
    from wshard.episode import Episode
    from wshard.planned import PlannedEntry

__all__ = ["Difference", "differences", "merge_episodes", "slice_episode", "split_episode"]


def slice_episode(
    episode: Episode,
    start: int,
    stop: int,
    *,
    id: str | None = None,
) -> Episode:
    """The steps from `start` up to, but not including, `stop`, as an episode of its own.

    Channels with a clock of their own are cut where those steps start; times stay what they were. An
    observation after the last action stays with the step before it. Labels are clipped.

    Args:
        episode: what to cut.
        start: first step.
        stop: end of the steps.
        id: what to call it; the old id with the two numbers if left out.
    """
    length = episode.length
    if not 0 <= start <= stop <= length:
        raise InvalidArgument(
            "steps outside the episode",
            expected=f"0 <= start <= stop <= {length}",
            found=f"start {start}, stop {stop}",
        )
    times = episode.times_ns()

    def cut(channel: Channel) -> Channel:
        if not channel.has_own_clock:
            if channel.length not in (length, length + 1):
                return channel  # without a time for each step: every part has all of it
            one_more = channel.length == length + 1
            return channel.sliced(start, stop + 1 if one_more else stop)
        own = episode.times_ns(channel)
        first = (
            0
            if start == 0
            else int(np.searchsorted(own, times[start] if start < length else times[-1] + 1))
        )
        last = len(own) if stop == length else int(np.searchsorted(own, times[stop]))
        return channel.sliced(first, max(first, last))

    part = episode.mapped(cut)
    part.origin = None
    part.id = f"{episode.id}_{start}_{stop}" if id is None else id
    part.chunk_index = part.total_chunks = part.timestep_range = None
    part._length = stop - start
    part._ticks = episode.ticks[start:stop]
    stamps = episode.timestamps_ns
    part._timestamps = None if stamps is None else stamps[start:stop]
    if stamps is None and start:
        part.timebase.epoch_ns = episode.timebase.epoch_ns + round(
            start * 1e9 / episode.timebase.tick_hz
        )
    for key, residual in episode.residuals.items():
        part.residuals.adopt(key, residual.sliced(start, stop, length))
    for name, intervals in episode.labels.items():
        in_steps = intervals.unit == "steps"
        # What reaches beyond the episode stays with its first or last part.
        low: float = start if in_steps else int(times[start]) if start < length else math.inf
        high: float = stop if in_steps or stop == length else int(times[stop])
        low = -math.inf if start == 0 else low
        high = math.inf if stop == length else high
        part.labels.adopt(name, _clipped(intervals, low, high, start if in_steps else 0))
    return part


def _clipped(intervals: Intervals, low: float, high: float, shift: int) -> Intervals:
    kept = [
        Interval(
            *(int(max(item.start, low)) - shift, int(min(item.end, high)) - shift, item.text),
            *(item.source, item.confidence, item.extra),
        )
        for item in intervals
        # Half-open; an interval without length is an event at its start.
        if item.start < high and (item.end > low or item.start == item.end == low)
    ]
    return Intervals(kept, unit=intervals.unit, extra=intervals.extra)


def split_episode(
    episode: Episode, *, steps: int | None = None, at: Iterable[int] | None = None
) -> list[Episode]:
    """Cuts an episode into parts.

    Args:
        episode: what to cut.
        steps: the length of each part; the last may be shorter.
        at: instead: the steps at which parts start.
    """
    if (steps is None) == (at is None):
        raise InvalidArgument("give either steps or at")
    length = episode.length
    if steps is not None:
        if steps < 1:
            raise InvalidArgument("a part has at least one step", found=steps)
        borders = list(range(0, max(1, length), steps))
    else:
        borders = sorted({0, *(at or ())})
        if borders and not 0 <= borders[-1] <= length:
            raise InvalidArgument(
                "a part would start outside the episode",
                expected=f"at most {length}",
                found=borders[-1],
            )
    return [
        slice_episode(episode, start, stop)
        for start, stop in zip(borders, [*borders[1:], length], strict=True)
    ]


def merge_episodes(
    episodes: Sequence[Episode],
    *,
    id: str | None = None,
) -> Episode:
    """Joins episodes that follow one another and have the same channels.

    Nothing is copied until it is read or saved. What the episodes were, with their metadata, is kept under
    `metadata["merged_from"]` unless they are parts of one episode.

    Args:
        episodes: in the order of time.
        id: what to call it; the first one's id if left out.
    """
    if not episodes:
        raise InvalidArgument("there is nothing to merge")
    # Where steps have times of their own, the rate only describes them.
    rates = {e.timebase.tick_hz for e in episodes if e._timestamps is None}
    if len(rates) > 1:
        raise InvalidArgument("the episodes have different rates", found=sorted(rates))
    merged = join(episodes)
    merged.id = episodes[0].id if id is None else id
    merged.chunk_index = merged.total_chunks = merged.timestep_range = None
    if (np.diff(merged.ticks) <= 0).any():
        merged._ticks = None  # each started at 0: count anew
    if any((e.id, e.metadata) != (episodes[0].id, episodes[0].metadata) for e in episodes):
        merged.metadata["merged_from"] = [
            {"id": e.id, "length": e.length, "metadata": e.metadata} for e in episodes
        ]
    return merged


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two episodes differ."""

    block: str
    """The entry that differs, such as `signal/rgb`."""
    kind: str
    """`only_left`, `only_right`, `description`, `metadata`, `form` or `values`."""
    detail: str
    """What is different, for people."""


def differences(left: Episode, right: Episode, *, values: bool = True) -> list[Difference]:
    """What two episodes differ in, block by block; nothing if they hold the same.

    How they are stored does not matter: order, compression, alignment.

    Args:
        left: one episode.
        right: the other.
        values: False compares names, types and shapes only.
    """
    ours = {entry.name: entry for entry in plan_blocks(left).entries}
    theirs = {entry.name: entry for entry in plan_blocks(right).entries}
    found: list[Difference] = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            found.append(Difference(name, "only_left", f"only in {left.id!r}"))
        elif name not in ours:
            found.append(Difference(name, "only_right", f"only in {right.id!r}"))
        else:
            difference = _compare(name, ours[name], theirs[name], left, right, values)
            if difference is not None:
                found.append(difference)
    return found


def _compare(
    name: str, ours: PlannedEntry, theirs: PlannedEntry, left: Episode, right: Episode, values: bool
) -> Difference | None:
    if name in ("meta/episode", "meta/wshard", "meta/channels"):
        return _compare_json(name, bytes(ours.read()), bytes(theirs.read()))
    if (ours.dtype, ours.step_bytes, ours.nbytes) != (
        theirs.dtype,
        theirs.step_bytes,
        theirs.nbytes,
    ):
        return Difference(name, "form", f"{_form(ours)} and {_form(theirs)}")
    if not values:
        return None
    a, b = ours.flat(), theirs.flat()
    if np.array_equal(a, b):
        return None
    return Difference(name, "values", _value_detail(a, b, ours))


def _form(entry: PlannedEntry) -> str:
    steps = entry.nbytes // entry.step_bytes
    return f"{steps} steps of {entry.step_bytes // entry.dtype.size} {entry.dtype}"


def _value_detail(a: NDArray[np.uint8], b: NDArray[np.uint8], entry: PlannedEntry) -> str:
    rows = (a != b).reshape(-1, entry.step_bytes).any(axis=1)
    steps = np.flatnonzero(rows)
    detail = f"{len(steps)} of {len(rows)} steps differ, first at {steps[0]}"
    if entry.is_array and entry.dtype.value != "bool":
        dtype = entry.dtype.numpy_dtype
        x, y = a.view(dtype).astype(np.float64), b.view(dtype).astype(np.float64)
        with np.errstate(invalid="ignore"):
            gap = np.abs(x - y)
        if np.isfinite(gap).any():
            detail += f", by at most {np.nanmax(np.where(np.isfinite(gap), gap, np.nan)):.6g}"
    return detail


def _compare_json(name: str, ours: bytes, theirs: bytes) -> Difference | None:
    import json

    a, b = json.loads(ours), json.loads(theirs)
    if canonical(a) == canonical(b):
        return None
    kind = "description" if name == "meta/channels" else "metadata"
    if name == "meta/channels":
        rows_a = {row.get("signal_block", row.get("id")): row for row in a.get("channels", [])}
        rows_b = {row.get("signal_block", row.get("id")): row for row in b.get("channels", [])}
        changed = sorted(
            str(block)
            for block in rows_a.keys() | rows_b.keys()
            if rows_a.get(block) != rows_b.get(block)
        )
        return Difference(name, kind, f"rows of {', '.join(changed) or 'other fields'}")
    keys = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    detail = "; ".join(f"{key}: {_short(a.get(key))} and {_short(b.get(key))}" for key in keys)
    return Difference(name, kind, detail)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
