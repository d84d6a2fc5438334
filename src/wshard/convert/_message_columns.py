"""Messages of one topic as columns: what decoders make of messages, and what fields collect.

A field has a path. Paths are tuples of keys; None stands for the items of a list, and a tuple of keys at the end for an
object of numbers that became one vector (or one time in nanoseconds).
"""

from __future__ import annotations

import json
from array import array
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["TIMES", "VECTORS", "ArrayColumn", "Column", "Field", "Json", "MessageDecoder", "Path"]

Path: TypeAlias = "tuple[str | tuple[str, ...] | None, ...]"
Value: TypeAlias = "bool | int | float | str | NDArray[Any] | None"
Column: TypeAlias = "Sequence[Any] | ArrayColumn"
"""The values of one field in several messages: numbers and texts, or arrays."""

VECTORS: Final = (("x", "y"), ("x", "y", "z"), ("x", "y", "z", "w"), ("r", "g", "b", "a"))
"""Objects of numbers with these keys become one vector."""
TIMES: Final = (("sec", "nsec"), ("sec", "nanosec"))
"""Objects of integers with these keys are times, which become nanoseconds."""
VECTOR_OF: Final = {frozenset(names): names for names in VECTORS}
TIME_OF: Final = {frozenset(names): names for names in TIMES}
EXACT: Final = 1 << 53
"""Integers below this are exact as floats."""

# Values of a field stay in memory up to this many bytes if messages are larger than `_LARGE`.
_MOST_KEPT: Final = 1 << 20
_LARGE: Final = 2048
_SCALARS: Final = {bool, int, float, type(None)}


class Json(str):
    """A value that no array can hold, as JSON text."""

    __slots__ = ()

    def value(self) -> Any:  # noqa: ANN401 - any JSON
        """What it stands for."""
        return json.loads(self)


_TEXTS: Final = {str, Json}


def json_text(value: Any) -> Json:  # noqa: ANN401 - any JSON
    """A value as JSON text."""
    return Json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@lru_cache(64)
def json_of_texts(texts: tuple[str, ...]) -> Json:
    """A list of texts as JSON: the names of joints are the same in every message."""
    return json_text(texts)


class ArrayColumn:
    """One array of each of several messages.

    Args:
        dtype: of all of them.
        shapes: of each.
        parts: their bytes: one part for each, or one for all.
        decode: makes bytes of a part in base64, when they are needed; None if parts are bytes.
    """

    __slots__ = ("decode", "dtype", "parts", "shapes")

    def __init__(
        self,
        dtype: np.dtype[Any],
        shapes: Sequence[tuple[int, ...]],
        parts: Sequence[Any],
        decode: Callable[[Any], bytes] | None = None,
    ) -> None:
        self.dtype = dtype
        self.shapes = shapes
        self.parts = parts
        self.decode = decode

    def __len__(self) -> int:
        return len(self.shapes)

    def each(self) -> Sequence[Any]:
        """The bytes of each part."""
        return self.parts if self.decode is None else list(map(self.decode, self.parts))

    def heads(self, nbytes: int) -> Sequence[Any]:
        """The first bytes of each part, at least as many as asked for where there are any more."""
        if self.decode is None:
            return [part[:nbytes] for part in self.parts]
        return [self.decode(text[: nbytes // 3 * 4 + 4]) for text in self.parts]

    def values(self) -> NDArray[Any]:
        """All elements of all arrays."""
        parts = self.each()
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), self.dtype)


class MessageDecoder(Protocol):
    """Makes columns of the bytes of messages."""

    types: dict[Path, np.dtype[Any]]
    """The dtype of each field whose type the schema states."""

    def parse(self, data: memoryview) -> Any:  # noqa: ANN401 - whatever `columns` takes
        """One message. Does not keep `data`, unless it is large."""

    def columns(
        self, messages: Sequence[Any], only: Path | None = None
    ) -> dict[Path, Column] | None:
        """The fields of parsed messages; None if they do not all have the same ones. One message always has.

        Fields other than `only` may be missing if it is given.
        """


def fields_of_one(
    decode: MessageDecoder, data: memoryview, only: Path | None = None
) -> dict[Path, Value]:
    """The fields of one message; others than `only` may be missing if it is given."""
    found: dict[Path, Value] = {}
    for path, column in (decode.columns([decode.parse(data)], only) or {}).items():
        if isinstance(column, ArrayColumn):
            found[path] = column.values().reshape(column.shapes[0])
        else:
            found[path] = column[0]
    return found


class Field:
    """What the messages of a topic have at one path."""

    def __init__(self, dtype: np.dtype[Any] | None) -> None:
        self.dtype = dtype
        self.kind = ""
        """`number`, `text` or `array`; `mixed` if messages differ, and must be decoded again."""
        self.messages = array("q")
        """Which messages have it."""
        self.values: list[Any] = []
        """Numbers and texts."""
        self.content: bytearray | None = bytearray()
        """The bytes of arrays; None if they are read again when they are used."""
        self.nbytes = 0
        self.shapes: list[tuple[int, ...]] = []
        self.is_merged = False

    def extend(self, first: int, column: Column) -> None:
        """Takes the values of several messages, of which `first` is the first."""
        self.messages.extend(range(first, first + len(column)))
        if isinstance(column, ArrayColumn):
            kind = "array"
        else:
            kinds = set(map(type, column))
            kind = "text" if kinds <= _TEXTS else "number" if kinds <= _SCALARS else "mixed"
        if self.kind not in ("", kind):
            self.kind = "mixed"
            return
        self.kind = kind
        if isinstance(column, ArrayColumn):
            self._extend_arrays(column)
        else:
            self.values.extend(column)

    def _extend_arrays(self, column: ArrayColumn) -> None:
        self.dtype = self.dtype or column.dtype
        if column.dtype != self.dtype and not self._promote(column):
            self.kind = "mixed"
            return
        self.shapes.extend(column.shapes)
        self.nbytes += sum(map(prod, column.shapes)) * self.dtype.itemsize
        if self.content is not None:
            self.content += column.values().astype(self.dtype, copy=False).data
            if self.nbytes > _MOST_KEPT and self.nbytes > _LARGE * len(self.messages):
                self.content = None

    def _promote(self, column: ArrayColumn) -> bool:
        """Whether arrays of another dtype fit, after the dtype was widened where that is exact."""
        assert self.dtype is not None
        values = column.values()
        if not values.size:
            return True
        before, after = self.dtype, column.dtype
        if not self.nbytes:
            self.dtype = after
            return True
        if {before, after} != {np.dtype(np.int64), np.dtype(np.float64)} or self.content is None:
            return False
        if after == np.float64:
            old = np.frombuffer(self.content, np.int64)
            if not _is_exact(old):
                return False
            self.content = bytearray(old.astype(np.float64).tobytes())
            self.dtype = after
            self.nbytes = len(self.content)
            return True
        return _is_exact(values)


def _is_exact(values: NDArray[np.int64]) -> bool:
    """Whether floats hold these integers exactly; -2^63 has no absolute value."""
    return not values.size or bool(values.min() > -EXACT and values.max() < EXACT)
