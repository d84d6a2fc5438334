"""The same work on many items: in processes of this machine, or as tasks of a Ray cluster.

    executor = make_executor("local", jobs=4)
    for number, result in executor.run(work, items):
        ...

Both executors take the same functions and give the same results. Work must be safe to repeat: Ray runs it again if the
machine that it ran on is lost.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import uuid
from abc import ABC, abstractmethod
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from multiprocessing.connection import wait as wait_for_connections
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeVar

from shard_format.errors import InvalidArgument, ShardIOError, check_choice
from shard_format.extras import require
from shard_format.parallel import available_processors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext

__all__ = [
    "ENGINES",
    "Engine",
    "Executor",
    "Failure",
    "LocalExecutor",
    "RayExecutor",
    "RemoteTraceback",
    "WorkerLost",
    "make_executor",
    "part_of",
]

Item = TypeVar("Item")
Result = TypeVar("Result")
Engine = Literal["local", "ray"]

ENGINES: Final = ("local", "ray")
RUNS_AHEAD: Final = 3
"""Runs for each job that are under way, or done and waiting for an earlier one."""
# A task is repeated if its process or its machine is lost.
_RETRIES: Final = 3


def make_executor(
    engine: Engine = "local", *, jobs: int | None = None, address: str | None = None
) -> Executor:
    """The executor of an engine.

    Args:
        engine: `"local"` for processes of this machine, `"ray"` for tasks of a Ray cluster.
        jobs: how many items are worked on at the same time; None for one per processor, of this machine or of the
            cluster.
        address: of the Ray cluster, as `ray.init` takes it: `"auto"` for the one that this machine belongs to. None for
            the cluster that this process is connected to, that of `RAY_ADDRESS`, or a new one on this machine.

    Raises:
        InvalidArgument: an argument is invalid.
        MissingExtra: Ray is not installed.
        ShardIOError: the cluster cannot be reached.
    """
    check_choice("engine", engine, ENGINES)
    if jobs is not None and jobs < 1:
        raise InvalidArgument("jobs must be at least 1", found=jobs)
    if engine == "ray":
        return RayExecutor(jobs, address)
    if address is not None:
        raise InvalidArgument(
            "an address is that of a Ray cluster",
            found=repr(address),
            hint='pass engine="ray"',
            command="pass --engine ray",
        )
    return LocalExecutor(jobs)


class WorkerLost(ShardIOError):
    """A process that worked on items was killed or ended by itself, and so did those that tried again."""

    numbers: Sequence[int] = ()
    """The items that were under way, one of which may be the cause."""
    has_begun: bool = False
    """Whether any item was finished before."""


# --- errors of other processes


class RemoteTraceback(Exception):
    """Where in a worker process an error was raised; the cause of that error, so that it is shown."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Failure(NamedTuple):
    """An error that can go from one process to another."""

    summary: str
    """Its class and message in one line."""
    error: BaseException | None
    """None if it was raised in another process."""
    pickled: bytes = b""
    """The error of another process, if it can be pickled."""
    trace: str = ""
    """Where it was raised in another process."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """An error of this process."""
        message = " ".join(str(error).split())
        summary = type(error).__name__ + (f": {message}" if message else "")
        return cls(summary, error)

    def to_send(self) -> Failure:
        """The same in a form that can always be pickled."""
        assert self.error is not None
        trace = "".join(traceback.format_exception(self.error))
        try:
            pickled = pickle.dumps(self.error)
        except Exception:  # noqa: BLE001 - a foreign class
            pickled = b""
        return Failure(self.summary, None, pickled, trace)

    @property
    def cause(self) -> BaseException:
        """The original error, with its traceback if it is from another process."""
        if self.error is not None:
            return self.error
        remote = RemoteTraceback(self.trace)
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # noqa: BLE001 - a foreign class; the traceback has the text
            return remote
        if not isinstance(error, BaseException):
            return remote
        error.__cause__ = remote
        return error


# --- what both executors share


class _RunResult(NamedTuple):
    """What a worker has made of a run of items."""

    values: list[Any]
    """Those before the first error."""
    failure: Failure | None
    seconds: float


class _Workers(Protocol):
    """Processes that do one kind of work, wherever they are."""

    def submit(self, items: list[Any]) -> Any:  # noqa: ANN401 - a handle of the engine
        """Starts a run of items."""

    def done(self, runs: Collection[Any]) -> Iterable[Any]:
        """Waits until one of these runs is done, or more."""

    def result(self, run: Any) -> _RunResult:  # noqa: ANN401 - a handle of the engine
        """What became of a run that is done. Raises `LookupError` if its process is lost."""


class Executor(ABC):
    """Does the same work on many items, several at once."""

    jobs: int
    """How many items are worked on at the same time."""
    # Neighbouring items go to a process together, for about this much work: handing them over takes time.
    _run_seconds: ClassVar[float]
    most_in_run: ClassVar[int]
    """The most items that a process is given at a time."""

    @abstractmethod
    def _start(self, work: Callable[[Any], Any], most: int) -> AbstractContextManager[_Workers]: ...

    def run(
        self,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        in_order: bool = False,
    ) -> Generator[tuple[int, Result], None, None]:
        """Yields the number of each item and the result of `work`, as they are done or in the order of the items.

        Items are taken only a few runs ahead. Closing the generator, an interrupt and an error stop the work.

        Args:
            work: a function that other processes can import, or an object that can be pickled. Each process gets it once:
                an object may keep what it opens.
            items: may be endless. They can be pickled, and so can the results.
            in_order: whether a result waits for those of the items before it.

        Raises:
            WorkerLost: a process was killed.
            InvalidArgument: `work` cannot be sent to another process.
        """
        queue = enumerate(items)
        first = list(islice(queue, RUNS_AHEAD * self.jobs))
        if not first:
            return
        waiting = [[one] for one in first]
        under_way: dict[Any, list[int]] = {}
        finished: dict[int, tuple[list[int], _RunResult]] = {}
        length, expected = 1, 0
        has_begun = False
        with self._start(work, min(self.jobs, len(first))) as workers:
            while True:
                while len(under_way) + len(finished) < RUNS_AHEAD * self.jobs:
                    run = waiting.pop(0) if waiting else list(islice(queue, length))
                    if not run:
                        break
                    under_way[workers.submit([item for _, item in run])] = [n for n, _ in run]
                if not under_way:
                    return
                for handle in workers.done(under_way):
                    try:
                        result = workers.result(handle)
                    except LookupError as error:
                        raise self._lost(under_way.values(), has_begun, error) from error
                    numbers = under_way.pop(handle)
                    finished[numbers[0]] = (numbers, result)
                    has_begun = True
                while finished and (expected in finished or not in_order):
                    numbers, result = finished.pop(expected if in_order else next(iter(finished)))
                    yield from zip(numbers, result.values, strict=False)
                    if result.failure is not None:
                        raise result.failure.cause
                    expected = numbers[-1] + 1
                    wanted = len(numbers) * self._run_seconds / max(result.seconds, 1e-6)
                    length = max(1, min(int(wanted), self.most_in_run))

    @staticmethod
    def _lost(runs: Iterable[list[int]], has_begun: bool, error: LookupError) -> WorkerLost:
        numbers = sorted(number for run in runs for number in run)
        doing = f"item {numbers[0]}" if len(numbers) == 1 else "one of several items"
        main = "" if has_begun else "; in a script, call this below `if __name__ == '__main__':`"
        lost = WorkerLost(
            f"a worker process was killed or ended by itself while it worked on {doing}",
            found=str(error) or None,
            hint="the machine may have run out of memory: use fewer jobs, --jobs 1 on the command line"
            + main,
        )
        lost.numbers, lost.has_begun = numbers, has_begun
        return lost


def part_of(count: int, part: tuple[int, int]) -> slice:
    """The items of one of several parts, `(3, 16)` for the third of 16. All parts together have each item once."""
    number, parts = part
    if not 1 <= number <= parts:
        raise InvalidArgument(
            "the part does not exist", expected="1/N to N/N", found=f"{number}/{parts}"
        )
    return slice(count * (number - 1) // parts, count * number // parts)


def _run_items(work: Callable[[Any], Any], items: list[Any]) -> _RunResult:
    """Works on a run of items, in a worker process."""
    start = time.perf_counter()
    values: list[Any] = []
    failure = None
    try:
        for item in items:
            values.append(work(item))  # noqa: PERF401 - those before an error stay
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised in the first process
        failure = Failure.of(error).to_send()
    return _RunResult(values, failure, time.perf_counter() - start)


# --- processes of this machine


class LocalExecutor(Executor):
    """Works in processes of this machine; with one job, in this process.

    Args:
        jobs: how many processes; None for one per processor.
        context: how they are started: `"fork"`, `"spawn"` or `"forkserver"`; None for Python's default. `"spawn"` is
            the same on every system, whatever threads a library has started.

    Raises:
        InvalidArgument: this system cannot start processes in this way.
    """

    _run_seconds = 0.02
    most_in_run = 32

    def __init__(
        self, jobs: int | None = None, *, context: str | BaseContext | None = "spawn"
    ) -> None:
        self.jobs = jobs or available_processors()
        if context is None or isinstance(context, str):
            try:
                context = multiprocessing.get_context(context)
            except ValueError:
                raise InvalidArgument(
                    "unknown way to start processes on this system",
                    expected=" or ".join(map(repr, multiprocessing.get_all_start_methods())),
                    found=repr(context),
                ) from None
        self._context = context

    @property
    def forks(self) -> bool:
        """Whether processes have what this one has in memory; then functions need not be pickled."""
        return self._context.get_start_method() == "fork"

    def run(
        self,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        in_order: bool = False,
    ) -> Generator[tuple[int, Result], None, None]:
        """See `Executor.run`."""
        if self.jobs > 1:
            yield from super().run(work, items, in_order=in_order)
            return
        for number, item in enumerate(items):
            yield number, work(item)

    @contextmanager
    def _start(self, work: Callable[[Any], Any], most: int) -> Iterator[_Workers]:
        sent: Any = work
        if not self.forks:
            try:
                sent = pickle.dumps(work)
            except Exception as error:
                raise InvalidArgument(
                    f"the function cannot be sent to a worker process: {error}",
                    found=repr(work)[:120],
                    hint="define it at the top level of an importable module, or use one job",
                ) from error
        stop_reader, stop_writer = self._context.Pipe(duplex=False)
        executor = ProcessPoolExecutor(
            most, mp_context=self._context, initializer=_start_worker, initargs=(sent, stop_reader)
        )
        is_done = False
        try:
            yield _LocalWorkers(executor)
            is_done = True
        finally:
            if not is_done:
                stop_writer.send_bytes(b"stop")
            executor.shutdown(cancel_futures=True)
            stop_reader.close()
            stop_writer.close()


class _LocalWorkers:
    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def submit(self, items: list[Any]) -> Any:  # noqa: ANN401 - a future
        with _interrupts_later():
            try:
                return self._executor.submit(_work_here, items)
            except BrokenProcessPool as error:
                return error  # told when it is waited for

    def done(self, runs: Collection[Any]) -> Iterable[Any]:
        broken = [run for run in runs if isinstance(run, BrokenProcessPool)]
        return broken or wait(runs, return_when=FIRST_COMPLETED).done

    def result(self, run: Any) -> _RunResult:  # noqa: ANN401 - a future
        try:
            if isinstance(run, BrokenProcessPool):
                raise run
            result: _RunResult = run.result()
        except BrokenProcessPool:
            raise LookupError from None
        return result


_work: Any = None
"""In a worker process: what it does; pickled until it is first needed, unless the process is a fork."""
_exit_lock = threading.Lock()
_is_working = False
_is_stopped = False


def _start_worker(work: Any, stop: Connection) -> None:  # noqa: ANN401 - the caller's
    global _work
    _work = work
    # A terminal sends an interrupt to all processes; the first one stops the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, args=(stop,), daemon=True).start()


def _end_with_parent(stop: Connection) -> None:
    """End this process when the first one has ended, or asks for it while this one works.

    A process that ended while it sends its results would leave the first one waiting for the rest of them.
    """
    global _is_stopped
    parent = multiprocessing.parent_process()
    assert parent is not None
    if parent.sentinel not in wait_for_connections([parent.sentinel, stop]):
        with _exit_lock:
            _is_stopped = True
            if _is_working:
                os._exit(1)
        wait_for_connections([parent.sentinel])
    os._exit(1)


@contextmanager
def _working() -> Iterator[None]:
    """While this process works, `_end_with_parent` may end it."""
    global _is_working
    with _exit_lock:
        if _is_stopped:
            os._exit(1)
        _is_working = True
    try:
        yield
    finally:
        with _exit_lock:
            _is_working = False


def _work_here(items: list[Any]) -> _RunResult:
    global _work
    with _working():
        if isinstance(_work, bytes):
            try:
                _work = pickle.loads(_work)
            except Exception as error:  # noqa: BLE001 - raised in the first process
                return _RunResult([], Failure.of(error).to_send(), 0.0)
        return _run_items(_work, items)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """A process that is started here gets no interrupt until it ignores them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- a Ray cluster


