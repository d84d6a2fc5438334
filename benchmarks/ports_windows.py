"""Batches of windows with the Rust library and with Python's, in turn: `python -m benchmarks.ports_windows PROGRAM`.

PROGRAM is the binary `training` of ports/rust/benchmarks. Prints Markdown for `make bench-ports`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bench_episode_windows import noisy_episode
from benchmarks.bench_training_windows import (
    BATCH,
    COUNT,
    DATA,
    DISTINCT,
    EPISODES,
    KEYS,
    at,
    ours,
    place_of,
)
from benchmarks.harness import Goal, Table, compare
from benchmarks.window_peers import WShardTraining
from shard_format.codecs import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

    from shard_train import EpisodeDataset

ROUNDS = 20
IN_A_ROW = 8
"""Batches that a contender reads in its turn, as training asks for one after another. The first ones of a turn find
sleeping threads, and processors where others ran last."""


class Program:
    """The Rust program: it has the files open, and reads what it is told to."""

    def __init__(self, path: str, folder: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [path, str(folder), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, numbers: list[int], before: str = "") -> str:
        """Read a batch of windows; the program's answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        windows = " ".join("{}:{}".format(*place_of(number)) for number in numbers)
        stdin.write(f"{before}{windows}\n")
        stdin.flush()
        return stdout.readline()

    def close(self) -> None:
        self._process.communicate()


def run(path: str, folder: Path) -> Table:
    at(folder, WShardTraining).write_all(
        [noisy_episode(seed) for seed in range(DISTINCT)], EPISODES
    )
    contenders: dict[str, Callable[[], object]] = {}
    programs = []
    for threads, label in ((1, "1 thread"), (2, "2 threads")):
        dataset = ours(folder, WShardTraining, threads=threads)
        program = Program(path, folder / WShardTraining.__name__, threads)
        programs.append(program)
        check(program, dataset)
        random = np.random.default_rng(11), np.random.default_rng(11)
        contenders[f"Rust, {label}"] = partial(_next, program.ask, random[0])
        contenders[f"Python, {label}"] = partial(_next, dataset.batch, random[1])
    medians = compare(contenders, ROUNDS, IN_A_ROW)
    for program in programs:
        program.close()
    return Table(
        f"Batches of {BATCH} random windows, profile `training`",
        f"{DATA} Time per window; each turn reads {IN_A_ROW} batches. Python asks the Rust program through a pipe.",
        {name: median / BATCH for name, median in medians.items()},
        [Goal("Rust, 2 threads", "Python, 2 threads", 1 / 1.5)],
    )


def _next(read: Callable[[list[int]], object], random: np.random.Generator) -> None:
    read(random.integers(0, COUNT, BATCH).tolist())


def check(program: Program, dataset: EpisodeDataset) -> None:
    """Check that both read the same values; afterwards both have every file open."""
    numbers = list(range(0, COUNT, COUNT // EPISODES))
    found = [int(text) for text in program.ask(numbers, "check ").split()]
    batch = dataset.batch(numbers)
    assert found[: len(KEYS)] == [crc32c(np.asarray(batch[key]).tobytes()) for key in KEYS]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(run(sys.argv[1], Path(temporary)).markdown())
