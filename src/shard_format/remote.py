"""Files behind a URL: HTTP(S) ranges with the standard library, object stores through obstore.

Opening takes one request, which also brings the first 64 KiB; reading an entry takes one more. Every
answer is held against the version that was opened, so that bytes of two versions are never mixed.
Names and error messages leave out what may be secret in a URL: user, password and query.
"""

from __future__ import annotations

import base64
import errno
import os
import random
import re
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

from shard_format._extras import require
from shard_format._memory import filled_bytes
from shard_format._parallel import for_each
from shard_format._version import __version__
from shard_format.errors import Closed, InvalidArgument, ShardError, ShardIOError
from shard_format.sources import FileSource, _truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from http.client import HTTPResponse

    from shard_format.sources import ByteSource

__all__ = ["Fetch", "HttpSource", "ObjectStoreSource", "open_url", "plan_ranges"]

Result = TypeVar("Result")

_WEB_SCHEMES = ("http", "https")
_STORE_SCHEMES = ("abfs", "abfss", "az", "gs", "s3")

# What opening fetches: the head of most files.
_HEAD = 1 << 16
# A read below `_SMALL` also brings what lies before it: it is likely the footer of a seek table, and
# the table and the frames are asked for next.
_SMALL = 1 << 12
_BLOCK = 1 << 16
# Ranges with less than this between them are fetched as one, up to `_MOST_MERGED`.
_GAP = 1 << 16
_MOST_MERGED = 1 << 24
_CONNECTIONS = 4
# A body is received in pieces of this size; after a break reading goes on behind the last one.
_PIECE = 1 << 20
# The largest file that is read whole from a server that knows no ranges.
_MOST_WHOLE = 1 << 26

_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
# What a signed address answers after its time.
_EXPIRED = frozenset({400, 401, 403, 404, 410})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_sleep = time.sleep

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.IGNORECASE)
_EMPTY = re.compile(r"bytes \*/0", re.IGNORECASE)
_OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "range", "te", "transfer-encoding"}
)


def open_url(url: str, storage_options: Mapping[str, Any] | None = None) -> ByteSource:
    """The source behind a URL.

    Args:
        url: `http(s)://`, `s3://`, `gs://`, `az://`, `abfs(s)://` or `file://`.
        storage_options: for HTTP the keyword arguments of `HttpSource`, for object stores what
            `obstore.store.from_url` takes.

    Raises:
        InvalidArgument: the scheme or an option is not known.
        MissingExtra: an object store without the extra `remote`.
    """
    scheme = url.partition("://")[0].lower()
    options = dict(storage_options or {})
    if scheme in _STORE_SCHEMES:
        return ObjectStoreSource(url, storage_options=options)
    known = ("headers", "retries", "timeout") if scheme in _WEB_SCHEMES else ()
    unknown = sorted(options.keys() - set(known))
    if scheme in (*_WEB_SCHEMES, "file") and unknown:
        raise InvalidArgument(
            f"no such storage option for {scheme}",
            path=_shown(url),
            expected=" or ".join(known) or "none",
            found=", ".join(unknown),
        )
    if scheme in _WEB_SCHEMES:
        return HttpSource(url, **options)
    if scheme == "file":
        return FileSource(_local_path(url))
    raise InvalidArgument(
        "no such kind of URL",
        path=_shown(url),
        expected=", ".join(f"{known}://" for known in (*_WEB_SCHEMES, *_STORE_SCHEMES, "file")),
        found=f"{scheme}://",
        hint="for a local file whose path looks like a URL, pass a pathlib.Path",
    )


# --- planning


@dataclass(frozen=True, slots=True)
class Fetch:
    """One request that serves several ranges."""

    start: int
    """First byte."""
    stop: int
    """End of the bytes."""
    members: tuple[int, ...]
    """The ranges it serves, as positions in the list that was asked for."""


