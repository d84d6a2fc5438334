"""What a store refuses: a certificate that nobody vouches for, and credentials that may only read."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_cli.exits import Exit
from shard_cli.main import main
from shard_cli.programs import SHARDPACK
from shard_format import remote
from shard_format.errors import AccessDenied, FileMissing, TransportError
from shardpack import ShardWriterSet
from tests.stores.fault_proxy import FaultProxy, Reply, pass_on, status
from tests.wshard.vector_server import self_signed
from wshard import Episode, load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores.servers import Bucket


@contextmanager
def encrypted(certificate: Path) -> Iterator[str]:
    """A server with a certificate that it has signed itself, and no files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as in the base
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients that hang up
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_certificate_that_is_not_trusted_is_named_and_can_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    keys = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b", "retries": 0}
    with encrypted(certificate) as server:
        store = {**keys, "endpoint": server}
        for url, options in ((f"{server}/x", {}), ("s3://bucket/x", store)):
            with pytest.raises(TransportError, match=r"certificate.* not trusted") as caught:
                remote.open_url(url, options)
            assert "SSL_CERT_FILE" in str(caught.value)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pytest.raises(FileMissing):
            remote.open_url(f"{server}/x")
        # obstore takes an authority from there, but not one that is the server itself.
        with pytest.raises(FileMissing):
            remote.open_url("s3://bucket/x", {**store, "allow_invalid_certificates": True})


@pytest.mark.parametrize("store", ["moto", "google", "azurite"])
@pytest.mark.parametrize("code", [401, 403])
def test_whatever_a_store_denies_is_an_error_about_access(
    store: str, code: int, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue(store)
    url = f"{bucket.root}/a"
    with FaultProxy(bucket.server) as proxy:
        proxy.always = status(code)
        options = {**bucket.options, "endpoint": bucket.endpoint.replace(bucket.server, proxy.url)}
        for call in (
            lambda: remote.open_url(url, options),
            lambda: remote.list_url(url, options),
            lambda: remote.upload(__file__, url, options),
            lambda: remote.copy_url(url, f"{bucket.root}/b", options),
            lambda: remote.delete_url(url, options),
        ):
            with pytest.raises(AccessDenied, match="denies access"):
                call()


def read_only(exchange: Any) -> None:  # noqa: ANN401 - of the proxy
    """As a store answers that lets these credentials read only."""
    if exchange.command in ("GET", "HEAD"):
        pass_on(exchange)
        return
    body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    exchange.send(Reply(403, {"content-type": "application/xml"}, body))


def test_credentials_that_may_only_read_read_and_leave_everything_as_it_is(
    moto: Bucket, moto_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**moto.options, "endpoint": moto_proxy.url}
    monkeypatch.setenv(remote.ENVIRONMENT, json.dumps(options))
    folder = f"s3://bucket/{tmp_path.name}"
    episode = Episode(id="kept", length=10)
    episode.actions["ctrl"] = np.arange(10, dtype="f4")
    url = f"{folder}/a.wshard"
    save_wshard(episode, url)
    moto_proxy.always = read_only
    moto_proxy.counted()
    episode.id = "other"
    with pytest.raises(AccessDenied, match="denies access") as caught:
        save_wshard(episode, url)
    assert url in str(caught.value)
    assert "testing" not in str(caught.value)
    # Nobody asks again for what is refused.
    assert [request.method for request in moto_proxy.log] == ["PUT"]
    with pytest.raises(AccessDenied), ShardWriterSet(f"{folder}/t-%03d.shardpack") as writer:
        writer.write("a", {"x.txt": "1"})
    with pytest.raises(AccessDenied):
        remote.delete_url(url)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1")
    packed = main(["create", "-o", f"{folder}/p.shardpack", "-i", str(tmp_path / "in")], SHARDPACK)
    assert packed == Exit.IO
    assert [one.url for one in remote.list_url(folder)] == [url]
    with load_wshard(url) as kept:
        assert kept.id == "kept"
