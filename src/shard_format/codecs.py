"""Compression and checksums: the one place where the family turns bytes into stored bytes and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format._kernels import (
    LARGEST_EXPANSION,
    Frame,
    combine_crc32c,
    compress_lz4,
    crc32c,
    decode_frame_into,
    decode_lz4_into,
    filled_bytes,
    iter_frame,
    iter_frames,
)
from shard_format.errors import (
    BadCompression,
    InvalidArgument,
    LimitExceeded,
    SizeMismatch,
    did_you_mean,
)
from shard_format.filters import LARGEST_FRAME
from shard_format.layout import Codec
from shard_format.zstd import compress_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format.filters import Filters
    from shard_format.registry import Limits

__all__ = [
    "LARGEST_EXPANSION",
    "Codec",
    "Compression",
    "check_sizes",
    "check_whole_frame",
    "combine_crc32c",
    "compress",
    "compress_frame",
    "content_size",
    "crc32c",
    "decode",
    "decode_into",
    "is_worth_it",
    "iter_decoded",
    "zstd_level",
]

SMALLEST_COMPRESSED: Final = 257
"""Entries below this stay raw (S-CMP-10)."""

_ZSTD_LEVELS = range(-131_072, 23)
_DEFAULT_ZSTD_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec with its level."""

    codec: Codec
    """How the bytes are stored."""
    level: int | None = None
    """For zstd, -131072 to 22; None for the codec's default."""

    def __post_init__(self) -> None:
        if self.level is not None and (
            self.codec is not Codec.ZSTD or self.level not in _ZSTD_LEVELS
        ):
            raise _unknown_compression(str(self))

    @classmethod
    def parse(cls, text: str | Compression | None) -> Compression:
        """From `"none"`, `"zstd"`, `"lz4"`, or with a level: `"zstd:19"`. None means `"none"`."""
        if isinstance(text, Compression):
            return text
        if text is None:
            return NO_COMPRESSION
        if not isinstance(text, str):
            raise _unknown_compression(text)
        name, colon, level = text.partition(":")
        try:
            return cls(Codec[name.upper()], int(level) if colon else None)
        except (KeyError, ValueError):
            raise _unknown_compression(text) from None

    def __str__(self) -> str:
        return self.codec.label if self.level is None else f"{self.codec.label}:{self.level}"


NO_COMPRESSION: Final = Compression(Codec.NONE)


def _unknown_compression(found: object) -> InvalidArgument:
    return InvalidArgument(
        "unknown compression",
        expected="'none', 'zstd', 'zstd:LEVEL' (up to 22) or 'lz4'",
        found=repr(found),
        hint=did_you_mean(str(found).partition(":")[0], [codec.label for codec in Codec]),
    )


def is_worth_it(disk_size: int, orig_size: int) -> bool:
    """Whether the compressed form is kept (S-CMP-10)."""
    return disk_size < orig_size * 9 // 10


def compress(data: memoryview, compression: Compression) -> bytes | None:
    """The compressed form of a whole entry, or None if the entry is better stored raw."""
    if compression.codec is Codec.NONE or len(data) < SMALLEST_COMPRESSED:
        return None
    if compression.codec is Codec.ZSTD:
        stored = compress_frame(data, zstd_level(compression), checksum=False)
    else:
        stored = compress_lz4(data)
    return stored if is_worth_it(len(stored), len(data)) else None


def zstd_level(compression: Compression) -> int:
    """The level to give to zstd."""
    return _DEFAULT_ZSTD_LEVEL if compression.level is None else compression.level


def check_sizes(codec: Codec, disk_size: int, orig_size: int, limits: Limits) -> None:
    """What can be known before a compressed entry is read: S-CMP-2, S-CMP-4 (empty) and S-CMP-8."""
    if orig_size > limits.max_decompressed_bytes:
        raise LimitExceeded(
            "the entry is too large to decompress",
            expected=f"at most {limits.max_decompressed_bytes} bytes",
            found=f"{orig_size} bytes",
            rule="S-CMP-2",
            hint="pass limits=Limits(max_decompressed_bytes=…) if you trust the file",
            command="pass --max-decompressed SIZE if you trust the file",
        )
    if disk_size == 0:
        raise BadCompression("a compressed entry has no stored bytes", rule="S-CMP-4")
    is_zstd = codec is Codec.ZSTD
    reachable = LARGEST_EXPANSION * disk_size if is_zstd else 255 * disk_size + 64
    if orig_size > reachable:
        raise SizeMismatch(
            f"{disk_size} bytes of {codec.label} cannot decompress to the stated size",
            expected=f"at most {reachable} bytes",
            found=f"{orig_size} bytes",
            rule="S-CMP-8",
        )


def decode(
    codec: Codec,
    stored: bytes | memoryview,
    orig_size: int,
    limits: Limits,
    filters: Filters | None = None,
) -> bytes:
    """The content of a compressed entry as new bytes, exactly `orig_size` of them."""
    return filled_bytes(orig_size, lambda out: decode_into(codec, stored, out, limits, filters))


