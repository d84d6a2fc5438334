"""The episodes of a replay buffer: files in folders, oldest first, with priorities and latents."""

from __future__ import annotations

import bisect
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import ShardReader, ShardWriter
from shard_format.atomic import locked, remove_flat
from shard_format.cache import BoundedCache
from shard_format.canonical_json import canonical
from shard_format.errors import DATA_ERRORS, FileMissing, FormatError, ShardError
from shard_format.sources import FileSource, open_regular
from wshard._files import open_wshard
from wshard._folders import SUFFIX, following, in_order, is_being_recorded, reserve
from wshard._journal import PARTIAL_SUFFIX
from wshard._sidecar import SIDECAR_SUFFIX
from wshard.partial import open_partial, recover
from wshard.replay._latents import LATENTS_SUFFIX, LatentForm
from wshard.windows import WindowSource, follows_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wshard.types import Episode
    from wshard.windows import ChannelSpec

_log = logging.getLogger("wshard")

# One file beside the episodes, replaced as a whole, holds their priorities.
PRIORITIES_FILE: Final = "priorities.shard"
STREAM_KEY: Final = "env_index"
"""The metadata of an episode that says which stream it belongs to, as `wshard.gym` writes it."""
_FILL: Final = "fill"
_ARRAY: Final = "priority/"
_MOST_PRIORITY: Final = 1e100  # sums of them stay finite
_JSON: Final = 2


@dataclass(slots=True)
class StoredEpisode:
    """An episode of the buffer."""

    number: int
    folder: str
    name: str
    """Of its file, without the suffix."""
    fill: float
    """The priority of rows that were not given one."""
    priorities: NDArray[np.float64]
    """Of every row."""
    is_running: bool = False
    """Whether it is still being recorded."""
    stream: int = 0
    steps: int = 0
    observed: int = 0
    """Entries that every observation has: steps + 1 if the observation after the last step is there."""
    rows: int = 0
    """What windows that cross the ends of episodes have of it: its steps, and the observation after the last one
    if it is there."""
    nbytes: int = 0
    modified_ns: int = 0
    has_latents: bool = False
    running_sums: NDArray[np.float64] | None = None

    @property
    def path(self) -> str:
        """The file of the episode."""
        return os.path.join(self.folder, self.name + SUFFIX)

    @property
    def sums(self) -> NDArray[np.float64]:
        """The running sums of the priorities."""
        if self.running_sums is None:
            self.running_sums = np.cumsum(self.priorities)
        return self.running_sums

    def weight(self, windows: int) -> float:
        """The sum of the priorities of the first N rows."""
        return float(self.sums[windows - 1]) if windows else 0.0

    def measure(self, episode: Episode) -> None:
        """Take over the length and the stream of the episode."""
        self.steps = episode.length
        lengths = [c.length for c in episode.observations.values() if follows_steps(c)]
        self.observed = min(lengths, default=episode.length + 1)
        is_more = bool(lengths) and self.observed > self.steps > 0 and not self.is_running
        self.rows = self.steps + int(is_more)
        stream = episode.metadata.get(STREAM_KEY)
        self.stream = stream if type(stream) is int else 0
        more = max(0, self.rows - len(self.priorities))
        self.priorities = np.append(self.priorities[: self.rows], np.full(more, self.fill))
        self.running_sums = None


@dataclass(slots=True)
class _OpenEpisode:
    """An episode whose files are open."""

    episode: Episode
    source: WindowSource | None = None
    """Where its windows come from, once one was drawn."""


