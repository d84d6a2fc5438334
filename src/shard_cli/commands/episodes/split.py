"""`wshard split`: an episode as several."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, add_dry_run, add_force, positive_argument
from shard_cli.episode_files import SUFFIX
from shard_cli.episode_saving import add_episode_storage, has_identity, storage_of
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.opening import open_episode
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    from shard_cli.output import Console
    from wshard import Episode


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an episode")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", required=True, help="where to, made if need be"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--steps",
        type=positive_argument,
        metavar="N",
        help="steps in each part; the last may have fewer",
    )
    where.add_argument(
        "--at",
        type=_steps_list,
        metavar="STEP,…",
        help="steps at which the second, third, … part starts",
    )
    parser.add_argument(
        "--chunked",
        action="store_true",
        help="one episode in chunks with a manifest, instead of separate episodes; with --steps",
    )
    add_force(parser, "replace files that exist")
    add_dry_run(parser)
    add_episode_storage(parser, "like FILE")


def _steps_list(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of steps such as 100,250")
    return [int(part) for part in parts]


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument

    if args.chunked and args.at is not None:
        raise InvalidArgument("chunks have equal lengths", hint="give --steps with --chunked")
    if os.path.lexists(args.output) and not os.path.isdir(args.output):
        raise InvalidArgument("this is a file", path=args.output, expected="a folder to write to")
    with open_episode(args.file, max_decompressed=args.max_decompressed) as episode:
        split = _chunks if args.chunked else _parts
        facts = split(episode, args, console)
    if console.as_json:
        console.document({"file": args.file, "dry_run": args.dry_run, **facts})
    return Exit.OK


def _parts(episode: Episode, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from wshard import save_wshard
    from wshard.editing import split_episode

    storage = storage_of(args, episode)
    parts = split_episode(episode, steps=args.steps, at=args.at)
    stem = os.path.basename(args.file).removesuffix(SUFFIX)
    paths = [
        os.path.join(args.output, f"{stem}_part_{number:04}{SUFFIX}")
        for number in range(len(parts))
    ]
    for path in paths:
        refuse_overwrite(path, force=args.force)
    written = []
    if not args.dry_run:
        os.makedirs(args.output, exist_ok=True)
    for path, part in zip(paths, parts, strict=True):
        nbytes = None
        if not args.dry_run:
            save_wshard(part, path, identity=has_identity(episode), **storage)
            nbytes = os.stat(path).st_size
        written.append({"file": path, "episode_id": part.id, "steps": part.length, "size": nbytes})
        text = f"{printable(path)}: episode {printable(part.id)}, {count(part.length, 'step')}"
        console.said(text if nbytes is None else f"{text}, {size(nbytes)}")
    return {"manifest": None, "parts": written}


def _chunks(episode: Episode, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from wshard.chunked import ChunkedEpisodeWriter

    starts = range(0, max(1, episode.length), args.steps)
    names = [f"{episode.id}_chunk_{number:04}{SUFFIX}" for number in range(len(starts))]
    manifest = os.path.join(args.output, f"{episode.id}_manifest{SUFFIX}")
    parts: list[dict[str, Any]] = [
        {
            "file": os.path.join(args.output, name),
            "episode_id": episode.id,
            "steps": min(args.steps, episode.length - start),
            "size": None,
        }
        for name, start in zip(names, starts, strict=True)
    ]
    for path in (*(part["file"] for part in parts), manifest):
        refuse_overwrite(path, force=args.force)
    if not args.dry_run:
        _warn_of_others(args.output, episode.id, names, console)
        writer = ChunkedEpisodeWriter(
            args.output, episode.id, chunk_size_t=args.steps, **storage_of(args, episode)
        )
        writer.write_episode(episode)
        writer.finalize_manifest()
        for part in parts:
            part["size"] = os.stat(part["file"]).st_size
    for part in parts if args.dry_run or console.verbose else ():
        console.said(f"{printable(part['file'])}: {count(part['steps'], 'step')}")
    text = (
        f"{printable(manifest)}: episode {printable(episode.id)}, {count(episode.length, 'step')} in "
        f"{count(len(parts), 'chunk')}"
    )
    nbytes = sum(part["size"] or 0 for part in parts)
    console.said(text if args.dry_run else f"{text}, {size(nbytes)}")
    return {"manifest": manifest, "parts": parts}


def _warn_of_others(folder: str, episode: str, names: list[str], console: Console) -> None:
    """Chunks of an earlier, longer run would look like a part of this episode."""
    if not os.path.isdir(folder):
        return
    pattern = re.compile(re.escape(episode) + r"_chunk_\d{4,}" + re.escape(SUFFIX))
    others = [name for name in os.listdir(folder) if pattern.fullmatch(name) and name not in names]
    if others:
        console.warn(
            f"{folder} holds {count(len(others), 'older chunk')} of this episode that the new "
            f"manifest does not name, such as {min(others)}"
        )


COMMAND = Command(
    name="split",
    summary="cut an episode into parts or chunks",
    description="Parts are episodes of their own, FOLDER/FILE_part_0000.wshard and so on. Chunks stay one\n"
    "episode, which opens by its manifest. 'wshard merge' joins both again.",
    examples=(
        ("wshard split ep.wshard -o parts --steps 1000", "parts of 1000 steps"),
        ("wshard split ep.wshard -o parts --at 120,480", "three parts"),
        ("wshard split long.wshard -o long --steps 5000 --chunked", "chunks and a manifest"),
        ("wshard split ep.wshard -o parts --steps 1000 --dry-run", "what would be written"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
