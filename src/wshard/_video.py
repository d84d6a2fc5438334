"""Cameras that are stored as encoded video: packets, and an index of frames (spec/wshard.md, section 6)."""

from __future__ import annotations

import base64
import binascii
import operator
from functools import partial
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from shard_format import display
from shard_format.cache import Pool
from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, SizeMismatch, UnknownCodec
from shard_format.parallel import available_threads, for_each
from wshard._blocks import ArrayBlock, ChainedBlock, FileBlock
from wshard._channels import Channel, RaggedChannel, check_offsets
from wshard._metadata import CHANNEL_FIELDS
from wshard._values import DType, as_array, read_only, step_ranges
from wshard._video_codec import (
    BY_CONTENT_TYPE,
    CodecChoice,
    EncodedVideo,
    PictureDecoder,
    VideoDecoder,
    VideoFrames,
    decoder_of,
    encode_frames,
    has_only_keyframes,
    is_keyframe,
    parse_codec,
    picture_format,
)
from wshard._video_file import VideoFile, write_video_file
from wshard._video_index import HIDDEN, KEYFRAME, FrameIndex

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from wshard._blocks import Block

__all__ = ["Packet", "VideoChannel"]

VIDEO_FIELD: Final = "video"
"""The field of a journal's row that says what frames the packets of a ragged channel hold (spec/journal.md, section 6)."""

_I64: Final = np.dtype("<i8")
# A frame of this size is decoded before memory for others is made: a row may claim anything.
_LARGE_FRAME: Final = 16 << 20
_WORTH_THREADS: Final = 1 << 22
# How many packets of a recording are looked at together.
_SCANNED_STEPS: Final = 256
# Fields of a row that encoding changes.
_OF_ENCODING: Final = ("content_type", "lossy", "horizon")


class Packet(NamedTuple):
    """One encoded frame."""

    data: bytes | memoryview
    step: int
    """The step that its frame is, or would be if it were not hidden."""
    is_keyframe: bool = True
    """Whether decoding can start here."""
    is_hidden: bool = False
    """Whether its frame is decoded for others only."""


