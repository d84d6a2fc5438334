"""A replay buffer that is a folder of episodes: bounded, sampled by windows, resumed by opening it."""

from __future__ import annotations

import bisect
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format import ShardReader, ShardWriter
from shard_format.atomic import locked, remove_flat
from shard_format.cache import BoundedCache
from shard_format.canonical_json import canonical
from shard_format.errors import (
    DATA_ERRORS,
    Closed,
    FileMissing,
    FormatError,
    InvalidArgument,
    ShardError,
    ShardIOError,
)
from shard_format.sources import FileSource, open_regular
from wshard._files import open_wshard, save_wshard
from wshard._folders import SUFFIX, following, in_order, is_being_recorded, reserve
from wshard._journal import PARTIAL_SUFFIX
from wshard._sidecar import SIDECAR_SUFFIX
from wshard.partial import open_partial, recover
from wshard.streaming import ChannelDef, WShardStreamWriter
from wshard.types import DType, Episode
from wshard.windows import Windows, WindowSource, follows_steps, wanted_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from shard_format import Compression
    from wshard.windows import ChannelSpec

    Values = Mapping[str, ArrayLike] | ArrayLike
    Arrays = Mapping[str, NDArray[Any]]

__all__ = ["ReplayBuffer"]

_log = logging.getLogger("wshard")

# One file beside the episodes, replaced as a whole, holds their priorities.
PRIORITIES_FILE: Final = "priorities.shard"
_FILL: Final = "fill"
_ARRAY: Final = "priority/"
_MOST_PRIORITY: Final = 1e100  # sums of them stay finite
_JSON: Final = 2
_SAVE_SECONDS: Final = 5.0
_HOW: Final = ("uniform", "recent", "priority")
_PADDING: Final = ("none", "zero", "repeat")
# Files that are damaged, or that another process has evicted meanwhile.
_LEFT_OUT: Final[tuple[type[ShardError], ...]] = (*DATA_ERRORS, FileMissing)


