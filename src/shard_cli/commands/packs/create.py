"""`shardpack create`: files grouped into records, in shards of a target size."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from shard_cli.arguments import Command, add_dry_run, add_jobs, size_argument
from shard_cli.exits import Exit
from shard_cli.pack_output import add_output
from shard_cli.pack_storage import add_metadata, add_pack_storage, metadata_of
from shard_cli.text import count, duration, percent, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from shard_cli.pack_output import PackWriter, Target
    from shard_cli.samples import Plan, Problem, Sample

_DEFAULT_RECORD_BYTES: Final = 1 << 30
# Below this nobody has waited.
_WORTH_TELLING: Final = 2.0
_CODES: Final = {
    "unreadable": "io_error",
    "changed": "io_error",
    "large": "limit_exceeded",
    "duplicate": "duplicate_name",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        metavar="DIR|LIST|-",
        help="a folder, a file with one path on each line, or - for such a list from stdin; "
        "may be repeated",
    )
    add_output(parser)
    parser.add_argument(
        "--record-size-limit",
        type=size_argument,
        default=_DEFAULT_RECORD_BYTES,
        metavar="SIZE",
        help="records with more content are refused (default 1G)",
    )
    add_pack_storage(parser)
    add_metadata(parser)
    parser.add_argument(
        "-g",
        "--group",
        default="stem",
        metavar="HOW",
        help="what makes a record: stem (a.jpg and a.json are record a; names are split at the first "
        "dot), suffix (at the last dot), dir (all files of a folder), or FILE.jsonl with key, files "
        "and metadata on each line (default: stem)",
    )
    parser.add_argument(
        "--base", metavar="DIR", help="keys of listed files are relative to DIR (default: here)"
    )
    parser.add_argument(
        "--hidden", action="store_true", help="also pack files and folders that start with a dot"
    )
    parser.add_argument(
        "--resume",
        "--append",
        action="store_true",
        help="keep the shards that are there and pack only records that are not in them",
    )
    parser.add_argument(
        "--skip-unreadable",
        action="store_true",
        help="leave out records with files that cannot be read, vanish or change; exit code 3",
    )
    parser.add_argument(
        "--skip-large",
        action="store_true",
        help="leave out records above the size limit; exit code 3",
    )
    add_jobs(parser)
    add_dry_run(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.pack_output import one_is_not_enough, parse_target, prepare_target
    from shardpack.encodings import Encoding, EntryCompression

    # Whatever is wrong with the command is said before any file is looked at.
    target = parse_target(args.output)
    compression = EntryCompression.parse(args.compression)
    metadata = metadata_of(args)
    plan = _plan(args, target)
    for path, reason in plan.skipped:
        console.warn(f"skipped {path}: {reason}")
    refused = [one for one in plan.problems if not _may_skip(one, args)]
    if refused or (not plan.samples and not plan.problems):
        return _refuse(args, console, plan, refused)
    for problem in plan.problems:
        console.warn(f"left out {problem}")
    known_size = plan.size if compression.encoding is Encoding.NONE else 0
    if target.pattern is None and known_size > args.shard_size and not args.resume:
        raise one_is_not_enough(target.name, args.shard_size, None)
    if args.dry_run:
        return _report_dry_run(args, console, plan)
    existing = prepare_target(target, force=args.force, resume=args.resume)
    packing = _Packing(args, console, target, plan, existing)
    return packing.run(compression, metadata)


def _plan(args: argparse.Namespace, target: Target) -> Plan:
    from shard_cli.sample_manifest import collect_manifest
    from shard_cli.samples import GROUPINGS, Rules, collect, refuse_large
    from shard_format.errors import InvalidArgument

    if args.group in GROUPINGS:
        if not args.input:
            raise InvalidArgument("--input is missing", expected="a folder, a list, or -")
        rules = Rules(args.group, args.hidden, target.is_own)
        plan = collect(args.input, rules, base=args.base)
    else:
        if not os.path.isfile(args.group):
            raise InvalidArgument(
                "unknown --group",
                expected=f"{', '.join(GROUPINGS)}, or a manifest FILE.jsonl",
                found=repr(args.group),
            )
        if len(args.input or ()) > 1 or (args.input and not os.path.isdir(args.input[0])):
            raise InvalidArgument("with a manifest, --input is the one folder of its paths")
        plan = collect_manifest(args.group, args.input[0] if args.input else args.base)
    refuse_large(plan, args.record_size_limit)
    return plan


def _may_skip(problem: Problem, args: argparse.Namespace) -> bool:
    if problem.kind == "large":
        return bool(args.skip_large)
    return problem.kind != "duplicate" and bool(args.skip_unreadable)


def _refuse(args: argparse.Namespace, console: Console, plan: Plan, refused: list[Problem]) -> Exit:
    """Says everything that is wrong with the inputs; nothing is written."""
    from shard_format.errors import InvalidArgument

    if not refused:
        given = args.group if not args.input else ", ".join(args.input)
        raise InvalidArgument(
            "there is nothing to pack", path=given, hint="folders are searched for files"
        )
    for problem in refused:
        console.error(str(problem), _CODES[problem.kind])
    if console.as_json:
        console.document(
            {
                "output": args.output,
                "errors": [problem.to_fields() for problem in refused],
                "skipped": _skipped_fields(plan),
            }
        )
    hints = sorted(
        {
            {"large": "--skip-large", "duplicate": ""}.get(one.kind, "--skip-unreadable")
            for one in refused
        }
        - {""}
    )
    hint = f"; {' and '.join(hints)} would leave them out" if hints else ""
    console.note(f"nothing was written: {count(len(refused), 'problem')}{hint}")
    return Exit.FINDING


class _Packing:
    """One run. Owns: the counts, and what was left out."""

    def __init__(
        self,
        args: argparse.Namespace,
        console: Console,
        target: Target,
        plan: Plan,
        existing: list[str],
    ) -> None:
        self._args = args
        self._console = console
        self._target = target
        self._plan = plan
        self._existing = existing
        self._left_out = list(plan.problems)
        self._records = 0
        self._entries = 0
        self._bytes = 0
        self._known = 0
        self._start = time.monotonic()

    def run(self, compression: Any, metadata: dict[str, str]) -> Exit:  # noqa: ANN401 - the library's
        from shard_cli.pack_output import leftovers_of, open_writer
        from shard_format.errors import ShardError

        args = self._args
        options: dict[str, Any] = {}
        if self._existing:
            # The shards of one set say the same time, as if it had never been interrupted.
            options["created"] = _created(self._existing[0])
        writer: PackWriter | None = None
        stopped: Problem | None = None
        try:
            writer = open_writer(
                self._target,
                append=args.resume,
                max_bytes=args.shard_size,
                max_records=args.shard_records,
                alignment=args.alignment,
                metadata=metadata,
                max_record_bytes=args.record_size_limit,
                **options,
            )
            for path in leftovers_of(writer) if args.resume else ():
                self._console.note(
                    f"a run that was killed left {path}; it is not needed, remove it"
                )
            stopped = self._write(writer, self._missing(writer), compression)
            if stopped is None:
                writer.close()
            else:
                writer.abort()
        except BaseException as error:
            if writer is not None:
                writer.abort()
            if writer is not None or not isinstance(error, ShardError):
                self._say_how_to_go_on()
            raise
        if stopped is not None:
            return self._stop(stopped)
        self._report(writer)
        return Exit.IO if self._left_out else Exit.OK

    def _missing(self, writer: PackWriter) -> list[Sample]:
        if not self._existing:
            return self._plan.samples
        samples = [sample for sample in self._plan.samples if sample.key not in writer]
        self._known = len(self._plan.samples) - len(samples)
        return samples

    def _write(
        self,
        writer: PackWriter,
        samples: list[Sample],
        compression: Any,  # noqa: ANN401 - the library's
    ) -> Problem | None:
        """The problem that ends the run, if there is one."""
        from shard_cli.jobs import processors
        from shard_cli.packing import read_samples
        from shard_cli.samples import Problem
        from shard_format._json import canonical
        from shard_format.errors import LimitExceeded
        from shardpack._layout import MetadataEncoding

        total = sum(sample.size for sample in samples)
        done = 0
        reading = read_samples(samples, compression, self._args.jobs or processors())
        # Closed at once if the run ends early: what waits to be read need not be.
        with (
            closing(reading),
            self._console.progress(f"pack {count(len(samples), 'record')}") as bar,
        ):
            for sample, found in reading:
                done += sample.size
                if not isinstance(found, Problem):
                    encoding, fields = MetadataEncoding.NONE, b""
                    if sample.metadata:
                        encoding, fields = MetadataEncoding.JSON, canonical(sample.metadata)
                    try:
                        writer.write_stored(sample.key, found, encoding, fields)
                    except LimitExceeded as error:  # its head is what is too much
                        found = Problem("large", sample.key, sample.files[0].path, str(error))
                if isinstance(found, Problem):
                    if not _may_skip(found, self._args):
                        return found
                    self._left_out.append(found)
                    self._console.warn(f"left out {found}")
                    continue
                self._records += 1
                self._entries += len(sample.files)
                self._bytes += sample.size
                bar.update(done, total)
                if self._console.verbose:
                    self._console.detail(printable(sample.key))
        return None

    def _stop(self, problem: Problem) -> Exit:
        console = self._console
        if console.as_json:
            fields = {"errors": [problem.to_fields()], "skipped": _skipped_fields(self._plan)}
            console.document({"output": self._args.output, **fields})
        console.error(str(problem), _CODES[problem.kind])
        self._say_how_to_go_on()
        return Exit.FINDING

    def _say_how_to_go_on(self) -> None:
        # What is there, not what the writer has counted: an interrupt may come between the two.
        target = self._target
        finished = self._existing if target.pattern is None else target.existing()
        if not finished:
            self._console.note("no shard was finished; nothing is left of this run")
            return
        from shard_cli.pack_output import shown_paths

        self._console.note(
            f"{count(len(finished), 'complete shard')} so far: {shown_paths(finished)}"
        )
        self._console.note("to go on, give the same command with --resume")

    def _report(self, writer: PackWriter) -> None:
        from shard_cli.pack_output import describe_shards, shown_paths

        console = self._console
        kept = 0 if self._target.pattern is None else len(self._existing)
        shards = describe_shards(writer.paths[kept:])
        written = sum(shard["size"] for shard in shards)
        if console.as_json:
            console.document(
                {
                    "output": self._args.output,
                    "dry_run": False,
                    "shards": shards,
                    "kept_shards": self._existing if kept else [],
                    "records": self._records,
                    "known_records": self._known,
                    "entries": self._entries,
                    "content_size": self._bytes,
                    "size": written,
                    "skipped": _skipped_fields(self._plan),
                    "left_out": [problem.to_fields() for problem in self._left_out],
                }
            )
            return
        if self._existing:
            console.said(f"{count(self._known, 'record')} were there already")
        if not self._records and self._existing:
            console.said("nothing was missing")
        else:
            seconds = time.monotonic() - self._start
            console.said(
                f"{shown_paths([shard['file'] for shard in shards])}: "
                f"{count(self._records, 'record')} with {count(self._entries, 'entry')} in "
                f"{count(len(shards), 'shard')}, {size(written)} "
                f"({percent(written, self._bytes)} of {size(self._bytes)})"
            )
            if seconds >= _WORTH_TELLING or console.verbose:
                console.said(f"took {duration(seconds)}, {size(int(self._bytes / seconds))}/s")
        if self._plan.skipped:
            console.said(f"skipped {count(len(self._plan.skipped), 'path')} that are no data")
        if self._left_out:
            console.said(
                f"left out {count(len(self._left_out), 'record or file', 'records or files')}"
            )


def _created(path: str) -> str | None:
    from shardpack import ShardPackReader

    with ShardPackReader(path) as reader:
        created = reader.metadata.get("created")
    return created if isinstance(created, str) else None


def _skipped_fields(plan: Plan) -> list[dict[str, str]]:
    return [{"path": path, "reason": reason} for path, reason in plan.skipped]


def _report_dry_run(args: argparse.Namespace, console: Console, plan: Plan) -> Exit:
    if console.as_json:
        console.document(
            {
                "output": args.output,
                "dry_run": True,
                "records": [
                    {
                        "key": sample.key,
                        "size": sample.size,
                        "files": {file.name: file.path for file in sample.files},
                    }
                    for sample in plan.samples
                ],
                "skipped": _skipped_fields(plan),
                "left_out": [problem.to_fields() for problem in plan.problems],
            }
        )
    else:
        for sample in plan.samples:
            names = ", ".join(file.name for file in sample.files)
            console.line(f"{printable(sample.key)}\t{sample.size}\t{printable(names)}")
        console.said(f"would pack {count(len(plan.samples), 'record')}, {size(plan.size)}")
    return Exit.IO if plan.problems else Exit.OK


COMMAND = Command(
    name="create",
    summary="pack files into records",
    description="Keys are paths inside the folder. The order is that of the names, or of the list; the same\n"
    "files give the same bytes, whatever --jobs is (set SOURCE_DATE_EPOCH for the same time). Links and\n"
    "special files in folders are skipped and named. Each shard appears when it is complete: after\n"
    "Ctrl-C or a crash, --resume goes on behind the last one.",
    examples=(
        (
            "shardpack create --input photos --output train-%06d.shardpack",
            "a.jpg and a.json: record a",
        ),
        (
            'shardpack create -i photos -o train-000000.shardpack --compression lz4 --metadata creator="MyName"',
            "compressed, with a field of your own",
        ),
        ("shardpack create -i runs -o runs.shardpack --group dir", "each folder is a record"),
        ("shardpack create -o set-%06d.shardpack --group list.jsonl", "as a manifest says"),
        ("find . -name '*.jpg' -print0 | shardpack create -i - -o jpg.shardpack", "from a list"),
        ("shardpack create -i photos -o train-%06d.shardpack --resume", "go on where it stopped"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