def decode_into(
    codec: Codec,
    stored: bytes | memoryview,
    out: memoryview,
    limits: Limits,
    filters: Filters | None = None,
) -> None:
    """Decodes a compressed entry into the caller's memory, which it must fill exactly.

    Args:
        codec: zstd or lz4.
        stored: all stored bytes of the entry.
        out: writable memory.
        limits: bounds for the decoder.
        filters: what was done to each zstd frame before it was compressed.
    """
    if codec is Codec.LZ4:
        count = decode_lz4_into(stored, out)
        if count != len(out):
            raise _wrong_size(count, len(out))
        return
    done = frames = 0
    for frame in iter_frames(stored, limits.max_zstd_window_bytes):
        frames += 1
        if filters is None:
            done += decode_frame_into(stored, frame, out[done:])
        else:
            done += _decode_filtered_into(stored, frame, out[done:], filters)
    _check_complete(frames, done, len(out))


def _decode_filtered_into(
    stored: bytes | memoryview, frame: Frame, out: memoryview, filters: Filters
) -> int:
    """The original of one filtered frame, to the start of `out`; returns how many bytes came out."""
    size = frame.content_size
    if size is not None and size <= len(out):
        filters.check_frame(size)
        out = out[:size]
    bounded = out[:LARGEST_FRAME]
    # Planes cannot be put together where they lie.
    content = bounded if filters.planes is None else np.empty(len(bounded), np.uint8).data
    try:
        count = decode_frame_into(stored, frame, content)
    except SizeMismatch:
        if size is None and len(out) > LARGEST_FRAME:
            filters.check_frame(LARGEST_FRAME + 1)
        raise
    if filters.planes is None:
        filters.undo_in_place(content[:count])
    else:
        filters.undo_into(content[:count], out[:count])
    return count


def iter_decoded(
    codec: Codec,
    stored: bytes | memoryview,
    orig_size: int,
    limits: Limits,
    filters: Filters | None = None,
) -> Iterator[memoryview]:
    """The content of a compressed entry in pieces; zstd in bounded memory, lz4 all at once."""
    if codec is Codec.LZ4:
        yield memoryview(decode(codec, stored, orig_size, limits))
        return
    done = frames = 0
    for frame in iter_frames(stored, limits.max_zstd_window_bytes):
        frames += 1
        if filters is None:
            for piece in iter_frame(stored, frame, orig_size - done):
                done += len(piece)
                yield memoryview(piece)
            continue
        size = frame.content_size
        room = (
            min(orig_size - done, LARGEST_FRAME + 1)
            if size is None
            else min(size, orig_size - done)
        )
        original = np.empty(room, np.uint8).data
        count = _decode_filtered_into(stored, frame, original, filters)
        done += count
        yield original[:count]
    _check_complete(frames, done, orig_size)


def content_size(stored: bytes | memoryview, limits: Limits) -> int:
    """How many bytes zstd frames decode to, as their headers state it; frames that do not are decoded in pieces and counted.

    Raises:
        BadCompression: the bytes are not whole zstd frames.
        SizeMismatch: frames that do not state their size hold more than `limits` allow.
    """
    size = 0
    for frame in iter_frames(stored, limits.max_zstd_window_bytes):
        if frame.content_size is not None:
            size += frame.content_size
        else:
            most = max(0, limits.max_decompressed_bytes - size)
            size += sum(len(piece) for piece in iter_frame(stored, frame, most))
    return size


def check_whole_frame(stored: bytes | memoryview, content_size: int, limits: Limits) -> None:
    """Raises unless the bytes are exactly one zstd frame that has a checksum and states this size."""
    frame = next(iter_frames(stored, limits.max_zstd_window_bytes), None)
    if frame is None or (frame.start, frame.stop) != (0, len(stored)):
        raise BadCompression("the stored bytes are not one zstd frame")
    if frame.content_size != content_size:
        raise SizeMismatch(
            "a zstd frame states a different size", expected=content_size, found=frame.content_size
        )
    if not frame.has_checksum:
        raise BadCompression("a zstd frame has no checksum")


def _check_complete(frames: int, decoded: int, orig_size: int) -> None:
    """After all zstd frames of an entry: whether there were any, and enough (S-CMP-3, S-CMP-5)."""
    if frames == 0:
        raise BadCompression("the stored bytes hold no zstd frame", rule="S-CMP-5")
    if decoded != orig_size:
        raise _wrong_size(decoded, orig_size)


def _wrong_size(decoded: int, orig_size: int) -> SizeMismatch:
    return SizeMismatch(
        "the entry does not decompress to the size in the index",
        expected=f"{orig_size} bytes",
        found=f"{decoded} bytes",
        rule="S-CMP-3",
    )
