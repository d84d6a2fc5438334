"""Windows of episodes as arrays: which channels they have, and filling them."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shard_format.errors import EntryNotFound, InvalidArgument, ShardError
from shard_format.parallel import one_at_a_time
from shard_format.sources import can_read_ranges, can_view
from wshard._channels import Channel
from wshard._values import DType
from wshard._video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard._episode import Episode

__all__ = [
    "SMALL_CHANNEL",
    "STEP_KEYS",
    "ChannelSpec",
    "Forms",
    "NearSource",
    "WindowSource",
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
# Read scattered entries as one range if that is at most this many times larger.
_NEAR: Final = 4


class ChannelSpec(NamedTuple):
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
    may_lack: bool = False
    """Whether an episode may lack it: its steps are then NaN, or 0 if it has no NaN."""

    def optional(self) -> ChannelSpec:
        """The same for episodes that may lack it."""
        return self._replace(may_lack=True)

    def of_any(self, episode: Episode) -> Channel | None:
        """The channel in an episode; None if the episode may lack it, and does."""
        try:
            return self.of(episode)
        except EntryNotFound:
            if self.may_lack:
                return None
            raise

    def of(self, episode: Episode) -> Channel:
        """The channel in an episode."""
        channel = episode.find(self.name)
        if not _fits(channel, self.has_own_clock):
            raise _not_for_windows(self.name, channel)
        if channel.dtype_name.numpy_dtype != self.dtype or tuple(channel.step_shape) != self.shape:
            raise InvalidArgument(
                "an episode has a different kind of channel than the others",
                entry=self.name,
                expected=f"{self.dtype} {list(self.shape)}",
                found=f"{channel.dtype_name} {list(channel.step_shape)}",
            )
        channel.check_claims()
        return channel


def follows_steps(channel: Channel) -> bool:
    """Whether windows can hold it: numbers of one shape, with the steps."""
    return _fits(channel, own_clocks=False)


def _fits(channel: Channel, own_clocks: bool) -> bool:
    is_array = type(channel) is Channel or isinstance(channel, VideoChannel)
    return is_array and (own_clocks or not channel.has_own_clock)


def wanted_channels(
    episode: Episode,
    names: Iterable[str] | None,
    reserved: Iterable[str] = (),
    *,
    own_clocks: bool = False,
) -> list[ChannelSpec]:
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
    keys = episode.step_channels()
    fitting = [key for key in keys if _fits(episode.find(key), own_clocks)]
    return [_wanted(episode, key, taken, own_clocks) for key in fitting]


def _wanted(episode: Episode, key: str, taken: frozenset[str], own_clocks: bool) -> ChannelSpec:
    channel = episode.find(key)
    if not _fits(channel, own_clocks):
        raise _not_for_windows(key, channel)
    channel.check_claims()  # before memory is made for windows of the claimed shape
    is_observation = any(channel is own for own in episode.observations.values())
    if key in taken:
        key = f"{'signal' if is_observation else 'action'}/{key}"
    dtype, shape = channel.dtype_name.numpy_dtype, tuple(channel.step_shape)
    return ChannelSpec(key, key, is_observation, dtype, shape, channel.has_own_clock)


def _not_for_windows(name: str, channel: Channel) -> InvalidArgument:
    has_own_clock = _fits(channel, own_clocks=True)
    return InvalidArgument(
        "windows cannot hold this channel",
        entry=name,
        expected="a plain channel that follows the steps",
        found=f"{channel!r}{' with a clock of its own' if has_own_clock else ''}",
        hint="EpisodeDataset(…, align='nearest') brings it to the steps" if has_own_clock else None,
    )


class WindowSource:
    """Where the windows of one open episode come from: looked up and checked once, read many times.

    Args:
        episode: open; kept open by this.
        path: its file, for errors to name.
        wanted: the channels.
        keep_small: whether channels of little data are read as a whole and kept.
    """

    __slots__ = ("_blanks", "_keep_small", "_kept", "channels", "contents", "episode", "path")

    def __init__(
        self,
        episode: Episode,
        path: str,
        wanted: Iterable[ChannelSpec],
        *,
        keep_small: bool = False,
    ) -> None:
        self.episode = episode
        self.path = path
        self._keep_small = keep_small
        # Whole channels that need no decoding: small ones, and views of the file.
        self._kept: dict[str, NDArray[Any]] = {}
        self.channels: dict[str, Channel | None] = {}
        """By key in the batch; None for a lane that the episode does not have."""
        self.contents: dict[str, Any] = {}
        """What a dataset reads besides channels of numbers, by key."""
        # What a step has that its episode lacks.
        self._blanks: dict[str, float] = {}
        try:
            for want in wanted:
                self.channels[want.key] = want.of_any(episode)
                if want.may_lack and DType.from_numpy(want.dtype).is_float:
                    self._blanks[want.key] = np.nan
        except ShardError as error:
            raise error.located(path=path) from None
        for key, channel in zip(
            STEP_KEYS, (episode.rewards, episode.terminations, episode.truncations), strict=True
        ):
            self.channels[key] = channel

    @property
    def makes_requests(self) -> bool:
        """Whether reading asks another machine."""
        origin = self.episode.origin
        source = None if origin is None else origin.reader.source
        return source is not None and not can_view(source) and can_read_ranges(source)

    def read(self, key: str, start: int, out: NDArray[Any]) -> None:
        """Fills an array with as many steps of a channel as it has, from `start` on; blanks if it is absent."""
        stop = start + len(out)
        kept = self._kept.get(key)
        if kept is not None and start >= 0 and stop <= len(kept):
            out[...] = kept[start:stop]
            return
        channel = self.channels[key]
        if channel is None:
            out[...] = self._blanks.get(key, 0)
            return
        try:
            if not 0 <= start <= stop <= channel.length:
                raise InvalidArgument(
                    "the channel is shorter than the episode",
                    expected=f"at least {stop} steps",
                    found=f"{channel.length} steps",
                )
            if self._keep_small and channel.nbytes <= SMALL_CHANNEL:
                with one_at_a_time((id(self._kept), key)):
                    if key not in self._kept:
                        self._kept[key] = channel.data
                out[...] = self._kept[key][start:stop]
            elif channel.is_view:
                self._kept[key] = channel.read_steps(0, channel.length)
                out[...] = self._kept[key][start:stop]
            elif channel.dtype_name.stored_dtype == out.dtype:
                channel.read_steps_into(start, out)
            else:
                out[...] = channel.read_steps(start, stop)
        except ShardError as error:
            raise error.located(path=self.path, entry=channel.block or key) from None

    def pick(self, key: str, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Fills an array with the entries of these numbers, in any order; blanks if the channel is absent.

        Entries that follow each other are read straight into their places, and near ones with one read.
        """
        places = indices.tolist()
        count, first, last = len(places), min(places), max(places)
        channel = self.channels[key]
        if self._keep_small and channel is not None and channel.nbytes <= SMALL_CHANNEL:
            self.read(key, last, out[:1])  # raises an error if the entry is missing
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


