"""CRC-32C, and the CRC of a whole from the CRCs of its parts."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from fastcrc import crc32 as _crc32

# Polynomials over GF(2) are kept bit-reversed, as the checksum is: the highest bit is x^0.
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31


# The function itself: a call more would cost as much as the checksum of a small entry.
crc32c = _crc32.iscsi
"""CRC-32C of the data; pass the previous result as `initial` to go on."""


def combine(first: int, second: int, second_length: int) -> int:
    """The CRC of two pieces of data together, from the CRC of each.

    Lets threads check their part of an entry while it is still in the processor's cache.
    """
    return _multiply(_shift(second_length), first) ^ second


@lru_cache(maxsize=64)
def _shift(length: int) -> int:
    """x to the power of 8 × length, modulo the polynomial: what so many more bytes do to a CRC."""
    result, square = _ONE, _ONE >> 8  # x^0 and x^8
    while length:
        if length & 1:
            result = _multiply(square, result)
        square = _multiply(square, square)
        length >>= 1
    return result


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials modulo the CRC's."""
    product = 0
    bit = _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product
