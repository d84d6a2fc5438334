"""Training: batches of windows through `EpisodeDataset`, and the time until there is a first one."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.bench_episode_windows import (
    BATCH,
    EPISODES,
    NAMES,
    STEPS,
    WINDOW,
    hdf5,
    noisy_episode,
)
from benchmarks.episodes import as_episode
from benchmarks.harness import Goal, Table, compare
from wshard import Episode, EpisodeDataset, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.bench_episode_windows import Read
    from benchmarks.data import Arrays

MANY = 10_000
# What is done before a file system can be trusted to show the next change.
LONG_AGO = 3600


def run(folder: Path) -> Iterator[Table]:
    yield windows(folder)
    yield first_batch(folder / "many")


def windows(folder: Path) -> Table:
    episodes = [noisy_episode(seed) for seed in range(EPISODES)]
    packed = folder / "packed"
    packed.mkdir()
    for number, arrays in enumerate(episodes):
        save_wshard(
            as_episode(arrays), packed / f"{number}.wshard", profile="training", fsync=False
        )
    peers = {
        "h5py-zstd, chunks of 16 steps": hdf5(folder, episodes, {}),
        "memmap, uncompressed": memmaps(folder, episodes),
    }
    forms = [(array.shape[1:], array.dtype) for array in (episodes[0][name] for name in NAMES)]
    shuffled = EpisodeDataset(packed, WINDOW)
    one = EpisodeDataset(packed, WINDOW, threads=1)
    camera = shuffled.batch([0, len(shuffled) - 1])["rgb"]
    assert np.array_equal(camera[0], episodes[0]["signal/rgb"][:WINDOW])
    assert np.array_equal(camera[1], episodes[-1]["signal/rgb"][-WINDOW:])
    del episodes, camera

    contenders = {
        "EpisodeDataset, compressed": ours(shuffled),
        "EpisodeDataset, compressed, 1 thread": ours(one),
    }
    for name, read in peers.items():
        contenders[name] = theirs(read, forms, len(shuffled))
    medians = compare(contenders, rounds=40)
    return Table(
        f"Batches of {BATCH} random windows through a data set",
        f"Windows of {WINDOW} steps from {EPISODES} episodes of {STEPS} steps with a noisy camera of 64 × 64 × 3 "
        "bytes, 14 numbers of state and 7 of action; the same windows for everybody, each batch in new arrays. "
        "The data set also brings rewards and ends. Time per window.",
        {name: median / BATCH for name, median in medians.items()},
        [
            Goal("EpisodeDataset, compressed", "h5py-zstd, chunks of 16 steps", 1 / 3),
            Goal("EpisodeDataset, compressed", "memmap, uncompressed", 1 / 0.6),
        ],
    )


def sampler(count: int) -> Callable[[], np.ndarray]:
    random = np.random.default_rng(11)
    return lambda: random.integers(0, count, BATCH)


def ours(ds: EpisodeDataset) -> Callable[[], object]:
    draw = sampler(len(ds))
    return lambda: ds.batch(draw())


def theirs(read: Read, forms: list[tuple[Any, Any]], count: int) -> Callable[[], object]:
    draw = sampler(count)
    in_episode = STEPS - WINDOW + 1

    def one_batch() -> list[np.ndarray]:
        batch = [np.empty((BATCH, WINDOW, *shape), dtype) for shape, dtype in forms]
        for row, number in enumerate(draw().tolist()):
            episode, start = divmod(number, in_episode)
            read(episode, start, start + WINDOW, [whole[row] for whole in batch])
        return batch

    return one_batch


def memmaps(folder: Path, episodes: list[Arrays]) -> Read:
    opened = []
    for number, arrays in enumerate(episodes):
        mapped = []
        for name in NAMES:
            path = folder / f"{number}_{name.replace('/', '_')}.npy"
            np.save(path, arrays[name])
            mapped.append(np.load(path, mmap_mode="r"))
        opened.append(mapped)

    def read(number: int, start: int, stop: int, into: Any) -> list[np.ndarray]:  # noqa: ANN401 - arrays
        for array, out in zip(opened[number], into, strict=True):
            out[...] = array[start:stop]
        return into  # type: ignore[no-any-return] # the caller's

    return read


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

    def first(*, index: bool, where: str | None = None) -> float:
        start = time.perf_counter()
        ds = EpisodeDataset(folder, WINDOW, index=index, where=where)
        batch = ds.batch(np.random.default_rng(0).integers(0, len(ds), BATCH))
        taken = time.perf_counter() - start
        assert np.array_equal(batch["state"][:, 0, 0], batch["episode"] * (2 if where else 1))
        return taken

    slow = first(index=False)
    first(index=True)
    with_index = sorted(first(index=True) for _ in range(9))[4]
    with_condition = sorted(first(index=True, where="success") for _ in range(5))[2]
    saved = "with the saved index"
    return Table(
        f"Until the first batch of a folder of {MANY} episodes",
        f"Small files in the cache of the system; {BATCH} windows of {WINDOW} steps.",
        {
            saved: with_index,
            'with the saved index and where="success"': with_condition,
            "without an index": slow,
        },
        [Goal(saved, None, 0.5)],
    )
