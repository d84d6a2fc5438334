"""Many names in one piece of memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from shard_format.sources import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["Names", "Paths"]


class Names:
    """Names one after the other, each with a zero byte behind it, which no name of a file can hold.

    Args:
        blob: the bytes.
        offsets: where each begins, and the end; found out if left out.
    """

    __slots__ = ("blob", "offsets")

    def __init__(self, blob: bytes, offsets: NDArray[np.int64] | None = None) -> None:
        self.blob = blob
        if offsets is None:
            ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == 0) + 1
            offsets = np.concatenate(([0], ends)).astype(np.int64)
        self.offsets = offsets

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Of single names."""
        return cls(b"".join(os.fsencode(name) + b"\0" for name in names))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> str:
        start, stop = self.offsets[number : number + 2].tolist()
        return os.fsdecode(self.blob[start : stop - 1])

    def select(self, rows: NDArray[np.int64]) -> Names:
        """Those of some rows."""
        starts, stops = self.offsets[rows], self.offsets[rows + 1]
        sizes = stops - starts
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        # For each byte of the result its place in the old one.
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        blob = np.frombuffer(self.blob, np.uint8)[places].tobytes()
        return Names(blob, offsets)


class Paths(Sequence[str]):
    """The paths of files, each made when it is asked for.

    Args:
        base: the folder that relative names start from.
        names: the names.
    """

    __slots__ = ("_base", "_names")

    def __init__(self, base: str, names: Names) -> None:
        self._base = base
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> list[str]: ...

    def __getitem__(self, number: int | slice) -> str | list[str]:
        count = len(self._names)
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(count))]
        place = number + count if number < 0 else number
        if not 0 <= place < count:
            raise IndexError(f"file {number} of {count}")
        name = self._names[place]
        return name if is_url(name) else os.path.join(self._base, name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Paths, list, tuple)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment] # equal to lists, which have none

    def __repr__(self) -> str:
        return f"<{len(self)} paths below {self._base!r}>"
