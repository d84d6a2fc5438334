"""A part of another source as a source of its own: a file that lies inside a larger one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_format.errors import BadOffset, Closed
from shard_format.sources import (
    BytesSource,
    FileSource,
    _truncated,
    can_read_into,
    can_read_ranges,
    can_view,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shard_format.sources import ByteSource

__all__ = ["MappedSlice", "SliceSource", "slice_of"]


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
        if self._source is None:
            raise Closed("the file is closed", path=self.name)
        if offset < 0 or length > self._length - offset:
            raise _truncated(self.name, offset, length, max(0, self._length - max(0, offset)))
        return self._source, self._start + offset

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
        if self._source is None:
            raise Closed("the file is closed", path=self.name)
        assert can_read_ranges(self._source)
        return self._source.read_ranges(
            [(self._at(offset, length)[1], length) for offset, length in ranges]
        )


class MappedSlice(BytesSource):
    """A part of a file that somebody has mapped: no descriptor of its own, and views of that mapping.

    Pickles as the file and the place in it, not as the bytes.
    """

    def __init__(self, view: memoryview, location: str, start: int, name: str) -> None:
        super().__init__(view, name)
        self._place = (location, start, len(view))

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_slice, (*self._place, self.name)


def _open_slice(location: str, start: int, length: int, name: str) -> SliceSource:
    return slice_of(FileSource(location), start, length, name)
