"""`shardpack recover`: every complete record of a shard that lost its end, or parts of itself."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from shard_cli.arguments import Command, add_force
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.pack_output import SUFFIX
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from shardpack import LostPart, Recovery

# What a killed writer leaves: hidden, with some digits that make it unique.
_LEFTOVER: Final = re.compile(r"\.(.+)\.[0-9a-f]{12}\.partial")
_MOST_SHOWN: Final = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a damaged shard, or the hidden .partial file of a killed writer",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the shard to write (default: the name that a .partial file was for, else FILE with "
        ".recovered before its suffix)",
    )
    add_force(parser, "replace OUT if it exists")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    import shardpack

    output = args.output or _default_output(args.file)
    refuse_overwrite(output, force=args.force)
    found = shardpack.recover(args.file, output)
    if console.as_json:
        console.document(
            {
                "file": args.file,
                "output": found.output,
                "records": found.records,
                "had_index": found.had_index,
                "complete": found.is_complete,
                "lost": [
                    {
                        "offset": part.offset,
                        "size": part.size,
                        "key": part.key,
                        "reason": part.reason,
                    }
                    for part in found.lost
                ],
            }
        )
    _show(found, args.file, console)
    return Exit.IO if found.lost else Exit.OK


def _default_output(path: str) -> str:
    folder, base = os.path.split(path)
    leftover = _LEFTOVER.fullmatch(base)
    if leftover is not None:
        return os.path.join(folder, leftover[1])
    return os.path.join(folder, f"{base.removesuffix(SUFFIX)}.recovered{SUFFIX}")


def _show(found: Recovery, path: str, console: Console) -> None:
    console.said(f"{printable(found.output)}: {count(found.records, 'record')} came back")
    if not found.had_index:
        console.said("  the index was missing or damaged; records were found by reading the file")
    for part in found.lost if console.verbose else found.lost[:_MOST_SHOWN]:
        console.said(f"  lost: {_lost(part)}")
    if not console.verbose and len(found.lost) > _MOST_SHOWN:
        console.said(f"  … and {count(len(found.lost) - _MOST_SHOWN, 'more place')}; see -v")
    console.said(f"  {printable(path)} is as it was; remove it when you have looked")


def _lost(part: LostPart) -> str:
    of = "" if part.key is None else f" of record {printable(repr(part.key))}"
    return f"{size(part.size)}{of} at byte {part.offset:,}: {printable(part.reason)}"


COMMAND = Command(
    name="recover",
    summary="bring back the records of a damaged or unfinished shard",
    description="Writes a new shard with every record that is complete and fits its checksums, as it was\n"
    "stored. FILE is never touched. Exit code 3 if anything could not be brought back.",
    examples=(
        ("shardpack recover cut.shardpack", "to cut.recovered.shardpack"),
        ("shardpack recover damaged.shardpack -o saved.shardpack", "to a file of your choice"),
        (
            "shardpack recover .train-000007.shardpack.0123456789ab.partial",
            "what a killed writer left",
        ),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
