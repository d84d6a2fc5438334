"""How the bytes of an entry are stored: raw, lz4 or zstd; gzip is read, not written."""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from shard_format import codecs
from shard_format.codecs import Codec
from shard_format.errors import (
    BadCompression,
    ShardError,
    SizeMismatch,
    UnknownCodec,
)

if TYPE_CHECKING:
    from shard_format.codecs import Compression
    from shard_format.registry import Limits

__all__ = ["Encoding", "MetadataEncoding", "decode", "encode"]

_GZIP: Final = 31  # zlib's window bits for a gzip wrapper
# No deflate block expands further; see the container's S-CMP-8.
_LARGEST_GZIP_EXPANSION: Final = 1032


class Encoding(IntEnum):
    """The encoding of stored bytes; the numbers are those in the file."""

    NONE = 0
    GZIP = 1
    LZ4 = 2
    ZSTD = 3

    @property
    def label(self) -> str:
        """The name in the registry."""
        return self.name.lower()


class MetadataEncoding(IntEnum):
    """How the metadata of a record is stored."""

    NONE = 0
    JSON = 1
    MESSAGEPACK = 2


LABELS: Final = tuple(encoding.label for encoding in Encoding)
_CODECS: Final = {Encoding.LZ4: Codec.LZ4, Encoding.ZSTD: Codec.ZSTD}
_ENCODINGS: Final = {codec: encoding for encoding, codec in _CODECS.items()}


def encode(data: bytes | memoryview, compression: Compression) -> tuple[Encoding, bytes] | None:
    """The encoding and the stored bytes, or None if compression does not pay (P-ENC-6)."""
    found = codecs.compress(memoryview(data), compression)
    return None if found is None else (_ENCODINGS[compression.codec], found)


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
        codec = _CODECS[encoding]
        codecs.check_sizes(codec, len(stored), original_size, limits)
        return codecs.decode(codec, stored, original_size, limits)
    except ShardError as error:
        # The rules are those of the container, under the ids of this format.
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
    "S-CMP-9": "P-ENC-5",
}


def _decode_gzip(stored: bytes | memoryview, original_size: int, limits: Limits) -> bytes:
    # The limit is the same for all encodings; the reachable size differs.
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
    if len(content) <= original_size and (
        not decompressor.eof or decompressor.unused_data or decompressor.unconsumed_tail
    ):
        raise BadCompression("not exactly one complete gzip member", rule="S-CMP-4")
    if len(content) != original_size:
        raise SizeMismatch(
            "the entry does not decompress to the size in its row",
            expected=f"{original_size} bytes",
            found=f"{len(content)} bytes or more",
            rule="S-CMP-3",
        )
    return content
