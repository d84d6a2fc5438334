"""Files that appear complete or not at all, and the writing under them."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING, Final

from shard_format.errors import InvalidArgument, ShardIOError

if TYPE_CHECKING:
    from collections.abc import Sequence

SUFFIX: Final = ".partial"

_HAS_WRITEV = hasattr(os, "writev")
_MOST_BUFFERS = 1024  # IOV_MAX on Linux and macOS
_COPY_BYTES = 1 << 20
# From here on space is claimed before writing: faster on ext4, and a full disk shows at once.
_SMALLEST_CLAIM = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_COPY_IN_KERNEL = (
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EIO,
)


class AtomicFile:
    """A new file under a temporary name beside its target; `commit` puts it in place.

    What stood at the target before stays until then, and for readers that have it open also after. If it is
    dropped without `commit`, it is removed: a caller that was interrupted before it held the file could not
    abort it.
    """

    descriptor = -1
    _is_settled = True
    """Whether there is nothing to remove."""

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool) -> None:
        self.name = os.fspath(path)
        # A link keeps pointing where it did: its target is what gets replaced.
        try:
            self._target = os.path.realpath(self.name)
        except ValueError as error:  # a NUL in the path
            raise InvalidArgument(f"not a valid path: {error}", path=self.name) from None
        self._fsync = fsync
        self._process = os.getpid()
        if os.path.isdir(self._target):
            raise InvalidArgument("cannot write: this is a folder", path=self.name)
        self.folder, base = os.path.split(self._target)
        # Unique, so that two writers to one name never share a file. File names end at 255 bytes.
        token = secrets.token_hex(6)
        short = base.encode(errors="surrogateescape")[:200].decode(errors="ignore")
        self.temporary = os.path.join(self.folder, f".{short}.{token}{SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._is_settled = False
        try:
            make_parent(self.temporary)
            self.descriptor = os.open(self.temporary, flags, 0o666)
        except OSError as error:
            self._is_settled = True
            raise ShardIOError.wrap(error, "cannot write", self.name) from error

    def commit(self) -> None:
        """Syncs the file, renames it over the target, and syncs the folder."""
        try:
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(self._target).st_mode & 0o777
                os.chmod(self.temporary, mode)
            if self._fsync:
                os.fsync(self.descriptor)
            self._close()
            os.replace(self.temporary, self._target)
            self._is_settled = True
            if self._fsync:
                sync_folder(self.folder)
        except OSError as error:  # would name the temporary file
            raise ShardIOError.wrap(error, "cannot write", self.name) from error

    def abort(self) -> None:
        """Removes the temporary file. Safe to call after anything, also twice."""
        self._close()
        if os.getpid() != self._process:  # a forked child dropped its copy; the file is not its own
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.temporary)
        self._is_settled = True

    def __del__(self) -> None:
        if not self._is_settled:
            self.abort()

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def make_parent(path: str | os.PathLike[str]) -> None:
    """Creates the folder that a file goes into, with its parents, if it is missing."""
    folder = os.path.dirname(os.fspath(path))
    if folder:
        os.makedirs(folder, exist_ok=True)


def sync_folder(folder: str) -> None:
    """Makes sure that the names in a folder survive a loss of power."""
    # Without this a rename itself may be lost. Windows has no such call.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def claim_space(descriptor: int, start: int, length: int) -> None:
    """Reserves room on the disk where the file system knows how; raises if the disk is full."""
    if length < _SMALLEST_CLAIM or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, start, length)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise


def write_all(descriptor: int, buffers: Sequence[bytes | memoryview]) -> None:
    """Writes all buffers at the current position, whatever pieces the system takes them in."""
    if not _HAS_WRITEV:
        for buffer in buffers:
            view = memoryview(buffer)
            while len(view):
                view = view[os.write(descriptor, view) :]
        return
    pending = list(buffers)
    first = 0
    while first < len(pending):
        batch = pending[first : first + _MOST_BUFFERS]
        written = os.writev(descriptor, batch)
        if written == sum(map(len, batch)):  # nearly always
            first += len(batch)
            continue
        while first < len(pending) and written >= len(pending[first]):
            written -= len(pending[first])
            first += 1
        if written:
            pending[first] = memoryview(pending[first])[written:]


def copy_range(source: int, start: int, length: int, target: int) -> None:
    """Copies a range of one file to the current position of another, in the kernel where it can."""
    done = 0
    while done < length and hasattr(os, "copy_file_range"):
        try:
            count = os.copy_file_range(source, target, length - done, offset_src=start + done)
        except OSError as error:
            if error.errno in _CANNOT_COPY_IN_KERNEL:
                break
            raise
        if count == 0:
            break
        done += count
    os.lseek(source, start + done, os.SEEK_SET)
    while done < length:
        piece = os.read(source, min(_COPY_BYTES, length - done))
        if not piece:
            raise OSError(errno.EIO, "a temporary file lost its end")
        write_all(target, [piece])
        done += len(piece)
