"""Things that are costly to make and serve one user at a time, kept for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Spares"]

Thing = TypeVar("Thing")


class Spares(Generic[Thing]):
    """A few things that nobody uses at the moment.

    Not one for each thread: threads come and go with every call, and a generator that is suspended keeps
    what it uses while its thread does something else. Single operations on a list need no lock, which a forked
    child might find held forever.

    Args:
        make: makes a new one.
        most: how many are kept.
    """

    __slots__ = ("_kept", "_make", "_most")

    def __init__(self, make: Callable[[], Thing], most: int) -> None:
        self._make = make
        self._most = most
        self._kept: list[Thing] = []

    def take(self) -> Thing:
        """One that is nobody else's until it is given back; it may also be dropped."""
        try:
            return self._kept.pop()
        except IndexError:
            return self._make()

    def give_back(self, thing: Thing) -> None:
        """Keeps it for the next one."""
        if len(self._kept) < self._most:
            self._kept.append(thing)
