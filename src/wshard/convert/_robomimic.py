"""robomimic HDF5, and what has its layout: LIBERO, MimicGen, RoboCasa, and raw files of robosuite.

A file has a group `data` with a group `demo_<i>` for each episode, and lists of demos for training and validation in
`mask`. Per step it has `obs`, `actions`, `rewards`, `dones` and `states`. `next_obs[t]` mostly repeats `obs[t + 1]`: if
it does so to the bit, the episode has T + 1 observations instead. `rewards[t]` and `dones[t]` follow from `actions[t]`.
`dones` becomes `terminations`, as robomimic uses it, though some writers also set it where a demo was merely cut.

Pictures stay as they are stored: where LIBERO says `macros_image_convention = "opengl"`, their rows run from bottom to
top. The observations of LIBERO's own script were taken after the action of the same row, its `states` before it.

What not every episode has is in `metadata["dataset"]` (attributes of `data`) and `metadata["robomimic"]` (what
the writer needs to make the same file again). Isaac Lab has the same layout, with `states/<kind>/<name>/…` as groups and without rewards and ends; its `initial_state/…`, which has one row,
is in the episode's extras. Its `obs` often holds an `actions` in a different representation than the actions themselves.
"""

from __future__ import annotations

import json
import math
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import BadValue, LimitExceeded, ShardIOError, UnsafePath
from shard_format.extras import require
from shard_format.listing import natural_key
from wshard._blocks import Extra
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel
from wshard._episode import Episode
from wshard._lanes import (
    EXTRA,
    LANES,
    REWARD,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    block_name,
)
from wshard._metadata import Timebase
from wshard._values import DType
from wshard.convert._arrays import WithNext, bits_of, channel_of, note_pixels, text_channel
from wshard.convert._groups import (
    Parts,
    count_steps,
    member_group,
    note_attributes,
    note_leftovers,
    picture,
)
from wshard.convert._hdf5 import (
    as_json_value,
    contents,
    datasets,
    has_member,
    is_text,
    open_hdf5,
    parse_json_text,
    read_attribute,
    reading,
    rows_channel,
)
from wshard.convert._hdf5_target import Hdf5Target
from wshard.convert._model import DatasetReader, DatasetWriter, Notes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wshard._lanes import Address
    from wshard.convert._arrays import ForeignRows
    from wshard.convert._hdf5 import DatasetRows
    from wshard.convert._model import Probe, ReadOptions, WriteOptions

_DEMO: Final = re.compile(r"demo_[0-9]+")
_PIECE: Final = 8 << 20
# What is compared at once stays in the cache of the processor.
_COMPARED: Final = 1 << 20
_MOST_IN_MEMORY: Final = 256 << 20
_LARGEST_TEXT: Final = 16 << 20
_UPSIDE_DOWN: Final = "rows run from bottom to top (OpenGL)"
_LANGUAGE: Final = "language_instruction"
_ACTIONS: Final = ("action_dict", "actions_abs", "processed_actions")
# Their first axis is not steps, even where it happens to be as long.
_NOT_STEPS: Final = ("initial_state", "src_demo_inds")
# What says how long a demo is, if it has no actions.
_STEPS: Final = ("actions", "action_dict", "obs", "states")
_FLAGS: Final = ("|b1", *(f"{kind}{size}" for kind in ("<i", "<u") for size in "248"), "|i1", "|u1")
_GYM: Final = 2
"""robomimic's number for environments that are made with Gymnasium."""


# --- recognising


def recognises(probe: Probe) -> bool:
    """Whether it has demos as robomimic and Isaac Lab store them."""
    h5py = require("h5py", "hdf5") if probe.is_hdf5 else None
    try:
        if h5py is None or "data" not in probe.hdf5_names:
            return False
        with open_hdf5(probe.path) as file, reading(probe.path, "data"):
            data = member_group(file, "data")
            return "env_args" in data.attrs or any(_DEMO.fullmatch(name) for name in data)
    except (ShardIOError, BadValue, LimitExceeded, UnsafePath):
        return False  # damaged, or something else


# --- reading


