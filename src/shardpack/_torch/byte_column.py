"""Bytes of many samples in one piece of memory: files as they are stored, such as JPEG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from shard_format._extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import NDArray
else:
    torch = require("torch", "torch")

__all__ = ["ByteColumn"]


class ByteColumn(Sequence[bytes]):
    """The bytes of each sample of a batch, as a sequence of `bytes` that are cut out when asked for.

    Without a copy, `tensor(number)` gives them as uint8, as image decoders of torch want them, and
    `view(number)` as a memoryview.

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
        """Puts bytes one after the other.

        Args:
            values: the bytes.
            offsets: those of `offsets_of(values)`, if they are known already.
            room: where they go; new memory if left out.
        """
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
