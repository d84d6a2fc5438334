"""Several sources in given proportions: which source a position belongs to, and which of its draws it is.

The weights become a pattern of source numbers that repeats, in which every source is spread as evenly as
can be: in every prefix of the mixture, the draws of a source differ from its share of the prefix by less
than one. A position therefore knows, without those before it, its source (a place of the pattern) and how
often that source was drawn before (whole patterns times the draws in one, plus the draws in this one).
"""

from __future__ import annotations

import heapq
import zlib
from fractions import Fraction
from math import isfinite, lcm
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from shard_format.cache import BoundedCache
from shard_format.errors import InvalidArgument, check_choice
from shard_train._orders import MAX_LENGTH, Permutation, mixed_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from shard_train._plan import Plan

__all__ = ["MixtureOrder", "MixturePattern", "Stop"]

Stop = Literal["first", "all", "never"]

# The most places of a pattern: shares that need more are rounded to such parts.
_LONGEST: Final = 1 << 16
# Shorter ones are laid out several times, with other choices where two sources could go first: a pattern
# of two places would give each of two ranks the same source forever.
_SHORTEST: Final = 1 << 12

_FOR_CHOICES: Final = 4
# A batch takes from one epoch of a source, or from two.
_EPOCHS_KEPT: Final = 4


class MixturePattern:
    """The repeating sequence of sources."""

    def __init__(self, weights: Sequence[float], seed: int = 0) -> None:
        self.counts = _counts(weights)
        """Draws of each source in one pattern."""
        self.sources = _spread(self.counts, seed)
        """The source at each place."""
        self._size = self.sources.size
        by_source = np.argsort(self.sources, kind="stable")
        self._first = np.cumsum(self.counts) - self.counts
        self._places = by_source
        self._earlier = np.empty(self._size, np.int64)
        self._earlier[by_source] = np.arange(self._size) - self._first[self.sources[by_source]]

    def __len__(self) -> int:
        return self._size

    def draws(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of each position, and how often it was drawn at earlier positions."""
        rounds, places = np.divmod(positions, self._size)
        sources = self.sources[places]
        return sources, rounds * self.counts[sources] + self._earlier[places]

    def counts_before(self, position: int) -> NDArray[np.int64]:
        """How often each source is drawn before a position."""
        rounds, place = divmod(position, self._size)
        return rounds * self.counts + np.bincount(self.sources[:place], minlength=self.counts.size)

    def position_of(self, source: int, draw: int) -> int:
        """Where a source is drawn for the time with this number, from 0 on."""
        rounds, number = divmod(draw, int(self.counts[source]))
        return rounds * self._size + int(self._places[self._first[source] + number])


def _counts(weights: Sequence[float]) -> NDArray[np.int64]:
    """Draws of each source in one pattern: in the proportion of the weights, all of them 1 or more."""
    if not 0 < len(weights) <= _LONGEST:
        raise InvalidArgument(
            "nothing to mix" if not weights else "too many sources",
            expected=f"1 to {_LONGEST} sources",
            found=len(weights),
        )
    shares = [_share(weight) for weight in weights]
    total = sum(shares)
    shares = [share / total for share in shares]
    size = lcm(*(share.denominator for share in shares))
    if size <= _LONGEST:
        size *= max(1, _SHORTEST // size)
        return np.array([int(share * size) for share in shares], np.int64)
    # Each source has one place for certain; the rest goes by weight, what is left to the largest rests.
    free = _LONGEST - len(shares)
    wanted = [max(Fraction(0), share * _LONGEST - 1) for share in shares]
    scale = free / sum(wanted) if any(wanted) else Fraction(0)
    exact = [share * scale for share in wanted]
    counts = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda number: counts[number] - exact[number])
    for number in by_rest[: free - sum(counts)]:
        counts[number] += 1
    return np.array(counts, np.int64) + 1


def _share(weight: float) -> Fraction:
    """A weight as it was written: 0.1 is a tenth, not the nearest binary fraction."""
    try:
        value = float(weight)
    except (TypeError, ValueError, OverflowError):
        value = 0.0
    if not isfinite(value) or value <= 0:
        raise InvalidArgument(
            "a weight is not a positive number", found=repr(weight), hint="leave the source out"
        )
    return Fraction(weight) if isinstance(weight, (int, Fraction)) else Fraction(repr(value))


def _spread(counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Lays out the draws so that each source is never a whole draw before or behind its share.

    The draw j of a source with the share w must then come between place ⌊j / w⌋ and place
    ⌈(j + 1) / w⌉ - 1. Taking, of the draws that may come, the one that must come first is the way to keep
    all such terms if there is one, and for these terms there always is one.
    """
    size = int(counts.sum())
    sources = np.repeat(np.arange(counts.size, dtype=np.int64), counts)
    draws = np.arange(size, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    count = counts[sources]
    earliest = draws * size // count
    latest = -(-(draws + 1) * size // count) - 1
    # Which one goes first if two must come at the same place.
    choice = Permutation(size, mixed_key(seed, _FOR_CHOICES))(np.arange(size, dtype=np.int64))
    by_start = np.argsort(earliest, kind="stable")
    columns = (array[by_start].tolist() for array in (earliest, latest, choice, sources))
    waiting = list(zip(*columns, strict=True))
    waiting.reverse()
    placed: list[int] = []
    ready: list[tuple[int, int, int]] = []
    for place in range(size):
        while waiting and waiting[-1][0] <= place:
            heapq.heappush(ready, waiting.pop()[1:])
        placed.append(heapq.heappop(ready)[2])
    return np.array(placed, np.int64)


class MixtureOrder:
    """Where each position of a mixture finds its sample: a source, and a number in that source.

    Each source is drawn in the order of its own plan, epoch after epoch of its own. An epoch of the
    mixture ends as `stop` says, and the next one goes on with every source where it was: sources that
    are longer than an epoch of the mixture are not cut off at the same place every time.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        weights: Sequence[float],
        *,
        stop: Stop = "first",
        seed: int = 0,
    ) -> None:
        if len(plans) != len(weights):
            raise InvalidArgument(
                "every source has one weight", expected=len(plans), found=len(weights)
            )
        check_choice("stop", stop, get_args(Stop))
        for number, plan in enumerate(plans):
            if plan.length == 0:
                raise InvalidArgument(f"source {number} has no samples", hint="leave it out")
        self._plans = tuple(plans)
        self._pattern = MixturePattern(weights, seed)
        self._length = self._epoch_length(stop)
        self._drawn = self._pattern.counts_before(self._length)
        self._kept: BoundedCache[tuple[int, int], Plan] = BoundedCache(
            count=_EPOCHS_KEPT * len(plans)
        )

    def _epoch_length(self, stop: Stop) -> int:
        lengths = [plan.length for plan in self._plans]
        if stop == "never":
            return MAX_LENGTH
        if stop == "first":
            repeats = map(self._pattern.position_of, range(len(lengths)), lengths)
            return min(MAX_LENGTH, *repeats)
        lasts = (self._pattern.position_of(n, length - 1) for n, length in enumerate(lengths))
        needed = max(lasts) + 1
        if needed > MAX_LENGTH:
            raise InvalidArgument(
                "an epoch with every sample of every source is too long",
                expected=f"at most {MAX_LENGTH}",
                found=needed,
                hint='use stop="first" or stop="never", or other weights',
            )
        return needed

    def __len__(self) -> int:
        """Samples in an epoch of the mixture; for `"never"`, more than anybody will draw."""
        return self._length

    @property
    def identity(self) -> int:
        """A number that differs for mixtures that give other samples at some positions."""
        plans = [(plan.length, *plan.state_dict().values()) for plan in self._plans]
        pattern = self._pattern.sources.astype("<i8").tobytes()
        return zlib.crc32(repr((self._length, plans)).encode() + pattern)

    @property
    def shares(self) -> NDArray[np.float64]:
        """What part of the mixture each source is, after rounding."""
        return self._pattern.counts / len(self._pattern)

    def locate(self, positions: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of each position, and the number of the sample in it.

        Positions from `len` on are those of the following epochs.
        """
        asked = np.asarray(positions, np.int64).ravel()
        if asked.size and int(asked.min()) < 0:
            raise InvalidArgument("a position is negative", found=int(asked.min()))
        epochs, inside = np.divmod(asked, self._length)
        sources, draws = self._pattern.draws(inside)
        draws += epochs * self._drawn[sources]
        numbers = np.empty_like(draws)
        for source in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == source)
            numbers[rows] = self._samples(source, draws[rows])
        return sources, numbers

    def _samples(self, source: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        laps, inside = np.divmod(draws, self._plans[source].length)
        first = int(laps[0])
        if (laps == first).all():
            return self._plan(source, first).indices(inside)
        numbers = np.empty_like(draws)
        for lap in np.unique(laps).tolist():
            rows = laps == lap
            numbers[rows] = self._plan(source, lap).indices(inside[rows])
        return numbers

    def _plan(self, source: int, lap: int) -> Plan:
        plan = self._plans[source]
        return self._kept.get_or_make((source, lap), lambda: plan.with_epoch(plan.epoch + lap))
