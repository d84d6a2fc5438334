"""What is recorded but not written yet: buffers that are filled step by step, and the runs they become."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format._crc import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wshard.recordable import RecordedChannel

LARGEST_RUN_BYTES: Final = 16 << 20
"""A run is handed over when it has so many bytes, however few steps that are."""
_FEWEST_BUFFERS: Final = 3
_MOST_BUFFERS: Final = 256


class Buffer:
    """Room for the next run of channels that are filled together."""

    __slots__ = ("_flat", "channels", "count", "places", "since")

    def __init__(self, channels: Sequence[RecordedChannel], steps: int) -> None:
        self.channels = channels
        arrays = [np.empty((steps, *c.shape), c.stored) for c in channels]
        self.places = [[array[number, ...] for array in arrays] for number in range(steps)]
        """By step, where the value of each channel goes: to make these views takes longer than to fill them."""
        self._flat = [array.reshape(-1).view(np.uint8).data for array in arrays]
        self.count = 0
        self.since = 0.0

    def runs(self) -> list[Run]:
        """What is in it, with checksums."""
        count = self.count
        runs = []
        for channel, flat in zip(self.channels, self._flat, strict=True):
            content = flat[: count * channel.step_bytes]
            runs.append(Run.of(channel, count, content))
        return runs


class Run(NamedTuple):
    """The next entries of one channel."""

    channel: RecordedChannel
    entries: int
    content: memoryview
    crc32c: int | None
    """None for what will be compressed: whoever does that takes it."""

    @classmethod
    def of(cls, channel: RecordedChannel, entries: int, content: memoryview) -> Run:
        return cls(channel, entries, content, crc32c(content) if channel.level is None else None)

    def parted(self, entries: int) -> tuple[Run, Run]:
        """The first entries, and the others."""
        at = self.channel.step_bytes * entries
        return (
            Run.of(self.channel, entries, self.content[:at]),
            Run.of(self.channel, self.entries - entries, self.content[at:]),
        )


class Track:
    """Channels that are filled together, with the buffers they go through.

    Owns: its buffers. `current` belongs to whoever holds `lock`.
    """

    def __init__(
        self,
        channels: Sequence[RecordedChannel],
        flush_steps: int,
        buffer_bytes: int,
        run_bytes: int = LARGEST_RUN_BYTES,
    ) -> None:
        """`flush_steps`, `run_bytes`: of one buffer, at most; `buffer_bytes`: of all."""
        step = max(1, sum(c.step_bytes for c in channels))
        self.channels = channels
        self.steps = max(1, min(flush_steps, run_bytes // step))
        """Steps in a buffer."""
        self.most = max(_FEWEST_BUFFERS, min(_MOST_BUFFERS, buffer_bytes // (step * self.steps)))
        """Buffers that may be there."""
        self.lock = threading.Lock()
        self.free: deque[Buffer] = deque()
        self.made = 0
        self.current: Buffer | None = None
        self.outgoing: Handed | None = None
        """What is being handed over just now."""
        self.last_handed: Handed | None = None
        """What the thread that writes was given last."""
        self.last_time: int | None = None
        self.written = 0
        self.dropped = 0

    def take(self) -> Buffer | None:
        """A buffer to fill, None if all wait to be written."""
        try:
            return self.free.pop()  # the last one used is the one in the processor's cache
        except IndexError:
            if self.made >= self.most:
                return None
        self.made += 1
        return Buffer(self.channels, self.steps)


class Handed(NamedTuple):
    """What the thread is given: runs of a buffer, a note, or a sign to give."""

    runs: Sequence[Run] = ()
    track: Track | None = None
    buffer: Buffer | None = None
    note: dict[str, Any] | None = None
    reached: threading.Event | None = None
    """Set when everything before is in the journal, or cannot be."""
    is_last: bool = False
    ends_steps: bool = False
    """Whether no more steps will come."""
    tells_dropped: bool = False
    """Whether to note what was left out."""

    @property
    def size(self) -> int:
        return sum(len(run.content) for run in self.runs)

    def is_first(self) -> bool:
        """Whether a buffer was not handed over before; if it was, then right before."""
        track = self.track
        if track is None:
            return True
        if track.last_handed is self:
            return False
        track.last_handed = self
        return True
