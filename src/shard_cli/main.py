"""Running a program: parser, errors to exit codes, signals. The only module that exits."""

from __future__ import annotations

import argparse
import functools
import io
import os
import signal
import sys
import warnings
from typing import TYPE_CHECKING, NoReturn, TextIO

from shard_cli.console import Console
from shard_cli.exits import Exit, error_fields, exit_for, message_of
from shard_cli.programs import PROGRAMS, SHARD, SHARDPACK, WSHARD, Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shard_cli.arguments import Command
    from shard_format import ShardError

_SHELLS = ("bash", "zsh", "fish")
_EPILOG = """\
exit codes: 0 success, 1 a file is wrong or files differ, 2 wrong usage, 3 system
error or data lost, 4 unknown version, 130 interrupted
'{program} COMMAND --help' shows examples for each command"""


class _UsageError(Exception):
    """The command line cannot be understood."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Terminated(BaseException):
    """SIGTERM came: unwind, so that temporary files are removed."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(message, self.format_usage())


class _PrintVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from shard_format import __version__

        print(f"{parser.prog} {__version__}")
        parser.exit()


class _Completion(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, *_: object
    ) -> None:
        from shard_format.errors import MissingExtra
        from shard_format.extras import require

        try:
            shtab = require("shtab", "completion")
        except MissingExtra as error:
            parser.error(str(error))
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()


@functools.cache
def build_parser(program: Program = SHARD) -> argparse.ArgumentParser:
    """The whole command line of one program."""
    parser = _Parser(
        prog=program.name,
        description=program.description,
        epilog=_EPILOG.format(program=program.name) + program.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_PrintVersion, nargs=0, help="show the version and exit"
    )
    parser.add_argument(
        "--completion",
        action=_Completion,
        choices=_SHELLS,
        metavar="SHELL",
        help=f"print completion code for {', '.join(_SHELLS)} and exit; needs shtab",
    )
    _add_common(parser, default=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in program.commands:
        described = commands.add_parser(
            command.name,
            help=command.summary,
            description=_description(command),
            epilog=_examples(program, command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for argument in program.arguments(command):
            described.add_argument(*argument.names, **argument.settings)
        # Suppressed: the default of a sub-parser would override options given before the command.
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
    group = parser.add_argument_group("files behind URLs")
    group.add_argument(
        "--storage-option",
        action="append",
        metavar="K=V",
        default=[] if default is False else default,
        help="option for s3://, https:// and other URLs, such as region=eu-central-1; may be repeated",
    )
    group.add_argument(
        "--stats",
        action="store_true",
        default=default,
        help="print the number of requests and of received bytes to stderr",
    )


def _description(command: Command) -> str:
    summary = command.summary[0].upper() + command.summary[1:] + "."
    return f"{summary}\n\n{command.description}".strip()


def _examples(program: Program, command: Command) -> str:
    examples = program.examples(command)
    longest = max(len(line) for line, _ in examples)
    lines = [f"  {line.ljust(longest)}  # {text}" for line, text in examples]
    return "\n".join(["EXAMPLES", *lines])


def main(argv: Sequence[str] | None = None, program: Program = SHARD) -> int:
    """Runs one command line and returns its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        # Escape what the terminal's encoding cannot show instead of crashing.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments, program)
    except BrokenPipeError:
        # The reader of our output has closed it: end as quietly as a program that SIGPIPE ends.
        _give_up(sys.stdout)
        return Exit.BROKEN_PIPE
    except KeyboardInterrupt:
        print(f"{program.name}: interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except _Terminated:
        return Exit.TERMINATED


def _run(arguments: list[str], program: Program) -> int:
    parser = build_parser(program)
    try:
        args = parser.parse_args(arguments)
    except SystemExit as done:  # --help, --version and --completion have answered
        sys.stdout.flush()
        return int(done.code or 0)
    except _UsageError as error:
        console = Console("", as_json="--json" in arguments, program=program.name)
        message = str(error)
        if message.startswith("argument COMMAND: "):
            message = _unknown_command(arguments, program)
        return _wrong_use(message, error.usage, console)
    console = Console(
        args.command or "",
        as_json=args.json,
        quiet=args.quiet,
        verbose=args.verbose,
        program=program.name,
    )
    if args.command is None:
        return _wrong_use("a command is missing", parser.format_help(), console)
    before = _requests()
    code = _run_command(args, console)
    if args.stats:
        from shard_cli.text import count, size

        made, received = (now - then for now, then in zip(_requests(), before, strict=True))
        print(f"{count(made, 'request')}, {size(received)} received", file=sys.stderr)
    return code


def _set_storage_options(pairs: Sequence[str]) -> None:
    """Puts storage options into the environment, where every process of this command finds them."""
    import json

    from shard_format.errors import InvalidArgument
    from shard_format.remote import ENVIRONMENT, options_of_environment

    options = options_of_environment()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidArgument("not a storage option", expected="NAME=VALUE", found=repr(pair))
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        # `headers.Authorization=…` is a field within a field.
        *outer, last = name.split(".")
        fields = options
        for one in outer:
            fields = fields.setdefault(one, {})
        fields[last] = value
    os.environ[ENVIRONMENT] = json.dumps(options)


def _requests() -> tuple[int, int]:
    """Requests and bytes of this process."""
    remote = sys.modules.get("shard_format.remote")
    return (0, 0) if remote is None else (remote.TOTAL.requests, remote.TOTAL.bytes)


def _run_command(args: argparse.Namespace, console: Console) -> int:
    from shard_format.errors import ShardError, ShardIOError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_: console.warn(str(message))
            if args.storage_option:
                _set_storage_options(args.storage_option)
            code: int = args.handler(args, console)
        sys.stdout.flush()
    except ShardError as error:
        if console.out_is_data and isinstance(error.__cause__, BrokenPipeError):
            raise error.__cause__ from None
        return _failed(error, console)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:  # no file: the output failed
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


def _wrong_use(message: str, usage: str, console: Console) -> int:
    from shard_format.errors import InvalidArgument

    print(usage.rstrip(), file=sys.stderr)
    return _failed(InvalidArgument(message), console)


def _unknown_command(arguments: list[str], program: Program) -> str:
    import difflib

    word = next(one for one in arguments if not one.startswith("-"))
    names = {one.name: [command.name for command in one.commands] for one in PROGRAMS}
    near = difflib.get_close_matches(word, names[program.name], 1)
    meant = [f"{program.name} {one}" for one in near]
    meant += [f"{other} {word}" for other, commands in names.items() if word in commands]
    hint = f"did you mean '{meant[-1]}'?" if meant else f"'{program.name} --help' lists them"
    return f"unknown command {word!r}; {hint}"


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


def entry_point(program: Program = SHARD) -> NoReturn:
    """The console script `shard`."""
    signal.signal(signal.SIGTERM, _on_terminate)
    code = main(program=program)
    if code in (Exit.INTERRUPTED, Exit.TERMINATED):
        # Do not wait for threads that are still working on files.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def wshard_entry_point() -> NoReturn:
    """The console script `wshard`."""
    entry_point(WSHARD)


def shardpack_entry_point() -> NoReturn:
    """The console script `shardpack`."""
    entry_point(SHARDPACK)
