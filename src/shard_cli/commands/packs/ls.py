"""`shardpack ls`: the records of a pack as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command
from shard_cli.commands.ls import print_names
from shard_cli.exits import Exit
from shard_cli.pack_files import add_key_patterns, add_pack, chosen_records, open_pack
from shard_cli.text import count, percent, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from shardpack import Record


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pack(parser)
    add_key_patterns(parser, "list")
    parser.add_argument(
        "-l",
        "--long",
        action="store_true",
        help="one row for each entry, with type, codec, CRC-32C",
    )
    parser.add_argument("-b", "--bytes", action="store_true", help="exact sizes in bytes")
    parser.add_argument("--keys-only", action="store_true", help="only keys, one on each line")
    parser.add_argument(
        "-0", "--null", action="store_true", help="with --keys-only: NUL after each key"
    )


def _run(args: argparse.Namespace, console: Console) -> Exit:
    return list_records(
        args.pack,
        args.patterns,
        args.prefix,
        console,
        long=args.long,
        exact=args.bytes,
        keys_only=args.keys_only,
        null=args.null,
    )


def list_records(
    pack: str,
    patterns: list[str],
    prefix: str | None,
    console: Console,
    *,
    long: bool,
    exact: bool,
    keys_only: bool,
    null: bool,
) -> Exit:
    """Prints the records that were asked for; `shard ls` comes here, too."""
    with open_pack(pack) as dataset:
        chosen = chosen_records(dataset, pack, patterns, prefix)
        if console.as_json:
            records = [_fields(record, long=long) for record in chosen]
            console.document({"file": pack, "records": records})
        elif keys_only or null:
            print_names((record.key for record in chosen), "\0" if null else "\n", console)
        elif long:
            _print_entries(list(chosen), console, exact=exact)
        else:
            _print_records(list(chosen), console, exact=exact)
    return Exit.OK


def _fields(record: Record, *, long: bool) -> dict[str, Any]:
    from shard_cli.pack_facts import as_json

    entries = []
    for entry in record.file_entries():
        fields: dict[str, Any] = {
            "name": entry.name,
            "content_type": entry.content_type,
            "size": entry.size,
            "stored": entry.stored_size,
            "codec": entry.compression,
        }
        if long:
            fields |= {"offset": entry.offset, "crc32c": f"{entry.crc32c:08x}"}
        entries.append(fields)
    return {
        "key": record.key,
        "size": sum(entry["size"] for entry in entries),
        "stored": record.size,
        "metadata": as_json(record.metadata),
        "entries": entries,
    }


def _print_records(records: list[Record], console: Console, *, exact: bool) -> None:
    # Programs that read the table want numbers; people want units.
    show_size = str if exact or not console.out_is_terminal else size
    rows = []
    total = stored = 0
    for record in records:
        content = sum(entry.size for entry in record.file_entries())
        total, stored = total + content, stored + record.size
        rows.append(
            [record.key, show_size(content), show_size(record.size), " ".join(record.names)]
        )
    console.table(["KEY", "SIZE", "STORED", "ENTRIES"], rows, right=(1, 2))
    _print_total(count(len(records), "record"), total, stored, console)


def _print_entries(records: list[Record], console: Console, *, exact: bool) -> None:
    show_size = str if exact or not console.out_is_terminal else size
    entries = [(record.key, entry) for record in records for entry in record.file_entries()]
    headings = ["KEY", "ENTRY", "SIZE", "STORED", "RATIO", "CODEC", "TYPE", "OFFSET", "CRC-32C"]
    rows = [
        [
            key,
            entry.name,
            show_size(entry.size),
            show_size(entry.stored_size),
            percent(entry.stored_size, entry.size),
            entry.compression,
            entry.content_type or "-",
            str(entry.offset),
            f"{entry.crc32c:08x}",
        ]
        for key, entry in entries
    ]
    console.table(headings, rows, right=(2, 3, 4, 7))
    total = sum(entry.size for _, entry in entries)
    _print_total(
        f"{count(len(records), 'record')}, {count(len(entries), 'entry')}",
        total,
        sum(record.size for record in records),
        console,
    )


def _print_total(what: str, total: int, stored: int, console: Console) -> None:
    if console.out_is_terminal and not console.quiet:
        text = f"{what}, {size(total)}, stored {size(stored)}"
        console.line(console.style(text, "dim"))


COMMAND = Command(
    name="ls",
    summary="list the records of a pack",
    description="STORED counts the whole record in the file. In a terminal the table is aligned, with units;\n"
    "in a pipe it has tabs and bytes.",
    examples=(
        ("shardpack ls train-000000.shardpack", "all records"),
        ("shardpack ls 'train-{000000..000009}.shardpack' 'cats/*'", "some, of a whole set"),
        ("shardpack ls -l train-000000.shardpack cats/0001", "the entries of one"),
        ("shardpack ls --keys-only train/ | shuf", "for scripts"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
