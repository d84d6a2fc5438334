"""Which windows there are, and drawing some of them: numbers in, places out. Nothing here reads a file."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wshard.replay._episodes import StoredEpisode, StoredEpisodes


class WindowKind(NamedTuple):
    """What kind of windows to draw."""

    length: int
    padding: str = "none"
    next_observations: bool = False
    across_episodes: bool = False


class Lengths:
    """The lengths of all episodes, oldest first. Of one version of the row: make another one after a change."""

    def __init__(self, episodes: StoredEpisodes) -> None:
        row = episodes.row
        self.version = episodes.version
        self.steps = np.fromiter((stored.steps for stored in row), np.int64, len(row))
        self.observed = np.fromiter((stored.observed for stored in row), np.int64, len(row))
        self.rows = np.fromiter((stored.rows for stored in row), np.int64, len(row))
        self._episodes = episodes

    @cached_property
    def following(self) -> NDArray[np.int64]:
        """The place of the next episode of the same stream, or -1."""
        return self._episodes.following()

    @cached_property
    def behind(self) -> NDArray[np.int64]:
        """Rows of all later episodes of the same stream."""
        behind = np.zeros(len(self.rows), np.int64)
        is_first = np.ones(len(self.rows), bool)
        is_first[self.following[self.following >= 0]] = False
        for place in np.flatnonzero(is_first).tolist():
            stream = [place]
            while (place := int(self.following[place])) >= 0:
                stream.append(place)
            rows = self.rows[stream]
            behind[stream] = rows[::-1].cumsum()[::-1] - rows
        return behind

    def usable(self, kind: WindowKind) -> NDArray[np.int64]:
        """How many rows each episode gives to windows."""
        if kind.across_episodes:
            return self.rows
        if kind.next_observations:
            return np.minimum(self.steps, self.observed - 1)
        return self.steps

    def counts(self, kind: WindowKind) -> NDArray[np.int64]:
        """How many windows start in each episode; they start at its first rows."""
        usable = self.usable(kind)
        if kind.across_episodes:
            most = usable + self.behind - kind.length + 1
        elif kind.padding == "none":
            most = usable - kind.length + 1
        else:
            most = usable
        counts: NDArray[np.int64] = np.maximum(np.minimum(most, usable), 0)
        return counts


class Drawn(NamedTuple):
    """Windows that were drawn."""

    episodes: NDArray[np.int64]
    """The place of each one's episode in the row of episodes, oldest first."""
    starts: NDArray[np.int64]
    probability: NDArray[np.float64]


def uniform(random: np.random.Generator, batch: int, counts: NDArray[np.int64]) -> Drawn:
    """Every window is as likely as any other."""
    total = int(counts.sum())
    return _at(random.integers(total, size=batch), np.full(batch, 1 / total), counts)


def recent(
    random: np.random.Generator, batch: int, counts: NDArray[np.int64], half_life: float | None
) -> Drawn:
    """A window is half as likely as the one that follows it by `half_life` windows."""
    if half_life is not None and not half_life > 0:
        raise InvalidArgument("half_life must be above 0", found=half_life)
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
    episodes: Sequence[StoredEpisode],
) -> Drawn:
    """In proportion to the priority of a window's first step: first the episode, then the window in it."""
    weights = [e.weight(n) for e, n in zip(episodes, counts.tolist(), strict=True)]
    ends = np.cumsum(weights)
    total = float(ends[-1])
    if not total > 0:
        raise InvalidArgument("all priorities are 0")
    places = _proportional(random.random(batch), ends)
    starts = np.empty(batch, np.int64)
    probability = np.empty(batch)
    for row, (place, drawn) in enumerate(zip(places.tolist(), random.random(batch), strict=True)):
        episode = episodes[place]
        starts[row] = _proportional(drawn, episode.sums[: counts[place]])
        probability[row] = episode.priorities[starts[row]] / total
    return Drawn(places, starts, probability)


def _at(
    places: NDArray[np.int64], probability: NDArray[np.float64], counts: NDArray[np.int64]
) -> Drawn:
    """Windows by their place in the row of all windows, oldest first."""
    ends = np.cumsum(counts)
    episodes = np.searchsorted(ends, places, side="right").astype(np.int64)
    return Drawn(episodes, places - (ends[episodes] - counts[episodes]), probability)


def _proportional(random: Any, sums: NDArray[np.float64]) -> Any:  # noqa: ANN401 - one number or many
    """Places in proportion to weights with these running sums, of which the last is above 0."""
    places = np.searchsorted(sums, random * sums[-1], side="right")
    # Rounding may bring a draw to the very end.
    return np.minimum(places, np.searchsorted(sums, sums[-1]))
