"""Runs one operation again and again, each time with another call to the file system going wrong.

    LD_PRELOAD=shim.so python -m tests.faults.run SHIM FOLDER OPERATION MODE…

The operation runs in a forked child on a copy of the prepared folder. Then this process opens what is there, and runs
the operation once more, which must succeed. Prints one line for each problem.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shard_format.errors import ShardError
from tests.faults.operations import OPERATIONS, Operation

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = {"kill": 1, "fail": 2, "full": 3, "short": 4}
FIRED, REFUSED, FINISHED, BROKEN = 10, 20, 0, 1
_MOST_CALLS = 2000


def in_child(work: Callable[[], int]) -> int:
    """The result of `work` in a forked process; minus the signal that ended it."""
    child = os.fork()
    if not child:
        status = BROKEN
        try:
            status = work()
        except BaseException:  # noqa: BLE001 - shown, and told by the status
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Trial:
    """One operation, under one kind of fault at a time."""

    def __init__(self, shim: str, folder: Path, operation: Operation) -> None:
        self.shim = ctypes.CDLL(shim)
        self.folder = folder
        self.operation = operation
        self.mode = ""
        self.problems: list[str] = []
        prepared, done = folder / "prepared", folder / "done"
        for made in (prepared, done):
            made.mkdir()
            operation.prepare(made)
        self.old = self.state_in_child(prepared)
        operation.run(done)
        self.new = self.state_in_child(done)
        self.files = names(done)

    def state_in_child(self, folder: Path) -> Any:  # noqa: ANN401 - what the operation finds
        """What a new process finds."""
        answer = self.folder / "answer"

        def look() -> int:
            answer.write_text(repr(self.operation.state(folder)))
            return 0

        if in_child(look):
            return "cannot be opened"
        return eval(answer.read_text())

    def is_allowed(self, found: Any) -> bool:  # noqa: ANN401 - what the operation finds
        if self.operation.grows:
            return isinstance(found, int) and (self.old or 0) <= found <= self.new
        return found in (self.old, self.new)

    def one(self, call: int) -> bool:
        """The fault at this call; False if the operation does not make so many."""
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.folder / "prepared", work, symlinks=True)

        def attempt() -> int:
            self.shim.shim_arm(os.fsencode(work), call, MODES[self.mode])
            status = FINISHED
            try:
                self.operation.run(work)
            except ShardError:
                status = REFUSED
            finally:
                fired = self.shim.shim_fired()
            return status + (FIRED if fired else 0)

        status = in_child(attempt)
        if status in (FINISHED, REFUSED):
            if status == REFUSED:
                self.problems.append(f"{self.mode}, call {call}: refused without a fault")
            return False
        if status not in (FIRED, FIRED + REFUSED, -signal.SIGKILL):
            self.problems.append(
                f"{self.mode}, call {call}: ended with {status}, not with a ShardError"
            )
        found = self.state_in_child(work)
        if not self.is_allowed(found):
            self.problems.append(
                f"{self.mode}, call {call}: then {found}, not {self.old} or {self.new}"
            )
        if status == FIRED and self.mode == "short" and found != self.new:
            self.problems.append(f"{self.mode}, call {call}: finished, but {found}, not {self.new}")
        if self.mode == "full" and status == FIRED + REFUSED:
            self.check_names(work, call, is_tidy=True)

        def again() -> int:
            self.operation.run(work)
            return 0

        if in_child(again):
            self.problems.append(f"{self.mode}, call {call}: the operation cannot run again")
        elif (then := self.state_in_child(work)) != self.new:
            if not (self.operation.ends_early and self.is_allowed(then) and then >= found):
                self.problems.append(
                    f"{self.mode}, call {call}: run again, it gives {then}, not {self.new}"
                )
        else:
            self.check_names(work, call, is_tidy=False)
        return True

    def check_names(self, work: Path, call: int, *, is_tidy: bool) -> None:
        """Nothing is left but what the operation makes, recordings, and temporary files that could not be removed."""
        known = self.files | names(self.folder / "prepared")
        left = {name for name in names(work) - known if not is_recording(name)}
        if is_tidy:  # finished episodes wait for the next run
            left = {name for name in left if ".converting/" not in name}
        hidden = {name for name in left if is_temporary(name)}
        if left - hidden or len(hidden) > (0 if is_tidy else 2):
            self.problems.append(f"{self.mode}, call {call}: left behind {sorted(left)}")


def names(folder: Path) -> set[str]:
    """The files, whatever their numbers."""
    return {
        re.sub(r"[0-9a-f]{12,}|\d+", "0", str(path.relative_to(folder)))
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith((".lock", ".pid"))
    }


def is_temporary(name: str) -> bool:
    """Whether a tidying tool knows the file by its name."""
    last = name.rpartition("/")[2]
    return last.endswith("~") or (last.startswith(".") and last.endswith(".partial"))


def is_recording(name: str) -> bool:
    """Whether a file holds steps that a killed recorder had flushed."""
    last = name.rpartition("/")[2]
    return ".recovered-" in last or (last.endswith(".wshard.partial") and last[0] != ".")


def main() -> int:
    shim, folder, name, *modes = sys.argv[1:]
    trial = Trial(shim, Path(folder), OPERATIONS[name])
    gc.freeze()  # so that the children do not copy what the imports left
    for trial.mode in modes:
        call = 1
        while trial.one(call):
            call += 1
            assert call < _MOST_CALLS
        print(f"{name}, {trial.mode}: {call - 1} calls")
    for problem in trial.problems:
        print(problem)
    print(f"{len(trial.problems)} problems")
    return 1 if trial.problems else 0


if __name__ == "__main__":
    sys.exit(main())