class RayExecutor(Executor):
    """Works in tasks of a Ray cluster. A task whose process or machine is lost runs again elsewhere, up to three times.

    The machines of the cluster need this package, and paths that mean the same files on all of them.

    Args:
        jobs: how many items are worked on at the same time; None for one for each processor of the cluster.
        address: as for `make_executor`.
    """

    _run_seconds = 0.1
    most_in_run = 256

    def __init__(self, jobs: int | None = None, address: str | None = None) -> None:
        self._ray = ray = require("ray", "ray")
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, logging_level="error")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ShardIOError(
                    f"cannot connect to a Ray cluster: {error}",
                    found=address,
                    hint="pass the address that 'ray start --head' printed, and its token if there is one",
                ) from error
        self.jobs = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))

    @contextmanager
    def _start(self, work: Callable[[Any], Any], most: int) -> Iterator[_Workers]:
        workers = _RayWorkers(self._ray, work)
        is_done = False
        try:
            yield workers
            is_done = True
        finally:
            if not is_done:
                workers.cancel()


class _RayWorkers:
    def __init__(self, ray: Any, work: Callable[[Any], Any]) -> None:  # noqa: ANN401 - imported late
        self._ray = ray
        self._task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_work_there)
        # In a list, so that a process loads it once and not for every run.
        self._work = (uuid.uuid4().hex, [ray.put(work)], os.getcwd())
        self._runs: set[Any] = set()

    def submit(self, items: list[Any]) -> Any:  # noqa: ANN401 - a reference
        run = self._task.remote(*self._work, items)
        self._runs.add(run)
        return run

    def done(self, runs: Collection[Any]) -> Iterable[Any]:
        found: list[Any] = self._ray.wait(list(runs), num_returns=1)[0]
        return found

    def result(self, run: Any) -> _RunResult:  # noqa: ANN401 - a reference
        self._runs.discard(run)
        errors = self._ray.exceptions
        try:
            result: _RunResult = self._ray.get(run)
        except errors.RayTaskError as error:
            raise InvalidArgument(
                f"the function cannot be used on a machine of the cluster: {str(error.cause).splitlines()[0]}",
                hint="all machines must be able to import what it needs; Ray sends along only what is defined in the script itself",
            ) from error
        except errors.RayError as error:
            raise LookupError(" ".join(str(error).split())[:300]) from error
        return result

    def cancel(self) -> None:
        """Stops what is under way."""
        for run in self._runs:
            self._ray.cancel(run)


_loaded: tuple[str, Any] = ("", None)
"""In a process of Ray: the name of its work, and the work."""


def _work_there(name: str, work: list[Any], folder: str, items: list[Any]) -> _RunResult:
    global _loaded
    if _loaded[0] != name:
        with suppress(OSError):  # relative paths mean the same if all machines have the folder
            os.chdir(folder)
        _loaded = (name, require("ray", "ray").get(work[0]))
    return _run_items(_loaded[1], items)
