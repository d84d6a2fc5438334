"""`map_episodes` in processes of this machine; tests/ray does the same on a cluster."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from shard_format.errors import InvalidArgument, ShardError, ShardIOError
from shard_train import map_episodes
from shard_train.packed_episodes import pack_episodes
from tests.ray import jobs
from wshard import add_lane, load_wshard

if TYPE_CHECKING:
    from pathlib import Path

    from wshard import Episode

COUNT = 6


@pytest.fixture
def episodes(tmp_path: Path) -> Path:
    jobs.make_episodes(tmp_path / "episodes", COUNT)
    return tmp_path / "episodes"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.wshard")}


def test_processes_make_the_same_files_as_this_one(episodes: Path, tmp_path: Path) -> None:
    map_episodes(jobs.double, episodes, tmp_path / "a", jobs=1)
    map_episodes(jobs.double, episodes, tmp_path / "b", jobs=2)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert len(files(tmp_path / "a")) == COUNT
    path = "run_1/ep_1.wshard"
    with load_wshard(tmp_path / "a" / path) as new, load_wshard(episodes / path) as old:
        assert jobs.mean(new) == 2 * jobs.mean(old)


def test_packed_episodes_give_the_same_outputs(episodes: Path, tmp_path: Path) -> None:
    pack_episodes(episodes, tmp_path / "eps-%02d.shardpack", max_records=2)
    map_episodes(jobs.double, tmp_path / "eps.shardpack-set", tmp_path / "a", jobs=1)
    map_episodes(jobs.double, episodes, tmp_path / "b", jobs=1)
    found = {name.rpartition("/")[2]: data for name, data in files(tmp_path / "a").items()}
    assert found == {name.rpartition("/")[2]: data for name, data in files(tmp_path / "b").items()}


def test_only_what_changed_is_done_again(episodes: Path, tmp_path: Path) -> None:
    called: list[str] = []

    def count(episode: Episode) -> Episode:
        called.append(episode.id)
        return jobs.double(episode)

    def run() -> list[str]:
        called.clear()
        map_episodes(count, episodes, tmp_path / "out", jobs=1)
        return sorted(called)

    everything = [f"ep_{number}" for number in range(COUNT)]
    assert run() == everything
    assert run() == []
    (tmp_path / "out" / "run_0" / "ep_0.wshard").unlink()
    jobs.make_episodes(tmp_path / "other", 9)
    # The content of another episode, under the old name.
    os.replace(tmp_path / "other" / "run_0" / "ep_8.wshard", episodes / "run_0" / "ep_2.wshard")
    with load_wshard(episodes / "run_1" / "ep_3.wshard") as episode:
        values = episode.observations["state"].data + 1
    add_lane(episodes / "run_1" / "ep_3.wshard", "omen/state/dreamer", values)
    assert run() == ["ep_0", "ep_3", "ep_8"]
    assert run() == []
    map_episodes(count, episodes, tmp_path / "out", jobs=1, resume=False)
    assert len(called) == COUNT


def test_an_error_leaves_what_is_done_for_the_next_run(episodes: Path, tmp_path: Path) -> None:
    luck = tmp_path / "luck"
    fn = partial(jobs.double_or_fail, without=str(luck))
    with pytest.raises(ShardError, match=r"ep_5.wshard.*ValueError: no luck") as caught:
        map_episodes(fn, episodes, tmp_path / "out", jobs=1)
    assert isinstance(caught.value.__cause__, ValueError)
    (episodes / "run_0" / "ep_2.wshard").write_bytes(b"not an episode")
    luck.touch()
    report = map_episodes(fn, episodes, tmp_path / "out", jobs=1, on_error="skip")
    assert (report.episodes, len(report.outputs)) == (COUNT, COUNT - 1)
    assert report.skipped >= 1
    (failed,) = report.failed
    assert failed.endswith("ep_2.wshard")
    document = json.loads((tmp_path / "out.report.json").read_text())
    assert list(document["failed"]) == [failed]
    assert len(document["rows"]) == COUNT - 1


def test_a_killed_process_is_an_error_and_the_next_run_continues(
    episodes: Path, tmp_path: Path
) -> None:
    for number in range(COUNT, 9):
        jobs.make_episodes(tmp_path / "more", number + 1)
    fn = partial(jobs.double_and_die_once, marker=str(tmp_path / "died"))
    with pytest.raises(ShardIOError, match="killed or ended by itself"):
        map_episodes(fn, tmp_path / "more", tmp_path / "out", jobs=2)
    report = map_episodes(fn, tmp_path / "more", tmp_path / "out", jobs=2)
    assert len(report.outputs) == 9


def test_wrong_arguments_are_refused(episodes: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="engine"):
        map_episodes(jobs.mean, episodes, tmp_path / "out", engine="spark")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="address"):
        map_episodes(jobs.mean, episodes, tmp_path / "out", address="auto")
    with pytest.raises(InvalidArgument, match="top level"):
        map_episodes(lambda _: None, episodes, tmp_path / "out", jobs=2)
    with pytest.raises(InvalidArgument, match="replace their inputs"):
        map_episodes(jobs.double, episodes / "run_0", episodes / "run_0", jobs=1)
    with pytest.raises(ShardError, match="JSON"):
        map_episodes(lambda _: object(), episodes, tmp_path / "out", jobs=1)
