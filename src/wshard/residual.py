"""Residuals: how a signal bends, or how far a prediction was off, in few bits (spec/wshard.md, section 9).

Time is the first axis of every array; the others are the *dimensions* of one step. Functions take bool, integers,
floats and the bfloat16 of `ml_dtypes`, compute in 64-bit floats (integers beyond ±2⁵³ are rounded first), and return
new arrays. They work through arrays some MiB at a time, or one window of steps at a time if that is larger.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadProfile, InvalidArgument, SizeMismatch, check_choice
from wshard._lanes import DELTA_RESIDUAL, SCALES, SIGN_RESIDUAL
from wshard._values import DType, as_array, convert, read_only

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from wshard._blocks import Block
    from wshard._channels import Channel
    from wshard._metadata import Row

    Packed = bytes | bytearray | memoryview | NDArray[np.uint8]

__all__ = [
    "Residual",
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

_LARGEST_CODE = 127
_LARGEST_DIFFERENCE = _LARGEST_CODE * float(np.finfo(np.float32).max)
# 2 MiB as 64-bit floats: steps that are worked through together, with what is computed from them.
_TILE_VALUES = 1 << 18


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
    steps, dimensions = len(signs), math.prod(signs.shape[1:])
    packed = np.empty((dimensions, _byte_count(steps)), np.uint8)
    for rows in _tiles(signs, 8):
        # Dimensions as rows first: packing along the first axis is much slower than the copy.
        positive = np.ascontiguousarray((signs[rows].reshape(-1, dimensions) > 0).T)
        bits = np.packbits(positive, axis=1, bitorder="little")
        packed[:, rows.start // 8 : _byte_count(rows.stop)] = bits
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
    _check_edge_rule(edge_rule or "pad")
    steps = _natural(T, "T")
    shape = _shape(D_or_shape, "D_or_shape")
    dimensions = math.prod(shape)
    row_bytes = _byte_count(steps)
    stored = _bytes(packed, dimensions * row_bytes, f"{dimensions} x {steps} bits")
    signs, table = np.empty((steps, dimensions), np.int8), stored.reshape(dimensions, row_bytes)
    for rows in _tiles(signs, 8):
        part = table[:, rows.start // 8 : _byte_count(rows.stop)]
        bits = np.unpackbits(part, axis=1, count=rows.stop - rows.start, bitorder="little")
        signs[rows] = bits.T
    signs *= 2
    signs -= 1
    if edge_rule == "pad" and steps:
        signs[[0, -1]] = 0
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
    codes = np.empty(observed.shape, np.int8)
    scales = np.empty((-(-steps // window), *observed.shape[1:]), np.float32)
    for rows in _tiles(observed, window):
        delta = _difference(observed, predicted, rows)
        peaks = np.maximum.reduceat(np.abs(delta), np.arange(0, len(delta), window), axis=0)
        if not np.isfinite(peaks).all():
            step, *place = np.argwhere(~np.isfinite(delta))[0].tolist()
            raise InvalidArgument(
                f"signal{'' if omen is None else ' minus omen'} is NaN or infinite: it cannot be quantised",
                expected="finite values",
                found=f"the first at step {rows.start + step}"
                + (f", dimension {place}" if place else ""),
                hint="replace these values, or store the channel without delta_q",
            )
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
        codes[rows] = np.rint(delta, out=delta)
        scales[rows.start // window : -(-rows.stop // window)] = scale
    return codes, scales


def dequantize_delta(
    quantized: ArrayLike, scales: ArrayLike, window_size: int = DEFAULT_WINDOW
) -> NDArray[np.float64]:
    """q · scale, exact in 64-bit floats, in the shape of `quantized`.

    Scales that are NaN or infinite give what multiplication gives.

    Raises:
        InvalidArgument: `quantized` are not integers, or `scales` has a different shape than
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
    delta = np.empty(codes.shape, np.float64)
    with np.errstate(all="ignore"):
        for rows in _tiles(codes, window):
            part = factors[rows.start // window : -(-rows.stop // window)]
            spread = _spread(part, window, rows.stop - rows.start)
            np.multiply(codes[rows], spread, out=delta[rows])
    return delta


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
    with np.errstate(all="ignore"):
        for rows in _tiles(restored, 1):
            restored[rows] += predicted[rows].astype(np.float64)
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
    for rows in _tiles(signs[2:], 1):
        # Tiles count from step 1: these are their steps, and one more on either side.
        x = _difference(signal, omen, slice(rows.start, rows.stop + 2))
        with np.errstate(all="ignore"):
            bend = 2.0 * x[1:-1]
            bend -= x[:-2]
            bend -= x[2:]
        # Comparisons with NaN are false: neither sign.
        part = signs[rows.start + 1 : rows.stop + 1]
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
    signal: NDArray[Any], omen: NDArray[Any] | None, rows: slice
) -> NDArray[np.float64]:
    """Some steps of signal − omen as 64-bit floats; signalling NaN and overflow pass without a warning."""
    with np.errstate(all="ignore"):
        delta: NDArray[np.float64] = signal[rows].astype(np.float64)
        if omen is not None:
            delta -= omen[rows].astype(np.float64)
    return delta


