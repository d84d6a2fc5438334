"""What an item of a data set is made of: here windows, steps in a row; `timed` has steps with other times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.dataset.resampling import ResampledSources, mask_of
from wshard.windows import Sources, Windows, make_arrays, wanted_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.dataset.resampling import Resampling
    from wshard.episode import Episode
    from wshard.windows import Forms, Wanted

    Arrays = Mapping[str, NDArray[Any]]

__all__ = ["Layout", "Room", "WindowLayout", "check_masks"]


class Room(Protocol):
    """Room for a batch, which is filled row by row, also from several threads."""

    arrays: dict[str, NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Of all arrays."""

    # `Any`: each layout makes the sources that its rooms read from.
    def fill(self, row: int, sources: Any, start: int, stop: int) -> None:  # noqa: ANN401 - see above
        """Reads the item of the steps from `start` to `stop` into a row."""


class Layout(ABC):
    """What an item is made of."""

    window: int
    """Steps of an item."""
    pad: str = "none"
    next_observations: bool = False

    @abstractmethod
    def wanted(
        self, episode: Episode, names: list[str] | None, reserved: Sequence[str]
    ) -> list[Wanted]:
        """What items hold, if all episodes are like this one.

        Args:
            episode: one of them.
            names: of channels, None for all that fit.
            reserved: keys that mean something else.
        """

    @abstractmethod
    def sources(self, episode: Episode, path: str, wanted: Sequence[Wanted]) -> Sources:
        """Where the items of an open episode come from."""

    @abstractmethod
    def room(self, batch: int, wanted: Sequence[Wanted], out: Arrays | None) -> Room:
        """Room for a batch."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What was asked for and is not the usual, by argument; the same text in every process."""


class WindowLayout(Layout):
    """Items are windows: steps in a row.

    Args:
        window: how many.
        pad: as for `EpisodeDataset`.
        next_observations: whether observations have one entry more.
        resampling: how channels with clocks of their own come to the steps; None if there are none.
    """

    def __init__(
        self, window: int, pad: str, next_observations: bool, resampling: Resampling | None
    ) -> None:
        self.window = window
        self.pad = pad
        self.next_observations = next_observations
        self.resampling = resampling

    def wanted(
        self, episode: Episode, names: list[str] | None, reserved: Sequence[str]
    ) -> list[Wanted]:
        own_clocks = self.resampling is not None
        found = wanted_channels(episode, names, reserved, own_clocks=own_clocks)
        check_masks(found, [want.key for want in found if want.has_own_clock])
        return found

    def sources(self, episode: Episode, path: str, wanted: Sequence[Wanted]) -> Sources:
        if self.resampling is None:
            return Sources(episode, path, wanted, keep_small=True)
        steps = episode.length + self.next_observations
        return ResampledSources(episode, path, wanted, steps, self.resampling)

    def room(self, batch: int, wanted: Sequence[Wanted], out: Arrays | None) -> Room:
        kind = _ResampledWindows if any(want.has_own_clock for want in wanted) else Windows
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


class _ResampledWindows(Windows):
    """Windows with channels that have clocks of their own."""

    def __init__(
        self,
        batch: int,
        length: int,
        wanted: Sequence[Wanted],
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

    def fill(self, row: int, sources: Any, start: int, stop: int) -> None:  # noqa: ANN401 - as `Room`
        super().fill(row, sources, start, stop)
        for key, extra in self._resampled.items():
            values, is_pad = self.arrays[key][row], self.arrays[mask_of(key)][row]
            count = stop - start + extra
            sources.read_resampled(key, start, values[:count], is_pad[:count])
            if count < len(values):
                values[count:] = values[count - 1] if self._repeat else 0
                is_pad[count:] = True


def check_masks(wanted: Iterable[Wanted], masked: Iterable[str]) -> None:
    """Refuses a channel that has the name of another one's mask."""
    keys = {want.key for want in wanted}
    for key in masked:
        if mask_of(key) in keys:
            raise InvalidArgument(
                "a channel has the name of another one's mask",
                entry=mask_of(key),
                hint="choose channels with channels=[…]",
            )
