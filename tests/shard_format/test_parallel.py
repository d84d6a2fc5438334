"""Threads for one call: everything is done once, errors arrive, nobody is waited for in vain."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

import shardpack
from shard_format._bucket import _interruptible
from shard_format.errors import ShardError
from shard_format.http import Deadline, TryAgain, retrying
from shard_format.parallel import (
    for_each,
    map_in_order,
    one_at_a_time,
    ordered_parallel,
)
from tests.shard_format.support import check_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_worked_on_once(threads: int) -> None:
    done: list[int] = []
    for_each(range(1000), done.append, threads)
    assert sorted(done) == list(range(1000))
    assert map_in_order(range(100), str, threads) == list(map(str, range(100)))


def test_helpers_that_began_are_waited_for() -> None:
    both = threading.Barrier(2, timeout=60)
    done: list[int] = []

    def work(item: int) -> None:
        both.wait()
        done.append(item)

    for _ in range(50):
        done.clear()
        for_each(range(2), work, 2)
        assert sorted(done) == [0, 1]


def test_a_helper_that_comes_late_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], None]] = []
    monkeypatch.setattr(
        _thread, "start_new_thread", lambda begin, args: late.append(partial(begin, *args))
    )
    done: list[int] = []
    for_each(iter(range(10)), done.append, 3)
    assert done == list(range(10))
    assert len(late) == 2
    for begin in late:
        begin()
    assert done == list(range(10))


def test_without_threads_to_be_had_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(begin: object, args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert map_in_order(range(10), str, 4) == list(map(str, range(10)))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_stops_the_rest_and_is_raised(threads: int) -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 5:
            raise KeyError(item)
        done.append(item)

    with pytest.raises(KeyError):
        for_each(range(1_000_000), work, threads)
    assert len(done) < 999_999


def test_an_interrupt_between_two_items_waits_for_helpers_that_are_at_work() -> None:
    both = threading.Barrier(2, timeout=60)
    here = threading.get_ident()
    finished: list[int] = []
    own: list[int] = []

    def work(item: int) -> None:
        both.wait()
        if threading.get_ident() == here:
            own.append(item)
        else:
            finished.append(sum(range(3_000_000)))

    def interrupt(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ANN401 - as tracing has it
        if frame.f_code.co_name != "drain":
            return None
        if own:
            raise KeyboardInterrupt
        return interrupt

    trace = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            for_each(range(2), work, 2)
    finally:
        sys.settrace(trace)
    assert len(finished) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_what_makes_the_items_is_raised(threads: int) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError(2)

    with pytest.raises(KeyError):
        for_each(items(), lambda item: None, threads)


class TestOneAtATime:
    def test_threads_that_need_the_same_wait_for_the_one_that_makes_it(self) -> None:
        made: dict[str, int] = {}
        started = threading.Barrier(8, timeout=60)
        calls: list[int] = []

        def get(number: int) -> None:
            started.wait()
            with one_at_a_time("a value"):
                if "value" not in made:
                    calls.append(number)
                    made["value"] = number

        for_each(range(8), get, 8)
        assert len(calls) == 1

    def test_different_tasks_do_not_wait_for_each_other(self) -> None:
        both = threading.Barrier(2, timeout=60)

        def work(task: str) -> None:
            with one_at_a_time(task):
                both.wait()

        for_each(["one", "other"], work, 2)

    def test_the_next_thread_tries_again_after_an_error(self) -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="damaged"), one_at_a_time("a value"):
                raise ValueError("damaged")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(self) -> None:
        script = """
            import os, threading
            from shard_format.parallel import one_at_a_time
            inside, end = threading.Event(), threading.Event()
            def work():
                with one_at_a_time("a value"):
                    inside.set()
                    end.wait()
            thread = threading.Thread(target=work)
            thread.start()
            inside.wait()
            if os.fork() == 0:
                with one_at_a_time("a value"):
                    os._exit(7)
            print(os.waitstatus_to_exitcode(os.wait()[1]))
            end.set()
        """
        assert check_python(script).strip() == "7"


def _fail(_: object = None) -> None:
    raise ZeroDivisionError


def _one_and_fail() -> Iterator[int]:
    yield 1
    _fail()


def _fail_in_background() -> None:
    _interruptible(_fail)


def _fail_again() -> None:
    def attempt() -> None:
        raise TryAgain(ConnectionError())  # type: ignore[arg-type] # any error will do

    retrying(attempt, 0, Deadline(60))


CALLS_THAT_FAIL: dict[str, Callable[[Path], object]] = {
    "for_each": lambda _: for_each(range(9), _fail, 2),
    "for_each, in its items": lambda _: for_each(_one_and_fail(), lambda _: None, 2),
    "map_in_order": lambda _: map_in_order(range(9), _fail, 2),
    "ordered_parallel": lambda _: list(ordered_parallel(range(9), _fail, 2)),
    "ordered_parallel, in its items": lambda _: list(ordered_parallel(_one_and_fail(), str, 2)),
    "a call of a store": lambda _: _fail_in_background(),
    "requests that are tried again": lambda _: _fail_again(),
    "pack": lambda path: shardpack.pack([1], path / "a.shardpack", _fail),
}


@pytest.mark.parametrize("call", CALLS_THAT_FAIL.values(), ids=CALLS_THAT_FAIL)
def test_an_error_that_is_dropped_goes_without_the_garbage_collector(
    call: Callable[[Path], object], tmp_path: Path
) -> None:
    """In a cycle, it would keep the frames of its callers, and all that they have open."""
    others = set(threading.enumerate())

    def dropped() -> None:
        with suppress(ZeroDivisionError, ConnectionError, ShardError):
            call(tmp_path)
            pytest.fail("no error")

    dropped()  # what is imported and cached leaves garbage the first time
    (tmp_path / "a.shardpack").unlink(missing_ok=True)
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        dropped()
        for thread in set(threading.enumerate()) - others:
            thread.join()
        gc.collect()
        assert [one for one in gc.garbage if isinstance(one, (BaseException, FrameType))] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
