"""Processes that make records for `pack`, whose results come back in the order of the items."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections import deque
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import InvalidArgument, ShardError, ShardIOError
from shardpack._kinds import parse_kinds
from shardpack._making import Part
from shardpack._output import how_to_go_on
from shardpack._packing_worker import ItemReport, Report, work
from shardpack._preparing import Prepared, encode_key

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

    from shardpack._making import Failure, Maker, Work
    from shardpack._packing_worker import RecordFacts

# Handing over a run costs some 100 µs on both sides, which this much work makes small.
_RUN_SECONDS: Final = 0.02
_RUN_BYTES: Final = 1 << 20
_MOST_ITEMS_IN_RUN: Final = 32
# One that is being made, and one to go on with.
_RUNS_IN_WORKER: Final = 2
# Runs for each process that are under way, or made and waiting for an earlier one.
_RUNS_AHEAD: Final = 4
# Records that wait for an earlier one; then only what comes first is received, and the others stop.
_MOST_WAITING_BYTES: Final = 128 << 20
_PATIENCE_SECONDS: Final = 5.0

_AT_TOP_LEVEL: Final = (
    "define it at the top level of a module that can be imported, "
    "or make the samples in this process: processes=0"
)
_BELOW_MAIN: Final = (
    "in a script, call pack below `if __name__ == '__main__':`, "
    "so that worker processes can import it"
)


class Processes:
    """Makes the records of items in other processes.

    Memory: the runs that are under way, and some 128 MiB of records that wait for earlier ones.

    Owns: the processes, and the runs that were handed out, oldest first.

    Args:
        maker: makes the records.
        most: so many processes at most; no more are started than there is work for.
        context: how they are started; None for what Python does on this system.
        name: the output, for errors.
    """

    def __init__(
        self, maker: Maker, most: int, context: str | BaseContext | None, name: str
    ) -> None:
        _refuse_workers(name)
        self._context = _context_of(context)
        self._maker: Maker | bytes = maker
        if self._context.get_start_method() != "fork":
            self._maker = _pickled(maker, "make", name)
        self._most = most
        self._name = name
        self._workers: list[_Worker] = []
        self._runs: deque[_Run] = deque()
        self._has_more = True
        self._waiting_bytes = 0
        self._run_length = 1

    def make(self, works: Iterator[Work]) -> Generator[Part, None, None]:
        """The records of all items, in their order. All processes end when this does."""
        try:
            while True:
                self._hand_out(works)
                if not self._runs:
                    break
                first = self._runs[0]
                while first.parts:
                    part = first.parts.popleft()
                    self._waiting_bytes -= _size(part)
                    yield part
                if first.is_done:
                    self._runs.popleft()
                else:
                    self._receive(first)
            for worker in self._workers:
                worker.send(b"")
            for worker in self._workers:
                worker.process.join(_PATIENCE_SECONDS)
        finally:
            self._stop()

    def _hand_out(self, works: Iterator[Work]) -> None:
        while self._has_more and len(self._runs) < _RUNS_AHEAD * self._most:
            worker = min(self._workers, key=lambda one: len(one.runs), default=None)
            if (
                worker is not None
                and len(self._workers) == self._most
                and len(worker.runs) >= _RUNS_IN_WORKER
            ):
                return
            items = self._next_items(works)
            if not items:
                return
            if worker is None or (worker.runs and len(self._workers) < self._most):
                worker = _Worker(self._context, self._maker)
                self._workers.append(worker)
            run = _Run([one for one, _ in items], worker)
            self._runs.append(run)
            worker.runs.append(run)
            if not worker.send(pickle.dumps([(one.number, data) for one, data in items])):
                raise self._ended(worker)

    def _next_items(self, works: Iterator[Work]) -> list[tuple[Work, bytes]]:
        items: list[tuple[Work, bytes]] = []
        size = 0
        while len(items) < self._run_length and size < _RUN_BYTES:
            one = next(works, None)
            if one is None:
                self._has_more = False
                break
            data = _pickled(one.item, one, self._name)
            items.append((one, data))
            size += len(data)
        return items

    def _receive(self, first: _Run) -> None:
        """Waits until at least one process has something to say, and takes it."""
        listened = [worker for worker in self._workers if worker.runs]
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            listened = [first.worker]
        ready = set(wait([worker.results for worker in listened]))
        for worker in listened:
            if worker.results in ready:
                try:
                    self._take(worker)
                except (EOFError, OSError):
                    raise self._ended(worker) from None

    def _take(self, worker: _Worker) -> None:
        message = pickle.loads(worker.results.recv_bytes())
        if not worker.has_begun:
            if message is not None:
                raise self._cannot_begin(message)
            worker.has_begun = True
            return
        report: Report = message
        pieces = [worker.results.recv_bytes() for _ in range(report.pieces)]
        run = worker.runs[0]
        for part in _parts(run, report.items, pieces):
            run.parts.append(part)
            self._waiting_bytes += _size(part)
        run.seconds += report.seconds
        if run.is_done:
            worker.runs.popleft()
            wanted = _RUN_SECONDS * len(run.works) / max(run.seconds, 1e-6)
            self._run_length = max(1, min(int(wanted), _MOST_ITEMS_IN_RUN))

    def _cannot_begin(self, failure: Failure) -> ShardError:
        error = InvalidArgument(
            f"make cannot be used in a worker process: {failure.summary}",
            path=self._name,
            hint=_AT_TOP_LEVEL,
        )
        error.__cause__ = failure.cause
        return error

    def _ended(self, worker: _Worker) -> ShardError:
        """A process is no longer there although nobody told it to go."""
        if not worker.has_begun:
            # What it said before may not have been read yet.
            with suppress(EOFError, OSError):
                self._take(worker)
        worker.process.join(_PATIENCE_SECONDS)
        code = worker.process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {_signal_name(-code)}"
        if not worker.has_begun:
            return ShardIOError(
                f"a worker process {how} before it could begin",
                path=self._name,
                hint=f"it may have said why; {_BELOW_MAIN}",
            )
        found = worker.find(worker.under_way.value)
        during = "between two items" if found is None else f"while it made {found}"
        return ShardIOError(
            f"a worker process {how} {during}",
            path=self._name,
            hint="if the system ran out of memory, give fewer processes; "
            + how_to_go_on(self._name),
        )

    def _stop(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_PATIENCE_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.close()


class _Worker:
    """A process. Owns: the pipes to it, and the runs that it has to make, oldest first."""

    def __init__(self, context: BaseContext, maker: Maker | bytes) -> None:
        task_reader, self._tasks = context.Pipe(duplex=False)
        self.results: Connection[Any, Any]
        self.results, result_writer = context.Pipe(duplex=False)
        self.runs: deque[_Run] = deque()
        self.has_begun = False
        self.under_way: Any = context.RawValue("Q", 0)
        # A daemon: it does not outlive this process, and lets compression use one thread.
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined] # all contexts have it
            target=work, args=(maker, task_reader, result_writer, self.under_way), daemon=True
        )
        try:
            with _interrupts_later():
                self.process.start()
        except BaseException:
            self._tasks.close()
            self.results.close()
            raise
        finally:
            # Only the process itself has these, so that its end closes them.
            task_reader.close()
            result_writer.close()

    def send(self, message: bytes) -> bool:
        """False if the process is no longer there."""
        try:
            self._tasks.send_bytes(message)
        except OSError:
            return False
        return True

    def find(self, number: int) -> Work | None:
        """The item of this number, unless all of it was received."""
        works = (one for run in self.runs for one in run.works[run.done :])
        return next((one for one in works if one.number == number), None)

    def close(self) -> None:
        self._tasks.close()
        self.results.close()
        self.process.close()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """A process that is started here gets no interrupt until it is ready to ignore them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Run:
    """Neighbouring items that one process makes."""

    def __init__(self, works: list[Work], worker: _Worker) -> None:
        self.works = works
        self.worker = worker
        self.done = 0
        """Items of which everything was received."""
        self.parts: deque[Part] = deque()
        """What was received and not given on yet."""
        self.seconds = 0.0
        """How long the process worked on it."""

    @property
    def is_done(self) -> bool:
        return self.done == len(self.works)


