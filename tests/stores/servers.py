"""Real servers on the loopback: two that speak S3, Azure's emulator, and nginx. Each is a context manager."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENV = Path(__file__).resolve().parents[2] / ".env"
_GATEWAY = _ENV / "versitygw" / "versitygw"
_AZURITE = _ENV / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
# Azurite has one account, which is public.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_LONGEST_START_S = 30.0


class Bucket:
    """A bucket of a store, and how to reach it.

    Args:
        endpoint: the URL of the server.
        root: the URL of the bucket.
        options: storage options; those of S3 if left out.
    """

    def __init__(
        self, endpoint: str, root: str = "s3://bucket", options: dict[str, Any] | None = None
    ) -> None:
        self.root = root
        self.endpoint = endpoint
        self.options: dict[str, Any] = {
            "endpoint": endpoint,
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 0},
        } | (
            options
            or {
                "region": "us-east-1",
                "access_key_id": "testing",
                "secret_access_key": "testing",
            }
        )

    @property
    def server(self) -> str:
        """The URL of the server, without a path."""
        return "/".join(self.endpoint.split("/")[:3])

    def make(self, name: str) -> None:
        """Makes another bucket of a store that speaks S3."""
        _send(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT"))

    def put(self, key: str, data: bytes) -> str:
        """Stores an object; returns its URL."""
        import obstore
        from obstore.store import from_url

        options = dict(self.options)
        if self.root.startswith("gs:"):
            options["base_url"] = options.pop("endpoint")
        obstore.put(from_url(self.root, **options), key, data)
        return f"{self.root}/{key}"


def _send(request: urllib.request.Request) -> None:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()


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


def google(moto: Bucket) -> Bucket:
    """A bucket of moto that obstore takes for one of Google.

    obstore uses Google's XML API, which reads, lists and writes as S3 does. What S3 does not have, moto does not notice:
    it ignores the condition that an object must not exist.
    """
    moto.make("bucketofgoogle")
    return Bucket(moto.endpoint, "gs://bucketofgoogle", {"bearer_token": "testing"})


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
def azurite(folder: Path) -> Iterator[Bucket]:
    """Azure Blob Storage as Azurite speaks it, in memory. It checks signatures."""
    node = shutil.which("node")
    if node is None or not _AZURITE.exists():
        pytest.skip("Azurite is not installed: make test-all installs it where Node is installed")
    port = _free_port()
    command = [
        *(node, os.fspath(_AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
        *("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"),
    ]
    with _started(command, port, folder / "azurite.log", cwd=folder):
        endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        options = {"account_name": _ACCOUNT, "account_key": _ACCOUNT_KEY}
        bucket = Bucket(endpoint, "az://bucket", options)
        _make_container(endpoint, "bucket")
        yield bucket


def _make_container(endpoint: str, name: str) -> None:
    """Signed with the key of the account, as Azure describes it: obstore makes no containers."""
    stamp = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    headers = {"x-ms-date": stamp, "x-ms-version": "2021-08-06"}
    signed = (
        "PUT"
        + "\n" * 12
        + "".join(f"{key}:{value}\n" for key, value in headers.items())
        + f"/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(_ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    url = f"{endpoint}/{name}?restype=container"
    _send(urllib.request.Request(url, method="PUT", headers=headers))


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
def _started(command: list[str], port: int, log: Path, cwd: Path | None = None) -> Iterator[None]:
    """A server that accepts connections on a port, and is ended after the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=cwd)
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
