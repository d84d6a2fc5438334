"""Episodes of our own: one file, a folder of them, or a pattern."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import InvalidArgument
from wshard._channels import is_frames
from wshard._files import save_wshard
from wshard._formats import load_wshard
from wshard._journal import MAGIC as JOURNAL_MAGIC
from wshard._lanes import block_name
from wshard._metadata import CHANNEL_FIELDS
from wshard._video import VideoChannel
from wshard.convert._arrays import channel_of, note_pixels
from wshard.convert._model import DatasetReader, DatasetWriter
from wshard.convert._per_file import files_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wshard._channels import Channel
    from wshard._episode import Episode
    from wshard.convert._model import Notes, Probe, ReadOptions, WriteOptions

SUFFIX = ".wshard"
# What belongs to an episode: its file, its sidecar, its overview, and the recording that it came from.
_OWN = (SUFFIX, f"{SUFFIX}.lanes", f"{SUFFIX}.overview", f"{SUFFIX}.partial")
_VIDEO: Final = "h264:crf=23"


def recognises(probe: Probe) -> bool:
    """Whether it is an episode, or a folder with some."""
    if probe.is_folder:
        return any(name.endswith(SUFFIX) for name in probe.names)
    return probe.head.startswith((b"SHRD", JOURNAL_MAGIC))


class OwnReader(DatasetReader):
    """Episodes, each opened when it is read."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._files = [path]
        if os.path.isdir(path):
            self._files, others = files_in(path, lambda name: name.endswith(SUFFIX))
            own = {file.removesuffix(SUFFIX) + ending for file in self._files for ending in _OWN}
            self.strays = [name for name in others if os.path.join(path, name) not in own]

    def names(self) -> Sequence[str]:
        return [os.path.basename(file).removesuffix(SUFFIX) for file in self._files]

    def read(self, number: int, notes: Notes) -> Episode:
        episode = load_wshard(self._files[number])
        if self.options.video == "decode":
            for address, part in list(episode.parts.items()):
                if isinstance(part, VideoChannel):
                    episode.parts[address] = _as_pixels(part, self._files[number])
                    note_pixels(part, block_name(address), notes)
        return episode


def _as_pixels(camera: VideoChannel, path: str) -> Channel:
    """A camera as pixels, which are decoded when they are used."""
    names = {*CHANNEL_FIELDS, "modality", "extra"} - {"content_type"}
    facts = {name: getattr(camera, name) for name in names}
    pixels = channel_of(camera.name, camera, path=path, **facts)
    if camera.has_own_timestamps:
        pixels.timestamps_ns = camera.timestamps_ns
    pixels.has_stated_length = camera.has_stated_length
    return pixels


class OwnWriter(DatasetWriter):
    """A folder with one file for each episode."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        os.makedirs(path)

    def write(self, episode: Episode, notes: Notes) -> None:
        path = os.path.join(self.path, f"{file_name(episode.id)}{SUFFIX}")
        if os.path.exists(path):
            raise InvalidArgument("two episodes have the same id", path=path, entry=episode.id)
        codecs = cameras_to_encode(episode) if self.options.video == "encode" else {}
        save_wshard(episode, path, codecs or None, profile="training", fsync=False)
        note_encoded(codecs, notes)

    def finish(self) -> None:
        pass


def cameras_to_encode(episode: Episode) -> dict[str, str]:
    """The codec for each camera that is pixels in colour. Depth stays as it is: a lossy codec would make other distances
    of it."""
    return {
        name: _VIDEO
        for name, channel in episode.blocks()
        if channel.layout == "dense"
        and is_frames(channel)
        and channel.dtype == np.uint8
        and len(channel.step_shape) == 3
        and channel.step_shape[2] == 3
    }


def note_encoded(codecs: Mapping[str, str], notes: Notes) -> None:
    """Notes the cameras that were encoded."""
    for name, codec in codecs.items():
        notes.decoded(name, f"encoded as {codec}, lossy")


def file_name(episode_id: str) -> str:
    """A name for the file of an episode: its id without what a path cannot hold."""
    plain = "".join(one if one.isalnum() or one in "-_. " else "_" for one in episode_id)
    return plain.strip(". ")[:150] or "episode"
