"""A folder with copies of remote files, block by block as they are read.

    source = open_source("s3://bucket/train.shardpack", {"cache_dir": "/ssd/cache", "cache_bytes": "200G"})

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
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh3_64_intdigest

from shard_format.atomic import close_locked, take_lock
from shard_format.errors import Closed, InvalidArgument, ShardIOError
from shard_format.sources import OpenFile, can_read_ranges, is_url, truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shard_format.sources import ByteSource

__all__ = ["CachedSource", "DiskCache", "byte_count", "open_cached"]

_log = logging.getLogger("shard_format")

BLOCK: Final = 1 << 20
# A file up to this size is fetched whole, with one request, when a byte of its middle is needed.
_WHOLE: Final = 1 << 24
# Its ends say what is in a file. Reading them alone fetches nothing more, so that a scan of many files stays cheap.
_ENDS: Final = 1 << 16
# Of a file up to this size, one process at a time fetches blocks, and the others wait and find them.
_IN_TURN: Final = 1 << 26
_ENTRY: Final = 8
_SUFFIX: Final = ".blocks"
_NAME: Final = re.compile(rf"[0-9a-f]{{32}}{re.escape(_SUFFIX)}")
# In every name: raise it when files of an older library must not be used any more.
_FORMAT: Final = 1
_SIZE: Final = re.compile(r"(\d+)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_OPEN: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def byte_count(name: str, value: int | str) -> int:
    """A number of bytes from `4096`, `"64K"`, `"256MB"` or `"2GiB"`; units are powers of 1024."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        return int(match[1]) << 10 * " KMGT".index((match[2] or " ").upper())
    if isinstance(value, str) or value < 0:
        raise InvalidArgument(
            f"{name} is a number of bytes", expected="such as 4096 or '256MB'", found=repr(value)
        )
    return value


def open_cached(
    url: str,
    storage_options: Mapping[str, Any],
    open_url: Callable[[str, Mapping[str, Any] | None], ByteSource],
) -> ByteSource:
    """A URL with the options `cache_dir` and perhaps `cache_bytes`, as `open_source` takes them."""
    options = dict(storage_options)
    folder, most = options.pop("cache_dir"), options.pop("cache_bytes", None)
    if is_url(os.fspath(folder)):
        raise InvalidArgument(
            "a cache is a folder on this machine", found=folder, hint="pass a path on a local disk"
        )
    cache = _shared(
        os.path.abspath(folder), None if most is None else byte_count("cache_bytes", most)
    )
    return cache.open(url, lambda: open_url(url, options or None), dict(storage_options))


@lru_cache(maxsize=16)
def _shared(folder: str, max_bytes: int | None) -> DiskCache:
    return DiskCache(folder, max_bytes)


