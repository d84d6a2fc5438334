"""Episodes in packs: which entries are episodes, and opening one of them in place."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from shard_format import ShardReader
from shard_format.errors import InvalidArgument, ReferenceMismatch, ShardError
from shard_format.registry import Role
from shard_format.sources import is_url
from wshard.dataset.open_files import OpenFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardpack import Dataset, Record, ShardPackReader
    from wshard.dataset.places import Places
    from wshard.episode import Episode

__all__ = [
    "PACK_SUFFIX",
    "OpenPacks",
    "is_pack",
    "load_entry",
    "name_of",
    "open_pack",
    "opened_packs",
]

PACK_SUFFIX: Final = ".shardpack"


def is_pack(path: str) -> bool:
    """Whether a file, or what a URL leads to, is called like a pack."""
    name = path.partition("?")[0] if is_url(path) else path
    return name.endswith(PACK_SUFFIX)


def opened_packs(files: object) -> Dataset | None:
    """An opened data set of packs, if that is what a caller hands over."""
    # Whoever has one has loaded its module; nobody else should have to.
    module = sys.modules.get("shardpack.dataset")
    return files if module is not None and isinstance(files, module.Dataset) else None


def open_pack(path: str, storage_options: Mapping[str, Any] | None) -> ShardPackReader:
    """One pack."""
    from shardpack import ShardPackReader

    return ShardPackReader(path, storage_options=storage_options if is_url(path) else None)


def name_of(record: Record, entry: str) -> str:
    """What the file of an entry is called, as `shardpack.unpack` does it."""
    return f"{record.key}.{entry}"


def load_entry(record: Record, entry: str, *, sidecars: bool) -> Episode:
    """The episode in an entry of a record, still in its place; with added lanes if they are wanted.

    Raises:
        InvalidArgument: the entry is the manifest of an episode in chunks.
        ShardError: it cannot be read.
    """
    from shardpack.episodes import open_entry

    # A batch spreads its windows over threads: one window needs no more of them.
    options: dict[str, Any] = {"threads": 1} if sidecars else {"threads": 1, "sidecars": False}
    try:
        episode: Episode = open_entry(record, entry, options)
    except ShardError as error:
        if _is_manifest(record, entry):
            raise InvalidArgument(
                "an episode in chunks cannot be opened in a pack: its manifest names files",
                hint="shardpack.unpack(…) gives the files back; with on_error='skip' the manifest is "
                "left out and every chunk is an episode",
            ) from error
        raise
    return episode


def _is_manifest(record: Record, entry: str) -> bool:
    try:
        with ShardReader(record[entry].source()) as reader:
            return reader.header.role == Role.MANIFEST
    except ShardError:  # whatever it is, somebody else says what is wrong with it
        return False


class OpenPacks:
    """The packs of a data set, some of which stay open: one file for all episodes of a pack.

    Owns: the packs that it has opened.

    Args:
        places: where the episodes are.
        storage_options: for packs that are URLs.
        given: the packs, if they are opened already.
        most: how many stay open.
    """

    def __init__(
        self,
        places: Places,
        storage_options: Mapping[str, Any] | None,
        given: Dataset | None,
        most: int,
    ) -> None:
        self._places = places
        self._storage_options = storage_options
        self._given = given
        self._opened: OpenFiles[ShardPackReader] = OpenFiles(self._open, most)

    def _open(self, pack: int) -> ShardPackReader:
        if self._given is not None:
            return self._given.shards[pack]
        return open_pack(self._places.pack_path(pack), self._storage_options)

    def load(self, number: int) -> Episode:
        """The episode of this number, which is in a pack."""
        from shardpack.episodes import episode_names

        places = self._places
        reader, at = self._opened[int(places.pack_of[number])], int(places.records[number])
        if 0 <= at < len(reader):
            record = reader.record(at)
            for entry in episode_names(record):
                if name_of(record, entry) == places.names[number]:
                    return load_entry(record, entry, sidecars=True)
        raise ReferenceMismatch(
            "the pack has changed since the data set was opened",
            path=reader.name,
            expected=f"{places.names[number]!r} in record {at}",
            found=f"{len(reader)} records",
            hint="open the data set anew, with index=False if that does not help",
        )

    def close(self) -> None:
        """Lets go of all packs."""
        self._opened.clear()
