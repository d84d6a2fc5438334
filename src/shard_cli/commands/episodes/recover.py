"""`wshard recover`: what a recording holds that was never finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_force
from shard_cli.episode_saving import check_output
from shard_cli.exits import Exit
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a journal, EPISODE.wshard.partial")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the episode to write (default: FILE without .partial)",
    )
    add_force(parser, "replace OUT if it exists")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from wshard.journal import PARTIAL_SUFFIX
    from wshard.recorded import recover

    output = args.output or args.file.removesuffix(PARTIAL_SUFFIX)
    check_output(output, console, force=args.force)
    found = recover(args.file, output)
    if console.as_json:
        console.document(
            {
                "file": args.file,
                "output": output,
                "episode": found.episode_id,
                "steps": found.steps,
                "finished": found.finished,
                "lost_bytes": found.lost_bytes,
                "cut": found.cut,
                "problem": found.problem,
            }
        )
    console.said(
        f"{printable(output)}: {count(found.steps, 'step')} of {printable(found.episode_id)} came back"
    )
    if found.lost_bytes:
        console.said(
            f"  lost: {size(found.lost_bytes)} behind the last whole frame: {found.problem}"
        )
    for block, entries in found.cut.items():
        console.said(f"  lost: {count(entries, 'entry')} of {printable(block)}, which others lack")
    console.said(f"  {printable(args.file)} is as it was; remove it when you have looked")
    return Exit.IO if found.lost_data else Exit.OK


COMMAND = Command(
    name="recover",
    summary="bring back a recording that was not finished",
    description="Saves every step up to the last one that is whole in all channels. The journal is never\n"
    "touched. Exit code 3 if it held anything that could not be brought back.",
    examples=(
        ("wshard recover ep.wshard.partial", "to ep.wshard"),
        ("wshard recover ep.wshard.partial -o saved.wshard", "to another file"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
