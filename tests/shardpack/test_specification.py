"""That spec/shardpack.md and spec/registry.md say what the library does."""

from __future__ import annotations

import re
from pathlib import Path

import shardpack
from shardpack import _layout
from shardpack.content_types import ENDINGS, is_compressible
from tests.shardpack import test_hostile
from tests.shardpack.support import write_pack

REPOSITORY = Path(__file__).parents[2]
SPECIFICATION = (REPOSITORY / "spec" / "shardpack.md").read_text("utf-8")
REGISTRY = (REPOSITORY / "spec" / "registry.md").read_text("utf-8")
RULES = re.findall(r"^- \*\*(P-[A-Z]{3}-\d+)\*\*", SPECIFICATION, re.MULTILINE)


def test_rules_are_numbered_without_gaps() -> None:
    numbers: dict[str, list[int]] = {}
    for rule in RULES:
        area, number = rule.rsplit("-", 1)
        numbers.setdefault(area, []).append(int(number))
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())


def test_the_library_names_no_rule_that_is_not_there() -> None:
    named: set[str] = set()
    for path in (REPOSITORY / "src" / "shardpack").glob("*.py"):
        named |= set(re.findall(r"P-[A-Z]{3}-\d+", path.read_text("utf-8")))
    assert named <= set(RULES)


def test_every_rule_that_a_reader_checks_is_tested_with_its_code() -> None:
    tested = {(rule, code) for _, code, rule in test_hostile.CASES.values()}
    for rule, code in tested:
        text = SPECIFICATION.partition(f"**{rule}**")[2].partition("\n- **")[0]
        assert f"`{code}`" in text, (rule, code)
    # What other tests of this suite hold, or what binds writers only.
    elsewhere = {"P-REC-9", "P-REC-10", "P-ENC-2", "P-ENC-6", "P-IDX-1", "P-IDX-9", "P-FTR-1"}
    elsewhere.add("P-WRT-1")  # the cases of spec/vectors/canonical
    sets = {rule for rule in RULES if rule.startswith("P-SET")}  # the vectors, and test_sets
    assert {rule for rule, _ in tested} | elsewhere | sets == set(RULES)


def test_the_complete_file_is_the_one_that_the_writer_gives(tmp_path: Path) -> None:
    dump = SPECIFICATION.partition("<!-- hexdump:hello-pack -->")[2].partition("<!-- /hexdump")[0]
    rows = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)", dump, re.MULTILINE)
    data = bytes.fromhex("".join(text for _, text in rows))
    path = write_pack(tmp_path / "a", {"a": {"x.txt": "hello"}}, created="2024-01-01T00:00:00Z")
    assert path.read_bytes() == data
    position = 0
    for offset, text in rows:
        assert int(offset, 16) == position
        position += len(bytes.fromhex(text))
    assert shardpack.open(data)["a"].read_all() == {"x.txt": b"hello"}


def test_the_registry_lists_the_content_types_of_the_library() -> None:
    table = REGISTRY.partition("### Content types of ShardPack")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| (compressed)?", table, re.MULTILINE)
    listed = {ending: kind for kind, endings, _ in rows for ending in re.findall(r"\w+", endings)}
    assert listed == ENDINGS
    assert {kind: bool(mark) for kind, _, mark in rows} == {
        kind: not is_compressible(kind) for kind in ENDINGS.values()
    }


def test_the_limits_are_those_of_the_specification() -> None:
    text = SPECIFICATION.replace("\u202f", " ")
    for value, written in (
        (_layout.LONGEST_KEY, "65 536"),
        (_layout.MOST_ENTRIES, "1 048 576"),
        (_layout.LARGEST_RECORD_METADATA >> 20, "16 MiB"),
        (_layout.LARGEST_HEAD >> 20, "64 MiB"),
    ):
        assert written in text
        assert int("".join(re.findall(r"\d", written))) == value
