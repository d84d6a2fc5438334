"""From steps to the journal: buffers that are filled by whoever records, and the thread that writes them.

A full buffer goes through a queue to the thread, which compresses, writes, and gives the buffer back. The one
who records waits for nothing but a free buffer. Python's lock is what both compete for: a thread that gives it
up beside a busy one waits up to 5 ms to have it again. So checksums of runs are taken where the buffer is
handed over, and the thread, for what is stored raw, does little more than one system call for many runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format import Codec
from shard_format._crc import crc32c
from shard_format._json import canonical
from shard_format._parallel import available_threads, map_in_order, thread_count
from shard_format._zstd import compress_frame
from shard_format.errors import Closed, InvalidArgument, ShardError, ShardIOError
from wshard.journal import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from wshard.journal import JournalWriter
    from wshard.recordable import RecordedChannel

_log = logging.getLogger("wshard")

# A run is handed over when it has so many bytes, however few steps that are.
_LARGEST_BUFFER: Final = 16 << 20
_FEWEST_BUFFERS: Final = 3
_MOST_BUFFERS: Final = 256
# The thread gathers for so long before it writes: each time it comes up, somebody's step takes longer.
_GATHER_SECONDS: Final = 0.005
# So many buffers that wait are a reason to go on at once.
_ENOUGH: Final = 4
# What is written before buffers are given back, unless a quarter of all is more: a recorder that waits for
# one must not wait for all.
_LARGEST_WRITE: Final = 4 << 20
SYNC_SECONDS: Final = 1.0
_SHORTEST_WAIT: Final = 0.001


class _Buffer:
    """Room for the next run of channels that are filled together."""

    __slots__ = ("_flat", "arrays", "channels", "count", "since")

    def __init__(self, channels: Sequence[RecordedChannel], steps: int) -> None:
        self.channels = channels
        self.arrays = [np.empty((steps, *c.shape), c.stored) for c in channels]
        self._flat = [array.reshape(-1).view(np.uint8).data for array in self.arrays]
        self.count = 0
        self.since = 0.0

    def runs(self) -> list[_Run]:
        """What is in it, with checksums."""
        count = self.count
        runs = []
        for channel, flat in zip(self.channels, self._flat, strict=True):
            content = flat[: count * channel.step_bytes]
            runs.append(_Run(channel.number, count, content, crc32c(content), channel.level))
        return runs


class _Run(NamedTuple):
    """The next entries of one channel."""

    channel: int
    entries: int
    content: memoryview
    crc32c: int
    level: int | None
    """The zstd level; None to store them raw."""


class Track:
    """Channels that are filled together, with the buffers they go through.

    Owns: its buffers. `current` belongs to whoever holds `lock`.
    """

    def __init__(
        self, channels: Sequence[RecordedChannel], flush_steps: int, buffer_bytes: int
    ) -> None:
        step = max(1, sum(c.step_bytes for c in channels))
        self.channels = channels
        self.steps = max(1, min(flush_steps, _LARGEST_BUFFER // step))
        """Steps in a buffer."""
        self.most = max(_FEWEST_BUFFERS, min(_MOST_BUFFERS, buffer_bytes // (step * self.steps)))
        """Buffers that may be there."""
        self.lock = threading.Lock()
        self.free: deque[_Buffer] = deque()
        self.made = 0
        self.current: _Buffer | None = None
        self.last_time: int | None = None
        self.written = 0
        self.dropped = 0

    def take(self) -> _Buffer | None:
        """A buffer to fill, None if all wait to be written."""
        try:
            return self.free.pop()  # the last one used is the one in the processor's cache
        except IndexError:
            if self.made >= self.most:
                return None
        self.made += 1
        return _Buffer(self.channels, self.steps)


class _Handed(NamedTuple):
    """What the thread is given: runs of a buffer, a note, or a sign to give."""

    runs: Sequence[_Run] = ()
    track: Track | None = None
    buffer: _Buffer | None = None
    note: bytes | None = None
    reached: threading.Event | None = None
    """Set when everything before is in the journal, or cannot be."""
    is_last: bool = False

    @property
    def size(self) -> int:
        return sum(len(run.content) for run in self.runs)


class Recorder:
    """Writes what tracks are filled with, on a thread of its own.

    Any number of threads may record. A forked child cannot: its copy is dead from the start.

    Owns: the thread, and the journal's end.

    Args:
        journal: begun already; the recorder appends to it.
        flush_seconds: how long an entry may wait in a buffer that is not full.
        fsync: `"never"`, `"interval"` or `"always"`.
        overflow: `"block"`, `"drop"` or `"error"`.
        buffer_bytes: how much may wait to be written.
        clock: seconds, for tests to turn.
    """

    def __init__(
        self,
        journal: JournalWriter,
        *,
        flush_seconds: float,
        fsync: str,
        overflow: str,
        buffer_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.journal = journal
        self.failure: BaseException | None = None
        """Why nothing can be recorded any more."""
        self.tracks: list[Track] = []
        self._flush_seconds = flush_seconds
        self._fsync = fsync
        self._overflow = overflow
        self._largest_write = max(_LARGEST_WRITE, buffer_bytes // 4)
        self._clock = clock
        self._ready: SimpleQueue[_Handed] = SimpleQueue()
        self._hurry = threading.Event()
        self._freed = threading.Condition()
        self._synced = clock()
        self._is_unsynced = False
        self._dropped_before = 0
        self._thread = threading.Thread(target=self._write, name="wshard recorder", daemon=True)
        _watch(self)
        self._thread.start()

    # --- what the one who records calls

    def record(self, track: Track, values: Iterable[Any], time_ns: int | None) -> bool:
        """Puts one entry of each channel into the track's buffer; returns whether there was room.

        The values must fit: they were checked. Those of a step are recorded together or not at all.
        """
        if self.failure is not None:
            self.raise_failure()
        with track.lock:
            if time_ns is not None:
                last = track.last_time
                if last is not None and time_ns < last:
                    raise InvalidArgument(
                        "time runs backwards",
                        path=self.journal.path,
                        entry=track.channels[-1].block,
                        expected=f"at least {last}",
                        found=time_ns,
                    )
            buffer = track.current
            if buffer is None:
                buffer = self._take(track)
                if buffer is None:
                    track.dropped += 1
                    return False
                buffer.count = 0
                buffer.since = self._clock()
                track.current = buffer
            number = buffer.count
            for array, value in zip(buffer.arrays, values, strict=True):
                array[number] = value
            track.last_time = time_ns
            track.written += 1
            buffer.count = number = number + 1
            if number == track.steps:
                self._hand_over(track)
        return True

    def _take(self, track: Track) -> _Buffer | None:
        buffer = track.take()
        if buffer is not None:
            return buffer
        self._hurry.set()
        if self._overflow == "drop":
            return None
        if self._overflow == "error":
            raise ShardIOError(
                "the disk cannot keep up with the recording",
                path=self.journal.path,
                hint="raise buffer_bytes, lower the compression, or choose overflow='block' or 'drop'",
            )
        with self._freed:
            while (buffer := track.take()) is None:
                self._freed.wait()
        self.raise_failure()  # a thread that cannot write still gives buffers back
        return buffer

    def _hand_over(self, track: Track) -> None:
        """Gives the current buffer to the thread; the track's lock is held."""
        buffer = track.current
        if buffer is not None:
            runs = buffer.runs()
            track.current = None
            self._ready.put(_Handed(runs, track, buffer))

    def note(self, text: bytes) -> None:
        """Writes a note behind everything that was handed over before."""
        self.raise_failure()
        self._ready.put(_Handed(note=text))

    def record_last(self, values: Iterable[tuple[RecordedChannel, NDArray[Any]]]) -> None:
        """Records one entry more of some channels, behind all steps; `flush` comes first."""
        runs = []
        for channel, value in values:
            entry = np.array(value, channel.stored, order="C")
            content = entry.reshape(-1).view(np.uint8).data
            runs.append(_Run(channel.number, 1, content, crc32c(content), channel.level))
        self.raise_failure()
        self._ready.put(_Handed(runs))

    def flush(self) -> None:
        """Returns when everything recorded so far is in the journal."""
        self.raise_failure()
        for track in self.tracks:
            with track.lock:
                self._hand_over(track)
        self.settle()
        self.raise_failure()

    def settle(self) -> None:
        """Returns when the thread has done what was due by now."""
        reached = threading.Event()
        self._ready.put(_Handed(reached=reached))
        self._hurry.set()
        if self._thread.is_alive():
            reached.wait()

    def stop(self) -> None:
        """Ends the thread; what was not handed over is forgotten. The journal stays open."""
        if self._thread.is_alive():
            self._ready.put(_Handed(is_last=True))
            self._hurry.set()
            self._thread.join()
        if self.failure is None:
            self.failure = Closed("the recording is over", path=self.journal.path)

    def raise_failure(self) -> None:
        """Raises if nothing can be recorded any more."""
        error = self.failure
        if error is None:
            return
        if isinstance(error, OSError) and not isinstance(error, ShardError):
            raise io_failure(error, self.journal.path) from error
        raise error

    # --- the thread

    def _write(self) -> None:
        while True:
            batch = self._next_batch()
            if self.failure is None:
                try:
                    self._write_batch(batch)
                    self._sync_if_due()
                except BaseException as error:  # noqa: BLE001 - handed to whoever records next
                    self.failure = error
            with self._freed:
                for handed in batch:
                    if handed.track is not None and handed.buffer is not None:
                        handed.track.free.append(handed.buffer)
                self._freed.notify_all()
            for handed in batch:
                if handed.reached is not None:
                    handed.reached.set()
                if handed.is_last:
                    return

    def _next_batch(self) -> list[_Handed]:
        """Waits for something to write: full buffers, or those that have waited long enough."""
        batch: list[_Handed] = []
        with suppress(Empty):
            batch.append(self._ready.get(timeout=self._time_left()))
            if self._ready.qsize() < _ENOUGH:
                self._hurry.wait(_GATHER_SECONDS)
            self._hurry.clear()
        self._hand_over_due()
        size = sum(handed.size for handed in batch)
        while size < self._largest_write and not (batch and batch[-1].is_last):
            try:
                handed = self._ready.get_nowait()
            except Empty:
                break
            batch.append(handed)
            size += handed.size
        return batch

    def _hand_over_due(self) -> None:
        now = self._clock()
        for track in self.tracks:
            buffer = track.current
            is_due = buffer is not None and now - buffer.since >= self._flush_seconds
            # Whoever has the lock may be waiting for us; the next round will do.
            if is_due and track.lock.acquire(blocking=False):
                try:
                    self._hand_over(track)
                finally:
                    track.lock.release()
        dropped = sum(track.dropped for track in self.tracks)
        if dropped != self._dropped_before:
            self._dropped_before = dropped
            self._ready.put(_Handed(note=canonical({"dropped": self.dropped})))

    def _time_left(self) -> float:
        """Until the next buffer must be written, or the journal synced."""
        now = self._clock()
        left = self._flush_seconds
        for track in self.tracks:
            buffer = track.current
            if buffer is not None:
                left = min(left, buffer.since + self._flush_seconds - now)
        if self._is_unsynced:
            left = min(left, self._synced + SYNC_SECONDS - now)
        return max(left, _SHORTEST_WAIT)

    def _write_batch(self, batch: Sequence[_Handed]) -> None:
        journal = self.journal
        pieces: list[bytes | memoryview] = []
        compressed = self._compress([run for handed in batch for run in handed.runs])
        for handed in batch:
            for channel, entries, content, checksum, level in handed.runs:
                codec, stored, stored_checksum = Codec.NONE, content, checksum
                if level is not None:
                    codec, stored = Codec.ZSTD, memoryview(next(compressed))
                    stored_checksum = crc32c(stored)
                sizes = (len(stored), len(content))
                head = journal.head(
                    Kind.RUN, codec, channel, entries, sizes, (stored_checksum, checksum)
                )
                pieces += (head, stored)
            if handed.note is not None:
                pieces += (journal.text_head(Kind.NOTE, handed.note), handed.note)
        if pieces:
            journal.append(pieces)
            self._is_unsynced = True

    def _compress(self, runs: Sequence[_Run]) -> Iterator[bytes]:
        """The runs that shall be compressed, in order.

        One processor is left to whoever records, unless we are behind.
        """
        size = sum(len(run.content) for run in runs)
        spare = 0 if size >= self._largest_write else 1
        threads = min(thread_count(None, size), max(1, available_threads() - spare))
        chosen = [run for run in runs if run.level is not None]
        return iter(map_in_order(chosen, _compressed, threads))

    def _sync_if_due(self) -> None:
        now = self._clock()
        if self._is_unsynced and self._fsync != "never":
            if self._fsync == "interval" and now - self._synced < SYNC_SECONDS:
                return
            self.journal.sync()
            self._synced = now
        self._is_unsynced = False

    @property
    def dropped(self) -> dict[str, int]:
        """Entries that were left out by block, because the disk could not keep up."""
        return {
            channel.block: track.dropped
            for track in self.tracks
            if track.dropped
            for channel in track.channels
        }

    def leave_to_parent(self) -> None:
        """In a forked child: the recording is not ours, nor are locks that its threads may hold."""
        if self.failure is None:
            self.failure = Closed(
                "the recording belongs to the process that began it", path=self.journal.path
            )
        self.journal.close()  # or the lock would outlive the parent


