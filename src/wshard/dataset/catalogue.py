"""What is known about each file of a data set, so that a window is found without opening any other."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._parallel import for_each
from shard_format.errors import BadMetadata, ShardError
from shard_format.sources import is_url
from wshard.chunk_files import ChunkNames
from wshard.dataset.listing import UNKNOWN
from wshard.dataset.names import Names, Paths
from wshard.reader import load_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from wshard.dataset.listing import Listing
    from wshard.episode import Episode

__all__ = ["CHUNK", "UNREADABLE", "Catalogue", "take_stock"]

CHUNK: Final = -1
"""The length of a file that is part of another one's episode."""
UNREADABLE: Final = -2
"""The length of a file that cannot be opened."""
# Requests that are under way at the same time.
_AT_ONCE: Final = 8
_SCALARS: Final = (str, int, float, bool)
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Catalogue:
    """One row for each file, in columns."""

    base: str
    """The folder that names start from."""
    names: Names
    lengths: NDArray[np.int64]
    """Steps; `CHUNK` or `UNREADABLE` for files that count for none."""
    sizes: NDArray[np.int64]
    mtimes_ns: NDArray[np.int64]
    facts: bytes
    """For each row a line of JSON, without line breaks between them: what conditions may ask for."""
    fact_offsets: NDArray[np.int64]
    folders: dict[str, int]
    """When each folder was changed, as in `Listing`."""

    @property
    def paths(self) -> Paths:
        """The files."""
        return Paths(self.base, self.names)

    def facts_of(self, row: int) -> dict[str, Any]:
        """What is known about an episode, by the names that conditions use."""
        start, stop = self.fact_offsets[row : row + 2].tolist()
        facts = _parse(self.facts[start:stop]).get("facts")
        if not isinstance(facts, dict):
            raise BadMetadata(
                "the saved index says nothing that can be read about this episode",
                path=self.paths[row],
                hint="delete the index: it is made anew",
            )
        return {**facts, "length": int(self.lengths[row])}


class _Known:
    """Rows of an earlier catalogue that are still true."""

    def __init__(self, earlier: Catalogue | None) -> None:
        self._earlier = earlier
        names = earlier.names if earlier is not None else Names(b"")
        self._rows = {names[row]: row for row in range(len(names))}

    def get(self, name: str, size: int, mtime_ns: int) -> tuple[int, bytes] | None:
        """The length and the facts of a file, if it is the same as then and could be read."""
        row = self._rows.get(name)
        if row is None:
            return None
        earlier = self._earlier
        assert earlier is not None
        length = int(earlier.lengths[row])
        if length < 0 or (earlier.sizes[row], earlier.mtimes_ns[row]) != (size, mtime_ns):
            return None
        start, stop = earlier.fact_offsets[row : row + 2].tolist()
        return length, earlier.facts[start:stop]


def take_stock(
    listing: Listing,
    earlier: Catalogue | None,
    on_error: Callable[[str, ShardError], None],
    storage_options: Mapping[str, Any] | None,
) -> Catalogue:
    """Looks at every file that an earlier catalogue does not know as it is now.

    Args:
        listing: the files.
        earlier: what was found before.
        on_error: told of a file that cannot be read; may raise.
        storage_options: for files that are URLs.
    """
    names, known = listing.names, _Known(earlier)
    lengths = np.zeros(len(names), np.int64)
    lines = [b""] * len(names)
    chunks: set[str] = set()

    def look_at(row: int) -> None:
        name = names[row]
        found = known.get(name, int(listing.sizes[row]), int(listing.mtimes_ns[row]))
        if found is None:
            path = name if is_url(name) else os.path.join(listing.base, name)
            try:
                found = _read(path, storage_options)
            except ShardError as error:
                on_error(path, error.located(path=path))
                found = UNREADABLE, b""
        lengths[row], lines[row] = found
        if b'"chunks"' in lines[row]:
            beside = name.removesuffix(os.path.basename(name))
            chunks.update(beside + chunk for chunk in _chunks(lines[row]))

    is_remote = bool((listing.sizes == UNKNOWN).any())
    threads = _AT_ONCE if is_remote else 1
    # Manifests first: then their chunks need not be opened.
    members = [ChunkNames.of_member(name)[1] for name in names]
    for_each([row for row, index in enumerate(members) if index == -1], look_at, threads)
    rest = [row for row, index in enumerate(members) if index != -1 and names[row] not in chunks]
    for_each(rest, look_at, threads)
    for row, name in enumerate(names):
        if name in chunks:
            lengths[row], lines[row] = CHUNK, b""
    offsets = np.zeros(len(lines) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)), out=offsets[1:])
    return Catalogue(
        listing.base,
        Names.of(names),
        lengths,
        listing.sizes,
        listing.mtimes_ns,
        b"".join(lines),
        offsets,
        listing.folders,
    )


def _read(path: str, storage_options: Mapping[str, Any] | None) -> tuple[int, bytes]:
    options = storage_options if is_url(path) else None
    with load_wshard(path, sidecars=False, threads=1, storage_options=options) as episode:
        return episode.length, _facts(episode)


def _facts(episode: Episode) -> bytes:
    """What conditions may ask for: of the metadata the fields that are no objects."""
    facts = {
        name: value
        for name, value in episode.metadata.items()
        if isinstance(value, _SCALARS)
        or (isinstance(value, list) and all(isinstance(item, _SCALARS) for item in value))
    }
    facts.update(id=episode.id, env_id=episode.env_id)
    chunks = [] if episode.origin is None else episode.origin.chunks
    line: dict[str, Any] = {"facts": facts}
    if chunks:
        line["chunks"] = [os.path.basename(reader.name) for reader in chunks]
    return _encode(line).encode()


def _chunks(line: bytes) -> list[str]:
    named = _parse(line).get("chunks")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _parse(line: bytes) -> dict[str, Any]:
    """A line of facts; empty if it is none, which only a forged index has."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
