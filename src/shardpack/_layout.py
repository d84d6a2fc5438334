"""Byte layout of ShardPack, version 1: the only module that knows offsets (spec/shardpack.md)."""

from __future__ import annotations

import struct
import sys
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from shard_format.codecs import crc32c
from shard_format.errors import (
    BadMagic,
    BadOffset,
    ChecksumMismatch,
    TrailingData,
    Truncated,
    UnsupportedVersion,
)

VERSION: Final = 1
ALIGNMENTS: Final = (1, 8, 64)

# Record block (section 2): size, tag, entry_count, kinds_size, key_size, metadata_size.
# The tag is marker, version, metadata encoding, alignment and flags: one comparison checks all five.
RECORD_HEAD: Final = struct.Struct("<Q8sIIII")
# Of the same bytes only what says where the key is: entry count, size of the kinds, size of the key.
KEY_PLACE: Final = struct.Struct("<16xIII")
RECORD_MARKER: Final = b"SPR1"
ROW: Final = struct.Struct("<QQIBxxx")
CHECKSUM: Final = struct.Struct("<I")
# A head up to its key, to be unpacked in one step where the shape is known: tag, entry_count and
# kinds_size are one field, which must be the expected one; so are checksum, encoding and reserved bytes of
# a row, which are no more than the checksum if the entry is raw; the kinds follow the rows.
SAMPLE_START: Final = "<Q16sII"
SAMPLE_ROW: Final = "QQQ"
KIND: Final = struct.Struct("<HH")
# What the CRC-32C of any bytes followed by their own CRC-32C comes to.
CHECKED: Final = 0x48674BC7

# Index block (section 7): size to the end of the file, tag, record_count, metadata_size.
INDEX_HEAD: Final = struct.Struct("<Q8sQQ")
INDEX_TAG: Final = b"SPI1\x01\0\0\0"
INDEX_MARKER: Final = b"SPI1"
# Footer (section 8): index_offset, record_count, metadata_size, total_size, the checksums of offsets,
# lookup and metadata, version and reserved; then its own checksum and the magic.
FOOTER: Final = struct.Struct("<QQQQIIIB7xI8s")
FOOTER_SIZE: Final = 64
MAGIC: Final = b"SHRDPACK"
# A record or an index starts with its size and a tag.
BLOCK_START: Final = struct.Struct("<Q4s")

LONGEST_KEY: Final = 65_536
LONGEST_NAME: Final = 65_535
LONGEST_CONTENT_TYPE: Final = 255
MOST_ENTRIES: Final = 1 << 20
LARGEST_RECORD_METADATA: Final = 16 << 20
LARGEST_HEAD: Final = 64 << 20
MOST_RECORDS: Final = (1 << 32) - 1
LARGEST_SIZE: Final = (1 << 63) - 1


class MetadataEncoding(IntEnum):
    """How the metadata of a record is stored."""

    NONE = 0
    JSON = 1
    MESSAGEPACK = 2


class Tag(NamedTuple):
    """What the tag of a record says."""

    metadata_encoding: MetadataEncoding
    mask: int
    """Alignment minus one."""


def record_tag(metadata_encoding: int, alignment: int) -> bytes:
    """Marker, version, metadata encoding, alignment and flags of a record."""
    return RECORD_MARKER + bytes((VERSION, metadata_encoding, alignment, 0))


TAGS: Final = {
    record_tag(encoding, alignment): Tag(encoding, alignment - 1)
    for encoding in MetadataEncoding
    for alignment in ALIGNMENTS
}


class Fixed(NamedTuple):
    """The fixed part of a record's head, as `RECORD_HEAD` unpacks it."""

    record_size: int
    tag: bytes
    entry_count: int
    kinds_size: int
    key_size: int
    metadata_size: int


@lru_cache(maxsize=256)
def rows_struct(count: int) -> struct.Struct:
    """All rows of a record at once: stored size, original size, checksum and encoding, over and over."""
    return struct.Struct("<" + ROW.format[1:] * count)


