"""The public API as type checkers see it: mypy over `public_api.py`, in the project's strict mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SNIPPET = Path(__file__).parent / "public_api.py"


def run_mypy(file: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(cache), str(file)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_public_api_has_the_promised_types(tmp_path: Path) -> None:
    result = run_mypy(SNIPPET, tmp_path / "cache")
    assert result.returncode == 0, result.stdout + result.stderr

    # The same with one promise broken: so that the check above cannot pass by checking nothing.
    text = SNIPPET.read_text("utf-8")
    promise = "assert_type(reader.names(), list[str])"
    assert promise in text
    broken = tmp_path / "broken_api.py"
    broken.write_text(text.replace(promise, "assert_type(reader.names(), list[bytes])"), "utf-8")
    result = run_mypy(broken, tmp_path / "cache")
    assert result.returncode == 1
    assert 'Expression is of type "list[str]", not "list[bytes]"' in result.stdout
    assert result.stdout.count("error:") == 1
