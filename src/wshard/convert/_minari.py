"""Minari datasets: the HDF5, Arrow and Parquet back ends are read; HDF5 is written.

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
from wshard._lanes import TICKS
from wshard._metadata import Timebase
from wshard._values import DType
from wshard.convert._arrays import EncodedFrames, channel_of, text_channel
from wshard.convert._hdf5 import (
    DatasetRows,
    EncodedRows,
    as_json_value,
    attributes,
    check_links,
    datasets,
    open_hdf5,
    parse_json_text,
    reading,
    rows_channel,
)
from wshard.convert._model import DatasetReader, DatasetWriter, Probe, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wshard.convert._model import Notes, ReadOptions, WriteOptions

_METADATA: Final = "metadata.json"
_MAIN_FILE: Final = "main_data.hdf5"
_EPISODE: Final = re.compile(r"episode_(\d{1,18})")
# The version from which on datasets say whether their images are encoded.
_WRITTEN_VERSION: Final = "0.5.4"
_SPACES: Final = ("observation_space", "action_space")
# An attribute of HDF5 has less than 64 KiB.
_MOST_ATTRIBUTE: Final = 60_000
_PIECE: Final = 8 << 20
_CHANNEL_FACTS: Final = "wshard_channel"
_FACT_OBJECTS: Final = ("lossy", "extra")
_FACTS: Final = ("unit", "description", "semantics", "modality", *_FACT_OBJECTS)
# What a compressed file may claim to hold, as a multiple of its size.
_LARGEST_RATIO: Final = 1000


# --- spaces


class SpaceLeaf(NamedTuple):
    """A part of a space that is one array."""

    name: str
    path: tuple[str | int, ...]
    """The keys of dictionaries and the positions in tuples that lead to it."""
    space: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one value; None if the space does not say."""
        if self.space["type"] in ("Discrete", "Text"):
            return ()
        stated = self.space.get("shape", self.space.get("n"))
        if self.space["type"] == "MultiDiscrete":
            stated = list(np.shape(self.space.get("nvec", ())))
        sizes = [stated] if isinstance(stated, int) else stated
        if isinstance(sizes, list) and all(isinstance(one, int) and one >= 0 for one in sizes):
            return tuple(sizes)
        return None


def leaves(space: Mapping[str, Any], root: str) -> list[SpaceLeaf]:
    """The arrays of a space; `root` is what to call one that is not a dictionary. Named as `wshard.gym` does."""
    return list(_leaves(space, root, "", ()))


def _leaves(space: Any, root: str, name: str, path: tuple[str | int, ...]) -> Iterator[SpaceLeaf]:  # noqa: ANN401 - JSON
    kind = space.get("type") if isinstance(space, dict) else None
    parts: Any = space.get("subspaces") if kind in ("Dict", "Tuple") else None
    if kind == "Dict" and isinstance(parts, dict):
        for key, part in parts.items():
            yield from _leaves(part, root, f"{name}/{key}" if name else key, (*path, key))
    elif kind == "Tuple" and isinstance(parts, list):
        for number, part in enumerate(parts):
            yield from _leaves(part, root, f"{name or root}/{number}", (*path, number))
    elif isinstance(kind, str) and parts is None and kind not in ("Dict", "Tuple"):
        yield SpaceLeaf(name or root, path, space)
    else:
        raise BadMetadata("not a space", entry=name or root, found=str(space)[:80])


def compact(space: Any) -> Any:  # noqa: ANN401 - JSON
    """A space as strict JSON, with one number for bounds that are all equal; infinity is text."""
    if isinstance(space, dict):
        found = {key: compact(value) for key, value in space.items()}
        for bound in ("low", "high"):
            values = np.asarray(space.get(bound, 0.0))
            if space.get("type") == "Box" and values.size and values.dtype.kind in "iuf":
                first = values.flat[0]
                if (values == first).all():
                    found[bound] = as_json_value(first)
        return found
    if isinstance(space, list):
        return [compact(value) for value in space]
    return as_json_value(space)


