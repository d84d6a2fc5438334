"""Where things are in a LeRobot dataset, and what its features are called in an episode."""

from __future__ import annotations

import math
import os
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.errors import BadMetadata, UnsupportedVersion
from wshard._lanes import REWARD, TERMINATED, TRUNCATED
from wshard._metadata import is_number
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import inside, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wshard._lanes import Address

VERSIONS: Final = ("v2.0", "v2.1", "v3.0")
INFO: Final = "meta/info.json"
STATISTICS: Final = "meta/stats.json"
TASKS: Final = "meta/tasks.parquet"
SUBTASKS: Final = "meta/subtasks.parquet"
EPISODES: Final = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA: Final = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEOS: Final = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"

TIME: Final = "timestamp"
COUNTERS: Final = ("frame_index", "episode_index", "index", "task_index")
DEFAULT_FEATURES: Final[dict[str, dict[str, Any]]] = {
    TIME: {"dtype": "float32", "shape": [1], "names": None},
    **{name: {"dtype": "int64", "shape": [1], "names": None} for name in COUNTERS},
}
"""The columns that every dataset has."""

SUCCESS: Final = "next.success"
INSTRUCTION: Final = "language_instruction"
_FLAT: Final[dict[str, Address]] = {
    "next.reward": (REWARD,),
    "next.done": (TERMINATED,),
    "next.truncated": (TRUNCATED,),
}
_PLACEHOLDER: Final = re.compile(r"\{(\w+)(?::0(\d)d)?\}")
_MOST_DIMENSIONS: Final = 8
_PLAIN: Final = {int, str, bool}
_FLOATS: Final = {float}
_LISTS: Final = {list}


class Feature(NamedTuple):
    """One feature of a dataset, as `info.json` describes it."""

    dtype: str
    shape: tuple[int, ...]
    names: list[Any] | None
    """Of the elements of a vector."""
    info: Mapping[str, Any]
    """Facts about a video."""

    @property
    def is_depth(self) -> bool:
        return bool(self.info.get("is_depth_map") or self.info.get("video.is_depth_map"))


class Info(NamedTuple):
    """What `meta/info.json` says."""

    version: str
    fps: float
    features: dict[str, Feature]
    fields: dict[str, Any]
    """All of it."""


def read_info(folder: str) -> Info:
    """Reads and checks `meta/info.json`."""
    path = os.path.join(folder, INFO)
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise BadMetadata("not a JSON object", path=path)
    version = fields.get("codebase_version")
    if version not in VERSIONS:
        raise UnsupportedVersion(
            "this version of LeRobot datasets cannot be read",
            path=path,
            entry="codebase_version",
            expected=", ".join(VERSIONS),
            found=repr(version),
            hint="convert it with the scripts of the lerobot package",
        )
    fps = fields.get("fps")
    if not isinstance(fps, (int, float)) or not is_number(fps) or not 0 < fps < math.inf:
        raise BadMetadata(
            "the rate is not a positive number", path=path, entry="fps", found=repr(fps)
        )
    features = fields.get("features")
    if not isinstance(features, dict):
        raise BadMetadata("no features", path=path, entry="features")
    checked = {name: parse_feature(path, name, each) for name, each in features.items()}
    return Info(version, float(fps), checked, fields)


def parse_feature(path: str, name: str, fields: Any) -> Feature:  # noqa: ANN401 - checked here
    entry = f"features/{name}"
    if not isinstance(fields, dict) or not isinstance(fields.get("dtype"), str):
        raise BadMetadata("a feature without a dtype", path=path, entry=entry)
    shape = fields.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_DIMENSIONS
        or not all(type(size) is int and 0 <= size < 1 << 31 for size in shape)
    ):
        raise BadMetadata(
            "not the shape of an array",
            path=path,
            entry=entry,
            expected="a list of sizes",
            found=repr(shape),
        )
    info = fields.get("info") or fields.get("video_info")
    return Feature(
        fields["dtype"],
        tuple(shape),
        _flat_names(fields.get("names")),
        info if isinstance(info, dict) else {},
    )


