"""The numbers themselves: not finite, never changing, frozen or blank frames, text that is no text.

Channels are looked at in windows of steps, so memory does not depend on their length. A block that was
compressed in one piece is the exception: it can only be decoded as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard.channels import Modality
from wshard.checks.finding import Findings, counted
from wshard.dtypes import DType, as_numbers
from wshard.ragged import RaggedChannel, TextChannel
from wshard.values import product, step_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from wshard.channels import Channel
    from wshard.checks.finding import ExamineOptions, Severity

__all__ = ["check_channel", "is_frames"]

_FRAMES: Final = (Modality.RGB, Modality.DEPTH, Modality.VIDEO)
# Sensors for which NaN and infinity are the usual word for "nothing there".
_HOLES: Final = (Modality.DEPTH, Modality.POINTCLOUD)
_SMALLEST_FRAME: Final = 8
_SAMPLED: Final = 64
_COMPARED_BYTES: Final = 16 << 20
_LANES_OF_DIMENSIONS: Final = ("signal", "action", "omen")
_SPREADS: Final = ("std", "stddev", "sigma", "variance", "var")
_MOST_LISTED: Final = 6


def check_channel(
    block: str,
    channel: Channel,
    options: ExamineOptions,
    advance: Callable[[int], None],
    *,
    spread: str = "",
) -> Findings:
    """Everything about the values of one channel.

    Args:
        block: what to call it.
        channel: read from its file here, and not kept in memory.
        options: thresholds.
        advance: called with the bytes of each window that is done.
        spread: the type of an uncertainty.
    """
    found = Findings()
    # What reading brings into memory goes away with the copy.
    channel = channel._shallow()
    with found.guard(block, rule=_rule_of_size(block, channel)):
        if isinstance(channel, TextChannel):
            _check_text(channel)
            advance(channel.nbytes)
        elif isinstance(channel, RaggedChannel):
            _check_ragged(block, channel, options, found, advance)
        else:
            _check_dense(block, channel, options, found, advance, spread)
    return found


def _rule_of_size(block: str, channel: Channel) -> str | None:
    """Flat lanes and residuals have size rules of their own."""
    stored = channel._block
    if stored is None or stored.nbytes == channel.nbytes or isinstance(channel, RaggedChannel):
        return None
    if block in ("reward", "done", "terminated", "truncated"):
        return "W-END-1"
    return "W-RES-2" if block.startswith("residual/") else None


def is_frames(channel: Channel) -> bool:
    """Whether each step of a channel is a picture, by what it says or by its shape."""
    if isinstance(channel, RaggedChannel) or len(channel.shape) < 2:
        return False
    if channel.modality in _FRAMES:
        return True
    large = sorted(channel.shape)[-2]
    return channel.modality is None and large >= _SMALLEST_FRAME and product(channel.shape) >= 64


@dataclass
class _Seen:
    """What windows have shown so far."""

    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None
    not_a_number: int = 0
    infinite: int = 0
    first_step: int = -1
    wrong_dimensions: NDArray[np.bool_] | None = None
    negative: int = 0
    first_negative: int = -1
    lowest: float = 0.0


def _check_dense(
    block: str,
    channel: Channel,
    options: ExamineOptions,
    found: Findings,
    advance: Callable[[int], None],
    spread: str,
) -> None:
    size = product(channel.shape)
    frames = is_frames(channel)
    by_dimension = size <= options.most_dimensions and not frames
    seen = _Seen()
    channel.read_steps(0, 0)  # compares sizes before anything is made for as many steps as claimed
    if not channel.length or not size:
        return
    same = np.zeros(channel.length - 1, np.bool_) if frames else None
    blank = np.zeros(channel.length, np.bool_) if frames else None
    for start, stop in step_ranges(channel.length, channel.step_bytes, options.window_bytes):
        # One frame of the window before, so that neighbours across the border are compared, too.
        first = max(start - 1, 0) if frames else start
        values = np.ascontiguousarray(channel.read_steps(first, stop)).reshape(stop - first, size)
        if same is not None and blank is not None:
            same[first : stop - 1] = _same_as_next(values)
            blank[first:stop] = _is_blank(values)
        _take_in(seen, as_numbers(values, channel.dtype), first, channel.dtype, by_dimension)
        if spread in _SPREADS:
            _count_negative(seen, as_numbers(values, channel.dtype), first)
        advance((stop - start) * channel.step_bytes)
    _say_not_finite(block, channel, seen, found)
    lane = block.partition("/")[0]
    steps_enough = channel.length >= options.constant_steps
    if by_dimension and steps_enough and lane in _LANES_OF_DIMENSIONS:
        _say_constant(block, channel, seen, found)
    if same is not None and blank is not None:
        _say_frozen(block, same, options, found)
        _say_blank(block, blank, found)
    if seen.negative:
        found.add(
            "negative_uncertainty",
            f"{counted(seen.negative, 'value')} of {spread!r} below 0, the first at step "
            f"{seen.first_negative}, the lowest {seen.lowest:.6g}",
            block=block,
            step=seen.first_negative,
            count=seen.negative,
            advice=f"a {spread} is 0 or more: check whether the model gives its logarithm",
        )


def _take_in(
    seen: _Seen, numbers: NDArray[Any], first: int, dtype: DType, by_dimension: bool
) -> None:
    if not by_dimension and not dtype.is_float:
        return
    axis = 0 if by_dimension else None
    with np.errstate(all="ignore"):
        # NaN and infinity show in the extremes: one look at them spares one at every value.
        low, high = np.min(numbers, axis=axis), np.max(numbers, axis=axis)
        if dtype.is_float and not (np.isfinite(low).all() and np.isfinite(high).all()):
            _count_not_finite(seen, numbers, first)
            if by_dimension:
                low, high = np.fmin.reduce(numbers, axis=0), np.fmax.reduce(numbers, axis=0)
        if by_dimension:
            seen.low = low if seen.low is None else np.fmin(seen.low, low)
            seen.high = high if seen.high is None else np.fmax(seen.high, high)


def _count_not_finite(seen: _Seen, numbers: NDArray[Any], first: int) -> None:
    wrong = ~np.isfinite(numbers)
    missing = int(np.count_nonzero(np.isnan(numbers)))
    seen.not_a_number += missing
    seen.infinite += int(np.count_nonzero(wrong)) - missing
    if seen.first_step < 0:
        seen.first_step = first + int(wrong.any(axis=1).argmax())
    dimensions = wrong.any(axis=0)
    seen.wrong_dimensions = (
        dimensions if seen.wrong_dimensions is None else seen.wrong_dimensions | dimensions
    )


def _count_negative(seen: _Seen, numbers: NDArray[Any], first: int) -> None:
    with np.errstate(all="ignore"):
        negative = numbers < 0
        count = int(np.count_nonzero(negative))
        if not count:
            return
        if seen.first_negative < 0:
            seen.first_negative = first + int(negative.any(axis=1).argmax())
        seen.negative += count
        seen.lowest = min(seen.lowest, float(np.fmin.reduce(numbers, axis=None)))


def _same_as_next(values: NDArray[Any]) -> NDArray[np.bool_]:
    """For each frame but the last, whether the next one has the same bytes."""
    rows = values.view(np.uint8)
    picked = np.linspace(0, rows.shape[1] - 1, _SAMPLED).astype(np.int64)
    sample = rows[:, picked]
    same: NDArray[np.bool_] = (sample[1:] == sample[:-1]).all(axis=1)
    for part in _parts(np.flatnonzero(same), rows.shape[1]):
        same[part] = (rows[part] == rows[part + 1]).all(axis=1)
    return same


def _is_blank(values: NDArray[Any]) -> NDArray[np.bool_]:
    """For each frame, whether all its values have the same bytes."""
    picked = np.linspace(0, values.shape[1] - 1, _SAMPLED).astype(np.int64)
    sample = values[:, picked]
    blank: NDArray[np.bool_] = (sample == sample[:, :1]).all(axis=1)
    for part in _parts(np.flatnonzero(blank), values[0].nbytes):
        chosen = values[part]
        blank[part] = (chosen == chosen[:, :1]).all(axis=1)
    return blank


def _parts(chosen: NDArray[np.intp], row_bytes: int) -> Iterator[NDArray[np.intp]]:
    step = max(1, _COMPARED_BYTES // row_bytes)
    for start in range(0, len(chosen), step):
        yield chosen[start : start + step]


# --- saying it


def _say_not_finite(block: str, channel: Channel, seen: _Seen, found: Findings) -> None:
    count = seen.not_a_number + seen.infinite
    if not count:
        return
    where = ""
    if seen.wrong_dimensions is not None and channel.shape and not is_frames(channel):
        where = f", in {list_dimensions(np.flatnonzero(seen.wrong_dimensions), channel.shape)}"
    _add_not_finite(block, channel, seen, channel.length * product(channel.shape), where, found)


def _add_not_finite(
    block: str, channel: Channel, seen: _Seen, total: int, where: str, found: Findings
) -> None:
    expected_holes = channel.modality in _HOLES
    parts = [
        f"{count} {word}"
        for count, word in ((seen.not_a_number, "NaN"), (seen.infinite, "infinite"))
        if count
    ]
    severity: Severity = "note" if expected_holes else "warning"
    found.add(
        "not_finite",
        f"{' and '.join(parts)} of {total} values, the first at step {seen.first_step}{where}",
        block=block,
        step=seen.first_step,
        count=seen.not_a_number + seen.infinite,
        severity=severity,
        advice="mask these pixels or points before training"
        if expected_holes
        else "drop or fill these steps: one such value makes a training loss NaN",
    )


def _say_constant(block: str, channel: Channel, seen: _Seen, found: Findings) -> None:
    assert seen.low is not None
    assert seen.high is not None
    with np.errstate(all="ignore"):
        constant = np.atleast_1d(seen.low == seen.high)
        dead = constant & (np.atleast_1d(seen.low) == 0)
    total = constant.size
    for code, chosen, what in (
        ("dead_dimension", dead, "always 0"),
        ("constant_dimension", constant & ~dead, "constant"),
    ):
        which = np.flatnonzero(chosen)
        if not which.size:
            continue
        if code == "constant_dimension":
            value = float(np.atleast_1d(seen.low)[which[0]])
            what += f" at {value:g}" if which.size == 1 else f" (the first at {value:g})"
        if not channel.shape:
            subject = "the value is"
        elif which.size == total:
            subject = f"all {total} dimensions are"
        else:
            subject = f"{which.size} of {total} dimensions {'is' if which.size == 1 else 'are'}"
            what += f": {list_dimensions(which, channel.shape)}"
        # Indices and counters are often 0 for a whole episode; measured quantities are not.
        measured = code == "dead_dimension" and channel.dtype.is_float
        found.add(
            code,
            f"{subject} {what}, over {channel.length} steps",
            block=block,
            count=int(which.size),
            severity="warning" if measured else "note",
            advice="check that the sensor or actuator was connected; leave the dimension out of "
            "normalisation, where its spread of 0 would divide",
        )


def _say_frozen(
    block: str, same: NDArray[np.bool_], options: ExamineOptions, found: Findings
) -> None:
    edges = np.diff(np.concatenate(([False], same, [False])).astype(np.int8))
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    lengths = stops - starts + 1  # n equal neighbours are n + 1 equal frames
    long = np.flatnonzero(lengths > options.frozen_run)
    if not long.size:
        return
    worst = long[int(lengths[long].argmax())]
    first = int(starts[long[0]])
    frozen = int(lengths[long].sum())
    found.add(
        "frozen_frames",
        f"{frozen} of {same.size + 1} frames stand still in {long.size} "
        f"run{'' if long.size == 1 else 's'} of identical frames, the first from step {first} on, "
        f"the longest {int(lengths[worst])} frames from step {int(starts[worst])} on",
        block=block,
        step=first,
        count=frozen,
        advice="check whether the camera hung; cut these steps if actions went on meanwhile",
    )


def _say_blank(block: str, blank: NDArray[np.bool_], found: Findings) -> None:
    which = np.flatnonzero(blank)
    if which.size:
        found.add(
            "blank_frames",
            f"{which.size} of {blank.size} frames have the same value everywhere, the first at step "
            f"{int(which[0])}",
            block=block,
            step=int(which[0]),
            count=int(which.size),
            advice="check whether the camera was connected, lit and uncovered",
        )


def list_dimensions(which: NDArray[np.intp], shape: Sequence[int]) -> str:
    """Which dimensions of a step, in words."""
    shown = [
        str(int(flat))
        if len(shape) == 1
        else str([int(at) for at in np.unravel_index(int(flat), tuple(shape))])
        for flat in which[:_MOST_LISTED]
    ]
    more = f" and {which.size - _MOST_LISTED} more" if which.size > _MOST_LISTED else ""
    return f"dimension{'' if which.size == 1 else 's'} {', '.join(shown)}{more}"


# --- ragged and text


def _check_ragged(
    block: str,
    channel: RaggedChannel,
    options: ExamineOptions,
    found: Findings,
    advance: Callable[[int], None],
) -> None:
    offsets = channel.offsets
    items, item_bytes = int(offsets[-1]), max(channel.step_bytes, 1)
    size = product(channel.shape)
    seen = _Seen()
    step = max(1, options.window_bytes // item_bytes)
    for start in range(0, items, step):
        stop = min(start + step, items)
        values = np.ascontiguousarray(channel._items(start, stop)).reshape(stop - start, size)
        if size:
            _take_in(seen, as_numbers(values, channel.dtype), start, channel.dtype, False)
        advance((stop - start) * item_bytes)
    if seen.not_a_number + seen.infinite:
        # So far the first item; what is wanted is its step.
        seen.first_step = int(np.searchsorted(offsets, seen.first_step, side="right")) - 1
        _add_not_finite(block, channel, seen, items * size, "", found)


def _check_text(channel: TextChannel) -> None:
    """W-RAG-4 for all strings at once; one by one only to name the one that is wrong."""
    offsets = channel.offsets
    values = channel.values
    starts = offsets[:-1]
    starts = starts[starts < len(values)]
    try:
        values.tobytes().decode()
        is_text = not bool(((values[starts] & 0xC0) == 0x80).any())
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        channel.read_steps(0, channel.length)
