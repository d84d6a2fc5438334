"""Minari datasets: the HDF5, Arrow and Parquet back ends are read; HDF5 is written (`wshard.convert._minari_writer`).

Reading needs h5py or pyarrow, not Minari itself. An episode has T + 1 observations and infos, and T actions, rewards,
terminations and truncations. Parts of a Dict space are named by their keys with `/` between them, parts of a Tuple by
their positions: `observation/0`. Infos are observations `info/<key>`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shard_format.errors import (
    BadMetadata,
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
)
from shard_format.extras import require
from shard_format.listing import natural_key
from shard_format.registry import DEFAULT_LIMITS
from wshard._channels import Channel, Modality, RaggedChannel
from wshard._episode import Episode
from wshard._metadata import Timebase
from wshard.convert._arrays import (
    CHANNEL_FACTS,
    EncodedFrames,
    channel_of,
    checked_facts,
    least_bytes,
    picture_channel,
    text_channel,
)
from wshard.convert._hdf5 import (
    DatasetRows,
    EncodedRows,
    as_json_value,
    attributes,
    check_links,
    datasets,
    open_hdf5,
    parse_json_text,
    read_attribute,
    reading,
    rows_channel,
)
from wshard.convert._minari_layout import (
    LANES,
    MAIN_FILE,
    METADATA,
    SPACES,
    STEPS,
    SpaceLeaf,
    compact,
    hdf5_path,
    leaves,
)
from wshard.convert._minari_writer import MinariWriter
from wshard.convert._model import DatasetReader, Probe, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wshard.convert._arrays import Pictures
    from wshard.convert._model import Notes, ReadOptions

__all__ = ["MinariReader", "MinariWriter", "recognises"]

_EPISODE: Final = re.compile(r"episode_(\d{1,18})")
# What a compressed file may claim to hold, as a multiple of its size.
_LARGEST_RATIO: Final = 1000


def recognises(probe: Probe) -> bool:
    """Whether it is the folder of a dataset, or the `data` folder in it."""
    if not probe.is_folder:
        return False
    folders = ([], ["data"]) if "data" in probe.names else ([],)
    for folder in folders:
        facts = probe.json(*folder, METADATA)
        if "total_episodes" in facts and ("data_format" in facts or "minari_version" in facts):
            return True
        main = os.path.join(probe.path, *folder, MAIN_FILE)
        with contextlib.suppress(ShardIOError):
            names = Probe(main).hdf5_names
            return bool(names) and all(_EPISODE.fullmatch(name) for name in names)
    return False


class MinariReader(DatasetReader):
    """A dataset of any back end."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        inner = os.path.join(path, "data")
        folder = inner if os.path.isdir(inner) else path
        facts_path = os.path.join(folder, METADATA)
        facts = read_json(facts_path) if os.path.exists(facts_path) else None
        if facts is not None and not isinstance(facts, dict):
            raise BadMetadata("not a JSON object", path=facts_path)
        form = (facts or {}).get("data_format", "hdf5")
        self._store: _Store
        if form == "hdf5":
            self._store = _Hdf5Store(os.path.join(folder, MAIN_FILE), options.video)
        elif form in ("arrow", "parquet"):
            self._store = _ArrowStore(folder, form, options.video)
        else:
            raise BadMetadata(
                "unknown back end",
                path=facts_path,
                entry="data_format",
                expected="hdf5, arrow or parquet",
                found=str(form),
            )
        self._form = form
        try:
            with reading(facts_path):
                self._numbers = self._store.numbers()
                # Before 0.5 the facts were attributes of the file.
                self._take(self._store.root_facts() if facts is None else facts)
                own = {METADATA, MAIN_FILE, *map(str, self._numbers)}
                self.strays = [
                    *(
                        name
                        for name in sorted(os.listdir(path))
                        if folder != path and name != "data"
                    ),
                    *(name for name in sorted(os.listdir(folder)) if name not in own),
                    *self._store.strays(has_facts=facts is not None),
                ]
        except ShardError:
            self.close()
            raise

    def _take(self, facts: dict[str, Any]) -> None:
        """Reads what the dataset says about itself."""
        self._spaces: dict[str, Any] = {}
        for key in SPACES:
            if key in facts:
                space = facts.pop(key)
                self._spaces[key] = parse_json_text(space) if isinstance(space, str) else space
                leaves(self._spaces[key], key)
        stated = facts.get("total_episodes")
        found = len(self._numbers)
        self._missing = (
            f"the dataset states {stated} episodes and holds {found}" if stated != found else ""
        )
        self._metadata: dict[str, Any] = {key: compact(one) for key, one in self._spaces.items()}
        spec = facts.pop("env_spec", None)
        self._env_id = ""
        if isinstance(spec, str):
            self._metadata["env_spec"] = spec
            parsed = parse_json_text(spec)
            named = parsed.get("id") if isinstance(parsed, dict) else None
            self._env_id = named if isinstance(named, str) else ""
        self._metadata["minari"] = {"data_format": self._form}
        self._metadata["dataset"] = as_json_value(facts)
        self._leaves = {
            lane: {self._store.joined(leaf.path): leaf for leaf in leaves(space, root)}
            for lane, root, key in LANES
            if (space := self._spaces.get(key)) is not None
        }

    def names(self) -> Sequence[str]:
        return [f"episode_{number}" for number in self._numbers]

    def close(self) -> None:
        self._store.close()

    def read(self, number: int, notes: Notes) -> Episode:
        name = f"episode_{self._numbers[number]}"
        with reading(self.path, name):
            steps, facts, arrays = self._store.episode(self._numbers[number])
        if self._missing:
            notes.dropped("episodes", self._missing)
        metadata = self._episode_metadata(facts, notes)
        if facts.get("total_steps", steps) != steps:
            notes.cast("total_steps", facts["total_steps"], steps, "the number of rewards")
        episode = Episode(
            name,
            env_id=self._env_id or str(metadata.pop("env_id", "")),
            timebase=_timebase(metadata),
            metadata=metadata,
        )
        with reading(self.path, name):
            self._fill(episode, steps, arrays, notes)
        return episode

    def _fill(self, episode: Episode, steps: int, arrays: Mapping[str, Any], notes: Notes) -> None:
        filling = _SpaceFilling(episode, steps, self._store, notes)
        for path, item in arrays.items():
            lane, _, rest = path.partition("/")
            if path in STEPS:
                filling.put_steps(path, item)
            elif lane in ("observations", "actions"):
                filling.put_part(path, item, self._leaves.get(lane, {}).get(rest))
            else:
                filling.put_other(path, item)
        for lane, parts in self._leaves.items():
            for rest, leaf in parts.items():
                if (f"{lane}/{rest}" if rest else lane) not in arrays:
                    notes.dropped(leaf.name, "the space has it, and the episode does not")

    def _episode_metadata(self, facts: dict[str, Any], notes: Notes) -> dict[str, Any]:
        metadata: dict[str, Any] = json.loads(json.dumps(self._metadata))
        notes.kept(METADATA, "metadata/dataset")
        for key, value in facts.items():
            if key in ("id", "total_steps"):
                notes.kept(key, "id" if key == "id" else "length")
                continue
            if key in metadata:
                metadata["minari"][key] = value
                notes.renamed(key, f"metadata/minari/{key}")
            else:
                metadata[key] = value
                notes.kept(key, f"metadata/{key}")
        return metadata


