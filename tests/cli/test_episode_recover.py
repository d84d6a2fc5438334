"""`wshard recover`: what a recorder that died left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wshard import WShardStreamWriter, load_wshard
from wshard.streaming import StreamOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Twenty recorded steps that nobody finished."""
    channels = [{"id": "state", "dtype": "f32", "shape": [3]}]
    writer = WShardStreamWriter(
        tmp_path / "ep.wshard", "ep_001", channels, options=StreamOptions(flush_steps=5)
    )
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
    writer = WShardStreamWriter(
        path, "ep_001", channels, options=StreamOptions(flush_steps=4, max_steps_per_file=8)
    )
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


# --- many at once


def record(path: Path, steps: int = 20) -> WShardStreamWriter:
    channels = [{"id": "state", "dtype": "f32", "shape": [3]}]
    writer = WShardStreamWriter(
        *(path, path.stem, channels),
        overwrite=True,
        on_partial="discard",
        options=StreamOptions(flush_steps=5),
    )
    writer.begin_episode(env_id="Env-v0")
    for step in range(steps):
        writer.write_timestep({"state": np.full(3, step, np.float32)}, reward=float(step))
    return writer


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A folder with two recordings that can be recovered, and one that cannot."""
    folder = tmp_path / "runs"
    for name in ("a/ep_1", "b/bad", "b/ep_2"):
        record(folder / f"{name}.wshard").close()
    bad = folder / "b" / "bad.wshard.partial"
    bad.write_bytes(bad.read_bytes()[:50])
    return folder


def test_one_journal_that_fails_does_not_stop_the_others_of_a_folder(
    wshard: Run, crashed: Path
) -> None:
    journals = {path: path.read_bytes() for path in crashed.rglob("*.partial")}
    result = wshard("recover", crashed)
    assert result.code == 1
    assert "bad.wshard.partial: nothing can be recovered" in result.err
    assert "recovered 2 of 3 recordings, 1 failed" in result.out
    assert load_wshard(crashed / "a" / "ep_1.wshard").length == 20
    assert load_wshard(crashed / "b" / "ep_2.wshard").length == 20
    assert {path: path.read_bytes() for path in crashed.rglob("*.partial")} == journals


def test_a_second_run_recovers_nothing_again_and_replaces_nothing(
    wshard: Run, crashed: Path
) -> None:
    (crashed / "b" / "bad.wshard.partial").unlink()
    assert wshard("recover", crashed).code == 0
    before = (crashed / "a" / "ep_1.wshard").stat().st_mtime_ns
    result = wshard("recover", crashed, "--json")
    assert result.code == 0
    assert [one["state"] for one in result.json["files"]] == ["recovered", "recovered"]
    assert (crashed / "a" / "ep_1.wshard").stat().st_mtime_ns == before
    # Another episode of that name is not what was recorded.
    record(crashed / "a" / "ep_1.wshard", 25).close()
    result = wshard("recover", crashed)
    assert result.code == 2
    assert "ep_1.wshard: the file exists" in result.err
    assert wshard("recover", crashed, "--force").code == 0
    assert load_wshard(crashed / "a" / "ep_1.wshard").length == 25


def test_a_recording_that_goes_on_is_left_alone_and_named(wshard: Run, tmp_path: Path) -> None:
    writer = record(tmp_path / "live.wshard")
    record(tmp_path / "dead.wshard").close()
    result = wshard("recover", tmp_path)
    assert result.code == 0
    assert "live.wshard.partial: left alone: a process is recording it now" in result.out
    assert not (tmp_path / "live.wshard").exists()
    assert (tmp_path / "dead.wshard").exists()
    result = wshard("recover", tmp_path / "live.wshard.partial")
    assert result.code == 2
    assert "a process is recording it now" in result.err
    copy = tmp_path / "copy.wshard"
    assert wshard("recover", tmp_path / "live.wshard.partial", "-o", copy).code == 0
    assert load_wshard(copy).length == 20
    writer.end_episode()
    assert load_wshard(tmp_path / "live.wshard").length == 20


def test_patterns_and_all_mean_several_recordings(
    wshard: Run, crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(crashed)
    assert wshard("recover", "*/ep_*.partial", "-o", "x.wshard").code == 2
    assert wshard("recover", "b/*.partial").code == 1
    assert not (crashed / "a" / "ep_1.wshard").exists()
    assert wshard("recover", "--all").code == 1
    assert (crashed / "a" / "ep_1.wshard").exists()
    # All files of a folder: the episodes, and what is left of their journals.
    (crashed / "a" / "ep_1.wshard.partial").unlink()
    (crashed / "b" / "bad.wshard.partial").unlink()
    result = wshard("recover", "a/*", "b/*", "--json")
    assert result.code == 0
    assert [one["state"] for one in result.json["files"]] == ["finished", "recovered"]
    assert wshard("recover").code == 2
    assert wshard("recover", "--all", "b").code == 2
    assert wshard("recover", "c*").code == 2


@pytest.mark.parametrize("command", ["inspect", "verify", "doctor"])
def test_commands_on_a_folder_count_journals_and_say_what_to_do(
    wshard: Run, crashed: Path, command: str
) -> None:
    result = wshard(command, crashed)
    assert result.code == 0
    assert f"3 recordings were not finished; save what was recorded: wshard recover {crashed}" in (
        result.err
    )
    assert len(wshard(command, crashed, "--json").json["recordings"]) == 3
    wshard("recover", crashed)
    states = [one["state"] for one in wshard(command, crashed, "--json").json["recordings"]]
    assert sorted(states) == ["recovered", "recovered", "unfinished"]


def test_doctor_counts_an_unfinished_recording_when_it_is_strict(
    wshard: Run, crashed: Path
) -> None:
    assert wshard("doctor", crashed, "--strict").code == 1


def test_inspect_of_a_journal_shows_what_was_flushed(wshard: Run, journal: Path) -> None:
    result = wshard("inspect", journal)
    assert result.code == 0
    assert "20 steps" in result.out
    assert f"'wshard recover {journal}' saves it" in result.out
    fields = wshard("inspect", journal, "--values", "--json").json["files"][0]
    assert (fields["state"], fields["steps"]) == ("unfinished", 20)
    assert [(block["block"], block["stats"]["max"]) for block in fields["blocks"]] == [
        ("signal/state", 19.0),
        ("reward", 19.0),
    ]
