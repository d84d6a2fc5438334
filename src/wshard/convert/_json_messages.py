"""Messages in JSON as columns, and messages whose bytes are kept."""

from __future__ import annotations

import base64
import binascii
import json
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadValue
from wshard.convert._message_columns import (
    EXACT,
    TIME_OF,
    TIMES,
    VECTOR_OF,
    ArrayColumn,
    Json,
    json_of_texts,
    json_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wshard.convert._message_columns import Column, Path

__all__ = ["JsonDecoder", "RawDecoder", "WholeJson", "columns_of"]

_MOST_TEXTS: Final = 1000
_PLAIN: Final = {bool, int, float, type(None), str}
_I64: Final = 1 << 63
_U8: Final = np.dtype(np.uint8)
_DATA: Final = "data"


class JsonDecoder:
    """Decodes messages in JSON.

    Args:
        entry: the topic, for errors.
        path: the file, for errors.
        has_bytes: whether the field `data` is base64.
    """

    def __init__(self, entry: str, path: str, *, has_bytes: bool = False) -> None:
        self.types: dict[Path, np.dtype[Any]] = {}
        self._entry = entry
        self._path = path
        self._has_bytes = has_bytes

    def parse(self, data: memoryview) -> Any:  # noqa: ANN401 - any JSON
        try:
            return json.loads(str(data, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise self._error(error) from None

    def columns(
        self, messages: Sequence[Any], only: Path | None = None
    ) -> dict[Path, Column] | None:
        found: dict[Path, Column] = {}
        if self._has_bytes and all(map(_has_bytes, messages)):
            texts = [one[_DATA] for one in messages]
            shapes = [(_decoded_size(text),) for text in texts]
            found[_DATA,] = ArrayColumn(_U8, shapes, texts, self._bytes)
            if only in found:
                return found
            messages = [{k: v for k, v in one.items() if k != _DATA} for one in messages]
        try:
            return found if columns_of(messages, (), found) else None
        except RecursionError as error:
            raise self._error(error) from None

    def _bytes(self, text: str) -> bytes:
        try:
            data = base64.b64decode(text, validate=True)
            if len(data) == _decoded_size(text):
                return data
            problem = "padding inside"
        except (ValueError, binascii.Error) as error:
            problem = str(error)
        raise BadValue(
            f"the field data of a message is not base64: {problem}",
            path=self._path,
            entry=self._entry,
        )

    def _error(self, error: Exception) -> BadValue:
        return BadValue(f"a message is not JSON: {error}", path=self._path, entry=self._entry)


def _has_bytes(message: Any) -> bool:  # noqa: ANN401 - any JSON
    return type(message) is dict and type(message.get(_DATA)) is str


def _decoded_size(text: str) -> int:
    """How many bytes a text in base64 stands for."""
    return len(text) // 4 * 3 - text.count("=", max(0, len(text) - 2))


class WholeJson:
    """Decodes messages in JSON as one text each: for topics that have too many different keys."""

    def __init__(self) -> None:
        self.types: dict[Path, np.dtype[Any]] = {}

    def parse(self, data: memoryview) -> Json:
        return json_text(json.loads(bytes(data)))

    def columns(self, messages: Sequence[Any], only: Path | None = None) -> dict[Path, Column]:
        return {(): messages}


class RawDecoder:
    """Keeps the bytes of messages whose encoding is not known."""

    def __init__(self) -> None:
        self.types: dict[Path, np.dtype[Any]] = {(): _U8}

    def parse(self, data: memoryview) -> bytes:
        return bytes(data)

    def columns(self, messages: Sequence[Any], only: Path | None = None) -> dict[Path, Column]:
        return {(): ArrayColumn(_U8, [(len(one),) for one in messages], messages)}


# --- from JSON to columns


def columns_of(values: Sequence[Any], path: Path, found: dict[Path, Column]) -> bool:
    """Adds the fields of what several messages have at a path; False if they do not all have the same ones.

    What becomes of a value does not depend on the others: one value always gives True, and the same fields.
    """
    kinds = set(map(type, values))
    if kinds <= _PLAIN:
        found[path] = values
        return True
    if kinds == {dict}:
        return _add_objects(values, path, found)
    return kinds == {list} and _add_lists(values, path, found)


def _add_objects(objects: Sequence[dict[str, Any]], path: Path, found: dict[Path, Column]) -> bool:
    keys = objects[0].keys()
    if set(map(len, objects)) != {len(keys)}:
        return False
    if not keys:
        found[path] = [Json("{}")] * len(objects)
        return True
    try:
        columns = {key: list(map(itemgetter(key), objects)) for key in keys}
    except KeyError:
        return False
    names = VECTOR_OF.get(frozenset(keys)) or TIME_OF.get(frozenset(keys))
    if names and path:
        whole = _whole(names, [columns[name] for name in names])
        if whole is not None:
            found[(*path, names)] = whole
            return True
        if len(objects) > 1:  # some of them may be whole
            return False
    return all(columns_of(column, (*path, key), found) for key, column in columns.items())


def _whole(names: tuple[str, ...], parts: list[list[Any]]) -> Column | None:
    """Objects of numbers as vectors, or of integers as nanoseconds; None if one of them is neither."""
    if names in TIMES:
        seconds, rest = parts
        if set(map(type, chain(seconds, rest))) != {int}:
            return None
        is_time = min(rest) >= 0 and max(rest) < 1_000_000_000
        is_time = is_time and min(seconds) > -1 << 33 and max(seconds) < 1 << 33
        return [s * 1_000_000_000 + r for s, r in zip(*parts, strict=True)] if is_time else None
    numbers = _numbers(list(chain.from_iterable(zip(*parts, strict=True))))
    if numbers is None or numbers.dtype == np.bool_:
        return None
    return ArrayColumn(numbers.dtype, [(len(names),)] * len(parts[0]), [numbers])


def _add_lists(lists: Sequence[list[Any]], path: Path, found: dict[Path, Column]) -> bool:
    flat = list(chain.from_iterable(lists))
    numbers = _numbers(flat) if flat else np.empty(0)
    if numbers is not None:
        found[path] = ArrayColumn(numbers.dtype, [(len(one),) for one in lists], [numbers])
        return True
    if set(map(type, flat)) == {str} and all(0 < len(one) < _MOST_TEXTS for one in lists):
        found[path] = [json_of_texts(tuple(one)) for one in lists]
        return True
    if len(lists) > 1:
        return False
    array = as_array(flat)
    if array is not None:
        found[path] = ArrayColumn(array.dtype, [array.shape], [array])
    elif not _add_items(flat, path, found):
        found[path] = [json_text(flat)]
    return True


def _numbers(flat: list[Any]) -> NDArray[Any] | None:
    """Numbers as an array; None if no array holds them exactly."""
    kinds = set(map(type, flat))
    if kinds == {float}:
        return np.array(flat, np.float64)
    if kinds == {int, float}:
        is_exact = all(type(one) is float or -EXACT < one < EXACT for one in flat)
        return np.array(flat, np.float64) if is_exact else None
    if kinds == {int}:
        return np.array(flat, np.int64) if min(flat) >= -_I64 and max(flat) < _I64 else None
    return np.array(flat, np.bool_) if kinds == {bool} else None


def as_array(value: list[Any]) -> NDArray[Any] | None:
    """A list of numbers, or of lists of them, as an array; None if no array holds it exactly."""
    flat, shape = value, [len(value)]
    kinds = set(map(type, flat))
    while kinds == {list}:
        lengths = set(map(len, flat))
        if len(lengths) > 1:
            return None
        shape.append(lengths.pop())
        flat = [one for inner in flat for one in inner]
        kinds = set(map(type, flat))
    if not flat:
        return np.zeros(shape) if len(shape) == 1 else None
    if type(None) in kinds and float in kinds:  # as JavaScript writes NaN
        flat = [np.nan if one is None else one for one in flat]
    numbers = _numbers(flat)
    return None if numbers is None else numbers.reshape(shape)


def _add_items(items: list[Any], path: Path, found: dict[Path, Column]) -> bool:
    """Adds a list of objects with the same fields as one array for each field."""
    inner: dict[Path, Column] = {}
    if not all(type(one) is dict and one for one in items):
        return False
    if not columns_of(items, (None,), inner) or any(None in at[1:] for at in inner):
        return False
    columns: dict[Path, Column] = {}
    for at, column in inner.items():
        if isinstance(column, ArrayColumn):
            if not isinstance(at[-1], tuple):
                return False
            shape = (len(items), len(at[-1]))
            columns[(*path, *at)] = ArrayColumn(column.dtype, [shape], column.parts)
        elif any(type(one) is Json for one in column):
            return False
        else:
            array = as_array(list(column))
            columns[(*path, *at)] = (
                [json_text(column)]
                if array is None
                else ArrayColumn(array.dtype, [array.shape], [array])
            )
    found.update(columns)
    return True
