"""Where a writer's blocks go before the file is finished: a spool, or their final place."""

from __future__ import annotations

import errno
import os
import tempfile
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from shard_format._atomic import claim_space, copy_range, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_BACK_BYTES = 1 << 20
_SMALL = 1 << 16
_FULL_TAIL = 1 << 18
# Above this NumPy's allocator, which asks for huge pages, copies faster than bytes().
_LARGE_COPY = 1 << 20


class Blocks(ABC):
    """An append-only run of bytes that can also be cut and read back.

    Small pieces gather in a tail before they go anywhere: a file of a million small entries must not
    become a million system calls, or a million objects.
    """

    def __init__(self) -> None:
        self.position = 0
        self._tail = bytearray()

    def append(self, buffer: bytes | memoryview) -> None:
        """Adds bytes at the end; the buffer may be reused afterwards."""
        size = len(buffer)
        if size < _SMALL:
            self._tail += buffer
            if len(self._tail) >= _FULL_TAIL:
                self._flush()
        else:
            self._flush()
            self._store(buffer)
        self.position += size

    def append_range(self, descriptor: int, start: int, length: int) -> None:
        """Adds a range of another file, copied in the kernel where it can."""
        if length < _SMALL:
            piece = os.pread(descriptor, length, start)
            if len(piece) != length:
                raise OSError(errno.EIO, "a file that is copied from lost its end")
            self.append(piece)
            return
        self._flush()
        self._store_range(descriptor, start, length)
        self.position += length

    def _store_range(self, descriptor: int, start: int, length: int) -> None:
        for piece in _iter_file(descriptor, start, start + length):
            self._store(piece)

    def truncate(self, position: int) -> None:
        """Drops everything from `position` on."""
        self._flush()
        self._cut(position)
        self.position = position

    def iter_back(self, start: int = 0) -> Iterator[bytes | memoryview]:
        """What was written from `start` on, in pieces of any size."""
        self._flush()
        return self._iter_stored(start)

    def _flush(self) -> None:
        if self._tail:
            tail, self._tail = self._tail, bytearray()
            self._store(memoryview(tail))

    @abstractmethod
    def _store(self, buffer: bytes | memoryview) -> None: ...

    @abstractmethod
    def _cut(self, position: int) -> None: ...

    @abstractmethod
    def _iter_stored(self, start: int) -> Iterator[bytes | memoryview]: ...


class SpooledBlocks(Blocks):
    """In memory while small, then in a file without a name, which no crash can leave behind.

    Owns: the buffers, or the file.
    """

    def __init__(self, folder: str, memory_bytes: int) -> None:
        super().__init__()
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._buffers: list[bytes | memoryview] = []
        self._in_memory = 0
        self._file: BinaryIO | None = None

    def move_to(self, descriptor: int) -> None:
        """Writes everything at the current position of another file."""
        self._flush()
        if self._file is None:
            write_all(descriptor, self._buffers)
        else:
            copy_range(self._file.fileno(), 0, self.position, descriptor)

    def close(self) -> None:
        """Forgets everything."""
        self._buffers = []
        self._tail = bytearray()
        if self._file is not None:
            self._file.close()

    def _store(self, buffer: bytes | memoryview) -> None:
        if self._file is None:
            if self._in_memory + len(buffer) <= self._memory_bytes:
                self._in_memory += len(buffer)
                self._buffers.append(_frozen(buffer))
                return
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            write_all(self._file.fileno(), self._buffers)
            self._buffers = []
        write_all(self._file.fileno(), [buffer])

    def _cut(self, position: int) -> None:
        if self._file is not None:
            os.ftruncate(self._file.fileno(), position)
            os.lseek(self._file.fileno(), position, os.SEEK_SET)
            return
        while self._in_memory > position:
            last = self._buffers.pop()
            self._in_memory -= len(last)
            if self._in_memory < position:
                self._buffers.append(memoryview(last)[: position - self._in_memory])
                self._in_memory = position

    def _iter_stored(self, start: int) -> Iterator[bytes | memoryview]:
        if self._file is not None:
            yield from _iter_file(self._file.fileno(), start, self.position)
            os.lseek(self._file.fileno(), self.position, os.SEEK_SET)
            return
        at = 0
        for buffer in self._buffers:
            if at + len(buffer) > start:
                yield memoryview(buffer)[max(0, start - at) :]
            at += len(buffer)


class PlacedBlocks(Blocks):
    """Straight into the file, behind a head whose length is already known.

    Owns: nothing; the descriptor belongs to the writer and stands at the end of the file.
    """

    def __init__(self, descriptor: int, base: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._base = base
        self._written = 0
        os.lseek(descriptor, base, os.SEEK_SET)

    def finish(self) -> None:
        """Makes sure that everything is in the file."""
        self._flush()

    def _store(self, buffer: bytes | memoryview) -> None:
        claim_space(self._descriptor, self._base + self._written, len(buffer))
        write_all(self._descriptor, [buffer])
        self._written += len(buffer)

    def _store_range(self, descriptor: int, start: int, length: int) -> None:
        claim_space(self._descriptor, self._base + self._written, length)
        copy_range(descriptor, start, length, self._descriptor)
        self._written += length

    def _cut(self, position: int) -> None:
        os.ftruncate(self._descriptor, self._base + position)
        os.lseek(self._descriptor, self._base + position, os.SEEK_SET)
        self._written = position

    def _iter_stored(self, start: int) -> Iterator[bytes | memoryview]:
        end = self._base + self._written
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
