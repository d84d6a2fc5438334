"""JSON metadata for the self-check: schema section, manifests, profiles and identity."""

from __future__ import annotations

import json
import math
import re
from typing import cast

from _decode import BrokenRuleError, File, read_entry, require
from _limits import LIMITS
from _primitives import canonical_json, identity_text, identity_text_2, sha256_hex

MAX_JSON_DEPTH = 128
ROLE_MANIFEST = 4
ROLE_WSHARD = 5
MANIFEST_ENTRY = "meta/manifest"
EPISODE_ENTRY = "meta/episode"
IDENTITY_ENTRY = "meta/identity"
JsonObject = dict[str, object]


def _check_size(text: str) -> None:
    deepest = depth = values = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            in_string = True
        else:
            depth += (character in "[{") - (character in "]}")
            deepest = max(deepest, depth)
            values += character in "[{,:"
    require(deepest <= MAX_JSON_DEPTH, "bad_metadata", "S-SCH-2: too deep")
    require(values <= LIMITS["max_json_nodes"], "limit_exceeded", "S-SCH-8: too many values")


def _without_repeats(pairs: list[tuple[str, object]]) -> JsonObject:
    require(len(dict(pairs)) == len(pairs), "bad_metadata", "S-SCH-2: repeated key")
    return dict(pairs)


def _refuse_constant(name: str) -> object:
    raise BrokenRuleError("bad_metadata", f"S-SCH-2: {name}")


def _finite(text: str) -> float:
    value = float(text)
    require(math.isfinite(value), "bad_metadata", f"S-SCH-2: {text}")
    return value


def parse_object(data: bytes) -> JsonObject:
    """A JSON object in the subset of the registry, else `bad_metadata` or `limit_exceeded`."""
    require(len(data) <= LIMITS["max_json_bytes"], "limit_exceeded", "S-SCH-7: too long")
    try:
        text = data.decode()
        _check_size(text)
        value = json.loads(
            text,
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        json.dumps(value, ensure_ascii=False).encode()  # fails on lone surrogates
    except ValueError as error:
        raise BrokenRuleError("bad_metadata", f"S-SCH-2: {error}") from error
    require(isinstance(value, dict), "bad_metadata", "S-SCH-2: not an object")
    return cast("JsonObject", value)


def _is_string_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def read_schema(file: File) -> JsonObject | None:
    start = file.header["schema_offset"]
    if start == 0:
        return None
    ends = [entry["data_offset"] + entry["disk_size"] for entry in file.by_name.values()]
    first = max([file.header["data_section_offset"], *ends])
    require(first <= start <= len(file.data), "bad_metadata", "S-SCH-1")
    schema = parse_object(file.data[start:])
    tags = schema.get("tag_dictionary", [])
    require(_is_string_list(tags), "bad_metadata", "S-SCH-4: tag_dictionary")
    require(len(cast("list[str]", tags)) <= 16, "bad_metadata", "S-SCH-4: too many tags")
    require(_is_string_list(schema.get("tags", [])), "bad_metadata", "S-SCH-4: tags")
    metadata = schema.get("entry_metadata", {})
    fine = isinstance(metadata, dict) and all(isinstance(v, dict) for v in metadata.values())
    require(fine, "bad_metadata", "S-SCH-4: entry_metadata")
    return schema


def _check_row(row: object) -> str:
    require(isinstance(row, dict), "bad_metadata", "S-MAN-1: a row is not an object")
    fields = cast("JsonObject", row)
    uri = fields.get("uri")
    if not isinstance(uri, str) or not uri or "\0" in uri:
        raise BrokenRuleError("bad_metadata", "S-MAN-2: uri")
    sha256 = fields.get("sha256", "0" * 64)
    fine = isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256) is not None
    require(fine, "bad_metadata", "S-MAN-2: sha256")
    size = fields.get("size", 0)
    fine = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    require(fine, "bad_metadata", "S-MAN-2: size")
    for key in ("start_key", "end_key"):
        require(isinstance(fields.get(key, ""), str), "bad_metadata", f"S-MAN-2: {key}")
    return uri


def _check_covered(file: File) -> None:
    """S-MAN-7, for a file that carries an identity."""
    text = read_entry(file, IDENTITY_ENTRY)
    identity = parse_object(text)
    fields = {"entries", "leaf", "v"} | ({"role", "schema"} if identity.get("v") == 2 else set())
    is_canonical = text == canonical_json(identity) and set(identity) == fields
    require(is_canonical, "identity_mismatch", "S-IDN-1")
    role = identity.get("role", ROLE_MANIFEST)
    require(role == ROLE_MANIFEST, "identity_mismatch", "S-MAN-7: not a manifest")
    manifest: JsonObject = {}
    if MANIFEST_ENTRY in file.by_name:
        content = read_entry(file, MANIFEST_ENTRY)
        manifest = parse_object(content)
        covered = cast("JsonObject", identity["entries"]).get(MANIFEST_ENTRY)
        require(covered == sha256_hex(content), "identity_mismatch", "S-MAN-7: another manifest")
    section = (read_schema(file) or {}).get("manifest")
    for key in ("files", "chunks"):
        if isinstance(section, dict) and key in section:
            same = section[key] == manifest.get(key)
            require(same, "identity_mismatch", f"S-MAN-7: {key} of the schema section")


def manifest_files(file: File) -> list[JsonObject]:
    if IDENTITY_ENTRY in file.by_name:
        _check_covered(file)
    if MANIFEST_ENTRY in file.by_name:
        manifest = parse_object(read_entry(file, MANIFEST_ENTRY))
        rows = manifest.get("files", manifest.get("chunks"))
    else:
        section = (read_schema(file) or {}).get("manifest")
        require(section is not None, "bad_profile", "S-ROL-2: no manifest")
        require(isinstance(section, dict), "bad_metadata", "S-MAN-1: manifest")
        rows = cast("JsonObject", section).get("files")
    require(isinstance(rows, list), "bad_metadata", "S-MAN-1: no list of files")
    uris = [_check_row(row) for row in cast("list[object]", rows)]
    require(len(set(uris)) == len(uris), "bad_metadata", "S-MAN-2: repeated uri")
    return cast("list[JsonObject]", rows)


def contents_of(file: File) -> dict[str, bytes]:
    return {name: read_entry(file, name) for name in file.by_name}


def identity_of_version_2(file: File) -> bytes:
    return identity_text_2(contents_of(file), file.header["role"], read_schema(file))


def check_identity(file: File) -> None:
    contents = contents_of(file)
    stored = contents.get(IDENTITY_ENTRY)
    if stored is None:
        return
    try:
        version = parse_object(stored).get("v")
    except BrokenRuleError as error:
        raise BrokenRuleError("identity_mismatch", f"S-IDN-1: {error}") from error
    require(type(version) is not int or version in (1, 2), "unsupported_version", "S-IDN-4")
    text = identity_of_version_2(file) if version == 2 else identity_text(contents)
    require(stored == text, "identity_mismatch", "S-IDN-1")


def check_profile(file: File) -> None:
    if file.header["role"] == ROLE_MANIFEST:
        manifest_files(file)
    elif file.header["role"] == ROLE_WSHARD:
        require(EPISODE_ENTRY in file.by_name, "bad_profile", "S-ROL-3: no meta/episode")
        try:
            parse_object(read_entry(file, EPISODE_ENTRY))
        except BrokenRuleError as error:
            raise BrokenRuleError("bad_profile", f"S-ROL-3: {error}") from error
