"""`recover`: what can be read of a recording or a shard that was not finished, or is damaged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shard_cli import arguments as arg
from shard_cli import episode_options
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.pack_output import SUFFIX
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shard_cli.console import Console
    from shardpack import Recovery as PackRecovery
    from wshard import Recovery


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from wshard.partial import RecordingFiles, recover

    files = RecordingFiles.of(args.file)
    output = args.output
    if not files.is_rolled:  # finished chunks are never replaced
        output = output or files.path
        episode_options.check_output(output, console, force=args.force)
    found = recover(args.file, output)
    console.report(
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
        },
        *_lines(found),
        _untouched(found.path),
    )
    return Exit.IO if found.lost_data else Exit.OK


def _lines(found: Recovery) -> Iterator[str]:
    assert found.out is not None
    yield (
        f"{printable(found.out)}: recovered {count(found.steps, 'step')} of "
        f"{printable(found.episode_id)}"
    )
    for chunk in found.chunks:
        how = "recovered" if chunk.from_journal else "was finished"
        yield f"  {printable(chunk.path)}: {count(chunk.steps, 'step')}, {how}"
    if found.lost_bytes:
        yield f"  lost: {size(found.lost_bytes)} after the last whole frame: {found.problem}"
    if found.lost_steps:
        yield f"  lost: {count(found.lost_steps, 'step')} before others that were recovered"
    for block, entries in found.cut.items():
        yield (
            f"  lost: {count(entries, 'entry')} of {printable(block)}: the other channels end earlier"
        )


def _untouched(path: str) -> str:
    return f"  {printable(path)} was not changed; remove it when you have looked at the result"


def _run_pack(args: argparse.Namespace, console: Console) -> Exit:
    import shardpack

    output = args.output or _default_output(args.file)
    refuse_overwrite(output, force=args.force)
    found = shardpack.recover(args.file, output)
    console.report(
        {
            "file": args.file,
            "output": found.output,
            "records": found.records,
            "had_index": found.had_index,
            "complete": found.is_complete,
            "lost": [
                {"offset": part.offset, "size": part.size, "key": part.key, "reason": part.reason}
                for part in found.lost
            ],
        },
        *_pack_lines(found, console),
        _untouched(args.file),
    )
    return Exit.IO if found.lost else Exit.OK


def _default_output(path: str) -> str:
    from shard_format.atomic import TEMPORARY

    folder, base = os.path.split(path)
    leftover = TEMPORARY.fullmatch(base)
    if leftover is not None:
        return os.path.join(folder, leftover[1])
    return os.path.join(folder, f"{base.removesuffix(SUFFIX)}.recovered{SUFFIX}")


def _pack_lines(found: PackRecovery, console: Console) -> Iterator[str]:
    from shard_cli.kinds.model import MOST_SHOWN

    yield f"{printable(found.output)}: recovered {count(found.records, 'record')}"
    if not found.had_index:
        yield "  the index is missing or damaged; records were found by reading the file"
    shown = found.lost if console.verbose else found.lost[:MOST_SHOWN]
    for part in shown:
        of = "" if part.key is None else f" of record {printable(repr(part.key))}"
        yield (f"  lost: {size(part.size)}{of} at byte {part.offset:,}: {printable(part.reason)}")
    if len(shown) < len(found.lost):
        yield f"  … and {count(len(found.lost) - len(shown), 'more place')}; see -v"


WSHARD = arg.Command(
    "recover",
    _run,
    (
        arg.positional(
            "file",
            "FILE",
            "a journal, EPISODE.wshard.partial, or any file of a recording in chunks",
        ),
        arg.option(
            "-o --output OUT", "the episode to write (default: the name that it was recorded for)"
        ),
        arg.force(),
    ),
    """
recover a recording that was not finished

Saves every step up to the last one that is whole in all channels, and never changes journals.
Of a recording in chunks, finished chunks stay as they are; journals become chunks, and the manifest
names all. Exit code 3 if anything could not be recovered.

wshard recover ep.wshard.partial                  # to ep.wshard
wshard recover ep.wshard.partial -o saved.wshard  # to another file
wshard recover ep_chunk_0007.wshard.partial       # the last chunk, and ep_manifest.wshard
""",
)
SHARDPACK = arg.Command(
    "recover",
    _run_pack,
    (
        arg.positional(
            "file", "FILE", "a damaged shard, or the hidden .partial file of a killed writer"
        ),
        arg.option(
            "-o --output OUT",
            "the shard to write (default: the name that a .partial file was for, else FILE with "
            ".recovered before its suffix)",
        ),
        arg.force(),
    ),
    """
recover the records of a damaged or unfinished shard

Writes a new shard with every record that is complete and fits its checksums, as it was stored.
Never changes FILE. Exit code 3 if anything could not be recovered.

shardpack recover cut.shardpack                                 # to cut.recovered.shardpack
shardpack recover damaged.shardpack -o saved.shardpack          # to a file of your choice
shardpack recover .train-000007.shardpack.0123456789ab.partial  # what a killed writer left
""",
)
