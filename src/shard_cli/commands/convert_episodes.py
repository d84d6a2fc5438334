"""`convert`: datasets of other formats as episodes, and episodes as datasets of other formats."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from shard_cli import arguments as arg
from shard_cli.exits import Exit
from shard_cli.jobs import executor_of, is_elsewhere
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from shard_cli.console import Console
    from wshard import Episode
    from wshard.convert import ConversionReport, ConvertOptions, FieldChange

_RANGE: Final = re.compile(r"(-?[0-9]{1,18})?:(-?[0-9]{1,18})?")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_STATS: Final = ".wshard-stats"


def _run(args: argparse.Namespace, console: Console) -> Exit:
    if args.suggest_map:
        return _suggest_mapping(args, console)
    if args.target is None and not args.dry_run:
        from shard_format.errors import InvalidArgument

        raise InvalidArgument("no target is given", expected="SRC and DST")
    options = _options(args)
    if args.dry_run:
        return _show_fields(args, console, options)
    return _convert(args, console, options)


def _options(args: argparse.Namespace) -> ConvertOptions:
    from wshard.convert import ConvertOptions, load_mapping

    return ConvertOptions(
        episodes=_episodes(args.episodes),
        where=args.where,
        jobs=args.jobs,
        resume=args.resume,
        verify=args.verify,
        overwrite=args.force,
        on_error=args.on_error,
        video=args.video,
        mapping=None if args.map is None else load_mapping(args.map),
        compression=args.compression,
        part=_part(args.part),
        executor=executor_of(args) if is_elsewhere(args) else None,
    )


def _part(text: str | None) -> tuple[int, int] | None:
    from shard_cli.pack_output import parse_part

    return None if text is None else parse_part(text)


def _episodes(text: str | None) -> slice:
    """`0:100`, `:-5` or `7` as a slice."""
    from shard_format.errors import InvalidArgument

    if text is None:
        return slice(None)
    if _NUMBER.fullmatch(text):
        return slice(int(text), int(text) + 1)
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            "--episodes needs a range", expected="such as 0:100 or 7", found=repr(text)
        )
    return slice(*(None if bound is None else int(bound) for bound in match.groups()))


def _convert(args: argparse.Namespace, console: Console, options: ConvertOptions) -> Exit:
    from wshard.convert import convert

    pack = None if args.pack is None else _packing(args)
    with console.progress(f"convert {args.source}", "episodes") as bar:
        report = convert(
            args.source,
            args.target,
            args.format,
            args.to,
            options=options,
            progress=bar.update,
            pack=pack,
        )
    if args.part is not None:
        console.note(f"this is part {args.part}; 'wshard commit' makes {args.target} of all parts")
    return _report(report, console)


def _packing(args: argparse.Namespace) -> Callable[[str], int]:
    """Puts the episodes of a folder into shards."""
    from shard_cli import pack_output
    from shard_format.errors import InvalidArgument

    if args.to not in (None, "wshard"):
        raise InvalidArgument("--pack packs episodes", found=f"--to {args.to}")
    target = pack_output.parse_target(args.target)
    # The shards of a set appear one after the other; a single file only when it is complete.
    goes_on = args.resume and target.pattern is not None
    existing = target.existing()
    if existing and not (args.force or goes_on):
        raise InvalidArgument(
            "the file exists", path=existing[0], hint="pass --force to replace it"
        )
    how = {"overwrite": True} if args.force else {"append": goes_on}

    def pack(folder: str) -> int:
        from shard_train.packed_episodes import pack_episodes
        from shardpack.reader import read_footer

        output = target.pattern or target.name
        found = pack_episodes(folder, output, max_bytes=args.pack, **how)
        return sum(read_footer(path).total_size for path in found.paths)

    return pack


def _report(report: ConversionReport, console: Console) -> Exit:
    for warning in report.warnings:
        console.warn(warning)
    amounts = (count(report.episodes, "episode"), count(report.steps, "step"))
    lines = [f"{printable(report.target)}: {', '.join(amounts)}, {size(report.bytes_written)}"]
    if report.skipped:
        lines.append(f"  {count(report.skipped, 'episode')} converted by an earlier run")
    lines += (f"  {printable(line)}" for line in report.field_lines() if line)
    rows = [(one, number) for one, number in report.changes.items() if one.kind != "kept"]
    for one, number in rows:
        where = "" if number == report.episodes else f" ({count(number, 'episode')})"
        lines.append(f"  {printable(str(one))}{where}")
    if report.failed:
        lines.append(f"  {count(len(report.failed), 'episode')} not converted:")
        lines += [f"    {printable(f'{name}: {why}')}" for name, why in report.failed.items()]
    lines.append(f"  report: {printable(report.target)}.report.txt")
    console.report(report.as_json(), *lines)
    return Exit.IO if report.failed else Exit.OK


def _run_commit(args: argparse.Namespace, console: Console) -> Exit:
    from shard_train.stats_parts import commit_stats, has_parts
    from wshard.convert import commit_parts

    if args.target.endswith(_STATS) or has_parts(args.target):
        stats = commit_stats(args.target)
        facts = {"output": args.target, "episodes": stats.episodes, "steps": stats.steps}
        amounts = f"{count(stats.episodes, 'episode')}, {count(stats.steps, 'step')}"
        console.report(facts, f"{printable(args.target)}: {amounts}")
        return Exit.OK
    return _report(commit_parts(args.target), console)


def _show_fields(args: argparse.Namespace, console: Console, options: ConvertOptions) -> Exit:
    """What would become of each field, taken from the first episode: when it is read, and when it is written."""
    from contextlib import closing

    from shard_format.errors import InvalidArgument
    from wshard.convert import detect, read

    form = args.format or detect(args.source).name
    episodes = read(
        args.source,
        form,
        episodes=options.episodes,
        video="decode" if options.video == "decode" else "keep",
        mapping=options.mapping,
    )
    with closing(episodes):  # type: ignore[type-var] # a generator
        first = next(episodes, None)
        if first is None:
            raise InvalidArgument("the dataset holds no episodes", path=args.source)
        changes = [*first.changes, *_changes_of_writing(first, args)]
        shown = printable(repr(first))
    fields = [_row(change) for change in changes]
    console.report(
        {"source": args.source, "format": form, "episode": first.id, "fields": fields},
        f"{printable(args.source)}: {form}; the first episode is {shown}",
    )
    if not console.as_json:
        console.table(
            ("field", "", "what becomes of it"),
            [(row["field"], row["kind"], row["detail"]) for row in fields],
        )
    return Exit.OK


def _changes_of_writing(episode: Episode, args: argparse.Namespace) -> Iterable[FieldChange]:
    """What another format or codec changes, found by writing the episode to a temporary folder."""
    import tempfile

    from wshard.convert import write

    name = os.path.basename(args.target or "")
    is_own = args.pack is not None or not os.path.splitext(name)[1]
    to = args.to or ("wshard" if is_own else None)
    if to == "wshard" and args.video != "encode":
        return ()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name or "dataset")
        return write([episode], path, to, video=args.video).changes


def _row(change: FieldChange) -> dict[str, str]:
    return {"field": change.field, "kind": change.kind, "detail": change.detail}


def _suggest_mapping(args: argparse.Namespace, console: Console) -> Exit:
    import json

    from shard_format.atomic import write_file
    from wshard.convert import suggest_mapping

    mapping = suggest_mapping(args.source)
    text = json.dumps(mapping, indent=2)
    if args.target is None:
        console.line(text)
        return Exit.OK
    write_file(args.target, [f"{text}\n".encode()], fsync=False)
    console.report(
        {"file": args.target, "mapping": mapping},
        f"{printable(args.target)}: a first mapping; edit it, then pass it with --map",
    )
    return Exit.OK


CONVERT = arg.Command(
    "convert",
    _run,
    (
        arg.positional("source", "SRC", "a dataset: a file or folder"),
        arg.positional("target", "DST", "the file or folder to write", nargs="?"),
        arg.option("--from FORMAT", "what SRC is (default: found by its content)", dest="format"),
        arg.option("--to FORMAT", "what to write (default: by the ending of DST, or episodes)"),
        arg.option(
            "-j --jobs N", "convert N episodes at the same time (default: one for each processor)"
        ),
        *arg.ENGINE,
        arg.option(
            "--part K/N",
            "convert only the K-th of N parts, while other machines convert the others; 'wshard commit' then "
            "makes DST of them",
        ),
        arg.flag("--resume", "keep finished episodes, and continue a run that was stopped"),
        arg.flag("--verify", "read back every episode and compare every array"),
        arg.option(
            "--map FILE", "a file that says which field becomes what, for HDF5 of unknown layout"
        ),
        arg.flag("--suggest-map", "write a first mapping for SRC to DST, or show it"),
        arg.option("--pack SIZE", "put the episodes into shards of SIZE; DST is a pack"),
        arg.option("--episodes RANGE", "only these episodes, counted from 0: 0:100, or 7"),
        arg.option(
            "--where EXPRESSION", 'only episodes for which this is true: "success and length > 100"'
        ),
        arg.option(
            "--video",
            "keep encoded cameras, decode them, or encode all (default: keep)",
            choices=("keep", "decode", "encode"),
            default="keep",
        ),
        arg.option(
            "-c --compression CODEC", "compression of the episodes (default: what suits each block)"
        ),
        arg.option(
            "--on-error",
            "what to do about an episode that cannot be converted (default: skip)",
            choices=("raise", "skip"),
            default="skip",
        ),
        arg.DRY_RUN,
        arg.force("replace DST if it exists"),
    ),
    """
