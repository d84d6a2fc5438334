"""Filtered entries: the frame that stands in front, and entries decoded from end to end."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format import _zstd
from shard_format.codecs import check_complete
from shard_format.errors import BadFilter, SizeMismatch
from shard_format.filters import LARGEST_FRAME, Filters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format.registry import Limits

USUAL_SIZE: Final = 256
"""Most leading frames are smaller: one read gets them."""

_HEADER = struct.Struct("<II")
_MAGIC = 0x184D2A5D
_LONGEST_DESCRIPTION = 4096
_LARGE = 1 << 16


def leading_frame(filters: Filters) -> bytes:
    """The skippable frame that stands in front of an entry."""
    description = filters.description
    return _HEADER.pack(_MAGIC, len(description)) + description


def leading_size(head: bytes | memoryview, disk_size: int) -> int:
    """Bytes of the leading frame, from the first eight stored bytes or more (S-FLT-1)."""
    found = "fewer than 8 bytes"
    if len(head) >= _HEADER.size:
        magic, length = _HEADER.unpack_from(head)
        if magic == _MAGIC and 1 <= length <= min(_LONGEST_DESCRIPTION, disk_size - _HEADER.size):
            return _HEADER.size + int(length)
        found = f"{bytes(head[:4]).hex(' ')} and a length of {length}"
    raise BadFilter(
        "a filtered entry does not start with a description of its filters",
        expected=f"5d 2a 4d 18 and a length of 1 to {_LONGEST_DESCRIPTION}",
        found=found,
        rule="S-FLT-1",
    )


def parse_leading(head: bytes | memoryview, size: int) -> Filters:
    """The filters that a leading frame of `size` bytes describes."""
    return Filters.parse(bytes(head[_HEADER.size : size]))


def decode_into(stored: bytes | memoryview, out: memoryview, limits: Limits) -> None:
    """Decodes a whole entry into the caller's memory, which it must fill exactly."""
    first = leading_size(stored, len(stored))
    filters = parse_leading(stored, first)
    if _decode_usual_into(memoryview(stored)[first:], filters, out, limits):
        return
    done = frames = 0
    for frame in _zstd.iter_frames(stored, limits):
        frames += 1
        room = out[done:]
        size = frame.content_size
        if filters.planes is None and size is not None and _LARGE <= size <= len(room):
            # Into place, which saves a copy; small frames are decoded faster in one call.
            filters.check_frame(size)
            _zstd.decode_frame_into(stored, frame, room[:size])
            filters.undo_in_place(room[:size])
            done += size
            continue
        content = _decode_frame(stored, frame, len(room), filters)
        filters.undo_into(content, room[: len(content)])
        done += len(content)
    check_complete(frames, done, len(out))


def _decode_usual_into(
    stored: memoryview, filters: Filters, out: memoryview, limits: Limits
) -> bool:
    """Decodes one frame as our writers make them, without looking for its end first.

    Returns:
        False if there is more than that, or anything is wrong with it, for the caller to look closer.
    """
    if len(out) > LARGEST_FRAME or len(out) % filters.unit:
        return False
    # Planes cannot be put together where they lie.
    content = out if filters.planes is None else np.empty(len(out), np.uint8).data
    if _zstd.decode_usual_into(stored, content, limits) is None:
        return False
    filters.undo_into(content, out)
    return True


def iter_decoded(
    stored: bytes | memoryview, orig_size: int, limits: Limits
) -> Iterator[memoryview]:
    """The content of an entry, frame by frame."""
    filters = _filters_of(stored)
    done = frames = 0
    for frame in _zstd.iter_frames(stored, limits):
        content = _decode_frame(stored, frame, orig_size - done, filters)
        original = np.empty(len(content), np.uint8)
        filters.undo_into(content, original)
        del content
        done += len(original)
        frames += 1
        yield original.data
    check_complete(frames, done, orig_size)


def _filters_of(stored: bytes | memoryview) -> Filters:
    return parse_leading(stored, leading_size(stored, len(stored)))


def _decode_frame(
    stored: bytes | memoryview, frame: _zstd.Frame, at_most: int, filters: Filters
) -> bytes:
    """The filtered content of one frame."""
    if frame.content_size is not None and frame.content_size <= at_most:
        filters.check_frame(frame.content_size)
    try:
        content = _zstd.decode_frame(stored, frame, min(at_most, LARGEST_FRAME))
    except SizeMismatch:
        if frame.content_size is None and at_most > LARGEST_FRAME:
            filters.check_frame(LARGEST_FRAME + 1)
        raise
    filters.check_frame(len(content))
    return content
