"""Real servers on the loopback: two that speak S3, and nginx. Each is a context manager."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_GATEWAY = Path(__file__).resolve().parents[2] / ".env" / "versitygw" / "versitygw"
_LONGEST_START_S = 30.0


class Bucket:
    """A bucket of a store that speaks S3, and how to reach it."""

    def __init__(self, endpoint: str) -> None:
        self.options: dict[str, Any] = {
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": "testing",
            "secret_access_key": "testing",
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 0},
        }

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return str(self.options["endpoint"])

    def make(self, name: str) -> None:
        """Makes another bucket."""
        import urllib.request

        asked = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked).close()

    def put(self, key: str, data: bytes) -> str:
        """Stores an object; returns its URL."""
        import obstore
        from obstore.store import S3Store

        obstore.put(S3Store("bucket", **self.options), key, data)
        return f"s3://bucket/{key}"


@contextmanager
def moto() -> Iterator[Bucket]:
    """S3 as moto speaks it. It does not check signatures."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    bucket = Bucket(f"http://{host}:{port}")
    bucket.make("bucket")
    yield bucket
    server.stop()


@contextmanager
def versitygw(folder: Path) -> Iterator[Bucket]:
    """S3 as versitygw speaks it, over a folder. It checks signatures."""
    if not _GATEWAY.exists():
        pytest.skip("versitygw is not built: make test-all builds it where Go is installed")
    (folder / "data" / "bucket").mkdir(parents=True)
    (folder / "sidecar").mkdir()
    port = _free_port()
    command = [
        *(os.fspath(_GATEWAY), "--access", "testing", "--secret", "testing", "--quiet"),
        *("--port", f"127.0.0.1:{port}", "posix", "--sidecar", os.fspath(folder / "sidecar")),
        os.fspath(folder / "data"),
    ]
    with _started(command, port, folder / "versitygw.log"):
        yield Bucket(f"http://127.0.0.1:{port}")


@contextmanager
def nginx(folder: Path) -> Iterator[tuple[str, Path]]:
    """nginx, as whoever runs the tests; gives its URL and the folder that it serves."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    served = folder / "served"
    served.mkdir()
    port = _free_port()
    temporary = "".join(
        f"{name}_temp_path {folder};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; events {{ worker_connections 256; }}"
        f"http {{ access_log off; {temporary}"
        f"server {{ listen 127.0.0.1:{port}; root {served}; }} }}\n"
    )
    log = folder / "nginx.log"
    with _started(
        [program, "-p", os.fspath(folder), "-e", os.fspath(log), "-c", os.fspath(config)], port, log
    ):
        yield f"http://127.0.0.1:{port}", served


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _started(command: list[str], port: int, log: Path) -> Iterator[None]:
    """A server that accepts connections on a port, and is ended after the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until = time.monotonic() + _LONGEST_START_S
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"{command[0]} does not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()
