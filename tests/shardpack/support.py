"""What several test files need. Nothing here uses the library to make expected bytes."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastcrc import crc32
from xxhash import xxh64_intdigest

from shardpack import ShardPackWriter
from tests.shard_format.support import check_python, noise, prose, run_python

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "CREATED",
    "HandMadePack",
    "HandMadeRecord",
    "Part",
    "RangesOnly",
    "check_python",
    "noise",
    "prose",
    "run_python",
    "write_pack",
]

CREATED = "2024-05-06T07:08:09Z"
crc32c = crc32.iscsi


@dataclass
class Part:
    """One entry of a hand-made record; None stands for the right value."""

    name: bytes
    stored: bytes = b""
    content_type: bytes = b""
    encoding: int = 0
    original_size: int | None = None
    stored_size: int | None = None
    crc: int | None = None


@dataclass
class HandMadeRecord:
    """A record block put together with `struct` from the tables of spec/shardpack.md."""

    key: bytes
    parts: list[Part] = field(default_factory=list)
    metadata: bytes = b""
    metadata_encoding: int = 0
    alignment: int = 8
    marker: bytes = b"SPR1"
    version: int = 1
    flags: int = 0
    size: int | None = None
    entry_count: int | None = None
    kinds_size: int | None = None
    key_size: int | None = None
    metadata_size: int | None = None
    head_crc: int | None = None
    more_kinds: bytes = b""
    kinds: bytes | None = None

    def to_bytes(self) -> bytes:
        kinds = b"".join(
            struct.pack("<HH", len(part.name), len(part.content_type))
            + part.name
            + part.content_type
            for part in self.parts
        )
        kinds = kinds + self.more_kinds if self.kinds is None else self.kinds
        rows = b"".join(
            struct.pack(
                "<QQIBBH",
                len(part.stored) if part.stored_size is None else part.stored_size,
                len(part.stored) if part.original_size is None else part.original_size,
                crc32c(part.stored) if part.crc is None else part.crc,
                part.encoding,
                0,
                0,
            )
            for part in self.parts
        )
        body = b""
        head_size = 32 + len(rows) + len(kinds) + len(self.key) + len(self.metadata) + 4
        alignment = self.alignment or 1
        for part in self.parts:
            body += bytes(-(head_size + len(body)) % alignment) + part.stored
        body += bytes(-(head_size + len(body)) % alignment)

        def chosen(given: int | None, right: int) -> int:
            return right if given is None else given

        fixed = struct.pack(
            "<Q4sBBBBIIII",
            chosen(self.size, head_size + len(body)),
            self.marker,
            self.version,
            self.metadata_encoding,
            self.alignment,
            self.flags,
            chosen(self.entry_count, len(self.parts)),
            chosen(self.kinds_size, len(kinds)),
            chosen(self.key_size, len(self.key)),
            chosen(self.metadata_size, len(self.metadata)),
        )
        head = fixed + rows + kinds + self.key + self.metadata
        return head + struct.pack("<I", chosen(self.head_crc, crc32c(head))) + body


@dataclass
class HandMadePack:
    """A whole shard; None stands for the right value."""

    records: list[HandMadeRecord | bytes]
    fields: Any = None
    text: bytes | None = None
    keys: list[bytes] | None = None
    offsets: list[int] | None = None
    hashes: list[int] | None = None
    numbers: list[int] | None = None
    offsets_crc: int | None = None
    lookup_crc: int | None = None
    metadata_crc: int | None = None
    index_head: bytes | None = None
    footer: dict[str, int] = field(default_factory=dict)
    magic: bytes = b"SHRDPACK"
    footer_crc: int | None = None

    def to_bytes(self) -> bytes:
        blocks = [r if isinstance(r, bytes) else r.to_bytes() for r in self.records]
        keys = self.keys or [r.key for r in self.records if isinstance(r, HandMadeRecord)]
        starts = [0]
        for block in blocks:
            starts.append(starts[-1] + len(block))
        count = len(blocks)
        end = starts[-1]
        offsets = struct.pack(f"<{count + 1}Q", *(self.offsets or starts))
        pairs = sorted((xxh64_intdigest(key), number) for number, key in enumerate(keys))
        hashes = [pair[0] for pair in pairs] if self.hashes is None else self.hashes
        numbers = [pair[1] for pair in pairs] if self.numbers is None else self.numbers
        lookup = struct.pack(f"<{count}Q{count}I", *hashes, *numbers)
        fields = {"created": CREATED, "schema": {}, "user": {}, "version": 1}
        if self.fields is not None:
            fields = self.fields
        text = self.text
        if text is None:
            text = json.dumps(
                fields, separators=(",", ":"), sort_keys=True, ensure_ascii=False
            ).encode()
        total = end + 32 + len(offsets) + len(lookup) + len(text) + 64
        head = struct.pack("<Q4sB3xQQ", total - end, b"SPI1", 1, count, len(text))
        values = {
            "index_offset": end,
            "record_count": count,
            "metadata_size": len(text),
            "total_size": total,
            "offsets_crc32c": crc32c(offsets) if self.offsets_crc is None else self.offsets_crc,
            "lookup_crc32c": crc32c(lookup) if self.lookup_crc is None else self.lookup_crc,
            "metadata_crc32c": crc32c(text) if self.metadata_crc is None else self.metadata_crc,
            "version": 1,
        } | self.footer
        footer = struct.pack("<QQQQIIIB7x", *values.values())
        footer += struct.pack("<I", crc32c(footer) if self.footer_crc is None else self.footer_crc)
        parts = [*blocks, self.index_head or head, offsets, lookup, text, footer, self.magic]
        return b"".join(parts)


def write_pack(path: Path, samples: Mapping[str, Mapping[str, Any]], **options: Any) -> Path:  # noqa: ANN401 - the writer's
    """A shard with these samples, by the writer, without syncing."""
    options.setdefault("created", CREATED)
    options.setdefault("overwrite", not options.get("append"))
    with ShardPackWriter(path, fsync=False, **options) as writer:
        for key, entries in samples.items():
            writer.write(key, entries)
    return path


class RangesOnly:
    """A source that can only read ranges, as remote ones do; notes what is asked of it."""

    def __init__(self, data: bytes) -> None:
        self.name = "<ranges>"
        self._data = data
        self.asked: list[tuple[int, int]] = []
        self.rounds = 0

    def size(self) -> int:
        return len(self._data)

    def read_at(self, offset: int, length: int) -> bytes:
        self.rounds += 1
        self.asked.append((offset, length))
        return self._data[offset : offset + length]

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        self.rounds += 1
        self.asked += ranges
        return [self._data[offset : offset + length] for offset, length in ranges]

    def close(self) -> None:
        """Nothing to release."""