class NearSource(WindowSource):
    """Where windows that lie near each other come from: all steps between them are read together, when one is needed.

    Owns: these steps. For one thread.

    Args:
        source: of the episode.
        start: the first step.
        stop: where they end; later steps are read as they are asked for.
    """

    __slots__ = ("_read_steps", "_start", "_stop")

    def __init__(self, source: WindowSource, start: int, stop: int) -> None:
        for name in WindowSource.__slots__:
            setattr(self, name, getattr(source, name))
        self._start, self._stop = start, stop
        self._read_steps: dict[str, NDArray[Any]] = {}

    def read(self, key: str, start: int, out: NDArray[Any]) -> None:
        channel = self.channels[key]
        known = self._read_steps.get(key)
        is_large = channel is not None and channel.nbytes > SMALL_CHANNEL
        if known is None and is_large and start >= self._start:
            stop = min(self._stop, channel.length if channel is not None else 0)
            if start + len(out) <= stop:
                known = np.empty((stop - self._start, *out.shape[1:]), out.dtype)
                super().read(key, self._start, known)
                self._read_steps[key] = known
        first = start - self._start
        if known is not None and first >= 0 and first + len(out) <= len(known):
            out[...] = known[first : first + len(out)]
        else:
            super().read(key, start, out)


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
        repeat: whether steps after the end repeat the last entry; otherwise they are zero.
        flags: which of `is_first` and `is_pad` there are.
        out: arrays to use again, as `arrays` of an earlier batch; new ones if left out.
    """

    def __init__(
        self,
        batch: int,
        length: int,
        wanted: Sequence[ChannelSpec],
        *,
        more: bool = False,
        repeat: bool = False,
        flags: Sequence[str] = ("is_first", "is_pad"),
        out: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._repeat = repeat
        self._flags = flags
        extra = {want.key: int(more and want.is_observation) for want in wanted}
        forms: Forms = {
            want.key: ((length + extra[want.key], *want.shape), want.dtype) for want in wanted
        }
        forms["reward"] = ((length,), np.dtype(np.float32))
        for flag in ("terminated", "truncated", *flags):
            forms[flag] = ((length,), np.dtype(np.bool_))
        self.arrays = make_arrays(forms, batch, out)
        self._read = [
            (key, self.arrays[key], extra.get(key, 0)) for key in forms if key not in flags
        ]

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def fill(self, row: int, sources: WindowSource, start: int, stop: int) -> None:
        """Reads the steps from `start` to `stop` into a row."""
        steps = stop - start
        for key, array, extra in self._read:
            out, count = array[row], steps + extra
            if count == len(out):
                sources.read(key, start, out)
            else:
                sources.read(key, start, out[:count])
                out[count:] = out[count - 1] if self._repeat else 0
        for flag in self._flags:
            marks = self.arrays[flag][row]
            marks[...] = False
            if flag == "is_first":
                marks[0] = start == 0
            else:
                marks[steps:] = True


def make_arrays(
    forms: Forms, batch: int, out: Mapping[str, NDArray[Any]] | None
) -> dict[str, NDArray[Any]]:
    """Room for a batch: new arrays, every byte of which must be written, or those of an earlier batch.

    Args:
        forms: of each item.
        batch: how many items.
        out: arrays to use again.

    Raises:
        InvalidArgument: an array to use again has a different form.
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


