"""`shardpack merge`: the records of several packs in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command
from shard_cli.exits import Exit
from shard_cli.pack_files import add_packs, open_watched, shards_of
from shard_cli.pack_output import add_output, report_written, written_output
from shard_cli.pack_storage import add_metadata, new_fields

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_packs(parser)
    add_output(parser)
    add_metadata(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.editing import merge

    shards = [shard for pack in args.packs for shard in shards_of(pack)]
    with (
        written_output(args, console, shards) as (output, options),
        console.progress("merge") as bar,
        open_watched(shards, bar) as dataset,
    ):
        done = merge(dataset, output, **options, **new_fields(args))
    report_written(console, done.paths, done.records, files=args.packs)
    return Exit.OK


COMMAND = Command(
    name="merge",
    summary="put the records of several packs into one",
    description="Entries are copied as they are stored. A key that comes twice is an error.",
    examples=(
        ("shardpack merge a.shardpack b.shardpack -o all.shardpack", "into one shard"),
        ("shardpack merge 'small-*.shardpack' -o train-%06d.shardpack", "into shards of 1 GiB"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
