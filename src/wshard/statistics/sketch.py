"""Quantiles of more numbers than can be kept: sorted samples that stand for more and more numbers each.

Numbers are collected until there are `size` of a column. Sorted, they are a sample of weight 1. Two samples of the same
weight become one of twice the weight: they are merged, and every other number is kept, by turns the even and the odd ones. Nothing is
drawn at random, so the same numbers in the same order always give the same result.

Making one sample of two of weight w moves no number by more than w places. Of n numbers at most n / (2 size) places are lost
on each of log2(n / size) levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard.statistics.distribution import Distribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Sketches", "sample_size"]

_SIZES: Final = ((64, 4096), (1024, 1024))


def sample_size(columns: int) -> int:
    """Numbers in a sample: fewer where many columns need samples."""
    return next(size for most, size in _SIZES if columns <= most)


class _Samples:
    """The samples of one column, by weight."""

    __slots__ = ("_is_odd", "_levels")

    def __init__(self) -> None:
        self._levels: list[NDArray[Any] | None] = []
        self._is_odd: list[bool] = []

    def push(self, sample: NDArray[Any], level: int) -> None:
        """Takes a sample of weight 2^level."""
        while True:
            while level >= len(self._levels):
                self._levels.append(None)
                self._is_odd.append(False)
            waiting = self._levels[level]
            if waiting is None:
                self._levels[level] = sample
                return
            both = np.concatenate((waiting, sample))
            both.sort(kind="stable")
            sample = both[int(self._is_odd[level]) :: 2].copy()
            self._levels[level] = None
            self._is_odd[level] = not self._is_odd[level]
            level += 1

    def listed(self) -> list[tuple[int, NDArray[Any]]]:
        """Levels with their samples."""
        return [(level, found) for level, found in enumerate(self._levels) if found is not None]


class Sketches:
    """What is kept of the numbers of a table, column by column.

    Exact up to the size of a sample. What is not finite is left out.

    Args:
        columns: how many.
        dtype: of the tables.
    """

    def __init__(self, columns: int, dtype: np.dtype[Any]) -> None:
        self._size = sample_size(columns)
        self._tables: list[NDArray[Any]] = []
        self._rows = 0
        self._rest: list[NDArray[Any]] = [np.zeros(0, dtype)] * columns
        self._samples = [_Samples() for _ in range(columns)]

    def add(self, table: NDArray[Any]) -> None:
        """Takes in `[numbers, columns]`, which must not change afterwards."""
        self._tables.append(table)
        self._rows += len(table)
        if self._rows >= self._size:
            self._sort_in()

    def join(self, other: Sketches) -> None:
        """Takes in what another has kept of the same columns."""
        for column, samples in enumerate(other._samples):
            for level, sample in samples.listed():
                self._samples[column].push(sample, level)
            if len(other._rest[column]):
                self._sort_column(column, other._rest[column])
        for table in other._tables:
            self.add(table)

    def _sort_in(self) -> None:
        columns = np.ascontiguousarray(np.concatenate(self._tables).T)
        self._tables, self._rows = [], 0
        is_clean = None
        if columns.dtype.kind == "f":
            is_clean = np.isfinite(columns).all(axis=1)
        for number, column in enumerate(columns):
            if is_clean is not None and not is_clean[number]:
                column = column[np.isfinite(column)]
            self._sort_column(number, column)

    def _sort_column(self, number: int, values: NDArray[Any]) -> None:
        if len(self._rest[number]):
            values = np.concatenate((self._rest[number], values))
        whole = len(values) - len(values) % self._size
        for start in range(0, whole, self._size):
            self._samples[number].push(np.sort(values[start : start + self._size]), 0)
        # A copy: a view would keep all the others in memory.
        self._rest[number] = values[whole:].copy()

    def distributions(self) -> list[Distribution]:
        """What is known of each column."""
        if self._tables:
            self._sort_in()
        found = []
        for rest, samples in zip(self._rest, self._samples, strict=True):
            parts = [(0, rest), *samples.listed()]
            counts = [np.full(len(part), 1 << level, np.int64) for level, part in parts]
            values = np.concatenate([part for _, part in parts])
            found.append(Distribution.of(values.astype(np.float64), np.concatenate(counts)))
        return found
