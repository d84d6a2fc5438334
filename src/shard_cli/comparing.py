"""What differs between two files: entries, content, metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shard_cli.entries import Row, iter_rows, schema_or_empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shard_format import Schema, ShardReader

# Entries up to here are read whole and compared at once; streaming them would cost more.
_SMALL: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs."""

    kind: str
    """only_in_a, only_in_b, content, metadata, or file for what is not about an entry."""
    entry: str | None
    field: str | None = None
    a: Any = None
    b: Any = None
    """The value on each side; sizes where the content differs."""
    offset: int | None = None
    """The first byte of content that differs."""

    def to_fields(self) -> dict[str, Any]:
        """The difference as `--json` shows it."""
        return {
            "kind": self.kind,
            "entry": self.entry,
            "field": self.field,
            "a": self.a,
            "b": self.b,
            "offset": self.offset,
        }


def compare(
    a: ShardReader,
    b: ShardReader,
    *,
    stored: bool,
    progress: Callable[[int, int], None],
) -> Iterator[Difference]:
    """All differences, in the order of A and then of B.

    Args:
        a: one file.
        b: the other.
        stored: also how entries are stored: codec, alignment.
        progress: called with the bytes done and the bytes in all.
    """
    yield from _compare_files(a, b, stored=stored)
    rows_a = {row.name: row for row in iter_rows(a)}
    rows_b = {row.name: row for row in iter_rows(b)}
    schemas = schema_or_empty(a), schema_or_empty(b)
    total = sum(row.size for row in rows_a.values() if row.name in rows_b)
    done = 0
    for name, row in rows_a.items():
        other = rows_b.get(name)
        if other is None:
            yield Difference("only_in_a", name, a=row.size)
            continue
        at = _first_difference(a, b, row, other)
        if at is not None:
            yield Difference("content", name, a=row.size, b=other.size, offset=at)
        done += row.size
        progress(done, total)
        yield from _compare_metadata(row, other, schemas, stored=stored)
    for name, row in rows_b.items():
        if name not in rows_a:
            yield Difference("only_in_b", name, b=row.size)


def _compare_files(a: ShardReader, b: ShardReader, *, stored: bool) -> Iterator[Difference]:
    from shard_format.registry import role_label

    if a.role != b.role:
        yield Difference("file", None, "role", role_label(a.role), role_label(b.role))
    if stored and a.header.alignment != b.header.alignment:
        yield Difference("file", None, "alignment", a.header.alignment, b.header.alignment)
    ours, theirs = (reader.schema for reader in (a, b))
    fields_a, fields_b = (schema.fields if schema else {} for schema in (ours, theirs))
    for key in sorted(fields_a.keys() | fields_b.keys()):
        if fields_a.get(key) != fields_b.get(key):
            yield Difference("file", None, f"schema.{key}", fields_a.get(key), fields_b.get(key))


def _compare_metadata(
    row: Row, other: Row, schemas: tuple[Schema, Schema], *, stored: bool
) -> Iterator[Difference]:
    from shard_format.registry import content_type_label

    facts: list[tuple[str, Any, Any]] = [
        (
            "content_type",
            content_type_label(row.content_type),
            content_type_label(other.content_type),
        ),
        ("tags", schemas[0].tags(row.tag_bits), schemas[1].tags(other.tag_bits)),
    ]
    if stored:
        facts.append(("codec", row.codec, other.codec))
    for field, ours, theirs in facts:
        if ours != theirs:
            yield Difference("metadata", row.name, field, ours, theirs)


def _first_difference(a: ShardReader, b: ShardReader, row: Row, other: Row) -> int | None:
    """The first byte that differs, None if all are the same. Both entries stream."""
    if row.size == other.size <= _SMALL and a.read_entry(row.name) == b.read_entry(row.name):
        return None
    at = 0
    streams = a.iter_entry(row.name), b.iter_entry(row.name)
    ours, theirs = memoryview(b""), memoryview(b"")
    while True:
        # Pieces end where their codec wants; only what both have can be compared.
        ours = ours if len(ours) else next(streams[0], ours)
        theirs = theirs if len(theirs) else next(streams[1], theirs)
        length = min(len(ours), len(theirs))
        if length == 0:
            return at if len(ours) or len(theirs) else None
        differs = first_difference_of(ours[:length], theirs[:length])
        if differs is not None:
            return at + differs
        at += length
        ours, theirs = ours[length:], theirs[length:]


def first_difference_of(ours: memoryview, theirs: memoryview) -> int | None:
    """The first byte that differs, None if all are the same; where one ends, it differs."""
    import numpy as np

    length = min(len(ours), len(theirs))
    # NumPy, for memoryviews compare byte by byte in Python's terms.
    differs = np.frombuffer(ours[:length], np.uint8) != np.frombuffer(theirs[:length], np.uint8)
    if differs.any():
        return int(differs.argmax())
    return None if len(ours) == len(theirs) else length
