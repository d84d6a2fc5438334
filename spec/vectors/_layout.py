"""Where every field of the header and of an index entry is (spec/shard.md, sections 2 and 3).

All fields are unsigned little-endian integers, the magic and the reserved bytes included, so one
pair of functions packs and unpacks everything and every field can be made to lie by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Fields = tuple[tuple[str, int], ...]

HEADER_FIELDS: Fields = (
    ("magic", 4),
    ("version", 1),
    ("role", 1),
    ("flags", 2),
    ("alignment", 1),
    ("compression_default", 1),
    ("index_entry_size", 2),
    ("entry_count", 4),
    ("string_table_offset", 8),
    ("data_section_offset", 8),
    ("schema_offset", 8),
    ("total_file_size", 8),
    ("reserved", 16),
)

ENTRY_FIELDS: Fields = (
    ("name_hash", 8),
    ("name_offset", 4),
    ("name_length", 2),
    ("flags", 2),
    ("data_offset", 8),
    ("disk_size", 8),
    ("orig_size", 8),
    ("crc32c", 4),
    ("content_type", 2),
    ("tag_bits", 2),
)

HEADER_SIZE = 64
ENTRY_SIZE = 48
MAGIC = int.from_bytes(b"SHRD", "little")

FLAG_LITTLE_ENDIAN = 0x0002
FLAG_BIG_ENDIAN = 0x0004
FLAG_SCHEMA = 0x0010
FLAG_CHECKSUMS = 0x0020
FLAG_RESERVED_HEAD = 0x0040
FLAG_CONTENT_TYPES = 0x0080
KNOWN_HEADER_FLAGS = 0x00F7

ENTRY_COMPRESSED = 0x0001
ENTRY_ZSTD = 0x0002
ENTRY_LZ4 = 0x0004
ENTRY_FILTERED = 0x0010
KNOWN_ENTRY_FLAGS = 0x0017
ZSTD = ENTRY_COMPRESSED | ENTRY_ZSTD
LZ4 = ENTRY_COMPRESSED | ENTRY_LZ4

MAX_ALIGNMENT = 64


def align(offset: int, alignment: int) -> int:
    """`offset` rounded up to a multiple of `alignment`; 0 means no rounding."""
    return -(-offset // alignment) * alignment if alignment else offset


def pack(fields: Fields, values: Mapping[str, int]) -> bytes:
    return b"".join(values[name].to_bytes(size, "little") for name, size in fields)


def unpack(fields: Fields, data: bytes, at: int = 0) -> dict[str, int]:
    values = {}
    for name, size in fields:
        values[name] = int.from_bytes(data[at : at + size], "little")
        at += size
    return values


def _overwrite(data: bytes, fields: Fields, at: int, changes: Mapping[str, int]) -> bytes:
    for name in changes.keys() - {name for name, _ in fields}:
        raise KeyError(name)
    end = at + sum(size for _, size in fields)
    return data[:at] + pack(fields, unpack(fields, data, at) | dict(changes)) + data[end:]


def with_header(data: bytes, **changes: int) -> bytes:
    """A copy of a file with some header fields replaced, true or not."""
    return _overwrite(data, HEADER_FIELDS, 0, changes)


def with_entry(data: bytes, index: int, **changes: int) -> bytes:
    """A copy of a file with some fields of one index entry replaced, true or not."""
    return _overwrite(data, ENTRY_FIELDS, HEADER_SIZE + ENTRY_SIZE * index, changes)
