"""Containers: Shard files of any role, as `shard` sees them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_cli.exits import error_fields
from shard_cli.kinds.container_checks import diagnose, verify
from shard_cli.kinds.entries import (
    ListedEntry,
    count_codecs,
    count_values,
    exact_sum,
    flag_names,
    iter_rows,
    schema_or_empty,
)
from shard_cli.kinds.model import (
    Change,
    Chosen,
    NamedContent,
    TableRows,
    field_lines,
    matches,
    open_shard,
    unreadable,
)
from shard_cli.text import count, coverage, exact_size, fit, percent, printable, short_json, size
from shard_format import Schema
from shard_format.canonical_json import parse_object
from shard_format.errors import DATA_ERRORS, EntryNotFound, InvalidArgument, ShardError, shorten
from shard_format.identity import IDENTITY_ENTRY, stored_identity
from shard_format.manifest import MANIFEST_ENTRY, Manifest
from shard_format.opening import copying_urls
from shard_format.registry import Role, content_type_label, role_label
from shard_format.verify import EPISODE_ENTRY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shard_cli.console import Console
    from shard_cli.kinds.model import Progress
    from shard_format import ShardReader


# With what is defined here, they make this module a kind.
__all__ = ["diagnose", "verify"]

# `info` answers at once: it announces larger metadata and does not read it.
_LARGEST_READ: Final = 1 << 20
_RANGE_BYTES: Final = 4 << 20
# `diff` reads entries up to this size whole; streaming them would cost more.
_SMALL: Final = 1 << 16
_LONGEST_VALUE: Final = 60


def files(path: str) -> list[str]:
    """The file itself."""
    return [path]


# --- facts


def facts(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """What the head and the small metadata of a file say."""
    with open_shard(path, args) as reader:
        header, index = reader.header, reader.index
        found: dict[str, Any] = {
            "file": reader.name,
            "file_size": header.total_file_size,
            "version": header.version,
            "role": header.role,
            "role_name": role_label(header.role),
            "alignment": header.alignment,
            "flags": header.flags,
            "flag_names": flag_names(header.flags),
            "entries": len(reader),
            "size": exact_sum(index["orig_size"]),
            "stored": exact_sum(index["disk_size"]),
            "codecs": count_codecs(reader),
            "content_types": {
                content_type_label(value): number
                for value, number in count_values(index["content_type"])
            },
            "schema": _readable(lambda: _schema(reader)),
            "identity": _readable(lambda: _identity(reader)),
        }
        if reader.role == Role.MANIFEST:
            found["manifest"] = _readable(lambda: _manifest(reader))
        if reader.role == Role.WSHARD:
            found["episode"] = _readable(lambda: _episode(reader))
            found["lanes"] = _lanes(reader)
        return found


def _readable(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """What was read, or why it could not be: damaged metadata does not hide the rest."""
    try:
        return read()
    except ShardError as error:
        return {"error": error_fields(error)}


def _schema(reader: ShardReader) -> dict[str, Any] | None:
    header = reader.header
    if header.schema_offset == 0:
        return None
    length = header.total_file_size - header.schema_offset
    if length > _LARGEST_READ:
        return {"bytes": length}
    schema = reader.schema
    assert schema is not None
    fields = dict(schema.fields)
    described = len(fields.pop("entry_metadata", None) or {})
    return {"bytes": length, "described_entries": described, "fields": fields}


def _identity(reader: ShardReader) -> dict[str, Any] | None:
    if IDENTITY_ENTRY not in reader:
        return None
    if reader.info(IDENTITY_ENTRY).size > _LARGEST_READ:
        return {}
    stored = stored_identity(reader)
    return None if stored is None else {"stored": stored.digest, "version": stored.version}


def _manifest(reader: ShardReader) -> dict[str, Any]:
    if MANIFEST_ENTRY in reader and reader.info(MANIFEST_ENTRY).size > 16 * _LARGEST_READ:
        return {"bytes": reader.info(MANIFEST_ENTRY).size}
    manifest = Manifest.read(reader)
    rows = manifest.files
    found: dict[str, Any] = {
        "files": len(rows),
        "size": sum(reference.size or 0 for reference in rows),
        "hashed": sum(reference.sha256 is not None for reference in rows),
    }
    if rows:
        found["first"] = {"uri": rows[0].uri, "start_key": rows[0].start_key}
        found["last"] = {"uri": rows[-1].uri, "end_key": rows[-1].end_key}
    return {**found, "fields": dict(manifest.fields)}


def _episode(reader: ShardReader) -> dict[str, Any] | None:
    if EPISODE_ENTRY not in reader:
        return None
    nbytes = reader.info(EPISODE_ENTRY).size
    if nbytes > _LARGEST_READ:
        return {"bytes": nbytes}
    return parse_object(reader.read_entry(EPISODE_ENTRY), EPISODE_ENTRY, reader.limits)


def _lanes(reader: ShardReader) -> dict[str, int]:
    """How many entries each lane of an episode has, in the order of the index."""
    counts: dict[str, int] = {}
    for name in reader.names():
        lane = name.partition("/")[0]
        if lane != "meta":
            counts[lane] = counts.get(lane, 0) + 1
    return counts


def show_facts(facts: dict[str, Any], console: Console) -> None:
    """Prints the facts for people."""
    console.facts(facts["file"], _lines(facts))


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "role", f"{facts['role_name']} ({facts['role']})".replace(f" ({facts['role']})" * 2, "")
    alignment = facts["alignment"]
    aligned = f"entries aligned to {alignment} bytes" if alignment else "entries not aligned"
    yield "format", f"version {facts['version']}, {aligned}"
    yield "flags", ", ".join(facts["flag_names"]) or "none"
    yield "file size", exact_size(facts["file_size"])
    yield "entries", f"{facts['entries']:,}"
    if facts["entries"]:
        stored = f"{size(facts['stored'])} ({percent(facts['stored'], facts['size'])})"
        yield "content", f"{exact_size(facts['size'])}, stored as {stored}"
        yield "codecs", _counts(facts["codecs"])
        yield "types", _counts(facts["content_types"])
    for label in ("schema", "identity", "manifest", "episode"):
        if label in facts:
            yield from _part_lines(label, facts[label])
    if facts.get("lanes"):
        yield "lanes", _counts(facts["lanes"])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items())


_ABSENT: Final = {
    "schema": "none",
    "identity": "not stored",
    "episode": "missing: files of this role have an entry meta/episode",
}


def _part_lines(label: str, part: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """A part of the metadata: one line about it, and its fields."""
    if part is None:
        yield label, _ABSENT[label]
        return
    fields = part if label == "episode" else part.get("fields", {})
    if isinstance(part.get("error"), dict):
        text, fields = unreadable(part), {}
    elif label == "identity":
        text = part.get("stored", "stored, too long to show")
        text += coverage(part.get("version"))
    elif label == "schema":
        described = part.get("described_entries")
        text = exact_size(part["bytes"])
        text += f", describes {count(described, 'entry')}" if described else ""
    elif label == "episode":
        name = part.get("episode_id", part.get("id"))
        steps = part.get("length_T", part.get("length_t"))
        title = [name] if isinstance(name, str) else []
        title += [count(steps, "step")] if type(steps) is int else []
        text = ", ".join(title) or count(len(part), "field")
    elif "files" in part:
        text = f"{count(part['files'], 'file')}, {exact_size(part['size'])}"
        text += f", {part['hashed']:,} with SHA-256"
    else:
        text = f"{size(part['bytes'])}, too long to show"
    yield label, text
    if label == "manifest" and "first" in part:
        for place, key in (("first", "start_key"), ("last", "end_key")):
            row = part[place]
            yield f"  {place}", row["uri"] if row[key] is None else f"{row['uri']} (key {row[key]})"
    yield from field_lines(fields)


# --- rows


def choose(reader: ShardReader, patterns: Sequence[str], prefix: str | None = None) -> list[str]:
    """The names that match one of the patterns and the prefix, in the order of the index.

    Raises:
        EntryNotFound: a pattern matches nothing. A typing mistake must not look like an empty result.
    """
    found = reader.names() if prefix is None else reader.prefix(prefix)
    if not patterns:
        return found
    wanted: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in found if matches(name, pattern)}
        if not fitting:
            where = "" if prefix is None else f" that starts with {shorten(prefix)}"
            raise EntryNotFound(
                f"no entry{where} matches {shorten(pattern)}",
                path=reader.name,
                hint="'shard ls' lists the entries",
            )
        wanted |= fitting
    return [name for name in found if name in wanted]


_SORT_KEYS: Final[dict[str, Callable[[ListedEntry], Any]]] = {
    "name": lambda row: row.name,
    "size": lambda row: (-row.size, row.name),
    "stored": lambda row: (-row.stored, row.name),
    "offset": lambda row: row.offset,
}


@contextmanager
def names(path: str, args: argparse.Namespace) -> Iterator[Iterator[str]]:
    """The names that patterns choose, sorted as asked."""
    with open_shard(path, args) as reader:
        yield (row.name for row in _rows(reader, args))


def _rows(reader: ShardReader, args: argparse.Namespace) -> list[ListedEntry]:
    wanted = None
    if args.patterns or args.prefix is not None:
        wanted = set(choose(reader, args.patterns, args.prefix))
    rows = list(iter_rows(reader, wanted))
    if args.sort:
        rows.sort(key=_SORT_KEYS[args.sort])
    return rows


def listing(path: str, args: argparse.Namespace, console: Console) -> TableRows:
    """The entries that patterns choose."""
    if args.fields:
        raise InvalidArgument("--fields is for packs: only records have metadata", path=path)
    with open_shard(path, args) as reader:
        rows = _rows(reader, args)
        schema = schema_or_empty(reader) if any(row.tag_bits for row in rows) else None
        entries = [_entry_fields(row, reader, schema, long=args.long) for row in rows]
    # Programs that read the table want numbers; people want units.
    show_size = str if args.bytes or not console.out_is_terminal else size
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "NAME": lambda entry: entry["name"],
        "SIZE": lambda entry: show_size(entry["size"]),
        "STORED": lambda entry: show_size(entry["stored"]),
        "RATIO": lambda entry: percent(entry["stored"], entry["size"]),
        "CODEC": lambda entry: entry["codec"],
        "TYPE": lambda entry: entry["content_type_name"] if entry["content_type"] else "-",
    }
    if args.long:
        columns |= {
            "OFFSET": lambda entry: str(entry["offset"]),
            "CRC-32C": lambda entry: entry["crc32c"] or "-",
            "FLAGS": lambda entry: f"{entry['flags']:04x}",
            "ALIGN": lambda entry: str(entry["alignment"]),
            "FRAMES": lambda entry: "-" if entry["frames"] is None else str(entry["frames"]),
            "FILTERS": lambda entry: entry["filters"] or "-",
        }
    if any(entry["tags"] for entry in entries) or not console.out_is_terminal:
        columns["TAGS"] = lambda entry: ",".join(entry["tags"])
    return TableRows(
        {"file": path, "entries": entries},
        list(columns),
        [[cell(entry) for cell in columns.values()] for entry in entries],
        (1, 2, 3, 6, 9, 10) if args.long else (1, 2, 3),
        f"{count(len(rows), 'entry')}, {size(sum(row.size for row in rows))}, "
        f"stored {size(sum(row.stored for row in rows))}",
    )


def _entry_fields(
    row: ListedEntry, reader: ShardReader, schema: Schema | None, *, long: bool
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": row.name,
        "size": row.size,
        "stored": row.stored,
        "codec": row.codec,
        "content_type": row.content_type,
        "content_type_name": content_type_label(row.content_type),
        "tags": [] if schema is None else schema.tags(row.tag_bits),
    }
    if long:
        table = filters = None
        with suppress(*DATA_ERRORS):  # a damaged entry, which `verify` reports
            table = reader.seek_table(row.name)
            filters = reader.filters(row.name)
        fields |= {
            "offset": row.offset,
            "crc32c": None if row.crc32c is None else f"{row.crc32c:08x}",
            "flags": row.flags,
            # The largest power of two that divides the offset, up to a page.
            "alignment": min(row.offset & -row.offset, 4096),
            "frames": None if table is None else len(table),
            "filters": None if filters is None else str(filters),
        }
    return fields


# --- contents


@contextmanager
def members(
    path: str, names: Sequence[str], args: argparse.Namespace
) -> Iterator[list[NamedContent]]:
    """Entries by name."""
    if getattr(args, "metadata", False):
        raise InvalidArgument("only a record of a pack has metadata of its own", path=path)
    with open_shard(path, args) as reader:
        yield [_member(reader, name) for name in names]


@contextmanager
def chosen(path: str, args: argparse.Namespace) -> Iterator[Chosen]:
    """Entries that patterns choose."""
    with ExitStack() as stack:
        reader = stack.enter_context(open_shard(path, args))
        if args.patterns or args.prefix is not None:
            names = choose(reader, args.patterns, args.prefix)
        else:
            reader = stack.enter_context(reader.in_order())
            names = reader.names_in_file()
        members = [_member(reader, name) for name in names]
        yield Chosen([members], sum(member.size for member in members))


def _member(reader: ShardReader, name: str) -> NamedContent:
    info = reader.info(name)
    pieces = partial(_pieces, reader, name)
    return NamedContent(name, {"name": name}, info.size, pieces, info.crc32c)


def _pieces(
    reader: ShardReader, name: str, wanted: tuple[int, int | None] | None = None
) -> Iterator[bytes | memoryview]:
    if wanted is None:
        yield from reader.iter_entry(name)
        return
    info = reader.info(name)
    start, stop = wanted[0], info.size if wanted[1] is None else wanted[1]
    if not start <= stop <= info.size:
        raise InvalidArgument(
            "the range is outside the entry",
            path=reader.name,
            entry=name,
            expected=f"START <= STOP <= {info.size}",
            found=f"{start}:{stop}",
        )
    # An entry that is compressed as a whole is decoded for every range: ask once.
    in_parts = info.codec == 0 or reader.seek_table(name) is not None
    step = _RANGE_BYTES if in_parts else max(stop - start, 1)
    for at in range(start, stop, step):
        yield reader.read_range(name, at, min(at + step, stop))


# --- comparing


@contextmanager
def compare(args: argparse.Namespace, progress: Progress) -> Iterator[tuple[Iterator[Change], str]]:
    """Compares entries after decompression, and what the files say about them.

    Both files are read once, from start to end, if what they share is in the same order. Otherwise B is read in the order
    of A; if it is remote, it is copied to a temporary file first.
    """
    with ExitStack() as opened:
        a = opened.enter_context(opened.enter_context(open_shard(args.a, args)).in_order())
        b = opened.enter_context(open_shard(args.b, args))
        if not _is_same_order(a, b):
            opened.enter_context(copying_urls())
            b = opened.enter_context(open_shard(args.b, args))
        b = opened.enter_context(b.in_order())
        yield _changes(a, b, progress, stored=args.stored), count(len(a), "entry")


def _is_same_order(a: ShardReader, b: ShardReader) -> bool:
    """Whether the entries of both files that have the same name have the same order."""
    ours, theirs = a.names_in_file(), b.names_in_file()
    in_a, in_b = set(ours), set(theirs)
    return [name for name in ours if name in in_b] == [name for name in theirs if name in in_a]


def _changes(
    a: ShardReader, b: ShardReader, progress: Progress, *, stored: bool
) -> Iterator[Change]:
    """All differences, in the order of A and then of B.

    What the schemas say comes last, as they do in the files: they name the tags, too.
    """
    yield from field_changes(None, {"role": role_label(a.role)}, {"role": role_label(b.role)})
    if stored:
        alignments = a.header.alignment, b.header.alignment
        yield from field_changes(None, {"alignment": alignments[0]}, {"alignment": alignments[1]})
    rows_a = {row.name: row for row in iter_rows(a)}
    rows_b = {row.name: row for row in iter_rows(b)}
    total = sum(row.size for row in rows_a.values() if row.name in rows_b)
    done = 0
    for name in a.names_in_file():
        row, other = rows_a[name], rows_b.get(name)
        if other is None:
            yield difference("only_in_a", name, a=row.size)
            continue
        at = _first_difference(a, b, row, other)
        if at is not None:
            yield difference("content", name, a=row.size, b=other.size, offset=at)
        done += row.size
        progress(done, total)
        ours, theirs = (
            {
                "content_type": content_type_label(one.content_type),
                **({"codec": one.codec} if stored else {}),
            }
            for one in (row, other)
        )
        yield from field_changes(name, ours, theirs)
    for name, row in rows_b.items():
        if name not in rows_a:
            yield difference("only_in_b", name, b=row.size)
    schemas = a.schema or Schema(), b.schema or Schema()
    for name, row in rows_a.items():
        if name in rows_b and (row.tag_bits or rows_b[name].tag_bits):
            tags = schemas[0].tags(row.tag_bits), schemas[1].tags(rows_b[name].tag_bits)
            yield from field_changes(name, {"tags": tags[0]}, {"tags": tags[1]})
    yield from field_changes(None, schemas[0].fields, schemas[1].fields, "schema.")


def field_changes(
    entry: str | None, ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = ""
) -> Iterator[Change]:
    """The fields that differ, about an entry or, without one, about the whole file."""
    kind = "file" if entry is None else "metadata"
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key) or (key in ours) != (key in theirs):
            yield difference(kind, entry, prefix + key, ours.get(key), theirs.get(key))


def difference(
    kind: str,
    entry: str | None,
    field: str | None = None,
    a: Any = None,  # noqa: ANN401 - any metadata
    b: Any = None,  # noqa: ANN401
    offset: int | None = None,
) -> Change:
    """One difference of containers or packs: values of a field, or sizes where content differs."""
    where = "file" if entry is None else printable(entry)
    if kind in ("only_in_a", "only_in_b"):
        text = f"only in {kind[-1].upper()}, {size(a if kind == 'only_in_a' else b)}"
    elif kind == "content":
        sizes = size(a) if a == b else f"{a:,} bytes -> {b:,} bytes"
        text = f"{sizes}, differs from byte {offset:,} on"
    else:
        text = f"{printable(str(field))} {_value(a)} -> {_value(b)}"
    fields = {"kind": kind, "entry": entry, "field": field, "a": a, "b": b, "offset": offset}
    return Change(kind, f"{where}: {text}", fields)


def _value(value: object) -> str:
    if value is None or value == []:
        return "none"
    text = ", ".join(value) if isinstance(value, list) and isinstance(value[0], str) else None
    return printable(fit(text or short_json(value), _LONGEST_VALUE))


def _first_difference(
    a: ShardReader, b: ShardReader, row: ListedEntry, other: ListedEntry
) -> int | None:
    """The first byte that differs, None if all are the same. Both entries stream."""
    if row.size == other.size <= _SMALL and a.read_entry(row.name) == b.read_entry(row.name):
        return None
    at = 0
    streams = a.iter_entry(row.name), b.iter_entry(row.name)
    ours, theirs = memoryview(b""), memoryview(b"")
    while True:
        # Pieces end where their codec wants; compare as much as both have.
        ours = ours if len(ours) else next(streams[0], ours)
        theirs = theirs if len(theirs) else next(streams[1], theirs)
        length = min(len(ours), len(theirs))
        if length == 0:
            return at if len(ours) or len(theirs) else None
        differs = first_difference(ours[:length], theirs[:length])
        if differs is not None:
            return at + differs
        at += length
        ours, theirs = ours[length:], theirs[length:]


def first_difference(ours: memoryview, theirs: memoryview) -> int | None:
    """The first byte that differs, None if all are the same; if one is shorter, where it ends."""
    length = min(len(ours), len(theirs))
    # NumPy: memoryviews compare byte by byte in Python's terms.
    differs = np.frombuffer(ours[:length], np.uint8) != np.frombuffer(theirs[:length], np.uint8)
    if differs.any():
        return int(differs.argmax())
    return None if len(ours) == len(theirs) else length
