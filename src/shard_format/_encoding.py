"""How the content of entries becomes stored bytes: from memory, from a stream, or from runs in another file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shard_format import seekable
from shard_format._kernels import combine_crc32c, expand
from shard_format.codecs import SMALLEST_COMPRESSED, compress, crc32c, is_worth_it, zstd_level
from shard_format.filters import encode_frame, leading_frame
from shard_format.layout import FILTERED, Codec
from shard_format.parallel import batches, for_each, map_in_order, ordered_parallel, thread_count
from shard_format.writer_input import regroup
from shard_format.zstd import compressing_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shard_format._assembly import Blocks, SpooledBlocks
    from shard_format.codecs import Compression
    from shard_format.filters import Filters
    from shard_format.sources import OpenFile

# What an entry is in the file: its bytes, and the flags of its index row.
Encoded: TypeAlias = tuple[list[bytes | memoryview], int]
# What the index and the identity say about the content: CRC-32C, and SHA-256 where it is asked for.
Measured: TypeAlias = tuple[int, str | None]

# Threads that work on less than this at a time wait for each other more than they help.
_WORTH_A_THREAD = 1 << 14
# What a checksum costs beside compression, as a share of the bytes: one sixteenth.
_CHECKSUM_SHIFT = 4


class EntryPlan(NamedTuple):
    """How to store the content of one entry; all of it has been checked."""

    content: memoryview
    compression: Compression
    frame_bytes: int | None
    filters: Filters | None

    @property
    def is_seekable(self) -> bool:
        return self.frame_bytes is not None and len(self.content) > self.frame_bytes

    def pieces(self) -> list[memoryview]:
        """What is compressed on its own: the content of each frame, nothing if it stays raw."""
        if self.compression.codec is Codec.NONE or len(self.content) < SMALLEST_COMPRESSED:
            return []
        if not self.is_seekable:
            return [self.content]
        assert self.frame_bytes is not None
        return list(seekable.split(self.content, self.frame_bytes))

    def encode(self, piece: memoryview) -> bytes | None:
        """One piece, compressed; None if a whole entry is better left raw."""
        if self.filters is not None or self.is_seekable:
            return encode_frame(piece, zstd_level(self.compression), self.filters)
        return compress(piece, self.compression)

    def assemble(self, pieces: Sequence[memoryview], encoded: Sequence[bytes | None]) -> Encoded:
        """The stored bytes from all pieces in order (S-CMP-10, S-SEK-6, S-FLT-7)."""
        frames = [frame for frame in encoded if frame is not None]
        if not frames:
            return [self.content], 0
        stored: list[bytes | memoryview] = [*frames]
        flags = self.compression.codec.entry_flags
        if self.is_seekable:
            stored.append(seekable.table_for(frames, map(len, pieces)))
        if self.filters is not None:
            stored.insert(0, leading_frame(self.filters))
            flags |= FILTERED
        if is_worth_it(sum(map(len, stored)), len(self.content)):
            return stored, flags
        return [self.content], 0


def measure(content: memoryview, with_hash: bool) -> Measured:
    """The checksum, and the hash for files that carry an identity."""
    return crc32c(content), hashlib.sha256(content).hexdigest() if with_hash else None


def encode_one(plan: EntryPlan, threads: int | None) -> Encoded:
    """One entry, its frames in parallel."""
    if plan.filters is None and (plan.frame_bytes is None or not plan.is_seekable):
        # Most entries: one piece, measured in microseconds.
        stored = compress(plan.content, plan.compression)
        if stored is None:
            return [plan.content], 0
        return [stored], plan.compression.codec.entry_flags
    pieces = plan.pieces()
    workers = thread_count(threads, len(plan.content))
    return plan.assemble(pieces, map_in_order(pieces, plan.encode, workers))


def encode_many(
    plans: Sequence[EntryPlan], threads: int | None, *, with_hashes: bool
) -> list[tuple[Encoded, Measured]]:
    """Several entries, all their frames, checksums and hashes in parallel."""
    all_pieces = [plan.pieces() for plan in plans]
    encoded: list[list[bytes | None]] = [[None] * len(pieces) for pieces in all_pieces]
    measured: list[Measured] = [(0, None)] * len(plans)
    # A job is one frame of an entry, or -1: what is measured of its whole content.
    jobs: list[tuple[int, int]] = []
    weights: list[int] = []
    for number, (plan, pieces) in enumerate(zip(plans, all_pieces, strict=True)):
        jobs += [(number, position) for position in range(-1, len(pieces))]
        weights.append(len(plan.content) >> (0 if with_hashes else _CHECKSUM_SHIFT))
        weights += map(len, pieces)

    def run(batch: Sequence[tuple[int, int]]) -> None:
        for number, position in batch:
            if position < 0:
                measured[number] = measure(plans[number].content, with_hashes)
            else:
                piece = all_pieces[number][position]
                encoded[number][position] = plans[number].encode(piece)

    large = sum(weight for weight in weights if weight >= _WORTH_A_THREAD)
    for_each(batches(jobs, weights), run, thread_count(threads, large))
    stored = map(EntryPlan.assemble, plans, all_pieces, encoded)
    return list(zip(stored, measured, strict=True))


# --- streams

# The length of a stream is not known: assume enough frames to keep the threads busy.
_FRAMES_EXPECTED = 16
# Frames of a stream that are compressed ahead, for each thread; bounds the memory of a writer.
_FRAMES_AHEAD = 3


def encode_stream(
    views: Iterator[memoryview],
    compression: Compression,
    frame_bytes: int | None,
    threads: int | None,
    measure: Callable[[memoryview], None],
    filters: Filters | None = None,
) -> Iterator[bytes | memoryview]:
    """The stored bytes of an entry: raw, one zstd frame, or with `frame_bytes` a seekable entry.

    Only seekable entries can have filters. `measure` sees the content in order, before its stored form appears.
    """
    if compression.codec is Codec.NONE:
        for view in views:
            measure(view)
            yield view
        return
    level = zstd_level(compression)
    if frame_bytes is not None:
        workers = thread_count(threads, frame_bytes * _FRAMES_EXPECTED)
        if filters is not None:
            yield leading_frame(filters)
        pieces = regroup(views, frame_bytes)
        yield from _encode_frames(pieces, level, workers, measure, filters)
        return
    compressor = compressing_stream(level)
    for view in views:
        measure(view)
        yield compressor.compress(view)
    yield compressor.flush()


def _encode_frames(
    pieces: Iterable[memoryview],
    level: int,
    threads: int,
    measure: Callable[[memoryview], None],
    filters: Filters | None,
) -> Iterator[bytes]:
    """The frames of an entry, one for each piece of content, and at the end the seek table."""
    rows: list[tuple[int, int, int]] = []

    def measured() -> Iterator[memoryview]:
        for piece in pieces:
            measure(piece)
            yield piece

    def encode(piece: memoryview) -> tuple[bytes, int]:
        return encode_frame(piece, level, filters), len(piece)

    ahead = threads * _FRAMES_AHEAD if threads > 1 else 0
    for frame, size in ordered_parallel(measured(), encode, threads, ahead):
        rows.append((len(frame), size, int.from_bytes(frame[-4:], "little")))
        yield frame
    yield seekable.table_of_rows(rows)


def expand_again(
    blocks: Blocks,
    start: int,
    spool: SpooledBlocks,
    piece_bytes: int,
    frame_bytes: int | None,
    filters: Filters | None,
) -> None:
    """Replaces a streamed entry, from `start` on, that did not shrink by its raw bytes (S-CMP-10).

    Args:
        blocks: what ends with the entry.
        start: where it starts there.
        spool: an empty one, for the compressed bytes meanwhile; closed at the end.
        piece_bytes: how much is expanded at a time.
        frame_bytes: the content of each frame of a filtered entry.
        filters: what was done to them.
    """
    for piece in blocks.iter_back(start):
        spool.append(piece)
    blocks.truncate(start)
    content = expand(spool.iter_back(), piece_bytes)
    if filters is None or frame_bytes is None:
        for raw in content:
            blocks.append(raw)
    else:
        for frame in regroup(map(memoryview, content), frame_bytes):
            filters.undo_in_place(frame)
            blocks.append(frame)
    spool.close()


class Measure:
    """Size, checksum and, if asked for, SHA-256 of content that passes by in pieces."""

    def __init__(self, *, with_hash: bool) -> None:
        self.size = 0
        self.checksum = 0
        self._hash = hashlib.sha256() if with_hash else None

    @property
    def digest(self) -> str | None:
        """The SHA-256 in hex digits; None if it was not asked for."""
        return None if self._hash is None else self._hash.hexdigest()

    def update(self, view: memoryview) -> None:
        self.size += len(view)
        self.checksum = crc32c(view, self.checksum)
        if self._hash is not None:
            self._hash.update(view)


# --- runs that another file holds


class StoredRun(NamedTuple):
    """A part of an entry as another file holds it, for `ShardWriter.write_runs`."""

    file: OpenFile
    """The other file."""
    offset: int
    """Where its stored bytes start there."""
    stored_size: int
    """How many there are."""
    content_size: int
    """How many bytes they decode to."""
    content_crc32c: int
    """CRC-32C of these."""


def measure_runs(runs: Sequence[StoredRun]) -> tuple[int, int]:
    """Size and CRC-32C of the content that all runs together decode to."""
    checksum = 0
    for run in runs:
        checksum = combine_crc32c(checksum, run.content_crc32c, run.content_size)
    return sum(run.content_size for run in runs), checksum


def table_of_runs(runs: Sequence[StoredRun]) -> bytes:
    """The seek table of runs that are zstd frames with checksums."""
    return seekable.table_of_rows(
        [(run.stored_size, run.content_size, _frame_checksum(run)) for run in runs]
    )


def _frame_checksum(run: StoredRun) -> int:
    """The checksum at the end of a zstd frame."""
    end = run.offset + run.stored_size
    return int.from_bytes(run.file.read(4, end - 4), "little")
