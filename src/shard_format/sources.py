"""Where bytes come from: files, memory, file objects, and whatever else has a size and ranges.

Every reader of the family works on a `ByteSource`. Two optional capabilities make it faster:
`SupportsView` hands out bytes without a copy, `SupportsReadInto` fills the caller's buffer.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import re
import stat
import sys
import threading
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Protocol,
    TypeAlias,
    TypeGuard,
    Union,
    cast,
    runtime_checkable,
)

from shard_format.errors import Closed, InvalidArgument, ShardError, ShardIOError, Truncated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = [
    "ByteSource",
    "BytesLike",
    "BytesSource",
    "FileObjectSource",
    "FileSource",
    "SourceLike",
    "SupportsReadInto",
    "SupportsReadRanges",
    "SupportsView",
    "open_source",
]

_HAS_PREAD = hasattr(os, "pread")
# One letter is a drive.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@runtime_checkable
class ByteSource(Protocol):
    """Random access to immutable bytes. Implementations must be safe to call from several threads."""

    @property
    def name(self) -> str:
        """What error messages call it: a path, a URL, `<bytes>`."""
        ...

    def size(self) -> int:
        """Number of bytes."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; raises `Truncated` if there are fewer."""
        ...

    def close(self) -> None:
        """Releases what it holds. Views handed out before stay valid."""
        ...


@runtime_checkable
class SupportsView(Protocol):
    """A source that can hand out bytes without copying them."""

    def view(self, offset: int, length: int) -> memoryview:
        """A read-only view that keeps the bytes alive."""
        ...


@runtime_checkable
class SupportsReadInto(Protocol):
    """A source that can read straight into the caller's memory."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills the whole buffer; raises `Truncated` if there are fewer bytes."""
        ...


@runtime_checkable
class SupportsReadRanges(Protocol):
    """A source that fetches several ranges at once better than one by one (object stores)."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each `(offset, length)`, in the asked order."""
        ...


# An isinstance with a protocol takes 5 µs on Python 3.11, more than reading a small entry.


def can_view(source: ByteSource) -> TypeGuard[SupportsView]:
    """Whether the source can hand out bytes without copying them."""
    return hasattr(source, "view")


def can_read_into(source: ByteSource) -> TypeGuard[SupportsReadInto]:
    """Whether the source can read straight into the caller's memory."""
    return hasattr(source, "read_into")


def can_read_ranges(source: ByteSource) -> TypeGuard[SupportsReadRanges]:
    """Whether the source fetches several ranges at once."""
    return hasattr(source, "read_ranges")


SourceLike: TypeAlias = Union[
    "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | ByteSource"
]


# Arrays are named on their own: to type checkers they are buffers only from Python 3.12 on.
BytesLike: TypeAlias = Union["Buffer | NDArray[Any]"]


def is_url(text: str) -> bool:
    """Whether it names something on another machine, or behind a protocol of its own."""
    return "://" in text and _URL.match(text) is not None


