"""Recording an episode step by step, so that nothing that was flushed can be lost."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, SupportsFloat

from shard_format import Codec, Compression
from shard_format._atomic import sync_folder
from shard_format._json import canonical
from shard_format.errors import BadMetadata, Closed, InvalidArgument, ShardError, ShardIOError
from wshard._finishing import ChunkFinisher
from wshard._recorder import Recorder, io_failure
from wshard._rolling import Roller
from wshard._tracks import LARGEST_RUN_BYTES, Track
from wshard.dtypes import DType
from wshard.journal import JournalWriter, Kind
from wshard.journaled import save_recorded
from wshard.labels import Interval
from wshard.metadata import parse_facts, timebase_fields
from wshard.names import DONE, TIMESTAMPS, check_id, time_block
from wshard.recordable import BESIDES, ChannelDef, RecordedChannel, StepLayout, nanoseconds
from wshard.recording_files import RecordingFiles
from wshard.recovering import meet_old_recording
from wshard.timebase import Timebase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import ArrayLike
    from typing_extensions import Self

    from wshard.episode import Episode

__all__ = ["ChannelDef", "WShardStreamWriter"]

_log = logging.getLogger("wshard")

_OVERFLOW: Final = ("block", "drop", "error")
_FSYNC: Final = ("never", "interval", "always")
_ON_PARTIAL: Final = ("refuse", "recover", "discard")
_RAW: Final = Compression(Codec.NONE)
# A file with a limit of its own holds at least so many runs before it is full.
_RUNS_IN_FILE: Final = 8


class WShardStreamWriter:
    """Records an episode step by step.

        with WShardStreamWriter("ep.wshard", "ep_001", [{"id": "state", "dtype": "f32", "shape": [4]}]) as w:
            w.begin_episode(env_id="Reach-v1")
            for observation, reward, done in steps:
                w.write_timestep({"state": observation}, reward=reward, done=done)
            w.end_episode()

    Until `end_episode` everything is in `<path>.partial`, a journal in which every flushed run proves itself;
    after a crash `recover` brings it back. Steps are handed to a thread that compresses and writes. Several
    threads may record, each for example a camera of its own. In a forked child the writer is closed.

    A long recording goes on in another file whenever one is full, and becomes an episode in chunks:
    `<name>_chunk_0000.wshard`, …, and `<name>_manifest.wshard`, which names every finished chunk and opens as one
    episode at any time. Chunks are finished on another thread, while the recording goes on. That happens
    where a limit is given, and without one before a compressed channel has more than the 1 GiB that readers
    take as one block. A file ends at whole steps, and starts with one: no file ends while steps do not come.

    Args:
        path: where the finished episode will appear.
        episode_id: who it is.
        channels: `ChannelDef`s, or dictionaries with the same fields.
        compression: for channels that do not say: `"none"`, `"zstd"` or `"zstd:LEVEL"`. With zstd the first run
            decides for a channel: raw if that saves too little, differences of steps if these are smaller.
        flush_steps: a run is written after so many steps,
        flush_seconds: or after so much time, whichever comes first.
        fsync: `"never"`, `"interval"` (once a second) or `"always"` (after every run).
        overflow: what a step does when the disk cannot keep up: `"block"` waits, `"drop"` leaves the step out
            and counts it, `"error"` raises.
        buffer_bytes: how much may wait to be written.
        on_partial: what to do about a journal that is already there: `"refuse"`, `"recover"` it beside
            the new recording first, or `"discard"` it, with its finished chunks.
        max_steps_per_file: the longest chunk.
        max_bytes_per_file: the largest chunk, on the disk; above it by one run at most.
        may_roll: False makes one file, whatever its size; a compressed channel above 1 GiB is then stored raw.
    """

    _clock = staticmethod(time.monotonic)

    def __init__(
        self,
        path: str | os.PathLike[str],
        episode_id: str,
        channels: Iterable[ChannelDef | Mapping[str, Any]],
        *,
        compression: str | Compression | None = None,
        flush_steps: int = 64,
        flush_seconds: float = 0.5,
        fsync: str = "interval",
        overflow: str = "block",
        buffer_bytes: int = 24 << 20,
        on_partial: str = "refuse",
        max_steps_per_file: int | None = None,
        max_bytes_per_file: int | None = None,
        may_roll: bool = True,
    ) -> None:
        for name, value, allowed in (
            ("fsync", fsync, _FSYNC),
            ("overflow", overflow, _OVERFLOW),
            ("on_partial", on_partial, _ON_PARTIAL),
        ):
            if value not in allowed:
                raise InvalidArgument(
                    f"unknown {name}", expected=" or ".join(map(repr, allowed)), found=repr(value)
                )
        if flush_steps < 1 or not flush_seconds > 0:
            raise InvalidArgument("flush_steps and flush_seconds are above 0")
        limits = [limit for limit in (max_steps_per_file, max_bytes_per_file) if limit is not None]
        if any(limit < 1 for limit in limits) or (limits and not may_roll):
            raise InvalidArgument(
                "a limit for files is above 0, and not for a recording in one file", found=limits
            )
        if not episode_id:
            raise InvalidArgument("an episode needs an id", found=repr(episode_id))
        self.path = os.fspath(path)
        self._files = RecordingFiles(self.path)
        self.episode_id = episode_id
        self._default = Compression.parse(compression)
        self._flush_steps = flush_steps
        self._flush_seconds = flush_seconds
        self._fsync = fsync
        self._overflow = overflow
        self._buffer_bytes = buffer_bytes
        self._on_partial = on_partial
        self._max_steps = max_steps_per_file
        self._max_bytes = max_bytes_per_file
        self._may_roll = may_roll
        self._defs = [ChannelDef.of(channel) for channel in channels]
        self._keys = self._checked_keys()

        self._roller: Roller | None = None
        self._recorder: Recorder | None = None
        self._steps: Track | None = None
        self._step_layout: StepLayout | None = None
        self._clocked: dict[str, Track] = {}
        self._channels = 0
        """Channels that the journal knows."""
        self._closed = False

    def _checked_keys(self) -> list[str]:
        """What each channel is called in steps: its id, or its block where two lanes have that id."""
        counts = Counter(channel.id for channel in self._defs)
        for channel in self._defs:
            check_id(channel.id, "a channel")
            channel.recorded(self._default)
        keys = [c.id if counts[c.id] == 1 else f"{c.lane}/{c.id}" for c in self._defs]
        for key, count in Counter(keys).items():
            if count > 1:
                raise InvalidArgument("a channel is there twice", entry=key)
        return keys

    # --- a recording

    def begin_episode(
        self,
        env_id: str = "",
        timebase: Timebase | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens the journal.

        Args:
            env_id: where it happens.
            timebase: the clock of the steps; 30 Hz if left out.
            metadata: any JSON.
        """
        self._ensure_open()
        if self._recorder is not None:
            raise InvalidArgument("the episode has begun already", path=self.path)
        clocked = self._clocked_tracks()
        rows = self._numbered(channel for track in clocked.values() for channel in track.channels)
        start = self._start_fields(env_id, timebase or Timebase(), metadata, rows)
        journal = self._begun(canonical(start))
        if self._may_roll:
            is_synced = self._fsync != "never"
            self._roller = Roller(
                self._files,
                start,
                ChunkFinisher(self._files, self.episode_id, env_id, fsync=is_synced),
                max_steps=self._max_steps,
                max_bytes=self._max_bytes,
                has_steps=not all(channel.own_clock for channel in self._defs),
                fsync=is_synced,
            )
        self._clocked = clocked
        self._recorder = Recorder(
            journal,
            flush_seconds=self._flush_seconds,
            fsync=self._fsync,
            overflow=self._overflow,
            buffer_bytes=self._buffer_bytes,
            roller=self._roller,
            clock=self._clock,
        )
        self._recorder.tracks += clocked.values()

    def _begun(self, start: bytes) -> JournalWriter:
        """The first journal, locked, after what was there before has been dealt with."""
        journal = JournalWriter(self._files.journal(0))
        is_new = not journal.old_size
        is_synced = self._fsync != "never"
        try:
            meet_old_recording(self._files, self._on_partial, fsync=is_synced)
            if self._may_roll:
                self._files.check_free()
            journal.clear()
        except BaseException:
            if is_new:
                journal.remove()
            journal.close()
            raise
        try:
            journal.append_text(Kind.START, start)
            if is_synced:
                journal.sync()
                sync_folder(os.path.dirname(os.path.realpath(journal.path)))
        except OSError as error:
            journal.remove()
            raise ShardIOError.wrap(error, "cannot record", journal.path) from error
        return journal

    def _start_fields(
        self,
        env_id: str,
        timebase: Timebase,
        metadata: Mapping[str, Any] | None,
        rows: list[dict[str, Any]],
    ) -> dict[str, Any]:
        episode = {
            "env_id": env_id,
            "episode_id": self.episode_id,
            "timebase": timebase_fields(timebase),
            **({"metadata": deepcopy(dict(metadata))} if metadata else {}),
        }
        try:
            parse_facts({**episode, "length_T": 0}, {})
        except BadMetadata as error:
            raise InvalidArgument(error.problem, path=self.path, found=error.found) from None
        return {"v": 1, "episode": episode, "channels": rows}

    def write_timestep(
        self,
        values: Mapping[str, Any] | int,
        *older: Any,  # noqa: ANN401 - observations, actions, reward, done
        reward: SupportsFloat | None = None,
        done: bool | np.bool_ | None = None,
        terminated: bool | np.bool_ | None = None,
        truncated: bool | np.bool_ | None = None,
        timestamp_ns: int | np.integer[Any] | None = None,
    ) -> bool:
        """Records one step: a value for every channel that has no clock of its own.

        What is given besides the values at the first step is expected at every step; an end that is left out
        later is False. `done` beside `terminated` or `truncated` must be their union. The older call
        `write_timestep(t, observations, actions, reward, done)` works too. A value that does not fit raises
        and names the channel; nothing of that step is recorded, and the recording goes on.

        Returns:
            Whether the step was recorded; False only with `overflow="drop"`.
        """
        actions: Mapping[str, Any] = {}
        if type(values) is not dict and not isinstance(values, Mapping):
            observations, actions, reward, done = _older_arguments(older, reward, done)
            values = self._by_key(observations, actions)
        elif older:
            raise InvalidArgument("give reward and done by name", path=self.path)
        recorder = self._recorder
        if recorder is None or recorder.failure is not None:
            recorder = self._recording()
        if terminated is not None or truncated is not None:
            if done is not None and bool(done) != (bool(terminated) or bool(truncated)):
                raise InvalidArgument(
                    "done is not the union of terminated and truncated", path=self.path, entry=DONE
                )
            done = None  # derived
        time_ns = None if timestamp_ns is None else nanoseconds(timestamp_ns, TIMESTAMPS)
        besides = (reward, done, terminated, truncated, time_ns)
        layout, track = self._step_layout, self._steps
        if layout is None or track is None:
            layout = self._layout(actions, besides)
            layout.check(values, besides)
            track = self._declare_steps(layout)
        return recorder.record_step(track, layout, values, besides, time_ns)

    def write(self, channel: str, value: ArrayLike, timestamp_ns: int | np.integer[Any]) -> bool:
        """Records one entry of a channel with a clock of its own; returns whether it was."""
        recorder = self._recording()
        track = self._clocked.get(channel)
        if track is None:
            raise InvalidArgument(
                "this channel has no clock of its own",
                path=self.path,
                entry=channel,
                expected=", ".join(self._clocked) or "a channel with own_clock=True",
            )
        time_ns = nanoseconds(timestamp_ns, channel)
        return recorder.record(track, (track.channels[0].checked(value), time_ns), time_ns)

    def annotate(
        self,
        text: str,
        start: int | None = None,
        end: int | None = None,
        *,
        label: str = "notes",
        source: str = "",
        confidence: float | None = None,
    ) -> None:
        """Labels steps; from `start` to `end`, or the step that comes next.

        Args:
            text: what it says.
            start: first step.
            end: end of the steps.
            label: the label lane.
            source: who says so.
            confidence: how sure.
        """
        recorder = self._recording()
        check_id(label, "a label")
        first = self.steps_written if start is None else start
        interval = Interval(first, first + 1 if end is None else end, text, source, confidence)
        note = {"label": label, "interval": interval.to_fields(), "unit": "steps"}
        canonical(note)  # raises where it cannot be stored
        recorder.note(note)

    @property
    def steps_written(self) -> int:
        """Steps that were recorded so far."""
        return 0 if self._steps is None else self._steps.written

    @property
    def partial_path(self) -> str:
        """The journal that is written now."""
        return self._files.journal(0) if self._recorder is None else self._recorder.journal.path

    @property
    def episode_path(self) -> str:
        """What to load when the episode is finished: the path, or the manifest of a recording in chunks."""
        is_rolled = self._roller is not None and self._roller.index > 0
        return self._files.names.manifest if is_rolled else self.path

    @property
    def dropped(self) -> dict[str, int]:
        """Entries that were left out by block, because the disk could not keep up."""
        return {} if self._recorder is None else self._recorder.dropped

    def flush(self) -> None:
        """Returns when everything recorded so far is in the journal."""
        self._recording().flush()

    def end_episode(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        final_observations: Mapping[str, Any] | None = None,
        complete: Callable[[Episode], None] | None = None,
    ) -> None:
        """Finishes the episode: it appears under its name, `episode_path`, and the journal goes.

        If that fails the journal stays, for `recover`.

        Args:
            metadata: to be added to what `begin_episode` was given.
            final_observations: what was seen after the last step, for any of the channels of `signal/`.
            complete: called with the episode before it is saved, to add what could not be recorded. Not for
                recordings in chunks, most of which are saved already.
        """
        recorder = self._recording()
        if complete is not None and self.episode_path != self.path:
            raise InvalidArgument(
                "a recording in several files cannot be completed",
                path=self.path,
                hint="end it without, or record with may_roll=False",
            )
        canonical(dict(metadata or {}))
        if self._steps is None:
            self._declare_steps(self._layout({}, (None,) * len(BESIDES)))
        last = self._checked_last(final_observations or {})
        try:
            recorder.flush()
            if last:
                recorder.record_last(last)
                recorder.flush()
            recorder.stop()
            self._finish(recorder, metadata or {}, complete)
        except OSError as error:
            if isinstance(error, ShardError) and error.path == self.partial_path:
                raise
            raise io_failure(error, self.partial_path) from error
        finally:
            self.close()

    def _finish(
        self,
        recorder: Recorder,
        metadata: Mapping[str, Any],
        complete: Callable[[Episode], None] | None,
    ) -> None:
        journal = recorder.journal
        end = {"metadata": dict(metadata), "dropped": recorder.dropped_here}
        text = canonical({key: value for key, value in end.items() if value})
        journal.append_text(Kind.END, text)
        if self._roller is not None and self._roller.index:
            self._roller.finisher.finish_all(journal)
            return
        is_synced = self._fsync != "never"
        save_recorded(journal.path, self.path, fsync=is_synced, change=complete)
        journal.remove()

    def _checked_last(self, values: Mapping[str, Any]) -> list[tuple[RecordedChannel, Any]]:
        assert self._step_layout is not None
        channels = self._step_layout.named
        checked = []
        for key, value in values.items():
            channel = channels.get(key)
            if channel is None or not channel.block.startswith("signal/"):
                raise InvalidArgument(
                    "this is no observation of the steps", path=self.path, entry=str(key)
                )
            checked.append((channel, channel.checked(value)))
        return checked

    def abort(self) -> None:
        """Gives the recording up and deletes the journal, and the chunks that are finished."""
        if self._closed:
            return
        self._closed = True
        recorder = self._recorder
        if recorder is not None:
            is_ours = recorder.journal.descriptor >= 0  # and not a parent's
            recorder.stop()
            if is_ours:
                if self._roller is not None and self._roller.index:
                    self._roller.finisher.remove()
                recorder.journal.remove()

    def close(self) -> None:
        """Stops recording and keeps the journal, for `recover`. After `end_episode` it does nothing."""
        if self._closed:
            return
        self._closed = True
        recorder = self._recorder
        if recorder is None:
            return
        is_ours = recorder.journal.descriptor >= 0
        try:
            if recorder.failure is None:
                recorder.flush()
        finally:
            recorder.stop()
            if self._roller is not None:
                if is_ours:
                    self._roller.finisher.stop()
                self._roller.finisher.close()
            recorder.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if self._closed or self._recorder is None:
            self.close()
            return
        if error is None:
            self.end_episode()
            return
        said = f"the recording up to here is in {self.partial_path}; bring it back with: wshard recover"
        try:
            self.close()
        except ShardError as failure:  # the error that led here is the one to show
            said = str(failure)
        _log.warning("%s", said)
        if hasattr(error, "add_note"):
            error.add_note(said)

    # --- what a step is

    def _numbered(self, channels: Iterable[RecordedChannel]) -> list[dict[str, Any]]:
        """The rows of channels that the journal is told of now, in the order of their numbers."""
        rows: list[dict[str, Any]] = []
        for channel in channels:
            channel.number = self._channels + len(rows)
            rows.append(channel.row)
        self._channels += len(rows)
        return rows

    def _clocked_tracks(self) -> dict[str, Track]:
        tracks: dict[str, Track] = {}
        self._channels = 0
        for channel, key in zip(self._defs, self._keys, strict=True):
            if channel.own_clock:
                recorded = channel.recorded(self._default)
                name = recorded.row["time_block"] = time_block(recorded.block)
                clock = RecordedChannel(name, name, DType.INT64, (), _RAW)
                tracks[key] = self._track([recorded, clock])
        return tracks

    def _track(self, channels: list[RecordedChannel]) -> Track:
        largest = LARGEST_RUN_BYTES
        if self._max_bytes is not None:
            largest = min(largest, self._max_bytes // _RUNS_IN_FILE)
        return Track(channels, self._flush_steps, self._buffer_bytes, largest)

    def _layout(self, actions: Mapping[str, Any], besides: tuple[Any, ...]) -> StepLayout:
        """What every step will be, from what the first one brings."""
        channels: dict[str, RecordedChannel] = {}
        for channel, key in zip(self._defs, self._keys, strict=True):
            if not channel.own_clock:
                lane = "action" if key in actions else channel.lane
                channels[key] = channel.recorded(self._default, lane)
        return StepLayout(channels, besides, self.path)

    def _declare_steps(self, layout: StepLayout) -> Track:
        """Tells the journal what every step is; before the first of them."""
        recorder = self._recording()
        track = self._track(layout.channels)
        recorder.declare(track, self._numbered(track.channels))
        self._step_layout, self._steps = layout, track
        return track

    def _by_key(
        self, observations: Mapping[str, Any], actions: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The values of the older call, which has the lanes apart."""
        values: dict[str, Any] = {}
        for lane, given in (("signal", observations), ("action", actions)):
            for name, value in given.items():
                block = f"{lane}/{name}"
                values[block if block in self._keys else name] = value
        return values

    # --- state

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed("the recording is over", path=self.path)

    def _recording(self) -> Recorder:
        self._ensure_open()
        if self._recorder is None:
            raise InvalidArgument("call begin_episode first", path=self.path)
        self._recorder.raise_failure()
        return self._recorder


def _older_arguments(
    older: tuple[Any, ...], reward: SupportsFloat | None, done: bool | np.bool_ | None
) -> tuple[Mapping[str, Any], Mapping[str, Any], SupportsFloat | None, bool | np.bool_ | None]:
    if len(older) > 4:
        raise InvalidArgument(
            "too many arguments", expected="t, observations, actions, reward, done"
        )
    observations = (older[0] if older else None) or {}
    actions = (older[1] if len(older) > 1 else None) or {}
    reward = older[2] if len(older) > 2 else reward
    done = older[3] if len(older) > 3 else done
    return observations, actions, reward, done
