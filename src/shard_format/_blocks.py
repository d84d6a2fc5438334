"""Where a writer's blocks go before the file is finished: a spool, or their final place."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np

from shard_format._atomic import claim_space, copy_range, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_BACK_BYTES = 1 << 20
# Above this NumPy's allocator, which asks for huge pages, copies faster than bytes().
_LARGE_COPY = 1 << 20


class Blocks(Protocol):
    """An append-only run of bytes that can also be cut and read back."""

    position: int

    def append(self, *buffers: bytes | memoryview) -> None:
        """Adds bytes at the end; the buffers may be reused afterwards."""
        ...

    def truncate(self, position: int) -> None:
        """Drops everything from `position` on."""
        ...

    def iter_back(self, start: int = 0) -> Iterator[bytes | memoryview]:
        """What was written from `start` on, in pieces of any size."""
        ...


class SpooledBlocks:
    """In memory while small, then in a file without a name, which no crash can leave behind.

    Owns: the buffers, or the file.
    """

    def __init__(self, folder: str, memory_bytes: int) -> None:
        self.position = 0
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._buffers: list[bytes | memoryview] = []
        self._file: BinaryIO | None = None

    def append(self, *buffers: bytes | memoryview) -> None:
        size = sum(map(len, buffers))
        if self._file is None and self.position + size > self._memory_bytes:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            write_all(self._file.fileno(), self._buffers)
            self._buffers = []
        if self._file is None:
            # Bytes cannot change and need no copy; anything else may be reused by the caller.
            self._buffers += [_frozen(buffer) for buffer in buffers if len(buffer)]
        else:
            write_all(self._file.fileno(), buffers)
        self.position += size

    def truncate(self, position: int) -> None:
        if self._file is not None:
            os.ftruncate(self._file.fileno(), position)
            os.lseek(self._file.fileno(), position, os.SEEK_SET)
        else:
            while self.position > position:
                last = self._buffers.pop()
                self.position -= len(last)
                if self.position < position:
                    kept = memoryview(last)[: position - self.position]
                    self._buffers.append(kept)
                    self.position = position
        self.position = position

    def iter_back(self, start: int = 0) -> Iterator[bytes | memoryview]:
        if self._file is not None:
            yield from _iter_file(self._file.fileno(), start, self.position)
            return
        at = 0
        for buffer in self._buffers:
            if at + len(buffer) > start:
                yield memoryview(buffer)[max(0, start - at) :]
            at += len(buffer)

    def move_to(self, descriptor: int) -> None:
        """Writes everything at the current position of another file."""
        if self._file is None:
            write_all(descriptor, self._buffers)
        else:
            copy_range(self._file.fileno(), 0, self.position, descriptor)

    def close(self) -> None:
        self._buffers = []
        if self._file is not None:
            self._file.close()


class PlacedBlocks:
    """Straight into the file, behind a head whose length is already known.

    Owns: nothing; the descriptor belongs to the writer and stands at the end of the file.
    """

    def __init__(self, descriptor: int, base: int) -> None:
        self.position = 0
        self._descriptor = descriptor
        self._base = base
        os.lseek(descriptor, base, os.SEEK_SET)

    def append(self, *buffers: bytes | memoryview) -> None:
        size = sum(map(len, buffers))
        claim_space(self._descriptor, self._base + self.position, size)
        write_all(self._descriptor, buffers)
        self.position += size

    def truncate(self, position: int) -> None:
        os.ftruncate(self._descriptor, self._base + position)
        os.lseek(self._descriptor, self._base + position, os.SEEK_SET)
        self.position = position

    def iter_back(self, start: int = 0) -> Iterator[bytes | memoryview]:
        end = self._base + self.position
        yield from _iter_file(self._descriptor, self._base + start, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)


def _frozen(buffer: bytes | memoryview) -> bytes | memoryview:
    if isinstance(buffer, bytes):
        return buffer
    if isinstance(buffer.obj, bytes) and len(buffer) == len(buffer.obj):
        return buffer.obj
    if len(buffer) < _LARGE_COPY:
        return bytes(buffer)
    return np.frombuffer(buffer, np.uint8).copy().data


def _iter_file(descriptor: int, start: int, stop: int) -> Iterator[bytes]:
    while start < stop:
        os.lseek(descriptor, start, os.SEEK_SET)
        piece = os.read(descriptor, min(_READ_BACK_BYTES, stop - start))
        if not piece:
            raise OSError("a temporary file lost its end")
        yield piece
        start += len(piece)
