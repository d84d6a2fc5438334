"""Whole files and folders between URLs and the local disk, for code that reads or writes local files only."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shard_format.atomic import write_file
from shard_format.errors import UnsafePath, shorten
from shard_format.listing import path_of_url
from shard_format.parallel import for_each
from shard_format.safe_paths import unsafe_form
from shard_format.sources import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["local_copy", "uploading"]

# Files at a time, and the bytes of one request.
_AT_ONCE = 4
_PIECE_BYTES = 8 << 20


@contextmanager
def local_copy(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """A local path of a file or folder; a local path is used as it is.

    What a URL names is fetched to a temporary folder, which goes at the end of the block.

    Raises:
        ShardIOError: a file is missing, or cannot be fetched.
        UnsafePath: the name of an object would lead out of the folder.
    """
    url = path_of_url(os.fspath(path))
    if not is_url(url):
        yield url
        return
    from shard_format.remote import is_store_url, list_url

    found = list_url(url, storage_options) if is_store_url(url) else []
    inner = len(url.rstrip("/")) + 1
    with tempfile.TemporaryDirectory(prefix="shard-") as folder:
        target = os.path.join(folder, _base(url))
        files = [(one.url, _below(target, one.url[inner:])) for one in found] or [(url, target)]
        for_each(files, lambda pair: _fetch(*pair, storage_options), min(_AT_ONCE, len(files)))
        yield target


@contextmanager
def uploading(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """A local path to write a file or folder to; a local path is used as it is.

    For a URL the path is in a temporary folder. At the end of the block the file is uploaded, or all files of the folder: those
    in inner folders first, so that a manifest beside them appears last. An error in the block uploads nothing.

    Raises:
        ShardIOError: the store refuses.
    """
    url = path_of_url(os.fspath(path))
    if not is_url(url):
        yield url
        return
    from shard_format.remote import upload

    with tempfile.TemporaryDirectory(prefix="shard-") as folder:
        target = os.path.join(folder, _base(url))
        yield target
        if os.path.isfile(target):
            upload(target, url, storage_options)
            return
        inner = [
            os.path.relpath(os.path.join(place, name), target)
            for place, _, names in os.walk(target)
            for name in names
        ]
        for is_top in (False, True):
            for_each(
                [name for name in inner if (os.sep not in name) is is_top],
                lambda name: upload(
                    os.path.join(target, name),
                    f"{url.rstrip('/')}/{name.replace(os.sep, '/')}",
                    storage_options,
                ),
                _AT_ONCE,
            )


def _base(url: str) -> str:
    return url.partition("?")[0].rstrip("/").rpartition("/")[2] or "data"


def _below(folder: str, name: str) -> str:
    """The path of an object below a folder. The store names it, so that it must not lead out."""
    if (reason := unsafe_form(name)) is not None:
        raise UnsafePath(f"cannot fetch {shorten(name)}: {reason}", path=folder)
    return os.path.join(folder, *name.split("/"))


def _fetch(url: str, path: str, storage_options: Mapping[str, Any] | None) -> None:
    from shard_format.remote import open_url

    source = open_url(url, storage_options)
    try:
        pieces = (
            source.read_at(start, min(_PIECE_BYTES, source.size() - start))
            for start in range(0, source.size(), _PIECE_BYTES)
        )
        write_file(path, pieces, fsync=False)
    finally:
        source.close()
