"""Completion code for shells, made from the parser so that it is never out of date."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS: Final = ("bash", "zsh", "fish")


class _Option(NamedTuple):
    flags: tuple[str, ...]
    choices: tuple[str, ...]
    takes_value: bool
    text: str


class _Completed(NamedTuple):
    name: str
    text: str
    options: list[_Option]


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script to source (bash, zsh) or to put into the completions folder (fish)."""
    commands = list(_commands(parser))
    top = _Completed("", "", list(_options(parser)))
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](parser.prog, commands, top)
    return "\n".join(lines) + "\n"


def _commands(parser: argparse.ArgumentParser) -> Iterator[_Completed]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                yield _Completed(name, texts[name], list(_options(command)))


def _options(parser: argparse.ArgumentParser) -> Iterator[_Option]:
    for action in parser._actions:
        if action.option_strings:
            yield _Option(
                tuple(action.option_strings),
                tuple(str(choice) for choice in action.choices or ()),
                action.nargs != 0,
                (action.help or "").replace("%%", "%"),
            )


def _words(completed: _Completed) -> str:
    return " ".join(flag for option in completed.options for flag in option.flags)


def _bash(program: str, commands: list[_Completed], top: _Completed) -> list[str]:
    lines = [
        f'# bash completion for {program}: eval "$({program} --completion bash)"',
        f"_{program}() {{",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local command="" options="" at',
        "  for ((at = 1; at < COMP_CWORD; at++)); do",
        '    case "${COMP_WORDS[at]}" in',
        f'      {"|".join(c.name for c in commands)}) command="${{COMP_WORDS[at]}}"; break ;;',
        "    esac",
        "  done",
        '  case "$command $before" in',
    ]
    for completed in (top, *commands):
        for option in completed.options:
            if option.choices:
                patterns = "|".join(f'"{completed.name} {flag}"' for flag in option.flags)
                lines.append(
                    f"    {patterns}) COMPREPLY=($(compgen -W '{' '.join(option.choices)}'"
                    ' -- "$word")); return ;;'
                )
    lines += ["  esac", '  case "$command" in']
    names = " ".join(completed.name for completed in commands)
    lines.append(f"    '') options='{names} {_words(top)}' ;;")
    lines += [f"    {c.name}) options='{_words(c)}' ;;" for c in commands]
    return [
        *lines,
        "  esac",
        "  if [[ -z $command || $word == -* ]]; then",
        '    COMPREPLY=($(compgen -W "$options" -- "$word"))',
        "  else",
        '    COMPREPLY=($(compgen -f -- "$word"))',
        "  fi",
        "}",
        f"complete -o filenames -F _{program} {program}",
    ]


def _zsh(program: str, commands: list[_Completed], top: _Completed) -> list[str]:
    lines = [
        f"#compdef {program}",
        f'# zsh completion for {program}: eval "$({program} --completion zsh)"',
        f"_{program}() {{",
        "  local -a commands",
        "  commands=(",
        *(f"    {_quoted(f'{c.name}:{c.text}')}" for c in commands),
        "  )",
        "  local command=${words[(r)(" + "|".join(c.name for c in commands) + ")]}",
        "  case $command in",
    ]
    for completed in commands:
        lines.append(f"    {completed.name}) _arguments -s \\")
        lines += [f"      {spec} \\" for spec in _zsh_options(completed)]
        lines.append("      '*:file:_files' ;;")
    lines.append("    *) _arguments -s \\")
    lines += [f"      {spec} \\" for spec in _zsh_options(top)]
    return [
        *lines,
        "      '1:command:{_describe command commands}' ;;",
        "  esac",
        "}",
        f"if [[ $funcstack[1] == _{program} ]]; then",
        f'  _{program} "$@"',
        "else",
        f"  compdef _{program} {program}",
        "fi",
    ]


def _zsh_options(completed: _Completed) -> Iterator[str]:
    for option in completed.options:
        text = option.text.replace("[", "(").replace("]", ")").replace(":", " -")
        value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
        for flag in option.flags:
            yield _quoted(f"{flag}[{text}]" + (value if option.takes_value else ""))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(program: str, commands: list[_Completed], top: _Completed) -> list[str]:
    lines = [f"# fish completion for {program}: {program} --completion fish | source"]
    lines += _fish_options(program, top, "__fish_use_subcommand")
    for completed in commands:
        lines.append(
            f"complete -c {program} -f -n __fish_use_subcommand -a {completed.name}"
            f" -d {_fish_quoted(completed.text)}"
        )
        condition = _fish_quoted(f"__fish_seen_subcommand_from {completed.name}")
        lines += _fish_options(program, completed, condition)
    return lines


def _fish_options(program: str, completed: _Completed, condition: str) -> Iterator[str]:
    for option in completed.options:
        flags = " ".join(
            f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
        )
        value = " -r" if option.takes_value else ""
        if option.choices:
            value = f" -x -a {_fish_quoted(' '.join(option.choices))}"
        text = _fish_quoted(option.text)
        yield f"complete -c {program} -n {condition} {flags}{value} -d {text}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
