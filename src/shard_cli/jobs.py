"""The same work on many files: several at once, with results in order and one progress bar."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shard_cli.text import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shard_cli.output import Console

Item = TypeVar("Item")
Result = TypeVar("Result")

_REDRAW_SECONDS: Final = 0.1
# With many small files most time goes into Python itself, which threads cannot share. Starting
# processes takes as long as some hundred of them.
_MANY_FILES: Final = 400
_SMALL_FILE: Final = 1 << 20
_FILES_AT_A_TIME: Final = 16


def processors() -> int:
    """How many processors this program may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_in_each(jobs: int | None, files: int) -> int | None:
    """Threads that one file may use while others are worked on; None lets the library choose."""
    at_once = min(jobs or processors(), files)
    return None if at_once <= 1 else max(1, processors() // at_once)


def in_order(
    items: Sequence[Item],
    work: Callable[[Item, Callable[[int, int], None]], Result],
    *,
    jobs: int | None,
    weights: Sequence[int],
    console: Console,
    label: str,
    noun: str = "episode",
) -> Iterator[Result]:
    """The result for each item, in the order of the items, while others are still worked on.

    Threads do it, for reading, decompression and checksums hold no lock; processes where there are
    very many small files. An interrupted program waits for neither.

    Args:
        items: what to work on.
        work: called with an item and a function that takes what is done of it, and the whole. It and
            its results can be pickled.
        jobs: how many at once; None for one per processor.
        weights: how much of the whole each item is, in bytes.
        console: shows the progress.
        label: what is being done.
        noun: what the items are.
    """
    at_once = min(jobs or processors(), len(items))
    if len(items) > 1:
        label = f"{label} {count(len(items), noun)}"
    is_many = len(items) >= _MANY_FILES and sum(weights) < _SMALL_FILE * len(items)
    spread = _in_processes if is_many and at_once > 1 else _in_threads
    yield from spread(items, work, at_once, weights, console, label)


def _in_threads(
    items: Sequence[Item],
    work: Callable[[Item, Callable[[int, int], None]], Result],
    at_once: int,
    weights: Sequence[int],
    console: Console,
    label: str,
) -> Iterator[Result]:
    """All drawing is done by the thread of the caller; the others are daemons."""
    waiting = iter(range(len(items)))
    shares: dict[int, float] = {}
    finished: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    lock, stop = threading.Lock(), threading.Event()

    def drain() -> None:
        while not stop.is_set():
            with lock:
                number = next(waiting, None)
            if number is None:
                return

            def advance(done: int, total: int, number: int = number) -> None:
                if total > 0:
                    shares[number] = min(done / total, 1.0)

            try:
                finished.put((number, work(items[number], advance), None))
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                finished.put((number, None, error))

    for _ in range(at_once):
        threading.Thread(target=drain, daemon=True).start()
    early: dict[int, Result] = {}
    total, done_bytes = sum(weights), 0
    try:
        with console.progress(label) as bar:
            for number in range(len(items)):
                while number not in early:
                    try:
                        done, result, error = finished.get(timeout=_REDRAW_SECONDS)
                    except queue.Empty:
                        pass
                    else:
                        if error is not None:
                            raise error
                        shares.pop(done, None)
                        done_bytes += weights[done]
                        early[done] = result
                    started = sum(share * weights[at] for at, share in shares.copy().items())
                    bar.update(done_bytes + int(started), total)
                yield early.pop(number)
    finally:
        stop.set()


def _runs(items: Sequence[Item], weights: Sequence[int]) -> Iterator[list[Item]]:
    """Neighbouring items that are handed over together: many small ones, or one large one."""
    run: list[Item] = []
    heavy = 0
    for item, weight in zip(items, weights, strict=True):
        run.append(item)
        heavy += weight
        if len(run) >= _FILES_AT_A_TIME or heavy >= _SMALL_FILE:
            yield run
            run, heavy = [], 0
    if run:
        yield run


_work_of_this_process: Callable[[Any, Callable[[int, int], None]], Any] | None = None


def _in_processes(
    items: Sequence[Item],
    work: Callable[[Item, Callable[[int, int], None]], Result],
    at_once: int,
    weights: Sequence[int],
    console: Console,
    label: str,
) -> Iterator[Result]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    from shard_format.errors import ShardIOError

    # Spawned, not forked: the same on every system, whatever threads a library has started.
    executor = ProcessPoolExecutor(
        at_once, multiprocessing.get_context("spawn"), _start_process, (work,)
    )
    total, done_bytes = sum(weights), 0
    try:
        with console.progress(label) as bar:
            weight = iter(weights)
            runs = _runs(items, weights)
            for future in [executor.submit(_work_in_process, run) for run in runs]:
                while not wait([future], _REDRAW_SECONDS).done:
                    bar.update(done_bytes, total)
                for result in future.result():
                    done_bytes += next(weight)
                    bar.update(done_bytes, total)
                    yield result
    except BrokenProcessPool:
        raise ShardIOError(
            "a process that worked on files was ended from outside",
            hint="there may be too little memory for so many; give --jobs 1",
        ) from None
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _start_process(work: Callable[[Any, Callable[[int, int], None]], Any]) -> None:
    import signal

    global _work_of_this_process
    _work_of_this_process = work
    # An interrupt goes to all processes of the terminal; the first of them ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work_in_process(items: list[Any]) -> list[Any]:
    assert _work_of_this_process is not None
    return [_work_of_this_process(item, _unwatched) for item in items]


def _unwatched(_done: int, _total: int) -> None:
    """Progress inside a small file is not worth telling."""
