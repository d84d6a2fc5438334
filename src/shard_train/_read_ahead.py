"""Reading ahead of the training: what a plan needs next is fetched by threads, within a number of bytes.

Three readers share the class `ReadAhead`: `SamplesAhead` fetches records of packs, `WindowsAhead` reads batches of
windows, and `FilesAhead` fetches whole files where the order goes file by file. All of them know the order and
hand out results in it; what is asked for in another order is not here, and its reader reads it directly.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from shard_format.disk_cache import DiskCache
from shard_format.errors import Closed, InvalidArgument
from shard_format.sources import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Batches = Iterator[NDArray[np.int64]]

__all__ = [
    "DEFAULT_READ_AHEAD",
    "Ahead",
    "FilesAhead",
    "ReadAhead",
    "SamplesAhead",
    "WindowsAhead",
    "cached_options",
    "is_far",
]

Result = TypeVar("Result")

DEFAULT_READ_AHEAD: Final = "256MB"
"""What datasets hold of what was read ahead, unless told otherwise."""
# Requests that wait for the network at the same time.
_AT_ONCE: Final = 16
_BATCHES_AT_ONCE: Final = 4
# What is planned together where samples come in any order: more merges more requests, less starts sooner.
_ROUNDS: Final = 2


def cached_options(
    storage_options: Mapping[str, Any] | None,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | str | None,
) -> dict[str, Any] | None:
    """Options for URLs with those of the cache, as `open_source` takes them."""
    options = dict(storage_options or {})
    if cache_dir is not None:
        options["cache_dir"] = DiskCache(cache_dir, cache_bytes)
    elif cache_bytes is not None:
        raise InvalidArgument("cache_bytes needs a cache", hint="pass cache_dir='folder' too")
    return options or None


def is_far(path: str) -> bool:
    """Whether reading a file means asking another machine, or at least a server."""
    return is_url(path) and not path.lower().startswith("file:")


@dataclass(frozen=True, slots=True)
class Job(Generic[Result]):
    """Something to be read ahead."""

    cost: int
    """Bytes that its result takes."""
    work: Callable[[], Result]


class ReadAhead(Generic[Result]):
    """Runs jobs in threads, in the order in which their results are needed, while the results fit into memory.

    Threads start when the first result is asked for, in the process that asks. They end when this object is closed
    or dropped; a job must therefore not refer to it, nor to its owner.

    Args:
        plan: returns the next jobs; none when there are no more. Called under a lock.
        most_bytes: what all results together may take, from the start of a job until `release`. A result that is
            asked for is made even if it does not fit.
        threads: how many jobs run at the same time.
    """

    def __init__(
        self, plan: Callable[[], Sequence[Job[Result]]], most_bytes: int, threads: int
    ) -> None:
        self._state = _State(plan, most_bytes)
        self._threads = threads
        self._process = os.getpid()
        weakref.finalize(self, _close, self._state, self._process).atexit = False

    @property
    def is_ours(self) -> bool:
        """False in a forked child: threads do not follow, and locks may be held forever."""
        return self._process == os.getpid()

    def plan_more(self) -> bool:
        """Plan some more jobs; False if there are none."""
        with self._state.changed:
            return self._state.plan_more()

    def result(self, number: int) -> Result:
        """The result of a job, counted from 0, or its error. Each can be asked for once."""
        while self._threads:
            self._threads -= 1
            threading.Thread(target=self._state.run, name="read-ahead", daemon=True).start()
        return self._state.result(number)

    def release(self, cost: int, unused: int | None = None) -> None:
        """Make room: a result is not needed any more, or a part of it; or one that was never asked for, `unused`."""
        state = self._state
        with state.changed:
            state.held -= cost
            if unused is not None and state.results.pop(unused, None) is None:
                state.unused.add(unused)
            state.changed.notify_all()

    def close(self) -> None:
        """End the threads, each after the job that it is doing."""
        _close(self._state, self._process)


def _close(state: _State[Any], process: int) -> None:
    if process == os.getpid():
        with state.changed:
            state.is_closed = True
            state.results.clear()
            state.changed.notify_all()


class _State(Generic[Result]):
    """What the threads share with their owner."""

    def __init__(self, plan: Callable[[], Sequence[Job[Result]]], most_bytes: int) -> None:
        self.changed = threading.Condition()
        self.held = 0
        self.is_closed = False
        self.results: dict[int, tuple[Result | None, BaseException | None]] = {}
        self.unused: set[int] = set()
        self._plan = plan
        self._most_bytes = most_bytes
        self._waiting: deque[Job[Result]] = deque()
        self._begun = 0
        self._needed = -1

    def plan_more(self) -> bool:
        planned = self._plan()
        self._waiting.extend(planned)
        return bool(planned)

    def run(self) -> None:
        while (begun := self._begin()) is not None:
            number, work = begun
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised where the result is needed
                failure = error
            with self.changed:
                if not self.is_closed and number not in self.unused:
                    self.results[number] = (result, failure)
                self.unused.discard(number)
                self.changed.notify_all()
            del begun, work, result, failure  # while this thread waits for the next job

    def _begin(self) -> tuple[int, Callable[[], Result]] | None:
        """The next job, when there is room for it; None if there will be none."""
        with self.changed:
            while not self.is_closed:
                if not self._waiting and not self.plan_more():
                    return None
                job = self._waiting[0]
                is_needed = self._begun <= self._needed
                if is_needed or not self.held or self.held + job.cost <= self._most_bytes:
                    self._waiting.popleft()
                    self.held += job.cost
                    self._begun += 1
                    return self._begun - 1, job.work
                self.changed.wait()
        return None

    def result(self, number: int) -> Result:
        with self.changed:
            self._needed = max(self._needed, number)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_closed or number in self.results)
            if self.is_closed:
                raise Closed("reading ahead was stopped while a batch was read")
            result, failure = self.results.pop(number)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback has this frame
        return result  # type: ignore[return-value]  # None only if that is what it is


class Ahead(Protocol):
    """What a dataset reads ahead for one walk along a plan."""

    @property
    def is_ours(self) -> bool:
        """Whether this process began it."""

    def close(self) -> None:
        """Stop."""


# --- records


class SamplesAhead:
    """Records of packs. Those that come soon are planned together, and fetched together from each shard.

    Args:
        batches: the numbers of the samples to come.
        shard_sizes: samples of each shard.
        sample_bytes: of an average sample of each shard.
        fetch: returns the records of some samples of one shard.
        most_bytes: what is held at a time.
        groups: the group of each shard, if samples come group by group: a group is then planned together.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        shard_sizes: Sequence[int],
        sample_bytes: NDArray[np.float64],
        fetch: Callable[[list[int]], Sequence[Any]],
        most_bytes: int,
        groups: NDArray[np.int64] | None,
    ) -> None:
        self._rounds = _Rounds(batches, shard_sizes, sample_bytes, fetch, most_bytes, groups)
        self._ahead = ReadAhead(self._rounds.plan, most_bytes, _AT_ONCE)
        # Records of a job that were not taken yet, or why there are none.
        self._arrived: dict[int, list[Any] | Exception] = {}
        self._left: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def is_ours(self) -> bool:
        return self._ahead.is_ours

    def take(self, numbers: list[int], passing: tuple[type[Exception], ...]) -> list[Any] | None:
        """The records of these samples; None if others come next, or one failed with an error of these types.

        Raises:
            ShardError: a record could not be fetched, for another reason.
        """
        with self._lock:
            coming = self._rounds.coming
            while len(coming) < len(numbers) and self._ahead.plan_more():
                pass
            if not numbers or numbers != [coming[at].number for at in range(len(numbers))]:
                return None
            places = [coming.popleft() for _ in numbers]
            records = [self._record(place) for place in places]
            self._ahead.release(self._rounds.cost_of(np.array(numbers)))
        errors = [record for record in records if isinstance(record, Exception)]
        for error in errors:
            if not isinstance(error, passing):
                raise error
        return None if errors else records

    def _record(self, place: _PlannedSample) -> Any:  # noqa: ANN401 - a record, its bytes, or an error
        job = place.job
        if job not in self._arrived:
            self._left[job] = place.of
            try:
                self._arrived[job] = list(self._ahead.result(job))
            except Exception as error:  # noqa: BLE001 - raised for each sample that needed it
                self._arrived[job] = error
        arrived = self._arrived[job]
        record = arrived
        if isinstance(arrived, list):
            record, arrived[place.slot] = arrived[place.slot], None
        self._left[job] -= 1
        if not self._left[job]:
            del self._arrived[job], self._left[job]
        return record

    def close(self) -> None:
        """Stop."""
        self._ahead.close()


