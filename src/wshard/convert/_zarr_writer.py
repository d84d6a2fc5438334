"""Episodes as Zarr in the layout of diffusion policy (`wshard.convert._zarr`)."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.extras import require
from wshard._channels import Channel, RaggedChannel, TextChannel
from wshard._values import DType
from wshard.convert._arrays import CHANNEL_FACTS, channel_facts, note_pixels
from wshard.convert._model import DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from wshard._episode import Episode
    from wshard.convert._model import Notes, WriteOptions

ENDS: Final = "meta/episode_ends"
OWN_FACTS: Final = "meta/wshard"
"""Where our writer puts what the layout has no place for, as JSON: id, environment, rate and metadata of an episode."""
BLOCK: Final = "wshard_block"
"""The attribute of an array that says which block of an episode our writer made it of."""
_CHUNK_BYTES: Final = 2 << 20


class _Growing:
    """An array that grows by the steps of each episode. Whole chunks are written, so no chunk is written twice."""

    def __init__(self, array: Any, rows: int) -> None:  # noqa: ANN401 - a zarr.Array
        self.array = array
        self._rows = rows
        self._waiting: list[NDArray[Any]] = []
        self._count = 0
        self._written = 0

    def append(self, values: NDArray[Any]) -> None:
        """More rows."""
        self._waiting.append(values)
        self._count += len(values)
        if self._count >= self._rows:
            self._flush(self._count - self._count % self._rows)

    def _flush(self, count: int) -> None:
        if not count:
            return
        values = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        stop = self._written + count
        self.array.resize((stop, *self.array.shape[1:]))
        self.array[self._written : stop] = values[:count]
        self._waiting = [values[count:].copy()]
        self._written, self._count = stop, self._count - count

    def finish(self) -> None:
        """Writes the rest."""
        self._flush(self._count)


class ZarrWriter(DatasetWriter):
    """A replay buffer of diffusion policy, Zarr format 2. The first episode decides which arrays there are."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        self._zarr = require("zarr", "zarr")
        # The caller's path ends with something of its own while it is written.
        self._is_zip = ".zip" in os.path.basename(path)
        self._folder = f"{path}.folder" if self._is_zip else path
        self._root = self._zarr.open_group(self._folder, mode="w-", zarr_format=2)
        self._arrays: dict[str, _Growing] = {}
        self._is_started = False
        self._ends: list[int] = []
        self._own: list[str] | None = []
        self._facts: dict[str, list[Any]] = {}
        self._all: dict[str, Any] = {}
        self._types: dict[str, str] = {}

    def write(self, episode: Episode, notes: Notes) -> None:
        origin = episode.metadata.get("zarr")
        facts = origin if isinstance(origin, dict) else {}
        channels = self._channels(episode, facts, notes)
        if not self._is_started:
            self._start(episode, channels, facts)
        length = episode.length
        for name, growing in self._arrays.items():
            given = channels.pop(name, None)
            if given is not None:
                _note_facts(*given, growing.array, notes)
            growing.append(_fitted(name, given, growing.array, length, notes))
        for name, (block, _) in channels.items():
            notes.dropped(block, f"the first episode of the dataset does not have the array {name}")
        self._ends.append((self._ends[-1] if self._ends else 0) + length)
        self._write_facts(episode, facts, notes)

    def _channels(
        self, episode: Episode, facts: Mapping[str, Any], notes: Notes
    ) -> dict[str, tuple[str, Channel]]:
        """The channels that can be written, by the names of their arrays."""
        length = episode.length
        stated = facts.get("fields")
        fields = stated if isinstance(stated, dict) else {}
        blocks = list(episode.blocks())
        if episode.timestamps_ns is not None:
            blocks.append(
                ("time/timestamps_ns", Channel("timestamps_ns", data=episode.timestamps_ns))
            )
        found: dict[str, tuple[str, Channel]] = {}
        for block, channel in blocks:
            if channel.has_own_clock:
                notes.dropped(
                    block, "the layout has one clock: resample it with ep.align() to keep it"
                )
            elif channel.length not in (length, length + 1):
                notes.dropped(block, f"{channel.length} entries for {length} steps")
            elif isinstance(channel, RaggedChannel) and not isinstance(channel, TextChannel):
                notes.dropped(block, "the layout has no place for a varying number of items")
            else:
                name = fields.get(block)
                if not isinstance(name, str) or not is_plain(name):
                    name = name_of(block)
                while name in found:
                    name += "_"
                found[name] = (block, channel)
                notes.kept(block, name)
                note_pixels(channel, block, notes)
                if channel.length > length:
                    notes.dropped_last(block, "the layout has one observation for each action")
                if channel.dtype_name is DType.BFLOAT16:
                    notes.cast(block, "bf16", "float32", "Zarr format 2 has no such type")
        for address in episode.parts:
            if address[0] in ("residual", "label", ""):
                notes.dropped("/".join(filter(None, address)), "the layout has no place for it")
        return found

    def _start(
        self,
        episode: Episode,
        channels: Mapping[str, tuple[str, Channel]],
        facts: Mapping[str, Any],
    ) -> None:
        self._is_started = True
        is_own = not facts
        for group in ("data", "meta"):
            self._root.require_group(group)
        dataset = episode.metadata.get("dataset")
        if not is_own and isinstance(dataset, dict):
            self._root.attrs.update(dataset)
        self._own = [] if is_own else None
        for name, (block, channel) in channels.items():
            dtype = _stored_type(channel)
            if block == "reward" and channel.dtype_name.is_float:
                # The next episode may need more bits: a file of ours stores rewards in as few as hold them.
                dtype = np.dtype("<f4" if _part(facts, "types", name) == "<f4" else "<f8")
            shape = () if isinstance(channel, TextChannel) else channel.step_shape
            row_bytes = max(1, prod(shape) * (64 if dtype is str else np.dtype(dtype).itemsize))
            rows = max(1, min(_CHUNK_BYTES // row_bytes, 1 << 16))
            stated = _part(facts, "chunks", name)
            chunks = (rows, *(max(1, size) for size in shape))
            if (
                isinstance(stated, list)
                and len(stated) == len(chunks)
                and all(type(n) is int and n > 0 for n in stated)
            ):
                chunks = tuple(stated)
            array = self._create(name, dtype, (0, *shape), chunks)
            attributes = _part(facts, "attributes", name)
            if isinstance(attributes, dict):
                array.attrs.update(attributes)
            elif is_own:
                array.attrs[BLOCK] = block
                if known := channel_facts(channel):
                    array.attrs[CHANNEL_FACTS] = known
            self._arrays[name] = _Growing(array, chunks[0])

    def _create(
        self,
        name: str,
        dtype: Any,  # noqa: ANN401 - a dtype, or str
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
    ) -> Any:  # noqa: ANN401 - a zarr.Array
        codecs = require("numcodecs", "zarr")
        compressor = codecs.Blosc(cname="zstd", clevel=5, shuffle=codecs.Blosc.SHUFFLE)
        return self._root.create_array(
            name, shape=shape, dtype=dtype, chunks=chunks, compressors=compressor
        )

    def _write_facts(self, episode: Episode, facts: Mapping[str, Any], notes: Notes) -> None:
        """What is not steps."""
        metadata = {key: value for key, value in episode.metadata.items() if key != "zarr"}
        if self._own is not None:
            own = {
                "id": episode.id,
                "env_id": episode.env_id,
                "tick_hz": episode.timebase.tick_hz,
                "epoch_ns": episode.timebase.epoch_ns,
                "metadata": metadata,
                "provenance": episode.provenance,
            }
            self._own.append(json.dumps(own, ensure_ascii=False))
            notes.kept("metadata", OWN_FACTS)
            return
        if episode.provenance is not None:
            notes.dropped("meta/provenance", "the layout of the dataset has no place for it")
        for key in metadata.keys() - {"dataset"}:
            notes.dropped(f"metadata {key}", "the layout of the dataset has no place for it")
        types = facts.get("types")
        self._types.update(types if isinstance(types, dict) else {})
        of_episode, of_all = facts.get("episode"), facts.get("all")
        for name, value in (of_episode if isinstance(of_episode, dict) else {}).items():
            self._facts.setdefault(name, []).append(value)
        if not self._all and isinstance(of_all, dict):
            self._all = dict(of_all)

    def finish(self) -> None:
        if not self._is_started:
            self._root.require_group("data")
        for growing in self._arrays.values():
            growing.finish()
        ends = np.array(self._ends, np.int64)
        self._root.create_array(ENDS, data=ends, chunks=(max(1, len(ends)),), compressors=None)
        if self._own:
            array = self._create(OWN_FACTS, str, (len(self._own),), (max(1, len(self._own)),))
            array[:] = np.array(self._own, object)
        whole = {name: value for name, value in self._facts.items() if len(value) == len(ends)}
        for name, value in {**self._all, **whole}.items():
            if is_plain(name) and name.startswith("meta/"):
                self._write_meta(name, value)
        self._root.store.close()
        if self._is_zip:
            self._pack()

    def _write_meta(self, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
        values = np.asarray(value)
        if values.dtype.kind in "US":
            array = self._create(name, str, values.shape, tuple(max(1, n) for n in values.shape))
            array[...] = values.astype(object)
        elif values.dtype.kind in "biuf":
            typed = values.astype(self._types.get(name, values.dtype))
            self._root.create_array(name, data=typed, chunks=tuple(max(1, n) for n in values.shape))

    def _pack(self) -> None:
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_STORED) as archive:
            for folder, _, files in os.walk(self._folder):
                for name in sorted(files):
                    file = os.path.join(folder, name)
                    archive.write(file, os.path.relpath(file, self._folder))
        shutil.rmtree(self._folder)

    def abandon(self) -> None:
        if self._is_zip:
            shutil.rmtree(self._folder, ignore_errors=True)


def name_of(block: str) -> str:
    """The array that a block becomes, unless it came from another. Diffusion policy expects no groups in `data`."""
    lane, _, key = block.partition("/")
    if lane in ("omen", "uncert"):
        return f"data/{block.replace('/', '_')}"
    if lane == "action" and key != "action":
        key = f"action_{key}"
    return f"data/{(key or lane).replace('/', '_')}"


def is_plain(name: str) -> bool:
    """Whether a name of an array stays in `data` or `meta`."""
    parts = name.split("/")
    return len(parts) > 1 and parts[0] in ("data", "meta") and not {"", ".", ".."} & set(parts)


def _part(facts: Mapping[str, Any], key: str, name: str) -> Any:  # noqa: ANN401 - JSON
    found = facts.get(key)
    return found.get(name) if isinstance(found, dict) else None


def _stored_type(channel: Channel) -> Any:  # noqa: ANN401 - a dtype, or str
    if isinstance(channel, TextChannel):
        return str
    return np.dtype("<f4") if channel.dtype_name is DType.BFLOAT16 else channel.dtype


def _fitted(
    name: str,
    given: tuple[str, Channel] | None,
    array: Any,  # noqa: ANN401 - a zarr.Array
    length: int,
    notes: Notes,
) -> NDArray[Any]:
    """The steps of a channel as the array holds them; empty values if the episode has none that fit."""
    shape, dtype = tuple(array.shape[1:]), np.dtype(array.dtype)
    is_text = dtype.kind in ("O", "T")
    if given is not None:
        block, channel = given
        values = _values(channel, length)
        if values.shape[1:] == shape and (values.dtype.kind == "O") == is_text:
            if is_text or values.dtype == dtype:
                return values
            if np.can_cast(values.dtype, dtype, "safe"):
                if block != "reward":
                    notes.cast(block, values.dtype, dtype, "as in the first episode")
                return values.astype(dtype)
        own = f"{values.dtype}{list(values.shape[1:])}"
        notes.dropped(block, f"{own} in a dataset of {dtype}{list(shape)}")
    notes.filled(name, "empty values: the first episode of the dataset has this array")
    return np.full((length, *shape), "" if is_text else 0, object if is_text else dtype)


def _note_facts(block: str, channel: Channel, array: Any, notes: Notes) -> None:  # noqa: ANN401 - a zarr.Array
    """Tells what the attributes of an array do not say about a channel: they are those of the first episode."""
    stored = array.attrs.get(CHANNEL_FACTS, {})
    known = channel_facts(channel)
    lost = [key for key in known if known[key] != stored.get(key) and key != "modality"]
    if lost:
        notes.dropped(f"{block}, {', '.join(lost)}", "the array says it once, or not at all")


def _values(channel: Channel, length: int) -> NDArray[Any]:
    """The steps of a channel as an array that Zarr can hold."""
    if isinstance(channel, TextChannel):
        return np.array([*channel.data[:length], ""], object)[:-1]
    values: NDArray[Any] = channel.dtype_name.as_numbers(channel.read_steps(0, length))
    return values.view(np.bool_) if channel.dtype_name is DType.BOOL else values
