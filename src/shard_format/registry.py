"""Values of spec/registry.md that a caller may meet: roles, content types and limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from shard_format.errors import InvalidArgument
from shard_format.layout import Codec

__all__ = ["Codec", "ContentType", "Limits", "Role"]


class Role(IntEnum):
    """What a file is for. Other values are legal and open as plain archives."""

    UNKNOWN = 0
    MODEL_WEIGHTS = 1
    SAMPLES = 2
    GEMM_PANELS = 3
    MANIFEST = 4
    WSHARD = 5
    MODEL_VARIANT = 6
    COLUMNS = 8
    VECTOR_INDEX = 16


class ContentType(IntEnum):
    """A hint about what an entry holds. Other values are legal; those from 0x8000 are private."""

    UNKNOWN = 0
    TENSOR_V1 = 1
    JSON = 2
    COWRIE = 3
    GLYPH = 4
    TEXT = 5
    IMAGE = 6
    AUDIO = 7
    VIDEO = 8
    PROTOBUF = 9
    BLOB = 10
    QMLN = 11
    TENSOR_V3 = 12
    SHARED_ANCHOR = 13
    DELTA_EXPERT = 14
    SHARED_CODEBOOK = 15
    EXPERT_INDICES = 16
    COLUMN_CHUNK = 17


def role_label(role: int) -> str:
    """`wshard` for 5, `unassigned (7)` or `private (200)` for values without a name."""
    try:
        return Role(role).name.lower()
    except ValueError:
        return f"{'private' if role >= 0x80 else 'unassigned'} ({role})"


def content_type_label(content_type: int) -> str:
    """`json` for 2, `user (32768)` or `unassigned (99)` for values without a name."""
    try:
        return ContentType(content_type).name.lower()
    except ValueError:
        return f"{'user' if content_type >= 0x8000 else 'unassigned'} ({content_type})"


def parse_role(role: int | str) -> int:
    """A role given as number or as name."""
    return _parse("role", Role, role, 0xFF)


def parse_content_type(content_type: int | str) -> int:
    """A content type given as number or as name."""
    return _parse("content type", ContentType, content_type, 0xFFFF)


def _parse(what: str, names: type[IntEnum], value: int | str, largest: int) -> int:
    if isinstance(value, str):
        if value.isdecimal():
            value = int(value) if len(value) < len(str(largest)) + 9 else largest + 1
        else:
            try:
                return int(names[value.upper()])
            except KeyError:
                known = ", ".join(member.name.lower() for member in names)
                raise InvalidArgument(
                    f"unknown {what} {value!r}", expected=f"a number or one of {known}"
                ) from None
    if not 0 <= value <= largest:
        raise InvalidArgument(f"{what} out of range", expected=f"0 to {largest}", found=value)
    return int(value)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may ask of a reader (spec/shard.md, section 14). Raise one for files you trust."""

    max_entries: int = 10_000_000
    """Entries in one file; this library cannot go above 2**24."""
    max_index_bytes: int = 1 << 30
    """Bytes of the index."""
    max_string_table_bytes: int = 100 << 20
    """Bytes between the index and the first block."""
    max_decompressed_bytes: int = 1 << 30
    """Bytes of one compressed entry after decompression; of the pixels of an image and the arrays of an archive in it."""
    max_zstd_window_bytes: int = 128 << 20
    """History that a zstd frame may ask the decoder to keep."""
    max_json_bytes: int = 16 << 20
    """Bytes of the schema section or of a metadata entry."""
    max_json_nodes: int = 1_000_000
    """Values in JSON: the characters `[`, `{`, `,` and `:` outside strings."""


DEFAULT_LIMITS = Limits()
