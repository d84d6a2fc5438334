"""Labelled intervals: what happened from when to when, and who labelled it (spec/wshard.md, section 7)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, overload

from shard_format.errors import BadMetadata, InvalidArgument
from wshard._metadata import LARGEST, is_number, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Interval", "Intervals"]

UNITS = ("steps", "ns")
_UNKNOWN_UNIT = "the unit of intervals is neither 'steps' nor 'ns'"
_KNOWN = frozenset({"start", "end", "text", "source", "confidence"})


@dataclass(frozen=True)
class Interval:
    """A label from `start` up to, but not including, `end`."""

    start: int
    """First step, or nanosecond."""
    end: int
    """End: the first step, or nanosecond, that is not part of it."""
    text: str
    """What it says."""
    source: str = ""
    """Who or what made the label."""
    confidence: float | None = None
    """How sure, where known."""
    extra: Mapping[str, Any] | None = None
    """Any other fields; they are kept."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", operator.index(self.start))
        object.__setattr__(self, "end", operator.index(self.end))
        if not -LARGEST <= self.start <= self.end <= LARGEST:
            raise InvalidArgument(
                "an interval ends before it starts, or is outside 64 bits",
                expected="start <= end",
                found=f"start {self.start}, end {self.end}",
                rule="W-LAB-1",
            )
        if not all(isinstance(text, str) for text in (self.text, self.source)):
            raise InvalidArgument("text and source of an interval are strings", rule="W-LAB-1")

    def to_fields(self) -> dict[str, Any]:
        """As JSON has it."""
        fields: dict[str, Any] = {**(self.extra or {}), "start": self.start, "end": self.end}
        fields["text"] = self.text
        if self.source:
            fields["source"] = self.source
        if self.confidence is not None:
            fields["confidence"] = self.confidence
        return fields


class Intervals(MutableSequence[Interval]):
    """The intervals of one label lane, in order.

    Args:
        items: intervals, or tuples `(start, end, text[, source[, confidence]])`.
        unit: whether `start` and `end` count `"steps"` or `"ns"`.
        extra: any other fields of the lane; they are kept.
        read: instead of the other arguments, a function that returns the intervals of a file, called on first use.
    """

    def __init__(
        self,
        items: Iterable[Interval | tuple[Any, ...]] = (),
        *,
        unit: str = "steps",
        extra: Mapping[str, Any] | None = None,
        read: Callable[[], Intervals] | None = None,
    ) -> None:
        if unit not in UNITS:
            raise InvalidArgument(_UNKNOWN_UNIT, found=repr(unit), rule="W-LAB-2")
        self._unit, self._extra, self._read = unit, dict(extra or {}), read
        self._loaded = [_as_interval(item) for item in items]

    def _ready(self) -> None:
        if self._read is not None:
            found = self._read()
            self._unit, self._extra, self._loaded = found.unit, found.extra, list(found)
            self._read = None

    @property
    def unit(self) -> str:
        """What `start` and `end` count: `"steps"` or `"ns"`."""
        self._ready()
        return self._unit

    @property
    def extra(self) -> dict[str, Any]:
        """Any other fields of the lane; they are kept."""
        self._ready()
        return self._extra

    @property
    def _items(self) -> list[Interval]:
        self._ready()
        return self._loaded

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Intervals:
        """From the JSON object of a `label/` entry."""
        rows, unit = fields.get("intervals"), fields.get("unit", "steps")
        if not isinstance(rows, list):
            raise BadMetadata("'intervals' is not a list", rule="W-LAB-1")
        if unit not in UNITS:
            raise BadMetadata(_UNKNOWN_UNIT, found=repr(unit), rule="W-LAB-2")
        extra = {key: value for key, value in fields.items() if key not in ("intervals", "unit")}
        return cls(map(_from_row, count(), rows), unit=unit, extra=extra)

    def to_fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            **self.extra,
            "intervals": [item.to_fields() for item in self._items],
            "unit": self.unit,
        }

    def at(self, position: int) -> list[Interval]:
        """The intervals that contain a step, or a nanosecond."""
        return [item for item in self._items if item.start <= position < item.end]

    @overload
    def __getitem__(self, index: int) -> Interval: ...
    @overload
    def __getitem__(self, index: slice) -> Intervals: ...
    def __getitem__(self, index: int | slice) -> Interval | Intervals:
        if isinstance(index, slice):
            return Intervals(self._items[index], unit=self.unit, extra=self.extra)
        return self._items[index]

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401 - one or many
        if isinstance(index, slice):
            self._items[index] = [_as_interval(item) for item in value]
        else:
            self._items[index] = _as_interval(value)

    def __delitem__(self, index: int | slice) -> None:
        del self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, index: int, value: Interval | tuple[Any, ...]) -> None:
        """Puts an interval before position `index`."""
        self._items.insert(index, _as_interval(value))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Intervals):
            return self.unit == other.unit and self._items == list(other)
        return isinstance(other, list) and self._items == other

    __hash__ = None  # type: ignore[assignment] # mutable

    def __repr__(self) -> str:
        return f"Intervals({self._items!r}, unit={self.unit!r})"


def as_intervals(value: Any, name: str) -> Intervals:  # noqa: ANN401 - whatever a user has
    """Intervals of what a user assigns to the label `name`."""
    try:
        return value if isinstance(value, Intervals) else Intervals(value)
    except InvalidArgument as error:
        raise error.located(entry=f"label/{name}") from None


def _as_interval(item: Any) -> Interval:  # noqa: ANN401 - checked here
    if isinstance(item, Interval):
        return item
    if isinstance(item, tuple) and 3 <= len(item) <= 5:
        return Interval(*item)
    raise InvalidArgument(
        "not an interval",
        expected="Interval(start, end, text) or a tuple like it",
        found=repr(item),
    )


def _from_row(number: int, row: object) -> Interval:
    if not isinstance(row, dict):
        raise BadMetadata(f"interval {number} is not an object", rule="W-LAB-1")
    for key in ("start", "end"):
        value = row.get(key)
        if type(value) is not int or not -LARGEST <= value <= LARGEST:
            raise wrong(f"{key!r} of interval {number}", value, "an integer", "W-LAB-1")
    for key in ("text", "source"):
        value = row.get(key, "" if key == "source" else None)
        if not isinstance(value, str):
            raise wrong(f"{key!r} of interval {number}", value, "a string", "W-LAB-1")
    sure = row.get("confidence")
    if sure is not None and not is_number(sure):
        raise wrong(f"'confidence' of interval {number}", sure, "a number", "W-LAB-1")
    extra = {key: value for key, value in row.items() if key not in _KNOWN}
    try:
        source = row.get("source", "")
        return Interval(row["start"], row["end"], row["text"], source, sure, extra or None)
    except InvalidArgument as error:
        raise BadMetadata(
            f"interval {number}: {error.problem}", found=error.found, rule="W-LAB-1"
        ) from None
