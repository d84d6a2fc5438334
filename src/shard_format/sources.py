"""Where bytes come from: files, memory, file objects, and whatever else has a size and ranges.

Every reader of the family works on a `ByteSource`. Two optional capabilities make it faster:
`SupportsView` hands out bytes without a copy, `SupportsReadInto` fills the caller's buffer.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import sys
import threading
from functools import partial
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Protocol,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    runtime_checkable,
)
from weakref import ref

from shard_format.errors import (
    BadOffset,
    Closed,
    InvalidArgument,
    ReferenceMismatch,
    ShardError,
    ShardIOError,
    Truncated,
)

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = [
    "ByteSource",
    "BytesLike",
    "BytesSource",
    "FileObjectSource",
    "FileSource",
    "MappedSlice",
    "OpenFile",
    "SliceSource",
    "SourceLike",
    "SupportsReadInto",
    "SupportsReadRanges",
    "SupportsView",
    "files_to_keep",
    "open_file",
    "open_regular",
    "read_file",
    "slice_of",
    "was_replaced",
]

Result = TypeVar("Result")

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


def truncated(name: str, offset: int, length: int, available: int) -> Truncated:
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
    descriptor, status = open_regular(name)
    try:
        size = status.st_size
        if size <= most:
            data = os.read(descriptor, size)
            if len(data) == size:
                os.close(descriptor)
                source = BytesSource(data, name)
                source.identity = _identity(status)
                return source
    except OSError as error:
        os.close(descriptor)
        raise ShardIOError.wrap(error, "cannot read", name) from error
    return FileSource(name, descriptor)


_identity: Callable[[os.stat_result], tuple[int, int, int, int]] = attrgetter(
    "st_dev", "st_ino", "st_size", "st_mtime_ns"
)


def was_replaced(source: ByteSource) -> bool:
    """Whether the path of a local file leads to other content than when it was opened."""
    opened = getattr(source, "identity", None)
    try:
        return opened is not None and _identity(os.stat(source.name)) != opened
    except OSError:  # it was removed: there is nothing else to open
        return False


def read_file(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """The content of a regular file, or its first `most` bytes."""
    descriptor, status = open_regular(path)
    try:
        with os.fdopen(descriptor, "rb") as file:
            # Python takes as much memory as it is asked to read.
            return file.read(most if most is None else min(most, status.st_size))
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read", os.fspath(path)) from error


def open_regular(
    path: str | os.PathLike[str], *, follow_links: bool = True
) -> tuple[int, os.stat_result]:
    """A descriptor for reading a file, and what the system knows about it.

    Never waits for a pipe in place of the file.

    Args:
        path: the file.
        follow_links: False refuses a symbolic link as the last part of the path.

    Raises:
        InvalidArgument: it is not a regular file.
        ShardIOError: it cannot be opened.
    """
    global _newest
    name = os.fspath(path)
    try:
        _newest = descriptor = os.open(name, _OPEN_FLAGS | (0 if follow_links else _NO_LINKS))
    except OSError as error:
        if not follow_links and error.errno == errno.ELOOP:
            raise InvalidArgument("a symbolic link is not followed here", path=name) from None
        raise ShardIOError.wrap(error, "cannot open", name) from error
    except ValueError as error:  # a NUL in the path
        raise InvalidArgument(f"not a valid path: {error}", path=name) from None
    try:
        return descriptor, _status_of_regular(descriptor, name)
    except BaseException:
        os.close(descriptor)
        raise


def _status_of_regular(descriptor: int, name: str) -> os.stat_result:
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return status
    if stat.S_ISDIR(status.st_mode):
        problem = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise ShardIOError.wrap(problem, "cannot open", name)
    raise InvalidArgument(
        "not a regular file",
        path=name,
        hint="read a pipe or device into memory and pass the bytes",
    )


class OpenFile:
    """A descriptor, closed when the last user drops this object.

    To close a file, a source drops its reference. A read in another thread holds one until it ends: no other thread closes the
    descriptor under it, whose number the system would give to the next file that is opened.

    Args:
        descriptor: an open descriptor, which the object takes over.
    """

    __slots__ = ("_position", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        if not _HAS_PREAD:
            self._position = threading.Lock()

    @classmethod
    def at(cls, name: str) -> OpenFile:
        """Opens a file for reading."""
        return cls(open_regular(name)[0])

    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self.descriptor).st_size

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        if _HAS_PREAD:
            return os.pread(self.descriptor, length, offset)
        with self._position:
            os.lseek(self.descriptor, offset, os.SEEK_SET)
            return os.read(self.descriptor, length)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fills some of the buffer from `offset`; returns how many bytes."""
        if _HAS_PREADV:
            return os.preadv(self.descriptor, [buffer], offset)
        piece = self.read(len(buffer), offset)
        buffer[: len(piece)] = piece
        return len(piece)

    def map(self, size: int) -> mmap.mmap:
        """A mapping of the whole file. Before Python 3.13 it has a descriptor of its own."""
        global _newest
        if self.descriptor < 0:  # which mmap would take as a wish for empty memory
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not _UNTRACKED:
            # The smallest free number, which the mapping gets: the file itself may be closed and its number used again.
            number = os.dup(self.descriptor)
            os.close(number)
            _newest = number
        return mmap.mmap(self.descriptor, size, access=mmap.ACCESS_READ, **_UNTRACKED)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


