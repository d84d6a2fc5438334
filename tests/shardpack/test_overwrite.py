"""Replacing a set of shards: whatever happens, the complete old set or the complete new one is there."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

import shardpack
from shard_format.codecs import crc32c
from shard_format.errors import BadMetadata, InvalidArgument, ShardError, UnsafePath
from shardpack import ShardWriterSet, _switch, writer_set
from shardpack._switch import JOURNAL
from tests.shard_format.faults import killed_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATTERN = "s-%03d.shardpack"
SET_FILE = "s.shardpack-set"


def write(folder: Path, word: str, count: int, **options: Any) -> list[str]:  # noqa: ANN401 - the writer's
    """A set with five records in each shard."""
    with ShardWriterSet(folder / PATTERN, max_records=5, **options) as writer:
        for number in range(count):
            writer.write(f"{word}{number}", {"txt": word})
    return writer.paths


def contents(folder: Path) -> list[str]:
    with shardpack.open(folder) as dataset:
        found = list(dataset.keys())
    with shardpack.open(folder / SET_FILE) as dataset:
        assert list(dataset.keys()) == found
    return found


def keys(word: str, count: int) -> list[str]:
    return [f"{word}{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (2, 1),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in ((5, 4), (12, 23), (23, 12), (11, 11))
        ),
    ],
)
@pytest.mark.slow
def test_a_kill_at_any_step_leaves_the_old_set_or_the_new_one(
    tmp_path: Path, before: int, after: int
) -> None:
    write(tmp_path, "old", before, fsync=False)
    found: list[str] = []
    call = 0
    while killed_at(call, lambda: write(tmp_path, "new", after, overwrite=True)):
        there = contents(tmp_path)
        assert there in (keys("old", before), keys("new", after))
        found.append(there[0][:3])
        if there[0][:3] == "new":
            # Nothing of the old set is left, and the next one is written over this.
            assert len(list(tmp_path.glob("*.shardpack"))) == -(-after // 5)
            write(tmp_path, "old", before, overwrite=True, fsync=False)
        call += 1
    assert contents(tmp_path) == keys("new", after)
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    # The old set stays until the new one is complete, and then it never comes back.
    assert found == sorted(found, reverse=True)
    assert found.count("new") > 3


@pytest.mark.slow
def test_a_second_kill_while_the_rest_is_done_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "old", 23, fsync=False)
    call = 0
    # The last kill before the new set counts is the one after which the journal is there.
    while not (tmp_path / JOURNAL).exists():
        assert killed_at(call, lambda: write(tmp_path, "new", 12, overwrite=True))
        call += 1
    step = 0
    while killed_at(step, lambda: contents(tmp_path)):
        step += 1
    assert step > 0
    assert contents(tmp_path) in (keys("old", 23), keys("new", 12))
    assert not (tmp_path / JOURNAL).exists()


def test_an_error_or_an_interrupt_leaves_the_old_set(tmp_path: Path) -> None:
    write(tmp_path, "old", 12)

    def fail(error: type[BaseException]) -> None:
        with ShardWriterSet(tmp_path / PATTERN, max_records=5, overwrite=True) as writer:
            for number in range(30):
                writer.write(f"new{number}", {"txt": "x"})
            raise error

    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            fail(error)
        assert contents(tmp_path) == keys("old", 12)
        assert len(list(tmp_path.iterdir())) == 4


def test_readers_that_have_the_old_set_open_go_on_with_it(tmp_path: Path) -> None:
    write(tmp_path, "old", 12)
    with shardpack.open(tmp_path) as dataset:
        records = dataset.take(range(12))
        paths = write(tmp_path, "new", 3, overwrite=True)
        assert [record.read_all()["txt"] for record in records] == [b"old"] * 12
    assert paths == [str(tmp_path / (PATTERN % 0))]
    assert contents(tmp_path) == keys("new", 3)


@pytest.mark.slow
def test_the_next_writer_finishes_what_was_begun_and_continues(tmp_path: Path) -> None:
    write(tmp_path, "old", 12)
    call = 0
    while killed_at(call, lambda: write(tmp_path, "new", 10, overwrite=True)):
        if (tmp_path / JOURNAL).exists() and (tmp_path / JOURNAL).stat().st_size:
            break
        call += 1
    with ShardWriterSet(tmp_path / PATTERN, max_records=5, append=True) as writer:
        assert len(writer) == 10
        writer.write("more", {})
    assert contents(tmp_path)[-1] == "more"


def test_what_a_killed_process_left_is_removed_by_the_next_replacement(tmp_path: Path) -> None:
    write(tmp_path, "old", 12)
    assert killed_at(6, lambda: write(tmp_path, "new", 23, overwrite=True))
    assert any(path.suffix == ".new" for path in tmp_path.iterdir())
    # A replacement that is under way is not touched.
    with ShardWriterSet(tmp_path / PATTERN, overwrite=True) as living:
        living.write("living", {})
        write(tmp_path, "new", 33, overwrite=True)
        assert contents(tmp_path) == keys("new", 33)
    assert contents(tmp_path) == ["living"]
    assert {path.name for path in tmp_path.iterdir()} == {PATTERN % 0, SET_FILE}


def test_a_file_that_came_later_is_not_removed(tmp_path: Path) -> None:
    write(tmp_path, "old", 12)
    call = 0
    while not (tmp_path / JOURNAL).exists():
        assert killed_at(call, lambda: write(tmp_path, "new", 5, overwrite=True))
        call += 1
    call += 2  # the journal is complete
    write(tmp_path, "old", 12, overwrite=True)
    assert killed_at(call, lambda: write(tmp_path, "new", 5, overwrite=True))
    other = tmp_path / "other.shardpack"
    shardpack.ShardPackWriter(other).close()
    os.replace(other, tmp_path / (PATTERN % 2))
    shardpack.open(tmp_path).close()
    assert (tmp_path / (PATTERN % 2)).exists()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "..", "a/b"])
def test_a_journal_that_names_other_folders_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, "old", 3)
    for plan in (
        {"staging": name, "new": [], "old": []},
        {"staging": ".x.new", "new": [name], "old": []},
        {"staging": ".x.new", "new": [["a", name]], "old": []},
        {"staging": ".x.new", "new": [[name, "a"]], "old": []},
        {"staging": ".x.new", "new": [], "old": [[name, 1, 2, 3, 4]]},
        {"staging": "x", "new": [], "old": [], "leftovers": [name]},
    ):
        text = json.dumps(plan).encode()
        (tmp_path / JOURNAL).write_bytes(b"%08x\n%s\n" % (crc32c(text), text))
        with pytest.raises(UnsafePath, match="outside of its folder"):
            shardpack.open(tmp_path)


def test_a_journal_does_not_empty_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    write(tmp_path, "old", 3)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(b"mine")
    text = json.dumps({"staging": "photos", "new": [], "old": []}).encode()
    (tmp_path / JOURNAL).write_bytes(b"%08x\n%s\n" % (crc32c(text), text))
    with pytest.raises(UnsafePath, match="remove the file"):
        shardpack.open(tmp_path)
    assert (tmp_path / "photos" / "1.jpg").exists()


@pytest.mark.slow
def test_a_writer_that_dies_while_another_one_starts_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has decided for its new set, which must not be taken for something abandoned."""
    write(tmp_path, "old", 12, fsync=False)
    finish = _switch.finish_replacements

    def die_right_after(folders: list[str]) -> bool:
        found = finish(folders)
        monkeypatch.undo()
        call = 0
        while not (tmp_path / JOURNAL).exists() or not (tmp_path / JOURNAL).stat().st_size:
            assert killed_at(call, lambda: write(tmp_path, "new", 4, overwrite=True, fsync=False))
            call += 1
        return found

    monkeypatch.setattr(writer_set, "finish_replacements", die_right_after)
    with pytest.raises(KeyboardInterrupt):
        interrupt_a_replacement(tmp_path)
    assert contents(tmp_path) == keys("new", 4)
    left = sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".shardpack")
    assert left == [PATTERN % 0]


