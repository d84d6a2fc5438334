"""What callers hand to a writer: names, data and frame sizes, checked and turned into bytes.

`shardpack` writes with these, too.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from xxhash import xxh64_intdigest

from shard_format.errors import InvalidArgument, LimitExceeded
from shard_format.filters import LARGEST_FRAME
from shard_format.layout import Codec
from shard_format.seekable import LARGEST_FRAME_CONTENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from shard_format.codecs import Compression
    from shard_format.filters import Filters
    from shard_format.registry import Limits
    from shard_format.sources import BytesLike

Item = TypeVar("Item")

LONGEST_NAME: Final = 65_535


class IterableFailed(Exception):
    """What the caller's iterable raised is the cause."""


def encode_name(name: str) -> bytes:
    if not isinstance(name, str):
        raise InvalidArgument("a name is not a string", found=type(name).__name__, rule="S-NAM-6")
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(
            "a name holds a lone surrogate, which UTF-8 cannot store",
            found=ascii(name),
            rule="S-NAM-3",
        ) from None
    if not encoded:
        raise InvalidArgument("a name is empty", rule="S-NAM-6")
    if len(encoded) > LONGEST_NAME:
        raise InvalidArgument(
            "a name is too long",
            entry=name,
            expected=f"at most {LONGEST_NAME} bytes of UTF-8",
            found=f"{len(encoded)} bytes",
            rule="S-NAM-6",
        )
    if b"\0" in encoded:
        raise InvalidArgument("a name holds the character U+0000", entry=name, rule="S-NAM-6")
    return encoded


def as_bytes(name: str, data: BytesLike) -> memoryview:
    """The data as plain bytes, without a copy unless an array is not in C order."""
    if isinstance(data, np.ndarray):
        if data.dtype.hasobject:
            raise InvalidArgument(
                "an array of Python objects cannot be stored",
                entry=name,
                found=f"dtype {data.dtype}",
            )
        # Through uint8: the buffer protocol knows neither bfloat16 nor datetime64.
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        return flat.data
    if isinstance(data, str):
        raise InvalidArgument(
            "text is not bytes", entry=name, hint="encode it first: text.encode()"
        )
    try:
        view = memoryview(data)
    except TypeError:
        raise InvalidArgument(
            "this object has no bytes",
            entry=name,
            expected="bytes, a memoryview or an array",
            found=type(data).__name__,
        ) from None
    if not view.nbytes:
        return memoryview(b"")
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def next_or_none(iterator: Iterator[Item]) -> Item | None:
    """The next one, None at the end; an error of the iterable is told apart from one of the disk."""
    try:
        return next(iterator, None)
    except Exception as error:
        raise IterableFailed from error


def iter_views(name: str, chunks: Iterable[BytesLike]) -> Iterator[memoryview]:
    """The chunks as bytes; an error of the iterable is told apart from one of the disk."""
    iterator = iter(chunks)
    while True:
        try:
            chunk = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            raise IterableFailed from error
        yield as_bytes(name, chunk)


