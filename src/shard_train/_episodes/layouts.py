"""What an item of a dataset is made of: windows of consecutive steps, or single steps with entries at other times."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument, LimitExceeded, ShardError, check_choice
from shard_train._episodes.lookups import (
    ResampledSources,
    TimeQuery,
    as_resampling,
    lookup_of,
    mask_of,
)
from wshard.catalogue import MOST_STEPS
from wshard.windows import STEP_KEYS, Windows, WindowSource, make_arrays, wanted_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from shard_train._episodes.lookups import RegularLookup, Resampling, TimeLookup
    from wshard.types import Episode
    from wshard.windows import ChannelSpec, Forms

    Arrays = Mapping[str, NDArray[Any]]

__all__ = [
    "StepBuffers",
    "StepLayout",
    "WindowLayout",
    "WindowNumbers",
    "make_layout",
]

_WINDOW: Final = 64
# The default of `tolerance_s` for `delta_timestamps`.
_TOLERANCE_S: Final = 1e-4
_PADDING: Final = ("none", "edge", "zero")
# Further than any episode is long, and far from where nanoseconds wrap.
_MOST_SECONDS = 1e9
_STEP_FORMS: Forms = {
    "reward": ((), np.dtype(np.float32)),
    "terminated": ((), np.dtype(np.bool_)),
    "truncated": ((), np.dtype(np.bool_)),
}


class WindowLayout:
    """Items are windows: steps in a row."""

    def __init__(
        self, window: int, pad: str, next_observations: bool, resampling: Resampling | None
    ) -> None:
        self.window = window
        self.steps: int | None = window
        """Steps of an item; None for one step without a time axis."""
        self.pad = pad
        self.next_observations = next_observations
        self.resampling = resampling

    @property
    def is_contiguous(self) -> bool:
        """Whether the steps of an item follow each other in its file."""
        return self.resampling is None

    def wanted(
        self, episode: Episode, names: list[str] | None, reserved: Sequence[str]
    ) -> list[ChannelSpec]:
        own_clocks = self.resampling is not None
        found = wanted_channels(episode, names, reserved, own_clocks=own_clocks)
        check_masks(found, [want.key for want in found if want.has_own_clock])
        return found

    def wanted_alone(
        self, episode: Episode, name: str, reserved: Sequence[str]
    ) -> list[ChannelSpec]:
        return self.wanted(episode, [name], reserved)

    def sources(self, episode: Episode, path: str, wanted: Sequence[ChannelSpec]) -> WindowSource:
        if self.resampling is None:
            return WindowSource(episode, path, wanted, keep_small=True)
        steps = episode.length + self.next_observations
        return ResampledSources(episode, path, wanted, steps, self.resampling)

    def buffers(self, batch: int, wanted: Sequence[ChannelSpec], out: Arrays | None) -> Windows:
        kind = _ResampledBuffers if any(want.has_own_clock for want in wanted) else Windows
        return kind(
            batch,
            self.window,
            wanted,
            more=self.next_observations,
            repeat=self.pad == "edge",
            flags=() if self.pad == "none" else ("is_pad",),
            out=out,
        )

    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.next_observations:
            found["next_observations"] = True
        if self.resampling is not None:
            found["align"], found["tolerance_ns"] = self.resampling
        return found


class _ResampledBuffers(Windows):
    """Windows with channels that have clocks of their own."""

    def __init__(
        self,
        batch: int,
        length: int,
        wanted: Sequence[ChannelSpec],
        *,
        more: bool = False,
        repeat: bool = False,
        flags: Sequence[str] = (),
        out: Arrays | None = None,
    ) -> None:
        plain = [want for want in wanted if not want.has_own_clock]
        super().__init__(batch, length, plain, more=more, repeat=repeat, flags=flags, out=out)
        forms: Forms = {}
        self._resampled: dict[str, int] = {}
        for want in wanted:
            if want.has_own_clock:
                extra = int(more and want.is_observation)
                self._resampled[want.key] = extra
                forms[want.key] = ((length + extra, *want.shape), want.dtype)
                forms[mask_of(want.key)] = ((length + extra,), np.dtype(np.bool_))
        self.arrays.update(make_arrays(forms, batch, out))

    def fill(self, row: int, sources: Any, start: int, stop: int) -> None:  # noqa: ANN401 - those that `WindowLayout.sources` makes
        super().fill(row, sources, start, stop)
        for key, extra in self._resampled.items():
            values, is_pad = self.arrays[key][row], self.arrays[mask_of(key)][row]
            count = stop - start + extra
            sources.read_resampled(key, start, values[:count], is_pad[:count])
            if count < len(values):
                values[count:] = values[count - 1] if self._repeat else 0
                is_pad[count:] = True


def check_masks(wanted: Iterable[ChannelSpec], masked: Iterable[str]) -> None:
    """Refuses a channel that has the name of another one's mask."""
    keys = {want.key for want in wanted}
    for key in masked:
        if mask_of(key) in keys:
            raise InvalidArgument(
                "a channel has the name of another one's mask",
                entry=mask_of(key),
                hint="choose channels with channels=[…]",
            )


