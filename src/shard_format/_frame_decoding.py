"""Decoding the frames of a seekable entry: all of them, or those that hold a range (spec/shard.md, section 8)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh64_intdigest

from shard_format import _zstd
from shard_format._crc import combine, crc32c
from shard_format._parallel import batches, for_each, thread_count
from shard_format._spares import Spares
from shard_format.errors import BadCompression, BadSeekTable, ChecksumMismatch, SizeMismatch

if TYPE_CHECKING:
    from shard_format.registry import Limits
    from shard_format.seekable import SeekTable

__all__ = ["FrameDecoder", "check_frames"]

# Decoding so much takes several times as long as starting a thread for it.
_DECODED_BYTES_PER_THREAD = 1 << 18
_MOST_KEPT = 1 << 22


# Memory for frames of which only a part is wanted: fresh memory costs more than decoding into it.
_scratch = Spares(lambda: memoryview(b""), most=16)


class FrameDecoder:
    """Decodes ranges of one seekable entry. What they have in common is looked up once.

    Args:
        table: the entry's seek table.
        limits: bounds for the decoder.
    """

    __slots__ = ("_checksums", "_content_at", "_filters", "_limits", "_stored_at", "table")

    def __init__(self, table: SeekTable, limits: Limits) -> None:
        self.table = table
        self._limits = limits
        self._filters = table.filters
        # Views: an element of an array costs more than what is done with it, lists of all take memory.
        self._stored_at = table.stored_starts.data
        self._content_at = table.content_starts.data
        # Where a frame can be decoded to its place; else None.
        self._checksums = None
        if table.checksums is not None and (table.filters is None or table.filters.planes is None):
            self._checksums = table.checksums.data

    def frames_for(self, start: int, stop: int) -> range:
        """The frames that hold the content from `start` to `stop` (`start` < `stop`)."""
        content_at = self._content_at
        first = bisect_right(content_at, start) - 1
        return range(first, bisect_left(content_at, stop, first))

    def stored_range(self, frames: range) -> tuple[int, int]:
        """First and end position of these frames in the stored bytes."""
        return self._stored_at[frames.start], self._stored_at[frames.stop]

    def decode_into(
        self,
        frames: range,
        stored: bytes | memoryview,
        start: int,
        out: memoryview,
        threads: int | None,
        *,
        measured: bool = True,
    ) -> int:
        """Decodes the content from `start` on into `out`, in several threads where it pays.

        Returns the CRC-32C of what came out, taken while it was still in the cache; 0 if not `measured`, for
        parts, which the checksum of the whole says nothing about.

        Args:
            frames: what `frames_for` gives for the range.
            stored: their stored bytes.
            start: first content byte wanted.
            out: memory of the caller; filled completely.
            threads: at most so many; None for as many as there are processors.
            measured: whether the checksum is wanted.
        """
        source, first = memoryview(stored), self._stored_at[frames.start]
        workers = thread_count(threads, len(out), _DECODED_BYTES_PER_THREAD)
        if workers == 1:
            return self._decode_run(frames, source, first, start, out, measured)[0]
        run_checksums: dict[int, tuple[int, int]] = {}

        def decode_run(run: range) -> None:
            run_checksums[run.start] = self._decode_run(run, source, first, start, out, measured)

        sizes = np.diff(self.table.content_starts[frames.start : frames.stop + 1]).tolist()
        for_each(batches(frames, sizes), decode_run, workers)  # type: ignore[arg-type] # slices of a range are ranges
        total = 0
        for _, (checksum, length) in sorted(run_checksums.items()):
            total = combine(total, checksum, length)
        return total

    def _decode_run(
        self,
        run: range,
        stored: memoryview,
        stored_from: int,
        start: int,
        out: memoryview,
        measured: bool,
    ) -> tuple[int, int]:
        """Decodes frames that follow each other, each to where it belongs.

        One loop without calls that can be spared: all windows of a training run are read in it, and threads
        wait for each other while they are in Python.

        Returns:
            CRC-32C and length of what came out of them.
        """
        stored_at, content_at, checksums = self._stored_at, self._content_at, self._checksums
        limits, decode_usual_into = self._limits, _zstd.decode_usual_into
        stop = start + len(out)
        checksum = checked = 0
        end, stored_end = content_at[run.start], stored_at[run.start] - stored_from
        for number in run:
            first, end = end, content_at[number + 1]
            piece = stored[stored_end : (stored_end := stored_at[number + 1] - stored_from)]
            low = 0
            if first >= start and end <= stop:
                wanted = content = out[first - start : end - start]
            else:
                low = max(start - first, 0)
                wanted = out[first + low - start : end - start]
                scratch = _scratch.take()
                if len(scratch) < end - first:
                    scratch = np.empty(end - first, np.uint8).data
                content = scratch[: end - first]
            filters = self._filters
            if checksums is None or decode_usual_into(piece, content, limits) != checksums[number]:
                _decode_one_into(self.table, number, piece, content, limits)
                filters = None  # undone there
            if content is wanted:
                if filters is not None:
                    filters.undo_in_place(content)
            else:
                if filters is not None:
                    filters.undo_part_into(content, low, wanted)
                else:
                    wanted[:] = content[low : low + len(wanted)]
                if len(scratch) <= _MOST_KEPT:
                    _scratch.give_back(scratch)
            if measured:
                checksum = crc32c(wanted, checksum)
                checked += len(wanted)
        return checksum, checked


def check_frames(table: SeekTable, stored: bytes | memoryview, limits: Limits) -> None:
    """Holds the table against the frames it describes (S-SEK-3, S-SEK-4).

    Frames that carry their size and checksum are not decoded: whoever decodes the entry as a whole
    checks those against the content.
    """
    source = memoryview(stored)
    for number in range(len(table)):
        piece = source[int(table.stored_starts[number]) : int(table.stored_starts[number + 1])]
        size = int(table.content_starts[number + 1] - table.content_starts[number])
        frame = _frame_at(number, piece, limits)
        if table.filters is not None:
            table.filters.check_frame(size)
        if frame.content_size is not None and frame.has_checksum:
            if frame.content_size != size:
                raise _wrong_content_size(number, size, f"{frame.content_size} bytes")
            _compare_checksum(table, number, piece, frame, None)
        else:
            content = np.empty(size, np.uint8)
            _decode_one_into(table, number, piece, content.data, limits)


def _frame_at(number: int, piece: memoryview, limits: Limits) -> _zstd.Frame:
    try:
        frame = next(_zstd.iter_frames(piece, limits), None)
    except BadCompression as error:
        raise _not_a_frame(number, len(piece), error.problem) from None
    if frame is None or frame.stop != len(piece):
        raise _not_a_frame(number, len(piece), "another length" if frame else "no frame")
    return frame


def _decode_one_into(
    table: SeekTable, number: int, piece: memoryview, out: memoryview, limits: Limits
) -> None:
    try:
        frame = _zstd.whole_frame(piece, limits)
    except BadCompression as error:
        raise _not_a_frame(number, len(piece), error.problem) from None
    # Where both have a checksum, comparing them also proves where the frame ends.
    if frame.content_size is None or not frame.has_checksum or table.checksums is None:
        frame = _frame_at(number, piece, limits)
    filters = table.filters
    if filters is not None:
        filters.check_frame(len(out))
    # Planes cannot be put together where they lie.
    content = (
        out if filters is None or filters.planes is None else np.empty(len(out), np.uint8).data
    )
    try:
        count = _zstd.decode_frame_into(piece, frame, content)
    except SizeMismatch as error:
        raise _wrong_content_size(number, len(out), error.found) from None
    except ChecksumMismatch as error:
        error.rule = "S-SEK-4"
        raise
    if count != len(out):
        raise _wrong_content_size(number, len(out), f"{count} bytes")
    try:
        _compare_checksum(table, number, piece, frame, content)
    except ChecksumMismatch:
        _frame_at(number, piece, limits)  # says so if it is the length that is wrong
        raise
    if filters is not None:
        filters.undo_into(content, out)


def _compare_checksum(
    table: SeekTable,
    number: int,
    piece: memoryview,
    frame: _zstd.Frame,
    content: memoryview | None,
) -> None:
    if table.checksums is None:
        return
    # The decoder verifies the frame's own checksum, which is the same number: compare instead of
    # hashing again.
    computed = _zstd.frame_checksum(piece, frame)
    if computed is None:
        assert content is not None
        computed = xxh64_intdigest(content) & 0xFFFFFFFF
    if computed != int(table.checksums[number]):
        raise ChecksumMismatch(
            f"frame {number} is not the one the seek table describes",
            expected=f"checksum {int(table.checksums[number]):08x}",
            found=f"{computed:08x}",
            rule="S-SEK-4",
        )


def _not_a_frame(number: int, stored_bytes: int, found: str) -> BadSeekTable:
    return BadSeekTable(
        f"frame {number} is not where the seek table says",
        expected=f"one frame of {stored_bytes} bytes",
        found=found,
        rule="S-SEK-3",
    )


def _wrong_content_size(number: int, expected: int, found: object) -> BadSeekTable:
    return BadSeekTable(
        f"frame {number} has another size than the seek table says",
        expected=f"{expected} bytes",
        found=found,
        rule="S-SEK-3",
    )
