"""zstd frames: finding their ends without decoding them, and decoding one under a bound.

`zstandard` decodes only the first of several frames, ignores what follows, and trusts a frame's word
about its size. So the frames are walked here first, by their headers and the three-byte headers of
their blocks (RFC 8878, section 3), and each is decoded alone into space of a known size.
"""

from __future__ import annotations

import struct
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import zstandard

from shard_format._spares import Spares
from shard_format.errors import BadCompression, ChecksumMismatch, LimitExceeded, SizeMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shard_format.registry import Limits

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
_LONGEST_HEADER = 18
_PIECE = 1 << 22
# Bytes of the shortest match that an encoder can be told to look for.
_LONGEST_MINIMUM = 7
_FOUR_BYTES = struct.Struct("<I")


class Frame(NamedTuple):
    """One zstd frame inside the stored bytes of an entry."""

    start: int
    stop: int
    content_size: int | None
    has_checksum: bool


class _Compressors(threading.local):
    """Contexts for encoding, which are costly to make and not safe to share."""

    def __init__(self) -> None:
        self.by_options: dict[tuple[int, bool, int | None], zstandard.ZstdCompressor] = {}


_compressors = _Compressors()
# All that a decompressor does at a time is one frame: a second reader would take it away from the first.
_decompressors = Spares(zstandard.ZstdDecompressor, most=16)


def iter_frames(stored: bytes | memoryview, limits: Limits) -> Iterator[Frame]:
    """The frames that hold content, in order; skippable frames are passed over.

    Raises `BadCompression` when the bytes are not a run of complete frames, and `LimitExceeded` for a
    window above the limit.
    """
    end = len(stored)
    position = 0
    while position < end:
        magic = int.from_bytes(stored[position : position + 4], "little")
        if magic == _FRAME_MAGIC:
            frame = _walk_frame(stored, position, limits)
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


def _incomplete(what: str) -> BadCompression:
    return BadCompression(f"{what} is incomplete", rule="S-CMP-4")


def whole_frame(stored: bytes | memoryview, limits: Limits) -> Frame:
    """The frame that all of these bytes must be, from its header alone.

    For frames that a seek table has cut out: `decode_frame_into` notices if they end elsewhere.
    """
    if int.from_bytes(stored[:4], "little") != _FRAME_MAGIC:
        raise BadCompression("no zstd frame where one must start", rule="S-CMP-5")
    frame, _ = _read_header(stored, 0, limits.max_zstd_window_bytes)
    return frame


def _read_header(stored: bytes | memoryview, start: int, largest_window: int) -> tuple[Frame, int]:
    """A frame that goes on to the end of the bytes, and where its first block starts."""
    end = len(stored)
    if end - start < 9:  # magic, descriptor, one more header byte, one block header
        raise _incomplete("a zstd frame")
    descriptor = stored[start + 4]
    position = start + 5
    single_segment = bool(descriptor & 0x20)
    if descriptor & 0x08:
        raise BadCompression("a reserved bit of a zstd frame header is set", rule="S-CMP-4")
    window_size = 0
    if not single_segment:
        window_descriptor = stored[position]
        position += 1
        base = 1 << (10 + (window_descriptor >> 3))
        window_size = base + (base >> 3) * (window_descriptor & 7)
    dictionary_size = _DICTIONARY_ID_SIZES[descriptor & 3]
    if any(stored[position : position + dictionary_size]):
        raise BadCompression("a zstd frame needs a dictionary", rule="S-CMP-6")
    position += dictionary_size
    size_flag = descriptor >> 6
    size_bytes = 1 << size_flag if size_flag or single_segment else 0
    content_size: int | None = None
    if size_bytes:
        content_size = int.from_bytes(stored[position : position + size_bytes], "little")
        content_size += 256 if size_bytes == 2 else 0
        position += size_bytes
    if single_segment:
        window_size = content_size or 0
    if window_size > largest_window:
        raise LimitExceeded(
            "a zstd frame asks for too large a window",
            expected=f"at most {largest_window} bytes",
            found=f"{window_size} bytes",
            rule="S-CMP-7",
        )
    return Frame(start, end, content_size, bool(descriptor & 0x04)), position


def _walk_frame(stored: bytes | memoryview, start: int, limits: Limits) -> Frame:
    end = len(stored)
    frame, position = _read_header(stored, start, limits.max_zstd_window_bytes)
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
        # Also catches a block header that was cut: what is missing reads as zero.
        if position > end:
            raise _incomplete("a zstd frame")
    if frame.has_checksum:
        position += 4
        if position > end:
            raise _incomplete("a zstd frame")
    return frame._replace(stop=position)


def frame_checksum(stored: bytes | memoryview, frame: Frame) -> int | None:
    """The checksum that stands at the end of a frame, if it has one."""
    if not frame.has_checksum:
        return None
    return int.from_bytes(stored[frame.stop - 4 : frame.stop], "little")


def decode_frame(stored: bytes | memoryview, frame: Frame, at_most: int) -> bytes:
    """The content of one frame, which must not be longer than `at_most`."""
    _check_declared(frame, at_most)
    piece = memoryview(stored)[frame.start : frame.stop]
    decompressor = _decompressors.take()
    try:
        # zstandard does not even look at a frame that declares no content.
        if frame.content_size:
            return decompressor.decompress(piece)
        # Memory is taken as content appears, up to one byte too many.
        content = decompressor.stream_reader(piece).read(at_most + 1)
    except zstandard.ZstdError as error:
        raise _failure(error) from None
    finally:
        _decompressors.give_back(decompressor)
    if len(content) > at_most:
        raise _too_long(f"more than {at_most} bytes", at_most)
    return content


