"""Where packs are written: one shard under a plain name, or a numbered set."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from shard_cli.arguments import add_force, positive_argument, size_argument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from shard_cli.exits import Exit
    from shard_cli.output import Console
    from shardpack import ShardPackWriter, StoredEntry
    from shardpack._layout import MetadataEncoding
    from shardpack.convert import Converted

SUFFIX: Final = ".shardpack"
DEFAULT_SHARD_BYTES: Final = 1 << 30

_BRACES: Final = re.compile(r"\{(\d+)\.\.\d*\}")
_PERCENT: Final = re.compile(r"%0?\d*d")
_DIGITS: Final = re.compile(r"(\d+)$")


def add_output(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """`--output`, `--shard-size`, `--shard-records` and `--force`, for commands that write packs."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="NAME",
        required=required,
        help="the pack to write: train-%%06d.shardpack or train-{000000..}.shardpack for a set; "
        "train-000000.shardpack counts on where one shard is not enough",
    )
    parser.add_argument(
        "--shard-size",
        type=size_argument,
        default=DEFAULT_SHARD_BYTES,
        metavar="SIZE",
        help="a new shard starts before the file grows above this (default 1G)",
    )
    parser.add_argument(
        "--shard-records",
        type=positive_argument,
        metavar="N",
        help="a new shard starts after so many records",
    )
    add_force(parser, "replace shards of this name that exist")


class Target(NamedTuple):
    """What `--output` means."""

    name: str
    """As it was given."""
    pattern: str | None
    """With one %d in it; None for a plain name without a number."""
    first: int = 0
    is_plain: bool = False
    """Whether the number stands in a plain name, and may mean something else."""

    def path_of(self, number: int) -> str:
        """The shard of this number."""
        return self.name if self.pattern is None else self.pattern % number

    def existing(self) -> list[str]:
        """The shards that are there, from the first one on without a gap."""
        if self.pattern is None:
            return [self.name] if os.path.lexists(self.name) else []
        found: list[str] = []
        while os.path.lexists(path := self.path_of(self.first + len(found))):
            found.append(path)
        return found

    def is_own(self, path: str) -> bool:
        """Whether a file is one of these shards."""
        base, own = os.path.basename(path), os.path.basename(self.pattern or self.name)
        if self.pattern is None and base != own:
            return False
        if self.pattern is not None:
            before, _, after = _PERCENT.sub("\0", own).replace("%%", "%").partition("\0")
            number = base.removeprefix(before).removesuffix(after)
            if base != before + number + after or not number.isdecimal():
                return False
            if int(number) < self.first:
                return False
        folders = (os.path.dirname(one) or os.curdir for one in (path, self.name))
        return len({os.path.realpath(folder) for folder in folders}) == 1


def parse_target(name: str) -> Target:
    """From `train-%06d.shardpack`, `train-{000000..}.shardpack`, or a plain name."""
    from shard_format.errors import InvalidArgument

    if not os.path.basename(name):
        raise InvalidArgument("this is a folder", path=name, expected="a name for the pack")
    braces, percents = _BRACES.findall(name), _PERCENT.findall(name.replace("%%", ""))
    if len(braces) + len(percents) > 1:
        raise InvalidArgument("the name has more than one number", path=name)
    if percents:
        return Target(name, name)
    escaped = name.replace("%", "%%")
    if braces:
        number = braces[0]
        return Target(name, _BRACES.sub(f"%0{len(number)}d", escaped), int(number))
    stem = escaped.removesuffix(SUFFIX)
    digits = _DIGITS.search(os.path.basename(stem))
    if digits is None:
        return Target(name, None)
    number = digits[1]
    pattern = f"{stem.removesuffix(number)}%0{len(number)}d{escaped[len(stem) :]}"
    return Target(name, pattern, int(number), is_plain=True)


def prepare_target(
    target: Target,
    *,
    force: bool,
    resume: bool = False,
    can_resume: bool = True,
    sources: Iterable[str] = (),
) -> list[str]:
    """The shards that stay and are gone on behind; raises if some are in the way.

    With `force` shards of a set are removed: only what the name surely means. A single shard stays until
    the new one takes its place.

    Args:
        target: where to write.
        force: whether what is there may be replaced.
        resume: whether it is gone on behind what is there.
        can_resume: whether the command has that option.
        sources: files that are read, which must not be replaced.
    """
    from shard_cli.files import same_file
    from shard_format.errors import InvalidArgument

    existing = target.existing()
    for source in sources if existing else ():
        if any(same_file(source, path) for path in existing):
            raise InvalidArgument("this would replace the file that is being read", path=source)
    if resume or not existing:
        return existing
    if not force:
        raise InvalidArgument(
            "the file exists" if len(existing) == 1 else f"{len(existing):,} shards exist",
            path=existing[0],
            hint="--resume goes on behind what is there, --force replaces it"
            if can_resume
            else "give --force to replace",
        )
    if target.is_plain and len(existing) > 1:
        raise InvalidArgument(
            "the file exists, and others of the next numbers, which may be other data",
            path=existing[0],
            found=", ".join(existing[1:4]),
            hint=f"remove them, or name all of them: --output {target.pattern}",
        )
    for path in existing if target.pattern is not None else ():
        os.unlink(path)
    return []


