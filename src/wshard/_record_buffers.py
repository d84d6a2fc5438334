"""What is recorded but not written yet: buffers, the runs that they become, and how runs are stored."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format import Codec
from shard_format.codecs import crc32c, is_worth_it
from shard_format.errors import InvalidArgument, check_choice
from shard_format.filters import LARGEST_FRAME, Delta, Filters, encode_frame
from wshard._journal import HEAD_SIZE
from wshard._values import DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from wshard._channel_def import RecordedChannel, StepSchema

_CHOICES: Final = {
    "fsync": ("never", "interval", "always"),
    "overflow": ("block", "drop", "error"),
}
_LARGEST_RUN_BYTES: Final = 16 << 20
"""A buffer of this size is full, however few steps it has."""
_FILL_BYTES: Final = 4 << 20
"""The size of runs that fill a channel for earlier steps."""
_RUNS_IN_FILE: Final = 8
"""A file with a limit holds at least this many runs before it is full."""
_FEWEST_BUFFERS: Final = 3
_MOST_BUFFERS: Final = 256
_TRIED_BYTES: Final = 1 << 20
"""How much of the first run `choose_encoding` tries; more tells little more."""
_PIXELS: Final = (DType.UINT8, DType.UINT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a `WShardStreamWriter` flushes, syncs and divides what it records."""

    flush_steps: int = 64
    """Write a run after this many steps,"""
    flush_seconds: float = 0.5
    """or after this time, whichever comes first."""
    fsync: str = "interval"
    """`"never"`, `"interval"` (once a second) or `"always"` (after every run)."""
    overflow: str = "block"
    """What a step does if the disk cannot keep up: `"block"` waits, `"drop"` drops and counts the step, `"error"` raises."""
    buffer_bytes: int = 24 << 20
    """How many bytes may wait to be written."""
    max_steps_per_file: int | None = None
    """The most steps in a chunk."""
    max_bytes_per_file: int | None = None
    """The most bytes of a chunk on disk; it may exceed them by one run."""
    may_roll: bool = True
    """False keeps the recording in one file of any size; a compressed channel above 1 GiB is then stored raw."""
    overview: bool = False
    """Write the overview file of the episode, or of each chunk, once that is complete (`wshard.overviews`). If this
    fails, a warning is logged: the recording is complete without it."""

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        if self.flush_steps < 1 or not self.flush_seconds > 0:
            raise InvalidArgument("flush_steps and flush_seconds must be above 0")
        limits = [
            limit
            for limit in (self.max_steps_per_file, self.max_bytes_per_file)
            if limit is not None
        ]
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
    """None for a run that will be compressed or encoded: `encode` computes it, on another thread."""
    sizes: NDArray[np.int64] | None
    """Of a ragged or text channel: the number of items of each entry."""
    frames: ChannelRun | None = None
    """Of encoded frames: what they were before."""
    measured: dict[str, Any] | None = None
    """Of encoded frames: what encoding has changed."""

    @classmethod
    def of(
        cls,
        channel: RecordedChannel,
        entries: int,
        content: memoryview,
        sizes: NDArray[np.int64] | None = None,
    ) -> ChannelRun:
        is_raw = channel.level is None and channel.camera is None
        checksum = crc32c(content) if is_raw else None
        return cls(channel, entries, content, checksum, sizes)

    @classmethod
    def of_entries(cls, channel: RecordedChannel, entries: Sequence[bytes]) -> ChannelRun:
        """Entries of a ragged or text channel."""
        sizes = np.array([len(entry) // channel.step_bytes for entry in entries], np.int64)
        return cls.of(channel, len(entries), memoryview(b"".join(entries)), sizes)

    def split(self, entries: int) -> tuple[ChannelRun, ChannelRun]:
        """The first `entries` entries, and the rest."""
        if self.frames is not None:  # each part begins with a keyframe
            return self.frames.split(entries)
        first = rest = None
        items = entries
        if self.sizes is not None:
            first, rest = self.sizes[:entries], self.sizes[entries:]
            items = int(first.sum())
        at = self.channel.step_bytes * items
        return (
            ChannelRun.of(self.channel, entries, self.content[:at], first),
            ChannelRun.of(self.channel, self.entries - entries, self.content[at:], rest),
        )


def fill_runs(channel: RecordedChannel, value: NDArray[Any], entries: int) -> Iterator[ChannelRun]:
    """Runs that repeat a value, a few MiB each."""
    piece = value.tobytes()
    most = max(1, _FILL_BYTES // max(1, len(piece)))
    for start in range(0, entries, most):
        count = min(most, entries - start)
        if channel.is_ragged:
            yield ChannelRun.of_entries(channel, [piece] * count)
        else:
            yield ChannelRun.of(channel, count, memoryview(piece * count))


class StepBuffer:
    """Memory for the next run of each channel of a group."""

    __slots__ = ("_filled", "_ragged", "channels", "count", "places", "ragged_bytes", "since")

    def __init__(self, channels: Sequence[RecordedChannel], steps: int) -> None:
        self.channels = channels
        made = [channel.places(steps) for channel in channels]
        self.places = [[places[number] for places, _ in made] for number in range(steps)]
        """For each step, a place for the value of each channel. Making views takes longer than filling them."""
        self._filled = [
            filled if isinstance(filled, list) else filled.reshape(-1).view(np.uint8).data
            for _, filled in made
        ]
        self._ragged = [entries for entries in self._filled if isinstance(entries, list)]
        self.ragged_bytes = 0
        """Bytes of ragged and text channels in it."""
        self.count = 0
        """Steps in it."""
        self.since = 0.0
        """When the first of them came."""

    def add_step(self) -> None:
        """Counts the step whose places were filled."""
        for entries in self._ragged:
            self.ragged_bytes += len(entries[self.count])
        self.count += 1

    def clear(self) -> None:
        """Forgets its steps."""
        for entries in self._ragged:
            entries[:] = [b""] * len(entries)
        self.ragged_bytes = self.count = 0

    def runs(self) -> list[ChannelRun]:
        """The runs that the buffer holds, with checksums."""
        return [
            ChannelRun.of_entries(channel, filled[: self.count])
            if isinstance(filled, list)
            else ChannelRun.of(channel, self.count, filled[: self.count * channel.step_bytes])
            for channel, filled in zip(self.channels, self._filled, strict=True)
        ]


class ChannelGroup:
    """Channels that are filled together, and their buffers.

    Owns: its buffers. Hold `lock` to use `current`.
    """

    def __init__(self, schema: StepSchema, options: StreamOptions) -> None:
        self._largest = _LARGEST_RUN_BYTES
        if options.max_bytes_per_file is not None:
            self._largest = min(self._largest, options.max_bytes_per_file // _RUNS_IN_FILE)
        self._options = options
        self.use(schema)
        self.lock = threading.Lock()
        self.current: StepBuffer | None = None
        """The buffer that is being filled."""
        self.outgoing: WriteRequest | None = None
        """The request that is being handed over at this moment."""
        self.last_time: int | None = None
        self.written = 0
        self.dropped = 0

    def use(self, schema: StepSchema) -> None:
        """Makes buffers for other channels from now on. Hold the lock; no buffer is being filled."""
        step = max(1, sum(0 if c.is_ragged else c.step_bytes for c in schema.channels))
        self.schema = schema
        self.channels = schema.channels
        self.steps = max(1, min(self._options.flush_steps, self._largest // step))
        """Steps in a buffer."""
        fitting = self._options.buffer_bytes // (step * self.steps)
        self._most = max(_FEWEST_BUFFERS, min(_MOST_BUFFERS, fitting))
        self._made: list[StepBuffer] = []
        self._free: deque[StepBuffer] = deque()

    def take(self) -> StepBuffer | None:
        """A buffer to fill; None if all of them wait to be written, or too many bytes of ragged channels."""
        if sum(buffer.ragged_bytes for buffer in self._made) >= self._options.buffer_bytes:
            return None
        try:
            return self._free.pop()  # the one used last is still in the processor's cache
        except IndexError:
            if len(self._made) >= self._most:
                return None
        self._made.append(StepBuffer(self.channels, self.steps))
        return self._made[-1]

    def is_full(self, buffer: StepBuffer) -> bool:
        """Whether a buffer must be written."""
        return buffer.count == self.steps or buffer.ragged_bytes >= self._largest

    def give_back(self, buffer: StepBuffer) -> None:
        """Takes back a buffer that has been written."""
        if buffer.channels is self.channels:
            buffer.clear()
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


RAW: Final = RunEncoding(None)


class EncodedRun(NamedTuple):
    """A run as it is stored."""

    run: ChannelRun
    codec: Codec
    stored: bytes | memoryview
    stored_crc32c: int
    content_crc32c: int

    @property
    def nbytes(self) -> int:
        """Bytes in the journal, with heads and offsets."""
        size = HEAD_SIZE + len(self.stored)
        return size if self.run.sizes is None else size + HEAD_SIZE + 8 * (self.run.entries + 1)


def choose_encoding(run: ChannelRun) -> RunEncoding:
    """Tries how to store a channel, on its first run.

    Noise does not compress, and a finished episode would store it raw anyway. A camera sees little change from
    step to step, so that differences compress better, and faster.
    """
    channel = run.channel
    level = channel.level
    if level is None:
        return RunEncoding(None)
    may_filter = run.entries > 1 and channel.dtype in _PIXELS and not channel.is_ragged
    held = len(run.content) // channel.step_bytes
    entries = max(1, min(held, _TRIED_BYTES // channel.step_bytes))
    if may_filter:
        entries = max(entries, 2)  # differences need two steps
    content = run.content[: entries * channel.step_bytes]
    smallest = len(encode_frame(content, level, None))
    filters = None
    if may_filter and channel.step_bytes <= LARGEST_FRAME // 2:
        delta = Filters(Delta(width=channel.dtype.size, row=channel.step_bytes))
        filtered = len(encode_frame(content, level, delta))
        if filtered < smallest:
            smallest, filters = filtered, delta
    return RunEncoding(level, filters) if is_worth_it(smallest, len(content)) else RunEncoding(None)


def encode(run: ChannelRun, encoding: RunEncoding) -> EncodedRun:
    """Compresses or encodes a run if necessary, and computes the checksums that it lacks."""
    camera = run.channel.camera
    if camera is not None:
        packets, measured = camera.encode(run.content, run.entries)
        camera.packets.number = run.channel.number
        encoded = ChannelRun.of_entries(camera.packets, packets)
        run = encoded._replace(frames=run, measured=measured)
    checksum = crc32c(run.content) if run.crc32c is None else run.crc32c
    if encoding.level is None:
        return EncodedRun(run, Codec.NONE, run.content, checksum, checksum)
    stored = encode_frame(run.content, encoding.level, encoding.filters)
    return EncodedRun(run, Codec.ZSTD, stored, crc32c(stored), checksum)
