"""Recordings in several files: when to continue in another journal, and turning full journals into chunks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from shard_format import Codec
from shard_format.errors import InvalidArgument, ShardError
from wshard._chunk_manifest import ManifestWriter
from wshard._journal import LARGEST_RUN, FrameKind, JournalWriter
from wshard._journal_episode import save_journal
from wshard.overviews import write_overviews

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wshard._channel_def import RecordedChannel
    from wshard._folders import RecordingFiles
    from wshard._record_buffers import EncodedRun, StreamOptions

_log = logging.getLogger("wshard")

LARGEST_ENTRY: Final = LARGEST_RUN
"""The most bytes that readers decompress as one entry (S-CMP-2)."""
# A compressed channel of this size is full: what comes beside the next steps must still fit.
_NEARLY_FULL: Final = LARGEST_ENTRY // 4 * 3
# What a finished file adds for each step: its tick, `done`, the reward in f32.
_ADDED_BYTES: Final = 4 + 1 + 4
# With more journals waiting to be finished, recording waits: the disk does not keep up.
_MOST_WAITING: Final = 8


class FileRoller:
    """Counts what goes into a journal, and opens the next one when it is full.

    A journal is full when the next steps would exceed a limit, or when a compressed channel is nearly as large as
    readers accept. So every chunk starts with a step, unless the recording has none (`has_steps`). The writing thread
    calls the methods, except `declare`. `start` are the fields of the first start frame.
    """

    def __init__(
        self,
        files: RecordingFiles,
        start: Mapping[str, Any],
        finisher: ChunkFinisher,
        options: StreamOptions,
        has_steps: bool,
    ) -> None:
        self.index = 0
        """The chunk that is recorded now."""
        self.first_step = 0
        """The first step of that chunk."""
        self.finisher = finisher
        self.max_steps = options.max_steps_per_file
        self._steps = 0
        """Steps in the chunk so far."""
        self._files = files
        self._start = {**start, "channels": list(start["channels"])}
        self._max_bytes = options.max_bytes_per_file
        self._has_steps = has_steps
        self._is_synced = options.is_synced
        self._sizes: dict[RecordedChannel, int] = {}
        """Bytes of compressed content by channel. Raw channels may have any size and count as 0."""
        self._labels: list[dict[str, Any]] = []
        """Labels that may reach beyond this chunk."""
        self._lock = threading.Lock()
        self._may_roll = not has_steps
        self.is_over = False
        """Whether no more steps will come, or no other journal can be opened: the recording ends in this file."""

    def declare(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keeps the file from rolling until the journal knows which channels a step has.

        Raises:
            InvalidArgument: chunks without these channels are finished.
        """
        with self._lock:
            if self.index and rows:
                raise InvalidArgument(
                    "the first step comes after the recording has moved on to another file",
                    path=self._files.path,
                    hint="write a step earlier, or record without limits for files",
                )
            self._may_roll = False

    def declared(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The journal knows now which channels a step has."""
        self._start["channels"] += rows
        self._has_steps = bool(rows)
        self._may_roll = True

    def room(self) -> int:
        """How many more steps fit into the chunk, if their number is limited."""
        return max(0, (self.max_steps or 0) - self._steps)

    def is_due(self, runs: Sequence[EncodedRun], size: int, *, are_steps: bool) -> bool:
        """Whether the next runs belong into another file; `size` is that of the journal with these runs."""
        can_start = are_steps and self._steps > 0 if self._has_steps else bool(self._sizes)
        if not can_start or self.is_over:
            return False
        steps = self._steps + _steps_in(runs, are_steps)
        sizes = (self._sizes.get(e.run.channel, 0) + _compressed_bytes(e) for e in runs)
        return (
            (self.max_steps is not None and steps > self.max_steps)
            or (self._max_bytes is not None and size + steps * _ADDED_BYTES > self._max_bytes)
            or max(self._sizes.values(), default=0) >= _NEARLY_FULL
            or any(size > LARGEST_ENTRY for size in sizes)
        )

    def count(self, runs: Sequence[EncodedRun], *, are_steps: bool) -> None:
        """Counts runs that go into the journal."""
        self._steps += _steps_in(runs, are_steps)
        for encoded in runs:
            channel = encoded.run.channel
            self._sizes[channel] = self._sizes.get(channel, 0) + _compressed_bytes(encoded)

    def keep(self, label: dict[str, Any]) -> None:
        """Remembers a label, which later chunks may need too."""
        self._labels.append(label)
        if len(self._labels) % 1000 == 0:  # so that a recording of weeks does not keep them all
            self._labels = self._labels_from(self.first_step + self._steps)

    def _labels_from(self, step: int) -> list[dict[str, Any]]:
        """The labels that reach `step` or beyond, without the part before it."""
        found = []
        for label in self._labels:
            interval = label["interval"]
            if interval["end"] > step or interval["start"] >= step:
                start = max(interval["start"], step)
                found.append({**label, "interval": {**interval, "start": start}})
        return found

    def next_journal(self, journal: JournalWriter, dropped: Mapping[str, int]) -> JournalWriter:
        """Ends a journal and returns the next one.

        If that cannot be opened, the recording stays in the old one and does not try again.
        """
        with self._lock:
            if not self._may_roll or self.finisher.failure is not None:
                return journal
            try:
                following = self._open_next()
            except (OSError, InvalidArgument) as error:
                self.is_over = True
                _log.warning("the recording continues in %s: %s", journal.path, error)
                return journal
            end = {"continues": True, **({"dropped": dict(dropped)} if dropped else {})}
            try:
                journal.append(journal.text_frame(FrameKind.END, end))
            except BaseException:
                following.remove()
                raise
            self.index += 1
            self.first_step += self._steps
            self._labels = self._labels_from(self.first_step)
        self._steps = 0
        self._sizes.clear()
        self.finisher.hand_over(journal)
        return following

    def _open_next(self) -> JournalWriter:
        index, first_step = self.index + 1, self.first_step + self._steps
        taken = self._files.in_the_way_of(index)
        if taken is not None:
            raise InvalidArgument("a file is in the way", path=taken)
        journal = JournalWriter(self._files.journal(index))
        if journal.old_size:
            journal.close()
            raise InvalidArgument("a file is in the way", path=journal.path)
        try:
            chunk = {"index": index, "first_step": first_step}
            pieces = journal.text_frame(FrameKind.START, {**self._start, "chunk": chunk})
            for label in self._labels_from(first_step):
                pieces += journal.text_frame(FrameKind.NOTE, label)
            journal.append(pieces)
            if self._is_synced:
                journal.sync_with_name()
        except BaseException:
            journal.remove()
            raise
        return journal


def add_overviews(path: str, *, fsync: bool) -> None:
    """Writes the overview file of a finished episode or chunk, which is complete without it."""
    try:
        write_overviews(path, fsync=fsync)
    except (OSError, ShardError) as error:
        _log.warning("no overview of %s: %s", path, error)


def _steps_in(runs: Sequence[EncodedRun], are_steps: bool) -> int:
    return runs[0].run.entries if runs and are_steps else 0


def _compressed_bytes(encoded: EncodedRun) -> int:
    return 0 if encoded.codec is Codec.NONE else len(encoded.run.content)


class ChunkFinisher:
    """Turns full journals into chunks, one after the other, on a thread of its own.

    A journal is removed when the manifest names its chunk. If the disk refuses, journals stay where they are, and
    `finish_all` tries again.

    Owns: the journals that it was given, and the manifest.
    """

    def __init__(
        self, files: RecordingFiles, episode_id: str, env_id: str, options: StreamOptions
    ) -> None:
        self.failure: BaseException | None = None
        """Why no more chunks are finished."""
        self._files = files
        self._manifest = ManifestWriter(files.names, episode_id, env_id)
        self._fsync = options.is_synced
        self._has_overviews = options.overview
        self._waiting: deque[JournalWriter] = deque()
        self._removed = 0
        """Journals that were removed, each after its chunk was named."""
        self._executor = ThreadPoolExecutor(1, "wshard finisher")
        self._futures: deque[Future[None]] = deque()

    def hand_over(self, journal: JournalWriter) -> None:
        """Takes a full journal; waits while too many others are not finished."""
        self._waiting.append(journal)
        try:
            self._futures.append(self._executor.submit(self._finish_next))
        except RuntimeError as error:  # no more threads, or the interpreter is shutting down
            self.failure = error
        while len(self._futures) > _MOST_WAITING:
            self._futures.popleft().result()

    def _finish_next(self) -> None:
        if self.failure is None:
            try:
                self._finish(self._waiting[0])
            except BaseException as error:  # noqa: BLE001 - `finish_all` tries again and raises
                _log.warning("a chunk cannot be finished, its journal stays: %s", error)
                self.failure = error

    def _finish(self, journal: JournalWriter) -> None:
        """Writes the chunk, then the manifest that names it, then removes the journal (J-9); goes on where it failed."""
        if self._removed == len(self._manifest):
            self._write_chunk(journal)
        journal.remove()
        self._waiting.popleft()
        self._removed += 1
        if self._has_overviews:
            add_overviews(self._files.names.chunk(self._removed - 1), fsync=self._fsync)

    def _write_chunk(self, journal: JournalWriter) -> None:
        path = self._files.names.chunk(len(self._manifest))
        if self._fsync:
            journal.sync()  # copying may take a while
        episode = save_journal(journal.path, path, fsync=self._fsync)
        following = self._manifest.with_metadata(episode.metadata)
        following = following.with_chunk(path, episode.length)
        following.write(fsync=self._fsync)
        self._manifest = following

    def stop(self) -> None:
        """Returns when the thread has finished what it could. Other journals stay."""
        self._executor.shutdown()

    def finish_all(self, last: JournalWriter) -> None:
        """Finishes all chunks and the last one; raises what prevents it."""
        self.stop()
        self._waiting.append(last)
        while self._waiting:
            self._finish(self._waiting[0])

    def close(self) -> None:
        """Releases the journals that are left."""
        for journal in list(self._waiting):
            journal.close()

    def remove(self) -> None:
        """Deletes the recording, except the journal that is written now."""
        self.stop()
        for journal in list(self._waiting):
            journal.remove()
        self._files.remove_chunks()
