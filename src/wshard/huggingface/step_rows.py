"""A row for each step of an episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import InvalidArgument
from shardpack._hf_arrow import array_column, array_feature, libraries, padded_column
from wshard.huggingface.channel_columns import ChannelColumn
from wshard.huggingface.episodes import chosen_channels, located
from wshard.huggingface.names import EPISODE, EPISODE_ID, FRAME, TIME, TIME_NS, column_of
from wshard.names import REWARD, TERMINATED, TRUNCATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardpack._hf_arrow import ArrowType, Column, Feature, Table
    from wshard.channels import Channel
    from wshard.episode import Episode
    from wshard.huggingface.channel_columns import Images
    from wshard.huggingface.episodes import Named

__all__ = ["StepRows"]

_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 16 << 20


class StepRows:
    """The rows of the steps of episodes that are alike."""

    def __init__(
        self, first: Named, channels: list[str] | None, images: Images, *, keeps_last: bool
    ) -> None:
        datasets, _ = libraries()
        name, episode = first
        self._keeps_last = keeps_last
        with located(name):
            chosen = chosen_channels(name, episode, channels)
            self._channels = {
                column_of(block): (lookup, ChannelColumn(channel, images))
                for block, lookup, channel in chosen
            }
        reward = episode.rewards
        dtype = np.dtype(np.float32) if reward is None else reward.dtype.numpy_dtype
        self._has_times = episode.timestamps_ns is not None
        flag = datasets.Value("bool")
        self._flat: dict[str, Feature] = {
            REWARD: array_feature(dtype, () if reward is None else reward.shape),
            TERMINATED: flag,
            TRUNCATED: flag,
        }
        whole = datasets.Value("int64")
        places = {EPISODE: whole, EPISODE_ID: datasets.Value("string"), FRAME: whole}
        times = {TIME_NS: whole} if self._has_times else {}
        self.features = datasets.Features(
            {
                **places,
                TIME: datasets.Value("float64"),
                **times,
                **{column: made.feature for column, (_, made) in self._channels.items()},
                **self._flat,
            }
        )
        self._types = {field.name: field.type for field in self.features.arrow_schema}
        step = sum(made.bytes_per_step for _, made in self._channels.values())
        self._rows = max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, step)))

    def batches(self, number: int, named: Named) -> Iterator[Table]:
        """The rows of an episode, some at a time."""
        name, episode = named
        with located(name):
            length = episode.length
            found: dict[str, Channel] = {}
            for column, (lookup, made) in self._channels.items():
                channel = found[column] = episode.find(lookup)
                made.check(channel)
                _check_length(channel, length)
            most = max((channel.length for channel in found.values()), default=length)
            count = most if self._keeps_last else length
            times = self._times(episode, count)
        for start in range(0, count, self._rows):
            stop = min(start + self._rows, count)
            with located(name):
                yield self._batch(number, episode, found, times, slice(start, stop))

    def _times(self, episode: Episode, count: int) -> NDArray[np.int64]:
        if episode.timestamps_ns is not None and not self._has_times:
            raise InvalidArgument(
                "the episode has recorded times, and those before it have not",
                entry="time/timestamps_ns",
            )
        times = episode.times_ns()
        if count > len(times):
            longer = next(c for c in episode.observations.values() if c.length == count)
            times = episode.times_ns(longer)
        return times

    def _batch(
        self,
        number: int,
        episode: Episode,
        found: dict[str, Channel],
        times: NDArray[np.int64],
        part: slice,
    ) -> Table:
        _, pa = libraries()
        start, stop = part.start, part.stop
        count = stop - start
        columns: dict[str, Column] = {
            EPISODE: pa.array(np.full(count, number)),
            EPISODE_ID: pa.array([episode.id] * count, pa.string()),
            FRAME: pa.array(np.arange(start, stop)),
            TIME: pa.array((times[part] - times[0]) / 1e9),
        }
        if self._has_times:
            recorded = episode.timestamps_ns
            known = np.zeros(0, np.int64) if recorded is None else recorded[part]
            columns[TIME_NS] = padded_column(pa.array(known), count)
        for column, channel in found.items():
            made, kind = self._channels[column][1], self._types[column]
            end = min(stop, channel.length)
            columns[column] = padded_column(made.read(kind, channel, min(start, end), end), count)
        for column, flat in zip(
            self._flat, (episode.rewards, episode.terminations, episode.truncations), strict=True
        ):
            columns[column] = padded_column(_flat(self._types[column], flat, part), count)
        schema = self.features.arrow_schema
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _flat(kind: ArrowType, channel: Channel | None, part: slice) -> Column:
    _, pa = libraries()
    if channel is None:
        return pa.nulls(0, kind)
    values = channel.read_steps(min(part.start, channel.length), min(part.stop, channel.length))
    column = array_column(kind, np.asarray(values))
    if column.type != kind:
        raise InvalidArgument(
            "an episode has another kind of reward than the others",
            entry=channel.block or channel.name,
            expected=str(kind),
            found=str(column.type),
        )
    return column


def _check_length(channel: Channel, length: int) -> None:
    if channel.has_own_clock or channel.length not in (length, length + 1):
        raise InvalidArgument(
            "rows of steps cannot hold this channel",
            entry=channel.block or channel.name,
            expected=f"a channel that follows the {length} steps",
            found=repr(channel),
            hint="leave it out with channels=[…], or bring it to the steps with Episode.align",
        )
