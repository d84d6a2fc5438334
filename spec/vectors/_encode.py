"""A raw encoder: lays a container out byte by byte, without checking anything.

It builds files that are consistent unless told otherwise. Lies in single fields are added to the
finished bytes with `with_header` and `with_entry` of `_layout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from _layout import (
    ENTRY_FIELDS,
    ENTRY_SIZE,
    FLAG_CHECKSUMS,
    FLAG_CONTENT_TYPES,
    FLAG_LITTLE_ENDIAN,
    FLAG_SCHEMA,
    HEADER_FIELDS,
    HEADER_SIZE,
    MAGIC,
    align,
    pack,
)
from _primitives import crc32c, xxh64


@dataclass(frozen=True)
class Entry:
    """One entry. `name` is bytes only where it is not meant to be text."""

    name: str | bytes
    content: bytes = b""
    content_type: int = 0
    tag_bits: int = 0
    flags: int = 0
    stored: bytes | None = None
    """The bytes on disk; None stores `content` raw."""
    gap: bytes | None = None
    """The bytes between the previous block and this one; None pads to the alignment."""
    crc32c: int | None = None
    """None computes it from `content`."""

    @property
    def name_bytes(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode()

    @property
    def disk_bytes(self) -> bytes:
        return self.content if self.stored is None else self.stored


@dataclass(frozen=True)
class Container:
    """Everything that shapes a file. The defaults are what a writer of ours would choose."""

    entries: tuple[Entry, ...] = ()
    role: int = 0
    alignment: int = 16
    compression_default: int = 0
    flags: int | None = None
    reserved: int = 0
    name_terminator: bytes = b"\0"
    string_table: bytes | None = None
    """Replaces the joined names; each name is then looked up in it."""
    data_section_offset: int | None = None
    """Replaces the end of the names, aligned: a head with room to spare."""
    data_order: tuple[int, ...] | None = None
    """Positions in the index, in the order in which the blocks are laid out."""
    tail: bytes = b""
    """Bytes after the last block."""
    schema: bytes | None = None


def _flags(container: Container) -> int:
    """Header flags as S-HDR-13 asks."""
    return (
        FLAG_LITTLE_ENDIAN
        | FLAG_CHECKSUMS
        | (FLAG_SCHEMA if container.schema is not None else 0)
        | (FLAG_CONTENT_TYPES if any(e.content_type for e in container.entries) else 0)
    )


def _string_table(container: Container) -> tuple[bytes, list[int]]:
    """The names and the offset of each one."""
    if container.string_table is not None:
        table = container.string_table
        return table, [table.index(entry.name_bytes) for entry in container.entries]
    offsets, size = [], 0
    for entry in container.entries:
        offsets.append(size)
        size += len(entry.name_bytes) + len(container.name_terminator)
    names = [entry.name_bytes + container.name_terminator for entry in container.entries]
    return b"".join(names), offsets


def _place_blocks(container: Container, start: int) -> tuple[list[bytes], dict[int, int]]:
    """The data section in pieces, and the offset of each entry's block."""
    pieces: list[bytes] = []
    offsets: dict[int, int] = {}
    position = start
    for index in container.data_order or range(len(container.entries)):
        entry = container.entries[index]
        gap = entry.gap
        if gap is None:
            gap = bytes(align(position, container.alignment) - position)
        offsets[index] = position + len(gap)
        position = offsets[index] + len(entry.disk_bytes)
        pieces += [gap, entry.disk_bytes]
    return pieces, offsets


def encode(container: Container) -> bytes:
    table, name_offsets = _string_table(container)
    table_offset = HEADER_SIZE + ENTRY_SIZE * len(container.entries)
    data_start = container.data_section_offset
    if data_start is None:
        data_start = align(table_offset + len(table), container.alignment)
    pieces, data_offsets = _place_blocks(container, data_start)
    data = b"".join(pieces) + container.tail
    schema = container.schema or b""
    index = [
        pack(
            ENTRY_FIELDS,
            {
                "name_hash": xxh64(entry.name_bytes),
                "name_offset": name_offsets[i],
                "name_length": len(entry.name_bytes),
                "flags": entry.flags,
                "data_offset": data_offsets[i],
                "disk_size": len(entry.disk_bytes),
                "orig_size": len(entry.content),
                "crc32c": crc32c(entry.content) if entry.crc32c is None else entry.crc32c,
                "content_type": entry.content_type,
                "tag_bits": entry.tag_bits,
            },
        )
        for i, entry in enumerate(container.entries)
    ]
    header = pack(
        HEADER_FIELDS,
        {
            "magic": MAGIC,
            "version": 2,
            "role": container.role,
            "flags": _flags(container) if container.flags is None else container.flags,
            "alignment": container.alignment,
            "compression_default": container.compression_default,
            "index_entry_size": ENTRY_SIZE,
            "entry_count": len(container.entries),
            "string_table_offset": table_offset,
            "data_section_offset": data_start,
            "schema_offset": 0 if container.schema is None else data_start + len(data),
            "total_file_size": data_start + len(data) + len(schema),
            "reserved": container.reserved,
        },
    )
    head = header + b"".join(index) + table
    return head.ljust(data_start, b"\0") + data + schema