class StoredEpisodes:
    """The episodes of one or several folders. The caller holds the buffer's lock.

    Owns: the row of episodes, the files that are open, the priorities, and `skipped`.

    Args:
        folders: where the files are.
        max_open: how many episodes stay open.
        is_owner: whether files may be deleted there.
    """

    def __init__(self, folders: Sequence[str], max_open: int, *, is_owner: bool) -> None:
        self.skipped: dict[str, ShardError] = {}
        """Damaged files, by path."""
        self.version = 0
        """Another number after each change of the row, or of a length in it."""
        self.latents: LatentForm | None = None
        """What latents the steps have, if any were written."""
        self._is_owner = is_owner
        self._is_searched = False
        """Whether the folders were searched for the form of latents."""
        self._in_folders: dict[str, list[StoredEpisode]] = {folder: [] for folder in folders}
        """The episodes of each folder, in the order of their names."""
        self._row: list[StoredEpisode] | None = None
        self._by_number: dict[int, StoredEpisode] = {}
        self._numbers = count()
        self._opened: BoundedCache[int, _OpenEpisode] = BoundedCache(
            count=max_open, on_evict=lambda opened: opened.episode.close(), holds_files=True
        )
        # Priorities of episodes that were not found yet, by path.
        self._fills: dict[str, float] = {}
        self._arrays: dict[str, NDArray[np.float64]] = {}
        self._top = 0.0
        self._changed: set[str] = set()
        """Folders whose priorities are not saved."""
        for folder in folders:
            top, fills, arrays = _load_priorities(folder)
            self._top = max(self._top, top)
            self._fills |= {_path(folder, name): fill for name, fill in fills.items()}
            self._arrays |= {_path(folder, name): array for name, array in arrays.items()}

    # --- the row

    @property
    def row(self) -> list[StoredEpisode]:
        """All episodes, oldest first: in the order of their names, or of several folders, as they were finished."""
        if self._row is None:
            rows = list(self._in_folders.values())
            together = chain.from_iterable(rows)
            self._row = rows[0] if len(rows) == 1 else sorted(together, key=_modified)
        return self._row

    def following(self) -> NDArray[np.int64]:
        """For each episode of the row, the place of the next one in its stream, or -1."""
        places = {stored.number: place for place, stored in enumerate(self.row)}
        found = np.full(len(places), -1, np.int64)
        for stored_in_folder in self._in_folders.values():
            last: dict[int, int] = {}
            for stored in stored_in_folder:
                place = places[stored.number]
                if stored.stream in last:
                    found[last[stored.stream]] = place
                last[stored.stream] = place
        return found

    def by_number(self, number: int) -> StoredEpisode | None:
        """The episode with this number in indices; None if it is gone."""
        return self._by_number.get(number)

    def refresh(self) -> None:
        """Take in files and lanes that others added, and forget files that are gone."""
        self.close()
        for folder, known in self._in_folders.items():
            with os.scandir(folder) as entries:
                files = {e.name for e in entries if e.is_file(follow_symlinks=False)}
            there = {name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX)}
            for stored in [s for s in known if s.name not in there and not s.is_running]:
                self._forget(stored)
            names = {stored.name for stored in known}
            for name in sorted(there - names, key=in_order):
                if _path(folder, name) not in self.skipped:
                    self.register(folder, name)
            self._find_latents(folder, files)
        self._is_searched = True

    def register(self, folder: str, name: str) -> None:
        """Take in a finished episode, or note that it is damaged."""
        stored = self.new(folder, name)
        try:
            self.update(stored)
        except BaseException as error:
            self._forget(stored)
            path = stored.path
            self._fills[path], self._arrays[path] = stored.fill, stored.priorities
            if isinstance(error, FileMissing) and not os.path.lexists(path):
                return  # the process that fills the folder has deleted it meanwhile
            if not isinstance(error, DATA_ERRORS):
                raise
            self.skipped[path] = error
            _log.warning("%s: left out of the replay buffer: %s", name + SUFFIX, error)

    def new(self, folder: str, name: str) -> StoredEpisode:
        """An episode of which only the saved priorities are known."""
        path = _path(folder, name)
        fill, own = self._fills.pop(path, self._top), self._arrays.pop(path, np.zeros(0))
        stored = StoredEpisode(next(self._numbers), folder, name, fill, own)
        bisect.insort(self._in_folders[folder], stored, key=lambda other: in_order(other.name))
        self._by_number[stored.number] = stored
        self._note_change()
        return stored

    def update(self, stored: StoredEpisode, *, is_running: bool = False) -> None:
        """Measure an episode again: its steps, and the size of its files."""
        self._let_go(stored)
        stored.is_running = is_running
        stored.measure(self._open(stored).episode)
        with suppress(FileNotFoundError):
            stored.modified_ns = os.stat(_file_of(stored)).st_mtime_ns
        path = stored.path
        stored.nbytes = sum(_size(path + end) for end in ("", PARTIAL_SUFFIX, LATENTS_SUFFIX))
        missing = (FileNotFoundError, NotADirectoryError)
        with suppress(*missing), os.scandir(path + SIDECAR_SUFFIX) as sidecars:
            stored.nbytes += sum(entry.stat(follow_symlinks=False).st_size for entry in sidecars)
        self._note_change()

    def evict(self, max_steps: float, max_bytes: float) -> None:
        """Delete the oldest episodes until the rest keeps the bounds. The newest stays, and all that are running."""
        steps, nbytes = sum(s.steps for s in self.row), sum(s.nbytes for s in self.row)
        for oldest in [stored for stored in self.row[:-1] if not stored.is_running]:
            if steps <= max_steps and nbytes <= max_bytes:
                return
            steps -= oldest.steps
            nbytes -= oldest.nbytes
            self._forget(oldest)
            path = oldest.path
            with locked(path):  # another process may be adding a lane
                # The latents last: a process that writes them looks for the episode afterwards.
                for file in (path, path + PARTIAL_SUFFIX, path + LATENTS_SUFFIX):
                    with suppress(FileNotFoundError):
                        os.unlink(file)
                with suppress(OSError):  # there are none, or there is something else
                    remove_flat(path + SIDECAR_SUFFIX)

    def forget_missing(self) -> bool:
        """Forget episodes whose files are gone; return whether there were any."""
        gone = [stored for stored in self.row if not os.path.lexists(_file_of(stored))]
        for stored in gone:
            self._forget(stored)
        return bool(gone)

    def _forget(self, stored: StoredEpisode) -> None:
        self._let_go(stored)
        self._in_folders[stored.folder].remove(stored)
        del self._by_number[stored.number]
        self._note_change()

    def _note_change(self) -> None:
        self._row = None
        self.version += 1

    # --- files

    def reserve(self, folder: str) -> str:
        """A path behind all others of a folder, with an empty journal that holds its place."""
        names = [stored.name for stored in self._in_folders[folder]]
        names += [_name(path) for path in self.skipped]
        name = following(max(names, key=in_order, default=None))
        while not reserve(_path(folder, name)):
            name = following(name)
        return _path(folder, name)

    def open(self, stored: StoredEpisode) -> Episode:
        """The episode; the least recently used one is closed when more than `max_open` are open."""
        return self._open(stored).episode

    def source(self, stored: StoredEpisode, wanted: Sequence[ChannelSpec]) -> WindowSource:
        """Where the windows of an episode come from. `wanted` is the same in all calls."""
        opened = self._open(stored)
        if opened.source is None:
            opened.source = WindowSource(opened.episode, stored.path, wanted)
        return opened.source

    def close(self) -> None:
        """Close all files."""
        self._opened.clear()

    def _open(self, stored: StoredEpisode) -> _OpenEpisode:
        load = open_partial if stored.is_running else open_wshard
        return self._opened.get_or_make(stored.number, lambda: _OpenEpisode(load(stored.path)))

    def _let_go(self, stored: StoredEpisode) -> None:
        opened = self._opened.pop(stored.number)
        if opened is not None:
            opened.episode.close()

    # --- priorities

    def prioritize(self, stored: StoredEpisode, first: int, values: NDArray[np.float64]) -> None:
        """Give consecutive rows of an episode another priority."""
        stored.priorities[first : first + len(values)] = values
        stored.running_sums = None
        self._changed.add(stored.folder)

    def raise_top(self, priority: float) -> None:
        """New steps start with the highest priority ever given."""
        self._top = max(self._top, priority)

    def save_priorities(self) -> None:
        """Replace the files of priorities; a reader finds the old file or the new one, never a part."""
        for folder in sorted(self._changed):
            path = os.path.join(folder, PRIORITIES_FILE)
            if os.path.islink(path):  # the writer would replace what it leads to
                os.unlink(path)
            row = self._in_folders[folder]
            with ShardWriter(path, fsync=False) as writer:
                fills = {stored.name: stored.fill for stored in row}
                text = canonical({"episodes": fills, "top": self._top})
                writer.write_entry(_FILL, text, content_type=_JSON)
                for stored in row:
                    if (stored.priorities != stored.fill).any():
                        values = np.ascontiguousarray(stored.priorities, "<f8")
                        writer.write_entry(_ARRAY + stored.name, values)
            self._changed.discard(folder)

    # --- latents

    def _find_latents(self, folder: str, files: set[str]) -> None:
        """Note which episodes have latents, of the form that the newest of them have."""
        ending = SUFFIX + LATENTS_SUFFIX
        names = {name.removesuffix(ending) for name in files if name.endswith(ending)}
        for stored in reversed(self._in_folders[folder]):
            stored.has_latents = stored.name in names
            names.discard(stored.name)
            if stored.has_latents and self.latents is None and not self._is_searched:
                self.latents = LatentForm.in_file(stored.path + LATENTS_SUFFIX)
        if self._is_owner:
            # A learner wrote them while their episode was deleted.
            for path in [_path(folder, name) for name in names]:
                if not (os.path.lexists(path) or os.path.lexists(path + PARTIAL_SUFFIX)):
                    with suppress(FileNotFoundError):
                        os.unlink(path + LATENTS_SUFFIX)

    def replace_latents(self, form: LatentForm | None) -> None:
        """From now on latents have another form, and nothing is known of those before."""
        self.latents = form
        for stored in self.row:
            stored.has_latents = False

    def write_latents(self, stored: StoredEpisode, first: int, records: NDArray[Any]) -> bool:
        """Write the latents of consecutive rows; False if the episode is gone."""
        assert self.latents is not None
        path = stored.path + LATENTS_SUFFIX
        before = _size(path)
        after = self.latents.write(path, first, records)
        if not os.path.lexists(_file_of(stored)):
            # The process that fills the folder has deleted it, perhaps before this file was there.
            with suppress(FileNotFoundError):
                os.unlink(path)
            self._forget(stored)
            return False
        stored.nbytes += after - before
        stored.has_latents = True
        return True

    def read_latents(
        self, stored: StoredEpisode, first: int, count: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The latents of consecutive rows, and which of them were written."""
        assert self.latents is not None
        return self.latents.read(stored.path + LATENTS_SUFFIX, first, count)


def _modified(stored: StoredEpisode) -> int:
    return stored.modified_ns


def _path(folder: str, name: str) -> str:
    return os.path.join(folder, name + SUFFIX)


def _name(path: str) -> str:
    return os.path.basename(path).removesuffix(SUFFIX)


def _file_of(stored: StoredEpisode) -> str:
    """The file that is there as long as the episode is."""
    return stored.path + PARTIAL_SUFFIX if stored.is_running else stored.path


def _load_priorities(
    folder: str,
) -> tuple[float, dict[str, float], dict[str, NDArray[np.float64]]]:
    """The highest priority ever given, with which new steps start; those of steps that were not given one,
    and of every step, by the names of episodes.

    If they cannot be read, all start anew: no episode is lost by that.
    """
    path = os.path.join(folder, PRIORITIES_FILE)
    try:
        descriptor, _ = open_regular(path, follow_links=False)
        with ShardReader(FileSource(path, descriptor)) as reader:
            said = reader.read_json(_FILL)
            arrays = {
                name.removeprefix(_ARRAY): _checked(reader.read_entry(name))
                for name in reader.names()
                if name.startswith(_ARRAY)
            }
            fills = {str(name): float(fill) for name, fill in said["episodes"].items()}
            check_priorities(np.array([*fills.values(), said["top"]], np.float64))
            return float(said["top"]), fills, arrays
    except FileMissing:
        return 1.0, {}, {}
    except (FormatError, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        _log.warning("%s: all priorities start again: %s", path, error)
        return 1.0, {}, {}


def _checked(content: bytes) -> NDArray[np.float64]:
    values = np.frombuffer(content, "<f8").astype(np.float64)
    check_priorities(values)
    return values


def check_priorities(values: NDArray[np.float64]) -> None:
    if not ((values >= 0) & (values <= _MOST_PRIORITY)).all():
        raise ValueError(f"a priority is not a number from 0 to {_MOST_PRIORITY}")


def recover_all(folder: str, *, fsync: bool) -> None:
    """Recover the episodes that were being recorded into a folder when their process died."""
    for name in sorted(os.listdir(folder)):
        if not name.endswith(SUFFIX + PARTIAL_SUFFIX):
            continue
        partial = os.path.join(folder, name)
        path = partial.removesuffix(PARTIAL_SUFFIX)
        if not _size(partial) or is_being_recorded(partial):
            continue
        if os.path.lexists(path):
            # The episode was finished up to removing the journal (J-5), or was recovered with losses.
            continue
        try:
            with open_partial(partial) as episode:
                if not episode.length:
                    continue
            recovery = recover(partial, path, fsync=fsync)
        except FileMissing:  # another process has recovered it
            continue
        except DATA_ERRORS as error:
            _log.warning("%s: cannot be recovered: %s", partial, error)
            continue
        _log.warning("%s", recovery)
        if not recovery.lost_data:
            with suppress(FileNotFoundError):  # another process has recovered it, too
                os.unlink(partial)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
