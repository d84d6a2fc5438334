"""Windows of many episodes as a map-style data set."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh64

from shard_format._parallel import for_each, thread_count
from shard_format.errors import InvalidArgument, ShardError
from wshard.dataset.batches import WindowBatch
from wshard.dataset.cache import make_cache
from wshard.dataset.choosing import check_choice, make_layout
from wshard.dataset.episodes import Episodes
from wshard.dataset.numbering import WindowNumbers
from wshard.dataset.opening import open_catalogue
from wshard.dataset.packs import opened_packs
from wshard.dataset.selecting import select
from wshard.dataset.skipping import Skipped
from wshard.statistics.fingerprint import fingerprint_of
from wshard.statistics.normalizing import make_normalizer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from wshard.channels import Channel
    from wshard.dataset.batches import Sample
    from wshard.dataset.layouts import Room
    from wshard.dataset.listing import Files
    from wshard.dataset.places import Paths
    from wshard.statistics.normalizing import Normalize, StatsSource
    from wshard.statistics.stats import Stats

__all__ = ["EpisodeDataset"]

_ON_ERROR: Final = ("raise", "skip")
_OWN_KEYS: Final = ("episode", "start")
# With `on_error="skip"`: after so many episodes in a row that cannot be read, it is not the episodes.
_MOST_TRIES: Final = 100


class EpisodeDataset:
    """Windows of episodes, numbered from 0 on, each a dictionary of arrays.

        ds = EpisodeDataset("episodes", window=64, channels=["rgb", "state", "ctrl"])
        ds[0]["rgb"]                      # [64, 64, 64, 3]
        ds.batch([3, 1, 4])["rgb"]        # [3, 64, 64, 64, 3], decoded in parallel

        ds = EpisodeDataset("episodes", delta_timestamps={"rgb": [-0.1, 0.0], "ctrl": [0.0, 0.1, 0.2]})
        ds[0]["rgb"], ds[0]["rgb_is_pad"] # one step: [2, 64, 64, 3], [2]

    A window has its channels by name, `reward` (float32), `terminated` and `truncated`, zero where the
    episode has none, `episode` and `start`: where it is from; and with padding `is_pad`. A channel whose name
    is one of these, or both an observation and an action, has its lane in front: `signal/arm`.

    Episodes may have different lengths, lie in chunks (the manifest counts, its chunks do not) or in packs,
    and have added lanes. All have the same channels. What is known about a folder or pack is saved beside it,
    in `<folder>.wshard-index`, which is a data set as well.

    Safe for threads, in forked and spawned workers; pickles without any open file.

    Args:
        files: a folder, with all folders in it but hidden ones; a file, a URL, a pack of episodes, a pattern such
            as `"runs/*/ep_*.wshard"`, a range such as `"eps-{000..009}.shardpack"`, or a list of these; an open
            `shardpack.Dataset`; or a saved index, which is believed as it is. Of folders and patterns the order
            is that of the names, with numbers in them counted.
        window: steps of a window; 64 if left out.
        stride: steps from the start of a window to that of the next.
        channels: names, or block names such as `"omen/state/dreamer"`; all plain observations and actions
            that follow the steps if left out, and with `align` those with clocks of their own.
        pad: `"none"`: windows lie within an episode, and shorter episodes have none. `"edge"` or `"zero"`: a
            window starts at every `stride`-th step, and what lies behind the end is the last step again, or zero.
        next_observations: whether observations have one entry more: what followed the last step. Windows are then
            made of the steps of which that is known, as by `ReplayBuffer.sample`.
        delta_timestamps: instead of a window every `stride`-th step, with entries of these channels at other times:
            for each key a list of seconds from the step's time. `<key>` has one entry for each, and
            `<key>_is_pad` says which lie outside the episode and are its first or last entry. All other channels
            come as the one step, without a time axis.
        tolerance_s: how far an entry may be from a time of `delta_timestamps`; a step is an error where none is
            that near.
        align: how channels with clocks of their own come to the times of the steps: `"nearest"`, `"previous"`,
            `"linear"` or `"exact"`, as for `Episode.align`. `<key>_is_pad` says where there is no entry.
        tolerance_ns: with `align`, entries further away than this count as missing.
        episodes: which ones, by their numbers; all if left out.
        where: a condition on episodes, such as `"length > 100 and success"`: names are `length`, `id`, `env_id`
            and the fields of the episode's metadata. See `Condition`.
        transform: done to each window; what it returns takes the window's place.
        threads: that read a batch; None for one per processor, up to 8; in worker processes of loaders, one.
        max_open: how many episodes stay open, and how many packs. A compressed episode may keep what it decoded
            of small channels, and of blocks that can only be decoded as a whole.
        index: whether the index of a folder or pack is used and saved; or where, which also works for a list of
            files. Of URLs such an index is believed until it is deleted.
        on_error: `"raise"`, or `"skip"`: files and windows that cannot be read are counted in `skipped` and
            reported to the logger `wshard`. In place of such a window comes the one in the same place of the
            next episode, or the nearest place it has, so that the order stays a pure function of the files.
        storage_options: for files that are URLs, as `load_wshard` takes them.
        normalize: brings channels to a common range, before any transform. True: floating-point numbers and
            pictures to mean 0 and deviation 1, as float32 (float64 stays). `"mean_std"`, `"min_max"` or
            `"quantile"`: the same channels in this way. A mapping such as `{"state": "mean_std", "ctrl":
            "min_max"}`: these channels only. Statistics or their path: as True with them.
        stats: the statistics to normalise by, or the file that holds them; those beside the folder if left
            out. See `compute_stats`.
        cache: a folder on a local disk. The first time an episode is opened, a decoded copy of its channels is put there;
            from then on windows are cut out of it. For all workers and later runs. Episodes that are stored
            uncompressed on this machine are not copied.
        cache_bytes: how large the cache may become; the copies that were opened longest ago go first. None: as large
            as the disk.

    Raises:
        InvalidArgument: an argument cannot work, or there is no window.
        ShardError: a subclass that says which file cannot be read and why.
    """

    def __init__(
        self,
        files: Files,
        window: int | None = None,
        stride: int = 1,
        channels: Iterable[str] | None = None,
        pad: str = "none",
        *,
        next_observations: bool = False,
        delta_timestamps: Mapping[str, Iterable[float]] | None = None,
        tolerance_s: float = 1e-4,
        align: str | None = None,
        tolerance_ns: int | None = None,
        episodes: Iterable[int] | None = None,
        where: str | None = None,
        transform: Callable[[Sample], Sample] | None = None,
        threads: int | None = None,
        max_open: int = 128,
        index: bool | str | os.PathLike[str] = True,
        on_error: str = "raise",
        storage_options: Mapping[str, Any] | None = None,
        normalize: Normalize = False,
        stats: StatsSource | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        for name, count in (("stride", stride), ("max_open", max_open)):
            if operator.index(count) < 1:
                raise InvalidArgument(f"{name} is at least 1", found=count)
        if threads is not None and threads < 1:
            raise InvalidArgument("threads must be at least 1", found=threads)
        check_choice("on_error", on_error, _ON_ERROR)
        if isinstance(channels, str):
            raise InvalidArgument("channels takes a list of names", hint=f"channels=[{channels!r}]")
        self._layout = make_layout(
            window, pad, next_observations, delta_timestamps, tolerance_s, align, tolerance_ns
        )
        self.window = self._layout.window
        """Steps of an item; 1 with `delta_timestamps`."""
        self.stride = operator.index(stride)
        self.pad = pad
        self.next_observations = self._layout.next_observations
        self.transform = transform
        self.on_error = on_error
        self.skipped = Skipped()
        """How many windows could not be read, by file."""
        self._threads = threads
        copies = make_cache(cache, cache_bytes)
        options = dict(storage_options) if storage_options else None
        catalogue = open_catalogue(files, index, self._left_out, options)
        self.folder = catalogue.base if catalogue.folders else None
        """The folder that the files are from; None if they were listed."""
        self.data_fingerprint = fingerprint_of(catalogue.lengths, catalogue.sizes)
        """Changes with the lengths and sizes of all episodes, chosen or not; for what is known about the data."""
        rows = select(catalogue, episodes, where)
        places = catalogue.places
        if len(rows) != len(places):
            places = places.select(rows)
        lengths = np.array(catalogue.lengths[rows])
        self._episodes = Episodes(
            places,
            lengths,
            catalogue.followed(rows) if next_observations else lengths,
            self._layout,
            storage_options=options,
            max_open=max_open,
            packs=opened_packs(files),
            cache=copies,
        )
        self._number()
        if not len(self._numbers):
            raise self._without_windows()
        self._wanted = self._episodes.find_channels(
            np.flatnonzero(np.diff(self._numbers.firsts))[:_MOST_TRIES].tolist(),
            None if channels is None else list(channels),
            _OWN_KEYS,
            self._not_like_others,
        )
        self._normalizer = make_normalizer(normalize, stats, self._wanted, self)

    def _number(self) -> None:
        padded = self.pad != "none"
        self._numbers = WindowNumbers(
            self._episodes.usable, self.window, self.stride, padded=padded
        )

    def _without_windows(self) -> InvalidArgument:
        more = " and what followed them" if self.next_observations else ""
        return InvalidArgument(
            "there is no window of this length",
            expected=f"an episode of {self.window} steps{more}",
            found=f"{len(self.lengths)} episodes, the longest of {self.lengths.max()} steps",
            hint="take a shorter window, or pass pad='edge' or 'zero'",
        )

    def _left_out(self, path: str, error: ShardError) -> None:
        if self.on_error == "raise":
            raise error
        self.skipped.leave_out(path, error)

    def _not_like_others(self, path: str, error: ShardError) -> None:
        if self.on_error == "raise":
            raise error
        self.skipped.add(path, error, 0)

    # --- what is in it

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def paths(self) -> Paths:
        """The files of the episodes, in their order; in a pack the pack, a slash and the file that it was."""
        return self._episodes.paths

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The steps of each episode."""
        return self._episodes.lengths

    @property
    def channels(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """The type of each channel, and the shape of one step, by the names that windows use."""
        normalizer = self._normalizer
        return {
            want.key: (
                normalizer.dtype_of(want.key, want.dtype) if normalizer else want.dtype,
                want.shape,
            )
            for want in self._wanted
        }

    @property
    def stats(self) -> Stats | None:
        """The statistics that channels are normalised by."""
        return None if self._normalizer is None else self._normalizer.stats

    @property
    def fingerprint(self) -> str:
        """Changes with the names and lengths of the episodes, and with what windows there are."""
        places = self._episodes.places
        digest = xxh64(places.names.blob)
        digest.update(self.lengths.astype("<i8").tobytes())
        what = [(want.key, str(want.dtype), want.shape) for want in self._wanted]
        digest.update(repr((what, self.window, self.stride, self.pad)).encode())
        if len(places.packs):
            digest.update(places.packs.blob + places.pack_of.astype("<i4").tobytes())
        options = self._layout.options()
        if options:
            digest.update(repr(options).encode())
        if self._normalizer is not None:
            digest.update(self._normalizer.fingerprint.encode())
        return digest.hexdigest()

    def episode_of(self, number: int) -> tuple[int, int]:
        """The number of a window's episode, and the step at which it starts."""
        episodes, starts = self.locate([number])
        return int(episodes[0]), int(starts[0])

    def locate(self, numbers: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same for many windows at once; negative numbers count from the end."""
        return self._numbers.locate(self._numbers.checked(numbers))

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
        readable = out if self._normalizer is None else self._normalizer.readable(out)
        room = self._layout.room(len(episodes), self._wanted, readable)

        def fill(row: int) -> None:
            try:
                self._fill(room, row, int(episodes[row]), int(starts[row]))
            except ShardError as error:
                if self.on_error == "raise":
                    raise
                episodes[row], starts[row] = self._fill_other(
                    room, row, int(episodes[row]), int(starts[row]), error
                )

        # Neighbours together: an episode that several windows are from is opened once.
        order = np.lexsort((starts, episodes)).tolist()
        for_each(order, fill, thread_count(self._threads, room.nbytes))
        arrays = room.arrays
        if self._normalizer is not None:
            is_zero = arrays["is_pad"] if self.pad == "zero" else None
            arrays = self._normalizer.apply(arrays, out, self._threads, zero=is_zero)
        return {**arrays, "episode": episodes, "start": starts}

    def _fill(self, room: Room, row: int, episode: int, start: int) -> None:
        stop = min(start + self.window, int(self._episodes.usable[episode]))
        room.fill(row, self._episodes.opened[episode], start, stop)

    def _fill_other(
        self, room: Room, row: int, episode: int, start: int, error: ShardError
    ) -> tuple[int, int]:
        """Reads another window in place of one that cannot be read; returns its episode and start."""
        self.skipped.add(self.paths[episode], error, 1)
        for _ in range(_MOST_TRIES):
            episode, other = self._numbers.following(episode, start)
            try:
                self._fill(room, row, episode, other)
            except ShardError as another:
                self.skipped.add(self.paths[episode], another, 0)
                error = another
            else:
                return episode, other
        raise error

    # --- files

    @contextmanager
    def open_channels(self, number: int) -> Iterator[dict[str, Channel]]:
        """The channels of an episode as they are stored, by the names that windows use, and `reward` if it has some."""
        path = self.paths[number]
        with self._episodes.load_as_listed(number) as episode:
            try:
                found = {want.key: want.of(episode) for want in self._wanted}
                if episode.rewards is not None:
                    found["reward"] = episode.rewards
                yield found
            except ShardError as error:
                raise error.located(path=path) from None

    def close(self) -> None:
        """Closes all files. They are opened again when they are needed."""
        self._episodes.close()

    # --- copies

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_numbers"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._number()

    def __repr__(self) -> str:
        # The same in every process, for loaders that compare it when they resume.
        asked = self._layout.options()
        options = "".join(f"{name}={value!r}, " for name, value in asked.items())
        return (
            f"EpisodeDataset(episodes={len(self.lengths)}, windows={len(self)}, "
            f"window={self.window}, stride={self.stride}, pad={self.pad!r}, {options}"
            f"fingerprint={self.fingerprint!r})"
        )
