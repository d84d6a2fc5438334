"""Writes the generated parts of the documentation: `docs/cli.md` and the table of commands in README.

With `--check` nothing is written, and the exit code says whether anything would change.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shard_cli.doors import SHARD, SHARDPACK, WSHARD, Door
from shard_cli.main import build_parser

if TYPE_CHECKING:
    from shard_cli.arguments import Command

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CLI = ROOT / "docs" / "cli.md"
# README may have a table for each door: `commands` for `shard`, `wshard commands` and so on.
REGION = re.compile(
    r"(<!-- (?:(wshard|shardpack) )?commands -->\n).*?(<!-- /(?:\w+ )?commands -->)", re.DOTALL
)
DOORS = {door.program: door for door in (SHARD, WSHARD, SHARDPACK)}


INTRODUCTION = """\
# Command line

Written by `make docs` from the commands themselves.

One program with three doors: [`shard`](#shard) works on any file of the family, [`wshard`](#wshard) on episodes,
[`shardpack`](#shardpack) on packs of samples. `shard info`, `ls`, `cat`, `extract`, `verify`, `doctor` and `diff` know packs, too.
`python -m shard_cli` is `shard`, `python -m shard_cli.wshard` is `wshard`, and `python -m shard_cli.shardpack` is `shardpack`.

Every command takes `--json` (one document on standard output), `-q/--quiet` and `-v/--verbose`.
`shard --completion bash|zsh|fish` prints completion code, and so do the others. `NO_COLOR` and `FORCE_COLOR` are obeyed.

Exit codes: 0 fine, 1 something found (damaged, different, missing), 2 wrong use, 3 input or output failed, or something was lost or left out,
4 unsupported version, 130 interrupted.
"""


def command_table(door: Door) -> str:
    lines = ["| Command | What it does |", "|---|---|"]
    for command in door.commands:
        name = f"{door.program} {command.name}"
        lines.append(f"| [`{name}`](docs/cli.md#{name.replace(' ', '-')}) | {command.summary} |")
    return "\n".join(lines) + "\n"


def command_page() -> str:
    parts = [INTRODUCTION]
    for door in DOORS.values():
        parts += [f"## {door.program}", "", door.description, ""]
        for command in door.commands:
            name = f"{door.program} {command.name}"
            if command in SHARD.commands and door is not SHARD:
                parts += [
                    f"### {name}",
                    "",
                    f"As [`shard {command.name}`](#shard-{command.name}).",
                    "",
                ]
                continue
            parts += _command_section(door, command)
    return "\n".join(parts)


def _command_section(door: Door, command: Command) -> list[str]:
    parser = build_parser(door)
    (subparsers,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    summary = command.summary[0].upper() + command.summary[1:]
    text = f"{summary}. {command.description}".strip()
    parts = [f"### {door.program} {command.name}", "", text, ""]
    parts += ["| Argument | Meaning |", "|---|---|"]
    parts += [
        f"| {_cell(_flags(action))} | {_cell(action.help or '')} |"
        for action in subparsers.choices[command.name]._actions
        if action.help is not argparse.SUPPRESS
        and not {"--help", "--json", "--quiet", "--verbose"} & set(action.option_strings)
    ]
    parts += ["", "```sh"]
    examples = door.examples(command)
    longest = max(len(line) for line, _ in examples)
    parts += [f"{line.ljust(longest)}  # {text}" for line, text in examples]
    return [*parts, "```", ""]


def _flags(action: argparse.Action) -> str:
    if isinstance(action.choices, (list, tuple)) and action.metavar is None:
        value = "|".join(str(choice) for choice in action.choices)
    else:
        metavar = action.metavar
        value = metavar if isinstance(metavar, str) else action.dest.upper()
    if not action.option_strings:
        return f"`{value}{'…' if action.nargs in ('*', '+') else ''}`"
    flags = ", ".join(action.option_strings)
    return f"`{flags}`" if action.nargs == 0 else f"`{flags} {value}`"


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|").replace("\n", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether anything is stale")
    check = parser.parse_args().check
    wanted = {
        CLI: command_page(),
        README: REGION.sub(
            lambda match: (
                match.group(1) + command_table(DOORS[match.group(2) or "shard"]) + match.group(3)
            ),
            README.read_text("utf-8"),
        ),
    }
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is stale: run 'make docs'")
        else:
            path.write_text(wanted[path], "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
