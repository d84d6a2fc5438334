"""Memory of batches is used again, but never while somebody can see it."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from wshard import windows
from wshard.windows import MOST_KEPT, new_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

SHAPE = (3, 1 << 20)
BYTE = np.dtype(np.uint8)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    gc.collect()
    windows._kept.clear()
    yield
    windows._kept.clear()


def address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def kept_bytes() -> int:
    return sum(memory.nbytes for memory in windows._kept)


def test_memory_that_nobody_holds_is_used_again() -> None:
    first = new_array(SHAPE, BYTE)
    place = address(first)
    del first
    assert address(new_array(SHAPE, BYTE)) == place


def test_memory_of_another_size_is_left_for_those_who_want_it() -> None:
    first = new_array(SHAPE, BYTE)
    place = address(first)
    del first
    other = new_array((2, 1 << 20), BYTE)
    again = new_array((1 << 20, 3), BYTE)
    assert address(again) == place
    assert not np.shares_memory(other, again)


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array,
        lambda array: array[1],
        lambda array: array[1:, ::2][0].view(np.int8),
        lambda array: array.reshape(-1).view("<u4"),
        lambda array: array.data,
        lambda array: memoryview(array)[:1],
        lambda array: np.asarray(array[2].data),
        np.from_dlpack,
        lambda array: [array.T][0][5],
    ],
)
def test_memory_that_somebody_sees_in_any_way_is_not_used_again(
    hold: Callable[[NDArray[Any]], Any],
) -> None:
    array = new_array(SHAPE, BYTE)
    array[...] = 7
    held = hold(array)
    place = address(array)
    del array
    other = new_array(SHAPE, BYTE)
    other[...] = 8
    assert address(other) != place
    assert set(np.asarray(held).view(np.uint8).ravel()[:100].tolist()) == {7}
    del held, other
    assert kept_bytes() == 2 * (SHAPE[0] * SHAPE[1] + 64)


def test_what_is_kept_is_bounded() -> None:
    arrays = [new_array((MOST_KEPT // 4 + number,), BYTE) for number in range(6)]
    arrays.clear()
    assert 0 < kept_bytes() <= MOST_KEPT
    del arrays
    large = new_array((MOST_KEPT + 1,), BYTE)
    del large
    assert kept_bytes() == 0


def test_large_arrays_start_at_borders_of_64_bytes() -> None:
    for count in (1 << 14, 1 << 20, (1 << 20) + 3):
        assert address(new_array((count,), BYTE)) % 64 == 0
    assert new_array((4, 2), np.dtype("<f4")).shape == (4, 2)


def test_threads_that_make_and_drop_arrays_do_not_share_them() -> None:
    wrong = []

    def work(mark: int) -> None:
        for _ in range(40):
            array = new_array(SHAPE, BYTE)
            array[:, ::4096] = mark
            if (array[:, ::4096] != mark).any():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    # One that is made while the one before is still held.
    assert kept_bytes() <= 2 * 4 * (SHAPE[0] * SHAPE[1] + 64)
