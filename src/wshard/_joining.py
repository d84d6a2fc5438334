"""Episodes that follow one another in time, as one: nothing is copied until it is read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shard_format.errors import ChunkDiscontinuity
from wshard._blocks import ArrayBlock, ChainedBlock
from wshard._channels import Channel, RaggedChannel
from wshard._labels import Interval, Intervals
from wshard._lanes import CHANNEL_LANES, EXTRA, REWARD, TICKS, TIMESTAMPS, block_name
from wshard._values import DType
from wshard._video import VideoChannel
from wshard.residual import Residual

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wshard._blocks import Block
    from wshard._episode import Episode

__all__ = ["join"]


def join(episodes: Sequence[Episode]) -> Episode:
    """One episode of several; the facts are those of the first.

    Raises:
        ChunkDiscontinuity: they do not have the same channels, of the same types and shapes.
    """
    first = episodes[0]
    lengths = [episode.length for episode in episodes]
    for what, lanes in (("blocks", CHANNEL_LANES), ("residuals", ("residual",))):
        _same_names(what, lanes, episodes)
    joined = first.mapped(lambda part: part)
    joined.origin = None
    joined.length = sum(lengths)
    for address, part in first.parts.items():
        others: list[Any] = [episode.parts.get(address) for episode in episodes]
        if address[0] in (TICKS, TIMESTAMPS):
            continue
        if isinstance(part, Residual):
            joined.parts[address] = part.joined(others[1:], lengths)
        elif isinstance(part, Channel) and all(isinstance(other, Channel) for other in others):
            joined.parts[address] = _joined_channel(block_name(address), others, lengths)
    for lane in (TICKS, TIMESTAMPS):
        clock = _joined_clock(lane, episodes, lengths)
        joined.parts.pop((lane,), None)
        if clock is not None:
            joined.parts[lane,] = clock
    for name, intervals in _joined_labels(episodes, lengths).items():
        joined.parts["label", name] = intervals
    for episode in episodes[1:]:
        for address, part in episode.parts.items():
            if address[0] == EXTRA:
                joined.parts.setdefault(address, part)
    return joined


def _same_names(what: str, lanes: Collection[str], episodes: Sequence[Episode]) -> None:
    named = [
        {block_name(address) for address in episode.parts if address[0] in lanes}
        for episode in episodes
    ]
    for episode, names in zip(episodes, named, strict=True):
        different = sorted(names ^ named[0])
        if different:
            has = "has" if different[0] in names else "lacks"
            raise ChunkDiscontinuity(
                f"the parts have different {what}: {_title(episode)} {has} {different[0]!r}",
                expected=f"the {what} of {_title(episodes[0])}",
                rule="W-CHK-8",
            )


def _title(episode: Episode) -> str:
    if episode.chunk_index is not None:
        return f"chunk {episode.chunk_index} of {episode.id!r}"
    return f"episode {episode.id!r}"


def _joined_channel(block: str, parts: Sequence[Channel], lengths: Sequence[int]) -> Channel:
    if block == REWARD:
        parts = _same_rewards(parts)
    first = parts[0]
    has_steps = first.has_own_clock or first.length in (lengths[0], lengths[0] + 1)
    if not has_steps and (first.inferred or first.has_stated_length):
        return first  # without a time for each step, so that every part has all of it
    for number, part in enumerate(parts):
        if _form(part) != _form(first):
            raise ChunkDiscontinuity(
                f"part {number} has the channel in another form",
                entry=block,
                expected=repr(first),
                found=repr(part),
                rule="W-CHK-8",
            )
    counts = [part.length for part in parts]
    if not first.has_own_clock:
        for number, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            if count == length + 1 and number < len(parts) - 1:
                counts[number] = length  # the next part starts with this observation
            elif count not in (length, length + 1):
                raise ChunkDiscontinuity(
                    f"part {number} has a different number of entries than steps",
                    entry=block,
                    expected=f"{length} or {length + 1}",
                    found=count,
                    rule="W-CHK-8",
                )
    if isinstance(first, RaggedChannel):
        joined: Channel = _joined_items(first, block, parts, counts)
    elif isinstance(first, VideoChannel):
        joined = first.joined_with(block, cast("Sequence[VideoChannel]", parts[1:]), counts)
    else:
        sizes = [count * first.step_bytes for count in counts]
        source = ChainedBlock(block, [part.as_block() for part in parts], sizes)
        joined = first.at_source(source, sum(counts))
    if first.has_own_clock and first.start_ns is None:
        clocks: list[Block] = [
            part.clock_source or ArrayBlock(f"time/{block}", np.asarray(part.timestamps_ns))
            for part in parts
        ]
        joined = joined.with_clock_at(ChainedBlock(f"time/{block}", clocks))
    return joined


def _same_rewards(parts: Sequence[Channel]) -> list[Channel]:
    """Rewards of one type: parts in which f32 holds them exactly are stored so, whatever the others need."""
    wide = next((part for part in parts if part.dtype_name is DType.FLOAT64), None)
    if wide is None:
        return list(parts)
    return [
        wide.at_source(ArrayBlock(REWARD, part.data.astype("<f8")), part.length)
        if part.dtype_name is DType.FLOAT32 and part.step_shape == wide.step_shape
        else part
        for part in parts
    ]


def _form(channel: Channel) -> tuple[Any, ...]:
    """What the parts of a channel have in common."""
    is_regular = channel.start_ns is not None
    clock = (channel.has_own_clock, is_regular, channel.sampling_rate_hz if is_regular else None)
    codec = (channel.codec, channel.extradata) if isinstance(channel, VideoChannel) else None
    return type(channel), channel.dtype_name, channel.step_shape, clock, codec


def _joined_items(
    first: RaggedChannel, block: str, parts: Sequence[Channel], counts: Sequence[int]
) -> Channel:
    offsets, blocks, sizes, start = [np.zeros(1, np.int64)], [], [], 0
    for part, count in zip(parts, counts, strict=True):
        assert isinstance(part, RaggedChannel)
        own = part.offsets
        offsets.append(own[1 : count + 1] + start)
        start += int(own[count])
        blocks.append(part.as_block())
        sizes.append(int(own[count]) * part.step_bytes)
    return first.with_items_at(ChainedBlock(block, blocks, sizes), np.concatenate(offsets))


def _joined_clock(lane: str, episodes: Sequence[Episode], lengths: Sequence[int]) -> Channel | None:
    """One clock of several, where every part has one."""
    clocks: list[Channel | None] = [episode.parts.get((lane,)) for episode in episodes]
    known = [clock for clock in clocks if clock is not None]
    if not known or (len(known) < len(clocks) and lane == TICKS):
        return None
    if len(known) < len(clocks):
        without = clocks.index(None)
        raise ChunkDiscontinuity(
            f"part {without} has no times, unlike others", entry=lane, rule="W-CHK-8"
        )
    sizes = [length * known[0].step_bytes for length in lengths]
    blocks = [clock.source or clock.as_block() for clock in known]
    return known[0].at_source(ChainedBlock(lane, blocks, sizes), sum(lengths))


def _joined_labels(episodes: Sequence[Episode], lengths: Sequence[int]) -> dict[str, Intervals]:
    joined: dict[str, Intervals] = {}
    # For each label, the places in its lane by where an interval ends, or ended: to search all of them takes too long.
    ends: dict[str, dict[int | None, list[int]]] = {}
    start = 0
    for episode, length in zip(episodes, lengths, strict=True):
        for name, intervals in episode.labels.items():
            in_steps = intervals.unit == "steps"
            shift = start if in_steps else 0
            lane = joined.setdefault(name, Intervals(unit=intervals.unit, extra=intervals.extra))
            if lane.unit != intervals.unit:
                raise ChunkDiscontinuity(
                    f"{_title(episode)} counts a label in another unit",
                    entry=f"label/{name}",
                    expected=lane.unit,
                    found=intervals.unit,
                    rule="W-CHK-8",
                )
            border = start if in_steps else int(episode.times_ns()[0]) if length else None
            # Intervals that end at the border, of which the other half may follow.
            ending = ends.setdefault(name, {})
            at_border = sorted(ending.get(border, ()), reverse=True)
            cut = {_about(lane[at]): at for at in at_border if lane[at].end == border}
            for item in intervals:
                first, last = item.start + shift, item.end + shift
                at = cut.get(_about(item)) if first == border and first < last else None
                if at is None:
                    at = len(lane)
                    lane.append(replace(item, start=first, end=last))
                else:
                    lane[at] = replace(lane[at], end=last)
                ending.setdefault(last, []).append(at)
        start += length
    return joined


def _about(item: Interval) -> tuple[Any, ...]:
    """What both halves of an interval have in common that was cut at a border."""
    return item.text, item.source, item.confidence, repr(item.extra)
