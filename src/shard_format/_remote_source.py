"""What all remote sources share: the plan of requests, what is kept in memory, and the opened version."""

from __future__ import annotations

import errno
import os
import re
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shard_format._kernels import filled_bytes
from shard_format.errors import (
    Closed,
    FileMissing,
    FileThere,
    RemoteDenied,
    ShardIOError,
    TransportError,
)
from shard_format.parallel import for_each
from shard_format.sources import truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from shard_format.errors import Facts

# What opening fetches: the head of most files, or the index of most packs.
OPEN_BYTES = 1 << 16
# A read below `_SMALL` also brings what lies before it: it is likely the footer of a seek table, and
# the table and the frames are asked for next. If it follows the last such block, it brings the next one: someone reads
# small entries one after the other.
_SMALL = 1 << 12
_BLOCK = 1 << 16
# Ranges with less than this between them are fetched as one, up to `_MOST_MERGED`.
_GAP = 1 << 16
_MOST_MERGED = 1 << 24
CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Fetch:
    """One request that serves several ranges."""

    start: int
    """First byte."""
    stop: int
    """End of the bytes."""
    members: tuple[int, ...]
    """The ranges it serves, as positions in the list that was asked for."""


def plan_ranges(
    ranges: Sequence[tuple[int, int]], *, gap: int = _GAP, most: int = _MOST_MERGED
) -> list[Fetch]:
    """The requests for these `(offset, length)` ranges, in the order of the file.

    Ranges that overlap or have at most `gap` bytes between them share a request, unless that would
    exceed `most` bytes. Empty ranges need none.
    """
    order = sorted((range_, position) for position, range_ in enumerate(ranges) if range_[1])
    plan: list[Fetch] = []
    for (offset, length), position in order:
        stop = offset + length
        if plan:
            last = plan[-1]
            merged = max(last.stop, stop)
            if offset - last.stop <= gap and merged - last.start <= most:
                plan[-1] = Fetch(last.start, merged, (*last.members, position))
                continue
        plan.append(Fetch(offset, stop, (position,)))
    return plan


@dataclass(frozen=True, slots=True)
class ListedUrl:
    """A file in a listing."""

    url: str
    """Where it is."""
    version: Version
    """What tells its content from any other."""


@dataclass(frozen=True, slots=True)
class Version:
    """What tells one content of a URL from another."""

    size: int
    etag: str | None
    modified: str | None

    def difference(self, other: Version) -> tuple[str, str] | None:
        """What contradicts, here and there. What only one side states contradicts nothing."""
        if self.size != other.size:
            return f"{self.size} bytes", f"{other.size} bytes"
        if self.etag and other.etag:
            # A proxy may weaken a tag on the way.
            if self.etag.removeprefix("W/") != other.etag.removeprefix("W/"):
                return f"ETag {printable(self.etag)}", f"ETag {printable(other.etag)}"
        elif self.modified and other.modified and self.modified != other.modified:
            return f"date {printable(self.modified)}", f"date {printable(other.modified)}"
        return None


class StoreError(Exception):
    """A store refuses or cannot be reached. The caller raises an error of its own with these words.

    Args:
        number: the `errno` that fits best.
        line: what the store says, in one line without secrets.
    """

    def __init__(self, number: int, line: str) -> None:
        super().__init__(number, line)
        self.number, self.line = number, line


class RequestStats:
    """Counts the requests of a remote source, or of all of them: `TOTAL` counts those of this process."""

    def __init__(self) -> None:
        self.requests = 0
        """Answers that were asked for; tries of the same request count once."""
        self.bytes = 0
        """Bytes that were asked for and came."""
        self._lock = threading.Lock()

    def add(self, received: int) -> None:
        """Counts a request that brought this many bytes."""
        with self._lock:
            self.requests += 1
            self.bytes += received
        if self is not TOTAL:
            TOTAL.add(received)

    def __repr__(self) -> str:
        return f"RequestStats(requests={self.requests}, bytes={self.bytes})"


TOTAL = RequestStats()