_HAS_PREADV = hasattr(os, "preadv")
_UNTRACKED: dict[str, Any] = (
    {"trackfd": False} if sys.version_info >= (3, 13) and sys.platform != "win32" else {}
)
# The descriptor that was opened last.
_newest = -1


def files_to_keep(count: int, most: int) -> int:
    """How many of its `count` open files a cache may keep, after it has opened one.

    At most `most`. While all of the first quarter of the descriptors that the process may have are in use, by whomever,
    it is one fewer than before, but at least one. So caches share what there is, files can be mapped later, and
    others find some, too.
    """
    if resource is not None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # A new file gets the smallest free number, so that all smaller ones are in use.
        if limit != resource.RLIM_INFINITY and _newest >= limit // 4:
            return max(1, min(most, count - 2))
    return most


class FileSource:
    """A local file, read with positioned reads and mapped when a view is asked for.

    Owns: one file and at most one mapping of it. It has no shared file position, so that threads and forked
    processes may read at the same time. If you close it, reads in other threads still end as they should. Pickles as
    the path and opens it again.

    Args:
        path: the file.
        descriptor: an open descriptor of it, which the source takes over.
    """

    def __init__(self, path: str | os.PathLike[str] | int, descriptor: int | None = None) -> None:
        if isinstance(path, int):  # what a file without a path has for its name
            self.name = f"<descriptor {path}>"
            self._location: str | None = None
        else:
            self.name = os.fspath(path)
            # Workers may run in another folder.
            self._location = _absolute(self.name)
        self._map: mmap.mmap | None = None
        self._shared: SharedFiles | None = None
        if descriptor is None:
            descriptor, status = open_regular(self.name)
        else:
            status = _status_of_regular(descriptor, self.name)
        self._file = OpenFile(descriptor)
        self._size = status.st_size
        self.identity = _identity(status)
        """Tells this content of the file from any other, as far as the system knows."""

    @property
    def location(self) -> str | None:
        """The absolute path, if the file has one, so that other processes can open it."""
        return self._location

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        try:
            data = self._file.read(length, offset)
            if len(data) == length:
                return data
            # Systems cut one read at about 2 GiB.
            pieces = [data]
            done = len(data)
            while done < length and pieces[-1]:
                pieces.append(self._file.read(length - done, offset + done))
                done += len(pieces[-1])
        except OSError as error:
            raise self._failure(error) from error
        if done < length:
            raise truncated(self.name, offset, length, done)
        return b"".join(pieces)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done, length = 0, len(buffer)
        try:
            while done < length:
                count = self._file.read_into(buffer[done:], offset + done)
                if count == 0:
                    raise truncated(self.name, offset, length, done)
                done += count
        except OSError as error:
            raise self._failure(error) from error

    @property
    def is_mapped(self) -> bool:
        """Whether a view was asked for before, so that another costs nothing."""
        return self._map is not None

    def view(self, offset: int, length: int) -> memoryview:
        if offset < 0 or offset + length > self._size:
            raise truncated(self.name, offset, length, max(0, self._size - max(0, offset)))
        if length == 0:  # an empty file cannot be mapped
            return memoryview(b"")
        mapping = self._map
        if mapping is None:
            file, files = self._file, self._shared
            try:
                if files is None:
                    mapping = file.map(self._size)
                else:
                    mapping = files.open(partial(file.map, self._size))
            except ValueError:  # the file has become shorter since it was opened
                raise truncated(self.name, offset, length, max(0, file.size() - offset)) from None
            except OSError as error:
                raise self._failure(error) from error
            finally:
                del file  # an error that is kept would keep the file open
            self._map = mapping
        return memoryview(mapping)[offset : offset + length]

    def expect(self, offset: int, length: int) -> None:
        """Brings a part of the mapping into reach with one call, for a caller that is about to read all of it.

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

    def share(self, files: SharedFiles) -> None:
        """Let the file be closed while others need its descriptor; the next read opens it again."""
        if self._location is not None:
            self._shared = files
            files.opened(self)

    def another(self) -> FileSource:
        """A source of its own on the same open file."""
        other = object.__new__(FileSource)
        other.__dict__.update(self.__dict__, _map=None)
        return other

    def release(self) -> None:
        """Closes the file until the next read. What other threads read, and views, stay valid."""
        if self._file is not _CLOSED:
            self._map, self._file = None, _ReleasedFile(self)

    def reopen(self) -> OpenFile:
        """The file, open again.

        Raises:
            ReferenceMismatch: another file has taken its place.
        """
        location, files, released = self._location, self._shared, self._file
        assert location is not None
        assert files is not None
        descriptor, status = files.open(lambda: open_regular(location))
        file = OpenFile(descriptor)
        if _identity(status) != self.identity:
            raise ReferenceMismatch(
                "the file was changed or replaced since it was opened",
                path=self.name,
                hint="open it again; raise ulimit -n so that it need not be closed meanwhile",
            )
        if self._file is released:  # and was not closed meanwhile
            self._file = file
            files.opened(self)
        return file

    def close(self) -> None:
        # Dropped, not closed: views may still be out, and other threads may be reading. The last user closes.
        self._map = None
        self._file = _CLOSED

    def _failure(self, error: OSError) -> Exception:
        if self._file is _CLOSED:
            return Closed("the file is closed", path=self.name)
        return ShardIOError.wrap(error, "cannot read", self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._location is None:
            raise _not_picklable(self.name)
        if self._shared is not None:
            return _open_shared, (self._location, self._shared)
        return (FileSource, (self._location,))

    def __repr__(self) -> str:
        return f"FileSource({self.name!r})"


class SharedFiles(Protocol):
    """What knows which of many files are open, and closes some."""

    def open(self, open_one: Callable[[], Result]) -> Result:
        """What `open_one` returns, after others are closed if it lacks a descriptor."""
        ...

    def opened(self, source: FileSource) -> None:
        """A file of it was opened."""
        ...


def _open_shared(location: str, files: SharedFiles) -> FileSource:
    source = FileSource(location)
    source.share(files)
    return source


class _ReleasedFile(OpenFile):
    """A file that is opened by the first call."""

    __slots__ = ("_source",)

    def __init__(self, source: FileSource) -> None:
        super().__init__(-1)
        self._source = ref(source)

    def _open(self) -> OpenFile:
        source = self._source()
        assert source is not None  # which calls
        return source.reopen()

    def size(self) -> int:
        return self._open().size()

    def read(self, length: int, offset: int) -> bytes:
        return self._open().read(length, offset)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return self._open().read_into(buffer, offset)

    def map(self, size: int) -> mmap.mmap:
        return self._open().map(size)


_CLOSED = OpenFile(-1)
# Linux 5.14 and newer; the module does not name it.
_POPULATE_READ = 22
_can_populate = sys.platform == "linux"
# Not blocking: opening a pipe without a writer would wait forever. Files do not care.
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def _absolute(name: str) -> str:
    return name if name[:1] == os.sep else os.path.abspath(name)


class BytesSource:
    """Bytes in memory, never copied. Pickles as those bytes."""

    name = "<bytes>"
    identity: tuple[int, ...] | None = None
    """That of the file that they were read from, as for `FileSource`."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str | None = None) -> None:
        if name is not None:  # where the bytes came from, for errors to name
            self.name = name
        self._data: bytes | memoryview
        view = memoryview(data)
        if isinstance(data, bytes):
            # Slices of bytes are bytes, and one of all of them is the object itself.
            self._data, self._view = data, view
            return
        if not view.c_contiguous:
            raise InvalidArgument("the memory is not contiguous, in C order")
        self._data = self._view = view.cast("B").toreadonly() if view.nbytes else memoryview(b"")

    def size(self) -> int:
        return len(self._view)

    def read_at(self, offset: int, length: int) -> bytes:
        piece = self._data[offset : offset + length]
        if len(piece) != length or offset < 0:
            raise self._failure(offset, length, len(piece))
        return bytes(piece)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.view(offset, len(buffer))

    def view(self, offset: int, length: int) -> memoryview:
        piece = self._view[offset : offset + length]
        if len(piece) != length or offset < 0:
            raise self._failure(offset, length, len(piece))
        return piece

    def _failure(self, offset: int, length: int, found: int) -> ShardError:
        if self._view is _NOTHING:
            return Closed("the file is closed", path=self.name)
        return truncated(self.name, offset, length, found)

    def close(self) -> None:
        self._view = self._data = _NOTHING

    def __reduce__(self) -> tuple[Any, ...]:
        return (BytesSource, (bytes(self._view), self.name))

    def __repr__(self) -> str:
        return f"BytesSource({len(self._view)} bytes)"


