"""Statistics in parts, which several machines compute at the same time, until `commit_stats` joins them.

A part is the file `<statistics>.parts/3-of-16.npz`. It has what is known about its episodes, not their statistics: counts and
ranges of all parts together are those of the whole, and so are quantiles. Means and deviations can differ in the last digit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.atomic import write_file
from shard_format.canonical_json import canonical
from shard_format.errors import BadMetadata, InvalidArgument, ShardError
from shard_format.executors import part_of
from shard_format.listing import list_names
from shard_format.npy import decode_npz, encode_npz
from shard_format.sources import is_url
from shard_format.transfer import read_anywhere, remove_urls
from shard_train._stats import read_stats
from shard_train.statistics import (
    DEFAULT_QUANTILES,
    ChannelAccumulator,
    Totals,
    accumulate,
    check_shares,
    save_stats,
)
from wshard.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shard_format.executors import Executor
    from shard_train._episode_dataset import EpisodeDataset
    from shard_train.statistics import Stats

__all__ = ["commit_stats", "has_parts", "parts_of", "save_part"]

_PART: Final = re.compile(r"(\d+)-of-(\d+)\.npz")
_ABOUT: Final = "about"
# In a store, an object of this name among the parts says that they are joined.
_DONE: Final = "joined"


def parts_of(path: str) -> str:
    """Return the folder of the parts of a file of statistics."""
    return path + ".parts"


def has_parts(path: str) -> bool:
    """Whether there are parts of these statistics."""
    return any(map(_PART.fullmatch, list_names(parts_of(path))))


def save_part(
    data: EpisodeDataset,
    path: str,
    part: tuple[int, int],
    *,
    quantiles: Sequence[float] = DEFAULT_QUANTILES,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
) -> str:
    """Read the episodes of one part, and write what is known about them; return the path of the file.

    Args:
        data: the dataset, all of it.
        path: of the statistics that `commit_stats` will write, on a disk that all machines share; or a URL.
        part: `(3, 16)` for the third of 16 parts.
        quantiles, threads, progress, executor: as for `compute_stats`.
    """
    shares = check_shares(quantiles)
    numbers = range(len(data.lengths))[part_of(len(data.lengths), part)]
    totals = accumulate(data, numbers, threads, progress, executor)
    about = {
        "fingerprint": data.data_fingerprint,
        "quantiles": list(shares),
        "episodes": totals.episodes,
        "left_out": totals.left_out,
        "steps": totals.steps,
        "channels": [
            {"key": key, "dtype": one.kind[0].value, "shape": list(one.kind[1])}
            for key, one in totals.channels.items()
        ],
    }
    arrays: dict[str, NDArray[Any]] = {_ABOUT: np.frombuffer(canonical(about), np.uint8)}
    for number, one in enumerate(totals.channels.values()):
        arrays |= {f"{number}.{name}": array for name, array in one.to_arrays().items()}
    name = f"{parts_of(path)}/{part[0]}-of-{part[1]}.npz"
    write_file(name, [encode_npz(arrays)], fsync=True)
    return name


def commit_stats(path: str) -> Stats:
    """Join all parts, write the statistics, and remove the parts. Call it again if it was killed.

    Args:
        path: of the statistics, as `save_part` was given it.

    Raises:
        InvalidArgument: parts are missing, or are not of the same data.
        BadMetadata: a part is damaged.
    """
    folder = parts_of(path)
    done = folder + ".done"
    earlier = read_stats(path)  # raises if it is something else
    names = list_names(folder)
    if earlier is not None and (not names or _DONE in names):
        # An earlier call may have been killed just before it was done.
        _remove(folder, names) if is_url(path) else shutil.rmtree(done, ignore_errors=True)
        return earlier
    totals = Totals()
    expected: dict[str, Any] | None = None
    for name in _names_of_parts(folder, names):
        file = f"{folder}/{name}"
        about, part = _read_part(file)
        if expected is None:
            expected = about
        if about != expected:
            what = next(key for key in about if about[key] != expected[key])
            raise InvalidArgument(
                f"the parts have another {what}",
                path=file,
                expected=expected[what],
                found=about[what],
                hint="compute all parts again, of the same data",
            )
        totals.join(part)
    assert expected is not None
    stats = totals.finish(expected["quantiles"], expected["fingerprint"])
    save_stats(stats, path)
    # In one step, so that never some of the parts are there.
    if is_url(path):
        write_file(f"{folder}/{_DONE}", [], fsync=False)
        _remove(folder, names)
    else:
        os.rename(folder, done)
        shutil.rmtree(done)
    return stats


def _remove(folder: str, names: Sequence[str]) -> None:
    """Removes parts from a store, and then the object that says that they are joined."""
    remove_urls(f"{folder}/{name}" for name in names if name != _DONE)
    remove_urls([f"{folder}/{_DONE}"])


def _names_of_parts(folder: str, names: Sequence[str]) -> list[str]:
    """The files of all parts, in order."""
    found = {(int(m[1]), int(m[2])): m[0] for m in map(_PART.fullmatch, names) if m}
    if not found:
        raise InvalidArgument(
            "found no parts of statistics",
            path=folder,
            command="compute them with --part 1/N to --part N/N first",
        )
    counts = {count for _, count in found}
    if len(counts) > 1 or len(found) < max(counts):
        raise InvalidArgument(
            "the parts are not those of one whole" if len(counts) > 1 else "parts are missing",
            path=folder,
            expected=f"{max(counts)} parts",
            found=", ".join(sorted(found.values())[:10]),
        )
    return [found[key] for key in sorted(found)]


def _read_part(path: str) -> tuple[dict[str, Any], Totals]:
    """What a part is of, and what it knows."""
    text = read_anywhere(path)
    try:
        arrays = decode_npz(memoryview(text), 2 * len(text))
        about: dict[str, Any] = json.loads(arrays.pop(_ABOUT).tobytes())
        totals = Totals(
            {
                row["key"]: ChannelAccumulator.of_arrays(
                    DType(row["dtype"]), tuple(row["shape"]), _those_of(number, arrays)
                )
                for number, row in enumerate(about["channels"])
            },
            *(int(about[what]) for what in ("episodes", "left_out", "steps")),
        )
        return {what: about[what] for what in ("fingerprint", "quantiles")}, totals
    except (ShardError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadMetadata(
            f"a part of statistics cannot be read: {error}", path=path, hint="compute it again"
        ) from None


def _those_of(number: int, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    prefix = f"{number}."
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
