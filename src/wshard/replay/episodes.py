"""The episodes of a replay buffer's folder: found, measured, kept open, and deleted to keep the bounds."""

from __future__ import annotations

import bisect
import logging
import os
import shutil
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shard_format.errors import ShardError
from wshard.folders import SUFFIX, following, in_order, is_being_recorded, reserve
from wshard.journal import PARTIAL_SUFFIX
from wshard.reader import SIDECAR_SUFFIX, load_wshard
from wshard.recorded import open_partial, recover
from wshard.windows import follows_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wshard.episode import Episode
    from wshard.replay.priorities import Priorities

_log = logging.getLogger("wshard")


@dataclass(slots=True)
class Stored:
    """An episode of the buffer."""

    number: int
    name: str
    """Of its file, without the suffix."""
    steps: int
    observed: int
    """Entries that every observation has: one more than steps, if what followed the last step is there."""
    nbytes: int
    fill: float
    """The priority of steps that were not given one."""
    priorities: NDArray[np.float64] | None = None
    is_running: bool = False
    """Whether it is still being recorded."""
    sums: dict[int, float] = field(default_factory=dict)
    """The sum of the first so many priorities."""

    def usable(self, next_observations: bool) -> int:
        """Steps that windows can be made of; with what followed them if that is wanted."""
        return min(self.steps, self.observed - 1) if next_observations else self.steps

    def weight(self, windows: int) -> float:
        """The sum of the priorities of the first so many steps."""
        if self.priorities is None:
            return self.fill * windows
        if windows not in self.sums:
            self.sums[windows] = float(self.priorities[:windows].sum())
        return self.sums[windows]

    def prioritize(self, step: int, priority: float) -> None:
        """Gives a step another priority."""
        if self.priorities is None:
            self.priorities = np.full(self.steps, self.fill)
        self.priorities[step] = priority
        self.sums.clear()

    def measure(self, episode: Episode) -> None:
        """Takes over how long it is."""
        self.steps = episode.length
        lengths = [c.length for c in episode.observations.values() if follows_steps(c)]
        self.observed = min(lengths, default=episode.length + 1)
        if self.priorities is not None and len(self.priorities) != self.steps:
            longer = np.full(self.steps, self.fill)
            same = min(len(longer), len(self.priorities))
            longer[:same] = self.priorities[:same]
            self.priorities = longer
        self.sums.clear()


