"""Threads for work that holds no GIL: decompression, checksums, hashing, reading.

Threads live for one call. That costs some 50 µs each, which the work must be worth, and leaves no
state behind that a fork could break.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
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

    helpers = [threading.Thread(target=drain, daemon=True) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    drain()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]


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
