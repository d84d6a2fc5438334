"""The lanes of plain episodes, filled from a plan: files of one data set have the same structure.

An episode is plain if it has nothing but dense observations and actions that its rows describe in the simplest
way, a reward, ends and the clock of its steps. `Router` does the same for every episode, one look at a time.
"""

from __future__ import annotations

from itertools import repeat
from types import MappingProxyType
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
    from collections.abc import Collection, Iterable, Mapping

    from numpy.typing import NDArray

    from shard_format import ShardReader
    from wshard.metadata import Row

_BASIC: Final = frozenset(("id", "dtype", "shape", "signal_block", "modality"))
_IGNORED: Final = frozenset((META_WSHARD, META_EPISODE, META_CHANNELS))
_CLOCKS: Final[dict[str, tuple[str, np.dtype[Any]]]] = {
    TICKS: ("_ticks", np.dtype("<i4")),
    TIMESTAMPS: ("_timestamps", np.dtype("<i8")),
}
_MOST: Final = 64
# Present from the start: a dictionary that does not grow is copied and changed in half the time.
_PER_FILE: Final = {"extra": None, "_block": None, "_length": 0, "_values": None}
_NO_FLAT_LANES: Final = dict.fromkeys(
    ("_rewards", "_terminations", "_truncations", "_ticks", "_timestamps")
)
# Looking up a member of an enum takes as long as making a channel.
_OBSERVATIONS, _REST = FillPart.OBSERVATIONS, FillPart.REST
_BOOLEAN: Final = np.dtype(np.bool_)
_SIGNAL, _ACTION, _FLAT = "signal", "action", ""
_new_object = object.__new__
_new_array: Final = np.ndarray
# Files up to this size come into memory as a whole.
_SMALL: Final = 1 << 16


# Of a channel: its lane, and its key there or the attribute of the episode; its row in the index and its block;
# its attributes but for those that differ from file to file; the shape and bytes of a step, the dtype of its
# array if that is beyond doubt, and whether it may have one step more than the episode.
# Plain tuples: they are unpacked for every channel of every episode.
_Planned: TypeAlias = tuple[
    str, str, int, str, dict[str, Any], tuple[int, ...], int, "np.dtype[Any] | None", bool
]
_PlannedClock: TypeAlias = tuple[str, int, str, "np.dtype[Any]"]
# Of an array alone: its row in the index and its block, the shape and bytes of a step, the dtype, whether it may
# have one step more than the episode, and whether an empty block means that there is none.
_PlannedArray: TypeAlias = tuple[int, str, tuple[int, ...], int, "np.dtype[Any] | None", bool, bool]


class PlannedPart(NamedTuple):
    """What is to be done for some of the lanes."""

    channels: tuple[_Planned, ...]
    clocks: tuple[_PlannedClock, ...]
    numbers: tuple[int, ...]
    """Their rows in the index, channels first."""


