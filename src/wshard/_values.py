"""The values of a channel: the thirteen data types (spec/registry.md, Data types), and what users hand over as arrays and times."""

from __future__ import annotations

import functools
import importlib
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

# A year at 1 kHz has more; such a recording is never one file.
_MOST_MADE_UP = 1 << 28


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

    # Facts about each member are attributes: these are found faster than enum members hash.
    size: int
    """Bytes of one number."""
    is_float: bool
    """Whether it has fractions."""

    def __init__(self, name: str) -> None:
        self.size = {"bf16": 2, "bool": 1}.get(name) or int(name[1:]) // 8
        self.is_float = name[0] == "f" or name == "bf16"

    def __str__(self) -> str:
        return str.__str__(self)

    @functools.cached_property
    def stored_dtype(self) -> np.dtype[Any]:
        """What a file's bytes are read as: `numpy_dtype`, but uint8 for booleans, which may be any byte."""
        if self is DType.BFLOAT16:
            return bfloat16() or np.dtype("<u2")
        return np.dtype("u1" if self is DType.BOOL else f"<{self[0]}{self.size}")

    @functools.cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The little-endian NumPy dtype; for bf16 that of `ml_dtypes`, or uint16 bits without it."""
        return _BOOL if self is DType.BOOL else self.stored_dtype

    def as_numbers(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of this type in a dtype that NumPy computes with: bf16 becomes f32, bool becomes u8."""
        if self is DType.BOOL:
            return values.view(np.uint8)
        if self is not DType.BFLOAT16:
            return values
        if values.dtype.kind == "u":  # without ml_dtypes these are the bits
            return (values.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(all="ignore"):
            return values.astype(np.float32)

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any] | type) -> DType:
        """The type for a NumPy dtype of either byte order.

        Raises:
            InvalidArgument: no data type fits, as for complex numbers, dates, text and objects.
        """
        wanted = np.dtype(dtype)
        found = _BY_KIND.get((wanted.kind, wanted.itemsize))
        if found is not None and wanted.fields is None:
            return found
        if wanted == bfloat16():
            return cls.BFLOAT16
        raise InvalidArgument("an episode cannot store this dtype", expected=_ALL, found=wanted)

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


_BOOL: Final = np.dtype(np.bool_)
_BY_KIND: Final = {
    (dtype.numpy_dtype.kind, dtype.size): dtype for dtype in DType if dtype is not DType.BFLOAT16
}
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


def convert(array: NDArray[Any], dtype: DType | None) -> tuple[NDArray[Any], DType]:
    """The array as little-endian numbers of `dtype`, or of its own type, without a copy where possible.

    Floats may be rounded when a smaller float is asked for. Whatever else would change a value is refused.
    """
    if array.dtype.hasobject:
        raise InvalidArgument(
            "an array of Python objects cannot be stored",
            expected=_ALL,
            found=f"dtype {array.dtype}",
            hint="use numbers of one type; lists of strings make a text channel",
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
            "converting to bf16 needs the package 'ml_dtypes'",
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


# --- what users hand over


class Strict:
    """A class whose objects have the attributes that it defines and no others; errors suggest what was meant."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker knows the attributes

        def __setattr__(self, name: str, value: object) -> None:
            if not hasattr(type(self), name):
                raise _unknown_attribute(self, name)
            object.__setattr__(self, name, value)

        def __getattr__(self, name: str) -> object:
            raise _unknown_attribute(self, name)


def _unknown_attribute(thing: object, name: str) -> AttributeError:
    kind = type(thing)
    meant = did_you_mean(name, [each for each in dir(kind) if not each.startswith("_")])
    return AttributeError(
        f"{kind.__name__} has no attribute {name!r}{f'; {meant}' if meant else ''}"
    )


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or a view of it, that cannot be written to."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def as_array(data: Any) -> NDArray[Any]:  # noqa: ANN401 - anything array-like
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return np.frombuffer(data, np.uint8)
    if hasattr(data, "detach") and hasattr(data, "cpu"):  # a torch tensor, wherever it lives
        data = data.detach().cpu()
    try:
        return np.asarray(data)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(
            f"cannot make an array of this: {error}",
            hint="steps of different lengths make a RaggedChannel",
        ) from None


def as_times(times: ArrayLike, name: str) -> NDArray[np.int64]:
    """Timestamps as int64 nanoseconds; never through floats, which cannot hold them."""
    array = as_array(times)
    if array.dtype.kind == "M":
        array = array.astype("datetime64[ns]").view(np.int64)
    elif array.shape == (0,):
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidArgument(
            f"{name or 'timestamps'} must be integers, whole nanoseconds, along one axis",
            entry=name or None,
            expected="a one-dimensional array of integers, or datetime64",
            found=f"{array.dtype} {list(array.shape)}",
            hint="floating-point seconds cannot hold nanoseconds: use np.round(seconds * 1e9).astype(np.int64)",
        )
    try:
        return convert(array, DType.INT64)[0]
    except InvalidArgument as error:
        raise error.located(entry=name or None) from None


def regular_times(
    count: int, rate_hz: float, start_ns: int = 0, first: int = 0
) -> NDArray[np.int64]:
    """Times of `count` entries at a fixed rate, from entry `first` on: start + round(i · 10⁹ / rate)."""
    check_count(count)
    steps = np.arange(first, first + count, dtype=np.int64)
    if rate_hz <= 0:
        return np.full(count, start_ns, np.int64)
    with np.errstate(over="ignore"):
        offsets = np.rint(steps * 1e9 / rate_hz)
    if count and max(float(offsets[-1]), abs(float(offsets[-1]) + start_ns)) >= 2.0**63:
        raise BadValue(
            "the times of a regular clock do not fit into 64 bits",
            expected="nanoseconds below 2**63",
            found=f"entry {first + count - 1} at {rate_hz} Hz from {start_ns} ns",
        )
    times: NDArray[np.int64] = offsets.astype(np.int64) + start_ns
    return times


def check_count(count: int) -> None:
    """Refuses to make up more times than any recording has, whatever length a file claims."""
    if count > _MOST_MADE_UP:
        raise LimitExceeded(
            "the episode is too long to make up the times of its steps",
            expected=f"at most {_MOST_MADE_UP} steps",
            found=f"{count}",
            rule="W-EPI-2",
        )


def step_ranges(length: int, step_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of steps that are read together, with a bounded size."""
    # Steps without bytes, of which a file may claim any number, are one range.
    steps = max(1, most_bytes // step_bytes if step_bytes else length)
    for start in range(0, length, steps):
        yield start, min(start + steps, length)
