"""Files that go into shards, and files that come out of them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format.canonical_json import canonical
from shard_format.codecs import crc32c
from shard_format.errors import (
    BadValue,
    FormatError,
    InvalidArgument,
    ShardIOError,
    UnsafePath,
    shorten,
)
from shard_format.listing import scan_folders
from shard_format.safe_paths import plan_extraction
from shard_format.sources import FileSource
from shardpack.columns import open_samples
from shardpack.encodings import MetadataEncoding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from shard_format.safe_paths import ExtractionPlan
    from shardpack.columns import AnyRecord, Samples
    from shardpack.record import Entry

__all__ = [
    "METADATA_ENTRY",
    "NO_SUFFIX",
    "FolderItem",
    "InputFile",
    "RecordFile",
    "Unpacked",
    "entry_file",
    "file_name",
    "metadata_json",
    "record_files",
    "unpack",
    "walk",
]

METADATA_ENTRY: Final = "__metadata__.json"
"""What the file with the metadata of a record is called, after the record's key and a dot."""
NO_SUFFIX: Final = "__file__"
"""The entry that holds a file without a suffix: its name is the key alone."""

# Read into memory up to this size. A mapping needs none, but if another process shortens a mapped file, the process
# dies: worth it for large files only.
_LARGEST_READ: Final = 64 << 20
# In JSON and in MessagePack.
_NO_METADATA: Final = (b"", b"{}", b"\x80")


class FolderItem(NamedTuple):
    """Something below a folder that is not a folder."""

    relative: str
    """Its path below the folder, with slashes."""
    path: str
    is_file: bool
    """A regular file; not a link, pipe or device."""


def walk(folder: str) -> list[FolderItem]:
    """All files below a folder, sorted by name. Links are not followed."""
    return sorted(
        FolderItem(prefix + entry.name, entry.path, entry.is_file(follow_symlinks=False))
        for prefix, entries in scan_folders(folder)
        for entry in entries
        if not entry.is_dir(follow_symlinks=False)
    )


class InputFile:
    """The content of a file while you pack it.

    The end of the `with` block checks that the file did not change meanwhile, so that you get an error rather
    than a torn entry.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._before = self._facts()
        source = FileSource(path)
        try:
            size = source.size()
            self.data: memoryview = (
                memoryview(source.read_at(0, size))
                if size <= _LARGEST_READ
                else source.view(0, size)
            )
            """The whole content, read-only."""
        finally:
            source.close()

    def _facts(self) -> tuple[int, int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", self._path) from error
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._facts() != self._before:
            raise ShardIOError(
                "the file changed while it was packed",
                path=self._path,
                hint="pack it again when nothing writes to it",
            )


class RecordFile(NamedTuple):
    """The file that an entry, or the metadata, of a record becomes."""

    path: str
    """Below the folder, with slashes."""
    name: str
    """The name of the entry."""
    content_type: str
    size: int
    crc32c: int | None
    """Of the content, if it is known without reading the entry."""
    read: Callable[[], bytes | memoryview]
    """The content, checked; raises a `FormatError` if it is damaged."""


def file_name(key: str, entry: str, separator: str = ".") -> str:
    """The path of the file that an entry becomes: KEY.NAME, or KEY for a file that had no suffix."""
    is_whole = entry == NO_SUFFIX and separator == "."
    return key if is_whole else f"{key}{separator}{entry}"


def entry_file(key: str, entry: Entry, separator: str = ".") -> RecordFile:
    """The file that an entry of the record with this key becomes."""
    return RecordFile(
        file_name(key, entry.name, separator),
        entry.name,
        entry.content_type,
        entry.size,
        None if entry.is_compressed else entry.crc32c,
        # A copy: an entry keeps its content, and lists of files are long.
        lambda: entry.renamed(entry.name).data,
    )


def record_files(
    record: AnyRecord, metadata_entry: str = METADATA_ENTRY, separator: str = "."
) -> Iterator[RecordFile]:
    """The files that a record becomes: its entries and, if it has any, its metadata.

    Raises:
        InvalidArgument: an entry has the name that the metadata gets, so that `create` would take it for metadata.
    """
    if metadata_entry in record:
        raise InvalidArgument(
            f"record {shorten(record.key)} has an entry with the name of the file for metadata",
            entry=metadata_entry,
            hint="pass another metadata_entry",
            command="pass another --metadata-entry",
        )
    for entry in record.file_entries():
        yield entry_file(record.key, entry, separator)
    encoding, stored = record.stored_metadata
    if stored not in _NO_METADATA:
        size = len(stored)
        if encoding is not MetadataEncoding.JSON:
            with suppress(FormatError):  # `read` raises it
                size = len(metadata_json(record))
        path = file_name(record.key, metadata_entry, separator)
        read = partial(metadata_json, record)
        yield RecordFile(path, metadata_entry, "application/json", size, None, read)


def metadata_json(record: AnyRecord) -> bytes:
    """The metadata of a record as JSON text; that of other writers is as they wrote it.

    Raises:
        FormatError: it is damaged, or is MessagePack that JSON cannot express.
    """
    fields = record.metadata
    encoding, stored = record.stored_metadata
    if encoding is MetadataEncoding.JSON:
        return stored
    try:
        return canonical(fields)
    except InvalidArgument as error:
        raise BadValue(
            f"the metadata of record {shorten(record.key)} has no JSON form: {error.problem}",
            found=error.found,
        ) from None


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What `unpack` did."""

    files: int
    """Files that were written."""
    size_bytes: int
    """Their bytes."""
    kept: int = 0
    """Files that were there already, with the same content."""


