"""What the names of arrays and columns mean, for files that do not say it: folders of `.npz`, CSV, Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import BadValue
from wshard._lanes import EXTRA, REWARD, TERMINATED, TIMESTAMPS, TRUNCATED, address_of, block_name
from wshard._values import as_times

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from wshard.convert._model import Notes

__all__ = ["SECONDS", "address_of_field", "note_ambiguous", "prediction_address", "seconds_as_ns"]

SECONDS: Final = "seconds"
"""The first part of the address of times in seconds."""
_LANES: Final = {
    **dict.fromkeys(("observation", "observations", "obs"), ("signal", "observation")),
    **dict.fromkeys(("action", "actions", "act", "acts"), ("action", "action")),
}
_FLAT: Final = {
    **dict.fromkeys(("reward", "rewards", "rew", "rews", "next.reward"), REWARD),
    **dict.fromkeys(("terminated", "terminations", "terminals", "terminal"), TERMINATED),
    **dict.fromkeys(("is_terminal", "done", "dones", "next.done", "next.terminated"), TERMINATED),
    **dict.fromkeys(("truncated", "truncations", "timeouts", "timeout"), TRUNCATED),
    "next.truncated": TRUNCATED,
    **dict.fromkeys(("timestamp_ns", "timestamps_ns"), TIMESTAMPS),
    **dict.fromkeys(("timestamp", "timestamps"), SECONDS),
}


def address_of_field(field: str) -> tuple[str, ...]:
    """Where a field belongs in an episode. A name without a meaning of its own is an observation.

    | field | becomes |
    |---|---|
    | `obs`, `observation`, `observations` | the observation `observation` |
    | `obs/x`, `observation.x`, … | the observation `x` |
    | `act`, `acts`, `action`, `actions` | the action `action` |
    | `action/x`, `actions.x`, … | the action `x` |
    | `reward`, `rewards`, `rew`, `rews`, `next.reward` | rewards |
    | `terminated`, `terminations`, `terminal`, `terminals`, `is_terminal`, `done`, `dones`, `next.done` | terminations |
    | `truncated`, `truncations`, `timeout`, `timeouts`, `next.truncated` | truncations |
    | `timestamp_ns`, `timestamps_ns` | times of the steps, integers |
    | `timestamp`, `timestamps` | times of the steps, seconds |
    | `omen/x/model`, `uncert/x/model/type` | predictions |
    """
    flat = _FLAT.get(field)
    if flat is not None:
        return (flat,)
    found = prediction_address(field)
    if found is not None:
        return found
    for word, (lane, bare) in _LANES.items():
        if field == word:
            return lane, bare
        if field.startswith((f"{word}/", f"{word}.")) and len(field) > len(word) + 1:
            return lane, field[len(word) + 1 :]
    return "signal", field


def prediction_address(field: str) -> tuple[str, ...] | None:
    """Where an array of predictions belongs; None for any other."""
    address = address_of(field) if field.startswith(("omen/", "uncert/")) else (EXTRA,)
    return None if address[0] == EXTRA else address


def note_ambiguous(address: tuple[str, ...], notes: Notes) -> None:
    """Notes a prediction whose name alone does not say where the channel ends and the model starts."""
    block = block_name(address)
    if address[0] in ("omen", "uncert") and address_of(block) != address:
        channel = address_of(block)[1]
        notes.renamed(block, f"its name is read as a prediction about {channel!r}")


def seconds_as_ns(seconds: NDArray[Any], field: str, path: str, notes: Notes) -> NDArray[np.int64]:
    """Times in seconds as whole nanoseconds, with a note."""
    numbers = seconds.astype(np.float64)
    if numbers.ndim != 1 or not np.isfinite(numbers).all() or (np.abs(numbers) > 9e9).any():
        raise BadValue(
            "times are not seconds", path=path, entry=field, expected="one finite number a step"
        )
    notes.cast(field, seconds.dtype, "int64", "seconds to nanoseconds")
    return as_times(np.round(numbers * 1e9).astype(np.int64), field)
