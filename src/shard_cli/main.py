"""The program: parser, errors to exit codes, signals. The only module that exits."""

from __future__ import annotations

import argparse
import functools
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, TextIO

from shard_cli.completion import SHELLS, completion
from shard_cli.doors import SHARD, SHARDPACK, WSHARD, Door
from shard_cli.exits import Exit, error_fields, exit_for, message_of
from shard_cli.output import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shard_cli.arguments import Command
    from shard_format import ShardError

_EPILOG = """\
exit codes: 0 fine, 1 something found (damaged, different, missing), 2 wrong
use, 3 input or output failed, 4 unsupported version, 130 interrupted
'{program} COMMAND --help' has examples for each command"""


class _UsageError(Exception):
    """The command line cannot be understood."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.message = message
        self.usage = usage


class _Terminated(BaseException):
    """SIGTERM came: unwind, so that temporary files are removed."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(message, self.format_usage())


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from shard_format import __version__

        print(f"{parser.prog} {__version__}")
        parser.exit()


class _Completion(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        print(completion(parser, str(values)), end="")
        parser.exit()


@functools.cache
def build_parser(door: Door = SHARD) -> argparse.ArgumentParser:
    """The whole command line of one door."""
    parser = _Parser(
        prog=door.program,
        description=door.description,
        epilog=_EPILOG.format(program=door.program) + door.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument(
        "--completion",
        action=_Completion,
        choices=SHELLS,
        metavar="SHELL",
        help=f"print completion code for {', '.join(SHELLS)} and exit",
    )
    _add_common(parser, default=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in door.commands:
        described = commands.add_parser(
            command.name,
            help=command.summary,
            description=_description(command),
            epilog=_examples(door, command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(described)
        # Suppressed: the default of a sub-parser would undo what stands before the command.
        _add_common(described, default=argparse.SUPPRESS)
        described.set_defaults(handler=command.run)
    return parser


def _add_common(parser: argparse.ArgumentParser, default: object) -> None:
    group = parser.add_argument_group("output")
    for flags, text in (
        (("--json",), "print one JSON document on stdout"),
        (("-q", "--quiet"), "print results and errors only: no remarks, no progress"),
        (("-v", "--verbose"), "print more detail"),
    ):
        group.add_argument(*flags, action="store_true", default=default, help=text)


def _description(command: Command) -> str:
    summary = command.summary[0].upper() + command.summary[1:] + "."
    return f"{summary}\n\n{command.description}".strip()


def _examples(door: Door, command: Command) -> str:
    examples = door.examples(command)
    longest = max(len(line) for line, _ in examples)
    lines = [f"  {line.ljust(longest)}  # {text}" for line, text in examples]
    return "\n".join(["EXAMPLES", *lines])


def main(argv: Sequence[str] | None = None, door: Door = SHARD) -> int:
    """Runs one command line and returns its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        # What a terminal's encoding cannot show is escaped, not a crash.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments, door)
    except BrokenPipeError:
        # Whoever read our output has seen enough: as quiet as a program that SIGPIPE ended.
        _give_up(sys.stdout)
        return Exit.BROKEN_PIPE
    except KeyboardInterrupt:
        print(f"{door.program}: interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except _Terminated:
        return Exit.TERMINATED


def _run(arguments: list[str], door: Door) -> int:
    parser = build_parser(door)
    try:
        args = parser.parse_args(arguments)
    except SystemExit as done:  # --help, --version and --completion have answered
        sys.stdout.flush()
        return int(done.code or 0)
    except _UsageError as error:
        return _wrong_use(error, "--json" in arguments, door)
    if args.command is None:
        missing = _UsageError("a command is missing", parser.format_help())
        return _wrong_use(missing, args.json, door)
    console = Console(
        args.command,
        as_json=args.json,
        quiet=args.quiet,
        verbose=args.verbose,
        program=door.program,
    )
    return _run_command(args, console)


def _run_command(args: argparse.Namespace, console: Console) -> int:
    from shard_format.errors import ShardError, ShardIOError

    try:
        code: int = args.handler(args, console)
        sys.stdout.flush()
    except ShardError as error:
        return _failed(error, console)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:  # no file: it was the output that failed
            _give_up(sys.stdout)
        path = None if error.filename is None else os.fsdecode(error.filename)
        return _failed(ShardIOError.wrap(error, "failed", path), console)
    return code


def _failed(error: ShardError, console: Console) -> int:
    if console.as_json:
        console.document({"error": error_fields(error)})
    console.error(message_of(error), error.code)
    sys.stdout.flush()
    return exit_for(error.code)


def _wrong_use(error: _UsageError, as_json: bool, door: Door) -> int:
    print(error.usage.rstrip(), file=sys.stderr)
    console = Console("", as_json=as_json, program=door.program)
    code = "invalid_argument"
    if as_json:
        fields = {"code": code, "message": error.message, "file": None, "entry": None, "rule": None}
        console.document({"error": fields})
    console.error(error.message, code)
    return Exit.USAGE


def _give_up(stream: TextIO) -> None:
    """Points a stream that no longer works at nothing, so that closing it at exit cannot fail."""
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # not a file: a test, or a program that calls `main`
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _on_terminate(*_: object) -> NoReturn:
    raise _Terminated


def entry_point(door: Door = SHARD) -> NoReturn:
    """The console script `shard`."""
    signal.signal(signal.SIGTERM, _on_terminate)
    sys.exit(main(door=door))


def wshard_entry_point() -> NoReturn:
    """The console script `wshard`."""
    entry_point(WSHARD)


def shardpack_entry_point() -> NoReturn:
    """The console script `shardpack`."""
    entry_point(SHARDPACK)
