"""`shard get`: one entry to a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_force, add_max_decompressed
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite, same_file, write_file
from shard_cli.opening import open_shard
from shard_cli.text import printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shard_cli.output import Console

_LONGEST_FILE_NAME = 255
# What no file system takes, or what means something to one of them or to a shell.
_UNWANTED = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*]')


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file of the Shard family")
    parser.add_argument("entry", metavar="ENTRY", help="the name of an entry")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the file to write (default: the last part of the name, in the current folder)",
    )
    add_force(parser, "replace the file if it exists")
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument

    if args.output == "-":
        raise InvalidArgument("get writes to a file", hint="'shard cat' writes to stdout")
    with open_shard(args.file, max_decompressed=args.max_decompressed) as reader:
        total = reader.info(args.entry).size
        path = args.output or file_name(args.entry)
        refuse_overwrite(path, force=args.force)
        if same_file(path, args.file):
            raise InvalidArgument("this would replace the file that is being read", path=path)
        with console.progress(f"get {args.entry}") as bar:

            def counted() -> Iterator[memoryview]:
                done = 0
                for piece in reader.iter_entry(args.entry):
                    yield piece
                    done += len(piece)
                    bar.update(done, total)

            written = write_file(path, counted())
    if console.as_json:
        console.document({"file": args.file, "entry": args.entry, "output": path, "size": written})
    console.said(f"{printable(path)}: {size(written)}")
    return Exit.OK


def file_name(name: str) -> str:
    """A plain file name for an entry: the last part of its name, without what could do harm."""
    last = re.split(r"[/\\]", name)[-1]
    # Not printable: direction marks and other invisible characters.
    plain = "".join(c if c.isprintable() else "_" for c in _UNWANTED.sub("_", last))
    plain = plain.encode()[:_LONGEST_FILE_NAME].decode(errors="ignore")
    return "entry" if plain.strip(". ") == "" else plain


COMMAND = Command(
    name="get",
    summary="write one entry to a file",
    description="The file appears when all of it is written and its checksum fits.",
    examples=(
        ("shard get data.shard images/0001.png", "to 0001.png in the current folder"),
        ("shard get data.shard weights -o weights.bin", "to a file of your choice"),
        ("shard get data.shard weights -o weights.bin --force", "replacing it"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