class StoredEpisodes:
    """The episodes of a folder, oldest first. Whoever calls holds the buffer's lock.

    Owns: the row of episodes, the files that are open, and `skipped`.

    Args:
        folder: where the files are.
        known: the priorities that were saved; an episode that is found takes its own out.
        max_open: how many episodes stay open.
    """

    def __init__(self, folder: str, known: Priorities, max_open: int) -> None:
        self.row: list[Stored] = []
        """Oldest first."""
        self.by_number: dict[int, Stored] = {}
        self.skipped: dict[str, ShardError] = {}
        """Files that cannot be read, by name."""
        self._folder = folder
        self._known = known
        self._max_open = max_open
        self._numbers = 0
        self._opened: OrderedDict[int, Episode] = OrderedDict()

    @property
    def steps(self) -> int:
        """Of all episodes."""
        return sum(stored.steps for stored in self.row)

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return sum(stored.nbytes for stored in self.row)

    # --- files

    def path(self, name: str) -> str:
        """The file of an episode."""
        return os.path.join(self._folder, name + SUFFIX)

    def reserve(self) -> str:
        """A path behind all others, whose journal is ours."""
        names = [stored.name for stored in self.row]
        names += [name.removesuffix(SUFFIX) for name in self.skipped]
        name = following(max(names, key=in_order, default=None))
        while not reserve(self.path(name)):
            name = following(name)
        return self.path(name)

    def refresh(self) -> None:
        """Takes in files and lanes that others have added since, and forgets what is gone."""
        self.close()
        there = {
            entry.name.removesuffix(SUFFIX)
            for entry in os.scandir(self._folder)
            if entry.name.endswith(SUFFIX) and entry.is_file()
        }
        for stored in [s for s in self.row if s.name not in there and not s.is_running]:
            self._forget(stored)
        known = {stored.name for stored in self.row}
        known.update(name.removesuffix(SUFFIX) for name in self.skipped)
        for name in sorted(there - known, key=in_order):
            self.register(name)

    # --- the row

    def register(self, name: str) -> None:
        """Takes in a finished episode, or says why it cannot be read."""
        stored = self.new(name)
        try:
            self.update(stored)
        except ShardError as error:
            self._forget(stored)
            self.skipped[name + SUFFIX] = error
            _log.warning("%s: left out of the replay buffer: %s", name + SUFFIX, error)

    def new(self, name: str, *, is_running: bool = False) -> Stored:
        """An episode nothing is known of yet but its priorities."""
        fill = self._known.fills.pop(name, self._known.top)
        stored = Stored(self._numbers, name, 0, 0, 0, fill, is_running=is_running)
        stored.priorities = self._known.arrays.pop(name, None)
        self._numbers += 1
        bisect.insort(self.row, stored, key=lambda other: in_order(other.name))
        self.by_number[stored.number] = stored
        return stored

    def update(self, stored: Stored, *, is_running: bool = False) -> None:
        """Looks at an episode anew: how long it is, and how large."""
        self._let_go(stored)
        stored.is_running = is_running
        stored.measure(self.open(stored))
        path = self.path(stored.name)
        stored.nbytes = _size(path) + _size(path + PARTIAL_SUFFIX)
        with suppress(OSError):
            stored.nbytes += sum(
                entry.stat().st_size for entry in os.scandir(path + SIDECAR_SUFFIX)
            )

    def evict(self, max_steps: int | None, max_bytes: int | None) -> None:
        """Deletes the oldest until the rest keeps the bounds. The newest stays."""
        steps, nbytes = self.steps, self.nbytes
        while len(self.row) > 1 and (
            (max_steps is not None and steps > max_steps)
            or (max_bytes is not None and nbytes > max_bytes)
        ):
            oldest = self.row[0]
            if oldest.is_running:
                return
            steps -= oldest.steps
            nbytes -= oldest.nbytes
            self._forget(oldest)
            path = self.path(oldest.name)
            for file in (path, path + PARTIAL_SUFFIX):
                with suppress(FileNotFoundError):
                    os.unlink(file)
            shutil.rmtree(path + SIDECAR_SUFFIX, ignore_errors=True)

    def _forget(self, stored: Stored) -> None:
        self._let_go(stored)
        self.row.remove(stored)
        del self.by_number[stored.number]

    # --- open episodes

    def open(self, stored: Stored) -> Episode:
        """The episode, which stays open until so many others were."""
        found = self._opened.get(stored.number)
        if found is None:
            path = self.path(stored.name)
            found = open_partial(path) if stored.is_running else load_wshard(path)
            self._opened[stored.number] = found
            if len(self._opened) > self._max_open:
                self._opened.popitem(last=False)[1].close()
        else:
            self._opened.move_to_end(stored.number)
        return found

    def close(self) -> None:
        """Closes all files."""
        while self._opened:
            self._opened.popitem()[1].close()

    def _let_go(self, stored: Stored) -> None:
        episode = self._opened.pop(stored.number, None)
        if episode is not None:
            episode.close()


def recover_all(folder: str, *, fsync: bool) -> None:
    """Brings back what was being recorded into a folder when its process died."""
    for name in sorted(os.listdir(folder)):
        if not name.endswith(SUFFIX + PARTIAL_SUFFIX):
            continue
        partial = os.path.join(folder, name)
        path = partial.removesuffix(PARTIAL_SUFFIX)
        if not _size(partial) or is_being_recorded(partial):
            continue
        try:
            if os.path.exists(path):
                # It had been finished, up to removing the journal (J-5), or was recovered with losses.
                continue
            with open_partial(partial) as episode:
                if not episode.length:
                    continue
            recovery = recover(partial, path, fsync=fsync)
        except ShardError as error:
            _log.warning("%s: cannot be recovered: %s", partial, error)
            continue
        _log.warning("%s", recovery)
        if not recovery.lost_data:
            os.unlink(partial)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
