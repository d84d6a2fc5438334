"""`info` and `inspect`: what files are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from shard_cli import arguments as arg
from shard_cli.exits import Exit, exit_for, note_failure, worst
from shard_cli.kinds import kind_of

if TYPE_CHECKING:
    import argparse

    from shard_cli.console import Console
    from shard_cli.kinds.model import Progress, Target
    from shard_format import ShardError


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import ShardError

    results: list[dict[str, Any]] = []
    codes = [Exit.OK]
    for number, path in enumerate(args.files):
        kind = kind_of(path, console.program)
        try:
            facts = kind.facts(path, args)
        except ShardError as error:
            codes.append(note_failure(error, path, results, console))
            continue
        results.append(facts)
        if not console.as_json:
            if number:
                console.line()
            kind.show_facts(facts, console)
    if console.as_json:
        console.document({"files": results})
    return worst(codes)


def _inspect(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.episode_options import find, report_recordings
    from shard_cli.jobs import in_order, threads_in_each
    from shard_cli.kinds import episode
    from shard_format.errors import ShardError

    targets = find(args.files)
    args.threads = threads_in_each(args.jobs, len(targets))
    work = partial(_facts_or_error, args=args)
    codes: list[Exit] = []
    results: list[dict[str, Any]] = []
    listed: list[dict[str, Any]] = []
    shown = 0
    for target, facts in zip(targets, in_order(targets, work, args.jobs, console), strict=True):
        if isinstance(facts, ShardError):
            codes.append(note_failure(facts, target.path, results, console))
            continue
        codes.append(_unreadable(facts, console))
        if console.as_json:
            results.append(facts)
        elif target.folder is not None and not console.verbose and not args.stats:
            listed.append(episode.shortened(facts))
        else:
            if shown:
                console.line()
            episode.show_facts(facts, console)
            shown += 1
    if not console.as_json and listed:
        if shown:
            console.line()
        episode.show_lines(listed, console)
    recordings = report_recordings(args.files, console)
    if console.as_json:
        console.document({"files": results, "recordings": recordings})
    return worst(codes)


def _facts_or_error(
    target: Target, _: Progress, *, args: argparse.Namespace
) -> dict[str, Any] | ShardError:
    """The facts, or why there are none. Runs in threads and processes."""
    from shard_cli.kinds import episode
    from shard_format.errors import ShardError

    try:
        return episode.facts(target.path, args)
    except ShardError as error:
        return error


def _unreadable(facts: dict[str, Any], console: Console) -> Exit:
    """Prints which blocks `--stats` could not read, and returns the exit code for them."""
    codes = []
    for block in facts["blocks"]:
        error = (block.get("stats") or {}).get("error")
        if error is not None:
            console.error(error["message"], error["code"])
            codes.append(exit_for(error["code"]))
    return worst(codes)


INFO = arg.Command(
    "info",
    _run,
    (arg.FILES,),
    """
show role, sizes, codecs and metadata of files

Reads only the head of a file and its small metadata, never the entries. Of a pack it shows the records,
their entries and the shards, and reads only the ends of the shards.

shard info data.shard                                # one file
shard info *.wshard                                  # several files, with the facts of each episode
shard info --json data.shard | jq .files[0].entries  # for programs
shardpack info train-000000.shardpack                 # one shard
shardpack info -v 'train-{000000..000009}.shardpack'  # a set, with each of its shards
shardpack info --json train/ | jq .files[0].records   # for programs
""",
)
INSPECT = arg.Command(
    "inspect",
    _inspect,
    (
        arg.EPISODES,
        arg.flag(
            "--stats",
            "read all blocks; add the smallest, mean and largest value and the number of NaN",
        ),
        arg.NO_SIDECARS,
        arg.JOBS,
        arg.MAX_DECOMPRESSED,
    ),
    """
show id, steps and lanes of episodes

Reads descriptions only, never the blocks, unless you give --stats. A folder is shown with
one line for each episode; with -v or --stats, with all lanes of each.

wshard inspect ep_001.wshard                             # one episode and its lanes
wshard inspect --stats ep_001.wshard                     # with the range of values
wshard inspect recordings/                               # all episodes below a folder, one line each
wshard inspect --json recordings/ | jq '.files[].steps'  # for programs
""",
)
