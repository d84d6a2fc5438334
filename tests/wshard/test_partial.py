"""Opening a journal like any other episode, and finding the recordings below a folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

import wshard
from shard_format.errors import BadMagic, EntryNotFound, InvalidArgument
from wshard import WShardStreamWriter, load_wshard, recover
from wshard.partial import find_recordings, state_of
from wshard.streaming import StreamOptions

if TYPE_CHECKING:
    from pathlib import Path

CHANNELS = [
    {"id": "state", "dtype": "f32", "shape": [3]},
    {"id": "ctrl", "dtype": "f32", "shape": [2], "lane": "action"},
]


def record(path: Path, steps: int = 20) -> WShardStreamWriter:
    """A recording that goes on; every fifth step is flushed."""
    writer = WShardStreamWriter(
        *(path, path.stem, CHANNELS),
        overwrite=True,
        on_partial="discard",
        options=StreamOptions(flush_steps=5),
    )
    writer.begin_episode(env_id="Env-v0")
    for step in range(steps):
        values = {"state": np.full(3, step, np.float32), "ctrl": np.full(2, -step, np.float32)}
        writer.write_timestep(values, reward=1.0)
    return writer


@pytest.mark.parametrize("load", [load_wshard, wshard.load])
def test_a_journal_opens_as_far_as_it_was_flushed(tmp_path: Path, load: object) -> None:
    record(tmp_path / "ep.wshard").close()
    before = (tmp_path / "ep.wshard.partial").read_bytes()
    assert callable(load)
    with load(tmp_path / "ep.wshard.partial") as episode:
        assert (episode.id, episode.env_id, episode.length) == ("ep", "Env-v0", 20)
        assert np.array_equal(episode.observations["state"][18:20, 0], [18, 19])
    assert (tmp_path / "ep.wshard.partial").read_bytes() == before


def test_some_channels_of_a_journal_stay_chosen_while_it_grows(tmp_path: Path) -> None:
    record(tmp_path / "whole.wshard").close()
    content = (tmp_path / "whole.wshard.partial").read_bytes()
    path = tmp_path / "ep.wshard.partial"
    path.write_bytes(content[: len(content) * 2 // 3])
    with load_wshard(path, channels=iter(["state"])) as episode:
        assert isinstance(episode, wshard.partial.PartialEpisode)
        assert episode.length < 20
        path.write_bytes(content)
        assert episode.refresh()
        assert (episode.length, list(episode.observations), list(episode.actions)) == (
            20,
            ["state"],
            [],
        )
    with pytest.raises(EntryNotFound, match="no channel 'staet'"):
        load_wshard(path, channels=["staet"])


def test_an_empty_journal_says_that_nothing_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "ep.wshard.partial").touch()
    with pytest.raises(InvalidArgument, match="nothing was recorded yet"):
        load_wshard(tmp_path / "ep.wshard.partial")
    (tmp_path / "movie.partial").write_bytes(b"not a recording")
    with pytest.raises(BadMagic):
        load_wshard(tmp_path / "movie.partial")


def test_the_recordings_below_a_folder_are_found_with_what_became_of_them(tmp_path: Path) -> None:
    record(tmp_path / "a" / "ep_10.wshard").close()
    record(tmp_path / "a" / "ep_9.wshard").close()
    recover(tmp_path / "a" / "ep_9.wshard.partial")
    record(tmp_path / "done.wshard").end_episode()
    (tmp_path / "empty.wshard.partial").touch()
    (tmp_path / "movie.partial").write_bytes(b"not a recording")
    live = record(tmp_path / "live.wshard")
    found = {
        files.path[len(str(tmp_path)) + 1 :]: state_of(files) for files in find_recordings(tmp_path)
    }
    live.close()
    assert found == {
        "a/ep_9.wshard": "recovered",
        "a/ep_10.wshard": "unfinished",
        "empty.wshard": "empty",
        "live.wshard": "recording",
    }


def test_an_episode_that_is_shorter_than_the_journal_does_not_count_as_recovered(
    tmp_path: Path,
) -> None:
    """Someone has recorded over an older episode of the same id, and died."""
    record(tmp_path / "ep.wshard", 10).end_episode()
    record(tmp_path / "ep.wshard", 20).close()
    (files,) = find_recordings(tmp_path)
    assert state_of(files) == "unfinished"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_journal_of_another_user_hides_no_others(tmp_path: Path) -> None:
    record(tmp_path / "mine.wshard").close()
    record(tmp_path / "theirs.wshard").close()
    (tmp_path / "theirs.wshard.partial").chmod(0)
    states = [state_of(files) for files in find_recordings(tmp_path)]
    assert states == ["unfinished", "recording"]
