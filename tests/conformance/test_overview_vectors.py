"""The library's overview files against spec/vectors: valid ones hold what they hold, others fail as told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shard_format import ShardError
from tests.conformance.telling import tell_overviews
from tests.each import for_each
from wshard import load_wshard
from wshard.doctor import examine
from wshard.overviews import OverviewFile, open_overviews

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
VALID = sorted((VECTORS / "valid_overviews").glob("*.json"))
INVALID = sorted((VECTORS / "invalid_overviews").glob("*.json"))


def load(description: Path) -> tuple[dict[str, Any], Path]:
    case: dict[str, Any] = json.loads(description.read_text("utf-8"))
    return case, description.parent / case["file"]


def opened(path: Path) -> OverviewFile:
    overviews = open_overviews(path)
    assert overviews is not None
    return overviews


@for_each("description", VALID)
def test_valid_overviews_hold_what_they_hold(description: Path) -> None:
    case, path = load(description)
    assert tell_overviews(path) == {key: case[key] for key in ("overviews", "posters", "stale")}


def touch(overviews: OverviewFile, kind: str, name: str) -> None:
    if kind == "overview":
        _ = overviews[name]
    else:
        overviews.read_poster(next(p for p in overviews.posters if p.number == int(name)))


def failure_of(path: Path, when: str, touched: list[str]) -> ShardError | None:
    """What the step of a vector raises; all other overviews and posters must be readable."""
    try:
        overviews = opened(path)
    except ShardError as error:
        assert when == "open"
        return error
    with overviews:
        every = [["overview", block] for block in overviews]
        every += [["poster", str(poster.number)] for poster in overviews.posters]
        assert when != "touch" or touched in every
        for one in every:
            if one != touched:
                touch(overviews, *one)
        try:
            if touched:
                touch(overviews, *touched)
        except ShardError as error:
            return error
    return None


@for_each("description", INVALID)
def test_a_broken_overview_fails_as_told_and_the_episode_can_be_read(description: Path) -> None:
    case, path = load(description)
    error = failure_of(path, case["when"], case.get("touch", []))
    if case["when"] == "check":
        assert error is None
    else:
        assert error is not None
        assert error.code == case["error"]
        assert error.rule in (case["rule"], None)
        assert error.path == f"{path}.overview"
    load_wshard(path).load().close()


@for_each("description", INVALID)
def test_the_doctor_reports_every_broken_overview(description: Path) -> None:
    case, path = load(description)
    found = examine(path).findings
    assert [(f.code, f.path) for f in found if f.code == case["error"]] == [
        (case["error"], f"{path}.overview")
    ]


@for_each("description", VALID)
def test_the_doctor_finds_nothing_wrong_with_valid_overviews_but_stale_ones(
    description: Path,
) -> None:
    case, path = load(description)
    report = examine(path)
    assert not report.errors
    stale = [f.entry for f in report.findings if f.code == "stale_overview"]
    assert sorted(map(str, stale)) == case["stale"]
