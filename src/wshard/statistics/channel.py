"""What the numbers of one channel are like, and scaling them by it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.dtypes import DType
from wshard.statistics.distribution import KEPT_VALUES, Distribution
from wshard.statistics.grouping import bins_of
from wshard.statistics.moments import joined_spread
from wshard.statistics.scaling import QUANTILES_SCALED_BY, Scaling, check_mode
from wshard.values import as_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["ChannelStats", "merge_all", "widest"]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelStats:
    """Statistics of a channel.

    Arrays have the shape of a step, with 1 for axes whose numbers share a statistic: `[14]` for a state of 14
    numbers, `[1, 1, 3]` for pictures `[height, width, 3]`. What is not finite is counted and else left out; where
    nothing is finite, the others are NaN.
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
    distributions: tuple[Distribution, ...]
    """What other quantiles and those of several data sets are taken from, group by group."""

    @classmethod
    def of(
        cls,
        dtype: DType,
        shape: tuple[int, ...],
        groups: tuple[int, ...],
        *,
        moments: tuple[NDArray[np.float64], NDArray[np.float64]],
        ends: tuple[NDArray[Any], NDArray[Any]],
        counts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
        distributions: Sequence[Distribution],
        quantiles: Sequence[float],
    ) -> ChannelStats:
        """From flat arrays, one number for each group.

        Args:
            dtype: of the channel.
            shape: of one step.
            groups: the shape of the statistics.
            moments: means and standard deviations.
            ends: smallest and largest numbers.
            counts: how many are finite, NaN and infinite.
            distributions: of all numbers.
            quantiles: shares.
        """
        is_empty = counts[0] == 0
        wide: list[NDArray[Any]] = [
            each.astype(np.float64 if dtype.is_float or is_empty.any() else widest(dtype))
            for each in ends
        ]
        floats = [np.where(is_empty, np.nan, each) for each in moments]
        wide = [np.where(is_empty, np.nan, each) if is_empty.any() else each for each in wide]
        low, high = wide
        most = KEPT_VALUES if bins_of(dtype, len(is_empty)) is None else 1 << 16
        count, nan, inf = (each.reshape(groups) for each in counts)
        mean, std = (each.reshape(groups) for each in floats)
        return cls(
            dtype=dtype,
            shape=shape,
            count=count,
            nan=nan,
            inf=inf,
            mean=mean,
            std=std,
            min=low.reshape(groups),
            max=high.reshape(groups),
            quantiles={
                share: _quantile(share, distributions, low, high).reshape(groups)
                for share in quantiles
            },
            distributions=tuple(one.reduced(most) for one in distributions),
        )

    def quantile(self, share: float) -> NDArray[np.float64]:
        """The numbers below which a share of all lies; one of `quantiles`, or near it."""
        if share in self.quantiles:
            return self.quantiles[share]
        return _quantile(share, self.distributions, self.min, self.max)

    def scaling(self, mode: str = "mean_std") -> Scaling:
        """The linear map that brings the numbers to a common range.

        Args:
            mode: `"mean_std"`: mean 0 and deviation 1. `"min_max"`: from -1 to 1. `"quantile"`: what lies
                between 1 % and 99 % of all, from -1 to 1. `"none"`: as they are.
        """
        check_mode(mode)
        if mode == "mean_std":
            return Scaling.of(self.mean, self.std, self.dtype, self.shape)
        if mode == "none":
            return Scaling.of(
                np.zeros_like(self.mean), np.ones_like(self.std), self.dtype, self.shape
            )
        if mode == "min_max":
            low, high = self.min.astype(np.float64), self.max.astype(np.float64)
        else:
            low, high = (self.quantile(share) for share in QUANTILES_SCALED_BY)
        return Scaling.of(low / 2 + high / 2, high / 2 - low / 2, self.dtype, self.shape)

    def normalize(self, values: ArrayLike, mode: str = "mean_std") -> NDArray[Any]:
        """Numbers of this channel in a common range, as float32; float64 stays.

        Args:
            values: `[..., *shape]`.
            mode: as for `scaling`.
        """
        return self.scaling(mode).forward(as_array(values))

    def denormalize(self, values: ArrayLike, mode: str = "mean_std") -> NDArray[Any]:
        """The way back, for what comes out of a model.

        Args:
            values: `[..., *shape]`.
            mode: what the model was trained with.
        """
        return self.scaling(mode).back(as_array(values))

    def merged(self, other: ChannelStats) -> ChannelStats:
        """Of the numbers of both.

        Raises:
            InvalidArgument: they are of different kinds of channels.
        """
        if (self.dtype, self.shape, self.mean.shape) != (
            other.dtype,
            other.shape,
            other.mean.shape,
        ):
            raise InvalidArgument(
                "statistics of different kinds of channels cannot be merged",
                expected=f"{self.dtype} {list(self.shape)}",
                found=f"{other.dtype} {list(other.shape)}",
            )
        both = (self, other)
        mean, std = joined_spread(*((s.count, _known(s.mean), _known(s.std)) for s in both))
        shares = sorted({*self.quantiles, *other.quantiles})
        flat = {
            name: [getattr(s, name).reshape(-1) for s in both]
            for name in ("count", "nan", "inf", "min", "max")
        }
        return ChannelStats.of(
            self.dtype,
            self.shape,
            self.mean.shape,
            moments=(mean.reshape(-1), std.reshape(-1)),
            # NaN where one knows nothing: then it is the other's.
            ends=(np.fmin(*flat["min"]), np.fmax(*flat["max"])),
            counts=(sum(flat["count"]), sum(flat["nan"]), sum(flat["inf"])),
            distributions=[
                Distribution.joined(pair)
                for pair in zip(self.distributions, other.distributions, strict=True)
            ],
            quantiles=shares,
        )

    def __repr__(self) -> str:
        per = list(self.mean.shape)
        return f"<ChannelStats of {self.dtype} {list(self.shape)}, each {per}>"


def _quantile(
    share: float, distributions: Iterable[Distribution], low: NDArray[Any], high: NDArray[Any]
) -> NDArray[np.float64]:
    """Of each group, in the shape of the ends."""
    low, high = low.astype(np.float64), high.astype(np.float64)
    if share in (0, 1):
        return high if share else low
    found = np.array([one.quantiles([share])[0] for one in distributions]).reshape(low.shape)
    # A number that stands for others may lie anywhere among them, but not outside of all numbers.
    within: NDArray[np.float64] = np.clip(found, low, high)
    return within


def widest(dtype: DType) -> type[np.integer[Any]]:
    """What the ends of whole numbers are kept in."""
    return np.uint64 if dtype is DType.UINT64 else np.int64


def _known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Zero where nothing is known: it counts for nothing."""
    return np.where(np.isnan(values), 0.0, values)


def merge_all(parts: Sequence[ChannelStats]) -> ChannelStats:
    """Of the numbers of all."""
    return reduce(ChannelStats.merged, parts)
