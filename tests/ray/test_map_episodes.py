"""`map_episodes` on two nodes: the same files as on one machine, whatever is lost on the way."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shard_format.errors import ShardError, ShardIOError
from shard_format.executors import RayExecutor
from shard_train import map_episodes
from tests.ray import jobs
from tests.ray.conftest import EPISODES, NODE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("cluster")]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.wshard")}


@pytest.fixture(scope="session")
def expected(episodes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process of this machine makes."""
    folder = tmp_path_factory.mktemp("local") / "out"
    map_episodes(jobs.double, episodes, folder, jobs=1)
    return files(folder)


def test_a_cluster_makes_the_same_files_as_one_process(
    episodes: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    done: list[tuple[int, int]] = []
    report = map_episodes(
        jobs.double,
        episodes,
        tmp_path / "out",
        engine="ray",
        progress=lambda *at: done.append(at),
    )
    assert files(tmp_path / "out") == expected
    assert len(expected) == EPISODES
    assert set(expected) >= {"run_0/ep_0.wshard", "run_1/ep_1.wshard"}
    assert (report.episodes, report.skipped, report.failed) == (EPISODES, 0, {})
    assert done[-1] == (EPISODES, EPISODES)


def test_values_are_collected_and_not_computed_again(episodes: Path, tmp_path: Path) -> None:
    local = map_episodes(jobs.mean, episodes, tmp_path / "a", jobs=1)
    first = map_episodes(jobs.mean, episodes, tmp_path / "b", engine="ray")
    again = map_episodes(jobs.mean, episodes, tmp_path / "b", engine="ray")
    assert local.values == first.values == again.values
    assert (first.skipped, again.skipped) == (0, EPISODES)


def test_a_killed_worker_is_replaced(
    episodes: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    fn = partial(jobs.double_and_die_once, marker=str(tmp_path / "died"))
    report = map_episodes(fn, episodes, tmp_path / "out", engine="ray")
    assert (tmp_path / "died").exists()
    assert files(tmp_path / "out") == expected
    assert report.failed == {}


def test_what_a_killed_node_had_is_done_elsewhere(
    cluster: Any,  # noqa: ANN401 - of Ray
    episodes: Path,
    tmp_path: Path,
    expected: dict[str, bytes],
) -> None:
    doomed = cluster.add_node(**NODE)
    (tmp_path / "doomed").write_text(doomed.node_id)

    def remove_when_it_works() -> None:
        while not at_work.exists():
            ended.wait(0.05)
        cluster.remove_node(doomed, allow_graceful=False)

    at_work, ended = tmp_path / "at_work", threading.Event()
    remover = threading.Thread(target=remove_when_it_works, daemon=True)
    remover.start()
    fn = partial(jobs.double_where_it_waits, folder=str(tmp_path))
    map_episodes(fn, episodes, tmp_path / "out", engine="ray", jobs=3)
    remover.join()
    assert files(tmp_path / "out") == expected


def test_a_failure_is_reported_and_the_next_run_does_only_what_is_left(
    episodes: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    out, luck = tmp_path / "out", tmp_path / "luck"
    fn = partial(jobs.double_or_fail, without=str(luck))
    report = map_episodes(fn, episodes, out, engine="ray", on_error="skip")
    (failed,) = report.failed
    assert failed.endswith("ep_5.wshard")
    assert len(files(out)) == EPISODES - 1
    assert "no luck" in json.loads((tmp_path / "out.report.json").read_text())["failed"][failed]
    with pytest.raises(ShardError, match=r"ep_5.*no luck"):
        map_episodes(fn, episodes, out, engine="ray")
    luck.touch()
    damaged = out / "run_0" / "ep_0.wshard"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    report = map_episodes(fn, episodes, out, engine="ray")
    # The one that failed and the one that was damaged; another function does all of them again.
    assert report.skipped == EPISODES - 2
    assert files(out) == expected
    assert map_episodes(jobs.double, episodes, out, engine="ray").skipped == 0


def test_a_process_that_always_dies_ends_the_work_with_an_error(tmp_path: Path) -> None:
    executor = RayExecutor(jobs=1)
    with pytest.raises(ShardIOError, match=r"killed or ended by itself.*item 0"):
        list(executor.run(jobs.always_die, [str(tmp_path)]))
