"""Training: batches of random windows from several episodes with a noisy camera."""

from __future__ import annotations

import builtins
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import h5py
import hdf5plugin
import numpy as np
import safetensors
import safetensors.numpy
import zarr

from benchmarks.data import NOISE, camera
from benchmarks.episodes import as_episode
from benchmarks.harness import Goal, Table, compare
from wshard import load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.data import Arrays

    Into = list[np.ndarray] | None
    Read = Callable[[int, int, int, Into], list[np.ndarray]]
    """The camera, state and action of an episode, from a step to a step."""

EPISODES = 8
STEPS = 640
WINDOW = 64
BATCH = 16
CHUNK_STEPS = 16
NAMES = ("signal/rgb", "signal/state", "action/ctrl")


def noisy_episode(seed: int) -> Arrays:
    """A camera, and random walks."""
    random = np.random.default_rng(seed)
    frames = camera(seed, STEPS, 64)
    walk = np.cumsum(random.normal(0, 0.01, (STEPS, 14)), axis=0)
    return {
        "signal/rgb": frames,
        "signal/state": walk.astype(np.float32),
        "action/ctrl": np.tanh(walk[:, :7]).astype(np.float32),
        "reward": random.normal(size=STEPS).astype(np.float32),
        "done": (np.arange(STEPS) == STEPS - 1).astype(np.uint8),
    }


def run(folder: Path) -> Iterator[Table]:
    episodes = [noisy_episode(seed) for seed in range(EPISODES)]
    kept = [[arrays[name] for name in NAMES] for arrays in episodes]
    size: dict[str, float] = {}
    raw = {
        "wshard": ours(folder, episodes, size, "none"),
        "safetensors slices": tensors(folder, episodes, size),
    }
    packed = {
        "wshard, profile training": ours(folder, episodes, size, "training"),
        "h5py-zstd, chunks of 16 steps": hdf5(folder, episodes, size),
        "zarr-zstd, chunks of 16 steps": zarrs(folder, episodes, size),
    }
    del episodes
    for name, read in (raw | packed).items():
        for episode, start in ((0, 0), (3, 101), (EPISODES - 1, STEPS - WINDOW)):
            for found, arrays in zip(
                read(episode, start, start + WINDOW, None), kept[episode], strict=True
            ):
                assert np.array_equal(found, arrays[start : start + WINDOW]), name
    del kept
    note = (
        f"Each in a batch of {BATCH}, uniformly random over {EPISODES} episodes of {STEPS} steps: a camera of "
        f"64 × 64 × 3 bytes with noise (σ = {NOISE:g}), 14 numbers of state and 7 of action, copied into "
        "one array each. Files stay open."
    )
    title = f"Random windows of {WINDOW} steps"
    compressed = per_window(packed, rounds=20, threads=2)
    compressed["the best of the others"] = min(
        median for name, median in compressed.items() if not name.startswith("wshard")
    )
    yield Table(
        f"{title}, uncompressed",
        note,
        per_window(raw, rounds=60),
        [Goal("wshard", "safetensors slices", 1.0)],
    )
    yield Table(
        f"{title}, compressed",
        f"{note} HDF5's cache of chunks is off: it would hold the whole data set. Threads share out the windows of "
        "a batch; HDF5 and h5py have one lock for all of them.",
        compressed,
        [Goal("wshard, profile training, 2 threads", "the best of the others", 1 / 3)],
    )
    yield Table(
        f"{title}, size of the files",
        "All arrays of all episodes.",
        {name: size[name] for name in (raw | packed)},
        [Goal("wshard, profile training", "h5py-zstd, chunks of 16 steps", 0.6)],
        "bytes",
    )


def copied(parts: list[np.ndarray], into: Into) -> list[np.ndarray]:
    """For readers that cannot read into memory of the caller."""
    if into is None:
        return parts
    for part, out in zip(parts, into, strict=True):
        out[...] = part
    return into


