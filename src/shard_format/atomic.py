"""Files that appear complete or not at all, and the writing under them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import stat
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import InvalidArgument, ShardError, ShardIOError
from shard_format.sources import is_url

try:
    import fcntl
except ImportError:  # Windows
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_log = logging.getLogger("shard_format")

SUFFIX: Final = ".partial"
TEMPORARY: Final = re.compile(r"\.(.+)\.[0-9a-f]{12}\.partial", re.DOTALL)
"""The names of temporary files; the group is the name that the file was for."""

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

    The old file stays at the target until then; readers that have it open keep it afterwards. A file for a URL of an
    object store is written to the system's folder for temporary files; `commit` uploads it. If it is
    dropped without `commit`, it is removed: a caller that was interrupted before it held the file could not
    abort it. The temporary file is locked until then, so that `is_abandoned` can tell what a killed writer left.

    Args:
        path: the target.
        fsync: whether to sync the file and its folder.
        folder: a descriptor of the folder that the target is in, which stays the caller's. Then the rest of the
            path is not looked at, and a link at the target is replaced instead of followed.
        storage_options: for a URL, as `remote.open_url` takes them.
    """

    descriptor = -1
    _is_settled = True
    """Whether there is nothing to remove."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool,
        folder: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = os.fspath(path)
        self._fsync = fsync
        self._process = os.getpid()
        self._within = folder
        self._upload: Callable[[str], None] | None = None
        if is_url(self.name):
            self._target, self._upload = _spooled(self.name, storage_options)
            self.folder = os.path.dirname(self._target)
        elif folder is None:
            self._target = _replaceable(self.name)
            self.folder = os.path.dirname(self._target)
        else:
            self.folder, self._target = os.path.split(self.name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        while self.descriptor < 0:
            self.temporary = _temporary_beside(self._target)
            self._is_settled = False
            try:
                make_parent(self.temporary)
                self.descriptor = os.open(self.temporary, flags, 0o666, dir_fd=folder)
            except OSError as error:
                self._is_settled = True
                raise ShardIOError.wrap(error, "cannot write", self.name) from error
            if not _holds(self.descriptor, self.temporary, folder):  # taken for abandoned just now
                self.abort()

    def commit(self) -> None:
        """Syncs the file, renames it over the target, and syncs the folder."""
        try:
            self._commit()
        except ShardError:
            raise
        except OSError as error:  # would name the temporary file
            raise ShardIOError.wrap(error, "cannot write", self.name) from error

    def _commit(self) -> None:
        if self._upload is not None:
            self._upload(self.temporary)
            self.abort()  # the object is there
            return
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(self._target, dir_fd=self._within, follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                os.chmod(self.temporary, mode & 0o777, dir_fd=self._within)
        if self._fsync:
            os.fsync(self.descriptor)
        if os.name == "nt":  # Windows cannot rename open files
            self._close()
        else:
            # Network file systems report failed writes when a descriptor is closed; this keeps the lock.
            os.close(os.dup(self.descriptor))
        if self._within is None:
            os.replace(self.temporary, self._target)
        else:
            folders = {"src_dir_fd": self._within, "dst_dir_fd": self._within}
            os.replace(self.temporary, self._target, **folders)
        self._is_settled = True
        self._close()
        if self._fsync:
            sync_folder(self.folder)

    def abort(self) -> None:
        """Removes the temporary file. Safe to call after anything, also twice.

        Raises:
            ShardIOError: the file cannot be removed. If another error is on its way, this one is only logged.
        """
        with contextlib.suppress(OSError):  # the bytes are not needed any more
            self._close()
        # A forked child only drops its copy: the file is not its own.
        if not self._is_settled and os.getpid() == self._process:
            self._is_settled = True
            _discard(self.temporary, self.name, self._within)

    def __del__(self) -> None:
        if not self._is_settled:
            self.abort()

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def write_file(
    path: str | os.PathLike[str],
    pieces: Iterable[bytes | memoryview],
    *,
    fsync: bool,
    folder: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Writes a file that appears when all pieces are in it; returns its size. Arguments as for `AtomicFile`.

    An error while the pieces are made, such as a wrong checksum at their end, leaves no file.
    """
    file = AtomicFile(path, fsync=fsync, folder=folder, storage_options=storage_options)
    written = 0
    try:
        for piece in pieces:
            write_all(file.descriptor, [piece])
            written += len(piece)
        file.commit()
    except ShardError:
        raise
    except OSError as error:  # would name the temporary file
        raise ShardIOError.wrap(error, "cannot write", file.name) from error
    finally:
        file.abort()
    return written


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """A path for a new file, which takes the place of `path` at the end of the block, so that you can check it first.

    What stood at the path gives the new file its permissions and goes; readers that have it open or mapped keep
    it. A link keeps pointing where it did. Until then the file is in a hidden folder, locked like a temporary file. A file
    for a URL is uploaded at the end.
    """
    name = os.fspath(path)
    target, upload = _spooled(name, None) if is_url(name) else (_replaceable(name), None)
    try:
        make_parent(target)
        folder, lock = make_locked_folder(lambda: _temporary_beside(target))
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot write", name) from error
    staged = os.path.join(folder, "new")
    try:
        yield staged
        if upload is not None:
            upload(staged)
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(staged, os.stat(target).st_mode & 0o777)
            os.replace(staged, target)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot write", name) from error
    finally:
        _discard(folder, name)
        if lock >= 0:
            os.close(lock)


