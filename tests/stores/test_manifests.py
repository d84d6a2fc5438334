"""Manifests at URLs: their files are beside them, and nowhere else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_cli.exits import Exit
from shard_cli.main import main
from shard_cli.programs import WSHARD
from shard_format import ShardWriter
from shard_format.errors import MissingFile, ReferenceMismatch, UnsafePath
from tests.stores.counting import RangeServer, range_server
from wshard import Episode, load_wshard, save_wshard
from wshard.chunked import ChunkedEpisodeReader, ChunkedEpisodeWriter, validate_chunk_continuity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores.servers import Bucket


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        yield server


@pytest.fixture
def manifest(server: RangeServer, tmp_path: Path) -> str:
    """The URL of an episode in three chunks."""
    episode = Episode(id="run", length=30)
    episode.observations["state"] = np.arange(60, dtype="f4").reshape(30, 2)
    with ChunkedEpisodeWriter(tmp_path, "run", 10, fsync=False) as writer:
        writer.write_episode(episode)
    urls = {
        path.name: server.put(f"a%20b/{path.name}", path.read_bytes())
        for path in tmp_path.iterdir()
    }
    return next(url for name, url in urls.items() if "manifest" in name)


def test_an_episode_in_chunks_is_read_and_checked(server: RangeServer, manifest: str) -> None:
    with load_wshard(manifest) as episode:
        assert server.counter.taken().requests == 4
        np.testing.assert_array_equal(
            episode.observations["state"].data, np.arange(60, dtype="f4").reshape(30, 2)
        )
    validate_chunk_continuity(manifest)
    chunk = ChunkedEpisodeReader(manifest).load_chunk(1)
    assert chunk.observations["state"].data[0, 0] == 20
    assert main(["verify", manifest]) == Exit.OK


def test_chunks_are_opened_with_the_options_of_their_manifest(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    episode = Episode(id="run", length=30)
    episode.actions["ctrl"] = np.arange(30, dtype="f4")
    with ChunkedEpisodeWriter(tmp_path / "run", "run", 10, fsync=False) as writer:
        writer.write_episode(episode)
    files = fsspec.filesystem("memory")
    files.put(str(tmp_path / "run"), "/lab", recursive=True)
    (manifest,) = [name for name in files.find("/lab") if "manifest" in name]
    with load_wshard(f"memory://{manifest[1:]}", storage_options={"filesystem": files}) as found:
        assert found.length == 30
        np.testing.assert_array_equal(found.actions["ctrl"].data, np.arange(30, dtype="f4"))


@pytest.mark.parametrize("change", ["missing", "shorter", "other"])
def test_a_chunk_that_is_not_the_one_that_was_written_is_named(
    server: RangeServer, manifest: str, change: str
) -> None:
    name = next(name for name in sorted(server.files) if "manifest" not in name)
    content = server.files.pop(name)
    if change != "missing":
        cut = content[:-1] if change == "shorter" else content[:-1] + bytes([content[-1] ^ 1])
        server.files[name] = cut
    with pytest.raises(MissingFile if change == "missing" else ReferenceMismatch) as caught:
        validate_chunk_continuity(manifest)
    assert caught.value.path is not None
    assert main(["verify", manifest]) == Exit.FINDING


@pytest.mark.parametrize("uri", ["../x.shard", "/x.shard", "http://127.0.0.1:1/x", "a\\b"])
def test_a_manifest_leads_nowhere_else(server: RangeServer, tmp_path: Path, uri: str) -> None:
    path = tmp_path / "m.shard"
    with ShardWriter(path, role="manifest", fsync=False) as writer:
        writer.write_entry(
            "meta/manifest", b'{"files":[{"uri":"%s"}]}' % uri.replace("\\", "\\\\").encode()
        )
    url = server.put("in/m.shard", path.read_bytes())
    server.counter.taken()
    assert main(["verify", url, "--allow-outside"]) == Exit.FINDING
    assert all("m.shard" in asked for asked in server.counter.asked)
    from shard_format import Manifest

    with pytest.raises(UnsafePath):
        Manifest.read(url).verify()


def test_chunks_below_a_folder_count_with_their_manifest(
    moto: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHARD_STORAGE_OPTIONS", json.dumps(moto.options))
    episode = Episode(id="run", length=30)
    episode.actions["ctrl"] = np.arange(30, dtype="f4")
    with ChunkedEpisodeWriter(tmp_path / "run", "run", 10, fsync=False) as writer:
        writer.write_episode(episode)
    save_wshard(episode, tmp_path / "run" / "single.wshard", fsync=False)
    for path in (tmp_path / "run").iterdir():
        moto.put(f"chunked/{path.name}", path.read_bytes())
    assert main(["verify", "--json", "s3://bucket/chunked"], WSHARD) == Exit.OK
    files = json.loads(capsys.readouterr().out)["files"]
    assert [(one["file"].rpartition("/")[2], one["files"]) for one in files] == [
        ("run_manifest.wshard", 4),
        ("single.wshard", 1),
    ]
