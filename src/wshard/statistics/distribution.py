"""Values in order, each with how many numbers it stands for: what quantiles are taken from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["KEPT_VALUES", "Distribution"]

KEPT_VALUES: Final = 512
"""What is stored of a distribution that is not counted value by value."""


class Distribution(NamedTuple):
    """How the numbers of one group are distributed."""

    values: NDArray[Any]
    """In order, float64 or integers."""
    counts: NDArray[np.int64]
    """How many numbers each value stands for, at least one."""

    @classmethod
    def of(cls, values: NDArray[Any], counts: NDArray[np.int64]) -> Distribution:
        """Of values in any order."""
        order = np.argsort(values, kind="stable")
        return cls(values[order], counts[order])

    @classmethod
    def joined(cls, parts: Iterable[Distribution]) -> Distribution:
        """Of all numbers of several; equal values become one."""
        listed = list(parts)
        values, places = np.unique(
            np.concatenate([part.values for part in listed]), return_inverse=True
        )
        counts = np.zeros(len(values), np.int64)
        np.add.at(counts, places, np.concatenate([part.counts for part in listed]))
        return cls(values, counts)

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return int(self.counts.sum())

    def at(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """The numbers in these places, counted from 0 in order of size."""
        found: NDArray[Any] = self.values[
            np.searchsorted(np.cumsum(self.counts), places, side="right")
        ]
        return found

    def quantiles(self, shares: Sequence[float]) -> NDArray[np.float64]:
        """The number below which each share of all lies, linear between neighbours; NaN of none."""
        if not len(self.counts):
            return np.full(len(shares), np.nan)
        places = np.asarray(shares, np.float64) * (self.total - 1)
        below = np.floor(places).astype(np.int64)
        low, high = (
            self.at(np.minimum(place, self.total - 1)).astype(np.float64)
            for place in (below, below + 1)
        )
        part = places - below
        with np.errstate(over="ignore", invalid="ignore"):
            between = low + (high - low) * part
        # The difference of two large numbers may have no place in a float.
        return np.where(np.isfinite(between), between, low * (1 - part) + high * part)

    def reduced(self, most: int = KEPT_VALUES) -> Distribution:
        """The same in at most so many values, each standing for the same number of neighbours."""
        if len(self.values) <= most:
            return self
        edges = np.arange(most + 1, dtype=object) * self.total // most
        edges = edges.astype(np.int64)
        middles = (edges[:-1] + edges[1:] - 1) // 2
        return Distribution.joined([Distribution(self.at(middles), np.diff(edges))])