def _timebase(metadata: dict[str, Any]) -> Timebase:
    """The clock of an episode that our writer stored; takes it out of the metadata."""
    timebase = Timebase(tick_hz=None)
    rate, epoch = metadata.get("tick_hz"), metadata.get("epoch_ns")
    if isinstance(rate, float) and rate > 0:
        timebase.tick_hz = metadata.pop("tick_hz")
    if type(epoch) is int:
        timebase.epoch_ns = metadata.pop("epoch_ns")
    return timebase


class _SpaceFilling:
    """Puts the arrays of one episode where they belong."""

    def __init__(self, episode: Episode, steps: int, store: _Store, notes: Notes) -> None:
        self._episode = episode
        self._steps = steps
        self._store = store
        self._notes = notes

    def put_steps(self, path: str, item: Any) -> None:  # noqa: ANN401 - of a store
        """Rewards, terminations or truncations."""
        attribute, block = STEPS[path]
        setattr(self._episode, attribute, self._store.channel(block, item, None, self._notes))
        self._notes.kept(path, block)

    def put_part(self, path: str, item: Any, leaf: SpaceLeaf | None) -> None:  # noqa: ANN401 - of a store
        """A part of an observation or action."""
        lane, _, rest = path.partition("/")
        name = leaf.name if leaf else rest.replace("_index_", "") or lane.removesuffix("s")
        channel = self._store.channel(name, item, leaf, self._notes)
        is_action, steps = lane == "actions", self._steps
        if steps and not len(channel):
            self._notes.dropped(path, "it has no entries")
            return
        if len(channel) not in ((steps,) if is_action else (steps, steps + 1)):
            raise BadValue(
                "an array has a different number of steps than the rewards",
                entry=path,
                expected=steps if is_action else f"{steps + 1} or {steps}",
                found=len(channel),
            )
        self._add("action" if is_action else "signal", name, path, channel)

    def put_other(self, path: str, item: Any) -> None:  # noqa: ANN401 - of a store
        """An info, or what else is beside the arrays that Minari defines."""
        lane, _, rest = path.partition("/")
        name = f"info/{rest}" if lane == "infos" and rest else path
        try:
            channel = self._store.channel(name, item, None, self._notes)
        except InvalidArgument as error:
            self._notes.dropped(path, str(error))
            return
        if len(channel) in (self._steps, self._steps + 1):
            self._add("signal", name, path, channel)
        else:
            channel.has_stated_length = True
            self._episode.extras[path] = channel
            self._notes.kept(path, path)

    def _add(self, lane: str, name: str, path: str, channel: Channel) -> None:
        view = self._episode.actions if lane == "action" else self._episode.observations
        if name in view:
            raise BadValue("two arrays have the same name", entry=path, found=name)
        view[name] = channel
        self._notes.kept(path, f"{lane}/{name}")


