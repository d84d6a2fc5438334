"""Windows of many episodes as a map-style dataset."""

from __future__ import annotations

import logging
import operator
import os
import weakref
from collections.abc import Iterable
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh64

from shard_format import display
from shard_format.errors import DATA_ERRORS, Closed, InvalidArgument, ShardError, check_choice
from shard_format.findings import SkipCounter
from shard_format.parallel import for_each, thread_count
from shard_format.units import byte_count
from shard_train._batches import WindowBatch
from shard_train._episodes.cache import make_cache
from shard_train._episodes.contents import (
    ChannelRequest,
    ContentBuffers,
    choose_items,
    missing_of,
)
from shard_train._episodes.layouts import WindowNumbers, make_layout
from shard_train._episodes.store import EpisodeStore, file_of, read_whole
from shard_train._normalizing import make_normalizer
from shard_train._plan import Plan
from shard_train._read_ahead import (
    DEFAULT_READ_AHEAD,
    FilesAhead,
    WindowsAhead,
    cached_options,
    is_far,
)
from shard_train.packed_episodes import EpisodePack, open_episode_pack
from shardpack import Dataset
from shardpack.dataset import expand
from shardpack.sets import is_set_file
from wshard.catalogue import (
    LABELS,
    METADATA,
    NO_PACK,
    CatalogueOpener,
    EpisodeForms,
    parse_where,
    select,
)
from wshard.windows import STEP_KEYS, NearSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Unpack

    from shard_train._batches import Sample, SampleBatch
    from shard_train._episodes.contents import Encode
    from shard_train._episodes.store import Files
    from shard_train._normalizing import Normalize, StatsSource
    from shard_train._plan import PlanOptions
    from shard_train._stats import Stats
    from wshard import catalogue
    from wshard.catalogue import Catalogue, EpisodeLocations, Where
    from wshard.types import Channel, Episode
    from wshard.windows import WindowSource

__all__ = ["EpisodeDataset"]

_log = logging.getLogger("wshard")

_COMPUTED: Final = frozenset({"_file_sizes", "_is_remote"})
_OWN_KEYS: Final = ("episode", "start")
_STEP: Final = "t"
"""The key of the numbers of steps, unless a channel has this name."""
# Windows of one batch that are fetched at the same time.
_REQUESTS: Final = 16
# Bytes that are fetched with others, because a request costs about as much; and the largest request.
_GAP_BYTES: Final = 1 << 16
_MOST_MERGED_BYTES: Final = 1 << 24
# Names in the line that says what windows leave out.
_MOST_SHOWN: Final = 8
# With `on_error="skip"`: after this many unreadable episodes in a row, the episodes are not the problem.
_MOST_TRIES: Final = 100


