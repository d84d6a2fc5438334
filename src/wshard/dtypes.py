"""The thirteen data types of a channel, and what NumPy calls them (spec/registry.md, Data types)."""

from __future__ import annotations

import functools
import importlib
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DType"]


class DType(str, Enum):
    """The type of one number in a channel. Equal to its short name: `DType.FLOAT32 == "f32"`."""

    FLOAT64 = "f64"
    FLOAT32 = "f32"
    FLOAT16 = "f16"
    BFLOAT16 = "bf16"
    INT64 = "i64"
    INT32 = "i32"
    INT16 = "i16"
    INT8 = "i8"
    UINT64 = "u64"
    UINT32 = "u32"
    UINT16 = "u16"
    UINT8 = "u8"
    BOOL = "bool"

    # Facts about each member, set below: attributes are found faster than enum members hash.
    size: int
    """Bytes of one number."""
    _stored: np.dtype[Any] | None

    def __str__(self) -> str:
        return str.__str__(self)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """What a file's bytes are read as: `numpy_dtype`, but uint8 for booleans, which may be any byte."""
        return self._stored or bfloat16() or np.dtype("<u2")

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The little-endian NumPy dtype; for bf16 that of `ml_dtypes`, or uint16 bits without it."""
        return _BOOL if self is DType.BOOL else self.stored_dtype

    @property
    def is_float(self) -> bool:
        """Whether it has fractions."""
        return self in _FLOATS

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any] | type) -> DType:
        """The type for a NumPy dtype of either byte order.

        Raises:
            InvalidArgument: there is none, as for complex numbers, dates, text and objects.
        """
        wanted = np.dtype(dtype)
        found = _BY_KIND.get((wanted.kind, wanted.itemsize))
        if found is not None and wanted.fields is None:
            return found
        if wanted == bfloat16():
            return cls.BFLOAT16
        raise InvalidArgument("this dtype has no place in an episode", expected=_ALL, found=wanted)

    @classmethod
    def parse(cls, name: str | DType | np.dtype[Any] | type) -> DType:
        """From a short name (`"f32"`), a long one (`"float32"`), or a NumPy dtype."""
        if isinstance(name, DType):
            return name
        if isinstance(name, str):
            found = BY_NAME.get(name) or BY_NAME.get(name.lower())
            if found is None:
                raise InvalidArgument("unknown dtype", expected=_ALL, found=repr(name))
            return found
        try:
            return cls.from_numpy(name)
        except TypeError:
            raise InvalidArgument("unknown dtype", expected=_ALL, found=repr(name)) from None


_SIZES: Final = {
    dtype: 2 if dtype is DType.BFLOAT16 else 1 if dtype is DType.BOOL else int(dtype.value[1:]) // 8
    for dtype in DType
}
_NUMPY: Final = {
    dtype: np.dtype(f"<{dtype.value[0]}{_SIZES[dtype]}")
    for dtype in DType
    if dtype not in (DType.BFLOAT16, DType.BOOL)
} | {DType.BOOL: np.dtype(np.bool_)}
_BOOL: Final = np.dtype(np.bool_)
_BY_KIND: Final = {(dtype.kind, dtype.itemsize): name for name, dtype in _NUMPY.items()}
_FLOATS: Final = frozenset({DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_LONG: Final = {"f": "float", "i": "int", "u": "uint", "b": "bfloat"}
_ALL: Final = " ".join(dtype.value for dtype in DType)

BY_NAME: Final[dict[str, DType]] = {dtype.value: dtype for dtype in DType} | {
    _LONG[dtype.value[0]] + dtype.value.lstrip("fiub"): dtype
    for dtype in DType
    if dtype is not DType.BOOL
}
"""Every name that files use, in lower case."""


@functools.cache
def bfloat16() -> np.dtype[Any] | None:
    """The dtype of `ml_dtypes`, None where it is not installed."""
    try:
        found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        return None
    return found


for _member in DType:
    _member.size = _SIZES[_member]
    # None for bf16: whether ml_dtypes is there is asked when it is needed.
    _member._stored = np.dtype(np.uint8) if _member is DType.BOOL else _NUMPY.get(_member)
del _member


def convert(array: NDArray[Any], dtype: DType | None) -> tuple[NDArray[Any], DType]:
    """The array as little-endian numbers of `dtype`, or of its own type, without a copy where possible.

    Floats may be rounded when a smaller float is asked for. Whatever else would change a value is refused.
    """
    if array.dtype.hasobject:
        raise InvalidArgument(
            "an array of Python objects cannot be stored",
            expected=_ALL,
            found=f"dtype {array.dtype}",
            hint="give numbers of one type; lists of strings make a text channel",
        )
    own = DType.from_numpy(array.dtype)
    target = dtype or own
    wanted = target.numpy_dtype
    if own is target:
        # Also turns big-endian into little-endian.
        return array.astype(wanted, copy=False), target
    if target is DType.BFLOAT16 and own is DType.UINT16:
        return array.astype("<u2", copy=False).view(wanted), target  # the bits themselves
    if target is DType.BFLOAT16 and bfloat16() is None:
        raise InvalidArgument(
            "making bf16 numbers needs the package 'ml_dtypes'",
            found=f"dtype {array.dtype}",
            hint="install it with: pip install 'shard-format[bf16]', or give their bits as uint16",
        )
    if target.is_float and own.is_float:
        return array.astype(wanted), target
    with np.errstate(all="ignore"):
        changed = array.astype(wanted)
        back = changed.astype(array.dtype)
    # Between signed and unsigned a value may wrap there and back: 200 and -56 are one byte.
    if not np.array_equal(back, array) or ((changed < 0) != (array < 0)).any():
        raise InvalidArgument(
            f"values do not fit into {target.value}",
            expected=f"numbers that {target.value} can hold",
            found=f"dtype {array.dtype}, from {array.min()} to {array.max()}",
        )
    return changed, target


def as_numbers(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The values in a dtype that NumPy computes with: bf16 becomes f32, bool becomes u8."""
    if dtype is DType.BOOL:
        return values.view(np.uint8)
    if dtype is not DType.BFLOAT16:
        return values
    if values.dtype.kind == "u":  # without ml_dtypes these are the bits
        return (values.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        return values.astype(np.float32)
