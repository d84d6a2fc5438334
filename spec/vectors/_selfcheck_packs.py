"""Checks of the shards among the vectors, and what their JSON says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _decode import BrokenRuleError
from _pack_reader import Opened, Record, open_pack, recover, rule_of, stream
from _primitives import canonical_json, sha256_hex, xxh64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject
    from _vector import InvalidPack, ValidPack

CODES_WITHOUT_FILE = {
    ("P-REC-5", "invalid_argument"): "binds writers",
    ("P-REC-10", "invalid_argument"): "binds writers",
    ("P-REC-10", "unsafe_path"): "about extraction; valid_packs/keys_like_paths has the keys",
    ("P-REC-7", "record_size"): "no code but a field, between two codes",
    **{
        ("P-SET-10", code): "about committing parts"
        for code in ("duplicate_name", "invalid_argument", "missing_file", "reference_mismatch")
    },
}
ENCODINGS = ("none", "gzip", "lz4", "zstd")
METADATA_ENCODINGS = ("none", "json", "messagepack")
DEEP = 100
STEPS = ("open", "offsets", "lookup", "index_metadata", "record", "metadata", "entry", "key")


# --- what the JSON says


def _describe_record(record: Record, *, list_entries: bool) -> JsonObject:
    encoding = METADATA_ENCODINGS[record.head["metadata_encoding"]]
    told: JsonObject = {
        "alignment": str(record.head["alignment"]),
        "key": record.key,
        "key_hash": f"{xxh64(record.key.encode()):016x}",
        "metadata_encoding": encoding,
        "offset": str(record.start),
        "size": str(record.head["record_size"]),
    }
    text = canonical_json(record.metadata()).decode()
    # Indented as the rest is, a value of many levels would be nothing but white space.
    is_deep = text.count("[") > DEEP
    told |= {"metadata_text": text} if is_deep else {"metadata": record.metadata()}
    entries: list[JsonObject] = [
        {
            "content_type": entry.content_type,
            "crc32c": f"{entry.row['crc32c']:08x}",
            "encoding": ENCODINGS[entry.row["encoding"]],
            "name": entry.name,
            "offset": str(entry.start),
            "original_size": str(entry.row["original_size"]),
            "sha256": sha256_hex(entry.read()),
            "stored_size": str(entry.row["stored_size"]),
        }
        for entry in record.entries
    ]
    if list_entries:
        return told | {"entries": entries}
    lines = "".join(f"{entry['name']}\t{entry['sha256']}\n" for entry in entries)
    return told | {"entries_sha256": sha256_hex(lines.encode())}


def describe_pack(vector: ValidPack) -> JsonObject:
    opened = open_pack(vector.data)
    told: JsonObject = {
        "absent_keys": list(vector.absent_keys),
        "index_offset": str(opened.footer["index_offset"]),
        "metadata": opened.metadata(),
        "records": [
            _describe_record(opened.record(number), list_entries=vector.list_entries)
            for number in range(opened.count)
        ],
    }
    return told if vector.canonical is None else told | {"canonical": vector.canonical}


def describe_damage(vector: InvalidPack) -> JsonObject:
    """What a stream gives of a shard that breaks a rule, and what recovery does."""
    streamed, recovered = stream(vector.data), recover(vector.data)
    told: JsonObject = {
        "error": streamed.stop and streamed.stop[1],
        "records": str(len(streamed.records)),
    }
    if streamed.claims_much:
        told["also"] = ["limit_exceeded"]
    return {
        "recovered": {
            "had_index": recovered.had_index,
            "keys": recovered.keys,
            "lost": [
                {"key": key, "offset": str(offset), "size": str(size)}
                for offset, size, key in sorted(recovered.lost, key=lambda part: part[0])
            ],
        },
        "stream": told,
    }


# --- do the vectors say what is so


def _problems_of_valid(vector: ValidPack, rules: dict[str, set[str]]) -> Iterator[str]:
    try:
        opened = open_pack(vector.data)
        opened.metadata()
        records = [opened.record(number) for number in range(opened.count)]
        contents = {
            record.key: {entry.name: entry.read() for entry in record.entries} for record in records
        }
        for record in records:
            record.metadata()
        found = [opened.find(record.key.encode()) for record in records]
        absent = [opened.find(key.encode()) for key in vector.absent_keys]
    except BrokenRuleError as error:
        yield f"does not read: {error}"
        return
    if contents != vector.contents or list(contents) != list(vector.contents):
        yield "reads as other contents"
    if found != list(range(opened.count)) or any(number is not None for number in absent):
        yield "does not find its keys"
    streamed = stream(vector.data)
    if streamed.stop is not None or streamed.records != records:
        yield f"streams as something else: {streamed.stop}"
    if recover(vector.data).lost:
        yield "would lose something in recovery"
    yield from (f"names the unknown rule {rule}" for rule in vector.rules if rule not in rules)


def _do(vector: InvalidPack, opened: Opened, step: str) -> None:
    if step == "offsets":
        opened.offsets()
    elif step == "lookup":
        opened.lookup()
    elif step == "index_metadata":
        opened.metadata()
    elif step == "key":
        opened.find((vector.key or "").encode())
    else:
        record = opened.record(vector.record or 0)
        if step == "metadata":
            record.metadata()
        elif step == "entry":
            record.entry(vector.entry or "").read()


def outcome(vector: InvalidPack) -> tuple[str, str] | None:
    """Rule and code of the step that the vector names."""
    if vector.when == "stream":
        return stream(vector.data).stop
    try:
        opened = open_pack(vector.data)
        if vector.when != "open":
            _do(vector, opened, vector.when)
    except BrokenRuleError as error:
        return rule_of(error), error.code
    return None


def _hidden(vector: InvalidPack) -> Iterator[str]:
    """What fails although it is not what the vector is about."""
    if vector.when in ("open", "stream"):
        return
    opened = open_pack(vector.data)
    try:
        for step in ("offsets", "lookup", "index_metadata"):
            if step != vector.when:
                _do(vector, opened, step)
    except BrokenRuleError as error:
        yield f"fails at another part of the index: {error}"
    if vector.when == "offsets":
        return
    for number in range(opened.count):
        if vector.when == "record" and number == vector.record:
            continue
        try:
            record = opened.record(number)
            if vector.when != "metadata" or number != vector.record:
                record.metadata()
            for entry in record.entries:
                if (number, entry.name) != (vector.record, vector.entry):
                    entry.read()
        except BrokenRuleError as error:
            yield f"hides record {number}: {error}"


def _problems_of_invalid(vector: InvalidPack, rules: dict[str, set[str]]) -> Iterator[str]:
    found = outcome(vector)
    if found is None:
        yield "is read as if nothing were wrong"
        return
    if found[1] not in (vector.error, *vector.also):
        yield f"gives {found}, expected {vector.error}"
    elif found[0] not in (vector.rule, *vector.rules_also):
        yield f"breaks {found[0]}, expected {vector.rule}"
    if vector.error not in rules.get(vector.rule, set()):
        yield f"expects {vector.error}, which {vector.rule} does not name"
    yield from (f"names the unknown rule {r}" for r in vector.rules_also if r not in rules)
    if vector.when not in (*STEPS, "stream"):
        yield f"has no step {vector.when}"
    if (vector.when in ("record", "metadata", "entry")) != (vector.record is not None):
        yield "does not say which record"
    if (vector.when == "entry") != (vector.entry is not None):
        yield "does not say which entry"
    if (vector.when == "key") != (vector.key is not None):
        yield "does not say which key"
    yield from _hidden(vector)


def pack_problems(
    valid: list[ValidPack],
    invalid: list[InvalidPack],
    rules: dict[str, set[str]],
    broken_elsewhere: set[tuple[str, str]],
) -> Iterator[str]:
    for good in valid:
        for what in _problems_of_valid(good, rules):
            yield f"valid_packs/{good.name} {what}"
    for bad in invalid:
        for what in _problems_of_invalid(bad, rules):
            yield f"invalid_packs/{bad.name} {what}"
    for names in ([v.name for v in valid], [v.name for v in invalid]):
        yield from (f"{name} is made twice" for name in set(names) if names.count(name) > 1)
    broken = broken_elsewhere | {(vector.rule, vector.error) for vector in invalid}
    for rule, codes in rules.items():
        for code in sorted(codes) if rule.startswith("P-") else ():
            if (rule, code) not in broken and (rule, code) not in CODES_WITHOUT_FILE:
                yield f"no invalid shard breaks {rule} with {code}"
