"""A replay buffer that is a folder of episodes: bounded, sampled by windows, resumed by opening it."""

from __future__ import annotations

import logging
import math
import operator
import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import (
    Closed,
    FileMissing,
    InvalidArgument,
    ShardError,
    ShardIOError,
    check_choice,
)
from wshard._files import open_wshard, save_wshard
from wshard._folders import SUFFIX
from wshard._journal import PARTIAL_SUFFIX
from wshard.replay._drawing import Drawn, Lengths, WindowKind, by_priority, recent, uniform
from wshard.replay._episodes import STREAM_KEY, StoredEpisodes, check_priorities, recover_all
from wshard.replay._latents import LatentForm
from wshard.replay._reading import BATCH_KEYS, read_windows
from wshard.streaming import ChannelDef, StreamOptions, WShardStreamWriter
from wshard.types import DType, Episode
from wshard.windows import STEP_KEYS, wanted_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from shard_format import Compression
    from wshard.replay._episodes import StoredEpisode
    from wshard.windows import ChannelSpec

    Path = str | os.PathLike[str]
    Values = Mapping[str, ArrayLike] | ArrayLike
    Arrays = Mapping[str, NDArray[Any]]

__all__ = ["ReplayBuffer"]

_log = logging.getLogger("wshard")

_SAVE_SECONDS: Final = 5.0
_HOW: Final = ("uniform", "recent", "priority")
_PADDING: Final = ("none", "zero", "repeat")


@dataclass(slots=True)
class _Recording:
    """The running episode of a stream."""

    writer: WShardStreamWriter
    in_both_lanes: frozenset[str]
    """Names of observations that are names of actions, too."""
    stored: StoredEpisode | None = None
    """The episode, once windows can be drawn from it."""


