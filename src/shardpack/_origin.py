"""Where the bytes of records come from: a mapped file, memory, or ranges of a remote one."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, NoReturn, Protocol

from shard_format.errors import Closed
from shard_format.sources import can_view

if TYPE_CHECKING:
    from shard_format.registry import Limits
    from shard_format.sources import ByteSource
    from shardpack._samples import SampleReader


class Slices(Protocol):
    """Anything whose slices are bytes."""

    def __getitem__(self, key: slice, /) -> bytes: ...


class _ViewSlices:
    """Slices of a memoryview, copied."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __getitem__(self, key: slice) -> bytes:
        return bytes(self._view[key])


class _RangeSlices:
    """Slices that are read from a source when they are asked for."""

    __slots__ = ("_source",)

    def __init__(self, source: ByteSource) -> None:
        self._source = source

    def __getitem__(self, key: slice) -> bytes:
        return self._source.read_at(key.start, key.stop - key.start)


class _ClosedSlices:
    """What is left of a source that was closed."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, key: object) -> NoReturn:
        raise Closed("the shard is closed", path=self._name)


class Origin:
    """The bytes that records are cut from.

    A mapping or bytes in memory are used as they are: their slices are the fastest copies there are.
    """

    __slots__ = (
        "base",
        "buffer",
        "limits",
        "location",
        "name",
        "sample_reader",
        "sample_readers",
        "slices",
        "source",
        "view",
    )

    def __init__(
        self,
        name: str,
        limits: Limits,
        data: bytes | mmap.mmap | memoryview | None,
        base: int = 0,
    ) -> None:
        self.name = name
        self.base = base
        """Where these bytes start in the file."""
        self.limits = limits
        self.source: ByteSource | None = None
        self.location: str | None = None
        """The file that is mapped, for others to map it too."""
        self.buffer: bytes | mmap.mmap | memoryview | None = data
        """All bytes, if they are in memory or mapped."""
        self.view: memoryview | None = None if data is None else memoryview(data).toreadonly()
        self.sample_reader: SampleReader | None = None
        """Reads whole samples that have the shape of the last one."""
        self.sample_readers: dict[tuple[bytes, bytes], SampleReader | None] = {}
        """By tag and kinds of their records; None where only one was read."""
        self.slices: Slices = _ViewSlices(data) if isinstance(data, memoryview) else data  # type: ignore[assignment] # None is replaced by whoever made it so

    @classmethod
    def of_source(cls, source: ByteSource, limits: Limits) -> Origin:
        """All of a source: mapped where that is possible, read in ranges where it is not."""
        name, size = source.name, source.size()
        if can_view(source):
            view = source.view(0, size)
            whole = view.obj
            # A view of a part, or of something else that has bytes, is not what it is a view of.
            data = (
                whole if isinstance(whole, (bytes, mmap.mmap)) and len(whole) == len(view) else view
            )
            return cls(name, limits, data)
        origin = cls(name, limits, None)
        origin.source = source
        origin.slices = _RangeSlices(source)
        return origin

    def close(self) -> None:
        """Lets go of the bytes. Views that were handed out stay valid; records do not."""
        self.slices = _ClosedSlices(self.name)
        self.buffer = self.view = self.sample_reader = None
        self.sample_readers = {}
        if self.source is not None:
            self.source.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return type(self.slices) is _ClosedSlices
