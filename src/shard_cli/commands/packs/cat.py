"""`shardpack cat`: entries of a record to stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_force, add_max_decompressed
from shard_cli.commands.cat import data_fields, is_text
from shard_cli.exits import Exit
from shard_cli.pack_files import add_pack, open_pack

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from shardpack import Entry


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pack(parser)
    parser.add_argument("key", metavar="KEY", help="the key of a record")
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of its entries, in order")
    add_force(parser, "write binary data to a terminal too")
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    return write_entries(
        args.pack,
        args.key,
        args.names,
        console,
        force=args.force,
        max_decompressed=args.max_decompressed,
    )


def write_entries(
    pack: str,
    key: str,
    names: list[str],
    console: Console,
    *,
    force: bool,
    max_decompressed: int | None,
) -> Exit:
    """Writes entries of one record to stdout; `shard cat` comes here, too."""
    with open_pack(pack, max_decompressed=max_decompressed) as dataset:
        record = dataset[key]
        # Nothing is printed if one of the names is wrong, or one of the entries damaged.
        entries = [record[name] for name in names]
        if console.as_json:
            found = [
                {
                    "name": entry.name,
                    "content_type": entry.content_type,
                    **data_fields(entry.read()),
                }
                for entry in entries
            ]
            console.document({"file": pack, "key": key, "entries": found})
            return Exit.OK
        if console.out_is_terminal and not force:
            for entry in entries:
                _refuse_binary(entry, pack)
        contents = [entry.data for entry in entries]
        sys.stdout.flush()
        for data in contents:
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return Exit.OK


def _refuse_binary(entry: Entry, pack: str) -> None:
    from shard_format.errors import InvalidArgument

    if not is_text(bytes(entry.data[:4096])):
        raise InvalidArgument(
            "this is binary data, and stdout is a terminal",
            path=pack,
            entry=entry.name,
            hint="redirect it, use 'shardpack get', or give --force",
        )


COMMAND = Command(
    name="cat",
    summary="write entries of a record to stdout",
    description="Entries are checked before the first byte is written. With --json the document holds the\n"
    "data as text, or as base64 where it is not UTF-8.",
    examples=(
        ("shardpack cat train-000000.shardpack cats/0001 json | jq .", "one entry"),
        ("shardpack cat 'train-*.shardpack' cats/0001 jpg > cat.jpg", "from a set of shards"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
