"""What a writer has before the file is finished: blocks, spooled or in their final place, and the head."""

from __future__ import annotations

import errno
import os
import tempfile
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from xxhash import xxh64_intdigest

from shard_format.atomic import claim_space, copy_range, write_all
from shard_format.errors import InvalidArgument, LimitExceeded, shorten
from shard_format.layout import (
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
from shard_format.registry import Role
from shard_format.writer_input import encode_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format.layout import Codec
    from shard_format.registry import Limits

# --- blocks

_READ_BACK_BYTES = 1 << 20
_SMALL = 1 << 16
_FULL_TAIL = 1 << 18
# Above this NumPy's allocator, which asks for huge pages, copies faster than bytes().
_LARGE_COPY = 1 << 20


class Blocks(ABC):
    """An append-only run of bytes that can also be cut and read back.

    Small pieces gather in a tail before they go anywhere: a file of a million small entries must not
    become a million system calls, or a million objects.
    """

    def __init__(self) -> None:
        self.position = 0
        self._tail = bytearray()

    def append(self, buffer: bytes | memoryview) -> None:
        """Adds bytes at the end; the buffer may be reused afterwards."""
        size = len(buffer)
        if size < _SMALL:
            self._tail += buffer
            if len(self._tail) >= _FULL_TAIL:
                self._flush()
        else:
            self._flush()
            self._store(buffer)
        self.position += size

    def append_range(self, descriptor: int, start: int, length: int) -> None:
        """Adds a range of another file, copied in the kernel where it can."""
        if length < _SMALL:
            piece = os.pread(descriptor, length, start)
            if len(piece) != length:
                raise OSError(errno.EIO, "a file that is copied from lost its end")
            self.append(piece)
            return
        self._flush()
        self._store_range(descriptor, start, length)
        self.position += length

    def _store_range(self, descriptor: int, start: int, length: int) -> None:
        for piece in _iter_file(descriptor, start, start + length):
            self._store(piece)

    def truncate(self, position: int) -> None:
        """Drops everything from `position` on."""
        self._flush()
        self._cut(position)
        self.position = position

    def iter_back(self, start: int = 0) -> Iterator[bytes | memoryview]:
        """What was written from `start` on, in pieces of any size."""
        self._flush()
        return self._iter_stored(start)

    def _flush(self) -> None:
        if self._tail:
            tail, self._tail = self._tail, bytearray()
            self._store(memoryview(tail))

    @abstractmethod
    def _store(self, buffer: bytes | memoryview) -> None: ...

    @abstractmethod
    def _cut(self, position: int) -> None: ...

    @abstractmethod
    def _iter_stored(self, start: int) -> Iterator[bytes | memoryview]: ...


class SpooledBlocks(Blocks):
    """In memory while small, then in a file without a name, which no crash can leave behind.

    Owns: the buffers, or the file.
    """

    def __init__(self, folder: str, memory_bytes: int) -> None:
        super().__init__()
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._buffers: list[bytes | memoryview] = []
        self._in_memory = 0
        self._file: BinaryIO | None = None

    def move_to(self, descriptor: int) -> None:
        """Writes everything at the current position of another file."""
        self._flush()
        if self._file is None:
            write_all(descriptor, self._buffers)
        else:
            copy_range(self._file.fileno(), 0, self.position, descriptor)

    def close(self) -> None:
        """Forgets everything."""
        self._buffers = []
        self._tail = bytearray()
        if self._file is not None:
            self._file.close()

    def _store(self, buffer: bytes | memoryview) -> None:
        if self._file is None:
            if self._in_memory + len(buffer) <= self._memory_bytes:
                self._in_memory += len(buffer)
                self._buffers.append(_frozen(buffer))
                return
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            write_all(self._file.fileno(), self._buffers)
            self._buffers = []
        write_all(self._file.fileno(), [buffer])

    def _cut(self, position: int) -> None:
        if self._file is not None:
            os.ftruncate(self._file.fileno(), position)
            os.lseek(self._file.fileno(), position, os.SEEK_SET)
            return
        while self._in_memory > position:
            last = self._buffers.pop()
            self._in_memory -= len(last)
            if self._in_memory < position:
                self._buffers.append(memoryview(last)[: position - self._in_memory])
                self._in_memory = position

    def _iter_stored(self, start: int) -> Iterator[bytes | memoryview]:
        if self._file is not None:
            yield from _iter_file(self._file.fileno(), start, self.position)
            os.lseek(self._file.fileno(), self.position, os.SEEK_SET)
            return
        at = 0
        for buffer in self._buffers:
            if at + len(buffer) > start:
                yield memoryview(buffer)[max(0, start - at) :]
            at += len(buffer)


class PlacedBlocks(Blocks):
    """Straight into the file, behind a head whose length is already known.

    Owns: nothing; the descriptor belongs to the writer and stands at the end of the file.
    """

    def __init__(self, descriptor: int, base: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._base = base
        self._written = 0
        os.lseek(descriptor, base, os.SEEK_SET)

    def finish(self) -> None:
        """Makes sure that everything is in the file."""
        self._flush()

    def _store(self, buffer: bytes | memoryview) -> None:
        claim_space(self._descriptor, self._base + self._written, len(buffer))
        write_all(self._descriptor, [buffer])
        self._written += len(buffer)

    def _store_range(self, descriptor: int, start: int, length: int) -> None:
        claim_space(self._descriptor, self._base + self._written, length)
        copy_range(descriptor, start, length, self._descriptor)
        self._written += length

    def _cut(self, position: int) -> None:
        os.ftruncate(self._descriptor, self._base + position)
        os.lseek(self._descriptor, self._base + position, os.SEEK_SET)
        self._written = position

    def _iter_stored(self, start: int) -> Iterator[bytes | memoryview]:
        end = self._base + self._written
        yield from _iter_file(self._descriptor, self._base + start, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)


def _frozen(buffer: bytes | memoryview) -> bytes | memoryview:
    if isinstance(buffer, bytes):
        return buffer
    if isinstance(buffer.obj, bytes) and len(buffer) == len(buffer.obj):
        return buffer.obj
    if len(buffer) < _LARGE_COPY:
        return bytes(buffer)
    return np.frombuffer(buffer, np.uint8).copy().data


def _iter_file(descriptor: int, start: int, stop: int) -> Iterator[bytes]:
    while start < stop:
        os.lseek(descriptor, start, os.SEEK_SET)
        piece = os.read(descriptor, min(_READ_BACK_BYTES, stop - start))
        if not piece:
            raise OSError("a temporary file lost its end")
        yield piece
        start += len(piece)


# --- the head

# Zeros between the names and the data are written in pieces of this size.
_PADDING_BYTES = 1 << 20
# Of rows and names, each, this much stays in memory.
_SPOOL_BYTES = 1 << 20


class Accepted(NamedTuple):
    """An entry that may be written: everything but its data."""

    name: str
    encoded: bytes
    content_type: int
    tag_bits: int
    tag_names: list[str]
    metadata: dict[str, Any] | None


class Head:
    """The rows and names that were written so far.

    Owns: a spool for each.

    Args:
        folder: where the spools go.
        path: the file, for errors to name.
        role: what the file is for.
        alignment: the data starts on a multiple of this.
        reserve: the names that must come, in this order, or for how many entries the head is reserved; None if neither
            is known.
        limits: what readers accept.
    """

    def __init__(
        self,
        folder: str,
        path: str,
        role: int,
        alignment: int,
        reserve: int | list[str] | None,
        limits: Limits,
    ) -> None:
        self.count = 0
        self._path = path
        self._role = role
        self._alignment = alignment
        self._limits = limits
        self._terminator = b"" if role == Role.WSHARD else b"\0"
        self._any_content_type = False
        self._index = SpooledBlocks(folder, _SPOOL_BYTES)
        self._names = SpooledBlocks(folder, _SPOOL_BYTES)
        self._is_reserved = isinstance(reserve, int)
        self._declared: list[str] | None = None
        self.size: int | None = None
        """Bytes of the whole head, where that is known before the end."""
        if isinstance(reserve, int):
            self.size = self._size_of(reserve, RESERVED_NAME_BYTES * reserve)
        elif reserve is not None:
            self._declared = reserve
            used = sum(len(encode_name(name)) + len(self._terminator) for name in reserve)
            self.size = self._size_of(len(reserve), used)

    def _size_of(self, count: int, name_bytes: int) -> int:
        """Bytes of the head with this many entries."""
        if count > self._limits.max_entries:
            raise self._too_much("entries", self._limits.max_entries, count)
        size = align(HEADER_SIZE + INDEX_ENTRY_SIZE * count + name_bytes, self._alignment)
        # A reserved head with few entries in it has a string table of nearly its whole length.
        table = size - HEADER_SIZE - (0 if self._is_reserved else INDEX_ENTRY_SIZE * count)
        if table > self._limits.max_string_table_bytes:
            raise self._too_much("bytes in the head", self._limits.max_string_table_bytes, table)
        return size

    def _too_much(self, what: str, limit: int, found: int) -> LimitExceeded:
        return LimitExceeded(
            f"too many {what} for one file",
            path=self._path,
            expected=f"at most {limit}",
            found=found,
            hint="split the data over several files",
        )

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
                path=self._path,
                expected=f"{len(self._declared)} entries, next {self._declared[self.count]!r}",
                found=f"{self.count} entries",
            )

    def check_room(self, name: str, encoded: bytes) -> None:
        """Refuses an entry that would not fit."""
        limits = self._limits
        if self.count >= limits.max_entries:
            raise self._too_much("entries", limits.max_entries, self.count + 1)
        used = self._names.position + len(encoded) + len(self._terminator)
        needed = HEADER_SIZE + INDEX_ENTRY_SIZE * (self.count + 1) + used
        if self._is_reserved and self.size is not None and needed > self.size:
            raise LimitExceeded(
                "the reserved head is full",
                path=self._path,
                entry=name,
                expected=f"at most {self.size} bytes of index and names",
                found=f"{needed} bytes",
                hint="reserve more entries, or all names, or nothing",
            )
        if used > limits.max_string_table_bytes:
            raise self._too_much("bytes of names", limits.max_string_table_bytes, used)

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
        size = self._size_of(self.count, self._names.position) if self.size is None else self.size
        flags = HeaderFlag.LITTLE_ENDIAN | HeaderFlag.CHECKSUMS
        if schema_bytes:
            flags |= HeaderFlag.SCHEMA
        if self._is_reserved:
            flags |= HeaderFlag.RESERVED_HEAD
        if self._any_content_type:
            flags |= HeaderFlag.CONTENT_TYPES
        return Header(
            magic=MAGIC,
            version=VERSION,
            role=self._role,
            flags=int(flags),
            alignment=self._alignment,
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
