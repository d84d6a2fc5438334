"""`shard extract`: entries to files under a folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import (
    Command,
    add_dry_run,
    add_force,
    add_max_decompressed,
    add_patterns,
)
from shard_cli.exits import Exit, error_fields, message_of
from shard_cli.files import check_targets, write_file
from shard_cli.opening import open_shard
from shard_cli.pack_files import is_pack
from shard_cli.selection import choose
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from shard_cli.output import Console
    from shard_cli.progress import Progress
    from shard_cli.safe_paths import Refused
    from shard_format import ShardError, ShardReader


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file of the Shard family")
    add_patterns(parser, "extract")
    parser.add_argument(
        "-C", "--directory", metavar="DIR", default=".", help="where to (default: current folder)"
    )
    parser.add_argument(
        "--skip-unsafe",
        action="store_true",
        help="extract the rest if some names cannot be trusted as paths; exit code 1",
    )
    add_force(parser, "replace files that exist")
    add_dry_run(parser)
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.commands.packs.extract import extract_records
    from shard_cli.safe_paths import plan_extraction

    if is_pack(args.file):
        return extract_records(args.file, args, console)
    with open_shard(args.file, max_decompressed=args.max_decompressed) as reader:
        plan = plan_extraction(choose(reader, args.patterns, args.prefix), args.directory)
        if plan.refused and not args.skip_unsafe:
            raise _unsafe(reader, plan.refused)
        for refused in plan.refused:
            console.warn(f"skipped {refused.name!r}: {refused.reason} (unsafe_path)")
        check_targets(plan.targets.values(), [args.file], force=args.force)
        extraction = _Extraction(reader, console)
        if not args.dry_run:
            extraction.write(plan.targets)
    _report(args, console, plan.targets, plan.refused, extraction)
    return Exit.FINDING if plan.refused or extraction.failures else Exit.OK


class _Extraction:
    """Writes entries and counts what was written. Owns: the counts and the failures."""

    def __init__(self, reader: ShardReader, console: Console) -> None:
        self._reader = reader
        self._console = console
        self.written: list[str] = []
        self.bytes = 0
        self.failures: list[ShardError] = []

    def write(self, targets: Mapping[str, str]) -> None:
        from shard_format.errors import FormatError

        total = sum(self._reader.info(name).size for name in targets)
        with self._console.progress("extract") as bar:
            for name, path in targets.items():
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                try:
                    write_file(path, self._counted(name, bar, total))
                except FormatError as error:  # one damaged entry does not hide the others
                    self.failures.append(error)
                    self._console.error(message_of(error), error.code)
                    continue
                self.written.append(name)
                self._console.detail(printable(path))

    def _counted(self, name: str, bar: Progress, total: int) -> Iterator[memoryview]:
        for piece in self._reader.iter_entry(name):
            yield piece
            self.bytes += len(piece)
            bar.update(self.bytes, total)


def _unsafe(reader: ShardReader, refused: list[Refused]) -> ShardError:
    from shard_format.errors import UnsafePath

    others = "" if len(refused) == 1 else f", and {count(len(refused) - 1, 'more name')} like it"
    return UnsafePath(
        f"the name cannot be a path: {refused[0].reason}{others}; nothing was written",
        path=reader.name,
        entry=refused[0].name,
        rule="S-NAM-8",
        hint="--skip-unsafe extracts the rest",
    )


def _report(
    args: argparse.Namespace,
    console: Console,
    targets: Mapping[str, str],
    refused: list[Refused],
    extraction: _Extraction,
) -> None:
    names = list(targets) if args.dry_run else extraction.written
    if console.as_json:
        document: dict[str, Any] = {
            "file": args.file,
            "directory": args.directory,
            "dry_run": args.dry_run,
            "extracted": [{"name": name, "path": targets[name]} for name in names],
            "bytes": extraction.bytes,
            "skipped": [{"name": one.name, "reason": one.reason} for one in refused],
            "errors": [error_fields(error) for error in extraction.failures],
        }
        console.document(document)
        return
    if args.dry_run:
        for name in names:
            console.line(printable(targets[name]))
        console.said(f"would extract {count(len(names), 'entry')}")
        return
    text = f"extracted {count(len(names), 'entry')}, {size(extraction.bytes)}"
    if refused:
        text += f"; skipped {count(len(refused), 'unsafe name')}"
    if extraction.failures:
        text += f"; {len(extraction.failures):,} failed"
    console.said(text)


COMMAND = Command(
    name="extract",
    summary="write entries to files under a folder",
    description="Names become paths below the folder. Names that could lead elsewhere, or two names\n"
    "for one file, are refused before anything is written.",
    examples=(
        ("shard extract data.shard -C out", "everything, into out/"),
        ("shard extract data.shard 'images/*' -C out", "only some entries"),
        ("shard extract --dry-run data.shard", "what would be written"),
        ("shard extract --skip-unsafe odd.shard -C out", "leave out names like ../x"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
