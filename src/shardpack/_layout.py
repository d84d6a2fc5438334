"""Byte layout of ShardPack version 1, the only module that knows offsets (spec/shardpack.md)."""

from __future__ import annotations

import struct
import sys
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
from shardpack.encodings import MetadataEncoding

VERSION: Final = 1
ALIGNMENTS: Final = (1, 8, 64)

# Record block (section 2): size, tag, entry_count, types_size, key_size, metadata_size.
# The tag holds marker, version, metadata encoding, alignment and flags, so one lookup checks all five.
RECORD_HEAD: Final = struct.Struct("<Q8sIIII")
RECORD_MARKER: Final = b"SPR1"
ROW: Final = struct.Struct("<QQIBxxx")
CHECKSUM: Final = struct.Struct("<I")
# Lengths of a name and of a content type.
TYPE_LENGTHS: Final = struct.Struct("<HH")
# The CRC-32C of any bytes followed by their own CRC-32C.
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


# The same bytes in larger pieces, for whole samples: tag, entry_count and types_size are the shape of a head.
SAMPLE_HEAD: Final = struct.Struct("<Q16sII")


class RecordTag(NamedTuple):
    """What the tag of a record says."""

    metadata_encoding: MetadataEncoding
    mask: int
    """Alignment minus one."""


def record_tag(metadata_encoding: int, alignment: int) -> bytes:
    """Marker, version, metadata encoding, alignment and flags of a record."""
    return RECORD_MARKER + bytes((VERSION, metadata_encoding, alignment, 0))


TAGS: Final = {
    record_tag(encoding, alignment): RecordTag(encoding, alignment - 1)
    for encoding in MetadataEncoding
    for alignment in ALIGNMENTS
}


@lru_cache(maxsize=256)
def rows_struct(count: int) -> struct.Struct:
    """Unpacks all rows of a record: stored size, original size, checksum and encoding of each."""
    return struct.Struct("<" + ROW.format[1:] * count)


@lru_cache(maxsize=256)
def sample_rows(count: int) -> struct.Struct:
    """As `rows_struct`, with the encoding of an entry as upper bits of its checksum."""
    return struct.Struct("<" + "QQQ" * count)


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
        return self.index_offset + INDEX_HEAD.size + 8 * (self.record_count + 1)

    @property
    def metadata_at(self) -> int:
        """Where the metadata of the shard is: after a hash and a number of each record."""
        return self.hashes_at + 12 * self.record_count

    def pack(self) -> bytes:
        """The 64 bytes."""
        body = FOOTER.pack(*self, VERSION, 0, MAGIC)[:-12]
        return body + CHECKSUM.pack(crc32c(body)) + MAGIC

    @classmethod
    def unpack(cls, data: bytes, file_size: int) -> Footer:
        """Parse the last bytes of a file and check every rule of the footer (P-FTR)."""
        if file_size < FOOTER_SIZE + INDEX_HEAD.size + 8 or len(data) < FOOTER_SIZE:
            raise Truncated(
                "too short for a shard",
                expected=f"at least {FOOTER_SIZE + INDEX_HEAD.size + 8} bytes",
                found=f"{file_size} bytes",
                rule="P-FTR-1",
                hint=_RECOVER,
                command=_RECOVER_COMMAND,
            )
        *fields, version, checksum, magic = FOOTER.unpack(data)
        if magic != MAGIC:
            raise BadMagic(
                "not a complete shard: the magic at its end is missing",
                offset=file_size - 8,
                expected=MAGIC.hex(" "),
                found=magic.hex(" "),
                rule="P-FTR-2",
                hint=_RECOVER,
                command=_RECOVER_COMMAND,
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
                command=_RECOVER_COMMAND,
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
                command=_RECOVER_COMMAND,
            )
        metadata_end = footer.metadata_at + footer.metadata_size
        if metadata_end + FOOTER_SIZE != file_size:
            raise BadOffset(
                "the parts of the index do not fill the space between records and footer",
                offset=footer.index_offset,
                expected=f"an end at byte {file_size - FOOTER_SIZE}",
                found=metadata_end,
                rule="P-FTR-6",
            )
        return footer


_RECOVER: Final = "run shardpack.recover(path, output) to recover every complete record"
_RECOVER_COMMAND: Final = "run 'shardpack recover' to recover every complete record"


def sequence(data: memoryview, code: str) -> memoryview:
    """Little-endian integers of a `struct` format character as a sequence; a view on little-endian machines."""
    if sys.byteorder == "little":
        return data.cast(code)  # type: ignore[call-overload,no-any-return] # any of its formats
    return np.frombuffer(data, f"<{code}").astype(code).data
