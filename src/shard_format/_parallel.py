"""Threads for work that holds no GIL: decompression, checksums, hashing, reading.

Threads live for one call. That costs some 50 µs each, which the work must be worth, and leaves no
state behind that a fork could break.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable, Iterable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 8
# A thread is started for no less than this; below it starting one costs more than it saves.
_BYTES_PER_THREAD = 1 << 20
_BYTES_PER_BATCH = 1 << 18


def available_threads() -> int:
    """How many threads to use when the caller does not say: the processors we may run on, up to 8.

    In a worker process that a data loader has started it is one: there is one process per processor already.
    """
    if _is_worker():
        return 1
    if hasattr(os, "sched_getaffinity"):
        return min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return min(_MOST_THREADS, os.cpu_count() or 1)


def _is_worker() -> bool:
    # A process that `multiprocessing` has started has this module loaded. Those of loaders and pools are
    # daemons, which end with their parent.
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.current_process().daemon)


def thread_count(
    threads: int | None, work_bytes: int, bytes_per_thread: int = _BYTES_PER_THREAD
) -> int:
    """The threads to use for this much work."""
    wanted = available_threads() if threads is None else threads
    return max(1, min(wanted, work_bytes // bytes_per_thread))


def batches(items: Sequence[Item], sizes: Iterable[int]) -> list[Sequence[Item]]:
    """Runs of neighbouring items with enough bytes each to be worth handing to a thread."""
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

    The first error stops the rest and is raised.
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
                except BaseException as error:  # noqa: BLE001 - handed to the caller below
                    failures.append(error)
                    return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 - handed to the caller below
                failures.append(error)

    helpers = _Helpers(drain, threads - 1)
    try:
        drain()
    except BaseException as error:  # noqa: BLE001 - an interrupt between two items: stops the helpers, too
        failures.append(error)
    helpers.wait()
    if failures:
        raise failures[0]


class _Helpers:
    """Threads that help the caller with its work, and that it waits for if they came in time.

    Not `threading.Thread`, whose start waits until the thread runs. To wake a processor can take longer than all of
    the work: the caller begins at once, and whoever comes when it is done goes home.

    Args:
        work: what each of them does.
        count: how many there are, if the system lets us have them.
    """

    def __init__(self, work: Callable[[], None], count: int) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_done = False
        self._at_work: list[LockType] = []
        # There may be no more threads to be had: then the others do it.
        with suppress(RuntimeError):
            for _ in range(count):
                _thread.start_new_thread(self._help, ())

    def _help(self) -> None:
        at_work = _thread.allocate_lock()
        with self._lock:
            if self._is_done:
                return
            at_work.acquire()
            self._at_work.append(at_work)
        try:
            self._work()
        finally:
            at_work.release()

    def wait(self) -> None:
        """Returns when all who began are done; nobody begins afterwards."""
        with self._lock:
            self._is_done = True
        for at_work in self._at_work:
            at_work.acquire()


def map_in_order(
    items: Sequence[Item], work: Callable[[Item], Result], threads: int
) -> list[Result]:
    """The results of `work`, in the order of the items."""
    if threads <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    results: dict[int, Result] = {}

    def keep(numbered: tuple[int, Item]) -> None:
        number, item = numbered
        results[number] = work(item)

    for_each(enumerate(items), keep, min(threads, len(items)))
    return [results[number] for number in range(len(items))]
