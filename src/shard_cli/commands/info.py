"""`info` and `inspect`: what files are."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from shard_cli import arguments as arg
from shard_cli.exits import Exit, exit_for, note_failure, worst
from shard_cli.kinds import kind_of
from shard_cli.text import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from shard_cli.console import Console
    from shard_cli.kinds.model import Progress, Target
    from shard_format import ShardError
    from wshard.catalogue import EpisodeInfo

_COLUMNS = ("path", "id", "length", "return", "success")


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
    if any((args.where, args.columns, args.sort, args.limit)):
        return _inspect_table(args, console)
    from shard_cli.episode_options import find, report_recordings
    from shard_cli.jobs import executor_of, in_order, is_elsewhere, threads_in_each
    from shard_cli.kinds import episode
    from shard_format.errors import ShardError, must_stop

    targets = find(args.files)
    args.threads = threads_in_each(args.jobs, len(targets))
    work = partial(_facts_or_error, args=args)
    codes: list[Exit] = []
    results: list[dict[str, Any]] = []
    listed: list[dict[str, Any]] = []
    shown = 0
    executor = executor_of(args) if is_elsewhere(args) else None
    found = in_order(targets, work, args.jobs, console, executor=executor)
    for target, facts in zip(targets, found, strict=True):
        if isinstance(facts, ShardError):
            codes.append(note_failure(facts, target.path, results, console))
            if must_stop(facts):  # the others would fail in the same way
                break
            continue
        codes.append(_unreadable(facts, console))
        if console.as_json:
            results.append(facts)
        elif target.folder is not None and not console.verbose and not args.values:
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


def _inspect_table(args: argparse.Namespace, console: Console) -> Exit:
    """Shows what is known about many episodes as one table, without opening those that the index knows."""
    from shard_cli.episode_options import report_recordings
    from shard_cli.jobs import executor_of, is_elsewhere
    from shard_format.errors import InvalidArgument
    from shard_train.packed_episodes import open_episode_pack
    from wshard.catalogue import FIELDS, CatalogueOpener, field_of, parse_where, select

    results: list[dict[str, Any]] = []
    codes: list[Exit] = []

    def note(path: str, error: ShardError) -> None:
        codes.append(note_failure(error, path, results, console))

    if args.values or args.no_sidecars:
        given = "--values" if args.values else "--no-sidecars"
        raise InvalidArgument(
            f"{given} is about the lanes of episodes, which a table does not show"
        )
    keeps = None if args.where is None else parse_where(args.where)
    opener = CatalogueOpener(
        True,
        note,
        open_pack=open_episode_pack,
        saves=False,
        executor=executor_of(args) if is_elsewhere(args) else None,
    )
    found = select(opener.open(args.files[0] if len(args.files) == 1 else args.files), None, keeps)
    episodes = [_as_typed(found.facts_of(row), args.files) for row in range(len(found.rows))]
    _check_names([*args.columns, *([args.sort] if args.sort else [])], episodes)
    if args.sort:
        episodes.sort(key=lambda episode: _sort_key(field_of(episode, args.sort)))
    shown = episodes[: args.limit]
    if console.as_json:
        names = args.columns or FIELDS
        rows = [
            {"file": one.path} | {name: field_of(one, name) for name in names if name != "path"}
            for one in shown
        ]
        recordings = report_recordings(args.files, console)
        console.document({"files": [*rows, *results], "recordings": recordings})
        return worst(codes)
    names = args.columns or _COLUMNS
    cells = [[_cell(field_of(one, name)) for name in names] for one in shown]
    numbers = [n for n, name in enumerate(names) if _is_numeric(shown, name)]
    console.table([name.upper() for name in names], cells, right=numbers)
    of = f"{len(shown):,} of " if len(shown) < len(episodes) else ""
    console.total(of + count(len(episodes), "episode"))
    report_recordings(args.files, console)
    return worst(codes)


def _as_typed(episode: EpisodeInfo, arguments: Sequence[str]) -> EpisodeInfo:
    """The episode with a path that starts like the folder that the user named."""
    from dataclasses import replace

    for argument in arguments:
        whole = os.path.join(os.path.abspath(argument), "")
        if episode.path.startswith(whole):
            return replace(episode, path=os.path.join(argument, episode.path[len(whole) :]))
    return episode


def _columns_argument(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _check_names(names: list[str], episodes: Sequence[EpisodeInfo]) -> None:
    """Raises for a name that is a field of no episode."""
    from shard_format.errors import InvalidArgument, did_you_mean
    from wshard.catalogue import FIELDS

    known = sorted({*FIELDS, *(key for episode in episodes for key in episode.metadata)})
    for name in names:
        if name not in known and episodes:
            hint = did_you_mean(name, known) or f"they have {', '.join(known)}"
            raise InvalidArgument(f"no episode has a field {name!r}", hint=hint)


def _sort_key(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - of any field
    """Large numbers first, then text as people count, and last what is not known."""
    from shard_format.listing import natural_key

    if value is None:
        return (2,)
    return (0, -value) if isinstance(value, (int, float)) else (1, natural_key(str(value)))


def _is_numeric(episodes: Sequence[EpisodeInfo], name: str) -> bool:
    from wshard.catalogue import field_of

    return all(
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        for value in (field_of(episode, name) for episode in episodes)
    )


def _cell(value: Any) -> str:  # noqa: ANN401 - of any field
    from shard_cli.text import short_json

    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else short_json(value)


def _facts_or_error(
    target: Target, _: Progress, *, args: argparse.Namespace
) -> dict[str, Any] | ShardError:
    """The facts, or why there are none. Runs in threads and processes."""
    from shard_cli.kinds import episode
    from shard_format.errors import ShardError

    try:
        return episode.target_facts(target, args)
    except ShardError as error:
        return error


def _unreadable(facts: dict[str, Any], console: Console) -> Exit:
    """Prints which blocks `--values` could not read, and returns the exit code for them."""
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

Reads only the head of a file and its small metadata, never the entries. For a pack, shows the records,
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
            "--values",
            "read all blocks; add the smallest, mean and largest value and the number of NaN",
        ),
        arg.option(
            "--where EXPRESSION",
            "list only episodes for which this is true: comparisons of path, id, env_id, length, return, "
            "success and fields of the metadata, with and, or, not, in",
        ),
        arg.option(
            "--columns NAME,…",
            "list these columns: the names above (default: path,id,length,return,success)",
            type=_columns_argument,
            default=[],
        ),
        arg.option(
            "--sort NAME", "list by this column: large numbers first, text in natural order"
        ),
        arg.option("--limit N", "list only the first N"),
        arg.NO_SIDECARS,
        arg.JOBS,
        *arg.ENGINE,
        arg.MAX_DECOMPRESSED,
    ),
    """
show id, steps and lanes of episodes

Reads descriptions only, never the blocks, unless you pass --values. A folder is shown with
one line for each episode; with -v or --values, with all lanes of each. With --where, --columns, --sort or
--limit, shows a table of what is known about each episode; the index of a folder makes this fast. The
journal of an unfinished recording is shown up to its last flush.

wshard inspect ep_001.wshard                             # one episode and its lanes
wshard inspect --values ep_001.wshard                    # with the range of values
wshard inspect recordings/                               # all episodes below a folder, one line each
wshard inspect --json recordings/ | jq '.files[].steps'  # for programs
wshard inspect recordings/ --where "success and length > 100" --sort return --limit 20  # the best 20
wshard inspect recordings/ --columns id,task,return      # with a field of the metadata
wshard inspect ep_002.wshard.partial                     # what a recorder has flushed
""",
)
