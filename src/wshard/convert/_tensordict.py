"""TensorDict and TorchRL memory maps, read without torch: `meta.json`, and a raw `.memmap` file for each tensor.

Steps: row t holds what was seen before action t at its root, and what came of the action under `next/`: reward, ends
and the next observation. Where `next/x` of each row is `x` of the row after, an episode has T + 1 observations `x`;
otherwise it has both. Episodes are the rows of one `collector/traj_ids`, or those up to each `next/done`.
"""

from __future__ import annotations

import os
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import (
    BadMetadata,
    InvalidArgument,
    LimitExceeded,
    ShardIOError,
    SizeMismatch,
)
from wshard._channels import Modality
from wshard._episode import Episode
from wshard._values import BY_NAME, DType
from wshard.convert._arrays import WithNext, channel_of, follows, splits, text_channel
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import DatasetReader, inside, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from wshard.convert._arrays import ForeignRows
    from wshard.convert._model import Notes, Probe, ReadOptions

META: Final = "meta.json"
STORAGE: Final = "storage_metadata.json"
_OF_A_BUFFER: Final = ("storage", "writer", "buffer_metadata.json")
_NO_ENTRIES: Final = ("shape", "device", "_type")
_MOST_DEPTH: Final = 16
_MOST_UNBACKED: Final = 1 << 20
_TRAJECTORIES: Final = ("collector/traj_ids", "traj_ids")
_ENDS: Final = {"terminated": "terminations", "truncated": "truncations"}


def recognises(probe: Probe) -> bool:
    """Whether it is a folder that `TensorDict.memmap` or a replay buffer of TorchRL wrote."""
    if "storage" in probe.names:
        return bool(probe.json("storage", STORAGE))
    return META in probe.names and _is_tensordict(probe.json(META))


def _is_tensordict(meta: dict[str, Any]) -> bool:
    if "tensordict" in str(meta.get("_type", "")):
        return True
    entries = [entry for entry in meta.values() if isinstance(entry, dict)]
    return "shape" in meta and any(
        str(entry.get("dtype")).startswith("torch.") or entry.get("type") == "TensorDict"
        for entry in entries
    )


