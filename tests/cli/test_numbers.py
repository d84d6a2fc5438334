"""Numbers on the command line that no file has: thousands of digits, negative ones, 2⁶³."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardpack
from shard_cli.main import build_parser, main
from shard_cli.programs import SHARD, SHARDPACK, WSHARD
from shard_format import ShardWriter
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from pathlib import Path

    from shard_cli.programs import Program

HUGE = "9" * 5000  # more than Python converts
LONG = "9" * 400
NUMBERS = (HUGE, "-1", str(2**63), "nan", f"{LONG}:{HUGE}", f"1,{HUGE}")

OTHERS = [
    (SHARD, ["create", "new.shard", "a.txt", "--role", HUGE]),
    (SHARD, ["create", "new.shard", "a.txt", "--content-type", HUGE]),
    (SHARD, ["cat", "c.shard", "a", "--range", f"{LONG}:"]),
    (WSHARD, ["edit", "e.wshard", "--label", f"x=0:{HUGE}:t"]),
    (WSHARD, ["edit", "e.wshard", "--label", f"x=0:{2**63}:t"]),
    (WSHARD, ["edit", "e.wshard", "k=1e999"]),
    (WSHARD, ["slice", "e.wshard", f"0:{HUGE}", "-o", "new"]),
    (WSHARD, ["slice", "e.wshard", f"{LONG}s:", "-o", "new"]),
    (SHARDPACK, ["split", "p.shardpack", "--share", f"new-%06d.shardpack={HUGE}"]),
    (SHARDPACK, ["split", "p.shardpack", "--share", "new-%d=-1", "--share", "new2-%d=2"]),
    (SHARDPACK, ["merge", "p.shardpack", "-o", "new-%0999999999d.shardpack"]),
    (SHARDPACK, ["merge", "p.shardpack", "-o", f"new-%0{LONG}d.shardpack"]),
    (SHARDPACK, ["merge", "p.shardpack", "-o", "new%s-%06d.shardpack"]),
    (SHARDPACK, ["merge", "p.shardpack", "-o", f"new-{{{HUGE}..}}.shardpack"]),
    (SHARDPACK, ["merge", "p.shardpack", "-o", f"new{HUGE}.shardpack"]),
    (SHARDPACK, ["merge", f"p{{0..{HUGE}}}.shardpack", "-o", "new"]),
]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    episode = Episode("e", length=5)
    episode.observations["x"] = np.zeros((5, 2), np.float32)
    save_wshard(episode, "e.wshard", fsync=False)
    with shardpack.ShardPackWriter("p.shardpack", fsync=False) as pack:
        pack.write("k", {"a.txt": "x"})
    with ShardWriter("c.shard", fsync=False) as container:
        container.write_entry("a", b"x")


def refused(program: Program, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments, program) in (2, 3), arguments
    told = capsys.readouterr().err
    assert "error: " in told
    assert "Traceback" not in told


@pytest.mark.parametrize("program", [SHARD, WSHARD, SHARDPACK], ids=lambda one: one.name)
def test_no_option_takes_a_number_that_makes_no_sense(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option of every command that converts its text."""
    given = {SHARD: "c.shard", WSHARD: "e.wshard", SHARDPACK: "p.shardpack"}[program]
    parser = build_parser(program)
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    checked = 0
    for command, of_command in commands.choices.items():
        actions = of_command._actions
        names = [given for action in actions if not action.option_strings]
        outputs = [a for a in actions if "-o" in a.option_strings]
        for action in actions:
            # A seed may be any number.
            if action.type is None or not action.option_strings or action.dest == "seed":
                continue
            for number in NUMBERS:
                output = ["-o", "new"] if outputs else []
                option = f"{action.option_strings[-1]}={number}"
                refused(program, [command, *names, *output, option], capsys)
                checked += 1
    assert checked > 50


@pytest.mark.parametrize(("program", "arguments"), OTHERS, ids=range(len(OTHERS)))
def test_numbers_inside_of_other_arguments_are_checked(
    program: Program, arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused(program, arguments, capsys)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("new")]
