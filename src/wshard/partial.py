"""Recordings that were not finished: follow them while they grow, or recover them after a crash."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from shard_format import ShardReader
from shard_format.errors import (
    DATA_ERRORS,
    InvalidArgument,
    MissingFile,
    ShardError,
    ShardIOError,
)
from wshard._chunk_manifest import ChunkManifest, ManifestWriter, merge_metadata
from wshard._episode import Episode
from wshard._files import open_wshard, save_wshard
from wshard._folders import ChunkNames, RecordingFiles, find_recordings
from wshard._joining import join
from wshard._journal import PARTIAL_SUFFIX, JournalWriter, reason
from wshard._journal_episode import Journal
from wshard._reader import episode_of, keep_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shard_format import FileReference
    from wshard._record_buffers import StreamOptions

__all__ = [
    "PartialEpisode",
    "RecordingFiles",
    "RecoveredChunk",
    "Recovery",
    "find_recordings",
    "open_partial",
    "recover",
    "resolve_existing_partial",
    "state_of",
]

_log = logging.getLogger("wshard")

_NOTHING = "nothing can be recovered: the journal has no complete start"


# --- following a recording


class PartialEpisode(Episode):
    """A recording that is not finished, as far as it is on disk; `open_partial` returns it.

    Owns: its journals and finished chunks, open for reading. A journal that a finished chunk replaces is closed with
    the last channel that reads it.
    """

    __slots__ = ("_chosen", "_files", "_opened")

    def __init__(
        self,
        files: RecordingFiles,
        channels: Iterable[str] | None = None,
        lanes: Iterable[str] | None = None,
    ) -> None:
        self._files = files
        self._chosen = [
            names if names is None or isinstance(names, str) else list(names)
            for names in (channels, lanes)
        ]
        self._opened: list[Journal | Episode] = []
        """Journals and finished chunks, from the first to the one that is written now."""
        try:
            self._read()
            self._become_joined()
        except BaseException:
            self.close()
            raise

    def refresh(self) -> bool:
        """Reads what was recorded since the last call, also in further files; returns whether there was anything.

        Nothing is read twice. Channels are replaced; those that you have taken out before keep their length.
        """
        is_new = self._read()
        if is_new:
            self._become_joined()
        return is_new

    @property
    def is_finished(self) -> bool:
        """Whether the recorder has ended the recording, so that nothing more will follow."""
        last = self._opened[-1]
        if isinstance(last, Journal):
            return last.is_finished and not last.continues
        return not os.path.exists(self._files.journal(len(self._opened)))

    def close(self) -> None:
        """Closes its files. Arrays that you have read stay valid."""
        for part in self._opened:
            (part.reader if isinstance(part, Journal) else part).close()

    def _read(self) -> bool:
        """Reads what has appeared since the last call; returns whether there was anything."""
        is_new = False
        while True:
            last = self._opened[-1] if self._opened else None
            if isinstance(last, Journal):
                is_new |= last.read() > 0
                if not last.continues:
                    break
            following = self._open(len(self._opened))
            if following is None:
                break
            self._opened.append(following)
            is_new = True
        for index, part in enumerate(self._opened[:-1]):
            # The disk frees its space only when no reader has it open.
            if isinstance(part, Journal) and self._files.has_chunk(index):
                self._opened[index] = self._chunk(index)
        return is_new

    def _open(self, index: int) -> Journal | Episode | None:
        """The next part; None if it does not exist yet."""
        try:
            journal = Journal(self._files.journal(index))
        except ShardIOError as error:
            if error.errno != errno.ENOENT:
                raise
            # A chunk appears before its journal is removed.
            if self._files.has_chunk(index) and (index or self._files.is_rolled):
                return self._chunk(index)
            if index:
                return None
            raise
        journal.read()
        if journal.fields is not None:
            return journal
        journal.reader.close()
        if index:
            return None  # its recorder is just starting it
        if self._files.is_rolled:
            return self._chunk(index)  # an empty file is left where a journal was
        raise journal.reader.not_begun("nothing was recorded yet")

    def _chunk(self, index: int) -> Episode:
        return open_wshard(self._files.names.chunk(index), sidecars=False)

    def _become_joined(self) -> None:
        self.become(self._joined())
        if self._chosen != [None, None]:
            keep_only(self, *self._chosen)

    def _joined(self) -> Episode:
        """The recording so far; values are read when they are used."""
        parts = [part.episode() if isinstance(part, Journal) else part for part in self._opened]
        if len(parts) == 1 and parts[0].chunk_index is None:
            return parts[0]
        episode = join(parts)
        episode.chunk_index = episode.timestep_range = None
        for part in parts[1:]:
            episode.metadata = merge_metadata(episode.metadata, part.metadata)
        return episode


def open_partial(path: str | os.PathLike[str]) -> PartialEpisode:
    """Opens an unfinished recording, up to what is on disk now; values are read when you use them.

    The recorder may continue while you read: `refresh` reads what it has added.

    Args:
        path: the journal, `….partial`, or the name that the episode will have; any file of a recording in
            several files.
    """
    return PartialEpisode(RecordingFiles.of(path))


# --- recovering a recording


@dataclass(frozen=True, slots=True)
class RecoveredChunk:
    """A chunk of a recording that was recovered."""

    path: str
    """Its file."""
    steps: int
    """Its steps."""
    from_journal: bool
    """Whether it was made from a journal; False if it was finished before."""


@dataclass(slots=True)
class Recovery:
    """What was recovered from a recording that was not finished."""

    path: str
    """The journal, or the last one."""
    episode_id: str = ""
    """The episode."""
    steps: int = 0
    """Complete steps that were recovered."""
    lost_bytes: int = 0
    """Bytes of journals behind the last complete frame."""
    error: ShardError | None = None
    """The rule that the first bad frame breaks; None if all frames are complete."""
    cut: dict[str, int] = field(default_factory=dict)
    """Entries that were dropped by channel, because other channels end earlier."""
    finished: bool = False
    """Whether the recorder had ended the recording."""
    out: str | None = None
    """Where the episode was saved; the manifest if it is in chunks."""
    chunks: list[RecoveredChunk] = field(default_factory=list)
    """The chunks of a recording in several files, also those that were finished before."""
    lost_steps: int = 0
    """Steps that are lost between others that were recovered."""

    @property
    def problem(self) -> str | None:
        """Why reading stopped before the end of a journal; None if it did not."""
        return None if self.error is None else reason(self.error)

    @property
    def lost_data(self) -> bool:
        """Whether the journals held anything that the episode does not."""
        return bool(self.lost_bytes or self.cut or self.lost_steps)

    def __str__(self) -> str:
        text = f"{self.path}: recovered {self.steps} steps of {self.episode_id!r}"
        if self.chunks:
            again = sum(chunk.from_journal for chunk in self.chunks)
            text += f" in {len(self.chunks)} chunks, {again} of them from journals"
        if self.error:
            text += f"; {self.lost_bytes} bytes are lost ({self.problem})"
        if self.lost_steps:
            text += f"; {self.lost_steps} steps in between are lost"
        for name, number in self.cut.items():
            text += f"; dropped {number} entries of {name}: other channels end earlier"
        return text

    def add_losses(self, journal: Journal) -> None:
        """Adds what a journal holds that was not recovered."""
        reader = journal.reader
        self.finished = journal.is_finished and not journal.continues
        self.lost_bytes += reader.size - reader.position
        self.error = self.error or reader.error
        for block, number in journal.cut().items():
            self.cut[block] = self.cut.get(block, 0) + number


def state_of(files: RecordingFiles) -> str:
    """What became of a recording that has journals.

    `"recording"`: a process is writing it. `"empty"`: nothing was recorded yet. `"recovered"`: the episode that it was
    recorded for exists and holds all its complete steps. `"unfinished"`: everything else, which `recover` saves.
    """
    if files.is_being_recorded:
        return "recording"
    if not files.journals():
        return "empty"
    target = files.names.manifest if files.is_rolled else files.path
    with (
        suppress(*DATA_ERRORS, ShardIOError, InvalidArgument),
        PartialEpisode(files) as found,
        open_wshard(target, sidecars=False) as episode,
    ):
        if episode.id == found.id and episode.length >= found.length:
            return "recovered"
    return "unfinished"


def recover(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, fsync: bool = True
) -> Recovery:
    """Saves what a recording holds, up to its last complete frame. Never changes journals.

    A recording in several files keeps its finished chunks as they are. The remaining journals become chunks beside
    them, and the manifest then names all. You can run it again without harm.

    Args:
        path: a journal, `….partial`, or the name that the episode was recorded for.
        out: where to save the episode. By default the name that it was recorded for, which must be free. A
            recording in several files gets names that begin like this one; its finished chunks are linked, or
            copied if the file system has no links.
        fsync: as for `save_wshard`.
    """
    files = RecordingFiles.of(path)
    if files.is_rolled:
        return _ChunkRecovery(files, None if out is None else os.fspath(out), fsync=fsync).run()
    location = files.journal(0)
    target = os.fspath(out) if out is not None else files.path
    if out is None and os.path.exists(target):
        raise InvalidArgument(
            "an episode with this name exists",
            path=target,
            hint="pass out= to save the recording elsewhere",
            command="pass -o OUT to save the recording elsewhere",
        )
    if os.path.exists(target) and os.path.samefile(target, location):
        raise InvalidArgument("cannot save over the journal itself", path=target)
    journal = Journal.open(location, _NOTHING, decode=True)
    try:
        episode = journal.episode()
        save_wshard(episode, target, "keep", fsync=fsync)
        found = Recovery(location, episode.id, episode.length, out=target)
        found.add_losses(journal)
    except ShardError as error:
        raise error.located(path=location) from None
    finally:
        journal.reader.close()
    return found


class _ChunkRecovery:
    """Recovers a recording in several files."""

    def __init__(self, files: RecordingFiles, out: str | None, *, fsync: bool) -> None:
        self._files = files
        self._names = files.names if out is None else ChunkNames.of(out)
        self._fsync = fsync
        self._manifest: ManifestWriter | None = None
        self._found = Recovery(files.journal(0), out=self._names.manifest)
        self._next_step = 0
        """As the recorder counts, with steps that are lost."""

    def run(self) -> Recovery:
        files, found = self._files, self._found
        is_elsewhere = self._names != files.names
        existing = self._names.existing() if is_elsewhere else None
        if existing is not None:
            raise InvalidArgument("an episode with this name exists", path=existing)
        listed = self._read_manifest()
        missing = None
        for index in count():
            path = files.names.chunk(index)
            if index < len(listed):
                # Also if it is missing, so that those behind it keep their numbers.
                missing = missing or (None if files.has_chunk(index) else path)
                self._add_finished(path, listed[index].extra["length_T"], listed[index])
            elif files.has_journal(index):
                self._add_journal(index)
            elif files.has_chunk(index):
                self._add_finished(path, self._adopted(path, index), None)
            else:
                break
        if missing is not None:
            raise MissingFile(
                "a finished chunk of the recording is missing; the journals were saved as chunks",
                path=missing,
                hint="put it back and recover again; the manifest has not changed",
                rule="W-CHK-7",
            )
        manifest = self._manifest
        if manifest is None or not len(manifest):
            raise InvalidArgument(_NOTHING, path=found.path, found=found.problem, rule="J-1")
        if is_elsewhere or any(chunk.from_journal for chunk in found.chunks):
            manifest.write(fsync=self._fsync)
        found.episode_id, found.steps = manifest.episode_id, manifest.steps
        return found

    def _read_manifest(self) -> list[FileReference]:
        """The chunks that the manifest names."""
        path = self._files.names.manifest
        if not os.path.exists(path):
            return []
        known = ChunkManifest.read(path)
        self._begin(known.episode_id, known.env_id, known.metadata or {})
        return known.in_order

    def _begin(self, episode_id: str, env_id: str, metadata: Mapping[str, Any]) -> None:
        """Takes note of the recording that one of the files belongs to, and of its metadata."""
        manifest = self._manifest or ManifestWriter(self._names, episode_id, env_id)
        if manifest.episode_id != episode_id:
            raise InvalidArgument(
                "the files belong to two recordings",
                path=self._found.path,
                expected=manifest.episode_id,
                found=episode_id,
            )
        self._manifest = manifest.with_metadata(metadata)

    def _add_finished(self, path: str, length: int, reference: FileReference | None) -> None:
        self._add(path, length, reference, from_journal=False)
        self._next_step += length

    def _adopted(self, path: str, index: int, steps: int | None = None) -> int:
        """Checks a finished chunk that the manifest does not name yet; returns its steps."""
        with ShardReader(path) as reader:
            reader.verify()
            chunk = episode_of(reader)
            if chunk.chunk_index != index or steps not in (None, chunk.length):
                raise InvalidArgument(
                    "a file that is not this chunk of the recording is in the way",
                    path=path,
                    expected=f"chunk {index}" + ("" if steps is None else f" of {steps} steps"),
                    found=f"chunk {chunk.chunk_index} of {chunk.length} steps",
                    hint="move it away",
                )
            self._begin(chunk.id, chunk.env_id, chunk.metadata)
            return chunk.length

    def _add_journal(self, index: int) -> None:
        location = self._files.journal(index)
        found = self._found
        found.path = location
        try:
            journal = Journal.open(location, _NOTHING, decode=True)
        except ShardError as error:
            if error.rule is None:
                raise  # the disk failed, not the content
            found.lost_bytes += os.stat(location).st_size
            found.error = found.error or error
            found.finished = False
            return
        try:
            if not index or any(journal.kept().values()):  # not a start and nothing more
                self._save(journal)
            found.add_losses(journal)
        except ShardError as error:
            raise error.located(path=location) from None
        finally:
            journal.reader.close()

    def _save(self, journal: Journal) -> None:
        self._found.lost_steps += max(0, journal.first_step - self._next_step)
        start, index = (self._manifest.steps, len(self._manifest)) if self._manifest else (0, 0)
        episode = journal.episode(start)
        steps = episode.length
        self._next_step = journal.first_step + steps
        self._begin(episode.id, episode.env_id, {})
        # Also if the journal does not say that another follows: the recorder may have died just then.
        episode.chunk_index = index
        episode.timestep_range = (start, max(start, start + steps - 1))
        path = self._names.chunk(index)
        if os.path.lexists(path):
            self._adopted(path, index, steps)
        else:
            save_wshard(episode, path, "keep", fsync=self._fsync)
            self._begin(episode.id, episode.env_id, episode.metadata)
        self._add(path, steps, None, from_journal=True)

    def _add(
        self, path: str, length: int, known: FileReference | None, *, from_journal: bool
    ) -> None:
        assert self._manifest is not None
        target = self._names.chunk(len(self._manifest))
        if path != target and os.path.lexists(path):
            _link(path, target)
        self._manifest = self._manifest.with_chunk(target, length, known)
        self._found.chunks.append(RecoveredChunk(target, length, from_journal))


def _link(path: str, target: str) -> None:
    """Gives a file a second name, or copies it if the file system has no links."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def resolve_existing_partial(
    files: RecordingFiles, on_partial: str, options: StreamOptions
) -> None:
    """Deals with what an earlier recording has left, as `on_partial` says. Hold the lock of its first journal."""
    if options.max_steps_per_file is not None or options.max_bytes_per_file is not None:
        files.names.check_referable()
    left = files.journals()
    locks: list[JournalWriter] = []
    try:
        # A recorder that has moved on to another file holds the lock there.
        locks += [JournalWriter(path) for path in left if path != files.journal(0)]
        if left and on_partial == "refuse":
            raise InvalidArgument(
                "an unfinished recording of this episode exists",
                path=left[-1],
                hint=f"recover it with: wshard recover {left[-1]}; "
                "or pass on_partial='recover' or 'discard'",
            )
        if left and on_partial == "recover":
            _recover_beside(files, fsync=options.is_synced)
        if left and files.is_rolled:
            files.remove_chunks()
    finally:
        for lock in locks:
            lock.close()
    existing = files.names.existing() if options.may_roll else None
    if existing is not None:  # chunks of the new recording would mix with those of another episode
        raise InvalidArgument(
            "a chunked episode with this name exists",
            path=existing,
            hint="record to another path, or delete its files first",
        )


def _recover_beside(files: RecordingFiles, *, fsync: bool) -> None:
    """Recovers a recording under a free name. Journals without a complete start are copied there as they are."""
    beside = RecordingFiles(_free_path(files.path))
    try:
        _log.warning("%s", recover(files.journal(0), beside.path, fsync=fsync))
    except ShardError as error:
        if error.problem != _NOTHING:
            raise
        _log.warning("%s", error)
        for index in takewhile(files.has_journal, count()):
            shutil.copyfile(files.journal(index), beside.journal(index))


def _free_path(path: str) -> str:
    """An unused name beside a file, for the recovered recording."""
    stem, suffix = os.path.splitext(path)
    names = (f"{stem}.recovered-{number}{suffix}" for number in count(1))
    return next(
        name
        for name in names
        if not any(map(os.path.exists, (name, name + PARTIAL_SUFFIX, ChunkNames.of(name).manifest)))
    )
