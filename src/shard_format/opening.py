"""From whatever a caller gives to the source of its bytes."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO, cast

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
    from collections.abc import Mapping

    from shard_format.sources import SourceLike

__all__ = ["open_source"]


def open_source(
    source: SourceLike,
    storage_options: Mapping[str, Any] | None = None,
    *,
    read_whole: int = -1,
) -> ByteSource:
    """The `ByteSource` for a path, URL, bytes, an open binary file, or a source, returned as is.

    Args:
        source: what to read.
        storage_options: for a URL, as `remote.open_url` takes them.
        read_whole: a local file of at most this many bytes is read at once, so that none stays open.
    """
    if isinstance(source, str) and is_url(source):
        from shard_format.remote import open_url  # imports what HTTP needs

        return open_url(source, storage_options)
    if isinstance(source, (FileSource, BytesSource)) and not storage_options:
        return source
    if storage_options:
        raise InvalidArgument(
            "storage_options are for URLs",
            expected="a URL, or no options",
            found=f"{type(source).__name__} and {', '.join(sorted(map(str, storage_options)))}",
        )
    if isinstance(source, (str, os.PathLike)):
        return open_file(source, read_whole)
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