class PlainPlan(NamedTuple):
    """How the lanes of files with one structure are filled."""

    rows: Mapping[str, Row]
    names: Mapping[str, int]
    observations: PlannedPart | None = None
    """None if such an episode is not plain, as the other two."""
    rest: PlannedPart | None = None
    everything: PlannedPart | None = None
    arrays: Mapping[str, _PlannedArray] = MappingProxyType({})
    """What there is, in the order of `everything`, named as `Episode.blocks` does; clocks by their blocks."""

    def read_arrays(
        self, reader: ShardReader, length: int, names: Collection[str] | None
    ) -> dict[str, NDArray[Any]] | None:
        """The arrays of these names, or all, as views of what is in the file.

        None if one of them cannot be had that way: compressed, damaged, not what it should be, or not there.
        """
        planned = self.arrays
        assert self.everything is not None
        if names is not None and not planned.keys() >= set(names):
            return None
        if reader.header.total_file_size > _SMALL:
            views: Iterable[bytes | memoryview | None] = repeat(None)
        elif names is None:
            views = reader.at_hand(self.everything.numbers)
        else:
            views = reader.at_hand([planned[name][0] for name in names])
        found: dict[str, NDArray[Any]] = {}
        for name, view in zip(planned if names is None else names, views):  # noqa: B905 - may have no end
            number, block, shape, step, stored, may_have_one_more, may_be_empty = planned[name]
            if view is None:
                view = reader.memory(block, number)
                if view is None:
                    return None
            nbytes = len(view)
            if may_be_empty and not nbytes and length and names is None:
                continue
            count = length
            if may_have_one_more and nbytes == (length + 1) * step:
                count += 1
            if (
                stored is None
                or nbytes != count * step
                or (stored is _BOOLEAN and bytes(view).translate(None, b"\0\1"))
            ):
                return None
            found[name] = _new_array((count, *shape), stored, view)
        return found

    def lanes(self, reader: ShardReader, length: int, part: FillPart) -> dict[str, Any]:
        """The attributes of an episode that are asked for.

        Of a small file all is in memory, and arrays are made at once, which saves most of their price; what is
        damaged stays to be touched, and says so then.
        """
        asked = self.everything
        if part is _OBSERVATIONS:
            asked = self.observations
        elif part is _REST:
            asked = self.rest
        assert asked is not None
        planned, clocks, numbers = asked
        sizes = reader.sizes()
        if reader.header.total_file_size <= _SMALL:
            views = iter(reader.at_hand(numbers))
        else:
            views = repeat(None)
        found: dict[str, dict[str, Any]] = {_SIGNAL: {}, _ACTION: {}, _FLAT: {}}
        for (lane, key, number, name, fields, shape, step, stored, may_have_one_more), view in zip(  # noqa: B905 - the clocks' views follow
            planned, views
        ):
            nbytes = sizes[number]
            own = fields.copy()
            own["extra"] = {}
            own["_block"] = file_block((reader, name, number, nbytes))
            count = length
            if may_have_one_more and nbytes == (length + 1) * step:
                count += 1
            own["_length"] = count
            if (
                view
                and nbytes == count * step
                and stored is not None
                and (stored is not _BOOLEAN or not bytes(view).translate(None, b"\0\1"))
            ):
                own["_values"] = _new_array((count, *shape), stored, view)
            found[lane][key] = channel = _new_object(Channel)
            channel.__dict__ = own
        lanes: dict[str, Any] = {}
        if part is not _REST:
            lanes["observations"] = observations = new_observations()
            dict.update(observations, found[_SIGNAL])
        if part is not _OBSERVATIONS:
            lanes["actions"] = actions = new_actions()
            dict.update(actions, found[_ACTION])
            lanes.update(_NO_FLAT_LANES)
            lanes.update(
                (attribute, channel)
                for attribute, channel in found[_FLAT].items()
                # An empty block means that the lane is absent.
                if channel._block.nbytes or not length
            )
            for (attribute, number, name, stored), view in zip(clocks, views):  # noqa: B905 - may have no end
                nbytes = sizes[number]
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
    return plan if plan.everything is not None else None


def _plan(rows: Mapping[str, Row], names: Mapping[str, int]) -> PlainPlan:
    channels: dict[tuple[str, str], _Planned] = {}
    clocks: list[_PlannedClock] = []
    for name, number in names.items():
        if name in _IGNORED:
            continue
        if name in _CLOCKS:
            attribute, stored = _CLOCKS[name]
            clocks.append((attribute, number, name, stored))
            continue
        planned = _flat(name, number, rows, names) or _described(name, number, rows.get(name))
        if planned is None or planned[:2] in channels:
            return PlainPlan(rows, names)
        channels[planned[:2]] = planned
    observations = [one for one in channels.values() if one[0] == _SIGNAL]
    rest = [one for one in channels.values() if one[0] != _SIGNAL]
    return PlainPlan(
        rows,
        names,
        _part(observations, []),
        _part(rest, clocks),
        _part(observations + rest, clocks),
        {
            **{
                _array_name(one): (*one[2:4], *one[5:], one[0] == _FLAT)
                for one in (*observations, *rest)
            },
            **{
                block: (at, block, (), dtype.itemsize, dtype, False, True)
                for _, at, block, dtype in clocks
            },
        },
    )


def _array_name(planned: _Planned) -> str:
    return TERMINATED if planned[1] == "_terminations" else planned[3]


def _part(channels: list[_Planned], clocks: list[_PlannedClock]) -> PlannedPart:
    numbers = (*(one[2] for one in channels), *(clock[1] for clock in clocks))
    return PlannedPart(tuple(channels), tuple(clocks), numbers)


def _flat(
    name: str, number: int, rows: Mapping[str, Row], names: Mapping[str, int]
) -> _Planned | None:
    attribute = {REWARD: "_rewards", TERMINATED: "_terminations", TRUNCATED: "_truncations"}.get(
        name
    )
    if name == DONE and TERMINATED not in names:
        attribute = "_terminations"
    if attribute is None or name in rows:
        return None
    dtype = DType.FLOAT32 if name == REWARD else DType.BOOL
    fields = {
        "name": "reward" if name == REWARD else name,
        "dtype": dtype,
        "shape": (),
        "block": name,
        **_PER_FILE,
    }
    return _FLAT, attribute, number, name, fields, (), dtype.size, _array_dtype(dtype), False


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
    stored = _array_dtype(row.dtype)
    lane = _SIGNAL if is_signal else _ACTION
    return lane, row.id, number, name, fields, row.shape, step, stored, is_signal and step > 0


def _array_dtype(dtype: DType) -> np.dtype[Any] | None:
    """None for bf16, which is one thing or another."""
    return _BOOLEAN if dtype is DType.BOOL else dtype._stored