def per_window(readers: dict[str, Read], rounds: int, threads: int = 1) -> dict[str, float]:
    def batches(read: Read, pool: ThreadPoolExecutor | None) -> Callable[[], object]:
        # The same windows for everybody.
        random = np.random.default_rng(11)
        batch = [np.empty((BATCH, *array.shape), array.dtype) for array in read(0, 0, WINDOW, None)]

        def fill(place: int, episode: int, start: int) -> None:
            places = [whole[place] for whole in batch]
            read(episode, start, start + WINDOW, places)

        def one_batch() -> None:
            starts = random.integers(0, STEPS - WINDOW + 1, BATCH).tolist()
            chosen = random.integers(0, EPISODES, BATCH).tolist()
            for _ in (pool or builtins).map(fill, range(BATCH), chosen, starts):
                pass

        return one_batch

    contenders = {name: batches(read, None) for name, read in readers.items()}
    with ThreadPoolExecutor(threads) as pool:
        if threads > 1:
            for name, read in readers.items():
                contenders[f"{name}, {threads} threads"] = batches(read, pool)
        medians = compare(contenders, rounds=rounds)
    return {name: median / BATCH for name, median in medians.items()}


def ours(folder: Path, episodes: list[Arrays], size: dict[str, float], profile: str) -> Read:
    name = "wshard" if profile == "none" else f"wshard, profile {profile}"
    opened = []
    for number, arrays in enumerate(episodes):
        path = folder / f"{profile}_{number}.wshard"
        save_wshard(
            as_episode(arrays), path, profile=None if profile == "none" else profile, fsync=False
        )
        size[name] = size.get(name, 0) + os.path.getsize(path)
        episode = load_wshard(path, threads=1)
        opened.append(
            (
                episode.observations["rgb"],
                episode.observations["state"],
                episode.actions["ctrl"],
            )
        )

    def read(number: int, start: int, stop: int, into: Into) -> list[np.ndarray]:
        if into is None:
            return [channel[start:stop] for channel in opened[number]]
        for channel, out in zip(opened[number], into, strict=True):
            channel.read_steps_into(start, out)
        return into

    return read


def tensors(folder: Path, episodes: list[Arrays], size: dict[str, float]) -> Read:
    opened: list[Any] = []
    for number, arrays in enumerate(episodes):
        path = folder / f"{number}.st"
        safetensors.numpy.save_file(arrays, path)
        size["safetensors slices"] = size.get("safetensors slices", 0) + os.path.getsize(path)
        file = safetensors.safe_open(path, "np")
        opened.append([file.get_slice(name) for name in NAMES])

    def read(number: int, start: int, stop: int, into: Into) -> list[np.ndarray]:
        return copied([part[start:stop] for part in opened[number]], into)

    return read


def hdf5(folder: Path, episodes: list[Arrays], size: dict[str, float]) -> Read:
    name = f"h5py-zstd, chunks of {CHUNK_STEPS} steps"
    opened: list[Any] = []
    for number, arrays in enumerate(episodes):
        path = folder / f"{number}.h5"
        with h5py.File(path, "w") as file:
            for block, array in arrays.items():
                file.create_dataset(
                    block,
                    data=array,
                    chunks=(CHUNK_STEPS, *array.shape[1:]),
                    **hdf5plugin.Zstd(clevel=3),
                )
        size[name] = size.get(name, 0) + os.path.getsize(path)
        file = h5py.File(path, rdcc_nbytes=0, rdcc_nslots=0)
        opened.append([file[block] for block in NAMES])

    def read(number: int, start: int, stop: int, into: Into) -> list[np.ndarray]:
        if into is None:
            return [data[start:stop] for data in opened[number]]
        for data, out in zip(opened[number], into, strict=True):
            data.read_direct(out, np.s_[start:stop])
        return into

    return read


def zarrs(folder: Path, episodes: list[Arrays], size: dict[str, float]) -> Read:
    name = f"zarr-zstd, chunks of {CHUNK_STEPS} steps"
    opened: list[Any] = []
    for number, arrays in enumerate(episodes):
        path = folder / f"{number}.zip"
        with zarr.storage.ZipStore(path, mode="w") as store:
            group = zarr.create_group(store)
            for block, array in arrays.items():
                made = group.create_array(
                    block,
                    shape=array.shape,
                    dtype=array.dtype,
                    chunks=(CHUNK_STEPS, *array.shape[1:]),
                    compressors=zarr.codecs.ZstdCodec(level=3),
                )
                made[...] = array
        size[name] = size.get(name, 0) + os.path.getsize(path)
        kept = zarr.open_group(zarr.storage.ZipStore(path, mode="r"), mode="r")
        opened.append([kept[block] for block in NAMES])

    def read(number: int, start: int, stop: int, into: Into) -> list[np.ndarray]:
        return copied([np.asarray(data[start:stop]) for data in opened[number]], into)

    return read
