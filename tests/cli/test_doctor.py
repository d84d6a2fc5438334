"""`shard doctor`, and what all commands make of the vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_cli.exits import Exit, exit_for
from shard_format import ShardWriter
from tests.each import for_each

if TYPE_CHECKING:
    from tests.cli.conftest import Make, Run

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
# Whole reads of the files for `range` are not specified (spec/vectors/README.md).
INVALID = [
    path
    for path in sorted((VECTORS / "invalid").glob("*.json"))
    if json.loads(path.read_text())["when"] != "range"
]
VALID = sorted((VECTORS / "valid").glob("*.json"))
LARGE = VECTORS / "valid" / "entries_10000.json"


def diagnosis_of(run: Run, path: Path) -> dict[str, Any]:
    document: dict[str, Any] = run("doctor", "--json", path).json["files"][0]
    return document


def test_a_good_file_is_healthy(run: Run, sample: Path) -> None:
    result = run("doctor", sample)
    assert result.code == Exit.OK
    assert "healthy, all 5 entries readable" in result.out
    assert "header:" not in result.out
    assert "header:" in run("doctor", "-v", sample).out


def test_an_error_comes_with_meaning_and_remedy(run: Run, damaged: Path) -> None:
    result = run("doctor", damaged)
    assert result.code == Exit.FINDING
    assert "damaged, 1 of 2 entries readable" in result.out
    assert "error: checksum_mismatch: entry 'signal/text'" in result.out
    assert "means: the bytes are not those that were written" in result.out
    assert "do: restore" in result.out


def test_warnings_do_not_fail_unless_strict(run: Run) -> None:
    path = VECTORS / "valid" / "nonzero_padding.shard"
    result = run("doctor", path)
    assert result.code == Exit.OK
    assert "warning: nonzero_padding: " in result.out
    assert "shard repack" in result.out
    assert run("doctor", "--strict", path).code == Exit.FINDING
    assert "warning" not in run("doctor", "-q", path).out


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [
        (8, 7, "alignment"),
        (10, 47, "index_entry_size"),
        (6, 4, "flags"),
        (12, 3, "entry_count"),
        (16, 99, "string_table_offset"),
        (24, 1, "data_section_offset"),
        (40, 1, "total_file_size"),
    ],
)
def test_the_wrong_header_field_is_shown_and_entries_survive(
    offset: int, value: int, field: str, run: Run, make: Make
) -> None:
    path = make("header.shard", {"a": b"1", "b": b"22"})
    data = bytearray(path.read_bytes())
    data[offset] = value
    path.write_bytes(data)
    result = run("doctor", path)
    assert result.code == Exit.FINDING
    assert "does not open" in result.out
    # A wrong number of entries shows as a string table that does not follow.
    shown = {"entry_count": "string_table_offset"}.get(field, field)
    line = next(line for line in result.out.splitlines() if line.startswith(f"    {shown} "))
    assert " <- " in line
    facts = diagnosis_of(run, path)
    assert facts["header"][field] != 0 or field == "flags"
    assert facts["entries_readable"] == 2


def test_a_cut_file_keeps_the_entries_before_the_cut(run: Run, make: Make) -> None:
    path = make("cut.shard", {f"e{number}": bytes([number]) * 100 for number in range(10)})
    data = path.read_bytes()
    path.write_bytes(data[:-300])
    result = run("doctor", path)
    assert "total_file_size" in result.out
    assert "<- the file has " in result.out
    assert "7 of 10 entries readable" in result.out
    path.write_bytes(data[:100])
    assert "no entry can be read" in run("doctor", path).out


def test_a_file_of_another_kind_is_named_and_has_no_header(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    result = run("doctor", path)
    assert result.code == Exit.FINDING
    assert "looks like a zip archive" in result.out
    assert "header:" not in result.out


def test_a_missing_file_is_an_io_error_and_the_others_are_looked_at(run: Run, sample: Path) -> None:
    result = run("doctor", "absent.shard", sample)
    assert result.code == Exit.IO
    assert "healthy" in result.out


def test_advice_is_given_for_what_could_be_stored_better(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "advice.shard"
    noise = np.random.default_rng(0).bytes(2 << 20)
    with ShardWriter(path, alignment=0, fsync=False) as writer:
        writer.write_entry("one byte", b"x")
        writer.write_entry("zeros", bytes(2 << 20))
        writer.write_entry("noise", noise)
        writer.write_entry("whole", bytes(9 << 20), compression="zstd")
        writer.write_entry("seek", bytes(9 << 20), compression="zstd", frame_bytes=1 << 20)
    result = run("doctor", path)
    assert result.code == Exit.OK
    advice = {one["code"]: one["entries"] for one in diagnosis_of(run, path)["advice"]}
    assert advice["would_compress"] == ["zeros"]
    assert advice["not_seekable"] == ["whole"]
    assert set(advice["unaligned"]) == {"zeros", "noise"}
    assert "do: shard repack FILE OUT --frame-bytes 1M" in result.out
    assert run("doctor", "--strict", path).code == Exit.FINDING


@for_each("description", INVALID)
@pytest.mark.slow
def test_every_invalid_vector_is_diagnosed(description: Path, run: Run) -> None:
    expected = json.loads(description.read_text())
    path = description.with_name(expected["file"])
    result = run("doctor", "--json", path)
    codes = {error["code"] for error in result.json["files"][0]["errors"]}
    accepted = {expected["error"], *expected.get("also", [])}
    if expected["when"] == "manifest":
        accepted.add("bad_profile")  # S-ROL-2 is what a checking tool reports
    assert codes & accepted
    assert result.code == max(exit_for(code) for code in codes)
    assert run("doctor", path).code == result.code
    assert run("verify", path).code == result.code
    for command in (["info"], ["ls", "-l"]):
        assert run(*command, path).code in (Exit.OK, Exit.FINDING, Exit.UNSUPPORTED)


@for_each("description", [path for path in VALID if path != LARGE])
@pytest.mark.slow
def test_every_valid_vector_is_healthy_and_survives_repacking(
    description: Path, run: Run, tmp_path: Path
) -> None:
    assert_healthy(description, run, tmp_path)


@pytest.mark.slow
def test_a_vector_of_10000_entries_is_healthy_and_survives_repacking(
    run: Run, tmp_path: Path
) -> None:
    assert_healthy(LARGE, run, tmp_path)


def assert_healthy(description: Path, run: Run, tmp_path: Path) -> None:
    expected = json.loads(description.read_text())
    path = next(p for p in VECTORS.glob(f"valid/{description.stem}.*") if p != description)
    facts = diagnosis_of(run, path)
    assert facts["errors"] == []
    assert sorted(one["code"] for one in facts["warnings"]) == expected.get("warnings", [])
    assert run("identity", path).out.split()[0] == expected["identity_2"]
    out = tmp_path / "out.shard"
    result = run("repack", path, out, "-c", "zstd")
    if description.stem == "name_with_nul":
        assert result.code == Exit.USAGE  # S-NAM-6: no writer may write such a name
        return
    assert result.code == Exit.OK
    changed = (
        ["meta/identity"] if "old_identity" in {one["code"] for one in facts["advice"]} else []
    )
    found = run("diff", "--json", path, out).json["differences"]
    assert [one["entry"] for one in found] == changed
