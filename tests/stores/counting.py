"""Real servers on the loopback that count what they are asked for and what they send: HTTP ranges, and S3."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.stores.servers import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Traffic(NamedTuple):
    """What a server was asked for and has sent."""

    requests: int
    sent: int
    """Bytes of bodies."""


class Counter:
    """Counts requests and bytes of a server; `taken` returns the counts since the last call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: list[str] = []
        self._sent = 0

    def add(self, asked: str, sent: int) -> None:
        with self._lock:
            self.asked.append(asked)
            self._sent += sent

    def taken(self) -> Traffic:
        with self._lock:
            traffic = Traffic(len(self.asked), self._sent)
            self.asked, self._sent = [], 0
        return traffic


class RangeServer(ThreadingHTTPServer):
    """Serves `files` by ranges.

    Args:
        knows_suffixes: False takes `bytes=-N` for a malformed range, as some servers do: it answers with all.
    """

    daemon_threads = True

    def __init__(self, *, knows_suffixes: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _RangeHandler)
        self.files: dict[str, bytes] = {}
        self.counter = Counter()
        self.knows_suffixes = knows_suffixes
        self.options: dict[str, Any] = {}

    def put(self, name: str, data: bytes) -> str:
        """Makes a file; returns its URL."""
        self.files[f"/{name}"] = data
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in the base
        """A client that hangs up is part of the tests."""


class _RangeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer
    # Without it, headers and body wait for each other.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as in the base
        """Quiet."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        content = self.server.files.get(self.path.partition("?")[0])
        if content is None:
            self._answer(404, b"", asked)
            return
        match = _RANGE.fullmatch(asked)
        if match is None or (not match[1] and not self.server.knows_suffixes):
            self._answer(200, content, asked)
            return
        size = len(content)
        if match[1]:
            start, stop = int(match[1]), min(int(match[2] or size - 1) + 1, size)
        else:
            start, stop = max(0, size - int(match[2])), size
        if start >= size:
            self._answer(416, b"", asked, f"bytes */{size}")
            return
        self._answer(206, content[start:stop], asked, f"bytes {start}-{stop - 1}/{size}")

    def _answer(self, status: int, body: bytes, asked: str, span: str = "") -> None:
        # Before it is sent: the client may look as soon as it has all.
        self.server.counter.add(f"{self.path} {asked}", len(body))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if span:
            self.send_header("Content-Range", span)
            self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def range_server(*, knows_suffixes: bool = True) -> Iterator[RangeServer]:
    """A server that runs during the block."""
    server = RangeServer(knows_suffixes=knows_suffixes)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class CountedBucket(Bucket):
    """A bucket that counts."""

    def __init__(self, endpoint: str, counter: Counter) -> None:
        super().__init__(endpoint)
        self.counter = counter

    def put(self, key: str, data: bytes) -> str:
        url = super().put(key, data)
        self.counter.taken()
        return url


@contextmanager
def s3_server() -> Iterator[CountedBucket]:
    """A store that runs during the block, with one bucket."""
    import logging
    import urllib.request

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    counter = Counter()
    app = _counting(DomainDispatcherApplication(create_backend_app), counter)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        make = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(make).close()
        counter.taken()
        yield CountedBucket(endpoint, counter)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _counting(app: Callable[..., Iterable[bytes]], counter: Counter) -> Callable[..., Any]:
    """The same application; counts its requests and the bytes of its answers."""

    def counted(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # noqa: ANN401 - WSGI
        body = b"".join(app(environ, start_response))
        asked = (
            f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {environ.get('HTTP_RANGE', '')}"
        )
        counter.add(asked, len(body) if environ["REQUEST_METHOD"] == "GET" else 0)
        return [body]

    return counted
