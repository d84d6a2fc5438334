"""The example that needs torch learns, states how sure it is, and resumes after it was killed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shard_format import ShardReader
from wshard import load_wshard

EXAMPLE = Path(__file__).parents[2] / "examples" / "latent_world_model.py"
COMMAND = [sys.executable, "-W", "error", str(EXAMPLE), "episodes"]
# Its matrices are so small that threads would wait for one another, and for those of other tests.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
AHEAD, HELD_OUT = 20, 8

Array = np.ndarray[Any, np.dtype[Any]]


class Run(NamedTuple):
    folder: Path
    said: str

    @property
    def paths(self) -> list[Path]:
        return sorted((self.folder / "episodes").glob("*.wshard"))

    @property
    def lanes(self) -> list[Path]:
        return [path.with_name(f"{path.name}.lanes") / "world_model.wshard" for path in self.paths]


class HeldOut(NamedTuple):
    """What happened in the episodes that the model was not trained on, from the first full prediction on."""

    truth: Array
    last_seen: Array
    omen: Array
    std: Array


def run(folder: Path) -> Run:
    done = subprocess.run(
        COMMAND, cwd=folder, env=ONE_THREAD, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Run(folder, done.stdout)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("world_model"))


@pytest.fixture(scope="module")
def held_out(trained: Run) -> HeldOut:
    rows: list[tuple[Array, ...]] = []
    for path in trained.paths[-HELD_OUT:]:
        with load_wshard(path) as ep:
            truth = ep.observations["state"].data
            omen = ep.omens["state"]["world_model"].data
            std = ep.uncerts["state"]["world_model"]["std"].data
        rows.append((truth[AHEAD:], truth[:-AHEAD], omen[AHEAD:], std[AHEAD:]))
    return HeldOut(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def losses(said: str) -> dict[int, float]:
    lines = re.findall(r"^update (\d+): loss (\S+), [\d,]+ windows/s$", said, re.MULTILINE)
    return {int(update): float(loss) for update, loss in lines}


def test_the_loss_falls(trained: Run) -> None:
    found = losses(trained.said)
    assert list(found) == [50, 100, 150, 200, 250, 300]
    # A model that sees nothing, and knows how states and rewards are spread, has a loss of about 3.5.
    assert found[300] < -5
    assert found[300] < found[50] - 5


def test_the_episodes_that_it_reads_are_compressed(trained: Run) -> None:
    with ShardReader(trained.paths[0]) as reader:
        camera = reader.info("signal/camera")
    assert camera.codec.name == "ZSTD"
    assert camera.disk_size < camera.size / 2


def test_every_episode_has_predictions_and_deviations_beside_it(trained: Run) -> None:
    assert len(trained.paths) == 40
    for path in trained.paths:
        with load_wshard(path) as ep:
            omen, std = ep.omens["state"]["world_model"], ep.uncerts["state"]["world_model"]["std"]
            assert omen.data.shape == std.data.shape == ep.observations["state"].data.shape
            assert np.isfinite(omen.data).all()
            assert (std.data > 0).all()
            assert omen.description == "expected 20 steps before, knowing the actions"
            assert omen.extra["updates"] == 300


def test_what_happened_is_not_copied_beside_itself(trained: Run) -> None:
    for path in trained.lanes:
        with ShardReader(path) as reader:
            lanes = {name for name in reader.names() if not name.startswith(("meta/", "time/"))}
        assert lanes == {"omen/state/world_model", "uncert/state/world_model/std"}


def test_predictions_are_far_better_than_the_last_state_seen(held_out: HeldOut) -> None:
    error = np.abs(held_out.omen - held_out.truth).mean(axis=0)
    naive = np.abs(held_out.last_seen - held_out.truth).mean(axis=0)
    assert (error < naive / 2).all(), (error, naive)
    assert error[2] < naive[2] / 4, (error, naive)


def test_deviations_are_as_large_as_errors(held_out: HeldOut) -> None:
    standardised = (held_out.omen - held_out.truth) / held_out.std
    spread = np.sqrt((standardised**2).mean(axis=0))
    assert ((spread > 0.5) & (spread < 2)).all(), spread
    within = (np.abs(standardised) < 2).mean(axis=0)
    assert (within > 0.8).all(), within


def test_it_knows_where_it_is_unsure(held_out: HeldOut) -> None:
    error = np.abs(held_out.omen - held_out.truth)
    for dimension in range(3):
        order = np.argsort(held_out.std[:, dimension])
        sure, unsure = np.array_split(error[order, dimension], 2)
        assert unsure.mean() > 1.5 * sure.mean()


def test_the_table_is_about_the_files(trained: Run, held_out: HeldOut) -> None:
    error = np.abs(held_out.omen - held_out.truth).mean(axis=0)
    found = re.search(r"^mean error of the model +(\S+) +(\S+) +(\S+)$", trained.said, re.MULTILINE)
    assert found is not None
    assert [float(number) for number in found.groups()] == pytest.approx(error, abs=0.0006)


def test_killed_and_started_again_it_ends_as_if_nothing_had_happened(
    trained: Run, tmp_path: Path
) -> None:
    (tmp_path / "episodes").mkdir()
    for path in trained.paths:
        shutil.copy(path, tmp_path / "episodes")
    with subprocess.Popen(
        COMMAND, cwd=tmp_path, env=ONE_THREAD, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("update 50:"):
                process.kill()
    assert not list(tmp_path.glob("episodes/*.lanes")), "it was done before it could be killed"
    again = run(tmp_path)
    assert re.search(r"^resuming after update \d+", again.said, re.MULTILINE)
    assert losses(again.said)[300] == losses(trained.said)[300]
    for lane, same in zip(again.lanes, trained.lanes, strict=True):
        assert lane.read_bytes() == same.read_bytes()
