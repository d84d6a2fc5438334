"""D4RL: one HDF5 file with the steps of all episodes back to back.

An episode ends where `terminals` or `timeouts` is set; the last one may be unfinished, with neither. The reward of a
step answers its action. Where `next_observations` repeats the observations of the next step, it becomes the last of
T + 1 observations; otherwise it stays a channel `next_observation`, beside T observations.

Old files have no `timeouts`: `mapping={"max_episode_steps": 1000}` splits them at the time limit of the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, ShardError, SizeMismatch
from wshard._channels import Channel
from wshard._episode import Episode
from wshard.convert._arrays import PartOfRows, WithNext, channel_of, follows, splits
from wshard.convert._groups import note_leftovers
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
_LIMIT: Final = "max_episode_steps"
# More than a hundred times the largest dataset.
_MOST_STEPS: Final = 1 << 28
_MOST_IN_METADATA: Final = 256


def recognises(probe: Probe) -> bool:
    """Whether it has the four arrays that all files of D4RL have."""
    return probe.hdf5_names >= _NEEDED


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
        arrays = there.arrays
        missing = _NEEDED - arrays.keys()
        if missing:
            raise BadValue("not a file of D4RL", expected=f"arrays {', '.join(sorted(missing))}")
        count = arrays["terminals"].shape[0] if arrays["terminals"].shape else 0
        if count > _MOST_STEPS:
            raise LimitExceeded(
                "too many steps", expected=f"at most {_MOST_STEPS}", found=str(count)
            )
        self._about: dict[str, Any] = attributes(self._file)
        self._leftovers = Notes()
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
                self._steps[name] = SharedRows(array)
            elif name in _NEEDED:
                raise BadValue("an array does not fit the terminals", entry=name, found=problem)
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
            for start, stop in splits(np.append(True, ends[:-1])):
                self._timeouts[start + limit - 1 : stop : limit] = True
            self._timeouts &= ~self._terminals
            ends = ends | self._timeouts
        self._episodes = splits(np.append(True, ends[:-1])) if len(ends) else []
        self._names = [f"episode_{number}" for number in range(len(self._episodes))]

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


def _not_steps(name: str, array: DatasetRows, count: int) -> str:
    """Why an array does not belong to the steps; empty if it does."""
    if name.startswith("metadata/") or not array.shape:
        return "it is about the whole file, and too large for metadata"
    if name == "rewards" and array.size != count:
        return f"its shape is {list(array.shape)}, not one number for each of {count} steps"
    if array.shape[0] != count:
        return f"it has {array.shape[0]} rows, not one for each of {count} steps"
    return "" if array.dtype.kind in "biuf" else f"its type is {array.dtype}"


def _flags(arrays: dict[str, DatasetRows], name: str, count: int) -> NDArray[np.bool_]:
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
