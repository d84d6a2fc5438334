"""The files of a recording, which may be many: journals, finished chunks, and the manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from shard_format.errors import InvalidArgument, ShardError
from wshard.chunk_files import ChunkNames
from wshard.folders import SUFFIX
from wshard.journal import PARTIAL_SUFFIX, JournalReader

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """Where a recording is (spec/journal.md, section 9).

    The first journal has the name of the file that it becomes if there are no others. Until a chunk is in the
    manifest it has a journal, and the next one has a journal before it is finished: what is there without
    either was never recorded.
    """

    path: str
    """The file that the recording was begun for."""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> RecordingFiles:
        """The recording that a journal, a chunk or a manifest belongs to, or that was begun for a file."""
        location = os.fspath(path).removesuffix(PARTIAL_SUFFIX)
        names, index = ChunkNames.of_member(location)
        if index is None or not _is_member(location, index):
            return cls(location)
        base = os.path.join(names.folder, names.stem)
        has_no_suffix = os.path.exists(base + PARTIAL_SUFFIX)
        return cls(base if has_no_suffix else base + SUFFIX)

    @property
    def names(self) -> ChunkNames:
        """What its chunks are called."""
        return ChunkNames.of(self.path)

    def journal(self, index: int) -> str:
        """The journal of a chunk."""
        return (self.names.chunk(index) if index else self.path) + PARTIAL_SUFFIX

    def has_journal(self, index: int) -> bool:
        """Whether there is a journal of a chunk; an empty one does not count."""
        return _size(self.journal(index)) > 0

    def has_chunk(self, index: int) -> bool:
        """Whether a chunk is finished."""
        return os.path.exists(self.names.chunk(index))

    @property
    def is_rolled(self) -> bool:
        """Whether the recording has, or had, more than one journal."""
        # The second is begun before the first is finished, and not finished before the first is removed.
        if os.path.exists(self.journal(1)):
            return True
        return not self.has_journal(0) and self.has_chunk(0)

    def check_free(self) -> None:
        """Refuses to record where the chunks of another episode are, which must not be mixed with ours."""
        for path in (self.names.manifest, self.names.chunk(0)):
            if os.path.lexists(path):
                raise InvalidArgument(
                    "there is an episode in chunks of that name already",
                    path=path,
                    hint="choose another name, or move it away",
                )

    def journals(self) -> list[str]:
        """The journals that hold anything, in order."""
        if not self.is_rolled:
            return [self.journal(0)] if self.has_journal(0) else []
        found = []
        for index in count():
            if self.has_journal(index):
                found.append(self.journal(index))
            elif not self.has_chunk(index):
                break
        return found

    def remove_chunks(self) -> None:
        """Deletes everything but the first journal, so that what is left is sound at any moment."""
        last = 0
        while self.has_chunk(last) or os.path.exists(self.journal(last + 1)):
            last += 1
        for index in range(last, 0, -1):
            _unlink(self.journal(index))
        _unlink(self.names.manifest)
        for index in range(last, -1, -1):
            _unlink(self.names.chunk(index))


def with_metadata(whole: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a recording, after another part of it: what was dropped adds up."""
    dropped: dict[str, Any] = {}
    for counts in (whole.get("dropped"), part.get("dropped")):
        for block, number in counts.items() if isinstance(counts, dict) else ():
            before = dropped.get(block, 0)
            both = isinstance(before, int) and isinstance(number, int)
            dropped[block] = before + number if both else number
    return {**whole, **part, **({"dropped": dropped} if dropped else {})}


def _is_member(location: str, index: int) -> bool:
    """Whether a file that is called like a chunk or a manifest is one."""
    journal = location + PARTIAL_SUFFIX
    if index <= 0 or not _size(journal):
        return index < 0 or os.path.exists(location)
    try:
        reader = JournalReader(journal)
    except ShardError:
        return True
    try:
        for frame in reader.frames():
            return "chunk" in reader.fields(frame)
    except ShardError:
        pass  # whoever reads it will say what is wrong
    finally:
        reader.close()
    return True


def _size(path: str) -> int:
    """0 also for a file that is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _unlink(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