# What a closed source has; an empty file has an empty view of its own.
_NOTHING = memoryview(b"")


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
            raise truncated(self.name, offset, length, length - missing)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Leaves the caller's file open."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise _not_picklable(self.name)

    def __repr__(self) -> str:
        return f"FileObjectSource({self.name!r})"


# --- parts of other sources


def slice_of(source: ByteSource, start: int, length: int, name: str) -> SliceSource:
    """The bytes from `start` on as a source that can do what the larger one can.

    Views stay views and batches of ranges stay batches. Closing the slice leaves the source open.

    Args:
        source: the larger one.
        start: where the part begins.
        length: its bytes, all of which must be there.
        name: what errors call the part.
    """
    size = source.size()
    if start < 0 or length < 0 or length > size - start:
        raise BadOffset(
            "a part lies outside of its file",
            path=source.name,
            offset=start,
            expected=f"at most {max(0, size - start)} bytes",
            found=f"{length} bytes",
        )
    # Readers ask what a source can do, so that a slice must not promise more than its source can.
    kind = SliceSource
    if can_view(source):
        kind = _ViewableSlice
    elif can_read_ranges(source):
        kind = _RemoteSlice
    return kind(source, start, length, name)


class SliceSource:
    """A part of another source, which stays its owner's. Pickles if the source does."""

    def __init__(self, source: ByteSource, start: int, length: int, name: str) -> None:
        self.name = name
        self._source: ByteSource | None = source
        self._start = start
        self._length = length

    def size(self) -> int:
        return self._length

    def _at(self, offset: int, length: int) -> tuple[ByteSource, int]:
        """The larger source, and where the range is in it; never what lies beside the part."""
        source = self._source
        if source is None:
            raise Closed("the file is closed", path=self.name)
        if offset < 0 or length > self._length - offset:
            raise truncated(self.name, offset, length, max(0, self._length - max(0, offset)))
        return source, self._start + offset

    def read_at(self, offset: int, length: int) -> bytes:
        source, at = self._at(offset, length)
        return source.read_at(at, length)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        source, at = self._at(offset, len(buffer))
        if can_read_into(source):
            source.read_into(at, buffer)
        else:
            buffer[:] = source.read_at(at, len(buffer))

    def close(self) -> None:
        self._source = None

    def __reduce__(self) -> tuple[Any, ...]:
        source, start = self._at(0, self._length)
        return slice_of, (source, start, self._length, self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self._length} bytes>"


class _ViewableSlice(SliceSource):
    """A part of a source that hands out views."""

    def view(self, offset: int, length: int) -> memoryview:
        source, at = self._at(offset, length)
        assert can_view(source)
        return source.view(at, length)


class _RemoteSlice(SliceSource):
    """A part of a source that fetches several ranges at once."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        source, _ = self._at(0, 0)
        assert can_read_ranges(source)
        return source.read_ranges(
            [(self._at(offset, length)[1], length) for offset, length in ranges]
        )


class MappedSlice(BytesSource):
    """A part of a file that is already mapped: no descriptor of its own, and views of that mapping.

    Pickles as the file and the place in it, not as the bytes.
    """

    def __init__(
        self, view: memoryview, file: tuple[str, tuple[int, ...]], start: int, name: str
    ) -> None:
        super().__init__(view, name)
        location, identity = file
        self.identity = (*identity, start)
        self._place = (location, start, len(view))

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_slice, (*self._place, self.name)


def _open_slice(location: str, start: int, length: int, name: str) -> SliceSource:
    return slice_of(FileSource(location), start, length, name)
