"""From episodes to a dataset of Hugging Face: a row for each step or for each episode."""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from xxhash import xxh64

from shard_format.errors import InvalidArgument, ShardError, check_choice
from shard_format.extras import require
from shard_format.parallel import map_in_order, thread_count
from shard_train._episode_dataset import EpisodeDataset
from shard_train.huggingface._arrow import (
    array_column,
    array_feature,
    libraries,
    padded_column,
    write_dataset,
)
from shard_train.huggingface._names import EPISODE, EPISODE_ID, FRAME, TIME, TIME_NS, column_of
from wshard.types import REWARD, TERMINATED, TRUNCATED, DType, Episode, RaggedChannel, TextChannel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from shard_train._episodes.store import Files
    from shard_train.huggingface._arrow import ArrowType, Column, Feature, HFDataset, Table
    from wshard.types import Channel

__all__ = ["episodes_to_hf"]

_log = logging.getLogger("wshard")

Images: TypeAlias = Literal["png", "array"]
Named: TypeAlias = tuple[str, Episode]
"""An episode, and what errors call it."""

_COLOURS: Final = (3, 4)
# What a thread is started for; encoding takes much longer than decoding.
_BYTES_PER_THREAD: Final = 1 << 17
# Lossless at any level; higher ones take several times as long for a few percent.
_LEVEL: Final = 1
# Rows that are in memory at a time.
_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 16 << 20


def episodes_to_hf(
    episodes: Files | EpisodeDataset | Episode | Iterable[Episode],
    *,
    rows: Literal["steps", "episodes"] = "steps",
    channels: Iterable[str] | None = None,
    images: Images = "png",
    last_observation: Literal["row", "drop"] = "row",
    path: str | os.PathLike[str] | None = None,
) -> HFDataset:
    """A `datasets.Dataset` of episodes.

    With `rows="steps"` there is one row for each step: `episode_index`, `episode_id`, `frame_index`, `timestamp` (seconds
    since the start of the episode; None without a clock), `timestamp_ns` if times were recorded; `observation.<channel>`, `action.<channel>`,
    `reward`, `terminated` and `truncated`, None where the episode has none. Numbers keep their types; bf16 becomes
    float32, with a note in the `id` of its type. `episodes_from_hf` makes the same episodes of these rows, as far as it is
    in them: metadata, labels and channels that do not follow the steps are not. Channels that are left out are
    reported to the logger `wshard`.

    With `rows="episodes"`, one row has all steps of an episode, together with `episode_id`, `env_id`, `length`,
    `tick_hz` and `metadata`.

    The rows are written to an Arrow file, a few megabytes in memory at a time, which the dataset then maps.

    Args:
        episodes: an `EpisodeDataset`, whose channels are taken; what its first argument may be; or episodes.
        rows: `"steps"` or `"episodes"`.
        channels: names, or block names such as `"omen/state/dreamer"`; None for all observations and actions that
            follow the steps.
        images: how cameras (uint8, three or four colours) are stored in rows of steps: `"png"`, without loss, with
            the type `Image`; or `"array"`.
        last_observation: what becomes of an observation after the last action. `"row"`: a row of its own, in which
            actions, reward and ends are None. `"drop"`: it is left out, and every row is a whole step.
        path: of the Arrow file; an existing one is replaced. None for one in the cache of `datasets`, whose name
            depends on the episodes, so that it is replaced when the same episodes are read again.

    Raises:
        MissingExtra: `datasets` is not installed, or Pillow is not and there are cameras.
        InvalidArgument: episodes differ in their channels, or an argument is not valid.
        ShardError: a subclass that says which file cannot be read, and why.
    """
    libraries()
    check_choice("rows", rows, ("steps", "episodes"))
    check_choice("images", images, ("png", "array"))
    check_choice("last_observation", last_observation, ("row", "drop"))
    if isinstance(channels, str):
        raise InvalidArgument("channels takes a list of names", hint=f"channels=[{channels!r}]")
    named, known, identity = _series(episodes)
    names = known if channels is None else list(channels)
    first = next(named, None)
    if first is None:
        raise InvalidArgument("no episodes")
    try:
        table = (
            EpisodeRows(*first, names)
            if rows == "episodes"
            else StepRows(*first, names, images, keeps_last=last_observation == "row")
        )
    except ShardError as error:
        raise error.located(path=first[0]) from None
    text = f"{identity} {table.features}".encode(errors="surrogateescape")
    name = f"{rows}-{last_observation}-{xxh64(text).hexdigest()}"
    return write_dataset(_batches(table, chain([first], named)), table.features, path, name)


