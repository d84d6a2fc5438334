"""Files on web servers, read with `Range` requests through the standard library."""

from __future__ import annotations

import base64
import errno
import os
import random
import re
import socket
import ssl
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

from shard_format._kernels import filled_bytes
from shard_format._remote_source import (
    CONNECTIONS,
    HEAD_BYTES,
    RemoteSource,
    Version,
    printable,
    reopen,
    shown,
)
from shard_format._version import __version__
from shard_format.errors import Closed, InvalidArgument, ShardError, ShardIOError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from http.client import HTTPResponse

Result = TypeVar("Result")

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


class _TransientError(Exception):
    """Worth another try; `error` is raised when no try is left."""

    def __init__(self, error: ShardIOError, pause_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause_s = pause_s


class HttpSource(RemoteSource):
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
        self._first = Address.parse(url)
        self.name = self._first.shown
        if not timeout > 0 or retries < 0:
            raise InvalidArgument(
                "timeout must be above 0 and retries at least 0", found=f"{timeout}, {retries}"
            )
        self._headers = checked_headers(headers or {}, self.name)
        self._options = {"headers": dict(headers or {}), "timeout": timeout, "retries": retries}
        self._retries = retries
        # Where redirects led last time.
        self._address = self._first
        self._connections = Connections(timeout)
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
        return (reopen, (HttpSource, self._first.url, self._options))

    # --- what is asked and answered

    def _open(self) -> None:
        with self._answer(0, HEAD_BYTES) as response:
            if response.status == 206:
                self._version = self._content_range(response, 0, HEAD_BYTES, opened=None)
                length = min(HEAD_BYTES, self._version.size)
                self._head = filled_bytes(length, lambda out: self._receive(response, out))
            elif response.status == 200:
                self._head = self._whole(response)
                self._version = Version(len(self._head), None, None)
            elif response.status == 416 and _EMPTY.fullmatch(_field(response, "Content-Range")):
                self._version = Version(0, None, None)
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
                self._content_range(response, offset + done, offset + length, self._version)
                while done < length:
                    piece = out[done : done + _PIECE]
                    count = response.readinto(piece)
                    done += count
                    if count < len(piece):
                        raise self._short(length, done)
                _finish(response)

        self._retrying(attempt)

    def _content_range(
        self, response: HTTPResponse, start: int, stop: int, opened: Version | None
    ) -> Version:
        """What a partial answer is a part of; refuses one of another version or to another request."""
        text = _field(response, "Content-Range")
        match = _CONTENT_RANGE.fullmatch(text)
        if match is None:
            raise self._contradiction(
                "a Content-Range with the size of the file", repr(printable(text))
            )
        self._check_encoding(response)
        first, last, size = (int(number) for number in match.groups())
        version = Version(size, response.getheader("ETag"), response.getheader("Last-Modified"))
        if opened is None:  # opening asks for more than there may be
            stop = min(stop, size)
        else:
            self._compare(version)
        if (first, last + 1) != (start, stop):
            raise self._contradiction(f"bytes {start} to {stop}", f"bytes {first} to {last + 1}")
        if response.length is not None and response.length != last + 1 - first:
            raise self._contradiction(
                f"a body of {last + 1 - first} bytes", f"Content-Length {response.length}"
            )
        return version

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

    def _check_encoding(self, response: HTTPResponse) -> None:
        encoding = _field(response, "Content-Encoding").lower()
        if encoding not in ("", "identity"):
            raise self._contradiction(
                "the bytes of the file", f"Content-Encoding {printable(encoding)}"
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
        answer = f"{status} {printable(response.reason)}".rstrip()
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
        if isinstance(error, socket.gaierror):  # its errno is not one of the system's
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

    def _send(self, start: int, stop: int) -> tuple[Address, HTTPConnection, HTTPResponse]:
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
        self, address: Address, start: int, stop: int
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

    def _redirected(self, address: Address, location: str) -> Address:
        try:
            target = Address.parse(urljoin(address.url, location)) if location else None
        except ValueError:  # InvalidArgument is one
            target = None
        if target is None or (address.secure and not target.secure):
            raise self._failure(
                errno.EPROTO,
                "the server redirects to a URL that this reader does not follow",
                expected="https" if address.secure else "http or https",
                found=shown(location[:200]) or "no Location",
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


# --- connections

WEB_SCHEMES = ("http", "https")
# The rest of an answer up to this size is read, so that its connection can be kept.
_LITTLE = 1 << 12
_OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "range", "te", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True)
class Address:
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
        return shown(self.url)

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            port = parts.port
        except ValueError:  # a malformed port, address or name
            raise InvalidArgument("not a URL", path=shown_malformed(url)) from None
        if parts.scheme not in WEB_SCHEMES or not host or re.search(r"[^!-~]", host):
            raise InvalidArgument(
                "not a URL", path=shown_malformed(url), expected="http(s)://host/path"
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


class Connections:
    """Connections that are kept, each for one process and origin.

    It needs no lock, which a fork could leave taken: dictionaries and deques are safe by themselves.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._idle: dict[tuple[object, ...], deque[HTTPConnection]] = {}
        self._proxies: dict[tuple[object, ...], Address | None] = {}
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def take(self, address: Address) -> tuple[HTTPConnection, str, dict[str, str], bool]:
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

    def release(self, address: Address, connection: HTTPConnection, response: HTTPResponse) -> None:
        """Keeps the connection if the answer was read to its end, or has little left."""
        with suppress(OSError, HTTPException):
            if response.length is not None and response.length <= _LITTLE:
                response.read()
        idle = self._for(address)
        whole = response.isclosed() and connection.sock is not None
        response.close()
        if whole and not self._closed and len(idle) < CONNECTIONS:
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

    def _for(self, address: Address) -> deque[HTTPConnection]:
        return self._idle.setdefault((os.getpid(), *address.origin), deque())

    def _connect(self, address: Address, proxy: Address | None) -> HTTPConnection:
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


def _proxy_for(address: Address) -> Address | None:
    """The proxy that the environment names for an address."""
    # The variants without `_environment` also ask the system, which on macOS breaks forked processes.
    from urllib.request import getproxies_environment
    from urllib.request import proxy_bypass_environment as bypass  # type: ignore[attr-defined] # lacking in typeshed

    proxies = getproxies_environment()
    url = proxies.get("https" if address.secure else "http") or proxies.get("all")
    if not url or bypass(f"{address.host}:{address.port}", proxies):
        return None
    proxy = Address.parse(url if "://" in url else f"http://{url}")
    if proxy.secure:
        raise InvalidArgument(
            "this kind of proxy is not supported", path=proxy.shown, expected="an http:// proxy"
        )
    return proxy


def checked_headers(headers: Mapping[str, Any], name: str) -> dict[str, str]:
    """Headers that can be sent; messages do not repeat values, which may be secret."""
    for key, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", key) or key.lower() in _OWN_HEADERS:
            raise InvalidArgument(f"this header cannot be set: {key!r}", path=name)
        if not isinstance(value, str) or not re.fullmatch(r"[\t -~\u00a0-\u00ff]*", value):
            raise InvalidArgument(f"the value of the header {key!r} cannot be sent", path=name)
    # Names are the same in any case; `title` makes them replace our own.
    return {key.title(): value for key, value in headers.items()}


def shown_malformed(url: str) -> str:
    """The same for a URL that cannot be taken apart: where a password in it ends is not known."""
    return f"{shown(url.partition('://')[0])}://…" if "@" in url else shown(url)
