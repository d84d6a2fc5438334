"""Checksums, hashes and canonical JSON in plain Python.

Written out here rather than imported, so that the vectors do not inherit a mistake of the packages
that the library under test uses.
"""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CASTAGNOLI = 0x82F63B78
_ALL_ONES_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_CASTAGNOLI if value & 1 else 0)
    return value


_CRC_TABLE = tuple(_crc_of_byte(value) for value in range(256))


# Every file is made once and then read by several checks. By digest, so that the data can be freed.
_known_crcs: dict[bytes, int] = {}


def crc32c(data: bytes) -> int:
    digest = hashlib.sha256(data).digest()
    if digest not in _known_crcs:
        state = _ALL_ONES_32
        for byte in data:
            state = (state >> 8) ^ _CRC_TABLE[(state ^ byte) & 0xFF]
        _known_crcs[digest] = state ^ _ALL_ONES_32
    return _known_crcs[digest]


def _apply(columns: list[int], state: int) -> int:
    result = 0
    for bit, column in enumerate(columns):
        if state >> bit & 1:
            result ^= column
    return result


def crc32c_of_zeros(count: int) -> int:
    """CRC-32C of `count` zero bytes, in time that grows with log(count).

    A zero byte changes the state by a linear map over GF(2). The map is kept as the images of the
    32 unit vectors and squared, so a gigabyte costs thirty squarings.
    """
    step = [(1 << bit >> 8) ^ _CRC_TABLE[1 << bit & 0xFF] for bit in range(32)]
    state = _ALL_ONES_32
    while count:
        if count & 1:
            state = _apply(step, state)
        step = [_apply(step, column) for column in step]
        count >>= 1
    return state ^ _ALL_ONES_32


_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK_64


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK_64, 31) * _P1 & _MASK_64


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0."""

    def word(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    at, end = 0, len(data)
    if end >= 32:
        lanes = [(_P1 + _P2) & _MASK_64, _P2, 0, -_P1 & _MASK_64]
        while at + 32 <= end:
            lanes = [_round(lane, word(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        rotations = zip(lanes, (1, 7, 12, 18), strict=True)
        state = sum(_rotate(lane, bits) for lane, bits in rotations)
        for lane in lanes:
            state = ((state ^ _round(0, lane)) * _P1 + _P4) & _MASK_64
    else:
        state = _P5
    state = (state + end) & _MASK_64
    while at + 8 <= end:
        state = (_rotate(state ^ _round(0, word(at, 8)), 27) * _P1 + _P4) & _MASK_64
        at += 8
    if at + 4 <= end:
        state = (_rotate(state ^ word(at, 4) * _P1 & _MASK_64, 23) * _P2 + _P3) & _MASK_64
        at += 4
    for byte in data[at:]:
        state = _rotate(state ^ byte * _P5 & _MASK_64, 11) * _P1 & _MASK_64
    for shift, prime in ((33, _P2), (29, _P3), (32, 1)):
        state = (state ^ state >> shift) * prime & _MASK_64
    return state


def fnv1a64(data: bytes) -> int:
    """What one reference writer stores as name hash when its hash module is not ready."""
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 & _MASK_64
    return state


def step_time(step: int, rate_hz: float) -> int:
    """Nanoseconds from the start of a regular clock, in 64-bit floats (spec/wshard.md, section 5)."""
    return round(step * 1e9 / rate_hz)


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical_number(value: float) -> str:
    """A float as RFC 8785 has it. Python's `repr` gives the right digits in another layout."""
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    count, point = len(text), len(text) + exponent
    if count <= point <= 21:
        shown = text + "0" * (point - count)
    elif 0 < point <= 21:
        shown = f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        shown = f"0.{'0' * -point}{text}"
    else:
        fraction = f".{text[1:]}" if count > 1 else ""
        shown = f"{text[0]}{fraction}e{point - 1:+d}"
    return "-" * sign + shown


def canonical_json(value: object) -> bytes:
    """Canonical JSON.

    Python orders strings by code point, which is the order of their UTF-8 bytes, and escapes just
    what the registry asks for.
    """
    return _canonical_text(value).encode()


def _canonical_text(value: object) -> str:
    if isinstance(value, float):
        return canonical_number(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_canonical_text, value))}]"
    if isinstance(value, dict):
        pairs = (
            f"{json.dumps(k, ensure_ascii=False)}:{_canonical_text(value[k])}"
            for k in sorted(value)
        )
        return f"{{{','.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)


def identity_text(contents: Mapping[str, bytes]) -> bytes:
    """The text of `meta/identity`, version 1, for these entries (spec/shard.md, section 12)."""
    hashes = {n: sha256_hex(data) for n, data in contents.items() if n != "meta/identity"}
    return canonical_json({"entries": hashes, "leaf": "sha256", "v": 1})


def identity_text_2(contents: Mapping[str, bytes], role: int, schema: object = None) -> bytes:
    """The text of version 2; the schema section is an object without fractions, None for none."""
    covered = {"role": role, "schema": sha256_hex(canonical_json(schema or {})), "v": 2}
    return canonical_json(json.loads(identity_text(contents)) | covered)
