"""What users hand over, turned into arrays and times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, LimitExceeded
from wshard.dtypes import DType, convert

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

# A year at 1 kHz has more; nobody has that in one file.
_MOST_MADE_UP = 1 << 28


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
            f"this makes no array: {error}",
            hint="steps of different lengths make a RaggedChannel",
        ) from None


def as_times(times: ArrayLike, name: str) -> NDArray[np.int64]:
    """Timestamps as int64 nanoseconds; never through floats, which cannot hold them."""
    array = as_array(times)
    if array.dtype.kind == "M":
        array = array.astype("datetime64[ns]").view(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidArgument(
            "timestamps are not whole nanoseconds",
            entry=name or None,
            expected="a one-dimensional array of integers, or datetime64",
            found=f"{array.dtype} {list(array.shape)}",
            hint="floating-point seconds cannot hold nanoseconds: use np.round(seconds * 1e9).astype(np.int64)",
        )
    try:
        stored: NDArray[np.int64] = convert(array, DType.INT64)[0]
    except InvalidArgument as error:
        raise error.located(entry=name or None) from None
    return stored


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
    if count and abs(float(offsets[-1]) + start_ns) >= 2.0**63:
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


def product(shape: Sequence[int]) -> int:
    """The numbers in one step, in whole numbers of any size."""
    return math.prod(shape)


def step_ranges(length: int, step_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of steps that are read together, with a bounded size."""
    steps = max(1, most_bytes // max(step_bytes, 1))
    for start in range(0, length, steps):
        yield start, min(start + steps, length)
