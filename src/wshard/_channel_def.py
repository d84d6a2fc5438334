"""The channels of a recording: what the user declares, and what fits into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec, Compression
from shard_format.canonical_json import canonical
from shard_format.codecs import zstd_level
from shard_format.errors import InvalidArgument, check_choice
from shard_format.filters import LARGEST_FRAME
from wshard._channel_rows import basic_fields, check_row
from wshard._channels import as_modality
from wshard._journal import LARGEST_RUN
from wshard._lanes import DONE, REWARD, TERMINATED, TIMESTAMPS, TRUNCATED, offsets_block
from wshard._metadata import BASIC_FIELDS, DEFAULT_RATE_HZ
from wshard._values import DType, as_array, convert
from wshard._video import VIDEO_FIELD, extradata_text
from wshard._video_codec import (
    VideoFrames,
    encode_frames,
    is_codec,
    parse_codec,
    picture_format,
    settings_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wshard._video_codec import CodecChoice

__all__ = ["STEP_FIELDS", "ChannelDef", "RecordedChannel", "StepSchema", "nanoseconds"]

STEP_FIELDS: Final = {
    REWARD: DType.FLOAT64,
    DONE: DType.BOOL,
    TERMINATED: DType.BOOL,
    TRUNCATED: DType.BOOL,
    TIMESTAMPS: DType.INT64,
}
"""What a step may have besides its channels. A finished episode stores rewards as f32 where that is exact."""

_RAW: Final = Compression(Codec.NONE)
_I64: Final = range(-(1 << 63), 1 << 63)
_LANES: Final = ("signal", "action")
_LAYOUTS: Final = ("dense", "ragged", "text")
_TEXT: Final = frozenset({"text", "str", "string", "utf8", "object"})
_LARGEST_VALUES: Final = {"ragged": LARGEST_RUN // 2, "text": LARGEST_FRAME // 2}
"""The most bytes of one entry. A run holds 16 MiB and one entry more, and must keep J-FRM-9 and J-RUN-3."""


class RecordedChannel:
    """A channel while it is recorded: its block, its row in the journal, and what fits.

    A ragged or text channel has a second row, for its offsets; its shape and `step_bytes` are those of an item.
    """

    __slots__ = (
        *("block", "camera", "dtype", "is_ragged", "layout", "level", "number", "row", "shape"),
        *("step_bytes", "stored"),
    )

    def __init__(
        self,
        block: str,
        row_id: str,
        dtype: DType,
        shape: tuple[int, ...] = (),
        compression: Compression = _RAW,
        layout: str = "dense",
    ) -> None:
        self.block = block
        self.layout = layout
        self.is_ragged = layout != "dense"
        """Whether entries have different numbers of items; text is bytes."""
        self.dtype = dtype
        self.stored = dtype.numpy_dtype
        self.shape = shape
        self.step_bytes = prod(shape) * dtype.size
        if not 0 < self.step_bytes <= LARGEST_RUN:
            raise InvalidArgument(
                "one step of this channel is empty or too large",
                entry=block,
                expected=f"1 to {LARGEST_RUN} bytes",
                found=f"{self.step_bytes}: {dtype} {list(shape)}",
            )
        if compression.codec is Codec.LZ4:
            raise InvalidArgument(
                "lz4 cannot be recorded: its blocks cannot be joined",
                entry=block,
                hint="use 'zstd:1', and 'wshard repack' later",
            )
        self.level = None if compression.codec is Codec.NONE else zstd_level(compression)
        """The zstd level; None for raw."""
        self.camera: CameraEncoding | None = None
        """How its frames are encoded, if they are recorded as video."""
        self.number = -1
        """Its number in the journal; its offsets have the next one."""
        self.row = basic_fields(row_id, block, dtype, shape)
        if self.is_ragged:
            self.row |= {"layout": layout, "offsets_block": offsets_block(block)}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What the journal says about it."""
        if self.camera is not None:
            return self.camera.packets.rows
        if not self.is_ragged:
            return [self.row]
        offsets = offsets_block(self.block)
        return [self.row, basic_fields(offsets, offsets, DType.INT64, ())]

    @property
    def fill(self) -> NDArray[Any]:
        """The placeholder for a missing value."""
        if self.is_ragged:
            return np.empty((0, *self.shape), self.stored)
        if self.dtype.is_float:
            return self.checked(np.full(self.shape, np.nan))
        return np.zeros(self.shape, self.stored)

    def places(self, steps: int) -> tuple[Sequence[Any], list[bytes] | NDArray[Any]]:
        """Places for values, one for each step, and where the values then are."""
        if self.is_ragged:
            entries = [b""] * steps
            return [_EntryPlace(entries, number) for number in range(steps)], entries
        array = np.empty((steps, *self.shape), self.stored)
        return [array[number, ...] for number in range(steps)], array

    def checked(self, value: Any) -> NDArray[Any]:  # noqa: ANN401 - anything array-like
        """Returns the value as this channel stores it; raises if it does not fit."""
        if self.is_ragged:
            return self._checked_items(value)
        if type(value) is np.ndarray and value.dtype is self.stored and value.shape == self.shape:
            return value
        try:
            array = as_array(value)
            converted = array
            if array.dtype != self.stored:
                with np.errstate(over="ignore"):
                    converted = convert(array, self.dtype)[0]
        except InvalidArgument as error:
            raise error.located(entry=self.block) from None
        if array.shape == self.shape:
            return converted
        raise InvalidArgument(
            "a value has a different shape than its channel",
            entry=self.block,
            expected=f"{list(self.shape)}",
            found=f"{list(array.shape)}",
        )

    def _checked_items(self, value: Any) -> NDArray[Any]:  # noqa: ANN401 - a string, or anything array-like
        array = _encoded(value, self.block) if self.layout == "text" else self._items(value)
        most = _LARGEST_VALUES[self.layout]
        if array.nbytes > most:
            raise InvalidArgument(
                "a value is too large",
                entry=self.block,
                expected=f"at most {most} bytes",
                found=array.nbytes,
            )
        return array

    def _items(self, value: Any) -> NDArray[Any]:  # noqa: ANN401 - anything array-like
        try:
            array = as_array(value)
            if array.shape == (0,):  # of items of any shape
                array = np.empty((0, *self.shape), self.stored)
            if array.dtype != self.stored:
                with np.errstate(over="ignore"):
                    array = convert(array, self.dtype)[0]
        except InvalidArgument as error:
            raise error.located(entry=self.block) from None
        if array.ndim and array.shape[1:] == self.shape:
            return array
        raise InvalidArgument(
            "a value has a different shape than its channel",
            entry=self.block,
            expected=f"[{', '.join(('items', *map(str, self.shape)))}]",
            found=f"{list(array.shape)}",
        )


