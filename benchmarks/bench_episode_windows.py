"""Training: batches of random windows from several episodes with a noisy camera."""

from __future__ import annotations

import builtins
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import safetensors

from benchmarks.data import NOISE, camera
from benchmarks.harness import Goal, Table, compare
from benchmarks.window_peers import (
    CAMERA,
    NAMES,
    Hdf5Zstd,
    SafeTensors,
    WindowPeer,
    WShard,
    WShardTraining,
    Zarr,
)
from shard_train import EpisodeDataset
from wshard import load_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from benchmarks.data import Arrays

EPISODES = 8
STEPS = 640
WINDOW = 64
BATCH = 16
BATCHES = "wshard, profile training, EpisodeDataset"
RAW: tuple[type[WindowPeer], ...] = (WShard, SafeTensors)
PACKED: tuple[type[WindowPeer], ...] = (WShardTraining, Hdf5Zstd, Zarr)


def noisy_episode(seed: int) -> Arrays:
    """A camera, and a state and an action that are random walks."""
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
    raw, packed = prepare(folder, RAW, episodes), prepare(folder, PACKED, episodes)
    del episodes
    note = (
        f"Batches of {BATCH}, uniformly random over {EPISODES} episodes of {STEPS} steps: a camera of "
        f"64 × 64 × 3 bytes with noise (σ = {NOISE:g}), 14 numbers of state and 7 of action, copied into "
        "one array per channel. Files stay open."
    )
    title = f"Random windows of {WINDOW} steps"
    compressed = per_window(packed, rounds=80, threads=2, more={BATCHES: our_batches(folder)})
    compressed["the best of the others"] = min(
        compressed[f"{peer.name}{threads}"]
        for peer in packed
        for threads in ("", ", 2 threads")
        if not isinstance(peer, WShard)
    )
    yield Table(
        f"{title}, uncompressed",
        note,
        per_window(raw, rounds=60),
        [Goal(WShard.name, SafeTensors.name, 1.0)],
    )
    yield first_windows(raw)
    yield Table(
        f"{title}, compressed",
        f"{note} HDF5's chunk cache is off: it would hold the whole dataset. With 2 threads, a pool shares the windows of "
        "a batch, as a user would write it; h5py has one lock for all threads. EpisodeDataset uses two threads "
        "and also reads rewards and ends.",
        compressed,
        [Goal(BATCHES, "the best of the others", 1 / 3)],
    )
    yield Table(
        f"{title}, size of the files",
        "All arrays of all episodes.",
        {peer.name: float(peer.size()) for peer in raw + packed},
        [Goal(WShardTraining.name, Hdf5Zstd.name, 0.6)],
        "bytes",
    )


def prepare(
    folder: Path, kinds: tuple[type[WindowPeer], ...], episodes: list[Arrays]
) -> list[WindowPeer]:
    """Write the episodes in these formats, and check some windows."""
    peers = [kind(folder / kind.__name__, EPISODES) for kind in kinds]
    for peer in peers:
        peer.write_all(episodes, EPISODES)
        for episode, start in ((0, 0), (3, 101), (EPISODES - 1, STEPS - WINDOW)):
            window = peer.window(episode, start, start + WINDOW)
            for found, name in zip(window, NAMES, strict=True):
                expected = episodes[episode][name][start : start + WINDOW]
                assert np.array_equal(found, expected), peer.name
    return peers


def first_windows(raw: list[WindowPeer]) -> Table:
    """What it costs to compare a raw block with its checksum before its first window is handed out."""
    wshard, tensors = (peer.path(0) for peer in raw)
    times = count(1)

    def with_wshard(check: bool) -> object:
        # Another time of change makes it another file, which was not checked before.
        os.utime(wshard, ns=(0, next(times)))
        with load_wshard(wshard, check=check) as episode:
            return episode.observations["rgb"][100 : 100 + WINDOW].copy()

    def with_safetensors() -> object:
        os.utime(tensors, ns=(0, next(times)))
        with safetensors.safe_open(tensors, "np") as file:
            return file.get_slice(CAMERA)[100 : 100 + WINDOW]

    return Table(
        f"The first window of {WINDOW} steps of a file, uncompressed",
        f"Each call opens an episode of {STEPS} steps as if for the first time in the process, copies a window of its "
        "camera (0.8 of 7.9 MB), and closes it. Later windows are not checked again, as the table above shows.",
        compare(
            {
                "load_wshard (whole block checked)": lambda: with_wshard(True),
                "load_wshard(check=False)": lambda: with_wshard(False),
                "safetensors (no checksum)": with_safetensors,
            },
            rounds=60,
        ),
    )


class Chosen:
    """Random windows, the same for all contenders."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(11)

    def batch(self) -> tuple[list[int], list[int]]:
        """The episodes and the first steps of the windows of a batch."""
        starts = self._random.integers(0, STEPS - WINDOW + 1, BATCH).tolist()
        return self._random.integers(0, EPISODES, BATCH).tolist(), starts


def our_batches(folder: Path) -> Callable[[], object]:
    """A function that reads batches of `EpisodeDataset`."""
    ds = EpisodeDataset(folder / WShardTraining.__name__, WINDOW, threads=2)
    in_episode = STEPS - WINDOW + 1
    assert len(ds) == EPISODES * in_episode
    chosen = Chosen()
    batch = ds.batch(range(BATCH))

    def one_batch() -> None:
        numbers = [e * in_episode + start for e, start in zip(*chosen.batch(), strict=True)]
        ds.batch(numbers, out=batch)

    return one_batch


def per_window(
    peers: list[WindowPeer],
    rounds: int,
    threads: int = 1,
    more: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, float]:
    def batches(peer: WindowPeer, pool: ThreadPoolExecutor | None) -> Callable[[], object]:
        windows = Chosen()
        forms = [(array.shape, array.dtype) for array in peer.window(0, 0, WINDOW)]
        batch = [np.empty((BATCH, *shape), dtype) for shape, dtype in forms]

        def fill(place: int, episode: int, start: int) -> None:
            peer.window_into(episode, start, [whole[place] for whole in batch])

        def one_batch() -> None:
            for _ in (pool or builtins).map(fill, range(BATCH), *windows.batch()):
                pass

        return one_batch

    medians: dict[str, float] = {}
    with ThreadPoolExecutor(threads) as pool:
        for is_slow in (False, True):
            alike = [peer for peer in peers if peer.is_slow == is_slow]
            contenders = {peer.name: batches(peer, None) for peer in alike}
            if threads > 1:
                for peer in alike:
                    contenders[f"{peer.name}, {threads} threads"] = batches(peer, pool)
            if not is_slow:
                contenders |= more or {}
            medians |= compare(contenders, 5 if is_slow else rounds)
    return {name: median / BATCH for name, median in medians.items()}
