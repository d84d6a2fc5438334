"""How the channels of an episode become the columns of a LeRobot dataset."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import BadMetadata, InvalidArgument
from shard_format.extras import require
from wshard._channels import Modality, RaggedChannel, TextChannel, is_frames
from wshard._metadata import CHANNEL_FIELDS
from wshard._values import DType, step_ranges
from wshard._video import VideoChannel
from wshard.convert._lerobot._layout import INSTRUCTION, addresses, parse_feature
from wshard.convert._lerobot._statistics import (
    PictureStatistics,
    sampled_steps,
    stated_or,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from wshard._channels import Channel
    from wshard._episode import Episode
    from wshard._lanes import Address

_ENDINGS: Final = {"image/png": "png", "image/jpeg": "jpg"}
_SMALLEST_SIDE: Final = 32
_FRAME_BYTES: Final = 64 << 20


class TableColumn(NamedTuple):
    """One feature that is written."""

    name: str
    address: Address | None
    """None for what is made of metadata."""
    kind: str
    """`number`, `text`, `image` or `video`."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one step in an episode."""
    fields: dict[str, Any]
    """In `info.json`."""


def task_address(episode: Episode) -> Address | None:
    """Where the episode has the task of each step as text; None if it does not."""
    own = episode.metadata.get("lerobot")
    features = own.get("features") if isinstance(own, dict) else None
    parsed = {
        name: parse_feature("", name, fields)
        for name, fields in original_features(features).items()
    }
    taken = ("signal", INSTRUCTION) in addresses(parsed).values()
    address = ("signal", "task" if taken else INSTRUCTION)
    channel = episode.parts.get(address)
    is_usable = isinstance(channel, TextChannel) and problem_with(channel, episode.length) is None
    return address if is_usable else None


