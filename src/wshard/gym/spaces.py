"""What of a Gymnasium space becomes which channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._extras import require
from shard_format.errors import InvalidArgument
from wshard.channels import Modality
from wshard.dtypes import DType
from wshard.streaming import ChannelDef

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gymnasium import Space

# A longer text is cut in the journal. The finished episode has all of it.
_WIDEST_TEXT: Final = 4096
_LONGEST_DESCRIPTION: Final = 200


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a space that is one channel."""

    name: str
    """Of the channel: the keys of dictionaries and the positions in tuples, with `/` between them."""
    path: tuple[Any, ...]
    """How to get at it in a value of the whole space."""
    dtype: DType
    shape: tuple[int, ...]
    is_text: bool
    description: str
    """The space as Gymnasium prints it; empty if that is long."""

    def pick(self, value: Any) -> Any:  # noqa: ANN401 - a value of the whole space
        """This part of a value: an array of its own, or a string."""
        try:
            for key in self.path:
                value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidArgument(
                "a value does not fit its space", entry=self.name, found=f"no part {error}"
            ) from None
        if self.is_text:
            if not isinstance(value, str):
                raise InvalidArgument(
                    "a value does not fit its space",
                    entry=self.name,
                    expected="a string",
                    found=type(value).__name__,
                )
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(
                    "a text cannot be stored as UTF-8", entry=self.name, found=error.reason
                ) from None
            return str(value)
        array = np.array(value)  # environments may use theirs again
        if array.shape != self.shape:
            raise InvalidArgument(
                "a value has another shape than its space",
                entry=self.name,
                expected=list(self.shape),
                found=list(array.shape),
            )
        return array

    def channel(self, lane: str, changes: Mapping[str, Any]) -> ChannelDef:
        """What the recorder is told about it."""
        fields: dict[str, Any] = {"modality": _modality(self), "compression": None, "extra": {}}
        if self.description:
            fields["extra"] = {"space": self.description}
        if self.is_text:
            fields["compression"] = "zstd:1"
        fields |= changes
        return ChannelDef(self.name, self.dtype, self.shape, lane=lane, **fields)

    def padded(self, text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A text as the journal has it: UTF-8, cut at a whole character, filled up with zeros."""
        encoded = text.encode()
        if len(encoded) > self.shape[0]:
            cut = encoded[: self.shape[0]].decode("utf-8", "ignore")
            encoded = cut.encode()
        row = np.zeros(self.shape, np.uint8)
        row[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        return row


def leaves(space: Space[Any], root: str) -> list[Leaf]:
    """The channels of a space.

    Args:
        space: any of Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict and Tuple of them.
        root: what to call a space that is not a dictionary.
    """
    found = list(_leaves(space, root, "", ()))
    seen: set[str] = set()
    for leaf in found:
        if leaf.name in seen:
            raise InvalidArgument("two parts of a space have the same name", entry=leaf.name)
        seen.add(leaf.name)
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
            "this space cannot be recorded",
            entry=name,
            expected="Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict and Tuple of them",
            found=type(space).__name__,
            hint="make its values arrays of one shape, with a wrapper inside of this one",
        )
    try:
        dtype = DType.from_numpy(np.dtype(space.dtype))
    except InvalidArgument as error:
        raise error.located(entry=name) from None
    yield Leaf(name, path, dtype, tuple(space.shape or ()), False, description)


def _modality(leaf: Leaf) -> str | None:
    if leaf.is_text:
        return Modality.LANGUAGE.value
    is_image = leaf.dtype is DType.UINT8 and len(leaf.shape) == 3 and leaf.shape[2] == 3
    return Modality.RGB.value if is_image else None
