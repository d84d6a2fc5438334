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


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow) if path == LARGE else path
        for path in VALID_VECTORS
    ],
    ids=lambda path: path.stem,
)
def test_a_file_cut_at_any_length_is_refused_as_cut(path: Path) -> None:
    data = memoryview(path.read_bytes())
    accepted = []
    for length in range(len(data)):
        try:
            ShardReader(data[:length])
        except Truncated:
            continue
        accepted.append(length)
    assert accepted == []


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_a_file_with_bytes_behind_its_end_is_refused(path: Path) -> None:
    for more in (b"\0", b"SHRD", bytes(100)):
        with pytest.raises(ShardError) as caught:
            ShardReader(path.read_bytes() + more)
        assert caught.value.code == "trailing_data"


# `make test` flips bytes of every twelfth file, `make test-all` those of all.
FLIPPED = [
    path if number % 12 == 0 else pytest.param(path, marks=pytest.mark.slow)
    for number, path in enumerate(SMALL)
]


@pytest.mark.parametrize("path", FLIPPED, ids=lambda path: path.stem)
def test_a_flipped_header_or_index_byte_is_an_error_or_harmless(path: Path) -> None:
    assert flip_all(path, range(index_end(path))) == []


@pytest.mark.parametrize("path", FLIPPED, ids=lambda path: path.stem)
def test_a_flipped_byte_of_names_or_data_is_an_error_or_harmless(path: Path) -> None:
    start, end = index_end(path), path.stat().st_size
    step = max(1, (end - start) // FULLY_FLIPPED)
    if step > 1:
        step |= 1  # odd: meets all positions of structures whose size is a power of two
    assert flip_all(path, range(start, end, step)) == []


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
@pytest.mark.parametrize("first", [0, 11])
def test_a_flip_of_any_field_in_a_large_index_is_an_error_or_harmless(first: int) -> None:
    # 22 and 48 have only the factor 2 in common, and 11 has none: together every byte of a row is met.
    assert check_large(range(first, index_end(LARGE), 22), flips=(0xFF,)) == []


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
