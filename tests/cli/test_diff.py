"""`shard diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Make, Run


@pytest.fixture
def pair(make: Make) -> tuple[Path, Path]:
    common = {"same": bytes(3000), "empty": b""}
    a = make("a.shard", {**common, "gone": b"1", "changed": b"abcd", "longer": b"ab"})
    b = make("b.shard", {"new": b"22", "longer": b"abc", "changed": b"abXd", **common})
    return a, b


def test_all_kinds_of_difference_are_listed(run: Run, pair: tuple[Path, Path]) -> None:
    result = run("diff", *pair)
    assert result.code == Exit.FINDING
    assert result.out.splitlines() == [
        "- gone: only in A, 1 B",
        "~ changed: 4 B, differs from byte 2 on",
        "~ longer: 2 bytes -> 3 bytes, differs from byte 2 on",
        "+ new: only in B, 2 B",
        "1 only in A, 1 only in B, 2 changed",
    ]


def test_differences_in_json(run: Run, pair: tuple[Path, Path]) -> None:
    document = run("diff", "--json", *pair).json
    assert document["same"] is False
    found = {(one["kind"], one["entry"]) for one in document["differences"]}
    assert found == {
        ("only_in_a", "gone"),
        ("only_in_b", "new"),
        ("content", "changed"),
        ("content", "longer"),
    }


def test_compression_order_and_alignment_make_no_difference(run: Run, make: Make) -> None:
    big = bytes(range(256)) * 20_000
    a = make("a.shard", {"x": big, "y": b"1"}, compression="zstd", frame_bytes=100_000)
    b = make("b.shard", {"y": b"1", "x": big}, alignment=16)
    assert run("diff", a, b).out == "same: 2 entries\n"
    result = run("diff", "--stored", a, b)
    assert result.code == Exit.FINDING
    assert "* file: alignment 64 -> 16" in result.out
    assert "* x: codec zstd -> none" in result.out


def test_content_types_tags_role_and_schema_count(run: Run, make: Make) -> None:
    a = make("a.shard", {"x": b""}, content_type="json", tags=["red"], schema={"k": 1})
    b = make("b.shard", {"x": b""}, content_type="text", tags=["blue"], role="samples")
    lines = run("diff", a, b).out.splitlines()
    assert "* file: role unknown -> samples" in lines
    assert "* file: schema.k 1 -> none" in lines
    assert "* x: content_type json -> text" in lines
    assert "* x: tags red -> blue" in lines


def test_brief_only_says_that_they_differ(run: Run, pair: tuple[Path, Path]) -> None:
    a, b = pair
    assert run("diff", "--brief", a, b).out == f"{a} and {b} differ\n"
    assert run("diff", "--brief", "-q", a, a).out == ""


def test_damage_is_an_error_not_a_difference(run: Run, damaged: Path) -> None:
    result = run("diff", damaged, damaged)
    assert result.code == Exit.FINDING
    assert "(checksum_mismatch)" in result.err


@pytest.mark.parametrize("at", [0, 999_999, 1_048_575, 1_048_576, 2_499_999])
def test_the_first_difference_is_found_across_pieces(at: int, run: Run, make: Make) -> None:
    one = bytes(2_500_000)
    other = bytearray(one)
    other[at] = 1
    a = make("a.shard", {"x": one})
    b = make("b.shard", {"x": bytes(other)}, compression="zstd", frame_bytes=300_000)
    assert run("diff", "--json", a, b).json["differences"][0]["offset"] == at
