"""`shardpack extract`: records to files under a folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from shard_cli.arguments import Command, add_dry_run, add_force, add_max_decompressed
from shard_cli.exits import Exit, error_fields, message_of
from shard_cli.files import check_targets, write_file
from shard_cli.pack_files import add_key_patterns, add_pack, chosen_records, open_pack, shards_of
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from shard_cli.safe_paths import Refused
    from shard_format import ShardError
    from shardpack import Dataset

_JOINS: Final = {"stem": ".", "dir": "/"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pack(parser)
    add_key_patterns(parser, "extract")
    parser.add_argument(
        "-C", "--directory", metavar="DIR", default=".", help="where to (default: current folder)"
    )
    parser.add_argument(
        "--layout",
        choices=tuple(_JOINS),
        default="stem",
        help="stem: KEY.NAME, as create and tar files group; dir: KEY/NAME (default: stem)",
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
    return extract_records(
        args.pack,
        args,
        console,
        layout=args.layout,
    )


def extract_records(
    pack: str, args: argparse.Namespace, console: Console, *, layout: str = "stem"
) -> Exit:
    """Writes the records that were asked for; `shard extract` comes here, too."""
    with open_pack(pack, max_decompressed=args.max_decompressed) as dataset:
        extraction = _Extraction(dataset, pack, args, console, _JOINS[layout])
        extraction.plan()
        if not args.dry_run:
            extraction.write()
    extraction.report()
    return Exit.FINDING if extraction.refused or extraction.failures else Exit.OK


class _Extraction:
    """Plans all paths, then writes entries. Owns: the plan, the counts and the failures."""

    def __init__(
        self,
        dataset: Dataset,
        pack: str,
        args: argparse.Namespace,
        console: Console,
        join: str,
    ) -> None:
        self._dataset = dataset
        self._pack = pack
        self._args = args
        self._console = console
        self._join = join
        self._places: dict[str, tuple[str, str]] = {}
        self._total = 0
        self.targets: dict[str, str] = {}
        self.refused: list[Refused] = []
        self.written: list[str] = []
        self.bytes = 0
        self.failures: list[ShardError] = []

    def plan(self) -> None:
        """A path for every entry; raises if one cannot be, before anything is written."""
        from shard_cli.safe_paths import Refused, plan_extraction

        args = self._args
        twice: dict[str, None] = {}
        for record in chosen_records(self._dataset, self._pack, args.patterns, args.prefix):
            key = record.key
            for entry in record.file_entries():
                place = f"{key}{self._join}{entry.name}"
                if place in self._places:
                    twice[place] = None
                self._places[place] = key, entry.name
                self._total += entry.size
        self.refused = [Refused(place, "two entries make this path") for place in twice]
        plan = plan_extraction((p for p in self._places if p not in twice), args.directory)
        self.refused += plan.refused
        self.targets = plan.targets
        if self.refused and not args.skip_unsafe:
            raise _unsafe(self._pack, self.refused)
        for refused in self.refused:
            self._console.warn(f"skipped {refused.name!r}: {refused.reason} (unsafe_path)")
        check_targets(self.targets.values(), shards_of(self._pack), force=args.force)

    def write(self) -> None:
        """Writes the files; one damaged entry does not hide the others."""
        from shard_format.errors import FormatError

        record = None
        with self._console.progress("extract") as bar:
            for place, path in self.targets.items():
                key, name = self._places[place]
                try:
                    if record is None or record.key != key:
                        record = self._dataset[key]
                    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                    written = write_file(path, [record[name].data])
                except FormatError as error:
                    self.failures.append(error)
                    self._console.error(message_of(error), error.code)
                    continue
                self.written.append(place)
                self.bytes += written
                bar.update(self.bytes, self._total)
                self._console.detail(printable(path))

    def report(self) -> None:
        """What was written, or would be."""
        args, console = self._args, self._console
        places = list(self.targets) if args.dry_run else self.written
        if console.as_json:
            document: dict[str, Any] = {
                "file": self._pack,
                "directory": args.directory,
                "dry_run": args.dry_run,
                "extracted": [
                    {
                        "key": self._places[place][0],
                        "name": self._places[place][1],
                        "path": self.targets[place],
                    }
                    for place in places
                ],
                "bytes": self.bytes,
                "skipped": [{"name": one.name, "reason": one.reason} for one in self.refused],
                "errors": [error_fields(error) for error in self.failures],
            }
            console.document(document)
            return
        if args.dry_run:
            for place in places:
                console.line(printable(self.targets[place]))
            console.said(f"would extract {count(len(places), 'entry')}")
            return
        text = f"extracted {count(len(places), 'entry')}, {size(self.bytes)}"
        if self.refused:
            text += f"; skipped {count(len(self.refused), 'unsafe name')}"
        if self.failures:
            text += f"; {len(self.failures):,} failed"
        console.said(text)


def _unsafe(pack: str, refused: list[Refused]) -> ShardError:
    from shard_format.errors import UnsafePath

    others = "" if len(refused) == 1 else f", and {count(len(refused) - 1, 'more name')} like it"
    return UnsafePath(
        f"key and name cannot be a path: {refused[0].reason}{others}; nothing was written",
        path=pack,
        entry=refused[0].name,
        hint="--skip-unsafe extracts the rest",
    )


COMMAND = Command(
    name="extract",
    summary="write records to files under a folder",
    description="Key and name become a path below the folder. Those that could lead elsewhere, or two for\n"
    "one file, are refused before anything is written.",
    examples=(
        ("shardpack extract train-000000.shardpack -C out", "everything: out/KEY.NAME"),
        ("shardpack extract 'train-*.shardpack' 'cats/*' -C out", "only some records"),
        ("shardpack extract runs.shardpack -C out --layout dir", "a folder for each record"),
        ("shardpack extract train-000000.shardpack --dry-run", "where everything would go"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
