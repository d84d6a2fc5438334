"""Writing packs: one shard under a plain name, or a numbered set."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from shard_cli import arguments as arg
from shard_cli.exits import Exit
from shard_cli.files import STDIN, same_file
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from shard_cli.console import Console
    from shardpack.sets import SetLabel, WrittenShards

SUFFIX: Final = ".shardpack"
_SHARD_SIZE: Final = 1 << 30
OUTPUT: Final = (
    arg.option(
        "-o --output NAME",
        "the pack to write: train-%%06d.shardpack or train-{000000..}.shardpack for a set; "
        "train-000000.shardpack continues with the next numbers if one shard is not enough; - for stdout",
        required=True,
    ),
    arg.option(
        "--shard-size SIZE",
        "start a new shard before the file grows above SIZE (default 1G)",
        default=_SHARD_SIZE,
    ),
    arg.option("--shard-records N", "start a new shard after N records"),
    arg.force("replace shards of this name that exist; they stay until the new ones are complete"),
)
STORAGE: Final = (
    arg.option(
        "-c --compression CODEC",
        "none, lz4, zstd, or with a level: zstd:19; JPEG, PNG, video and the like stay as they are "
        "(default: none)",
    ),
    arg.alignment((1, 8, 64), 8, "8; 64 for arrays that are used in place"),
)

_BRACES: Final = re.compile(r"\{([0-9]{1,200})\.\.[0-9]*\}")
_DIGITS: Final = re.compile(r"([0-9]{1,200})$")
_MOST_KINDS: Final = 5


def metadata_of(args: argparse.Namespace) -> dict[str, str]:
    """The fields of `--metadata`."""
    return arg.pairs_of(args.metadata, "--metadata")


# --- names


class OutputName(NamedTuple):
    """What `--output` means."""

    name: str
    """As it was given."""
    pattern: str | None
    """With one %d in it; None for a plain name without a number."""
    first: int = 0
    is_plain: bool = False
    """Whether the number is part of a plain name, and may mean something else."""
    part: str | None = None
    """What the shards of a part are called until `commit`, with one %d in it."""

    @property
    def is_stdout(self) -> bool:
        """Whether the pack goes to standard output."""
        return self.name == STDIN

    def path_of(self, number: int) -> str:
        """The shard of this number."""
        pattern = self.part or self.pattern
        return self.name if pattern is None else pattern % number

    def existing(self) -> list[str]:
        """The shards that exist, from the first one on without a gap."""
        if self.is_stdout:
            return []
        from shard_format.listing import is_there
        from shardpack.sets import numbered_files

        pattern = self.part or self.pattern
        if pattern is None:
            return [self.name] if is_there(self.name) else []
        return numbered_files(pattern, self.first)

    def is_own(self, path: str) -> bool:
        """Whether a file is one of these shards, their set file, or in the folder of their parts."""
        from shardpack.sets import fitting_names, parts_folder, set_path

        if self.is_stdout:
            return False
        folder, base = os.path.split(path)
        if self.pattern is not None:
            beside = (
                os.path.realpath(parts_folder(self.pattern)),
                set_path(self.pattern, self.first),
            )
            if beside[0] == os.path.realpath(folder) or same_file(path, beside[1]):
                return True
        own_folder, own = os.path.split(self.pattern or self.name)
        if self.pattern is None:
            fits = base == own
        else:
            fits = fitting_names(own, [base]).get(base, -1) >= self.first
        real = os.path.realpath
        return fits and real(folder or os.curdir) == real(own_folder or os.curdir)


def set_label(args: argparse.Namespace, revision: str | None = None) -> SetLabel | None:
    """What `--part` and `--revision` say; `revision` is that of the run if the user gave none."""
    from shardpack.sets import SetLabel

    part = getattr(args, "part", None)
    revision = getattr(args, "revision", None) or revision
    if part is None:
        return None if revision is None else SetLabel(revision)
    return SetLabel(revision or "not known yet", *parse_part(part))


def parse_part(part: str) -> tuple[int, int]:
    """What `--part` says."""
    from shard_format.errors import InvalidArgument

    number, slash, parts = part.partition("/")
    if not slash or not (number + parts).isdecimal() or not (number + parts).isascii():
        raise InvalidArgument("--part needs two numbers", expected="K/N, as 3/16", found=repr(part))
    return int(number), int(parts)


def parse_target(name: str, label: SetLabel | None = None) -> OutputName:
    """From `train-%06d.shardpack`, `train-{000000..}.shardpack`, or a plain name; or a part of one of these."""
    from shard_format.errors import InvalidArgument

    target = _parse_name(name)
    if label is None or not label.part:
        return target
    if target.pattern is None or target.first:
        raise InvalidArgument(
            "a part needs the name of a set that starts with number 0",
            path=name,
            expected="such as train-%06d.shardpack",
        )
    return OutputName(name, target.pattern, part=label.output(target.pattern))


def _parse_name(name: str) -> OutputName:
    from shard_format.errors import InvalidArgument
    from shardpack.sets import count_numbers, is_set

    if not os.path.basename(name):
        raise InvalidArgument("this is a folder", path=name, expected="a name for the pack")
    braces, percents = _BRACES.findall(name), count_numbers(name)
    if len(braces) + percents > 1:
        raise InvalidArgument("the name has more than one number", path=name)
    if percents and is_set(name):
        return OutputName(name, name)
    escaped = name.replace("%", "%%")
    if braces:
        number = braces[0]
        return OutputName(name, _BRACES.sub(f"%0{len(number)}d", escaped), int(number))
    stem = escaped.removesuffix(SUFFIX)
    digits = _DIGITS.search(os.path.basename(stem))
    if digits is None:
        return OutputName(name, None)
    number = digits[1]
    pattern = f"{stem.removesuffix(number)}%0{len(number)}d{escaped[len(stem) :]}"
    return OutputName(name, pattern, int(number), is_plain=True)


def prepare_target(
    target: OutputName, args: argparse.Namespace, sources: Iterable[str] = ()
) -> dict[str, Any]:
    """`append` or `overwrite` for the writer; raises if shards, or files that are read, are in the way."""
    from shard_format.errors import InvalidArgument

    existing = target.existing()
    for source in sources if existing else ():
        if any(same_file(source, path) for path in existing):
            raise InvalidArgument("this would replace the file that is being read", path=source)
    if getattr(args, "resume", False):
        if target.is_stdout:
            raise InvalidArgument("--resume needs shards in files", found=f"--output {STDIN}")
        return {"append": True}
    if not existing:
        return {}
    if not args.force:
        raise InvalidArgument(
            "the file exists" if len(existing) == 1 else f"{len(existing):,} shards exist",
            path=existing[0],
            hint="--resume continues after what is there, --force replaces it"
            if hasattr(args, "resume")
            else "pass --force to replace",
        )
    if target.is_plain and len(existing) > 1:
        raise InvalidArgument(
            "the file exists, and so do others with the next numbers, which may be other data",
            path=existing[0],
            found=", ".join(existing[1:4]),
            hint=f"remove them, or name all of them: --output {target.pattern}",
        )
    return {"overwrite": True}


@contextmanager
def written_output(
    args: argparse.Namespace, console: Console, sources: Iterable[str] = ()
) -> Iterator[tuple[str | BinaryIO, dict[str, Any]]]:
    """What the library's tools take as output and options; says what is left if they do not finish."""
    label = getattr(args, "label", None)
    target = parse_target(args.output, label)
    options = prepare_target(target, args, sources)
    options |= {} if label is None or target.pattern is None else {"label": label}
    # Without new fields, tools that edit a pack keep the old ones.
    options |= {"metadata": metadata_of(args)} if args.metadata else {}
    options |= {name: getattr(args, name) for name in ("compression", "alignment") if name in args}
    before = target.existing()
    if target.pattern is not None:
        options |= {
            "first": target.first,
            "max_bytes": args.shard_size,
            "max_records": args.shard_records,
        }
    output: str | BinaryIO = target.pattern or target.name
    if target.is_stdout:
        # One shard without end, unless you ask for a limit.
        most = None if args.shard_size == _SHARD_SIZE else args.shard_size
        options |= {"max_bytes": most, "max_records": args.shard_records}
        output = console.data_output("a pack")
    try:
        yield output, options
    except BaseException as error:
        # Look at what is there: an interrupt may come before the writer has counted a shard.
        left = target.existing()
        if "overwrite" in options:
            console.note("the shards that were there are unchanged")
        elif target.pattern is not None and len(left) > (0 if "append" in options else len(before)):
            console.note(f"{count(len(left), 'complete shard')} so far: {shown_paths(left)}")
            console.note(
                "to continue, run the same command with --resume"
                if hasattr(args, "resume")
                else "--force starts again"
            )
        elif not isinstance(error, Exception) and not target.is_stdout:
            console.note("no shard was finished; nothing is left of this run")
        raise


