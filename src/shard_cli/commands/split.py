"""`slice` and `split`: parts of an episode or of a pack."""

from __future__ import annotations

import argparse
import glob
import os
import re
from typing import TYPE_CHECKING, Any, Final

from shard_cli import arguments as arg
from shard_cli import episode_options, pack_output
from shard_cli.episode_options import SUFFIX
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.text import count, printable

if TYPE_CHECKING:
    from shard_cli.console import Console
    from wshard import Episode


# --- some steps of an episode


def _run_slice(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_episode
    from wshard.editing import slice_episode

    episode_options.check_output(args.output, console, force=args.force)
    why = "the steps that are left out would be lost"
    episode_options.refuse_input(args.output, [args.file], why)
    with open_episode(args.file, args) as episode:
        start, stop = args.steps.resolve(episode)
        part = slice_episode(episode, start, stop, id=args.id)
        facts = episode_options.save(part, args.output, [episode], args)
    console.report(
        {"file": args.file, "output": args.output, "start": start, "stop": stop, **facts},
        episode_options.saved_text(args.output, part, facts["size"]),
    )
    return Exit.OK


# --- parts of an episode

_STEP: Final = re.compile("[0-9]{1,19}")


def _steps_list(text: str) -> list[int]:
    parts = text.split(",")
    if not all(_STEP.fullmatch(part.strip()) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of steps such as 100,250")
    return [int(part) for part in parts]


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_episode
    from shard_format.errors import InvalidArgument

    if (args.steps is None) == (args.at is None):
        raise InvalidArgument("say where to cut", expected="--steps N, or --at STEP,…")
    if args.chunked and args.at is not None:
        raise InvalidArgument("chunks have equal lengths", hint="pass --steps with --chunked")
    if os.path.lexists(args.output) and not os.path.isdir(args.output):
        raise InvalidArgument("this is a file", path=args.output, expected="a folder to write to")
    with open_episode(args.file, args) as episode:
        split = _chunks if args.chunked else _parts
        facts = split(episode, args, console)
    if console.as_json:
        console.document({"file": args.file, "dry_run": args.dry_run, **facts})
    return Exit.OK


def _parts(episode: Episode, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from wshard.editing import split_episode

    parts = split_episode(episode, steps=args.steps, at=args.at)
    stem = os.path.join(args.output, os.path.basename(args.file).removesuffix(SUFFIX))
    paths = [f"{stem}_part_{number:04}{SUFFIX}" for number in range(len(parts))]
    for path in paths:
        refuse_overwrite(path, force=args.force)
    written = []
    for path, part in zip(paths, parts, strict=True):
        facts: dict[str, Any] = {"episode_id": part.id, "steps": part.length, "size": None}
        if not args.dry_run:
            os.makedirs(args.output, exist_ok=True)
            facts = episode_options.save(part, path, [episode], args)
        written.append({"file": path, **facts})
        console.said(episode_options.saved_text(path, part, facts["size"]))
    return {"manifest": None, "parts": written}


def _chunks(episode: Episode, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from wshard import ChunkedEpisodeWriter

    stem = os.path.join(args.output, episode.id)
    manifest = f"{stem}_manifest{SUFFIX}"
    parts: list[dict[str, Any]] = [
        {
            "file": f"{stem}_chunk_{number:04}{SUFFIX}",
            "episode_id": episode.id,
            "steps": min(args.steps, episode.length - start),
            "size": None,
        }
        for number, start in enumerate(range(0, max(1, episode.length), args.steps))
    ]
    paths = [part["file"] for part in parts]
    for path in (*paths, manifest):
        refuse_overwrite(path, force=args.force)
    if not args.dry_run:
        storage = episode_options.storage_of(args, episode)
        writer = ChunkedEpisodeWriter(args.output, episode.id, chunk_size_t=args.steps, **storage)
        written = writer.write_episode(episode)
        writer.finalize_manifest()
        for part, path in zip(parts, written, strict=True):
            part["file"], part["size"] = path, os.stat(path).st_size
        _warn_of_others(args.output, episode.id, written, console)
    for part in parts if args.dry_run or console.verbose else ():
        console.said(f"{printable(part['file'])}: {count(part['steps'], 'step')}")
    nbytes = None if args.dry_run else sum(part["size"] for part in parts)
    steps = f"{count(episode.length, 'step')} in {count(len(parts), 'chunk')}"
    console.said(episode_options.saved_text(manifest, episode, nbytes, steps))
    return {"manifest": manifest, "parts": parts}


def _warn_of_others(folder: str, episode: str, paths: list[str], console: Console) -> None:
    """Warns of chunks that a writer left which was killed: they would look like a part of this episode."""
    pattern = os.path.join(glob.escape(folder), f"{glob.escape(episode)}_chunk_[0-9]*{SUFFIX}")
    others = set(glob.glob(pattern)) - set(paths)
    if others:
        console.warn(
            f"{folder} holds {count(len(others), 'older chunk')} of this episode that the new "
            f"manifest does not name, such as {os.path.basename(min(others))}"
        )


# --- parts of a pack


def _run_pack(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.pack import files, open_watched
    from shard_format.errors import InvalidArgument
    from shardpack.editing import split

    if bool(args.share) == (args.output is not None):
        raise InvalidArgument(
            "say what to write", expected="--output NAME, or --share NAME=SHARE repeated"
        )
    shares = dict(_share(text) for text in args.share)
    names = {name: pack_output.parse_target(name) for name in (shares or [args.output])}
    for target in names.values():
        if target.pattern is None and not shares:
            raise InvalidArgument(
                "the name of a set needs a number",
                path=target.name,
                expected="such as part-%06d.shardpack",
            )
        if target.is_stdout:
            raise InvalidArgument("the parts go to files, not to stdout", found=target.name)
        if target.first:
            raise InvalidArgument("parts are numbered from 0", path=target.name)
    shards = files(args.file)
    metadata = pack_output.metadata_of(args)
    options: dict[str, Any] = {"metadata": metadata} if metadata else {}
    for target in names.values():
        options |= pack_output.prepare_target(target, args, shards)
    patterns = {target.pattern or name: name for name, target in names.items()}
    outputs: Any = next(iter(patterns))
    if shares:
        outputs = {pattern: shares[name] for pattern, name in patterns.items()}
    with console.progress("split") as bar, open_watched(shards, args, bar) as dataset:
        done = split(
            dataset,
            outputs,
            parts=args.parts,
            max_bytes=args.shard_size,
            max_records=args.shard_records,
            seed=args.seed,
            **options,
        )
    if len(done) == 1:
        (only,) = done.values()
        pack_output.report_written(console, only.paths, only.records, file=args.file)
        return Exit.OK
    parts = []
    for pattern, edited in done.items():
        facts, text = pack_output.written_facts(console, edited.paths, edited.records)
        parts.append({"output": patterns[pattern], **facts})
        console.said(text)
    if console.as_json:
        console.document({"file": args.file, "parts": parts})
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


SLICE = arg.Command(
    "slice",
    _run_slice,
    (
        arg.EPISODE,
        arg.positional(
            "steps",
            "START:STOP",
            "steps, or times since the first step as 1.5s:3s; STOP is not included; you may leave out "
            "either end",
            type=episode_options.steps_argument,
        ),
        *episode_options.output(),
        arg.option("--id ID", "id of the new episode (default: the old one with the steps)"),
        *episode_options.storage("like FILE"),
    ),
    """
cut some steps out of an episode

Cuts all lanes: channels with their own clock by time, labels at their ends. Times do not change.

wshard slice ep.wshard 100:200 -o part.wshard          # 100 steps
wshard slice ep.wshard 1.5s:3s -o part.wshard          # by time since the first step
wshard slice ep.wshard 500: -o end.wshard --id ep_end  # the rest, with a name
""",
)
WSHARD = arg.Command(
    "split",
    _run,
    (
        arg.EPISODE,
        arg.option("-o --output FOLDER", "the folder to write to", required=True),
        arg.option("--steps N", "put N steps into each part; the last may have fewer"),
        arg.option(
            "--at STEP,…", "start the second, third, … part at these steps", type=_steps_list
        ),
        arg.flag(
            "--chunked",
            "write one episode in chunks with a manifest instead of separate episodes; with --steps",
        ),
        arg.force("replace files that exist"),
        arg.DRY_RUN,
        *episode_options.storage("like FILE"),
    ),
    """
cut an episode into parts or chunks

Parts are episodes of their own, FOLDER/FILE_part_0000.wshard and so on. Chunks stay one
episode, which opens by its manifest. 'wshard merge' joins both again.

wshard split ep.wshard -o parts --steps 1000             # parts of 1000 steps
wshard split ep.wshard -o parts --at 120,480             # three parts
wshard split long.wshard -o long --steps 5000 --chunked  # chunks and a manifest
wshard split ep.wshard -o parts --steps 1000 --dry-run   # what would be written
""",
)
SHARDPACK = arg.Command(
    "split",
    _run_pack,
    (
        arg.PACK,
        arg.option("-o --output NAME", "the shards to write, such as part-%%06d.shardpack"),
        arg.option("--parts N", "write N shards of equal length"),
        arg.option("--shard-records N", "put N records into each shard"),
        arg.option("--shard-size SIZE", "the largest size of a shard"),
        arg.repeated(
            "--share NAME=SHARE",
            "put this share of the records, chosen at random, into a set; repeat it until the shares "
            "add up to 1",
        ),
        arg.option(
            "--seed N",
            "with --share: the seed of the random choice (default 0)",
            type=int,
            default=0,
        ),
        arg.metadata(),
        arg.force("replace shards of these names that exist"),
    ),
    """
cut a pack into several shards or sets

Copies entries as they are stored. With --share, the key of a record and the seed decide where
it goes: the same every time, and records that you add later move no others.

shardpack split all.shardpack -o part-%06d.shardpack --parts 4          # four of equal length
shardpack split all.shardpack -o part-%06d.shardpack --shard-size 256M  # by size
shardpack split all.shardpack --share train-%06d.shardpack=0.9 --share val-%06d.shardpack=0.1  # at random
""",
)
