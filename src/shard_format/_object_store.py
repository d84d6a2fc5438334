"""Objects in S3, Google Cloud Storage and Azure: opened, listed, uploaded and deleted."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, unquote, urlsplit

from shard_format._bucket import NO_BUCKET, Bucket
from shard_format._remote_source import (
    OPEN_BYTES,
    TOTAL,
    ListedUrl,
    RemoteSource,
    StoreError,
    io_failure,
    reopen,
    shown,
)
from shard_format.errors import Closed, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shard_format._remote_source import Version

STORE_SCHEMES = ("abfs", "abfss", "az", "gs", "s3")

# Characters that a URL has unescaped; the names of objects have few others.
_PLAIN = "/ !$&'()*+,;=:@[]{}~"
# What went wrong and what to do, by `errno`.
_PROBLEMS = {
    errno.ENOENT: ("no such object", "check the URL"),
    errno.EACCES: ("the store denies access", "pass other credentials in storage_options"),
    errno.EEXIST: ("there is an object already", "choose another name, or allow replacing it"),
    errno.EINVAL: (
        "the store refuses the request",
        "check the region, the endpoint and the other storage options",
    ),
    errno.EAGAIN: ("the store is asked too often", "try again later"),
    errno.ECONNABORTED: (
        "the certificate of the store is not trusted",
        "check the endpoint; the environment variable SSL_CERT_FILE can name authorities to trust",
    ),
    errno.ECONNREFUSED: (
        "cannot reach the store",
        "check the endpoint, and whether the store runs",
    ),
    errno.EHOSTUNREACH: ("cannot reach the store", "check the endpoint and the network"),
    errno.ETIMEDOUT: (
        "the store does not answer in time",
        "try again later, or raise the storage option 'deadline'",
    ),
    errno.ECONNRESET: ("the connection to the store broke", "try again later"),
    errno.EOPNOTSUPP: (
        "the store answered with the whole object instead of a range",
        "download the object and open that",
    ),
    errno.EPROTO: (
        "the store gave other bytes than it was asked for",
        "a proxy may mishandle Range requests: download the object and open that",
    ),
}
# How the stores say that only the object is missing.
_NO_OBJECT = ("Not Found", "NoSuchKey", "BlobNotFound")
_EXPIRED = re.compile("ExpiredToken|TokenRefreshRequired|RequestExpired")


class ObjectStores:
    """The objects behind `s3://`, `gs://`, `az://` and `abfs(s)://` URLs.

    Args:
        options: as for `remote.open_url`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    def open(self, url: str, *, tail: bool, first_read: int) -> ObjectStoreSource:
        return ObjectStoreSource(
            url, storage_options=self._options, tail=tail, first_read=first_read
        )

    def list(self, folder: str) -> list[ListedUrl]:
        root, prefix = _split(folder)
        try:
            found = self._bucket(root).list(prefix)
        except StoreError as error:
            _raise(folder, error)
        TOTAL.add(0)
        return [ListedUrl(f"{root}/{quote(one.key, _PLAIN)}", one.version) for one in found]

    def upload(self, path: str, url: str, *, overwrite: bool) -> None:
        root, key = _split_object(url)
        try:
            self._bucket(root).put(key, path, overwrite=overwrite)
        except StoreError as error:
            _raise(url, error)

    def copy(self, url: str, target: str) -> None:
        (root, key), (other, new) = _split_object(url), _split_object(target)
        if root != other:
            raise InvalidArgument("objects can be copied within a bucket only", path=shown(target))
        try:
            self._bucket(root).copy(key, new)
        except StoreError as error:
            _raise(url, error)

    def delete(self, url: str) -> None:
        root, key = _split_object(url)
        try:
            self._bucket(root).delete(key)
        except StoreError as error:
            if error.number != errno.ENOENT:
                _raise(url, error)

    def _bucket(self, root: str) -> Bucket:
        return Bucket(root, self._options)


