"""A row for each episode, or for each window: many steps in one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument
from shardpack._hf_arrow import array_column, array_feature, libraries
from wshard.huggingface.channel_columns import ChannelColumn
from wshard.huggingface.episodes import chosen_channels, located
from wshard.huggingface.names import EPISODE_ID, TIME_NS, column_of
from wshard.names import REWARD, TERMINATED, TRUNCATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardpack._hf_arrow import ArrowType, Column, Feature, Table
    from wshard.dataset import EpisodeDataset
    from wshard.huggingface.episodes import Named

__all__ = ["EpisodeRows", "WindowRows"]

# Windows of so many bytes are in memory at a time.
_MOST_BYTES: Final = 16 << 20


class EpisodeRows:
    """A row for each episode, with all its steps."""

    def __init__(self, first: Named, channels: list[str] | None) -> None:
        datasets, _ = libraries()
        name, episode = first
        with located(name):
            self._channels = {
                column_of(block): (lookup, ChannelColumn(channel, "array", is_whole=True))
                for block, lookup, channel in chosen_channels(name, episode, channels)
            }
        json_type = getattr(datasets, "Json", None)
        text, number = datasets.Value("string"), datasets.Value("float64")
        dtype = (
            np.dtype(np.float32) if episode.rewards is None else episode.rewards.dtype.numpy_dtype
        )
        flags = array_feature(np.dtype(np.bool_), (None,))
        self.features = datasets.Features(
            {
                EPISODE_ID: text,
                "env_id": text,
                "length": datasets.Value("int64"),
                "tick_hz": number,
                "metadata": text if json_type is None else json_type(),
                TIME_NS: array_feature(np.dtype(np.int64), (None,)),
                **{column: made.feature for column, (_, made) in self._channels.items()},
                REWARD: array_feature(dtype, (None,)),
                TERMINATED: flags,
                TRUNCATED: flags,
            }
        )

    def batches(self, number: int, named: Named) -> Iterator[Table]:
        """The row of an episode."""
        _, pa = libraries()
        name, episode = named
        types = {field.name: field.type for field in self.features.arrow_schema}
        metadata = pa.array([json.dumps(episode.metadata, ensure_ascii=False)], pa.string())
        if isinstance(types["metadata"], pa.ExtensionType):
            metadata = pa.ExtensionArray.from_storage(types["metadata"], metadata)
        columns: dict[str, Column] = {
            EPISODE_ID: pa.array([episode.id], pa.string()),
            "env_id": pa.array([episode.env_id], pa.string()),
            "length": pa.array([episode.length], pa.int64()),
            "tick_hz": pa.array([float(episode.timebase.tick_hz)], pa.float64()),
            "metadata": metadata,
        }
        with located(name):
            for column, (lookup, made) in self._channels.items():
                channel = episode.find(lookup)
                made.check(channel)
                columns[column] = made.read(types[column], channel, 0, channel.length)
            recorded = episode.timestamps_ns
            columns[TIME_NS] = _whole(types[TIME_NS], recorded)
            for column, flat in zip(
                (REWARD, TERMINATED, TRUNCATED),
                (episode.rewards, episode.terminations, episode.truncations),
                strict=True,
            ):
                columns[column] = _whole(types[column], None if flat is None else flat.data)
        schema = self.features.arrow_schema
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _whole(kind: ArrowType, values: NDArray[Any] | None) -> Column:
    _, pa = libraries()
    if values is None:
        return pa.nulls(1, kind)
    return array_column(kind, values, np.array([0, len(values)]))


class WindowRows:
    """A row for each window of a data set.

    Raises:
        InvalidArgument: `datasets` has no type for what a window has.
    """

    def __init__(self, dataset: EpisodeDataset) -> None:
        datasets, _ = libraries()
        self._dataset = dataset
        features: dict[str, Feature] = {}
        first = dataset.batch([0])
        size = sum(values.nbytes for values in first.values())
        self._together = max(1, _MOST_BYTES // max(1, size))
        for name, values in first.items():
            feature = array_feature(values.dtype, values.shape[1:])
            if feature is None:
                raise InvalidArgument(
                    "`datasets` has no type of column for these windows",
                    entry=name,
                    expected="plain numbers with at most 5 axes in a row",
                    found=f"{values.dtype} {list(values.shape[1:])}",
                )
            features[name] = feature
        self.features = datasets.Features(features)

    def batches(self) -> Iterator[Table]:
        """All windows, some at a time."""
        _, pa = libraries()
        schema, count = self.features.arrow_schema, len(self._dataset)
        for start in range(0, count, self._together):
            arrays = self._dataset.batch(np.arange(start, min(start + self._together, count)))
            columns = [array_column(field.type, np.asarray(arrays[field.name])) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
