"""RLDS: datasets of episodes as TensorFlow Datasets stores them in TFRecord files, without TensorFlow.

A record is one episode: a `tf.train.Example` whose lists hold the values of all steps back to back. `features.json`
says what they are, `dataset_info.json` which files there are.

Steps: observation, action and reward of one row belong together, so N steps are N rows. A last step that says
`is_last` and has nothing but zeros as action, reward and discount holds the final observation only, as RLDS defines
it: then there are N - 1 steps and N observations. Writing does the reverse, so neither way loses a value.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.codecs import crc32c
from shard_format.errors import (
    BadMetadata,
    BadValue,
    ChecksumMismatch,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
    Truncated,
)
from shard_format.extras import require
from shard_format.sources import open_regular
from wshard._blocks import Extra
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel, is_frames
from wshard._episode import Episode
from wshard._values import BY_NAME, DType
from wshard.convert._arrays import EncodedFrames, channel_of, text_channel
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import Probe, Source, Target, inside, read_json
from wshard.convert._tf_example import ByteStrings, Example, encode_example, parse_example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from wshard.convert._arrays import Rows
    from wshard.convert._model import Notes, ReadOptions, WriteOptions

FEATURES: Final = "features.json"
INFO: Final = "dataset_info.json"
TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
OWN_FACTS: Final = "episode_metadata/wshard"
"""Where our writer puts what RLDS has no place for, as JSON: id, environment, rate and metadata of an episode."""
_CLASSES: Final = "tensorflow_datasets.core.features."
_STEPS: Final = "steps/"
_FLAT, _LENGTHS = "/ragged_flat_values", "/ragged_row_lengths_0"
# Fields of a step beside its observation, whatever they came from.
_STEP_FIELDS: Final = frozenset(
    ("discount", "is_first", "is_last", "language_instruction", "language_embedding")
)
_MOST_DEPTH: Final = 24
_MOST_UNSEEN: Final = 1_000_000
_SMALL_STEP: Final = 64
_SHARD_BYTES: Final = 512 << 20
_PIECE_BYTES: Final = 16 << 20


# --- TFRecord files

_LENGTH: Final = struct.Struct("<QI")
_RECORD_BYTES: Final = _LENGTH.size + 4
# A message of protocol buffers cannot be larger.
_MOST_RECORD: Final = (1 << 31) - 1


def masked_crc32c(data: Any) -> int:  # noqa: ANN401 - bytes
    """The checksum that TFRecord files have."""
    checksum = crc32c(data)
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record_size(head: bytes, offset: int, room: int, path: str | None) -> int:
    """The size of the content of a record, from its first 12 bytes, checked.

    Args:
        head: the bytes.
        offset: where they are in the file.
        room: how many bytes the file has from there on.
        path: the file.
    """
    if len(head) < _LENGTH.size:
        raise Truncated("the file ends within a record", path=path, offset=offset)
    size, stored = _LENGTH.unpack(head)
    if masked_crc32c(head[:8]) != stored:
        raise ChecksumMismatch("not a TFRecord, or it is damaged", path=path, offset=offset)
    if size > room - _RECORD_BYTES:
        raise Truncated(
            "the file ends within a record",
            path=path,
            offset=offset,
            expected=f"{size + _RECORD_BYTES} bytes",
            found=f"{room} bytes",
        )
    if size > _MOST_RECORD:
        raise LimitExceeded(
            "a record is too large",
            path=path,
            offset=offset,
            expected=f"at most {_MOST_RECORD} bytes",
            found=size,
        )
    return int(size)


def scan_records(read: Callable[[int, int], bytes], size: int, path: str | None) -> list[int]:
    """Where each record of a file starts, and where the last one ends; reads 12 bytes of each.

    Args:
        read: gives bytes by position and number.
        size: bytes of the file.
        path: the file, for errors.
    """
    starts, at = [0], 0
    while at < size:
        content = record_size(read(at, _LENGTH.size), at, size - at, path)
        at += content + _RECORD_BYTES
        starts.append(at)
    return starts


def record_content(record: bytes, offset: int, path: str | None) -> memoryview:
    """What a whole record holds, after its checksum was compared."""
    content = memoryview(record)[_LENGTH.size : -4]
    if masked_crc32c(content) != int.from_bytes(record[-4:], "little"):
        raise ChecksumMismatch("the content of a record is damaged", path=path, offset=offset)
    return content


class RecordFile:
    """One TFRecord file. Its records are found when the first is read.

    Args:
        path: the file.
        count: how many records it must have; None if nothing says so.
    """

    def __init__(self, path: str, count: int | None = None) -> None:
        self.path = path
        self._count = count
        self._starts: list[int] | None = None

    @property
    def starts(self) -> list[int]:
        """Where its records start, and the end."""
        if self._starts is None:
            with self._open() as file:
                size = os.fstat(file.fileno()).st_size
                starts = scan_records(
                    lambda at, count: os.pread(file.fileno(), count, at), size, self.path
                )
            if self._count not in (None, len(starts) - 1):
                raise SizeMismatch(
                    "the file has another number of records than dataset_info.json says",
                    path=self.path,
                    expected=self._count,
                    found=len(starts) - 1,
                )
            self._starts = starts
        return self._starts

    def _open(self) -> io.FileIO:
        return io.FileIO(open_regular(self.path)[0], closefd=True)

    def read(self, number: int) -> memoryview:
        """The content of one record."""
        start, stop = self.starts[number : number + 2]
        try:
            with self._open() as file:
                record = os.pread(file.fileno(), stop - start, start)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", self.path) from error
        if len(record) != stop - start:
            raise Truncated("the file ends within a record", path=self.path, offset=start)
        return record_content(record, start, self.path)


# --- features.json


class Leaf(NamedTuple):
    """One feature that has values, as `features.json` describes it."""

    kind: str
    """`"tensor"`, `"image"`, `"text"` or `"label"`."""
    dtype: str
    shape: tuple[int, ...] = ()
    """Of one step; -1 where it varies."""
    encoding: str = "none"
    """`"bytes"` and `"zlib"` store a tensor as one string."""
    depth: int = 0
    """How many lists it is in, below `steps`."""
    length: int = -1
    """Of the innermost list, if that is fixed."""

    @property
    def is_text(self) -> bool:
        """Whether its values are strings."""
        return self.kind == "text" or self.dtype in ("string", "object")

    @property
    def is_known(self) -> bool:
        """Whether its shape is."""
        return -1 not in self.shape


def leaves_of(features: Any, path: str) -> dict[str, Leaf]:  # noqa: ANN401 - JSON of a file
    """Every feature that has values, by its name in a record.

    Args:
        features: `features.json`.
        path: the file, for errors.
    """
    found: dict[str, Leaf] = {}
    waiting: list[tuple[str, Any, int, int, int]] = [("", features, 0, -1, 0)]
    while waiting:
        name, node, depth, length, level = waiting.pop()
        if level > _MOST_DEPTH:
            raise BadMetadata("features are nested too deeply", path=path, entry=name)
        if not isinstance(node, dict):
            raise BadMetadata(
                "the description of a feature is not an object", path=path, entry=name
            )
        try:
            if "featuresDict" in node:
                inner = node["featuresDict"].get("features", {})
                waiting += [
                    (f"{name}/{key}" if name else key, child, depth, length, level + 1)
                    for key, child in reversed(inner.items())
                ]
            elif "sequence" in node:
                inner = node["sequence"]
                is_steps = name == "steps"
                lists = (0, -1) if is_steps else (depth + 1, int(inner.get("length", -1)))
                waiting.append((name, inner["feature"], *lists, level + 1))
            else:
                leaf = _leaf(node, depth, length)
                if leaf is not None:
                    found[name] = leaf
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadMetadata(
                f"the description of a feature makes no sense: {error}", path=path, entry=name
            ) from None
    return found


def _leaf(node: dict[str, Any], depth: int, length: int) -> Leaf | None:
    if "text" in node:
        return Leaf("text", "string", depth=depth, length=length)
    if "classLabel" in node:
        return Leaf("label", "int64", depth=depth, length=length)
    kind = next((kind for kind in ("tensor", "image") if kind in node), None)
    if kind is None:
        return None
    inner = node[kind]
    shape = tuple(int(size) for size in inner.get("shape", {}).get("dimensions", ()))
    if len(shape) > 31 or any(not -1 <= size < 1 << 31 for size in shape):
        raise ValueError(f"shape {shape}")
    encoding = inner.get("encoding") or "none"
    if encoding not in ("none", "bytes", "zlib"):
        raise ValueError(f"unknown encoding {encoding!r}")
    return Leaf(kind, str(inner["dtype"]), shape, encoding, depth, length)


# --- reading


def recognises(probe: Probe) -> bool:
    """Whether it is a folder of TensorFlow Datasets with episodes, or a TFRecord file of one."""
    if probe.is_folder:
        return FEATURES in probe.names and _has_steps(probe.json(FEATURES))
    head = probe.head[: _LENGTH.size]
    if len(head) < _LENGTH.size or masked_crc32c(head[:8]) != _LENGTH.unpack(head)[1]:
        return False
    return _has_steps(Probe(os.path.dirname(os.path.abspath(probe.path))).json(FEATURES))


def _has_steps(features: dict[str, Any]) -> bool:
    inner = features.get("featuresDict")
    named = inner.get("features") if isinstance(inner, dict) else None
    return isinstance(named, dict) and "steps" in named


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one episode is."""

    split: str
    number: int
    """In its split."""
    file: RecordFile
    record: int


