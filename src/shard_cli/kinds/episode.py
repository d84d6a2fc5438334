"""Episodes: files of robots, agents and world models, as `wshard` sees them."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_cli.episode_options import find, opened_pack
from shard_cli.exits import EXPLANATIONS, error_fields
from shard_cli.files import known_size
from shard_cli.jobs import executor_of, in_order, is_elsewhere, threads_in_each
from shard_cli.kinds.entries import iter_rows
from shard_cli.kinds.model import (
    Change,
    Checked,
    Diagnosis,
    Problem,
    Target,
    field_lines,
    limits_of,
    open_episode,
)
from shard_cli.pack_output import parse_part
from shard_cli.text import count, coverage, duration, exact_size, percent, printable, rate, size
from shard_format.errors import DATA_ERRORS, MissingExtra, ShardError, UnknownCodec
from shard_format.executors import part_of
from shard_format.findings import SEVERITIES, Finding
from shard_format.identity import stored_identity
from shard_format.opening import copying_urls
from wshard import Channel
from wshard.types import RaggedChannel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shard_cli.console import Console
    from shard_cli.kinds.model import Progress
    from shard_format import ShardReader
    from wshard import Episode
    from wshard.doctor import EpisodeReport
    from wshard.editing import Difference

# Statistics read this many bytes at a time.
_WINDOW_BYTES: Final = 16 << 20
# What a recording is whose journal was named.
_STATES: Final = {
    "recording": "a process is recording it now; this is what it has flushed",
    "unfinished": "a recording that was not finished; 'wshard recover {}' saves it",
    "recovered": "a recording that was not finished, and was recovered",
}
# Entries whose form the format fixes: dtype, and bytes of one of their steps.
_FIXED: Final = {
    "time/ticks": ("i32", 4),
    "done": ("bool", 1),
    "terminated": ("bool", 1),
    "truncated": ("bool", 1),
    "reward": ("f32", 4),
}


def facts(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """What the descriptions and the index of an episode say; with `--values`, also its values."""
    return target_facts(Target(path), args)


def target_facts(target: Target, args: argparse.Namespace) -> dict[str, Any]:
    """The same of an episode that may be in a pack."""
    path, threads = target.path, getattr(args, "threads", None)
    with _open_target(target, args, threads, sidecars=not args.no_sidecars) as episode:
        origin = episode.origin
        if origin is None:
            return _journal_facts(path, episode, stats=args.values)
        stored = _stored(origin.chunks or [origin.reader], origin.sidecars)
        seconds, hertz, clock = _clock(episode)
        return {
            "file": path,
            "episode_id": episode.id,
            "env_id": episode.env_id,
            "steps": episode.length,
            "seconds": seconds,
            "rate_hz": hertz,
            "clock": clock,
            "epoch_ns": episode.timebase.epoch_ns,
            "file_size": sum(
                reader.header.total_file_size for reader in (origin.reader, *origin.chunks)
            ),
            "size": sum(one["size"] for one in stored.values()),
            "stored": sum(one["stored"] for one in stored.values()),
            **_identity(origin.reader),
            "chunk": _chunk(episode),
            "chunks": [os.path.basename(reader.name) for reader in origin.chunks],
            "sidecars": list(map(_file_name, origin.sidecars)),
            "metadata": episode.metadata,
            "provenance": episode.provenance,
            "blocks": list(_blocks(episode, stored, stats=args.values)),
        }


def _open_target(
    target: Target, args: argparse.Namespace, threads: int | None, *, sidecars: bool = True
) -> Episode:
    if target.pack is None:
        return open_episode(target.path, args, sidecars=sidecars, threads=threads)
    pack = opened_pack(target.pack)
    if not target.name:
        pack.entries(target.record)  # raises, as it did before
    options: dict[str, Any] = {} if sidecars else {"sidecars": False}
    return pack.load(target.record, target.name, threads=threads, limits=limits_of(args), **options)


def _journal_facts(path: str, episode: Episode, *, stats: bool) -> dict[str, Any]:
    """The same of a recording that is not finished."""
    from wshard.partial import RecordingFiles, state_of

    seconds, hertz, clock = _clock(episode)
    unknown = dict.fromkeys(("stored", "filters", "frames", "sidecar"))
    stored = {
        name: {**unknown, "size": channel.nbytes, "codec": "journal"}
        for name, channel in episode.blocks()
    }
    return {
        "file": path,
        "state": state_of(RecordingFiles.of(path)),
        "episode_id": episode.id,
        "env_id": episode.env_id,
        "steps": episode.length,
        "seconds": seconds,
        "rate_hz": hertz,
        "clock": clock,
        "epoch_ns": episode.timebase.epoch_ns,
        "file_size": known_size(path),
        "size": sum(one["size"] for one in stored.values()),
        "stored": None,
        "identity": None,
        "identity_version": None,
        "chunk": None,
        "chunks": [],
        "sidecars": [],
        "metadata": episode.metadata,
        "provenance": {},
        "blocks": list(_blocks(episode, stored, stats=stats)),
    }


def _stored(
    readers: Iterable[ShardReader], sidecars: Iterable[ShardReader]
) -> dict[str, dict[str, Any]]:
    """How each block is stored, over all files that hold a part of it."""
    found: dict[str, dict[str, Any]] = {}
    for reader in (*readers, *sidecars):
        for row in iter_rows(reader):
            # Every sidecar has descriptions of its own.
            if row.name.startswith("meta/"):
                continue
            unknown = dict.fromkeys(("filters", "frames", "sidecar"))
            new = {"size": 0, "stored": 0, "codec": row.codec, **unknown}
            one = found.setdefault(row.name, new)
            one["size"] += row.size
            one["stored"] += row.stored
            if row.codec not in one["codec"].split("+"):
                one["codec"] += f"+{row.codec}"
            if row.codec == "zstd":
                with suppress(*DATA_ERRORS):  # damaged, which `wshard verify` says
                    table, filters = reader.seek_table(row.name), reader.filters(row.name)
                    if table is not None:
                        one["frames"] = (one["frames"] or 0) + len(table)
                    if filters is not None:
                        one["filters"] = str(filters)
            if reader in sidecars:
                one["sidecar"] = _file_name(reader)
    return found


def _file_name(reader: ShardReader) -> str:
    """The name of a sidecar; in a pack, the last part of the entry's name, in quotes."""
    return os.path.basename(reader.name).removesuffix("'")


