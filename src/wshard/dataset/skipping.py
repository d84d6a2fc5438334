"""Counting what could not be read and was left out on request."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format.errors import ShardError

__all__ = ["Skipped"]

_log = logging.getLogger("wshard")


class Skipped(Mapping[str, int]):
    """How many windows could not be read, by file; 0 for a file that was left out as a whole.

    Each file is reported once, to the logger `wshard`. Every process counts for itself.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._process, self._lock = os.getpid(), threading.Lock()

    @property
    def windows(self) -> int:
        """Of all files."""
        return sum(self._counts.values())

    def add(self, path: str, error: ShardError, windows: int) -> None:
        """Counts a failure."""
        if self._process != os.getpid():
            # Forked: the lock may have been held by a thread that is not here.
            self._process, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            is_new = path not in self._counts
            self._counts[path] = self._counts.get(path, 0) + windows
        if is_new:
            what = "a window was" if windows else "the file is"
            _log.warning("%s: %s left out: %s", path, what, error)

    def __getitem__(self, path: str) -> int:
        return self._counts[path]

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._counts))

    def __repr__(self) -> str:
        return f"<Skipped: {self._counts}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_skipped, (dict(self._counts),))


def _skipped(counts: dict[str, int]) -> Skipped:
    skipped = Skipped()
    skipped._counts.update(counts)
    return skipped
