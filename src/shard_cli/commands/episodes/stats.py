"""`wshard stats`: what the numbers of a data set are like, saved for normalising."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Final

from shard_cli.arguments import Command, add_force, add_jobs
from shard_cli.exits import Exit
from shard_cli.text import count, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shard_cli.output import Console
    from wshard.statistics import ChannelStats, Stats

_HEADINGS: Final = ("CHANNEL", "TYPE", "NUMBERS", "NAN", "INF", "MEAN", "STD", "MIN", "MAX")


def _quantiles(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = (-1.0,)
    if not all(0 <= share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of shares; write numbers from 0 to 1: 0.05,0.5,0.95"
        )
    return shares


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="FOLDER",
        help="a folder of episodes; with -o also several, single files, patterns",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the file to write (default: FOLDER.wshard-stats, where data sets look for it)",
    )
    parser.add_argument(
        "--quantiles",
        type=_quantiles,
        metavar="SHARE,…",
        help="which quantiles, from 0 to 1 (default: 0.01,0.1,0.5,0.9,0.99)",
    )
    add_force(parser, "make them anew, replacing those that are there")
    add_jobs(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from wshard.dataset import EpisodeDataset
    from wshard.statistics import compute_stats, save_stats
    from wshard.statistics.computing import DEFAULT_QUANTILES
    from wshard.statistics.stored import stats_beside

    folder = args.paths[0] if len(args.paths) == 1 and os.path.isdir(args.paths[0]) else None
    output = args.output or (stats_beside(folder) if folder is not None else None)
    if output is None:
        from shard_format.errors import InvalidArgument

        raise InvalidArgument(
            "only a folder has a place for its statistics", hint="give -o OUT to say where"
        )
    shares = args.quantiles or DEFAULT_QUANTILES
    ds = EpisodeDataset(folder if folder is not None else args.paths, window=1)
    stats = None if args.force else _stored(output, ds, shares)
    is_new = stats is None
    if stats is None:
        label = f"stats {folder or count(len(ds.paths), 'episode')}"
        with console.progress(label) as bar:
            stats = compute_stats(ds, quantiles=shares, threads=args.jobs, progress=bar.update)
        save_stats(stats, output)
    if console.as_json:
        console.document(_fields(stats, output, is_new=is_new))
    else:
        _show(stats, console)
        done = "written" if is_new else "up to date, --force makes them anew"
        console.said(f"{printable(output)}: {done}")
    return Exit.OK


def _stored(output: str, ds: Any, shares: tuple[float, ...]) -> Stats | None:  # noqa: ANN401 - a data set, imported late
    """Statistics that are there and need not be made again; raises if others are there."""
    from shard_cli.files import refuse_overwrite
    from wshard.statistics import load_stats

    if not os.path.lexists(output):
        return None
    stats = load_stats(output, ds)
    if any(share not in channel.quantiles for channel in stats.values() for share in shares):
        refuse_overwrite(output, force=False)
    return stats


def _fields(stats: Stats, output: str, *, is_new: bool) -> dict[str, Any]:
    from wshard.statistics.stored import channel_fields

    return {
        "output": output,
        "written": is_new,
        "episodes": stats.episodes,
        "steps": stats.steps,
        "fingerprints": list(stats.fingerprints),
        "channels": {name: channel_fields(channel) for name, channel in stats.items()},
    }


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
    """All numbers of a channel: from where to where their means and deviations are."""
    return [
        name,
        f"{channel.dtype} {list(channel.shape)}",
        *(f"{int(each.sum())}" for each in (channel.count, channel.nan, channel.inf)),
        *(_span(each) for each in (channel.mean, channel.std)),
        *(_number(end) for end in (_ends(channel.min)[0], _ends(channel.max)[1])),
    ]


def _single_rows(name: str, channel: ChannelStats, shares: list[float]) -> Iterator[list[str]]:
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
    """Of the numbers that are known; NaN if none is."""
    known = values[values == values]  # noqa: PLR0124 - leaves out NaN
    return (known.min(), known.max()) if known.size else (float("nan"), float("nan"))


def _span(values: NDArray[Any]) -> str:
    low, high = (_number(end) for end in _ends(values))
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.4g}"  # noqa: PLR0124 - NaN


COMMAND = Command(
    name="stats",
    summary="show and save mean, range and quantiles of channels",
    description="Reads every step of every episode once. The file is what EpisodeDataset(…, normalize=True)\n"
    "normalises by. If it is there and the episodes are the same, it is shown and nothing is read.\n"
    "-v shows every number of a channel, with its quantiles.",
    examples=(
        ("wshard stats recordings/", "writes recordings.wshard-stats"),
        ("wshard stats -v recordings/", "each number of each channel, with quantiles"),
        ("wshard stats a/ b/ -o both.wshard-stats", "of two folders together"),
        ("wshard stats --json recordings/ | jq .channels.state.mean", "for programs"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
