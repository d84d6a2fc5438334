"""Episodes that follow one another in time, as one: nothing is copied until it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format.errors import ChunkDiscontinuity
from wshard.blocks import ArrayBlock, ChainedBlock
from wshard.channels import Channel
from wshard.dtypes import DType
from wshard.labels import Interval, Intervals
from wshard.names import REWARD, TICKS, TIMESTAMPS
from wshard.ragged import RaggedChannel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.blocks import Block
    from wshard.episode import Episode

__all__ = ["join"]


def join(episodes: Sequence[Episode]) -> Episode:
    """One episode of several; the facts are those of the first.

    Raises:
        ChunkDiscontinuity: they do not have the same channels, of the same types and shapes.
    """
    first = episodes[0]
    lengths = [episode.length for episode in episodes]
    pieces = [dict(episode.blocks()) for episode in episodes]
    _same_names("blocks", first, episodes, pieces)
    by_channel = {
        id(channel): _joined_channel(block, [piece[block] for piece in pieces], lengths)
        for block, channel in pieces[0].items()
    }
    extras = [dict(episode.extras) for episode in episodes]
    for name, extra in first.extras.items():
        others = [e.get(name) for e in extras]
        if isinstance(extra, Channel) and all(isinstance(other, Channel) for other in others):
            by_channel[id(extra)] = _joined_channel(name, others, lengths)  # type: ignore[arg-type] # just checked
    joined = first.mapped(lambda channel: by_channel.get(id(channel), channel))
    joined.origin = None
    joined._length = sum(lengths)
    joined._ticks = _joined_clock(TICKS, [e._ticks for e in episodes], lengths, 4)
    joined._timestamps = _joined_clock(TIMESTAMPS, [e._timestamps for e in episodes], lengths, 8)
    _same_names("residuals", first, episodes, [episode.residuals for episode in episodes])
    for key, residual in first.residuals.items():
        rest = [episode.residuals[key] for episode in episodes[1:]]
        joined.residuals.adopt(key, residual.joined(rest, lengths))
    joined.labels.clear()
    for name, intervals in _joined_labels(episodes, lengths).items():
        joined.labels.adopt(name, intervals)
    for later in extras[1:]:
        for name, extra in later.items():
            if name not in joined.extras:
                joined.extras.adopt(name, extra)
    return joined


def _same_names(
    what: str, first: Episode, episodes: Sequence[Episode], named: Sequence[Mapping[str, Any]]
) -> None:
    for episode, names in zip(episodes, named, strict=True):
        different = sorted(names.keys() ^ named[0].keys())
        if different:
            has = "has" if different[0] in names else "lacks"
            raise ChunkDiscontinuity(
                f"the parts have different {what}: {_title(episode)} {has} {different[0]!r}",
                expected=f"the {what} of {_title(first)}",
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
    if not has_steps and (first.inferred or first._has_stated_length):
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
    joined = first._shallow()
    joined._values = None
    counts = [part.length for part in parts]
    if first.has_own_clock:
        if first.start_ns is None:
            clocks: list[Block] = [
                part._time_block or ArrayBlock(f"time/{block}", np.asarray(part.timestamps_ns))
                for part in parts
            ]
            joined._times, joined._time_block = None, ChainedBlock(f"time/{block}", clocks)
    else:
        for number, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            if count == length + 1 and number < len(parts) - 1:
                counts[number] = length  # the next part starts with this observation
            elif count not in (length, length + 1):
                raise ChunkDiscontinuity(
                    f"part {number} has another number of entries than steps",
                    entry=block,
                    expected=f"{length} or {length + 1}",
                    found=count,
                    rule="W-CHK-8",
                )
    if isinstance(joined, RaggedChannel):
        _join_items(joined, block, parts, counts)
    else:
        step = first.step_bytes
        blocks = [part.as_block() for part in parts]
        joined._block = ChainedBlock(block, blocks, [count * step for count in counts])
    joined._length = sum(counts)
    return joined


def _same_rewards(parts: Sequence[Channel]) -> list[Channel]:
    """Rewards of one type: parts in which f32 holds them exactly are stored so, whatever the others need."""
    wide = next((part for part in parts if part.dtype is DType.FLOAT64), None)
    if wide is None:
        return list(parts)
    same = []
    for part in parts:
        if part.dtype is DType.FLOAT32 and part.shape == wide.shape:
            widened = wide._shallow()
            widened._values, widened._length = None, part.length
            widened._block = _WidenedBlock(part)
            part = widened
        same.append(part)
    return same


class _WidenedBlock:
    """The values of an f32 channel as f64."""

    is_compressed = True  # never a view of the file

    def __init__(self, channel: Channel) -> None:
        self.name = channel.block or REWARD
        self.nbytes = channel.length * 8
        self._channel = channel

    @property
    def path(self) -> str | None:
        return self._channel.as_block().path

    @property
    def is_cut_cheaply(self) -> bool:
        return self._channel.as_block().is_cut_cheaply

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return self.part(dtype, shape, 0)

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        out = np.empty(shape, dtype)
        self.read_into(start, out.reshape(-1).view(np.uint8))
        return out

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        first, stop = start // 8, -(-(start + len(out)) // 8)
        wide = self._channel[first:stop].astype("<f8").reshape(-1).view(np.uint8)
        out[:] = wide[start - 8 * first :][: len(out)]


def _form(channel: Channel) -> tuple[Any, ...]:
    """What the parts of a channel have in common."""
    is_regular = channel.start_ns is not None
    clock = (channel.has_own_clock, is_regular, channel.sampling_rate_hz if is_regular else None)
    return type(channel), channel.dtype, channel.shape, clock


def _join_items(
    joined: RaggedChannel, block: str, parts: Sequence[Channel], counts: Sequence[int]
) -> None:
    offsets, blocks, sizes, start = [np.zeros(1, np.int64)], [], [], 0
    for part, count in zip(parts, counts, strict=True):
        assert isinstance(part, RaggedChannel)
        own = part.offsets
        offsets.append(own[1 : count + 1] + start)
        start += int(own[count])
        blocks.append(part.as_block())
        sizes.append(int(own[count]) * part.step_bytes)
    joined._offsets, joined._offsets_block = np.concatenate(offsets), None
    joined._block = ChainedBlock(block, blocks, sizes)


def _joined_clock(name: str, clocks: Sequence[Any], lengths: Sequence[int], width: int) -> Any:  # noqa: ANN401 - a block, an array or None
    """One clock of several, where every part has one."""
    without = [number for number, clock in enumerate(clocks) if clock is None]
    if len(without) == len(clocks) or (without and name == TICKS):
        return None
    if without:
        raise ChunkDiscontinuity(
            f"part {without[0]} has no times, unlike others", entry=name, rule="W-CHK-8"
        )
    blocks = [
        ArrayBlock(name, clock) if isinstance(clock, np.ndarray) else clock for clock in clocks
    ]
    return ChainedBlock(name, blocks, [length * width for length in lengths])


def _joined_labels(episodes: Sequence[Episode], lengths: Sequence[int]) -> dict[str, Intervals]:
    joined: dict[str, Intervals] = {}
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
            earlier = lane[:]
            for item in intervals:
                moved = Interval(
                    *(item.start + shift, item.end + shift, item.text, item.source),
                    *(item.confidence, item.extra),
                )
                before = next(
                    (
                        number
                        for number, old in enumerate(earlier)
                        if border is not None
                        and moved.start == border < moved.end
                        and _continues(old, moved)
                    ),
                    None,
                )
                if before is not None:
                    old = lane[before]
                    moved = Interval(
                        old.start, moved.end, old.text, old.source, old.confidence, old.extra
                    )
                    lane[before] = moved
                else:
                    lane.append(moved)
        start += length
    return joined


def _continues(old: Interval, new: Interval) -> bool:
    """Whether an interval was cut in two at a border."""
    return old.end == new.start and (old.text, old.source, old.confidence, old.extra) == (
        *(new.text, new.source, new.confidence, new.extra),
    )
