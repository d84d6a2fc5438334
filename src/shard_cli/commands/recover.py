"""`recover`: what can be read of a recording or a shard that was not finished, or is damaged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from shard_cli import arguments as arg
from shard_cli import episode_options
from shard_cli.exits import Exit, note_failure, worst
from shard_cli.files import refuse_overwrite
from shard_cli.pack_output import SUFFIX
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from shard_cli.console import Console
    from shardpack import PackRecovery
    from wshard.partial import RecordingFiles, Recovery

_JOURNAL: Final = ".partial"
# Why a recording is left alone.
_REASONS: Final = {
    "recording": "left alone: a process is recording it now",
    "recovered": "recovered before: the episode holds all its steps",
    "empty": "nothing was recorded yet",
    "finished": "has no journal: the recording was finished",
}


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument, ShardError

    if bool(args.files) == args.all:
        raise InvalidArgument("say what to recover", expected="FILE, FOLDER or PATTERN…, or --all")
    found = _recordings(args.files or ["."])
    if args.output is not None and len(found) != 1:
        raise InvalidArgument("--output is for one recording", found=f"{len(found)} recordings")
    # One recording that you name is worth an error where one of many is passed over.
    is_one = len(found) == 1 and found[0][1]
    results: list[dict[str, Any]] = []
    codes: list[Exit] = []
    for files, _ in found:
        try:
            codes.append(_recover(files, args, console, results, is_one=is_one))
        except ShardError as error:  # noqa: PERF203 - one that fails does not stop the others
            if is_one:
                raise
            codes.append(note_failure(error, files.journal(0), results, console))
    if console.as_json:
        console.document({**(results[0] if is_one else {}), "files": results})
    elif not is_one:
        _sum_up(results, console)
    return worst(codes)


def _recordings(arguments: Sequence[str]) -> list[tuple[RecordingFiles, bool]]:
    """The recordings that the arguments mean, each once, and whether it was named itself."""
    from shard_format.errors import InvalidArgument
    from shard_format.listing import expand
    from wshard.partial import RecordingFiles, find_recordings

    found: dict[RecordingFiles, bool] = {}
    for argument in arguments:
        named = [argument]
        if not os.path.lexists(argument) and not os.path.lexists(argument + _JOURNAL):
            named = expand(argument, _JOURNAL)
        for path in named:
            inside = find_recordings(path) if os.path.isdir(path) else None
            if not inside and inside is not None:
                raise InvalidArgument(
                    "no recordings in this folder or below it",
                    path=path,
                    expected=f"journals, *{episode_options.SUFFIX}{_JOURNAL}",
                )
            for files in inside or [RecordingFiles.of(path)]:
                found.setdefault(files, path == argument and inside is None)
    return list(found.items())


def _recover(
    files: RecordingFiles,
    args: argparse.Namespace,
    console: Console,
    results: list[dict[str, Any]],
    *,
    is_one: bool,
) -> Exit:
    """Recovers one recording, unless there is a reason not to; adds the result."""
    from shard_format.errors import InvalidArgument
    from wshard.partial import recover, state_of

    journal = files.journal(0)
    state = "unfinished"
    if args.output is None and (not is_one or files.is_being_recorded):
        state = "finished" if _is_finished(files) else state_of(files)
    if state in _REASONS and not (state == "recovered" and args.force):
        if is_one:
            raise InvalidArgument(
                _REASONS[state], path=journal, hint="pass --output to save what is there so far"
            )
        results.append({"file": journal, "state": state})
        console.said(f"{printable(journal)}: {_REASONS[state]}")
        return Exit.OK
    output = args.output
    if not files.is_rolled:  # finished chunks are never replaced
        output = output or files.path
        episode_options.check_output(output, console, force=args.force)
    found = recover(journal, output)
    results.append(
        {
            "file": args.files[0] if is_one else journal,
            "state": "recovered",
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
    for line in _lines(found):
        console.said(line)
    if is_one:
        console.said(_untouched(found.path))
    return Exit.IO if found.lost_data else Exit.OK


def _is_finished(files: RecordingFiles) -> bool:
    """Whether an episode is there and no journal, as where a pattern finds all files of a folder."""
    has_journal = bool(files.journals()) or os.path.exists(files.journal(0))
    return not has_journal and any(map(os.path.exists, (files.path, files.names.manifest)))


def _sum_up(results: Sequence[dict[str, Any]], console: Console) -> None:
    done = sum("output" in one for one in results)
    failed = sum("error" in one for one in results)
    text = f"recovered {done:,} of {count(len(results), 'recording')}"
    text += f", {failed:,} failed" if failed else ""
    if done:
        text += "; journals were not changed: remove them when you have looked at the results"
    console.said(console.style(text, "bold" if failed else "dim"))


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
    found = shardpack.recover(args.file, output, entries=args.entries, overwrite=args.force)
    console.report(
        {
            "file": args.file,
            "output": found.output,
            "records": found.records,
            "had_index": found.had_index,
            "complete": found.is_complete,
            "lost": [
                {
                    "offset": part.offset,
                    "size": part.size,
                    "key": part.key,
                    "entry": part.entry,
                    "reason": part.reason,
                }
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
        of = "" if part.entry is None else f", entry {printable(repr(part.entry))}"
        of += "" if part.key is None else f" of record {printable(repr(part.key))}"
        yield (f"  lost: {size(part.size)}{of} at byte {part.offset:,}: {printable(part.reason)}")
    if len(shown) < len(found.lost):
        yield f"  … and {count(len(found.lost) - len(shown), 'more place')}; see -v"


WSHARD = arg.Command(
    "recover",
    _run,
    (
        arg.positional(
            "files",
            "FILE|FOLDER|PATTERN",
            "a journal, EPISODE.wshard.partial, or any file of a recording in chunks; a folder means all "
            "recordings below it",
            nargs="*",
        ),
        arg.flag("--all", "all recordings below the current folder"),
        arg.option(
            "-o --output OUT",
            "the episode to write, for one recording (default: the name that it was recorded for)",
        ),
        arg.force("replace episodes that exist"),
    ),
    """
recover recordings that were not finished

Saves every step up to the last one that is whole in all channels, and never changes journals.
In a recording with chunks, finished chunks stay as they are; journals become chunks, and the manifest
names all of them. Skips and lists recordings that a process is writing now and those that were
recovered before. If one fails, goes on with the others. Exit code 3 if anything could not be recovered.

wshard recover ep.wshard.partial                  # to ep.wshard
wshard recover ep.wshard.partial -o saved.wshard  # to another file
wshard recover ep_chunk_0007.wshard.partial       # the last chunk, and ep_manifest.wshard
wshard recover recordings/                        # all below a folder
wshard recover 'run_*/*.partial'                  # those that a pattern finds
wshard recover --all                              # all below the current folder
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
        arg.flag("--entries", "also keep the intact entries of records that have damaged ones"),
        arg.force(),
    ),
    """
recover the records of a damaged or unfinished shard

Writes a new shard with every record that is complete and fits its checksums, as it was stored.
Never changes FILE. Exit code 3 if anything could not be recovered.

shardpack recover cut.shardpack                                 # to cut.recovered.shardpack
shardpack recover damaged.shardpack -o saved.shardpack          # to a file of your choice
shardpack recover damaged.shardpack --entries                   # also parts of damaged records
shardpack recover .train-000007.shardpack.0123456789ab.partial  # what a killed writer left
""",
)
