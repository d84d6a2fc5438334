"""Looking into packs: `ls`, `info`, `stats`, `cat`, `get`, through both doors."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit
from shard_format.codecs import crc32c
from shardpack import ShardPackWriter, StoredEntry
from shardpack.encodings import MetadataEncoding

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run, Terminal


@pytest.fixture
def shards(pack: Run, photos: Path, tmp_path: Path) -> str:
    """A set of three shards."""
    name = str(tmp_path / "set-%02d.shardpack")
    command = ("create", "-i", photos, "-o", name, "-c", "zstd", "--shard-records", "5")
    assert pack(*command, "-m", "license=CC0").code == 0
    return str(tmp_path / "set-{00..02}.shardpack")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A shard with names and metadata that are no text for a terminal."""
    path = tmp_path / "odd.shardpack"
    with ShardPackWriter(path, fsync=False) as writer:
        data = b"\xff\x01"
        # {"raw": b"\xff", "n": float("nan"), "k": [1]}
        fields = bytes.fromhex("83a3726177c401ffa16ecb7ff8000000000000a16b9101")
        content_type = "application/octet-stream"
        writer.write_stored(
            "esc\x1b[31m",
            [StoredEntry("a", content_type, 0, len(data), crc32c(data), data)],
            MetadataEncoding.MESSAGEPACK,
            fields,
        )
        writer.write("two\nlines", {"text": "é\n", "nothing": b""})
    return path


def test_ls_is_tabs_and_bytes_in_a_pipe(pack: Run, shards: str) -> None:
    lines = pack("ls", shards).out.splitlines()
    assert lines[0] == "KEY\tSIZE\tSTORED\tENTRIES"
    assert lines[1].startswith("cats/0001\t1622\t")
    assert lines[1].endswith("\tjpg json")
    assert len(lines) == 13


def test_ls_is_aligned_with_a_total_in_a_terminal(shards: str, terminal: Terminal) -> None:
    code, text = terminal("ls", shards, module="shard_cli.shardpack")
    assert code == 0
    assert "KEY           SIZE   STORED  ENTRIES" in text
    assert "12 records, 19.1 KiB, stored" in text


def test_ls_chooses_by_pattern_prefix_and_exact_key(pack: Run, shards: str) -> None:
    for chosen, expected in (
        (("dogs/*",), 6),
        (("--prefix", "cats/000"), 5),
        (("cats/0001", "dogs/0002"), 2),
        (("*1*", "dogs/0002"), 4),
    ):
        assert len(pack("ls", shards, *chosen, "--keys-only").out.splitlines()) == expected
    for missing in ("birds/*", "birds/1"):
        result = pack("ls", shards, "cats/0001", missing)
        assert (result.code, result.out) == (Exit.FINDING, "")
        assert f"no record matches '{missing}'" in result.err


def test_ls_long_has_a_row_for_each_entry(pack: Run, shards: str) -> None:
    rows = [line.split("\t") for line in pack("ls", "-l", shards, "cats/0003").out.splitlines()]
    assert rows[0] == [
        *("KEY", "ENTRY", "SIZE", "STORED", "RATIO", "CODEC", "TYPE", "OFFSET", "CRC-32C"),
    ]
    assert [row[1] for row in rows[1:]] == ["jpg", "json"]
    assert rows[2][5:7] == ["zstd", "application/json"]
    entries = pack("ls", "-l", "--json", shards, "cats/0003").json["records"][0]["entries"]
    assert entries[0]["crc32c"] == rows[1][8]


def test_ls_escapes_what_a_terminal_would_obey(pack: Run, odd: Path, terminal: Terminal) -> None:
    assert "\x1b[31m" not in terminal("ls", odd, module="shard_cli.shardpack")[1]
    result = pack("ls", odd, "--keys-only")
    assert result.out == "esc\x1b[31m\ntwo\\nlines\n"
    assert "printed escaped" in result.err
    assert pack("ls", odd, "--keys-only", "-0").out == "esc\x1b[31m\0two\nlines\0"
    records = pack("ls", odd, "--json").json["records"]
    assert records[0]["metadata"] == {"raw": {"base64": "/w=="}, "n": "nan", "k": [1]}


def test_info_reads_what_a_set_says_about_itself(pack: Run, shards: str) -> None:
    text = pack("info", shards).out
    for line in ("12 in 3 shards", "jpg: image/jpeg", "json: application/json", "license: CC0"):
        assert line in text
    facts = pack("info", "--json", shards).json["files"][0]
    assert (facts["records"], len(facts["shards"])) == (12, 3)
    assert facts["schema"]["jpg"] == {"content_type": "image/jpeg", "records": 12}
    assert facts["metadata"] == {"license": "CC0"}


def test_info_goes_on_after_a_pack_that_does_not_open(pack: Run, shards: str, odd: Path) -> None:
    cut = odd.with_name("cut.shardpack")
    cut.write_bytes(odd.read_bytes()[:-1])
    result = pack("info", cut, shards, odd.with_name("absent.shardpack"))
    assert result.code == Exit.IO
    assert "12 in 3 shards" in result.out
    assert "run 'shardpack recover' to recover every complete record" in result.err


def test_files_that_are_no_packs_are_recognised(pack: Run, sample: Path, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"\0" * 257 + b"ustar\x0000" + bytes(300))
    assert "it looks like a tar archive" in pack("info", tmp_path / "x.tar").err
    assert "it looks like a Shard file" in pack("ls", sample).err


