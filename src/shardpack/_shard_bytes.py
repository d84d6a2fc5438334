"""The bytes of a shard: a mapped file, bytes in memory, or ranges of a remote file."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, NoReturn, Protocol

from shard_format.errors import Closed
from shard_format.sources import can_view
from shardpack._record_head import UsualHead

if TYPE_CHECKING:
    from shard_format.registry import Limits
    from shard_format.sources import ByteSource


class Slices(Protocol):
    """Anything whose slices are bytes."""

    def __getitem__(self, key: slice, /) -> bytes: ...


class ShardBytes:
    """The bytes that records are read from: all of a shard, or a part of it that is in memory.

    A mapping or a bytes object is sliced directly, which is the fastest copy there is.

    Args:
        name: what errors call the shard.
        limits: what the shard may ask for.
        data: the bytes, or None if `source` has them.
        base: where the bytes start in the shard.
        source: reads ranges of the shard where there is no `data`.
        slices: replaces slices of `data` or `source`, for bytes that were fetched ahead.
    """

    __slots__ = (
        "base",
        "buffer",
        "limits",
        "mapped",
        "name",
        "slices",
        "source",
        "usual_head",
        "view",
    )

    def __init__(
        self,
        name: str,
        limits: Limits,
        data: bytes | mmap.mmap | memoryview | None,
        base: int = 0,
        source: ByteSource | None = None,
        slices: Slices | None = None,
    ) -> None:
        self.name = name
        self.base = base
        self.limits = limits
        self.source = source
        self.mapped: tuple[str, tuple[int, ...]] | None = None
        """Path and identity of the mapped file, so that other processes can map it too."""
        self.usual_head = UsualHead()
        """What to expect of the next record that is read as a whole."""
        self.buffer: bytes | mmap.mmap | memoryview | None = data
        """All the bytes, if they are in memory or mapped."""
        self.view: memoryview | None = None if data is None else memoryview(data).toreadonly()
        if slices is None:
            if data is None:
                assert source is not None  # one of the two has the bytes
                slices = FetchedRanges(source)
            else:
                slices = _Copies(data) if isinstance(data, memoryview) else data
        self.slices: Slices = slices

    @classmethod
    def of_source(cls, source: ByteSource, limits: Limits) -> ShardBytes:
        """All of a source: mapped if the source can be, otherwise read in ranges."""
        data = _all_of(source)
        return cls(source.name, limits, data, source=source if data is None else None)

    def is_here(self) -> bool:
        """Whether all bytes are in memory or mapped; a cache may have brought them since the shard was opened."""
        if self.buffer is not None or self.source is None or self.is_closed:
            return self.buffer is not None
        data = _all_of(self.source)
        if data is not None:
            self.slices = _Copies(data) if isinstance(data, memoryview) else data
            self.view = memoryview(data).toreadonly()
            self.buffer = data
        return self.buffer is not None

    def part(self, start: int, data: bytes) -> ShardBytes:
        """Bytes of this shard that were read into memory."""
        return ShardBytes(self.name, self.limits, data, self.base + start)

    def close(self) -> None:
        """Release the bytes. Views that you already have stay valid; records do not."""
        self.slices = _ClosedSlices(self.name)
        self.buffer = self.view = None
        if self.source is not None:
            self.source.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return isinstance(self.slices, _ClosedSlices)


def _all_of(source: ByteSource) -> bytes | mmap.mmap | memoryview | None:
    """The bytes of a source, as the object that they are slices of if that has no others; None if it has no views."""
    size = source.size()
    if not can_view(source):
        return None
    view = source.view(0, size)
    whole = view.obj
    return whole if isinstance(whole, (bytes, mmap.mmap)) and len(whole) == len(view) else view


class _Copies:
    """Slices of a memoryview, copied."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __getitem__(self, key: slice) -> bytes:
        return bytes(self._view[key])


class FetchedRanges:
    """Slices of a source: some ranges may have been fetched ahead, others are read on demand."""

    __slots__ = ("_parts", "_source")

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._parts: list[tuple[int, bytes]] = []

    def add(self, start: int, part: bytes) -> None:
        """Keep a range that was fetched."""
        self._parts.append((start, part))

    def find(self, start: int, size: int) -> bytes | None:
        """These bytes, if they were fetched."""
        for begin, part in self._parts:
            if begin <= start and start + size <= begin + len(part):
                return part[start - begin : start - begin + size]
        return None

    def __getitem__(self, key: slice) -> bytes:
        size = key.stop - key.start
        part = self.find(key.start, size)
        return self._source.read_at(key.start, size) if part is None else part


class _ClosedSlices:
    """Stands in for the bytes of a closed shard."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, key: object) -> NoReturn:
        raise Closed("the shard is closed", path=self._name)
