"""The content of one index row: fetched, decoded, checked. Knows nothing of names."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format import _filtered, seekable
from shard_format._crc import combine
from shard_format._frame_decoding import FrameDecoder, check_frames
from shard_format._layout import (
    CODEC_BY_FLAGS,
    CODEC_FLAGS,
    COMPRESSED,
    FILTERED,
    Codec,
    HeaderFlag,
    IndexRow,
)
from shard_format._memory import filled_bytes
from shard_format._parallel import map_in_order, thread_count
from shard_format.codecs import check_sizes, crc32c, decode, decode_into, iter_decoded
from shard_format.errors import BadFilter, ChecksumMismatch, SizeMismatch, UnknownCodec
from shard_format.sources import (
    FileSource,
    can_read_into,
    can_read_ranges,
    can_view,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shard_format._layout import Header
    from shard_format.filters import Filters
    from shard_format.registry import Limits
    from shard_format.sources import ByteSource

_NOT_RAW = COMPRESSED | FILTERED
_FIELDS = len(IndexRow._fields)
_FLAGS, _START, _DISK_SIZE, _ORIG_SIZE, _CHECKSUM = map(
    IndexRow._fields.index, ("flags", "data_offset", "disk_size", "orig_size", "crc32c")
)
_CHECKSUMS = HeaderFlag.CHECKSUMS.value
# From here on stored bytes are decoded straight from the mapping instead of being read first, and an
# entry is worth a look for a seek table.
_LARGE = 1 << 16
# Mapping a file takes longer than reading so little of it.
_SMALL = 1 << 16
# Parts of a mapping that are worth a call to bring them into reach.
_EXPECTED = 1 << 18
_MOST_EXPECTED = 32 << 20
# A checksum runs at tens of gigabytes a second: a thread must be worth starting.
_CHECKED_BYTES_PER_THREAD = 4 << 20
# Raw entries are handed out in pieces of this size: large enough to be worth a map.
_PIECE = 1 << 20


class Content:
    """Reads rows of one file. Entry-level rules of spec/shard.md are checked here.

    Owns: nothing; the source is the reader's.
    """

    __slots__ = (
        *("_all_checked", "_check", "_default_codec", "_head", "_head_size", "_limits"),
        *("_source", "_threads"),
    )

    def __init__(
        self,
        source: ByteSource,
        header: Header,
        limits: Limits,
        threads: int | None,
        check: bool,
        head: bytes = b"",
    ) -> None:
        """`head`: the first bytes of the file, as far as they were read to open it."""
        self._head = head
        self._head_size = len(head)
        self._source = source
        self._default_codec = header.compression_default
        self._limits = limits
        self._threads = threads
        self._check = check
        self._all_checked = bool(header.flags & _CHECKSUMS)

    def with_threads(self, threads: int) -> Content:
        """The same with another number of threads, for work that is already spread over some."""
        other = copy(self)
        other._threads = threads
        return other

    def with_checks(self) -> Content:
        """The same, checking also where the reader was asked not to."""
        other = copy(self)
        other._check = True
        return other

    # --- what can be known without reading

    def codec(self, row: IndexRow) -> Codec:
        """How the row is stored (S-CMP-1, and S-FLT-1 about the codec)."""
        codec = self._codec(row)
        if row.flags & FILTERED and codec is not Codec.ZSTD:
            raise BadFilter(
                "a filtered entry is not compressed with zstd",
                expected=Codec.ZSTD.label,
                found=codec.label,
                rule="S-FLT-1",
            )
        return codec

    def _codec(self, row: IndexRow) -> Codec:
        flags = row.flags & CODEC_FLAGS
        if not flags & COMPRESSED:
            return Codec.NONE
        codec = CODEC_BY_FLAGS.get(flags)
        if codec is not None:
            return codec
        if flags == COMPRESSED and self._default_codec in (Codec.ZSTD, Codec.LZ4):
            return Codec(self._default_codec)
        raise UnknownCodec(
            "the codec of the entry cannot be determined",
            expected="exactly one of the codec flags 2 (zstd) and 4 (lz4), or a default codec",
            found=f"flags 0x{row.flags:04x} and default {self._default_codec}",
            rule="S-CMP-1",
        )

    def check_sizes(self, row: IndexRow) -> None:
        """All checks that need no data: to be done before memory is made for the content."""
        self._prepare(row, look_for_table=False)

    def has_checksum(self, row: IndexRow) -> bool:
        """Whether the file vouches for the row's content (S-CRC-1)."""
        return self._all_checked or row.crc32c != 0

    def seek_table(self, row: IndexRow) -> seekable.SeekTable | None:
        """Where the frames of a seekable zstd row are; None for any other."""
        if self.codec(row) is not Codec.ZSTD:
            return None
        end = row.data_offset + row.disk_size
        footer_size = min(row.disk_size, seekable.FOOTER.size)
        footer = self._source.read_at(end - footer_size, footer_size)
        size = seekable.seek_table_size(footer, row.disk_size)
        if size is None:
            return None
        tail = self._source.read_at(end - size, size)
        if not row.flags & FILTERED:
            return seekable.SeekTable.parse(tail, row.disk_size, row.orig_size)
        filters, leading_size = self._leading_frame(row)
        return seekable.SeekTable.parse(
            tail, row.disk_size, row.orig_size, leading_size=leading_size, filters=filters
        )

    def filters(self, row: IndexRow) -> Filters | None:
        """What was done to the row's content before it was compressed; None for nothing."""
        if not row.flags & FILTERED:
            return None
        self.codec(row)
        return self._leading_frame(row)[0]

    # --- all of it

    def read(self, row: IndexRow) -> bytes:
        """The whole content as new bytes."""
        if not row.flags & _NOT_RAW and row.disk_size == row.orig_size:
            end = row.data_offset + row.disk_size
            if end <= self._head_size:
                data = self._head[row.data_offset : end]
            else:
                data = self._source.read_at(row.data_offset, row.disk_size)
            self.compare(row, data)
            return data
        fetched = self._fetched(row)
        if fetched is not None:
            return fetched.read(row)
        codec, table = self._prepare(row)
        if table is not None:
            return filled_bytes(row.orig_size, lambda out: self._read_frames_into(row, table, out))
        return self._decode(row, codec, self._stored(row.data_offset, row.disk_size))

    def at_hand(self, rows: tuple[Any, ...], numbers: Iterable[int]) -> list[memoryview | None]:
        """The whole content of several rows, of each if it is raw, came with the head and has the right
        checksum; else None, and `memory` says why.

        Args:
            rows: the fields of all rows, one after the other.
            numbers: which rows.
        """
        head, head_size = memoryview(self._head), self._head_size
        found: list[memoryview | None] = []
        for number in numbers:
            at = _FIELDS * number
            start, size = rows[at + _START], rows[at + _DISK_SIZE]
            content = None
            if (
                start + size <= head_size
                and size == rows[at + _ORIG_SIZE]
                and not rows[at + _FLAGS] & _NOT_RAW
            ):
                content = head[start : start + size]
                if crc32c(content) != rows[at + _CHECKSUM]:
                    content = None
            found.append(content)
        return found

    def memory(self, fields: tuple[Any, ...]) -> bytes | memoryview | None:
        """The whole content of a row, given as a plain tuple: checked, as memory that needs no copy, or none
        worth avoiding. None if it must be decoded, or comes from a source without views."""
        _, _, _, flags, start, size, orig_size, checksum, _, _ = fields
        if flags & _NOT_RAW or size != orig_size:
            return None
        content: bytes | memoryview | None
        if start + size <= self._head_size:
            content = self.at_hand(fields, (0,))[0]
            if content is not None:
                return content
        source = self._source
        if size <= _SMALL and type(source) is FileSource and not source.is_mapped:
            content = source.read_at(start, size)
            if crc32c(content) == checksum:
                return content
        elif can_view(source):
            content = self._view_of_all(start, size) if self._check else source.view(start, size)
        else:
            return None
        self.compare(IndexRow._make(fields), content)
        return content

    def small(self, fields: tuple[Any, ...]) -> bytes:
        """What `read` returns, for a row given as a plain tuple: descriptions mostly came with the head."""
        _, _, _, flags, start, size, orig_size, checksum, _, _ = fields
        end = start + size
        if end <= self._head_size and size == orig_size and not flags & _NOT_RAW:
            content = self._head[start:end]
            if crc32c(content) == checksum:
                return content
        return self.read(IndexRow._make(fields))

    def read_into(self, row: IndexRow, out: memoryview) -> None:
        """The whole content, into memory of exactly its size."""
        fetched = self._fetched(row)
        if fetched is not None:
            fetched.read_into(row, out)
            return
        codec, table = self._prepare(row)
        if table is not None:
            self._read_frames_into(row, table, out)
            return
        if codec is Codec.NONE:
            self._read_raw_into(row.data_offset, out)
        else:
            stored = self._stored(row.data_offset, row.disk_size)
            if row.flags & FILTERED:
                _filtered.decode_into(stored, out, self._limits)
            else:
                decode_into(codec, stored, out, self._limits)
        self.compare(row, out)

    def fetch_together(self, rows: Sequence[IndexRow]) -> list[bytes] | None:
        """The stored bytes of many rows, for `decode`; None if the source reads one by one anyway."""
        if not can_read_ranges(self._source):
            return None
        return self._source.read_ranges([(row.data_offset, row.disk_size) for row in rows])

    def decode(self, row: IndexRow, stored: bytes) -> bytes:
        """The content behind stored bytes, checked."""
        codec, _ = self._prepare(row, look_for_table=False)
        return self._decode(row, codec, stored)

    def iter_pieces(self, row: IndexRow) -> Iterator[memoryview]:
        """The whole content in pieces and bounded memory; checked after the last one."""
        checksum = 0
        checked = self._check and self.has_checksum(row)
        for piece in self._iter_unchecked(row):
            if checked:
                checksum = crc32c(piece, checksum)
            yield piece
        if checked:
            _compare_checksum(row, checksum)

    def iter_stored(self, row: IndexRow) -> Iterator[memoryview]:
        """The bytes as they are in the file, in pieces."""
        end = row.data_offset + row.disk_size
        for start in range(row.data_offset, end, _PIECE):
            yield memoryview(self._stored(start, min(_PIECE, end - start)))

    def check_seek_table(self, row: IndexRow) -> None:
        """Holds the seek table against the frames, where the row has one."""
        table = self.seek_table(row)
        if table is not None:
            stored = self._stored(row.data_offset, row.disk_size)
            check_frames(table, stored, self._limits)

    # --- a part of it

    def read_part(self, row: IndexRow, start: int, stop: int) -> bytes:
        """The content from `start` to `stop` as new bytes."""
        if self.codec(row) is Codec.NONE:
            check_raw(row)
            return self._source.read_at(row.data_offset + start, stop - start)
        return filled_bytes(stop - start, lambda out: self.read_part_into(row, start, out))

    def read_part_into(self, row: IndexRow, start: int, out: memoryview) -> None:
        """The content from `start` on, as much as `out` holds."""
        codec, _ = self._prepare(row, look_for_table=False)
        if codec is Codec.NONE:
            self._read_raw_into(row.data_offset + start, out)
            return
        # Whatever the size of the entry: the table is what makes its parts checkable.
        table = self.seek_table(row)
        if table is not None:
            self.decode_frames_into(row, FrameDecoder(table, self._limits), start, out)
            return
        whole = np.empty(row.orig_size, np.uint8)
        self.read_into(row, whole.data)
        out[:] = whole.data[start : start + len(out)]

    def frame_decoder(self, row: IndexRow) -> FrameDecoder | None:
        """What decodes parts of a seekable row again and again; None for any other."""
        table = self.seek_table(row)
        if table is None:
            return None
        self.check_sizes(row)
        return FrameDecoder(table, self._limits)

    def decode_frames_into(
        self, row: IndexRow, decoder: FrameDecoder, start: int, out: memoryview
    ) -> int:
        """The content of a seekable row from `start` on, as much as `out` holds; returns the CRC-32C if that is all."""
        size = len(out)
        if not size:
            return 0
        frames = decoder.frames_for(start, start + size)
        first, end = decoder.stored_range(frames)
        is_all = size == row.orig_size
        stored = self._stored(row.data_offset + first, end - first, expected=is_all)
        return decoder.decode_into(frames, stored, start, out, self._threads, measured=is_all)

    # --- inside

    def _prepare(
        self, row: IndexRow, *, look_for_table: bool = True
    ) -> tuple[Codec, seekable.SeekTable | None]:
        """The codec, after all checks that need no data, and the seek table where it is of use."""
        codec = self.codec(row)
        if codec is Codec.NONE:
            check_raw(row)
            return codec, None
        check_sizes(codec, row.disk_size, row.orig_size, self._limits)
        if look_for_table and codec is Codec.ZSTD and row.orig_size >= _LARGE:
            table = self.seek_table(row)
            if table is not None and len(table) > 1:
                return codec, table
        return codec, None

    def _fetched(self, row: IndexRow) -> Content | None:
        """The same over the row's stored bytes, where a look for the seek table would be a request."""
        source = self._source
        if row.orig_size < _LARGE or can_view(source) or not _is_remote(source):
            return None
        codec, _ = self._prepare(row, look_for_table=False)
        if codec is not Codec.ZSTD:
            return None
        other = copy(self)
        other._source = _Fetched(source, row.data_offset, row.disk_size)
        return other

    def _leading_frame(self, row: IndexRow) -> tuple[Filters, int]:
        """The filters of a filtered row, and the bytes of the frame that describes them."""
        head = self._source.read_at(row.data_offset, min(row.disk_size, _filtered.USUAL_SIZE))
        size = _filtered.leading_size(head, row.disk_size)
        if size > len(head):
            head = self._source.read_at(row.data_offset, size)
        return _filtered.parse_leading(head, size), size

    def _stored(self, offset: int, length: int, *, expected: bool = True) -> bytes | memoryview:
        """Stored bytes for a decoder: a view where that saves a large copy.

        Parts are not `expected`: they are read by several threads, which would wait for each other meanwhile.
        """
        source = self._source
        if length >= _LARGE and can_view(source):
            return self._view_of_all(offset, length) if expected else source.view(offset, length)
        return source.read_at(offset, length)

    def _view_of_all(self, offset: int, length: int) -> memoryview:
        """A view of bytes that will all be read at once."""
        source = self._source
        assert can_view(source)
        view = source.view(offset, length)
        # More than that may still be on the disk, which works while we do.
        if type(source) is FileSource and _EXPECTED <= length <= _MOST_EXPECTED:
            source.expect(offset, length)
        return view

    def _decode(self, row: IndexRow, codec: Codec, stored: bytes | memoryview) -> bytes:
        if codec is Codec.NONE:
            data = bytes(stored)
        elif row.flags & FILTERED:
            limits = self._limits
            data = filled_bytes(
                row.orig_size, lambda out: _filtered.decode_into(stored, out, limits)
            )
        else:
            data = decode(codec, stored, row.orig_size, self._limits)
        self.compare(row, data)
        return data

    def _read_raw_into(self, offset: int, out: memoryview) -> None:
        source = self._source
        if can_read_into(source):
            source.read_into(offset, out)
        else:
            out[:] = source.read_at(offset, len(out))

    def _read_frames_into(self, row: IndexRow, table: seekable.SeekTable, out: memoryview) -> None:
        checksum = self.decode_frames_into(row, FrameDecoder(table, self._limits), 0, out)
        if self._check and self.has_checksum(row):
            _compare_checksum(row, checksum)

    def _iter_unchecked(self, row: IndexRow) -> Iterator[memoryview]:
        codec, _ = self._prepare(row, look_for_table=False)
        if codec is Codec.NONE:
            yield from self.iter_stored(row)
            return
        stored = self._stored(row.data_offset, row.disk_size)
        if row.flags & FILTERED:
            yield from _filtered.iter_decoded(stored, row.orig_size, self._limits)
        else:
            yield from iter_decoded(codec, stored, row.orig_size, self._limits)

    def compare(self, row: IndexRow, content: bytes | memoryview) -> None:
        """Holds the whole content against the row's checksum, where it has one."""
        if not self._check or not (self._all_checked or row.crc32c):
            return
        if len(content) < 2 * _CHECKED_BYTES_PER_THREAD:
            checksum = crc32c(content)
        else:
            workers = thread_count(self._threads, len(content), _CHECKED_BYTES_PER_THREAD)
            checksum = _checksum_in_parts(content, workers)
        if checksum != row.crc32c:
            _compare_checksum(row, checksum)


