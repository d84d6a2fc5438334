"""Overview files: the rules W-OVW, and what was changed after they were made (spec/wshard.md, section 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import BadValue
from wshard.overviews import open_overviews, summarise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wshard._episode import Episode
    from wshard.doctor._findings import Findings
    from wshard.overviews import OverviewFile

_TOLERANCE: Final = 1e-6


def check_overviews(episode: Episode, found: Findings) -> None:
    """Everything about the overview file beside an episode, if there is one."""
    with found.guard():
        overviews = open_overviews(episode)
        if overviews is None:
            return
        with overviews:
            for block in overviews.stale:
                found.add(
                    "stale_overview",
                    block,
                    f"the block was changed or removed after {overviews.path} was made",
                )
            for block in overviews:
                if block not in found.damaged:
                    with found.guard(f"overview/{block}"):
                        _check_values(overviews, block)
            for poster in overviews.posters:
                with found.guard(f"poster/{poster.number}"):
                    overviews.read_poster(poster)


def _check_values(overviews: OverviewFile, block: str) -> None:
    """W-OVW-7."""
    stored = overviews[block]
    means, low, high = summarise(overviews.blocks[block])
    as_numbers = overviews.blocks[block].dtype.as_numbers
    form = len(stored.mean), overviews.blocks[block].values

    def lines(array: NDArray[np.generic]) -> NDArray[np.generic]:
        return array.reshape(form).T

    low, high = as_numbers(low), as_numbers(high)
    with np.errstate(all="ignore"):
        largest = np.fmax(np.abs(low.astype(np.float64)), np.abs(high.astype(np.float64)))
        mean = lines(stored.mean).astype(np.float64)
        is_near = np.abs(mean - means) <= _TOLERANCE * largest
    is_empty = np.isnan(low) if low.dtype.kind == "f" else np.zeros(low.shape, np.bool_)
    wrong = {
        "minimum": ~_same(as_numbers(lines(stored.minimum)), low),
        "maximum": ~_same(as_numbers(lines(stored.maximum)), high),
        "mean": np.where(is_empty, ~np.isnan(mean), np.isfinite(means) & ~is_near),
    }
    for what, at in wrong.items():
        if at.any():
            value, bucket = np.argwhere(at)[0].tolist()
            raise BadValue(
                f"a {what} of an overview is not that of its bucket",
                path=overviews.path,
                entry=f"overview/{block}",
                found=f"bucket {bucket} of value {value}",
                rule="W-OVW-7",
                hint="make it again with 'wshard repack --overview'",
            )


def _same(first: NDArray[np.generic], second: NDArray[np.generic]) -> NDArray[np.bool_]:
    is_float = first.dtype.kind == "f"
    both_nan = np.isnan(first) & np.isnan(second) if is_float else np.zeros(1, np.bool_)
    same: NDArray[np.bool_] = (first == second) | both_nan
    return same
