"""Keeping a folder of copies within so many bytes, for all processes that use it."""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format._atomic import SUFFIX as PARTIAL

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SUFFIX", "CopyRoom"]

SUFFIX: Final = ".wshard-copy"
"""How copies are called: not as episodes, so that no data set finds them."""
_LEDGER: Final = "sizes.wshard-ledger"
_ROW: Final = re.compile(rb"-?\d{1,18}")
_COPY: Final = re.compile(rf"[0-9a-f]{{32}}{re.escape(SUFFIX)}")
_TEMPORARY: Final = re.compile(rf"\.{_COPY.pattern}\.[0-9a-f]+{re.escape(PARTIAL)}")
# A copy that is still being written was written to a moment ago.
_ABANDONED_NS: Final = 3600 * 10**9


class _Copy(NamedTuple):
    """Sorts by when it was used."""

    used_ns: int
    name: str
    size: int


class CopyRoom:
    """The bytes of all copies in a folder, and which of them go when they become too many.

    How many bytes there are is known from a ledger: each process appends what it adds and removes, and reads what
    others have appended since. The folder itself is looked through once in each process, and when copies have to
    go: those that were opened longest ago, until a tenth of the room is free, so that this happens rarely. Then
    the ledger is set right, should a process have been killed between a copy and its row.

    Deleting is safe while a copy is in use: whoever has mapped it keeps it. No file of another name is touched.

    Args:
        folder: where the copies are.
        most_bytes: how many there may be; None for any number.
    """

    def __init__(self, folder: str, most_bytes: int | None) -> None:
        self._folder = folder
        self._ledger = os.path.join(folder, _LEDGER)
        self._most = most_bytes
        # One value, so that threads never see half of it: how far the ledger was read, and the sum up to there.
        self._read = (0, 0)
        self._since_ns: int | None = None

    def prepare(self, size: int) -> int:
        """Makes room for a new copy if that is needed; returns how many copies in use had to go.

        The first time in a process the folder is looked through in any case.
        """
        if self._since_ns is None:
            self._since_ns = time.time_ns()
        elif self._most is None or self._total() + size <= self._most:
            return 0
        return self._make_room(size)

    def add(self, size: int) -> int:
        """Counts a new copy; returns how many in use had to go because others have added some meanwhile."""
        self._append(size)
        if self._most is None or self._total() <= self._most:
            return 0
        return self._make_room(0)

    def drop(self, name: str) -> bool:
        """Removes a copy; whether it is gone."""
        path = os.path.join(self._folder, name)
        try:
            size = os.stat(path).st_size
            os.unlink(path)
        except FileNotFoundError:
            return True  # whoever did it has counted it
        except PermissionError:
            # Windows keeps what is mapped; elsewhere the folder is another one's.
            return False
        self._append(-size)
        return True

    def _make_room(self, size: int) -> int:
        went = 0
        with self._alone() as is_alone:
            if not is_alone:  # another process is about it right now
                return 0
            before = self._total()
            copies = sorted(self._look())
            total = sum(copy.size for copy in copies)
            if total != before:
                self._append(total - before)
            if self._most is None or total + size <= self._most:
                return 0
            enough = self._most - self._most // 10 - size
            if size == 0:  # one was just made: it stays
                copies = copies[:-1]
            for copy in copies:
                if total <= enough:
                    break
                if self.drop(copy.name):
                    total -= copy.size
                    went += self._since_ns is not None and copy.used_ns >= self._since_ns
        return went

    def _look(self) -> Iterator[_Copy]:
        """All copies; removes what killed processes have left behind."""
        abandoned = time.time_ns() - _ABANDONED_NS
        with os.scandir(self._folder) as found:
            for file in found:
                with suppress(FileNotFoundError, PermissionError):  # gone meanwhile, or not ours
                    if _COPY.fullmatch(file.name):
                        facts = file.stat()
                        yield _Copy(facts.st_mtime_ns, file.name, facts.st_size)
                    elif _TEMPORARY.fullmatch(file.name) and file.stat().st_mtime_ns < abandoned:
                        os.unlink(file.path)

    # --- the ledger

    def _append(self, size: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        descriptor = os.open(self._ledger, flags, 0o666)
        try:
            # A line feed on both sides: half a row, of a disk that was full, spoils no other.
            os.write(descriptor, b"\n%d\n" % size)
        finally:
            os.close(descriptor)

    def _total(self) -> int:
        start, total = self._read
        try:
            with open(self._ledger, "rb") as ledger:
                if os.fstat(ledger.fileno()).st_size < start:  # somebody has deleted it
                    start, total = 0, 0
                ledger.seek(start)
                rows = ledger.read()
        except FileNotFoundError:
            start, total, rows = 0, 0, b""
        whole = rows.rfind(b"\n") + 1
        now = total + sum(int(row) for row in rows[:whole].split() if _ROW.fullmatch(row))
        self._read = (start + whole, now)
        return now

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process makes room; nobody waits, and a killed process holds nothing."""
        try:
            import fcntl
        except ImportError:  # Windows: two at once may remove more than needed
            yield True
            return
        self._append(0)  # so that the file is there
        with open(self._ledger, "rb") as ledger:
            try:
                fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:  # a file system without locks
                pass
            yield True
