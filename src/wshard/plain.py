"""The lanes of plain episodes, filled from a plan: files of one data set have the same structure.

An episode is plain if it has nothing but dense observations and actions that its rows describe in the simplest
way, a reward, ends and the clock of its steps. `Router` does the same for every episode, one look at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wshard.blocks import FileBlock
from wshard.channels import Channel, as_modality
from wshard.dtypes import DType
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
    from wshard.episode import Episode
    from wshard.metadata import Row

_BASIC: Final = frozenset(("id", "dtype", "shape", "signal_block", "modality"))
_IGNORED: Final = frozenset((META_WSHARD, META_EPISODE, META_CHANNELS))
_CLOCKS: Final = {TICKS: "_ticks", TIMESTAMPS: "_timestamps"}
_MOST: Final = 64


class _Planned(NamedTuple):
    """A channel of every file with this structure."""

    lane: str
    """The attribute of the episode."""
    key: str
    number: int
    """Its row in the index."""
    name: str
    """Its block."""
    fields: dict[str, Any]
    """The channel's attributes but for those that differ from file to file."""
    step_bytes: int
    may_have_one_more: bool


class _Plan(NamedTuple):
    rows: Mapping[str, Row]
    names: Mapping[str, int]
    channels: list[_Planned] | None
    """None if such an episode is not plain."""
    clocks: list[tuple[str, int, str]]
    """Attribute, row in the index and block."""


# By the identity of parsed rows, which are shared by all files with the same text; a plan keeps them alive.
_plans: dict[int, _Plan] = {}


def fill_plainly(reader: ShardReader, rows: Mapping[str, Row], episode: Episode) -> bool:
    """Fills the lanes of a plain episode; False if it is not one."""
    names = reader.names_by_row
    if names is None:
        return False
    plan = _plans.get(id(rows))
    if plan is None or plan.rows is not rows or plan.names is not names:
        plan = _plan(rows, names)
        if len(_plans) >= _MOST:
            _plans.clear()
        _plans[id(rows)] = plan
    if plan.channels is None:
        return False
    _fill(reader, plan.channels, plan.clocks, episode)
    return True


def _fill(
    reader: ShardReader,
    channels: list[_Planned],
    clocks: list[tuple[str, int, str]],
    episode: Episode,
) -> None:
    length: int = episode._length  # type: ignore[assignment] # a loaded episode has one
    attributes = episode.__dict__
    lanes = {"observations": episode.observations, "actions": episode.actions}
    row_of = reader.index_row
    for lane, key, number, name, fields, step, may_have_one_more in channels:
        row = row_of(number)
        nbytes = row.orig_size
        own = fields.copy()
        own["extra"] = {}
        own["_block"] = FileBlock(reader, name, nbytes, row.flags & 1 == 1)
        own["_length"] = (
            length + 1 if may_have_one_more and nbytes == (length + 1) * step else length
        )
        channel = object.__new__(Channel)
        channel.__dict__ = own
        if lane in lanes:
            dict.__setitem__(lanes[lane], key, channel)
        elif nbytes or not length:  # an empty block means that the lane is absent
            attributes[lane] = channel
    for attribute, number, name in clocks:
        row = row_of(number)
        if row.orig_size or not length:
            attributes[attribute] = FileBlock(reader, name, row.orig_size, row.flags & 1 == 1)


def _plan(rows: Mapping[str, Row], names: Mapping[str, int]) -> _Plan:
    channels: list[_Planned] = []
    clocks: list[tuple[str, int, str]] = []
    used: set[tuple[str, str]] = set()
    for name, number in names.items():
        if name in _IGNORED:
            continue
        if name in _CLOCKS:
            clocks.append((_CLOCKS[name], number, name))
            continue
        planned = _flat(name, number, rows, names) or _described(name, number, rows.get(name))
        if planned is None or (planned.lane, planned.key) in used:
            return _Plan(rows, names, None, [])
        used.add((planned.lane, planned.key))
        channels.append(planned)
    return _Plan(rows, names, channels, clocks)


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
    }
    return _Planned(lane, name, number, name, fields, 4 if is_reward else 1, False)


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
    }
    if row.fields.get("modality") is not None:
        fields["modality"] = as_modality(row.fields["modality"])
    step = product(row.shape) * row.dtype.size
    lane = "observations" if is_signal else "actions"
    return _Planned(lane, row.id, number, name, fields, step, is_signal and step > 0)
