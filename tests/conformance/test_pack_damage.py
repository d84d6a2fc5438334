"""Vectors of shards with a byte changed or an end cut off: an error or the same content, never another one.

tests/shardpack/test_damage.py does this with what the writer makes; here are the shards that it does not make, and
those where places and keys are easily confused.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shardpack
from shard_format import ShardError
from shardpack import Record, ShardPackReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VECTORS = Path(__file__).parents[2] / "spec" / "vectors" / "valid_packs"
FEW = (
    "alignment_1",
    "colliding_keys",
    "metadata_empty",
    "more_padding",
    "reserved_bytes",
    "unicode",
)
ALL = sorted(path.stem for path in VECTORS.glob("*.shardpack") if path.stat().st_size <= 4096)

# Where a record starts, its key, its metadata and its entries.
Seen = tuple[int, str, str, dict[str, bytes]]


def seen(record: Record) -> Seen:
    return record.offset, record.key, repr(record.metadata), record.read_all()


def seen_of(records: Callable[[], Iterable[Record]]) -> list[Seen]:
    """What can be read of records, up to the first that is refused."""
    found: list[Seen] = []
    with contextlib.suppress(ShardError):
        found.extend(map(seen, records()))
    return found


def assert_error_or_same(data: bytes, original: list[Seen]) -> None:
    streamed = seen_of(lambda: shardpack.stream(io.BytesIO(data)))
    assert streamed == original[: len(streamed)]
    try:
        reader = ShardPackReader(data)
    except ShardError:
        return
    with reader:
        assert len(reader) == len(original)
        for number, expected in enumerate(original):
            for way in (
                lambda number=number: [reader.record(number)],
                lambda key=expected[1]: [reader.by_key(key)],
            ):
                assert seen_of(way) in ([], [expected])


def flips(data: bytes, masks: tuple[int, ...]) -> Iterable[bytes]:
    changed = bytearray(data)
    for at in range(len(data)):
        for mask in masks:
            changed[at] ^= mask
            yield bytes(changed)
            changed[at] ^= mask


def original_of(name: str) -> tuple[bytes, list[Seen]]:
    data = (VECTORS / f"{name}.shardpack").read_bytes()
    with ShardPackReader(data) as reader:
        return data, [seen(record) for record in reader]


@pytest.mark.parametrize("name", FEW)
def test_every_changed_byte_is_noticed_or_harmless(name: str) -> None:
    data, original = original_of(name)
    assert_error_or_same(data, original)
    for changed in flips(data, (0x01,)):
        assert_error_or_same(changed, original)


@pytest.mark.parametrize("name", ALL)
def test_every_cut_is_noticed(name: str) -> None:
    data, original = original_of(name)
    for length in range(0, len(data), 1 if name in FEW else 29):
        with pytest.raises(ShardError):
            ShardPackReader(data[:length])
        streamed = seen_of(lambda length=length: shardpack.stream(io.BytesIO(data[:length])))  # type: ignore[misc] # bound now
        assert streamed == original[: len(streamed)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_changed_byte_of_every_small_vector_is_noticed_or_harmless(name: str) -> None:
    data, original = original_of(name)
    for changed in flips(data, (0x01, 0xFF)):
        assert_error_or_same(changed, original)
