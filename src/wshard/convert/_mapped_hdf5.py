"""Any HDF5 file, with a mapping that says which dataset becomes what.

`suggest_mapping(path)` looks at a file and returns a first mapping; `load_mapping(path)` reads one from a JSON file.

A mapping is a JSON object. All fields are optional:

`episodes`
    Where the episodes are. Without it the file is one episode. Either a pattern of groups, one for each episode:
    `"data/demo_*"`; `*` stands for any part of one name, and episodes are in the order of their numbers. Or, for
    arrays with the steps of all episodes back to back, an object with one of

    - `{"ends": PATH}`: one number for each episode, the step after its last one, counted from the start of the array;
    - `{"lengths": PATH}`: one number for each episode, its steps;
    - `{"last": [PATH, …]}`: flags of the steps; an episode ends where one of them is set;
    - `{"ids": PATH}`: one number for each step, which changes where an episode starts.
`observations`, `actions`
    Objects: the name of a channel, and the PATH of its dataset or an object `{"path": PATH, …}` with any of `unit`,
    `description`, `modality` (`"rgb"`, `"depth"`, …), `names` (of the elements of a vector), and `encoded` (true for
    rows of bytes that are JPEG, PNG or other images; bytes of varying length need no such hint). Observations have T
    or T + 1 rows, actions T.
`rewards`, `terminations`, `truncations`
    The PATH of one number for each step, `[T]` or `[T, 1]`.
`timestamps`
    `{"path": PATH, "unit": "s"}`: the times of the steps; the unit is `s`, `ms`, `us` or `ns`.
`fps`
    Steps per second.
`env_id`
    The name of the environment.
`extras`
    An object of names and PATHs: arrays that are not steps, such as the matrix of a camera.
`metadata`
    An object of keys and PATHs: datasets with one value, or few, which become metadata (`task`, `success`, `seed`, …).

A PATH starts at the group of the episode, or with `/` at the root of the file. Where episodes lie back to back, an
array of `metadata` or `extras` with one row for each episode gives each episode its own row. Attributes of an
episode's group become metadata, and those of the file `metadata["dataset"]`. Datasets that the mapping does not name
are left out, and the notes of each episode name them.

    {
      "episodes": "data/demo_*",
      "observations": {
        "joint_pos": {"path": "obs/qpos", "unit": "rad"},
        "camera": {"path": "obs/agentview_rgb", "modality": "rgb"}
      },
      "actions": {"action": "actions"},
      "rewards": "rewards",
      "fps": 20
    }
"""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import (
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    did_you_mean,
)
from shard_format.listing import natural_key
from shard_format.transfer import local_file
from wshard._channels import Channel
from wshard._episode import Episode
from wshard._lanes import TIMESTAMPS
from wshard._metadata import Timebase
from wshard.convert._arrays import (
    PartOfRows,
    channel_of,
    picture_channel,
    splits,
    text_channel,
)
from wshard.convert._groups import note_attributes
from wshard.convert._hdf5 import (
    DatasetRows,
    EncodedRows,
    SharedRows,
    as_json_value,
    attributes,
    check_dataset,
    has_member,
    is_text,
    library,
    open_hdf5,
    open_member,
    reading,
    walk,
)
from wshard.convert._model import DatasetReader, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.convert._model import Notes, Probe, ReadOptions

__all__ = ["MappedHdf5Reader", "load_mapping", "recognises", "suggest_mapping"]

_LANES: Final = ("observations", "actions")
_STEPS: Final = {
    "rewards": "reward",
    "terminations": "terminated",
    "truncations": "truncated",
}
_OBJECTS: Final = (*_LANES, "extras", "metadata")
_FIELDS: Final = ("episodes", *_OBJECTS, *_STEPS, "timestamps", "fps", "env_id")
_FLAT: Final = ("ends", "lengths", "last", "ids")
_CHANNEL: Final = {
    **dict.fromkeys(("path", "unit", "description", "modality"), str),
    "names": list,
    "encoded": bool,
}
_KINDS: Final = {str: "text", list: "a list", bool: "true or false"}
_UNITS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1}
_LAST_TIME: Final = 2.0**63
_MOST_STEPS: Final = 1 << 28
_MOST_IN_METADATA: Final = 4096


def recognises(probe: Probe) -> bool:
    """Any HDF5 file with something in it; reading it then says that it needs a mapping."""
    return bool(probe.hdf5_names)


