"""Entries of channels as messages in JSON that Foxglove shows, and back."""

from __future__ import annotations

import base64
import io
import json
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadMetadata, BadValue, ShardError
from shard_format.extras import require
from shard_format.images import decode_image
from shard_format.registry import DEFAULT_LIMITS
from wshard._channels import (
    Channel,
    Modality,
    RaggedChannel,
    TextChannel,
    as_modality,
    is_frames,
)
from wshard._values import DType
from wshard._video import VideoChannel
from wshard.convert._arrays import channel_of, image_type
from wshard.convert._sensors import FOXGLOVE_POINTS, SensorItems, ragged, video_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["SCHEMAS", "channel_from", "encoded", "entries", "form_of", "row_of", "timestamp"]

# Steps with more numbers than this are base64: lists of them are slow to parse.
_MOST_NUMBERS: Final = 1024
_WINDOW: Final = 1 << 20

_TIME: Final = {
    "type": "object",
    "title": "time",
    "properties": {"sec": {"type": "integer"}, "nsec": {"type": "integer"}},
}
_BYTES: Final = {"type": "string", "contentEncoding": "base64"}
_TEXT: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}


def _schema(title: str, **properties: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"title": title, "type": "object", "properties": properties}


SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "value": _schema("wshard.Value", timestamp=_TIME),
    "joints": _schema(
        "sensor_msgs/JointState",
        header=_schema("std_msgs/Header", stamp=_TIME, frame_id=_TEXT),
        name={"type": "array", "items": _TEXT},
        position={"type": "array", "items": {"type": "number"}},
    ),
    "array": _schema(
        "wshard.Array",
        timestamp=_TIME,
        dtype=_TEXT,
        shape={"type": "array", "items": _INTEGER},
        data=_BYTES,
    ),
    "text": _schema("wshard.Text", timestamp=_TIME, value=_TEXT),
    "png": _schema(
        "foxglove.CompressedImage", timestamp=_TIME, frame_id=_TEXT, data=_BYTES, format=_TEXT
    ),
    "picture": _schema(
        "foxglove.CompressedImage", timestamp=_TIME, frame_id=_TEXT, data=_BYTES, format=_TEXT
    ),
    "video": _schema(
        "foxglove.CompressedVideo", timestamp=_TIME, frame_id=_TEXT, data=_BYTES, format=_TEXT
    ),
    "raw": _schema(
        "foxglove.RawImage",
        timestamp=_TIME,
        frame_id=_TEXT,
        width=_INTEGER,
        height=_INTEGER,
        encoding=_TEXT,
        step=_INTEGER,
        data=_BYTES,
    ),
    "points": _schema(
        "foxglove.PointCloud",
        timestamp=_TIME,
        frame_id=_TEXT,
        pose=_schema(
            "foxglove.Pose",
            position=_schema("foxglove.Vector3", **dict.fromkeys("xyz", _NUMBER)),
            orientation=_schema("foxglove.Quaternion", **dict.fromkeys("xyzw", _NUMBER)),
        ),
        point_stride=_INTEGER,
        fields={
            "type": "array",
            "items": _schema(
                "foxglove.PackedElementField", name=_TEXT, offset=_INTEGER, type=_INTEGER
            ),
        },
        data=_BYTES,
    ),
}
"""The schema of each form; `value` has one more field (`schema_of_channel`).

Foxglove refuses a topic if one of its fields has no type, is a list of lists, or is an object without properties.
"""

PACKETS: Final = ("picture", "video")
"""Forms in which encoded pictures go out as they are."""
_RAW: Final = {"<u2": "16UC1", "<f4": "32FC1"}
_POSE: Final = {
    "position": {"x": 0, "y": 0, "z": 0},
    "orientation": {"x": 0, "y": 0, "z": 0, "w": 1},
}


