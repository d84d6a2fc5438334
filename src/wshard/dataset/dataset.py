"""Windows of many episodes as a map-style data set."""

from __future__ import annotations

import operator
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh64

from shard_format._parallel import for_each, thread_count
from shard_format.errors import InvalidArgument, ReferenceMismatch, ShardError
from shard_format.sources import is_url
from wshard.dataset.batches import WindowBatch
from wshard.dataset.names import Names, Paths
from wshard.dataset.numbering import WindowNumbers
from wshard.dataset.open_files import OpenFiles
from wshard.dataset.opening import open_catalogue
from wshard.dataset.selecting import select
from wshard.dataset.skipping import Skipped
from wshard.reader import load_wshard
from wshard.windows import STEP_KEYS, Sources, Windows, wanted_channels

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from wshard.dataset.batches import Sample
    from wshard.dataset.listing import Files
    from wshard.episode import Episode
    from wshard.windows import Wanted

__all__ = ["EpisodeDataset"]

_PADDING: Final = ("none", "edge", "zero")
_ON_ERROR: Final = ("raise", "skip")
_OWN_KEYS: Final = ("episode", "start")
# With `on_error="skip"`: after so many episodes in a row that cannot be read, it is not the episodes.
_MOST_TRIES: Final = 100


class EpisodeDataset:
    """Windows of episodes, numbered from 0 on, each a dictionary of arrays.

        ds = EpisodeDataset("episodes", window=64, channels=["rgb", "state", "ctrl"])
        ds[0]["rgb"]                      # [64, 64, 64, 3]
        ds.batch([3, 1, 4])["rgb"]        # [3, 64, 64, 64, 3], decoded in parallel

    A window has its channels by name, `reward` (float32), `terminated` and `truncated`, zero where the
    episode has none, `episode` and `start`: where it is from; and with padding `is_pad`. A channel whose name
    is one of these, or both an observation and an action, has its lane in front: `signal/arm`.

    Episodes may have different lengths, lie in chunks (the manifest counts, its chunks do not) and have added
    lanes. All have the same channels. What is known about the files of a folder is saved beside it, in
    `<folder>.wshard-index`.

    Safe for threads, in forked and spawned workers; pickles without any open file.

    Args:
        files: a folder, with all folders in it but hidden ones; a file, a URL, a pattern such as
            `"runs/*/ep_*.wshard"`, or a list of these. Of folders and patterns the order is that of the names, with numbers in them counted.
        window: steps of a window.
        stride: steps from the start of a window to that of the next.
        channels: names, or block names such as `"omen/state/dreamer"`; all plain observations and actions
            that follow the steps if left out.
        pad: `"none"`: windows lie within an episode, and shorter episodes have none. `"edge"` or `"zero"`: a
            window starts at every `stride`-th step, and what lies behind the end is the last step again, or zero.
        episodes: which ones, by their numbers; all if left out.
        where: a condition on episodes, such as `"length > 100 and success"`: names are `length`, `id`, `env_id`
            and the fields of the episode's metadata. See `Condition`.
        transform: done to each window; what it returns takes the window's place.
        threads: that read a batch; None for one per processor, up to 8. Use 1 in worker processes.
        max_open: how many episodes stay open. A compressed one may keep what it decoded of small channels,
            and of blocks that can only be decoded as a whole.
        index: whether the index of a folder is used and saved; or where, which also works for a list of files.
            Of URLs such an index is believed until it is deleted.
        on_error: `"raise"`, or `"skip"`: files and windows that cannot be read are counted in `skipped` and
            reported to the logger `wshard`. In place of such a window comes the one in the same place of the
            next episode, or the nearest place it has, so that the order stays a pure function of the files.
        storage_options: for files that are URLs, as `load_wshard` takes them.

    Raises:
        InvalidArgument: an argument cannot work, or there is no window.
        ShardError: a subclass that says which file cannot be read and why.
    """

    def __init__(
        self,
        files: Files,
        window: int = 64,
        stride: int = 1,
        channels: Iterable[str] | None = None,
        pad: str = "none",
        *,
        episodes: Iterable[int] | None = None,
        where: str | None = None,
        transform: Callable[[Sample], Sample] | None = None,
        threads: int | None = None,
        max_open: int = 64,
        index: bool | str | os.PathLike[str] = True,
        on_error: str = "raise",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        for name, count in (("window", window), ("stride", stride), ("max_open", max_open)):
            if operator.index(count) < 1:
                raise InvalidArgument(f"{name} is at least 1", found=count)
        if threads is not None and threads < 1:
            raise InvalidArgument("threads must be at least 1", found=threads)
        _check_choice("pad", pad, _PADDING)
        _check_choice("on_error", on_error, _ON_ERROR)
        if isinstance(channels, str):
            raise InvalidArgument("channels takes a list of names", hint=f"channels=[{channels!r}]")
        self.window = operator.index(window)
        self.stride = operator.index(stride)
        self.pad = pad
        self.transform = transform
        self.on_error = on_error
        self.skipped = Skipped()
        """How many windows could not be read, by file."""
        self._threads = threads
        self._max_open = max_open
        self._storage_options = dict(storage_options) if storage_options else None
        catalogue = open_catalogue(files, index, self._left_out, self._storage_options)
        rows = select(catalogue, episodes, where)
        names = catalogue.names
        if len(rows) != len(names):
            names = names.select(rows)
        self._take(catalogue.base, names, np.array(catalogue.lengths[rows]))
        self._check_windows()
        self._wanted = self._find_channels(None if channels is None else list(channels))

    def _take(self, base: str, names: Names, lengths: NDArray[np.int64]) -> None:
        self._base = base
        self._names = names
        self.paths = Paths(base, names)
        """The files of the episodes, in their order."""
        lengths.flags.writeable = False
        self.lengths = lengths
        """The steps of each episode."""
        self._numbers = WindowNumbers(lengths, self.window, self.stride, padded=self.pad != "none")
        self._opened: OpenFiles[Sources] = OpenFiles(self._open, self._max_open)

    def _check_windows(self) -> None:
        if not len(self._numbers):
            raise InvalidArgument(
                "there is no window of this length",
                expected=f"an episode of {self.window} steps",
                found=f"{len(self.lengths)} episodes, the longest of {self.lengths.max()} steps",
                hint="take a shorter window, or pass pad='edge' or 'zero'",
            )

    def _left_out(self, path: str, error: ShardError) -> None:
        if self.on_error == "raise":
            raise error
        self.skipped.add(path, error, 0)

    # --- what is in it

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def channels(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """The type of each channel, and the shape of one step, by the names that windows use."""
        return {want.key: (want.dtype, want.shape) for want in self._wanted}

    @property
    def fingerprint(self) -> str:
        """Changes with the names and lengths of the episodes, and with what windows there are."""
        digest = xxh64(self._names.blob)
        digest.update(self.lengths.astype("<i8").tobytes())
        what = [(want.key, str(want.dtype), want.shape) for want in self._wanted]
        digest.update(repr((what, self.window, self.stride, self.pad)).encode())
        return digest.hexdigest()

    def episode_of(self, number: int) -> tuple[int, int]:
        """The number of a window's episode, and the step at which it starts."""
        episodes, starts = self.locate([number])
        return int(episodes[0]), int(starts[0])

    def locate(self, numbers: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same for many windows at once; negative numbers count from the end."""
        return self._numbers.locate(self._checked(numbers))

    def _checked(self, numbers: ArrayLike) -> NDArray[np.int64]:
        given = np.asarray(numbers)
        if given.size == 0:
            return np.zeros(0, np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise InvalidArgument(
                "windows are asked for by their numbers",
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

    # --- reading

    def __getitem__(self, number: int) -> Sample:
        """One window. Negative numbers count from the end."""
        return self.__getitems__([operator.index(number)])[0]

    def __getitems__(self, numbers: Sequence[int]) -> WindowBatch:
        """Many windows with one call: a sequence of them, whose `arrays` are the whole batch."""
        return WindowBatch(self._read(numbers, None), self.transform)

    def batch(
        self, numbers: ArrayLike, *, out: Mapping[str, NDArray[Any]] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Many windows as one array for each channel, `[B, window, ...]`.

        Args:
            numbers: of the windows.
            out: what an earlier call for as many windows has returned, to be filled again: saves the
                system finding new memory. Not together with a transform.
        """
        if self.transform is None:
            return self._read(numbers, out)
        if out is not None:
            raise InvalidArgument("a transform makes arrays of its own: leave out= out")
        return WindowBatch(self._read(numbers, None), self.transform).arrays

    def _read(
        self, numbers: ArrayLike, out: Mapping[str, NDArray[Any]] | None
    ) -> dict[str, NDArray[Any]]:
        episodes, starts = self.locate(numbers)
        windows = Windows(
            len(episodes),
            self.window,
            self._wanted,
            repeat=self.pad == "edge",
            flags=() if self.pad == "none" else ("is_pad",),
            out=out,
        )

        def fill(row: int) -> None:
            try:
                self._fill(windows, row, int(episodes[row]), int(starts[row]))
            except ShardError as error:
                if self.on_error == "raise":
                    raise
                episodes[row], starts[row] = self._fill_other(
                    windows, row, int(episodes[row]), int(starts[row]), error
                )

        # Neighbours together: an episode that several windows are from is opened once.
        order = np.lexsort((starts, episodes)).tolist()
        for_each(order, fill, thread_count(self._threads, windows.nbytes))
        return {**windows.arrays, "episode": episodes, "start": starts}

    def _fill(self, windows: Windows, row: int, episode: int, start: int) -> None:
        stop = min(start + self.window, int(self.lengths[episode]))
        windows.fill(row, self._opened[episode], start, stop)

    def _fill_other(
        self, windows: Windows, row: int, episode: int, start: int, error: ShardError
    ) -> tuple[int, int]:
        """Reads another window in place of one that cannot be read; returns its episode and start."""
        self.skipped.add(self.paths[episode], error, 1)
        firsts = self._numbers.firsts
        place = start // self.stride
        for _ in range(_MOST_TRIES):
            # The next one that has a window, from the start again after the last.
            after = firsts[episode + 1] % firsts[-1]
            episode = int(np.searchsorted(firsts, after, side="right")) - 1
            start = min(place, self._numbers.count(episode) - 1) * self.stride
            try:
                self._fill(windows, row, episode, start)
            except ShardError as another:
                self.skipped.add(self.paths[episode], another, 0)
                error = another
            else:
                return episode, start
        raise error

    # --- files

    def _load(self, number: int) -> Episode:
        path = self.paths[number]
        options = self._storage_options if is_url(path) else None
        # A batch spreads its windows over threads: one window needs no more of them.
        return load_wshard(path, threads=1, storage_options=options)

    def _open(self, number: int) -> Sources:
        episode, path = self._load(number), self.paths[number]
        if episode.length != self.lengths[number]:
            raise ReferenceMismatch(
                "the episode has changed since the data set was opened",
                path=path,
                expected=f"{self.lengths[number]} steps",
                found=f"{episode.length} steps",
                hint="open the data set anew, with index=False if that does not help",
            )
        return Sources(episode, path, self._wanted, keep_small=True)

    def _find_channels(self, names: list[str] | None) -> list[Wanted]:
        """What windows hold, after the first episode that has some."""
        candidates = np.flatnonzero(np.diff(self._numbers.firsts))[:_MOST_TRIES].tolist()
        while True:
            number = candidates.pop(0)
            try:
                episode = self._load(number)
                asked = None if names is None else [n for n in names if not _is_given(n, episode)]
                return wanted_channels(episode, asked, _OWN_KEYS)
            except ShardError as error:
                error.located(path=self.paths[number])
                if self.on_error == "raise" or not candidates:
                    raise
                self.skipped.add(self.paths[number], error, 0)

    def close(self) -> None:
        """Closes all files. They are opened again when they are needed."""
        self._opened.clear()

    # --- copies

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("paths", "lengths", "_names", "_numbers", "_opened"):
            del state[name]
        # Names and lengths of the episodes of a data set are much alike.
        state["_packed_names"] = zlib.compress(self._names.blob, 1)
        state["_packed_lengths"] = zlib.compress(self.lengths.astype("<i8").tobytes(), 1)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        names = Names(zlib.decompress(state.pop("_packed_names")))
        packed = zlib.decompress(state.pop("_packed_lengths"))
        self.__dict__.update(state)
        self._take(self._base, names, np.frombuffer(packed, "<i8").astype(np.int64))

    def __repr__(self) -> str:
        # The same in every process, for loaders that compare it when they resume.
        return (
            f"EpisodeDataset(episodes={len(self.lengths)}, windows={len(self)}, "
            f"window={self.window}, stride={self.stride}, pad={self.pad!r}, "
            f"fingerprint={self.fingerprint!r})"
        )


def _is_given(name: str, episode: Episode) -> bool:
    """Whether every window has it, channel or not."""
    return name in STEP_KEYS and name not in episode.observations and name not in episode.actions


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidArgument(
            f"unknown {name}", expected=" or ".join(map(repr, allowed)), found=repr(value)
        )