def unpack(
    shards: Samples,
    folder: str | os.PathLike[str],
    *,
    metadata_entry: str = METADATA_ENTRY,
    progress: Callable[[int], None] | None = None,
) -> Unpacked:
    """Write every entry as a file, and the metadata of every record that has any. Files that were packed come back
    byte for byte.

    The path of a file is the record's key, a dot and the entry's name; `shardpack create` makes the same records from
    the files. The paths of local shards are all checked before the first file is written, which takes some hundred
    bytes of memory per entry. Remote shards are read once, from start to end, and each record is checked before its
    files are written: an unsafe path then stops the work, and the files before it stay.

    After an interruption, call it again: a file that is there with the same size and CRC-32C is not written again.

    Args:
        shards: what `shardpack.open` takes, or an open dataset.
        folder: where to write; created if it does not exist. An existing file with other content is an error, before
            anything, or anything of its record, is written.
        metadata_entry: the name that the metadata of a record gets, in place of the name of an entry.
        progress: called with the size of each file after it is written.

    Raises:
        UnsafePath: a path would leave the folder, or two entries would be the same file.
        ShardError: an entry is damaged. Files that were written before stay; all are complete.
    """
    done = _Unpacking(os.fspath(folder), progress)
    with open_samples(shards) as dataset:
        if dataset.is_remote:
            for record in dataset.records():
                done.add(partial(record_files, record, metadata_entry))
        else:
            done.add(
                lambda: (
                    file
                    for record in dataset.records()
                    for file in record_files(record, metadata_entry)
                )
            )
    return Unpacked(done.files, done.size_bytes, done.kept)


class _Unpacking:
    """Writes files to a folder, some at a time, and counts them.

    Args:
        folder: where to write.
        progress: called with the size of each file after it is written.
    """

    def __init__(self, folder: str, progress: Callable[[int], None] | None) -> None:
        self._folder = folder
        self._progress = progress
        self._paths: set[str] = set()
        self.files = self.kept = self.size_bytes = 0

    def add(self, files: Callable[[], Iterator[RecordFile]]) -> None:
        """Checks all of these files, and then writes them.

        Args:
            files: returns the files, every time in the same order.
        """
        paths = [file.path for file in files()]
        plan = plan_extraction(paths, self._folder)
        known = self._paths
        if plan.refused or len(plan.targets) != len(paths) or not known.isdisjoint(paths):
            first = plan.refused[0] if plan.refused else None
            raise UnsafePath(
                "an entry cannot be a file below the folder"
                if first is not None
                else "two entries have the same path",
                path=self._folder,
                entry=first.name if first is not None else None,
                found=first.reason if first is not None else f"{len(paths)} entries",
            )
        known.update(paths)
        kept: set[str] = set()
        if any(map(os.path.lexists, plan.targets.values())):
            kept.update(file.path for file in files() if _is_there(file, plan))
        for file in files():
            if file.path in kept:
                continue
            size = plan.write(file.path, [file.read()])
            self.size_bytes += size
            if self._progress is not None:
                self._progress(size)
        self.kept += len(kept)
        self.files += len(paths) - len(kept)


def _is_there(file: RecordFile, plan: ExtractionPlan) -> bool:
    path = plan.targets[file.path]
    if not os.path.lexists(path):
        return False
    if not plan.holds(file.path, file.size, lambda: crc32c_of_file(file)):
        raise InvalidArgument("the file exists already, with other content", path=path)
    return True


def crc32c_of_file(file: RecordFile) -> int:
    """The CRC-32C of the content, which is read only if it must be."""
    return crc32c(file.read()) if file.crc32c is None else file.crc32c
