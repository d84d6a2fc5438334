"""Servers that never come to an end, as raw sockets on the loopback. That a call returns is what is tested.

A server here sends until the client hangs up. What it sends slowly comes in so small pieces that no receive of
the client ever has to wait long.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from shard_format._http_connection import Budget
from shard_format.errors import MissingExtra, ShardIOError
from shard_format.opening import open_source
from shard_format.remote import HttpSource
from tests.shard_format.support import noise

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = noise(1000)
RANGE = b"Content-Range: bytes 0-999/1000\r\n"
WHOLE = b"HTTP/1.1 206 OK\r\n" + RANGE + b"Content-Length: 1000\r\n\r\n"
CHUNKED = b"HTTP/1.1 206 OK\r\n" + RANGE + b"Transfer-Encoding: chunked\r\n\r\n"


class EndlessServer:
    """Answers each request with `start`, and then with `piece` again and again."""

    def __init__(self, start: bytes, piece: bytes, *, slowly: bool = False) -> None:
        self.start, self.piece, self.slowly = start, piece, slowly
        self.requests: list[bytes] = []
        self.sent = 0
        self._stop = threading.Event()

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(20)
            request = b""
            while b"\r\n\r\n" not in request:
                piece = connection.recv(1 << 16)
                if not piece:
                    return
                request += piece
            self.requests.append(request)
            connection.sendall(self.start)
            while self.piece and not self._stop.wait(0.002 if self.slowly else 0):
                connection.sendall(self.piece)
                self.sent += len(self.piece)

    @contextmanager
    def running(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as threads:

            def accept() -> None:
                with suppress(OSError):
                    while True:
                        connection, _ = listening.accept()
                        thread = threading.Thread(target=self.serve, args=(connection,))
                        threads.callback(thread.join)
                        thread.start()

            accepting = threading.Thread(target=accept)
            accepting.start()
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}/file?token=hidden"
            finally:
                self._stop.set()
                listening.shutdown(socket.SHUT_RDWR)
                accepting.join()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def failure(url: str, timeout: float = 30, **options: Any) -> ShardIOError:  # noqa: ANN401 - as HttpSource takes them
    with pytest.raises(ShardIOError) as caught:
        HttpSource(url, timeout=timeout, retries=0, **options)
    assert "hidden" not in str(caught.value)
    return caught.value


class TestEndless:
    """What a server can send without end."""

    @pytest.mark.parametrize(
        ("start", "piece"),
        [
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99),
            (b"", b"HTTP/1.1 100 Continue\r\nA: " + b"b" * 60_000 + b"\r\n\r\n"),
            (b"HTTP/1.1 206 OK\r\n", b"A: " + b"b" * 60_000 + b"\r\n"),
            (CHUNKED, b"1;" + b"a" * 60_000 + b"\r\nx\r\n"),
        ],
        ids=["informational", "long informational", "headers", "extensions of chunks"],
    )
    def test_the_bytes_besides_the_body_are_bounded(self, start: bytes, piece: bytes) -> None:
        with EndlessServer(start, piece).running() as url:
            error = failure(url)
        assert error.errno == errno.EPROTO
        assert "at most 65536 bytes besides the body" in str(error)

    @pytest.mark.parametrize(
        ("start", "piece"),
        [
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            (b"HTTP/1.1 206 ", b"O"),
            (b"HTTP/1.1 206 OK\r\nA: ", b"b"),
            (WHOLE, b"x"),
            (CHUNKED, b"1\r\nx\r\n"),
            (CHUNKED, b"0"),
        ],
        ids=["informational", "status", "header", "body", "chunks", "size of a chunk"],
    )
    def test_the_time_of_a_request_is_bounded_however_its_answer_drips_in(
        self, start: bytes, piece: bytes
    ) -> None:
        with EndlessServer(start, piece, slowly=True).running() as url:
            error = failure(url, 0.3)
        assert error.errno == errno.ETIMEDOUT
        assert "within 0.3 s" in str(error)

    @pytest.mark.parametrize("slowly", [False, True])
    def test_trailers_after_a_whole_body_do_not_hold_it_up(self, slowly: bool) -> None:
        body = CHUNKED + b"3e8\r\n" + CONTENT + b"\r\n0\r\n"
        server = EndlessServer(body, b"A: b\r\n" * (1 if slowly else 999), slowly=slowly)
        with server.running() as url:
            source = HttpSource(url, timeout=0.3 if slowly else 30, retries=0)
            assert source.read_at(0, 1000) == CONTENT
            source.close()

    @pytest.mark.parametrize("size", [b"-1", b"-ffffffff"])
    def test_a_chunk_of_negative_size_does_not_lift_the_limit(
        self, monkeypatch: pytest.MonkeyPatch, size: bytes
    ) -> None:
        monkeypatch.setattr("shard_format._http_source._MOST_WHOLE", 100_000)
        start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n"
        server = EndlessServer(start, bytes(50_000))
        with server.running() as url:
            error = failure(url)
        assert (error.errno, error.found) == (errno.EOPNOTSUPP, "more")
        assert server.sent < 32 << 20  # what the buffers of the sockets can hold

    def test_the_answer_of_a_proxy_is_bounded_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = EndlessServer(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 999)
        with server.running() as proxy:
            monkeypatch.setenv("https_proxy", proxy.partition("/file")[0])
            error = failure("https://host.invalid/file")
        assert error.errno == errno.EPROTO
        assert server.requests[0].startswith(b"CONNECT host.invalid:443 ")

    def test_what_a_proxy_says_when_it_refuses_is_shown(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer = b"HTTP/1.1 407 Wants\x1b[31m a password\r\nContent-Length: 0\r\n\r\n"
        with EndlessServer(answer, b"").running() as proxy:
            monkeypatch.setenv("https_proxy", proxy.partition("/file")[0])
            text = str(failure("https://host.invalid/file"))
        assert "the proxy refuses: Tunnel connection failed: 407 Wants?[31m a password" in text

    def test_all_addresses_of_a_name_share_the_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = [f"192.0.2.{number}" for number in range(10)]
        rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, 80)) for name in names]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: rows)
        tried: list[tuple[str, float]] = []

        def connect(address: tuple[str, int], timeout: float, **_: object) -> socket.socket:
            tried.append((address[0], timeout))
            raise TimeoutError

        monkeypatch.setattr(urllib3.util.connection, "create_connection", connect)
        error = failure("http://many.invalid/file")
        assert error.errno == errno.ETIMEDOUT
        assert [name for name, _ in tried] == names
        assert tried[0][1] <= 3

    def test_a_name_that_is_not_resolved_takes_no_longer_than_the_request(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor more than a few threads; when the system answers at last, they are there again."""
        go_on = threading.Event()
        running: list[str] = []
        resolve = socket.getaddrinfo

        def stuck(name: str, port: int, *rest: int) -> list[Any]:
            if name != "slow.invalid":
                return resolve(name, port, *rest)
            running.append(name)
            go_on.wait(20)
            raise socket.gaierror(socket.EAI_NONAME, "unknown")

        monkeypatch.setattr(socket, "getaddrinfo", stuck)
        with ThreadPoolExecutor(24) as threads:
            errors = list(threads.map(failure, ["http://slow.invalid/x"] * 24, [0.3] * 24))
        assert not go_on.is_set()
        assert {error.errno for error in errors} == {errno.ETIMEDOUT}
        assert "name was not resolved within 0.3 s" in str(errors[0])
        assert len(running) == 16
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork
            child = os.fork()
        if child == 0:  # where none of those threads runs
            found = 0
            try:
                found = failure("http://localhost:1/x", 5).errno or 0
            finally:
                os._exit(found)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.ECONNREFUSED
        go_on.set()
        assert failure("http://slow.invalid/x", 20).errno == errno.EHOSTUNREACH

    @pytest.mark.parametrize("slow", ["connecting", "the proxy"])
    def test_the_handshake_of_tls_has_only_the_time_that_is_left(
        self, monkeypatch: pytest.MonkeyPatch, slow: str
    ) -> None:
        clock, waits = [0.0], []
        connect, received = urllib3.util.connection.create_connection, Budget.received

        def connect_slowly(*given: Any, **options: Any) -> socket.socket:  # noqa: ANN401 - as in urllib3
            clock[0] += 9 * (slow == "connecting")
            return connect(*given, **options)

        def receive_slowly(budget: Budget, count: int) -> None:
            clock[0] += 9 * (slow == "the proxy")
            received(budget, count)

        def shake_hands(_: ssl.SSLContext, sock: socket.socket, **__: object) -> None:
            waits.append(sock.gettimeout())
            sock.close()
            raise TimeoutError

        monkeypatch.setattr("shard_format._http_connection.time.monotonic", lambda: clock[0])
        monkeypatch.setattr(urllib3.util.connection, "create_connection", connect_slowly)
        monkeypatch.setattr(Budget, "received", receive_slowly)
        monkeypatch.setattr(ssl.SSLContext, "wrap_socket", shake_hands)
        with EndlessServer(b"HTTP/1.1 200 OK\r\n\r\n", b"").running() as server:
            server = server.partition("/file")[0]
            if slow == "the proxy":
                monkeypatch.setenv("https_proxy", server)
            error = failure(server.replace("http:", "https:") + "/file", 10)
        assert error.errno == errno.ETIMEDOUT
        assert waits == pytest.approx([1], abs=0.01)

    def test_a_fast_transfer_may_take_longer_than_the_timeout(self) -> None:
        """A second for each 64 KiB: otherwise nothing large could be read over a slow line."""
        clock = iter(range(10_000))
        content = noise(1 << 20)
        answer = (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\nConnection: close\r\n\r\n" + content
        )
        with EndlessServer(answer, b"").running() as url, pytest.MonkeyPatch.context() as patch:
            patch.setattr("shard_format._http_connection.time.monotonic", lambda: next(clock) / 8)
            source = HttpSource(url, timeout=4, retries=0)
        assert source.read_at(0, 1 << 20) == content
        source.close()


class TestSecrets:
    """What others than the server get to see."""

    def test_urllib3_cannot_log_what_it_does_not_know(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It logs addresses, and more of them if a header is malformed."""
        answer = b"HTTP/1.1 206 OK\r\nno header\r\n" + RANGE + b"Content-Length: 1000\r\n\r\n"
        server = EndlessServer(answer + CONTENT, b"")
        with server.running() as url, caplog.at_level(logging.DEBUG, "urllib3"):
            error = failure(url.replace("//", "//user:hidden@"), headers={"X-Key": "hidden"})
        assert server.requests[0].startswith(b"GET /file?token=hidden HTTP/1.1\r\n")
        assert caplog.records
        assert "hidden" not in f"{caplog.text} {error!r} {error.__cause__!r}"


def test_without_urllib3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(MissingExtra, match=r"shard-format\[remote\]"):
        open_source("http://127.0.0.1:1/file")
