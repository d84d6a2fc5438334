"""`wshard compact`: lanes that were added later, folded into their episode."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_force
from shard_cli.episode_saving import add_episode_storage, check_output, storage_of
from shard_cli.exits import Exit
from shard_cli.files import same_file
from shard_cli.opening import open_episode
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an episode with sidecars in FILE.lanes/")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the episode to write, which leaves FILE and its sidecars alone (default: FILE is "
        "replaced and its sidecars are removed, with --force)",
    )
    add_force(parser, "replace OUT if it exists, or FILE itself")
    add_episode_storage(parser, "blocks stay as they are stored")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from wshard.sidecar import compact, sidecar_files

    in_place = args.output is None or same_file(args.output, args.file)
    output = args.file if in_place else args.output
    with open_episode(args.file, max_decompressed=args.max_decompressed) as episode:
        assert episode.origin is not None
        is_chunked = bool(episode.origin.chunks)
        asked = args.compression is not None or args.profile is not None
        storage = storage_of(args, episode) if asked else {}
    sidecars = sidecar_files(args.file)
    names = [os.path.basename(sidecar) for sidecar in sidecars]
    if in_place and is_chunked:
        raise InvalidArgument(
            "the chunks of an episode are not changed in place",
            path=args.file,
            hint="give -o OUT for one file with everything",
        )
    is_needed = bool(sidecars) or not in_place or asked
    if is_needed:
        if in_place and not args.force:
            raise InvalidArgument(
                f"{count(len(sidecars), 'sidecar')} would be folded in and removed",
                path=args.file,
                hint="give --force to replace the episode, or -o OUT to write another",
            )
        if not in_place:
            check_output(output, console, force=args.force)
        compact(args.file, None if in_place else output, **storage)
    after = os.stat(output).st_size
    if console.as_json:
        console.document({"file": args.file, "output": output, "sidecars": names, "size": after})
    if is_needed:
        folded = f"{count(len(names), 'sidecar')} folded in" if names else "no sidecars"
        listed = f": {printable(', '.join(names))}" if names else ""
        console.said(f"{printable(output)}: {size(after)}, {folded}{listed}")
    else:
        console.said(f"{printable(args.file)}: no sidecars, nothing to do")
    return Exit.OK


COMMAND = Command(
    name="compact",
    summary="fold lanes that were added later into their episode",
    description="Sidecars are compared with the episode first: one that was made for other content is an\n"
    "error. Blocks are copied as they are stored unless --profile or --compression is given.",
    examples=(
        ("wshard compact ep.wshard --force", "in place; removes ep.wshard.lanes/"),
        ("wshard compact ep.wshard -o whole.wshard", "to another file, keeping both"),
        ("wshard compact ep.wshard -o small.wshard --profile training", "compressed anew"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
