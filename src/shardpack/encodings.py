"""How the bytes of an entry are stored: raw, gzip, lz4 or zstd."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from shard_format import codecs
from shard_format.codecs import SMALLEST_COMPRESSED, Codec, Compression, is_worth_it
from shard_format.errors import (
    BadCompression,
    InvalidArgument,
    ShardError,
    SizeMismatch,
    UnknownCodec,
)

if TYPE_CHECKING:
    from shard_format.registry import Limits

__all__ = ["Encoding", "EntryCompression", "decode", "encode"]

_GZIP: Final = 31  # zlib's window bits for a gzip wrapper
_GZIP_LEVELS = range(10)
_DEFAULT_GZIP_LEVEL: Final = 6
# No deflate block expands further; see the container's S-CMP-8.
_LARGEST_GZIP_EXPANSION: Final = 1032


class Encoding(IntEnum):
    """How stored bytes are encoded; the number is the one in the file."""

    NONE = 0
    GZIP = 1
    LZ4 = 2
    ZSTD = 3

    @property
    def label(self) -> str:
        """The name in the registry."""
        return self.name.lower()


LABELS: Final = tuple(encoding.label for encoding in Encoding)
_CONTAINER_CODECS: Final = {Encoding.LZ4: Codec.LZ4, Encoding.ZSTD: Codec.ZSTD}


@dataclass(frozen=True, slots=True)
class EntryCompression:
    """An encoding with its level."""

    encoding: Encoding
    """How the bytes are stored."""
    level: int | None = None
    """For zstd up to 22, for gzip 0 to 9; None for the default."""

    def __post_init__(self) -> None:
        if self.level is None:
            return
        if self.encoding is Encoding.ZSTD:
            Compression(Codec.ZSTD, self.level)
        elif self.encoding is not Encoding.GZIP or self.level not in _GZIP_LEVELS:
            raise _unknown(str(self))

    @classmethod
    def parse(cls, text: str | EntryCompression | None) -> EntryCompression:
        """From `"none"`, `"gzip"`, `"lz4"`, `"zstd"`, or with a level: `"zstd:19"`. None means `"none"`."""
        if isinstance(text, EntryCompression):
            return text
        if text is None:
            return NO_COMPRESSION
        if not isinstance(text, str):
            raise _unknown(text)
        name, colon, level = text.partition(":")
        try:
            return cls(Encoding[name.upper()], int(level) if colon else None)
        except (KeyError, ValueError):
            raise _unknown(text) from None

    def __str__(self) -> str:
        label = self.encoding.label
        return label if self.level is None else f"{label}:{self.level}"


NO_COMPRESSION: Final = EntryCompression(Encoding.NONE)


def _unknown(found: object) -> InvalidArgument:
    return InvalidArgument(
        "unknown compression",
        expected="'none', 'gzip', 'gzip:LEVEL', 'lz4', 'zstd' or 'zstd:LEVEL'",
        found=repr(found),
    )


def encode(
    data: bytes | memoryview, compression: EntryCompression
) -> tuple[Encoding, bytes] | None:
    """The encoding and the stored bytes, or None if the entry is better stored raw (P-ENC-6)."""
    encoding = compression.encoding
    if encoding is Encoding.NONE or len(data) < SMALLEST_COMPRESSED:
        return None
    if encoding is Encoding.GZIP:
        level = _DEFAULT_GZIP_LEVEL if compression.level is None else compression.level
        # Without a name and a time in the header: the same content gives the same bytes.
        compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP)
        stored = compressor.compress(data) + compressor.flush()
        return (encoding, stored) if is_worth_it(len(stored), len(data)) else None
    found = codecs.compress(
        memoryview(data), Compression(_CONTAINER_CODECS[encoding], compression.level)
    )
    return None if found is None else (encoding, found)


def decode(number: int, stored: bytes | memoryview, original_size: int, limits: Limits) -> bytes:
    """The content of an entry that is not stored raw, exactly `original_size` bytes (P-ENC)."""
    if number not in (Encoding.GZIP, Encoding.LZ4, Encoding.ZSTD):
        raise UnknownCodec(
            "unknown encoding",
            expected="0 (none), 1 (gzip), 2 (lz4) or 3 (zstd)",
            found=number,
            rule="P-ENC-1",
        )
    encoding = Encoding(number)
    try:
        if encoding is Encoding.GZIP:
            return _decode_gzip(stored, original_size, limits)
        codec = _CONTAINER_CODECS[encoding]
        codecs.check_sizes(codec, len(stored), original_size, limits)
        return codecs.decode(codec, stored, original_size, limits)
    except ShardError as error:
        # The container's rules apply, under the numbers of this format.
        error.rule = _RULES.get(error.rule or "", error.rule)
        raise


_RULES: Final = {
    "S-CMP-2": "P-ENC-3",
    "S-CMP-3": "P-ENC-4",
    "S-CMP-4": "P-ENC-5",
    "S-CMP-5": "P-ENC-5",
    "S-CMP-6": "P-ENC-5",
    "S-CMP-7": "P-ENC-3",
    "S-CMP-8": "P-ENC-4",
}


def _decode_gzip(stored: bytes | memoryview, original_size: int, limits: Limits) -> bytes:
    # The limit is the same for all encodings, the reachable size is not.
    codecs.check_sizes(Codec.ZSTD, len(stored), original_size, limits)
    if original_size > _LARGEST_GZIP_EXPANSION * len(stored):
        raise SizeMismatch(
            f"{len(stored)} bytes of gzip cannot decompress to the stated size",
            expected=f"at most {_LARGEST_GZIP_EXPANSION * len(stored)} bytes",
            found=f"{original_size} bytes",
            rule="S-CMP-8",
        )
    decompressor = zlib.decompressobj(_GZIP)
    try:
        content = decompressor.decompress(stored, original_size + 1)
    except zlib.error as error:
        raise BadCompression(f"gzip cannot decode it: {error}", rule="S-CMP-4") from None
    if len(content) > original_size:
        raise SizeMismatch(
            "the entry decompresses to another size than its row says",
            expected=f"{original_size} bytes",
            found=f"more than {original_size} bytes",
            rule="S-CMP-3",
        )
    if not decompressor.eof or decompressor.unused_data or decompressor.unconsumed_tail:
        raise BadCompression("not exactly one complete gzip member", rule="S-CMP-4")
    if len(content) != original_size:
        raise SizeMismatch(
            "the entry decompresses to another size than its row says",
            expected=f"{original_size} bytes",
            found=f"{len(content)} bytes",
            rule="S-CMP-3",
        )
    return content
