"""What packs say about themselves: the facts of `info` and `stats`."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardpack import Dataset, Record

# `info` answers at once: it looks at the fields of so many shards, and only counts the others.
_MOST_READ = 64


def summarise_pack(name: str, dataset: Dataset) -> dict[str, Any]:
    """The facts of `info`, from footers and metadata, and of the first record its alignment."""
    from shardpack._layout import VERSION

    shards: list[dict[str, Any]] = []
    index_size = 0
    for shard in dataset.shards:  # one by one: there may be more than are held open
        footer = shard.footer
        shards.append({"file": shard.name, "records": len(shard), "size": footer.total_size})
        index_size += footer.total_size - footer.index_offset
    first = dataset.shards[0]
    fields = as_json(first.metadata)
    schema, complete = _merged_schema(dataset)
    user = fields.get("user", {})
    facts: dict[str, Any] = {
        "file": name,
        "format": "shardpack",
        "version": VERSION,
        "shards": shards,
        "records": sum(shard["records"] for shard in shards),
        "file_size": sum(shard["size"] for shard in shards),
        "index_size": index_size,
        "created": fields.get("created"),
        "alignment": first.record(0).alignment if len(first) else None,
        "metadata": user,
        "schema": schema,
        "schema_is_complete": complete,
    }
    others = {key: value for key, value in fields.items() if key not in _KNOWN_FIELDS}
    if others:
        facts["other_fields"] = others
    return facts


_KNOWN_FIELDS = ("created", "schema", "user", "version")


def _merged_schema(dataset: Dataset) -> tuple[dict[str, Any], bool]:
    """Content type and number of records of every entry name, over the first shards."""
    merged: dict[str, dict[str, Any]] = {}
    complete = len(dataset.shards) <= _MOST_READ
    for number in range(min(len(dataset.shards), _MOST_READ)):
        schema = dataset.shards[number].metadata.get("schema")
        if not isinstance(schema, dict):
            complete = False
            continue
        for name, found in schema.items():
            if not isinstance(found, dict):
                continue
            kind, records = found.get("content_type"), found.get("records")
            known = merged.setdefault(name, {"content_type": kind, "records": 0})
            if known["content_type"] != kind:
                known["content_type"] = ""
            known["records"] += records if type(records) is int else 0
    return merged, complete


def as_json(value: Any) -> Any:  # noqa: ANN401 - any metadata
    """Metadata as JSON can say it: MessagePack has bytes, other keys than text, and NaN."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else repr(key): as_json(one) for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if isinstance(value, (str, int, float, type(None))) else repr(value)


class Statistics:
    """Sizes by content type and name, and how they are distributed. Owns: the counts."""

    def __init__(self) -> None:
        self.records = 0
        self.entries = 0
        self.size = 0
        self.stored = 0
        self.with_metadata = 0
        self.by_type: dict[str, list[int]] = {}
        self.by_name: dict[str, list[int]] = {}
        self.by_codec: dict[str, list[int]] = {}
        self.histogram: dict[int, int] = {}
        self.smallest: tuple[int, str] | None = None
        self.largest: tuple[int, str] | None = None

    def add_all(self, records: Iterable[Record]) -> None:
        """Counts records; reads their heads only."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Counts a record."""
        content = 0
        for entry in record.file_entries():
            size, stored = entry.size, entry.stored_size
            content += size
            for counts, key in (
                (self.by_type, entry.content_type),
                (self.by_name, entry.name),
                (self.by_codec, entry.compression),
            ):
                row = counts.setdefault(key, [0, 0, 0])
                row[0] += 1
                row[1] += size
                row[2] += stored
            self.entries += 1
        self.records += 1
        self.size += content
        self.stored += record.size
        self.with_metadata += bool(record.stored_metadata[1])
        bucket = content.bit_length()
        self.histogram[bucket] = self.histogram.get(bucket, 0) + 1
        if self.smallest is None or content < self.smallest[0]:
            self.smallest = content, record.key
        if self.largest is None or content > self.largest[0]:
            self.largest = content, record.key

    def buckets(self) -> list[tuple[int, int, int]]:
        """From, up to (not included), and how many records; without gaps, in powers of two."""
        if not self.histogram:
            return []
        return [
            (1 << (bits - 1) if bits else 0, 1 << bits, self.histogram.get(bits, 0))
            for bits in range(min(self.histogram), max(self.histogram) + 1)
        ]

    def to_fields(self) -> dict[str, Any]:
        """The counts as `--json` shows them."""

        def rows(counts: dict[str, list[int]]) -> dict[str, dict[str, int]]:
            return {
                key: {"entries": row[0], "size": row[1], "stored": row[2]}
                for key, row in counts.items()
            }

        def one(found: tuple[int, str] | None) -> dict[str, Any] | None:
            return None if found is None else {"key": found[1], "size": found[0]}

        return {
            "records": self.records,
            "entries": self.entries,
            "size": self.size,
            "stored": self.stored,
            "records_with_metadata": self.with_metadata,
            "content_types": rows(self.by_type),
            "names": rows(self.by_name),
            "codecs": rows(self.by_codec),
            "smallest": one(self.smallest),
            "largest": one(self.largest),
            "histogram": [
                {"from": start, "below": stop, "records": number}
                for start, stop, number in self.buckets()
            ],
        }
