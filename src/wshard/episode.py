"""An episode: its lanes, its clock, and what is known about it."""

from __future__ import annotations

import operator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format._parallel import available_threads, for_each
from shard_format.errors import EntryNotFound, InvalidArgument, SizeMismatch
from wshard.alignment import Aligned, AlignedChannel, match, needed_range, take
from wshard.channels import Channel
from wshard.dtypes import DType, convert
from wshard.lanes import (
    Extra,
    FillPart,
    InnerLane,
    Lane,
    NestedLane,
    as_channel,
    as_extra,
    as_label,
    as_residual,
    models_of,
    uncertainties_of,
)
from wshard.origin import UnknownFields
from wshard.ragged import RaggedChannel
from wshard.timebase import DEFAULT_RATE_HZ, Timebase, TimebaseType
from wshard.values import as_array, as_times, check_count, regular_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from wshard.alignment import Match, Method
    from wshard.blocks import Block
    from wshard.labels import Intervals
    from wshard.origin import Origin
    from wshard.residual_lane import Residual

__all__ = ["Episode"]


class _MadeWhenAsked:
    """A lane that nobody has used yet, or one of a file that was only opened.

    Once it is made, it is in the episode's own dictionary, where Python looks first.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        _made_names.add(name)

    def __get__(self, episode: Episode | None, owner: type) -> Any:  # noqa: ANN401 - whatever is made
        if episode is None:
            return self
        name, known = self._name, episode.__dict__
        if "_fill" in known:
            episode._fill_lanes(name)
        return known[name] if name in known else known.setdefault(name, self._make())


_made_names: set[str] = set()


def _made_when_asked(make: Callable[[], Any]) -> Any:  # noqa: ANN401 - typed by the attribute
    return _MadeWhenAsked(make)


def _nothing() -> None:
    return None


# Looking up a member of an enum takes as long as making a lane.
_OBSERVATIONS, _REST, _ALL = FillPart.OBSERVATIONS, FillPart.REST, FillPart.ALL

# Fillers make these two themselves.
new_observations = partial(Lane, "an observation", as_channel)
new_actions = partial(Lane, "an action", as_channel)


class Episode:
    """One episode: what happened, and what models made of it.

    Lanes are dictionaries; assign arrays, lists of strings or `Channel`s:

        ep = Episode("ep_001", env_id="Reach-v1")
        ep.observations["joint_pos"] = positions          # [T, 7]
        ep.actions["ctrl"] = torques                      # [T, 7]
        ep.rewards = rewards                              # [T]
        ep.omens["joint_pos"]["dreamer"] = predicted      # [T, 7]
        ep.uncerts["joint_pos"]["dreamer"]["std"] = std   # [T, 7]

    Args:
        id: who it is.
        env_id: where it happened.
        length: the number of steps; taken from actions, rewards or observations if left out.
        timebase: the clock; 30 Hz if left out.
        observations: `signal/`, arrays [T, ...] or [T + 1, ...].
        actions: `action/`, arrays [T, ...].
        rewards: [T].
        terminations: [T], whether the episode reached a terminal state with this step.
        truncations: [T], whether it was cut off with this step.
        omens: `omens[channel][model]`, predictions.
        uncerts: `uncerts[channel][model][type]`, uncertainties.
        residuals: see `Residual`.
        labels: `labels[name]`, intervals.
        metadata: any JSON.
        timestamps_ns: the times of the steps, int64 nanoseconds.
        chunk_index: which chunk of a longer episode this is.
        total_chunks: how many chunks that has.
        timestep_range: first and last step of the chunk in the whole episode.
        provenance: where the recording comes from, see spec/wshard.md, section 13.
    """

    id: str
    env_id: str
    timebase: Timebase
    metadata: dict[str, Any]
    chunk_index: int | None
    total_chunks: int | None
    timestep_range: tuple[int, int] | None
    observations: Lane[Channel] = _made_when_asked(new_observations)
    actions: Lane[Channel] = _made_when_asked(new_actions)
    omens: NestedLane[InnerLane[Channel]] = _made_when_asked(
        partial(NestedLane, "a predicted channel", models_of)
    )
    uncerts: NestedLane[InnerLane[InnerLane[Channel]]] = _made_when_asked(
        partial(NestedLane, "a predicted channel", uncertainties_of)
    )
    residuals: Lane[Residual] = _made_when_asked(partial(Lane, "a residual", as_residual))
    labels: Lane[Intervals] = _made_when_asked(partial(Lane, "a label", as_label))
    extras: Lane[Extra | Channel] = _made_when_asked(partial(Lane, "an entry", as_extra))
    provenance: dict[str, Any] | None = _made_when_asked(_nothing)
    """Where the recording comes from; `Provenance` of spec/wshard.md, section 13."""
    _rewards: Channel | None = _made_when_asked(_nothing)
    _terminations: Channel | None = _made_when_asked(_nothing)
    _truncations: Channel | None = _made_when_asked(_nothing)
    _ticks: NDArray[np.int32] | Block | None = _made_when_asked(_nothing)
    _timestamps: NDArray[np.int64] | Block | None = _made_when_asked(_nothing)

    def __init__(
        self,
        id: str,
        env_id: str = "",
        length: int | None = None,
        timebase: Timebase | None = None,
        observations: Mapping[str, Any] | None = None,
        actions: Mapping[str, Any] | None = None,
        rewards: ArrayLike | Channel | None = None,
        terminations: ArrayLike | Channel | None = None,
        truncations: ArrayLike | Channel | None = None,
        omens: Mapping[str, Any] | None = None,
        uncerts: Mapping[str, Any] | None = None,
        residuals: Mapping[str, Residual] | None = None,
        labels: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        timestamps_ns: ArrayLike | None = None,
        chunk_index: int | None = None,
        total_chunks: int | None = None,
        timestep_range: tuple[int, int] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.env_id = env_id
        self._length = None if not length else operator.index(length)
        self.timebase = timebase or Timebase()
        self.metadata = dict(metadata or {})
        self.chunk_index = chunk_index
        self.total_chunks = total_chunks
        self.timestep_range = timestep_range
        self.provenance = None if provenance is None else dict(provenance)
        self.observations.update(observations or {})
        self.actions.update(actions or {})
        self.omens.update(omens or {})
        self.uncerts.update(uncerts or {})
        self.residuals.update(residuals or {})
        self.labels.update(labels or {})
        self.rewards = rewards
        self.terminations = terminations
        self.truncations = truncations
        if timestamps_ns is not None:
            self.timestamps_ns = timestamps_ns

    def _fill_lanes(self, wanted: str = "") -> None:
        """Sorts the entries of the file into lanes; opening many files for their facts need not wait for it."""
        known = self.__dict__
        fill = known.get("_fill")
        if fill is None:  # another thread has done it meanwhile
            return
        # Many ask for observations and nothing else.
        if wanted == "observations":
            part = _OBSERVATIONS
        else:
            part = _REST if "observations" in known else _ALL
        if fill(self, part):
            known.pop("_fill", None)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - whatever is assigned
        if name in _made_names and "_fill" in self.__dict__:
            self._fill_lanes(name)
        if name in _LANES and not isinstance(value, Lane):
            lane: Lane[Any] = getattr(self, name)
            value = _with_items(type(lane)(lane._what, lane._make), value)
        object.__setattr__(self, name, value)

    origin: Origin | None = None
    """The file it was loaded from."""
    _unknown: UnknownFields = UnknownFields({}, {})

    # --- length and ends

    @property
    def length(self) -> int:
        """T, the number of steps."""
        if self._length is not None:
            return self._length
        for channel in (self._rewards, self._terminations, self._truncations):
            if channel is not None:
                return channel.length
        for lane in (self.actions, self.observations):
            for channel in lane.values():
                if not channel.has_own_clock:
                    return channel.length
        stamps = self._timestamps
        return len(stamps) if isinstance(stamps, np.ndarray) else 0

    @length.setter
    def length(self, length: int) -> None:
        self._length = operator.index(length)

    def __len__(self) -> int:
        return self.length

    @property
    def rewards(self) -> Channel | None:
        """The reward of each step."""
        return self._rewards

    @rewards.setter
    def rewards(self, rewards: ArrayLike | Channel | None) -> None:
        self._rewards = None if rewards is None else as_channel(rewards, "reward")

    @property
    def terminations(self) -> Channel | None:
        """Whether the episode reached a terminal state with each step, as booleans."""
        return self._terminations

    @terminations.setter
    def terminations(self, ends: ArrayLike | Channel | None) -> None:
        self._terminations = _as_flags(ends, "terminated")

    @property
    def truncations(self) -> Channel | None:
        """Whether the episode was cut off with each step, as booleans; None if that is not known."""
        return self._truncations

    @truncations.setter
    def truncations(self, ends: ArrayLike | Channel | None) -> None:
        self._truncations = _as_flags(ends, "truncated")

    @property
    def dones(self) -> NDArray[np.bool_] | None:
        """Whether the episode ended with each step, for either reason; None if neither is known."""
        known = [c.data for c in (self._terminations, self._truncations) if c is not None]
        return np.logical_or.reduce(known) if known else None

    @property
    def is_chunked(self) -> bool:
        """Whether this is one chunk of a longer episode."""
        return self.chunk_index is not None

    # --- time

    @property
    def ticks(self) -> NDArray[np.int32]:
        """The tick of each step; 0, 1, 2, … unless the recording says otherwise."""
        if self._ticks is None:
            check_count(self.length)
            return np.arange(self.length, dtype=np.int32)
        if not isinstance(self._ticks, np.ndarray):
            self._ticks = _clock(self._ticks, _TICK, self.length)
        return self._ticks

    @ticks.setter
    def ticks(self, ticks: ArrayLike | None) -> None:
        try:
            self._ticks = None if ticks is None else convert(as_array(ticks), DType.INT32)[0]
        except InvalidArgument as error:
            raise error.located(entry="time/ticks") from None

    @property
    def timestamps_ns(self) -> NDArray[np.int64] | None:
        """The recorded times of the steps, int64 nanoseconds; None if only the rate is known."""
        if self._timestamps is None or isinstance(self._timestamps, np.ndarray):
            return self._timestamps
        self._timestamps = _clock(self._timestamps, _NANOSECONDS, self.length)
        return self._timestamps

    @timestamps_ns.setter
    def timestamps_ns(self, times: ArrayLike | None) -> None:
        self._timestamps = None if times is None else as_times(times, "time/timestamps_ns")
        if self._timestamps is not None:
            self.timebase.type = TimebaseType.TIMESTAMPS_NS
            if self.timebase.tick_hz == DEFAULT_RATE_HZ:
                self.timebase.tick_hz = _rate_of(self._timestamps)

    def times_ns(self, channel: str | Channel | None = None) -> NDArray[np.int64]:
        """The times of the steps, or of a channel's entries, int64 nanoseconds.

        Args:
            channel: a channel with or without its own clock, or its name; None for the episode's steps.
        """
        if channel is not None:
            found = self.find(channel) if isinstance(channel, str) else channel
            own = found.timestamps_ns
            return self.step_times_ns(found.length) if own is None else own
        return self.step_times_ns(self.length)

    def step_times_ns(self, count: int) -> NDArray[np.int64]:
        """The times of the first so many steps, int64 nanoseconds; at most one more than there are."""
        recorded = self.timestamps_ns
        if recorded is None:
            return regular_times(count, self.timebase.tick_hz, self.timebase.epoch_ns)
        if count == len(recorded) + 1:
            # The observation after the last action has no recorded time: one more step.
            period = self.timebase.dt_ns if len(recorded) < 2 else int(recorded[-1] - recorded[-2])
            last = int(recorded[-1]) if len(recorded) else self.timebase.epoch_ns - period
            return np.append(recorded, last + period)
        return recorded[:count]

    def align(
        self,
        to: str | ArrayLike | None = None,
        method: Method = "nearest",
        *,
        tolerance_ns: int | None = None,
        channels: Iterable[str] | None = None,
    ) -> Aligned:
        """All channels at the times of one: resampled now, while the file keeps what was recorded.

        Args:
            to: the channel whose times count, or times in nanoseconds; None for the episode's steps.
            method: `"nearest"`, `"previous"`, `"exact"`, or `"linear"`, which interpolates between
                floating-point entries and takes the nearest entry of everything else.
            tolerance_ns: entries further away than this count as missing.
            channels: which ones; None for all observations and actions.

        Returns:
            The resampled arrays, each with `valid`, and `residual_ns`: how far the entry that was used is
            from the time that was asked for.
        """
        if isinstance(to, str):
            targets = self.times_ns(to)
        else:
            targets = self.times_ns() if to is None else as_times(to, "to")
        names = list(channels) if channels is not None else self._aligned_names()
        aligned: dict[str, AlignedChannel] = {}
        for name in names:
            found = self.find(name)
            try:
                matched = self.match(found, targets, method, tolerance_ns)
                start, stop = needed_range(matched)
                data = take(found.read_steps(start, stop), matched, offset=start)
            except InvalidArgument as error:
                raise error.located(entry=found.block or name) from None
            aligned[name] = AlignedChannel(data, matched.valid, matched.residual_ns)
        return Aligned(targets, aligned, method)

    def match(
        self,
        channel: Channel,
        targets_ns: NDArray[np.int64],
        method: Method = "nearest",
        tolerance_ns: int | None = None,
    ) -> Match:
        """Which entries of a channel belong to these times, as `align` chooses them; reads no values."""
        channel.check_claims()
        chosen = method_for(channel, method)
        return match(self.times_ns(channel), targets_ns, chosen, tolerance_ns)

    def _aligned_names(self) -> list[str]:
        both = self.observations.keys() & self.actions.keys()
        return [
            *(f"signal/{name}" if name in both else name for name in self.observations),
            *(f"action/{name}" if name in both else name for name in self.actions),
        ]

    # --- finding, loading, copying

    def find(self, name: str) -> Channel:
        """A channel by its name, or by its block's name such as `omen/joint_pos/dreamer`."""
        for lane in (self.observations, self.actions):
            if name in lane:
                return lane[name]
        for block, channel in self.blocks():
            if block == name:
                return channel
        error = EntryNotFound(f"no channel {name!r} in episode {self.id!r}")
        error.wanted = name
        error.candidates = [*self.observations, *self.actions, *(b for b, _ in self.blocks())]
        raise error

    @property
    def described(self) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """Dtype and shape of each block that is described, without making channels: for looking at many files."""
        if self.origin is not None and self.origin.rows:
            return {block: (row.dtype, row.shape) for block, row in self.origin.rows.items()}
        return {block: (channel.dtype, channel.shape) for block, channel in self.blocks()}

    def blocks(self) -> Iterator[tuple[str, Channel]]:
        """Every channel with the name of its block, lane by lane."""
        if "_fill" in self.__dict__:
            self._fill_lanes()
        for name, channel in self.observations.items():
            yield f"signal/{name}", channel
        for name, channel in self.actions.items():
            yield f"action/{name}", channel
        for flat, flagged in (
            ("reward", self._rewards),
            ("terminated", self._terminations),
            ("truncated", self._truncations),
        ):
            if flagged is not None:
                yield flat, flagged
        if "omens" not in self.__dict__ and "uncerts" not in self.__dict__:
            return  # nobody predicted anything: make no lanes to find that out
        for name, models in self.omens.items():
            for model, channel in models.items():
                yield f"omen/{name}/{model}", channel
        for name, by_model in self.uncerts.items():
            for model, kinds in by_model.items():
                for kind, channel in kinds.items():
                    yield (
                        f"uncert/{name}/{model}/{kind}" if model else f"uncert/{name}/{kind}",
                        channel,
                    )

    def load(self, *, threads: int | None = None) -> Self:
        """Brings everything into memory, in parallel, and checks it. Uncompressed data stays a view.

        Args:
            threads: how many; None for one per processor, up to 8.
        """
        channels = [channel for _, channel in self.blocks()]
        for extra in self.extras.values():
            if isinstance(extra, Channel):
                channels.append(extra)
            else:
                extra.load()
        waiting = [channel for channel in channels if not channel.is_loaded]
        # Large ones spread their own frames over threads; the others are spread themselves.
        large = [
            c
            for c in waiting
            if c.nbytes >= _LARGE and c._block is not None and c._block.is_cut_cheaply
        ]
        small = [c for c in waiting if not any(c is other for other in large)]
        for channel in large:
            _touch(channel)
        total = sum(channel.nbytes for channel in small)
        workers = available_threads() if threads is None else threads
        for_each(small, _touch, workers if total >= _WORTH_THREADS else 1)
        for channel in channels:
            if channel._time_block is not None:
                _ = channel.timestamps_ns
        for residual in self.residuals.values():
            _ = residual.data, residual.scales
        for intervals in self.labels.values():
            _ = intervals.unit
        if self._ticks is not None:
            _ = self.ticks
        _ = self.timestamps_ns
        return self

    def clone(self) -> Self:
        """A copy with data of its own in memory, detached from any file."""
        copy = self.mapped(lambda channel: channel.clone())
        copy._ticks = None if self._ticks is None else np.array(self.ticks)
        stamps = self.timestamps_ns
        copy._timestamps = None if stamps is None else np.array(stamps)
        for key, residual in self.residuals.items():
            copy.residuals.adopt(key, residual.clone())
        for name, extra in self.extras.items():
            copy.extras.adopt(name, extra.clone())
        copy.origin = None
        return copy

    @property
    def unknown_fields(self) -> UnknownFields:
        """Fields of its descriptions that this library does not know; they are kept."""
        return self._unknown if self.origin is None else self.origin.unknown_fields

    def mapped(self, change: Callable[[Channel], Channel]) -> Self:
        """The same episode with every channel changed; other parts are shared or copied shallowly."""
        copy = object.__new__(type(self))
        copy.id, copy.env_id, copy._length = self.id, self.env_id, self._length
        copy.timebase = replace(self.timebase)
        copy.metadata = deepcopy(self.metadata)
        copy.chunk_index, copy.total_chunks = self.chunk_index, self.total_chunks
        copy.timestep_range = self.timestep_range
        copy._unknown = self.unknown_fields
        copy.provenance = deepcopy(self.provenance)
        for name, channel in self.observations.items():
            copy.observations.adopt(name, change(channel))
        for name, channel in self.actions.items():
            copy.actions.adopt(name, change(channel))
        copy._rewards = None if self._rewards is None else change(self._rewards)
        copy._terminations = None if self._terminations is None else change(self._terminations)
        copy._truncations = None if self._truncations is None else change(self._truncations)
        for name, models in self.omens.items():
            inner = copy.omens.new_inner(name)
            copy.omens.adopt(name, inner)
            for model, channel in models.items():
                inner.adopt(model, change(channel))
        for name, by_model in self.uncerts.items():
            copied = copy.uncerts.new_inner(name)
            copy.uncerts.adopt(name, copied)
            for model, kinds in by_model.items():
                innermost = copied.new_inner(model)
                copied.adopt(model, innermost)
                for kind, channel in kinds.items():
                    innermost.adopt(kind, change(channel))
        for key, residual in self.residuals.items():
            copy.residuals.adopt(key, residual)
        for label, intervals in self.labels.items():
            copy.labels.adopt(label, intervals[:])
        for name, extra in self.extras.items():
            copy.extras.adopt(name, change(extra) if isinstance(extra, Channel) else extra)
        copy._ticks, copy._timestamps = self._ticks, self._timestamps
        copy.origin = self.origin
        return copy

    def validate(self) -> None:
        """Checks that it can be saved: names, lengths, types.

        Raises:
            InvalidArgument: names the first channel that does not fit, and why.
        """
        from wshard.planning import plan_blocks

        plan_blocks(self)

    def close(self) -> None:
        """Closes the files that it reads from. Arrays that were handed out stay valid."""
        if self.origin is not None:
            self.origin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        lanes = ", ".join(
            f"{len(lane)} {what}"
            for what, lane in (
                ("observations", self.observations),
                ("actions", self.actions),
                ("omens", self.omens),
                ("uncerts", self.uncerts),
                ("residuals", self.residuals),
                ("labels", self.labels),
            )
            if lane
        )
        return f"<Episode {self.id!r}: {self.length} steps{', ' + lanes if lanes else ''}>"


