"""Arrays of other formats as channels that are read when they are used."""

from __future__ import annotations

import io
import struct
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from shard_format.errors import InvalidArgument, ShardError, SizeMismatch
from shard_format.extras import require
from shard_format.images import decode_image
from shard_format.registry import DEFAULT_LIMITS
from wshard._blocks import pieces_of
from wshard._channels import Channel, TextChannel
from wshard._values import DType, read_only, step_ranges
from wshard._video import VideoChannel
from wshard._video_codec import picture_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from wshard.convert._model import Notes

__all__ = [
    "CHANNEL_FACTS",
    "EncodedFrames",
    "ForeignRows",
    "JoinedRows",
    "PartOfRows",
    "PictureHead",
    "WithNext",
    "bits_of",
    "channel_facts",
    "channel_of",
    "checked_facts",
    "drop_video_fields",
    "follows",
    "image_type",
    "least_bytes",
    "note_pixels",
    "picture_channel",
    "picture_files",
    "picture_head",
    "png_file",
    "splits",
    "text_channel",
]

# What is read at once is kept in memory: smaller arrays are not worth a look at the file for each window.
_SMALL: Final = 1 << 16
# How much is compared at once.
_PIECE: Final = 4 << 20
CHANNEL_FACTS: Final = "wshard_channel"
"""The attribute of an array in which our writers store `channel_facts`."""
_FACT_OBJECTS: Final = ("lossy", "extra")
_FACTS: Final = ("unit", "description", "semantics", "modality", *_FACT_OBJECTS)


class ForeignRows(Protocol):
    """An array of another library that reads the rows it is asked for, such as an `h5py.Dataset` or a part of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, rows: slice, /) -> Any: ...  # noqa: ANN401 - an array


class Pictures(Protocol):
    """Encoded pictures as bytes, one a step, each read when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, step: int, /) -> Any: ...  # noqa: ANN401 - bytes, or an array of them


