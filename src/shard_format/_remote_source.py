"""What all remote sources share: the plan of requests, what is kept in memory, and the opened version."""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shard_format._kernels import filled_bytes
from shard_format.errors import AccessDenied, Closed, FileMissing, ShardIOError
from shard_format.parallel import for_each
from shard_format.sources import truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What opening fetches: the head of most files.
HEAD_BYTES = 1 << 16
# A read below `_SMALL` also brings what lies before it: it is likely the footer of a seek table, and
# the table and the frames are asked for next.
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


class RemoteSource(ABC):
    """Reads over a subclass that can fetch ranges; serves from memory what is already here.

    Owns: the first bytes of the file, and the block around the last small read.
    """

    name: str
    _version: Version
    _head = b""
    _recent = (0, b"")
    _closed = False

    @abstractmethod
    def _fetch_into(self, offset: int, out: memoryview) -> None:
        """Fills memory with bytes that are inside the file."""

    def size(self) -> int:
        return self._version.size

    @property
    def version(self) -> str | None:
        """What changes with the content: the ETag, or else the date; None if the server states neither."""
        etag = self._version.etag
        return etag.removeprefix("W/") if etag else self._version.modified or None

    def read_at(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        stop = offset + length
        head = self._head  # another thread may close the source and drop it
        known = len(head)
        if stop <= known or not length:
            return head[offset:stop]
        start, block = self._recent
        if start <= offset and stop <= start + len(block):
            return block[offset - start : stop - start]
        if offset >= known:
            if length >= _SMALL:
                return self._fetch(offset, length)
            start = max(known, stop - _BLOCK)
            block = self._fetch(start, stop - start)
            self._recent = (start, block)
            return block[offset - start :]

        def fill(out: memoryview) -> None:
            out[: known - offset] = head[offset:]
            self._fetch_into(known, out[known - offset :])

        return filled_bytes(length, fill)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each `(offset, length)`, in the asked order; near ones share a request."""
        for offset, length in ranges:
            self._check(offset, length)
        head = self._head
        known = len(head)
        here = [offset + length <= known for offset, length in ranges]
        results = [
            head[offset : offset + length] if inside else b""
            for (offset, length), inside in zip(ranges, here, strict=True)
        ]

        def fetch(part: Fetch) -> None:
            data = self._fetch(part.start, part.stop - part.start)
            for position in part.members:
                offset, length = ranges[position]
                results[position] = data[offset - part.start : offset - part.start + length]

        plan = plan_ranges(
            [(0, 0) if inside else wanted for wanted, inside in zip(ranges, here, strict=True)]
        )
        for_each(plan, fetch, min(CONNECTIONS, len(plan)))
        return results

    def close(self) -> None:
        self._closed = True
        self._head, self._recent = b"", (0, b"")

    def _fetch(self, offset: int, length: int) -> bytes:
        return filled_bytes(length, lambda out: self._fetch_into(offset, out))

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

    def _failure(
        self,
        number: int,
        problem: str,
        *,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> ShardIOError:
        kind = {errno.ENOENT: FileMissing, errno.EACCES: AccessDenied}.get(number, ShardIOError)
        error = kind(problem, path=self.name, expected=expected, found=found, hint=hint)
        error.errno, error.strerror, error.filename = number, os.strerror(number), self.name
        return error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


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