class ReplayBuffer:
    """Episodes in a folder, from which you draw windows.

        with ReplayBuffer("replay", max_steps=1_000_000, seed=0) as replay:
            replay.add(observation, action, reward, terminated, truncated, next_observations=following)
            batch = replay.sample(16, 64)          # {"observation": [16, 64, ...], "action": ..., "reward": ...}
            replay.update_priorities(batch["indices"], errors)

    The folder is the state: every episode is a file, and you resume by opening the folder. `refresh` finds files that
    others put there, such as `wshard.gym.RecordEpisodes`. Age is the order of the file names, in which numbers
    count as numbers. Opening the folder recovers episodes that were being added when the process died.

    Steps can be drawn when their episode is over, or after `flush`. You may call methods from several threads;
    they run one at a time. `docs/replay.md` is a guide.

    Args:
        folder: where the episodes are; created if it is missing. A list of folders is for a learner: other processes
            fill them, each one its own, and this buffer draws from all of them. It adds and deletes nothing there;
            `refresh` finds new episodes. Age is then the time at which an episode was finished.
        max_steps: delete the oldest episodes above this many steps, on opening too,
        max_bytes: or above this many bytes of files. The newest episode always stays.
        seed: for drawing; the same seed over the same files draws the same windows.
        channels: which ones the windows have, names or block names such as `omen/state/dreamer`; by default all
            plain observations and actions that follow the steps.
        compression: of the episodes that you add, as for `WShardStreamWriter`.
        max_open: how many episodes stay open between draws. A compressed one may keep what it decoded.
        fsync: as for `wshard.streaming.StreamOptions`.
    """

    def __init__(
        self,
        folder: Path | Sequence[Path],
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
                raise InvalidArgument(f"{name} must be at least 1", found=value)
        is_owner = isinstance(folder, str | os.PathLike)
        self.folders: list[str] = (
            [os.fspath(folder)] if isinstance(folder, str | os.PathLike) else _distinct(folder)
        )
        if not is_owner and (max_steps is not None or max_bytes is not None):
            raise InvalidArgument(
                "a buffer over a list of folders deletes nothing",
                hint="pass max_steps and max_bytes where the folders are filled",
            )
        self.max_steps = max_steps
        self.max_bytes = max_bytes
        self._is_owner = is_owner
        self._channels = None if channels is None else list(channels)
        self._compression = compression
        self._fsync = fsync
        self._random = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._wanted: list[ChannelSpec] | None = None
        self._recordings: dict[int, _Recording] = {}
        """The running episodes, by stream."""
        self._lengths: Lengths | None = None
        self._has_own_latents = False
        """Whether the form of the latents is that of this process."""
        self._saved_at = time.monotonic()
        self._closed = False
        with self._used():
            for one in self.folders:
                os.makedirs(one, exist_ok=True)
                if is_owner:
                    recover_all(one, fsync=fsync != "never")
            self._episodes = StoredEpisodes(self.folders, max_open, is_owner=is_owner)
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
        """Damaged files, by name; by path if there are several folders. The buffer leaves them alone and does not
        count them."""
        with self._lock:
            skipped = self._episodes.skipped
            return {
                os.path.basename(path) if self._is_owner else path: error
                for path, error in skipped.items()
            }

    @property
    def episodes(self) -> list[str]:
        """The files, oldest first."""
        with self._lock:
            return [stored.path for stored in self._episodes.row]

    def __len__(self) -> int:
        return self.steps

    def windows(
        self,
        length: int,
        *,
        padding: str = "none",
        next_observations: bool = False,
        across_episodes: bool = False,
    ) -> int:
        """How many different windows there are, as `sample` takes them."""
        kind = _checked_kind(WindowKind(length, padding, next_observations, across_episodes))
        with self._lock:
            return int(self._measured().counts(kind).sum())

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
        stream: int = 0,
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
            stream: which environment or actor the step comes from: each has a running episode of its own. Episodes
                keep the number as `metadata["env_index"]`.
        """
        seen = _by_name(observations, "observation")
        done = {} if actions is None else _by_name(actions, "action")
        number = operator.index(stream)
        with self._used():
            self._ensure_open()
            recording = self._recordings.get(number)
            if recording is None:
                recording = self._recordings[number] = self._start(seen, done, number)
            # This form of the call takes names that both lanes have.
            recording.writer.write_timestep(
                recording.writer.steps_written,
                seen,
                done,
                reward=float(reward),
                terminated=bool(terminated),
                truncated=bool(truncated),
            )
            if terminated or truncated:
                self.end_episode(next_observations, stream=number)

    def _start(self, observations: Arrays, actions: Arrays, stream: int) -> _Recording:
        """A recording of channels like those of the first step."""
        path = self._episodes.reserve(self._own_folder())
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
                options=StreamOptions(fsync=self._fsync, may_roll=False),
            )
            writer.begin_episode(metadata={STREAM_KEY: stream})
        except BaseException:
            with suppress(OSError):
                os.unlink(path + PARTIAL_SUFFIX)
            raise
        return _Recording(writer, frozenset(observations.keys() & actions.keys()))

    def end_episode(self, next_observations: Values | None = None, *, stream: int = 0) -> None:
        """End the running episode of a stream where it is, for example because the environment was reset."""
        with self._used():
            recording = self._recordings.pop(operator.index(stream), None)
            if recording is None:
                return
            writer, stored = recording.writer, recording.stored
            last = {} if next_observations is None else _by_name(next_observations, "observation")
            both = recording.in_both_lanes
            last = {f"signal/{name}" if name in both else name: v for name, v in last.items()}
            writer.end_episode(final_observations=last)
            if stored is None:
                self._episodes.register(self.folders[0], writer.episode_id)
            else:
                self._episodes.update(stored)
            self._keep_bounds()

    def add_episode(self, episode: Episode | str | os.PathLike[str]) -> str:
        """Add a copy of an episode, from memory or from a file; return the path of the copy."""
        with self._used():
            self._ensure_open()
            folder = self._own_folder()
            given = open_wshard(episode) if not isinstance(episode, Episode) else episode
            path = self._episodes.reserve(folder)
            try:
                compression = self._compression
                if compression is None and given.origin is not None:
                    compression = "keep"
                save_wshard(given, path, compression, fsync=self._fsync != "never")
            finally:
                os.unlink(path + PARTIAL_SUFFIX)
                if given is not episode:
                    given.close()
            self._episodes.register(folder, os.path.basename(path).removesuffix(SUFFIX))
            self._keep_bounds()
            return path

    def flush(self) -> None:
        """Make the steps of all running episodes available to `sample`, and save the priorities."""
        with self._used():
            self._ensure_open()
            for recording in self._recordings.values():
                writer = recording.writer
                if writer.steps_written:
                    writer.flush()
                    if recording.stored is None:
                        recording.stored = self._episodes.new(self.folders[0], writer.episode_id)
                    self._episodes.update(recording.stored, is_running=True)
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
        across_episodes: bool = False,
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
            across_episodes: whether windows continue with the next episode of the same stream. An episode then has
                one more row than steps if the observation after its last step is known: that row holds the
                observation, `is_last` and `is_terminal`, and zeros for actions and reward.
            half_life: for `"recent"`: a window is half as likely as one that starts `half_life` steps later; by
                default a tenth of all windows.

        Returns:
            By name: the channels `[B, L, ...]`, `reward` (float32), and booleans `[B, L]`: `terminated` and
            `truncated` as you added them; `is_first` and `is_last` at the first and last row of an episode, `is_last`
            however it ended; `is_terminal` at the last row if it terminated; `is_pad`. Further `indices` `[B, 2]`, the
            episode and the first step, and `step_indices` `[B, L, 2]`, those of every step, for `update_priorities`
            and `update_latents`; and `probability` `[B]` of drawing the window. After `update_latents` also the latents,
            and `has_latents` `[B, L]`. A name that is both an observation and an action has its lane in front:
            `signal/arm`, `action/arm`.
        """
        if batch < 1 or length < 1:
            raise InvalidArgument("batch and length must be at least 1", found=f"{batch}, {length}")
        check_choice("value of how", how, _HOW)
        kind = _checked_kind(WindowKind(length, padding, next_observations, across_episodes))
        with self._used():
            self._ensure_open()
            while True:
                drawn = self._draw(batch, kind, how, half_life)
                try:
                    wanted = self._wanted_like(int(drawn.episodes[0]))
                    return read_windows(self._episodes, wanted, drawn, kind, self._measured())
                except FileMissing:
                    # The process that fills the folder has deleted an episode: draw from what is there now.
                    if not self._episodes.forget_missing():
                        raise
                    self.refresh()

    def update_priorities(self, indices: ArrayLike, values: ArrayLike) -> int:
        """Give steps that you drew another priority; return how many of them still exist.

        A file in each folder holds the priorities. It is saved every few seconds, by `flush` and by `close`.

        Args:
            indices: `[..., 2]`: `indices` of a batch for the first steps of its windows, or `step_indices` for every step.
            values: one for each, at least 0. Windows are drawn in proportion to them; to weaken that, raise them to
                a power below 1 first.
        """
        given = np.asarray(values, np.float64)
        places = _checked_indices(indices)
        if places.shape[:-1] != given.shape:
            raise InvalidArgument(
                "expected one priority for each index",
                expected="indices [..., 2] and values [...]",
                found=f"{list(places.shape)} and {list(given.shape)}",
            )
        try:
            check_priorities(given)
        except ValueError as error:
            raise InvalidArgument(str(error), found=given.ravel().tolist()[:8]) from None
        given = given.ravel()
        with self._used():
            self._ensure_open()
            updated = 0
            for stored, first, which in self._runs(places):
                self._episodes.prioritize(stored, first, given[which])
                updated += which.stop - which.start
            self._episodes.raise_top(float(given.max(initial=0)))
            if time.monotonic() - self._saved_at > _SAVE_SECONDS:
                self._save_priorities()
            return updated

    def update_latents(self, indices: ArrayLike, latents: Mapping[str, ArrayLike]) -> int:
        """Keep what a model computed for steps that you drew; return how many of the steps still exist.

        Later batches have the latents under these names. A step that was never written has what the channel of that name
        holds, or zeros if the episodes have no such channel, and False in `has_latents`.

        A file beside each episode holds its latents. Every call writes them there: they survive the death of the process,
        but not always a loss of power.

        Args:
            indices: `[..., 2]`, as `step_indices` of a batch. Steps of padding are left out.
            latents: by name, an array `[..., *shape]` of numbers. All calls give the same names, types and shapes. A
                process that opens the folder again may give others, which replace those that are there.
        """
        places = _checked_indices(indices)
        given = {name: np.asarray(values) for name, values in latents.items()}
        form = LatentForm.of(given, places.shape[:-1])
        with self._used():
            self._ensure_open()
            if not self._episodes.row:
                return 0
            self._take_form(form)
            assert self._episodes.latents is not None
            records = self._episodes.latents.records(given, places.size // 2)
            updated = 0
            for stored, first, which in self._runs(places):
                if self._episodes.write_latents(stored, first, records[which]):
                    updated += which.stop - which.start
            self._keep_bounds()
            return updated

    def close(self) -> None:
        """End all running episodes, save the priorities and close all files."""
        with self._used():
            if self._closed:
                return
            with ExitStack() as left:  # does all of it, last things first, even if some of it fails
                left.callback(self._episodes.close)
                left.callback(self._save_priorities)
                for stream in self._recordings:
                    left.callback(self.end_episode, stream=stream)
                self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self._where!r}: {len(self._episodes.row)} episodes, {self.steps} steps>"

    # --- windows

    def _measured(self) -> Lengths:
        """The lengths of the episodes, computed again when the episodes change."""
        if self._lengths is None or self._lengths.version != self._episodes.version:
            self._lengths = Lengths(self._episodes)
        return self._lengths

    def _draw(self, batch: int, kind: WindowKind, how: str, half_life: float | None) -> Drawn:
        counts = self._measured().counts(kind)
        if not counts.sum():
            what = "stream" if kind.across_episodes else "episode"
            other = "" if kind.across_episodes else ", or pass padding='zero' or 'repeat'"
            raise InvalidArgument(
                f"no {what} is long enough for a window",
                path=self._where,
                expected=f"one of {kind.length} steps",
                found=f"{len(self._episodes.row)} episodes, {self.steps} steps",
                hint=f"add episodes{other}",
            )
        if how == "uniform":
            return uniform(self._random, batch, counts)
        if how == "recent":
            return recent(self._random, batch, counts, half_life)
        return by_priority(self._random, batch, counts, self._episodes.row)

    def _wanted_like(self, place: int) -> list[ChannelSpec]:
        """The channels of all windows: those of the episode at this place of the row, at the first call."""
        if self._wanted is None:
            episode = self._episodes.open(self._episodes.row[place])
            self._wanted = wanted_channels(episode, self._channels, BATCH_KEYS)
            found = self._episodes.latents
            if found is not None:
                try:
                    _check_names(found, self._wanted)
                except InvalidArgument as error:
                    _log.warning("%s: the latents there are not used: %s", self._where, error)
                    self._episodes.replace_latents(None)
        return self._wanted

    # --- latents

    def _take_form(self, form: LatentForm) -> None:
        """Take over the form of latents that are written, if it is that of all others."""
        found = self._episodes.latents
        if found is None or found.header != form.header:
            if self._has_own_latents:
                raise InvalidArgument(
                    "all latents of a buffer have the same names, types and shapes",
                    expected=str(found),
                    found=str(form),
                )
            _check_names(form, self._wanted_like(-1))
            if found is not None:
                _log.warning("%s: latents (%s) are replaced by %s", self._where, found, form)
            self._episodes.replace_latents(form)
        self._has_own_latents = True

    def _runs(self, indices: NDArray[np.int64]) -> Iterator[tuple[StoredEpisode, int, slice]]:
        """Indices of steps that exist, as runs: the episode, the first step, and which of the indices they are."""
        flat = indices.reshape(-1, 2)
        if not len(flat):
            return
        is_break = (np.diff(flat, axis=0) != (0, 1)).any(axis=1)
        every = flat.tolist()
        for start, end in pairwise([0, *(np.flatnonzero(is_break) + 1).tolist(), len(every)]):
            number, first = every[start]
            stored = self._episodes.by_number(number)
            if stored is not None and 0 <= first < stored.rows:
                yield stored, first, slice(start, min(end, start + stored.rows - first))

    # --- state

    @property
    def _where(self) -> str:
        return ", ".join(self.folders)

    def _own_folder(self) -> str:
        """The folder that this buffer adds to."""
        if not self._is_owner:
            raise InvalidArgument(
                "a buffer over a list of folders only reads them",
                path=self._where,
                hint="open one folder, ReplayBuffer(folder), to add to it",
            )
        return self.folders[0]

    def _keep_bounds(self) -> None:
        if self._is_owner:
            self._episodes.evict(self.max_steps or math.inf, self.max_bytes or math.inf)

    def _save_priorities(self) -> None:
        self._episodes.save_priorities()
        self._saved_at = time.monotonic()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Hold the lock; an error of the system becomes one that names the file."""
        with self._lock:
            try:
                yield
            except ShardError:
                raise
            except OSError as error:
                where = self._where if error.filename is None else os.fsdecode(error.filename)
                raise ShardIOError.wrap(error, "the replay buffer failed", where) from error

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed("the replay buffer is closed", path=self._where)


def _distinct(folders: Sequence[Path]) -> list[str]:
    found = [os.fspath(folder) for folder in folders]
    if not found or len({os.path.realpath(folder) for folder in found}) < len(found):
        raise InvalidArgument("expected one or several different folders", found=found)
    return found


def _checked_kind(kind: WindowKind) -> WindowKind:
    check_choice("padding", kind.padding, _PADDING)
    if kind.across_episodes and (kind.padding != "none" or kind.next_observations):
        raise InvalidArgument(
            "windows that cross the ends of episodes have no padding and no next_observations",
            hint="the observation after the last step is a row of its own there",
        )
    return kind


def _checked_indices(indices: ArrayLike) -> NDArray[np.int64]:
    given = np.asarray(indices)
    if given.ndim < 1 or given.shape[-1] != 2 or given.dtype.kind not in "iu":
        raise InvalidArgument(
            "expected indices of a batch",
            expected="integers [..., 2]",
            found=f"{given.dtype} {list(given.shape)}",
        )
    return given.astype(np.int64)


def _check_names(form: LatentForm, wanted: Iterable[ChannelSpec]) -> None:
    """Refuse latents with a name that means something else in batches."""
    channels = {want.key: (want.dtype, want.shape) for want in wanted}
    reserved = {*BATCH_KEYS, *STEP_KEYS, "is_first", "is_pad"}
    for name, field in form.fields.items():
        if name in reserved or channels.get(name, field) != field:
            taken = channels.get(name)
            raise InvalidArgument(
                "latents cannot have this name",
                entry=name,
                expected=f"{taken[0]} {list(taken[1])}, as the channel has"
                if taken
                else "a free name",
                found=f"{field[0]} {list(field[1])}",
            )


def _by_name(values: Values, name: str) -> dict[str, NDArray[Any]]:
    """Arrays by name; a single array gets this name."""
    if isinstance(values, Mapping):
        return {key: np.asarray(value) for key, value in values.items()}
    return {name: np.asarray(values)}
