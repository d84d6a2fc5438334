"""What users hand over, turned into arrays and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.dtypes import DType, convert

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


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
    stored: NDArray[np.int64] = convert(array, DType.INT64)[0]
    return stored


def regular_times(
    count: int, rate_hz: float, start_ns: int = 0, first: int = 0
) -> NDArray[np.int64]:
    """Times of `count` entries at a fixed rate, from entry `first` on: start + round(i · 10⁹ / rate)."""
    steps = np.arange(first, first + count, dtype=np.int64)
    if rate_hz <= 0:
        return np.full(count, start_ns, np.int64)
    times: NDArray[np.int64] = np.rint(steps * 1e9 / rate_hz).astype(np.int64) + start_ns
    return times


def product(shape: Sequence[int]) -> int:
    """The numbers in one step, in whole numbers of any size."""
    total = 1
    for size in shape:
        total *= size
    return total