def iter_frame(stored: bytes | memoryview, frame: Frame, at_most: int) -> Iterator[bytes]:
    """The content of one frame in pieces, so that a large one needs little memory."""
    if frame.content_size is not None and frame.content_size <= _PIECE:
        yield decode_frame(stored, frame, at_most)
        return
    _check_declared(frame, at_most)
    decompressor = _decompressors.take()
    reader = decompressor.stream_reader(memoryview(stored)[frame.start : frame.stop])
    done = 0
    while True:
        try:
            piece = reader.read(_PIECE)
        except zstandard.ZstdError as error:
            raise _failure(error) from None
        if not piece:
            break
        done += len(piece)
        if done > at_most:
            raise _too_long(f"more than {at_most} bytes", at_most)
        yield piece
    _decompressors.give_back(decompressor)


def decode_frame_into(stored: bytes | memoryview, frame: Frame, out: memoryview) -> int:
    """Decodes one frame to the start of `out` and returns how many bytes came out."""
    _check_declared(frame, len(out))
    piece = memoryview(stored)[frame.start : frame.stop]
    decompressor = _decompressors.take()
    # Across frames: bytes after the end of this one must not go unnoticed.
    reader = decompressor.stream_reader(piece, read_across_frames=True)
    try:
        count = 0
        while count < len(out):
            more = reader.readinto(out[count:])
            if more == 0:
                break
            count += more
        # Forces the decoder past the last block, to the checksum.
        if reader.read(1):
            raise _too_long(f"more than {len(out)} bytes", len(out))
    except zstandard.ZstdError as error:
        raise _failure(error) from None
    finally:
        _decompressors.give_back(decompressor)
    if frame.content_size is not None and count != frame.content_size:
        raise SizeMismatch(
            "a zstd frame is shorter than it declares",
            expected=f"{frame.content_size} bytes",
            found=f"{count} bytes",
            rule="S-CMP-3",
        )
    return count


def decode_usual_into(stored: memoryview, out: memoryview, limits: Limits) -> int | None:
    """Decodes a frame as our writers make them: with all of `stored`, with its size and a checksum.

    Returns:
        The checksum of the frame, which the content was held against; None if the frame is of another kind,
        or anything is wrong with it, for the caller to look closer.
    """
    if len(stored) < _LONGEST_HEADER:
        return None
    header = bytes(stored[: _HEADER_SIZES[stored[4]]])
    if not _is_usual(header, len(out), limits.max_zstd_window_bytes):
        return None
    decompressor = _decompressors.take()
    reader = decompressor.stream_reader(stored, read_across_frames=True)
    try:
        # The second read forces the decoder to the checksum, and finds what lies behind the frame.
        if reader.readinto(out) != len(out) or reader.read(1):
            return None
    except zstandard.ZstdError:
        return None
    finally:
        _decompressors.give_back(decompressor)
    checksum: int = _FOUR_BYTES.unpack_from(stored, len(stored) - 4)[0]
    return checksum


@lru_cache(maxsize=64)
def _is_usual(header: bytes, size: int, largest_window: int) -> bool:
    """Whether a frame says its size, which must be this, has a checksum and asks for nothing special.

    Kept, because most frames of an entry have the same header.
    """
    if int.from_bytes(header[:4], "little") != _FRAME_MAGIC:
        return False
    try:
        # The header alone, with room for the blocks that follow it.
        frame, _ = _read_header(header + bytes(_LONGEST_HEADER), 0, largest_window)
    except (BadCompression, LimitExceeded):
        return False
    return frame.content_size == size and frame.has_checksum


def compress_frame(data: bytes | memoryview, level: int, *, checksum: bool) -> bytes:
    """One frame with content size."""
    return _compressor(level, checksum).compress(data)


def compress_in_blocks(parts: Sequence[memoryview], level: int, *, of_noise: bool) -> bytes:
    """One frame with content size and checksum, in which each part starts a new block.

    What is mostly noise has few matches that are worth it: at the fastest level only those of 7 bytes are looked for,
    which is faster to write and to read, and no larger.
    """
    if of_noise and level == 1:
        compressor = _compressor(level, True, _LONGEST_MINIMUM)
    else:
        compressor = _compressor(level, True)
    stream = compressor.compressobj(size=sum(map(len, parts)))
    pieces: list[bytes] = []
    for number, part in enumerate(parts):
        if number:
            pieces.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        pieces.append(stream.compress(part))
    pieces.append(stream.flush())
    return b"".join(pieces)


def compressing_stream(level: int) -> zstandard.ZstdCompressionObj:
    """A compressor of its own for one frame of unknown length."""
    return zstandard.ZstdCompressor(level=level).compressobj()


def _compressor(
    level: int, checksum: bool, shortest_match: int | None = None
) -> zstandard.ZstdCompressor:
    key = (level, checksum, shortest_match)
    compressor = _compressors.by_options.get(key)
    if compressor is None:
        if shortest_match is None:
            compressor = zstandard.ZstdCompressor(
                level=level, write_checksum=checksum, write_content_size=True
            )
        else:
            parameters = zstandard.ZstdCompressionParameters.from_level(
                level, min_match=shortest_match, write_checksum=checksum, write_content_size=True
            )
            compressor = zstandard.ZstdCompressor(compression_params=parameters)
        _compressors.by_options[key] = compressor
    return compressor


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


def _failure(error: zstandard.ZstdError) -> BadCompression | ChecksumMismatch:
    if "checksum" in str(error):
        return ChecksumMismatch("the checksum of a zstd frame does not fit", rule="S-CMP-4")
    return BadCompression(f"zstd cannot decode it: {error}", rule="S-CMP-4")
