"""urllib3's connections, with a bound on the time and on the bytes of each request.

urllib3 and `http.client` bound the time of each receive, and the length of each line. A server that sends a
byte now and then, or one header after another, has no end for them. Here one `Budget` counts for all steps
of a request: names, connecting, proxies, sending, headers and body.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout
from contextvars import ContextVar
from http.client import HTTPResponse
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from shard_format.extras import require
from shard_format.parallel import in_background

if TYPE_CHECKING:
    import ssl

    import urllib3
    from typing_extensions import Buffer
else:
    urllib3 = require("urllib3", "remote")

HTTPError = urllib3.exceptions.HTTPError
# What an answer may have besides its body: status lines, headers, sizes of chunks, trailers.
MOST_HEAD = 1 << 16
# A body in chunks of one byte takes six bytes for each.
_MOST_PER_BYTE = 8
# A transfer that is faster than this may take longer than the timeout.
_SLOWEST_PER_S = 1 << 16
# TLS sends as much at a time, and starts to wait anew each time.
_SENT_AT_ONCE = 1 << 14
_LONGEST_WAIT_S = 86_400.0
# What is received ahead of what is read.
_BUFFER = 1 << 13
# Connections to one server: as many as requests that read windows of one file at the same time.
_MOST_KEPT = 64
# Names that are looked up at the same time.
_MOST_LOOKUPS = 16


class TooManyBytes(OSError):
    """An answer has more than its body and a reasonable head."""


class LookupTimeout(TimeoutError):
    """The system has not resolved a name in time."""


class Budget:
    """What one request may still take: until when, and how many bytes of answer."""

    target: str
    """What is asked for. urllib3 does not get it, because it may hold a token and urllib3 logs."""
    was_sent: bool
    may_be_stale: bool
    """Whether nothing shows that the server still had the kept connection open."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def start(self, target: str) -> None:
        """Another request in the same time, after a redirect or a closed connection."""
        self.target = target
        self.was_sent, self.may_be_stale = False, True
        self._credit, self._wanted = MOST_HEAD, 0

    def seconds_left(self) -> float:
        """For the next wait; raises TimeoutError if there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(left, _LONGEST_WAIT_S)

    def bytes_left(self) -> int:
        """For the next receive; raises TooManyBytes if there are none."""
        left = self._credit + self._wanted
        if left <= 0:
            raise TooManyBytes(errno.EPROTO, "the answer has too many bytes besides its body")
        return left

    def want(self, count: int) -> None:
        """Allow for `count` bytes of the body."""
        self._wanted = count

    def received(self, count: int) -> None:
        """Bytes of any kind came."""
        self._credit -= count
        self.may_be_stale = self.may_be_stale and not count

    def sent(self, count: int) -> None:
        """Bytes of the request went out: allow for their time."""
        self._deadline += count / _SLOWEST_PER_S

    def delivered(self, count: int) -> None:
        """Bytes of the body were read: allow for their time, and for what is around them."""
        self._deadline += count / _SLOWEST_PER_S
        self._credit += _MOST_PER_BYTE * count


BUDGET: ContextVar[Budget] = ContextVar("BUDGET")
"""Of the request that this thread is about to send; its answer keeps it."""


class _Incoming(io.RawIOBase):
    """The bytes that a socket receives, within the budget."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock = raw, sock
        self._budget = BUDGET.get()

    def readable(self) -> bool:
        return True

    def readinto(self, out: Buffer) -> int:
        budget = self._budget
        room = memoryview(out)[: budget.bytes_left()]
        self._sock.settimeout(budget.seconds_left())
        # The socket has a timeout, so it never says that nothing is there yet.
        count: int = self._raw.readinto(room)
        budget.received(count)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as in the base
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Incoming(self.fp.detach(), sock), _BUFFER)


class _Connection(urllib3.connection.HTTPConnection):
    response_class = _Response

    def _new_conn(self) -> socket.socket:
        """A socket; all addresses of a name share the time that is left."""
        budget, name = BUDGET.get(), self._dns_host
        budget.may_be_stale = False
        addresses = _resolved(name.strip("[]"), self.port, budget.seconds_left())
        failure: Exception = TimeoutError()
        for number, address in enumerate(addresses):
            try:
                self.timeout = budget.seconds_left() / (len(addresses) - number)
                self._dns_host = address
                made = super()._new_conn()
            except (HTTPError, TimeoutError) as error:  # noqa: PERF203 - a round takes a connection
                failure = error
            else:
                _limit_wait(made)
                return made
            finally:
                self._dns_host = name
        try:
            raise failure
        finally:
            del failure  # its traceback has this frame

    def _tunnel(self) -> None:
        super()._tunnel()
        _limit_wait(self.sock)

    def putrequest(self, method: str, url: str, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as in the base
        super().putrequest(method, BUDGET.get().target, *args, **options)

    def send(self, data: Any) -> None:  # noqa: ANN401 - as in the base
        budget = BUDGET.get()
        if self.sock is None:
            self.connect()
        budget.was_sent = True
        for start in range(0, len(data), _SENT_AT_ONCE):
            piece = memoryview(data)[start : start + _SENT_AT_ONCE]
            self.sock.settimeout(budget.seconds_left())
            super().send(piece)
            budget.sent(len(piece))


def _limit_wait(sock: socket.socket) -> None:
    """What comes next, such as the handshake of TLS, has only the time that is left."""
    try:
        sock.settimeout(BUDGET.get().seconds_left())
    except TimeoutError:
        sock.close()
        raise


_lookups = threading.BoundedSemaphore(_MOST_LOOKUPS)


def _forget_lookups() -> None:
    """A forked process has none of the threads of its parent."""
    global _lookups
    _lookups = threading.BoundedSemaphore(_MOST_LOOKUPS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lookups)


def _resolved(name: str, port: int | None, seconds: float) -> list[str]:
    """The addresses of a name, within `seconds`.

    The system's call has no time limit, so a thread of its own makes it, and ends when the system gives up. While
    `_MOST_LOOKUPS` such threads run, others wait for their turn.
    """
    try:
        return [str(ip_address(name))]
    except ValueError:  # a name
        pass
    deadline = time.monotonic() + seconds
    lookups = _lookups
    if not lookups.acquire(timeout=seconds):
        raise LookupTimeout

    def look_up() -> list[Any]:
        try:
            return socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM)
        finally:
            lookups.release()

    try:
        answer = in_background(look_up)
    except RuntimeError as error:  # as many threads as the system allows
        lookups.release()
        raise OSError(errno.EAGAIN, str(error)) from None
    try:
        found = answer.result(max(0.0, deadline - time.monotonic()))
    except FutureTimeout:
        raise LookupTimeout from None
    finally:
        del answer  # the traceback of its error has this frame
    return list(dict.fromkeys(str(row[4][0]) for row in found))


class _SecureConnection(_Connection, urllib3.connection.HTTPSConnection):
    pass


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def connections(
    proxy: str | None, authorization: str | None, context: ssl.SSLContext | None
) -> urllib3.PoolManager:
    """Kept connections, through a proxy if one is named."""
    options: dict[str, Any] = {"maxsize": _MOST_KEPT, "ssl_context": context}
    if proxy is None:
        manager = urllib3.PoolManager(**options)
    else:
        secret = {"Proxy-Authorization": authorization} if authorization else None
        manager = urllib3.ProxyManager(proxy, proxy_headers=secret, **options)
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
    return manager
