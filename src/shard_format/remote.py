"""Files behind a URL: web servers through urllib3, object stores through obstore (the extra `remote`), fsspec.

`open_url` opens a file, `list_url` lists a folder, `upload` puts a file at a URL, and `delete_url` removes one. Opening
takes one request, which also brings the first or the last 64 KiB; reading an entry takes one more. Every answer is
held against the version that was opened, so that bytes of two versions are never mixed. Names and error messages leave
out what may be secret in a URL: user, password and query.

Storage options for every URL can stand in the environment variable SHARD_STORAGE_OPTIONS, as a JSON object.
"""

from __future__ import annotations

import errno
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from urllib.parse import urlsplit

from shard_format._filesystem import Filesystem, FilesystemSource
from shard_format._http_source import HttpSource
from shard_format._object_store import STORE_SCHEMES, ObjectStores, ObjectStoreSource
from shard_format._remote_source import (
    OPEN_BYTES,
    TOTAL,
    Fetch,
    ListedUrl,
    RemoteSource,
    RequestStats,
    Version,
    io_failure,
    plan_ranges,
    shown,
)
from shard_format.disk_cache import CACHE_OPTIONS, DiskCache
from shard_format.errors import InvalidArgument, did_you_mean
from shard_format.extras import require
from shard_format.http import WEB_SCHEMES
from shard_format.sources import BytesSource, FileSource, is_url, read_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shard_format.disk_cache import KnownContent
    from shard_format.sources import ByteSource

__all__ = [
    "TOTAL",
    "Fetch",
    "FilesystemSource",
    "HttpSource",
    "ListedUrl",
    "ObjectStoreSource",
    "RemoteSource",
    "RequestStats",
    "Version",
    "copy_url",
    "delete_url",
    "exists",
    "is_cached",
    "is_store_url",
    "list_url",
    "local_path",
    "open_url",
    "options_of_environment",
    "plan_ranges",
    "shown",
    "upload",
]

ENVIRONMENT = "SHARD_STORAGE_OPTIONS"
_SCHEMES = (*WEB_SCHEMES, *STORE_SCHEMES, "hf", "file", "memory")
_HTTP_OPTIONS = ("deadline", "headers", "retries", "timeout")


def open_url(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    tail: bool = False,
    first_read: int = OPEN_BYTES,
    known: KnownContent | None = None,
) -> ByteSource:
    """The source behind a URL.

    Args:
        url: `http(s)://`, `s3://`, `gs://`, `az://`, `abfs(s)://`, `hf://`, `file://` or `memory://`.
        storage_options: for HTTP the keyword arguments of `HttpSource`; for object stores what
            `obstore.store.from_url` takes, with `allow_http`, `timeout`, `deadline`, `retries` and `anonymous`. The option
            `filesystem` is a filesystem of fsspec that is used instead, whatever the scheme. The options `cache_dir` and
            `cache_bytes` keep what is fetched in a folder on a local disk; see `shard_format.disk_cache`.
        tail: opening brings the end of the file instead of its beginning.
        first_read: how many bytes opening brings: 64 KiB, or more for someone who reads the file at once.
        known: size and SHA-256 of the file. If the cache has it, no request is made.

    Raises:
        InvalidArgument: the scheme or an option is not known.
        MissingExtra: the extra `remote` is not installed.
    """
    if (path := local_path(url)) is not None:
        _refuse_options(url, dict(storage_options or {}), CACHE_OPTIONS)
        return FileSource(path)
    options = options_of_environment() if storage_options is None else storage_options
    place = _store_of(url, options)
    if options.get("cache_dir") is None:
        return place.open(url, tail=tail, first_read=first_read)
    if known is None:  # the request asks for the version, and the cache may have the rest
        first_read = OPEN_BYTES
    open_remote = partial(place.open, url, tail=tail, first_read=first_read)
    return _cache_of(options).open(url, open_remote, (open_url, (url, dict(options))), known)


def is_cached(
    url: str, storage_options: Mapping[str, Any] | None, known: KnownContent | None = None
) -> bool:
    """Whether the cache of the options has all of a file, so that reading it takes no requests."""
    options = storage_options or {}
    return options.get("cache_dir") is not None and _cache_of(options).holds(url, known)


def _cache_of(options: Mapping[str, Any]) -> DiskCache:
    cache = options["cache_dir"]
    return cache if isinstance(cache, DiskCache) else DiskCache(cache, options.get("cache_bytes"))


def list_url(url: str, storage_options: Mapping[str, Any] | None = None) -> list[ListedUrl]:
    """The files below a URL that stands for a folder, with or without a slash at its end; by name.

    Args:
        url: of a folder. One that is empty or missing has no files.
        storage_options: as for `open_url`.

    Raises:
        InvalidArgument: a web server cannot list.
        ShardIOError: the store refuses.
    """
    return _store_of(url, storage_options).list(url if url.endswith("/") else url + "/")


