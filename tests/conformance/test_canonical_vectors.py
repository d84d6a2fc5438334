"""The library's writers against spec/vectors/canonical and primitives.json: the same bytes as every other language."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from shard_format import ShardReader, compute_identity
from shard_format.canonical_json import canonical, parse
from shard_format.errors import BadMetadata
from shard_format.registry import DEFAULT_LIMITS
from tests.conformance.recording import record
from tests.conformance.writing import write
from tests.each import for_each
from wshard._values import regular_times

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
CASES = sorted((VECTORS / "canonical").glob("*.json"))
PRIMITIVES: dict[str, Any] = json.loads((VECTORS / "primitives.json").read_text("utf-8"))


def test_there_are_as_many_cases_as_promised() -> None:
    for kind, least in (("container", 40), ("episode", 40), ("pack", 9), ("recording", 7)):
        assert sum(path.stem.startswith(kind) for path in CASES) >= least


@for_each("path", CASES)
def test_a_writer_gives_the_stated_file(path: Path, tmp_path: Path) -> None:
    case = json.loads(path.read_text("utf-8"))
    out = tmp_path / "out"
    if case["kind"] == "recording":
        assert hashlib.sha256(record(case, out)).hexdigest() == case["journal_sha256"]
    else:
        write(case, out)
    if case["kind"] != "pack":
        assert_container(out, case)
    if "sha256" in case:
        data = out.read_bytes()
        assert len(data) == int(case["size"])
        assert hashlib.sha256(data).hexdigest() == case["sha256"]


def assert_container(out: Path, case: dict[str, Any]) -> None:
    with ShardReader(out) as reader:
        assert compute_identity(reader).digest == case["identity"]
        if "stored" in case:
            found = [
                {
                    "content_type": str(info.content_type),
                    "crc32c": f"{info.crc32c:08x}",
                    "name": info.name,
                    "orig_size": str(info.size),
                    "tag_bits": str(info.tag_bits),
                }
                for info in reader.infos()
            ]
            assert found == case["stored"]


def test_numbers_are_written_as_every_language_writes_them() -> None:
    for case in PRIMITIVES["numbers"]:
        (value,) = struct.unpack(">d", bytes.fromhex(case["bits"]))
        assert canonical(value).decode() == case["canonical"]


def test_strings_and_keys_are_written_as_every_language_writes_them() -> None:
    for case in PRIMITIVES["json_strings"]:
        assert canonical(case["value"]).hex() == case["canonical_hex"]
    keys = PRIMITIVES["json_keys_in_order"]
    text = canonical(dict.fromkeys(reversed(keys), 0)).decode()
    assert list(json.loads(text)) == keys


def test_numbers_are_read_as_their_text_says() -> None:
    for case in PRIMITIVES["json_numbers"]:
        value = parse(case["text"].encode(), "a number", DEFAULT_LIMITS)
        if "integer" in case:
            assert type(value) is int
            assert str(value) == case["integer"]
        else:
            assert type(value) is float
            assert struct.pack(">d", value).hex() == case["bits"]
    for text in PRIMITIVES["json_numbers_refused"]:
        with pytest.raises(BadMetadata):
            parse(text.encode(), "a number", DEFAULT_LIMITS)


def test_the_times_of_steps_are_the_same_nanoseconds_everywhere() -> None:
    for case in PRIMITIVES["step_times"]:
        (time,) = regular_times(1, case["rate_hz"], 0, int(case["step"]))
        assert int(time) == int(case["nanoseconds"]), case