def _numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """The values as an array of real numbers with a time axis."""
    array = as_array(values)
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
    check_choice("edge rule", edge_rule, ("pad", "overlap"))


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
    stored = as_array(packed)
    if stored.dtype.kind not in "iu" or stored.nbytes != expected:
        raise InvalidArgument(
            f"the packed bytes do not fit {content}",
            expected=f"{expected} bytes",
            found=f"{stored.nbytes} of dtype {stored.dtype}",
        )
    return np.ascontiguousarray(stored).reshape(-1).view(np.uint8)


def _tiles(values: NDArray[Any], multiple: int) -> Iterator[slice]:
    """Cuts the steps into runs of some MiB, whose lengths are multiples of `multiple`."""
    values_each = max(1, multiple * math.prod(values.shape[1:]))
    length = max(1, _TILE_VALUES // values_each) * multiple
    for start in range(0, len(values) if values.size else 0, length):
        yield slice(start, min(start + length, len(values)))


# --- residuals as an episode holds them


class Residual:
    """How far a signal is from its neighbours in time, or from a model's prediction.

    Args:
        channel_id: the signal that it is about.
        type: `"sign2nddiff"`, one bit a step, or `"delta_q"`, eight.
        data: the packed bits (bytes or uint8), or the int8 differences [T, ...].
        scales: for `delta_q`, float32, one for each window and dimension.
        model: the model whose prediction was subtracted; empty for the signal itself.
        window: for `delta_q`, steps that share a scale.
    """

    block: str = ""
    """The entry that it was loaded from; empty for one made in memory."""
    is_described: bool = True
    """Whether a loaded one has a row in its file; True for one made in memory."""
    sources: tuple[Block, ...] = ()
    """The blocks that it still is in a file: its own, and its scales; none for one made in memory."""

    def __init__(
        self,
        channel_id: str,
        type: str = SIGN_RESIDUAL,
        data: bytes | ArrayLike = b"",
        scales: ArrayLike | None = None,
        *,
        model: str = "",
        window: int = DEFAULT_WINDOW,
    ) -> None:
        if type not in (SIGN_RESIDUAL, DELTA_RESIDUAL):
            raise InvalidArgument(
                "unknown type of residual",
                entry=channel_id,
                expected=f"{SIGN_RESIDUAL!r} or {DELTA_RESIDUAL!r}",
                found=repr(type),
            )
        if (scales is None) != (type == SIGN_RESIDUAL):
            raise InvalidArgument(
                f"scales belong to {DELTA_RESIDUAL!r} and only to it", entry=channel_id
            )
        if window < 1:
            raise InvalidArgument(
                "a window must have at least one step", entry=channel_id, found=window
            )
        self.channel_id, self.type, self.model, self.window = channel_id, type, model, window
        kind = DType.UINT8 if type == SIGN_RESIDUAL else DType.INT8
        try:
            packed = np.ascontiguousarray(convert(as_array(data), kind)[0])
        except InvalidArgument as error:
            raise error.located(entry=channel_id) from None
        self._data: NDArray[Any] | None = read_only(packed)
        self._scales: NDArray[Any] | None = (
            None if scales is None else read_only(np.ascontiguousarray(scales, dtype="<f4"))
        )

    @classmethod
    def of_signal(
        cls,
        channel_id: str,
        signal: ArrayLike | Channel,
        type: str = SIGN_RESIDUAL,
        *,
        window: int = DEFAULT_WINDOW,
        edges: str = "pad",
    ) -> Residual:
        """The residual of a signal by itself.

        `edges` is what `meta/wshard` of the file that it is for says as `residual_edges`. New files say `"pad"`.
        """
        return cls._computed(channel_id, signal, None, "", type, window, edges)

    @classmethod
    def of_error(
        cls,
        channel_id: str,
        signal: ArrayLike | Channel,
        omen: ArrayLike | Channel,
        model: str,
        type: str = SIGN_RESIDUAL,
        *,
        window: int = DEFAULT_WINDOW,
        edges: str = "pad",
    ) -> Residual:
        """The residual of a signal against what a model predicted; `edges` as for `of_signal`."""
        return cls._computed(channel_id, signal, omen, model, type, window, edges)

    @classmethod
    def _computed(
        cls,
        channel_id: str,
        signal: ArrayLike | Channel,
        omen: ArrayLike | Channel | None,
        model: str,
        type: str,
        window: int,
        edges: str,
    ) -> Residual:
        truth, predicted = np.asarray(signal), None if omen is None else np.asarray(omen)
        if type == DELTA_RESIDUAL:
            quantised, scales = quantize_delta(truth, predicted, window)
            return cls(channel_id, type, quantised, scales, model=model, window=window)
        bends = (
            compute_sign2nd_diff(truth, edges)
            if predicted is None
            else compute_error_residual(truth, predicted, edges)
        )
        return cls(channel_id, type, pack_multidim_residual_bits(bends), model=model)

    def load(self) -> None:
        """Brings it into memory."""

    @property
    def data(self) -> NDArray[Any]:
        """The packed bits as uint8, dimension by dimension, or the int8 differences [T, ...]."""
        self.load()
        assert self._data is not None
        return self._data

    @property
    def scales(self) -> NDArray[np.float32] | None:
        """One for each window and dimension of `delta_q`."""
        self.load()
        return self._scales

    def signs(
        self, length: int, shape: Sequence[int] | None = None, *, edges: str | None = "pad"
    ) -> NDArray[np.int8]:
        """The signs +1 and −1 of each step, [T, dimensions] or [T, *shape], and 0 at the edges.

        Args:
            length: T.
            shape: of the signal; one axis for all dimensions if left out.
            edges: `"pad"` for 0 at the first and last step; None for what the bits say.
        """
        if self.type != SIGN_RESIDUAL:
            raise InvalidArgument(f"a {self.type} residual has no signs", entry=self.channel_id)
        bits = self.data.reshape(-1)
        dimensions = _dimensions(bits.size, length, None, self.channel_id)
        wanted: Any = dimensions if shape is None else tuple(shape)
        return unpack_multidim_residual_bits(bits.tobytes(), length, wanted, edges)

    def reconstruct(self, omen: ArrayLike | Channel | None = None) -> NDArray[Any]:
        """The signal, within half a scale, from `delta_q` and the prediction it was made against."""
        if self.type != DELTA_RESIDUAL or self.scales is None:
            raise InvalidArgument(f"a {self.type} residual cannot be undone", entry=self.channel_id)
        if bool(self.model) != (omen is not None):
            raise InvalidArgument(
                "the prediction is missing" if self.model else "it was made without a prediction",
                entry=self.channel_id,
                expected=f"the omen of model {self.model!r}" if self.model else "no omen",
            )
        delta = dequantize_delta(self.data, self.scales, self.window)
        return delta if omen is None else np.asarray(omen) + delta

    def sliced(self, start: int, stop: int, length: int) -> Residual:
        """The part for the steps from `start` to `stop` of an episode of `length` steps, exact."""
        if self.type == SIGN_RESIDUAL:
            return self._with_bits(self.bits(length)[:, start:stop])
        # Windows that start elsewhere would need other scales; smaller ones keep the same.
        window = math.gcd(self.window, start) if start % self.window else self.window
        scales = self.scales_per(window, length)[start // window : -(-stop // window)]
        return self._with_data(self.data[start:stop], scales, window)

    def joined(self, others: Sequence[Residual], lengths: Sequence[int]) -> Residual:
        """This one and those that follow it in time, as one; `lengths` are the steps of each."""
        filled = [pair for pair in zip([self, *others], lengths, strict=True) if pair[1]]
        if not filled:
            return self
        if self.type == SIGN_RESIDUAL:
            return self._with_bits(
                np.concatenate([part.bits(length) for part, length in filled], axis=1)
            )
        # All but the last part must be whole windows.
        whole = [length for _, length in filled[:-1]]
        window = math.gcd(*(part.window for part, _ in filled), *whole)
        scales = np.concatenate([part.scales_per(window, length) for part, length in filled])
        return self._with_data(np.concatenate([part.data for part, _ in filled]), scales, window)

    def clone(self) -> Residual:
        """A copy with data of its own in memory."""
        scales = None if self.scales is None else np.array(self.scales)
        return self._with_data(np.array(self.data), scales, self.window)

    def bits(self, length: int) -> NDArray[np.uint8]:
        """One bit a byte, [dimensions, steps]."""
        packed = self.data.reshape(-1, max(1, _byte_count(length)))
        return np.unpackbits(packed, axis=1, count=length, bitorder="little")

    def _with_bits(self, bits: NDArray[np.uint8]) -> Residual:
        packed = np.packbits(bits, axis=1, bitorder="little").reshape(-1)
        return self._with_data(packed, None, self.window)

    def _with_data(self, data: NDArray[Any], scales: NDArray[Any] | None, window: int) -> Residual:
        return Residual(self.channel_id, self.type, data, scales, model=self.model, window=window)

    def scales_per(self, window: int, length: int) -> NDArray[Any]:
        """The same scales for windows of a divisor of the size."""
        scales = np.asarray(self.scales)
        if window == self.window:
            return scales
        return np.repeat(scales, self.window // window, axis=0)[: -(-length // window)]

    def __repr__(self) -> str:
        against = f" against {self.model!r}" if self.model else ""
        return f"<Residual {self.type} of {self.channel_id!r}{against}>"


class StoredResidual(Residual):
    """A residual that is still in a file; checked when it is read.

    Args:
        keys: channel, model and type.
        block: its bytes.
        row: its description, if the file has one.
        scales_block: the block of its scales, if the file has one.
        length: T.
    """

    def __init__(
        self,
        keys: tuple[str, str, str],
        block: Block,
        row: Row | None,
        scales_block: Block | None,
        length: int,
    ) -> None:
        self.channel_id, self.model, self.type = keys
        self.window = (None if row is None else row.fields.get("window")) or DEFAULT_WINDOW
        self.block, self.is_described = block.name, row is not None
        self.sources = (block,) if scales_block is None else (block, scales_block)
        self._shape = None if row is None else row.shape
        self._length = length
        self._data = self._scales = None

    def load(self) -> None:
        if self._data is None:
            if self.type == SIGN_RESIDUAL:
                block = self.sources[0]
                _dimensions(block.nbytes, self._length, block.path, block.name)
                self._data = block.array(np.dtype(np.uint8), (block.nbytes,))
            else:
                self._load_differences()

    def _load_differences(self) -> None:
        """W-RES-2."""
        block, shape = self.sources[0], self._shape
        if shape is None or len(self.sources) == 1:
            raise BadProfile(
                "a delta_q residual is incomplete",
                path=block.path,
                entry=block.name,
                expected="its row in meta/channels" if shape is None else block.name + SCALES,
                found="nothing",
                rule="W-RES-2",
            )
        arrays = []
        for block, count, dtype in zip(
            self.sources,
            (self._length, -(-self._length // self.window)),
            ("i1", "<f4"),
            strict=True,
        ):
            wanted = count * math.prod(shape) * np.dtype(dtype).itemsize
            if block.nbytes != wanted:
                raise SizeMismatch(
                    "a delta_q residual does not fit the episode",
                    path=block.path,
                    entry=block.name,
                    expected=f"{wanted} bytes: {count} times {list(shape)}",
                    found=f"{block.nbytes} bytes",
                    rule="W-RES-2",
                )
            arrays.append(block.array(np.dtype(dtype), (count, *shape)))
        self._data, self._scales = arrays


def _dimensions(nbytes: int, length: int, path: str | None, entry: str) -> int:
    """How many dimensions packed signs of that size have (W-RES-1)."""
    row = _byte_count(length)
    if nbytes % row if row else nbytes:
        raise SizeMismatch(
            "the packed signs do not fit the length of the episode",
            path=path,
            entry=entry,
            expected=f"a multiple of {row} bytes for {length} steps",
            found=f"{nbytes} bytes",
            rule="W-RES-1",
        )
    return nbytes // row if row else 0
