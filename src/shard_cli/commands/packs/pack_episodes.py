"""`shardpack pack-episodes`: all episodes of a folder in shards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shard_cli.arguments import Command
from shard_cli.exits import Exit
from shard_cli.pack_output import add_output, report_written, written_output
from shard_cli.pack_storage import add_metadata, metadata_of
from shard_cli.text import count

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console

# A folder may hold thousands of other files beside its episodes.
_MOST_SHOWN = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="searched for *.wshard, with its subfolders"
    )
    add_output(parser)
    add_metadata(parser)
    parser.add_argument(
        "--resume",
        "--append",
        action="store_true",
        help="keep the shards that are there and pack only episodes that are not in them",
    )


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.episodes import pack_episodes

    total = _bytes_of(args.folder)
    done = 0
    with (
        written_output(args, console, can_resume=True) as (output, options),
        console.progress(f"pack {args.folder}") as bar,
    ):

        def advance(number: int) -> None:
            nonlocal done
            done += number
            bar.update(done, max(done, total))

        found = pack_episodes(
            args.folder, output, progress=advance, metadata=metadata_of(args), **options
        )
    shown = found.left_out if console.verbose else found.left_out[:_MOST_SHOWN]
    for path in shown:
        console.warn(f"not packed: {path} is not a finished episode")
    if len(shown) < len(found.left_out):
        console.warn(f"not packed: {len(found.left_out) - len(shown):,} more files; see -v")
    report_written(
        console,
        found.paths,
        found.episodes,
        "episode",
        folder=args.folder,
        sidecars=found.sidecars,
        left_out=found.left_out,
    )
    if found.sidecars:
        console.said(f"  with {count(found.sidecars, 'file')} of added lanes")
    if found.left_out:
        console.said(f"  {count(len(found.left_out), 'other file')} not packed")
    return Exit.OK


def _bytes_of(folder: str) -> int:
    from shard_cli.files import known_size

    return sum(
        known_size(os.path.join(where, name))
        for where, _, names in os.walk(folder)
        for name in names
    )


COMMAND = Command(
    name="pack-episodes",
    summary="put the episodes of a folder into shards",
    description="Each .wshard file is stored as it is, with its added lanes, and opens in place. The record of\n"
    "run/ep_7.wshard has the key run/ep_7. 'shardpack unpack' restores the files byte for byte.",
    examples=(
        ("shardpack pack-episodes recordings -o episodes-%06d.shardpack", "shards of 1 GiB"),
        (
            "shardpack pack-episodes recordings -o episodes-%06d.shardpack --resume",
            "add what was recorded since",
        ),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