def test_stats_adds_up(pack: Run, shards: str, photos: Path) -> None:
    facts = pack("stats", "--json", shards).json
    pictures = [path.stat().st_size for path in photos.rglob("*.jpg")]
    assert facts["records"] == 12
    assert facts["content_types"]["image/jpeg"] == {
        "entries": 12,
        "size": sum(pictures),
        "stored": sum(pictures),
    }
    assert sum(bucket["records"] for bucket in facts["histogram"]) == 12
    assert facts["largest"]["key"] in ("cats/0011", "dogs/0010")
    assert facts["size"] == sum(p.stat().st_size for p in photos.rglob("*") if p.is_file())
    text = pack("stats", "--names", shards).out
    assert "1.0 KiB to 2.0 KiB         12  ########" in text
    assert "\njpg\t12\t" in text


def test_stats_of_an_empty_pack(pack: Run, tmp_path: Path) -> None:
    ShardPackWriter(tmp_path / "empty.shardpack").close()
    result = pack("stats", tmp_path / "empty.shardpack")
    assert (result.code, "0 records" in result.out) == (0, True)
    assert pack("info", tmp_path / "empty.shardpack").code == 0
    assert pack("verify", tmp_path / "empty.shardpack").code == 0
    assert pack("ls", tmp_path / "empty.shardpack").code == 0


def test_cat_writes_entries_as_they_were(
    pack: Run, shards: str, photos: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    result = pack("cat", shards, "dogs/0008", "json", "jpg")
    expected = [(photos / "dogs" / f"0008.{ending}").read_bytes() for ending in ("json", "jpg")]
    assert result.out.encode() == b"".join(expected)


def test_cat_says_binary_data_to_json_as_base64(pack: Run, odd: Path) -> None:
    found = pack("cat", "--json", odd, "esc\x1b[31m", "a").json["entries"][0]
    assert base64.b64decode(found["data"]) == b"\xff\x01"
    found = pack("cat", "--json", odd, "two\nlines", "text").json["entries"][0]
    assert (found["encoding"], found["data"]) == ("utf-8", "é\n")


def test_cat_does_not_write_binary_data_to_a_terminal(odd: Path, terminal: Terminal) -> None:
    code, text = terminal("cat", odd, "esc\x1b[31m", "a", module="shard_cli.shardpack")
    assert code == Exit.USAGE
    assert "binary data" in text
    assert terminal("cat", odd, "two\nlines", "text", module="shard_cli.shardpack") == (0, "é\r\n")


@pytest.mark.parametrize(
    ("key", "name", "said"),
    [
        ("cats/9", "jpg", "no record with the key 'cats/9'"),
        ("cats/0001", "jpeg", "did you mean 'jpg'"),
    ],
)
def test_names_that_are_not_there_are_said(
    key: str, name: str, said: str, pack: Run, shards: str
) -> None:
    for command in ("cat", "get"):
        result = pack(command, shards, key, name)
        assert result.code == Exit.FINDING
        assert said in result.err


def test_get_writes_one_file_and_replaces_none(
    pack: Run, shards: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pack("get", shards, "cats/0001", "jpg").code == 0
    assert (tmp_path / "0001.jpg").read_bytes() == (photos / "cats" / "0001.jpg").read_bytes()
    assert pack("get", shards, "cats/0003", "jpg", "-o", "0001.jpg").code == Exit.USAGE
    assert pack("get", shards, "cats/0003", "jpg", "-o", "0001.jpg", "--force").code == 0
    assert (tmp_path / "0001.jpg").stat().st_size == 1003
    own = tmp_path / "set-00.shardpack"
    result = pack("get", shards, "cats/0003", "jpg", "-o", own, "--force")
    assert (result.code, "being read" in result.err) == (Exit.USAGE, True)


def test_shard_knows_a_pack_when_it_sees_one(
    run: Run, pack: Run, shards: str, tmp_path: Path, photos: Path
) -> None:
    first = tmp_path / "set-00.shardpack"
    renamed = tmp_path / "without_suffix"
    renamed.write_bytes(first.read_bytes())
    for path in (first, renamed):
        assert "5 in 1 shard" in run("info", path).out
        assert run("ls", path).out == pack("ls", path).out
        assert json.loads(run("cat", path, "cats/0001", "json").out)["label"] == 1
        assert run("verify", path).out == pack("verify", path).out
        assert "healthy" in run("doctor", path).out
        assert run("diff", path, first).code == 0
    assert run("ls", shards, "--names-only").out.count("\n") == 12
    assert run("extract", first, "cats/*", "-C", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "cats" / "0001.jpg").read_bytes() == (
        photos / "cats" / "0001.jpg"
    ).read_bytes()
    assert run("get", first, "cats/0001", "jpg", "-o", tmp_path / "got.jpg").code == 0
    assert (tmp_path / "got.jpg").read_bytes() == (photos / "cats" / "0001.jpg").read_bytes()
    # What packs do not have is said.
    assert "FILE KEY NAME" in run("get", first, "x").err
    assert "'shardpack' works on it" in run("identity", first).err
    assert run("cat", first, "cats/0001").code == Exit.USAGE


def test_shard_looks_at_files_of_all_kinds_at_once(
    run: Run, shards: str, sample: Path, tmp_path: Path
) -> None:
    files = run("info", "--json", sample, tmp_path / "set-00.shardpack").json["files"]
    assert (files[0]["role_name"], files[1]["format"]) == ("unknown", "shardpack")
    assert run("verify", sample, tmp_path / "set-00.shardpack").out.count(": ok, ") == 2
