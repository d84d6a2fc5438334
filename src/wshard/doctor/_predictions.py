"""What models said: does the episode have what it is about, and does it fit?"""

from __future__ import annotations

from copy import copy
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wshard._lanes import (
    DELTA_RESIDUAL,
    LATENT_ACTION_CHANNEL,
    LATENT_CODEBOOK_CHANNEL,
    SCALES,
    residual_block,
)
from wshard.doctor._findings import counted
from wshard.types import RaggedChannel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from wshard.doctor._findings import Findings
    from wshard.types import Channel, Episode, Residual

    Wrong = Iterator[tuple[int, NDArray[np.bool_]]]
    """For runs of steps: the first one, and which values [n, D] are wrong."""

_LATENT: Final = (LATENT_ACTION_CHANNEL, LATENT_CODEBOOK_CHANNEL)
# Some ten arrays of 64-bit floats are alive at once.
_BYTES_OF_A_NUMBER: Final = 80


def check_predictions(episode: Episode, found: Findings) -> None:
    """Omens and uncertainties against the signals and actions that they are about."""
    if _is_filtered(episode):
        return
    for name, models in episode.omens.items():
        signal = _channel_of(episode, name)
        for model, omen in models.items():
            block = omen.block or f"omen/{name}/{model}"
            if signal is not None:
                _compare(block, omen, signal, name, found)
            elif name not in _LATENT:
                _add_orphan(block, f"{model!r} predicts the channel {name!r}", found)
    for name, by_model in episode.uncerts.items():
        for model, kinds in by_model.items():
            target = episode.omens[name].get(model) if name in episode.omens else None
            if target is None and not model:
                target = _channel_of(episode, name)
            for kind, uncert in kinds.items():
                block = uncert.block or f"uncert/{name}/{model}/{kind}"
                if target is None:
                    _add_orphan(block, f"it is an uncertainty of {_about(name, model)}", found)
                else:
                    _compare(block, uncert, target, name, found, is_uncert=True)


def _channel_of(episode: Episode, name: str) -> Channel | None:
    """What a prediction is about: the signal of this name or, without one, the action."""
    signal = episode.observations.get(name)
    return episode.actions.get(name) if signal is None else signal


def _is_filtered(episode: Episode) -> bool:
    """Whether a signal may be missing only because it was not loaded."""
    return episode.origin is not None and episode.origin.is_filtered


def _about(name: str, model: str) -> str:
    return f"the prediction of {name!r} by {model!r}" if model else f"the channel {name!r}"


def _add_orphan(block: str, what: str, found: Findings) -> None:
    found.add("orphan_prediction", block, f"{what}, which the episode does not have")


def _compare(
    block: str,
    made: Channel,
    target: Channel,
    name: str,
    found: Findings,
    *,
    is_uncert: bool = False,
) -> None:
    if made.inferred:
        return  # a guess must not accuse
    if is_uncert:
        fits = made.horizon in (None, target.horizon) and _stretches(
            made.step_shape, target.step_shape
        )
    else:
        # A chunk of steps is compared step by step.
        shape = made.step_shape if made.horizon is None else made.step_shape[1:]
        fits = shape == target.step_shape
    is_ragged = isinstance(made, RaggedChannel)
    code = "prediction_mismatch"
    if not fits or is_ragged != isinstance(target, RaggedChannel):
        of = f", of which {made.horizon} are its horizon" if made.horizon is not None else ""
        message = f"its steps are {made.layout} {list(made.step_shape)}{of}, those of {name!r} "
        message += f"{target.layout} {list(target.step_shape)}"
        advice = "store it in the shape of its signal, so that truth and prediction can be compared"
        if made.horizon is None and made.step_shape[1:] == target.step_shape and made.step_shape:
            advice = f"if it predicts {made.step_shape[0]} steps at each step, say so: "
            advice += f"Channel(data=…, horizon={made.step_shape[0]})"
        found.add(code, block, message, advice=advice)
    elif not is_uncert and made.dtype_name != target.dtype_name:
        message = f"it is {made.dtype_name}, while {name!r} is {target.dtype_name}"
        advice = "check that both have one unit and range: 0 to 1 is not 0 to 255"
        found.add(code, block, message, advice=advice, severity="note")
    elif not is_ragged and target.has_own_clock and made.length != target.length:
        message = f"it has {counted(made.length, 'entry', 'entries')}, while {name!r} has "
        message += f"{target.length} on a clock of its own"
        advice = "predict at the times of the signal, or give the prediction its own clock"
        found.add(code, block, message, count=made.length, advice=advice)


