"""The hot inner loops: plain functions over buffers, and nothing above this module does their work itself.

Everything here takes bytes, memoryviews or arrays and returns numbers, bytes or arrays; nothing knows of files, names
or entries. It is written once, with NumPy and the codec libraries. A compiled module can replace it function by
function:

- checksums: `crc32c`, `combine_crc32c`, `crc32c_of_large`
- names: `hash_names`, `load_words`
- zstd: `iter_frames`, `frame_header`, `frame_checksum`, `decode_frame_into`, `iter_frame`, `expand`,
  `compress_in_blocks`; `shard_format.zstd` has what they share with others
- lz4: `decode_lz4_into`, `compress_lz4`
- filters: `apply_delta`, `undo_delta`, `undo_delta_part`, `apply_planes`, `undo_planes`
- memory: `filled_bytes`

The zstd libraries decode only the first of several frames, ignore what follows, and trust a frame's word about its size. So
the frames are found here first, by their headers and the three-byte headers of their blocks (RFC 8878, section 3), and
each is decoded alone into memory of a known size.
"""

from __future__ import annotations

import contextlib
import io
import struct
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import cramjam
import numpy as np
from fastcrc import crc32 as _crc32
from xxhash import xxh64_intdigest

from shard_format import zstd
from shard_format.errors import BadCompression, ChecksumMismatch, LimitExceeded, SizeMismatch
from shard_format.parallel import map_in_order, thread_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    U64 = NDArray[np.uint64]

# --- memory


# The garbage collector of Python 3.12 frees what a BytesIO has lent although a traceback still holds it, and crashes.
_MUST_COPY: Final = sys.version_info[:2] == (3, 12)


def filled_bytes(size: int, fill: Callable[[memoryview], None]) -> bytes:
    """New bytes whose content `fill` writes, without a copy at the end.

    A BytesIO takes over a bytes object with no other reference, lends it out writable, and hands it back. The memory
    comes zeroed from the system, page by page, as it is touched: a size that a file only claims costs nothing.
    """
    if _MUST_COPY:
        memory = bytearray(size)
        fill(memoryview(memory))
        return bytes(memory)
    owner = _Owner(bytes(size))
    with owner.getbuffer() as view:
        fill(view)
    return owner.getvalue()


class _Owner(io.BytesIO):
    """A BytesIO that can be dropped while a traceback still holds slices of its memory."""

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            super().close()


# --- checksums

# Polynomials over GF(2) are kept bit-reversed, as the checksum is: the highest bit is x^0.
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31
# A checksum runs at tens of gigabytes a second: a thread must be worth starting.
CRC_BYTES_PER_THREAD: Final = 4 << 20

# The function itself: a call more would cost as much as the checksum of a small entry.
crc32c = _crc32.iscsi
"""CRC-32C of the data; pass the previous result as `initial` to go on."""


def combine_crc32c(first: int, second: int, second_length: int) -> int:
    """The CRC of two pieces of data together, from the CRC of each.

    With it, threads check their part of an entry while it is still in the processor's cache.
    """
    return _multiply(_shift(second_length), first) ^ second


