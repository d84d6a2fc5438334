"""Whole files and folders between URLs and the local disk, for code that reads or writes local files only."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from shard_format.atomic import write_file
from shard_format.errors import UnsafePath, shorten
from shard_format.listing import path_of_url
from shard_format.parallel import for_each
from shard_format.safe_paths import unsafe_form
from shard_format.sources import is_url, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shard_format.remote import Version

__all__ = [
    "AT_ONCE",
    "base_name",
    "copy_urls",
    "fetch",
    "local_file",
    "names_below",
    "path_below",
    "read_anywhere",
    "remove_urls",
    "upload_tree",
    "uploading",
]

AT_ONCE: Final = 4
"""Files that are fetched or uploaded at the same time."""
# The bytes of one request.
_PIECE_BYTES: Final = 8 << 20
# Requests without a body that are made at the same time.
_SMALL_AT_ONCE: Final = 16


@contextmanager
def local_file(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """A local path of a file; a local path is used as it is.

    What a URL names is fetched to a temporary folder, which goes at the end of the block.

    Raises:
        ShardIOError: the file is missing, or cannot be fetched.
    """
    url = path_of_url(os.fspath(path))
    if not is_url(url):
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="shard-") as folder:
        target = os.path.join(folder, base_name(url))
        fetch(url, target, storage_options)
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
    with tempfile.TemporaryDirectory(prefix="shard-") as folder:
        target = os.path.join(folder, base_name(url))
        yield target
        upload_tree(target, url, storage_options)


def upload_tree(path: str, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
    """Uploads a file, or all files of a folder: those in inner folders first, so that a manifest beside them appears last.

    Raises:
        ShardIOError: the store refuses.
    """
    from shard_format.remote import upload

    if os.path.isfile(path):
        upload(path, url, storage_options)
        return
    inner = [
        os.path.relpath(os.path.join(place, name), path)
        for place, _, names in os.walk(path)
        for name in names
    ]
    for is_top in (False, True):
        for_each(
            [name for name in inner if (os.sep not in name) is is_top],
            lambda name: upload(
                os.path.join(path, name),
                f"{url.rstrip('/')}/{name.replace(os.sep, '/')}",
                storage_options,
            ),
            AT_ONCE,
        )


def names_below(url: str, storage_options: Mapping[str, Any] | None = None) -> dict[str, Version]:
    """The files below a URL that stands for a folder, by their names below it, as in a URL; none for a web server.

    Raises:
        ShardIOError: the store refuses.
    """
    from shard_format.remote import is_store_url, list_url

    found = list_url(url, storage_options) if is_store_url(url) else []
    inner = len(url.rstrip("/")) + 1
    return {one.url[inner:]: one.version for one in found}


def read_anywhere(path: str, *, most: int | None = None) -> bytes:
    """The content of a file, local or at a URL, or its first `most` bytes."""
    if not is_url(path):
        return read_file(path, most)
    from shard_format.remote import open_url

    with closing(open_url(path)) as source:
        size = source.size()
        return bytes(source.read_at(0, size if most is None else min(most, size)))


def copy_urls(
    pairs: Iterable[tuple[str, str]], storage_options: Mapping[str, Any] | None = None
) -> None:
    """Copies files within a store, several at a time; each pair is where one is, and where it shall be."""
    from shard_format.remote import copy_url

    for_each(pairs, lambda pair: copy_url(*pair, storage_options), _SMALL_AT_ONCE)


def remove_urls(urls: Iterable[str], storage_options: Mapping[str, Any] | None = None) -> None:
    """Removes the files at URLs, several at a time."""
    from shard_format.remote import delete_url

    for_each(urls, lambda url: delete_url(url, storage_options), _SMALL_AT_ONCE)


def base_name(url: str) -> str:
    """What a local copy of a URL is called."""
    return url.partition("?")[0].rstrip("/").rpartition("/")[2] or "data"


def path_below(folder: str, name: str) -> str:
    """The path of an object below a folder. The store names it, so that it must not lead out."""
    plain = unquote(name)
    if (reason := unsafe_form(plain)) is not None:
        raise UnsafePath(f"cannot fetch {shorten(name)}: {reason}", path=folder)
    return os.path.join(folder, *plain.split("/"))


def fetch(url: str, path: str, storage_options: Mapping[str, Any] | None = None) -> Version | None:
    """Copies the file at a URL to a local path, where it appears when it is complete; returns its version if it has one."""
    from shard_format.remote import RemoteSource, open_url

    with closing(open_url(url, storage_options, first_read=_PIECE_BYTES)) as source:
        pieces = (
            source.read_at(start, min(_PIECE_BYTES, source.size() - start))
            for start in range(0, source.size(), _PIECE_BYTES)
        )
        write_file(path, pieces, fsync=False)
        return source.version if isinstance(source, RemoteSource) else None
