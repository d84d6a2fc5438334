"""A proxy in front of a real server that counts requests, adds latency, and fails on request.

    with FaultProxy("http://127.0.0.1:9000", latency_s=0.02) as proxy:
        proxy.faults.extend([status(503, retry_after="1"), reset])     # for the next two requests
        …                                                              # read from proxy.url
        assert proxy.counted() == 3

A fault is a function that answers one request. `proxy.always` answers every request for which `proxy.faults` has nothing;
None lets requests through. Bodies of requests need a Content-Length.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_PIECE = 1 << 18
_OWN_HEADERS = ("connection", "transfer-encoding", "content-length", "keep-alive", "expect")
Fault = Callable[["Exchange"], None]


class Request(NamedTuple):
    """What was asked for."""

    method: str
    path: str
    range: str


class Reply(NamedTuple):
    """An answer; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class FaultProxy(ThreadingHTTPServer):
    """Passes requests on to the server `upstream`, as `http://host:port`; each waits for `latency_s` first."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, upstream: str, *, latency_s: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.upstream = urlsplit(upstream)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.latency_s = latency_s
        self.faults: deque[Fault | None] = deque()
        self.always: Fault | None = None
        self.log: list[Request] = []
        self.headers: list[dict[str, str]] = []
        """Of each request in the log, with names in lower case."""
        self.bytes_sent = 0
        """Of the bodies of answers."""
        self.at_once = self.most_at_once = 0
        """Requests that are under way, and how many ever were."""
        self.closed = threading.Event()
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def counted(self) -> int:
        """How many requests came since the last call."""
        with self.lock:
            count = len(self.log)
            self.log.clear()
            self.headers.clear()
        return count

    def __exit__(self, *error: object) -> None:
        """Ends the server; requests that stall are let go."""
        self.closed.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in the base
        """A client that hangs up is part of the tests."""


class Exchange(BaseHTTPRequestHandler):
    """One connection of a client; `answer` has a request, and the others what a fault can do with it."""

    protocol_version = "HTTP/1.1"
    server: FaultProxy
    # Without it, headers and body wait for each other.
    disable_nagle_algorithm = True
    _upstream: HTTPConnection | None = None

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as in the base
        """Quiet."""

    def answer(self) -> None:
        """Answers a request, with the next fault or as the server does."""
        proxy = self.server
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with proxy.lock:
            proxy.log.append(Request(self.command, self.path, self.headers.get("Range", "")))
            proxy.headers.append({name.lower(): value for name, value in self.headers.items()})
            proxy.at_once += 1
            proxy.most_at_once = max(proxy.most_at_once, proxy.at_once)
            act = proxy.faults.popleft() if proxy.faults else proxy.always
        try:
            time.sleep(proxy.latency_s)
            (act or pass_on)(self)
        finally:
            with proxy.lock:
                proxy.at_once -= 1

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def finish(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        super().finish()

    def ask(self, *, with_range: bool = True) -> HTTPResponse:
        """Passes the request on; the caller reads the answer."""
        if self._upstream is None:
            self._upstream = HTTPConnection(self.server.upstream.netloc, timeout=60)
        asked = self._upstream
        asked.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _OWN_HEADERS and (with_range or name.lower() != "range"):
                asked.putheader(name, value)
        if self.body or self.command in ("PUT", "POST"):
            asked.putheader("Content-Length", str(len(self.body)))
        asked.endheaders(self.body or None)
        return asked.getresponse()

    def fetch(self, *, with_range: bool = True) -> Reply:
        """What the server answers."""
        got = self.ask(with_range=with_range)
        return Reply(got.status, _headers(got), got.read())

    def send(self, reply: Reply, most: int | None = None, length: int | None = None) -> None:
        """Sends an answer; of its body at most `most` bytes, and with another `length` in its head."""
        self.begin(reply.status, reply.headers, length or len(reply.body))
        self.send_piece(reply.body[:most])

    def begin(self, code: int, headers: dict[str, str], length: int) -> None:
        """Sends the head of an answer."""
        self.send_response_only(code)
        fields = {name: value for name, value in headers.items() if name not in _OWN_HEADERS}
        for name, value in {**fields, "content-length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_piece(self, piece: bytes) -> None:
        """Sends bytes of a body."""
        # Counted before they go: the client may look as soon as it has them.
        with self.server.lock:
            self.server.bytes_sent += len(piece)
        self.wfile.write(piece)


def _headers(got: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in got.getheaders()}


# --- what the proxy can do with a request


def pass_on(exchange: Exchange) -> None:
    """The right answer, in pieces as they come."""
    got = exchange.ask()
    length = got.getheader("Content-Length")
    if length is None:
        exchange.send(Reply(got.status, _headers(got), got.read()))
        return
    exchange.begin(got.status, _headers(got), int(length))
    while piece := got.read1(_PIECE):
        exchange.send_piece(piece)
    got.close()  # or the connection could not be used again


def status(code: int, *, body: bytes = b"", **headers: str) -> Fault:
    """Another status instead of the answer, with headers such as `retry_after="1"`."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange: exchange.send(Reply(code, fields, body))


expired_token = status(
    403, body=b"<Error><Code>ExpiredToken</Code><Message>too old</Message></Error>"
)
"""What S3 answers when temporary credentials have expired."""


def reset(exchange: Exchange) -> None:
    """An RST instead of an answer."""
    linger = struct.pack("ii", 1, 0)
    exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    exchange.rfile.close()  # which keeps the socket open
    exchange.connection.close()
    exchange.close_connection = True


def stall(exchange: Exchange) -> None:
    """No answer, until the proxy is closed."""
    exchange.server.closed.wait()
    exchange.close_connection = True


def cut(count: int, then: Fault | None = None, *, honest: bool = True) -> Fault:
    """Ends the body after `count` bytes, or does something else `then`: `reset` or `stall`.

    The Content-Length promises all bytes, or, if not `honest`, only these.
    """

    def act(exchange: Exchange) -> None:
        exchange.send(reply := exchange.fetch(), count, len(reply.body) if honest else count)
        exchange.close_connection = honest
        if then is not None:
            then(exchange)

    return act


def ignore_range(exchange: Exchange) -> None:
    """The whole object with status 200."""
    exchange.send(exchange.fetch(with_range=False))


def wrong_range(exchange: Exchange) -> None:
    """The bytes that were asked for, called those one byte earlier."""
    reply = exchange.fetch()
    first, last, size = map(int, re.findall(r"\d+", reply.headers["content-range"]))
    reply.headers["content-range"] = f"bytes {first - 1}-{last - 1}/{size}"
    exchange.send(reply)


def after(action: Callable[[], object]) -> Fault:
    """The right answer after an action: `partial(time.sleep, 1)`, or putting another object in the place of this one."""

    def act(exchange: Exchange) -> None:
        action()
        pass_on(exchange)

    return act
