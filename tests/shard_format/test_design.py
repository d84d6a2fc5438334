"""The lines that people already know, as they stand in the documents this project came from."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Any

import shard_format
from tests.shard_format.support import listing, prose

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PROMISED = """
from shard_format import ShardWriter, ShardReader
with ShardWriter("data.shard", alignment=64) as w:
    w.write_entry("entry/0", payload_bytes, compression="zstd")
data = ShardReader("data.shard").read_entry("entry/0")
"""


def run(lines: str, **given: Any) -> dict[str, Any]:  # noqa: ANN401 - the variables of a script
    """Runs lines as a script and returns its variables."""
    variables: dict[str, Any] = dict(given)
    exec(compile(lines, "<lines>", "exec"), variables)  # noqa: S102 - the lines are ours
    return variables


def test_the_promised_lines_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(PROMISED, payload_bytes=prose(5_000))["data"] == prose(5_000)
    assert listing(tmp_path) == ["data.shard"]


def test_the_lines_in_the_packages_docstring_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = shard_format.__doc__ or ""
    lines = dedent("\n".join(line for line in text.splitlines() if line.startswith("    ")))
    assert run(lines, payload=b"content")["data"] == b"content"
