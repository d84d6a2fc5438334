"""The library's shards against spec/vectors: read in every way, refused when and as stated, written again."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xxhash import xxh64_intdigest

import shardpack
from shard_format import ShardError
from shardpack import Record, ShardPackReader, ShardPackWriter
from tests.conformance.program import step_in_pack
from tests.conformance.telling import tagged
from tests.each import for_each
from tests.shardpack.support import RangesOnly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
VALID = sorted((VECTORS / "valid_packs").glob("*.json"))
INVALID = sorted((VECTORS / "invalid_packs").glob("*.json"))
# Ways to open a shard at random; what they give must not differ.
OPENINGS: dict[str, Callable[[Path], ShardPackReader]] = {
    "mapped": ShardPackReader,
    "bytes": lambda path: ShardPackReader(path.read_bytes()),
    "ranges": lambda path: ShardPackReader(RangesOnly(path.read_bytes())),
}


def load(description: Path) -> tuple[dict[str, Any], Path]:
    case: dict[str, Any] = json.loads(description.read_text("utf-8"))
    return case, description.parent / case["file"]


def with_step(*steps: str) -> list[Path]:
    return [path for path in INVALID if load(path)[0]["when"] in steps]


def canonical(*how: str) -> list[Path]:
    return [path for path in VALID if load(path)[0].get("canonical") in how]


def test_there_are_as_many_vectors_as_promised() -> None:
    assert len(VALID) >= 25
    assert len(INVALID) >= 100
    steps = {load(path)[0]["when"] for path in INVALID}
    index = {"offsets", "lookup", "index_metadata", "key"}
    assert steps == {"open", "record", "metadata", "entry", "stream"} | index
    assert len(canonical("write")) >= 15
    assert len(canonical("copy")) >= 4


# --- what is read, as the JSON of a vector says it


def metadata_of(record: Record) -> object:
    is_messagepack = record.stored_metadata[0].name == "MESSAGEPACK"
    return tagged(record.metadata) if is_messagepack else record.metadata


def told(record: Record, *, list_entries: bool) -> dict[str, Any]:
    """All that the JSON of a vector says about a record."""
    entries = [
        {
            "content_type": entry.content_type,
            "crc32c": f"{entry.crc32c:08x}",
            "encoding": entry.compression,
            "name": entry.name,
            "offset": str(entry.offset),
            "original_size": str(entry.size),
            "sha256": hashlib.sha256(entry.data).hexdigest(),
            "stored_size": str(entry.stored_size),
        }
        for entry in record.file_entries()
    ]
    found: dict[str, Any] = {
        "alignment": str(record.alignment),
        "key": record.key,
        "key_hash": f"{xxh64_intdigest(record.key.encode()):016x}",
        "metadata": metadata_of(record),
        "metadata_encoding": record.stored_metadata[0].name.lower(),
        "offset": str(record.offset),
        "size": str(record.size),
    }
    if list_entries:
        return found | {"entries": entries}
    lines = "".join(f"{entry['name']}\t{entry['sha256']}\n" for entry in entries)
    return found | {"entries_sha256": hashlib.sha256(lines.encode()).hexdigest()}


def assert_records(records: Iterable[Record], expected: list[dict[str, Any]]) -> None:
    found = list(records)
    assert len(found) == len(expected)
    for record, stated in zip(found, expected, strict=True):
        case = dict(stated)
        if "metadata_text" in case:
            case["metadata"] = json.loads(case.pop("metadata_text"))
        assert told(record, list_entries="entries" in case) == case
        # Two paths through the library: all at once, and entry by entry.
        views = {entry.name: bytes(entry.data) for entry in record.file_entries()}
        assert record.read_all() == views
        assert list(record) == list(record.names) == list(views)
        assert all(record[name].read() == views[name] for name in record)


class TestValid:
    @pytest.mark.parametrize("opening", OPENINGS)
    @for_each("description", VALID)
    def test_every_way_at_random_gives_what_is_stated(
        self, description: Path, opening: str
    ) -> None:
        case, path = load(description)
        records = case["records"]
        with OPENINGS[opening](path) as reader:
            assert len(reader) == len(records)
            assert str(reader.footer.index_offset) == case["index_offset"]
            assert reader.metadata == case["metadata"]
            assert [str(start) for start in reader.get_index()] == [r["offset"] for r in records]
            assert_records((reader.record(number) for number in range(len(reader))), records)
            assert_records(reader.records(), records)
            assert_records((reader.by_key(record["key"]) for record in records), records)
            assert_records(
                (reader.read_record_at_offset(int(record["offset"])) for record in records),
                records,
            )
            backwards = [*range(len(records))][::-1]
            assert_records(reader.take(backwards), records[::-1])
            assert list(reader.keys()) == [record["key"] for record in records]

    @pytest.mark.parametrize("opening", OPENINGS)
    @for_each("description", VALID)
    def test_keys_that_are_not_there_are_not_found(self, description: Path, opening: str) -> None:
        case, path = load(description)
        assert case["absent_keys"]
        with OPENINGS[opening](path) as reader:
            for key in case["absent_keys"]:
                assert key not in reader
                with pytest.raises(ShardError) as caught:
                    reader.by_key(key)
                assert caught.value.code == "entry_not_found"
            for number, record in enumerate(case["records"]):
                assert reader.find(record["key"]) == number

    @for_each("description", VALID)
    def test_a_stream_gives_the_same(self, description: Path) -> None:
        case, path = load(description)
        assert_records(shardpack.stream(path), case["records"])
        assert_records(shardpack.stream(io.BytesIO(path.read_bytes())), case["records"])

    @for_each("description", VALID)
    def test_a_data_set_of_the_shard_twice_gives_it_twice(self, description: Path) -> None:
        case, path = load(description)
        records = case["records"] * 2
        with shardpack.open([path, path]) as dataset:
            assert_records(dataset, records)
            assert_records(dataset.take(range(len(records))), records)
            for record in case["records"]:
                with pytest.raises(ShardError) as caught:
                    dataset[record["key"]]
                assert caught.value.code == "duplicate_name"

    @for_each("description", VALID)
    def test_recovery_loses_nothing(self, description: Path, tmp_path: Path) -> None:
        case, path = load(description)
        result = shardpack.recover(path, tmp_path / "out.shardpack", fsync=False)
        assert (result.records, result.lost) == (len(case["records"]), ())
        assert result.had_index
        with ShardPackReader(tmp_path / "out.shardpack") as reader:
            assert_same_contents(reader, path)


def assert_same_contents(reader: ShardPackReader, path: Path) -> None:
    """As in another shard, but for where things stand."""
    with ShardPackReader(path) as other:
        for record, expected in zip(reader, other, strict=True):
            assert record.key == expected.key
            assert record.read_all() == expected.read_all()
            assert record.content_types == expected.content_types
            if expected.metadata:
                assert metadata_of(record) == metadata_of(expected)
            else:  # none, or an object without fields: writers have one form for both
                assert record.stored_metadata[1] == b""


def is_written(description: Path) -> bool:
    """MessagePack is read, and copied, but no longer written."""
    records = load(description)[0]["records"]
    return all(record["metadata_encoding"] != "messagepack" for record in records)


@for_each("description", [path for path in canonical("write") if is_written(path)])
def test_the_writer_gives_the_same_bytes(description: Path, tmp_path: Path) -> None:
    case, path = load(description)
    alignments = {record["alignment"] for record in case["records"]}
    assert len(alignments) < 2
    with (
        ShardPackReader(path) as reader,
        ShardPackWriter(
            tmp_path / "out.shardpack",
            alignment=int(*alignments or ("8",)),
            metadata=case["metadata"]["user"],
            created=case["metadata"]["created"],
            fsync=False,
        ) as writer,
    ):
        for record in reader:
            types = dict(zip(record.names, record.content_types, strict=True))
            writer.write(record.key, record.read_all(), record.metadata, content_types=types)
    assert (tmp_path / "out.shardpack").read_bytes() == path.read_bytes()


@for_each("description", canonical("write", "copy"))
def test_a_copy_has_the_same_bytes(description: Path, tmp_path: Path) -> None:
    """Entries keep their encoding, so that this holds with every version of a codec."""
    case, path = load(description)
    with (
        ShardPackReader(path) as reader,
        ShardPackWriter(
            tmp_path / "out.shardpack",
            alignment=reader[0].alignment if len(reader) else 8,
            metadata=case["metadata"]["user"],
            created=case["metadata"]["created"],
            fsync=False,
        ) as writer,
    ):
        for record in reader:
            writer.copy(record)
    assert (tmp_path / "out.shardpack").read_bytes() == path.read_bytes()


# --- what is refused


def assert_reason(error: ShardError, case: dict[str, Any], also: Iterable[str] = ()) -> None:
    if error.code in also:
        return  # a code that needs no rule
    assert error.code in {case["error"], *case.get("also", ())}, str(error)
    assert error.rule in {case["rule"], *case.get("rules_also", ())} or "also" in case, str(error)
    assert str(error.rule) in str(error)


@pytest.mark.parametrize("opening", OPENINGS)
@for_each("description", INVALID)
def test_a_broken_rule_is_noticed_when_stated_and_not_before(
    description: Path, opening: str
) -> None:
    case, path = load(description)
    if case["when"] in {"open", "stream"}:
        with pytest.raises(ShardError) as caught, OPENINGS[opening](path) as reader:
            # Of a file that has an end, random access may see as late as at its records.
            _ = [record.key for record in reader]
        if case["when"] == "stream":
            return
    else:
        with OPENINGS[opening](path) as reader:
            with pytest.raises(ShardError) as caught:
                step_in_pack(reader, case)
            with pytest.raises(ShardError) as again:
                step_in_pack(reader, case)
            assert again.value.code == caught.value.code
    assert_reason(caught.value, case)
    name = {"mapped": str(path), "bytes": "<bytes>", "ranges": "<ranges>"}[opening]
    assert name in str(caught.value)
    if case["when"] == "entry":
        assert caught.value.entry == case["entry"]


@for_each("description", with_step("open"))
@pytest.mark.parametrize("opening", OPENINGS)
def test_what_is_noticed_at_opening_is_noticed_by_opening_alone(
    description: Path, opening: str
) -> None:
    case, path = load(description)
    with pytest.raises(ShardError) as caught:
        OPENINGS[opening](path)
    assert_reason(caught.value, case)


@pytest.mark.parametrize("opening", OPENINGS)
@for_each("description", with_step("entry"))
def test_every_way_to_an_entry_refuses_it(description: Path, opening: str) -> None:
    case, path = load(description)
    number = int(case["record"])
    with (
        OPENINGS[opening](path) as reader,
        contextlib.closing(io.BytesIO(path.read_bytes())) as file,
    ):
        for read in (
            lambda: reader.record(number).read_all(),
            lambda: reader.take([number])[0].read_all(),
            lambda: reader.record(number)[case["entry"]].read(),
            lambda: reader.record(number).decode(),
            lambda: list(shardpack.stream(file))[number].read_all(),
        ):
            with pytest.raises(ShardError) as caught:
                read()
            assert_reason(caught.value, case)


@pytest.mark.parametrize("opening", OPENINGS)
@for_each("description", with_step("record"))
def test_every_way_to_a_record_refuses_it(description: Path, opening: str) -> None:
    case, path = load(description)
    number = int(case["record"])
    with OPENINGS[opening](path) as reader:
        for read in (
            lambda: reader.take([number])[0].key,
            lambda: [record.key for record in reader.records(number)],
            lambda: list(reader.keys()),
        ):
            with pytest.raises(ShardError) as caught:
                read()
            assert_reason(caught.value, case)


def test_the_length_of_an_entry_that_lies_is_an_error_of_the_house() -> None:
    for name in ("raw_original_size_largest", "zstd_size_largest"):
        case, path = load(VECTORS / "invalid_packs" / f"{name}.json")
        with ShardPackReader(path) as reader, pytest.raises(ShardError) as caught:
            len(reader.record(1)[case["entry"]])
        assert_reason(caught.value, case)


@pytest.mark.parametrize("opening", OPENINGS)
@for_each("description", with_step("lookup", "index_metadata", "record", "metadata", "entry"))
def test_what_is_not_damaged_stays_readable(description: Path, opening: str) -> None:
    case, path = load(description)
    with OPENINGS[opening](path) as reader:
        if case["when"] != "index_metadata":
            assert reader.metadata["version"] == 1
        if case["when"] not in {"lookup", "record"}:
            assert (reader.find("first"), reader.find("last")) == (0, 2)
        for number in (0, 2):
            assert len(reader.record(number).read_all()) == 1
        if case["when"] in {"metadata", "entry"}:
            record = reader.record(1)
            assert record.key == "bad"
            others = [name for name in record.names if name != case.get("entry")]
            assert all(record[name].read() for name in others)
            if case["when"] == "entry":
                assert others
                assert record.metadata == {}


class TestDamage:
    @for_each("description", INVALID)
    def test_a_stream_gives_the_records_before_and_says_what_is_wrong(
        self, description: Path
    ) -> None:
        case, path = load(description)
        expected = case["stream"]
        for file in (path, io.BytesIO(path.read_bytes())):
            keys: list[str] = []
            error: ShardError | None = None
            try:
                keys.extend(record.key for record in shardpack.stream(file))
            except ShardError as caught:
                error = caught
            codes = {expected["error"], *expected.get("also", ())}
            codes |= set(case.get("also", ())) if expected["error"] else set()
            assert (error and error.code) in codes, str(error)
            if case["when"] == "stream":
                assert error is not None
                assert_reason(error, case, expected.get("also", ()))
            if "also" not in case:
                assert len(keys) == int(expected["records"])

    @for_each("description", INVALID)
    def test_recovery_gives_what_is_whole_and_says_what_is_lost(
        self, description: Path, tmp_path: Path
    ) -> None:
        case, path = load(description)
        out = tmp_path / "out.shardpack"
        expected = case["recovered"]
        result = shardpack.recover(path, out, fsync=False)
        assert result.had_index is expected["had_index"]
        assert result.records == len(expected["keys"])
        lost = [
            {"key": part.key, "offset": str(part.offset), "size": str(part.size)}
            for part in result.lost
        ]
        assert lost == expected["lost"]
        assert all(part.reason for part in result.lost)
        with ShardPackReader(out) as reader:
            assert list(reader.keys()) == expected["keys"]
            assert [reader.find(key) for key in expected["keys"]] == [*range(len(reader))]
            for record in reader:
                record.stored_entries(check=True)
