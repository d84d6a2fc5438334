"""The schema section (spec/shard.md, section 9)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import Limits, Schema, ShardReader
from shard_format.errors import BadMetadata, LimitExceeded
from tests.shard_format.support import HandMade, Row, write_shard

if TYPE_CHECKING:
    from pathlib import Path

ALL_FIELDS: dict[str, Any] = {
    "schema_version": "shard-v2.1",
    "producer": "test",
    "tags": ["a", "b"],
    "tag_dictionary": ["train", "hard"],
    "entry_metadata": {"x": {"content_type": "json", "unknown": [1, {"deep": None}]}},
    "x-unknown": {"ü": [True, 1.5, "😀"]},
}


def with_schema(text: bytes) -> ShardReader:
    """A reader of a file with this schema section and one entry."""
    return ShardReader(HandMade([Row(b"a", b"1")], schema=text).to_bytes())


class TestReading:
    """On request, strictly, and without hiding entries."""

    def test_a_file_without_one_has_none(self) -> None:
        assert ShardReader(HandMade([]).to_bytes()).schema is None

    def test_unknown_fields_survive_reading_and_writing(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", {"x": b""}, schema=ALL_FIELDS)
        first = ShardReader(path).schema
        assert first is not None
        assert first.fields == ALL_FIELDS
        again = write_shard(tmp_path / "b.shard", {"x": b""}, schema=first)
        assert again.read_bytes() == path.read_bytes()

    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            (b"[]", "S-SCH-2"),
            (b"{", "S-SCH-2"),
            (b'{"a":1}x', "S-SCH-2"),
            (b'{"a":NaN}', "S-SCH-2"),
            (b'{"a":1,"a":1}', "S-SCH-2"),
            (b'{"tags":"x"}', "S-SCH-4"),
            (b'{"tags":[1]}', "S-SCH-4"),
            (b'{"tag_dictionary":{}}', "S-SCH-4"),
            (b'{"tag_dictionary":[null]}', "S-SCH-4"),
            (b'{"tag_dictionary":[%s]}' % b",".join([b'"x"'] * 17), "S-SCH-4"),
            (b'{"entry_metadata":[]}', "S-SCH-4"),
            (b'{"entry_metadata":{"a":1}}', "S-SCH-4"),
        ],
    )
    def test_a_bad_section_is_refused_and_entries_stay_readable(
        self, text: bytes, rule: str
    ) -> None:
        reader = with_schema(text)
        with pytest.raises(BadMetadata) as caught:
            _ = reader.schema
        assert caught.value.rule == rule
        assert caught.value.path == "<bytes>"
        assert reader["a"] == b"1"
        with pytest.raises(BadMetadata):
            reader.verify()

    def test_null_stands_for_an_absent_field(self) -> None:
        schema = with_schema(b'{"entry_metadata":null,"tag_dictionary":null,"tags":null}').schema
        assert schema is not None
        assert schema.tag_dictionary == []
        assert schema.entry_metadata == {}

    @pytest.mark.parametrize("offset", [1, 64, 127, 10_000])
    def test_a_section_outside_its_place_is_refused(self, offset: int) -> None:
        data = bytearray(HandMade([Row(b"a", b"1")], schema=b"{}").to_bytes())
        data[32:40] = offset.to_bytes(8, "little")
        reader = ShardReader(bytes(data))
        with pytest.raises(BadMetadata, match="S-SCH-1"):
            _ = reader.schema
        assert reader["a"] == b"1"

    def test_a_section_that_overlaps_a_block_is_refused(self) -> None:
        data = bytearray(HandMade([Row(b"a", b'{"a":1}')]).to_bytes())
        data[32:40] = (128).to_bytes(8, "little")
        with pytest.raises(BadMetadata, match="S-SCH-1"):
            _ = ShardReader(bytes(data)).schema

    def test_the_limit_of_the_section_is_kept(self) -> None:
        data = HandMade([], schema=b'{"a":"%s"}' % (b"x" * 100)).to_bytes()
        reader = ShardReader(data, limits=Limits(max_json_bytes=107))
        with pytest.raises(LimitExceeded, match="S-SCH-7"):
            _ = reader.schema
        assert ShardReader(data, limits=Limits(max_json_bytes=108)).schema is not None

    def test_flags_do_not_decide_whether_there_is_a_section(self) -> None:
        for flags in (0x22, 0x32):
            assert (
                ShardReader(HandMade([], schema=b"{}", flags=flags).to_bytes()).schema == Schema()
            )
            assert ShardReader(HandMade([], flags=flags).to_bytes()).schema is None


class TestValues:
    """The Schema object."""

    def test_tags_are_named_by_their_bits(self) -> None:
        schema = Schema({"tag_dictionary": ["a", "b", "c"]})
        assert schema.tags(0) == []
        assert schema.tags(0b101) == ["a", "c"]
        assert schema.tags(0x8002) == ["b", "bit 15"]

    def test_the_text_is_canonical(self) -> None:
        assert Schema({"b": 30.0, "a": [1, "ü"]}).to_bytes() == '{"a":[1,"ü"],"b":30}'.encode()

    def test_schemas_compare_by_their_fields(self) -> None:
        assert Schema({"a": 1}) == Schema({"a": 1})
        assert Schema({"a": 1}) != Schema({"a": 2})
        assert Schema() != {}
        assert "'a': 1" in repr(Schema({"a": 1}))
        with pytest.raises(TypeError):
            hash(Schema())

    def test_the_schema_id_is_that_of_the_specification(self) -> None:
        schema = Schema(
            {
                "tag_dictionary": ["train", "ü"],
                "entry_metadata": {
                    "z": {"semantic_type": "reward"},
                    "a": {"content_type": "json", "semantic_type": "text", "other": 1},
                    "Z": {},
                    "é": {"content_type": "blob"},
                },
            }
        )
        hashed = b"train\0\xc3\xbc\0Z\0\0\0a\0json\0text\0z\0\0reward\0\xc3\xa9\0blob\0\0"
        assert schema.schema_id() == hashlib.sha256(hashed).hexdigest()[:16]

    def test_known_schema_ids(self) -> None:
        """SHA-256 of nothing, and of `a NUL`, computed with sha256sum."""
        assert Schema().schema_id() == "e3b0c44298fc1c14"
        assert (
            Schema({"tag_dictionary": ["a"]}).schema_id() == "ffe9aaeaa2a2d5048174df0b80599ef0"[:16]
        )
