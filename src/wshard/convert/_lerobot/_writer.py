"""Writes LeRobot v3.0 datasets."""

from __future__ import annotations

import json
import os
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.atomic import write_file
from shard_format.errors import InvalidArgument
from shard_format.extras import require
from wshard._channels import Modality, TextChannel
from wshard._lanes import CHANNEL_LANES, TICKS, TIMESTAMPS, block_name
from wshard._values import step_ranges
from wshard._video import VideoChannel
from wshard.convert._lerobot._columns import (
    TableColumn,
    as_arrow,
    colour_frames,
    column_for,
    fits,
    is_colour,
    is_pictures,
    is_too_small_to_encode,
    numbers_in,
    original_features,
    picture_statistics,
    pictures_in,
    problem_with,
    stated_fields,
    task_address,
    unwritten_fields,
)
from wshard.convert._lerobot._layout import (
    DATA,
    DEFAULT_FEATURES,
    EPISODES,
    INFO,
    STATISTICS,
    SUBTASKS,
    SUCCESS,
    TASKS,
    TIME,
    VIDEOS,
    addresses,
    feature_name,
    parse_feature,
)
from wshard.convert._lerobot._meta import is_more
from wshard.convert._lerobot._statistics import (
    KINDS,
    PictureStatistics,
    merged_statistics,
    number_statistics,
    parse_statistics,
    sampled_steps,
    stated_or,
)
from wshard.convert._lerobot._videos import FILES_IN_FOLDER, MOST_VIDEO_MB, VideoTrack
from wshard.convert._model import WHOLE, DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from wshard._channels import Channel
    from wshard._episode import Episode
    from wshard.convert._model import Notes, WriteOptions

_FPS: Final = 30
_MOST_DATA_MB: Final = 100
_MOST_DIMENSIONS: Final = 5
_TABLE_BYTES: Final = 256 << 20
_EPISODES_AT_ONCE: Final = 100
# What lerobot itself encodes with.
_CODEC: Final = "av1:crf=30,preset=12"
_KEYFRAME_EVERY: Final = 2
_STANDARD: Final = (
    *("codebase_version", "robot_type", "total_episodes", "total_frames", "total_tasks"),
    *("total_videos", "total_chunks", "chunks_size", "data_files_size_in_mb"),
    *("video_files_size_in_mb", "fps", "splits", "data_path", "video_path", "features"),
    "statistics",
)
_METADATA: Final = ("task", "tasks", "success", "split", "lerobot", "dataset", "statistics")
_NO_PLACE: Final = "the format has no field for it"
_NO_LAST: Final = "there is one row for each action"
_ONE_DATASET: Final = "a dataset has one set of facts, and the first episode has others"
_ONE_SHAPE: Final = "a dataset has the same features in all episodes, and the first has others"


