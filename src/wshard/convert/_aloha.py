"""ALOHA, ACT and Mobile ALOHA: an HDF5 file for each episode, `episode_<i>.hdf5`, alone or in a folder.

The observation of row t was seen before the action of row t; the one after the last action is not stored, and there are
no rewards. Mobile ALOHA stores cameras as JPEG, one row a step, padded with zeros; `compress_len` has their lengths,
which a decoder does not need. It hands frames to OpenCV's encoder and takes them from OpenCV's decoder, which both
name the first channel blue, so a frame that was RGB before is RGB after. Other decoders give the channels the other
way round, and this reader turns them back: pixels are what the loader of ACT gives. So these pictures are decoded
even where others are kept: as they are, every decoder would show them with red and blue exchanged.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadValue, ShardIOError, UnsafePath
from wshard._channels import Modality
from wshard._episode import Episode
from wshard.convert._arrays import EncodedFrames, channel_of, image_type
from wshard.convert._groups import Parts, member_group, note_leftovers
from wshard.convert._hdf5 import EncodedRows, attributes, contents, has_member, open_hdf5, reading
from wshard.convert._model import DatasetReader, Probe
from wshard.convert._per_file import files_in, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wshard.convert._arrays import ForeignRows
    from wshard.convert._hdf5 import DatasetRows
    from wshard.convert._model import Notes, ReadOptions

_EPISODE: Final = re.compile(r"episode_[0-9]+\.(hdf5|h5)")
_IMAGES: Final = "observations/images/"


def recognises(probe: Probe) -> bool:
    """Whether it is an episode, or a folder with some."""
    if not probe.is_folder:
        return {"action", "observations"} <= probe.hdf5_names and _has_joints(probe.path)
    files = (name for name in sorted(probe.names) if _EPISODE.fullmatch(name))
    return any(_is_episode(os.path.join(probe.path, name)) for name in files)


def _is_episode(path: str) -> bool:
    try:
        return recognises(Probe(path))
    except ShardIOError:
        return False


def _has_joints(path: str) -> bool:
    try:
        with open_hdf5(path) as file, reading(path, "observations"):
            found = member_group(file, "observations")
            return has_member(found, "qpos") or has_member(found, "images")
    except (ShardIOError, BadValue, UnsafePath):
        return False


class AlohaReader(DatasetReader):
    """Episodes, each in a file of its own."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._files = [path]
        if os.path.isdir(path):
            self._files, self.strays = files_in(path, _EPISODE.fullmatch)
        self._names = [stem(file) for file in self._files]
        self._open: dict[int, Any] = {}

    def names(self) -> Sequence[str]:
        return self._names

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def file_of(self, number: int) -> str:
        return self._files[number]

    def read(self, number: int, notes: Notes) -> Episode:
        path = self._files[number]
        # The last file stays open for its arrays: of a folder of thousands not all are open at once.
        for other in [key for key in self._open if key != number]:
            self._open.pop(other).close()
        if number not in self._open:
            self._open[number] = open_hdf5(path)
        with reading(path, "/"):
            return self._read(self._names[number], self._open[number], notes)

    def _read(self, name: str, file: Any, notes: Notes) -> Episode:  # noqa: ANN401 - an h5py.File
        there = contents(file)
        found = there.arrays
        length = next((array.shape[0] for array in found.values() if array.ndim), 0)
        if "action" in found and found["action"].ndim:
            length = found["action"].shape[0]
        episode = Episode(name, length=length)
        inner = note_leftovers(there, notes)
        path = file.filename
        parts = Parts(episode, notes, path)
        for field, dataset in found.items():
            top, _, rest = field.partition("/")
            if field == "compress_len":
                notes.dropped(field, "the lengths of JPEG files, which end by themselves")
            elif field.startswith(_IMAGES) and _is_encoded(dataset, length):
                frames = EncodedFrames(field, EncodedRows(dataset), path)
                rows = Reversed(frames) if frames.shape[3:] == (3,) else frames
                camera = channel_of(rest, rows, path=path, modality=Modality.RGB)
                parts.put("signal", rest, camera, field)
                notes.decoded(field, "JPEG to pixels, in the order of channels that was recorded")
            elif top in ("action", "base_action"):
                parts.add("action", field, dataset, field)
            else:
                parts.add(
                    "signal", rest if top == "observations" and rest else field, dataset, field
                )
        told = {"texts": parts.texts, "inner_attributes": inner}
        own: dict[str, Any] = {key: value for key, value in told.items() if value}
        for field, value in attributes(file).items():
            key = f"{field}_" if field in own else field
            own[key] = value
            notes.kept(f"attrs[{field!r}]", f"metadata/aloha/{key}")
        episode.metadata["aloha"] = own
        return episode


def _is_encoded(dataset: DatasetRows, length: int) -> bool:
    """Whether a camera has an encoded picture in each row; `compress` states that too, but not in all files."""
    if dataset.ndim != 2 or dataset.dtype != np.uint8 or dataset.shape[0] != length or not length:
        return False
    return bool(image_type(dataset[:1].tobytes()))


class Reversed:
    """Pictures of three channels, newly decoded, with the first and the last exchanged."""

    def __init__(self, rows: ForeignRows) -> None:
        self._rows = rows
        self.shape, self.dtype = rows.shape, rows.dtype

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        frames = self._rows[rows]
        # In place and frame by frame: a reversed copy of all takes three times as long as decoding.
        for frame in frames:
            first = frame[..., 0].copy()
            frame[..., 0] = frame[..., 2]
            frame[..., 2] = first
        return frames