# --- memory for batches, used again when a batch has no reference left
#
# Memory that is new to the process costs about a tenth of the time in which a batch is decoded into it: the system
# clears every page first, and takes them back when the batch is dropped.

MOST_KEPT: Final = 128 << 20
"""Bytes that are kept while they are unused."""
_ALIGNMENT: Final = 64  # what JAX asks for on processors
_ALIGNED_BYTES: Final = 1 << 14
_WORTH_KEEPING: Final = 1 << 20

# No lock, which a forked child might find held forever, and which a garbage collection in the thread that holds
# it would wait for: single operations on a deque are enough.
_kept: deque[NDArray[np.uint8]] = deque()


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array without values; a large one on a border that libraries want which take it over uncopied."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < _ALIGNED_BYTES:
        return np.empty(shape, dtype)
    if nbytes < _WORTH_KEEPING:
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    else:
        memory = _lend(nbytes + _ALIGNMENT)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _lend(nbytes: int) -> NDArray[np.uint8]:
    owner = _take(nbytes)
    # Views of an array hold the one that owns the memory, and not those between. This one owns nothing, but is based
    # on a buffer that is not an array: all views of it hold it, and when it goes, no view of the memory is left.
    lent = np.frombuffer(owner.data, np.uint8)
    weakref.finalize(lent, _give_back, owner).atexit = False
    return lent


def _take(nbytes: int) -> NDArray[np.uint8]:
    with suppress(IndexError):  # another thread may be faster
        for _ in range(len(_kept)):
            memory = _kept.popleft()
            if memory.nbytes == nbytes:
                return memory
            _kept.append(memory)
    return np.empty(nbytes, np.uint8)


def _give_back(memory: NDArray[np.uint8]) -> None:
    _kept.append(memory)
    with suppress(IndexError):  # another thread may be faster
        while sum(one.nbytes for one in tuple(_kept)) > MOST_KEPT:
            _kept.popleft()
