"""Which names a writer has seen, in eight bytes a name."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh64_intdigest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

_RECENT = 1 << 16


class NameSet:
    """A set of name hashes: recent ones in a Python set, the others in one sorted array.

    A Python set of ten million hashes would take 700 MB; this takes 80.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._older: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._older_values: memoryview = self._older.data

    def add(self, name: bytes, names_with_hash: Callable[[int], Iterable[bytes]]) -> bool:
        """Adds a name; False if it was there.

        `names_with_hash` is asked for the names behind a hash that comes a second time: hashes collide.
        """
        name_hash = xxh64_intdigest(name)
        if self.contains_hash(name_hash) and name in names_with_hash(name_hash):
            return False
        self.add_hash(name_hash)
        return True

    def add_hash(self, name_hash: int) -> None:
        """Adds a name of which only the hash is known."""
        self._recent.add(name_hash)
        if len(self._recent) >= _RECENT:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._replace_older(recent)
            self._recent.clear()

    def add_hashes(self, hashes: NDArray[np.uint64]) -> None:
        """Adds many names at once, of which only the hashes are known."""
        self._replace_older(hashes)

    def contains_hash(self, name_hash: int) -> bool:
        """Whether a name with this hash was added."""
        if name_hash in self._recent:
            return True
        older = self._older_values
        # One at a time, this is faster than NumPy's search.
        at = bisect_left(older, name_hash)
        return at < len(older) and older[at] == name_hash

    def _replace_older(self, more: NDArray[np.uint64]) -> None:
        self._older = np.concatenate((self._older, more))
        self._older.sort()
        self._older_values = self._older.data