def _is_episode(name: object) -> bool:
    return isinstance(name, str) and bool(_EPISODE.fullmatch(name))


class _EpisodeArrays(NamedTuple):
    """What a back end has of an episode."""

    steps: int
    facts: dict[str, Any]
    arrays: dict[str, Any]
    """By their paths; `channel` of the store makes channels of them."""


class _Hdf5Store:
    """`main_data.hdf5`. Owns: the open file."""

    def __init__(self, path: str, video: str) -> None:
        self._path = path
        self._video = video
        self._file = open_hdf5(path)

    def close(self) -> None:
        self._file.close()

    def root_facts(self) -> dict[str, Any]:
        """What a dataset says about itself that has no metadata.json."""
        return attributes(self._file)

    def strays(self, *, has_facts: bool) -> Iterator[str]:
        """What is in the file beside episodes; also its attributes if the facts are elsewhere."""
        yield from (f"{MAIN_FILE}/{name}" for name in self._file if not _is_episode(name))
        if has_facts:
            yield from (f"{MAIN_FILE}, attribute {name}" for name in self._file.attrs)

    def numbers(self) -> list[int]:
        names = (name for name in self._file if _is_episode(name))
        return sorted(int(name.removeprefix("episode_")) for name in names)

    @staticmethod
    def joined(path: tuple[str | int, ...]) -> str:
        return hdf5_path(path)

    def _group(self, number: int) -> Any:  # noqa: ANN401 - an h5py.Group
        name = f"episode_{number}"
        check_links(self._file, name)
        group = self._file[name]
        if not hasattr(group, "keys"):
            raise BadValue("an episode is not a group", path=self._path, entry=name)
        return group

    def episode(self, number: int) -> _EpisodeArrays:
        group = self._group(number)
        arrays = dict(datasets(group))
        rewards = arrays.get("rewards")
        if rewards is None or not rewards.shape:
            raise BadValue("an episode has no rewards")
        return _EpisodeArrays(rewards.shape[0], self._facts(group), arrays)

    @staticmethod
    def _facts(group: Any) -> dict[str, Any]:  # noqa: ANN401 - an h5py.Group
        facts: dict[str, Any] = {}
        for name, value in attributes(group).items():
            # Reset options are flattened into names with `/`, as any dictionary is.
            *outer, key = name.split("/")
            inner = facts
            for part in outer:
                below = inner.setdefault(part, {})
                if not isinstance(below, dict):  # `a` and `a/b` are both attributes
                    inner, key = facts, name
                    break
                inner = below
            inner[key] = value
        return facts

    def channel(self, name: str, dataset: Any, leaf: SpaceLeaf | None, notes: Notes) -> Channel:  # noqa: ANN401 - an h5py.Dataset
        dtype, stated, found = dataset.dtype, leaf and leaf.shape, dataset.shape or ()
        # Encoded images are bytes of any length. If all have the same length, they are rows of bytes.
        is_rows = dtype == np.uint8 and len(found) == 2 and stated is not None and len(stated) > 1
        if (is_rows or dtype.hasobject) and found:
            frames = EncodedRows(dataset)
            if frames.are_images:
                return _pictures(name, frames, self._video, notes, _described(dataset, notes))
        if not found:
            notes.cast(dataset.name, "one value", "an array of one value")
            return Channel(name, data=np.asarray(dataset[()]).reshape(1))
        facts = {"modality": _modality(found, dtype), **_described(dataset, notes)}
        if dtype.hasobject or dtype.kind == "S":
            return rows_channel(name, dataset, **facts)
        return channel_of(name, DatasetRows(dataset), **facts)