class PartOfRows:
    """The rows from `start` to `stop` of an array that is shared by many episodes."""

    def __init__(self, rows: ForeignRows, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= rows.shape[0]:
            raise SizeMismatch(
                "an episode has steps that the dataset does not have",
                expected=f"at most {rows.shape[0]} steps",
                found=f"steps {start} to {stop}",
            )
        self._rows = rows
        self._start = start
        self.shape = (stop - start, *rows.shape[1:])
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        start, stop, _ = rows.indices(self.shape[0])
        return self._rows[self._start + start : self._start + max(start, stop)]


class WithNext:
    """Observations, and after them the last row of those that follow the actions."""

    def __init__(self, now: ForeignRows, after: ForeignRows) -> None:
        self._now, self._after = now, after
        self.shape = (now.shape[0] + 1, *now.shape[1:])
        self.dtype = now.dtype

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        start, stop, _ = rows.indices(self.shape[0])
        count = self.shape[0] - 1
        found = self._now[start : min(stop, count)]
        if stop <= count or start > count:
            return found
        return np.concatenate((found, self._after[count - 1 : count]))


class JoinedRows:
    """Rows that are stored in several places, one after the other."""

    def __init__(self, parts: Sequence[ForeignRows], path: str, entry: str) -> None:
        self._parts = parts
        forms = {(part.dtype, part.shape[1:]) for part in parts}
        if len(forms) != 1:
            raise SizeMismatch(
                "an array changes its form from one part to the next",
                path=path,
                entry=entry,
                found="; ".join(sorted(f"{dtype}{list(shape)}" for dtype, shape in forms)),
            )
        self.dtype = parts[0].dtype
        self.shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        found: list[Any] = []
        for part in self._parts:
            length = part.shape[0]
            if start < length and stop > 0:
                found.append(part[max(0, start) : min(stop, length)])
            start, stop = start - length, stop - length
        if len(found) == 1:
            one: NDArray[Any] = found[0]
            return one
        return np.concatenate(found) if found else np.zeros((0, *self.shape[1:]), self.dtype)


def follows(now: ForeignRows, after: ForeignRows) -> bool:
    """Whether each row of `after` is the next one of `now`, to the bit; there must be one."""
    count = now.shape[0]
    if not count or now.shape != after.shape or now.dtype != after.dtype:
        return False
    row_bytes = max(1, prod(now.shape[1:]) * now.dtype.itemsize)
    return all(
        # From its first step on: the next reading then goes on where this one started.
        np.array_equal(bits_of(now[start : stop + 1][1:]), bits_of(after[start:stop]))
        for start, stop in step_ranges(count - 1, row_bytes, _PIECE)
    )


def bits_of(rows: NDArray[Any]) -> NDArray[Any]:
    """What is stored, in as few whole numbers as possible: not a number equals itself."""
    stored = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    return stored if len(stored) % 8 else stored.view(np.uint64)


class RowsBlock:
    """Rows of another library as the block of a channel."""

    is_compressed = True
    is_cut_cheaply = True

    def __init__(self, name: str, rows: ForeignRows, dtype: DType, path: str | None) -> None:
        self.name = name
        self.path = path
        self._rows = rows
        self._dtype = dtype
        self._row_bytes = prod(rows.shape[1:]) * dtype.size
        self.nbytes = rows.shape[0] * self._row_bytes

    def _read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows as the bytes that a file of ours has."""
        wanted = (stop - start, *self._rows.shape[1:])
        rows = np.asarray(self._rows[start:stop])
        if rows.shape != wanted:
            raise SizeMismatch(
                "an array has fewer steps than it states",
                path=self.path,
                entry=self.name,
                expected=list(wanted),
                found=list(rows.shape),
            )
        plain = np.ascontiguousarray(rows.astype(self._dtype.numpy_dtype, copy=False))
        return plain.reshape(-1).view(np.uint8)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return read_only(self.part(dtype, shape, 0))

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return np.zeros(shape, dtype)
        first = start // self._row_bytes
        rows = self._read(first, -(-(start + nbytes) // self._row_bytes))
        offset = start - first * self._row_bytes
        return rows[offset : offset + nbytes].view(dtype).reshape(shape)

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        out[:] = self.part(np.dtype(np.uint8), (len(out),), start)

    def pieces(self, most_bytes: int) -> Iterable[Any]:
        return pieces_of(
            self, max(1, most_bytes // max(1, self._row_bytes)) * max(1, self._row_bytes)
        )


def channel_of(
    name: str,
    rows: ForeignRows,
    *,
    path: str | None = None,
    **facts: Any,  # noqa: ANN401 - of Channel
) -> Channel:
    """A channel of an array of numbers; a large one is read when it is used.

    Args:
        name: of the channel.
        rows: an array, or something that reads like one.
        path: the file, for errors.
        facts: `modality`, `unit`, `description`, `sampling_rate_hz` and the like, as `Channel` takes them.

    Raises:
        InvalidArgument: its type is not one that an episode can store.
    """
    if not rows.shape:
        raise InvalidArgument("one number is not a channel", path=path, entry=name)
    try:
        dtype = DType.from_numpy(rows.dtype)
    except InvalidArgument as error:
        raise error.located(path=path, entry=name) from None
    if isinstance(rows, np.ndarray) or prod(rows.shape) * dtype.size <= _SMALL:
        return Channel(name, data=np.asarray(rows[:]), **facts)
    block = RowsBlock(name, rows, dtype, path)
    channel = Channel.from_source(name, block, dtype, tuple(rows.shape[1:]), rows.shape[0])
    for key, value in facts.items():
        setattr(channel, key, value)
    return channel


def channel_facts(channel: Channel) -> dict[str, Any]:
    """What is known of a channel besides its values, as JSON; empty if that is nothing."""
    facts = {key: getattr(channel, key) for key in _FACTS}
    return {key: dict(one) if key in _FACT_OBJECTS else one for key, one in facts.items() if one}


def checked_facts(found: object) -> dict[str, Any]:
    """What `channel_facts` gave, from a file that may hold anything in its place."""
    return {
        key: value
        for key, value in (found if isinstance(found, dict) else {}).items()
        if key in _FACTS and isinstance(value, dict if key in _FACT_OBJECTS else str)
    }


def text_channel(name: str, texts: Iterable[bytes | str | None], **facts: Any) -> TextChannel:  # noqa: ANN401 - of Channel
    """A channel of strings; bytes must be UTF-8, and a missing string is empty."""
    strings: list[str] = []
    try:
        for text in texts:
            strings.append(text.decode() if isinstance(text, bytes) else (text or ""))  # noqa: PERF401 - its length names the bad step
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            "a string is not UTF-8", entry=name, found=f"step {len(strings)}: {error.reason}"
        ) from None
    return TextChannel(name, strings, **facts)


def image_type(data: bytes | memoryview) -> str:
    """The content type of an encoded picture by its first bytes; empty if it cannot be decoded."""
    head = bytes(data[:12])
    for content_type, magic in _MAGIC.items():
        if head.startswith(magic):
            return content_type
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else ""


_MAGIC: Final[dict[str, bytes | tuple[bytes, ...]]] = {
    "image/jpeg": b"\xff\xd8\xff",
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/tiff": (b"II*\0", b"MM\0*"),
    "image/bmp": b"BM",
    "image/gif": b"GIF8",
}


class PictureHead(NamedTuple):
    """What the head of a JPEG or PNG file says."""

    content_type: str
    height: int
    width: int
    bits: int
    """Of each value of a pixel."""
    pixels: int
    """JPEG: the number of values of a pixel; PNG: the type of its colours."""

    @property
    def frame(self) -> tuple[str, tuple[int, ...]] | None:
        """dtype and shape of the decoded picture; None for one with a palette, inks or the like, or without pixels."""
        found = _FRAMES.get((self.content_type, self.bits, self.pixels))
        if found is None or not self.height * self.width:
            return None
        return found[0], (self.height, self.width, *found[1])


_FRAMES: Final[dict[tuple[str, int, int], tuple[str, tuple[int, ...]]]] = {
    ("image/jpeg", 8, 1): ("u1", ()),
    ("image/jpeg", 8, 3): ("u1", (3,)),
    ("image/png", 8, 0): ("u1", ()),
    ("image/png", 8, 2): ("u1", (3,)),
    ("image/png", 8, 6): ("u1", (4,)),
    ("image/png", 16, 0): ("<u2", ()),
}

# Markers of JPEG that start the description of the pixels; the others in their range mean something else.
_FRAME_MARKERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def picture_head(data: bytes | memoryview) -> PictureHead | None:
    """The size and the pixels of a JPEG or PNG file, which is not decoded; None for anything else."""
    kind = image_type(data)
    if kind == "image/png" and len(data) >= 26:
        width, height, bits, pixels = struct.unpack_from(">IIBB", data, 16)
        return PictureHead(kind, height, width, bits, pixels)
    at = 2
    while kind == "image/jpeg" and at + 10 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAME_MARKERS:
            bits, height, width, pixels = struct.unpack_from(">BHHB", data, at + 4)
            return PictureHead(kind, height, width, bits, pixels)
        # Before a marker there may be any number of bytes 0xFF.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def picture_channel(
    name: str,
    pictures: Pictures,
    video: str,
    notes: Notes,
    *,
    field: str = "",
    rows: ForeignRows | None = None,
    path: str | None = None,
    **facts: Any,  # noqa: ANN401 - of Channel
) -> Channel:
    """A channel of encoded pictures, one a step.

    They stay as they are, all in memory, if all are JPEG or all PNG with the same size and kind of pixels. Others become
    pixels, which are decoded when they are used. A note tells of it, except for PNG, BMP and TIFF, which lose nothing.

    Args:
        name: of the channel.
        pictures: as bytes.
        video: as `ReadOptions` has it: with `"decode"`, all become pixels.
        notes: where to note that.
        field: what the pictures are called where they come from; `name` if you leave it out.
        rows: their pixels, if these are not just what a decoder gives.
        path: the file, for errors.
        facts: as for `channel_of`.
    """
    field = field or name
    frames = EncodedFrames(field, pictures, path) if rows is None else rows
    kind = image_type(_as_view(pictures[0]))
    if kind == "image/jpeg":
        facts.setdefault("lossy", {"codec": "jpeg"})
    dtype, shape = DType.from_numpy(frames.dtype), frames.shape[1:]
    if video != "decode" and picture_format(dtype, shape) is not None:
        kept = _alike(pictures)
        if kept is not None:
            return VideoChannel.from_packets(kept, kind, shape, dtype=dtype, name=name, **facts)
    if kind not in _LOSSLESS:
        notes.decoded(field, f"{kind.removeprefix('image/').upper()} to pixels")
    head = picture_head(_as_view(pictures[0]))
    if head is not None and head.bits > 8 * dtype.size:
        notes.cast(
            field, f"{head.bits} bits", f"{8 * dtype.size} bits", "as the decoder gives them"
        )
    return channel_of(name, frames, path=path, **facts)


def _alike(pictures: Pictures) -> list[bytes] | None:
    """All pictures, if their heads say the same; else None."""
    kept: list[bytes] = []
    first = picture_head(_as_view(pictures[0]))
    for number in range(len(pictures)):
        picture = bytes(_as_view(pictures[number]))
        if first is None or picture_head(picture) != first:
            return None
        kept.append(picture)
    return kept


def picture_files(channel: Channel) -> list[bytes] | None:
    """The files of a channel of JPEG or PNG pictures, one a step; None for any other channel."""
    if not isinstance(channel, VideoChannel) or channel.content_type not in _KEPT_TYPES:
        return None
    shown = [packet for packet in channel.packets() if not packet.is_hidden]
    return [bytes(packet.data) for packet in sorted(shown, key=lambda packet: packet.step)]


_LOSSLESS: Final = ("image/bmp", "image/png", "image/tiff")
_KEPT_TYPES: Final = ("image/jpeg", "image/png")


def png_file(pixels: NDArray[Any]) -> bytes:
    """A picture as a PNG file, without loss: uint8 or uint16 [H, W], uint8 [H, W, 3] or [H, W, 4]."""
    out = io.BytesIO()
    image = require("PIL.Image", "images").fromarray(np.ascontiguousarray(pixels))
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


_OF_VIDEO: Final = ("content_type", "extradata", "frames_block", "layout", "offsets_block")


def drop_video_fields(fields: dict[str, Any], channel: Channel, field: str, notes: Notes) -> None:
    """Makes the row of a channel that of its pixels, if it is video and is written as pixels, with a note."""
    if isinstance(channel, VideoChannel):
        for key in _OF_VIDEO:
            fields.pop(key, None)
        note_pixels(channel, field, notes)


def note_pixels(channel: Channel, field: str, notes: Notes) -> None:
    """Notes that a channel is written as pixels, if it is video."""
    if isinstance(channel, VideoChannel):
        notes.decoded(field, f"{channel.codec} to pixels")


def _as_view(picture: Any) -> memoryview:  # noqa: ANN401 - bytes, or an array of them
    return memoryview(picture).cast("B")


class EncodedFrames:
    """Encoded pictures, one a step, that are decoded when they are used. All have the size of the first."""

    def __init__(self, name: str, frames: Pictures, path: str | None = None) -> None:
        self._name = name
        self._frames = frames
        self._path = path
        if not len(frames):
            raise InvalidArgument("no pictures to decode", path=path, entry=name)
        first = self._decode(0)
        self.shape = (len(frames), *first.shape)
        self.dtype = first.dtype

    def _decode(self, step: int) -> NDArray[Any]:
        data = _as_view(self._frames[step])
        try:
            return decode_image(image_type(data), data, DEFAULT_LIMITS.max_decompressed_bytes)
        except ShardError as error:
            raise error.located(path=self._path, entry=f"{self._name}, step {step}") from None

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        for number, step in enumerate(range(start, stop)):
            frame = self._decode(step)
            if frame.shape != self.shape[1:] or frame.dtype != self.dtype:
                raise InvalidArgument(
                    "a picture has a different size than the first one",
                    path=self._path,
                    entry=f"{self._name}, step {step}",
                    expected=f"{self.dtype}{list(self.shape[1:])}",
                    found=f"{frame.dtype}{list(frame.shape)}",
                )
            out[number] = frame
        return out


def least_bytes(kind: Any) -> int:  # noqa: ANN401 - a pyarrow.DataType
    """The least memory that a value of a table needs, even where a file says that it is missing."""
    types = require("pyarrow.types", "arrow")
    if types.is_struct(kind):
        return sum(least_bytes(field.type) for field in kind)
    if types.is_fixed_size_list(kind):
        return int(kind.list_size) * least_bytes(kind.value_type)
    return max(1, kind.bit_width // 8) if types.is_primitive(kind) else 1


def splits(first: Sequence[bool] | NDArray[Any]) -> list[tuple[int, int]]:
    """Where episodes start and stop in a row of steps, given which steps are the first of one."""
    starts = [0, *(int(step) for step in np.flatnonzero(first) if step)]
    return list(pairwise([*starts, len(first)])) if len(first) else []
