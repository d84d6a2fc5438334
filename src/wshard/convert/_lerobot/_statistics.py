"""Statistics of features, of one episode and of all, as LeRobot datasets carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

QUANTILES: Final = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
KINDS: Final = ("min", "max", "mean", "std", "count", *QUANTILES)
# How many pictures of an episode are looked at, and how large one may be before pixels are left out.
_FEWEST, _MOST, _POWER = 100, 10_000, 0.75
_LARGE_PICTURE, _SMALL_PICTURE = 300, 150


def number_statistics(values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The statistics of numbers [T, ...], one for each element of the last axis."""
    flat = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    exact = flat.astype(np.float64)
    with np.errstate(all="ignore"):  # infinite values have no deviation
        found = {
            "min": flat.min(axis=0),
            "max": flat.max(axis=0),
            "mean": exact.mean(axis=0),
            "std": exact.std(axis=0),
            "count": np.array([len(values)]),
        }
        quantiles = np.quantile(exact, list(QUANTILES.values()), axis=0)
    return found | dict(zip(QUANTILES, quantiles, strict=True))


def sampled_steps(count: int) -> NDArray[np.int64]:
    """The steps whose pictures are looked at."""
    few = max(min(_FEWEST, count), min(int(count**_POWER), _MOST))
    return np.unique(np.round(np.linspace(0, count - 1, few)).astype(np.int64))


class PictureStatistics:
    """Counts the values of pictures, and gives their statistics as fractions of white."""

    def __init__(self) -> None:
        self._counts = np.zeros((3, 256), np.int64)
        self._pictures = 0

    def add(self, pictures: NDArray[np.uint8]) -> None:
        """Counts pictures [N, H, W, 3]."""
        height, width = pictures.shape[1:3]
        if max(height, width) >= _LARGE_PICTURE:
            every = max(height, width) // _SMALL_PICTURE
            pictures = pictures[:, ::every, ::every]
        for channel in range(3):
            self._counts[channel] += np.bincount(pictures[..., channel].ravel(), minlength=256)
        self._pictures += len(pictures)

    def result(self) -> dict[str, NDArray[Any]]:
        """The statistics of each colour, [3, 1, 1]."""
        levels = np.arange(256) / 255
        rows = []
        for counts in self._counts:
            total, seen = counts.sum(), np.flatnonzero(counts)
            mean = (counts * levels).sum() / total
            below = np.cumsum(counts)
            row = {
                "min": levels[seen[0]],
                "max": levels[seen[-1]],
                "mean": mean,
                "std": np.sqrt((counts * (levels - mean) ** 2).sum() / total),
            }
            for name, part in QUANTILES.items():
                row[name] = levels[np.searchsorted(below, part * total)]
            rows.append(row)
        found = {
            name: np.array([row[name] for row in rows]).reshape(3, 1, 1)
            for name in KINDS
            if name != "count"
        }
        return found | {"count": np.array([self._pictures])}


def stated_or(
    found: dict[str, NDArray[Any]],
    stated: Any,  # noqa: ANN401 - checked here
) -> dict[str, NDArray[Any]]:
    """The statistics that an episode brought along, if they are about the same values; else those that were found.

    Quantiles of lerobot are estimates: those that came with a dataset go back as they were.
    """
    given = parse_statistics(stated, found["mean"].shape)
    if given is None:
        return found
    same = all(
        np.allclose(given[kind], found[kind], rtol=1e-4, atol=1e-6, equal_nan=True)
        for kind in ("min", "max", "mean", "count")
    )
    if not same:
        return found
    return found | {kind: values.astype(found[kind].dtype) for kind, values in given.items()}


def parse_statistics(stated: Any, shape: tuple[int, ...]) -> dict[str, NDArray[Any]] | None:  # noqa: ANN401 - checked here
    """Statistics from JSON; None if they are not complete or have another shape."""
    if not isinstance(stated, dict):
        return None
    given: dict[str, NDArray[Any]] = {}
    for kind in KINDS:
        if kind in QUANTILES and kind not in stated:
            continue  # v2.1 has none
        try:
            values = np.array(stated.get(kind), np.float64)
        except (TypeError, ValueError):
            return None
        if values.shape != ((1,) if kind == "count" else shape):
            return None
        given[kind] = values.astype(np.int64) if kind == "count" else values
    return given


def merged_statistics(
    total: Mapping[str, NDArray[Any]] | None, more: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The statistics of two sets of values together; quantiles are averages, weighted by count."""
    if total is None:
        return dict(more)
    first, second = float(total["count"][0]), float(more["count"][0])
    share = second / (first + second)
    found = {
        "min": np.minimum(total["min"], more["min"]),
        "max": np.maximum(total["max"], more["max"]),
        "count": total["count"] + more["count"],
    }
    for kind in ("mean", *QUANTILES):
        found[kind] = total[kind] * (1 - share) + more[kind] * share
    apart = (total["mean"] - more["mean"]) ** 2
    found["std"] = np.sqrt(
        total["std"] ** 2 * (1 - share) + more["std"] ** 2 * share + apart * share * (1 - share)
    )
    return found
