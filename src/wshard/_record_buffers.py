"""What is recorded but not written yet: buffers, the runs that they become, and how runs are stored."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format import Codec
from shard_format.codecs import crc32c, is_worth_it
from shard_format.errors import InvalidArgument
from shard_format.filters import LARGEST_FRAME, Delta, Filters, encode_frame
from wshard._values import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wshard._channel_def import RecordedChannel, StepSchema

_CHOICES: Final = {
    "fsync": ("never", "interval", "always"),
    "overflow": ("block", "drop", "error"),
    "on_partial": ("refuse", "recover", "discard"),
}
_LARGEST_RUN_BYTES: Final = 16 << 20
"""A buffer of this size is full, however few steps it has."""
_RUNS_IN_FILE: Final = 8
"""A file with a limit holds at least this many runs before it is full."""
_FEWEST_BUFFERS: Final = 3
_MOST_BUFFERS: Final = 256
_TRIED_BYTES: Final = 1 << 20
"""How much of the first run `choose_encoding` tries; more tells little more."""
_PIXELS: Final = (DType.UINT8, DType.UINT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The options of a `WShardStreamWriter`, which documents them."""

    flush_steps: int
    flush_seconds: float
    fsync: str
    overflow: str
    buffer_bytes: int
    on_partial: str
    overwrite: bool
    max_steps: int | None
    max_bytes: int | None
    may_roll: bool

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise InvalidArgument(
                    f"unknown {name}", expected=" or ".join(map(repr, allowed)), found=repr(value)
                )
        if self.flush_steps < 1 or not self.flush_seconds > 0:
            raise InvalidArgument("flush_steps and flush_seconds must be above 0")
        limits = [limit for limit in (self.max_steps, self.max_bytes) if limit is not None]
        if any(limit < 1 for limit in limits):
            raise InvalidArgument("a limit for files must be above 0", found=limits)
        if limits and not self.may_roll:
            raise InvalidArgument("a limit for files needs may_roll=True", found=limits)

    @property
    def is_synced(self) -> bool:
        """Whether files are synced when they are begun and finished."""
        return self.fsync != "never"


class ChannelRun(NamedTuple):
    """Consecutive entries of one channel."""

    channel: RecordedChannel
    entries: int
    content: memoryview
    crc32c: int | None
    """None for a run that will be compressed: `encode` computes it, on another thread."""

    @classmethod
    def of(cls, channel: RecordedChannel, entries: int, content: memoryview) -> ChannelRun:
        return cls(channel, entries, content, crc32c(content) if channel.level is None else None)

    def split(self, entries: int) -> tuple[ChannelRun, ChannelRun]:
        """The first `entries` entries, and the rest."""
        at = self.channel.step_bytes * entries
        return (
            ChannelRun.of(self.channel, entries, self.content[:at]),
            ChannelRun.of(self.channel, self.entries - entries, self.content[at:]),
        )


class StepBuffer:
    """Memory for the next run of each channel of a group."""

    __slots__ = ("_flat", "channels", "count", "places", "since")

    def __init__(self, channels: Sequence[RecordedChannel], steps: int) -> None:
        self.channels = channels
        arrays = [np.empty((steps, *c.shape), c.stored) for c in channels]
        self.places = [[array[number, ...] for array in arrays] for number in range(steps)]
        """For each step, a view for the value of each channel. Making views takes longer than filling them."""
        self._flat = [array.reshape(-1).view(np.uint8).data for array in arrays]
        self.count = 0
        """Steps in it."""
        self.since = 0.0
        """When the first of them came."""

    def runs(self) -> list[ChannelRun]:
        """The runs that the buffer holds, with checksums."""
        return [
            ChannelRun.of(channel, self.count, flat[: self.count * channel.step_bytes])
            for channel, flat in zip(self.channels, self._flat, strict=True)
        ]


