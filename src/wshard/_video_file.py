"""Video files: their packets without decoding them, and files of packets without encoding them (PyAV)."""

from __future__ import annotations

import os
from contextlib import suppress
from fractions import Fraction
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from shard_format.atomic import replacing
from shard_format.errors import BadValue, InvalidArgument
from shard_format.extras import require
from shard_format.sources import open_regular
from wshard._values import DType
from wshard._video_codec import BY_CONTENT_TYPE, CODECS, EncodedVideo
from wshard._video_index import HIDDEN, KEYFRAME, FrameIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from typing_extensions import Self

__all__ = ["VideoFile", "write_video_file"]

# Only formats that hold their frames themselves: a playlist could name any other file.
_READABLE: Final = "mov,matroska,webm,avi,mpegts,ivf,h264,hevc,obu"
_ENDINGS: Final = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
    ".webm": "webm",
}
_WITH_EDIT_LISTS: Final = ("mp4", "mov")
_CODECS: Final = {
    "av1": "av1",
    "ffv1": "ffv1",
    "h264": "h264",
    "hevc": "h265",
    "libdav1d": "av1",
    "libvpx-vp9": "vp9",
    "mjpeg": "jpeg",
    "png": "png",
    "vp9": "vp9",
}
"""Our names of codecs by FFmpeg's."""
_MATROSKA_NAMES: Final = {
    "av1": b"V_AV1",
    "ffv1": b"V_FFV1",
    "h264": b"V_MPEG4/ISO/AVC",
    "h265": b"V_MPEGH/ISO/HEVC",
    "jpeg": b"V_MJPEG",
    "vp9": b"V_VP9",
}


_PacketKey: TypeAlias = "tuple[int | None, int | None, int]"
"""What tells one packet of a file from the others: its times, and its size."""


