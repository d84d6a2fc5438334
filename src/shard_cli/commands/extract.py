"""`extract`: contents to files under a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shard_cli import arguments as arg
from shard_cli.exits import Exit, error_fields, message_of
from shard_cli.files import check_targets
from shard_cli.kinds import readable_kind
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from shard_cli.console import Console
    from shard_cli.kinds.model import NamedContent
    from shard_format import ShardError
    from shard_format.safe_paths import ExtractionPlan, Refused

_BESIDE_FOLDER: Final = ".entry"


def _run(args: argparse.Namespace, console: Console) -> Exit:
    kind = readable_kind(args.file, console.program)
    with kind.chosen(args.file, args) as chosen, console.progress("extract") as bar:
        work = _Extraction(args, console, kind.files(args.file), bar.adding_to(chosen.size))
        for members in chosen.groups:
            work.add(members)
    refused, failures = work.refused, work.failures
    text = (
        f"{'would extract' if args.dry_run else 'extracted'} {count(len(work.extracted), 'entry')}"
    )
    text += "" if args.dry_run else f", {size(work.bytes)}"
    text += f"; {count(work.kept, 'file')} already there" if work.kept else ""
    if not args.dry_run:
        text += f"; skipped {count(len(refused), 'unsafe name')}" if refused else ""
        text += f"; {len(failures):,} failed" if failures else ""
    console.report(
        {
            "file": args.file,
            "directory": args.directory,
            "dry_run": args.dry_run,
            "extracted": work.extracted,
            "bytes": work.bytes,
            "already_there": work.kept,
            "skipped": [{"name": one.name, "reason": one.reason} for one in refused],
            "errors": [error_fields(error) for error in failures],
        },
        text,
    )
    return Exit.FINDING if refused or failures else Exit.OK


class _Extraction:
    """Extracts members, some at a time.

    Args:
        args: of the command.
        console: says what is refused, and what fails.
        sources: files that must not be replaced.
        advance: called with the size of each file after it is written.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        console: Console,
        sources: list[str],
        advance: Callable[[int], None],
    ) -> None:
        self._args, self._console = args, console
        self._sources = sources
        self._advance = advance
        self._names: set[str] = set()
        self.extracted: list[dict[str, Any]] = []
        """What `--json` says about each file that was, or would be, written."""
        self.bytes = self.kept = 0
        self.refused: list[Refused] = []
        self.failures: list[ShardError] = []

    def add(self, members: list[NamedContent]) -> None:
        """Checks the paths of all of these, and then writes them. One damaged entry does not keep the others from it."""
        from shard_format.errors import FormatError, shorten

        args, console = self._args, self._console
        targets, refused, plan = _plan(members, args.directory, self._names)
        if refused and not args.skip_unsafe:
            raise _unsafe(args.file, refused, nothing=not self.extracted)
        self.refused += refused
        for member, path in targets:
            if not path.endswith(member.name) and path.endswith(_BESIDE_FOLDER):
                console.note(f"{member.name} is a folder, too: the entry goes to {path}")
        for one in refused:
            console.warn(f"skipped {shorten(one.name)}: {one.reason} (unsafe_path)")
        if not args.force:
            found = len(targets)
            targets = [(member, path) for member, path in targets if not _is_there(member, plan)]
            self.kept += found - len(targets)
        check_targets([path for _, path in targets], self._sources, force=args.force)
        for member, path in targets:
            if args.dry_run:
                if not console.as_json:
                    console.line(printable(path))
            else:
                try:
                    written = plan.write(member.name, member.pieces(None))
                except FormatError as error:
                    self.failures.append(error)
                    console.error(message_of(error), error.code)
                    continue
                self._advance(written)
                self.bytes += written
                console.detail(printable(path))
            self.extracted.append({**_place(member), "path": path})


def _plan(
    members: list[NamedContent], folder: str, earlier: set[str]
) -> tuple[list[tuple[NamedContent, str]], list[Refused], ExtractionPlan]:
    """Where everything goes, what cannot be a path below the folder, and the plan that writes it.

    Names that are among the earlier ones are refused; the others are added to them.
    """
    from shard_format.safe_paths import Refused, plan_extraction

    by_name: dict[str, list[NamedContent]] = {}
    for member in members:
        by_name.setdefault(member.name, []).append(member)
    repeated = {name for name, same in by_name.items() if len(same) > 1 or name in earlier}
    earlier.update(by_name)
    names = (name for name in by_name if name not in repeated)
    plan = plan_extraction(names, folder, beside_folder=_BESIDE_FOLDER)
    refused = [Refused(name, "two entries have this path") for name in by_name if name in repeated]
    targets = [(by_name[name][0], path) for name, path in plan.targets.items()]
    return targets, [*refused, *plan.refused], plan


def _is_there(member: NamedContent, plan: ExtractionPlan) -> bool:
    """Whether an earlier run has written a file already."""
    from shard_format.codecs import crc32c
    from shard_format.errors import FormatError

    def checksum() -> int:
        found = member.crc32c
        if found is None:
            found = 0
            for piece in member.pieces(None):
                found = crc32c(piece, found)
        return found

    try:
        return plan.holds(member.name, member.size, checksum)
    except FormatError:  # damaged, which the attempt to write it reports
        return False


def _place(member: NamedContent) -> dict[str, Any]:
    return {key: member.fields[key] for key in ("key", "name") if key in member.fields}


def _unsafe(path: str, refused: list[Refused], *, nothing: bool) -> ShardError:
    from shard_format.errors import UnsafePath

    others = "" if len(refused) == 1 else f", and {count(len(refused) - 1, 'more name')} like it"
    others += "; nothing was written" if nothing else "; the files before it were written"
    return UnsafePath(
        f"the name cannot be a path: {refused[0].reason}{others}",
        path=path,
        entry=refused[0].name,
        rule="S-NAM-8",
        hint="--skip-unsafe extracts the rest",
    )


EXTRACT = arg.Command(
    "extract",
    _run,
    (
        arg.FILE,
        *arg.patterns("extract"),
        arg.DIRECTORY,
        arg.option(
            "--layout",
            "for a pack: stem for KEY.NAME, as 'create' and tar files group files; dir for KEY/NAME (default: stem)",
            choices=("stem", "dir"),
            default="stem",
        ),
        arg.metadata_entry("for a pack: the name of the file that gets the metadata of a record"),
        arg.flag(
            "--skip-unsafe", "extract the rest if some names are unsafe as paths; exit code 1"
        ),
        arg.force("replace files that exist"),
        arg.DRY_RUN,
        arg.MAX_DECOMPRESSED,
    ),
    """
write entries to files under a folder

Names become paths below the folder; for a pack, key and name together. Names that could lead outside it, or
two names for one file, are refused before anything is written. An entry whose name is also a folder, as
reward beside reward/exact, goes to reward.entry. A record's metadata becomes a file beside its
entries. After an interruption, run the same command again: existing files with the same size and CRC-32C
are kept; a file with other content is refused before anything is written, unless you pass --force.
A pack behind a URL is read once, and each record is checked just before its files are written.

shard extract data.shard -C out               # everything, into out/
shard extract data.shard 'images/*' -C out    # only some entries
shard extract --dry-run data.shard            # what would be written
shard extract --skip-unsafe odd.shard -C out  # leave out names like ../x
shardpack extract train-000000.shardpack -C out        # everything: out/KEY.NAME
shardpack extract 'train-*.shardpack' 'cats/*' -C out  # only some records
shardpack extract runs.shardpack -C out --layout dir   # a folder for each record
shardpack extract train-000000.shardpack --dry-run     # where everything would go
""",
)
