"""Packs to standard output: `-o -`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import shardpack
from shard_cli.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run, Terminal

PROGRAM = f"{sys.executable} -m shard_cli.shardpack"


def run(line: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(line, shell=True, cwd=folder, capture_output=True, check=False)


def test_packs_go_through_pipes(photos: Path, tmp_path: Path) -> None:
    first = run(f"{PROGRAM} create -i {photos} -o -", tmp_path)
    assert first.returncode == 0
    assert b"12 records" in first.stderr
    with shardpack.open(first.stdout) as dataset:
        assert len(dataset) == 12
    (tmp_path / "a.shardpack").write_bytes(first.stdout)
    second = run(f"{PROGRAM} merge a.shardpack -o - --quiet > b.shardpack", tmp_path)
    assert (second.returncode, second.stderr) == (0, b"")
    assert run(f"{PROGRAM} diff a.shardpack b.shardpack", tmp_path).returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*pack")) == ["a.shardpack", "b.shardpack"]


def test_a_reader_that_leaves_ends_the_program_without_a_word(photos: Path, tmp_path: Path) -> None:
    (photos / "large.bin").write_bytes(bytes(3_000_000))
    done = run(
        f"bash -c '{PROGRAM} create -i {photos} -o - | head -c 9; exit ${{PIPESTATUS[0]}}'",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (Exit.BROKEN_PIPE, b"")
    assert len(done.stdout) == 9


def test_stdout_is_not_for_terminals_json_or_resuming(
    pack: Run, photos: Path, terminal: Terminal
) -> None:
    for option in ("--json", "--resume"):
        assert pack("create", "-i", photos, "-o", "-", option).code == Exit.USAGE
    code, shown = terminal("create", "-i", photos, "-o", "-", module="shard_cli.shardpack")
    assert code == Exit.USAGE
    assert "stdout is a terminal" in shown