class VideoChannel(Channel):
    """A camera that is stored as encoded video.

    It is read like any other channel: `channel[a:b]` is an array of frames, decoded from the keyframe before them, and
    `data` is all of them. Decoding needs the extra `video`, or `images` for JPEG and PNG; `packets` gives the encoded
    frames and needs nothing.
    Slicing, saving, joining and copying keep the packets as they are: nothing is encoded twice.

    Make one with `encode`, `from_file` or `from_packets`.
    """

    layout: ClassVar[str] = "video"

    extradata: bytes = b""
    """What the codec needs besides the packets."""
    offsets_source: Block | None = None
    """Where the offsets of the packets are stored."""
    frames_source: Block | None = None
    """Where the steps and flags of the packets are stored; None if packet t is step t, and each is a keyframe."""
    _index: FrameIndex | None = None
    _is_proven: bool = False
    _decoders: Pool[VideoDecoder | PictureDecoder] | None = None

    def __init__(self, *_: object, **__: object) -> None:
        raise InvalidArgument(
            "a video channel is made of encoded frames",
            hint="use VideoChannel.encode(frames, 'h264:crf=23'), VideoChannel.from_file or from_packets",
        )

    @classmethod
    def from_packets(
        cls,
        packets: Iterable[bytes | Packet],
        content_type: str,
        shape: Sequence[int],
        *,
        dtype: str | DType = DType.UINT8,
        extradata: bytes = b"",
        name: str = "",
        **fields: Any,  # noqa: ANN401 - the arguments of Channel
    ) -> Self:
        """A channel of packets that were encoded elsewhere.

        Args:
            packets: one for each frame, in the order in which they are decoded: bytes if each is a keyframe and the
                frames are shown in this order, as with JPEG and PNG; else `Packet`s, as `packets()` returns them.
            content_type: `video/h264`, `video/h265`, `video/av1`, `video/vp9`, `video/ffv1`, `image/jpeg` or
                `image/png`.
            shape: of a decoded frame: `[H, W]` or `[H, W, C]`.
            dtype: u8, or u16 for one value of 16 bits for each pixel.
            extradata: what the codec needs besides the packets, such as an `avcC` record. Without it, packets of H.264
                and H.265 are in Annex B form.
            name: as for `Channel`.
            fields: as for `Channel`.
        """
        given = [
            packet if isinstance(packet, Packet) else Packet(packet, step)
            for step, packet in enumerate(packets)
        ]
        video = EncodedVideo(
            content_type,
            DType.parse(dtype),
            tuple(operator.index(number) for number in shape),
            [bytes(packet.data) for packet in given],
            np.asarray([packet.step for packet in given], np.int64),
            np.asarray([packet.is_keyframe for packet in given], np.bool_),
            np.asarray([packet.is_hidden for packet in given], np.bool_),
            bytes(extradata),
        )
        return cls._of(video, name, fields)

    @classmethod
    def encode(
        cls,
        frames: ArrayLike,
        codec: str = "h264:crf=23",
        *,
        fps: float = 30,
        keyframe_every: int | None = None,
        name: str = "",
        **fields: Any,  # noqa: ANN401 - the arguments of Channel
    ) -> Self:
        """Encodes frames, and measures what that changed: see `lossy`.

        Args:
            frames: uint8 `[T, H, W]` or `[T, H, W, C]` with 1, 3 or 4 values for each pixel, or uint16 `[T, H, W]`.
            codec: `"h264"`, `"h265"`, `"av1"`, `"ffv1"` (lossless), `"jpeg"` or `"png"` (lossless), with settings:
                `"h264:crf=18,preset=slow"`, `"jpeg:95"`.
            fps: frames per second.
            keyframe_every: steps between keyframes, best the length of your windows; 32 if you leave it out.
            name: as for `Channel`.
            fields: as for `Channel`.

        Raises:
            MissingExtra: PyAV is not installed.
            InvalidArgument: the codec cannot store these frames.
        """
        try:
            given = VideoFrames.of(as_array(frames))
            video = encode_frames(given, parse_codec(codec), fps, keyframe_every)
        except InvalidArgument as error:
            raise error.located(entry=name or None) from None
        return cls._of(video, name, fields)

    @classmethod
    def encoded(
        cls, channel: Channel, choice: CodecChoice, fps: float, keyframe_every: int | None
    ) -> VideoChannel:
        """A channel of frames as video with the same description; one that is video in this codec stays as it is."""
        entry = channel.block or channel.name
        if isinstance(channel, VideoChannel):
            if channel.codec == choice.name:
                return channel
            raise InvalidArgument(
                "the channel is encoded already",
                entry=entry,
                expected=choice.name,
                found=channel.codec,
                hint="assign its frames to the episode first: ep.observations[name] = channel.data",
            )
        if (
            type(channel) is not Channel
            or picture_format(channel.dtype_name, channel.step_shape) is None
        ):
            raise InvalidArgument(
                "only cameras can be encoded as video",
                entry=entry,
                expected="u8 [T, H, W] or [T, H, W, C], or u16 [T, H, W]",
                found=repr(channel),
            )
        reading, form = channel.uncached(), (channel.dtype_name, channel.step_shape)
        frames = VideoFrames(reading.read_steps, channel.length, *form)
        try:
            video = encode_frames(frames, choice, fps, keyframe_every)
        except InvalidArgument as error:
            raise error.located(entry=entry) from None
        if channel.lossy is not None and video.lossy is not None:
            video = video._replace(lossy={**video.lossy, "before": dict(channel.lossy)})
        made = cls._of(video, channel.name, {})
        kept = {key: value for key, value in vars(channel).items() if key not in vars(made)}
        told = {key: getattr(channel, key) for key in CHANNEL_FIELDS if key not in _OF_ENCODING}
        made.extra = channel.extra
        return made._changed(**kept, **told, modality=channel.modality)

    @classmethod
    def from_file(
        cls,
        file: str | os.PathLike[str] | VideoFile,
        start_frame: int = 0,
        count: int | None = None,
        *,
        name: str = "",
        **fields: Any,  # noqa: ANN401 - the arguments of Channel
    ) -> Self:
        """Frames of an mp4, mkv or other video file, which are not encoded again.

        Frames are counted in the order in which they are shown. If the first one is not a keyframe, the packets from the
        keyframe before come along: see `hidden`.

        Args:
            file: its path; or an open `wshard.video.VideoFile`, which is faster for many parts of one file.
            start_frame: the first frame.
            count: how many frames; all that follow if you leave it out.
            name: as for `Channel`.
            fields: as for `Channel`.
        """
        if isinstance(file, VideoFile):
            return cls._of(file.cut(start_frame, count), name, fields)
        with VideoFile(file) as video:
            return cls._of(video.cut(start_frame, count), name, fields)

    @classmethod
    def _of(cls, video: EncodedVideo, name: str, fields: Mapping[str, Any]) -> Self:
        problem = row_problem(video.content_type, video.dtype, video.shape)
        if problem is not None:
            raise InvalidArgument(problem[0], entry=name or None, found=problem[1], rule="W-VID-5")
        # The constructor of Channel checks and sets the fields; it has no frames yet.
        plain = Channel(name, data=np.empty((0, *video.shape), video.dtype.numpy_dtype), **fields)
        channel = cls.having(vars(plain))
        sizes = [len(packet) for packet in video.packets]
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        flags = video.is_keyframe * KEYFRAME + video.is_hidden * HIDDEN
        frames = np.stack([video.steps, flags], axis=1).astype(np.int64)
        length = int(np.count_nonzero(~video.is_hidden))
        try:
            index = FrameIndex(offsets, frames, length)
        except BadValue as error:
            raise InvalidArgument(
                error.problem,
                entry=name or None,
                expected=error.expected,
                found=error.found,
                rule=error.rule,
            ) from None
        packets = np.frombuffer(b"".join(video.packets), np.uint8)
        channel.content_type = video.content_type.lower()
        channel.extradata = video.extradata
        if channel.lossy is None:
            channel.lossy = video.lossy
        return channel.with_packets(ArrayBlock(name, packets), index)

    def with_packets(self, source: Block, index: FrameIndex) -> Self:
        """A channel that is described like this one and has these packets."""
        frames = None if index.is_plain else index.table
        name = source.name
        return self._changed(
            _values=None,
            source=source,
            _length=len(index.packet_of),
            offsets_source=ArrayBlock(f"offsets/{name}", index.offsets),
            frames_source=None if frames is None else ArrayBlock(f"frames/{name}", frames),
            _index=index,
            _decoders=self._idle_decoders(),
        )

    # --- packets

    @property
    def index(self) -> FrameIndex:
        """What each packet is, read and checked when it is first asked for."""
        if self._index is None:
            self._index = self._read_index()
        return self._index

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each packet starts; one more element for the end."""
        return self.index.offsets

    def _read_index(self) -> FrameIndex:
        block, source = self.offsets_source, self.source
        assert block is not None
        assert source is not None
        if block.nbytes < 8 or block.nbytes % 8:
            raise SizeMismatch(
                "a video needs one offset more than packets",
                path=block.path,
                entry=block.name,
                expected="8 bytes for each packet, and 8 more",
                found=f"{block.nbytes} bytes",
                rule="W-VID-1",
            )
        packets = block.nbytes // 8 - 1
        frames = self.frames_source
        if frames is not None and frames.nbytes != 16 * packets:
            raise SizeMismatch(
                "the index of frames has a different length than the packets",
                path=frames.path,
                entry=frames.name,
                expected=f"{16 * packets} bytes for {packets} packets",
                found=f"{frames.nbytes} bytes",
                rule="W-VID-2",
            )
        offsets = block.array(_I64, (packets + 1,))
        try:
            check_offsets(offsets, source.nbytes, block.name, BadValue)
        except BadValue as error:
            error.rule = "W-VID-1"
            raise error.located(path=block.path) from None
        table = None if frames is None else frames.array(_I64, (packets, 2))
        try:
            return FrameIndex(offsets, table, self._length)
        except BadValue as error:
            stored = frames or block
            raise error.located(path=stored.path, entry=stored.name) from None

    def packets(self, start: int = 0, stop: int | None = None) -> list[Packet]:
        """The encoded frames that some steps need, in the order in which they are decoded.

        The first one is a keyframe. Those of other steps are hidden.

        Args:
            start: first step.
            stop: end; all that follow if you leave it out.
        """
        start, stop, _ = slice(start, stop).indices(self._length)
        first, end, frames = self.index.cut(start, stop)
        return [
            Packet(data, step, starts, bool(flags & HIDDEN))
            for (_, data, starts), (step, flags) in zip(
                self._packet_bytes(first, end), frames.tolist(), strict=True
            )
        ]

    def _packet_bytes(self, first: int, end: int) -> Iterator[tuple[int, memoryview, bool]]:
        """Packets with their numbers, and whether they are keyframes."""
        assert self.source is not None
        offsets = self.index.offsets[first : end + 1]
        if first >= end:
            return
        begin = int(offsets[0])
        stored = self.source.part(np.dtype(np.uint8), (int(offsets[-1]) - begin,), begin)
        starts = (self.index.flags[first:end] & KEYFRAME).astype(np.bool_).tolist()
        bounds = pairwise((offsets - begin).tolist())
        for number, (low, high) in enumerate(bounds, first):
            yield number, stored[low:high].data, starts[number - first]

    @property
    def hidden(self) -> int:
        """How many packets are decoded only because others need them; 0 if the channel begins at a keyframe."""
        return int(np.count_nonzero(self.index.flags & HIDDEN))

    @property
    def keyframes(self) -> NDArray[np.int64]:
        """The steps that are keyframes: a window that starts at one needs no frames before it."""
        steps = self.index.steps[self.index.flags == KEYFRAME]
        return np.sort(steps)

    @property
    def codec(self) -> str:
        """The name of its codec: `h264`."""
        content_type = (self.content_type or "").lower()
        return BY_CONTENT_TYPE.get(content_type, content_type.partition("/")[2])

    # --- frames

    @property
    def data(self) -> NDArray[Any]:
        """All frames as one read-only array, decoded when you first ask for it and kept."""
        if self._values is None:
            self._values = self.read_steps(0, self._length)
        values: NDArray[Any] = self._values
        return values

    @data.setter
    def data(self, data: ArrayLike) -> None:
        raise InvalidArgument(
            "the frames of a video channel cannot be replaced",
            entry=self.name,
            hint="assign a new channel to the episode: an array, or VideoChannel.encode(frames)",
        )

    def read_steps(self, start: int, stop: int) -> NDArray[Any]:
        if self._values is not None:
            return self.data[start:stop]
        self._check_size()
        self._check_range(start, stop)
        self.check_claims()
        self._check_limit(stop - start)
        out = np.empty((stop - start, *self.step_shape), self.dtype)
        self._decode_into(start, stop, out)
        return read_only(out)

    def read_steps_into(self, start: int, out: NDArray[Any]) -> None:
        if out.shape[1:] != self.step_shape or out.dtype != self.dtype:
            raise InvalidArgument(
                "the array has a different form than the channel",
                entry=self.block or self.name,
                expected=f"{self.dtype_name} [steps, {', '.join(map(str, self.step_shape))}]",
                found=f"{out.dtype} {list(out.shape)}",
            )
        if self._values is not None:
            out[...] = self.data[start : start + len(out)]
            return
        self._check_range(start, start + len(out))
        self._decode_into(start, start + len(out), out)

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self._length:
            raise InvalidArgument(
                "steps outside the channel",
                entry=self.block or self.name,
                expected=f"0 <= start <= stop <= {self._length}",
                found=f"start {start}, stop {stop}",
            )

    def _check_limit(self, steps: int) -> None:
        """A few bytes can hold any number of black frames: reading many at once has the limit of a compressed block."""
        if isinstance(self.source, FileBlock):
            most = self.source.reader.limits.max_decompressed_bytes
            if steps * self.step_bytes > most:
                raise LimitExceeded(
                    "decoding these frames at once takes more memory than the limit",
                    path=self.source.path,
                    entry=self.block,
                    expected=f"at most {most} bytes",
                    found=f"{steps * self.step_bytes} bytes",
                    hint="read fewer steps at a time, or raise limits.max_decompressed_bytes",
                )

    def _decode_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        groups = list(self.index.groups(start, stop))
        threads = min(available_threads(), len(groups)) if out.nbytes >= _WORTH_THREADS else 1

        def decode(group: tuple[int, int, int]) -> None:
            first, end, keyframe = group
            self._decode_group(first, end, keyframe, out[first - start : end - start])

        for_each(groups, decode, threads)

    def _idle_decoders(self) -> Pool[VideoDecoder | PictureDecoder]:
        """Opening a decoder takes longer than decoding a few frames."""
        if self._decoders is not None:
            return self._decoders
        form = (self.dtype_name, self.step_shape)
        return Pool(partial(decoder_of, self.content_type or "", self.extradata, *form), keep=16)

    def _decode_group(self, start: int, stop: int, keyframe: int, out: NDArray[Any]) -> None:
        """Decodes steps that depend on one keyframe."""
        wanted = {
            packet: step for step, packet in enumerate(self.index.packet_of[start:stop].tolist())
        }
        for step, picture in self._decoded(keyframe, wanted):
            out[step] = picture

    def _decoded(
        self, keyframe: int, wanted: Mapping[int, int]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Pictures of packets after a keyframe, as `VideoDecoder.decode` yields them."""
        decoders = self._decoders = self._idle_decoders()
        try:
            decoder = decoders.take()
            # Frames before the keyframe in time need the group before, and no frame after it needs them.
            steps, end = self.index.steps, max(wanted) + 1
            is_after = (steps[keyframe:end] >= steps[keyframe]).tolist()
            packets = compress(self._packet_bytes(keyframe, end), is_after)
            yield from decoder.decode(packets, wanted)
            decoders.give_back(decoder)
        except (BadValue, UnknownCodec) as error:
            path = None if self.source is None else self.source.path
            raise error.located(path=path, entry=self.block or self.name) from None

    def check_claims(self) -> None:
        """As for `Channel`: if the file claims that frames are large, one is decoded to prove it."""
        index = self.index
        if self.step_bytes >= _LARGE_FRAME and len(index.packet_of) and not self._is_proven:
            for _ in self._decoded(int(index.start_of[0]), {int(index.packet_of[0]): 0}):
                self._is_proven = True

    def _reading_cost(self, step: int) -> int:
        first, end = self.index.needed(step, step + 1)
        return (end - first) * self.step_bytes

    # --- as a file has it

    @property
    def is_view(self) -> bool:
        return False

    def stored_array(self) -> NDArray[Any]:
        """The packets, back to back."""
        self._check_size()
        assert self.source is not None
        return self.source.array(np.dtype(np.uint8), (self.source.nbytes,))

    def as_block(self) -> Block:
        assert self.source is not None
        return self.source

    def _check_size(self) -> None:
        """The size of the block does not follow from the shape; the index is checked against it."""
        _ = self.index

    def to_file(self, path: str | os.PathLike[str], fps: float | None = None) -> None:
        """Writes an mp4, mkv or other video file with these packets; nothing is encoded again.

        Frames that are hidden are in the file: an mp4 tells players to skip them.

        Args:
            path: the ending says which kind of file. An existing file is replaced.
            fps: frames per second; `sampling_rate_hz` if you leave it out.
        """
        rate = self.sampling_rate_hz if fps is None else fps
        if rate is None or not rate > 0:
            raise InvalidArgument(
                "a video file needs a rate",
                entry=self.name,
                hint="pass fps=…, or set sampling_rate_hz",
            )
        index = self.index
        first, end = index.needed(0, self._length)
        data = [bytes(packet) for _, packet, _ in self._packet_bytes(first, end)]
        video = EncodedVideo(
            self.content_type or "",
            self.dtype_name,
            self.step_shape,
            data,
            index.steps[first:end],
            (index.flags[first:end] & KEYFRAME).astype(np.bool_),
            (index.flags[first:end] & HIDDEN).astype(np.bool_),
            self.extradata,
        )
        write_video_file(video, path, rate)

    # --- copies

    def clone(self) -> Self:
        packets = ArrayBlock(self.block or self.name, np.array(self.stored_array()))
        index = self.index
        copied = FrameIndex(np.array(index.offsets), index.table, self._length)
        return self.with_packets(packets, copied)

    def sliced(self, start: int, stop: int) -> Self:
        """Some steps as a channel of its own.

        Its packets are those that the steps need, as they are: if `start` is not a keyframe, the packets from the
        keyframe before come along, hidden.
        """
        assert self.source is not None
        first, end, frames = self.index.cut(start, stop)
        offsets = self.index.offsets[first : end + 1]
        begin = int(offsets[0])
        packets = self.source.part(np.dtype(np.uint8), (int(offsets[-1]) - begin,), begin)
        index = FrameIndex(offsets - begin, frames, stop - start)
        fields = self._slice(start, stop)
        sliced = self.with_packets(ArrayBlock(self.block or self.name, packets), index)
        del fields["source"]
        return sliced._changed(**fields)

    def joined_with(
        self, block: str, others: Sequence[VideoChannel], counts: Sequence[int]
    ) -> Channel:
        """One channel of this and of others that follow, with the first `counts` steps of each."""
        parts = [self, *others]
        offsets, frames, at, step = [np.zeros(1, np.int64)], [], 0, 0
        for part, count in zip(parts, counts, strict=True):
            own = part.index
            offsets.append(own.offsets[1:] + at)
            at += int(own.offsets[-1])
            # The next part begins with the step that is left out.
            flags = own.flags | np.where(own.steps >= count, HIDDEN, 0)
            frames.append(np.stack([own.steps + step, flags], axis=1))
            step += count
        index = FrameIndex(np.concatenate(offsets), np.concatenate(frames), step)
        source = ChainedBlock(block, [part.as_block() for part in parts])
        return self.with_packets(source, index)

    # --- looking

    def summary(self) -> dict[str, str]:
        facts = super().summary()
        codec = self.codec
        if self.lossy is not None:
            codec += " lossy"
            if "psnr_db" in self.lossy:
                codec += f" {self.lossy['psnr_db']} dB"
        stored = facts["stored"] or ("" if self.source is None else facts["size"])
        shape = ", ".join(map(str, self.shape))
        size = display.size(self.nbytes)
        return {**facts, "shape": f"[{shape}]", "codec": codec, "size": size, "stored": stored}

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"<VideoChannel {self.name!r}: {self.dtype_name}[{shape}] as {self.codec}>"


