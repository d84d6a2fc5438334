"""`wshard doctor FOLDER --clean`: what killed writers left is named and removed; recordings never are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit
from shard_format.atomic import AtomicFile
from tests.wshard.recording_support import record, recorder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import MakeEpisode, Run

LEFT = ".a.wshard.0123456789ab.partial"
STAGED = ".c.wshard.0123456789ab.partial"
SHARD = ".d.shardpack.0123456789ab.partial"


@pytest.fixture
def folder(tmp_path: Path, make_episode: MakeEpisode) -> Path:
    """An episode among all that writers can leave; the recording has a name like a temporary file."""
    make_episode("ep.wshard")
    below = tmp_path / "below"
    (below / STAGED).mkdir(parents=True)
    for name in (LEFT, SHARD, f"{STAGED}/new", f"{STAGED}/.new.0123456789ab.partial"):
        (below / name).write_bytes(b"half")
    for name in ("rec.wshard", ".rec.0123456789ab"):
        writer = recorder(below / name)
        record(writer, 0, 9)
        journal = (below / f"{name}.partial").read_bytes()
        writer.end_episode()
        (below / f"{name}.partial").write_bytes(journal)
        (below / name).unlink()
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "below").iterdir()}


def test_what_killed_writers_left_is_named(wshard: Run, folder: Path) -> None:
    before = names(folder)
    result = wshard("doctor", folder, "--json", "--ignore", "no_end")
    assert result.code == Exit.OK
    assert {(one["path"].rpartition("/")[2], one["state"]) for one in result.json["leftovers"]} == {
        (name, "abandoned") for name in (LEFT, STAGED, SHARD)
    }
    assert f"a killed writer left {folder}/below/{LEFT}; --clean removes it" in result.err
    assert "'shardpack recover' saves its records" in result.err
    assert names(folder) == before
    assert wshard("doctor", folder, "--strict", "--ignore", "no_end").code == Exit.FINDING


def test_clean_removes_it_and_keeps_recordings_shards_and_what_is_being_written(
    wshard: Run, folder: Path
) -> None:
    writing = AtomicFile(folder / "below" / "e.wshard", fsync=False)
    before = names(folder)
    result = wshard("doctor", folder, "--clean")
    assert result.code == Exit.OK
    assert names(folder) == before - {LEFT, STAGED}
    assert {"rec.wshard.partial", ".rec.0123456789ab.partial", SHARD} <= names(folder)
    writing.commit()
    assert (folder / "below" / "e.wshard").exists()


def test_a_folder_without_episodes_is_cleaned_too(wshard: Run, folder: Path) -> None:
    (folder / "ep.wshard").unlink()
    assert wshard("doctor", folder, "--clean").code == Exit.OK
    (folder / "below" / SHARD).unlink()
    assert wshard("doctor", folder, "--clean").code == Exit.OK  # a recording is still there
    for path in folder.rglob("*.wshard.partial"):
        path.unlink()
    assert wshard("doctor", folder, "--clean").code == Exit.USAGE  # nothing is there at all
