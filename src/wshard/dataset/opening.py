"""Finding out what a data set is made of: from a saved index where that is true, else from files and packs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shard_format.errors import InvalidArgument
from shard_format.sources import is_url
from wshard.dataset.catalogue import UNREADABLE
from wshard.dataset.listing import INDEX_SUFFIX, find_files, list_files, list_folder, list_opened
from wshard.dataset.packs import open_pack, opened_packs
from wshard.dataset.places import NO_PACK
from wshard.dataset.saved_index import (
    index_beside,
    is_current,
    load_index,
    now_ns,
    read_index,
    save_index,
)
from wshard.dataset.stocktaking import Known, take_stock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shard_format.errors import ShardError
    from shardpack import ShardPackReader
    from wshard.dataset.catalogue import Catalogue
    from wshard.dataset.listing import Files, Listing

__all__ = ["open_catalogue"]


class _Reading(NamedTuple):
    """How files are read."""

    on_error: Callable[[str, ShardError], None]
    storage_options: Mapping[str, Any] | None


def open_catalogue(
    files: Files,
    index: bool | str | os.PathLike[str],
    on_error: Callable[[str, ShardError], None],
    storage_options: Mapping[str, Any] | None,
) -> Catalogue:
    """What is known about the episodes, brought up to date and saved again if it was not.

    Args:
        files: as for `EpisodeDataset`.
        index: as for `EpisodeDataset`.
        on_error: told of what cannot be read; may raise.
        storage_options: for files that are URLs.
    """
    reading = _Reading(on_error, storage_options)
    opened = opened_packs(files)
    if opened is not None:
        path = None if isinstance(index, bool) else os.fspath(index)
        return _of_files(list_opened(opened), path, reading, lambda pack: opened.shards[pack])
    if isinstance(files, (str, os.PathLike)) and os.fspath(files).endswith(INDEX_SUFFIX):
        return _of_index(os.fspath(files), index, reading)
    found = find_files(files)
    if isinstance(found, str):
        return _of_folder(found, index, reading)
    listing = list_files(found)
    if index is True:
        return _of_packs_and_files(listing, reading)
    path = None if isinstance(index, bool) else os.fspath(index)
    return _of_files(listing, path, reading, _opener(listing, reading))


def _opener(listing: Listing, reading: _Reading) -> Callable[[int], ShardPackReader]:
    packs = np.flatnonzero(listing.are_packs)
    return lambda pack: open_pack(listing.path(int(packs[pack])), reading.storage_options)


def _of_index(path: str, index: bool | str | os.PathLike[str], reading: _Reading) -> Catalogue:
    """A saved index alone: nothing is looked for."""
    if not isinstance(index, bool):
        raise InvalidArgument(
            "a saved index needs no other index", path=path, found=f"index={os.fspath(index)!r}"
        )
    catalogue = read_index(path)
    for row in np.flatnonzero(catalogue.lengths == UNREADABLE).tolist():
        lost = catalogue.paths[row]
        reading.on_error(
            lost,
            InvalidArgument(
                "could not be read when the index was made",
                path=lost,
                hint="open the folder itself to see why, or pass on_error='skip'",
            ),
        )
    return catalogue


def _of_folder(folder: str, index: bool | str | os.PathLike[str], reading: _Reading) -> Catalogue:
    if isinstance(index, bool):
        path = index_beside(folder) if index else None
    else:
        path = os.fspath(index)
    base = os.path.abspath(folder)
    loaded = load_index(path, base, stays_inside=True) if path is not None else None
    if loaded is not None and is_current(*loaded):
        return loaded[0]
    made_ns = now_ns()
    listing = list_folder(folder)
    beside = _indexes_beside(listing) if path is not None else None
    known = Known(loaded[0] if loaded is not None else None, beside)
    catalogue = take_stock(listing, known, _opener(listing, reading), *reading)
    _check_packed_twice(catalogue)
    # A folder that is found unchanged is worth saving too: from now on it can be believed.
    if path is not None:
        save_index(path, catalogue, made_ns)
    return catalogue


def _of_files(
    listing: Listing,
    path: str | None,
    reading: _Reading,
    opener: Callable[[int], ShardPackReader],
) -> Catalogue:
    """Files as they were given, with one index for all or none."""
    loaded = load_index(path, listing.base, stays_inside=False) if path is not None else None
    earlier = loaded[0] if loaded is not None else None
    made_ns = now_ns()
    catalogue = take_stock(listing, Known(earlier), opener, *reading)
    if path is not None and not _is_same(catalogue, earlier):
        save_index(path, catalogue, made_ns)
    return catalogue


def _of_packs_and_files(listing: Listing, reading: _Reading) -> Catalogue:
    """Files as they were given; each local pack has its index beside it, files of their own have none."""
    made_ns = now_ns()
    known = Known(None, _indexes_beside(listing))
    catalogue = take_stock(listing, known, _opener(listing, reading), *reading)
    for pack, row in enumerate(np.flatnonzero(listing.are_packs).tolist()):
        path = listing.path(row)
        if is_url(path) or known.pack(*listing.row(row)) is not None:
            continue
        part = catalogue.of_pack(pack, os.path.dirname(path), os.path.basename(path))
        save_index(index_beside(path), part, made_ns)
    return catalogue


def _indexes_beside(listing: Listing) -> dict[str, Catalogue]:
    """What is saved beside the packs, by their names."""
    found: dict[str, Catalogue] = {}
    for row in np.flatnonzero(listing.are_packs).tolist():
        path, name = listing.path(row), listing.names[row]
        if not is_url(path):
            folder, own_name = os.path.split(path)
            loaded = load_index(index_beside(path), folder, stays_inside=True)
            if loaded is not None and loaded[0].is_of_pack(own_name):
                found[name] = loaded[0].of_pack(0, listing.base, name)
    return found


def _check_packed_twice(catalogue: Catalogue) -> None:
    """Refuses a folder that holds an episode as a file and once more in a pack that was made of it."""
    places = catalogue.places
    in_packs = np.flatnonzero(places.pack_of != NO_PACK)
    if not 0 < len(in_packs) < len(places):
        return
    files = {places.names[row] for row in np.flatnonzero(places.pack_of == NO_PACK).tolist()}
    for row in in_packs.tolist():
        name = places.names[row]
        folder = os.path.dirname(places.packs[int(places.pack_of[row])])
        for path in (name, f"{folder}/{name}" if folder else name):
            if path in files:
                raise InvalidArgument(
                    "the folder holds an episode twice, as a file and in a pack",
                    path=places.base,
                    found=f"{path} and {places.path(row)}",
                    hint="give a pattern for those that are meant, such as '*.wshard' or "
                    "'*.shardpack', or a list of both",
                )


def _is_same(catalogue: Catalogue, earlier: Catalogue | None) -> bool:
    if earlier is None:
        return False
    texts = [(c.places.names.blob, c.places.packs.blob, c.facts.blob) for c in (catalogue, earlier)]
    return texts[0] == texts[1] and all(
        np.array_equal(getattr(catalogue, column), getattr(earlier, column))
        for column in ("lengths", "sizes", "mtimes_ns", "pack_sizes", "pack_mtimes_ns")
    )
