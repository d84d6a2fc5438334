"""XXH64 of all names of an index at once.

The stored hashes of a file cannot be trusted (S-NAM-5), and hashing a million names one by one takes
longer than everything else that opening does. Names of one length are hashed together, one NumPy
operation for each step of the algorithm, in blocks that stay in the processor's cache. Groups too
small to pay for that go through the `xxhash` package, which is also what tests compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh64_intdigest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    U64 = NDArray[np.uint64]

# Bytes that must follow the last name in the buffer, so that whole words can be loaded anywhere.
WORD_PADDING: Final = 8

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_M64 = (1 << 64) - 1

_SMALLEST_GROUP = 64
_LONGEST_NAME = 256
# 128 KiB for a column: the temporary arrays stay in the second-level cache.
_BLOCK = 16_384


def load_words(table: NDArray[np.uint8], positions: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    """The little-endian integers at any byte positions of the table, as a new array of uint64."""
    width = np.dtype(dtype).itemsize
    # A view with a stride of one byte: NumPy gathers unaligned words from it in one pass.
    everywhere: NDArray[Any] = np.ndarray((table.size - width + 1,), dtype, table, 0, (1,))
    return everywhere[positions].astype(np.uint64, copy=False)


class _Names:
    """Loads words of names of one length.

    Names of one length usually follow one another at one distance: then a strided view does what
    a gather would, several times faster.
    """

    def __init__(self, table: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._table = table
        self._offsets = offsets
        self.count = offsets.size
        self._stride = int(offsets[1] - offsets[0]) if offsets.size > 1 else 0
        self._regular = self._stride > 0 and bool((np.diff(offsets) == self._stride).all())

    def words(self, position: int, dtype: str) -> U64:
        """A new array: the word at this position of each name."""
        if not self._regular:
            return load_words(self._table, self._offsets + position, dtype)
        start = int(self._offsets[0]) + position
        view: NDArray[Any] = np.ndarray((self.count,), dtype, self._table, start, (self._stride,))
        return view.astype(np.uint64)


def hash_names(
    table: NDArray[np.uint8], offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> U64:
    """XXH64, seed 0, of every name `table[offset : offset + length]`.

    The table must go on for `WORD_PADDING` bytes after the end of the last name.
    """
    hashes = np.empty(offsets.size, np.uint64)
    if not offsets.size:
        return hashes
    length = int(lengths[0])
    if bool((lengths == length).all()):
        # The usual case in large files, such as numbered samples: nothing to sort.
        _hash_group(table, offsets, length, hashes)
        return hashes
    by_length = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[by_length]
    starts = np.flatnonzero(np.diff(sorted_lengths, prepend=-1))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), offsets.size], strict=True):
        rows = by_length[start:stop]
        group = np.empty(stop - start, np.uint64)
        _hash_group(table, offsets[rows], int(sorted_lengths[start]), group)
        hashes[rows] = group
    return hashes


def _hash_group(
    table: NDArray[np.uint8], offsets: NDArray[np.int64], length: int, hashes: U64
) -> None:
    """Fills in the hashes of names that all have the same length."""
    if offsets.size < _SMALLEST_GROUP or length > _LONGEST_NAME:
        data = table.data
        hashes[:] = [xxh64_intdigest(data[at : at + length]) for at in offsets.tolist()]
        return

    for start in range(0, offsets.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        hashes[block] = _hash_equal_lengths(_Names(table, offsets[block]), length)


def _rotate(value: U64, bits: int) -> U64:
    """Rotates in place."""
    spilled = value >> np.uint64(64 - bits)
    value <<= np.uint64(bits)
    value |= spilled
    return value


def _round(word: U64, accumulator: U64 | None = None) -> U64:
    """Works in place on the word; without an accumulator that is zero."""
    word *= _P2
    if accumulator is not None:
        word += accumulator
    word = _rotate(word, 31)
    word *= _P1
    return word


def _stir(hashes: U64, word: U64, bits: int, factor: np.uint64, summand: np.uint64) -> None:
    hashes ^= word
    _rotate(hashes, bits)
    hashes *= factor
    hashes += summand


def _hash_equal_lengths(names: _Names, length: int) -> U64:
    def constant(value: int) -> U64:
        return np.full(names.count, value & _M64, np.uint64)

    position = 0
    if length >= 32:
        lanes = [
            constant(int(_P1) + int(_P2)),
            constant(int(_P2)),
            constant(0),
            constant(-int(_P1)),
        ]
        while length - position >= 32:
            for lane in range(4):
                words = names.words(position + 8 * lane, "<u8")
                lanes[lane] = _round(words, lanes[lane])
            position += 32
        hashes = constant(0)
        for lane_value, bits in zip(lanes, (1, 7, 12, 18), strict=True):
            hashes += _rotate(lane_value.copy(), bits)
        for lane_value in lanes:
            hashes ^= _round(lane_value)
            hashes *= _P1
            hashes += _P4
    else:
        hashes = constant(int(_P5))
    hashes += np.uint64(length)
    while length - position >= 8:
        words = names.words(position, "<u8")
        _stir(hashes, _round(words), 27, _P1, _P4)
        position += 8
    if length - position >= 4:
        words = names.words(position, "<u4")
        words *= _P1
        _stir(hashes, words, 23, _P2, _P3)
        position += 4
    while position < length:
        words = names.words(position, "u1")
        words *= _P5
        _stir(hashes, words, 11, _P1, np.uint64(0))
        position += 1
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes
