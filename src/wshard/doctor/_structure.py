"""What files and lanes say about each other: checksums, identity, lengths, ends, descriptions, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format import verify
from shard_format.errors import DATA_ERRORS, SizeMismatch
from shard_format.identity import IDENTITY_ENTRY, compute_identity, verify_identity
from shard_format.manifest import Manifest
from shard_format.registry import Role
from wshard._lanes import (
    DONE,
    META_CHANNELS,
    META_EPISODE,
    META_PROVENANCE,
    META_SIDECAR,
    META_WSHARD,
    REWARD,
    SIGN_RESIDUAL,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
)
from wshard._metadata import parse_facts, parse_provenance, parse_rows
from wshard._sidecar import check_identity
from wshard.doctor._clocks import span_ns, where
from wshard.doctor._findings import counted
from wshard.types import Channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shard_format import ShardReader
    from wshard._metadata import Row
    from wshard.doctor._findings import Findings
    from wshard.types import Episode, Intervals

_ITEM_BYTES: Final = {REWARD: 4, DONE: 1, TERMINATED: 1, TRUNCATED: 1, TICKS: 4, TIMESTAMPS: 8}
_MAY_HAVE_ONE_MORE: Final = ("signal", "omen", "uncert")
# Parts of the names under which the measured error of a lossy channel is stored.
_MEASURES: Final = ("error", "psnr", "ssim", "rmse", "mae", "mse")
_MOST_NAMED: Final = 8
_NO_ROW: Final = "meta/channels has no row for it"


# --- files


def check_file(reader: ShardReader, found: Findings) -> None:
    """The rules that one file breaks by itself, whatever its values mean."""
    done = 0

    def progress(so_far: int, _: int) -> None:
        nonlocal done
        found.advance(so_far - done)
        done = so_far

    has_identity = found.options.check_identity and IDENTITY_ENTRY in reader
    hashes: dict[str, str] | None = None
    if found.options.check_container:
        with found.guard():
            hashes = {} if has_identity else None
            report = verify.check(reader, progress=progress, hashes=hashes)
            for finding in report.findings:
                if finding.error is not None:
                    found.add_error(finding.error)
                else:
                    found.add_odd(finding, reader.name)
    # Damaged entries have been named; their hashes would only repeat it.
    if has_identity and not found.damaged & set(reader.names()):
        with found.guard(IDENTITY_ENTRY):
            if verify_identity(reader, hashes=hashes).version == 1:
                message = "the stored identity has version 1, which does not cover the role and the schema section"
                found.add("old_identity", IDENTITY_ENTRY, message)
    if reader.role == Role.MANIFEST:
        with found.guard():
            for problem in Manifest.read(reader).iter_problems():
                found.add_error(problem, rule="W-CHK-7")
    if reader.role == Role.WSHARD and META_SIDECAR not in reader:
        with found.guard():
            _check_flat_lanes(reader, found)


def _check_flat_lanes(reader: ShardReader, found: Findings) -> None:
    """W-END and W-TIM-2, also for blocks that readers skip because another one outranks them."""
    try:
        wshard = reader.read_json(META_WSHARD) if META_WSHARD in reader else {}
        length = parse_facts(reader.read_json(META_EPISODE), wshard).length
    except DATA_ERRORS:
        return  # opening has found it
    for name, item in _ITEM_BYTES.items():
        size = reader.info(name).size if name in reader else 0
        if size not in (0, length * item):
            error = SizeMismatch(
                "the block does not fit the length of the episode",
                path=reader.name,
                entry=name,
                expected=f"{length * item} bytes for {length} steps",
                found=f"{size} bytes",
            )
            found.add_error(error, rule="W-TIM-2" if name.startswith("time/") else "W-END-1")
    flags = {
        name: np.frombuffer(reader.read_entry(name), np.uint8).astype(np.bool_)
        for name in (DONE, TERMINATED, TRUNCATED)
        if name in reader and name not in found.damaged and reader.info(name).size
    }
    done = flags.pop(DONE, None)
    if done is None or not flags:
        return
    union = np.logical_or.reduce(list(flags.values()))
    count, step = where(done != union)
    if count:
        names = " or ".join(flags)
        message = f"'done' is not the union of {names} at {count} of {len(done)} steps, the first "
        message += f"{step}: {bool(done[step])} where {names} says {bool(union[step])}"
        advice = "write terminated and truncated, and let the writer derive done"
        found.add("bad_value", DONE, message, step, count, advice=advice, rule="W-END-3")


def check_sidecars(base: ShardReader, sidecars: Sequence[ShardReader], found: Findings) -> None:
    """W-SID-4: the identity of the episode that sidecars belong to."""
    if not sidecars or not found.options.check_identity:
        return
    with found.guard():
        actual = compute_identity(base)
        for sidecar in sidecars:
            if sidecar.name not in found.damaged_files:
                with found.guard(META_SIDECAR):
                    check_identity(sidecar, base, actual)


# --- lanes


def check_lengths(episode: Episode, found: Findings) -> None:
    """Channels that follow the steps have as many entries."""
    length = episode.length
    for block, channel in episode.blocks():
        one_more = block.partition("/")[0] in _MAY_HAVE_ONE_MORE
        allowed = (length, length + 1) if one_more else (length,)
        if channel.has_own_clock or channel.length in allowed or block in found.damaged:
            continue
        if not _is_shapeless(channel):  # otherwise `check_descriptions` reports it
            message = (
                f"{counted(channel.length, 'entry', 'entries')} and no clock of its own, in an "
            )
            message += f"episode of {counted(length, 'step')}"
            advice = (
                "give the channel timestamps_ns, or start_ns and sampling_rate_hz; or cut it to "
            )
            advice += "the steps"
            found.add("length_mismatch", block, message, count=channel.length, advice=advice)
    span = episode.timestep_range
    if span is not None and span != (0, 0):
        steps = span[1] - span[0]
        if length not in (steps, steps + 1):
            message = f"timestep_range {list(span)} does not fit {counted(length, 'step')}"
            advice = "set timestep_range to the first and the last step in the whole episode"
            found.add("length_mismatch", META_EPISODE, message, count=length, advice=advice)


def _is_shapeless(channel: Channel) -> bool:
    """Whether nothing describes the block and no guess fits it, so that it has no time axis."""
    return channel.inferred and channel.dtype_name == "u8" and not channel.step_shape


def check_ends(episode: Episode, found: Findings) -> None:
    """Ends are at the end, and the episode says how it ended."""
    lanes = (("terminated", episode.terminations), ("truncated", episode.truncations))
    known = {lane.block or name: lane for name, lane in lanes if lane is not None}
    if not episode.length or known.keys() & found.damaged:
        return
    ends: dict[str, NDArray[np.bool_]] = {}
    for block, channel in known.items():
        with found.guard(block, rule="W-END-1"):
            values = np.asarray(channel.uncached().data) != 0
            if len(values) == episode.length:  # otherwise `check_lengths` reports it
                ends[block] = values
    if len(ends) != len(known):
        return
    for block, flags in ends.items():
        count, step = where(flags[:-1])
        if count:
            says = "says" if count == 1 else "say"
            message = (
                f"{counted(count, 'step')} before the last of {episode.length} already {says} "
            )
            message += f"that the episode ended, the first at {step}"
            found.add("done_before_end", block, message, step, count)
    chunk, chunks = episode.chunk_index, episode.total_chunks
    if chunk is not None and chunks and chunk != chunks - 1:
        return
    last, step = [block for block, flags in ends.items() if flags[-1]], episode.length - 1
    if not ends:
        found.add("no_end", None, "nothing says whether the episode ended or was cut off", step)
    elif not last:
        found.add("no_end", None, "the last step is neither terminated nor truncated", step)
    elif len(last) == 2:
        found.add("both_ends", "truncated", "the last step is both terminated and truncated", step)


def check_descriptions(episode: Episode, found: Findings) -> None:
    """Blocks without a row, rows without a block, unknown entries, and values that were changed."""
    for block, channel in episode.blocks():
        if channel.inferred:
            message = f"{_NO_ROW}; it is read as {channel.dtype_name} {list(channel.step_shape)}, "
            message += "a guess from its size"
            if _is_shapeless(channel) and channel.length != episode.length:
                guess = f"no guess fits its {channel.length} bytes, so they are read as they are"
                message = f"{_NO_ROW}; {guess}"
            advice = "check the guess, and add a row with dtype and shape to meta/channels"
            name = channel.block or block
            found.add("undescribed_block", name, message, rule="W-INF-1", advice=advice)
        if channel.lossy is not None:
            _check_lossy(block, channel.lossy, found)
    origin = episode.origin
    if origin is None or origin.is_filtered:
        return
    said: set[str] = set()  # chunks repeat themselves
    for reader in (origin.reader, *origin.chunks, *origin.sidecars):
        if reader.role == Role.WSHARD:
            with found.guard(META_CHANNELS):
                older = origin.rows if reader is origin.reader else {}
                _check_rows(reader, older, said, found)
            if META_PROVENANCE in reader:
                with found.guard(META_PROVENANCE):
                    parse_provenance(reader.read_json(META_PROVENANCE, rule="W-JSN-1"))
    unknown = sorted(
        name
        for name, extra in episode.extras.items()
        if not isinstance(extra, Channel) and name != META_PROVENANCE
    )
    if unknown:
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        listed = ", ".join(unknown[:_MOST_NAMED])
        message = f"{counted(len(unknown), 'entry is', 'entries are')} not part of the format: "
        message += f"{listed}{more}"
        found.add("unknown_entry", unknown[0], message, count=len(unknown), rule="W-NAM-2")


def _check_rows(
    reader: ShardReader, older: Mapping[str, Row], said: set[str], found: Findings
) -> None:
    """Rows and blocks of one file against each other."""
    described = reader.read_json(META_CHANNELS) if META_CHANNELS in reader else {}
    rows = {**older, **{row.block: row for row in parse_rows(described)}}
    names = set(reader.names())
    for block in sorted(names - rows.keys() - said - found.damaged):
        if block.startswith("residual/") and block.endswith("/" + SIGN_RESIDUAL):
            said.add(block)
            message = f"{_NO_ROW}; channel and type are taken from its name"
            advice = "add a row with channel and type to meta/channels"
            found.add("undescribed_block", block, message, rule="W-INF-1", advice=advice)
    for block, row in rows.items():
        # Stream writers describe every channel as a signal, even if only the action is there.
        if block not in names and block not in said and f"action/{row.id}" not in names:
            said.add(block)
            said_of_it = f"meta/channels describes it as {row.dtype} {list(row.shape)}"
            found.add(
                "missing_block", block, f"{said_of_it}, but the file lacks it", rule="W-CHN-6"
            )


def _check_lossy(block: str, lossy: Mapping[str, object], found: Findings) -> None:
    measured = [
        f"{key} {value}"
        for key, value in sorted(lossy.items())
        if any(word in key.lower() for word in _MEASURES)
    ]
    codec = lossy.get("codec", "an unnamed codec")
    message = f"the values were changed by {codec} before they were stored, "
    if measured:
        message += f"measured: {', '.join(measured)}"
        advice = "nothing, if this error is small enough for the task"
        found.add("lossy_channel", block, message, advice=advice)
    else:
        message += "and the error was not measured"
        advice = "compare with the original and add the error, such as max_error, to `lossy`"
        found.add("lossy_channel", block, message, advice=advice, severity="warning")


def check_labels(episode: Episode, found: Findings) -> None:
    """Intervals lie within the episode."""
    for name, intervals in episode.labels.items():
        with found.guard(f"label/{name}"):
            _check_intervals(episode, f"label/{name}", intervals, found)


def _check_intervals(episode: Episode, block: str, intervals: Intervals, found: Findings) -> None:
    span: tuple[int, int] | None = (0, episode.length)
    if intervals.unit == "ns":
        if TIMESTAMPS in found.damaged:
            return
        span = span_ns(episode, block, "its intervals are in nanoseconds", found)
    if span is None:
        return
    low, high = span
    outside = [item for item in intervals if item.start < low or item.end > high]
    if outside:
        first = outside[0]
        message = (
            f"{len(outside)} of {counted(len(intervals), 'interval')} leave the episode, which "
        )
        message += (
            f"has the {intervals.unit} {low} to {high}; the first is {first.text[:40]!r} from "
        )
        message += f"{first.start} to {first.end}"
        step = first.start if intervals.unit == "steps" else None
        found.add("label_outside", block, message, step, len(outside))
