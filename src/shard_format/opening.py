"""From whatever a caller gives to the source of its bytes."""

from __future__ import annotations

import io
import os
import threading
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict, cast
from weakref import ref

from shard_format.cache import BoundedCache, open_with_room
from shard_format.errors import InvalidArgument
from shard_format.sources import (
    ByteSource,
    BytesSource,
    FileObjectSource,
    FileSource,
    is_url,
    open_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Unpack

    from shard_format.disk_cache import KnownContent
    from shard_format.sources import Result, SourceLike

__all__ = ["UrlOpening", "copying_urls", "open_source", "sharing_files"]

# At most this many files of a group stay open; fewer if the process is short of descriptors.
_MOST_OPEN = 1024


class UrlOpening(TypedDict, total=False):
    """What opening a URL brings; see `remote.open_url`."""

    tail: bool
    first_read: int
    known: KnownContent | None


def open_source(
    source: SourceLike,
    storage_options: Mapping[str, Any] | None = None,
    *,
    read_whole: int = -1,
    **opening: Unpack[UrlOpening],
) -> ByteSource:
    """The `ByteSource` for a path, URL, bytes, an open binary file, or a source, returned as is.

    Args:
        source: what to read.
        storage_options: for a URL, as `remote.open_url` takes them.
        read_whole: a local file of at most this many bytes is read at once, so that none stays open.
        opening: for a URL, `tail`, `first_read` and `known` of `remote.open_url`.
    """
    if isinstance(source, str) and is_url(source):
        from shard_format.remote import open_url  # imports what HTTP needs

        copies = _COPIES.get()
        if copies is None:
            return open_url(source, storage_options, **opening)
        from shard_format.sequential import BLOCK_BYTES

        key = source, repr(storage_options)
        # Opening brings the first block of the copy.
        return copies.open(key, partial(open_url, source, storage_options, first_read=BLOCK_BYTES))
    if isinstance(source, (FileSource, BytesSource)) and not storage_options:
        return source
    if storage_options:
        raise InvalidArgument(
            "storage_options are for URLs",
            expected="a URL, or no options",
            found=f"{type(source).__name__} and {', '.join(sorted(map(str, storage_options)))}",
        )
    if isinstance(source, (str, os.PathLike)):
        files = _SHARED.get()
        if files is None:
            return open_file(source, read_whole)
        path = os.fspath(source)
        opened = files.open(lambda: open_file(path, read_whole))
        if isinstance(opened, FileSource):
            opened.share(files)
        return opened
    if isinstance(source, (bytes, bytearray, memoryview)):
        return BytesSource(source)
    # Only these two are known to have the bytes of their descriptor; a GzipFile has a fileno too.
    if type(source) in (io.BufferedReader, io.FileIO):
        file = cast("BinaryIO", source)
        if file.closed:
            raise InvalidArgument("the file is closed", path=str(file.name))
        return FileSource(file.name, os.dup(file.fileno()))
    if isinstance(source, io.TextIOBase):
        raise InvalidArgument(
            "the file is open as text",
            path=str(getattr(source, "name", "")),
            hint="open it with 'rb'",
        )
    if isinstance(source, ByteSource):
        return source
    if hasattr(source, "seek") and hasattr(source, "read"):
        return FileObjectSource(source)
    raise InvalidArgument(
        "cannot read from this object",
        expected="a path, a URL, bytes, a binary file that can seek, or a ByteSource",
        found=type(source).__name__,
    )


@contextmanager
def copying_urls() -> Iterator[None]:
    """URLs that are opened within the block, in this thread and in those that help it, are copied first.

    For someone who reads all of a file, perhaps several times and in any order: the file is fetched once, in large blocks,
    into a temporary file that has no name and vanishes when the block has ended and the last reader is closed. Errors still name
    the URL. A block within a block also has the copies of the outer one.
    """
    copies = _LocalCopies(_COPIES.get())
    token = _COPIES.set(copies)
    try:
        yield
    finally:
        _COPIES.reset(token)
        copies.close()


@contextmanager
def sharing_files() -> Iterator[None]:
    """Local files that this thread opens by path within the block share the descriptors that there are.

    For someone who must have hundreds of files open. While the process is short of descriptors, those that were opened
    first are closed until they are read again. A file that another one has replaced meanwhile is then an error. A block
    within a block joins it.
    """
    token = _SHARED.set(_SHARED.get() or _Group())
    try:
        yield
    finally:
        _SHARED.reset(token)


class _LocalCopies:
    """The copies of URLs in a block.

    Args:
        outer: those of the block around it.
    """

    def __init__(self, outer: _LocalCopies | None) -> None:
        self._outer = outer
        self._lock = threading.Lock()
        # One lock for each URL: threads copy several at once, and each of them once.
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._files: dict[tuple[str, str], FileSource] = {}

    def open(self, key: tuple[str, str], open_one: Callable[[], ByteSource]) -> ByteSource:
        """A source of its own on the copy; `key` is the URL and the options for it."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            known = self.known(key)
            if known is None:
                from shard_format.sequential import temporary_copy

                opened = open_one()
                if hasattr(opened, "view"):  # `file://` is here already
                    return opened
                with closing(opened):
                    known = self._files[key] = temporary_copy(opened)
            return known.another()

    def known(self, key: tuple[str, str]) -> FileSource | None:
        """The copy of this block, or of one around it."""
        found = self._files.get(key)
        return self._outer.known(key) if found is None and self._outer is not None else found

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _Group:
    """Which files of a group are open, oldest first. Pickles empty."""

    def __init__(self) -> None:
        self._open: BoundedCache[int, ref[FileSource]] = BoundedCache(
            count=_MOST_OPEN, on_evict=_release, holds_files=True
        )

    def open(self, open_one: Callable[[], Result]) -> Result:
        return open_with_room(open_one, self._open.clear)

    def opened(self, source: FileSource) -> None:
        self._open.put(id(source), ref(source))


def _release(reference: ref[FileSource]) -> None:
    source = reference()
    if source is not None:
        source.release()


_COPIES: ContextVar[_LocalCopies | None] = ContextVar("_COPIES", default=None)
_SHARED: ContextVar[_Group | None] = ContextVar("_SHARED", default=None)
