"""What users call: one episode by the ending of its file, and datasets that are larger than memory."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

import wshard
from wshard import Episode, Timebase
from wshard.convert import ConvertedEpisode, read, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MB = 1 << 20


@pytest.mark.parametrize("name", ["ep.hdf5", "ep.mcap", "ep.parquet", "ep.zarr"])
def test_load_and_save_take_the_format_from_the_file(name: str, tmp_path: Path) -> None:
    episode = Episode("ep", timebase=Timebase(tick_hz=10))
    episode.observations["state"] = np.arange(12, dtype=np.float32).reshape(4, 3)
    episode.actions["action"] = np.ones((4, 2), np.float32)
    wshard.save(episode, tmp_path / name)
    with wshard.load(tmp_path / name) as found:
        assert isinstance(found, ConvertedEpisode)
        assert (
            found.observations["state"].data.tolist() == episode.observations["state"].data.tolist()
        )
        assert found.actions["action"].data.tolist() == episode.actions["action"].data.tolist()
        assert not found.lost


def large_episodes(count: int, steps: int, width: int) -> Iterator[Episode]:
    for number in range(count):
        random = np.random.default_rng(number)
        episode = Episode(f"ep_{number}", timebase=Timebase(tick_hz=10))
        episode.observations["state"] = random.random((steps, width), np.float32)
        episode.actions["action"] = np.zeros((steps, 2), np.float32)
        episode.rewards = np.zeros(steps)
        episode.terminations = np.arange(steps) == steps - 1
        yield episode


@pytest.mark.parametrize(
    "name",
    [
        *("wshard", "minari", "lerobot", "rlds", "robomimic", "mcap", "dreamer", "zarr", "npz"),
        *("table", "table.parquet"),
    ],
)
def test_a_dataset_that_is_written_and_read_is_never_in_memory_as_a_whole(
    name: str, tmp_path: Path
) -> None:
    arrow = pytest.importorskip("pyarrow")
    # Episodes of 2 MB. A table of LeRobot has statistics of every element, a message of MCAP is JSON if it is short.
    steps, width = (2048, 256) if name == "lerobot" else (32, 1 << 14)
    form, path = name.partition(".")[0], tmp_path / name
    tracemalloc.start()
    # Not traced by Python.
    before, of_arrow = arrow.total_allocated_bytes(), 0
    try:
        write(large_episodes(40, steps, width), path, form)
        total = 0
        for episode in read(path, form):
            for _, channel in episode.blocks():
                for few in channel.step_ranges(MB):
                    total += np.asarray(channel.read_steps(*few)).nbytes
                    of_arrow = max(of_arrow, arrow.total_allocated_bytes() - before)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 80 * MB
    assert peak + of_arrow < 56 * MB
