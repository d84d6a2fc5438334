"""Processes that die or stop before a chosen call to the file system, for tests of crashes and races."""

from __future__ import annotations

import fcntl
import os
import signal
import traceback
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Every call that changes what is on the disk, or makes it last.
CHANGES: Final = (
    *("replace", "rename", "link", "unlink", "mkdir", "rmdir", "open", "writev", "ftruncate"),
    *("chmod", "fsync", "fdatasync"),
)
# Those through which a process sees what others do.
LOOKS: Final = ("open", "stat", "access", "listdir")
REFUSED: Final = 3
"""How a child ends whose work raised a `ShardError`."""


class Child:
    """A forked process that does some work.

    Before its call number `at` (from 0) to one of `calls`, or to take a lock, it does what `act` says: `"die"` or
    `"pause"` until `go`.
    """

    def __init__(
        self,
        work: Callable[[], object],
        at: int = -1,
        act: str = "die",
        calls: Sequence[str] = CHANGES,
    ) -> None:
        self._heard, tell = os.pipe()
        may_go, self._go = os.pipe()
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid:
            os.close(tell)
            os.close(may_go)
            return
        os.close(self._go)  # so that a child never waits for a parent that died
        _inject(at, act, calls, tell, may_go)
        status = 1
        try:
            work()
            status = 0
        except ShardError as error:
            status = REFUSED
            if "changed on disk" not in str(error):
                traceback.print_exc()
        except BaseException:  # noqa: BLE001 - the parent sees the status
            traceback.print_exc()
        finally:
            os._exit(status)

    def stopped(self) -> str:
        """Waits until it pauses ("paused"), waits for a lock ("waits") or has ended ("")."""
        return os.read(self._heard, 16).decode()

    def go(self) -> None:
        """Ends its pause."""
        os.write(self._go, b"!")

    def end(self) -> int:
        """Waits for its end; returns its status, or minus the signal that has killed it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._heard)
            os.close(self._go)
        return self._status


def _inject(at: int, act: str, calls: Sequence[str], tell: int, may_go: int) -> None:
    count = 0

    def before_call() -> None:
        nonlocal count
        count += 1
        if count - 1 != at:
            return
        if act == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(tell, b"paused")
        os.read(may_go, 1)

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - those of the call
            before_call()
            return function(*args, **options)

        return call

    flock = fcntl.flock

    def telling(descriptor: Any, operation: int) -> None:  # noqa: ANN401 - flock's
        before_call()
        try:
            flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if operation & fcntl.LOCK_NB:
                raise
            os.write(tell, b"waits")
            flock(descriptor, operation)

    for name in calls:
        setattr(os, name, guarded(getattr(os, name)))
    fcntl.flock = telling


def killed_at(call: int, work: Callable[[], object], calls: Sequence[str] = CHANGES) -> bool:
    """Runs work in a process that is killed before a call; False if there is no such call."""
    status = Child(work, call, calls=calls).end()
    assert status in (0, -signal.SIGKILL), status
    return status != 0
