"""`wshard plot`: an episode as a picture."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_force, add_max_decompressed
from shard_cli.episode_saving import steps_argument
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.opening import open_episode
from shard_cli.text import printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an episode")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="the picture to write; its suffix says which kind: .png, .svg, .pdf",
    )
    parser.add_argument(
        "--channels",
        action="append",
        metavar="NAME,…",
        help="only these channels, or patterns such as 'wrist/*'; may be repeated",
    )
    parser.add_argument(
        "--lanes",
        action="append",
        metavar="LANE,…",
        help="only these lanes: signal, action, reward, done, omen, uncert, residual, label",
    )
    parser.add_argument(
        "--steps",
        type=steps_argument,
        metavar="START:STOP",
        help="only these steps, or times from the first step on as 1.5s:3s",
    )
    add_force(parser, "replace OUT if it exists")
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from wshard.plotting import plot_episode

    refuse_overwrite(args.output, force=args.force)
    if not os.path.splitext(args.output)[1]:
        raise InvalidArgument(
            "the name of the picture has no suffix", path=args.output, expected=".png, .svg or .pdf"
        )
    with open_episode(args.file, max_decompressed=args.max_decompressed) as episode:
        steps = None if args.steps is None else slice(*args.steps.resolve(episode))
        plot_episode(
            episode,
            args.output,
            channels=_names(args.channels),
            lanes=_names(args.lanes),
            steps=steps,
        )
    nbytes = os.stat(args.output).st_size
    if console.as_json:
        console.document({"file": args.file, "output": args.output, "size": nbytes})
    console.said(f"{printable(args.output)}: {size(nbytes)}")
    return Exit.OK


def _names(arguments: list[str] | None) -> list[str] | None:
    if arguments is None:
        return None
    return [name for names in arguments for name in names.split(",") if name]


COMMAND = Command(
    name="plot",
    summary="draw the channels of an episode",
    description="Needs matplotlib: pip install 'shard-format[plot]'.",
    examples=(
        ("wshard plot ep.wshard -o ep.png", "everything"),
        ("wshard plot ep.wshard -o arm.svg --channels joint_pos,ctrl", "two channels"),
        ("wshard plot ep.wshard -o start.png --steps 0s:2.5s", "the first seconds"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
