"""Episodes of our own: one file, a folder of them, or a pattern."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import numpy as np

from shard_format.errors import InvalidArgument
from shard_format.listing import natural_key
from shard_format.opening import copying_urls
from shard_format.sources import is_url
from shard_format.transfer import base_name, names_below
from wshard._channels import is_frames
from wshard._files import save_wshard
from wshard._formats import load_wshard
from wshard._journal import MAGIC as JOURNAL_MAGIC
from wshard._lanes import block_name
from wshard._metadata import CHANNEL_FIELDS
from wshard._sidecar import SIDECAR_SUFFIX
from wshard._video import VideoChannel
from wshard.convert._arrays import channel_of, note_pixels
from wshard.convert._model import DatasetReader, DatasetWriter
from wshard.convert._per_file import files_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wshard._channels import Channel
    from wshard._episode import Episode
    from wshard.convert._model import Notes, Probe, ReadOptions, WriteOptions

SUFFIX = ".wshard"
# What belongs to an episode: its file, its sidecar, its overview, and the recording that it came from.
_OWN = (SUFFIX, f"{SUFFIX}{SIDECAR_SUFFIX}", f"{SUFFIX}.overview", f"{SUFFIX}.partial")
_VIDEO: Final = "h264:crf=23"


def recognises(probe: Probe) -> bool:
    """Whether it is an episode, or a folder with some."""
    if probe.is_folder:
        return any(name.endswith(SUFFIX) for name in probe.names)
    return probe.head.startswith((b"SHRD", JOURNAL_MAGIC))


class OwnReader(DatasetReader):
    """Episodes, each opened when it is read. One behind a URL is then copied to a temporary file, with its sidecars."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._is_far = is_url(path)
        if self._is_far:
            self._list(path)
            return
        self._files = [path]
        if os.path.isdir(path):
            self._files, others = files_in(path, lambda name: name.endswith(SUFFIX))
            own = _belonging_to(self._files)
            self.strays = [name for name in others if os.path.join(path, name) not in own]

    def _list(self, url: str) -> None:
        folder = url.rstrip("/")
        below = [f"{folder}/{name}" for name in names_below(url)]
        found = {f"{folder}/{one[len(folder) + 1 :].partition('/')[0]}" for one in below}
        names = sorted(found, key=natural_key)
        self._files = [name for name in names if name.endswith(SUFFIX)] or [url]
        own = _belonging_to(self._files)
        self.strays = [os.path.basename(name) for name in names if name not in own]
        if not below:  # one file
            below = [f"{url}{SIDECAR_SUFFIX}/{name}" for name in names_below(url + SIDECAR_SUFFIX)]
        self._sidecars: dict[str, list[str]] = {}
        for one in below:
            episode, between, _ = one.partition(f"{SUFFIX}{SIDECAR_SUFFIX}/")
            if between and one.endswith(SUFFIX):
                self._sidecars.setdefault(episode + SUFFIX, []).append(one)

    def names(self) -> Sequence[str]:
        if self._is_far:
            return [unquote(base_name(file)).removesuffix(SUFFIX) for file in self._files]
        return [os.path.basename(file).removesuffix(SUFFIX) for file in self._files]

    def _open(self, path: str) -> Episode:
        if not self._is_far:
            return load_wshard(path)
        with copying_urls():
            return load_wshard(path, sidecars=self._sidecars.get(path, ()))

    def read(self, number: int, notes: Notes) -> Episode:
        episode = self._open(self._files[number])
        if self.options.video == "decode":
            for address, part in list(episode.parts.items()):
                if isinstance(part, VideoChannel):
                    episode.parts[address] = _as_pixels(part, self._files[number])
                    note_pixels(part, block_name(address), notes)
        return episode


def _belonging_to(files: Iterable[str]) -> set[str]:
    """What may lie beside episodes and belong to them."""
    return {file.removesuffix(SUFFIX) + ending for file in files for ending in _OWN}


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
