"""`wshard recover`: what a recorder that died left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wshard import WShardStreamWriter, load_wshard

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Twenty recorded steps that nobody finished."""
    channels = [{"id": "state", "dtype": "f32", "shape": [3]}]
    writer = WShardStreamWriter(tmp_path / "ep.wshard", "ep_001", channels, flush_steps=5)
    writer.begin_episode(env_id="Env-v0")
    for step in range(20):
        writer.write_timestep({"state": np.full(3, step, np.float32)}, reward=float(step))
    writer.close()
    return tmp_path / "ep.wshard.partial"


def test_everything_flushed_comes_back_and_the_journal_stays(wshard: Run, journal: Path) -> None:
    before = journal.read_bytes()
    result = wshard("recover", journal)
    assert result.code == 0
    assert "recovered 20 steps of ep_001" in result.out
    assert journal.read_bytes() == before
    episode = load_wshard(journal.with_suffix(""))
    assert np.array_equal(episode.observations["state"].data[:, 0], np.arange(20))


def test_a_cut_journal_gives_its_whole_steps_and_exit_code_3(wshard: Run, journal: Path) -> None:
    journal.write_bytes(journal.read_bytes()[:-7])
    result = wshard("recover", journal, "--json")
    assert result.code == 3
    fields = json.loads(result.out)
    assert fields["steps"] == 15
    assert fields["cut"] == {"signal/state": 5}
    assert fields["lost_bytes"] > 0


def test_an_existing_episode_is_not_replaced_without_force(wshard: Run, journal: Path) -> None:
    target = journal.with_suffix("")
    target.write_bytes(b"something else")
    assert wshard("recover", journal).code == 2
    assert target.read_bytes() == b"something else"
    assert wshard("recover", journal, "--force").code == 0
    assert load_wshard(target).length == 20


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    """Two chunks that are finished, and the journal of the third."""
    channels = [{"id": "state", "dtype": "f32", "shape": [3]}]
    path = tmp_path / "run.wshard"
    writer = WShardStreamWriter(path, "ep_001", channels, flush_steps=4, max_steps_per_file=8)
    writer.begin_episode(env_id="Env-v0")
    for step in range(20):
        writer.write_timestep({"state": np.full(3, step, np.float32)}, reward=float(step))
    writer.close()
    return tmp_path / "run_chunk_0002.wshard.partial"


def test_a_recording_in_chunks_comes_back_as_a_whole(wshard: Run, chunks: Path) -> None:
    finished = chunks.with_name("run_chunk_0000.wshard")
    before = chunks.read_bytes(), finished.read_bytes(), finished.stat().st_mtime_ns
    result = wshard("recover", chunks)
    assert result.code == 0
    assert "recovered 20 steps of ep_001" in result.out
    assert result.out.count("8 steps, was finished") == 2
    assert "4 steps, recovered" in result.out
    assert (chunks.read_bytes(), finished.read_bytes(), finished.stat().st_mtime_ns) == before
    episode = load_wshard(chunks.with_name("run_manifest.wshard"))
    assert np.array_equal(episode.observations["state"].data[:, 0], np.arange(20))


def test_what_is_lost_of_the_last_chunk_is_told_with_exit_code_3(wshard: Run, chunks: Path) -> None:
    chunks.write_bytes(chunks.read_bytes()[:-7])
    result = wshard("recover", chunks.with_name("run.wshard"), "--json")
    assert result.code == 3
    fields = json.loads(result.out)
    assert [chunk["recovered"] for chunk in fields["chunks"]] == [False, False]
    assert fields["steps"] == 16
    assert fields["lost_bytes"] > 0


def test_chunks_under_another_name_leave_the_first_as_they_are(wshard: Run, chunks: Path) -> None:
    assert wshard("recover", chunks, "-o", chunks.with_name("saved.wshard")).code == 0
    assert load_wshard(chunks.with_name("saved_manifest.wshard")).length == 20
    assert load_wshard(chunks.with_name("run_manifest.wshard")).length == 16
    assert wshard("recover", chunks, "-o", chunks.with_name("saved.wshard")).code == 2
