"""Reads every invalid vector in every way; prints how much memory and processor time each took, as JSON.

python read_everything.py containers|episodes|journals|packs|sets
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardpack
from shard_cli.main import main as run_program
from shard_format import Manifest, ShardError, ShardReader, compute_identity
from shard_format.verify import check
from shard_train import EpisodeDataset, SampleDataset
from wshard import Episode, load_wshard, open_partial, recover
from wshard.doctor import examine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"


def peak_bytes() -> int:
    """The most memory that was resident since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def try_all(ways: Iterable[Callable[[], object]]) -> None:
    """Calls each; refusals are expected, and nothing else."""
    for way in ways:
        with contextlib.suppress(ShardError):
            way()


def extract(path: Path) -> None:
    """What a user types; the program shows errors itself."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        run_program(["extract", str(path), "-C", folder])


def read_container(path: Path) -> None:
    with contextlib.suppress(ShardError), ShardReader(path) as reader:
        check(reader)
        for name in reader.names():
            try_all(
                (
                    functools.partial(reader.read_entry, name),
                    functools.partial(reader.read_range, name, 0, 1),
                    functools.partial(reader.read_into, name, bytearray(1024)),
                )
            )
        try_all(
            (lambda: Manifest.read(reader), lambda: compute_identity(reader), lambda: reader.schema)
        )
    extract(path)


def read_episode(path: Path) -> None:
    with contextlib.suppress(ShardError), load_wshard(path) as episode:
        touch(episode)
    examine(path)

    def train() -> None:
        dataset = EpisodeDataset([path], window=2, index=False)
        dataset.batch([0])

    try_all((train,))


def touch(episode: Episode) -> None:
    """Everything of an episode that is read or computed when it is asked for."""
    channels = [channel for _, channel in episode.blocks()]
    try_all(
        (
            lambda: repr(episode),
            lambda: episode.ticks,
            lambda: episode.timestamps_ns,
            lambda: episode.dones,
            *(episode.times_ns, episode.align, episode.validate),
            *(functools.partial(getattr, channel, "data") for channel in channels),
            *(functools.partial(getattr, channel, "timestamps_ns") for channel in channels),
            *(functools.partial(episode.times_ns, channel) for channel in channels),
            *(functools.partial(getattr, one, "data") for one in episode.residuals.values()),
            *(functools.partial(list, labels) for labels in episode.labels.values()),
        )
    )


def read_journal(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ShardError):
        recover(path, Path(folder) / "out.wshard", fsync=False)
    with contextlib.suppress(ShardError), open_partial(path) as episode:
        touch(episode)


def read_pack(path: Path) -> None:
    with contextlib.suppress(ShardError), shardpack.ShardPackReader(path) as reader:
        try_all((lambda: reader.metadata, lambda: reader.find("first"), reader.get_index))
        for number in range(len(reader)):
            with contextlib.suppress(ShardError):
                read_record(reader.record(number))
        try_all((lambda: SampleDataset(path).batch(range(len(reader))),))
    with contextlib.suppress(ShardError):
        for record in shardpack.stream(path):
            read_record(record)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ShardError):
        shardpack.recover(path, Path(folder) / "out.shardpack", fsync=False)
    extract(path)


def read_set(path: Path) -> None:
    with contextlib.suppress(ShardError), shardpack.open(path) as dataset:
        for shard in range(len(dataset.shards)):
            try_all((functools.partial(dataset.shards.__getitem__, shard),))
        try_all((lambda: SampleDataset(path).batch(range(len(dataset))),))
    read_container(path)


def read_record(record: shardpack.Record) -> None:
    try_all((lambda: record.metadata, record.read_all, record.decode))
    with contextlib.suppress(ShardError):
        for entry in record.file_entries():
            try_all((entry.read, entry.decode))


# What is read, how, and one that is read without measuring: imports and first-time allocations are the baseline.
READ: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "containers": ("invalid", read_container, "valid/hello.shard"),
    "episodes": ("invalid_episodes", read_episode, "valid/episode_rewards.wshard"),
    "packs": ("invalid_packs", read_pack, "valid_packs/encodings.shardpack"),
    "sets": ("invalid_sets", read_set, "valid_sets/three_shards/train.shardpack-set"),
    "journals": ("invalid_journals", read_journal, "valid_journals/zstd.wshard.partial"),
}


def main() -> None:
    warnings.simplefilter("ignore")
    folder, read, first = READ[sys.argv[1]]
    read(VECTORS / first)
    taken: dict[str, Any] = {}
    for description in sorted((VECTORS / folder).glob("*.json")):
        case = json.loads(description.read_text("utf-8"))
        reset_peak()
        before, start = peak_bytes(), time.process_time()
        read(description.parent / case["file"])
        taken[description.stem] = [peak_bytes() - before, time.process_time() - start]
    json.dump(taken, sys.stdout)


if __name__ == "__main__":
    main()
