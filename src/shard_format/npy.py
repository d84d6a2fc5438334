"""`.npy` and `.npz` files, in both directions. Reading never loads a pickle, and trusts no size that a file states."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, ShardError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

_MAGIC: Final = b"\x93NUMPY"
_LONGEST_HEADER: Final = 1 << 16
# NumPy 1 has no more.
_MOST_AXES: Final = 32
_DEEPEST_TYPE: Final = 32
# Bytes of the length of a header, and its encoding.
_VERSIONS: Final = {b"\1\0": (2, "latin-1"), b"\2\0": (4, "latin-1"), b"\3\0": (4, "utf-8")}
# A header is Python. It is not evaluated: these parts of the language become JSON, all others are refused.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|,(?=\s*[])}]))
    | (?P<sign>[][(){},:]|True|False)
    | (?P<number>[0-9]{1,19})L?  # Python 2 wrote the L
    | (?P<quote>['"])(?P<text>(?:
        (?!(?P=quote))[^\\\n]
        | \\(?: [\\'"nrt] | x[0-9a-f]{2} | u(?!d[89a-f])[0-9a-f]{4} | U00(?:0[0-9a-f]|10)[0-9a-f]{4} )
      )*)(?P=quote)
    | .""",
    re.VERBOSE | re.DOTALL,
)
_JSON_SIGNS: Final = {"(": "[", ")": "]", "True": "true", "False": "false"}
_TYPE: Final = re.compile(
    r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SUV][1-9][0-9]{0,8}"
    r"|[mM]8(?:\[[0-9]{0,9}[a-zA-Z]{1,2}\])?)"
)
_OBJECTS: Final = re.compile(r"[<>|=]?(?:O|T)[0-9]*")
_NPZ_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


# --- from arrays to bytes


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What comes before the data of an array in an `.npy` file."""
    return _header_of(dtype, shape, False)


def encode_npy(value: object) -> bytes:
    """An array as the content of a file."""
    array = np.asarray(value)
    if array.dtype.hasobject or not array.dtype.itemsize or array.ndim > _MOST_AXES:
        raise InvalidArgument(
            "this value cannot be stored under this name",
            expected=f"an array of numbers with at most {_MOST_AXES} axes; objects would need pickle",
            found=f"{type(value).__name__}, {array.dtype} with {array.ndim} axes",
        )
    in_fortran_order = array.flags.f_contiguous and not array.flags.c_contiguous
    header = _header_of(array.dtype, array.shape, in_fortran_order)
    return header + array.tobytes("F" if in_fortran_order else "C")


@lru_cache(maxsize=256)
def _header_of(dtype: np.dtype[Any], shape: tuple[int, ...], in_fortran_order: bool) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream,
        {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": in_fortran_order,
            "shape": shape,
        },
    )
    return stream.getvalue()


def encode_npz(arrays: Mapping[str, object]) -> bytes:
    """Arrays by name as the content of a file."""
    # np.savez may store the time of day.
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, array in arrays.items():
            member = zipfile.ZipInfo(f"{key}.npy")
            archive.writestr(member, encode_npy(array))
    return stream.getvalue()


# --- from bytes to arrays


class NpyHeader(NamedTuple):
    """What an `.npy` file says about its array."""

    shape: tuple[int, ...]
    in_fortran_order: bool
    dtype: np.dtype[Any]
    start: int
    """Where the data starts in the file."""


def read_npy_header(read: Callable[[int], bytes], size: int) -> NpyHeader:
    """Reads what is before the data of an `.npy` file.

    Args:
        read: gives the next bytes of the file, from its start on.
        size: bytes of the whole file, which must be those of the header and of the array.
    """
    head = bytes(read(8))
    width, _ = _VERSIONS.get(head[6:8], (4, ""))
    head += read(width)
    start = 8 + width + int.from_bytes(head[8:], "little")
    if head[:6] != _MAGIC or not 10 <= start <= min(size, _LONGEST_HEADER):
        raise BadValue("not an .npy file", found=head[:8].hex(" "))
    shape, in_fortran_order, dtype = _parse_header(head + read(start - len(head)))
    nbytes = dtype.itemsize
    for length in shape:
        nbytes *= length
    if nbytes != size - start:
        raise BadValue(
            "an .npy file does not have the size of its array",
            expected=f"{nbytes} bytes after the header",
            found=f"{size - start} bytes",
        )
    return NpyHeader(shape, in_fortran_order, dtype, start)


def decode_npy(data: memoryview) -> NDArray[Any]:
    """The array of a file, as a view of it."""
    header = read_npy_header(io.BytesIO(data[:_LONGEST_HEADER]).read, len(data))
    order: Literal["F", "C"] = "F" if header.in_fortran_order else "C"
    return np.ndarray(header.shape, header.dtype, data[header.start :], order=order)


@lru_cache(maxsize=256)
def _parse_header(stored: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type of an array, from what is before its data.

    Raises:
        BadValue: the header is not as NumPy writes it, or states what no array can be.
    """
    if stored[6:8] not in _VERSIONS:
        raise BadValue("unknown version of .npy", expected="1, 2 or 3", found=stored[6])
    width, encoding = _VERSIONS[stored[6:8]]
    try:
        text = _TOKEN.sub(_as_json, stored[8 + width :].decode(encoding))
        fields = json.loads(text, object_pairs_hook=_fields)
        shape = _shape(fields["shape"])
        dtype = np.lib.format.descr_to_dtype(_type(fields["descr"], _DEEPEST_TYPE))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        if isinstance(error, ShardError):
            raise
        raise BadValue(f"the header of an .npy file is damaged: {error}") from None
    size = dtype.itemsize
    for length in shape:
        size *= length or 1  # NumPy leaves out the lengths that are 0
    if not 0 < size <= sys.maxsize:
        raise BadValue(
            "an .npy file states an array that cannot exist",
            expected=f"items of 1 byte or more, at most {sys.maxsize} bytes of them",
            found=f"items of {dtype.itemsize} bytes in an array of shape {shape}",
        )
    return shape, fields["fortran_order"], dtype


