"""What the JSON next to a valid file says: its header, entries, identity and warnings."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING

from _decode import File, codec_of, filters_of, open_file, read_entry, seek_rows_of
from _layout import (
    FLAG_CHECKSUMS,
    HEADER_FIELDS,
    KNOWN_ENTRY_FLAGS,
    KNOWN_HEADER_FLAGS,
    MAX_ALIGNMENT,
)
from _metadata import (
    ROLE_MANIFEST,
    JsonObject,
    contents_of,
    identity_of_version_2,
    manifest_files,
    read_schema,
)
from _primitives import identity_text, sha256_hex, xxh64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _compress import SeekRow

NOT_DESCRIBED = ("magic", "index_entry_size", "reserved")
"""Header fields that are the same in every valid file, or that readers ignore."""


def _gaps(file: File) -> Iterator[bytes]:
    """The bytes of the data section that belong to no block."""
    position = file.header["data_section_offset"]
    ranges = sorted(
        (e["data_offset"], e["disk_size"]) for e in file.by_name.values() if e["disk_size"]
    )
    for start, size in ranges:
        yield file.data[position:start]
        position = start + size
    yield file.data[position : file.header["schema_offset"] or len(file.data)]


def warnings_of(file: File) -> list[str]:
    header, entries = file.header, list(file.by_name.values())
    alignment = header["alignment"] or 1
    gaps = list(_gaps(file))
    found = {
        "name_hash_mismatch": any(
            xxh64(n.encode()) != e["name_hash"] for n, e in file.by_name.items()
        ),
        "nonzero_padding": any(any(gap) for gap in gaps),
        "misaligned": any(e["disk_size"] and e["data_offset"] % alignment for e in entries),
        "no_checksum": not header["flags"] & FLAG_CHECKSUMS
        and any(e["crc32c"] == 0 and e["orig_size"] for e in entries),
        "not_ascending": any(b["data_offset"] < a["data_offset"] for a, b in pairwise(entries)),
        "nonzero_reserved": header["reserved"] != 0
        or header["flags"] & ~KNOWN_HEADER_FLAGS != 0
        or any(e["flags"] & ~KNOWN_ENTRY_FLAGS for e in entries),
        # A gap shorter than the largest alignment may be padding of any writer.
        "unreferenced_bytes": any(len(gap) >= MAX_ALIGNMENT for gap in gaps),
    }
    return sorted(code for code, present in found.items() if present)


def _describe_row(row: SeekRow) -> dict[str, str]:
    described = {
        "compressed_size": str(row.compressed_size),
        "decompressed_size": str(row.decompressed_size),
    }
    if row.checksum is not None:
        described["checksum"] = f"{row.checksum:08x}"
    return described


def _describe_entry(file: File, name: str, entry: dict[str, int]) -> JsonObject:
    numbers = ("content_type", "tag_bits", "data_offset", "disk_size", "orig_size")
    described: JsonObject = {field: str(entry[field]) for field in numbers}
    described |= {
        "name": name,
        "name_hash": f"{entry['name_hash']:016x}",
        "codec": codec_of(file, entry),
        "crc32c": f"{entry['crc32c']:08x}",
        "sha256": sha256_hex(read_entry(file, name)),
    }
    filters, _ = filters_of(file, entry)
    if filters:
        described["filters"] = [
            {key: v if isinstance(v, str) else str(v) for key, v in one.fields().items()}
            for one in filters
        ]
    rows = seek_rows_of(file, entry)
    if rows is not None:
        described["seekable_frames"] = [_describe_row(row) for row in rows]
    return described


def entries_digest(contents: dict[str, bytes]) -> str:
    """One hash for the names and contents of a file with too many entries to list."""
    lines = (f"{name}\t{sha256_hex(content)}\n" for name, content in contents.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def describe(data: bytes, *, list_entries: bool = True) -> JsonObject:
    """The facts that follow from the bytes of a valid file."""
    file = open_file(data)
    contents = contents_of(file)
    facts: JsonObject = {
        "header": {
            field: str(file.header[field])
            for field, _ in HEADER_FIELDS
            if field not in NOT_DESCRIBED
        },
        "identity": sha256_hex(identity_text(contents)),
        "identity_2": sha256_hex(identity_of_version_2(file)),
        "warnings": warnings_of(file),
    }
    if list_entries:
        facts["entries"] = [
            _describe_entry(file, name, entry) for name, entry in file.by_name.items()
        ]
    else:
        facts["entries_sha256"] = entries_digest(contents)
    schema = read_schema(file)
    if schema is not None:
        facts["schema"] = schema
    if file.header["role"] == ROLE_MANIFEST:
        facts["manifest_files"] = manifest_files(file)
    return facts
