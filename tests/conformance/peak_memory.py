"""Reads every invalid vector in every way and prints how much the peak memory grew for each, as JSON.

python peak_memory.py             the containers
python peak_memory.py episodes    the episodes
python peak_memory.py journals    the journals
python peak_memory.py packs       the shards of datasets
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shard_format import Manifest, ShardError, ShardReader, compute_identity
from shard_format.verify import check

if TYPE_CHECKING:
    import shardpack

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"


def peak_bytes() -> int:
    """The most memory that was resident since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def read_in_every_way(path: Path) -> None:
    with contextlib.suppress(ShardError), ShardReader(path) as reader:
        check(reader)
        for name in reader.names():
            with contextlib.suppress(ShardError):
                reader.read_entry(name)
            with contextlib.suppress(ShardError):
                reader.read_range(name, 0, 1)
            with contextlib.suppress(ShardError):
                reader.read_into(name, bytearray(1024))
        with contextlib.suppress(ShardError):
            Manifest.read(reader)
        compute_identity(reader)


def read_every_lane(path: Path) -> None:
    """Opens an episode and touches all of it, whatever fails."""
    from wshard import load_wshard

    with contextlib.suppress(ShardError):
        episode = load_wshard(path)
        groups: list[Any] = [
            *(getattr(episode, lane) for lane in ("observations", "actions", "residuals")),
            *episode.omens.values(),
            *(types for models in episode.uncerts.values() for types in models.values()),
        ]
        lanes = [group[key] for group in groups for key in group]
        lanes += [getattr(episode, name) for name in ("rewards", "terminations", "truncations")]
        for lane in lanes:
            with contextlib.suppress(ShardError):
                _ = lane and lane.data


def bring_back(path: Path) -> None:
    """Opens a journal, touches all of it, and saves what comes back."""
    from wshard import open_partial, recover

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ShardError):
        recover(path, Path(folder) / "out.wshard", fsync=False)
    with contextlib.suppress(ShardError), open_partial(path) as episode:
        for _, channel in episode.blocks():
            with contextlib.suppress(ShardError):
                _ = channel.data


def read_every_record(path: Path) -> None:
    """Reads a shard at random and as a stream, whatever fails, and brings back what is whole."""
    import shardpack

    with contextlib.suppress(ShardError), shardpack.ShardPackReader(path) as reader:
        for touch in (lambda: reader.metadata, lambda: reader.find("first"), reader.get_index):
            with contextlib.suppress(ShardError):
                touch()
        for number in range(len(reader)):
            with contextlib.suppress(ShardError):
                _touch_record(reader.record(number))
    with contextlib.suppress(ShardError):
        for record in shardpack.stream(path):
            with contextlib.suppress(ShardError):
                _touch_record(record)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ShardError):
        shardpack.recover(path, Path(folder) / "out.shardpack", fsync=False)


def _touch_record(record: shardpack.Record) -> None:
    for entry in record.file_entries():
        with contextlib.suppress(ShardError):
            _ = entry.data
    with contextlib.suppress(ShardError):
        _ = record.metadata
    record.read_all()


# What is read, how, and one that is read without measuring: imports and first-time allocations are the baseline.
READ = {
    "containers": ("invalid", read_in_every_way, "valid/hello.shard"),
    "episodes": ("invalid_episodes", read_every_lane, "valid/episode_rewards.wshard"),
    "packs": ("invalid_packs", read_every_record, "valid_packs/encodings.shardpack"),
    "journals": ("invalid_journals", bring_back, "valid_journals/zstd.wshard.partial"),
}


def main() -> None:
    folder, read, first = READ[sys.argv[1] if sys.argv[1:] else "containers"]
    read(VECTORS / first)
    grown: dict[str, int] = {}
    for description in sorted((VECTORS / folder).glob("*.json")):
        case = json.loads(description.read_text("utf-8"))
        reset_peak()
        before = peak_bytes()
        read(description.parent / case["file"])
        grown[description.stem] = peak_bytes() - before
    json.dump(grown, sys.stdout)


if __name__ == "__main__":
    main()
