"""Where the bytes of a channel are until you ask for them: an entry, or entries of several files."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from shard_format.errors import LimitExceeded
from shard_format.layout import COMPRESSED
from shard_format.parallel import one_at_a_time
from wshard._values import read_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import EllipsisType

    from numpy.typing import NDArray

    from shard_format import ShardReader, ShardWriter
    from shard_format.reader import PartReader

__all__ = ["ArrayBlock", "Block", "ChainedBlock", "Extra", "FileBlock", "StoredBlock"]

# Memory below this may be made for a size that turns out to be a lie.
_LARGE = 1 << 16


class Block(Protocol):
    """Bytes of known size that can be had as arrays, all or some."""

    @property
    def name(self) -> str:
        """The entry, for errors to name."""

    @property
    def nbytes(self) -> int:
        """Its size, uncompressed."""

    @property
    def path(self) -> str | None:
        """The file it is in, for errors to name."""

    @property
    def is_compressed(self) -> bool:
        """Whether reading makes new memory instead of a view."""

    @property
    def is_cut_cheaply(self) -> bool:
        """Whether a part can be had without decoding the whole."""

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """All of it, checked and read-only; a view where that is possible."""

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        """As many bytes as the shape needs from byte `start` on."""

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        """Fills `out` with the bytes from `start` on."""

    def pieces(self, most_bytes: int) -> Iterable[Any]:
        """All bytes, checked, in pieces of about `most_bytes`; a piece is valid until the next one."""


class StoredBlock(Block, Protocol):
    """A block that can be copied as it is stored."""

    def can_be_copied(self, identity: bool) -> bool:
        """Whether it can, into a file that carries an identity or one that does not."""

    def copy_to(self, writer: ShardWriter, content_type: int) -> None:
        """Copies it into a file under the same name."""


class _FileBlockFields(NamedTuple):
    reader: ShardReader
    name: str
    nbytes: int


class FileBlock(_FileBlockFields):
    """One entry of a container."""

    # A tuple, because opening an episode makes many of them. Has a dictionary only if a part is asked for.

    @classmethod
    def of(cls, reader: ShardReader, name: str) -> FileBlock:
        """The entry of that name."""
        return cls(reader, name, reader.row_of(name).orig_size)

    @cached_property
    def is_compressed(self) -> bool:
        return self.reader.row_of(self.name).flags & COMPRESSED == COMPRESSED

    @property
    def path(self) -> str | None:
        return self.reader.name

    @property
    def is_cut_cheaply(self) -> bool:
        return not self.is_compressed or self._parts is not None

    _known_parts: PartReader | EllipsisType | None = ...

    @property
    def _parts(self) -> PartReader | None:
        # A `cached_property` of Python 3.11 and older makes the threads of all files wait for each other.
        if self._known_parts is ...:
            with one_at_a_time((id(self), "parts")):
                if self._known_parts is ...:
                    is_seekable = self.is_compressed
                    self._known_parts = self.reader.part_reader(self.name) if is_seekable else None
        return self._known_parts

    def decoded_bytes(self, start: int, stop: int) -> int:
        """How many bytes are decoded to get a range."""
        if not self.is_compressed:
            return stop - start
        if self._parts is None:
            return self.nbytes
        first, end = self._parts.whole_frames(start, stop)
        return end - first

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        if self.nbytes == 0:
            if self.is_compressed:  # no bytes, but rules about them
                self.reader.read_entry(self.name)
            return _empty(dtype, shape)
        return np.ndarray(shape, dtype, self.reader.read_view(self.name))

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
            # What is decoded anyway need not be copied out of where it was decoded, unless it is much larger.
            begin, end = self._parts.whole_frames(start, stop)
            if end - begin <= 2 * (stop - start) and (start - begin) % dtype.itemsize == 0:
                first, stop = begin, end
        self.check_sizes()
        whole = np.empty(stop - first, np.uint8)
        self.read_into(first, whole)
        wanted = whole[start - first : start - first + count * dtype.itemsize]
        return wanted.view(dtype).reshape(shape)

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        if not out.nbytes:
            return
        parts = self._parts
        if parts is not None:
            parts.read_into(start, out.data)
        else:
            self.reader.read_into(self.name, out, start=start, stop=start + out.nbytes)

    def pieces(self, most_bytes: int) -> Iterable[Any]:
        return self.reader.iter_entry(self.name)

    def can_be_copied(self, identity: bool) -> bool:
        return True

    def copy_to(self, writer: ShardWriter, content_type: int) -> None:
        writer.copy_entry(self.reader, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (FileBlock, tuple(self))


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
        return read_only(self.part(dtype, shape, 0))

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        stop = start + prod(shape) * dtype.itemsize
        return self._flat[start:stop].view(dtype).reshape(shape)

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        out[:] = self._flat[start : start + len(out)]

    def pieces(self, most_bytes: int) -> Iterable[Any]:
        return [self._flat]


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
        return read_only(self.part(dtype, shape, 0))

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        number = bisect_right(self._ends, start)
        first = self._ends[number - 1] if number else 0
        nbytes = prod(shape) * dtype.itemsize
        if nbytes and start + nbytes <= self._ends[number]:
            return self._parts[number].part(dtype, shape, start - first)
        for part in self._parts:
            if isinstance(part, FileBlock):
                part.check_sizes()
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

    def file_blocks(self, start: int, stop: int) -> Iterator[tuple[FileBlock, int, int]]:
        """The entries that hold a range, and the range in each."""
        first = 0
        for part, end in zip(self._parts, self._ends, strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high and isinstance(part, FileBlock):
                yield part, low - first, high - first
            first = end

    def pieces(self, most_bytes: int) -> Iterable[Any]:
        for part in self._parts:
            if isinstance(part, FileBlock) and not part.is_compressed:
                # Parts of raw entries have no checksum of their own.
                part.reader.verify_entry(part.name)
        yield from pieces_of(self, most_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        sizes = [end - start for start, end in pairwise([0, *self._ends])]
        return (ChainedBlock, (self.name, self._parts, sizes))


class Extra:
    """An entry that the format does not define: kept as it is. `bytes(extra)` reads it."""

    __slots__ = ("_block", "_data", "content_type", "name", "tag_bits")

    def __init__(
        self,
        name: str,
        data: bytes | None = None,
        *,
        block: Block | None = None,
        content_type: int = 0,
        tag_bits: int = 0,
    ) -> None:
        self.name = name
        self.content_type = content_type
        self.tag_bits = tag_bits
        self._block = block or ArrayBlock(name, np.frombuffer(data or b"", np.uint8))
        self._data: NDArray[np.uint8] | None = None

    @property
    def nbytes(self) -> int:
        """Its size, uncompressed."""
        return self._block.nbytes

    @property
    def stored(self) -> FileBlock | None:
        """The entry in a file that still holds it unchanged, or None."""
        return self._block if isinstance(self._block, FileBlock) else None

    @property
    def data(self) -> NDArray[np.uint8]:
        """Its bytes, as an array; a view of the file where possible."""
        if self._data is None:
            self._data = self._block.array(np.dtype(np.uint8), (self.nbytes,))
        return self._data

    def __bytes__(self) -> bytes:
        return self.data.tobytes()

    def __len__(self) -> int:
        return self.nbytes

    def clone(self) -> Extra:
        """A copy in memory."""
        return Extra(self.name, bytes(self), content_type=self.content_type, tag_bits=self.tag_bits)

    def __repr__(self) -> str:
        return f"<Extra {self.name!r}: {self.nbytes} bytes>"


def storage_of(block: Block | None) -> tuple[str, int] | None:
    """The codec of a block and its bytes in files; None if it is not an entry of a file.

    Raises:
        ShardError: the codec is unknown.
    """
    if isinstance(block, FileBlock):
        info = block.reader.info(block.name)
        return info.codec.label, info.disk_size
    if isinstance(block, ChainedBlock):
        found = [storage_of(part) for part, _, _ in block.file_blocks(0, block.nbytes)]
        known = [one for one in found if one is not None]
        if known:
            codecs = dict.fromkeys(codec for codec, _ in known)
            return "+".join(codecs), sum(stored for _, stored in known)
    return None


def decoded_bytes(block: Block, start: int, stop: int) -> int:
    """How many bytes are decoded to get a range of a block."""
    if isinstance(block, FileBlock):
        return block.decoded_bytes(start, stop)
    if isinstance(block, ChainedBlock):
        return sum(
            part.decoded_bytes(first, end) for part, first, end in block.file_blocks(start, stop)
        )
    return stop - start if block.is_cut_cheaply else block.nbytes


def pieces_of(block: Block, most_bytes: int) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a block in pieces, all of them in the same memory."""
    room = np.empty(min(most_bytes, block.nbytes), np.uint8)
    for start in range(0, block.nbytes, most_bytes):
        piece = room[: min(most_bytes, block.nbytes - start)]
        block.read_into(start, piece)
        yield piece


def _empty(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        empty = np.empty(shape, dtype)
    except ValueError:  # without the 0 in it, it would be larger than any memory
        raise LimitExceeded(
            "a shape without elements is too large for an array", found=list(shape)
        ) from None
    return read_only(empty)
