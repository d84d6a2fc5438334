"""Opening: how the time depends on the size of the file and on the number of entries."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.data import write_many
from benchmarks.harness import Goal, Table, compare
from shard_format import ShardReader, ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MEGABYTE = 1_000_000


def opener(path: Path) -> Callable[[], None]:
    location = str(path)

    def open_and_close() -> None:
        ShardReader(location).close()

    return open_and_close


def run(folder: Path) -> Iterator[Table]:
    # First: the large files below keep the disk busy for a while after they are written.
    for count, rounds, goal in ((10_000, 400, 1e-3), (1_000_000, 15, 0.15)):
        path = folder / f"{count}.shard"
        write_many(path, count)
        wanted = f"sample/{count // 2:07d}/label"
        with ShardReader(path) as reader:
            assert reader.read_entry(wanted) == b"0123456789"
        medians = compare({"open and index": opener(path)}, rounds)
        yield Table(
            f"Open a file of {count:,} entries",
            "Reads, checks and indexes all names. The first lookup needs no further work.",
            medians,
            [Goal("open and index", None, goal)],
        )

    sizes = {"5 MB": 5, "50 MB": 50, "500 MB": 500}
    for label, megabytes in sizes.items():
        with ShardWriter(folder / f"{label}.shard", reserve=8, fsync=False) as writer:
            piece = os.urandom(MEGABYTE)
            writer.write_entry_stream("camera", (piece for _ in range(megabytes)))
            writer.write_entry("state", piece[:28_000])
    medians = compare(
        {label: opener(folder / f"{label}.shard") for label in sizes}, rounds=200, calls=20
    )
    yield Table(
        "The time to open does not grow with the file",
        "Two entries in files of three sizes. The reader reads only the head.",
        medians,
        [Goal("500 MB", "5 MB", 1.15)],
    )
    for label in sizes:
        (folder / f"{label}.shard").unlink()
