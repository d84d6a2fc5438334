"""A page in place of the built one, a server in this process, and a client that sends exactly what a test says."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import wshard.viewer._page as page_module
from wshard import ChunkedEpisodeWriter, Episode, save_wshard
from wshard.editing import slice_episode
from wshard.viewer import ViewedFiles, ViewerServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>viewer</title>
<style>body { color: black }</style>
<script type="application/json" id="configuration">{}</script></head>
<body><div id="app"></div><script type="module">const text = "</div>ä";</script></body></html>
"""


def put_page(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = PAGE) -> None:
    """Lets the package find this page, whether one was built or not."""
    folder.mkdir(exist_ok=True)
    folder.joinpath("viewer.html.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(page_module, "files", lambda _: folder)


def configuration_of(html: str) -> dict[str, Any]:
    """What the page would read."""
    found = re.findall(r'<script type="application/json" id="configuration">(.*?)</script', html)
    assert len(found) == 1
    configuration: dict[str, Any] = json.loads(found[0])
    return configuration


def make_episode(name: str = "ep_001", steps: int = 40) -> Episode:
    """An episode with a prediction."""
    ep = Episode(name, "Reach-v1")
    ep.metadata = {"task": "reach", "success": True}
    ep.timebase.tick_hz = 20.0
    ep.observations["state"] = np.arange(steps * 3, dtype="f4").reshape(steps, 3)
    ep.actions["ctrl"] = np.ones((steps, 2), "f4")
    ep.rewards = np.ones(steps, "f4")
    ep.omens["state"]["dreamer"] = np.zeros((steps, 3), "f4")
    return ep


def save_episode(path: Path, steps: int = 40) -> Path:
    """Writes one of these."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_wshard(make_episode(path.stem, steps), path, fsync=False)
    return path


def make_chunked(folder: Path) -> None:
    """Writes an episode of two chunks."""
    writer = ChunkedEpisodeWriter(folder, "ep", chunk_size_t=20)
    for start in (0, 20):
        writer.write_chunk(slice_episode(make_episode(), start, start + 20))
    writer.finalize_manifest()


def has_ipv6_loopback() -> bool:
    """Whether this machine has the address ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class Answer(NamedTuple):
    """One answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - any document
        return json.loads(self.body)


class Client:
    """Speaks with a server over a socket of its own for each request."""

    def __init__(self, server: ViewerServer) -> None:
        self.port = server.server_port
        self.address = "::1" if server.address_family == socket.AF_INET6 else "127.0.0.1"
        self.host = f"[::1]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
        self.token = server.url.partition("#token=")[2]

    def ask(
        self, path: str, method: str = "GET", *, token: str | None = "", **headers: str | None
    ) -> Answer:
        """One request as a browser sends it; headers with `_` for `-`, None leaves one out."""
        given: dict[str, str | None] = {"Host": self.host}
        if token is not None:
            given["Authorization"] = f"Bearer {token or self.token}"
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
        return self.send("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode())

    def send(self, request: bytes) -> Answer:
        """These bytes, and the first answer to them."""
        with socket.create_connection((self.address, self.port), timeout=30) as connection:
            connection.sendall(request)
            return read_answer(connection, has_body=not request.startswith(b"HEAD"))


def read_answer(connection: socket.socket, *, has_body: bool = True) -> Answer:
    """The next answer on a connection."""
    file = connection.makefile("rb")
    status = file.readline().split()
    headers: dict[str, str] = {}
    while (line := file.readline().strip()) != b"":
        name, _, value = line.decode().partition(": ")
        headers[name.lower()] = value
    length = int(headers["content-length"]) if has_body else 0
    return Answer(int(status[1]), headers, file.read(length))


@contextmanager
def serving(*arguments: Path | str, **options: Any) -> Iterator[tuple[ViewerServer, Client]]:  # noqa: ANN401
    """A server in a thread, and a client."""
    server = ViewerServer(ViewedFiles([str(one) for one in arguments]), **options)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server, Client(server)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
