"""Putting content into a writer in bounded memory, for `create` and `repack`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shard_cli.text import size as size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shard_cli.output import Console
    from shard_format import Compression, Filters, ShardWriter

# Content up to here is put together in memory: a frame of known size, and a codec that needs it whole.
_LARGEST_IN_MEMORY: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Storage:
    """How one entry shall be stored and described."""

    compression: Compression
    frame_bytes: int | None = None
    content_type: int | str = 0
    tags: int | Sequence[str] = 0
    filters: Filters | None = None


def write_content(
    writer: ShardWriter,
    name: str,
    pieces: Iterable[bytes | memoryview],
    size: int | None,
    storage: Storage,
    console: Console,
) -> None:
    """Writes one entry from pieces.

    Args:
        writer: takes the entry.
        name: its name.
        pieces: its content.
        size: bytes of content; None if only reading shows it.
        storage: how to store it. Entries above what readers decompress by default stay raw.
        console: told when an entry stays raw.
    """
    from shard_format.codecs import NO_COMPRESSION, Codec
    from shard_format.registry import DEFAULT_LIMITS

    compression, frame_bytes, filters = storage.compression, storage.frame_bytes, storage.filters
    largest = DEFAULT_LIMITS.max_decompressed_bytes
    if compression.codec is not Codec.NONE and size is not None and size > largest:
        console.warn(
            f"{name}: stored raw, for readers refuse compressed entries above {size_text(largest)}"
        )
        compression, frame_bytes, filters = NO_COMPRESSION, None, None
    in_memory = size is not None and size <= _LARGEST_IN_MEMORY
    if in_memory or compression.codec is Codec.LZ4:
        writer.write_entry(
            name,
            b"".join(pieces),
            compression=compression,
            frame_bytes=frame_bytes,
            filters=filters,
            content_type=storage.content_type,
            tags=storage.tags,
        )
    else:
        writer.write_entry_stream(
            name,
            pieces,
            compression=compression,
            frame_bytes=frame_bytes,
            filters=filters,
            content_type=storage.content_type,
            tags=storage.tags,
        )
