"""Looking at every file and pack of a data set, once: what is known from before is not opened again."""

from __future__ import annotations

import json
import os
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format._parallel import for_each
from shard_format.errors import ShardError
from shard_format.sources import is_url
from wshard.chunk_files import ChunkNames
from wshard.dataset.catalogue import CHUNK, UNREADABLE, Catalogue, parse_line
from wshard.dataset.listing import UNKNOWN
from wshard.dataset.names import Names
from wshard.dataset.packs import load_entry, name_of
from wshard.dataset.places import NO_PACK, Places
from wshard.reader import load_wshard
from wshard.windows import follows_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardpack import ShardPackReader
    from wshard.dataset.listing import Listing
    from wshard.episode import Episode

    OnError = Callable[[str, ShardError], None]

__all__ = ["Known", "take_stock"]

# Requests that are under way at the same time.
_AT_ONCE: Final = 8
_SCALARS: Final = (str, int, float, bool)
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class _Found(NamedTuple):
    """A row."""

    length: int
    observed: int
    line: str
    name: str = ""
    record: int = 0
    size: int = UNKNOWN


_LOST: Final = _Found(UNREADABLE, 0, "")


class Known:
    """What earlier catalogues say, as far as it is still true.

    Args:
        earlier: of the same files.
        packs: of single packs, by the names they have now.
    """

    def __init__(
        self, earlier: Catalogue | None, packs: Mapping[str, Catalogue] | None = None
    ) -> None:
        self._earlier = earlier
        self._by_pack = dict(packs or {})
        self._rows: dict[str, int] = {}
        if earlier is not None:
            places = earlier.places
            own = np.flatnonzero(places.pack_of == NO_PACK)
            self._rows = {places.names[row]: row for row in own.tolist()}
            self._packs = {places.packs[pack]: pack for pack in range(len(places.packs))}

    def file(self, name: str, size: int, mtime_ns: int) -> _Found | None:
        """What is known of a file, if it is the same as then and could be read."""
        row, earlier = self._rows.get(name), self._earlier
        if row is None or earlier is None:
            return None
        length = int(earlier.lengths[row])
        if length < 0 or (earlier.sizes[row], earlier.mtimes_ns[row]) != (size, mtime_ns):
            return None
        return _Found(length, int(earlier.observed[row]), earlier.facts[row])

    def pack(self, name: str, size: int, mtime_ns: int) -> Catalogue | None:
        """The rows of a pack, if it is the same as then and all could be read."""
        candidates = [self._by_pack.get(name)]
        if self._earlier is not None and name in self._packs:
            candidates.append(self._earlier.of_pack(self._packs[name], self._earlier.base, name))
        for found in candidates:
            if (
                found is not None
                and (found.pack_sizes[0], found.pack_mtimes_ns[0]) == (size, mtime_ns)
                and not bool((found.lengths < 0).any())
            ):
                return found
        return None


def take_stock(
    listing: Listing,
    known: Known,
    open_pack: Callable[[int], ShardPackReader],
    on_error: OnError,
    storage_options: Mapping[str, Any] | None,
) -> Catalogue:
    """Looks at all files that are not known as they are now.

    Args:
        listing: the files.
        known: what was found before.
        open_pack: opens the pack of a number, counting packs only.
        on_error: told of what cannot be read; may raise.
        storage_options: for files that are URLs.
    """
    files = _look_at_files(listing, known, on_error, storage_options)
    parts, packs = [], 0
    for is_pack, rows in groupby(
        range(len(listing.names)), lambda row: bool(listing.are_packs[row])
    ):
        if not is_pack:
            parts.append(_catalogue_of_files(listing, list(rows), files))
            continue
        for row in rows:
            name, size, time = listing.row(row)
            part = known.pack(name, size, time)
            if part is None:
                path = listing.path(row)
                found = _look_into_pack(path, open_pack, packs, on_error, size == UNKNOWN)
                part = _catalogue_of_pack(listing, row, found)
            parts.append(part)
            packs += 1
    return Catalogue.join(listing.base, parts, listing.folders)


# --- files


