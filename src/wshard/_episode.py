"""An episode: one ordered mapping of its parts, and the lanes as views of it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, MutableMapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np

from shard_format import display
from shard_format.errors import BadValue, InvalidArgument, ShardError, SizeMismatch
from shard_format.parallel import available_threads, for_each
from wshard._blocks import Extra
from wshard._channels import Channel, Modality, as_channel, is_frames
from wshard._labels import Intervals, as_intervals
from wshard._lanes import (
    CHANNEL_LANES,
    EXTRA,
    LANES,
    REWARD,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    Address,
    block_name,
    check_address,
    not_found,
)
from wshard._metadata import LARGEST, EpisodeFacts, Timebase, TimebaseType
from wshard._values import DType, Strict, as_array, as_times, check_count, convert, regular_times
from wshard.alignment import (
    Aligned,
    AlignedChannel,
    check_unit,
    match,
    method_for,
    needed_range,
    take,
)
from wshard.residual import Residual

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from shard_format import ShardReader
    from wshard._metadata import Row
    from wshard.alignment import Match, Method

__all__ = ["Episode", "Extra", "LaneView", "NestedView", "Origin", "Part"]

# The room that shows episodes in browsers. By name: the core imports no room that is built on it.
_VIEWER: Final = "wshard.viewer"
Value = TypeVar("Value")
_LARGE: Final = 4 << 20
_WORTH_THREADS: Final = 1 << 20
_FAR_AWAY: Final = "if the clock is right, state how far away an entry may be: tolerance_ns=…"


Route: TypeAlias = "Callable[[], tuple[dict[Address, Any], dict[str, Any] | None]]"
"""Gives the parts of a file by address, and its provenance."""
Part: TypeAlias = Channel | Residual | Intervals | Extra
"""What an episode consists of: channels, clocks of the steps among them, residuals, labels and other entries."""


# --- what a user assigns


def as_residual(value: Any, name: str) -> Residual:  # noqa: ANN401 - checked here
    """A residual, or an error that says how to make one."""
    if not isinstance(value, Residual):
        raise InvalidArgument(
            f"the residual {name!r} is not a Residual",
            found=type(value).__name__,
            hint="make one with Residual.of_signal or Residual.of_error",
        )
    return value


def as_extra(value: Any, name: str) -> Extra | Channel:  # noqa: ANN401 - bytes or an array
    """An entry that the format does not define, of what a user assigns."""
    if isinstance(value, Extra):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Extra(name, bytes(value))
    return as_channel(value, name)


def as_flags(ends: Any, name: str) -> Channel:  # noqa: ANN401 - an array or a channel
    """Ends as booleans."""
    channel = as_channel(ends, name)
    if channel.dtype_name is not DType.BOOL and channel.source is None:
        channel = Channel(name, data=channel.data != 0)
    return channel


_MAKE: Final[dict[str, Callable[[Any, str], Any]]] = {
    **dict.fromkeys(("signal", "action", REWARD, "omen", "uncert"), as_channel),
    TERMINATED: as_flags,
    TRUNCATED: as_flags,
    "residual": as_residual,
    "label": as_intervals,
    EXTRA: as_extra,
}


# --- views


class LaneView(MutableMapping[str, Value], Generic[Value]):
    """One lane of an episode as a dictionary: it turns what you assign into what the lane holds."""

    __slots__ = ("_parts", "_prefix")

    def __init__(self, parts: dict[Address, Any], *prefix: str) -> None:
        self._parts = parts
        self._prefix = prefix

    def __getitem__(self, name: str) -> Value:
        try:
            found: Value = self._parts[(*self._prefix, name)]
        except KeyError:
            raise self._missing(name) from None
        return found

    def _missing(self, name: object) -> KeyError:
        lane = block_name(self._prefix) if self._prefix[0] else "extras"
        return not_found(f"no {name!r} in {lane!r}", str(name), self)

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - made into a Value
        address = (*self._prefix, name)
        check_address(address)
        self._parts[address] = _MAKE[address[0]](value, name)

    def adopt(self, name: str, value: Any) -> None:  # noqa: ANN401 - a Value
        """Sets what a file holds, under whatever name it has there."""
        self._parts[(*self._prefix, name)] = value

    def __delitem__(self, name: str) -> None:
        if (*self._prefix, name) not in self._parts:
            raise self._missing(name)
        del self._parts[(*self._prefix, name)]

    def __contains__(self, name: object) -> bool:
        return (*self._prefix, name) in self._parts

    def __iter__(self) -> Iterator[str]:
        prefix, depth = self._prefix, len(self._prefix)
        lane = prefix[0]
        # The lane is compared first: most parts belong to another.
        return iter([at[depth] for at in self._parts if at[0] == lane and at[:depth] == prefix])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def update(self, *others: Any, **named: Any) -> None:  # noqa: ANN401 - as dict, but checked
        """As for a dictionary."""
        for name, value in dict(*others, **named).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as dict, but checked
        """As for a dictionary."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, others: Any) -> Self:  # noqa: ANN401 - as dict
        self.update(others)
        return self

    def to_dict(self) -> dict[str, Any]:
        """A copy that does not change with the episode: a dictionary of parts, or of dictionaries."""
        return {
            name: value.to_dict() if isinstance(value, LaneView) else value
            for name, value in self.items()
        }

    def __repr__(self) -> str:
        return repr(dict(self))


