"""The episodes of a data set: where they are, how long they are, and those that are open."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format.errors import ReferenceMismatch, ShardError
from shard_format.sources import is_url
from wshard.dataset.cache import stamp_of
from wshard.dataset.open_files import OpenFiles
from wshard.dataset.packs import OpenPacks
from wshard.dataset.places import NO_PACK
from wshard.reader import load_wshard
from wshard.windows import STEP_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardpack import Dataset
    from wshard.dataset.cache import EpisodeCache
    from wshard.dataset.layouts import Layout
    from wshard.dataset.places import Places
    from wshard.episode import Episode
    from wshard.windows import Sources, Wanted

__all__ = ["Episodes"]


class Episodes:
    """Episodes by number, opened when they are needed.

    Safe for threads and after a fork. Pickles without any open file, and in few bytes, as lengths are much alike.

    Owns: the episodes and the packs that are open.

    Args:
        places: where they are.
        lengths: steps of each.
        usable: steps of each that items can be made of.
        layout: what items are made of.
        storage_options: for files that are URLs.
        max_open: how many episodes, and how many packs, stay open.
        packs: the packs, if they were opened by somebody else.
        cache: where decoded copies are kept, if they are.
    """

    def __init__(
        self,
        places: Places,
        lengths: NDArray[np.int64],
        usable: NDArray[np.int64],
        layout: Layout,
        *,
        storage_options: Mapping[str, Any] | None,
        max_open: int,
        packs: Dataset | None,
        cache: EpisodeCache | None,
    ) -> None:
        self.places = places
        self.paths = places.paths
        self.lengths = lengths
        self.usable = usable
        self.wanted: Sequence[Wanted] = ()
        """The channels of items."""
        self._layout = layout
        self._storage_options = storage_options
        self._max_open = max_open
        self._given = packs
        self._cache = cache
        self._set_up()

    def _set_up(self) -> None:
        self.lengths.flags.writeable = False
        self.opened: OpenFiles[Sources] = OpenFiles(self._open, self._max_open)
        """Where items come from, by the number of the episode."""
        self._packs = OpenPacks(self.places, self._storage_options, self._given, self._max_open)

    def load(self, number: int) -> Episode:
        """The episode of this number."""
        if self.places.pack_of[number] != NO_PACK:
            return self._packs.load(number)
        path = self.paths[number]
        options = self._storage_options if is_url(path) else None
        # A batch spreads its windows over threads: one window needs no more of them.
        return load_wshard(path, threads=1, storage_options=options)

    def find_channels(
        self,
        numbers: Sequence[int],
        names: list[str] | None,
        reserved: Sequence[str],
        on_error: Callable[[str, ShardError], None],
    ) -> Sequence[Wanted]:
        """What items hold, after the first episode that has it.

        Args:
            numbers: of the episodes to look at, at least one.
            names: of the channels; None for all that fit.
            reserved: keys that mean something else in items.
            on_error: told of an episode that has it not; may raise. After the last one that is done here.
        """
        for number in numbers:
            path = self.paths[number]
            try:
                episode = self.load(number)
                asked = None if names is None else [n for n in names if not _is_given(n, episode)]
                self.wanted = self._layout.wanted(episode, asked, reserved)
                self._layout.sources(episode, path, self.wanted)  # says what cannot work
                break
            except ShardError as error:
                on_error(path, error.located(path=path))
                if number == numbers[-1]:
                    raise
        return self.wanted

    def load_as_listed(self, number: int) -> Episode:
        """The same, if it is as long as when the data set was opened."""
        episode = self.load(number)
        if episode.length != self.lengths[number]:
            raise ReferenceMismatch(
                "the episode has changed since the data set was opened",
                path=self.paths[number],
                expected=f"{self.lengths[number]} steps",
                found=f"{episode.length} steps",
                hint="open the data set anew, with index=False if that does not help",
            )
        return episode

    def _open(self, number: int) -> Sources:
        path = self.paths[number]

        def use(episode: Episode) -> Sources:
            return self._layout.sources(episode, path, self.wanted)

        def open_source() -> Sources:
            return use(self.load_as_listed(number))

        if self._cache is None:
            return open_source()
        return self._cache.open(number, path, stamp_of(self.places, number), open_source, use)

    def close(self) -> None:
        """Closes all files. They are opened again when they are needed."""
        self.opened.clear()
        self._packs.close()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("paths", "opened", "_packs"):
            del state[name]
        state["usable"] = None if self.usable is self.lengths else _pack(self.usable)
        state["lengths"] = _pack(self.lengths)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        lengths = _unpack(state["lengths"])
        usable = lengths if state["usable"] is None else _unpack(state["usable"])
        self.__dict__.update(state, lengths=lengths, usable=usable)
        self.paths = self.places.paths
        self._set_up()


def _is_given(name: str, episode: Episode) -> bool:
    """Whether every item has it, channel or not."""
    return name in STEP_KEYS and name not in episode.observations and name not in episode.actions


def _pack(numbers: NDArray[np.int64]) -> bytes:
    return zlib.compress(numbers.astype("<i8").tobytes(), 1)


def _unpack(packed: bytes) -> NDArray[np.int64]:
    return np.frombuffer(zlib.decompress(packed), "<i8").astype(np.int64)