class VideoFile:
    """An open video file, whose frames can be taken out as they are encoded.

        with VideoFile("episodes.mp4") as video:
            first = VideoChannel.from_file(video, 0, 250)
            second = VideoChannel.from_file(video, 250, 310)

    Opening it reads through the file once, without decoding. Frames are counted in the order in which they are shown;
    those that an edit list leaves out do not count.

    Args:
        path: an mp4, mov, mkv, webm, avi or ts file, or a raw stream.
        stream: which of its video streams.
    """

    def __init__(self, path: str | os.PathLike[str], stream: int = 0) -> None:
        self._path = os.fspath(path)
        self._av = require("av", "video")
        self._number = stream
        self._container: Any = None
        self._file: Any = None
        try:
            self._open()
            self._describe()
            self._index, self._keys, self._times = self._scan()
            self._numbers = {key: number for number, key in enumerate(self._keys)}
        except BaseException:
            self.close()
            raise

    def _describe(self) -> None:
        context = self._stream.codec_context
        found = "an unknown codec" if context is None else context.name
        name = _CODECS.get(found)
        if name is None:
            raise InvalidArgument(
                "the video has a codec that a channel cannot hold",
                path=self._path,
                expected=" or ".join(CODECS),
                found=found,
            )
        self.content_type = CODECS[name].content_type
        """Such as `video/h264`."""
        self.extradata = bytes(context.extradata or b"")
        form = "" if context.format is None else context.format.name
        is_gray = form.startswith("gray")
        self.dtype = DType.UINT16 if is_gray and form[4:] not in ("", "8") else DType.UINT8
        """Of decoded frames."""
        size = (context.height, context.width)
        self.shape = size if is_gray else (*size, 3)
        """Of one decoded frame."""
        rate = self._stream.average_rate
        self.fps = float(rate) if rate else None
        """Frames per second, on average; None if the file does not say."""

    def _open(self) -> None:
        """Opens the file at its start."""
        self.close()
        self._file = os.fdopen(open_regular(self._path)[0], "rb")
        options = {"format_whitelist": _READABLE, "protocol_whitelist": "file"}
        try:
            self._container = self._av.open(self._file, options=options)
        except (self._av.FFmpegError, ValueError) as error:
            raise BadValue(
                f"not a video file that can be read: {error}",
                path=self._path,
                expected=f"one of the formats {_READABLE}",
            ) from None
        streams = self._container.streams.video
        if not 0 <= self._number < len(streams):
            raise InvalidArgument(
                "the file has no such video stream",
                path=self._path,
                expected=f"a number below {len(streams)}",
                found=self._number,
            )
        self._stream = streams[self._number]
        self._position = 0

    def _packets(self) -> Iterator[Any]:
        try:
            for packet in self._container.demux(self._stream):
                if packet.size:  # the last one only tells decoders to finish
                    yield packet
        except (self._av.FFmpegError, ValueError) as error:
            raise BadValue(f"the video file is damaged: {error}", path=self._path) from None

    def _scan(self) -> tuple[FrameIndex, list[_PacketKey], NDArray[np.int64]]:
        sizes, flags, times, keys = [0], [], [], list[_PacketKey]()
        for number, packet in enumerate(self._packets()):
            if packet.has_sidedata("new_extradata") and number:
                raise InvalidArgument(
                    "the encoding changes within the file, which one channel cannot hold",
                    path=self._path,
                    found=f"new parameters at packet {number}",
                    hint="decode it, and encode the frames again",
                )
            sizes.append(packet.size)
            flags.append(KEYFRAME * packet.is_keyframe + HIDDEN * packet.is_discard)
            # A raw stream has no times: its frames are in order.
            known = [time for time in (packet.pts, packet.dts, number) if time is not None]
            times.append(known[0])
            keys.append(_key_of(packet))
        base = self._stream.time_base or Fraction(1)
        shown_at, marks = np.array(times, np.int64), np.array(flags, np.int64)
        shown = np.sort(shown_at[marks & HIDDEN == 0])
        # A hidden frame has the number of the shown one that follows it.
        frames = np.stack([np.searchsorted(shown, shown_at), marks], axis=1).astype(np.int64)
        times_ns = [int(time) * base.numerator * 10**9 // base.denominator for time in shown]
        try:
            index = FrameIndex(np.cumsum(sizes, dtype=np.int64), frames, len(shown))
        except BadValue as error:
            raise error.located(path=self._path) from None
        self._position = len(times)
        return index, keys, np.array(times_ns, np.int64)

    @property
    def timestamps_ns(self) -> NDArray[np.int64]:
        """When each frame is shown, as the file says."""
        return self._times

    def __len__(self) -> int:
        return len(self._index.packet_of)

    def cut(self, start_frame: int = 0, count: int | None = None) -> EncodedVideo:
        """Some frames as they are encoded; see `VideoChannel.from_file`."""
        stop = len(self) if count is None else start_frame + count
        if not 0 <= start_frame <= stop <= len(self):
            raise InvalidArgument(
                "the video has fewer frames",
                path=self._path,
                expected=f"frames from 0 to {len(self)}",
                found=f"{start_frame} to {stop}",
            )
        first, end, frames = self._index.cut(start_frame, stop)
        return EncodedVideo(
            self.content_type,
            self.dtype,
            self.shape,
            self._read(first, end),
            frames[:, 0],
            (frames[:, 1] & KEYFRAME).astype(np.bool_),
            (frames[:, 1] & HIDDEN).astype(np.bool_),
            self.extradata,
        )

    def _read(self, first: int, end: int) -> list[bytes]:
        """Packets by their numbers in the file, the first of which is a keyframe."""
        if first >= end:
            return []
        if self._container is None:
            raise InvalidArgument("the video file is closed", path=self._path)
        if first != self._position:
            self._seek(first)
        found: list[bytes] = []
        for packet in self._packets():
            if self._position >= first:
                found.append(bytes(packet))
            self._position += 1
            if self._position == end:
                break
        if len(found) != end - first:
            raise BadValue("the video file ends early", path=self._path)
        return found

    def _seek(self, first: int) -> None:
        """Goes to a keyframe, or to a packet before it."""
        dts, pts, _ = self._keys[first]
        time = pts if dts is None else dts
        if time is not None:
            with suppress(self._av.FFmpegError):  # some formats cannot seek
                self._container.seek(time, stream=self._stream)
                packet = next(self._packets(), None)
                found = None if packet is None else self._numbers.get(_key_of(packet))
                if found is not None and found <= first:
                    # The packet that told us where we are is gone: once more from there.
                    self._container.seek(time, stream=self._stream)
                    self._position = found
                    return
        self._open()

    def close(self) -> None:
        """Closes the file."""
        for opened in (self._container, self._file):
            if opened is not None:
                opened.close()
        self._container = self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.shape[1::-1]))
        return f"<VideoFile {self._path!r}: {len(self)} frames of {size}, {self.content_type}>"