def make_locked_folder(new_path: Callable[[], str]) -> tuple[str, int]:
    """Makes a folder for which `is_abandoned` can tell whether this process is alive.

    Args:
        new_path: returns a path that is not taken, another one each time.

    Returns:
        The path, and a descriptor that holds the lock until you close it; -1 if the system has no locks.

    Raises:
        OSError: the folder cannot be made.
    """
    while True:
        folder = new_path()
        os.mkdir(folder)
        if not _HAS_LOCKS:
            return folder, -1
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # taken for abandoned just now
            continue
        except OSError:
            os.rmdir(folder)
            raise
        if _holds(lock, folder):
            return folder, lock
        os.close(lock)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(folder)


# --- what killed writers leave


def is_abandoned(path: str, *, remove: bool = False) -> bool:
    """Whether the writer of a temporary file or folder is dead: its lock is free.

    False also where the system has no locks, or this process may not open the file.

    Args:
        path: whose name `TEMPORARY` matches.
        remove: delete it if it is abandoned.

    Raises:
        OSError: it cannot be deleted.
    """
    if not _HAS_LOCKS:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process has the lock, or this file system has none
            return False
        if remove and _is_named(descriptor, path):
            remove_flat(path)
    finally:
        os.close(descriptor)
    return True


def _holds(descriptor: int, path: str, folder: int | None = None) -> bool:
    """Locks a new temporary file; False if a process that removes abandoned files was faster."""
    if not _HAS_LOCKS:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where nothing is ever taken for abandoned
        return True
    return _is_named(descriptor, path, folder)


