"""Turning the journals of a recording into chunks, while the recording goes on in the next one."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from wshard.chunk_files import ManifestWriter
from wshard.journaled import save_recorded
from wshard.recording_files import with_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wshard.journal import JournalWriter
    from wshard.recording_files import RecordingFiles

_log = logging.getLogger("wshard")

# So many journals may wait to be finished. More mean that the disk does not keep up, as buffers will show.
_MOST_WAITING: Final = 8


class ChunkFinisher:
    """Makes chunks of journals that have ended, one after the other, on a thread of its own.

    A journal goes when its chunk is in the manifest. If the disk refuses, journals stay where they are until
    `finish_all` tries again.

    Owns: the journals that it was given, and the manifest.

    Args:
        files: of the recording.
        episode_id: of the recording.
        env_id: of the recording.
        fsync: whether chunks and manifests are synced.
    """

    def __init__(self, files: RecordingFiles, episode_id: str, env_id: str, *, fsync: bool) -> None:
        self.failure: BaseException | None = None
        """Why chunks are not finished any more."""
        self._files = files
        self._manifest = ManifestWriter(files.names, episode_id, env_id)
        self._fsync = fsync
        self._waiting: deque[JournalWriter] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def hand_over(self, journal: JournalWriter) -> None:
        """Takes a journal that has ended; waits while too many are not finished."""
        with self._changed:
            self._waiting.append(journal)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="wshard finisher", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
            while len(self._waiting) > _MOST_WAITING and self.failure is None:
                self._changed.wait()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_stopping:
                    self._changed.wait()
                if not self._waiting or self.failure is not None:
                    return
                journal = self._waiting[0]
            try:
                self._finish(journal)
            except BaseException as error:  # noqa: BLE001 - told to whoever ends the recording
                _log.warning("a chunk cannot be finished, its journal stays: %s", error)
                with self._changed:
                    self.failure = error
                    self._changed.notify_all()
                return

    def _finish(self, journal: JournalWriter) -> None:
        """The chunk appears, then the manifest that names it; then the journal goes (J-9)."""
        path = self._files.names.chunk(len(self._manifest))
        if self._fsync:
            journal.sync()  # copying may take a while
        episode = save_recorded(journal.path, path, fsync=self._fsync)
        self._add(path, episode.length, episode.metadata)
        journal.remove()
        with self._changed:
            self._waiting.popleft()
            self._changed.notify_all()

    def _add(self, path: str, length: int, metadata: Mapping[str, Any]) -> None:
        manifest = self._manifest
        before = manifest.metadata
        manifest.metadata = with_metadata(before or {}, metadata)
        manifest.add(path, length)
        try:
            manifest.write(fsync=self._fsync)
        except BaseException:
            manifest.take_back(length)
            manifest.metadata = before
            raise

    def stop(self) -> None:
        """Returns when the thread has finished what it could. Journals that are left stay."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def finish_all(self, last: JournalWriter) -> None:
        """Finishes everything, with the last chunk; raises what hinders it."""
        self.stop()
        self._waiting.append(last)
        while self._waiting:
            self._finish(self._waiting[0])

    def close(self) -> None:
        """Releases the journals that are left."""
        for journal in list(self._waiting):
            journal.close()

    def remove(self) -> None:
        """Gives the recording up: deletes all of it but the journal that is written now."""
        self.stop()
        for journal in list(self._waiting):
            journal.remove()
        self._files.remove_chunks()


def is_in_the_way(files: RecordingFiles, index: int) -> str | None:
    """A file that must not be replaced by the chunk, or by the manifest of the first; None if all is free."""
    wanted = [files.names.chunk(index)]
    if index == 1:
        wanted += [files.names.chunk(0), files.names.manifest]
    return next((path for path in wanted if os.path.lexists(path)), None)
