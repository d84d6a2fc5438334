"""Compression and checksums: the one place where the family turns bytes into stored bytes and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import cramjam
import numpy as np

from shard_format import _zstd
from shard_format._crc import crc32c
from shard_format._layout import Codec
from shard_format._memory import filled_bytes
from shard_format.errors import (
    BadCompression,
    InvalidArgument,
    LimitExceeded,
    SizeMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format.registry import Limits

__all__ = [
    "Codec",
    "Compression",
    "compress",
    "crc32c",
    "decode",
    "decode_into",
    "is_worth_it",
    "iter_decoded",
]

SMALLEST_COMPRESSED: Final = 257
"""Entries below this stay raw (S-CMP-10)."""

_ZSTD_LEVELS = range(-131_072, 23)
_DEFAULT_ZSTD_LEVEL = 3
# How far beyond the expected size a failed lz4 block is decoded again to tell "longer" from "broken".
_LZ4_SLACK = 1 << 16


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
    )


def is_worth_it(disk_size: int, orig_size: int) -> bool:
    """Whether the compressed form is kept (S-CMP-10)."""
    return disk_size < orig_size * 9 // 10


def compress(data: memoryview, compression: Compression) -> bytes | None:
    """The compressed form of a whole entry, or None if the entry is better stored raw."""
    if compression.codec is Codec.NONE or len(data) < SMALLEST_COMPRESSED:
        return None
    if compression.codec is Codec.ZSTD:
        stored = _zstd.compress_frame(data, zstd_level(compression), checksum=False)
    else:
        # Without a level: cramjam takes one and ignores it (2.14).
        stored = bytes(cramjam.lz4.compress_block(data, store_size=False))
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
        )
    if disk_size == 0:
        raise BadCompression("a compressed entry has no stored bytes", rule="S-CMP-4")
    is_zstd = codec is Codec.ZSTD
    reachable = _zstd.LARGEST_EXPANSION * disk_size if is_zstd else 255 * disk_size + 64
    if orig_size > reachable:
        raise SizeMismatch(
            f"{disk_size} bytes of {codec.label} cannot decompress to the stated size",
            expected=f"at most {reachable} bytes",
            found=f"{orig_size} bytes",
            rule="S-CMP-8",
        )


def decode(codec: Codec, stored: bytes | memoryview, orig_size: int, limits: Limits) -> bytes:
    """The content of a compressed entry as new bytes, exactly `orig_size` of them."""
    if codec is Codec.LZ4:
        return filled_bytes(orig_size, lambda out: _decode_lz4_into(stored, out))
    frames = _zstd.iter_frames(stored, limits)
    first = next(frames, None)
    if first is not None and first.stop == len(stored) and first.content_size == orig_size:
        return _zstd.decode_frame(stored, first, orig_size)

    def decode_all(out: memoryview) -> None:
        decode_into(codec, stored, out, limits)

    return filled_bytes(orig_size, decode_all)


def decode_into(codec: Codec, stored: bytes | memoryview, out: memoryview, limits: Limits) -> None:
    """Decodes a compressed entry into the caller's memory, which it must fill exactly."""
    if codec is Codec.LZ4:
        _decode_lz4_into(stored, out)
        return
    done = frames = 0
    for frame in _zstd.iter_frames(stored, limits):
        done += _zstd.decode_frame_into(stored, frame, out[done:])
        frames += 1
    check_complete(frames, done, len(out))


def iter_decoded(
    codec: Codec, stored: bytes | memoryview, orig_size: int, limits: Limits
) -> Iterator[memoryview]:
    """The content of a compressed entry in pieces; zstd in bounded memory, lz4 all at once."""
    if codec is Codec.LZ4:
        yield memoryview(decode(codec, stored, orig_size, limits))
        return
    done = frames = 0
    for frame in _zstd.iter_frames(stored, limits):
        frames += 1
        for piece in _zstd.iter_frame(stored, frame, orig_size - done):
            done += len(piece)
            yield memoryview(piece)
    check_complete(frames, done, orig_size)


def check_complete(frames: int, decoded: int, orig_size: int) -> None:
    """After all zstd frames of an entry: whether there were any, and enough (S-CMP-3, S-CMP-5)."""
    if frames == 0:
        raise BadCompression("there is no zstd frame in the stored bytes", rule="S-CMP-5")
    if decoded != orig_size:
        raise _wrong_size(decoded, orig_size)


def _wrong_size(decoded: int, orig_size: int) -> SizeMismatch:
    return SizeMismatch(
        "the entry decompresses to another size than the index says",
        expected=f"{orig_size} bytes",
        found=f"{decoded} bytes",
        rule="S-CMP-3",
    )


def _decode_lz4_into(stored: bytes | memoryview, out: memoryview) -> None:
    try:
        count = cramjam.lz4.decompress_block_into(stored, out)
    except cramjam.DecompressionError as error:
        # A block that goes on after the expected end fails like a broken one. Look again with some
        # room, so that the message tells the user which of the two it is.
        try:
            count = cramjam.lz4.decompress_block_into(
                stored, np.empty(len(out) + _LZ4_SLACK, np.uint8).data
            )
        except cramjam.DecompressionError:
            raise BadCompression(f"lz4 cannot decode it: {error}", rule="S-CMP-4") from None
    if count != len(out):
        raise _wrong_size(count, len(out))
