"""Statistics of channels: the values themselves, and the file that they are saved in."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.atomic import write_file
from shard_format.canonical_json import canonical, parse_object
from shard_format.errors import (
    BadMetadata,
    EntryNotFound,
    InvalidArgument,
    ShardError,
    UnsupportedVersion,
    check_choice,
)
from shard_format.parallel import for_each, thread_count
from shard_format.registry import DEFAULT_LIMITS
from shard_format.transfer import read_anywhere
from wshard.types import DType, as_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "MODES",
    "ChannelStats",
    "Scaling",
    "Stats",
    "channel_fields",
    "group_shape",
    "is_picture",
    "joined_spread",
    "read_stats",
    "save_stats",
    "stats_beside",
]

SUFFIX: Final = ".wshard-stats"
_FORMAT: Final = "wshard-stats"
_VERSION: Final = 3
_COUNTS: Final = ("count", "nan", "inf")
_NUMBERS: Final = ("mean", "std", "min", "max")
_LANES: Final = ("signal/", "action/")

_PICTURE: Final = (DType.UINT8, DType.UINT16)
_MOST_COLOURS: Final = 4
# A step with more numbers than this is a field, a cloud or a wave: one number means nothing by itself.
_MOST_SINGLE: Final = 1024


# --- scaling

MODES: Final = ("mean_std", "min_max", "quantile", "none")
"""How channels can be normalised."""
QUANTILES_SCALED_BY: Final = (0.01, 0.99)

# The distance between 1 and the next number.
_ROUNDING: Final = {
    DType.FLOAT64: 2.0**-52,
    DType.FLOAT32: 2.0**-23,
    DType.FLOAT16: 2.0**-10,
    DType.BFLOAT16: 2.0**-7,
}
# With an offset of no more deviations than this, float32 loses nothing that training would notice.
_SMALL_OFFSET: Final = 16.0
# Few enough numbers that a second pass finds them in the processor's cache.
_NUMBERS_AT_A_TIME: Final = 1 << 16


class Scaling:
    """`(values - offset) / scale`, and back. Made by `ChannelStats.scaling`.

    A scale that is zero, or no larger than the rounding of the stored numbers, becomes 1: a number that never
    changes comes out as 0.

    Args:
        offset: float64, fits the shape of a step as NumPy broadcasts.
        scale: the same.
        dtype: of the channel.
        shape: of one step.
    """

    __slots__ = ("_is_halved", "_offset", "_scale", "dtype", "offset", "scale", "shape")

    def __init__(
        self,
        offset: NDArray[np.float64],
        scale: NDArray[np.float64],
        dtype: DType,
        shape: tuple[int, ...],
    ) -> None:
        # Where nothing is known (NaN), numbers stay as they are.
        known = np.isfinite(offset) & np.isfinite(scale)
        offset = np.where(known, offset, 0.0)
        is_spread = known & (scale > _ROUNDING.get(dtype, 0.0) * np.abs(offset))
        if dtype is not DType.FLOAT64:
            # What comes out is float32, where smaller numbers are none.
            is_spread &= scale >= np.finfo(np.float32).tiny
        scale = np.where(is_spread, scale, 1.0)
        self.offset = offset
        self.scale = scale
        self.dtype = dtype
        self.shape = shape
        is_exact = self.out_dtype == np.float64 or bool(
            (np.abs(offset) > _SMALL_OFFSET * scale).any()
        )
        kind = np.float64 if is_exact else np.float32
        # Near the ends of the range, a difference overflows. The difference of halves does not, and is as exact.
        ends = np.finfo(self.out_dtype)
        self._is_halved = bool((np.abs(offset) > ends.max * ends.eps / 4).any())
        share = 0.5 if self._is_halved else 1.0
        self._offset, self._scale = (
            _over_rows(each * share, shape, kind) for each in (offset, scale)
        )

    def of_spread(self, power: int) -> Scaling:
        """For what measures distances in this channel (power 1), or their squares (power 2)."""
        return Scaling(np.zeros_like(self.offset), self.scale**power, self.dtype, self.shape)

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """What comes out."""
        return np.dtype(np.float64 if self.dtype is DType.FLOAT64 else np.float32)

    def forward(
        self, values: NDArray[Any], out: NDArray[Any] | None = None, threads: int | None = 1
    ) -> NDArray[Any]:
        """Subtracts and divides.

        Args:
            values: `[..., *shape]`.
            out: takes the result; may be `values`. A new array if left out.
            threads: how many at most; None for one per processor.
        """
        steps = self._steps(values)
        if out is None:
            kind = np.float64 if values.dtype == np.float64 else np.float32
            out = np.empty(values.shape, kind)
        results = self._steps(out)
        # Without ml_dtypes, bf16 comes as bits.
        is_bits = self.dtype is DType.BFLOAT16 and values.dtype.kind == "u"

        def scale(start: int) -> None:
            part, result = steps[start : start + at_once], results[start : start + at_once]
            numbers = self.dtype.as_numbers(part) if is_bits else part
            if numbers.dtype.itemsize < result.dtype.itemsize:
                # Nothing is lost, and NumPy is faster when it need not convert and calculate at once.
                result[...] = numbers
                numbers = result
            with np.errstate(all="ignore"):  # NaN and infinity stay what they are
                if self._is_halved:
                    numbers = np.multiply(numbers, 0.5, out=result, casting="same_kind")
                np.subtract(numbers, self._offset, out=result, casting="same_kind")
                np.divide(result, self._scale, out=result, casting="same_kind")

        at_once = max(1, _NUMBERS_AT_A_TIME // max(1, prod(self.shape)))
        for_each(range(0, len(steps), at_once), scale, thread_count(threads, results.nbytes))
        return out

    def back(self, values: NDArray[Any]) -> NDArray[Any]:
        """Multiplies and adds: `[..., *shape]` as it was, in float32 or float64."""
        steps = self._steps(values)
        kind = np.float64 if np.float64 in (values.dtype, self.out_dtype) else np.float32
        with np.errstate(all="ignore"):
            restored: NDArray[Any] = np.multiply(steps, self.scale) + self.offset
            return restored.astype(kind, copy=False).reshape(values.shape)

    def _steps(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values as `[steps, *shape]`, a view."""
        own = len(self.shape)
        if values.ndim < own or values.shape[values.ndim - own :] != self.shape:
            raise InvalidArgument(
                "not values of the channel",
                expected=f"[..., {', '.join(map(str, self.shape))}]",
                found=f"{values.dtype} {list(values.shape)}",
            )
        return values.reshape(prod(values.shape[: values.ndim - own]), *self.shape)