class ReplayBuffer:
    """Episodes in a folder, from which you draw windows.

        with ReplayBuffer("replay", max_steps=1_000_000, seed=0) as replay:
            replay.add(observation, action, reward, terminated, truncated, next_observations=following)
            batch = replay.sample(16, 64)          # {"observation": [16, 64, ...], "action": ..., "reward": ...}
            replay.update_priorities(batch["indices"], errors)

    The folder is the state: every episode is a file, and you resume by opening the folder. `refresh` finds files that
    others put there, such as `wshard.gym.RecordEpisodes`. Age is the order of the file names, in which numbers
    count as numbers. Opening the folder recovers an episode that was being added when the process died.

    Steps can be drawn when their episode is over, or after `flush`. You may call methods from several threads;
    they run one at a time.

    Args:
        folder: where the episodes are; created if it is missing.
        max_steps: delete the oldest episodes above this many steps, on opening too,
        max_bytes: or above this many bytes of files. The newest episode always stays.
        seed: for drawing; the same seed over the same files draws the same windows.
        channels: which ones the windows have, names or block names such as `omen/state/dreamer`; by default all
            plain observations and actions that follow the steps.
        compression: of the episodes that you add, as for `WShardStreamWriter`.
        max_open: how many episodes stay open between draws. A compressed one may keep what it decoded.
        fsync: as for `WShardStreamWriter`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_steps: int | None = None,
        max_bytes: int | None = None,
        seed: int | None = None,
        channels: Iterable[str] | None = None,
        compression: str | Compression | None = None,
        max_open: int = 64,
        fsync: str = "interval",
    ) -> None:
        bounds = {"max_steps": max_steps, "max_bytes": max_bytes, "max_open": max_open}
        for name, value in bounds.items():
            if value is not None and value < 1:
                raise InvalidArgument(f"{name} is at least 1", found=value)
        self.folder = os.fspath(folder)
        self.max_steps = max_steps
        self.max_bytes = max_bytes
        self._channels = None if channels is None else list(channels)
        self._compression = compression
        self._fsync = fsync
        self._random = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._wanted: list[ChannelSpec] | None = None
        self._writer: WShardStreamWriter | None = None
        """Of the episode that is being added."""
        self._running: _StoredEpisode | None = None
        """That episode, once windows can be drawn from it."""
        self._saved_at = time.monotonic()
        self._is_changed = False
        self._closed = False
        with self._used():
            os.makedirs(self.folder, exist_ok=True)
            _recover_all(self.folder, fsync=fsync != "never")
            self._episodes = _StoredEpisodes(self.folder, max_open)
            self.refresh()

    # --- what is in it

    @property
    def steps(self) -> int:
        """Steps that can be drawn from."""
        with self._lock:
            return sum(stored.steps for stored in self._episodes.row)

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        with self._lock:
            return sum(stored.nbytes for stored in self._episodes.row)

    @property
    def skipped(self) -> dict[str, ShardError]:
        """Damaged files, by name. The buffer leaves them alone and does not count them."""
        with self._lock:
            return {name + SUFFIX: error for name, error in self._episodes.skipped.items()}

    @property
    def episodes(self) -> list[str]:
        """The files, oldest first."""
        with self._lock:
            return [self._episodes.path(stored.name) for stored in self._episodes.row]

    def __len__(self) -> int:
        return self.steps

    def windows(
        self, length: int, *, padding: str = "none", next_observations: bool = False
    ) -> int:
        """How many different windows there are, as `sample` takes them."""
        with self._lock:
            return int(self._counts(length, padding, next_observations).sum())

    def refresh(self) -> None:
        """Take in episodes and lanes that others added, forget those that are gone, and keep the bounds."""
        with self._used():
            self._ensure_open()
            self._episodes.refresh()
            self._keep_bounds()

    # --- adding

    def add(
        self,
        observations: Values,
        actions: Values | None = None,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
        *,
        next_observations: Values | None = None,
    ) -> None:
        """Add a step to the running episode, and end the episode if that was its last step.

        Args:
            observations: what the agent saw before the action, by name; a single array is called `observation`.
            actions: what it did, by name; a single array is called `action`.
            reward: of the action.
            terminated: whether the episode is over because of it.
            truncated: whether the episode is cut off here.
            next_observations: what the agent saw after the action. Kept if the episode is over; else the next
                step brings it.
        """
        seen = _by_name(observations, "observation")
        done = {} if actions is None else _by_name(actions, "action")
        with self._used():
            self._ensure_open()
            if self._writer is None:
                self._writer = self._start(seen, done)
            # This form of the call takes names that both lanes have.
            self._writer.write_timestep(
                self._writer.steps_written,
                seen,
                done,
                reward=float(reward),
                terminated=bool(terminated),
                truncated=bool(truncated),
            )
            if terminated or truncated:
                self.end_episode(next_observations)

    def _start(self, observations: Arrays, actions: Arrays) -> WShardStreamWriter:
        """A writer for channels like those of the first step."""
        path = self._episodes.reserve()
        channels = [
            ChannelDef(name, DType.from_numpy(value.dtype), value.shape, lane=lane)
            for lane, values in (("signal", observations), ("action", actions))
            for name, value in values.items()
        ]
        try:
            writer = WShardStreamWriter(
                path,
                os.path.basename(path).removesuffix(SUFFIX),
                channels,
                compression=self._compression,
                fsync=self._fsync,
                may_roll=False,
            )
            writer.begin_episode()
        except BaseException:
            with suppress(OSError):
                os.unlink(path + PARTIAL_SUFFIX)
            raise
        self._in_both_lanes = observations.keys() & actions.keys()
        return writer

    def end_episode(self, next_observations: Values | None = None) -> None:
        """End the running episode where it is, for example because the environment was reset."""
        with self._used():
            writer, self._writer = self._writer, None
            stored, self._running = self._running, None
            if writer is None:
                return
            last = {} if next_observations is None else _by_name(next_observations, "observation")
            both = self._in_both_lanes
            last = {f"signal/{name}" if name in both else name: v for name, v in last.items()}
            writer.end_episode(final_observations=last)
            if stored is None:
                self._episodes.register(writer.episode_id)
            else:
                self._episodes.update(stored)
            self._keep_bounds()

    def add_episode(self, episode: Episode | str | os.PathLike[str]) -> str:
        """Add a copy of an episode, from memory or from a file; return the path of the copy."""
        with self._used():
            self._ensure_open()
            given = open_wshard(episode) if not isinstance(episode, Episode) else episode
            path = self._episodes.reserve()
            try:
                compression = self._compression
                if compression is None and given.origin is not None:
                    compression = "keep"
                save_wshard(given, path, compression, fsync=self._fsync != "never")
            finally:
                os.unlink(path + PARTIAL_SUFFIX)
                if given is not episode:
                    given.close()
            self._episodes.register(os.path.basename(path).removesuffix(SUFFIX))
            self._keep_bounds()
            return path

    def flush(self) -> None:
        """Make the steps of the running episode available to `sample`, and save the priorities."""
        with self._used():
            self._ensure_open()
            writer = self._writer
            if writer is not None and writer.steps_written:
                writer.flush()
                self._running = self._running or self._episodes.new(writer.episode_id)
                self._episodes.update(self._running, is_running=True)
                self._keep_bounds()
            self._save_priorities()

    # --- drawing

    def sample(
        self,
        batch: int,
        length: int,
        how: str = "uniform",
        *,
        padding: str = "none",
        next_observations: bool = False,
        half_life: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Draw windows, with replacement.

        Args:
            batch: how many, B.
            length: steps of each, L.
            how: `"uniform"`: every window is as likely as any other. `"recent"`: newer ones are more likely.
                `"priority"`: in proportion to the priority of a window's first step; new steps have the highest
                priority so far.
            padding: `"none"`: windows lie within an episode, and shorter episodes are left out. `"zero"` or
                `"repeat"`: windows start at any step, and steps after the end are zero, or the last step again.
            next_observations: whether observations have L + 1 entries: also the one after the last step.
            half_life: for `"recent"`: a window is half as likely as one that starts `half_life` steps later; by
                default a tenth of all windows.

        Returns:
            By name: the channels `[B, L, ...]`, `reward` (float32), `terminated`, `truncated`, `is_first` and
            `is_pad` (booleans) `[B, L]`; `indices` `[B, 2]` for `update_priorities`: the episode and the first
            step; and `probability` `[B]` of drawing the window. A name that is both an observation
            and an action has its lane in front: `signal/arm`, `action/arm`.
        """
        if batch < 1 or length < 1:
            raise InvalidArgument("batch and length are at least 1", found=f"{batch}, {length}")
        if how not in _HOW:
            raise InvalidArgument(
                "unknown value of how", expected=" or ".join(map(repr, _HOW)), found=repr(how)
            )
        with self._used():
            self._ensure_open()
            counts = self._counts(length, padding, next_observations)
            if not counts.sum():
                raise InvalidArgument(
                    "no episode is long enough for a window",
                    path=self.folder,
                    expected=f"an episode of {length} steps",
                    found=f"{len(self._episodes.row)} episodes, {self.steps} steps",
                    hint="add episodes, or pass padding='zero' or 'repeat'",
                )
            if how == "uniform":
                drawn = _uniform(self._random, batch, counts)
            elif how == "recent":
                drawn = _recent(self._random, batch, counts, half_life)
            else:
                drawn = _by_priority(self._random, batch, counts, self._episodes.row)
            return self._read(drawn, length, padding, next_observations)

    def update_priorities(self, indices: NDArray[np.integer[Any]], values: ArrayLike) -> int:
        """Give windows that you drew another priority; return how many of them still exist.

        One file of the folder holds the priorities. It is saved every few seconds, by `flush` and by `close`.

        Args:
            indices: `[B, 2]`, as in `sample`'s result.
            values: one for each, at least 0. Windows are drawn in proportion to them; to weaken that, raise them to
                a power below 1 first.
        """
        places = np.asarray(indices)
        given = np.asarray(values, np.float64)
        if places.ndim != 2 or places.shape[1] != 2 or given.shape != places.shape[:1]:
            raise InvalidArgument(
                "expected one priority for each window",
                expected="indices [B, 2] and values [B]",
                found=f"{list(places.shape)} and {list(given.shape)}",
            )
        try:
            _check_priorities(given)
        except ValueError as error:
            raise InvalidArgument(str(error), found=given.tolist()[:8]) from None
        with self._used():
            self._ensure_open()
            updated = sum(
                self._episodes.prioritize(number, start, value)
                for (number, start), value in zip(places.tolist(), given.tolist(), strict=True)
            )
            self._is_changed = self._is_changed or updated > 0
            if time.monotonic() - self._saved_at > _SAVE_SECONDS:
                self._save_priorities()
            return updated

    def close(self) -> None:
        """End the running episode, save the priorities and close all files."""
        with self._used():
            if self._closed:
                return
            try:
                self.end_episode()
                self._save_priorities()
            finally:
                self._closed = True
                self._episodes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self.folder!r}: {len(self._episodes.row)} episodes, {self.steps} steps>"

    def _keep_bounds(self) -> None:
        self._episodes.evict(self.max_steps or math.inf, self.max_bytes or math.inf)

    # --- windows

    def _counts(self, length: int, padding: str, next_observations: bool) -> NDArray[np.int64]:
        """How many windows each episode has."""
        if padding not in _PADDING:
            raise InvalidArgument(
                "unknown padding", expected=" or ".join(map(repr, _PADDING)), found=repr(padding)
            )
        usable = np.array([s.usable(next_observations) for s in self._episodes.row], np.int64)
        return np.maximum(usable if padding != "none" else usable - length + 1, 0)

    def _read(
        self, drawn: _Drawn, length: int, padding: str, next_observations: bool
    ) -> dict[str, NDArray[Any]]:
        episodes = [self._episodes.row[place] for place in drawn.episodes.tolist()]
        if self._wanted is None:
            self._wanted = wanted_channels(
                self._episodes.open(episodes[0]), self._channels, ("indices", "probability")
            )
        repeat = padding == "repeat"
        windows = Windows(
            len(episodes), length, self._wanted, more=next_observations, repeat=repeat
        )
        for row, (stored, start) in enumerate(zip(episodes, drawn.starts.tolist(), strict=True)):
            stop = min(start + length, stored.usable(next_observations))
            episode, path = self._episodes.open(stored), self._episodes.path(stored.name)
            windows.fill(row, WindowSource(episode, path, self._wanted), start, stop)
        numbers = np.array([stored.number for stored in episodes], np.int64)
        return {
            **windows.arrays,
            "indices": np.stack([numbers, drawn.starts], axis=1),
            "probability": drawn.probability,
        }

    # --- priorities

    def _save_priorities(self) -> None:
        if self._is_changed:
            self._episodes.save_priorities()
        self._saved_at = time.monotonic()
        self._is_changed = False

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Hold the lock; an error of the system becomes one that names the file."""
        with self._lock:
            try:
                yield
            except ShardError:
                raise
            except OSError as error:
                where = self.folder if error.filename is None else os.fsdecode(error.filename)
                raise ShardIOError.wrap(error, "the replay buffer failed", where) from error

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed("the replay buffer is closed", path=self.folder)


def _by_name(values: Values, name: str) -> dict[str, NDArray[Any]]:
    """Arrays by name; a single array gets this name."""
    if isinstance(values, Mapping):
        return {key: np.asarray(value) for key, value in values.items()}
    return {name: np.asarray(values)}


# --- drawing: numbers of windows in, places out


class _Drawn(NamedTuple):
    """Windows that were drawn."""

    episodes: NDArray[np.int64]
    """The position of each one's episode in the row of episodes, oldest first."""
    starts: NDArray[np.int64]
    probability: NDArray[np.float64]


