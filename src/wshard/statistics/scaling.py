"""Bringing numbers to a common range, and back: subtract, then divide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._parallel import for_each, thread_count
from shard_format.errors import InvalidArgument
from wshard.dtypes import DType, as_numbers
from wshard.values import product

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MODES", "Scaling", "check_mode"]

MODES: Final = ("mean_std", "min_max", "quantile", "none")
"""How channels can be normalised."""
QUANTILES_SCALED_BY: Final = (0.01, 0.99)

# The distance between 1 and the next number.
_ROUNDING: Final = {
    DType.FLOAT64: 2.0**-52,
    DType.FLOAT32: 2.0**-23,
    DType.FLOAT16: 2.0**-10,
    DType.BFLOAT16: 2.0**-7,
}
# With an offset of no more deviations than this, float32 loses nothing that training would notice.
_SMALL_OFFSET: Final = 16.0
# Two passes over so many numbers find them in the cache the second time.
_NUMBERS_AT_A_TIME: Final = 1 << 16


def check_mode(mode: object) -> None:
    """Refuses what is no way of normalising."""
    if mode not in MODES:
        raise InvalidArgument(
            "unknown way of normalising",
            expected=" or ".join(map(repr, MODES)),
            found=repr(mode),
        )


class Scaling:
    """`(values - offset) / scale`, and back. Made by `ChannelStats.scaling`.

    A scale that is zero, or no larger than the rounding of the stored numbers, becomes 1: a number that never
    changes comes out as 0.

    Args:
        offset: float64, fits the shape of a step as NumPy broadcasts.
        scale: the same; not zero.
        dtype: of the channel.
        shape: of one step.
    """

    __slots__ = ("_offset", "_scale", "dtype", "offset", "scale", "shape")

    def __init__(
        self,
        offset: NDArray[np.float64],
        scale: NDArray[np.float64],
        dtype: DType,
        shape: tuple[int, ...],
    ) -> None:
        self.offset = offset
        self.scale = scale
        self.dtype = dtype
        self.shape = shape
        is_exact = self.out_dtype == np.float64 or bool(
            (np.abs(offset) > _SMALL_OFFSET * scale).any()
        )
        kind = np.float64 if is_exact else np.float32
        self._offset, self._scale = (_over_rows(each, shape, kind) for each in (offset, scale))

    @classmethod
    def of(
        cls,
        offset: NDArray[np.float64],
        scale: NDArray[np.float64],
        dtype: DType,
        shape: tuple[int, ...],
    ) -> Scaling:
        """With 1 for scales that are none; where nothing is known (NaN), numbers stay as they are."""
        known = np.isfinite(offset) & np.isfinite(scale)
        offset = np.where(known, offset, 0.0)
        is_spread = known & (scale > _ROUNDING.get(dtype, 0.0) * np.abs(offset))
        if dtype is not DType.FLOAT64:
            # What comes out is float32, where smaller numbers are none.
            is_spread &= scale >= np.finfo(np.float32).tiny
        return cls(offset, np.where(is_spread, scale, 1.0), dtype, shape)

    def of_spread(self, power: int) -> Scaling:
        """For what measures distances in this channel (power 1), or their squares (power 2)."""
        return Scaling.of(np.zeros_like(self.offset), self.scale**power, self.dtype, self.shape)

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """What comes out."""
        return np.dtype(np.float64 if self.dtype is DType.FLOAT64 else np.float32)

    def forward(
        self, values: NDArray[Any], out: NDArray[Any] | None = None, threads: int | None = 1
    ) -> NDArray[Any]:
        """Subtracts and divides.

        Args:
            values: `[..., *shape]`.
            out: takes the result; may be `values`. A new array if left out.
            threads: at most so many; None for one per processor.
        """
        steps = self._steps(values)
        if out is None:
            kind = np.float64 if values.dtype == np.float64 else np.float32
            out = np.empty(values.shape, kind)
        results = self._steps(out)
        # Bits of bf16 are no numbers yet.
        is_bits = self.dtype is DType.BFLOAT16 and values.dtype.kind == "u"

        def scale(start: int) -> None:
            part, result = steps[start : start + at_once], results[start : start + at_once]
            numbers = as_numbers(part, self.dtype) if is_bits else part
            if numbers.dtype.itemsize < result.dtype.itemsize:
                # Nothing is lost, and NumPy is faster when it need not convert and calculate at once.
                result[...] = numbers
                numbers = result
            np.subtract(numbers, self._offset, out=result, casting="same_kind")
            np.divide(result, self._scale, out=result, casting="same_kind")

        at_once = max(1, _NUMBERS_AT_A_TIME // max(1, product(self.shape)))
        for_each(range(0, len(steps), at_once), scale, thread_count(threads, results.nbytes))
        return out

    def back(self, values: NDArray[Any]) -> NDArray[Any]:
        """Multiplies and adds: `[..., *shape]` as it was, in float32 or float64."""
        steps = self._steps(values)
        kind = np.float64 if np.float64 in (values.dtype, self.out_dtype) else np.float32
        restored: NDArray[Any] = np.multiply(steps, self.scale) + self.offset
        return restored.astype(kind, copy=False).reshape(values.shape)

    def _steps(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values as `[steps, *shape]`, a view."""
        own = len(self.shape)
        if values.ndim < own or values.shape[values.ndim - own :] != self.shape:
            raise InvalidArgument(
                "these are no values of the channel",
                expected=f"[..., {', '.join(map(str, self.shape))}]",
                found=f"{values.dtype} {list(values.shape)}",
            )
        return values.reshape(product(values.shape[: values.ndim - own]), *self.shape)


def _over_rows(
    values: NDArray[np.float64], shape: tuple[int, ...], kind: type[np.floating[Any]]
) -> NDArray[Any]:
    """The same for each row of a picture: NumPy takes as long for three numbers as for hundreds."""
    values = values.astype(kind)
    if len(shape) < 2 or any(size != 1 for size in values.shape[:-1]):
        return values
    return np.ascontiguousarray(np.broadcast_to(values, (*(1 for _ in shape[:-2]), *shape[-2:])))
