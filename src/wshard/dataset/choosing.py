"""The arguments of a data set that say what an item is, as one layout."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

from shard_format.errors import InvalidArgument
from wshard.dataset.layouts import WindowLayout
from wshard.dataset.resampling import as_resampling
from wshard.dataset.timed import StepLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wshard.dataset.layouts import Layout

__all__ = ["check_choice", "make_layout"]

_WINDOW: Final = 64
_PADDING: Final = ("none", "edge", "zero")


def make_layout(
    window: int | None,
    pad: str,
    next_observations: bool,
    delta_timestamps: Mapping[str, Iterable[float]] | None,
    tolerance_s: float,
    align: str | None,
    tolerance_ns: int | None,
) -> Layout:
    """What items are made of. The arguments are those of `EpisodeDataset`.

    Raises:
        InvalidArgument: an argument cannot work, or two of them exclude each other.
    """
    check_choice("pad", pad, _PADDING)
    resampling = as_resampling(align, tolerance_ns)
    if delta_timestamps is None:
        steps = _WINDOW if window is None else operator.index(window)
        if steps < 1:
            raise InvalidArgument("window is at least 1", found=window)
        return WindowLayout(steps, pad, bool(next_observations), resampling)
    for name, is_given, instead in (
        ("window", window is not None, "the times say how many entries there are"),
        ("pad", pad != "none", "what lies outside an episode is its nearest entry, and masked"),
        ("next_observations", next_observations, "ask for the time of the next step"),
    ):
        if is_given:
            raise InvalidArgument(
                f"{name} and delta_timestamps exclude each other",
                hint=f"leave {name} out: {instead}",
            )
    return StepLayout(delta_timestamps, tolerance_s, resampling)


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses what is not one of these."""
    if value not in allowed:
        raise InvalidArgument(
            f"unknown {name}", expected=" or ".join(map(repr, allowed)), found=repr(value)
        )
