"""`shardpack get`: one entry of a record to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_force, add_max_decompressed
from shard_cli.commands.get import file_name
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite, same_file, write_file
from shard_cli.pack_files import add_pack, open_pack, shards_of
from shard_cli.text import printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pack(parser)
    parser.add_argument("key", metavar="KEY", help="the key of a record")
    parser.add_argument("name", metavar="NAME", help="the name of an entry")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the file to write (default: KEY.NAME without its folders, in the current folder)",
    )
    add_force(parser, "replace the file if it exists")
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument

    if args.output == "-":
        raise InvalidArgument("get writes to a file", hint="'shardpack cat' writes to stdout")
    with open_pack(args.pack, max_decompressed=args.max_decompressed) as dataset:
        entry = dataset[args.key][args.name]
        path = args.output or file_name(f"{args.key}.{args.name}")
        refuse_overwrite(path, force=args.force)
        if any(same_file(path, shard) for shard in shards_of(args.pack)):
            raise InvalidArgument("this would replace the file that is being read", path=path)
        written = write_file(path, [entry.data])
    if console.as_json:
        console.document(
            {
                "file": args.pack,
                "key": args.key,
                "entry": args.name,
                "output": path,
                "size": written,
            }
        )
    console.said(f"{printable(path)}: {size(written)}")
    return Exit.OK


COMMAND = Command(
    name="get",
    summary="write one entry of a record to a file",
    description="The file appears when all of it is written and its checksum fits.",
    examples=(
        ("shardpack get train-000000.shardpack cats/0001 jpg", "to 0001.jpg in the current folder"),
        ("shardpack get train/ cats/0001 jpg -o cat.jpg --force", "to a file of your choice"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
