"""Write `docs/cli.md` from the commands themselves, and the tables of `docs/formats.md` from the table of formats.

`--check` writes nothing; the exit code tells whether a page would change.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shard_cli.main import build_parser
from shard_cli.programs import PROGRAMS, SHARD, Program
from wshard.convert import formats

if TYPE_CHECKING:
    from shard_cli.arguments import Command
    from wshard.convert import Format

ROOT = Path(__file__).parents[1]
CLI = ROOT / "docs" / "cli.md"
FORMATS = ROOT / "docs" / "formats.md"


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


def formats_page() -> str:
    """The page as it is, with new tables between its marks."""
    page = FORMATS.read_text("utf-8")
    for mark, lines in (("formats", format_table()), ("steps", steps_table())):
        start, end = f"<!-- {mark}: written by make docs -->\n", f"<!-- end of {mark} -->"
        before, _, rest = page.partition(start)
        _, _, after = rest.partition(end)
        page = f"{before}{start}\n{chr(10).join(lines)}\n\n{end}{after}"
    return page


def format_table() -> list[str]:
    lines = [
        "| Format | Name | Read | Write | Not kept | Extra | Example |",
        "|---|---|---|---|---|---|---|",
    ]
    for form in formats():
        lost = form.lost or ("nothing" if form.writes else "")
        cells = (
            *(form.title, f"`{form.name}`", _yes(form.reads), _yes(form.writes)),
            *(_cell(lost), f"`{form.extra}`" if form.extra else "", f"`{_example(form)}`"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def steps_table() -> list[str]:
    lines = [
        "| Format | How observations, actions and rewards line up |",
        "|---|---|",
    ]
    return lines + [f"| {form.title} | {_cell(form.steps)} |" for form in formats() if form.steps]


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _example(form: Format) -> str:
    if form.reads and form.name != "wshard":
        return f"wshard convert {form.example} episodes/"
    return f"wshard convert episodes/ {form.example if form.name != 'wshard' else 'copy/'} --to {form.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only report whether a page is stale")
    check = parser.parse_args().check
    is_stale = False
    for path, page in ((CLI, command_page()), (FORMATS, formats_page())):
        if path.exists() and path.read_text("utf-8") == page:
            continue
        if check:
            print(f"{path.relative_to(ROOT)} is stale: run 'make docs'")
            is_stale = True
        else:
            path.write_text(page, "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
