"""ManiSkill 3: a group `traj_<i>` for each episode in an HDF5 file, and a JSON file beside it that describes them.

Observations and `env_states` have T + 1 rows, `actions`, `rewards`, `terminated`, `truncated`, `success` and `fail` have
T: `rewards[t]` follows from `actions[t]`. `success` and `fail` of each step become `info/success` and `info/fail`; those
of the whole episode, its seed and its control mode come from the JSON file, which has the name of the HDF5 file.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import BadMetadata, ShardError
from shard_format.listing import natural_key
from wshard._episode import Episode
from wshard._lanes import REWARD, TERMINATED, TRUNCATED
from wshard.convert._groups import (
    Parts,
    count_steps,
    member_group,
    note_attributes,
    note_leftovers,
)
from wshard.convert._hdf5 import (
    as_json_value,
    attributes,
    contents,
    open_hdf5,
    reading,
    rows_channel,
)
from wshard.convert._model import DatasetReader, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wshard.convert._model import Notes, Probe, ReadOptions

_TRAJECTORY: Final = re.compile(r"traj_[0-9]+")
_FLAT: Final = {"rewards": REWARD, "terminated": TERMINATED, "truncated": TRUNCATED}
_VIEWS: Final = {REWARD: "rewards", TERMINATED: "terminations", TRUNCATED: "truncations"}
# What has one row for each step, the surest first.
_STEPS: Final = ("actions", "terminated", "rewards")


def recognises(probe: Probe) -> bool:
    """Whether it is an HDF5 file with trajectories at its root."""
    return any(_TRAJECTORY.fullmatch(name) for name in probe.hdf5_names)


class ManiSkillReader(DatasetReader):
    """The trajectories of a file, by number."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._file = open_hdf5(path)
        try:
            with reading(path, "/"):
                found = sorted(self._file, key=natural_key)
        except ShardError:
            self._file.close()
            raise
        self._names = [name for name in found if _TRAJECTORY.fullmatch(name)]
        self._others = [name for name in found if not _TRAJECTORY.fullmatch(name)]
        self._json = os.path.splitext(path)[0] + ".json"

    def names(self) -> Sequence[str]:
        return self._names

    def close(self) -> None:
        self._file.close()

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """What the JSON file says; empty without one."""
        if not os.path.exists(self._json):
            return {}
        facts = read_json(self._json)
        if not isinstance(facts, dict) or not isinstance(facts.get("episodes", []), list):
            raise BadMetadata(
                "not a description of trajectories",
                path=self._json,
                expected="an object with a list 'episodes'",
            )
        strict: dict[str, Any] = as_json_value(facts)
        return strict

    @cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        """By trajectory, what the JSON file says about it."""
        rows = [row for row in self._facts.get("episodes", []) if isinstance(row, dict)]
        return {f"traj_{row.get('episode_id')}": row for row in rows}

    def read(self, number: int, notes: Notes) -> Episode:
        name = self._names[number]
        with reading(self.path, name):
            return self._read(name, member_group(self._file, name), notes)

    def _read(self, name: str, group: Any, notes: Notes) -> Episode:  # noqa: ANN401 - an h5py.Group
        there = contents(group)
        found = there.arrays
        row = self._rows.get(name, {})
        episode = Episode(name, length=count_steps(found, _STEPS, row.get("elapsed_steps")))
        inner = note_leftovers(there, notes)
        note_attributes("the file's", self._file.id, notes)
        for other in self._others:
            notes.dropped(other, "not a trajectory")
        parts = Parts(episode, notes, self.path)
        for field, dataset in found.items():
            lane = _FLAT.get(field)
            if lane is not None and dataset.shape == (episode.length,):
                setattr(episode, _VIEWS[lane], rows_channel(lane, dataset))
                notes.kept(field, lane)
                if lane != REWARD and dataset.dtype.kind != "b":
                    notes.cast(field, dataset.dtype, "bool")
            else:
                parts.add(*_place(field), dataset, field)
        own = {
            "texts": parts.texts,
            "attributes": attributes(group),
            "inner_attributes": inner,
        }
        episode.metadata["maniskill"] = {key: value for key, value in own.items() if value}
        self._add_facts(episode, row, notes)
        return episode

    def _add_facts(self, episode: Episode, row: Mapping[str, Any], notes: Notes) -> None:
        """What the JSON file says about the dataset and about this episode."""
        described = os.path.basename(self._json)
        if not self._facts:
            notes.dropped(described, "the file is not there")
            return
        dataset = {key: value for key, value in self._facts.items() if key != "episodes"}
        env_info = dataset.get("env_info")
        if isinstance(env_info, dict) and isinstance(env_info.get("env_id"), str):
            episode.env_id = env_info["env_id"]
        metadata = episode.metadata
        metadata["dataset"] = dataset
        notes.kept(f"{described} env_info", "metadata/dataset")
        if not row:
            notes.dropped(f"{described} {episode.id}", "the file does not describe it")
        own = dict(row)
        for key, target, kind in (
            ("episode_seed", "seed", int),
            ("success", "success", bool),
            ("control_mode", "control_mode", str),
        ):
            if type(own.get(key)) is kind:
                metadata[target] = own.pop(key)
                notes.kept(f"{described} {key}", f"metadata/{target}")
        reset = own.get("reset_kwargs")
        if isinstance(reset, dict) and reset.get("options"):
            metadata["options"] = reset["options"]
        metadata["maniskill"] |= own
        for key in own:
            notes.kept(f"{described} {key}", "metadata/maniskill")


def _place(field: str) -> tuple[str, str]:
    """The lane and name of a dataset of a trajectory."""
    top, _, rest = field.partition("/")
    if top == "actions":
        return "action", rest or "action"
    if top == "obs":
        return "signal", rest or "observation"
    return "signal", (f"info/{field}" if field in ("success", "fail") else field)