def row_bytes(data: BytesLike) -> int:
    """Bytes of one step along the first axis of an array; 1 for plain bytes."""
    if isinstance(data, np.ndarray) and data.ndim and data.size:
        return int(data.nbytes // data.shape[0])
    return 1


def check_frame_bytes(
    name: str, frame_bytes: int, row_bytes: int, compression: Compression
) -> None:
    if compression.codec is not Codec.ZSTD:
        raise InvalidArgument(
            "only zstd entries can be seekable",
            entry=name,
            expected="compression='zstd' together with frame_bytes",
            found=f"compression={str(compression)!r}",
        )
    if not 0 < frame_bytes <= LARGEST_FRAME_CONTENT:
        raise InvalidArgument(
            "frame_bytes out of range",
            entry=name,
            expected=f"1 to {LARGEST_FRAME_CONTENT}",
            found=frame_bytes,
        )
    if frame_bytes % row_bytes:
        raise InvalidArgument(
            "frame_bytes would cut the array inside a row",
            entry=name,
            expected=f"a multiple of {row_bytes}, such as {-(-frame_bytes // row_bytes) * row_bytes}",
            found=frame_bytes,
        )


def check_filters(
    name: str, filters: Filters, size: int, frame_bytes: int | None, compression: Compression
) -> None:
    if compression.codec is not Codec.ZSTD:
        raise InvalidArgument(
            "only zstd entries can be filtered",
            entry=name,
            expected="compression='zstd' together with filters",
            found=f"compression={str(compression)!r}",
            rule="S-FLT-1",
        )
    for what, value in (("frame_bytes", frame_bytes or 0), ("the entry's size", size)):
        if value % filters.unit:
            raise InvalidArgument(
                f"{what} does not fit the filters",
                entry=name,
                expected=f"a multiple of {filters.unit}",
                found=value,
                rule="S-FLT-5",
            )
    largest = size if frame_bytes is None else min(size, frame_bytes)
    if largest > LARGEST_FRAME:
        raise InvalidArgument(
            "a filtered frame would be too large",
            entry=name,
            expected=f"at most {LARGEST_FRAME} bytes",
            found=f"{largest} bytes",
            rule="S-FLT-5",
            hint="pass a smaller frame_bytes",
        )


def check_decompressed_size(path: str, name: str, size: int, limits: Limits) -> None:
    """Refuses a compressed entry that readers with these limits would refuse."""
    if size > limits.max_decompressed_bytes:
        raise LimitExceeded(
            "a compressed entry of this size would be refused by readers",
            path=path,
            entry=name,
            expected=f"at most {limits.max_decompressed_bytes} bytes",
            found=f"{size} bytes",
            rule="S-CMP-2",
            hint="write it with compression='none', split it, or raise "
            "limits=Limits(max_decompressed_bytes=…) here and in readers",
            command="use --compression none",
        )


def regroup(views: Iterator[memoryview], size: int) -> Iterator[memoryview]:
    """The same bytes in pieces of `size`, the last one shorter; each in memory of its own."""
    piece = bytearray()
    for view in views:
        while len(view):
            taken = view[: size - len(piece)]
            piece += taken
            view = view[len(taken) :]
            if len(piece) == size:
                yield memoryview(piece)
                piece = bytearray()
    if piece:
        yield memoryview(piece)


# Hashes that a `NameSet` keeps in a Python set before it sorts them in.
_RECENT = 1 << 16


class NameSet:
    """A set of name hashes: recent ones in a Python set, the others in one sorted array.

    A Python set of ten million hashes would take 700 MB; this takes 80.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._older: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._older_values: memoryview = self._older.data

    def add(self, name: bytes, names_with_hash: Callable[[int], Iterable[bytes]]) -> bool:
        """Adds a name; False if it was there.

        `names_with_hash` is asked for the names behind a hash that occurs twice: hashes collide.
        """
        name_hash = xxh64_intdigest(name)
        if self.contains_hash(name_hash) and name in names_with_hash(name_hash):
            return False
        self.add_hash(name_hash)
        return True

    def add_hash(self, name_hash: int) -> None:
        """Adds a name of which only the hash is known."""
        self._recent.add(name_hash)
        if len(self._recent) >= _RECENT:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._replace_older(recent)
            self._recent.clear()

    def add_hashes(self, hashes: NDArray[np.uint64]) -> None:
        """Adds many names at once, of which only the hashes are known."""
        self._replace_older(hashes)

    def contains_hash(self, name_hash: int) -> bool:
        """Whether a name with this hash was added."""
        if name_hash in self._recent:
            return True
        older = self._older_values
        # One at a time, this is faster than NumPy's search.
        at = bisect_left(older, name_hash)
        return at < len(older) and older[at] == name_hash

    def _replace_older(self, more: NDArray[np.uint64]) -> None:
        self._older = np.concatenate((self._older, more))
        self._older.sort()
        self._older_values = self._older.data
