"""Seeds for the fuzzer, taken from the vectors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from shard_format import Codec, ShardError, ShardReader

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
# Large seeds make every run slow and teach the fuzzer nothing.
LARGEST_SEED = 1 << 14


def vector_files() -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every vector that is small enough."""
    for description in sorted(VECTORS.glob("*valid/*.json")):
        file = json.loads(description.read_text("utf-8"))["file"]
        data = (description.parent / file).read_bytes()
        if len(data) <= LARGEST_SEED:
            yield f"{description.parent.name}-{description.stem}", data


def seeds(target: str) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every seed of a target."""
    for name, data in vector_files():
        if target == "container":
            yield name, data
            continue
        try:
            reader = ShardReader(data)
        except ShardError:
            continue
        yield from _parts(target, name, data, reader)


def _parts(target: str, name: str, data: bytes, reader: ShardReader) -> Iterator[tuple[str, bytes]]:
    if target == "json":
        if reader.header.schema_offset:
            yield name, data[reader.header.schema_offset :]
        for entry in reader.prefix("meta/"):
            info = reader.info(entry)
            if info.codec is Codec.NONE:
                yield f"{name}-{entry.replace('/', '_')}", bytes(reader.view(entry))
        return
    for number in range(len(reader)):
        row = reader.index[number]
        start, size = int(row["data_offset"]), int(row["disk_size"])
        if not row["flags"] & 1:
            continue
        stored = data[start : start + size]
        orig_size = int(row["orig_size"]) & 0xFFFFFFFF
        if target == "decompression":
            is_zstd = not row["flags"] & 4
            yield f"{name}-{number}", struct.pack("<BI", is_zstd, orig_size) + stored
        elif target == "seek_table":
            yield f"{name}-{number}", struct.pack("<III", orig_size, 1, orig_size // 2) + stored
