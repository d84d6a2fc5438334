"""Set files of ShardPack: vectors, a strict reader for the self-check, and what the JSON says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from _decode import BrokenRuleError, open_file, read_entry
from _encode import Container, Entry, encode
from _episode_json import check, is_integer
from _layout import unpack
from _metadata import MANIFEST_ENTRY, ROLE_MANIFEST, JsonObject, manifest_files, parse_object
from _pack import (
    CREATED,
    FOOTER_END,
    FOOTER_FIELDS,
    FOOTER_SIZE,
    INDEX_HEAD_SIZE,
    PACK_MAGIC,
    Pack,
    Part,
    Record,
)
from _pack_reader import open_pack, rule_of
from _primitives import canonical_json, crc32c, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Iterator

SET_FILE = "train.shardpack-set"
NAME = "train-%06d.shardpack"
TEXT = "text/plain"
MOST_SHARDS = 32_768
MOST_PARTS = 65_536
NUMBER = re.compile(r"%0?\d*d")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
Files = dict[str, bytes]


@dataclass(frozen=True)
class ValidPackSet:
    """A set file with its shards."""

    name: str
    description: str
    rules: tuple[str, ...]
    files: Files
    keys: tuple[str, ...]
    is_canonical: bool = False
    """A writer gives these bytes for these records."""
    file: str = SET_FILE


@dataclass(frozen=True)
class InvalidPackSet:
    """A set file that breaks a rule, or a shard that does not fit it."""

    name: str
    description: str
    rule: str
    error: str
    when: str
    files: Files
    shard: str | None = None
    """The shard that does not fit, with `when` "shard" and "check"."""
    also: tuple[str, ...] = ()
    file: str = SET_FILE


# --- making them


def shard(*keys: str, text: str = "x") -> bytes:
    return Pack(tuple(Record(key, (Part("txt", text.encode(), TEXT),)) for key in keys)).data


SHARDS: Files = {
    NAME % 0: shard("a", "b"),
    NAME % 1: shard("c"),
    NAME % 2: shard("d", "e", "f"),
}
KEYS = tuple("abcdef")


def row(name: str, data: bytes, **changes: object) -> JsonObject:
    records = int.from_bytes(data[-56:-48], "little")
    true: JsonObject = {
        "footer": data[-FOOTER_SIZE:].hex(),
        "records": records,
        "sha256": sha256_hex(data),
        "size": len(data),
        "uri": name,
    }
    return {key: value for key, value in (true | changes).items() if value is not None}


def fields_of(shards: Files, rows: list[JsonObject] | None = None, **changes: object) -> JsonObject:
    """What a writer says; a change to None leaves a field out."""
    listed = [row(name, data) for name, data in shards.items()] if rows is None else rows
    records = sum(cast("int", one["records"]) for one in listed if is_integer(one.get("records")))
    true: JsonObject = {
        "created": CREATED,
        "files": listed,
        "format": "shardpack-set",
        "name": NAME,
        "records": records,
        "revision": CREATED,
        "schema": {"txt": {"content_type": TEXT, "records": records}},
        "user": {},
        "version": 1,
    }
    return {key: value for key, value in (true | changes).items() if value is not None}


def set_file(fields: JsonObject, role: int = ROLE_MANIFEST) -> bytes:
    entry = Entry(MANIFEST_ENTRY, canonical_json(fields), content_type=2)
    return encode(Container((entry,), role=role, alignment=64))


def valid_pack_sets() -> Iterator[ValidPackSet]:
    yield ValidPackSet(
        "three_shards",
        "Three shards with two, one and three records.",
        ("P-SET-2", "P-SET-3", "P-SET-7"),
        {SET_FILE: set_file(fields_of(SHARDS)), **SHARDS},
        KEYS,
        is_canonical=True,
    )
    empty = {NAME % 0: Pack().data}
    yield ValidPackSet(
        "no_records",
        "A set without records has one shard without records, and a schema without names.",
        ("P-SET-3", "P-SET-5"),
        {SET_FILE: set_file(fields_of(empty, schema={})), **empty},
        (),
        is_canonical=True,
    )
    other_names = {"b.shardpack": SHARDS[NAME % 0], "a.shardpack": SHARDS[NAME % 1]}
    yield ValidPackSet(
        "any_names_in_any_order",
        "The rows decide the order. Names need not fit `name`; unknown fields are kept.",
        ("P-SET-4", "P-SET-6"),
        {
            SET_FILE: set_file(
                fields_of(
                    other_names,
                    schema=None,
                    revision="job 17, größer",
                    user={"by": "me"},
                    more=[1, 2],
                )
            ),
            **other_names,
        },
        ("a", "b", "c"),
    )
    part = {f"03-of-16-{number:06d}.shardpack": SHARDS[NAME % number] for number in range(2)}
    yield ValidPackSet(
        "part",
        "The set file of the third of sixteen parts.",
        ("P-SET-6",),
        {
            "03-of-16.shardpack-set": set_file(fields_of(part, revision="r", part=3, parts=16)),
            **part,
        },
        ("a", "b", "c"),
        file="03-of-16.shardpack-set",
    )


def _bad(
    name: str, description: str, rule: str, error: str, fields: JsonObject, role: int = 4
) -> InvalidPackSet:
    return InvalidPackSet(
        *(name, description, rule, error, "open"), {SET_FILE: set_file(fields, role)}
    )


def _bad_fields() -> Iterator[InvalidPackSet]:
    def bad(
        vector: str, description: str, rule: str, error: str, **changes: object
    ) -> InvalidPackSet:
        return _bad(vector, description, rule, error, fields_of(SHARDS, None, **changes))

    yield bad("no_format", "A manifest of something else.", "P-SET-1", "bad_metadata", format=None)
    yield bad("other_format", "Another format.", "P-SET-1", "bad_metadata", format="sharpack-set")
    yield bad("version_2", "Version 2.", "P-SET-1", "unsupported_version", version=2)
    yield bad(
        "version_true", "The version is true.", "P-SET-1", "unsupported_version", version=True
    )
    yield bad("sum_one_more", "One record too many.", "P-SET-3", "size_mismatch", records=7)
    yield bad("sum_missing", "No number of records.", "P-SET-3", "size_mismatch", records=None)
    yield bad("sum_float", "Records are text.", "P-SET-3", "size_mismatch", records="6")
    yield _bad("no_rows", "No shards.", "P-SET-5", "bad_metadata", fields_of({}, []))
    names = {
        "name_missing": None,
        "name_without_number": "train.shardpack",
        "name_two_numbers": "%d-%d.shardpack",
        "name_of_a_folder": "a/%d.shardpack",
        "name_escaped_number": "train-%%d.shardpack",
    }
    for name, value in names.items():
        yield bad(name, f"`name` is {value!r}.", "P-SET-6", "bad_metadata", name=value)
    revisions = {"missing": None, "empty": "", "long": "r" * 256, "number": 7}
    for name, revision in revisions.items():
        text = f"The revision is {name}."
        yield bad(f"revision_{name}", text, "P-SET-6", "bad_metadata", revision=revision)
    yield bad("created_number", "The time is a number.", "P-SET-6", "bad_metadata", created=7)
    yield bad("user_list", "`user` is a list.", "P-SET-6", "bad_metadata", user=[])
    yield bad("schema_list", "`schema` is a list.", "P-SET-6", "bad_metadata", schema=[])
    parts: dict[str, dict[str, object]] = {
        "part_alone": {"part": 1},
        "part_0": {"part": 0, "parts": 2},
        "part_3_of_2": {"part": 3, "parts": 2},
        "part_of_too_many": {"part": 3, "parts": MOST_PARTS + 1},
        "part_true": {"part": True, "parts": True},
    }
    for name, part in parts.items():
        yield bad(name, f"A part that cannot be: {part}.", "P-SET-6", "bad_metadata", **part)


def _bad_rows() -> Iterator[InvalidPackSet]:
    def bad(
        name: str, description: str, rule: str, error: str, **changes: object
    ) -> InvalidPackSet:
        rows = [row(one, data) for one, data in SHARDS.items()]
        rows[1] = row(NAME % 1, SHARDS[NAME % 1], **changes)
        fields = fields_of(SHARDS, rows, records=6)
        return _bad(name, description, rule, error, fields)

    for key in ("footer", "records", "sha256", "size"):
        what = f"A row without {key}."
        yield bad(f"row_without_{key}", what, "P-SET-2", "bad_metadata", **{key: None})
    footer = SHARDS[NAME % 1][-FOOTER_SIZE:]
    wrong = {
        "footer_upper_case": footer.hex().upper(),
        "footer_short": footer.hex()[2:],
        "footer_number": 7,
        "footer_checksum": (footer[:40] + b"\xff" + footer[41:]).hex(),
        "footer_magic": (footer[:-1] + b"X").hex(),
    }
    for name, value in wrong.items():
        yield bad(name, "A footer that is none.", "P-SET-2", "bad_metadata", footer=value)
    yield bad("records_float", "Records are text.", "P-SET-2", "bad_metadata", records="1")
    yield bad("records_lie", "A row claims more records.", "P-SET-3", "size_mismatch", records=2)
    size = len(SHARDS[NAME % 1])
    yield bad("size_lies", "A row claims more bytes.", "P-SET-3", "size_mismatch", size=size + 1)
    unsafe = {
        "parent": "../train-000001.shardpack",
        "dots": "..",
        "absolute": "/etc/train-000001.shardpack",
        "folder": "a/train-000001.shardpack",
        "url": "https://example.org/train-000001.shardpack",
        "scheme": "file:train-000001.shardpack",
        "drive": "c:train-000001.shardpack",
        "backslash": "..\\train-000001.shardpack",
        "control": "train\n.shardpack",
        "long": "x" * 256,
    }
    for name, value in unsafe.items():
        text = f"A row names {value[:40]!r}."
        yield bad(f"uri_{name}", text, "P-SET-4", "unsafe_path", uri=value)
    many: list[JsonObject] = [{"uri": str(number)} for number in range(MOST_SHARDS + 1)]
    text = "One shard more than allowed."
    yield _bad("too_many_rows", text, "P-SET-5", "limit_exceeded", fields_of({}, many))


def _bad_shards() -> Iterator[InvalidPackSet]:
    good = {SET_FILE: set_file(fields_of(SHARDS)), **SHARDS}
    second = NAME % 1

    def bad(
        name: str, description: str, error: str, files: Files, rule: str = "P-SET-7"
    ) -> InvalidPackSet:
        when = "shard" if rule == "P-SET-7" else "check"
        shard = second if rule == "P-SET-7" else next(iter(files.keys() - good.keys()))
        return InvalidPackSet(name, description, rule, error, when, files, shard)

    without = {name: data for name, data in good.items() if name != second}
    yield bad("shard_missing", "A shard is not there.", "missing_file", without)
    other = good | {second: SHARDS[NAME % 0]}
    yield bad("shard_foreign", "Another shard of the set.", "reference_mismatch", other)
    renamed = good | {second: shard("C")}
    text = "A shard of the same size and count, with another key."
    yield bad("shard_other_key", text, "reference_mismatch", renamed)
    extra = good | {NAME % 7: shard("h")}
    text = "A shard that fits the name and is not listed."
    yield bad("shard_extra", text, "reference_mismatch", extra, "P-SET-8")


def invalid_pack_sets() -> Iterator[InvalidPackSet]:
    yield from _bad_fields()
    yield from _bad_rows()
    yield from _bad_shards()


# --- a strict reader


def _is_safe(name: str) -> bool:
    controls = any(ord(one) < 32 or 127 <= ord(one) < 160 for one in name)
    is_path = "/" in name or "\\" in name or name in ("", ".", "..") or SCHEME.match(name)
    return not controls and not is_path and len(name.encode()) <= 255


def _read_footer(text: object) -> dict[str, int]:
    def fine(condition: bool, what: str) -> None:
        check(condition, "bad_metadata", "P-SET-2", what)

    fine(isinstance(text, str) and re.fullmatch("[0-9a-f]{128}", text) is not None, "footer")
    data = bytes.fromhex(cast("str", text))
    footer = unpack((*FOOTER_FIELDS, *FOOTER_END), data)
    fine(footer["magic"] == PACK_MAGIC, "magic")
    fine(footer["footer_crc32c"] == crc32c(data[:-12]), "checksum")
    fine(footer["version"] == 1, "version")
    count = footer["record_count"]
    size = INDEX_HEAD_SIZE + 8 * (count + 1) + 12 * count + footer["metadata_size"] + FOOTER_SIZE
    fine(footer["index_offset"] + size == footer["total_size"], "index")
    return footer


def open_set(data: bytes) -> dict[str, str]:
    """The footer of each shard, by name, in order."""
    file = open_file(data)
    check(file.header["role"] == ROLE_MANIFEST, "bad_metadata", "S-ROL-2", "role")
    rows = manifest_files(file)
    fields = parse_object(read_entry(file, MANIFEST_ENTRY))
    check(fields.get("format") == "shardpack-set", "bad_metadata", "P-SET-1", "format")
    version = fields.get("version")
    check(is_integer(version) and version == 1, "unsupported_version", "P-SET-1", "version")
    check(bool(rows), "bad_metadata", "P-SET-5", "no rows")
    check(len(rows) <= MOST_SHARDS, "limit_exceeded", "P-SET-5", "rows")

    def fine(condition: bool, what: str) -> None:
        check(condition, "bad_metadata", "P-SET-6", what)

    name, revision = fields.get("name"), fields.get("revision")
    fine(isinstance(name, str) and _is_safe(name), "name")
    fine(len(NUMBER.findall(str(name).replace("%%", ""))) == 1, "name")
    fine(isinstance(revision, str) and 1 <= len(revision) <= 255, "revision")
    fine(isinstance(fields.get("created"), str), "created")
    fine(isinstance(fields.get("user"), dict), "user")
    fine(isinstance(fields.get("schema", {}), dict), "schema")
    if "part" in fields or "parts" in fields:
        part, parts = fields.get("part"), fields.get("parts")
        fine(is_integer(part) and is_integer(parts), "part")
        fine(1 <= cast("int", part) <= cast("int", parts) <= MOST_PARTS, "part")
    found: dict[str, str] = {}
    total = 0
    for one in rows:
        uri = cast("str", one["uri"])
        check(_is_safe(uri), "unsafe_path", "P-SET-4", uri)
        complete = {"sha256", "size"} <= one.keys() and is_integer(one.get("records"))
        check(complete, "bad_metadata", "P-SET-2", uri)
        footer = _read_footer(one.get("footer"))
        same = (one["size"], one["records"]) == (footer["total_size"], footer["record_count"])
        check(same, "size_mismatch", "P-SET-3", uri)
        total += footer["record_count"]
        found[uri] = cast("str", one["footer"])
    records = fields.get("records")
    check(is_integer(records) and records == total, "size_mismatch", "P-SET-3", "sum")
    return found


def read_shard(files: Files, name: str, footer: str) -> list[str]:
    """The keys of a shard that fits its row."""
    check(name in files, "missing_file", "P-SET-7", name)
    opened = open_pack(files[name])
    fits = files[name][-FOOTER_SIZE:].hex() == footer
    check(fits, "reference_mismatch", "P-SET-7", name)
    return [opened.record(number).key for number in range(opened.count)]


def check_extra(files: Files, file: str) -> None:
    listed = open_set(files[file])
    name = cast("str", parse_object(read_entry(open_file(files[file]), MANIFEST_ENTRY))["name"])
    before, after = (re.escape(part) for part in NUMBER.split(name))
    for other in files.keys() - listed.keys() - {file}:
        fits = re.fullmatch(f"{before}[0-9]+{after}", other) is not None
        check(not fits, "reference_mismatch", "P-SET-8", other)


# --- do the vectors say what is so


def _problems_of_valid(vector: ValidPackSet, rules: dict[str, set[str]]) -> Iterator[str]:
    try:
        listed = open_set(vector.files[vector.file])
        keys = [
            key for name, footer in listed.items() for key in read_shard(vector.files, name, footer)
        ]
        check_extra(vector.files, vector.file)
    except BrokenRuleError as error:
        yield f"does not read: {error}"
        return
    if keys != list(vector.keys):
        yield "has other keys"
    yield from (f"names the unknown rule {rule}" for rule in vector.rules if rule not in rules)


def outcome(vector: InvalidPackSet) -> tuple[str, str] | None:
    try:
        listed = open_set(vector.files[vector.file])
        if vector.when == "shard":
            for name, footer in listed.items():
                if name != vector.shard:
                    read_shard(vector.files, name, footer)
            read_shard(vector.files, str(vector.shard), listed[str(vector.shard)])
        elif vector.when == "check":
            check_extra(vector.files, vector.file)
    except BrokenRuleError as error:
        return rule_of(error), error.code
    return None


def pack_set_problems(
    valid: list[ValidPackSet], invalid: list[InvalidPackSet], rules: dict[str, set[str]]
) -> Iterator[str]:
    for good in valid:
        for what in _problems_of_valid(good, rules):
            yield f"valid_sets/{good.name} {what}"
    for bad in invalid:
        found = outcome(bad)
        if found != (bad.rule, bad.error):
            yield f"invalid_sets/{bad.name} gives {found}, expected {(bad.rule, bad.error)}"
        if bad.error not in rules.get(bad.rule, set()):
            yield f"invalid_sets/{bad.name}: {bad.rule} does not name {bad.error}"
    names = [*(vector.name for vector in valid), *(vector.name for vector in invalid)]
    yield from (f"{name} is made twice" for name in set(names) if names.count(name) > 1)


# --- what the JSON says


def describe_set(vector: ValidPackSet | InvalidPackSet) -> JsonObject:
    told: JsonObject = {
        "description": vector.description,
        "file": f"{vector.name}/{vector.file}",
    }
    if isinstance(vector, ValidPackSet):
        fields = parse_object(read_entry(open_file(vector.files[vector.file]), MANIFEST_ENTRY))
        return told | {
            "canonical": vector.is_canonical,
            "fields": {key: value for key, value in fields.items() if key != "files"},
            "files": {name: sha256_hex(data) for name, data in vector.files.items()},
            "keys": list(vector.keys),
            "rules": list(vector.rules),
            "shards": list(open_set(vector.files[vector.file])),
        }
    told |= {"error": vector.error, "rule": vector.rule, "when": vector.when}
    return told if vector.shard is None else told | {"shard": vector.shard}
