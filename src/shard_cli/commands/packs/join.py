"""`shardpack join`: packs of the same keys as one, or a pack with updates on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command
from shard_cli.exits import Exit
from shard_cli.pack_files import open_pack, open_watched, shards_of
from shard_cli.pack_output import add_output, report_written, written_output
from shard_cli.pack_storage import add_metadata, new_fields

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "packs",
        nargs="+",
        metavar="PACK|NAME=PACK",
        help="packs of the same keys; NAME= puts the name before the names of its entries",
    )
    add_output(parser)
    parser.add_argument(
        "--align",
        choices=("order", "key"),
        default="order",
        help="order: the same keys in the same order; key: in any order (default: order)",
    )
    parser.add_argument(
        "--overlay",
        action="store_true",
        help="later packs update the first one: their entries win, and they may lack keys",
    )
    add_metadata(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from contextlib import ExitStack

    from shard_format.errors import InvalidArgument
    from shardpack.columns import join, overlay
    from shardpack.editing import merge

    columns = [_split(pack) for pack in args.packs]
    if len(columns) < 2:
        raise InvalidArgument("one pack alone is joined with nothing", expected="two or more packs")
    if args.overlay and any(name for name, _ in columns):
        raise InvalidArgument("updates have the names of what they update", found="NAME=PACK")
    shards = [shard for _, pack in columns for shard in shards_of(pack)]
    with (
        written_output(args, console, shards) as (output, options),
        console.progress("join") as bar,
        ExitStack() as stack,
    ):
        # The first one is gone through from start to end, and tells how far it is.
        main = stack.enter_context(open_watched(shards_of(columns[0][1]), bar))
        datasets: list[Any] = [main]
        datasets += [stack.enter_context(open_pack(pack)) for _, pack in columns[1:]]
        if args.overlay:
            combined = overlay(*datasets)
        else:
            named = [
                {name: dataset} if name else dataset
                for (name, _), dataset in zip(columns, datasets, strict=True)
            ]
            combined = join(*named, align=args.align)
        done = merge(combined, output, **options, **new_fields(args))
    report_written(console, done.paths, done.records, files=args.packs)
    return Exit.OK


def _split(argument: str) -> tuple[str, str]:
    """Name and pack; a file whose own name has an equals sign wins over NAME=PACK."""
    name, equals, pack = argument.partition("=")
    if equals and name and pack and not os.path.lexists(argument):
        return name, pack
    return "", argument


COMMAND = Command(
    name="join",
    summary="put the entries of packs with the same keys together",
    description="Missing and extra keys are named and stop it. Entries are copied as they are stored.",
    examples=(
        ("shardpack join images.shardpack depth.shardpack -o both.shardpack", "columns of one set"),
        (
            "shardpack join left=l.shardpack right=r.shardpack -o stereo.shardpack",
            "left.jpg and right.jpg",
        ),
        (
            "shardpack join --overlay main.shardpack labels.shardpack -o new.shardpack",
            "updated entries win",
        ),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
