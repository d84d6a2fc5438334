"""Episodes as RLDS: a version folder of TensorFlow Datasets (`wshard.convert._rlds`)."""

from __future__ import annotations

import json
import os
import zlib
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.codecs import crc32c
from shard_format.errors import InvalidArgument
from wshard._blocks import Extra
from wshard._channels import Channel, RaggedChannel, TextChannel, is_frames
from wshard._values import BY_NAME, DType
from wshard._video import VideoChannel
from wshard.convert._arrays import picture_files, png_file
from wshard.convert._model import DatasetWriter
from wshard.convert._tf_example import encode_example
from wshard.convert._tfds import (
    FEATURES,
    FLAT_VALUES,
    INFO,
    MOST_RECORD,
    OWN_FACTS,
    ROW_LENGTHS,
    STEPS,
    TEMPLATE,
    FeatureLeaf,
    feature_of,
    leaves_of,
    masked,
    masked_crc32c,
)

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from wshard._episode import Episode
    from wshard.convert._model import Notes, WriteOptions

_CLASSES: Final = "tensorflow_datasets.core.features."
_SMALL_STEP: Final = 64
_SHARD_BYTES: Final = 512 << 20
_PIECE_BYTES: Final = 16 << 20


class _FeaturePlan:
    """What the features of one episode are when it is written."""

    def __init__(self, episode: Episode, notes: Notes, *, keeps: bool) -> None:
        self.episode = episode
        self.notes = notes
        self.keeps = keeps
        """Whether JPEG and PNG pictures are written as they are."""
        origin = episode.metadata.get("rlds")
        self.origin: dict[str, Any] = origin if isinstance(origin, dict) else {}
        self.is_own = not _has_groups(self.origin.get("features"))
        self._known = {} if self.is_own else leaves_of(self.origin["features"], "metadata rlds")
        self.channels: dict[str, tuple[FeatureLeaf, Channel]] = {}
        """Of the steps, by feature."""
        self.facts: dict[str, tuple[FeatureLeaf, Any]] = {}
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
            if not isinstance(feature, str) or not feature.startswith(STEPS):
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
            free = f"{free}/{free.removeprefix(STEPS)}"
        if any(
            one == free or one.startswith(f"{free}/") or free.startswith(f"{one}/") for one in names
        ):
            # A feature cannot be values and a group of features.
            group, _, rest = free.removeprefix(STEPS).partition("/")
            free = f"steps/{group}/{rest.replace('/', '_')}_"
            if free in names:
                self.notes.dropped(block, f"the name {feature} is taken")
                return
        leaf = self._known.get(free)
        if leaf is None or not fits(leaf, channel):
            leaf = default_leaf(channel)
            if block == "reward" and leaf.dtype == "float32":
                # The next episode may need more bits: a file of ours stores rewards in as few as hold them.
                leaf = FeatureLeaf("tensor", "float64", leaf.shape, "bytes")
        if channel.dtype_name is DType.BFLOAT16 and leaf.dtype == "float32":
            self.notes.cast(block, "bf16", "float32", "TensorFlow Datasets has no such type")
        if isinstance(channel, VideoChannel) and self._picture_format(leaf, channel) == "":
            form = "PNG" if leaf.kind == "image" else "pixels"
            self.notes.decoded(block, f"{channel.codec} to {form}")
        self.channels[free] = (leaf, channel)
        if free == feature:
            self.notes.kept(block, free)
        else:
            self.notes.renamed(block, free)

    def _picture_format(self, leaf: FeatureLeaf, channel: Any) -> str:  # noqa: ANN401 - a channel or a fact
        """`"jpeg"` or `"png"` for pictures that are written as they are; empty for all others."""
        is_kept = self.keeps and leaf.kind == "image" and isinstance(channel, VideoChannel)
        return channel.codec if is_kept and channel.codec in ("jpeg", "png") else ""

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
                self.channels[feature] = (FeatureLeaf("tensor", "bool"), Channel(data=flag))

    def _plan_facts(self) -> None:
        episode, notes = self.episode, self.notes
        stated = self.origin.get("episode")
        for feature, value in (stated if isinstance(stated, dict) else {}).items():
            leaf = self._known.get(feature)
            if leaf is not None and not feature.startswith(STEPS):
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
            self.facts[OWN_FACTS] = (FeatureLeaf("text", "string"), text)
            notes.kept("metadata", OWN_FACTS)
        else:
            for key in metadata.keys() - {"dataset", "task", "success", "seed"}:
                notes.dropped(f"metadata {key}", "the features of the dataset have no place for it")

    def features(self) -> dict[str, Any]:
        """`features.json` for episodes like this one."""
        root: dict[str, Any] = _node("features_dict.FeaturesDict", featuresDict={"features": {}})
        if not self.is_own:
            root = json.loads(json.dumps(self.origin["features"]))
        formats = dict.fromkeys(self.facts, "")
        for name, (leaf, channel) in self.channels.items():
            formats[name] = self._picture_format(leaf, channel) or "png"
        _prune(root, "", formats, self.encoded)
        leaves = {name: leaf for name, (leaf, _) in (*self.channels.items(), *self.facts.items())}
        for name, leaf in leaves.items():
            if self._known.get(name) != leaf:
                _insert(root, name, _describe(leaf, formats[name]))
        return root


