"""Where the bytes of a channel are until somebody asks for them: an entry, or entries of several files."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from shard_format._layout import COMPRESSED
from shard_format.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shard_format import ShardReader, ShardWriter
    from shard_format._part_reader import PartReader

__all__ = ["ArrayBlock", "Block", "ChainedBlock", "FileBlock", "StoredBlock"]

# Memory below this may be made for a size that turns out to be a lie.
_LARGE = 1 << 16


class Block(Protocol):
    """Bytes of known size that can be had as arrays, all or some."""

    @property
    def name(self) -> str:
        """The entry, for errors to name."""
        ...

    @property
    def nbytes(self) -> int:
        """Its size, uncompressed."""
        ...

    @property
    def path(self) -> str | None:
        """The file it is in, for errors to name."""
        ...

    @property
    def is_compressed(self) -> bool:
        """Whether reading makes new memory instead of a view."""
        ...

    @property
    def is_cut_cheaply(self) -> bool:
        """Whether a part can be had without decoding the whole."""
        ...

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """All of it, checked; a read-only view where that is possible."""
        ...

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        """As many bytes as the shape needs from byte `start` on."""
        ...

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        """Fills `out` with the bytes from `start` on."""
        ...


class StoredBlock(Block, Protocol):
    """A block that can be copied as it is stored."""

    def can_be_copied(self, identity: bool) -> bool:
        """Whether it can, into a file that carries an identity or one that does not."""
        ...

    def copy_to(self, writer: ShardWriter, content_type: int) -> None:
        """Copies it into a file under the same name."""
        ...


class _FileBlockFields(NamedTuple):
    reader: ShardReader
    name: str
    number: int
    """Its row in the index."""
    nbytes: int


class FileBlock(_FileBlockFields):
    """One entry of a container."""

    # A tuple, because opening an episode makes many of them. Has a dictionary only if a part is asked for.
    _known_parts: PartReader | None

    @classmethod
    def of(cls, reader: ShardReader, name: str) -> FileBlock:
        """The entry of that name."""
        number = reader.row_of(name)
        return file_block((reader, name, number, reader.index_row(number).orig_size))

    @cached_property
    def is_compressed(self) -> bool:
        return self.reader.index_row(self.number).flags & COMPRESSED == COMPRESSED

    @property
    def path(self) -> str | None:
        return self.reader.name

    @property
    def is_cut_cheaply(self) -> bool:
        return not self.is_compressed or self._parts is not None

    @property
    def _parts(self) -> PartReader | None:
        # Not set before it is needed: files have many blocks, and few of them are cut.
        try:
            return self._known_parts
        except AttributeError:
            self._known_parts = self.reader.part_reader(self.name) if self.is_compressed else None
            return self._known_parts

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        if self.nbytes == 0:
            return _empty(dtype, shape)
        content = self.reader.memory(self.name, self.number)
        if content is not None:
            return np.ndarray(shape, dtype, content)
        self.check_sizes()
        out = np.empty(shape, dtype)
        self.reader.read_into(self.name, out)
        return out

    def check_sizes(self) -> None:
        """Refuses a size that the entry merely claims, before memory is made for it."""
        if self.nbytes >= _LARGE:
            self.reader.check_sizes(self.name)

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        count = prod(shape)
        if not count:
            return _empty(dtype, shape)
        if not self.is_compressed and self.reader.can_view:
            view = self.reader.view(self.name)
            return np.frombuffer(view, dtype, count, start).reshape(shape)
        first, stop = start, start + count * dtype.itemsize
        if self._parts is not None:
            first, stop = self._whole_frames(self._parts, start, stop, dtype.itemsize)
        self.check_sizes()
        whole = np.empty(stop - first, np.uint8)
        self.read_into(first, whole)
        wanted = whole[start - first : start - first + count * dtype.itemsize]
        return wanted.view(dtype).reshape(shape)

    @staticmethod
    def _whole_frames(parts: PartReader, start: int, stop: int, itemsize: int) -> tuple[int, int]:
        """The range that the frames of a range make up, unless that is much larger.

        What is decoded anyway need not be copied out of where it was decoded.
        """
        first, end = parts.whole_frames(start, stop)
        if end - first > 2 * (stop - start) or (start - first) % itemsize:
            return start, stop
        return first, end

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        if not out.nbytes:
            return
        parts = self._parts
        if parts is not None:
            parts.read_into(start, out.data)
        else:
            self.reader.read_into(self.name, out, start=start, stop=start + out.nbytes)

    def can_be_copied(self, identity: bool) -> bool:
        return True

    def copy_to(self, writer: ShardWriter, content_type: int) -> None:
        writer.copy_entry(self.reader, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (file_block, (tuple(self),))


file_block: Callable[[tuple[ShardReader, str, int, int]], FileBlock] = partial(
    tuple.__new__, FileBlock
)
"""A block from its reader, name, row number and size, without a call in Python."""


class ArrayBlock:
    """An array in memory, as a block beside others that are in files."""

    __slots__ = ("_flat", "name", "nbytes")

    path = None
    is_compressed = False
    is_cut_cheaply = True

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self.name = name
        self.nbytes = array.nbytes
        self._flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return self.part(dtype, shape, 0)

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        stop = start + prod(shape) * dtype.itemsize
        return self._flat[start:stop].view(dtype).reshape(shape)

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        out[:] = self._flat[start : start + len(out)]


class ChainedBlock:
    """The blocks of consecutive chunks, one after the other as if they were one."""

    __slots__ = ("_ends", "_parts", "name", "nbytes")

    def __init__(
        self, name: str, parts: Sequence[Block], sizes: Sequence[int] | None = None
    ) -> None:
        """`sizes`: how many bytes of each part count, from its start; all if left out."""
        self.name = name
        counted = [part.nbytes for part in parts] if sizes is None else sizes
        filled = [(part, size) for part, size in zip(parts, counted, strict=True) if size]
        self._parts = [part for part, _ in filled]
        self._ends = list(accumulate(size for _, size in filled))
        self.nbytes = self._ends[-1] if self._ends else 0

    @property
    def path(self) -> str | None:
        return self._parts[0].path if self._parts else None

    @property
    def is_compressed(self) -> bool:
        # Even raw parts are in different files: only copying makes one array of them.
        return True

    @property
    def is_cut_cheaply(self) -> bool:
        # At worst the chunks that a window touches are decoded, never all of them.
        return len(self._parts) > 1 or all(part.is_cut_cheaply for part in self._parts)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        if len(self._parts) == 1 and self._parts[0].nbytes == self.nbytes:
            return self._parts[0].array(dtype, shape)
        self._check_sizes()
        out = np.empty(shape, dtype)
        flat = out.reshape(-1).view(np.uint8)
        start = 0
        for part, end in zip(self._parts, self._ends, strict=True):
            part.read_into(0, flat[start:end])
            start = end
        return out

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        number = bisect_right(self._ends, start)
        first = self._ends[number - 1] if number else 0
        nbytes = prod(shape) * dtype.itemsize
        if nbytes and start + nbytes <= self._ends[number]:
            return self._parts[number].part(dtype, shape, start - first)
        self._check_sizes()
        out = np.empty(shape, dtype)
        self.read_into(start, out.reshape(-1).view(np.uint8))
        return out

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        number = bisect_right(self._ends, start)
        done = 0
        while done < len(out):
            first = self._ends[number - 1] if number else 0
            inside = start + done - first
            count = min(len(out) - done, self._ends[number] - start - done)
            self._parts[number].read_into(inside, out[done : done + count])
            done += count
            number += 1

    def _check_sizes(self) -> None:
        for part in self._parts:
            if isinstance(part, FileBlock):
                part.check_sizes()

    def __getstate__(self) -> tuple[Any, ...]:
        starts = [0, *self._ends]
        return (self.name, self._parts, [end - start for start, end in pairwise(starts)])

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc] # the three arguments


def _empty(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        empty = np.empty(shape, dtype)
    except ValueError:  # without the 0 in it, it would be larger than any memory
        raise LimitExceeded(
            "a shape without elements is too large for an array", found=list(shape)
        ) from None
    empty.flags.writeable = False
    return empty
