"""`shardpack to-tar`: tar files of samples from a pack."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, add_force, positive_argument, size_argument
from shard_cli.exits import Exit
from shard_cli.files import STDIN
from shard_cli.pack_files import add_pack, open_watched, shards_of
from shard_cli.pack_output import parse_target, prepare_target, shown_paths
from shard_cli.text import count, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pack(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="TAR",
        required=True,
        help="the file to write, compressed if it ends in .tar.gz or .tar.zst; train-%%06d.tar for a "
        "set; - for stdout",
    )
    parser.add_argument(
        "--tar-size",
        type=size_argument,
        default=1 << 30,
        metavar="SIZE",
        help="of a set: a new file starts before one grows above this (default 1G)",
    )
    parser.add_argument(
        "--tar-records",
        type=positive_argument,
        metavar="N",
        help="of a set: a new file starts after so many records",
    )
    parser.add_argument(
        "--metadata-entry",
        metavar="NAME",
        default="metadata.json",
        help="the member for the metadata of a record, if it has any (default: metadata.json)",
    )
    parser.add_argument(
        "--inexact",
        action="store_true",
        help="also write records that would come back under another key",
    )
    add_force(parser, "replace files of this name that exist")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.convert.tar import to_tar

    shards = shards_of(args.pack)
    output: Any = args.output
    if output == STDIN:
        _refuse_mixture(console)
        output = sys.stdout.buffer
    else:
        target = parse_target(args.output)
        if target.is_plain:
            # One file is asked for: 0001.tar is only a name.
            target = target._replace(pattern=None)
        prepare_target(target, force=args.force, can_resume=False, sources=shards)
        output = target.pattern or target.name
    with console.progress("to-tar") as bar, open_watched(shards, bar) as dataset:
        done = to_tar(
            dataset,
            output,
            metadata_entry=args.metadata_entry,
            exact=not args.inexact,
            max_bytes=args.tar_size,
            max_records=args.tar_records,
        )
    if args.output == STDIN:
        return Exit.OK
    files: list[dict[str, Any]] = [
        {"file": path, "size": os.stat(path).st_size} for path in done.paths
    ]
    if console.as_json:
        console.document({"file": args.pack, "tars": files, "records": done.records})
    console.said(
        f"{shown_paths(done.paths)}: {count(done.records, 'record')} in "
        f"{count(len(files), 'tar file')}, {size(sum(one['size'] for one in files))}"
    )
    return Exit.OK


def _refuse_mixture(console: Console) -> None:
    from shard_format.errors import InvalidArgument

    if console.as_json:
        raise InvalidArgument("stdout cannot have both a tar file and JSON")
    if console.out_is_terminal:
        raise InvalidArgument("a tar file is binary data, and stdout is a terminal")


COMMAND = Command(
    name="to-tar",
    summary="write a pack as tar files of samples",
    description="Entry jpg of record a/0001 is the member a/0001.jpg, as WebDataset reads it. Entries are\n"
    "decompressed. The same records give the same bytes.",
    examples=(
        ("shardpack to-tar train-000000.shardpack -o train-000000.tar", "one file"),
        ("shardpack to-tar 'train-*.shardpack' -o train-%06d.tar", "files of 1 GiB"),
        ("shardpack to-tar train-000000.shardpack -o - | tar t", "to a pipe"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
