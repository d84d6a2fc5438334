"""`extract` of packs: keys are hostile until they are looked at."""

from __future__ import annotations

import os
import tracemalloc
from typing import TYPE_CHECKING

import pytest

import shardpack
from shard_cli.exits import Exit
from shard_format.errors import InvalidArgument
from shardpack import ShardPackReader, ShardPackWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Run

HOSTILE = ["../up", "/etc/x", "a/../../b", "back\\slash", "C:x", "ctrl\x07", "a//b", "./dot"]


def make(path: Path, *records: tuple[str, str]) -> Path:
    with ShardPackWriter(path, fsync=False) as writer:
        for number, (key, name) in enumerate(records):
            writer.write(key, {name: bytes([number])})
    return path


@pytest.mark.parametrize("key", HOSTILE)
def test_unsafe_keys_are_refused_before_anything_is_written(
    key: str, pack: Run, tmp_path: Path
) -> None:
    shard = make(tmp_path / "x.shardpack", ("good", "txt"), (key, "txt"))
    out = tmp_path / "out" / "inner"
    result = pack("extract", shard, "-C", out)
    assert result.code == Exit.FINDING
    assert "(unsafe_path)" in result.err
    assert sorted(os.listdir(tmp_path)) in (["x.shardpack"], ["out", "x.shardpack"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != shard]


def test_unsafe_names_of_entries_are_refused_too(pack: Run, tmp_path: Path) -> None:
    shard = make(tmp_path / "x.shardpack", ("good", "a/../../../b"))
    for layout in ("stem", "dir"):
        result = pack("extract", shard, "-C", tmp_path / "out", "--layout", layout)
        assert result.code == Exit.FINDING


def test_the_rest_is_extracted_with_permission(pack: Run, tmp_path: Path) -> None:
    shard = make(tmp_path / "x.shardpack", ("../up", "txt"), ("good", "txt"))
    result = pack("extract", shard, "-C", tmp_path / "out", "--skip-unsafe")
    assert result.code == Exit.FINDING
    assert "skipped '../up.txt'" in result.err
    assert (tmp_path / "out" / "good.txt").read_bytes() == b"\x01"


def test_two_entries_for_one_path_are_refused(pack: Run, tmp_path: Path) -> None:
    shard = make(tmp_path / "x.shardpack", ("a", "b.c"), ("a.b", "c"))
    result = pack("extract", shard, "-C", tmp_path / "out")
    assert result.code == Exit.FINDING
    assert "(unsafe_path)" in result.err
    assert not (tmp_path / "out").exists()


def test_a_link_in_the_folder_leads_nowhere(pack: Run, tmp_path: Path) -> None:
    shard = make(tmp_path / "x.shardpack", ("sub/a", "txt"))
    out, outside = tmp_path / "out", tmp_path / "outside"
    out.mkdir()
    outside.mkdir()
    (out / "sub").symlink_to(outside)
    assert pack("extract", shard, "-C", out).code == Exit.FINDING
    assert not list(outside.iterdir())


def test_files_that_exist_are_kept(pack: Run, tmp_path: Path) -> None:
    shard = make(tmp_path / "x.shardpack", ("a", "txt"), ("b", "txt"))
    (tmp_path / "b.txt").write_text("mine")
    assert pack("extract", shard, "-C", tmp_path).code == Exit.USAGE
    assert not (tmp_path / "a.txt").exists()
    assert pack("extract", shard, "-C", tmp_path, "--force").code == 0
    assert (tmp_path / "b.txt").read_bytes() == b"\x01"


def test_a_damaged_entry_leaves_no_file_and_does_not_stop_the_others(
    pack: Run, tmp_path: Path
) -> None:
    shard = make(tmp_path / "x.shardpack", ("a", "txt"), ("b", "txt"), ("c", "txt"))
    with ShardPackReader(shard) as reader:
        offset = reader.record(1)["txt"].offset
    data = bytearray(shard.read_bytes())
    data[offset] ^= 1
    shard.write_bytes(data)
    result = pack("extract", shard, "-C", tmp_path / "out", "--json")
    assert result.code == Exit.FINDING
    assert [one["key"] for one in result.json["extracted"]] == ["a", "c"]
    assert result.json["errors"][0]["code"] == "checksum_mismatch"
    assert sorted(os.listdir(tmp_path / "out")) == ["a.txt", "c.txt"]


def test_dry_run_says_where_everything_would_go(pack: Run, tmp_path: Path) -> None:
    shard = make(tmp_path / "x.shardpack", ("a/1", "txt"), ("b", "txt"))
    result = pack("extract", shard, "a/*", "-C", "out", "--layout", "dir", "--dry-run")
    assert result.out == "out/a/1/txt\nwould extract 1 entry\n"
    assert not (tmp_path / "out").exists()


def test_the_same_command_goes_on_after_an_interruption(pack: Run, tmp_path: Path) -> None:
    shard, out = tmp_path / "x.shardpack", tmp_path / "out"
    with ShardPackWriter(shard, fsync=False, compression="zstd") as writer:
        writer.write("a", {"txt": "long " * 100, "jpg": b"picture"}, {"label": 1})
        writer.write("b", {"txt": "short"})
    assert pack("extract", shard, "-C", out).code == 0
    before = {path.name: path.stat().st_ino for path in out.iterdir()}
    (out / "b.txt").unlink()
    found = pack("extract", shard, "-C", out, "--json").json
    assert [one["path"] for one in found["extracted"]] == [str(out / "b.txt")]
    assert found["already_there"] == 3
    after = {path.name: path.stat().st_ino for path in out.iterdir()}
    assert {name: after[name] for name in before if name != "b.txt"} == {
        name: inode for name, inode in before.items() if name != "b.txt"
    }
    # The same size is not the same content, whether the entry is compressed or not.
    for name in ("a.txt", "a.jpg", "a.__metadata__.json"):
        content = (out / name).read_bytes()
        (out / name).write_bytes(bytes(len(content)))
        (out / "b.txt").unlink(missing_ok=True)
        result = pack("extract", shard, "-C", out)
        assert result.code == Exit.USAGE
        assert "the file exists, with other content; nothing was written" in result.err
        assert not (out / "b.txt").exists()
        with pytest.raises(InvalidArgument, match="with other content"):
            shardpack.unpack(shard, out)
        (out / name).write_bytes(content)
    done = shardpack.unpack(shard, out)
    assert (done.files, done.size_bytes, done.kept) == (1, 5, 3)


def test_entries_are_not_kept_in_memory(pack: Run, tmp_path: Path) -> None:
    shard = tmp_path / "x.shardpack"
    with ShardPackWriter(shard, fsync=False, compression="zstd") as writer:
        for number in range(60):
            writer.write(str(number), {"bin": bytes(1_000_000)})
    calls: list[Callable[[Path], object]] = [
        lambda out: pack("extract", shard, "-C", out),
        lambda out: shardpack.unpack(shard, out),
        lambda out: shardpack.unpack(shard, out),  # all are there
    ]
    for number, extract in enumerate(calls):
        tracemalloc.start()
        extract(tmp_path / f"out{min(number, 1)}")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20_000_000
    assert len(os.listdir(tmp_path / "out1")) == 60
