"""`merge`, `join` and `commit`: several episodes, packs or parts of a pack as one."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from shard_cli import arguments as arg
from shard_cli import episode_options, pack_output
from shard_cli.exits import Exit
from shard_cli.files import read_list
from shard_cli.text import count

if TYPE_CHECKING:
    import argparse

    from shard_cli.console import Console
    from wshard import Episode


# --- episodes


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_episode
    from shard_format.opening import sharing_files
    from wshard.editing import merge_episodes

    episode_options.check_output(args.output, console, force=args.force)
    episode_options.refuse_input(args.output, args.files, "it would be lost if anything went wrong")
    with ExitStack() as stack:
        with sharing_files():
            episodes = [stack.enter_context(open_episode(path, args)) for path in args.files]
        _check_channels(args.files, episodes)
        merged = merge_episodes(episodes, id=args.id)
        facts = episode_options.save(merged, args.output, episodes, args)
    steps = f"{count(merged.length, 'step')} of {count(len(episodes), 'file')}"
    console.report(
        {"files": args.files, "output": args.output, **facts},
        episode_options.saved_text(args.output, merged, facts["size"], steps),
    )
    return Exit.OK


def _check_channels(files: list[str], episodes: list[Episode]) -> None:
    """Raises with the name of the file that has other channels; ids of episodes may be the same."""
    from shard_format.errors import ChunkDiscontinuity

    wanted, *others = ({block for block, _ in episode.blocks()} for episode in episodes)
    for path, names in zip(files[1:], others, strict=True):
        if names != wanted:
            name = min(names ^ wanted)
            raise ChunkDiscontinuity(
                f"this episode {'has' if name in names else 'lacks'} the block {name!r}, "
                f"unlike {files[0]}",
                path=path,
                hint="only episodes with the same channels can be merged",
            )


# --- packs


def _run_packs(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.pack import files, open_watched
    from shardpack.editing import merge

    shards = [shard for pack in args.files for shard in files(pack)]
    with (
        pack_output.written_output(args, console, shards) as (output, options),
        console.progress("merge") as bar,
        open_watched(shards, args, bar) as dataset,
    ):
        done = merge(dataset, output, **options)
    pack_output.report_written(console, done.paths, done.records, files=args.files)
    return Exit.OK


def _run_join(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_pack
    from shard_cli.kinds.pack import files, open_watched
    from shard_format.errors import InvalidArgument
    from shardpack.columns import join, overlay
    from shardpack.editing import merge

    columns = [arg.split_name(pack) for pack in args.files]
    listed = [] if args.delete is None else read_list(args.delete)
    deleted = [key.decode("utf-8", "surrogateescape") for key in listed]
    if (args.add or args.delete) and not args.overlay:
        raise InvalidArgument("--add and --delete need --overlay")
    if len(columns) < 2 and not deleted:
        raise InvalidArgument("there is only one pack to join", expected="two or more packs")
    if args.overlay and any(name for name, _ in columns):
        raise InvalidArgument("--overlay takes packs without NAME=", found="NAME=PACK")
    shards = [shard for _, pack in columns for shard in files(pack)]
    with (
        pack_output.written_output(args, console, shards) as (output, options),
        console.progress("join") as bar,
        ExitStack() as stack,
    ):
        # The first one is read from start to end, and shows the progress.
        main = stack.enter_context(open_watched(files(columns[0][1]), args, bar))
        datasets: list[Any] = [main]
        datasets += [stack.enter_context(open_pack(pack, args)) for _, pack in columns[1:]]
        if args.overlay:
            combined = overlay(*datasets, add=args.add, delete=deleted)
        else:
            named = [
                {name: dataset} if name else dataset
                for (name, _), dataset in zip(columns, datasets, strict=True)
            ]
            combined = join(*named, align=args.align)
        done = merge(combined, output, **options)
    pack_output.report_written(console, done.paths, done.records, files=args.files)
    return Exit.OK


def _run_commit(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack import commit
    from shardpack.sets import set_path

    target = pack_output.parse_target(args.output)
    name = target.pattern or target.name
    done = commit(name, overwrite=args.force)
    pack_output.report_written(console, done.paths, done.records, set_file=set_path(name))
    return Exit.OK


WSHARD = arg.Command(
    "merge",
    _run,
    (
        arg.positional(
            "files",
            "FILE",
            "episodes in order of time, or the manifest of a chunked one",
            nargs="+",
        ),
        *episode_options.output(),
        arg.option("--id ID", "id of the new episode (default: that of the first)"),
        *episode_options.storage("like the first FILE"),
    ),
    """
join episodes that follow one another

The episodes must have the same channels. Unless they are parts of one episode, the metadata of
the new one lists them under merged_from.

wshard merge morning.wshard evening.wshard -o day.wshard --id day  # two episodes
wshard merge parts/*.wshard -o whole.wshard                        # what 'wshard split' has cut
wshard merge ep_manifest.wshard -o ep.wshard                       # a chunked episode in one file
""",
)
SHARDPACK = arg.Command(
    "merge",
    _run_packs,
    (
        arg.PACKS,
        *pack_output.OUTPUT,
        arg.metadata(),
    ),
    """
put the records of several packs into one

Copies entries as they are stored. A key that occurs twice is an error.

shardpack merge a.shardpack b.shardpack -o all.shardpack     # into one shard
shardpack merge 'small-*.shardpack' -o train-%06d.shardpack  # into shards of 1 GiB
""",
)
JOIN = arg.Command(
    "join",
    _run_join,
    (
        arg.positional(
            "files",
            "PACK|NAME=PACK",
            "packs with the same keys; NAME= puts NAME before the names of a pack's entries",
            nargs="+",
        ),
        *pack_output.OUTPUT,
        arg.option(
            "--align",
            "order: the same keys in the same order; key: in any order (default: order)",
            choices=("order", "key"),
            default="order",
        ),
        arg.flag(
            "--overlay",
            "later packs update the first one: their entries win, and they may lack keys",
        ),
        arg.flag(
            "--add", "with --overlay: add the records of later packs that the first one lacks"
        ),
        arg.option(
            "--delete LIST|-",
            "with --overlay: leave out the records of the first pack whose keys are in LIST, one on each line",
        ),
        arg.metadata(),
    ),
    """
join packs that have the same keys

Stops at missing and extra keys, and names them. Copies entries as they are stored.

shardpack join images.shardpack depth.shardpack -o both.shardpack          # columns of one set
shardpack join left=l.shardpack right=r.shardpack -o stereo.shardpack      # left.jpg and right.jpg
shardpack join --overlay main.shardpack labels.shardpack -o new.shardpack  # updated entries win
shardpack join --overlay main.shardpack more.shardpack --add --delete bad.txt -o new.shardpack  # also other keys
""",
)
COMMIT = arg.Command(
    "commit",
    _run_commit,
    (
        arg.option(
            "-o --output NAME",
            "the set, as 'shardpack create --part' was given it: train-%%06d.shardpack",
            required=True,
        ),
        arg.force(
            "replace shards of this name that exist; they stay until the new ones are in place"
        ),
    ),
    """
make a set of parts that machines wrote

Checks that all parts are there and complete, that they are of one revision, and that no key occurs
twice. Then renames the shards, in the order of the parts, and writes the set file. Readers see the
complete new set or what was there before, even if the command is killed: run it again to finish.

shardpack commit -o train-%06d.shardpack          # after 'create --part 1/16' to 'create --part 16/16'
shardpack commit -o train-%06d.shardpack --force  # replaces the set of an earlier run
""",
)
