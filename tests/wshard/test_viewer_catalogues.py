"""`wshard view` of a catalogue: the episodes that it names, below the folders that it may speak of, and nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import wshard
from shard_format.errors import BadValue, InvalidArgument
from shard_train.packed_episodes import open_episode_pack, pack_episodes
from tests.wshard.viewer_support import make_chunked, put_page, save_episode, serving
from wshard.viewer import ViewedFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

parquet = pytest.importorskip("pyarrow.parquet")
arrow = pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_page(tmp_path / "page", monkeypatch)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("a", "b", "deep/c"):
        save_episode(tmp_path / "data" / "runs" / f"{name}.wshard")
    return tmp_path / "data" / "runs"


def write_table(path: Path, paths: Sequence[object], column: str = "path") -> Path:
    parquet.write_table(arrow.table({column: paths, "length": list(range(len(paths)))}), path)
    return path


def names(document: dict[str, Any]) -> list[str]:
    return [file["name"] for file in document["files"]]


def problems(*arguments: Path) -> dict[str, str]:
    return {one.name: one.problem for one in ViewedFiles(arguments).left_out}


def test_the_table_has_the_episodes_that_the_catalogue_names(runs: Path) -> None:
    table = wshard.find(runs, where="length > 10", index=False)
    chosen = [path for path in table.to_dict()["path"] if not path.endswith("b.wshard")]
    catalogue = write_table(runs / "chosen.parquet", chosen)
    with serving(catalogue) as (_, client):
        document = client.ask("/files.json").json
        assert names(document) == ["a.wshard", "deep/c.wshard"]
        assert document["open"] is None
        rows = client.ask("/episodes.json").json["rows"]
        assert [(row["file"], row["id"], row["length"]) for row in rows] == [
            (0, "a", 40),
            (1, "c", 40),
        ]
        assert client.ask("/f/0", Range="bytes=0-3").body == b"SHRD"
        assert client.ask("/f/2", Range="bytes=0-3").status == 404


def test_a_saved_index_is_a_catalogue(runs: Path) -> None:
    wshard.find(runs)
    with serving(runs.parent / "runs.wshard-index") as (_, client):
        assert names(client.ask("/files.json").json) == [
            *("runs/a.wshard", "runs/b.wshard", "runs/deep/c.wshard")
        ]


def test_relative_paths_start_from_the_catalogue(runs: Path) -> None:
    catalogue = write_table(runs.parent / "c.parquet", ["runs/a.wshard", "./runs/../runs/b.wshard"])
    assert names(ViewedFiles([catalogue]).document()) == ["runs/a.wshard", "runs/b.wshard"]


def test_folders_say_where_its_episodes_may_be(runs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    catalogue = write_table(elsewhere / "c.parquet", [str(runs / "a.wshard")])
    [problem] = problems(catalogue).values()
    assert "an episode in another folder" in problem
    assert "wshard view c.parquet FOLDER" in problem
    # The folder is not shown as a whole.
    assert names(ViewedFiles([catalogue, runs]).document()) == ["a.wshard"]


@pytest.mark.parametrize("path", ["../../secret.wshard", "{root}/secret.wshard", "link.wshard"])
def test_it_leads_to_no_other_folder(runs: Path, tmp_path: Path, path: str) -> None:
    secret = save_episode(tmp_path / "secret.wshard")
    (runs / "link.wshard").symlink_to(secret)
    catalogue = write_table(runs / "c.parquet", [path.format(root=tmp_path), "a.wshard"])
    files = ViewedFiles([catalogue])
    assert names(files.document()) == ["a.wshard"]
    assert [one.problem for one in files.left_out if "another folder" in one.problem]


def test_an_episode_that_becomes_a_link_is_refused(runs: Path, tmp_path: Path) -> None:
    catalogue = write_table(runs / "c.parquet", ["a.wshard"])
    with serving(catalogue) as (_, client):
        assert client.ask("/f/0", Range="bytes=0-3").status == 206
        secret = save_episode(tmp_path / "secret.wshard")
        (runs / "a.wshard").unlink()
        (runs / "a.wshard").symlink_to(secret)
        assert client.ask("/f/0", Range="bytes=0-3").status == 403
        assert names(client.ask("/files.json").json) == []


@pytest.mark.parametrize(
    "path", ["https://example.org/a.wshard", "notes.txt", "a.wshard\0b", "", "missing.wshard"]
)
def test_what_cannot_be_shown_is_named_and_the_rest_is_shown(runs: Path, path: str) -> None:
    (runs / "notes.txt").write_text("private")
    catalogue = write_table(runs / "c.parquet", [path, "a.wshard"])
    assert len(problems(catalogue)) == 1
    assert names(ViewedFiles([catalogue]).document()) == ["a.wshard"]


def test_of_a_pack_only_the_named_episodes_have_rows(runs: Path) -> None:
    pack = runs.parent / "all.shardpack"
    pack_episodes(runs, pack, fsync=False)
    table = wshard.find(pack, packs=open_episode_pack, index=False)
    chosen = [path for path in table.to_dict()["path"] if path.endswith("c.wshard")]
    catalogue = write_table(runs.parent / "c.parquet", chosen)
    with serving(catalogue, open_pack=open_episode_pack) as (_, client):
        assert names(client.ask("/files.json").json) == ["all.shardpack"]
        [row] = client.ask("/episodes.json").json["rows"]
        assert (row["record"], row["id"]) == ("deep/c", "c")


def test_chunks_overviews_and_added_lanes_come_along(runs: Path) -> None:
    make_chunked(runs)
    (runs / "a.wshard.overview").write_bytes(b"")
    catalogue = write_table(runs / "c.parquet", ["ep_manifest.wshard", "a.wshard"])
    assert sorted(names(ViewedFiles([catalogue]).document())) == [
        *("a.wshard", "a.wshard.overview", "ep_chunk_0000.wshard", "ep_chunk_0001.wshard"),
        "ep_manifest.wshard",
    ]
    with serving(catalogue) as (_, client):
        rows = client.ask("/episodes.json").json["rows"]
        assert sorted(row["id"] for row in rows) == ["a", "ep"]


def test_files_that_are_no_catalogues_are_errors_that_say_why(runs: Path) -> None:
    (runs / "junk.parquet").write_bytes(b"PAR1" + os.urandom(100))
    with pytest.raises(BadValue, match="the catalogue cannot be read"):
        ViewedFiles([runs / "junk.parquet"])
    with pytest.raises(InvalidArgument, match="expected one column 'path'"):
        ViewedFiles([write_table(runs / "c.parquet", ["a.wshard"], column="file")])
    with pytest.raises(BadValue, match="a row without a path"):
        ViewedFiles([write_table(runs / "d.parquet", ["a.wshard", None])])
    with pytest.raises(InvalidArgument, match="must be a local file"):
        ViewedFiles(["https://example.org/c.parquet"])


def test_a_catalogue_of_too_many_episodes_is_refused_before_a_row_is_read(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wshard.viewer._catalogues._MOST_ROWS", 2)
    with pytest.raises(InvalidArgument, match="too many episodes"):
        ViewedFiles([write_table(runs / "c.parquet", ["a.wshard"] * 3)])
    monkeypatch.setattr("wshard.viewer._catalogues._MOST_BYTES", 2)
    with pytest.raises(InvalidArgument, match="paths of the catalogue are too large"):
        ViewedFiles([write_table(runs / "c.parquet", ["a.wshard"])])
