"""`shardpack split`: a pack as several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, add_force, positive_argument, size_argument
from shard_cli.exits import Exit
from shard_cli.pack_files import add_pack, open_watched, shards_of
from shard_cli.pack_output import (
    describe_shards,
    parse_target,
    prepare_target,
    report_written,
    shown_paths,
)
from shard_cli.pack_storage import add_metadata, new_fields
from shard_cli.text import count, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pack(parser)
    parser.add_argument(
        "-o", "--output", metavar="NAME", help="the shards to write, such as part-%%06d.shardpack"
    )
    parser.add_argument(
        "--parts", type=positive_argument, metavar="N", help="so many shards of equal length"
    )
    parser.add_argument(
        "--shard-records", type=positive_argument, metavar="N", help="records of each shard"
    )
    parser.add_argument(
        "--shard-size", type=size_argument, metavar="SIZE", help="the largest size of a shard"
    )
    parser.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="NAME=SHARE",
        help="a set and its share of the records, by chance; repeat it until the shares add up to 1",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="with --share: another one deals differently (default 0)",
    )
    add_metadata(parser)
    add_force(parser, "replace shards of these names that exist")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from shardpack.editing import split

    if bool(args.share) == (args.output is not None):
        raise InvalidArgument(
            "into what is not said", expected="--output NAME, or --share NAME=SHARE repeated"
        )
    shares = dict(_share(text) for text in args.share)
    names = {name: parse_target(name) for name in (shares or [args.output])}
    shards = shards_of(args.pack)
    for target in names.values():
        if target.pattern is None and not shares:
            raise InvalidArgument(
                "the name of a set needs a number",
                path=target.name,
                expected="such as part-%06d.shardpack",
            )
        if target.first:
            raise InvalidArgument("parts are numbered from 0", path=target.name)
    for target in names.values():
        prepare_target(target, force=args.force, can_resume=False, sources=shards)
    patterns = {target.pattern or name: name for name, target in names.items()}
    outputs: Any = next(iter(patterns))
    if shares:
        outputs = {pattern: shares[name] for pattern, name in patterns.items()}
    with console.progress("split") as bar, open_watched(shards, bar) as dataset:
        done = split(
            dataset,
            outputs,
            parts=args.parts,
            max_bytes=args.shard_size,
            max_records=args.shard_records,
            seed=args.seed,
            **new_fields(args),
        )
    if len(done) == 1:
        (only,) = done.values()
        report_written(console, only.paths, only.records, file=args.pack)
        return Exit.OK
    parts = []
    for pattern, edited in done.items():
        written = describe_shards(edited.paths)
        parts.append({"output": patterns[pattern], "records": edited.records, "shards": written})
        console.said(
            f"{shown_paths(edited.paths)}: {count(edited.records, 'record')} in "
            f"{count(len(written), 'shard')}, {size(sum(one['size'] for one in written))}"
        )
    if console.as_json:
        console.document({"file": args.pack, "parts": parts})
    return Exit.OK


def _share(text: str) -> tuple[str, float]:
    from shard_format.errors import InvalidArgument

    name, _, share = text.rpartition("=")
    try:
        return name, float(share)
    except ValueError:
        raise InvalidArgument(
            "--share needs a name and a share",
            expected="such as train-%06d.shardpack=0.9",
            found=repr(text),
        ) from None


COMMAND = Command(
    name="split",
    summary="cut a pack into several shards or sets",
    description="Entries are copied as they are stored. By shares, a record goes where its key and the seed\n"
    "say: the same every time, and records that are added later change nothing for the others.",
    examples=(
        ("shardpack split all.shardpack -o part-%06d.shardpack --parts 4", "four of equal length"),
        ("shardpack split all.shardpack -o part-%06d.shardpack --shard-size 256M", "by size"),
        (
            "shardpack split all.shardpack --share train-%06d.shardpack=0.9 --share val-%06d.shardpack=0.1",
            "by chance",
        ),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
