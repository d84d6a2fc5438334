"""`shardpack create`: what becomes a record, under which key, in which shard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardpack
from shard_cli.commands.create_pack import split_name
from shard_cli.exits import Exit
from shard_cli.pack_output import parse_target

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

PROGRAM = (sys.executable, "-m", "shard_cli.shardpack")


def contents(*shards: Path) -> dict[str, dict[str, bytes]]:
    with shardpack.open([str(shard) for shard in shards]) as dataset:
        return {record.key: record.read_all() for record in dataset}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_documented_line_works_as_it_is_written(photos: Path) -> None:
    line = (
        "create --input photos --output dataset-train-000000.shardpack --record-size-limit 1GB "
        '--compression lz4 --metadata creator="MyName" training="true"'
    )
    done = subprocess.run(
        f"{sys.executable} -m shard_cli.shardpack {line}",
        shell=True,
        cwd=photos.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "12 records with 24 entries in 1 shard" in done.stdout
    with shardpack.open(photos.parent / "dataset-train-000000.shardpack") as dataset:
        assert dataset.metadata["user"] == {"creator": "MyName", "training": "true"}
        assert list(dataset.keys())[:2] == ["cats/0001", "cats/0003"]
        record = dataset["dogs/0004"]
        assert record["json"].decode()["label"] == 4
        assert record["json"].compression == "lz4"
        assert (record["jpg"].content_type, record["jpg"].compression) == ("image/jpeg", "none")


def test_what_is_packed_comes_out_again_as_the_same_files(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    shard = tmp_path / "p.shardpack"
    assert pack("create", "-i", photos, "-o", shard).code == 0
    assert pack("extract", shard, "-C", tmp_path / "out").code == 0
    assert files_of(tmp_path / "out") == files_of(photos)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd:9"])
def test_jobs_do_not_change_a_byte(
    compression: str, pack: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    folder = tmp_path / "in"
    folder.mkdir()
    # More than threads hand over at once, and one that is larger than that.
    for number in range(300):
        (folder / f"{number}.txt").write_bytes(b"some text " * number)
    (folder / "large.txt").write_bytes(os.urandom(3_000_000))
    outputs = []
    for jobs in (1, 2, 5):
        pattern = tmp_path / f"j{jobs}-%02d.shardpack"
        result = pack(
            "create", "-i", folder, "-o", pattern, "-c", compression, "-j", str(jobs),
            "--shard-size", "400K", "--json",
        )  # fmt: skip
        shards = [tmp_path / shard["file"] for shard in result.json["shards"]]
        assert len(shards) >= 2
        outputs.append([shard.read_bytes() for shard in shards])
    assert outputs[0] == outputs[1] == outputs[2]


def test_names_are_split_at_the_first_dot_or_at_the_last(pack: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.left.jpg", "a.right.jpg", "a.json", "2024.01.05.jpg", "README"):
        (folder / name).write_text(name)
    first, last = tmp_path / "first.shardpack", tmp_path / "last.shardpack"
    assert pack("create", "-i", folder, "-o", first).code == 0
    assert pack("create", "-i", folder, "-o", last, "--group", "suffix").code == 0
    assert {key: list(entries) for key, entries in contents(first).items()} == {
        "2024": ["01.05.jpg"],
        "README": ["__file__"],
        "a": ["json", "left.jpg", "right.jpg"],
    }
    assert {key: list(entries) for key, entries in contents(last).items()} == {
        "2024.01.05": ["jpg"],
        "README": ["__file__"],
        "a": ["json"],
        "a.left": ["jpg"],
        "a.right": ["jpg"],
    }


@given(
    st.lists(st.text(st.characters(exclude_characters="/\0\r\n"), min_size=1), min_size=1),
    st.sampled_from(["stem", "suffix"]),
)
def test_key_dot_name_is_the_path_again(parts: list[str], group: str) -> None:
    path = "/".join(parts)
    key, name = split_name(path, group, "root")
    assert key
    assert name
    assert path in (f"{key}.{name}", key)


def test_what_readers_would_refuse_to_decompress_is_stored_raw(
    pack: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardpack._record_encoder._LARGEST_COMPRESSED", 5000)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "large.txt").write_bytes(bytes(5001))
    (folder / "small.txt").write_bytes(bytes(5000))
    shard = tmp_path / "p.shardpack"
    assert pack("create", "-i", folder, "-o", shard, "-c", "zstd").code == 0
    with shardpack.open(shard) as dataset:
        assert dataset["large"]["txt"].compression == "none"
        assert dataset["small"]["txt"].compression == "zstd"


def test_a_folder_can_be_a_record(pack: Run, photos: Path, tmp_path: Path) -> None:
    (photos / "top.txt").write_text("top")
    shard = tmp_path / "d.shardpack"
    assert pack("create", "-i", photos, "-o", shard, "--group", "dir").code == 0
    found = contents(shard)
    assert list(found) == ["photos", "cats", "dogs"]
    assert list(found["cats"])[:2] == ["0001.jpg", "0001.json"]
    assert found["photos"] == {"top.txt": b"top"}
    assert pack("extract", shard, "cats", "-C", tmp_path / "out", "--layout", "dir").code == 0
    assert files_of(tmp_path / "out" / "cats") == files_of(photos / "cats")


def test_a_manifest_says_key_files_and_metadata(pack: Run, photos: Path, tmp_path: Path) -> None:
    manifest = photos / "list.jsonl"
    rows = [
        {
            "key": "zwei Hunde 🐕",
            "files": {"left.jpg": "dogs/0000.jpg", "right.jpg": "dogs/0002.jpg"},
            "metadata": {"label": "dog", "weights": [0.5, 1]},
        },
        {"key": "a/cat", "files": ["cats/0001.jpg"]},
    ]
    manifest.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    shard = tmp_path / "m.shardpack"
    assert pack("create", "-o", shard, "--group", manifest).code == 0
    with shardpack.open(shard) as dataset:
        assert list(dataset.keys()) == ["zwei Hunde 🐕", "a/cat"]
        assert dataset[0].metadata == {"label": "dog", "weights": [0.5, 1]}
        assert dataset[0]["right.jpg"].read() == (photos / "dogs" / "0002.jpg").read_bytes()
        assert dataset[1].names == ("0001.jpg",)
        assert dataset[1].metadata == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[1]", "not a JSON object"),
        ("{", "not a JSON object"),
        ('{"files": []}', '"key" must be'),
        ('{"key": "a", "files": "x"}', '"files" must be'),
        ('{"key": "a", "files": [1]}', '"files" must be'),
        ('{"key": "a", "files": [], "metadata": 3}', '"metadata" must be'),
        ('{"key": "a", "files": [], "label": 3}', "unknown field ['label']"),
        ('{"key": "a", "files": ["x/1", "y/1"]}', "the same name"),
    ],
)
def test_a_bad_line_of_a_manifest_is_named(
    line: str, problem: str, pack: Run, tmp_path: Path
) -> None:
    manifest = tmp_path / "list.jsonl"
    manifest.write_text('{"key": "fine", "files": []}\n' + line + "\n")
    result = pack("create", "-o", tmp_path / "m.shardpack", "--group", manifest)
    assert result.code == Exit.USAGE
    assert "list.jsonl, line 2" in result.err
    assert problem in result.err


def test_keys_that_come_twice_in_a_manifest_are_named_with_their_lines(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    manifest = photos / "list.jsonl"
    line = '{"key": "a", "files": ["cats/0001.jpg"]}\n'
    manifest.write_text(line + line)
    shard = tmp_path / "m.shardpack"
    result = pack("create", "-o", shard, "--group", manifest, "--skip-unreadable")
    assert result.code == Exit.FINDING
    assert "line 2: the same key as line 1" in result.err
    assert not shard.exists()


def test_a_list_comes_from_a_file_or_a_pipe_in_its_own_order(photos: Path, tmp_path: Path) -> None:
    paths = ["dogs/0002.jpg", "./cats/0003.jpg", "dogs/0002.json", str(photos / "cats/0001.jpg")]
    (tmp_path / "list.txt").write_text("\r\n".join(paths))
    for name, text in (("-", "\0".join(paths)), (str(tmp_path / "list.txt"), "")):
        shard = tmp_path / f"{len(text)}.shardpack"
        done = subprocess.run(
            [*PROGRAM, "create", "--input", name, "--output", str(shard)],
            cwd=photos,
            input=text.encode(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = contents(shard)
        assert list(found) == ["dogs/0002", "cats/0003", "cats/0001"]
        assert list(found["dogs/0002"]) == ["jpg", "json"]


def test_keys_of_a_list_are_relative_to_a_base(
    pack: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos / "cats")
    (tmp_path / "list.txt").write_text(f"{photos / 'dogs' / '0002.jpg'}\n{photos}/dogs\n")
    shard = tmp_path / "b.shardpack"
    result = pack("create", "-i", tmp_path / "list.txt", "-o", shard)
    assert result.code == Exit.USAGE
    assert "--base DIR" in result.err
    result = pack("create", "-i", tmp_path / "list.txt", "-o", shard, "--base", photos)
    assert result.code == 0
    assert "a folder in a list of files" in result.err
    assert list(contents(shard)) == ["dogs/0002"]


def test_names_in_any_script_are_packed(pack: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    names = [
        "日本/猫 1.jpg",
        "日本/猫 1.json",
        "é.txt",
        "e\u0301.txt",
        "🐕.tar.gz",
        "with space.txt",
    ]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    shard = tmp_path / "u.shardpack"
    assert pack("create", "-i", folder, "-o", shard).code == 0
    found = contents(shard)
    assert {f"{key}.{name}" for key, entries in found.items() for name in entries} == set(names)
    assert found["日本/猫 1"]["json"] == "日本/猫 1.json".encode()


def test_links_hidden_files_pipes_and_empty_folders_are_named_and_no_data(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    (photos / ".DS_Store").write_text("x")
    (photos / "link.jpg").symlink_to("cats/0001.jpg")
    os.mkfifo(photos / "pipe")
    (photos / "nothing").mkdir()
    result = pack("create", "-i", photos, "-o", tmp_path / "p.shardpack")
    assert result.code == 0
    for name, reason in (
        (".DS_Store", "hidden"),
        ("link.jpg", "a symbolic link"),
        ("pipe", "a pipe"),
        ("nothing", "an empty folder"),
    ):
        assert f"skipped {photos / name}: {reason}" in result.err
    assert "skipped 4 paths" in result.out
    result = pack("create", "-i", photos, "-o", tmp_path / "h.shardpack", "--hidden", "--json")
    assert ".DS_Store" in contents(tmp_path / "h.shardpack")
    assert len(result.json["skipped"]) == 3


def test_the_output_inside_the_input_does_not_pack_itself(
    pack: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    for _ in range(2):
        result = pack("create", "-i", ".", "-o", "set-%03d.shardpack", "--shard-size", "4K", "-f")
        assert result.code == 0
        keys = list(contents(*sorted(photos.glob("set-*.shardpack"))))
        assert len(keys) == 12
    assert "the output itself" in result.err


def test_an_empty_input_is_wrong_use(pack: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = pack("create", "-i", tmp_path / "empty", "-o", tmp_path / "x.shardpack")
    assert result.code == Exit.USAGE
    assert "an empty folder" in result.err
    assert "nothing to pack" in result.err
    assert not (tmp_path / "x.shardpack").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train-%06d.shardpack", ["train-000000", "train-000001"]),
        ("train-{00007..}.shardpack", ["train-00007", "train-00008"]),
        ("train-{3..9}.shardpack", ["train-3", "train-4"]),
        ("train-000042.shardpack", ["train-000042", "train-000043"]),
        ("100%-9.shardpack", ["100%-9", "100%-10"]),
    ],
)
def test_a_name_with_a_number_counts_on(
    name: str, expected: list[str], pack: Run, photos: Path, tmp_path: Path
) -> None:
    result = pack("create", "-i", photos, "-o", tmp_path / name, "--shard-records", "6", "--json")
    assert result.code == 0
    found = [shard["file"] for shard in result.json["shards"]]
    assert found == [str(tmp_path / f"{one}.shardpack") for one in expected]
    assert sum(shard["records"] for shard in result.json["shards"]) == 12


def test_a_name_without_a_number_is_one_shard_or_says_what_to_do(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    shard = tmp_path / "p.shardpack"
    # Without compression it is known before anything is written, with it at the first record too many.
    for more in ((), ("-c", "zstd")):
        result = pack("create", "-i", photos, "-o", shard, "--shard-size", "8K", *more)
        assert result.code == Exit.USAGE
        assert "p-%06d.shardpack, or a larger --shard-size" in result.err
        assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize("name", ["a-%d-%d.shardpack", "a-%d-{0..}.shardpack", "folder/"])
def test_names_that_cannot_be_are_refused(
    name: str, pack: Run, photos: Path, tmp_path: Path
) -> None:
    assert pack("create", "-i", photos, "-o", f"{tmp_path}/{name}").code == Exit.USAGE


@given(st.integers(0, 99999), st.integers(1, 7), st.sampled_from(["", "%", "a%d"]))
def test_a_plain_name_is_the_first_of_its_pattern(number: int, width: int, before: str) -> None:
    if before == "a%d":
        before = "x"
    name = f"{before}train-{number:0{width}}.shardpack"
    target = parse_target(name)
    assert target.path_of(target.first) == name
    assert target.is_own(target.path_of(target.first + 1))
    assert not target.is_own("other.shardpack")


def test_nothing_is_replaced_unless_forced(pack: Run, photos: Path, tmp_path: Path) -> None:
    pattern = tmp_path / "set-%02d.shardpack"
    command = ("create", "-i", photos, "-o", pattern, "--shard-records", "5")
    assert pack(*command).code == 0
    first = (tmp_path / "set-00.shardpack").read_bytes()
    result = pack(*command)
    assert result.code == Exit.USAGE
    assert "--resume continues after what is there, --force replaces it" in result.err
    assert (tmp_path / "set-00.shardpack").read_bytes() == first
    assert pack(*command, "--force", "-c", "zstd").code == 0
    assert (tmp_path / "set-00.shardpack").read_bytes() != first


def test_force_does_not_take_the_next_numbers_of_a_plain_name_for_its_own(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    for name in ("run2.shardpack", "run3.shardpack"):
        assert pack("create", "-i", photos / "cats", "-o", tmp_path / name).code == 0
    result = pack("create", "-i", photos, "-o", tmp_path / "run2.shardpack", "--force")
    assert result.code == Exit.USAGE
    assert "may be other data" in result.err
    assert len(contents(tmp_path / "run3.shardpack")) == 6


def test_a_shard_behind_a_gap_is_not_run_over(pack: Run, photos: Path, tmp_path: Path) -> None:
    other = tmp_path / "set-01.shardpack"
    other.write_bytes(b"something else")
    pattern = tmp_path / "set-%02d.shardpack"
    result = pack("create", "-i", photos, "-o", pattern, "--shard-records", "5")
    assert result.code == Exit.USAGE
    assert "another shard is in the way" in result.err
    assert other.read_bytes() == b"something else"


def test_dry_run_lists_records_and_writes_nothing(pack: Run, photos: Path, tmp_path: Path) -> None:
    result = pack("create", "-i", photos, "-o", tmp_path / "p.shardpack", "--dry-run")
    assert result.code == 0
    assert result.out.startswith("cats/0001\t1622\tjpg, json\n")
    assert "would pack 12 records" in result.out
    result = pack("create", "-i", photos, "-o", tmp_path / "p.shardpack", "-n", "--json")
    assert result.json["records"][0]["files"]["jpg"] == str(photos / "cats" / "0001.jpg")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("-o", "x.shardpack"),
        ("-i", "photos", "-o", "x.shardpack", "--group", "colour"),
        ("-i", "photos", "-o", "x.shardpack", "--compression", "rar"),
        ("-i", "photos", "-o", "x.shardpack", "--metadata", "novalue"),
        ("-i", "photos", "-o", "x.shardpack", "-m", "a=1", "-m", "a=2"),
        ("-i", "photos", "-o", "x.shardpack", "--shard-size", "many"),
        ("-i", "photos", "-o", "x.shardpack", "--jobs", "0"),
    ],
)
def test_wrong_use_is_said_before_anything_is_written(
    arguments: tuple[str, ...],
    pack: Run,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pack("create", *arguments).code == Exit.USAGE
    assert not (tmp_path / "x.shardpack").exists()


def test_folders_of_columns_are_joined_by_stem(pack: Run, tmp_path: Path) -> None:
    data = tmp_path / "yolo"
    for name in ("images/train/1.jpg", "images/train/2.jpg", "labels/train/1.txt", "masks/train/1"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    (data / "labels" / "train" / "1.__metadata__.json").write_text('{"n": 2}')
    shard = tmp_path / "x.shardpack"
    result = pack("create", "-i", data, "-o", shard, "--join")
    assert result.code == 0
    assert "no file in labels/ for 1 record: train/2" in result.err
    with shardpack.open(shard) as dataset:
        assert dataset["train/1"].metadata == {"n": 2}
    assert contents(shard) == {
        "train/1": {
            "images.jpg": b"images/train/1.jpg",
            "labels.txt": b"labels/train/1.txt",
            "masks": b"masks/train/1",
        },
        "train/2": {"images.jpg": b"images/train/2.jpg"},
    }
    result = pack("create", "-i", data, "-o", tmp_path / "y.shardpack", "--join", "-g", "dir")
    assert result.code == Exit.USAGE


def test_files_without_a_suffix_keep_their_names(pack: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "a").mkdir(parents=True)
    for name in ("LICENSE", "LICENSE.md", "a/0001", "a/0001.__file__", "a/x.", "a/data"):
        (folder / name).write_text(name)
    shard = tmp_path / "new" / "folder" / "x.shardpack"
    assert pack("create", "-i", folder, "-o", shard).code == 0
    assert pack("extract", shard, "-C", tmp_path / "out").code == 0
    assert files_of(tmp_path / "out") == files_of(folder)
