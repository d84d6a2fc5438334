"""Files with detached signatures: those that verify, and those that must not."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from _decode import BrokenRuleError, File, open_file, read_entry, require
from _ed25519 import ORDER, is_genuine, public_key, sign
from _encode import Container, Entry, encode
from _metadata import (
    IDENTITY_ENTRY,
    MANIFEST_ENTRY,
    ROLE_MANIFEST,
    JsonObject,
    check_identity,
    contents_of,
    identity_of_version_2,
    parse_object,
    read_schema,
)
from _primitives import canonical_json, identity_text, identity_text_2, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON_TYPE = 2
SEED = sha256_hex(b"a test key of Shard: never use it for anything else")
OTHER_SEED = sha256_hex(b"another test key of Shard")
KEY = public_key(bytes.fromhex(SEED)).hex()
OTHER_KEY = public_key(bytes.fromhex(OTHER_SEED)).hex()
DIGITS = {"identity": 64, "public_key": 64, "signature": 128}
CONTENTS = {"a/data": b"first", "b/größe": bytes(range(64))}
ENTRIES = tuple(Entry(name, content) for name, content in CONTENTS.items())
SCHEMA: JsonObject = {"tags": ["signed"]}
PLAIN = Container(ENTRIES, role=2, schema=canonical_json(SCHEMA))


@dataclass(frozen=True)
class Signed:
    """A file, a signature file, a key that the caller trusts, and what comes of it."""

    name: str
    description: str
    rules: tuple[str, ...]
    data: bytes
    signature: bytes
    error: str | None = None
    """The code, None if it verifies. The first of the rules is then the one that is broken, the others are accepted."""
    key: str = KEY

    def describe(self) -> JsonObject:
        told: JsonObject = {
            "description": self.description,
            "file": f"{self.name}.shard",
            "key": self.key,
            "signature": f"{self.name}.shard.sig",
        }
        if self.error is None:
            identity, version = verify(self.data, self.signature, self.key)
            return told | {"identity": identity, "rules": list(self.rules), "version": str(version)}
        told |= {"error": self.error, "rule": self.rules[0]}
        return told | ({"rules_also": list(self.rules[1:])} if self.rules[1:] else {})


# --- a strict reader


def _parse(text: bytes) -> JsonObject:
    try:
        fields = parse_object(text)
    except BrokenRuleError as error:
        raise BrokenRuleError("bad_metadata", f"S-SIG-2: {error}") from error
    fine = fields.get("algorithm") == "ed25519"
    fine = fine and type(fields.get("v")) is int and fields["v"] in (1, 2)
    for name, digits in DIGITS.items():
        value = fields.get(name)
        fine = (
            fine and isinstance(value, str) and bool(re.fullmatch(f"[0-9a-f]{{{digits}}}", value))
        )
    require(fine, "bad_metadata", "S-SIG-2")
    return fields


def _message(identity: str, version: int) -> bytes:
    return f"shard-identity-v{version}:{identity}".encode()


def _check_lists(file: File) -> None:
    """S-MAN-7, for whoever verifies a signature."""
    section = (read_schema(file) or {}).get("manifest")
    if file.header["role"] != ROLE_MANIFEST or not isinstance(section, dict):
        return
    has_entry = MANIFEST_ENTRY in file.by_name
    manifest = parse_object(read_entry(file, MANIFEST_ENTRY)) if has_entry else {}
    for key in ("files", "chunks"):
        same = key not in section or section[key] == manifest.get(key)
        require(same, "identity_mismatch", f"S-MAN-7: {key} of the schema section")


def verify(data: bytes, signature: bytes, key: str) -> tuple[str, int]:
    """The signed identity and its version, else `bad_signature`, `identity_mismatch` or `bad_metadata`."""
    fields = _parse(signature)
    signed, version = str(fields["identity"]), cast("int", fields["v"])
    bits = bytes.fromhex(str(fields["signature"]))
    genuine = is_genuine(bytes.fromhex(key), _message(signed, version), bits)
    require(genuine, "bad_signature", "S-SIG-1")
    file = open_file(data)
    check_identity(file)
    text = identity_of_version_2(file) if version == 2 else identity_text(contents_of(file))
    require(sha256_hex(text) == signed, "identity_mismatch", "S-SIG-1")
    _check_lists(file)
    return signed, version


# --- making them


def _fields(container: Container, version: int = 2, seed: str = SEED) -> JsonObject:
    """The true signature of a file."""
    file = open_file(encode(container))
    text = identity_of_version_2(file) if version == 2 else identity_text(contents_of(file))
    identity, secret = sha256_hex(text), bytes.fromhex(seed)
    return {
        "algorithm": "ed25519",
        "identity": identity,
        "public_key": public_key(secret).hex(),
        "signature": sign(secret, _message(identity, version)).hex(),
        "v": version,
    }


def _signature(container: Container, version: int = 2, seed: str = SEED) -> bytes:
    return canonical_json(_fields(container, version, seed))


def _with_identity(container: Container, version: int) -> Container:
    """With the identity as its last entry."""
    contents = {str(entry.name): entry.content for entry in container.entries}
    schema = None if container.schema is None else json.loads(container.schema)
    text = identity_text(contents)
    if version == 2:
        text = identity_text_2(contents, container.role, schema)
    stored = Entry(IDENTITY_ENTRY, text, content_type=JSON_TYPE)
    return replace(container, entries=(*container.entries, stored))


ROWS = [{"sha256": sha256_hex(b"part"), "size": 4, "uri": "p0.shard"}]
MANIFEST = Container(
    (Entry(MANIFEST_ENTRY, canonical_json({"files": ROWS}), content_type=JSON_TYPE),),
    role=ROLE_MANIFEST,
)
ATTACK = canonical_json({"manifest": {"files": [{"uri": "evil.shard"}]}})


def _genuine() -> Iterator[Signed]:
    def good(name: str, description: str, file: Container, signature: bytes, *rules: str) -> Signed:
        return Signed(name, description, ("S-SIG-1", *rules), encode(file), signature)

    plain = _signature(PLAIN)
    yield good("plain", "A file with a role and a schema section.", PLAIN, plain)
    other = replace(PLAIN, entries=ENTRIES[::-1], alignment=64)
    text = "The same entries in another order and alignment, with the same signature."
    yield good("other_storage", text, other, plain)
    stored = _with_identity(PLAIN, 2)
    yield good("identity_stored", "The file carries its identity.", stored, _signature(stored))
    old = _with_identity(PLAIN, 1)
    text = "Signature and stored identity have version 1."
    yield good("version_1", text, old, _signature(old, 1), "S-SIG-3")
    text = "An identity of version 1 is stored, and one of version 2 signed."
    yield good("version_1_stored", text, old, _signature(old), "S-SIG-3")
    text = "Role and schema section were changed, which version 1 does not cover."
    changed = replace(PLAIN, role=0, schema=None)
    yield good("version_1_changed_role", text, changed, _signature(PLAIN, 1), "S-SIG-3")
    yield good("manifest", "A manifest.", MANIFEST, _signature(MANIFEST), "S-MAN-7")
    repeated = replace(MANIFEST, schema=canonical_json({"manifest": {"files": ROWS}}))
    text = "The schema section of a manifest repeats the list."
    yield good("manifest_repeated", text, repeated, _signature(repeated), "S-MAN-7")
    text = "The signature claims another key, and was made with the trusted one."
    claim = canonical_json(_fields(PLAIN) | {"public_key": OTHER_KEY})
    yield good("claims_other_key", text, PLAIN, claim)
    text = "The signature file is not canonical and has a field of its own."
    spaced = json.dumps(_fields(PLAIN) | {"comment": "by the robot"}, indent=1).encode()
    yield good("not_canonical", text, PLAIN, spaced, "S-SIG-2")


def _forged() -> Iterator[Signed]:
    def bad(name: str, description: str, signature: bytes, key: str = KEY) -> Signed:
        data = encode(PLAIN)
        return Signed(name, description, ("S-SIG-1",), data, signature, "bad_signature", key)

    fields = _fields(PLAIN)

    def changed(**values: object) -> bytes:
        return canonical_json(fields | values)

    yield bad("wrong_key", "The caller trusts another key.", canonical_json(fields), OTHER_KEY)
    forged = _fields(PLAIN, seed=OTHER_SEED) | {"public_key": KEY}
    text = "Made with another key, and claims the trusted one."
    yield bad("claims_trusted_key", text, canonical_json(forged))
    text = "A signature of version 2 is presented as one of version 1."
    yield bad("presented_as_version_1", text, changed(v=1))
    old = _fields(PLAIN, 1) | {"v": 2}
    text = "A signature of version 1 is presented as one of version 2."
    yield bad("presented_as_version_2", text, canonical_json(old))
    text = "The identity of the file, and the signature of another file."
    other = _fields(MANIFEST)["signature"]
    yield bad("of_another_file", text, changed(signature=other))
    bits = bytes.fromhex(str(fields["signature"]))
    damaged = bytes([bits[0] ^ 1]) + bits[1:]
    yield bad("one_bit", "One bit of the signature is wrong.", changed(signature=damaged.hex()))
    yield bad("zeros", "A signature of zeros.", changed(signature="0" * 128))
    large = int.from_bytes(bits[32:], "little") + ORDER
    same = bits[:32] + large.to_bytes(32, "little")
    text = "The second half plus the order of the group, which RFC 8032 forbids."
    yield bad("second_form", text, changed(signature=same.hex()))


def _changed() -> Iterator[Signed]:
    def bad(name: str, description: str, file: Container, signature: bytes, *rules: str) -> Signed:
        broken = rules or ("S-SIG-1",)
        data = encode(file)
        return Signed(name, description, broken, data, signature, "identity_mismatch")

    plain, stored = _signature(PLAIN), _with_identity(PLAIN, 2)
    entries = (Entry("a/data", b"First"), ENTRIES[1])
    file = replace(PLAIN, entries=entries)
    yield bad("entry_changed", "One letter of an entry is another.", file, plain)
    text = "An entry was changed, and the stored identity with it."
    yield bad("entry_and_identity_changed", text, _with_identity(file, 2), plain)
    text = "An entry was changed; the stored identity was not."
    file = replace(PLAIN, entries=(*entries, stored.entries[-1]))
    yield bad("entry_changed_identity_kept", text, file, plain, "S-IDN-1", "S-IDN-2", "S-SIG-1")
    file = replace(PLAIN, entries=(*ENTRIES, Entry("c", b"third")))
    yield bad("entry_added", "An entry was added.", file, plain)
    file = replace(PLAIN, entries=ENTRIES[:1])
    yield bad("entry_removed", "An entry was removed.", file, plain)
    file = replace(PLAIN, entries=(Entry("a/data2", b"first"), ENTRIES[1]))
    yield bad("entry_renamed", "An entry has another name.", file, plain)
    yield bad("role_changed", "The file has another role.", replace(PLAIN, role=0), plain)
    text = "The schema section was changed."
    file = replace(PLAIN, schema=canonical_json({"tags": ["Signed"]}))
    yield bad("schema_changed", text, file, plain)
    file = replace(PLAIN, schema=None)
    yield bad("schema_removed", "The schema section was removed.", file, plain)
    text = "The signature has version 1; an entry was changed."
    file = replace(PLAIN, entries=entries)
    yield bad("version_1_entry_changed", text, file, _signature(PLAIN, 1))
    text = (
        "Somebody made a manifest, in the schema section, of a file with a signature of version 1."
    )
    file = replace(PLAIN, role=ROLE_MANIFEST, schema=ATTACK)
    yield bad("manifest_in_schema", text, file, _signature(PLAIN, 1), "S-MAN-7")
    text = "The schema section lists other files than the entry, which a signature of version 1 covers."
    file = replace(MANIFEST, schema=ATTACK)
    yield bad("manifest_contradicted", text, file, _signature(MANIFEST, 1), "S-MAN-7")
    text = "The list is in the schema section only, and the signature of version 2 covers it."
    file = replace(PLAIN, role=ROLE_MANIFEST, schema=ATTACK)
    yield bad("manifest_in_signed_schema", text, file, _signature(file), "S-MAN-7")


def _malformed() -> Iterator[Signed]:
    fields = _fields(PLAIN)
    texts: dict[str, tuple[str, JsonObject | bytes]] = {
        "empty": ("No bytes.", b""),
        "not_json": ("Not JSON.", b"-----BEGIN SIGNATURE-----"),
        "list": ("A list.", canonical_json([fields])),
        "repeated_key": ("A key twice.", canonical_json(fields)[:-1] + b',"v":2}'),
        "algorithm": ("Another algorithm.", {"algorithm": "rsa"}),
        "version_3": ("Version 3.", {"v": 3}),
        "version_text": ("The version is text.", {"v": "2"}),
        "version_true": ("The version is true.", {"v": True}),
        "identity_upper_case": (
            "The identity in upper case.",
            {"identity": str(fields["identity"]).upper()},
        ),
        "identity_short": ("63 digits.", {"identity": str(fields["identity"])[1:]}),
        "key_number": ("The key is a number.", {"public_key": 7}),
        "signature_short": ("126 digits.", {"signature": str(fields["signature"])[2:]}),
        "signature_newline": ("A line feed after it.", {"signature": f"{fields['signature']}\n"}),
    }
    version = canonical_json(fields).replace(b'"v":2', b'"v":2.0')
    texts["version_fraction"] = ("The version is 2.0.", version)
    for name in (*DIGITS, "algorithm", "v"):
        fewer = {key: value for key, value in fields.items() if key != name}
        texts[f"without_{name}"] = (f"No {name}.", canonical_json(fewer))
    for name, (description, value) in texts.items():
        text = value if isinstance(value, bytes) else canonical_json(fields | value)
        data = encode(PLAIN)
        yield Signed(f"text_{name}", description, ("S-SIG-2",), data, text, "bad_metadata")


def signed_vectors() -> Iterator[Signed]:
    yield from _genuine()
    yield from _forged()
    yield from _changed()
    yield from _malformed()


# --- do they say what is so


def signed_problems(vectors: list[Signed], rules: dict[str, set[str]]) -> Iterator[str]:
    for one in vectors:
        found: tuple[str, str] | None = None
        try:
            verify(one.data, one.signature, one.key)
        except BrokenRuleError as error:
            found = error.code, str(error).split(": ")[1]
        is_right = found is None if one.error is None else bool(found and found[0] == one.error)
        if not is_right or (found and found[1] not in one.rules):
            yield f"signatures/{one.name} gives {found}, expected {one.error} of {one.rules}"
        yield from (
            f"signatures/{one.name} names {rule}" for rule in one.rules if rule not in rules
        )
        if one.error and one.error not in rules[one.rules[0]]:
            yield f"signatures/{one.name} expects {one.error}, which {one.rules[0]} does not name"
    names = [one.name for one in vectors]
    yield from (f"{name} is made twice" for name in set(names) if names.count(name) > 1)
