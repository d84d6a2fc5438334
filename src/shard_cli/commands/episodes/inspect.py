"""`wshard inspect`: what episodes are and hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shard_cli.arguments import Command, add_jobs, add_max_decompressed
from shard_cli.episode_files import add_episodes, find_episodes
from shard_cli.exits import Exit, error_fields, exit_for, message_of, worst
from shard_cli.text import count, duration, exact_size, fit, percent, printable, rate, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from shard_cli.output import Console

_LABEL_COLUMNS = 12
_LONGEST_VALUE = 400


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_episodes(parser)
    parser.add_argument(
        "--stats",
        action="store_true",
        help="read all blocks and add smallest, mean and largest value, and the number of NaN",
    )
    parser.add_argument(
        "--no-sidecars", action="store_true", help="leave out lanes that were added later"
    )
    add_jobs(parser)
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from functools import partial

    from shard_cli.episode_facts import describe
    from shard_cli.jobs import in_order, threads_in_each
    from shard_format.errors import ShardError

    files = find_episodes(args.paths)
    work = partial(
        describe,
        stats=args.stats,
        sidecars=not args.no_sidecars,
        max_decompressed=args.max_decompressed,
        threads=threads_in_each(args.jobs, len(files)),
    )
    results = in_order(
        files,
        work,
        jobs=args.jobs,
        weights=[file.size for file in files],
        console=console,
        label="inspect",
    )
    codes: list[Exit] = []
    documents: list[dict[str, Any]] = []
    listed: list[_Line] = []
    shown = 0
    for file, facts in zip(files, results, strict=True):
        if isinstance(facts, ShardError):
            codes.append(exit_for(facts.code))
            documents.append({"file": file.path, "error": error_fields(facts)})
            console.error(message_of(facts), facts.code)
            continue
        codes.append(_unreadable(facts, console))
        if console.as_json:
            documents.append(facts)
        elif file.folder is not None and not console.verbose and not args.stats:
            listed.append(_Line.of(facts))
        else:
            if shown:
                console.line()
            _show(facts, console)
            shown += 1
    if console.as_json:
        console.document({"files": documents})
    elif listed:
        if shown:
            console.line()
        _list(listed, console)
    return worst(codes)


class _Line(NamedTuple):
    """What is kept of an episode that is one of many: a folder may have a million."""

    file: str
    episode: str
    environment: str
    steps: int
    seconds: float
    rate: float
    blocks: int
    chunks: int
    sidecars: int
    size: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> _Line:
        return cls(
            file=facts["file"],
            episode=facts["episode_id"],
            environment=facts["env_id"],
            steps=facts["steps"],
            seconds=facts["seconds"],
            rate=facts["rate_hz"],
            blocks=len(facts["blocks"]),
            chunks=len(facts["chunks"]),
            sidecars=len(facts["sidecars"]),
            size=facts["file_size"],
        )

    def cells(self, *, exact: bool) -> list[str]:
        """For programs plain numbers, for people units."""
        return [
            self.file,
            self.episode,
            self.environment or "-",
            str(self.steps) if exact else f"{self.steps:,}",
            f"{self.seconds:.6g}" if exact else duration(self.seconds),
            f"{self.rate:.5g}" if exact else rate(self.rate),
            *(str(number or "-") for number in (self.blocks, self.chunks, self.sidecars)),
            str(self.size) if exact else size(self.size),
        ]


def _list(listed: Sequence[_Line], console: Console) -> None:
    """One line for each episode of a folder."""
    exact = not console.out_is_terminal
    headings = ["FILE", "EPISODE", "ENV", "STEPS", "SECONDS" if exact else "TIME", "RATE"]
    headings += ["BLOCKS", "CHUNKS", "SIDECARS", "SIZE"]
    console.table(headings, [line.cells(exact=exact) for line in listed], right=range(3, 10))
    if console.out_is_terminal and not console.quiet:
        facts = [
            count(len(listed), "episode"),
            count(sum(line.steps for line in listed), "step"),
            duration(sum(line.seconds for line in listed)),
            size(sum(line.size for line in listed)),
        ]
        console.line(console.style(", ".join(facts), "dim"))


def _show(facts: Mapping[str, Any], console: Console) -> None:
    console.line(console.style(printable(facts["file"]), "bold"))
    for label, value in _lines(facts):
        text = printable(value)
        if console.out_is_terminal and not console.verbose:
            text = fit(text, max(20, console.columns - _LABEL_COLUMNS - 2))
        shown = f"{label} " if label.endswith(":") else label.ljust(_LABEL_COLUMNS)
        console.line(f"  {printable(shown)}{text}")
    if facts["blocks"]:
        console.line()
        _table(facts["blocks"], console)


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "episode", facts["episode_id"]
    yield "environment", facts["env_id"] or "not stated"
    measured = ", measured from its timestamps" if facts["clock"] == "timestamps" else ""
    length = f"{count(facts['steps'], 'step')}, {duration(facts['seconds'])}"
    yield "length", f"{length} at {rate(facts['rate_hz'])}{measured}"
    if facts["chunk"] is not None:
        yield "chunk", _chunk(facts["chunk"])
    if facts["chunks"]:
        names = facts["chunks"]
        yield "chunks", f"{len(names):,}: {names[0]} to {names[-1]}"
    if facts["sidecars"]:
        yield "sidecars", ", ".join(facts["sidecars"])
    stored = f"{size(facts['stored'])} ({percent(facts['stored'], facts['size'])})"
    yield "file size", exact_size(facts["file_size"])
    yield "content", f"{exact_size(facts['size'])}, stored as {stored}"
    identity = facts["identity"]
    if isinstance(identity, dict):
        yield "identity", f"unreadable: {identity['error']['message']}"
    else:
        yield "identity", identity or "not stored"
    for name in ("metadata", "provenance"):
        if facts[name]:
            yield name, count(len(facts[name]), "field")
            yield from _fields(facts[name])


def _chunk(chunk: Mapping[str, Any]) -> str:
    total = "" if chunk["total"] is None else f" of {chunk['total']:,}"
    span = chunk["timestep_range"]
    where = "" if span is None else f", steps {span[0]:,} to {span[1]:,} of the episode"
    return f"number {chunk['index']:,}{total}, counted from 0{where}"


def _fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from shard_cli.summary import short_json

    for key, value in fields.items():
        yield f"  {fit(key, 40)}:", fit(short_json(value), _LONGEST_VALUE)


def _table(blocks: Sequence[Mapping[str, Any]], console: Console) -> None:
    exact = not console.out_is_terminal
    show_size = str if exact else size
    with_stats = "stats" in blocks[0]
    with_sidecars = any(block["sidecar"] for block in blocks)
    headings = ["BLOCK", "DTYPE", "SHAPE", "LENGTH", "CLOCK", "CODEC", "SIZE", "STORED", "RATIO"]
    if with_stats:
        headings += ["MIN", "MEAN", "MAX", "NAN"]
    if with_sidecars:
        headings.append("SIDECAR")
    rows = []
    for block in blocks:
        cells = [
            block["block"],
            (block["dtype"] or "-") + ("?" if block["inferred"] else ""),
            "-" if block["shape"] is None else str(block["shape"]).replace(" ", ""),
            "-" if block["length"] is None else str(block["length"]),
            _clock(block),
            f"{block['codec']} {block['filters'] or ''}".strip(),
            show_size(block["size"]),
            show_size(block["stored"]),
            percent(block["stored"], block["size"]),
        ]
        if with_stats:
            cells += _stats(block["stats"])
        if with_sidecars:
            cells.append(block["sidecar"] or "-")
        rows.append(cells)
    console.table(headings, rows, right=(3, 6, 7, 8, 9, 10, 11, 12) if with_stats else (3, 6, 7, 8))
    if any(block["inferred"] for block in blocks):
        console.note("? the file does not describe the block; dtype and shape are a guess")


def _unreadable(facts: Mapping[str, Any], console: Console) -> Exit:
    """Says which blocks `--stats` could not read, and what that means for the exit code."""
    codes = []
    for block in facts["blocks"]:
        error = (block.get("stats") or {}).get("error")
        if error is not None:
            console.error(error["message"], error["code"])
            codes.append(exit_for(error["code"]))
    return worst(codes)


def _clock(block: Mapping[str, Any]) -> str:
    if block["clock"] is None:
        return "-"
    hertz = block["rate_hz"]
    if block["clock"] == "steps" or hertz is None:
        text: str = block["clock"]
        return text
    return rate(hertz) if block["clock"] == "regular" else f"own, {rate(hertz)}"


def _stats(stats: Mapping[str, Any] | None) -> list[str]:
    if stats is None:
        return ["-"] * 4
    if "error" in stats:
        return ["unreadable", *["-"] * 3]
    values = [stats[key] for key in ("min", "mean", "max")]
    return [
        *("-" if value is None else f"{value:.4g}" for value in values),
        str(stats["nan"]),
    ]


COMMAND = Command(
    name="inspect",
    summary="show what episodes are: id, steps, lanes",
    description="Reads descriptions only, never the blocks, unless --stats is given. Of a folder every\n"
    "episode has one line; with -v or --stats all of its lanes.",
    examples=(
        ("wshard inspect ep_001.wshard", "one episode and its lanes"),
        ("wshard inspect --stats ep_001.wshard", "with the range of values"),
        ("wshard inspect recordings/", "all episodes below a folder, a line each"),
        ("wshard inspect --json recordings/ | jq '.files[].steps'", "for programs"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