class _PlannedSample(NamedTuple):
    """Where a sample will be found."""

    number: int
    job: int
    slot: int
    of: int
    """Samples of this job."""


class _Rounds:
    """Plans the records to fetch, some batches at a time: one job for each shard."""

    def __init__(
        self,
        batches: Batches,
        shard_sizes: Sequence[int],
        sample_bytes: NDArray[np.float64],
        fetch: Callable[[list[int]], Sequence[Any]],
        most_bytes: int,
        groups: NDArray[np.int64] | None,
    ) -> None:
        self.coming: deque[_PlannedSample] = deque()
        """The samples that are planned and were not taken yet."""
        self._batches = batches
        self._starts = np.concatenate(([0], np.cumsum(shard_sizes)))
        self._sample_bytes = np.ceil(sample_bytes).astype(np.int64)
        self._fetch = fetch
        self._groups = groups
        self._most = max(1, most_bytes if groups is not None else most_bytes // _ROUNDS)
        # The first round is one batch, so that training starts soon.
        self._limit = self._most if groups is not None else 1
        self._planned = np.zeros(0, np.int64)
        self._jobs = 0

    def cost_of(self, numbers: NDArray[np.int64]) -> int:
        """Bytes that samples take."""
        return int(self._sample_bytes[self._shards_of(numbers)].sum())

    def _shards_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._starts.searchsorted(numbers, "right") - 1

    def plan(self) -> list[Job[Sequence[Any]]]:
        """The jobs of the next round."""
        numbers = self._next_round()
        shards = self._shards_of(numbers)
        jobs: list[Job[Sequence[Any]]] = []
        places: list[_PlannedSample | None] = [None] * len(numbers)
        _, firsts = np.unique(shards, return_index=True)
        for shard in shards[np.sort(firsts)].tolist():  # as they are needed
            rows = np.flatnonzero(shards == shard).tolist()
            asked = numbers[rows].tolist()
            for slot, row in enumerate(rows):
                places[row] = _PlannedSample(asked[slot], self._jobs, slot, len(rows))
            cost = len(rows) * int(self._sample_bytes[shard])
            jobs.append(Job(cost, partial(self._fetch, asked)))
            self._jobs += 1
        self.coming.extend(place for place in places if place is not None)
        return jobs

    def _next_round(self) -> NDArray[np.int64]:
        """The numbers of samples that are fetched together."""
        parts: list[NDArray[np.int64]] = []
        cost, group = 0, -1
        before, self._planned = self._planned, np.zeros(0, np.int64)
        for numbers in chain([before] if before.size else [], self._batches):
            if self._groups is not None:
                groups = self._groups[self._shards_of(numbers)]
                group = int(groups[0]) if group < 0 else group
                others = np.flatnonzero(groups != group)
                if others.size:
                    parts.append(numbers[: others[0]])
                    self._planned = numbers[others[0] :]
                    break
            parts.append(numbers)
            cost += self.cost_of(numbers)
            if cost >= self._limit:
                break
        self._limit = min(self._most, max(self._limit, 2 * cost))
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


# --- windows


class WindowsAhead:
    """Batches of windows, each read by a job of its own.

    Args:
        batches: the numbers of the windows to come.
        read: reads a batch.
        window_bytes: of one window.
        most_bytes: what is held at a time.
    """

    def __init__(
        self,
        batches: Batches,
        read: Callable[[list[int]], dict[str, Any]],
        window_bytes: int,
        most_bytes: int,
    ) -> None:
        self._coming: deque[list[int]] = deque()
        self._taken = 0
        self._window_bytes = window_bytes
        self._lock = threading.Lock()
        coming = self._coming

        def plan() -> list[Job[dict[str, Any]]]:
            for numbers in batches:
                coming.append(numbers.tolist())
                cost = len(numbers) * window_bytes
                return [Job(cost, partial(read, coming[-1]))]
            return []

        self._ahead = ReadAhead(plan, most_bytes, _BATCHES_AT_ONCE)

    @property
    def is_ours(self) -> bool:
        return self._ahead.is_ours

    def take(self, numbers: list[int]) -> dict[str, Any] | None:
        """The batch of these windows; None if others come next.

        Raises:
            ShardError: what went wrong when it was read.
        """
        with self._lock:
            if not self._coming:
                self._ahead.plan_more()
            if not self._coming or self._coming[0] != numbers:
                return None
            self._coming.popleft()
            self._taken += 1
            try:
                return self._ahead.result(self._taken - 1)
            finally:
                self._ahead.release(len(numbers) * self._window_bytes)

    def close(self) -> None:
        """Stop."""
        self._ahead.close()


# --- files


class FilesAhead:
    """Whole files, for an order that goes through them group by group.

    Args:
        batches: the numbers of the items to come.
        shards_of: the shards that items are in.
        groups: the group of each shard.
        paths: the file of a shard.
        sizes: bytes of each shard, which may be estimates.
        fetch: returns the bytes of a file.
        most_bytes: what is held at a time.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        shards_of: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        groups: NDArray[np.int64],
        paths: Callable[[int], str],
        sizes: NDArray[np.int64],
        fetch: Callable[[str], bytes],
        most_bytes: int,
    ) -> None:
        self._shards_of, self._groups, self._sizes = shards_of, groups, sizes
        # The job of each file, its shard, and what arrived.
        self._jobs: dict[str, tuple[int, int]] = {}
        self._arrived: dict[str, bytes] = {}
        self._begun: set[int] = set()
        self._lock = threading.Lock()
        jobs, begun = self._jobs, self._begun

        def plan() -> list[Job[bytes]]:
            for numbers in batches:
                shards = shards_of(numbers)
                _, firsts = np.unique(shards, return_index=True)
                new = [s for s in shards[np.sort(firsts)].tolist() if s not in begun]
                for shard in new:
                    jobs[paths(shard)] = (len(begun), shard)
                    begun.add(shard)
                if new:
                    return [Job(int(sizes[s]), partial(fetch, paths(s))) for s in new]
            return []

        self._ahead = ReadAhead(plan, most_bytes, _AT_ONCE)

    @property
    def is_ours(self) -> bool:
        return self._ahead.is_ours

    def get(self, path: str) -> bytes | None:
        """The bytes of a file; None if it is not among those that come next.

        Raises:
            ShardError: it could not be fetched.
        """
        with self._lock:
            found = self._arrived.get(path)
            job = self._jobs.get(path)
            if found is None and job is not None:
                try:
                    found = self._arrived[path] = self._ahead.result(job[0])
                except BaseException:
                    # Another attempt reads the file itself.
                    del self._jobs[path]
                    self._ahead.release(int(self._sizes[job[1]]))
                    raise
                self._ahead.release(int(self._sizes[job[1]]) - len(found))
            return found

    def reach(self, numbers: NDArray[np.int64]) -> list[str]:
        """Plan up to these items; return the files that are not needed any more."""
        if not numbers.size:
            return []
        with self._lock:
            shards = np.unique(self._shards_of(numbers))
            while not self._begun.issuperset(shards.tolist()) and self._ahead.plan_more():
                pass
            first = self._groups[shards].min()
            gone = [path for path, (_, shard) in self._jobs.items() if self._groups[shard] < first]
            for path in gone:
                self._drop(path)
            return gone

    def _drop(self, path: str) -> None:
        job, shard = self._jobs.pop(path)
        found = self._arrived.pop(path, None)
        if found is None:
            self._ahead.release(int(self._sizes[shard]), job)
        else:
            self._ahead.release(len(found))

    def close(self) -> None:
        """Stop."""
        self._ahead.close()
