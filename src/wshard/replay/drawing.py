"""Which windows are drawn: numbers of windows in, places out. Nothing here knows files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Drawn(NamedTuple):
    """Windows that were drawn."""

    episodes: NDArray[np.int64]
    """The place of each one's episode in the row of episodes, oldest first."""
    starts: NDArray[np.int64]
    """Its first step."""
    probability: NDArray[np.float64]
    """With which it was drawn."""


class Weighted(Protocol):
    """The priorities of an episode's steps."""

    @property
    def fill(self) -> float:
        """Of every step, if there are no `priorities`."""

    @property
    def priorities(self) -> NDArray[np.float64] | None:
        """Of each step."""

    def weight(self, windows: int) -> float:
        """The sum of the first so many."""


def uniform(random: np.random.Generator, batch: int, counts: NDArray[np.int64]) -> Drawn:
    """Every window is as likely as any other."""
    total = int(counts.sum())
    return _at(random.integers(total, size=batch), np.full(batch, 1 / total), counts)


def recent(
    random: np.random.Generator, batch: int, counts: NDArray[np.int64], half_life: float | None
) -> Drawn:
    """A window is half as likely as the one that follows it by `half_life` windows."""
    if half_life is not None and not half_life > 0:
        raise InvalidArgument("half_life is above 0", found=half_life)
    total = int(counts.sum())
    rate = math.log(2) / (max(1.0, total / 10) if half_life is None else half_life)
    # Ages 0, 1, … are drawn in proportion to exp(-rate * age), by the inverse of their sum.
    everything = -math.expm1(-rate * total)
    drawn = -np.log1p(-random.random(batch) * everything) / rate
    ages = np.minimum(drawn.astype(np.int64), total - 1)
    probability = np.exp(-rate * ages) * -math.expm1(-rate) / everything
    return _at(total - 1 - ages, probability, counts)


def by_priority(
    random: np.random.Generator,
    batch: int,
    counts: NDArray[np.int64],
    episodes: Sequence[Weighted],
) -> Drawn:
    """In proportion to the priority of a window's first step: first the episode, then the window in it."""
    weights = np.array([e.weight(n) for e, n in zip(episodes, counts.tolist(), strict=True)])
    total = float(weights.sum())
    if not total > 0:
        raise InvalidArgument("all priorities are 0")
    places = _proportional(random.random(batch), weights)
    starts = np.empty(batch, np.int64)
    probability = np.empty(batch)
    for row, place in enumerate(places.tolist()):
        own, count = episodes[place].priorities, int(counts[place])
        if own is None:
            starts[row] = random.integers(count)
            probability[row] = episodes[place].fill / total
        else:
            starts[row] = _proportional(random.random(1), own[:count])[0]
            probability[row] = own[starts[row]] / total
    return Drawn(places, starts, probability)


def _at(
    places: NDArray[np.int64], probability: NDArray[np.float64], counts: NDArray[np.int64]
) -> Drawn:
    """Windows by their place in the row of all windows, oldest first."""
    ends = np.cumsum(counts)
    episodes = np.searchsorted(ends, places, side="right").astype(np.int64)
    return Drawn(episodes, places - (ends[episodes] - counts[episodes]), probability)


def _proportional(random: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places in proportion to weights, of which one is above 0."""
    ends = np.cumsum(weights)
    places = np.searchsorted(ends, random * ends[-1], side="right")
    # Rounding may bring a draw to the very end.
    within: NDArray[np.int64] = np.minimum(places, np.flatnonzero(weights)[-1])
    return within
