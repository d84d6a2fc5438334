"""Every language's program against every vector: `-k "go and packs"` asks one program about some of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.ports import FEATURES, ROOT, Check, Program, checks, programs
from tests.conformance.random_cases import compressed, random_episode, random_pack

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
@pytest.mark.parametrize("writer", PROGRAMS)
def test_what_one_program_compresses_every_other_reads(
    writer: str, check: Check, tmp_path: Path
) -> None:
    one = program_of(writer)
    if not check.needs <= one.features:
        return
    assert one.check(check, tmp_path) is None
    keys = ("content_type", "crc32c", "name", "orig_size", "tag_bits")
    for reader in PROGRAMS:
        if check.needs - {"W"} <= program_of(reader).features:
            told = program_of(reader).ask(["read", "container", str(tmp_path / "out")])
            assert told["identity_2"] == check.case["identity"], reader
            found = [{key: entry[key] for key in keys} for entry in told["entries"]]
            assert found == check.case["stored"], reader


@pytest.mark.parametrize("kind", ["episode", "pack"])
@pytest.mark.parametrize("seed", range(10))
def test_every_program_writes_the_same_and_reads_what_the_others_wrote(
    kind: str, seed: int, tmp_path: Path
) -> None:
    """Random files: bytes without compression; with it, what is in them."""
    case = (random_episode if kind == "episode" else random_pack)(seed)
    needed = set("WED" if kind == "episode" else "BPZ")
    able = [name for name in PROGRAMS if needed <= program_of(name).features]
    hashes, told = {}, {}
    for is_compressed in (False, True):
        path = tmp_path / "case.json"
        path.write_text(json.dumps(compressed(case) if is_compressed else case), "utf-8")
        for writer in able:
            out = tmp_path / f"{writer}.{'zstd' if is_compressed else 'raw'}"
            answer = program_of(writer).ask(["write", str(path), str(out)])
            hashes[out.name] = answer.get("identity" if is_compressed else "sha256", answer)
            for reader in able:
                found = program_of(reader).ask(["read", kind, str(out)])
                told[writer, is_compressed, reader] = _contents(found)
    for ending in ("raw", "zstd"):
        same = {name: one for name, one in hashes.items() if name.endswith(ending)}
        if kind == "episode" or ending == "raw":
            assert len({str(one) for one in same.values()}) == 1, same
    first, *others = told.items()
    assert "error" not in first[1], first
    assert {key: one == first[1] for key, one in others} == {key: True for key, _ in others}


def _contents(told: dict[str, Any]) -> dict[str, Any]:
    """An answer without where and how things are stored."""
    if "records" not in told:
        residuals = {
            name: {key: value for key, value in one.items() if value is not None}
            for name, one in told.get("residuals", {}).items()
        }
        return {**told, "residuals": residuals}
    keys = ("key", "metadata")
    records = [
        {key: record[key] for key in keys}
        | {"entries": {entry["name"]: entry["sha256"] for entry in record["entries"]}}
        for record in told["records"]
    ]
    return {"metadata": told["metadata"], "records": records}


@pytest.mark.parametrize("writer", PROGRAMS)
def test_files_that_are_written_again_stay_the_same_to_another_reader(
    writer: str, tmp_path: Path
) -> None:
    """Of the files that a program reads and writes again, the content stays: the others read them in turn."""
    one = program_of(writer)
    files = [
        check
        for check in CHECKS
        if check.group == "containers: read"
        and check.needs <= one.features
        and not check.case["warnings"]
    ]
    for number, check in enumerate(files):
        out = tmp_path / "out.shard"
        again = one.ask(["rewrite", "container", check.arguments[2], str(out)])
        if again.get("rule") == "S-NAM-6":  # readers take names that writers refuse
            continue
        assert again.get("identity") == check.case["identity_2"], check.name
        able = [port for port in PROGRAMS if check.needs <= program_of(port).features]
        others = [port for port in able if port != writer] or [writer]
        reader = others[number % len(others)]
        told = program_of(reader).ask(["read", "container", str(out)])
        assert told["identity_2"] == again["identity"], (check.name, reader)


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
