"""The permutation behind a global shuffle: exact, the same everywhere, and without visible structure."""

from __future__ import annotations

import pickle
from collections import Counter
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shard_train._orders
from shard_format.errors import InvalidArgument
from shard_train._orders import MAX_LENGTH, Permutation, mixed_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEYS = st.integers(0, 2**64 - 1)


def whole(length: int, key: int) -> NDArray[np.int64]:
    return Permutation(length, key)(np.arange(length, dtype=np.int64))


class TestExactness:
    """Every number once, at every length."""

    @pytest.mark.parametrize("length", [*range(1, 40), 4095, 4096, 4097, 4098, 4160, 4161, 65536])
    def test_every_number_comes_once(self, length: int) -> None:
        assert np.array_equal(np.sort(whole(length, 7)), np.arange(length))

    @given(st.integers(1, 30_000), KEYS)
    @example(30_000, 2**64 - 1)
    def test_every_number_comes_once_for_any_length_and_key(self, length: int, key: int) -> None:
        assert np.array_equal(np.sort(whole(length, key)), np.arange(length))

    @pytest.mark.parametrize("length", [4097, 2**17 + 1, 2**34, 2**34 + 1, 2**40 + 7, MAX_LENGTH])
    def test_long_ones_stay_in_range_and_repeat_nothing(self, length: int) -> None:
        ends = np.arange(2000, dtype=np.int64)
        positions = np.unique(np.concatenate([ends, length // 2 + ends, length - 1 - ends]))
        found = Permutation(length, 11)(positions)
        assert found.min() >= 0
        assert found.max() < length
        assert np.unique(found).size == positions.size
        # Thousands of numbers that are anywhere are in both halves.
        assert 0.45 < (found < length // 2).mean() < 0.55

    def test_the_empty_one_is_empty(self) -> None:
        assert Permutation(0, 1)(np.empty(0, np.int64)).size == 0
        assert Permutation(10**6, 1)(np.empty(0, np.int64)).size == 0

    @pytest.mark.parametrize("length", [-1, MAX_LENGTH + 1])
    def test_lengths_beyond_the_limits_are_refused(self, length: int) -> None:
        with pytest.raises(InvalidArgument, match="too many samples for an order"):
            Permutation(length, 0)


class TestPurity:
    """Nothing but length, key and position counts."""

    @given(st.integers(1, 20_000), KEYS, st.data())
    def test_a_position_has_the_same_answer_in_any_company(
        self, length: int, key: int, data: st.DataObject
    ) -> None:
        asked = data.draw(st.lists(st.integers(0, length - 1), max_size=20))
        positions = np.array(asked, np.int64)
        found = Permutation(length, key)(positions)
        assert np.array_equal(found, whole(length, key)[positions])

    def test_asking_does_not_change_what_was_asked(self) -> None:
        for length in (100, 10_000):
            positions = np.arange(length, dtype=np.int64)
            Permutation(length, 3)(positions)
            assert np.array_equal(positions, np.arange(length))

    def test_positions_may_be_a_view_with_gaps(self) -> None:
        positions = np.arange(10_000, dtype=np.int64)[::-3]
        assert np.array_equal(Permutation(10_000, 3)(positions), whole(10_000, 3)[::-3])

    @given(st.integers(4097, MAX_LENGTH), KEYS, st.data())
    def test_it_is_the_network_that_the_module_describes(
        self, length: int, key: int, data: st.DataObject
    ) -> None:
        positions = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5))
        found = Permutation(length, key)(np.array(positions, np.int64))
        assert found.tolist() == [one_by_one(length, key, position) for position in positions]

    def test_it_is_a_sort_by_hash_if_it_is_short(self) -> None:
        expected = sorted(range(100), key=lambda number: hashed(number, 8))
        assert whole(100, 8).tolist() == expected

    @pytest.mark.parametrize("length", [4097, 10_000, 123_457])
    def test_kept_hashes_and_computed_ones_agree(
        self, length: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = Permutation(length, 5)
        monkeypatch.setattr(shard_train._orders, "_MOST_KEPT", 0)
        computed = Permutation(length, 5)
        assert (kept._tables is None, computed._tables is None) == (False, True)
        positions = np.arange(length, dtype=np.int64)
        assert np.array_equal(kept(positions), computed(positions))

    def test_the_order_is_the_same_in_every_version(self) -> None:
        """Saved states refer to it: these numbers never change."""
        positions = np.arange(6, dtype=np.int64)
        assert Permutation(10, 1)(positions).tolist() == GOLDEN[10]
        assert Permutation(1_000_000, 1)(positions).tolist() == GOLDEN[1_000_000]
        assert Permutation(2**45 + 1, 1)(positions).tolist() == GOLDEN[2**45 + 1]

    def test_pickles(self) -> None:
        for length in (10, 10_000):
            again = pickle.loads(pickle.dumps(Permutation(length, 9)))
            assert np.array_equal(again(np.arange(length)), whole(length, 9))
            assert len(again) == length


GOLDEN = {
    10: [2, 4, 6, 8, 5, 1],
    1_000_000: [494701, 721921, 346362, 255961, 695772, 307520],
    2**45 + 1: [
        *(19496273873308, 32609141026891, 7299325106737),
        *(786028780358, 14383841920277, 11772366620102),
    ],
}


def hashed(number: int, key: int) -> int:
    word = (number + key) * 0x9E3779B97F4A7C15 % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    return (word ^ word >> 27) * 0x94D049BB133111EB % 2**64


def one_by_one(length: int, key: int, position: int) -> int:
    """What stands at a position, in the plainest way."""
    rows = isqrt(length - 1) + 1
    columns = -(-length // rows)
    while True:
        left, right = divmod(position, columns)
        for number in range(6):
            half = left if number % 2 else right
            move = hashed(half, mixed_key(key, number)) >> 32
            if number % 2:
                right = (right + (move * columns >> 32)) % columns
            else:
                left = (left + (move * rows >> 32)) % rows
        position = left * columns + right
        if position < length:
            return position


def deviation(found: NDArray[np.int64], bins: int) -> float:
    """How far counts are from equal ones, in standard deviations of what chance does."""
    counts = np.bincount(found, minlength=bins)
    expected = found.size / bins
    return float((((counts - expected) ** 2 / expected).sum() - bins) / np.sqrt(2 * bins))


class TestMixing:
    """What a good shuffle has none of. Fixed keys: each test gives the same number in every run."""

    LENGTH = 200_003

    @pytest.mark.parametrize("key", [0, 1, 2**63])
    def test_every_part_goes_to_every_part(self, key: int) -> None:
        order = whole(self.LENGTH, mixed_key(key))
        came_from = np.arange(self.LENGTH) * 64 // self.LENGTH
        assert abs(deviation(came_from * 64 + order * 64 // self.LENGTH, 4096)) < 4

    @pytest.mark.parametrize("key", [0, 1, 2**63])
    def test_numbers_that_were_neighbours_or_one_row_apart_are_any_distance_apart(
        self, key: int
    ) -> None:
        order = whole(self.LENGTH, mixed_key(key))
        row = isqrt(self.LENGTH - 1) + 1
        for apart in (1, 2, row - 2, row - 1, row, row + 1, 2 * row):
            distances = (order[apart:] - order[:-apart]) % self.LENGTH
            assert abs(deviation(distances * 64 // self.LENGTH, 64)) < 4.5, apart

    def test_the_lowest_bits_of_neighbours_are_unrelated(self) -> None:
        order = whole(self.LENGTH, mixed_key(5))
        assert abs(deviation(order[:-1] % 8 * 8 + order[1:] % 8, 64)) < 4

    def test_few_numbers_stay_where_they_were(self) -> None:
        stayed = [
            int((whole(10_007, mixed_key(key)) == np.arange(10_007)).sum()) for key in range(100)
        ]
        # One on average, as in a random order; the sum of a hundred is 100 ± 10.
        assert 60 < sum(stayed) < 140

    def test_orders_of_neighbouring_keys_are_unrelated(self) -> None:
        orders = [whole(self.LENGTH, mixed_key(3, epoch)) for epoch in range(4)]
        for first in range(4):
            for second in range(first):
                pairs = orders[first] * 64 // self.LENGTH * 64 + orders[second] * 64 // self.LENGTH
                assert abs(deviation(pairs, 4096)) < 4
                correlation = np.corrcoef(orders[first], orders[second])[0, 1]
                assert abs(correlation) < 4 / np.sqrt(self.LENGTH)

    def test_all_orders_of_four_are_equally_frequent(self) -> None:
        seen = Counter(tuple(whole(4, mixed_key(key)).tolist()) for key in range(6000))
        assert len(seen) == 24
        assert all(abs(count - 250) < 5 * 250**0.5 for count in seen.values())


class TestKeys:
    def test_keys_of_different_numbers_differ(self) -> None:
        keys = {mixed_key(seed, epoch) for seed in range(100) for epoch in range(100)}
        assert len(keys) == 10_000
        assert mixed_key(1, 2) != mixed_key(2, 1)
        assert mixed_key(0) != mixed_key(0, 0)
        assert all(0 <= key < 2**64 for key in keys)
