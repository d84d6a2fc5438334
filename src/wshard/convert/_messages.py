"""Topics of MCAP files and ROS bags: each is a group of channels with the clock of its messages."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard._channels import Channel, Modality, RaggedChannel, TextChannel
from wshard._video_codec import is_keyframe
from wshard.convert._arrays import EncodedFrames, channel_of
from wshard.convert._json_messages import JsonDecoder, RawDecoder, WholeJson
from wshard.convert._message_columns import (
    EXACT,
    TIMES,
    ArrayColumn,
    Field,
    Json,
    fields_of_one,
    json_text,
)
from wshard.convert._sensors import (
    DEPTH,
    FOXGLOVE_POINTS,
    KINDS,
    ROS_POINTS,
    Points,
    SensorFrames,
    SensorItems,
    SensorPictures,
    SensorSteps,
    picture_form,
    pixel_layout,
    ragged,
    video_channel,
    video_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from wshard._episode import Episode
    from wshard.convert._mcap_file import MessageFile, Place
    from wshard.convert._message_columns import Column, MessageDecoder, Path, Value
    from wshard.convert._model import Notes
    from wshard.convert._sensors import PictureForm

__all__ = ["FieldNames", "Places", "Topic"]

# Messages whose values are given to fields at once: up to this many, of this many bytes.
_ROWS: Final = 512
_MOST_ROWS: Final = 1 << 20
_MOST_FIELDS: Final = 1000
_I64: Final = 1 << 63
_LARGE_MESSAGE: Final = 1 << 16
# The size of a picture is mostly in its first bytes.
_HEAD: Final = 3072


class Topic:
    """The messages of one topic.

    Args:
        name: of the topic.
        schema: the name of its message type.
        decode: makes fields of the bytes of a message.
        data: gives the bytes of a message again.
        path: the file, for errors.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        decode: MessageDecoder,
        data: Callable[[Place], memoryview],
        path: str,
    ) -> None:
        self.name = name
        self.schema = schema
        self.origin: dict[str, Any] = {"topic": name}
        """What each of its channels says about where it comes from."""
        self._path = path
        self._decode = decode
        self._is_raw = isinstance(decode, RawDecoder)
        self._data = data
        self.log_times = array("q")
        self.publish_times = array("q")
        self.sequences = array("L")
        self.channels = array("L")
        self._places = array("q")
        self.fields: dict[Path, Field] = {}
        self.kind = "" if self._is_raw else KINDS.get(schema.replace("/msg/", "/"), "")
        self._pictures: set[PictureForm] = set()
        self._keyframes: list[bool] = []
        self._rows: list[Any] = []
        self._row_bytes = 0
        self._given = 0
        self._decodes_video = False

    @property
    def facts(self) -> dict[str, Any]:
        """What the description of its channels says besides: for the way back."""
        found = {"group": self.origin["group"]} if "group" in self.origin else {}
        return {**found, "is_raw": True} if self._is_raw else found

    def add(
        self, channel: int, sequence: int, log: int, publish: int, data: memoryview, place: Place
    ) -> None:
        """Takes the next message of the file."""
        self.channels.append(channel)
        self.sequences.append(sequence)
        self.log_times.append(log)
        self.publish_times.append(publish)
        self._places.extend(place)
        self._rows.append(self._decode.parse(data))
        self._row_bytes += len(data)
        # Large messages go at once: they may refer to the chunk that they are in.
        if len(self._rows) == _ROWS or self._row_bytes > _MOST_ROWS or len(data) > _LARGE_MESSAGE:
            self._flush()

    def _flush(self) -> None:
        """Gives the values of the last messages to the fields."""
        rows, self._rows, self._row_bytes = self._rows, [], 0
        if not rows:
            return
        columns = self._decode.columns(rows)
        if columns is not None:
            self._take(columns, len(rows))
        else:  # they differ
            for row in rows:
                self._take(self._decode.columns([row]) or {}, 1)
        if len(self.fields) > _MOST_FIELDS and isinstance(self._decode, JsonDecoder):
            self._decode = WholeJson()
            self.fields, self._given = {}, 0
            for number in range(len(self.log_times)):
                self._take(self._decode.columns([self._decode.parse(self._bytes_of(number))]), 1)

    def _take(self, columns: dict[Path, Column], count: int) -> None:
        data = columns.get(("data",))
        if self.kind in ("compressed", "video") and isinstance(data, ArrayColumn):
            self._look(data, columns.get(("format",), ()))
        for path, column in columns.items():
            field = self.fields.get(path)
            if field is None:
                field = self.fields[path] = Field(self._decode.types.get(path))
            field.extend(self._given, column)
        self._given += count

    def _look(self, data: ArrayColumn, formats: Column) -> None:
        """Remembers what kind of pictures messages have."""
        if self.kind == "video" and not isinstance(formats, ArrayColumn):
            for content, form in zip(data.each(), formats, strict=False):
                self._keyframes.append(is_keyframe(f"video/{form}", bytes(content)))
        elif self.kind == "compressed":
            forms = {picture_form(memoryview(head)) for head in data.heads(_HEAD)}
            if not all(form.shape for form in forms):
                forms = {picture_form(memoryview(content)) for content in data.each()}
            self._pictures |= forms

    def _bytes_of(self, number: int) -> memoryview:
        chunk, start, stop = self._places[3 * number : 3 * number + 3]
        return self._data((chunk, start, stop))

    def decoded(self, number: int, only: Path | None = None) -> dict[Path, Value]:
        """The fields of a message, read again; others than `only` may be missing if it is given."""
        return fields_of_one(self._decode, self._bytes_of(number), only)

    def field_values(self, path: Path, messages: Sequence[int]) -> list[Any]:
        """The values of one field in some messages, read again; an empty list has no fields."""
        return [self.decoded(number, path).get(path, Json("[]")) for number in messages]

    def _merge_empty_lists(self) -> None:
        """Makes an empty list of objects an empty entry of the fields that its objects have in other messages."""
        for path in [path for path in self.fields if None in path]:
            empty = self.fields.get(path[: path.index(None)])
            field = self.fields[path]
            if empty is None or empty.kind != "array" or empty.nbytes or field.kind == "mixed":
                continue
            if not set(empty.messages).isdisjoint(field.messages):
                continue
            messages = np.array(field.messages + empty.messages, np.int64)
            order = np.argsort(messages, kind="stable").tolist()
            more: list[Any] = [(0,) if field.kind == "array" else Json("[]")] * len(empty.messages)
            old: list[Any] = field.shapes if field.kind == "array" else field.values
            both = [*old, *more]
            merged = [both[at] for at in order]
            field.messages = array("q", messages[order].tolist())
            if field.kind == "array":
                field.shapes = merged
            else:
                field.values = merged
            empty.is_merged = True
        self.fields = {path: field for path, field in self.fields.items() if not field.is_merged}

    # --- channels

    def add_to(
        self, episode: Episode, notes: Notes, names: FieldNames, *, video: str = "keep"
    ) -> None:
        """Adds the channels of the topic to an episode; `video` is that of `ReadOptions`."""
        self._decodes_video = video == "decode"
        times = np.array(self.log_times, np.int64)
        if len(times) and (times[1:] < times[:-1]).any():
            notes.reordered(self.name, "messages sorted by log time, which ran backwards")
        if getattr(self._decode, "has_replaced_text", False):
            notes.cast(self.name, "text", "UTF-8", "bytes that are not UTF-8 were replaced")
        if getattr(self._decode, "has_unknown_fields", False):
            notes.dropped(self.name, "fields of its messages that their schema does not have")
        self._flush()
        self._merge_empty_lists()
        special = getattr(self, f"_{self.kind}", None) if self.kind else None
        done = special(episode, notes, names, times) if special else frozenset()
        if self.kind and not done:
            notes.dropped(
                f"{self.name} (as {self.kind})",
                "its messages differ in form, or have one that is not known; their bytes are kept",
            )
        vectors: list[Channel] = []
        for path, field in self.fields.items():
            if path in done:
                continue
            name = names.take(self.name, path, notes)
            channel = self._channel(name, path, field, times)
            episode.observations[name] = channel
            vectors.append(channel)
            notes.kept(f"{self.name}.{_dotted(path)}", f"signal/{name}")
        self._name_elements(vectors)
        facts = {"publish_time_ns": self.publish_times, "sequence": self.sequences}
        if len(set(self.channels)) > 1:
            facts["channel_id"] = self.channels
        if -1 in self.publish_times[:1]:  # bags have no such time
            del facts["publish_time_ns"]
            if not self.fields:
                facts["log_time_ns"] = self.log_times
        for key, values in facts.items():
            if key == "sequence" and not any(values):
                continue
            name = names.take(self.name, (key,), notes)
            order = np.argsort(times, kind="stable")
            kept = np.array(values, np.int64 if key.endswith("_ns") else np.uint32)[order]
            unit = "ns" if key.endswith("_ns") else ""
            extra = {**self.origin, "record": key}
            episode.observations[name] = Channel(
                name, data=kept, timestamps_ns=times[order], unit=unit, extra=extra
            )
            notes.kept(f"{self.name}.{key}", f"signal/{name}")

    def _name_elements(self, channels: list[Channel]) -> None:
        """Gives vectors the names that the same messages state, as in JointState."""
        for key in ("name", "names"):
            field = self.fields.get((key,))
            if field is None or field.kind != "text" or not field.values:
                continue
            first = field.values[0]
            if isinstance(first, Json) and all(one == first for one in field.values):
                names = first.value()
                for channel in channels:
                    if channel.layout == "dense" and channel.step_shape == (len(names),):
                        channel.extra = {**channel.extra, "names": names}

    def _order(self, field: Field, times: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64], bool]:
        """The messages that have a field in the order of their times, those times, and whether any moved."""
        messages = np.array(field.messages, np.int64)
        own = times[messages]
        if len(own) < 2 or not (own[1:] < own[:-1]).any():
            return np.arange(len(messages)), own, False
        order = np.argsort(own, kind="stable")
        return order, own[order], True

    def _channel(self, name: str, path: Path, field: Field, times: NDArray[np.int64]) -> Channel:
        order, own, moved = self._order(field, times)
        facts: dict[str, Any] = {
            "timestamps_ns": own,
            "extra": {
                **self.origin,
                "path": [list(key) if isinstance(key, tuple) else key for key in path],
            },
        }
        keys = path[-1] if path else None
        if isinstance(keys, tuple):
            if keys in TIMES:
                facts["unit"] = "ns"
            else:
                facts["extra"]["names"] = list(keys)
        if field.kind == "number":
            numbers = self._numbers(field)
            if numbers is not None:
                return Channel(name, data=numbers[order], **facts)
        elif field.kind == "text":
            texts = [field.values[at] for at in order] if moved else field.values
            if not any(isinstance(one, Json) for one in texts):
                return TextChannel(name, [well_formed(one) for one in texts], **facts)
            if all(isinstance(one, Json) for one in texts):
                return TextChannel(name, texts, content_type="application/json", **facts)
        elif field.kind == "array":
            made = self._array(name, path, field, order, moved, facts)
            if made is not None:
                return made
        messages = np.array(field.messages, np.int64)[order].tolist()
        values = self.field_values(path, messages)
        return TextChannel(
            name, [as_json(one) for one in values], content_type="application/json", **facts
        )

    @staticmethod
    def _numbers(field: Field) -> NDArray[Any] | None:
        """Numbers as an array; None if no dtype holds them exactly."""
        values = field.values
        if field.dtype is not None:
            return np.array(values, field.dtype)
        kinds = {type(one) for one in values}
        if kinds == {bool}:
            return np.array(values, np.bool_)
        if kinds == {int}:
            low, high = min(values), max(values)
            if low >= -_I64 and high < _I64:
                return np.array(values, np.int64)
            return np.array(values, np.uint64) if low >= 0 and high < 2 * _I64 else None
        if float not in kinds or bool in kinds:
            return None
        if any(type(one) is int and abs(one) >= EXACT for one in values):
            return None
        return np.array([np.nan if one is None else one for one in values], np.float64)

    def _array(
        self,
        name: str,
        path: Path,
        field: Field,
        order: Any,  # noqa: ANN401 - an index
        moved: bool,
        facts: dict[str, Any],
    ) -> Channel | None:
        """ArrayColumn as a dense or ragged channel; None if their shapes do not allow that."""
        dtype = field.dtype
        assert dtype is not None
        shapes = [field.shapes[at] for at in order] if moved else field.shapes
        tails = {shape[1:] for shape in shapes if shape != (0,)} or {()}
        if len(tails) > 1:
            return None
        tail = tails.pop()
        counts = np.array([shape[0] for shape in shapes], np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        is_dense = len(set(shapes)) == 1
        if not path:
            is_dense = False
        if field.content is None:
            messages = np.array(field.messages, np.int64)[order]
            items: Any = SensorItems(
                lambda message: self.decoded(message, path)[path], messages, offsets, tail, dtype
            )
            if is_dense:
                rows = SensorSteps(items, (len(shapes), *shapes[0]))
                return channel_of(name, rows, path=self._path, **facts)
            return ragged(name, items, offsets, self._path, facts)
        values = np.frombuffer(bytes(field.content), dtype).reshape(-1, *tail)
        if moved:
            starts = np.concatenate([[0], np.cumsum([shape[0] for shape in field.shapes])])
            values = np.concatenate([values[starts[at] : starts[at + 1]] for at in order])
        if is_dense:
            return Channel(name, data=values.reshape(len(shapes), *shapes[0]), **facts)
        return RaggedChannel(name, values=values, offsets=offsets, **facts)

    # --- pictures and points

    def same(self, *keys: str) -> list[Any] | None:
        """The values that fields have in all messages; None if one of them is missing or differs."""
        found = []
        for key in keys:
            field = self.fields.get((key,))
            if field is None or not field.values or len(field.messages) != len(self.log_times):
                return None
            if any(one != field.values[0] for one in field.values):
                return None
            found.append(field.values[0])
        return found

    def _bytes(
        self, times: NDArray[np.int64]
    ) -> tuple[SensorItems, NDArray[np.int64], list[int]] | None:
        """The field `data` of all messages, in the order of their times, and its lengths."""
        field = self.fields.get(("data",))
        if field is None or field.kind != "array" or len(field.messages) != len(times):
            return None
        if field.dtype != np.uint8:  # JSON may have a list of numbers
            return None
        order, own, _ = self._order(field, times)
        counts = [field.shapes[at][0] for at in order]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        content = field.content
        get: Callable[[int], Any]
        if content is None:

            def get(message: int) -> Any:  # noqa: ANN401 - an array
                return self.decoded(message, ("data",))["data",]
        else:
            starts = np.concatenate([[0], np.cumsum([shape[0] for shape in field.shapes])]).tolist()
            whole = np.frombuffer(bytes(content), np.uint8)

            def get(message: int) -> Any:  # noqa: ANN401 - an array
                return whole[starts[message] : starts[message + 1]]

        return SensorItems(get, order, offsets, (), np.dtype(np.uint8)), own, counts

    def _image(
        self, episode: Episode, notes: Notes, names: FieldNames, times: NDArray[np.int64]
    ) -> frozenset[Path]:
        facts, data = self.same("height", "width", "encoding", "step"), self._bytes(times)
        if facts is None or data is None:
            return frozenset()
        height, width, encoding, step = facts
        if not isinstance(encoding, str) or not _are_counts(height, width, step):
            return frozenset()
        layout = pixel_layout(encoding)
        big = self.same("is_bigendian")
        items, own, counts = data
        if layout is None or set(counts) != {step * height}:
            return frozenset()
        dtype, channels, flip = layout
        if step < width * channels * dtype.itemsize:
            return frozenset()
        rows = SensorPictures(
            items, height, width, step, channels, dtype, flip, bool(big and big[0])
        )
        name = names.take(self.name, (), notes)
        modality = Modality.DEPTH if encoding.upper() in DEPTH else Modality.RGB
        extra = {**self.origin, "encoding": encoding}
        episode.observations[name] = channel_of(
            name, rows, path=self._path, modality=modality, timestamps_ns=own, extra=extra
        )
        if flip:
            notes.reordered(f"{self.name}.data", f"{encoding} to RGB")
        notes.kept(f"{self.name}.data", f"signal/{name}")
        return frozenset(
            (key,) for key in ("data", "height", "width", "encoding", "step", "is_bigendian")
        )

    def _compressed(
        self, episode: Episode, notes: Notes, names: FieldNames, times: NDArray[np.int64]
    ) -> frozenset[Path]:
        data = self._bytes(times)
        if data is None or len(self._pictures) != 1:
            return frozenset()
        (picture,) = self._pictures
        if not picture.content_type:
            return frozenset()
        items, own, _ = data
        form = self.same("format")
        name = names.take(self.name, (), notes)
        extra = {**self.origin, **({"format": form[0]} if form else {})}
        facts: dict[str, Any] = {"timestamps_ns": own, "extra": extra}
        if picture.dtype and not self._decodes_video:
            facts["modality"] = Modality.RGB if picture.dtype == "u1" else Modality.DEPTH
            is_key = np.ones(len(items), np.bool_)
            episode.observations[name] = video_channel(
                name, items, picture.content_type, picture[1:], is_key, self._path, facts
            )
            notes.kept(f"{self.name}.data", f"signal/{name}")
        else:
            frames = EncodedFrames(name, SensorFrames(items), self._path)
            facts["modality"] = Modality.RGB if frames.dtype == np.uint8 else Modality.DEPTH
            episode.observations[name] = channel_of(name, frames, path=self._path, **facts)
            notes.decoded(self.name, f"{picture.content_type} to pixels")
        return frozenset((("data",), ("format",)) if form else (("data",),))

    def _video(
        self, episode: Episode, notes: Notes, names: FieldNames, times: NDArray[np.int64]
    ) -> frozenset[Path]:
        data, form = self._bytes(times), self.same("format")
        if data is None or form is None or len(self._keyframes) != len(times):
            return frozenset()
        items, own, _ = data
        keyframes = np.array(self._keyframes)[items.messages]
        content_type = f"video/{form[0]}"
        if not keyframes[
            0
        ]:  # so that its first frames cannot be decoded, or the format is not known
            return frozenset()
        size = video_size(content_type, items.message(0).tobytes())
        if size is None:
            return frozenset()
        name = names.take(self.name, (), notes)
        facts = {"timestamps_ns": own, "extra": {**self.origin, "format": form[0]}}
        facts["modality"] = Modality.RGB
        made: Channel = video_channel(
            name, items, content_type, ("u1", (*size, 3)), keyframes, self._path, facts
        )
        if self._decodes_video:
            notes.decoded(self.name, f"{content_type} to pixels")
            made = channel_of(name, made, path=self._path, **facts)
        episode.observations[name] = made
        notes.kept(f"{self.name}.data", f"signal/{name}")
        return frozenset((("data",), ("format",)))

    def _points(
        self, episode: Episode, notes: Notes, names: FieldNames, times: NDArray[np.int64]
    ) -> frozenset[Path]:
        data = self._bytes(times)
        described = point_layout(self)
        if data is None or described is None:
            return frozenset()
        fields, stride = described
        items, own, counts = data
        if any(count % stride for count in counts):
            return frozenset()
        offsets = np.concatenate([[0], np.cumsum([count // stride for count in counts])])
        kinds = {dtype for _, dtype, _ in fields}
        groups: dict[str, list[Any]] = {}
        for one in fields:
            is_first = len(kinds) == 1 or one[0] in ("x", "y", "z")
            groups.setdefault("" if is_first else one[0], []).append(one)
        for key, group in groups.items():
            if len({dtype for _, dtype, _ in group}) > 1:
                return frozenset()
            name = names.take(self.name, ("points", key) if key else ("points",), notes)
            made = Points(items, offsets, group, stride)
            extra = {**self.origin, "names": [one[0] for one in group], "points": key}
            facts = {"modality": Modality.POINTCLOUD, "timestamps_ns": own, "extra": extra}
            episode.observations[name] = ragged(name, made, offsets, self._path, facts)
            notes.kept(f"{self.name}.data", f"signal/{name}")
        gone: set[Path] = {("data",), ("point_step",), ("point_stride",), ("row_step",)}
        gone.update(path for path in self.fields if path[0] == "fields")
        gone.add(("is_bigendian",))
        return frozenset(gone)


class Places:
    """Places of messages in several files: the chunk also says which file it is in."""

    def __init__(self, files: Sequence[MessageFile]) -> None:
        self._files = files

    def place(self, number: int, place: Place) -> Place:
        """A place in one of the files as a place in all of them."""
        return (place[0] * len(self._files) + number, place[1], place[2])

    def data(self, place: Place) -> memoryview:
        """The bytes of a message."""
        chunk, number = divmod(place[0], len(self._files))
        return self._files[number].data((chunk, place[1], place[2]))


class FieldNames:
    """The names of the channels of an episode, each used once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, topic: str, path: Path, notes: Notes) -> str:
        """A name for the channel of a field."""
        keys = [key for key in path if isinstance(key, str)]
        plain = "/".join((*topic.split("/"), *keys))
        parts = [part for part in plain.split("/") if part]
        name = "/".join("_" if part in (".", "..") else part for part in parts) or "message"
        name = name.replace("\0", "_").encode(errors="replace").decode()
        number, wanted = 1, name
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        if number > 1 or any(part in (".", "..") for part in parts):
            notes.renamed(f"{topic}.{_dotted(path)}", f"signal/{name}")
        return name


def _dotted(path: Path) -> str:
    return ".".join(str(key) for key in path if isinstance(key, str))


def as_json(value: Any) -> str:  # noqa: ANN401 - a Value
    """A value as JSON text."""
    if isinstance(value, Json):
        return value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return well_formed(json_text(value))


def well_formed(text: str) -> str:
    """A text that UTF-8 can hold: JSON may escape half a character."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def point_layout(topic: Topic) -> tuple[list[tuple[str, np.dtype[Any], int]], int] | None:
    """Name, dtype and offset of the fields of points, and the bytes of one point; None if messages differ."""
    is_ros = ("point_step",) in topic.fields
    facts = topic.same("point_step" if is_ros else "point_stride")
    big = topic.same("is_bigendian")
    if facts is None or not facts[0] or not _are_counts(facts[0]):
        return None
    stride = facts[0]
    found = topic.decoded(0)
    keys: list[Any] = []
    for key in ("name", "offset", "datatype" if is_ros else "type", "count"):
        field = topic.fields.get(("fields", None, key))
        if field is None and key == "count":
            keys.append(None)
            continue
        if field is None or len(field.messages) != len(topic.log_times):
            return None
        value: Any = found.get(("fields", None, key))
        if value is None:
            return None
        if field.kind == "text":
            if any(one != value for one in field.values):
                return None
            keys.append(value.value())
        else:
            if field.content is None or bytes(field.content) != value.tobytes() * len(
                field.messages
            ):
                return None
            keys.append(value.tolist())
    names, offsets, types, counts = keys
    codes = ROS_POINTS if is_ros else FOXGLOVE_POINTS
    fields: list[tuple[str, np.dtype[Any], int]] = []
    for number, (name, offset, code) in enumerate(zip(names, offsets, types, strict=True)):
        count = counts[number] if counts else 1
        if not isinstance(name, str) or not _are_counts(offset, code, count):
            return None
        if not 0 < code < len(codes):
            return None
        dtype = np.dtype(codes[code]).newbyteorder(">" if big and big[0] else "<")
        if not 0 < count <= 64 or offset + count * dtype.itemsize > stride:
            return None
        fields.extend(
            (name if count == 1 else f"{name}_{one}", dtype, offset + one * dtype.itemsize)
            for one in range(count)
        )
    if is_ros and not _is_dense_cloud(topic, stride):
        return None
    return (fields, stride) if fields else None


def _are_counts(*values: object) -> bool:
    """Whether these are integers from 0 on: JSON may have anything there."""
    return all(type(one) is int and 0 <= one < _I64 for one in values)


def _is_dense_cloud(topic: Topic, stride: int) -> bool:
    """Whether the rows of clouds follow each other without gaps."""
    width, height, step = (topic.fields.get((key,)) for key in ("width", "height", "row_step"))
    data = topic.fields[("data",)]
    if width is None or height is None or step is None:
        return False
    return all(
        _are_counts(w, h, s) and w * stride == s and s * h == shape[0]
        for w, h, s, shape in zip(
            width.values or (), height.values or (), step.values or (), data.shapes, strict=False
        )
    )
