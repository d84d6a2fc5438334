"""The numbers themselves: not finite, never changing, frozen or blank frames, bytes that are not text.

Channels are examined in windows of steps, so memory does not depend on their length. Only a block that was
compressed in one piece is decoded as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import MissingExtra, UnknownCodec
from wshard.doctor._findings import counted
from wshard.multimodal import is_frames
from wshard.types import Modality, RaggedChannel, TextChannel, VideoChannel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shard_format.findings import Severity
    from wshard.doctor._findings import Findings
    from wshard.types import Channel

# Sensors for which NaN and infinity usually mean that there is nothing.
_HOLES: Final = (Modality.DEPTH, Modality.POINTCLOUD)
_SAMPLED: Final = 64
_COMPARED_BYTES: Final = 16 << 20
_LANES_OF_DIMENSIONS: Final = ("signal", "action", "omen")
_SPREADS: Final = ("std", "stddev", "sigma", "variance", "var")
_MOST_LISTED: Final = 6


def check_channel(block: str, channel: Channel, found: Findings, *, kind: str = "") -> None:
    """Everything about the values of one channel.

    Args:
        block: its name in findings.
        channel: read from its file here, and not kept in memory.
        found: where findings go; one of each thread.
        kind: of an uncertainty: `std`, `variance`, …
    """
    # What reading brings into memory goes away with the copy.
    channel = channel.uncached()
    with found.guard(block, rule=_rule_of_size(block, channel)):
        if isinstance(channel, TextChannel):
            _check_text(channel)
            found.advance(channel.nbytes)
        elif isinstance(channel, RaggedChannel):
            _check_ragged(block, channel, found)
        elif isinstance(channel, VideoChannel):
            _check_video(block, channel, found)
        else:
            _check_dense(block, channel, found, kind)


def _rule_of_size(block: str, channel: Channel) -> str | None:
    """Flat lanes and residuals have size rules of their own."""
    stored = channel.source
    if stored is None or stored.nbytes == channel.nbytes or isinstance(channel, RaggedChannel):
        return None
    if block in ("reward", "done", "terminated", "truncated"):
        return "W-END-1"
    return "W-RES-2" if block.startswith("residual/") else None


@dataclass
class _Seen:
    """What windows have shown so far."""

    by_dimension: bool
    low: Any = None
    """The extremes of each dimension, if these are examined one by one."""
    high: Any = None
    not_a_number: int = 0
    infinite: int = 0
    first_step: int = -1
    wrong_dimensions: Any = False
    negative: int = 0
    first_negative: int = -1
    lowest: float = 0.0

    def take(self, numbers: NDArray[Any], first: int, *, is_float: bool) -> None:
        """Extremes and values that are not finite of steps [n, D] from `first` on."""
        if not self.by_dimension and not is_float:
            return
        axis = 0 if self.by_dimension else None
        # NaN and infinity show in the extremes: one look at them spares one at every value.
        low, high = np.min(numbers, axis=axis), np.max(numbers, axis=axis)
        if is_float and not (np.isfinite(low).all() and np.isfinite(high).all()):
            wrong = ~np.isfinite(numbers)
            missing = int(np.count_nonzero(np.isnan(numbers)))
            self.not_a_number += missing
            self.infinite += int(np.count_nonzero(wrong)) - missing
            if self.first_step < 0:
                self.first_step = first + int(wrong.any(axis=1).argmax())
            self.wrong_dimensions = self.wrong_dimensions | wrong.any(axis=0)
            low, high = np.fmin.reduce(numbers, axis=axis), np.fmax.reduce(numbers, axis=axis)
        if self.by_dimension:
            self.low = low if self.low is None else np.fmin(self.low, low)
            self.high = high if self.high is None else np.fmax(self.high, high)

    def take_negative(self, numbers: NDArray[Any], first: int) -> None:
        """Values below 0 of steps from `first` on."""
        negative = numbers < 0
        if negative.any():
            if not self.negative:
                self.first_negative = first + int(negative.any(axis=1).argmax())
            self.negative += int(np.count_nonzero(negative))
            self.lowest = min(self.lowest, float(np.fmin.reduce(numbers, axis=None)))


def _check_dense(block: str, channel: Channel, found: Findings, kind: str) -> None:
    options, length = found.options, channel.length
    shape = channel.step_shape
    size = prod(shape)
    frames = is_frames(channel)
    seen = _Seen(by_dimension=size <= options.most_dimensions and not frames)
    channel.check_claims()  # before arrays are made for the claimed number of steps
    if not length or not size:
        return
    same, blank = np.zeros((2, length if frames else 0), np.bool_)
    for start, stop in channel.step_ranges(options.window_bytes):
        # One frame of the window before, so that neighbours across the border are compared, too.
        first = max(start - 1, 0) if frames else start
        values = np.ascontiguousarray(channel.read_steps(first, stop)).reshape(stop - first, size)
        if frames:
            rows = values.view(np.uint8)
            sample = _sample(rows)
            same[first : stop - 1] = _all_equal(rows[1:], rows[:-1], sample[1:] == sample[:-1])
            sample = _sample(values)
            blank[first:stop] = _all_equal(values, values[:, :1], sample == sample[:, :1])
        numbers = channel.dtype_name.as_numbers(values)
        with np.errstate(all="ignore"):
            seen.take(numbers, first, is_float=channel.dtype_name.is_float)
            if kind in _SPREADS:
                seen.take_negative(numbers, first)
        found.advance((stop - start) * channel.step_bytes)
    where = ""
    if seen.first_step >= 0 and shape and not frames:
        where = f", in {_list_dimensions(np.flatnonzero(seen.wrong_dimensions), shape)}"
    _add_not_finite(block, channel, seen, length * size, where, found)
    is_long = length >= options.constant_steps
    if seen.by_dimension and is_long and block.partition("/")[0] in _LANES_OF_DIMENSIONS:
        _add_constant(block, channel, seen, found)
    if frames:
        _add_frozen(block, same[:-1], found)
    if blank.any():
        count, first = int(np.count_nonzero(blank)), int(blank.argmax())
        message = f"{count} of {length} frames have the same value everywhere, the first at step "
        found.add("blank_frames", block, f"{message}{first}", first, count)
    if seen.negative:
        count, first = seen.negative, seen.first_negative
        message = f"{counted(count, 'value')} of {kind!r} below 0, the first at step {first}, "
        message += f"the lowest {seen.lowest:.6g}"
        advice = f"a {kind} is 0 or more: check whether the model gives its logarithm"
        found.add("negative_uncertainty", block, message, first, count, advice=advice)


def _sample(rows: NDArray[Any]) -> NDArray[Any]:
    picked = np.linspace(0, rows.shape[1] - 1, _SAMPLED).astype(np.int64)
    return rows[:, picked]


def _all_equal(
    left: NDArray[Any], right: NDArray[Any], sampled: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """For each row, whether both arrays are equal in it; the second may have one column.

    A sample decides for most rows; only the others are compared as a whole.
    """
    equal: NDArray[np.bool_] = np.logical_and.reduce(sampled, axis=1)
    chosen = np.flatnonzero(equal)
    step = max(1, _COMPARED_BYTES // (left.shape[1] * left.itemsize))
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        equal[part] = (left[part] == right[part]).all(axis=1)
    return equal


# --- findings


def _add_not_finite(
    block: str, channel: Channel, seen: _Seen, total: int, where: str, found: Findings
) -> None:
    count = seen.not_a_number + seen.infinite
    if not count:
        return
    parts = ((seen.not_a_number, "NaN"), (seen.infinite, "infinite"))
    said = " and ".join(f"{number} {word}" for number, word in parts if number)
    message = f"{said} of {total} values, the first at step {seen.first_step}{where}"
    severity: Severity = "warning"
    advice = "drop or fill these steps: one such value makes a training loss NaN"
    if channel.modality in _HOLES:
        severity, advice = "note", "mask these pixels or points before training"
    step = seen.first_step
    found.add("not_finite", block, message, step, count, advice=advice, severity=severity)


def _add_constant(block: str, channel: Channel, seen: _Seen, found: Findings) -> None:
    low = np.atleast_1d(seen.low)
    constant = low == np.atleast_1d(seen.high)
    dead = constant & (low == 0)
    for code, chosen in (("dead_dimension", dead), ("constant_dimension", constant & ~dead)):
        which = np.flatnonzero(chosen)
        if not which.size:
            continue
        what = "always 0"
        if code == "constant_dimension":
            value = f"{float(low[which[0]]):g}"
            what = f"constant at {value}" if which.size == 1 else f"constant (the first at {value})"
        if not channel.step_shape:
            subject = "the value is"
        elif which.size == low.size:
            subject = f"all {low.size} dimensions are"
        else:
            subject = f"{which.size} of {low.size} dimensions {'is' if which.size == 1 else 'are'}"
            what += f": {_list_dimensions(which, channel.step_shape)}"
        # Indices and counters are often 0 for a whole episode; measured quantities are not.
        measured = code == "dead_dimension" and channel.dtype_name.is_float
        message = f"{subject} {what}, over {channel.length} steps"
        severity: Severity = "warning" if measured else "note"
        found.add(code, block, message, count=int(which.size), severity=severity)


def _add_frozen(block: str, same: NDArray[np.bool_], found: Findings) -> None:
    edges = np.diff(np.concatenate(([False], same, [False])).astype(np.int8))
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    lengths = stops - starts + 1  # n equal neighbours are n + 1 equal frames
    long = lengths > found.options.frozen_run
    if not long.any():
        return
    starts, lengths = starts[long], lengths[long]
    first, worst, frozen = int(starts[0]), int(lengths.argmax()), int(lengths.sum())
    message = (
        f"{frozen} of {same.size + 1} frames stand still in {counted(lengths.size, 'run')} of "
    )
    message += (
        f"identical frames, the first from step {first} on, the longest {int(lengths[worst])} "
    )
    message += f"frames from step {int(starts[worst])} on"
    found.add("frozen_frames", block, message, first, frozen)


def _list_dimensions(which: NDArray[np.intp], shape: Sequence[int]) -> str:
    """Some dimensions of a step, in words."""
    at = np.stack(np.unravel_index(which[:_MOST_LISTED], tuple(shape)), axis=1).tolist()
    shown = ", ".join(str(place[0] if len(shape) == 1 else place) for place in at)
    more = f" and {which.size - _MOST_LISTED} more" if which.size > _MOST_LISTED else ""
    return f"dimension{'' if which.size == 1 else 's'} {shown}{more}"


# --- video


def _check_video(block: str, channel: VideoChannel, found: Findings) -> None:
    _ = channel.index
    try:
        _check_dense(block, channel, found, "")
    except (MissingExtra, UnknownCodec) as error:
        message = f"its frames are not examined: {error.problem}"
        found.add("not_decoded", block, message, advice=error.hint)


# --- ragged and text


def _check_ragged(block: str, channel: RaggedChannel, found: Findings) -> None:
    offsets = channel.offsets
    item_bytes = max(channel.step_bytes, 1)
    size = prod(channel.step_shape)
    seen = _Seen(by_dimension=False)
    most = max(1, found.options.window_bytes // item_bytes)
    start = 0
    while start < channel.length and size:
        # As many steps as fit, or one.
        stop = int(np.searchsorted(offsets, offsets[start] + most, side="right")) - 1
        stop = min(max(stop, start + 1), channel.length)
        values = np.concatenate(channel.read_steps(start, stop)).reshape(-1, size)
        if len(values):
            numbers = channel.dtype_name.as_numbers(values)
            with np.errstate(all="ignore"):
                seen.take(numbers, int(offsets[start]), is_float=channel.dtype_name.is_float)
        found.advance(len(values) * item_bytes)
        start = stop
    # So far the first item; what is wanted is its step.
    seen.first_step = int(np.searchsorted(offsets, seen.first_step, side="right")) - 1
    _add_not_finite(block, channel, seen, int(offsets[-1]) * size, "", found)


def _check_text(channel: TextChannel) -> None:
    """W-RAG-4 for all strings at once; one by one only to name the wrong one."""
    values, starts = channel.values, channel.offsets[:-1]
    starts = starts[starts < len(values)]
    try:
        values.tobytes().decode()
        is_text = not bool(((values[starts] & 0xC0) == 0x80).any())
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        channel.read_steps(0, channel.length)
