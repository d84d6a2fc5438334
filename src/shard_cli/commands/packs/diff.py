"""`shardpack diff`: what differs between two packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_max_decompressed
from shard_cli.pack_files import PACK_HELP, open_pack
from shard_cli.text import count

if TYPE_CHECKING:
    import argparse

    from shard_cli.exits import Exit
    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=PACK_HELP)
    parser.add_argument("b", metavar="B", help="the other")
    parser.add_argument(
        "--stored",
        action="store_true",
        help="also compare how entries are stored, and the order of the records",
    )
    parser.add_argument(
        "--brief", action="store_true", help="stop at the first difference and only say that"
    )
    add_max_decompressed(parser)


def diff_packs(args: argparse.Namespace, console: Console) -> Exit:
    """Compares two packs; `shard diff` comes here, too."""
    from shard_cli.commands.diff import show_differences
    from shard_cli.pack_comparing import compare_packs

    limit = args.max_decompressed
    with (
        open_pack(args.a, max_decompressed=limit) as a,
        open_pack(args.b, max_decompressed=limit) as b,
        console.progress("diff") as bar,
    ):
        differences = compare_packs(a, b, stored=args.stored, progress=bar.update)
        return show_differences(differences, args, console, count(len(a), "record"))


COMMAND = Command(
    name="diff",
    summary="compare two packs record by record",
    description="Records are found by their keys, content is compared after decompression: two packs that\n"
    "differ only in codec, order or number of shards are the same. Exit code 0 the same, 1 different.",
    examples=(
        (
            "shardpack diff old.shardpack new.shardpack",
            "- only in A, + only in B, ~ changed, * described",
        ),
        ("shardpack diff --brief 'a-*.shardpack' b/ && echo same", "for scripts"),
    ),
    add_arguments=_add_arguments,
    run=diff_packs,
)
