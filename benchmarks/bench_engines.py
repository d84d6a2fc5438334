"""Jobs over many episodes: tasks of a Ray cluster on this machine against processes."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Goal, Table, compare
from shard_train import map_episodes
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shard_format.executors import Engine

MANY = 1000
JOBS = 2
STEPS = 200
SIDE = 64


def run(folder: Path) -> Iterator[Table]:
    import ray

    source = folder / "episodes"
    make_episodes(source)
    ray.init(num_cpus=JOBS, log_to_driver=False, logging_level="error", include_dashboard=False)
    try:
        yield many_episodes(folder, source)
    finally:
        ray.shutdown()


def make_episodes(folder: Path) -> None:
    """Episodes of a camera and joints, about 1 MB each."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(MANY):
        # Smooth pictures, which compress about as well as those of a camera.
        start = random.integers(0, 64, (1, SIDE, SIDE, 3), np.uint8)
        steps = np.arange(STEPS, dtype=np.uint8)[:, None, None, None] // 2
        episode = Episode(
            f"ep_{number}",
            observations={
                "rgb": start + steps,
                "state": random.normal(size=(STEPS, 14)).astype(np.float32),
            },
            actions={"ctrl": random.normal(size=(STEPS, 7)).astype(np.float32)},
        )
        save_wshard(episode, folder / f"ep_{number}.wshard", "lz4", fsync=False)


def halve(episode: Episode) -> Episode:
    """Reads, changes and writes a camera."""
    episode.observations["rgb"] = episode.observations["rgb"].data // 2
    return episode


def many_episodes(folder: Path, source: Path) -> Table:
    def run_on(engine: Engine) -> None:
        target = folder / engine
        map_episodes(
            halve,
            source,
            target,
            engine=engine,
            jobs=JOBS,
            save={"compression": "zstd", "fsync": False},
        )
        shutil.rmtree(target)
        (folder / f"{engine}.report.json").unlink()

    ours, pool = "tasks of Ray", "processes"
    return Table(
        f"map_episodes over {MANY} episodes",
        f"{STEPS} steps, a camera of {SIDE} × {SIDE}, read from lz4, halved and written as zstd, {JOBS} at a time. Processes "
        "are started in the time that is measured; the Ray cluster, on the same machine, before.",
        compare({pool: partial(run_on, "local"), ours: partial(run_on, "ray")}, rounds=3),
        [Goal(ours, pool, 1.15)],
    )
