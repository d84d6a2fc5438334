"""Reads every invalid vector with every reader; prints the most memory and processor time that one took, as JSON.

python read_everything.py containers|episodes|journals|overviews|packs|sets
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardpack
from shard_cli.main import main as run_program
from shard_cli.programs import SHARD, SHARDPACK, WSHARD
from shard_format import Manifest, ShardError, ShardReader, compute_identity
from shard_format.verify import check
from shard_train import EpisodeDataset, SampleDataset, compute_stats
from wshard import Episode, find, load_wshard, open_partial, recover
from wshard.doctor import examine
from wshard.overviews import open_overviews

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shard_cli.programs import Program

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


def commands(program: Program, *lines: str) -> list[Callable[[Path], None]]:
    """What a user types; the program shows errors itself. `FOLDER` is an empty folder."""

    def run(line: str, path: Path) -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            command, *options = line.replace("FOLDER", folder).split()
            run_program([command, str(path), *options], program)

    return [functools.partial(run, line) for line in lines]


def read_container(path: Path) -> None:
    with contextlib.suppress(ShardError), ShardReader(path) as reader:
        check(reader)
        for name in reader.names():
            try_all(
                (
                    functools.partial(reader.read_entry, name),
                    functools.partial(reader.read_range, name, 0, 1),
                    functools.partial(reader.read_into, name, bytearray(1024)),
                    functools.partial(reader.view, name),
                    lambda name=name: list(reader.iter_entry(name)),  # type: ignore[misc]
                )
            )
        try_all(
            (lambda: Manifest.read(reader), lambda: compute_identity(reader), lambda: reader.schema)
        )


def read_episode(path: Path) -> None:
    with contextlib.suppress(ShardError), load_wshard(path) as episode:
        touch(episode)


def train(path: Path, **options: Any) -> None:  # noqa: ANN401 - of the dataset
    with contextlib.suppress(ShardError):
        dataset = EpisodeDataset([path], window=2, index=False, **options)
        dataset.batch([0])


def compute(path: Path) -> None:
    try_all((lambda: compute_stats([path]), lambda: find([path], index=False)))


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


def read_overviews(path: Path) -> None:
    with contextlib.suppress(ShardError), load_wshard(path) as episode:
        overviews = open_overviews(episode)
        if overviews is None:
            return
        with overviews:
            try_all(functools.partial(overviews.__getitem__, block) for block in overviews)
            try_all(functools.partial(overviews.read_poster, one) for one in overviews.posters)


def read_journal(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ShardError):
        recover(path, Path(folder) / "out.wshard", fsync=False)
    for read in (open_partial, load_wshard):
        with contextlib.suppress(ShardError), read(path) as episode:
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


def read_set(path: Path) -> None:
    with contextlib.suppress(ShardError), shardpack.open(path) as dataset:
        for shard in range(len(dataset.shards)):
            try_all((functools.partial(dataset.shards.__getitem__, shard),))
        try_all((lambda: SampleDataset(path).batch(range(len(dataset))),))


def read_record(record: shardpack.Record) -> None:
    try_all((lambda: record.metadata, record.read_all, record.decode))
    with contextlib.suppress(ShardError):
        for entry in record.file_entries():
            try_all((entry.read, entry.decode))


# What is read, by what, and one that is read without measuring: imports and first-time allocations are the baseline.
READ: dict[str, tuple[str, list[Callable[[Path], object]], str]] = {
    "containers": (
        "invalid",
        [read_container, *commands(SHARD, "info", "ls", "doctor", "identity", "extract -C FOLDER")],
        "valid/hello.shard",
    ),
    "episodes": (
        "invalid_episodes",
        [
            *(read_episode, examine, train, compute),
            functools.partial(train, align="nearest"),
            functools.partial(train, delta_timestamps={"state": [-0.1, 0.0]}),
            *commands(WSHARD, "inspect", "inspect --values", "verify", "extract -C FOLDER"),
        ],
        "valid/episode_rewards.wshard",
    ),
    "packs": (
        "invalid_packs",
        [
            read_pack,
            *commands(SHARDPACK, "info", "ls", "stats", "verify", "extract -C FOLDER"),
            *commands(SHARD, "doctor"),
        ],
        "valid_packs/encodings.shardpack",
    ),
    "sets": (
        "invalid_sets",
        [read_set, read_container, *commands(SHARDPACK, "info", "ls", "stats", "verify")],
        "valid_sets/three_shards/train.shardpack-set",
    ),
    "overviews": (
        "invalid_overviews",
        [read_overviews, examine, *commands(WSHARD, "doctor")],
        "valid_overviews/overview_posters/ep.wshard",
    ),
    "journals": (
        "invalid_journals",
        [read_journal, *commands(WSHARD, "inspect", "verify", "doctor")],
        "valid_journals/zstd.wshard.partial",
    ),
}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    folder, readers, first = READ[sys.argv[1]]
    for read in readers:
        read(VECTORS / first)
    taken: dict[str, Any] = {}
    for description in sorted((VECTORS / folder).glob("*.json")):
        case = json.loads(description.read_text("utf-8"))
        most = taken[description.stem] = [0, 0.0]
        for read in readers:
            reset_peak()
            before, start = peak_bytes(), time.process_time()
            read(description.parent / case["file"])
            most[0] = max(most[0], peak_bytes() - before)
            most[1] = max(most[1], time.process_time() - start)
    json.dump(taken, sys.stdout)


if __name__ == "__main__":
    main()
