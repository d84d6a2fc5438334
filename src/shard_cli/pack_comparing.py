"""What differs between two packs: records, metadata, entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_cli.comparing import Difference, first_difference_of
from shard_cli.pack_facts import as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardpack import Dataset, Entry, Record


def compare_packs(
    a: Dataset,
    b: Dataset,
    *,
    stored: bool,
    progress: Callable[[int, int], None],
) -> Iterator[Difference]:
    """All differences, in the order of A and then of B. Records are found by their keys.

    Args:
        a: one pack.
        b: the other.
        stored: also how entries are stored, and the order of the records.
        progress: called with the bytes done and the bytes in all.
    """
    ours, theirs = (as_json(dataset.metadata.get("user") or {}) for dataset in (a, b))
    yield from _fields(None, "metadata", ours, theirs)
    total = sum(shard.footer.index_offset for dataset in (a, b) for shard in dataset.shards)
    done = 0
    for number, record in enumerate(a.records()):
        progress(done, total)
        done += record.size
        key = record.key
        other = b.find(key)
        if other is None:
            yield Difference("only_in_a", key, a=_size(record))
            continue
        if stored and other != number:
            yield Difference("metadata", key, "number", number, other)
        yield from _compare_records(record, b[other], stored=stored)
    for record in b.records():
        progress(done, total)
        done += record.size
        if record.key not in a:
            yield Difference("only_in_b", record.key, b=_size(record))


def _size(record: Record) -> int:
    return sum(entry.size for entry in record.file_entries())


def _fields(entry: str | None, what: str, ours: Any, theirs: Any) -> Iterator[Difference]:  # noqa: ANN401 - any metadata
    kind = "file" if entry is None else "metadata"
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        if ours != theirs:
            yield Difference(kind, entry, what, ours, theirs)
        return
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key) or (key in ours) != (key in theirs):
            yield Difference(kind, entry, f"{what}.{key}", ours.get(key), theirs.get(key))


def _compare_records(record: Record, other: Record, *, stored: bool) -> Iterator[Difference]:
    key = record.key
    yield from _fields(key, "metadata", as_json(record.metadata), as_json(other.metadata))
    for entry in record.file_entries():
        # Key and name, as `extract` would put them together.
        place = f"{key}.{entry.name}"
        if entry.name not in other:
            yield Difference("only_in_a", place, a=entry.size)
            continue
        yield from _compare_entries(place, entry, other[entry.name], stored=stored)
    for entry in other.file_entries():
        if entry.name not in record:
            yield Difference("only_in_b", f"{key}.{entry.name}", b=entry.size)


def _compare_entries(
    place: str, entry: Entry, other: Entry, *, stored: bool
) -> Iterator[Difference]:
    at = first_difference_of(entry.data, other.data)
    if at is not None:
        yield Difference("content", place, a=entry.size, b=other.size, offset=at)
    if entry.content_type != other.content_type:
        yield Difference("metadata", place, "content_type", entry.content_type, other.content_type)
    if stored and entry.compression != other.compression:
        yield Difference("metadata", place, "codec", entry.compression, other.compression)
