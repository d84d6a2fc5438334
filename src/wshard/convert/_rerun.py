"""Rerun recordings: what the Rerun viewer shows of an episode, on the timelines `step` and `time`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument
from shard_format.extras import require
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel, is_frames
from wshard._lanes import CHANNEL_LANES, TICKS, TIMESTAMPS, block_name
from wshard._video import VideoChannel
from wshard.convert._mcap_json import PACKETS, form_of
from wshard.convert._model import DatasetWriter, Notes, WriteOptions
from wshard.convert._per_file import next_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from wshard._episode import Episode

__all__ = ["RerunWriter"]

_WINDOW: Final = 16 << 20
# Vectors with more elements than this are tensors: a plot with more lines is hard to read.
_MOST_LINES: Final = 256
_EXACT: Final = ("f8", "f4", "f2", "b1", "i1", "u1", "i2", "u2", "i4", "u4")


class RerunWriter(DatasetWriter):
    """Writes each episode as a recording: one, or a folder of them."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        self._names: list[str] = []

    def write(self, episode: Episode, notes: Notes) -> None:
        rerun = require("rerun", "rerun")
        path = next_path(self.path, self._names, episode.id, ".rrd")
        stream = rerun.RecordingStream("wshard", make_default=False, make_thread_default=False)
        stream.save(path)
        # The times of writing are not those of the episode.
        stream.set_log_time_enabled(False)
        stream.set_log_tick_enabled(False)
        # Otherwise what cannot be written is a warning.
        was_strict = rerun.strict_mode()
        rerun.set_strict_mode(True)
        try:
            _RerunRecording(rerun, stream, episode, notes).write()
        finally:
            rerun.set_strict_mode(was_strict)
            stream.flush()
            stream.disconnect()

    def finish(self) -> None:
        if not self._names:
            raise InvalidArgument("no episodes were given", path=self.path)


