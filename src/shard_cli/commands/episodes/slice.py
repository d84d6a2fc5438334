"""`wshard slice`: some steps of an episode as an episode of their own."""

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
    steps_argument,
    storage_of,
)
from shard_cli.exits import Exit
from shard_cli.opening import open_episode
from shard_cli.text import count, duration, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an episode")
    parser.add_argument(
        "steps",
        type=steps_argument,
        metavar="START:STOP",
        help="steps, or times from the first step on as 1.5s:3s; STOP is not included, either end "
        "may be left out",
    )
    add_output(parser)
    parser.add_argument("--id", help="id of the new episode (default: the old one with the steps)")
    add_episode_storage(parser, "like FILE")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from wshard import save_wshard
    from wshard.editing import slice_episode

    check_output(args.output, console, force=args.force)
    refuse_input(args.output, [args.file], "the steps that are left out would be lost")
    with open_episode(args.file, max_decompressed=args.max_decompressed) as episode:
        start, stop = args.steps.resolve(episode)
        storage = storage_of(args, episode)
        part = slice_episode(episode, start, stop, id=args.id)
        save_wshard(part, args.output, identity=has_identity(episode), **storage)
    after = os.stat(args.output).st_size
    seconds = part.length / part.timebase.tick_hz
    if console.as_json:
        console.document(
            {
                "file": args.file,
                "output": args.output,
                "episode_id": part.id,
                "start": start,
                "stop": stop,
                "steps": part.length,
                "size": after,
            }
        )
    console.said(
        f"{printable(args.output)}: episode {printable(part.id)}, {count(part.length, 'step')}, "
        f"{duration(seconds)}, {size(after)}"
    )
    return Exit.OK


COMMAND = Command(
    name="slice",
    summary="cut some steps out of an episode",
    description="All lanes are cut: channels with clocks of their own by time, labels are clipped. Times stay\n"
    "what they were.",
    examples=(
        ("wshard slice ep.wshard 100:200 -o part.wshard", "100 steps"),
        ("wshard slice ep.wshard 1.5s:3s -o part.wshard", "by time from the first step on"),
        ("wshard slice ep.wshard 500: -o end.wshard --id ep_end", "the rest, with a name"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
