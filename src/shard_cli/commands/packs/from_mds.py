"""`shardpack from-mds`: packs from MDS data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_max_decompressed
from shard_cli.opening import limits_with
from shard_cli.pack_output import add_output, report_converted, written_output
from shard_cli.pack_storage import add_columns, add_metadata, add_pack_storage, metadata_of

if TYPE_CHECKING:
    import argparse

    from shard_cli.exits import Exit
    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="where index.json is")
    add_output(parser)
    add_columns(parser)
    add_pack_storage(parser)
    add_metadata(parser)
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.convert.mds import from_mds

    with written_output(args, console) as (output, options):
        found = from_mds(
            args.folder,
            output,
            columns=args.column,
            key=args.key,
            limits=limits_with(args.max_decompressed),
            compression=args.compression,
            alignment=args.alignment,
            metadata=metadata_of(args),
            **options,
        )
    return report_converted(console, found, "not asked for", folder=args.folder)


COMMAND = Command(
    name="from-mds",
    summary="make a pack of an MDS data set",
    description="Bytes, text, JSON and images become entries as they are, arrays .npy entries, numbers metadata\n"
    "of the record. Pickles are kept as bytes and never loaded. What 'shardpack to-mds' wrote becomes the\n"
    "records that it was, with their keys.",
    examples=(
        ("shardpack from-mds mds/train -o train-%06d.shardpack", "all columns, numbers as keys"),
        ("shardpack from-mds mds/train -o train.shardpack --key id --column jpg", "one column"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
