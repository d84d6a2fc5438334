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
    from wshard.plot import PlotOptions, plot_episode

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
            options=PlotOptions(
                models=_names(args.models),
                dims=_numbers(args.dims),
                per_dim=True if args.per_dim else None,
                size=args.size,
                dpi=args.dpi,
            ),
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


def _numbers(arguments: list[str]) -> list[int] | None:
    from shard_format.errors import InvalidArgument

    names = _names(arguments)
    if names is None:
        return None
    for name in names:
        if not (name.isascii() and name.isdecimal()):
            raise InvalidArgument(
                "a dimension is not a number", expected="--dims 0,2", found=repr(name)
            )
    return [int(name) for name in names]


def _inches(text: str) -> tuple[float, float]:
    """`12x8`."""
    import argparse

    try:
        width, height = (float(side) for side in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write inches as 12x8") from None
    return width, height


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
        arg.repeated(
            "--models MODEL,…",
            "draw the predictions of these models only, or patterns such as 'v3_*'",
        ),
        arg.repeated("--dims N,…", "draw these dimensions only, counted from 0"),
        arg.flag("--per-dim", "give each dimension a panel of its own"),
        arg.option(
            "--steps START:STOP",
            "draw only these steps, or times since the first step as 1.5s:3s",
            type=episode_options.steps_argument,
        ),
        arg.option(
            "--size WxH",
            "the width and height of the picture in inches (default: 12 inches, as high as needed)",
            type=_inches,
        ),
        arg.option("--dpi N", "pixels per inch (default: 130)", default=130),
        arg.force(),
        arg.MAX_DECOMPRESSED,
    ),
    """
draw the channels of an episode

Draws predictions over what happened, and below them how far off they are: difference, RMSE, calibration. Refuses a
prediction whose shape does not fit its channel. Needs matplotlib: pip install 'shard-format[plot]'.

wshard plot ep.wshard -o ep.png                             # everything
wshard plot ep.wshard -o arm.svg --channels joint_pos,ctrl  # two channels
wshard plot ep.wshard -o start.png --steps 0s:2.5s          # the first seconds
wshard plot ep.wshard -o m.png --models dreamer --dims 0,1  # one model, two dimensions
""",
)
