"""A server on the loopback that answers ranges of the files in a folder after a pause: `python remote_server.py FOLDER`.

It prints its port. `GET /?pause_ms=20` sets the pause, and `GET /?counts` returns how many requests and bytes there were
since the last time. Files are below `/files/`, so that the same paths serve for a bucket of that name.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    lock = threading.Lock()
    pause_s = 0.0
    requests = sent = 0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as in the base
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.startswith("/?"):
            self._control(self.path[2:])
            return
        time.sleep(Handler.pause_s)
        name = self.path.partition("?")[0].removeprefix("/files/")
        try:
            with open(os.path.join(sys.argv[1], name), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                asked = self.headers.get("Range", "")
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start = int(first) if first else max(0, size - int(last)) if last else 0
                stop = min(int(last) + 1 if first and last else size, size)
                file.seek(start)
                body = b"" if self.command == "HEAD" else file.read(stop - start)
        except (FileNotFoundError, IsADirectoryError):
            self._answer(404, {"Content-Length": "0"}, b"")
            return
        headers = {
            "Content-Length": str(stop - start),
            "Accept-Ranges": "bytes",
            "ETag": f'"{size:x}"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }
        if asked:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._answer(206 if asked else 200, headers, body)

    def _control(self, command: str) -> None:
        if command.startswith("pause_ms="):
            Handler.pause_s = float(command.partition("=")[2]) / 1000
        text = json.dumps([Handler.requests, Handler.sent]).encode()
        Handler.requests = Handler.sent = 0
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        with Handler.lock:
            Handler.requests += 1
            Handler.sent += len(body)
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Many connections at a time."""

    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
