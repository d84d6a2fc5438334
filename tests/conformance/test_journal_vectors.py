"""The library's recordings against spec/vectors: of each journal comes back what its JSON says, and no more."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import ShardError, ShardReader
from shard_format.errors import BadValue, FormatError
from tests.conformance.test_wshard_vectors import assert_head, assert_lanes, assert_other_lanes
from tests.each import for_each
from wshard import load_wshard, open_partial, recover
from wshard.doctor import examine

if TYPE_CHECKING:
    from wshard import Episode

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "spec" / "vectors"
SPECIFICATION = (ROOT / "spec" / "journal.md").read_text("utf-8")
REGISTRY = (ROOT / "spec" / "registry.md").read_text("utf-8")
VALID = sorted((VECTORS / "valid_journals").glob("*.json"))
INVALID = sorted((VECTORS / "invalid_journals").glob("*.json"))


def load(description: Path) -> tuple[dict[str, Any], Path]:
    case: dict[str, Any] = json.loads(description.read_text("utf-8"))
    return case, description.parent / case["file"]


STOPPED = [path for path in INVALID if load(path)[0]["episode"] is not None]
REFUSED = [path for path in INVALID if load(path)[0]["episode"] is None]
FOUND_BY_DECODING = [path for path in STOPPED if load(path)[0]["when"] == "content"]
READABLE = [*VALID, *(path for path in STOPPED if path not in FOUND_BY_DECODING)]


def assert_episode(episode: Episode, case: dict[str, Any], *, is_chunk: bool = True) -> None:
    """`is_chunk`: whether it says which part of a recording it is; whoever follows one sees the whole."""
    is_part = case["episode"]["chunk_index"] is not None
    assert_head(episode, case["episode"], is_whole_file=is_chunk or not is_part)
    assert_lanes(episode, case["episode"])
    assert_other_lanes(episode, case["episode"])


def assert_reason(rule: str | None, code: str, case: dict[str, Any]) -> None:
    assert code in {case["error"], *case.get("also", ())}
    assert rule in {case["rule"], *case.get("rules_also", ())}


def test_there_are_as_many_vectors_as_promised() -> None:
    assert len(VALID) >= 15
    assert len(INVALID) >= 30
    assert len(STOPPED) > len(REFUSED) > 10
    assert len(FOUND_BY_DECODING) > 10


@for_each("description", READABLE)
def test_following_a_recording_gives_what_is_whole(description: Path) -> None:
    case, path = load(description)
    with open_partial(path) as episode:
        assert_episode(episode, case, is_chunk=False)
        assert episode.is_finished is case["finished"]
        assert not episode.refresh()
        assert_episode(episode, case, is_chunk=False)


class TestRecover:
    @for_each("description", [*VALID, *STOPPED])
    def test_the_episode_holds_what_is_whole_bit_by_bit(
        self, description: Path, tmp_path: Path
    ) -> None:
        case, path = load(description)
        out = tmp_path / "out.wshard"
        recover(path, out, fsync=False)
        with ShardReader(out) as reader:
            reader.verify()
        with load_wshard(out) as episode:
            assert_episode(episode, case)
        assert [str(finding) for finding in examine(out).errors] == []

    @for_each("description", [*VALID, *STOPPED])
    def test_it_says_what_is_lost_and_why(self, description: Path, tmp_path: Path) -> None:
        case, path = load(description)
        result = recover(path, tmp_path / "out.wshard", fsync=False)
        assert result.steps == int(case["episode"]["length"])
        assert result.finished is case["finished"]
        assert result.cut == {block: int(count) for block, count in case["cut"].items()}
        assert result.lost_bytes == path.stat().st_size - int(case["read_bytes"])
        if "rule" not in case:
            assert result.problem is None
            return
        error = result.error
        assert error is not None
        assert result.problem is not None
        assert_reason(error.rule, error.code, case)
        assert result.problem.startswith(f"at byte {case['read_bytes']}: ")
        assert result.problem.endswith(f"[{error.rule}, {error.code}]")
        assert result.problem in str(result)
        again = pickle.loads(pickle.dumps(result))
        assert again.problem == result.problem


@for_each("description", FOUND_BY_DECODING)
def test_a_run_that_only_decoding_shows_is_never_read_as_something_else(description: Path) -> None:
    """Whoever follows a recording may count it; its values are those of its head or an error."""
    case, path = load(description)
    *_, name = case["episode"]["observations"]  # text stands behind the state
    with open_partial(path) as episode:
        channel = episode.observations[name]
        whole = int(case["episode"]["observations"][name]["length"])
        if channel.layout == "text":
            assert channel.read_steps(0, whole) == case["episode"]["observations"][name]["text"]
            with pytest.raises(BadValue, match="W-RAG-4"):
                channel.read_steps(0, len(channel))
            return
        assert (
            channel.read_steps(0, whole).tobytes().hex()
            == (case["episode"]["observations"][name]["hex"])
        )
        with contextlib.suppress(ShardError):
            assert channel.read_steps(whole, whole + 1).tolist() == [[5, 6]]


@for_each("description", REFUSED)
def test_without_a_good_start_opening_fails_and_says_why(description: Path, tmp_path: Path) -> None:
    case, path = load(description)
    out = tmp_path / "out.wshard"
    for opening in (lambda: open_partial(path), lambda: recover(path, out, fsync=False)):
        with pytest.raises(FormatError) as caught:
            opening()
        error = caught.value
        assert_reason(error.rule, error.code, case)
        assert str(path) in str(error)
        assert str(error.rule) in str(error)
    assert not out.exists()


class TestSpecification:
    def test_every_rule_that_the_code_names_is_there(self) -> None:
        rules = set(re.findall(r"^- \*\*(J-[A-Z0-9-]+)\*\*", SPECIFICATION, re.MULTILINE))
        code = "".join(path.read_text("utf-8") for path in (ROOT / "src").glob("**/*.py"))
        named = set(re.findall(r"\bJ-(?:[A-Z]{3}-)?\d+\b", code))
        assert "J-FRM-1" in named
        assert named <= rules, named - rules

    def test_every_code_is_registered(self) -> None:
        codes = {
            code
            for told in re.findall(r"\*error:\*(.*)", SPECIFICATION)
            for code in re.findall(r"`(\w+)`", told)
        }
        assert "trailing_data" in codes
        section = REGISTRY.partition("## Errors")[2].partition("Warnings")[0]
        assert codes <= set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))

    def test_the_tests_that_hold_the_other_rules_are_there(self) -> None:
        named = set(re.findall(r"`(test_\w+)`", SPECIFICATION))
        assert len(named) >= 6
        tests = "".join(p.read_text("utf-8") for p in (ROOT / "tests" / "wshard").glob("*.py"))
        assert {name for name in named if f"def {name}(" not in tests} == set()