convert datasets of other formats, and back

Finds the format of SRC by its content. DST appears when it is complete; until then everything is in
DST.converting, and --resume continues there after a kill. If DST is in another format, pass --resume
from the start: the episodes are then first stored as WShard files, which takes extra space, and DST is
written from them. SRC and DST can be URLs. A folder of episodes in a bucket gets each episode when it is
finished, and is complete when its report appears. A report beside DST (DST.report.txt, .json) names every field that was dropped,
renamed, cast, reordered or decoded. If some episodes cannot be converted, the others are, and the exit
code is 3.

wshard convert D4RL/door/human-v2 door                        # Minari to episodes
wshard convert lerobot/pusht pusht --jobs 8 --verify           # LeRobot, checked
wshard convert door door.hdf5 --to robomimic                   # episodes to robomimic
wshard convert demo.hdf5 demo.shardpack --pack 1G              # into packs
wshard convert lerobot/droid droid --part 3/64 --resume        # on the third of 64 machines
wshard convert s3://robots/raw s3://robots/runs --resume       # from bucket to bucket
wshard convert data.h5 map.json --suggest-map                  # any HDF5: first a mapping
wshard convert data.h5 episodes --map map.json --dry-run       # what would become of each field
""",
)
COMMIT = arg.Command(
    "commit",
    _run_commit,
    (
        arg.positional(
            "target",
            "DST",
            "what the parts become: the folder, or the file of statistics; or its URL",
        ),
    ),
    """
make a folder, or statistics, of parts

Checks that all parts are there and complete. Then moves their episodes into one folder, which gets
its name in one step, or joins their statistics. On a disk no episode is copied; a bucket copies them
itself, and its folder is complete when the report appears. Give the command again if it was killed.

wshard commit droid                    # after 'wshard convert … droid --part 1/64' to '--part 64/64'
wshard commit recordings.wshard-stats  # after 'wshard stats recordings --part …'
wshard commit droid --json             # the report as JSON
""",
)
