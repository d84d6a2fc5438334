"""The same work on many files: several at once, with results in order and one progress bar."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shard_cli.text import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shard_cli.console import Console
    from shard_cli.kinds.model import Progress, Target

Result = TypeVar("Result")

# With many small files most time goes into Python itself, which threads cannot share. Starting
# processes takes as long as working on some hundred files.
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
    targets: Sequence[Target],
    work: Callable[[Target, Progress], Result],
    jobs: int | None,
    console: Console,
    noun: str = "episode",
) -> Iterator[Result]:
    """The result for each target, in order, while others are still worked on.

    Threads do the work: reading, decompression and checksums release the GIL. Very many small files go to
    processes instead. An interrupt waits for neither.

    Args:
        targets: what to work on.
        work: called with a target and a function that takes the bytes done and the bytes in all. It can
            be pickled, and so can its results.
        jobs: how many at once; None for one per processor.
        console: shows the progress.
        noun: what the targets are.
    """
    from concurrent.futures import ThreadPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    from shard_format.errors import ShardIOError

    if not targets:
        return
    at_once = min(jobs or processors(), len(targets))
    total = sum(target.size for target in targets)
    is_many = len(targets) >= _MANY_FILES and total < _SMALL_FILE * len(targets)
    what = targets[0].path if len(targets) == 1 else count(len(targets), noun)
    done, finished = [0] * len(targets), 0
    lock = threading.Lock()

    def work_on(number: int) -> Result:
        return work(targets[number], partial(advance, number))

    def advance(number: int, part: int, whole: int) -> None:
        share = int(targets[number].size * min(part / whole, 1.0)) if whole > 0 else 0
        nonlocal finished
        with lock:
            finished += max(0, share - done[number])
            done[number] = max(share, done[number])
            bar.update(finished, total)

    with console.progress(f"{console.command} {what}") as bar:
        executor: Any
        if is_many and at_once > 1:
            executor = _processes(at_once)
            alone = partial(_work_unwatched, work)
            results = executor.map(alone, targets, chunksize=_FILES_AT_A_TIME)
        else:
            executor = ThreadPoolExecutor(at_once)
            results = executor.map(work_on, range(len(targets)))
        try:
            for number, result in enumerate(results):
                advance(number, 1, 1)
                yield result
        except BrokenProcessPool:
            raise ShardIOError(
                "a process that worked on files was killed",
                hint="the machine may have run out of memory; give --jobs 1",
            ) from None
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _processes(at_once: int) -> Any:  # noqa: ANN401 - imported late
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Spawned, not forked: the same on every system, whatever threads a library has started.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(at_once, spawn, _ignore_interrupts)


def _ignore_interrupts() -> None:
    import signal

    # An interrupt goes to all processes of the terminal; the first of them ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work_unwatched(work: Callable[[Target, Progress], Result], target: Target) -> Result:
    return work(target, lambda _done, _total: None)
