"""Residuals: how a signal bends, or how far a prediction was off, in few bits (spec/wshard.md, section 9).

Time is the first axis of every array; the others are the *dimensions* of one step. Arrays of bool,
integers and floats of either byte order are taken, bfloat16 too when it comes as the type of `ml_dtypes`
(its bits as uint16 would count as integers). Arithmetic is in 64-bit floats, so integers beyond ±2⁵³ are
rounded before anything is computed. Arrays that are returned are new, and in the machine's byte order.

Arrays are worked through in tiles: beside the result, temporary memory stays at some MiB whatever their
size, unless several dimensions are not contiguous or one window of one dimension is larger.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    Packed = bytes | bytearray | memoryview | NDArray[np.uint8]

__all__ = [
    "compute_error_residual",
    "compute_sign2nd_diff",
    "compute_sign2nd_diff_multidim",
    "dequantize_delta",
    "pack_bool_mask",
    "pack_multidim_residual_bits",
    "pack_residual_bits",
    "quantize_delta",
    "reconstruct_from_omen_and_delta",
    "unpack_bool_mask",
    "unpack_multidim_residual_bits",
    "unpack_residual_bits",
]

DEFAULT_WINDOW: Final = 256

_EDGE_RULES = ("pad", "overlap")
_LARGEST_CODE = 127
_LARGEST_DIFFERENCE = _LARGEST_CODE * float(np.finfo(np.float32).max)
# 2 MiB as 64-bit floats: a tile and what is computed from it stay in the cache.
_TILE_VALUES = 1 << 18
# Wide enough to read whole cache lines, narrow enough to turn rows into columns.
_TILE_COLUMNS = 512


def compute_sign2nd_diff(signal: ArrayLike, edge_rule: str = "pad") -> NDArray[np.int8]:
    """The sign of 2·x[t] − x[t−1] − x[t+1]: +1 at a peak, −1 in a dip, 0 on a straight line.

    The terms are subtracted from left to right. A step whose second difference is NaN, because a value
    is NaN or infinities cancel, gets 0. Fewer than three steps give zeros only.

    Args:
        signal: Values [T], or [T, ...] with every dimension on its own.
        edge_rule: What the first and the last step get, which have one neighbour only: 0 for `"pad"`;
            the value of that neighbour for `"overlap"`.
    """
    return _signs(_numbers(signal, "signal"), None, edge_rule)


def compute_sign2nd_diff_multidim(signal: ArrayLike, edge_rule: str = "pad") -> NDArray[np.int8]:
    """The same as `compute_sign2nd_diff`, which takes any number of dimensions."""
    return compute_sign2nd_diff(signal, edge_rule)


def compute_error_residual(
    signal: ArrayLike, omen: ArrayLike, edge_rule: str = "pad"
) -> NDArray[np.int8]:
    """`compute_sign2nd_diff` of signal − omen, two arrays of one shape."""
    observed = _numbers(signal, "signal")
    return _signs(observed, _prediction(omen, observed), edge_rule)


def pack_residual_bits(residual: ArrayLike) -> bytes:
    """One bit a step, 1 where the residual [T] is above 0, least significant bit first, ⌈T/8⌉ bytes.

    −1 and 0 become the same bit.
    """
    signs = _numbers(residual, "residual")
    if signs.ndim != 1:
        raise InvalidArgument(
            "the residual has more than one axis",
            expected="shape (T,)",
            found=f"shape {signs.shape}",
            hint="pack_multidim_residual_bits takes dimensions",
        )
    return pack_multidim_residual_bits(signs)


def unpack_residual_bits(packed: Packed, T: int, edge_rule: str | None = None) -> NDArray[np.int8]:
    """The residual [T] of packed bits: +1 and −1.

    Args:
        packed: ⌈T/8⌉ bytes; unused bits of the last one are ignored.
        T: Number of steps.
        edge_rule: With `"pad"` the first and the last step are 0, as they were before packing. With
            `"overlap"` or None they are what their bits say.
    """
    return unpack_multidim_residual_bits(packed, T, (), edge_rule)


def pack_multidim_residual_bits(residual: ArrayLike) -> bytes:
    """A residual [T, ...] packed as by `pack_residual_bits`, one dimension after the other in C order."""
    signs = _numbers(residual, "residual")
    if not signs.size:
        return b""
    values = _flat(signs)
    packed = np.empty((values.shape[1], _byte_count(len(values))), np.uint8)
    for rows, columns in _tiles(values.shape, 8):
        # Dimensions as rows first: packing along the first axis is much slower than the copy.
        positive = np.ascontiguousarray((values[rows, columns] > 0).T)
        places = slice(rows.start // 8, _byte_count(rows.stop))
        packed[columns, places] = np.packbits(positive, axis=1, bitorder="little")
    return packed.tobytes()


def unpack_multidim_residual_bits(
    packed: Packed, T: int, D_or_shape: int | Sequence[int], edge_rule: str | None = None
) -> NDArray[np.int8]:
    """The residual [T, D] or [T, *shape] of packed bits: +1 and −1, edges as in `unpack_residual_bits`.

    Args:
        packed: ⌈T/8⌉ bytes a dimension.
        T: Number of steps.
        D_or_shape: Number of dimensions, or the shape of one step.
        edge_rule: See `unpack_residual_bits`.
    """
    if edge_rule is not None:
        _check_edge_rule(edge_rule)
    steps = _natural(T, "T")
    shape = _shape(D_or_shape, "D_or_shape")
    dimensions = math.prod(shape)
    row_bytes = _byte_count(steps)
    stored = _bytes(packed, dimensions * row_bytes, f"{dimensions} x {steps} bits")
    signs = np.empty((steps, dimensions), np.int8)
    table = stored.reshape(dimensions, row_bytes)
    for rows, columns in _tiles(signs.shape, 8):
        part = table[columns, rows.start // 8 : _byte_count(rows.stop)]
        bits = np.unpackbits(part, axis=1, count=rows.stop - rows.start, bitorder="little")
        signs[rows, columns] = bits.T
    signs *= 2
    signs -= 1
    if edge_rule == "pad" and steps:
        signs[0] = 0
        signs[-1] = 0
    return signs.reshape(steps, *shape)


def quantize_delta(
    signal: ArrayLike, omen: ArrayLike | None, window_size: int = DEFAULT_WINDOW
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """d = signal − omen as 8-bit numbers q, and the scale of each window of steps and each dimension.

    A scale is max|d| / 127, rounded up to the next 32-bit float so that no q leaves ±127, and 1 where
    all d are 0. q is d / scale rounded to the nearest, halves to even. |d − q·scale| ≤ scale / 2 holds
    exactly, for the d of 64-bit floats.

    Args:
        signal: Values [T, ...].
        omen: The prediction, of the same shape; None for the signal itself.
        window_size: Steps that share their scales; the last window may have fewer.

    Returns:
        q in the shape of the signal, and scales [⌈T/window_size⌉, ...].

    Raises:
        InvalidArgument: shapes differ; a difference is NaN or infinite; or one is above 4.3e40, which
            no 32-bit scale can express.
    """
    observed = _numbers(signal, "signal")
    predicted = None if omen is None else _prediction(omen, observed)
    steps = len(observed)
    window = min(_natural(window_size, "window_size", smallest=1), max(steps, 1))
    values = _flat(observed)
    guesses = _flat(predicted)
    codes = np.empty(values.shape, np.int8)
    scales = np.empty((-(-steps // window), values.shape[1]), np.float32)
    for rows, columns in _tiles(values.shape, window):
        delta = _difference(values, guesses, rows, columns)
        peaks = np.maximum.reduceat(np.abs(delta), np.arange(0, len(delta), window), axis=0)
        if not np.isfinite(peaks).all():
            raise _not_finite(observed, predicted)
        scale = _scales(peaks)
        if not np.isfinite(scale).all():
            raise InvalidArgument(
                "the difference is too large for 32-bit scales",
                expected=f"at most {_LARGEST_DIFFERENCE:.3g}",
                found=f"{peaks.max():.3g} within steps {rows.start} to {rows.stop - 1}",
            )
        # Dividing loses no side of a half: a difference one unit in the last place beside
        # (n + ½) · scale has a quotient more than half a unit beside n + ½, as scale has 24 bits.
        with np.errstate(all="ignore"):
            delta /= _spread(scale, window, len(delta))
        codes[rows, columns] = np.rint(delta, out=delta)
        scales[rows.start // window : -(-rows.stop // window), columns] = scale
    return codes.reshape(observed.shape), scales.reshape(len(scales), *observed.shape[1:])


def dequantize_delta(
    quantized: ArrayLike, scales: ArrayLike, window_size: int = DEFAULT_WINDOW
) -> NDArray[np.float64]:
    """q · scale, exact in 64-bit floats, in the shape of `quantized`.

    Scales that are NaN or infinite give what multiplication gives.

    Raises:
        InvalidArgument: `quantized` are not integers, or `scales` has another shape than
            [⌈T/window_size⌉, ...].
    """
    codes = _numbers(quantized, "quantized")
    if codes.dtype.kind not in "iu":
        raise InvalidArgument(
            "quantized values are integers", expected="int8", found=f"dtype {codes.dtype}"
        )
    factors = _numbers(scales, "scales")
    steps = len(codes)
    window = min(_natural(window_size, "window_size", smallest=1), max(steps, 1))
    wanted = (-(-steps // window), *codes.shape[1:])
    if factors.shape != wanted:
        raise InvalidArgument(
            f"the scales do not fit {steps} steps in windows of {window_size}",
            expected=f"shape {wanted}",
            found=f"shape {factors.shape}",
            hint="window_size must be that of quantize_delta",
        )
    table, rates = _flat(codes), _flat(factors)
    delta = np.empty(table.shape, np.float64)
    with np.errstate(all="ignore"):
        for rows, columns in _tiles(table.shape, window):
            part = rates[rows.start // window : -(-rows.stop // window), columns]
            spread = _spread(part, window, rows.stop - rows.start)
            np.multiply(table[rows, columns], spread, out=delta[rows, columns])
    return delta.reshape(codes.shape)


def reconstruct_from_omen_and_delta(
    omen: ArrayLike | None,
    quantized: ArrayLike,
    scales: ArrayLike,
    window_size: int = DEFAULT_WINDOW,
) -> NDArray[np.float64]:
    """omen + q · scale in 64-bit floats; without an omen, q · scale.

    Within half a scale of the signal that was quantised, up to the rounding of this sum: half a unit
    in its last place.
    """
    restored = dequantize_delta(quantized, scales, window_size)
    if omen is None:
        return restored
    predicted = _prediction(omen, restored, "quantized")
    guesses, sums = _flat(predicted), _flat(restored)
    with np.errstate(all="ignore"):
        for rows, columns in _tiles(sums.shape, 1):
            sums[rows, columns] += guesses[rows, columns].astype(np.float64)
    return restored


def pack_bool_mask(mask: ArrayLike) -> bytes:
    """One bit for each element in C order, 1 where it is true (or not 0), least significant bit first."""
    values = np.asarray(mask)
    if values.dtype.kind not in "biu" and values.size:
        raise InvalidArgument(
            "a mask holds booleans", expected="dtype bool", found=f"dtype {values.dtype}"
        )
    return np.packbits(values.astype(np.bool_, copy=False), bitorder="little").tobytes()


def unpack_bool_mask(packed: Packed, T: int | Sequence[int]) -> NDArray[np.bool_]:
    """The mask of packed bits. `T` is its length, or its shape."""
    shape = _shape(T, "T")
    count = math.prod(shape)
    stored = _bytes(packed, _byte_count(count), f"{count} bits")
    mask: NDArray[np.bool_] = np.unpackbits(stored, count=count, bitorder="little").view(np.bool_)
    return mask.reshape(shape)


def _signs(signal: NDArray[Any], omen: NDArray[Any] | None, edge_rule: str) -> NDArray[np.int8]:
    _check_edge_rule(edge_rule)
    signs = np.zeros(signal.shape, np.int8)
    steps = len(signal)
    if steps < 3:
        return signs
    values, guesses, table = _flat(signal), _flat(omen), _flat(signs)
    for rows, columns in _tiles((steps - 2, values.shape[1]), 1):
        # Tiles count from step 1: these are their steps, and one more on either side.
        x = _difference(values, guesses, slice(rows.start, rows.stop + 2), columns)
        with np.errstate(all="ignore"):
            bend = 2.0 * x[1:-1]
            bend -= x[:-2]
            bend -= x[2:]
        # Comparisons with NaN are false: neither sign.
        part = table[rows.start + 1 : rows.stop + 1, columns]
        part[...] = bend > 0
        part -= bend < 0
    if edge_rule == "overlap":
        signs[0] = signs[1]
        signs[-1] = signs[-2]
    return signs


def _scales(peaks: NDArray[np.float64]) -> NDArray[np.float32]:
    """The smallest 32-bit float, or the one above it, of which 127 reach the peak; 1 where that is 0."""
    with np.errstate(all="ignore"):
        scale = (peaks / _LARGEST_CODE).astype(np.float32)
        # 24 bits times 7 bits: this product is exact.
        short = scale.astype(np.float64) * _LARGEST_CODE < peaks
        scale = np.where(short, np.nextafter(scale, np.float32(np.inf)), scale)
    scale[peaks == 0] = 1
    return scale


def _spread(scales: NDArray[Any], window: int, steps: int) -> NDArray[np.float64]:
    """The scale of every step, from that of every window."""
    return np.repeat(scales.astype(np.float64, copy=False), window, axis=0)[:steps]


def _difference(
    signal: NDArray[Any], omen: NDArray[Any] | None, rows: slice, columns: slice
) -> NDArray[np.float64]:
    """A part of signal − omen as 64-bit floats; signalling NaN and overflow pass without a warning."""
    with np.errstate(all="ignore"):
        delta: NDArray[np.float64] = signal[rows, columns].astype(np.float64)
        if omen is not None:
            delta -= omen[rows, columns].astype(np.float64)
    return delta


def _not_finite(signal: NDArray[Any], omen: NDArray[Any] | None) -> InvalidArgument:
    """The error that says how many differences are not finite, and where the first is."""
    values, guesses = _flat(signal), _flat(omen)
    count = 0
    place = ""
    for start, stop in _ranges(0, len(values), max(1, _TILE_VALUES // values.shape[1])):
        bad = ~np.isfinite(_difference(values, guesses, slice(start, stop), slice(None)))
        if not count and bad.any():
            step, column = divmod(int(bad.argmax()), bad.shape[1])
            place = f"step {start + step}"
            if signal.ndim > 1:
                place += (
                    f", dimension {[int(at) for at in np.unravel_index(column, signal.shape[1:])]}"
                )
        count += int(np.count_nonzero(bad))
    what = "signal" if omen is None else "signal minus omen"
    return InvalidArgument(
        f"{what} is NaN or infinite: it cannot be quantised",
        expected="finite values",
        found=f"{count} of {signal.size} not finite, the first at {place}",
        hint="replace these values, or store the channel without delta_q",
    )


def _numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """The values as an array of real numbers with a time axis."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidArgument(
            f"{name} is not an array", hint="all its rows must have one length"
        ) from None
    # The bfloat16 of ml_dtypes is of kind V, as records and raw bytes are.
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidArgument(
            f"{name} does not hold real numbers",
            expected="bool, integers or floats",
            found=f"dtype {array.dtype}",
        )
    if array.ndim == 0:
        raise InvalidArgument(
            f"{name} has no time axis", expected="shape (T, ...)", found="one number"
        )
    return array