def _flat_names(names: Any) -> list[Any] | None:  # noqa: ANN401 - a list, a dictionary of lists, or nothing
    if isinstance(names, dict):
        lists = [each for each in names.values() if isinstance(each, list)]
        return [name for each in lists for name in each] or None
    return names if isinstance(names, list) else None


def located(folder: str, template: Any, what: str, **values: int | str) -> str:  # noqa: ANN401 - checked here
    """The path of a file by a template of `info.json`, which may have only known placeholders."""
    path = os.path.join(folder, INFO)
    if not isinstance(template, str):
        raise BadMetadata("not a path", path=path, entry=what, found=repr(template))

    def fill(found: re.Match[str]) -> str:
        value, width = values.get(found[1]), found[2]
        if value is None or (width and not isinstance(value, int)):
            raise BadMetadata(
                "a path with an unknown placeholder",
                path=path,
                entry=what,
                expected=", ".join(values),
                found=found[0],
            )
        return f"{value:0{width}d}" if width else str(value)

    relative = _PLACEHOLDER.sub(fill, template)
    if set("{}\0") & set(_PLACEHOLDER.sub("", template)):
        raise BadMetadata("not a path with placeholders", path=path, entry=what, found=template)
    return inside(folder, relative, what=f"{what} in {INFO}")


def strict_json(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A value as strict JSON, dictionaries included; not a number becomes text."""
    if isinstance(value, dict):
        return {str(name): strict_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        # Statistics are many lists of numbers: those are checked together.
        if _are_strict(value):
            return list(value)
        if set(map(type, value)) == _LISTS and _are_strict([*chain.from_iterable(value)]):
            return list(map(list, value))
        return [strict_json(each) for each in value]
    return as_json_value(value)


def _are_strict(values: Sequence[Any]) -> bool:
    """Whether all values are texts and whole numbers, or all are finite floats."""
    kinds = set(map(type, values))
    # A sum is finite only if every number is.
    return kinds <= _PLAIN or (kinds == _FLOATS and math.isfinite(sum(values)))


# --- names


def addresses(features: Mapping[str, Feature]) -> dict[str, Address]:
    """Where an episode has each feature; without the columns that every dataset has."""
    found: dict[str, Address] = {}
    taken: set[Address] = set()
    for name, feature in features.items():
        if name in DEFAULT_FEATURES:
            continue
        address = _address(name, feature)
        if address in taken:
            address = ("signal", name.replace(".", "/"))
        if address not in taken:
            found[name] = address
            taken.add(address)
    return found


def _address(name: str, feature: Feature) -> Address:
    flat = _FLAT.get(name)
    if flat is not None and feature.shape in ((), (1,)):
        if flat == (REWARD,) and feature.dtype.startswith(("float", "int")):
            return flat
        if flat != (REWARD,) and feature.dtype == "bool":
            return flat
    lane, *keys = name.split(".")
    if all(keys):
        if lane in ("observation", "action"):
            return ("signal" if lane == "observation" else lane, "/".join(keys) or lane)
        if lane == "omen" and len(keys) >= 2:
            return lane, "/".join(keys[:-1]), keys[-1]
        if lane == "uncert" and len(keys) >= 3:
            return lane, "/".join(keys[:-2]), keys[-2], keys[-1]
    return "signal", name.replace(".", "/")


def feature_name(address: Address, *, is_camera: bool = False) -> str:
    """What to call a part of an episode in a dataset."""
    for name, flat in _FLAT.items():
        if address == flat:
            return name
    lane, *keys = address
    key = ".".join(keys).replace("/", ".")
    if lane == "signal":
        if is_camera:
            return f"observation.images.{key.removeprefix('images.')}"
        return key if key == "observation" else f"observation.{key}"
    return key if (lane, key) == ("action", "action") else f"{lane}.{key}"
