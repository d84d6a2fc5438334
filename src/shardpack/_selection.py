"""Which entries of a record a sample has: all, or those of some names and patterns."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Chosen", "Selection", "is_pattern"]

# A data set whose records all differ must not fill the memory.
_MOST_KNOWN: Final = 256


class Chosen(NamedTuple):
    """What a selection takes of a record."""

    names: tuple[str, ...]
    """Entries that are there, in the order asked for."""
    absent: tuple[str, ...]
    """Names and patterns for which there is none."""


def is_pattern(text: str) -> bool:
    """Whether `*`, `?` or `[` stand for something else."""
    return any(sign in text for sign in "*?[")


class Selection:
    """Entries by name, or by patterns such as `"*.jpg"`.

    Args:
        entries: names and patterns; None for all entries.

    Raises:
        InvalidArgument: they are no list of texts, or none.
    """

    def __init__(self, entries: Iterable[str] | None) -> None:
        if isinstance(entries, (str, bytes)):
            raise InvalidArgument("entries takes a list of names", hint=f"entries=[{entries!r}]")
        self.entries = None if entries is None else tuple(entries)
        for entry in self.entries or ():
            if not isinstance(entry, str):
                raise InvalidArgument(
                    "entries are chosen by their names", found=type(entry).__name__
                )
        if self.entries == ():
            raise InvalidArgument(
                "no entry is chosen", found="an empty list", hint="entries=None takes all"
            )
        self._known: dict[tuple[str, ...], Chosen] = {}

    def of(self, names: tuple[str, ...]) -> Chosen:
        """What it takes of a record whose entries have these names."""
        if self.entries is None:
            return Chosen(names, ())
        chosen = self._known.get(names)
        if chosen is None:
            chosen = _choose(self.entries, names)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[names] = chosen
        return chosen

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}


def _choose(entries: tuple[str, ...], names: tuple[str, ...]) -> Chosen:
    found: dict[str, None] = {}
    absent: list[str] = []
    for entry in entries:
        # An entry may be called like a pattern.
        fitting = (
            [entry]
            if entry in names
            else [name for name in names if is_pattern(entry) and fnmatchcase(name, entry)]
        )
        found.update(dict.fromkeys(fitting))
        if not fitting:
            absent.append(entry)
    return Chosen(tuple(found), tuple(absent))
