"""Rows of one episode as an `Episode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._parallel import map_in_order, thread_count
from shard_format.errors import BadValue, InvalidArgument, ShardError
from shard_format.registry import DEFAULT_LIMITS
from shardpack._hf_arrow import libraries, numbers_of, whole_column, with_content
from shardpack.decoding import decode_image, decode_jpeg
from wshard.channels import Channel, Modality
from wshard.episode import Episode
from wshard.huggingface.names import EPISODE_ID, TIME, TIME_NS
from wshard.names import REWARD, TERMINATED, TIMESTAMPS, TRUNCATED, parse_block
from wshard.ragged import RaggedChannel, TextChannel
from wshard.timebase import Timebase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardpack._hf_arrow import Column, Feature, Table

__all__ = ["episode_of"]

_JPEG: Final = b"\xff\xd8\xff"
# What a thread is started for, in bytes of compressed images.
_BYTES_PER_THREAD: Final = 1 << 14
# Clocks that are off by no more than this are regular: seconds are often float32.
_TOLERANCE_S: Final = 1e-3


def episode_of(
    table: Table,
    plan: Mapping[str, str],
    features: Mapping[str, Feature],
    default_id: str,
    fps: float | None,
) -> Episode:
    """An episode of all rows of a table.

    Args:
        table: the rows, in order.
        plan: the block that each column becomes.
        features: the types of the columns.
        default_id: of an episode that has none.
        fps: its rate; None for what the rows say.
    """
    found: dict[str, Column] = {}
    for name in plan:
        column = whole_column(table, name)
        known = _known(column, name)
        if known:
            found[name] = column.slice(0, known)
    counts = {plan[name]: len(column) for name, column in found.items()}
    if TIME_NS in table.column_names:
        # The observation after the last step has no time of its own.
        counts[TIMESTAMPS] = _known(whole_column(table, TIME_NS), TIME_NS)
    length = _length({block: n for block, n in counts.items() if n}, table.num_rows)
    episode = Episode(_id(table) or default_id, length=length)
    _set_clock(episode, table, length, fps)
    for name, column in found.items():
        try:
            channel = _channel(column, features.get(name))
        except ShardError as error:
            raise error.located(entry=name) from None
        _put(episode, plan[name], channel)
    return episode


def _known(column: Column, name: str) -> int:
    """How many rows have something: all, all but the last, or none."""
    known: int = len(column) - column.null_count
    if not known or column.null_count > 1 or (column.null_count and column[-1].is_valid):
        if known:
            raise BadValue(
                "a step in the middle of an episode is missing",
                entry=name,
                expected=f"{len(column)} values, or {len(column) - 1} and None in the last row",
                found=f"{known} values",
            )
        return 0
    return known


def _length(counts: Mapping[str, int], rows: int) -> int:
    """The number of steps. Only observations may have one entry more."""
    steps = {block: n for block, n in counts.items() if not block.startswith("signal/")}
    length = min(steps.values(), default=max(counts.values(), default=rows))
    for block, count in counts.items():
        if count not in (length, length + block.startswith("signal/")):
            raise BadValue(
                "the columns of an episode have different lengths",
                entry=block,
                expected=f"{length} values",
                found=f"{count} values",
            )
    return length


def _id(table: Table) -> str | None:
    if EPISODE_ID not in table.column_names:
        return None
    first = table.column(EPISODE_ID)[0].as_py()
    return first if isinstance(first, str) and first else None


def _set_clock(episode: Episode, table: Table, length: int, fps: float | None) -> None:
    if fps is not None:
        episode.timebase = Timebase(tick_hz=float(fps))
    if TIME_NS in table.column_names:
        recorded = whole_column(table, TIME_NS).slice(0, length)
        if not recorded.null_count:
            episode.timestamps_ns = recorded.to_numpy(zero_copy_only=False)
            return
    if fps is None and TIME in table.column_names:
        column = whole_column(table, TIME).slice(0, length)
        if not column.null_count and length:
            _set_seconds(episode, column.to_numpy(zero_copy_only=False).astype(np.float64))


def _set_seconds(episode: Episode, seconds: NDArray[np.float64]) -> None:
    """A rate if the times are regular, else the times."""
    span = float(seconds[-1] - seconds[0])
    start_ns = round(float(seconds[0]) * 1e9)
    if len(seconds) < 2:
        episode.timebase.epoch_ns = start_ns
        return
    rate = (len(seconds) - 1) / span if span > 0 else 0.0
    regular = seconds[0] + np.arange(len(seconds)) * (span / (len(seconds) - 1))
    if rate > 0 and np.abs(seconds - regular).max() <= min(_TOLERANCE_S, 0.1 / rate):
        # Of a rate such as 30 Hz, divisions leave 29.999999.
        rounded = round(rate, 3)
        is_close = abs(rounded - rate) <= 1e-5 * rate
        episode.timebase = Timebase(tick_hz=rounded if is_close else rate, epoch_ns=start_ns)
    else:
        episode.timestamps_ns = np.rint(seconds * 1e9).astype(np.int64)


def _channel(column: Column, feature: Feature) -> Channel:
    datasets, pa = libraries()
    types = pa.types
    if isinstance(feature, datasets.Image):
        return Channel(data=_pictures(column), modality=Modality.RGB)
    if types.is_string(column.type) or types.is_large_string(column.type):
        return TextChannel(data=column.to_pylist())
    if isinstance(feature, datasets.ClassLabel):
        return TextChannel(data=[feature.int2str(number) for number in column.to_pylist()])
    rows = numbers_of(column, feature)
    if rows is None:
        raise InvalidArgument(
            "this column cannot be a channel",
            expected="numbers, lists of numbers, text or images",
            found=str(column.type),
            hint="columns={name: None} leaves it out",
        )
    if rows.offsets is not None:
        return RaggedChannel(values=rows.values, offsets=rows.offsets)
    return Channel(data=rows.values)


def _pictures(column: Column) -> NDArray[Any]:
    files = with_content(column).to_pylist()
    total = sum(len(file["bytes"]) for file in files)
    frames = map_in_order(files, _decoded, thread_count(None, total, _BYTES_PER_THREAD))
    if len({frame.shape for frame in frames}) > 1:
        shapes = sorted({frame.shape for frame in frames})
        raise BadValue("images of an episode differ in their size", found=shapes)
    return np.stack(frames)


def _decoded(file: Mapping[str, Any]) -> NDArray[Any]:
    data = memoryview(file["bytes"])
    decode = decode_jpeg if bytes(data[:3]) == _JPEG else decode_image
    return decode(data, DEFAULT_LIMITS.max_decompressed_bytes)


def _put(episode: Episode, block: str, channel: Channel) -> None:
    if block in (REWARD, TERMINATED, TRUNCATED):
        channel.name = block
        if block == REWARD:
            episode.rewards = channel
        elif block == TERMINATED:
            episode.terminations = channel
        else:
            episode.truncations = channel
        return
    lane, name, model, kind = parse_block(block)
    if lane == "signal":
        episode.observations[name] = channel
    elif lane == "action":
        episode.actions[name] = channel
    elif lane == "omen":
        episode.omens[name][model] = channel
    else:
        episode.uncerts[name][model][kind] = channel