def form_of(channel: Channel) -> str:
    """Which form the messages of a channel have, one of `SCHEMAS`."""
    shape = channel.step_shape
    if isinstance(channel, TextChannel):
        return "text"
    if isinstance(channel, VideoChannel):
        if channel.codec in ("jpeg", "png"):
            return "picture"
        if channel.codec in ("h264", "h265", "av1", "vp9") and _is_in_order(channel):
            return "video"
    if isinstance(channel, RaggedChannel):
        is_cloud = channel.modality == Modality.POINTCLOUD and len(shape) == 1 and shape[0] >= 3
        if is_cloud and channel.dtype.str in _point_types():
            return "points"
        each = int(channel.offsets[-1]) * prod(shape) // max(1, channel.length)
        is_plain = each <= _MOST_NUMBERS and channel.dtype_name is not DType.BFLOAT16
        return "value" if is_plain and 0 not in shape else "array"
    if 0 in shape or channel.dtype_name is DType.BFLOAT16:
        return "array"
    has_colours = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    if channel.dtype == np.uint8 and is_frames(channel) and has_colours:
        return "png"
    if len(shape) == 2 and channel.modality == Modality.DEPTH and channel.dtype.str in _RAW:
        return "raw"
    if prod(shape) > _MOST_NUMBERS:
        return "array"
    names = channel.extra.get("names")
    is_named = isinstance(names, list) and shape == (len(names),)
    return "joints" if is_named and channel.dtype.kind == "f" else "value"


def schema_of_channel(channel: Channel, form: str) -> dict[str, Any]:
    """The schema of the messages of a channel."""
    schema, value = SCHEMAS[form], _value_schema(channel)
    if form != "value" or value is None:
        return schema
    return {**schema, "properties": {**schema["properties"], "value": value}}


def schema_of_fields(title: str, channels: Sequence[Channel]) -> dict[str, Any]:
    """The schema of messages that were taken apart, by the paths of their fields."""
    schema = _schema(title)
    for channel in channels:
        path = [
            tuple(key) if isinstance(key, list) else key for key in channel.extra.get("path", ())
        ]
        keys = [key for key in path if not isinstance(key, tuple)]
        is_whole = len(keys) < len(path)  # a vector or a time
        leaf = None if is_whole else _value_schema(channel, inside=None in path, is_foreign=True)
        if not path or (leaf is None and not is_whole):
            continue
        place: Any = schema
        for number, key in enumerate(keys[: None if is_whole else -1]):
            if key is None or "properties" not in place:
                continue
            is_list = keys[number + 1 : number + 2] == [None]
            inner = place["properties"].setdefault(
                key, _list_of(_schema("")) if is_list else _schema("")
            )
            place = inner.get("items", inner)
        if "properties" not in place:  # messages differ
            continue
        if is_whole:
            number_type = _NUMBER if channel.dtype.kind == "f" else _INTEGER
            place["properties"].update(dict.fromkeys(path[-1], number_type))
        else:
            place["properties"].setdefault(keys[-1], leaf)
    return schema


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _value_schema(
    channel: Channel, *, inside: bool = False, is_foreign: bool = False
) -> dict[str, Any] | None:
    """The schema of the entries of a channel; None for lists of lists, and for JSON of any form.

    Args:
        channel: the channel.
        inside: whether an entry is a list with a value for each item of a list.
        is_foreign: whether bytes are base64.
    """
    if isinstance(channel, TextChannel):
        return None if inside or channel.content_type == "application/json" else _TEXT
    dimensions = len(channel.step_shape) + isinstance(channel, RaggedChannel) - inside
    if is_foreign and channel.dtype == np.uint8 and dimensions:
        return _BYTES
    numbers = {"b": {"type": "boolean"}, "f": _NUMBER}.get(channel.dtype.kind, _INTEGER)
    return None if dimensions > 1 else _list_of(numbers) if dimensions else numbers


def _is_in_order(channel: VideoChannel) -> bool:
    """Whether each packet is the frame of the next step, and nothing else is needed to decode it."""
    steps = np.arange(channel.length)
    return np.array_equal(channel.index.steps, steps) and not channel.hidden | len(
        channel.extradata
    )


def _point_types() -> dict[str, int]:
    return {np.dtype(code).str: number for number, code in enumerate(FOXGLOVE_POINTS) if code}


