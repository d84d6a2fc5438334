"""Seekable zstd entries: independent frames and a seek table (spec/shard.md, section 8)."""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh64_intdigest

from shard_format import _zstd
from shard_format._crc import combine, crc32c
from shard_format._parallel import batches, for_each, map_in_order, thread_count
from shard_format.errors import BadCompression, BadSeekTable, ChecksumMismatch, SizeMismatch
from shard_format.filters import encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shard_format.filters import Filters
    from shard_format.registry import Limits

__all__ = ["SeekTable"]

FOOTER: Final = struct.Struct("<IBI")
LARGEST_FRAME_CONTENT: Final = (1 << 32) - 1

_SKIPPABLE_HEADER = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5E
_FOOTER_MAGIC = 0x8F92EAB1
_HAS_CHECKSUMS = 0x80
_RESERVED_BITS = 0x7C
_ROW_DTYPE = np.dtype([("compressed", "<u4"), ("decompressed", "<u4"), ("checksum", "<u4")])
# Decoding so much takes several times as long as starting a thread for it.
_DECODED_BYTES_PER_THREAD = 1 << 18
# Frames compressed together before they are handed on; bounds the memory of a writer.
_FRAMES_PER_ROUND = 4


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

        None if there is no seek table after all: the footer's magic may stand there by chance. A
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

    def frames_for(self, start: int, stop: int) -> range:
        """The frames that hold the content from `start` to `stop` (`start` < `stop`)."""
        first = int(self.content_starts.searchsorted(start, "right")) - 1
        last = int(self.content_starts.searchsorted(stop, "left"))
        return range(first, last)

    def stored_range(self, frames: range) -> tuple[int, int]:
        """First and end position of these frames in the stored bytes."""
        return int(self.stored_starts[frames.start]), int(self.stored_starts[frames.stop])


def _running_total(sizes: NDArray[np.uint32]) -> NDArray[np.int64]:
    totals = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=totals[1:], dtype=np.int64)
    return totals


