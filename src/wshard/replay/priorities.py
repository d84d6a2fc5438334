"""Where a replay buffer keeps its priorities: one file, replaced as a whole."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format import ShardReader, ShardWriter
from shard_format._json import canonical
from shard_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_log = logging.getLogger("wshard")

FILE: Final = "priorities.shard"
_FILL: Final = "fill"
_ARRAY: Final = "priority/"
_JSON: Final = 2


@dataclass(slots=True)
class Priorities:
    """What is known about some episodes, by their names."""

    top: float = 1.0
    """The highest one that was ever given; new steps start with it."""
    fills: dict[str, float] = field(default_factory=dict)
    """Of the steps that were not given one."""
    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Of every step, where some were given one."""


def load_priorities(folder: str) -> Priorities:
    """The priorities that were saved. If they cannot be read, all start anew: no episode is lost by that."""
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return Priorities()
    try:
        with ShardReader(path) as reader:
            said = reader.read_json(_FILL)
            return Priorities(
                float(said["top"]),
                {str(name): float(fill) for name, fill in said["episodes"].items()},
                {
                    name.removeprefix(_ARRAY): _checked(reader.read_entry(name))
                    for name in reader.names()
                    if name.startswith(_ARRAY)
                },
            )
    except (ShardError, KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("%s: all priorities start anew: %s", path, error)
        return Priorities()


def _checked(content: bytes) -> NDArray[np.float64]:
    values = np.frombuffer(content, "<f8").astype(np.float64)
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError("a priority is no number of at least 0")
    return values


def save_priorities(
    folder: str, top: float, fills: Mapping[str, float], arrays: Mapping[str, NDArray[np.float64]]
) -> None:
    """Replaces what was saved; a reader finds the old file or the new one, never a part."""
    with ShardWriter(os.path.join(folder, FILE), fsync=False) as writer:
        text = canonical({"episodes": dict(fills), "top": top})
        writer.write_entry(_FILL, text, content_type=_JSON)
        for name, values in arrays.items():
            writer.write_entry(_ARRAY + name, np.ascontiguousarray(values, "<f8"))