@contextmanager
def written_output(
    args: argparse.Namespace,
    console: Console,
    sources: Iterable[str] = (),
    *,
    can_resume: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the library's tools take as output and options; says what is left if they do not finish."""
    target = parse_target(args.output)
    resume = can_resume and bool(args.resume)
    before = prepare_target(
        target, force=args.force, resume=resume, can_resume=can_resume, sources=sources
    )
    options: dict[str, Any] = {}
    if target.pattern is not None:
        options = {
            "first": target.first,
            "max_bytes": args.shard_size,
            "max_records": args.shard_records,
        }
    if resume:
        options["append"] = True
    try:
        yield target.pattern or target.name, options
    except BaseException:
        left = target.existing() if target.pattern is not None else []
        if len(left) > len(before):
            advice = "--resume goes on" if can_resume else "--force starts again"
            console.note(f"{len(left):,} complete shards are left: {shown_paths(left)}; {advice}")
        raise


class PackWriter(Protocol):
    """What records are written to: one shard or a set of them."""

    @property
    def paths(self) -> list[str]: ...
    def write_stored(
        self,
        key: str,
        entries: Iterable[StoredEntry],
        metadata_encoding: MetadataEncoding = ...,
        metadata: bytes = ...,
    ) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def __len__(self) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class _OneShard:
    """A writer that refuses what does not fit into one shard."""

    def __init__(
        self, writer: ShardPackWriter, max_bytes: int | None, max_records: int | None
    ) -> None:
        self._writer = writer
        self._max_bytes = max_bytes
        self._max_records = max_records
        self.paths: list[str] = []

    def write_stored(
        self,
        key: str,
        entries: Iterable[StoredEntry],
        metadata_encoding: MetadataEncoding | None = None,
        metadata: bytes = b"",
    ) -> None:
        from shardpack._layout import MetadataEncoding

        writer = self._writer
        encoding = MetadataEncoding.NONE if metadata_encoding is None else metadata_encoding
        prepared = writer.prepare_stored(key, entries, encoding, metadata)
        if len(writer) and (
            (self._max_records is not None and len(writer) >= self._max_records)
            or (self._max_bytes is not None and writer.size_with(prepared.size) > self._max_bytes)
        ):
            raise one_is_not_enough(writer.name, self._max_bytes, self._max_records)
        writer.write_prepared(prepared)

    def __contains__(self, key: object) -> bool:
        return key in self._writer

    def __len__(self) -> int:
        return len(self._writer)

    def close(self) -> None:
        self._writer.close()
        self.paths = [self._writer.name]

    def abort(self) -> None:
        self._writer.abort()


def one_is_not_enough(name: str, max_bytes: int | None, max_records: int | None) -> Exception:
    """The records do not fit under a name that has no number."""
    from shard_cli.text import size
    from shard_format.errors import InvalidArgument

    stem = name.removesuffix(SUFFIX)
    most = [] if max_bytes is None else [size(max_bytes)]
    most += [] if max_records is None else [f"{max_records:,} records"]
    return InvalidArgument(
        f"one shard of {' and '.join(most)} is not enough, and the name has no number to count on",
        path=name,
        hint=f"give --output {stem}-%06d{SUFFIX}, or a larger --shard-size",
    )


def open_writer(
    target: Target,
    *,
    append: bool,
    max_bytes: int | None,
    max_records: int | None,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> PackWriter:
    """A writer for the target; what is there already was dealt with by `prepare_target`."""
    from shardpack import ShardPackWriter, ShardWriterSet

    if target.pattern is None:
        writer = ShardPackWriter(target.name, append=append, **options)
        return _OneShard(writer, max_bytes, max_records)
    return ShardWriterSet(
        target.pattern,
        first=target.first,
        append=append,
        max_bytes=max_bytes,
        max_records=max_records,
        **options,
    )


def leftovers_of(writer: PackWriter) -> list[str]:
    """Unfinished files of runs that were killed."""
    from shardpack import ShardWriterSet

    return writer.leftovers if isinstance(writer, ShardWriterSet) else []


def describe_shards(paths: list[str]) -> list[dict[str, Any]]:
    """What was written, as `--json` shows it."""
    from shardpack.reader import read_footer

    return [
        {
            "file": path,
            "records": read_footer(path).record_count,
            "size": os.stat(path).st_size,
        }
        for path in paths
    ]


def shown_paths(paths: list[str]) -> str:
    """`a-000000.shardpack … a-000007.shardpack`, or the one."""
    from shard_cli.text import printable

    if len(paths) <= 1:
        return printable("".join(paths))
    return f"{printable(paths[0])} … {printable(os.path.basename(paths[-1]))}"


def report_written(
    console: Console, paths: list[str], records: int, what: str = "record", **facts: object
) -> None:
    """The summary of a command that wrote a pack; `facts` are for `--json`."""
    from shard_cli.text import count, size

    shards = describe_shards(paths)
    written = sum(shard["size"] for shard in shards)
    if console.as_json:
        console.document({**facts, "shards": shards, "records": records, "size": written})
    console.said(
        f"{shown_paths(paths)}: {count(records, what)} in {count(len(shards), 'shard')}, "
        f"{size(written)}"
    )


def report_converted(console: Console, found: Converted, why: str, **facts: object) -> Exit:
    """The summary of a conversion; what was left out on purpose is named, and gives exit code 3."""
    from shard_cli.exits import Exit

    for name in found.left_out:
        console.warn(f"left out {name}: {why}")
    left_out = found.left_out
    report_written(console, found.paths, found.records, "record", left_out=left_out, **facts)
    return Exit.IO if found.left_out else Exit.OK
