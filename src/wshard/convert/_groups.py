"""The datasets of an HDF5 group as the parts of one episode: what the layouts with a group for each episode share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadValue
from wshard._channels import Modality
from wshard._lanes import EXTRA, LANES, block_name
from wshard._metadata import MOST_UNBACKED
from wshard.convert._arrays import channel_of
from wshard.convert._hdf5 import (
    as_json_value,
    file_of,
    is_text,
    library,
    open_member,
    read_attribute,
    rows_channel,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wshard._channels import Channel
    from wshard._episode import Episode
    from wshard.convert._hdf5 import Contents, DatasetRows
    from wshard.convert._model import Notes

__all__ = [
    "Parts",
    "count_steps",
    "member_group",
    "note_attributes",
    "note_leftovers",
    "picture",
]

# The first part of the name of a block that the format defines.
_DEFINED: Final = frozenset(filter(None, LANES)) | {"meta", "done", "time", "offsets"}


class Parts:
    """Puts datasets into an episode whose length is known."""

    def __init__(self, episode: Episode, notes: Notes, path: str) -> None:
        self._episode = episode
        self._path = path
        self.notes = notes
        self.texts: dict[str, Any] = {}
        """By field, text that is not one string a step; for the episode's metadata."""
        self.scalars: list[str] = []
        """Fields that are one number; arrays of length 1 in the episode."""

    def add(self, lane: str, name: str, dataset: DatasetRows, field: str) -> str:
        """Adds a dataset to a lane, or to the extras if its first axis is not steps.

        Args:
            lane: `"signal"`, `"action"` or `EXTRA`.
            name: what to call it there.
            dataset: numbers or text, as `datasets` gives it.
            field: its name in the file.

        Returns:
            The block that it is; empty for text that is in `texts`.
        """
        length, shape = self._episode.length, dataset.shape
        if dataset.is_empty:
            self.notes.dropped(field, "a dataset without values")
            return ""
        if library().check_enum_dtype(dataset.dtype) is not None:
            self.notes.dropped(f"{field} names", "the names of its numbers, an enumeration")
        steps = (length, length + 1) if LANES[lane].may_have_one_more else (length,)
        is_steps = lane != EXTRA and shape and shape[0] in steps
        if is_text(dataset) and not (is_steps and len(shape) == 1):
            self.texts[field] = as_json_value(dataset[()])
            self.notes.kept(field, "metadata")
            return ""
        if is_steps:
            facts = picture(field, dataset)
            return self.put(lane, name, rows_channel(name, dataset, **facts), field)
        if shape:
            channel = rows_channel(field, dataset)
        else:
            self.scalars.append(field)
            channel = channel_of(field, np.asarray(dataset[()]).reshape(1), path=self._path)
        return self.put(EXTRA, field, channel, field)

    def put(self, lane: str, name: str, channel: Channel, field: str) -> str:
        """Adds a channel under its name, or under another one if that is taken; returns its block."""
        view: Any = getattr(self._episode, LANES[lane].view)
        wanted = name
        if lane == EXTRA:
            channel.has_stated_length = True
        while name in view or (lane == EXTRA and name.partition("/")[0] in _DEFINED):
            name = f"other/{name}"
        channel.name = name
        view[name] = channel
        block = block_name((lane, name))
        (self.notes.kept if name == wanted else self.notes.renamed)(field, block)
        return block


def picture(field: str, dataset: DatasetRows) -> dict[str, Any]:
    """The modality of a camera, by its last name, type and shape; nothing for other datasets."""
    if dataset.ndim < 3:
        return {}
    name = field.rpartition("/")[2].lower()
    if "depth" in name and dataset.ndim in (3, 4):
        return {"modality": Modality.DEPTH}
    if (
        dataset.dtype == np.uint8
        and dataset.ndim == 4
        and 3 in (dataset.shape[1], dataset.shape[3])
    ):
        return {"modality": Modality.RGB}
    return {}


def member_group(parent: Any, name: str) -> Any:  # noqa: ANN401 - groups of h5py
    """A group by its name, checked."""
    h5py = library()
    member = open_member(parent, name)
    if not isinstance(member, h5py.h5g.GroupID):
        raise BadValue("a dataset where a group belongs", path=file_of(parent), entry=name)
    return h5py.Group(member)


def note_leftovers(found: Contents, notes: Notes) -> dict[str, dict[str, Any]]:
    """Notes what is there besides the datasets below a group: empty groups, and attributes of what is below it.

    Returns:
        By name, the attributes that are text or one number, for the metadata of the episode. MimicGen says in those
        of `datagen_info` how to make more demos.
    """
    h5py = library()
    filled = set[str]()
    for name in found.arrays:
        while (name := name.rpartition("/")[0]) and name not in filled:
            filled.add(name)
    groups: dict[str, Any] = {}
    for name, item in found.others.items():
        if isinstance(item, h5py.h5g.GroupID):
            groups[name] = h5py.Group(item)
        else:
            notes.dropped(name, "a named type without data")
            note_attributes(name, item, notes)
        if name in groups and name not in filled:
            notes.dropped(name, "an empty group")
    inner: dict[str, dict[str, Any]] = {}
    for name, item in {**groups, **found.arrays}.items():
        if h5py.h5a.get_num_attrs(item.id):
            inner[name] = _plain_attributes(name, item, notes)
    return {name: told for name, told in inner.items() if told}


def _plain_attributes(name: str, item: Any, notes: Notes) -> dict[str, Any]:  # noqa: ANN401 - a group or dataset of h5py
    """The attributes that are text or one number; notes what becomes of all."""
    found: dict[str, Any] = {}
    for key in item.attrs:
        try:
            value = read_attribute(item, key)
        except TypeError:  # a type that NumPy does not have
            value = None
        is_number = isinstance(value, np.generic) and value.dtype.kind in "fiub"
        if is_number or isinstance(value, (str, bytes)):
            found[key] = as_json_value(value)
            notes.kept(f"{name}.attrs[{key!r}]", "metadata")
        else:
            notes.dropped(f"{name}.attrs[{key!r}]", "not text, and not one number")
    return found


def note_attributes(name: str, item: Any, notes: Notes) -> None:  # noqa: ANN401 - a low-level object of h5py
    """Notes that the attributes of a dataset or group are lost."""
    h5a = library().h5a
    if h5a.get_num_attrs(item):
        names: list[bytes] = []
        h5a.iterate(item, names.append)
        told = ", ".join(each.decode(errors="replace") for each in names)
        notes.dropped(f"{name} attributes", told)


def count_steps(found: Mapping[str, DatasetRows], tops: Sequence[str], stated: object) -> int:
    """The steps of an episode: as long as the first dataset of these groups, or else as stated."""
    for top in tops:
        for field, dataset in found.items():
            if field.partition("/")[0] == top and dataset.ndim and not dataset.is_empty:
                return dataset.shape[0]
    return stated if type(stated) is int and 0 <= stated <= MOST_UNBACKED else 0