def _clock(episode: Episode) -> tuple[float | None, float | None, str | None]:
    """How long it lasts, steps per second, and where that is from: `timestamps` or `rate`."""
    try:
        times = episode.timestamps_ns
    except DATA_ERRORS:
        times = None
    if times is not None and len(times) >= 2 and times[-1] > times[0]:
        measured = (len(times) - 1) / ((int(times[-1]) - int(times[0])) / 1e9)
        return len(times) / measured, measured, "timestamps"
    stated = episode.timebase.tick_hz
    if stated is None:
        return None, None, None
    hertz = float(stated)
    return (episode.length / hertz if hertz > 0 else 0.0), hertz, "rate"


def _identity(reader: ShardReader) -> dict[str, Any]:
    try:
        stored = stored_identity(reader)
    except ShardError as error:
        return {"identity": {"error": error_fields(error)}, "identity_version": None}
    digest, version = (None, None) if stored is None else (stored.digest, stored.version)
    return {"identity": digest, "identity_version": version}


def _chunk(episode: Episode) -> dict[str, Any] | None:
    if episode.chunk_index is None:
        return None
    span = episode.timestep_range
    return {
        "index": episode.chunk_index,
        "total": episode.total_chunks,
        "timestep_range": None if span is None else list(span),
    }


def _blocks(
    episode: Episode, stored: dict[str, dict[str, Any]], *, stats: bool
) -> Iterator[dict[str, Any]]:
    named = [*episode.blocks(), *episode.extras.items()]
    channels = {one.block or name: one for name, one in named if isinstance(one, Channel)}
    chunked = episode.origin is not None and bool(episode.origin.chunks)
    for name, one in stored.items():
        channel = channels.get(name)
        fields = _plain(name, one["size"], episode) if channel is None else _described(channel)
        row = {"block": name, **fields, **one}
        if stats:
            # A raw block of one file is a view: taken whole, its checksum is compared.
            is_video = channel is not None and channel.layout == "video"
            whole = one["codec"] == "none" and not chunked and not is_video
            row["stats"] = None if channel is None else _statistics(channel, whole=whole)
        yield row


