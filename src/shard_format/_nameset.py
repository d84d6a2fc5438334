"""Which names a writer has seen, in eight bytes a name."""

from __future__ import annotations

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

    def add(self, name: bytes, names_with_hash: Callable[[int], Iterable[bytes]]) -> bool:
        """Adds a name; False if it was there.

        `names_with_hash` is asked for the names behind a hash that comes a second time: hashes collide.
        """
        name_hash = xxh64_intdigest(name)
        if self._contains(name_hash) and name in names_with_hash(name_hash):
            return False
        self._recent.add(name_hash)
        if len(self._recent) >= _RECENT:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._older = np.concatenate((self._older, recent))
            self._older.sort()
            self._recent.clear()
        return True

    def _contains(self, name_hash: int) -> bool:
        if name_hash in self._recent:
            return True
        if not self._older.size:
            return False
        at = int(self._older.searchsorted(np.uint64(name_hash)))
        return at < self._older.size and int(self._older[at]) == name_hash
