"""Finding out what a data set is made of: from the saved index where that is true, else from the files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from wshard.dataset.catalogue import take_stock
from wshard.dataset.listing import find_files, list_files, list_folder
from wshard.dataset.saved_index import index_beside, is_current, load_index, now_ns, save_index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shard_format.errors import ShardError
    from wshard.dataset.catalogue import Catalogue
    from wshard.dataset.listing import Files

__all__ = ["open_catalogue"]


def open_catalogue(
    files: Files,
    index: bool | str | os.PathLike[str],
    on_error: Callable[[str, ShardError], None],
    storage_options: Mapping[str, Any] | None,
) -> Catalogue:
    """What is known about the files, brought up to date and saved again if it was not.

    Args:
        files: as for `EpisodeDataset`.
        index: as for `EpisodeDataset`.
        on_error: told of a file that cannot be read; may raise.
        storage_options: for files that are URLs.
    """
    found = find_files(files)
    folder = found if isinstance(found, str) else None
    if isinstance(index, bool):
        path = index_beside(folder) if index and folder is not None else None
    else:
        path = os.fspath(index)
    base = os.path.abspath(folder) if folder is not None else os.getcwd()
    loaded = load_index(path, base, stays_inside=folder is not None) if path is not None else None
    if folder is not None and loaded is not None and is_current(*loaded):
        return loaded[0]
    made_ns = now_ns()
    listing = list_folder(folder) if folder is not None else list_files(found)
    earlier = loaded[0] if loaded is not None else None
    catalogue = take_stock(listing, earlier, on_error, storage_options)
    # A folder that is found unchanged is worth saving too: from now on it can be believed.
    if path is not None and (folder is not None or not _is_same(catalogue, earlier)):
        save_index(path, catalogue, made_ns)
    return catalogue


def _is_same(catalogue: Catalogue, earlier: Catalogue | None) -> bool:
    return (
        earlier is not None
        and catalogue.names.blob == earlier.names.blob
        and catalogue.facts == earlier.facts
        and all(
            np.array_equal(getattr(catalogue, column), getattr(earlier, column))
            for column in ("lengths", "sizes", "mtimes_ns")
        )
    )
