"""`filter`, `sort` and `sample`: some of the records of a pack, or all in another order."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from shard_cli import arguments as arg
from shard_cli import pack_output
from shard_cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from shard_cli.console import Console
    from shardpack import Record
    from shardpack.writer_set import WrittenShards


def _edit(
    args: argparse.Namespace, console: Console, edit: Callable[..., WrittenShards], *given: object
) -> Exit:
    """Writes a pack with a function of `shardpack.editing`."""
    from shard_cli.kinds.pack import files, open_watched

    shards = files(args.file)
    with (
        pack_output.written_output(args, console, shards) as (output, options),
        console.progress(args.command) as bar,
        open_watched(shards, args, bar) as dataset,
    ):
        done = edit(dataset, output, *given, **options)
    if not done.records:
        console.warn(f"{args.file}: no record fits; the new pack is empty")
    pack_output.report_written(console, done.paths, done.records, file=args.file)
    return Exit.OK


def _value(record: Record, name: str) -> Any:  # noqa: ANN401 - any JSON
    """A field of the metadata; a.b is the field b inside a. None if it is missing."""
    value: Any = record.metadata
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


# --- filter


def _filter(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.pack import chosen_keys
    from shard_format.errors import InvalidArgument
    from shardpack.editing import filter

    fields = {name: _values(text) for name, text in arg.pairs_of(args.field, "--field").items()}
    if not fields and not args.patterns and args.prefix is None:
        raise InvalidArgument("say which records to keep", expected="PATTERN, --prefix or --field")
    # A pattern that fits nothing raises before anything is written.
    keys = chosen_keys(args.file, args) if args.patterns or args.prefix is not None else None

    def keep(record: Record) -> bool:
        return (keys is None or record.key in keys) and all(
            any(_is_same(_value(record, name), one) for one in wanted)
            for name, wanted in fields.items()
        )

    return _edit(args, console, filter, keep)


def _values(text: str) -> list[Any]:
    """What a field may be if it is to fit VALUE: the text itself, or the JSON value that it is."""
    import json

    try:
        return [text, json.loads(text)]
    except ValueError:
        return [text]


def _is_same(found: object, wanted: object) -> bool:
    # True is 1 for Python.
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


# --- sort


def _sort(args: argparse.Namespace, console: Console) -> Exit:
    from functools import partial

    from shardpack.editing import sort

    by = None if args.by is None else partial(_field, args.by)
    return _edit(args, console, partial(sort, by=by, reverse=args.reverse))


def _field(name: str, record: Record) -> tuple[bool, Any]:
    """What to sort a record by: a field of its metadata. Numbers come before text."""
    from shard_format.errors import InvalidArgument, shorten

    value = _value(record, name)
    if not isinstance(value, (str, int, float)):
        raise InvalidArgument(
            f"cannot sort record {shorten(record.key)} by {name!r}",
            path=record.shard_name,
            expected="text or a number in the metadata of every record",
            found="nothing" if value is None else type(value).__name__,
        )
    return isinstance(value, str), value


# --- sample


def _sample(args: argparse.Namespace, console: Console) -> Exit:
    from functools import partial

    from shardpack.editing import sample

    chosen = partial(sample, seed=args.seed, shuffle=args.shuffle)
    return _edit(args, console, chosen, args.count)


def _count_argument(text: str) -> float:
    """A number of records, or a share of all: `100`, `0.1`, `10%`."""
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of records nor a share such as 0.1 or 10%"
        ) from None


FILTER = arg.Command(
    "filter",
    _filter,
    (
        arg.PACK,
        *arg.patterns("keep"),
        *pack_output.OUTPUT,
        arg.repeated(
            "--field NAME=VALUE",
            "keep only records whose metadata has this value, text or JSON; a.b for a field inside one",
        ),
        arg.metadata(),
    ),
    """
write some records of a pack

A record is kept if one of the patterns matches its key, and all fields have the values that you give. Copies
entries as they are stored; 'shardpack.filter' in Python takes any condition.

shardpack filter all.shardpack 'cats/*' 'dogs/*' -o pets.shardpack                # by key
shardpack filter 'all-*.shardpack' -o val-%06d.shardpack --field split=val        # by a field of the metadata
shardpack filter all.shardpack -o x.shardpack --field label=3 --field camera.on=true  # by several
""",
)
SORT = arg.Command(
    "sort",
    _sort,
    (
        arg.PACK,
        *pack_output.OUTPUT,
        arg.option(
            "--by FIELD",
            "a field of the metadata of each record, a.b for a field inside one (default: the key)",
        ),
        arg.flag("-r --reverse", "the largest first"),
        arg.metadata(),
    ),
    """
write the records of a pack in another order

Sorts by key, or by a field of the metadata. Equal records keep their order; numbers come before text. Copies entries as they are stored.

shardpack sort shuffled.shardpack -o sorted.shardpack                     # by key
shardpack sort all.shardpack -o by-label.shardpack --by label             # by a field
shardpack sort 'a-*.shardpack' -o best-%06d.shardpack --by score.value -r  # the best first
""",
)
SAMPLE = arg.Command(
    "sample",
    _sample,
    (
        arg.PACK,
        arg.positional(
            "count",
            "COUNT",
            "how many records: 100; or a share of all: 0.1 or 10%%",
            type=_count_argument,
        ),
        *pack_output.OUTPUT,
        arg.option("--seed N", "the seed of the random choice (default 0)", type=int, default=0),
        arg.flag("--shuffle", "write them in random order rather than in their own"),
        arg.metadata(),
    ),
    """
write a random sample of the records of a pack

The keys and the seed decide which records: the same every time, however the pack is divided into shards.
Copies entries as they are stored.

shardpack sample train/ 1000 -o small.shardpack                   # a thousand records
shardpack sample 'train-*.shardpack' 1% -o tiny.shardpack --seed 7  # every hundredth, others
shardpack sample a.shardpack 1.0 -o mixed.shardpack --shuffle     # all, in random order
""",
)
