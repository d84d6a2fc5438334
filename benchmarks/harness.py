"""Interleaved rounds, medians, ratios.

Machines are noisy: contenders take turns within each round, so that a slow moment hits all of them, and the
median of many rounds is compared, not a single time.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Goal:
    """What a contender should reach: a ratio to another one, or a time."""

    contender: str
    """Who must reach it."""
    baseline: str | None
    """Compared with whom; None for an absolute time."""
    at_most: float
    """Largest allowed ratio of the medians, or largest median in seconds."""


@dataclass(slots=True)
class Table:
    """The result of one comparison."""

    title: str
    note: str
    medians: dict[str, float]
    goals: list[Goal] = field(default_factory=list)
    unit: str = "time"
    """What is compared: `time`, in seconds, or `bytes`."""

    def show(self, median: float) -> str:
        """A median with its unit."""
        return show(median) if self.unit == "time" else f"{median / 1e6:.1f} MB"

    def reaches(self, goal: Goal) -> bool:
        """Whether a contender is as good as it should be."""
        mine = self.medians[goal.contender]
        return mine / (1 if goal.baseline is None else self.medians[goal.baseline]) <= goal.at_most

    def verdicts(self) -> list[tuple[str, bool]]:
        """One line for each goal, and whether it was reached."""
        lines = []
        for goal in self.goals:
            mine = self.medians[goal.contender]
            if goal.baseline is None:
                text = f"{goal.contender}: {show(mine)} (goal: under {show(goal.at_most)})"
                lines.append((text, self.reaches(goal)))
                continue
            other = self.medians[goal.baseline]
            if goal.at_most >= 1 or self.unit == "bytes":
                text = (
                    f"{goal.contender} takes {mine / other:.2f}× the {self.unit} of {goal.baseline}"
                )
                text += f" (goal: at most {goal.at_most:.2f}×)"
            else:
                text = f"{goal.contender} is {other / mine:.2f}× as fast as {goal.baseline}"
                text += f" (goal: at least {1 / goal.at_most:.2f}×)"
            lines.append((text, self.reaches(goal)))
        return lines

    def markdown(self) -> str:
        """The table as RESULTS.md shows it."""
        first = next(iter(self.medians.values()))
        head = "median" if self.unit == "time" else "size"
        lines = [f"### {self.title}", "", self.note, "", f"| | {head} | ratio |", "|---|---:|---:|"]
        lines += [
            f"| {name} | {self.show(median)} | {median / first:.2f} |"
            for name, median in self.medians.items()
        ]
        lines += ["", *(f"- {'✓' if good else '✗'} {text}" for text, good in self.verdicts()), ""]
        return "\n".join(lines)


class Shares(Table):
    """Many contenders, each beside its own baseline, which is called `<contender>, raw`."""

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", self.note, ""]
        lines += ["| | ours | raw | share of raw speed |", "|---|---:|---:|---:|"]
        missed = {goal.contender for goal in self.goals if not self.reaches(goal)}
        for name, mine in self.medians.items():
            raw = self.medians.get(f"{name}, raw")
            if raw is not None:
                mark = "✗ " if name in missed else ""
                lines.append(
                    f"| {name} | {self.show(mine)} | {self.show(raw)} | {mark}{raw / mine:.2f} |"
                )
        return "\n".join([*lines, ""])


def compare(
    contenders: Mapping[str, Callable[[], object]], rounds: int, calls: int = 1
) -> dict[str, float]:
    """The median time of each contender over interleaved rounds.

    Short work is called several times in a row, so that the time does not include refilling the caches after
    another contender.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for work in contenders.values():
        work()
        work()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, work in contenders.items():
                start = time.perf_counter()
                for _ in range(calls):
                    result = work()
                times[name].append((time.perf_counter() - start) / calls)
                del result
    finally:
        gc.enable()
    return {name: statistics.median(samples) for name, samples in times.items()}


def show(seconds: float) -> str:
    """A time with a unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1 or unit == "µs":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError
