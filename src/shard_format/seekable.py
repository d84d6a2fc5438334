"""Seekable zstd entries: independent frames and a seek table (spec/shard.md, section 8).

Written as tables of rows, read by `FrameDecoder`, which decodes the frames that hold a range.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh64_intdigest

from shard_format._kernels import (
    Frame,
    combine_crc32c,
    crc32c,
    decode_frame_into,
    frame_checksum,
    frame_header,
    iter_frames,
)
from shard_format.cache import Pool
from shard_format.errors import BadCompression, BadSeekTable, ChecksumMismatch, SizeMismatch
from shard_format.parallel import batches, for_each, thread_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shard_format.filters import Filters
    from shard_format.registry import Limits

__all__ = ["LARGEST_FRAME_CONTENT", "FrameDecoder", "SeekTable", "table_of_rows"]

FOOTER: Final = struct.Struct("<IBI")
LARGEST_FRAME_CONTENT: Final = (1 << 32) - 1

_SKIPPABLE_HEADER = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5E
_FOOTER_MAGIC = 0x8F92EAB1
_HAS_CHECKSUMS = 0x80
_RESERVED_BITS = 0x7C
_ROW_DTYPE = np.dtype([("compressed", "<u4"), ("decompressed", "<u4"), ("checksum", "<u4")])
# Decoding this much takes several times as long as starting a thread for it.
_DECODED_BYTES_PER_THREAD = 1 << 18
_MOST_KEPT = 1 << 22

# Memory for frames of which only a part is wanted: fresh memory costs more than decoding into it.
_scratch = Pool(lambda: memoryview(b""), keep=16)


def seek_table_size(footer: bytes, disk_size: int) -> int | None:
    """Bytes of the skippable frame that the last nine stored bytes announce, None if they do not."""
    if len(footer) != FOOTER.size:
        return None
    frames, descriptor, magic = FOOTER.unpack(footer)
    if magic != _FOOTER_MAGIC:
        return None
    row_size = 12 if descriptor & _HAS_CHECKSUMS else 8
    size: int = _SKIPPABLE_HEADER.size + frames * row_size + FOOTER.size
    return size if size <= disk_size else None


def has_seek_table(stored: bytes | memoryview) -> bool:
    """Whether the last bytes of an entry are a seek table: a footer, and the frame that it announces."""
    size = seek_table_size(bytes(stored[-FOOTER.size :]), len(stored))
    if size is None:
        return False
    head = _SKIPPABLE_HEADER.unpack_from(stored, len(stored) - size)
    return head == (_SKIPPABLE_MAGIC, size - _SKIPPABLE_HEADER.size)


@dataclass(frozen=True, slots=True)
class SeekTable:
    """Where each frame of an entry starts, stored and decoded. Arrays have one element per frame."""

    stored_starts: NDArray[np.int64]
    """Start of each frame in the stored bytes; one more element for the end of the last."""
    content_starts: NDArray[np.int64]
    """Start of each frame's content in the entry; one more element for the end of the last."""
    checksums: NDArray[np.uint32] | None
    """Low half of the XXH64 of each frame's content, where the table has it."""
    filters: Filters | None = None
    """What was done to each frame's content before it was compressed."""

    def __len__(self) -> int:
        return len(self.content_starts) - 1

    @classmethod
    def at_end(
        cls,
        stored: bytes | memoryview,
        orig_size: int,
        *,
        leading_size: int = 0,
        filters: Filters | None = None,
    ) -> SeekTable | None:
        """The table at the end of all stored bytes of an entry; None if it has no table."""
        size = seek_table_size(bytes(stored[-FOOTER.size :]), len(stored))
        if size is None:
            return None
        tail = bytes(stored[-size:])
        return cls.parse(tail, len(stored), orig_size, leading_size=leading_size, filters=filters)

    @classmethod
    def parse(
        cls,
        tail: bytes,
        disk_size: int,
        orig_size: int,
        *,
        leading_size: int = 0,
        filters: Filters | None = None,
    ) -> SeekTable | None:
        """The table at the end of an entry (`tail`: as many bytes as `seek_table_size` says).

        None if the entry has no seek table after all: its last bytes may look like the footer by chance. A
        filtered entry has `filters`, and `leading_size` bytes in front of its first frame.
        """
        frames, descriptor, _magic = FOOTER.unpack(tail[-FOOTER.size :])
        magic, frame_size = _SKIPPABLE_HEADER.unpack_from(tail)
        if magic != _SKIPPABLE_MAGIC or frame_size != len(tail) - _SKIPPABLE_HEADER.size:
            return None
        if descriptor & _RESERVED_BITS:
            raise BadSeekTable(
                "reserved bits of the seek table are set",
                expected="bits 2 to 6 clear",
                found=f"descriptor 0x{descriptor:02x}",
                rule="S-SEK-1",
            )
        checked = bool(descriptor & _HAS_CHECKSUMS)
        dtype = _ROW_DTYPE if checked else np.dtype(_ROW_DTYPE.descr[:2])
        rows = np.frombuffer(tail, dtype, frames, _SKIPPABLE_HEADER.size)
        stored_starts = _running_total(rows["compressed"]) + leading_size
        content_starts = _running_total(rows["decompressed"])
        for what, total, expected in (
            ("compressed", int(stored_starts[-1]), disk_size - len(tail)),
            ("decompressed", int(content_starts[-1]), orig_size),
        ):
            if total != expected:
                raise BadSeekTable(
                    f"the {what} sizes in the seek table do not add up",
                    expected=f"{expected} bytes",
                    found=f"{total} bytes",
                    rule="S-FLT-6" if leading_size and what == "compressed" else "S-SEK-2",
                )
        checksums = rows["checksum"].copy() if checked else None
        return cls(stored_starts, content_starts, checksums, filters)