def plan_ranges(
    ranges: Sequence[tuple[int, int]], *, gap: int = _GAP, most: int = _MOST_MERGED
) -> list[Fetch]:
    """The requests for these `(offset, length)` ranges, in the order of the file.

    Ranges that overlap or have at most `gap` bytes between them share a request, unless that would
    exceed `most` bytes. Empty ranges need none.
    """
    order = sorted((range_, position) for position, range_ in enumerate(ranges) if range_[1])
    plan: list[Fetch] = []
    for (offset, length), position in order:
        stop = offset + length
        if plan:
            last = plan[-1]
            merged = max(last.stop, stop)
            if offset - last.stop <= gap and merged - last.start <= most:
                plan[-1] = Fetch(last.start, merged, (*last.members, position))
                continue
        plan.append(Fetch(offset, stop, (position,)))
    return plan


# --- what all remote sources share


@dataclass(frozen=True, slots=True)
class _Version:
    """What tells one content of a URL from another."""

    size: int
    etag: str | None
    modified: str | None

    def difference(self, other: _Version) -> tuple[str, str] | None:
        """What contradicts, here and there. What only one side states contradicts nothing."""
        if self.size != other.size:
            return f"{self.size} bytes", f"{other.size} bytes"
        if self.etag and other.etag:
            # A proxy may weaken a tag on the way.
            if self.etag.removeprefix("W/") != other.etag.removeprefix("W/"):
                return f"ETag {_printable(self.etag)}", f"ETag {_printable(other.etag)}"
        elif self.modified and other.modified and self.modified != other.modified:
            return f"date {_printable(self.modified)}", f"date {_printable(other.modified)}"
        return None


