"""Numbers of windows: which episode, and which step it starts at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

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

    def checked(self, numbers: ArrayLike) -> NDArray[np.int64]:
        """The numbers of windows that somebody asks for; negative ones count from the end.

        Raises:
            InvalidArgument: these are no numbers.
            IndexError: there is no such window.
        """
        given = np.asarray(numbers)
        if given.size == 0:
            return np.zeros(0, np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise InvalidArgument(
                "windows are asked for by their numbers",
                expected="a list of integers",
                found=f"{given.dtype} {list(given.shape)}",
            )
        count = len(self)
        # Compared before they are narrowed: unsigned numbers may be larger.
        wrong = (given >= count) | (given < -count)
        if wrong.any():
            raise IndexError(f"window {given[wrong][0]} of {count}")
        chosen = given.astype(np.int64)
        return np.where(chosen < 0, chosen + count, chosen)

    def following(self, episode: int, start: int) -> tuple[int, int]:
        """The next episode that has windows, and the window in this place or the nearest that it has.

        After the last episode comes the first.
        """
        after = self.firsts[episode + 1] % self.firsts[-1]
        found = int(np.searchsorted(self.firsts, after, side="right")) - 1
        return found, min(start // self.stride, self.count(found) - 1) * self.stride

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The episode and the first step of each window; numbers are from 0 to `len` - 1."""
        episodes = np.searchsorted(self.firsts, numbers, side="right") - 1
        return episodes, (numbers - self.firsts[episodes]) * self.stride
