"""The library against spec/vectors: every valid file says what it says, every invalid one fails as told."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from shard_format import (
    Identity,
    Manifest,
    ShardError,
    ShardReader,
    compute_identity,
)
from shard_format.codecs import crc32c
from shard_format.layout import align
from shard_format.verify import check
from tests.conformance.program import container_step
from tests.each import for_each
from tests.shard_format.support import PlainSource

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
VALID = sorted((VECTORS / "valid").glob("*.json"))
INVALID = sorted((VECTORS / "invalid").glob("*.json"))
EPISODES = (VECTORS / "valid_episodes", VECTORS / "invalid_episodes")

HEADER_FIELDS = (
    "version",
    "role",
    "flags",
    "alignment",
    "compression_default",
    "entry_count",
    "string_table_offset",
    "data_section_offset",
    "schema_offset",
    "total_file_size",
)


def load(description: Path) -> tuple[dict[str, Any], Path]:
    case: dict[str, Any] = json.loads(description.read_text("utf-8"))
    return case, description.parent / case["file"]


def test_there_are_as_many_vectors_as_promised() -> None:
    assert len(VALID) >= 25
    assert len(INVALID) >= 60


def test_primitives_agree() -> None:
    from xxhash import xxh64_intdigest

    primitives = json.loads((VECTORS / "primitives.json").read_text("utf-8"))
    hashed = primitives["hashes_of_ramps"] + primitives["hashes_of_texts"]
    assert len(hashed) > 40
    for case in hashed:
        data = bytes.fromhex(case["input_hex"])
        assert f"{crc32c(data):08x}" == case["crc32c"]
        assert f"{xxh64_intdigest(data):016x}" == case["xxh64"]
    assert len(primitives["align"]) > 20
    for case in primitives["align"]:
        assert align(int(case["offset"]), int(case["alignment"])) == int(case["result"])


def test_the_files_of_episodes_are_valid_containers() -> None:
    files = [path for folder in EPISODES for path in sorted(folder.rglob("*.wshard"))]
    files = [path for path in files if path.is_file()]
    assert len(files) > 100
    for path in files:
        with ShardReader(path) as reader:
            reader.read_many(reader.names())
            profile = {"bad_profile"}  # an episode that is none is still a container
            assert {finding.code for finding in check(reader).errors} <= profile, path


@for_each("description", [*VALID, *INVALID])
def test_a_source_that_is_read_forward_has_the_same_findings(description: Path) -> None:
    case, path = load(description)
    if case.get("when") == "open":
        return
    found = []
    for source in (path, PlainSource(path)):
        with ShardReader(source) as reader:
            found.append([(one.code, one.entry, one.message) for one in check(reader).findings])
    assert found[0] == found[1]


class TestValid:
    @for_each("description", VALID)
    def test_header_and_index_are_as_described(self, description: Path) -> None:
        case, path = load(description)
        with ShardReader(path) as reader:
            found = {field: str(getattr(reader.header, field)) for field in HEADER_FIELDS}
            assert found == case["header"]
            if "entries" not in case:
                return
            assert [info.name for info in reader.infos()] == [e["name"] for e in case["entries"]]
            for number, (info, entry) in enumerate(
                zip(reader.infos(), case["entries"], strict=True)
            ):
                row = reader.index[number]
                assert f"{int(row['name_hash']):016x}" == entry["name_hash"]
                assert f"{int(row['crc32c']):08x}" == entry["crc32c"]
                assert info.codec.label == entry["codec"]
                assert str(info.content_type) == entry["content_type"]
                assert str(info.tag_bits) == entry["tag_bits"]
                assert str(info.data_offset) == entry["data_offset"]
                assert str(info.disk_size) == entry["disk_size"]
                assert str(info.size) == entry["orig_size"]

    @for_each("description", VALID)
    def test_every_way_of_reading_gives_the_described_content(self, description: Path) -> None:
        case, path = load(description)
        with ShardReader(path) as reader:
            names = reader.names()
            contents = reader.read_many(names)
            if "entries_sha256" in case:
                lines = "".join(
                    f"{name}\t{hashlib.sha256(data).hexdigest()}\n"
                    for name, data in zip(names, contents, strict=True)
                )
                assert hashlib.sha256(lines.encode()).hexdigest() == case["entries_sha256"]
                return
            for entry, data in zip(case["entries"], contents, strict=True):
                name = entry["name"]
                assert name in reader
                assert hashlib.sha256(data).hexdigest() == entry["sha256"]
                assert reader.read_entry(name) == data
                assert b"".join(reader.iter_entry(name)) == data
                buffer = bytearray(len(data))
                assert reader.read_into(name, buffer) == len(data)
                assert buffer == data
                if entry["codec"] == "none":
                    assert reader.view(name) == data
                for start, stop in ((0, len(data)), (1, len(data) - 1), (len(data) // 2,) * 2):
                    if 0 <= start <= stop:
                        assert reader.read_range(name, start, stop) == data[start:stop]

    @for_each("description", VALID)
    def test_seek_tables_are_as_described(self, description: Path) -> None:
        case, path = load(description)
        with ShardReader(path) as reader:
            for entry in case.get("entries", ()):
                table = reader.seek_table(entry["name"])
                frames = entry.get("seekable_frames")
                assert (table is None) == (frames is None)
                if table is None or frames is None:
                    continue
                assert len(table) == len(frames)
                data = reader.read_entry(entry["name"])
                position = 0
                for number, frame in enumerate(frames):
                    size = int(frame["decompressed_size"])
                    first = int(table.stored_starts[number])
                    assert int(table.stored_starts[number + 1]) - first == int(
                        frame["compressed_size"]
                    )
                    piece = reader.read_range(entry["name"], position, position + size)
                    assert piece == data[position : position + size]
                    position += size

    @for_each("description", VALID)
    def test_filters_are_as_described(self, description: Path) -> None:
        case, path = load(description)
        with ShardReader(path) as reader:
            for entry in case.get("entries", ()):
                filters = reader.filters(entry["name"])
                if filters is None:
                    assert "filters" not in entry
                    continue
                told = json.loads(filters.description)["filters"]
                found = [{key: str(value) for key, value in one.items()} for one in told]
                assert found == entry["filters"]

    @for_each("description", VALID)
    def test_identity_schema_manifest_and_warnings_are_as_described(
        self, description: Path
    ) -> None:
        case, path = load(description)
        with ShardReader(path) as reader:
            identity = compute_identity(reader)
            assert identity.digest == case["identity_2"]
            assert Identity(identity.entries).digest == case["identity"]
            schema = reader.schema
            assert (None if schema is None else schema.fields) == case.get("schema")
            report = check(reader)
            if "manifest_files" in case:
                rows = [reference.to_fields() for reference in Manifest.read(reader).files]
                assert rows == case["manifest_files"]
        assert [str(error) for error in report.errors] == []
        assert sorted(warning.code for warning in report.warnings) == case["warnings"]


def test_the_identity_in_the_text_of_the_specification_is_that_of_its_vector() -> None:
    text = (VECTORS.parent / "shard.md").read_text(encoding="utf-8")
    _, _, after = text.partition("<!-- identity:hello -->\n```json\n")
    hashed, _, after = after.partition("\n```\n")
    identity = json.loads((VECTORS / "valid" / "hello.json").read_text())["identity_2"]
    assert hashlib.sha256(hashed.encode()).hexdigest() == identity
    assert after.startswith(f"\nand so the identity `{identity}`.")


class TestInvalid:
    @for_each("description", INVALID)
    def test_it_fails_with_the_stated_code_and_names_file_and_rule(self, description: Path) -> None:
        case, path = load(description)
        with pytest.raises(ShardError) as caught:
            container_step(path, case)
        error = caught.value
        assert error.code in {case["error"], *case.get("also", ())}, str(error)
        assert str(path) in str(error)
        if error.code == case["error"] and "also" not in case:
            # Bytes that are no frame at all break two rules: nothing can tell garbage from garbage
            # in front of a frame.
            either = {"S-CMP-4", "S-CMP-5"}
            assert error.rule == case["rule"] or {error.rule, case["rule"]} == either, str(error)

    @for_each("description", INVALID)
    def test_every_other_way_of_reading_agrees(self, description: Path) -> None:
        case, path = load(description)
        if case["when"] != "read":
            return
        codes = {case["error"], *case.get("also", ())}
        with ShardReader(path) as reader:
            name = case["entry"]
            size = min(int(reader.index["orig_size"][reader.names().index(name)]), 1 << 20)
            for read in (
                lambda: b"".join(reader.iter_entry(name)),
                lambda: reader.read_many([name]),
                lambda: reader.read_into(name, bytearray(size)),
                lambda: reader.verify(),
            ):
                with pytest.raises(ShardError) as caught:
                    read()
                assert caught.value.code in {*codes, "invalid_argument"}, str(caught.value)

    @for_each("description", INVALID)
    def test_checking_the_file_finds_it(self, description: Path) -> None:
        case, path = load(description)
        if case["when"] in {"open", "identity"}:
            return
        with ShardReader(path) as reader:
            codes = {finding.code for finding in check(reader).errors}
        # A reader of manifests says what is wrong, a checking tool that the role is not fulfilled.
        profile = {"bad_profile"} if case["when"] == "manifest" else set()
        assert codes & {case["error"], *case.get("also", ()), *profile}, codes

    @for_each("description", INVALID)
    def test_undamaged_neighbours_stay_readable(self, description: Path) -> None:
        case, path = load(description)
        if case["when"] not in {"read", "range", "schema"}:
            return
        with ShardReader(path) as reader:
            for name in reader.names():
                if name != case.get("entry"):
                    reader.read_entry(name)
