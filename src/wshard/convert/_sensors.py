"""Pictures and points in messages: what their bytes mean, and arrays of them that are read when they are used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import MissingExtra
from shard_format.extras import require
from shard_format.registry import DEFAULT_LIMITS
from wshard._channels import RaggedChannel
from wshard._values import DType
from wshard._video import VideoChannel
from wshard._video_codec import BY_CONTENT_TYPE, CODECS
from wshard._video_index import KEYFRAME, FrameIndex
from wshard.convert._arrays import RowsBlock, image_type, picture_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "DEPTH",
    "FOXGLOVE_POINTS",
    "KINDS",
    "ROS_POINTS",
    "Points",
    "SensorFrames",
    "SensorItems",
    "SensorPictures",
    "SensorSteps",
    "picture_form",
    "pixel_layout",
    "ragged",
    "video_channel",
    "video_size",
]


def ragged(
    name: str,
    items: Any,  # noqa: ANN401 - rows that are read when they are used
    offsets: NDArray[np.int64],
    path: str,
    facts: dict[str, Any],
) -> RaggedChannel:
    """A ragged channel whose items are read when they are used."""
    dtype = DType.from_numpy(items.dtype)
    empty = np.zeros((0, *items.shape[1:]), items.dtype)
    channel = RaggedChannel(name, values=empty, offsets=np.zeros(len(offsets), np.int64), **facts)
    return channel.with_items_at(RowsBlock(name, items, dtype, path), offsets)


# --- rows that are read when they are used


class SensorItems:
    """The items of all messages back to back."""

    def __init__(
        self,
        get: Callable[[int], Any],
        messages: NDArray[np.int64],
        offsets: NDArray[np.int64],
        tail: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._get = get
        self.messages = messages
        self.offsets = offsets
        self.shape = (int(offsets[-1]), *tail)
        self.dtype = dtype

    def message(self, step: int) -> NDArray[Any]:
        """The items of one message."""
        found: NDArray[Any] = self._get(int(self.messages[step]))
        return found.astype(self.dtype, copy=False)

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        step = int(np.searchsorted(self.offsets, start, "right")) - 1
        at = start
        while at < stop:
            first, end = int(self.offsets[step]), int(self.offsets[step + 1])
            until = min(end, stop)
            if until > at:
                items = self.message(step).reshape(-1, *self.shape[1:])
                out[at - start : until - start] = items[at - first : until - first]
                at = until
            step += 1
        return out


class SensorSteps:
    """Items of which each message has equally many, as one array for each message."""

    def __init__(self, items: SensorItems, shape: tuple[int, ...]) -> None:
        self._items = items
        self.shape = shape
        self.dtype = items.dtype

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        each = self.shape[1]
        return self._items[start * each : max(start, stop) * each].reshape(-1, *self.shape[1:])


class SensorFrames(Sequence[bytes]):
    """The bytes of each message."""

    def __init__(self, items: SensorItems) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, step: Any) -> Any:  # noqa: ANN401 - one step only
        return self._items.message(step).tobytes()


class SensorPictures:
    """Raw pictures, one a message."""

    def __init__(
        self,
        items: SensorItems,
        height: int,
        width: int,
        step: int,
        channels: int,
        dtype: np.dtype[Any],
        flip: bool,
        is_big: bool,
    ) -> None:
        self._items = items
        self._form = (height, width, step, channels, flip)
        self.dtype = dtype
        self._stored = dtype.newbyteorder(">") if is_big else dtype
        self.shape = (len(items), height, width, *((channels,) if channels > 1 else ()))

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        height, width, step, channels, flip = self._form
        used = width * channels * self.dtype.itemsize
        for number, at in enumerate(range(start, stop)):
            lines = self._items.message(at).reshape(height, step)[:, :used]
            pixels = np.ascontiguousarray(lines).view(self._stored).reshape(self.shape[1:])
            if flip:
                out[number, ..., :3] = pixels[..., 2::-1]
                out[number, ..., 3:] = pixels[..., 3:]
            else:
                out[number] = pixels
        return out


class Points:
    """Some fields of the points of all messages."""

    def __init__(
        self,
        items: SensorItems,
        offsets: NDArray[np.int64],
        fields: list[tuple[str, np.dtype[Any], int]],
        stride: int,
    ) -> None:
        dtype = fields[0][1]
        self._record = np.dtype(
            {
                "names": [f"f{number}" for number in range(len(fields))],
                "formats": [dtype] * len(fields),
                "offsets": [offset for _, _, offset in fields],
                "itemsize": stride,
            }
        )
        self._items = SensorItems(
            self._decode, np.arange(len(items)), offsets, (len(fields),), dtype.newbyteorder("=")
        )
        self._bytes = items
        self.shape = self._items.shape
        self.dtype = self._items.dtype

    def _decode(self, step: int) -> NDArray[Any]:
        records = np.frombuffer(self._bytes.message(step).tobytes(), self._record)
        return np.stack([records[name] for name in self._record.names or ()], axis=1)

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        return self._items[rows]


# --- what messages of known types look like

KINDS: Final = {
    "sensor_msgs/Image": "image",
    "foxglove.RawImage": "image",
    "foxglove_msgs/RawImage": "image",
    "sensor_msgs/CompressedImage": "compressed",
    "foxglove.CompressedImage": "compressed",
    "foxglove_msgs/CompressedImage": "compressed",
    "foxglove.CompressedVideo": "video",
    "foxglove_msgs/CompressedVideo": "video",
    "sensor_msgs/PointCloud2": "points",
    "foxglove.PointCloud": "points",
    "foxglove_msgs/PointCloud": "points",
}
DEPTH: Final = ("16UC1", "32FC1", "64FC1", "MONO16")
_LAYOUTS: Final = {
    "rgb8": ("u1", 3, False),
    "bgr8": ("u1", 3, True),
    "rgba8": ("u1", 4, False),
    "bgra8": ("u1", 4, True),
    "mono8": ("u1", 1, False),
    "mono16": ("<u2", 1, False),
    "rgb16": ("<u2", 3, False),
    "bgr16": ("<u2", 3, True),
}
_OPENCV: Final = re.compile(r"(8|16|32|64)([USF])C([1-4])")
ROS_POINTS: Final = ("", "i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")
FOXGLOVE_POINTS: Final = ("", "u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8")


@lru_cache(64)
def pixel_layout(encoding: str) -> tuple[np.dtype[Any], int, bool] | None:
    """The dtype of a pixel, its channels, and whether they are BGR; None for an unknown encoding."""
    found = _LAYOUTS.get(encoding)
    if found:
        return np.dtype(found[0]), found[1], found[2]
    parts = _OPENCV.fullmatch(encoding)
    if not parts:
        is_8_bit = encoding.startswith("bayer_") and encoding.endswith("8")
        return (np.dtype("u1"), 1, False) if is_8_bit else None
    bits, kind, channels = parts.groups()
    try:
        dtype = np.dtype(f"<{ {'U': 'u', 'S': 'i', 'F': 'f'}[kind] }{int(bits) // 8}")
    except TypeError:
        return None
    return dtype, int(channels), False


class PictureForm(NamedTuple):
    """What an encoded picture becomes when it is decoded."""

    content_type: str
    """Empty if it cannot be decoded."""
    dtype: str = ""
    """Empty if its head does not say enough."""
    shape: tuple[int, ...] = ()


def picture_form(data: memoryview) -> PictureForm:
    """What the head of a picture says."""
    head = picture_head(data)
    if head is None:
        return PictureForm(image_type(data))
    dtype, shape = head.frame or ("", (head.height, head.width))
    return PictureForm(head.content_type, dtype, shape)


def video_size(content_type: str, packet: bytes) -> tuple[int, int] | None:
    """Height and width of the frames of a video, by its first keyframe; None if it cannot be decoded here."""
    try:
        av = require("av", "video")
    except MissingExtra:
        return None
    context = av.CodecContext.create(CODECS[BY_CONTENT_TYPE[content_type]].decoder, "r")
    context.thread_count = 1
    context.options = {"max_pixels": str(DEFAULT_LIMITS.max_decompressed_bytes // 3)}
    try:
        frames = [*context.decode(av.Packet(packet)), *context.decode(None)]
    except (av.FFmpegError, EOFError):
        return None
    return (frames[0].height, frames[0].width) if frames else None


def video_channel(
    name: str,
    items: SensorItems,
    content_type: str,
    form: tuple[str, tuple[int, ...]],
    keyframes: NDArray[np.bool_],
    path: str,
    facts: dict[str, Any],
) -> VideoChannel:
    """A camera whose packets are read when they are used.

    Args:
        name: of the channel.
        items: the bytes of its packets, in the order of steps.
        content_type: of the packets.
        form: dtype and shape of a frame.
        keyframes: whether decoding can start at each packet.
        path: the file, for errors.
        facts: as `Channel` takes them.
    """
    dtype = DType.from_numpy(np.dtype(form[0]))
    channel = VideoChannel.from_packets([], content_type, form[1], dtype=dtype, name=name)
    frames = np.stack([np.arange(len(items)), keyframes * KEYFRAME], axis=1).astype(np.int64)
    index = FrameIndex(items.offsets, frames, len(items))
    channel = channel.with_packets(RowsBlock(name, items, DType.UINT8, path), index)
    for key, value in facts.items():
        setattr(channel, key, value)
    return channel
