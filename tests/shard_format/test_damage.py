"""Damaged files: every cut and every flipped byte gives a ShardError or the data that was there.

A flip of stored bytes, names or index fields may make an entry unreadable or hide its name; it must
never change what a name returns, and never raise anything that is not a ShardError. Fields without
influence on the content (reserved bytes, hints, the historical flags) may change freely.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from typing import TYPE_CHECKING

import pytest

from shard_format import ShardError, ShardReader
from shard_format.errors import BadMagic, Truncated
from tests.each import for_each
from tests.shard_format.support import VALID_VECTORS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LARGE = next(path for path in VALID_VECTORS if path.stem == "entries_10000")
SMALL = [path for path in VALID_VECTORS if path != LARGE]
# Above this size, flips of data bytes are sampled: one in so many that the run stays short.
FULLY_FLIPPED = 2048
FLIPS = (0xFF, 0x01)


@cache
def contents(path: Path) -> dict[str, bytes]:
    """What the undamaged file holds, without the entries that have no checksum to protect them."""
    with ShardReader(path.read_bytes()) as reader:
        return {
            info.name: reader.read_entry(info.name)
            for info in reader.infos()
            if info.crc32c is not None
        }


def survives(data: bytearray, expected: dict[str, bytes], names: Iterable[str]) -> str | None:
    """None if opening and reading gives a ShardError or the expected data; else what went wrong."""
    try:
        reader = ShardReader(data)
    except ShardError:
        return None
    for name in names:
        if name not in reader:
            continue
        try:
            found = reader.read_entry(name)
        except ShardError:
            continue
        if found != expected[name]:
            return f"{name!r} reads as {found[:20]!r} instead of {expected[name][:20]!r}"
    return None


def flip_all(
    path: Path, positions: Iterable[int], flips: tuple[int, ...] = FLIPS
) -> list[tuple[int, int, str]]:
    """Flips each position on its own; lists the flips that changed data."""
    data = bytearray(path.read_bytes())
    expected = contents(path)
    wrong: list[tuple[int, int, str]] = []
    for position in positions:
        for flip in flips:
            data[position] ^= flip
            problem = survives(data, expected, expected)
            data[position] ^= flip
            if problem is not None:
                wrong.append((position, flip, problem))
    return wrong


def index_end(path: Path) -> int:
    return ShardReader(path.read_bytes()).header.string_table_offset


@for_each("path", VALID_VECTORS)
@pytest.mark.slow
def test_a_file_cut_at_any_length_is_refused_as_cut(path: Path) -> None:
    data = memoryview(path.read_bytes())
    accepted = []
    # Every length up to some entries, then every 61st and the last one.
    near = min(len(data), FULLY_FLIPPED)
    for length in (*range(near), *range(near, len(data), 61), len(data) - 1):
        try:
            ShardReader(data[:length])
        except Truncated:
            continue
        accepted.append(length)
    assert accepted == []


@for_each("path", SMALL)
def test_a_file_with_bytes_behind_its_end_is_refused(path: Path) -> None:
    for more in (b"\0", b"SHRD", bytes(100)):
        with pytest.raises(ShardError) as caught:
            ShardReader(path.read_bytes() + more)
        assert caught.value.code == "trailing_data"


# `make test` flips bytes of every twelfth file, `make test-all` those of all.
FEW = SMALL[::12]
OTHERS = [path for path in SMALL if path not in FEW]


@for_each("path", FEW)
def test_a_flipped_header_or_index_byte_is_an_error_or_harmless(path: Path) -> None:
    assert flip_all(path, range(index_end(path))) == []


@for_each("path", FEW)
@pytest.mark.slow
def test_a_flipped_byte_of_names_or_data_is_an_error_or_harmless(path: Path) -> None:
    assert flip_names_and_data(path) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@for_each("path", OTHERS)
def test_a_flipped_byte_of_any_other_vector_is_an_error_or_harmless(path: Path) -> None:
    assert flip_all(path, range(index_end(path))) == []
    assert flip_names_and_data(path) == []


def flip_names_and_data(path: Path) -> list[tuple[int, int, str]]:
    start, end = index_end(path), path.stat().st_size
    step = max(1, (end - start) // FULLY_FLIPPED)
    if step > 1:
        step |= 1  # odd: meets all positions of structures whose size is a power of two
    wrong = []
    for flip in FLIPS:  # in turn: all bits, and the lowest bit
        wrong += flip_all(path, range(start, end, 2 * step), (flip,))
        start += step
    return wrong


def test_a_flip_in_the_magic_is_named_as_such() -> None:
    data = bytearray(SMALL[0].read_bytes())
    for position in range(4):
        data[position] ^= 0x20
        with pytest.raises(BadMagic):
            ShardReader(bytes(data))
        data[position] ^= 0x20


def check_large(
    positions: Iterable[int], flips: tuple[int, ...] = FLIPS
) -> list[tuple[int, int, str]]:
    """Flips in the index of the large vector; looks at the touched entry and its neighbours."""
    data = bytearray(LARGE.read_bytes())
    expected = contents(LARGE)
    names = list(expected)
    wrong: list[tuple[int, int, str]] = []
    for position in positions:
        row = max(0, min((position - 64) // 48, len(names) - 1))
        near = names[max(0, row - 1) : row + 2]
        for flip in flips:
            data[position] ^= flip
            problem = survives(data, expected, near)
            data[position] ^= flip
            if problem is not None:
                wrong.append((position, flip, problem))
    return wrong


@pytest.mark.slow
def test_a_flip_in_a_large_header_or_index_is_an_error_or_harmless() -> None:
    assert check_large(range(64)) == []
    # 97 has no factor in common with 48: every field of a row is met many times.
    assert check_large(range(64, index_end(LARGE), 97), flips=(0xFF,)) == []


@pytest.mark.slow
def test_a_flip_in_a_large_string_table_is_an_error_or_harmless() -> None:
    expected = contents(LARGE)
    names = list(expected)
    data = bytearray(LARGE.read_bytes())
    with ShardReader(data) as reader:
        start, end = reader.header.string_table_offset, reader.header.data_section_offset
        name_offsets = reader.index["name_offset"].tolist()
    assert name_offsets == sorted(name_offsets)
    for position in range(start, end, 7):
        # Most flips keep the names ASCII; the search for a name that is not UTF-8 takes its time.
        flip = 0x01 if position % 97 else 0xFF
        data[position] ^= flip
        row = bisect_right(name_offsets, position - start) - 1
        assert survives(data, expected, names[max(0, row - 1) : row + 2]) is None, position
        data[position] ^= flip
