"""What a file will hold: every entry with its name, bytes and place (spec/wshard.md, section 15)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._json import canonical
from shard_format.errors import InvalidArgument, ShardError
from shard_format.registry import ContentType
from wshard.dtypes import DType
from wshard.names import (
    DONE,
    META_CHANNELS,
    META_EPISODE,
    META_PROVENANCE,
    META_WSHARD,
    REWARD,
    REWARD_EXACT,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from shard_format import ShardReader
    from wshard.blocks import StoredBlock
    from wshard.origin import Origin

__all__ = ["Plan", "PlannedEntries", "PlannedEntry"]

_ORDER: Final = (
    *(META_WSHARD, META_EPISODE, META_CHANNELS, "signal/", "action/", REWARD, REWARD_EXACT, DONE),
    *(
        TERMINATED,
        TRUNCATED,
        TICKS,
        TIMESTAMPS,
        "time/",
        "offsets/",
        "omen/",
        "uncert/",
        "residual/",
    ),
    *("label/", "", "meta/", META_PROVENANCE),
)


@dataclass(slots=True)
class PlannedEntry:
    """One entry of the file to be."""

    name: str
    read: Callable[[], NDArray[Any] | bytes]
    """Gives its bytes; called when they are written."""
    nbytes: int
    dtype: DType = DType.UINT8
    step_bytes: int = 1
    """Frames of a compressed block hold whole steps of this size; items of a ragged one."""
    items_per_step: int = 1
    """How many items a step of a ragged block has, on average."""
    content_type: int = 0
    tag_bits: int = 0
    is_array: bool = True
    """False for JSON and for entries that the format does not define."""
    stored: StoredBlock | None = None
    """The entry of a file that holds exactly this, so that it can be copied as it is stored."""

    def flat(self) -> NDArray[np.uint8]:
        """Its bytes, read now."""
        data = self.read()
        if isinstance(data, bytes):
            return np.frombuffer(data, np.uint8)
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


@dataclass(slots=True)
class Plan:
    """All entries, in the order in which they are written."""

    entries: list[PlannedEntry] = field(default_factory=list)


class PlannedEntries:
    """The entries of a file to be, as they come, and in the order in which they are written.

    Args:
        origin: the file that the episode was loaded from, whose order is kept.
    """

    def __init__(self, origin: Origin | None) -> None:
        self._origin = origin
        self._entries: dict[str, PlannedEntry] = {}

    def sizes(self) -> dict[str, int]:
        """Uncompressed bytes of each."""
        return {name: entry.nbytes for name, entry in self._entries.items()}

    def add_missing(self, entry: PlannedEntry) -> None:
        """Adds an entry unless there is one of its name."""
        self._entries.setdefault(entry.name, entry)

    def add(self, entry: PlannedEntry) -> None:
        """Adds an entry, whose name must be new."""
        if entry.name in self._entries:
            raise InvalidArgument("two lanes give a block of the same name", entry=entry.name)
        self._entries[entry.name] = entry

    def add_array(self, name: str, array: NDArray[Any], dtype: DType) -> None:
        """Adds an array in the stored form of its type."""
        stored = array.astype(dtype.numpy_dtype, copy=False)
        step = stored.nbytes // len(stored) if len(stored) else dtype.size
        self.add(PlannedEntry(name, lambda: stored, stored.nbytes, dtype, max(1, step)))

    def add_json(self, name: str, fields: Mapping[str, Any]) -> None:
        """Adds an object as canonical JSON."""
        try:
            text = canonical(fields)
        except ShardError as error:
            raise error.located(entry=name) from None
        self.add(
            PlannedEntry(
                name, lambda: text, len(text), content_type=ContentType.JSON, is_array=False
            )
        )

    def in_order(self) -> list[PlannedEntry]:
        """All of them: in the order of the origin, then by lanes and names."""
        places = {prefix: number for number, prefix in enumerate(_ORDER)}

        def place(name: str) -> tuple[int, bytes]:
            number = places.get(name)
            if number is None:
                lane = name.partition("/")[0] + "/"
                number = places.get(lane, places[""])
            return number, name.encode()

        names = sorted(self._entries, key=place)
        if self._origin is not None:
            for name in self._origin.reader.names():
                if name in self._entries and self._entries[name].is_array:
                    info = self._origin.reader.info(name)
                    entry = self._entries[name]
                    entry.content_type, entry.tag_bits = info.content_type, info.tag_bits
            before = [name for name in self._origin.reader.names() if name in self._entries]
            known = set(before)
            last = [META_PROVENANCE] if before[-1:] == [META_PROVENANCE] else []
            added = [name for name in names if name not in known]
            names = [*before[: len(before) - len(last)], *added, *last]
        return [self._entries[name] for name in names]

    def add_text(self, name: str, reader: ShardReader) -> None:
        """A description as its file has it, to the last space."""
        text = reader.read_entry(name)
        content_type = reader.info(name).content_type
        self.add(
            PlannedEntry(name, lambda: text, len(text), content_type=content_type, is_array=False)
        )
