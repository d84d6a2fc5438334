"""`wshard merge`: episodes that follow one another as one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shard_cli.arguments import Command
from shard_cli.episode_saving import (
    add_episode_storage,
    add_output,
    check_output,
    has_identity,
    refuse_input,
    storage_of,
)
from shard_cli.exits import Exit
from shard_cli.opening import open_episode
from shard_cli.text import count, duration, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from wshard import Episode


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="episodes in the order of time, or the manifest of a chunked one",
    )
    add_output(parser)
    parser.add_argument("--id", help="id of the new episode (default: that of the first)")
    add_episode_storage(parser, "like the first FILE")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from contextlib import ExitStack

    from wshard import save_wshard
    from wshard.editing import merge_episodes

    check_output(args.output, console, force=args.force)
    refuse_input(args.output, args.files, "it would be lost if anything went wrong")
    with ExitStack() as stack:
        episodes = [
            stack.enter_context(open_episode(path, max_decompressed=args.max_decompressed))
            for path in args.files
        ]
        _check_channels(args.files, episodes)
        merged = merge_episodes(episodes, id=args.id)
        storage = storage_of(args, episodes[0])
        save_wshard(merged, args.output, identity=all(map(has_identity, episodes)), **storage)
    after = os.stat(args.output).st_size
    seconds = merged.length / merged.timebase.tick_hz
    if console.as_json:
        console.document(
            {
                "files": args.files,
                "output": args.output,
                "episode_id": merged.id,
                "steps": merged.length,
                "size": after,
            }
        )
    console.said(
        f"{printable(args.output)}: episode {printable(merged.id)}, {count(merged.length, 'step')} "
        f"of {count(len(episodes), 'file')}, {duration(seconds)}, {size(after)}"
    )
    return Exit.OK


def _check_channels(files: list[str], episodes: list[Episode]) -> None:
    """Says which file has other channels; ids of episodes may all be the same."""
    from shard_format.errors import ChunkDiscontinuity

    wanted, *others = ({block for block, _ in episode.blocks()} for episode in episodes)
    for path, names in zip(files[1:], others, strict=True):
        if names != wanted:
            name = min(names ^ wanted)
            raise ChunkDiscontinuity(
                f"this episode {'has' if name in names else 'lacks'} the block {name!r}, "
                f"unlike {files[0]}",
                path=path,
                hint="only episodes with the same channels are merged",
            )


COMMAND = Command(
    name="merge",
    summary="join episodes that follow one another",
    description="They must have the same channels. What they were is kept under merged_from in the metadata,\n"
    "unless they are parts of one episode.",
    examples=(
        ("wshard merge morning.wshard evening.wshard -o day.wshard --id day", "two episodes"),
        ("wshard merge parts/*.wshard -o whole.wshard", "what 'wshard split' has cut"),
        ("wshard merge ep_manifest.wshard -o ep.wshard", "a chunked episode in one file"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
