"""Training on windows of episodes: random batches in one process, and through torch's DataLoader."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import default_collate

from benchmarks.bench_episode_windows import noisy_episode
from benchmarks.harness import Goal, Table, compare
from benchmarks.loaders import WORKERS, Running, our_loader, per_batch, plan, torch_loader
from benchmarks.window_peers import (
    NAMES,
    Hdf5,
    Hdf5Zstd,
    Memmap,
    Npz,
    SafeTensors,
    Video,
    WindowPeer,
    WShard,
    WShardTraining,
    Zarr,
)
from shard_train import EpisodeDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmarks.data import Arrays

    Read = Callable[[list[int]], Mapping[str, NDArray[Any]]]
    """A batch of windows, by their numbers."""

DISTINCT = 8
"""Different episodes; the others are copies of their files."""
EPISODES = 96
STEPS = 640
WINDOW = 64
BATCH = 16
MOST_OPEN = 128
"""`EpisodeDataset` keeps this many episodes open by default: here, all of them."""
FEW_OPEN = 8
IN_EPISODE = STEPS - WINDOW + 1
COUNT = EPISODES * IN_EPISODE
KEYS = ("rgb", "state", "ctrl")
PEERS: tuple[type[WindowPeer], ...] = (
    *(WShardTraining, Hdf5Zstd, Zarr, Npz, Video),
    *(WShard, Hdf5, SafeTensors, Memmap),
)
OPENED_OFTEN: tuple[type[WindowPeer], ...] = (Hdf5Zstd, SafeTensors, Memmap)
LOADED: tuple[type[WindowPeer], ...] = (Hdf5Zstd, Hdf5, SafeTensors, Memmap)
LOADED_BATCHES = 24
AHEAD = 6
"""Two batches for each worker, and a few more."""
LOSS = 4.0
"""Mean error of brightness that a video may have."""
OURS = "EpisodeDataset, compressed"
CACHED = "EpisodeDataset, compressed, cached"
RAW = "EpisodeDataset, uncompressed"
DATA = (
    f"Windows of {WINDOW} steps from {EPISODES} episodes of {STEPS} steps with a noisy camera of 64 × 64 × 3 bytes, "
    "14 numbers of state and 7 of action. All contenders read the same windows; EpisodeDataset also reads rewards and ends."
)


def run(folder: Path) -> Iterator[Table]:
    episodes = [noisy_episode(seed) for seed in range(DISTINCT)]
    assert len(episodes[0][NAMES[0]]) == STEPS
    for kind in PEERS:
        at(folder, kind).write_all(episodes, EPISODES)
    # First, before there are threads and open files that forked workers would inherit.
    loading = in_loaders(folder, episodes)
    yield in_process(folder, episodes)
    yield few_open(folder, episodes)
    yield sizes(folder)
    yield loading


def at(folder: Path, kind: type[WindowPeer], most_open: int = MOST_OPEN) -> WindowPeer:
    return kind(folder / kind.__name__, most_open)


def place_of(number: int) -> tuple[int, int]:
    """The episode and the first step of a window."""
    return divmod(number, IN_EPISODE)


def ours(
    folder: Path,
    kind: type[WShard],
    *,
    threads: int | None = None,
    max_open: int = MOST_OPEN,
    cache: Path | None = None,
) -> EpisodeDataset:
    ds = EpisodeDataset(
        folder / kind.__name__, WINDOW, threads=threads, max_open=max_open, cache=cache
    )
    assert len(ds) == COUNT
    return ds


def theirs(peer: WindowPeer, forms: list[tuple[tuple[int, ...], Any]]) -> Read:
    def read(numbers: list[int]) -> dict[str, NDArray[Any]]:
        batch = [np.empty((len(numbers), WINDOW, *shape), dtype) for shape, dtype in forms]
        for row, number in enumerate(numbers):
            peer.window_into(*place_of(number), [whole[row] for whole in batch])
        return dict(zip(KEYS, batch, strict=True))

    return read


def forms_of(episodes: list[Arrays]) -> list[tuple[tuple[int, ...], Any]]:
    return [(array.shape[1:], array.dtype) for array in (episodes[0][name] for name in NAMES)]


def check(batch: Mapping[str, Any], numbers: list[int], episodes: list[Arrays], name: str) -> None:
    """Check that a batch has the values that were written."""
    for row, number in enumerate(numbers):
        episode, start = place_of(number)
        for key, block in zip(KEYS, NAMES, strict=True):
            found = np.asarray(batch[key][row])
            expected = episodes[episode % DISTINCT][block][start : start + WINDOW]
            assert found.shape == expected.shape, f"{name}: {key} {found.shape}"
            if key == "rgb" and name == Video.name:
                assert np.abs(found.astype(int) - expected).mean() < LOSS, name
            else:
                assert np.array_equal(found, expected), f"{name}: {key} of window {number}"


def timed(readers: Mapping[str, Read], episodes: list[Arrays], rounds: int) -> dict[str, float]:
    """Median time per window of each reader."""
    some = [0, COUNT - 1, COUNT // 3, COUNT // 2]
    contenders: dict[str, Callable[[], object]] = {}
    for name, read in readers.items():
        check(read(some), some, episodes, name)
        contenders[name] = partial(_next, read, np.random.default_rng(11))
    return {name: median / BATCH for name, median in compare(contenders, rounds).items()}


def _next(read: Read, random: np.random.Generator) -> object:
    return read(random.integers(0, COUNT, BATCH).tolist())


def in_process(folder: Path, episodes: list[Arrays]) -> Table:
    forms = forms_of(episodes)
    fast: dict[str, Read] = {
        OURS: ours(folder, WShardTraining).batch,
        f"{OURS}, 1 thread": ours(folder, WShardTraining, threads=1).batch,
        CACHED: ours(folder, WShardTraining, cache=folder / "cache").batch,
        RAW: ours(folder, WShard).batch,
    }
    slow: dict[str, Read] = {}
    for kind in PEERS:
        if not issubclass(kind, WShard):
            (slow if kind.is_slow else fast)[kind.name] = theirs(at(folder, kind), forms)
    for read in fast.values():
        for number in range(0, COUNT, WINDOW):
            read([number])
    medians = timed(fast, episodes, rounds=80) | timed(slow, episodes, rounds=3)
    return Table(
        f"Batches of {BATCH} random windows",
        f"{DATA} Each batch is read into new arrays. All episodes are open and have been read once, and the cache of decoded "
        "copies exists, as shortly after the start of a training run. HDF5's chunk cache is off: it would hold a dataset of "
        "this size. Time per window.",
        medians,
        [
            Goal(OURS, Hdf5Zstd.name, 1 / 3),
            Goal(CACHED, Memmap.name, 1 / 0.6),
            Goal(RAW, Memmap.name, 1 / 0.6),
        ],
    )


def few_open(folder: Path, episodes: list[Arrays]) -> Table:
    forms = forms_of(episodes)
    readers: dict[str, Read] = {
        OURS: ours(folder, WShardTraining, max_open=FEW_OPEN).batch,
        RAW: ours(folder, WShard, max_open=FEW_OPEN).batch,
    }
    for kind in OPENED_OFTEN:
        readers[kind.name] = theirs(at(folder, kind, FEW_OPEN), forms)
    return Table(
        f"Batches of {BATCH} random windows, nearly every one of which opens its file",
        f"As above, but each contender keeps at most {FEW_OPEN} of the {EPISODES} episodes open, the most recently used ones, "
        "as with a dataset of very many episodes. Time per window.",
        timed(readers, episodes, rounds=15),
        [],
    )


class PeerWindows:
    """A torch dataset of a peer's windows, as its users would write it."""

    def __init__(self, peer: WindowPeer) -> None:
        self._peer = peer

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> dict[str, NDArray[Any]]:
        episode, start = place_of(number)
        return dict(zip(KEYS, self._peer.window(episode, start, start + WINDOW), strict=True))