_LANES = frozenset(("observations", "actions", "omens", "uncerts", "residuals", "labels", "extras"))


def method_for(channel: Channel, method: Method) -> Method:
    """How `Episode.align` chooses the entries of a channel: only plain floats are interpolated."""
    smooth = type(channel) is Channel and channel.dtype.is_float
    return "nearest" if method == "linear" and not smooth else method


def _with_items(lane: Lane[Any], items: Mapping[str, Any]) -> Lane[Any]:
    lane.update(items)
    return lane


_LARGE = 4 << 20
_WORTH_THREADS = 1 << 20


def _rate_of(times: NDArray[np.int64]) -> float:
    """The rate that timestamps show, where nobody has said one; the default where they agree with it."""
    steps = np.diff(times)
    period = float(np.median(steps)) if len(steps) else 0.0
    if period <= 0:
        return DEFAULT_RATE_HZ
    rate = 1e9 / period
    return DEFAULT_RATE_HZ if abs(rate - DEFAULT_RATE_HZ) < 0.05 * DEFAULT_RATE_HZ else rate


_TICK: np.dtype[Any] = np.dtype("<i4")
_NANOSECONDS: np.dtype[Any] = np.dtype("<i8")


def _clock(block: Block, stored: np.dtype[Any], length: int) -> NDArray[Any]:
    """The times or ticks of the steps (W-TIM-2)."""
    if block.nbytes != length * stored.itemsize:
        raise SizeMismatch(
            "the clock of the steps has another length than the episode",
            path=block.path,
            entry=block.name,
            expected=f"{length} values of {stored.itemsize} bytes",
            found=f"{block.nbytes} bytes",
            rule="W-TIM-2",
        )
    return block.array(stored, (length,))


def _touch(channel: Channel) -> None:
    _ = channel.values if isinstance(channel, RaggedChannel) else channel.data


def _as_flags(ends: Any, name: str) -> Channel | None:  # noqa: ANN401 - an array or a channel
    if ends is None:
        return None
    channel = as_channel(ends, name)
    if channel.dtype != "bool" and channel._block is None:
        channel = Channel(name, data=channel.data != 0)
    return channel