def _over_rows(
    values: NDArray[np.float64], shape: tuple[int, ...], kind: type[np.floating[Any]]
) -> NDArray[Any]:
    """The same for each row of a picture: NumPy takes as long for three numbers as for hundreds."""
    values = values.astype(kind)
    if len(shape) < 2 or any(size != 1 for size in values.shape[:-1]):
        return values
    return np.ascontiguousarray(np.broadcast_to(values, (*(1 for _ in shape[:-2]), *shape[-2:])))


# --- statistics of a channel


def is_picture(dtype: DType, shape: tuple[int, ...]) -> bool:
    """Return whether a step is one image or several: height, width and up to four colours, or colours first."""
    return dtype in _PICTURE and len(shape) >= 3 and min(shape[-1], shape[-3]) <= _MOST_COLOURS


def group_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a channel's statistics, which broadcasts against the shape of a step.

    Each number of a step has statistics of its own. The pixels of an image share them, colour by colour, and so
    do the numbers of a large step.
    """
    if is_picture(dtype, shape):
        if shape[-1] <= _MOST_COLOURS:
            return (*(1 for _ in shape[:-1]), shape[-1])
        return (*(1 for _ in shape[:-3]), shape[-3], 1, 1)
    if prod(shape) <= _MOST_SINGLE:
        return shape
    last = shape[-1] if len(shape) > 1 and shape[-1] <= _MOST_COLOURS else 1
    return (*(1 for _ in shape[:-1]), last)


@dataclass(frozen=True, slots=True, eq=False)
class ChannelStats:
    """Statistics of a channel.

    Arrays have the shape of a step, with 1 for axes whose numbers share a statistic: `[14]` for a state of 14
    numbers, `[1, 1, 3]` for images `[height, width, 3]`. NaN and infinity are counted and otherwise ignored; where
    no number is finite, the statistics are NaN.
    """

    dtype: DType
    """Of the channel."""
    shape: tuple[int, ...]
    """Of one step."""
    count: NDArray[np.int64]
    """Finite numbers."""
    nan: NDArray[np.int64]
    """Numbers that are NaN."""
    inf: NDArray[np.int64]
    """Numbers that are infinite."""
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """The standard deviation of all numbers, divided by their count."""
    min: NDArray[Any]
    max: NDArray[Any]
    quantiles: Mapping[float, NDArray[np.float64]]
    """By share: `quantiles[0.5]` is the median."""

    def quantile(self, share: float) -> NDArray[np.float64]:
        """Return the numbers below which a share of all lies, interpolated between the shares that are known."""
        if share in self.quantiles:
            return self.quantiles[share]
        shares = [0.0, *self.quantiles, 1.0]
        values = [
            self.min.astype(np.float64),
            *self.quantiles.values(),
            self.max.astype(np.float64),
        ]
        above = max(1, bisect_left(shares, share))
        low, high = shares[above - 1], shares[above]
        part = (share - low) / (high - low)
        found: NDArray[np.float64] = values[above - 1] * (1 - part) + values[above] * part
        return found

    def scaling(self, mode: str = "mean_std") -> Scaling:
        """Return the linear map that scales the numbers to a common range.

        Args:
            mode: `"mean_std"`: mean 0 and deviation 1. `"min_max"`: from -1 to 1. `"quantile"`: what lies
                between the 1 % and the 99 % quantile, from -1 to 1. `"none"`: as they are.
        """
        check_choice("mode", mode, MODES)
        if mode == "mean_std":
            return Scaling(self.mean, self.std, self.dtype, self.shape)
        if mode == "none":
            return Scaling(np.zeros_like(self.mean), np.ones_like(self.std), self.dtype, self.shape)
        if mode == "min_max":
            low, high = self.min.astype(np.float64), self.max.astype(np.float64)
        else:
            low, high = (self.quantile(share) for share in QUANTILES_SCALED_BY)
        return Scaling(low / 2 + high / 2, high / 2 - low / 2, self.dtype, self.shape)

    def normalize(self, values: ArrayLike, mode: str = "mean_std") -> NDArray[Any]:
        """Scale numbers of this channel to a common range, as float32; float64 stays.

        Args:
            values: `[..., *shape]`.
            mode: as for `scaling`.
        """
        return self.scaling(mode).forward(as_array(values))

    def denormalize(self, values: ArrayLike, mode: str = "mean_std") -> NDArray[Any]:
        """Scale numbers back, such as the output of a model.

        Args:
            values: `[..., *shape]`.
            mode: what the model was trained with.
        """
        return self.scaling(mode).back(as_array(values))

    def __repr__(self) -> str:
        per = list(self.mean.shape)
        return f"<ChannelStats of {self.dtype} {list(self.shape)}, each {per}>"


def joined_spread(
    one: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]],
    other: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and deviation of two sets of numbers, each given as counts, means and deviations."""
    (count, mean, std), (count2, mean2, std2) = one, other
    total = np.maximum(count + count2, 1)
    share, share2 = count / total, count2 / total
    between = (mean - mean2) * np.sqrt(share * share2)
    spread = np.hypot(np.hypot(std * np.sqrt(share), std2 * np.sqrt(share2)), between)
    # Equal means stay as they are, to the last digit.
    return np.where(mean == mean2, mean, mean * share + mean2 * share2), spread