class NestedView(LaneView[Value]):
    """A lane by channel and model. You may ask for a channel without predictions: it is empty until you fill it."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Value:
        prefix = (*self._prefix, name)
        is_last = len(prefix) == len(LANES[prefix[0]].keys)
        view: Any = (LaneView if is_last else NestedView)(self._parts, *prefix)
        return view  # type: ignore[no-any-return] # as deep as the lane says

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - a dictionary
        if not isinstance(value, Mapping):
            keys = LANES[self._prefix[0]].keys
            raise InvalidArgument(
                f"{name!r} needs a dictionary by {keys[len(self._prefix)].split()[-1]}",
                expected="ep.omens[channel][model] = array",
                found=type(value).__name__,
            )
        items = dict(value)
        if name in self:
            del self[name]
        inner: Any = self[name]
        inner.update(items)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise self._missing(name)
        prefix = (*self._prefix, name)
        for address in [at for at in self._parts if at[: len(prefix)] == prefix]:
            del self._parts[address]

    def pop(self, name: str, *default: Any) -> Any:  # noqa: ANN401 - a dictionary, or the default
        """As for a dictionary; what was taken out is a dictionary of its own."""
        if name not in self:
            if default:
                return default[0]
            raise self._missing(name)
        inner = self[name]
        assert isinstance(inner, LaneView)
        taken = inner.to_dict()
        del self[name]
        return taken

    def __contains__(self, name: object) -> bool:
        prefix = (*self._prefix, name)
        return any(at[: len(prefix)] == prefix for at in self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(super().__iter__()))


View = TypeVar("View", bound="LaneView[Any]")


class _LaneAttribute(Generic[View]):
    """The attribute of an episode that shows one lane; assigning a dictionary replaces what the lane holds."""

    def __init__(self, lane: str, view: type[LaneView[Any]] = LaneView) -> None:
        self._lane, self._view = lane, view

    @overload
    def __get__(self, episode: None, kind: type) -> Self: ...
    @overload
    def __get__(self, episode: Episode, kind: type) -> View: ...
    def __get__(self, episode: Episode | None, kind: type) -> View | Self:
        if episode is None:
            return self
        view: Any = self._view(episode.parts, self._lane)
        return view  # type: ignore[no-any-return] # as the annotation says

    def __set__(self, episode: Episode, items: Mapping[str, Any]) -> None:
        view, items = self.__get__(episode, Episode), dict(items)
        view.clear()
        view.update(items)


class _FlatAttribute:
    """The attribute of an episode that is the one channel of a lane; None if it has none."""

    def __init__(self, lane: str) -> None:
        self._lane = lane

    @overload
    def __get__(self, episode: None, kind: type) -> Self: ...
    @overload
    def __get__(self, episode: Episode, kind: type) -> Channel | None: ...
    def __get__(self, episode: Episode | None, kind: type) -> Channel | Self | None:
        return self if episode is None else episode.parts.get((self._lane,))

    def __set__(self, episode: Episode, value: ArrayLike | Channel | None) -> None:
        if value is None:
            episode.parts.pop((self._lane,), None)
        else:
            episode.parts[self._lane,] = _MAKE[self._lane](value, self._lane)


# --- where it comes from


class UnknownFields(NamedTuple):
    """What descriptions say that this library does not know: kept, also in copies and parts of an episode."""

    episode: dict[str, Any]
    wshard: dict[str, Any]


_KNOWN_EPISODE: Final = frozenset(
    (
        *("episode_id", "id", "env_id", "length_T", "length_t", "timebase", "metadata"),
        *("chunk_index", "total_chunks", "timestep_range", "action_spaces"),
    )
)
_KNOWN_WSHARD: Final = frozenset(
    (
        *("version", "wshard_version", "format", "timebase", "endianness", "alignment"),
        *("streaming", "omen_channels"),
    )
)


@dataclass(slots=True)
class Origin:
    """What a loaded episode remembers of its file, so that saving it again changes nothing by itself.

    Owns: the readers.
    """

    reader: ShardReader
    """The episode's file; of a chunked episode its manifest."""
    wshard: dict[str, Any] = field(default_factory=dict)
    """`meta/wshard` as parsed."""
    episode: dict[str, Any] = field(default_factory=dict)
    """`meta/episode` as parsed."""
    channels: dict[str, Any] = field(default_factory=dict)
    """`meta/channels` as parsed."""
    rows: dict[str, Row] = field(default_factory=dict)
    """The row of each block that has one."""
    route: Route | None = None
    """Gives the parts that the file holds."""
    sidecars: list[ShardReader] = field(default_factory=list)
    """Files with lanes that were added later, in the order in which they are read."""
    chunks: list[ShardReader] = field(default_factory=list)
    """The chunks, of a chunked episode."""
    saved: str = ""
    """The fingerprint of the file, if the episode was saved over it since."""
    is_filtered: bool = False
    """Whether the caller asked for some channels or lanes only."""

    @property
    def path(self) -> str:
        """What its file is called."""
        return self.reader.name

    @property
    def episode_id(self) -> str:
        """What its file calls it."""
        found: str = self.episode["episode_id" if "episode_id" in self.episode else "id"]
        return found

    @property
    def readers(self) -> list[ShardReader]:
        """Every file that the episode is read from."""
        return [self.reader, *self.sidecars, *self.chunks]

    @property
    def unknown_fields(self) -> UnknownFields:
        """What its descriptions say beyond what this library knows."""
        episode = {k: v for k, v in self.episode.items() if k not in _KNOWN_EPISODE}
        wshard = {k: v for k, v in self.wshard.items() if k not in _KNOWN_WSHARD}
        return UnknownFields(deepcopy(episode), deepcopy(wshard))

    def close(self) -> None:
        """Closes all files."""
        for reader in self.readers:
            reader.close()


