"""`hf://` through huggingface_hub, against a server of our own that answers as the Hub documents its API.

It has one dataset, keeps its files in memory, and knows the calls that reading, listing and small uploads make. It
is not the Hub: what that refuses or limits is not tested here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import pytest

import shardpack
from shard_format import ShardReader
from shard_format.errors import FileMissing, FileThere
from shard_format.remote import delete_url, list_url, upload
from shardpack import ShardWriterSet
from tests.shard_format.support import noise, write_shard
from wshard import Episode, find, load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("huggingface_hub")

_REPO = "lab/robots"
_API = f"/api/datasets/{_REPO}"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Hub(ThreadingHTTPServer):
    """A Hub with one dataset."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.ranges: list[int] = []
        """The lengths of the ranges that were sent."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def facts(self, path: str) -> dict[str, Any]:
        """What the API says about a file."""
        content = self.files[path]
        oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return {"type": "file", "path": path, "size": len(content), "oid": oid}

    def tree(self, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        """The files, and the folders, in a folder."""
        inner = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self.files):
            if not path.startswith(inner):
                continue
            parts = path.removeprefix(inner).split("/")
            for depth in range(1, len(parts) if recursive else min(2, len(parts))):
                name = inner + "/".join(parts[:depth])
                oid = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
                found[name] = {"type": "directory", "path": name, "size": 0, "oid": oid}
            if recursive or len(parts) == 1:
                found[path] = self.facts(path)
        return list(found.values())

    def commit(self, lines: list[dict[str, Any]]) -> None:
        """Does what a commit says."""
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                assert value["encoding"] == "base64"
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.files[value["path"]]


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        hub, parts = self.server, urlsplit(self.path)
        path, query = unquote(parts.path), dict(parse_qsl(parts.query))
        if path.startswith(f"{_API}/tree/main"):
            folder = path.removeprefix(f"{_API}/tree/main").strip("/")
            rows = hub.tree(folder, recursive=query.get("recursive", "").lower() == "true")
            if rows or not folder:
                self._answer(200, rows)
            else:
                self._answer(404, {"error": "Entry not found"}, code="EntryNotFound")
        elif path in (_API, f"{_API}/revision/main"):
            self._answer(200, {"id": _REPO, "sha": "0" * 40, "siblings": [], "tags": []})
        elif path.startswith(f"/datasets/{_REPO}/resolve/main/"):
            self._send_file(path.removeprefix(f"/datasets/{_REPO}/resolve/main/"))
        else:
            self._answer(404, {"error": "Repository not found"}, code="RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if path == f"{_API}/paths-info/main":
            if "json" in (self.headers["Content-Type"] or ""):
                wanted = json.loads(body)["paths"]
            else:
                wanted = [value for key, value in parse_qsl(body.decode()) if key == "paths"]
            rows = {row["path"]: row for row in hub.tree("", recursive=True)}
            self._answer(200, [rows[one] for one in wanted if one in rows])
        elif path == f"{_API}/preupload/main":
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        elif path == f"{_API}/commit/main":
            hub.commit([json.loads(line) for line in body.splitlines()])
            url = f"{hub.url}/datasets/{_REPO}/commit/{'1' * 40}"
            self._answer(200, {"success": True, "commitUrl": url, "commitOid": "1" * 40})
        else:
            self._answer(404, {"error": "Repository not found"}, code="RepoNotFound")

    def _send_file(self, path: str) -> None:
        content = self.server.files.get(path)
        if content is None:
            self._answer(404, {"error": "Entry not found"}, code="EntryNotFound")
            return
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        if match is not None:
            content = content[int(match[1]) : int(match[2]) + 1]
            self.server.ranges.append(len(content))
        self._send(206 if match is not None else 200, content, "application/octet-stream")

    def _answer(self, status: int, fields: object, code: str = "") -> None:
        headers = {"X-Error-Code": code} if status >= 400 else {}
        self._send(status, json.dumps(fields).encode(), "application/json", headers)

    def _send(
        self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def _running() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub that every `hf://` of the test goes to."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with _running() as hub:
        options = {"endpoint": hub.url, "token": "hf_testing", "skip_instance_cache": True}
        monkeypatch.setenv("SHARD_STORAGE_OPTIONS", json.dumps(options))
        yield hub


ROOT = f"hf://datasets/{_REPO}"


def test_an_entry_takes_one_range(hub: Hub, tmp_path: Path) -> None:
    entries = {f"e/{number}": noise(100_000, number) for number in range(4)}
    hub.files["data/a.shard"] = write_shard(tmp_path / "a.shard", entries).read_bytes()
    with ShardReader(f"{ROOT}/data/a.shard") as reader:
        assert hub.ranges == [1 << 16]
        assert reader.read_entry("e/3") == entries["e/3"]
        assert hub.ranges == [1 << 16, 100_000]
        reader.verify()
    with pytest.raises(FileMissing):
        ShardReader(f"{ROOT}/data/b.shard")


def test_episodes_and_sets_are_written_found_and_read(hub: Hub) -> None:
    episode = Episode(id="far", length=20)
    episode.actions["ctrl"] = np.arange(20, dtype="f4")
    save_wshard(episode, f"{ROOT}/eps/a.wshard")
    assert list(hub.files) == ["eps/a.wshard"]
    assert [found.id for found in find(f"{ROOT}/eps")] == ["far"]
    assert [found.id for found in find(f"{ROOT}/eps/*.wshard")] == ["far"]
    with load_wshard(f"{ROOT}/eps/a.wshard") as found:
        np.testing.assert_array_equal(found.actions["ctrl"].data, episode.actions["ctrl"].data)
    with ShardWriterSet(f"{ROOT}/packs/t-%06d.shardpack", max_records=5) as writer:
        for number in range(12):
            writer.write(str(number), {"x.bin": noise(100, number)})
    with shardpack.open(f"{ROOT}/packs/t.shardpack-set") as dataset:
        assert [record["x.bin"].data for record in dataset.take([11, 0])] == [
            noise(100, 11),
            noise(100, 0),
        ]


def test_files_are_listed_kept_and_deleted(hub: Hub, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    for name in ("b/1", "b/c/2", "d/3"):
        upload(str(path), f"{ROOT}/{name}")
    assert [one.url for one in list_url(f"{ROOT}/b")] == [f"{ROOT}/b/1", f"{ROOT}/b/c/2"]
    with pytest.raises(FileThere):
        upload(str(path), f"{ROOT}/b/1", overwrite=False)
    delete_url(f"{ROOT}/b/1")
    delete_url(f"{ROOT}/b/1")
    assert sorted(hub.files) == ["b/c/2", "d/3"]