def align(position: int, mask: int) -> int:
    """The next position on the alignment whose mask is given."""
    return (position + mask) & ~mask


class Footer(NamedTuple):
    """The last 64 bytes of a shard, and what follows from them."""

    index_offset: int
    record_count: int
    metadata_size: int
    total_size: int
    offsets_crc32c: int
    lookup_crc32c: int
    metadata_crc32c: int

    @property
    def offsets_at(self) -> int:
        """Where the offsets of the records are."""
        return self.index_offset + INDEX_HEAD.size

    @property
    def hashes_at(self) -> int:
        """Where the sorted key hashes are."""
        return self.offsets_at + 8 * (self.record_count + 1)

    @property
    def numbers_at(self) -> int:
        """Where the record numbers that belong to the hashes are."""
        return self.hashes_at + 8 * self.record_count

    @property
    def metadata_at(self) -> int:
        """Where the metadata of the shard is."""
        return self.numbers_at + 4 * self.record_count

    def pack(self) -> bytes:
        """The 64 bytes."""
        body = FOOTER.pack(*self, VERSION, 0, MAGIC)[:-12]
        return body + CHECKSUM.pack(crc32c(body)) + MAGIC

    @classmethod
    def unpack(cls, data: bytes, file_size: int) -> Footer:
        """From the last bytes of a file, all rules of the footer checked (P-FTR)."""
        if file_size < FOOTER_SIZE + INDEX_HEAD.size + 8 or len(data) < FOOTER_SIZE:
            raise Truncated(
                "too short for a shard",
                expected=f"at least {FOOTER_SIZE + INDEX_HEAD.size + 8} bytes",
                found=f"{file_size} bytes",
                rule="P-FTR-1",
                hint=_RECOVER,
            )
        *fields, version, checksum, magic = FOOTER.unpack(data)
        if magic != MAGIC:
            raise BadMagic(
                "this is not a complete shard: the magic at its end is missing",
                offset=file_size - 8,
                expected=MAGIC.hex(" "),
                found=magic.hex(" "),
                rule="P-FTR-2",
                hint=_RECOVER,
            )
        computed = crc32c(data[:-12])
        if computed != checksum:
            raise ChecksumMismatch(
                "the footer is damaged",
                offset=file_size - FOOTER_SIZE,
                expected=f"CRC-32C {checksum:08x}",
                found=f"{computed:08x}",
                rule="P-FTR-3",
                hint=_RECOVER,
            )
        if version != VERSION:
            raise UnsupportedVersion(
                "unknown version of the format", expected=VERSION, found=version, rule="P-FTR-4"
            )
        footer = cls(*fields)
        if footer.total_size != file_size:
            kind = Truncated if file_size < footer.total_size else TrailingData
            raise kind(
                "the file does not have the size that its footer states",
                expected=f"{footer.total_size} bytes",
                found=f"{file_size} bytes",
                rule="P-FTR-5",
                hint=_RECOVER,
            )
        if footer.metadata_at + footer.metadata_size + FOOTER_SIZE != file_size:
            raise BadOffset(
                "the parts of the index do not fill the space between records and footer",
                offset=footer.index_offset,
                expected=f"an end at byte {file_size - FOOTER_SIZE}",
                found=footer.metadata_at + footer.metadata_size,
                rule="P-FTR-6",
            )
        return footer


_RECOVER: Final = "shardpack.recover(path, output) brings back every complete record"


def u64_sequence(data: memoryview) -> memoryview:
    """Little-endian integers as a sequence of Python ones; without a copy where the machine is, too."""
    if sys.byteorder == "little":
        return data.cast("Q")
    return np.frombuffer(data, "<u8").astype(np.uint64).data


def u32_sequence(data: memoryview) -> memoryview:
    """As `u64_sequence`, for 32 bits."""
    if sys.byteorder == "little":
        return data.cast("I")
    return np.frombuffer(data, "<u4").astype(np.uint32).data
