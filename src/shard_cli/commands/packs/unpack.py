"""`shardpack unpack`: every entry as the file that it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command
from shard_cli.exits import Exit
from shard_cli.pack_files import add_pack, open_pack
from shard_cli.text import count, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pack(parser)
    parser.add_argument(
        "-C", "--directory", metavar="DIR", default=".", help="where to (default: current folder)"
    )


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.episodes import unpack

    done = 0
    with open_pack(args.pack) as dataset, console.progress("unpack") as bar:
        total = sum(shard.footer.index_offset for shard in dataset.shards)

        def advance(number: int) -> None:
            nonlocal done
            done += number
            bar.update(done, total)

        found = unpack(dataset, args.directory, progress=advance)
    if console.as_json:
        console.document(
            {
                "file": args.pack,
                "directory": args.directory,
                "files": found.files,
                "bytes": found.size_bytes,
            }
        )
    console.said(f"unpacked {count(found.files, 'file')}, {size(found.size_bytes)}")
    return Exit.OK


COMMAND = Command(
    name="unpack",
    summary="restore the files of a pack byte for byte",
    description="Key, a dot and name make a path below the folder: of packed episodes exactly the files that\n"
    "were packed. Nothing is replaced, and paths that could lead elsewhere are refused before anything\n"
    "is written. 'shardpack extract' chooses records and has other layouts.",
    examples=(
        ("shardpack unpack episodes-000000.shardpack -C restored", "one shard"),
        ("shardpack unpack 'episodes-*.shardpack' -C restored", "a whole set"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
