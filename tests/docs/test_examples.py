"""Every example runs, in sizes that take a moment, and leaves what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wshard import Episode, add_lane, load_wshard, save_wshard

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED_HERE = {
    "control_loop.py",
    "crash_recovery.py",
    "import_minari.py",
    "packs.py",
    "pendulum_world_model.py",
    "record_cartpole.py",
    "train_world_model.py",
}
# By test_languages.py; by `make demo`; in tests/bridges, where torch is.
TESTED_ELSEWHERE = {"annotate.py", "container.py", "episode.py", "latent_world_model.py"}


def run(folder: Path, name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} <= TESTED_HERE | TESTED_ELSEWHERE


@pytest.mark.parametrize("name", sorted(TESTED_HERE))
def test_examples_are_short(name: str) -> None:
    most = 200 if name == "pendulum_world_model.py" else 100
    assert len((EXAMPLES / name).read_text("utf-8").splitlines()) <= most


def test_cartpole_is_recorded(tmp_path: Path) -> None:
    said = run(tmp_path, "record_cartpole.py", "episodes", "--episodes", "3")
    paths = sorted((tmp_path / "episodes").iterdir())
    assert [path.name for path in paths] == [f"cartpole-{n:06d}.wshard" for n in range(3)]
    for line, path in zip(said.splitlines(), paths, strict=True):
        with load_wshard(path) as ep:
            assert line.startswith(
                f"{path.name}: {ep.length} actions, {ep.length + 1} observations"
            )


def test_a_minari_dataset_is_converted(tmp_path: Path) -> None:
    said = run(tmp_path, "import_minari.py", "out")
    assert "20 episodes" in said
    assert "kept observations: signal/observation (20 episodes)" in said
    assert len(list((tmp_path / "out" / "cartpole").iterdir())) == 20


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
    assert f"recovered {steps:,} steps of pendulum" in said
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
    assert "extracted 4 entries" in said
    assert re.search(r"recovered [\d,]+ records", said)
    for path in (tmp_path / "recorded").rglob("*.wshard"):
        restored = tmp_path / "packs" / "restored" / path.relative_to(tmp_path / "recorded")
        assert restored.read_bytes() == path.read_bytes()


def test_without_recorded_episodes_some_are_made_up_and_packed(tmp_path: Path) -> None:
    said = run(tmp_path, "packs.py", ".")
    assert "12 episodes in 1 shard" in said
    assert "extracted 12 entries" in said


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


def test_an_ensemble_in_numpy_predicts_better_than_the_last_state(tmp_path: Path) -> None:
    said = run(tmp_path, "pendulum_world_model.py", "episodes", "--updates", "800")
    losses = [float(loss) for loss in re.findall(r"loss (-?[\d.]+)", said)]
    assert losses[-1] < losses[0] < 0
    paths = sorted((tmp_path / "episodes").glob("*.wshard"))
    assert len(paths) == 40
    errors, guesses, calm, unsure = [], [], [], []
    for path in paths[-8:]:
        with load_wshard(path) as ep:
            truth = ep.observations["observation"].data
            omen = ep.omens["observation"]["ensemble"].data
            std = ep.uncerts["observation"]["ensemble"]["std"].data
        assert omen.shape == std.shape == truth.shape == (201, 3)
        error = np.abs(omen - truth)[20:]
        errors.append(error)
        guesses.append(np.abs(truth[20:] - truth[:-20]))
        order = np.argsort(std[20:, 2])
        calm.append(error[order[:90], 2])
        unsure.append(error[order[91:], 2])
    error, guess = np.mean(errors, axis=(0, 1)), np.mean(guesses, axis=(0, 1))
    assert (error < guess / 2).all(), (error, guess)
    assert np.mean(unsure) > 2 * np.mean(calm)
    row = re.search(r"^mean error of the model +(\S+) +(\S+) +(\S+)$", said, re.MULTILINE)
    assert row is not None
    assert [float(number) for number in row.groups()] == pytest.approx(error, abs=0.0006)
