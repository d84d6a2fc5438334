"""Going through the numbers of a channel, piece by piece and episode by episode."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wshard.dtypes import DType, as_numbers
from wshard.statistics.channel import ChannelStats
from wshard.statistics.distribution import Distribution
from wshard.statistics.grouping import bins_of, group_rows, group_shape
from wshard.statistics.moments import Moments
from wshard.statistics.sketch import Sketches
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Accumulator"]

# From so many groups on, one count of all is faster than one for each.
_FEW_GROUPS = 16


class Accumulator:
    """What is known about a channel so far.

    The result depends on the order in which numbers come, and on nothing else.

    Args:
        dtype: of the channel.
        shape: of one step.
    """

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self._dtype = dtype
        self._shape = shape
        self._groups = group_shape(dtype, shape)
        groups = product(self._groups)
        bins = bins_of(dtype, groups)
        self._kept: _Kept = _Counted(groups, bins) if bins is not None else _Sampled(groups)

    def add(self, values: NDArray[Any]) -> None:
        """Takes in steps: `[steps, ...]`, as they are read."""
        numbers = as_numbers(values, self._dtype)
        self._kept.add(group_rows(numbers, self._groups))

    def join(self, other: Accumulator) -> None:
        """Takes in what another knows about the same channel, as if its numbers came now."""
        self._kept.join(other._kept)

    def finish(self, quantiles: Sequence[float]) -> ChannelStats:
        """The statistics."""
        return self._kept.finish(self._dtype, self._shape, self._groups, quantiles)


class _Kept(Protocol):
    def add(self, table: NDArray[Any]) -> None: ...

    def join(self, other: Any) -> None: ...  # noqa: ANN401 - another of the same class

    def finish(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        groups: tuple[int, ...],
        quantiles: Sequence[float],
    ) -> ChannelStats: ...


class _Sampled:
    """Numbers of which there may be any: their moments, and samples of them."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._moments: Moments | None = None
        self._sketches: Sketches | None = None

    def add(self, table: NDArray[Any]) -> None:
        # What NumPy sorts and compares fast; also a copy, as tables may be views of a file.
        table = table.astype(np.float32 if table.dtype == np.float16 else table.dtype)
        moments = Moments.of(table)
        if self._moments is None or self._sketches is None:
            self._moments, self._sketches = moments, Sketches(self._groups, table.dtype)
        else:
            self._moments.add(moments)
        self._sketches.add(table)

    def join(self, other: _Sampled) -> None:
        if other._moments is None or other._sketches is None:
            return
        if self._moments is None or self._sketches is None:
            self._moments, self._sketches = other._moments, other._sketches
        else:
            self._moments.add(other._moments)
            self._sketches.join(other._sketches)

    def finish(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        groups: tuple[int, ...],
        quantiles: Sequence[float],
    ) -> ChannelStats:
        if self._moments is None or self._sketches is None:
            self.add(np.zeros((0, self._groups), np.float64))
        moments, sketches = self._moments, self._sketches
        assert moments is not None
        assert sketches is not None
        return ChannelStats.of(
            dtype,
            shape,
            groups,
            moments=(moments.mean, moments.std),
            ends=(moments.low, moments.high),
            counts=(moments.counts, moments.nans, moments.infs),
            distributions=sketches.distributions(),
            quantiles=quantiles,
        )


class _Counted:
    """Numbers of 8 or 16 bits: how often each occurs."""

    def __init__(self, groups: int, bins: int) -> None:
        self._counts: NDArray[np.int64] = np.zeros((groups, bins), np.int64)

    def add(self, table: NDArray[Any]) -> None:
        groups, bins = self._counts.shape
        bits = table.view(np.uint8 if bins == 1 << 8 else np.uint16)
        if groups <= _FEW_GROUPS:
            for group in range(groups):
                # Told so, as `bincount` takes long to find out that bytes are whole numbers.
                found = np.bincount(bits[:, group].astype(np.intp), minlength=bins)
                self._counts[group] += found
        else:
            places = bits + np.arange(groups, dtype=np.intp) * bins
            found = np.bincount(places.reshape(-1), minlength=groups * bins)
            self._counts += found.reshape(groups, bins)

    def join(self, other: _Counted) -> None:
        self._counts += other._counts

    def finish(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        groups: tuple[int, ...],
        quantiles: Sequence[float],
    ) -> ChannelStats:
        bins = self._counts.shape[1]
        bits = np.arange(bins, dtype=np.uint8 if bins == 1 << 8 else np.uint16)
        numbers = bits.view(np.uint8 if dtype is DType.BOOL else dtype.numpy_dtype)
        order = np.argsort(numbers)
        values = numbers[order].astype(np.int64)
        found = []
        for counts in self._counts[:, order]:
            occurs = counts > 0
            found.append(Distribution(values[occurs], counts[occurs]))
        spreads = [_exact_spread(one) for one in found]
        totals = np.array([one.total for one in found], np.int64)
        none = np.zeros(len(found), np.int64)
        return ChannelStats.of(
            dtype,
            shape,
            groups,
            moments=(
                np.array([mean for mean, _ in spreads]),
                np.array([std for _, std in spreads]),
            ),
            ends=(
                np.array([one.values[0] if len(one.values) else 0 for one in found], np.int64),
                np.array([one.values[-1] if len(one.values) else 0 for one in found], np.int64),
            ),
            counts=(totals, none, none),
            distributions=found,
            quantiles=quantiles,
        )


def _exact_spread(counted: Distribution) -> tuple[float, float]:
    """Mean and deviation, rounded once."""
    values, counts = counted.values.tolist(), counted.counts.tolist()
    total = sum(counts)
    if not total:
        return 0.0, 0.0
    first = sum(value * count for value, count in zip(values, counts, strict=True))
    second = sum(value * value * count for value, count in zip(values, counts, strict=True))
    return first / total, math.sqrt((total * second - first * first) / (total * total))
