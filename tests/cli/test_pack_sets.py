"""Sets on the command line: parts of several machines, set files, and what `verify` says about them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

import shardpack
from shard_format import FileReference, Manifest
from shardpack import ShardSet

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import MakeEpisode, Run


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty files; the test runs beside them."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}.jpg").write_bytes(bytes([number]) * 100)
    return folder


OUT = ("--output", "train-%06d.shardpack", "--shard-records", "4")


def test_parts_of_three_machines_become_the_set_that_one_machine_writes(
    photos: Path, pack: Run
) -> None:
    for part in ("2/3", "3/3"):
        assert pack("create", "-i", photos, *OUT, "--part", part).code == 0
    result = pack("commit", "-o", "train-%06d.shardpack")
    assert (result.code, "1 of 3 parts are missing or not complete: 1" in result.err) == (2, True)
    assert sorted(os.listdir()) == ["photos", "train.shardpack-parts"]
    # A part that was interrupted goes on, as a set does.
    assert pack("create", "-i", photos, *OUT, "--part", "1/3", "--resume").code == 0
    result = pack("commit", "-o", "train-%06d.shardpack", "--json")
    fields = json.loads(result.out)
    assert (fields["records"], len(fields["shards"])) == (30, 9)
    assert fields["set_file"] == "train.shardpack-set"
    assert pack("create", "-i", photos, "-o", "one.shardpack").code == 0
    with shardpack.open("train.shardpack-set") as parts, shardpack.open("one.shardpack") as one:
        assert [(r.key, r.read_all()) for r in parts] == [(r.key, r.read_all()) for r in one]
    result = pack("verify", "train.shardpack-set")
    assert "train.shardpack-set: ok, lists 9 shards" in result.out
    assert "9 shards, 30 records, all ok" in result.out


def test_machines_that_list_other_files_do_not_make_one_set(photos: Path, pack: Run) -> None:
    assert pack("create", "-i", photos, *OUT, "--part", "1/2").code == 0
    (photos / "99.jpg").write_bytes(b"new")
    assert pack("create", "-i", photos, *OUT, "--part", "2/2").code == 0
    result = pack("commit", "-o", "train-%06d.shardpack")
    assert (result.code, "'revision' differs" in result.err) == (2, True)
    assert pack("create", "-i", photos, *OUT, "--part", "1/2", "--force").code == 0
    assert pack("commit", "-o", "train-%06d.shardpack").code == 0
    # Parts that say which run they belong to, over a set that is there.
    for part in ("1/2", "2/2"):
        command = ("create", "-i", photos, *OUT, "--part", part, "--revision", "second run")
        assert pack(*command).code == 0
    result = pack("commit", "-o", "train-%06d.shardpack")
    assert (result.code, "pass --force" in result.err) == (2, True)
    assert pack("commit", "-o", "train-%06d.shardpack", "--force").code == 0
    assert "second run" in pack("info", "train.shardpack-set").out
    assert sorted(os.listdir()) == sorted(
        ["photos", "train.shardpack-set", *ShardSet.read("train.shardpack-set").names]
    )


@pytest.mark.parametrize("part", ["3", "0/2", "3/2", "1/x", "-1/2", "1/0", "1/99999999"])
def test_a_part_that_cannot_be_is_refused(photos: Path, pack: Run, part: str) -> None:
    assert pack("create", "-i", photos, *OUT, f"--part={part}").code == 2
    assert os.listdir() == ["photos"]


def test_a_part_of_one_file_is_refused(photos: Path, pack: Run) -> None:
    result = pack("create", "-i", photos, "-o", "one.shardpack", "--part", "1/2")
    assert (result.code, "name of a set" in result.err) == (2, True)


def test_packing_a_folder_leaves_out_the_set_file_and_the_parts_in_it(
    photos: Path, pack: Run
) -> None:
    output = ("--output", photos / "train-%06d.shardpack")
    assert pack("create", "-i", photos, *output, "--part", "1/2").code == 0
    assert pack("create", "-i", photos, *output, "--part", "2/2").code == 0
    assert pack("commit", *output).code == 0
    assert pack("create", "-i", photos, *output, "--force").code == 0
    with shardpack.open(photos / "train.shardpack-set") as dataset:
        assert list(dataset.keys()) == [f"{number:02}" for number in range(30)]


def test_shard_verify_checks_the_packs_that_a_manifest_names(
    photos: Path, pack: Run, run: Run
) -> None:
    assert pack("create", "-i", photos, *OUT).code == 0
    names = ShardSet.read("train.shardpack-set").names
    references = [FileReference.to_file(name, relative_to=".") for name in names]
    Manifest(references).write("all.shard")
    for manifest in ("all.shard", "train.shardpack-set"):
        result = run("verify", manifest)
        assert result.code == 0
        assert f"{names[3]}: ok, 4 records, 4 entries" in result.out
    # A pack that was damaged before it was hashed fits the manifest, and is damaged.
    data = bytearray((photos.parent / names[3]).read_bytes())
    data[200] ^= 1
    (photos.parent / names[3]).write_bytes(data)
    references[3] = FileReference.to_file(names[3], relative_to=".")
    Manifest(references).write("all.shard")
    result = run("verify", "all.shard")
    assert (result.code, "checksum_mismatch" in result.out) == (1, True)
    result = run("verify", "train.shardpack-set")
    assert (result.code, "the SHA-256 is not what the manifest says" in result.out) == (1, True)


def test_a_damaged_set_file_shows_when_its_shards_are_verified(photos: Path, pack: Run) -> None:
    assert pack("create", "-i", photos, *OUT).code == 0
    data = bytearray((photos.parent / "train.shardpack-set").read_bytes())
    data[-30] ^= 1
    (photos.parent / "train.shardpack-set").write_bytes(data)
    for what in ("train-*.shardpack", ".", "train.shardpack-set"):
        result = pack("verify", what)
        assert (result.code, "checksum_mismatch" in result.out) == (1, True)
    assert pack("verify", "train-000000.shardpack").code == 0
    # The next writer replaces it.
    assert pack("create", "-i", photos, *OUT, "--resume").code == 0
    assert pack("verify", "train.shardpack-set").code == 0


def test_episodes_can_be_packed_in_parts_and_by_several_processes(
    pack: Run, make_episode: MakeEpisode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for number in range(5):
        make_episode(f"eps/ep_{number}.wshard")
    for name in ("one", "parts", "jobs"):
        (tmp_path / name).mkdir()
    output = {
        name: ("-o", tmp_path / name / "e-%02d.shardpack") for name in ("one", "parts", "jobs")
    }
    command = ("pack-episodes", tmp_path / "eps")
    assert pack(*command, *output["one"]).code == 0
    for part in ("2/2", "1/2"):
        assert pack(*command, *output["parts"], "--part", part).code == 0
    assert pack("commit", *output["parts"]).code == 0
    assert pack(*command, *output["jobs"], "--jobs", "2").code == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "jobs")
    with shardpack.open(tmp_path / "one") as one, shardpack.open(tmp_path / "jobs") as jobs:
        assert [(r.key, r.read_all()) for r in jobs] == [(r.key, r.read_all()) for r in one]
        assert len(jobs.shards) == 2
    assert pack(*command, *output["jobs"], "--jobs", "2").code == 2
    assert pack(*command, *output["jobs"], "--jobs", "2", "--force").code == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "jobs")
    assert pack(*command, "-o", tmp_path / "x.shardpack", "--jobs", "2").code == 2


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
