"""A replay buffer that is a folder of episodes: bounded, sampled by windows, resumed by opening it."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import Closed, InvalidArgument
from wshard.episode import Episode
from wshard.folders import SUFFIX
from wshard.journal import PARTIAL_SUFFIX
from wshard.reader import load_wshard
from wshard.replay.drawing import by_priority, recent, uniform
from wshard.replay.episodes import StoredEpisodes, recover_all
from wshard.replay.priorities import load_priorities, save_priorities
from wshard.replay.running import RunningEpisode, named
from wshard.windows import Sources, Windows, wanted_channels
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from shard_format import Compression
    from wshard.replay.drawing import Drawn
    from wshard.windows import Wanted

__all__ = ["ReplayBuffer"]

_SAVE_SECONDS: Final = 5.0
_HOW: Final = ("uniform", "recent", "priority")
_PADDING: Final = ("none", "zero", "repeat")


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
        self._channels = None if channels is None else list(channels)
        self._compression = compression
        self._fsync = fsync
        self._random = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._wanted: list[Wanted] | None = None
        self._running: RunningEpisode | None = None
        self._saved_at = time.monotonic()
        self._is_changed = False
        self._closed = False
        os.makedirs(self.folder, exist_ok=True)
        recover_all(self.folder, fsync=fsync != "never")
        self._known = load_priorities(self.folder)
        self._episodes = StoredEpisodes(self.folder, self._known, max_open)
        self.skipped = self._episodes.skipped
        """Files that cannot be read, by name. They are left alone and not counted."""
        self.refresh()

    # --- what is in it

    @property
    def steps(self) -> int:
        """Steps that can be drawn from."""
        with self._lock:
            return self._episodes.steps

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        with self._lock:
            return self._episodes.nbytes

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
        """Takes in episodes and lanes that others have added since, forgets what is gone, and keeps the bounds."""
        with self._lock:
            self._ensure_open()
            self._episodes.refresh()
            self._keep_bounds()

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
        seen = named(observations, "observation")
        done = {} if actions is None else named(actions, "action")
        with self._lock:
            self._ensure_open()
            if self._running is None:
                self._running = RunningEpisode(
                    self._episodes.reserve(), seen, done, self._compression, self._fsync
                )
            self._running.add(seen, done, float(reward), bool(terminated), bool(truncated))
            if terminated or truncated:
                self.end_episode(next_observations)

    def end_episode(
        self, next_observations: Mapping[str, ArrayLike] | ArrayLike | None = None
    ) -> None:
        """Ends the running episode where it is, for example because the environment was reset."""
        with self._lock:
            running, self._running = self._running, None
            if running is None:
                return
            last = {} if next_observations is None else named(next_observations, "observation")
            running.end(last)
            if running.stored is None:
                self._episodes.register(running.name)
            else:
                self._episodes.update(running.stored)
            self._keep_bounds()

    def add_episode(self, episode: Episode | str | os.PathLike[str]) -> str:
        """Adds a copy of an episode, from memory or from a file; returns the path of the copy."""
        with self._lock:
            self._ensure_open()
            given = load_wshard(episode) if not isinstance(episode, Episode) else episode
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
        """Makes the steps of the running episode available to `sample`, and saves the priorities."""
        with self._lock:
            self._ensure_open()
            running = self._running
            if running is not None and running.steps:
                running.flush()
                if running.stored is None:
                    running.stored = self._episodes.new(running.name, is_running=True)
                self._episodes.update(running.stored, is_running=True)
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
                    found=f"{len(self._episodes.row)} episodes, {self.steps} steps",
                    hint="add episodes, or pass padding='zero' or 'repeat'",
                )
            if how == "uniform":
                drawn = uniform(self._random, batch, counts)
            elif how == "recent":
                drawn = recent(self._random, batch, counts, half_life)
            else:
                drawn = by_priority(self._random, batch, counts, self._episodes.row)
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
                stored = self._episodes.by_number.get(number)
                if stored is None or not 0 <= start < stored.steps:
                    continue  # deleted since
                stored.prioritize(start, value)
                updated += 1
            self._known.top = max([self._known.top, *given.tolist()])
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
                self._episodes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self.folder!r}: {len(self._episodes.row)} episodes, {self.steps} steps>"

    def _keep_bounds(self) -> None:
        self._episodes.evict(self.max_steps, self.max_bytes)

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
        self, drawn: Drawn, length: int, padding: str, next_observations: bool
    ) -> dict[str, NDArray[Any]]:
        episodes = [self._episodes.row[place] for place in drawn.episodes.tolist()]
        if self._wanted is None:
            self._wanted = wanted_channels(
                self._episodes.open(episodes[0]), self._channels, ("indices", "probability")
            )
        windows = Windows(
            len(episodes),
            length,
            self._wanted,
            more=next_observations,
            repeat=padding == "repeat",
        )
        for row, (stored, start) in enumerate(zip(episodes, drawn.starts.tolist(), strict=True)):
            stop = min(start + length, stored.usable(next_observations))
            episode, path = self._episodes.open(stored), self._episodes.path(stored.name)
            windows.fill(row, Sources(episode, path, self._wanted), start, stop)
        numbers = np.array([stored.number for stored in episodes], np.int64)
        return {
            **windows.arrays,
            "indices": np.stack([numbers, drawn.starts], axis=1),
            "probability": drawn.probability,
        }

    # --- priorities

    def _save_priorities(self) -> None:
        if self._is_changed:
            row = self._episodes.row
            save_priorities(
                self.folder,
                self._known.top,
                {stored.name: stored.fill for stored in row},
                {s.name: s.priorities for s in row if s.priorities is not None},
            )
        self._saved_at = time.monotonic()
        self._is_changed = False

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed("the replay buffer is closed", path=self.folder)
