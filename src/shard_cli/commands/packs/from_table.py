"""`shardpack from-table`: packs from Parquet and Arrow tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command
from shard_cli.pack_output import add_output, report_converted, written_output
from shard_cli.pack_storage import add_columns, add_metadata, add_pack_storage, metadata_of

if TYPE_CHECKING:
    import argparse

    from shard_cli.exits import Exit
    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tables", nargs="+", metavar="TABLE", help=".parquet, .arrow or .feather files, or patterns"
    )
    add_output(parser)
    add_columns(parser)
    parser.add_argument(
        "--entry",
        action="append",
        default=[],
        metavar="COLUMN=NAME",
        help="the name of the entry that a column becomes, such as text=text.txt; may be repeated",
    )
    add_pack_storage(parser)
    add_metadata(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from shardpack.convert.tables import from_table

    entries = dict(text.partition("=")[::2] for text in args.entry)
    if not all(entries.values()):
        raise InvalidArgument("--entry needs a column and a name", expected="COLUMN=NAME")
    with written_output(args, console) as (output, options):
        found = from_table(
            args.tables,
            output,
            key=args.key,
            columns=args.column,
            entries=entries,
            compression=args.compression,
            alignment=args.alignment,
            metadata=metadata_of(args),
            **options,
        )
    return report_converted(console, found, "not asked for", files=args.tables)


COMMAND = Command(
    name="from-table",
    summary="make a pack of Parquet or Arrow tables",
    description="Each row is a record. Bytes, images and lists of numbers become entries, all else metadata of\n"
    "the record. Needs pyarrow, the extra 'arrow'.",
    examples=(
        (
            "shardpack from-table train.parquet -o train-%06d.shardpack --key id",
            "keys from a column",
        ),
        (
            "shardpack from-table 'part-*.parquet' -o t.shardpack --entry text=text.txt",
            "many files",
        ),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
