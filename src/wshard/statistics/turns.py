"""Threads that finish in the order in which they began."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shard_format._parallel import for_each

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Result = TypeVar("Result")

__all__ = ["in_turn"]


class _GaveUp(Exception):
    """Somebody before this one has failed, so that its turn never comes."""


class _Turns:
    """Whose turn it is: number after number, until one fails."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._next = 0
        self._is_over = False
        self._changed = threading.Condition()

    def wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._next == number)
            if self._is_over:
                raise _GaveUp

    def end(self, number: int) -> None:
        with self._changed:
            self._next = number + 1
            self._changed.notify_all()

    def give_up(self, failure: BaseException | None = None) -> None:
        with self._changed:
            self.failure = self.failure or failure
            self._is_over = True
            self._changed.notify_all()


def in_turn(
    count: int,
    work: Callable[[int], Result],
    take: Callable[[Result], None],
    threads: int,
) -> None:
    """Calls `take(work(number))` for each number from 0 on: `work` in threads, `take` one after the other in order.

    No thread begins with the next number before its result is taken, so there are never more results than threads.
    The first error stops the rest and is raised.
    """
    turns = _Turns()

    def do(number: int) -> None:
        try:
            result = work(number)
            turns.wait(number)
            take(result)
            turns.end(number)
        except _GaveUp:
            raise
        except BaseException as error:
            turns.give_up(error)
            raise

    try:
        for_each(range(count), do, min(threads, count))
    except _GaveUp:
        # Those who wait may be heard before the one who failed.
        assert turns.failure is not None
        raise turns.failure from None
    finally:
        # Also if this thread was interrupted while it did no work.
        turns.give_up()
