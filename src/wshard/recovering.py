"""Bringing back recordings that were not finished: one journal, or the last of many."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shard_format import ShardReader
from shard_format.errors import InvalidArgument, MissingFile, ShardError
from wshard.chunk_files import ChunkNames, ManifestWriter
from wshard.chunked import ChunkManifest
from wshard.journal import JournalWriter
from wshard.journaled import read_journal
from wshard.reader import episode_of
from wshard.recording_files import RecordingFiles, with_metadata
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from shard_format import FileReference
    from wshard.journaled import Journal

__all__ = ["RecoveredChunk", "Recovery", "meet_old_recording", "recover"]

_log = logging.getLogger("wshard")

_NOTHING = "nothing came back: not even the start of the recording is whole"


@dataclass(frozen=True, slots=True)
class RecoveredChunk:
    """A chunk of a recording that was brought back."""

    path: str
    """Its file."""
    steps: int
    """Its steps."""
    from_journal: bool
    """Whether it was made of a journal; False if it was finished already."""


@dataclass(slots=True)
class Recovery:
    """What came back from a recording that was not finished."""

    path: str
    """The journal; of many the last one."""
    episode_id: str
    """Whose it is."""
    steps: int
    """Whole steps that came back."""
    lost_bytes: int
    """Bytes of journals behind the last whole frame."""
    problem: str | None
    """Why reading stopped there; None if all is whole."""
    cut: dict[str, int] = field(default_factory=dict)
    """Entries that were left out by channel, because other channels did not get that far."""
    finished: bool = False
    """Whether the recorder had come to its end."""
    out: str | None = None
    """Where the episode was saved; the manifest if it is in chunks."""
    chunks: list[RecoveredChunk] = field(default_factory=list)
    """The chunks of a recording in several files, those that were finished before too."""
    lost_steps: int = 0
    """Steps before others that came back, of which nothing is there."""

    @property
    def lost_data(self) -> bool:
        """Whether anything that was in the journals is not in the episode."""
        return bool(self.lost_bytes or self.cut or self.lost_steps)

    def __str__(self) -> str:
        text = f"{self.path}: {self.steps} steps of {self.episode_id!r} came back"
        if self.chunks:
            again = sum(chunk.from_journal for chunk in self.chunks)
            text += f" in {len(self.chunks)} chunks, {again} of them from journals"
        if self.problem:
            text += f"; {self.lost_bytes} bytes are lost ({self.problem})"
        if self.lost_steps:
            text += f"; {self.lost_steps} steps in between are lost"
        for name, count in self.cut.items():
            text += f"; {count} entries of {name} had no others beside them"
        return text


def recover(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, fsync: bool = True
) -> Recovery:
    """Saves what a recording holds, up to its last whole frame. Journals are never touched.

    Of a recording in several files, finished chunks stay as they are. The journals that are left become chunks
    beside them, and the manifest then names all. Doing it again changes nothing.

    Args:
        path: a journal, `….partial`, or the name that the episode was recorded for.
        out: where to save the episode; the name that it was recorded for if left out, which must be free. A
            recording in several files gets other names that begin like this one: its finished chunks are
            linked, or copied where that cannot be.
        fsync: as for `save_wshard`.
    """
    files = RecordingFiles.of(path)
    if files.is_rolled:
        return _Chunks(files, None if out is None else os.fspath(out), fsync=fsync).recover()
    location = files.journal(0)
    target = os.fspath(out) if out is not None else files.path
    if out is None and os.path.exists(target):
        raise InvalidArgument(
            "there is an episode of that name already", path=target, hint="say where to save it"
        )
    if os.path.exists(target) and os.path.samefile(target, location):
        raise InvalidArgument("the journal itself is never touched", path=target)
    journal = read_journal(location, _NOTHING, decode=True)
    try:
        episode = journal.episode()
        save_wshard(episode, target, "keep", fsync=fsync)
        found = Recovery(location, episode.id, episode.length, 0, None, out=target)
        _add_losses(found, journal)
    except ShardError as error:
        raise error.located(path=location) from None
    finally:
        journal.reader.close()
    return found


def _add_losses(found: Recovery, journal: Journal) -> None:
    """What a journal holds that did not come back."""
    reader = journal.reader
    found.finished = journal.is_finished and not journal.continues
    found.lost_bytes += reader.size - reader.position
    found.problem = found.problem or reader.problem
    for block, count in journal.cut(journal.steps()).items():
        found.cut[block] = found.cut.get(block, 0) + count


class _Chunks:
    """Brings back a recording in several files."""

    def __init__(self, files: RecordingFiles, out: str | None, *, fsync: bool) -> None:
        self._files = files
        self._names = files.names if out is None else ChunkNames.of(out)
        self._is_elsewhere = out is not None
        self._fsync = fsync
        self._listed: list[tuple[FileReference, int]] = []
        """What the manifest says of its chunks, with their steps."""
        self._metadata: dict[str, Any] = {}
        self._manifest: ManifestWriter | None = None
        self._found = Recovery(files.journal(0), "", 0, 0, None, out=self._names.manifest)
        self._next_step = 0
        """In the numbers of the recorder, which lost steps leave as they are."""

    def recover(self) -> Recovery:
        self._check_target()
        self._read_manifest()
        index, missing = 0, None
        while True:
            is_listed = index < len(self._listed)
            if not is_listed and self._files.has_journal(index):
                self._add_journal(index)
            elif self._files.has_chunk(index):
                self._add_finished(index)
            elif is_listed:
                missing = missing or self._files.names.chunk(index)
                self._add_finished(index)  # so that those behind it keep their numbers
            else:
                break
            index += 1
        found, manifest = self._found, self._manifest
        if missing is not None:
            raise MissingFile(
                "a finished chunk of the recording is missing; what journals held was saved",
                path=missing,
                hint="put it back and recover again; the manifest is as it was",
                rule="W-CHK-7",
            )
        if manifest is None or not len(manifest):
            raise InvalidArgument(_NOTHING, path=found.path, found=found.problem, rule="J-1")
        manifest.metadata = self._metadata
        if self._is_elsewhere or any(chunk.from_journal for chunk in found.chunks):
            manifest.write(fsync=self._fsync)
        found.episode_id, found.steps = manifest.episode_id, manifest.steps
        return found

    def _check_target(self) -> None:
        if self._is_elsewhere and self._names == self._files.names:
            self._is_elsewhere = False
        if self._is_elsewhere:
            for path in (self._names.manifest, self._names.chunk(0)):
                if os.path.lexists(path):
                    raise InvalidArgument("there is an episode of that name already", path=path)

    def _read_manifest(self) -> None:
        path = self._files.names.manifest
        if not os.path.exists(path):
            return
        known = ChunkManifest.read(path)
        rows = sorted(known.files.files, key=lambda row: int(row.extra["chunk_index"]))
        self._listed = [(row, row.extra["length_T"]) for row in rows]
        self._metadata = dict(known.metadata or {})
        self._open_manifest(known.episode_id, known.env_id)

    def _open_manifest(self, episode_id: str, env_id: str) -> ManifestWriter:
        if self._manifest is None:
            self._manifest = ManifestWriter(self._names, episode_id, env_id)
        elif self._manifest.episode_id != episode_id:
            raise InvalidArgument(
                "the files are of two recordings",
                path=self._found.path,
                expected=self._manifest.episode_id,
                found=episode_id,
            )
        return self._manifest

    def _add_finished(self, index: int) -> None:
        path = self._files.names.chunk(index)
        if index < len(self._listed):
            reference, length = self._listed[index]
        else:
            reference, length = None, self._adopted(path, index, None)
        self._add(path, length, reference, from_journal=False)
        self._next_step += length

    def _adopted(self, path: str, index: int, steps: int | None) -> int:
        """The steps of a chunk that is finished and not in the manifest yet."""
        with ShardReader(path) as reader:
            reader.verify()
            chunk = episode_of(reader)
            is_it = chunk.chunk_index == index and steps in (None, chunk.length)
            if not is_it:
                raise InvalidArgument(
                    "a file is in the way that is not this chunk of the recording",
                    path=path,
                    expected=f"chunk {index}" + ("" if steps is None else f" of {steps} steps"),
                    found=f"chunk {chunk.chunk_index} of {chunk.length} steps",
                    hint="move it away",
                )
            self._open_manifest(chunk.id, chunk.env_id)
            self._metadata = with_metadata(self._metadata, chunk.metadata)
            return chunk.length

    def _add_journal(self, index: int) -> None:
        location = self._files.journal(index)
        found = self._found
        found.path = location
        try:
            journal = read_journal(location, _NOTHING, decode=True)
        except ShardError as error:
            if error.rule is None:
                raise  # the disk, not what is on it
            found.lost_bytes += os.stat(location).st_size
            found.problem = found.problem or str(error)
            found.finished = False
            return
        try:
            self._save(journal, index)
            _add_losses(found, journal)
        except ShardError as error:
            raise error.located(path=location) from None
        finally:
            journal.reader.close()

    def _save(self, journal: Journal, index: int) -> None:
        steps = journal.steps()
        if index and not any(journal.kept(steps).values()):
            return  # begun, and nothing more
        found = self._found
        gap = journal.first_step - self._next_step
        if gap > 0:
            found.lost_steps += gap
        self._next_step = journal.first_step + steps
        assert journal.fields is not None
        env_id = journal.fields.get("env_id", "")
        manifest = self._open_manifest(journal.fields["episode_id"], env_id)
        episode = journal.episode(manifest.steps)
        # Also if the journal does not say that another follows: it may have died just then.
        episode.chunk_index = len(manifest)
        last = max(manifest.steps, manifest.steps + steps - 1)
        episode.timestep_range = (manifest.steps, last)
        path = self._names.chunk(len(manifest))
        if os.path.lexists(path):
            self._adopted(path, len(manifest), steps)
        else:
            save_wshard(episode, path, "keep", fsync=self._fsync)
            self._metadata = with_metadata(self._metadata, episode.metadata)
        self._add(path, steps, None, from_journal=True)

    def _add(
        self, path: str, length: int, known: FileReference | None, *, from_journal: bool
    ) -> None:
        manifest = self._manifest
        assert manifest is not None
        target = self._names.chunk(len(manifest))
        if path != target and os.path.lexists(path):
            _link(path, target)
        manifest.add(target, length, known)
        self._found.chunks.append(RecoveredChunk(target, length, from_journal))


def _link(path: str, target: str) -> None:
    """The same file under another name, or a copy where the file system has no links."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _free_path(path: str) -> str:
    """A free name beside a file, for what comes back of an earlier recording."""
    stem, suffix = os.path.splitext(path)
    number = 1
    while True:
        free = f"{stem}.recovered-{number}{suffix}"
        if not os.path.exists(free) and not os.path.exists(ChunkNames.of(free).manifest):
            return free
        number += 1


def meet_old_recording(files: RecordingFiles, choice: str, *, fsync: bool) -> None:
    """What to do about what is left of an earlier recording, whose first journal the caller has locked.

    Args:
        files: of the recording that shall begin.
        choice: `"refuse"`, `"recover"` or `"discard"`.
        fsync: as for `recover`.
    """
    left = files.journals()
    if not left:
        return
    locks: list[JournalWriter] = []
    try:
        # A recorder that has gone on to another file is alive there.
        locks += [JournalWriter(path) for path in left if path != files.journal(0)]
        if choice == "refuse":
            raise InvalidArgument(
                "there is an unfinished recording of this episode",
                path=left[-1],
                hint=f"bring it back with: wshard recover {left[-1]}; "
                "or pass on_partial='recover' or 'discard'",
            )
        if choice == "recover":
            found = recover(files.journal(0), _free_path(files.path), fsync=fsync)
            _log.warning("%s", found)
        if files.is_rolled:
            files.remove_chunks()
    finally:
        for lock in locks:
            lock.close()
