"""The index of a video's frames: what each packet is, and which packets each step needs (spec/wshard.md, section 6)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import BadValue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["HIDDEN", "KEYFRAME", "FrameIndex"]

KEYFRAME: Final = 1
"""The flag of a packet at which decoding can start."""
HIDDEN: Final = 2
"""The flag of a packet whose frame is not a step: others need it to be decoded."""


class FrameIndex:
    """What each packet of a channel is, and which packets each step needs.

    Args:
        offsets: where each packet starts, and the end of the last one.
        frames: i64 [packets, 2]: the step of each packet, and its flags; None if packet t is step t, and each is a
            keyframe.
        length: of the channel.
    """

    __slots__ = ("flags", "offsets", "packet_of", "start_of", "steps")

    def __init__(
        self, offsets: NDArray[np.int64], frames: NDArray[np.int64] | None, length: int
    ) -> None:
        self.offsets = offsets
        packets = len(offsets) - 1
        if frames is None:
            self.steps = np.arange(packets, dtype=np.int64)
            self.flags = np.full(packets, KEYFRAME, np.int64)
        else:
            self.steps, self.flags = frames[:, 0], frames[:, 1]
        shown = self._shown(length)
        self.packet_of = np.empty(length, np.int64)
        """The packet of each step."""
        self.packet_of[self.steps[shown]] = shown
        self.start_of = self._starts()
        """The keyframe at which decoding starts for each step."""

    def _shown(self, length: int) -> NDArray[np.int64]:
        """W-VID-3: the packets that are steps."""
        unknown = np.flatnonzero(self.flags & ~(KEYFRAME | HIDDEN))
        if len(unknown):
            raise BadValue(
                "a packet has unknown flags",
                expected="0 to 3",
                found=f"{int(self.flags[unknown[0]])} at packet {int(unknown[0])}",
                rule="W-VID-3",
            )
        shown = np.flatnonzero(self.flags & HIDDEN == 0)
        steps = self.steps[shown]
        # One count and two bounds before memory is made for a length that the file merely claims.
        if len(shown) == length and (not length or (steps.min() == 0 and steps.max() < length)):
            repeated = np.flatnonzero(np.bincount(steps, minlength=length) != 1)
            if not len(repeated):
                return shown
            found = f"step {int(repeated[0])} is missing or repeated"
        else:
            found = f"{len(shown)} frames that are not hidden"
        raise BadValue(
            "the frames are not the steps of the channel",
            expected=f"one frame for each of {length} steps",
            found=found,
            rule="W-VID-3",
        )

    def _starts(self) -> NDArray[np.int64]:
        """W-VID-4: the last keyframe that is not after a step, in either order.

        A frame can follow a keyframe in the stream and come before it in time. It then needs the keyframe before.
        """
        keys = np.flatnonzero(self.flags & KEYFRAME)
        at = np.searchsorted(keys, self.packet_of, side="right") - 1
        steps = np.arange(len(self.packet_of))
        if len(keys):
            at = at - ((at >= 0) & (self.steps[keys[at]] > steps))
        is_bad = at < 0
        if len(keys):
            is_bad |= self.steps[keys[at]] > steps
        if is_bad.any():
            raise BadValue(
                "a step has no keyframe to start from",
                found=f"step {int(is_bad.argmax())}",
                rule="W-VID-4",
            )
        starts: NDArray[np.int64] = keys[at]
        # What comes before a keyframe in the stream comes before it in time: each group of pictures is decoded once.
        falls = np.flatnonzero(starts[1:] < starts[:-1])
        if len(falls):
            raise BadValue(
                "a step needs an earlier keyframe than the step before it",
                found=f"step {int(falls[0]) + 1}",
                rule="W-VID-4",
            )
        return starts

    def needed(self, start: int, stop: int) -> tuple[int, int]:
        """The range of packets that the steps from `start` to `stop` need."""
        if start >= stop:
            return 0, 0
        first = int(self.start_of[start:stop].min())
        return first, int(self.packet_of[start:stop].max()) + 1

    def groups(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Runs of steps that are decoded from the same keyframe: first step, end, keyframe."""
        starts = self.start_of[start:stop]
        borders = np.flatnonzero(starts[1:] != starts[:-1]) + 1
        for first, end in pairwise([0, *borders.tolist(), len(starts)]):
            if first < end:
                yield start + first, start + end, int(starts[first])

    @property
    def is_plain(self) -> bool:
        """Whether packet t is step t, and each is a keyframe: a file need not say it."""
        in_order = np.array_equal(self.steps, np.arange(len(self.steps)))
        return in_order and bool((self.flags == KEYFRAME).all())

    @property
    def table(self) -> NDArray[np.int64]:
        """i64 [packets, 2]: the step of each packet, and its flags."""
        return np.stack([self.steps, self.flags], axis=1)

    def cut(self, start: int, stop: int) -> tuple[int, int, NDArray[np.int64]]:
        """The packets for some steps, and their frames as a channel of its own has them."""
        first, end = self.needed(start, stop)
        steps = self.steps[first:end]
        outside = (steps < start) | (steps >= stop)
        flags = self.flags[first:end] | np.where(outside, HIDDEN, 0)
        return first, end, np.stack([steps - start, flags], axis=1)
