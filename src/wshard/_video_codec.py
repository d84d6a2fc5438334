"""Encoding and decoding pictures: what `_video` needs of a codec, and nothing about files.

PyAV (FFmpeg) does it, except that JPEG and PNG are decoded as other image files are (`shard_format.images`): their
pixels are then those that Pillow and OpenCV give, and need no PyAV.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, UnknownCodec
from shard_format.extras import require
from shard_format.images import decode_image
from shard_format.registry import DEFAULT_LIMITS
from wshard._values import DType, step_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "CODECS",
    "CodecChoice",
    "EncodedVideo",
    "PictureDecoder",
    "VideoDecoder",
    "decoder_of",
    "encode_frames",
    "parse_codec",
]

KEYFRAME_EVERY: Final = 32
"""Steps between keyframes, if the caller does not say."""
# Coded pictures are whole blocks of up to this many pixels in each direction.
_LARGEST_CODED_BLOCK: Final = 128
# How much of the pictures to encode is read at a time.
_PIECE_BYTES: Final = 16 << 20


class VideoCodec(NamedTuple):
    """A way to encode pictures."""

    content_type: str
    decoder: str
    """FFmpeg's name for what reads it; empty for files of images."""
    encoder: str = ""
    """FFmpeg's name for what writes it; empty for one that is only read."""
    settings: Sequence[str] = ()
    """What a caller may set; a bare number after the name sets the first."""
    options: Mapping[str, str] = {}
    """What is set unless the caller says otherwise."""
    formats: Sequence[str] = ()
    """The pixel formats to store colours in, best first."""


# B-frames and scene cuts must not move keyframes from where windows start, and each group of pictures stands alone.
CODECS: Final[dict[str, VideoCodec]] = {
    "h264": VideoCodec(
        "video/h264",
        "h264",
        "libx264",
        ("crf", "preset", "tune", "bf"),
        {"crf": "23", "preset": "medium", "x264-params": "scenecut=0:open-gop=0:min-keyint=1"},
        ("yuv420p", "yuv444p"),
    ),
    "h265": VideoCodec(
        "video/h265",
        "hevc",
        "libx265",
        ("crf", "preset", "tune"),
        {"crf": "28", "x265-params": "scenecut=0:open-gop=0:min-keyint=1:log-level=none"},
        ("yuv420p", "yuv444p"),
    ),
    "av1": VideoCodec(
        "video/av1",
        "libdav1d",
        "libsvtav1",
        ("crf", "preset"),
        {"crf": "30", "preset": "8", "svtav1-params": "scd=0"},
        ("yuv420p",),
    ),
    "vp9": VideoCodec("video/vp9", "vp9"),
    "ffv1": VideoCodec("video/ffv1", "ffv1", "ffv1", (), {"level": "3"}, ("bgr0",)),
    "jpeg": VideoCodec("image/jpeg", "", "mjpeg", ("quality",), {"quality": "95"}, ("yuvj420p",)),
    "png": VideoCodec("image/png", "", "png", (), {}, ("rgb24",)),
}
BY_CONTENT_TYPE: Final = {codec.content_type: name for name, codec in CODECS.items()}
_INTRA: Final = ("ffv1", "jpeg", "png")
"""Codecs in which every picture is a keyframe."""

# How decoded pictures are handed out, by dtype and by the number of values of a pixel.
_FORMATS: Final = {
    (DType.UINT8, 1): "gray",
    (DType.UINT8, 3): "rgb24",
    (DType.UINT8, 4): "rgba",
    (DType.UINT16, 1): "gray16le",
}
_GRAY: Final = {DType.UINT8: ("gray", "yuv420p"), DType.UINT16: ("gray16le", "gray16be")}


class CodecChoice(NamedTuple):
    """A codec with its settings, as a caller asks for it: `h264:crf=23`."""

    name: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class VideoFrames:
    """Pictures to encode, read a few at a time."""

    read: Callable[[int, int], NDArray[Any]]
    """Gives the pictures from a number to another."""
    length: int
    dtype: DType
    shape: tuple[int, ...]
    """Of one picture."""

    @classmethod
    def of(cls, array: NDArray[Any]) -> VideoFrames:
        """Pictures [T, H, W] or [T, H, W, C] in memory."""
        if array.ndim < 3:
            raise InvalidArgument(
                "these are not frames", expected="[T, H, W] or [T, H, W, C]", found=array.shape
            )
        dtype = DType.from_numpy(array.dtype)
        return cls(lambda start, stop: array[start:stop], len(array), dtype, array.shape[1:])

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for start, stop in step_ranges(self.length, math.prod(self.shape), _PIECE_BYTES):
            yield from self.read(start, stop)