# --- reports


def shown_paths(paths: Sequence[str]) -> str:
    """`a-000000.shardpack … a-000007.shardpack`, or the only one."""
    if len(paths) <= 1:
        return printable("".join(paths))
    return f"{printable(paths[0])} … {printable(os.path.basename(paths[-1]))}"


def written_facts(
    console: Console, paths: Sequence[str], records: int, what: str = "record"
) -> tuple[dict[str, Any], str]:
    """What was written, as `--json` shows it and in one line."""
    from shardpack.reader import read_footer

    if console.out_is_data:
        return {"shards": [], "records": records, "size": 0}, f"stdout: {count(records, what)}"
    shards: list[dict[str, Any]] = [
        {"file": path, "records": footer.record_count, "size": footer.total_size}
        for path, footer in zip(paths, map(read_footer, paths), strict=True)
    ]
    total = sum(shard["size"] for shard in shards)
    text = f"{shown_paths(paths)}: {count(records, what)} in {count(len(shards), 'shard')}"
    return {"shards": shards, "records": records, "size": total}, f"{text}, {size(total)}"


def report_written(
    console: Console, paths: Sequence[str], records: int, what: str = "record", **facts: object
) -> None:
    """The summary of a command that wrote a pack; `facts` are for `--json`."""
    written, text = written_facts(console, paths, records, what)
    console.report({**facts, **written}, text)