class _Scratch(threading.local):
    """Memory for frames of which only a part is wanted. Fresh memory costs more than decoding into it."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.uint8)

    def memory(self, size: int) -> memoryview:
        """So many bytes, until the next call."""
        if size > _MOST_KEPT:
            return np.empty(size, np.uint8).data
        if size > len(self._kept):
            self._kept = np.empty(size, np.uint8)
        return self._kept[:size].data


_MOST_KEPT = 1 << 22
_scratch = _Scratch()


def decode_range_into(
    table: SeekTable,
    stored: bytes | memoryview,
    start: int,
    out: memoryview,
    limits: Limits,
    threads: int | None,
    *,
    measured: bool = True,
) -> int:
    """Decodes the content from `start` on into `out`, in several threads where it pays.

    Returns the CRC-32C of what came out, taken while it was still in the cache; 0 if not `measured`, for
    parts, which the checksum of the whole says nothing about.

    Args:
        table: the entry's seek table.
        stored: the stored bytes of the frames `table.frames_for(start, start + len(out))`.
        start: first content byte wanted.
        out: memory of the caller; filled completely.
        limits: bounds for the decoder.
        threads: at most so many; None for as many as there are processors.
    """
    decoder = _RangeDecoder(table, memoryview(stored), start, out, limits)
    frames = decoder.frames
    workers = thread_count(threads, len(out), _DECODED_BYTES_PER_THREAD)
    if workers == 1:
        return decoder.decode_run(frames, measured)[0]
    run_checksums: dict[int, tuple[int, int]] = {}

    def decode_run(run: range) -> None:
        run_checksums[run.start] = decoder.decode_run(run, measured)

    sizes = np.diff(table.content_starts)[frames.start : frames.stop].tolist()
    for_each(batches(frames, sizes), decode_run, workers)  # type: ignore[arg-type] # slices of a range are ranges
    total = 0
    for _, (checksum, length) in sorted(run_checksums.items()):
        total = combine(total, checksum, length)
    return total


class _RangeDecoder:
    """Decodes the frames of a range of content, each to where it belongs."""

    __slots__ = (
        *("_checksums", "_content_at", "_filters", "_limits", "_out", "_start", "_stop"),
        *("_stored", "_stored_at", "_table", "frames"),
    )

    def __init__(
        self, table: SeekTable, stored: memoryview, start: int, out: memoryview, limits: Limits
    ) -> None:
        self._table = table
        self._stored = stored
        self._start, self._stop = start, start + len(out)
        self._out = out
        self._limits = limits
        self._filters = table.filters
        self.frames = frames = table.frames_for(start, self._stop)
        """The numbers of the frames in the entry."""
        # Where a frame can be decoded to its place; else None.
        self._checksums = None
        if table.checksums is not None and (table.filters is None or table.filters.planes is None):
            self._checksums = table.checksums[frames.start : frames.stop].tobytes()
        # Plain lists: an element of an array costs more than what is done with it.
        self._stored_at = table.stored_starts[frames.start : frames.stop + 1].tolist()
        self._content_at = table.content_starts[frames.start : frames.stop + 1].tolist()

    def decode_run(self, run: range, measured: bool) -> tuple[int, int]:
        """Decodes some of the frames; returns CRC-32C and length of what came out of them."""
        checksum, checked = 0, 0
        at, start, stop = self._content_at, self._start, self._stop
        for nth in range(run.start - self.frames.start, run.stop - self.frames.start):
            first, end = at[nth], at[nth + 1]
            low, high = max(first, start), min(end, stop)
            done = self._out[low - start : high - start]
            self._decode(nth, end - first, low - first, done)
            if measured:
                checksum = crc32c(done, checksum)
                checked += len(done)
        return checksum, checked

    def _decode(self, nth: int, size: int, start: int, out: memoryview) -> None:
        """One frame with `size` bytes of content, of which the part from `start` on is wanted."""
        stored_at, checksums, filters = self._stored_at, self._checksums, self._filters
        piece = self._stored[stored_at[nth] - stored_at[0] : stored_at[nth + 1] - stored_at[0]]
        content = out if len(out) == size else _scratch.memory(size)
        if checksums is None or (
            _zstd.decode_usual_into(piece, content, self._limits)
            != checksums[4 * nth : 4 * nth + 4]
        ):
            _decode_one_into(self._table, self.frames.start + nth, piece, content, self._limits)
            filters = None  # undone there
        if content is out:
            if filters is not None:
                filters.undo_in_place(out)
        elif filters is not None:
            filters.undo_part_into(content, start, out)
        else:
            out[:] = content[start : start + len(out)]


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


def iter_encoded(
    pieces: Iterable[memoryview],
    level: int,
    threads: int,
    emit: Callable[[memoryview], None],
    filters: Filters | None = None,
) -> Iterator[bytes]:
    """The frames of an entry, one for each piece of content, and at the end the seek table.

    `emit` sees the content in order, before its frames appear: for checksums and sizes.
    """
    rows: list[tuple[int, int, int]] = []

    def encode(piece: memoryview) -> bytes:
        if filters is not None:
            return encode_frame(piece, level, filters)
        return _zstd.compress_frame(piece, level, checksum=True)

    for round_ in _rounds(pieces, max(1, threads) * _FRAMES_PER_ROUND):
        for piece in round_:
            emit(piece)
        for piece, frame in zip(round_, map_in_order(round_, encode, threads), strict=True):
            rows.append((len(frame), len(piece), int.from_bytes(frame[-4:], "little")))
            yield frame
    yield table_of_rows(rows)


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


def _rounds(pieces: Iterable[memoryview], count: int) -> Iterator[list[memoryview]]:
    round_: list[memoryview] = []
    for piece in pieces:
        round_.append(piece)
        if len(round_) == count:
            yield round_
            round_ = []
    if round_:
        yield round_


def split(data: memoryview, frame_bytes: int) -> Iterator[memoryview]:
    """The pieces of content that become frames."""
    for start in range(0, len(data), frame_bytes):
        yield data[start : start + frame_bytes]