class RobomimicReader(DatasetReader):
    """The demos of a file, by number."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._file = open_hdf5(path)
        self._memory: dict[WithLast, NDArray[Any]] = {}
        self._of_masks = Notes()
        try:
            with reading(path, "data"):
                self._data = member_group(self._file, "data")
                self._names = sorted(self._data, key=natural_key)
        except BaseException:
            self._file.close()
            raise

    def names(self) -> Sequence[str]:
        return self._names

    def close(self) -> None:
        self._memory.clear()
        self._file.close()

    @cached_property
    def _dataset(self) -> Attributes:
        return Attributes(self._data)

    @cached_property
    def _environment(self) -> Environment:
        return _environment(self._dataset.values)

    @cached_property
    def _masks(self) -> dict[str, list[str]]:
        """By filter, the demos that it lists."""
        if not has_member(self._file, "mask"):
            return {}
        masks: dict[str, list[str]] = {}
        group = member_group(self._file, "mask")
        note_attributes("mask", group.id, self._of_masks)
        for name, dataset in datasets(group):
            note_attributes(f"mask/{name}", dataset.id, self._of_masks)
            if not is_text(dataset) or dataset.ndim != 1:
                raise BadValue(
                    "a mask is not a list of demos", path=self.path, entry=f"mask/{name}"
                )
            masks[name] = as_json_value(dataset[()])
        return masks

    @cached_property
    def _splits(self) -> dict[str, list[str]]:
        """By demo, the filters that list it."""
        splits: dict[str, list[str]] = {}
        for mask, demos in self._masks.items():
            for demo in dict.fromkeys(demos):
                splits.setdefault(demo, []).append(mask)
        return splits

    @cached_property
    def _unusual(self) -> dict[str, str]:
        """What is in the file and in no episode, and why."""
        place = {name: at for at, name in enumerate(self._names)}
        unusual = {
            name: "not part of the layout" for name in self._file if name not in ("data", "mask")
        }
        if len(self._file.attrs):
            unusual["attributes of the file"] = "not part of the layout"
        for name, demos in self._masks.items():
            there = [place[demo] for demo in demos if demo in place]
            if len(there) < len(demos):
                unusual[f"mask/{name}"] = "some of its demos are not in the file"
            elif there != sorted(set(there)):
                unusual[f"mask/{name}"] = "the order of its demos, which becomes that of the file"
        return unusual

    def read(self, number: int, notes: Notes) -> Episode:
        name = self._names[number]
        self._memory.clear()
        with reading(self.path, name):
            return self._read(name, member_group(self._data, name), notes)

    def _read(self, name: str, demo: Any, notes: Notes) -> Episode:  # noqa: ANN401 - an h5py.Group
        there = contents(demo)
        found = there.arrays
        attributes, dataset = Attributes(demo), self._dataset
        facts = self._environment
        episode = Episode(
            name,
            env_id=facts.env_id,
            length=count_steps(found, _STEPS, attributes.values.get("num_samples")),
            timebase=Timebase(tick_hz=facts.rate_hz),
        )
        inner = note_leftovers(there, notes)
        for field, why in self._unusual.items():
            notes.dropped(field, why)
        for change in self._of_masks.changes:
            notes.add(change)
        parts, paths, own = Parts(episode, notes, self.path), dict[str, str](), dict[str, Any]()
        own["dones"] = self._add_ends(episode, found, notes)
        folded = self._fold(parts, found, episode.length)
        for field, array in found.items():
            if field in folded:
                continue
            if _add_prediction(episode, field, array):
                notes.kept(field, field)
                continue
            lane, wanted = _place(field)
            block = parts.add(lane, wanted, array, field)
            is_one_more = lane == "signal" and array.shape[:1] == (episode.length + 1,)
            if block and (_default_path(block) != field or is_one_more):
                paths[block] = field
        if facts.convention == "opengl":
            for channel in episode.observations.values():
                if channel.modality in (Modality.RGB, Modality.DEPTH):
                    channel.description = _UPSIDE_DOWN
        self._add_attributes(episode, attributes, notes)
        own.update(attributes.described(), paths=paths, texts=parts.texts, scalars=parts.scalars)
        own.update(masks=list(self._masks), dataset_types=dataset.types, inner_attributes=inner)
        for field in dataset.values:
            notes.kept(f"data.attrs[{field!r}]", "metadata/dataset")
        for field in (*dataset.dropped, *dataset.arrays):
            notes.dropped(f"data.attrs[{field!r}]", "not text, and not one number")
        episode.metadata |= {
            "dataset": dict(dataset.values),
            # Also if nothing else is there: it says that the dataset facts are attributes.
            "robomimic": {"attributes": {}, **{key: value for key, value in own.items() if value}},
        }
        if self._masks:
            episode.metadata["splits"] = list(self._splits.get(name, ()))
        for mask in self._splits.get(name, ()):
            notes.kept(f"mask/{mask}", "metadata/splits")
        self._add_task(episode, _task(attributes.values, dataset.values), notes)
        return episode

    def _add_task(self, episode: Episode, task: str, notes: Notes) -> None:
        if not task:
            return
        episode.metadata["task"] = task
        if len(task) * episode.length > _LARGEST_TEXT:
            notes.dropped(_LANGUAGE, "too long to be repeated at each step; it is in the metadata")
        elif _LANGUAGE not in episode.observations:
            episode.observations[_LANGUAGE] = text_channel(
                _LANGUAGE, [task] * episode.length, modality=Modality.LANGUAGE
            )

    def _add_ends(self, episode: Episode, found: dict[str, DatasetRows], notes: Notes) -> str:
        """Rewards and flags, where they are one number a step; the type of `dones`."""
        length, dones = (episode.length,), ""
        for field, kinds in (
            *(("rewards", "fiub"), ("dones", "iub")),
            *(("truncations", "b"), ("timestamps_ns", "i")),
        ):
            array = found.get(field)
            if array is None or array.shape != length or array.dtype.kind not in kinds:
                continue
            channel = rows_channel(field, array)
            if field == "rewards":
                channel.name = "reward"
                episode.rewards = channel
                notes.kept(field, "reward")
            elif field == "timestamps_ns":
                episode.timestamps_ns = channel.data
                notes.kept(field, TIMESTAMPS)
            elif field == "truncations":
                episode.truncations = channel
                notes.kept(field, TRUNCATED)
            else:
                values = channel.data
                if values.size and (values.max() > 1 or values.min() < 0):
                    continue  # not flags: kept as numbers
                episode.terminations = values != 0
                dones = array.dtype.str
                notes.kept(field, TERMINATED)
            del found[field]
        return dones

    def _fold(self, parts: Parts, found: Mapping[str, DatasetRows], length: int) -> set[str]:
        """Adds observations T + 1 where `next_obs` repeats them; returns the fields that this provides."""
        folded: set[str] = set()
        for field, after in found.items():
            top, _, key = field.partition("/")
            now = found.get(f"obs/{key}")
            if top != "next_obs" or now is None or now.shape[:1] != (length,):
                continue
            if not length or not _is_alike(now, after):
                continue
            rows = WithLast(now, after)
            if not rows.is_repeated(self._memory):
                continue
            channel = channel_of(key, rows, path=self.path, **picture(key, now))
            block = parts.put("signal", key, channel, f"obs/{key}")
            parts.notes.kept(field, f"{block} one step later")
            folded |= {field, f"obs/{key}"}
        return folded

    def _add_attributes(self, episode: Episode, attributes: Attributes, notes: Notes) -> None:
        """Moves attributes of the demo to where episodes have them."""
        values = attributes.values
        for field in values:
            notes.kept(f"attrs[{field!r}]", "metadata")
        stated = values.get("num_samples", episode.length)
        if stated != episode.length:
            notes.cast("attrs['num_samples']", stated, episode.length, "the number of actions")
        if isinstance(values.get("model_file"), str):
            episode.extras["model_file"] = values.pop("model_file").encode()
            notes.kept("attrs['model_file']", "model_file")
        for field, array in attributes.arrays.items():
            Parts(episode, notes, self.path).put(
                EXTRA, field, Channel(field, data=array), f"attrs[{field!r}]"
            )
        for field in attributes.dropped:
            notes.dropped(f"attrs[{field!r}]", "not text, numbers or one number")
        if isinstance(values.get("success"), bool):
            episode.metadata["success"] = values.pop("success")
        if type(values.get("seed")) is int:
            episode.metadata["seed"] = values.pop("seed")
        cameras = parse_json_text(values.get("camera_info"))
        if isinstance(cameras, dict):
            episode.metadata["camera_info"] = as_json_value(cameras)
        more = parse_json_text(values.get("metadata"))
        if isinstance(more, dict):
            episode.metadata |= as_json_value(more)
            del values["metadata"]


class Attributes:
    """The attributes of a group, by what becomes of them."""

    def __init__(self, group: Any) -> None:  # noqa: ANN401 - an h5py.Group
        self.values: dict[str, Any] = {}
        """Text, numbers and lists of text as JSON."""
        self.types: dict[str, str] = {}
        """The types of numbers that JSON would give back as another."""
        self.arrays: dict[str, NDArray[Any]] = {}
        """Arrays of numbers."""
        self.dropped: list[str] = []
        for name in group.attrs:
            try:
                value = read_attribute(group, name)
            except (BadValue, TypeError):
                self.dropped.append(name)
                continue
            if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "fiub":
                self.arrays[name] = value
            elif isinstance(value, (str, bytes, np.generic)) and not _is_odd(value):
                self.values[name] = as_json_value(value)
                if isinstance(value, np.generic) and value.dtype.str not in ("<i8", "|b1"):
                    self.types[name] = value.dtype.str
            elif isinstance(value, np.ndarray) and all(
                isinstance(one, (str, bytes)) for one in value.flat
            ):
                self.values[name] = as_json_value(value)
            else:
                self.dropped.append(name)

    def described(self) -> dict[str, Any]:
        """What a writer needs to make them again."""
        return {
            "attributes": self.values,
            "types": self.types,
            "array_attributes": list(self.arrays),
        }


def _is_odd(value: Any) -> bool:  # noqa: ANN401 - of an attribute
    return isinstance(value, np.generic) and value.dtype.kind not in "fiubSU"


class WithLast(WithNext):
    """Observations as T + 1 rows, which stay in memory if they were compared there."""

    def __init__(self, now: DatasetRows, after: DatasetRows) -> None:
        super().__init__(now, after)
        self._stored = now
        self._length = now.shape[0]
        self._memory: dict[WithLast, NDArray[Any]] = {}
        self._row_bytes = math.prod(now.shape[1:]) * now.dtype.itemsize

    def is_repeated(self, memory: dict[WithLast, NDArray[Any]]) -> bool:
        """Whether each row of those that follow is the next observation, to the bit.

        The observations stay in `memory` until its owner empties it, if there is room: mostly they are wanted next.
        """
        room = _MOST_IN_MEMORY - sum(array.nbytes for array in memory.values())
        kept: NDArray[Any] | None = None
        if self.shape[0] * self._row_bytes <= room:
            # With room for the last row, which would otherwise need a copy of all.
            self._memory, kept = memory, self._stored.new_array(self.shape[0])
            memory[self] = kept
            self._stored.read_into(kept[: self._length])
        now: ForeignRows | NDArray[Any] = self._now if kept is None else kept
        step = max(1, _COMPARED // max(1, self._row_bytes))
        for at in range(0, self._length, step):
            end = min(at + step, self._length)
            after = self._after[at:end]
            if kept is not None and end == self._length:
                kept[end] = after[-1]
            here = now[at + 1 : end + 1]
            if not np.array_equal(bits_of(here), bits_of(after[: len(here)])):
                memory.pop(self, None)
                return False
        return True

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        known = self._memory.get(self)
        return super().__getitem__(rows) if known is None else known[rows]


def _is_alike(now: DatasetRows, after: DatasetRows) -> bool:
    """Whether two datasets hold numbers of the same type in the same shape."""
    return bool(now.shape == after.shape and now.dtype == after.dtype and now.dtype.kind in "fiub")


class Environment(NamedTuple):
    """What the attributes of a file say about its environment."""

    env_id: str
    rate_hz: float | None
    convention: str
    """In which order pictures have their rows; empty if the file does not say."""


def _environment(attributes: Mapping[str, Any]) -> Environment:
    args = parse_json_text(attributes.get("env_args"))
    args = args if isinstance(args, dict) else {}
    names = (args.get("env_name"), attributes.get("env_name"), attributes.get("env"))
    # Raw files of robosuite have what it calls env_kwargs elsewhere in an attribute of its own.
    options = args.get("env_kwargs") or parse_json_text(attributes.get("env_info"))
    rate: Any = options.get("control_freq") if isinstance(options, dict) else None
    rate = _isaac_rate(args.get("sim_args")) if rate is None else rate
    is_rate = type(rate) in (int, float) and 0 < rate < math.inf
    return Environment(
        next((name for name in names if isinstance(name, str)), ""),
        float(rate) if is_rate else None,
        str(attributes.get("macros_image_convention", "")),
    )


def _isaac_rate(simulation: Any) -> float | None:  # noqa: ANN401 - of JSON
    """Steps a second: Isaac Lab states the time of a step of the simulator, and how many of them an action lasts."""
    if not isinstance(simulation, dict):
        return None
    times: list[Any] = [simulation.get("dt"), simulation.get("decimation")]
    if not all(type(one) in (int, float) and 1e-9 < one < 1e9 for one in times):
        return None
    # Rounded, because `dt` is often a fraction such as 1/120.
    return round(1 / float(times[0] * times[1]), 6)


def _task(attributes: Mapping[str, Any], dataset: Mapping[str, Any]) -> str:
    """The instruction: RoboCasa has one for each demo, LIBERO one for all; empty without one."""
    for text, key in (
        (attributes.get("ep_meta"), "lang"),
        (dataset.get("problem_info"), _LANGUAGE),
    ):
        facts = parse_json_text(text)
        told = facts.get(key) if isinstance(facts, dict) else None
        if isinstance(told, list) and all(isinstance(one, str) for one in told):
            told = "".join(told)
        if isinstance(told, str) and told:
            return told.strip('"')
    return ""


def _place(field: str) -> tuple[str, str]:
    """The lane and name of a dataset of a demo."""
    top, _, rest = field.partition("/")
    if top == "actions":
        return "action", rest or "action"
    if top in _ACTIONS:
        return "action", field
    if top == "obs":
        return "signal", rest or "observation"
    return (EXTRA if top in _NOT_STEPS else "signal"), field


def _add_prediction(episode: Episode, field: str, dataset: DatasetRows) -> bool:
    """Adds a dataset if it is one where the writer puts what models predicted."""
    lane, *keys = field.split("/")
    after_channel = {"omen": 1, "uncert": 2}.get(lane, len(keys))
    is_steps = dataset.ndim and dataset.shape[0] in (episode.length, episode.length + 1)
    if len(keys) <= after_channel or not is_steps:
        return False
    # A channel may have slashes in its name.
    channel, rest = "/".join(keys[:-after_channel]), keys[-after_channel:]
    view: Any = getattr(episode, LANES[lane].view)[channel]
    for key in rest[:-1]:
        view = view[key]
    view[rest[-1]] = rows_channel(rest[-1], dataset)
    return True


# --- writing


class RobomimicWriter(DatasetWriter):
    """A file with one demo for each episode."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        self._target = Hdf5Target(path)
        self._data = self._target.file.create_group("data")
        self._masks: dict[str, list[str]] = {}
        self._facts: dict[str, Any] | None = None
        self._total = 0

    def write(self, episode: Episode, notes: Notes) -> None:
        with self._target.writing():
            self._write(episode, notes)

    def _write(self, episode: Episode, notes: Notes) -> None:
        name = episode.id
        if not _DEMO.fullmatch(name) or name in self._data:
            number = len(self._data)
            while (name := f"demo_{number}") in self._data:
                number += 1
            notes.renamed("id", "the name of the demo")
        demo = self._data.create_group(name)
        try:
            DemoWriter(self._target, demo, episode, notes).write()
            self._take_facts(episode, notes)
        except BaseException:
            # Whoever goes on after the error finds no half of a demo.
            del self._data[name]
            raise
        for mask in strings(own_facts(episode).get("masks")):
            self._masks.setdefault(mask, [])
        for mask in dict.fromkeys(strings(episode.metadata.get("splits"))):
            self._masks.setdefault(mask, []).append(name)
        self._total += episode.length

    def _take_facts(self, episode: Episode, notes: Notes) -> None:
        """The attributes of `data` are those of the first episode."""
        own, dataset = own_facts(episode), episode.metadata.get("dataset")
        if own:
            facts = dict(dataset) if isinstance(dataset, dict) else {}
        else:
            options = {"control_freq": rate} if (rate := episode.timebase.tick_hz) else {}
            env_args = {"env_name": episode.env_id, "type": _GYM, "env_kwargs": options}
            facts = {"env_args": json.dumps(env_args), "total": 0}
            notes.filled("env_args", "made of the environment and the rate, as one of Gymnasium")
            if dataset is not None:
                facts["dataset"] = json.dumps(as_json_value(dataset))
                notes.kept("metadata/dataset", "data.attrs['dataset']")
        if self._facts is None:
            self._facts = facts
            put_attributes(self._data, facts, own.get("dataset_types"), notes)
        counts = ("total", "num_demos")
        for key, value in facts.items():
            if self._facts.get(key) != value and key not in counts:
                notes.dropped(f"metadata/dataset/{key}", "the file has that of its first demo")

    def finish(self) -> None:
        facts = {"total": 0} if self._facts is None else self._facts
        file = self._target.file
        with self._target.writing():
            for key, count in (("total", self._total), ("num_demos", len(self._data))):
                if key in facts:
                    self._data.attrs[key] = count
            for mask, demos in self._masks.items():
                path = free_path(file, f"mask/{mask}")
                file.create_dataset(path, data=np.array(demos, dtype="S"))
        self._target.close()

    def abandon(self) -> None:
        self._target.close()


