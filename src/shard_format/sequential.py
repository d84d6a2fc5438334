"""Reading a source from start to end in few large requests, and copies of remote files on the local disk."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format._kernels import filled_bytes
from shard_format.errors import ShardIOError
from shard_format.sources import FileSource

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from shard_format.sources import ByteSource

__all__ = ["BLOCK_BYTES", "SequentialSource", "temporary_copy"]

BLOCK_BYTES: Final = 8 << 20
"""How much is fetched with one request."""
# Blocks that are fetched before they are asked for.
_AHEAD: Final = 2
# Fetching ahead begins when this much was read: a reader of one record does not fetch 24 MiB.
_SURE: Final = BLOCK_BYTES // 8
# A read this far behind the last one still continues it.
_GAP: Final = 1 << 16
_PIECE: Final = 1 << 20


class SequentialSource:
    """A source that is read forward, in blocks of 8 MiB; the next blocks are fetched meanwhile.

    Memory: the block before the one that is read, that one, and two ahead. A read elsewhere goes to the source as it is;
    the one that continues it begins a new run of blocks there. Safe for threads, but made for one that reads in order.

    Owns: up to two threads; not the source.

    Args:
        source: has the bytes.
        start: where reading begins.
        stop: where it ends: nothing behind it is fetched ahead. None for the end of the source.
    """

    def __init__(self, source: ByteSource, start: int = 0, stop: int | None = None) -> None:
        self.name = source.name
        self._source = source
        self._stop = source.size() if stop is None else stop
        self._lock = threading.Lock()
        self._blocks: deque[_FetchedBlock] = deque()
        self._threads: ThreadPoolExecutor | None = None
        # Where this run of blocks begins, and where the next block does.
        self._begin = self._next = start
        # The end of the last read that went to the source.
        self._elsewhere = -1

    def size(self) -> int:
        return self._source.size()

    def read_at(self, offset: int, length: int) -> bytes:
        stop = offset + length
        with self._lock:
            if 0 <= offset - self._elsewhere <= _GAP and self._elsewhere >= 0:
                self._restart(offset)
            first = self._blocks[0].start if self._blocks else self._next
            if length and first <= offset <= self._next + _GAP and stop <= self._stop:
                return self._read_blocks(offset, stop)
            self._elsewhere = stop
        return self._source.read_at(offset, length)

    def release(self) -> None:
        """Drops all blocks and ends the threads, without waiting for the requests that they make. Reads still work.

        A generator that was dropped calls this whenever Python collects it, perhaps while this thread holds a lock that an
        ending thread needs.
        """
        with self._lock:
            self._restart(self._next)
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Releases the blocks; the source stays open."""
        self.release()

    def _restart(self, offset: int) -> None:
        for block in self._blocks:
            block.data.cancel()
        self._blocks.clear()
        self._begin = self._next = offset
        self._elsewhere = -1

    def _read_blocks(self, offset: int, stop: int) -> bytes:
        block, data = self._block_at(offset)
        if stop <= block.stop:
            return data[offset - block.start : stop - block.start]

        def fill(out: memoryview) -> None:
            at = offset
            while at < stop:
                block, data = self._block_at(at)
                piece = memoryview(data)[at - block.start : stop - block.start]
                out[at - offset : at - offset + len(piece)] = piece
                at += len(piece)

        # In place: blocks that are left behind go at once.
        del block, data
        return filled_bytes(stop - offset, fill)

    def _block_at(self, at: int) -> tuple[_FetchedBlock, bytes]:
        """The block that has a byte, and its bytes; those behind it are asked for."""
        self._fetch_around(at)
        block = next(one for one in self._blocks if one.start <= at < one.stop)
        try:
            return block, block.data.result()
        except BaseException:
            # A later read may try again.
            self._restart(block.start)
            raise

    def _fetch_around(self, at: int) -> None:
        """Asks for the block of a byte and those behind it; drops all but one before it."""
        ahead = _AHEAD * BLOCK_BYTES if at - self._begin >= _SURE else 0
        while self._next <= at + ahead and self._next < self._stop:
            if self._threads is None:
                from concurrent.futures import ThreadPoolExecutor

                self._threads = ThreadPoolExecutor(_AHEAD)
            start, stop = self._next, min(self._next + BLOCK_BYTES, self._stop)
            data = self._threads.submit(self._source.read_at, start, stop - start)
            self._blocks.append(_FetchedBlock(start, stop, data))
            self._next = stop
        while len(self._blocks) > 1 and self._blocks[1].stop <= at:
            self._blocks.popleft()


class _FetchedBlock(NamedTuple):
    start: int
    stop: int
    data: Future[bytes]


def temporary_copy(source: ByteSource, start: int = 0, stop: int | None = None) -> FileSource:
    """A source in a temporary file without a name, which vanishes when it is closed. It has the name of the source.

    Args:
        source: has the bytes.
        start, stop: copies this part of it only.

    Raises:
        ShardIOError: the source cannot be read, or the folder for temporary files has no room.
    """
    import tempfile

    stop = source.size() if stop is None else stop
    reader = None if isinstance(source, SequentialSource) else SequentialSource(source, start, stop)
    read_at = (reader or source).read_at
    try:
        with tempfile.TemporaryFile(prefix="shard-", buffering=0) as file:
            for at in range(start, stop, _PIECE):
                piece = memoryview(read_at(at, min(_PIECE, stop - at)))
                while piece:
                    piece = piece[file.write(piece) :]
            number = os.dup(file.fileno())
    except ShardIOError:
        raise
    except OSError as error:
        problem = f"cannot copy {source.name} to a temporary file"
        failure = ShardIOError.wrap(error, problem, tempfile.gettempdir())
        failure.hint = f"it needs {stop - start} bytes there; TMPDIR names another folder"
        raise failure from error
    finally:
        if reader is not None:
            reader.release()
    copy = FileSource(number, number)
    copy.name = source.name
    return copy
