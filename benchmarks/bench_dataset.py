"""Training: the time to the first batch of a folder of many episodes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Goal, Table
from shard_train import EpisodeDataset, EpisodeInfo
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MANY = 10_000
WINDOW = 64
BATCH = 16
# What is done before a file system can be trusted to show the next change.
LONG_AGO = 3600


def run(folder: Path) -> Iterator[Table]:
    yield first_batch(folder / "many")


def first_batch(folder: Path) -> Table:
    folder.mkdir()
    steps = 80
    for number in range(MANY):
        episode = Episode(
            f"ep_{number}",
            observations={"state": np.full((steps, 4), number, np.float32)},
            actions={"ctrl": np.zeros((steps, 2), np.float32)},
            rewards=np.zeros(steps, np.float32),
            metadata={"success": number % 2 == 0},
        )
        save_wshard(episode, folder / f"ep_{number}.wshard", fsync=False)
    os.utime(folder, (time.time() - LONG_AGO, time.time() - LONG_AGO))

    def first(*, index: bool, where: Callable[[EpisodeInfo], object] | None = None) -> float:
        start = time.perf_counter()
        ds = EpisodeDataset(folder, WINDOW, index=index, where=where)
        batch = ds.batch(np.random.default_rng(0).integers(0, len(ds), BATCH))
        taken = time.perf_counter() - start
        assert np.array_equal(batch["state"][:, 0, 0], batch["episode"] * (2 if where else 1))
        return taken

    slow = first(index=False)
    first(index=True)
    with_index = sorted(first(index=True) for _ in range(9))[4]
    with_condition = sorted(
        first(index=True, where=lambda ep: ep.metadata["success"]) for _ in range(5)
    )[2]
    saved = "with the saved index"
    return Table(
        f"Time to the first batch of a folder of {MANY} episodes",
        f"Small files in the page cache; the batch has {BATCH} windows of {WINDOW} steps.",
        {
            saved: with_index,
            "with the saved index and where=lambda ep: …": with_condition,
            "without an index": slow,
        },
        [Goal(saved, None, 0.5)],
    )
