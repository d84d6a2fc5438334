"""A folder with copies of remote files, block by block as they are read.

    source = open_url("s3://bucket/train.shardpack", {"cache_dir": "/ssd/cache", "cache_bytes": "200GB"})

Each version of a remote file has one file in the folder: the bytes of the remote file, with holes where nothing was
fetched yet, and behind them a table with the checksum of each block that is there. A block is written first and its
checksum afterwards, and every reader compares the two before it uses the block. So a process that is killed leaves
nothing that is wrong, and processes need not know of each other. The folder is one LRU by the times of its files.

If the SHA-256 of a small file is known, it serves as the version, and the server is not asked for one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from shard_format.errors import InvalidArgument, ShardIOError
from shard_format.sources import BytesSource, OpenFile, can_read_ranges, is_url
from shard_format.units import byte_count

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shard_format.sources import ByteSource

__all__ = ["CACHE_OPTIONS", "CachedSource", "DiskCache", "KnownContent"]

_log = logging.getLogger("shard_format")

CACHE_OPTIONS: Final = ("cache_dir", "cache_bytes")
"""Storage options that are not for the server."""
BLOCK: Final = 1 << 20
# A file up to this size is fetched whole, with one request, when a byte of its middle is needed. One process at a time
# does so, and the others wait and find it.
_WHOLE: Final = 1 << 24
# Its ends say what is in a file. Reading them alone fetches nothing more, so that a scan of many files stays cheap.
_ENDS: Final = 1 << 16
_ENTRY: Final = 8
_NAME: Final = re.compile(r"[0-9a-f]{32}\.blocks")
# In every name: raise it when files of an older library must not be used any more.
_FORMAT: Final = 1
_OPEN: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class KnownContent(NamedTuple):
    """What a set file says about a shard."""

    size: int
    sha256: str


class _FileVersion(NamedTuple):
    """One version of a file, and where its parts are in the cache."""

    url: str
    """Empty if the tag is the SHA-256 of the content."""
    tag: str
    """The ETag, or else the date, or the SHA-256."""
    size: int

    @property
    def blocks(self) -> range:
        return range(-(-self.size // BLOCK))

    def span(self, block: int) -> tuple[int, int]:
        """Offset and length of a block."""
        return block * BLOCK, min(BLOCK, self.size - block * BLOCK)

    def entry_at(self, block: int) -> int:
        """Where the checksum of a block is; behind the last one the file ends."""
        return -(-self.size // _ENTRY) * _ENTRY + block * _ENTRY

    def table(self, file: OpenFile) -> tuple[int, ...]:
        """The checksums of all blocks, 0 for one that is not there."""
        size = len(self.blocks) * _ENTRY
        stored = file.read(size, self.entry_at(0)).ljust(size, b"\0")
        return struct.unpack(f"<{len(self.blocks)}Q", stored)


class DiskCache:
    """The folder. Safe for threads, and for any number of processes; pickles as its path.

    The version of each URL is asked for once by each object of this class. When the disk is full or cannot be written to,
    caching ends for this process with one warning, and reading goes on without it.

    Args:
        folder: on a local disk; made if it is missing.
        max_bytes: how large the folder may become, such as `"200GB"`; None for no limit. The files that were opened longest ago go first.

    Raises:
        ShardIOError: the folder cannot be made or written to.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | str | None = None) -> None:
        name = os.fspath(folder)
        if is_url(name):
            raise InvalidArgument("a cache is a folder on this machine", found=name)
        most = None if max_bytes is None else byte_count("cache_bytes", max_bytes)
        self.folder, self._max_bytes = os.path.abspath(name), most
        self.is_off = not hasattr(os, "pwrite")
        """Whether writing is not possible."""
        # Of each URL that was opened before.
        self._versions: dict[str, _FileVersion] = {}
        # Bytes in the folder when it was listed last, plus those that were added here; and only the latter.
        self._total, self._added = 0, most or 0
        try:
            os.makedirs(self.folder, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot use this folder as the cache", name) from error

    def open(
        self,
        url: str,
        open_remote: Callable[[], ByteSource],
        pickled: tuple[Any, ...] = (),
        known: KnownContent | None = None,
    ) -> ByteSource:
        """The remote file with this cache in front of it.

        Args:
            url: names the file.
            open_remote: called the first time, to learn the version, and when a block is missing. A source without a
                `remote.Version` that has an ETag or a date is not cached: bytes of two versions must never be mixed.
            pickled: what the source pickles as: a function and its arguments. Without it, it does not.
            known: what its content must be.
        """
        remote, version = None, self._known_version(url, known)
        if version is None:
            remote = open_remote()
            tag = _tag_of(remote)
            if tag is None:
                return remote
            version = self._versions[url] = _FileVersion(url, tag, remote.size())
        try:
            source = CachedSource(self, url, version, open_remote, pickled)
        except OSError as error:
            self.turn_off(error)
            return remote or open_remote()
        if hasattr(source, "view") and remote is not None:
            remote.close()
        else:
            source.remote = remote
        return source

    def holds(self, url: str, known: KnownContent | None = None) -> bool:
        """Whether all of a file is in the folder, so that reading it takes no request."""
        version = self._known_version(url, known)
        try:
            return version is not None and all(version.table(OpenFile.at(self.path(version))))
        except OSError:
            return False

    def _known_version(self, url: str, known: KnownContent | None) -> _FileVersion | None:
        if known is not None and known.size <= _WHOLE:
            return _FileVersion("", known.sha256, known.size)
        return self._versions.get(url)

    def path(self, version: _FileVersion) -> str:
        """Where a version of a file is."""
        facts = json.dumps([_FORMAT, *version, BLOCK])
        key = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
        return os.path.join(self.folder, f"{key}.blocks")

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
    """A remote file, read from the cache where it is there. Made by `DiskCache.open`; safe for threads and forks.

    Once all blocks are here and were compared with their checksums, the source has a `view` and costs what a local file does.
    """

    remote: ByteSource | None = None
    """The remote file, once it was needed."""
    view: Callable[[int, int], memoryview]

    def __init__(
        self,
        cache: DiskCache,
        url: str,
        version: _FileVersion,
        open_remote: Callable[[], ByteSource],
        pickled: tuple[Any, ...],
    ) -> None:
        self._cache, self._version, self._pickled = cache, version, pickled
        self._open_remote, self._size = open_remote, version.size
        self.name = re.sub(r"//[^/]*@", "//", url).partition("?")[0]
        self._path = cache.path(version)
        self._file = OpenFile(os.open(self._path, _OPEN | os.O_CREAT, 0o644))
        stored_bytes = version.entry_at(len(version.blocks))
        if self._file.size() != stored_bytes:
            os.ftruncate(self._file.descriptor, stored_bytes)
        with suppress(PermissionError):  # the file of another user
            os.utime(self._path)
        mapping = self._file.map(self._size) if self._size else b""
        self._bytes = BytesSource(memoryview(mapping), self.name)
        # Which blocks were compared with their checksums since the file was opened.
        self._verified = bytearray(len(version.blocks))
        if self._size <= _WHOLE and all(version.table(self._file)):
            self._find_missing(version.blocks)

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        return self.read_ranges([(offset, length)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each `(offset, length)`, in the asked order; what is missing is fetched together."""
        views = [self._bytes.view(offset, length) for offset, length in ranges]
        return list(map(bytes, views)) if self._bring(ranges) else self._fetch(ranges)

    def close(self) -> None:
        self._bytes.close()
        if self.remote is not None:
            self.remote.close()

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read from the remote file."""
        remote = self.remote
        if remote is None:
            remote = self.remote = self._open_remote()
            tag = _tag_of(remote) if self._version.url else self._version.tag
            if (tag, remote.size()) != self._version[1:]:
                raise self._changed()
        if can_read_ranges(remote):
            return remote.read_ranges(ranges)
        return [remote.read_at(offset, length) for offset, length in ranges]

    def _bring(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Fetch the blocks of these ranges that are not in the cache; whether all are in it now."""
        if hasattr(self, "view"):
            return True
        spans = [(at // BLOCK, -(-(at + length) // BLOCK)) for at, length in ranges if length]
        wanted = {block for first, stop in spans for block in range(first, stop)}
        is_at_ends = all(at + n <= _ENDS or at >= self._size - _ENDS for at, n in ranges)
        try:
            if not self._find_missing(wanted):
                return True
            if self._cache.is_off or is_at_ends:
                return False
            with self._in_turn():
                missing = self._find_missing(
                    self._version.blocks if self._size <= _WHOLE else wanted
                )
                if missing and not self._version.url:  # the content is compared as a whole
                    missing = list(self._version.blocks)
                if not self._cache.make_room(len(missing) * BLOCK, self._path):
                    return False
                self._keep(missing)
                return True
        except OSError as error:
            if isinstance(error, ShardIOError):  # not the cache
                raise
            self._cache.turn_off(error)
            return False

    def _find_missing(self, blocks: Iterable[int]) -> list[int]:
        """Those of the blocks that are not there, or do not fit their checksums."""
        unknown = sorted(block for block in blocks if not self._verified[block])
        table = self._version.table(self._file) if unknown else ()
        missing = []
        for block in unknown:
            found = _checksum(self._bytes.view(*self._version.span(block))) if table[block] else 0
            self._verified[block] = table[block] == found != 0
            if not self._verified[block]:
                missing.append(block)
            if table[block] != found:
                _log.warning("%s: a block of %s is damaged, fetch it again", self._path, self.name)
                self._mark(block, 0)
        self._offer_view()
        return missing

    def _keep(self, blocks: list[int]) -> None:
        """Fetch blocks and write them into the cache."""
        found = self._fetch([self._version.span(block) for block in blocks])
        if blocks and not self._version.url:
            digest = hashlib.sha256()
            for content in found:
                digest.update(content)
            if digest.hexdigest() != self._version.tag:
                raise self._changed()
        for block, content in zip(blocks, found, strict=True):
            _write(self._file.descriptor, memoryview(content), block * BLOCK)
            self._mark(block, _checksum(content))
            self._verified[block] = True
        self._offer_view()

    def _mark(self, block: int, checksum: int) -> None:
        entry = memoryview(checksum.to_bytes(_ENTRY, "little"))
        _write(self._file.descriptor, entry, self._version.entry_at(block))

    def _offer_view(self) -> None:
        if all(self._verified):
            self.view = self._bytes.view
            self.remote = None  # which other threads may still be reading

    def _changed(self) -> ShardIOError:
        self.close()
        error = ShardIOError("the file behind the URL has changed", path=self.name)
        error.errno, error.hint = errno.ESTALE, "open the dataset again"
        return error

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Hold the lock of the file, which the system releases if the process is killed."""
        lock = None
        if self._size <= _WHOLE and fcntl is not None:
            # If the file was removed, or the system has no locks, other processes may fetch the same.
            with suppress(OSError):
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


def _tag_of(source: ByteSource) -> str | None:
    """What changes with the content: the ETag, or else the date; None if the source states neither."""
    version = getattr(source, "version", None)
    if version is None:
        return None
    return (version.etag or "").removeprefix("W/") or version.modified or None


def _checksum(data: bytes | memoryview) -> int:
    """Never zero, as a hole is."""
    return xxh3_64_intdigest(data) | 1


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
