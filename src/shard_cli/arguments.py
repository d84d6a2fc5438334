"""What commands are made of, and the arguments that several of them share."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shard_cli.exits import Exit
    from shard_cli.output import Console
    from shard_format import Compression

_SIZE: Final = re.compile(r"(\d+)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Command(NamedTuple):
    """One command of the program."""

    # Not a dataclass: importing that module takes as long as everything else that --help needs.

    name: str
    """What the user types."""
    summary: str
    """One line for the list of commands."""
    examples: Sequence[tuple[str, str]]
    """Command lines, each with what it does."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Declares its arguments."""
    run: Callable[[argparse.Namespace, Console], Exit]
    """Does the work and says how it went; errors are raised."""
    description: str = ""
    """What the summary leaves open."""


def size_argument(text: str) -> int:
    """Bytes from `4096`, `64K`, `1M`, `2GiB`; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; write bytes, or a number with K, M, G or T"
        )
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


def range_argument(text: str) -> tuple[int, int | None]:
    """Start and stop from `START:STOP`; either may be left out."""
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range; write START:STOP in bytes")
    return int(match[1] or 0), int(match[2]) if match[2] else None


def positive_argument(text: str) -> int:
    """A number of things, at least one."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """`--jobs`, for commands that work on many files."""
    parser.add_argument(
        "-j",
        "--jobs",
        type=positive_argument,
        metavar="N",
        help="files to work on at the same time (default: one for each processor)",
    )


def add_patterns(parser: argparse.ArgumentParser, what: str) -> None:
    """PATTERN… and `--prefix`, which choose entries together."""
    parser.add_argument(
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help=f"{what} only entries whose whole name fits: * any text, ? one character, [a-c] a set",
    )
    parser.add_argument(
        "--prefix", metavar="TEXT", help=f"{what} only entries whose name starts with TEXT"
    )


def add_max_decompressed(parser: argparse.ArgumentParser) -> None:
    """`--max-decompressed`, for every command that decompresses entries."""
    parser.add_argument(
        "--max-decompressed",
        type=size_argument,
        metavar="SIZE",
        help="accept compressed entries up to this size (default 1G); raise it for files you trust",
    )


def add_force(parser: argparse.ArgumentParser, help_text: str) -> None:
    """`--force`."""
    parser.add_argument("-f", "--force", action="store_true", help=help_text)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """`--dry-run`."""
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="say what would be written, write nothing"
    )


def add_storage(parser: argparse.ArgumentParser, *, compression: str, alignment: str) -> None:
    """How entries are stored: `--compression`, `--alignment`, `--frame-bytes`."""
    parser.add_argument(
        "-c",
        "--compression",
        metavar="CODEC",
        help=f"none, lz4, zstd, or zstd with a level: zstd:19 (default: {compression})",
    )
    parser.add_argument(
        "--alignment",
        type=int,
        choices=(0, 16, 32, 64),
        help=f"entries start on a multiple of this (default: {alignment})",
    )
    parser.add_argument(
        "--frame-bytes",
        type=size_argument,
        metavar="SIZE",
        help="make zstd entries seekable, with so many bytes in each frame: 64K, 1M",
    )


def parse_storage(args: argparse.Namespace) -> Compression | None:
    """The `--compression` that was asked for, checked together with `--frame-bytes`."""
    from shard_format.codecs import Codec, Compression
    from shard_format.errors import InvalidArgument

    if args.frame_bytes is not None and args.frame_bytes < 1:
        raise InvalidArgument("--frame-bytes must be at least 1", found=args.frame_bytes)
    if args.compression is None:
        return None
    compression = Compression.parse(args.compression)
    if args.frame_bytes is not None and compression.codec is not Codec.ZSTD:
        raise InvalidArgument(
            "only zstd entries can be seekable",
            expected="--compression zstd together with --frame-bytes",
            found=f"--compression {args.compression}",
        )
    return compression