class _RemoteSource(ABC):
    """Reads over a subclass that can fetch ranges; serves from memory what is already here.

    Owns: the first bytes of the file, and the block around the last small read.
    """

    name: str
    _version: _Version
    _head = b""
    _recent = (0, b"")
    _closed = False

    @abstractmethod
    def _fetch_into(self, offset: int, out: memoryview) -> None:
        """Fills memory with bytes that are inside the file."""

    def size(self) -> int:
        return self._version.size

    def read_at(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        stop = offset + length
        known = len(self._head)
        if stop <= known or not length:
            return self._head[offset:stop]
        start, block = self._recent
        if start <= offset and stop <= start + len(block):
            return block[offset - start : stop - start]
        if offset >= known:
            if length >= _SMALL:
                return self._fetch(offset, length)
            start = max(known, stop - _BLOCK)
            block = self._fetch(start, stop - start)
            self._recent = (start, block)
            return block[offset - start :]

        def fill(out: memoryview) -> None:
            out[: known - offset] = self._head[offset:]
            self._fetch_into(known, out[known - offset :])

        return filled_bytes(length, fill)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each `(offset, length)`, in the asked order; near ones share a request."""
        for offset, length in ranges:
            self._check(offset, length)
        known = len(self._head)
        here = [offset + length <= known for offset, length in ranges]
        results = [
            self._head[offset : offset + length] if inside else b""
            for (offset, length), inside in zip(ranges, here, strict=True)
        ]

        def fetch(part: Fetch) -> None:
            data = self._fetch(part.start, part.stop - part.start)
            for position in part.members:
                offset, length = ranges[position]
                results[position] = data[offset - part.start : offset - part.start + length]

        plan = plan_ranges(
            [(0, 0) if inside else wanted for wanted, inside in zip(ranges, here, strict=True)]
        )
        for_each(plan, fetch, min(_CONNECTIONS, len(plan)))
        return results

    def close(self) -> None:
        self._closed = True
        self._head, self._recent = b"", (0, b"")

    def _fetch(self, offset: int, length: int) -> bytes:
        return filled_bytes(length, lambda out: self._fetch_into(offset, out))

    def _check(self, offset: int, length: int) -> None:
        if self._closed:
            raise Closed("the source is closed", path=self.name)
        size = self._version.size
        if offset < 0 or length < 0 or (length and offset + length > size):
            raise _truncated(self.name, offset, length, max(0, size - offset))

    def _compare(self, version: _Version) -> None:
        difference = self._version.difference(version)
        if difference is not None:
            raise self._changed(*difference)

    def _changed(self, expected: str | None = None, found: str | None = None) -> ShardIOError:
        return self._failure(
            errno.ESTALE,
            "the file behind the URL changed after it was opened",
            expected=expected,
            found=found,
            hint="open it again",
        )

    def _failure(
        self,
        number: int,
        problem: str,
        *,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> ShardIOError:
        error = ShardIOError(problem, path=self.name, expected=expected, found=found, hint=hint)
        error.errno, error.strerror, error.filename = number, os.strerror(number), self.name
        return error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _reopen(cls: Callable[..., _RemoteSource], url: str, options: dict[str, Any]) -> _RemoteSource:
    return cls(url, **options)


# --- HTTP


class _TransientError(Exception):
    """Worth another try; `error` is what to raise when there is none left."""

    def __init__(self, error: ShardIOError, pause_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause_s = pause_s


class HttpSource(_RemoteSource):
    """A file on a web server, read with `Range` requests over connections that are kept.

    A file on a server that knows no ranges is read whole when it is opened, if it has at most 64 MiB;
    a larger one is refused before its body is read. Redirects are followed, five at most and never from
    https to http; headers and credentials of the caller go only to the server they were meant for. The
    proxies of the environment (`http_proxy`, `https_proxy`, `no_proxy`) are used.

    A change of the file is noticed by its size and its ETag, or else its date. Of a server that states
    neither only the size tells.

    Threads may share it, forked processes make connections of their own, and it pickles as its URL with
    its options, credentials included, and opens that again.

    Owns: the connections that are not in use.

    Args:
        url: `http://` or `https://`; a user and password in it are sent as basic authorization.
        headers: sent with every request, such as `Authorization`.
        timeout: seconds to wait for a connection, and for each piece of an answer.
        retries: how often one read tries again after a broken connection, a timeout, or an answer that
            means "later" (408, 425, 429, 500, 502, 503, 504), with growing pauses.

    Raises:
        ShardIOError: the server cannot be reached, refuses, or breaks the protocol; `errno` is ENOENT
            for a missing file, EACCES for a forbidden one, ESTALE for one that changed while it was open.
        InvalidArgument: the URL or a header is malformed.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        retries: int = 4,
    ) -> None:
        self._first = _Address.parse(url)
        self.name = self._first.shown
        if not timeout > 0 or retries < 0:
            raise InvalidArgument(
                "timeout must be above 0 and retries at least 0", found=f"{timeout}, {retries}"
            )
        self._headers = _checked_headers(headers or {}, self.name)
        self._options = {"headers": dict(headers or {}), "timeout": timeout, "retries": retries}
        self._retries = retries
        # Where redirects led last time.
        self._address = self._first
        self._connections = _Connections(timeout)
        try:
            self._retrying(self._open)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        self._connections.close()

    def __del__(self) -> None:
        # Absent if the arguments were refused.
        if hasattr(self, "_connections"):
            self._connections.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (HttpSource, self._first.url, self._options))

    # --- what is asked and answered

    def _open(self) -> None:
        with self._answer(0, _HEAD) as response:
            if response.status == 206:
                start, stop, version = self._content_range(response)
                if (start, stop) != (0, min(_HEAD, version.size)):
                    raise self._contradiction(f"bytes 0 to {_HEAD}", f"bytes {start} to {stop}")
                self._check_length(response, stop)
                self._head = filled_bytes(stop, lambda out: self._receive(response, out))
                self._version = version
            elif response.status == 200:
                self._head = self._whole(response)
                self._version = _Version(len(self._head), None, None)
            elif response.status == 416 and _EMPTY.fullmatch(_field(response, "Content-Range")):
                self._version = _Version(0, None, None)
            else:
                raise self._refusal(response)

    def _fetch_into(self, offset: int, out: memoryview) -> None:
        done, length = 0, len(out)

        def attempt() -> None:
            nonlocal done
            with self._answer(offset + done, offset + length) as response:
                if response.status == 416:
                    raise self._changed(f"{self.size()} bytes", "fewer")
                if response.status == 200:
                    raise self._no_ranges("the server answered with the whole file")
                if response.status != 206:
                    raise self._refusal(response)
                start, stop, version = self._content_range(response)
                self._compare(version)
                if (start, stop) != (offset + done, offset + length):
                    raise self._contradiction(
                        f"bytes {offset + done} to {offset + length}", f"bytes {start} to {stop}"
                    )
                self._check_length(response, stop - start)
                while done < length:
                    piece = out[done : done + _PIECE]
                    count = response.readinto(piece)
                    done += count
                    if count < len(piece):
                        raise self._short(length, done)
                _finish(response)

        self._retrying(attempt)

    def _content_range(self, response: HTTPResponse) -> tuple[int, int, _Version]:
        """Start and end of a partial answer, and what it is a part of."""
        text = _field(response, "Content-Range")
        match = _CONTENT_RANGE.fullmatch(text)
        if match is None:
            raise self._contradiction(
                "a Content-Range with the size of the file", repr(_printable(text))
            )
        self._check_encoding(response)
        start, last, size = (int(number) for number in match.groups())
        version = _Version(size, response.getheader("ETag"), response.getheader("Last-Modified"))
        return start, last + 1, version

    def _whole(self, response: HTTPResponse) -> bytes:
        """The body of a server that knows no ranges, if it is small."""
        self._check_encoding(response)
        length = response.length
        if length is None and _field(response, "Transfer-Encoding").lower() != "chunked":
            raise self._no_ranges("the server neither honours Range requests nor tells the size")
        body = response.read(_MOST_WHOLE + 1) if length is None else b""
        if (length or len(body)) > _MOST_WHOLE:
            raise self._no_ranges(
                "the server does not honour Range requests, and the file is too large to read whole",
                expected=f"at most {_MOST_WHOLE} bytes",
                found="more" if length is None else f"{length} bytes",
            )
        if length is None:
            return body
        return filled_bytes(length, lambda out: self._receive(response, out))

    def _receive(self, response: HTTPResponse, out: memoryview) -> None:
        count = response.readinto(out) if len(out) else 0
        if count < len(out):
            raise self._short(len(out), count)
        _finish(response)

    def _check_length(self, response: HTTPResponse, length: int) -> None:
        if response.length is not None and response.length != length:
            raise self._contradiction(
                f"a body of {length} bytes", f"Content-Length {response.length}"
            )

    def _check_encoding(self, response: HTTPResponse) -> None:
        encoding = _field(response, "Content-Encoding").lower()
        if encoding not in ("", "identity"):
            raise self._contradiction(
                "the bytes of the file", f"Content-Encoding {_printable(encoding)}"
            )

    # --- what goes wrong

    def _retrying(self, attempt: Callable[[], Result]) -> Result:
        failures = 0
        while True:
            try:
                return attempt()
            except _TransientError as trouble:  # noqa: PERF203 - a round takes a request
                if failures >= self._retries:
                    raise trouble.error from trouble.__cause__
                # Others may have broken with it.
                self._connections.drop()
                pause_s = _FIRST_PAUSE_S * 2**failures * random.uniform(0.5, 1.0)
                _sleep(min(max(pause_s, trouble.pause_s), _LONGEST_PAUSE_S))
                failures += 1

    def _short(self, expected: int, found: int) -> _TransientError:
        return _TransientError(
            self._failure(
                errno.ECONNRESET,
                "the connection ended before the answer did",
                expected=f"{expected} bytes",
                found=f"{found} bytes",
                hint="try again later",
            )
        )

    def _contradiction(self, expected: str, found: str) -> ShardIOError:
        return self._failure(
            errno.EPROTO,
            "the server's answer does not fit the request",
            expected=expected,
            found=found,
            hint="the server or a proxy mishandles Range requests: download the file and open that",
        )

    def _no_ranges(
        self, problem: str, *, expected: str | None = None, found: str | None = None
    ) -> ShardIOError:
        return self._failure(
            errno.EOPNOTSUPP,
            problem,
            expected=expected,
            found=found,
            hint="download the file and open that, or put it on a server that supports ranges",
        )

    def _refusal(self, response: HTTPResponse) -> ShardIOError | _TransientError:
        status = response.status
        number, hint = _STATUS_HINTS.get(status, (errno.EIO, None))
        answer = f"{status} {_printable(response.reason)}".rstrip()
        error = self._failure(number, f"the server answered {answer}", hint=hint)
        if status not in _TRY_AGAIN:
            return error
        error.hint = error.hint or "try again later"
        after = _field(response, "Retry-After")
        return _TransientError(error, float(after) if re.fullmatch(r"\d{1,6}", after) else 0.0)

    def _trouble(self, error: OSError | HTTPException) -> ShardIOError | _TransientError:
        """What a failure of the connection means."""
        if not isinstance(error, OSError):
            failure = self._failure(
                errno.ECONNRESET,
                f"the connection broke ({type(error).__name__})",
                hint="try again later",
            )
            return _TransientError(failure)
        if isinstance(error, socket.gaierror):  # whose errno is none of the system's
            failure = self._failure(
                errno.EHOSTUNREACH,
                f"the server's name cannot be resolved: {error.strerror}",
                hint="check the URL and the network",
            )
            return _TransientError(failure) if error.errno == socket.EAI_AGAIN else failure
        failure = ShardIOError.wrap(error, "cannot reach the server", self.name)
        if isinstance(error, ssl.SSLCertVerificationError):
            failure.hint = "the environment variable SSL_CERT_FILE can name authorities to trust"
            return failure
        if isinstance(error, TimeoutError) and error.errno is None:
            failure = self._failure(
                errno.ETIMEDOUT, "the server does not answer", hint="raise the timeout or try later"
            )
        again = isinstance(error, (ConnectionError, TimeoutError, ssl.SSLEOFError))
        return _TransientError(failure) if again else failure

    # --- requests

    @contextmanager
    def _answer(self, start: int, stop: int) -> Iterator[HTTPResponse]:
        """The answer to a request for these bytes, after redirects."""
        if self._closed:
            raise Closed("the source is closed", path=self.name)
        address, connection, response = self._send(start, stop)
        try:
            yield response
        except BaseException as error:
            response.close()
            connection.close()
            if isinstance(error, (OSError, HTTPException)) and not isinstance(error, ShardError):
                trouble = self._trouble(error)
                raise trouble from error
            raise
        self._connections.release(address, connection, response)

    def _send(self, start: int, stop: int) -> tuple[_Address, HTTPConnection, HTTPResponse]:
        address = remembered = self._address
        redirects = 0
        while True:
            connection, response = self._exchange(address, start, stop)
            if response.status in _EXPIRED and address is remembered is not self._first:
                self._connections.release(address, connection, response)
                address = self._address = self._first
            elif response.status in _REDIRECTS:
                location = _field(response, "Location")
                self._connections.release(address, connection, response)
                redirects += 1
                if redirects > _MOST_REDIRECTS:
                    raise self._failure(
                        errno.ELOOP,
                        "too many redirects",
                        expected=f"at most {_MOST_REDIRECTS}",
                        hint="check the URL",
                    )
                address = self._redirected(address, location)
            else:
                if response.status == 206:
                    self._address = address
                return address, connection, response

    def _exchange(
        self, address: _Address, start: int, stop: int
    ) -> tuple[HTTPConnection, HTTPResponse]:
        headers = {
            "User-Agent": f"shard-format/{__version__}",
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",
        }
        # Anything the caller sends may be a secret.
        if address.origin == self._first.origin:
            if self._first.authorization is not None:
                headers["Authorization"] = self._first.authorization
            headers |= self._headers
        while True:
            connection, target, extra, used = self._connections.take(address)
            try:
                connection.request("GET", target, headers=headers | extra)
                return connection, connection.getresponse()
            except (OSError, HTTPException) as error:
                connection.close()
                # A server may close an idle connection at any time; that says nothing about a new one.
                if used and isinstance(error, (ConnectionError, BadStatusLine)):
                    continue
                trouble = self._trouble(error)
                raise trouble from error
            except BaseException:
                connection.close()
                raise

    def _redirected(self, address: _Address, location: str) -> _Address:
        try:
            target = _Address.parse(urljoin(address.url, location)) if location else None
        except ValueError:  # InvalidArgument is one
            target = None
        if target is None or (address.secure and not target.secure):
            raise self._failure(
                errno.EPROTO,
                "the server redirects to where this reader does not follow",
                expected="https" if address.secure else "http or https",
                found=_shown(location[:200]) or "no Location",
                hint="check the URL",
            )
        return target


