"""Windows of episodes as arrays: which channels they have, and filling them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shard_format.errors import InvalidArgument, ShardError
from wshard._batch_memory import new_array
from wshard.channels import Channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.episode import Episode

__all__ = [
    "SMALL_CHANNEL",
    "STEP_KEYS",
    "Forms",
    "Sources",
    "Wanted",
    "Windows",
    "follows_steps",
    "make_arrays",
    "wanted_channels",
]

Forms: TypeAlias = "dict[str, tuple[tuple[int, ...], np.dtype[Any]]]"
"""The shape of one item of a batch, and the type, by key."""

STEP_KEYS: Final = ("reward", "terminated", "truncated")
"""What every batch has besides channels."""
_RESERVED: Final = frozenset((*STEP_KEYS, "is_first", "is_pad"))
SMALL_CHANNEL: Final = 1 << 16
"""Windows of channels up to this size are cut out of the whole, which is read once: a small frame takes longer
to find than to decode."""
# Single entries are read as one range of up to so many times as many.
_NEAR: Final = 4


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
    has_own_clock: bool = False
    """Whether it does not follow the steps, and is looked up by time."""

    def of(self, episode: Episode) -> Channel:
        """The channel in an episode."""
        channel = episode.find(self.name)
        if not _fits(channel, self.has_own_clock):
            raise _not_for_windows(self.name, channel)
        if channel.dtype.numpy_dtype != self.dtype or tuple(channel.shape) != self.shape:
            raise InvalidArgument(
                "an episode has another kind of channel than the others",
                entry=self.name,
                expected=f"{self.dtype} {list(self.shape)}",
                found=f"{channel.dtype} {list(channel.shape)}",
            )
        return channel


def follows_steps(channel: Channel) -> bool:
    """Whether windows can hold it: numbers of one shape, with the steps."""
    return _fits(channel, own_clocks=False)


def _fits(channel: Channel, own_clocks: bool) -> bool:
    return type(channel) is Channel and (own_clocks or not channel.has_own_clock)


def wanted_channels(
    episode: Episode,
    names: Iterable[str] | None,
    reserved: Iterable[str] = (),
    *,
    own_clocks: bool = False,
) -> list[Wanted]:
    """What windows hold, if all episodes are like this one.

    Args:
        episode: one of them.
        names: names or block names; None for all observations and actions that fit.
        reserved: keys that mean something else in the batch, besides those of every batch. A channel of that
            name has its lane in front.
        own_clocks: whether channels with a clock of their own can be held.
    """
    taken = _RESERVED.union(reserved)
    if names is not None:
        return [_wanted(episode, name, taken, own_clocks) for name in names]
    found = []
    lanes = (("signal", episode.observations), ("action", episode.actions))
    both = episode.observations.keys() & episode.actions.keys()
    for lane, channels in lanes:
        for name, channel in channels.items():
            if _fits(channel, own_clocks):
                key = f"{lane}/{name}" if name in both else name
                found.append(_wanted(episode, key, taken, own_clocks))
    return found


def _wanted(episode: Episode, key: str, taken: frozenset[str], own_clocks: bool) -> Wanted:
    channel = episode.find(key)
    if not _fits(channel, own_clocks):
        raise _not_for_windows(key, channel)
    is_observation = any(channel is own for own in episode.observations.values())
    if key in taken:
        key = f"{'signal' if is_observation else 'action'}/{key}"
    dtype, shape = channel.dtype.numpy_dtype, tuple(channel.shape)
    return Wanted(key, key, is_observation, dtype, shape, channel.has_own_clock)


def _not_for_windows(name: str, channel: Channel) -> InvalidArgument:
    has_own_clock = _fits(channel, own_clocks=True)
    return InvalidArgument(
        "windows cannot hold this channel",
        entry=name,
        expected="a plain channel that follows the steps",
        found=f"{channel!r}{' with a clock of its own' if has_own_clock else ''}",
        hint="EpisodeDataset(…, align='nearest') brings it to the steps" if has_own_clock else None,
    )


class Sources:
    """Where the windows of one open episode come from: looked up and checked once, read many times.

    Args:
        episode: open; kept open by this.
        path: its file, for errors to name.
        wanted: the channels.
        keep_small: whether channels of little data are read as a whole and kept.
    """

    __slots__ = ("_decoded_into", "_keep_small", "_kept", "channels", "episode", "path")

    def __init__(
        self, episode: Episode, path: str, wanted: Iterable[Wanted], *, keep_small: bool = False
    ) -> None:
        self.episode = episode
        self.path = path
        self._keep_small = keep_small
        self._kept: dict[str, NDArray[Any]] = {}
        # Channels that were found to be neither small nor of a type that must be converted.
        self._decoded_into: set[str] = set()
        self.channels: dict[str, Channel | None] = {}
        """By key in the batch; None for a lane that the episode does not have."""
        try:
            for want in wanted:
                self.channels[want.key] = want.of(episode)
        except ShardError as error:
            raise error.located(path=path) from None
        for key, channel in zip(
            STEP_KEYS, (episode.rewards, episode.terminations, episode.truncations), strict=True
        ):
            self.channels[key] = channel

    def read(self, key: str, start: int, out: NDArray[Any]) -> None:
        """Fills an array with as many steps of a channel as it has, from `start` on; zeros if it is absent."""
        stop = start + len(out)
        kept = self._kept.get(key)
        if kept is not None and start >= 0 and stop <= len(kept):
            out[...] = kept[start:stop]
            return
        channel = self.channels[key]
        if channel is None:
            out[...] = 0
            return
        try:
            if not 0 <= start <= stop <= channel.length:
                raise InvalidArgument(
                    "the channel is shorter than the episode",
                    expected=f"at least {stop} steps",
                    found=f"{channel.length} steps",
                )
            if key in self._decoded_into:
                channel.read_steps_into(start, out)
            elif self._keep_small and channel.nbytes <= SMALL_CHANNEL:
                self._kept[key] = whole = channel.data
                out[...] = whole[start:stop]
            elif channel.dtype.stored_dtype == out.dtype:
                self._decoded_into.add(key)
                channel.read_steps_into(start, out)
            else:
                out[...] = channel.read_steps(start, stop)
        except ShardError as error:
            raise error.located(path=self.path, entry=channel.block or key) from None

    def pick(self, key: str, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Fills an array with the entries of these numbers, in any order; zeros if the channel is absent.

        Entries that follow each other are read straight into their places, and near ones with one read.
        """
        places = indices.tolist()
        count, first, last = len(places), min(places), max(places)
        channel = self.channels[key]
        if self._keep_small and channel is not None and channel.nbytes <= SMALL_CHANNEL:
            self.read(key, last, out[:1])  # says so if there is no such entry
            out[...] = channel.data[indices]
            return
        # Before the start of an episode lies its first entry again, and behind its end the last.
        front, back = 0, count
        while front + 1 < count and places[front + 1] == places[0]:
            front += 1
        while back - 1 > front and places[back - 2] == places[-1]:
            back -= 1
        if places[front:back] == [*range(places[front], places[front] + back - front)]:
            self.read(key, places[front], out[front:back])
            out[:front] = out[front]
            out[back:] = out[back - 1]
        elif last - first < _NEAR * count:
            near = np.empty((last - first + 1, *out.shape[1:]), out.dtype)
            self.read(key, first, near)
            out[...] = near[indices - first]
        else:
            for start, stop in _runs(places):
                self.read(key, places[start], out[start:stop])


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where numbers that follow each other begin and end."""
    start = 0
    for stop in range(1, len(places) + 1):
        if stop == len(places) or places[stop] != places[stop - 1] + 1:
            yield start, stop
            start = stop


class Windows:
    """Room for a batch of windows, which `fill` makes use of row by row, also from several threads.

    Args:
        batch: how many.
        length: steps of each.
        wanted: their channels.
        more: whether observations have one entry more.
        repeat: whether what lies behind the end is the last entry again; else zero.
        flags: which of `is_first` and `is_pad` there are.
        out: arrays to use again, as `arrays` of an earlier batch; new ones if left out.
    """

    def __init__(
        self,
        batch: int,
        length: int,
        wanted: Sequence[Wanted],
        *,
        more: bool = False,
        repeat: bool = False,
        flags: Sequence[str] = ("is_first", "is_pad"),
        out: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._repeat = repeat
        self._more = frozenset(want.key for want in wanted if more and want.is_observation)
        self._flags = flags
        forms: Forms = {
            want.key: ((length + (want.key in self._more), *want.shape), want.dtype)
            for want in wanted
        }
        forms["reward"] = ((length,), np.dtype(np.float32))
        for flag in ("terminated", "truncated", *flags):
            forms[flag] = ((length,), np.dtype(np.bool_))
        self.arrays = make_arrays(forms, batch, out)
        self._read = [key for key in forms if key not in flags]

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def fill(self, row: int, sources: Sources, start: int, stop: int) -> None:
        """Reads the steps from `start` to `stop` into a row."""
        for key in self._read:
            out = self.arrays[key][row]
            count = stop - start + (key in self._more)
            sources.read(key, start, out[:count])
            if count < len(out):
                out[count:] = out[count - 1] if self._repeat else 0
        for flag in self._flags:
            marks = self.arrays[flag][row]
            marks[...] = False
            if flag == "is_first":
                marks[0] = start == 0
            else:
                marks[stop - start :] = True


def make_arrays(
    forms: Forms, batch: int, out: Mapping[str, NDArray[Any]] | None
) -> dict[str, NDArray[Any]]:
    """Room for a batch: new arrays, of which every byte is to be written, or those of an earlier one.

    Args:
        forms: of each item.
        batch: how many items.
        out: arrays to use again.

    Raises:
        InvalidArgument: an array that is to be used again has another form.
    """
    return {
        key: new_array((batch, *shape), dtype)
        if out is None
        else _checked(out.get(key), key, (batch, *shape), dtype)
        for key, (shape, dtype) in forms.items()
    }


def _checked(
    array: NDArray[Any] | None, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """An array of the caller's, if it can be filled."""
    if (
        not isinstance(array, np.ndarray)
        or array.shape != shape
        or array.dtype != dtype
        or not (array.flags.c_contiguous and array.flags.writeable)
    ):
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else array
        raise InvalidArgument(
            f"out[{key!r}] cannot hold the windows",
            expected=f"a writable array in C order, {dtype} {list(shape)}",
            found=found,
        )
    return array
