"""JSON over HTTP with the standard library: one connection for each request, bounded in time, size and tries.

A connection that was kept open may be closed by the other side while a request is on its way, and
then nobody knows whether it arrived; stored twice would be found twice. Redirects are not followed, so
that the key goes to nobody else. Messages leave out what may be secret: the key, and any query.
"""

from __future__ import annotations

import errno
import json
import random
import re
import socket
import ssl
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from shard_format._version import __version__
from shard_format.errors import InvalidArgument, ShardIOError

if TYPE_CHECKING:
    from wshard.search.documents import Request

__all__ = ["SearchServerError", "Transport"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_LONGEST_TIMEOUT_S: Final = 86_400
_MOST_ANSWERED: Final = 64 << 20
_MOST_TEXT: Final = 4096
# Refused before anything was done, so that any request may be sent again.
_BUSY: Final = frozenset({429, 503})
# Here something may have been done.
_UNSURE: Final = frozenset({408, 502, 504})
_sleep = time.sleep

_HINTS: Final = {
    401: "give the server's token as api_key=",
    403: "the token lacks a permission that this needs",
    404: "check the URL and the collection's name; ensure_collections() makes the collections",
    413: "lower batch_size",
    429: "the server limits requests: raise batch_size, lower jobs, or try later",
    500: "is the collection there? Ingesting makes it; the server's log may say more",
    503: "the server is starting or overloaded: try later",
}


class SearchServerError(ShardIOError):
    """The server cannot be reached, refuses, or answers what cannot be used.

    `path` is the address without secrets, `errno` says what kind of failure it is.
    """

    status: int | None = None
    """Of the HTTP answer; None if there was none."""
    answer: str = ""
    """The beginning of what the server said, where it refused."""

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (kind, problem, state) = super().__reduce__()
        return rebuild, (kind, problem, {**state, "status": self.status, "answer": self.answer})


class Transport:
    """Sends requests to one server. Safe to use from several threads.

    Args:
        url: `http://host:port` or `https://…`, with a path in front of the server's own if need be.
        timeout: seconds without progress, and for all of an answer, after which a try is given up.
        api_key: sent as `Authorization: Bearer …`.
        retries: how often a request is sent again after it failed.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        api_key: str | None = None,
        retries: int = 3,
    ) -> None:
        self._secure, self._host, self._port, self._base = _parse(url)
        self.url = (
            f"{'https' if self._secure else 'http'}://{_netloc(self._host, self._port)}{self._base}"
        )
        if not 0 < timeout <= _LONGEST_TIMEOUT_S or retries < 0:
            raise InvalidArgument(
                "timeout and retries cannot be like this",
                expected=f"0 < timeout <= {_LONGEST_TIMEOUT_S} seconds and retries >= 0",
                found=f"timeout {timeout}, retries {retries}",
            )
        if api_key is not None and not re.fullmatch(r"[\x21-\x7e]+", api_key):
            # http.client would show it.
            raise InvalidArgument("the api_key has characters that no header can have")
        self._timeout = timeout
        self._retries = retries
        self._key = api_key
        self._context: ssl.SSLContext | None = None

    def send(self, request: Request) -> Any:  # noqa: ANN401 - JSON
        """The answer, decoded. Pauses and tries again where that is safe.

        Raises:
            SearchServerError: with the address, the status and what to do.
        """
        body = None if request.body is None else _encoded(request.body)
        failures = 0
        while True:
            trouble = self._attempt(request, body)
            if not isinstance(trouble, _Trouble):
                return trouble.value
            again = trouble.is_untouched or (trouble.is_passing and request.is_repeatable)
            if not again or failures >= self._retries:
                raise trouble.error from trouble.cause
            pause_s = _FIRST_PAUSE_S * 2**failures * random.uniform(0.5, 1.0)
            _sleep(min(max(pause_s, trouble.pause_s), _LONGEST_PAUSE_S))
            failures += 1

    # --- one try

    def _attempt(self, request: Request, body: bytes | None) -> _Answer | _Trouble:
        deadline = time.monotonic() + self._timeout
        connection = self._connection()
        try:
            try:
                connection.connect()
            except (OSError, HTTPException) as error:
                return self._unreachable(request, error)
            try:
                # Who refuses a long request may answer and hang up before all of it was sent.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(
                        request.method, self._base + request.path, body, self._headers()
                    )
                with connection.getresponse() as response:
                    if response.status >= 300:
                        return self._refusal(request, response, deadline)
                    answered = _read(response, _MOST_ANSWERED, deadline)
            except (OSError, HTTPException) as error:
                return self._broken(request, error)
        finally:
            connection.close()
        return self._decoded(request, response.status, answered)

    def _connection(self) -> HTTPConnection:
        if not self._secure:
            return HTTPConnection(self._host, self._port, timeout=self._timeout)
        if self._context is None:  # reading the authorities takes longer than connecting
            self._context = ssl.create_default_context()
        return HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "Connection": "close",
            "Content-Type": "application/json",
            "User-Agent": f"shard-format/{__version__}",
        }
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def _decoded(self, request: Request, status: int, answered: bytes) -> _Answer | _Trouble:
        if len(answered) > _MOST_ANSWERED:
            problem, found = "the answer is too large", f"more than {_MOST_ANSWERED} bytes"
            return _Trouble(self.error(request, problem, number=errno.EMSGSIZE, found=found))
        try:
            return _Answer(json.loads(answered, parse_constant=_no_number) if answered else None)
        except (ValueError, RecursionError):
            error = self.error(
                request,
                "the answer is not JSON",
                number=errno.EPROTO,
                found=repr(self._shown(answered, 80)),
                hint="is this the address of the vector database?",
            )
            error.status = status
            return _Trouble(error)

    # --- what goes wrong

    def error(
        self,
        request: Request,
        problem: str,
        *,
        number: int,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> SearchServerError:
        """The error for a request, with its address."""
        where = self.url + request.path
        error = SearchServerError(problem, path=where, expected=expected, found=found, hint=hint)
        error.errno, error.strerror, error.filename = number, problem, where
        return error

    def _refusal(self, request: Request, response: HTTPResponse, deadline: float) -> _Trouble:
        status = response.status
        text = self._shown(_read(response, _MOST_TEXT, deadline), 200)
        hint = _HINTS.get(status)
        if status < 400:
            target = (response.getheader("Location") or "").partition("?")[0]
            hint = f"redirects are not followed: use the address it points to, {self._shown(target.encode(), 200)}"
        number = errno.EACCES if status in (401, 403) else errno.EIO
        reason = f": {text}" if text else ""
        error = self.error(
            request, f"the server answered {status}{reason}", number=number, hint=hint
        )
        error.status, error.answer = status, text
        after = response.getheader("Retry-After") or ""
        return _Trouble(
            error,
            is_untouched=status in _BUSY,
            is_passing=status in _UNSURE,
            pause_s=float(after) if re.fullmatch(r"\d{1,6}", after) else 0.0,
        )

    def _unreachable(self, request: Request, error: Exception) -> _Trouble:
        """No connection was made, so the request was not sent."""
        if isinstance(error, socket.gaierror):
            failure = self.error(
                request,
                f"the server's name cannot be resolved: {error.strerror}",
                number=errno.EHOSTUNREACH,
                hint="check the URL and the network",
            )
            return _Trouble(failure, cause=error, is_untouched=error.errno == socket.EAI_AGAIN)
        if isinstance(error, ssl.SSLCertVerificationError):
            failure = self.error(
                request,
                f"the server's certificate is not trusted: {error.verify_message}",
                number=errno.EACCES,
                hint="the environment variable SSL_CERT_FILE can name authorities to trust",
            )
            return _Trouble(failure, cause=error)
        if isinstance(error, TimeoutError):
            return self._late(request, error, is_untouched=True)
        if isinstance(error, ssl.SSLError):
            failure = self.error(
                request,
                f"no secure connection can be made: {error.reason or type(error).__name__}",
                number=errno.EPROTO,
                hint="does the server speak https? Otherwise give a URL with http://",
            )
            return _Trouble(failure, cause=error)
        reason = getattr(error, "strerror", None) or type(error).__name__
        failure = self.error(
            request,
            f"cannot reach the server: {reason}",
            number=getattr(error, "errno", None) or errno.ECONNREFUSED,
            hint="start the server, or check host and port of the URL",
        )
        return _Trouble(failure, cause=error, is_untouched=isinstance(error, ConnectionError))

    def _broken(self, request: Request, error: Exception) -> _Trouble:
        if isinstance(error, TimeoutError):
            return self._late(request, error, is_untouched=False)
        failure = self.error(
            request,
            f"the connection broke ({type(error).__name__})",
            number=errno.ECONNRESET,
            hint=_once_more(request),
        )
        return _Trouble(failure, cause=error, is_passing=True)

    def _late(self, request: Request, error: Exception, *, is_untouched: bool) -> _Trouble:
        failure = self.error(
            request,
            f"the server did not answer within {self._timeout:g} s",
            number=errno.ETIMEDOUT,
            hint=f"raise timeout=; {_once_more(request)}",
        )
        return _Trouble(failure, cause=error, is_untouched=is_untouched, is_passing=True)

    def _shown(self, said: bytes, most: int) -> str:
        """What a server says, fit to be shown: one line, without the key should it repeat that."""
        text = said.decode("utf-8", "replace")
        if self._key is not None:
            text = text.replace(self._key, "…")
        text = " ".join(text.split())
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
        return text if len(text) <= most else text[:most] + "…"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_context": None}

    def __repr__(self) -> str:
        return f"<Transport {self.url}>"


class _Answer:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:  # noqa: ANN401 - JSON
        self.value = value


class _Trouble:
    """A failed try: the error, and whether another try is safe."""

    __slots__ = ("cause", "error", "is_passing", "is_untouched", "pause_s")

    def __init__(
        self,
        error: SearchServerError,
        *,
        cause: Exception | None = None,
        is_untouched: bool = False,
        is_passing: bool = False,
        pause_s: float = 0.0,
    ) -> None:
        self.error = error
        self.cause = cause
        self.is_untouched = is_untouched  # surely nothing was done
        self.is_passing = is_passing  # nobody knows whether something was done
        self.pause_s = pause_s


def _once_more(request: Request) -> str:
    if request.is_repeatable:
        return "try again later"
    return "it may have been carried out: ingesting again replaces what is there"


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _encoded(body: Any) -> bytes:  # noqa: ANN401 - JSON
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


def _read(response: HTTPResponse, most: int, deadline: float) -> bytes:
    """The body, up to one byte more than `most`. A body that drips in is given up at the deadline."""
    pieces: list[bytes] = []
    size = 0
    while size <= most:
        piece = response.read1(min(1 << 16, most + 1 - size))
        if not piece:
            if response.length:
                raise ConnectionResetError(errno.ECONNRESET, "the answer was cut off")
            break
        pieces.append(piece)
        size += len(piece)
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(pieces)


def _parse(url: str) -> tuple[bool, str, int, str]:
    """Secure, host, port and base path. What may be secret in a URL is refused, and not shown."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except (TypeError, ValueError, AttributeError):
        raise InvalidArgument("this is no URL", expected="http://host:port") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidArgument(
            "the URL has more than an address",
            expected="http://host:port",
            found="a user, a query or a fragment, not shown",
            hint="give the server's token as api_key=",
        )
    if parts.scheme not in ("http", "https") or not host or re.search(r"[^\x21-\x7e]", url):
        raise InvalidArgument(
            "this is no address of a server", expected="http://host:port", found=repr(url)
        )
    secure = parts.scheme == "https"
    return secure, host, port or (443 if secure else 80), parts.path.rstrip("/")


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
