"""What the numbers of a data set are like, channel by channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shard_format.errors import EntryNotFound, InvalidArgument
from wshard.statistics.channel import ChannelStats, merge_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Stats"]

_LANES = ("signal/", "action/")


class Stats(Mapping[str, ChannelStats]):
    """Statistics of the channels of a data set, by the names that windows use. Made by `compute_stats`.

    Args:
        channels: by name.
        fingerprints: of the data sets that the numbers are from.
        episodes: how many.
        steps: of all of them.
    """

    def __init__(
        self,
        channels: Mapping[str, ChannelStats],
        fingerprints: tuple[str, ...] = (),
        episodes: int = 0,
        steps: int = 0,
    ) -> None:
        self._channels = dict(sorted(channels.items()))
        self.fingerprints = fingerprints
        """Of the data sets that the numbers are from."""
        self.episodes = episodes
        """How many were read."""
        self.steps = steps
        """Of all of them."""

    def merge(self, *others: Stats) -> Stats:
        """Of the numbers of all data sets together, each as heavy as it has numbers.

        Means, deviations, counts and ends are those of all numbers. A channel that some do not have is that of the
        others.

        Raises:
            InvalidArgument: a channel has another type or shape somewhere.
        """
        parts = (self, *others)
        names = dict.fromkeys(name for part in parts for name in part)
        merged = {name: _merged(name, parts) for name in names}
        return Stats(
            merged,
            tuple(dict.fromkeys(one for part in parts for one in part.fingerprints)),
            sum(part.episodes for part in parts),
            sum(part.steps for part in parts),
        )

    def find(self, name: str) -> ChannelStats | None:
        """Those of a channel whose lane may or may not stand in front of its name; None if there are none."""
        if name in self._channels:
            return self._channels[name]
        lane = next((lane for lane in _LANES if name.startswith(lane)), None)
        others = [name.removeprefix(lane)] if lane else [lane + name for lane in _LANES]
        return next((self._channels[one] for one in others if one in self._channels), None)

    def __getitem__(self, name: str) -> ChannelStats:
        if name not in self._channels:
            error = EntryNotFound(f"there are no statistics of a channel {name!r}")
            error.wanted, error.candidates = name, list(self._channels)
            raise error
        return self._channels[name]

    def __contains__(self, name: object) -> bool:
        return name in self._channels

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __repr__(self) -> str:
        return (
            f"<Stats of {self.episodes} episodes, {self.steps} steps: {', '.join(self._channels)}>"
        )


def _merged(name: str, parts: Iterable[Stats]) -> ChannelStats:
    try:
        return merge_all([part[name] for part in parts if name in part])
    except InvalidArgument as error:
        raise error.located(entry=name) from None