class _ArrowStore:
    """A folder for each episode, with a table of T + 1 rows and what else is known of it."""

    def __init__(self, folder: str, form: str, video: str) -> None:
        self._folder = folder
        self._form = form
        self._video = video
        require("pyarrow", "minari")

    def close(self) -> None:
        pass

    def root_facts(self) -> dict[str, Any]:
        """As for HDF5; tables have no place for it."""
        return {}

    def strays(self, *, has_facts: bool) -> Iterator[str]:
        """As for HDF5; tables have nothing else."""
        return iter(())

    def numbers(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot list", self._folder) from error
        return sorted(int(name) for name in names if re.fullmatch(r"\d{1,18}", name, re.ASCII))

    @staticmethod
    def joined(path: tuple[str | int, ...]) -> str:
        return "/".join(str(key) for key in path)

    def _facts(self, number: int) -> dict[str, Any]:
        path = os.path.join(self._folder, str(number), METADATA)
        facts = as_json_value(read_json(path))
        if not isinstance(facts, dict):
            raise BadMetadata("not a JSON object", path=path)
        return facts

    def _table(self, number: int) -> Any:  # noqa: ANN401 - a pyarrow.Table
        pyarrow = require("pyarrow", "minari")
        folder = os.path.join(self._folder, str(number))
        suffix = f".{self._form}"
        names = sorted((n for n in os.listdir(folder) if n.endswith(suffix)), key=natural_key)
        if not names:
            raise BadValue("an episode has no table", path=folder, expected=f"part-0{suffix}")
        tables = []
        for name in names:
            path = os.path.join(folder, name)
            try:
                table = _read_parquet(path) if self._form == "parquet" else _read_arrow(path)
                table.validate(full=True)
            except (pyarrow.ArrowException, OSError, MemoryError) as error:
                raise BadValue(f"the table cannot be read: {error}", path=path) from None
            tables.append(table)
        try:
            return pyarrow.concat_tables(tables).combine_chunks()
        except pyarrow.ArrowException as error:
            raise BadValue(f"the parts do not fit together: {error}", path=folder) from None

    def episode(self, number: int) -> _EpisodeArrays:
        pyarrow = require("pyarrow", "minari")
        facts = self._facts(number)
        table = self._table(number)
        rows, stated = table.num_rows, facts.get("total_steps")
        # The table has as many rows as there are observations, and the rest is padded to that.
        steps = stated if stated in (rows, rows - 1) else max(0, rows - 1)
        arrays: dict[str, Any] = {}
        for name in table.column_names:
            column = table.column(name)
            chunk = column.chunk(0) if column.num_chunks else pyarrow.array([], column.type)
            if name in (*STEPS, "actions"):
                chunk = chunk.slice(0, steps)
            for path, field, array in _arrow_leaves(name, table.schema.field(name), chunk):
                arrays[path] = (field, array)
        if "rewards" not in arrays:
            raise BadValue("an episode has no rewards")
        return _EpisodeArrays(steps, facts, arrays)

    def channel(
        self, name: str, item: tuple[Any, Any], leaf: SpaceLeaf | None, notes: Notes
    ) -> Channel:
        field, array = item
        types = require("pyarrow", "minari").types
        try:
            if types.is_string(array.type) or types.is_large_string(array.type):
                if array.null_count:
                    notes.filled(name, f"{array.null_count} steps without text with empty text")
                return text_channel(name, array.to_pylist())
            if types.is_binary(array.type) or types.is_large_binary(array.type):
                return _pictures(name, _ArrowFrames(array), self._video, notes, {})
            if types.is_list(array.type) or types.is_large_list(array.type):
                return _from_lists(name, array)
            values = _numbers(array, _shape_in_table(field, array, leaf))
            if array.null_count:
                notes.filled(name, f"{array.null_count} steps without a value are not a number")
            return channel_of(name, values, modality=_modality(values.shape, values.dtype))
        except InvalidArgument as error:
            raise error.located(entry=name) from None
        except ValueError as error:
            raise BadValue(f"a column does not fit its space: {error}", entry=name) from None


_Store: TypeAlias = _Hdf5Store | _ArrowStore


def _read_arrow(path: str) -> Any:  # noqa: ANN401 - a pyarrow.Table
    pyarrow = require("pyarrow", "minari")
    ipc = require("pyarrow.ipc", "minari")
    return ipc.open_file(pyarrow.memory_map(path)).read_all()


def _read_parquet(path: str) -> Any:  # noqa: ANN401 - a pyarrow.Table
    parquet = require("pyarrow.parquet", "minari")
    with parquet.ParquetFile(path) as file:
        groups = (file.metadata.row_group(at) for at in range(file.metadata.num_row_groups))
        claimed = max(
            sum(group.total_byte_size for group in groups),
            file.metadata.num_rows * sum(least_bytes(field.type) for field in file.schema_arrow),
        )
        most = max(DEFAULT_LIMITS.max_decompressed_bytes, os.path.getsize(path) * _LARGEST_RATIO)
        if claimed > most:
            raise LimitExceeded(
                "the table is too large for its file",
                path=path,
                expected=f"at most {most} bytes",
                found=f"{claimed} bytes",
            )
        return file.read()


def _arrow_leaves(path: str, field: Any, array: Any) -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401 - of pyarrow
    if require("pyarrow", "minari").types.is_struct(array.type):
        for number, inner in enumerate(array.type):
            yield from _arrow_leaves(f"{path}/{inner.name}", inner, array.field(number))
    else:
        yield path, field, array


def _shape_in_table(field: Any, array: Any, leaf: SpaceLeaf | None) -> tuple[int, ...]:  # noqa: ANN401 - of pyarrow
    """The shape of one row: from the space, or for infos from the metadata of the field."""
    if not require("pyarrow", "minari").types.is_fixed_size_list(array.type):
        return ()
    if leaf is not None and leaf.shape is not None:
        return leaf.shape
    stated = (field.metadata or {}).get(b"shape")
    if stated is None:
        return (array.type.list_size,)
    # An array of one number a step has an empty shape.
    return tuple(int(size) for size in stated.split(b",") if size)


def _numbers(array: Any, shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - of pyarrow; an array
    """Values of a column as an array [rows, ...]; a view of the file where possible."""
    types = require("pyarrow", "minari").types
    wanted: tuple[int, ...] = (len(array), *shape)
    if types.is_fixed_size_list(array.type):
        if array.null_count:
            raise InvalidArgument("a step has no value", found=f"{array.null_count} such steps")
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype.hasobject:
        raise InvalidArgument("these values are not numbers", found=str(array.type))
    return values.reshape(wanted)


def _from_lists(name: str, array: Any) -> Channel:  # noqa: ANN401 - of pyarrow
    """Lists of numbers: an array if all have the same length."""
    offsets = np.asarray(array.offsets, dtype=np.int64)
    values = _numbers(array.flatten(), ())
    lengths = np.diff(offsets)
    if len(lengths) and (lengths == lengths[0]).all():
        return channel_of(name, values.reshape(len(lengths), -1))
    return RaggedChannel(name, values=values, offsets=offsets - offsets[:1])


class _ArrowFrames:
    """Encoded images of a column."""

    def __init__(self, array: Any) -> None:  # noqa: ANN401 - of pyarrow
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, step: int) -> memoryview:
        value = self._array[step]
        return memoryview(value.as_buffer() if value.is_valid else b"")


def _pictures(
    name: str, frames: Pictures, video: str, notes: Notes, facts: dict[str, Any]
) -> Channel:
    rows = EncodedFrames(name, frames)
    facts = {"modality": _modality(rows.shape, rows.dtype), **facts}
    return picture_channel(name, frames, video, notes, rows=rows, **facts)


def _modality(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Modality | None:
    is_image = dtype == np.uint8 and len(shape) == 4 and shape[3] == 3
    return Modality.RGB if is_image else None


def _described(dataset: Any, notes: Notes) -> dict[str, Any]:  # noqa: ANN401 - an h5py.Dataset
    """What our writer says about a channel; nothing in datasets that others wrote."""
    # Cheaper than to look for the attribute: this is done for every array of every episode.
    if not require("h5py", "minari").h5a.get_num_attrs(dataset.id):
        return {}
    for name in dataset.attrs.keys() - {CHANNEL_FACTS}:
        notes.dropped(f"{dataset.name}, attribute {name}", "a channel has no place for it")
    if CHANNEL_FACTS not in dataset.attrs:
        return {}
    return checked_facts(parse_json_text(as_json_value(read_attribute(dataset, CHANNEL_FACTS))))
