"""The lanes of plain episodes, filled from a plan: files of one data set have the same structure.

An episode is plain if it has nothing but dense observations and actions that its rows describe in the simplest
way, a reward, ends and the clock of its steps. `Router` does the same for every episode, one look at a time.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from wshard.blocks import file_block
from wshard.channels import Channel, as_modality
from wshard.dtypes import DType
from wshard.episode import new_actions, new_observations
from wshard.lanes import FillPart
from wshard.names import (
    DONE,
    META_CHANNELS,
    META_EPISODE,
    META_WSHARD,
    REWARD,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
)
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shard_format import ShardReader
    from wshard.metadata import Row

_BASIC: Final = frozenset(("id", "dtype", "shape", "signal_block", "modality"))
_IGNORED: Final = frozenset((META_WSHARD, META_EPISODE, META_CHANNELS))
_CLOCKS: Final = {TICKS: "_ticks", TIMESTAMPS: "_timestamps"}
_CLOCK_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "_ticks": np.dtype("<i4"),
    "_timestamps": np.dtype("<i8"),
}
_MOST: Final = 64
# Present from the start: a dictionary that does not grow is copied and changed in half the time.
_PER_FILE: Final = {"extra": None, "_block": None, "_length": 0, "_values": None}
# Looking up a member of an enum takes as long as making a channel.
_OBSERVATIONS, _REST = FillPart.OBSERVATIONS, FillPart.REST
_BOOL: Final = DType.BOOL
_BOOLEAN: Final = np.dtype(np.bool_)
_new_object = object.__new__
_new_array: Final = np.ndarray
# Files up to this size come into memory as a whole.
_SMALL: Final = 1 << 16
_NO_FLAT_LANES: Final = dict.fromkeys(
    ("_rewards", "_terminations", "_truncations", "_ticks", "_timestamps")
)


# The attribute of the episode, the channel's key there, its row in the index, its block; the channel's
# attributes but for those that differ from file to file; bytes of a step, and whether it may have one more.
# A plain tuple: it is unpacked for every channel of every episode.
_Planned: TypeAlias = tuple[str, str, int, str, dict[str, Any], int, bool]


class PlainPlan(NamedTuple):
    """How the lanes of files with one structure are filled."""

    rows: Mapping[str, Row]
    names: Mapping[str, int]
    is_plain: bool
    observations: list[_Planned]
    rest: list[_Planned]
    """Actions, reward and ends."""
    everything: list[_Planned]
    clocks: list[tuple[str, int, str]]
    """Attribute, row in the index and block."""

    def lanes(self, reader: ShardReader, length: int, part: FillPart) -> dict[str, Any]:
        """The attributes of an episode that are asked for."""
        sizes = reader.sizes()
        found: dict[str, dict[str, Channel]] = {"observations": {}, "actions": {}}
        lanes: dict[str, Any] = {}
        if part is _OBSERVATIONS:
            planned = self.observations
        else:
            planned = self.rest if part is _REST else self.everything
            lanes.update(_NO_FLAT_LANES)
        # Of a small file all is in memory: arrays are made at once, which saves most of their price.
        # What is damaged stays to be touched, and says so then.
        is_small = reader.header.total_file_size <= _SMALL
        views = reader.at_hand([one[2] for one in planned]) if is_small else repeat(None)
        for (lane, key, number, name, fields, step, may_have_one_more), view in zip(planned, views):  # noqa: B905 - repeat has no end
            nbytes = sizes[number]
            own = fields.copy()
            own["extra"] = {}
            own["_block"] = file_block((reader, name, number, nbytes))
            own["_length"] = count = (
                length + 1 if may_have_one_more and nbytes == (length + 1) * step else length
            )
            if view and nbytes == count * step:
                dtype = own["dtype"]
                if dtype is _BOOL:
                    if not bytes(view).translate(None, b"\0\1"):
                        own["_values"] = _new_array((count, *own["shape"]), _BOOLEAN, view)
                elif dtype._stored is not None:  # bf16 may be one thing or another
                    own["_values"] = _new_array((count, *own["shape"]), dtype._stored, view)
            channel = _new_object(Channel)
            channel.__dict__ = own
            if lane in found:
                found[lane][key] = channel
            elif nbytes or not length:  # an empty block means that the lane is absent
                lanes[lane] = channel
        if part is not _REST:
            dict.update(observations := new_observations(), found["observations"])
            lanes["observations"] = observations
        if part is not _OBSERVATIONS:
            dict.update(actions := new_actions(), found["actions"])
            lanes["actions"] = actions
            for attribute, number, name in self.clocks:
                nbytes, stored = sizes[number], _CLOCK_DTYPES[attribute]
                view = reader.at_hand((number,))[0] if is_small else None
                if view and nbytes == length * stored.itemsize:
                    lanes[attribute] = _new_array((length,), stored, view)
                elif nbytes or not length:
                    lanes[attribute] = file_block((reader, name, number, nbytes))
        return lanes


# By the identity of parsed rows, which are shared by all files with the same text; a plan keeps them alive.
_plans: dict[int, PlainPlan] = {}


def plain_plan(reader: ShardReader, rows: Mapping[str, Row]) -> PlainPlan | None:
    """The plan for a plain episode; None if it is not one."""
    names = reader.names_by_row
    if names is None:
        return None
    plan = _plans.get(id(rows))
    if plan is None or plan.rows is not rows or plan.names is not names:
        plan = _plan(rows, names)
        if len(_plans) >= _MOST:
            _plans.clear()
        _plans[id(rows)] = plan
    return plan if plan.is_plain else None


def _plan(rows: Mapping[str, Row], names: Mapping[str, int]) -> PlainPlan:
    plan = PlainPlan(rows, names, True, [], [], [], [])
    used: set[tuple[str, str]] = set()
    for name, number in names.items():
        if name in _IGNORED:
            continue
        if name in _CLOCKS:
            plan.clocks.append((_CLOCKS[name], number, name))
            continue
        planned = _flat(name, number, rows, names) or _described(name, number, rows.get(name))
        if planned is None or planned[:2] in used:
            return PlainPlan(rows, names, False, [], [], [], [])
        used.add(planned[:2])
        (plan.observations if planned[0] == "observations" else plan.rest).append(planned)
        plan.everything.append(planned)
    return plan


def _flat(
    name: str, number: int, rows: Mapping[str, Row], names: Mapping[str, int]
) -> _Planned | None:
    lane = {REWARD: "_rewards", TERMINATED: "_terminations", TRUNCATED: "_truncations"}.get(name)
    if name == DONE and TERMINATED not in names:
        lane = "_terminations"
    if lane is None or name in rows:
        return None
    is_reward = name == REWARD
    fields = {
        "name": "reward" if is_reward else name,
        "dtype": DType.FLOAT32 if is_reward else DType.BOOL,
        "shape": (),
        "block": name,
        **_PER_FILE,
    }
    return lane, name, number, name, fields, 4 if is_reward else 1, False


def _described(name: str, number: int, row: Row | None) -> _Planned | None:
    is_signal = name.startswith("signal/")
    if row is None or not (is_signal or name.startswith("action/")):
        return None
    if not row.fields.keys() <= _BASIC:
        return None
    fields: dict[str, Any] = {
        "name": row.id,
        "dtype": row.dtype,
        "shape": row.shape,
        "block": name,
        **_PER_FILE,
    }
    if row.fields.get("modality") is not None:
        fields["modality"] = as_modality(row.fields["modality"])
    step = product(row.shape) * row.dtype.size
    lane = "observations" if is_signal else "actions"
    return lane, row.id, number, name, fields, step, is_signal and step > 0
