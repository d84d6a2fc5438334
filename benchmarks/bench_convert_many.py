"""Converters: a dataset of many episodes, in one process and in two."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.foreign import droid
from benchmarks.harness import Goal, Table, compare
from wshard.convert import ConvertOptions, convert

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANY = 1000


def run(folder: Path) -> Iterator[Table]:
    source = droid(folder, MANY)

    def run_with(jobs: int) -> None:
        target = folder / f"many_{jobs}"
        convert(source, target, options=ConvertOptions(jobs=jobs))
        shutil.rmtree(target)

    one, two = "one process", "two processes"
    yield Table(
        f"Converting {MANY:,} episodes of LeRobot v2.1 to WShard".replace(",", " "),
        "As DROID: 15 Hz, 230 to 270 steps, three cameras of 320 × 180 in H.264, which are not decoded, joints, actions, "
        "tasks. Starting the processes and syncing to disk included.",
        compare({one: partial(run_with, 1), two: partial(run_with, 2)}, rounds=3),
        [Goal(two, one, 1 / 1.6)],
    )
