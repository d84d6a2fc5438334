"""The content of one index row: fetched, decoded, checked. Knows nothing of names."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import seekable
from shard_format._kernels import (
    CRC_BYTES_PER_THREAD,
    crc32c,
    crc32c_of_large,
    filled_bytes,
    iter_frames,
)
from shard_format.cache import BoundedCache
from shard_format.canonical_json import too_long
from shard_format.codecs import check_sizes, decode_into, iter_decoded
from shard_format.errors import (
    BadFilter,
    ChecksumMismatch,
    NotViewable,
    SizeMismatch,
    UnknownCodec,
)
from shard_format.filters import USUAL_SIZE, Filters, leading_size, parse_leading
from shard_format.layout import (
    CODEC_BY_FLAGS,
    CODEC_FLAGS,
    COMPRESSED,
    FILTERED,
    Codec,
    HeaderFlag,
    IndexRow,
)
from shard_format.seekable import FrameDecoder, SeekTable
from shard_format.sequential import SequentialSource, temporary_copy
from shard_format.sources import BytesSource, FileSource, can_read_into, can_read_ranges, can_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shard_format.layout import Header
    from shard_format.registry import Limits
    from shard_format.sources import ByteSource

# An attribute of an enumeration takes longer to look up than what is done with it.
_RAW: Final = Codec.NONE
_CHECKSUMS: Final = int(HeaderFlag.CHECKSUMS)
_NOT_RAW: Final = COMPRESSED | FILTERED
# From here on stored bytes are decoded straight from the mapping instead of being read first, and an
# entry is worth a look for a seek table.
_LARGE = 1 << 16
# Mapping a file takes longer than reading a small part of it.
_SMALL = 1 << 16
# Parts of a mapping that are worth a call to bring them into memory.
_EXPECTED = 1 << 18
_MOST_EXPECTED = 32 << 20
# Raw entries are handed out in pieces of this size: large enough to be worth a map.
_PIECE = 1 << 20
# Stored bytes that a decoder needs at once and no view can show: more than this go to a temporary file, not to memory.
_MOST_HELD = 16 << 20

# Which raw entries were compared with their checksum in this process, by the identity of the file and the place of
# the entry in it: opening a file again does not read all of it again.
_verified: Final[BoundedCache[tuple[object, tuple[int, int]], bool]] = BoundedCache(count=1 << 16)


class Content:
    """Reads rows of one file. Entry-level rules of spec/shard.md are checked here.

    Owns: nothing; the source is the reader's.

    Args:
        source: where the bytes come from.
        header: the header of the file.
        limits: what entries may ask for.
        threads: how many threads large reads may use; None for one per processor, up to 8.
        check: whether to compare content with checksums.
    """

    __slots__ = (
        "_can_view",
        "_check",
        "_has_checksums",
        "_header",
        "_limits",
        "_source",
        "_threads",
        "_verified",
    )

    def __init__(
        self, source: ByteSource, header: Header, limits: Limits, threads: int | None, check: bool
    ) -> None:
        self._source = source
        self._can_view = can_view(source)
        self._header = header
        self._limits = limits
        self._threads = threads
        self._check = check
        self._has_checksums = header.flags & _CHECKSUMS != 0
        # For sources without an identity: what this reader has verified.
        self._verified: set[tuple[int, int]] = set()

    def with_threads(self, threads: int) -> Content:
        """The same with another number of threads, for work that is already spread over some."""
        return Content(self._source, self._header, self._limits, threads, self._check)

    def with_checks(self) -> Content:
        """The same, checking also where the reader was asked not to."""
        return Content(self._source, self._header, self._limits, self._threads, True)

    # --- what can be known without reading the content

    def codec(self, row: IndexRow) -> Codec:
        """How the row is stored (S-CMP-1, and S-FLT-1 about the codec)."""
        flags = row.flags & CODEC_FLAGS
        codec = CODEC_BY_FLAGS.get(flags) if flags & COMPRESSED else _RAW
        default = self._header.compression_default
        if codec is None and flags == COMPRESSED and default in (Codec.ZSTD, Codec.LZ4):
            codec = Codec(default)
        if codec is None:
            raise UnknownCodec(
                "the codec of the entry cannot be determined",
                expected="exactly one of the codec flags 2 (zstd) and 4 (lz4), or a default codec",
                found=f"flags 0x{row.flags:04x} and default {default}",
                rule="S-CMP-1",
            )
        if row.flags & FILTERED and codec is not Codec.ZSTD:
            raise BadFilter(
                "a filtered entry is not compressed with zstd",
                expected=Codec.ZSTD.label,
                found=codec.label,
                rule="S-FLT-1",
            )
        return codec

    def check_sizes(self, row: IndexRow) -> Codec:
        """Makes all checks that need no data, before memory is made for the content; returns the codec."""
        if not row.flags & _NOT_RAW and row.disk_size == row.orig_size:
            return _RAW
        codec = self.codec(row)
        if codec is not _RAW:
            check_sizes(codec, row.disk_size, row.orig_size, self._limits)
        elif row.disk_size != row.orig_size:
            raise SizeMismatch(
                "an uncompressed entry has two different sizes",
                expected=f"{row.orig_size} bytes (orig_size)",
                found=f"{row.disk_size} bytes (disk_size)",
                rule="S-DAT-4",
            )
        return codec

    def has_checksum(self, row: IndexRow) -> bool:
        """Whether the file vouches for the row's content (S-CRC-1)."""
        return self._has_checksums or row.crc32c != 0

    def filters(self, row: IndexRow) -> Filters | None:
        """What was done to the row's content before it was compressed; None for nothing."""
        if not row.flags & FILTERED:
            return None
        self.codec(row)
        return self._leading_frame(row)[0]

    def seek_table(self, row: IndexRow) -> SeekTable | None:
        """Where the frames of a seekable zstd row are, read from the source; None for any other row."""
        if self.codec(row) is not Codec.ZSTD:
            return None
        end = row.data_offset + row.disk_size
        footer_size = min(row.disk_size, seekable.FOOTER.size)
        footer = self._source.read_at(end - footer_size, footer_size)
        size = seekable.seek_table_size(footer, row.disk_size)
        if size is None:
            return None
        tail = self._source.read_at(end - size, size)
        filters, leading = self._leading_frame(row)
        return SeekTable.parse(
            tail, row.disk_size, row.orig_size, leading_size=leading, filters=filters
        )

    def frame_decoder(self, row: IndexRow) -> FrameDecoder | None:
        """What decodes parts of a seekable row again and again; None for any other row."""
        table = self.seek_table(row)
        if table is None:
            return None
        self.check_sizes(row)
        return FrameDecoder(table, self._limits)

    # --- all of it

    def read(self, row: IndexRow) -> bytes:
        """The whole content as new bytes."""
        codec = self.check_sizes(row)
        if codec is _RAW:
            data = self._source.read_at(row.data_offset, row.disk_size)
            self._compare(row, data)
            return data
        return self._decoded(row, codec, self._stored(row.data_offset, row.disk_size))

    def read_json_text(self, row: IndexRow) -> bytes:
        """The whole content of a row that must be JSON, refused before it is read if it is too long."""
        if row.orig_size > self._limits.max_json_bytes:
            raise too_long(row.orig_size, "the entry", self._limits)
        return self.read(row)

    def decode(self, row: IndexRow, stored: bytes) -> bytes:
        """The content behind stored bytes that were fetched before, checked."""
        codec = self.check_sizes(row)
        if codec is _RAW:
            self._compare(row, stored)
            return stored
        return self._decoded(row, codec, stored)

    def read_view(self, row: IndexRow) -> memoryview:
        """The whole content, checked, as read-only memory: a view of the source if that saves a copy."""
        if row.flags & _NOT_RAW or row.disk_size != row.orig_size:
            codec = self.check_sizes(row)
            # NumPy's memory: it asks for huge pages.
            out = np.empty(row.orig_size, np.uint8).data
            self._decode_into(row, codec, self._stored(row.data_offset, row.disk_size), out)
            return out.toreadonly()
        source: Any = self._source
        is_file = type(source) is FileSource
        if is_file and (row.disk_size > _SMALL or source.is_mapped):
            return self.view(row, check=True)
        content: memoryview
        if self._can_view and not is_file:
            content = source.view(row.data_offset, row.disk_size)
        else:
            content = memoryview(source.read_at(row.data_offset, row.disk_size))
        self._compare(row, content)
        return content

    def view(self, row: IndexRow, check: bool) -> memoryview:
        """A view of the source, of the whole content; compared with its checksum once in a process."""
        codec, source = self.check_sizes(row), self._source
        if codec is not _RAW or not can_view(source):
            raise NotViewable(
                f"a {type(source).__name__} cannot return views"
                if codec is _RAW
                else f"the entry is compressed with {codec.label}",
                hint="use read_entry, read_view or read_into",
            )
        if check:
            self._verify_once(row)
        return source.view(row.data_offset, row.disk_size)

    def fetch_together(self, rows: Sequence[IndexRow]) -> list[bytes] | None:
        """The stored bytes of many rows, for `decode`; None if the source reads one by one anyway."""
        if not can_read_ranges(self._source):
            return None
        return self._source.read_ranges([(row.data_offset, row.disk_size) for row in rows])

    def iter_pieces(self, row: IndexRow, *, check_table: bool = False) -> Iterator[memoryview]:
        """The whole content in pieces and bounded memory; checked after the last one.

        Args:
            row: the row.
            check_table: whether to compare the seek table with the frames, too, if the row has one.
        """
        checksum = 0
        codec = self.check_sizes(row)
        pieces: Iterator[memoryview]
        if codec is _RAW:
            pieces = self.iter_stored(row)
        else:
            stored = self._all_stored(row)
            filters, leading = self._leading_frame(row, stored)
            if filters is not None:
                self._check_run(stored, leading)
            pieces = iter_decoded(codec, stored, row.orig_size, self._limits, filters)
        for piece in pieces:
            checksum = crc32c(piece, checksum)
            yield piece
        self._compare_checksum(row, checksum)
        if check_table and codec is Codec.ZSTD:
            table = SeekTable.at_end(stored, row.orig_size, leading_size=leading, filters=filters)
            if table is not None:
                FrameDecoder(table, self._limits).check_frames(stored)

    def iter_stored(self, row: IndexRow) -> Iterator[memoryview]:
        """The bytes as they are in the file, in pieces."""
        start, end = row.data_offset, row.data_offset + row.disk_size
        source = self._source
        is_remote = not (can_view(source) or isinstance(source, SequentialSource))
        is_large = row.disk_size > _PIECE
        forward = SequentialSource(source, start, end) if is_remote and is_large else None
        read = self._stored if forward is None else forward.read_at
        try:
            for at in range(start, end, _PIECE):
                yield memoryview(read(at, min(_PIECE, end - at)))
        finally:
            if forward is not None:
                forward.release()

    # --- into memory of the caller

    def read_into(self, row: IndexRow, start: int, out: memoryview) -> None:
        """The content from `start` on, as much as `out` holds: the whole of it, or a part."""
        codec = self.check_sizes(row)
        is_whole = len(out) == row.orig_size
        if codec is _RAW:
            if not is_whole and can_view(self._source):
                self._verify_once(row)
            self._read_raw_into(row.data_offset + start, out)
            if is_whole:
                self._compare(row, out)
            return
        if is_whole:
            self._decode_into(row, codec, self._stored(row.data_offset, row.disk_size), out)
            return
        # Whatever the size of the entry: the table is what makes its parts checkable.
        decoder = self.frame_decoder(row)
        if decoder is not None:
            self.decode_frames_into(row, decoder, start, out)
        else:
            out[:] = self.read_view(row)[start : start + len(out)]

    def decode_frames_into(
        self, row: IndexRow, decoder: FrameDecoder, start: int, out: memoryview
    ) -> None:
        """The content of a seekable row from `start` on, as much as `out` holds."""
        if len(out):
            first, end = decoder.stored_range(decoder.frames_for(start, start + len(out)))
            # Parts are read by several threads, which would wait for each other to bring pages into memory.
            stored = self._stored(row.data_offset + first, end - first, is_needed=False)
            decoder.decode_into(stored, start, out, self._threads)

    # --- inside

    def _leading_frame(
        self, row: IndexRow, stored: bytes | memoryview | None = None
    ) -> tuple[Filters | None, int]:
        """The filters of a row, and the bytes of the frame that describes them; from its stored bytes, if they are here."""
        if not row.flags & FILTERED:
            return None, 0
        head = stored
        if head is None:
            head = self._source.read_at(row.data_offset, min(row.disk_size, USUAL_SIZE))
        size = leading_size(head, row.disk_size)
        if size > len(head):
            head = self._source.read_at(row.data_offset, size)
        return parse_leading(head, size), size

    def _check_run(self, stored: bytes | memoryview, leading: int) -> None:
        """Makes sure that one frame follows the description of the filters, or a run with a seek table (S-FLT-1)."""
        if seekable.has_seek_table(stored):
            return
        frames = list(iter_frames(stored[leading:], self._limits.max_zstd_window_bytes))
        size = len(stored) - leading
        if [(frame.start, frame.stop) for frame in frames] != [(0, size)]:
            raise BadFilter(
                "a filtered entry without a seek table is not one frame",
                expected=f"one frame of {size} bytes after the description",
                found=f"{len(frames)} frames",
                rule="S-FLT-1",
            )

    def _decoded(self, row: IndexRow, codec: Codec, stored: bytes | memoryview) -> bytes:
        return filled_bytes(row.orig_size, lambda out: self._decode_into(row, codec, stored, out))

    def _decode_into(
        self, row: IndexRow, codec: Codec, stored: bytes | memoryview, out: memoryview
    ) -> None:
        """All stored bytes of a compressed row into memory of exactly its size, checked."""
        filters, leading = self._leading_frame(row, stored)
        if filters is not None:
            self._check_run(stored, leading)
        if codec is Codec.ZSTD and row.orig_size >= _LARGE:
            table = SeekTable.at_end(stored, row.orig_size, leading_size=leading, filters=filters)
            if table is not None and len(table) > 1:
                decoder = FrameDecoder(table, self._limits)
                first, end = decoder.stored_range(decoder.frames_for(0, len(out)))
                frames = memoryview(stored)[first:end]
                checksum = decoder.decode_into(frames, 0, out, self._threads)
                self._compare_checksum(row, checksum)
                return
        decode_into(codec, stored, out, self._limits, filters)
        self._compare(row, out)

    def _stored(self, offset: int, length: int, *, is_needed: bool = True) -> bytes | memoryview:
        """Stored bytes for a decoder: a view where that saves a large copy.

        Args:
            offset: where they start.
            length: how many.
            is_needed: whether to bring all of a view into memory with one call.
        """
        source = self._source
        if not can_view(source) or (length < _LARGE and type(source) is FileSource):
            return source.read_at(offset, length)
        view = source.view(offset, length)
        # More than that may still be on the disk, which works while we do.
        if is_needed and _EXPECTED <= length <= _MOST_EXPECTED and type(source) is FileSource:
            source.expect(offset, length)
        return view

    def _all_stored(self, row: IndexRow) -> bytes | memoryview:
        """All stored bytes of a row, in memory, or in a file that is mapped."""
        start, length = row.data_offset, row.disk_size
        if can_view(self._source) or length <= _MOST_HELD:
            return self._stored(start, length)
        with closing(temporary_copy(self._source, start, start + length)) as copy:
            return copy.view(0, length)

    def _read_raw_into(self, offset: int, out: memoryview) -> None:
        source = self._source
        if can_read_into(source):
            source.read_into(offset, out)
        else:
            out[:] = source.read_at(offset, len(out))

    def _verify_once(self, row: IndexRow) -> None:
        """Compares all of a raw row with its checksum, the first time in this process that it is asked for."""
        # An empty entry may lie where another one starts.
        place = row.data_offset, row.disk_size
        if not self._check or place in self._verified:
            return
        source = self._source
        identity = source.identity if isinstance(source, (FileSource, BytesSource)) else None
        if identity is None or not _verified.get((identity, place)):
            self._compare(row, self._stored(*place))
            if identity is not None:
                _verified.put((identity, place), True)
        self._verified.add(place)

    def _compare(self, row: IndexRow, content: bytes | memoryview) -> None:
        """Compares the whole content with the row's checksum, if it has one."""
        if self._check:
            if len(content) < CRC_BYTES_PER_THREAD:
                computed = crc32c(content)
            else:
                computed = crc32c_of_large(content, self._threads)
            if computed != row.crc32c:
                self._compare_checksum(row, computed)

    def _compare_checksum(self, row: IndexRow, computed: int) -> None:
        if computed != row.crc32c and self._check and self.has_checksum(row):
            raise ChecksumMismatch(
                "CRC-32C mismatch: the data is damaged",
                offset=row.data_offset,
                expected=f"{row.crc32c:08x}",
                found=f"{computed:08x}",
                rule="S-CRC-1",
            )
