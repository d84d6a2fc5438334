"""Write `docs/cli.md` from the commands themselves.

`--check` writes nothing; the exit code tells whether the page would change.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shard_cli.main import build_parser
from shard_cli.programs import PROGRAMS, SHARD, Program

if TYPE_CHECKING:
    from shard_cli.arguments import Command

ROOT = Path(__file__).parents[1]
CLI = ROOT / "docs" / "cli.md"


INTRODUCTION = """\
# Command line

`make docs` writes this page from the commands themselves.

[`shard`](#shard) works on any file of the family, [`wshard`](#wshard) on episodes, and [`shardpack`](#shardpack) on packs of samples. The three programs share
their commands: `shard info`, `ls`, `cat`, `get`, `extract`, `verify`, `doctor` and `diff` also work on packs.
You can also run them as `python -m shard_cli`, `python -m shard_cli.wshard` and `python -m shard_cli.shardpack`.

Every command takes `--json` (one document on standard output), `-q/--quiet` and `-v/--verbose`.
The programs obey `NO_COLOR` and `FORCE_COLOR`.

For completion in your shell, install `shard-format[completion]` and put `eval "$(shard --completion bash)"` (or `zsh`, `fish`) into the start-up file of
the shell. `wshard` and `shardpack` have the same option.

| Exit code | Meaning |
|---|---|
| 0 | success |
| 1 | something is wrong with a file, or files differ |
| 2 | wrong usage |
| 3 | the system reported an error (disk, network), or data was lost or left out (`recover`, `--skip-large`) |
| 4 | unknown version, filter or layout |
| 130 | interrupted |
"""


def command_table(program: Program) -> list[str]:
    lines = ["| Command | What it does |", "|---|---|"]
    for command in program.commands:
        name = f"{program.name} {command.name}"
        lines.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {command.summary} |")
    return lines


def command_page() -> str:
    parts = [INTRODUCTION]
    for program in PROGRAMS:
        parts += [f"## {program.name}", "", program.description, "", *command_table(program), ""]
        for command in program.commands:
            name = f"{program.name} {command.name}"
            if command in SHARD.commands and program is not SHARD:
                same = f"The same as [`shard {command.name}`](#shard-{command.name}):"
                parts += [f"### {name}", "", same, "", *_example_block(program, command)]
                continue
            parts += _command_section(program, command)
    return "\n".join(parts)


def _command_section(program: Program, command: Command) -> list[str]:
    parser = build_parser(program)
    (subparsers,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    summary = command.summary[0].upper() + command.summary[1:]
    text = f"{summary}. {command.description}".strip()
    parts = [f"### {program.name} {command.name}", "", text, ""]
    parts += ["| Argument | Meaning |", "|---|---|"]
    parts += [
        f"| {_cell(_flags(action))} | {_cell(action.help or '')} |"
        for action in subparsers.choices[command.name]._actions
        if action.help is not argparse.SUPPRESS
        and not {"--help", "--json", "--quiet", "--verbose"} & set(action.option_strings)
    ]
    return [*parts, "", *_example_block(program, command)]


def _example_block(program: Program, command: Command) -> list[str]:
    examples = program.examples(command)
    longest = max(len(line) for line, _ in examples)
    return ["```sh", *(f"{line.ljust(longest)}  # {text}" for line, text in examples), "```", ""]


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
    parser.add_argument(
        "--check", action="store_true", help="only report whether the page is stale"
    )
    check = parser.parse_args().check
    page = command_page()
    if CLI.exists() and CLI.read_text("utf-8") == page:
        return 0
    if check:
        print(f"{CLI.relative_to(ROOT)} is stale: run 'make docs'")
        return 1
    CLI.write_text(page, "utf-8")
    print(f"wrote {CLI.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
