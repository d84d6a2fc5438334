"""How a Minari dataset is laid out: its spaces, and the names of its files and arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import BadMetadata
from wshard.convert._hdf5 import as_json_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

METADATA: Final = "metadata.json"
MAIN_FILE: Final = "main_data.hdf5"
SPACES: Final = ("observation_space", "action_space")
LANES: Final = (
    ("observations", "observation", "observation_space"),
    ("actions", "action", "action_space"),
)
STEPS: Final = {
    "rewards": ("rewards", "reward"),
    "terminations": ("terminations", "terminated"),
    "truncations": ("truncations", "truncated"),
}


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


def hdf5_path(path: tuple[str | int, ...]) -> str:
    """Where the HDF5 back end has a part of a space, below the group of the lane."""
    return "/".join(f"_index_{key}" if isinstance(key, int) else key for key in path)
