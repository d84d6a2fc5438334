"""Episodes as a Minari dataset of the HDF5 back end (`wshard.convert._minari`)."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import ShardError
from shard_format.extras import require
from wshard._channels import Channel
from wshard._lanes import TICKS
from wshard._values import DType
from wshard._video import VideoChannel
from wshard.convert._arrays import (
    CHANNEL_FACTS,
    channel_facts,
    picture_files,
    picture_head,
    png_file,
)
from wshard.convert._hdf5_target import Hdf5Target
from wshard.convert._minari_layout import (
    LANES,
    MAIN_FILE,
    METADATA,
    SPACES,
    STEPS,
    SpaceLeaf,
    expanded,
    hdf5_path,
    leaves,
)
from wshard.convert._model import DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wshard._episode import Episode
    from wshard.convert._model import Notes, WriteOptions

# The version from which on datasets say whether their images are encoded.
_WRITTEN_VERSION: Final = "0.5.4"
# An attribute of HDF5 has less than 64 KiB.
_MOST_ATTRIBUTE: Final = 60_000
_PIECE: Final = 8 << 20
# Minari does not encode smaller ones.
_SMALLEST_IMAGE: Final = 32
_PREDICTED: Final = ("omen/", "uncert/")


class MinariWriter(DatasetWriter):
    """A dataset of the HDF5 back end. Owns: the open file.

    Minari encodes all images of a dataset or none: whatever opens it decides by the space. If the first episode has
    pictures that are JPEG or PNG files, these stay as they are, and images that are pixels become PNG, without loss.
    """

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        self._folder = os.path.join(path, "data")
        os.makedirs(self._folder)
        self._target = Hdf5Target(os.path.join(self._folder, MAIN_FILE))
        self._parts = [_SpacePart(*lane) for lane in LANES]
        self._facts: dict[str, Any] | None = None
        self._encodes: bool | None = None
        self._episodes = 0
        self._steps = 0

    def write(self, episode: Episode, notes: Notes) -> None:
        name, file = f"episode_{self._episodes}", self._target.file
        with self._target.writing():
            group = file.create_group(name)
            try:
                self._write(group, name, episode, notes)
            except BaseException:
                del file[name]
                raise
        self._episodes += 1
        self._steps += episode.length

    def _write(self, group: Any, name: str, episode: Episode, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group
        group.attrs["id"] = self._episodes
        group.attrs["total_steps"] = episode.length
        metadata = self._split_facts(episode, notes)
        if episode.id != name:
            notes.renamed(f"id {episode.id}", f"{name}, and its attribute episode_id")
            metadata["episode_id"] = episode.id
        _write_attributes(group, metadata, "", notes)
        if self._encodes is None:
            self._encodes = self.options.video == "keep" and _has_picture_files(episode)
        others = dict[str, Channel]()
        for part, lane in zip(self._parts, (episode.observations, episode.actions), strict=True):
            others |= part.write(self._target, group, lane, episode, notes, encodes=self._encodes)
        self._write_steps(group, episode, notes)
        self._write_infos(group, others, episode, notes)
        if episode.provenance is not None:
            notes.dropped("meta/provenance", "Minari has no place for it")
        if not np.array_equal(episode.ticks, np.arange(episode.length)):
            notes.dropped(TICKS, "Minari has no place for it")

    def _split_facts(self, episode: Episode, notes: Notes) -> dict[str, Any]:
        """Takes what belongs to the dataset out of the metadata of an episode; the rest is returned."""
        rest = dict(episode.metadata)
        own = rest.pop("minari", None)
        dataset = rest.pop("dataset", None)
        facts = {} if dataset is None else {"dataset": dataset}
        if isinstance(own, dict) and isinstance(dataset, dict):
            facts = dict(dataset)
        for key in SPACES:
            rest.pop(key, None)
        if isinstance(rest.get("env_spec"), str):
            facts["env_spec"] = rest.pop("env_spec")
        elif episode.env_id:
            rest["env_id"] = episode.env_id
        if own is not None and not isinstance(own, dict):
            rest["minari"] = own
        if isinstance(own, dict):
            rest |= own
            form = rest.pop("data_format", "hdf5")
            if form != "hdf5":
                notes.cast("data_format", form, "hdf5")
        # Minari gives these a meaning of its own.
        for key in ("id", "total_steps", *(() if isinstance(rest.get("seed"), int) else ("seed",))):
            if key in rest:
                rest[f"{key}_"] = rest.pop(key)
                notes.renamed(f"metadata/{key}", f"{key}_")
        if episode.timebase.tick_hz:
            rest["tick_hz"] = float(episode.timebase.tick_hz)
        if episode.timebase.epoch_ns:
            rest["epoch_ns"] = episode.timebase.epoch_ns
        if self._facts is None:
            self._facts = facts
        elif facts != self._facts:
            notes.dropped("metadata/dataset", "the dataset has the facts of its first episode")
        return rest

    def _write_steps(self, group: Any, episode: Episode, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group
        for attribute, (_, block) in STEPS.items():
            channel: Channel | None = getattr(episode, attribute)
            if channel is not None:
                _write_channel(self._target, group, attribute, channel, block, notes)
                notes.kept(block, attribute)
            else:
                kind = np.float64 if block == "reward" else np.bool_
                group.create_dataset(attribute, data=np.zeros(episode.length, kind))
                notes.filled(attribute, "0 at every step" if block == "reward" else "never set")

    def _write_infos(
        self,
        group: Any,  # noqa: ANN401 - an h5py.Group
        others: Mapping[str, Channel],
        episode: Episode,
        notes: Notes,
    ) -> None:
        infos = {block: part for block, part in episode.blocks() if block.startswith(_PREDICTED)}
        infos |= others
        for name, extra in episode.extras.items():
            if isinstance(extra, Channel):
                infos[name] = extra
            else:
                notes.dropped(name, "Minari has no place for bytes")
        if episode.timestamps_ns is not None:
            infos["timestamps_ns"] = Channel("timestamps_ns", data=episode.timestamps_ns)
        for lane in ("residuals", "labels"):
            for name in getattr(episode, lane):
                notes.dropped(f"{lane}/{name}", f"Minari has no {lane}")
        # Without this group Minari has None in place of a dictionary.
        group.require_group("infos")
        taken = list[tuple[str | int, ...]]()
        for name, channel in infos.items():
            if channel.layout == "ragged":
                notes.dropped(name, "its steps have different lengths")
                continue
            plain = name.removeprefix("signal/").removeprefix("info/").removeprefix("infos/")
            taken.append(_free_path(plain, taken, notes))
            path = f"infos/{hdf5_path(taken[-1])}"
            _write_channel(self._target, group, path, channel, name, notes)
            notes.kept(name, path)

    def finish(self) -> None:
        self._target.close()
        size = os.path.getsize(os.path.join(self._folder, MAIN_FILE))
        spaces = {part.key: json.dumps(expanded(part.space())) for part in self._parts}
        facts = {
            **(self._facts or {}),
            "total_episodes": self._episodes,
            "total_steps": self._steps,
            "data_format": "hdf5",
            "jpeg_encoding": bool(self._encodes),
            "minari_version": _WRITTEN_VERSION,
            "dataset_size": round(size / 1e6, 1),
            **spaces,
        }
        facts.setdefault("dataset_id", _dataset_id(self.path))
        for key in ("author", "author_email"):
            # Text in old datasets, of which Minari would make a set of letters.
            if isinstance(facts.get(key), str):
                facts[key] = [facts[key]]
        with open(os.path.join(self._folder, METADATA), "w", encoding="utf-8") as file:
            json.dump(facts, file)

    def abandon(self) -> None:
        self._target.close()


def _dataset_id(path: str) -> str:
    """An id that Minari takes, from the name of the folder."""
    name = os.path.basename(os.path.normpath(path))
    plain = re.sub(r"[^-\w]", "_", name) or "dataset"
    return plain if re.search(r"-v\d+$", plain) else f"{plain}-v0"


class _SpacePart:
    """The observations or the actions of all episodes: which channel goes where, and the space that describes it."""

    def __init__(self, group: str, root: str, key: str) -> None:
        self._group = group
        self._root = root
        self._lane = "action" if root == "action" else "signal"
        self.key = key
        self._leaves: dict[str, SpaceLeaf] = {}
        self._given: dict[str, Any] | None = None
        self._is_bare = False
        self._is_new = True

    def write(
        self,
        target: Hdf5Target,
        group: Any,  # noqa: ANN401 - an h5py.Group
        lane: Mapping[str, Channel],
        episode: Episode,
        notes: Notes,
        *,
        encodes: bool,
    ) -> dict[str, Channel]:
        """Writes the channels of the space into the group of an episode, and returns the others."""
        others, usable = dict[str, Channel](), dict[str, Channel]()
        for name, channel in lane.items():
            problem = _unusable(channel, episode.length)
            if problem:
                notes.dropped(f"{self._lane}/{name}", problem)
            elif name.startswith("info/"):
                others[f"{self._lane}/{name}"] = channel
            else:
                usable[name] = channel
        if self._is_new:
            self._begin(usable, episode.metadata.get(self.key), notes)
        if not self._is_bare:
            group.require_group(self._group)
        for name, channel in usable.items():
            leaf = self._leaf(name, channel, notes)
            block = f"{self._lane}/{name}"
            is_image = leaf is not None and encodes and _is_image_space(leaf.space)
            if leaf is None or (is_image and not _is_encodable(channel)):
                others[block] = channel
                continue
            path = "/".join((self._group, hdf5_path(leaf.path))).rstrip("/")
            write = _write_pictures if is_image else _write_channel
            write(target, group, path, channel, block, notes)
            is_short = self._lane == "signal" and len(channel) == episode.length
            notes.kept(block, f"{path}, T entries where Minari has T + 1" if is_short else path)
        for name in self._leaves.keys() - usable.keys():
            notes.filled(f"{self._lane}/{name}", "nothing: this episode does not have it")
            if self._is_bare:
                group.create_dataset(self._group, (0, *(self._leaves[name].shape or ())), "f4")
        return others

    def _begin(self, channels: Mapping[str, Channel], given: Any, notes: Notes) -> None:  # noqa: ANN401 - JSON
        """Decides by the first episode: the space that it states, or one made for its channels."""
        self._is_new = False
        try:
            found = {} if given is None else {one.name: one for one in leaves(given, self._root)}
            fits = all(_fits(channels.get(name), leaf) for name, leaf in found.items())
            if given is not None and fits and isinstance(expanded(given), dict):
                self._leaves, self._given = found, given
                self._is_bare = given["type"] not in ("Dict", "Tuple")
                return
        except (ShardError, KeyError, TypeError, ValueError):
            fits = False
        if given is not None and not fits:
            notes.dropped(f"metadata/{self.key}", "it does not fit the channels")
        self._is_bare = set(channels) == {self._root}

    def _leaf(self, name: str, channel: Channel, notes: Notes) -> SpaceLeaf | None:
        """Where a channel goes; None if the space has no place for it."""
        leaf = self._leaves.get(name)
        if leaf is not None:
            if self._given is None:
                _widen(leaf.space, channel)
            if not _fits(channel, leaf):
                notes.cast(
                    f"{self._lane}/{name}",
                    leaf.shape,
                    channel.step_shape,
                    "unlike the space states",
                )
            return leaf
        if self._given is not None or (self._is_bare and name != self._root):
            return None
        taken = [leaf.path for leaf in self._leaves.values()]
        path = () if self._is_bare else _free_path(name, taken, notes)
        leaf = self._leaves[name] = SpaceLeaf(name, path, _space_of(channel))
        return leaf

    def space(self) -> dict[str, Any]:
        """The space of all episodes."""
        if self._given is not None:
            return self._given
        root: dict[str, Any] = {"type": "Dict", "subspaces": {}}
        for leaf in self._leaves.values():
            if not leaf.path:
                return leaf.space
            inner = root["subspaces"]
            for key in leaf.path[:-1]:
                inner = inner.setdefault(key, {"type": "Dict", "subspaces": {}})["subspaces"]
            inner[leaf.path[-1]] = leaf.space
        return root


def _unusable(channel: Channel, steps: int) -> str:
    """Why Minari cannot hold a channel; empty if it can."""
    if channel.has_own_clock:
        return "it has a clock of its own"
    if channel.layout == "ragged":
        return "its steps have different lengths"
    return "" if len(channel) in (steps, steps + 1) else "it does not have one entry a step"


def _fits(channel: Channel | None, leaf: SpaceLeaf) -> bool:
    """Whether the space of a part says what the channel is."""
    if channel is None:
        return False
    if channel.layout == "text" or leaf.space["type"] == "Text":
        return channel.layout == "text" and leaf.space["type"] == "Text"
    return leaf.shape == channel.step_shape


def _space_of(channel: Channel) -> dict[str, Any]:
    """The widest space that a channel fits."""
    if channel.layout == "text":
        space = {"type": "Text", "max_length": 1, "min_length": 0, "charset": ""}
        _widen(space, channel)
        return space
    dtype, shape = _stored_dtype(channel), list(channel.step_shape)
    if dtype.kind == "b":
        if shape:
            return {"type": "MultiBinary", "n": shape}
        return {"type": "Discrete", "dtype": "int64", "start": 0, "n": 2}
    low, high = -np.inf, np.inf
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
    return {"type": "Box", "dtype": dtype.name, "shape": shape, "low": low, "high": high}


def _widen(space: dict[str, Any], channel: Channel) -> None:
    """Makes a space of text large enough for the strings of one more episode."""
    if space["type"] == "Text" and channel.layout == "text":
        texts: Any = channel.data
        space["max_length"] = max(space["max_length"], *map(len, texts), 1)
        space["charset"] = "".join(sorted(set(space["charset"]).union(*texts))) or " "


def _stored_dtype(channel: Channel) -> np.dtype[Any]:
    return np.dtype(np.float32) if channel.dtype_name is DType.BFLOAT16 else channel.dtype


def _is_image_space(space: Mapping[str, Any]) -> bool:
    """Whether Minari encodes what is in a space."""
    shape = space.get("shape") or ()
    return (
        space["type"] == "Box"
        and space.get("dtype") == "uint8"
        and len(shape) in (2, 3)
        and min(shape[:2]) >= _SMALLEST_IMAGE
        and bool(np.all(np.asarray(space["low"]) == 0) and np.all(np.asarray(space["high"]) == 255))
    )


def _is_encodable(channel: Channel) -> bool:
    """Whether files can hold the frames of a channel so that Minari reads the same shape."""
    shape = channel.step_shape
    is_picture = len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))
    return is_picture and channel.dtype_name is DType.UINT8


def _has_picture_files(episode: Episode) -> bool:
    """Whether an episode has JPEG or PNG pictures, and everything that Minari takes for an image can be encoded."""
    channels = [
        channel
        for lane in (episode.observations, episode.actions)
        for name, channel in lane.items()
        if not name.startswith("info/") and not _unusable(channel, episode.length)
    ]
    images = [one for one in channels if one.layout != "text" and _is_image_space(_space_of(one))]
    return all(map(_is_encodable, images)) and any(map(_plain_files, images))


def _plain_files(channel: Channel) -> list[bytes] | None:
    """The pictures of a channel, if Minari reads the same frames of them; else None."""
    files = picture_files(channel)
    for file in files or ():
        head = picture_head(file)
        if head is None or head.frame != ("u1", channel.step_shape):
            return None
    return files


def _write_pictures(
    target: Hdf5Target,
    group: Any,  # noqa: ANN401 - an h5py.Group
    path: str,
    channel: Channel,
    block: str,
    notes: Notes,
) -> None:
    """Writes frames as files: those that a channel holds, or PNG."""
    h5py = require("h5py", "minari")
    files = _plain_files(channel)
    dataset = group.create_dataset(path, (len(channel),), h5py.vlen_dtype(np.uint8))
    _describe(dataset, channel, notes)
    if files is not None:
        for step, file in enumerate(files):
            target.put(dataset, step, np.frombuffer(file, np.uint8))
        return
    if isinstance(channel, VideoChannel):
        notes.decoded(block, f"{channel.codec} to PNG")
    reading = channel.uncached()
    for start, stop in channel.step_ranges(_PIECE):
        for step, frame in enumerate(reading.read_steps(start, stop), start):
            target.put(dataset, step, np.frombuffer(png_file(frame), np.uint8))


def _write_channel(
    target: Hdf5Target,
    group: Any,  # noqa: ANN401 - an h5py.Group
    path: str,
    channel: Channel,
    block: str,
    notes: Notes,
) -> None:
    """Writes a channel as a dataset, piece by piece."""
    h5py = require("h5py", "minari")
    grows: dict[str, Any] = {"chunks": True, "maxshape": (None, *channel.step_shape)}
    if not len(channel) or 0 in channel.step_shape:
        grows = {}
    if channel.layout == "text":
        texts = [text.replace("\0", "\N{REPLACEMENT CHARACTER}") for text in channel.data]
        if texts != channel.data:
            notes.cast(block, "NUL characters", "U+FFFD", "HDF5 has no NUL in strings")
        dataset = group.create_dataset(path, data=texts, dtype=h5py.string_dtype(), **grows)
        _describe(dataset, channel, notes)
        return
    dtype = _stored_dtype(channel)
    if dtype != channel.dtype:
        notes.cast(block, channel.dtype_name, dtype, "HDF5 has no such type")
    if isinstance(channel, VideoChannel):
        notes.decoded(block, f"{channel.codec} to pixels")
    dataset = group.create_dataset(path, channel.shape, dtype, **grows)
    _describe(dataset, channel, notes)
    reading = channel.uncached()
    for start, stop in channel.step_ranges(_PIECE):
        values = channel.dtype_name.as_numbers(reading.read_steps(start, stop))
        target.put(dataset, slice(start, stop), values.astype(dtype, copy=False))


def _describe(dataset: Any, channel: Channel, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Dataset
    """Writes what is known of a channel beside its data, where Minari does not look."""
    known = channel_facts(channel)
    text = json.dumps(known)
    if len(text) > _MOST_ATTRIBUTE:
        notes.dropped(f"{dataset.name}: {', '.join(known)}", "too long for an attribute of HDF5")
    elif known:
        dataset.attrs[CHANNEL_FACTS] = text


def _free_path(
    name: str, taken: Sequence[tuple[str | int, ...]], notes: Notes
) -> tuple[str | int, ...]:
    """The parts of a name; one part if another array is where a group would be, or the reverse."""
    parts = tuple(part for part in name.split("/") if part.strip("."))
    if parts and not any(parts[: len(at)] == at[: len(parts)] for at in taken):
        return parts
    plain = name.replace("/", "_").strip(".") or "_"
    while any(at[0] == plain for at in taken):
        plain += "_"
    notes.renamed(name, plain)
    return (plain,)


def _write_attributes(group: Any, facts: Mapping[str, Any], prefix: str, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group
    """Writes metadata as attributes; Minari joins the keys of dictionaries with `/`."""
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            _write_attributes(group, value, f"{name}/", notes)
            continue
        plain = value
        if not isinstance(value, (str, bool, int, float)) and not _is_numbers(value):
            plain = json.dumps(value)
            notes.cast(f"metadata/{name}", type(value).__name__, "JSON text")
        if len(json.dumps(plain)) > _MOST_ATTRIBUTE:
            notes.dropped(f"metadata/{name}", "it is too long for an attribute of HDF5")
            continue
        try:
            group.attrs[name] = plain
        except (OSError, TypeError, ValueError, OverflowError) as error:
            notes.dropped(f"metadata/{name}", f"HDF5 cannot hold it: {error}")
            continue
        notes.kept(f"metadata/{name}", f"attribute {name}")


def _is_numbers(value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether it is a list, or a list of lists, that HDF5 stores as an array."""
    if not isinstance(value, list) or not value:
        return False
    with contextlib.suppress(ValueError, OverflowError):
        return np.asarray(value).dtype.kind in "biuf"
    return False
