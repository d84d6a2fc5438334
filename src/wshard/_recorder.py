"""From steps to the journal: the recording thread fills buffers, a writing thread writes them.

A full buffer goes through a queue to the writing thread. That takes the buffers that wait, compresses them, on all
processors if there are several, writes them in order, and gives them back. The recording thread waits for nothing but
a free buffer.

Both threads compete for Python's GIL: a thread that releases it beside a busy one waits up to 5 ms to get it back.
So the recording thread computes the checksums of raw runs when it hands a buffer over, and the writing thread
needs little more for them than one system call for many.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec
from shard_format.codecs import crc32c
from shard_format.errors import Closed, InvalidArgument, ShardError, ShardIOError
from shard_format.parallel import available_threads, map_in_order
from wshard._journal import FrameKind
from wshard._record_buffers import (
    RAW,
    ChannelRun,
    RunEncoding,
    WriteRequest,
    choose_encoding,
    encode,
    fill_runs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard._channel_def import RecordedChannel
    from wshard._file_roller import FileRoller
    from wshard._journal import JournalWriter
    from wshard._record_buffers import ChannelGroup, EncodedRun, StepBuffer, StreamOptions

_log = logging.getLogger("wshard")

# How long the writing thread gathers buffers before it writes: whenever it runs, some step takes longer.
_GATHER_SECONDS: Final = 0.005
# With this many buffers waiting it does not gather.
_ENOUGH: Final = 4
# How much it writes before it gives buffers back, or half of all if that is more.
_LARGEST_WRITE: Final = 4 << 20
SYNC_SECONDS: Final = 1.0
_SHORTEST_WAIT: Final = 0.001
# Smaller runs are compressed by the writing thread alone: starting another one costs more.
_SMALLEST_SUBMITTED: Final = 1 << 16


class Recorder:
    """Writes what groups of channels are filled with, on a thread of its own.

    Any number of threads may record. In a forked child the recorder is closed. Without a `roller`, which opens the next
    journal when one is full, the recording stays in one of any size.

    Owns: the thread, and the end of the journal, which has a start frame.
    """

    def __init__(
        self,
        journal: JournalWriter,
        options: StreamOptions,
        roller: FileRoller | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.journal = journal
        """The journal that is written now."""
        self.failure: BaseException | None = None
        """Why nothing can be recorded any more."""
        self.groups: list[ChannelGroup] = []
        self.steps: ChannelGroup | None = None
        """The group that is filled step by step, once it is known."""
        self._roller = roller
        self._options = options
        self._largest_write = max(_LARGEST_WRITE, options.buffer_bytes // 2)
        self._clock = clock
        self._queue: SimpleQueue[WriteRequest] = SimpleQueue()
        self._hurry = threading.Event()
        self._freed = threading.Condition()
        self._encodings: dict[RecordedChannel, RunEncoding] = {}
        self._threads = available_threads()
        self._announced: set[RecordedChannel] = set()
        """Channels whose filters this journal has been told."""
        self._item_counts: dict[RecordedChannel, int] = {}
        """Items of each ragged or text channel in this journal."""
        self.durable_steps = 0
        """Steps that are in journals, and synced if `fsync` is `"always"`."""
        self._synced = clock()
        self._is_unsynced = False
        self._dropped_before = 0
        self._dropped_in_earlier: dict[str, int] = {}
        """Dropped entries by block, in the journals before this one."""
        self._thread = threading.Thread(target=self._serve, name="wshard recorder", daemon=True)
        _watch(self)
        self._thread.start()

    # --- called by the recording threads

    def record(
        self,
        group: ChannelGroup,
        values: Mapping[str, Any],
        extras: Sequence[Any],
        time_ns: int | None,
    ) -> bool:
        """Puts one step into the group's buffer, all of it or nothing; returns whether there was room.

        Raises if anything does not fit. Values are checked while they are copied to a place that counts only
        when all are there.
        """
        if self.failure is not None:
            self.raise_failure()
        with group.lock:
            last = group.last_time
            if time_ns is not None and last is not None and time_ns < last:
                raise InvalidArgument(
                    "time runs backwards",
                    path=self.journal.path,
                    entry=group.channels[-1].block,
                    expected=f"at least {last}",
                    found=time_ns,
                )
            buffer = group.current
            if buffer is None or buffer.count == group.steps:
                group.schema.check(values, extras)  # before a bad step waits, or is dropped
                buffer = self._room(group)
                if buffer is None:
                    return False
            group.schema.store(values, extras, buffer.places[buffer.count])
            group.last_time = time_ns
            group.written += 1
            buffer.add_step()
            if group.is_full(buffer):
                self._hand_over(group)
        return True

    def _room(self, group: ChannelGroup) -> StepBuffer | None:
        """An empty buffer for the next entries; None if they are dropped. Hold the group's lock."""
        if group.current is not None:
            self._hand_over(group)  # an interrupt has prevented it before
        buffer = self._take(group)
        if buffer is None:
            group.dropped += 1
            return None
        buffer.clear()
        buffer.since = self._clock()
        group.current = buffer
        return buffer

    def _take(self, group: ChannelGroup) -> StepBuffer | None:
        buffer = group.take()
        if buffer is not None:
            return buffer
        self._hurry.set()
        if self._options.overflow == "drop":
            return None
        if self._options.overflow == "error":
            raise ShardIOError(
                "the disk cannot keep up with the recording",
                path=self.journal.path,
                hint="raise buffer_bytes, lower the compression, or choose overflow='block' or 'drop'",
            )
        with self._freed:
            while (buffer := group.take()) is None:
                self._freed.wait()
        self.raise_failure()  # a thread that cannot write still gives buffers back
        return buffer

    def _hand_over(self, group: ChannelGroup) -> None:
        """Gives the current buffer to the writing thread. Hold the group's lock."""
        if group.outgoing is not None:
            # An interrupt came in between; the request may be in the queue or not.
            if group.current is group.outgoing.buffer:
                group.current = None
            self._queue.put(group.outgoing)
            group.outgoing = None
        buffer = group.current
        if buffer is not None and buffer.count:  # 0 if its first step did not fit
            request = WriteRequest(buffer.runs(), group, buffer)
            group.outgoing = request
            group.current = None
            self._queue.put(request)
            group.outgoing = None

    def note(self, fields: dict[str, Any]) -> None:
        """Writes a note behind everything that was handed over before."""
        self.raise_failure()
        self._queue.put(WriteRequest(note=fields))

    def declare(self, group: ChannelGroup, rows: list[dict[str, Any]]) -> None:
        """Tells the journal which channels every step has; once, before the first step."""
        if self._roller is not None:
            self._roller.declare(rows)
        self.note({"channels": rows})
        self.groups.append(group)
        self.steps = group

    def extend(
        self, group: ChannelGroup, key: str, channel: RecordedChannel, fill: NDArray[Any]
    ) -> None:
        """Adds a channel to the steps from now on; the steps before get `fill`."""
        self.raise_failure()
        if self._roller is not None:
            self._roller.declare(channel.rows)
        with group.lock:
            self._hand_over(group)
            schema, steps = group.schema.extended(key, channel), group.written
            try:
                self._queue.put(WriteRequest(note={"channels": channel.rows, "filled": steps}))
                for run in fill_runs(channel, fill, steps):
                    self._queue.put(WriteRequest([run]))
                group.use(schema)
            except BaseException:
                # An interrupt. Steps without the channel would be cut, because the journal may know it by now.
                self.failure = Closed(
                    "the recording has ended: adding a channel was interrupted",
                    path=self.journal.path,
                    entry=channel.block,
                )
                raise

    def record_last(self, values: Iterable[tuple[RecordedChannel, NDArray[Any]]]) -> None:
        """Records one more entry of some channels, behind all steps. Call `flush` first."""
        runs = []
        for channel, value in values:
            entry = np.array(value, channel.stored, order="C")
            if channel.is_ragged:
                runs.append(ChannelRun.of_entries(channel, [entry.tobytes()]))
            else:
                runs.append(ChannelRun.of(channel, 1, entry.reshape(-1).view(np.uint8).data))
        self.raise_failure()
        self._queue.put(WriteRequest(ends_steps=True))
        self._queue.put(WriteRequest(runs))

    def flush(self) -> None:
        """Returns when everything recorded so far is in the journal."""
        self.raise_failure()
        for group in self.groups:
            with group.lock:
                self._hand_over(group)
        self.settle()
        self.raise_failure()

    def settle(self) -> None:
        """Returns when the writing thread has served the requests made so far."""
        served = threading.Event()
        self._queue.put(WriteRequest(served=served))
        self._hurry.set()
        if self._thread.is_alive():
            served.wait()

    def stop(self) -> None:
        """Ends the thread; drops what was not handed over. The journal stays open."""
        if self._thread.is_alive():
            self._queue.put(WriteRequest(is_last=True))
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

    # --- the writing thread

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            batch = self._receive()
            self._try(self._write_batch, batch)
            self._try(self._sync_if_due)
            if self.failure is None:
                self.durable_steps += sum(
                    request.buffer.count
                    for request in batch
                    if request.group is self.steps and request.buffer is not None
                )
            with self._freed:
                for request in batch:
                    if request.group is not None and request.buffer is not None:
                        request.group.give_back(request.buffer)
                self._freed.notify_all()
            for request in batch:
                if request.served is not None:
                    request.served.set()
                is_over |= request.is_last

    def _try(self, work: Callable[..., None], *arguments: object) -> None:
        """Does a part of the work, unless an earlier part has failed."""
        if self.failure is None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised in the recording threads
                self.failure = error

    def _receive(self) -> list[WriteRequest]:
        """The requests that are there; waits for the first, and a little for more."""
        found: list[WriteRequest] = []
        with suppress(Empty):
            found.append(self._queue.get(timeout=self._time_left()))
            if self._queue.qsize() < _ENOUGH:
                self._hurry.wait(_GATHER_SECONDS)
            self._hurry.clear()
        self._hand_over_due()
        size = sum(request.nbytes for request in found)
        with suppress(Empty):
            while size < self._largest_write and not (found and found[-1].is_last):
                found.append(self._queue.get_nowait())
                size += found[-1].nbytes
        once = [request for request in dict.fromkeys(found) if not request.is_taken]
        for request in once:
            request.is_taken = True
        return once

    def _hand_over_due(self) -> None:
        """Hands over the buffers that have waited long enough."""
        now = self._clock()
        for group in self.groups:
            buffer = group.current
            is_due = buffer is not None and now - buffer.since >= self._options.flush_seconds
            # The holder of the lock may be waiting for us; the next round is early enough.
            if is_due and group.lock.acquire(blocking=False):
                try:
                    self._hand_over(group)
                finally:
                    group.lock.release()
        dropped = sum(group.dropped for group in self.groups)
        if dropped != self._dropped_before:
            self._dropped_before = dropped
            self._queue.put(WriteRequest(counts_dropped=True))

    def _time_left(self) -> float:
        """Seconds until the next buffer must be written, or the journal synced."""
        now = self._clock()
        left = self._options.flush_seconds
        for group in self.groups:
            buffer = group.current
            if buffer is not None and buffer.count:
                left = min(left, buffer.since + self._options.flush_seconds - now)
        if self._is_unsynced:
            left = min(left, self._synced + SYNC_SECONDS - now)
        return max(left, _SHORTEST_WAIT)

    # --- encoding

    def _encoded(self, batch: Sequence[WriteRequest]) -> Iterator[list[EncodedRun]]:
        """The runs of each request as they are stored; several large ones are compressed on all processors."""
        runs = [run for request in batch for run in request.runs]
        large = 0
        for run in runs:
            encoding = self._encodings.get(run.channel)
            if not run.content:
                continue  # of entries without items, which tell nothing
            if encoding is None:
                encoding = self._encodings[run.channel] = choose_encoding(run)
                run.channel.level = encoding.level
            is_changed = encoding.level is not None or run.channel.camera is not None
            if is_changed and len(run.content) >= _SMALLEST_SUBMITTED:
                large += 1
        # A single buffer leaves the other processors to the recording threads.
        threads = self._threads if large > 1 and len(batch) > 1 else 1
        encoded = iter(map_in_order(runs, self._encode, threads))
        return (list(islice(encoded, len(request.runs))) for request in batch)

    def _encode(self, run: ChannelRun) -> EncodedRun:
        return encode(run, self._encodings.get(run.channel, RAW))

    # --- writing

    def _write_batch(self, batch: Sequence[WriteRequest]) -> None:
        pieces: list[bytes | memoryview] = []
        size = self.journal.position
        for request, encoded in zip(batch, self._encoded(batch), strict=True):
            are_steps = request.group is not None and request.group is self.steps
            for runs in self._fitting(encoded, are_steps):
                more = sum(run.nbytes for run in runs)
                if request.group is not None and self._roller is not None:
                    if self._roller.is_due(runs, size + more, are_steps=are_steps):
                        self._append(pieces)
                        pieces = []
                        self._roll(self._roller)
                        size = self.journal.position
                    self._roller.count(runs, are_steps=are_steps)
                size += more
                for run in runs:
                    pieces += self._frames_of(run)
            note = self._note(request)
            if note is not None:
                pieces += self.journal.text_frame(FrameKind.NOTE, note)
        self._append(pieces)

    def _frames_of(self, encoded: EncodedRun) -> Iterator[bytes | memoryview]:
        """A run as a frame; before the first run of a channel a note with its filters."""
        run, codec, stored, stored_crc32c, content_crc32c = encoded
        channel, journal = run.channel, self.journal
        filters = self._encodings.get(channel, RAW).filters
        if filters is not None and channel not in self._announced:
            self._announced.add(channel)
            note = {"filters": {channel.block: filters.to_fields()}}
            yield from journal.text_frame(FrameKind.NOTE, note)
        if run.content:
            yield journal.head(
                *(FrameKind.RUN, codec, channel.number, len(run.content) // channel.step_bytes),
                sizes=(len(stored), len(run.content)),
                checksums=(stored_crc32c, content_crc32c),
            )
            yield stored
        if run.sizes is not None:
            yield from self._offsets_frame(channel, run.sizes)
        if run.measured is not None:
            measured = {"measured": {channel.block: run.measured}}
            yield from journal.text_frame(FrameKind.NOTE, measured)

    def _offsets_frame(
        self, channel: RecordedChannel, sizes: NDArray[np.int64]
    ) -> Iterator[bytes | memoryview]:
        """Where the entries end whose items were written (J-RAG)."""
        first = self._item_counts.get(channel)
        offsets = (first or 0) + np.cumsum(np.concatenate(([0] if first is None else [], sizes)))
        content = offsets.astype("<i8").tobytes()
        self._item_counts[channel] = int(offsets[-1])
        size, checksum = len(content), crc32c(content)
        yield self.journal.head(
            *(FrameKind.RUN, Codec.NONE, channel.number + 1, len(offsets)),
            sizes=(size, size),
            checksums=(checksum, checksum),
        )
        yield content

    def _append(self, pieces: Sequence[bytes | memoryview]) -> None:
        if pieces:
            self.journal.append(pieces)
            self._is_unsynced = True

    def _fitting(self, runs: list[EncodedRun], are_steps: bool) -> Iterator[list[EncodedRun]]:
        """The same runs, split where a file reaches its last step."""
        roller = self._roller
        while roller is not None and roller.max_steps is not None and are_steps and runs:
            room = roller.room() or roller.max_steps
            if runs[0].run.entries <= room:
                break
            halves = [each.run.split(room) for each in runs]
            yield [self._encode(first) for first, _ in halves]
            runs = [self._encode(rest) for _, rest in halves]
        yield runs

    def _roll(self, roller: FileRoller) -> None:
        """Continues in the next journal."""
        if self._options.fsync == "always" and self._is_unsynced:
            self.journal.sync()
        following = roller.next_journal(self.journal, self.dropped_here)
        if following is not self.journal:
            self.journal = following
            self._announced.clear()
            self._item_counts.clear()
            self._dropped_in_earlier = self.dropped

    def _note(self, request: WriteRequest) -> dict[str, Any] | None:
        """What a note says in the file that it goes into."""
        note, roller = request.note, self._roller
        if request.counts_dropped:
            return {"dropped": self.dropped_here}
        if request.ends_steps:
            steps = 0 if self.steps is None else self.steps.written
            if roller is None:
                return {"length_T": steps}
            roller.is_over = True
            return {"length_T": steps - roller.first_step}
        if note is not None and roller is not None:
            if "interval" in note:
                roller.keep(note)
            elif "channels" in note:
                roller.declared(note["channels"])
        return note

    def _sync_if_due(self) -> None:
        now = self._clock()
        if self._is_unsynced and self._options.fsync != "never":
            if self._options.fsync == "interval" and now - self._synced < SYNC_SECONDS:
                return
            self.journal.sync()
            self._synced = now
        self._is_unsynced = False

    # --- state

    @property
    def dropped(self) -> dict[str, int]:
        """Entries that were dropped because the disk could not keep up, by block."""
        return {
            channel.block: group.dropped
            for group in self.groups
            if group.dropped
            for channel in group.channels
        }

    @property
    def dropped_here(self) -> dict[str, int]:
        """The same, since the current journal was opened."""
        earlier = self._dropped_in_earlier
        since = {block: count - earlier.get(block, 0) for block, count in self.dropped.items()}
        return {block: count for block, count in since.items() if count}

    def leave_to_parent(self) -> None:
        """In a forked child: the recording belongs to the parent, and locks may be held by its threads."""
        if self.failure is None:
            self.failure = Closed(
                "the recording belongs to the process that started it", path=self.journal.path
            )
        self.journal.close()  # otherwise the file lock would outlive the parent
        if self._roller is not None:
            self._roller.finisher.close()


def io_failure(error: OSError, path: str) -> ShardIOError:
    """A failure of the disk, and what to do about the recording."""
    failure = ShardIOError.wrap(error, "cannot record", path)
    safe = f"what was flushed is safe; recover it with: wshard recover {path}"
    failure.hint = f"{failure.hint}; {safe}" if failure.hint else safe
    return failure


# --- the end of the process, and its children

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
    """Writes all steps to the journals when a program ends without finishing its recordings."""
    for recorder in list(_alive):
        if recorder.failure is None:
            try:
                recorder.flush()
            except (OSError, ShardError) as error:
                _log.warning("%s", error)
            else:
                _log.warning("the recording is not finished: %s", recorder.journal.path)