def _batches(rows: StepRows | EpisodeRows, named: Iterable[Named]) -> Iterator[Table]:
    for number, (name, episode) in enumerate(named):
        try:
            yield from rows.batches(number, episode)
        except ShardError as error:  # noqa: PERF203 - names the episode
            raise error.located(path=name) from None


# --- episodes


def _series(
    given: Files | EpisodeDataset | Episode | Iterable[Episode],
) -> tuple[Iterator[Named], list[str] | None, str]:
    """Return the episodes one after the other, the channels of a dataset, and a text that identifies the files."""
    if isinstance(given, Episode):
        given = [given]
    if isinstance(given, Iterator) or (
        isinstance(given, (list, tuple)) and any(isinstance(one, Episode) for one in given)
    ):
        return _in_memory(given), None, secrets.token_hex(8)
    if isinstance(given, EpisodeDataset):
        dataset, channels = given, [*given.channels, *given.ragged_keys]
    else:
        # Which episodes there are; the rows say themselves which channels they have.
        dataset, channels = EpisodeDataset(given, window=1, channels=[]), None  # type: ignore[arg-type] # says if not
    data = f"{dataset.fingerprint} {dataset.data_fingerprint}"
    return _opened(dataset), channels, f"{os.path.dirname(dataset.paths[0])} {data}"


def _in_memory(given: Iterable[Episode]) -> Iterator[Named]:
    for number, episode in enumerate(given):
        if not isinstance(episode, Episode):
            raise InvalidArgument("not an episode", found=type(episode).__name__)
        yield episode.id or f"episode {number}", episode


def _opened(dataset: EpisodeDataset) -> Iterator[Named]:
    for number, path in enumerate(dataset.paths):
        with dataset.open_episode(number) as episode:
            yield path, episode


def _chosen(
    name: str, episode: Episode, channels: list[str] | None
) -> Iterator[tuple[str, str, Channel]]:
    """Yield the channels for columns: the column, the name by which episodes find the channel, the channel."""
    if channels is not None:
        for lookup in channels:
            channel = episode.find(lookup)
            block = next((b for b, other in episode.blocks() if other is channel), lookup)
            yield column_of(block), lookup, channel
        return
    left = []
    for block, channel in episode.blocks():
        is_lane = block.startswith(("signal/", "action/"))
        if is_lane and not channel.has_own_clock:
            yield column_of(block), block, channel
        elif is_lane or block.startswith(("omen/", "uncert/")):
            left.append(block)
    left += [f"label/{label}" for label in episode.labels]
    left += [f"residual/{residual}" for residual in episode.residuals]
    if left:
        _log.warning("%s: not in the rows: %s", name, ", ".join(left))


# --- columns


class ChannelColumn:
    """A column for a channel, of one episode or of many that are alike.

    With `images="png"` cameras are stored as images. `is_whole`: a row holds all steps of an episode, not one.
    """

    def __init__(self, channel: Channel, images: Images, *, is_whole: bool = False) -> None:
        datasets, _ = libraries()
        self._is_whole = is_whole
        self._form = _form(channel)
        self._is_image = images == "png" and not is_whole and _is_camera(channel)
        dtype = channel.dtype_name.numpy_dtype
        self.feature: Feature
        if isinstance(channel, TextChannel):
            text = datasets.Value("string")
            self.feature = datasets.Sequence(text) if is_whole else text
        elif self._is_image:
            self.feature = datasets.Image()
        elif isinstance(channel, RaggedChannel):
            self.feature = None if is_whole else array_feature(dtype, (None, *channel.step_shape))
        else:
            rows = (None,) if is_whole else ()
            self.feature = array_feature(dtype, (*rows, *channel.step_shape))
        if self.feature is None:
            raise InvalidArgument(
                "`datasets` has no type of column for this channel",
                entry=channel.block or channel.name,
                expected="plain numbers with at most 5 axes in a row",
                found=repr(channel),
                hint="choose others with channels=[…]",
            )
        self.bytes_per_step = max(1, channel.nbytes // max(1, channel.length))

    def check(self, channel: Channel) -> None:
        """Holds the channel of another episode against that of the first."""
        if _form(channel) != self._form:
            raise InvalidArgument(
                "an episode has a different kind of channel than the others",
                entry=channel.block or channel.name,
                expected=self._form,
                found=_form(channel),
            )

    def read(self, kind: ArrowType, channel: Channel, start: int, stop: int) -> Column:
        """The steps from `start` to `stop`, one row each; or one row for all of them."""
        _, pa = libraries()
        steps: Any = channel.read_steps(start, stop)
        if isinstance(channel, TextChannel):
            return pa.array([steps] if self._is_whole else steps, kind)
        if isinstance(channel, RaggedChannel):
            offsets = np.concatenate(([0], np.cumsum([len(step) for step in steps])))
            return array_column(kind, _joined(steps, channel), offsets.astype(np.int64))
        if self._is_image:
            threads = thread_count(None, steps.nbytes, _BYTES_PER_THREAD)
            return pa.array(
                [{"bytes": png, "path": None} for png in map_in_order(steps, _png, threads)], kind
            )
        return array_column(kind, steps, np.array([0, len(steps)]) if self._is_whole else None)


def _form(channel: Channel) -> str:
    layout = "dense" if channel.layout == "video" else channel.layout  # decoded here
    return f"{layout} {channel.dtype_name} {list(channel.step_shape)}"


def _is_camera(channel: Channel) -> bool:
    shape = channel.step_shape
    is_colour = len(shape) == 3 and shape[2] in _COLOURS and min(shape) > 0
    is_array = channel.layout in ("dense", "video")
    return is_array and channel.dtype_name is DType.UINT8 and is_colour


def _joined(steps: list[NDArray[Any]], channel: Channel) -> NDArray[Any]:
    if steps:
        return np.concatenate(steps)
    return np.zeros((0, *channel.step_shape), channel.dtype_name.numpy_dtype)


def _png(frame: NDArray[np.uint8]) -> bytes:
    image = require("PIL.Image", "images").fromarray(frame)
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=_LEVEL)
    return stream.getvalue()