class _RerunRecording:
    """Writes one episode."""

    def __init__(self, rerun: Any, stream: Any, episode: Episode, notes: Notes) -> None:  # noqa: ANN401 - of rerun
        self._rerun = rerun
        self._stream = stream
        self._episode = episode
        self._notes = notes

    def write(self) -> None:
        episode = self._episode
        self._stream.send_recording_name(episode.id)
        facts = {
            "id": episode.id,
            "env_id": episode.env_id,
            "length": episode.length,
            "metadata": episode.metadata,
            "labels": {name: label.to_fields() for name, label in episode.labels.items()},
        }
        text = json.dumps(facts, ensure_ascii=False, default=str)
        self._stream.send_property("episode", self._rerun.AnyValues(json=text))
        for address, part in episode.parts.items():
            block = block_name(address)
            if address[0] in CHANNEL_LANES:
                self._write_channel(block, part)
            elif address[0] == "label":
                self._notes.kept(block, "the property 'episode'")
            elif address[0] not in (TICKS, TIMESTAMPS):
                self._notes.dropped(block, "a recording has no place for it")

    def _write_channel(self, block: str, channel: Channel) -> None:
        path = self._rerun.new_entity_path(block.split("/"))
        if not channel.length:
            self._notes.dropped(block, "it has no entries")
            return
        times = self._times(channel)
        static = self._static(channel)
        if static is not None:
            self._stream.log(path, static, static=True)
        if 0 in channel.step_shape:
            self._notes.dropped(block, "its entries have no elements")
            return
        form = ""
        if isinstance(channel, VideoChannel):
            form = form_of(channel)
            if form == "video":
                codec = self._rerun.VideoCodec.auto(channel.codec)
                self._stream.log(path, self._rerun.VideoStream(codec=codec), static=True)
            elif form not in PACKETS:
                self._notes.decoded(block, f"{channel.content_type} to pixels")
        for start, stop in _ranges(channel):
            entries: Any
            if isinstance(channel, VideoChannel) and form in PACKETS:
                shown = [one.data for one in channel.packets(start, stop) if not one.is_hidden]
                entries = [np.frombuffer(data, np.uint8) for data in shown]
            else:
                entries = channel.read_steps(start, stop)
            if channel.layout == "dense" and entries.dtype.kind not in "fiub":
                entries = entries.astype(np.float32)  # bf16
            steps = None if channel.has_own_clock else np.arange(start, stop)
            stamps = None if times is None else times[start:stop].astype("datetime64[ns]")
            if form in PACKETS:
                columns = self._packets(channel, form, entries)
            else:
                columns = self._columns(block, channel, entries)
            if columns is None:
                self._log_tensors(path, entries, steps, stamps)
                continue
            indexes = []
            if steps is not None:
                indexes.append(self._rerun.TimeColumn("step", sequence=steps))
            if stamps is not None:
                indexes.append(self._rerun.TimeColumn("time", timestamp=stamps))
            self._stream.send_columns(path, indexes, columns)
        self._notes.kept(block, path)

    def _log_tensors(
        self,
        path: str,
        entries: NDArray[Any],
        steps: NDArray[np.int64] | None,
        stamps: NDArray[Any] | None,
    ) -> None:
        """Logs entries one by one: tensors have no columns."""
        if entries.dtype == np.bool_:
            entries = entries.view(np.uint8)
        for number, entry in enumerate(entries):
            if steps is not None:
                self._stream.set_time("step", sequence=int(steps[number]))
            if stamps is not None:
                self._stream.set_time("time", timestamp=stamps[number])
            self._stream.log(path, self._rerun.Tensor(entry))
        self._stream.reset_time()

    def _times(self, channel: Channel) -> NDArray[np.int64] | None:
        """When the entries of a channel are; None if nothing says that."""
        episode = self._episode
        if channel.has_own_clock:
            return channel.timestamps_ns
        recorded = episode.timestamps_ns
        known = 0 if recorded is None else len(recorded) + (len(recorded) > 1)
        if episode.timebase.tick_hz is None and channel.length > known:
            return None
        return episode.step_times_ns(channel.length)

    def _static(self, channel: Channel) -> Any:  # noqa: ANN401 - of rerun
        """The names of the lines of a plot."""
        names = channel.extra.get("names")
        shape = channel.step_shape
        if channel.layout == "dense" and isinstance(names, list) and shape == (len(names),):
            return self._rerun.SeriesLines(names=[str(name) for name in names])
        return None

    def _columns(self, block: str, channel: Channel, entries: Any) -> Any:  # noqa: ANN401 - of rerun
        """Entries as what the viewer shows; None if they are tensors."""
        rerun, shape = self._rerun, channel.step_shape
        if isinstance(channel, TextChannel):
            return rerun.TextDocument.columns(text=entries)
        if isinstance(channel, RaggedChannel):
            return self._ragged(block, channel, entries)
        pictures = self._pictures(channel, entries) if is_frames(channel) else None
        if pictures is not None or len(shape) > 1 or (shape and shape[0] > _MOST_LINES):
            return pictures
        if entries.dtype.str[1:] not in _EXACT:
            self._notes.cast(block, entries.dtype, "float64", "numbers in plots are floats")
        lines = shape[0] if shape else 1
        values = entries.astype(np.float64).reshape(-1)
        return rerun.Scalars.columns(scalars=values).partition([lines] * len(entries))

    def _packets(self, channel: Channel, form: str, packets: list[NDArray[np.uint8]]) -> Any:  # noqa: ANN401 - of rerun
        """Encoded frames as they are."""
        if form == "video":
            return self._rerun.VideoStream.columns(sample=packets)
        kinds = [channel.content_type] * len(packets)
        return self._rerun.EncodedImage.columns(blob=packets, media_type=kinds)

    def _pictures(self, channel: Channel, entries: NDArray[Any]) -> Any:  # noqa: ANN401 - of rerun
        rerun, shape = self._rerun, channel.step_shape
        kind = (
            rerun.ChannelDatatype.from_np_dtype(entries.dtype)
            if entries.dtype != np.bool_
            else None
        )
        colours = shape[2] if len(shape) == 3 else 1
        model = {1: "L", 3: "RGB", 4: "RGBA"}.get(colours)
        if len(shape) > 3 or model is None or kind is None:
            return None
        is_depth = channel.modality == Modality.DEPTH and colours == 1
        if not is_depth and entries.dtype != np.uint8 and channel.modality != Modality.RGB:
            return None
        form = rerun.components.ImageFormat(
            width=shape[1],
            height=shape[0],
            color_model=None if is_depth else model,
            channel_datatype=kind,
        )
        pixels = np.ascontiguousarray(entries).view(np.uint8).reshape(len(entries), -1)
        made = rerun.DepthImage if is_depth else rerun.Image
        return made.columns(buffer=pixels, format=[form] * len(entries))

    def _ragged(self, block: str, channel: RaggedChannel, entries: list[NDArray[Any]]) -> Any:  # noqa: ANN401 - of rerun
        rerun, shape = self._rerun, channel.step_shape
        lengths = [len(entry) for entry in entries]
        values = np.concatenate(entries) if entries else np.zeros((0, *shape))
        is_cloud = channel.modality == Modality.POINTCLOUD and len(shape) == 1 and shape[0] >= 3
        if is_cloud and channel.dtype.kind in "fiu":
            if shape[0] > 3:
                self._notes.dropped(f"{block}, fields after x, y, z", "points have a position only")
            if channel.dtype != np.float32:
                self._notes.cast(block, channel.dtype, "float32", "as points are")
            return rerun.Points3D.columns(positions=values[:, :3].astype(np.float32)).partition(
                lengths
            )
        if shape:
            self._notes.cast(block, f"items of shape {list(shape)}", "flat lists of numbers")
        each = int(np.prod(shape))
        flat = values.reshape(-1)
        return rerun.AnyValues.columns(values=flat).partition([n * each for n in lengths])


def _ranges(channel: Channel) -> Iterator[tuple[int, int]]:
    """Ranges of entries of a size that can be in memory several times."""
    if not isinstance(channel, RaggedChannel):
        yield from channel.step_ranges(_WINDOW)
        return
    offsets = channel.offsets * max(1, channel.step_bytes)
    start = 0
    while start < channel.length:
        most = int(offsets[start]) + _WINDOW
        stop = min(channel.length, max(start + 1, int(np.searchsorted(offsets, most, "right")) - 1))
        yield start, stop
        start = stop
