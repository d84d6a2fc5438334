"""The library's set files against spec/vectors: read and written, refused when and as stated."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import shardpack
from shard_cli.main import main
from shard_cli.programs import SHARD, SHARDPACK
from shard_format import ShardError
from shardpack import ShardSet, ShardWriterSet
from tests.each import for_each

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
VALID = sorted((VECTORS / "valid_sets").glob("*.json"))
INVALID = sorted((VECTORS / "invalid_sets").glob("*.json"))


def load(description: Path) -> tuple[dict[str, Any], Path]:
    case: dict[str, Any] = json.loads(description.read_text("utf-8"))
    return case, description.parent / case["file"]


def with_step(step: str) -> list[Path]:
    return [path for path in INVALID if load(path)[0]["when"] == step]


def checked(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What `shardpack verify --json` finds, by file and code; `shard verify` must agree that something is wrong."""
    code = main(["verify", "--json", str(path)], SHARDPACK)
    found = json.loads(capsys.readouterr().out)["files"]
    other = main(["verify", "--json", str(path)], SHARD)
    capsys.readouterr()
    assert (code == 0) == (other == 0)
    codes: dict[str, str] = {}
    for one in found:
        for error in one["errors"]:
            codes.setdefault(
                Path(error["file"]).name, error["code"]
            )  # others may follow from the first
    return codes


@for_each("description", VALID)
def test_a_valid_set_is_read(description: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, path = load(description)
    found = ShardSet.read(path)
    assert (found.names, found.fields) == (case["shards"], case["fields"])
    with shardpack.open(path) as dataset:
        assert len(dataset) == len(case["keys"])
        assert list(dataset.keys()) == case["keys"]
        assert [dataset[key].key for key in case["keys"]] == case["keys"]
    for name, sha256 in case["files"].items():
        assert hashlib.sha256((path.parent / name).read_bytes()).hexdigest() == sha256
    assert checked(path, capsys) == {}


@for_each("description", [path for path in VALID if load(path)[0]["canonical"]])
def test_a_writer_gives_the_same_bytes(description: Path, tmp_path: Path) -> None:
    case, path = load(description)
    fields = case["fields"]
    with ShardWriterSet(tmp_path / fields["name"], created=fields["created"]) as writer:
        for number, name in enumerate(case["shards"]):
            if number:
                writer.start_shard()
            for record in shardpack.open(path.parent / name):
                writer.copy(record)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {
        one.name: one.read_bytes() for one in path.parent.iterdir()
    }


@for_each("description", with_step("open"))
def test_a_malformed_set_file_is_refused(
    description: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, path = load(description)
    with pytest.raises(ShardError) as caught:
        shardpack.open(path)
    assert (caught.value.code, caught.value.rule) == (case["error"], case["rule"])
    assert caught.value.path == str(path)
    assert checked(path, capsys) == {path.name: case["error"]}


@for_each("description", with_step("shard"))
def test_a_shard_that_does_not_fit_is_refused_and_the_others_are_read(
    description: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, path = load(description)
    with shardpack.open(path) as dataset:
        for number, name in enumerate(ShardSet.read(path).names):
            if name != case["shard"]:
                assert list(dataset.shards[number])
                continue
            with pytest.raises(ShardError) as caught:
                dataset.shards[number]
            assert (caught.value.code, caught.value.rule) == (case["error"], case["rule"])
            assert caught.value.path is not None
            assert Path(caught.value.path).name == name
    assert checked(path, capsys) == {case["shard"]: case["error"]}
    # The pattern finds what disagrees with the set file, too.
    assert checked(path.parent / "train-*.shardpack", capsys) == {case["shard"]: case["error"]}


@for_each("description", with_step("check"))
def test_what_only_a_check_finds_is_found(
    description: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, path = load(description)
    assert len(list(shardpack.open(path))) == len(shardpack.open(path))
    assert checked(path, capsys) == {case["shard"]: case["error"]}
    assert checked(path.parent, capsys) == {case["shard"]: case["error"]}


def test_every_step_has_vectors() -> None:
    assert [len(with_step(step)) for step in ("open", "shard", "check")] >= [40, 3, 1]
