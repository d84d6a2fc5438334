"""What is known about every episode of a dataset, in columns: where it is, how long it is, what its metadata says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from shard_format.canonical_json import parse_object
from shard_format.errors import BadMetadata, ShardError
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = [
    "CHUNK",
    "NO_PACK",
    "PACK",
    "ROW",
    "UNREADABLE",
    "Catalogue",
    "EpisodeInfo",
    "EpisodeLocations",
    "StringTable",
    "parse_facts",
]

NO_PACK: Final = -1
"""The pack number of an episode that is a file of its own."""
CHUNK: Final = -1
"""The length of a file that is one chunk of another episode."""
UNREADABLE: Final = -2
"""The length of a file that cannot be opened."""

ROW: Final = np.dtype(
    [
        ("length", "<i8"),  # steps; CHUNK or UNREADABLE for a file that is not an episode
        (
            "observed",
            "<i8",
        ),  # entries of the shortest observation: length + 1 if the last one is there
        ("size", "<i8"),  # bytes
        ("mtime_ns", "<i8"),  # when the file, or a sidecar of it, changed; -1 inside a pack
        ("pack", "<i8"),  # the number of its pack, or NO_PACK
        ("record", "<i8"),  # the number of its record in the pack
        ("return", "<f8"),  # the sum of its rewards; NaN if it has none
        ("form", "<i8"),  # the number of its form: which channels it has
    ]
)
PACK: Final = np.dtype([("size", "<i8"), ("mtime_ns", "<i8")])


class StringTable:
    """Many short strings in one `bytes` object, each followed by a zero byte."""

    __slots__ = ("blob", "offsets")

    def __init__(self, blob: bytes, offsets: NDArray[np.int64] | None = None) -> None:
        self.blob = blob
        if offsets is None:
            ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == 0) + 1
            offsets = np.concatenate(([0], ends)).astype(np.int64)
        self.offsets = offsets

    @classmethod
    def of(cls, strings: Iterable[str]) -> StringTable:
        """Pack strings into a table."""
        return cls(b"".join(os.fsencode(string) + b"\0" for string in strings))

    @classmethod
    def join(cls, parts: Sequence[StringTable]) -> StringTable:
        """Concatenate tables."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part.blob) for part in parts)])
        offsets = [
            part.offsets[:-1] + start for part, start in zip(parts, starts[:-1], strict=True)
        ]
        return cls(b"".join(part.blob for part in parts), np.concatenate([*offsets, starts[-1:]]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> str:
        start, stop = self.offsets[number : number + 2].tolist()
        return os.fsdecode(self.blob[start : stop - 1])

    def select(self, rows: NDArray[np.int64]) -> StringTable:
        """Return a table of some rows."""
        starts, stops = self.offsets[rows], self.offsets[rows + 1]
        sizes = stops - starts
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        # For each byte of the result, its position in the old blob.
        positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        return StringTable(np.frombuffer(self.blob, np.uint8)[positions].tobytes(), offsets)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeLocations(Sequence[str]):
    """Where each episode is: a file of its own, or an entry of a pack. As a sequence, the path of each."""

    base: str
    """The folder that relative names start from."""
    names: StringTable
    """File names; in a pack a record's key, a dot and the entry's name, which is the file `shardpack.unpack` writes."""
    packs: StringTable
    """File names of the packs."""
    pack_of: NDArray[np.int64]
    """The number of each episode's pack, or `NO_PACK`."""
    records: NDArray[np.int64]
    """The number of each episode's record in its pack."""

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> list[str]: ...

    def __getitem__(self, number: int | slice) -> str | list[str]:
        count = len(self.names)
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(count))]
        row = number + count if number < 0 else number
        if not 0 <= row < count:
            raise IndexError(f"file {number} of {count}")
        pack, name = int(self.pack_of[row]), self.names[row]
        if pack == NO_PACK:
            return self._full(name)
        return f"{self.pack_path(pack)}/{name}" if name else self.pack_path(pack)

    def pack_path(self, pack: int) -> str:
        """Return the path of a pack."""
        return self._full(self.packs[pack])

    def _full(self, name: str) -> str:
        return name if is_url(name) else os.path.join(self.base, name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (EpisodeLocations, list, tuple)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment] # equal to lists, which have none

    def __repr__(self) -> str:
        return f"<{len(self)} paths below {self.base!r}>"


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """What is known about an episode without opening it."""

    path: str
    """Its file; in a pack the pack, a slash and the file name it had."""
    id: str
    env_id: str
    length: int
    """Steps."""
    metadata: dict[str, Any]
    """The episode's metadata, edits by `wshard.edit` included."""
    return_: float | None = None
    """The sum of its rewards; None if it has none, or they cannot be read or are not finite."""

    @property
    def success(self) -> bool | None:
        """What `success`, or else `is_success`, of the metadata says; None if neither is true or false."""
        for key in ("success", "is_success"):
            value = self.metadata.get(key)
            if isinstance(value, (bool, int, float)) and value in (0, 1):
                return bool(value)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """One row for each file that was found, and for each episode in a pack."""

    base: str
    """The folder that names start from."""
    names: StringTable
    rows: NDArray[Any]
    """A structured array of `ROW`."""
    packs: StringTable
    pack_rows: NDArray[Any]
    """A structured array of `PACK`."""
    facts: StringTable
    """For each row a line of JSON: id, env_id, metadata, and the names of the chunks of a manifest."""
    forms: StringTable
    """Each form that an episode has once, as a line of JSON; see `describe_form`."""
    folders: dict[str, int]
    """When each searched folder changed, by name; empty if no folder was searched."""

    @property
    def locations(self) -> EpisodeLocations:
        """Where each row is."""
        return EpisodeLocations(
            self.base, self.names, self.packs, self.rows["pack"], self.rows["record"]
        )

    def select(self, rows: NDArray[np.int64]) -> Catalogue:
        """Return some rows, of the same packs."""
        if len(rows) == len(self.rows):
            return self
        return replace(
            self,
            names=self.names.select(rows),
            rows=self.rows[rows],
            facts=self.facts.select(rows),
        )

    def facts_of(self, row: int) -> EpisodeInfo:
        """Return what is known about an episode.

        Raises:
            BadMetadata: the index that this catalogue was read from is damaged.
        """
        known = parse_facts(self.facts[row])
        path = self.locations[row]
        id, env_id, metadata = (known.get(field) for field in ("id", "env_id", "metadata"))
        if not (isinstance(id, str) and isinstance(env_id, str) and isinstance(metadata, dict)):
            raise BadMetadata(
                "the saved index has no readable facts about this episode",
                path=path,
                hint="delete the index; it is made again when you open the dataset",
            )
        total = float(self.rows["return"][row])
        length = int(self.rows["length"][row])
        return EpisodeInfo(path, id, env_id, length, metadata, total if isfinite(total) else None)

    def of_pack(self, pack: int, base: str, name: str) -> Catalogue:
        """Return the rows of one pack, under the name that it has in the folder `base`."""
        rows = np.flatnonzero(self.rows["pack"] == pack)
        part = self.select(rows)
        renumbered = part.rows.copy()
        renumbered["pack"] = 0
        return replace(
            part,
            base=base,
            rows=renumbered,
            packs=StringTable.of([name]),
            pack_rows=self.pack_rows[pack : pack + 1],
            folders={},
        )

    @classmethod
    def join(cls, base: str, parts: Sequence[Catalogue], folders: dict[str, int]) -> Catalogue:
        """Concatenate catalogues whose names start from the same folder."""
        shifted, packs = [], 0
        forms: dict[str, int] = {}
        for part in parts:
            rows = part.rows.copy()
            rows["pack"][rows["pack"] != NO_PACK] += packs
            packs += len(part.packs)
            own = [forms.setdefault(part.forms[at], len(forms)) for at in range(len(part.forms))]
            rows["form"] = np.array(own, np.int64)[rows["form"]]
            shifted.append(rows)
        return cls(
            base,
            StringTable.join([part.names for part in parts]),
            np.concatenate(shifted),
            StringTable.join([part.packs for part in parts]),
            np.concatenate([part.pack_rows for part in parts]),
            StringTable.join([part.facts for part in parts]),
            StringTable.of(forms),
            folders,
        )


def parse_facts(line: str) -> dict[str, Any]:
    """Parse a line of facts; empty if it is not one, which only happens in a damaged index."""
    try:
        return parse_object(line.encode(), "the line of facts", DEFAULT_LIMITS)
    except ShardError:
        return {}
