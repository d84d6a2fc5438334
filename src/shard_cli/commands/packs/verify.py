"""`shardpack verify`: is every byte as it should be?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_jobs, add_max_decompressed
from shard_cli.exits import Exit, message_of, worst
from shard_cli.files import known_size
from shard_cli.pack_files import add_packs, shards_of
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from shard_cli.output import Console
    from shard_cli.pack_checking import CheckedPack

# A shard with a thousand damaged records does not need a thousand lines.
_MOST_SHOWN = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_packs(parser)
    add_jobs(parser)
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    results: list[CheckedPack] = []
    for pack in args.packs:
        results += check_pack(pack, args.max_decompressed, console, args.jobs)
    if console.as_json:
        console.document({"files": [checked.to_fields() for checked in results]})
    elif len(results) > 1:
        _show_total(results, console)
    return worst([checked.exit for checked in results])


def check_pack(
    pack: str, max_decompressed: int | None, console: Console, jobs: int | None = None
) -> list[CheckedPack]:
    """Checks all shards of a pack and shows each; `shard verify` comes here, too."""
    from shard_cli.jobs import in_order
    from shard_cli.opening import limits_with
    from shard_cli.pack_checking import find_repeated

    shards = shards_of(pack)
    weights = [known_size(shard) for shard in shards]
    work = partial(_check, max_decompressed=max_decompressed)
    checked = list(
        in_order(
            shards,
            work,
            jobs=jobs,
            weights=weights,
            console=console,
            label=f"verify {pack}" if len(shards) == 1 else "verify",
            noun="shard",
        )
    )
    find_repeated(checked, limits_with(max_decompressed))
    if not console.as_json:
        for one in checked:
            show_checked(one, console)
    return checked


def _check(
    shard: str, progress: Callable[[int, int], None], *, max_decompressed: int | None
) -> CheckedPack:
    from shard_cli.pack_checking import check_shard

    return check_shard(shard, max_decompressed, progress)


def show_checked(checked: CheckedPack, console: Console) -> None:
    """One shard: a line if it is fine, all errors if not."""
    file = printable(checked.file)
    if not checked.errors:
        facts = (
            f"{count(checked.records, 'record')}, {count(checked.entries, 'entry')}, "
            f"{size(checked.bytes)}"
        )
        console.said(f"{file}: {console.style('ok', 'green')}, {facts}")
        return
    failed = console.style("FAILED", "red", "bold")
    console.line(f"{file}: {failed}, {count(len(checked.errors), 'error')}")
    shown = checked.errors if console.verbose else checked.errors[:_MOST_SHOWN]
    for error in shown:
        console.line(
            f"  {console.style(error.code, 'red')}: {message_of(error, under=checked.file)}"
        )
    if len(shown) < len(checked.errors):
        console.line(f"  … and {count(len(checked.errors) - len(shown), 'more error')}; see -v")
    console.said(f"  fine: {count(checked.records, 'record')}, {count(checked.entries, 'entry')}")


def _show_total(results: list[CheckedPack], console: Console) -> None:
    bad = sum(bool(checked.errors) for checked in results)
    text = (
        f"{count(len(results), 'shard')}, {count(sum(one.records for one in results), 'record')}, "
        f"{size(sum(one.bytes for one in results))}; {bad:,} damaged"
    )
    console.said(console.style(text, "dim"))


COMMAND = Command(
    name="verify",
    summary="check every byte of packs",
    description="Reads the index, every record and every entry, compares checksums, decompresses, and finds\n"
    "keys that are in a set twice.",
    examples=(
        ("shardpack verify train-000000.shardpack", "one shard"),
        ("shardpack verify 'train-{000000..000009}.shardpack'", "a set, several shards at once"),
        ("shardpack verify -q train/", "a folder; prints only what is wrong"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