def expanded(space: dict[str, Any]) -> dict[str, Any]:
    """A space as Minari has it, from what `compact` made."""
    if space["type"] == "Dict":
        parts = space["subspaces"]
        return {**space, "subspaces": {key: expanded(part) for key, part in parts.items()}}
    if space["type"] == "Tuple":
        return {**space, "subspaces": [expanded(part) for part in space["subspaces"]]}
    if space["type"] != "Box":
        return space
    bounds = {}
    for bound in ("low", "high"):
        values = np.asarray(space[bound], dtype=space["dtype"])
        bounds[bound] = np.broadcast_to(values, space["shape"]).tolist()
    return {**space, **bounds}


# --- reading


def recognises(probe: Probe) -> bool:
    """Whether it is the folder of a dataset, or the `data` folder in it."""
    if not probe.is_folder:
        return False
    folders = ([], ["data"]) if "data" in probe.names else ([],)
    for folder in folders:
        facts = probe.json(*folder, _METADATA)
        if "total_episodes" in facts and ("data_format" in facts or "minari_version" in facts):
            return True
        main = os.path.join(probe.path, *folder, _MAIN_FILE)
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
        facts_path = os.path.join(folder, _METADATA)
        facts = read_json(facts_path) if os.path.exists(facts_path) else None
        if facts is not None and not isinstance(facts, dict):
            raise BadMetadata("not a JSON object", path=facts_path)
        form = (facts or {}).get("data_format", "hdf5")
        self._store: _Store
        if form == "hdf5":
            self._store = _Hdf5Store(os.path.join(folder, _MAIN_FILE))
        elif form in ("arrow", "parquet"):
            self._store = _ArrowStore(folder, form)
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
        except ShardError:
            self.close()
            raise

    def _take(self, facts: dict[str, Any]) -> None:
        """Reads what the dataset says about itself."""
        self._spaces: dict[str, Any] = {}
        for key in _SPACES:
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
            for lane, root, key in _LANES
            if (space := self._spaces.get(key)) is not None
        }

    def names(self) -> Sequence[str]:
        return [f"episode_{number}" for number in self._numbers]

    def close(self) -> None:
        self._store.close()

    def read(self, number: int, notes: Notes) -> Episode:
        name = f"episode_{self._numbers[number]}"
        with reading(self.path, name):
            facts = self._store.facts(self._numbers[number])
        if self._missing:
            notes.dropped("episodes", self._missing)
        metadata = self._episode_metadata(facts, notes)
        rate = metadata.pop("tick_hz", None)
        episode = Episode(
            name,
            env_id=self._env_id or str(metadata.pop("env_id", "")),
            timebase=Timebase(tick_hz=rate if isinstance(rate, float) and rate > 0 else None),
            metadata=metadata,
        )
        with reading(self.path, name):
            self._fill(episode, self._numbers[number], facts, notes)
        return episode

    def _fill(self, episode: Episode, number: int, facts: Mapping[str, Any], notes: Notes) -> None:
        steps, arrays = self._store.arrays(number, facts)
        filling = _SpaceFilling(episode, steps, self._store, notes)
        for path, item in arrays.items():
            lane, _, rest = path.partition("/")
            if path in _STEPS:
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
        notes.kept(_METADATA, "metadata/dataset")
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


_LANES: Final = (
    ("observations", "observation", "observation_space"),
    ("actions", "action", "action_space"),
)
_STEPS: Final = {
    "rewards": ("rewards", "reward"),
    "terminations": ("terminations", "terminated"),
    "truncations": ("truncations", "truncated"),
}


class _SpaceFilling:
    """Puts the arrays of one episode where they belong."""

    def __init__(self, episode: Episode, steps: int, store: _Store, notes: Notes) -> None:
        self._episode = episode
        self._steps = steps
        self._store = store
        self._notes = notes

    def put_steps(self, path: str, item: Any) -> None:  # noqa: ANN401 - of a store
        """Rewards, terminations or truncations."""
        attribute, block = _STEPS[path]
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
                "an array has another number of steps than the rewards",
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