_STATUS_HINTS: dict[int, tuple[int, str]] = {
    401: (errno.EACCES, "pass credentials: headers={'Authorization': …}"),
    403: (errno.EACCES, "check the credentials, or whether a signed URL has expired"),
    404: (errno.ENOENT, "check the URL"),
    407: (errno.EACCES, "the proxy wants credentials: put them into its URL"),
    410: (errno.ENOENT, "check the URL"),
    429: (errno.EAGAIN, "the server is asked too often: try again later"),
}


def _field(response: HTTPResponse, name: str) -> str:
    return (response.getheader(name) or "").strip()


def _finish(response: HTTPResponse) -> None:
    """Reads what may follow a whole body, such as the last chunk, so that the connection can be kept."""
    with suppress(OSError, HTTPException):
        response.read(1)


def _printable(text: str, most: int = 80) -> str:
    """What a server says, fit to be shown."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


def _shown(url: str) -> str:
    """A URL without what may be secret in it."""
    bare, query, _ = url.partition("#")[0].partition("?")
    shown = re.sub(r"//[^/]*@", "//", bare, count=1)
    return _printable(shown, len(shown)) + ("?…" if query else "")


def _shown_malformed(url: str) -> str:
    """The same for a URL that cannot be taken apart: where a password in it ends is not known."""
    return f"{_shown(url.partition('://')[0])}://…" if "@" in url else _shown(url)


def _checked_headers(headers: Mapping[str, Any], name: str) -> dict[str, str]:
    """Headers that can be sent; messages do not repeat values, which may be secret."""
    for key, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", key) or key.lower() in _OWN_HEADERS:
            raise InvalidArgument(f"this header cannot be set: {key!r}", path=name)
        if not isinstance(value, str) or not re.fullmatch(r"[\t -~\u00a0-\u00ff]*", value):
            raise InvalidArgument(f"the value of the header {key!r} cannot be sent", path=name)
    # Names are the same in any case; `title` makes them replace our own.
    return {key.title(): value for key, value in headers.items()}


def _local_path(url: str) -> str:
    from urllib.request import url2pathname

    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidArgument(
            "this URL names no local file",
            path=_shown(url),
            expected="file:///path, with ? and # written as %3F and %23",
        )
    return url2pathname(parts.path)


@dataclass(frozen=True, slots=True)
class _Address:
    """A URL, taken apart for a request."""

    url: str
    secure: bool
    host: str
    port: int
    target: str
    authorization: str | None

    @property
    def origin(self) -> tuple[bool, str, int]:
        return self.secure, self.host, self.port

    @property
    def shown(self) -> str:
        return _shown(self.url)

    @classmethod
    def parse(cls, url: str) -> _Address:
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            port = parts.port
        except ValueError:  # a malformed port, address or name
            raise InvalidArgument("this is not a URL", path=_shown_malformed(url)) from None
        if parts.scheme not in _WEB_SCHEMES or not host or re.search(r"[^!-~]", host):
            raise InvalidArgument(
                "this is not a URL", path=_shown_malformed(url), expected="http(s)://host/path"
            )
        secure = parts.scheme == "https"
        target = quote(parts.path or "/", safe="/%!$&'()*+,;=:@~")
        if parts.query:
            target += "?" + quote(parts.query, safe="/%!$&'()*+,;=:@~?[]|")
        authorization = None
        if parts.username is not None:
            authorization = _basic(parts.username, parts.password)
        return cls(url, secure, host, port or (443 if secure else 80), target, authorization)


def _basic(user: str, password: str | None) -> str:
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


class _Connections:
    """Connections that are kept, each for one process and origin.

    There is no lock, which a fork could leave taken: dictionaries and deques are safe by themselves.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._idle: dict[tuple[object, ...], deque[HTTPConnection]] = {}
        self._proxies: dict[tuple[object, ...], _Address | None] = {}
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def take(self, address: _Address) -> tuple[HTTPConnection, str, dict[str, str], bool]:
        """A connection, the target and the headers to use with it, and whether it was used before."""
        origin = address.origin
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_for(address)
        proxy = self._proxies[origin]
        target, extra = address.target, {}
        if proxy is not None and not address.secure:
            host = f"[{address.host}]" if ":" in address.host else address.host
            target = f"http://{host}:{address.port}{target}"
            if proxy.authorization is not None:
                extra["Proxy-Authorization"] = proxy.authorization
        try:
            return self._for(address).pop(), target, extra, True
        except IndexError:
            return self._connect(address, proxy), target, extra, False

    def release(
        self, address: _Address, connection: HTTPConnection, response: HTTPResponse
    ) -> None:
        """Keeps the connection if the answer was read to its end, or has little left."""
        with suppress(OSError, HTTPException):
            if response.length is not None and response.length <= _SMALL:
                response.read()
        idle = self._for(address)
        whole = response.isclosed() and connection.sock is not None
        response.close()
        if whole and not self._closed and len(idle) < _CONNECTIONS:
            idle.append(connection)
        else:
            connection.close()

    def drop(self) -> None:
        """Closes what is not in use. In a forked process this leaves those of its parent open there."""
        for idle in list(self._idle.values()):
            with suppress(IndexError):
                while True:
                    idle.pop().close()

    def close(self) -> None:
        self._closed = True
        self.drop()

    def _for(self, address: _Address) -> deque[HTTPConnection]:
        return self._idle.setdefault((os.getpid(), *address.origin), deque())

    def _connect(self, address: _Address, proxy: _Address | None) -> HTTPConnection:
        to = proxy or address
        if not address.secure:
            return HTTPConnection(to.host, to.port, timeout=self._timeout)
        if self._context is None:  # reading the authorities takes longer than connecting
            context = ssl.create_default_context()
            context.set_alpn_protocols(["http/1.1"])
            self._context = context
        connection = HTTPSConnection(to.host, to.port, timeout=self._timeout, context=self._context)
        if proxy is not None:
            headers = {}
            if proxy.authorization is not None:
                headers["Proxy-Authorization"] = proxy.authorization
            connection.set_tunnel(address.host, address.port, headers)
        return connection


