"""`pack-episodes`: the episodes of a folder in shards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shard_cli import arguments as arg
from shard_cli import pack_output
from shard_cli.exits import Exit
from shard_cli.files import known_size
from shard_cli.jobs import executor_of, is_elsewhere
from shard_cli.text import count

if TYPE_CHECKING:
    import argparse

    from shard_cli.console import Console


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import MOST_SHOWN
    from shard_train.packed_episodes import listing_revision, pack_episodes
    from shardpack.files import walk

    label = pack_output.set_label(args)
    if label is not None and label.part:
        label = pack_output.set_label(args, listing_revision(args.folder))
    args.label = label
    # What is not a folder is refused below.
    items = walk(args.folder) if os.path.isdir(args.folder) else []
    total = sum(known_size(item.path) for item in items)
    with (
        pack_output.written_output(args, console) as (output, options),
        console.progress(f"pack {args.folder}") as bar,
    ):
        found = pack_episodes(
            args.folder,
            output,
            progress=bar.adding_to(total),
            executor=executor_of(args) if is_elsewhere(args) or (args.jobs or 1) > 1 else None,
            **options,
        )
    shown = found.left_out if console.verbose else found.left_out[:MOST_SHOWN]
    for path in shown:
        console.warn(f"not packed: {path} is not a finished episode")
    if len(shown) < len(found.left_out):
        console.warn(f"not packed: {len(found.left_out) - len(shown):,} more files; see -v")
    pack_output.report_written(
        console,
        found.paths,
        found.episodes,
        "episode",
        folder=args.folder,
        sidecars=found.sidecars,
        left_out=found.left_out,
    )
    if found.sidecars:
        console.said(f"  with {count(found.sidecars, 'sidecar')}")
    if found.left_out:
        console.said(f"  {count(len(found.left_out), 'other file')} not packed")
    return Exit.OK


PACK_EPISODES = arg.Command(
    "pack-episodes",
    _run,
    (
        arg.positional("folder", "FOLDER", "searched for *.wshard, with its subfolders"),
        *pack_output.OUTPUT,
        arg.metadata(),
        arg.flag(
            "--resume --append",
            "keep the shards that exist and pack only episodes that are not in them",
        ),
        arg.option(
            "--part K/N",
            "write only the K-th of N parts, which other machines write at the same time; "
            "'shardpack commit' then makes a set of them",
        ),
        arg.option(
            "-j --jobs N", "write N parts at the same time, and make a set of them (default: 1)"
        ),
        *arg.ENGINE,
    ),
    """
put the episodes of a folder into shards

Stores each .wshard file as it is, with its sidecars, so that it opens inside the pack. The record of
run/ep_7.wshard has the key run/ep_7. 'shardpack extract' restores the files byte for byte.

shardpack pack-episodes recordings -o episodes-%06d.shardpack           # shards of 1 GiB
shardpack pack-episodes recordings -o episodes-%06d.shardpack --resume  # add what was recorded since
shardpack pack-episodes recordings -o episodes-%06d.shardpack --part 3/16  # on the third of 16 machines
""",
)