def in_loaders(folder: Path, episodes: list[Arrays]) -> Table:
    loaders: dict[str, Iterable[Any]] = {
        OURS: our_loader(ours(folder, WShardTraining), BATCH),
        RAW: our_loader(ours(folder, WShard), BATCH),
    }
    for kind in LOADED:
        windows = PeerWindows(at(folder, kind))
        loaders[kind.name] = torch_loader(windows, BATCH, default_collate)
    running = {name: Running(loader, LOADED_BATCHES) for name, loader in loaders.items()}
    for name, loader in running.items():
        for numbers, batch in zip(plan(COUNT, BATCH).batches(), loader, strict=False):
            check(batch, numbers.tolist(), episodes, name)
    medians = per_batch(running, rounds=7, ahead=AHEAD)
    return Table(
        f"Batches of {BATCH} random windows through torch's DataLoader with {WORKERS} workers",
        f"{DATA} Workers were started and have opened the files before the measurement. Peers return samples that torch "
        "collates in shared memory. The batches are not used. Time per window. The reference implementation of the format "
        "is not on a package registry; its published times in such a loader are 2.0 times those of safetensors "
        "uncompressed, and 8.4 times with zstd.",
        {name: median / BATCH for name, median in medians.items()},
        [Goal(OURS, Hdf5Zstd.name, 1 / 2)],
    )


def sizes(folder: Path) -> Table:
    names: dict[type[WindowPeer], str] = {WShardTraining: OURS, WShard: RAW}
    return Table(
        "Size of the files of these episodes",
        f"All arrays. {DISTINCT} episodes are different; the others are copies of their files. The video is lossy.",
        {names.get(kind, kind.name): float(at(folder, kind).size()) for kind in PEERS},
        [Goal(OURS, Hdf5Zstd.name, 0.6)],
        unit="bytes",
    )
