"""A raw encoder of ShardPack: blocks as spec/shardpack.md lays them out, true unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from _layout import align, pack
from _primitives import canonical_json, crc32c, xxh64

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _layout import Fields
    from _metadata import JsonObject

RECORD_FIELDS: Fields = (
    ("record_size", 8),
    ("marker", 4),
    ("version", 1),
    ("metadata_encoding", 1),
    ("alignment", 1),
    ("flags", 1),
    ("entry_count", 4),
    ("kinds_size", 4),
    ("key_size", 4),
    ("metadata_size", 4),
)
ROW_FIELDS: Fields = (
    ("stored_size", 8),
    ("original_size", 8),
    ("crc32c", 4),
    ("encoding", 1),
    ("reserved", 3),
)
KIND_FIELDS: Fields = (("name_size", 2), ("content_type_size", 2))
CHECKSUM: Fields = (("crc32c", 4),)
INDEX_FIELDS: Fields = (
    ("index_size", 8),
    ("marker", 4),
    ("version", 1),
    ("reserved", 3),
    ("record_count", 8),
    ("metadata_size", 8),
)
FOOTER_FIELDS: Fields = (
    ("index_offset", 8),
    ("record_count", 8),
    ("metadata_size", 8),
    ("total_size", 8),
    ("offsets_crc32c", 4),
    ("lookup_crc32c", 4),
    ("metadata_crc32c", 4),
    ("version", 1),
    ("reserved", 7),
)
FOOTER_END: Fields = (("footer_crc32c", 4), ("magic", 8))

RECORD_HEAD_SIZE = 32
ROW_SIZE = 24
INDEX_HEAD_SIZE = 32
FOOTER_SIZE = 64
RECORD_MARKER = int.from_bytes(b"SPR1", "little")
INDEX_MARKER = int.from_bytes(b"SPI1", "little")
PACK_MAGIC = int.from_bytes(b"SHRDPACK", "little")

NONE, GZIP, LZ4, ZSTD = range(4)
JSON, MESSAGEPACK = 1, 2
MOST_SCHEMA_NAMES = 256
CREATED = "2024-01-01T00:00:00Z"


def _replaced(values: dict[str, int], changes: Mapping[str, int]) -> dict[str, int]:
    for name in changes.keys() - values.keys():
        raise KeyError(name)
    return values | dict(changes)


@dataclass(frozen=True)
class Part:
    """One entry: `stored` where it is encoded, `row` replaces fields of its row."""

    name: str | bytes
    content: bytes = b""
    content_type: str | bytes = ""
    encoding: int = NONE
    stored: bytes | None = None
    row: Mapping[str, int] = field(default_factory=dict)

    @property
    def stored_bytes(self) -> bytes:
        return self.content if self.stored is None else self.stored

    @property
    def kind(self) -> bytes:
        name, content_type = (
            text if isinstance(text, bytes) else text.encode()
            for text in (self.name, self.content_type)
        )
        sizes = {"name_size": len(name), "content_type_size": len(content_type)}
        return pack(KIND_FIELDS, sizes) + name + content_type

    @property
    def row_bytes(self) -> bytes:
        true = {
            "stored_size": len(self.stored_bytes),
            "original_size": len(self.content),
            "crc32c": crc32c(self.stored_bytes),
            "encoding": self.encoding,
            "reserved": 0,
        }
        return pack(ROW_FIELDS, _replaced(true, self.row))


@dataclass(frozen=True)
class Record:
    """One record block; `head` replaces fields of its head, `kinds` that whole area."""

    key: str | bytes
    parts: tuple[Part, ...] = ()
    metadata: bytes = b""
    metadata_encoding: int = 0
    alignment: int = 8
    kinds: bytes | None = None
    more_padding: bytes = b""
    head: Mapping[str, int] = field(default_factory=dict)
    head_crc32c: int | None = None

    @property
    def key_bytes(self) -> bytes:
        return self.key if isinstance(self.key, bytes) else self.key.encode()

    @property
    def data(self) -> bytes:
        rows = b"".join(part.row_bytes for part in self.parts)
        kinds = self.kinds
        if kinds is None:
            kinds = b"".join(part.kind for part in self.parts)
        head_size = RECORD_HEAD_SIZE + len(rows) + len(kinds) + len(self.key_bytes)
        head_size += len(self.metadata) + 4
        body = b""
        for part in self.parts:
            at = head_size + len(body)
            body += bytes(align(at, self.alignment) - at) + part.stored_bytes
        end = head_size + len(body)
        body += bytes(align(end, self.alignment) - end) + self.more_padding
        true = {
            "record_size": head_size + len(body),
            "marker": RECORD_MARKER,
            "version": 1,
            "metadata_encoding": self.metadata_encoding,
            "alignment": self.alignment,
            "flags": 0,
            "entry_count": len(self.parts),
            "kinds_size": len(kinds),
            "key_size": len(self.key_bytes),
            "metadata_size": len(self.metadata),
        }
        head = pack(RECORD_FIELDS, _replaced(true, self.head)) + rows + kinds
        head += self.key_bytes + self.metadata
        checksum = crc32c(head) if self.head_crc32c is None else self.head_crc32c
        return head + pack(CHECKSUM, {"crc32c": checksum}) + body


def schema_of(records: tuple[Record, ...]) -> JsonObject | None:
    """The schema that a writer states, None where there are too many names."""
    schema: dict[str, dict[str, object]] = {}
    for record in records:
        for part in record.parts:
            name, kind = str(part.name), part.content_type
            row = schema.setdefault(name, {"content_type": kind, "records": 0})
            row["records"] = int(str(row["records"])) + 1
            if row["content_type"] != kind:
                row["content_type"] = ""
    return dict(schema) if len(schema) <= MOST_SCHEMA_NAMES else None


@dataclass(frozen=True)
class Pack:
    """A whole shard; None stands for what is true, `index` and `footer` replace fields."""

    records: tuple[Record, ...] = ()
    user: Mapping[str, object] = field(default_factory=dict)
    metadata: bytes | None = None
    offsets: tuple[int, ...] | None = None
    hashes: tuple[int, ...] | None = None
    numbers: tuple[int, ...] | None = None
    index: Mapping[str, int] = field(default_factory=dict)
    footer: Mapping[str, int] = field(default_factory=dict)
    footer_crc32c: int | None = None
    magic: int = PACK_MAGIC

    @property
    def metadata_bytes(self) -> bytes:
        if self.metadata is not None:
            return self.metadata
        fields: JsonObject = {"created": CREATED, "user": dict(self.user), "version": 1}
        if (schema := schema_of(self.records)) is not None:
            fields["schema"] = schema
        return canonical_json(fields)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each record starts, and where the last one ends."""
        starts = [0]
        for record in self.records:
            starts.append(starts[-1] + len(record.data))
        return tuple(starts)

    @property
    def record_bytes(self) -> bytes:
        return b"".join(record.data for record in self.records)

    @property
    def data(self) -> bytes:
        end, count, text = self.starts[-1], len(self.records), self.metadata_bytes
        pairs = sorted((xxh64(r.key_bytes), number) for number, r in enumerate(self.records))
        hashes = tuple(pair[0] for pair in pairs) if self.hashes is None else self.hashes
        numbers = tuple(pair[1] for pair in pairs) if self.numbers is None else self.numbers
        offsets = _numbers(self.starts if self.offsets is None else self.offsets, 8)
        lookup = _numbers(hashes, 8) + _numbers(numbers, 4)
        size = INDEX_HEAD_SIZE + len(offsets) + len(lookup) + len(text) + FOOTER_SIZE
        head = {
            "index_size": size,
            "marker": INDEX_MARKER,
            "version": 1,
            "reserved": 0,
            "record_count": count,
            "metadata_size": len(text),
        }
        footer = {
            "index_offset": end,
            "record_count": count,
            "metadata_size": len(text),
            "total_size": end + size,
            "offsets_crc32c": crc32c(offsets),
            "lookup_crc32c": crc32c(lookup),
            "metadata_crc32c": crc32c(text),
            "version": 1,
            "reserved": 0,
        }
        last = pack(FOOTER_FIELDS, _replaced(footer, self.footer))
        checksum = crc32c(last) if self.footer_crc32c is None else self.footer_crc32c
        last += pack(FOOTER_END, {"footer_crc32c": checksum, "magic": self.magic})
        index = pack(INDEX_FIELDS, _replaced(head, self.index)) + offsets + lookup + text
        return self.record_bytes + index + last


def _numbers(values: tuple[int, ...], width: int) -> bytes:
    return b"".join(value.to_bytes(width, "little") for value in values)
