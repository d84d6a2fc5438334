"""Which numbers of a step share a statistic: each has its own, but those of a picture share one per colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wshard.dtypes import DType
from wshard.values import product

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["bins_of", "group_rows", "group_shape", "is_picture"]

_PICTURE: Final = (DType.UINT8, DType.UINT16)
_MOST_COLOURS: Final = 4
# Steps of more numbers than this are fields, clouds or waves, where one number says nothing by itself.
_MOST_SINGLE: Final = 1024
_BINS: Final = {
    DType.BOOL: 1 << 8,
    DType.UINT8: 1 << 8,
    DType.INT8: 1 << 8,
    DType.UINT16: 1 << 16,
    DType.INT16: 1 << 16,
}
_MOST_BINS: Final = 1 << 20


def is_picture(dtype: DType, shape: tuple[int, ...]) -> bool:
    """Whether a step is a picture, or several: height, width and up to four colours, or colours first."""
    return dtype in _PICTURE and len(shape) >= 3 and min(shape[-1], shape[-3]) <= _MOST_COLOURS


def group_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a channel's statistics, which fits the shape of a step as NumPy broadcasts.

    Args:
        dtype: of the channel.
        shape: of one step.
    """
    if is_picture(dtype, shape):
        if shape[-1] <= _MOST_COLOURS:
            return (*(1 for _ in shape[:-1]), shape[-1])
        return (*(1 for _ in shape[:-3]), shape[-3], 1, 1)
    if product(shape) <= _MOST_SINGLE:
        return shape
    last = shape[-1] if len(shape) > 1 and shape[-1] <= _MOST_COLOURS else 1
    return (*(1 for _ in shape[:-1]), last)


def group_rows(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Steps as a table: a column for each group, a row for each of its numbers.

    Args:
        values: `[steps, ...]`.
        shape: of the groups.
    """
    kept = [axis for axis, size in enumerate(shape, start=1) if size != 1]
    others = [axis for axis in range(values.ndim) if axis not in kept]
    return values.transpose(*others, *kept).reshape(-1, product(shape))


def bins_of(dtype: DType, groups: int) -> int | None:
    """How many values are counted one by one; None where there may be too many different ones."""
    bins = _BINS.get(dtype)
    return None if bins is None or bins * groups > _MOST_BINS else bins
