"""The mp4 files of a LeRobot dataset that is being written: each holds a camera in many episodes."""

from __future__ import annotations

import contextlib
import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.extras import require
from wshard.convert._lerobot._layout import VIDEOS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wshard._video import VideoChannel

FILES_IN_FOLDER: Final = 1000
MOST_VIDEO_MB: Final = 200


class VideoPlace(NamedTuple):
    """Where an episode is in the videos of a camera."""

    chunk: int
    file: int
    start: int
    """The number of its first frame in the file."""


class VideoTrack:
    """The files of one camera. Encoded frames are copied; a file holds only frames that one decoder can show."""

    def __init__(self, folder: str, name: str, fps: float) -> None:
        self._folder, self._name = folder, name
        self._fps = fps
        self._rate = Fraction(fps).limit_denominator(100_000)
        self._av = require("av", "lerobot")
        self._output: Any = None
        self._stream: Any = None
        self._form: Any = None
        self._file = -1
        self._frames = self._bytes = self._delay = 0
        self.info: dict[str, Any] | None = None
        """What `info.json` says about the first video."""

    def add(self, parts: Iterable[VideoChannel]) -> VideoPlace:
        """Adds an episode, given as one or more channels that follow each other and start with a keyframe."""
        place: VideoPlace | None = None
        beside = os.path.join(self._folder, "episode.mp4")
        for part in parts:
            part.to_file(beside, fps=self._fps)
            try:
                place = self._append(beside, place)
            finally:
                os.unlink(beside)
        assert place is not None
        return place

    def _append(self, path: str, place: VideoPlace | None) -> VideoPlace:
        with self._av.open(path) as source:
            stream = source.streams.video[0]
            context = stream.codec_context
            packets = [packet for packet in source.demux(stream) if packet.size]
            unit = stream.time_base * self._rate
            # Frames that depend on later ones are decoded before they are shown.
            delay = -min(round(packet.dts * unit) for packet in packets)
            size = sum(packet.size for packet in packets)
            form = (context.codec.canonical_name, bytes(context.extradata or b""), context.width)
            fits = self._output is not None and form == self._form and delay <= self._delay
            if place is None and fits:
                fits = self._bytes + size < MOST_VIDEO_MB << 20
            if not fits:
                # Parts of one episode come from one encoder, which gives all of them the same form.
                assert place is None
                self._next_file(stream, form, delay)
            if self.info is None:
                self.info = _info_of(stream, self._fps)
            start = self._frames
            for packet in packets:
                shown, decoded = round(packet.pts * unit), round(packet.dts * unit) + delay
                packet.stream, packet.time_base = self._stream, 1 / self._rate
                packet.pts = start + shown
                packet.dts = start + decoded - self._delay
                packet.duration = 1
                self._output.mux_one(packet)
            self._frames += len(packets)
            self._bytes += size
        return place or VideoPlace(*divmod(self._file, FILES_IN_FOLDER), start)

    def _next_file(self, template: Any, form: Any, delay: int) -> None:  # noqa: ANN401 - of PyAV
        self.close()
        self._file += 1
        chunk, file = divmod(self._file, FILES_IN_FOLDER)
        name = VIDEOS.format(video_key=self._name, chunk_index=chunk, file_index=file)
        path = os.path.join(self._folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._output = self._av.open(path, "w", format="mp4", options={"movflags": "faststart"})
        self._stream = self._output.add_stream_from_template(template, opaque=True)
        self._stream.time_base = 1 / self._rate
        self._form, self._delay = form, delay
        self._frames = self._bytes = 0

    def close(self) -> None:
        """Finishes the file that is being written."""
        if self._output is not None:
            output, self._output = self._output, None
            output.close()

    def abandon(self) -> None:
        """Closes the file after an error."""
        with contextlib.suppress(Exception):  # what is there is thrown away
            self.close()


def _info_of(stream: Any, fps: float) -> dict[str, Any]:  # noqa: ANN401 - of PyAV
    context = stream.codec_context
    form = context.pix_fmt
    return {
        "video.height": context.height,
        "video.width": context.width,
        "video.codec": context.codec.canonical_name,
        "video.pix_fmt": form,
        "video.is_depth_map": False,
        "video.fps": int(fps) if fps == int(fps) else fps,
        "video.channels": 1 if (form or "").startswith("gray") else 3,
        "has_audio": False,
    }
