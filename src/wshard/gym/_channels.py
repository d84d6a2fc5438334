"""What becomes a channel: the parts of a Gymnasium space, and the keys of the infos."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument
from shard_format.extras import require
from wshard._lanes import check_id
from wshard.streaming import ChannelDef
from wshard.types import Channel, DType, Modality, RaggedChannel, TextChannel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gymnasium import Space

# The journal cuts longer texts. The finished episode has all of a text.
_WIDEST_TEXT: Final = 4096
_LONGEST_DESCRIPTION: Final = 200


@dataclass(slots=True)
class Leaf:
    """A part of a space that is one channel."""

    name: str
    """Of the channel: the keys of dictionaries and the positions in tuples, with `/` between them."""
    path: tuple[Any, ...]
    """The keys and positions that lead to it in a value of the whole space."""
    dtype: DType
    shape: tuple[int, ...]
    is_text: bool
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
        if self.is_text:
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
        is_image = self.dtype is DType.UINT8 and len(self.shape) == 3 and self.shape[2] == 3
        fields: dict[str, Any] = {
            "modality": Modality.LANGUAGE if self.is_text else Modality.RGB if is_image else None,
            "compression": "zstd:1" if self.is_text else None,
            "extra": {"space": self.description} if self.description else {},
        }
        return ChannelDef(
            self.name, self.dtype, self.shape, lane=self.lane, **{**fields, **changes}
        )

    def padded(self, text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A text as the journal holds it: UTF-8, cut at a whole character, padded with zeros."""
        encoded = text.encode()[: self.shape[0]].decode("utf-8", "ignore").encode()
        return np.frombuffer(encoded.ljust(self.shape[0], b"\0"), np.uint8)


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
        letters = max((len(letter.encode()) for letter in space.character_set), default=1)
        width = min(max(1, space.max_length * letters), _WIDEST_TEXT)
        yield Leaf(name, path, DType.UINT8, (width,), True, description)
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
    yield Leaf(name, path, dtype, tuple(space.shape or ()), False, description)


# --- infos


def info_channels(infos: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Channel], dict[str, str]]:
    """Every key as a channel `info/<key>`, with one entry for each of `infos`.

    Numbers make a plain channel; if steps lack them, a ragged one with zero or one item. Strings make text.
    Everything else that JSON can hold makes text of JSON, empty where it is missing.

    Returns:
        The channels, and for each key that JSON cannot hold the reason.
    """
    columns: dict[str, list[Any]] = {}
    for number, info in enumerate(infos):
        for key, value in flat(info).items():
            columns.setdefault(key, [_MISSING] * len(infos))[number] = value
    channels: dict[str, Channel] = {}
    left_out: dict[str, str] = {}
    for key, values in columns.items():
        name = f"info/{key}"
        try:
            check_id(name, "an info")
            channels[name] = _channel(values)
        except InvalidArgument as error:
            left_out[key] = error.problem
    return channels, left_out


_MISSING: Any = object()


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


def _channel(values: list[Any]) -> Channel:
    there = [value for value in values if value is not _MISSING]
    is_whole = len(there) == len(values)
    if all(
        isinstance(value, (bool, int, float, np.number, np.bool_, np.ndarray)) for value in there
    ):
        arrays = [np.asarray(value) for value in there]
        kind = np.result_type(*arrays)
        if len({array.shape for array in arrays}) == 1 and _can_be_stored(kind, arrays):
            if is_whole:
                return Channel(data=np.stack(arrays).astype(kind))
            none = np.empty((0, *arrays[0].shape), kind)
            rows = [none if v is _MISSING else np.asarray(v)[None].astype(kind) for v in values]
            return RaggedChannel(data=rows)
    if is_whole and all(isinstance(value, str) for value in there):
        return TextChannel(data=values)
    texts = ["" if value is _MISSING else _text(value) for value in values]
    return TextChannel(data=texts, extra={"text": "json"})


def _can_be_stored(kind: np.dtype[Any], arrays: list[np.ndarray[Any, Any]]) -> bool:
    try:
        DType.from_numpy(kind)
    except InvalidArgument:
        return False
    # int64 and uint64 together make float64, which does not hold all of them.
    return kind.kind == "f" or all(array.dtype.kind in "iub" for array in arrays)


def _text(value: Any) -> str:  # noqa: ANN401 - anything
    try:
        return json.dumps(as_json(value, strict=True), ensure_ascii=False)
    except TypeError:
        raise InvalidArgument(f"JSON cannot hold a value of type {type(value).__name__}") from None


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
