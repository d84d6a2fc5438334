"""Identities: the same for the same content, whatever the file looks like (spec/shard.md, section 12)."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import (
    Identity,
    Limits,
    ShardReader,
    ShardWriter,
    compute_identity,
    verify_identity,
)
from shard_format.errors import (
    BadMetadata,
    ChecksumMismatch,
    IdentityMismatch,
    InvalidArgument,
    UnsupportedVersion,
)
from shard_format.identity import stored_identity
from tests.shard_format.support import HandMade, Row, noise, prose, write_shard

if TYPE_CHECKING:
    from pathlib import Path

CONTENTS = {
    "b/text": prose(5_000),
    "a/noise": noise(5_000),
    "empty": b"",
    "ü 😀": b"1",
    'quo"te\\\n': b"2",
}


def by_hand(
    contents: dict[str, bytes], role: int = 0, schema: bytes = b"{}", *, version: int = 2
) -> str:
    """The identity, from the words of the specification alone."""
    rows = ",".join(
        f'{json.dumps(name, ensure_ascii=False)}:"{hashlib.sha256(contents[name]).hexdigest()}"'
        for name in sorted(contents, key=str.encode)
    )
    more = f',"role":{role},"schema":"{hashlib.sha256(schema).hexdigest()}"' if version == 2 else ""
    text = '{"entries":{' + rows + '},"leaf":"sha256"' + more + f',"v":{version}}}'
    return hashlib.sha256(text.encode()).hexdigest()


EMPTY_SCHEMA = hashlib.sha256(b"{}").hexdigest().encode()


class TestComputing:
    """One number for one content."""

    def test_the_identity_is_that_of_the_specification(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", CONTENTS)
        identity = compute_identity(path)
        assert identity.digest == by_hand(CONTENTS)
        assert Identity(identity.entries).digest == by_hand(CONTENTS, version=1)
        assert (identity.version, Identity(identity.entries).version) == (2, 1)
        assert str(identity) == identity.digest
        assert hashlib.sha256(identity.text).hexdigest() == identity.digest

    def test_an_empty_file_has_the_identity_of_nothing(self) -> None:
        assert compute_identity(HandMade([]).to_bytes()).digest == by_hand({})

    @pytest.mark.parametrize("reverse", [False, True])
    def test_codec_alignment_and_order_do_not_matter(self, tmp_path: Path, reverse: bool) -> None:
        contents = dict(reversed(CONTENTS.items())) if reverse else CONTENTS
        for codec, alignment in itertools.product(("none", "zstd", "zstd:19", "lz4"), (0, 16, 64)):
            path = write_shard(
                tmp_path / "a.shard", contents, compression=codec, alignment=alignment, role=200
            )
            assert compute_identity(path).digest == by_hand(CONTENTS, 200)

    def test_role_and_schema_matter_from_version_2_on(self, tmp_path: Path) -> None:
        for role, schema, text in (
            (0, {}, b"{}"),
            (200, {}, b"{}"),
            (0, {"x": 30.0, "a": "ü"}, '{"a":"ü","x":30}'.encode()),
        ):
            path = write_shard(
                tmp_path / "a.shard", CONTENTS, role=role, schema=schema, identity=True
            )
            identity = verify_identity(path)
            assert identity.digest == by_hand(CONTENTS, role, text)
            assert verify_identity(path, by_hand(CONTENTS, version=1)).version == 1

    @pytest.mark.parametrize(
        ("schema", "canonical"),
        [(b' {"b": 1.50,\n"a":"\\u00fc"}\n', '{"a":"ü","b":1.5}'.encode()), (b"{ }", b"{}")],
    )
    def test_the_form_of_the_schema_does_not_matter(self, schema: bytes, canonical: bytes) -> None:
        data = HandMade([Row(b"a", b"1")], schema=schema).to_bytes()
        assert compute_identity(data).digest == by_hand({"a": b"1"}, 0, canonical)

    def test_tags_are_part_of_the_schema_that_a_writer_covers(self, tmp_path: Path) -> None:
        with ShardWriter(tmp_path / "a.shard", identity=True, fsync=False) as writer:
            writer.write_entry("a", b"1", tags=["train"], metadata={"shape": [1]})
            writer.schema.fields["late"] = True
        assert verify_identity(tmp_path / "a.shard").version == 2

    def test_layout_and_the_stored_identity_do_not_matter(self, tmp_path: Path) -> None:
        options: list[dict[str, Any]] = [
            {"identity": True},
            {"reserve": 9},
            {"reserve": list(CONTENTS), "identity": True},
        ]
        for chosen in options:
            path = write_shard(tmp_path / "a.shard", CONTENTS, **chosen)
            assert compute_identity(path).digest == by_hand(CONTENTS)

    @pytest.mark.parametrize("change", ["content", "name", "more", "less", "swap"])
    def test_any_change_of_names_or_contents_matters(self, tmp_path: Path, change: str) -> None:
        contents = dict(CONTENTS)
        if change == "content":
            contents["b/text"] += b"\0"
        elif change == "name":
            contents["B/text"] = contents.pop("b/text")
        elif change == "more":
            contents["x"] = b""
        elif change == "less":
            del contents["empty"]
        else:
            contents["ü 😀"], contents['quo"te\\\n'] = b"2", b"1"
        path = write_shard(tmp_path / "a.shard", contents)
        assert compute_identity(path).digest != by_hand(CONTENTS)

    def test_a_damaged_entry_has_no_identity(self) -> None:
        data = HandMade([Row(b"a", b"data", crc=1)]).to_bytes()
        with pytest.raises(ChecksumMismatch):
            compute_identity(data)

    def test_a_damaged_schema_has_no_identity_but_of_version_1(self) -> None:
        data = HandMade([Row(b"a", b"1")], schema=b"{").to_bytes()
        with pytest.raises(BadMetadata, match="S-SCH-2"):
            compute_identity(data)
        assert verify_identity(data, by_hand({"a": b"1"}, version=1)).version == 1

    def test_progress_rises_to_the_total(self, tmp_path: Path) -> None:
        contents = {str(number): noise(1_500_000, number) for number in range(4)}
        path = write_shard(tmp_path / "a.shard", contents)
        seen: list[tuple[int, int]] = []
        compute_identity(path, progress=lambda done, total: seen.append((done, total)))
        done = [step[0] for step in seen]
        assert {step[1] for step in seen} == {6_000_000}
        assert done == sorted(done)
        assert done[-1] == 6_000_000


class TestVerifying:
    """Against what the file says, or what the caller knows."""

    def test_a_file_that_carries_its_identity_verifies(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", CONTENTS, identity=True)
        assert verify_identity(path).digest == by_hand(CONTENTS)
        with ShardReader(path) as reader:
            stored = stored_identity(reader)
            assert stored is not None
            assert stored == compute_identity(reader)

    def test_an_identity_may_be_as_long_as_its_file_has_entries(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shard"
        with ShardWriter(path, identity=True, fsync=False) as writer:
            for number in range(200):
                writer.write_entry(f"{number}\1", b"")
        with ShardReader(path, limits=Limits(max_json_bytes=1000, max_json_nodes=100)) as reader:
            assert len(verify_identity(reader).entries) == 200

    @pytest.mark.parametrize("form", ["digest", "Identity"])
    def test_an_identity_from_elsewhere_verifies(self, tmp_path: Path, form: str) -> None:
        path = write_shard(tmp_path / "a.shard", CONTENTS)
        identity = compute_identity(path)
        expected = identity.digest if form == "digest" else identity
        assert verify_identity(path, expected) == identity

    @pytest.mark.parametrize(
        ("change", "entry", "problem"),
        [
            ({"b": b"x", "c": b"x"}, "b", "other content"),
            ({"b": None, "c": b"x"}, "b", "missing"),
            ({"bb": b"new", "c": b"x"}, "bb", "was not there"),
            ({"a": None}, "a", "missing"),
        ],
    )
    def test_the_first_difference_in_the_order_of_names_is_named(
        self, change: dict[str, bytes | None], entry: str, problem: str
    ) -> None:
        before = {"c": b"3", "b": b"2", "a": b"1"}
        rows = [Row(name.encode(), data) for name, data in before.items()]
        identity = compute_identity(HandMade(rows).to_bytes())
        after = {name: data for name, data in {**before, **change}.items() if data is not None}
        rows = [Row(name.encode(), data) for name, data in after.items()]
        changed = HandMade(rows).to_bytes()
        with pytest.raises(IdentityMismatch, match=problem) as caught:
            verify_identity(changed, identity)
        assert caught.value.entry == entry
        assert caught.value.rule == "S-IDN-2"
        rows.append(Row(b"meta/identity", identity.text))
        with pytest.raises(IdentityMismatch, match=problem) as caught:
            verify_identity(HandMade(rows).to_bytes())
        assert caught.value.entry == entry

    def test_a_digest_that_differs_shows_both(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", CONTENTS)
        with pytest.raises(IdentityMismatch) as caught:
            verify_identity(path, "0" * 64)
        assert caught.value.expected == "0" * 64
        assert caught.value.found == f"{by_hand(CONTENTS)} (version 2)"
        assert caught.value.path == str(path)

    def test_a_file_that_lies_about_itself_fails_also_when_the_digest_fits(self) -> None:
        content = Row(b"a", b"1")
        wrong = Row(b"meta/identity", Identity({"a": "0" * 64}).text)
        data = HandMade([content, wrong]).to_bytes()
        with pytest.raises(IdentityMismatch):
            verify_identity(data, by_hand({"a": b"1"}))

    @pytest.mark.parametrize("form", ["stored", "digest", "Identity"])
    def test_an_identity_of_version_1_verifies_and_says_so(self, form: str) -> None:
        old = Identity({"a": hashlib.sha256(b"1").hexdigest()})
        rows = [Row(b"a", b"1")]
        if form == "stored":
            rows.append(Row(b"meta/identity", old.text))
        expected = {"stored": None, "digest": old.digest, "Identity": old}[form]
        for role, schema in ((0, b""), (7, b'{"x":1}')):
            data = HandMade(rows, role=role, schema=schema).to_bytes()
            assert verify_identity(data, expected) == old
            assert verify_identity(data, expected).version == 1

    def test_digits_of_a_known_version_are_compared_with_no_other(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", CONTENTS)
        for version in (1, 2):
            digest = by_hand(CONTENTS, version=version)
            assert verify_identity(path, digest, version=version).version == version
            with pytest.raises(IdentityMismatch):
                verify_identity(path, digest, version=3 - version)
            with pytest.raises(InvalidArgument, match="1 or 2"):
                verify_identity(path, digest, version=3)

    @pytest.mark.parametrize("stored", [False, True], ids=["expected", "stored"])
    @pytest.mark.parametrize(
        ("role", "schema", "what"),
        [(1, b'{"x":1}', "role"), (0, b'{"x":2}', "schema"), (0, b"", "schema")],
    )
    def test_a_changed_role_or_schema_is_named(
        self, role: int, schema: bytes, what: str, stored: bool
    ) -> None:
        row = Row(b"a", b"1")
        identity = compute_identity(HandMade([row], schema=b'{"x":1}').to_bytes())
        rows = [row, Row(b"meta/identity", identity.text)] if stored else [row]
        data = HandMade(rows, role=role, schema=schema).to_bytes()
        with pytest.raises(IdentityMismatch, match=f"the {what}") as caught:
            verify_identity(data, None if stored else identity)
        assert (caught.value.rule, caught.value.entry) == ("S-IDN-2", None)

    @pytest.mark.parametrize("version", [0, 3, -1, 10**50])
    def test_an_unknown_version_is_refused(self, version: int) -> None:
        text = b'{"entries":{},"leaf":"sha256","v":%d}' % version
        data = HandMade([Row(b"meta/identity", text)]).to_bytes()
        with pytest.raises(UnsupportedVersion, match="1 or 2") as caught:
            verify_identity(data)
        assert (caught.value.rule, caught.value.entry) == ("S-IDN-4", "meta/identity")

    def test_a_file_without_an_identity_needs_an_expected_one(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", CONTENTS)
        with pytest.raises(InvalidArgument, match="pass the expected identity"):
            verify_identity(path)

    @pytest.mark.parametrize("wrong", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 63 + "\n"])
    def test_what_is_no_digest_is_refused(self, tmp_path: Path, wrong: str) -> None:
        path = write_shard(tmp_path / "a.shard", CONTENTS)
        with pytest.raises(InvalidArgument, match="64 lower-case hex digits"):
            verify_identity(path, wrong)

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"[]",
            b"{}",
            b'{"entries":[],"leaf":"sha256","v":1}',
            b'{"entries":{"a":"xyz"},"leaf":"sha256","v":1}',
            b'{"entries":{"a":5},"leaf":"sha256","v":1}',
            b'{"entries":{"meta/identity":"%s"},"leaf":"sha256","v":1}' % (b"0" * 64),
            b'{"entries":{},"leaf":"sha256","v":2}',
            b'{"entries":{},"leaf":"sha1","v":1}',
            b'{"entries":{}, "leaf":"sha256","v":1}',
            b'{"entries":{},"leaf":"sha256","v":1}\n',
            b'{"entries":{},"extra":1,"leaf":"sha256","v":1}',
            b'{"entries":{},"leaf":"sha256","v":true}',
            b'{"entries":{},"leaf":"sha256","v":2.0}',
            b'{"entries":{},"leaf":"sha256","role":0,"schema":"%s","v":1}' % EMPTY_SCHEMA,
            b'{"entries":{},"leaf":"sha256","role":false,"schema":"%s","v":2}' % EMPTY_SCHEMA,
            b'{"entries":{},"leaf":"sha256","role":null,"schema":"%s","v":2}' % EMPTY_SCHEMA,
            b'{"entries":{},"leaf":"sha256","role":0,"schema":{},"v":2}',
        ],
        ids=lambda text: repr(text[:40]),
    )
    def test_a_stored_identity_that_is_not_the_canonical_text_is_refused(self, text: bytes) -> None:
        data = HandMade([Row(b"meta/identity", text)]).to_bytes()
        with pytest.raises(IdentityMismatch) as caught:
            verify_identity(data)
        assert caught.value.rule == "S-IDN-1"
        assert caught.value.entry == "meta/identity"