def _stretches(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


# --- residuals


def check_residual(episode: Episode, residual: Residual, found: Findings) -> None:
    """Recompute a residual from its signal and, if it names a model, from the prediction."""
    block = residual_block(residual.channel_id, residual.model, residual.type)
    is_delta = residual.type == DELTA_RESIDUAL
    with found.guard(block, rule="W-RES-2" if is_delta else "W-RES-1"):
        residual = copy(residual)  # what it reads goes away with the copy
        data, scales = residual.data, residual.scales
        found.advance(data.nbytes + (0 if scales is None else scales.nbytes))
        if block in found.damaged or block + SCALES in found.damaged:
            return
        error = _sources(episode, block, residual, found)
        if error is None or not error.length or not error.dimensions:
            return
        window_bytes = found.options.window_bytes
        if is_delta:
            shape = [error.length, *error.signal.step_shape]
            fits = list(data.shape) == shape
            stored = f"its shape is {list(data.shape)}, that of its signal {shape}"
            wrong = _wrong_deltas(error, residual, window_bytes)
        else:
            # Some writers keep only the first dimension.
            count = data.size // -(-error.length // 8)
            fits = count in (1, error.dimensions)
            stored = f"it has the signs of {counted(count, 'dimension')}, its signal has "
            stored += f"{error.dimensions}"
            wrong = _wrong_signs(error, data, window_bytes)
        if not fits:
            advice = "compute the residual again from the signal"
            found.add("residual_mismatch", block, stored, advice=advice)
            return
        count, checked, first = 0, 0, -1
        for start, bad in wrong:
            count += int(np.count_nonzero(bad))
            checked += bad.size
            if first < 0 and bad.any():
                first = start + int(bad.any(axis=1).argmax())
        if count:
            what = "values" if is_delta else "signs"
            made_of = "the signal" if error.omen is None else "signal minus prediction"
            message = f"{count} of {checked} {what} are not those of {made_of}, the first at step "
            advice = "compute the residual again: signal or prediction changed since it was made"
            found.add("residual_mismatch", block, f"{message}{first}", first, count, advice=advice)


class _Error(NamedTuple):
    """What a residual was made of: a signal, or a signal minus its prediction."""

    signal: Channel
    omen: Channel | None
    length: int

    @property
    def dimensions(self) -> int:
        return prod(self.signal.step_shape)

    def read(self, start: int, stop: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Some steps [n, D], and how far rounding may have moved them."""
        rounding = 0.0
        total, size = np.zeros((2, stop - start, self.dimensions))
        with np.errstate(all="ignore"):
            for sign, part in ((1.0, self.signal), (-1.0, self.omen)):
                if part is None:
                    continue
                numbers = part.dtype_name.as_numbers(part.read_steps(start, stop))
                values = numbers.reshape(total.shape).astype(np.float64)
                if part.dtype_name.is_float:
                    # Other writers compute in the dtype of the channel.
                    rounding = max(rounding, float(np.finfo(numbers.dtype).eps))
                total += sign * values
                size += np.abs(values)
            return total, 4.0 * rounding * size

    def pieces(self, multiple: int, window_bytes: int) -> Iterator[tuple[int, int]]:
        """Ranges of steps that start at multiples, in bounded memory."""
        most = window_bytes // (_BYTES_OF_A_NUMBER * self.dimensions)
        steps = max(1, most // multiple) * multiple
        for start in range(0, self.length, steps):
            yield start, min(start + steps, self.length)


def _sources(episode: Episode, block: str, residual: Residual, found: Findings) -> _Error | None:
    """What a residual was made of; None if there is nothing to compare it with."""
    if _is_filtered(episode):
        return None
    name, model = residual.channel_id, residual.model
    signal = episode.observations.get(name)
    omen = episode.omens[name].get(model) if model and name in episode.omens else None
    if signal is None or (model and omen is None):
        missing = _about(name, "" if signal is None else model)
        _add_orphan(block, f"it is a residual of {missing}", found)
        return None
    for part in (signal, omen):
        if part is not None and (
            isinstance(part, RaggedChannel)
            or (part.block or block) in found.damaged
            or part.length < episode.length
            or part.step_shape != signal.step_shape
        ):
            return None  # that is a finding of its own
    length = min(episode.length, signal.length)
    return _Error(signal.uncached(), None if omen is None else omen.uncached(), length)


def _wrong_signs(error: _Error, data: NDArray[Any], window_bytes: int) -> Wrong:
    table = data.reshape(-1, -(-error.length // 8))
    stored = len(table)
    for start, stop in error.pieces(8, window_bytes):
        low, high = max(start, 1), min(stop, error.length - 1)  # edges have no second difference
        if low >= high:
            continue
        x, slack = error.read(low - 1, high + 1)
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
        yield low, bad


def _wrong_deltas(error: _Error, residual: Residual, window_bytes: int) -> Wrong:
    assert residual.scales is not None
    window = min(residual.window, error.length)
    table = residual.data.reshape(error.length, error.dimensions)
    rates = residual.scales.reshape(len(residual.scales), error.dimensions)
    for start, stop in error.pieces(window, window_bytes):
        x, slack = error.read(start, stop)
        scale = rates[start // window : -(-stop // window)].astype(np.float64)
        steps = np.repeat(scale, window, axis=0)[: stop - start]
        with np.errstate(all="ignore"):
            off = np.abs(x - table[start:stop] * steps)
            # A thousandth more than half a scale: other writers may round 32-bit scales either way.
            yield start, ~(off <= np.abs(steps) * 0.501 + slack)