class TensorDictReader(DatasetReader):
    """Trajectories of a replay buffer, or of a TensorDict with a time axis."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._folder = path
        if os.path.isdir(os.path.join(path, "storage")):
            self._folder = os.path.join(path, "storage")
        if not os.path.exists(os.path.join(self._folder, META)):
            raise InvalidArgument(
                f"{META} is missing: only TensorDicts in memory maps can be read",
                path=self._folder,
                hint="use LazyMemmapStorage for the replay buffer, or td.memmap(folder)",
            )
        self._tensors: dict[str, NDArray[Any]] = {}
        self._bfloat16: set[str] = set()
        self._values: dict[str, Any] = {}
        self._dropped: dict[str, str] = {}
        self._batch = self._read_folder("", _MOST_DEPTH)
        storage = os.path.join(self._folder, STORAGE)
        self._length: int | None = None
        if os.path.exists(storage):
            self._length = self._stored_length(storage)
        self._episodes = list(self._split())
        self.strays = self._other_files()

    # --- files

    def _read_folder(self, folder: str, depth: int) -> tuple[int, ...]:
        """Maps the tensors of one folder and those below it; returns its batch shape."""
        path = inside(self._folder, os.path.join(folder, META), what="the path of an entry")
        meta = read_json(path)
        if not isinstance(meta, dict) or "LazyStacked" in str(meta.get("_type")):
            raise InvalidArgument(
                "not the description of a TensorDict that can be read",
                path=path,
                hint="store it dense: td.contiguous().memmap(folder)",
            )
        if not depth:
            raise BadMetadata("entries are nested too deeply", path=path)
        batch = _shape(meta.get("shape"), path, "shape")
        for key, entry in meta.items():
            if key in _NO_ENTRIES or not isinstance(entry, dict):
                continue
            name = f"{folder}/{key}" if folder else key
            if entry.get("type") == "TensorDict":
                if self._read_folder(name, depth - 1)[: len(batch)] != batch:
                    raise BadMetadata("an entry has another batch shape", path=path, entry=name)
            elif "dtype" in entry:
                self._map(name, entry, batch, path)
            else:
                self._read_value(name)
        return batch

    def _map(self, name: str, entry: dict[str, Any], batch: tuple[int, ...], meta: str) -> None:
        shape = _shape(entry.get("shape"), meta, name)
        dtype = BY_NAME.get(str(entry["dtype"]).removeprefix("torch."))
        if dtype is None or entry.get("is_nested"):
            kind = "a nested tensor" if entry.get("is_nested") else entry["dtype"]
            self._dropped[name] = f"{kind} cannot be stored in an episode"
            return
        if shape[: len(batch)] != batch:
            raise BadMetadata(
                "a tensor does not have the batch shape of its TensorDict",
                path=meta,
                entry=name,
                expected=list(batch),
                found=list(shape),
            )
        path = inside(self._folder, f"{name}.memmap", what="the path of a tensor")
        nbytes = prod(shape) * dtype.size
        try:
            found = os.stat(path).st_size
            if found != nbytes:
                raise SizeMismatch(
                    "a file has a different size than its tensor",
                    path=path,
                    expected=f"{nbytes} bytes: {entry['dtype']}{list(shape)}",
                    found=f"{found} bytes",
                )
            stored = dtype.numpy_dtype
            # As plain arrays, which take less time to cut than `np.memmap`.
            self._tensors[name] = (
                np.asarray(np.memmap(path, stored, "r", shape=shape))
                if nbytes
                else np.zeros(shape, stored)
            )
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", path) from error
        if dtype is DType.BFLOAT16:
            self._bfloat16.add(name)

    def _read_value(self, name: str) -> None:
        """Data that is not a tensor: JSON is read, a pickle never."""
        path = inside(self._folder, os.path.join(name, META), what="the path of an entry")
        if os.path.exists(path):
            meta = read_json(path)
            if isinstance(meta, dict) and "data" in meta:
                is_stack = "Stack" in str(meta.get("_type"))
                self._values[name] = _Stack(meta["data"]) if is_stack else meta["data"]
                return
        self._dropped[name] = "an object that is not JSON: pickles are never loaded"

    def _stored_length(self, path: str) -> int:
        """How many rows of the storage are data; it has room for more."""
        facts = read_json(path)
        length = facts.get("len") if isinstance(facts, dict) else None
        if type(length) is not int or not 0 <= length <= prod(self._batch):
            raise BadMetadata(
                "'len' is not a number of rows that the storage has",
                path=path,
                expected=f"at most {prod(self._batch)}",
                found=repr(length)[:80],
            )
        return length

    def _other_files(self) -> list[str]:
        """What is not steps: how a replay buffer samples, and files of others."""
        entries = {name.partition("/")[0] for name in (*self._values, *self._dropped)}
        entries |= {name.partition("/")[0] for name in self._tensors if "/" in name}
        own = {META, STORAGE, *entries, *(f"{name}.memmap" for name in self._tensors)}
        own |= {f"{name}.memmap" for name in self._dropped}
        found = sorted(name for name in os.listdir(self._folder) if name not in own)
        if self._folder != self.path:
            found += sorted(name for name in os.listdir(self.path) if name not in _OF_A_BUFFER)
        return found

    # --- episodes

    def _split(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The stream and the rows of each episode."""
        if not self._batch:
            raise InvalidArgument(
                "a TensorDict without a batch shape has no steps", path=self._folder
            )
        if len(self._batch) > 2:
            raise InvalidArgument(
                "a TensorDict with more than two batch dimensions cannot be read",
                path=self._folder,
                found=list(self._batch),
                hint="flatten it first: td.reshape(-1, td.shape[-1]).memmap(folder)",
            )
        rows, largest = (
            prod(self._batch),
            max((t.nbytes for t in self._tensors.values()), default=0),
        )
        if rows > max(largest, _MOST_UNBACKED):
            raise LimitExceeded(
                "a TensorDict has more rows than any of its files has bytes",
                path=self._folder,
                expected=f"at most {max(largest, _MOST_UNBACKED)}",
                found=rows,
            )
        for stream in range(self._streams):
            order = self._order()
            ids = next(
                (self._tensors[name] for name in _TRAJECTORIES if name in self._tensors), None
            )
            if ids is not None:
                values = np.asarray(self._stream(ids, stream))
                if prod(values.shape) == self._rows:
                    yield from self._by_id(stream, order, values.reshape(-1)[order])
                    continue
            for start, stop in splits(self._firsts(stream, order)):
                yield stream, order[start:stop]

    @property
    def _is_storage(self) -> bool:
        return self._length is not None

    @property
    def _streams(self) -> int:
        """How many rows of steps lie beside each other: a storage has time first, other data has it last."""
        if len(self._batch) == 1:
            return 1
        return self._batch[1 if self._is_storage else 0]

    @property
    def _rows(self) -> int:
        return self._batch[0] if self._is_storage else self._batch[-1]

    def _stream(self, tensor: NDArray[Any], stream: int) -> NDArray[Any]:
        if len(self._batch) == 1:
            return tensor
        return tensor[:, stream] if self._is_storage else tensor[stream]

    def _order(self) -> NDArray[np.int64]:
        """The rows that are data, oldest first: a full storage goes on at its start."""
        if self._length is None:
            return np.arange(self._rows)
        count = self._length // self._streams
        start = 0
        writer = os.path.join(os.path.dirname(self._folder), "writer", "metadata.json")
        if count == self._rows and os.path.exists(writer):
            facts = read_json(writer)
            cursor = facts.get("cursor") if isinstance(facts, dict) else None
            start = cursor if type(cursor) is int and 0 <= cursor < count else 0
        return np.roll(np.arange(count), -start)

    def _by_id(
        self, stream: int, order: NDArray[np.int64], ids: NDArray[Any]
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The rows of each trajectory; those of several workers may alternate."""
        by_id = np.argsort(ids, kind="stable")
        changes = np.flatnonzero(np.diff(ids[by_id])) + 1
        starts = [0, *changes.tolist()] if len(ids) else []
        groups = [by_id[a:b] for a, b in pairwise([*starts, len(ids)])]
        for group in sorted(groups, key=lambda rows: int(rows[0])):
            yield stream, order[group]

    def _firsts(self, stream: int, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows are the first of an episode."""
        ends = np.zeros(len(order), np.bool_)
        for name in ("next/done", "next/terminated", "next/truncated"):
            flags = self._flags(name, stream)
            if flags is not None:
                ends |= flags[order]
        firsts = np.append(True, ends[:-1]) if len(ends) else ends
        starts = self._flags("is_init", stream)
        return firsts if starts is None else firsts | starts[order]

    def _flags(self, name: str, stream: int) -> NDArray[np.bool_] | None:
        tensor = self._tensors.get(name)
        if tensor is None:
            return None
        values = self._stream(tensor, stream)
        if values.dtype != np.bool_ or prod(values.shape) != self._rows:
            return None
        return np.asarray(values).reshape(-1)

    def names(self) -> Sequence[str]:
        return [f"episode_{number}" for number in range(len(self._episodes))]

    def read(self, number: int, notes: Notes) -> Episode:
        stream, rows = self._episodes[number]
        episode = Episode(f"episode_{number}")
        episode.length = len(rows)
        first, count = int(rows[0]), len(rows)
        is_run = int(rows[-1]) - first == count - 1 and bool((np.diff(rows) == 1).all())
        rest: dict[str, ForeignRows] = {}
        for name, tensor in self._tensors.items():
            stored = self._stream(tensor, stream)
            # Rows in a row are a view; others are gathered when they are used.
            rest[name] = stored[first : first + count] if is_run else ChosenRows(stored, rows)
        facts: dict[str, Any] = {}
        self._place_ids(rest, facts, notes)
        self._place_ends(episode, rest, notes)
        for name in list(rest):
            if name in rest and not name.startswith("next/"):
                self._place(episode, name, rest, notes)
        for name, left in rest.items():
            self._add(episode, name, left, notes)
        for name, value in self._values.items():
            self._place_value(episode, name, value, rows, facts, notes)
        for name, why in self._dropped.items():
            notes.dropped(name, why)
        if facts:
            episode.metadata["tensordict"] = facts
        return episode

    def _place_ids(self, rest: dict[str, ForeignRows], facts: dict[str, Any], notes: Notes) -> None:
        for name in _TRAJECTORIES:
            ids = rest.get(name)
            if ids is not None and ids.shape[0] and prod(ids.shape) == ids.shape[0]:
                values = np.asarray(ids[:]).reshape(-1)
                if (values == values[0]).all():
                    facts["traj_id"] = as_json_value(values[0])
                    notes.kept(name, "metadata tensordict.traj_id")
                    del rest[name]

    def _place_ends(self, episode: Episode, rest: dict[str, ForeignRows], notes: Notes) -> None:
        """Rewards and ends; a trailing dimension of one is TorchRL's way to write a column."""
        length, flags = episode.length, dict[str, Any]()
        for name in ("next/reward", "next/done", "next/terminated", "next/truncated"):
            values = rest.get(name)
            is_flag = name != "next/reward"
            if values is None or prod(values.shape[1:]) != 1:
                continue
            if is_flag and values.dtype != np.bool_:
                continue
            flags[name] = np.asarray(values[:]).reshape(length)
        if "next/reward" in flags:
            episode.rewards = flags["next/reward"]
            notes.kept("next/reward", "reward")
            del rest["next/reward"]
        for short, field in _ENDS.items():
            if f"next/{short}" in flags:
                setattr(episode, field, flags[f"next/{short}"])
                notes.kept(f"next/{short}", short)
                del rest[f"next/{short}"]
        done = flags.get("next/done")
        if done is None:
            return
        known = episode.dones
        if known is None:
            episode.terminations = done
            notes.renamed("next/done", "terminated, which it does not tell from truncated")
            del rest["next/done"]
        elif (known == done).all():
            notes.kept("next/done", "terminated or truncated")
            del rest["next/done"]

    def _place(
        self, episode: Episode, name: str, rest: dict[str, ForeignRows], notes: Notes
    ) -> None:
        """A tensor of the root, together with the one of the same name under `next`."""
        rows: ForeignRows = rest.pop(name)
        is_end = name in ("done", "terminated", "truncated") and rows.dtype == np.bool_
        if is_end and not np.any(rows[:]):
            # Whether the state before an action was an end: never within an episode.
            notes.kept(name, "false: it repeats next of the step before")
            return
        after = rest.get(f"next/{name}")
        if after is not None and not is_action(name) and follows(rows, after):
            rows = WithNext(rows, after)
            notes.kept(f"next/{name}", f"signal/{name}, the observation after")
            del rest[f"next/{name}"]
        self._add(episode, name, rows, notes)

    def _add(self, episode: Episode, name: str, rows: ForeignRows, notes: Notes) -> None:
        is_picture = len(rows.shape) == 4 and rows.shape[-1] == 3 and rows.dtype == np.uint8
        key = name.removeprefix("action/") if is_action(name) else name
        channel = channel_of(
            key, rows, path=self._folder, modality=Modality.RGB if is_picture else None
        )
        if name in self._bfloat16:
            channel.dtype_name = DType.BFLOAT16  # bits, where ml_dtypes is not installed
        lane = "action" if is_action(name) else "signal"
        (episode.actions if lane == "action" else episode.observations)[key] = channel
        notes.kept(name, f"{lane}/{key}")

    def _place_value(
        self,
        episode: Episode,
        name: str,
        value: Any,  # noqa: ANN401 - JSON
        rows: NDArray[np.int64],
        facts: dict[str, Any],
        notes: Notes,
    ) -> None:
        """Data that is not a tensor: one value for all rows, or one for each."""
        if isinstance(value, _Stack):
            if len(self._batch) != 1 or len(value.items) < self._rows:
                notes.dropped(name, "not one value for each step")
                return
            items = [value.items[int(row)] for row in rows]
            if all(isinstance(item, str) for item in items):
                self._add_text(episode, name, items, notes)
                return
            value = items
        elif name == "language_instruction" and isinstance(value, str):
            self._add_text(episode, name, [value] * len(rows), notes)
            return
        facts.setdefault("data", {})[name] = as_json_value(value)
        notes.kept(name, f"metadata tensordict.data[{name!r}]")

    def _add_text(self, episode: Episode, name: str, texts: list[str], notes: Notes) -> None:
        episode.observations[name] = text_channel(name, texts)
        notes.kept(name, f"signal/{name}")
        if name == "language_instruction" and any(texts):
            episode.metadata["task"] = next(filter(None, texts))

    def close(self) -> None:
        self._tensors.clear()


class _Stack:
    """Values that are not tensors, one for each row."""

    def __init__(self, items: Any) -> None:  # noqa: ANN401 - JSON
        self.items: list[Any] = items if isinstance(items, list) else []


def _shape(stated: Any, path: str, name: str) -> tuple[int, ...]:  # noqa: ANN401 - JSON of a file
    if (
        not isinstance(stated, list)
        or len(stated) > 31
        or not all(type(size) is int and 0 <= size < 1 << 48 for size in stated)
    ):
        raise BadMetadata("not a shape", path=path, entry=name, found=repr(stated)[:80])
    return tuple(stated)


def is_action(name: str) -> bool:
    """Whether a tensor is what was done."""
    return name == "action" or name.startswith("action/")


class ChosenRows:
    """Some rows of a tensor, which stay in the file until they are used."""

    def __init__(self, tensor: NDArray[Any], rows: NDArray[np.int64]) -> None:
        self._tensor = tensor
        self._rows = rows
        self.shape = (len(rows), *tensor.shape[1:])
        self.dtype = tensor.dtype

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self._rows))
        return np.asarray(self._tensor[self._rows[start:stop]])
