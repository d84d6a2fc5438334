"""`diff`: what two files differ in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shard_cli import arguments as arg
from shard_cli.exits import Exit
from shard_cli.files import is_pack
from shard_cli.kinds import kind_of
from shard_cli.text import printable

if TYPE_CHECKING:
    import argparse

    from shard_cli.console import Console
    from shard_cli.kinds.model import Change

_MARKS: Final = {
    "only_in_a": ("-", "red"),
    "only_in_b": ("+", "green"),
    "metadata": ("*", "yellow"),
    "description": ("*", "yellow"),
    "file": ("*", "yellow"),
}
_CHANGED: Final = ("~", "yellow")
_TOTALS: Final = {
    "only_in_a": "only in A",
    "only_in_b": "only in B",
    "content": "changed",
    "form": "of another form",
    "values": "with other values",
    "metadata": "described differently",
    "description": "about channels",
    "file": "about the whole file",
}


_BRIEF: Final = (
    arg.flag("--brief", "stop at the first difference and only say that there is one"),
    arg.MAX_DECOMPRESSED,
)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    # `shard` compares packs if both are packs.
    kind = kind_of(args.a if is_pack(args.b) else args.b, console.program)
    found: list[Change] = []
    with console.progress("diff") as bar, kind.compare(args, bar.update) as (changes, same):
        for change in changes:
            found.append(change)
            if args.brief:
                break
            if not console.as_json:
                mark, colour = _MARKS.get(change.kind, _CHANGED)
                console.line(f"{console.style(mark, colour)} {change.text}")
    if console.as_json:
        shown = [] if args.brief else [change.fields for change in found]
        console.document({"a": args.a, "b": args.b, "same": not found, "differences": shown})
    elif found and args.brief:
        console.line(f"{printable(args.a)} and {printable(args.b)} differ")
    elif found:
        console.said(console.style(_totals(found), "dim"))
    else:
        console.said(f"same: {same}")
    return Exit.FINDING if found else Exit.OK


def _totals(found: list[Change]) -> str:
    counts = {kind: sum(one.kind == kind for one in found) for kind in _TOTALS}
    return ", ".join(f"{counts[kind]:,} {text}" for kind, text in _TOTALS.items() if counts[kind])


DIFF = arg.Command(
    "diff",
    _run,
    (
        arg.positional("a", "A", "one file, or one pack"),
        arg.positional("b", "B", "the other one"),
        arg.flag(
            "--stored", "also compare how entries are stored: codec, alignment, order of records"
        ),
        *_BRIEF,
    ),
    """
compare two files by entry, two packs by record

Compares content after decompression: two files that differ only in codec, order, alignment or number of
shards are the same. Exit code 0 if they are the same, 1 if not.

shard diff old.shard new.shard                   # - only in A, + only in B, ~ changed, * described
shard diff --brief a.shard b.shard && echo same  # for scripts
shard diff --stored a.shard b.shard              # codec and alignment, too
shardpack diff old.shardpack new.shardpack              # - only in A, + only in B, ~ changed, * described
shardpack diff --brief 'a-*.shardpack' b/ && echo same  # for scripts
""",
)
WSHARD = arg.Command(
    "diff",
    _run,
    (
        arg.positional("a", "A", "one episode"),
        arg.positional("b", "B", "the other one"),
        arg.flag(
            "--no-values", "compare facts, names, types and shapes only, without reading the blocks"
        ),
        arg.NO_SIDECARS,
        *_BRIEF,
    ),
    """
compare two episodes: facts, channels, values

How episodes are stored does not matter: compression, order, chunks or one file. Exit code 0
if they are the same, 1 if not. 'shard diff' compares files byte by byte.

wshard diff old.wshard new.wshard                   # - only in A, + only in B, ~ changed, * described
wshard diff --brief a.wshard b.wshard && echo same  # for scripts
wshard diff --no-values a.wshard b.wshard           # without reading the blocks
""",
)
