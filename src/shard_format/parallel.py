"""Threads for work that releases the GIL: decompression, checksums, hashing, reading.

Threads live for one call. Starting one costs some 50 µs, which the work must be worth, and nothing is left
behind that a fork could break.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections import deque
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

__all__ = [
    "available_processors",
    "available_threads",
    "batches",
    "for_each",
    "in_background",
    "map_in_order",
    "one_at_a_time",
    "ordered_parallel",
    "thread_count",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 8
# With less work than this per thread, starting one costs more than it saves.
_BYTES_PER_THREAD = 1 << 20
_BYTES_PER_BATCH = 1 << 18


def available_processors() -> int:
    """How many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_threads() -> int:
    """How many threads to use if the caller does not say: one per processor we may run on, up to 8.

    In a worker process of a data loader the answer is one: there is a process per processor already.
    """
    if _is_worker():
        return 1
    return min(_MOST_THREADS, available_processors())


def _is_worker() -> bool:
    # The workers of loaders and pools are daemons. A process started by `multiprocessing` has the module loaded.
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.current_process().daemon)


def thread_count(
    threads: int | None, work_bytes: int, bytes_per_thread: int = _BYTES_PER_THREAD
) -> int:
    """The number of threads for this much work; `threads` is the caller's bound, None for the default."""
    most = work_bytes // bytes_per_thread
    if most <= 1:
        return 1
    return max(1, min(available_threads() if threads is None else threads, most))


def batches(items: Sequence[Item], sizes: Iterable[int]) -> list[Sequence[Item]]:
    """Runs of neighbouring items, each with enough bytes to be worth handing to a thread."""
    runs: list[Sequence[Item]] = []
    start, weight = 0, 0
    for stop, size in enumerate(sizes, start=1):
        weight += size
        if weight >= _BYTES_PER_BATCH:
            runs.append(items[start:stop])
            start, weight = stop, 0
    if start < len(items):
        runs.append(items[start:])
    return runs


def for_each(items: Iterable[Item], work: Callable[[Item], None], threads: int) -> None:
    """Calls `work` for each item from up to `threads` threads, the caller's among them.

    The first error stops the rest and is raised; so does an interrupt.
    """
    if threads <= 1:
        for item in items:
            work(item)
        return
    queue = iter(items)
    lock = threading.Lock()
    failures: list[BaseException] = []

    def drain() -> None:
        while not failures:
            with lock:
                try:
                    item = next(queue)
                except StopIteration:
                    return
                except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
                    failures.append(error)
                    return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
                failures.append(error)

    helpers = _Helpers(drain, threads - 1)
    try:
        drain()
    except BaseException as error:  # noqa: BLE001 - an interrupt between two items stops the helpers, too
        failures.append(error)
    helpers.wait()
    if failures:
        try:
            raise failures[0]
        finally:
            failures.clear()  # its traceback has this frame, which must not have it


class _Helpers:
    """Threads that help the caller with its work.

    Starting a `threading.Thread` waits until the thread runs, and waking a processor can take longer than the
    whole work. Here the caller begins at once; a helper that starts after the work is finished exits at once.

    Args:
        work: what each helper does.
        count: how many to start; fewer if the system has no more threads.
    """

    def __init__(self, work: Callable[[], None], count: int) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_done = False
        self._running: list[LockType] = []
        with suppress(RuntimeError):  # no more threads: those that run do the work
            for _ in range(count):
                # In a copy of the caller's context, because no two threads can be in the same one.
                _thread.start_new_thread(copy_context().run, (self._help,))

    def _help(self) -> None:
        running = _thread.allocate_lock()
        with self._lock:
            if self._is_done:
                return
            running.acquire()
            self._running.append(running)
        try:
            self._work()
        finally:
            running.release()

    def wait(self) -> None:
        """Returns when all helpers that began are done; none begins afterwards."""
        with self._lock:
            self._is_done = True
        for running in self._running:
            running.acquire()


@contextmanager
def one_at_a_time(task: Hashable) -> Iterator[None]:
    """Lets one thread at a time do a task: what it leaves behind saves the others the same request to a server.

    Different tasks do not wait for each other. A forked process waits for no thread of its parent.
    """
    mine = threading.Lock()
    with mine:
        while (other := _being_done.setdefault(task, mine)) is not mine:
            with other:
                pass
        try:
            yield
        finally:
            _being_done.pop(task, None)


# Single operations on a dictionary are atomic. The lock of a task is held until the task is done.
_being_done: dict[Hashable, LockType] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_being_done.clear)


def in_background(call: Callable[[], Result]) -> Future[Result]:
    """Makes a call in a thread of its own, which may outlast its caller, but not the process.

    Raises:
        RuntimeError: the system has no more threads, or Python is about to end.
    """
    from concurrent.futures import Future

    def make(answer: Future[Result]) -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is needed
            answer.set_exception(error)
        finally:
            del answer  # the traceback of the error has this frame

    answer: Future[Result] = Future()
    threading.Thread(target=make, args=(answer,), daemon=True).start()
    return answer


def map_in_order(
    items: Sequence[Item], work: Callable[[Item], Result], threads: int
) -> list[Result]:
    """All results of `work` at once, in the order of the items. The caller's thread does its share."""
    if threads <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    results: dict[int, Result] = {}

    def keep(numbered: tuple[int, Item]) -> None:
        number, item = numbered
        results[number] = work(item)

    for_each(enumerate(items), keep, min(threads, len(items)))
    return [results[number] for number in range(len(items))]


def ordered_parallel(
    items: Iterable[Item], work: Callable[[Item], Result], threads: int, ahead: int = 0
) -> Iterator[Result]:
    """Yields the results of `work` in the order of the items, computed by `threads` threads.

    At most `threads + ahead` results exist at a time besides the one you hold: items are taken from the iterable
    only as results are asked for. An error of `work` or of the iterable is raised in its place in the order; work
    that has not begun is then dropped, and work that runs is waited for. So it is after an interrupt. Closing the
    generator drops work, too, but does not wait: Python closes a generator that was dropped whenever it collects it,
    perhaps while this thread holds a lock that the work needs. With one thread and nothing ahead, everything happens in
    the caller's thread.

    Args:
        items: may be endless.
        work: called from several threads at once.
        threads: how many threads.
        ahead: how many more items to work on before their results are asked for.
    """
    if threads <= 1 and ahead <= 0:
        for item in items:
            yield work(item)
        return
    from concurrent.futures import ThreadPoolExecutor

    queue = iter(items)
    pending: deque[Future[Result]] = deque()
    failure: BaseException | None = None
    is_exhausted = is_closed = False
    executor = ThreadPoolExecutor(max(1, threads))
    try:
        while True:
            while not is_exhausted and len(pending) < max(1, threads) + ahead:
                try:
                    item = next(queue)
                except StopIteration:  # noqa: PERF203 - at most once
                    is_exhausted = True
                except Exception as error:  # noqa: BLE001 - raised below, after the results before it
                    failure, is_exhausted = error, True
                else:
                    pending.append(executor.submit(copy_context().run, work, item))
            if not pending:
                break
            yield pending.popleft().result()
        if failure is not None:
            raise failure
    except GeneratorExit:
        is_closed = True
        raise
    finally:
        failure = None  # its traceback has this frame
        executor.shutdown(wait=not is_closed, cancel_futures=True)
