"""Zarr in the layout of diffusion policy: `data/<name>` holds the steps of all episodes, `meta/episode_ends` their ends.

Steps: row t of every array belongs to step t, so there are as many observations as actions. The observation after the
last action has no place. Zarr formats 2 and 3 are read, from a folder or a zip file (`wshard.convert._zarr_store`);
format 2 is written, because that is what diffusion policy opens (`wshard.convert._zarr_writer`).
"""

from __future__ import annotations

import json
import os
import zipfile
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import (
    BadMetadata,
    BadValue,
    InvalidArgument,
    LimitExceeded,
    SizeMismatch,
)
from shard_format.extras import require
from shard_format.foreign import reading
from shard_format.registry import DEFAULT_LIMITS
from wshard._channels import Channel, Modality
from wshard._episode import Episode
from wshard._metadata import complete_provenance
from wshard.convert._arrays import (
    CHANNEL_FACTS,
    PartOfRows,
    channel_of,
    checked_facts,
    text_channel,
)
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import DatasetReader
from wshard.convert._zarr_store import (
    PICTURES,
    ArrayRows,
    ChunkLimit,
    DescribedFiles,
    check_array,
    open_store,
)
from wshard.convert._zarr_writer import BLOCK, ENDS, OWN_FACTS, ZarrWriter, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wshard.convert._model import Notes, Probe, ReadOptions

__all__ = ["ZarrReader", "ZarrWriter", "recognises"]