def _described(channel: Channel) -> dict[str, Any]:
    if channel.start_ns is not None:
        clock = "regular"
    else:
        clock = "own" if channel.has_own_clock else "steps"
    return {
        "dtype": "text" if channel.layout == "text" else channel.dtype_name.value,
        "shape": list(channel.step_shape),
        "length": channel.length,
        "layout": channel.layout,
        "clock": clock,
        "rate_hz": channel.sampling_rate_hz,
        "unit": channel.unit or None,
        "modality": None if channel.modality is None else str(channel.modality),
        "content_type": channel.content_type,
        "lossy": None if channel.lossy is None else dict(channel.lossy),
        "description": channel.description or None,
        "inferred": channel.inferred,
    }


def _plain(name: str, size: int, episode: Episode) -> dict[str, Any]:
    """What is known about a block that is not a channel."""
    dtype: str | None = None
    shape: list[int] | None = None
    length: int | None = None
    lane = name.partition("/")[0]
    if name in _FIXED or lane in ("time", "offsets"):
        dtype, step = _FIXED.get(name, ("i64", 8))
        shape, length = [], size // step
    elif lane == "frames":
        dtype, shape, length = "i64", [2], size // 16
    elif lane == "label":
        label = episode.labels.get(name.removeprefix("label/"))
        dtype, length = "intervals", None if label is None else len(label)
    elif lane == "residual" and name.endswith("/scales"):
        dtype = "f32"
    elif lane == "residual":
        dtype = {"sign2nddiff": "bits", "delta_q": "i8"}.get(name.rpartition("/")[2])
        length = None if dtype is None else episode.length
    unknown = dict.fromkeys(("layout", "clock", "rate_hz", "unit", "modality"))
    unknown |= dict.fromkeys(("content_type", "lossy", "description"))
    return {"dtype": dtype, "shape": shape, "length": length, **unknown, "inferred": False}


def _statistics(channel: Channel, *, whole: bool) -> dict[str, Any] | None:
    """Smallest, mean and largest of the finite values, and how many are not; None without numbers.

    A block that cannot be read gives its error: one bad lane does not hide the others.
    """
    if channel.layout == "text":
        return None
    low, high = float("inf"), float("-inf")
    total, finite, nan, infinite = 0.0, 0, 0, 0
    try:
        for values in _pieces(channel, whole=whole):
            if values.dtype.kind == "f":
                good, missing = np.isfinite(values), int(np.isnan(values).sum())
                nan += missing
                infinite += values.size - int(good.sum()) - missing
                values = values[good]
            if values.size:
                finite += values.size
                total += float(values.sum(dtype="f8"))
                low, high = min(low, values.min().item()), max(high, values.max().item())
    except (MissingExtra, UnknownCodec):
        return None  # video without a decoder
    except ShardError as error:
        return {"error": error_fields(error)}
    return {
        "min": low if finite else None,
        "mean": total / finite if finite else None,
        "max": high if finite else None,
        "nan": nan,
        "infinite": infinite,
    }


