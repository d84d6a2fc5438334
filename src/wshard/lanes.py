"""The lanes of an episode: dictionaries that turn what is assigned into channels."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.blocks import FileBlock
from wshard.channels import Channel
from wshard.labels import Intervals, as_intervals
from wshard.names import check_id
from wshard.ragged import TextChannel
from wshard.residual_lane import Residual

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from typing_extensions import Self

    from wshard.blocks import Block

__all__ = ["Extra", "InnerLane", "Lane", "NestedLane", "as_channel"]

Value = TypeVar("Value")


class FillPart(Enum):
    """Which lanes of an opened file are asked for. A filler may bring more than that."""

    OBSERVATIONS = "observations"
    REST = "rest"
    ALL = "all"


class Lane(dict[str, Value], Generic[Value]):
    """A dictionary that turns what is assigned into what it holds, and checks the key."""

    def __init__(self, what: str, make: Callable[[Any, str], Value]) -> None:
        self._what = what
        self._make = make

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - made into a Value
        check_id(name, self._what)
        super().__setitem__(name, self._make(value, name))

    def update(self, *others: Any, **named: Any) -> None:  # noqa: ANN401 - as dict, but checked
        for name, value in dict(*others, **named).items():
            self[name] = value

    def __ior__(self, others: Any) -> Self:  # type: ignore[override,misc] # noqa: ANN401 - as update
        self.update(others)
        return self

    def setdefault(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as dict, but checked
        if name not in self:
            self[name] = default
        return self[name]

    adopt = dict.__setitem__
    """Sets what a file holds, under whatever name it has there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_lane, (type(self), self._what, self._make, dict(self)))


def _rebuild_lane(
    kind: type[Lane[Any]], what: str, make: Callable[[Any, str], Any], items: dict[str, Any]
) -> Lane[Any]:
    lane = kind.__new__(kind)
    dict.__init__(lane)
    lane._what, lane._make = what, make
    for name, value in items.items():
        lane.adopt(name, value)
    return lane


class NestedLane(Lane[Value]):
    """A lane of lanes. Asking for a missing one gives an empty lane that joins when it is filled."""

    def __missing__(self, name: str) -> Value:
        return self._make(_Joining(self, name), name)

    def new_inner(self, name: str) -> Value:
        """An empty inner lane, to be adopted."""
        return self._make({}, name)


class _Joining:
    """Says to which lane a new inner lane belongs once it has something in it."""

    def __init__(self, outer: Lane[Any], name: str) -> None:
        self.outer = outer
        self.name = name


class InnerLane(NestedLane[Value]):
    _joining: _Joining | None = None

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - as Lane
        super().__setitem__(name, value)
        if self._joining is not None:
            joining, self._joining = self._joining, None
            joining.outer[joining.name] = self

    def __missing__(self, name: str) -> Value:
        if self._make is as_channel:
            raise KeyError(name)
        return super().__missing__(name)


def models_of(value: Any, name: str) -> InnerLane[Channel]:  # noqa: ANN401 - a dictionary
    return _inner("a model", as_channel, value, name)


def uncertainties_of(value: Any, name: str) -> InnerLane[InnerLane[Channel]]:  # noqa: ANN401 - a dictionary
    return _inner("a model", _kinds_of, value, name)


def _kinds_of(value: Any, name: str) -> InnerLane[Channel]:  # noqa: ANN401 - a dictionary
    return _inner("an uncertainty", as_channel, value, name)


def _inner(what: str, make: Callable[[Any, str], Any], value: Any, name: str) -> InnerLane[Any]:  # noqa: ANN401 - a dictionary
    if isinstance(value, InnerLane):
        return value
    lane: InnerLane[Any] = InnerLane(what, make)
    if isinstance(value, _Joining):
        lane._joining = value
        return lane
    if not isinstance(value, dict):
        raise InvalidArgument(
            f"{name!r} needs a dictionary by {what.split()[-1]}",
            expected="ep.omens[channel][model] = array",
            found=type(value).__name__,
        )
    lane.update(value)
    return lane


def as_residual(value: Any, name: str) -> Residual:  # noqa: ANN401 - checked here
    if not isinstance(value, Residual):
        raise InvalidArgument(
            f"the residual {name!r} is no Residual",
            found=type(value).__name__,
            hint="make one with Residual.of_signal or Residual.of_error",
        )
    return value


def as_label(value: Any, name: str) -> Intervals:  # noqa: ANN401 - a list of intervals
    try:
        return as_intervals(value)
    except InvalidArgument as error:
        raise error.located(entry=f"label/{name}") from None


class Extra:
    """An entry that the format does not define: kept as it is. `bytes(extra)` reads it."""

    __slots__ = ("_block", "_data", "content_type", "name", "tag_bits")

    def __init__(
        self,
        name: str,
        data: bytes | None = None,
        *,
        block: Block | None = None,
        content_type: int = 0,
        tag_bits: int = 0,
    ) -> None:
        self.name = name
        self.content_type = content_type
        self.tag_bits = tag_bits
        self._data = data
        self._block = block

    @property
    def nbytes(self) -> int:
        """Its size, uncompressed."""
        if self._data is not None:
            return len(self._data)
        return 0 if self._block is None else self._block.nbytes

    @property
    def stored(self) -> FileBlock | None:
        """The entry of a file that it still is."""
        return self._block if isinstance(self._block, FileBlock) else None

    @property
    def data(self) -> NDArray[np.uint8]:
        """Its bytes, as an array; a view of the file where possible."""
        if self._data is not None or self._block is None:
            return np.frombuffer(self._data or b"", np.uint8)
        return self._block.array(np.dtype(np.uint8), (self._block.nbytes,))

    def load(self) -> None:
        """Brings its bytes into memory."""
        if self._data is None:
            self._data = bytes(self)

    def __bytes__(self) -> bytes:
        return self.data.tobytes()

    def __len__(self) -> int:
        return self.nbytes

    def clone(self) -> Extra:
        """A copy in memory."""
        return Extra(self.name, bytes(self), content_type=self.content_type, tag_bits=self.tag_bits)

    def __repr__(self) -> str:
        return f"<Extra {self.name!r}: {self.nbytes} bytes>"


def as_extra(value: Any, name: str) -> Extra | Channel:  # noqa: ANN401 - bytes or an array
    if isinstance(value, Extra):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Extra(name, bytes(value))
    return as_channel(value, name)


def as_channel(value: Any, name: str) -> Channel:  # noqa: ANN401 - whatever a user has
    """A channel of what a user assigns: a channel, an array, numbers in a list, or strings."""
    if isinstance(value, Channel):
        if not value.name:
            value.name = name
        return value
    try:
        if isinstance(value, np.ndarray) and value.dtype.kind == "U":
            value = value.tolist()
        if isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value):
            return TextChannel(name, value)
        return Channel(name, data=value)
    except InvalidArgument as error:
        raise error.located(entry=name) from None
