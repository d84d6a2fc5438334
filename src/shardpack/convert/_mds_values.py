"""Values of MDS samples: what each encoding is in a record."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from shard_format.errors import BadValue, InvalidArgument
from shardpack.convert._mds_layout import DTYPES, FILES
from shardpack.convert._names import bytes_name, entry_name
from shardpack.decoding import decode_json, decode_text

_DTYPE_OF_CODE: Final = {code: name for name, code in DTYPES.items()}
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


def converter(
    column: str,
    encoding: str,
    *,
    entry: str | None = None,
    field: str | None = None,
    is_optional: bool = False,
) -> Put:
    """How values of a column become part of a record.

    Args:
        column: its name.
        encoding: as the index has it.
        entry: the name of the entry that it becomes, if that is known.
        field: the name of the field that it becomes, if it was one.
        is_optional: whether null stands for a field that is not there.

    Raises:
        InvalidArgument: the encoding is not one of MDS.
    """
    kind, _, settings = encoding.partition(":")
    if field is not None and kind in _FIELDS:
        return partial(_put_field, field, _FIELDS[kind], is_optional)
    if kind in FILES:
        return partial(_put_file, entry or entry_name(column, FILES[kind]))
    if kind == "bytes":
        return partial(_put_file, entry or bytes_name(column))
    if kind == "int" or kind in DTYPES:
        number = np.dtype("int64" if kind == "int" else kind)
        return partial(_put_scalar, field or column, number)
    if kind in _TEXTS:
        return partial(_put_text, field or column, _TEXTS[kind])
    if kind == "ndarray":
        dtype, shape = array_settings(column, encoding, settings)
        return partial(_put_array, entry or entry_name(column, "npy"), dtype, shape)
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


# What the values of fields are that are no numbers.
_FIELDS: Final[dict[str, Callable[[memoryview], Any]]] = {
    "bytes": bytes,
    "str": decode_text,
    "json": lambda data: decode_json(data, len(data)),
}
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


def _put_field(
    field: str,
    decode: Callable[[memoryview], Any],
    is_optional: bool,
    data: memoryview,
    entries: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    try:
        value = decode(data)
    except BadValue as error:
        raise error.located(entry=field) from None
    if value is not None or not is_optional:
        fields[field] = value


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


def array_settings(
    column: str, encoding: str, settings: str
) -> tuple[str | None, tuple[int, ...] | None]:
    """Type and shape of `ndarray:float32:4`, each None where it is stored with every array."""
    dtype, colon, axes = settings.partition(":")
    numbers = axes.split(",") if colon else []
    is_shape = all(axis.isascii() and axis.isdigit() and axis.strip("0") for axis in numbers)
    if (dtype and dtype not in DTYPES) or not is_shape:
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
