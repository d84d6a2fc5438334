"""A server on the loopback that answers ranges of the files in a folder, and counts what it is asked for."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Self


class RangeServer(ThreadingHTTPServer):
    """Serves a folder. Use it as a context manager."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), RangeHandler)
        self.folder = folder
        self.asked: list[tuple[str, int, int]] = []
        """Path, first byte and end of each request."""
        self.before: Callable[[str, int, int], int | None] = lambda path, start, stop: None
        """Called before each answer; a number is a status to answer with instead."""

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def counted(self, larger_than: int = 0) -> int:
        """Requests for more than a number of bytes since the last call, of which there were none."""
        count = sum(stop - start > larger_than for _, start, stop in self.asked)
        self.asked.clear()
        return count

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in the base
        """A client that hangs up is part of the tests."""


class RangeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer
    # Without it, headers and body wait for each other.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as in the base
        """Quiet."""

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        try:
            file = open(self.server.folder / name, "rb")  # noqa: SIM115 - closed below
        except OSError:
            self._answer(404, {}, b"")
            return
        with file:
            self._serve(name, file)

    def _serve(self, name: str, file: BinaryIO) -> None:
        facts = os.fstat(file.fileno())
        size = facts.st_size
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, size - int(last))
        stop = min(int(last) + 1 if first and last else size, size)
        self.server.asked.append((name, start, stop))
        status = self.server.before(name, start, stop)
        if status is not None:
            self._answer(status, {}, b"")
            return
        headers = {
            "Content-Range": f"bytes {start}-{stop - 1}/{size}",
            "ETag": f'"{facts.st_mtime_ns:x}-{size:x}"',
        }
        file.seek(start)
        self._answer(206, headers, file.read(stop - start))

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
