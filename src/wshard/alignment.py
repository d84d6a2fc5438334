"""Alignment of channels with their own clocks: which entries belong to which times.

Times are int64 nanoseconds. `match` compares the clocks and looks at no values, so that only the entries
that are needed have to be read:

    matched = match(camera_times_ns, step_times_ns, "nearest", tolerance_ns=20_000_000)
    start, stop = needed_range(matched)
    frames = take(camera[start:stop], matched, offset=start)

Nothing here reads files; functions are pure and results do not share memory with their arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

import numpy as np

from shard_format.errors import InvalidArgument, check_choice, shorten
from wshard._channels import Channel
from wshard._lanes import not_found
from wshard._values import as_times

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Item = TypeVar("Item")

__all__ = [
    "METHODS",
    "SORT_CLOCK",
    "Aligned",
    "AlignedChannel",
    "Match",
    "Method",
    "check_unit",
    "match",
    "method_for",
    "needed_range",
    "take",
    "unit_mistake",
]

Method = Literal["nearest", "previous", "exact", "linear"]

METHODS: Final = ("nearest", "previous", "exact", "linear")

SORT_CLOCK: Final = (
    "sort the entries: `order = np.argsort(channel.timestamps_ns, kind='stable')`, then `channel.data, "
    "channel.timestamps_ns = channel.data[order], channel.timestamps_ns[order]`, and save the episode; a channel "
    "without a clock of its own has the times of the steps: sort all channels by ep.timestamps_ns; "
    "`wshard doctor FILE` names the clocks that run backwards"
)
"""How to mend a clock that runs backwards."""
# Units that people take for nanoseconds, and how many of these they have.
_UNITS: Final = {1_000: "microseconds", 1_000_000: "milliseconds", 1_000_000_000: "seconds"}

_INT64_MAX = (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
# 2 MiB as 64-bit floats: rows that are interpolated together.
_TILE_VALUES = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Which entry of a channel belongs to each of M target times. Made by `match`."""

    indices: NDArray[np.int64]
    """The entry for each target; for `linear` the one at or before it. −1 where not valid."""
    weights: NDArray[np.float64] | None
    """For `linear`, the share of the entry after `indices`, 0 ≤ weight < 1; None for other methods."""
    residual_ns: NDArray[np.int64]
    """Time of the entry used minus target time; for `linear` of the nearer of the two.

    0 where not valid. Differences that int64 cannot hold are cut to ±(2⁶³ − 1).
    """
    valid: NDArray[np.bool_]
    """Whether the target has an entry."""

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, start: int, stop: int) -> Match:
        """The same for the targets from `start` to `stop`; shares memory with this."""
        return Match(
            self.indices[start:stop],
            None if self.weights is None else self.weights[start:stop],
            self.residual_ns[start:stop],
            self.valid[start:stop],
        )


def match(
    times_ns: ArrayLike,
    targets_ns: ArrayLike,
    method: Method = "nearest",
    tolerance_ns: int | None = None,
) -> Match:
    """Finds the entry of a channel for each target time.

    - `nearest`: the entry nearest in time. Of two at the same distance the earlier; of several with the same
      time the first.
    - `previous`: the last entry at or before the target, of several with the same time the last.
    - `exact`: the first entry of exactly that time.
    - `linear`: the entries around the target and their weights. A target on an entry takes the last of
      that time alone; one outside the range of times has none.

    Args:
        times_ns: When each entry of the channel was taken; may repeat, must not run backwards.
        targets_ns: Times that are asked for, in any order.
        method: One of the four above.
        tolerance_ns: A target is valid only if the entry used (for `linear`: the nearer of the two) is
            at most this far away. None for any distance.

    Raises:
        InvalidArgument: times are not one row of integers or run backwards; the method is unknown; the
            tolerance is negative, or above 0 for `exact`.
    """
    times, targets = as_times(times_ns, "times_ns"), as_times(targets_ns, "targets_ns")
    limit = _tolerance(tolerance_ns, method)
    backwards = times[1:] < times[:-1]
    if backwards.any():
        at = int(backwards.argmax()) + 1
        raise InvalidArgument(
            f"times_ns run backwards at index {at}",
            expected=f"{times[at - 1]} or later",
            found=f"{times[at]}",
            hint=SORT_CLOCK,
        )
    weights = None
    if not times.size:
        found = np.full(targets.shape, -1, np.int64)
        weights = np.zeros(targets.shape) if method == "linear" else None
    elif method == "nearest":
        found = _nearest(times, targets)
    elif method == "exact":
        first = times.searchsorted(targets, side="left")
        there = times[np.minimum(first, times.size - 1)] == targets
        found = np.where(there, first, -1)
    else:  # the last entry at or before each target, −1 if no entry is that early
        found = times.searchsorted(targets, side="right") - 1
        if method == "linear":
            found[targets > times[-1]] = -1
            weights = _weights(times, targets, found)
    return _matched(times, targets, found.astype(np.int64, copy=False), weights, limit)