_SMALL_VALUE: Final = 1024
_MOST_ABSENT: Final = 1000
# More ends than this are a claim, not a dataset: each becomes the name of an episode.
_MOST_EPISODES: Final = 10_000_000
_OF_A_GROUP: Final = ("data", "meta", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")


def recognises(probe: Probe) -> bool:
    """Whether it is a Zarr group, as a folder or in a zip file, with the ends of episodes."""
    if probe.is_folder:
        is_group = not probe.names.isdisjoint((".zgroup", "zarr.json", ".zmetadata"))
        return is_group and os.path.isdir(os.path.join(probe.path, *ENDS.split("/")))
    if not probe.head.startswith(b"PK"):
        return False
    try:
        with zipfile.ZipFile(probe.path) as archive:
            names = frozenset(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        probe.damage = BadValue(f"the zip file is damaged: {error}", path=probe.path)
        return False
    return not names.isdisjoint((f"{ENDS}/.zarray", f"{ENDS}/zarr.json"))


class ZarrReader(DatasetReader):
    """Episodes of one replay buffer."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        zarr = require("zarr", "zarr")
        self._files = DescribedFiles(path)
        limits: dict[str, ChunkLimit] = {}
        self._store = open_store(path, limits)
        self._arrays: dict[str, ArrayRows] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._chunks: dict[str, list[int]] = {}
        self._pictures: dict[str, str] = {}
        self.format = 2
        for group in ("data", "meta"):
            for name, form, facts in self._files.arrays(group):
                self.format = form
                limit = check_array(facts, form, path, name)
                if limit is not None:
                    limits[name] = limit
                with reading(path, "the array cannot be read", entry=name):
                    array = zarr.open_array(self._store, path=name, mode="r", zarr_format=form)
                    self._arrays[name] = ArrayRows(array, path, name)
                    self._chunks[name] = [int(size) for size in array.chunks]
                    self._check_chunks(name, array)
                self._attributes[name] = self._files.attributes(name)
                compressor = facts.get("compressor")
                codec = str(compressor.get("id")) if isinstance(compressor, dict) else ""
                if codec.startswith(PICTURES):
                    self._pictures[name] = codec.removeprefix(PICTURES)
        self._dataset = self._files.attributes("")
        self._ends = self._read_ends()
        self._own = self._read_own()
        self.strays = [
            *(name for name in self._files.names("") if name not in _OF_A_GROUP),
            *(
                f"{group}, attribute {name}"
                for group in ("data", "meta")
                for name in self._files.attributes(group)
            ),
        ]
        if OWN_FACTS in self._arrays and not self._own:
            self.strays.append(OWN_FACTS)

    def _check_chunks(self, name: str, array: Any) -> None:  # noqa: ANN401 - a zarr.Array
        """Refuses a large array that is hardly there: absent chunks are empty values, so a few bytes could claim any size."""
        if array.nbytes > DEFAULT_LIMITS.max_decompressed_bytes:
            shards = getattr(array, "shards", None) or array.chunks
            count = prod(
                -(-size // max(1, part)) for size, part in zip(array.shape, shards, strict=True)
            )
            if not self._files.has_files(name, count // _MOST_ABSENT):
                raise LimitExceeded(
                    "nearly all chunks of a large array are absent",
                    path=self.path,
                    entry=name,
                    expected=f"at least {count // _MOST_ABSENT} of {count} chunks",
                    hint="store only the steps that were recorded",
                )

    def _read_ends(self) -> NDArray[np.int64]:
        rows = self._arrays.get(ENDS)
        if rows is None:
            raise BadMetadata(
                f"{ENDS} is missing",
                path=self.path,
                expected="the ends of the episodes, one number for each",
                hint="only Zarr in the layout of diffusion policy can be read",
            )
        if len(rows.shape) != 1 or rows.dtype.kind not in "iu" or rows.shape[0] > _MOST_EPISODES:
            raise BadMetadata(
                f"{ENDS} is not a list of numbers",
                path=self.path,
                found=f"{rows.dtype}{list(rows.shape)}",
            )
        ends: NDArray[np.int64] = np.asarray(rows[:]).astype(np.int64)
        if len(ends) and (ends[0] < 0 or (np.diff(ends) < 0).any()):
            raise BadMetadata(f"{ENDS} runs backwards", path=self.path)
        total = int(ends[-1]) if len(ends) else 0
        for name, array in self._arrays.items():
            if name.startswith("data/") and (not array.shape or array.shape[0] < total):
                raise SizeMismatch(
                    f"an array has fewer rows than {ENDS} says",
                    path=self.path,
                    entry=name,
                    expected=total,
                    found=list(array.shape),
                )
        return ends

    def _read_own(self) -> list[dict[str, Any]]:
        """What our writer stored for each episode; empty for datasets of others."""
        rows = self._arrays.get(OWN_FACTS)
        if rows is None or rows.shape != (len(self._ends),):
            return []
        try:
            found = [json.loads(str(text)) for text in rows[:]]
            return [
                {"id": str(one["id"]), "env_id": str(one["env_id"]), "metadata": dict(one["metadata"]),
                 "tick_hz": one["tick_hz"], "epoch_ns": int(one["epoch_ns"]), "provenance": one.get("provenance")}
                for one in found
            ]  # fmt: skip
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise BadValue(
                f"not what our writer stores: {error!r}", path=self.path, entry=OWN_FACTS
            ) from None

    def names(self) -> Sequence[str]:
        return [f"episode_{number}" for number in range(len(self._ends))]

    def read(self, number: int, notes: Notes) -> Episode:
        start = int(self._ends[number - 1]) if number else 0
        stop = int(self._ends[number])
        episode = Episode(f"episode_{number}")
        episode.length = stop - start
        facts: dict[str, Any] = {
            "format": self.format,
            "fields": {},
            "chunks": {},
            "attributes": {},
        }
        for name, rows in self._arrays.items():
            if name.startswith("data/"):
                self._place(episode, name, PartOfRows(rows, start, stop), facts, notes)
                if rows.shape[0] > self._ends[-1]:
                    notes.dropped(f"{name} after the last episode", f"{ENDS} ends before")
            elif name not in (ENDS, OWN_FACTS):
                self._place_fact(episode, name, rows, number, facts, notes)
        if self._own:
            own = self._own[number]
            episode.id, episode.env_id = own["id"], own["env_id"]
            episode.metadata = own["metadata"]
            if own["tick_hz"] is not None:
                episode.timebase.tick_hz = float(own["tick_hz"])
            episode.timebase.epoch_ns = own["epoch_ns"]
            if isinstance(own["provenance"], dict):
                episode.provenance = complete_provenance(own["provenance"])
            return episode
        if self._dataset:
            episode.metadata["dataset"] = self._dataset
        episode.metadata["zarr"] = {key: value for key, value in facts.items() if value}
        return episode

    def _place(
        self, episode: Episode, name: str, rows: PartOfRows, facts: dict[str, Any], notes: Notes
    ) -> None:
        """An array of steps."""
        stated = self._attributes[name].get(BLOCK)
        block = stated if self._own and isinstance(stated, str) else block_of(name, rows)
        lane, _, key = block.partition("/")
        try:
            channel = _channel(key or lane, rows, self.path)
            for fact, value in checked_facts(self._attributes[name].get(CHANNEL_FACTS)).items():
                setattr(channel, fact, value)
        except InvalidArgument as error:
            notes.dropped(name, f"{error.problem}{error.facts}")
            return
        if block == "time/timestamps_ns":
            episode.timestamps_ns = channel.data
        elif block == "reward":
            episode.rewards = channel
        elif block == "terminated":
            episode.terminations = channel
        elif block == "truncated":
            episode.truncations = channel
        elif lane == "omen" and "/" in key:
            target, _, model = key.rpartition("/")
            episode.omens[target][model] = channel
        elif lane == "uncert" and key.count("/") >= 2:
            target, model, kind = key.rsplit("/", 2)
            episode.uncerts[target][model][kind] = channel
        else:
            (episode.actions if lane == "action" else episode.observations)[key] = channel
        notes.kept(name, block)
        if name in self._pictures:
            notes.decoded(name, f"{self._pictures[name]} pictures became pixels")
        if name_of(block) != name:
            facts["fields"][block] = name
        facts["chunks"][name] = self._chunks[name]
        if block == "reward":
            facts.setdefault("types", {})[name] = rows.dtype.str
        if self._attributes[name]:
            facts["attributes"][name] = self._attributes[name]

    def _place_fact(
        self,
        episode: Episode,
        name: str,
        rows: ArrayRows,
        number: int,
        facts: dict[str, Any],
        notes: Notes,
    ) -> None:
        """An array of `meta`: a row for each episode, or something about all of them."""
        of_episode = bool(rows.shape) and rows.shape[0] == len(self._ends)
        size = prod(rows.shape[1:] if of_episode else rows.shape)
        if size > _SMALL_VALUE or rows.dtype.kind not in "biufUSOT":
            notes.dropped(name, "neither steps nor a few values for each episode")
            return
        if of_episode:
            value = rows[number : number + 1][0]
        else:
            value = rows[...] if not rows.shape else rows[:]  # type: ignore[index] # one value
        if rows.dtype.kind in "iufb":
            facts.setdefault("types", {})[name] = rows.dtype.str
        kind = "episode" if of_episode else "all"
        facts.setdefault(kind, {})[name] = as_json_value(np.asarray(value)[()])
        notes.kept(name, f"metadata zarr.{kind}[{name!r}]")

    def close(self) -> None:
        self._files.close()
        self._store.close()


def _channel(name: str, rows: PartOfRows, path: str) -> Channel:
    if rows.dtype.kind in "UTOS":
        if len(rows.shape) != 1:
            raise InvalidArgument(
                "several texts at each step cannot be stored", found=list(rows.shape)
            )
        return text_channel(name, (one if isinstance(one, bytes) else str(one) for one in rows[:]))
    is_picture = len(rows.shape) == 4 and rows.shape[-1] == 3
    return channel_of(name, rows, path=path, modality=Modality.RGB if is_picture else None)


def block_of(name: str, rows: PartOfRows) -> str:
    """The block that an array of steps becomes."""
    key = name.removeprefix("data/")
    if (
        key in ("reward", "terminated", "truncated")
        and len(rows.shape) == 1
        and rows.dtype.kind in "biuf"
    ):
        return key
    if key == "timestamps_ns" and len(rows.shape) == 1 and rows.dtype.kind in "iu":
        return "time/timestamps_ns"
    if key == "action" or key.startswith("action/"):
        return f"action/{key.removeprefix('action/')}"
    return f"signal/{key}"
