"""When a recording goes on in another file, and what the next file must know of those before."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from shard_format import Codec
from shard_format._atomic import sync_folder
from shard_format._json import canonical
from shard_format.errors import InvalidArgument
from wshard._finishing import is_in_the_way
from wshard.journal import LARGEST_RUN, JournalWriter, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wshard._finishing import ChunkFinisher
    from wshard._packing import Packed
    from wshard.recordable import RecordedChannel
    from wshard.recording_files import RecordingFiles

_log = logging.getLogger("wshard")

LARGEST_ENTRY: Final = LARGEST_RUN
"""Bytes that readers decompress as one entry (S-CMP-2)."""
# From here on a compressed channel is full: what comes with the next steps must still fit.
_NEARLY_FULL: Final = LARGEST_ENTRY // 4 * 3

# What a finished file has beside what was recorded, for each step: its tick, `done`, the reward in f32.
_ADDED_BYTES: Final = 4 + 1 + 4


class Roller:
    """Counts what goes into a journal, and opens the next one when it is full.

    Its methods are called by the thread that writes, but for `declare`. A journal is full when the next steps
    would make it longer than the limits allow, or when a compressed channel is nearly as large as readers
    take. So every chunk starts with a step, unless the recording has none.

    Args:
        files: of the recording.
        start: what its first journal starts with.
        finisher: gets the journals that are full.
        max_steps: in one file.
        max_bytes: in one file.
        has_steps: whether there are channels that are recorded step by step.
        fsync: whether the next journal is synced before anything follows.
    """

    def __init__(
        self,
        files: RecordingFiles,
        start: Mapping[str, Any],
        finisher: ChunkFinisher,
        *,
        max_steps: int | None,
        max_bytes: int | None,
        has_steps: bool,
        fsync: bool,
    ) -> None:
        self.index = 0
        """Of the chunk that is recorded now."""
        self.first_step = 0
        """Of that chunk."""
        self.steps = 0
        """That the chunk has by now."""
        self.finisher = finisher
        self._files = files
        self._start = {**start, "channels": list(start["channels"])}
        self.max_steps = max_steps
        """In one file."""
        self._max_bytes = max_bytes
        self._has_steps = has_steps
        self._fsync = fsync
        self._sizes: dict[RecordedChannel, int] = {}
        """Bytes of content by channel."""
        self._notes: list[dict[str, Any]] = []
        """Labels that may reach beyond this chunk."""
        self._lock = threading.Lock()
        self._may_roll = not has_steps
        self._is_over = False

    # --- what the one who records calls

    def declare(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Holds the next roll back until the journal knows what every step is.

        Raises:
            InvalidArgument: chunks without these channels are finished.
        """
        with self._lock:
            if self.index and rows:
                raise InvalidArgument(
                    "steps begin when the recording has gone on to another file",
                    path=self._files.path,
                    hint="begin them before, or record without limits for files",
                )
            self._may_roll = False

    # --- the thread

    def declared(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The journal knows what every step is."""
        self._start["channels"] += rows
        self._has_steps = bool(rows)
        self._may_roll = True

    def room(self) -> int:
        """Steps that fit into the chunk, if their number is limited."""
        return max(0, (self.max_steps or 0) - self.steps)

    def is_due(self, runs: Sequence[Packed], size: int, *, are_steps: bool) -> bool:
        """Whether the next runs belong into another file.

        Args:
            runs: what comes next.
            size: bytes in the journal with them.
            are_steps: whether they are steps.
        """
        is_start = are_steps and self.steps > 0 if self._has_steps else bool(self._sizes)
        if not is_start or self._is_over:
            return False
        steps = self.steps + _steps(runs, are_steps)
        if self.max_steps is not None and steps > self.max_steps:
            return True
        if self._max_bytes is not None and size + steps * _ADDED_BYTES > self._max_bytes:
            return True
        if max(self._sizes.values(), default=0) >= _NEARLY_FULL:
            return True
        return any(
            self._sizes.get(run.channel, 0) + len(run.content) > LARGEST_ENTRY
            for run, codec, *_ in runs
            if codec is not Codec.NONE
        )

    def count(self, runs: Sequence[Packed], *, are_steps: bool) -> None:
        """Takes note of runs that go into the journal."""
        self.steps += _steps(runs, are_steps)
        for run, codec, *_ in runs:
            # A raw channel may be of any size.
            more = 0 if codec is Codec.NONE else len(run.content)
            self._sizes[run.channel] = self._sizes.get(run.channel, 0) + more

    def keep(self, label: dict[str, Any]) -> None:
        """Takes note of a label that goes into the journal."""
        self._notes.append(label)
        if len(self._notes) % 1000 == 0:  # or a recording of weeks would keep them all
            self._notes = self._reaching(self.first_step + self.steps)

    def _reaching(self, step: int) -> list[dict[str, Any]]:
        """The labels of steps from `step` on, without what they say of steps before."""
        found = []
        for note in self._notes:
            interval = note["interval"]
            if interval["end"] > step or interval["start"] >= step:
                start = max(interval["start"], step)
                found.append({**note, "interval": {**interval, "start": start}})
        return found

    def end(self) -> None:
        """No steps will follow: the recording ends in this file."""
        self._is_over = True

    def next_journal(self, journal: JournalWriter, dropped: Mapping[str, int]) -> JournalWriter:
        """Ends a journal and opens the one that comes after it.

        If that cannot be opened the recording goes on where it is, and does not try again.
        """
        with self._lock:
            if not self._may_roll or self.finisher.failure is not None:
                return journal
            try:
                following = self._open()
            except OSError as error:  # ours are too
                self._is_over = True
                _log.warning("the recording goes on in %s: %s", journal.path, error)
                return journal
            except InvalidArgument as error:
                self._is_over = True
                _log.warning("the recording goes on in %s: %s", journal.path, error)
                return journal
            end = {"continues": True, **({"dropped": dict(dropped)} if dropped else {})}
            try:
                journal.append_text(Kind.END, canonical(end))
            except BaseException:
                following.remove()
                raise
            self.index += 1
            self.first_step += self.steps
            self._notes = self._reaching(self.first_step)
        self.steps = 0
        self._sizes.clear()
        self.finisher.hand_over(journal)
        return following

    def _open(self) -> JournalWriter:
        index, first_step = self.index + 1, self.first_step + self.steps
        taken = is_in_the_way(self._files, index)
        if taken is not None:
            raise InvalidArgument("a file is in the way", path=taken)
        journal = JournalWriter(self._files.journal(index))
        if journal.old_size:
            journal.close()
            raise InvalidArgument("a file is in the way", path=journal.path)
        try:
            chunk = {"index": index, "first_step": first_step}
            start = canonical({**self._start, "chunk": chunk})
            pieces = [journal.text_head(Kind.START, start), start]
            for note in self._reaching(first_step):
                text = canonical(note)
                pieces += (journal.text_head(Kind.NOTE, text), text)
            journal.append(pieces)
            if self._fsync:
                journal.sync()
                sync_folder(os.path.dirname(os.path.realpath(journal.path)))
        except BaseException:
            journal.remove()
            raise
        return journal


def _steps(runs: Sequence[Packed], are_steps: bool) -> int:
    return runs[0].run.entries if runs and are_steps else 0
