"""A replay buffer that is a folder of episodes: bounded, sampled by windows, resumed by opening it."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import Closed, InvalidArgument, ShardError
from wshard.dtypes import DType
from wshard.episode import Episode
from wshard.folders import SUFFIX, following, in_order, is_being_recorded, reserve
from wshard.journal import PARTIAL_SUFFIX
from wshard.reader import SIDECAR_SUFFIX, load_wshard
from wshard.recorded import open_partial, recover
from wshard.replay.drawing import by_priority, recent, uniform
from wshard.replay.priorities import Priorities, load_priorities, save_priorities
from wshard.replay.windows import Windows, follows_steps, wanted_channels
from wshard.streaming import ChannelDef, WShardStreamWriter
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from shard_format import Compression
    from wshard.replay.drawing import Drawn
    from wshard.replay.windows import Wanted

__all__ = ["ReplayBuffer"]

_log = logging.getLogger("wshard")

_SAVE_SECONDS: Final = 5.0
_HOW: Final = ("uniform", "recent", "priority")
_PADDING: Final = ("none", "zero", "repeat")


@dataclass(slots=True)
class _Stored:
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


class ReplayBuffer:
    """Episodes in a folder, from which windows are drawn.

        with ReplayBuffer("replay", max_steps=1_000_000, seed=0) as replay:
            replay.add(observation, action, reward, terminated, truncated, next_observations=following)
            batch = replay.sample(16, 64)          # {"observation": [16, 64, ...], "action": ..., "reward": ...}
            replay.update_priorities(batch["indices"], errors)

    The folder is the state: every episode is a file, and opening the folder resumes. Files that others put there,
    such as `wshard.gym.RecordEpisodes`, are found by `refresh`. Age is the order of the file names, with numbers
    in them counted. An episode that was being added when the process died is recovered on opening.

    Steps can be drawn when their episode is over, or after `flush`. Methods may be called from several
    threads, one at a time gets in.

    Args:
        folder: where the episodes are; made if it is not there.
        max_steps: above this many steps the oldest episodes are deleted, on opening too,
        max_bytes: or above this many bytes of files. The newest episode always stays.
        seed: for drawing; the same seed over the same files draws the same windows.
        channels: which ones the windows have, names or block names such as `omen/state/dreamer`; all plain
            observations and actions that follow the steps if left out.
        compression: of the episodes that are added, as for `WShardStreamWriter`.
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
        for name, value in (
            ("max_steps", max_steps),
            ("max_bytes", max_bytes),
            ("max_open", max_open),
        ):
            if value is not None and value < 1:
                raise InvalidArgument(f"{name} is at least 1", found=value)
        self.folder = os.fspath(folder)
        self.max_steps = max_steps
        self.max_bytes = max_bytes
        self.skipped: dict[str, ShardError] = {}
        """Files that cannot be read, by name. They are left alone and not counted."""
        self._channels = None if channels is None else list(channels)
        self._compression = compression
        self._max_open = max_open
        self._fsync = fsync
        self._random = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._stored: list[_Stored] = []  # oldest first
        self._by_number: dict[int, _Stored] = {}
        self._numbers = 0
        self._opened: OrderedDict[int, Episode] = OrderedDict()
        self._wanted: list[Wanted] | None = None
        self._writer: WShardStreamWriter | None = None
        self._writing: _Stored | None = None
        self._both: set[str] = set()
        self._kept = Priorities()
        self._saved_at = time.monotonic()
        self._is_changed = False
        self._closed = False
        os.makedirs(self.folder, exist_ok=True)
        self._recover()
        self._kept = load_priorities(self.folder)
        self.refresh()

    # --- what is in it

    @property
    def steps(self) -> int:
        """Steps that can be drawn from."""
        with self._lock:
            return sum(stored.steps for stored in self._stored)

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        with self._lock:
            return sum(stored.nbytes for stored in self._stored)

    @property
    def episodes(self) -> list[str]:
        """The files, oldest first."""
        with self._lock:
            return [self._path(stored.name) for stored in self._stored]

    def __len__(self) -> int:
        return self.steps

    def windows(
        self, length: int, *, padding: str = "none", next_observations: bool = False
    ) -> int:
        """How many different windows there are, as `sample` takes them."""
        with self._lock:
            return int(self._counts(length, padding, next_observations).sum())

    def refresh(self) -> None:
        """Takes in episodes and lanes that others have added since, forgets what is gone, and keeps the bounds."""
        with self._lock:
            self._ensure_open()
            while self._opened:
                self._opened.popitem()[1].close()
            there = {
                entry.name.removesuffix(SUFFIX): entry.path
                for entry in os.scandir(self.folder)
                if entry.name.endswith(SUFFIX) and entry.is_file()
            }
            for stored in [s for s in self._stored if s.name not in there and not s.is_running]:
                self._forget(stored)
            known = {stored.name for stored in self._stored}
            known.update(name.removesuffix(SUFFIX) for name in self.skipped)
            for name in sorted(there.keys() - known, key=in_order):
                self._register(name)
            self._stored.sort(key=lambda stored: in_order(stored.name))
            self._evict()

    # --- adding

    def add(
        self,
        observations: Mapping[str, ArrayLike] | ArrayLike,
        actions: Mapping[str, ArrayLike] | ArrayLike | None = None,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
        *,
        next_observations: Mapping[str, ArrayLike] | ArrayLike | None = None,
    ) -> None:
        """Adds a step to the running episode, and ends it if that was its last one.

        Args:
            observations: what was seen before the action, by name; one array is called `observation`.
            actions: what was done, by name; one array is called `action`.
            reward: what came of it.
            terminated: whether the episode is over because of it.
            truncated: whether it is cut off here.
            next_observations: what was seen after the action. Kept if the episode is over: else the next step
                brings it.
        """
        seen = _named(observations, "observation")
        done = {} if actions is None else _named(actions, "action")
        with self._lock:
            self._ensure_open()
            if self._writer is None:
                self._begin(seen, done)
            assert self._writer is not None
            both = self._both
            self._writer.write_timestep(
                {f"signal/{n}" if n in both else n: v for n, v in seen.items()}
                | {f"action/{n}" if n in both else n: v for n, v in done.items()},
                reward=float(reward),
                terminated=bool(terminated),
                truncated=bool(truncated),
            )
            if terminated or truncated:
                self.end_episode(next_observations)

    def end_episode(
        self, next_observations: Mapping[str, ArrayLike] | ArrayLike | None = None
    ) -> None:
        """Ends the running episode where it is, for example because the environment was reset."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is None:
                return
            running, self._writing = self._writing, None
            last = {} if next_observations is None else _named(next_observations, "observation")
            writer.end_episode(
                final_observations={
                    f"signal/{name}" if name in self._both else name: value
                    for name, value in last.items()
                }
            )
            name = os.path.basename(writer.path).removesuffix(SUFFIX)
            if running is None:
                self._register(name)
            else:
                self._update(running)
            self._stored.sort(key=lambda stored: in_order(stored.name))
            self._evict()

    def add_episode(self, episode: Episode | str | os.PathLike[str]) -> str:
        """Adds a copy of an episode, from memory or from a file; returns the path of the copy."""
        with self._lock:
            self._ensure_open()
            given = load_wshard(episode) if not isinstance(episode, Episode) else episode
            path = self._reserve()
            try:
                compression = self._compression
                if compression is None and given.origin is not None:
                    compression = "keep"
                save_wshard(given, path, compression, fsync=self._fsync != "never")
            finally:
                os.unlink(path + PARTIAL_SUFFIX)
                if given is not episode:
                    given.close()
            self._register(os.path.basename(path).removesuffix(SUFFIX))
            self._stored.sort(key=lambda stored: in_order(stored.name))
            self._evict()
            return path

    def flush(self) -> None:
        """Makes the steps of the running episode available to `sample`, and saves the priorities."""
        with self._lock:
            self._ensure_open()
            if self._writer is not None and self._writer.steps_written:
                self._writer.flush()
                if self._writing is None:
                    name = os.path.basename(self._writer.path).removesuffix(SUFFIX)
                    self._writing = self._new(name, is_running=True)
                    self._stored.sort(key=lambda stored: in_order(stored.name))
                self._update(self._writing, is_running=True)
                self._evict()
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
        """Draws windows, with replacement.

        Args:
            batch: how many, B.
            length: steps of each, L.
            how: `"uniform"`: every window is as likely as any other. `"recent"`: newer ones are more likely.
                `"priority"`: in proportion to the priority of a window's first step; new steps have the highest
                priority so far.
            padding: `"none"`: windows lie within an episode, and shorter episodes are left out. `"zero"` or
                `"repeat"`: windows start at any step, and what lies behind the end is zero, or the last step again.
            next_observations: whether observations have one entry more, L + 1: what followed the last step.
            half_life: for `"recent"`: a window is half as likely as one that starts so many steps later. A tenth
                of all windows if left out.

        Returns:
            By name: the channels `[B, L, ...]`, `reward` (float32), `terminated`, `truncated`, `is_first` and
            `is_pad` (booleans) `[B, L]`; `indices` `[B, 2]` for `update_priorities`: the episode and the first
            step; and `probability` `[B]`, with which the window was drawn. A name that is both an observation
            and an action has its lane in front: `signal/arm`, `action/arm`.
        """
        if batch < 1 or length < 1:
            raise InvalidArgument("batch and length are at least 1", found=f"{batch}, {length}")
        if how not in _HOW:
            raise InvalidArgument(
                "unknown way to draw", expected=" or ".join(map(repr, _HOW)), found=repr(how)
            )
        with self._lock:
            self._ensure_open()
            counts = self._counts(length, padding, next_observations)
            if not counts.sum():
                raise InvalidArgument(
                    "there is no window of this length",
                    path=self.folder,
                    expected=f"an episode of {length} steps",
                    found=f"{len(self._stored)} episodes, {self.steps} steps",
                    hint="add episodes, or pass padding='zero' or 'repeat'",
                )
            if how == "uniform":
                drawn = uniform(self._random, batch, counts)
            elif how == "recent":
                drawn = recent(self._random, batch, counts, half_life)
            else:
                drawn = by_priority(self._random, batch, counts, self._stored)
            return self._read(drawn, length, padding, next_observations)

    def update_priorities(self, indices: NDArray[np.integer[Any]], values: ArrayLike) -> int:
        """Gives windows that were drawn another priority; returns how many of them are still there.

        They are saved every few seconds, by `flush` and by `close`, in one file of the folder.

        Args:
            indices: `[B, 2]`, as in `sample`'s result.
            values: one for each, at least 0. A window is drawn in proportion to it, so raise errors to a power
                before if you want less than that.
        """
        places = np.asarray(indices)
        given = np.asarray(values, np.float64)
        if places.ndim != 2 or places.shape[1] != 2 or given.shape != places.shape[:1]:
            raise InvalidArgument(
                "there is one priority for each window",
                expected="indices [B, 2] and values [B]",
                found=f"{list(places.shape)} and {list(given.shape)}",
            )
        if not (np.isfinite(given).all() and (given >= 0).all()):
            raise InvalidArgument("a priority is a number of at least 0", found=given.tolist()[:8])
        with self._lock:
            self._ensure_open()
            updated = 0
            for (number, start), value in zip(places.tolist(), given.tolist(), strict=True):
                stored = self._by_number.get(number)
                if stored is None or not 0 <= start < stored.steps:
                    continue  # deleted since
                if stored.priorities is None:
                    stored.priorities = np.full(stored.steps, stored.fill)
                stored.priorities[start] = value
                stored.sums.clear()
                updated += 1
            self._kept.top = max([self._kept.top, *given.tolist()])
            self._is_changed = self._is_changed or updated > 0
            if time.monotonic() - self._saved_at > _SAVE_SECONDS:
                self._save_priorities()
            return updated

    def close(self) -> None:
        """Ends the running episode, saves the priorities and closes all files."""
        with self._lock:
            if self._closed:
                return
            try:
                self.end_episode()
                self._save_priorities()
            finally:
                self._closed = True
                while self._opened:
                    self._opened.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self.folder!r}: {len(self._stored)} episodes, {self.steps} steps>"

    # --- files

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name + SUFFIX)

    def _reserve(self) -> str:
        names = [stored.name for stored in self._stored]
        names += [name.removesuffix(SUFFIX) for name in self.skipped]
        name = following(max(names, key=in_order, default=None))
        while not reserve(self._path(name)):
            name = following(name)
        return self._path(name)

    def _recover(self) -> None:
        """Brings back what was being recorded when its process died."""
        for name in sorted(os.listdir(self.folder)):
            if not name.endswith(SUFFIX + PARTIAL_SUFFIX):
                continue
            partial = os.path.join(self.folder, name)
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
                recovery = recover(partial, path, fsync=self._fsync != "never")
            except ShardError as error:
                _log.warning("%s: cannot be recovered: %s", partial, error)
                continue
            _log.warning("%s", recovery)
            if not recovery.lost_data:
                os.unlink(partial)

    def _register(self, name: str) -> None:
        try:
            stored = self._new(name)
            self._update(stored)
        except ShardError as error:
            self._forget(stored)
            self.skipped[name + SUFFIX] = error
            _log.warning("%s: left out of the replay buffer: %s", name + SUFFIX, error)

    def _new(self, name: str, *, is_running: bool = False) -> _Stored:
        fill = self._kept.fills.pop(name, self._kept.top)
        stored = _Stored(self._numbers, name, 0, 0, 0, fill, is_running=is_running)
        stored.priorities = self._kept.arrays.pop(name, None)
        self._numbers += 1
        self._stored.append(stored)
        self._by_number[stored.number] = stored
        return stored

    def _update(self, stored: _Stored, *, is_running: bool = False) -> None:
        """Looks at an episode anew: how long it is, and how large."""
        self._let_go(stored)
        stored.is_running = is_running
        episode = self._open(stored)
        stored.steps = episode.length
        lengths = [c.length for c in episode.observations.values() if follows_steps(c)]
        stored.observed = min(lengths, default=episode.length + 1)
        if stored.priorities is not None and len(stored.priorities) != stored.steps:
            longer = np.full(stored.steps, stored.fill)
            same = min(len(longer), len(stored.priorities))
            longer[:same] = stored.priorities[:same]
            stored.priorities = longer
        stored.sums.clear()
        path = self._path(stored.name)
        stored.nbytes = _size(path) + _size(path + PARTIAL_SUFFIX)
        with suppress(OSError):
            stored.nbytes += sum(
                entry.stat().st_size for entry in os.scandir(path + SIDECAR_SUFFIX)
            )

    def _evict(self) -> None:
        """Deletes the oldest until the rest keeps the bounds."""
        steps, nbytes = self.steps, self.nbytes
        while len(self._stored) > 1 and (
            (self.max_steps is not None and steps > self.max_steps)
            or (self.max_bytes is not None and nbytes > self.max_bytes)
        ):
            oldest = self._stored[0]
            if oldest.is_running:
                return
            steps -= oldest.steps
            nbytes -= oldest.nbytes
            self._forget(oldest)
            path = self._path(oldest.name)
            for file in (path, path + PARTIAL_SUFFIX):
                with suppress(FileNotFoundError):
                    os.unlink(file)
            shutil.rmtree(path + SIDECAR_SUFFIX, ignore_errors=True)

    def _forget(self, stored: _Stored) -> None:
        self._let_go(stored)
        self._stored.remove(stored)
        del self._by_number[stored.number]

    def _open(self, stored: _Stored) -> Episode:
        found = self._opened.get(stored.number)
        if found is None:
            path = self._path(stored.name)
            found = open_partial(path) if stored.is_running else load_wshard(path)
            self._opened[stored.number] = found
            if len(self._opened) > self._max_open:
                self._opened.popitem(last=False)[1].close()
        else:
            self._opened.move_to_end(stored.number)
        return found

    def _let_go(self, stored: _Stored) -> None:
        episode = self._opened.pop(stored.number, None)
        if episode is not None:
            episode.close()

    def _begin(self, seen: Mapping[str, NDArray[Any]], done: Mapping[str, NDArray[Any]]) -> None:
        channels = [
            ChannelDef(name, DType.from_numpy(value.dtype), value.shape, lane=lane)
            for lane, values in (("signal", seen), ("action", done))
            for name, value in values.items()
        ]
        path = self._reserve()
        try:
            writer = WShardStreamWriter(
                path,
                os.path.basename(path).removesuffix(SUFFIX),
                channels,
                compression=self._compression,
                fsync=self._fsync,
            )
            writer.begin_episode()
        except BaseException:
            with suppress(OSError):
                os.unlink(path + PARTIAL_SUFFIX)
            raise
        self._writer = writer
        self._both = seen.keys() & done.keys()

    # --- windows

    def _counts(self, length: int, padding: str, next_observations: bool) -> NDArray[np.int64]:
        """How many windows each episode has."""
        if padding not in _PADDING:
            raise InvalidArgument(
                "unknown padding", expected=" or ".join(map(repr, _PADDING)), found=repr(padding)
            )
        usable = np.array([s.usable(next_observations) for s in self._stored], np.int64)
        return np.maximum(usable if padding != "none" else usable - length + 1, 0)

    def _read(
        self, drawn: Drawn, length: int, padding: str, next_observations: bool
    ) -> dict[str, NDArray[Any]]:
        episodes = [self._stored[place] for place in drawn.episodes.tolist()]
        if self._wanted is None:
            self._wanted = wanted_channels(self._open(episodes[0]), self._channels)
        windows = Windows(
            len(episodes),
            length,
            self._wanted,
            more=next_observations,
            repeat=padding == "repeat",
        )
        for row, (stored, start) in enumerate(zip(episodes, drawn.starts.tolist(), strict=True)):
            stop = min(start + length, stored.usable(next_observations))
            windows.fill(row, self._open(stored), self._path(stored.name), start, stop)
        numbers = np.array([stored.number for stored in episodes], np.int64)
        return {
            **windows.arrays,
            "indices": np.stack([numbers, drawn.starts], axis=1),
            "probability": drawn.probability,
        }

    # --- priorities

    def _save_priorities(self) -> None:
        if self._is_changed:
            save_priorities(
                self.folder,
                self._kept.top,
                {stored.name: stored.fill for stored in self._stored},
                {s.name: s.priorities for s in self._stored if s.priorities is not None},
            )
        self._saved_at = time.monotonic()
        self._is_changed = False

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed("the replay buffer is closed", path=self.folder)


def _named(values: Mapping[str, ArrayLike] | ArrayLike, name: str) -> dict[str, NDArray[Any]]:
    if isinstance(values, Mapping):
        return {key: np.asarray(value) for key, value in values.items()}
    return {name: np.asarray(values)}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
