"""What to write, and the SHA-256 of the file that every writer must make of it (S-WRT-1, S-WRT-2)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from _canonical_episode import entries_of
from _encode import Container, Entry, encode
from _layout import ENTRY_SIZE, FLAG_RESERVED_HEAD, HEADER_SIZE, align, with_header
from _pack import CREATED, Pack
from _primitives import canonical_json, crc32c, identity_text_2, sha256_hex
from _vector import byte_ramp, numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

JSON_TYPE = 2
ROLE_WSHARD = 5
RESERVED_BYTES_PER_NAME = 64


@dataclass(frozen=True)
class Canonical:
    """A case: what a writer is given, and what must come out."""

    name: str
    description: str
    rules: tuple[str, ...]
    kind: str
    """"container", "episode", "pack" or "recording"."""
    given: JsonObject
    """`options`, and `entries` and `schema` of a container, `episode`, `records` and `user` of a shard, or the `calls` of
    a recording."""
    entries: tuple[Entry, ...] = ()
    """The entries of the file, with `meta/identity` if it is asked for; none of a shard."""
    shard: Pack | None = None
    journal: bytes | None = None
    """Of a recording: the journal before it is finished."""

    @property
    def options(self) -> JsonObject:
        options = self.given["options"]
        assert isinstance(options, dict)
        return options

    @property
    def is_compressed(self) -> bool:
        return self.options["compression"] != "none"

    @property
    def role(self) -> int:
        return int(str(self.options.get("role", ROLE_WSHARD)))

    def data(self) -> bytes:
        """The file, uncompressed."""
        if self.shard is not None:
            return self.shard.data
        options, schema = self.options, self.given.get("schema")
        alignment = int(str(options.get("alignment", 64)))
        is_reserved = options.get("layout") == "reserved"
        start = None
        if is_reserved:
            room = ENTRY_SIZE + RESERVED_BYTES_PER_NAME
            start = align(HEADER_SIZE + room * int(str(options["max_entries"])), alignment)
        container = Container(
            self.entries,
            role=self.role,
            alignment=alignment,
            name_terminator=b"" if self.role == ROLE_WSHARD else b"\0",
            data_section_offset=start,
            schema=None if schema is None else canonical_json(schema),
        )
        data = encode(container)
        if is_reserved:
            flags = int.from_bytes(data[6:8], "little")
            data = with_header(data, flags=flags | FLAG_RESERVED_HEAD)
        return data

    def describe(self) -> JsonObject:
        told: JsonObject = {
            "description": self.description,
            "kind": self.kind,
            "rules": list(self.rules),
        }
        if self.journal is not None:
            told["journal_sha256"] = sha256_hex(self.journal)
        if self.shard is None:
            contents = {entry.name_bytes.decode(): entry.content for entry in self.entries}
            text = identity_text_2(contents, self.role, self.given.get("schema"))
            told["identity"] = sha256_hex(text)
        if self.is_compressed:
            told["stored"] = [
                {
                    "content_type": str(entry.content_type),
                    "crc32c": f"{crc32c(entry.content):08x}",
                    "name": entry.name_bytes.decode(),
                    "orig_size": str(len(entry.content)),
                    "tag_bits": str(entry.tag_bits),
                }
                for entry in self.entries
            ]
        else:
            data = self.data()
            told |= {"sha256": sha256_hex(data), "size": str(len(data))}
        return told | self.given


def content_of(text: str) -> bytes:
    """The bytes that a case gives as text: `hex:00ff`, `ramp:300` or `lines:300`."""
    kind, _, value = text.partition(":")
    if kind == "hex":
        return bytes.fromhex(value)
    return {"ramp": byte_ramp, "lines": numbered_lines}[kind](int(value))


def _with_identity(entries: tuple[Entry, ...], role: int, schema: object) -> tuple[Entry, ...]:
    contents = {entry.name_bytes.decode(): entry.content for entry in entries}
    text = identity_text_2(contents, role, schema)
    return (*entries, Entry("meta/identity", text, content_type=JSON_TYPE))


def container(
    name: str,
    description: str,
    rules: tuple[str, ...],
    given: list[tuple[str, str, int, int]],
    *,
    schema: JsonObject | None = None,
    identity: bool = False,
    layout: str = "moved",
    max_entries: int | None = None,
    **options: str | int,
) -> Canonical:
    """A case of a container; each entry is a name, a content as `content_of` reads it, a type and tag bits."""
    entries = tuple(
        Entry(entry, content_of(content), content_type=kind, tag_bits=tags)
        for entry, content, kind, tags in given
    )
    chosen: JsonObject = {
        "alignment": "64",
        "compression": "none",
        "identity": identity,
        "layout": layout,
        "role": "0",
    }
    chosen |= {key: str(value) for key, value in options.items()}
    if max_entries is not None:
        chosen["max_entries"] = str(max_entries)
    if identity:
        entries = _with_identity(entries, int(str(chosen["role"])), schema)
    told: JsonObject = {
        "entries": [
            {"content": content, "content_type": str(kind), "name": entry, "tag_bits": str(tags)}
            for entry, content, kind, tags in given
        ],
        "options": chosen,
    }
    if schema is not None:
        told["schema"] = schema
    return Canonical(f"container_{name}", description, rules, "container", told, entries)


def episode(
    name: str,
    description: str,
    rules: tuple[str, ...],
    told: JsonObject,
    *,
    identity: bool = False,
    compression: str = "none",
) -> Canonical:
    """A case of an episode, described as valid episodes are, with computed residuals."""
    entries = entries_of(told)
    if identity:
        entries = _with_identity(entries, ROLE_WSHARD, None)
    options: JsonObject = {"compression": compression, "identity": identity}
    given: JsonObject = {"episode": told, "options": options}
    return Canonical(f"episode_{name}", description, rules, "episode", given, entries)


def pack(
    name: str, description: str, rules: tuple[str, ...], shard: Pack, alignment: int = 8
) -> Canonical:
    """A case of a shard of a dataset, whose records have no metadata or JSON."""
    records: list[JsonObject] = []
    for record in shard.records:
        assert record.alignment == alignment
        told: JsonObject = {
            "entries": [
                {
                    "content": f"hex:{part.content.hex()}",
                    "content_type": str(part.content_type),
                    "name": str(part.name),
                }
                for part in record.parts
            ],
            "key": str(record.key),
        }
        if record.metadata:
            told["metadata"] = json.loads(record.metadata)
        records.append(told)
    options: JsonObject = {"alignment": str(alignment), "compression": "none", "created": CREATED}
    given: JsonObject = {"options": options, "records": records, "user": dict(shard.user)}
    return Canonical(f"pack_{name}", description, rules, "pack", given, shard=shard)


def canonical_problems(cases: list[Canonical], rules: dict[str, set[str]]) -> Iterator[str]:
    """What is wrong with the cases themselves."""
    names = [case.name for case in cases]
    for case in cases:
        where = f"canonical/{case.name}"
        yield from (
            f"{where} names the unknown rule {rule}" for rule in case.rules if rule not in rules
        )
        if names.count(case.name) > 1 or not re.fullmatch(r"[a-z0-9_]+", case.name):
            yield f"{where} is made twice, or has a bad name"
