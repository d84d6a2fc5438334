"""What is kept for the next user: values by key, and things that serve one user at a time."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shard_format.errors import InvalidArgument, is_shortage
from shard_format.sources import files_to_keep

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["BoundedCache", "Pool", "open_with_room"]

Key = TypeVar("Key", bound="Hashable")
Value = TypeVar("Value")


def open_with_room(open_one: Callable[[], Value], make_room: Callable[[], None]) -> Value:
    """What `open_one` returns; if the process lacks descriptors or memory, it is called again after `make_room`.

    `files_to_keep` does not see the descriptors of others that have higher numbers than the newest one.
    """
    try:
        return open_one()
    except (OSError, MemoryError) as error:
        if not is_shortage(error):
            raise
    make_room()
    return open_one()


class BoundedCache(Generic[Key, Value]):
    """Keeps the `count` values that were used last.

    Threads may share a cache. A forked process gets its own copy, and a pickled cache arrives empty.

    For open files, leave `on_evict` out if a file closes itself when it is dropped (as `ShardReader` does): then
    a file that is still in use stays open until its users release it.

    Args:
        count: keep at most this many values.
        on_evict: called with each value that leaves the cache, outside the lock.
        holds_files: whether values hold open files, so that fewer are kept while the process is short of them.
    """

    def __init__(
        self,
        *,
        count: int,
        on_evict: Callable[[Value], None] | None = None,
        holds_files: bool = False,
    ) -> None:
        if count < 0:
            raise InvalidArgument("count must not be negative", found=count)
        self._count, self._on_evict, self._holds_files = count, on_evict, holds_files
        self._items: OrderedDict[Key, Value] = OrderedDict()
        self._lock, self._process = threading.Lock(), os.getpid()

    def _held(self) -> threading.Lock:
        """The lock. A forked process makes a new one: another thread of the parent may have held the old one."""
        if self._process != os.getpid():
            self._lock, self._process = threading.Lock(), os.getpid()
        return self._lock

    def get(self, key: Key) -> Value | None:
        """The value of a key, which then counts as used; None if the key is not there."""
        with self._held():
            if key not in self._items:
                return None
            self._items.move_to_end(key)
            return self._items[key]

    def put(self, key: Key, value: Value) -> None:
        """Keeps a value."""
        with self._held():
            leaving = self._insert(key, value)
        self._dismiss(leaving)

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key; `make` makes it if it is not there.

        Two threads may make the same value at once: both get the one that was finished first.
        """
        with self._held():
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        value = open_with_room(make, self.clear) if self._holds_files else make()
        with self._held():
            if key in self._items:
                leaving, value = [value], self._items[key]
            else:
                leaving = self._insert(key, value)
        self._dismiss(leaving)
        return value

    def pop(self, key: Key) -> Value | None:
        """Takes a value out without calling `on_evict`; None if it is not there."""
        with self._held():
            return self._items.pop(key, None)

    def known(self) -> list[Key]:
        """The keys that are there now."""
        with self._held():
            return list(self._items)

    def clear(self) -> None:
        """Evicts everything."""
        with self._held():
            leaving = list(self._items.values())
            self._items.clear()
        self._dismiss(leaving)

    def _insert(self, key: Key, value: Value) -> list[Value]:
        """Returns what leaves for it."""
        old = self._items.pop(key, value)
        leaving = [] if old is value else [old]
        self._items[key] = value
        most = self._count
        if self._holds_files:
            most = files_to_keep(len(self._items), most)
        while len(self._items) > most:
            leaving.append(self._items.popitem(last=False)[1])
        return leaving

    def _dismiss(self, leaving: list[Value]) -> None:
        if self._on_evict is not None:
            for value in leaving:
                self._on_evict(value)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty_cache, (self._count, self._on_evict, self._holds_files)


def _empty_cache(
    count: int, on_evict: Callable[[Value], None] | None, holds_files: bool
) -> BoundedCache[Hashable, Value]:
    return BoundedCache(count=count, on_evict=on_evict, holds_files=holds_files)


class Pool(Generic[Value]):
    """Lends things out that are costly to make, and keeps a few of those that came back for the next user.

    Threads and forked processes may share a pool, and a pickled pool arrives empty. It has no lock, which a fork could leave held: single
    operations on a list are atomic.

    Args:
        make: makes a new thing when none is left.
        keep: how many to keep.
    """

    __slots__ = ("_keep", "_kept", "_make")

    def __init__(self, make: Callable[[], Value], keep: int) -> None:
        self._make = make
        self._keep = keep
        self._kept: list[Value] = []

    def take(self) -> Value:
        """A thing that is yours until you give it back. You may also drop it."""
        try:
            return self._kept.pop()
        except IndexError:
            return self._make()

    def give_back(self, thing: Value) -> None:
        """Keeps the thing for the next user."""
        if len(self._kept) < self._keep:
            self._kept.append(thing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Pool, (self._make, self._keep)
