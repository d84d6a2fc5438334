"""From what a caller writes to the bytes of an entry, by the ending of its name."""

from __future__ import annotations

import io
import json
import mmap
import zipfile
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._input import as_bytes
from shard_format.errors import InvalidArgument
from shardpack import _msgpack

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["to_bytes"]

_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_bytes(name: str, content_type: str, value: Any) -> bytes | memoryview:  # noqa: ANN401 - any value
    """Bytes as they are; other values as the content type says.

    Raises:
        InvalidArgument: there is no way to store this value under this name.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview, mmap.mmap)):
        return as_bytes(name, value)
    encoder = _ENCODERS.get(content_type)
    if encoder is None:
        encoder = _encode_text if content_type.startswith("text/") else _encode_raw
    try:
        return encoder(name, value)
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise error.located(entry=name) from None
        raise InvalidArgument(
            f"cannot store this value as {content_type}: {error}",
            entry=name,
            found=type(value).__name__,
        ) from None


def _encode_json(name: str, value: object) -> bytes:
    return _JSON.encode(value).encode("utf-8")


def _encode_text(name: str, value: object) -> bytes:
    # Class labels are written as numbers, and read as text.
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return b"%d" % value
    if isinstance(value, str):
        return value.encode("utf-8")
    return _refuse(name, value, "str or int")


def _encode_msgpack(name: str, value: object) -> bytes:
    return _msgpack.pack(value)


def _encode_npy(name: str, value: object) -> bytes:
    array = np.asarray(value)
    if array.dtype.hasobject:
        return _refuse(name, value, "an array of numbers; objects would need pickle")
    in_fortran_order = array.flags.f_contiguous and not array.flags.c_contiguous
    header = _npy_header(array.dtype, array.shape, in_fortran_order)
    return header + array.tobytes("F" if in_fortran_order else "C")


@lru_cache(maxsize=256)
def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], in_fortran_order: bool) -> bytes:
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


def _encode_npz(name: str, value: object) -> bytes:
    if not isinstance(value, dict):
        return _refuse(name, value, "a dictionary of arrays")
    # Not with np.savez, which need not leave out the time of day.
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, array in value.items():
            member = zipfile.ZipInfo(f"{key}.npy")
            archive.writestr(member, _encode_npy(name, array))
    return stream.getvalue()


def _encode_raw(name: str, value: object) -> bytes:
    # An array would lose its dtype and shape.
    return _refuse(
        name, value, "bytes; or a name with an ending such as .json, .txt, .npy or .msgpack"
    )


def _refuse(name: str, value: object, expected: str) -> bytes:
    raise InvalidArgument(
        "there is no way to store this value under this name",
        entry=name,
        expected=expected,
        found=type(value).__name__,
    )


_ENCODERS: Final[dict[str, Callable[[str, object], bytes]]] = {
    "application/json": _encode_json,
    "application/vnd.msgpack": _encode_msgpack,
    "application/x-npy": _encode_npy,
    "application/x-npz": _encode_npz,
}
