"""What models said: is there something that it is about, and does it fit?"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard.checks.finding import counted
from wshard.dtypes import as_numbers
from wshard.names import (
    DELTA_RESIDUAL,
    LATENT_ACTION_CHANNEL,
    LATENT_CODEBOOK_CHANNEL,
    SCALES,
    residual_block,
)
from wshard.ragged import RaggedChannel
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from wshard.channels import Channel
    from wshard.checks.finding import ExamineOptions, Findings
    from wshard.episode import Episode
    from wshard.residual_lane import Residual

__all__ = ["check_predictions", "check_residual"]

_LATENT: Final = (LATENT_ACTION_CHANNEL, LATENT_CODEBOOK_CHANNEL)
_RUN_AGAIN: Final = "store the signal beside its prediction, or name its channel in the row"


def check_predictions(episode: Episode, found: Findings) -> None:
    """Omens and uncertainties against the signals that they are about."""
    if episode.origin is not None and episode.origin.is_filtered:
        return  # the signal may be there, and not have been asked for
    for name, models in episode.omens.items():
        signal = episode.observations.get(name)
        for model, omen in models.items():
            block = omen.block or f"omen/{name}/{model}"
            if signal is not None:
                _compare(block, omen, signal, name, found, exact=True)
            elif name not in _LATENT:
                found.add(
                    "orphan_prediction",
                    f"{model!r} predicts the channel {name!r}, which the episode does not have",
                    block=block,
                    advice=_RUN_AGAIN,
                )
    for name, by_model in episode.uncerts.items():
        signal = episode.observations.get(name)
        for model, kinds in by_model.items():
            omen_of = _omen(episode, name, model)
            for kind, uncert in kinds.items():
                block = uncert.block or f"uncert/{name}/{model}/{kind}"
                target = signal if omen_of is None else omen_of
                if target is None or (model and omen_of is None):
                    what = (
                        f"the prediction of {name!r} by {model!r}"
                        if model
                        else f"the channel {name!r}"
                    )
                    found.add(
                        "orphan_prediction",
                        f"it is an uncertainty of {what}, which the episode does not have",
                        block=block,
                        advice=_RUN_AGAIN,
                    )
                else:
                    _compare(block, uncert, target, name, found, exact=False)


def _compare(
    block: str, made: Channel, target: Channel, name: str, found: Findings, *, exact: bool
) -> None:
    if made.inferred:
        return  # a guess must not accuse
    fits = made.shape == target.shape
    if not exact and not fits:
        try:
            fits = np.broadcast_shapes(made.shape, target.shape) == target.shape
        except ValueError:
            fits = False
    ragged = isinstance(made, RaggedChannel) or isinstance(target, RaggedChannel)
    if not fits or (isinstance(made, RaggedChannel) != isinstance(target, RaggedChannel)):
        found.add(
            "prediction_mismatch",
            f"its steps are {made.layout} {list(made.shape)}, those of {name!r} "
            f"{target.layout} {list(target.shape)}",
            block=block,
            advice="store it in the shape of its signal, so that truth and prediction can be compared",
        )
    elif exact and made.dtype != target.dtype:
        found.add(
            "prediction_mismatch",
            f"it is {made.dtype}, while {name!r} is {target.dtype}",
            block=block,
            severity="note",
            advice="check that both have one unit and range: 0 to 1 is not 0 to 255",
        )
    elif not ragged and target.has_own_clock and made.length != target.length:
        found.add(
            "prediction_mismatch",
            f"it has {counted(made.length, 'entry', 'entries')}, while {name!r} has {target.length} on a clock of its own",
            block=block,
            count=made.length,
            advice="predict at the times of the signal, or give the prediction its own clock",
        )


def _omen(episode: Episode, channel: str, model: str) -> Channel | None:
    models = episode.omens.get(channel)
    return None if models is None else models.get(model)


# --- residuals


def check_residual(
    episode: Episode,
    residual: Residual,
    options: ExamineOptions,
    found: Findings,
    advance: Callable[[int], None],
) -> None:
    """Recomputes a residual from its signal and, where it names a model, from the prediction."""
    block = residual_block(residual.channel_id, residual.model, residual.type)
    with found.guard(block, rule="W-RES-2" if residual.type == DELTA_RESIDUAL else "W-RES-1"):
        residual = copy(residual)  # what it reads goes away with the copy
        data, scales = residual.data, residual.scales
        advance(data.nbytes + (0 if scales is None else scales.nbytes))
        if block in found.damaged or block + SCALES in found.damaged:
            return
        pair = _sources(episode, block, residual, found)
        if pair is None:
            return
        signal, omen = pair
        length = min(episode.length, signal.length)
        if residual.type == DELTA_RESIDUAL:
            assert scales is not None
            _check_delta(block, residual, data, scales, signal, omen, length, options, found)
        else:
            _check_signs(block, data, signal, omen, length, options, found)


def _sources(
    episode: Episode, block: str, residual: Residual, found: Findings
) -> tuple[Channel, Channel | None] | None:
    """Signal and prediction that a residual was made of; None where they cannot be compared."""
    if episode.origin is not None and episode.origin.is_filtered:
        return None
    name, model = residual.channel_id, residual.model
    signal = episode.observations.get(name)
    omen = _omen(episode, name, model) if model else None
    if signal is None or (model and omen is None):
        what = (
            f"the channel {name!r}"
            if signal is None
            else f"the prediction of {name!r} by {model!r}"
        )
        found.add(
            "orphan_prediction",
            f"it is a residual of {what}, which the episode does not have",
            block=block,
            advice=_RUN_AGAIN,
        )
        return None
    parts = [part for part in (signal, omen) if part is not None]
    if any(isinstance(part, RaggedChannel) for part in parts):
        return None
    if any((part.block or block) in found.damaged for part in parts):
        return None
    if omen is not None and (omen.shape != signal.shape or omen.length < episode.length):
        return None  # prediction_mismatch or length_mismatch has been said
    if signal.length < episode.length:
        return None
    return signal._shallow(), None if omen is None else omen._shallow()


def _difference(
    signal: Channel, omen: Channel | None, start: int, stop: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """signal − omen of some steps [n, D], and how far rounding may have moved it."""
    with np.errstate(all="ignore"):
        rounding = 0.0
        total: Any = 0.0
        size: Any = 0.0
        for sign, part in ((1.0, signal), (-1.0, omen)):
            if part is None:
                continue
            numbers = as_numbers(part.read_steps(start, stop), part.dtype)
            values = numbers.reshape(stop - start, product(part.shape)).astype(np.float64)
            if part.dtype.is_float:
                # Other writers compute in the dtype of the channel.
                rounding = max(rounding, float(np.finfo(numbers.dtype).eps))
            total = total + sign * values
            size = size + np.abs(values)
        return total, 4.0 * rounding * size


def _pieces(
    length: int, dimensions: int, multiple: int, window_bytes: int
) -> Iterator[tuple[int, int]]:
    # Some ten arrays of 64-bit floats are alive at once.
    steps = max(1, window_bytes // (80 * max(dimensions, 1)) // multiple) * multiple
    for start in range(0, length, steps):
        yield start, min(start + steps, length)


def _check_signs(
    block: str,
    data: NDArray[Any],
    signal: Channel,
    omen: Channel | None,
    length: int,
    options: ExamineOptions,
    found: Findings,
) -> None:
    row = -(-length // 8)
    dimensions = product(signal.shape)
    stored = data.size // row if row else 0
    if not row or not dimensions:
        return
    # Some writers only keep the first dimension.
    if stored not in (1, dimensions):
        found.add(
            "residual_mismatch",
            f"it has the signs of {counted(stored, 'dimension')}, its signal has {dimensions}",
            block=block,
            count=stored,
            advice="compute the residual again from the signal",
        )
        return
    table = data.reshape(stored, row)
    wrong, checked, first = 0, 0, -1
    for start, stop in _pieces(length, dimensions, 8, options.window_bytes):
        low, high = max(start, 1), min(stop, length - 1)  # edges have no second difference
        if low >= high:
            continue
        x, slack = _difference(signal, omen, low - 1, high + 1)
        x, slack = x[:, :stored], slack[:, :stored]
        with np.errstate(all="ignore"):
            bend = 2.0 * x[1:-1] - x[:-2] - x[2:]
            tolerance = 2.0 * slack[1:-1] + slack[:-2] + slack[2:]
        packed = table[:, start // 8 : -(-stop // 8)]
        bits = np.unpackbits(packed, axis=1, count=stop - start, bitorder="little")
        positive = bits[:, low - start : high - start].T != 0
        bad = np.where(positive, bend < -tolerance, bend > tolerance)
        if not np.any(slack):
            bad |= positive & (bend == 0)
        wrong += int(np.count_nonzero(bad))
        checked += bad.size
        if first < 0 and bad.any():
            first = low + int(bad.any(axis=1).argmax())
    if wrong:
        _say_mismatch(block, f"{wrong} of {checked} signs", first, wrong, omen, found)


def _check_delta(
    block: str,
    residual: Residual,
    codes: NDArray[Any],
    scales: NDArray[Any],
    signal: Channel,
    omen: Channel | None,
    length: int,
    options: ExamineOptions,
    found: Findings,
) -> None:
    dimensions = product(signal.shape)
    if codes.shape != (length, *signal.shape):
        found.add(
            "residual_mismatch",
            f"its shape is {list(codes.shape)}, that of its signal {[length, *signal.shape]}",
            block=block,
            count=len(codes),
            advice="compute the residual again from the signal",
        )
        return
    window = min(residual.window, max(length, 1))
    table, rates = codes.reshape(length, dimensions), scales.reshape(len(scales), dimensions)
    wrong, checked, first = 0, 0, -1
    for start, stop in _pieces(length, dimensions, window, options.window_bytes):
        x, slack = _difference(signal, omen, start, stop)
        scale = rates[start // window : -(-stop // window)].astype(np.float64)
        steps = np.repeat(scale, window, axis=0)[: stop - start]
        with np.errstate(all="ignore"):
            off = np.abs(x - table[start:stop] * steps)
            # A thousandth more than half a scale: 32-bit scales of others are rounded either way.
            bad = ~(off <= np.abs(steps) * 0.501 + slack)
        wrong += int(np.count_nonzero(bad))
        checked += bad.size
        if first < 0 and bad.any():
            first = start + int(bad.any(axis=1).argmax())
    if wrong:
        _say_mismatch(block, f"{wrong} of {checked} values", first, wrong, omen, found)


def _say_mismatch(
    block: str, what: str, first: int, wrong: int, omen: Channel | None, found: Findings
) -> None:
    made_of = "the signal" if omen is None else "signal minus prediction"
    found.add(
        "residual_mismatch",
        f"{what} are not those of {made_of}, the first at step {first}",
        block=block,
        step=first,
        count=wrong,
        advice="compute the residual again: signal or prediction changed since it was made",
    )
