"""Pictures and points in messages: what their bytes mean, and arrays of them that are read when they are used."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard._channels import RaggedChannel
from wshard._values import DType
from wshard.convert._arrays import RowsBlock, image_type

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
    "picture_size",
    "pixel_layout",
    "ragged",
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
        self._messages = messages
        self._offsets = offsets
        self.shape = (int(offsets[-1]), *tail)
        self.dtype = dtype

    def message(self, step: int) -> NDArray[Any]:
        """The items of one message."""
        found: NDArray[Any] = self._get(int(self._messages[step]))
        return found.astype(self.dtype, copy=False)

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        step = int(np.searchsorted(self._offsets, start, "right")) - 1
        at = start
        while at < stop:
            first, end = int(self._offsets[step]), int(self._offsets[step + 1])
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


def picture_size(data: memoryview) -> tuple[int, int] | None:
    """Width and height of a PNG or JPEG by its head; None for anything else."""
    kind = image_type(data)
    if kind == "image/png" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    at = 2
    while kind == "image/jpeg" and at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