def _pieces(channel: Channel, *, whole: bool) -> Iterator[NDArray[Any]]:
    if isinstance(channel, RaggedChannel):
        yield _numbers(np.asarray(channel.values), channel)
        return
    steps = max(1, _WINDOW_BYTES // max(1, channel.step_bytes))
    if whole:
        _ = channel.data
    for start in range(0, channel.length, steps):
        piece = channel.read_steps(start, min(start + steps, channel.length))
        yield _numbers(piece, channel)


def _numbers(values: NDArray[Any], channel: Channel) -> NDArray[Any]:
    if channel.dtype_name == "bf16":
        # The upper half of a 32-bit float, whether or not ml_dtypes gives it a name.
        return (values.view("<u2").astype("<u4") << np.uint32(16)).view("<f4")
    return values.view(np.uint8) if values.dtype == np.bool_ else values


# --- showing


def show_lines(listed: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Prints the facts of the episodes of a folder, one line for each."""
    exact = not console.out_is_terminal

    def cells(facts: Mapping[str, Any]) -> list[str]:
        """For programs plain numbers, for people units."""
        seconds, hertz = facts["seconds"], facts["rate_hz"]
        return [
            facts["file"],
            facts["episode_id"],
            facts["env_id"] or "-",
            str(facts["steps"]) if exact else f"{facts['steps']:,}",
            "-" if seconds is None else f"{seconds:.6g}" if exact else duration(seconds),
            "-" if hertz is None else f"{hertz:.5g}" if exact else rate(hertz),
            *(str(facts[what] or "-") for what in ("blocks", "chunks", "sidecars")),
            str(facts["file_size"]) if exact else size(facts["file_size"]),
        ]

    headings = ["FILE", "EPISODE", "ENV", "STEPS", "SECONDS" if exact else "TIME", "RATE"]
    headings += ["BLOCKS", "CHUNKS", "SIDECARS", "SIZE"]
    console.table(headings, list(map(cells, listed)), right=range(3, 10))
    steps, seconds, nbytes = (
        sum(facts[what] or 0 for facts in listed) for what in ("steps", "seconds", "file_size")
    )
    total = [count(len(listed), "episode"), count(steps, "step"), duration(seconds), size(nbytes)]
    console.total(", ".join(total))


def shortened(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What `show_lines` needs of the facts: a folder may hold a million episodes."""
    kept = ("file", "episode_id", "env_id", "steps", "seconds", "rate_hz", "file_size")
    lengths = {what: len(facts[what]) for what in ("blocks", "chunks", "sidecars")}
    return {what: facts[what] for what in kept} | lengths


def show_facts(facts: dict[str, Any], console: Console) -> None:
    """Prints the facts for people."""
    console.facts(facts["file"], _lines(facts))
    if facts["blocks"]:
        console.line()
        _table(facts["blocks"], console)


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "episode", facts["episode_id"]
    yield "environment", facts["env_id"] or "not stated"
    length = count(facts["steps"], "step")
    if facts["seconds"] is not None:
        measured = ", measured from its timestamps" if facts["clock"] == "timestamps" else ""
        length += f", {duration(facts['seconds'])} at {rate(facts['rate_hz'])}{measured}"
    yield "length", length
    if facts["chunk"] is not None:
        yield "chunk", _chunk_text(facts["chunk"])
    if facts["chunks"]:
        names = facts["chunks"]
        yield "chunks", f"{len(names):,}: {names[0]} to {names[-1]}"
    if facts["sidecars"]:
        yield "sidecars", ", ".join(facts["sidecars"])
    yield "file size", exact_size(facts["file_size"])
    if "state" in facts:
        yield "state", _STATES[facts["state"]].format(facts["file"])
        yield "content", exact_size(facts["size"])
    else:
        stored = f"{size(facts['stored'])} ({percent(facts['stored'], facts['size'])})"
        yield "content", f"{exact_size(facts['size'])}, stored as {stored}"
    identity = facts["identity"]
    if isinstance(identity, dict):
        yield "identity", f"unreadable: {identity['error']['message']}"
    else:
        yield "identity", (identity or "not stored") + coverage(facts["identity_version"])
    for name in ("metadata", "provenance"):
        if facts[name]:
            yield name, count(len(facts[name]), "field")
            yield from field_lines(facts[name])


def _chunk_text(chunk: Mapping[str, Any]) -> str:
    total = "" if chunk["total"] is None else f" of {chunk['total']:,}"
    span = chunk["timestep_range"]
    where = "" if span is None else f", steps {span[0]:,} to {span[1]:,} of the episode"
    return f"number {chunk['index']:,}{total}, counted from 0{where}"


def _table(blocks: Sequence[Mapping[str, Any]], console: Console) -> None:
    show_size = size if console.out_is_terminal else str
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "BLOCK": lambda block: block["block"],
        "DTYPE": lambda block: (block["dtype"] or "-") + ("?" if block["inferred"] else ""),
        "SHAPE": lambda block: _or_dash(block["shape"]).replace(" ", ""),
        "LENGTH": lambda block: _or_dash(block["length"]),
        "CLOCK": _clock_text,
        "CODEC": _codec_text,
        "SIZE": lambda block: show_size(block["size"]),
        "STORED": lambda block: "-" if block["stored"] is None else show_size(block["stored"]),
        "RATIO": lambda block: percent(block["stored"] or 0, block["stored"] and block["size"]),
    }
    if "stats" in blocks[0]:
        columns |= {
            what.upper(): partial(_stats_cell, what) for what in ("min", "mean", "max", "nan")
        }
    right = [number for number in range(3, len(columns)) if number not in (4, 5)]
    if any(block["sidecar"] for block in blocks):
        columns["SIDECAR"] = lambda block: block["sidecar"] or "-"
    rows = [[cell(block) for cell in columns.values()] for block in blocks]
    console.table(list(columns), rows, right=right)
    if any(block["inferred"] for block in blocks):
        console.note("? the file does not describe the block; dtype and shape are guessed")


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _codec_text(block: Mapping[str, Any]) -> str:
    if block["layout"] == "video":
        return f"{block['content_type']} {'lossy' if block['lossy'] else ''}".strip()
    return f"{block['codec']} {block['filters'] or ''}".strip()


def _clock_text(block: Mapping[str, Any]) -> str:
    clock, hertz = block["clock"], block["rate_hz"]
    if clock in (None, "steps") or hertz is None:
        return _or_dash(clock)
    return rate(hertz) if clock == "regular" else f"own, {rate(hertz)}"


def _stats_cell(what: str, block: Mapping[str, Any]) -> str:
    stats = block["stats"] or {}
    if "error" in stats:
        return "unreadable" if what == "min" else "-"
    value = stats.get(what)
    return f"{value:.4g}" if isinstance(value, float) else _or_dash(value)


# --- comparing

_KINDS: Final = {"only_left": "only_in_a", "only_right": "only_in_b"}


@contextmanager
def compare(args: argparse.Namespace, _: Progress) -> Iterator[tuple[Iterator[Change], str]]:
    """Compares facts, metadata, channels and values, however the episodes are stored."""
    from wshard.editing import differences

    sidecars = not args.no_sidecars
    with (
        nullcontext() if args.no_values else copying_urls(),
        open_episode(args.a, args, sidecars=sidecars) as a,
        open_episode(args.b, args, sidecars=sidecars) as b,
    ):
        found = differences(a, b, values=not args.no_values)
        compared = "all facts, names and types" if args.no_values else "all blocks"
        yield map(_change, found), f"{compared} of {count(a.length, 'step')}"


def _change(difference: Difference) -> Change:
    kind = _KINDS.get(difference.kind, difference.kind)
    # The library names the episodes, which may both have the same id.
    only = {"only_in_a": "only in A", "only_in_b": "only in B"}
    detail = only.get(kind, difference.detail)
    fields = {"block": difference.block, "kind": kind, "detail": detail}
    return Change(kind, printable(f"{difference.block}: {detail}"), fields)


# --- checking


def verify(
    arguments: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[Checked]:
    """Checks every byte and every rule of episodes."""
    for report in _examine_all(arguments, args, console):
        errors = [_problem(finding, hint=True) for finding in report.errors]
        good = [count(report.length or 0, "step"), size(report.bytes)]
        if report.files > 1:
            good.insert(1, count(report.files, "file"))
        if report.warnings:
            good.append(f"{count(len(report.warnings), 'warning')} for 'wshard doctor'")
        has_old_identity = "old_identity" in report.codes
        if has_old_identity:
            good.append(f"old identity{coverage(1)}")
        fields = {
            "episode_id": report.episode_id,
            "steps": report.length,
            "files": report.files,
            "bytes": report.bytes,
            "errors": [error.fields for error in errors],
            "warnings": len(report.warnings),
            "old_identity": has_old_identity,
        }
        yield Checked(report.path, ", ".join(good), fields, errors)


def diagnose(
    arguments: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[Diagnosis]:
    """Finds what is wrong or odd about episodes."""
    for report in _examine_all(arguments, args, console):
        findings = [_problem(one) for one in report.findings if one.code not in args.ignored]
        severities = [finding.severity for finding in findings]
        if report.episode_id is None:
            verdict = "does not open"
        elif "error" in severities:
            verdict = "damaged"
        elif "warning" in severities:
            verdict = "suspicious" if args.strict else "readable"
        else:
            verdict = "healthy"
        fields = {
            "episode_id": report.episode_id,
            "steps": report.length,
            "files": report.files,
            "blocks": report.blocks,
            "bytes": report.bytes,
            "findings": [finding.fields for finding in findings],
        }
        summary = [] if report.length is None else [count(report.length, "step")]
        summary += [
            count(severities.count(severity), severity)
            for severity in SEVERITIES
            if severity in severities
        ]
        shown = "" if report.episode_id is None else ", ".join(summary)
        yield Diagnosis(report.path, verdict, shown, findings, fields)


def _examine_all(
    arguments: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[EpisodeReport]:
    with copying_urls():
        targets = find(arguments)
    part = getattr(args, "part", None)
    if part is not None:
        targets = targets[part_of(len(targets), parse_part(part))]
    work = partial(_report, args=args, threads=threads_in_each(args.jobs, len(targets)))
    executor = executor_of(args) if is_elsewhere(args) else None
    return in_order(targets, work, args.jobs, console, executor=executor)


def _report(
    target: Target, advance: Progress, *, args: argparse.Namespace, threads: int | None
) -> EpisodeReport:
    """All findings about an episode. Runs in threads and processes."""
    from wshard import validate_chunk_continuity
    from wshard.doctor import examine

    report: EpisodeReport | None = None
    with copying_urls():
        if target.pack is not None:
            report = _packed_report(target, advance, args, threads)
        elif args.max_decompressed is not None:
            with (
                suppress(ShardError),  # what keeps it from opening is a finding
                open_episode(target.path, args, threads=threads) as episode,
            ):
                report = examine(episode, progress=advance, threads=threads)
        if report is None:
            report = examine(target.path, progress=advance, threads=threads)
        findings = list(report.findings)
        if target.chunks:
            try:  # W-CHK-7: whether the chunks are the files that the manifest was made for
                validate_chunk_continuity(target.path)
            except ShardError as error:
                if error.code not in report.codes:
                    findings.insert(0, Finding.from_error(error, path=error.path))
    kept = tuple(_for_the_command_line(finding, target.path) for finding in findings)
    return replace(report, path=target.path, findings=kept)


def _packed_report(
    target: Target, advance: Progress, args: argparse.Namespace, threads: int | None
) -> EpisodeReport:
    """All findings about an episode in a pack, its checksum in the pack included."""
    from wshard.doctor import EpisodeReport, examine

    assert target.pack is not None
    errors: list[ShardError] = []
    report = EpisodeReport(target.path, ())
    try:
        with _open_target(target, args, threads) as episode:
            report = examine(episode, progress=advance, threads=threads)
    except ShardError as error:
        errors.append(error)
    if target.name:
        with suppress(ShardError):  # the same as above
            record = opened_pack(target.pack).reader.record(target.record)
            try:
                _ = record[target.name.removeprefix(f"{record.key}.")].data
            except ShardError as error:
                errors.append(error)
    found = [Finding.from_error(error, path=error.path) for error in errors]
    known = report.codes
    return replace(
        report,
        path=target.path,
        findings=(*(one for one in found if one.code not in known), *report.findings),
    )


def _for_the_command_line(finding: Finding, path: str) -> Finding:
    """Gives advice for the command line, and does not name the file again under its heading."""
    command = None if finding.error is None else finding.error.command
    advice = finding.advice if command is None else command
    if not advice and finding.code in EXPLANATIONS:
        advice = EXPLANATIONS[finding.code]["remedy"]
    return replace(finding, advice=advice, path=None if finding.path == path else finding.path)


def _problem(finding: Finding, *, hint: bool = False) -> Problem:
    """A finding as commands show it; with `hint`, the text also says what the error itself advises."""
    fields: dict[str, Any] = {
        "code": finding.code,
        "severity": finding.severity,
        "message": finding.message,
        "block": finding.entry,
        "step": finding.step,
        "count": finding.count,
        "rule": finding.rule,
        "file": finding.path,
        "advice": finding.advice or None,
    }
    place = "".join(f"{part}: " for part in (finding.path, finding.entry) if part)
    rule = f" [{finding.rule}]" if finding.rule else ""
    text = f"{printable(place + finding.message)}{rule}"
    if hint and finding.error is not None and (way_out := finding.error.command_hint):
        text += f"; {printable(way_out)}"
    return Problem(finding.code, text, fields, finding.severity, remedy=printable(finding.advice))
