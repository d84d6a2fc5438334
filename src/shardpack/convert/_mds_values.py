"""Values of MDS samples: what each encoding is in a record."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from shard_format.errors import BadValue, InvalidArgument
from shardpack.convert._names import bytes_name, entry_name

_DTYPES: Final = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
_DTYPE_OF_CODE: Final = {code: name for name, code in _DTYPES.items()}
# Modes of Pillow whose raw bytes are an array.
_PIXELS: Final = {
    "L": ("u1", ()),
    "RGB": ("u1", (3,)),
    "RGBA": ("u1", (4,)),
    "LA": ("u1", (2,)),
    "CMYK": ("u1", (4,)),
    "YCbCr": ("u1", (3,)),
    "HSV": ("u1", (3,)),
    "I": ("<i4", ()),
    "F": ("<f4", ()),
    "I;16": ("<u2", ()),
}
_U32: Final = struct.Struct("<I")

Put: TypeAlias = Callable[[memoryview, dict[str, Any], dict[str, Any]], None]
"""Takes the bytes of a value, and puts it into the entries or the metadata of a record."""


def converter(column: str, encoding: str) -> Put:
    """How values of a column become part of a record.

    Raises:
        InvalidArgument: the encoding is not one of MDS.
    """
    kind, _, settings = encoding.partition(":")
    if kind in _FILES:
        return partial(_put_file, entry_name(column, _FILES[kind]))
    if kind == "bytes":
        return partial(_put_file, bytes_name(column))
    if kind == "int" or kind in _DTYPES:
        return partial(_put_scalar, column, np.dtype("int64" if kind == "int" else kind))
    if kind in _TEXTS:
        return partial(_put_text, column, _TEXTS[kind])
    if kind == "ndarray":
        dtype, shape = _array_settings(column, encoding, settings)
        return partial(_put_array, entry_name(column, "npy"), dtype, shape)
    if kind == "pil":
        return partial(_put_pixels, entry_name(column, "npy"))
    if kind in _LISTS:
        skip, part = _LISTS[kind]
        return partial(_put_list, column, skip, part)
    raise InvalidArgument(
        "a column has an encoding that is not known",
        entry=column,
        found=repr(encoding),
        hint="columns=[…] leaves it out",
    )


# Values that are files, or text, as they are. Pickles are kept as bytes and never loaded.
_FILES: Final = {"str": "txt", "jpeg": "jpg", "png": "png", "json": "json", "pkl": "pkl"}
# Numbers written as text; a decimal would lose digits as anything else.
_TEXTS: Final[dict[str, Callable[[str], Any]]] = {
    "str_int": lambda text: int(text) if -(1 << 63) <= int(text) < 1 << 64 else text,
    "str_float": float,
    "str_decimal": str,
}
# Bytes before the count, and what each item is.
_LISTS: Final = {
    "jpeg_array": (0, "jpeg"),
    "jpegarray": (0, "jpeg"),
    "list[jpeg]": (4, "jpeg"),
    "list[png]": (4, "png"),
    "list[pil]": (4, "pil"),
}


def _put_file(name: str, data: memoryview, entries: dict[str, Any], fields: dict[str, Any]) -> None:
    entries[name] = data


def _put_scalar(
    column: str,
    dtype: np.dtype[Any],
    data: memoryview,
    entries: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    if len(data) != dtype.itemsize:
        raise _wrong(column, f"{dtype.itemsize} bytes", f"{len(data)} bytes")
    fields[column] = np.frombuffer(data, dtype.newbyteorder("<"))[0].item()


def _put_text(
    column: str,
    parse: Callable[[str], Any],
    data: memoryview,
    entries: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    try:
        # Longer numbers would take quadratic time to parse.
        fields[column] = parse(str(data[:4096], "utf-8"))
    except ValueError as error:
        raise _wrong(column, "a number as text", str(error)) from None
    if len(data) > 4096:
        raise _wrong(column, "at most 4096 digits", len(data))


def _array_settings(
    column: str, encoding: str, settings: str
) -> tuple[str | None, tuple[int, ...] | None]:
    dtype, colon, axes = settings.partition(":")
    numbers = axes.split(",") if colon else []
    is_shape = all(axis.isascii() and axis.isdigit() and axis.strip("0") for axis in numbers)
    if (dtype and dtype not in _DTYPES) or not is_shape:
        raise InvalidArgument(
            "a column has an encoding that is not known", entry=column, found=repr(encoding)
        )
    return dtype or None, tuple(map(int, numbers)) if colon else None


def _put_array(
    name: str,
    dtype: str | None,
    shape: tuple[int, ...] | None,
    data: memoryview,
    entries: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    position = 0
    if dtype is None:
        dtype = _DTYPE_OF_CODE.get(data[0] if len(data) else -1)
        if dtype is None:
            raise _wrong(name, "the code of a dtype", bytes(data[:1]))
        position = 1
    if shape is None:
        if len(data) <= position:
            raise _wrong(name, "a shape", "nothing")
        axes, width = data[position] >> 2, 1 << (data[position] & 3)
        position += 1
        end = position + axes * width
        if len(data) < end:
            raise _wrong(name, f"{axes} axes", f"{len(data) - position} bytes")
        shape = tuple(np.frombuffer(data[position:end], f"<u{width}").tolist())
        position = end
    entries[name] = _array(name, data[position:], dtype, shape)


def _array(name: str, data: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - an array of any type
    kind = np.dtype(dtype).newbyteorder("<")
    size = kind.itemsize
    for axis in shape:
        size *= axis
    if size != len(data):
        raise _wrong(name, f"{size} bytes of a {dtype} array {shape}", f"{len(data)} bytes")
    return np.frombuffer(data, kind).reshape(shape)


def _put_pixels(
    name: str, data: memoryview, entries: dict[str, Any], fields: dict[str, Any]
) -> None:
    if len(data) < 12:
        raise _wrong(name, "12 bytes or more", len(data))
    width, height, mode_size = struct.unpack_from("<III", data)
    mode = bytes(data[12 : 12 + min(mode_size, 16)]).decode("ascii", "replace")
    found = _PIXELS.get(mode)
    if found is None:
        raise _wrong(name, f"an image of mode {', '.join(_PIXELS)}", repr(mode))
    dtype, channels = found
    entries[name] = _array(name, data[12 + mode_size :], dtype, (height, width, *channels))


def _put_list(
    column: str,
    skip: int,
    item_encoding: str,
    data: memoryview,
    entries: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    """Items become entries with a number: `views.0.jpg`, `views.1.jpg`."""
    start = skip + _U32.size
    if len(data) < start:
        raise _wrong(column, f"{start} bytes or more", len(data))
    (count,) = _U32.unpack_from(data, skip)
    position = start + _U32.size * count
    if len(data) < position:
        raise _wrong(column, f"{count} sizes", f"{len(data)} bytes")
    for number, size in enumerate(np.frombuffer(data[start:position], "<u4").tolist()):
        item = data[position : position + size]
        if len(item) != size:
            raise _wrong(column, f"item {number} of {size} bytes", f"{len(item)} bytes")
        converter(f"{column}.{number}", item_encoding)(item, entries, fields)
        position += size
    if position != len(data):
        raise _wrong(column, f"an end after {position} bytes", f"{len(data)} bytes")


def _wrong(name: str, expected: object, found: object) -> BadValue:
    return BadValue("a value is damaged", entry=name, expected=expected, found=found)