# --- rows


class _Rows(ABC):
    """The columns of the channels, of the reward and of the ends, for episodes that are alike."""

    def __init__(
        self, named: Named, channels: list[str] | None, images: Images, *, is_whole: bool
    ) -> None:
        name, episode = named
        self._channels = {
            column: (lookup, ChannelColumn(channel, images, is_whole=is_whole))
            for column, lookup, channel in _chosen(name, episode, channels)
        }
        reward, steps = episode.rewards, (None,) if is_whole else ()
        dtype = np.dtype(np.float32) if reward is None else reward.dtype_name.numpy_dtype
        shape = () if reward is None else reward.step_shape
        flags = array_feature(np.dtype(np.bool_), steps)
        datasets, _ = libraries()
        self.features = datasets.Features(
            {
                **self._leading(episode),
                **{column: made.feature for column, (_, made) in self._channels.items()},
                REWARD: array_feature(dtype, (*steps, *shape)),
                TERMINATED: flags,
                TRUNCATED: flags,
            }
        )
        self._types = {field.name: field.type for field in self.features.arrow_schema}

    @abstractmethod
    def _leading(self, episode: Episode) -> dict[str, Feature]:
        """The columns before those of the channels."""

    def _find(self, episode: Episode) -> dict[str, Channel]:
        """Return the channel of each column, and check that it is like that of the first episode."""
        found: dict[str, Channel] = {}
        for column, (lookup, made) in self._channels.items():
            found[column] = episode.find(lookup)
            made.check(found[column])
        return found

    def _batch(self, columns: dict[str, Column]) -> Table:
        _, pa = libraries()
        schema = self.features.arrow_schema
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _ends(episode: Episode) -> dict[str, Channel | None]:
    return {
        REWARD: episode.rewards,
        TERMINATED: episode.terminations,
        TRUNCATED: episode.truncations,
    }


class StepRows(_Rows):
    """A row for each step."""

    def __init__(
        self,
        name: str,
        episode: Episode,
        channels: list[str] | None,
        images: Images,
        *,
        keeps_last: bool,
    ) -> None:
        self._keeps_last = keeps_last
        self._has_times = episode.timestamps_ns is not None
        super().__init__((name, episode), channels, images, is_whole=False)
        step = sum(made.bytes_per_step for _, made in self._channels.values())
        self._rows = max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, step)))

    def _leading(self, episode: Episode) -> dict[str, Feature]:
        datasets, _ = libraries()
        whole = datasets.Value("int64")
        return {
            EPISODE: whole,
            EPISODE_ID: datasets.Value("string"),
            FRAME: whole,
            TIME: datasets.Value("float64"),
            **({TIME_NS: whole} if self._has_times else {}),
        }

    def batches(self, number: int, episode: Episode) -> Iterator[Table]:
        """Yield the rows of an episode, some at a time."""
        found, length = self._find(episode), episode.length
        for channel in found.values():
            _check_length(channel, length)
        most = max((channel.length for channel in found.values()), default=length)
        count = most if self._keeps_last else length
        times = self._times(episode, count)
        for start in range(0, count, self._rows):
            part = slice(start, min(start + self._rows, count))
            yield self._part(number, episode, found, times, part)

    def _times(self, episode: Episode, count: int) -> NDArray[np.int64] | None:
        """Return the times of the rows; None for an episode that has neither times nor a rate."""
        if episode.timestamps_ns is not None and not self._has_times:
            raise InvalidArgument(
                "the episode has recorded times, and those before it have not",
                entry="time/timestamps_ns",
            )
        if episode.timestamps_ns is None and episode.timebase.tick_hz is None:
            return None
        times = episode.times_ns()
        if count > len(times):
            longer = next(c for c in episode.observations.values() if c.length == count)
            times = episode.times_ns(longer)
        return times

    def _part(
        self,
        number: int,
        episode: Episode,
        found: dict[str, Channel],
        times: NDArray[np.int64] | None,
        part: slice,
    ) -> Table:
        _, pa = libraries()
        start, stop = part.start, part.stop
        count = stop - start
        columns: dict[str, Column] = {
            EPISODE: pa.array(np.full(count, number)),
            EPISODE_ID: pa.array([episode.id] * count, pa.string()),
            FRAME: pa.array(np.arange(start, stop)),
            TIME: pa.nulls(count, pa.float64())
            if times is None
            else pa.array((times[part] - times[0]) / 1e9),
        }
        if self._has_times:
            recorded = episode.timestamps_ns
            known = np.zeros(0, np.int64) if recorded is None else recorded[part]
            columns[TIME_NS] = padded_column(pa.array(known), count)
        for column, channel in found.items():
            made, end = self._channels[column][1], min(stop, channel.length)
            read = made.read(self._types[column], channel, min(start, end), end)
            columns[column] = padded_column(read, count)
        for column, flat in _ends(episode).items():
            columns[column] = padded_column(_flat(self._types[column], flat, part), count)
        return self._batch(columns)


def _flat(kind: ArrowType, channel: Channel | None, part: slice) -> Column:
    _, pa = libraries()
    if channel is None:
        return pa.nulls(0, kind)
    values = channel.read_steps(min(part.start, channel.length), min(part.stop, channel.length))
    column = array_column(kind, np.asarray(values))
    if column.type != kind:
        raise InvalidArgument(
            "an episode has a different kind of reward than the others",
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


class EpisodeRows(_Rows):
    """A row for each episode, with all its steps."""

    def __init__(self, name: str, episode: Episode, channels: list[str] | None) -> None:
        super().__init__((name, episode), channels, "array", is_whole=True)

    def _leading(self, episode: Episode) -> dict[str, Feature]:
        datasets, _ = libraries()
        json_type = getattr(datasets, "Json", None)
        text = datasets.Value("string")
        return {
            EPISODE_ID: text,
            "env_id": text,
            "length": datasets.Value("int64"),
            "tick_hz": datasets.Value("float64"),
            "metadata": text if json_type is None else json_type(),
            TIME_NS: array_feature(np.dtype(np.int64), (None,)),
        }

    def batches(self, number: int, episode: Episode) -> Iterator[Table]:
        """Yield the row of an episode."""
        _, pa = libraries()
        types = self._types
        metadata = pa.array([json.dumps(episode.metadata, ensure_ascii=False)], pa.string())
        if isinstance(types["metadata"], pa.ExtensionType):
            metadata = pa.ExtensionArray.from_storage(types["metadata"], metadata)
        whole = {name: None if one is None else one.data for name, one in _ends(episode).items()}
        whole[TIME_NS] = episode.timestamps_ns
        yield self._batch(
            {
                EPISODE_ID: pa.array([episode.id], pa.string()),
                "env_id": pa.array([episode.env_id], pa.string()),
                "length": pa.array([episode.length], pa.int64()),
                "tick_hz": pa.array([episode.timebase.tick_hz], pa.float64()),
                "metadata": metadata,
                **{
                    column: self._channels[column][1].read(
                        types[column], channel, 0, channel.length
                    )
                    for column, channel in self._find(episode).items()
                },
                **{
                    name: pa.nulls(1, types[name])
                    if values is None
                    else array_column(types[name], values, np.array([0, len(values)]))
                    for name, values in whole.items()
                },
            }
        )
