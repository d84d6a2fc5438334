"""`shardpack to-mds`: MDS data sets from a pack."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from shard_cli.arguments import Command, add_force, size_argument
from shard_cli.exits import Exit
from shard_cli.files import beside
from shard_cli.pack_files import add_pack, open_watched, shards_of
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console

_INDEX: Final = "index.json"
_MOST_NAMED: Final = 3
_SHARD: Final = re.compile(r"shard\.\d{5,}\.mds(\.\w+)?")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pack(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        required=True,
        help="the folder for index.json and the shards, empty or not there",
    )
    parser.add_argument(
        "--shard-size",
        type=size_argument,
        default=1 << 26,
        metavar="SIZE",
        help="a new shard starts before the file grows above this, before compression (default 64M)",
    )
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument(
        "--key",
        metavar="COLUMN",
        default="__key__",
        help="the column of the keys (default: __key__)",
    )
    keys.add_argument("--no-key", action="store_true", help="leave the keys out")
    parser.add_argument(
        "--column", action="append", metavar="COLUMN", help="only this column; may be repeated"
    )
    parser.add_argument(
        "--encoding",
        action="append",
        default=[],
        metavar="COLUMN=ENCODING",
        help="how a column is stored: bytes, str, json, jpeg, png, int, float32, ndarray:float32:4 and so on; "
        "may be repeated",
    )
    parser.add_argument(
        "-c", "--compression", metavar="CODEC", help="zstd, or with a level: zstd:7 (default: none)"
    )
    add_force(parser, "replace the data set that is in the folder")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from shardpack.convert.mds import to_mds

    encodings = dict(text.rpartition("=")[::2] for text in args.encoding)
    if not all((*encodings, *encodings.values())):
        raise InvalidArgument(
            "--encoding needs a column and an encoding", expected="COLUMN=ENCODING"
        )
    shards = shards_of(args.pack)
    former = _former(args.output, force=args.force)
    # What is there stays until all of the new one is.
    target = beside(os.path.join(args.output, "mds")) if former else args.output
    with console.progress("to-mds") as bar, open_watched(shards, bar) as dataset:
        done = to_mds(
            dataset,
            target,
            columns=args.column,
            encodings=encodings,
            key=None if args.no_key else args.key,
            max_bytes=args.shard_size,
            compression=args.compression,
        )
    paths = [os.path.join(args.output, os.path.basename(path)) for path in done.paths]
    if former:
        _replace(former, done.paths, paths)
        os.rmdir(target)
    files: list[dict[str, Any]] = [{"file": path, "size": os.stat(path).st_size} for path in paths]
    if console.as_json:
        console.document({"file": args.pack, "files": files, "records": done.records})
    console.said(
        f"{printable(args.output)}: {count(done.records, 'record')} in "
        f"{count(len(files) - 1, 'shard')}, {size(sum(one['size'] for one in files))}"
    )
    return Exit.OK


def _former(folder: str, *, force: bool) -> list[str]:
    """The files of the data set that is to be replaced, the index first; raises if there is anything else."""
    from shard_format.errors import InvalidArgument
    from shardpack.convert._mds_shards import read_index

    found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    own = [name for name in found if name == _INDEX or _SHARD.fullmatch(name)]
    if found and not (force and own == found):
        raise InvalidArgument(
            "the folder is not empty",
            path=folder,
            found=_named([name for name in found if not force or name not in own]),
            hint="remove what is no MDS data set"
            if force
            else "give --force to replace a data set",
        )
    if _INDEX in own:
        read_index(folder)  # says if it belongs to something else
    return [os.path.join(folder, name) for name in sorted(own, key=lambda name: name != _INDEX)]


def _replace(former: list[str], new: list[str], paths: list[str]) -> None:
    """Puts files, of which the index is the last one, in the place of others, of which it is the first one."""
    for path in former:
        os.unlink(path)
    for one, path in zip(new, paths, strict=True):
        os.replace(one, path)


def _named(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_MOST_NAMED])
    return shown + (", …" if len(names) > _MOST_NAMED else "")


COMMAND = Command(
    name="to-mds",
    summary="write a pack as an MDS data set",
    description="Entries and fields of the metadata are columns, which StreamingDataset of MosaicML Streaming reads.\n"
    "Images, JSON and text stay the bytes that they are, .npy entries become arrays. All samples have the\n"
    "same columns. 'shardpack from-mds' gives the records back.",
    examples=(
        ("shardpack to-mds 'train-*.shardpack' -o mds/train", "shards of 64 MiB"),
        (
            "shardpack to-mds train.shardpack -o mds/train --encoding cls=int -c zstd",
            "cls as a number",
        ),
        (
            "shardpack to-mds train.shardpack -o mds/train --column jpg --column label",
            "two columns",
        ),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
