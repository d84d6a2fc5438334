"""HDF5 files that are written: an error of the disk is an exception, and not the end of the process."""

from __future__ import annotations

import contextlib
import io
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from shard_format.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object]

__all__ = ["Hdf5Target"]


class Hdf5Target:
    """An HDF5 file that is being written, at a path where nothing is yet. Owns: the file.

    libhdf5 (2.0) uses freed memory after a write that failed, and crashes. So it never learns of a failure: from the
    first one on, `_Disk` keeps in memory what libhdf5 writes, and `check` raises the error. libhdf5 must not see an
    exception of a signal either: handlers of signals wait until `check`, too.
    """

    def __init__(self, path: str) -> None:
        h5py = require("h5py", "hdf5")
        self._disk = _Disk(path)
        self._waiting: list[Callable[[], object]] = []
        with self.writing():
            self.file: Any = h5py.File(self._disk, "w")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A block that calls libhdf5. At its end errors of the disk are raised, and handlers of signals run."""
        before = _python_handlers()
        try:
            for number, handler in before.items():
                signal.signal(number, partial(self._wait, handler))
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._run_handlers()
        self.check()

    def put(self, dataset: Any, rows: Any, values: Any) -> None:  # noqa: ANN401 - an h5py.Dataset, an index of it
        """Writes into a dataset; raises if the disk failed or a signal came."""
        dataset[rows] = values
        self.check()

    def check(self) -> None:
        """Raises the first error of the disk, or what handlers of signals raise."""
        self._run_handlers()
        if self._disk.error is not None:
            raise self._disk.error

    def _wait(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        self._waiting.append(partial(handler, number, frame))

    def _run_handlers(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()

    def close(self) -> None:
        """Closes the file, which is not complete if this raises."""
        try:
            with self.writing():
                self.file.close()
        finally:
            self._disk.close()


def _python_handlers() -> dict[int, Handler]:
    """The handlers of signals that this thread may run, by the number of the signal."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if callable(handler)}


class _Disk(io.FileIO):
    """The file as h5py sees it: no write fails."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "x+")
        self.error: OSError | None = None
        self._kept: list[tuple[int, bytes]] = []

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - bytes
        done = 0
        try:
            while self.error is None and done < len(data):
                done += super().write(data[done:])
        except OSError as error:
            self.error = error
        if self.error is not None:
            start = self.tell() - done
            self._kept.append((start, bytes(data)))
        return len(data)

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - memory
        """Reads what was written, also what is not on the disk; zeros where nothing was."""
        start = self.tell()
        count = super().readinto(buffer)
        buffer[count:] = bytes(len(buffer) - count)
        for at, data in self._kept:
            first, end = max(at, start), min(at + len(data), start + len(buffer))
            if first < end:
                buffer[first - start : end - start] = data[first - at : end - at]
        return len(buffer)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0