@lru_cache(maxsize=64)
def _shift(length: int) -> int:
    """x to the power of 8 × length, modulo the polynomial: the effect of that many more bytes on a CRC."""
    result, square = _ONE, _ONE >> 8  # x^0 and x^8
    while length:
        if length & 1:
            result = _multiply(square, result)
        square = _multiply(square, square)
        length >>= 1
    return result


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials modulo the CRC's."""
    product = 0
    bit = _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def crc32c_of_large(data: bytes | memoryview, threads: int | None) -> int:
    """CRC-32C of any amount of data, on several processors if it is large."""
    workers = thread_count(threads, len(data), CRC_BYTES_PER_THREAD)
    if workers == 1:
        return crc32c(data)
    view = memoryview(data)
    step = -(-len(view) // workers)
    parts = [view[start : start + step] for start in range(0, len(view), step)]
    total = 0
    for part, checksum in zip(parts, map_in_order(parts, crc32c, workers), strict=True):
        total = combine_crc32c(total, checksum, len(part))
    return total


# --- names

# Bytes that must follow the last name in the buffer, so that whole words can be loaded anywhere.
WORD_PADDING: Final = 8

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_M64 = (1 << 64) - 1

_SMALLEST_GROUP = 64
_LONGEST_NAME = 256
# 128 KiB for a column: the temporary arrays stay in the second-level cache.
_BLOCK = 16_384


def load_words(table: NDArray[np.uint8], positions: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    """The little-endian integers at any byte positions of the table, as a new array of uint64."""
    width = np.dtype(dtype).itemsize
    # A view with a stride of one byte: NumPy gathers unaligned words from it in one pass.
    everywhere: NDArray[Any] = np.ndarray((table.size - width + 1,), dtype, table, 0, (1,))
    return everywhere[positions].astype(np.uint64, copy=False)


class _Names:
    """Loads words of names of one length.

    Names of one length usually follow one another at one distance: then a strided view does what
    a gather would, several times faster.
    """

    def __init__(self, table: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._table = table
        self._offsets = offsets
        self.count = offsets.size
        self._stride = int(offsets[1] - offsets[0]) if offsets.size > 1 else 0
        self._regular = self._stride > 0 and bool((np.diff(offsets) == self._stride).all())

    def words(self, position: int, dtype: str) -> U64:
        """A new array: the word at this position of each name."""
        if not self._regular:
            return load_words(self._table, self._offsets + position, dtype)
        start = int(self._offsets[0]) + position
        view: NDArray[Any] = np.ndarray((self.count,), dtype, self._table, start, (self._stride,))
        return view.astype(np.uint64)


def hash_names(
    table: NDArray[np.uint8], offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> U64:
    """XXH64, seed 0, of every name `table[offset : offset + length]`.

    The table must go on for `WORD_PADDING` bytes after the end of the last name.
    """
    hashes = np.empty(offsets.size, np.uint64)
    if not offsets.size:
        return hashes
    length = int(lengths[0])
    if bool((lengths == length).all()):
        # The usual case in large files, such as numbered samples: nothing to sort.
        _hash_group(table, offsets, length, hashes)
        return hashes
    by_length = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[by_length]
    starts = np.flatnonzero(np.diff(sorted_lengths, prepend=-1))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), offsets.size], strict=True):
        rows = by_length[start:stop]
        group = np.empty(stop - start, np.uint64)
        _hash_group(table, offsets[rows], int(sorted_lengths[start]), group)
        hashes[rows] = group
    return hashes


def _hash_group(
    table: NDArray[np.uint8], offsets: NDArray[np.int64], length: int, hashes: U64
) -> None:
    """Fills in the hashes of names that all have the same length."""
    if offsets.size < _SMALLEST_GROUP or length > _LONGEST_NAME:
        data = table.data
        hashes[:] = [xxh64_intdigest(data[at : at + length]) for at in offsets.tolist()]
        return

    for start in range(0, offsets.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        hashes[block] = _hash_equal_lengths(_Names(table, offsets[block]), length)


def _rotate(value: U64, bits: int) -> U64:
    """Rotates in place."""
    spilled = value >> np.uint64(64 - bits)
    value <<= np.uint64(bits)
    value |= spilled
    return value


def _round(word: U64, accumulator: U64 | None = None) -> U64:
    """Works in place on the word; without an accumulator that is zero."""
    word *= _P2
    if accumulator is not None:
        word += accumulator
    word = _rotate(word, 31)
    word *= _P1
    return word


def _stir(hashes: U64, word: U64, bits: int, factor: np.uint64, summand: np.uint64) -> None:
    hashes ^= word
    _rotate(hashes, bits)
    hashes *= factor
    hashes += summand


def _hash_equal_lengths(names: _Names, length: int) -> U64:
    def constant(value: int) -> U64:
        return np.full(names.count, value & _M64, np.uint64)

    position = 0
    if length >= 32:
        lanes = [
            constant(int(_P1) + int(_P2)),
            constant(int(_P2)),
            constant(0),
            constant(-int(_P1)),
        ]
        while length - position >= 32:
            for lane in range(4):
                words = names.words(position + 8 * lane, "<u8")
                lanes[lane] = _round(words, lanes[lane])
            position += 32
        hashes = constant(0)
        for lane_value, bits in zip(lanes, (1, 7, 12, 18), strict=True):
            hashes += _rotate(lane_value.copy(), bits)
        for lane_value in lanes:
            hashes ^= _round(lane_value)
            hashes *= _P1
            hashes += _P4
    else:
        hashes = constant(int(_P5))
    hashes += np.uint64(length)
    while length - position >= 8:
        words = names.words(position, "<u8")
        _stir(hashes, _round(words), 27, _P1, _P4)
        position += 8
    if length - position >= 4:
        words = names.words(position, "<u4")
        words *= _P1
        _stir(hashes, words, 23, _P2, _P3)
        position += 4
    while position < length:
        words = names.words(position, "u1")
        words *= _P5
        _stir(hashes, words, 11, _P1, np.uint64(0))
        position += 1
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes


# --- zstd

# No zstd block of four stored bytes yields more than 128 KiB (S-CMP-8).
LARGEST_EXPANSION: Final = 32_768

_FRAME_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50
_DICTIONARY_ID_SIZES = (0, 1, 2, 4)
# By the descriptor, the fifth byte: magic and descriptor, window, dictionary, content size.
_HEADER_SIZES = tuple(
    5
    + (not descriptor & 0x20)
    + _DICTIONARY_ID_SIZES[descriptor & 3]
    + ((0, 2, 4, 8)[descriptor >> 6] or bool(descriptor & 0x20))
    for descriptor in range(256)
)
_PIECE = 1 << 22
# Bytes of the shortest match that an encoder can be told to look for.
_LONGEST_MINIMUM = 7
_FOUR_BYTES = struct.Struct("<I")


class Frame(NamedTuple):
    """One zstd frame inside stored bytes, and what its header says."""

    start: int
    stop: int
    content_size: int | None
    has_checksum: bool


def iter_frames(stored: bytes | memoryview, largest_window: int) -> Iterator[Frame]:
    """The frames that hold content, in order; skippable frames are passed over.

    Raises `BadCompression` when the bytes are not a run of complete frames, and `LimitExceeded` for a
    window above the limit.
    """
    end = len(stored)
    position = 0
    while position < end:
        magic = int.from_bytes(stored[position : position + 4], "little")
        if magic == _FRAME_MAGIC:
            frame = _walk_frame(stored, position, largest_window)
            yield frame
            position = frame.stop
        elif magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC and end - position >= 8:
            position += 8 + int.from_bytes(stored[position + 4 : position + 8], "little")
            if position > end:
                raise _incomplete("a skippable frame")
        else:
            raise BadCompression(
                "no zstd frame where one must start",
                expected=f"the frame magic at stored byte {position} of {end}",
                found=bytes(stored[position : position + 4]).hex(" ") or "nothing",
                rule="S-CMP-5",
            )


def frame_header(stored: bytes | memoryview, largest_window: int) -> Frame:
    """The frame that all of these bytes should be, from its header alone.

    For frames that a seek table has cut out: `decode_frame_into` notices if there is more than one.
    """
    if int.from_bytes(stored[:4], "little") != _FRAME_MAGIC:
        raise BadCompression("no zstd frame where one must start", rule="S-CMP-5")
    content_size, has_checksum, _ = _read_header(stored, 0, largest_window)
    return Frame(0, len(stored), content_size, has_checksum)


def _incomplete(what: str) -> BadCompression:
    return BadCompression(f"{what} is incomplete", rule="S-CMP-4")


def _read_header(
    stored: bytes | memoryview, start: int, largest_window: int
) -> tuple[int | None, bool, int]:
    """The content size, whether a checksum follows the blocks, and the bytes of the header."""
    if len(stored) - start < 9:  # magic, descriptor, one more header byte, one block header
        raise _incomplete("a zstd frame")
    size = _HEADER_SIZES[stored[start + 4]]
    return *_parse_header(bytes(stored[start : start + size]), largest_window), size


@lru_cache(maxsize=256)
def _parse_header(header: bytes, largest_window: int) -> tuple[int | None, bool]:
    # Kept, because most frames of an entry have the same header: half the time that a small frame takes.
    descriptor = header[4]
    position = 5
    single_segment = bool(descriptor & 0x20)
    if descriptor & 0x08:
        raise BadCompression("a reserved bit of a zstd frame header is set", rule="S-CMP-4")
    window_size = 0
    if not single_segment:
        window_descriptor = header[position]
        position += 1
        base = 1 << (10 + (window_descriptor >> 3))
        window_size = base + (base >> 3) * (window_descriptor & 7)
    dictionary_size = _DICTIONARY_ID_SIZES[descriptor & 3]
    if any(header[position : position + dictionary_size]):
        raise BadCompression("a zstd frame needs a dictionary", rule="S-CMP-6")
    position += dictionary_size
    size_bytes = header[position:]
    content_size: int | None = None
    if size_bytes:
        content_size = int.from_bytes(size_bytes, "little")
        content_size += 256 if len(size_bytes) == 2 else 0
    if single_segment:
        window_size = content_size or 0
    if window_size > largest_window:
        raise LimitExceeded(
            "a zstd frame needs a window that is too large",
            expected=f"at most {largest_window} bytes",
            found=f"{window_size} bytes",
            rule="S-CMP-7",
        )
    return content_size, bool(descriptor & 0x04)


def _walk_frame(stored: bytes | memoryview, start: int, largest_window: int) -> Frame:
    end = len(stored)
    content_size, has_checksum, header_size = _read_header(stored, start, largest_window)
    position = start + header_size
    last = 0
    while not last:
        # Four bytes at once are three times as fast as a slice; the fourth is not looked at.
        if position + 4 <= end:
            (block,) = _FOUR_BYTES.unpack_from(stored, position)
        else:
            block = int.from_bytes(stored[position:end], "little")
        last = block & 1
        kind = block & 6
        if kind == 6:
            raise BadCompression("a zstd block has the reserved type", rule="S-CMP-4")
        position += 3 + (1 if kind == 2 else (block & 0xFFFFFF) >> 3)
        # Also catches a block header that was cut: missing bytes read as zero.
        if position > end:
            raise _incomplete("a zstd frame")
    if has_checksum:
        position += 4
        if position > end:
            raise _incomplete("a zstd frame")
    return Frame(start, position, content_size, has_checksum)


def frame_checksum(stored: bytes | memoryview, frame: Frame) -> int | None:
    """The checksum at the end of a frame: the low half of the XXH64 of its content. None if the frame has none."""
    if not frame.has_checksum:
        return None
    checksum: int = _FOUR_BYTES.unpack_from(stored, frame.stop - 4)[0]
    return checksum


def decode_frame_into(stored: bytes | memoryview, frame: Frame, out: memoryview) -> int:
    """Decodes one frame to the start of `out` and returns how many bytes came out.

    Raises `SizeMismatch` if the frame holds more than `out` takes or a different number than it declares,
    `ChecksumMismatch` if its own checksum does not match, and `BadCompression` for anything else.
    """
    _check_declared(frame, len(out))
    try:
        count = zstd.decode_into(memoryview(stored)[frame.start : frame.stop], out)
    except zstd.ZstdError as error:
        raise _failure(error) from None
    if count > len(out):
        raise _too_long(f"more than {len(out)} bytes", len(out))
    if frame.content_size is not None and count != frame.content_size:
        raise SizeMismatch(
            "a zstd frame is shorter than it declares",
            expected=f"{frame.content_size} bytes",
            found=f"{count} bytes",
            rule="S-CMP-3",
        )
    return count


def iter_frame(stored: bytes | memoryview, frame: Frame, at_most: int) -> Iterator[bytes]:
    """The content of one frame in pieces of up to 4 MiB, so that a large one needs little memory."""
    _check_declared(frame, at_most)
    reader = zstd.open_reader(memoryview(stored)[frame.start : frame.stop])
    piece_size = _PIECE if frame.content_size is None else min(_PIECE, frame.content_size + 1)
    done = 0
    while True:
        try:
            piece = reader.read(piece_size)
        except zstd.ZstdError as error:
            raise _failure(error) from None
        if not piece:
            break
        done += len(piece)
        if done > at_most:
            raise _too_long(f"more than {at_most} bytes", at_most)
        yield piece


def expand(pieces: Iterator[bytes | memoryview], piece_bytes: int) -> Iterator[bytes]:
    """The content behind zstd frames that this process wrote itself and has in pieces of any size."""
    reader = zstd.open_reader(cast("Any", _PieceReader(pieces)))
    while piece := reader.read(piece_bytes):
        yield piece


class _PieceReader(io.RawIOBase):
    """A file over an iterator of pieces, for decoders that want to read."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces = pieces

    def read(self, size: int = -1) -> bytes:
        # The decoder asks for a size but takes any piece; only the end may be empty.
        return bytes(next(self._pieces, b""))


def compress_in_blocks(parts: Sequence[memoryview], level: int, *, of_noise: bool) -> bytes:
    """One frame with content size and checksum, in which each part starts a new block.

    Noise has few matches that are worth it. At the fastest level only matches of 7 bytes are looked for, which is
    faster to write and to read, and no larger.
    """
    shortest = _LONGEST_MINIMUM if of_noise and level == 1 else None
    return zstd.compress_blocks(parts, level, shortest_match=shortest)


def _check_declared(frame: Frame, at_most: int) -> None:
    if frame.content_size is not None and frame.content_size > at_most:
        raise _too_long(f"{frame.content_size} bytes declared", at_most)


def _too_long(found: str, at_most: int) -> SizeMismatch:
    return SizeMismatch(
        "a zstd frame holds more than the index says",
        expected=f"at most {at_most} bytes",
        found=found,
        rule="S-CMP-3",
    )


def _failure(error: Exception) -> BadCompression | ChecksumMismatch:
    if "checksum" in str(error):
        return ChecksumMismatch("the checksum of a zstd frame does not match", rule="S-CMP-4")
    return BadCompression(f"zstd cannot decode it: {error}", rule="S-CMP-4")


# --- lz4

# How far beyond the expected size a failed block is decoded again to tell "longer" from "broken".
_LZ4_SLACK = 1 << 16


def compress_lz4(data: memoryview) -> bytes:
    """One lz4 block without a size in front."""
    # Without a level: cramjam takes one and ignores it (2.14).
    return bytes(cramjam.lz4.compress_block(data, store_size=False))


def decode_lz4_into(stored: bytes | memoryview, out: memoryview) -> int:
    """Decodes one lz4 block and returns how many bytes it holds, which may be more than `out` takes."""
    try:
        count = int(cramjam.lz4.decompress_block_into(stored, out))
        # cramjam takes a first word that could be the size of the content for just that.
        starts_with_size = len(stored) > 4 and int.from_bytes(stored[:4], "little") == count
        return _decode_plain_lz4_into(stored, out) if starts_with_size else count
    except cramjam.DecompressionError as error:
        # A block that goes on after the expected end fails like a broken one. Look again with some room, so that
        # the message tells the user which of the two it is.
        room = np.empty(len(out) + _LZ4_SLACK, np.uint8)
        try:
            return int(cramjam.lz4.decompress_block_into(stored, room.data))
        except cramjam.DecompressionError:
            raise BadCompression(f"lz4 cannot decode it: {error}", rule="S-CMP-4") from None


def _decode_plain_lz4_into(stored: bytes | memoryview, out: memoryview) -> int:
    """As `decode_lz4_into`, slowly: the first word is certainly read as a part of the block."""
    try:
        out[:] = cramjam.lz4.decompress_block(stored, output_len=len(out))
    except cramjam.DecompressionError:
        raise BadCompression(
            "an lz4 block has its size in front", expected="a block without it", rule="S-CMP-9"
        ) from None
    try:  # shorter content than that is filled up with zeros
        cramjam.lz4.decompress_block(stored, output_len=max(0, len(out) - 1))
    except cramjam.DecompressionError:
        return len(out)
    return max(0, len(out) - 1)


# --- filters: rows of little-endian integers in frames of bytes

_INTEGERS: Final = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
# Rows of at least this many items are added one by one: below it the calls cost more than the additions, above it
# `accumulate` does, which runs along columns.
_LONG_ROW = 256
_SHORT_ROW = 32
# Work that takes several passes goes in pieces that stay in the cache.
_ITEMS_AT_ONCE = 1 << 17


def as_uint8(data: bytes | memoryview | NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of any contiguous memory, without a copy."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def _rows(frame: NDArray[np.uint8], width: int, row: int) -> NDArray[Any]:
    return frame.view(_INTEGERS[width]).reshape(-1, row // width)


def apply_delta(frame: NDArray[np.uint8], width: int, row: int, order: int) -> NDArray[np.uint8]:
    """Each row but the first as its difference to the row before, `order` times, in new memory."""
    for _ in range(order if frame.size else 0):
        rows = _rows(frame, width, row)
        frame = np.empty(frame.size, np.uint8)
        differences = _rows(frame, width, row)
        differences[0] = rows[0]
        np.subtract(rows[1:], rows[:-1], out=differences[1:])
    return frame


def undo_delta(frame: NDArray[np.uint8], width: int, row: int, order: int) -> None:
    """The opposite of `apply_delta`, in place."""
    if not frame.size:
        return
    rows = _rows(frame, width, row)
    if not rows.flags.aligned:
        # NumPy would copy on every call instead of once.
        copied = rows.copy()
        _sum_rows(copied, order)
        rows[:] = copied
    else:
        _sum_rows(rows, order)


def undo_delta_part(
    frame: NDArray[np.uint8], width: int, row: int, start: int, out: NDArray[np.uint8]
) -> bool:
    """The rows of the original from byte `start` on, as many as `out` holds, without computing the others.

    This saves half of the additions for a window in the middle of a frame of images.

    Returns:
        False if it cannot, or if it would not pay; then nothing was done.
    """
    if row < _LONG_ROW * width or not out.size or start % row or out.size % row:
        return False
    rows, wanted = _rows(frame, width, row), _rows(out, width, row)
    if not (rows.flags.aligned and wanted.flags.aligned):
        return False
    first = start // row
    np.add.reduce(rows[: first + 1], axis=0, dtype=rows.dtype, out=wanted[0])
    previous = wanted[0]
    for difference, total in zip(rows[first + 1 :], wanted[1:], strict=False):
        np.add(difference, previous, total)
        previous = total
    return True


def _sum_rows(rows: NDArray[Any], order: int) -> None:
    items = rows.shape[1]
    for _ in range(order):
        if items >= _LONG_ROW:
            previous = rows[0]
            for row in rows[1:]:
                np.add(row, previous, row)
                previous = row
        elif rows.dtype.itemsize == 2 and items <= _SHORT_ROW:
            # Three times as fast in a wider type, whose upper half is dropped again.
            at_once = max(1, _ITEMS_AT_ONCE // items)
            total = np.zeros(items, np.uint32)
            for start in range(0, len(rows), at_once):
                wide = rows[start : start + at_once].astype(np.uint32)
                wide[0] += total
                np.add.accumulate(wide, axis=0, out=wide)
                rows[start : start + at_once] = wide
                total = wide[-1]
        else:
            np.add.accumulate(rows, axis=0, dtype=rows.dtype, out=rows)


def apply_planes(frame: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """The first byte of every item, then the second of every item, and so on, in new memory."""
    return np.ascontiguousarray(frame.reshape(-1, width).T).reshape(-1)


def undo_planes(planes: NDArray[np.uint8], width: int, out: NDArray[np.uint8]) -> None:
    """The opposite of `apply_planes`, into other memory of the same size."""
    count = planes.size // width
    items = out.view(_INTEGERS[width])
    if width == 2 and items.flags.aligned:
        # Arithmetic is twice as fast as writing every second byte; for wider items it is not.
        for start in range(0, count, _ITEMS_AT_ONCE):
            stop = min(count, start + _ITEMS_AT_ONCE)
            piece = items[start:stop]
            piece[:] = planes[count + start : count + stop]
            np.left_shift(piece, 8, piece)
            np.bitwise_or(piece, planes[start:stop], piece)
        return
    for number in range(width):
        out[number::width] = planes[number * count : (number + 1) * count]
