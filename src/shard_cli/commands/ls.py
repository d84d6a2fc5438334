"""`shard ls`: the entries of a file as a table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, add_patterns
from shard_cli.exits import Exit
from shard_cli.opening import open_shard
from shard_cli.pack_files import is_pack
from shard_cli.selection import choose
from shard_cli.text import count, percent, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from shard_cli.entries import Row
    from shard_cli.output import Console
    from shard_format import ShardReader

_SORT_KEYS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row.name,
    # Largest first: that is what one sorts by size for.
    "size": lambda row: (-row.size, row.name),
    "stored": lambda row: (-row.stored, row.name),
    "offset": lambda row: row.offset,
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file of the Shard family")
    add_patterns(parser, "list")
    parser.add_argument(
        "-l",
        "--long",
        action="store_true",
        help="also offset, CRC-32C, flags, alignment, frames, filters",
    )
    parser.add_argument("-b", "--bytes", action="store_true", help="exact sizes in bytes")
    parser.add_argument(
        "--sort", choices=tuple(_SORT_KEYS), help="order of the rows (default: that of the index)"
    )
    parser.add_argument("--names-only", action="store_true", help="only names, one on each line")
    parser.add_argument(
        "-0", "--null", action="store_true", help="with --names-only: NUL after each name"
    )


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.commands.packs.ls import list_records
    from shard_cli.entries import iter_rows

    if is_pack(args.file):
        return list_records(
            args.file,
            args.patterns,
            args.prefix,
            console,
            long=args.long,
            exact=args.bytes,
            keys_only=args.names_only,
            null=args.null,
        )
    with open_shard(args.file) as reader:
        wanted = None
        if args.patterns or args.prefix is not None:
            wanted = set(choose(reader, args.patterns, args.prefix))
        rows = list(iter_rows(reader, wanted))
        if args.sort:
            rows.sort(key=_SORT_KEYS[args.sort])
        if console.as_json:
            entries = [_fields(row, reader, long=args.long) for row in _with_tags(rows, reader)]
            console.document({"file": args.file, "entries": entries})
        elif args.names_only or args.null:
            print_names([row.name for row in rows], "\0" if args.null else "\n", console)
        else:
            _print_table(rows, reader, args, console)
    return Exit.OK


def _with_tags(rows: list[Row], reader: ShardReader) -> list[tuple[Row, list[str]]]:
    from shard_cli.entries import schema_or_empty

    if not any(row.tag_bits for row in rows):
        return [(row, []) for row in rows]
    schema = schema_or_empty(reader)
    return [(row, schema.tags(row.tag_bits)) for row in rows]


def _fields(tagged: tuple[Row, list[str]], reader: ShardReader, *, long: bool) -> dict[str, Any]:
    from shard_format.registry import content_type_label

    row, tags = tagged
    fields: dict[str, Any] = {
        "name": row.name,
        "size": row.size,
        "stored": row.stored,
        "codec": row.codec,
        "content_type": row.content_type,
        "content_type_name": content_type_label(row.content_type),
        "tags": tags,
    }
    if long:
        fields |= {
            "offset": row.offset,
            "crc32c": None if row.crc32c is None else f"{row.crc32c:08x}",
            "flags": row.flags,
            "alignment": _alignment_of(row.offset),
            "frames": _frames(row, reader),
            "filters": _filters(row, reader),
        }
    return fields


def _print_table(
    rows: list[Row], reader: ShardReader, args: argparse.Namespace, console: Console
) -> None:
    from shard_format.registry import content_type_label

    # Programs that read the table want numbers; people want units.
    exact = args.bytes or not console.out_is_terminal
    show_size = str if exact else size
    tagged = _with_tags(rows, reader)
    with_tags = any(tags for _, tags in tagged) or not console.out_is_terminal
    headings = ["NAME", "SIZE", "STORED", "RATIO", "CODEC", "TYPE"]
    if args.long:
        headings += ["OFFSET", "CRC-32C", "FLAGS", "ALIGN", "FRAMES", "FILTERS"]
    if with_tags:
        headings.append("TAGS")
    table = []
    for row, tags in tagged:
        cells = [
            row.name,
            show_size(row.size),
            show_size(row.stored),
            percent(row.stored, row.size),
            row.codec,
            "-" if row.content_type == 0 else content_type_label(row.content_type),
        ]
        if args.long:
            frames = _frames(row, reader)
            cells += [
                str(row.offset),
                "-" if row.crc32c is None else f"{row.crc32c:08x}",
                f"{row.flags:04x}",
                str(_alignment_of(row.offset)),
                "-" if frames is None else str(frames),
                _filters(row, reader) or "-",
            ]
        table.append([*cells, ",".join(tags)] if with_tags else cells)
    console.table(headings, table, right=(1, 2, 3, 6, 9, 10) if args.long else (1, 2, 3))
    if console.out_is_terminal and not console.quiet:
        total, stored = sum(row.size for row in rows), sum(row.stored for row in rows)
        text = f"{count(len(rows), 'entry')}, {size(total)}, stored {size(stored)}"
        console.line(console.style(text, "dim"))


def _alignment_of(offset: int) -> int:
    """The largest power of two that divides the offset, up to a page: what a reader may count on."""
    return min(offset & -offset, 4096)


def _frames(row: Row, reader: ShardReader) -> int | None:
    """How many frames a seekable entry has; None for others and for damaged tables."""
    from shard_format.errors import ShardError

    try:
        table = reader.seek_table(row.name)
    except ShardError:
        return None
    return None if table is None else len(table)


def _filters(row: Row, reader: ShardReader) -> str | None:
    """What was done to an entry before compression; None for nothing and for what cannot be told."""
    from shard_format.errors import ShardError

    try:
        filters = reader.filters(row.name)
    except ShardError:
        return None
    return None if filters is None else str(filters)


def print_names(names: Iterable[str], end: str, console: Console) -> None:
    """Names as they are, for other programs; printable ones for a terminal."""
    split = 0
    for name in names:
        # A name with the separator inside would read as two: shown escaped, and counted.
        split += end in name
        safe = console.out_is_terminal or end in name
        sys.stdout.write((printable(name) if safe else name) + end)
    if split and not console.out_is_terminal:
        console.warn(
            f"{count(split, 'name')} with the separator inside, printed escaped; use --json"
        )


COMMAND = Command(
    name="ls",
    summary="list the entries of a file",
    description="In a terminal the table is aligned, with units; in a pipe it has tabs and bytes.",
    examples=(
        ("shard ls data.shard", "all entries"),
        ("shard ls data.shard 'signal/*' --sort size", "some, the largest first"),
        ("shard ls -l data.shard --prefix meta/", "with offsets, checksums and frames"),
        ("shard ls --names-only -0 data.shard | xargs -0 -n1 echo", "for scripts"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
