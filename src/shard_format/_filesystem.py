"""Files of an fsspec filesystem, which the user passes or, for `hf://`, huggingface_hub brings."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shard_format._remote_source import (
    OPEN_BYTES,
    ListedUrl,
    RemoteSource,
    Version,
    io_failure,
    reopen,
    shown,
)
from shard_format.errors import InvalidArgument, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Filesystem:
    """The files behind URLs, as a filesystem of fsspec sees them.

    Args:
        filesystem: a `fsspec.AbstractFileSystem`.
        reading: what its `cat_file` takes beside a range.
    """

    def __init__(self, filesystem: Any, **reading: Any) -> None:  # noqa: ANN401 - fsspec is not installed everywhere
        missing = [
            name
            for name in ("cat_file", "find", "info", "put_file", "rm_file")
            if not hasattr(filesystem, name)
        ]
        if missing:
            raise InvalidArgument(
                "the storage option 'filesystem' cannot be used",
                expected="a filesystem of fsspec",
                found=type(filesystem).__name__,
            )
        self._filesystem = filesystem
        self._reading = reading

    def open(self, url: str, *, tail: bool, first_read: int) -> FilesystemSource:
        found = self._filesystem, self._reading
        return FilesystemSource(url, *found, tail=tail, first_read=first_read)

    def list(self, folder: str) -> list[ListedUrl]:
        with _our_errors(folder):
            found = self._filesystem.find(_path(self._filesystem, folder), detail=True)
        # Filesystems name files in their own way, which ends as the URL does.
        inner = folder.partition("://")[2].strip("/")
        return [
            ListedUrl(folder.rstrip("/") + path.partition(inner)[2], _version(facts))
            for path, facts in sorted(found.items())
        ]

    def upload(self, path: str, url: str, *, overwrite: bool) -> None:
        with _our_errors(url):
            inner = _path(self._filesystem, url)
            if not overwrite and self._filesystem.exists(inner):
                raise io_failure(shown(url), errno.EEXIST, "there is a file at this URL")
            # Some filesystems have folders.
            self._filesystem.makedirs(inner.rpartition("/")[0], exist_ok=True)
            self._filesystem.put_file(path, inner)

    def copy(self, url: str, target: str) -> None:
        with _our_errors(url):
            self._filesystem.cp_file(*(_path(self._filesystem, one) for one in (url, target)))

    def delete(self, url: str) -> None:
        with _our_errors(url):
            inner = _path(self._filesystem, url)
            if self._filesystem.exists(inner):
                self._filesystem.rm_file(inner)


class FilesystemSource(RemoteSource):
    """A file of an fsspec filesystem. The filesystem makes the requests and tries again; it cannot ask for a version.

    Args:
        url: of the file.
        filesystem: whose file it is.
        reading: what its `cat_file` takes beside a range.
        tail: opening brings the end of the file instead of its beginning.
        first_read: how many bytes opening brings.
    """

    def __init__(
        self,
        url: str,
        filesystem: Any,  # noqa: ANN401 - fsspec is not installed everywhere
        reading: dict[str, Any],
        *,
        tail: bool = False,
        first_read: int = OPEN_BYTES,
    ) -> None:
        super().__init__(shown(url))
        self._url, self._filesystem, self._tail = url, filesystem, tail
        self._reading = reading
        with _our_errors(url):
            self._path = _path(filesystem, url)
            self._version = _version(filesystem.info(self._path))
        length = min(first_read, self._version.size)
        start = self._version.size - length if tail else 0
        data = bytearray(length)
        if length:
            self._fetch_into(start, memoryview(data))
        self._keep(start, bytes(data))

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"filesystem": self._filesystem, "reading": self._reading, "tail": self._tail}
        return (reopen, (FilesystemSource, self._url, options))

    def _fetch_into(self, offset: int, out: memoryview) -> None:
        with _our_errors(self._url):
            stop = offset + len(out)
            data = self._filesystem.cat_file(self._path, start=offset, end=stop, **self._reading)
        if len(data) != len(out):
            raise self._failure(
                errno.EPROTO,
                "the filesystem gave a different number of bytes than it was asked for",
                expected=f"{len(out)} bytes",
                found=f"{len(data)} bytes",
            )
        out[:] = data


def _path(filesystem: Any, url: str) -> str:  # noqa: ANN401
    """The name of a file within a filesystem, which may have a different protocol than the URL."""
    protocols = filesystem.protocol
    known = (protocols,) if isinstance(protocols, str) else tuple(protocols)
    scheme, _, rest = url.partition("://")
    return url if scheme in known else rest


def _version(facts: dict[str, Any]) -> Version:
    etag = facts.get("ETag") or facts.get("etag") or facts.get("blob_id")
    changed = facts.get("LastModified") or facts.get("mtime") or facts.get("created")
    return Version(
        facts["size"], str(etag) if etag else None, str(changed) if changed is not None else None
    )


@contextmanager
def _our_errors(url: str) -> Iterator[None]:
    """Turns what a filesystem raises into an error that names the URL."""
    try:
        yield
    except ShardError:
        raise
    except FileNotFoundError as error:
        raise io_failure(shown(url), errno.ENOENT, "no such file", hint="check the URL") from error
    except PermissionError as error:
        raise io_failure(shown(url), errno.EACCES, f"the filesystem refuses: {error}") from error
    except OSError as error:
        raise io_failure(shown(url), errno.EIO, f"the filesystem failed: {error}") from error