def own_facts(episode: Episode) -> dict[str, Any]:
    """What the reader kept for the writer; empty for an episode of another origin."""
    found = episode.metadata.get("robomimic")
    return found if isinstance(found, dict) else {}


def strings(value: Any) -> list[str]:  # noqa: ANN401 - of metadata
    """The strings of a list, or one string; nothing of anything else."""
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


class DemoWriter:
    """Writes one episode into its group."""

    def __init__(self, target: Hdf5Target, demo: Any, episode: Episode, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group
        self._target, self._demo, self._episode, self._notes = target, demo, episode, notes
        self._own = own_facts(episode)
        paths = self._own.get("paths")
        known = paths.items() if isinstance(paths, dict) else ()
        self._paths = {block: path for block, path in known if isinstance(path, str)}
        self._length = episode.length

    def write(self) -> None:
        """Writes every part, and the attributes."""
        actions = [part for at, part in self._episode.parts.items() if at[0] == "action"]
        if len(actions) == 1 and not self._own:
            (at,) = (at for at in self._episode.parts if at[0] == "action")
            self._paths = {block_name(at): "actions"}
        for address, part in self._episode.parts.items():
            self._write_part(address, part)
        if "actions" not in self._demo and not self._own:
            self._write_all_actions(actions)
        texts = self._own.get("texts")
        for field, text in (texts if isinstance(texts, dict) else {}).items():
            self._write_text(field, text, f"metadata/robomimic/texts/{field}")
        inner = self._own.get("inner_attributes")
        for field, values in (inner if isinstance(inner, dict) else {}).items():
            if field in self._demo and isinstance(values, dict):
                put_attributes(self._demo[field], values, None, self._notes)
        self._write_attributes()

    # --- arrays

    def _write_part(self, address: Address, part: Any) -> None:  # noqa: ANN401 - of any lane
        lane, block = address[0], block_name(address)
        if lane == EXTRA:
            self._write_extra(address[1], part)
        elif lane in ("signal", "action", "omen", "uncert", REWARD, TERMINATED, TRUNCATED):
            self._write_channel(lane, block, part)
        elif lane == TIMESTAMPS:
            self._store("timestamps_ns", Channel(data=self._episode.timestamps_ns), block)
        elif lane != TICKS or not np.array_equal(self._episode.ticks, range(self._length)):
            self._notes.dropped(block, "robomimic has no place for it")

    def _write_channel(self, lane: str, block: str, channel: Channel) -> None:
        notes, steps = self._notes, (self._length, self._length + LANES[lane].may_have_one_more)
        if channel.has_own_clock or channel.length not in steps:
            notes.dropped(block, "it has a different clock than the steps")
        elif isinstance(channel, TextChannel):
            is_short = channel.length == self._length
            if block != f"signal/{_LANGUAGE}" or not (is_short and self._is_task(channel)):
                self._write_text(self._paths.get(block, _default_path(block)), channel[:], block)
        elif isinstance(channel, RaggedChannel):
            notes.dropped(block, "steps have different numbers of items")
        else:
            self._note_description(block, channel)
            note_pixels(channel, block, notes)
            self._write_steps(lane, block, channel)

    def _is_task(self, channel: TextChannel) -> bool:
        task = self._episode.metadata.get("task")
        is_task = all(text == task for text in channel[:])
        if is_task:
            self._notes.kept(f"signal/{_LANGUAGE}", "the task")
        return is_task

    def _write_steps(self, lane: str, block: str, channel: Channel) -> None:
        length, stated = self._length, self._paths.get(block)
        if lane == TERMINATED:
            kind = self._own.get("dones")
            self._store("dones", channel, block, dtype=kind if kind in _FLAGS else "<i8")
        elif lane in (REWARD, TRUNCATED):
            self._store("rewards" if lane == REWARD else "truncations", channel, block)
        elif lane == "signal" and stated is None and channel.length > length > 0:
            name = block.partition("/")[2]
            self._store(f"obs/{name}", channel, block, 0, length)
            self._store(f"next_obs/{name}", channel, block, 1, length + 1)
        else:
            self._store(stated or _default_path(block), channel, block)

    def _store(
        self,
        path: str,
        channel: Channel,
        block: str,
        start: int = 0,
        stop: int | None = None,
        dtype: str | None = None,
    ) -> None:
        """Writes some steps of a channel, in pieces."""
        stop = channel.length if stop is None else stop
        kind = np.dtype(dtype) if dtype else channel.dtype
        if channel.dtype_name is DType.BFLOAT16:
            kind = np.dtype("<f4")
            self._notes.cast(block, "bf16", "f32", "HDF5 has no bf16")
        free = free_path(self._demo, path)
        (self._notes.kept if free == path else self._notes.renamed)(block, free)
        dataset = self._demo.create_dataset(free, (stop - start, *channel.step_shape), kind)
        step = max(1, _PIECE // max(1, channel.step_bytes))
        for at in range(start, stop if dataset.size else start, step):
            end = min(at + step, stop)
            values = channel.read_steps(at, end)
            if channel.dtype_name is DType.BFLOAT16:
                values = channel.dtype_name.as_numbers(values)
            self._target.put(dataset, slice(at - start, end - start), values)

    def _write_all_actions(self, actions: Sequence[Channel]) -> None:
        """Several actions side by side: robomimic learns from one array."""
        dense = [
            each
            for each in actions
            if not isinstance(each, RaggedChannel) and each.length == self._length
        ]
        if not dense:
            return
        width = sum(math.prod(each.step_shape) for each in dense)
        dtype = np.result_type(np.float32, *(each.dtype for each in dense))
        dataset = self._demo.create_dataset("actions", (self._length, width), dtype)
        step = max(1, _PIECE // max(1, width * dtype.itemsize))
        for at in range(0, self._length, step):
            end = min(at + step, self._length)
            columns = [
                each.dtype_name.as_numbers(each.read_steps(at, end)).reshape(end - at, -1)
                for each in dense
            ]
            self._target.put(dataset, slice(at, end), np.concatenate(columns, axis=1))
        self._notes.filled("actions", "the columns of all actions side by side")

    def _write_extra(self, name: str, part: Any) -> None:  # noqa: ANN401 - Extra or Channel
        path = self._paths.get(name, name)
        if isinstance(part, Extra):
            data = bytes(part.data)
            if name == "model_file":
                put_attributes(self._demo, {name: data.decode(errors="replace")}, None, self._notes)
                self._notes.kept(name, "attrs['model_file']")
            else:
                self._notes.cast(name, "bytes", "an array of u8")
                self._store(path, Channel(name, data=np.frombuffer(data, np.uint8)), name)
        elif isinstance(part, TextChannel):
            self._write_text(path, part[:], name)
        elif isinstance(part, RaggedChannel):
            self._notes.dropped(name, "steps have different numbers of items")
        elif name in strings(self._own.get("array_attributes")):
            self._demo.attrs[name] = part.data
            self._notes.kept(name, f"attrs[{name!r}]")
        elif path in strings(self._own.get("scalars")) and part.length == 1:
            self._demo.create_dataset(free_path(self._demo, path), data=part.data[0])
            self._notes.kept(name, path)
        else:
            note_pixels(part, name, self._notes)
            self._store(path, part, name)

    def _write_text(self, path: str, texts: Any, source: str) -> None:  # noqa: ANN401 - a string or a list
        """Strings, one a step or not."""
        kind = require("h5py", "hdf5").string_dtype()
        if "\0" in (texts if isinstance(texts, str) else "".join(map(str, texts))):
            self._notes.dropped(source, "HDF5 has no strings with U+0000")
            return
        free = free_path(self._demo, path)
        data = texts if isinstance(texts, str) else np.array(texts, dtype=object)
        self._demo.create_dataset(free, data=data, dtype=kind)
        self._notes.kept(source, free)

    def _note_description(self, block: str, channel: Channel) -> None:
        told = {
            "unit": channel.unit,
            "description": channel.description.replace(_UPSIDE_DOWN, ""),
            "horizon": channel.horizon,
            "lossy": channel.lossy,
            **channel.extra,
        }
        for field, value in told.items():
            if value:
                self._notes.dropped(f"{block} {field}", "robomimic does not describe channels")

    # --- attributes

    def _write_attributes(self) -> None:
        episode, own, notes = self._episode, self._own, self._notes
        kept = own.get("attributes")
        values: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
        rest: dict[str, Any] = as_json_value(episode.metadata)
        for key in ("dataset", "robomimic"):
            rest.pop(key, None)
        for key, kinds in (("splits", (str, list)), ("task", str)):
            if isinstance(rest.get(key), kinds):
                del rest[key]
        if not own or "num_samples" in values:
            values["num_samples"] = self._length
        for key in ("success", "seed"):
            if type(rest.get(key)) in (bool, int):
                values[key] = rest.pop(key)
        cameras = rest.pop("camera_info", None)
        if cameras is not None and "camera_info" not in values:
            values["camera_info"] = json.dumps(cameras)
        task, dataset = episode.metadata.get("task"), episode.metadata.get("dataset")
        told = _task(values, dataset if own and isinstance(dataset, dict) else {})
        if isinstance(task, str) and task != told:
            before = parse_json_text(values.get("ep_meta"))
            meta = before if isinstance(before, dict) else {}
            values["ep_meta"] = json.dumps({**meta, "lang": task})
            notes.kept("metadata/task", "attrs['ep_meta']")
        if rest:
            values["metadata"] = json.dumps(rest)
            notes.kept("metadata", "attrs['metadata']")
        if episode.provenance is not None:
            notes.dropped("provenance", "robomimic has no place for it")
        put_attributes(self._demo, values, own.get("types"), notes)


def put_attributes(group: Any, values: Mapping[str, Any], types: Any, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group; of metadata
    """Writes attributes with the types that they had."""
    h5py = require("h5py", "hdf5")
    known = types if isinstance(types, dict) else {}
    for name, value in values.items():
        given: Any = value
        try:
            if name in known:
                kind = np.dtype(known[name])
                given = value.encode() if kind.kind == "S" else value
                given = np.array(given, kind)[()]
            elif isinstance(value, list):
                given = np.array(value, h5py.string_dtype())
            elif isinstance(value, dict):
                given = json.dumps(value)
            group.attrs[name] = given
        except (TypeError, ValueError, OverflowError, RuntimeError, OSError) as error:
            notes.dropped(f"attrs[{name!r}]", f"HDF5 cannot hold it: {error}")


def free_path(group: Any, path: str) -> str:  # noqa: ANN401 - an h5py.Group
    """A path below a group at which nothing is; the one that is asked for if possible."""
    h5py = require("h5py", "hdf5")
    path = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
    path = path or "unnamed"
    parts = path.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    if any(isinstance(group.get(each), h5py.Dataset) for each in above):
        path = path.replace("/", "_")
    while path in group:
        path += "_"
    return path


def _default_path(block: str) -> str:
    """Where a block of an episode belongs in its demo, unless its source says otherwise."""
    lane, _, name = block.partition("/")
    if lane == "signal":
        return f"obs/{name}"
    if lane == "action":
        return "actions" if name == "action" else f"action_dict/{name}"
    return block