class RemoteSource(ABC):
    """Reads over a subclass that can fetch ranges; serves from memory what is already here.

    Owns: the bytes that opening brought, the first or the last of the file, and the block around the last small read.

    Args:
        name: what error messages call it.
    """

    _version: Version

    def __init__(self, name: str) -> None:
        self.name = name
        self.stats = RequestStats()
        """The requests that were made, and the bytes that came."""
        # Each is where the bytes begin, and the bytes.
        self._opened = (0, b"")
        self._recent = (0, b"")
        self._closed = False

    @property
    def version(self) -> Version:
        """What tells the content that was opened from any other."""
        return self._version

    @abstractmethod
    def _fetch_into(self, offset: int, out: memoryview) -> None:
        """Fills memory with bytes that are inside the file."""

    def size(self) -> int:
        return self._version.size

    def read_at(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        stop = offset + length
        opened = self._opened  # another thread may close the source and drop it
        for block in (opened, self._recent):
            if (found := _cut(block, offset, length)) is not None:
                return found
        first, last = opened[0], opened[0] + len(opened[1])
        if first <= offset < last:  # the rest is missing
            known = opened[1][offset - first :]
            return known + self._fetch(last, stop - last)
        if first < stop <= last:
            return self._fetch(offset, first - offset) + opened[1][: stop - first]
        if length >= _SMALL:
            return self._fetch(offset, length)
        recent, kept = self._recent
        start = min(offset, recent + len(kept))
        if kept and recent <= start and stop <= start + _BLOCK:
            end = min(start + _BLOCK, self._version.size)
        else:
            start, end = max(0, stop - _BLOCK), stop
            if start < last <= offset:
                start = last
        data = self._fetch(start, end - start)
        self._recent = (start, data)
        return data[offset - start : stop - start]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each `(offset, length)`, in the asked order; near ones share a request."""
        for offset, length in ranges:
            self._check(offset, length)
        opened = self._opened
        here = [_cut(opened, offset, length) for offset, length in ranges]
        results = [found or b"" for found in here]

        def fetch(part: Fetch) -> None:
            data = self._fetch(part.start, part.stop - part.start)
            for position in part.members:
                offset, length = ranges[position]
                results[position] = data[offset - part.start : offset - part.start + length]

        plan = plan_ranges(
            [
                wanted if found is None else (0, 0)
                for wanted, found in zip(ranges, here, strict=True)
            ]
        )
        for_each(plan, fetch, min(CONNECTIONS, len(plan)))
        known, asked = len(opened[1]), sum(length for _, length in ranges)
        if known > OPEN_BYTES and asked > max(OPEN_BYTES, known // 2):
            # Opening has brought all of the file, for someone who reads it once: here.
            self._opened = (0, b"")
        return results

    def close(self) -> None:
        self._closed = True
        self._opened = self._recent = (0, b"")

    def _fetch(self, offset: int, length: int) -> bytes:
        data = filled_bytes(length, lambda out: self._fetch_into(offset, out))
        self.stats.add(length)
        return data

    def _keep(self, start: int, data: bytes) -> None:
        """Remembers what opening brought."""
        self._opened = (start, data)
        self.stats.add(len(data))

    def _check(self, offset: int, length: int) -> None:
        if self._closed:
            raise Closed("the source is closed", path=self.name)
        size = self._version.size
        if offset < 0 or length < 0 or (length and offset + length > size):
            raise truncated(self.name, offset, length, max(0, size - offset))

    def _compare(self, version: Version) -> None:
        difference = self._version.difference(version)
        if difference is not None:
            raise self._changed(*difference)

    def _changed(self, expected: str | None = None, found: str | None = None) -> ShardIOError:
        return self._failure(
            errno.ESTALE,
            "the file behind the URL changed after it was opened",
            expected=expected,
            found=found,
            hint="open it again",
        )

    def _failure(self, number: int, problem: str, **facts: Unpack[Facts]) -> ShardIOError:
        return io_failure(self.name, number, problem, **facts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


_KINDS: dict[int, type[ShardIOError]] = {
    errno.ENOENT: FileMissing,
    errno.EACCES: RemoteDenied,
    errno.EEXIST: FileThere,
    errno.ESTALE: ShardIOError,
}
"""What says something about the file; every other failure is one of the network or the server."""


def io_failure(name: str, number: int, problem: str, **facts: Unpack[Facts]) -> ShardIOError:
    """The error about something behind a URL, of the class that fits the `errno`."""
    kind = _KINDS.get(number, TransportError)
    error = kind(problem, **facts).located(path=name)
    error.errno, error.strerror, error.filename = number, os.strerror(number), name
    return error


def _cut(block: tuple[int, bytes], offset: int, length: int) -> bytes | None:
    """A range of a file out of a block of its bytes; None if the block does not have all of it."""
    start, data = block
    if not length:
        return b""
    if start <= offset and offset + length <= start + len(data):
        return data[offset - start : offset - start + length]
    return None


def reopen(cls: Callable[..., RemoteSource], url: str, options: dict[str, Any]) -> RemoteSource:
    return cls(url, **options)


def printable(text: str, most: int = 80) -> str:
    """What a server says, fit to be shown."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


def shown(url: str) -> str:
    """A URL without what may be secret in it."""
    bare, query, _ = url.partition("#")[0].partition("?")
    shown = re.sub(r"//[^/]*@", "//", bare, count=1)
    return printable(shown, len(shown)) + ("?…" if query else "")