def _is_remote(source: ByteSource) -> bool:
    """Whether a read is a request. Not a type guard: it stays a source."""
    return can_read_ranges(source)


class _Fetched:
    """A part of a source, in memory, at the offsets it has there."""

    def __init__(self, source: ByteSource, offset: int, length: int) -> None:
        self.name = source.name
        self._size = source.size()
        self._offset = offset
        self._view = memoryview(source.read_at(offset, length))

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self.view(offset, length))

    def view(self, offset: int, length: int) -> memoryview:
        return self._view[offset - self._offset : offset - self._offset + length]

    def close(self) -> None:
        """Leaves the source open."""


def check_raw(row: IndexRow) -> None:
    """S-DAT-4."""
    if row.disk_size != row.orig_size:
        raise SizeMismatch(
            "an uncompressed entry has two different sizes",
            expected=f"{row.orig_size} bytes (orig_size)",
            found=f"{row.disk_size} bytes (disk_size)",
            rule="S-DAT-4",
        )


def _checksum_in_parts(content: bytes | memoryview, workers: int) -> int:
    """CRC-32C of large content, on several processors."""
    view = memoryview(content)
    step = -(-len(view) // workers)
    parts = [view[start : start + step] for start in range(0, len(view), step)]
    total = 0
    for part, checksum in zip(parts, map_in_order(parts, crc32c, workers), strict=True):
        total = combine(total, checksum, len(part))
    return total


def _compare_checksum(row: IndexRow, computed: int) -> None:
    if computed != row.crc32c:
        raise ChecksumMismatch(
            "CRC-32C mismatch: the data is damaged",
            offset=row.data_offset,
            expected=f"{row.crc32c:08x}",
            found=f"{computed:08x}",
            rule="S-CRC-1",
        )