class ChannelGroup:
    """Channels that are filled together, and their buffers.

    Owns: its buffers. Hold `lock` to use `current`.
    """

    def __init__(self, schema: StepSchema, options: RecordOptions) -> None:
        step = max(1, sum(c.step_bytes for c in schema.channels))
        largest = _LARGEST_RUN_BYTES
        if options.max_bytes is not None:
            largest = min(largest, options.max_bytes // _RUNS_IN_FILE)
        self.schema = schema
        self.channels = schema.channels
        self.steps = max(1, min(options.flush_steps, largest // step))
        """Steps in a buffer."""
        fitting = options.buffer_bytes // (step * self.steps)
        self._most = max(_FEWEST_BUFFERS, min(_MOST_BUFFERS, fitting))
        self._made = 0
        self._free: deque[StepBuffer] = deque()
        self.lock = threading.Lock()
        self.current: StepBuffer | None = None
        """The buffer that is being filled."""
        self.outgoing: WriteRequest | None = None
        """The request that is being handed over at this moment."""
        self.last_time: int | None = None
        self.written = 0
        self.dropped = 0

    def take(self) -> StepBuffer | None:
        """A buffer to fill; None if all of them wait to be written."""
        try:
            return self._free.pop()  # the one used last is still in the processor's cache
        except IndexError:
            if self._made >= self._most:
                return None
        self._made += 1
        return StepBuffer(self.channels, self.steps)

    def give_back(self, buffer: StepBuffer) -> None:
        """Takes back a buffer that has been written."""
        self._free.append(buffer)


@dataclass(slots=True, eq=False)
class WriteRequest:
    """Something for the writing thread to do. It serves requests in order."""

    runs: Sequence[ChannelRun] = ()
    group: ChannelGroup | None = None
    buffer: StepBuffer | None = None
    """The buffer that holds the runs."""
    note: dict[str, Any] | None = None
    served: threading.Event | None = None
    """Set when everything before this request is in the journal, or cannot be."""
    is_last: bool = False
    ends_steps: bool = False
    """Whether no more steps will come."""
    counts_dropped: bool = False
    """Whether to note how many entries were dropped."""
    is_taken: bool = False
    """Whether the writing thread has it: an interrupt can make the recording thread send a request twice."""

    @property
    def nbytes(self) -> int:
        return sum(len(run.content) for run in self.runs)


# --- how runs are stored


class RunEncoding(NamedTuple):
    """How the runs of a channel are stored."""

    level: int | None
    """The zstd level; None for raw."""
    filters: Filters | None = None


class EncodedRun(NamedTuple):
    """A run as it is stored."""

    run: ChannelRun
    codec: Codec
    stored: bytes | memoryview
    stored_crc32c: int
    content_crc32c: int


def choose_encoding(run: ChannelRun) -> RunEncoding:
    """Tries how to store a channel, on its first run.

    Noise does not compress, and a finished episode would store it raw anyway. A camera sees little change from
    step to step, so that differences compress better, and faster.
    """
    channel = run.channel
    level = channel.level
    if level is None:
        return RunEncoding(None)
    entries = max(1, min(run.entries, _TRIED_BYTES // channel.step_bytes))
    if run.entries > 1 and channel.dtype in _PIXELS:
        entries = max(entries, 2)  # differences need two steps
    content = run.content[: entries * channel.step_bytes]
    smallest = len(encode_frame(content, level, None))
    filters = None
    if entries > 1 and channel.dtype in _PIXELS and channel.step_bytes <= LARGEST_FRAME // 2:
        delta = Filters(Delta(width=channel.dtype.size, row=channel.step_bytes))
        filtered = len(encode_frame(content, level, delta))
        if filtered < smallest:
            smallest, filters = filtered, delta
    return RunEncoding(level, filters) if is_worth_it(smallest, len(content)) else RunEncoding(None)


def encode(run: ChannelRun, encoding: RunEncoding) -> EncodedRun:
    """Compresses a run if it is to be, and computes the checksums that it lacks."""
    checksum = crc32c(run.content) if run.crc32c is None else run.crc32c
    if encoding.level is None:
        return EncodedRun(run, Codec.NONE, run.content, checksum, checksum)
    stored = encode_frame(run.content, encoding.level, encoding.filters)
    return EncodedRun(run, Codec.ZSTD, stored, crc32c(stored), checksum)
