"""The library against spec/vectors/limits: a lowered limit refuses a file, and the limit plus one does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_format import ShardError
from tests.conformance.program import step
from tests.each import for_each

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
LIMITED = sorted((VECTORS / "limits").glob("*.json"))


def load(description: Path) -> tuple[dict[str, Any], Path]:
    case: dict[str, Any] = json.loads(description.read_text("utf-8"))
    return case, description.parent / case["file"]


class TestLimits:
    @for_each("description", LIMITED)
    def test_a_file_above_the_limit_is_refused_with_its_code_and_rule(
        self, description: Path
    ) -> None:
        case, path = load(description)
        with pytest.raises(ShardError) as caught:
            step(case["kind"], str(path), str(description))
        assert (caught.value.code, caught.value.rule) == (case["error"], case["rule"])
        assert str(path) in str(caught.value)

    @for_each("description", LIMITED)
    def test_a_file_at_the_limit_is_read(self, description: Path, tmp_path: Path) -> None:
        case, path = load(description)
        case["limits"] = {name: str(int(most) + 1) for name, most in case["limits"].items()}
        raised = tmp_path / "case.json"
        raised.write_text(json.dumps(case), "utf-8")
        assert step(case["kind"], str(path), str(raised)) == {"done": True}
