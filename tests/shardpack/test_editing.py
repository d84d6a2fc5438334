"""merge, split, filter, sort and sample: the right records, with the bytes that they had."""

from __future__ import annotations

import os
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardpack
from shard_format.errors import ChecksumMismatch, InvalidArgument
from tests.shardpack.support import (
    CREATED,
    HandMadePack,
    HandMadeRecord,
    Part,
    noise,
    prose,
    write_pack,
)

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, Any] = {"fsync": False, "created": CREATED, "overwrite": True}


def samples(count: int, prefix: str = "s") -> dict[str, dict[str, bytes]]:
    return {
        f"{prefix}{n:03d}": {"a.txt": prose(400 + n), "b.bin": noise(100 + n, n)}
        for n in range(count)
    }


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Two shards with compressed entries of different codecs."""
    return [
        write_pack(
            tmp_path / f"in-{number}.shardpack",
            samples(20, prefix),
            compression=codec,
            metadata={"source": "tests"},
        )
        for number, (prefix, codec) in enumerate((("b", "zstd"), ("a", "lz4")))
    ]


def facts(record: shardpack.Record) -> tuple[Any, ...]:
    """Everything about a record that a copy keeps."""
    entries = [
        (e.name, e.content_type, e.compression, e.size, e.crc32c, bytes(e.stored_entry().data))
        for e in record.file_entries()
    ]
    return record.key, record.stored_metadata, entries


def all_facts(dataset: Path | list[Path] | list[str]) -> list[tuple[Any, ...]]:
    return [facts(record) for record in shardpack.open(dataset)]


class TestMerge:
    """Many shards into one, or into others."""

    def test_records_keep_the_bytes_that_they_are_stored_in(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        done = shardpack.merge(shards, tmp_path / "out.shardpack", **OPTIONS)
        assert done.records == 40
        assert done.paths == [str(tmp_path / "out.shardpack")]
        assert all_facts(done.paths) == all_facts(shards)
        assert {e[2] for _, _, entries in all_facts(done.paths) for e in entries} >= {
            "zstd",
            "lz4",
        }

    def test_nothing_is_decompressed(self, shards: list[Path], tmp_path: Path) -> None:
        """Stored bytes that no codec could decode are copied as well, with their checksum."""
        odd = tmp_path / "odd.shardpack"
        part = Part(b"x", b"no zstd frame", encoding=3, original_size=20)
        odd.write_bytes(HandMadePack([HandMadeRecord(b"odd", [part])]).to_bytes())
        done = shardpack.merge(odd, tmp_path / "out.shardpack", **OPTIONS)
        stored = shardpack.open(done.paths)["odd"]["x"].stored_entry()
        assert bytes(stored.data) == b"no zstd frame"
        assert (stored.encoding, stored.original_size) == (3, 20)

    def test_the_same_input_gives_the_same_file(self, shards: list[Path], tmp_path: Path) -> None:
        for name in "xy":
            shardpack.merge(shards, tmp_path / name, **OPTIONS)
        assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()

    def test_a_merge_of_one_shard_is_that_shard(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "in.shardpack", samples(9), metadata={"k": 1}, alignment=64)
        shardpack.merge(path, tmp_path / "out.shardpack", **OPTIONS)
        assert (tmp_path / "out.shardpack").read_bytes() == path.read_bytes()

    def test_a_set_has_shards_of_the_target_size(self, shards: list[Path], tmp_path: Path) -> None:
        done = shardpack.merge(shards, tmp_path / "o-%03d.shardpack", max_bytes=5000, **OPTIONS)
        assert len(done.paths) > 2
        assert max(map(os.path.getsize, done.paths)) <= 5000
        assert all_facts(done.paths) == all_facts(shards)

    def test_a_key_in_two_shards_is_refused(self, tmp_path: Path) -> None:
        paths = [write_pack(tmp_path / name, {"k": {"a": b"1"}}) for name in ("x", "y")]
        with pytest.raises(InvalidArgument, match="'k'"):
            shardpack.merge(paths, tmp_path / "out.shardpack", **OPTIONS)
        assert not (tmp_path / "out.shardpack").exists()

    def test_metadata_and_alignment_are_kept(self, tmp_path: Path) -> None:
        paths = [
            write_pack(tmp_path / "x", {"k": {"a": b"1"}}, metadata={"same": 1, "x": 2}),
            write_pack(tmp_path / "y", {"l": {"a": b"1"}}, metadata={"same": 1}, alignment=64),
        ]
        done = shardpack.merge(paths, tmp_path / "out.shardpack", **OPTIONS)
        written = shardpack.open(done.paths)
        assert written.metadata["user"] == {"same": 1, "x": 2}
        assert [record.alignment for record in written] == [64, 64]

    def test_shards_that_contradict_each_other_need_a_word(self, tmp_path: Path) -> None:
        paths = [
            write_pack(tmp_path / name, {name: {"a": b"1"}}, metadata={"part": name})
            for name in ("x", "y")
        ]
        with pytest.raises(InvalidArgument, match=r"'part'.*'x'.*'y'"):
            shardpack.merge(paths, tmp_path / "out.shardpack", **OPTIONS)
        done = shardpack.merge(paths, tmp_path / "out.shardpack", metadata={"part": 0}, **OPTIONS)
        assert shardpack.open(done.paths).metadata["user"] == {"part": 0}

    def test_damage_is_found_unless_asked_not_to(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "in.shardpack", {"k": {"a": b"content"}})
        data = bytearray(path.read_bytes())
        data[data.index(b"content")] ^= 1
        path.write_bytes(data)
        with pytest.raises(ChecksumMismatch):
            shardpack.merge(path, tmp_path / "out.shardpack", **OPTIONS)
        shardpack.merge(path, tmp_path / "out.shardpack", check=False, **OPTIONS)
        with pytest.raises(ChecksumMismatch):
            _ = shardpack.open(tmp_path / "out.shardpack")[0]["a"].data

    def test_a_shard_can_be_merged_onto_itself(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "x.shardpack", samples(5))
        before = all_facts(path)
        shardpack.merge(path, path, **OPTIONS)
        assert all_facts(path) == before


class TestFilter:
    """Some of the records."""

    def test_records_for_which_it_is_true_are_kept(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        done = shardpack.filter(
            shards, tmp_path / "out.shardpack", lambda record: record.key[-1] in "37", **OPTIONS
        )
        expected = [fact for fact in all_facts(shards) if fact[0][-1] in "37"]
        assert all_facts(done.paths) == expected
        assert done.records == len(expected) == 8

    def test_no_record_is_a_shard_without_records(self, shards: list[Path], tmp_path: Path) -> None:
        done = shardpack.filter(shards, tmp_path / "o.shardpack", lambda _: False, **OPTIONS)
        assert (done.records, len(shardpack.open(done.paths))) == (0, 0)

    def test_an_error_of_the_caller_leaves_no_file(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        with pytest.raises(ZeroDivisionError):
            shardpack.filter(shards, tmp_path / "o.shardpack", lambda _: bool(1 / 0))
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "in-0.shardpack",
            "in-1.shardpack",
        ]


class TestSort:
    """Another order."""

    @given(
        keys=st.lists(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
            unique=True,
            max_size=20,
        )
    )
    @settings(max_examples=40)
    def test_records_come_in_the_order_of_their_keys(self, tmp_path: Path, keys: list[str]) -> None:
        path = write_pack(tmp_path / "in.shardpack", {key: {"a": key.encode()} for key in keys})
        done = shardpack.sort(path, tmp_path / "out.shardpack", **OPTIONS)
        written = shardpack.open(done.paths)
        assert list(written.keys()) == sorted(keys)
        assert all(record["a"].read() == record.key.encode() for record in written)

    def test_anything_can_be_compared_and_equal_ones_keep_their_order(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        done = shardpack.sort(
            shards, tmp_path / "o.shardpack", by=lambda r: r.key[-1], reverse=True, **OPTIONS
        )
        expected = sorted(all_facts(shards), key=lambda fact: fact[0][-1], reverse=True)
        assert all_facts(done.paths) == expected


class TestSample:
    """Some records, by chance that repeats."""

    def test_it_draws_as_many_as_asked_in_their_order(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        done = shardpack.sample(shards, tmp_path / "o.shardpack", 10, **OPTIONS)
        everything = all_facts(shards)
        drawn = all_facts(done.paths)
        assert done.records == 10
        assert [fact for fact in everything if fact in drawn] == drawn

    def test_it_depends_on_keys_and_seed_alone(self, shards: list[Path], tmp_path: Path) -> None:
        def keys(source: list[Path] | list[str], seed: int) -> set[str]:
            done = shardpack.sample(source, tmp_path / "o", 0.25, seed=seed, **OPTIONS)
            return set(shardpack.open(done.paths).keys())

        merged = shardpack.merge(shards[::-1], tmp_path / "m.shardpack", **OPTIONS).paths
        assert keys(shards, 1) == keys(merged, 1)
        assert len(keys(shards, 1)) == 10
        assert keys(shards, 1) != keys(shards, 2)

    def test_these_keys_are_drawn_with_this_seed(self, tmp_path: Path) -> None:
        """In every version and on every machine."""
        path = write_pack(tmp_path / "in", {str(n): {"a": b""} for n in range(100)})
        done = shardpack.sample(path, tmp_path / "out", 5, seed=3, **OPTIONS)
        assert list(shardpack.open(done.paths).keys()) == ["67", "80", "85", "92", "95"]

    def test_shuffled_it_has_the_same_records_in_another_order(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        plain = shardpack.sample(shards, tmp_path / "p", 30, **OPTIONS).paths
        shuffled = shardpack.sample(shards, tmp_path / "s", 30, shuffle=True, **OPTIONS).paths
        assert all_facts(plain) != all_facts(shuffled)
        assert sorted(all_facts(plain)) == sorted(all_facts(shuffled))

    @pytest.mark.parametrize("count", [-1, 41, 1.1, -0.5, True])
    def test_counts_that_cannot_be_are_refused(
        self, shards: list[Path], tmp_path: Path, count: float
    ) -> None:
        with pytest.raises(InvalidArgument, match="0 to 40"):
            shardpack.sample(shards, tmp_path / "out", count)


class TestSplit:
    """One dataset into several."""

    def test_by_number_of_records(self, shards: list[Path], tmp_path: Path) -> None:
        name = str(tmp_path / "o-%03d.shardpack")
        done = shardpack.split(shards, name, max_records=15, **OPTIONS)[name]
        assert [len(shardpack.open(path)) for path in done.paths] == [15, 15, 10]
        assert all_facts(done.paths) == all_facts(shards)

    def test_into_equal_parts(self, shards: list[Path], tmp_path: Path) -> None:
        name = str(tmp_path / "o-%03d.shardpack")
        done = shardpack.split(shards, name, parts=7, **OPTIONS)[name]
        assert [len(shardpack.open(path)) for path in done.paths] == [5, 6, 6, 5, 6, 6, 6]
        assert all_facts(done.paths) == all_facts(shards)

    def test_by_shares_each_record_goes_to_one(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "in", {str(n): {"a": b"%d" % n} for n in range(1000)})
        names = {
            str(tmp_path / f"{name}.shardpack"): share for name, share in (("t", 0.8), ("v", 0.2))
        }
        done = shardpack.split(path, names, **OPTIONS)
        train, val = (set(shardpack.open(edited.paths).keys()) for edited in done.values())
        assert train | val == {str(n) for n in range(1000)}
        assert not train & val
        assert 750 < len(train) < 850

    def test_records_that_are_added_change_nothing_for_the_others(self, tmp_path: Path) -> None:
        def validation(count: int) -> set[str]:
            path = write_pack(tmp_path / "in", {str(n): {"a": b""} for n in range(count)})
            names = {str(tmp_path / "t"): 0.7, str(tmp_path / "v"): 0.3}
            done = shardpack.split(path, names, **OPTIONS)
            return set(shardpack.open(done[str(tmp_path / "v")].paths).keys())

        few, many = validation(100), validation(200)
        assert few == {key for key in many if int(key) < 100}

    @pytest.mark.parametrize(
        ("outputs", "options"),
        [
            ("one.shardpack", {"parts": 2}),
            ("o-%d.shardpack", {}),
            ("o-%d.shardpack", {"parts": 0}),
            ("o-%d.shardpack", {"parts": 2, "max_records": 3}),
            ({"a": 0.5, "b": 0.6}, {}),
            ({"a": 1.5, "b": -0.5}, {}),
            ({}, {}),
            ({"a": 1.0}, {"parts": 2}),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, shards: list[Path], outputs: str | dict[str, float], options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument):
            shardpack.split(shards, outputs, **options)


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    path = tmp_path / "in.shardpack"
    content = noise(1 << 20)
    with shardpack.ShardPackWriter(path, fsync=False) as writer:
        for number in range(40):
            writer.write(str(number), {"a.bin": content})
    tracemalloc.start()
    try:
        shardpack.sort(path, tmp_path / "out.shardpack", **OPTIONS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
