"""What comes back from damaged shards, and what is said about the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shardpack
from shard_format.errors import InvalidArgument, ShardIOError
from tests.shardpack.support import (
    HandMadePack,
    HandMadeRecord,
    Part,
    RangesOnly,
    noise,
    write_pack,
)

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = {f"key {n}": {"a.bin": noise(50 + n, n), "b.txt": "text " * 70} for n in range(6)}


@pytest.fixture
def shard(tmp_path: Path) -> bytes:
    path = write_pack(tmp_path / "a", SAMPLES, compression="zstd", metadata={"by": "me"})
    return path.read_bytes()


def test_every_complete_record_of_every_cut_comes_back(shard: bytes, tmp_path: Path) -> None:
    reader = shardpack.ShardPackReader(shard)
    ends = [*reader.get_index()[1:].tolist(), reader.footer.index_offset]  # type: ignore[attr-defined] # a memoryview
    out = tmp_path / "out"
    for length in range(0, len(shard), 7):
        found = shardpack.recover(shard[:length], out, fsync=False, overwrite=True)
        complete = sum(end <= length for end in ends)
        assert found.records == complete == len(shardpack.open(out))
        assert not found.had_index
        last = ends[complete - 1] if complete else 0
        # Of less than twelve bytes nobody can say that they were the index.
        is_cut_in_record = last < min(length, ends[-1]) or 0 < length - ends[-1] < 12
        assert [part.offset for part in found.lost] == ([last] if is_cut_in_record else [])
        assert sum(part.size for part in found.lost) == (length - last if is_cut_in_record else 0)
        for record in shardpack.open(out):
            assert record.read_all() == {
                name: data if isinstance(data, bytes) else str(data).encode()
                for name, data in SAMPLES[record.key].items()
            }


@pytest.mark.parametrize("with_index", [True, False])
def test_a_source_that_fails_is_an_error_and_not_a_lost_record(
    shard: bytes, tmp_path: Path, with_index: bool
) -> None:
    class Failing(RangesOnly):
        def read_at(self, offset: int, length: int) -> bytes:
            if length > 12 and offset <= third < offset + length < len(data):
                raise ShardIOError("the network is down", path=self.name)
            return super().read_at(offset, length)

        def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
            return [self.read_at(*one) for one in ranges]

    third = shardpack.ShardPackReader(shard).get_index()[2]
    data = shard if with_index else shard[:-10]
    with pytest.raises(ShardIOError, match="the network is down"):
        shardpack.recover(Failing(data), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_whole_shard_comes_back_byte_for_byte(shard: bytes, tmp_path: Path) -> None:
    found = shardpack.recover(shard, tmp_path / "out")
    assert found.is_complete
    assert found.records == 6
    assert (tmp_path / "out").read_bytes() == shard
    assert str(found).endswith("6 records recovered")


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("ranges", [True, False])
def test_one_damaged_record_is_named_and_the_others_come_back(
    shard: bytes, tmp_path: Path, with_index: bool, ranges: bool
) -> None:
    entry = shardpack.open(shard)["key 2"]["a.bin"]
    start = shardpack.open(shard)["key 4"].offset
    data = bytearray(shard)
    data[entry.offset] ^= 1  # an entry of one
    data[start + 20] ^= 1  # the head of another
    damaged = bytes(data) if with_index else bytes(data[:-1])
    found = shardpack.recover(RangesOnly(damaged) if ranges else damaged, tmp_path / "out")
    assert found.had_index == with_index
    assert not found.is_complete
    assert list(shardpack.open(tmp_path / "out").keys()) == [f"key {n}" for n in (0, 1, 3, 5)]
    assert [part.offset for part in found.lost] == [shardpack.open(shard)["key 2"].offset, start]
    assert [part.key for part in found.lost] == ["key 2", None]
    assert "P-ENT-3" in found.lost[0].reason
    user = shardpack.open(tmp_path / "out").metadata["user"]
    assert user == ({"by": "me"} if with_index else {})


def test_a_damaged_size_does_not_hide_what_follows(shard: bytes, tmp_path: Path) -> None:
    starts = shardpack.open(shard).get_index()
    data = bytearray(shard[:-1])
    data[starts[1] : starts[1] + 8] = b"\xff" * 8
    found = shardpack.recover(bytes(data), tmp_path / "out")
    assert found.records == 5
    (lost,) = found.lost
    assert (lost.offset, lost.size) == (starts[1], starts[2] - starts[1])


def test_repeated_keys_are_reported(tmp_path: Path) -> None:
    twice: list[HandMadeRecord | bytes] = [HandMadeRecord(b"k", [Part(b"a", b"1")])] * 2
    found = shardpack.recover(HandMadePack(twice).to_bytes(), tmp_path / "out")
    assert found.records == 1
    assert [part.key for part in found.lost] == ["k"]


def test_markers_in_contents_are_not_taken_for_records(tmp_path: Path) -> None:
    data = (b"x" * 8 + b"SPR1" + bytes(30)) * 100
    path = write_pack(tmp_path / "a", {"k": {"a.bin": data}, "l": {"a.bin": data}})
    damaged = bytearray(path.read_bytes()[:-1])
    damaged[20] ^= 1
    found = shardpack.recover(bytes(damaged), tmp_path / "out")
    assert list(shardpack.open(tmp_path / "out").keys()) == ["l"]
    assert len(found.lost) == 1


def test_space_that_was_claimed_and_not_used_is_no_loss(shard: bytes, tmp_path: Path) -> None:
    end = shardpack.ShardPackReader(shard).footer.index_offset
    found = shardpack.recover(shard[:end] + bytes(3_000_000), tmp_path / "out")
    assert (found.records, found.lost, found.had_index) == (6, (), False)
    assert str(found).endswith("the end of the shard was missing")
    found = shardpack.recover(
        shard[:end] + bytes(3_000_000) + b"x", tmp_path / "out", overwrite=True
    )
    assert [part.size for part in found.lost] == [3_000_001]


def test_many_gaps_are_read_in_proportion_to_the_file(tmp_path: Path) -> None:
    whole = HandMadePack([HandMadeRecord(b"k", [Part(b"a", b"1")])]).to_bytes()
    record = whole[: shardpack.ShardPackReader(whole).footer.index_offset]

    def bytes_read(gaps: int) -> int:
        source = RangesOnly((bytes(20) + record + b"?") * gaps)
        found = shardpack.recover(source, tmp_path / "out", overwrite=True, fsync=False)
        assert found.records == 1  # they share a key
        return sum(length for _, length in source.asked)

    few, many = bytes_read(50), bytes_read(200)
    assert few < 50 * 3000
    assert many < 5 * few


def test_what_is_no_shard_gives_nothing_back(tmp_path: Path) -> None:
    found = shardpack.recover(noise(5000), tmp_path / "out")
    assert found.records == 0
    assert sum(part.size for part in found.lost) == 5000
    assert len(shardpack.open(tmp_path / "out")) == 0


def test_a_shard_is_not_recovered_into_itself(shard: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(InvalidArgument):
        shardpack.recover(path, path)
    assert path.read_bytes() == shard
    with pytest.raises(ShardIOError):
        shardpack.recover(tmp_path / "missing", tmp_path / "out")


def test_fields_of_the_index_that_nobody_knows_here_are_kept(tmp_path: Path) -> None:
    records: list[HandMadeRecord | bytes] = [HandMadeRecord(b"k", [Part(b"a", b"1")])]
    fields = {"made_by": {"tool": "x"}, "user": {"by": "me"}, "version": 1}
    pack = HandMadePack(records, fields=fields).to_bytes()
    shardpack.recover(pack, tmp_path / "recovered")
    (tmp_path / "longer").write_bytes(pack)
    with shardpack.ShardPackWriter(tmp_path / "longer", append=True) as writer:
        writer.write("l", {"a": b"2"})
    for name in ("recovered", "longer"):
        kept = shardpack.open(tmp_path / name).metadata
        assert (kept["made_by"], kept["user"]) == ({"tool": "x"}, {"by": "me"})


@pytest.mark.parametrize(("encoding", "empty"), [(1, b"{}"), (2, b"\x80")])
def test_metadata_without_fields_is_copied_as_none(
    tmp_path: Path, encoding: int, empty: bytes
) -> None:
    record = HandMadeRecord(b"k", [Part(b"a", b"1")], metadata=empty, metadata_encoding=encoding)
    shardpack.recover(HandMadePack([record]).to_bytes(), tmp_path / "out")
    (copied,) = shardpack.open(tmp_path / "out").records()
    assert copied.metadata == {}
    assert copied.stored_metadata[1] == b""


@pytest.mark.parametrize("with_index", [True, False])
def test_the_good_entries_of_a_damaged_record_are_kept_on_request(
    tmp_path: Path, with_index: bool
) -> None:
    path = tmp_path / "a"
    with shardpack.ShardPackWriter(path, fsync=False) as writer:
        for number in range(3):
            entries = {name: noise(500, number) for name in ("left.bin", "right.bin", "top.bin")}
            writer.write(f"key {number}", entries, {"label": number})
    whole = path.read_bytes()
    data = bytearray(whole if with_index else whole[:-1])
    entry = shardpack.open(whole)["key 1"]["right.bin"]
    data[entry.offset + 7] ^= 1
    found = shardpack.recover(bytes(data), tmp_path / "out", entries=True)
    assert found.records == 3
    assert not found.is_complete
    (lost,) = found.lost
    assert (lost.key, lost.entry, lost.offset, lost.size) == (
        "key 1",
        "right.bin",
        entry.offset,
        500,
    )
    with shardpack.open(tmp_path / "out") as dataset:
        record = dataset["key 1"]
        assert record.names == ("left.bin", "top.bin")
        assert record["top.bin"].read() == noise(500, 1)
        assert record.metadata == {"label": 1}
    assert shardpack.recover(bytes(data), tmp_path / "strict").records == 2


def test_an_entry_that_leaves_its_record_is_lost_alone(tmp_path: Path) -> None:
    parts = [Part(b"a", b"1"), Part(b"b", b"2", stored_size=9999)]
    data = HandMadePack([HandMadeRecord(b"k", parts)]).to_bytes()
    found = shardpack.recover(data, tmp_path / "out", entries=True)
    assert [(part.key, part.entry) for part in found.lost] == [("k", "b")]
    assert shardpack.open(tmp_path / "out")["k"].read_all() == {"a": b"1"}