def _key_of(packet: Any) -> _PacketKey:  # noqa: ANN401 - a packet of PyAV
    return packet.dts, packet.pts, packet.size


def write_video_file(video: EncodedVideo, path: str | os.PathLike[str], fps: float) -> None:
    """Writes packets into a file of the kind that its name says; the file is complete or not there."""
    av = require("av", "video")
    name = os.fspath(path)
    form = _ENDINGS.get(os.path.splitext(name)[1].lower())
    if form is None:
        raise InvalidArgument(
            "unknown kind of video file",
            path=name,
            expected=f"a name that ends in {', '.join(_ENDINGS)}",
        )
    codec = BY_CONTENT_TYPE.get(video.content_type, video.content_type)
    if codec not in _MATROSKA_NAMES:
        raise InvalidArgument(
            "video files cannot hold this codec",
            path=name,
            expected=" or ".join(_MATROSKA_NAMES),
            found=codec,
        )
    is_before = video.is_hidden & (video.steps < 0)
    if (video.is_hidden & ~is_before).any() or (is_before.any() and form not in _WITH_EDIT_LISTS):
        raise InvalidArgument(
            "the video has frames that are not shown, and this kind of file cannot mark them",
            path=name,
            found=f"{int(video.is_hidden.sum())} hidden frames",
            hint="write an mp4 of one part that was not joined, or encode the frames again",
        )
    rate = Fraction(fps).limit_denominator(100_000)
    try:
        with replacing(name) as staged, av.open(staged, "w", format=form) as output:
            if len(video.packets):
                with _template(av, video, rate) as template:
                    stream = output.add_stream_from_template(template.streams.video[0], opaque=True)
                    stream.time_base = 1 / rate
                    _mux(av, output, stream, video, 1 / rate)
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"{form} cannot hold these packets: {error}", path=name, found=video.content_type
        ) from None


def _mux(av: Any, output: Any, stream: Any, video: EncodedVideo, base: Fraction) -> None:  # noqa: ANN401 - PyAV
    ordered = np.sort(video.steps)
    # Each packet is decoded before it is shown, and in the order of the stream.
    delay = int((ordered - video.steps).max())
    for number, data in enumerate(video.packets):
        packet = av.Packet(data)
        packet.stream, packet.time_base = stream, base
        packet.pts, packet.dts = int(video.steps[number]), int(ordered[number]) - delay
        packet.duration, packet.is_keyframe = 1, bool(video.is_keyframe[number])
        output.mux_one(packet)


def _template(av: Any, video: EncodedVideo, rate: Fraction) -> Any:  # noqa: ANN401 - PyAV
    """A container whose only stream is described like the video: PyAV copies parameters of streams, and sets none."""
    extradata = video.extradata
    if not extradata and BY_CONTENT_TYPE[video.content_type] in ("h264", "h265", "av1"):
        with av.open(BytesIO(_matroska_head(video, b"", rate))) as plain:
            taker = av.bitstream.BitStreamFilterContext("extract_extradata", plain.streams.video[0])
            for packet in taker.filter(av.Packet(video.packets[0])):
                if packet.has_sidedata("new_extradata"):
                    extradata = bytes(packet.get_sidedata("new_extradata"))
    return av.open(BytesIO(_matroska_head(video, extradata, rate)))


def _matroska_head(video: EncodedVideo, extradata: bytes, rate: Fraction) -> bytes:
    """The start of a Matroska file with one track and no frames."""

    def element(number: str, content: bytes) -> bytes:
        return bytes.fromhex(number) + (len(content) | 1 << 56).to_bytes(8, "big") + content

    def integer(number: str, value: int) -> bytes:
        return element(number, value.to_bytes(8, "big"))

    height, width = video.shape[:2]
    picture = element("e0", integer("b0", width) + integer("ba", height))
    track = integer("d7", 1) + integer("73c5", 1) + integer("83", 1)
    track += element("86", _MATROSKA_NAMES[BY_CONTENT_TYPE[video.content_type]])
    track += element("63a2", extradata) if extradata else b""
    track += integer("23e383", round(10**9 / rate)) + picture
    head = element("1a45dfa3", element("4282", b"matroska"))
    content = element("1549a966", integer("2ad7b1", 1_000_000))
    content += element("1654ae6b", element("ae", track)) + element("1f43b675", integer("e7", 0))
    return head + element("18538067", content)