def interrupt_a_replacement(folder: Path) -> None:
    with ShardWriterSet(folder / PATTERN, overwrite=True):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "text",
    [
        *(b"[]", b"{}", b"[" * 100_000, b'{"staging":', b'{"staging":1,"new":[],"old":[]}'),
        *(b'{"staging":"x","new":[["a"]],"old":[]}', b'{"staging":"x","new":[1],"old":[]}'),
        *(b'{"staging":"x","new":[[1,2]],"old":[]}', b'{"staging":"x","new":["a"],"old":5}'),
        b'{"staging":"x","new":[],"old":[],"leftovers":7}',
    ],
)
def test_a_journal_that_is_malformed_is_refused(tmp_path: Path, text: bytes) -> None:
    write(tmp_path, "old", 3)
    (tmp_path / JOURNAL).write_bytes(b"%08x\n%s\n" % (crc32c(text), text))
    with pytest.raises(BadMetadata, match=r"malformed.*remove the file"):
        shardpack.open(tmp_path)


def test_append_and_overwrite_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="exclude"):
        ShardWriterSet(tmp_path / PATTERN, append=True, overwrite=True)


def test_a_shard_behind_a_gap_is_in_the_way(tmp_path: Path) -> None:
    write(tmp_path, "old", 12)
    (tmp_path / (PATTERN % 4)).write_bytes(b"mine")
    with pytest.raises(InvalidArgument, match="in the way"):
        write(tmp_path, "new", 23, overwrite=True)
    (tmp_path / (PATTERN % 4)).unlink()
    assert contents(tmp_path) == keys("old", 12)


def tools(folder: Path) -> Iterator[Callable[[], object]]:
    source = str(folder / "source.shardpack")
    with shardpack.ShardPackWriter(source) as writer:
        for number in range(7):
            writer.write(f"new{number}", {"txt": "x"})
    target = str(folder / PATTERN)
    options: dict[str, Any] = {"overwrite": True, "max_records": 2}
    yield lambda: shardpack.merge(source, target, **options)
    yield lambda: shardpack.split(source, target, parts=3, overwrite=True)
    yield lambda: shardpack.split(source, {target: 1.0}, **options)
    yield lambda: shardpack.pack(range(7), target, lambda n: (f"new{n}", {}), **options)


def test_all_tools_can_replace_a_set(tmp_path: Path) -> None:
    for tool in tools(tmp_path):
        write(tmp_path, "old", 23, overwrite=True)
        tool()
        with shardpack.open(str(tmp_path / "s-*.shardpack")) as dataset:
            assert list(dataset.keys()) == keys("new", 7)
            assert 3 <= len(dataset.shards) <= 4


def test_without_asking_nothing_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, "old", 3)
    with pytest.raises(ShardError, match="overwrite=True"):
        write(tmp_path, "new", 3)
    assert contents(tmp_path) == keys("old", 3)