def entries(channel: Channel, form: str) -> Iterator[Any]:
    """The entries of a channel one after the other, read in windows: packets if its form is one of `PACKETS`."""
    if isinstance(channel, VideoChannel) and form in PACKETS:
        block, offsets = channel.as_block(), channel.offsets.tolist()
        for start, stop in pairwise(offsets):
            yield block.part(np.dtype(np.uint8), (stop - start,), start)
    elif isinstance(channel, RaggedChannel):
        offsets = channel.offsets * max(1, channel.step_bytes)
        start = 0
        while start < channel.length:
            most = int(offsets[start]) + _WINDOW
            stop = max(start + 1, int(np.searchsorted(offsets, most, "right")) - 1)
            stop = min(stop, channel.length)
            yield from channel.read_steps(start, stop)
            start = stop
    else:
        for start, stop in channel.step_ranges(_WINDOW):
            yield from channel.read_steps(start, stop)


def timestamp(time_ns: int) -> dict[str, int]:
    """A time as Foxglove has it."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return {"sec": seconds, "nsec": rest}


def encoded(channel: Channel, form: str) -> Callable[[Any], dict[str, Any]]:
    """What makes the fields of a message of an entry of a channel; without times."""
    if form == "text":
        return lambda text: {"value": text}
    if form == "value":
        return lambda entry: {"value": numbers(entry)}
    if form == "joints":
        names = channel.extra["names"]
        return lambda entry: {"name": names, "position": numbers(entry)}
    if form in PACKETS:
        kind = picture_format(channel)
        return lambda packet: {"format": kind, "data": base64.b64encode(packet).decode()}
    if form == "png":
        return _png
    if form == "raw":
        return _raw
    if form == "points":
        names = channel.extra.get("names")
        if not isinstance(names, list) or len(names) != channel.step_shape[0]:
            names = ["x", "y", "z", *(f"f{n}" for n in range(3, channel.step_shape[0]))]
        return lambda entry: points([(names, entry)])
    dtype = str(channel.dtype_name)
    return lambda entry: {
        "dtype": dtype,
        "shape": list(np.shape(entry)),
        "data": base64.b64encode(np.ascontiguousarray(entry).tobytes()).decode(),
    }


def picture_format(channel: Channel) -> str:
    """What Foxglove calls the format of encoded pictures."""
    return channel.codec if isinstance(channel, VideoChannel) else ""


def numbers(entry: Any) -> Any:  # noqa: ANN401 - an array or a number
    """Numbers as JSON: what is not finite becomes a text, as in the JSON of protobuf."""
    found = np.asarray(entry)
    if found.dtype.kind != "f" or np.isfinite(found).all():
        return found.tolist()
    return _finite(found.astype(np.float64).tolist())


def has_odd_nan(entry: Any) -> bool:  # noqa: ANN401 - an array or a number
    """Whether numbers have a NaN with a sign or a payload, which JSON cannot say."""
    found = np.asarray(entry)
    odd = found[np.isnan(found)]
    return bool(odd.size) and odd.tobytes() != np.full(odd.size, np.nan, odd.dtype).tobytes()


def _finite(value: Any) -> Any:  # noqa: ANN401 - numbers in lists
    if isinstance(value, list):
        return [_finite(one) for one in value]
    if np.isnan(value):
        return "NaN"
    return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"


def _png(entry: NDArray[np.uint8]) -> dict[str, Any]:
    image = require("PIL.Image", "images")
    pixels = entry[:, :, 0] if entry.ndim == 3 and entry.shape[2] == 1 else entry
    out = io.BytesIO()
    image.fromarray(np.ascontiguousarray(pixels)).save(out, "png", compress_level=1)
    return {"format": "png", "data": base64.b64encode(out.getvalue()).decode()}


def _raw(entry: NDArray[Any]) -> dict[str, Any]:
    height, width = entry.shape
    return {
        "width": width,
        "height": height,
        "encoding": _RAW[entry.dtype.str],
        "step": width * entry.dtype.itemsize,
        "data": base64.b64encode(np.ascontiguousarray(entry).tobytes()).decode(),
    }


def points(parts: Sequence[tuple[Sequence[str], NDArray[Any]]]) -> dict[str, Any]:
    """A cloud of points with the fields of several arrays, each of one dtype."""
    fields: list[dict[str, Any]] = []
    columns, at = [], 0
    types = _point_types()
    for names, values in parts:
        values = values.reshape(len(values), len(names))
        for number, name in enumerate(names):
            fields.append({"name": name, "offset": at, "type": types[values.dtype.str]})
            columns.append(values[:, number])
            at += values.dtype.itemsize
    record = np.dtype(
        {
            "names": [f"f{number}" for number in range(len(fields))],
            "formats": [column.dtype for column in columns],
            "offsets": [field["offset"] for field in fields],
            "itemsize": at,
        }
    )
    cloud = np.empty(len(columns[0]), record)
    for number, column in enumerate(columns):
        cloud[f"f{number}"] = column
    data = base64.b64encode(cloud.tobytes()).decode()
    return {"pose": _POSE, "point_stride": at, "fields": fields, "data": data}


# --- back


def row_of(channel: Channel, form: str) -> dict[str, Any]:
    """What a message does not say about its channel."""
    row: dict[str, Any] = {
        "form": form,
        "dtype": str(channel.dtype_name),
        "shape": list(channel.step_shape),
        "layout": channel.layout,
    }
    is_decoded = isinstance(channel, VideoChannel) and form not in PACKETS
    if is_decoded:
        row["layout"] = "dense"
    elif isinstance(channel, VideoChannel) and not channel.index.is_plain:
        row["keyframes"] = channel.keyframes.tolist()
    for key in _FACTS:
        value = getattr(channel, key)
        if value not in (None, "") and not (is_decoded and key == "content_type"):
            row[key] = str(value) if isinstance(value, Modality) else value
    if channel.lossy is not None:
        row["lossy"] = dict(channel.lossy)
    if channel.extra:
        row["extra"] = dict(channel.extra)
    return row


_FACTS: Final[tuple[str, ...]] = (
    *("modality", "unit", "description", "semantics", "sampling_rate_hz", "content_type"),
    *("start_ns", "horizon"),
)


class _Entries:
    """The entries of a dense channel, decoded when they are used."""

    def __init__(
        self,
        get: Callable[[int], NDArray[Any]],
        count: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._get = get
        self.shape = (count, *shape)
        self.dtype = dtype

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        for number, step in enumerate(range(start, stop)):
            out[number] = self._get(step)
        return out


class _RaggedEntries:
    """The items of a ragged channel, decoded when they are used."""

    def __init__(
        self,
        get: Callable[[int], NDArray[Any]],
        offsets: NDArray[np.int64],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._get = get
        self._offsets = offsets
        self.shape = (int(offsets[-1]), *shape)
        self.dtype = dtype

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        first = int(np.searchsorted(self._offsets, start, "right")) - 1
        last = int(np.searchsorted(self._offsets, max(start, stop), "left"))
        pieces = [self._get(step) for step in range(first, last)]
        items = np.concatenate(pieces) if pieces else np.empty((0, *self.shape[1:]), self.dtype)
        before = int(self._offsets[first])
        return items[start - before : max(start, stop) - before]


def channel_from(
    name: str,
    row: dict[str, Any],
    message: Callable[[int], memoryview],
    times: NDArray[np.int64] | None,
    count: int,
    path: str,
) -> Channel:
    """The channel of a topic that this library wrote.

    Args:
        name: of the channel.
        row: what `row_of` said.
        message: gives the bytes of a message.
        times: of its own clock, if it has one.
        count: how many messages there are.
        path: the file, for errors.
    """
    try:
        dtype = DType.parse(row["dtype"])
        shape = tuple(int(size) for size in row["shape"])
        form, layout = row["form"], row["layout"]
        known = (*_FACTS, "lossy", "extra")
        facts: dict[str, Any] = {key: row[key] for key in known if key in row}
        if "modality" in facts:
            facts["modality"] = as_modality(facts["modality"])
        if times is not None:
            facts["timestamps_ns"] = times
        if form == "text":
            texts = [json.loads(bytes(message(step)))["value"] for step in range(count)]
            return TextChannel(name, texts, **facts)
        if form in PACKETS:
            return _packets(name, row, message, count, path, facts)
        get = _decoder(name, form, layout, shape, dtype, message, path)
        # Each number takes a byte or more, except in a compressed picture.
        if form == "png":
            _ = [get(0)] if count else []
        elif layout != "ragged":
            _check_sizes(map(message, range(count)), prod(shape))
        if layout == "ragged":
            offsets = np.zeros(count + 1, np.int64)
            np.cumsum([len(get(step)) for step in range(count)], out=offsets[1:])
            items = _RaggedEntries(get, offsets, shape, dtype.numpy_dtype)
            return ragged(name, items, offsets, path, facts)
        horizon = facts.pop("horizon", None)
        channel = channel_of(
            name, _Entries(get, count, shape, dtype.numpy_dtype), path=path, **facts
        )
        if dtype is DType.BFLOAT16:
            channel.dtype_name = dtype
        if horizon is not None:
            channel.horizon = horizon
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, ShardError):
            raise
        raise BadMetadata(
            f"the record 'wshard' does not fit the messages: {error!r}", path=path, entry=name
        ) from None
    return channel


def _check_sizes(messages: Iterable[memoryview], numbers: int) -> None:
    if any(len(one) < numbers for one in messages):
        raise ValueError("an entry has fewer bytes than numbers")


def _packets(
    name: str,
    row: dict[str, Any],
    message: Callable[[int], memoryview],
    count: int,
    path: str,
    facts: dict[str, Any],
) -> VideoChannel:
    """A camera whose packets are messages."""
    get = _decoder(name, "array", "ragged", (), DType.UINT8, message, path)
    keyframes = np.zeros(count, np.bool_)
    keyframes[row.get("keyframes", slice(None))] = True
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum([len(get(step)) for step in range(count)], out=offsets[1:])
    items = SensorItems(get, np.arange(count), offsets, (), np.dtype(np.uint8))
    form = (DType.parse(row["dtype"]).numpy_dtype.str, tuple(row["shape"]))
    content_type = facts.pop("content_type")
    return video_channel(name, items, content_type, form, keyframes, path, facts)


def decoded(channel: VideoChannel) -> Channel:
    """A camera as pixels that are decoded when they are used."""
    facts = {key: getattr(channel, key) for key in (*_FACTS, "extra", "lossy")}
    del facts["content_type"], facts["horizon"]
    if channel.has_own_timestamps:
        facts["timestamps_ns"] = channel.timestamps_ns
    return channel_of(channel.name, channel, path=None, **facts)


def _decoder(
    name: str,
    form: str,
    layout: str,
    shape: tuple[int, ...],
    dtype: DType,
    message: Callable[[int], memoryview],
    path: str,
) -> Callable[[int], NDArray[Any]]:
    """What gives the entry of a step."""
    kind = dtype.numpy_dtype
    wanted = (-1, *shape) if layout == "ragged" else shape

    def get(step: int) -> NDArray[Any]:
        try:
            fields = json.loads(bytes(message(step)))
            if form == "value":
                return np.array(fields["value"], kind).reshape(wanted)
            if form == "joints":
                return np.array(fields["position"], kind).reshape(wanted)
            data = base64.b64decode(fields["data"])
            if form == "png":
                content = memoryview(data)
                most = DEFAULT_LIMITS.max_decompressed_bytes
                return decode_image(image_type(content), content, most).reshape(wanted)
            return np.frombuffer(data, kind).reshape(wanted)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, (BadMetadata, BadValue)):
                raise
            raise BadValue(
                f"a message does not have the form that the record 'wshard' states: {error!r}",
                path=path,
                entry=f"{name}, message {step}",
                expected=f"{form}, {dtype}{list(shape)}",
            ) from None

    return get
