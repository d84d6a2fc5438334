"""`wshard convert`: exit codes, what it shows before and after, packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardpack
from wshard import Episode, save_wshard
from wshard.convert import write

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
