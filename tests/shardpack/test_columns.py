"""Columns and overlays: several datasets read as one, and every key that does not fit is named."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shard_train
import shardpack
from shard_format.errors import (
    DuplicateName,
    EntryNotFound,
    InvalidArgument,
    ReferenceMismatch,
    ShardError,
)
from tests.shardpack.support import HandMadePack, HandMadeRecord, Part, RangesOnly, write_pack

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [f"s{number}" for number in range(200)]


def column(path: Path, name: str, keys: list[str] | None = None, **options: Any) -> Path:  # noqa: ANN401 - the writer's
    keys = KEYS if keys is None else keys
    return write_pack(path, {key: {name: f"{name} of {key}".encode()} for key in keys}, **options)


@pytest.fixture
def left(tmp_path: Path) -> Path:
    return column(tmp_path / "left.shardpack", "left.txt")


@pytest.fixture
def right(tmp_path: Path) -> Path:
    return column(tmp_path / "right.shardpack", "right.txt", alignment=64)


class TestJoin:
    """Columns with the same keys."""

    def test_a_record_has_the_entries_of_all_columns(
        self, left: Path, right: Path, tmp_path: Path
    ) -> None:
        depth = column(tmp_path / "depth.shardpack", "depth.txt")
        joined = shardpack.join(left, right, shardpack.open(depth))
        assert len(joined) == 200
        record = joined[7]
        assert record.key == "s7"
        assert record.names == ("left.txt", "right.txt", "depth.txt")
        assert record["depth.txt"].decode() == "depth.txt of s7"
        assert record.read_all() == {name: f"{name} of s7".encode() for name in record.names}
        assert record.content_types == ("text/plain",) * 3
        assert "right.txt" in record
        assert list(record) == list(record.names)
        assert len(record) == 3

    def test_it_reads_as_a_data_set_does(self, left: Path, right: Path) -> None:
        joined = shardpack.join(left, right)
        assert joined["s9"].key == joined[9].key == joined[-191].key == "s9"
        assert [record.key for record in joined[3:6]] == ["s3", "s4", "s5"]
        assert [record.key for record in joined.take([5, 1, -1])] == ["s5", "s1", "s199"]
        assert [record.key for record in joined.__getitems__(np.array([2, 3]))] == ["s2", "s3"]
        assert [record.key for record in joined.records()] == KEYS == list(joined.keys())
        assert [record.key for record in joined] == KEYS
        assert [record.key for record in joined.records(-2)] == KEYS[-2:]
        assert [record.key for record in joined.records(190, 195)] == KEYS[190:195]
        assert ("s9" in joined, "t9" in joined, joined.find("s9")) == (True, False, 9)
        with pytest.raises(IndexError, match="200"):
            joined[200]
        with pytest.raises(EntryNotFound, match="t9"):
            joined["t9"]

    def test_whole_samples_come_without_records(self, left: Path, right: Path) -> None:
        joined = shardpack.join(left, right)
        assert joined.sample(7) == joined[7].read_all()
        assert list(joined.samples(5, 8)) == joined.take_samples([5, 6, 7])
        assert joined.take_samples([7, -1]) == [joined[7].read_all(), joined[199].read_all()]

    def test_an_entry_that_is_not_there_suggests_another(self, left: Path, right: Path) -> None:
        with pytest.raises(EntryNotFound, match=r"did you mean 'left\.txt'"):
            shardpack.join(left, right)[0]["lef.txt"]

    def test_missing_and_extra_keys_are_named_and_counted(self, left: Path, tmp_path: Path) -> None:
        other = column(tmp_path / "o.shardpack", "o.txt", [*KEYS[:50], *KEYS[60:], "new", "newer"])
        with pytest.raises(InvalidArgument) as caught:
            shardpack.join(left, other)
        text = str(caught.value)
        assert "column 2" in text
        assert "10 missing: 's50', 's51', 's52', 's53', 's54', …" in text
        assert "2 extra: 'new', 'newer'" in text

    def test_another_order_is_an_error_that_says_where(self, left: Path, tmp_path: Path) -> None:
        keys = [KEYS[0], KEYS[2], KEYS[1], *KEYS[3:]]
        other = column(tmp_path / "o.shardpack", "o.txt", keys)
        with pytest.raises(InvalidArgument, match=r"'s1' as number 1.*'s2'.*align=\"key\""):
            shardpack.join(left, other)

    @given(order=st.permutations(KEYS[:12]), shards=st.integers(1, 4))
    def test_by_key_any_order_is_put_right(
        self, tmp_path: Path, order: list[str], shards: int
    ) -> None:
        first = column(tmp_path / "first.shardpack", "a.txt", KEYS[:12])
        parts = [
            column(tmp_path / f"part-{number}.shardpack", "b.txt", order[number::shards])
            for number in range(shards)
        ]
        with shardpack.join(first, parts, align="key") as joined:
            for record in joined.records():
                assert record["b.txt"].read() == f"b.txt of {record.key}".encode()
            assert joined.take([11, 0])[0]["b.txt"].read() == b"b.txt of s11"

    def test_entries_of_the_same_name_are_refused(self, left: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"'left\.txt'.*two columns"):
            shardpack.join(left, left)[0]

    def test_a_mapping_puts_names_before_entries_and_fields(self, tmp_path: Path) -> None:
        for name, label in (("a", 1), ("b", 2)):
            with shardpack.ShardPackWriter(tmp_path / name, fsync=False) as writer:
                writer.write("k", {"json": {"side": name}}, {"label": label})
        joined = shardpack.join({"left": tmp_path / "a", "right": tmp_path / "b"})
        record = joined["k"]
        assert record.names == ("left.json", "right.json")
        assert record.decode() == {"left.json": {"side": "a"}, "right.json": {"side": "b"}}
        assert record.metadata == {"left.label": 1, "right.label": 2}
        assert [entry.name for entry in record.file_entries()] == ["left.json", "right.json"]
        assert [entry.name for entry in record.stored_entries()] == ["left.json", "right.json"]

    def test_fields_that_contradict_each_other_are_named(self, tmp_path: Path) -> None:
        for name, label in (("a", 1), ("b", 2)):
            with shardpack.ShardPackWriter(tmp_path / name, fsync=False) as writer:
                writer.write("k", {f"{name}.txt": name}, {"label": label, "same": 5})
        with pytest.raises(InvalidArgument, match=r"'label'.*1 and 2"):
            _ = shardpack.join(tmp_path / "a", tmp_path / "b")["k"].metadata

    def test_it_goes_to_workers(self, left: Path, tmp_path: Path) -> None:
        other = column(tmp_path / "o.shardpack", "o.txt", KEYS[::-1])
        joined = pickle.loads(pickle.dumps(shardpack.join(left, other, align="key")))
        assert joined[3]["o.txt"].read() == b"o.txt of s3"

    def test_columns_of_different_length_name_keys_too(self, left: Path, tmp_path: Path) -> None:
        other = column(tmp_path / "o.shardpack", "o.txt", KEYS[:-1])
        with pytest.raises(InvalidArgument, match="1 missing: 's199'"):
            shardpack.join(left, other)

    def test_remote_columns_are_fetched_in_few_requests(self, left: Path, right: Path) -> None:
        sources = [RangesOnly(path.read_bytes()) for path in (left, right)]
        joined = shardpack.join(*sources)
        for source in sources:
            source.rounds = 0
        assert len(list(joined.records())) == 200
        assert max(source.rounds for source in sources) < 15

    def test_a_key_that_only_has_the_same_hash_is_found_out(self, tmp_path: Path) -> None:
        """The index says one thing, the record another: what a forged hash could do."""
        path = tmp_path / "forged.shardpack"
        forged = HandMadePack([HandMadeRecord(b"other", [Part(b"x", b"1")])], keys=[b"s0"])
        path.write_bytes(forged.to_bytes())
        first = column(tmp_path / "first.shardpack", "a.txt", ["s0"])
        joined = shardpack.join(first, path)
        with pytest.raises(ReferenceMismatch, match=r"'s0'.*'other'"):
            joined[0]

    def test_keys_whose_hashes_collide_are_told_apart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = column(tmp_path / "first.shardpack", "a.txt", KEYS[:6])
        other = column(tmp_path / "other.shardpack", "b.txt", KEYS[5::-1])
        real = {"s0": 1, "s1": 1, "s2": 2, "s3": 2, "s4": 3, "s5": 3}
        monkeypatch.setattr(
            shardpack.Dataset,
            "key_hashes",
            lambda dataset: np.array([real[record.key] for record in dataset], np.uint64),
        )
        joined = shardpack.join(first, other, align="key")
        assert [record["b.txt"].decode() for record in joined] == [
            f"b.txt of {key}" for key in KEYS[:6]
        ]

    @pytest.mark.parametrize(
        ("arguments", "options"), [((), {}), (("x",), {"align": "left"})], ids=["none", "align"]
    )
    def test_wrong_arguments_are_named(
        self, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument):
            shardpack.join(*arguments, **options)

    def test_nothing_stays_open_when_it_fails(self, left: Path, tmp_path: Path) -> None:
        other = column(tmp_path / "o.shardpack", "o.txt", KEYS[:-1])
        given = shardpack.open(left)
        with pytest.raises(InvalidArgument):
            shardpack.join(given, other)
        assert given[0].key == "s0"


class TestOverlay:
    """A small pack over a large one."""

    def test_entries_and_fields_of_the_update_win(self, tmp_path: Path) -> None:
        main = tmp_path / "main.shardpack"
        with shardpack.ShardPackWriter(main, fsync=False) as writer:
            for key in KEYS[:5]:
                writer.write(key, {"a.txt": f"old {key}", "b.txt": "kept"}, {"label": 1, "w": 2})
        update = tmp_path / "update.shardpack"
        with shardpack.ShardPackWriter(update, fsync=False) as writer:
            writer.write("s3", {"a.txt": "new", "c.txt": "added"}, {"label": 9})
            writer.write("s1", {"c.txt": "only added"})
        over = shardpack.overlay(main, update)
        assert len(over) == 5
        assert over["s3"].decode() == {"a.txt": "new", "b.txt": "kept", "c.txt": "added"}
        assert over["s3"].metadata == {"label": 9, "w": 2}
        assert over[1].decode() == {"a.txt": "old s1", "b.txt": "kept", "c.txt": "only added"}
        assert over[0].decode() == {"a.txt": "old s0", "b.txt": "kept"}
        assert [record.key for record in over] == KEYS[:5]
        assert [len(record) for record in over.take([3, 0])] == [3, 2]

    def test_the_last_of_several_updates_wins(self, left: Path, tmp_path: Path) -> None:
        updates = [
            write_pack(tmp_path / f"u{number}.shardpack", {"s5": {"left.txt": f"v{number}"}})
            for number in range(3)
        ]
        assert shardpack.overlay(left, *updates)["s5"]["left.txt"].decode() == "v2"

    def test_keys_that_the_main_data_set_lacks_are_named(self, left: Path, tmp_path: Path) -> None:
        update = column(tmp_path / "u.shardpack", "left.txt", ["s1", "s1000", "s1001"])
        with pytest.raises(InvalidArgument, match=r"update 1.*2: 's1000', 's1001'"):
            shardpack.overlay(left, update)

    def test_a_key_that_an_update_has_twice_is_refused(self, left: Path, tmp_path: Path) -> None:
        parts = [column(tmp_path / f"u{n}.shardpack", "left.txt", ["s1"]) for n in range(2)]
        with pytest.raises(DuplicateName, match="'s1'"):
            shardpack.overlay(left, parts)

    def test_an_update_for_a_forged_hash_is_found_out(self, left: Path, tmp_path: Path) -> None:
        path = tmp_path / "forged.shardpack"
        forged = HandMadePack([HandMadeRecord(b"other", [Part(b"x", b"1")])], keys=[b"s0"])
        path.write_bytes(forged.to_bytes())
        over = shardpack.overlay(left, path)
        assert over[1].key == "s1"
        with pytest.raises(ReferenceMismatch, match="'other'"):
            over[0]

    def test_overlays_and_joins_nest(self, left: Path, right: Path, tmp_path: Path) -> None:
        update = write_pack(tmp_path / "u.shardpack", {"s5": {"left.txt": b"new"}})
        both = shardpack.join(shardpack.overlay(left, update), right)
        assert both["s5"].read_all() == {"left.txt": b"new", "right.txt": b"right.txt of s5"}
        again = shardpack.overlay(shardpack.join(left, right), update)
        assert again["s5"].read_all() == both["s5"].read_all()

    def test_without_updates_it_is_the_main_data_set(self, left: Path) -> None:
        assert shardpack.overlay(left)[3].read_all() == shardpack.open(left)[3].read_all()

    def test_it_goes_to_workers(self, left: Path, tmp_path: Path) -> None:
        update = write_pack(tmp_path / "u.shardpack", {"s5": {"left.txt": b"new"}})
        over = pickle.loads(pickle.dumps(shardpack.overlay(left, update)))
        assert over["s5"]["left.txt"].read() == b"new"
        over.close()


class TestWriting:
    """What is put together can be written out."""

    def test_merge_makes_shards_of_a_join(self, left: Path, right: Path, tmp_path: Path) -> None:
        joined = shardpack.join(left, right)
        shardpack.merge(joined, tmp_path / "out.shardpack", fsync=False)
        written = shardpack.open(tmp_path / "out.shardpack")
        assert [r.read_all() for r in written] == [r.read_all() for r in joined]
        assert written[0].alignment == 64

    def test_the_metadata_of_all_columns_is_written(self, tmp_path: Path) -> None:
        for name in "ab":
            with shardpack.ShardPackWriter(tmp_path / name, fsync=False) as writer:
                writer.write("k", {f"{name}.txt": name}, {name: 1})
                writer.write("l", {f"{name}.txt": name})
                writer.write("m", {f"{name}.txt": name}, {name: 1} if name == "a" else None)
        joined = shardpack.join(tmp_path / "a", tmp_path / "b")
        shardpack.merge(joined, tmp_path / "out.shardpack", fsync=False)
        written = shardpack.open(tmp_path / "out.shardpack")
        assert [r.metadata for r in written] == [{"a": 1, "b": 1}, {}, {"a": 1}]

    def test_a_damaged_entry_is_not_copied(self, left: Path, right: Path, tmp_path: Path) -> None:
        data = bytearray(right.read_bytes())
        data[data.index(b"right.txt of s7")] ^= 1
        right.write_bytes(data)
        with pytest.raises(ShardError, match=r"right\.txt"):
            shardpack.merge(shardpack.join(left, right), tmp_path / "out.shardpack")
        assert not (tmp_path / "out.shardpack").exists()


def test_metadata_with_keys_that_are_not_text_is_overlaid_but_gets_no_prefix() -> None:
    packs = [
        HandMadePack(
            [HandMadeRecord(b"k", [Part(name, b"x")], metadata=stored, metadata_encoding=2)]
        ).to_bytes()
        for name, stored in ((b"a.txt", b"\x81\x07\x01"), (b"b.txt", b"\x81\x07\x02"))
    ]
    one, other = (shardpack.open(pack) for pack in packs)
    metadata: dict[Any, Any] = shardpack.overlay(one, other)["k"].metadata
    assert metadata == {7: 2}
    with pytest.raises(InvalidArgument, match=r"record 'k'.*not text.*found 7"):
        _ = shardpack.join({"left": one, "right": other})["k"].metadata


class TestOverlayOfOtherKeys:
    """Updates that add and delete records."""

    def updates(self, tmp_path: Path) -> list[Path]:
        texts = [
            {"s1": "new 1", "n1": "added", "n2": "added"},
            {"n2": "changed", "n3": "later", "s3": "whole"},
        ]
        return [
            write_pack(
                tmp_path / f"u{number}.shardpack",
                {key: {"u.txt": text} for key, text in some.items()},
            )
            for number, some in enumerate(texts)
        ]

    def test_records_are_added_deleted_and_replaced(self, tmp_path: Path) -> None:
        main = [
            column(tmp_path / "a.shardpack", "a.txt", KEYS[:3]),
            column(tmp_path / "b.shardpack", "a.txt", KEYS[3:6]),
        ]
        over = shardpack.overlay(main, *self.updates(tmp_path), add=True, delete=["s0", "s3"])
        expected = {
            "s1": {"a.txt": "a.txt of s1", "u.txt": "new 1"},
            "s2": {"a.txt": "a.txt of s2"},
            "s4": {"a.txt": "a.txt of s4"},
            "s5": {"a.txt": "a.txt of s5"},
            "n1": {"u.txt": "added"},
            "n2": {"u.txt": "changed"},
            "n3": {"u.txt": "later"},
            "s3": {"u.txt": "whole"},
        }
        keys = list(expected)
        assert (len(over), list(over.keys())) == (8, keys)
        assert {record.key: record.decode() for record in over} == expected
        assert [record.key for record in over.take([7, 0, 5, -8])] == ["s3", "s1", "n2", "s1"]
        assert [over.find(key) for key in keys] == list(range(8))
        assert ("s0" in over, "n1" in over, 3 in over) == (False, True, False)
        with pytest.raises(EntryNotFound):
            over["s0"]
        again = pickle.loads(pickle.dumps(over))
        assert again["n2"].decode() == expected["n2"]
        out = tmp_path / "out.shardpack"
        assert shardpack.merge(over, out, fsync=False).records == 8
        assert {record.key: record.decode() for record in shardpack.open(out)} == expected
        # Tools that choose by key see the same keys.
        some = shardpack.sample(over, tmp_path / "x", 4), shardpack.sample(out, tmp_path / "y", 4)
        assert len({tuple(shardpack.open(done.paths).keys()) for done in some}) == 1
        joined = shardpack.join(over, column(tmp_path / "j.shardpack", "j.txt", keys))
        assert joined["n3"].names == ("u.txt", "j.txt")

    def test_training_sees_what_is_there(self, tmp_path: Path) -> None:
        main = [
            column(tmp_path / f"m{n}.shardpack", "u.txt", KEYS[3 * n : 3 * n + 3]) for n in (0, 1)
        ]
        updates = self.updates(tmp_path)
        overlays = [
            shardpack.overlay(main),
            shardpack.overlay(main, delete=["s4"]),
            shardpack.overlay(main, delete=["s5"]),
            shardpack.overlay(main, *updates, add=True, delete=["s0"]),
        ]
        datasets = [shard_train.SampleDataset(over) for over in overlays]
        assert len({dataset.fingerprint for dataset in datasets}) == 4
        assert [dataset.shard_sizes for dataset in datasets] == [
            (3, 3),
            (3, 2),
            (3, 2),
            (2, 3, 3),
        ]
        batch = datasets[3].batch(range(len(datasets[3])))
        assert batch["u.txt"][-3:] == ["added", "changed", "later"]

    def test_other_keys_need_permission_and_deleted_ones_exist(self, tmp_path: Path) -> None:
        main = column(tmp_path / "a.shardpack", "a.txt", KEYS[:6])
        update = self.updates(tmp_path)[0]
        with pytest.raises(InvalidArgument, match=r"update 1.*add=True"):
            shardpack.overlay(main, update)
        with pytest.raises(InvalidArgument, match=r"to be deleted.*2: 'x', 'y'"):
            shardpack.overlay(main, delete=["s1", "x", "y"])
        with pytest.raises(InvalidArgument, match="a list of keys"):
            shardpack.overlay(main, delete="s1")
        twice = [column(tmp_path / f"t{n}.shardpack", "a.txt", ["new"]) for n in range(2)]
        with pytest.raises(DuplicateName, match="'new'"):
            shardpack.overlay(main, twice, add=True)
