"""`shardpack stats`: sizes by content type, and how they are distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shard_cli.arguments import Command
from shard_cli.exits import Exit
from shard_cli.pack_files import add_packs, open_pack
from shard_cli.text import count, fit, percent, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from shard_cli.pack_facts import Statistics

_BAR_COLUMNS: Final = 40
# A set where every entry has a name of its own says nothing with all of them.
_MOST_NAMES: Final = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_packs(parser)
    parser.add_argument("--names", action="store_true", help="also sizes by name of the entry")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.pack_facts import Statistics

    found = Statistics()
    shards = 0
    for pack in args.packs:
        with open_pack(pack) as dataset, console.progress(f"stats {pack}") as bar:
            total = sum(shard.footer.total_size for shard in dataset.shards)
            before = 0
            for shard in dataset.shards:
                for record in shard.records():
                    found.add(record)
                    bar.update(before + record.offset, total)
                before += shard.footer.total_size
            shards += len(dataset.shards)
    if console.as_json:
        console.document({"files": args.packs, "shards": shards, **found.to_fields()})
    else:
        _show(found, shards, args, console)
    return Exit.OK


def _show(found: Statistics, shards: int, args: argparse.Namespace, console: Console) -> None:
    console.line(
        f"{count(found.records, 'record')} with {count(found.entries, 'entry')} in "
        f"{count(shards, 'shard')}: {size(found.size)}, stored {size(found.stored)} "
        f"({percent(found.stored, found.size)})"
    )
    if not found.records:
        return
    console.line()
    _table("CONTENT TYPE", found.by_type, found.size, console)
    if args.names:
        console.line()
        largest = dict(sorted(found.by_name.items(), key=lambda item: -item[1][1])[:_MOST_NAMES])
        _table("NAME", largest, found.size, console)
        if len(largest) < len(found.by_name):
            console.line(f"… and {count(len(found.by_name) - len(largest), 'more name')}")
    console.line()
    _table("CODEC", found.by_codec, found.size, console)
    console.line()
    _histogram(found, console)
    assert found.smallest is not None
    assert found.largest is not None
    mean = found.size // found.records
    console.line(
        f"mean {size(mean)}, smallest {size(found.smallest[0])} "
        f"({printable(fit(found.smallest[1], 40))}), largest {size(found.largest[0])} "
        f"({printable(fit(found.largest[1], 40))})"
    )


def _table(heading: str, counts: dict[str, list[int]], whole: int, console: Console) -> None:
    exact = not console.out_is_terminal
    show_size = str if exact else size
    rows = [
        [
            key or "unknown",
            str(entries) if exact else f"{entries:,}",
            show_size(content),
            show_size(stored),
            percent(stored, content),
            percent(content, whole),
        ]
        for key, (entries, content, stored) in sorted(
            counts.items(), key=lambda item: (-item[1][1], item[0])
        )
    ]
    headings = [heading, "ENTRIES", "SIZE", "STORED", "RATIO", "SHARE"]
    console.table(headings, rows, right=(1, 2, 3, 4, 5))


def _histogram(found: Statistics, console: Console) -> None:
    console.line(console.style("records by size", "bold"))
    most = max(number for _, _, number in found.buckets())
    for start, stop, number in found.buckets():
        # At least a mark for what is there at all.
        columns = max(round(_BAR_COLUMNS * number / most), int(number > 0))
        # The bucket of empty records has no width.
        label = "empty" if stop == 1 else f"{size(start)} to {size(stop)}"
        console.line(f"  {label:>24}  {number:>9,}  {'#' * columns}".rstrip())


COMMAND = Command(
    name="stats",
    summary="show sizes by content type, and a histogram of records",
    description="Reads the heads of all records, never the entries.",
    examples=(
        ("shardpack stats train-000000.shardpack", "one shard"),
        ("shardpack stats --names 'train-*.shardpack'", "a set, also by entry name"),
        ("shardpack stats --json train/ | jq .content_types", "for programs"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