class LeRobotWriter(DatasetWriter):
    """A LeRobot v3.0 dataset. The first episode decides which features it has, and its rate."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        self._arrow = require("pyarrow", "lerobot")
        self._parquet = require("pyarrow.parquet", "lerobot")
        os.makedirs(os.path.join(path, "meta"))
        self._columns: dict[str, TableColumn] = {}
        self._fps = 0.0
        self._more: dict[str, Any] = {}
        self._robot: str | None = None
        self._original_types: dict[str, str] = {}
        self._extras: dict[str, type] = {}
        self._subtasks: list[str] | None = None
        self._tasks: dict[str, int] = {}
        self._totals: dict[str, dict[str, NDArray[Any]]] = {}
        self._splits: dict[str, list[int]] = {}
        self._episodes = self._frames = 0
        self._rows: list[dict[str, Any]] = []
        self._table: Any = None
        self._data: Any = None
        self._data_file = -1
        self._tracks: dict[str, VideoTrack] = {}

    # --- episodes

    def write(self, episode: Episode, notes: Notes) -> None:
        length = episode.length
        if not length:
            notes.dropped(WHOLE, "a dataset has no episodes without steps")
            return
        if not self._episodes:
            self._start(episode, notes)
        channels = self._channels(episode, notes)
        self._note_the_rest(episode, notes)
        tasks = self._task_numbers(episode, notes)
        values = self._default_values(episode, tasks, notes)
        row: dict[str, Any] = {
            "episode_index": self._episodes,
            "tasks": list(dict.fromkeys(list(self._tasks)[number] for number in tasks.tolist())),
            "length": length,
        }
        stated = episode.metadata.get("statistics")
        stated = stated if isinstance(stated, dict) else {}
        found: dict[str, dict[str, NDArray[Any]]] = {}
        pictures: dict[str, Channel | None] = {}
        for name, column in self._columns.items():
            channel = channels.get(name)
            if column.kind == "image":
                pictures[name] = channel
                found[name] = picture_statistics(column, channel, length, stated.get(name))
            elif column.kind == "text":
                values[name] = [""] * length if channel is None else channel.data[:length]
            elif column.kind == "number":
                values[name] = numbers_in(column, channel, episode, length)
        for name, array in values.items():
            if not isinstance(array, list):
                given = stated.get(name) if name not in DEFAULT_FEATURES else None
                found[name] = stated_or(number_statistics(array), given)
        self._add_rows(values, pictures, length, row)
        for name in self._tracks:
            column, channel = self._columns[name], channels.get(name)
            found[name] = self._add_video(column, channel, length, row, stated.get(name), notes)
        self._add_row(row, found, episode, notes)

    def _add_row(
        self,
        row: dict[str, Any],
        found: Mapping[str, dict[str, NDArray[Any]]],
        episode: Episode,
        notes: Notes,
    ) -> None:
        extras = _extras(episode)
        for name, kind in self._extras.items():
            value = extras.get(name)
            row[name] = value if type(value) is kind and _is_scalar(value) else None
            if row[name] is None and value is not None:
                notes.dropped(f"metadata/lerobot/episode/{name}", _ONE_SHAPE)
        for name in extras.keys() - self._extras.keys():
            notes.dropped(f"metadata/lerobot/episode/{name}", _NO_PLACE)
        for name in (*self._columns, *DEFAULT_FEATURES):
            if found.get(name):
                self._totals[name] = merged_statistics(self._totals.get(name), found[name])
                row |= {f"stats/{name}/{kind}": found[name][kind] for kind in KINDS}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        self._rows.append(row)
        self._episodes += 1
        self._frames += row["length"]
        if len(self._rows) >= _EPISODES_AT_ONCE:
            self._flush_rows()

    # --- what there is

    def _start(self, episode: Episode, notes: Notes) -> None:
        """Decides what all episodes have."""
        rate = episode.timebase.tick_hz
        if rate is None:
            notes.filled("fps", f"{_FPS}: the episode does not state a rate")
        self._fps = rate or _FPS
        self._robot, self._more, self._subtasks = _dataset_facts(episode)
        own = episode.metadata.get("lerobot")
        original: dict[str, dict[str, Any]] = {}
        if isinstance(own, dict):
            original = original_features(own.get("features"))
            self._extras = {
                name: type(value) for name, value in _extras(episode).items() if _is_scalar(value)
            }
        self._plan(episode, original)

    def _plan(self, episode: Episode, original: dict[str, dict[str, Any]]) -> None:
        parsed = {name: parse_feature("", name, fields) for name, fields in original.items()}
        names = {address: name for name, address in addresses(parsed).items()}
        order = {address: number for number, address in enumerate(names)}
        task = task_address(episode)
        usable = [
            (address, channel)
            for address, channel in episode.parts.items()
            if address[0] in CHANNEL_LANES
            and problem_with(channel, episode.length) is None
            and address != task
        ]
        usable.sort(key=lambda each: order.get(each[0], len(order)))
        actions = [address for address, _ in usable if address[0] == "action"]
        for address, channel in usable:
            known = names.get(address)
            kind = self._kind(channel, episode.length, original.get(known or "", {}))
            if kind is None:
                continue
            name = known or feature_name(address, is_camera=kind in ("video", "image"))
            if known is None and actions == [address]:
                name = "action"
            while name in self._columns or name in DEFAULT_FEATURES:
                name += "_2"
            column = column_for(name, address, kind, channel)
            if known is not None:
                self._original_types[name] = original[known]["dtype"]
                column.fields.update(stated_fields(original[known], column.fields))
            self._columns[name] = column
        if SUCCESS not in self._columns and isinstance(episode.metadata.get("success"), bool):
            fields = {"dtype": "bool", "shape": [1], "names": None}
            self._columns[SUCCESS] = TableColumn(
                SUCCESS, None, "number", np.dtype(np.bool_), (), fields
            )
        for name, column in self._columns.items():
            if column.kind == "video":
                self._tracks[name] = VideoTrack(self.path, name, self._fps)

    def _kind(self, channel: Channel, length: int, original: Mapping[str, Any]) -> str | None:
        """How to store a channel; None if that is not possible."""
        if isinstance(channel, TextChannel):
            return "text"
        is_copied = self._copied(channel, length) is not None
        if is_colour(channel):
            is_image = original.get("dtype") == "image" or is_pictures(channel)
            if (
                self.options.video == "decode"
                or (self.options.video == "keep" and is_image)
                or (is_too_small_to_encode(channel.step_shape) and not is_copied)
            ):
                return "image"
            return "video"
        if is_copied and original.get("dtype") == "video":
            return "video"  # of depth
        is_array = len(channel.step_shape) <= _MOST_DIMENSIONS and channel.step_bytes > 0
        return "number" if is_array else None

    def _channels(self, episode: Episode, notes: Notes) -> dict[str, Channel]:
        """The channels of an episode by the names of their features; notes what cannot be written."""
        places = {column.address: column for column in self._columns.values()}
        found: dict[str, Channel] = {}
        task = task_address(episode)
        for address, channel in episode.parts.items():
            if address[0] not in CHANNEL_LANES or address == task:
                continue
            block, column = block_name(address), places.get(address)
            problem = problem_with(channel, episode.length)
            if problem is None and column is None:
                problem = _ONE_SHAPE if self._episodes else "arrays have at most 5 dimensions here"
            if problem is None and column is not None and not fits(column, channel):
                problem = _ONE_SHAPE
            if problem is not None or column is None:
                notes.dropped(block, problem or "")
                continue
            found[column.name] = channel
            self._note_kept(column, channel, block, notes)
            if channel.length > episode.length:
                notes.dropped_last(block, _NO_LAST)
        for name, column in self._columns.items():
            if name not in found and column.address is not None:
                notes.filled(name, "zeros: the episode does not have this feature")
        if SUCCESS in self._columns and SUCCESS not in found:
            notes.filled(SUCCESS, "true at the last step of an episode with success")
        return found

    def _note_kept(self, column: TableColumn, channel: Channel, block: str, notes: Notes) -> None:
        address = addresses({column.name: parse_feature("", column.name, column.fields)})
        if address.get(column.name) == column.address:
            notes.kept(block, column.name)
        else:
            notes.renamed(block, column.name)
        before, after = self._original_types.get(column.name), column.fields["dtype"]
        if before is not None and before != after:
            notes.cast(block, before, after)
        elif column.kind == "number" and channel.dtype != column.dtype:
            notes.cast(block, channel.dtype_name, column.dtype)
        for name in unwritten_fields(channel, self._restored(column, channel)):
            notes.dropped(f"{block}: {name}", _NO_PLACE)
        if column.kind == "image" and not is_pictures(channel):
            if isinstance(channel, VideoChannel):
                notes.decoded(block, f"{channel.content_type} to PNG")
            self._note_colour(column, channel, notes)
        if column.kind == "number" and column.shape == (1,):
            notes.cast(block, "[T, 1]", "[T]", "one number a step is a plain column")

    def _restored(self, column: TableColumn, channel: Channel) -> dict[str, Any]:
        """What a reader finds out about a channel that was written."""
        feature = parse_feature("", column.name, column.fields)
        found: dict[str, Any] = {"sampling_rate_hz": self._fps, "names": feature.names}
        if column.kind in ("video", "image"):
            found["modality"] = Modality.DEPTH if feature.is_depth else Modality.RGB
        if isinstance(channel, VideoChannel):
            found["content_type"] = channel.content_type
        if feature.is_depth:
            found |= {"depth": feature.info, "description": channel.description}
        return found

    def _note_colour(self, column: TableColumn, channel: Channel, notes: Notes) -> None:
        before, after = list(channel.step_shape), [*column.shape[:2], 3]
        if before != after and column.address is not None:
            notes.cast(block_name(column.address), before, after, "cameras have three colours")

    def _note_the_rest(self, episode: Episode, notes: Notes) -> None:
        for address in episode.parts:
            if address[0] == TICKS:
                if not np.array_equal(episode.ticks, np.arange(episode.length)):
                    notes.dropped(TICKS, "steps are numbered from 0")
            elif address[0] == TIMESTAMPS:
                if "lerobot" not in episode.metadata:
                    notes.dropped(
                        TIMESTAMPS, f"steps have the times of a clock of {self._fps:g} Hz"
                    )
            elif address[0] not in CHANNEL_LANES:
                notes.dropped(block_name(address), _NO_PLACE)
        rate = episode.timebase.tick_hz
        if rate is not None and rate != self._fps:
            notes.cast("timebase", f"{rate:g} Hz", f"{self._fps:g} Hz", "that of the first episode")
        for name in episode.metadata:
            is_own = name in _METADATA and (
                "lerobot" in episode.metadata or name not in ("dataset", "statistics")
            )
            if not is_own:
                notes.dropped(f"metadata/{name}", _NO_PLACE)
        self._note_success(episode, notes)
        if episode.id and episode.id != f"episode_{self._episodes}":
            notes.dropped("id", "episodes have numbers")
        if episode.timebase.epoch_ns:
            notes.dropped("timebase: epoch_ns", _NO_PLACE)
        robot, more, subtasks = _dataset_facts(episode)
        if (robot, more) != (self._robot, self._more):
            notes.dropped("metadata/dataset", _ONE_DATASET)
        if subtasks != self._subtasks:
            notes.dropped("metadata/lerobot/subtasks", _ONE_DATASET)
        if episode.env_id:
            notes.dropped("env_id", _NO_PLACE)
        if episode.provenance:
            notes.dropped("meta/provenance", _NO_PLACE)
        split = episode.metadata.get("split")
        if split is not None and not isinstance(split, str):
            notes.dropped("metadata/split", "not a text")
        name = split if isinstance(split, str) and split else next(reversed(self._splits), "train")
        if name in self._splits and name != next(reversed(self._splits)):
            notes.dropped("metadata/split", "a split is a range of episodes")
            name = next(reversed(self._splits))
        self._splits.setdefault(name, [self._episodes, self._episodes])[1] = self._episodes + 1

    def _note_success(self, episode: Episode, notes: Notes) -> None:
        success, column = episode.metadata.get("success"), self._columns.get(SUCCESS)
        if success is None:
            return
        if not isinstance(success, bool):
            notes.dropped("metadata/success", "not a truth value")
        elif column is None:
            notes.dropped("metadata/success", _ONE_SHAPE)
        elif column.address is not None:
            channel = episode.parts.get(column.address)
            if channel is None or channel.dtype.kind != "b" or bool(channel.data.any()) != success:
                notes.dropped("metadata/success", f"the steps of {SUCCESS} say something else")

    # --- steps

    def _task_numbers(self, episode: Episode, notes: Notes) -> NDArray[np.int64]:
        address = task_address(episode)
        length, task = episode.length, episode.metadata.get("task")
        if address is not None:
            channel, block = episode.parts[address], block_name(address)
            texts = list(channel.data[:length])
            notes.kept(block, "task_index")
            restored = {"modality": Modality.LANGUAGE, "sampling_rate_hz": self._fps}
            for name in unwritten_fields(channel, restored):
                notes.dropped(f"{block}: {name}", _NO_PLACE)
            if channel.length > length:
                notes.dropped_last(block, _NO_LAST)
        elif isinstance(task, str):
            texts = [task] * length
            notes.kept("metadata/task", "task_index")
        else:
            texts = [""] * length
            notes.filled("task_index", "an empty task: the episode does not state one")
        for name, stored in {
            "task": texts[0],
            "tasks": [text for text, _ in groupby(texts)],
        }.items():
            if episode.metadata.get(name, stored) != stored:
                notes.dropped(f"metadata/{name}", "the steps have other tasks")
        numbers = [self._tasks.setdefault(text, len(self._tasks)) for text in texts]
        return np.array(numbers, np.int64)

    def _default_values(
        self, episode: Episode, tasks: NDArray[np.int64], notes: Notes
    ) -> dict[str, Any]:
        steps = np.arange(episode.length, dtype=np.int64)
        seconds = steps / self._fps
        times = episode.timestamps_ns
        if times is not None and "lerobot" in episode.metadata:
            seconds = times / 1e9
            notes.kept(TIMESTAMPS, TIME)
        return {
            TIME: seconds.astype(np.float32),
            "frame_index": steps,
            "episode_index": np.full_like(steps, self._episodes),
            "index": steps + self._frames,
            "task_index": tasks,
        }

    def _add_rows(
        self,
        values: Mapping[str, Any],
        pictures: Mapping[str, Channel | None],
        length: int,
        row: dict[str, Any],
    ) -> None:
        if self._data is not None and self._data_size() >= _MOST_DATA_MB << 20:
            self._close_data()
        schema = self._schema()
        if self._data is None:
            self._data_file += 1
            chunk, file = divmod(self._data_file, FILES_IN_FOLDER)
            path = os.path.join(self.path, DATA.format(chunk_index=chunk, file_index=file))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._data_path = path
            self._data = self._parquet.ParquetWriter(path, schema, compression="snappy")
        step_bytes = sum(
            array.nbytes // length for array in values.values() if not isinstance(array, list)
        ) + sum(channel.step_bytes for channel in pictures.values() if channel is not None)
        for start, stop in step_ranges(length, step_bytes, _TABLE_BYTES):
            arrays = []
            for field in schema:
                column = self._columns.get(field.name)
                if field.name in pictures and column is not None:
                    data = pictures_in(column, pictures[field.name], start, stop)
                    arrays.append(self._arrow.array(data, field.type))
                else:
                    arrays.append(as_arrow(values[field.name][start:stop], field.type))
            self._data.write_table(self._arrow.Table.from_arrays(arrays, schema=schema))
        chunk, file = divmod(self._data_file, FILES_IN_FOLDER)
        row |= {"data/chunk_index": chunk, "data/file_index": file}
        row |= {"dataset_from_index": self._frames, "dataset_to_index": self._frames + length}

    def _data_size(self) -> int:
        return os.path.getsize(self._data_path)

    def _close_data(self) -> None:
        if self._data is not None:
            data, self._data = self._data, None
            data.close()

    # --- cameras

    def _add_video(
        self,
        column: TableColumn,
        channel: Channel | None,
        length: int,
        row: dict[str, Any],
        stated: Any,  # noqa: ANN401 - checked where it is used
        notes: Notes,
    ) -> dict[str, NDArray[Any]]:
        track = self._tracks[column.name]
        given = parse_statistics(stated, (3, 1, 1))
        copied = self._copied(channel, length)
        if copied is not None:
            place = track.add([copied])
            found = given
            if found is None or len(found) < len(KINDS):
                found = picture_statistics(column, channel, length, None)
        else:
            seen = PictureStatistics()
            place = track.add(self._encoded(column, channel, length, seen))
            found = seen.result()
            if channel is not None and column.address is not None:
                notes.decoded(block_name(column.address), f"encoded with a loss, {_CODEC}")
                self._note_colour(column, channel, notes)
        start = place.start / self._fps
        row |= {
            f"videos/{column.name}/chunk_index": place.chunk,
            f"videos/{column.name}/file_index": place.file,
            f"videos/{column.name}/from_timestamp": start,
            f"videos/{column.name}/to_timestamp": start + length / self._fps,
        }
        if "info" not in column.fields or copied is None:
            column.fields["info"] = track.info
        return found

    def _copied(self, channel: Channel | None, length: int) -> VideoChannel | None:
        """The channel with its packets as they are, if an mp4 file with other episodes before it can hold them."""
        if not isinstance(channel, VideoChannel) or self.options.video == "encode":
            return None
        cut = channel.sliced(0, length) if channel.length > length else channel
        is_video = (cut.content_type or "").startswith("video/") and not cut.hidden
        return cut if is_video and cut.content_type != "video/ffv1" else None

    def _encoded(
        self,
        column: TableColumn,
        channel: Channel | None,
        length: int,
        seen: PictureStatistics,
    ) -> Iterator[VideoChannel]:
        if is_too_small_to_encode(column.shape):
            raise InvalidArgument(
                "the pictures are too small to encode",
                entry=column.name,
                found=f"{column.shape}",
                hint="write pictures: video='decode'",
            )
        looked_at = sampled_steps(length)
        for start, stop, frames in colour_frames(column, channel, length):
            seen.add(frames[looked_at[(looked_at >= start) & (looked_at < stop)] - start])
            yield VideoChannel.encode(
                frames, _CODEC, fps=self._fps, keyframe_every=_KEYFRAME_EVERY, name=column.name
            )

    # --- the end

    def finish(self) -> None:
        self._close_data()
        for track in self._tracks.values():
            track.close()
        self._flush_rows()
        if self._table is not None:
            self._table.close()
        if not self._episodes:
            raise InvalidArgument(
                "a LeRobot dataset needs at least one episode with steps",
                hint="channels with clocks of their own become steps with ep.align()",
            )
        self._write_texts(TASKS, "task", list(self._tasks))
        if self._subtasks is not None:
            self._write_texts(SUBTASKS, "subtask", self._subtasks)
        totals = {
            name: {kind: values[kind].tolist() for kind in KINDS}
            for name, values in self._totals.items()
        }
        self._write_json(STATISTICS, totals)
        self._write_json(INFO, self._info())

    def abandon(self) -> None:
        for track in self._tracks.values():
            track.abandon()
        self._close_data()
        if self._table is not None:
            self._table.close()

    def _info(self) -> dict[str, Any]:
        fps = self._fps
        return {
            "codebase_version": "v3.0",
            "robot_type": self._robot,
            "total_episodes": self._episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_IN_FOLDER,
            "data_files_size_in_mb": _MOST_DATA_MB,
            "video_files_size_in_mb": MOST_VIDEO_MB,
            "fps": int(fps) if fps == int(fps) else fps,
            "splits": {name: f"{first}:{stop}" for name, (first, stop) in self._splits.items()},
            "data_path": DATA,
            "video_path": VIDEOS if self._tracks else None,
            "features": self._features(),
            **self._more,
        }

    def _features(self) -> dict[str, dict[str, Any]]:
        return {name: column.fields for name, column in self._columns.items()} | DEFAULT_FEATURES

    def _write_json(self, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
        text = json.dumps(value, indent=4, ensure_ascii=False)
        write_file(os.path.join(self.path, name), [text.encode()], fsync=False)

    def _write_texts(self, name: str, kind: str, texts: list[str]) -> None:
        """A table of numbers and texts, with the texts as the index of a data frame."""
        number = f"{kind}_index"
        described = [
            (number, number, "int64", "int64"),
            (kind, kind, "unicode", "object"),
        ]
        keys = ("name", "field_name", "pandas_type", "numpy_type")
        pandas = {
            "index_columns": [kind],
            "column_indexes": [],
            "columns": [
                {**dict(zip(keys, each, strict=True)), "metadata": None} for each in described
            ],
            "creator": {"library": "pyarrow", "version": self._arrow.__version__},
            "pandas_version": "2.2.0",
        }
        schema = self._arrow.schema(
            [(number, self._arrow.int64()), (kind, self._arrow.string())],
            {"pandas": json.dumps(pandas)},
        )
        table = self._arrow.table({number: range(len(texts)), kind: texts}, schema=schema)
        self._parquet.write_table(table, os.path.join(self.path, name))

    # --- tables

    def _schema(self) -> Any:  # noqa: ANN401 - a pyarrow.Schema
        arrow, fields, described = self._arrow, [], dict[str, Any]()
        for name, feature in self._features().items():
            if feature["dtype"] == "video":
                continue
            column = self._columns.get(name)
            if feature["dtype"] == "image":
                fields.append(
                    (name, arrow.struct({"bytes": arrow.binary(), "path": arrow.string()}))
                )
                described[name] = {"_type": "Image"}
                continue
            shape = () if column is None or column.shape == (1,) else column.shape
            scalar = arrow.type_for_alias(feature["dtype"])
            value = {"dtype": feature["dtype"], "_type": "Value"}
            if len(shape) > 1:
                described[name] = {
                    "shape": list(shape),
                    "dtype": feature["dtype"],
                    "_type": f"Array{len(shape)}D",
                }
                for _ in shape:
                    scalar = arrow.list_(scalar)
            elif shape:
                described[name] = {"feature": value, "length": shape[0], "_type": "Sequence"}
                scalar = arrow.list_(scalar, shape[0])
            else:
                described[name] = value
            fields.append((name, scalar))
        text = json.dumps({"info": {"features": described}})
        return arrow.schema(fields, {"huggingface": text})

    def _flush_rows(self) -> None:
        if not self._rows:
            return
        arrow = self._arrow
        if self._table is None:
            path = os.path.join(self.path, EPISODES.format(chunk_index=0, file_index=0))
            os.makedirs(os.path.dirname(path))
            schema = arrow.schema(
                [(name, self._row_type(name, value)) for name, value in self._rows[0].items()]
            )
            self._table = self._parquet.ParquetWriter(path, schema, compression="snappy")
        columns = [
            arrow.array([_plain(row.get(field.name)) for row in self._rows], field.type)
            for field in self._table.schema
        ]
        self._table.write_table(arrow.Table.from_arrays(columns, schema=self._table.schema))
        self._rows.clear()

    def _row_type(self, name: str, value: Any) -> Any:  # noqa: ANN401 - a type of pyarrow
        arrow = self._arrow
        if name == "tasks":
            return arrow.list_(arrow.string())
        if name in self._extras:
            return arrow.array([value]).type
        if not isinstance(value, np.ndarray):
            return arrow.float64() if name.endswith("_timestamp") else arrow.int64()
        _, _, rest = name.partition("stats/")
        feature, _, kind = rest.rpartition("/")
        scalar = arrow.float64()
        if kind == "count":
            scalar = arrow.int64()
        elif kind in ("min", "max"):
            dtype = self._features()[feature]["dtype"]
            if dtype == "bool":
                scalar = arrow.bool_()
            elif dtype.startswith(("int", "uint")) and dtype != "uint64":
                scalar = arrow.int64()
        for _ in value.shape:
            scalar = arrow.list_(scalar)
        return scalar


def _dataset_facts(episode: Episode) -> tuple[str | None, dict[str, Any], list[str] | None]:
    """What an episode says about its dataset: the robot, fields that lerobot itself does not write, and subtasks."""
    own, dataset = episode.metadata.get("lerobot"), episode.metadata.get("dataset")
    dataset = dataset if isinstance(dataset, dict) else {}
    robot = dataset.get("robot_type")
    more, subtasks = dict[str, Any](), None
    if isinstance(own, dict):
        more = {name: value for name, value in dataset.items() if name not in _STANDARD}
        subtasks = own.get("subtasks")
    is_texts = isinstance(subtasks, list) and all(isinstance(text, str) for text in subtasks)
    return robot if isinstance(robot, str) else None, more, subtasks if is_texts else None


def _extras(episode: Episode) -> dict[str, Any]:
    """What the table of episodes said besides what every dataset has."""
    own = episode.metadata.get("lerobot")
    extras = own.get("episode") if isinstance(own, dict) else None
    found = extras if isinstance(extras, dict) else {}
    return {name: value for name, value in found.items() if is_more(name)}


def _plain(value: Any) -> Any:  # noqa: ANN401 - what a row of a table holds
    """What pyarrow takes. It makes floats of large integers only if they are floats already."""
    if not isinstance(value, np.ndarray):
        return value
    return (value.astype(np.float64) if value.dtype == np.uint64 else value).tolist()


def _is_scalar(value: object) -> bool:
    is_large = type(value) is int and abs(value) >= 1 << 63
    return isinstance(value, (str, int, float, bool)) and not is_large