def report_converted(console: Console, found: WrittenShards, why: str, **facts: object) -> Exit:
    """The summary of a conversion. What the user allowed it to leave out is summed up; exit code 3."""
    for change in found.changed:
        console.note(f"changed {change}")
    for name in found.left_out if console.verbose else ():
        console.warn(f"left out {name}: {why}")
    if found.left_out and not console.verbose:
        console.warn(f"left out {_by_ending(found.left_out)}: {why}; -v names all")
    facts |= {"left_out": found.left_out, "changed": found.changed}
    report_written(console, found.paths, found.records, "record", **facts)
    return Exit.IO if found.left_out else Exit.OK


def _by_ending(names: Sequence[str]) -> str:
    """How many names there are of each ending, the most frequent first, with one of each."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(os.path.splitext(name)[1].lower(), []).append(name)
    kinds = sorted(groups.items(), key=lambda group: -len(group[1]))
    shown = [
        f"{len(some):,} {ending or 'without a suffix'} ({some[0]})"
        for ending, some in kinds[:_MOST_KINDS]
    ]
    if len(kinds) > _MOST_KINDS:
        shown.append(f"{sum(len(some) for _, some in kinds[_MOST_KINDS:]):,} others")
    return f"{count(len(names), 'file')}: {', '.join(shown)}"
