"""`wshard recover`: what a recording holds that was never finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_force
from shard_cli.episode_saving import check_output
from shard_cli.exits import Exit
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from wshard import Recovery


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a journal, EPISODE.wshard.partial, or of a recording in chunks any of its files",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the episode to write (default: the name that it was recorded for)",
    )
    add_force(parser, "replace OUT if it exists")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from wshard.recorded import recover
    from wshard.recording_files import RecordingFiles

    files = RecordingFiles.of(args.file)
    output = args.output
    if not files.is_rolled:  # finished chunks are never replaced
        output = output or files.path
        check_output(output, console, force=args.force)
    found = recover(args.file, output)
    assert found.out is not None
    if console.as_json:
        console.document(
            {
                "file": args.file,
                "output": found.out,
                "episode": found.episode_id,
                "steps": found.steps,
                "finished": found.finished,
                "lost_bytes": found.lost_bytes,
                "lost_steps": found.lost_steps,
                "cut": found.cut,
                "problem": found.problem,
                "chunks": [
                    {"file": chunk.path, "steps": chunk.steps, "recovered": chunk.from_journal}
                    for chunk in found.chunks
                ],
            }
        )
    console.said(
        f"{printable(found.out)}: {count(found.steps, 'step')} of {printable(found.episode_id)} came back"
    )
    for chunk in found.chunks:
        how = "came back" if chunk.from_journal else "was finished"
        console.said(f"  {printable(chunk.path)}: {count(chunk.steps, 'step')}, {how}")
    _say_losses(found, console)
    console.said(f"  {printable(found.path)} is as it was; remove it when you have looked")
    return Exit.IO if found.lost_data else Exit.OK


def _say_losses(found: Recovery, console: Console) -> None:
    if found.lost_bytes:
        console.said(
            f"  lost: {size(found.lost_bytes)} behind the last whole frame: {found.problem}"
        )
    if found.lost_steps:
        console.said(f"  lost: {count(found.lost_steps, 'step')} before others that came back")
    for block, entries in found.cut.items():
        console.said(f"  lost: {count(entries, 'entry')} of {printable(block)}, which others lack")


COMMAND = Command(
    name="recover",
    summary="bring back a recording that was not finished",
    description="Saves every step up to the last one that is whole in all channels. Journals are never\n"
    "touched. Of a recording in chunks, those that are finished stay as they are; what is left in journals\n"
    "becomes chunks, and the manifest names all. Exit code 3 if anything could not be brought back.",
    examples=(
        ("wshard recover ep.wshard.partial", "to ep.wshard"),
        ("wshard recover ep.wshard.partial -o saved.wshard", "to another file"),
        ("wshard recover ep_chunk_0007.wshard.partial", "the last chunk, and ep_manifest.wshard"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
