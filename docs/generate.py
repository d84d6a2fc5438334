"""Writes the generated parts of the documentation: `docs/cli.md` and the table of commands in README.

With `--check` nothing is written, and the exit code says whether anything would change.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from shard_cli.commands import COMMANDS
from shard_cli.main import build_parser

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CLI = ROOT / "docs" / "cli.md"
REGION = re.compile(r"(<!-- commands -->\n).*?(<!-- /commands -->)", re.DOTALL)


def command_table() -> str:
    lines = ["| Command | What it does |", "|---|---|"]
    lines += [
        f"| [`shard {command.name}`](docs/cli.md#shard-{command.name}) | {command.summary} |"
        for command in COMMANDS
    ]
    return "\n".join(lines) + "\n"


def command_page() -> str:
    parser = build_parser()
    (subparsers,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    parts = [
        "# Command line",
        "",
        "Written by `make docs` from the commands themselves. `python -m shard_cli` is the same program.",
        "",
        "Every command takes `--json` (one document on standard output), `-q/--quiet` and `-v/--verbose`.",
        "`shard --completion bash|zsh|fish` prints completion code. `NO_COLOR` and `FORCE_COLOR` are obeyed.",
        "",
    ]
    for command in COMMANDS:
        described = subparsers.choices[command.name]
        summary = command.summary[0].upper() + command.summary[1:]
        parts += [f"## shard {command.name}", "", f"{summary}. {command.description}".strip(), ""]
        parts += ["| Argument | Meaning |", "|---|---|"]
        parts += [
            f"| {_cell(_flags(action))} | {_cell(action.help or '')} |"
            for action in described._actions
            if action.help is not argparse.SUPPRESS
            and not {"--help", "--json", "--quiet", "--verbose"} & set(action.option_strings)
        ]
        parts += ["", "```sh"]
        longest = max(len(line) for line, _ in command.examples)
        parts += [f"{line.ljust(longest)}  # {text}" for line, text in command.examples]
        parts += ["```", ""]
    return "\n".join(parts)


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
            lambda match: match.group(1) + command_table() + match.group(2),
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
