"""Functions that make samples, where worker processes can import them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardpack import Sample
from tests.shard_format.support import noise, prose

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES = 1 << 18
# Of all magnitudes.
SIZES = [0, 7, 300, 5000, PIECE_BYTES // 2, PIECE_BYTES - 150, PIECE_BYTES, 3 * PIECE_BYTES + 1]


def make(number: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Samples of all sizes and two shapes."""
    entries: dict[str, Any] = {"a.npy": np.arange(number % 50), "b.txt": prose(number % 700)}
    if number % 3 == 0:
        entries["c.bin"] = noise(SIZES[number // 3 % len(SIZES)])
    return f"k/{number:05d}", entries, {"number": number}


def small(number: int) -> tuple[str, dict[str, Any]]:
    return f"{number}", {"a.txt": f"text {number}"}


def several(number: int) -> list[tuple[str, dict[str, Any]]] | None:
    """None, or up to four samples."""
    if number % 5 == 0:
        return None
    return [(f"{number}/{n}", {"a.bin": noise(n * 1000 + number)}) for n in range(number % 5)]


def one_buffer(number: int) -> Iterator[Sample]:
    """Several samples out of the same memory."""
    for size in (100, PIECE_BYTES + 5):
        buffer = bytearray(size)
        for n in range(3):
            buffer[:] = bytes([n + 1]) * size
            yield Sample(
                f"{number}/{size}/{n}",
                {"a.bin": buffer, "b": memoryview(buffer)[:9]},
                None,
                {"b": "x/y"},
            )


def megabytes(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for n in range(48):
        yield f"{number}/{n}", {"a.bin": bytes([n]) * (1 << 20)}


class OddError(Exception):
    """Cannot be pickled and loaded again."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def fails(number: int) -> Any:  # noqa: ANN401 - wrong on purpose
    """Fails for some items, in different ways; gives sample after sample for the others."""
    match number:
        case 11:
            raise ValueError("no picture\nat all")
        case 21:
            raise OddError("item", "odd")
        case 31:
            return _fails_later(number)
        case 41:
            return "41", {"a.bin": object()}
        case 51:
            return 51
    return small(number)


def _fails_later(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield small(number)
    raise KeyError("later")


def ends_process(job: tuple[int, str]) -> tuple[str, dict[str, Any]]:
    """Item 70 ends its process, once; or every time if there is no file to note it in."""
    number, note = job
    if number == 70 and not (note and Path(note).exists()):
        if note:
            Path(note).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(3)
    return small(number)


def in_process(number: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return f"{number}", {}, {"process": os.getpid()}


class CannotBeLoaded:
    """Goes to another process, where it cannot be made again."""

    def __call__(self, item: object) -> None:
        """Never called there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_load, ("not here",))


def _load(reason: str) -> None:
    raise RuntimeError(reason)