def _running_total(sizes: NDArray[np.uint32]) -> NDArray[np.int64]:
    totals = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=totals[1:], dtype=np.int64)
    return totals


class FrameDecoder:
    """Decodes ranges of one seekable entry. What they have in common is looked up once.

    Args:
        table: the entry's seek table.
        limits: bounds for the decoder.
    """

    __slots__ = ("_content_at", "_limits", "_stored_at", "table")

    def __init__(self, table: SeekTable, limits: Limits) -> None:
        self.table = table
        self._limits = limits
        # Views: an element of an array costs more than what is done with it, and lists take memory.
        self._stored_at = table.stored_starts.data
        self._content_at = table.content_starts.data

    def frames_for(self, start: int, stop: int) -> range:
        """The frames that hold the content from `start` to `stop` (`start` < `stop`)."""
        content_at = self._content_at
        first = bisect_right(content_at, start) - 1
        return range(first, bisect_left(content_at, stop, first))

    def stored_range(self, frames: range) -> tuple[int, int]:
        """First and end position of these frames in the stored bytes."""
        return self._stored_at[frames.start], self._stored_at[frames.stop]

    def content_range(self, start: int, stop: int) -> tuple[int, int]:
        """First and end byte of the content of the frames that hold a range."""
        frames = self.frames_for(start, stop)
        return self._content_at[frames.start], self._content_at[frames.stop]

    def decode_into(
        self, stored: bytes | memoryview, start: int, out: memoryview, threads: int | None
    ) -> int:
        """Decodes the content from `start` on into `out`, in several threads where it pays.

        Args:
            stored: the stored bytes of the frames that hold the range, as `stored_range` says.
            start: first content byte wanted.
            out: memory of the caller; filled completely.
            threads: at most this many; None for one per processor, up to 8.

        Returns:
            The CRC-32C of what came out if that is the whole entry, taken while it was still in the cache; else 0.
        """
        frames = self.frames_for(start, start + len(out))
        stored = memoryview(stored)
        workers = thread_count(threads, len(out), _DECODED_BYTES_PER_THREAD)
        if workers == 1:
            return self._decode_run(stored, frames.start, frames, start, out)[0]
        checksums: dict[int, tuple[int, int]] = {}

        def decode_batch(batch: range) -> None:
            checksums[batch.start] = self._decode_run(stored, frames.start, batch, start, out)

        sizes = np.diff(self.table.content_starts[frames.start : frames.stop + 1]).tolist()
        for_each(batches(frames, sizes), decode_batch, workers)  # type: ignore[arg-type] # slices of a range are ranges
        total = 0
        for _, (checksum, length) in sorted(checksums.items()):
            total = combine_crc32c(total, checksum, length)
        return total

    def _decode_run(
        self, stored: memoryview, first_frame: int, frames: range, start: int, out: memoryview
    ) -> tuple[int, int]:
        """Decodes frames that follow each other, each to where it belongs.

        Returns:
            CRC-32C and length of what came out, for whole entries; zeros for parts, which the checksum of the entry
            says nothing about.
        """
        stored_at, content_at, filters = self._stored_at, self._content_at, self.table.filters
        stored_from = stored_at[first_frame]
        stop = start + len(out)
        is_whole = len(out) == content_at[len(self.table)]
        in_place = filters is None or filters.planes is None
        checksum = checked = 0
        for number in frames:
            first, end = content_at[number], content_at[number + 1]
            piece = stored[stored_at[number] - stored_from : stored_at[number + 1] - stored_from]
            low, high = max(start, first), min(stop, end)
            wanted = out[low - start : high - start]
            if in_place and high - low == end - first:
                self.decode_frame(number, piece, wanted)
                if filters is not None:
                    filters.undo_in_place(wanted)
            else:
                scratch = _scratch.take()
                if len(scratch) < end - first:
                    scratch = np.empty(end - first, np.uint8).data
                content = scratch[: end - first]
                self.decode_frame(number, piece, content)
                if filters is None:
                    wanted[:] = content[low - first : high - first]
                else:
                    filters.undo_part_into(content, low - first, wanted)
                if len(scratch) <= _MOST_KEPT:
                    _scratch.give_back(scratch)
            if is_whole:
                checksum = crc32c(wanted, checksum)
                checked += len(wanted)
        return checksum, checked

    def decode_frame(self, number: int, piece: memoryview, content: memoryview) -> None:
        """One frame, still filtered, into memory of exactly its size, checked against the table (S-SEK-3, S-SEK-4)."""
        table = self.table
        if table.filters is not None:
            table.filters.check_frame(len(content))
        try:
            frame = frame_header(piece, self._limits.max_zstd_window_bytes)
        except BadCompression as error:
            raise _not_a_frame(number, len(piece), error.problem) from None
        # Where both have a checksum, comparing them also proves where the frame ends.
        if frame.content_size is None or not frame.has_checksum or table.checksums is None:
            frame = self.frame_at(number, piece)
        try:
            count = decode_frame_into(piece, frame, content)
        except SizeMismatch as error:
            raise _wrong_content_size(number, len(content), error.found) from None
        except ChecksumMismatch as error:
            error.rule = "S-SEK-4"
            raise
        if count != len(content):
            raise _wrong_content_size(number, len(content), f"{count} bytes")
        try:
            self.compare_checksum(number, piece, frame, content)
        except ChecksumMismatch:
            self.frame_at(number, piece)  # raises if it is the length that is wrong
            raise

    def frame_at(self, number: int, piece: memoryview) -> Frame:
        """The one frame that these bytes are (S-SEK-3)."""
        try:
            frame = next(iter_frames(piece, self._limits.max_zstd_window_bytes), None)
        except BadCompression as error:
            raise _not_a_frame(number, len(piece), error.problem) from None
        if frame is None or frame.stop != len(piece):
            raise _not_a_frame(number, len(piece), "another length" if frame else "no frame")
        return frame

    def compare_checksum(
        self, number: int, piece: memoryview, frame: Frame, content: memoryview | None
    ) -> None:
        """Compares the table's checksum with the frame's own, which the decoder verifies, or with the content's."""
        checksums = self.table.checksums
        if checksums is None:
            return
        computed = frame_checksum(piece, frame)
        if computed is None:
            assert content is not None
            computed = xxh64_intdigest(content) & 0xFFFFFFFF
        if computed != checksums[number]:
            raise ChecksumMismatch(
                f"frame {number} is not the one the seek table describes",
                expected=f"checksum {int(checksums[number]):08x}",
                found=f"{computed:08x}",
                rule="S-SEK-4",
            )

    def check_frames(self, stored: bytes | memoryview) -> None:
        """Compares the table with all frames that it describes (S-SEK-3, S-SEK-4).

        Frames that carry their size and checksum are not decoded: decoding the entry as a whole checks those against
        the content.
        """
        source = memoryview(stored)
        for number in range(len(self.table)):
            piece = source[self._stored_at[number] : self._stored_at[number + 1]]
            size = self._content_at[number + 1] - self._content_at[number]
            frame = self.frame_at(number, piece)
            if self.table.filters is not None:
                self.table.filters.check_frame(size)
            if frame.content_size is not None and frame.has_checksum:
                if frame.content_size != size:
                    raise _wrong_content_size(number, size, f"{frame.content_size} bytes")
                self.compare_checksum(number, piece, frame, None)
            else:
                self.decode_frame(number, piece, np.empty(size, np.uint8).data)


