"""`shard diff`: what differs between two files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_max_decompressed
from shard_cli.exits import Exit
from shard_cli.opening import open_shard
from shard_cli.pack_files import is_pack
from shard_cli.text import count, fit, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from shard_cli.comparing import Difference
    from shard_cli.output import Console

_LONGEST_VALUE = 60
_MARKS = {
    "only_in_a": ("-", "red"),
    "only_in_b": ("+", "green"),
    "content": ("~", "yellow"),
    "metadata": ("*", "yellow"),
    "file": ("*", "yellow"),
}
_TOTALS = {
    "only_in_a": "only in A",
    "only_in_b": "only in B",
    "content": "changed",
    "metadata": "described differently",
    "file": "about the whole file",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="one file")
    parser.add_argument("b", metavar="B", help="the other")
    parser.add_argument(
        "--stored",
        action="store_true",
        help="also compare how entries are stored: codec, alignment",
    )
    parser.add_argument(
        "--brief", action="store_true", help="stop at the first difference and only say that"
    )
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.commands.packs.diff import diff_packs
    from shard_cli.comparing import compare

    if is_pack(args.a) and is_pack(args.b):
        return diff_packs(args, console)
    limit = args.max_decompressed
    with (
        open_shard(args.a, max_decompressed=limit) as a,
        open_shard(args.b, max_decompressed=limit) as b,
        console.progress("diff") as bar,
    ):
        differences = compare(a, b, stored=args.stored, progress=bar.update)
        return show_differences(differences, args, console, count(len(a), "entry"))


def show_differences(
    differences: Iterable[Difference], args: argparse.Namespace, console: Console, same: str
) -> Exit:
    """Prints differences as they are found; `same` says what there is if there are none."""
    found: list[Difference] = []
    for difference in differences:
        found.append(difference)
        if args.brief:
            break
        if not console.as_json:
            mark, colour = _MARKS[difference.kind]
            console.line(f"{console.style(mark, colour)} {_text(difference)}")
    if console.as_json:
        document = {"a": args.a, "b": args.b, "same": not found}
        fields = [] if args.brief else [one.to_fields() for one in found]
        console.document({**document, "differences": fields})
    elif found and args.brief:
        console.line(f"{printable(args.a)} and {printable(args.b)} differ")
    elif found:
        console.said(console.style(_totals(found), "dim"))
    else:
        console.said(f"same: {same}")
    return Exit.FINDING if found else Exit.OK


def _text(difference: Difference) -> str:
    entry = "file" if difference.entry is None else printable(difference.entry)
    if difference.kind == "only_in_a":
        return f"{entry}: only in A, {size(difference.a)}"
    if difference.kind == "only_in_b":
        return f"{entry}: only in B, {size(difference.b)}"
    if difference.kind == "content":
        sizes = size(difference.a)
        if difference.a != difference.b:
            sizes = f"{difference.a:,} bytes -> {difference.b:,} bytes"
        return f"{entry}: {sizes}, differs from byte {difference.offset:,} on"
    field = printable(str(difference.field))
    return f"{entry}: {field} {_value(difference.a)} -> {_value(difference.b)}"


def _value(value: object) -> str:
    from shard_cli.summary import short_json

    if value is None or value == []:
        return "none"
    text = ", ".join(value) if isinstance(value, list) and isinstance(value[0], str) else None
    return printable(fit(text or short_json(value), _LONGEST_VALUE))


def _totals(found: list[Difference]) -> str:
    counts = {kind: sum(one.kind == kind for one in found) for kind in _TOTALS}
    return ", ".join(f"{counts[kind]:,} {text}" for kind, text in _TOTALS.items() if counts[kind])


COMMAND = Command(
    name="diff",
    summary="compare two files entry by entry",
    description="Content is compared after decompression: two files that differ only in codec, order or\n"
    "alignment are the same. Exit code 0 the same, 1 different.",
    examples=(
        ("shard diff old.shard new.shard", "- only in A, + only in B, ~ changed, * described"),
        ("shard diff --brief a.shard b.shard && echo same", "for scripts"),
        ("shard diff --stored a.shard b.shard", "codec and alignment, too"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
