"""HTTP for the whole family: `Client` bounds the time and the bytes of each request. It needs urllib3.

An answer must be complete within the timeout, plus a second for each 64 KiB that were transferred; besides its
body it has at most 64 KiB. Headers and passwords go only to the server that they were given for. Proxies,
logs and error messages see no more of a URL than they must.
"""

from __future__ import annotations

import base64
import errno
import math
import os
import random
import re
import socket
import ssl
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

from shard_format._remote_source import printable, shown
from shard_format._version import __version__
from shard_format.errors import InvalidArgument
from shard_format.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from urllib3 import BaseHTTPResponse, PoolManager

    from shard_format._http_connection import Budget
    from shard_format.errors import ShardIOError

WEB_SCHEMES = ("http", "https")

Result = TypeVar("Result")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# A body is received in pieces of this size at most.
_PIECE = 1 << 18
# The rest of an answer up to this size is read, so that its connection can be kept.
_LITTLE = 1 << 12
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_sleep, _now = time.sleep, time.monotonic
DEADLINE_S = 60.0
"""What a read may take in all by default: tries, pauses and answers."""
# A read that is faster than this may take longer.
_SLOWEST_PER_S = 1 << 16


class TryAgain(Exception):
    """Worth another try; `error` is raised when no try is left."""

    def __init__(self, error: ShardIOError, pause_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause_s = pause_s


class Deadline:
    """Until when all tries of a read must be done: for `seconds`, and a second more for each 64 KiB that came."""

    def __init__(self, seconds: float) -> None:
        self._until = _now() + seconds

    def seconds_left(self) -> float:
        """How much time is left; at most 0 if none is."""
        return self._until - _now()

    def received(self, count: int) -> None:
        """Bytes came: allow for their time."""
        self._until += count / _SLOWEST_PER_S


def retrying(
    attempt: Callable[[], Result], retries: int, deadline: Deadline | None = None
) -> Result:
    """What `attempt` returns; after `TryAgain` it is called again, up to `retries` times, with growing pauses.

    A pause that would end after the deadline is not made: the error comes at once. Without a deadline, no pause is longer
    than half a minute.
    """
    failures = 0
    while True:
        try:
            return attempt()
        except TryAgain as trouble:
            error = trouble.error
            failures += 1
            pause_s = _FIRST_PAUSE_S * 2 ** (failures - 1) * random.uniform(0.5, 1.0)
            pause_s = max(min(pause_s, _LONGEST_PAUSE_S), trouble.pause_s)
            left_s = math.inf
            if deadline is None:
                pause_s = min(pause_s, _LONGEST_PAUSE_S)
            else:
                left_s = deadline.seconds_left()
            if failures <= retries and pause_s <= left_s:
                _sleep(pause_s)
                continue
            if failures > 1:
                error.problem += f", in {failures} tries"
            if failures <= retries:  # the deadline ends it
                wish = f"the server asks you to wait for {trouble.pause_s:g} s"
                other = "try again later, or raise the storage option 'deadline'"
                error.hint = wish if trouble.pause_s else other
            cause = trouble.__cause__
        try:
            raise error from cause
        finally:
            del error, cause  # the traceback has this frame


@dataclass(eq=False)
class Broken(Exception):
    """The answer is missing or incomplete. The caller raises an error of its own with these words."""

    number: int
    """The `errno` that fits best."""
    problem: str
    hint: str = "try again later"
    expected: str | None = None
    found: str | None = None
    may_pass: bool = False
    """Whether trying again may help."""
    was_sent: bool = True
    """Whether the server may have received the request."""


def cut_off(expected: int, found: int) -> Broken:
    """A body that has too few bytes."""
    return Broken(
        errno.ECONNRESET,
        "the connection ended before the answer did",
        expected=f"{expected} bytes",
        found=f"{found} bytes",
        may_pass=True,
    )


class Answer:
    """What a server answers. It ends with the `with` block of the request."""

    def __init__(self, response: BaseHTTPResponse, budget: Budget, address: Address) -> None:
        self._response, self._budget = response, budget
        self.address = address
        """Where it comes from, after redirects."""
        self.status, self.reason = response.status, response.reason or ""
        self.length = response.length_remaining
        """Of the body in bytes; None if the server does not tell."""

    def header(self, name: str) -> str:
        """A header, or an empty string."""
        return self._response.headers.get(name, "").strip()

    def retry_after_s(self) -> float:
        """How long the server asks to wait before another try."""
        after = self.header("Retry-After")
        if re.fullmatch(r"\d{1,6}", after):
            return float(after)
        try:
            return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
        except ValueError:  # missing, or not a date
            return 0.0

    def pieces(self, most: int) -> Iterator[bytes]:
        """The body as it comes, without what follows the first `most` bytes."""
        while most > 0:
            wanted = min(most, _PIECE)
            if self._response.length_remaining is not None:
                # `http.client` in Python up to 3.12 would read on behind the body.
                wanted = min(wanted, self._response.length_remaining or 1)
            self._budget.want(wanted)
            piece = self._response.read1(wanted, decode_content=False)[:most]
            if not piece:
                break
            self._budget.delivered(len(piece))
            most -= len(piece)
            yield piece
        left = self._response.length_remaining
        if most and left and self.length:
            raise cut_off(self.length, self.length - left)

    def close(self, *, keep_connection: bool = False) -> None:
        """Keeps the connection if little of the answer is left, such as a last chunk."""
        from shard_format._http_connection import HTTPError

        left = self._response.length_remaining
        if keep_connection and not self._response.closed and (left is None or left <= _LITTLE):
            with suppress(HTTPError, Broken):
                deque(self.pieces(1 if left is None else left + 1), maxlen=0)
        self._response.close()


class Client:
    """Sends requests over connections that are kept. Threads may share it; forked processes make their own.

    Owns: the connections that are not in use.

    Args:
        home: the server that `headers` and the password in its URL are for. No other gets them.
        headers: sent with every request to that server.
        timeout: seconds for a whole request: resolving the name, connecting, proxies, sending, redirects, and the answer. A second is
            added for each 64 KiB that are transferred.
        most_redirects: how many to follow, never from https to http. If 0, you get the answer that redirects.
        use_proxies: whether to use those that the environment names when a server is asked for the first time.

    Raises:
        MissingExtra: urllib3 is not installed.
    """

    def __init__(
        self,
        home: Address,
        headers: Mapping[str, str],
        timeout: float,
        *,
        most_redirects: int = 0,
        use_proxies: bool = False,
    ) -> None:
        require("urllib3", "remote")
        self._home, self._headers, self._timeout = home, headers, timeout
        self._most_redirects, self._use_proxies = most_redirects, use_proxies
        self._managers: dict[tuple[object, ...], PoolManager] = {}
        # By server. To read the environment for every request would take a fifth of its processor time.
        self._proxies: dict[tuple[bool, str, int], Address | None] = {}

    @contextmanager
    def request(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[Answer]:
        """Send a request, and give its answer to the `with` block.

        Args:
            method: such as `GET`.
            address: whom to ask.
            headers: besides those of the client.
            body: of the request.
            timeout: less than that of the client, if less time is left.

        Raises:
            Broken: also out of the block, if the rest of the answer does not come.
        """
        from shard_format._http_connection import Budget, HTTPError

        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        budget = Budget(seconds)
        answer: Answer | None = None
        try:
            for _ in range(self._most_redirects + 1):
                answer = Answer(self._send(budget, method, address, headers, body), budget, address)
                if answer.status not in _REDIRECTS or not self._most_redirects:
                    break
                address = _redirected(address, answer.header("Location"))
                answer.close(keep_connection=True)
            else:
                most = f"at most {self._most_redirects}"
                raise Broken(errno.ELOOP, "too many redirects", "check the URL", expected=most)
            yield answer
            answer.close(keep_connection=True)
        except (HTTPError, TimeoutError) as error:
            raise _explained(error, budget.was_sent, seconds) from error
        finally:
            if answer is not None:
                answer.close()

    def close(self) -> None:
        """Close what is not in use. In a forked process this leaves the connections of its parent open there."""
        for key in list(self._managers):
            if key[0] == os.getpid():
                self._managers.pop(key).clear()

    def _send(
        self,
        budget: Budget,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> BaseHTTPResponse:
        from shard_format._http_connection import BUDGET, HTTPError

        headers = {"User-Agent": f"shard-format/{__version__}", **headers}
        # Anything the caller sends may be a secret.
        if address.origin == self._home.origin:
            if self._home.authorization is not None:
                headers["Authorization"] = self._home.authorization
            headers |= self._headers
        if self._use_proxies and address.origin not in self._proxies:
            self._proxies[address.origin] = _proxy_for(address)
        proxy = self._proxies.get(address.origin)
        is_forwarded = proxy is not None and not address.secure
        while True:
            budget.start(address.server + address.target if is_forwarded else address.target)
            token = BUDGET.set(budget)
            try:
                return self._manager(address.secure, proxy).urlopen(
                    method,
                    address.server,
                    body=body,
                    headers=headers,
                    timeout=budget.seconds_left(),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    enforce_content_length=False,
                )
            except HTTPError:
                # A server may close an idle connection at any time; that says nothing about a new one.
                if not (budget.was_sent and budget.may_be_stale and method == "GET"):
                    raise
            finally:
                BUDGET.reset(token)

    def _manager(self, secure: bool, proxy: Address | None) -> PoolManager:
        from shard_format._http_connection import connections

        # Locks and connections of another process cannot be used.
        key = (os.getpid(), secure, proxy)
        if key not in self._managers:
            # One for all connections: reading the authorities takes longer than connecting.
            context = ssl.create_default_context() if secure else None
            server, secret = (proxy.server, proxy.authorization) if proxy else (None, None)
            made = connections(server, secret, context)
            self._managers.setdefault(key, made)
        return self._managers[key]


def _explained(error: Exception, was_sent: bool, seconds: float) -> Broken:
    """What a failure of the connection means."""
    from shard_format._http_connection import MOST_HEAD, LookupTimeout, TooManyBytes

    cause: BaseException = error
    # urllib3 keeps what it wraps in one place or the other.
    while inner := [one for one in (*cause.args, cause.__cause__) if isinstance(one, Exception)]:
        cause = inner[-1]
    number = getattr(cause, "errno", None)
    may_pass, expected = False, None
    if isinstance(cause, socket.gaierror):  # its errno is not one of the system's
        problem = f"the server's name cannot be resolved: {cause.strerror}"
        may_pass, number = number == socket.EAI_AGAIN, errno.EHOSTUNREACH
        hint = "check the URL and the network"
    elif isinstance(cause, LookupTimeout):
        problem = f"the server's name was not resolved within {seconds:.3g} s"
        may_pass, number = True, errno.ETIMEDOUT
        hint = "check the URL and the network, or raise timeout="
    elif isinstance(cause, TimeoutError):
        problem = f"the server did not answer within {seconds:.3g} s"
        may_pass, number, hint = True, errno.ETIMEDOUT, "raise timeout=, or try again later"
    elif isinstance(cause, TooManyBytes):
        problem, hint = "the answer has too many headers or trailers", "check the URL"
        expected = f"at most {MOST_HEAD} bytes besides the body"
    elif isinstance(cause, ssl.SSLCertVerificationError):
        problem = f"the server's certificate is not trusted: {cause.verify_message}"
        number = errno.EPROTO
        hint = "the environment variable SSL_CERT_FILE can name authorities to trust"
    elif isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        problem = f"no secure connection can be made: {cause.reason or type(cause).__name__}"
        number = errno.EPROTO
        hint = "does the server speak https? Otherwise give a URL with http://"
    elif type(cause) is OSError and number is None:
        problem = f"the proxy refuses: {printable(str(cause))}"
        number, hint = errno.EACCES, "check the proxy that the environment names"
    elif isinstance(cause, OSError) and not (was_sent or isinstance(cause, ssl.SSLError)):
        problem = f"cannot reach the server: {cause.strerror or cause}"
        may_pass = isinstance(cause, ConnectionError)
        hint = "start the server, or check host and port of the URL"
    else:
        problem = f"the connection broke ({type(cause).__name__})"
        number, hint = errno.ECONNRESET, "try again later"
        may_pass = not isinstance(cause, ValueError)  # as urllib3 refuses a URL
    return Broken(
        number or errno.EIO, problem, hint, expected, may_pass=may_pass, was_sent=was_sent
    )


def _redirected(address: Address, location: str) -> Address:
    try:
        target = Address.parse(urljoin(address.url, location)) if location else None
    except ValueError:  # InvalidArgument is one
        target = None
    if target is None or (address.secure and not target.secure):
        raise Broken(
            errno.EPROTO,
            "the server redirects to a URL that this reader does not follow",
            "check the URL",
            expected="https" if address.secure else "http or https",
            found=shown(location[:200]) or "no Location",
        )
    return target


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
        """Whom secrets are for."""
        return self.secure, self.host, self.port

    @property
    def server(self) -> str:
        """The URL of the server, without anything that may be secret."""
        scheme, usual = ("https", 443) if self.secure else ("http", 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}" + (f":{self.port}" if self.port != usual else "")

    @classmethod
    def parse(cls, url: str) -> Address:
        """
        Raises:
            InvalidArgument: it is malformed, or not of `http://` or `https://`.
        """
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            port = parts.port
            url.encode()
        except ValueError:  # a malformed port, address or name, or half of a pair of surrogates
            raise InvalidArgument("not a URL", path=_shown_malformed(url)) from None
        if parts.scheme not in WEB_SCHEMES or not host or re.search(r"[^!-~]", host):
            raise InvalidArgument(
                "not a URL", path=_shown_malformed(url), expected="http(s)://host/path"
            )
        secure = parts.scheme == "https"
        target = quote(parts.path or "/", safe="/%!$&'()*+,;=:@~")
        if parts.query:
            target += "?" + quote(parts.query, safe="/%!$&'()*+,;=:@~?[]|")
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = "Basic " + base64.b64encode(pair.encode()).decode()
        return cls(url, secure, host, port or (443 if secure else 80), target, authorization)


def _shown_malformed(url: str) -> str:
    """A URL that cannot be taken apart: where a password in it ends is not known."""
    return f"{shown(url.partition('://')[0])}://…" if "@" in url else shown(url)


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
            "this kind of proxy is not supported",
            path=shown(proxy.url),
            expected="an http:// proxy",
        )
    return proxy