class ObjectStoreSource(RemoteSource):
    """An object in S3, Google Cloud Storage or Azure, through obstore (the extra `remote`).

    Every request names the version that was opened: a changed object is an error, which is why the
    ranges are planned here and not by `obstore.get_ranges`, which cannot ask for a version.

    Threads may share it, forked processes may use it, and it pickles as its URL with its options, credentials included.

    Args:
        url: `s3://bucket/key`, `gs://bucket/key`, `az://container/key` or
            `abfs(s)://container@account.dfs.core.windows.net/key`.
        storage_options: as for `remote.open_url`.
        tail: opening brings the end of the object instead of its beginning.
        first_read: how many bytes opening brings.
    """

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        tail: bool = False,
        first_read: int = OPEN_BYTES,
    ) -> None:
        super().__init__(shown(url))
        self._url = url
        self._options = dict(storage_options or {})
        self._tail, self._first_read = tail, first_read
        root, self._key = _split_object(url)
        self._bucket = Bucket(root, self._options)
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"storage_options": self._options, "tail": self._tail}
        return (reopen, (ObjectStoreSource, self._url, options))

    def _open(self) -> None:
        where: Any = {"suffix": self._first_read} if self._tail else (0, self._first_read)
        try:
            version, found, data = self._bucket.get(self._key, where)
        except StoreError as error:
            if self._tail and error.number == errno.EOPNOTSUPP:
                # Azure cannot be asked for the last bytes.
                self._tail = False
                self._open()
                return
            # An empty object has no range.
            if error.number != errno.ERANGE:
                _raise(self._url, error)
            version, found, data = self._empty(error), (0, 0), b""
        length = min(self._first_read, version.size)
        start = version.size - length if self._tail else 0
        self._version = version
        self._check_range((start, start + length), found, data)
        self._keep(start, bytes(data))

    def _empty(self, refusal: StoreError) -> Version:
        try:
            version = self._bucket.head(self._key)
        except StoreError as error:
            _raise(self._url, error)
        if version.size:
            _raise(self._url, refusal)
        return version

    def _fetch_into(self, offset: int, out: memoryview) -> None:
        if self._closed:
            raise Closed("the source is closed", path=self.name)
        wanted = (offset, offset + len(out))
        etag = self._version.etag
        try:
            version, found, data = self._bucket.get(self._key, wanted, etag)
        except StoreError as error:
            if error.number == errno.ESTALE:
                raise self._changed(f"ETag {etag}", "another") from None
            if error.number == errno.ERANGE:
                raise self._changed(f"{self.size()} bytes", "fewer") from None
            _raise(self._url, error)
        self._compare(version)
        self._check_range(wanted, found, data)
        out[:] = data

    def _check_range(self, wanted: tuple[int, int], found: tuple[int, int], data: bytes) -> None:
        if tuple(found) != wanted or len(data) != wanted[1] - wanted[0]:
            raise self._failure(
                errno.EPROTO,
                _PROBLEMS[errno.EPROTO][0],
                expected=f"bytes {wanted[0]} to {wanted[1]}",
                found=f"{len(data)} bytes from {found[0]}",
                hint=_PROBLEMS[errno.EPROTO][1],
            )


def _split(url: str) -> tuple[str, str]:
    """The bucket of a URL as a URL, and the key within it."""
    parts = urlsplit(url)
    if not parts.netloc or parts.query or parts.fragment:
        raise InvalidArgument(
            "the URL does not name an object",
            path=shown(url),
            expected="a URL such as s3://bucket/key, with ? and # written as %3F and %23",
        )
    return f"{parts.scheme.lower()}://{parts.netloc}", unquote(parts.path[1:])


def _split_object(url: str) -> tuple[str, str]:
    root, key = _split(url)
    if not key or key.endswith("/"):
        raise InvalidArgument(
            "the URL does not name an object", path=shown(url), expected="s3://bucket/key"
        )
    return root, key


def _raise(url: str, error: StoreError) -> NoReturn:
    problem, hint = _PROBLEMS.get(error.number, ("the store fails", "try again later"))
    if _EXPIRED.search(error.line):
        hint = "the credentials have expired: renew them, then open the file again"
    elif NO_BUCKET.search(error.line):
        problem, hint = "no such bucket", "check the URL and the endpoint"
    # For some stores, the user may be missing.
    is_missing = error.number == errno.ENOENT and error.line.endswith(_NO_OBJECT)
    found = None if is_missing or error.number == errno.EEXIST else error.line
    raise io_failure(shown(url), error.number, problem, found=found, hint=hint) from None
