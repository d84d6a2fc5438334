"""Reading the head of a file: as few reads as possible, nothing that the file only claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shard_format._index import FEW_ENTRIES, Index, parse_header
from shard_format._layout import HEADER_SIZE
from shard_format._namehash import WORD_PADDING
from shard_format._parallel import for_each, thread_count
from shard_format.errors import Truncated
from shard_format.sources import BytesSource, can_read_into

if TYPE_CHECKING:
    from shard_format._layout import Header
    from shard_format.registry import Limits
    from shard_format.sources import ByteSource

# One read of this size brings the whole head of most files.
_FIRST_READ = 8192
# A long head is read in pieces of this size, side by side.
_HEAD_PIECE = 1 << 20


def read_head(source: ByteSource, limits: Limits) -> tuple[Header, Index]:
    """The checked header and index of a file."""
    size = source.size()
    if type(source) is BytesSource:
        start = source.start(_FIRST_READ)
    else:
        start = source.read_at(0, min(size, _FIRST_READ))
    header = parse_header(start, size, limits)
    needed = header.data_section_offset
    if header.entry_count <= FEW_ENTRIES:
        # A reserved head may be long and empty; names cannot start behind this.
        if needed > len(start):
            start += source.read_at(len(start), needed - len(start))
        return header, Index(header, start)
    head = np.empty(needed + WORD_PADDING, np.uint8)
    head[needed:] = 0
    if can_read_into(source):
        memory, read_into = head.data, source.read_into

        def read_piece(start: int) -> None:
            read_into(start, memory[start : min(start + _HEAD_PIECE, needed)])

        for_each(range(0, needed, _HEAD_PIECE), read_piece, thread_count(None, needed))
    else:
        head[:needed] = np.frombuffer(source.read_at(0, needed), np.uint8)
    if head[:HEADER_SIZE].tobytes() != start[:HEADER_SIZE]:
        raise Truncated("the file changed while it was being opened")
    head.flags.writeable = False
    return header, Index(header, head)
