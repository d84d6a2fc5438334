"""Every example runs, in sizes that take a moment, and leaves what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wshard import Episode, add_lane, load_wshard, save_wshard

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED_HERE = {
    "control_loop.py",
    "crash_recovery.py",
    "packs.py",
    "record_cartpole.py",
    "train_world_model.py",
}
# The first two by `make demo`, the last in tests/bridges, where torch is.
TESTED_ELSEWHERE = {"container.py", "episode.py", "latent_world_model.py"}


def run(folder: Path, name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} <= TESTED_HERE | TESTED_ELSEWHERE


@pytest.mark.parametrize("name", sorted(TESTED_HERE))
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text("utf-8").splitlines()) < 100


def test_cartpole_is_recorded(tmp_path: Path) -> None:
    said = run(tmp_path, "record_cartpole.py", "episodes", "--episodes", "3")
    paths = sorted((tmp_path / "episodes").iterdir())
    assert [path.name for path in paths] == [f"cartpole-{n:06d}.wshard" for n in range(3)]
    for line, path in zip(said.splitlines(), paths, strict=True):
        with load_wshard(path) as ep:
            assert line.startswith(
                f"{path.name}: {ep.length} actions, {ep.length + 1} observations"
            )


def test_the_control_loop_keeps_up(tmp_path: Path) -> None:
    said = run(tmp_path, "control_loop.py", "loop.wshard", "--seconds", "0.5")
    assert "500 steps" in said
    assert "dropped: nothing" in said
    with load_wshard(tmp_path / "loop.wshard") as ep:
        assert ep.length == 500
        assert set(ep.observations) == {"joint_pos", "camera/left", "camera/right", "camera/wrist"}
        assert ep.observations["camera/wrist"].has_own_clock
        ep.load()


def test_what_a_killed_recorder_had_flushed_comes_back(tmp_path: Path) -> None:
    said = run(tmp_path, "crash_recovery.py", "crashed")
    counts = re.findall(r"steps .*: +([\d,]+)$", said, re.MULTILINE)
    flushed, steps = (int(count.replace(",", "")) for count in counts)
    assert steps >= flushed >= 1000
    assert f"{steps:,} steps of pendulum came back" in said
    assert "bit for bit" in said
    with load_wshard(tmp_path / "crashed" / "pendulum.wshard") as ep:
        assert ep.length == steps
        ep.load()
    assert (tmp_path / "crashed" / "pendulum.wshard.partial").exists()


def test_a_folder_and_recorded_episodes_are_packed_and_read_back(tmp_path: Path) -> None:
    for name in ("mine", "yours"):
        seen = np.zeros((40, 2), np.float32)
        path = tmp_path / "recorded" / f"{name}.wshard"
        path.parent.mkdir(exist_ok=True)
        save_wshard(Episode(name, observations={"x": seen}), path)
        add_lane(path, "omen/x/model", seen)
    said = run(tmp_path, "packs.py", ".", "recorded")
    assert "600 records with 1,200 entries in 4 shards" in said
    assert "600 labels" in said
    assert "2 episodes in 1 shard" in said
    assert "<Episode 'yours': 40 steps, 1 observations, 1 omens>" in said
    assert "50 windows" in said
    assert "unpacked 4 files" in said
    assert "records came back" in said
    for path in (tmp_path / "recorded").rglob("*.wshard"):
        restored = tmp_path / "packs" / "restored" / path.relative_to(tmp_path / "recorded")
        assert restored.read_bytes() == path.read_bytes()


def test_without_recorded_episodes_some_are_made_up_and_packed(tmp_path: Path) -> None:
    said = run(tmp_path, "packs.py", ".")
    assert "12 episodes in 1 shard" in said
    assert "unpacked 12 files" in said


def test_the_world_model_learns(tmp_path: Path) -> None:
    said = run(tmp_path, "train_world_model.py", "replay", "--updates", "300")
    found = re.search(r"error ([\d.]+) at first, ([\d.]+) at last", said)
    assert found is not None
    assert float(found[2]) < float(found[1]) / 4
    paths = sorted((tmp_path / "replay").glob("*.wshard"))
    assert len(paths) == 6
    for path in paths:
        with load_wshard(path) as ep:
            omen = ep.omens["observation"]["linear"]
            assert omen.data.shape == ep.observations["observation"].data.shape == (101, 8)
            assert ep.uncerts["observation"]["linear"]["std"].data.shape == (101, 8)
