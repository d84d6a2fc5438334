"""The open episodes of a dataset: opened when a window needs them, the least recently used closed first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

from shard_format.cache import BoundedCache
from shard_format.errors import DATA_ERRORS, ReferenceMismatch, ShardError
from shard_format.opening import open_source
from shard_format.parallel import one_at_a_time
from shard_format.reader import ShardReader
from shard_format.registry import Role
from shard_format.sources import BytesSource, can_read_ranges, is_url
from shard_train.packed_episodes import EpisodePack, open_episode_pack
from shardpack import Dataset, ShardPackReader
from wshard import load_wshard
from wshard.catalogue import NO_PACK
from wshard.windows import STEP_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shard_train._episodes.cache import EpisodeCache
    from shard_train._episodes.contents import ItemContent
    from shard_train._episodes.layouts import StepLayout, WindowLayout
    from shard_train._read_ahead import FilesAhead
    from wshard import catalogue
    from wshard.catalogue import EpisodeLocations
    from wshard.types import Episode
    from wshard.windows import ChannelSpec, WindowSource

__all__ = ["EpisodeStore", "Files", "file_of", "read_whole"]

# A large file is fetched in pieces, several at a time.
_PIECE: Final = 1 << 24

Files: TypeAlias = Union["catalogue.Files", Dataset]
"""What `EpisodeDataset` takes."""


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
        check: bool,
    ) -> None:
        self.locations = locations
        self.lengths = lengths
        self.wanted: Sequence[ChannelSpec] = ()
        """The channels of items."""
        self.contents: Sequence[ItemContent] = ()
        """What items hold besides channels of numbers."""
        self._layout = layout
        self.storage_options = storage_options
        self._given = packs
        self.is_given = packs is not None
        """Whether the caller has opened the packs."""
        self._cache = cache
        self._check = check
        self.step_bytes = 0.0
        """Bytes of a file for each step, in the episode that the channels were found in."""
        self.read_share = 0.0
        """Which part of these bytes items are made of."""
        self.ahead: FilesAhead | None = None
        """Whole files that are fetched before they are needed."""
        # What leaves these is dropped, not closed: another thread may be reading from it.
        self._episodes: BoundedCache[int, WindowSource]
        self._packs: BoundedCache[int, EpisodePack]
        self._episodes = BoundedCache(count=max_open, holds_files=True)
        self._packs = BoundedCache(count=max_open, holds_files=True)

    def __getitem__(self, number: int) -> WindowSource:
        """Return where the items of an episode are read from."""
        found = self._episodes.get(number)
        if found is None:
            with one_at_a_time((id(self), number)):
                found = self._episodes.get_or_make(number, lambda: self._open(number))
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ahead": None}

    def __len__(self) -> int:
        """Return how many episodes are open."""
        return len(self._episodes)

    def load(self, number: int, channels: Iterable[str] | None = None) -> Episode:
        """Open an episode, all of it or only some channels."""
        if self.locations.pack_of[number] != NO_PACK:
            return self._load_packed(number, channels)
        path = self.locations[number]
        options = self.storage_options if is_url(path) else None
        whole = self._fetched(path)
        if whole is not None and ShardReader(whole).header.role != Role.MANIFEST:
            return load_wshard(whole, channels, check=self._check, threads=1)
        # A batch spreads its windows over threads: one window needs no more of them.
        return load_wshard(path, channels, check=self._check, threads=1, storage_options=options)

    def _fetched(self, path: str) -> BytesSource | None:
        """A file that was fetched as a whole, ahead of its use."""
        ahead = self.ahead
        data = ahead.get(path) if ahead is not None and ahead.is_ours else None
        return None if data is None else BytesSource(data, path)

    def _load_packed(self, number: int, channels: Iterable[str] | None) -> Episode:
        locations = self.locations
        pack = int(locations.pack_of[number])
        opened = self._packs.get_or_make(pack, lambda: self._open_pack(pack))
        at, name = int(locations.records[number]), locations.names[number]
        return opened.load(at, name, channels=channels, check=self._check)

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
        may_lack: Mapping[str, int],
    ) -> Sequence[ChannelSpec]:
        """Decide which channels items have, from the first episode that can be used.

        Args:
            numbers: of the episodes to try.
            names: of the channels; None for all that fit.
            reserved: keys that mean something else.
            on_error: is told what cannot be used.
            may_lack: names that some episodes lack, each with an episode that has it.
        """
        for number in numbers:
            path = self.locations[number]
            try:
                episode = self.load(number)
                asked = None if names is None else [n for n in names if not _is_given(n, episode)]
                there = _names_in(episode) if may_lack else frozenset()
                absent = [name for name in may_lack if name not in there]
                if asked is not None:
                    asked = [name for name in asked if name not in absent]
                wanted = list(self._layout.wanted(episode, asked, reserved))
                for name in absent:
                    other = self.load(may_lack[name])
                    wanted += self._layout.wanted_alone(other, name, reserved)
                self.wanted = [
                    want.optional() if want.name in may_lack else want for want in wanted
                ]
                sources = self.sources(number, episode)  # says what cannot work
                if episode.origin is not None and episode.length:
                    reader = episode.origin.reader
                    file_bytes = reader.source.size()
                    self.step_bytes = file_bytes / episode.length
                    read = {one.block for one in sources.channels.values() if one is not None}
                    read |= {content.block for content in self.contents}
                    stored = sum(reader.row_of(name).disk_size for name in read if name in reader)
                    self.read_share = stored / file_bytes
                break
            except DATA_ERRORS as error:
                on_error(path, error.located(path=path))
                if number == numbers[-1]:
                    raise
        return self.wanted

    def sources(self, number: int, episode: Episode) -> WindowSource:
        """Return where items are read from, for an episode or a copy of it."""
        path = self.locations[number]
        found = self._layout.sources(episode, path, self.wanted)
        try:
            for content in self.contents:
                found.contents[content.key] = content.find(episode)
        except ShardError as error:
            raise error.located(path=path) from None
        return found

    def _open(self, number: int) -> WindowSource:
        if self._cache is not None:
            return self._cache.open(self, number)
        return self.sources(number, self.load_as_listed(number))

    def _open_pack(self, pack: int) -> EpisodePack:
        if self._given is not None:
            return EpisodePack(self._given.shards[pack])
        path = self.locations.pack_path(pack)
        whole = self._fetched(path)
        if whole is not None:
            return EpisodePack(ShardPackReader(whole))
        return open_episode_pack(path, self.storage_options if is_url(path) else None)

    def forget(self, paths: Iterable[str]) -> None:
        """Close the episodes and packs of these files."""
        gone = set(paths)
        for number in self._episodes.known():
            if file_of(self.locations, number) in gone:
                self._episodes.pop(number)
        for pack in self._packs.known():
            if self.locations.pack_path(pack) in gone:
                self._packs.pop(pack)

    def close(self) -> None:
        """Close all files. They are opened again when they are needed."""
        self._episodes.clear()
        self._packs.clear()


def file_of(locations: EpisodeLocations, number: int) -> str:
    """The path of the file that an episode is in: its own, or a pack."""
    pack = int(locations.pack_of[number])
    return locations[number] if pack == NO_PACK else locations.pack_path(pack)


def read_whole(path: str, storage_options: Mapping[str, Any] | None) -> bytes:
    """The bytes of a file behind a URL, fetched with few requests."""
    source = open_source(path, storage_options, first_read=_PIECE)
    try:
        size = source.size()
        if not can_read_ranges(source):
            return source.read_at(0, size)
        pieces = [(start, min(_PIECE, size - start)) for start in range(0, size, _PIECE)]
        parts = source.read_ranges(pieces)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        source.close()


def _names_in(episode: Episode) -> frozenset[str]:
    """Return every name that `Episode.find` knows."""
    blocks = (block for block, _ in episode.blocks())
    return frozenset((*episode.observations, *episode.actions, *blocks))


def _is_given(name: str, episode: Episode) -> bool:
    """Return whether every item has this key, whether or not there is such a channel."""
    return name in STEP_KEYS and name not in episode.observations and name not in episode.actions
