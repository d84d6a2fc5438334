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
import zlib
from dataclasses import dataclass
from itertools import filterfalse
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import (
    BadMetadata,
    BadValue,
    InvalidArgument,
    ShardError,
    SizeMismatch,
)
from shard_format.sources import open_regular
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel
from wshard._episode import Episode
from wshard._values import BY_NAME, DType
from wshard.convert._arrays import EncodedFrames, channel_of, picture_channel, text_channel
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import DatasetReader, Probe, inside, read_json
from wshard.convert._rlds_writer import RldsWriter
from wshard.convert._tf_example import ByteStrings, Example, parse_example
from wshard.convert._tfds import (
    FEATURES,
    FLAT_VALUES,
    INFO,
    LENGTH,
    OWN_FACTS,
    RECORD_BYTES,
    ROW_LENGTHS,
    STEPS,
    TEMPLATE,
    FeatureLeaf,
    TFRecordFile,
    address_of,
    feature_of,
    leaves_of,
    masked_crc32c,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from wshard.convert._arrays import ForeignRows
    from wshard.convert._model import Notes, ReadOptions

__all__ = ["RldsReader", "RldsWriter", "recognises"]

_MOST_UNSEEN: Final = 1_000_000
# zlib makes nothing smaller by more than 1032 times; a shape may claim any size.
_LARGEST_RATIO: Final = 1032


def recognises(probe: Probe) -> bool:
    """Whether it is a folder of TensorFlow Datasets with episodes, or a TFRecord file of one."""
    if probe.is_folder:
        return FEATURES in probe.names and _has_steps(probe.json(FEATURES))
    head = probe.head[: LENGTH.size]
    if len(head) < LENGTH.size or masked_crc32c(head[:8]) != LENGTH.unpack(head)[1]:
        return False
    return _has_steps(Probe(os.path.dirname(os.path.abspath(probe.path))).json(FEATURES))


def _has_steps(features: dict[str, Any]) -> bool:
    inner = features.get("featuresDict")
    named = inner.get("features") if isinstance(inner, dict) else None
    return isinstance(named, dict) and "steps" in named


@dataclass(frozen=True, slots=True)
class _RecordPlace:
    """Where one episode is."""

    split: str
    number: int
    """In its split."""
    file: TFRecordFile
    record: int


class RldsReader(DatasetReader):
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
                hint="pass the version folder of the dataset, such as bridge/0.1.0",
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
            self.strays = sorted(filterfalse(_is_of_dataset, os.listdir(path)))
        else:
            file = TFRecordFile(path)
            split = os.path.basename(path).partition(".tfrecord")[0].rpartition("-")[2] or "data"
            self._places = [_RecordPlace(split, n, file, n) for n in range(len(file.starts) - 1)]
        self._labels = _read_labels(self._folder, self._leaves)

    def _of_splits(self, info: dict[str, Any], path: str) -> Iterator[_RecordPlace]:
        splits = info.get("splits")
        if not splits:
            names = sorted(name for name in os.listdir(self._folder) if ".tfrecord" in name)
            for name in names:
                # Without numbers of shards, each file counts as a split of its own.
                file = TFRecordFile(os.path.join(self._folder, name))
                stem = name.replace(".tfrecord", "")
                yield from (_RecordPlace(stem, n, file, n) for n in range(len(file.starts) - 1))
            return
        for split in splits if isinstance(splits, list) else ():
            try:
                name = str(split["name"])
                lengths = [int(length) for length in split.get("shardLengths", ())]
                template = str(split.get("filepathTemplate") or TEMPLATE)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise BadMetadata(
                    f"the description of a split makes no sense: {error}", path=path
                ) from None
            number = 0
            for shard, length in enumerate(lengths):
                shard_path = self._shard_path(template, name, shard, len(lengths))
                _check_length(shard_path, length, path, name)
                file = TFRecordFile(shard_path, length)
                for record in range(length):
                    yield _RecordPlace(name, number, file, record)
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
            example = parse_example(content)
            record = RecordParser(example, self._leaves, place.file.path, self.options.video, notes)
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


def _is_of_dataset(name: str) -> bool:
    """Whether a file is one of those that tensorflow-datasets writes."""
    return ".tfrecord" in name or name in (FEATURES, INFO) or name.endswith(".labels.txt")


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
        most = os.stat(shard).st_size // RECORD_BYTES
    except OSError:
        most = _MOST_UNSEEN  # some shards were not downloaded: reading one of their episodes raises an error
    if not 0 <= length <= most:
        raise BadMetadata(
            "a shard cannot have as many records as this",
            path=path,
            entry=split,
            expected=f"at most {most} in {os.path.basename(shard)}",
            found=length,
        )


def _read_labels(folder: str, leaves: dict[str, FeatureLeaf]) -> dict[str, list[str]]:
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

    def __init__(
        self,
        example: Example,
        leaves: dict[str, FeatureLeaf],
        path: str,
        video: str,
        notes: Notes,
    ) -> None:
        self._example = example
        self._leaves = leaves
        self._path = path
        self._video = video
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
            if feature.startswith(STEPS) and self._find(feature, leaf):
                self.channels[feature] = self._channel(feature, leaf)
        steps = self._check_lengths()
        self._place_steps(episode, steps)
        for feature, leaf in self._leaves.items():
            if not feature.startswith(STEPS) and self._find(feature, leaf):
                self._place_fact(episode, feature, leaf)
        self._place_rest(episode)
        self._restore_own_facts(episode)
        return episode

    def _find(self, feature: str, leaf: FeatureLeaf) -> bool:
        """Whether the record has the feature in a form that becomes a channel or a fact."""
        names, in_steps = self._example.names, feature.startswith(STEPS)
        is_number = not leaf.is_text and leaf.kind != "image" and leaf.dtype in BY_NAME
        if in_steps and leaf.depth == 1 and {feature + FLAT_VALUES, feature + ROW_LENGTHS} <= names:
            return is_number and leaf.encoding == "none" and leaf.is_known
        if feature in names:
            if leaf.depth > (0 if in_steps else 1):
                return False
            if leaf.kind == "image":
                # Pillow makes 8 bits of colours of 16.
                is_deep = leaf.dtype == "uint16" and leaf.shape[2:] not in ((), (1,))
                return in_steps and not is_deep and all(map(len, self._strings(feature)))
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

    def _numbers(self, feature: str, leaf: FeatureLeaf) -> NDArray[Any]:
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
                "a feature has values of a different type than features.json says",
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

    def _channel(self, feature: str, leaf: FeatureLeaf) -> Channel:
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

    def _rows(self, leaf: FeatureLeaf, count: int) -> int:
        """How many steps there are, where one dimension of a step is not known."""
        if not leaf.is_known:
            firsts = ("steps/is_first", "steps/is_last", "steps/is_terminal", "steps/reward")
            for first in firsts:
                if first in self._example.names:
                    return len(self._example.values(first))
        return count // prod(leaf.shape) if prod(leaf.shape) else 0

    def _ragged(self, feature: str, leaf: FeatureLeaf) -> Channel:
        values = self._numbers(feature + FLAT_VALUES, leaf)
        lengths = self._numbers(feature + ROW_LENGTHS, FeatureLeaf("tensor", "int64"))
        self._used |= {feature + FLAT_VALUES, feature + ROW_LENGTHS}
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

    def _pictures(self, feature: str, leaf: FeatureLeaf) -> Channel:
        self._used.add(feature)
        frames = self._strings(feature)
        if not len(frames):
            shape = tuple(max(0, size) for size in leaf.shape)
            return Channel(feature, data=np.zeros((0, *shape), leaf.dtype))
        rows = StoredPictures(feature, frames, leaf, self._path)
        is_colour = rows.shape[-1] in (3, 4) and leaf.dtype == "uint8"
        modality = Modality.RGB if is_colour else Modality.DEPTH if leaf.dtype != "uint8" else None
        return picture_channel(
            feature,
            frames,
            self._video,
            self._notes,
            rows=rows,
            path=self._path,
            modality=modality,
        )

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

    def _place_fact(self, episode: Episode, feature: str, leaf: FeatureLeaf) -> None:
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
        except (
            *(KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError),
        ) as error:
            raise BadValue(f"not what our writer stores: {error!r}", entry=OWN_FACTS) from None

    def _restore_own_facts(self, episode: Episode) -> None:
        own = self._own
        if own is None:
            return
        self.facts.pop(OWN_FACTS, None)
        episode.id, episode.env_id = own["id"], own["env_id"]
        episode.metadata = {**own["metadata"], **episode.metadata}
        episode.timebase.tick_hz, episode.timebase.epoch_ns = own["tick_hz"], own["epoch_ns"]


def _whole_shape(leaf: FeatureLeaf, count: int, feature: str) -> tuple[int, ...]:
    """The shape of an array beside the steps of which one dimension is not stated."""
    known = prod(size for size in leaf.shape if size >= 0)
    if (
        leaf.depth
        or leaf.shape.count(-1) != 1
        or (known and count % known)
        or (not known and count)
    ):
        raise SizeMismatch(
            "a feature has a different number of values than its shape needs",
            entry=feature,
            expected=list(leaf.shape),
            found=count,
        )
    return tuple(size if size >= 0 else count // max(1, known) for size in leaf.shape)


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

    def __init__(self, name: str, strings: ByteStrings, leaf: FeatureLeaf, path: str) -> None:
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
                most = min(size, len(data) * _LARGEST_RATIO)
                data = zlib.decompressobj().decompress(data, most + 1)
            except zlib.error as error:
                raise BadValue(
                    f"a compressed tensor is damaged: {error}",
                    path=self._path,
                    entry=f"{self._name}, step {step}",
                ) from None
        if len(data) != size:
            raise SizeMismatch(
                "a tensor has a different size than its shape needs",
                path=self._path,
                entry=f"{self._name}, step {step}",
                expected=f"{size} bytes",
                found=f"{len(data)} bytes" if len(data) < size else "more",
            )
        return data


class StoredPictures:
    """Pictures with the channels and the type that `features.json` says, decoded when they are used."""

    def __init__(self, name: str, frames: ByteStrings, leaf: FeatureLeaf, path: str) -> None:
        self._frames: ForeignRows = EncodedFrames(name, frames, path)
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
