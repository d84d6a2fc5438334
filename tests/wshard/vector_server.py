"""A vector database on this machine that behaves as the real ones are documented to.

`VectorServer` speaks one dialect strictly: what the other dialect would send is refused as the real server
refuses it. Similarities are computed with NumPy, filters are applied, and every request is kept. Like the public
server's, its searches are approximate: a search without effort, and every search of a `sloppy` server, misses hits.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from numpy.typing import NDArray

    from wshard.search._dialects import DialectName

Anything: TypeAlias = Any
"""JSON, or what a test hands over although types forbid it."""


@dataclass
class Scripted:
    """An answer that the server gives instead of its own."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    wait: threading.Event | None = None
    """Answers when this is set."""
    act_first: bool = False
    """Whether the request is carried out, and only the answer is replaced."""
    hang_up: bool = False
    """Whether the connection ends after the body without regard to Content-Length."""


class Refused(Exception):
    """What the server answers when it does not do what was asked."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass
class Collection:
    dimension: int
    rows: dict[Any, tuple[NDArray[np.float64], dict[str, Any]]] = field(default_factory=dict)

    def checked(self, vector: list[float]) -> NDArray[np.float64]:
        array = np.array(vector, np.float64)
        if array.shape != (self.dimension,):
            raise Refused(400, f"dimension mismatch: expected {self.dimension}, got {array.size}")
        return array

    def nearest(
        self, vector: list[float], fits: Callable[[dict[str, Any]], bool]
    ) -> list[tuple[Any, float, dict[str, Any]]]:
        query = self.checked(vector)
        found = []
        for id_, (row, metadata) in self.rows.items():
            if fits(metadata):
                norms = np.linalg.norm(query) * np.linalg.norm(row)
                similarity = float(query @ row / norms) if norms else 0.0
                found.append((id_, similarity, metadata))
        return sorted(found, key=lambda hit: -hit[1])


class VectorServer:
    """Both dialects' rules, without HTTP."""

    def __init__(self, dialect: DialectName, token: str | None = None) -> None:
        self.dialect = dialect
        self.token = token
        self.sloppy = False
        self.collections: dict[str, Collection] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.script: deque[Scripted] = deque()
        self.complaints: list[str] = []
        self.url = ""
        self._next_id = 0
        self._tenant = "default"
        self._lock = threading.Lock()

    def restart_empty(self) -> None:
        """As after a kill: collections are kept only at an orderly end, and ids start again."""
        self.collections.clear()
        self._next_id = 0

    def bodies(self, end: str) -> list[Any]:
        """What was sent to addresses with this end."""
        return [body for _, path, body in self.requests if path.endswith(end)]

    def answer(
        self, method: str, path: str, body: Anything, headers: dict[str, str]
    ) -> tuple[int, Any]:
        with self._lock:
            if (method, path) == ("GET", "/readyz"):
                return 200, {"ready": True}
            if self.token is not None and headers.get("Authorization") != f"Bearer {self.token}":
                raise Refused(401, "unauthorized")
            self._tenant = headers.get("X-Tenant-ID", "default")
            if method == "DELETE":
                return self._drop(path)
            if method != "POST":
                raise Refused(405, "method not allowed")
            return (self._bridge if self.dialect == "bridge" else self._server)(path, body)

    def _drop(self, path: str) -> tuple[int, Any]:
        folder, _, name = path.rpartition("/")
        if folder not in ("/v2/collections", f"/v3/tenants/{self._tenant}/collections"):
            raise Refused(404, "404 page not found")
        self._check_admin(path)
        self._collection(name, 404)
        del self.collections[self._named(name)]
        return 200, {"status": "success"}

    def _check_admin(self, path: str) -> None:
        if self.dialect == "server" and self.token is not None and path.startswith("/v2"):
            raise Refused(403, "admin permission required")

    def _named(self, name: str) -> str:
        return name if self._tenant == "default" else f"{self._tenant}/{name}"

    def _collection(self, name: str, status: int) -> Collection:
        if self._named(name) not in self.collections:
            raise Refused(status, f'collection "{name}" not found')
        return self.collections[self._named(name)]

    # --- bridge

    def _bridge(self, path: str, body: Anything) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        if parts == ["v2", "collections"]:
            if set(body) != {"name", "dimension", "index_type"}:
                raise Refused(400, "bad fields")
            if body["name"] in self.collections:
                raise Refused(409, "conflict")
            self.collections[body["name"]] = Collection(body["dimension"])
            return 200, {"status": "ok"}
        if parts[:2] != ["v2", "collections"] or len(parts) != 4:
            raise Refused(404, "not found")
        collection = self._collection(parts[2], 404)
        if parts[3] == "insert":
            if set(body) != {"vectors", "ids", "metadata"}:
                raise Refused(400, "bad fields")
            if len({len(body[key]) for key in body}) != 1:
                raise Refused(400, "lists of different lengths")
            vectors = [collection.checked(vector) for vector in body["vectors"]]
            for id_, vector, metadata in zip(body["ids"], vectors, body["metadata"], strict=True):
                assert isinstance(id_, str)
                collection.rows[id_] = vector, metadata
            return 200, {"inserted": len(vectors)}
        if parts[3] == "search":
            if not {"vector", "top_k"} <= set(body) <= {"vector", "top_k", "filter"}:
                raise Refused(400, "bad fields")
            asked = body.get("filter")
            every = [] if asked is None else asked.get("$and", [asked])
            hits = collection.nearest(
                body["vector"], lambda metadata: all(self._holds(c, metadata) for c in every)
            )
            rows = [{"id": i, "score": s, "metadata": m} for i, s, m in hits[: body["top_k"]]]
            return 200, {"results": rows}
        raise Refused(404, "not found")

    def _holds(self, condition: dict[str, Any], metadata: dict[str, Any]) -> bool:
        (operator,) = condition.keys() - {"field"}
        return compare(operator, metadata.get(condition["field"]), condition[operator])

    # --- the public server

    def _server(self, path: str, body: Anything) -> tuple[int, Any]:
        if path in ("/v2/collections", f"/v3/tenants/{self._tenant}/collections"):
            self._check_admin(path)
            if not body.get("fields"):
                raise Refused(400, "collection must have at least one vector field")
            if self._named(body["name"]) in self.collections:
                raise Refused(400, f'collection "{body["name"]}" already exists')
            (only,) = body["fields"]
            assert only["type"] == "dense"
            assert only["index"]["type"] == "hnsw"  # flat ones ignore filters
            assert only["name"] == "embedding"
            self.collections[self._named(body["name"])] = Collection(only["dim"])
            return 201, {"message": f'collection "{body["name"]}" created', "status": "success"}
        if path == "/v2/insert/batch":
            return 200, self._insert_batch(body)
        if path == "/v2/search":
            collection = self._collection(body["collection"], 500)
            asked = body.get("filters")
            hits = collection.nearest(
                body["queries"]["embedding"], lambda m: asked is None or self._fits(asked, m)
            )
            start = body.get("offset", 0)
            if self.sloppy or body.get("ef_search", 0) < max(128, 2 * body["top_k"]):
                hits = hits[::2]
            hits = hits[start : start + body["top_k"]]
            return 200, {
                "status": "success",
                # Go writes an empty list as null.
                "documents": [{"id": i, "metadata": m} for i, _, m in hits] or None,
                "scores": [1.0 - s for _, s, _ in hits] or None,
                "candidates_examined": len(hits),
            }
        if path == "/v2/delete":
            collection = self._collection(body["collection"], 500)
            if type(body["doc_id"]) is not int or collection.rows.pop(body["doc_id"], None) is None:
                raise Refused(500, "document not found")
            return 200, {"status": "success"}
        if path.startswith("/v2/collections/") and path.endswith("/get"):
            collection = self._collection(path.split("/")[3], 404)
            if set(body["ids"]) - collection.rows.keys():
                raise Refused(500, "document not found")
            rows = [(id_, *collection.rows[id_]) for id_ in body["ids"]]
            found = [
                {"id": id_, "vectors": {"embedding": vector.tolist()}, "metadata": metadata}
                for id_, vector, metadata in rows
            ]
            return 200, {"status": "success", "documents": found}
        if path.startswith("/v2/collections/"):
            raise Refused(400, "unknown operation or method not allowed")
        raise Refused(404, "404 page not found")

    def _insert_batch(self, body: Anything) -> dict[str, Any]:
        collection = self._collection(body["collection"], 500)
        if len(body["docs"]) > 10_000:
            raise Refused(400, "batch too large")
        ids, errors = [], {}
        for number, doc in enumerate(body["docs"]):
            try:
                vector = collection.checked(doc["vectors"]["embedding"])
            except Refused as refused:
                errors[str(number)] = refused.text
                continue
            self._next_id += 1
            collection.rows[self._next_id] = vector, doc["metadata"]
            ids.append(self._next_id)
        return {
            "status": "success",
            "ids": ids,
            "inserted": len(ids),
            "failed": len(errors),
            "errors": errors,
        }

    def _fits(self, asked: dict[str, Any], metadata: dict[str, Any]) -> bool:
        if len(asked) != 1:
            self.complaints.append(f"several conditions in one object: {asked}")
        ((key, wanted),) = list(asked.items())[-1:]  # the server takes any one of them
        if key == "$and":
            return all(self._fits(one, metadata) for one in wanted)
        if not isinstance(wanted, dict):
            return compare("$eq", metadata.get(key), wanted)
        if len(wanted) != 1:
            self.complaints.append(f"several operators in one object: {asked}")
        ((operator, value),) = list(wanted.items())[-1:]
        return compare(operator, metadata.get(key), value)


