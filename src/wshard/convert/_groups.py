"""The datasets of an HDF5 group as the parts of one episode: what the layouts with a group for each episode share."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadValue, ShardError
from shard_format.extras import require
from wshard._channels import Modality
from wshard._lanes import EXTRA, LANES, block_name
from wshard.convert._arrays import channel_of
from wshard.convert._hdf5 import (
    DatasetRows,
    as_json_value,
    check_links,
    read_attribute,
    rows_channel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wshard._channels import Channel
    from wshard._episode import Episode
    from wshard.convert._model import Notes

__all__ = [
    "Parts",
    "count_steps",
    "is_text",
    "member_group",
    "note_leftovers",
    "picture",
    "reading",
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

    def add(self, lane: str, name: str, dataset: Any, field: str) -> str:  # noqa: ANN401 - an h5py.Dataset
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
        steps = (length, length + 1) if LANES[lane].may_have_one_more else (length,)
        is_steps = lane != EXTRA and shape and shape[0] in steps
        if is_text(dataset) and not (is_steps and len(shape) == 1):
            self.texts[field] = as_json_value(dataset[()])
            self.notes.kept(field, "metadata")
            return ""
        if is_steps and is_text(dataset):
            return self.put(lane, name, rows_channel(name, dataset), field)
        if is_steps:
            facts = picture(field, dataset)
            channel = channel_of(name, DatasetRows(dataset), path=self._path, **facts)
            return self.put(lane, name, channel, field)
        if shape:
            channel = channel_of(field, DatasetRows(dataset), path=self._path)
        else:
            self.scalars.append(field)
            channel = channel_of(field, np.asarray(dataset[()]).reshape(1))
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


@contextmanager
def reading(path: str, entry: str) -> Iterator[None]:
    """Makes errors of the library, which are of any kind for a damaged file, into ours."""
    try:
        yield
    except ShardError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise BadValue(f"the file is damaged: {error}", path=path, entry=entry) from None


def is_text(dataset: Any) -> bool:  # noqa: ANN401 - an h5py.Dataset
    """Whether a dataset holds strings."""
    return require("h5py", "hdf5").check_string_dtype(dataset.dtype) is not None


def picture(field: str, dataset: Any) -> dict[str, Any]:  # noqa: ANN401 - an h5py.Dataset
    """The modality of a camera, by its last name, type and shape; nothing for other datasets."""
    if len(dataset.shape) < 3:
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
    h5py = require("h5py", "hdf5")
    check_links(parent, name)
    try:
        member = parent[name]
    except (KeyError, OSError) as error:
        raise BadValue(
            f"a group cannot be read: {error}", path=parent.file.filename, entry=name
        ) from None
    if not isinstance(member, h5py.Group):
        raise BadValue("a dataset where a group belongs", path=parent.file.filename, entry=name)
    return member


def note_leftovers(group: Any, found: Mapping[str, Any], notes: Notes) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - an h5py.Group
    """Notes what is there besides the datasets below a group: empty groups, and attributes of what is below it.

    Args:
        group: of an episode.
        found: its datasets by their names.
        notes: to add to.

    Returns:
        By name, the attributes that are text or one number, for the metadata of the episode. MimicGen says in those
        of `datagen_info` how to make more demos.
    """
    names: list[str] = []
    group.visit(names.append)
    filled = set(found)
    for name in found:
        while name := name.rpartition("/")[0]:
            filled.add(name)
    inner: dict[str, dict[str, Any]] = {}
    for name in names:
        item = found.get(name)
        if name not in filled:
            notes.dropped(name, "an empty group")
        if item is None:
            item = group[name]
        for key in item.attrs:
            value = _plain_attribute(item, key)
            if value is None:
                notes.dropped(f"{name}.attrs[{key!r}]", "not text, and not one number")
            else:
                inner.setdefault(name, {})[key] = value
                notes.kept(f"{name}.attrs[{key!r}]", "metadata")
    return inner


def _plain_attribute(item: Any, name: str) -> str | float | None:  # noqa: ANN401 - a group or dataset of h5py
    """An attribute that is text or one number; None for others."""
    try:
        value = read_attribute(item, name)
    except (OSError, TypeError):
        return None
    is_number = isinstance(value, np.generic) and value.dtype.kind in "fiub"
    return as_json_value(value) if is_number or isinstance(value, (str, bytes)) else None


def count_steps(found: Mapping[str, Any], tops: Sequence[str], stated: object) -> int:
    """The steps of an episode: as long as the first dataset of these groups, or else as stated."""
    for top in tops:
        for field, dataset in found.items():
            if field.partition("/")[0] == top and dataset.ndim:
                return int(dataset.shape[0])
    return stated if type(stated) is int and 0 <= stated < 1 << 31 else 0