class StepLayout:
    """Items are steps."""

    window = 1
    steps: int | None = None
    is_contiguous = False
    pad = "none"
    next_observations = False

    def __init__(
        self,
        delta_timestamps: Mapping[str, Iterable[float]],
        tolerance_s: float,
        resampling: Resampling | None,
    ) -> None:
        if not delta_timestamps:
            raise InvalidArgument(
                "delta_timestamps is empty",
                expected="{'key': [seconds, …], …}",
                hint="leave it out",
            )
        self.tolerance_s = float(tolerance_s)
        self.resampling = resampling
        tolerance_ns = round(tolerance_s * 1e9)
        self.asked = {
            key: TimeQuery(key, _as_deltas(key, deltas), tolerance_ns)
            for key, deltas in delta_timestamps.items()
        }

    def wanted(
        self, episode: Episode, names: list[str] | None, reserved: Sequence[str]
    ) -> list[ChannelSpec]:
        others = None if names is None else [name for name in names if name not in self.asked]
        found = wanted_channels(episode, others, reserved, own_clocks=self.resampling is not None)
        known = {want.key for want in found}
        asked = [key for key in self.asked if key not in known and key not in STEP_KEYS]
        # Looked up by time, whatever their clock is.
        found += wanted_channels(episode, asked, reserved, own_clocks=True)
        for key in self.asked:
            if key not in STEP_KEYS and all(want.key != key for want in found):
                raise InvalidArgument(
                    "delta_timestamps names a channel by a different key than items have",
                    entry=key,
                    expected=", ".join(sorted(want.key for want in found)),
                )
        own_clocks = [want.key for want in found if want.has_own_clock]
        check_masks(found, {*self.asked, *own_clocks})
        return found

    def wanted_alone(
        self, episode: Episode, name: str, reserved: Sequence[str]
    ) -> list[ChannelSpec]:
        own_clocks = self.resampling is not None or name in self.asked
        return wanted_channels(episode, [name], reserved, own_clocks=own_clocks)

    def sources(self, episode: Episode, path: str, wanted: Sequence[ChannelSpec]) -> _StepSources:
        return _StepSources(episode, path, wanted, self.asked, self.resampling)

    def buffers(
        self, batch: int, wanted: Sequence[ChannelSpec], out: Mapping[str, NDArray[Any]] | None
    ) -> StepBuffers:
        return StepBuffers(batch, wanted, self.asked, out)

    def options(self) -> dict[str, Any]:
        deltas = {key: (asked.deltas_ns / 1e9).tolist() for key, asked in self.asked.items()}
        found: dict[str, Any] = {"delta_timestamps": deltas, "tolerance_s": self.tolerance_s}
        if self.resampling is not None:
            found["align"], found["tolerance_ns"] = self.resampling
        return found


def _as_deltas(key: str, deltas: Iterable[float]) -> NDArray[np.int64]:
    try:
        seconds = np.asarray(deltas if isinstance(deltas, np.ndarray) else list(deltas), np.float64)
    except (TypeError, ValueError):
        seconds = np.zeros(0)
    if seconds.ndim != 1 or not seconds.size or not (np.abs(seconds) <= _MOST_SECONDS).all():
        raise InvalidArgument(
            f"delta_timestamps[{key!r}] is a list of seconds",
            expected="at least one number, such as [-0.1, 0.0]",
            found=repr(deltas)[:80],
        )
    return np.rint(seconds * 1e9).astype(np.int64)


class _StepSources(ResampledSources):
    """Where the items of one open episode come from, by time."""

    __slots__ = ("lookups",)

    def __init__(
        self,
        episode: Episode,
        path: str,
        wanted: Iterable[ChannelSpec],
        asked: Mapping[str, TimeQuery],
        resampling: Resampling | None,
    ) -> None:
        super().__init__(episode, path, wanted, episode.length, resampling)
        self.lookups: dict[str, RegularLookup | TimeLookup] = {}
        for key, query in asked.items():
            try:
                self.lookups[key] = lookup_of(self, query, resampling)
            except ShardError as error:  # noqa: PERF203 - names the channel
                raise error.located(path=path, entry=key) from None


class StepBuffers:
    """Room for a batch of steps, as `Windows` is for windows."""

    def __init__(
        self,
        batch: int,
        wanted: Sequence[ChannelSpec],
        asked: Mapping[str, TimeQuery],
        out: Mapping[str, NDArray[Any]] | None,
    ) -> None:
        single: Forms = {want.key: (want.shape, want.dtype) for want in wanted} | _STEP_FORMS
        forms: Forms = {}
        for key, (shape, dtype) in single.items():
            count = (len(asked[key].deltas_ns),) if key in asked else ()
            forms[key] = ((*count, *shape), dtype)
            if key in asked:
                forms[mask_of(key)] = (count, np.dtype(np.bool_))
        resampled = [want.key for want in wanted if want.has_own_clock and want.key not in asked]
        for key in resampled:
            forms[mask_of(key)] = ((), np.dtype(np.bool_))
        self.arrays = make_arrays(forms, batch, out)
        self._single = [key for key in single if key not in asked and key not in resampled]
        self._resampled = resampled
        self._timed = list(asked)

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def fill(self, row: int, sources: Any, start: int, stop: int) -> None:  # noqa: ANN401 - those that `StepLayout.sources` makes
        """Reads the step `start` into a row."""
        arrays = self.arrays
        # With a time axis of one step, as sources fill it.
        one = slice(row, row + stop - start)
        for key in self._single:
            sources.read(key, start, arrays[key][one])
        for key in self._resampled:
            sources.read_resampled(key, start, arrays[key][one], arrays[mask_of(key)][one])
        for key in self._timed:
            sources.lookups[key].fill(sources, start, arrays[key][row], arrays[mask_of(key)][row])