def open_source(source: SourceLike, storage_options: Mapping[str, Any] | None = None) -> ByteSource:
    """The `ByteSource` for a path, URL, bytes, an open binary file, or a source, returned as is.

    Args:
        source: what to read.
        storage_options: for a URL, as `remote.open_url` takes them.
    """
    if isinstance(source, str) and is_url(source):
        from shard_format.remote import open_url

        return open_url(source, storage_options)
    if isinstance(source, (FileSource, BytesSource)) and not storage_options:
        return source
    if storage_options:
        raise InvalidArgument(
            "storage_options are for URLs",
            expected="a URL, or no options",
            found=f"{type(source).__name__} and {', '.join(sorted(map(str, storage_options)))}",
        )
    if isinstance(source, (str, os.PathLike)):
        return FileSource(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return BytesSource(source)
    # Only these two are known to have the bytes of their descriptor; a GzipFile has a fileno too.
    if type(source) in (io.BufferedReader, io.FileIO):
        file = cast("BinaryIO", source)
        if file.closed:
            raise InvalidArgument("the file is closed", path=str(file.name))
        return FileSource.from_descriptor(file.fileno(), file.name)
    if isinstance(source, io.TextIOBase):
        raise InvalidArgument(
            "the file is open as text",
            path=str(getattr(source, "name", "")),
            hint="open it with 'rb'",
        )
    if isinstance(source, ByteSource):
        return source
    if hasattr(source, "seek") and hasattr(source, "read"):
        return FileObjectSource(source)
    raise InvalidArgument(
        "cannot read from this object",
        expected="a path, a URL, bytes, a binary file that can seek, or a ByteSource",
        found=type(source).__name__,
    )


def _truncated(name: str, offset: int, length: int, available: int) -> Truncated:
    return Truncated(
        "the source ended too early",
        path=name,
        offset=offset,
        expected=f"{length} bytes",
        found=f"{available} bytes",
        hint="the file may have been cut while it was open",
    )


def _not_picklable(name: str) -> InvalidArgument:
    return InvalidArgument(
        "a reader over an open file cannot be pickled",
        path=name,
        hint="open the reader with a path or with bytes",
    )


def open_file(path: str | os.PathLike[str], most: int) -> FileSource | BytesSource:
    """A local file; one of at most `most` bytes is brought into memory, so that none stays open."""
    name = os.fspath(path)
    descriptor = _open_for_reading(name)
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        if size <= most and stat.S_ISREG(status.st_mode):
            data = os.read(descriptor, size)
            if len(data) == size:
                os.close(descriptor)
                return BytesSource(data, name)
    except OSError as error:
        os.close(descriptor)
        raise ShardIOError.wrap(error, "cannot read", name) from error
    return FileSource._owning(descriptor, name, status)


def _open_for_reading(name: str) -> int:
    try:
        return os.open(name, _OPEN_FLAGS)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot open", name) from error
    except ValueError as error:  # a NUL in the path
        raise InvalidArgument(f"this cannot be a path: {error}", path=name) from None


class FileSource:
    """A local file, read with positioned reads and mapped when a view is asked for.

    Owns: one descriptor and at most one mapping. There is no shared file position, so that threads and
    forked processes may read at the same time. Pickles as the path and opens it again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        # Workers may run in another folder.
        self._location: str | None = _absolute(self.name)
        self._adopt(_open_for_reading(self.name))

    @classmethod
    def _owning(cls, descriptor: int, name: str, status: os.stat_result) -> FileSource:
        self = cls.__new__(cls)
        self.name = name
        self._location = _absolute(name)
        self._adopt(descriptor, status)
        return self

    @classmethod
    def from_descriptor(cls, descriptor: int, name: str | int) -> FileSource:
        """A source of its own over an open descriptor, which is duplicated."""
        self = cls.__new__(cls)
        # A file that was opened from a descriptor has that number for its name, and no path.
        self.name = name if isinstance(name, str) else f"<descriptor {name}>"
        self._location = os.path.abspath(name) if isinstance(name, str) else None
        self._adopt(os.dup(descriptor))
        return self

    def _adopt(self, descriptor: int, status: os.stat_result | None = None) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        if status is None:
            status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise InvalidArgument(
                "not a regular file",
                path=self.name,
                hint="read a pipe or device into memory and pass the bytes",
            )
        self._size = status.st_size
        if not _HAS_PREAD:
            self._position = threading.Lock()

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        try:
            if _HAS_PREAD:
                data = os.pread(self._descriptor, length, offset)
            else:
                data = self._pread(length, offset)
            if len(data) == length:
                return data
            # Systems cut one read at about 2 GiB.
            pieces = [data]
            done = len(data)
            while done < length and pieces[-1]:
                pieces.append(self._pread(length - done, offset + done))
                done += len(pieces[-1])
        except OSError as error:
            raise self._failure(error) from error
        if done < length:
            raise _truncated(self.name, offset, length, done)
        return b"".join(pieces)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done, length = 0, len(buffer)
        try:
            while done < length:
                if _HAS_PREADV:
                    count = os.preadv(self._descriptor, [buffer[done:]], offset + done)
                else:
                    piece = self._pread(length - done, offset + done)
                    count = len(piece)
                    buffer[done : done + count] = piece
                if count == 0:
                    raise _truncated(self.name, offset, length, done)
                done += count
        except OSError as error:
            raise self._failure(error) from error

    @property
    def is_mapped(self) -> bool:
        """Whether a view was asked for before, so that another costs nothing."""
        return self._map is not None

    def view(self, offset: int, length: int) -> memoryview:
        if offset + length > self._size:
            raise _truncated(self.name, offset, length, max(0, self._size - offset))
        if length == 0:  # an empty file cannot be mapped
            return memoryview(b"")
        mapping = self._map
        if mapping is None:
            if self._descriptor < 0:  # which mmap would take as a wish for empty memory
                raise Closed("the file is closed", path=self.name)
            try:
                mapping = mmap.mmap(self._descriptor, self._size, access=mmap.ACCESS_READ)
            except ValueError:  # the file has become shorter since it was opened
                now = os.fstat(self._descriptor).st_size
                raise _truncated(self.name, offset, length, max(0, now - offset)) from None
            except OSError as error:
                raise self._failure(error) from error
            self._map = mapping
        return memoryview(mapping)[offset : offset + length]

    def expect(self, offset: int, length: int) -> None:
        """Brings a part of the mapping into reach with one call, for whoever is about to read all of it.

        Otherwise the processor stops every few pages to ask for the next ones.
        """
        global _can_populate
        mapping = self._map
        if mapping is None or not _can_populate:
            return
        start = offset - offset % mmap.PAGESIZE
        try:
            mapping.madvise(_POPULATE_READ, start, offset + length - start)
        except OSError as error:
            # Older systems do not know it. Anything else will be met again by the one who reads.
            _can_populate = error.errno != errno.EINVAL

    def close(self) -> None:
        # The mapping is dropped, not closed: views may still be out, and the last one closes it.
        self._map = None
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _pread(self, length: int, offset: int) -> bytes:
        if _HAS_PREAD:
            return os.pread(self._descriptor, length, offset)
        with self._position:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.read(self._descriptor, length)

    def _failure(self, error: OSError) -> Exception:
        if self._descriptor < 0:
            return Closed("the file is closed", path=self.name)
        return ShardIOError.wrap(error, "cannot read", self.name)

    def __del__(self) -> None:
        # Absent if opening failed. A reader that is simply dropped, as in a one-liner, is no mistake.
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._location is None:
            raise _not_picklable(self.name)
        return (FileSource, (self._location,))

    def __repr__(self) -> str:
        return f"FileSource({self.name!r})"


_HAS_PREADV = hasattr(os, "preadv")
# Linux 5.14 and newer; the module does not name it.
_POPULATE_READ = 22
_can_populate = sys.platform == "linux"
# Not blocking: opening a pipe that nobody writes to would wait forever. Files do not care.
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


def _absolute(name: str) -> str:
    return name if name[:1] == os.sep else os.path.abspath(name)


class BytesSource:
    """Bytes in memory, never copied. Pickles as those bytes."""

    name = "<bytes>"

    def __init__(self, data: bytes | bytearray | memoryview, name: str | None = None) -> None:
        if name is not None:  # where the bytes came from, for errors to name
            self.name = name
        view = memoryview(data)
        if type(data) is bytes:
            self._whole: bytes | None = data
        else:
            self._whole = None
            if not view.c_contiguous:
                raise InvalidArgument("the memory is not contiguous, in C order")
            view = view.cast("B").toreadonly()
        self._view = view

    def size(self) -> int:
        return len(self._view)

    def start(self, most: int) -> bytes:
        """The first bytes; all of them where that needs no copy."""
        return self._view[:most].tobytes() if self._whole is None else self._whole

    def read_at(self, offset: int, length: int) -> bytes:
        piece = self._view[offset : offset + length].tobytes()
        if len(piece) != length:
            raise _truncated(self.name, offset, length, len(piece))
        return piece

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.view(offset, len(buffer))

    def view(self, offset: int, length: int) -> memoryview:
        piece = self._view[offset : offset + length]
        if len(piece) != length:
            raise _truncated(self.name, offset, length, len(piece))
        return piece

    def close(self) -> None:
        self._view = memoryview(b"")
        self._whole = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (BytesSource, (bytes(self._view), self.name))

    def __repr__(self) -> str:
        return f"BytesSource({len(self._view)} bytes)"


class FileObjectSource:
    """An open binary file that can seek, used under a lock because it has one position.

    The caller keeps the file and closes it. It cannot be pickled: give worker processes a path.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.name = str(getattr(file, "name", f"<{type(file).__name__}>"))
        try:
            self._size = file.seek(0, os.SEEK_END)
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"the file cannot seek: {error}",
                path=self.name,
                hint="read it into memory and pass the bytes",
            ) from error

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        pieces: list[bytes] = []
        missing = length
        with self._lock:
            try:
                self._file.seek(offset)
                while missing and (piece := self._file.read(missing)):
                    if not isinstance(piece, bytes):
                        raise InvalidArgument("the file is not open in binary mode", path=self.name)
                    pieces.append(piece)
                    missing -= len(piece)
            except OSError as error:
                raise ShardIOError.wrap(error, "cannot read", self.name) from error
            except ShardError:
                raise
            except ValueError as error:  # what Python's files say when they are closed
                raise Closed(f"cannot read: {error}", path=self.name) from None
        if missing:
            raise _truncated(self.name, offset, length, length - missing)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Leaves the caller's file open."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise _not_picklable(self.name)

    def __repr__(self) -> str:
        return f"FileObjectSource({self.name!r})"
