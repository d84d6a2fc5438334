"""`stats`: numbers about many episodes, or sizes of many records."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from shard_cli import arguments as arg
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.jobs import executor_of, is_elsewhere
from shard_cli.text import count, fit, percent, printable, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shard_cli.console import Console
    from shard_train.statistics import ChannelStats, Stats
    from shardpack import Record

_HEADINGS: Final = ("CHANNEL", "TYPE", "NUMBERS", "NAN", "INF", "MEAN", "STD", "MIN", "MAX")
_BAR_COLUMNS: Final = 40
_MOST_NAMES: Final = 20


# --- values of episodes


def _quantiles(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = (-1.0,)
    if not all(0 <= share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of quantiles; write numbers from 0 to 1: 0.05,0.5,0.95"
        )
    return shares


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from shard_train import EpisodeDataset
    from shard_train.statistics import (
        DEFAULT_QUANTILES,
        channel_fields,
        compute_stats,
        save_stats,
        stats_beside,
    )

    folder = args.paths[0] if len(args.paths) == 1 and os.path.isdir(args.paths[0]) else None
    output = args.output or (stats_beside(folder) if folder is not None else None)
    if output is None:
        raise InvalidArgument(
            "only the statistics of one folder have a default name",
            hint="pass -o OUT to say where to write them",
        )
    shares = args.quantiles or DEFAULT_QUANTILES
    ds = EpisodeDataset(folder if folder is not None else args.paths, window=1)
    if args.part is not None:
        return _run_part(args, console, ds, output, shares)
    stats = None if args.force else _stored(output, ds, shares)
    is_new = stats is None
    if stats is None:
        label = f"stats {folder or count(len(ds.paths), 'episode')}"
        with console.progress(label) as bar:
            stats = compute_stats(
                ds,
                quantiles=shares,
                threads=args.jobs,
                progress=bar.update,
                executor=executor_of(args) if is_elsewhere(args) else None,
            )
        save_stats(stats, output)
    if not console.as_json:
        _show(stats, console)
    console.report(
        {
            "output": output,
            "written": is_new,
            "episodes": stats.episodes,
            "steps": stats.steps,
            "fingerprints": list(stats.fingerprints),
            "channels": {name: channel_fields(channel) for name, channel in stats.items()},
        },
        f"{printable(output)}: "
        + ("written" if is_new else "up to date; --force computes them again"),
    )
    return Exit.OK


def _run_part(
    args: argparse.Namespace,
    console: Console,
    ds: Any,  # noqa: ANN401 - a dataset, imported late
    output: str,
    shares: tuple[float, ...],
) -> Exit:
    from shard_cli.pack_output import parse_part
    from shard_train.stats_parts import save_part

    with console.progress(f"stats, part {args.part}") as bar:
        path = save_part(
            ds,
            output,
            parse_part(args.part),
            quantiles=shares,
            threads=args.jobs,
            progress=bar.update,
            executor=executor_of(args) if is_elsewhere(args) else None,
        )
    console.note(f"this is part {args.part}; 'wshard commit' makes {output} of all parts")
    console.report({"output": path, "part": args.part}, f"{printable(path)}: written")
    return Exit.OK


def _stored(output: str, ds: Any, shares: tuple[float, ...]) -> Stats | None:  # noqa: ANN401 - a dataset, imported late
    """Statistics that exist and are still right; raises if they are of something else."""
    from shard_format.listing import is_there
    from shard_train.statistics import load_stats

    if not is_there(output):
        return None
    stats = load_stats(output, ds)
    if any(share not in channel.quantiles for channel in stats.values() for share in shares):
        refuse_overwrite(output, force=False)
    return stats


def _show(stats: Stats, console: Console) -> None:
    console.said(f"{count(stats.episodes, 'episode')}, {count(stats.steps, 'step')}")
    if not console.verbose:
        rows = [_row(name, channel) for name, channel in stats.items()]
        console.table(_HEADINGS, rows, right=range(2, len(_HEADINGS)))
        return
    shares = sorted({share for channel in stats.values() for share in channel.quantiles})
    headings = [
        *_HEADINGS,
        *(f"{share:.4%}".rstrip("%").rstrip("0").rstrip(".") + "%" for share in shares),
    ]
    rows = [row for name, channel in stats.items() for row in _single_rows(name, channel, shares)]
    console.table(headings, rows, right=range(2, len(headings)))


def _row(name: str, channel: ChannelStats) -> list[str]:
    """A channel as a whole: the range of its means and deviations."""
    return [
        name,
        f"{channel.dtype} {list(channel.shape)}",
        *(f"{int(each.sum())}" for each in (channel.count, channel.nan, channel.inf)),
        *(_span(each) for each in (channel.mean, channel.std)),
        *(_number(end) for end in (_ends(channel.min)[0], _ends(channel.max)[1])),
    ]


def _single_rows(name: str, channel: ChannelStats, shares: list[float]) -> Iterator[list[str]]:
    """Every number of a channel."""
    import numpy as np

    for place in np.ndindex(channel.mean.shape):
        inner = ",".join(
            str(index) if size > 1 else ":"
            for index, size in zip(place, channel.mean.shape, strict=True)
        )
        counts = (channel.count, channel.nan, channel.inf)
        numbers: tuple[NDArray[Any], ...] = (channel.mean, channel.std, channel.min, channel.max)
        quantiles = (channel.quantiles[share] for share in shares)
        yield [
            f"{name}[{inner}]" if place else name,
            str(channel.dtype),
            *(str(each[place]) for each in counts),
            *(_number(float(each[place])) for each in (*numbers, *quantiles)),
        ]


def _ends(values: NDArray[Any]) -> tuple[Any, Any]:
    """Smallest and largest without NaN; NaN if there is nothing else."""
    known = values[values == values]  # noqa: PLR0124 - leaves out NaN
    return (known.min(), known.max()) if known.size else (float("nan"), float("nan"))


def _span(values: NDArray[Any]) -> str:
    low, high = (_number(end) for end in _ends(values))
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.4g}"  # noqa: PLR0124 - NaN


# --- sizes of records


def _run_packs(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_pack

    found = _Sizes()
    for pack in args.files:
        with open_pack(pack, args) as dataset, console.progress(f"stats {pack}") as bar:
            add = bar.adding_to(sum(footer.index_offset for footer in dataset.footers()))
            for record in dataset.records(whole=False):
                found.add(record)
                add(record.size)
            found.shards += len(dataset.shards)
    if console.as_json:
        console.document({"files": args.files, **found.to_fields()})
    else:
        _show_sizes(found, args, console)
    return Exit.OK


class _Sizes:
    """Sizes by content type, name and codec, and their distribution. Owns: the counts."""

    def __init__(self) -> None:
        self.shards = self.records = self.size = self.stored = self.with_metadata = 0
        # Entries, bytes and stored bytes by what they have in common.
        self.groups: dict[str, dict[str, list[int]]] = {
            "content_types": {},
            "names": {},
            "codecs": {},
        }
        self.buckets: Counter[int] = Counter()
        """Records by the number of bits of their size."""
        self.smallest: tuple[int, str] | None = None
        self.largest: tuple[int, str] | None = None

    def add(self, record: Record) -> None:
        """Counts a record; reads its head only."""
        content = 0
        for entry in record.file_entries():
            content += entry.size
            keys = (entry.content_type, entry.name, entry.compression)
            for counts, key in zip(self.groups.values(), keys, strict=True):
                row = counts.setdefault(key, [0, 0, 0])
                row[0] += 1
                row[1] += entry.size
                row[2] += entry.stored_size
        self.records += 1
        self.size += content
        self.stored += record.size
        self.with_metadata += bool(record.stored_metadata[1])
        self.buckets[content.bit_length()] += 1
        if self.smallest is None or content < self.smallest[0]:
            self.smallest = content, record.key
        if self.largest is None or content > self.largest[0]:
            self.largest = content, record.key

    def histogram(self) -> list[dict[str, int]]:
        """How many records are in each range of sizes: powers of two, without gaps."""
        return [
            {"from": (1 << bits) >> 1, "below": 1 << bits, "records": self.buckets[bits]}
            for bits in range(min(self.buckets, default=0), max(self.buckets, default=-1) + 1)
        ]

    def to_fields(self) -> dict[str, Any]:
        """The counts as `--json` shows them."""
        ends = {"smallest": self.smallest, "largest": self.largest}
        return {
            "shards": self.shards,
            "records": self.records,
            "entries": sum(row[0] for row in self.groups["codecs"].values()),
            "size": self.size,
            "stored": self.stored,
            "records_with_metadata": self.with_metadata,
            **{
                what: {
                    key: dict(zip(("entries", "size", "stored"), row, strict=True))
                    for key, row in counts.items()
                }
                for what, counts in self.groups.items()
            },
            **{
                what: None if end is None else {"key": end[1], "size": end[0]}
                for what, end in ends.items()
            },
            "histogram": self.histogram(),
        }


def _show_sizes(found: _Sizes, args: argparse.Namespace, console: Console) -> None:
    entries = sum(row[0] for row in found.groups["codecs"].values())
    console.line(
        f"{count(found.records, 'record')} with {count(entries, 'entry')} in "
        f"{count(found.shards, 'shard')}: {size(found.size)}, stored {size(found.stored)} "
        f"({percent(found.stored, found.size)})"
    )
    if found.smallest is None or found.largest is None:
        return
    _table("CONTENT TYPE", found.groups["content_types"], found.size, console)
    if args.names:
        _table("NAME", found.groups["names"], found.size, console, most=_MOST_NAMES)
    _table("CODEC", found.groups["codecs"], found.size, console)
    console.line()
    console.line(console.style("records by size", "bold"))
    most = max(found.buckets.values())
    for row in found.histogram():
        # At least one mark for a bucket that is not empty.
        columns = max(round(_BAR_COLUMNS * row["records"] / most), int(row["records"] > 0))
        label = f"{size(row['from'])} to {size(row['below'])}" if row["from"] else "empty"
        console.line(f"  {label:>24}  {row['records']:>9,}  {'#' * columns}".rstrip())
    ends = [
        f"{what} {size(nbytes)} ({printable(fit(key, 40))})"
        for what, (nbytes, key) in (("smallest", found.smallest), ("largest", found.largest))
    ]
    console.line(", ".join([f"mean {size(found.size // found.records)}", *ends]))


def _table(
    heading: str,
    counts: dict[str, list[int]],
    whole: int,
    console: Console,
    most: int | None = None,
) -> None:
    exact = not console.out_is_terminal
    show_size = str if exact else size
    rows = [
        [
            key or "unknown",
            str(entries) if exact else f"{entries:,}",
            show_size(content),
            show_size(stored),
            percent(stored, content),
            percent(content, whole),
        ]
        for key, (entries, content, stored) in sorted(
            counts.items(), key=lambda item: (-item[1][1], item[0])
        )
    ]
    console.line()
    headings = [heading, "ENTRIES", "SIZE", "STORED", "RATIO", "SHARE"]
    console.table(headings, rows[:most], right=(1, 2, 3, 4, 5))
    if most is not None and most < len(rows):
        console.line(f"… and {count(len(rows) - most, 'more name')}")


WSHARD = arg.Command(
    "stats",
    _run,
    (
        arg.positional(
            "paths",
            "FOLDER",
            "a folder of episodes; with -o also several folders, files and patterns",
            nargs="+",
        ),
        arg.option(
            "-o --output OUT",
            "the file to write (default: FOLDER.wshard-stats, where datasets look for it)",
        ),
        arg.option(
            "--quantiles QUANTILE,…",
            "quantiles to compute, from 0 to 1 (default: 0.01,0.1,0.5,0.9,0.99)",
            type=_quantiles,
        ),
        arg.force("compute the statistics again and replace those that exist"),
        arg.option(
            "--part K/N",
            "read only the K-th of N parts of the episodes, while other machines read the others; 'wshard commit' "
            "then writes OUT",
        ),
        arg.JOBS,
        *arg.ENGINE,
    ),
    """
show and save mean, range and quantiles of channels

Reads every step of every episode once. EpisodeDataset(…, normalize=True) normalises with the file
that this writes. If the file exists and the episodes are unchanged, shows it and reads nothing.
-v shows every number of a channel, with its quantiles.

wshard stats recordings/                                   # writes recordings.wshard-stats
wshard stats -v recordings/                                # each number of each channel, with quantiles
wshard stats a/ b/ -o both.wshard-stats                    # of two folders together
wshard stats recordings/ --part 3/64                       # on the third of 64 machines
wshard stats --json recordings/ | jq .channels.state.mean  # for programs
""",
)
SHARDPACK = arg.Command(
    "stats",
    _run_packs,
    (
        arg.PACKS,
        arg.flag("--names", "also show sizes by entry name"),
    ),
    """
show sizes by content type, and a histogram of records

Reads the heads of all records, never the entries.

shardpack stats train-000000.shardpack             # one shard
shardpack stats --names 'train-*.shardpack'        # a set, also by entry name
shardpack stats --json train/ | jq .content_types  # for programs
""",
)