def _look_at_files(
    listing: Listing,
    known: Known,
    on_error: OnError,
    storage_options: Mapping[str, Any] | None,
) -> dict[int, _Found]:
    names = listing.names
    rows = np.flatnonzero(~listing.are_packs).tolist()
    found: dict[int, _Found] = {}
    chunks: set[str] = set()

    def look_at(row: int) -> None:
        name, size, time = listing.row(row)
        facts = known.file(name, size, time)
        if facts is None:
            path = listing.path(row)
            try:
                facts = _read(path, storage_options)
            except ShardError as error:
                on_error(path, error.located(path=path))
                facts = _LOST
        found[row] = facts
        if '"chunks"' in facts.line:
            beside = name.removesuffix(os.path.basename(name))
            chunks.update(beside + chunk for chunk in _chunks(facts.line))

    threads = _AT_ONCE if bool((listing.sizes[rows] == UNKNOWN).any()) else 1
    # Manifests first: then their chunks need not be opened.
    members = {row: ChunkNames.of_member(names[row])[1] for row in rows}
    for_each([row for row in rows if members[row] == -1], look_at, threads)
    rest = [row for row in rows if members[row] != -1 and names[row] not in chunks]
    for_each(rest, look_at, threads)
    found.update((row, _Found(CHUNK, 0, "")) for row in rows if names[row] in chunks)
    return found


def _read(path: str, storage_options: Mapping[str, Any] | None) -> _Found:
    options = storage_options if is_url(path) else None
    with load_wshard(path, sidecars=False, threads=1, storage_options=options) as episode:
        return _facts(episode)


def _catalogue_of_files(
    listing: Listing, rows: list[int], files: Mapping[int, _Found]
) -> Catalogue:
    places = Places.of_files(listing.base, Names.of(listing.names[row] for row in rows))
    found = [files[row] for row in rows]
    return _catalogue(places, found, listing.sizes[rows], listing.mtimes_ns[rows], listing, [])


# --- packs


def _look_into_pack(
    path: str,
    open_pack: Callable[[int], ShardPackReader],
    number: int,
    on_error: OnError,
    is_remote: bool,
) -> list[_Found]:
    from shardpack.episodes import episode_names

    try:
        reader = open_pack(number)
        count = len(reader)
    except ShardError as error:
        on_error(path, error.located(path=path))
        return [_LOST]
    found: list[list[_Found]] = [[]] * count

    def look_at(at: int) -> None:
        rows: list[_Found] = []
        try:
            record = reader.record(at)
            entries = [(entry, name_of(record, entry)) for entry in episode_names(record)]
        except ShardError as error:
            on_error(path, error.located(path=path))
            rows.append(_LOST._replace(record=at))
            entries = []
        for entry, name in entries:
            try:
                with load_entry(record, entry, sidecars=False) as episode:
                    facts = _facts(episode)
            except ShardError as error:
                inside = f"{path}/{name}"
                on_error(inside, error.located(path=inside))
                facts = _LOST
            rows.append(facts._replace(name=name, record=at, size=record[entry].size))
        found[at] = rows

    for_each(range(count), look_at, _AT_ONCE if is_remote else 1)
    return [row for rows in found for row in rows]


def _catalogue_of_pack(listing: Listing, row: int, found: Sequence[_Found]) -> Catalogue:
    places = Places(
        listing.base,
        Names.of(one.name for one in found),
        Names.of([listing.names[row]]),
        np.zeros(len(found), np.int32),
        np.fromiter((one.record for one in found), np.int64, len(found)),
    )
    sizes = np.fromiter((one.size for one in found), np.int64, len(found))
    return _catalogue(places, found, sizes, np.full(len(found), UNKNOWN), listing, [row])


def _catalogue(
    places: Places,
    found: Sequence[_Found],
    sizes: NDArray[np.int64],
    mtimes_ns: NDArray[np.int64],
    listing: Listing,
    packs: list[int],
) -> Catalogue:
    count = len(found)
    return Catalogue(
        places,
        np.fromiter((one.length for one in found), np.int64, count),
        np.fromiter((one.observed for one in found), np.int64, count),
        sizes,
        mtimes_ns,
        listing.sizes[packs],
        listing.mtimes_ns[packs],
        Names.of(one.line for one in found),
        {},
    )


# --- facts


def _facts(episode: Episode) -> _Found:
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
    lengths = [c.length for c in episode.observations.values() if follows_steps(c)]
    return _Found(episode.length, min(lengths, default=episode.length + 1), _encode(line))


def _chunks(line: str) -> list[str]:
    named = parse_line(line).get("chunks")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
