"""Files that break the rules of the schema section, manifests, profiles and identity."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from _compress import lz4_between, zstd_spaces
from _encode import Container, Entry, encode
from _layout import LZ4, ZSTD, with_header
from _metadata import ROLE_MANIFEST, ROLE_WSHARD
from _primitives import canonical_json, identity_text, identity_text_2, sha256_hex
from _vector import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON_TYPE = 2
NOTE = b'{"note":"an entry that is JSON"}'


def _with_schema(schema: bytes) -> bytes:
    return encode(Container((Entry("a", b"first"), Entry("note", NOTE)), schema=schema))


def _schema(name: str, description: str, rule: str, data: bytes) -> Invalid:
    return Invalid(f"schema_{name}", description, rule, "bad_metadata", "schema", data)


def _schema_places() -> Iterator[Invalid]:
    data = _with_schema(b"{}")
    note_at = data.index(NOTE)
    places = {
        "beyond_file": ("one byte behind the file", len(data) + 1),
        "u64_max": ("the largest number", 0xFFFFFFFFFFFFFFFF),
        "in_header": ("in the header", 1),
        "in_names": ("in the string table", 64 + 48 * 2),
        "in_block": ("the start of the last block, which is a JSON object", note_at),
        "in_block_end": ("the last byte of the last block", len(data) - 3),
    }
    for name, (what, offset) in places.items():
        moved = with_header(data, schema_offset=offset)
        yield _schema(f"offset_{name}", f"schema_offset is {what}.", "S-SCH-1", moved)


def _schema_texts() -> Iterator[Invalid]:
    texts = {
        "empty": ("No bytes: schema_offset is the end of the file.", b""),
        "not_json": ("Not JSON.", b"schema: none"),
        "truncated": ("The closing brace is missing.", b'{"tags":[]'),
        "array": ("A list instead of an object.", b'[{"tags":[]}]'),
        "string": ("A string instead of an object.", b'"tags"'),
        "nan": ("NaN.", b'{"x":NaN}'),
        "infinity": ("Infinity.", b'{"x":Infinity}'),
        "minus_infinity": ("-Infinity.", b'{"x":-Infinity}'),
        "repeated_key": ("A repeated key.", b'{"x":1,"y":2,"x":1}'),
        "repeated_key_inside": ("A repeated key in an inner object.", b'{"x":{"y":1,"y":2}}'),
        "repeated_key_escaped": ("Two spellings of one key.", b'{"x":1,"\\u0078":2}'),
        "depth_129": ("129 levels.", b'{"a":' + b"[" * 128 + b"]" * 128 + b"}"),
        "depth_129_objects": ("129 objects.", b'{"a":' * 129 + b"0" + b"}" * 129),
        "depth_100000": ("100000 levels.", b'{"a":' + b"[" * 99999 + b"]" * 99999 + b"}"),
        "depth_unclosed": ("50000 opening brackets and no closing one.", b'{"a":' + b"[" * 50000),
        "bom": ("A byte order mark.", b'\xef\xbb\xbf{"x":1}'),
        "utf16": ("UTF-16.", '{"x":1}'.encode("utf-16")),
        "invalid_utf8": ("The byte FF in a string.", b'{"x":"\xff"}'),
        "surrogate_bytes": ("A surrogate, not escaped.", b'{"x":"\xed\xa0\x80"}'),
        "surrogate_escape": ("A lone surrogate, escaped.", b'{"x":"\\ud800"}'),
        "surrogate_escape_low": ("A lone low surrogate in a key.", b'{"\\udc00x":1}'),
        "trailing_value": ("A second object.", b'{"x":1}{"y":2}'),
        "trailing_nul": ("A NUL after the object.", b'{"x":1}\0'),
        "trailing_comma": ("A comma before the closing brace.", b'{"x":1,}'),
        "comment": ("A comment.", b'{"x":1/* no */}'),
        "single_quotes": ("Single quotes.", b"{'x':1}"),
        "control_character": ("A raw line feed in a string.", b'{"x":"a\nb"}'),
        "number_too_large": ("1e309, beyond the range of a 64-bit float.", b'{"x":1e309}'),
        "leading_zero": ("A number with a leading zero.", b'{"x":01}'),
    }
    for name, (description, text) in texts.items():
        yield _schema(f"json_{name}", description, "S-SCH-2", _with_schema(text))


def _schema_types() -> Iterator[Invalid]:
    types: dict[str, tuple[str, object]] = {
        "tag_dictionary_17": ("17 tags.", {"tag_dictionary": [f"t{k}" for k in range(17)]}),
        "tag_dictionary_string": ("A string.", {"tag_dictionary": "train"}),
        "tag_dictionary_numbers": ("A list with a number.", {"tag_dictionary": ["a", 1]}),
        "tags_object": ("An object.", {"tags": {"a": True}}),
        "tags_numbers": ("A list of numbers.", {"tags": [1, 2]}),
        "entry_metadata_list": ("A list.", {"entry_metadata": []}),
        "entry_metadata_value": ("An object of strings.", {"entry_metadata": {"a": "text"}}),
    }
    for name, (what, value) in types.items():
        field = name.rpartition("_")[0]
        data = _with_schema(canonical_json(value))
        yield _schema(name, f"Wrong value of {field}: {what}", "S-SCH-4", data)


def _manifest_file(content: bytes) -> bytes:
    entry = Entry("meta/manifest", content, content_type=JSON_TYPE)
    return encode(Container((entry,), role=ROLE_MANIFEST))


def _manifest(name: str, description: str, rule: str, data: bytes) -> Invalid:
    return Invalid(f"manifest_{name}", description, rule, "bad_metadata", "manifest", data)


def _manifest_objects() -> Iterator[Invalid]:
    contents = {
        "not_json": ("meta/manifest is not JSON.", b"part-0.shard\n"),
        "array": ("meta/manifest is a list.", b'[{"uri":"p0.shard"}]'),
        "no_files": ("No list of files.", b'{"version":1}'),
        "files_object": ("files is an object.", b'{"files":{"uri":"p0.shard"}}'),
        "files_null": ("files is null.", b'{"files":null}'),
        "chunks_string": ("chunks is a string.", b'{"chunks":"p0.shard"}'),
        "row_string": ("A row is a string.", b'{"files":["p0.shard"]}'),
        "row_null": ("The second row is null.", b'{"files":[{"uri":"p0.shard"},null]}'),
        "repeated_key": ("A repeated key.", b'{"files":[],"files":[{"uri":"p0.shard"}]}'),
    }
    for name, (description, content) in contents.items():
        yield _manifest(name, description, "S-MAN-1", _manifest_file(content))
    limits = {
        "too_long": (
            "One byte more than 16 MiB, most of them spaces.",
            *("S-SCH-7", ZSTD, zstd_spaces(b'{"files":[', (16 << 20) - 11, b"]}")),
        ),
        "too_many_values": (
            "500 000 empty objects: 1 000 003 of the characters that count.",
            *("S-SCH-8", LZ4, lz4_between(b'{"files":[{}', b",{}", 499_999, b',{"uri":"a"}]}')),
        ),
    }
    for name, (description, rule, flags, (content, stored)) in limits.items():
        entry = Entry("meta/manifest", content, JSON_TYPE, flags=flags, stored=stored)
        data = encode(Container((entry,), role=ROLE_MANIFEST))
        yield Invalid(f"manifest_{name}", description, rule, "limit_exceeded", "manifest", data)
    in_schema = canonical_json({"manifest": {"files": "p0.shard"}})
    yield _manifest(
        "in_schema_files_string",
        "No meta/manifest, and manifest.files of the schema section is a string.",
        "S-MAN-1",
        encode(Container((), role=ROLE_MANIFEST, schema=in_schema)),
    )
    yield Invalid(
        "manifest_absent",
        "Neither meta/manifest nor a schema section.",
        "S-ROL-2",
        "bad_profile",
        "manifest",
        encode(Container((Entry("a", b"first"),), role=ROLE_MANIFEST)),
        also=("bad_metadata",),
    )


def _manifest_rows() -> Iterator[Invalid]:
    digest = sha256_hex(b"part")
    good = {"sha256": digest, "size": 4, "uri": "p0.shard"}
    changes: dict[str, tuple[str, dict[str, object]]] = {
        "uri_empty": ("uri is empty.", {"uri": ""}),
        "uri_number": ("uri is a number.", {"uri": 7}),
        "uri_null": ("uri is null.", {"uri": None}),
        "uri_nul": ("uri has a NUL.", {"uri": "p0\0.shard"}),
        "sha256_upper_case": ("sha256 in upper case.", {"sha256": digest.upper()}),
        "sha256_short": ("sha256 has 63 digits.", {"sha256": digest[:-1]}),
        "sha256_newline": ("sha256 has a line feed at its end.", {"sha256": digest + "\n"}),
        "sha256_not_hex": ("sha256 has a letter g.", {"sha256": "g" + digest[1:]}),
        "sha256_number": ("sha256 is a number.", {"sha256": 12}),
        "size_negative": ("size is -1.", {"size": -1}),
        "size_true": ("size is true.", {"size": True}),
        "size_fraction": ("size is 4.5.", {"size": 4.5}),
        "size_string": ("size is a string.", {"size": "4"}),
        "start_key_number": ("start_key is a number.", {"start_key": 1}),
        "end_key_list": ("end_key is a list.", {"end_key": ["z"]}),
    }
    for name, (description, change) in changes.items():
        content = canonical_json({"files": [good | change]})
        yield _manifest(name, description, "S-MAN-2", _manifest_file(content))
    rows = {
        "uri_missing": ("A row without uri.", [{"sha256": digest, "size": 4}]),
        "uri_repeated": ("Two rows with the same uri.", [good, good | {"size": 5}]),
    }
    for name, (description, row_list) in rows.items():
        content = canonical_json({"files": row_list})
        yield _manifest(name, description, "S-MAN-2", _manifest_file(content))
    chunks = canonical_json({"chunks": [{"uri": "ep_0.wshard"}, {"uri": "ep_0.wshard"}]})
    yield _manifest(
        "chunks_uri_repeated", "Two chunks with one uri.", "S-MAN-2", _manifest_file(chunks)
    )


def _profile(name: str, description: str, rule: str, data: bytes) -> Invalid:
    return Invalid(f"profile_{name}", description, rule, "bad_profile", "verify", data)


def _profiles() -> Iterator[Invalid]:
    yield _profile(
        "manifest_absent",
        "Role 4 without a manifest.",
        "S-ROL-2",
        encode(Container((), role=ROLE_MANIFEST)),
    )
    yield _profile(
        "episode_absent",
        "Role 5 without meta/episode.",
        "S-ROL-3",
        encode(Container((Entry("reward", bytes(4)),), role=ROLE_WSHARD, name_terminator=b"")),
    )
    episodes = {
        "list": ("is a list", b"[]"),
        "empty": ("is empty", b""),
        "not_json": ("is not JSON", b"episode 7"),
        "nan": ("has NaN", b'{"length_T":NaN}'),
    }
    for name, (what, content) in episodes.items():
        entry = Entry("meta/episode", content, content_type=JSON_TYPE)
        yield _profile(
            f"episode_{name}",
            f"Role 5 with a meta/episode that {what}.",
            "S-ROL-3",
            encode(Container((entry,), role=ROLE_WSHARD, name_terminator=b"")),
        )


def _identities() -> Iterator[Invalid]:
    contents = {"a": b"first", "größe": b"second", "c": b"third"}
    text = identity_text(contents)
    parsed = json.loads(text)
    fewer = {name: content for name, content in contents.items() if name != "a"}

    def file(identity: bytes, stored: dict[str, bytes]) -> bytes:
        entries = [Entry(name, content) for name, content in stored.items()]
        entries.append(Entry("meta/identity", identity, content_type=JSON_TYPE))
        return encode(Container(tuple(entries)))

    different = {
        "altered": ("One entry was changed after the identity.", contents | {"c": b"THIRD"}, "c"),
        "missing": ("One entry was removed after the identity.", fewer, "a"),
        "extra": ("One entry was added after the identity.", contents | {"b": b"new"}, "b"),
        "renamed": ("One entry was renamed.", fewer | {"z": b"first"}, "a"),
    }
    for name, (description, stored, entry) in different.items():
        yield Invalid(
            f"identity_{name}",
            description,
            "S-IDN-2",
            "identity_mismatch",
            "identity",
            file(text, stored),
            entry=entry,
        )
    with_itself = {"meta/identity": sha256_hex(text)} | parsed["entries"]
    texts = {
        "spaces": ("White space.", json.dumps(parsed, ensure_ascii=False, sort_keys=True).encode()),
        "newline": ("A line feed at the end.", text + b"\n"),
        "key_order": (
            "Keys in the reverse order.",
            json.dumps(
                dict(reversed(parsed.items())), ensure_ascii=False, separators=(",", ":")
            ).encode(),
        ),
        "escapes": (
            "Escapes instead of the characters.",
            json.dumps(parsed, separators=(",", ":"), sort_keys=True).encode(),
        ),
        "upper_case": (
            "Hashes in upper case.",
            canonical_json(
                parsed | {"entries": {n: h.upper() for n, h in parsed["entries"].items()}}
            ),
        ),
        "version_2": ("Version 2.", canonical_json(parsed | {"v": 2})),
        "lists_itself": (
            "meta/identity among its entries.",
            canonical_json(parsed | {"entries": with_itself}),
        ),
        "empty": ("No bytes.", b""),
        "not_json": ("Not JSON.", b"identity"),
    }
    for name, (description, identity) in texts.items():
        yield Invalid(
            f"identity_text_{name}",
            f"Not the canonical text: {description}",
            "S-IDN-1",
            "identity_mismatch",
            "identity",
            file(identity, contents),
        )


def _identities_of_version_2() -> Iterator[Invalid]:
    contents = {"a": b"first", "c": b"third"}
    schema = {"producer": "x", "tags": ["train"]}
    covered = Container((), role=1, schema=canonical_json(schema))
    text = identity_text_2(contents, 1, schema)
    parsed = json.loads(text)

    def file(form: Container, identity: bytes = text, **changed: bytes) -> bytes:
        entries = [Entry(name, content) for name, content in (contents | changed).items()]
        entries.append(Entry("meta/identity", identity, content_type=JSON_TYPE))
        return encode(replace(form, entries=tuple(entries)))

    other = canonical_json(schema | {"tags": ["test"]})
    changes: dict[str, tuple[str, bytes, str | None]] = {
        "role_changed": ("The role was changed", file(replace(covered, role=0)), None),
        "schema_changed": (
            "The schema section was changed",
            file(replace(covered, schema=other)),
            None,
        ),
        "schema_removed": (
            "The schema section was removed",
            file(replace(covered, schema=None)),
            None,
        ),
        "altered": ("One entry was changed", file(covered, c=b"THIRD"), "c"),
    }
    for name, (what, data, entry) in changes.items():
        yield Invalid(
            f"identity_2_{name}",
            f"{what} after the identity of version 2.",
            "S-IDN-2",
            "identity_mismatch",
            "identity",
            data,
            entry=entry,
        )
    texts = {
        "downgraded": ("The text of version 2 with v 1.", parsed | {"v": 1}),
        "role_true": ("The role is true instead of 1.", parsed | {"role": True}),
        "role_absent": ("No role.", {key: v for key, v in parsed.items() if key != "role"}),
        "schema_null": ("The schema is null.", parsed | {"schema": None}),
    }
    for name, (description, fields) in texts.items():
        yield Invalid(
            f"identity_2_{name}",
            f"Not the canonical text: {description}",
            "S-IDN-1",
            "identity_mismatch",
            "identity",
            file(covered, canonical_json(fields)),
        )
    yield Invalid(
        "identity_version_3",
        "An identity of version 3.",
        "S-IDN-4",
        "unsupported_version",
        "identity",
        file(covered, canonical_json(parsed | {"v": 3})),
    )


def _manifests_with_identity() -> Iterator[Invalid]:
    """Signed files into which somebody else put a list of files."""
    rows = [{"sha256": sha256_hex(b"part"), "size": 4, "uri": "p0.shard"}]
    manifest = canonical_json({"files": rows})
    attack = {"files": [{"uri": "evil.shard"}]}
    in_schema = canonical_json({"manifest": attack})
    plain = {"a": b"first"}
    listed = {"meta/manifest": manifest}
    cases: dict[str, tuple[str, dict[str, bytes], bytes, bytes | None]] = {
        "in_schema": (
            "A plain file of which somebody made a manifest, in the schema section, after its identity of version 1.",
            plain,
            identity_text(plain),
            in_schema,
        ),
        "contradicted": (
            "The schema section lists other files than the entry, which the identity of version 1 covers.",
            listed,
            identity_text(listed),
            in_schema,
        ),
        "contradicted_chunks": (
            "The schema section has a list of chunks, the entry one of files.",
            listed,
            identity_text(listed),
            canonical_json({"manifest": {"chunks": rows}}),
        ),
        "in_schema_2": (
            "The list is in the schema section only, which the identity of version 2 covers.",
            plain,
            identity_text_2(plain, ROLE_MANIFEST, {"manifest": attack}),
            in_schema,
        ),
        "replaced": (
            "meta/manifest was replaced after the identity.",
            {"meta/manifest": canonical_json(attack)},
            identity_text(listed),
            None,
        ),
        "added": (
            "meta/manifest was added after the identity.",
            plain | listed,
            identity_text(plain),
            None,
        ),
        "role_changed": (
            "A file with an entry meta/manifest had role 0 when its identity of version 2 was made.",
            listed,
            identity_text_2(listed, 0),
            None,
        ),
    }
    texts = {
        "misspelled": ("A field of the stored identity has another name.", b'"leaf"', b'"fael"'),
        "with_space": ("The stored identity is not canonical JSON.", b"{", b"{ "),
    }
    for name, (description, old, new) in texts.items():
        text = identity_text(listed).replace(old, new, 1)
        cases[name] = (description, listed, text, None)
    for name, (description, contents, identity, schema) in cases.items():
        entries = [Entry(n, content) for n, content in contents.items()]
        entries.append(Entry("meta/identity", identity, content_type=JSON_TYPE))
        yield Invalid(
            f"manifest_identity_{name}",
            description,
            "S-IDN-1" if name in texts else "S-MAN-7",
            "identity_mismatch",
            "manifest",
            encode(Container(tuple(entries), role=ROLE_MANIFEST, schema=schema)),
        )


def metadata_vectors() -> Iterator[Invalid]:
    yield from _schema_places()
    yield from _schema_texts()
    yield from _schema_types()
    yield from _manifest_objects()
    yield from _manifest_rows()
    yield from _profiles()
    yield from _identities()
    yield from _identities_of_version_2()
    yield from _manifests_with_identity()