def fits(leaf: FeatureLeaf, channel: Channel) -> bool:
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


def default_leaf(channel: Channel) -> FeatureLeaf:
    """How a channel is stored that did not come from RLDS: as it is, or rounded if nothing else fits."""
    if isinstance(channel, TextChannel):
        return FeatureLeaf("text", "string")
    dtype, shape = channel.dtype_name, channel.step_shape
    name = "float32" if dtype is DType.BFLOAT16 else dtype.numpy_dtype.name
    if isinstance(channel, RaggedChannel):
        return FeatureLeaf("tensor", name, shape, depth=1)
    is_picture = len(shape) == 3 and is_frames(channel)
    if is_picture and dtype is DType.UINT8 and shape[2] in (1, 3, 4):
        return FeatureLeaf("image", name, shape)
    if is_picture and dtype is DType.UINT16 and shape[2] == 1:
        return FeatureLeaf("image", name, shape)
    # The lists of an example hold 32-bit floats and 64-bit integers; large arrays of bytes would take twice the room.
    is_plain = name in ("float32", "bool") or (
        dtype is not DType.UINT64 and not dtype.is_float and prod(shape) <= _SMALL_STEP
    )
    return FeatureLeaf("tensor", name, shape, "none" if is_plain else "bytes")


def _node(name: str, **content: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"pythonClassName": _CLASSES + name, **content}


def _describe(leaf: FeatureLeaf, picture_format: str) -> dict[str, Any]:
    """The node of a feature in `features.json`."""
    shape = {"dimensions": [str(size) for size in leaf.shape]} if leaf.shape else {}
    if leaf.is_text:
        node = _node("text_feature.Text", text={})
    elif leaf.kind == "image":
        facts = {"shape": shape, "dtype": leaf.dtype, "encodingFormat": picture_format}
        node = _node("image_feature.Image", image=facts)
    else:
        facts = {"shape": shape, "dtype": leaf.dtype, "encoding": leaf.encoding}
        node = _node("tensor_feature.Tensor", tensor=facts)
    for _ in range(leaf.depth):
        inner = {"feature": node, "length": str(leaf.length)}
        node = _node("sequence_feature.Sequence", sequence=inner)
    return node


def _has_groups(features: Any) -> bool:  # noqa: ANN401 - JSON of an episode
    """Whether features have the groups of a dataset of episodes, into which others can be put."""
    try:
        inner = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]
        return isinstance(inner["featuresDict"]["features"], dict)
    except (KeyError, TypeError):
        return False


def _prune(
    node: dict[str, Any], name: str, formats: Mapping[str, str], encoded: Mapping[str, bytes]
) -> bool:
    """Removes features that an episode does not have; says whether any are left.

    Args:
        node: of `features.json`.
        name: of the feature that it describes.
        formats: the features that stay, and how their pictures are encoded from now on.
        encoded: the lists of records that stay as they are.
    """
    if "featuresDict" in node:
        inner = node["featuresDict"].get("features", {})
        for key in list(inner):
            if not _prune(inner[key], f"{name}/{key}" if name else key, formats, encoded):
                del inner[key]
        return bool(inner)
    if name == "steps":
        return _prune(node["sequence"]["feature"], name, formats, encoded)
    if "image" in node and formats.get(name) and node["image"].get("encodingFormat"):
        node["image"]["encodingFormat"] = formats[name]
    return name in formats or any(one == name or one.startswith(f"{name}/") for one in encoded)


