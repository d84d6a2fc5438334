"""What becomes a channel: the parts of a Gymnasium space, and the keys of the infos."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument
from shard_format.extras import require
from wshard._lanes import check_id
from wshard.streaming import ChannelDef
from wshard.types import DType, Modality

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gymnasium import Space

_LONGEST_DESCRIPTION: Final = 200
# A float64 holds all integers up to this one.
_LARGEST_EXACT: Final = 1 << 53


@dataclass(slots=True)
class Leaf:
    """A part of a space that is one channel."""

    name: str
    """Of the channel: the keys of dictionaries and the positions in tuples, with `/` between them."""
    path: tuple[Any, ...]
    """The keys and positions that lead to it in a value of the whole space."""
    dtype: DType | None
    """None for text."""
    shape: tuple[int, ...]
    description: str
    """The space as Gymnasium prints it; empty if that is long."""
    lane: str = "signal"
    key: str = ""
    """The name that the writer takes: with the lane in front if both lanes have this name."""

    def pick(self, value: Any) -> Any:  # noqa: ANN401 - a value of the whole space
        """This part of a value: an array of its own, or a string."""
        try:
            for key in self.path:
                value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise self._misfit(found=f"no part {error}") from None
        if self.dtype is None:
            if not isinstance(value, str):
                raise self._misfit("a string", type(value).__name__)
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise self._misfit("text that UTF-8 can hold", error.reason) from None
            return str(value)
        array = np.array(value)  # a copy: environments may use theirs again
        if array.shape != self.shape:
            raise self._misfit(f"shape {list(self.shape)}", f"shape {list(array.shape)}")
        return array

    def _misfit(self, expected: str | None = None, found: str = "") -> InvalidArgument:
        return InvalidArgument(
            "a value does not fit its space", entry=self.name, expected=expected, found=found
        )

    def channel(self, changes: Mapping[str, Any]) -> ChannelDef:
        """Its channel, as the stream writer takes it."""
        is_text = self.dtype is None
        is_image = self.dtype is DType.UINT8 and len(self.shape) == 3 and self.shape[2] == 3
        fields: dict[str, Any] = {
            "layout": "text" if is_text else "dense",
            "modality": Modality.LANGUAGE if is_text else Modality.RGB if is_image else None,
            "extra": {"space": self.description} if self.description else {},
        }
        return ChannelDef(
            self.name, self.dtype, self.shape, lane=self.lane, **{**fields, **changes}
        )


def leaves(space: Space[Any], root: str) -> list[Leaf]:
    """The channels of a space.

    Args:
        space: any of Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict and Tuple of them.
        root: what to call a space that is not a dictionary.
    """
    found = list(_leaves(space, root, "", ()))
    names = [leaf.name for leaf in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument("two parts of a space have the same name", entry=name)
    return found


def _leaves(space: Space[Any], root: str, name: str, path: tuple[Any, ...]) -> Iterator[Leaf]:
    spaces = require("gymnasium.spaces", "gym")
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, root, f"{name}/{key}" if name else str(key), (*path, key))
        return
    name = name or root
    if isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _leaves(part, root, f"{name}/{number}", (*path, number))
        return
    described = str(space)
    description = described if len(described) <= _LONGEST_DESCRIPTION else ""
    if isinstance(space, spaces.Text):
        yield Leaf(name, path, None, (), description)
        return
    known = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if not isinstance(space, known):
        raise InvalidArgument(
            "cannot record this space",
            entry=name,
            expected="Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict and Tuple of them",
            found=type(space).__name__,
            hint="turn its values into arrays of one shape, with a wrapper inside this one",
        )
    try:
        dtype = DType.from_numpy(np.dtype(space.dtype))
    except InvalidArgument as error:
        raise error.located(entry=name) from None
    yield Leaf(name, path, dtype, tuple(space.shape or ()), description)


# --- infos


OTHER: Final = "info/other"
"""The channel of the values that do not fit those of their keys."""


class InfoChannels:
    """The infos of one episode: which channels they need, and the values at each step.

    The first value of a key decides what its channel `info/<key>` holds. A value that does not fit goes into
    `info/other`, as JSON. So nothing that JSON can hold is lost, whatever an environment does.

    Args:
        taken: the names of other channels.
    """

    def __init__(self, taken: AbstractSet[str]) -> None:
        self.left_out: dict[str, str] = {}
        """For each key that JSON cannot hold, the reason."""
        self._taken = {*taken, OTHER}
        self._channels: dict[str, ChannelDef] = {}

    def take(self, info: Mapping[Any, Any]) -> tuple[list[ChannelDef], dict[str, Any]]:
        """The channels that are new, and the values of all channels, new and old."""
        new: list[ChannelDef] = []
        values: dict[str, Any] = {}
        other: dict[str, Any] = {}
        for key, value in flat(info).items():
            if value is None:
                continue
            name = f"info/{key}"
            try:
                channel = self._channels.get(name) or self._made(name, value)
                if channel is None:
                    other[key] = as_json(value, strict=True)
                    continue
                stored = _stored(channel, value)
            except TypeError:
                self.left_out[key] = f"JSON cannot hold a value of type {type(value).__name__}"
                continue
            if stored is None:
                other[key] = as_json(value, strict=True)
                continue
            if name not in self._channels:
                self._channels[name] = channel
                new.append(channel)
            values[name] = stored
        if other:
            values[OTHER] = _json_text(other)
            if OTHER not in self._channels:
                self._channels[OTHER] = ChannelDef(OTHER, layout="text", extra={"text": "json"})
                new.append(self._channels[OTHER])
        for name, channel in self._channels.items():
            if name not in values:
                values[name] = _missing(channel)
        return new, values

    def _made(self, name: str, value: Any) -> ChannelDef | None:  # noqa: ANN401 - anything
        """A channel for values like this one; None if the name cannot be that of a channel."""
        try:
            check_id(name, "an info")
        except InvalidArgument:
            return None
        if name in self._taken:
            return None
        if _is_number(value):
            return ChannelDef(name, DType.FLOAT64)
        if isinstance(value, np.ndarray) and value.size:
            with suppress(InvalidArgument):  # for a dtype that cannot be stored
                return ChannelDef(name, DType.from_numpy(value.dtype), value.shape)
        is_text = isinstance(value, str)
        return ChannelDef(name, layout="text", extra={} if is_text else {"text": "json"})


def _is_number(value: object) -> bool:
    if isinstance(value, np.ndarray) and not value.ndim:
        return value.dtype.kind in "biuf"
    return isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_))


def _stored(channel: ChannelDef, value: Any) -> Any:  # noqa: ANN401 - anything
    """A value as its channel holds it; None if it does not fit."""
    if channel.layout == "text":
        text = _json_text(as_json(value, strict=True)) if channel.extra else value
        return text if isinstance(text, str) and _is_utf8(text) else None
    if not channel.shape:
        number = value.item() if isinstance(value, (np.ndarray, np.generic)) else value
        if not _is_number(value) or (isinstance(number, int) and abs(number) > _LARGEST_EXACT):
            return None
        return float(number)
    kind = DType.parse(channel.dtype or DType.FLOAT32).numpy_dtype
    if not isinstance(value, np.ndarray) or value.shape != tuple(channel.shape):
        return None
    return value if np.can_cast(value.dtype, kind, "safe") else None


def _missing(channel: ChannelDef) -> Any:  # noqa: ANN401 - a value of the channel
    """What a step without a value has: NaN, or 0 in arrays of integers, or an empty string."""
    if channel.layout == "text":
        return ""
    kind = DType.parse(channel.dtype or DType.FLOAT32).numpy_dtype
    return np.full(channel.shape, np.nan if kind.kind == "f" else 0, kind)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_text(value: Any) -> str:  # noqa: ANN401 - JSON
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_utf8(text) else json.dumps(value)


def success_of(info: Mapping[str, Any]) -> bool | None:
    """Whether an episode succeeded, as its last info says; None if it does not."""
    for key in ("success", "is_success"):
        value = info.get(key)
        if value is not None and np.size(value) == 1 and _is_number(np.asarray(value).reshape(())):
            return bool(value)
    return None


def flat(info: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """The values with the keys of inner dictionaries joined; arrays and lists are copied, because
    environments may use theirs again."""
    found: dict[str, Any] = {}
    for key, value in info.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            found |= flat(value, name)
        else:
            found[name] = value.copy() if isinstance(value, (np.ndarray, list)) else value
    return found


def as_json(value: Any, *, strict: bool = False) -> Any:  # noqa: ANN401 - anything
    """A value as JSON can hold it; anything else becomes its `repr`, or raises TypeError if `strict`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        number = int(value)
        return number if abs(number) < 1 << 63 else str(number)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, (np.ndarray, np.bool_)):
        return as_json(value.tolist(), strict=strict)
    if isinstance(value, Mapping):
        return {str(key): as_json(part, strict=strict) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part, strict=strict) for part in value]
    if strict:
        raise TypeError
    return repr(value)
