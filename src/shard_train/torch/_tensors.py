"""NumPy arrays as tensors, without copies where that is safe, and bytes of many samples in one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args, overload

import numpy as np

from shard_format.errors import InvalidArgument, check_choice
from shard_format.extras import require
from wshard.types import Channel, DType

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
else:
    torch = require("torch", "torch")

__all__ = [
    "ByteColumn",
    "ReadOnly",
    "image_tensor",
    "is_numeric",
    "offsets_of",
    "tensor_of",
    "to_tensors",
]

ReadOnly: TypeAlias = Literal["copy", "share"]

_PLAIN: Final = frozenset(
    np.dtype(name)
    for name in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
)
# Types that NumPy knows from `ml_dtypes` only: by name, with the integers that have the same bits.
_BITS: Final[dict[str, np.dtype[Any]]] = {
    "bfloat16": np.dtype(np.int16),
    "float8_e4m3fn": np.dtype(np.uint8),
    "float8_e4m3fnuz": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
    "float8_e5m2fnuz": np.dtype(np.uint8),
}


def to_tensors(value: Any, *, read_only: ReadOnly = "copy") -> Any:  # noqa: ANN401 - whatever a batch is made of
    """Convert the arrays of a batch, sample or episode lane to tensors that share their memory.

    A `Channel` becomes a tensor of all its steps, a ragged channel a list of tensors, text a list of strings:
    `to_tensors(episode.observations)`.

    Numbers of bfloat16 and float8 (`ml_dtypes`) become those of torch, by a view. Arrays of text, objects
    and dates become lists. Values in dictionaries, lists and tuples are converted too; other values stay unchanged.

    torch has no read-only tensors: writing to a tensor over a mapped file would crash the process, and writing to
    one over a `bytes` object would change that object. So read-only arrays are copied, unless you promise not to
    write. Arrays in foreign byte order and arrays with negative strides are copied too.

    Args:
        value: an array, or arrays in dictionaries, lists and tuples.
        read_only: `"copy"` or `"share"`: what to do with read-only arrays.
    """
    check_choice("read_only", read_only, get_args(ReadOnly))
    return _converted(value, read_only == "share")


def _converted(value: Any, share: bool) -> Any:  # noqa: ANN401
    if isinstance(value, Channel):
        tensors = _converted(value.data, share)
        # Without ml_dtypes, NumPy has the bits of bfloat16 only.
        if value.dtype_name is DType.BFLOAT16 and getattr(value.data, "dtype", None) == np.uint16:
            return tensors.view(torch.bfloat16)
        return tensors
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return tensor_of(array, share=share) if is_numeric(array.dtype) else array.tolist()
    if isinstance(value, Mapping):
        return {key: _converted(part, share) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_converted(part, share) for part in value)
    return value


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether torch has numbers of this type."""
    return dtype in _PLAIN or dtype.newbyteorder("=") in _PLAIN or dtype.name in _BITS


