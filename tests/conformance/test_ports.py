"""Every language's program against every vector: `-k "go and packs"` asks one program about some of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.conformance.ports import FEATURES, ROOT, Check, Program, checks, programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHECKS = list(checks())
PROGRAMS = programs()
_running: dict[str, Program] = {}


@pytest.fixture(scope="module", autouse=True)
def _end_programs() -> Iterator[None]:
    yield
    while _running:
        _running.popitem()[1].close()


def program_of(port: str) -> Program:
    if port not in _running:
        _running[port] = Program(port, PROGRAMS[port])
    return _running[port]


@pytest.mark.parametrize("group", dict.fromkeys(check.group for check in CHECKS))
@pytest.mark.parametrize("port", PROGRAMS)
def test_a_program_answers_as_the_vectors_say(port: str, group: str, tmp_path: Path) -> None:
    program = program_of(port)
    asked = [c for c in CHECKS if c.group == group and c.needs <= program.features]
    problems = {check.name: program.check(check, tmp_path) for check in asked}
    assert {name: problem for name, problem in problems.items() if problem} == {}


@pytest.mark.parametrize("port", PROGRAMS)
def test_a_program_knows_its_features_and_refuses_bad_calls(port: str) -> None:
    program = program_of(port)
    assert program.features <= set(FEATURES)
    assert "usage" in program.ask(["no such command"])
    assert "usage" in program.ask(["read", "container"])
    missing = program.ask(["read", "container", "no such file"])
    assert missing["error"] == "io_error"


COMPRESSED = [check for check in CHECKS if check.kind == "written" and "stored" in check.case]


@pytest.mark.parametrize("check", COMPRESSED, ids=lambda check: check.name)
@pytest.mark.parametrize("reader", PROGRAMS)
@pytest.mark.parametrize("writer", PROGRAMS)
def test_what_one_program_compresses_every_other_reads(
    writer: str, reader: str, check: Check, tmp_path: Path
) -> None:
    one, other = program_of(writer), program_of(reader)
    if check.needs <= one.features and check.needs - {"W"} <= other.features:
        assert one.check(check, tmp_path) is None
        told = other.ask(["read", "container", str(tmp_path / "out")])
        assert told["identity_2"] == check.case["identity"]
        keys = ("content_type", "crc32c", "name", "orig_size", "tag_bits")
        found = [{key: entry[key] for key in keys} for entry in told["entries"]]
        assert found == check.case["stored"]


@pytest.mark.parametrize("reader", PROGRAMS)
@pytest.mark.parametrize("writer", PROGRAMS)
def test_files_that_are_written_again_stay_the_same_to_every_reader(
    writer: str, reader: str, tmp_path: Path
) -> None:
    """Of the files that a program reads and writes again, the content stays."""
    one, other = program_of(writer), program_of(reader)
    files = [check for check in CHECKS if check.group == "containers: read"]
    for check in files:
        if check.needs <= one.features & other.features and not check.case["warnings"]:
            out = tmp_path / "out.shard"
            again = one.ask(["rewrite", "container", check.arguments[2], str(out)])
            if again.get("rule") == "S-NAM-6":  # readers take names that writers refuse
                continue
            assert again.get("identity") == check.case["identity_2"], check.name
            assert other.ask(["read", "container", str(out)])["identity_2"] == again["identity"]


def test_every_feature_is_needed_by_a_vector_or_named_as_untested() -> None:
    needed = frozenset[str]().union(*(check.needs for check in CHECKS))
    untested = {"G", "Q"}  # signatures are files of their own, and recording is not a file
    assert set(FEATURES) == needed | untested


def test_the_table_of_the_specification_is_current() -> None:
    """`make conformance` writes it; here only what a cell counts is compared."""
    table = (ROOT / "spec" / "CONFORMANCE.md").read_text("utf-8")
    head = next(line for line in table.splitlines() if line.startswith("| Vectors"))
    columns = [name.strip() for name in head.split("|")[2:-1]]
    for port in PROGRAMS:
        features = program_of(port).features
        for group in dict.fromkeys(check.group for check in CHECKS):
            row = re.search(rf"^\| {re.escape(group)} \|(.*)\|$", table, re.MULTILINE)
            assert row is not None, f"run make conformance: {group} is missing"
            cell = row[1].split("|")[columns.index(port)].strip()
            needs = [check.needs for check in CHECKS if check.group == group]
            passing = sum(one <= features for one in needs)
            expected = [str(passing)] if passing else []
            if passing < len(needs):
                expected.append(f"{len(needs) - passing} not supported")
            assert cell == ", ".join(expected), f"run make conformance: {group}, {port}"
