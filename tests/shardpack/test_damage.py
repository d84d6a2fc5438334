"""Damaged shards: every cut and every flipped byte gives a ShardError or what was there before."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

import shardpack
from shard_format.errors import ShardError, Truncated
from shardpack import Record, ShardPackWriter
from tests.shardpack.support import CREATED, RangesOnly, noise, prose

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FLIPS = (0xFF, 0x01)
Content = tuple[dict[str, bytes], dict[str, Any]]


@pytest.fixture(scope="module", params=["none", "zstd", "lz4"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path: Path = tmp_path_factory.mktemp("damage") / "a.shardpack"
    with ShardPackWriter(
        path, compression=request.param, created=CREATED, metadata={"by": "me"}, fsync=False
    ) as writer:
        writer.write("a", {"x.jpg": noise(40), "y.txt": prose(300)}, {"weight": 1})
        writer.write("b", {"x.jpg": noise(40, 1), "y.txt": prose(301)})
        writer.write("ü/c", {})
    return path.read_bytes()


def contents(records: list[Record]) -> dict[str, Content]:
    return {record.key: (record.read_all(), record.metadata) for record in records}


def problem_with(data: bytes | bytearray, expected: dict[str, Content]) -> str | None:
    """None if every way of reading gives an error or the expected content; else what went wrong."""

    def attempt(what: str, read: Callable[[], list[tuple[str | None, Record]]]) -> str | None:
        try:
            pairs = read()
        except ShardError:
            return None
        for wanted, record in pairs:
            try:
                key = record.key
                found = record.read_all(), record.metadata
                views = [bytes(entry.data) for entry in record.file_entries()]
            except ShardError:
                continue
            if (wanted is not None and key != wanted) or found != expected.get(key):
                return f"{what}: {wanted!r} reads as {key!r}, {str(found)[:200]}"
            if views != list(found[0].values()):
                return f"{what}: the views of {key!r} differ"
        return None

    keys = list(expected)
    opened: Any = bytes(data)
    try:
        dataset = shardpack.open(opened)
    except ShardError:
        return None
    problems = [
        *(
            attempt("number", lambda number=number, key=key: [(key, dataset[number])])  # type: ignore[misc] # bound now
            for number, key in enumerate(keys)
        ),
        *(attempt("key", lambda key=key: [(key, dataset[key])]) for key in keys),  # type: ignore[misc] # bound now
        attempt(
            "take", lambda: [(None, r) for r in shardpack.open(RangesOnly(opened)).take([0, 1])]
        ),
        attempt("in order", lambda: [(None, record) for record in dataset]),
    ]
    try:
        if dataset.metadata["user"] != {"by": "me"}:
            return "the metadata changed"
        if len(dataset) != len(expected):
            return "the number of records changed"
    except ShardError:
        pass
    return next((problem for problem in problems if problem), None)


@pytest.mark.slow
def test_every_flipped_byte_is_noticed_or_harmless(shard: bytes) -> None:
    expected = contents(list(shardpack.open(shard)))
    assert problem_with(shard, expected) is None
    data = bytearray(shard)
    wrong = []
    for position in range(len(data)):
        for flip in FLIPS:
            data[position] ^= flip
            problem = problem_with(data, expected)
            data[position] ^= flip
            if problem is not None:
                wrong.append((position, flip, problem))
    assert wrong == []


@pytest.mark.slow
def test_every_flipped_byte_of_a_stream_is_noticed_or_harmless(shard: bytes) -> None:
    expected = contents(list(shardpack.open(shard)))
    data = bytearray(shard)
    for position in range(len(data)):
        data[position] ^= 0xFF
        found: dict[str, Content] = {}
        try:
            for record in shardpack.stream(io.BytesIO(data)):
                found[record.key] = record.read_all(), record.metadata
        except ShardError:
            pass
        data[position] ^= 0xFF
        assert found.items() <= expected.items() or all(
            expected.get(key) == value for key, value in found.items()
        ), position


def test_every_cut_is_noticed(shard: bytes) -> None:
    for length in range(len(shard)):
        with pytest.raises(ShardError) as caught:
            shardpack.open(shard[:length])
        if length > 120:
            assert isinstance(caught.value, Truncated), length


def test_every_cut_of_a_stream_gives_the_complete_records_and_an_error(shard: bytes) -> None:
    starts = [*shardpack.open(shard).get_index()]
    ends = [*starts[1:], shardpack.open(shard).shards[0].footer.index_offset]
    for length in range(len(shard)):
        found: list[dict[str, bytes]] = []
        records = shardpack.stream(io.BytesIO(shard[:length]))
        with pytest.raises(Truncated):
            found.extend(record.read_all() for record in records)
        assert len(found) == sum(end <= length for end in ends)


def test_bytes_before_or_after_a_shard_are_noticed(shard: bytes) -> None:
    for data in (b"\0" + shard, shard + b"\0", bytes(64) + shard, shard + shard):
        with pytest.raises(ShardError):
            shardpack.open(data)


def test_one_damaged_entry_does_not_hide_the_others(shard: bytes) -> None:
    dataset = shardpack.open(shard)
    entry = dataset["a"]["x.jpg"]
    data = bytearray(shard)
    data[entry.offset] ^= 1
    damaged = shardpack.open(bytes(data))
    assert damaged["a"]["y.txt"].data == dataset["a"]["y.txt"].data
    with pytest.raises(ShardError, match=r"record 'a'.*P-ENT-3") as caught:
        _ = damaged["a"]["x.jpg"].data
    assert caught.value.entry == "x.jpg"
    assert caught.value.offset == entry.offset
    assert damaged["b"].read_all() == dataset["b"].read_all()
