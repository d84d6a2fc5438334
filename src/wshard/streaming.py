"""Record an episode step by step; nothing that was flushed can be lost."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, SupportsFloat

from shard_format import Compression
from shard_format.canonical_json import canonical
from shard_format.errors import (
    BadMetadata,
    Closed,
    InvalidArgument,
    ShardError,
    ShardIOError,
    check_choice,
)
from wshard._channel_def import STEP_FIELDS, ChannelDef, RecordedChannel, StepSchema, nanoseconds
from wshard._file_roller import ChunkFinisher, FileRoller, add_overviews
from wshard._folders import RecordingFiles
from wshard._journal import FrameKind, JournalWriter
from wshard._journal_episode import save_journal
from wshard._labels import Interval
from wshard._lanes import DONE, TIMESTAMPS, check_id, time_block
from wshard._metadata import Timebase, parse_facts, timebase_fields
from wshard._record_buffers import ChannelGroup, StreamOptions
from wshard._recorder import Recorder, io_failure
from wshard._sidecar import changing, check_no_sidecars
from wshard._values import DType
from wshard.overviews import require_encoder
from wshard.partial import resolve_existing_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import ArrayLike
    from typing_extensions import Self

    from wshard._episode import Episode

__all__ = ["ChannelDef", "StreamOptions", "WShardStreamWriter"]

_log = logging.getLogger("wshard")


class WShardStreamWriter:
    """Records an episode step by step.

        with WShardStreamWriter("ep.wshard", "ep_001", [{"id": "state", "dtype": "f32", "shape": [4]}]) as w:
            w.begin_episode(env_id="Reach-v1")
            for observation, reward, done in steps:
                w.write_timestep({"state": observation}, reward=reward, done=done)
            w.end_episode()

    Until `end_episode`, everything is in `<path>.partial`, a journal whose runs have their own checksums; after a
    crash, `recover` brings it back. A thread compresses and writes. Several threads may record, for example one
    for each camera. In a forked child the writer is closed.

    A long recording continues in another file when one is full, and becomes an episode in chunks:
    `<name>_chunk_0000.wshard`, …, and `<name>_manifest.wshard`, which names all finished chunks and opens as one
    episode at any time. Another thread finishes chunks while you record. This happens if `options` sets a limit, and
    otherwise before a compressed channel exceeds the 1 GiB that readers accept as one block. A file ends between
    two steps.

    Args:
        path: where the finished episode appears. Missing folders are created.
        episode_id: the id of the episode.
        channels: `ChannelDef`s, or dictionaries with the same fields.
        compression: for channels that state none: `"none"`, `"zstd"` or `"zstd:LEVEL"`. With zstd, the first run
            of a channel decides: raw if that saves too little, differences of steps if these are smaller.
        on_partial: what to do with the journal of an earlier recording: `"refuse"`, `"recover"` it beside the
            new recording, or `"discard"` it with its finished chunks.
        overwrite: replace a finished episode at `path`; it stays until the new one is complete. Without it, an
            existing file is an error.
        options: a `StreamOptions`: how often to flush and sync, what happens if the disk is too slow, and the limits for
            a file.
    """

    _clock = staticmethod(time.monotonic)

    def __init__(
        self,
        path: str | os.PathLike[str],
        episode_id: str,
        channels: Iterable[ChannelDef | Mapping[str, Any]],
        *,
        compression: str | Compression | None = None,
        on_partial: str = "refuse",
        overwrite: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        check_choice("on_partial", on_partial, ("refuse", "recover", "discard"))
        self._on_partial = on_partial
        self._overwrite = overwrite
        self._options = options or StreamOptions()
        if not episode_id:
            raise InvalidArgument("an episode needs an id", found=repr(episode_id))
        self.path = os.fspath(path)
        self._files = RecordingFiles(self.path)
        self.episode_id = episode_id
        self._default = Compression.parse(compression)
        self._defs = [ChannelDef.of(channel) for channel in channels]
        if self._options.overview:
            require_encoder(channel for channel in self._defs if _may_be_camera(channel))
        self._keys = self._checked_keys()

        self._roller: FileRoller | None = None
        self._recorder: Recorder | None = None
        self._steps: ChannelGroup | None = None
        self._clocked: dict[str, ChannelGroup] = {}
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
                raise InvalidArgument("a channel is declared twice", entry=key)
        return keys

    # --- a recording

    def begin_episode(
        self,
        env_id: str = "",
        timebase: Timebase | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens the journal of an episode, with its environment, the clock of its steps and any metadata.

        Raises:
            InvalidArgument: the episode exists and `overwrite` is not set, or an earlier recording is not finished.
        """
        self._ensure_open()
        if self._recorder is not None:
            raise InvalidArgument("the episode has begun already", path=self.path)
        self._check_target()
        clocked = self._clocked_groups()
        rows = self._numbered(channel for group in clocked.values() for channel in group.channels)
        episode = {
            "env_id": env_id,
            "episode_id": self.episode_id,
            "timebase": timebase_fields(timebase or Timebase()),
            **({"metadata": deepcopy(dict(metadata))} if metadata else {}),
        }
        try:
            parse_facts({**episode, "length_T": 0}, {})
        except BadMetadata as error:
            raise InvalidArgument(error.problem, path=self.path, found=error.found) from None
        start = {"v": 1, "episode": episode, "channels": rows}
        canonical(start)  # raises if it cannot be stored
        journal = self._open_journal(start)
        if self._options.may_roll:
            finisher = ChunkFinisher(self._files, self.episode_id, env_id, self._options)
            has_steps = not all(channel.own_clock for channel in self._defs)
            self._roller = FileRoller(self._files, start, finisher, self._options, has_steps)
        self._clocked = clocked
        self._recorder = Recorder(journal, self._options, self._roller, self._clock)
        self._recorder.groups += clocked.values()

    def _check_target(self) -> None:
        """Refuses to replace a finished episode without `overwrite`."""
        if os.path.isdir(self.path):
            raise InvalidArgument("cannot record: this is a folder", path=self.path)
        if not self._overwrite and os.path.lexists(self.path):
            raise InvalidArgument(
                "a finished episode exists here",
                path=self.path,
                hint="record to another path, or pass overwrite=True to replace it",
            )
        check_no_sidecars(self.path)

    def _open_journal(self, start: Mapping[str, Any]) -> JournalWriter:
        """Opens and locks the first journal, and deals with what an earlier recording has left."""
        journal = JournalWriter(self._files.journal(0))
        is_new = not journal.old_size
        try:
            resolve_existing_partial(self._files, self._on_partial, self._options)
            journal.clear()
        except BaseException:
            if is_new:
                journal.remove()
            journal.close()
            raise
        try:
            journal.append(journal.text_frame(FrameKind.START, start))
            if self._options.is_synced:
                journal.sync_with_name()
        except OSError as error:
            journal.remove()
            raise ShardIOError.wrap(error, "cannot record", journal.path) from error
        return journal

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
        """Records one step: a value for every channel without a clock of its own.

        The first step decides whether steps have a reward, ends and a timestamp; an end that you leave out later
        is False. `done` beside `terminated` or `truncated` must be their union. The older call
        `write_timestep(t, observations, actions, reward, done)` works too. A value that does not fit raises an
        error that names the channel; the step is then not recorded, and you can continue.

        Returns:
            Whether the step was recorded; False only with `overflow="drop"`.
        """
        actions: Mapping[str, Any] = {}
        if type(values) is not dict and not isinstance(values, Mapping):
            if len(older) > 4:
                raise InvalidArgument("too many: expected t, observations, actions, reward, done")
            given = (*older, *({}, {}, reward, done)[len(older) :])
            observations, actions, reward, done = given[0] or {}, given[1] or {}, *given[2:]
            values = self._by_key(observations, actions)
        elif older:
            raise InvalidArgument("pass reward and done by name", path=self.path)
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
        extras = (reward, done, terminated, truncated, time_ns)
        group = self._steps
        if group is None:
            schema = self._schema(actions, extras)
            schema.check(values, extras)
            group = self._declare_steps(schema)
        return recorder.record(group, values, extras, time_ns)

    def write(self, channel: str, value: ArrayLike, timestamp_ns: int | np.integer[Any]) -> bool:
        """Records one entry of a channel that has a clock of its own; returns whether it was recorded."""
        recorder = self._recording()
        group = self._clocked.get(channel)
        if group is None:
            raise InvalidArgument(
                "the channel does not have a clock of its own",
                path=self.path,
                entry=channel,
                expected=", ".join(self._clocked) or "a channel with own_clock=True",
            )
        time_ns = nanoseconds(timestamp_ns, channel)
        return recorder.record(group, {channel: value}, (time_ns,), time_ns)

    def add_channel(
        self,
        channel: ChannelDef | Mapping[str, Any],
        fill: Any = None,  # noqa: ANN401 - a value of the channel
    ) -> None:
        """Adds a channel that every step has from now on.

        Args:
            channel: a `ChannelDef` or a dictionary with the same fields, without a clock of its own.
            fill: its value at the steps before; by default NaN, or 0 for a type without it, an empty string, or
                no items.

        Raises:
            InvalidArgument: the channel exists, or the recording has moved on to another file.
        """
        recorder = self._recording()
        added = ChannelDef.of(channel)
        check_id(added.id, "a channel")
        recorded = added.recorded(self._default)
        taken = {f"{each.lane}/{each.id}" for each in self._defs}
        if self._steps is not None:
            taken |= {each.block for each in self._steps.channels}
        if recorded.block in taken or added.own_clock:
            raise InvalidArgument(
                "a channel is declared twice"
                if recorded.block in taken
                else "declare a channel with a clock of its own before the recording begins",
                path=self.path,
                entry=recorded.block,
            )
        key = recorded.block if added.id in self._keys else added.id
        filling = recorded.fill if fill is None else recorded.checked(fill)
        if self._steps is not None:
            known = self._channels
            self._numbered([recorded])
            try:
                recorder.extend(self._steps, key, recorded, filling)
            except ShardError:
                self._channels = known
                raise
        self._defs.append(added)
        self._keys.append(key)

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
        """Labels the steps from `start` up to, but not including, `end`, or the next step.

        Args:
            text: what the label says.
            start: the first step.
            end: the step after the last.
            label: the label lane.
            source: who or what has labelled them.
            confidence: from 0 to 1.
        """
        recorder = self._recording()
        check_id(label, "a label")
        first = self.steps_written if start is None else start
        interval = Interval(first, first + 1 if end is None else end, text, source, confidence)
        note = {"label": label, "interval": interval.to_fields(), "unit": "steps"}
        canonical(note)  # raises if it cannot be stored
        recorder.note(note)

    @property
    def steps_written(self) -> int:
        """Steps recorded so far."""
        return 0 if self._steps is None else self._steps.written

    @property
    def partial_path(self) -> str:
        """The journal that is written now."""
        return self._files.journal(0) if self._recorder is None else self._recorder.journal.path

    @property
    def episode_path(self) -> str:
        """The file to load when the episode is finished: the path, or the manifest of a recording in chunks."""
        is_rolled = self._roller is not None and self._roller.index > 0
        return self._files.names.manifest if is_rolled else self.path

    @property
    def dropped(self) -> dict[str, int]:
        """Entries that were dropped because the disk could not keep up, by block."""
        return {} if self._recorder is None else self._recorder.dropped

    @property
    def durable_steps(self) -> int:
        """Steps that survive if the process is killed now: `recover` brings back at least these.

        They are in the journal, as far as the system is concerned. With `fsync="always"` a step counts only
        when the disk has it, so that these steps survive a loss of power too. With `"interval"` a loss of
        power costs at most those of the last second, with `"never"` any of them.
        """
        return 0 if self._recorder is None else self._recorder.durable_steps

    def flush(self) -> None:
        """Returns when everything recorded so far is in the journal, so that a kill cannot lose it.

        `durable_steps` is then `steps_written`. With `fsync="always"` the disk has everything too; otherwise the
        journal is synced as `fsync` says, whether or not you flush.
        """
        self._recording().flush()

    def end_episode(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        final_observations: Mapping[str, Any] | None = None,
        complete: Callable[[Episode], None] | None = None,
    ) -> None:
        """Finishes the episode: it appears as `episode_path`, and the journal is removed.

        If that fails, the journal stays, for `recover`.

        Args:
            metadata: added to that of `begin_episode`.
            final_observations: values after the last step, for any channels of `signal/`.
            complete: called with the episode before it is saved, to add what cannot be recorded. Not for
                recordings in chunks, most of which are saved already.
        """
        recorder = self._recording()
        if complete is not None and self.episode_path != self.path:
            raise InvalidArgument(
                "a recording in several files cannot be completed",
                path=self.path,
                hint="leave out complete=, or record with may_roll=False",
            )
        canonical(dict(metadata or {}))
        if self._steps is None:
            self._declare_steps(self._schema({}, (None,) * len(STEP_FIELDS)))
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
        ends = {"metadata": dict(metadata), "dropped": recorder.dropped_here}
        end = {key: value for key, value in ends.items() if value}
        journal.append(journal.text_frame(FrameKind.END, end))
        if self._roller is not None and self._roller.index:
            self._roller.finisher.finish_all(journal)
            if self._overwrite and os.path.lexists(self.path):
                with changing(self.path) as sidecars:
                    if not sidecars:
                        os.unlink(self.path)  # the chunks replace it
                        return
                _log.warning("%s has sidecars and stays beside the recording", self.path)
            return
        if not self._overwrite and os.path.lexists(self.path):
            raise InvalidArgument(
                "a file appeared here during the recording; the recording is safe in its journal",
                path=self.path,
                hint=f"save it elsewhere with: wshard recover {journal.path} -o OUT",
            )
        save_journal(journal.path, self.path, fsync=self._options.is_synced, change=complete)
        journal.remove()
        if self._options.overview:
            add_overviews(self.path, fsync=self._options.is_synced)

    def _checked_last(self, values: Mapping[str, Any]) -> list[tuple[RecordedChannel, Any]]:
        assert self._steps is not None
        channels = self._steps.schema.named
        checked = []
        for key, value in values.items():
            channel = channels.get(key)
            if channel is None or not channel.block.startswith("signal/"):
                raise InvalidArgument(
                    "the steps do not have this observation", path=self.path, entry=str(key)
                )
            checked.append((channel, channel.checked(value)))
        return checked

    def abort(self) -> None:
        """Stops recording and deletes the journal and the finished chunks."""
        if self._closed:
            return
        self._closed = True
        recorder = self._recorder
        if recorder is not None:
            is_ours = recorder.journal.is_open  # and not a parent's
            recorder.stop()
            if is_ours:
                if self._roller is not None and self._roller.index:
                    self._roller.finisher.remove()
                recorder.journal.remove()

    def close(self) -> None:
        """Stops recording and keeps the journal, for `recover`. Does nothing after `end_episode`."""
        if self._closed:
            return
        self._closed = True
        recorder = self._recorder
        if recorder is None:
            return
        is_ours = recorder.journal.is_open
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
        note = (
            f"the recording up to here is in {self.partial_path}; recover it with: wshard recover"
        )
        try:
            self.close()
        except ShardError as failure:  # show the error of the block, not this one
            note = str(failure)
        _log.warning("%s", note)
        if hasattr(error, "add_note"):
            error.add_note(note)

    # --- what a step is

    def _numbered(self, channels: Iterable[RecordedChannel]) -> list[dict[str, Any]]:
        """Numbers channels that the journal learns of now; returns their rows."""
        rows: list[dict[str, Any]] = []
        for channel in channels:
            channel.number = self._channels + len(rows)
            rows += channel.rows
        self._channels += len(rows)
        return rows

    def _clocked_groups(self) -> dict[str, ChannelGroup]:
        groups: dict[str, ChannelGroup] = {}
        self._channels = 0
        for channel, key in zip(self._defs, self._keys, strict=True):
            if channel.own_clock:
                recorded = channel.recorded(self._default)
                name = recorded.row["time_block"] = time_block(recorded.block)
                schema = StepSchema({key: recorded}, {name: DType.INT64}, self.path)
                groups[key] = ChannelGroup(schema, self._options)
        return groups

    def _schema(self, actions: Mapping[str, Any], extras: tuple[Any, ...]) -> StepSchema:
        """What every step has, from what the first one has."""
        channels: dict[str, RecordedChannel] = {}
        for channel, key in zip(self._defs, self._keys, strict=True):
            if not channel.own_clock:
                lane = "action" if key in actions else channel.lane
                channels[key] = channel.recorded(self._default, lane)
        fields = {
            block: None if extra is None else dtype
            for (block, dtype), extra in zip(STEP_FIELDS.items(), extras, strict=True)
        }
        return StepSchema(channels, fields, self.path)

    def _declare_steps(self, schema: StepSchema) -> ChannelGroup:
        """Tells the journal what every step has; before the first of them."""
        recorder = self._recording()
        group = ChannelGroup(schema, self._options)
        recorder.declare(group, self._numbered(group.channels))
        self._steps = group
        return group

    def _by_key(
        self, observations: Mapping[str, Any], actions: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The values of the older call, which has observations and actions apart."""
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


def _may_be_camera(channel: ChannelDef) -> bool:
    """Whether posters of a declared channel may be made."""
    is_u8 = channel.dtype is None or DType.parse(channel.dtype) is DType.UINT8
    return channel.layout == "dense" and is_u8 and len(tuple(channel.shape)) >= 2
