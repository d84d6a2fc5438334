"""The head of a file that is being written: index and names, spooled until the file is finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from xxhash import xxh64_intdigest

from shard_format._atomic import write_all
from shard_format._blocks import SpooledBlocks
from shard_format._layout import (
    HEADER_SIZE,
    INDEX_DTYPE,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    MAGIC,
    RESERVED_NAME_BYTES,
    VERSION,
    Header,
    HeaderFlag,
    align,
)
from shard_format.errors import InvalidArgument, LimitExceeded, shorten
from shard_format.registry import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format._layout import Codec
    from shard_format.registry import Limits

# Zeros between the names and the data are written in pieces of this size.
_PADDING_BYTES = 1 << 20


class Accepted(NamedTuple):
    """An entry that may be written: everything but its data."""

    name: str
    encoded: bytes
    content_type: int
    tag_bits: int
    tag_names: list[str]
    metadata: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """What decides where the parts of the head go."""

    path: str
    """The file, for errors to name."""
    role: int
    """What the file is for."""
    alignment: int
    """The data starts on a multiple of this."""
    reserved: bool
    """Whether the head has its size before the entries are known."""
    limits: Limits
    """What readers accept."""

    @property
    def terminator(self) -> bytes:
        """What follows each name."""
        return b"" if self.role == Role.WSHARD else b"\0"

    def size(self, count: int, name_bytes: int) -> int:
        """Bytes of the head with so many entries."""
        if count > self.limits.max_entries:
            raise self.too_much("entries", self.limits.max_entries, count)
        size = align(HEADER_SIZE + INDEX_ENTRY_SIZE * count + name_bytes, self.alignment)
        # A reserved head with few entries in it has a string table of nearly its whole length.
        table = size - HEADER_SIZE - (0 if self.reserved else INDEX_ENTRY_SIZE * count)
        if table > self.limits.max_string_table_bytes:
            raise self.too_much("bytes in the head", self.limits.max_string_table_bytes, table)
        return size

    def reserved_size(self, count: int) -> int:
        """Bytes of a head that is reserved for so many entries."""
        return self.size(count, RESERVED_NAME_BYTES * count)

    def too_much(self, what: str, limit: int, found: int) -> LimitExceeded:
        return LimitExceeded(
            f"too many {what} for one file",
            path=self.path,
            expected=f"at most {limit}",
            found=found,
            hint="split the data over several files",
        )


class Head:
    """The rows and names that were written so far.

    Owns: a spool for each. `size` is that of the whole head where it is known before the end, and
    `declared` are the names that must come, in this order, where they were promised.
    """

    def __init__(
        self,
        layout: HeadLayout,
        size: int | None,
        declared: list[str] | None,
        folder: str,
        spool_bytes: int,
    ) -> None:
        self.count = 0
        self._layout = layout
        self._size = size
        self._declared = declared
        self._terminator = layout.terminator
        self._any_content_type = False
        self._index = SpooledBlocks(folder, spool_bytes)
        self._names = SpooledBlocks(folder, spool_bytes)

    def check_next(self, name: str) -> None:
        """Refuses a name that is not the next of the declared ones, if there are any."""
        if self._declared is None:
            return
        expected = self._declared[self.count] if self.count < len(self._declared) else None
        if name != expected:
            raise InvalidArgument(
                "the entry is not the next of the declared names",
                entry=name,
                expected="no more entries" if expected is None else shorten(expected),
            )

    def check_complete(self) -> None:
        """Refuses to finish before all declared names are there."""
        if self._declared is not None and self.count != len(self._declared):
            raise InvalidArgument(
                "not all declared entries were written",
                path=self._layout.path,
                expected=f"{len(self._declared)} entries, next {self._declared[self.count]!r}",
                found=f"{self.count} entries",
            )

    def check_room(self, name: str, encoded: bytes) -> None:
        """Refuses an entry that would not fit."""
        layout, limits = self._layout, self._layout.limits
        if self.count >= limits.max_entries:
            raise layout.too_much("entries", limits.max_entries, self.count + 1)
        used = self._names.position + len(encoded) + len(self._terminator)
        needed = HEADER_SIZE + INDEX_ENTRY_SIZE * (self.count + 1) + used
        if layout.reserved and self._size is not None and needed > self._size:
            raise LimitExceeded(
                "the reserved head is full",
                path=layout.path,
                entry=name,
                expected=f"at most {self._size} bytes of index and names",
                found=f"{needed} bytes",
                hint="give a larger max_entries, or names=, or neither",
            )
        if used > limits.max_string_table_bytes:
            raise layout.too_much("bytes of names", limits.max_string_table_bytes, used)

    def names_with_hash(self, name_hash: int) -> Iterator[bytes]:
        """The names already written that have this hash; asked only when a hash comes again."""
        rows = np.frombuffer(b"".join(self._index.iter_back()), INDEX_DTYPE)
        names = b"".join(self._names.iter_back())
        for row in rows[rows["name_hash"] == np.uint64(name_hash)]:
            start = int(row["name_offset"])
            yield names[start : start + int(row["name_length"])]

    def add(
        self,
        accepted: Accepted,
        flags: int,
        start: int,
        disk_size: int,
        orig_size: int,
        checksum: int,
    ) -> None:
        """Adds a complete entry; `start` counts from the first block."""
        name = accepted.encoded
        self._index.append(
            INDEX_ENTRY.pack(
                xxh64_intdigest(name),
                self._names.position,
                len(name),
                flags,
                start,
                disk_size,
                orig_size,
                checksum,
                accepted.content_type,
                accepted.tag_bits,
            )
        )
        self._names.append(name + self._terminator)
        self._any_content_type |= accepted.content_type != 0
        self.count += 1

    def header(self, default: Codec, data_bytes: int, schema_bytes: int) -> Header:
        """The header of the finished file."""
        layout = self._layout
        size = layout.size(self.count, self._names.position) if self._size is None else self._size
        flags = HeaderFlag.LITTLE_ENDIAN | HeaderFlag.CHECKSUMS
        if schema_bytes:
            flags |= HeaderFlag.SCHEMA
        if layout.reserved:
            flags |= HeaderFlag.RESERVED_HEAD
        if self._any_content_type:
            flags |= HeaderFlag.CONTENT_TYPES
        return Header(
            magic=MAGIC,
            version=VERSION,
            role=layout.role,
            flags=int(flags),
            alignment=layout.alignment,
            compression_default=default,
            index_entry_size=INDEX_ENTRY_SIZE,
            entry_count=self.count,
            string_table_offset=HEADER_SIZE + INDEX_ENTRY_SIZE * self.count,
            data_section_offset=size,
            schema_offset=size + data_bytes if schema_bytes else 0,
            total_file_size=size + data_bytes + schema_bytes,
            reserved=bytes(16),
        )

    def write(self, descriptor: int, header: Header) -> None:
        """Writes all of the head where the descriptor stands."""
        write_all(descriptor, [header.pack()])
        left = b""
        for piece in self._index.iter_back():
            joined = left + bytes(piece)
            whole = len(joined) // INDEX_ENTRY_SIZE * INDEX_ENTRY_SIZE
            rows = np.frombuffer(bytearray(joined[:whole]), INDEX_DTYPE)
            rows["data_offset"] += np.uint64(header.data_section_offset)
            write_all(descriptor, [rows.view(np.uint8).data])
            left = joined[whole:]
        self._names.move_to(descriptor)
        end_of_names = header.string_table_offset + self._names.position
        missing = header.data_section_offset - end_of_names
        while missing:
            count = min(missing, _PADDING_BYTES)
            write_all(descriptor, [bytes(count)])
            missing -= count

    def close(self) -> None:
        """Drops the spools."""
        self._index.close()
        self._names.close()