def tensor_of(array: NDArray[Any], *, share: bool = False) -> torch.Tensor:
    """An array of numbers as a tensor, as `to_tensors` does it."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    bits = _BITS.get(array.dtype.name)
    numbers = array if bits is None else array.view(bits)
    size = numbers.itemsize
    if any(step < 0 or step % size for step in numbers.strides):
        numbers = numbers.copy()
    elif not numbers.flags.writeable:
        numbers = np.asarray(_Alias(numbers)) if share else numbers.copy()
    tensor = torch.from_numpy(numbers)
    return tensor if bits is None else tensor.view(getattr(torch, array.dtype.name))


class _Alias:
    """The same memory as a read-only array, without its mark: torch warns of what the caller has promised."""

    def __init__(self, array: NDArray[Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        # The memory lives as long as this does.
        self._array = array


def image_tensor(
    pixels: torch.Tensor | NDArray[np.uint8], *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Convert pictures to what vision models take: uint8 `[..., H, W, C]` becomes float32 `[..., C, H, W]` from 0 to 1.

    The values are those of `pixels / 255`. On the CPU, pass `out` to save the system finding new memory, which takes
    longer than the conversion if it has no huge pages.

    Args:
        pixels: with an axis of colours at the end; on any device.
        out: what an earlier call for as many pictures returned; it is filled again.

    Raises:
        InvalidArgument: `pixels` is of another type, or `out` does not fit.
    """
    source = tensor_of(pixels, share=True) if isinstance(pixels, np.ndarray) else pixels
    if source.dtype != torch.uint8 or source.ndim < 3:
        raise InvalidArgument(
            "these are not pictures with 8 bits for each colour",
            expected="uint8 [..., H, W, C]",
            found=f"{source.dtype} {list(source.shape)}",
        )
    planes = source.movedim(-1, -3)
    if out is None:
        is_here = source.device.type == "cpu"
        # NumPy asks the system for huge pages. torch does not, and touching 4 KiB pages for the first time takes longer.
        out = (
            torch.from_numpy(np.empty(planes.shape, np.float32))
            if is_here
            else torch.empty(planes.shape, device=source.device)
        )
    elif out.shape != planes.shape or out.dtype != torch.float32:
        raise InvalidArgument(
            "out does not fit the pictures",
            expected=f"float32 {list(planes.shape)}",
            found=f"{out.dtype} {list(out.shape)}",
        )
    # In one step from bytes to floats in the new order, then in place.
    return out.copy_(planes).div_(255)


class ByteColumn(Sequence[bytes]):
    """The bytes of each sample of a batch, as a sequence of `bytes` objects that are made on access.

    `tensor(number)` returns them as uint8, for the image decoders of torch, and `view(number)` as a memoryview,
    both without a copy.

    Args:
        data: all of them, one after the other; uint8.
        offsets: where each begins, and the end; int64.
    """

    __slots__ = ("data", "offsets")

    def __init__(self, data: torch.Tensor, offsets: NDArray[np.int64]) -> None:
        self.data = data
        """The bytes of all samples, a tensor."""
        self.offsets = offsets
        """Where each sample begins in it, and the end."""

    @classmethod
    def of(
        cls,
        values: Sequence[Any],
        offsets: NDArray[np.int64] | None = None,
        room: NDArray[np.uint8] | None = None,
    ) -> ByteColumn:
        """Concatenates bytes."""
        if offsets is None:
            offsets = offsets_of(values)
        if room is None:
            room = np.empty(int(offsets[-1]), np.uint8)
        target = room.data
        start = 0
        for value, stop in zip(values, offsets[1:].tolist(), strict=True):
            target[start:stop] = value
            start = stop
        return cls(torch.from_numpy(room), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, number: int) -> bytes: ...

    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...

    def __getitem__(self, number: int | slice) -> bytes | list[bytes]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        return bytes(self.view(number))

    def __iter__(self) -> Iterator[bytes]:
        # Slices of a tensor for each sample take longer than all of this.
        data = memoryview(self.data.numpy())
        return (bytes(data[start:stop]) for start, stop in pairwise(self.offsets.tolist()))

    def view(self, number: int) -> memoryview:
        """The bytes of a sample, without a copy."""
        return memoryview(self.tensor(number).numpy())

    def tensor(self, number: int) -> torch.Tensor:
        """The bytes of a sample as uint8, without a copy."""
        count = len(self)
        if not -count <= number < count:
            raise IndexError(f"sample {number} of {count}")
        start, stop = self.offsets[number % count :][:2].tolist()
        return self.data[start:stop]

    def pin_memory(self) -> ByteColumn:
        """The same in pinned memory; what loaders call."""
        return ByteColumn(self.data.pin_memory(), self.offsets)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # its bytes may change

    def __repr__(self) -> str:
        return f"<ByteColumn of {len(self)} samples, {self.offsets[-1]} bytes>"


def offsets_of(values: Sequence[Any]) -> NDArray[np.int64]:
    """Where each of some bytes begins when they are put one after the other, and the end."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    return offsets