class DiskCache:
    """The folder. Safe for threads, and for any number of processes.

    When the disk is full or cannot be written to, caching ends for this process with one warning, and reading goes on
    without it.

    Args:
        folder: on a local disk; made if it is missing.
        max_bytes: how large the folder may become; None for no limit. The files that were used longest ago go first.

    Raises:
        ShardIOError: the folder cannot be made or written to.
    """

    def __init__(self, folder: str, max_bytes: int | None = None) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise InvalidArgument("cache_bytes must be at least 1", found=max_bytes)
        self.folder = folder
        self.is_off = False
        """Whether writing failed."""
        self._max_bytes = max_bytes
        # The version of each URL that was opened before: asked for once in a process.
        self._versions: dict[str, tuple[str, int]] = {}
        # Bytes in the folder when it was listed last, plus those that this process added.
        self._total = self._added = 0
        try:
            os.makedirs(folder, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot use this folder as the cache", folder) from error
        self._list()

    def open(
        self, url: str, open_remote: Callable[[], ByteSource], options: dict[str, Any] | None = None
    ) -> ByteSource:
        """The remote file with this cache in front of it.

        The first time, `open_remote` is called and tells the version. A source that states no version (an attribute
        `version`) is not cached: bytes of two versions must never be mixed.
        """
        remote = None
        if url not in self._versions:
            remote = open_remote()
            version = getattr(remote, "version", None)
            if version is None or self.is_off:
                return remote
            self._versions[url] = (version, remote.size())
        version, size = self._versions[url]
        facts = json.dumps([_FORMAT, url, version, size, BLOCK])
        key = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
        path = os.path.join(self.folder, key + _SUFFIX)
        try:
            file = self._open_file(path, _table_at(size) + -(-size // BLOCK) * _ENTRY)
        except OSError as error:
            self.turn_off(error)
            return open_remote() if remote is None else remote
        return CachedSource(self, file, path, (url, version, size), remote, open_remote, options)

    def _open_file(self, path: str, length: int) -> OpenFile:
        file = OpenFile(os.open(path, _OPEN | os.O_CREAT, 0o644))
        if file.size() != length:
            os.ftruncate(file.descriptor, length)
        with suppress(OSError):  # the file of another user
            os.utime(file.descriptor)
        return file

    def turn_off(self, error: OSError) -> None:
        """End caching in this process."""
        if not self.is_off:
            self.is_off = True
            _log.warning("%s: cannot write to the cache, and go on without: %s", self.folder, error)

    def make_room(self, count: int, path: str) -> bool:
        """Remove files that were used longest ago until `count` bytes fit; whether they do."""
        if self._max_bytes is None:
            return True
        # Others write, too.
        if self._total + count > self._max_bytes or self._added > self._max_bytes // 64:
            files = self._list()
            # A tenth more than needed, so that this happens rarely.
            while self._total + count > self._max_bytes * 9 // 10 and files:
                _, size, oldest = files.pop(0)
                if oldest != path:
                    with suppress(FileNotFoundError):
                        os.unlink(oldest)  # a process that has it open can still read it
                    self._total -= size
        if self._total + count > self._max_bytes:
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
                        size = getattr(facts, "st_blocks", facts.st_size >> 9) << 9  # not holes
                        found.append((facts.st_mtime_ns, size, entry.path))
        self._total, self._added = sum(size for _, size, _ in found), 0
        return sorted(found)


class CachedSource:
    """A remote file, read from the cache where it is there. Made by `DiskCache.open`. Safe for threads and after a fork."""

    def __init__(
        self,
        cache: DiskCache,
        file: OpenFile,
        path: str,
        identity: tuple[str, str, int],
        remote: ByteSource | None,
        open_remote: Callable[[], ByteSource],
        options: dict[str, Any] | None,
    ) -> None:
        self._cache, self._path, self._options = cache, path, options
        self._file: OpenFile | None = file
        self._url, self.version, self._size = identity
        self._opened, self._open_remote = remote, open_remote
        self.name = re.sub(r"//[^/]*@", "//", self._url).partition("?")[0]
        if remote is not None:
            self.name = remote.name
        # Which blocks were compared with their checksums since the file was opened.
        self._verified = bytearray(-(-self._size // BLOCK))

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        return self.read_ranges([(offset, length)])[0]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if self._bring([(offset, len(buffer))]):
            file, done = self._held(), 0
            while done < len(buffer):
                done += file.read_into(buffer[done:], offset + done)
        else:
            buffer[:] = self._remote().read_at(offset, len(buffer))

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each `(offset, length)`, in the asked order; what is missing is fetched together."""
        if self._bring(ranges):
            file = self._held()
            return [file.read(length, offset) for offset, length in ranges]
        return _ranges_of(self._remote(), ranges)

    def close(self) -> None:
        self._file = None
        if self._opened is not None:
            self._opened.close()

    def _held(self) -> OpenFile:
        file = self._file
        if file is None:
            raise Closed("the source is closed", path=self.name)
        return file

    def _remote(self) -> ByteSource:
        self._held()
        if self._opened is None:
            opened = self._open_remote()
            if getattr(opened, "version", None) != self.version:
                opened.close()
                error = ShardIOError(
                    "the file behind the URL changed after it was opened",
                    path=self.name,
                    hint="open it again",
                )
                error.errno, error.strerror = errno.ESTALE, os.strerror(errno.ESTALE)
                raise error
            self._opened = opened
        return self._opened

    def _bring(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Fetch the blocks of these ranges that are not in the cache; whether all are in it now."""
        for offset, length in ranges:
            if offset < 0 or length < 0 or offset + length > self._size:
                raise truncated(self.name, offset, length, max(0, self._size - offset))
        wanted = {
            block
            for offset, length in ranges
            for block in range(offset // BLOCK, -(-(offset + length) // BLOCK))
            if length
        }
        missing = [block for block in sorted(wanted) if not self._has(block)]
        if not missing:
            return True
        ends = self._size - _ENDS
        if self._cache.is_off or all(at + n <= _ENDS or at >= ends for at, n in ranges):
            return False
        with self._in_turn():
            if self._size <= _WHOLE:
                missing = list(range(len(self._verified)))
            missing = [block for block in missing if not self._has(block)]
            if not self._cache.make_room(len(missing) * BLOCK, self._path):
                return False
            return self._fetch(missing)

    def _has(self, block: int) -> bool:
        """Whether a block is there and fits its checksum."""
        if self._verified[block]:
            return True
        file, (start, stop) = self._held(), self._span(block)
        try:
            stored = file.read(_ENTRY, _table_at(self._size) + block * _ENTRY)
            if not any(stored):
                return False
            self._verified[block] = _checksum(file.read(stop - start, start)) == stored
        except OSError as error:
            self._cache.turn_off(error)
            return False
        if not self._verified[block]:
            _log.warning("%s: a block of %s is damaged and fetched again", self._path, self.name)
        return bool(self._verified[block])

    def _fetch(self, blocks: list[int]) -> bool:
        """Fetch blocks and keep them; whether that was possible."""
        runs: list[list[int]] = []
        for block in blocks:
            if runs and block == runs[-1][-1] + 1 and len(runs[-1]) < _WHOLE // BLOCK:
                runs[-1].append(block)
            else:
                runs.append([block])
        ranges = [(run[0] * BLOCK, self._span(run[-1])[1] - run[0] * BLOCK) for run in runs]
        file = self._held()
        for run, data in zip(runs, _ranges_of(self._remote(), ranges), strict=True):
            for number, block in enumerate(run):
                content = memoryview(data)[number * BLOCK : (number + 1) * BLOCK]
                try:
                    _write(file.descriptor, content, block * BLOCK)
                    table_at = _table_at(self._size) + block * _ENTRY
                    _write(file.descriptor, memoryview(_checksum(content)), table_at)
                except OSError as error:
                    self._cache.turn_off(error)
                    return False
                self._verified[block] = True
        return True

    def _span(self, block: int) -> tuple[int, int]:
        return block * BLOCK, min((block + 1) * BLOCK, self._size)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Hold the lock of the file, which the system releases if the process is killed."""
        descriptor = -1
        if self._size <= _IN_TURN:
            with suppress(OSError):  # removed meanwhile: nobody else is looking for these blocks
                descriptor = os.open(self._path, _OPEN)
        if descriptor < 0:
            yield
            return
        try:
            take_lock(descriptor, self._path, wait=True)
            yield
        finally:
            close_locked(descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._options is None:
            raise InvalidArgument(
                "only a source that was opened by its URL pickles", path=self.name
            )
        from shard_format.opening import open_source

        return open_source, (self._url, self._options)

    def __repr__(self) -> str:
        return f"CachedSource({self.name!r})"


def _table_at(size: int) -> int:
    return -(-size // _ENTRY) * _ENTRY


def _checksum(data: bytes | memoryview) -> bytes:
    """Never zero, as a hole is."""
    return (xxh3_64_intdigest(data) | 1).to_bytes(_ENTRY, "little")


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


def _ranges_of(source: ByteSource, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    if can_read_ranges(source):
        return source.read_ranges(ranges)
    return [source.read_at(offset, length) for offset, length in ranges]
