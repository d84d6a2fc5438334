"""Which sample stands at which position of an epoch: pure functions from positions to sample numbers.

An order is asked for any positions, in any sequence, by anybody; nothing is kept between the calls that
an answer could depend on. What is asked must be below the length: the plan sees to that.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np

from shardpack.permutation import Permutation, mixed_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["FollowingOrder", "GlobalOrder", "Order", "ShardOrder", "Shuffle", "StoredOrder"]

Shuffle = Literal["global", "shards", "none", "stream"]

# Keys of different use must differ even for the same seed and epoch.
_FOR_SAMPLES: Final = 1
_FOR_SHARDS: Final = 2
_FOR_GROUPS: Final = 3

# A batch lies in one group of shards, or across the border of two; more are kept for several readers.
_GROUPS_KEPT: Final = 8


class Order(Protocol):
    """Sample numbers by position in one epoch."""

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]: ...


class StoredOrder:
    """No shuffle: position and sample number are the same."""

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return positions.copy()


class FollowingOrder:
    """No shuffle, and the numbers of an epoch follow those of the one before.

    For data sets with an order of their own over all epochs, such as mixtures.
    """

    def __init__(self, length: int, epoch: int) -> None:
        self._start = epoch * length

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return positions + self._start


class GlobalOrder:
    """Every sample may come anywhere."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self._permutation = Permutation(length, mixed_key(seed, epoch, _FOR_SAMPLES))

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._permutation(positions)


class ShardOrder:
    """Shards in random order, and samples in random order within a few neighbouring shards.

    The shuffled shards are cut into groups of `buffer_shards`; the samples of a group are shuffled
    together. So a reader needs one group at a time, and two at the border, whoever asks for what.
    """

    def __init__(self, sizes: Sequence[int], buffer_shards: int, seed: int, epoch: int) -> None:
        in_storage = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(np.asarray(sizes, np.int64), out=in_storage[1:])
        shuffled = Permutation(len(sizes), mixed_key(seed, epoch, _FOR_SHARDS))(
            np.arange(len(sizes), dtype=np.int64)
        )
        # Where each shard starts if the shards are laid out in their shuffled order, and the end.
        self._bounds = np.zeros_like(in_storage)
        np.cumsum(np.diff(in_storage)[shuffled], out=self._bounds[1:])
        # From a place in that layout to the number of the sample there.
        self._shift = in_storage[shuffled] - self._bounds[:-1]
        self._groups = np.append(self._bounds[:-1:buffer_shards], self._bounds[-1])
        self._key = mixed_key(seed, epoch, _FOR_GROUPS)
        self._kept: OrderedDict[int, Permutation] = OrderedDict()

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        # Of several that start at the same place all but the last are empty: "right" finds that one.
        group = self._groups.searchsorted(positions, "right") - 1
        place = np.empty_like(positions)
        if positions.size and (group[0] == group).all():
            self._fill(int(group[0]), positions, place, slice(None))
        else:
            by_group = np.argsort(group, kind="stable")
            numbers, starts = np.unique(group[by_group], return_index=True)
            for number, rows in zip(numbers, np.split(by_group, starts[1:]), strict=False):
                self._fill(int(number), positions, place, rows)
        shard = self._bounds.searchsorted(place, "right") - 1
        place += self._shift[shard]
        return place

    def _fill(
        self,
        group: int,
        positions: NDArray[np.int64],
        place: NDArray[np.int64],
        rows: NDArray[np.int64] | slice,
    ) -> None:
        start = int(self._groups[group])
        place[rows] = self._permutation(group)(positions[rows] - start) + start

    def _permutation(self, group: int) -> Permutation:
        kept = self._kept.get(group)
        if kept is None:
            size = int(self._groups[group + 1] - self._groups[group])
            kept = Permutation(size, mixed_key(self._key, group))
            # Two threads may both do this: they make the same one.
            self._kept[group] = kept
            while len(self._kept) > _GROUPS_KEPT:
                self._kept.popitem(last=False)
        return kept
