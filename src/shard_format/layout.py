"""The only file that knows byte offsets (spec/shard.md, sections 2 and 3)."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

import numpy as np

MAGIC: Final = b"SHRD"
VERSION: Final = 2
HEADER_SIZE: Final = 64
INDEX_ENTRY_SIZE: Final = 48
ALIGNMENTS: Final = (0, 16, 32, 64)

# What the reserved layout sets aside for each possible entry: its index row and its name.
RESERVED_NAME_BYTES: Final = 64

HEADER: Final = struct.Struct("<4sBBHBBHIQQQQ16s")
INDEX_ENTRY: Final = struct.Struct("<QIHHQQQIHH")
INDEX_DTYPE: Final = np.dtype(
    [
        ("name_hash", "<u8"),
        ("name_offset", "<u4"),
        ("name_length", "<u2"),
        ("flags", "<u2"),
        ("data_offset", "<u8"),
        ("disk_size", "<u8"),
        ("orig_size", "<u8"),
        ("crc32c", "<u4"),
        ("content_type", "<u2"),
        ("tag_bits", "<u2"),
    ]
)


class HeaderFlag(IntFlag):
    """Bits of the header's `flags`."""

    COMPRESSED = 0x0001
    LITTLE_ENDIAN = 0x0002
    BIG_ENDIAN = 0x0004
    SCHEMA = 0x0010
    CHECKSUMS = 0x0020
    RESERVED_HEAD = 0x0040
    CONTENT_TYPES = 0x0080


KNOWN_HEADER_FLAGS: Final = 0x00F7


# Bits of an index entry's `flags`: 1 compressed, 2 zstd, 4 lz4, 0x10 filtered.
COMPRESSED: Final = 0x0001
CODEC_FLAGS: Final = 0x0007
FILTERED: Final = 0x0010
KNOWN_ENTRY_FLAGS: Final = CODEC_FLAGS | FILTERED


class Codec(IntEnum):
    """How the bytes of an entry are stored; the values are those of `compression_default`."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    @property
    def label(self) -> str:
        """The name that `compression=` takes."""
        return self.name.lower()

    @property
    def entry_flags(self) -> int:
        """The index flags of an entry stored with this codec."""
        return _CODEC_FLAGS[self]


_CODEC_FLAGS: Final = {Codec.NONE: 0, Codec.ZSTD: 0x0003, Codec.LZ4: 0x0005}
CODEC_BY_FLAGS: Final = {0x0003: Codec.ZSTD, 0x0005: Codec.LZ4}


class Header(NamedTuple):
    """The 64-byte header, field by field, in the order of the file."""

    # A tuple, not a dataclass: opening a file is measured in microseconds, and building a frozen
    # dataclass of thirteen fields takes three of them.
    magic: bytes
    version: int
    role: int
    flags: int
    alignment: int
    compression_default: int
    index_entry_size: int
    entry_count: int
    string_table_offset: int
    data_section_offset: int
    schema_offset: int
    total_file_size: int
    reserved: bytes

    def pack(self) -> bytes:
        """The 64 bytes."""
        return HEADER.pack(*self)


class IndexRow(NamedTuple):
    """One index entry, field by field, in the order of the file."""

    name_hash: int
    name_offset: int
    name_length: int
    flags: int
    data_offset: int
    disk_size: int
    orig_size: int
    crc32c: int
    content_type: int
    tag_bits: int


def align(position: int, alignment: int) -> int:
    """`position` rounded up to a multiple of `alignment`; 0 means no rounding."""
    return position if alignment == 0 else -(-position // alignment) * alignment