def _insert(root: dict[str, Any], name: str, described: dict[str, Any]) -> None:
    node, parts = root, name.split("/")
    for depth, part in enumerate(parts):
        inner = node["featuresDict"].setdefault("features", {})
        if depth == len(parts) - 1:
            inner[part] = described
            return
        empty = _node("features_dict.FeaturesDict", featuresDict={"features": {}})
        if depth == 0 and part == "steps":
            steps = {"feature": empty, "length": "-1"}
            node = inner.setdefault(part, _node("dataset_feature.Dataset", sequence=steps))
            node = node["sequence"]["feature"]
        else:
            node = inner.setdefault(part, empty)


class RldsWriter(DatasetWriter):
    """A version folder of TensorFlow Datasets. The first episode decides which features there are."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        os.makedirs(path)
        self._features: dict[str, Any] = {}
        self._leaves: dict[str, FeatureLeaf] = {}
        self._info: dict[str, Any] = {}
        self._encoded: set[str] = set()
        self._splits: dict[str, _Split] = {}

    def write(self, episode: Episode, notes: Notes) -> None:
        plan = _FeaturePlan(episode, notes, keeps=self.options.video == "keep")
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
            features.update(_encode(name, leaf, source, plan.rows, notes, keeps=plan.keeps))
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

    def _start(self, plan: _FeaturePlan) -> None:
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
        if size > MOST_RECORD:
            raise InvalidArgument(
                "the episode is too large for one record",
                expected=f"at most {MOST_RECORD} bytes",
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
        self._file.write(masked(checksum).to_bytes(4, "little"))
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


def _encode(
    name: str,
    leaf: FeatureLeaf,
    source: Any,  # noqa: ANN401 - a channel, a fact, or None
    rows: int,
    notes: Notes,
    *,
    keeps: bool,
) -> dict[str, Any]:
    """The lists of a record that hold one feature; empty values without a source.

    `keeps`: whether JPEG and PNG pictures are written as they are.
    """
    is_step = name.startswith(STEPS)
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
        return {
            name + FLAT_VALUES: _as_list(name, leaf, source.values, notes),
            name + ROW_LENGTHS: lengths,
        }
    if leaf.kind == "image" or leaf.encoding != "none":
        encode = _png if leaf.kind == "image" else _packed(leaf)
        strings = picture_files(source) if keeps and leaf.kind == "image" else None
        if strings is None:
            strings = []
            for start, stop in source.step_ranges(_PIECE_BYTES):
                strings += [encode(step) for step in source.read_steps(start, stop)]
        if not missing:
            return {name: strings}
        is_repeated = repeat and strings
        last = strings[-1] if is_repeated else encode(np.zeros(source.step_shape, source.dtype))
        return {name: strings + [last] * missing}
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
        return {
            name + FLAT_VALUES: _as_list(name, leaf, values, notes),
            name + ROW_LENGTHS: lengths,
        }
    return {name: _as_list(name, leaf, values, notes)}


def _as_list(name: str, leaf: FeatureLeaf, values: NDArray[Any], notes: Notes) -> NDArray[Any]:
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


def _encode_fact(leaf: FeatureLeaf, value: Any) -> Any:  # noqa: ANN401 - JSON or an array
    if leaf.is_text:
        texts = value if isinstance(value, list) else ["" if value is None else value]
        return [str(text).encode() for text in texts]
    if value is None:
        value = np.zeros([max(0, size) for size in leaf.shape] if not leaf.depth else 0)
    values = np.asarray(value).reshape(-1)
    is_float = DType.parse(leaf.dtype).is_float
    return values.astype(np.float32 if is_float else np.int64)


def _empty(leaf: FeatureLeaf, rows: int) -> Channel:
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


def _packed(leaf: FeatureLeaf) -> Callable[[NDArray[Any]], bytes]:
    dtype = DType.parse(leaf.dtype).numpy_dtype
    if leaf.encoding == "zlib":
        return lambda step: zlib.compress(step.astype(dtype, copy=False).tobytes())
    return lambda step: step.astype(dtype, copy=False).tobytes()


def _png(frame: NDArray[Any]) -> bytes:
    """A picture without loss; the four bytes of a 32-bit float are the colours of a pixel."""
    pixels = np.ascontiguousarray(frame)
    if pixels.dtype == np.float32:
        pixels = pixels.view(np.uint8).reshape(*pixels.shape[:2], 4)
    elif pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    return png_file(pixels)