def _uniform(random: np.random.Generator, batch: int, counts: NDArray[np.int64]) -> _Drawn:
    """Every window is as likely as any other."""
    total = int(counts.sum())
    return _at(random.integers(total, size=batch), np.full(batch, 1 / total), counts)


def _recent(
    random: np.random.Generator, batch: int, counts: NDArray[np.int64], half_life: float | None
) -> _Drawn:
    """A window is half as likely as the one that follows it by `half_life` windows."""
    if half_life is not None and not half_life > 0:
        raise InvalidArgument("half_life is above 0", found=half_life)
    total = int(counts.sum())
    rate = math.log(2) / (max(1.0, total / 10) if half_life is None else half_life)
    # Ages 0, 1, … are drawn in proportion to exp(-rate * age), by the inverse of their sum.
    everything = -math.expm1(-rate * total)
    drawn = -np.log1p(-random.random(batch) * everything) / rate
    ages = np.minimum(drawn.astype(np.int64), total - 1)
    probability = np.exp(-rate * ages) * -math.expm1(-rate) / everything
    return _at(total - 1 - ages, probability, counts)


def _by_priority(
    random: np.random.Generator,
    batch: int,
    counts: NDArray[np.int64],
    episodes: Sequence[_StoredEpisode],
) -> _Drawn:
    """In proportion to the priority of a window's first step: first the episode, then the window in it."""
    weights = [e.weight(n) for e, n in zip(episodes, counts.tolist(), strict=True)]
    ends = np.cumsum(weights)
    total = float(ends[-1])
    if not total > 0:
        raise InvalidArgument("all priorities are 0")
    places = _proportional(random.random(batch), ends)
    starts = np.empty(batch, np.int64)
    probability = np.empty(batch)
    for row, (place, drawn) in enumerate(zip(places.tolist(), random.random(batch), strict=True)):
        episode = episodes[place]
        starts[row] = _proportional(drawn, episode.sums[: counts[place]])
        probability[row] = episode.priorities[starts[row]] / total
    return _Drawn(places, starts, probability)


