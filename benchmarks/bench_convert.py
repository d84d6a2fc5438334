"""Converters: reading other formats against the libraries that they belong to."""

from __future__ import annotations

import importlib.util
import mmap
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.foreign import BULK, NEEDS, SOURCES, options_of
from benchmarks.harness import Goal, Shares, compare
from wshard.convert import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

# Of the raw speed of a format's own library.
SHARE = 0.7


def run(folder: Path) -> Iterator[Shares]:
    medians: dict[str, float] = {}
    for number, title in enumerate(SOURCES):
        if not all(map(importlib.util.find_spec, NEEDS.get(title, ()))):
            print(f"not installed, left out: {title}", file=sys.stderr)
            continue
        place = folder / str(number)
        place.mkdir()
        medians |= reading(place, title)
        shutil.rmtree(place)
    titles = [title for title in SOURCES if title in medians]
    yield Shares(
        "Converters: readers against the libraries of their formats",
        "20 episodes of 200 steps with a camera of 84 × 84 pixels where the format has pictures, or 8 000 messages; every array is "
        "read. *Raw* reads the same arrays with the library of the format and makes no episodes; of MCAP files and bags it only decodes the "
        "messages; of RLDS it decodes with Pillow, while our reader keeps pictures encoded until they are used. A row with *one bulk read* has "
        "no goal: it reads whole arrays of all episodes, or leaves out what episodes have besides their steps.",
        medians,
        [Goal(title, f"{title}, raw", 1 / SHARE) for title in titles if title not in BULK],
    )


def reading(folder: Path, title: str) -> dict[str, float]:
    form, make, raw = SOURCES[title]
    path = make(folder)
    options = options_of(form, path)
    works: dict[str, Callable[[], object]] = {
        title: lambda: sum(touch(ep) for ep in read(path, form, **options)),
        f"{title}, raw": lambda: raw(path),
    }
    start = time.perf_counter()
    works[title]()
    # The times of short work vary more: pyarrow's threads wake up sooner or later.
    rounds = round(min(max(2 / (time.perf_counter() - start), 5), 41))
    return compare(works, rounds)


def touch(ep: Any) -> int:  # noqa: ANN401 - an episode
    """Reads every array; returns their bytes."""
    total = 0
    for _, channel in ep.blocks():
        data = channel.data
        if isinstance(data, np.ndarray):
            # A view of a mapped file has read nothing yet.
            total += len(data.tobytes()) if is_mapped(data) else data.nbytes
    return total


def is_mapped(array: NDArray[Any]) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, (np.memmap, mmap.mmap))