def _is_named(descriptor: int, path: str, folder: int | None = None) -> bool:
    """Whether a path still leads to an open file or folder."""
    try:
        named = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _discard(path: str, name: str, folder: int | None = None) -> None:
    """Deletes what was written for `name` under a temporary path.

    Raises:
        ShardIOError: it cannot be deleted. If another error is on its way, this one is only logged.
    """
    other = sys.exc_info()[1]
    try:
        remove_flat(path, folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if other is None:
            raise ShardIOError.wrap(error, f"cannot remove {path}", name) from error
        _log.warning("%s: cannot remove this temporary file: %s", path, error)


def remove_flat(path: str, folder: int | None = None) -> None:
    """Deletes a file, or a folder that has only files in it. Follows no links.

    Raises:
        OSError: it cannot be deleted, or is a folder with folders in it, some of whose files may be gone.
    """
    if stat.S_ISDIR(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode):
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    else:
        os.unlink(path, dir_fd=folder)


def _spooled(
    url: str, storage_options: Mapping[str, Any] | None
) -> tuple[str, Callable[[str], None] | None]:
    """The local target of a file for a URL, and what uploads it; None for a local file."""
    from shard_format.remote import local_path, upload

    if (path := local_path(url)) is not None:
        return _replaceable(path), None
    base = url.rstrip("/").rpartition("/")[2] or "object"
    return (
        os.path.join(tempfile.gettempdir(), base),
        lambda temporary: upload(temporary, url, storage_options),
    )


def _replaceable(path: str) -> str:
    """The file that a path leads to, or would lead to."""
    # A link keeps pointing where it did: its target is what gets replaced.
    try:
        target = os.path.realpath(path)
    except ValueError as error:  # a NUL in the path
        raise InvalidArgument(f"not a valid path: {error}", path=path) from None
    if os.path.isdir(target):
        raise InvalidArgument("cannot write: this is a folder", path=path)
    return target


def _temporary_beside(target: str) -> str:
    """A hidden, unique name. File names end at 255 bytes."""
    folder, base = os.path.split(target)
    short = base.encode(errors="surrogateescape")[:200].decode(errors="ignore")
    return os.path.join(folder, f".{short}.{secrets.token_hex(6)}{SUFFIX}")


# --- folders and bytes


def make_parent(path: str | os.PathLike[str]) -> None:
    """Creates the folder that a file goes into, with its parents, if it is missing.

    Raises:
        InvalidArgument: the path is a URL, and this file must be local.
    """
    if is_url(name := os.fspath(path)):
        raise InvalidArgument(
            "this file must be on a local disk",
            path=name,
            expected="a path",
            hint="write it there first, then upload it",
        )
    folder = os.path.dirname(name)
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


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Waits for the exclusive lock of a file, and holds it; does nothing if the file is missing.

    The file may be replaced meanwhile. Whoever has waited for the lock of the old file then waits for the new one.

    Raises:
        ShardIOError: the lock, or a call in the block, fails.
    """
    try:
        with _hold_lock(path):
            yield
    except ShardError:
        raise
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot change", path) from error


@contextlib.contextmanager
def _hold_lock(path: str) -> Iterator[None]:
    if not _HAS_LOCKS:  # Windows cannot replace files that are open
        yield
        return
    while os.path.isfile(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            break
        try:
            take_lock(descriptor, path, wait=True)
            if is_still_named(descriptor, path):
                yield
                return
        finally:
            close_locked(descriptor)
    yield


@contextlib.contextmanager
def switched(new: str, path: str, *, fsync: bool) -> Iterator[None]:
    """Puts a new file in the place of a locked one and holds the lock of the new one, too: remove the rest meanwhile.

    Other writers find the new file as soon as it is there, and wait for it.
    """
    target = os.path.realpath(path)
    with locked(new):
        os.replace(new, target)
        if fsync:
            sync_folder(os.path.dirname(target))
        yield


def take_lock(descriptor: int, path: str, *, wait: bool = False) -> bool:
    """Takes the exclusive lock of an open file; returns whether this process has it."""
    if not _HAS_LOCKS:  # on Windows, opening for writing keeps others out
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        _log.warning(
            "%s: this file system has no locks (%s); do not write from two processes", path, error
        )
    return True


def close_locked(descriptor: int) -> None:
    """Releases the lock of a file, and closes it."""
    if _HAS_LOCKS:
        with contextlib.suppress(OSError):  # a file system without locks
            # Not left to `close`: a forked child may have the file open, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_still_named(descriptor: int, path: str) -> bool:
    """Whether a path still leads to an open file; for a closed one, whether it leads to any."""
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return descriptor < 0 or os.path.samestat(named, os.fstat(descriptor))


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