class _Hdf5Store:
    """`main_data.hdf5`. Owns: the open file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open_hdf5(path)

    def close(self) -> None:
        self._file.close()

    def root_facts(self) -> dict[str, Any]:
        """What a dataset says about itself that has no metadata.json."""
        return attributes(self._file)

    def numbers(self) -> list[int]:
        found = (_EPISODE.fullmatch(name) for name in self._file if isinstance(name, str))
        return sorted(int(match[1]) for match in found if match)

    @staticmethod
    def joined(path: tuple[str | int, ...]) -> str:
        return "/".join(f"_index_{key}" if isinstance(key, int) else key for key in path)

    def _group(self, number: int) -> Any:  # noqa: ANN401 - an h5py.Group
        name = f"episode_{number}"
        check_links(self._file, name)
        group = self._file[name]
        if not hasattr(group, "keys"):
            raise BadValue("an episode is not a group", path=self._path, entry=name)
        return group

    def facts(self, number: int) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for name, value in attributes(self._group(number)).items():
            # Reset options are flattened into names with `/`, as any dictionary is.
            *outer, key = name.split("/")
            inner = facts
            for part in outer:
                below = inner.setdefault(part, {})
                inner = below if isinstance(below, dict) else inner
            inner[key] = value
        return facts

    def arrays(self, number: int, facts: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """The number of steps, and the arrays by their paths."""
        group = self._group(number)
        arrays = dict(datasets(group))
        rewards = arrays.get("rewards")
        if rewards is None or not rewards.shape:
            raise BadValue("an episode has no rewards")
        return rewards.shape[0], arrays

    def channel(self, name: str, dataset: Any, leaf: SpaceLeaf | None, notes: Notes) -> Channel:  # noqa: ANN401 - an h5py.Dataset
        dtype, stated, found = dataset.dtype, leaf and leaf.shape, dataset.shape
        # Encoded images are bytes of any length. If all have the same length, they are rows of bytes.
        is_rows = dtype == np.uint8 and len(found) == 2 and stated is not None and len(stated) > 1
        if (is_rows or dtype.hasobject) and found:
            frames = EncodedRows(dataset)
            if frames.are_images:
                return _decoded(name, frames, notes)
        if not found:
            notes.cast(dataset.name, "one value", "an array of one value")
            return Channel(name, data=np.asarray(dataset[()]).reshape(1))
        facts = {"modality": _modality(found, dtype), **_described(dataset)}
        if dtype.hasobject or dtype.kind == "S":
            return rows_channel(name, dataset, **facts)
        return channel_of(name, DatasetRows(dataset), **facts)


class _ArrowStore:
    """A folder for each episode, with a table of T + 1 rows and what else is known of it."""

    def __init__(self, folder: str, form: str) -> None:
        self._folder = folder
        self._form = form
        require("pyarrow", "minari")

    def close(self) -> None:
        pass

    def root_facts(self) -> dict[str, Any]:
        """As for HDF5; tables have no place for it."""
        return {}

    def numbers(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot list", self._folder) from error
        return sorted(int(name) for name in names if re.fullmatch(r"\d{1,18}", name, re.ASCII))

    @staticmethod
    def joined(path: tuple[str | int, ...]) -> str:
        return "/".join(str(key) for key in path)

    def facts(self, number: int) -> dict[str, Any]:
        path = os.path.join(self._folder, str(number), _METADATA)
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

    def arrays(self, number: int, facts: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """As for HDF5."""
        pyarrow = require("pyarrow", "minari")
        table = self._table(number)
        rows, stated = table.num_rows, facts.get("total_steps")
        # The table has as many rows as there are observations, and the rest is padded to that.
        steps = stated if stated in (rows, rows - 1) else max(0, rows - 1)
        arrays: dict[str, Any] = {}
        for name in table.column_names:
            column = table.column(name)
            chunk = column.chunk(0) if column.num_chunks else pyarrow.array([], column.type)
            if name in (*_STEPS, "actions"):
                chunk = chunk.slice(0, steps)
            for path, field, array in _arrow_leaves(name, table.schema.field(name), chunk):
                arrays[path] = (field, array)
        if "rewards" not in arrays:
            raise BadValue("an episode has no rewards")
        return steps, arrays

    def channel(
        self, name: str, item: tuple[Any, Any], leaf: SpaceLeaf | None, notes: Notes
    ) -> Channel:
        field, array = item
        types = require("pyarrow", "minari").types
        try:
            if types.is_string(array.type) or types.is_large_string(array.type):
                return text_channel(name, array.to_pylist())
            if types.is_binary(array.type) or types.is_large_binary(array.type):
                return _decoded(name, _ArrowFrames(array), notes)
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
            file.metadata.num_rows * sum(_width(field.type) for field in file.schema_arrow),
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


def _width(kind: Any) -> int:  # noqa: ANN401 - a pyarrow.DataType
    """Bytes that a value needs at least."""
    types = require("pyarrow", "minari").types
    if types.is_struct(kind):
        return sum(_width(field.type) for field in kind)
    if types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    return max(1, kind.bit_width // 8) if types.is_primitive(kind) else 1


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


def _decoded(name: str, frames: Any, notes: Notes) -> Channel:  # noqa: ANN401 - encoded images
    rows = EncodedFrames(name, frames)
    notes.decoded(name, "JPEG to pixels")
    modality = _modality(rows.shape, rows.dtype)
    return channel_of(name, rows, modality=modality, lossy={"codec": "jpeg"})


def _modality(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Modality | None:
    is_image = dtype == np.uint8 and len(shape) == 4 and shape[3] == 3
    return Modality.RGB if is_image else None


# --- writing


class MinariWriter(DatasetWriter):
    """A dataset of the HDF5 back end, with images as they are. Owns: the open file."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        h5py = require("h5py", "minari")
        self._folder = os.path.join(path, "data")
        os.makedirs(self._folder)
        self._file = h5py.File(os.path.join(self._folder, _MAIN_FILE), "w")
        self._parts = [_SpacePart(*lane) for lane in _LANES]
        self._facts: dict[str, Any] | None = None
        self._episodes = 0
        self._steps = 0

    def write(self, episode: Episode, notes: Notes) -> None:
        name = f"episode_{self._episodes}"
        group = self._file.create_group(name)
        try:
            self._write(group, name, episode, notes)
        except BaseException:
            del self._file[name]
            raise
        self._episodes += 1
        self._steps += episode.length

    def _write(self, group: Any, name: str, episode: Episode, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group
        group.attrs["id"] = self._episodes
        group.attrs["total_steps"] = episode.length
        metadata = self._split_facts(episode, notes)
        if episode.id != name:
            notes.renamed(f"id {episode.id}", f"{name}, and its attribute episode_id")
            metadata["episode_id"] = episode.id
        _write_attributes(group, metadata, "", notes)
        others = dict[str, Channel]()
        for part, lane in zip(self._parts, (episode.observations, episode.actions), strict=True):
            others |= part.write(group, lane, episode, notes)
        self._write_steps(group, episode, notes)
        self._write_infos(group, others, episode, notes)
        if episode.provenance is not None:
            notes.dropped("meta/provenance", "Minari has no place for it")
        if not np.array_equal(episode.ticks, np.arange(episode.length)):
            notes.dropped(TICKS, "Minari has no place for it")

    def _split_facts(self, episode: Episode, notes: Notes) -> dict[str, Any]:
        """Takes what belongs to the dataset out of the metadata of an episode; the rest is returned."""
        rest = dict(episode.metadata)
        own = rest.pop("minari", None)
        dataset = rest.pop("dataset", None)
        facts = {} if dataset is None else {"dataset": dataset}
        if isinstance(own, dict) and isinstance(dataset, dict):
            facts = dict(dataset)
        for key in _SPACES:
            rest.pop(key, None)
        if isinstance(rest.get("env_spec"), str):
            facts["env_spec"] = rest.pop("env_spec")
        elif episode.env_id:
            rest["env_id"] = episode.env_id
        if own is not None and not isinstance(own, dict):
            rest["minari"] = own
        if isinstance(own, dict):
            rest |= own
            form = rest.pop("data_format", "hdf5")
            if form != "hdf5":
                notes.cast("data_format", form, "hdf5")
        # Minari gives these a meaning of its own.
        for key in ("id", "total_steps", *(() if isinstance(rest.get("seed"), int) else ("seed",))):
            if key in rest:
                rest[f"{key}_"] = rest.pop(key)
                notes.renamed(f"metadata/{key}", f"{key}_")
        if episode.timebase.tick_hz:
            rest["tick_hz"] = float(episode.timebase.tick_hz)
        if self._facts is None:
            self._facts = facts
        elif facts != self._facts:
            notes.dropped("metadata/dataset", "the dataset has the facts of its first episode")
        return rest

    def _write_steps(self, group: Any, episode: Episode, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group
        for attribute, (_, block) in _STEPS.items():
            channel: Channel | None = getattr(episode, attribute)
            if channel is not None:
                _write_channel(group, attribute, channel, notes)
                notes.kept(block, attribute)
            else:
                kind = np.float64 if block == "reward" else np.bool_
                group.create_dataset(attribute, data=np.zeros(episode.length, kind))
                notes.filled(attribute, "0 at every step" if block == "reward" else "never set")

    def _write_infos(
        self,
        group: Any,  # noqa: ANN401 - an h5py.Group
        others: Mapping[str, Channel],
        episode: Episode,
        notes: Notes,
    ) -> None:
        infos = {block: part for block, part in episode.blocks() if block.startswith(_PREDICTED)}
        infos |= others
        for name, extra in episode.extras.items():
            if isinstance(extra, Channel):
                infos[name] = extra
            else:
                notes.dropped(name, "Minari has no place for bytes")
        if episode.timestamps_ns is not None:
            infos["timestamps_ns"] = Channel("timestamps_ns", data=episode.timestamps_ns)
        for lane in ("residuals", "labels"):
            for name in getattr(episode, lane):
                notes.dropped(f"{lane}/{name}", f"Minari has no {lane}")
        # Without this group Minari has None in place of a dictionary.
        group.require_group("infos")
        taken = list[tuple[str | int, ...]]()
        for name, channel in infos.items():
            if channel.layout == "ragged":
                notes.dropped(name, "its steps have different lengths")
                continue
            plain = name.removeprefix("signal/").removeprefix("info/").removeprefix("infos/")
            taken.append(_free_path(plain, taken, notes))
            path = f"infos/{_Hdf5Store.joined(taken[-1])}"
            _write_channel(group, path, channel, notes)
            notes.kept(name, path)

    def finish(self) -> None:
        self._file.close()
        size = os.path.getsize(os.path.join(self._folder, _MAIN_FILE))
        spaces = {part.key: json.dumps(expanded(part.space())) for part in self._parts}
        facts = {
            **(self._facts or {}),
            "total_episodes": self._episodes,
            "total_steps": self._steps,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "minari_version": _WRITTEN_VERSION,
            "dataset_size": round(size / 1e6, 1),
            **spaces,
        }
        facts.setdefault("dataset_id", _dataset_id(self.path))
        for key in ("author", "author_email"):
            # Text in old datasets, of which Minari would make a set of letters.
            if isinstance(facts.get(key), str):
                facts[key] = [facts[key]]
        with open(os.path.join(self._folder, _METADATA), "w", encoding="utf-8") as file:
            json.dump(facts, file)

    def abandon(self) -> None:
        self._file.close()


_PREDICTED: Final = ("omen/", "uncert/")


def _dataset_id(path: str) -> str:
    """An id that Minari takes, from the name of the folder."""
    name = os.path.basename(os.path.normpath(path))
    plain = re.sub(r"[^-\w]", "_", name) or "dataset"
    return plain if re.search(r"-v\d+$", plain) else f"{plain}-v0"


class _SpacePart:
    """The observations or the actions of all episodes: which channel goes where, and the space that describes it."""

    def __init__(self, group: str, root: str, key: str) -> None:
        self._group = group
        self._root = root
        self._lane = "action" if root == "action" else "signal"
        self.key = key
        self._leaves: dict[str, SpaceLeaf] = {}
        self._given: dict[str, Any] | None = None
        self._is_bare = False
        self._is_new = True

    def write(
        self,
        group: Any,  # noqa: ANN401 - an h5py.Group
        lane: Mapping[str, Channel],
        episode: Episode,
        notes: Notes,
    ) -> dict[str, Channel]:
        """Writes the channels of the space into the group of an episode, and returns the others."""
        others, usable = dict[str, Channel](), dict[str, Channel]()
        for name, channel in lane.items():
            problem = _unusable(channel, episode.length)
            if problem:
                notes.dropped(f"{self._lane}/{name}", problem)
            elif name.startswith("info/"):
                others[f"{self._lane}/{name}"] = channel
            else:
                usable[name] = channel
        if self._is_new:
            self._begin(usable, episode.metadata.get(self.key), notes)
        if not self._is_bare:
            group.require_group(self._group)
        for name, channel in usable.items():
            leaf = self._leaf(name, channel, notes)
            block = f"{self._lane}/{name}"
            if leaf is None:
                others[block] = channel
                continue
            path = "/".join((self._group, _Hdf5Store.joined(leaf.path))).rstrip("/")
            _write_channel(group, path, channel, notes)
            is_short = self._lane == "signal" and len(channel) == episode.length
            notes.kept(block, f"{path}, T entries where Minari has T + 1" if is_short else path)
        for name in self._leaves.keys() - usable.keys():
            notes.filled(f"{self._lane}/{name}", "nothing: this episode does not have it")
            if self._is_bare:
                group.create_dataset(self._group, (0, *(self._leaves[name].shape or ())), "f4")
        return others

    def _begin(self, channels: Mapping[str, Channel], given: Any, notes: Notes) -> None:  # noqa: ANN401 - JSON
        """Decides by the first episode: the space that it states, or one made for its channels."""
        self._is_new = False
        try:
            found = {} if given is None else {one.name: one for one in leaves(given, self._root)}
            fits = all(_fits(channels.get(name), leaf) for name, leaf in found.items())
            if given is not None and fits and isinstance(expanded(given), dict):
                self._leaves, self._given = found, given
                self._is_bare = given["type"] not in ("Dict", "Tuple")
                return
        except (ShardError, KeyError, TypeError, ValueError):
            fits = False
        if given is not None and not fits:
            notes.dropped(f"metadata/{self.key}", "it does not fit the channels")
        self._is_bare = set(channels) == {self._root}

    def _leaf(self, name: str, channel: Channel, notes: Notes) -> SpaceLeaf | None:
        """Where a channel goes; None if the space has no place for it."""
        leaf = self._leaves.get(name)
        if leaf is not None:
            if self._given is None:
                _widen(leaf.space, channel)
            if not _fits(channel, leaf):
                notes.cast(name, leaf.shape, channel.step_shape, "unlike the space states")
            return leaf
        if self._given is not None or (self._is_bare and name != self._root):
            return None
        taken = [leaf.path for leaf in self._leaves.values()]
        path = () if self._is_bare else _free_path(name, taken, notes)
        leaf = self._leaves[name] = SpaceLeaf(name, path, _space_of(channel))
        return leaf

    def space(self) -> dict[str, Any]:
        """The space of all episodes."""
        if self._given is not None:
            return self._given
        root: dict[str, Any] = {"type": "Dict", "subspaces": {}}
        for leaf in self._leaves.values():
            if not leaf.path:
                return leaf.space
            inner = root["subspaces"]
            for key in leaf.path[:-1]:
                inner = inner.setdefault(key, {"type": "Dict", "subspaces": {}})["subspaces"]
            inner[leaf.path[-1]] = leaf.space
        return root


def _unusable(channel: Channel, steps: int) -> str:
    """Why Minari cannot hold a channel; empty if it can."""
    if channel.has_own_clock:
        return "it has a clock of its own"
    if channel.layout == "ragged":
        return "its steps have different lengths"
    return "" if len(channel) in (steps, steps + 1) else "it does not have one entry a step"


def _fits(channel: Channel | None, leaf: SpaceLeaf) -> bool:
    """Whether the space of a part says what the channel is."""
    if channel is None:
        return False
    if channel.layout == "text" or leaf.space["type"] == "Text":
        return channel.layout == "text" and leaf.space["type"] == "Text"
    return leaf.shape == channel.step_shape


def _space_of(channel: Channel) -> dict[str, Any]:
    """The widest space that a channel fits."""
    if channel.layout == "text":
        space = {"type": "Text", "max_length": 1, "min_length": 0, "charset": ""}
        _widen(space, channel)
        return space
    dtype, shape = _stored_dtype(channel), list(channel.step_shape)
    if dtype.kind == "b":
        if shape:
            return {"type": "MultiBinary", "n": shape}
        return {"type": "Discrete", "dtype": "int64", "start": 0, "n": 2}
    low, high = -np.inf, np.inf
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
    return {"type": "Box", "dtype": dtype.name, "shape": shape, "low": low, "high": high}


def _widen(space: dict[str, Any], channel: Channel) -> None:
    """Makes a space of text large enough for the strings of one more episode."""
    if space["type"] == "Text" and channel.layout == "text":
        texts: Any = channel.data
        space["max_length"] = max(space["max_length"], *map(len, texts), 1)
        space["charset"] = "".join(sorted(set(space["charset"]).union(*texts))) or " "


def _stored_dtype(channel: Channel) -> np.dtype[Any]:
    return np.dtype(np.float32) if channel.dtype_name is DType.BFLOAT16 else channel.dtype


def _write_channel(group: Any, path: str, channel: Channel, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group
    """Writes a channel as a dataset, piece by piece."""
    h5py = require("h5py", "minari")
    grows: dict[str, Any] = {"chunks": True, "maxshape": (None, *channel.step_shape)}
    if not len(channel) or 0 in channel.step_shape:
        grows = {}
    if channel.layout == "text":
        texts = [text.replace("\0", "\N{REPLACEMENT CHARACTER}") for text in channel.data]
        if texts != channel.data:
            notes.cast(path, "NUL characters", "U+FFFD", "HDF5 has no NUL in strings")
        dataset = group.create_dataset(path, data=texts, dtype=h5py.string_dtype(), **grows)
        _describe(dataset, channel, notes)
        return
    dtype = _stored_dtype(channel)
    if dtype != channel.dtype:
        notes.cast(path, channel.dtype_name, dtype, "HDF5 has no such type")
    dataset = group.create_dataset(path, channel.shape, dtype, **grows)
    _describe(dataset, channel, notes)
    reading = channel.uncached()
    for start, stop in channel.step_ranges(_PIECE):
        dataset[start:stop] = channel.dtype_name.as_numbers(reading.read_steps(start, stop)).astype(
            dtype, copy=False
        )


def _describe(dataset: Any, channel: Channel, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Dataset
    """Writes what is known of a channel beside its data, where Minari does not look."""
    facts = {key: getattr(channel, key) for key in _FACTS}
    known = {key: dict(one) if key in _FACT_OBJECTS else one for key, one in facts.items() if one}
    text = json.dumps(known)
    if len(text) > _MOST_ATTRIBUTE:
        notes.dropped(f"{dataset.name}: {', '.join(known)}", "too long for an attribute of HDF5")
    elif known:
        dataset.attrs[_CHANNEL_FACTS] = text


def _described(dataset: Any) -> dict[str, Any]:  # noqa: ANN401 - an h5py.Dataset
    """What `_describe` wrote; nothing in datasets that others wrote."""
    if _CHANNEL_FACTS not in dataset.attrs:
        return {}
    facts = parse_json_text(as_json_value(dataset.attrs[_CHANNEL_FACTS]))
    if not isinstance(facts, dict):
        return {}
    return {
        key: value
        for key, value in facts.items()
        if key in _FACTS and isinstance(value, dict if key in _FACT_OBJECTS else str)
    }


def _free_path(
    name: str, taken: Sequence[tuple[str | int, ...]], notes: Notes
) -> tuple[str | int, ...]:
    """The parts of a name; one part if another array is where a group would be, or the reverse."""
    parts = tuple(part for part in name.split("/") if part.strip("."))
    if parts and not any(parts[: len(at)] == at[: len(parts)] for at in taken):
        return parts
    plain = name.replace("/", "_").strip(".") or "_"
    while any(at[0] == plain for at in taken):
        plain += "_"
    notes.renamed(name, plain)
    return (plain,)


def _write_attributes(group: Any, facts: Mapping[str, Any], prefix: str, notes: Notes) -> None:  # noqa: ANN401 - an h5py.Group
    """Writes metadata as attributes; Minari joins the keys of dictionaries with `/`."""
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            _write_attributes(group, value, f"{name}/", notes)
            continue
        plain = value
        if not isinstance(value, (str, bool, int, float)) and not _is_numbers(value):
            plain = json.dumps(value)
            notes.cast(f"metadata/{name}", type(value).__name__, "JSON text")
        if len(json.dumps(plain)) > _MOST_ATTRIBUTE:
            notes.dropped(f"metadata/{name}", "it is too long for an attribute of HDF5")
            continue
        try:
            group.attrs[name] = plain
        except (OSError, TypeError, ValueError, OverflowError) as error:
            notes.dropped(f"metadata/{name}", f"HDF5 cannot hold it: {error}")
            continue
        notes.kept(f"metadata/{name}", f"attribute {name}")


def _is_numbers(value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether it is a list, or a list of lists, that HDF5 stores as an array."""
    if not isinstance(value, list) or not value:
        return False
    with contextlib.suppress(ValueError, OverflowError):
        return np.asarray(value).dtype.kind in "biuf"
    return False