class Reader(Source):
    """Episodes of a version folder, such as `bridge/0.1.0`, or of one TFRecord file in it."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        is_folder = os.path.isdir(path)
        self._folder = path if is_folder else os.path.dirname(os.path.abspath(path))
        features_path = os.path.join(self._folder, FEATURES)
        if not os.path.exists(features_path):
            raise InvalidArgument(
                f"{FEATURES} is missing: without it the types and shapes of the values are not known",
                path=self._folder,
                hint="give the version folder of the dataset, such as bridge/0.1.0",
            )
        self._features = read_json(features_path)
        self._leaves = leaves_of(self._features, features_path)
        info_path = os.path.join(self._folder, INFO)
        info = read_json(info_path) if os.path.exists(info_path) else {}
        if not isinstance(info, dict):
            raise BadMetadata("not a JSON object", path=info_path)
        self._info = info
        _check_container(self._folder, str(info.get("fileFormat") or "tfrecord"))
        if is_folder:
            self._places = list(self._of_splits(info, info_path))
        else:
            file = RecordFile(path)
            split = os.path.basename(path).partition(".tfrecord")[0].rpartition("-")[2] or "data"
            self._places = [_Place(split, n, file, n) for n in range(len(file.starts) - 1)]
        self._labels = _read_labels(self._folder, self._leaves)

    def _of_splits(self, info: dict[str, Any], path: str) -> Iterator[_Place]:
        splits = info.get("splits")
        if not splits:
            names = sorted(name for name in os.listdir(self._folder) if ".tfrecord" in name)
            for name in names:
                # Without numbers of shards, each file counts as a split of its own.
                file = RecordFile(os.path.join(self._folder, name))
                stem = name.replace(".tfrecord", "")
                yield from (_Place(stem, n, file, n) for n in range(len(file.starts) - 1))
            return
        for split in splits if isinstance(splits, list) else ():
            try:
                name = str(split["name"])
                lengths = [int(length) for length in split.get("shardLengths", ())]
                template = str(split.get("filepathTemplate") or TEMPLATE)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise BadMetadata(
                    f"the description of a split makes no sense: {error}", path=path
                ) from None
            number = 0
            for shard, length in enumerate(lengths):
                shard_path = self._shard_path(template, name, shard, len(lengths))
                _check_length(shard_path, length, path, name)
                file = RecordFile(shard_path, length)
                for record in range(length):
                    yield _Place(name, number, file, record)
                    number += 1

    def _shard_path(self, template: str, split: str, shard: int, shards: int) -> str:
        index, count = f"{shard:05d}", f"{shards:05d}"
        facts = {
            "DATASET": str(self._info.get("name", "")),
            "SPLIT": split,
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": index,
            "NUM_SHARDS": count,
            "SHARD_X_OF_Y": f"{index}-of-{count}",
        }
        name = template
        # Not `format`: the template comes from the file.
        for field, value in facts.items():
            name = name.replace(f"{{{field}}}", value)
        return inside(self._folder, name, what="the name of a shard")

    def names(self) -> Sequence[str]:
        return [f"{place.split}_{place.number}" for place in self._places]

    def read(self, number: int, notes: Notes) -> Episode:
        place = self._places[number]
        name = f"{place.split}_{place.number}"
        content = place.file.read(place.record)
        try:
            record = RecordParser(parse_example(content), self._leaves, place.file.path, notes)
            episode = record.episode(name)
        except ShardError as error:
            raise error.located(path=place.file.path) from None
        facts = {
            "split": place.split,
            "features": self._features,
            "fields": record.fields,
            "episode": record.facts,
            "labels": self._labels,
        }
        for field, classes in self._labels.items():
            channel = record.channels.get(field)
            if channel is not None:
                channel.extra = {**channel.extra, "classes": classes}
        if record.is_own:
            if place.split != "train":
                episode.metadata["rlds"] = {"split": place.split}
            return episode
        episode.metadata["rlds"] = {key: value for key, value in facts.items() if value}
        dataset = {
            key: as_json_value(value) for key, value in self._info.items() if key not in _LAYOUT
        }
        if dataset:
            episode.metadata["dataset"] = dataset
        return episode


_LAYOUT: Final = ("splits", "fileFormat", "moduleName")


def _check_container(folder: str, form: str) -> None:
    if form not in ("tfrecord", "tfrecords"):
        raise InvalidArgument(
            f"datasets in {form} files cannot be read, only in TFRecord files",
            path=folder,
            expected="fileFormat tfrecord",
            found=form,
            hint="convert it with: tfds convert_format --root_data_dir=… --out_file_format=tfrecord --out_path=…",
        )


def _check_length(shard: str, length: int, path: str, split: str) -> None:
    """Refuses a number of records that the file cannot have, before a name is made for each."""
    try:
        most = os.stat(shard).st_size // _RECORD_BYTES
    except OSError:
        most = (
            _MOST_UNSEEN  # some shards were not downloaded: reading one of their episodes says so
        )
    if not 0 <= length <= most:
        raise BadMetadata(
            "a shard cannot have as many records as this",
            path=path,
            entry=split,
            expected=f"at most {most} in {os.path.basename(shard)}",
            found=length,
        )


def _read_labels(folder: str, leaves: dict[str, Leaf]) -> dict[str, list[str]]:
    """The names of classes, by feature."""
    found: dict[str, list[str]] = {}
    for name, leaf in leaves.items():
        path = os.path.join(folder, f"{name.replace('/', '-')}.labels.txt")
        if leaf.kind == "label" and os.path.isfile(path):
            with io.TextIOWrapper(
                io.FileIO(open_regular(path)[0]), "utf-8", errors="replace"
            ) as file:
                found[name] = file.read(1 << 24).splitlines()
    return found


class RecordParser:
    """One record on its way to an episode."""

    def __init__(self, example: Example, leaves: dict[str, Leaf], path: str, notes: Notes) -> None:
        self._example = example
        self._leaves = leaves
        self._path = path
        self._notes = notes
        self._used: set[str] = set()
        self.fields: dict[str, str] = {}
        """By the name of a block the feature that it comes from, where that does not follow from the name."""
        self.facts: dict[str, Any] = {}
        """Numbers and texts beside the steps, by feature."""
        self.channels: dict[str, Channel] = {}
        """The channels of the steps, by feature."""
        self._own: dict[str, Any] | None = None
        if OWN_FACTS in leaves and OWN_FACTS in example.names:
            self._own = self._own_facts()

    @property
    def is_own(self) -> bool:
        """Whether our writer wrote it from an episode of another origin."""
        return self._own is not None

    def episode(self, name: str) -> Episode:
        """The episode."""
        episode = Episode(name)
        for feature, leaf in self._leaves.items():
            if feature.startswith(_STEPS) and self._find(feature, leaf):
                self.channels[feature] = self._channel(feature, leaf)
        steps = self._check_lengths()
        self._place_steps(episode, steps)
        for feature, leaf in self._leaves.items():
            if not feature.startswith(_STEPS) and self._find(feature, leaf):
                self._place_fact(episode, feature, leaf)
        self._place_rest(episode)
        self._restore_own_facts(episode)
        return episode

    def _find(self, feature: str, leaf: Leaf) -> bool:
        """Whether the record has the feature in a form that becomes a channel or a fact."""
        names, in_steps = self._example.names, feature.startswith(_STEPS)
        is_number = not leaf.is_text and leaf.kind != "image" and leaf.dtype in BY_NAME
        if in_steps and leaf.depth == 1 and {feature + _FLAT, feature + _LENGTHS} <= names:
            return is_number and leaf.encoding == "none" and leaf.is_known
        if feature in names:
            if leaf.depth > (0 if in_steps else 1):
                return False
            if leaf.kind == "image":
                return in_steps and all(map(len, self._strings(feature)))
            if leaf.kind == "tensor" and leaf.is_text and in_steps:
                return not leaf.shape and leaf.encoding == "none" and self._is_utf8(feature)
            if leaf.encoding != "none":
                return is_number and in_steps and leaf.is_known
            return is_number or leaf.is_text
        if any(one.startswith(feature + "/") for one in names):
            return False  # a form that only the same format has; kept as it is
        raise BadValue("the record lacks a feature of features.json", entry=feature)

    def _is_utf8(self, feature: str) -> bool:
        try:
            for value in self._strings(feature):
                str(value, "utf-8")
        except UnicodeDecodeError:
            return False
        return True

    def _strings(self, feature: str) -> ByteStrings:
        values = self._example.values(feature)
        if not isinstance(values, ByteStrings):
            raise BadValue(
                "a feature has numbers where texts or pictures are expected", entry=feature
            )
        return values

    def _numbers(self, feature: str, leaf: Leaf) -> NDArray[Any]:
        """All numbers of a feature in the type that `features.json` says."""
        self._used.add(feature)
        values = self._example.values(feature)
        try:
            dtype = DType.parse(leaf.dtype)
        except InvalidArgument as error:
            raise error.located(entry=feature) from None
        kind = self._example.kind(feature)
        if kind and (kind != ("floats" if dtype.is_float else "integers")):
            raise BadValue(
                "a feature has values of another type than features.json says",
                entry=feature,
                expected=leaf.dtype,
                found=kind,
            )
        if isinstance(values, ByteStrings):
            return np.zeros(0, dtype.numpy_dtype)
        if values.dtype.kind == "i" and dtype is not DType.BOOL and dtype.size < 8 and len(values):
            low, high = int(values.min()), int(values.max())
            bounds = np.iinfo(dtype.numpy_dtype)
            if low < bounds.min or high > bounds.max:
                raise BadValue(
                    "a number does not fit into its type",
                    entry=feature,
                    expected=leaf.dtype,
                    found=low if low < bounds.min else high,
                )
        return values.astype(dtype.numpy_dtype, copy=False)

    def _channel(self, feature: str, leaf: Leaf) -> Channel:
        """The values of all steps, whatever their number is."""
        name = feature
        if leaf.depth:
            return self._ragged(feature, leaf)
        if leaf.is_text and not leaf.shape:
            self._used.add(feature)
            return text_channel(name, map(bytes, self._strings(feature)))
        if leaf.kind == "image":
            return self._pictures(feature, leaf)
        if leaf.encoding != "none":
            self._used.add(feature)
            rows = EncodedTensors(feature, self._strings(feature), leaf, self._path)
            return channel_of(name, rows, path=self._path)
        values = self._numbers(feature, leaf)
        try:
            return Channel(name, data=values.reshape(self._rows(leaf, len(values)), *leaf.shape))
        except ValueError:
            raise SizeMismatch(
                "a feature has a number of values that is not a whole number of steps",
                entry=feature,
                expected=f"a multiple of {list(leaf.shape)}",
                found=len(values),
            ) from None

    def _rows(self, leaf: Leaf, count: int) -> int:
        """How many steps there are, where one dimension of a step is not known."""
        if not leaf.is_known:
            firsts = ("steps/is_first", "steps/is_last", "steps/is_terminal", "steps/reward")
            for first in firsts:
                if first in self._example.names:
                    return len(self._example.values(first))
        return count // prod(leaf.shape) if prod(leaf.shape) else 0

    def _ragged(self, feature: str, leaf: Leaf) -> Channel:
        values = self._numbers(feature + _FLAT, leaf)
        lengths = self._numbers(feature + _LENGTHS, Leaf("tensor", "int64"))
        self._used |= {feature + _FLAT, feature + _LENGTHS}
        items = len(values) // max(1, prod(leaf.shape))
        if len(lengths) and (lengths.min() < 0 or lengths.max() > items or lengths.sum() != items):
            raise SizeMismatch(
                "the lengths of the lists of a feature do not add up to the number of its values",
                entry=feature,
                expected=items,
                found=int(lengths.sum()),
            )
        try:
            rows = values.reshape(items, *leaf.shape)
            if leaf.length >= 0 and len(lengths) and (lengths == leaf.length).all():
                return Channel(feature, data=rows.reshape(len(lengths), leaf.length, *leaf.shape))
        except ValueError:
            raise SizeMismatch(
                "a feature has a number of values that is not a whole number of items",
                entry=feature,
                expected=f"a multiple of {list(leaf.shape)}",
                found=len(values),
            ) from None
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return RaggedChannel(feature, values=rows, offsets=offsets)

    def _pictures(self, feature: str, leaf: Leaf) -> Channel:
        self._used.add(feature)
        frames = self._strings(feature)
        if not len(frames):
            shape = tuple(max(0, size) for size in leaf.shape)
            return Channel(feature, data=np.zeros((0, *shape), leaf.dtype))
        rows = Pictures(feature, frames, leaf, self._path)
        is_colour = rows.shape[-1] in (3, 4) and leaf.dtype == "uint8"
        modality = Modality.RGB if is_colour else Modality.DEPTH if leaf.dtype != "uint8" else None
        channel = channel_of(feature, rows, path=self._path, modality=modality)
        if bytes(frames[0][:3]) == b"\xff\xd8\xff":
            channel.lossy = {"codec": "jpeg"}
            self._notes.decoded(feature, "JPEG pictures became pixels")
        return channel

    def _check_lengths(self) -> int:
        """The number of steps, on which all features must agree."""
        steps: dict[int, str] = {}
        for feature, channel in self.channels.items():
            if prod(channel.step_shape) or channel.length:
                steps.setdefault(channel.length, feature)
        if len(steps) > 1:
            (first, one), (second, other) = list(steps.items())[:2]
            raise SizeMismatch(
                "features have different numbers of steps",
                entry=other,
                expected=f"{first} steps as {one}",
                found=f"{second} steps",
            )
        return next(iter(steps), 0)

    # --- where each feature goes

    def _place_steps(self, episode: Episode, steps: int) -> None:
        flags = {name: self._flag(name, steps) for name in ("is_first", "is_last", "is_terminal")}
        actions = {
            feature: channel
            for feature, channel in self.channels.items()
            if feature == "steps/action" or feature.startswith("steps/action/")
        }
        reward = self.channels.get("steps/reward")
        if reward is not None and (reward.step_shape or reward.layout != "dense"):
            reward = None
        is_last, is_terminal = flags["is_last"], flags["is_terminal"]
        ends_here = is_last is not None and steps > 1 and is_last[-1] and not is_last[:-1].any()
        beside = [*actions.values(), *([reward] if reward is not None else [])]
        if "steps/discount" in self.channels:
            beside.append(self.channels["steps/discount"])
        has_final = bool(
            ends_here
            and actions
            and (is_terminal is None or not is_terminal[:-1].any())
            and all(_is_zero(channel, steps - 1) for channel in beside)
        )
        if self._own is not None:
            has_final = 0 <= self._own["length"] == steps - 1
        length = episode.length = steps - 1 if has_final else steps
        for feature, channel in self.channels.items():
            lane, name = address_of(feature)
            if channel is reward:
                episode.rewards = _renamed(channel, "reward", length)
                self._notes.kept(feature, "reward")
            elif lane == "action":
                self._put(episode.actions, f"action/{name}", name, feature, channel, length)
            elif name in flags and self._is_implied(name, flags, steps):
                self._notes.kept(feature, "terminated" if name == "is_terminal" else "implied by T")
            elif lane == "omen":
                target, _, model = name.rpartition("/")
                episode.omens[target][model] = _renamed(channel, target, channel.length)
                self._notes.kept(feature, f"omen/{name}")
            elif lane == "uncert" and name.count("/") >= 2:
                target, model, kind = name.rsplit("/", 2)
                episode.uncerts[target][model][kind] = _renamed(channel, target, channel.length)
                self._notes.kept(feature, f"uncert/{name}")
            elif feature == "steps/timestamps_ns" and self.is_own:
                episode.timestamps_ns = channel.data[:length]
                self._notes.kept(feature, "time/timestamps_ns")
            else:
                self._put(episode.observations, f"signal/{name}", name, feature, channel, steps)
        if is_terminal is not None:
            shift = 1 if has_final else 0
            episode.terminations = is_terminal[shift:]
            if is_last is not None:
                episode.truncations = (is_last & ~is_terminal)[shift:]
        if self._own is not None:
            # The format needs flags that the episode did not have.
            if "terminated" not in self._own["ends"]:
                episode.terminations = None
            if "truncated" not in self._own["ends"]:
                episode.truncations = None
        for field in (
            "steps/language_instruction",
            "steps/observation/natural_language_instruction",
        ):
            texts = self.channels.get(field)
            if isinstance(texts, TextChannel) and "task" not in episode.metadata:
                task = next(filter(None, texts.data), "")
                if task:
                    episode.metadata["task"] = task

    def _flag(self, name: str, steps: int) -> NDArray[np.bool_] | None:
        channel = self.channels.get(f"steps/{name}")
        if channel is None or channel.step_shape or channel.layout != "dense":
            return None
        if channel.dtype_name is not DType.BOOL or channel.length != steps:
            return None
        return channel.data

    def _is_implied(self, name: str, flags: dict[str, Any], steps: int) -> bool:
        """Whether writing would make the same flags of the episode without them."""
        flag = flags[name]
        if flag is None:
            return False
        if name == "is_terminal":
            return True
        expected = np.zeros(steps, np.bool_)
        expected[0 if name == "is_first" else -1 :][:1] = True
        return bool((flag == expected).all())

    def _put(
        self,
        lane: Any,  # noqa: ANN401 - a lane
        block: str,
        name: str,
        feature: str,
        channel: Channel,
        length: int,
    ) -> None:
        if name in lane:
            name, block = feature, f"{block.partition('/')[0]}/{feature}"
            self._notes.renamed(feature, block)
        else:
            self._notes.kept(feature, block)
        if feature_of(block) != feature:
            self.fields[block] = feature
        lane[name] = _renamed(channel, name, length)

    def _place_fact(self, episode: Episode, feature: str, leaf: Leaf) -> None:
        """A feature beside the steps: a number or text becomes metadata, an array an extra."""
        self._used.add(feature)
        if leaf.is_text:
            texts = [bytes(text) for text in self._strings(feature)]
            try:
                strings = [text.decode() for text in texts]
            except UnicodeDecodeError:
                self._used.discard(feature)
                return
            if not leaf.depth and not leaf.shape and len(strings) == 1:
                self.facts[feature] = strings[0]
            else:
                self.facts[feature] = strings
        else:
            values = self._numbers(feature, leaf)
            if not leaf.depth and not leaf.shape and len(values) == 1:
                self.facts[feature] = as_json_value(values[0])
            else:
                try:
                    shaped = values.reshape(
                        -1 if leaf.depth else leaf.shape, *(leaf.shape if leaf.depth else ())
                    )
                except (ValueError, TypeError):
                    shaped = values.reshape(_whole_shape(leaf, len(values), feature))
                extra = Channel(data=shaped)
                extra.has_stated_length = True  # its first axis is not steps
                episode.extras[f"rlds/{feature}"] = extra
                self._notes.kept(feature, f"rlds/{feature}")
                return
        self._notes.kept(feature, f"metadata rlds.episode[{feature!r}]")
        last = feature.rpartition("/")[2]
        if last == "success" and isinstance(self.facts[feature], bool):
            episode.metadata["success"] = self.facts[feature]
        elif last == "seed" and isinstance(self.facts[feature], int):
            episode.metadata["seed"] = self.facts[feature]

    def _place_rest(self, episode: Episode) -> None:
        """What has no other place in an episode stays as it is in the record."""
        for feature in sorted(self._example.names - self._used):
            episode.extras[f"rlds/{feature}"] = self._example.encoded(feature)
            self._notes.kept(feature, f"rlds/{feature}, as it is encoded there")

    def _own_facts(self) -> dict[str, Any]:
        """What our writer stored beside the steps, checked."""
        try:
            facts = json.loads(bytes(self._strings(OWN_FACTS)[0]))
            return {
                "id": str(facts["id"]),
                "env_id": str(facts["env_id"]),
                "length": int(facts["length"]),
                "ends": list(map(str, facts["ends"])),
                "tick_hz": None if facts["tick_hz"] is None else float(facts["tick_hz"]),
                "epoch_ns": int(facts["epoch_ns"]),
                "metadata": dict(facts["metadata"]),
            }
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise BadValue(f"not what our writer stores: {error!r}", entry=OWN_FACTS) from None

    def _restore_own_facts(self, episode: Episode) -> None:
        own = self._own
        if own is None:
            return
        self.facts.pop(OWN_FACTS, None)
        episode.id, episode.env_id = own["id"], own["env_id"]
        episode.metadata = {**own["metadata"], **episode.metadata}
        episode.timebase.tick_hz, episode.timebase.epoch_ns = own["tick_hz"], own["epoch_ns"]


def _whole_shape(leaf: Leaf, count: int, feature: str) -> tuple[int, ...]:
    """The shape of an array beside the steps of which one dimension is not stated."""
    known = prod(size for size in leaf.shape if size >= 0)
    if (
        leaf.depth
        or leaf.shape.count(-1) != 1
        or (known and count % known)
        or (not known and count)
    ):
        raise SizeMismatch(
            "a feature has another number of values than its shape needs",
            entry=feature,
            expected=list(leaf.shape),
            found=count,
        )
    return tuple(size if size >= 0 else count // max(1, known) for size in leaf.shape)


def address_of(feature: str) -> tuple[str, str]:
    """The lane and the name of a feature of the steps."""
    name = feature.removeprefix(_STEPS)
    group, _, rest = name.partition("/")
    if group == "observation":
        return "signal", rest or "observation"
    if group == "action":
        return "action", rest or "action"
    if group in ("omen", "uncert") and "/" in rest:
        return group, rest
    return "signal", name


def feature_of(block: str) -> str:
    """The feature that a block becomes, unless it came from another: the reverse of `address_of`."""
    lane, _, name = block.partition("/")
    if lane in ("omen", "uncert"):
        return f"steps/{lane}/{name}"
    if lane == "action":
        return "steps/action" if name == "action" else f"steps/action/{name}"
    if name == "observation":
        return "steps/observation"
    return f"steps/{name}" if name in _STEP_FIELDS else f"steps/observation/{name}"


def _renamed(channel: Channel, name: str, length: int) -> Channel:
    short = channel if channel.length == length else channel.sliced(0, length)
    short.name = name
    return short


def _is_zero(channel: Channel, step: int) -> bool:
    """Whether a step holds nothing: zeros, no items, an empty text."""
    value = channel[step]
    if isinstance(channel, RaggedChannel):
        return not len(value)
    return not np.any(value)


class EncodedTensors:
    """Tensors of known shape, each stored as one string, decoded when they are used."""

    def __init__(self, name: str, strings: ByteStrings, leaf: Leaf, path: str) -> None:
        self._name = name
        self._strings = strings
        self._is_compressed = leaf.encoding == "zlib"
        self._path = path
        self.dtype = DType.parse(leaf.dtype).numpy_dtype
        self.shape = (len(strings), *leaf.shape)

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        count = max(0, stop - start)
        size = prod(self.shape[1:]) * self.dtype.itemsize
        pieces = [self._decoded(step, size) for step in range(start, start + count)]
        flat = np.frombuffer(b"".join(pieces), self.dtype)
        return flat.reshape(count, *self.shape[1:])

    def _decoded(self, step: int, size: int) -> bytes | memoryview:
        data: bytes | memoryview = self._strings[step]
        if self._is_compressed:
            try:
                data = zlib.decompressobj().decompress(data, size + 1)
            except zlib.error as error:
                raise BadValue(
                    f"a compressed tensor is damaged: {error}",
                    path=self._path,
                    entry=f"{self._name}, step {step}",
                ) from None
        if len(data) != size:
            raise SizeMismatch(
                "a tensor has another size than its shape needs",
                path=self._path,
                entry=f"{self._name}, step {step}",
                expected=f"{size} bytes",
                found=f"{len(data)} bytes" if len(data) < size else "more",
            )
        return data


class Pictures:
    """Pictures with the channels and the type that `features.json` says, decoded when they are used."""

    def __init__(self, name: str, frames: ByteStrings, leaf: Leaf, path: str) -> None:
        self._frames: Rows = EncodedFrames(name, frames, path)
        self._name = name
        self._path = path
        self._channels = leaf.shape[-1] if len(leaf.shape) == 3 else -1
        self._is_float = leaf.dtype == "float32"
        fitted = self._fitted(np.zeros((1, *self._frames.shape[1:]), self._frames.dtype))
        self.shape = (len(frames), *fitted.shape[1:])
        self.dtype = fitted.dtype
        if self.dtype.name != leaf.dtype or any(
            size not in (-1, found) for size, found in zip(leaf.shape, self.shape[1:], strict=False)
        ):
            raise InvalidArgument(
                "the pictures are not what features.json says",
                path=path,
                entry=name,
                expected=f"{leaf.dtype}{list(leaf.shape)}",
                found=f"{self.dtype}{list(self.shape[1:])}",
            )

    def _fitted(self, frames: NDArray[Any]) -> NDArray[Any]:
        if frames.ndim == 3:
            frames = frames[..., None]
        if self._is_float and frames.shape[-1] == 4:
            # A number is stored as the four bytes of a pixel.
            return np.ascontiguousarray(frames).view("<f4")
        if self._channels == 3 and frames.shape[-1] == 1:
            return np.repeat(frames, 3, axis=-1)
        if self._channels == 3 and frames.shape[-1] == 4:
            return frames[..., :3]
        return frames

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        return self._fitted(self._frames[rows])


# --- writing


class _Plan:
    """What the features of one episode are when it is written."""

    def __init__(self, episode: Episode, notes: Notes) -> None:
        self.episode = episode
        self.notes = notes
        origin = episode.metadata.get("rlds")
        self.origin: dict[str, Any] = origin if isinstance(origin, dict) else {}
        self.is_own = not isinstance(self.origin.get("features"), dict)
        self._known = {} if self.is_own else leaves_of(self.origin["features"], "metadata rlds")
        self.channels: dict[str, tuple[Leaf, Channel]] = {}
        """Of the steps, by feature."""
        self.facts: dict[str, tuple[Leaf, Any]] = {}
        """Beside the steps, by feature."""
        self.encoded: dict[str, bytes] = {}
        """Lists that are written as they are, by their names in a record."""
        length = episode.length
        self.rows = length + any(
            not channel.has_own_clock and channel.length == length + 1
            for channel in episode.observations.values()
        )
        self._plan_lanes()
        self._plan_flags()
        self._plan_facts()

    def _plan_lanes(self) -> None:
        episode, notes = self.episode, self.notes
        fields = self.origin.get("fields")
        stated = fields if isinstance(fields, dict) else {}
        for block, channel in episode.blocks():
            lane = block.partition("/")[0]
            if lane in ("terminated", "truncated"):
                continue
            if lane == "reward":
                self._add("steps/reward", block, channel)
                continue
            feature = stated.get(block)
            if not isinstance(feature, str) or not feature.startswith(_STEPS):
                feature = feature_of(block)
            if channel.has_own_clock:
                notes.dropped(block, "RLDS has one clock: resample it with ep.align() to keep it")
            elif channel.length not in (episode.length, self.rows):
                notes.dropped(block, f"{channel.length} entries for {episode.length} steps")
            else:
                self._add(feature, block, channel)
        if episode.timestamps_ns is not None and self.is_own:
            times = episode.step_times_ns(self.rows)
            self._add("steps/timestamps_ns", "time/timestamps_ns", Channel(data=times))
        elif episode.timestamps_ns is not None:
            notes.dropped("time/timestamps_ns", "the features of the dataset have no times")
        for lane in ("residual", "label"):
            for address in episode.parts:
                if address[0] == lane:
                    notes.dropped("/".join(address), "RLDS has no place for it")

    def _add(self, feature: str, block: str, channel: Channel) -> None:
        free = feature
        names = self.channels
        if free in ("steps/observation", "steps/action") and any(
            other.startswith(f"{block.partition('/')[0]}/") and other != block
            for other, _ in self.episode.blocks()
        ):
            free = f"{free}/{free.removeprefix(_STEPS)}"
        if any(
            one == free or one.startswith(f"{free}/") or free.startswith(f"{one}/") for one in names
        ):
            # A feature cannot be values and a group of features.
            group, _, rest = free.removeprefix(_STEPS).partition("/")
            free = f"steps/{group}/{rest.replace('/', '_')}_"
            if free in names:
                self.notes.dropped(block, f"the name {feature} is taken")
                return
        leaf = self._known.get(free)
        if leaf is None or not fits(leaf, channel):
            leaf = default_leaf(channel)
            if block == "reward" and leaf.dtype == "float32":
                # The next episode may need more bits: a file of ours stores rewards in as few as hold them.
                leaf = Leaf("tensor", "float64", leaf.shape, "bytes")
        if channel.dtype_name is DType.BFLOAT16 and leaf.dtype == "float32":
            self.notes.cast(block, "bf16", "float32", "TensorFlow Datasets has no such type")
        self.channels[free] = (leaf, channel)
        if free == feature:
            self.notes.kept(block, free)
        else:
            self.notes.renamed(block, free)

    def _plan_flags(self) -> None:
        episode, rows, length = self.episode, self.rows, self.episode.length
        flags = {name: np.zeros(rows, np.bool_) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][:1] = flags["is_last"][-1:] = True
        ends = episode.terminations
        if ends is not None:
            flags["is_terminal"][rows - length :] = ends.data[:length]
            self.notes.kept("terminated", "steps/is_terminal")
        elif self.is_own or "steps/is_terminal" in self._known:
            self.notes.filled("steps/is_terminal", "false: the episode does not say how it ended")
        cut = episode.truncations
        if cut is not None:
            implied = flags["is_last"] & ~flags["is_terminal"]
            if (implied[rows - length :] == cut.data).all():
                self.notes.kept("truncated", "steps/is_last without steps/is_terminal")
            else:
                self.notes.dropped("truncated", "RLDS marks the last step only")
        for name, flag in flags.items():
            feature = f"steps/{name}"
            if feature not in self.channels and (self.is_own or feature in self._known):
                self.channels[feature] = (Leaf("tensor", "bool"), Channel(data=flag))

    def _plan_facts(self) -> None:
        episode, notes = self.episode, self.notes
        stated = self.origin.get("episode")
        for feature, value in (stated if isinstance(stated, dict) else {}).items():
            leaf = self._known.get(feature)
            if leaf is not None and not feature.startswith(_STEPS):
                self.facts[feature] = (leaf, value)
        for name, extra in episode.extras.items():
            feature = name.removeprefix("rlds/")
            leaf = self._known.get(feature)
            if feature == name or self.is_own:
                notes.dropped(name, "RLDS has no place for it")
            elif isinstance(extra, Extra):
                self.encoded[feature] = bytes(extra.data)
            elif leaf is not None:
                self.facts[feature] = (leaf, extra.data)
        metadata = {key: value for key, value in episode.metadata.items() if key != "rlds"}
        if self.is_own:
            own = {
                "id": episode.id,
                "env_id": episode.env_id,
                "length": episode.length,
                "ends": [
                    name
                    for name, flags in (
                        ("terminated", episode.terminations),
                        ("truncated", episode.truncations),
                    )
                    if flags is not None
                ],
                "tick_hz": episode.timebase.tick_hz,
                "epoch_ns": episode.timebase.epoch_ns,
                "metadata": metadata,
            }
            text = json.dumps(own, ensure_ascii=False)
            self.facts[OWN_FACTS] = (Leaf("text", "string"), text)
            notes.kept("metadata", OWN_FACTS)
        else:
            for key in metadata.keys() - {"dataset", "task", "success", "seed"}:
                notes.dropped(f"metadata {key}", "the features of the dataset have no place for it")

    def features(self) -> dict[str, Any]:
        """`features.json` for episodes like this one."""
        root: dict[str, Any] = _node("features_dict.FeaturesDict", featuresDict={"features": {}})
        if not self.is_own:
            root = json.loads(json.dumps(self.origin["features"]))
        names = {*self.channels, *self.facts, *self.encoded}
        _prune(root, "", names)
        leaves = {name: leaf for name, (leaf, _) in (*self.channels.items(), *self.facts.items())}
        for name, leaf in leaves.items():
            if self._known.get(name) != leaf:
                _insert(root, name, leaf)
        return root


def fits(leaf: Leaf, channel: Channel) -> bool:
    """Whether a feature holds the values of a channel."""
    if leaf.is_text or isinstance(channel, TextChannel):
        return (
            leaf.is_text and isinstance(channel, TextChannel) and not leaf.depth + len(leaf.shape)
        )
    if leaf.dtype != channel.dtype_name.numpy_dtype.name:
        # A wider type is fine: a file of ours keeps 64-bit rewards that 32 bits hold exactly in 32 bits.
        wide = BY_NAME.get(leaf.dtype)
        is_number = wide is not None and DType.BFLOAT16 not in (wide, channel.dtype_name)
        if leaf.kind == "image" or wide is None or not is_number:
            return False
        if not np.can_cast(channel.dtype, wide.numpy_dtype, "safe"):
            return False
    if isinstance(channel, RaggedChannel):
        return leaf.depth == 1 and leaf.encoding == "none" and leaf.shape == channel.step_shape
    shape = leaf.shape if not leaf.depth else (leaf.length, *leaf.shape)
    if leaf.depth > 1 or len(shape) != len(channel.step_shape):
        return False
    return all(size in (-1, found) for size, found in zip(shape, channel.step_shape, strict=True))


def default_leaf(channel: Channel) -> Leaf:
    """How a channel is stored that did not come from RLDS: as it is, or rounded if there is no other way."""
    if isinstance(channel, TextChannel):
        return Leaf("text", "string")
    dtype, shape = channel.dtype_name, channel.step_shape
    name = "float32" if dtype is DType.BFLOAT16 else dtype.numpy_dtype.name
    if isinstance(channel, RaggedChannel):
        return Leaf("tensor", name, shape, depth=1)
    is_picture = len(shape) == 3 and is_frames(channel)
    if is_picture and dtype is DType.UINT8 and shape[2] in (1, 3, 4):
        return Leaf("image", name, shape)
    if is_picture and dtype is DType.UINT16 and shape[2] == 1:
        return Leaf("image", name, shape)
    # The lists of an example hold 32-bit floats and 64-bit integers; large arrays of bytes would take twice the room.
    is_plain = name in ("float32", "bool") or (
        dtype is not DType.UINT64 and not dtype.is_float and prod(shape) <= _SMALL_STEP
    )
    return Leaf("tensor", name, shape, "none" if is_plain else "bytes")


def _node(name: str, **content: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"pythonClassName": _CLASSES + name, **content}


def _describe(leaf: Leaf) -> dict[str, Any]:
    """The node of a feature in `features.json`."""
    shape = {"dimensions": [str(size) for size in leaf.shape]} if leaf.shape else {}
    if leaf.is_text:
        node = _node("text_feature.Text", text={})
    elif leaf.kind == "image":
        facts = {"shape": shape, "dtype": leaf.dtype, "encodingFormat": "png"}
        node = _node("image_feature.Image", image=facts)
    else:
        facts = {"shape": shape, "dtype": leaf.dtype, "encoding": leaf.encoding}
        node = _node("tensor_feature.Tensor", tensor=facts)
    for _ in range(leaf.depth):
        inner = {"feature": node, "length": str(leaf.length)}
        node = _node("sequence_feature.Sequence", sequence=inner)
    return node


def _prune(node: dict[str, Any], name: str, names: set[str]) -> bool:
    """Removes features that an episode does not have; says whether any are left. Pictures are PNG from now on."""
    if "featuresDict" in node:
        inner = node["featuresDict"].get("features", {})
        for key in list(inner):
            if not _prune(inner[key], f"{name}/{key}" if name else key, names):
                del inner[key]
        return bool(inner)
    if name == "steps":
        return _prune(node["sequence"]["feature"], name, names)
    if "image" in node and name in names:
        node["image"]["encodingFormat"] = "png"
    return any(one == name or one.startswith(f"{name}/") for one in names)


def _insert(root: dict[str, Any], name: str, leaf: Leaf) -> None:
    node, parts = root, name.split("/")
    for depth, part in enumerate(parts):
        inner = node["featuresDict"].setdefault("features", {})
        if depth == len(parts) - 1:
            inner[part] = _describe(leaf)
            return
        empty = _node("features_dict.FeaturesDict", featuresDict={"features": {}})
        if depth == 0 and part == "steps":
            steps = {"feature": empty, "length": "-1"}
            node = inner.setdefault(part, _node("dataset_feature.Dataset", sequence=steps))
            node = node["sequence"]["feature"]
        else:
            node = inner.setdefault(part, empty)


class Writer(Target):
    """A version folder of TensorFlow Datasets. The first episode decides which features there are."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        os.makedirs(path)
        self._features: dict[str, Any] = {}
        self._leaves: dict[str, Leaf] = {}
        self._info: dict[str, Any] = {}
        self._encoded: set[str] = set()
        self._splits: dict[str, _Split] = {}

    def write(self, episode: Episode, notes: Notes) -> None:
        plan = _Plan(episode, notes)
        if not self._features:
            self._start(plan)
        features: dict[str, Any] = {}
        values = {**plan.channels, **plan.facts}
        for name, leaf in self._leaves.items():
            given = values.pop(name, None)
            source = None if given is None else given[1]
            if given is not None and given[0] != leaf:
                own = f"{given[0].dtype}{list(given[0].shape)}"
                if not isinstance(source, Channel) or not fits(leaf, source):
                    notes.dropped(name, f"{own} in a dataset of {leaf.dtype}{list(leaf.shape)}")
                    source = None
                elif given[0].dtype != leaf.dtype and name != "steps/reward":
                    notes.cast(name, given[0].dtype, leaf.dtype, "as in the first episode")
            if source is None:
                notes.filled(
                    name, "empty values: the first episode of the dataset has this feature"
                )
            features.update(_encode(name, leaf, source, plan.rows, notes))
        for name in values:
            notes.dropped(name, "the first episode of the dataset does not have this feature")
        for name in self._encoded - plan.encoded.keys():
            notes.filled(name, "empty values: the first episode of the dataset has this feature")
        features.update(dict.fromkeys(self._encoded, b""))
        for name, data in plan.encoded.items():
            if name in self._encoded:
                features[name] = data
            else:
                notes.dropped(name, "the first episode of the dataset does not have this feature")
        split = plan.origin.get("split")
        self._split(split if isinstance(split, str) else "train").write(encode_example(features))

    def _start(self, plan: _Plan) -> None:
        self._features = plan.features()
        everything = (*plan.channels.items(), *plan.facts.items())
        self._leaves = {name: leaf for name, (leaf, _) in everything}
        self._encoded = set(plan.encoded)
        facts = {} if plan.is_own else plan.episode.metadata.get("dataset")
        self._info = dict(facts) if isinstance(facts, dict) else {}
        self._info["name"] = plain_name(str(self._info.get("name") or "episodes"))
        self._info.setdefault("version", "1.0.0")
        labels = plan.origin.get("labels")
        for feature, classes in (labels if isinstance(labels, dict) else {}).items():
            if not isinstance(classes, list):
                continue
            path = os.path.join(self.path, f"{plain_name(feature.replace('/', '-'))}.labels.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("".join(f"{name}\n" for name in classes))

    def _split(self, name: str) -> _Split:
        plain = plain_name(name)
        if plain not in self._splits:
            self._splits[plain] = _Split(os.path.join(self.path, f"{self._info['name']}-{plain}"))
        return self._splits[plain]

    def finish(self) -> None:
        rows = []
        for name, split in self._splits.items():
            split.finish()
            lengths = [str(length) for length in split.lengths]
            facts = {"name": name, "numBytes": str(split.nbytes), "shardLengths": lengths}
            rows.append({**facts, "filepathTemplate": TEMPLATE})
        info = {"name": "episodes", "version": "1.0.0", **self._info}
        info.update(fileFormat="tfrecord", splits=rows)
        if not self._features:
            self._features = _node("features_dict.FeaturesDict", featuresDict={"features": {}})
        for name, content in ((FEATURES, self._features), (INFO, info)):
            with open(os.path.join(self.path, name), "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2, sort_keys=True, ensure_ascii=False)

    def abandon(self) -> None:
        for split in self._splits.values():
            split.close()


def plain_name(name: str) -> str:
    """A name that can be a part of a file name."""
    return "".join(one if one.isalnum() or one in "-_" else "_" for one in name) or "_"


class _Split:
    """The files of one split, while they are written."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._file: io.BufferedWriter | None = None
        self._paths: list[str] = []
        self.lengths: list[int] = []
        self.nbytes = 0

    def write(self, pieces: list[bytes]) -> None:
        """One more record."""
        size, checksum = 0, 0
        for piece in pieces:
            size += len(piece)
            checksum = crc32c(piece, checksum)
        if size > _MOST_RECORD:
            raise InvalidArgument(
                "the episode is too large for one record",
                expected=f"at most {_MOST_RECORD} bytes",
                found=size,
                hint="split it into shorter episodes",
            )
        if self._file is None or self._file.tell() + size > _SHARD_BYTES:
            self.close()
            self._paths.append(f"{self._stem}.tfrecord-{len(self._paths):05d}")
            self._file = open(self._paths[-1], "wb")  # noqa: SIM115 - closed by `close`
            self.lengths.append(0)
        head = size.to_bytes(8, "little")
        self._file.write(head + masked_crc32c(head).to_bytes(4, "little"))
        self._file.writelines(pieces)
        masked = (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        self._file.write(masked.to_bytes(4, "little"))
        self.lengths[-1] += 1
        self.nbytes += size

    def close(self) -> None:
        """Closes the file that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self) -> None:
        """Gives the files their names, which say how many there are."""
        self.close()
        for path in self._paths:
            os.rename(path, f"{path}-of-{len(self._paths):05d}")


def _encode(name: str, leaf: Leaf, source: Any, rows: int, notes: Notes) -> dict[str, Any]:  # noqa: ANN401 - a channel, a fact, or None
    """The lists of a record that hold one feature; empty values if there is no source."""
    is_step = name.startswith(_STEPS)
    if not is_step and not isinstance(source, Channel):
        return {name: _encode_fact(leaf, source)}
    if source is None:
        source = _empty(leaf, rows)
    missing = rows - source.length
    if missing and source.length and not name.startswith(("steps/action", "steps/reward")):
        notes.filled(name, "the last observation is repeated")
    elif missing:
        notes.filled(name, "zeros beside the last observation, which has no action")
    repeat = missing and not name.startswith(("steps/action", "steps/reward"))
    if isinstance(source, TextChannel):
        texts = [text.encode() for text in source.data]
        return {name: texts + [texts[-1] if repeat and texts else b""] * missing}
    if isinstance(source, RaggedChannel):
        lengths = np.append(np.diff(source.offsets), np.zeros(missing, np.int64))
        return {name + _FLAT: _as_list(name, leaf, source.values, notes), name + _LENGTHS: lengths}
    if leaf.kind == "image" or leaf.encoding != "none":
        encode = _png if leaf.kind == "image" else _packed(leaf)
        strings: list[bytes] = []
        for start, stop in source.step_ranges(_PIECE_BYTES):
            strings += [encode(step) for step in source.read_steps(start, stop)]
        last = (
            source[source.length - 1]
            if repeat and source.length
            else np.zeros(source.step_shape, source.dtype)
        )
        return {name: strings + [encode(last)] * missing}
    values = source.data
    if missing:
        more = (
            values[-1:]
            if repeat and len(values)
            else np.zeros((1, *values.shape[1:]), values.dtype)
        )
        values = np.concatenate((values, more))
    if leaf.depth:
        lengths = np.full(rows, leaf.length, np.int64)
        return {name + _FLAT: _as_list(name, leaf, values, notes), name + _LENGTHS: lengths}
    return {name: _as_list(name, leaf, values, notes)}


def _as_list(name: str, leaf: Leaf, values: NDArray[Any], notes: Notes) -> NDArray[Any]:
    """Numbers in one of the two types that a list can have."""
    flat = values.reshape(-1)
    if flat.dtype.kind in "iub":
        if flat.dtype == np.uint64 and len(flat) and flat.max() >= 1 << 63:
            notes.cast(name, "uint64", "int64", "large numbers become negative")
        return flat.astype(np.int64, copy=False) if flat.dtype != np.bool_ else flat
    with np.errstate(all="ignore"):
        narrow = flat.astype(np.float32)
    if flat.dtype == np.float64 and not np.array_equal(
        narrow.astype(np.float64), flat, equal_nan=True
    ):
        notes.cast(name, "float64", "float32", "the lists of RLDS hold 32-bit floats")
    return narrow


def _encode_fact(leaf: Leaf, value: Any) -> Any:  # noqa: ANN401 - JSON or an array
    if leaf.is_text:
        texts = value if isinstance(value, list) else ["" if value is None else value]
        return [str(text).encode() for text in texts]
    if value is None:
        value = np.zeros([max(0, size) for size in leaf.shape] if not leaf.depth else 0)
    values = np.asarray(value).reshape(-1)
    is_float = DType.parse(leaf.dtype).is_float
    return values.astype(np.float32 if is_float else np.int64)


def _empty(leaf: Leaf, rows: int) -> Channel:
    """A channel of zeros for a feature that an episode does not have."""
    if leaf.is_text:
        return TextChannel(data=[""] * rows)
    dtype = DType.parse(leaf.dtype).numpy_dtype
    shape = tuple(max(1, size) for size in leaf.shape)
    if leaf.depth and leaf.length < 0:
        return RaggedChannel(
            values=np.zeros((0, *shape), dtype), offsets=np.zeros(rows + 1, np.int64)
        )
    lists = (leaf.length,) if leaf.depth else ()
    return Channel(data=np.zeros((rows, *lists, *shape), dtype))


def _packed(leaf: Leaf) -> Callable[[NDArray[Any]], bytes]:
    dtype = DType.parse(leaf.dtype).numpy_dtype
    if leaf.encoding == "zlib":
        return lambda step: zlib.compress(step.astype(dtype, copy=False).tobytes())
    return lambda step: step.astype(dtype, copy=False).tobytes()


def _png(frame: NDArray[Any]) -> bytes:
    """A picture without loss; the four bytes of a 32-bit float are the colours of a pixel."""
    image = require("PIL.Image", "images")
    pixels = np.ascontiguousarray(frame)
    if pixels.dtype == np.float32:
        pixels = pixels.view(np.uint8).reshape(*pixels.shape[:2], 4)
    elif pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "PNG", compress_level=1)
    return out.getvalue()