class EpisodeDataset:
    """Windows of episodes, numbered from 0 on, each a dictionary of arrays.

        ds = EpisodeDataset("episodes", window=64, channels=["rgb", "state", "ctrl"])
        ds[0]["rgb"]                      # [64, 64, 64, 3]
        ds.batch([3, 1, 4])["rgb"]        # [3, 64, 64, 64, 3], decoded in parallel

        ds = EpisodeDataset("episodes", delta_timestamps={"rgb": [-0.1, 0.0], "ctrl": [0.0, 0.1, 0.2]})
        ds[0]["rgb"], ds[0]["rgb_is_pad"] # one step: [2, 64, 64, 3], [2]

    A window has its channels by name; `reward` (float32), `terminated` and `truncated`, which are zero where the
    episode has none; `episode` and `start`, its episode and its first step; `t`, the number of each step in the
    episode, unless a channel has this name; and with padding `is_pad`. A channel whose name is one of the others, or
    that is both an observation and an action, has its lane in front: `signal/arm`.

    Text is a list of strings, one for each step. A ragged channel is an array of the items of all steps, and
    `<key>_offsets` says where those of each step start. In a batch both are lists with one element for each window. See `encode` for other forms, and for labels.

    Episodes may have different lengths, may be in chunks (pass the manifest) or in packs, and may have sidecars.
    All must have the same channels; see `missing`. The dataset saves what it knows about a folder or pack beside it, in
    `<folder>.wshard-index`, and can be opened from that file too.

    Safe for threads, and in forked and spawned workers; pickles without any open file.

    Args:
        files: a folder, which is searched recursively except for hidden folders; a file, a URL, a pack of
            episodes, a pattern such as `"runs/*/ep_*.wshard"`, a range such as `"eps-{000..009}.shardpack"`, or a
            list of these; an open `shardpack.Dataset`; or a saved index, which is used without scanning the files
            again. Folders and patterns are read in natural order: `ep_9` before `ep_10`.
        window: steps of a window; 64 if left out. If you leave it out and no episode is that long, asking for windows, or
            for their number, is an error, and everything else works: `paths`, `lengths`, `open_episode`, `compute_stats`.
        stride: steps from the start of one window to the start of the next.
        channels: names, block names such as `"omen/state/dreamer"`, and fields of the metadata such as
            `"metadata/task"`. If left out, all observations and actions that follow the steps, and with `align` also
            those with clocks of their own; the logger `wshard` then says in one line what windows leave out, and
            `left_out` has the names.
        pad: `"none"`: windows lie within an episode, and shorter episodes have none. `"edge"` or `"zero"`: a
            window starts at every `stride`-th step, and steps after the end repeat the last step, or are zero.
        next_observations: whether observations have one entry more: what followed the last step. Windows then
            use only the steps whose following observation is known, as `ReplayBuffer.sample` does.
        delta_timestamps: instead of windows, take every `stride`-th step with entries of these channels at other
            times: for each key a list of seconds relative to the step. `<key>` has one entry for each time, and
            `<key>_is_pad` marks those that lie outside the episode, where its first or last entry stands. All
            other channels have the one step, without a time axis.
        tolerance_s: how far an entry may be from its time. With `delta_timestamps` a step without an entry that
            near is an error, and the default is 0.0001. With `align` entries further away count as missing, and
            the default is any distance.
        align: how channels with clocks of their own are resampled to the times of the steps: `"nearest"`,
            `"previous"`, `"linear"` or `"exact"`, as for `Episode.align`. `<key>_is_pad` marks missing entries.
        episodes: numbers of the episodes to use; all if left out.
        where: keeps the episodes for which it is true, as for `wshard.find`: an expression such as
            `"success and length > 100"` over `path`, `id`, `env_id`, `length`, `return`, `success` and the fields of the
            metadata; or a function that is called with an `EpisodeInfo`:
            `where=lambda episode: episode.length > 100 and episode.metadata.get("success")`.
        transform: called with each window; what it returns replaces the window.
        threads: how many threads read a batch; None for one per processor, up to 8; in loader workers, one.
        max_open: how many episodes, and how many packs, stay open; fewer while a quarter of the descriptors that the
            process may have (`ulimit -n`) are in use. An open compressed episode may keep decoded
            small channels, and blocks that can only be decoded as a whole.
        index: whether to use and save the index of a folder or pack; or the path of an index, which also works
            for a list of files. The index of URLs is used until you delete it.
        on_error: `"raise"`, or `"skip"`: damaged files and windows are counted in `skipped` and logged
            to `wshard`; other errors, such as missing files and those of the system and the network, are raised. The
            window at the same place of the next episode, or the nearest place that it has, replaces such a window, so
            that the order stays a pure function of the files.
        storage_options: for files that are URLs, as for `load_wshard`.
        read_ahead: how many bytes of windows, or of files, to hold that were read before they are needed, such as
            `"256MB"`; shared by the workers of a loader. 0 reads nothing ahead. Only for URLs. See `follow`.
        cache_dir: a folder on a local disk. What is fetched from URLs is kept there, as it is, for later epochs and
            all processes. (`cache` keeps decoded copies, also of local files.)
        normalize: scales channels to a common range, before any transform. True: floating-point channels and
            images to mean 0 and deviation 1, as float32 (float64 stays). `"mean_std"`, `"min_max"` or
            `"quantile"`: the same channels in this way. A mapping such as `{"state": "mean_std", "ctrl":
            "min_max"}`: only these channels. Statistics, or the path of their file: as True, with these.
        stats: the statistics to normalise by, or the path of their file; if left out, those beside the folder.
            See `compute_stats`.
        cache: a folder on a local disk. The first time an episode is opened, a decoded copy of its channels is
            written there, and windows are read from the copy from then on, by all workers and later runs.
            Uncompressed local episodes are not copied.
        cache_bytes: how large each of the two folders may become; the files that were used longest ago go first.
            None for no limit.
        encode: how windows hold text, ragged data and labels, by name; adds these to the channels. For text, a
            function that is called with the list of strings of a window, such as a tokenizer, and whose result
            replaces the list. For ragged data, the most items of a step: the array has room for as many, and
            `<key>_is_pad` marks the room that a step does not need. For a label such as `"label/skill"`, the list of its
            classes: each step has the number of its class, or -1; `OneHot([…])` gives one bool for each class.
        missing: `"raise"`, or `"fill"`: a channel that some episodes lack is NaN there, 0 or False if it has no NaN,
            and empty for text and ragged data; `<key>_is_missing` marks the windows of these episodes.
        check: False skips the checksums of entries, as for `load_wshard`. A window of an uncompressed channel is then all
            that is read of it; otherwise the first window in each process reads and checks the whole channel.

    Raises:
        InvalidArgument: an argument is invalid, or the episodes have no window.
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
        tolerance_s: float | None = None,
        align: str | None = None,
        episodes: Iterable[int] | None = None,
        where: Where | None = None,
        transform: Callable[[Sample], Sample] | None = None,
        threads: int | None = None,
        max_open: int = 128,
        index: bool | str | os.PathLike[str] = True,
        on_error: str = "raise",
        storage_options: Mapping[str, Any] | None = None,
        normalize: Normalize = False,
        stats: StatsSource | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        read_ahead: int | str = DEFAULT_READ_AHEAD,
        cache_dir: str | os.PathLike[str] | None = None,
        encode: Encode | None = None,
        missing: str = "raise",
        check: bool = True,
    ) -> None:
        for name, count in (("stride", stride), ("max_open", max_open), ("threads", threads)):
            if count is not None and operator.index(count) < 1:
                raise InvalidArgument(f"{name} must be at least 1", found=count)
        check_choice("on_error", on_error, ("raise", "skip"))
        check_choice("missing", missing, ("raise", "fill"))
        if isinstance(channels, str):
            raise InvalidArgument("channels takes a list of names", hint=f"channels=[{channels!r}]")
        self._layout = make_layout(
            window, pad, next_observations, delta_timestamps, tolerance_s, align
        )
        self.window = self._layout.window
        """Steps of an item; 1 with `delta_timestamps`."""
        self.stride = operator.index(stride)
        self.pad = pad
        self.next_observations = self._layout.next_observations
        self.transform = transform
        self.on_error = on_error
        self.skipped = SkipCounter("wshard", "window")
        """How many windows could not be read, by file; 0 for a file that was left out as a whole."""
        self._threads = threads
        most = None if cache_bytes is None else byte_count("cache_bytes", cache_bytes)
        copies = make_cache(cache, most if cache is not None or cache_dir is None else None)
        self._read_ahead = byte_count("read_ahead", read_ahead)
        self._ahead: WindowsAhead | FilesAhead | None = None
        options = cached_options(
            storage_options, cache_dir, most if cache_dir is not None else None
        )
        keeps = None if where is None else parse_where(where)  # before files are scanned
        # Scanning reads the heads of all files, which are not worth keeping.
        plain = dict(storage_options) if storage_options else None
        catalogue = self._open_catalogue(files, index, plain)
        self.folder = catalogue.base if catalogue.folders else None
        """The folder that the files are from; None if they were listed."""
        self.data_fingerprint = _data_fingerprint(catalogue)
        """Changes with the lengths and sizes of all episodes, chosen or not; statistics are bound to it."""
        chosen = select(catalogue, episodes, keeps)
        if not len(chosen.rows):
            raise InvalidArgument(
                "where= keeps no episode",
                found=f"{len(catalogue.rows)} files",
                hint="wshard.find shows what is known about each episode",
            )
        lengths = np.array(chosen.rows["length"], np.int64)
        lengths.flags.writeable = False
        self._store = EpisodeStore(
            chosen.locations,
            lengths,
            self._layout,
            storage_options=options,
            max_open=max_open,
            packs=files if isinstance(files, Dataset) else None,
            cache=copies,
            check=check,
        )
        self._sizes = np.array(chosen.rows["size"], np.int64)
        self._usable = lengths
        if next_observations:
            observed = np.array(chosen.rows["observed"], np.int64)
            self._usable = np.minimum(lengths, np.maximum(observed - 1, 0))
        self._numbers = WindowNumbers(
            self._usable, self.window, self.stride, padded=self.pad != "none"
        )
        has_windows = np.diff(self._numbers.firsts) > 0
        if not len(self._numbers):
            if window is not None or delta_timestamps is not None:
                raise self._without_windows()
            has_windows[:] = True
        forms = EpisodeForms.of(chosen)
        request = ChannelRequest(
            None if channels is None else list(channels),
            encode or {},
            fill=missing == "fill",
            compare=on_error == "raise",
            own_clocks=align is not None,
            own_keys=(*STEP_KEYS, "is_pad", *_OWN_KEYS, _STEP),
        )
        items = choose_items(request, forms, chosen)
        self._store.contents = items.contents
        self._metadata = items.metadata
        self._wanted = self._store.find_channels(
            np.flatnonzero(has_windows)[:_MOST_TRIES].tolist(),
            items.names,
            _OWN_KEYS,
            self._skip_episode,
            items.may_lack,
        )
        lacked = [(one.key, one.block) for one in items.contents if one.may_lack]
        lacked += [(w.key, forms.find(w.name) or w.name) for w in self._wanted if w.may_lack]
        self._is_missing = {key: forms.missing(block) for key, block in lacked}
        """Which episodes lack a channel, by key."""
        self._has_step = self._check_keys()
        self._normalizer = make_normalizer(normalize, stats, self._wanted, self)
        self.left_out = tuple(items.left_out)
        """What episodes have and windows do not, if you did not choose channels."""
        self._report_left_out()

    def _check_keys(self) -> bool:
        """Refuse keys that mean two things; return whether `t` is free for the numbers of steps."""
        keys = [want.key for want in self._wanted]
        keys += [key for content in self._store.contents for key in content.keys]
        keys += [column.key for column in self._metadata]
        keys += [missing_of(key) for key in self._is_missing]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise InvalidArgument(
                "two keys of a window have the same name",
                entry=twice,
                hint="choose channels with channels=[…]",
            )
        return _STEP not in keys

    def _report_left_out(self) -> None:
        """Say in one line what windows do not hold. Only here, so that workers do not repeat it."""
        if not self.left_out:
            return
        shown = ", ".join(self.left_out[:_MOST_SHOWN])
        more = len(self.left_out) - _MOST_SHOWN
        only_metadata = all(name.startswith(METADATA) for name in self.left_out)
        _log.log(
            logging.INFO if only_metadata else logging.WARNING,
            "windows leave out %s%s; to hold them, name them in channels=[…], give labels their classes in "
            "encode=, and resample channels with clocks of their own with align=",
            *(shown, f" and {more} more" if more > 0 else ""),
        )

    def _open_catalogue(
        self, files: Files, index: bool | str | os.PathLike[str], options: dict[str, Any] | None
    ) -> Catalogue:
        opener = CatalogueOpener(index, self.leave_out, options, open_episode_pack)
        if not isinstance(files, Dataset):
            return opener.open(with_shards(files))
        shards = files.shards
        return opener.open_packs(
            [shard.name for shard in shards], lambda pack: EpisodePack(shards[pack])
        )

    def _without_windows(self) -> InvalidArgument:
        more = " and the observation after them" if self.next_observations else ""
        return InvalidArgument(
            "no episode is long enough for a window",
            expected=f"an episode of {self.window} steps{more}",
            found=f"{len(self.lengths)} episodes, the longest of {self.lengths.max()} steps",
            hint="use a shorter window, or pass pad='edge' or pad='zero'",
        )

    def leave_out(self, path: str, error: ShardError) -> None:
        """Raise the error of a file that cannot be read; with `on_error="skip"`, count the file instead."""
        if self.on_error == "raise":
            raise error
        self.skipped.leave_out(path, error)

    def _skip_episode(self, path: str, error: ShardError) -> None:
        if self.on_error == "raise":
            raise error
        self.skipped.add(path, error, 0)

    # --- what is in it

    def __len__(self) -> int:
        # An error, not 0: a loader must not train on nothing without a word.
        if not len(self._numbers):
            raise self._without_windows()
        return len(self._numbers)

    @property
    def paths(self) -> EpisodeLocations:
        """The files of the episodes, in order; in a pack the pack, a slash and the file name it had."""
        return self._store.locations

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The steps of each episode."""
        return self._store.lengths

    @property
    def channels(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """The type of each channel of numbers and the shape of one step, by the names that windows use."""
        normalizer = self._normalizer
        return {
            want.key: (
                normalizer.dtype_of(want.key, want.dtype) if normalizer else want.dtype,
                want.shape,
            )
            for want in self._wanted
        }

    @property
    def observation_keys(self) -> frozenset[str]:
        """Those of the channels that are observations."""
        return frozenset(want.key for want in self._wanted if want.is_observation)

    @property
    def ragged_keys(self) -> tuple[str, ...]:
        """The channels of text and ragged data, which are not among `channels`."""
        return tuple(one.key for one in self._store.contents if not one.block.startswith(LABELS))

    @property
    def stats(self) -> Stats | None:
        """The statistics that channels are normalised by."""
        return None if self._normalizer is None else self._normalizer.stats

    @property
    def fingerprint(self) -> str:
        """Changes with the names and lengths of the episodes, and with the options that define windows."""
        locations = self._store.locations
        digest = xxh64(locations.names.blob)
        digest.update(self.lengths.astype("<i8").tobytes())
        what = [(want.key, str(want.dtype), want.shape) for want in self._wanted]
        digest.update(repr((what, self.window, self.stride, self.pad)).encode())
        if len(locations.packs):
            digest.update(locations.packs.blob + locations.pack_of.astype("<i4").tobytes())
        options = self._layout.options()
        held = [content.options() for content in self._store.contents]
        held += [(column.key,) for column in self._metadata]
        held += [(missing_of(key),) for key in self._is_missing]
        if held:
            options["held"] = held
        if options:
            digest.update(repr(options).encode())
        if self._normalizer is not None:
            digest.update(self._normalizer.fingerprint.encode())
        return digest.hexdigest()

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Windows in each file, as `Plan` takes them: in a pack, or in an episode that has a file of its own."""
        return tuple(np.diff(self._numbers.firsts[self._shard_starts]).tolist())

    @property
    def _shard_starts(self) -> NDArray[np.int64]:
        """The first episode of each file, and the number of all episodes."""
        packs = self._store.locations.pack_of
        is_new = (packs[1:] != packs[:-1]) | (packs[1:] == NO_PACK)
        return np.concatenate(([0], np.flatnonzero(is_new) + 1, [len(packs)]))

    def plan(self, **options: Unpack[PlanOptions]) -> Plan:
        """Make a plan for the dataset; see `Plan` for the options. The plan knows how many windows each file has."""
        sizes = self.shard_sizes if options.get("shuffle") == "shards" else None
        return Plan(len(self), shard_sizes=sizes, **options)

    def episode_of(self, number: int) -> tuple[int, int]:
        """Return the number of a window's episode, and the step at which the window starts."""
        episodes, starts = self.locate([number])
        return int(episodes[0]), int(starts[0])

    def locate(self, numbers: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Do the same for many windows at once; negative numbers count from the end."""
        if not len(self._numbers):
            raise self._without_windows()
        return self._numbers.locate(self._numbers.checked(numbers))

    # --- reading

    def __getitem__(self, number: int) -> Sample:
        """Read one window. Negative numbers count from the end."""
        sample: Sample = self.__getitems__([operator.index(number)])[0]
        return sample

    def __getitems__(self, numbers: Sequence[int]) -> WindowBatch | SampleBatch:
        """Read many windows with one call: a sequence of them, whose `arrays` are the whole batch."""
        return self._batch(numbers, self._ahead)

    def _batch(
        self, numbers: ArrayLike, ahead: WindowsAhead | FilesAhead | None
    ) -> WindowBatch | SampleBatch:
        arrays = self._read_next(numbers, None, ahead)
        batch = WindowBatch(arrays, len(arrays["episode"]))
        return batch if self.transform is None else batch.transformed(self.transform)

    def batches(self, plan: Plan, start: int = 0) -> Iterator[WindowBatch | SampleBatch]:
        """The batches of a plan from step `start` on. Those of remote files are read ahead; see `follow`."""
        ahead = self._ahead_of(plan, start * plan.global_batch)
        try:
            for numbers in plan.batches(start):
                yield self._batch(numbers, ahead)
        finally:
            self._stop(ahead)

    def follow(self, plan: Plan, position: int = 0) -> None:
        """Read ahead what a plan reads from this position of its epoch on, in threads.

        Loaders call this. Batches are then handed out from memory as long as they are asked for in the order of the plan;
        others are read as always. Whole files are fetched if the windows take most of their bytes, and if those that are
        needed at a time fit into `read_ahead`: the next ones of a plan that goes from file to file (`"shards"` or
        `"none"`), and all files for any other order. Otherwise, batches are read ahead. Local files never are.
        """
        self._stop(self._ahead)
        self._ahead = self._ahead_of(plan, position)

    def follow_batches(self, batches: Iterator[NDArray[np.int64]], workers: int = 1) -> None:
        """The same for batches of any order; `workers` share the memory."""
        self._stop(self._ahead)
        self._ahead = self._batches_ahead(map(self._numbers.checked, batches), workers, None)

    def _ahead_of(self, plan: Plan, position: int) -> WindowsAhead | FilesAhead | None:
        groups = plan.shard_groups()
        if plan.shuffle == "none":
            groups = np.arange(len(self._shard_starts) - 1)
        return self._batches_ahead(plan.batches_from(position), plan.num_workers, groups)

    def _batches_ahead(
        self, batches: Iterator[NDArray[np.int64]], workers: int, groups: NDArray[np.int64] | None
    ) -> WindowsAhead | FilesAhead | None:
        """Read whole files ahead if windows take most of them and they fit; otherwise batches."""
        most = self._read_ahead // workers
        if not most or not self._is_remote:
            return None
        starts = self._shard_starts
        firsts = self._numbers.firsts[starts]
        sizes = np.add.reduceat(self._file_sizes, starts[:-1])
        if self._store.is_given or not _pays(self._store.read_share * sizes.sum(), sizes):
            return self._windows_ahead(batches, most)

        def shards_of(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
            return firsts.searchsorted(numbers, "right") - 1

        if groups is None and sizes.sum() <= most:
            batches, coming = self._look_ahead(batches, int(sizes.sum()))
            files = np.unique(shards_of(coming))
            if _pays(len(coming) * self._stored_window_bytes, sizes[files]):
                groups = np.zeros(len(sizes), np.int64)
        if groups is None or np.bincount(groups, sizes).max() > most:
            return self._windows_ahead(batches, most)
        self._store.close()
        self._store.ahead = FilesAhead(
            batches,
            shards_of=shards_of,
            groups=groups,
            paths=partial(_file_of_shard, self._store.locations, starts),
            sizes=sizes,
            fetch=partial(read_whole, storage_options=self._store.storage_options),
            most_bytes=most,
        )
        return self._store.ahead

    def _look_ahead(
        self, batches: Iterator[NDArray[np.int64]], stored_bytes: int
    ) -> tuple[Iterator[NDArray[np.int64]], NDArray[np.int64]]:
        """The same batches, and the windows that come until they take this many bytes of files."""
        seen: list[NDArray[np.int64]] = []
        left = float(stored_bytes)
        for numbers in batches:
            seen.append(numbers)
            left -= len(numbers) * self._stored_window_bytes
            if left <= 0:
                break
        coming = np.concatenate(seen) if seen else np.zeros(0, np.int64)
        return chain(seen, batches), coming

    @property
    def _stored_window_bytes(self) -> float:
        """Bytes of a file that a window is made of."""
        return self.window * self._store.step_bytes * self._store.read_share

    def _windows_ahead(self, batches: Iterator[NDArray[np.int64]], most_bytes: int) -> WindowsAhead:
        ours = weakref.WeakMethod(self._read)  # threads end when the last other reference is gone

        def read(numbers: list[int]) -> dict[str, Any]:
            read_batch = ours()
            if read_batch is None:
                raise Closed("the dataset is closed")
            return read_batch(numbers, None, at_once=_REQUESTS)

        window_bytes = self._layout.buffers(1, self._wanted, None).nbytes
        return WindowsAhead(batches, read, window_bytes, most_bytes)

    @cached_property
    def _file_sizes(self) -> NDArray[np.int64]:
        """The bytes of each episode; of URLs, a guess by their steps."""
        guesses = np.ceil(self.lengths * self._store.step_bytes).astype(np.int64)
        return np.where(self._sizes < 0, guesses, self._sizes)

    @cached_property
    def _is_remote(self) -> bool:
        locations = self._store.locations
        packs = [locations.pack_path(pack) for pack in range(len(locations.packs))]
        return any(map(is_far, (*packs, locations[0], locations[-1])))

    def _stop(self, ahead: WindowsAhead | FilesAhead | None) -> None:
        if ahead is not None:
            ahead.close()
        if ahead is not None and self._store.ahead is ahead:
            self._store.ahead = None
            self._store.close()

    def batch(self, numbers: ArrayLike, *, out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Read many windows as one array for each channel, `[B, window, ...]`; text and ragged data as lists.

        Args:
            numbers: of the windows.
            out: what an earlier call for as many windows returned; its memory is filled again, which saves
                the system finding new memory. Not together with a transform.
        """
        if self.transform is None:
            return self._read_next(numbers, out, self._ahead)
        if out is not None:
            raise InvalidArgument("out= and a transform cannot be used together: leave out= out")
        arrays = self._read_next(numbers, None, self._ahead)
        return WindowBatch(arrays, len(arrays["episode"])).transformed(self.transform).arrays

    def _read_next(
        self,
        numbers: ArrayLike,
        out: Mapping[str, Any] | None,
        ahead: WindowsAhead | FilesAhead | None,
    ) -> dict[str, Any]:
        """Read a batch, or take it from what was read ahead."""
        if ahead is None or not ahead.is_ours:
            return self._read(numbers, out)
        asked = self._numbers.checked(numbers)
        if isinstance(ahead, FilesAhead):
            self._store.forget(ahead.reach(asked))
            return self._read(asked, out)
        found = ahead.take(asked.tolist())
        if found is None:
            return self._read(asked, out)
        for key, array in found.items() if out is not None else ():
            room = (out or {}).get(key)
            if isinstance(room, np.ndarray) and isinstance(array, np.ndarray):
                room[...] = array
                found[key] = room
        return found

    def _read(
        self, numbers: ArrayLike, out: Mapping[str, Any] | None, at_once: int = 1
    ) -> dict[str, Any]:
        """Read a batch, with `at_once` threads if the files make us wait."""
        episodes, starts = self.locate(numbers)
        readable = out if self._normalizer is None else self._normalizer.readable(out)
        buffers = self._layout.buffers(len(episodes), self._wanted, readable)
        contents = ContentBuffers(
            *(len(episodes), self._store.contents),
            steps=self._layout.steps,
            repeat=self.pad == "edge",
            out=out,
        )

        has_contents = bool(self._store.contents)

        def fill_row(
            row: int, episode: int, start: int, stop: int, near: WindowSource | None = None
        ) -> None:
            source = near or self._store[episode]
            buffers.fill(row, source, start, stop)
            if has_contents:
                contents.fill(row, source, start, stop)

        stops = np.minimum(starts + self.window, self._usable[episodes])
        places = list(zip(*(a.tolist() for a in (episodes, starts, stops)), strict=True))

        def fill(row: int) -> None:
            episode, start, stop = places[row]
            try:
                fill_row(row, episode, start, stop)
            except DATA_ERRORS as error:
                if self.on_error == "raise":
                    raise
                episodes[row], starts[row] = self._fill_other(fill_row, row, episode, start, error)

        def fill_run(rows: Sequence[int]) -> None:
            if len(rows) == 1:
                fill(rows[0])
                return
            (episode, first, _), (_, _, last) = places[rows[0]], places[rows[-1]]
            # Which window is damaged shows when each is read by itself.
            with suppress(*DATA_ERRORS):
                if self._store[episode].makes_requests:
                    near = NearSource(self._store[episode], first, last + self.next_observations)
                    for row in rows:
                        _, start, stop = places[row]
                        fill_row(row, episode, start, stop, near)
                    return
            for_each(rows, fill, min(len(rows), max(1, threads // len(runs))))

        # Neighbours together: an episode that several windows are from is opened once.
        order = sorted(range(len(places)), key=places.__getitem__)
        threads = max(
            at_once if self._threads is None else 1, thread_count(self._threads, buffers.nbytes)
        )
        runs = self._neighbours(order, places)
        for_each(runs, fill_run, min(threads, len(runs)))
        arrays = buffers.arrays
        if self._normalizer is not None:
            is_zero = arrays["is_pad"] if self.pad == "zero" else None
            arrays = self._normalizer.apply(arrays, out, self._threads, zero=is_zero)
        batch = {**arrays, **contents.finished(), "episode": episodes, "start": starts}
        for column in self._metadata:
            batch.update(column.take(episodes))
        for key, is_missing in self._is_missing.items():
            batch[missing_of(key)] = is_missing[episodes]
        if self._has_step:
            steps = self._layout.steps
            batch[_STEP] = starts.copy() if steps is None else starts[:, None] + np.arange(steps)
        return batch

    def _neighbours(self, order: list[int], places: list[tuple[int, int, int]]) -> list[list[int]]:
        """Rows in this order that are read together: those of remote files that are near each other."""
        if not self._is_remote or self._store.ahead is not None or not self._layout.is_contiguous:
            return [[row] for row in order]
        decoded = sum(want.dtype.itemsize * prod(want.shape) for want in self._wanted) or 1
        stored = self._store.step_bytes * self._store.read_share or decoded
        # Decoded, what lies between windows takes no more memory than they do.
        gap = min(int(_GAP_BYTES / stored), max(self.window, _GAP_BYTES // decoded))
        most = int(_MOST_MERGED_BYTES / stored)
        runs: list[list[int]] = []
        episode, first, end = -1, 0, 0
        for row in order:
            of, start, stop = places[row]
            if of == episode and start <= end + gap and stop - first <= most:
                runs[-1].append(row)
            else:
                runs.append([row])
                episode, first = of, start
            end = stop
        return runs

    def _fill_other(
        self,
        fill_row: Callable[[int, int, int, int], None],
        row: int,
        episode: int,
        start: int,
        error: ShardError,
    ) -> tuple[int, int]:
        """Read another window in place of one that cannot be read; return its episode and start."""
        self.skipped.add(self.paths[episode], error, 1)
        for _ in range(_MOST_TRIES):
            episode, other = self._numbers.following(episode, start)
            stop = min(other + self.window, int(self._usable[episode]))
            try:
                fill_row(row, episode, other, stop)
            except DATA_ERRORS as another:
                self.skipped.add(self.paths[episode], another, 0)
                error = another
            else:
                return episode, other
        raise error

    # --- files

    def open_episode(self, number: int) -> Episode:
        """Open an episode by its number, in a file or in a pack; close it when you are done.

        Raises:
            ReferenceMismatch: the episode has changed since the dataset was opened.
        """
        return self._store.load_as_listed(number)

    @contextmanager
    def open_channels(self, number: int) -> Iterator[dict[str, Channel]]:
        """Open the stored channels of an episode, by the names that windows use, and `reward` if it has one."""
        path = self.paths[number]
        with self._store.load_as_listed(number) as episode:
            try:
                there = ((want.key, want.of_any(episode)) for want in self._wanted)
                found = {key: channel for key, channel in there if channel is not None}
                if episode.rewards is not None:
                    found["reward"] = episode.rewards
                yield found
            except ShardError as error:
                raise error.located(path=path) from None

    @property
    def open_count(self) -> int:
        """How many episodes are open now."""
        return len(self._store)

    def close(self) -> None:
        """Close all files. They are opened again when they are needed."""
        self._stop(self._ahead)
        self._ahead = None
        self._store.close()

    def __getstate__(self) -> dict[str, Any]:
        # What was computed is computed again where it is needed.
        kept = {key: value for key, value in self.__dict__.items() if key not in _COMPUTED}
        return {**kept, "_ahead": None}

    def __repr__(self) -> str:
        # The same in every process, for loaders that compare it when they resume.
        asked = self._layout.options()
        options = "".join(f"{name}={value!r}, " for name, value in asked.items())
        return (
            f"EpisodeDataset(episodes={len(self.lengths)}, windows={len(self._numbers)}, "
            f"window={self.window}, stride={self.stride}, pad={self.pad!r}, {options}"
            f"fingerprint={self.fingerprint!r})"
        )

    def _repr_html_(self) -> str:
        size, windows = f"{self.window} steps", f"stride {self.stride}, pad {self.pad}"
        facts = [
            ("episodes", f"{len(self.lengths):,} with {int(self.lengths.sum()):,} steps"),
            ("windows", f"{len(self):,} of {size}, {windows}"),
            ("files", self.folder or self.paths[0]),
        ]
        rows = {name: [str(of[0]), str(list(of[1]))] for name, of in self.channels.items()}
        pictures, note = dict[str, "NDArray[np.uint8]"](), ""
        first = int(np.flatnonzero(np.diff(self._numbers.firsts))[0])
        try:
            # How the first episode stores them; others may differ.
            with self.open_episode(first) as episode:
                rate = episode.timebase.tick_hz
                found = {want.key: want.of(episode) for want in self._wanted}
                for key, channel in found.items():
                    stored = channel.summary()
                    hertz = stored["rate"] or (f"{rate:.6g} Hz" if rate else "")
                    rows[key] += [hertz, stored["codec"], stored["size"]]
                seen = [key for key in found if key in self.observation_keys]
                seen.sort(key=lambda key: found[key].modality == "depth")  # colours first
                small = ((key, found[key].thumbnails()) for key in seen)
                camera, frames = next((one for one in small if one[1]), ("", {}))
                pictures = {f"{camera} · {at}": each for at, each in frames.items()}
        except ShardError as error:
            note = f"an episode cannot be shown: {error}"
        columns = ("channel", "dtype", "step", "rate", "codec", "size in one episode")
        table = display.Table(columns, ((key, *row) for key, row in rows.items()), len(rows))
        return display.card("EpisodeDataset", facts, table, pictures, note)


def _pays(needed_bytes: float, sizes: NDArray[np.int64]) -> bool:
    """Whether to fetch whole files of these sizes for some of their bytes: requests cost more than a few other bytes."""
    total = int(sizes.sum())
    return total - needed_bytes <= max(total // 2, _GAP_BYTES * len(sizes))


def _file_of_shard(locations: EpisodeLocations, starts: NDArray[np.int64], shard: int) -> str:
    return file_of(locations, int(starts[shard]))


def with_shards(files: catalogue.Files) -> catalogue.Files:
    """The files, with the shards of a set in place of its set file."""
    if not isinstance(files, (str, os.PathLike, Iterable)):
        return files
    parts = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    if not any(map(is_set_file, parts)):
        return files if isinstance(files, (str, os.PathLike)) else parts
    return [str(one) for part in parts for one in (expand(part) if is_set_file(part) else [part])]


def _data_fingerprint(catalogue: Catalogue) -> str:
    """Return a text that is the same wherever the files are and whatever their names are."""
    rows = catalogue.rows[catalogue.rows["length"] >= 0]
    digest = xxh64(rows["length"].astype("<i8").tobytes())
    digest.update(rows["size"].astype("<i8").tobytes())
    return digest.hexdigest()
