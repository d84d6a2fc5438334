"""Items that are single steps, with what some channels hold at other times around them: `delta_timestamps`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format.errors import InvalidArgument, ShardError
from wshard.dataset.layouts import Layout, check_masks
from wshard.dataset.lookups import Asked, lookup_of
from wshard.dataset.resampling import ResampledSources, mask_of
from wshard.windows import STEP_KEYS, make_arrays, wanted_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.dataset.lookups import Lookup
    from wshard.dataset.resampling import Resampling
    from wshard.episode import Episode
    from wshard.windows import Forms, Wanted

__all__ = ["StepLayout"]

# Further than any episode is long, and far from where nanoseconds wrap.
_MOST_SECONDS = 1e9
_STEP_FORMS: Forms = {
    "reward": ((), np.dtype(np.float32)),
    "terminated": ((), np.dtype(np.bool_)),
    "truncated": ((), np.dtype(np.bool_)),
}


class StepLayout(Layout):
    """Items are steps.

    Args:
        delta_timestamps: for each key the times of its entries, in seconds from the step's.
        tolerance_s: how far an entry may be from its time.
        resampling: how channels with clocks of their own are found; None if as others.
    """

    window = 1

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
        if not (math.isfinite(tolerance_s) and 0 <= tolerance_s <= _MOST_SECONDS):
            raise InvalidArgument("tolerance_s is a number of at least 0", found=tolerance_s)
        self.tolerance_s = float(tolerance_s)
        self.resampling = resampling
        tolerance_ns = round(tolerance_s * 1e9)
        self.asked = {
            key: Asked(key, _as_deltas(key, deltas), tolerance_ns)
            for key, deltas in delta_timestamps.items()
        }

    def wanted(
        self, episode: Episode, names: list[str] | None, reserved: Sequence[str]
    ) -> list[Wanted]:
        others = None if names is None else [name for name in names if name not in self.asked]
        found = wanted_channels(episode, others, reserved, own_clocks=self.resampling is not None)
        known = {want.key for want in found}
        asked = [key for key in self.asked if key not in known and key not in STEP_KEYS]
        # Looked up by time, whatever their clock is.
        found += wanted_channels(episode, asked, reserved, own_clocks=True)
        for key in self.asked:
            if key not in STEP_KEYS and all(want.key != key for want in found):
                raise InvalidArgument(
                    "delta_timestamps names a channel that has another key in items",
                    entry=key,
                    expected=", ".join(sorted(want.key for want in found)),
                )
        own_clocks = [want.key for want in found if want.has_own_clock]
        check_masks(found, {*self.asked, *own_clocks})
        return found

    def sources(self, episode: Episode, path: str, wanted: Sequence[Wanted]) -> _StepSources:
        return _StepSources(episode, path, wanted, self.asked, self.resampling)

    def room(
        self, batch: int, wanted: Sequence[Wanted], out: Mapping[str, NDArray[Any]] | None
    ) -> _Steps:
        return _Steps(batch, wanted, self.asked, out)

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
        wanted: Iterable[Wanted],
        asked: Mapping[str, Asked],
        resampling: Resampling | None,
    ) -> None:
        super().__init__(episode, path, wanted, episode.length, resampling)
        self.lookups: dict[str, Lookup] = {
            key: self._lookup(one, resampling) for key, one in asked.items()
        }

    def _lookup(self, asked: Asked, resampling: Resampling | None) -> Lookup:
        try:
            return lookup_of(self, asked, resampling)
        except ShardError as error:
            raise error.located(path=self.path, entry=asked.key) from None


class _Steps:
    """Room for a batch of steps."""

    def __init__(
        self,
        batch: int,
        wanted: Sequence[Wanted],
        asked: Mapping[str, Asked],
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

    def fill(self, row: int, sources: _StepSources, start: int, stop: int) -> None:
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
