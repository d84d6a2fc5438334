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

__all__ = ["SkipCounter"]


class SkipCounter(Mapping[str, int]):
    """How many things could not be read, by file; 0 for a file that was left out as a whole.

    Each file is reported once. Every process counts for itself.

    Args:
        logger: the name of the logger that is told.
        thing: what is counted, as the message has it: `"window"`.
    """

    def __init__(self, logger: str, thing: str) -> None:
        self._logger, self._thing = logger, thing
        self._counts: dict[str, int] = {}
        self._process, self._lock = os.getpid(), threading.Lock()

    @property
    def total(self) -> int:
        """Of all files."""
        return sum(self._counts.values())

    def add(self, path: str, error: ShardError, count: int = 1) -> None:
        """Counts what could not be read of a file; 0 if nothing is lost by it."""
        self._add(path, error, count, f"a {self._thing} was")

    def leave_out(self, path: str, error: ShardError) -> None:
        """Notes a file that is left out as a whole."""
        self._add(path, error, 0, "the file is")

    def _add(self, path: str, error: ShardError, count: int, what: str) -> None:
        if self._process != os.getpid():
            # Forked: the lock may have been held by a thread that is not here.
            self._process, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            is_new = path not in self._counts
            self._counts[path] = self._counts.get(path, 0) + count
        if is_new:
            logging.getLogger(self._logger).warning("%s: %s left out: %s", path, what, error)

    def __getitem__(self, path: str) -> int:
        return self._counts[path]

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._counts))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._counts}>"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_logger": self._logger,
            "_thing": self._thing,
            "_counts": dict(self._counts),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._process, self._lock = os.getpid(), threading.Lock()
