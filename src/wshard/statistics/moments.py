"""Mean and standard deviation that keep their digits, whatever the numbers are like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Moments", "joined_spread"]

# Squares of numbers between these are numbers.
_SAFE: Final = (2.0**-480, 2.0**480)
# The difference to a smaller number than this is never infinite.
_LARGEST_PIVOT: Final = 2.0**900
_HALF_RANGE: Final = 1 << 63


class Moments:
    """What a table of numbers adds up to, column by column.

    All is kept relative to one number of each column, the pivot: a large offset costs no digits, and numbers that are all
    the same have a deviation of exactly zero. Squares are never summed over the whole, so nothing overflows.

    Args:
        columns: how many.
        dtype: of the tables.
    """

    def __init__(self, columns: int, dtype: np.dtype[Any]) -> None:
        self.counts: NDArray[np.int64] = np.zeros(columns, np.int64)
        """Of finite numbers."""
        self.nans: NDArray[np.int64] = np.zeros(columns, np.int64)
        self.infs: NDArray[np.int64] = np.zeros(columns, np.int64)
        self.low: NDArray[Any] = np.zeros(columns, dtype)
        self.high: NDArray[Any] = np.zeros(columns, dtype)
        self.std: NDArray[np.float64] = np.zeros(columns)
        self._pivot: NDArray[Any] = np.zeros(columns, dtype)
        self._mean: NDArray[np.float64] = np.zeros(columns)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Of the finite numbers; zero if there are none."""
        return self._pivot.astype(np.float64) + self._mean

    @classmethod
    def of(cls, table: NDArray[Any]) -> Moments:
        """Of one table `[numbers, columns]` that fits into memory several times."""
        made = cls(table.shape[1], table.dtype)
        finite = np.isfinite(table) if table.dtype.kind == "f" else None
        if finite is None or finite.all():
            if len(table):
                made._take(table, np.full(table.shape[1], len(table)), None)
            return made
        made.nans = np.count_nonzero(np.isnan(table), axis=0)
        counts = np.count_nonzero(finite, axis=0)
        made.infs = len(table) - counts - made.nans
        made._take(table, counts, finite)
        return made

    def _take(
        self, table: NDArray[Any], counts: NDArray[np.int64], finite: NDArray[np.bool_] | None
    ) -> None:
        self.counts = counts
        if finite is None:
            first, low, high = table[0], table.min(axis=0), table.max(axis=0)
        else:
            first = table[finite.argmax(axis=0), np.arange(len(counts))]
            low = np.where(finite, table, np.inf).min(axis=0)
            high = np.where(finite, table, -np.inf).max(axis=0)
            is_empty = counts == 0
            first, low, high = (np.where(is_empty, 0, each) for each in (first, low, high))
        self.low, self.high = (each.astype(table.dtype) for each in (low, high))
        if table.dtype == np.float64:
            first = np.where(np.abs(first) < _LARGEST_PIVOT, first, 0)
        self._pivot = first.astype(table.dtype)
        with np.errstate(invalid="ignore"):
            apart = _difference(table, self._pivot, self.low, self.high)
        if finite is not None:
            apart[~finite] = 0
        unit = _unit_of(apart)
        if unit is not None:
            apart /= unit
        divisor = np.maximum(counts, 1)
        mean = apart.sum(axis=0) / divisor
        apart -= mean
        if finite is not None:
            apart[~finite] = 0
        # What rounding has left in the mean.
        rest = apart.sum(axis=0) / divisor
        squares = np.einsum("ij,ij->j", apart, apart) / divisor
        std = np.sqrt(np.maximum(squares - rest * rest, 0))
        mean += rest
        self._mean, self.std = (mean, std) if unit is None else (mean * unit, std * unit)

    def add(self, other: Moments) -> None:
        """Takes in what other numbers of the same columns add up to."""
        self.nans = self.nans + other.nans
        self.infs = self.infs + other.infs
        is_first = (self.counts == 0) & (other.counts > 0)
        if is_first.any():
            for name in ("low", "high", "std", "_pivot", "_mean"):
                mine, theirs = getattr(self, name), getattr(other, name)
                setattr(self, name, np.where(is_first, theirs, mine))
        is_new = other.counts > 0
        self.low = np.where(is_new, np.minimum(self.low, other.low), self.low)
        self.high = np.where(is_new, np.maximum(self.high, other.high), self.high)
        ends = np.minimum(other._pivot, self._pivot), np.maximum(other._pivot, self._pivot)
        with np.errstate(invalid="ignore"):
            shifted = other._mean + _difference(other._pivot[None], self._pivot, *ends)[0]
        mean, std = joined_spread(
            (self.counts, self._mean, self.std),
            (np.where(is_first, 0, other.counts), shifted, other.std),
        )
        self._mean = np.where(is_first, self._mean, mean)
        self.std = np.where(is_first, self.std, std)
        self.counts = self.counts + other.counts


def joined_spread(
    one: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]],
    other: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of two sets of numbers together, each given as counts, mean and deviation."""
    (count, mean, std), (count2, mean2, std2) = one, other
    total = np.maximum(count + count2, 1)
    share, share2 = count / total, count2 / total
    # Halved before they are subtracted: the difference of two floats may be too large for one.
    half = (mean / 2 - mean2 / 2) * (2 * np.sqrt(share * share2))
    spread = np.hypot(np.hypot(std * np.sqrt(share), std2 * np.sqrt(share2)), half)
    # Equal means stay as they are, to the last digit.
    return np.where(mean == mean2, mean, mean * share + mean2 * share2), spread


def _difference(
    table: NDArray[Any], pivot: NDArray[Any], low: NDArray[Any], high: NDArray[Any]
) -> NDArray[np.float64]:
    """How far numbers are from the pivot; `low` and `high` are the outermost of them."""
    if table.dtype.kind in "iu" and table.dtype.itemsize == 8:
        farthest = max(
            abs(int(end) - int(middle))
            for ends in (low, high)
            for end, middle in zip(ends, pivot, strict=True)
        )
        if farthest < _HALF_RANGE:
            # Whole numbers of 64 bits lose digits as floats; their difference, taken first, does not.
            wrapped = table.view(np.uint64) - pivot.view(np.uint64)
            return wrapped.view(np.int64).astype(np.float64)
    apart: NDArray[np.float64] = table.astype(np.float64)
    apart -= pivot.astype(np.float64)
    return apart


def _unit_of(apart: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Powers of two to measure columns in whose squares would be no numbers; None if all are fine."""
    largest = np.abs(apart).max(axis=0, initial=0)
    if ((largest == 0) | ((largest > _SAFE[0]) & (largest < _SAFE[1]))).all():
        return None
    # One less than the exponent: the unit itself must be a number.
    _, exponents = np.frexp(largest)
    return np.where(largest == 0, 1.0, np.ldexp(1.0, exponents - 1))
