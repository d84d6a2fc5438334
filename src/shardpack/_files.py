"""Files that go into shards: found in order, read as a whole, and held to what they were at the start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format.errors import ShardIOError
from shard_format.sources import FileSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

# Read into memory up to here. A mapping takes none, but somebody who cuts the file meanwhile ends the
# process: worth it for large files only.
_LARGEST_READ: Final = 64 << 20


class Found(NamedTuple):
    """Something below a folder that is no folder."""

    relative: str
    """Its path below the folder, with slashes."""
    path: str
    is_file: bool
    """A regular file; no link, pipe or device."""


def walk(folder: str) -> list[Found]:
    """All that lies below a folder, in the order of the names. Links are not followed."""
    return sorted(_walk(folder, ""))


def _walk(folder: str, prefix: str) -> Iterator[Found]:
    try:
        with os.scandir(folder) as listed:
            entries = list(listed)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot look into", folder) from error
    for entry in entries:
        relative = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, relative + "/")
        else:
            yield Found(relative, entry.path, entry.is_file(follow_symlinks=False))


class InputFile:
    """The content of a file, while it is packed.

    Leaving the `with` block without an error checks that the file is still the one that was opened, so
    that a file that was written to meanwhile is an error rather than a torn entry.
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
            """All of it, read-only."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._facts() != self._before:
            raise ShardIOError(
                "the file changed while it was packed",
                path=self._path,
                hint="pack it again when nobody writes to it",
            )