# --- mappings


def load_mapping(path: str) -> dict[str, Any]:
    """Reads a mapping from a JSON file.

    Raises:
        BadMetadata: it is not JSON.
        InvalidArgument: it is not a mapping; names the field.
    """
    mapping = read_json(path)
    try:
        check_mapping(mapping)
    except InvalidArgument as error:
        raise error.located(path=path) from None
    found: dict[str, Any] = mapping
    return found


def check_mapping(mapping: Any) -> None:  # noqa: ANN401 - checked here
    """Refuses a mapping that is not one.

    Raises:
        InvalidArgument: names the field, and what is expected there.
    """
    _check_object(mapping, "mapping", _FIELDS)
    for field in _OBJECTS:
        inner = mapping.get(field, {})
        _check_object(inner, field)
        for name, value in inner.items():
            if field in _LANES and isinstance(value, dict):
                _check_object(value, f"{field}/{name}", tuple(_CHANNEL))
                for key, kind in _CHANNEL.items():
                    if key in value and type(value[key]) is not kind:
                        raise _misfit(f"{field}/{name}/{key}", _KINDS[kind], value[key])
                value = value.get("path")
            _check_path(value, f"{field}/{name}")
    for field in _STEPS:
        if field in mapping:
            _check_path(mapping[field], field)
    episodes = mapping.get("episodes", "")
    if not isinstance(episodes, str):
        _check_object(episodes, "episodes", _FLAT)
        if len(episodes) != 1:
            raise _misfit("episodes", f"one of {', '.join(_FLAT)}", list(episodes))
        ((kind, value),) = episodes.items()
        if isinstance(value, list) and (kind != "last" or not value):
            raise _misfit(f"episodes/{kind}", "the path of a dataset", value)
        for path in _paths(value):
            _check_path(path, f"episodes/{kind}")
    if "timestamps" in mapping:
        times = mapping["timestamps"]
        _check_object(times, "timestamps", ("path", "unit"))
        _check_path(times.get("path"), "timestamps")
        if times.get("unit") not in _UNITS:
            raise _misfit("timestamps/unit", ", ".join(_UNITS), times.get("unit"))
    fps = mapping.get("fps", 1)
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < float("inf"):
        raise _misfit("fps", "a positive number", fps)
    if not isinstance(mapping.get("env_id", ""), str):
        raise _misfit("env_id", "text", mapping["env_id"])


def _check_object(value: Any, field: str, known: Sequence[str] = ()) -> None:  # noqa: ANN401 - checked here
    if not isinstance(value, dict):
        raise _misfit(field, "an object", value)
    for key in value:
        if known and key not in known:
            raise InvalidArgument(
                "unknown field of a mapping",
                entry=field,
                expected=", ".join(known),
                found=repr(key),
                hint=did_you_mean(key, known),
            )


def _check_path(value: Any, field: str) -> None:  # noqa: ANN401 - checked here
    if not isinstance(value, str) or not value.strip("/"):
        raise _misfit(field, "the path of a dataset", value)


def _misfit(field: str, expected: str, found: object) -> InvalidArgument:
    return InvalidArgument(
        "a mapping has a field of the wrong kind", entry=field, expected=expected, found=repr(found)
    )


def _paths(value: Any) -> list[Any]:  # noqa: ANN401 - one path or several
    return value if isinstance(value, list) else [value]


# --- reading


class _EpisodePlace(NamedTuple):
    """Where an episode is."""

    name: str
    group: str
    """The group that its paths start at."""
    start: int = 0
    stop: int | None = None
    """Its steps, where episodes lie back to back; None where arrays are its own."""


