"""Two thousand small episodes: open each, and read each whole."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import h5py
import numpy as np
import safetensors
import safetensors.numpy

from benchmarks.episodes import as_episode
from benchmarks.harness import Goal, Table, compare
from wshard import load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.data import Arrays

EPISODES = 2000
STEPS = 50
# h5py takes twenty times as long; fewer of its files tell as much.
HDF5_EPISODES = 200


def small_episode(random: np.random.Generator) -> Arrays:
    joints = np.cumsum(random.normal(0, 0.01, (STEPS, 7)), axis=0).astype(np.float32)
    return {
        "signal/joint_pos": joints,
        "action/ctrl": np.tanh(joints),
        "reward": random.normal(size=STEPS).astype(np.float32),
        "done": (np.arange(STEPS) == STEPS - 1).astype(np.uint8),
        "time/ticks": np.arange(STEPS, dtype=np.int32),
    }


def run(folder: Path) -> Iterator[Table]:
    random = np.random.default_rng(3)
    ours, tensors, hdf5 = [], [], []
    for number in range(EPISODES):
        arrays = small_episode(random)
        ours.append(str(folder / f"{number:04d}.wshard"))
        save_wshard(as_episode(arrays, f"ep_{number:04d}"), ours[-1], fsync=False)
        tensors.append(str(folder / f"{number:04d}.st"))
        safetensors.numpy.save_file(arrays, tensors[-1])
        if number < HDF5_EPISODES:
            hdf5.append(str(folder / f"{number:04d}.h5"))
            with h5py.File(hdf5[-1], "w") as file:
                for name, array in arrays.items():
                    file[name] = array
    check(ours, tensors, hdf5)
    yield metadata(ours, tensors, hdf5)
    yield everything(ours, tensors, hdf5)


def check(ours: list[str], tensors: list[str], hdf5: list[str]) -> None:
    """Check that all formats have the same values; also brings every file into the page cache."""
    for number, (path, other) in enumerate(zip(ours, tensors, strict=True)):
        expected = safetensors.numpy.load_file(other)
        with load_wshard(path) as episode:
            assert np.array_equal(
                episode.observations["joint_pos"].data, expected["signal/joint_pos"]
            )
            assert np.array_equal(episode.actions["ctrl"].data, expected["action/ctrl"])
            assert episode.terminations is not None
            assert np.array_equal(episode.terminations.data, expected["done"])
        if number < len(hdf5):
            with h5py.File(hdf5[number]) as file:
                assert np.array_equal(file["signal/joint_pos"][...], expected["signal/joint_pos"])


def metadata(ours: list[str], tensors: list[str], hdf5: list[str]) -> Table:
    our_turn, their_turn, hdf5_turn = cycle(ours), cycle(tensors), cycle(hdf5)

    def with_wshard() -> object:
        with load_wshard(next(our_turn)) as episode:
            return episode.id, episode.length, episode.described

    def with_safetensors() -> object:
        with safetensors.safe_open(next(their_turn), "np") as file:
            slices = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118 - its only way
            return [(name, part.get_shape(), part.get_dtype()) for name, part in slices]

    def with_h5py() -> object:
        with h5py.File(next(hdf5_turn)) as file:
            return [(name, data.shape, data.dtype) for name, data in file["signal"].items()]

    contenders: dict[str, Callable[[], object]] = {
        "load_wshard": with_wshard,
        "safetensors (no checksum)": with_safetensors,
    }
    medians = compare(contenders, rounds=40, calls=500)
    medians |= compare({"h5py": with_h5py}, rounds=3, calls=HDF5_EPISODES)
    return Table(
        f"Open one of {EPISODES} small episodes, list its channels",
        "Each call opens a file, lists id, length, names, dtypes and shapes, and closes the file.",
        medians,
        [
            Goal("load_wshard", "safetensors (no checksum)", 2.5),
        ],
    )


def everything(ours: list[str], tensors: list[str], hdf5: list[str]) -> Table:
    our_turn, their_turn, hdf5_turn = cycle(ours), cycle(tensors), cycle(hdf5)

    def with_wshard() -> object:
        with load_wshard(next(our_turn)) as episode:
            return [*(channel.data for _, channel in episode.blocks()), episode.ticks]

    def with_safetensors() -> object:
        return safetensors.numpy.load_file(next(their_turn))

    def with_h5py() -> object:
        with h5py.File(next(hdf5_turn)) as file:
            return [
                *(file[group][name][...] for group in ("signal", "action") for name in file[group]),
                *(file[name][...] for name in ("reward", "done", "time/ticks")),
            ]

    contenders: dict[str, Callable[[], object]] = {
        "load_wshard, every channel (CRC checked)": with_wshard,
        "safetensors load_file (no checksum)": with_safetensors,
    }
    medians = compare(contenders, rounds=40, calls=500)
    medians |= compare({"h5py": with_h5py}, rounds=3, calls=HDF5_EPISODES)
    return Table(
        f"Read one of {EPISODES} small episodes, all five arrays",
        f"{STEPS} steps, 3.3 KB. Each call opens and closes a file. `load_file` returns a dictionary of arrays, "
        "`load_wshard` an episode.",
        medians,
        [
            Goal(
                "load_wshard, every channel (CRC checked)",
                "safetensors load_file (no checksum)",
                2.5,
            )
        ],
    )
