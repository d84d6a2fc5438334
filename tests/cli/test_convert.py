"""`wshard convert`: exit codes, what it shows before and after, packs."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardpack
from tests.shard_format.faults import killed_at
from wshard import Episode, save_wshard
from wshard.convert import ConvertOptions, commit_parts, convert, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write((episode(number) for number in range(3)), tmp_path / "source", "npz")
    return tmp_path / "source"


def episode(number: int) -> Episode:
    ep = Episode(f"ep_{number}", env_id="Test-v0")
    ep.observations["state"] = np.full((5, 3), number, np.float32)
    ep.actions["ctrl"] = np.zeros((5, 2))
    ep.labels["phase"] = [(0, 5, "reach")]
    return ep


def test_a_broken_episode_is_named_and_the_exit_code_is_3(
    wshard: Run, source: Path, tmp_path: Path
) -> None:
    (source / "ep_1.npz").write_bytes(b"PK")
    result = wshard("convert", str(source), str(tmp_path / "out"), "--jobs", "1")
    assert result.code == 3
    assert "1 episode not converted" in result.out
    assert "ep_1" in result.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "ep_0.wshard",
        "ep_2.wshard",
    ]


def test_a_dry_run_shows_what_reading_and_writing_change_and_writes_nothing(
    wshard: Run, tmp_path: Path
) -> None:
    save_wshard(episode(0), tmp_path / "ep_0.wshard")
    target = tmp_path / "out.zarr"
    result = wshard("convert", str(tmp_path / "ep_0.wshard"), str(target), "--dry-run", "--json")
    assert result.code == 0, result.err
    kinds = {row["field"]: row["kind"] for row in result.json["fields"]}
    assert kinds["label/phase"] == "dropped"
    assert [path.name for path in tmp_path.iterdir()] == ["ep_0.wshard"]


def test_episodes_go_into_a_pack_and_an_interrupted_run_goes_on(
    wshard: Run, source: Path, tmp_path: Path
) -> None:
    good = (source / "ep_2.npz").read_bytes()
    (source / "ep_2.npz").write_bytes(b"PK")
    target = tmp_path / "out.shardpack"
    command = ("convert", str(source), str(target), "--pack", "1G", "--jobs", "1")
    assert wshard(*command, "--on-error", "raise").code == 1
    assert not target.exists()
    (source / "ep_2.npz").write_bytes(good)
    result = wshard(*command, "--resume", "--json")
    assert result.code == 0, result.err
    assert (result.json["episodes"], result.json["skipped"]) == (3, 2)
    with shardpack.open(target) as dataset:
        assert list(dataset.keys()) == ["ep_0", "ep_1", "ep_2"]
    assert wshard(*command).code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.shardpack",
        "out.shardpack.report.json",
        "out.shardpack.report.txt",
        "source",
    ]


def test_parts_of_two_machines_become_the_folder_that_one_machine_makes(
    wshard: Run, source: Path, tmp_path: Path
) -> None:
    one, out = str(tmp_path / "one"), tmp_path / "out"
    assert wshard("convert", str(source), one, "--jobs", "1").code == 0
    part = ("convert", str(source), str(out), "--jobs", "1", "--part")
    assert wshard(*part, "2/2").code == 0
    result = wshard("commit", str(out))
    assert (result.code, "parts are missing" in result.err) == (2, True)
    assert not out.exists()
    assert wshard(*part, "1/2", "--resume").code == 0
    result = wshard("commit", str(out), "--json")
    assert result.code == 0, result.err
    assert result.json["episodes"] == 3
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()
    }
    assert not (tmp_path / "out.parts").exists()
    assert wshard("commit", str(out)).code == 3
    for wrong in ("3/2", "0/2", "x/2"):
        assert wshard(*part, wrong).code == 2
    other = ("convert", str(source), str(tmp_path / "out.zarr"), "--part", "1/2")
    assert "in parts" in wshard(*other).err


@pytest.mark.slow
def test_a_commit_of_parts_that_is_killed_at_any_step_can_be_given_again(
    source: Path, tmp_path: Path
) -> None:
    expected = None
    for step in count(1):
        out = tmp_path / f"out_{step}"
        for part in (1, 2):
            convert(source, out, options=ConvertOptions(part=(part, 2)))
        was_killed = killed_at(step, lambda out=out: commit_parts(out))  # type: ignore[misc]
        if was_killed:
            assert commit_parts(out).episodes == 3
        found = {path.name: path.read_bytes() for path in out.iterdir()}
        expected = expected or found
        assert (found, (tmp_path / f"out_{step}.parts").exists()) == (expected, False)
        if not was_killed:
            break
    assert len(expected or ()) == 3
