"""Reading every step of a data set once, in threads, for its statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from shard_format._parallel import available_threads
from shard_format.errors import InvalidArgument, ShardError
from wshard.blocks import FileBlock
from wshard.statistics.accumulating import Accumulator
from wshard.statistics.stats import Stats
from wshard.statistics.turns import in_turn
from wshard.values import product, step_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wshard.channels import Channel
    from wshard.dataset.dataset import EpisodeDataset
    from wshard.dataset.listing import Files

__all__ = ["DEFAULT_QUANTILES", "compute_stats"]

DEFAULT_QUANTILES: Final = (0.01, 0.1, 0.5, 0.9, 0.99)
# What a thread reads at a time. Counting and sorting take up to ten times as much.
_PIECE_BYTES: Final = 1 << 21


def compute_stats(
    ds: EpisodeDataset | Files,
    *,
    quantiles: Sequence[float] = DEFAULT_QUANTILES,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Stats:
    """The statistics of a data set: of every number in its channels, and of `reward`, once.

    Windows do not count: all steps of all its episodes do, also of those that are shorter than a window, and the
    observation after the last step where there is one. The result is the same for any number of threads, and memory
    does not grow with the number of steps.

    Args:
        ds: a data set; or what one is made of, for all observations and actions. Episodes that cannot be read
            are an error, or with the data set's `on_error="skip"` in its `skipped`; then no part of them counts.
        quantiles: shares from 0 to 1.
        threads: that read; None for one per processor, up to 8.
        progress: called with the bytes done and the bytes in all, never by two threads at once.

    Raises:
        InvalidArgument: an argument cannot work.
        ShardError: a subclass that says which file cannot be read and why.
    """
    from wshard.dataset.dataset import EpisodeDataset

    shares = _checked(quantiles)
    if threads is not None and threads < 1:
        raise InvalidArgument("threads must be at least 1", found=threads)
    data = ds if isinstance(ds, EpisodeDataset) else EpisodeDataset(ds, window=1)
    total = _Total(data, progress)
    at_once = available_threads() if threads is None else threads
    in_turn(len(data.lengths), total.read, total.take, at_once)
    return total.finish(shares)


def _checked(quantiles: Sequence[float]) -> tuple[float, ...]:
    shares = tuple(sorted({float(share) for share in quantiles}))
    for share in shares:
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise InvalidArgument("a quantile is a share of all", expected="0 to 1", found=share)
    return shares


class _Total:
    """What is known about a data set so far.

    Args:
        ds: the data set.
        progress: told of what is done.
    """

    def __init__(self, ds: EpisodeDataset, progress: Callable[[int, int], None] | None) -> None:
        self._ds = ds
        self._progress = progress
        self._step_bytes = sum(
            dtype.itemsize * product(shape) for dtype, shape in ds.channels.values()
        )
        self._bytes = int(ds.lengths.sum()) * self._step_bytes
        self._done = 0
        self._found: dict[str, Accumulator] = {}
        self._episodes = self._steps = 0

    def read(self, number: int) -> tuple[int, dict[str, Accumulator] | None]:
        """All of one episode; None if it is left out."""
        found = {}
        try:
            with self._ds.open_channels(number) as channels:
                for key, channel in channels.items():
                    # Nothing can be said about steps without numbers.
                    if product(channel.shape):
                        found[key] = _read(channel)
        except ShardError as error:
            self._ds._left_out(self._ds.paths[number], error)
            return number, None
        return number, found

    def take(self, result: tuple[int, dict[str, Accumulator] | None]) -> None:
        """Adds one episode."""
        number, found = result
        length = int(self._ds.lengths[number])
        if found is not None:
            self._episodes += 1
            self._steps += length
            for key, accumulator in found.items():
                if key in self._found:
                    self._found[key].join(accumulator)
                else:
                    self._found[key] = accumulator
        if self._progress is not None:
            self._done += length * self._step_bytes
            self._progress(self._done, self._bytes)

    def finish(self, quantiles: tuple[float, ...]) -> Stats:
        """The statistics of all."""
        if not self._episodes:
            raise InvalidArgument(
                "no episode of the data set can be read",
                found=f"{len(self._ds.lengths)} episodes, all of them left out",
            )
        channels = {key: found.finish(quantiles) for key, found in self._found.items()}
        fingerprints = (self._ds.data_fingerprint,)
        return Stats(channels, fingerprints, self._episodes, self._steps)


def _read(channel: Channel) -> Accumulator:
    found = Accumulator(channel.dtype, tuple(channel.shape))
    # What reading brings into memory goes away with the copy.
    channel = channel._shallow()
    if channel.nbytes <= _PIECE_BYTES or _is_view(channel):
        # Read as a whole it is compared with its checksum.
        _ = channel.data
    for start, stop in step_ranges(channel.length, channel.step_bytes, _PIECE_BYTES):
        found.add(channel.read_steps(start, stop))
    return found


def _is_view(channel: Channel) -> bool:
    """Whether all of it takes no memory."""
    block = channel._block
    return isinstance(block, FileBlock) and not block.is_compressed and block.reader.can_view
