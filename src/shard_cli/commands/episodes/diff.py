"""`wshard diff`: what two episodes differ in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shard_cli.arguments import Command, add_max_decompressed
from shard_cli.exits import Exit
from shard_cli.opening import open_episode
from shard_cli.text import count, printable

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from wshard.editing import Difference

_MARKS: Final = {"only_left": ("-", "red"), "only_right": ("+", "green")}
_CHANGED: Final = ("~", "yellow")
_TOTALS: Final = {
    "only_left": "only in A",
    "only_right": "only in B",
    "form": "of another form",
    "values": "with other values",
    "metadata": "about the episode",
    "description": "about its channels",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="one episode")
    parser.add_argument("b", metavar="B", help="the other")
    parser.add_argument(
        "--no-values",
        action="store_true",
        help="compare facts, names, types and shapes only, without reading the blocks",
    )
    parser.add_argument("--brief", action="store_true", help="only say whether they differ")
    parser.add_argument(
        "--no-sidecars", action="store_true", help="leave out lanes that were added later"
    )
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from wshard.editing import differences

    with (
        open_episode(
            args.a, max_decompressed=args.max_decompressed, sidecars=not args.no_sidecars
        ) as a,
        open_episode(
            args.b, max_decompressed=args.max_decompressed, sidecars=not args.no_sidecars
        ) as b,
    ):
        found = differences(a, b, values=not args.no_values)
        steps = a.length
    if console.as_json:
        shown = [] if args.brief else [_fields(one) for one in found]
        console.document({"a": args.a, "b": args.b, "same": not found, "differences": shown})
    elif found and args.brief:
        console.line(f"{printable(args.a)} and {printable(args.b)} differ")
    elif found:
        for difference in found:
            mark, colour = _MARKS.get(difference.kind, _CHANGED)
            console.line(f"{console.style(mark, colour)} {_text(difference)}")
        console.said(console.style(_totals(found), "dim"))
    else:
        compared = "all facts, names and types" if args.no_values else "all blocks"
        console.said(f"same: {compared} of {count(steps, 'step')}")
    return Exit.FINDING if found else Exit.OK


def _fields(difference: Difference) -> dict[str, str]:
    return {
        "block": difference.block,
        "kind": _JSON_KINDS.get(difference.kind, difference.kind),
        "detail": _detail(difference),
    }


# As `shard diff` calls them.
_JSON_KINDS: Final = {"only_left": "only_in_a", "only_right": "only_in_b"}


def _detail(difference: Difference) -> str:
    # The library names the episodes, which may both have the same id.
    return _TOTALS[difference.kind] if difference.kind in _MARKS else difference.detail


def _text(difference: Difference) -> str:
    return printable(f"{difference.block}: {_detail(difference)}")


def _totals(found: list[Difference]) -> str:
    counts: dict[str, int] = {}
    for one in found:
        counts[one.kind] = counts.get(one.kind, 0) + 1
    return ", ".join(f"{number:,} {_TOTALS.get(kind, kind)}" for kind, number in counts.items())


COMMAND = Command(
    name="diff",
    summary="compare two episodes: facts, metadata, channels, values",
    description="How they are stored does not matter: compression, order, chunks or one file. Exit code 0 the\n"
    "same, 1 different. 'shard diff' compares files byte by byte.",
    examples=(
        ("wshard diff old.wshard new.wshard", "- only in A, + only in B, ~ changed"),
        ("wshard diff --brief a.wshard b.wshard && echo same", "for scripts"),
        ("wshard diff --no-values a.wshard b.wshard", "without reading the blocks"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
