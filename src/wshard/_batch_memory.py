"""Memory for the arrays of batches, used again when nobody holds a batch any more.

Memory that is new to the process costs about a tenth of the time in which a batch is decoded into it: the system
clears every page first, and takes them back when the batch is dropped.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard.values import product

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MOST_KEPT", "new_array"]

MOST_KEPT: Final = 128 << 20
"""Bytes that are kept though nobody uses them."""
_ALIGNMENT: Final = 64  # what JAX asks for on processors
_ALIGNED_BYTES: Final = 1 << 14
_WORTH_KEEPING: Final = 1 << 20

# No lock, which a forked child might find held forever, and which a garbage collection in the thread that holds
# it would wait for: single operations on a deque are enough.
_kept: deque[NDArray[np.uint8]] = deque()


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array without values; a large one on a border that libraries want which take it over uncopied."""
    nbytes = product(shape) * dtype.itemsize
    if nbytes < _ALIGNED_BYTES:
        return np.empty(shape, dtype)
    if nbytes < _WORTH_KEEPING:
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    else:
        memory = _lend(nbytes + _ALIGNMENT)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _lend(nbytes: int) -> NDArray[np.uint8]:
    owner = _take(nbytes)
    # Views of an array hold the one that owns the memory, and not those between. This one owns nothing, but is based
    # on what is no array: all views of it hold it, and when it goes, nobody sees the memory any more.
    lent = np.frombuffer(owner.data, np.uint8)
    weakref.finalize(lent, _give_back, owner).atexit = False
    return lent


def _take(nbytes: int) -> NDArray[np.uint8]:
    with suppress(IndexError):  # another thread may be faster
        for _ in range(len(_kept)):
            memory = _kept.popleft()
            if memory.nbytes == nbytes:
                return memory
            _kept.append(memory)
    return np.empty(nbytes, np.uint8)


def _give_back(memory: NDArray[np.uint8]) -> None:
    _kept.append(memory)
    with suppress(IndexError):  # another thread may be faster
        while sum(one.nbytes for one in tuple(_kept)) > MOST_KEPT:
            _kept.popleft()