def _as_json(token: re.Match[str]) -> str:
    if token.lastgroup == "text":
        # No other escapes are left than those that are the same in all strings of Python.
        raw = token["text"].encode("latin-1", "backslashreplace")
        return json.dumps(raw.decode("unicode_escape"))
    if token.lastgroup is None:
        raise ValueError(f"unexpected {token[0]!r}")
    found: str = token[token.lastgroup]
    return " " if token.lastgroup == "space" else _JSON_SIGNS.get(found, found)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(pairs) != 3 or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("expected the fields descr, fortran_order and shape")
    if not isinstance(fields["fortran_order"], bool):
        raise TypeError("fortran_order is not a boolean")
    return fields


def _shape(lengths: object) -> tuple[int, ...]:
    if not isinstance(lengths, list) or len(lengths) > _MOST_AXES:
        raise ValueError(f"a shape is not a tuple of at most {_MOST_AXES} lengths")
    if any(type(length) is not int for length in lengths):
        raise ValueError("a length is not a whole number")
    return tuple(lengths)


def _type(descr: object, depth: int) -> Any:  # noqa: ANN401 - text, or a list of fields
    """A type as NumPy takes it, every part of which is known."""
    if isinstance(descr, str):
        if _OBJECTS.fullmatch(descr):
            raise BadValue(
                "an array of Python objects is a pickle, which this library never loads",
                found=f"dtype {descr}",
                hint="save it as numbers or text: np.array(list(value), dtype), or leave it out",
            )
        if not _TYPE.fullmatch(descr):
            raise ValueError(f"unknown type {descr!r}")
        return descr
    if not isinstance(descr, list) or not depth:
        raise ValueError("a type is neither text nor a list of fields")
    fields: list[Any] = []
    for field in descr:
        if not isinstance(field, list) or len(field) not in (2, 3):
            raise ValueError("a field of a type is not a tuple of name, type and shape")
        name = tuple(field[0]) if isinstance(field[0], list) else field[0]
        fields.append((name, _type(field[1], depth - 1), *map(_shape, field[2:])))
    return fields


def decode_npz(data: memoryview, most: int) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name.

    Args:
        data: the file.
        most: the most bytes of all arrays together.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _arrays(archive, most)
    except (ShardError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - what zipfile raises for damaged files differs by version
        raise BadValue(f"the .npz file is damaged: {str(error) or type(error).__name__}") from None


def _arrays(archive: zipfile.ZipFile, most: int) -> dict[str, NDArray[Any]]:
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    if total > most:
        raise LimitExceeded(
            "an .npz file is too large to unpack",
            expected=f"at most {most} bytes",
            found=f"{total} bytes",
            hint="pass limits=Limits(max_decompressed_bytes=…) if you trust the file",
        )
    arrays: dict[str, NDArray[Any]] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if member.compress_type not in _NPZ_METHODS:
            raise BadValue("an .npz file is compressed in a way that NumPy does not use")
        if name in arrays:
            raise BadValue(f"an .npz file has two arrays called {shorten(name)}")
        with archive.open(member) as file:
            # Without a number, `read` decompresses everything before it cuts off what the archive did not state.
            arrays[name] = decode_npy(memoryview(file.read(member.file_size)))
    return arrays