def compare(operator: str, have: Anything, want: Anything) -> bool:
    if have is None or isinstance(have, bool):
        return False
    if operator == "$eq":
        return bool(have == want)
    if operator == "$in":
        return have in want
    if operator == "$gte":
        return bool(have >= want)
    return bool(have <= want) if operator == "$lte" else False


def handler_for(server: VectorServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            server.requests.append((self.command, self.path, body))
            server.headers.append(dict(self.headers))
            scripted = server.script.popleft() if server.script else None
            status, answer = 200, b""
            if scripted is None or scripted.act_first:
                try:
                    status, value = server.answer(self.command, self.path, body, dict(self.headers))
                    answer = json.dumps(value).encode()
                except Refused as refused:
                    status, answer = refused.status, refused.text.encode()
            if scripted is not None:
                status, answer = scripted.status, scripted.body
                if scripted.wait is not None:
                    scripted.wait.wait(5)
            try:
                self.send_response(status)
                for name, text in (scripted.headers if scripted else {}).items():
                    self.send_header(name, text)
                if scripted is None or not scripted.hang_up:
                    self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:  # the client is gone
                self.close_connection = True

        do_GET = do_DELETE = do_POST

        def log_message(self, *_: Anything) -> None:
            pass

    return Handler


def self_signed(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1, in one file."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(issuer, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


@contextmanager
def running(server: VectorServer, certificate: Path | None = None) -> Iterator[VectorServer]:
    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: Anything) -> None:
            pass

    with Quiet(("127.0.0.1", 0), handler_for(server)) as listening:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # Or a client that refuses the certificate would hold up the accepting thread.
            listening.socket = context.wrap_socket(
                listening.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        scheme = "http" if certificate is None else "https"
        server.url = f"{scheme}://127.0.0.1:{listening.server_address[1]}"
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
    assert server.complaints == []