# --- rows


def row_problem(
    content_type: str | None, dtype: DType, shape: Sequence[int]
) -> tuple[str, str] | None:
    """What is wrong with the row of a video channel, and what was found (W-VID-5); None if nothing."""
    if picture_format(dtype, shape) is None:
        return (
            "the frames of a video are u8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], or u16 [H, W] or [H, W, 1]",
            f"{dtype} {list(shape)}",
        )
    if not (content_type or "").lower().startswith(("video/", "image/")):
        return "a video has no content type 'video/…' or 'image/…'", repr(content_type)
    return None


def extradata_of(text: object) -> bytes | None:
    """The bytes that a row holds as Base64; None if it does not (W-VID-5)."""
    if text is None:
        return b""
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        return None


def extradata_text(extradata: bytes) -> str:
    """Bytes as a row holds them."""
    return base64.b64encode(extradata).decode()


# --- recordings


def recorded_video(channel: RaggedChannel, measured: Mapping[str, Any] | None) -> Channel:
    """The packets of a recording as video; the channel as it is if they are not, so that nothing is lost.

    Args:
        channel: one packet for each step.
        measured: what encoding has changed, if the recording says it.
    """
    told = channel.extra.get(VIDEO_FIELD)
    if not isinstance(told, dict) or channel.source is None:
        return channel
    try:
        dtype, shape = DType.parse(told["dtype"]), tuple(told["shape"])
        problem = row_problem(channel.content_type, dtype, shape)
        extradata = extradata_of(told.get("extradata"))
        if problem is not None or extradata is None:
            return channel
        flags = np.full(channel.length, KEYFRAME)
        content_type = channel.content_type or ""
        if not has_only_keyframes(content_type):
            for start, stop in step_ranges(channel.length, 1, _SCANNED_STEPS):
                packets = channel.read_steps(start, stop)
                flags[start:stop] = [is_keyframe(content_type, one.tobytes()) for one in packets]
        frames = np.stack([np.arange(channel.length), flags], axis=1).astype(np.int64)
        index = FrameIndex(channel.offsets, frames, channel.length)
    except (BadValue, InvalidArgument, KeyError, TypeError):
        return channel
    of_packets = {"_values", "_offsets", "offsets_source"}
    own = {key: value for key, value in vars(channel).items() if key not in of_packets}
    video = VideoChannel.having(own)
    video.dtype_name, video.step_shape, video.extradata = dtype, shape, extradata
    video.extra = {key: value for key, value in channel.extra.items() if key != VIDEO_FIELD}
    lossy = {"codec": told.get("codec"), **told.get("settings", {}), **(measured or {})}
    if measured is None or measured["max_error"]:
        video.lossy = lossy
    return video.with_packets(channel.source, index)