def unit_mistake(times_ns: NDArray[np.int64], span_ns: tuple[int, int]) -> tuple[str, str] | None:
    """Whether a channel's clock and the steps seem to count time in different units; reads the ends of the clock.

    Args:
        times_ns: the clock of a channel.
        span_ns: when the episode starts and ends, as `Episode.span_ns` returns it.

    Returns:
        What is wrong and how to mend it, in words; None if one does not last about 1000, 10⁶ or 10⁹ times as long as
        the other.
    """
    whole = span_ns[1] - span_ns[0]
    if len(times_ns) < 2 or whole <= 0:
        return None
    covered = int(times_ns.max()) - int(times_ns.min())
    covered += covered // (len(times_ns) - 1)  # the last entry lasts as long as the others
    found = f"its times cover {_duration(covered)} of an episode of {_duration(whole)}"
    for factor, unit in _UNITS.items():
        as_if = f"as if they were {unit}, which are {factor} nanoseconds"
        if whole <= 2 * covered * factor and covered * factor <= 2 * whole:
            return f"{found}, {as_if}", f"channel.timestamps_ns = channel.timestamps_ns * {factor}"
        if covered <= 2 * whole * factor and whole * factor <= 2 * covered:
            as_if = f"as if the steps were in {unit}, which are {factor} nanoseconds"
            mend = f"ep.timestamps_ns = ep.timestamps_ns * {factor}"
            return f"{found}, {as_if}", f"{mend}, or ep.timebase.tick_hz /= {factor} without them"
    return None


def check_unit(
    times_ns: NDArray[np.int64], span_ns: tuple[int, int] | None, otherwise: str
) -> None:
    """Refuses a clock that seems to count time in a different unit than the steps.

    Args:
        times_ns: the clock of a channel.
        span_ns: when the episode starts and ends; None if that is not known.
        otherwise: what to do if the clock is right.

    Raises:
        InvalidArgument: says which unit, and how to mend it.
    """
    mistake = None if span_ns is None else unit_mistake(times_ns, span_ns)
    if mistake is not None:
        problem, mend = mistake
        raise InvalidArgument(
            f"the clock of the channel has a different unit than the episode: {problem}",
            hint=f"run `wshard doctor FILE`; mend it with `{mend}` and save the episode; {otherwise}",
        )


def needed_range(match: Match) -> tuple[int, int]:
    """The entries `start` to `stop` (exclusive) that `take` looks at; (0, 0) if none is needed."""
    used = match.indices[match.valid]
    if not used.size:
        return 0, 0
    last = used if match.weights is None else used + (match.weights[match.valid] > 0)
    return int(used.min()), int(last.max()) + 1


@overload
def take(values: NDArray[Any], match: Match, offset: int = 0) -> NDArray[Any]: ...


@overload
def take(values: Sequence[Item], match: Match, offset: int = 0) -> list[Item | None]: ...


