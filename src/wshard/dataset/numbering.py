"""Numbers of windows: which episode, and which step it starts at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import LimitExceeded

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MOST_STEPS", "WindowNumbers"]

MOST_STEPS: Final = 1 << 53
"""Of all episodes together. Files can claim more, and sums of that would wrap."""


class WindowNumbers:
    """All windows of many episodes, numbered episode by episode.

    Args:
        lengths: steps of each episode.
        window: steps of a window.
        stride: steps from one window to the next.
        padded: whether windows may reach behind the end. Then one starts at every `stride`-th step; else
            all lie within the episode, and shorter episodes have none.
    """

    __slots__ = ("firsts", "stride")

    def __init__(
        self, lengths: NDArray[np.int64], window: int, stride: int, *, padded: bool
    ) -> None:
        if lengths.sum(dtype=np.float64) > MOST_STEPS:
            raise LimitExceeded(
                "the episodes claim more steps than any data set has",
                expected=f"at most {MOST_STEPS}",
                found=f"{len(lengths)} episodes, the longest of {lengths.max()}",
            )
        starts = lengths if padded else lengths - window + 1
        counts = np.maximum(-(-starts // stride), 0)
        self.stride = stride
        self.firsts = np.zeros(len(lengths) + 1, np.int64)
        """The number of each episode's first window, and the number of all."""
        np.cumsum(counts, out=self.firsts[1:])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def count(self, episode: int) -> int:
        """Windows of an episode."""
        return int(self.firsts[episode + 1] - self.firsts[episode])

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The episode and the first step of each window; numbers are from 0 to `len` - 1."""
        episodes = np.searchsorted(self.firsts, numbers, side="right") - 1
        return episodes, (numbers - self.firsts[episodes]) * self.stride
