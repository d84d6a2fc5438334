"""Work on many files at once: order, errors, progress."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from shard_cli import jobs as jobs_module
from shard_cli.console import Console, ProgressBar
from shard_cli.exits import Exit
from shard_cli.jobs import in_order, threads_in_each
from shard_cli.kinds.model import Target
from shard_format.errors import ShardIOError
from tests.cli.conftest import flip_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import MakeEpisode, Run


Work = Callable[[Target, Callable[[int, int], None]], int]


def targets(items: list[int], size: int = 1) -> list[Target]:
    return [Target(str(item), size) for item in items]


def run(items: list[int], work: Work, jobs: int | None) -> list[int]:
    return list(in_order(targets(items), work, jobs, Console("test")))


@pytest.mark.parametrize("jobs", [None, 1, 3, 50])
def test_results_come_in_the_order_of_the_items(jobs: int | None) -> None:
    def work(target: Target, _: object) -> int:
        item = int(target.path)
        time.sleep(0.002 * (item % 3))
        return item * item

    assert run(list(range(20)), work, jobs) == [item * item for item in range(20)]
    assert run([], work, jobs) == []


def test_so_many_are_worked_on_at_once_as_asked() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def work(target: Target, _: object) -> int:
        barrier.wait()
        return int(target.path)

    assert run([1, 2, 3], work, 3) == [1, 2, 3]


def test_an_unexpected_error_is_raised_here_and_stops_the_rest() -> None:
    done: list[int] = []

    def work(target: Target, _: object) -> int:
        if target.path == "1":
            raise ZeroDivisionError
        done.append(int(target.path))
        time.sleep(0.01)
        return 0

    with pytest.raises(ZeroDivisionError):
        run(list(range(100)), work, 1)
    assert len(done) < 50


def test_progress_adds_up_what_is_done_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    class Watched(ProgressBar):
        def update(self, done: int, total: int) -> None:
            seen.append((done, total))

    console = Console("test")
    monkeypatch.setattr(console, "progress", lambda label: Watched(label, io.StringIO()))

    def work(target: Target, advance: Callable[[int, int], None]) -> int:
        advance(1, 2)
        time.sleep(0.1)
        return target.size

    list(in_order([Target("a", 100), Target("b", 300)], work, 1, console))
    assert (50, 400) in seen
    assert (250, 400) in seen
    assert seen[-1] == (400, 400)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_very_many_small_files_are_shared_between_processes(
    wshard: Run, make_episode: MakeEpisode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(5):
        make_episode(f"many/ep_{number}.wshard")
    flip_in(make_episode("many/ep_9.wshard"), "signal/rgb")
    (tmp_path / "many" / "ep_7.wshard").write_bytes(b"")
    threads = [wshard(command, tmp_path / "many", "-j", "2") for command in ("verify", "inspect")]
    monkeypatch.setattr(jobs_module, "_MANY_FILES", 2)
    processes = [wshard(command, tmp_path / "many", "-j", "2") for command in ("verify", "inspect")]
    assert processes == threads
    assert [result.code for result in processes] == [Exit.FINDING, Exit.FINDING]
    assert "ep_9.wshard: FAILED" in processes[0].out


def test_a_process_that_is_killed_is_an_error_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "_MANY_FILES", 2)
    with pytest.raises(ShardIOError, match="--jobs 1"):
        run([0, 0, 0, 0], partial(_ended, os._exit), 2)


def _ended(end: Callable[[int], None], _: Target, __: object) -> int:
    end(0)
    return 0


def test_threads_are_shared_between_files() -> None:
    assert threads_in_each(4, 1) is None
    assert threads_in_each(1, 100) is None
    assert threads_in_each(1000, 1000) == 1
