"""Entries and fields of records as values of MDS: what `_mds_values` reads, written."""

from __future__ import annotations

import decimal
import json
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shard_format.errors import BadValue, InvalidArgument
from shardpack.convert._mds_layout import DTYPES
from shardpack.convert._mds_values import array_settings
from shardpack.convert._names import ending_of
from shardpack.decoding import decode_json, decode_npy, decode_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# What Pillow tells apart by itself, whatever the encoding says.
_IMAGES: Final = ("gif", "jpg", "png", "tif", "webp")
_LONGEST_NUMBER: Final = 4096
_MOST_AXES: Final = 63
_FLOATS: Final = {"float16": "<e", "float32": "<f", "float64": "<d"}
_LARGEST_DOUBLE: Final = int(sys.float_info.max)
_INT64: Final = range(-(1 << 63), 1 << 63)

Data: TypeAlias = "bytes | bytearray | memoryview"


class Encoding(NamedTuple):
    """How values of a column are stored."""

    name: str
    size: int | None
    """Bytes of a value; None if it varies."""
    of_entry: Callable[[memoryview], Data]
    """From the content of an entry. Raises `BadValue` if readers of MDS could not read it."""
    of_field: Callable[[Any], Data]
    """From a value of the metadata. Raises `BadValue` if it is of another type."""


def encoding_of(name: str, column: str) -> Encoding:
    """The encoding of this name.

    Raises:
        InvalidArgument: there is none, or values of records cannot become it.
    """
    kind, colon, settings = name.partition(":")
    # A shape alone is something that the package can write and not read.
    if kind == "ndarray" and not settings.startswith(":"):
        dtype, shape = array_settings(column, name, settings)
        size = None
        if dtype is not None and shape is not None:
            size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        return Encoding(name, size, partial(_array, dtype, shape), _no_array)
    number = "int64" if kind == "int" else kind
    if not colon and number in DTYPES:
        is_float = number in _FLOATS
        encode = partial(_float, number) if is_float else partial(_integer, np.iinfo(number))
        parse: Callable[[str], Any] = float if is_float else int
        return Encoding(name, np.dtype(number).itemsize, partial(_as_number, parse, encode), encode)
    if not colon and kind in _TEXTS:
        parse, expected = _TEXTS[kind]
        return Encoding(
            name, None, partial(_number_text, parse), partial(_as_text, parse, expected)
        )
    if not colon and kind in _CONTENTS:
        return Encoding(name, None, _CONTENTS[kind], _VALUES.get(kind, _no_file))
    raise InvalidArgument(
        "a column cannot have this encoding",
        entry=column,
        expected=", ".join((*_CONTENTS, "int", *DTYPES, *_TEXTS, "ndarray[:DTYPE[:SHAPE]]")),
        found=repr(name),
    )


def natural_encodings(content_type: str) -> tuple[str, ...]:
    """Encodings for entries of this type, best first; the last one takes everything."""
    found = _NATURAL.get(content_type)
    return ("bytes",) if found is None else (found, "bytes")


def field_encoding(values: list[Any]) -> str:
    """An encoding from which all these values of a field come back equal."""
    kinds = {type(value) for value in values}
    if kinds == {int} and all(value in _INT64 for value in values):
        return "int"
    # JSON does not tell 1.0 from 1.
    if kinds <= {int, float} and float in kinds and all(map(_is_double, values)):
        return "float64"
    if kinds == {str}:
        return "str"
    return "bytes" if kinds == {bytes} else "json"


# --- from entries


def _as_is(data: memoryview) -> memoryview:
    return data


def _text(data: memoryview) -> memoryview:
    decode_text(data)
    return data


def _json(data: memoryview) -> memoryview:
    decode_json(data, len(data))
    return data


def _image(data: memoryview) -> memoryview:
    if ending_of(data) not in _IMAGES:
        raise BadValue("this is no image", found=f"{bytes(data[:8]).hex(' ')} at the start")
    return data


def _parsed(parse: Callable[[str], Any], data: memoryview) -> Any:  # noqa: ANN401 - a number
    # Longer ones would take quadratic time to parse, and `from_mds` refuses them.
    if len(data) > _LONGEST_NUMBER:
        raise BadValue(
            "this is no number", expected=f"at most {_LONGEST_NUMBER} digits", found=len(data)
        )
    text = decode_text(data)
    try:
        return parse(text)
    except (ValueError, decimal.InvalidOperation):
        raise BadValue("this is no number", found=repr(text[:40])) from None


