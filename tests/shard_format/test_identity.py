"""Identities: the same for the same content, whatever the file looks like (spec/shard.md, section 12)."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import Identity, ShardReader, compute_identity, verify_identity
from shard_format.errors import ChecksumMismatch, IdentityMismatch, InvalidArgument
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


def by_hand(contents: dict[str, bytes]) -> str:
    """The identity, from the words of the specification alone."""
    rows = ",".join(
        f'{json.dumps(name, ensure_ascii=False)}:"{hashlib.sha256(contents[name]).hexdigest()}"'
        for name in sorted(contents, key=str.encode)
    )
    text = '{"entries":{' + rows + '},"leaf":"sha256","v":1}'
    return hashlib.sha256(text.encode()).hexdigest()


class TestComputing:
    """One number for one content."""

    def test_the_identity_is_that_of_the_specification(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", CONTENTS)
        identity = compute_identity(path)
        assert identity.digest == by_hand(CONTENTS)
        assert str(identity) == identity.digest
        assert hashlib.sha256(identity.text).hexdigest() == identity.digest

    def test_an_empty_file_has_the_identity_of_nothing(self) -> None:
        assert compute_identity(HandMade([]).to_bytes()).digest == by_hand({})

    @pytest.mark.parametrize("reverse", [False, True])
    def test_codec_alignment_and_order_do_not_matter(self, tmp_path: Path, reverse: bool) -> None:
        contents = dict(reversed(CONTENTS.items())) if reverse else CONTENTS
        for codec, alignment, role in itertools.product(
            ("none", "zstd", "zstd:19", "lz4"), (0, 16, 64), (0, 200)
        ):
            path = write_shard(
                tmp_path / "a.shard", contents, compression=codec, alignment=alignment, role=role
            )
            assert compute_identity(path).digest == by_hand(CONTENTS)

    def test_schema_layout_and_the_stored_identity_do_not_matter(self, tmp_path: Path) -> None:
        options: list[dict[str, Any]] = [
            {"identity": True},
            {"schema": {"x": 1}},
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
        assert caught.value.found == by_hand(CONTENTS)
        assert caught.value.path == str(path)

    def test_a_file_that_lies_about_itself_fails_also_when_the_digest_fits(self) -> None:
        content = Row(b"a", b"1")
        wrong = Row(b"meta/identity", Identity({"a": "0" * 64}).text)
        data = HandMade([content, wrong]).to_bytes()
        with pytest.raises(IdentityMismatch):
            verify_identity(data, by_hand({"a": b"1"}))

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
        ],
        ids=lambda text: repr(text[:40]),
    )
    def test_a_stored_identity_that_is_not_the_canonical_text_is_refused(self, text: bytes) -> None:
        data = HandMade([Row(b"meta/identity", text)]).to_bytes()
        with pytest.raises(IdentityMismatch) as caught:
            verify_identity(data)
        assert caught.value.rule == "S-IDN-1"
        assert caught.value.entry == "meta/identity"