class CameraEncoding:
    """How the frames of a channel are recorded as video: as packets, which are a ragged channel of bytes.

    Args:
        channel: whose values are frames.
        choice: the codec.
        fps: frames per second.

    Raises:
        InvalidArgument: the codec cannot store such frames.
    """

    __slots__ = ("_choice", "_extradata", "_form", "_fps", "packets")

    def __init__(self, channel: RecordedChannel, choice: CodecChoice, fps: float) -> None:
        self._choice, self._fps = choice, fps
        self._form = (channel.dtype, channel.shape)
        if channel.is_ragged or picture_format(*self._form) is None:
            raise InvalidArgument(
                "only cameras can be encoded as video",
                expected="u8 [H, W] or [H, W, C], or u16 [H, W]",
                found=f"{channel.layout} {channel.dtype} {list(channel.shape)}",
            )
        blank = np.zeros((1, *channel.shape), channel.stored)
        tried = encode_frames(VideoFrames.of(blank), choice, fps, in_order=True)
        self._extradata = tried.extradata
        name = channel.row["id"]
        self.packets = RecordedChannel(channel.block, name, DType.UINT8, (), layout="ragged")
        """The channel of the packets."""
        told = {"dtype": channel.dtype.value, "shape": list(channel.shape)}
        told |= {"codec": choice.name, "settings": settings_of(choice)}
        if tried.extradata:
            told["extradata"] = extradata_text(tried.extradata)
        kept = {key: value for key, value in channel.row.items() if key not in BASIC_FIELDS}
        kept |= {"content_type": tried.content_type, VIDEO_FIELD: told}
        self.packets.row |= kept

    def encode(self, content: memoryview, entries: int) -> tuple[list[bytes], dict[str, Any]]:
        """The packets of some frames, which begin with a keyframe, and what encoding has changed."""
        dtype, shape = self._form
        frames = np.frombuffer(content, dtype.stored_dtype).reshape(entries, *shape)
        video = encode_frames(VideoFrames.of(frames), self._choice, self._fps, in_order=True)
        if video.extradata != self._extradata:
            raise InvalidArgument("the encoder has changed its parameters", found=self._choice.name)
        lossy = video.lossy or {}
        measured = {"entries": entries, "max_error": lossy.get("max_error", 0)}
        return list(video.packets), measured | {"psnr_db": lossy.get("psnr_db")}


