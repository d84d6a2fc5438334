"""Where each episode of a data set is: a file of its own, or an entry of a pack."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from shard_format.sources import is_url
from wshard.dataset.names import Names

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NO_PACK", "Paths", "Places"]

NO_PACK: Final = -1
"""The pack of an episode that is a file of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """One row for each episode, in columns. Pickles in few bytes, as names are much alike."""

    base: str
    """The folder that relative names start from."""
    names: Names
    """Of files; in a pack a record's key, a dot and the name of the entry, as `shardpack.unpack` calls the file."""
    packs: Names
    """The packs, as files."""
    pack_of: NDArray[np.int32]
    """The number of the pack, or `NO_PACK`."""
    records: NDArray[np.int64]
    """The number of the record in its pack."""

    @classmethod
    def of_files(cls, base: str, names: Names) -> Places:
        """Files of their own."""
        count = len(names)
        pack_of = np.full(count, NO_PACK, np.int32)
        return cls(base, names, Names(b""), pack_of, np.zeros(count, np.int64))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def paths(self) -> Paths:
        """The path of each."""
        return Paths(self)

    def path(self, number: int) -> str:
        """The path of one; in a pack that of the pack, a slash and the name of the file that it was."""
        pack, name = int(self.pack_of[number]), self.names[number]
        if pack == NO_PACK:
            return self._full(name)
        return f"{self.pack_path(pack)}/{name}" if name else self.pack_path(pack)

    def pack_path(self, pack: int) -> str:
        """The path of a pack."""
        return self._full(self.packs[pack])

    def _full(self, name: str) -> str:
        return name if is_url(name) else os.path.join(self.base, name)

    def select(self, rows: NDArray[np.int64]) -> Places:
        """Those of some rows, of the same packs."""
        return replace(
            self,
            names=self.names.select(rows),
            pack_of=self.pack_of[rows],
            records=self.records[rows],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        packed = [
            zlib.compress(part, 1)
            for part in (
                self.names.blob,
                self.packs.blob,
                self.pack_of.astype("<i4").tobytes(),
                self.records.astype("<i8").tobytes(),
            )
        ]
        return _unpacked, (self.base, *packed)


def _unpacked(base: str, *packed: bytes) -> Places:
    names, packs, pack_of, records = map(zlib.decompress, packed)
    return Places(
        base,
        Names(names),
        Names(packs),
        np.frombuffer(pack_of, "<i4").astype(np.int32),
        np.frombuffer(records, "<i8").astype(np.int64),
    )


class Paths(Sequence[str]):
    """The paths of episodes, each made when it is asked for.

    Args:
        places: where they are.
    """

    __slots__ = ("_places",)

    def __init__(self, places: Places) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> list[str]: ...

    def __getitem__(self, number: int | slice) -> str | list[str]:
        count = len(self._places)
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(count))]
        place = number + count if number < 0 else number
        if not 0 <= place < count:
            raise IndexError(f"file {number} of {count}")
        return self._places.path(place)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Paths, list, tuple)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment] # equal to lists, which have none

    def __repr__(self) -> str:
        return f"<{len(self)} paths below {self._places.base!r}>"
