"""The metadata of records on the command line: shown, written to files, and read back."""

from __future__ import annotations

import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

import shardpack
from shard_cli.exits import Exit
from shardpack import ShardPackWriter
from shardpack.encodings import MetadataEncoding
from shardpack.files import METADATA_ENTRY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

FIELDS = {"label": 3, "words": ["é", None, 1.5], "split": "train"}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A record with everything, one with metadata alone, one with an entry alone."""
    path = tmp_path / "x.shardpack"
    with ShardPackWriter(path, fsync=False) as writer:
        writer.write("cats/1", {"jpg": b"picture", "__file__": b"no suffix"}, FIELDS)
        writer.write("only", {}, {"note": "x"})
        writer.write("plain", {"txt": "text"})
    return path


def records(path: Path) -> dict[str, tuple[dict[str, bytes], dict[str, object]]]:
    with shardpack.open(path) as dataset:
        return {record.key: (record.read_all(), record.metadata) for record in dataset}


@pytest.mark.parametrize(
    ("layout", "group"), [("stem", "stem"), ("stem", "suffix"), ("dir", "dir")]
)
def test_what_is_extracted_is_the_same_pack_again(
    layout: str, group: str, pack: Run, shard: Path, tmp_path: Path
) -> None:
    out, back = tmp_path / "out", tmp_path / "back.shardpack"
    assert pack("extract", shard, "-C", out, "--layout", layout).code == 0
    result = pack("create", "-i", out, "-o", back, "--group", group)
    assert "2 files became the metadata of their records" in result.out
    found = records(back)
    for key, (entries, metadata) in records(shard).items():
        assert found[key] == ({name: entries[name] for name in sorted(entries)}, metadata)
    if layout == "stem":
        assert (out / "cats" / "1").read_bytes() == b"no suffix"
        assert json.loads((out / f"only.{METADATA_ENTRY}").read_text()) == {"note": "x"}


def test_a_tar_file_of_what_was_extracted_is_the_same_pack_too(
    pack: Run, shard: Path, tmp_path: Path
) -> None:
    assert pack("extract", shard, "only", "plain", "-C", tmp_path / "out").code == 0
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for path in sorted((tmp_path / "out").iterdir()):
            tar.add(path, path.name)
    back = tmp_path / "back.shardpack"
    assert pack("from-tar", tmp_path / "x.tar", "-o", back).code == 0
    assert records(back) == {key: records(shard)[key] for key in ("only", "plain")}


def test_unpack_writes_metadata_too(shard: Path, tmp_path: Path) -> None:
    done = shardpack.unpack(shard, tmp_path / "out", metadata_entry="facts.json")
    assert (done.files, done.kept) == (5, 0)
    assert json.loads((tmp_path / "out" / "cats" / "1.facts.json").read_text()) == FIELDS


def test_an_entry_with_the_name_of_the_metadata_is_never_taken_for_it(
    pack: Run, tmp_path: Path
) -> None:
    shard = tmp_path / "x.shardpack"
    with ShardPackWriter(shard, fsync=False) as writer:
        writer.write("a", {METADATA_ENTRY: b"mine"})
    result = pack("extract", shard, "-C", tmp_path / "out")
    assert result.code == Exit.USAGE
    assert "pass another --metadata-entry" in result.err
    assert not (tmp_path / "out").exists()
    assert pack("extract", shard, "-C", tmp_path / "out", "--metadata-entry", "m.json").code == 0
    assert (tmp_path / "out" / f"a.{METADATA_ENTRY}").read_bytes() == b"mine"
    back = tmp_path / "back.shardpack"
    # It is not JSON: nothing is packed in silence.
    result = pack("create", "-i", tmp_path / "out", "-o", back)
    assert result.code == Exit.FINDING
    assert "(bad_metadata)" in result.err
    assert pack(
        "create", "-i", tmp_path / "out", "-o", back, "--metadata-entry", "m.json"
    ).code == Exit.OK  # fmt: skip
    assert records(back) == records(shard)


def test_metadata_that_json_cannot_say_is_named_and_the_rest_extracted(
    pack: Run, tmp_path: Path
) -> None:
    shard = tmp_path / "x.shardpack"
    with ShardPackWriter(shard, fsync=False) as writer:
        writer.write_stored("bytes", [], MetadataEncoding.MESSAGEPACK, b"\x81\xa1a\xc4\x01x")
        writer.write_stored("number", [], MetadataEncoding.MESSAGEPACK, b"\x81\xa1a\x07")
    result = pack("extract", shard, "-C", tmp_path / "out")
    assert result.code == Exit.FINDING
    assert "the metadata of record 'bytes' has no JSON form" in result.err
    assert os.listdir(tmp_path / "out") == [f"number.{METADATA_ENTRY}"]
    assert (tmp_path / "out" / f"number.{METADATA_ENTRY}").read_bytes() == b'{"a":7}'


def test_metadata_from_two_places_is_refused(pack: Run, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{}")
    line = {"key": "a", "files": {METADATA_ENTRY: "m.json"}, "metadata": {"b": 1}}
    (tmp_path / "list.jsonl").write_text(json.dumps(line))
    result = pack("create", "-g", tmp_path / "list.jsonl", "-o", tmp_path / "x.shardpack")
    assert result.code == Exit.FINDING
    assert "the record gets its metadata twice" in result.err


def test_ls_shows_the_fields_of_records(pack: Run, shard: Path) -> None:
    shown = json.dumps(FIELDS, ensure_ascii=False, sort_keys=True)
    rows = [line.split("\t") for line in pack("ls", shard, "--fields").out.splitlines()]
    assert rows[0][-1] == "METADATA"
    assert [(row[0], row[-1]) for row in rows[1:]] == [
        ("cats/1", shown),
        ("only", '{"note": "x"}'),
        ("plain", "{}"),
    ]
    rows = [line.split("\t") for line in pack("ls", "-l", shard, "--fields").out.splitlines()]
    assert {(row[0], row[1], row[-1]) for row in rows[1:]} == {
        ("cats/1", "jpg", shown),
        ("cats/1", "__file__", shown),
        ("only", "-", '{"note": "x"}'),
        ("plain", "txt", "{}"),
    }


def test_cat_prints_the_metadata_of_a_record(pack: Run, shard: Path, sample: Path) -> None:
    assert json.loads(pack("cat", shard, "cats/1", "--metadata").out) == FIELDS
    assert pack("cat", shard, "plain", "--metadata").out == "{}\n"
    assert pack("cat", shard, "only", "--metadata", "--json").json["metadata"] == {"note": "x"}
    assert pack("cat", shard, "only", "jpg", "--metadata").code == Exit.USAGE