class _EntryPlace:
    """The place of one entry of a ragged channel; like a view of an array, it takes `place[...] = value`."""

    __slots__ = ("_entries", "_number")

    def __init__(self, entries: list[bytes], number: int) -> None:
        self._entries = entries
        self._number = number

    def __setitem__(self, _: object, value: NDArray[Any]) -> None:
        self._entries[self._number] = value.tobytes()


def _encoded(text: Any, block: str) -> NDArray[np.uint8]:  # noqa: ANN401 - checked here
    if not isinstance(text, str):
        raise InvalidArgument(
            "a value of a text channel is not a string", entry=block, found=type(text).__name__
        )
    try:
        return np.frombuffer(text.encode(), np.uint8)
    except UnicodeEncodeError:
        raise InvalidArgument(
            "a string holds a lone surrogate, which UTF-8 cannot store",
            entry=block,
            found=repr(text)[:80],
        ) from None


@dataclass(frozen=True)
class ChannelDef:
    """A channel of a recording."""

    id: str
    """Its name."""
    dtype: DType | str | None = None
    """The stored type; by default f32, and u8 for text."""
    shape: Sequence[int] = ()
    """The shape of one step, or of one item if `layout` is `"ragged"`."""
    compression: str | Compression | None = None
    """`"none"`, `"zstd"` or `"zstd:LEVEL"`; None for the writer's default. For a camera also a codec for pictures such
    as `"h264:crf=23"`, as `VideoChannel.encode` takes it."""
    lane: str = "signal"
    """`"signal"` or `"action"`."""
    modality: str | None = None
    """The kind of sensor."""
    rate: float | None = None
    """Entries per second."""
    unit: str = ""
    """Such as `"rad"`."""
    horizon: int | None = None
    """H, if each step is a chunk of H steps; `shape` then starts with H."""
    own_clock: bool = False
    """True for a channel whose entries have times of their own; record them with `write`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Any other fields for its description."""
    layout: str = "dense"
    """`"dense"`: an array of the same shape at every step. `"ragged"`: any number of items, an array
    `[items, *shape]`. `"text"`: a string."""

    @classmethod
    def of(cls, given: ChannelDef | Mapping[str, Any]) -> ChannelDef:
        """Takes a `ChannelDef` or a dictionary with the same fields."""
        if isinstance(given, ChannelDef):
            return given
        if not isinstance(given, Mapping):
            raise InvalidArgument(
                "cannot use this as a channel",
                expected="a ChannelDef or a dictionary",
                found=repr(given),
            )
        unknown = given.keys() - cls.__dataclass_fields__.keys()
        if unknown or "id" not in given:
            raise InvalidArgument(
                "a channel has unknown fields" if unknown else "a channel has no id",
                entry=str(given.get("id", "")) or None,
                expected=", ".join(cls.__dataclass_fields__),
                found=", ".join(sorted(map(str, unknown))) or "no id",
            )
        return cls(**given)

    def recorded(self, default: Compression, lane: str | None = None) -> RecordedChannel:
        """The channel as the recorder uses it; in another lane, and with a compression if it states none."""
        lane = lane or self.lane
        if lane not in _LANES:
            raise InvalidArgument(
                "unknown lane", entry=self.id, expected="'signal' or 'action'", found=repr(lane)
            )
        block = f"{lane}/{self.id}"
        try:
            is_camera = is_codec(self.compression)
            chosen = default if self.compression is None else _RAW
            if self.compression is not None and not is_camera:
                chosen = Compression.parse(self.compression)
            dtype, shape = self._checked_layout()
            recorded = RecordedChannel(block, self.id, dtype, shape, chosen, self.layout)
            if self.modality is not None:
                recorded.row["modality"] = str(as_modality(self.modality))
            if self.rate is not None:
                recorded.row["sampling_rate_hz"] = float(self.rate)
            if self.unit:
                recorded.row["unit"] = self.unit
            if self.horizon is not None:
                recorded.row["horizon"] = self.horizon
            recorded.row = {**self.extra, **recorded.row}
            canonical(recorded.row)
            check_row(recorded.row, self.extra)
            if is_camera:
                choice = parse_codec(str(self.compression))
                recorded.camera = CameraEncoding(recorded, choice, self.rate or DEFAULT_RATE_HZ)
        except InvalidArgument as error:
            raise error.located(entry=block) from None
        return recorded

    def _checked_layout(self) -> tuple[DType, tuple[int, ...]]:
        """The dtype and the shape, if they fit the layout."""
        check_choice("layout", self.layout, _LAYOUTS)
        if str(self.dtype).lower() in _TEXT:
            raise InvalidArgument(
                "unknown dtype", found=repr(self.dtype), hint="record strings with layout='text'"
            )
        is_text = self.layout == "text"
        default = DType.UINT8 if is_text else DType.FLOAT32
        dtype = default if self.dtype is None else DType.parse(self.dtype)
        shape = tuple(_dimension(size) for size in self.shape)
        if is_text and (dtype is not default or shape):
            raise InvalidArgument(
                "a text channel holds strings",
                expected="no dtype and no shape",
                found=f"{dtype} {list(shape)}",
            )
        return dtype, shape