def original_features(features: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - checked here
    """The features that a dataset had from which the episode was read; those that are not understood are left out."""
    found: dict[str, dict[str, Any]] = {}
    for each in features if isinstance(features, list) else ():
        fields = dict(each) if isinstance(each, dict) else {}
        name = fields.pop("name", None)
        try:
            parse_feature("", name, fields)
        except BadMetadata:
            continue
        if isinstance(name, str):
            found[name] = fields
    return found


def stated_fields(original: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What of an original description still holds."""
    kept = {name: value for name, value in original.items() if name not in ("dtype", "shape")}
    if own["dtype"] != "video":
        kept.pop("info", None)
    if original.get("shape") != own["shape"]:
        is_turned = own["dtype"] in ("video", "image") and sorted(original["shape"]) == sorted(
            own["shape"]
        )
        if not is_turned:
            kept.pop("names", None)
            return kept
        kept["shape"] = original["shape"]
    return kept


def problem_with(channel: Channel, length: int) -> str | None:
    """Why a channel cannot be written."""
    if channel.has_own_clock:
        return "it has a clock of its own, and rows are steps"
    if isinstance(channel, RaggedChannel) and not isinstance(channel, TextChannel):
        return "steps have different numbers of items"
    if channel.length not in (length, length + 1):
        return f"it has {channel.length} entries for {length} steps"
    return None


def unwritten_fields(channel: Channel, restored: Mapping[str, Any]) -> list[str]:
    """The fields of a channel's description that are lost.

    Args:
        channel: any channel.
        restored: what a reader of the dataset finds out about the channel, by the name of the field.
    """
    stated = {name: getattr(channel, name) for name in (*CHANNEL_FIELDS, "modality")}
    stated |= channel.extra
    return [
        name
        for name, value in stated.items()
        if value not in (None, "") and value != restored.get(name)
    ]


def is_colour(channel: Channel) -> bool:
    """Whether a channel is a camera that a video of LeRobot can show."""
    shape = channel.step_shape
    is_picture = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    return (
        is_picture
        and channel.dtype_name is DType.UINT8
        and channel.modality != Modality.DEPTH
        and is_frames(channel)
    )


def is_too_small_to_encode(shape: tuple[int, ...]) -> bool:
    """Whether the encoder of AV1 may never return: it does not for 24 by 300 pixels."""
    return min(shape[:2]) < _SMALLEST_SIDE


def is_pictures(channel: Channel) -> bool:
    """Whether a channel holds files of pictures, which a table can hold as they are."""
    return isinstance(channel, VideoChannel) and channel.content_type in _ENDINGS


def column_for(name: str, address: Address, kind: str, channel: Channel) -> TableColumn:
    fields: dict[str, Any]
    shape, dtype = channel.step_shape, np.dtype(np.uint8)
    if kind in ("video", "image"):
        size = [*shape[:2], 3]
        fields = {"dtype": kind, "shape": size, "names": ["height", "width", "channels"]}
    elif kind == "text":
        fields = {"dtype": "string", "shape": [1], "names": None}
    else:
        dtype, names = stored_dtype(channel), channel.extra.get("names")
        fields = {"dtype": dtype.name, "shape": list(shape) or [1], "names": None}
        fields["names"] = names if isinstance(names, list) else None
    return TableColumn(name, address, kind, dtype, shape, fields)


def stored_dtype(channel: Channel) -> np.dtype[Any]:
    """The type of numbers in a table, which has no bf16."""
    is_short = channel.dtype_name is DType.BFLOAT16
    return np.dtype(np.float32) if is_short else channel.dtype


def fits(column: TableColumn, channel: Channel) -> bool:
    """Whether the channel of another episode can be stored as the first one was."""
    if isinstance(channel, TextChannel) or column.kind == "text":
        return isinstance(channel, TextChannel) and column.kind == "text"
    if channel.step_shape != column.shape:
        return False
    if column.kind == "number":
        found = stored_dtype(channel)
        # Integers that do not fit would become others.
        return np.can_cast(found, column.dtype) or found.kind == column.dtype.kind == "f"
    return channel.dtype_name is DType.UINT8 or isinstance(channel, VideoChannel)


def numbers_in(
    column: TableColumn, channel: Channel | None, episode: Episode, length: int
) -> NDArray[Any]:
    shape = () if column.shape == (1,) else column.shape
    if channel is None:
        values = np.zeros((length, *shape), column.dtype)
        if column.address is None:
            values[-1] = episode.metadata.get("success") is True
        return values
    steps = channel.read_steps(0, length)
    if channel.dtype_name is DType.BFLOAT16:
        steps = channel.dtype_name.as_numbers(steps)
    steps = steps.astype(column.dtype, copy=False)
    return steps.reshape(length, *shape)


def colour_frames(
    column: TableColumn, channel: Channel | None, length: int
) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """The pictures of an episode in colour, some at a time: where they start and stop, and an array [N, H, W, 3]."""
    height, width = column.shape[:2]
    for start, stop in step_ranges(length, height * width * 3, _FRAME_BYTES):
        if channel is None:
            frames = np.zeros((stop - start, height, width, 3), np.uint8)
        else:
            frames = channel.read_steps(start, stop)
            if frames.dtype != np.uint8:
                raise InvalidArgument(
                    "a depth video can be copied, not encoded",
                    entry=column.name,
                    hint="decode it before",
                )
            if frames.ndim == 3 or frames.shape[3] == 1:
                frames = np.repeat(frames.reshape(*frames.shape[:3], 1), 3, axis=3)
        yield start, stop, frames


def picture_statistics(
    column: TableColumn,
    channel: Channel | None,
    length: int,
    stated: Any,  # noqa: ANN401 - checked where it is used
) -> dict[str, NDArray[Any]]:
    if channel is not None and channel.dtype_name is not DType.UINT8:
        return {}
    seen, steps = PictureStatistics(), sampled_steps(length)
    for start, stop, frames in colour_frames(column, channel, length):
        seen.add(frames[steps[(steps >= start) & (steps < stop)] - start])
    return stated_or(seen.result(), stated)


def pictures_in(
    column: TableColumn, channel: Channel | None, start: int, stop: int
) -> list[dict[str, Any]]:
    """The pictures of some steps as files, for a table."""
    ending, data = "png", list[bytes]()
    if isinstance(channel, VideoChannel) and is_pictures(channel):
        ending = _ENDINGS[channel.content_type or ""]
        data += [bytes(packet.data) for packet in channel.packets(start, stop)]
    else:
        image = require("PIL.Image", "lerobot")
        piece = None if channel is None else channel.sliced(start, stop)
        for _, _, frames in colour_frames(column, piece, stop - start):
            for frame in frames:
                out = io.BytesIO()
                image.fromarray(frame).save(out, "PNG")
                data.append(out.getvalue())
    return [
        {"bytes": each, "path": f"frame-{step:06d}.{ending}"}
        for step, each in enumerate(data, start)
    ]


def as_arrow(values: Any, kind: Any) -> Any:  # noqa: ANN401 - an array or texts, as one of pyarrow
    arrow = require("pyarrow", "lerobot")
    if isinstance(values, list):
        return arrow.array(values, kind)
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    if arrow.types.is_fixed_size_list(kind):
        return arrow.FixedSizeListArray.from_arrays(flat, type=kind)
    for axis in range(values.ndim - 1, 0, -1):
        count = len(flat)
        offsets = np.arange(0, count + 1, values.shape[axis], dtype=np.int32)
        flat = arrow.ListArray.from_arrays(arrow.array(offsets), flat)
    return flat.cast(kind) if flat.type != kind else flat
