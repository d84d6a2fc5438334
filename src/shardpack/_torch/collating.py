"""From samples to a batch of tensors; in a worker process, in memory that is shared with the training process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._extras import require
from shardpack._stacking import stacked
from shardpack._torch.buffers import ALIGNMENT, pool, rounded
from shardpack._torch.byte_column import ByteColumn, offsets_of
from shardpack._torch.shared import SharedBatch
from shardpack._torch.tensors import is_numeric, tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray
else:
    torch = require("torch", "torch")

__all__ = ["collate", "columns_of", "in_worker"]

_BYTES: Final = frozenset({bytes, bytearray, memoryview})
_IN_LISTS: Final = (np.ndarray, np.generic, torch.Tensor)


def collate(samples: Any) -> Any:  # noqa: ANN401 - whatever samples are
    """Samples as one batch of tensors: what a torch `DataLoader` takes as `collate_fn`.

    What a data set has read as one batch already is taken as it is: its `arrays`. Else samples that are dictionaries
    become one dictionary, and samples that are tuples become one tuple. In it are:

    - a tensor `[B, ...]` for numbers, and for arrays or tensors of one shape and type;
    - a list of tensors for those that differ in shape;
    - a `ByteColumn` for bytes;
    - a list for all else.

    In a worker process the tensors of a batch lie in one piece of memory that the training process shares.
    """
    columns = columns_of(samples)
    if not isinstance(columns, Mapping):
        return _assembled({"": columns})[""]
    return _assembled(columns)


def columns_of(samples: Any) -> Any:  # noqa: ANN401
    """The samples by channel, with arrays where they can be stacked: a dictionary, a tuple, or one list."""
    columns = getattr(samples, "arrays", samples)
    if isinstance(columns, Mapping) or not isinstance(columns, Sequence) or not len(columns):
        return columns
    kinds = {type(sample) for sample in columns}
    if all(issubclass(kind, Mapping) for kind in kinds):
        return stacked(columns)
    if kinds == {tuple} and len({len(sample) for sample in columns}) == 1:
        named = [dict(enumerate(sample)) for sample in columns]
        return tuple(stacked(named).values())  # type: ignore[arg-type]  # numbers for names
    return stacked([{"": sample} for sample in columns])[""]


def in_worker() -> bool:
    """Whether this process gives its batches to another one, in memory that both can share."""
    return os.name == "posix" and torch.utils.data.get_worker_info() is not None


class _Part(ABC):
    """Something that takes memory in a batch."""

    nbytes: int

    @abstractmethod
    def alone(self) -> Any:  # noqa: ANN401 - what it is in a batch
        """As it is in a batch, in memory of its own."""

    @abstractmethod
    def within(self, room: NDArray[np.uint8]) -> Any:  # noqa: ANN401
        """The same, in memory of `nbytes`."""


class _ArrayPart(_Part):
    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        self.nbytes = self._array.nbytes

    def alone(self) -> torch.Tensor:
        return tensor_of(self._array)

    def within(self, room: NDArray[np.uint8]) -> torch.Tensor:
        placed = room.view(self._array.dtype).reshape(self._array.shape)
        placed[...] = self._array
        return tensor_of(placed)


class _TensorPart(_Part):
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.nbytes = tensor.nbytes

    def alone(self) -> torch.Tensor:
        return self._tensor

    def within(self, room: NDArray[np.uint8]) -> torch.Tensor:
        placed = torch.from_numpy(room).view(self._tensor.dtype).view(self._tensor.shape)
        return placed.copy_(self._tensor)


class _BytesPart(_Part):
    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._offsets = offsets_of(values)
        self.nbytes = int(self._offsets[-1])

    def alone(self) -> ByteColumn:
        return ByteColumn.of(self._values, self._offsets)

    def within(self, room: NDArray[np.uint8]) -> ByteColumn:
        return ByteColumn.of(self._values, self._offsets, room)


class _Ragged(list[Any]):
    """A list with parts in it."""


def _assembled(columns: Mapping[Any, Any]) -> dict[Any, Any]:
    """The batch of these columns."""
    parts: list[_Part] = []
    prepared = {name: _prepared(column, parts) for name, column in columns.items()}
    if not in_worker():
        return {name: _finished(column, methodcaller("alone")) for name, column in prepared.items()}
    lease = pool().take(sum(rounded(part.nbytes) for part in parts))
    start = ALIGNMENT

    def placed(part: _Part) -> Any:  # noqa: ANN401
        nonlocal start
        begin, start = start, start + rounded(part.nbytes)
        # Empty tensors lie nowhere.
        return part.within(lease.room[begin : begin + part.nbytes]) if part.nbytes else part.alone()

    return SharedBatch(
        {name: _finished(column, placed) for name, column in prepared.items()}, lease
    )


def _prepared(column: Any, parts: list[_Part]) -> Any:  # noqa: ANN401
    """A column with parts in place of what takes memory."""
    part: _Part
    if isinstance(column, (np.ndarray, np.generic)):
        array = np.asarray(column)
        if not is_numeric(array.dtype):
            return array.tolist()
        part = _ArrayPart(array)
    elif isinstance(column, torch.Tensor):
        part = _TensorPart(column)
    elif type(column) is list and column:
        kinds = set(map(type, column))
        if kinds <= _BYTES:
            part = _BytesPart(column)
        elif kinds == {torch.Tensor} and _are_alike(column):
            part = _TensorPart(torch.stack(column))
        elif any(issubclass(kind, _IN_LISTS) for kind in kinds):
            return _Ragged(_prepared(value, parts) for value in column)
        else:
            return column
    elif type(column) is tuple:
        return tuple(_prepared(value, parts) for value in column)
    else:
        return column
    parts.append(part)
    return part


def _are_alike(tensors: list[torch.Tensor]) -> bool:
    """Whether they can be stacked."""
    return len({(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors}) == 1


def _finished(column: Any, place: Callable[[_Part], Any]) -> Any:  # noqa: ANN401
    """The column with what `place` makes of its parts."""
    if isinstance(column, _Part):
        return place(column)
    if type(column) is _Ragged:
        return [_finished(value, place) for value in column]
    if type(column) is tuple:
        return tuple(_finished(value, place) for value in column)
    return column
