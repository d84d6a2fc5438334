"""Predictions beside what happened: do they fit, and how far off are they?"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.plot._series import numbers_of
from wshard.types import RaggedChannel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.plot._series import TimeAxis
    from wshard.types import Channel

_VARIANCES: Final = ("variance", "var")
SPREADS: Final = ("std", "stddev", "sigma", *_VARIANCES)
"""Types of uncertainties that can be drawn as a band."""
_WINDOW_BYTES: Final = 16 << 20
# More chunks of a long horizon than this hide each other.
_MOST_CHUNKS: Final = 40

LEVELS: Final = np.linspace(0.05, 0.95, 19)
"""Shares of a normal distribution at which the calibration of an uncertainty is measured."""
_WITHIN: Final = np.array([NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS.tolist()])


@dataclass(frozen=True)
class Prediction:
    """What one model predicted for one channel."""

    model: str
    number: int
    """Of the model in the whole figure: it has one colour and one dash everywhere."""
    label: str
    """What legends call the model."""
    omen: Channel
    kinds: Mapping[str, Channel] = field(default_factory=dict)
    """Its uncertainties by type."""

    @property
    def horizon(self) -> int:
        """How many steps each step predicts."""
        return self.omen.horizon or 1

    @property
    def spread(self) -> Channel | None:
        """The first uncertainty that is a standard deviation or a variance."""
        return next((uncert for kind, uncert in self.kinds.items() if kind in SPREADS), None)

    def deviations(self, start: int, stop: int) -> NDArray[np.float64] | None:
        """The spread of some entries as standard deviations, in the shape of `values`."""
        for kind, uncert in self.kinds.items():
            if kind in SPREADS:
                rows = numbers_of(uncert, start, stop).reshape(stop - start, *uncert.step_shape)
                full = np.broadcast_to(rows, (stop - start, *self.omen.step_shape))
                return self._by_step(as_deviations(kind, full))
        return None

    def values(self, start: int, stop: int) -> NDArray[np.float64]:
        """Some entries, [n, horizon, D]."""
        return self._by_step(numbers_of(self.omen, start, stop))

    def _by_step(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        size = prod(self.omen.step_shape) // self.horizon
        return rows.reshape(len(rows), self.horizon, size)

    def chunk_starts(self, start: int, stop: int) -> range:
        """The entries whose chunks are drawn: one after the other, or further apart if there are many."""
        return range(start, stop, max(self.horizon, -(-(stop - start) // _MOST_CHUNKS)))


def _stretches(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a shape can be repeated to become another one, as an uncertainty of all dimensions."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def as_deviations(kind: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variances as standard deviations; standard deviations as they are."""
    with np.errstate(all="ignore"):
        deviations: NDArray[np.float64] = np.sqrt(values) if kind in _VARIANCES else np.abs(values)
    return deviations


def check_fit(name: str, truth: Channel, prediction: Prediction) -> bool:
    """Refuses a prediction that cannot be compared with its channel; False if its shape is only a guess.

    Raises:
        InvalidArgument: says what its shape is and should be, and how to draw the others.
    """
    omen, model = prediction.omen, prediction.model
    shape = omen.step_shape if omen.horizon is None else omen.step_shape[1:]
    is_ragged = isinstance(truth, RaggedChannel)
    fits = shape == truth.step_shape and isinstance(omen, RaggedChannel) == is_ragged
    # Without a clock of its own, a prediction has the times of its channel.
    wrong_length = truth.has_own_clock and not omen.has_own_clock and truth.length != omen.length
    if not fits or (wrong_length and not is_ragged):
        if omen.inferred or truth.inferred:
            return False  # a guess must not accuse
        chunk = [] if omen.horizon is None else [omen.horizon]
        expected = [truth.length if wrong_length else "T", *chunk, *truth.step_shape]
        what = f"the prediction of {name!r} by {model!r} does not fit its channel"
        raise _misfit(what, omen, truth.layout, expected)
    for kind, uncert in prediction.kinds.items():
        if kind in SPREADS and not (
            _stretches(uncert.step_shape, omen.step_shape) and uncert.length == omen.length
        ):
            if uncert.inferred or omen.inferred:
                return False
            expected = [omen.length, *omen.step_shape]
            what = f"the {kind} of {name!r} by {model!r} does not fit the prediction"
            raise _misfit(what, uncert, omen.layout, expected)
    return True


def _misfit(what: str, found: Channel, layout: str, expected: Sequence[object]) -> InvalidArgument:
    return InvalidArgument(
        what,
        entry=found.block or None,
        expected=f"{layout} [{', '.join(map(str, expected))}]",
        found=f"{found.layout} [{', '.join(map(str, (found.length, *found.step_shape)))}]",
        hint="store it in the shape of its channel, with horizon=H if it is [T, H, …]; models=[…] chooses which "
        "predictions to draw; `wshard doctor FILE` lists all that do not fit",
    )


@dataclass(frozen=True)
class Errors:
    """How far a prediction is from what happened, over all entries that are shown."""

    rmse: NDArray[np.float64]
    """By dimension; NaN without numbers."""
    total: float
    """The RMSE over all of them."""
    ahead: NDArray[np.float64]
    """The RMSE over all dimensions by steps ahead, as long as the horizon."""
    inside: NDArray[np.float64] | None
    """For each of `LEVELS`, the share of errors that the uncertainty expects this share to be within."""
    ratio: float
    """Root of the mean of (error / σ)²: 1 if σ is right, above 1 if the model is too sure."""


def measure(
    axis: TimeAxis, truth: Channel, prediction: Prediction, dims: Sequence[int]
) -> Errors | None:
    """Compare all entries that are shown, in bounded memory; None if the two have other times or no entries."""
    start, stop, _, _ = axis.entries(truth)
    omen, horizon = prediction.omen, prediction.horizon
    if omen.has_own_clock != truth.has_own_clock or (
        truth.has_own_clock and omen.length != truth.length
    ):
        return None
    stop = min(stop, omen.length)
    squares, counts = np.zeros((2, horizon, len(dims)))
    inside, known, total_z = np.zeros(len(LEVELS)), 0, 0.0
    rows = max(1, _WINDOW_BYTES // (8 * horizon * max(1, prod(truth.step_shape))))
    has_spread = prediction.spread is not None
    for first in range(start, stop, rows):
        last = min(first + rows, stop)
        happened = numbers_of(truth, first, min(last + horizon - 1, truth.length))[:, dims]
        values = prediction.values(first, last)[..., dims]
        sigma = prediction.deviations(first, last) if has_spread else None
        for step in range(horizon):
            there = happened[step : step + last - first]
            error = values[: len(there), step] - there
            is_known = np.isfinite(error)
            squares[step] += np.square(np.where(is_known, error, 0.0)).sum(axis=0)
            counts[step] += is_known.sum(axis=0)
            if sigma is not None:
                with np.errstate(all="ignore"):
                    z = np.abs(error) / sigma[: len(there), step][:, dims]
                z = z[np.isfinite(z)]
                inside += np.searchsorted(np.sort(z), _WITHIN, side="right")
                known, total_z = known + z.size, total_z + float(np.square(z).sum())
    if not counts.any():
        return None
    with np.errstate(all="ignore"):
        return Errors(
            np.sqrt(squares.sum(axis=0) / counts.sum(axis=0)),
            float(np.sqrt(squares.sum() / counts.sum())),
            np.sqrt(squares.sum(axis=1) / counts.sum(axis=1)),
            inside / known if known else None,
            float(np.sqrt(total_z / known)) if known else float("nan"),
        )
