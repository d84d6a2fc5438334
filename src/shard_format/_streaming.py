"""Entries that pass by in pieces: encoding them, measuring them, and taking the encoding back."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, cast

import zstandard

from shard_format import _zstd, seekable
from shard_format._filtered import leading_frame
from shard_format._input import regroup
from shard_format._layout import Codec
from shard_format._parallel import thread_count
from shard_format.codecs import crc32c, zstd_level

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Iterator

    from shard_format._blocks import Blocks, SpooledBlocks
    from shard_format.codecs import Compression
    from shard_format.filters import Filters

# The length of a stream is not known: assume enough frames to keep the threads busy.
_FRAMES_EXPECTED = 16


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
        yield from seekable.iter_encoded(pieces, level, workers, measure, filters)
        return
    compressor = _zstd.compressing_stream(level)
    for view in views:
        measure(view)
        yield compressor.compress(view)
    yield compressor.flush()


def expanded(pieces: Iterator[bytes | memoryview], piece_bytes: int) -> Iterator[bytes]:
    """The content behind zstd frames that this process wrote itself, in pieces."""
    source = _PieceReader(pieces)
    reader = zstandard.ZstdDecompressor().stream_reader(
        cast("Any", source), read_across_frames=True
    )
    while piece := reader.read(piece_bytes):
        yield piece


def unfiltered(pieces: Iterator[bytes], frame_bytes: int, filters: Filters) -> Iterator[memoryview]:
    """The original of expanded content whose frames, but the last, have `frame_bytes` each."""
    for frame in regroup(map(memoryview, pieces), frame_bytes):
        filters.undo_in_place(frame)
        yield frame


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
    content = expanded(spool.iter_back(), piece_bytes)
    if filters is None or frame_bytes is None:
        for raw in content:
            blocks.append(raw)
    else:
        for frame in unfiltered(content, frame_bytes, filters):
            blocks.append(frame)
    spool.close()


class Measure:
    """Size, checksum and hash of content that passes by in pieces."""

    def __init__(self, hash_: hashlib._Hash | None) -> None:
        self.size = 0
        self.checksum = 0
        self.hash = hash_

    def update(self, view: memoryview) -> None:
        self.size += len(view)
        self.checksum = crc32c(view, self.checksum)
        if self.hash is not None:
            self.hash.update(view)


class _PieceReader(io.RawIOBase):
    """A file over an iterator of pieces, for decoders that want to read."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces = pieces

    def read(self, size: int = -1) -> bytes:
        # The decoder asks for a size but takes what it gets; only the end may be empty.
        return bytes(next(self._pieces, b""))
