"""Recordings that were not finished: read while they grow, or brought back after a crash (spec/journal.md)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from shard_format.errors import ShardIOError
from wshard.episode import Episode
from wshard.joining import join
from wshard.journal import not_begun
from wshard.journaled import Journal, save_recorded
from wshard.reader import load_wshard
from wshard.recording_files import RecordingFiles, with_metadata
from wshard.recovering import RecoveredChunk, Recovery, recover

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "PartialEpisode",
    "RecoveredChunk",
    "Recovery",
    "open_partial",
    "recover",
    "save_recorded",
]


class _Followed:
    """A recording from its first file to the one that is written now.

    Owns: all of them, open. A journal that is dropped is closed with the last channel that reads it.
    """

    def __init__(self, files: RecordingFiles) -> None:
        self._files = files
        self._parts: list[Journal | Episode] = []
        """Journals, and the chunks that are finished."""

    def read(self) -> bool:
        """Takes in what has appeared since the last time; returns whether there was anything."""
        is_new = False
        while True:
            last = self._parts[-1] if self._parts else None
            if isinstance(last, Journal):
                is_new |= last.read() > 0
                if not last.continues:
                    break
            following = self._open(len(self._parts))
            if following is None:
                break
            self._parts.append(following)
            is_new = True
        for index, part in enumerate(self._parts[:-1]):
            # Its space on the disk is free when nobody has it open any more.
            if isinstance(part, Journal) and self._files.has_chunk(index):
                self._parts[index] = self._chunk(index)
        return is_new

    def _open(self, index: int) -> Journal | Episode | None:
        """The next part, if it is there by now."""
        try:
            journal = Journal(self._files.journal(index))
        except ShardIOError as error:
            if error.errno != errno.ENOENT:
                raise
            # A chunk appears before its journal goes.
            is_there = self._files.has_chunk(index) and (index or self._files.is_rolled)
            if not is_there:
                if index:
                    return None
                raise
            return self._chunk(index)
        journal.read()
        if journal.fields is not None:
            return journal
        journal.reader.close()
        if index:
            return None  # it is being begun
        if self._files.is_rolled:
            return self._chunk(index)  # an empty file stands where a journal was
        raise not_begun(journal.reader, "nothing was recorded yet")

    def _chunk(self, index: int) -> Episode:
        return load_wshard(self._files.names.chunk(index), sidecars=False)

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will follow."""
        last = self._parts[-1]
        if isinstance(last, Journal):
            return last.is_finished and not last.continues
        return not os.path.exists(self._files.journal(len(self._parts)))

    def episode(self) -> Episode:
        """The recording as it is by now, still lazy."""
        parts = [part.episode() if isinstance(part, Journal) else part for part in self._parts]
        if len(parts) == 1 and parts[0].chunk_index is None:
            return parts[0]
        episode = join(parts)
        episode.chunk_index = episode.timestep_range = None
        for part in parts[1:]:
            episode.metadata = with_metadata(episode.metadata, part.metadata)
        return episode

    def close(self) -> None:
        for part in self._parts:
            if isinstance(part, Journal):
                part.reader.close()
            else:
                part.close()


class PartialEpisode(Episode):
    """A recording that is not finished, as far as it is on the disk; `open_partial` gives it.

    Owns: its journals and finished chunks, open for reading.
    """

    _recording: _Followed

    def refresh(self) -> bool:
        """Takes in what was recorded since; returns whether there was anything. Reads nothing twice.

        Follows a recording into its next file. Channels are replaced: those that were taken out before stay
        as long as they were.
        """
        if not self._recording.read():
            return False
        self.__dict__.update(self._recording.episode().__dict__)
        return True

    @property
    def is_finished(self) -> bool:
        """Whether the recorder has come to its end, so that nothing more will follow."""
        return self._recording.is_finished

    def close(self) -> None:
        """Closes its files. Arrays that were handed out stay valid."""
        self._recording.close()

    def __enter__(self) -> Self:
        return self


def open_partial(path: str | os.PathLike[str]) -> PartialEpisode:
    """A recording that is not finished, as far as it is on the disk now; values are read when they are touched.

    The recorder may go on meanwhile: `refresh` takes in what it has added, in other files too.

    Args:
        path: the journal, `….partial`, or the name that the episode will have. Of a recording in several
            files any of them.
    """
    recording = _Followed(RecordingFiles.of(path))
    try:
        recording.read()
        episode = PartialEpisode.__new__(PartialEpisode)
        episode.__dict__.update(recording.episode().__dict__)
        episode._recording = recording
    except BaseException:
        recording.close()
        raise
    return episode