def make_layout(
    window: int | None,
    pad: str,
    next_observations: bool,
    delta_timestamps: Mapping[str, Iterable[float]] | None,
    tolerance_s: float | None,
    align: str | None,
) -> WindowLayout | StepLayout:
    """Make the layout of items from the arguments of `EpisodeDataset`.

    Raises:
        InvalidArgument: an argument cannot work, or two of them exclude each other.
    """
    check_choice("pad", pad, _PADDING)
    if tolerance_s is not None:
        if align is None and delta_timestamps is None:
            raise InvalidArgument(
                "tolerance_s needs align or delta_timestamps", hint="pass align='nearest' too"
            )
        if not (math.isfinite(tolerance_s) and 0 <= tolerance_s <= _MOST_SECONDS):
            raise InvalidArgument("tolerance_s must be a number of at least 0", found=tolerance_s)
    resampling = as_resampling(align, tolerance_s)
    if delta_timestamps is None:
        steps = _WINDOW if window is None else operator.index(window)
        if steps < 1:
            raise InvalidArgument("window must be at least 1", found=window)
        return WindowLayout(steps, pad, bool(next_observations), resampling)
    for name, is_given, instead in (
        ("window", window is not None, "the times say how many entries there are"),
        ("pad", pad != "none", "what lies outside an episode is its nearest entry, and masked"),
        ("next_observations", next_observations, "ask for the time of the next step"),
    ):
        if is_given:
            raise InvalidArgument(
                f"{name} and delta_timestamps exclude each other",
                hint=f"leave {name} out: {instead}",
            )
    tolerance = _TOLERANCE_S if tolerance_s is None else float(tolerance_s)
    return StepLayout(delta_timestamps, tolerance, resampling)


# --- numbers of windows


class WindowNumbers:
    """All windows of many episodes, numbered episode by episode.

    Args:
        lengths: steps of each episode.
        window: steps of a window.
        stride: steps from one window to the next.
        padded: whether windows may reach behind the end. Then one starts at every `stride`-th step; else
            all lie within the episode, and shorter episodes have none.
    """

    __slots__ = ("firsts", "stride")

    def __init__(
        self, lengths: NDArray[np.int64], window: int, stride: int, *, padded: bool
    ) -> None:
        # Files can claim more, and their sum would overflow.
        if lengths.sum(dtype=np.float64) > MOST_STEPS:
            raise LimitExceeded(
                "the episodes claim more steps than any dataset has",
                expected=f"at most {MOST_STEPS}",
                found=f"{len(lengths)} episodes, the longest of {lengths.max()}",
            )
        starts = lengths if padded else lengths - window + 1
        counts = np.maximum(-(-starts // stride), 0)
        self.stride = stride
        self.firsts = np.zeros(len(lengths) + 1, np.int64)
        """The number of each episode's first window, and the number of all."""
        np.cumsum(counts, out=self.firsts[1:])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def count(self, episode: int) -> int:
        """Windows of an episode."""
        return int(self.firsts[episode + 1] - self.firsts[episode])

    def checked(self, numbers: ArrayLike) -> NDArray[np.int64]:
        """Check the numbers of windows; negative ones count from the end.

        Raises:
            InvalidArgument: they are not integers.
            IndexError: a number is too large.
        """
        given = np.asarray(numbers)
        if given.size == 0:
            return np.zeros(0, np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise InvalidArgument(
                "expected window numbers",
                expected="a list of integers",
                found=f"{given.dtype} {list(given.shape)}",
            )
        count = len(self)
        # Compared before they are narrowed: unsigned numbers may be larger.
        wrong = (given >= count) | (given < -count)
        if wrong.any():
            raise IndexError(f"window {given[wrong][0]} of {count}")
        chosen = given.astype(np.int64)
        return np.where(chosen < 0, chosen + count, chosen)

    def following(self, episode: int, start: int) -> tuple[int, int]:
        """The next episode that has windows, and the window in this place or the nearest that it has.

        After the last episode comes the first.
        """
        after = self.firsts[episode + 1] % self.firsts[-1]
        found = int(np.searchsorted(self.firsts, after, side="right")) - 1
        return found, min(start // self.stride, self.count(found) - 1) * self.stride

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The episode and the first step of each window; numbers are from 0 to `len` - 1."""
        episodes = np.searchsorted(self.firsts, numbers, side="right") - 1
        return episodes, (numbers - self.firsts[episodes]) * self.stride
