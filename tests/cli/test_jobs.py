"""Work on many files at once: order, errors, progress."""

from __future__ import annotations

import io
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from shard_cli import jobs as jobs_module
from shard_cli.exits import Exit
from shard_cli.jobs import in_order, processors, threads_in_each
from shard_cli.output import Console
from shard_cli.progress import Progress
from shard_format.errors import ShardIOError
from tests.cli.conftest import flip_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import MakeEpisode, Run


def run(
    items: list[int], work: Callable[[int, Callable[[int, int], None]], int], jobs: int | None
) -> list[int]:
    console = Console("test")
    weights = [1] * len(items)
    return list(in_order(items, work, jobs=jobs, weights=weights, console=console, label="test"))


@pytest.mark.parametrize("jobs", [None, 1, 3, 50])
def test_results_come_in_the_order_of_the_items(jobs: int | None) -> None:
    def work(item: int, _: object) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    assert run(list(range(20)), work, jobs) == [item * item for item in range(20)]
    assert run([], work, jobs) == []


def test_so_many_are_worked_on_at_once_as_asked() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def work(item: int, _: object) -> int:
        barrier.wait()
        return item

    assert run([1, 2, 3], work, 3) == [1, 2, 3]


def test_an_unexpected_error_is_raised_here_and_stops_the_rest() -> None:
    done: list[int] = []

    def work(item: int, _: object) -> int:
        if item == 1:
            raise ZeroDivisionError
        done.append(item)
        time.sleep(0.01)
        return item

    with pytest.raises(ZeroDivisionError):
        run(list(range(100)), work, 1)
    assert len(done) < 50


def test_progress_adds_up_what_is_done_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    class Watched(Progress):
        def update(self, done: int, total: int) -> None:
            seen.append((done, total))

    console = Console("test")
    monkeypatch.setattr(console, "progress", lambda label: Watched(label, io.StringIO()))
    monkeypatch.setattr(jobs_module, "_REDRAW_SECONDS", 0.01)

    def work(item: int, advance: Callable[[int, int], None]) -> int:
        advance(1, 2)
        time.sleep(0.1)
        return item

    weights = [100, 300]
    list(in_order([0, 1], work, jobs=1, weights=weights, console=console, label="test"))
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
    monkeypatch.setattr(jobs_module, "_in_threads", None)
    processes = [wshard(command, tmp_path / "many", "-j", "2") for command in ("verify", "inspect")]
    assert processes == threads
    assert [result.code for result in processes] == [Exit.FINDING, Exit.FINDING]
    assert "ep_9.wshard: FAILED" in processes[0].out


def test_a_process_that_is_killed_is_an_error_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "_MANY_FILES", 2)
    with pytest.raises(ShardIOError, match="--jobs 1"):
        run([0, 0, 0, 0], partial(_ended, os._exit), 2)


def _ended(end: Callable[[int], None], item: int, _: object) -> int:
    end(item)
    return item


def test_threads_are_shared_between_files() -> None:
    assert threads_in_each(4, 1) is None
    assert threads_in_each(1, 100) is None
    assert threads_in_each(1000, 1000) == 1
    assert processors() >= 1