class Stats(Mapping[str, ChannelStats]):
    """Statistics of the channels of a dataset, by the names that windows use. Made by `compute_stats`."""

    def __init__(
        self,
        channels: Mapping[str, ChannelStats],
        fingerprints: tuple[str, ...] = (),
        episodes: int = 0,
        steps: int = 0,
    ) -> None:
        self._channels = dict(sorted(channels.items()))
        self.fingerprints = fingerprints
        """Of the datasets that the numbers are from."""
        self.episodes = episodes
        """How many were read."""
        self.steps = steps
        """Of all of them."""

    def find(self, name: str) -> ChannelStats | None:
        """Return the statistics of a channel, with or without its lane in front of its name; None if there are none."""
        if name in self._channels:
            return self._channels[name]
        lane = next((lane for lane in _LANES if name.startswith(lane)), None)
        others = [name.removeprefix(lane)] if lane else [lane + name for lane in _LANES]
        return next((self._channels[one] for one in others if one in self._channels), None)

    def __getitem__(self, name: str) -> ChannelStats:
        if name not in self._channels:
            error = EntryNotFound(f"no statistics of a channel {name!r}")
            error.wanted, error.candidates = name, list(self._channels)
            raise error
        return self._channels[name]

    def __contains__(self, name: object) -> bool:
        return name in self._channels

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __repr__(self) -> str:
        return (
            f"<Stats of {self.episodes} episodes, {self.steps} steps: {', '.join(self._channels)}>"
        )


# --- the file


def stats_beside(folder: str | os.PathLike[str]) -> str:
    """Return the path of the statistics of a folder."""
    return os.path.abspath(folder) + SUFFIX


def save_stats(stats: Stats, where: str | os.PathLike[str]) -> str:
    """Write statistics to a file, which appears complete or not at all, and return its path.

    Args:
        stats: what `compute_stats` returned.
        where: the folder of the episodes, for `<folder>.wshard-stats`; or a path.
    """
    path = stats_beside(where) if os.path.isdir(where) else os.fspath(where)
    text = canonical(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "fingerprints": list(stats.fingerprints),
            "episodes": stats.episodes,
            "steps": stats.steps,
            "channels": {name: channel_fields(channel) for name, channel in stats.items()},
        }
    )
    write_file(path, [text + b"\n"], fsync=True)
    return path