def take(
    values: NDArray[Any] | Sequence[Item], match: Match, offset: int = 0
) -> NDArray[Any] | list[Item | None]:
    """The values at the matched times, one row for each target, in the dtype they have.

    Rows that are not valid are NaN in floats, 0 in integers, False in bool and None in lists.
    Interpolation is in 64-bit floats and stays between the two values; where one of them is NaN, or
    they are infinities of both signs, it gives NaN. A target on an entry takes its bits as they are.

    Args:
        values: An array [N, ...], or a list or tuple with one item for each entry (text, ragged
            arrays), which gives a list.
        match: What `match` returned for the times of these values.
        offset: The index of the first of these values in the channel, after reading `needed_range`
            only.

    Raises:
        InvalidArgument: the method interpolates, and the values are integers, bool or a list; an entry that is needed
            is not among the values; or the values are neither numbers nor a list.
    """
    start, stop = needed_range(match)
    rows = values if isinstance(values, (list, tuple)) else np.asarray(values)
    if isinstance(rows, np.ndarray) and rows.ndim == 0:
        raise InvalidArgument("values have no time axis", expected="shape (N, ...)", found="()")
    if stop and not offset <= start <= stop <= offset + len(rows):
        raise InvalidArgument(
            "values do not hold every entry that is needed",
            expected=f"entries {start} to {stop - 1}",
            found=f"{offset} to {offset + len(rows) - 1}" if len(rows) else "none",
            hint="read what needed_range() says, and give its start as offset",
        )
    if isinstance(rows, np.ndarray):
        return _take_rows(rows, match, offset)
    if match.weights is not None:
        raise _not_interpolated("a list")
    return [
        rows[index - offset] if valid else None
        for index, valid in zip(match.indices.tolist(), match.valid.tolist(), strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class AlignedChannel:
    """The values of one channel at the target times."""

    data: NDArray[Any] | list[Any] = field(repr=False)
    """One row for each target; see `take` for rows that are not valid."""
    valid: NDArray[np.bool_] = field(repr=False)
    """Whether each row has a value."""
    residual_ns: NDArray[np.int64] = field(repr=False)
    """See `Match.residual_ns`."""

    @property
    def max_residual_ns(self) -> int | None:
        """The largest distance in time between a target and its entry; None if no row is valid."""
        used = self.residual_ns[self.valid]
        return max(int(used.max()), -int(used.min())) if used.size else None

    @property
    def mean_abs_residual_ns(self) -> float | None:
        """The mean distance in time between a target and its entry; None if no row is valid."""
        used = self.residual_ns[self.valid]
        return float(np.abs(used.astype(np.float64)).mean()) if used.size else None

    @property
    def invalid(self) -> int:
        """Number of rows without a value."""
        return int(np.count_nonzero(~self.valid))


@dataclass(frozen=True, slots=True, eq=False)
class Aligned(Mapping[str, AlignedChannel]):
    """Channels at common times, as a mapping from names; `str()` is a table of how well they fit."""

    times_ns: NDArray[np.int64] = field(repr=False)
    """The target times."""
    channels: Mapping[str, AlignedChannel]
    """The channels by name."""
    method: Method
    """How entries were chosen."""

    def __getitem__(self, name: str) -> AlignedChannel:
        try:
            return self.channels[name]
        except KeyError:
            problem = f"no channel {shorten(str(name))} was aligned"
            raise not_found(problem, str(name), self.channels) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.channels)

    def __len__(self) -> int:
        return len(self.channels)

    def residuals(self) -> dict[str, dict[str, int | float | None]]:
        """For each channel `max_ns`, `mean_ns` (of the distances) and `invalid` (number of rows)."""
        return {
            name: {
                "max_ns": channel.max_residual_ns,
                "mean_ns": channel.mean_abs_residual_ns,
                "invalid": channel.invalid,
            }
            for name, channel in self.channels.items()
        }

    def __str__(self) -> str:
        table = [("channel", "mean distance", "max distance", "without value")]
        for name, facts in self.residuals().items():
            shown = name if name.isprintable() and len(name) <= 60 else shorten(name)
            missing = f"{facts['invalid']} of {len(self.times_ns)}"
            table.append((shown, _duration(facts["mean_ns"]), _duration(facts["max_ns"]), missing))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [f"{len(self.times_ns)} times, method {self.method}"]
        for name, *cells in table:
            right = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            lines.append("  ".join((name.ljust(widths[0]), *right)))
        return "\n".join(lines)


def _nearest(times: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.int64]:
    after = times.searchsorted(targets, side="left")
    # With one candidate only, both are the same.
    before = np.maximum(after - 1, 0)
    after = np.minimum(after, times.size - 1)
    earlier = _distances(times[before], targets) <= _distances(times[after], targets)
    # `after` is the first entry of its time, `before` the last.
    chosen = np.where(earlier, before, after)
    repeated = np.flatnonzero(earlier & (before > 0) & (times[before - 1] == times[before]))
    chosen[repeated] = times.searchsorted(times[before[repeated]], side="left")
    return chosen


def _weights(
    times: NDArray[np.int64], targets: NDArray[np.int64], left: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How far each target is from entry `left` to the one after it."""
    weights = np.zeros(targets.shape)
    between = np.flatnonzero(left >= 0)
    between = between[times[left[between]] != targets[between]]
    start, end = times[left[between]], times[left[between] + 1]
    share = _distances(start, targets[between]) / _distances(start, end)
    # Of differences beyond 2⁵³ the quotient may be rounded to 1.
    weights[between] = np.minimum(share, _BELOW_ONE)
    return weights


def _matched(
    times: NDArray[np.int64],
    targets: NDArray[np.int64],
    indices: NDArray[np.int64],
    weights: NDArray[np.float64] | None,
    limit: int,
) -> Match:
    """Puts the parts together: residuals, the tolerance, and neutral values where an entry is missing."""
    valid = indices >= 0
    found = np.flatnonzero(valid)
    wanted, used = targets[found], indices[found]
    if weights is not None:
        # The nearer of the two; the right one does not exist where the weight is 0.
        after = np.minimum(used + 1, times.size - 1)
        right = _distances(times[after], wanted) < _distances(times[used], wanted)
        used = np.where(right, after, used)
    distance = _distances(times[used], wanted)
    magnitude = np.minimum(distance, np.uint64(_INT64_MAX)).astype(np.int64)
    residual_ns = np.zeros(targets.shape, np.int64)
    residual_ns[found] = np.where(times[used] < wanted, -magnitude, magnitude)
    too_far = found[distance > np.uint64(limit)]
    valid[too_far] = False
    residual_ns[too_far] = 0
    if weights is not None:
        weights[~valid] = 0
    chosen = np.where(valid, indices, -1).astype(np.int64, copy=False)
    return Match(chosen, weights, residual_ns, valid)


def _distances(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.uint64]:
    """|a − b|. As uint64, the difference of any two int64 fits, and wrapping around gives it."""
    upper = np.maximum(a, b).view(np.uint64)
    lower = np.minimum(a, b).view(np.uint64)
    difference: NDArray[np.uint64] = upper - lower
    return difference


def _take_rows(values: NDArray[Any], match: Match, offset: int) -> NDArray[Any]:
    # The bfloat16 of ml_dtypes is of kind V, as records and raw bytes are.
    if values.dtype.kind not in "biuf" and values.dtype.name != "bfloat16":
        raise InvalidArgument(
            "values are not numbers",
            expected="bool, integers, floats or a list",
            found=f"dtype {values.dtype}",
        )
    fractions = values.dtype.kind not in "biu"
    if match.weights is not None and not fractions:
        raise _not_interpolated(f"{values.dtype}")
    if bool(match.valid.all()):
        rows = values.take(match.indices - offset, axis=0)
    else:
        rows = np.zeros((len(match), *values.shape[1:]), values.dtype)
        rows[match.valid] = values.take(match.indices[match.valid] - offset, axis=0)
        if fractions:
            rows[~match.valid] = np.nan
    if match.weights is not None:
        _interpolate(rows, values, match.indices - offset, match.weights)
    return rows


def _interpolate(
    rows: NDArray[Any],
    values: NDArray[Any],
    indices: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> None:
    """Moves rows, which are the values before each target, towards the values after it."""
    between = np.flatnonzero(weights > 0)
    row_size = max(1, rows[:1].size)
    length = max(1, _TILE_VALUES // row_size)
    for start in range(0, between.size, length):
        part = between[start : start + length]
        share = weights[part].reshape(-1, *[1] * (rows.ndim - 1))
        with np.errstate(all="ignore"):
            before = rows[part].astype(np.float64)
            after = values.take(indices[part] + 1, axis=0).astype(np.float64)
            mixed = before * (1 - share) + after * share
            # Rounding must not leave the range: a constant stays constant.
            low, high = np.minimum(before, after), np.maximum(before, after)
            rows[part] = np.minimum(np.maximum(mixed, low), high).astype(rows.dtype)


def _not_interpolated(found: str) -> InvalidArgument:
    return InvalidArgument(
        "only floats can be interpolated",
        expected="an array of floats",
        found=found,
        hint="use the method 'nearest' or 'previous', or convert the values to floats",
    )


def _tolerance(tolerance_ns: int | None, method: str) -> int:
    check_choice("method", method, METHODS)
    if tolerance_ns is None:
        return _UINT64_MAX
    try:
        limit = operator.index(tolerance_ns)
    except TypeError:
        limit = -1
    if limit < 0 or isinstance(tolerance_ns, bool):
        raise InvalidArgument(
            "tolerance_ns is not valid",
            expected="nanoseconds, an integer of 0 or more",
            found=repr(tolerance_ns),
        )
    if limit and method == "exact":
        raise InvalidArgument(
            "the method 'exact' has no tolerance",
            found=f"tolerance_ns={limit}",
            hint="use 'nearest' with this tolerance",
        )
    return min(limit, _UINT64_MAX)


def _duration(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3f} {unit}"
    return f"{nanoseconds:.0f} ns"


def method_for(channel: Channel, method: Method) -> Method:
    """How `Episode.align` chooses the entries of a channel: only plain floats are interpolated."""
    smooth = type(channel) is Channel and channel.dtype_name.is_float
    return "nearest" if method == "linear" and not smooth else method
