"""What hostile files may cost: memory and time, for every invalid vector and every reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.read_everything import READ, VECTORS

pytestmark = pytest.mark.slow

MOST_BYTES = 64 << 20
MOST_SECONDS = 2.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", READ)
def test_a_hostile_file_takes_at_most_64_mib_and_two_seconds_of_the_processor(kind: str) -> None:
    """All in one fresh process, which measures itself."""
    script = Path(__file__).with_name("read_everything.py")
    result = subprocess.run(
        [sys.executable, str(script), kind], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    taken = json.loads(result.stdout)
    assert len(taken) == len(list((VECTORS / READ[kind][0]).glob("*.json")))
    too_much = {
        name: (grown, seconds)
        for name, (grown, seconds) in taken.items()
        if grown >= MOST_BYTES or seconds >= MOST_SECONDS
    }
    assert not too_much


def test_no_invalid_vectors_are_left_out() -> None:
    folders = {path.name for path in VECTORS.glob("invalid*") if path.is_dir()}
    assert folders == {folder for folder, _, _ in READ.values()}
