"""The files of episodes: their order in a folder, names that are free, names of chunks, and the files of a recording."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from shard_format.atomic import make_parent
from shard_format.errors import DATA_ERRORS, FileMissing, InvalidArgument, ShardIOError
from shard_format.listing import walk_folder
from shard_format.sources import open_regular, read_file
from wshard._journal import MAGIC, PARTIAL_SUFFIX, JournalReader

SUFFIX: Final = ".wshard"
OVERVIEW_SUFFIX: Final = ".overview"
"""What the name of an episode's overview file has after that of the episode."""
_CHUNK: Final = re.compile(r"_chunk_([0-9]{4,9})$")
_ANY_CHUNK: Final = rf"_chunk_[0-9]{{4,9}}(-[0-9a-f]{{12}})?{re.escape(SUFFIX)}"
_MANIFEST: Final = "_manifest"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DIGITS = re.compile(r"([0-9]+)")
_LAST_DIGITS = re.compile(r"[0-9]+$")


def in_order(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people count: `ep_9` before `ep_10`."""
    return [
        (0, int(part), "") if _DIGITS.fullmatch(part) else (1, 0, part)
        for part in _DIGITS.split(name)
    ]


def following(name: str | None) -> str:
    """A name that comes after another one, and after all that this one comes after."""
    if name is None:
        return "000000"
    found = _LAST_DIGITS.search(name)
    if found is None:
        return f"{name}-000001"
    digits = found[0]
    return name[: found.start()] + str(int(digits) + 1).zfill(len(digits))


def reserve(path: str) -> bool:
    """Puts an empty journal where the episode will be recorded; False if that name is taken.

    Of many processes that try the same name one gets it.
    """
    partial = path + PARTIAL_SUFFIX
    try:
        make_parent(path)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False  # it is being recorded, or waits to be recovered
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot record", partial) from error
    # Looked for now: it may have been finished since, and its journal removed.
    if os.path.lexists(path):
        os.unlink(partial)
        return False
    return True


def is_being_recorded(partial: str) -> bool:
    """Whether a process holds the lock of a journal (J-4)."""
    try:
        import fcntl
    except ImportError:  # Windows does not let go of a file that is written
        return True
    try:
        descriptor, _ = open_regular(partial, follow_links=False)
    except InvalidArgument:  # not a recording
        return True
    except ShardIOError as error:
        if error.errno in (errno.ENOENT, errno.EACCES):  # just finished, or of another user
            return True
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_journal(path: str) -> bool:
    """Whether a local file is the journal of a recording, by its first bytes; or will be one, by its name."""
    head = read_file(path, len(MAGIC))
    # Empty until the recorder has written its first frame.
    return head == MAGIC or (not head and path.endswith(SUFFIX + PARTIAL_SUFFIX))


def find_recordings(folder: str | os.PathLike[str]) -> list[RecordingFiles]:
    """The recordings below a folder that have journals, unfinished or still being written, in natural order.

    Raises:
        ShardIOError: a folder cannot be read.
    """
    found: dict[RecordingFiles, None] = {}
    for path in walk_folder(os.fspath(folder), PARTIAL_SUFFIX).paths():
        try:
            if is_journal(path):
                found[RecordingFiles.of(path)] = None
        except (FileMissing, InvalidArgument):  # noqa: PERF203 - one file at a time
            pass  # just finished, or not a regular file
        except ShardIOError as error:
            if error.errno != errno.EACCES:
                raise
            # Of another user, who alone can recover it; by its name it is a recording.
            if path.endswith(SUFFIX + PARTIAL_SUFFIX):
                found[RecordingFiles(path.removesuffix(PARTIAL_SUFFIX))] = None
    return list(found)


# --- chunks and recordings


@dataclass(frozen=True, slots=True)
class ChunkNames:
    """The names of the chunks and the manifest of an episode (spec/wshard.md, section 11)."""

    folder: str
    """The folder that they are in."""
    stem: str
    """How the names begin."""

    @classmethod
    def of(cls, path: str) -> ChunkNames:
        """The names that belong to `<stem>.wshard`."""
        folder, name = os.path.split(path)
        return cls(folder, name.removesuffix(SUFFIX))

    @classmethod
    def of_member(cls, path: str) -> tuple[ChunkNames, int | None]:
        """The names that belong to a chunk or a manifest, and its index: -1 for a manifest, None for another file."""
        names = cls.of(path)
        if names.stem.endswith(_MANIFEST):
            return replace(names, stem=names.stem.removesuffix(_MANIFEST)), -1
        found = _CHUNK.search(names.stem)
        if found is None:
            return names, None
        return replace(names, stem=names.stem[: found.start()]), int(found[1])

    def chunk(self, index: int, token: str = "") -> str:
        """The path of a chunk; with a token, where that path is taken."""
        tail = f"-{token}" if token else ""
        return os.path.join(self.folder, f"{self.stem}_chunk_{index:04d}{tail}{SUFFIX}")

    def chunks(self) -> list[str]:
        """The paths of all chunks that exist, also of those that no manifest names."""
        wanted = re.compile(re.escape(self.stem) + _ANY_CHUNK)
        names = filter(wanted.fullmatch, os.listdir(self.folder or "."))
        return [os.path.join(self.folder, name) for name in names]

    def check_referable(self) -> None:
        """Refuses names that a manifest cannot hold: a reader would not follow them (S-MAN-4)."""
        if _SCHEME.match(self.stem) or "\\" in self.stem:
            raise InvalidArgument(
                "chunks with these names cannot be named in a manifest",
                expected="no backslash, and nothing like 'run:' at the start",
                found=repr(self.stem),
            )

    @property
    def manifest(self) -> str:
        """The path of the manifest."""
        return os.path.join(self.folder, f"{self.stem}{_MANIFEST}{SUFFIX}")

    def existing(self) -> str | None:
        """The manifest or first chunk of an episode that has these names already, or None."""
        paths = (self.manifest, self.chunk(0))
        return next((path for path in paths if os.path.lexists(path)), None)


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """The files of a recording (spec/journal.md, section 9).

    The first journal has the name of the file that it becomes if it stays the only one. A chunk has a journal until
    the manifest names it, and the next journal is opened before the one before it is finished. So the files that
    exist tell how far the recording got.
    """

    path: str
    """The file that the recording was begun for."""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> RecordingFiles:
        """The recording of a journal, a chunk, a manifest, or the file that it was begun for."""
        location = os.fspath(path).removesuffix(PARTIAL_SUFFIX)
        names, index = ChunkNames.of_member(location)
        if index is None or not _is_member(location, index):
            return cls(location)
        base = os.path.join(names.folder, names.stem)
        has_no_suffix = os.path.exists(base + PARTIAL_SUFFIX)
        return cls(base if has_no_suffix else base + SUFFIX)

    @property
    def names(self) -> ChunkNames:
        """The names of its chunks."""
        return ChunkNames.of(self.path)

    def journal(self, index: int) -> str:
        """The path of the journal of a chunk."""
        return (self.names.chunk(index) if index else self.path) + PARTIAL_SUFFIX

    def has_journal(self, index: int) -> bool:
        """Whether a chunk has a journal that is not empty."""
        return _size(self.journal(index)) > 0

    def has_chunk(self, index: int) -> bool:
        """Whether a chunk is finished."""
        return os.path.exists(self.names.chunk(index))

    @property
    def is_rolled(self) -> bool:
        """Whether the recording has, or had, more than one journal."""
        # The second is opened before the first is finished, and finished after the first is removed.
        if os.path.exists(self.journal(1)):
            return True
        return not self.has_journal(0) and self.has_chunk(0)

    def in_the_way_of(self, index: int) -> str | None:
        """A file that a chunk, or the first manifest, would replace, or None."""
        existing = self.names.existing() if index == 1 else None
        path = self.names.chunk(index)
        return existing or (path if os.path.lexists(path) else None)

    @property
    def is_being_recorded(self) -> bool:
        """Whether a process is writing the recording now. Windows cannot tell: there it is False.

        An empty journal is not looked at: a recorder that is just taking its lock would find it taken.
        """
        return os.name != "nt" and any(map(is_being_recorded, self.journals()))

    def journals(self) -> list[str]:
        """The journals that are not empty, in order."""
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
        """Deletes everything except the first journal, in an order that is sound at any moment."""
        last = 0
        while self.has_chunk(last) or os.path.exists(self.journal(last + 1)):
            last += 1
        for index in range(last, 0, -1):
            _unlink(self.journal(index))
        _unlink(self.names.manifest)
        for index in range(last, -1, -1):
            remove_with_overview(self.names.chunk(index))


def _is_member(location: str, index: int) -> bool:
    """Whether a file that is named like a chunk or a manifest is one."""
    journal = location + PARTIAL_SUFFIX
    if index <= 0 or not _size(journal):
        return index < 0 or os.path.exists(location)
    try:
        reader = JournalReader(journal)
    except FileMissing:  # its recorder has just finished it
        return True
    try:
        for frame in reader.frames():
            return "chunk" in reader.fields(frame)
    except DATA_ERRORS:
        pass  # reading the recording will raise it again
    finally:
        reader.close()
    return True


def _size(path: str) -> int:
    """0 also for a missing file."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read", path) from error


def remove_with_overview(path: str) -> None:
    """Deletes an episode, if it is there, and then its overview file."""
    _unlink(path)
    _unlink(path + OVERVIEW_SUFFIX)


def _unlink(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