def _not_a_frame(number: int, stored_bytes: int, found: str) -> BadSeekTable:
    return BadSeekTable(
        f"frame {number} is not where the seek table says",
        expected=f"one frame of {stored_bytes} bytes",
        found=found,
        rule="S-SEK-3",
    )


def _wrong_content_size(number: int, expected: int, found: object) -> BadSeekTable:
    return BadSeekTable(
        f"frame {number} has a different size than the seek table says",
        expected=f"{expected} bytes",
        found=found,
        rule="S-SEK-3",
    )


def table_for(frames: Sequence[bytes], content_sizes: Iterable[int]) -> bytes:
    """The seek table of these frames, each of which ends with its checksum."""
    return table_of_rows(
        [
            (len(frame), size, int.from_bytes(frame[-4:], "little"))
            for frame, size in zip(frames, content_sizes, strict=True)
        ]
    )


def table_of_rows(rows: Sequence[tuple[int, int, int]]) -> bytes:
    """The seek table with these rows: compressed size, content size, checksum."""
    table = np.array(list(rows), _ROW_DTYPE).tobytes()
    return b"".join(
        (
            _SKIPPABLE_HEADER.pack(_SKIPPABLE_MAGIC, len(table) + FOOTER.size),
            table,
            FOOTER.pack(len(rows), _HAS_CHECKSUMS, _FOOTER_MAGIC),
        )
    )


def split(data: memoryview, frame_bytes: int) -> Iterator[memoryview]:
    """The pieces of content that become frames."""
    for start in range(0, len(data), frame_bytes):
        yield data[start : start + frame_bytes]
