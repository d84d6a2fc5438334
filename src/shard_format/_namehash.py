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

from shard_format._parallel import for_each, thread_count

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
_BLOCK = 16_384


def load_words(table: NDArray[np.uint8], positions: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    """The little-endian integers at any byte positions of the table, as uint64."""
    width = np.dtype(dtype).itemsize
    # A view with a stride of one byte: NumPy gathers unaligned words from it in one pass.
    everywhere: NDArray[Any] = np.ndarray((table.size - width + 1,), dtype, table, 0, (1,))
    return everywhere[positions].astype(np.uint64, copy=False)


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

    def hash_block(start: int) -> None:
        block = slice(start, start + _BLOCK)
        hashes[block] = _hash_equal_lengths(table, offsets[block], length)

    # NumPy works without the GIL: blocks may run side by side.
    for_each(range(0, offsets.size, _BLOCK), hash_block, thread_count(None, hashes.nbytes))


def _rotate(value: U64, bits: int) -> U64:
    left: U64 = value << np.uint64(bits)
    left |= value >> np.uint64(64 - bits)
    return left


def _round(accumulator: U64, word: U64) -> U64:
    return _rotate(accumulator + word * _P2, 31) * _P1


def _merge(hashes: U64, accumulator: U64) -> U64:
    return (hashes ^ _round(np.zeros_like(accumulator), accumulator)) * _P1 + _P4


def _hash_equal_lengths(table: NDArray[np.uint8], offsets: NDArray[np.int64], length: int) -> U64:
    def constant(value: int) -> U64:
        return np.full(offsets.size, value & _M64, np.uint64)

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
                words = load_words(table, offsets + (position + 8 * lane), "<u8")
                lanes[lane] = _round(lanes[lane], words)
            position += 32
        hashes = sum(
            (_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)),
            start=constant(0),
        )
        for lane_value in lanes:
            hashes = _merge(hashes, lane_value)
    else:
        hashes = constant(int(_P5))
    hashes = hashes + np.uint64(length)
    while length - position >= 8:
        words = load_words(table, offsets + position, "<u8")
        hashes = _rotate(hashes ^ _round(np.zeros_like(words), words), 27) * _P1 + _P4
        position += 8
    if length - position >= 4:
        words = load_words(table, offsets + position, "<u4")
        hashes = _rotate(hashes ^ words * _P1, 23) * _P2 + _P3
        position += 4
    while position < length:
        words = load_words(table, offsets + position, "u1")
        hashes = _rotate(hashes ^ words * _P5, 11) * _P1
        position += 1
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes
