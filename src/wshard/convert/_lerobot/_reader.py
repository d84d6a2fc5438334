"""Reads LeRobot datasets."""

from __future__ import annotations

import json
import marshal
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import numpy as np

from shard_format.cache import BoundedCache
from shard_format.errors import BadMetadata, BadValue, SizeMismatch
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel
from wshard._episode import Episode
from wshard._lanes import block_name
from wshard._metadata import Timebase
from wshard._video import VideoChannel
from wshard._video_file import VideoFile
from wshard.convert._arrays import channel_of, picture_channel, text_channel
from wshard.convert._lerobot._layout import (
    DEFAULT_FEATURES,
    INSTRUCTION,
    SUBTASKS,
    SUCCESS,
    TIME,
    Feature,
    addresses,
    located,
    read_info,
    strict_json,
)
from wshard.convert._lerobot._meta import Meta, split_of
from wshard.convert._lerobot._tables import (
    EPISODE,
    ColumnRows,
    DataFile,
    NumberColumn,
    pictures_of,
)
from wshard.convert._model import DatasetReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wshard._lanes import Address
    from wshard.convert._lerobot._meta import MetaEntry
    from wshard.convert._model import Notes, ReadOptions

_OPEN_TABLES: Final = 1
_OPEN_VIDEOS: Final = 16
_SMALL: Final = 1 << 16
_MOST_TOLD: Final = 5
# Times are 32-bit seconds: an hour at 30 Hz is exact to a tenth of a millisecond.
_TOLERANCE_S: Final = 2e-4
# Decoders scale 12 bits to 16.
_DEPTH: Final = (
    "Codes of depth, the upper 12 of 16 bits: code = value >> 4 means, in metres, "
    "exp(log(min + shift) + code / 4095 * (log(max + shift) - log(min + shift))) - shift if use_log, "
    "else min + code / 4095 * (max - min), with the parameters in the field depth"
)
_FOR_RECORDS: Final = "JSON text"


class LeRobotReader(DatasetReader):
    """A LeRobot dataset. Parquet and mp4 files are opened when an episode needs them."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._info = read_info(path)
        self._addresses = addresses(self._info.features)
        self._meta = Meta(path, self._info)
        self._names = [f"episode_{entry.number}" for entry in self._meta.entries]
        # A list, because the keys of metadata have no order.
        features = self._info.fields["features"].items()
        described = [{"name": name, **fields} for name, fields in features]
        self._features = marshal.dumps(strict_json(described))
        self._files = BoundedCache[tuple[int, ...], DataFile](count=_OPEN_TABLES)
        # Lazy channels hold on to their file: a file that left the cache is closed with the last of them.
        self._used = WeakSet[DataFile]()
        self._videos = BoundedCache[str, VideoFile](
            count=_OPEN_VIDEOS, on_evict=VideoFile.close, holds_files=True
        )

    def names(self) -> Sequence[str]:
        return self._names

    def close(self) -> None:
        self._videos.clear()
        for file in list(self._used):
            file.close()
        self._files.clear()
        self._meta.close()

    # --- episodes

    def read(self, number: int, notes: Notes) -> Episode:
        entry = self._meta.entries[number]
        file = self._data_file(entry)
        start, stop = file.episode(entry.number)
        if stop - start != entry.length:
            raise SizeMismatch(
                "an episode has a different number of steps than its table",
                path=file.path,
                entry=self._names[number],
                expected=f"{entry.length} steps",
                found=f"{stop - start}",
            )
        episode = Episode(
            self._names[number],
            length=entry.length,
            timebase=Timebase(tick_hz=self._info.fps),
            metadata=self._metadata(entry, notes),
        )
        _Columns(self, entry, episode, file, start, notes).add()
        for name, feature in self._info.features.items():
            if feature.dtype == "video":
                self._add_video(episode, name, feature, entry, notes)
        return episode

    def _metadata(self, entry: MetaEntry, notes: Notes) -> dict[str, Any]:
        own: dict[str, Any] = {
            "version": self._info.version,
            "episode_index": entry.number,
            "features": marshal.loads(self._features),
        }
        statistics, more = self._meta.details(entry)
        if more:
            own["episode"] = more
            notes.kept("episodes", "metadata/lerobot/episode")
        if self._meta.subtasks is not None:
            own["subtasks"] = list(self._meta.subtasks)
            notes.kept(SUBTASKS, "metadata/lerobot/subtasks")
        found: dict[str, Any] = {"dataset": marshal.loads(self._meta.facts), "lerobot": own}
        notes.kept("meta/info.json", "metadata/dataset")
        if statistics:
            found["statistics"] = statistics
            notes.kept("stats", "metadata/statistics")
        stated, held = self._info.fields.get("total_episodes"), len(self._meta.entries)
        if stated not in (None, held):
            notes.dropped("episodes", f"the dataset states {stated} episodes and holds {held}")
        for name in self._meta.unread:
            notes.dropped(name, "it is about the dataset, and episodes do not have it")
        if self._meta.unused_tasks:
            told = ", ".join(map(repr, self._meta.unused_tasks[:_MOST_TOLD]))
            rest = len(self._meta.unused_tasks) - _MOST_TOLD
            told += f" and {rest} more" if rest > 0 else ""
            notes.dropped("tasks", f"no episode has the tasks {told}")
        split = split_of(self._info.fields.get("splits"), entry.number)
        if split:
            found["split"] = split
        return found

    @property
    def tasks(self) -> dict[int, str]:
        """The tasks of the dataset by their numbers."""
        return self._meta.tasks

    @property
    def fps(self) -> float:
        """Steps per second."""
        return self._info.fps

    @property
    def features(self) -> dict[str, Feature]:
        """What `info.json` describes."""
        return self._info.features

    def address(self, name: str) -> Address | None:
        """Where an episode has a feature; None if another feature has its place."""
        return self._addresses.get(name)

    def _data_file(self, entry: MetaEntry) -> DataFile:
        place = self._place(entry, "data")

        def make() -> DataFile:
            template = self._info.fields.get("data_path")
            file = DataFile(located(self.path, template, "data_path", **place))
            self._used.add(file)
            return file

        return self._files.get_or_make(tuple(place.values()), make)

    def _place(self, entry: MetaEntry, group: str) -> dict[str, int]:
        """The values of placeholders for one kind of file."""
        if self._meta.is_v3:
            found = {
                name: entry.fields.get(f"{group}/{name}") for name in ("chunk_index", "file_index")
            }
        else:
            size = self._info.fields.get("chunks_size", 1000)
            chunk = entry.number // size if type(size) is int and size > 0 else None
            found = {"episode_chunk": chunk, "episode_index": entry.number}
        for name, value in found.items():
            if type(value) is not int or value < 0:
                raise BadMetadata(
                    "the table of episodes does not say where an episode is",
                    path=self.path,
                    entry=f"episode {entry.number}: {group}/{name}",
                    found=repr(value),
                )
        return {name: int(value) for name, value in found.items() if value is not None}

    # --- video

    def _add_video(
        self, episode: Episode, name: str, feature: Feature, entry: MetaEntry, notes: Notes
    ) -> None:
        place = self._place(entry, f"videos/{name}")
        template = self._info.fields.get("video_path")
        path = located(self.path, template, "video_path", video_key=name, **place)
        video = self._videos.get_or_make(path, lambda: VideoFile(path))
        begin = entry.fields.get(f"videos/{name}/from_timestamp") if self._meta.is_v3 else 0.0
        frames = _frames_at(video, begin, entry.length, self.fps, path, name)
        address = self._addresses.get(name)
        if address is None:
            notes.dropped(name, "another feature has the same name in an episode")
            return
        if feature.info.get("has_audio"):
            notes.dropped(f"{name}: audio", "only pictures are read")
        facts = _camera_facts(feature)
        first, count = int(frames[0]), int(frames[-1] - frames[0]) + 1
        kept = VideoChannel.from_file(video, first, count, name=address[-1], **facts)
        target = block_name(address)
        is_whole = bool((np.diff(frames) == 1).all())
        if is_whole and self.options.video != "decode":
            put(episode, address, kept)
            notes.kept(name, target)
            return
        pixels = _Decoded(kept, frames - first)
        put(episode, address, channel_of(address[-1], pixels, path=path, **facts))
        why = "" if is_whole else "; steps share or leave out frames of the video"
        notes.decoded(name, f"{target}: {kept.content_type} to pixels{why}")


class _Decoded:
    """Frames of a video as rows of pixels."""

    def __init__(self, channel: VideoChannel, frames: NDArray[np.int64]) -> None:
        self._channel = channel
        self._frames = frames
        self.shape = (len(frames), *channel.step_shape)
        self.dtype = channel.dtype

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        wanted = self._frames[rows]
        if not len(wanted):
            return np.empty((0, *self.shape[1:]), self.dtype)
        first, stop = int(wanted[0]), int(wanted[-1]) + 1
        frames: NDArray[Any] = self._channel.read_steps(first, stop)
        return frames[wanted - first] if (np.diff(wanted) != 1).any() else frames


class _Columns:
    """Puts the columns of one episode into place."""

    def __init__(
        self,
        reader: LeRobotReader,
        entry: MetaEntry,
        episode: Episode,
        file: DataFile,
        start: int,
        notes: Notes,
    ) -> None:
        self._reader = reader
        self._entry = entry
        self._episode = episode
        self._file = file
        self._start = start
        self._stop = start + entry.length
        self._notes = notes

    def add(self) -> None:
        """Adds all columns, in the order of the features."""
        numbers = self._file.numbers
        for name in sorted(set(self._reader.features) - set(numbers)):
            if self._reader.features[name].dtype != "video":
                self._notes.dropped(name, "the table does not have this column")
        shapes = {
            name: () if name in DEFAULT_FEATURES else self._shape(name, numbers[name])
            for name in numbers
        }
        # One look at the file for all that is small.
        small = {
            name: shape or ()
            for name, shape in shapes.items()
            if self._is_small(name, numbers[name], shape)
        }
        given = self._file.arrays(small, self._start, self._stop)
        for name in numbers:
            if name not in DEFAULT_FEATURES:
                self._add_column(name, numbers[name], shapes[name], given.get(name))
        for name in DEFAULT_FEATURES:
            if name in given:
                self._add_default(name, given[name])
        self._add_success()

    def _is_small(
        self, name: str, numbers: NumberColumn | None, shape: tuple[int, ...] | None
    ) -> bool:
        if name in DEFAULT_FEATURES:
            return True
        return (
            numbers is not None
            and shape is not None
            and self._entry.length * prod(shape) * numbers.dtype.itemsize <= _SMALL
        )

    def _shape(self, name: str, numbers: NumberColumn | None) -> tuple[int, ...] | None:
        """The shape of one step; None if it is not known or not the same for all."""
        if numbers is None:
            return None
        feature = self._reader.features.get(name)
        if feature is not None:
            if not numbers.shape and feature.shape in ((), (1,)):
                return ()
            if len(feature.shape) == len(numbers.shape):
                return feature.shape
            raise SizeMismatch(
                "a column has a different number of dimensions than its feature",
                path=self._file.path,
                entry=name,
                expected=list(feature.shape),
                found=self._file.schema.field(name).type,
            )
        fixed = tuple(size for size in numbers.shape if size is not None)
        return fixed if len(fixed) == len(numbers.shape) else None

    def _add_column(
        self,
        name: str,
        numbers: NumberColumn | None,
        shape: tuple[int, ...] | None,
        given: NDArray[Any] | None,
    ) -> None:
        feature = self._reader.features.get(name)
        address = self._reader.address(name)
        if feature is None:
            address = ("signal", name.replace(".", "/"))
            if address in self._episode.parts:
                address = None
        if address is None:
            self._notes.dropped(name, "another feature has the same name in an episode")
            return
        key, facts = address[-1], _channel_facts(feature)
        if numbers is not None and shape is not None:
            rows = ColumnRows(
                self._file, name, self._start, (self._entry.length, *shape), numbers.dtype
            )
            values = rows if given is None else given
            channel = channel_of(key, values, path=self._file.path, **facts)
        else:
            channel = self._other_channel(name, key, facts, feature, numbers)
        put(self._episode, address, channel)
        self._notes.kept(name, block_name(address))

    def _other_channel(
        self,
        name: str,
        key: str,
        facts: dict[str, Any],
        feature: Feature | None,
        numbers: NumberColumn | None,
    ) -> Channel:
        """A column that is not an array of numbers."""
        kind = self._file.schema.field(name).type
        text = str(kind)
        if (feature is not None and feature.dtype == "image") or text.startswith("struct<bytes:"):
            return self._pictures(name, key, feature)
        cells = self._file.values([name], self._start, self._stop)[name]
        if text in ("string", "large_string"):
            if None in cells:
                self._notes.filled(name, "missing texts are empty")
            return text_channel(key, cells, **facts)
        if numbers is not None and len(numbers.shape) == 1 and None not in cells:
            return RaggedChannel(
                key, data=[np.array(cell, numbers.dtype) for cell in cells], **facts
            )
        self._notes.cast(name, text, _FOR_RECORDS)
        return text_channel(key, (json.dumps(strict_json(cell)) for cell in cells), **facts)

    def _pictures(self, name: str, key: str, feature: Feature | None) -> Channel:
        facts = _camera_facts(feature) if feature else {"modality": Modality.RGB}
        return picture_channel(
            key,
            pictures_of(self._file, name, self._start, self._stop),
            self._reader.options.video,
            self._notes,
            field=name,
            path=self._file.path,
            **facts,
        )

    # --- the columns that every dataset has

    def _add_default(self, name: str, values: NDArray[Any]) -> None:
        if name == TIME:
            self._add_times(values)
            return
        if name == "task_index":
            self._add_tasks(values)
            return
        expected: int | NDArray[Any] = self._entry.number
        if name != EPISODE:
            first = 0 if name == "frame_index" else self._entry.fields.get("dataset_from_index")
            if type(first) is not int:
                first = int(values[0])
            expected = np.arange(first, first + self._entry.length)
        if (values == expected).all():
            self._notes.kept(name, "the order of steps and episodes")
        else:
            put(self._episode, ("signal", name), Channel(name, data=values))
            self._notes.kept(name, f"signal/{name}")

    def _add_times(self, seconds: NDArray[Any]) -> None:
        fps = self._reader.fps
        regular = np.arange(self._entry.length) / fps
        if (np.abs(seconds - regular) <= _TOLERANCE_S + 1e-6 * regular).all():
            self._notes.kept(TIME, "timebase")
            return
        exact = seconds.astype(np.float64) * 1e9
        if not np.isfinite(exact).all() or (np.abs(exact) >= 2.0**62).any():
            raise BadValue("a time is not a number", path=self._file.path, entry=TIME)
        self._episode.timestamps_ns = np.rint(exact).astype(np.int64)
        self._episode.timebase.tick_hz = fps
        self._notes.kept(TIME, "time/timestamps_ns")

    def _add_tasks(self, numbers: NDArray[Any]) -> None:
        tasks = self._reader.tasks
        if not tasks:
            put(self._episode, ("signal", "task_index"), Channel("task_index", data=numbers))
            self._notes.kept("task_index", "signal/task_index")
            return
        told = numbers.tolist()
        kinds = set(told)
        unknown = sorted(kinds.difference(tasks))
        if unknown:
            raise BadValue(
                "a task that the dataset does not have",
                path=self._file.path,
                entry="task_index",
                expected=f"one of {len(tasks)} tasks",
                found=unknown[0],
            )
        texts = [tasks[number] for number in told]
        name = "task" if ("signal", INSTRUCTION) in self._episode.parts else INSTRUCTION
        channel = TextChannel(name, texts, modality=Modality.LANGUAGE)
        put(self._episode, ("signal", name), channel)
        if texts:
            self._episode.metadata["task"] = texts[0]
        if len({tasks[number] for number in kinds}) > 1:
            self._episode.metadata["tasks"] = [text for text, _ in groupby(texts)]
        self._notes.kept("task_index", f"signal/{name}")

    def _add_success(self) -> None:
        address = self._reader.address(SUCCESS)
        channel = None if address is None else self._episode.parts.get(address)
        if channel is not None and channel.dtype.kind == "b":
            self._episode.metadata["success"] = bool(np.any(channel.data))


def put(episode: Episode, address: Address, channel: Channel) -> None:
    """Puts a channel at its place in an episode."""
    lane, *keys = address
    if not keys:
        attribute = {"reward": "rewards", "terminated": "terminations", "truncated": "truncations"}
        setattr(episode, attribute[lane], channel)
    elif lane == "signal":
        episode.observations[keys[0]] = channel
    elif lane == "action":
        episode.actions[keys[0]] = channel
    elif lane == "omen":
        episode.omens[keys[0]][keys[1]] = channel
    else:
        episode.uncerts[keys[0]][keys[1]][keys[2]] = channel


def _frames_at(
    video: VideoFile, begin: object, count: int, fps: float, path: str, name: str
) -> NDArray[np.int64]:
    """The frames of a video that an episode shows, one for each step: those that are nearest in time."""
    if not isinstance(begin, (int, float)) or not np.isfinite(begin):
        raise BadMetadata(
            "no time at which the episode starts in the video",
            path=path,
            entry=f"videos/{name}/from_timestamp",
            found=repr(begin),
        )
    shown = video.timestamps_ns / 1e9
    wanted = begin + np.arange(min(count, len(shown) + 1)) / fps
    if len(shown):
        after = np.clip(np.searchsorted(shown, wanted), 1, max(len(shown) - 1, 1))
        after = np.minimum(after, len(shown) - 1)
        before = np.maximum(after - 1, 0)
        nearest = np.where(wanted - shown[before] <= shown[after] - wanted, before, after)
    if not len(shown) or len(wanted) < count or np.abs(shown[nearest] - wanted).max() > 0.75 / fps:
        raise BadValue(
            "the video does not have a frame for each step",
            path=path,
            entry=name,
            expected=f"{count} frames at {fps:g} Hz from {begin:g} s",
            found=f"{len(shown)} frames" + (f" until {shown[-1]:g} s" if len(shown) else ""),
        )
    return nearest.astype(np.int64)


def _channel_facts(feature: Feature | None) -> dict[str, Any]:
    return {"extra": {"names": feature.names}} if feature and feature.names else {}


def _camera_facts(feature: Feature) -> dict[str, Any]:
    facts: dict[str, Any] = {"modality": Modality.DEPTH if feature.is_depth else Modality.RGB}
    if feature.is_depth:
        facts["extra"] = {"depth": strict_json(dict(feature.info))}
        facts["description"] = _DEPTH if feature.info.get("video.pix_fmt") == "gray12le" else ""
    return facts
