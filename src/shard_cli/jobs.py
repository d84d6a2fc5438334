"""The same work on many files: several at once, with results in order and one progress bar."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from shard_cli.text import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from shard_cli.console import Console
    from shard_cli.kinds.model import Progress, Target
    from shard_format.executors import Executor

Result = TypeVar("Result")

# With many small files most time goes into Python itself, which threads cannot share. Starting
# processes takes as long as working on some hundred files.
_MANY_FILES: Final = 400
_SMALL_FILE: Final = 1 << 20


def executor_of(args: argparse.Namespace) -> Executor:
    """What `--engine`, `--address` and `--jobs` say."""
    from shard_format.executors import make_executor

    return make_executor(args.engine, jobs=args.jobs, address=args.address)


def is_elsewhere(args: argparse.Namespace) -> bool:
    """Whether other machines do the work."""
    if getattr(args, "address", None) is not None and args.engine == "local":
        executor_of(args)  # says what is wrong
    return getattr(args, "engine", "local") != "local"


def threads_in_each(jobs: int | None, files: int) -> int | None:
    """Threads that one file may use while others are worked on; None lets the library choose."""
    from shard_format.parallel import available_processors

    at_once = min(jobs or available_processors(), files)
    return None if at_once <= 1 else max(1, available_processors() // at_once)


def in_order(
    targets: Sequence[Target],
    work: Callable[[Target, Progress], Result],
    jobs: int | None,
    console: Console,
    noun: str = "episode",
    executor: Executor | None = None,
) -> Iterator[Result]:
    """The result for each target, in order, while others are still worked on.

    Threads do the work: reading, decompression and checksums release the GIL. Very many small files go to
    processes instead, and with an executor all files go there. An interrupt waits for neither.

    Args:
        targets: what to work on.
        work: called with a target and a function that takes the bytes done and the bytes in all. It can
            be pickled, and so can its results.
        jobs: how many at once; None for one per processor.
        console: shows the progress.
        noun: what the targets are.
        executor: does the work elsewhere, instead of `jobs`.
    """
    from concurrent.futures import ThreadPoolExecutor

    from shard_format.executors import LocalExecutor
    from shard_format.parallel import available_processors

    if not targets:
        return
    at_once = min(jobs or available_processors(), len(targets))
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
        if executor is None and is_many and at_once > 1:
            executor = LocalExecutor(at_once)
        if executor is not None:
            alone = partial(_work_unwatched, work)
            for number, result in executor.run(alone, targets, in_order=True):
                advance(number, 1, 1)
                yield result
            return
        threads = ThreadPoolExecutor(at_once)
        try:
            for number, result in enumerate(threads.map(work_on, range(len(targets)))):
                advance(number, 1, 1)
                yield result
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _work_unwatched(work: Callable[[Target, Progress], Result], target: Target) -> Result:
    return work(target, lambda _done, _total: None)
