"""Residuals as an episode holds them: packed signs, or quantised differences with their scales."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format.errors import BadProfile, InvalidArgument, SizeMismatch
from wshard.dtypes import DType, convert
from wshard.names import DELTA_RESIDUAL, SCALES, SIGN_RESIDUAL
from wshard.residual import (
    compute_error_residual,
    compute_sign2nd_diff,
    dequantize_delta,
    pack_multidim_residual_bits,
    quantize_delta,
    unpack_multidim_residual_bits,
)
from wshard.values import as_array, product

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from wshard.blocks import Block
    from wshard.channels import Channel
    from wshard.metadata import Row

__all__ = ["Residual"]

DEFAULT_WINDOW = 256


@dataclass(frozen=True, slots=True)
class StoredResidual:
    """A residual that is still in a file; checked when it is read."""

    block: Block
    row: Row | None
    scales_block: Block | None
    length: int
    window: int

    def signs(self) -> NDArray[Any]:
        """The packed bits (W-RES-1)."""
        packed = -(-self.length // 8)
        nbytes = self.block.nbytes
        if (packed and nbytes % packed) or (not packed and nbytes):
            raise SizeMismatch(
                "the packed signs do not fit the length of the episode",
                path=self.block.path,
                entry=self.block.name,
                expected=f"a multiple of {packed} bytes for {self.length} steps",
                found=f"{nbytes} bytes",
                rule="W-RES-1",
            )
        return self.block.array(np.dtype(np.uint8), (nbytes,))

    def deltas(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The differences and their scales (W-RES-2)."""
        if self.row is None or self.scales_block is None:
            missing = "its row in meta/channels" if self.row is None else self.block.name + SCALES
            raise BadProfile(
                "a delta_q residual is incomplete",
                path=self.block.path,
                entry=self.block.name,
                expected=missing,
                found="nothing",
                rule="W-RES-2",
            )
        shape = self.row.shape
        windows = -(-self.length // self.window)
        numbers = product(shape)
        for block, count, width in (
            (self.block, self.length, 1),
            (self.scales_block, windows, 4),
        ):
            if block.nbytes != count * numbers * width:
                raise SizeMismatch(
                    "a delta_q residual does not fit the episode",
                    path=block.path,
                    entry=block.name,
                    expected=f"{count * numbers * width} bytes: {count} times {list(shape)}",
                    found=f"{block.nbytes} bytes",
                    rule="W-RES-2",
                )
        return (
            self.block.array(np.dtype(np.int8), (self.length, *shape)),
            self.scales_block.array(np.dtype("<f4"), (windows, *shape)),
        )


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
            raise InvalidArgument("a window has at least one step", entry=channel_id, found=window)
        self.channel_id = channel_id
        self.type = type
        self.model = model
        self.window = window
        kind = DType.UINT8 if type == SIGN_RESIDUAL else DType.INT8
        try:
            self._data: NDArray[Any] | None = np.ascontiguousarray(convert(as_array(data), kind)[0])
        except InvalidArgument as error:
            raise error.located(entry=channel_id) from None
        self._scales: NDArray[Any] | None = (
            None if scales is None else np.ascontiguousarray(scales, dtype="<f4")
        )
        self._stored: StoredResidual | None = None

    @classmethod
    def of_signal(
        cls,
        channel_id: str,
        signal: ArrayLike | Channel,
        type: str = SIGN_RESIDUAL,
        *,
        window: int = DEFAULT_WINDOW,
    ) -> Residual:
        """The residual of a signal by itself."""
        values = np.asarray(signal)
        if type == DELTA_RESIDUAL:
            quantised, scales = quantize_delta(values, np.zeros_like(values), window)
            return cls(channel_id, type, quantised, scales, window=window)
        return cls(channel_id, type, pack_multidim_residual_bits(compute_sign2nd_diff(values)))

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
    ) -> Residual:
        """The residual of a signal against what a model predicted."""
        truth, predicted = np.asarray(signal), np.asarray(omen)
        if type == DELTA_RESIDUAL:
            quantised, scales = quantize_delta(truth, predicted, window)
            return cls(channel_id, type, quantised, scales, model=model, window=window)
        packed = pack_multidim_residual_bits(compute_error_residual(truth, predicted))
        return cls(channel_id, type, packed, model=model)

    @classmethod
    def lazy(
        cls, channel_id: str, kind: str, model: str, window: int, stored: StoredResidual
    ) -> Residual:
        """One that is still in a file."""
        residual = cls.__new__(cls)
        residual.channel_id, residual.type, residual.model = channel_id, kind, model
        residual.window = window
        residual._data = residual._scales = None
        residual._stored = stored
        return residual

    @property
    def block(self) -> str:
        """The entry that it was loaded from; empty for one made in memory."""
        return "" if self._stored is None else self._stored.block.name

    @property
    def is_described(self) -> bool:
        """Whether a loaded one has a row in its file; True for one made in memory."""
        return self._stored is None or self._stored.row is not None

    def _load(self) -> None:
        if self._data is None:
            assert self._stored is not None
            if self.type == SIGN_RESIDUAL:
                self._data = self._stored.signs()
            else:
                self._data, self._scales = self._stored.deltas()

    @property
    def data(self) -> NDArray[Any]:
        """The packed bits as uint8, dimension by dimension, or the int8 differences [T, ...]."""
        self._load()
        data: NDArray[Any] = self._data  # type: ignore[assignment] # just loaded
        return data

    @property
    def scales(self) -> NDArray[np.float32] | None:
        """One for each window and dimension of `delta_q`."""
        self._load()
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
        row = -(-length // 8)
        bits = self.data.reshape(-1)
        if (row and bits.size % row) or (not row and bits.size):
            raise SizeMismatch(
                "the packed signs do not fit the length",
                entry=self.channel_id,
                expected=f"a multiple of {row} bytes for {length} steps",
                found=f"{bits.size} bytes",
                rule="W-RES-1",
            )
        dimensions = bits.size // row if row else 0
        wanted: Any = dimensions if shape is None else tuple(shape)
        return unpack_multidim_residual_bits(bits.tobytes(), length, wanted, edges)

    def reconstruct(self, omen: ArrayLike | Channel | None = None) -> NDArray[Any]:
        """The signal, within half a scale, from `delta_q` and the prediction it was made against."""
        if self.type != DELTA_RESIDUAL or self.scales is None:
            raise InvalidArgument(f"a {self.type} residual cannot be undone", entry=self.channel_id)
        if bool(self.model) != (omen is not None):
            raise InvalidArgument(
                "the prediction is missing" if self.model else "there is no prediction to add",
                entry=self.channel_id,
                expected=f"the omen of model {self.model!r}" if self.model else "no omen",
            )
        delta = dequantize_delta(self.data, self.scales, self.window)
        return delta if omen is None else np.asarray(omen) + delta

    def sliced(self, start: int, stop: int, length: int) -> Residual:
        """The part for the steps from `start` to `stop` of an episode of `length` steps, exact."""
        if self.type == SIGN_RESIDUAL:
            return self._with_bits(self._bits(length)[:, start:stop])
        assert self.scales is not None
        # Windows that start elsewhere would need other scales; smaller ones keep the same.
        window = gcd(self.window, start) if start % self.window else self.window
        scales = _per_window(self.scales, self.window, window, length)
        first, last = start // window, -(-stop // window)
        return Residual(
            self.channel_id,
            self.type,
            self.data[start:stop],
            scales[first:last],
            model=self.model,
            window=window,
        )

    def joined(self, others: Sequence[Residual], lengths: Sequence[int]) -> Residual:
        """This one and those that follow it in time, as one; `lengths` are the steps of each."""
        pairs = zip([self, *others], lengths, strict=True)
        filled = [(part, length) for part, length in pairs if length]
        if not filled:
            return self
        parts = [part for part, _ in filled]
        lengths = [length for _, length in filled]
        if self.type == SIGN_RESIDUAL:
            bits = [part._bits(length) for part, length in zip(parts, lengths, strict=True)]
            return self._with_bits(np.concatenate(bits, axis=1))
        # All but the last part must be whole windows.
        window = gcd(*(part.window for part in parts), *lengths[:-1])
        scales = [
            _per_window(np.asarray(part.scales), part.window, window, length)
            for part, length in zip(parts, lengths, strict=True)
        ]
        return Residual(
            self.channel_id,
            self.type,
            np.concatenate([part.data for part in parts]),
            np.concatenate(scales),
            model=self.model,
            window=window,
        )

    def _bits(self, length: int) -> NDArray[np.uint8]:
        """One bit a byte, [dimensions, steps]."""
        packed = self.data.reshape(-1, max(1, -(-length // 8)))
        return np.unpackbits(packed, axis=1, count=length, bitorder="little")

    def _with_bits(self, bits: NDArray[np.uint8]) -> Residual:
        packed = np.packbits(bits, axis=1, bitorder="little").reshape(-1)
        return Residual(self.channel_id, self.type, packed, model=self.model)

    def clone(self) -> Residual:
        """A copy with data of its own in memory."""
        scales = None if self.scales is None else np.array(self.scales)
        data = np.array(self.data)
        return Residual(
            self.channel_id, self.type, data, scales, model=self.model, window=self.window
        )

    def __repr__(self) -> str:
        against = f" against {self.model!r}" if self.model else ""
        return f"<Residual {self.type} of {self.channel_id!r}{against}>"


def _per_window(scales: NDArray[Any], window: int, smaller: int, length: int) -> NDArray[Any]:
    """The same scales for windows of a divisor of the size."""
    if window == smaller:
        return scales
    return np.repeat(scales, window // smaller, axis=0)[: -(-length // smaller)]