def _parts(run: _Run, reports: list[ItemReport], pieces: list[bytes]) -> Iterator[Part]:
    """What a report says, with the records in the pieces that came with it."""
    facts = [record for report in reports for record in report.records]
    if len(facts) == 1:
        bodies = iter([pieces])
    else:
        ends = pairwise(accumulate((record.size for record in facts), initial=0))
        bodies = iter([[pieces[0][start:stop]] for start, stop in ends])
    for report in reports:
        records = [_prepared(record, next(bodies)) for record in report.records]
        yield Part(run.works[run.done], records, report.is_done, report.failure)
        run.done += report.is_done


def _prepared(record: RecordFacts, parts: list[bytes]) -> Prepared:
    kinds = parse_kinds(record.kinds, record.entries)
    return Prepared(record.key, encode_key(record.key), kinds, [*parts], record.size)


def _size(part: Part) -> int:
    return sum(record.size for record in part.records)


def _refuse_workers(name: str) -> None:
    """Before there is an output: `multiprocessing` itself looks when the first process is started."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        raise InvalidArgument(
            "pack was called while a worker process imports the script",
            path=name,
            hint=_BELOW_MAIN,
        )
    if process.daemon:
        raise InvalidArgument(
            "this is a worker process itself, which may start no others",
            path=name,
            hint="make the samples in this process: processes=0",
        )


def _context_of(context: str | BaseContext | None) -> BaseContext:
    if context is not None and not isinstance(context, str):
        return context
    try:
        return multiprocessing.get_context(context)
    except ValueError:
        raise InvalidArgument(
            "there is no such multiprocessing_context on this system",
            expected=" or ".join(map(repr, multiprocessing.get_all_start_methods())),
            found=repr(context),
        ) from None


def _pickled(value: Any, what: Work | str, name: str) -> bytes:  # noqa: ANN401 - the caller's
    try:
        return bytes(ForkingPickler.dumps(value))
    except Exception as error:
        raise InvalidArgument(
            f"{what} cannot be sent to a worker process: {error}",
            path=name,
            hint=_AT_TOP_LEVEL if what == "make" else "processes=0 needs to send nothing",
        ) from error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