# --- the episode


class Episode(Strict):
    """One episode: what happened, and what models predicted.

    Lanes are dictionaries; assign arrays, lists of strings or `Channel`s:

        ep = Episode("ep_001", env_id="Reach-v1")
        ep.observations["joint_pos"] = positions          # [T, 7]
        ep.actions["ctrl"] = torques                      # [T, 7]
        ep.rewards = rewards                              # [T]
        ep.omens["joint_pos"]["dreamer"] = predicted      # [T, 7]
        ep.uncerts["joint_pos"]["dreamer"]["std"] = std   # [T, 7]

    Args:
        id: the name of the episode.
        env_id: the environment.
        length: the number of steps; taken from actions, rewards or observations if you leave it out.
        timebase: the clock; without one the steps have no times.
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

    __slots__ = (
        *("__weakref__", "_facts_unknown", "_filled", "_length", "_parts", "_provenance", "_route"),
        *("chunk_index", "env_id", "id", "metadata", "origin", "timebase", "timestep_range"),
        "total_chunks",
    )

    id: str
    env_id: str
    timebase: Timebase
    metadata: dict[str, Any]
    chunk_index: int | None
    total_chunks: int | None
    timestep_range: tuple[int, int] | None
    origin: Origin | None
    """The file it was loaded from."""
    _parts: dict[Address, Any]
    _route: Route | None
    """Gives the parts of a file when one is first asked for."""
    _filled: dict[str, tuple[dict[Address, Any], dict[str, Any] | None]]
    _facts_unknown: UnknownFields | None

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
        base, chunk = timebase or Timebase(), (chunk_index, total_chunks, timestep_range)
        _start(self, EpisodeFacts(id, env_id, 0, base, dict(metadata or {}), *chunk))
        self._length = operator.index(length) if length else None
        given = {
            "provenance": None if provenance is None else dict(provenance),
            "observations": observations,
            "actions": actions,
            "omens": omens,
            "uncerts": uncerts,
            "residuals": residuals,
            "labels": labels,
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "timestamps_ns": timestamps_ns,
        }
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)

    @classmethod
    def from_facts(
        cls,
        facts: EpisodeFacts,
        origin: Origin | None = None,
        route: Route | None = None,
        unknown: UnknownFields | None = None,
    ) -> Self:
        """The episode of a file.

        Args:
            facts: what its descriptions say.
            origin: the file.
            route: gives its parts by address, and its provenance; called when a part is first asked for.
            unknown: what descriptions say that this library does not know, for an episode without a file.
        """
        episode = cls.__new__(cls)
        _start(episode, facts, origin, route, unknown)
        # A copy, even of an empty one: what the file said is compared with when the episode is saved.
        metadata = deepcopy(facts.metadata) if facts.metadata else {}
        object.__setattr__(episode, "metadata", metadata)
        return episode

    def become(self, other: Episode) -> None:
        """Takes over everything that another episode is; channels that you have taken out stay as they are."""
        for name in Episode.__slots__:
            if name != "__weakref__":
                object.__setattr__(self, name, getattr(other, name))

    # --- parts and lanes

    @property
    def parts(self) -> dict[Address, Any]:
        """Every part of the episode by its address, see `wshard._lanes`: for code that treats all parts alike."""
        route = self._route
        if route is not None:
            self._fill(route)
        return self._parts

    def _fill(self, route: Route) -> None:
        # Another thread may do the same: both use the parts of the first one.
        parts, provenance = self._filled.setdefault("parts", route())
        put = object.__setattr__
        put(self, "_provenance", provenance)
        put(self, "_parts", parts)
        put(self, "_route", None)

    observations = _LaneAttribute[LaneView[Channel]]("signal")
    """`signal/`: what was seen, [T, ...] or [T + 1, ...]."""
    actions = _LaneAttribute[LaneView[Channel]]("action")
    """`action/`: what was done, [T, ...]."""
    omens = _LaneAttribute[NestedView[LaneView[Channel]]]("omen", NestedView)
    """`omen/`: what models predicted, `omens[channel][model]`."""
    uncerts = _LaneAttribute[NestedView[NestedView[LaneView[Channel]]]]("uncert", NestedView)
    """`uncert/`: how sure models were, `uncerts[channel][model][type]`."""
    residuals = _LaneAttribute[LaneView[Residual]]("residual")
    """`residual/`: how far signals are from what was expected, see `Residual`."""
    labels = _LaneAttribute[LaneView[Intervals]]("label")
    """`label/`: labelled intervals, by name."""
    extras = _LaneAttribute[LaneView[Extra | Channel]](EXTRA)
    """Entries that the format does not define, by their names."""
    rewards = _FlatAttribute(REWARD)
    """The reward of each step."""
    terminations = _FlatAttribute(TERMINATED)
    """Whether the episode reached a terminal state with each step, as booleans."""
    truncations = _FlatAttribute(TRUNCATED)
    """Whether the episode was cut off with each step, as booleans; None if that is not known."""

    @property
    def provenance(self) -> dict[str, Any] | None:
        """Where the recording comes from; `Provenance` of spec/wshard.md, section 13."""
        _ = self.parts
        found: dict[str, Any] | None = self._provenance
        return found

    @provenance.setter
    def provenance(self, provenance: dict[str, Any] | None) -> None:
        _ = self.parts
        self._provenance = provenance

    @property
    def dones(self) -> NDArray[np.bool_] | None:
        """Whether the episode ended with each step, for either reason; None if neither is known."""
        known = [c.data for c in (self.terminations, self.truncations) if c is not None]
        return np.logical_or.reduce(known) if known else None

    @property
    def is_chunked(self) -> bool:
        """Whether this is one chunk of a longer episode."""
        return self.chunk_index is not None

    # --- length

    @property
    def length(self) -> int:
        """T, the number of steps."""
        if self._length is not None:
            return self._length
        parts = self.parts
        for lane in (REWARD, TERMINATED, TRUNCATED):
            if (lane,) in parts:
                return len(parts[lane,])
        for lane in ("action", "signal"):
            for address, channel in parts.items():
                if address[0] == lane and not channel.has_own_clock:
                    return len(channel)
        stamps = parts.get((TIMESTAMPS,))
        return 0 if stamps is None else len(stamps)

    @length.setter
    def length(self, length: int) -> None:
        self._length = operator.index(length)

    def __len__(self) -> int:
        return self.length

    # --- time

    @property
    def ticks(self) -> NDArray[np.int32]:
        """The tick of each step; 0, 1, 2, … unless the recording says otherwise."""
        stored = self._clock(TICKS)
        if stored is not None:
            return stored
        check_count(self.length)
        return np.arange(self.length, dtype=np.int32)

    @ticks.setter
    def ticks(self, ticks: ArrayLike | None) -> None:
        try:
            array = None if ticks is None else convert(as_array(ticks), DType.INT32)[0]
        except InvalidArgument as error:
            raise error.located(entry=TICKS) from None
        self._set_clock(TICKS, array)

    @property
    def timestamps_ns(self) -> NDArray[np.int64] | None:
        """The recorded times of the steps, int64 nanoseconds; None if only the rate is known."""
        return self._clock(TIMESTAMPS)

    @timestamps_ns.setter
    def timestamps_ns(self, times: ArrayLike | None) -> None:
        array = None if times is None else as_times(times, TIMESTAMPS)
        self._set_clock(TIMESTAMPS, array)
        if array is not None:
            self.timebase.type = TimebaseType.TIMESTAMPS_NS
            if self.timebase.tick_hz is None:
                self.timebase.tick_hz = _rate_of(array)

    def _clock(self, lane: str) -> NDArray[Any] | None:
        """The times or ticks of the steps that are stored (W-TIM-2)."""
        clock: Channel | None = self.parts.get((lane,))
        if clock is None:
            return None
        block = clock.source
        if block is not None and block.nbytes != self.length * clock.step_bytes:
            raise SizeMismatch(
                "the clock of the steps has a different length than the episode",
                path=block.path,
                entry=block.name,
                expected=f"{self.length} values of {clock.step_bytes} bytes",
                found=f"{block.nbytes} bytes",
                rule="W-TIM-2",
            )
        return clock.data

    def _set_clock(self, lane: str, values: NDArray[Any] | None) -> None:
        if values is None:
            self.parts.pop((lane,), None)
        else:
            self.parts[lane,] = Channel(lane, data=values)

    def times_ns(self, channel: str | Channel | None = None) -> NDArray[np.int64]:
        """The times of the steps, or of a channel's entries, int64 nanoseconds.

        Args:
            channel: a channel with or without its own clock, or its name; None for the episode's steps.
        """
        if channel is not None:
            found = self.find(channel) if isinstance(channel, str) else channel
            own = found.timestamps_ns
            found.check_claims()
            return self.step_times_ns(found.length) if own is None else own
        return self.step_times_ns(self.length)

    def step_times_ns(self, count: int) -> NDArray[np.int64]:
        """The times of the first `count` steps, int64 nanoseconds; at most one more than there are."""
        recorded = self.timestamps_ns
        if recorded is None:
            return regular_times(count, self._stated_rate(), self.timebase.epoch_ns)
        if count == len(recorded) + 1:
            # The observation after the last action has no recorded time: one more step.
            if len(recorded) < 2:
                first = int(recorded[0]) if len(recorded) else self.timebase.epoch_ns
                more = regular_times(count, self._stated_rate(), first)[len(recorded) :]
            else:
                last, before = int(recorded[-1]), int(recorded[-2])
                if abs(last + (last - before)) > LARGEST:
                    raise BadValue(
                        "the time after the last step does not fit into 64 bits", entry=TIMESTAMPS
                    )
                more = np.array([last + (last - before)])
            return np.append(recorded, more)
        return recorded[:count]

    def span_ns(self) -> tuple[int, int] | None:
        """When the first step starts and the last one ends, in nanoseconds; None without steps or without a clock."""
        times, rate_hz = self.timestamps_ns, self.timebase.tick_hz
        if not self.length or (times is None and not rate_hz):
            return None
        period = 1e9 / rate_hz if rate_hz else 0.0
        if times is None:
            # Computed, not made: T is what the file claims.
            start = self.timebase.epoch_ns
            return start, start + round(self.length * period)
        low, high = int(times.min()), int(times.max())
        if len(times) > 1:
            return low, high + (high - low) // (len(times) - 1)
        return low, high + round(period)

    def _stated_rate(self) -> float:
        if self.timebase.tick_hz is None:
            raise InvalidArgument(
                f"the steps of episode {self.id!r} have no times: the episode has no rate",
                hint="set ep.timebase.tick_hz, or ep.timestamps_ns",
            )
        return self.timebase.tick_hz

    def align(
        self,
        to: str | ArrayLike | None = None,
        method: Method = "nearest",
        *,
        tolerance_ns: int | None = None,
        channels: Iterable[str] | None = None,
    ) -> Aligned:
        """Resample all channels at the times of one; the file does not change.

        Args:
            to: the channel whose times to use, or times in nanoseconds; None for the episode's steps.
            method: `"nearest"`, `"previous"`, `"exact"`, or `"linear"`, which interpolates between
                floating-point entries and takes the nearest entry of everything else.
            tolerance_ns: entries further away than this count as missing. None for any distance; a channel whose
                clock is about 1000, 10⁶ or 10⁹ times as long as the episode, or as short, is then refused,
                because its unit is wrong.
            channels: which ones; None for all observations and actions.

        Returns:
            The resampled arrays, each with `valid`, and `residual_ns`: how far the entry that was used is
            from the time that was asked for.
        """
        if isinstance(to, str):
            targets = self.times_ns(to)
        else:
            targets = self.times_ns() if to is None else as_times(to, "to")
        names = list(channels) if channels is not None else self.step_channels()
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
        chosen, times = method_for(channel, method), self.times_ns(channel)
        if channel.has_own_timestamps and tolerance_ns is None and method != "exact":
            check_unit(times, self.span_ns(), _FAR_AWAY)
        return match(times, targets_ns, chosen, tolerance_ns)

    def step_channels(self) -> list[str]:
        """The names of all observations and actions, as `find` takes them: with the lane where both have one."""
        lanes = {"signal": self.observations, "action": self.actions}
        both = self.observations.keys() & self.actions.keys()
        return [
            f"{lane}/{name}" if name in both else name
            for lane, view in lanes.items()
            for name in view
        ]

    # --- finding, loading, copying

    def find(self, name: str) -> Channel:
        """A channel by its name, or by its block's name such as `omen/joint_pos/dreamer`."""
        parts = self.parts
        for lane in ("signal", "action"):
            if (lane, name) in parts:
                found: Channel = parts[lane, name]
                return found
        blocks = dict(self.blocks())
        if name in blocks:
            return blocks[name]
        candidates = [*self.observations, *self.actions, *blocks]
        raise not_found(f"no channel {name!r} in episode {self.id!r}", name, candidates)

    @property
    def described(self) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """The dtype and step shape of each described block; reads no data."""
        if self.origin is not None and self.origin.rows:
            return {block: (row.dtype, row.shape) for block, row in self.origin.rows.items()}
        return {block: (channel.dtype_name, channel.step_shape) for block, channel in self.blocks()}

    def blocks(self) -> Iterator[tuple[str, Channel]]:
        """Every channel with the name of its block, lane by lane, without clocks and extras."""
        parts = self.parts
        found = [at for at in parts if at[0] in CHANNEL_LANES]
        found.sort(key=lambda at: CHANNEL_LANES[at[0]])
        return ((block_name(at), parts[at]) for at in found)

    def load(self, *, threads: int | None = None) -> Self:
        """Brings everything into memory, in parallel, and checks it. Uncompressed data stays a view, and video encoded.

        Args:
            threads: how many; None for one per processor, up to 8.
        """
        parts = list(self.parts.values())
        large, small = list[Channel](), list[Channel]()
        for part in parts:
            if isinstance(part, Channel) and not part.is_loaded:
                is_large = part.nbytes >= _LARGE and part.source and part.source.is_cut_cheaply
                (large if is_large else small).append(part)
        # Large ones spread their own frames over threads; the others are spread themselves.
        for channel in large:
            _touch(channel)
        total = sum(channel.nbytes for channel in small)
        workers = available_threads() if threads is None else threads
        for_each(small, _touch, workers if total >= _WORTH_THREADS else 1)
        for part in parts:
            if isinstance(part, Channel):
                _ = part.timestamps_ns if part.clock_source is not None else None
            elif isinstance(part, (Residual, Extra)):
                _ = part.data
            else:
                _ = part.unit
        _ = self._clock(TICKS), self._clock(TIMESTAMPS)
        return self

    def clone(self) -> Self:
        """A copy with data of its own in memory, detached from any file."""
        copy = self.mapped(lambda part: part if isinstance(part, Intervals) else part.clone())
        copy.origin = None
        return copy

    @property
    def unknown_fields(self) -> UnknownFields:
        """Fields of its descriptions that this library does not know; they are kept."""
        if self.origin is not None:
            return self.origin.unknown_fields
        return self._facts_unknown or UnknownFields({}, {})

    @property
    def facts(self) -> EpisodeFacts:
        """What its descriptions say when it is saved."""
        return EpisodeFacts(
            *(self.id, self.env_id, self.length, self.timebase, self.metadata),
            *(self.chunk_index, self.total_chunks, self.timestep_range),
        )

    def mapped(self, change: Callable[[Any], Any]) -> Self:
        """The same episode with every part changed; channels that `change` returns as they are, are shared."""
        copy = self.from_facts(self.facts, self.origin, unknown=self.unknown_fields)
        copy.timebase = replace(self.timebase)
        object.__setattr__(copy, "_length", self._length)
        copy.provenance = deepcopy(self.provenance)
        for address, part in self.parts.items():
            copy.parts[address] = change(part[:] if isinstance(part, Intervals) else part)
        return copy

    def picked(self, choose: Callable[[Address, Any], bool]) -> Self:
        """The same episode with those parts only for which `choose(address, part)` is true."""
        copy = self.mapped(lambda part: part)
        copy.length = self.length
        for address, part in self.parts.items():
            if not choose(address, part):
                del copy.parts[address]
        return copy

    def plot(
        self,
        *,
        channels: Iterable[str] | None = None,
        models: Sequence[str] | None = None,
        dims: Sequence[int] | None = None,
        per_dim: bool | None = None,
        time: slice | tuple[float | None, float | None] | None = None,
        size: tuple[float, float] | None = None,
        dpi: float = 130,
    ) -> Figure:
        """Draw it: every channel against time, predictions over what happened, and how far off they are.

        A model has one colour and one dash everywhere. Below each predicted channel is the difference between
        prediction and truth, as pictures for cameras; at the bottom are RMSE by dimension, RMSE by steps ahead for
        predictions with a horizon, and the calibration of uncertainties. Needs the extra `plot`.

        Args:
            channels: only these observations, actions and labels, by name or pattern such as `"wrist/*"`.
            models: only the predictions of these models, by name or pattern; `[]` for none.
            dims: only these dimensions, counted from 0.
            per_dim: whether each dimension has a panel of its own; None: only where several models predict several
                dimensions.
            time: a pair of seconds since the episode began, such as `(1.5, 3)`, or a slice of steps.
            size: width and height in inches; None for 12 inches, as high as the panels need.
            dpi: pixels per inch.

        Returns:
            A figure of matplotlib, which you can change, and save with `figure.savefig("ep.png")`.

        Raises:
            MissingExtra: matplotlib is not installed.
            InvalidArgument: a prediction does not have the shape of its channel, or an argument is invalid.
        """
        # By name: the core imports no room that is built on it.
        room = import_module("wshard.plot")
        options = room.PlotOptions(models, dims, per_dim, size, dpi)
        figure: Figure = room.plot_episode(self, channels=channels, steps=time, options=options)
        return figure

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that shows the episode in any browser, without a network: for sharing.

        The file holds the viewer and the episode with its predictions, stored as in a file of its own.

        Args:
            path: the file to write, which appears when it is complete.

        Raises:
            InvalidArgument: the episode takes more than 20 MB; says what to do.
        """
        import_module(_VIEWER).to_html(self, path)

    def view(self) -> Any:  # noqa: ANN401 - a class of an optional package
        """Show it in a notebook: a widget that reads from this process what you look at. Needs the extra `notebook`.

        `wshard.viewer.widget(path)` shows files of any size; `wshard view` in a terminal opens a browser.

        Raises:
            MissingExtra: anywidget is not installed.
            InvalidArgument: the episode takes more than 256 MiB.
        """
        return import_module(_VIEWER).widget(self)

    def validate(self) -> None:
        """Checks that it can be saved: names, lengths, types.

        Raises:
            InvalidArgument: names the first channel that does not fit, and why.
        """
        from wshard._plan_episode import plan_entries

        plan_entries(self)

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
            for what in ("observations", "actions", "omens", "uncerts", "residuals", "labels")
            if (lane := getattr(self, what))
        )
        return f"<Episode {self.id!r}: {self.length} steps{', ' + lanes if lanes else ''}>"

    def _repr_html_(self) -> str:
        try:
            return self._card()
        except ShardError as error:  # a notebook still shows which episode it is
            return display.card(f"Episode {self.id}", note=f"cannot be shown: {error}")

    def _card(self) -> str:
        rate = self.timebase.tick_hz
        facts: list[tuple[str, object]] = [("steps", self.length)]
        if self.env_id:
            facts.insert(0, ("environment", self.env_id))
        if rate:
            facts.append(("rate", f"{rate:.6g} Hz, {self.length / rate:.6g} s"))
        if self.origin is not None:
            facts.append(("file", self.origin.path))
        facts += display.fields(self.metadata)
        step_rate, parts = f"{rate:.6g} Hz" if rate else "", self.parts
        # Made one by one: of very many channels only the first are shown.
        rows = (
            (block_name(address), *_cells(channel, step_rate))
            for lane in CHANNEL_LANES
            for address, channel in parts.items()
            if address[0] == lane
        )
        columns = ("channel", "dtype", "shape", "rate", "codec", "size", "stored")
        total = sum(address[0] in CHANNEL_LANES for address in parts)
        table = display.Table(columns, rows, total)
        cameras = [(at[1], c) for at, c in parts.items() if at[0] == "signal" and is_frames(c)]
        cameras.sort(key=lambda camera: camera[1].modality == Modality.DEPTH)  # colours first
        pictures = {
            f"{name} · {at}": each
            for name, camera in cameras[:1]
            for at, each in camera.thumbnails().items()
        }
        return display.card(f"Episode {self.id}", facts, table, pictures, plots=self._plots())

    def _plots(self) -> Iterator[tuple[str, list[display.Line]]]:
        """Small plots of channels, rewards first, each with the prediction of its first model."""
        for lane in (REWARD, "signal", "action"):
            for address, channel in self.parts.items():
                if address[0] != lane or (truth := channel.sketch()) is None:
                    continue
                lines = [display.Line(truth)]
                name = address[-1]
                for model, omen in self.omens[name].items() if lane == "signal" else ():
                    sketch = omen.sketch() if omen.step_shape == channel.step_shape else None
                    if sketch is not None:
                        lines.append(display.Line(sketch, is_prediction=True))
                        name += f", dashed: {model}"
                        break
                yield name, lines


def _cells(channel: Channel, step_rate: str) -> list[str]:
    cells = channel.summary()
    return list({**cells, "rate": cells["rate"] or step_rate}.values())


def _rate_of(times: NDArray[np.int64]) -> float | None:
    """The rate that timestamps show, if no rate was given."""
    steps = np.diff(times)
    period = float(np.median(steps)) if len(steps) else 0.0
    return 1e9 / period if period > 0 else None


def _touch(channel: Channel) -> None:
    # Ragged data stays packed, and video encoded.
    _ = channel.data if channel.layout == "dense" else channel.stored_array()


def _start(
    episode: Episode,
    facts: EpisodeFacts,
    origin: Origin | None = None,
    route: Route | None = None,
    unknown: UnknownFields | None = None,
) -> None:
    """Sets every attribute; not through `__setattr__`, because some programs open a million episodes."""
    put = object.__setattr__
    id, env_id, length, timebase, metadata, chunk_index, total_chunks, timestep_range = facts
    put(episode, "id", id)
    put(episode, "env_id", env_id)
    put(episode, "_length", length)
    put(episode, "timebase", timebase)
    put(episode, "metadata", metadata)
    put(episode, "chunk_index", chunk_index)
    put(episode, "total_chunks", total_chunks)
    put(episode, "timestep_range", timestep_range)
    put(episode, "origin", origin)
    put(episode, "_route", route)
    put(episode, "_facts_unknown", unknown)
    put(episode, "_filled", {})
    put(episode, "_parts", {})
    put(episode, "_provenance", None)
