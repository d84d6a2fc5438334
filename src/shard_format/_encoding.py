"""How the content of entries in memory becomes stored bytes: one entry, or many at the same time."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shard_format import _zstd, seekable
from shard_format._filtered import leading_frame
from shard_format._layout import FILTERED, Codec
from shard_format._parallel import batches, for_each, map_in_order, thread_count
from shard_format.codecs import SMALLEST_COMPRESSED, compress, crc32c, is_worth_it, zstd_level
from shard_format.filters import encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shard_format.codecs import Compression
    from shard_format.filters import Filters

# What an entry is in the file: its bytes, and the flags of its index row.
Encoded: TypeAlias = tuple[list[bytes | memoryview], int]
# What the index and the identity say about the content: CRC-32C, and SHA-256 where it is asked for.
Measured: TypeAlias = tuple[int, str | None]

# Threads that work on less than this at a time wait for each other more than they help.
_WORTH_A_THREAD = 1 << 14
# What a checksum costs beside compression, as a share of the bytes: one sixteenth.
_CHECKSUM_SHIFT = 4


class Plan(NamedTuple):
    """What shall become of the content of one entry; all of it has been checked."""

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
        if self.filters is not None:
            return encode_frame(piece, zstd_level(self.compression), self.filters)
        if self.is_seekable:
            return _zstd.compress_frame(piece, zstd_level(self.compression), checksum=True)
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


def encode_one(plan: Plan, threads: int | None) -> Encoded:
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
    plans: Sequence[Plan], threads: int | None, *, with_hashes: bool
) -> list[tuple[Encoded, Measured]]:
    """Several entries, all their frames, checksums and hashes in parallel."""
    all_pieces = [plan.pieces() for plan in plans]
    encoded: list[list[bytes | None]] = [[None] * len(pieces) for pieces in all_pieces]
    measured: list[Measured | None] = [None] * len(plans)
    jobs: list[Callable[[], None]] = []
    weights: list[int] = []

    def add_frame(number: int, position: int) -> None:
        def work() -> None:
            encoded[number][position] = plans[number].encode(all_pieces[number][position])

        jobs.append(work)
        weights.append(len(all_pieces[number][position]))

    def add_measure(number: int) -> None:
        content = plans[number].content

        def work() -> None:
            measured[number] = measure(content, with_hashes)

        jobs.append(work)
        weights.append(len(content) if with_hashes else len(content) >> _CHECKSUM_SHIFT)

    for number, pieces in enumerate(all_pieces):
        add_measure(number)
        for position in range(len(pieces)):
            add_frame(number, position)

    def run(batch: Sequence[Callable[[], None]]) -> None:
        for job in batch:
            job()

    large = sum(weight for weight in weights if weight >= _WORTH_A_THREAD)
    for_each(batches(jobs, weights), run, thread_count(threads, large))
    results: list[tuple[Encoded, Measured]] = []
    for plan, pieces, frames, facts in zip(plans, all_pieces, encoded, measured, strict=True):
        assert facts is not None
        results.append((plan.assemble(pieces, frames), facts))
    return results
