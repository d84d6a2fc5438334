"""`ls`: the entries of a file, or the records of a pack, as a table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shard_cli import arguments as arg
from shard_cli.exits import Exit
from shard_cli.kinds import readable_kind
from shard_cli.text import count, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from shard_cli.console import Console


def _run(args: argparse.Namespace, console: Console) -> Exit:
    kind = readable_kind(args.file, console.program)
    if (args.names_only or args.null) and not console.as_json:
        with kind.names(args.file, args) as names:
            _print_names(names, "\0" if args.null else "\n", console)
        return Exit.OK
    listing = kind.listing(args.file, args, console)
    if console.as_json:
        console.document(listing.document)
    else:
        console.table(listing.headings, listing.rows, right=listing.right)
        console.total(listing.total)
    return Exit.OK


def _print_names(names: Iterable[str], end: str, console: Console) -> None:
    """Prints names as they are for other programs, and escaped in a terminal."""
    split = 0
    for name in names:
        # A name that contains the separator would read as two: escape it, and count it.
        split += end in name
        safe = console.out_is_terminal or end in name
        sys.stdout.write((printable(name) if safe else name) + end)
    if split and not console.out_is_terminal:
        console.warn(
            f"{count(split, 'name')} contain the separator and are printed escaped; use --json"
        )


LS = arg.Command(
    "ls",
    _run,
    (
        arg.FILE,
        *arg.patterns("list"),
        arg.flag(
            "-l --long",
            "also show offset, CRC-32C, flags, alignment, frames, filters; for a pack, one row for each "
            "entry, with type, codec, CRC-32C",
        ),
        arg.flag("--fields", "for a pack: also show the metadata of each record, as JSON"),
        arg.flag("-b --bytes", "show exact sizes in bytes"),
        arg.flag(
            "--names-only --keys-only",
            "print only the names, or the keys of a pack, one on each line",
        ),
        arg.flag("-0 --null", "with --names-only: print NUL after each"),
        arg.option(
            "--sort",
            "order of the entries, the largest first (default: the order of the index)",
            choices=("name", "size", "stored", "offset"),
        ),
    ),
    """
list the entries of a file, or the records of a pack

On a terminal the table is aligned and sizes have units; in a pipe it has tabs and bytes. For a pack, STORED
counts whole records.

shard ls data.shard                                      # all entries
shard ls data.shard 'signal/*' --sort size               # some, the largest first
shard ls -l data.shard --prefix meta/                    # with offsets, checksums and frames
shard ls --names-only -0 data.shard | xargs -0 -n1 echo  # for scripts
shardpack ls train-000000.shardpack                       # all records
shardpack ls 'train-{000000..000009}.shardpack' 'cats/*'  # some records of a set
shardpack ls -l train-000000.shardpack cats/0001          # the entries of one record
shardpack ls --fields train-000000.shardpack              # with the metadata of each record
shardpack ls --keys-only train/ | shuf                    # for scripts
""",
)
