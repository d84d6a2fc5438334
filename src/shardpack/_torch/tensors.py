"""NumPy arrays as tensors, without copies where that is safe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from shard_format._extras import require
from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
else:
    torch = require("torch", "torch")

__all__ = ["ReadOnly", "is_numeric", "tensor_of", "to_tensors"]

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
    """The same batch, sample or array with tensors in place of arrays, which share their memory.

    Numbers of bfloat16 and float8 (`ml_dtypes`) become those of torch, by a view. Arrays of text, objects
    and dates become lists. What lies in dictionaries, lists and tuples is converted too; all else stays.

    torch has no read-only tensors: writing to one over a mapped file would crash the process, over a `bytes`
    object it would change that. So arrays that are read-only are copied, unless the caller promises not to write.
    Copied are also arrays in foreign byte order, and those whose steps run backwards.

    Args:
        value: an array, or arrays in dictionaries, lists and tuples.
        read_only: `"copy"` or `"share"`: what to do with read-only arrays.
    """
    if read_only not in get_args(ReadOnly):
        raise InvalidArgument(
            "unknown read_only", expected=" or ".join(get_args(ReadOnly)), found=repr(read_only)
        )
    return _converted(value, read_only == "share")


def _converted(value: Any, share: bool) -> Any:  # noqa: ANN401
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
    """An array of numbers as a tensor, as `to_tensors` does it.

    Args:
        array: of a type that `is_numeric`.
        share: whether memory that is read-only is shared too.
    """
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
