"""Ctrl-C at any instruction: complete shards stay, and nothing else does."""

from __future__ import annotations

import dis
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

import shardpack
from shard_format.atomic import AtomicFile
from shardpack import ShardWriterSet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

MODULES = ("atomic.py", "writer.py", "writer_set.py")


class InterruptedAt:
    """Raises at the n-th instruction of these modules, as a signal that arrives then does."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._trace = sys.gettrace()

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:  # noqa: ANN401 - as tracing has it
        if os.path.basename(frame.f_code.co_filename) not in MODULES:
            return None
        # What removes the traces of an interrupt is interrupted by a second one only.
        if frame.f_code.co_name in ("abort", "__del__", "_close", "_let_go", "__exit__"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not _handles_error(frame):
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> None:
        sys.settrace(self)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._trace)


def _handles_error(frame: FrameType) -> bool:
    """Whether an exception is about to be handled: CPython 3.11 would not let go of the frame then."""
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return sys.exc_info()[0] is not None or instruction == "PUSH_EXC_INFO"


def at_every(step: int, work: Callable[[int], None], check: Callable[[int], None]) -> int:
    """Interrupts the work at every `step`-th instruction; returns the number of the first one that it does not have."""
    number = 1
    gc.collect()
    gc.freeze()  # what there was before need not be looked through every time
    while True:
        try:
            with InterruptedAt(number):
                work(number)
        except KeyboardInterrupt:
            pass
        else:
            gc.unfreeze()
            return number
        gc.collect()  # as at the end of the process
        check(number)
        number += step


def test_a_file_that_nobody_got_is_removed(tmp_path: Path) -> None:
    def work(number: int) -> None:
        file = AtomicFile(tmp_path / "x", fsync=False)
        file.commit()

    def check(number: int) -> None:
        assert os.listdir(tmp_path) in ([], ["x"]), number

    assert at_every(1, work, check) > 50


@pytest.mark.slow
def test_of_a_set_only_complete_shards_stay(tmp_path: Path) -> None:
    def work(number: int) -> None:
        with ShardWriterSet(
            str(tmp_path / f"{number}-%d.shardpack"), max_records=2, fsync=False
        ) as writer:
            for key in "abcde":
                writer.write(key, {"x": b"1"})

    def check(number: int) -> None:
        left = sorted(name for name in os.listdir(tmp_path) if name.startswith((".", f"{number}-")))
        assert left == [f"{number}-{n}.shardpack" for n in range(len(left))], number
        for name, count in zip(left, (2, 2, 1), strict=False):
            assert len(shardpack.open(tmp_path / name)) == count

    assert at_every(7, work, check) > 1000
