"""What a command is, how it declares its arguments, and the arguments that several commands share."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shard_cli.console import Console
    from shard_cli.exits import Exit
    from shard_format import Compression

_SIZE: Final = re.compile(r"(\d+)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Argument(NamedTuple):
    """One argument of a command, as `ArgumentParser.add_argument` takes it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class Command(NamedTuple):
    """One command of a program."""

    # Not a dataclass: importing that module takes as long as everything else that --help needs.

    name: str
    """What the user types."""
    run: Callable[[argparse.Namespace, Console], Exit]
    """Does the work and returns the exit code; raises errors."""
    arguments: tuple[Argument, ...]
    text: str
    """Paragraphs: a summary of one line, what it leaves open, and examples, each with a comment."""

    @property
    def summary(self) -> str:
        """One line for the list of commands."""
        return self.text.strip().partition("\n")[0]

    @property
    def description(self) -> str:
        """What the summary leaves open."""
        return "\n\n".join(self.text.strip().split("\n\n")[1:-1])

    @property
    def examples(self) -> list[tuple[str, str]]:
        """Command lines, each with what it does."""
        lines = self.text.strip().split("\n\n")[-1].splitlines()
        rows = [line.partition("  # ") for line in lines]
        return [(line.rstrip(), comment) for line, _, comment in rows]


# --- values


def size_argument(text: str) -> int:
    """Bytes from `4096`, `64K`, `1M`, `2GiB`; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; write bytes, or a number with K, M, G or T"
        )
    return _below_2_63(int(match[1]) * _UNITS[(match[2] or "").upper()], text)


def positive_argument(text: str) -> int:
    """An integer of 1 or more."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 1 or more")
    return _below_2_63(int(text), text)


def _below_2_63(number: int, text: str) -> int:
    if number >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is too large")
    return number


def pairs_of(given: Sequence[str], option: str) -> dict[str, str]:
    """The fields of `KEY=VALUE` arguments; raises if one is malformed or comes twice."""
    from shard_format.errors import InvalidArgument

    fields: dict[str, str] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidArgument(f"{option} needs a name", expected="KEY=VALUE", found=repr(pair))
        if key in fields:
            raise InvalidArgument(f"{option} has the same name twice", found=repr(key))
        fields[key] = value
    return fields


def split_name(argument: str) -> tuple[str, str]:
    """Name and path of `NAME=PATH`; a file whose own name has an equals sign wins."""
    name, equals, path = argument.partition("=")
    is_pair = equals and name and path and not os.path.lexists(argument)
    return (name, path) if is_pair else ("", argument)


# --- declaring

_TYPES: Final = {"SIZE": size_argument, "N": positive_argument}
"""What the values of options are, by what `--help` calls them."""


def positional(dest: str, metavar: str, text: str, **more: Any) -> Argument:  # noqa: ANN401 - argparse's
    """An argument without a flag; `nargs="+"` for one or more."""
    return Argument((dest,), {"metavar": metavar, "help": text, **more})


def flag(names: str, text: str, **more: Any) -> Argument:  # noqa: ANN401 - argparse's
    """An option without a value."""
    return Argument(tuple(names.split()), {"action": "store_true", "help": text, **more})


def option(names: str, text: str, **more: Any) -> Argument:  # noqa: ANN401 - argparse's
    """An option with a value: `-o --output OUT`, or with the `choices` of one."""
    *flags, metavar = names.split()
    if metavar.startswith("-"):
        return Argument((*flags, metavar), {"help": text, **more})
    settings = {"metavar": metavar, "type": _TYPES.get(metavar), "help": text, **more}
    return Argument(tuple(flags), settings)


def repeated(names: str, text: str, **more: Any) -> Argument:  # noqa: ANN401 - argparse's
    """An option with a value that may be given several times."""
    return option(names, f"{text}; may be repeated", action="append", default=[], **more)


# --- what a command works on

