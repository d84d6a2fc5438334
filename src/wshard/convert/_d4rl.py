"""D4RL: one HDF5 file with the steps of all episodes back to back.

An episode ends where `terminals` or `timeouts` is set; the last one may be unfinished, with neither. The reward of a
step answers its action. Where `next_observations` repeats the observations of the next step, it becomes the last of
T + 1 observations; otherwise it stays a channel `next_observation`, beside T observations.

Very large sets have groups `virtual/<number>/…` with slices of these arrays. d4rl reads the arrays at the root if they
are there, and so does this reader; a file that has only slices is read as one dataset, in the order of their numbers.

Old files have no `timeouts`: `mapping={"max_episode_steps": 1000}` splits them at the time limit of the environment.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import (
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
    UnsafePath,
)
from wshard._channels import Channel
from wshard._episode import Episode
from wshard.convert._arrays import JoinedRows, PartOfRows, WithNext, channel_of, follows, splits
from wshard.convert._groups import member_group, note_leftovers
from wshard.convert._hdf5 import (
    SharedRows,
    as_json_value,
    attributes,
    contents,
    open_hdf5,
    reading,
)
from wshard.convert._model import DatasetReader, Notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wshard.convert._arrays import ForeignRows
    from wshard.convert._hdf5 import DatasetRows
    from wshard.convert._model import Probe, ReadOptions

_NEEDED: Final = frozenset(("observations", "actions", "rewards", "terminals"))
_CHUNKS: Final = "virtual"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_LIMIT: Final = "max_episode_steps"
# More than a hundred times the largest dataset.
_MOST_STEPS: Final = 1 << 28
_MOST_IN_METADATA: Final = 256


def recognises(probe: Probe) -> bool:
    """Whether it has the four arrays that all files of D4RL have, or chunks with them."""
    return probe.hdf5_names >= _NEEDED or (_CHUNKS in probe.hdf5_names and _has_chunks(probe.path))


def _has_chunks(path: str) -> bool:
    try:
        with open_hdf5(path) as file, reading(path, _CHUNKS):
            group = member_group(file, _CHUNKS)
            first = next((name for name in group if _NUMBER.fullmatch(name)), "")
            return bool(first) and set(member_group(group, first)) >= _NEEDED
    except (ShardIOError, BadValue, UnsafePath):
        return False  # damaged, or something else


class D4rlReader(DatasetReader):
    """The episodes of one file. Owns: the open file, and which steps end an episode."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        limit = _limit_of(options, path)
        self._file = open_hdf5(path)
        try:
            with reading(path):
                self._open(limit)
        except ShardError:
            self._file.close()
            raise

    def _open(self, limit: int | None) -> None:
        there = contents(self._file)
        self._leftovers = Notes()
        arrays, self._breaks = _whole_arrays(there.arrays, self.path, self._leftovers)
        missing = _NEEDED - arrays.keys()
        if missing:
            raise BadValue("not a file of D4RL", expected=f"arrays {', '.join(sorted(missing))}")
        count = arrays["terminals"].shape[0] if arrays["terminals"].shape else 0
        if count > _MOST_STEPS:
            raise LimitExceeded(
                "too many steps", expected=f"at most {_MOST_STEPS}", found=str(count)
            )
        self._about: dict[str, Any] = attributes(self._file)
        inner = note_leftovers(there, self._leftovers)
        if inner:
            self._about["inner_attributes"] = inner
        self._steps: dict[str, ForeignRows] = {}
        self._beside: dict[str, str] = {}
        for name, array in arrays.items():
            if name in ("terminals", "timeouts"):
                continue
            problem = _not_steps(name, array, count)
            if not problem:
                self._steps[name] = array if isinstance(array, JoinedRows) else SharedRows(array)
            elif name in _NEEDED:
                raise BadValue("an array does not fit the terminals", entry=name, found=problem)
            elif isinstance(array, JoinedRows):
                self._beside[f"{_CHUNKS}/*/{name}"] = problem
            elif not array.is_empty and array.size <= _MOST_IN_METADATA:
                self._about[name] = as_json_value(array[()])
            else:
                self._beside[name] = problem
        self._terminals = _flags(arrays, "terminals", count)
        self._timeouts = _flags(arrays, "timeouts", count) if "timeouts" in arrays else None
        self._types = {
            name: arrays[name].dtype for name in ("terminals", "timeouts") if name in arrays
        }
        self._split(limit)

    def _split(self, limit: int | None) -> None:
        """Finds the episodes, and where a time limit ended them if the file does not say."""
        ends = self._terminals if self._timeouts is None else self._terminals | self._timeouts
        if self._timeouts is None and limit is not None:
            self._timeouts = np.zeros(len(ends), np.bool_)
            for start, stop in self._bounds(ends):
                self._timeouts[start + limit - 1 : stop : limit] = True
            self._timeouts &= ~self._terminals
            ends = ends | self._timeouts
        self._episodes = self._bounds(ends)
        self._names = [f"episode_{number}" for number in range(len(self._episodes))]

    def _bounds(self, ends: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """The first step of each episode, and the one after its last."""
        if not len(ends):
            return []
        starts = np.append(True, ends[:-1])
        starts[self._breaks] = True
        return splits(starts)

    def names(self) -> Sequence[str]:
        return self._names

    def close(self) -> None:
        self._file.close()

    def read(self, number: int, notes: Notes) -> Episode:
        start, stop = self._episodes[number]
        episode = Episode(f"episode_{number}")
        if self._about:
            episode.metadata["dataset"] = dict(self._about)
            for name in self._about:
                notes.kept(name, f"metadata/dataset/{name}")
        for name, problem in self._beside.items():
            notes.dropped(name, problem)
        for change in self._leftovers.changes:
            notes.add(change)
        with reading(self.path, episode.id):
            self._fill(episode, start, stop, notes)
        self._mark_ends(episode, start, stop, notes)
        return episode

    def _fill(self, episode: Episode, start: int, stop: int, notes: Notes) -> None:
        parts = {name: PartOfRows(rows, start, stop) for name, rows in self._steps.items()}
        self._put_observations(
            episode, parts.pop("observations"), parts.pop("next_observations", None), notes
        )
        episode.actions["action"] = channel_of("action", parts.pop("actions"), path=self.path)
        notes.kept("actions", "action/action")
        rewards = np.asarray(parts.pop("rewards")[:])
        episode.rewards = Channel("reward", data=rewards.reshape(stop - start))
        notes.kept("rewards", "reward")
        for name, part in parts.items():
            lane, _, rest = name.partition("/")
            plain = name if lane != "infos" else f"info/{rest}" if rest else "info"
            is_taken = plain in episode.observations
            while plain in episode.observations:
                plain += "_"
            episode.observations[plain] = channel_of(plain, part, path=self.path)
            (notes.renamed if is_taken else notes.kept)(name, f"signal/{plain}")

    def _put_observations(
        self, episode: Episode, here: ForeignRows, following: ForeignRows | None, notes: Notes
    ) -> None:
        name = "observation"
        if following is not None and follows(here, following):
            here = WithNext(here, following)
            notes.kept("next_observations", f"signal/{name}, one step later")
        elif following is not None:
            after = f"next_{name}"
            episode.observations[after] = channel_of(after, following, path=self.path)
            notes.kept("next_observations", f"signal/{after}")
        episode.observations[name] = channel_of(name, here, path=self.path)
        notes.kept("observations", f"signal/{name}")

    def _mark_ends(self, episode: Episode, start: int, stop: int, notes: Notes) -> None:
        episode.terminations = self._terminals[start:stop]
        notes.kept("terminals", "terminated")
        if self._timeouts is not None:
            episode.truncations = self._timeouts[start:stop]
        if "timeouts" in self._types:
            notes.kept("timeouts", "truncated")
        elif self._timeouts is not None:
            notes.filled("timeouts", f"by the time limit {_LIMIT} that you gave")
        else:
            notes.filled(
                "timeouts", f"unknown: give mapping={{{_LIMIT!r}: …}} to split at a time limit"
            )
        for name, dtype in self._types.items():
            if dtype != np.bool_:
                notes.cast(name, dtype, "bool")


def _limit_of(options: ReadOptions, path: str) -> int | None:
    """The time limit of the environment, if the user gave one."""
    mapping = dict(options.mapping or {})
    limit = mapping.pop(_LIMIT, None)
    if mapping or not (limit is None or (type(limit) is int and limit > 0)):
        raise InvalidArgument(
            "D4RL takes no such mapping",
            path=path,
            expected=f"{_LIMIT}, a positive integer",
            found=str(dict(options.mapping or {})),
        )
    return limit


class ChunkRows:
    """Rows of one chunk. Of all chunks of an array, only the one that was used last reads ahead.

    Args:
        dataset: the rows.
        last: the same for all chunks of the array.
    """

    def __init__(self, dataset: DatasetRows, last: dict[ChunkRows, SharedRows]) -> None:
        self._dataset = dataset
        self._last = last
        self.shape, self.dtype = dataset.shape, dataset.dtype

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        found = self._last.get(self)
        if found is None:
            self._last.clear()
            found = self._last[self] = SharedRows(self._dataset)
        return found[rows]


def _whole_arrays(
    arrays: dict[str, DatasetRows], path: str, notes: Notes
) -> tuple[dict[str, DatasetRows | JoinedRows], list[int]]:
    """The arrays with all steps, and the steps before which chunks are missing.

    Args:
        arrays: of the file, by their names.
        path: of the file, for errors.
        notes: gets what becomes of the chunks.
    """
    whole: dict[str, DatasetRows | JoinedRows] = {}
    chunks: dict[int, dict[str, DatasetRows]] = {}
    for name, array in arrays.items():
        top, _, rest = name.partition("/")
        chunk, _, field = rest.partition("/")
        if top == _CHUNKS and field and _NUMBER.fullmatch(chunk):
            chunks.setdefault(int(chunk), {})[field] = array
        else:
            whole[name] = array
    if not chunks or whole.keys() >= _NEEDED:
        if chunks:
            notes.dropped(_CHUNKS, "slices of the arrays at the root, which are read instead")
        return whole, []
    numbers = sorted(chunks)
    steps = [_steps_of_chunk(number, chunks[number]) for number in numbers]
    notes.kept(_CHUNKS, f"{len(numbers)} chunks, one after the other")
    for field in sorted(set[str]().union(*chunks.values())):
        pieces = [chunks[number].get(field) for number in numbers]
        rows = [piece.shape[0] if piece and piece.shape else None for piece in pieces]
        if rows != steps:
            notes.dropped(f"{_CHUNKS}/*/{field}", "it has not one row for each step of every chunk")
            continue
        if field in whole:
            notes.dropped(field, "the chunks have an array of this name, too, with all steps")
        filled = [piece for piece in pieces if piece and piece.shape[0]]
        last: dict[ChunkRows, SharedRows] = {}
        parts = [ChunkRows(piece, last) for piece in filled or filter(None, pieces[:1])]
        whole[field] = JoinedRows(parts, path, f"{_CHUNKS}/*/{field}")
    starts, breaks = np.cumsum([0, *steps]).tolist(), []
    for place, (before, number) in enumerate(pairwise(numbers), 1):
        if number > before + 1:
            why = f"the next chunk of the file is {number}; an episode ends where one is missing"
            notes.dropped(f"{_CHUNKS}/{before + 1}", why)
            breaks.append(starts[place])
    return whole, [step for step in breaks if step < starts[-1]]


def _steps_of_chunk(number: int, arrays: dict[str, DatasetRows]) -> int:
    """How many steps a chunk has; refuses one that is not complete."""
    rows = {name: arrays[name].shape[:1] for name in sorted(_NEEDED & arrays.keys())}
    if len(rows) < len(_NEEDED) or len(set(rows.values())) > 1 or () in rows.values():
        raise SizeMismatch(
            "a chunk does not have its four arrays with as many rows each",
            entry=f"{_CHUNKS}/{number}",
            expected=", ".join(sorted(_NEEDED)),
            found=", ".join(f"{name} {list(shape)}" for name, shape in rows.items()),
        )
    return rows["terminals"][0]


def _not_steps(name: str, array: DatasetRows | JoinedRows, count: int) -> str:
    """Why an array does not belong to the steps; empty if it does."""
    if name.startswith("metadata/") or not array.shape:
        return "it is about the whole file, and too large for metadata"
    if name == "rewards" and prod(array.shape) != count:
        return f"its shape is {list(array.shape)}, not one number for each of {count} steps"
    if array.shape[0] != count:
        return f"it has {array.shape[0]} rows, not one for each of {count} steps"
    return "" if array.dtype.kind in "biuf" else f"its type is {array.dtype}"


def _flags(arrays: dict[str, DatasetRows | JoinedRows], name: str, count: int) -> NDArray[np.bool_]:
    """Flags of all steps. Files have them as booleans, as numbers, and as columns of either."""
    array = arrays[name]
    if array.shape not in ((count,), (count, 1)) or array.dtype.kind not in "biuf":
        raise SizeMismatch(
            "flags are not one number a step",
            entry=name,
            expected=f"[{count}] or [{count}, 1]",
            found=f"{array.dtype} {list(array.shape)}",
        )
    values: NDArray[Any] = array[:]
    flags: NDArray[np.bool_] = values.reshape(count) != 0
    return flags
