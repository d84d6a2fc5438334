"""Files that go into shards, and files that come out of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format.errors import InvalidArgument, ShardIOError, UnsafePath
from shard_format.listing import scan_folders
from shard_format.safe_paths import plan_extraction
from shard_format.sources import FileSource
from shardpack.columns import open_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from shardpack.columns import Samples

__all__ = ["FolderItem", "InputFile", "Unpacked", "unpack", "walk"]

# Read into memory up to this size. A mapping needs none, but if another process shortens a mapped file, the process
# dies: worth it for large files only.
_LARGEST_READ: Final = 64 << 20


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


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What `unpack` did."""

    files: int
    """Files that were written."""
    size_bytes: int
    """Their bytes."""


def unpack(
    shards: Samples,
    folder: str | os.PathLike[str],
    *,
    progress: Callable[[int], None] | None = None,
) -> Unpacked:
    """Write every entry as a file. Files that were packed come back byte for byte.

    The path of a file is the record's key, a dot and the entry's name. All paths are checked before the first
    file is written, which takes some hundred bytes of memory per entry.

    Args:
        shards: what `shardpack.open` takes, or an open dataset.
        folder: where to write; created if it does not exist. Existing files are an error, never replaced.
        progress: called with the size of each file after it is written.

    Raises:
        UnsafePath: a path would leave the folder, or two entries would be the same file.
        ShardError: an entry is damaged. Files that were written before stay; all are complete.
    """
    target = os.fspath(folder)
    files = size_bytes = 0
    with open_samples(shards) as dataset:
        names = [f"{record.key}.{name}" for record in dataset.records() for name in record.names]
        plan = plan_extraction(names, target)
        if plan.refused or len(plan.targets) != len(names):
            first = plan.refused[0] if plan.refused else None
            raise UnsafePath(
                "an entry cannot be a file below the folder"
                if first is not None
                else "two entries have the same path",
                path=target,
                entry=first.name if first is not None else None,
                found=first.reason if first is not None else f"{len(names)} entries",
            )
        for path in plan.targets.values():
            if os.path.lexists(path):
                raise InvalidArgument("the file exists already", path=path)
        for record in dataset.records():
            for entry in record.file_entries():
                size = plan.write(f"{record.key}.{entry.name}", [entry.data])
                files += 1
                size_bytes += size
                if progress is not None:
                    progress(size)
    return Unpacked(files, size_bytes)
