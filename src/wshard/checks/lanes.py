"""What lanes say about each other: lengths, ends, descriptions, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.registry import Role
from wshard.channels import Channel
from wshard.checks.finding import counted
from wshard.checks.times import span_ns
from wshard.metadata import parse_rows
from wshard.names import (
    META_CHANNELS,
    META_EPISODE,
    META_PROVENANCE,
    SIGN_RESIDUAL,
    TIMESTAMPS,
)
from wshard.provenance import parse_provenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shard_format import ShardReader
    from wshard.checks.finding import Findings
    from wshard.episode import Episode
    from wshard.labels import Interval, Intervals
    from wshard.metadata import Row

__all__ = ["check_descriptions", "check_ends", "check_labels", "check_lengths"]

_MAY_HAVE_ONE_MORE: Final = ("signal", "omen", "uncert")
# Under which names the measured error of a lossy channel is found.
_MEASURES: Final = ("error", "psnr", "ssim", "rmse", "mae", "mse")
_MOST_NAMED: Final = 8


def check_lengths(episode: Episode, found: Findings) -> None:
    """Channels that follow the steps have as many entries."""
    length = episode.length
    for block, channel in episode.blocks():
        one_more = block.partition("/")[0] in _MAY_HAVE_ONE_MORE
        allowed = (length, length + 1) if one_more else (length,)
        # A block that nothing describes and nothing fits has no time axis; that is said elsewhere.
        shapeless = channel.inferred and channel.dtype == "u8" and not channel.shape
        if channel.has_own_clock or channel.length in allowed or shapeless:
            continue
        if block in found.damaged:
            continue
        found.add(
            "length_mismatch",
            f"{counted(channel.length, 'entry', 'entries')} and no clock of its own, in an episode of "
            f"{counted(length, 'step')}",
            block=block,
            count=channel.length,
            advice="give the channel timestamps_ns, or start_ns and sampling_rate_hz; or cut it to "
            "the steps",
        )
    span = episode.timestep_range
    if span is not None and span != (0, 0):
        steps = span[1] - span[0]
        if length not in (steps, steps + 1):
            found.add(
                "length_mismatch",
                f"timestep_range {list(span)} does not fit {counted(length, 'step')}",
                block=META_EPISODE,
                count=length,
                advice="set timestep_range to the first and the last step in the whole episode",
            )


def check_ends(episode: Episode, found: Findings) -> None:
    """Ends are at the end, and somebody says how it ended."""
    is_last = (
        episode.chunk_index is None
        or not episode.total_chunks
        or episode.chunk_index == episode.total_chunks - 1
    )
    if not episode.length:
        return
    known = [
        (name, channel)
        for name, channel in (
            ("terminated", episode.terminations),
            ("truncated", episode.truncations),
        )
        if channel is not None
    ]
    if any((channel.block or name) in found.damaged for name, channel in known):
        return
    ends = []
    for name, channel in known:
        with found.guard(channel.block or name, rule="W-END-1"):
            values = channel._shallow().data
            if len(values) == episode.length:  # else that has been said
                ends.append((channel.block or name, np.asarray(values) != 0))
    if len(ends) != len(known):
        return
    for block, flags in ends:
        early = np.flatnonzero(flags[:-1])
        if early.size:
            step = int(early[0])
            found.add(
                "done_before_end",
                f"{counted(early.size, 'step')} before the last of {episode.length} already "
                f"{'says' if early.size == 1 else 'say'} that the episode ended, the first at {step}",
                block=block,
                step=step,
                count=int(early.size),
                advice="split the recording there: these are several episodes, or steps after the end",
            )
    if not is_last:
        return
    last = [block for block, flags in ends if flags[-1]]
    if not last:
        found.add(
            "no_end",
            "the last step is neither terminated nor truncated"
            if ends
            else "nothing says whether the episode ended or was cut off",
            step=episode.length - 1,
            advice="set terminations or truncations: bootstrapping a value needs to know",
        )
    if len(last) == 2:
        found.add(
            "both_ends",
            "the last step is both terminated and truncated",
            block="truncated",
            step=episode.length - 1,
            advice="nothing, if the limit was hit in a terminal state; else keep the one that is true",
        )


def check_descriptions(episode: Episode, found: Findings) -> None:
    """Blocks without a row, rows without a block, entries nobody knows, and values that were changed."""
    for block, channel in episode.blocks():
        if channel.inferred:
            timeless = (
                channel.dtype == "u8" and not channel.shape and channel.length != episode.length
            )
            guess = (
                f"no guess fits its {channel.length} bytes, so they are read as they are"
                if timeless
                else f"it is read as {channel.dtype} {list(channel.shape)}, a guess from its size"
            )
            found.add(
                "undescribed_block",
                f"meta/channels has no row for it; {guess}",
                block=channel.block or block,
                rule="W-INF-1",
                advice="check the guess, and add a row with dtype and shape to meta/channels",
            )
        if channel.lossy is not None:
            _say_lossy(block, channel, found)
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
        found.add(
            "unknown_entry",
            f"{counted(len(unknown), 'entry is', 'entries are')} not part of the format: {listed}{more}",
            block=unknown[0],
            count=len(unknown),
            rule="W-NAM-2",
            advice="nothing: they are kept as they are",
        )


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
            found.add(
                "undescribed_block",
                "meta/channels has no row for it; channel and type are taken from its name",
                block=block,
                rule="W-INF-1",
                advice="add a row with channel and type to meta/channels",
            )
    for block, row in rows.items():
        # Stream writers describe every channel as a signal, even if only the action is there.
        if block not in names and block not in said and f"action/{row.id}" not in names:
            said.add(block)
            found.add(
                "missing_block",
                f"meta/channels describes it as {row.dtype} {list(row.shape)}, but it is not there",
                block=block,
                rule="W-CHN-6",
                advice="find out why it was not written, or remove its row",
            )


def _say_lossy(block: str, channel: Channel, found: Findings) -> None:
    assert channel.lossy is not None
    codec = channel.lossy.get("codec", "an unnamed codec")
    measured = [
        f"{key} {value}"
        for key, value in sorted(channel.lossy.items())
        if any(word in key.lower() for word in _MEASURES)
    ]
    found.add(
        "lossy_channel",
        f"the values were changed by {codec} before they were stored, "
        + (f"measured: {', '.join(measured)}" if measured else "and nobody measured by how much"),
        block=block,
        severity="note" if measured else "warning",
        advice="nothing, if this error is small enough for the task"
        if measured
        else "compare with the original and add the error, such as max_error, to `lossy`",
    )


def check_labels(episode: Episode, found: Findings) -> None:
    """Intervals lie within the episode."""
    for name, intervals in episode.labels.items():
        with found.guard(f"label/{name}"):
            _check_intervals(episode, name, intervals, found)


def _check_intervals(episode: Episode, name: str, intervals: Intervals, found: Findings) -> None:
    low, high = 0, episode.length
    if intervals.unit == "ns":
        span = None if TIMESTAMPS in found.damaged else span_ns(episode)
        if span is None:
            return
        low, high = span
    outside = [item for item in intervals if item.start < low or item.end > high]
    if outside:
        _say_outside(name, outside, len(intervals), low, high, intervals.unit, found)


def _say_outside(
    name: str,
    outside: Sequence[Interval],
    total: int,
    low: int,
    high: int,
    unit: str,
    found: Findings,
) -> None:
    first = outside[0]
    found.add(
        "label_outside",
        f"{len(outside)} of {counted(total, 'interval')} leave the episode, which has the {unit} {low} to "
        f"{high}; "
        f"the first is {first.text[:40]!r} from {first.start} to {first.end}",
        block=f"label/{name}",
        step=first.start if unit == "steps" else None,
        count=len(outside),
        advice="cut the intervals, or check that unit and origin are those of the episode",
    )
