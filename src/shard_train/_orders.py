"""Which sample is at which position of an epoch: pure functions from positions to sample numbers.

An order can be asked for any positions, in any sequence: no answer depends on an earlier call. Positions must be below the
length; `Plan` checks that.

A global order is a permutation that is never written down: a Feistel network over pairs. It splits a number into
`left * columns + right` and moves each half in turn, modulo its range, by a keyed hash of the other half. Every such round
can be undone, so all rounds together permute the `rows * columns` numbers, whatever the hash is. The rectangle is nearly
square, so at most about √n of its numbers are not below n; a number that lands there goes through the network again
("cycle walking"), which happens to one number in many batches. A half has about √n values, so the hashes are kept in tables
while those are small.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np

from shard_format.cache import BoundedCache
from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "FOR_SAMPLES",
    "MAX_LENGTH",
    "Order",
    "Permutation",
    "ShardOrder",
    "Shuffle",
    "mixed_key",
]

MAX_LENGTH: Final = 1 << 48
"""Halves stay below 2²⁴, so that the product of a half and a 32-bit hash stays below 2⁶⁴."""

# With four, numbers that are one row apart still land at distances that show it; with six they do not.
_ROUNDS: Final = 6
# Up to here the whole order is a table: short Feistel networks are far from reaching all orders.
_LONGEST_TABLE: Final = 4096
# Rows or columns up to which the hashes are kept: six tables of 1 MiB, for 17 thousand million numbers.
_MOST_KEPT: Final = 1 << 17

_WORD: Final = (1 << 64) - 1
# 2⁶⁴ divided by the golden ratio, and the finalizer of a widely used 64-bit generator.
_STEP: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB

_HALF: Final = np.uint64(32)


def mixed_key(*parts: int) -> int:
    """One 64-bit key of several numbers, each below 2⁶⁴; the order of the numbers counts."""
    key = 0
    for part in parts:
        key = _scrambled((key ^ part) + _STEP & _WORD)
    return key


def _scrambled(word: int) -> int:
    word = (word ^ word >> 30) * _MIX_1 & _WORD
    word = (word ^ word >> 27) * _MIX_2 & _WORD
    return word ^ word >> 31


def _hashes(numbers: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """64 bits for each number: those that a generator would draw from a far place for each key."""
    words = numbers + np.uint64(key)
    words *= np.uint64(_STEP)
    words ^= words >> np.uint64(30)
    words *= np.uint64(_MIX_1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_MIX_2)
    return words


class Permutation:
    """A permutation of the numbers 0 to `length - 1`, the same one for the same key everywhere.

    Called with an array of positions, it returns the samples at these positions. It takes memory and time for about
    √length numbers to set up, and a constant time per number to ask. Immutable, safe for threads.
    """

    __slots__ = ("_all", "_columns", "_has_gap", "_keys", "_length", "_rows", "_tables")

    def __init__(self, length: int, key: int) -> None:
        if not 0 <= length <= MAX_LENGTH:
            raise InvalidArgument(
                "too many samples for an order", expected=f"0 to {MAX_LENGTH}", found=length
            )
        self._length = length
        self._all: NDArray[np.int64] | None = None
        if length <= _LONGEST_TABLE:
            drawn = _hashes(np.arange(length, dtype=np.uint64), key)
            self._all = np.argsort(drawn, kind="stable").astype(np.int64, copy=False)
            return
        rows = isqrt(length - 1) + 1
        columns = -(-length // rows)
        self._rows, self._columns = np.uint64(rows), np.uint64(columns)
        self._has_gap = rows * columns > length
        self._keys = [mixed_key(key, number) for number in range(_ROUNDS)]
        self._tables: list[NDArray[np.uint64]] | None = None
        if rows <= _MOST_KEPT:
            # Even rounds move the left half by what the right half, a column, says.
            halves = (np.arange(columns, dtype=np.uint64), np.arange(rows, dtype=np.uint64))
            self._tables = [self._moves(number, halves[number % 2]) for number in range(_ROUNDS)]

    def __len__(self) -> int:
        return self._length

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples at these positions, each of which must be at least 0 and below the length."""
        if self._all is not None:
            return self._all.take(positions)
        found = self._once(positions.view(np.uint64))
        if self._has_gap and found.size:
            while found.max() >= self._length:
                again = np.flatnonzero(found >= np.uint64(self._length))
                found[again] = self._once(found[again])
        return found.view(np.int64)

    def _once(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Once through the network: a permutation of the whole rectangle."""
        left, right = np.divmod(numbers, self._columns)
        tables = self._tables
        for number in range(0, _ROUNDS, 2):
            if tables is not None:
                left += tables[number].take(right.view(np.int64))
            else:
                left += self._moves(number, right)
            # What is below the modulus wraps around to a huge number, which is then not the minimum.
            np.minimum(left, left - self._rows, out=left)
            if tables is not None:
                right += tables[number + 1].take(left.view(np.int64))
            else:
                right += self._moves(number + 1, left)
            np.minimum(right, right - self._columns, out=right)
        left *= self._columns
        left += right
        return left

    def _moves(self, number: int, halves: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """How far a round moves the other half, for these values of this half."""
        moves = _hashes(halves, self._keys[number])
        moves >>= _HALF
        moves *= self._columns if number % 2 else self._rows
        moves >>= _HALF
        return moves


Shuffle = Literal["global", "shards", "none", "stream"]

# Keys of different use must differ even for the same seed and epoch.
FOR_SAMPLES: Final = 1
_FOR_SHARDS: Final = 2
_FOR_GROUPS: Final = 3

# A batch lies in one group of shards, or across the border of two; more are kept for several readers.
_GROUPS_KEPT: Final = 8


class Order(Protocol):
    """Sample numbers by position in one epoch."""

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]: ...


class ShardOrder:
    """Shards in random order, and samples in random order within a few neighbouring shards.

    The shuffled shards are cut into groups of `buffer_shards`; the samples of a group are shuffled
    together. So a reader needs one group at a time, and two at the border.
    """

    def __init__(self, sizes: Sequence[int], buffer_shards: int, seed: int, epoch: int) -> None:
        in_storage = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(np.asarray(sizes, np.int64), out=in_storage[1:])
        shuffled = Permutation(len(sizes), mixed_key(seed, epoch, _FOR_SHARDS))(
            np.arange(len(sizes), dtype=np.int64)
        )
        self.groups_of_shards = np.empty(len(sizes), np.int64)
        """The group of each shard, in the order of the groups."""
        self.groups_of_shards[shuffled] = np.arange(len(sizes)) // buffer_shards
        # Where each shard starts if the shards are laid out in their shuffled order, and the end.
        self._bounds = np.zeros_like(in_storage)
        np.cumsum(np.diff(in_storage)[shuffled], out=self._bounds[1:])
        # From a place in that layout to the number of the sample there.
        self._shift = in_storage[shuffled] - self._bounds[:-1]
        self._groups = np.append(self._bounds[:-1:buffer_shards], self._bounds[-1])
        self._key = mixed_key(seed, epoch, _FOR_GROUPS)
        self._kept: BoundedCache[int, Permutation] = BoundedCache(count=_GROUPS_KEPT)

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
        size = int(self._groups[group + 1] - self._groups[group])
        return self._kept.get_or_make(group, lambda: Permutation(size, mixed_key(self._key, group)))
