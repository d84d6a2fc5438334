"""Many names, or other short texts, in one piece of memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["Names"]


class Names:
    """Names one after the other, each with a zero byte behind it, which no name can hold.

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

    @classmethod
    def join(cls, parts: Sequence[Names]) -> Names:
        """All names of several."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part.blob) for part in parts)])
        offsets = [
            part.offsets[:-1] + start for part, start in zip(parts, starts[:-1], strict=True)
        ]
        return cls(b"".join(part.blob for part in parts), np.concatenate([*offsets, starts[-1:]]))

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