class MappedHdf5Reader(DatasetReader):
    """The episodes that a mapping finds. Owns: the open file."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        if options.mapping is None:
            open_hdf5(path).close()  # a damaged file has no layout, either
            raise InvalidArgument(
                "this HDF5 file has no layout that is known",
                path=path,
                hint="say what is where: mapping=wshard.convert.suggest_mapping(path) "
                "is a first guess, see docs/formats.md",
                command=f"'wshard convert {path} map.json --suggest-map' writes a first mapping; "
                "edit it, and give it with --map",
            )
        self._mapping = dict(options.mapping)
        check_mapping(self._mapping)
        self._file = open_hdf5(path)
        self._found: dict[str, DatasetRows] = {}
        self._shared: dict[str, SharedRows] = {}
        self._all: dict[str, Any] | None = None
        self.beside: list[str] = []
        """What lies beside the groups of the episodes."""
        try:
            with reading(path):
                self._places = self._find_episodes()
                self._about = attributes(self._file)
        except ShardError:
            self._file.close()
            raise

    def names(self) -> Sequence[str]:
        return [place.name for place in self._places]

    def close(self) -> None:
        self._file.close()

    def _find_episodes(self) -> list[_EpisodePlace]:
        episodes = self._mapping.get("episodes", "")
        if not episodes:
            return [_EpisodePlace("episode_0", "/")]
        if isinstance(episodes, str):
            found, self.beside = _matching(self._file, episodes.strip("/").split("/"))
            if not found:
                raise InvalidArgument(
                    "no group has the name that the mapping gives",
                    entry=episodes,
                    found=f"at the root: {', '.join(list(self._file)[:10])}",
                )
            found.sort(key=lambda place: natural_key(place.name))
            return found
        ((kind, value),) = episodes.items()
        bounds = self._bounds(kind, [self._index(path) for path in _paths(value)])
        return [
            _EpisodePlace(f"episode_{number}", "/", start, stop)
            for number, (start, stop) in enumerate(bounds)
        ]

    def _index(self, path: str) -> NDArray[Any]:
        """An array that says where episodes are."""
        dataset = _dataset(self._file, path)
        if dataset.dtype.kind not in "biuf" or dataset.size != max(dataset.shape, default=0):
            raise _unfit(dataset, "one number for each step or episode")
        if dataset.size > _MOST_STEPS:
            raise LimitExceeded(
                "too many steps",
                entry=path,
                expected=f"at most {_MOST_STEPS}",
                found=str(dataset.size),
            )
        return np.asarray(dataset[()]).reshape(-1)

    def _bounds(self, kind: str, arrays: list[NDArray[Any]]) -> list[tuple[int, int]]:
        first = arrays[0]
        if kind == "last":
            if any(len(one) != len(first) for one in arrays):
                raise BadValue(
                    "flags have different numbers of steps",
                    entry="episodes",
                    found=str([len(one) for one in arrays]),
                )
            ends = np.logical_or.reduce([one != 0 for one in arrays])
            return splits(np.append(True, ends[:-1])) if len(ends) else []
        if kind == "ids":
            return splits(np.append(True, first[1:] != first[:-1])) if len(first) else []
        if first.dtype.kind not in "iu":
            raise BadValue("not whole numbers", entry="episodes", found=str(first.dtype))
        if (first < 0).any() or (first > _MOST_STEPS).any():
            raise BadValue(
                "not numbers of steps",
                entry="episodes",
                expected=f"0 to {_MOST_STEPS}",
                found=f"{first.min()} to {first.max()}",
            )
        ends = np.cumsum(first.astype(np.int64)) if kind == "lengths" else first.astype(np.int64)
        starts = np.append(0, ends[:-1])
        if (ends < starts).any():
            raise BadValue("ends of episodes are not in order", entry="episodes")
        return [(int(start), int(stop)) for start, stop in zip(starts, ends, strict=True)]

    def read(self, number: int, notes: Notes) -> Episode:
        place = self._places[number]
        mapping = self._mapping
        episode = Episode(
            place.name,
            env_id=mapping.get("env_id", ""),
            timebase=Timebase(tick_hz=mapping.get("fps")),
        )
        with reading(self.path, place.name):
            _Filling(self, place, number, notes).fill(episode, mapping)
        if self._about and "dataset" in episode.metadata:
            notes.dropped("attributes of the file", "the mapping has another metadata 'dataset'")
        elif self._about:
            episode.metadata["dataset"] = dict(self._about)
        return episode

    def group(self, place: _EpisodePlace) -> Any:  # noqa: ANN401 - an h5py.Group
        """The group that the paths of an episode start at."""
        return self._file[place.group]

    def dataset(self, path: str) -> DatasetRows:
        """A dataset that all episodes use; looked for once."""
        if path not in self._found:
            self._found[path] = _dataset(self._file, path)
        return self._found[path]

    def rows(self, path: str) -> SharedRows:
        """The rows of a dataset that all episodes use."""
        if path not in self._shared:
            self._shared[path] = SharedRows(self.dataset(path))
        return self._shared[path]

    def all_datasets(self) -> dict[str, Any]:
        """The datasets of a file where episodes lie back to back, by name."""
        if self._all is None:
            self._all = _members(self._file)
        return self._all

    @property
    def last_stop(self) -> int:
        """The number of steps that belong to episodes, where these lie back to back."""
        return self._places[-1].stop or 0

    @property
    def count(self) -> int:
        """The number of episodes."""
        return len(self._places)


class _Filling:
    """Puts the datasets of one episode where the mapping wants them."""

    def __init__(
        self, reader: MappedHdf5Reader, place: _EpisodePlace, number: int, notes: Notes
    ) -> None:
        self._reader = reader
        self._place = place
        self._number = number
        self._notes = notes
        is_alone = place.stop is None
        self._there = _members(self._group) if is_alone else reader.all_datasets()
        self._used = set[str]()

    @cached_property
    def _group(self) -> Any:  # noqa: ANN401 - an h5py.Group
        return self._reader.group(self._place)

    def fill(self, episode: Episode, mapping: Mapping[str, Any]) -> None:
        for field, block in _STEPS.items():
            if field in mapping:
                channel = self._numbers(mapping[field], block)
                setattr(episode, field, channel)
                if field != "rewards" and channel.dtype != np.bool_:
                    self._notes.cast(mapping[field], channel.dtype, "bool")
        for name, wanted in mapping.get("actions", {}).items():
            episode.actions[name] = self._channel(name, wanted, f"action/{name}")
        for name, wanted in mapping.get("observations", {}).items():
            episode.observations[name] = self._channel(name, wanted, f"signal/{name}")
        self._check_lengths(episode)
        if "timestamps" in mapping:
            episode.timestamps_ns = self._times(episode.length, **mapping["timestamps"])
        for name, path in mapping.get("extras", {}).items():
            extra = channel_of(name, self._own_row(self._find(path)))
            extra.has_stated_length = True
            episode.extras[name] = extra
            self._notes.kept(path, name)
        if self._place.group != "/":
            episode.metadata.update(attributes(self._group))
        for key, path in mapping.get("metadata", {}).items():
            episode.metadata[key] = self._value(path)
            self._notes.kept(path, f"metadata/{key}")
        self._note_rest()

    def _find(self, path: str) -> DatasetRows:
        if self._place.stop is not None or path.startswith("/"):
            dataset = self._reader.dataset(path)
        elif path in self._there:
            dataset = DatasetRows(self._there[path])
            check_dataset(dataset)
        else:
            dataset = _dataset(self._group, path)
        if dataset.name not in self._used:
            self._used.add(dataset.name)
            note_attributes(path, dataset.id, self._notes)
        return dataset

    def _channel(self, name: str, wanted: Any, block: str) -> Channel:  # noqa: ANN401 - of a mapping
        facts = dict(wanted) if isinstance(wanted, dict) else {"path": wanted}
        path = facts.pop("path")
        dataset = self._find(path)
        self._notes.kept(path, block)
        names = facts.pop("names", None)
        if names is not None:
            facts["extra"] = {"names": names}
        is_encoded = facts.pop("encoded", False)
        if not dataset.shape or dataset.is_empty:
            raise _unfit(dataset, "one row for each step")
        start, stop = self._place.start, self._place.stop
        if is_text(dataset) and dataset.ndim == 1:
            return text_channel(name, (bytes(one) for one in dataset[start:stop]), **facts)
        if is_encoded or dataset.dtype.hasobject:
            frames: Any = EncodedRows(dataset, start, stop)
            if not frames.are_images:
                raise _unfit(dataset, "encoded images" if is_encoded else "numbers, text or images")
            video = self._reader.options.video
            return picture_channel(name, frames, video, self._notes, field=path, **facts)
        return channel_of(name, self._rows(path, dataset), path=self._reader.path, **facts)

    def _rows(self, path: str, dataset: DatasetRows) -> DatasetRows | PartOfRows:
        if self._place.stop is None:
            return dataset
        rest = dataset.shape[0] - self._reader.last_stop
        if rest > 0:
            self._notes.dropped(dataset.name, f"{rest} rows after the last episode")
        return PartOfRows(self._reader.rows(path), self._place.start, self._place.stop)

    def _numbers(self, path: str, block: str) -> Channel:
        """One number for each step."""
        dataset = self._find(path)
        if (
            dataset.dtype.kind not in "biuf"
            or dataset.ndim not in (1, 2)
            or dataset.size != dataset.shape[0]
        ):
            raise _unfit(dataset, "one number for each step")
        self._notes.kept(path, block)
        return Channel(block, data=np.asarray(self._rows(path, dataset)[:]).reshape(-1))

    def _times(self, steps: int, path: str, unit: str) -> NDArray[np.int64]:
        """The times of the steps in nanoseconds."""
        values = self._numbers(path, TIMESTAMPS).data
        if len(values) not in (steps, steps + 1):
            raise BadValue(
                "there is not one time for each step", entry=path, expected=steps, found=len(values)
            )
        if len(values) > steps:
            self._notes.dropped(
                f"{path} after the last step", "an episode has a time for each step"
            )
        scale = _UNITS[unit]
        numbers = values[:steps].astype(np.float64) * scale
        # A comparison with not a number is false.
        if not (np.abs(numbers) < _LAST_TIME).all():
            raise BadValue(
                "times are not finite, or too large",
                entry=path,
                expected=f"less than 292 years in {unit}",
            )
        if values.dtype.kind == "f":
            self._notes.cast(path, values.dtype, "int64", f"{unit} to nanoseconds")
            return np.round(numbers).astype(np.int64)
        return values[:steps].astype(np.int64) * int(scale)

    def _own_row(self, dataset: DatasetRows) -> Any:  # noqa: ANN401 - rows
        """What belongs to this episode of an array that is not steps."""
        if self._has_row_for_each(dataset):
            return np.atleast_1d(dataset[self._number : self._number + 1][0])
        return dataset if dataset.shape else np.atleast_1d(dataset[()])

    def _has_row_for_each(self, dataset: DatasetRows) -> bool:
        return self._place.stop is not None and dataset.shape[:1] == (self._reader.count,)

    def _value(self, path: str) -> Any:  # noqa: ANN401 - JSON
        dataset = self._find(path)
        of_all = self._has_row_for_each(dataset)
        if dataset.is_empty or dataset.size > _MOST_IN_METADATA * (
            self._reader.count if of_all else 1
        ):
            raise _unfit(dataset, f"at most {_MOST_IN_METADATA} values; name it under extras")
        own = slice(self._number, self._number + 1)
        return as_json_value(dataset[own][0] if of_all else dataset[()])

    def _check_lengths(self, episode: Episode) -> None:
        steps = episode.length
        if episode.observations and not episode.actions and episode.rewards is None:
            # No other array says how many steps there are.
            steps = min(len(channel) for channel in episode.observations.values())
            episode.length = steps
        for block, channel in episode.blocks():
            allowed = (steps, steps + 1) if block.startswith("signal/") else (steps,)
            if len(channel) not in allowed:
                raise BadValue(
                    "an array has a different number of steps than the episode",
                    entry=block,
                    expected=" or ".join(map(str, allowed)),
                    found=len(channel),
                    hint="name arrays that are not steps under extras",
                )

    def _note_rest(self) -> None:
        name_of = library().h5i.get_name
        rest = [
            name
            for name, item in self._there.items()
            if name_of(item).decode(errors="replace") not in self._used
        ]
        rest += [
            path
            for path in self._reader.beside
            if not any(f"{one}/".startswith(f"{path}/") for one in self._used)
        ]
        for name in rest:
            self._notes.dropped(name, "the mapping does not name it")


def _matching(file: Any, parts: Sequence[str]) -> tuple[list[_EpisodePlace], list[str]]:  # noqa: ANN401 - an h5py.File
    """The groups that a pattern finds, and what else is beside them.

    An episode is named by the parts that have a `*`.
    """
    h5py = library()
    found: list[tuple[tuple[str, ...], str, Any]] = [((), "", file)]
    beside = []
    for part in parts:
        is_pattern = any(mark in part for mark in "*?[")
        below = []
        for names, path, group in found:
            for name in group:
                if not isinstance(name, str) or not fnmatchcase(name, part):
                    beside.append(f"{path}/{name}")
                    continue
                item = open_member(group, name)
                if isinstance(item, h5py.h5g.GroupID):
                    named = (*names, name) if is_pattern else names
                    below.append((named, f"{path}/{name}", h5py.Group(item)))
                else:
                    beside.append(f"{path}/{name}")
        found = below
    places = [_EpisodePlace("_".join(names) or parts[-1], path) for names, path, _ in found]
    return places, beside


def _members(group: Any) -> dict[str, Any]:  # noqa: ANN401 - an h5py.Group; low-level datasets of h5py
    """All datasets below a group, of any type."""
    h5py = library()
    return {name: item for name, item in walk(group) if isinstance(item, h5py.h5d.DatasetID)}


def _dataset(group: Any, path: str) -> DatasetRows:  # noqa: ANN401 - an h5py.Group
    """The dataset at a path, checked: nothing that leads out of the file is followed."""
    h5py = library()
    item = group.file if path.startswith("/") else group
    for part in filter(None, path.split("/")):
        is_group = isinstance(item, h5py.Group)
        if not is_group or not has_member(item, part):
            raise BadValue(
                "the file has no such dataset",
                entry=path if path.startswith("/") else f"{group.name.rstrip('/')}/{path}",
                hint=did_you_mean(part, item) if is_group else None,
            )
        found = open_member(item, part)
        item = h5py.Group(found) if isinstance(found, h5py.h5g.GroupID) else found
    if not isinstance(item, h5py.h5d.DatasetID):
        raise BadValue("this is a group, not a dataset", entry=path)
    dataset = DatasetRows(item)
    check_dataset(dataset)
    return dataset


def _unfit(dataset: DatasetRows, expected: str) -> BadValue:
    return BadValue(
        "a dataset is not what the mapping says",
        entry=dataset.name,
        expected=expected,
        found="nothing" if dataset.is_empty else f"{dataset.dtype} {list(dataset.shape)}",
    )


# --- suggesting


_WORDS: Final = {
    "rewards": ("reward", "rewards"),
    "terminations": (
        *("done", "dones", "is_terminal", "terminal", "terminals", "terminated"),
        *("termination", "terminations"),
    ),
    "truncations": ("timeout", "timeouts", "truncated", "truncation", "truncations"),
}
_IDS: Final = ("episode", "episode_id", "episode_index", "episode_ids", "traj_id", "traj_ids")
_ROOTS: Final = {"obs": "observation", "observations": "observation", "actions": "action"}
_GROUPS: Final = ("obs/", "observation/", "observations/", "action/", "actions/")


def suggest_mapping(path: str) -> dict[str, Any]:
    """A first mapping for an HDF5 file, local or at a URL, by the names and shapes in it. Look at it before you use it.

    Reads no steps, except flags and numbers that say where episodes are.
    """
    with local_file(path) as local, open_hdf5(local) as file, reading(path):
        mapping = _suggest(file)
    check_mapping(mapping)
    return mapping


def _suggest(file: Any) -> dict[str, Any]:  # noqa: ANN401 - an h5py.File
    mapping: dict[str, Any] = {}
    pattern, group = _numbered_groups(file)
    if group is not None:
        mapping["episodes"] = pattern
    found = {name: DatasetRows(item) for name, item in _members(group or file).items()}
    found = {name: one for name, one in found.items() if _is_simple(one)}
    # Most of the data is steps.
    lengths = Counter[int]()
    for one in found.values():
        if one.shape:
            lengths[one.shape[0]] += one.size * one.dtype.itemsize
    rows = max(lengths, key=lambda length: (lengths[length], length), default=0)
    index: dict[str, Any] = {}
    if group is None:
        index = _index_of(found, rows)
        if index:
            mapping["episodes"] = index
    steps = [one.shape[0] for name, one in found.items() if one.shape and _kind(name) == "actions"]
    count = steps[0] if steps else rows
    for name, dataset in found.items():
        if name not in (index.get("ends"), index.get("lengths")):
            _sort_in(mapping, name, dataset, count)
    return mapping


def _is_simple(dataset: DatasetRows) -> bool:
    """Whether an episode could hold it."""
    try:
        check_dataset(dataset)
    except ShardError:
        return False
    is_plain = (is_text(dataset) and dataset.ndim < 2) or dataset.dtype.kind in "biuf"
    return not dataset.is_empty and (is_plain or _is_images(dataset))


def _is_images(dataset: DatasetRows) -> bool:
    """Whether its rows are encoded images."""
    is_rows = dataset.dtype == np.uint8 and dataset.ndim == 2
    is_bytes = library().check_vlen_dtype(dataset.dtype) == np.uint8
    return (is_rows or (is_bytes and dataset.ndim == 1)) and EncodedRows(dataset).are_images


def _numbered_groups(file: Any) -> tuple[str, Any]:  # noqa: ANN401 - an h5py.File; a group
    """The pattern of the groups that differ by a number only, nearest to the root, and the first of them."""
    h5py = library()
    level = [("", file)]
    for _ in range(3):
        below = []
        for prefix, group in level:
            items = {name: open_member(group, name) for name in _first_of_each(group)}
            if any(isinstance(item, h5py.h5d.DatasetID) for item in items.values()):
                continue  # its arrays are those of one episode
            groups = {
                name: h5py.Group(item)
                for name, item in items.items()
                if isinstance(item, h5py.h5g.GroupID)
            }
            for name, one in groups.items():
                numbered = re.fullmatch(r"(.*?)\d+", name)
                if numbered and _members(one):
                    return f"{prefix}{numbered[1]}*", one
            below += [(f"{prefix}{name}/", one) for name, one in groups.items()]
        level = below
    return "", None


def _first_of_each(group: Any) -> list[str]:  # noqa: ANN401 - an h5py.Group
    """Its names, but only the first of those that differ by a number; the most frequent ones come first."""
    found: dict[str, list[str]] = {}
    for name in group:
        found.setdefault(re.sub(r"\d+$", "#", name), []).append(name)
    by_number = sorted(found.values(), key=len, reverse=True)
    return [min(names, key=natural_key) for names in by_number]


def _index_of(found: Mapping[str, DatasetRows], rows: int) -> dict[str, Any]:
    """What says where episodes are, in arrays that hold them back to back; empty if nothing does."""
    for name, dataset in found.items():
        is_short = dataset.shape and 0 < dataset.shape[0] < min(rows, _MOST_STEPS)
        if not is_short or dataset.ndim != 1 or dataset.dtype.kind not in "iu":
            continue
        values = dataset[:].astype(np.int64)
        if values[-1] == rows and (np.diff(values) >= 0).all() and values[0] >= 0:
            return {"ends": name}
        if (values >= 0).all() and values.sum() == rows and len(values) > 1:
            return {"lengths": name}
    steps = {name: one for name, one in found.items() if one.shape in ((rows,), (rows, 1))}
    for name, dataset in steps.items():
        if name.rpartition("/")[2] in _IDS and dataset.dtype.kind in "iu":
            return {"ids": name}
    flags = [name for name in steps if _kind(name) in ("terminations", "truncations")]
    return {"last": flags} if flags else {}


def _kind(name: str) -> str:
    """The field of a mapping that a dataset belongs to by its name."""
    last = name.rpartition("/")[2].lower()
    for field, words in _WORDS.items():
        if last in words:
            return field
    return "actions" if name.lower().startswith("action") or last in ("action", "actions") else ""


def _sort_in(mapping: dict[str, Any], path: str, dataset: DatasetRows, steps: int) -> None:
    """Adds one dataset to a mapping."""
    kind, shape = _kind(path), dataset.shape
    if shape in ((steps,), (steps, 1)) and kind in _WORDS and kind not in mapping:
        mapping[kind] = path
        return
    name = _ROOTS.get(path, path)
    for group in _GROUPS:
        name = name.removeprefix(group)
    if shape and shape[0] in (steps, steps + 1):
        field = "actions" if kind == "actions" and shape[0] == steps else "observations"
        lane = mapping.setdefault(field, {})
        lane[path if name in lane else name] = _described(path, dataset)
    elif dataset.size <= _MOST_IN_METADATA and (not shape or dataset.dtype.kind not in "biuf"):
        mapping.setdefault("metadata", {})[path] = path
    elif dataset.dtype.kind in "biuf":
        mapping.setdefault("extras", {})[path] = path


def _described(path: str, dataset: DatasetRows) -> Any:  # noqa: ANN401 - of a mapping
    if _is_images(dataset):
        return {"path": path, "modality": "rgb", "encoded": True}
    if "depth" in path.lower() and dataset.ndim > 2:
        return {"path": path, "modality": "depth"}
    if dataset.dtype == np.uint8 and dataset.ndim == 4 and dataset.shape[3] == 3:
        return {"path": path, "modality": "rgb"}
    return path