def _at(
    places: NDArray[np.int64], probability: NDArray[np.float64], counts: NDArray[np.int64]
) -> _Drawn:
    """Windows by their place in the row of all windows, oldest first."""
    ends = np.cumsum(counts)
    episodes = np.searchsorted(ends, places, side="right").astype(np.int64)
    return _Drawn(episodes, places - (ends[episodes] - counts[episodes]), probability)


def _proportional(random: Any, sums: NDArray[np.float64]) -> Any:  # noqa: ANN401 - one number or many
    """Places in proportion to weights with these running sums, of which the last is above 0."""
    places = np.searchsorted(sums, random * sums[-1], side="right")
    # Rounding may bring a draw to the very end.
    return np.minimum(places, np.searchsorted(sums, sums[-1]))


# --- the folder


@dataclass(slots=True)
class _StoredEpisode:
    """An episode of the buffer."""

    number: int
    name: str
    """Of its file, without the suffix."""
    fill: float
    """The priority of steps that were not given one."""
    priorities: NDArray[np.float64]
    """Of every step."""
    is_running: bool = False
    """Whether it is still being recorded."""
    steps: int = 0
    observed: int = 0
    """Entries that every observation has: steps + 1 if the observation after the last step is there."""
    nbytes: int = 0
    running_sums: NDArray[np.float64] | None = None

    @property
    def sums(self) -> NDArray[np.float64]:
        """The running sums of the priorities."""
        if self.running_sums is None:
            self.running_sums = np.cumsum(self.priorities)
        return self.running_sums

    def weight(self, windows: int) -> float:
        """The sum of the priorities of the first N steps."""
        return float(self.sums[windows - 1]) if windows else 0.0

    def usable(self, next_observations: bool) -> int:
        """Steps that windows can be made of, if each needs the observation after it or not."""
        return min(self.steps, self.observed - 1) if next_observations else self.steps

    def measure(self, episode: Episode) -> None:
        """Take over the length of the episode."""
        self.steps = episode.length
        lengths = [c.length for c in episode.observations.values() if follows_steps(c)]
        self.observed = min(lengths, default=episode.length + 1)
        more = max(0, self.steps - len(self.priorities))
        self.priorities = np.append(self.priorities[: self.steps], np.full(more, self.fill))
        self.running_sums = None