PACK_HELP: Final = (
    "a shard, a set file such as train.shardpack-set, a set such as "
    "'train-{000000..000009}.shardpack', a folder, or a URL"
)
# `shardpack` calls the first two of these PACK.
FILE: Final = positional("file", "FILE", "a file of the Shard family")
FILES: Final = positional("files", "FILE", "files of the Shard family", nargs="+")
PACK: Final = positional("file", "PACK", PACK_HELP)
PACKS: Final = positional("files", "PACK", PACK_HELP, nargs="+")
EPISODE: Final = positional("file", "FILE", "an episode")
EPISODE_OR_MANIFEST: Final = positional(
    "file", "FILE", "an episode, or the manifest of a chunked one"
)
EPISODES: Final = positional(
    "files",
    "FILE|FOLDER",
    "episodes, or folders that are searched for *.wshard, with their subfolders",
    nargs="+",
)


def patterns(verb: str) -> tuple[Argument, Argument]:
    """PATTERN… and `--prefix`, which choose entries or records together."""
    return (
        positional(
            "patterns",
            "PATTERN",
            f"{verb} only entries whose whole names match, or records of a pack whose keys match: * is any "
            "text, ? one character, [a-c] a set",
            nargs="*",
        ),
        option("--prefix TEXT", f"{verb} only entries, or records, whose names start with TEXT"),
    )


# --- how it works

JOBS: Final = option(
    "-j --jobs N", "work on N files at the same time (default: one for each processor)"
)
ENGINE: Final = (
    option(
        "--engine",
        "where to do the work: in processes on this machine, or on a Ray cluster (default: local)",
        choices=("local", "ray"),
        default="local",
    ),
    option(
        "--address ADDRESS",
        "the Ray cluster: HOST:PORT, or auto for the one on this machine (default: RAY_ADDRESS, or a new "
        "one on this machine)",
    ),
)
MAX_DECOMPRESSED: Final = option(
    "--max-decompressed SIZE",
    "accept compressed entries up to SIZE (default 1G); raise it for files you trust",
)
DRY_RUN: Final = flag("-n --dry-run", "show what would be written, but write nothing")
DIRECTORY: Final = option(
    "-C --directory DIR", "write below DIR (default: the current folder)", default="."
)
NO_SIDECARS: Final = flag("--no-sidecars", "leave out lanes and edits that were added later")


def force(text: str = "replace OUT if it exists") -> Argument:
    """`--force`."""
    return flag("-f --force", text)


def alignment(choices: tuple[int, ...], default: int | None, shown: str) -> Argument:
    """`--alignment`."""
    text = f"start entries on a multiple of this many bytes (default: {shown})"
    return option("--alignment", text, type=int, choices=choices, default=default)


def storage(compression: str, aligned: str) -> tuple[Argument, ...]:
    """How entries of a container are stored: `--compression`, `--alignment`, `--frame-bytes`."""
    return (
        option(
            "-c --compression CODEC",
            f"none, lz4, zstd, or zstd with a level: zstd:19 (default: {compression})",
        ),
        alignment((0, 16, 32, 64), None, aligned),
        option(
            "--frame-bytes SIZE",
            "make zstd entries seekable, with SIZE bytes in each frame: 64K, 1M",
        ),
    )


def parse_storage(args: argparse.Namespace) -> Compression | None:
    """The `--compression` that was asked for, checked together with `--frame-bytes`."""
    from shard_format.codecs import Codec, Compression
    from shard_format.errors import InvalidArgument

    if args.frame_bytes is not None and args.frame_bytes < 1:
        raise InvalidArgument("--frame-bytes must be at least 1", found=args.frame_bytes)
    compression = None if args.compression is None else Compression.parse(args.compression)
    if compression is not None and args.frame_bytes and compression.codec is not Codec.ZSTD:
        raise InvalidArgument(
            "only zstd entries can be seekable",
            expected="--compression zstd together with --frame-bytes",
            found=f"--compression {args.compression}",
        )
    return compression


def metadata(*, several: bool = False) -> Argument:
    """`--metadata KEY=VALUE`; `several` pairs after one flag only where no positional arguments follow."""
    return option(
        "-m --metadata KEY=VALUE",
        "fields about the whole pack, as text; may be repeated",
        action="extend",
        nargs="+" if several else 1,
        default=[],
    )


def metadata_entry(text: str) -> Argument:
    """`--metadata-entry`, as `extract` and `create` have it: `shardpack.files.METADATA_ENTRY` by default."""
    name = "__metadata__.json"
    return option(
        "--metadata-entry NAME",
        f"{text}, in place of the name of an entry (default: {name})",
        default=name,
    )
