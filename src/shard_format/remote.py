"""Files behind a URL: HTTP(S) ranges through urllib3, object stores through obstore (the extra `remote`).

Opening takes one request, which also brings the first 64 KiB, or the last; reading an entry takes one more. Every
answer is held against the version that was opened, so that bytes of two versions are never mixed.
Names and error messages leave out what may be secret in a URL: user, password and query.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from shard_format._http_source import HttpSource
from shard_format._remote_source import (
    HEAD_BYTES,
    Fetch,
    RemoteSource,
    Version,
    plan_ranges,
    printable,
    reopen,
    shown,
)
from shard_format.errors import Closed, InvalidArgument, ShardError, ShardIOError
from shard_format.extras import require
from shard_format.http import WEB_SCHEMES
from shard_format.sources import FileSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shard_format.sources import ByteSource

__all__ = ["Fetch", "HttpSource", "ObjectStoreSource", "open_url", "plan_ranges"]

_STORE_SCHEMES = ("abfs", "abfss", "az", "gs", "s3")


def open_url(
    url: str, storage_options: Mapping[str, Any] | None = None, *, tail: bool = False
) -> ByteSource:
    """The source behind a URL.

    Args:
        url: `http(s)://`, `s3://`, `gs://`, `az://`, `abfs(s)://` or `file://`.
        storage_options: for HTTP the keyword arguments of `HttpSource`, for object stores what
            `obstore.store.from_url` takes.
        tail: True brings the last 64 KiB when it opens, in place of the first, if the server can do that.

    Raises:
        InvalidArgument: the scheme or an option is not known.
        MissingExtra: the extra `remote` is not installed.
    """
    scheme = url.partition("://")[0].lower()
    options = dict(storage_options or {})
    if scheme in _STORE_SCHEMES:
        return ObjectStoreSource(url, storage_options=options, tail=tail)
    known = ("headers", "retries", "timeout") if scheme in WEB_SCHEMES else ()
    unknown = sorted(options.keys() - set(known))
    if scheme in (*WEB_SCHEMES, "file") and unknown:
        raise InvalidArgument(
            f"unknown storage option for {scheme}",
            path=shown(url),
            expected=" or ".join(known) or "none",
            found=", ".join(unknown),
        )
    if scheme in WEB_SCHEMES:
        return HttpSource(url, **options, tail=tail)
    if scheme == "file":
        return FileSource(_local_path(url))
    raise InvalidArgument(
        "unknown kind of URL",
        path=shown(url),
        expected=", ".join(f"{known}://" for known in (*WEB_SCHEMES, *_STORE_SCHEMES, "file")),
        found=f"{scheme}://",
        hint="for a local file whose path looks like a URL, pass a pathlib.Path",
    )


def _local_path(url: str) -> str:
    from urllib.request import url2pathname

    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidArgument(
            "the URL does not name a local file",
            path=shown(url),
            expected="file:///path, with ? and # written as %3F and %23",
        )
    return url2pathname(parts.path)


class ObjectStoreSource(RemoteSource):
    """An object in S3, Google Cloud Storage or Azure, through obstore (the extra `remote`).

    Every request names the version that was opened: a changed object is an error, which is why the
    ranges are planned here and not by `obstore.get_ranges`, which cannot ask for a version. Retries
    and timeouts are obstore's, set by the options `retry_config` and `client_options`.

    Threads may share it, and it pickles as its URL with its options, credentials included. A process
    that was forked after obstore was used cannot use it: have workers started by spawn or forkserver.

    Owns: the store, which holds its connections.

    Args:
        url: `s3://bucket/key`, `gs://bucket/key`, `az://container/key` or
            `abfs(s)://container@account.dfs.core.windows.net/key`.
        storage_options: passed on to `obstore.store.from_url`; what is not given is taken from the
            environment, as obstore does.
        tail: True brings the last 64 KiB when it opens, in place of the first.
    """

    def __init__(
        self, url: str, *, storage_options: Mapping[str, Any] | None = None, tail: bool = False
    ) -> None:
        self.name = shown(url)
        self._is_tail = tail
        self._url = url
        self._options = dict(storage_options or {})
        folder, _, key = url.rpartition("/")
        if not key or folder.endswith("/") or "?" in url or "#" in url:
            raise InvalidArgument(
                "the URL does not name an object",
                path=self.name,
                expected="a URL such as s3://bucket/key, with ? and # written as %3F and %23",
            )
        # obstore decodes the folder in the same way.
        self._key = unquote(key)
        self._obstore = require("obstore", "remote")
        self._errors = require("obstore.exceptions", "remote")
        self._check_process()
        try:
            self._store = require("obstore.store", "remote").from_url(folder, **self._options)
        except (self._errors.BaseError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"obstore refuses this: {_first_line(error)}",
                path=self.name,
                hint="see obstore.store.from_url for the options of each store",
            ) from error
        self._open()

    def close(self) -> None:
        super().close()
        self._store = None

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"storage_options": self._options, "tail": self._is_tail}
        return (reopen, (ObjectStoreSource, self._url, options))

    def _open(self) -> None:
        if self._is_tail:
            tail = self._open_with({"suffix": HEAD_BYTES})
            if tail is not None:
                self._tail = (self._version.size - len(tail), tail)
                return
        self._head = self._open_with((0, HEAD_BYTES)) or b""

    def _open_with(self, part: tuple[int, int] | dict[str, int]) -> bytes | None:
        """Opens the object with a request for a part of it; returns the part, or None if the store has no suffixes."""
        try:
            result = self._obstore.get(self._store, self._key, options={"range": part})
            self._version = _object_version(result.meta)
            data = bytes(result.bytes())
        except (self._errors.BaseError, OSError) as error:
            if isinstance(part, dict) and _knows_no_suffix(error):
                return None
            # An empty object has no range.
            if isinstance(error, self._errors.GenericError) and "416" in str(error):
                with suppress(self._errors.BaseError, OSError):
                    self._version = _object_version(self._obstore.head(self._store, self._key))
                    if self._version.size == 0:
                        return b""
            raise self._store_failure(error) from error
        self._check_count(min(HEAD_BYTES, self._version.size), len(data))
        return data

    def _fetch_into(self, offset: int, out: memoryview) -> None:
        self._check_process()
        options: dict[str, Any] = {"range": (offset, offset + len(out))}
        etag = self._version.etag
        if etag and not etag.startswith("W/"):
            options["if_match"] = etag
        store = self._store
        if store is None:
            raise Closed("the source is closed", path=self.name)
        try:
            result = self._obstore.get(store, self._key, options=options)
            self._compare(_object_version(result.meta))
            data = memoryview(result.bytes())
        except ShardError:
            raise
        except self._errors.PreconditionError as error:
            raise self._changed(f"ETag {etag}", "another") from error
        except (self._errors.BaseError, OSError) as error:
            raise self._store_failure(error) from error
        self._check_count(len(out), len(data))
        out[:] = data

    def _check_count(self, expected: int, found: int) -> None:
        if expected != found:
            raise self._failure(
                errno.EPROTO,
                "the store gave another number of bytes than it was asked for",
                expected=f"{expected} bytes",
                found=f"{found} bytes",
            )

    def _check_process(self) -> None:
        """Refuses what would hang: obstore's threads do not follow into a forked process."""
        global _obstore_process
        if _obstore_process is None:
            _obstore_process = os.getpid()
        if _obstore_process != os.getpid():
            raise self._failure(
                errno.EOPNOTSUPP,
                "object stores cannot be used in a process that was forked after their first use",
                hint="start workers with the method 'spawn' or 'forkserver'",
            )

    def _store_failure(self, error: Exception) -> ShardIOError:
        number, hint = errno.EIO, None
        if isinstance(error, FileNotFoundError):
            number, hint = errno.ENOENT, "check the URL"
        elif isinstance(
            error, (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError)
        ):
            number, hint = errno.EACCES, "pass credentials in storage_options"
        return self._failure(number, f"the store refuses: {_first_line(error)}", hint=hint)


# The process in which obstore was used first.
_obstore_process: int | None = None


def _object_version(meta: Mapping[str, Any]) -> Version:
    return Version(meta["size"], meta.get("e_tag"), str(meta.get("last_modified") or "") or None)


def _knows_no_suffix(error: Exception) -> bool:
    """Whether a store refuses the last bytes of an object: Azure does, and some answer with all of it."""
    text = str(error)
    return "NotSupported" in type(error).__name__ or "non-partial" in text or "416" in text


def _first_line(error: Exception) -> str:
    """What obstore says, without the dump that follows and without queries, which may hold a token."""
    line = (str(error).splitlines() or [""])[0]
    return printable(re.sub(r"\?\S*", "?…", line), 300)
