"""What a file says about itself, from its head and its small metadata: the facts of `shard info`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from shard_cli.entries import count_codecs, count_values, exact_sum
from shard_cli.exits import error_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from shard_format import ShardReader

EPISODE_ENTRY: Final = "meta/episode"

# `info` answers at once: metadata above this is announced, not read.
_LARGEST_READ: Final = 1 << 20

_FLAG_WORDS: Final = {
    0x0001: "compressed (historical)",
    0x0002: "little-endian",
    0x0004: "big-endian",
    0x0010: "schema",
    0x0020: "checksums",
    0x0040: "reserved head",
    0x0080: "content types",
}


def summarise(reader: ShardReader) -> dict[str, Any]:
    """The facts, as `--json` shows them."""
    from shard_format.registry import Role, content_type_label, role_label

    header, index = reader.header, reader.index
    facts: dict[str, Any] = {
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
        facts["manifest"] = _readable(lambda: _manifest(reader))
    if reader.role == Role.WSHARD:
        facts["episode"] = _readable(lambda: _episode(reader))
        facts["lanes"] = _lanes(reader)
    return facts


def flag_names(flags: int) -> list[str]:
    """The header's flags in words."""
    names = [word for bit, word in _FLAG_WORDS.items() if flags & bit]
    unknown = flags & ~sum(_FLAG_WORDS)
    return [*names, f"unknown 0x{unknown:04x}"] if unknown else names


def _readable(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """What was read, or why it could not be: damaged metadata does not hide the rest."""
    from shard_format.errors import ShardError

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
    from shard_format.identity import IDENTITY_ENTRY, stored_identity

    if IDENTITY_ENTRY not in reader:
        return None
    if reader.info(IDENTITY_ENTRY).size > _LARGEST_READ:
        return {}
    stored = stored_identity(reader)
    return None if stored is None else {"stored": stored.digest}


def _manifest(reader: ShardReader) -> dict[str, Any]:
    from shard_format.manifest import MANIFEST_ENTRY, Manifest

    if MANIFEST_ENTRY in reader and reader.info(MANIFEST_ENTRY).size > 16 * _LARGEST_READ:
        return {"bytes": reader.info(MANIFEST_ENTRY).size}
    manifest = Manifest.read(reader)
    files = manifest.files
    facts: dict[str, Any] = {
        "files": len(files),
        "size": sum(reference.size or 0 for reference in files),
        "hashed": sum(reference.sha256 is not None for reference in files),
    }
    if files:
        facts["first"] = {"uri": files[0].uri, "start_key": files[0].start_key}
        facts["last"] = {"uri": files[-1].uri, "end_key": files[-1].end_key}
    return {**facts, "fields": dict(manifest.fields)}


def _episode(reader: ShardReader) -> dict[str, Any] | None:
    from shard_format._json import parse_object

    if EPISODE_ENTRY not in reader:
        return None
    size = reader.info(EPISODE_ENTRY).size
    if size > _LARGEST_READ:
        return {"bytes": size}
    return parse_object(reader.read_entry(EPISODE_ENTRY), EPISODE_ENTRY, reader.limits)


def _lanes(reader: ShardReader) -> dict[str, int]:
    """How many entries each lane of an episode has, in the order of the index."""
    counts: dict[str, int] = {}
    for name in reader.names():
        lane = name.partition("/")[0]
        if lane != "meta":
            counts[lane] = counts.get(lane, 0) + 1
    return counts


def short_json(value: object) -> str:
    """A JSON value for one line: text as it is, the rest compact."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
