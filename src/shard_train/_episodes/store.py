"""The open episodes of a dataset: opened when a window needs them, the least recently used closed first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shard_format import ShardReader
from shard_format.cache import BoundedCache
from shard_format.errors import DATA_ERRORS, InvalidArgument, ReferenceMismatch, ShardError
from shard_format.registry import Role
from shard_format.sources import is_url
from shard_train._episodes.catalogue import NO_PACK
from shard_train.packed_episodes import episode_names, open_episode_entry
from shardpack import Dataset, ShardPackReader
from wshard import load_wshard
from wshard.windows import STEP_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shard_train._episodes.cache import EpisodeCache
    from shard_train._episodes.catalogue import EpisodeLocations
    from shard_train._episodes.layouts import StepLayout, WindowLayout
    from shardpack import Record
    from wshard.types import Episode
    from wshard.windows import ChannelSpec, WindowSource

__all__ = [
    "PACK_SUFFIX",
    "EpisodeStore",
    "entries_of",
    "is_pack",
    "load_entry",
    "open_pack",
    "opened_packs",
]

PACK_SUFFIX: Final = ".shardpack"


class EpisodeStore:
    """Opens episodes by number and keeps some of them, and of their packs, open.

    Safe for threads and after a fork. Pickles without any open file.
    """

    def __init__(
        self,
        locations: EpisodeLocations,
        lengths: NDArray[np.int64],
        layout: WindowLayout | StepLayout,
        *,
        storage_options: Mapping[str, Any] | None,
        max_open: int,
        packs: Dataset | None,
        cache: EpisodeCache | None,
    ) -> None:
        self.locations = locations
        self.lengths = lengths
        self.wanted: Sequence[ChannelSpec] = ()
        """The channels of items."""
        self._layout = layout
        self._storage_options = storage_options
        self._given = packs
        self._cache = cache
        # What leaves these is dropped, not closed: another thread may be reading from it.
        self._episodes: BoundedCache[int, WindowSource]
        self._packs: BoundedCache[int, ShardPackReader]
        self._episodes = BoundedCache(count=max_open, holds_files=True)
        self._packs = BoundedCache(count=max_open, holds_files=True)

    def __getitem__(self, number: int) -> WindowSource:
        """Return where the items of an episode are read from."""
        return self._episodes.get_or_make(number, lambda: self._open(number))

    def __len__(self) -> int:
        """Return how many episodes are open."""
        return len(self._episodes)

    def load(self, number: int, channels: Iterable[str] | None = None) -> Episode:
        """Open an episode, all of it or only some channels."""
        if self.locations.pack_of[number] != NO_PACK:
            return self._load_packed(number, channels)
        path = self.locations[number]
        options = self._storage_options if is_url(path) else None
        # A batch spreads its windows over threads: one window needs no more of them.
        return load_wshard(path, channels, threads=1, storage_options=options)

    def _load_packed(self, number: int, channels: Iterable[str] | None) -> Episode:
        locations = self.locations
        pack = int(locations.pack_of[number])
        reader = self._packs.get_or_make(pack, lambda: self._open_pack(pack))
        at, name = int(locations.records[number]), locations.names[number]
        if 0 <= at < len(reader):
            record = reader.record(at)
            entry = entries_of(record).get(name)
            if entry is not None:
                return load_entry(record, entry, channels)
        raise ReferenceMismatch(
            "the pack has changed since the dataset was opened",
            path=reader.name,
            expected=f"{name!r} in record {at}",
            found=f"{len(reader)} records",
            hint="open the dataset again, with index=False if that does not help",
        )

    def load_as_listed(self, number: int) -> Episode:
        """Open an episode and check that it is as long as when the dataset was opened."""
        episode = self.load(number)
        if episode.length != self.lengths[number]:
            raise ReferenceMismatch(
                "the episode has changed since the dataset was opened",
                path=self.locations[number],
                expected=f"{self.lengths[number]} steps",
                found=f"{episode.length} steps",
                hint="open the dataset again, with index=False if that does not help",
            )
        return episode

    def find_channels(
        self,
        numbers: Sequence[int],
        names: list[str] | None,
        reserved: Sequence[str],
        on_error: Callable[[str, ShardError], None],
    ) -> Sequence[ChannelSpec]:
        """Decide which channels items have, from the first episode that can be used."""
        for number in numbers:
            path = self.locations[number]
            try:
                episode = self.load(number)
                asked = None if names is None else [n for n in names if not _is_given(n, episode)]
                self.wanted = self._layout.wanted(episode, asked, reserved)
                self._layout.sources(episode, path, self.wanted)  # says what cannot work
                break
            except DATA_ERRORS as error:
                on_error(path, error.located(path=path))
                if number == numbers[-1]:
                    raise
        return self.wanted

    def sources(self, number: int, episode: Episode) -> WindowSource:
        """Return where items are read from, for an episode or a copy of it."""
        return self._layout.sources(episode, self.locations[number], self.wanted)

    def _open(self, number: int) -> WindowSource:
        if self._cache is not None:
            return self._cache.open(self, number)
        return self.sources(number, self.load_as_listed(number))

    def _open_pack(self, pack: int) -> ShardPackReader:
        if self._given is not None:
            return self._given.shards[pack]
        return open_pack(self.locations.pack_path(pack), self._storage_options)

    def close(self) -> None:
        """Close all files. They are opened again when they are needed."""
        self._episodes.clear()
        self._packs.clear()


def _is_given(name: str, episode: Episode) -> bool:
    """Return whether every item has this key, whether or not there is such a channel."""
    return name in STEP_KEYS and name not in episode.observations and name not in episode.actions


# --- packs


def is_pack(path: str) -> bool:
    """Return whether a file, or what a URL leads to, is named like a pack."""
    name = path.partition("?")[0] if is_url(path) else path
    return name.endswith(PACK_SUFFIX)


def opened_packs(files: object) -> Dataset | None:
    """Return an open dataset of packs, if a caller passed one."""
    return files if isinstance(files, Dataset) else None


def open_pack(path: str, storage_options: Mapping[str, Any] | None) -> ShardPackReader:
    """Open one pack."""
    return ShardPackReader(path, storage_options=storage_options if is_url(path) else None)


def entries_of(record: Record) -> dict[str, str]:
    """Return the entries of a record that are episodes, by the file name that `shardpack.unpack` gives them."""
    return {f"{record.key}.{entry}": entry for entry in episode_names(record)}


def load_entry(record: Record, entry: str, channels: Iterable[str] | None = None) -> Episode:
    """Open the episode in an entry of a record, with its sidecars, where it is.

    Raises:
        InvalidArgument: the entry is the manifest of an episode in chunks.
        ShardError: the entry cannot be read.
    """
    try:
        # A batch spreads its windows over threads: one window needs no more of them.
        episode: Episode = open_episode_entry(record, entry, threads=1, channels=channels)
    except ShardError as error:
        if _is_manifest(record, entry):
            raise InvalidArgument(
                "a chunked episode cannot be opened in a pack: its manifest names files",
                hint="shardpack.unpack(…) restores the files; with on_error='skip' the manifest is "
                "left out and every chunk is an episode",
            ) from error
        raise
    return episode


def _is_manifest(record: Record, entry: str) -> bool:
    try:
        with ShardReader(record[entry].source()) as reader:
            return reader.header.role == Role.MANIFEST
    except DATA_ERRORS:  # the first error already says what is wrong
        return False
