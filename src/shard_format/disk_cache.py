"""A folder with copies of remote files, block by block as they are read.

    source = open_url("s3://bucket/train.shardpack", {"cache_dir": "/ssd/cache", "cache_bytes": "200GB"})

Each version of a remote file has one file in the folder: the bytes of the remote file, with holes where nothing was
fetched yet, and behind them a table with the checksum of each block that is there. A block is written first and its
checksum afterwards, and every reader compares the two before it uses the block. So a process that is killed leaves
nothing that is wrong, and processes need not know of each other. The folder is one LRU by the times of its files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh3_64_intdigest

from shard_format.errors import Closed, InvalidArgument, ShardIOError
from shard_format.sources import OpenFile, can_read_ranges, is_url, truncated
from shard_format.units import byte_count

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shard_format.sources import ByteSource

__all__ = ["CACHE_OPTIONS", "CachedSource", "DiskCache", "open_cached"]

_log = logging.getLogger("shard_format")

CACHE_OPTIONS: Final = ("cache_dir", "cache_bytes")
"""Storage options that are not for the server."""
BLOCK: Final = 1 << 20
# A file up to this size is fetched whole, with one request, when a byte of its middle is needed.
_WHOLE: Final = 1 << 24
# Its ends say what is in a file. Reading them alone fetches nothing more, so that a scan of many files stays cheap.
_ENDS: Final = 1 << 16
# Of a file up to this size, one process at a time fetches blocks, and the others wait and find them.
_IN_TURN: Final = 1 << 26
_ENTRY: Final = 8
_NAME: Final = re.compile(r"[0-9a-f]{32}\.blocks")
# In every name: raise it when files of an older library must not be used any more.
_FORMAT: Final = 1
_OPEN: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def open_cached(
    url: str,
    open_remote: Callable[[], ByteSource],
    options: Mapping[str, Any],
    reopen: Callable[[str, Mapping[str, Any]], ByteSource],
) -> ByteSource:
    """A URL with the options `cache_dir`, a folder or a `DiskCache`, and perhaps `cache_bytes`; see `open_url`."""
    cache, most = options["cache_dir"], options.get("cache_bytes")
    if not isinstance(cache, DiskCache):
        cache = DiskCache(cache, None if most is None else byte_count("cache_bytes", most))
    return cache.open(url, open_remote, (reopen, (url, dict(options))))


class DiskCache:
    """The folder. Safe for threads, and for any number of processes; pickles as its path.

    The version of each URL is asked for once by each object of this class. When the disk is full or cannot be written to, caching ends for this process with one warning, and reading goes on
    without it.

    Args:
        folder: on a local disk; made if it is missing.
        max_bytes: how large the folder may become; None for no limit. The files that were opened longest ago go first.

    Raises:
        ShardIOError: the folder cannot be made or written to.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | None = None) -> None:
        name = os.fspath(folder)
        if is_url(name):
            raise InvalidArgument("a cache is a folder on this machine", found=name)
        self.folder, self._max_bytes = os.path.abspath(name), max_bytes
        self.is_off = not hasattr(os, "pwrite")
        """Whether writing is not possible."""
        # Version and size of each URL that was opened before.
        self._versions: dict[str, tuple[str, int]] = {}
        # Bytes in the folder when it was listed last, plus those that were added here; and only the latter.
        self._total, self._added = 0, max_bytes or 0
        try:
            os.makedirs(self.folder, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot use this folder as the cache", name) from error

    def open(
        self, url: str, open_remote: Callable[[], ByteSource], pickled: tuple[Any, ...] = ()
    ) -> ByteSource:
        """The remote file with this cache in front of it.

        Args:
            url: names the file.
            open_remote: called the first time, to learn the version, and when a block is missing. A source without a
                `remote.Version` that has an ETag or a date is not cached: bytes of two versions must never be mixed.
            pickled: what the source pickles as: a function and its arguments. Without it, it does not.
        """
        remote = None
        if url not in self._versions:
            remote = open_remote()
            stated = _version_of(remote)
            if stated is None:
                return remote
            self._versions[url] = (stated, remote.size())
        version, size = self._versions[url]
        facts = json.dumps([_FORMAT, url, version, size, BLOCK])
        key = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
        path = os.path.join(self.folder, f"{key}.blocks")
        try:
            file = OpenFile(os.open(path, _OPEN | os.O_CREAT, 0o644))
            if file.size() != _length(size):
                os.ftruncate(file.descriptor, _length(size))
            with suppress(PermissionError):  # the file of another user
                os.utime(path)
        except OSError as error:
            self.turn_off(error)
            return remote or open_remote()
        source = CachedSource(self, file, path, (url, version, size), open_remote, pickled)
        source.remote = remote
        return source

    def turn_off(self, error: OSError) -> None:
        """End caching in this process."""
        if not self.is_off:
            self.is_off = True
            _log.warning("%s: the cache cannot be used, go on without: %s", self.folder, error)

    def make_room(self, count: int, path: str) -> bool:
        """Remove files that were opened longest ago, but not `path`, until `count` bytes fit; whether they do."""
        most = self._max_bytes
        if most is None:
            return True
        if self._total + count > most or self._added > most // 64:  # others write, too
            for _, size, oldest in self._list():
                # A tenth more than needed, so that this happens rarely.
                if self._total + count <= most * 9 // 10:
                    break
                if oldest != path:
                    with suppress(FileNotFoundError):
                        os.unlink(oldest)  # a process that has it open can still read it
                    self._total -= size
        if self._total + count > most:
            return False
        self._total += count
        self._added += count
        return True

    def _list(self) -> list[tuple[int, int, str]]:
        """Time, size and path of all files, oldest first."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        facts = entry.stat(follow_symlinks=False)
                        size = getattr(facts, "st_blocks", facts.st_size >> 9) << 9  # without holes
                        found.append((facts.st_mtime_ns, size, entry.path))
        self._total, self._added = sum(size for _, size, _ in found), 0
        return sorted(found)

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskCache, (self.folder, self._max_bytes)


class CachedSource:
    """A remote file, read from the cache where it is there. Made by `DiskCache.open`; safe for threads and forks."""

    remote: ByteSource | None = None
    """The remote file, once it was needed."""

    def __init__(
        self,
        cache: DiskCache,
        file: OpenFile,
        path: str,
        identity: tuple[str, str, int],
        open_remote: Callable[[], ByteSource],
        pickled: tuple[Any, ...],
    ) -> None:
        self._cache, self._path, self._pickled = cache, path, pickled
        self._file: OpenFile | None = file
        self._url, self._version, self._size = identity
        self._open_remote = open_remote
        self.name = re.sub(r"//[^/]*@", "//", self._url).partition("?")[0]
        # Which blocks were compared with their checksums since the file was opened.
        self._verified = bytearray(-(-self._size // BLOCK))

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        return self.read_ranges([(offset, length)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each `(offset, length)`, in the asked order; what is missing is fetched together."""
        file = self._file
        if file is None:
            raise Closed("the source is closed", path=self.name)
        for offset, length in ranges:
            if offset < 0 or length < 0 or offset + length > self._size:
                raise truncated(self.name, offset, length, max(0, self._size - offset))
        if self._bring(file, ranges):
            return [file.read(length, offset) for offset, length in ranges]
        return self._fetch(ranges)

    def close(self) -> None:
        self._file = None
        if self.remote is not None:
            self.remote.close()

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read from the remote file."""
        remote = self.remote
        if remote is None:
            remote = self.remote = self._open_remote()
            if _version_of(remote) != self._version:
                self.close()
                error = ShardIOError("the file behind the URL has changed", path=self.name)
                error.errno, error.hint = errno.ESTALE, "open the dataset again"
                raise error
        if can_read_ranges(remote):
            return remote.read_ranges(ranges)
        return [remote.read_at(offset, length) for offset, length in ranges]

    def _bring(self, file: OpenFile, ranges: Sequence[tuple[int, int]]) -> bool:
        """Fetch the blocks of these ranges that are not in the cache; whether all are in it now."""
        spans = [(at // BLOCK, -(-(at + length) // BLOCK)) for at, length in ranges if length]
        wanted = sorted({block for first, stop in spans for block in range(first, stop)})
        try:
            missing = [block for block in wanted if not self._has(file, block)]
            ends = (_ENDS, self._size - _ENDS)
            if not missing:
                return True
            if self._cache.is_off or all(at + n <= ends[0] or at >= ends[1] for at, n in ranges):
                return False
            with self._in_turn():
                if self._size <= _WHOLE:
                    missing = list(range(len(self._verified)))
                missing = [block for block in missing if not self._has(file, block)]
                if not self._cache.make_room(len(missing) * BLOCK, self._path):
                    return False
                return self._keep(file, missing)
        except OSError as error:
            if isinstance(error, ShardIOError):  # not the cache
                raise
            self._cache.turn_off(error)
            return False

    def _has(self, file: OpenFile, block: int) -> bool:
        """Whether a block is there and fits its checksum."""
        if not self._verified[block]:
            entry_at = _table_at(self._size) + block * _ENTRY
            stored = file.read(_ENTRY, entry_at)
            if not any(stored):
                return False
            size = min(BLOCK, self._size - block * BLOCK)
            self._verified[block] = _checksum(file.read(size, block * BLOCK)) == stored
            if not self._verified[block]:
                _log.warning("%s: a block of %s is damaged, fetch it again", self._path, self.name)
                _write(file.descriptor, memoryview(bytes(_ENTRY)), entry_at)
        return bool(self._verified[block])

    def _keep(self, file: OpenFile, blocks: list[int]) -> bool:
        """Fetch blocks and write them into the cache."""
        runs: list[list[int]] = []
        for block in blocks:
            if runs and block == runs[-1][-1] + 1 and len(runs[-1]) < _WHOLE // BLOCK:
                runs[-1].append(block)
            else:
                runs.append([block])
        stops = [min((run[-1] + 1) * BLOCK, self._size) for run in runs]
        ranges = [(r[0] * BLOCK, stop - r[0] * BLOCK) for r, stop in zip(runs, stops, strict=True)]
        for run, data in zip(runs, self._fetch(ranges), strict=True):
            for number, block in enumerate(run):
                content = memoryview(data)[number * BLOCK : (number + 1) * BLOCK]
                _write(file.descriptor, content, block * BLOCK)
                entry = memoryview(_checksum(content))
                _write(file.descriptor, entry, _table_at(self._size) + block * _ENTRY)
                self._verified[block] = True
        return True

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Hold the lock of the file, which the system releases if the process is killed."""
        lock = None
        if self._size <= _IN_TURN and fcntl is not None:
            with suppress(
                OSError
            ):  # the file was removed, or the system has no locks: other processes may fetch the same
                lock = OpenFile(os.open(self._path, _OPEN))
                fcntl.flock(lock.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if lock is not None:
                with suppress(OSError):
                    # Not left to closing it: a forked child may have the file open, too.
                    fcntl.flock(lock.descriptor, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._pickled:
            raise InvalidArgument(
                "only a source that was opened by its URL pickles", path=self.name
            )
        return self._pickled

    def __repr__(self) -> str:
        return f"CachedSource({self.name!r})"


def _version_of(source: ByteSource) -> str | None:
    """What changes with the content: the ETag, or else the date; None if the source states neither."""
    version = getattr(source, "version", None)
    if version is None:
        return None
    return (version.etag or "").removeprefix("W/") or version.modified or None


def _table_at(size: int) -> int:
    return -(-size // _ENTRY) * _ENTRY


def _length(size: int) -> int:
    return _table_at(size) + -(-size // BLOCK) * _ENTRY


def _checksum(data: bytes | memoryview) -> bytes:
    """Never zero, as a hole is."""
    return (xxh3_64_intdigest(data) | 1).to_bytes(_ENTRY, "little")


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
