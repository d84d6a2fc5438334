"""`plot`: an episode as a picture."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shard_cli import arguments as arg
from shard_cli import episode_options
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.text import printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.console import Console


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_episode
    from shard_format.errors import InvalidArgument
    from wshard.plot import plot_episode

    refuse_overwrite(args.output, force=args.force)
    if not os.path.splitext(args.output)[1]:
        raise InvalidArgument(
            "the name of the picture has no suffix", path=args.output, expected=".png, .svg or .pdf"
        )
    with open_episode(args.file, args) as episode:
        steps = None if args.steps is None else slice(*args.steps.resolve(episode))
        plot_episode(
            episode,
            args.output,
            channels=_names(args.channels),
            lanes=_names(args.lanes),
            steps=steps,
        )
    nbytes = os.stat(args.output).st_size
    console.report(
        {"file": args.file, "output": args.output, "size": nbytes},
        f"{printable(args.output)}: {size(nbytes)}",
    )
    return Exit.OK


def _names(arguments: list[str]) -> list[str] | None:
    if not arguments:
        return None
    return [name for names in arguments for name in names.split(",") if name]


PLOT = arg.Command(
    "plot",
    _run,
    (
        arg.positional("file", "FILE", "an episode"),
        arg.option(
            "-o --output OUT",
            "the picture to write; its suffix chooses the format: .png, .svg, .pdf",
            required=True,
        ),
        arg.repeated(
            "--channels NAME,…", "draw only these channels, or patterns such as 'wrist/*'"
        ),
        arg.repeated(
            "--lanes LANE,…",
            "draw only these lanes: signal, action, reward, done, omen, uncert, residual, label",
        ),
        arg.option(
            "--steps START:STOP",
            "draw only these steps, or times since the first step as 1.5s:3s",
            type=episode_options.steps_argument,
        ),
        arg.force(),
        arg.MAX_DECOMPRESSED,
    ),
    """
draw the channels of an episode

Needs matplotlib: pip install 'shard-format[plot]'.

wshard plot ep.wshard -o ep.png                             # everything
wshard plot ep.wshard -o arm.svg --channels joint_pos,ctrl  # two channels
wshard plot ep.wshard -o start.png --steps 0s:2.5s          # the first seconds
""",
)
