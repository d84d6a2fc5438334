"""What is known about each episode of a data set, so that a window is found without opening any other."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadMetadata
from wshard.dataset.names import Names
from wshard.dataset.places import NO_PACK, Places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wshard.dataset.places import Paths

__all__ = ["CHUNK", "UNREADABLE", "Catalogue", "parse_line"]

CHUNK: Final = -1
"""The length of a file that is part of another one's episode."""
UNREADABLE: Final = -2
"""The length of what cannot be opened."""


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """One row for each episode, and for each file that is none, in columns."""

    places: Places
    lengths: NDArray[np.int64]
    """Steps; `CHUNK` or `UNREADABLE` for rows that count for none."""
    observed: NDArray[np.int64]
    """Entries that every observation has: one more than steps, if what followed the last step is there."""
    sizes: NDArray[np.int64]
    """In bytes."""
    mtimes_ns: NDArray[np.int64]
    """When files of their own were changed."""
    pack_sizes: NDArray[np.int64]
    """Of the packs."""
    pack_mtimes_ns: NDArray[np.int64]
    facts: Names
    """For each row a line of JSON: what conditions may ask for."""
    folders: dict[str, int]
    """When each folder was changed, as in `Listing`."""

    @property
    def base(self) -> str:
        """The folder that names start from."""
        return self.places.base

    @property
    def paths(self) -> Paths:
        """The path of each row."""
        return self.places.paths

    def facts_of(self, row: int) -> dict[str, Any]:
        """What is known about an episode, by the names that conditions use."""
        facts = parse_line(self.facts[row]).get("facts")
        if not isinstance(facts, dict):
            raise BadMetadata(
                "the saved index says nothing that can be read about this episode",
                path=self.paths[row],
                hint="delete the index: it is made anew",
            )
        return {**facts, "length": int(self.lengths[row])}

    def followed(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of some episodes the steps of which is known what followed them."""
        return np.minimum(self.lengths[rows], np.maximum(self.observed[rows] - 1, 0))

    def is_of_pack(self, name: str) -> bool:
        """Whether all rows are those of one pack, which is called so."""
        packs = self.places.packs
        return len(packs) == 1 and packs[0] == name and not self.places.pack_of.any()

    def of_pack(self, pack: int, base: str, name: str) -> Catalogue:
        """The rows of one pack, which is called so from a folder."""
        if self.is_of_pack(self.places.packs[pack]):
            places = replace(self.places, base=base, packs=Names.of([name]))
            return replace(self, places=places, folders={})
        rows = np.flatnonzero(self.places.pack_of == pack)
        places = replace(
            self.places.select(rows),
            base=base,
            packs=Names.of([name]),
            pack_of=np.zeros(len(rows), np.int32),
        )
        return Catalogue(
            places,
            self.lengths[rows],
            self.observed[rows],
            self.sizes[rows],
            self.mtimes_ns[rows],
            self.pack_sizes[pack : pack + 1],
            self.pack_mtimes_ns[pack : pack + 1],
            self.facts.select(rows),
            {},
        )

    @classmethod
    def join(cls, base: str, parts: Sequence[Catalogue], folders: dict[str, int]) -> Catalogue:
        """All rows of several, whose names start from the same folder."""
        shifted, packs = [], 0
        for part in parts:
            pack_of = part.places.pack_of
            shifted.append(np.where(pack_of == NO_PACK, pack_of, pack_of + np.int32(packs)))
            packs += len(part.places.packs)
        places = Places(
            base,
            Names.join([part.places.names for part in parts]),
            Names.join([part.places.packs for part in parts]),
            np.concatenate(shifted),
            np.concatenate([part.places.records for part in parts]),
        )
        return cls(
            places,
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.observed for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            np.concatenate([part.mtimes_ns for part in parts]),
            np.concatenate([part.pack_sizes for part in parts]),
            np.concatenate([part.pack_mtimes_ns for part in parts]),
            Names.join([part.facts for part in parts]),
            folders,
        )


def parse_line(line: str) -> dict[str, Any]:
    """A line of facts; empty if it is none, which only a forged index has."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
