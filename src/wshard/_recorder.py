"""From steps to the journal: buffers that are filled by whoever records, and the thread that writes them.

A full buffer goes through a queue to the thread, which compresses, with helpers where there are processors for
them, writes in order, and gives the buffer back. The one who records waits for nothing but a free buffer.

Python's lock is what both compete for: a thread that gives it up beside a busy one waits up to 5 ms to have it
again. So checksums of raw runs are taken where the buffer is handed over, and the thread does little more for them
than one system call for many.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._json import canonical
from shard_format.errors import Closed, InvalidArgument, ShardError, ShardIOError
from wshard._packing import Pipeline
from wshard._tracks import Handed, Run
from wshard.journal import HEAD_SIZE, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard._packing import Packed, Taken
    from wshard._rolling import Roller
    from wshard._tracks import Buffer, Track
    from wshard.journal import JournalWriter
    from wshard.recordable import RecordedChannel, StepLayout

_log = logging.getLogger("wshard")

# The thread gathers for so long before it writes: each time it comes up, somebody's step takes longer.
_GATHER_SECONDS: Final = 0.005
# So many buffers that wait are a reason to go on at once.
_ENOUGH: Final = 4
# What is written before buffers are given back, unless a quarter of all is more: a recorder that waits for
# one must not wait for all.
_LARGEST_WRITE: Final = 4 << 20
SYNC_SECONDS: Final = 1.0
_SHORTEST_WAIT: Final = 0.001


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
        roller: opens the next journal when one is full; None for one of any size.
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
        roller: Roller | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.journal = journal
        """That is written now."""
        self.failure: BaseException | None = None
        """Why nothing can be recorded any more."""
        self.tracks: list[Track] = []
        self.steps: Track | None = None
        """The one that is filled step by step, once it is known."""
        self._roller = roller
        self._flush_seconds = flush_seconds
        self._fsync = fsync
        self._overflow = overflow
        self._largest_write = max(_LARGEST_WRITE, buffer_bytes // 4)
        self._clock = clock
        self._ready: SimpleQueue[Handed] = SimpleQueue()
        self._hurry = threading.Event()
        self._freed = threading.Condition()
        self._pipeline = Pipeline()
        self._told: set[RecordedChannel] = set()
        """Channels whose filters this journal knows."""
        self._synced = clock()
        self._is_unsynced = False
        self._dropped_before = 0
        self._dropped_in_earlier: dict[str, int] = {}
        """By block, in the journals before this one."""
        self._thread = threading.Thread(target=self._write, name="wshard recorder", daemon=True)
        _watch(self)
        self._thread.start()

    # --- what the one who records calls

    def record_step(
        self,
        track: Track,
        layout: StepLayout,
        values: Mapping[str, Any],
        besides: tuple[Any, ...],
        time_ns: int | None,
    ) -> bool:
        """Puts one step into the track's buffer, all of it or nothing; returns whether there was room.

        Raises if anything does not fit: values are checked while they are copied, into a place that counts
        when all are there.
        """
        if self.failure is not None:
            self.raise_failure()
        with track.lock:
            if time_ns is not None:
                self._check_time(track, time_ns)
            buffer = track.current
            if buffer is None or buffer.count == track.steps:
                layout.check(values, besides)  # or a bad step could wait, or be dropped
                buffer = self._room(track)
                if buffer is None:
                    return False
            layout.store(values, besides, buffer.places[buffer.count])
            self._count(track, buffer, time_ns)
        return True

    def record(self, track: Track, values: Iterable[Any], time_ns: int) -> bool:
        """Puts one entry of each channel into the track's buffer; returns whether there was room.

        The values must fit: they were checked.
        """
        if self.failure is not None:
            self.raise_failure()
        with track.lock:
            self._check_time(track, time_ns)
            buffer = self._room(track)
            if buffer is None:
                return False
            for place, value in zip(buffer.places[buffer.count], values, strict=True):
                place[...] = value
            self._count(track, buffer, time_ns)
        return True

    def _check_time(self, track: Track, time_ns: int) -> None:
        last = track.last_time
        if last is not None and time_ns < last:
            raise InvalidArgument(
                "time runs backwards",
                path=self.journal.path,
                entry=track.channels[-1].block,
                expected=f"at least {last}",
                found=time_ns,
            )

    def _room(self, track: Track) -> Buffer | None:
        """The buffer that the next entries go into; None if they are dropped. The track's lock is held."""
        buffer = track.current
        if buffer is not None:
            if buffer.count < track.steps:
                return buffer
            self._hand_over(track)  # an interrupt came in between
        buffer = self._take(track)
        if buffer is None:
            track.dropped += 1
            return None
        buffer.count = 0
        buffer.since = self._clock()
        track.current = buffer
        return buffer

    def _count(self, track: Track, buffer: Buffer, time_ns: int | None) -> None:
        """What was put into the next place of a buffer is recorded."""
        track.last_time = time_ns
        track.written += 1
        buffer.count += 1
        if buffer.count == track.steps:
            self._hand_over(track)

    def _take(self, track: Track) -> Buffer | None:
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
        if track.outgoing is not None:
            # An interrupt came in between, so that nobody knows whether it was handed over.
            if track.current is track.outgoing.buffer:
                track.current = None
            self._ready.put(track.outgoing)
            track.outgoing = None
        buffer = track.current
        if buffer is not None and buffer.count:  # a step that did not fit may have been its first
            handed = Handed(buffer.runs(), track, buffer)
            track.outgoing = handed
            track.current = None
            self._ready.put(handed)
            track.outgoing = None

    def note(self, fields: dict[str, Any]) -> None:
        """Writes a note behind everything that was handed over before."""
        self.raise_failure()
        self._ready.put(Handed(note=fields))

    def declare(self, track: Track, rows: list[dict[str, Any]]) -> None:
        """Tells the journal of channels that are filled step by step; once, before the first step."""
        if self._roller is not None:
            self._roller.declare(rows)
        self.note({"channels": rows})
        self.tracks.append(track)
        self.steps = track

    def record_last(self, values: Iterable[tuple[RecordedChannel, NDArray[Any]]]) -> None:
        """Records one entry more of some channels, behind all steps; `flush` comes first."""
        runs = []
        for channel, value in values:
            entry = np.array(value, channel.stored, order="C")
            content = entry.reshape(-1).view(np.uint8).data
            runs.append(Run.of(channel, 1, content))
        self.raise_failure()
        self._ready.put(Handed(ends_steps=True))
        self._ready.put(Handed(runs))

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
        self._ready.put(Handed(reached=reached))
        self._hurry.set()
        if self._thread.is_alive():
            reached.wait()

    def stop(self) -> None:
        """Ends the thread; what was not handed over is forgotten. The journal stays open."""
        if self._thread.is_alive():
            self._ready.put(Handed(is_last=True))
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
        try:
            while not self._write_next():
                pass
        finally:
            self._pipeline.stop()

    def _write_next(self) -> bool:
        """Takes in what there is, and writes what is packed; returns whether that was the last."""
        for handed in self._next():
            if handed.is_first():
                try:
                    is_vain = self.failure is not None
                    self._pipeline.take(handed._replace(runs=()) if is_vain else handed)
                except BaseException as error:  # noqa: BLE001 - handed to whoever records next
                    self.failure = error
        pipeline = self._pipeline
        batch = pipeline.next_packed() if self.failure is None else pipeline.give_up()
        if self.failure is None:
            try:
                self._write_batch(batch)
                self._sync_if_due()
            except BaseException as error:  # noqa: BLE001 - handed to whoever records next
                self.failure = error
        with self._freed:
            for handed, _ in batch:
                if handed.track is not None and handed.buffer is not None:
                    handed.track.free.append(handed.buffer)
            self._freed.notify_all()
        for handed, _ in batch:
            if handed.reached is not None:
                handed.reached.set()
            if handed.is_last:
                return True
        return False

    def _next(self) -> list[Handed]:
        """What there is to write: full buffers, or those that have waited long enough.

        Waits for it, unless there is other work.
        """
        found: list[Handed] = []
        if not self._pipeline.is_busy:
            with suppress(Empty):
                found.append(self._ready.get(timeout=self._time_left()))
                if self._ready.qsize() < _ENOUGH:
                    self._hurry.wait(_GATHER_SECONDS)
                self._hurry.clear()
        self._hand_over_due()
        size = sum(handed.size for handed in found)
        while size < self._largest_write and not (found and found[-1].is_last):
            try:
                handed = self._ready.get_nowait()
            except Empty:
                break
            found.append(handed)
            size += handed.size
        return found

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
            self._ready.put(Handed(tells_dropped=True))

    def _time_left(self) -> float:
        """Until the next buffer must be written, or the journal synced."""
        now = self._clock()
        left = self._flush_seconds
        for track in self.tracks:
            buffer = track.current
            if buffer is not None and buffer.count:
                left = min(left, buffer.since + self._flush_seconds - now)
        if self._is_unsynced:
            left = min(left, self._synced + SYNC_SECONDS - now)
        return max(left, _SHORTEST_WAIT)

    def _write_batch(self, batch: Sequence[Taken]) -> None:
        pieces: list[bytes | memoryview] = []
        size = self.journal.position
        for taken in batch:
            handed = taken.handed
            are_steps = handed.track is not None and handed.track is self.steps
            for runs in self._fitting(taken.packed(), are_steps):
                more = sum(HEAD_SIZE + len(packed.stored) for packed in runs)
                if handed.track is not None and self._roller is not None:
                    if self._roller.is_due(runs, size + more, are_steps=are_steps):
                        self._append(pieces)
                        pieces = []
                        self._roll(self._roller)
                        size = self.journal.position
                    self._roller.count(runs, are_steps=are_steps)
                size += more
                for run in runs:
                    self._put(run, pieces)
            note = self._note(handed)
            if note is not None:
                pieces += (self.journal.text_head(Kind.NOTE, note), note)
        self._append(pieces)

    def _put(self, packed: Packed, pieces: list[bytes | memoryview]) -> None:
        """Adds a run to what is appended next; before the first of a channel, its filters."""
        run, codec, stored, stored_crc32c, content_crc32c = packed
        channel, journal = run.channel, self.journal
        filters = self._pipeline.plans[channel].filters
        if filters is not None and channel not in self._told:
            self._told.add(channel)
            told = canonical({"filters": {channel.block: filters.to_fields()}})
            pieces += (journal.text_head(Kind.NOTE, told), told)
        sizes, checksums = (len(stored), len(run.content)), (stored_crc32c, content_crc32c)
        head = journal.head(Kind.RUN, codec, channel.number, run.entries, sizes, checksums)
        pieces += (head, stored)

    def _append(self, pieces: Sequence[bytes | memoryview]) -> None:
        if pieces:
            self.journal.append(pieces)
            self._is_unsynced = True

    def _fitting(self, packed: list[Packed], are_steps: bool) -> Iterator[list[Packed]]:
        """The same, parted where a file has its last step."""
        roller = self._roller
        while roller is not None and roller.max_steps is not None and are_steps and packed:
            room = roller.room() or roller.max_steps
            if packed[0].run.entries <= room:
                break
            parts = [each.run.parted(room) for each in packed]
            yield [self._pipeline.again(first) for first, _ in parts]
            packed = [self._pipeline.again(rest) for _, rest in parts]
        yield packed

    def _roll(self, roller: Roller) -> None:
        """Goes on in the next journal."""
        if self._fsync == "always" and self._is_unsynced:
            self.journal.sync()
        following = roller.next_journal(self.journal, self.dropped_here)
        if following is not self.journal:
            self.journal = following
            self._told.clear()
            self._dropped_in_earlier = self.dropped

    def _note(self, handed: Handed) -> bytes | None:
        """What a note says, in the file that it goes into."""
        note, roller = handed.note, self._roller
        if handed.tells_dropped:
            note = {"dropped": self.dropped_here}
        elif handed.ends_steps:
            steps = 0 if self.steps is None else self.steps.written
            note = {"length_T": steps - (0 if roller is None else roller.first_step)}
            if roller is not None:
                roller.end()
        elif note is not None and roller is not None:
            if "interval" in note:
                roller.keep(note)
            elif "channels" in note:
                roller.declared(note["channels"])
        return None if note is None else canonical(note)

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

    @property
    def dropped_here(self) -> dict[str, int]:
        """The same, since the journal that is written now was begun."""
        earlier = self._dropped_in_earlier
        since = {block: count - earlier.get(block, 0) for block, count in self.dropped.items()}
        return {block: count for block, count in since.items() if count}

    def leave_to_parent(self) -> None:
        """In a forked child: the recording is not ours, nor are locks that its threads may hold."""
        if self.failure is None:
            self.failure = Closed(
                "the recording belongs to the process that began it", path=self.journal.path
            )
        self.journal.close()  # or the lock would outlive the parent
        if self._roller is not None:
            self._roller.finisher.close()


def io_failure(error: OSError, path: str) -> ShardIOError:
    """A failure of the disk, with what to do about the recording."""
    failure = ShardIOError.wrap(error, "cannot record", path)
    safe = f"what was flushed is safe; bring it back with: wshard recover {path}"
    failure.hint = f"{failure.hint}; {safe}" if failure.hint else safe
    return failure


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