class StepSchema:
    """What every step of a group of channels has: channels by their keys, and the types of other fields, None for
    one that it must not have. `recorded` are the channels of these fields, if they exist already.
    """

    def __init__(
        self,
        named: dict[str, RecordedChannel],
        fields: Mapping[str, DType | None],
        path: str,
        recorded: Sequence[RecordedChannel] = (),
    ) -> None:
        self.named = named
        self._given = fields
        self._path = path
        self._slots = list(named.items())
        self._fields = [(block, _PYTHON_TYPES[dtype]) for block, dtype in fields.items()]
        made = [RecordedChannel(b, b, dtype) for b, dtype in fields.items() if dtype]
        self.channels = [*named.values(), *(recorded or made)]
        """All channels, in the order in which `store` takes places."""
        self._trial = [c.places(1)[0][0] for c in self.channels]

    def store(
        self, values: Mapping[str, Any], extras: Sequence[Any], places: Sequence[Any]
    ) -> None:
        """Copies a step into its places, in the order of `channels`; `extras` are those of `fields`.

        Raises if anything does not fit; the places then hold garbage and must not count.
        """
        if len(values) != len(self.named):
            raise self._wrong_channels(values)
        try:
            for (key, channel), place in zip(self._slots, places, strict=False):
                place[...] = channel.checked(values[key])
        except KeyError:
            if self.named.keys() <= values.keys():
                raise  # the value raised it, not our lookup
            raise self._wrong_channels(values) from None
        at = len(self._slots)
        for (block, kind), extra in zip(self._fields, extras, strict=True):
            if kind is None:
                if extra is not None:
                    raise InvalidArgument(
                        "a step has a field that the first step lacked",
                        path=self._path,
                        entry=block,
                        hint="pass it at every step, from the first one on",
                    )
                continue
            try:
                places[at][...] = kind(extra)
            except (TypeError, ValueError):
                raise InvalidArgument(
                    "expected one value"
                    if extra is not None
                    else "a step lacks a field that the first step had",
                    path=self._path,
                    entry=block,
                    found=None if extra is None else repr(extra)[:80],
                ) from None
            at += 1

    def extended(self, key: str, channel: RecordedChannel) -> StepSchema:
        """The same with one more channel."""
        recorded = self.channels[len(self.named) :]
        return StepSchema({**self.named, key: channel}, self._given, self._path, recorded)

    def check(self, values: Mapping[str, Any], extras: Sequence[Any]) -> None:
        """Raises if anything of a step does not fit."""
        self.store(values, extras, self._trial)

    def _wrong_channels(self, values: Mapping[str, Any]) -> InvalidArgument:
        missing = [channel.block for key, channel in self.named.items() if key not in values]
        if missing:
            return InvalidArgument("a step lacks a channel", path=self._path, entry=missing[0])
        return InvalidArgument(
            "a step has a channel that was not declared",
            path=self._path,
            entry=str(min(values.keys() - self.named.keys(), key=str)),
            expected=", ".join(self.named) or "no channels",
        )


# An end that a later step leaves out is False: bool(None).
_PYTHON_TYPES: Final[dict[DType | None, type | None]] = {
    DType.FLOAT64: float,
    DType.BOOL: bool,
    DType.INT64: int,
    None: None,
}


def nanoseconds(value: Any, name: str) -> int:  # noqa: ANN401 - checked here
    """A timestamp as a 64-bit integer; `name` is the channel, for error messages."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(value)
        if number in _I64:
            return number
    raise InvalidArgument(
        "a timestamp is not an integer of nanoseconds",
        entry=name,
        expected="an integer of 64 bits",
        found=repr(value)[:80],
        hint="use time.monotonic_ns()",
    )


def _dimension(size: Any) -> int:  # noqa: ANN401 - checked here
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size >= 0:
        return int(size)
    raise InvalidArgument("a shape is not a list of integers", found=repr(size))
