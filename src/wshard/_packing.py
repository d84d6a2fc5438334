"""How the runs of a recording are stored, chosen from the first of them, and the threads that compress.

Noise does not compress, and a finished episode would hold it raw again. What a camera sees hardly changes from
step to step, so that differences compress better, and faster. Both show in the first run of a channel.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format import Codec
from shard_format._crc import crc32c
from shard_format._parallel import available_threads
from shard_format._zstd import compress_frame
from shard_format.codecs import is_worth_it
from shard_format.filters import LARGEST_FRAME, Delta, Filters
from wshard.dtypes import DType

if TYPE_CHECKING:
    from wshard._tracks import Handed, Run
    from wshard.recordable import RecordedChannel

_TRIED_BYTES: Final = 1 << 20
"""What is tried of the first run; more would tell little more."""
_SMALLEST_HANDED: Final = 1 << 16
"""Below it waking a thread costs more than it saves."""
_PIXELS: Final = (DType.UINT8, DType.UINT16)


class Plan(NamedTuple):
    """How the runs of a channel are stored."""

    level: int | None
    """Of zstd; None for raw."""
    filters: Filters | None = None


RAW: Final = Plan(None)


def choose_plan(channel: RecordedChannel, run: Run) -> Plan:
    """How to store a channel whose first run is this one; by trying."""
    level = channel.level
    if level is None:
        return RAW
    entries = max(1, min(run.entries, _TRIED_BYTES // channel.step_bytes))
    if run.entries > 1 and channel.dtype in _PIXELS:
        entries = max(entries, 2)  # or there is no difference
    content = run.content[: entries * channel.step_bytes]
    plain = best = len(compress_frame(content, level, checksum=True))
    filters = None
    if entries > 1 and channel.dtype in _PIXELS and channel.step_bytes <= LARGEST_FRAME // 2:
        delta = Filters(Delta(width=channel.dtype.size, row=channel.step_bytes))
        best = len(compress_frame(delta.apply(content), level, checksum=True))
        if best < plain:
            filters = delta
    return Plan(level, filters) if is_worth_it(min(plain, best), len(content)) else RAW


class Packed(NamedTuple):
    """A run as it is stored."""

    run: Run
    codec: Codec
    stored: bytes | memoryview
    stored_crc32c: int
    content_crc32c: int


def pack(run: Run, plan: Plan) -> Packed:
    """Compresses a run; takes the checksums that it does not have yet."""
    checksum = crc32c(run.content) if run.crc32c is None else run.crc32c
    if plan.level is None:
        return Packed(run, Codec.NONE, run.content, checksum, checksum)
    filtered = run.content if plan.filters is None else plan.filters.apply(run.content)
    stored = compress_frame(filtered, plan.level, checksum=True)
    return Packed(run, Codec.ZSTD, stored, crc32c(stored), checksum)


class Job:
    """A run that is packed by whoever claims it first."""

    __slots__ = ("_claim", "_done", "_error", "_packed", "_plan", "run")

    def __init__(self, run: Run, plan: Plan) -> None:
        self.run = run
        self._plan = plan
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._packed: Packed | None = None
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def try_to_do(self) -> bool:
        """Packs the run, unless somebody else does; returns whether it was done here."""
        if not self._claim.acquire(blocking=False):
            return False
        try:
            self._packed = pack(self.run, self._plan)
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
        finally:
            self._done.set()
        return True

    def give_up(self) -> None:
        """Returns when nobody reads the run any more."""
        if self._claim.acquire(blocking=False):
            self._done.set()
        self._done.wait()

    def wait(self) -> None:
        """For whoever is at it."""
        self._done.wait()

    def result(self) -> Packed:
        """Of a job that is done."""
        if self._error is not None:
            raise self._error
        assert self._packed is not None
        return self._packed


class Taken(NamedTuple):
    """What was handed over, with its runs packed or about to be."""

    handed: Handed
    parts: list[Packed | Job]

    @property
    def jobs(self) -> list[Job]:
        return [part for part in self.parts if isinstance(part, Job)]

    @property
    def is_done(self) -> bool:
        return all(job.is_done for job in self.jobs)

    def packed(self) -> list[Packed]:
        """Its runs; raises what went wrong with them."""
        return [part.result() if isinstance(part, Job) else part for part in self.parts]


class Pipeline:
    """Packs runs on all processors, and gives them back in the order in which they came.

    Everything but the packing itself is done by the thread that writes, which also packs while it would wait.
    Helpers start when there is work for two, and live until `stop`. There are never more runs in it than
    there are buffers.
    """

    def __init__(self) -> None:
        self.plans: dict[RecordedChannel, Plan] = {}
        """How channels are stored, from their first run on."""
        self._taken: deque[Taken] = deque()
        self._most = available_threads() - 1
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    @property
    def is_busy(self) -> bool:
        return bool(self._taken)

    def take(self, handed: Handed) -> None:
        """Lets the runs of what was handed over be packed. If that fails, `give_up` still has it."""
        parts: list[Packed | Job] = []
        self._taken.append(Taken(handed, parts))
        for run in handed.runs:
            plan = self._plan(run)
            if run.crc32c is not None and plan is RAW:
                parts.append(pack(run, RAW))
                continue
            job = Job(run, plan)
            # The first is for the writer: one processor is left to whoever records.
            if len(self._taken) > 1 or parts:
                self._offer(job)
            parts.append(job)

    def _plan(self, run: Run) -> Plan:
        channel = run.channel
        plan = self.plans.get(channel)
        if plan is None:
            plan = self.plans[channel] = choose_plan(channel, run)
            channel.level = plan.level
        return plan

    def again(self, run: Run) -> Packed:
        """Packs a part of a run that was packed as a whole."""
        return pack(run, self.plans[run.channel])

    def next_packed(self) -> list[Taken]:
        """What can be written now, in order; after helping where nothing can be. May be empty."""
        self._help()
        return self._done()

    def give_up(self) -> list[Taken]:
        """All that is left, when nobody reads it any more."""
        for taken in self._taken:
            for job in taken.jobs:
                job.give_up()
        return self._done()

    def _done(self) -> list[Taken]:
        found = []
        while self._taken and self._taken[0].is_done:
            found.append(self._taken.popleft())
        return found

    def _help(self) -> None:
        """Returns when the first runs are packed, or others were here; notes are written with what follows."""
        first = next((taken for taken in self._taken if taken.parts), None)
        if first is None or first.is_done:
            return
        jobs = (job for taken in self._taken for job in taken.jobs)
        if not any(not job.is_done and job.try_to_do() for job in jobs):
            for job in first.jobs:
                job.wait()

    # --- helpers

    def _offer(self, job: Job) -> None:
        """Lets a helper take the job, if it comes to it first."""
        if len(job.run.content) < _SMALLEST_HANDED or not self._most:
            return
        self._jobs.put(job)
        if len(self._threads) < min(self._most, self._jobs.qsize()):
            thread = threading.Thread(target=self._work, name="wshard packer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are too many, or the program is about to end
                self._most = len(self._threads)
            else:
                self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.try_to_do()

    def stop(self) -> None:
        """Ends the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