class _StoredEpisodes:
    """The episodes of a folder, oldest first. The caller holds the buffer's lock.

    Owns: the row of episodes, the files that are open, the priorities, and `skipped`.
    """

    def __init__(self, folder: str, max_open: int) -> None:
        self.row: list[_StoredEpisode] = []
        """Oldest first."""
        self.skipped: dict[str, ShardError] = {}
        """Damaged files, by name."""
        self._by_number: dict[int, _StoredEpisode] = {}
        self._folder = folder
        self._top, self._fills, self._arrays = _load_priorities(folder)
        self._numbers = count()
        self._opened: BoundedCache[int, Episode] = BoundedCache(
            count=max_open, on_evict=lambda episode: episode.close(), holds_files=True
        )

    # --- files

    def path(self, name: str) -> str:
        """The file of an episode."""
        return os.path.join(self._folder, name + SUFFIX)

    def reserve(self) -> str:
        """A path behind all others, with an empty journal that holds its place."""
        names = [*(stored.name for stored in self.row), *self.skipped]
        name = following(max(names, key=in_order, default=None))
        while not reserve(self.path(name)):
            name = following(name)
        return self.path(name)

    def refresh(self) -> None:
        """Take in files and lanes that others added, and forget files that are gone."""
        self.close()
        there = {
            entry.name.removesuffix(SUFFIX)
            for entry in os.scandir(self._folder)
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False)
        }
        for stored in [s for s in self.row if s.name not in there and not s.is_running]:
            self._forget(stored)
        known = {*(stored.name for stored in self.row), *self.skipped}
        for name in sorted(there - known, key=in_order):
            self.register(name)

    # --- the row

    def register(self, name: str) -> None:
        """Take in a finished episode, or note that it is damaged."""
        stored = self.new(name)
        try:
            self.update(stored)
        except BaseException as error:
            self._forget(stored)
            self._fills[name], self._arrays[name] = stored.fill, stored.priorities
            if not isinstance(error, _LEFT_OUT):
                raise
            self.skipped[name] = error
            _log.warning("%s: left out of the replay buffer: %s", name + SUFFIX, error)

    def new(self, name: str) -> _StoredEpisode:
        """An episode of which only the saved priorities are known."""
        fill, own = self._fills.pop(name, self._top), self._arrays.pop(name, np.zeros(0))
        stored = _StoredEpisode(next(self._numbers), name, fill, own)
        bisect.insort(self.row, stored, key=lambda other: in_order(other.name))
        self._by_number[stored.number] = stored
        return stored

    def update(self, stored: _StoredEpisode, *, is_running: bool = False) -> None:
        """Measure an episode anew: its steps, and the size of its files."""
        self._let_go(stored)
        stored.is_running = is_running
        stored.measure(self.open(stored))
        path = self.path(stored.name)
        stored.nbytes = _size(path) + _size(path + PARTIAL_SUFFIX)
        missing = (FileNotFoundError, NotADirectoryError)
        with suppress(*missing), os.scandir(path + SIDECAR_SUFFIX) as sidecars:
            stored.nbytes += sum(entry.stat(follow_symlinks=False).st_size for entry in sidecars)

    def evict(self, max_steps: float, max_bytes: float) -> None:
        """Delete the oldest episodes until the rest keeps the bounds. The newest stays."""
        steps, nbytes = sum(s.steps for s in self.row), sum(s.nbytes for s in self.row)
        while len(self.row) > 1 and (steps > max_steps or nbytes > max_bytes):
            oldest = self.row[0]
            if oldest.is_running:
                return
            steps -= oldest.steps
            nbytes -= oldest.nbytes
            self._forget(oldest)
            path = self.path(oldest.name)
            with locked(path):  # somebody may be adding a lane
                for file in (path, path + PARTIAL_SUFFIX):
                    with suppress(FileNotFoundError):
                        os.unlink(file)
                with suppress(OSError):  # there are none, or somebody put something else there
                    remove_flat(path + SIDECAR_SUFFIX)

    def _forget(self, stored: _StoredEpisode) -> None:
        self._let_go(stored)
        self.row.remove(stored)
        del self._by_number[stored.number]

    # --- open episodes

    def open(self, stored: _StoredEpisode) -> Episode:
        """The episode; the least recently used one is closed when more than `max_open` are open."""
        load = open_partial if stored.is_running else open_wshard
        return self._opened.get_or_make(stored.number, lambda: load(self.path(stored.name)))

    def close(self) -> None:
        """Close all files."""
        self._opened.clear()

    def _let_go(self, stored: _StoredEpisode) -> None:
        episode = self._opened.pop(stored.number)
        if episode is not None:
            episode.close()

    # --- priorities

    def prioritize(self, number: int, step: int, priority: float) -> bool:
        """Give a step another priority; False if its episode was deleted."""
        self._top = max(self._top, priority)
        stored = self._by_number.get(number)
        if stored is None or not 0 <= step < stored.steps:
            return False
        stored.priorities[step] = priority
        stored.running_sums = None
        return True

    def save_priorities(self) -> None:
        """Replace the file of priorities; a reader finds the old file or the new one, never a part."""
        path = os.path.join(self._folder, PRIORITIES_FILE)
        if os.path.islink(path):  # the writer would replace what it leads to
            os.unlink(path)
        with ShardWriter(path, fsync=False) as writer:
            fills = {stored.name: stored.fill for stored in self.row}
            text = canonical({"episodes": fills, "top": self._top})
            writer.write_entry(_FILL, text, content_type=_JSON)
            for stored in self.row:
                if (stored.priorities != stored.fill).any():
                    values = np.ascontiguousarray(stored.priorities, "<f8")
                    writer.write_entry(_ARRAY + stored.name, values)


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
            _check_priorities(np.array([*fills.values(), said["top"]], np.float64))
            return float(said["top"]), fills, arrays
    except FileMissing:
        return 1.0, {}, {}
    except (FormatError, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        _log.warning("%s: all priorities start again: %s", path, error)
        return 1.0, {}, {}


def _checked(content: bytes) -> NDArray[np.float64]:
    values = np.frombuffer(content, "<f8").astype(np.float64)
    _check_priorities(values)
    return values


def _check_priorities(values: NDArray[np.float64]) -> None:
    if not ((values >= 0) & (values <= _MOST_PRIORITY)).all():
        raise ValueError(f"a priority is not a number from 0 to {_MOST_PRIORITY}")


def _recover_all(folder: str, *, fsync: bool) -> None:
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
            os.unlink(partial)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