def channel_fields(channel: ChannelStats) -> dict[str, Any]:
    """Return the statistics of a channel for JSON; arrays are flat."""
    return {
        "dtype": channel.dtype.value,
        "shape": list(channel.shape),
        **{name: _listed(getattr(channel, name)) for name in (*_COUNTS, *_NUMBERS)},
        "quantiles": {repr(share): _listed(row) for share, row in channel.quantiles.items()},
    }


def _listed(values: NDArray[Any]) -> list[Any]:
    """Return a flat list, with null for NaN, which JSON does not have."""
    flat: list[Any] = values.reshape(-1).tolist()
    return [None if math.isnan(value) else value for value in flat]


def read_stats(path: str) -> Stats | None:
    """Read a file of statistics; None if the file does not exist.

    Raises:
        BadMetadata: the file is damaged, or something else.
    """
    try:
        text = read_anywhere(path, most=DEFAULT_LIMITS.max_json_bytes + 1)
    except FileNotFoundError:
        return None
    try:
        return _from_fields(parse_object(text, "the file", DEFAULT_LIMITS))
    except ShardError as error:
        raise error.located(path=path) from None


def _from_fields(fields: Mapping[str, Any]) -> Stats:
    if fields.get("format") != _FORMAT:
        raise BadMetadata("not a file of statistics", expected=f'"format":"{_FORMAT}"')
    if fields.get("version") != _VERSION:
        raise UnsupportedVersion(
            "statistics of another version",
            expected=_VERSION,
            found=fields.get("version"),
            hint="compute them again",
        )
    fingerprints, channels = fields.get("fingerprints"), fields.get("channels")
    episodes, steps = fields.get("episodes"), fields.get("steps")
    if (
        not isinstance(fingerprints, list)
        or not all(isinstance(one, str) for one in fingerprints)
        or not isinstance(channels, dict)
        or not (isinstance(episodes, int) and episodes >= 0)
        or not (isinstance(steps, int) and steps >= 0)
    ):
        raise BadMetadata("the statistics do not name the data that they describe")
    found = {}
    for name, channel in channels.items():
        try:
            found[name] = _parse_channel(channel)
        except (ShardError, KeyError, TypeError, ValueError, OverflowError) as error:  # noqa: PERF203 - names the channel
            raise BadMetadata(
                f"the statistics of a channel cannot be read: {error}", entry=name
            ) from None
    return Stats(found, tuple(fingerprints), episodes, steps)


def _parse_channel(fields: Mapping[str, Any]) -> ChannelStats:
    dtype = DType(fields["dtype"])
    shape = tuple(fields["shape"])
    if not all(type(size) is int and size > 0 for size in shape):
        raise ValueError("expected a list of sizes as the shape")
    groups = group_shape(dtype, shape)
    arrays: dict[str, NDArray[Any]] = {}
    for name in (*_COUNTS, *_NUMBERS):
        listed = fields[name]
        is_whole = name in _COUNTS or (
            name in ("min", "max") and not dtype.is_float and None not in listed
        )
        wide = np.uint64 if dtype is DType.UINT64 and name not in _COUNTS else np.int64
        arrays[name] = _numbers(listed, wide if is_whole else np.float64)
    if any((arrays[name] < 0).any() for name in (*_COUNTS, "std")):
        raise ValueError("a count or a deviation is negative")
    quantiles = fields["quantiles"]
    if not isinstance(quantiles, dict):
        raise TypeError("expected quantiles by share")
    shares = {float(share): _numbers(row, np.float64) for share, row in quantiles.items()}
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError("a share is outside 0 to 1")
    if {each.size for each in (*arrays.values(), *shares.values())} != {prod(groups)}:
        raise ValueError(f"expected {prod(groups)} numbers of each")
    return ChannelStats(
        dtype=dtype,
        shape=shape,
        **{name: array.reshape(groups) for name, array in arrays.items()},
        quantiles={share: shares[share].reshape(groups) for share in sorted(shares)},
    )


def _numbers(listed: Sequence[Any], kind: type[np.generic]) -> NDArray[Any]:
    """Return a list of JSON as an array; null is NaN."""
    kinds = (int,) if issubclass(kind, np.integer) else (int, float, type(None))
    if not all(type(value) in kinds for value in listed):
        raise ValueError("expected a list of integers" if kinds == (int,) else "expected numbers")
    return np.array([np.nan if value is None else value for value in listed], kind)