def _proxy_for(address: _Address) -> _Address | None:
    """The proxy that the environment names for an address."""
    # The variants without `_environment` also ask the system, which on macOS breaks forked processes.
    from urllib.request import getproxies_environment
    from urllib.request import proxy_bypass_environment as bypass  # type: ignore[attr-defined] # lacking in typeshed

    proxies = getproxies_environment()
    url = proxies.get("https" if address.secure else "http") or proxies.get("all")
    if not url or bypass(f"{address.host}:{address.port}", proxies):
        return None
    proxy = _Address.parse(url if "://" in url else f"http://{url}")
    if proxy.secure:
        raise InvalidArgument(
            "this kind of proxy is not supported", path=proxy.shown, expected="an http:// proxy"
        )
    return proxy


# --- object stores


class ObjectStoreSource(_RemoteSource):
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
    """

    def __init__(self, url: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
        self.name = _shown(url)
        self._url = url
        self._options = dict(storage_options or {})
        folder, _, key = url.rpartition("/")
        if not key or folder.endswith("/") or "?" in url or "#" in url:
            raise InvalidArgument(
                "this URL names no object",
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
        options = {"storage_options": self._options}
        return (_reopen, (ObjectStoreSource, self._url, options))

    def _open(self) -> None:
        try:
            result = self._obstore.get(self._store, self._key, options={"range": (0, _HEAD)})
            self._version = _object_version(result.meta)
            self._head = bytes(result.bytes())
        except (self._errors.BaseError, OSError) as error:
            # An empty object has no range.
            if isinstance(error, self._errors.GenericError) and "416" in str(error):
                with suppress(self._errors.BaseError, OSError):
                    self._version = _object_version(self._obstore.head(self._store, self._key))
                    if self._version.size == 0:
                        return
            raise self._store_failure(error) from error
        self._check_count(min(_HEAD, self._version.size), len(self._head))

    def _fetch_into(self, offset: int, out: memoryview) -> None:
        self._check_process()
        options: dict[str, Any] = {"range": (offset, offset + len(out))}
        etag = self._version.etag
        if etag and not etag.startswith("W/"):
            options["if_match"] = etag
        try:
            result = self._obstore.get(self._store, self._key, options=options)
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


def _object_version(meta: Mapping[str, Any]) -> _Version:
    return _Version(meta["size"], meta.get("e_tag"), str(meta.get("last_modified") or "") or None)


def _first_line(error: Exception) -> str:
    """What obstore says, without the dump that follows and without queries, which may hold a token."""
    line = (str(error).splitlines() or [""])[0]
    return _printable(re.sub(r"\?\S*", "?…", line), 300)