def _prediction(omen: ArrayLike, signal: NDArray[Any], name: str = "signal") -> NDArray[Any]:
    predicted = _numbers(omen, "omen")
    if predicted.shape != signal.shape:
        raise InvalidArgument(
            f"{name} and omen have different shapes",
            expected=f"shape {signal.shape}",
            found=f"shape {predicted.shape}",
        )
    return predicted


def _check_edge_rule(edge_rule: str) -> None:
    if edge_rule not in _EDGE_RULES:
        raise InvalidArgument(
            "unknown edge rule", expected="'pad' or 'overlap'", found=repr(edge_rule)
        )


def _natural(value: int, name: str, smallest: int = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < smallest or isinstance(value, bool):
        raise InvalidArgument(
            f"{name} is wrong", expected=f"an integer of {smallest} or more", found=repr(value)
        )
    return number


def _shape(value: int | Sequence[int], name: str) -> tuple[int, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(_natural(size, name) for size in value)
    return (_natural(value, name),)  # type: ignore[arg-type]  # other sequences are refused there


def _byte_count(bits: int) -> int:
    return -(-bits // 8)


def _bytes(packed: Packed, expected: int, content: str) -> NDArray[np.uint8]:
    """The packed bytes as an array, once their number is right; a copy only where they have gaps."""
    try:
        stored = memoryview(packed.data if isinstance(packed, np.ndarray) else packed)
    except TypeError:
        raise InvalidArgument(
            "packed bits are bytes", expected="bytes or an array", found=type(packed).__name__
        ) from None
    if stored.nbytes != expected:
        raise InvalidArgument(
            f"the packed bytes do not fit {content}",
            expected=f"{expected} bytes",
            found=f"{stored.nbytes}",
        )
    if not expected:
        return np.empty(0, np.uint8)
    return np.frombuffer(stored if stored.c_contiguous else stored.tobytes(), np.uint8)


@overload
def _flat(values: NDArray[Any]) -> NDArray[Any]: ...
@overload
def _flat(values: NDArray[Any] | None) -> NDArray[Any] | None: ...
def _flat(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """The same values [T, D]: all dimensions in one axis, in C order. A view where that is possible."""
    if values is None:
        return None
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _ranges(start: int, end: int, length: int) -> Iterator[tuple[int, int]]:
    """Cuts start … end into parts of at most this length."""
    for at in range(start, end, length):
        yield at, min(at + length, end)


def _tiles(shape: tuple[int, ...], multiple: int) -> Iterator[tuple[slice, slice]]:
    """Cuts [T, D] into rows and columns; the rows start at multiples of `multiple`."""
    steps, dimensions = shape
    width = max(1, min(dimensions, _TILE_COLUMNS, _TILE_VALUES // multiple))
    height = max(1, _TILE_VALUES // (multiple * width)) * multiple
    for top, bottom in _ranges(0, steps, height):
        for left, right in _ranges(0, dimensions, width):
            yield slice(top, bottom), slice(left, right)
