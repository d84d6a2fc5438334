"""Episodes that stay open for a while: at most so many, the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OpenFiles"]

Opened = TypeVar("Opened")


class OpenFiles(Generic[Opened]):
    """What was opened, by number.

    There is no lock, which a forked child might find held forever: single operations on the dictionary
    are enough. Two threads may open the same file; one of the two stays. What goes is dropped, not closed:
    another thread may be reading from it, and the last one that does closes it.

    Args:
        open_one: opens the file of a number.
        most: how many stay open.
    """

    def __init__(self, open_one: Callable[[int], Opened], most: int) -> None:
        self._open_one = open_one
        self._most = most
        self._opened: OrderedDict[int, Opened] = OrderedDict()

    def __getitem__(self, number: int) -> Opened:
        opened = self._opened
        found = opened.get(number)
        if found is not None:
            with suppress(KeyError):  # dropped by another thread meanwhile
                opened.move_to_end(number)
            return found
        found = opened.setdefault(number, self._open_one(number))
        while len(opened) > self._most:
            with suppress(KeyError):
                opened.popitem(last=False)
        return found

    def __len__(self) -> int:
        return len(self._opened)

    def clear(self) -> None:
        """Drops all."""
        self._opened.clear()