def exists(url: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether there is a file at a URL.

    Raises:
        ShardIOError: the server refuses or cannot be reached.
    """
    try:
        open_url(url, storage_options).close()
    except FileNotFoundError:
        return False
    return True


def upload(
    path: str,
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = True,
) -> None:
    """Puts a local file at a URL, where it appears complete or not at all.

    Large files go in parts; if that fails, the parts are removed. A process that is killed may leave parts, which no
    reader sees: let the store remove them after some days (in S3 by the lifecycle rule AbortIncompleteMultipartUpload).

    Args:
        path: of the file.
        url: `s3://`, `gs://`, `az://`, `abfs(s)://`, `hf://` or `memory://`.
        storage_options: as for `open_url`.
        overwrite: False is an error (EEXIST) if there is a file at the URL.

    Raises:
        InvalidArgument: the URL cannot be written.
        ShardIOError: the store refuses.
    """
    _store_of(url, storage_options).upload(path, url, overwrite=overwrite)


def copy_url(url: str, target: str, storage_options: Mapping[str, Any] | None = None) -> None:
    """Copies a file to another URL of the same store, without bringing it here.

    Raises:
        InvalidArgument: the URL cannot be written, or is in another bucket.
        ShardIOError: the store refuses.
    """
    _store_of(url, storage_options).copy(url, target)


def delete_url(url: str, storage_options: Mapping[str, Any] | None = None) -> None:
    """Removes the file at a URL. A missing file is not an error.

    Raises:
        InvalidArgument: the URL cannot be written.
        ShardIOError: the store refuses.
    """
    _store_of(url, storage_options).delete(url)


def is_store_url(text: str) -> bool:
    """Whether a text is a URL whose files can be listed and written."""
    return is_url(text) and text.partition("://")[0].lower() not in (*WEB_SCHEMES, "file")


def local_path(text: str) -> str | None:
    """The path that a `file://` URL names; None for any other text."""
    if not is_url(text) or text.partition("://")[0].lower() != "file":
        return None
    from urllib.request import url2pathname

    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidArgument(
            "the URL does not name a local file",
            path=shown(text),
            expected="file:///path, with ? and # written as %3F and %23",
        )
    return url2pathname(parts.path)


class _UrlStore(Protocol):
    """What keeps the files behind URLs of one kind."""

    def open(self, url: str, *, tail: bool, first_read: int) -> ByteSource: ...

    def list(self, folder: str) -> list[ListedUrl]: ...

    def upload(self, path: str, url: str, *, overwrite: bool) -> None: ...

    def copy(self, url: str, target: str) -> None: ...

    def delete(self, url: str) -> None: ...


def _store_of(url: str, storage_options: Mapping[str, Any] | None) -> _UrlStore:
    scheme = url.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        raise InvalidArgument(
            "unknown kind of URL",
            path=shown(url),
            expected=", ".join(f"{known}://" for known in _SCHEMES),
            found=f"{scheme}://",
            hint=did_you_mean(scheme, _SCHEMES)
            or "for a local file whose path looks like a URL, pass a pathlib.Path",
        )
    given = dict(storage_options or {})
    options = {name: value for name, value in given.items() if name not in CACHE_OPTIONS}
    # A cache alone says nothing about the store.
    if storage_options is None or (given and not options):
        options = options_of_environment()
    if "filesystem" in options:
        filesystem = options.pop("filesystem")
        _refuse_options(url, options, ("filesystem",))
        return Filesystem(filesystem)
    if scheme in STORE_SCHEMES:
        return ObjectStores(options)
    if scheme == "hf":
        hub = require("huggingface_hub", "huggingface").HfFileSystem(**options)
        # Otherwise it fetches 5 MiB more with each range, in case they are wanted next.
        return Filesystem(hub, cache_type="none")
    _refuse_options(url, options, _HTTP_OPTIONS if scheme in WEB_SCHEMES else ())
    return _MEMORY if scheme == "memory" else _Web(options)


def options_of_environment() -> dict[str, Any]:
    """The storage options of SHARD_STORAGE_OPTIONS.

    Raises:
        InvalidArgument: they are not a JSON object.
    """
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise InvalidArgument(
            f"the environment variable {ENVIRONMENT} cannot be used",
            expected='a JSON object, such as {"region": "eu-central-1"}',
        )
    return options


def _refuse_options(url: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise InvalidArgument(
            f"unknown storage option for {url.partition(':')[0].lower()}",
            path=shown(url),
            expected=" or ".join(known) or "none",
            found=", ".join(unknown),
        )


class _Web:
    """The files of web servers, which can only be read.

    Args:
        options: keyword arguments of `HttpSource`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def open(self, url: str, *, tail: bool, first_read: int) -> ByteSource:
        return HttpSource(url, **self._options, tail=tail, first_read=first_read)

    def list(self, folder: str) -> list[ListedUrl]:
        raise InvalidArgument(
            "a web server cannot list its files",
            path=shown(folder),
            hint="name the files, or a range such as train-{000000..000099}.shardpack",
        )

    def upload(self, path: str, url: str, *, overwrite: bool) -> None:
        del path, overwrite
        self._refuse(url)

    def copy(self, url: str, target: str) -> None:
        del url
        self._refuse(target)

    def delete(self, url: str) -> None:
        self._refuse(url)

    def _refuse(self, url: str) -> NoReturn:
        writable = [scheme for scheme in _SCHEMES if scheme not in WEB_SCHEMES]
        raise InvalidArgument(
            "files on a web server cannot be changed",
            path=shown(url),
            expected=f"a path, or {', '.join(f'{scheme}://' for scheme in writable)}",
        )


class _Memory:
    """The files of `memory://` URLs, which end with the process: for tests and examples."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def open(self, url: str, *, tail: bool, first_read: int) -> ByteSource:
        del tail, first_read
        data = self._files.get(url)
        if data is None:
            raise io_failure(shown(url), errno.ENOENT, "this process has written nothing here")
        return BytesSource(data, url)

    def list(self, folder: str) -> list[ListedUrl]:
        return [
            ListedUrl(url, Version(len(data), None, None))
            for url, data in sorted(self._files.items())
            if url.startswith(folder)
        ]

    def upload(self, path: str, url: str, *, overwrite: bool) -> None:
        if not overwrite and url in self._files:
            raise io_failure(shown(url), errno.EEXIST, "there is a file here")
        self._files[url] = read_file(path)

    def copy(self, url: str, target: str) -> None:
        self._files[target] = self._files[url]

    def delete(self, url: str) -> None:
        self._files.pop(url, None)


_MEMORY = _Memory()