def io_failure(error: OSError, path: str) -> ShardIOError:
    """A failure of the disk, with what to do about the recording."""
    failure = ShardIOError.wrap(error, "cannot record", path)
    safe = f"what was flushed is safe; bring it back with: wshard recover {path}"
    failure.hint = f"{failure.hint}; {safe}" if failure.hint else safe
    return failure


def _compressed(run: _Run) -> bytes:
    assert run.level is not None
    return compress_frame(run.content, run.level, checksum=True)


# --- the end of a process, and its children

_alive: weakref.WeakSet[Recorder] = weakref.WeakSet()
_is_watching = False


def _watch(recorder: Recorder) -> None:
    global _is_watching
    _alive.add(recorder)
    if not _is_watching:
        _is_watching = True
        atexit.register(_flush_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_leave_all_to_parent)


def _leave_all_to_parent() -> None:
    for recorder in list(_alive):
        recorder.leave_to_parent()


def _flush_all() -> None:
    """A program that ends without finishing its recordings leaves all of their steps in the journals."""
    for recorder in list(_alive):
        if recorder.failure is None:
            try:
                recorder.flush()
            except (OSError, ShardError) as error:
                _log.warning("%s", error)
            else:
                _log.warning("the recording is not finished: %s", recorder.journal.path)