class EncodedVideo(NamedTuple):
    """The packets of a video in decode order, and what each of them is."""

    content_type: str
    dtype: DType
    shape: tuple[int, ...]
    """Of one picture."""
    packets: Sequence[bytes]
    steps: NDArray[np.int64]
    """The number of the picture of each packet, in the order in which they are shown."""
    is_keyframe: NDArray[np.bool_]
    is_hidden: NDArray[np.bool_]
    """Whether a picture is decoded for others only."""
    extradata: bytes = b""
    lossy: dict[str, Any] | None = None


def is_codec(value: object) -> bool:
    """Whether this is the name of a codec for pictures, with or without settings."""
    return isinstance(value, str) and value.partition(":")[0] in CODECS


def parse_codec(text: str) -> CodecChoice:
    """Reads `h264`, `h264:crf=23,preset=fast`, `h264:23` or `jpeg:95`."""
    name, _, settings = text.partition(":")
    known = [each for each, codec in CODECS.items() if codec.encoder]
    if name not in known:
        raise InvalidArgument(
            "unknown codec for pictures", expected=" or ".join(known), found=repr(text)
        )
    codec, options = CODECS[name], dict[str, str]()
    for setting in filter(None, settings.split(",")):
        key, equals, value = setting.partition("=")
        if not equals and codec.settings:
            key, value = codec.settings[0], key
        if key not in codec.settings or not value:
            raise InvalidArgument(
                f"unknown setting of {name}",
                expected=" or ".join(f"{each}=…" for each in codec.settings) or "no settings",
                found=repr(setting),
            )
        options[key] = value
    return CodecChoice(name, options)


def picture_format(dtype: DType, shape: Sequence[int]) -> str | None:
    """FFmpeg's name for the pixels of an array [H, W] or [H, W, C]; None if pictures do not look like this."""
    if len(shape) not in (2, 3) or not all(0 < size < 1 << 16 for size in shape[:2]):
        return None
    return _FORMATS.get((dtype, shape[2] if len(shape) == 3 else 1))


# --- decoding


def decoder_of(
    content_type: str, extradata: bytes, dtype: DType, shape: Sequence[int]
) -> VideoDecoder | PictureDecoder:
    """What decodes the packets of a channel into arrays. One thread may use it at a time.

    It has no threads of its own: callers decode several groups of pictures at once, each with its own decoder.

    Args:
        content_type: of the packets.
        extradata: what the codec needs besides them.
        dtype: of the arrays.
        shape: of one picture; a stream of another size is refused before memory is made for it.

    Raises:
        MissingExtra: the package that decodes this is not installed.
        UnknownCodec: no package decodes it.
    """
    name = BY_CONTENT_TYPE.get(content_type.lower())
    if name is None:
        raise UnknownCodec(
            "this version cannot decode this kind of video",
            expected=" or ".join(BY_CONTENT_TYPE),
            found=repr(content_type),
            hint="packets() gives the encoded frames",
        )
    if not CODECS[name].decoder:
        return PictureDecoder(content_type.lower(), dtype, shape)
    return VideoDecoder(name, extradata, dtype, shape)


