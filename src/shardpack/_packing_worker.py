"""What a process of `pack` does: makes records of the items that it is sent, and sends them back.

To the process come runs of pickled items, and an empty message for the end. From it come first the error
that kept it from beginning, or None, and then reports, each followed by its pieces: the bytes of records.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from shardpack._making import Failure, Maker

if TYPE_CHECKING:
    import ctypes
    from multiprocessing.connection import Connection

    from shardpack._preparing import Prepared

# Small records go together, large ones in pieces: whoever reads a message needs its size in memory.
PIECE_BYTES: Final = 1 << 18


class RecordFacts(NamedTuple):
    """A record, without its bytes."""

    key: str
    kinds: bytes
    """As stored in the file; the same object in all records that have the same."""
    entries: int
    size: int


class ItemReport(NamedTuple):
    """Some of the records of an item."""

    records: list[RecordFacts]
    is_done: bool
    failure: Failure | None


class Report(NamedTuple):
    """What was made since the last report."""

    items: list[ItemReport]
    """In order; the first may go on with what the last report ended with."""
    pieces: int
    """Messages that follow: one with all records, or several with the only one."""
    seconds: float
    """How long it took."""


def work(
    maker: Maker | bytes, tasks: Connection, results: Connection, under_way: ctypes.c_uint64
) -> None:
    """Runs until it is sent the end.

    Args:
        maker: makes the records; pickled unless this process is a fork.
        tasks: runs of items with their numbers.
        results: for reports.
        under_way: shared with the first process, which reads there what this one was doing if it is killed.
    """
    # An interrupt goes to all processes of the terminal; the first of them ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    runs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(tasks, runs), daemon=True).start()
    try:
        maker = _unpickled(maker)
    except Exception as error:  # noqa: BLE001 - sent to the first process
        results.send_bytes(pickle.dumps(Failure.of(error).to_send()))
        return
    results.send_bytes(pickle.dumps(None))
    outbox = _Outbox(results)
    while run := runs.get():
        outbox.start_clock()
        for number, item in pickle.loads(run):
            under_way.value = number
            failure = None
            try:
                for record in maker.records(pickle.loads(item)):
                    outbox.add(record)
            except Exception as error:  # noqa: BLE001 - sent to the first process
                failure = Failure.of(error).to_send()
            outbox.finish_item(failure)
        outbox.flush()


def _unpickled(maker: Maker | bytes) -> Maker:
    if isinstance(maker, Maker):
        return maker
    found: Maker = pickle.loads(maker)
    return found


def _receive(tasks: Connection, runs: queue.SimpleQueue[bytes]) -> None:
    """Takes runs off the pipe at once, so that the first process never waits for this one."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    assert parent is not None
    while True:
        ready = wait([tasks, parent.sentinel])
        if tasks not in ready:
            os._exit(1)  # the first process is gone; nobody wants what this one makes
        try:
            run = tasks.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)
        runs.put(run)
        if not run:
            return


class _Outbox:
    """Gathers what is made until it is worth a message."""

    def __init__(self, results: Connection) -> None:
        self._results = results
        self._items: list[ItemReport] = []
        self._records: list[RecordFacts] = []
        self._buffers: list[bytes | memoryview] = []
        self._bytes = 0
        self.start_clock()

    def start_clock(self) -> None:
        """Time that was spent waiting does not count."""
        self._clock = time.perf_counter()

    def add(self, record: Prepared) -> None:
        """A record of the item that is being made."""
        is_large = record.size > PIECE_BYTES
        if is_large or self._bytes + record.size > PIECE_BYTES:
            self.flush()
        kinds = record.kinds
        self._records.append(RecordFacts(record.key, kinds.stored, kinds.count, record.size))
        if is_large:
            self._send(_cut(record.parts))
            return
        if all(type(part) is bytes for part in record.parts):
            self._buffers += record.parts
        else:
            # Its owner may change it.
            self._buffers.append(b"".join(record.parts))
        self._bytes += record.size

    def finish_item(self, failure: Failure | None) -> None:
        """There are no more records of the item that was being made."""
        self._items.append(ItemReport(self._records, True, failure))
        self._records = []

    def flush(self) -> None:
        """Sends what there is."""
        if self._buffers:
            self._send([b"".join(self._buffers)])
        elif self._items:
            self._send([])

    def _send(self, pieces: list[bytes | memoryview]) -> None:
        if self._records:
            self._items.append(ItemReport(self._records, False, None))
        now = time.perf_counter()
        report = Report(self._items, len(pieces), now - self._clock)
        try:
            self._results.send_bytes(pickle.dumps(report))
            for piece in pieces:
                self._results.send_bytes(piece)
        except OSError:
            os._exit(1)  # nobody listens any more
        self._items, self._records, self._buffers, self._bytes = [], [], [], 0
        self._clock = time.perf_counter()


def _cut(parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    return [
        memoryview(part)[start : start + PIECE_BYTES]
        for part in parts
        for start in range(0, len(part), PIECE_BYTES)
    ]
