"""The files of TensorFlow Datasets: records with checksums, and `features.json`, which says what they hold."""

from __future__ import annotations

import io
import os
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.codecs import crc32c
from shard_format.errors import (
    BadMetadata,
    ChecksumMismatch,
    LimitExceeded,
    ShardIOError,
    SizeMismatch,
    Truncated,
)
from shard_format.sources import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable


FEATURES: Final = "features.json"
INFO: Final = "dataset_info.json"
TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
OWN_FACTS: Final = "episode_metadata/wshard"
"""Where our writer puts what RLDS has no place for, as JSON: id, environment, rate and metadata of an episode."""
STEPS: Final = "steps/"
FLAT_VALUES, ROW_LENGTHS = "/ragged_flat_values", "/ragged_row_lengths_0"
# Fields of a step beside its observation, whatever they came from.
_STEP_FIELDS: Final = frozenset(
    ("discount", "is_first", "is_last", "language_instruction", "language_embedding")
)
_MOST_DEPTH: Final = 24


# --- TFRecord files

LENGTH: Final = struct.Struct("<QI")
RECORD_BYTES: Final = LENGTH.size + 4
# A message of protocol buffers cannot be larger.
MOST_RECORD: Final = (1 << 31) - 1


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum that TFRecord files have."""
    return masked(crc32c(data))


def masked(checksum: int) -> int:
    """A CRC32C as TFRecord files store it."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record_size(head: bytes, offset: int, room: int, path: str | None) -> int:
    """The size of the content of a record, from its first 12 bytes, checked.

    Args:
        head: the bytes.
        offset: where they are in the file.
        room: how many bytes the file has from there on.
        path: the file.
    """
    if len(head) < LENGTH.size:
        raise Truncated("the file ends within a record", path=path, offset=offset)
    size, stored = LENGTH.unpack(head)
    if masked_crc32c(head[:8]) != stored:
        raise ChecksumMismatch("not a TFRecord, or it is damaged", path=path, offset=offset)
    if size > room - RECORD_BYTES:
        raise Truncated(
            "the file ends within a record",
            path=path,
            offset=offset,
            expected=f"{size + RECORD_BYTES} bytes",
            found=f"{room} bytes",
        )
    if size > MOST_RECORD:
        raise LimitExceeded(
            "a record is too large",
            path=path,
            offset=offset,
            expected=f"at most {MOST_RECORD} bytes",
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
        content = record_size(read(at, LENGTH.size), at, size - at, path)
        at += content + RECORD_BYTES
        starts.append(at)
    return starts


def record_content(record: bytes, offset: int, path: str | None) -> memoryview:
    """What a whole record holds, after its checksum was compared."""
    content = memoryview(record)[LENGTH.size : -4]
    if masked_crc32c(content) != int.from_bytes(record[-4:], "little"):
        raise ChecksumMismatch("the content of a record is damaged", path=path, offset=offset)
    return content


class TFRecordFile:
    """One TFRecord file. Its records are found when the first is read.

    Args:
        path: the file.
        count: how many records it must have; None if it is not stated.
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
                    "the file has a different number of records than dataset_info.json says",
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


class FeatureLeaf(NamedTuple):
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


def leaves_of(features: Any, path: str) -> dict[str, FeatureLeaf]:  # noqa: ANN401 - JSON of a file
    """Every feature that has values, by its name in a record.

    Args:
        features: `features.json`.
        path: the file, for errors.
    """
    found: dict[str, FeatureLeaf] = {}
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
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadMetadata(
                f"the description of a feature makes no sense: {error}", path=path, entry=name
            ) from None
    return found


def _leaf(node: dict[str, Any], depth: int, length: int) -> FeatureLeaf | None:
    if "text" in node:
        return FeatureLeaf("text", "string", depth=depth, length=length)
    if "classLabel" in node:
        return FeatureLeaf("label", "int64", depth=depth, length=length)
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
    return FeatureLeaf(kind, str(inner["dtype"]), shape, encoding, depth, length)


# --- names


def address_of(feature: str) -> tuple[str, str]:
    """The lane and the name of a feature of the steps."""
    name = feature.removeprefix(STEPS)
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
