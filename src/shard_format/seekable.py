"""Seekable zstd entries: independent frames and a seek table (spec/shard.md, section 8)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format import _zstd
from shard_format._parallel import map_in_order
from shard_format.errors import BadSeekTable
from shard_format.filters import encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shard_format.filters import Filters

__all__ = ["SeekTable"]

FOOTER: Final = struct.Struct("<IBI")
LARGEST_FRAME_CONTENT: Final = (1 << 32) - 1

_SKIPPABLE_HEADER = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5E
_FOOTER_MAGIC = 0x8F92EAB1
_HAS_CHECKSUMS = 0x80
_RESERVED_BITS = 0x7C
_ROW_DTYPE = np.dtype([("compressed", "<u4"), ("decompressed", "<u4"), ("checksum", "<u4")])
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


def _running_total(sizes: NDArray[np.uint32]) -> NDArray[np.int64]:
    totals = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=totals[1:], dtype=np.int64)
    return totals


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
