"""Folders deeper than Python's stack, and names of more parts than a path may have."""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardpack
from shard_cli.exits import Exit
from shard_format import ShardReader
from shard_format.errors import InvalidArgument, UnsafePath
from shard_train import EpisodeDataset
from shard_train.packed_episodes import pack_episodes
from shardpack.convert import from_image_folder
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Run

DEPTH = 1100
DEEP = "/".join("d" * DEPTH)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds an image and an episode, 1100 folders down."""
    root = tmp_path / "root"
    root.mkdir()
    folder = os.open(root, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=folder)
        above, folder = folder, os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)
    bottom = root / DEEP
    (bottom / "x.jpg").write_bytes(b"image")
    ep = Episode("ep", length=3)
    ep.observations["state"] = np.zeros((3, 2), "f4")
    save_wshard(ep, bottom / "ep.wshard", fsync=False)
    yield root
    # pytest's own way to remove folders is recursive.
    subprocess.run(["rm", "-rf", str(root)], check=True)


def test_a_container_is_made_of_a_deep_folder_and_extracting_it_is_refused(
    run: Run, deep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.shard"
    assert run("create", out, deep).code == Exit.OK
    with ShardReader(out) as reader:
        assert sorted(reader.names()) == [f"{DEEP}/ep.wshard", f"{DEEP}/x.jpg"]
    result = run("extract", out, "-C", tmp_path / "target")
    assert result.code == Exit.FINDING
    assert "more than 256 parts" in result.err
    assert not (tmp_path / "target").exists()


def test_packs_are_made_of_a_deep_folder_and_unpacking_them_is_refused(
    pack: Run, deep: Path, tmp_path: Path
) -> None:
    assert pack("create", "-i", deep, "-o", tmp_path / "a.shardpack").code == Exit.OK
    assert pack("pack-episodes", deep, "-o", tmp_path / "b.shardpack").code == Exit.OK
    from_image_folder(deep, tmp_path / "c.shardpack", others="skip", fsync=False)
    pack_episodes(deep, tmp_path / "d.shardpack", fsync=False)
    for name, keys in (("a", {"ep", "x"}), ("b", {"ep"}), ("c", {"x"}), ("d", {"ep"})):
        path = tmp_path / f"{name}.shardpack"
        with shardpack.open(path) as dataset:
            assert set(dataset.keys()) == {f"{DEEP}/{key}" for key in keys}
        with pytest.raises(UnsafePath, match="more than 256 parts"):
            shardpack.unpack(path, tmp_path / "target")
        assert pack("extract", path, "-C", tmp_path / "target").code == Exit.FINDING
    assert not (tmp_path / "target").exists()


@pytest.mark.slow
def test_episodes_in_a_deep_folder_are_found(wshard: Run, deep: Path) -> None:
    assert wshard("verify", deep).code == Exit.OK
    assert len(EpisodeDataset(deep, 2)) == 2
    with pytest.raises(InvalidArgument, match="too deep for the pattern"):
        EpisodeDataset(str(deep / "**" / "*.wshard"), 2)


@pytest.mark.parametrize(
    "vector", ["valid/names_of_many_parts.shard", "valid_packs/keys_of_many_parts.shardpack"]
)
def test_names_of_many_parts_are_refused_without_memory_for_all_their_folders(
    vector: str, run: Run, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = request.config.rootpath / "spec/vectors" / vector
    tracemalloc.start()
    try:
        result = run("extract", path, "-C", tmp_path / "target", "--skip-unsafe", "--json")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.code == Exit.FINDING
    assert result.json["extracted"] == []
    assert {one["reason"] for one in result.json["skipped"]} <= {
        "it has more than 256 parts",
        "it is longer than 4096 bytes",
    }
    assert peak < 64 << 20