class VideoDecoder:
    """Decodes with PyAV; see `decoder_of`."""

    def __init__(self, name: str, extradata: bytes, dtype: DType, shape: Sequence[int]) -> None:
        av = require("av", "video")
        self._height, self._width = shape[:2]
        self._shape = tuple(shape)
        self._dtype = dtype.stored_dtype
        self._format = picture_format(dtype, shape)
        self._av = av
        try:
            self._context = av.CodecContext.create(CODECS[name].decoder, "r")
        except av.codec.codec.UnknownCodecError:
            raise UnknownCodec(
                "PyAV was built without a decoder for this video", found=CODECS[name].decoder
            ) from None
        self._context.thread_count = 1
        if extradata:
            self._context.extradata = extradata
        if name == "ffv1":  # its stream does not say how large frames are
            self._context.width, self._context.height = self._width, self._height
        most = math.prod(size + _LARGEST_CODED_BLOCK for size in shape[:2])
        self._context.options = {"max_pixels": str(most), "err_detect": "explode"}
        self._reformatter = av.video.reformatter.VideoReformatter()

    def decode(
        self, packets: Iterable[tuple[int, Any, bool]], wanted: Mapping[int, int]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Decodes packets, the first of which is a keyframe, and yields the pictures of some of them.

        Args:
            packets: each with its number, and whether it is a keyframe.
            wanted: a value for each packet whose picture is wanted, by its number.

        Yields:
            The value, and the picture: read-only and valid until the next one.

        Raises:
            BadValue: the packets are damaged, lack a picture, or hold pictures of another size.
        """
        missing = dict(wanted)
        for frame in self._frames(packets):
            if frame.pts in missing:
                yield missing.pop(frame.pts), self._pixels(frame)
        _check_missing(missing, wanted)

    def _frames(self, packets: Iterable[tuple[int, Any, bool]]) -> Iterator[Any]:
        try:
            for number, data, is_keyframe in packets:
                packet = self._av.Packet(data)
                packet.pts, packet.is_keyframe = number, is_keyframe
                yield from self._context.decode(packet)
            yield from self._context.decode(None)
        except (self._av.FFmpegError, EOFError) as error:
            raise BadValue(f"the packets cannot be decoded: {error}", rule="W-VID-6") from None
        finally:
            if self._context.is_open:
                self._context.flush_buffers()

    def _pixels(self, frame: Any) -> NDArray[Any]:  # noqa: ANN401 - a frame of PyAV
        if (frame.height, frame.width) != (self._height, self._width):
            raise BadValue(
                "a decoded frame has a different size than the channel",
                expected=f"{self._width} x {self._height} pixels",
                found=f"{frame.width} x {frame.height}",
                rule="W-VID-6",
            )
        if frame.format.name != self._format:
            # Starting threads for a conversion takes longer than the conversion.
            frame = self._reformatter.reformat(frame, format=self._format, threads=1)
        plane = frame.planes[0]
        rows = np.frombuffer(plane, self._dtype).reshape(self._height, -1)
        return rows[:, : math.prod(self._shape[1:])].reshape(self._shape)


# What Pillow calls the pixels of a picture, by the number of values of each.
_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}


class PictureDecoder:
    """Decodes packets that are files of images, each on its own; see `decoder_of`."""

    def __init__(self, content_type: str, dtype: DType, shape: Sequence[int]) -> None:
        self._content_type = content_type
        self._dtype = dtype.numpy_dtype
        self._shape = tuple(shape)

    def decode(
        self, packets: Iterable[tuple[int, Any, bool]], wanted: Mapping[int, int]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """As `VideoDecoder.decode`. Grey becomes colour and the reverse, if the channel is the other."""
        missing = dict(wanted)
        for number, data, _ in packets:
            if number in missing:
                yield missing.pop(number), self._fitted(self._pixels(data))
        _check_missing(missing, wanted)

    def _pixels(self, data: Any) -> NDArray[Any]:  # noqa: ANN401 - bytes or a view of them
        height, width = self._shape[:2]
        # No pixel has more than four bytes; the row and the picture may both claim too many.
        most = min(height * width * 4, DEFAULT_LIMITS.max_decompressed_bytes)
        try:
            pixels = decode_image(self._content_type, memoryview(data), most)
        except (BadValue, LimitExceeded) as error:
            raise BadValue(
                error.problem, expected=error.expected, found=error.found, rule="W-VID-6"
            ) from None
        if pixels.shape[:2] != (height, width):
            raise BadValue(
                "a decoded frame has a different size than the channel",
                expected=f"{width} x {height} pixels",
                found=f"{pixels.shape[1]} x {pixels.shape[0]}",
                rule="W-VID-6",
            )
        return pixels

    def _fitted(self, pixels: NDArray[Any]) -> NDArray[Any]:
        if pixels.dtype != self._dtype:
            raise BadValue(
                "a decoded frame has a different type than the channel",
                expected=self._dtype,
                found=pixels.dtype,
                rule="W-VID-6",
            )
        if pixels.size != math.prod(self._shape):
            image = require("PIL.Image", "images").fromarray(pixels)
            values = self._shape[2] if len(self._shape) == 3 else 1
            pixels = np.asarray(image.convert(_MODES[values]))
        return pixels.reshape(self._shape)


def _check_missing(missing: Mapping[int, int], wanted: Mapping[int, int]) -> None:
    if missing:
        raise BadValue(
            "the packets do not give all frames",
            expected=f"{len(wanted)} frames",
            found=f"{len(wanted) - len(missing)}",
            rule="W-VID-6",
        )


# --- encoding


_SMALLEST_AV1: Final = 32


def encode_frames(
    frames: VideoFrames,
    choice: CodecChoice,
    fps: float,
    keyframe_every: int | None = None,
    *,
    in_order: bool = False,
) -> EncodedVideo:
    """Encodes pictures, and measures what that changed.

    Args:
        frames: u8, or u16 with one value for each pixel.
        choice: the codec and its settings.
        fps: pictures per second, which decides how much motion the encoder expects.
        keyframe_every: pictures between keyframes; None for 32.
        in_order: whether packets are in the order in which pictures are shown.
    """
    av = require("av", "video")
    dtype, shape = frames.dtype, frames.shape
    given = picture_format(dtype, shape)
    if given is None or (keyframe_every is not None and keyframe_every < 1) or not fps > 0:
        raise InvalidArgument(
            "these frames cannot be encoded as video",
            expected="uint8 [T, H, W], [T, H, W, 1], [T, H, W, 3] or [T, H, W, 4], or uint16 [T, H, W]; "
            "keyframe_every and fps above 0",
            found=f"{dtype} {[frames.length, *shape]}, {keyframe_every}, {fps}",
        )
    if choice.name == "av1" and min(shape[:2]) < _SMALLEST_AV1:
        # The encoder does not return for some of them.
        raise InvalidArgument(
            "av1 cannot encode pictures this small",
            expected=f"at least {_SMALLEST_AV1} × {_SMALLEST_AV1} pixels",
            found=f"{shape[0]} × {shape[1]}",
            hint="use h264, or png for a few pixels",
        )
    codec = CODECS[choice.name]
    try:
        context = _encoder(av, frames, given, choice, Fraction(fps))
        every = KEYFRAME_EVERY if keyframe_every is None else keyframe_every
        context.gop_size = 1 if choice.name in _INTRA else every
        if in_order:
            context.max_b_frames = 0
        packets = _encode(av, context, frames, given)
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"{choice.name} cannot encode these frames: {error}",
            found=f"{dtype} {[frames.length, *shape]}, settings {dict(choice.options)}",
        ) from None
    order = np.argsort(np.array([packet.pts for packet in packets], np.int64), kind="stable")
    steps = np.empty(len(packets), np.int64)
    steps[order] = np.arange(len(packets))
    video = EncodedVideo(
        codec.content_type,
        dtype,
        shape,
        [bytes(packet) for packet in packets],
        steps,
        np.array([packet.is_keyframe for packet in packets], np.bool_),
        np.zeros(len(packets), np.bool_),
        bytes(context.extradata or b""),
    )
    if in_order and not np.array_equal(steps, np.arange(len(steps))):
        raise InvalidArgument(f"{choice.name} does not keep the order of frames")
    if len(packets) != frames.length:
        raise InvalidArgument(
            f"{choice.name} left out frames", expected=frames.length, found=len(packets)
        )
    return video._replace(lossy=_measured(video, frames, choice))


def _encoder(
    av: Any,  # noqa: ANN401 - a module
    frames: VideoFrames,
    given: str,
    choice: CodecChoice,
    fps: Fraction,
) -> Any:  # noqa: ANN401 - a context of PyAV
    codec = CODECS[choice.name]
    options = {**codec.options, **choice.options}
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 prints its settings otherwise
    context = av.CodecContext.create(codec.encoder, "w")
    height, width = frames.shape[:2]
    context.width, context.height = width, height
    context.framerate, context.time_base = fps, 1 / fps
    context.pix_fmt = stored = _stored_format(codec, given, height, width, choice.name)
    if "quality" in options:
        scale = str(_jpeg_scale(options.pop("quality")))
        options |= {"qmin": scale, "qmax": scale}
    is_gray = stored.startswith("gray")
    if stored.startswith("yuv"):
        context.colorspace = 6  # BT.601, what conversions below use
    if stored.startswith("yuv") or is_gray:
        context.color_range = 2 if is_gray or stored.startswith("yuvj") else 1
    context.options = options
    return context


def _encode(av: Any, context: Any, frames: VideoFrames, given: str) -> list[Any]:  # noqa: ANN401 - PyAV
    stored = context.pix_fmt
    reformatter = av.video.reformatter.VideoReformatter()
    packets: list[Any] = []
    for number, values in enumerate(frames):
        pixels = values[..., 0] if values.shape[2:] == (1,) else values
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), given)
        if given != stored:
            frame = reformatter.reformat(frame, format=stored, threads=1)
        frame.pts, frame.time_base = number, context.time_base
        packets += context.encode(frame)
    return packets + (context.encode(None) if frames.length else [])


def _stored_format(codec: VideoCodec, given: str, height: int, width: int, name: str) -> str:
    """The pixel format in which to encode."""
    if given.startswith("gray"):
        dtype = DType.UINT16 if given.startswith("gray16") else DType.UINT8
        wanted: Sequence[str] = _GRAY[dtype]
    elif given == "rgba":
        wanted = {"ffv1": ("bgra",), "png": ("rgba",)}.get(name, ())
    else:
        wanted = codec.formats
    av = require("av", "video")
    known = {each.name for each in av.codec.Codec(codec.encoder, "w").video_formats or ()}
    # Half as many colours as pixels in each direction needs an even size.
    is_odd = height % 2 or width % 2
    for each in wanted:
        if each in known and not (is_odd and each == "yuv420p" and "yuv444p" in wanted):
            return each
    raise InvalidArgument(
        f"{name} cannot store these frames",
        expected="8-bit colours or grey" if given != "gray16le" else "8-bit frames",
        found=given,
        hint="use 'ffv1', which stores them without loss",
    )


def _jpeg_scale(quality: str) -> int:
    """FFmpeg's quantiser for a quality of 1 to 100 as other JPEG encoders know it."""
    try:
        number = int(quality)
    except ValueError:
        number = 0
    if not 1 <= number <= 100:
        raise InvalidArgument("JPEG quality is not from 1 to 100", found=repr(quality))
    percent = 5000 / number if number < 50 else 200 - 2 * number
    return min(31, max(1, round(percent * 8 / 100)))


def _measured(
    video: EncodedVideo, frames: VideoFrames, choice: CodecChoice
) -> dict[str, Any] | None:
    """What encoding changed, as a row says it; None if nothing."""
    decoder = decoder_of(video.content_type, video.extradata, video.dtype, video.shape)
    squares, largest = 0.0, 0
    wanted = dict(enumerate(video.steps.tolist()))
    packets = zip(wanted, video.packets, video.is_keyframe.tolist(), strict=True)
    # Decoders give pictures in the order in which they are shown.
    decoded = decoder.decode(packets, wanted)
    for number, (original, (step, picture)) in enumerate(zip(frames, decoded, strict=True)):
        if step != number:
            raise BadValue("encoded frames come back in another order", expected=number, found=step)
        difference = np.subtract(picture, original, dtype=np.float32)
        squares += float(np.vdot(difference, difference))
        largest = max(largest, int(np.abs(difference).max(initial=0)))
    if not largest:
        return None
    top = float(np.iinfo(frames.dtype.stored_dtype).max)
    values = frames.length * math.prod(frames.shape)
    told: dict[str, Any] = {"codec": choice.name, "max_error": largest}
    told["psnr_db"] = round(10 * math.log10(top * top * values / squares), 2)
    return {**told, **settings_of(choice)}


def settings_of(choice: CodecChoice) -> dict[str, Any]:
    """The settings that a choice means, as `lossy` has them."""
    codec = CODECS[choice.name]
    used = {**codec.options, **choice.options}
    return {key: _number(value) for key, value in used.items() if key in codec.settings}


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


# --- keyframes of packets that were recorded in order


def has_only_keyframes(content_type: str) -> bool:
    """Whether every packet of this kind is a keyframe."""
    return BY_CONTENT_TYPE.get(content_type) in _INTRA


_START_CODE: Final = re.compile(rb"\x00\x00\x01(.)", re.DOTALL)


def is_keyframe(content_type: str, packet: bytes) -> bool:
    """Whether decoding can start at a packet that our encoders made."""
    name = BY_CONTENT_TYPE.get(content_type)
    if name in ("h264", "h265"):
        for found in _START_CODE.finditer(packet):
            first = found[1][0]
            kind = first & 31 if name == "h264" else first >> 1 & 63
            if name == "h264" and kind in (1, 5):
                return kind == 5
            if name == "h265" and kind < 32:
                return 16 <= kind <= 21
        return False
    return name == "av1" and 1 in _obu_types(packet)


def _obu_types(packet: bytes) -> Iterator[int]:
    """The types of the units of AV1 in a packet, up to the first frame."""
    at = 0
    while at < len(packet):
        kind, has_more, has_size = packet[at] >> 3 & 15, packet[at] & 4, packet[at] & 2
        yield kind
        at += 2 if has_more else 1
        size, shift = 0, 0
        while has_size and at < len(packet):
            size |= (packet[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if packet[at - 1] < 128 or shift > 56:
                break
        if not has_size or kind in (3, 6):
            return
        at += size
