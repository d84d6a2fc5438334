"""Packs from packs, tar files and episodes: `merge`, `split`, `join`, `from-tar`, `to-tar`, `pack-episodes`."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardpack
from shard_cli.exits import Exit
from shard_train.packed_episodes import open_episode
from shardpack import ShardPackWriter
from tests.shardpack.data.make_mds import HERE, rows
from wshard import add_lane

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import MakeEpisode, Run

MDS = HERE / "plain"
PROGRAM = (sys.executable, "-m", "shard_cli.shardpack")


def write(path: Path, keys: range, name: str = "txt", **options: object) -> Path:
    with ShardPackWriter(path, fsync=False, **options) as writer:  # type: ignore[arg-type] # of one test each
        for number in keys:
            writer.write(f"r{number:03}", {name: b"line\n" * (100 + number)}, {name: number})
    return path


@pytest.fixture
def all_of_it(tmp_path: Path) -> Path:
    return write(tmp_path / "all.shardpack", range(40), compression="zstd")


def test_merged_packs_have_all_records(pack: Run, all_of_it: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.shardpack", range(15), compression="lz4")
    write(tmp_path / "b.shardpack", range(15, 40))
    merged = tmp_path / "m.shardpack"
    result = pack("merge", tmp_path / "a.shardpack", tmp_path / "b.shardpack", "-o", merged)
    assert (result.code, "40 records in 1 shard" in result.out) == (0, True)
    assert pack("diff", all_of_it, merged).code == 0
    with shardpack.open(merged) as dataset:
        # Not decoded and encoded again.
        assert [dataset[n]["txt"].compression for n in (0, 20)] == ["lz4", "none"]
    facts = pack(
        *("merge", tmp_path / "?.shardpack", "-o", tmp_path / "s-%02d.shardpack"),
        *("--shard-records", "15", "--json"),
    )
    # The pattern finds the merged pack, too: its keys come twice.
    assert facts.code == Exit.USAGE
    assert "1 complete shard" not in facts.err


def test_a_key_that_comes_twice_is_named_and_complete_shards_are_told(
    pack: Run, all_of_it: Path, tmp_path: Path
) -> None:
    write(tmp_path / "b.shardpack", range(39, 42))
    command = ("merge", all_of_it, tmp_path / "b.shardpack", "-o", tmp_path / "m-%02d.shardpack")
    result = pack(*command, "--shard-records", "10")
    assert result.code == Exit.USAGE
    assert "'r039'" in result.err
    assert "4 complete shards so far" in result.err
    assert "--force starts again" in result.err
    assert not list(tmp_path.glob(".*"))


def test_inputs_are_never_replaced(pack: Run, all_of_it: Path, tmp_path: Path) -> None:
    before = all_of_it.read_bytes()
    link = tmp_path / "link.shardpack"
    link.symlink_to(all_of_it)
    for output in (all_of_it, link):
        result = pack("merge", all_of_it, "-o", output, "--force")
        assert (result.code, "being read" in result.err) == (Exit.USAGE, True)
    (tmp_path / "p-0.shardpack").write_bytes(before)
    result = pack(
        *("split", tmp_path / "p-0.shardpack", "-o", tmp_path / "p-%d.shardpack"),
        *("--parts", "2", "--force"),
    )
    assert (result.code, "being read" in result.err) == (Exit.USAGE, True)
    assert (tmp_path / "p-0.shardpack").read_bytes() == all_of_it.read_bytes() == before


@pytest.mark.parametrize(
    ("how", "shards"),
    [(("--parts", "3"), 3), (("--shard-records", "15"), 3), (("--shard-size", "4K"), 6)],
)
def test_parts_hold_everything_once(
    how: tuple[str, ...], shards: int, pack: Run, tmp_path: Path
) -> None:
    whole = write(tmp_path / "whole.shardpack", range(40))
    output = tmp_path / "part-%03d.shardpack"
    facts = pack("split", whole, "-o", output, *how, "--json").json
    assert facts["records"] == 40
    assert len(facts["shards"]) >= shards
    assert pack("diff", "--stored", whole, tmp_path / "part-*.shardpack").code == 0


def test_shares_are_the_same_every_time(pack: Run, all_of_it: Path, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        result = pack(
            *("split", all_of_it, "--share", f"{folder}/train-%02d.shardpack=0.7"),
            *("--share", f"{folder}/val.shardpack=0.3", "--seed", "5", "--json"),
        )
        assert result.code == 0
        assert sum(part["records"] for part in result.json["parts"]) == 40
        assert all(part["records"] > 3 for part in result.json["parts"])
        found.append([part["records"] for part in result.json["parts"]])
    assert found[0] == found[1]
    assert pack("diff", tmp_path / "one", tmp_path / "two").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("-o", "p-%d.shardpack"),
        ("-o", "plain.shardpack", "--parts", "2"),
        ("-o", "p-7.shardpack", "--parts", "2"),
        ("--share", "a.shardpack"),
        ("--share", "a.shardpack=0.5"),
        ("--share", "a.shardpack=1", "-o", "p-%d.shardpack"),
    ],
)
def test_split_says_what_is_missing(
    arguments: tuple[str, ...],
    pack: Run,
    all_of_it: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pack("split", all_of_it, *arguments).code == Exit.USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["all.shardpack"]


def test_columns_are_joined_by_key(pack: Run, tmp_path: Path) -> None:
    left = write(tmp_path / "left.shardpack", range(5), "left.txt")
    right = write(tmp_path / "right.shardpack", range(5), "right.txt")
    out = tmp_path / "both.shardpack"
    assert pack("join", left, right, "-o", out).code == 0
    with shardpack.open(out) as dataset:
        assert dataset[3].names == ("left.txt", "right.txt")
        assert dataset[3].metadata == {"left.txt": 3, "right.txt": 3}
    other = write(tmp_path / "other.shardpack", range(1, 7), "other.txt")
    result = pack("join", left, other, "-o", tmp_path / "x.shardpack")
    assert result.code == Exit.USAGE
    assert "r000" in result.err
    assert not (tmp_path / "x.shardpack").exists()


def test_names_are_put_before_columns_with_the_same_entries(pack: Run, tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{name}.shardpack", range(3)) for name in "ab")
    result = pack("join", a, b, "-o", tmp_path / "x.shardpack")
    assert (result.code, "NAME=PACK" in result.err) == (Exit.USAGE, True)
    assert pack("join", f"left={a}", f"right={b}", "-o", tmp_path / "x.shardpack").code == 0
    with shardpack.open(tmp_path / "x.shardpack") as dataset:
        assert dataset[0].names == ("left.txt", "right.txt")
    assert pack("join", a, "-o", tmp_path / "y.shardpack").code == Exit.USAGE


def test_updates_win(pack: Run, tmp_path: Path) -> None:
    main = write(tmp_path / "main.shardpack", range(4))
    with ShardPackWriter(tmp_path / "new.shardpack") as writer:
        writer.write("r002", {"txt": b"corrected"})
    out = tmp_path / "out.shardpack"
    assert pack("join", "--overlay", main, tmp_path / "new.shardpack", "-o", out).code == 0
    with shardpack.open(out) as dataset:
        assert len(dataset) == 4
        assert dataset["r002"]["txt"].read() == b"corrected"
        assert dataset["r001"]["txt"].read() == b"line\n" * 101


def test_tar_files_come_and_go_byte_for_byte(pack: Run, photos: Path, tmp_path: Path) -> None:
    tar = tmp_path / "in.tar.gz"
    with tarfile.open(tar, "w:gz") as archive:
        for path in sorted(photos.rglob("*.j*")):
            archive.add(path, path.relative_to(photos).as_posix())
    shard, back = tmp_path / "t.shardpack", tmp_path / "back.tar"
    result = pack("from-tar", tar, "-o", shard, "-c", "lz4")
    assert (result.code, "12 records in 1 shard" in result.out) == (0, True)
    assert pack("create", "-i", photos, "-o", tmp_path / "p.shardpack").code == 0
    assert pack("diff", shard, tmp_path / "p.shardpack").code == 0
    assert pack("to-tar", shard, "-o", back).code == 0
    with tarfile.open(back) as archive:
        for member in archive:
            extracted = archive.extractfile(member)
            assert extracted is not None
            assert extracted.read() == (photos / member.name).read_bytes()
        assert len(archive.getnames()) == 24
    assert pack("to-tar", shard, "-o", back).code == Exit.USAGE
    facts = pack(
        "to-tar", shard, "-o", tmp_path / "s-%02d.tar", "--tar-records", "5", "--json"
    ).json
    assert [len(facts["tars"]), facts["records"]] == [3, 12]


def test_tar_files_pass_through_pipes(photos: Path, tmp_path: Path) -> None:
    script = (
        f"tar -C {photos} --sort=name -cf - cats dogs | {' '.join(PROGRAM)} from-tar - -o t.shardpack && "
        f"{' '.join(PROGRAM)} to-tar t.shardpack -o - | tar -xf - -C out"
    )
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for path in photos.rglob("*.j*"):
        assert (tmp_path / "out" / path.relative_to(photos)).read_bytes() == path.read_bytes()


def test_members_of_no_sample_are_errors_or_named(pack: Run, tmp_path: Path) -> None:
    tar = tmp_path / "in.tar"
    with tarfile.open(tar, "w") as archive:
        for name in ("a.txt", "README"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"text"))
    shard = tmp_path / "t.shardpack"
    result = pack("from-tar", tar, "-o", shard)
    assert result.code == Exit.USAGE
    assert "README" in result.err
    assert not shard.exists()
    result = pack("from-tar", tar, "-o", shard, "--skip-orphans", "--json")
    assert result.code == Exit.IO
    assert (result.json["records"], len(result.json["left_out"])) == (1, 1)
    assert "README" in result.err


def test_records_are_filtered_by_key_and_field(pack: Run, tmp_path: Path) -> None:
    shard, out = tmp_path / "x.shardpack", tmp_path / "out.shardpack"
    with ShardPackWriter(shard, fsync=False) as writer:
        for key, fields in (
            ("cat/1", {"n": 1, "in": {"split": "val"}}),
            ("cat/2", {"n": True, "in": {"split": "train"}}),
            ("dog/1", {"n": "1", "in": {"split": "val"}}),
            ("dog/2", {}),
        ):
            writer.write(key, {"txt": key}, fields)

    def kept(*options: str) -> list[str]:
        assert pack("filter", shard, *options, "-o", out, "-f").code == 0
        with shardpack.open(out) as dataset:
            return list(dataset.keys())

    assert kept("cat/*") == ["cat/1", "cat/2"]
    assert kept("cat/1", "dog/*") == ["cat/1", "dog/1", "dog/2"]
    assert kept("--prefix", "dog", "--field", "in.split=val") == ["dog/1"]
    # Text and a number look the same on the command line; a truth value is neither.
    assert kept("--field", "n=1") == ["cat/1", "dog/1"]
    assert kept("--field", "n=true") == ["cat/2"]
    assert kept("cat/*", "--field", "n=1", "--field", "in.split=val") == ["cat/1"]
    result = pack("filter", shard, "-o", out, "-f", "--field", "n=7")
    assert (result.code, "no record fits" in result.err) == (0, True)
    new = tmp_path / "new.shardpack"
    for wrong in (["cow/*"], ["cow"], [], ["--field", "n"]):
        assert pack("filter", shard, *wrong, "-o", new).code != 0
        assert not new.exists()


def test_records_are_sorted_by_key_or_field(pack: Run, tmp_path: Path) -> None:
    shard, out = tmp_path / "x.shardpack", tmp_path / "out.shardpack"
    with ShardPackWriter(shard, fsync=False) as writer:
        for key, value in (("b", 10), ("c", 9.5), ("a", "text"), ("d", 9.5)):
            writer.write(key, {}, {"score": {"value": value}})

    def sorted_keys(*options: str) -> list[str]:
        assert pack("sort", shard, "-o", out, "-f", *options).code == 0
        with shardpack.open(out) as dataset:
            return list(dataset.keys())

    assert sorted_keys() == ["a", "b", "c", "d"]
    assert sorted_keys("--by", "score.value") == ["c", "d", "b", "a"]
    assert sorted_keys("-r") == ["d", "c", "b", "a"]
    result = pack("sort", shard, "-o", out, "-f", "--by", "score")
    assert (result.code, "cannot sort record 'b' by 'score'" in result.err) == (Exit.USAGE, True)
    with shardpack.open(out) as dataset:  # what was there stays
        assert list(dataset.keys()) == ["d", "c", "b", "a"]


def test_a_sample_is_the_same_every_time(pack: Run, all_of_it: Path, tmp_path: Path) -> None:
    keys = []
    for number, count in enumerate(("10", "0.25", "25%")):
        out = tmp_path / f"s{number}.shardpack"
        assert pack("sample", all_of_it, count, "-o", out, "--seed", "3").code == 0
        with shardpack.open(out) as dataset:
            keys.append(list(dataset.keys()))
    assert keys[0] == keys[1] == keys[2] == sorted(keys[0])
    assert len(keys[0]) == 10
    for wrong in ("x", "41", "-1", "1.5"):
        assert pack("sample", all_of_it, wrong, "-o", tmp_path / "y").code == Exit.USAGE


def test_overlays_add_and_delete_keys(pack: Run, all_of_it: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "more.shardpack", range(39, 42))
    (tmp_path / "bad.txt").write_text("r000\nr007\n")
    command = ("join", "--overlay", all_of_it, more, "-o", tmp_path / "new.shardpack")
    result = pack(*command)
    assert (result.code, "pass --add to add them" in result.err) == (Exit.USAGE, True)
    assert pack(*command, "--add", "--delete", tmp_path / "bad.txt").code == 0
    with shardpack.open(tmp_path / "new.shardpack") as dataset:
        expected = [f"r{number:03}" for number in range(42) if number not in (0, 7)]
        assert list(dataset.keys()) == expected
    assert pack("join", all_of_it, more, "-o", tmp_path / "x", "--add").code == Exit.USAGE


def test_metadata_of_records_goes_through_tar_files(
    pack: Run, all_of_it: Path, tmp_path: Path
) -> None:
    tar, back = tmp_path / "x.tar", tmp_path / "back.shardpack"
    assert pack("to-tar", all_of_it, "-o", tar).code == 0
    assert pack("from-tar", tar, "-o", back, "--metadata-entry", "metadata.json").code == 0
    assert pack("diff", all_of_it, back).code == 0


def test_folders_of_images_become_labelled_records(pack: Run, photos: Path, tmp_path: Path) -> None:
    shard = tmp_path / "i.shardpack"
    result = pack("from-images", photos, "-o", shard)
    assert (result.code, "--skip-others" in result.err) == (Exit.USAGE, True)
    assert not shard.exists()
    result = pack("from-images", photos, "-o", shard, "--skip-others", "--json")
    assert result.code == Exit.IO
    assert (result.json["records"], len(result.json["left_out"])) == (12, 12)
    with shardpack.open(shard) as dataset:
        assert dataset["cats/0001"].metadata == {"label": "cats"}
        assert dataset["cats/0001"]["jpg"].read() == (photos / "cats" / "0001.jpg").read_bytes()


def test_what_images_leave_out_is_summed_up(pack: Run, photos: Path, tmp_path: Path) -> None:
    shard = tmp_path / "i.shardpack"
    (photos / "README").write_text("x")
    result = pack("from-images", photos, "-o", shard, "--skip-others")
    (line,) = result.err.splitlines()
    assert "left out 13 files: 12 .json (cats/0001.json), 1 without a suffix (README): " in line
    result = pack("from-images", photos, "-o", shard, "--skip-others", "-f", "-v")
    assert len(result.err.splitlines()) == 13


def test_packs_become_tables_and_changes_are_said(pack: Run, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = arrow.table({"id": ["a", "b"], "t": arrow.array([1, 2], arrow.timestamp("ns"))})
    parquet.write_table(rows, tmp_path / "t.parquet")
    shard, table = tmp_path / "t.shardpack", tmp_path / "u.parquet"
    result = pack("from-table", tmp_path / "t.parquet", "-o", shard, "--key", "id")
    assert result.err == "changed column 't': timestamp[ns] as text (2 values)\n"
    assert pack("to-table", shard, "-o", table).code == 0
    assert parquet.read_table(table).to_pydict() == {
        "__key__": ["a", "b"],
        "id": ["a", "b"],
        "t": ["1970-01-01 00:00:00.000000001", "1970-01-01 00:00:00.000000002"],
    }
    assert pack("to-table", shard, "-o", table).code == Exit.USAGE
    facts = pack("to-table", shard, "-o", table, "-f", "--column", "id", "--json").json
    assert (facts["records"], facts["changed"]) == (2, [])
    assert parquet.read_table(table).schema.names == ["__key__", "id"]


def test_tables_become_records(pack: Run, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"id": ["a", "b"], "text": ["one", "two"], "raw": [b"1", b"2"], "n": [5, 6]}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    shard = tmp_path / "t.shardpack"
    command = ("from-table", tmp_path / "t.parquet", "-o", shard, "--key", "id")
    assert pack(*command, "--entry", "text=text.txt").code == 0
    with shardpack.open(shard) as dataset:
        assert list(dataset.keys()) == ["a", "b"]
        assert dataset["b"]["text.txt"].read() == b"two"
        assert dataset["b"].metadata["n"] == 6
    assert pack(*command, "--entry", "text").code == Exit.USAGE
    assert pack("ls", shard, "--json").json["records"][0]["metadata"]["n"] == 5


def test_mds_data_sets_become_records(pack: Run, tmp_path: Path) -> None:
    shard = tmp_path / "m.shardpack"
    result = pack("from-mds", MDS, "-o", shard, "-c", "lz4", "--json")
    assert result.code == 0
    expected = len(list(rows()))
    assert (result.json["records"], len(result.json["shards"])) == (expected, 1)
    assert pack("verify", shard).code == 0
    result = pack("from-mds", MDS, "-o", shard, "-f", "--key", "colour")
    assert (result.code, "does not exist" in result.err) == (Exit.USAGE, True)
    # What was there stays until there is something new.
    assert pack("verify", shard).code == 0


def test_episodes_are_packed_and_restored_byte_for_byte(
    pack: Run, make_episode: MakeEpisode, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    for number in range(4):
        make_episode(f"runs/day{number % 2}/ep_{number}.wshard", steps=20)
    lane = np.zeros((20, 3), np.float32)
    add_lane(folder / "day0" / "ep_0.wshard", "omen/joint_pos/new", lane, name="new")
    (folder / "notes.txt").write_text("not an episode")
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.wshard")
        if path.is_file()
    }
    pattern = tmp_path / "eps-%02d.shardpack"
    command = ("pack-episodes", folder, "-o", pattern, "--shard-records", "3")
    result = pack(*command, "--json")
    assert result.code == 0
    assert (result.json["records"], result.json["sidecars"]) == (4, 1)
    assert [len(result.json["shards"]), len(result.json["left_out"])] == [2, 1]
    assert "notes.txt" in result.err
    assert pack("extract", tmp_path / "eps-*.shardpack", "-C", tmp_path / "back").code == 0
    restored = {
        path.relative_to(tmp_path / "back").as_posix(): path.read_bytes()
        for path in (tmp_path / "back").rglob("*")
        if path.is_file()
    }
    assert restored == files
    make_episode("runs/day9/ep_9.wshard", steps=5)
    assert pack(*command).code == Exit.USAGE
    result = pack(*command, "--resume", "--json")
    assert (result.code, result.json["records"]) == (0, 1)
    assert pack("info", tmp_path / "eps-*.shardpack", "--json").json["files"][0]["records"] == 5
    with shardpack.open(tmp_path / "eps-*.shardpack") as dataset:
        episode = open_episode(dataset["day0/ep_0"])
        assert episode.length == 20


def test_a_folder_without_episodes_is_wrong_use(pack: Run, photos: Path, tmp_path: Path) -> None:
    result = pack("pack-episodes", photos, "-o", tmp_path / "x.shardpack")
    assert result.code == Exit.USAGE
    assert not (tmp_path / "x.shardpack").exists()