def _as_number(
    parse: Callable[[str], Any], encode: Callable[[Any], bytes], data: memoryview
) -> bytes:
    return encode(_parsed(parse, data))


def _number_text(parse: Callable[[str], Any], data: memoryview) -> memoryview:
    _parsed(parse, data)
    return data


def _array(dtype: str | None, shape: tuple[int, ...] | None, data: memoryview) -> bytes:
    array: NDArray[Any] = decode_npy(data, len(data))
    own = array.dtype.name
    if own not in DTYPES or not 1 <= array.ndim <= _MOST_AXES or not array.size:
        raise BadValue(
            "MDS has no such array",
            expected=f"one value or more, 1 to {_MOST_AXES} axes, and a type of {', '.join(DTYPES)}",
            found=f"{array.dtype} {array.shape}",
        )
    if (dtype is not None and dtype != own) or (shape is not None and shape != array.shape):
        raise BadValue(
            "this is another kind of array",
            expected=f"{dtype or 'any type'} {shape or ''}".rstrip(),
            found=f"{own} {array.shape}",
        )
    parts: list[bytes] = []
    if dtype is None:
        parts.append(bytes((DTYPES[own],)))
    if shape is None:
        longest = max(array.shape)
        width = next(n for n in range(4) if longest < 1 << (8 << n))
        parts.append(bytes((array.ndim << 2 | width,)))
        parts.append(np.array(array.shape, f"<u{1 << width}").tobytes())
    parts.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return b"".join(parts)


# --- from fields


def _unfit(expected: str, value: object) -> BadValue:
    return BadValue("the value is of another kind", expected=expected, found=repr(value)[:80])


def _integer(kind: np.iinfo[Any], value: object) -> bytes:
    if type(value) is not int or not int(kind.min) <= value <= int(kind.max):
        raise _unfit(f"an integer from {kind.min} to {kind.max}", value)
    return value.to_bytes(kind.bits // 8, "little", signed=kind.min < 0)


def _float(kind: str, value: object) -> bytes:
    # What does not fit a smaller type is rounded, which is why one chooses it.
    try:
        if not _is_double(value):
            raise _unfit("a number that a double can hold", value)
        return struct.pack(_FLOATS[kind], value)
    except OverflowError:
        raise _unfit(f"a number that {kind} can hold", value) from None


def _is_double(value: object) -> bool:
    if type(value) is int:
        return abs(value) <= _LARGEST_DOUBLE and int(float(value)) == value
    return type(value) is float


def _as_text(parse: Callable[[str], Any], expected: str, value: object) -> bytes:
    if isinstance(value, (bool, bytes)) or not isinstance(value, (str, int, float)):
        raise _unfit(expected, value)
    data = str(value).encode("utf-8", "replace")
    try:
        _parsed(parse, memoryview(data))
    except BadValue:
        raise _unfit(expected, value) from None
    return data


def _str_value(value: object) -> bytes:
    if not isinstance(value, str):
        raise _unfit("text", value)
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadValue(f"the text cannot be UTF-8: {error}") from None


def _bytes_value(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise _unfit("bytes", value)
    return value


def _json_value(value: object) -> bytes:
    if not _is_json(value):
        raise _unfit("what JSON has: no bytes, and no maps with keys other than text", value)
    return json.dumps(value).encode("ascii")


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, (str, int, float))


def _no_array(value: object) -> bytes:
    raise _unfit("an .npy entry", value)


def _no_file(value: object) -> bytes:
    raise _unfit("an entry that holds the file", value)


_CONTENTS: Final[dict[str, Callable[[memoryview], Data]]] = {
    "bytes": _as_is,
    "str": _text,
    "json": _json,
    "jpeg": _image,
    "png": _image,
    "pkl": _as_is,
}
_VALUES: Final[dict[str, Callable[[Any], Data]]] = {
    "bytes": _bytes_value,
    "str": _str_value,
    "json": _json_value,
}
_TEXTS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "str_int": (int, "an integer"),
    "str_float": (float, "a number"),
    "str_decimal": (decimal.Decimal, "a decimal number"),
}
# pkl is for those who choose it: readers of MDS would load the pickle.
_NATURAL: Final = {
    "application/json": "json",
    "application/x-npy": "ndarray",
    "image/jpeg": "jpeg",
    "image/png": "png",
    "text/plain": "str",
}
