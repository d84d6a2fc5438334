"""Windows of episodes as arrays: which channels they have, and filling them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.channels import Channel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from wshard.episode import Episode

FLAGS: Final = ("terminated", "truncated", "is_first", "is_pad")
_RESERVED: Final = frozenset((*FLAGS, "reward", "indices", "probability"))


class Wanted(NamedTuple):
    """A channel of the windows."""

    key: str
    """In the batch."""
    name: str
    """In the episode, as `Episode.find` takes it."""
    is_observation: bool
    """Whether it may have an entry after the last step."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def of(self, episode: Episode, path: str) -> Channel:
        """The channel in an episode."""
        channel = episode.find(self.name)
        if channel.dtype.numpy_dtype != self.dtype or tuple(channel.shape) != self.shape:
            raise InvalidArgument(
                "an episode has another kind of channel than the others",
                path=path,
                entry=self.name,
                expected=f"{self.dtype} {list(self.shape)}",
                found=f"{channel.dtype} {list(channel.shape)}",
            )
        return channel


def follows_steps(channel: Channel) -> bool:
    """Whether windows can hold it: numbers of one shape, with the steps."""
    return type(channel) is Channel and not channel.has_own_clock


def wanted_channels(episode: Episode, names: Iterable[str] | None) -> list[Wanted]:
    """What windows hold, if all episodes are like this one.

    Args:
        episode: one of them.
        names: names or block names; None for all observations and actions that fit.
    """
    if names is not None:
        return [_wanted(episode, name, name) for name in names]
    found = []
    lanes = (("signal", episode.observations), ("action", episode.actions))
    both = episode.observations.keys() & episode.actions.keys()
    for lane, channels in lanes:
        for name, channel in channels.items():
            if follows_steps(channel):
                found.append(_wanted(episode, f"{lane}/{name}" if name in both else name, name))
    return found


def _wanted(episode: Episode, key: str, name: str) -> Wanted:
    channel = episode.find(key)
    if not follows_steps(channel):
        raise InvalidArgument(
            "windows cannot hold this channel",
            entry=name,
            expected="a plain channel that follows the steps",
            found=repr(channel),
        )
    is_observation = any(channel is own for own in episode.observations.values())
    if key in _RESERVED:
        key = f"{'signal' if is_observation else 'action'}/{key}"
    return Wanted(key, key, is_observation, channel.dtype.numpy_dtype, tuple(channel.shape))


class Windows:
    """Room for a batch of windows.

    Args:
        batch: how many.
        length: steps of each.
        wanted: their channels.
        more: whether observations have one entry more.
        repeat: whether what lies behind the end is the last entry again; else zero.
    """

    def __init__(
        self, batch: int, length: int, wanted: Iterable[Wanted], *, more: bool, repeat: bool
    ) -> None:
        self._wanted = list(wanted)
        self._more = more
        self._repeat = repeat
        self.arrays: dict[str, NDArray[Any]] = {
            want.key: np.zeros(
                (batch, length + (more and want.is_observation), *want.shape), want.dtype
            )
            for want in self._wanted
        }
        self.arrays["reward"] = np.zeros((batch, length), np.float32)
        for flag in FLAGS:
            self.arrays[flag] = np.zeros((batch, length), np.bool_)

    def fill(self, row: int, episode: Episode, path: str, start: int, stop: int) -> None:
        """Reads the steps from `start` to `stop` into a row."""
        for want in self._wanted:
            more = self._more and want.is_observation
            self._fill(self.arrays[want.key][row], want.of(episode, path), start, stop + more)
        for key, channel in (
            ("reward", episode.rewards),
            ("terminated", episode.terminations),
            ("truncated", episode.truncations),
        ):
            if channel is not None:
                self._fill(self.arrays[key][row], channel, start, stop)
        self.arrays["is_first"][row, 0] = start == 0
        self.arrays["is_pad"][row, stop - start :] = True

    def _fill(self, row: NDArray[Any], channel: Channel, start: int, stop: int) -> None:
        count = stop - start
        row[:count] = channel.read_steps(start, stop)
        if self._repeat and count < len(row):
            row[count:] = row[count - 1]
